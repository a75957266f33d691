"""
Requests of today's protocol: the header, and the body by the decoder that knows it; a module of
its own, since a response only needs the header.

A client that does not know the broker begins with ApiVersions. If it asks in a version that the
broker does not have, the answer must be one that every client can read: error 35 in the layout of
version 0 (C{responses}). Any other unknown version closes the connection, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from functools import lru_cache
from typing import Any, NamedTuple

from pylogbroker.errors import UnknownRequestError, UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.fetch import decodeFetchRequest
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    decodeProduceRequest,
)
from pylogbroker.protocol.kafka.schemas import readUnsignedVarint

_HEAD = struct.Struct(">hhih")
_SIZED_HEAD = struct.Struct(">ihhih")
_KEYS = {int(key): key for key in ApiKey}
_ACKS_TIMEOUT_SIZE = 6
_UUID_SIZE = 16
_TOPIC_ID_VERSION = 13
"""The first version of Produce with ids of topics, not names."""
_NO_TAGS = bytes(3)
"""Behind records: no tags of partition, topic and request."""
_USUAL_HEAD_SIZE_MAX = 512
RUN_COUNT_MAX = 16
"""Requests of a L{ProduceRun}."""

_RUN_VERSION_MIN = 9
_new = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""


class RequestHeader(NamedTuple):
    """
    The header of a request.

    @ivar apiVersion: as it came; only that of an ApiVersions request may be unknown.
    """

    apiKey: ApiKey
    apiVersion: int
    correlationId: int
    clientId: str | None

    @property
    def isVersionServed(self) -> bool:
        """Whether it is no ApiVersions request of an unknown version."""
        return self.apiKey.isServed(self.apiVersion)


class ProduceRun(NamedTuple):
    """
    The bodies of Produce requests for one partition that came together, and differ in correlation
    id and records alone.

    @ivar request: the first.
    @ivar records: of each; views of what was received.
    """

    request: ProduceRequest
    correlationIds: list[int]
    records: list[memoryview]

    def separated(self, header: RequestHeader) -> list[tuple[RequestHeader, ProduceRequest]]:
        """
        The requests.

        @param header: of the first.
        """
        request, correlationIds, records = self
        (topic,) = request.topicData
        (part,) = topic.partitionData
        found = []
        for correlationId, each in zip(correlationIds, records, strict=True):
            parts = [PartitionProduceData(part.index, each)]
            found.append(
                (
                    header._replace(correlationId=correlationId),
                    request._replace(topicData=[topic._replace(partitionData=parts)]),
                )
            )
        return found


_DECODERS: dict[ApiKey, Callable[[bytes, int, int], Any]] = {
    ApiKey.PRODUCE: decodeProduceRequest,
    ApiKey.FETCH: decodeFetchRequest,
}


def decodeRequest(frame: bytes, keys: Container[ApiKey]) -> tuple[RequestHeader, Any]:
    """
    Decode a frame without its size field. Bytes behind a complete request are ignored.

    @param keys: the requests that the broker has finished.
    @return: the header, and the body: for Produce and Fetch the classes of C{produce} and C{fetch},
        for all others those of C{messages}. An ApiVersions request of an unknown version has the
        defaults as its body.
    @raise UnknownRequestError: the key is not among C{keys}.
    @raise UnsupportedVersionError: the request has no such version.
    @raise WireError: the bytes are no such request.
    """
    usual = _decodeUsualProduce(frame) if ApiKey.PRODUCE in keys else None
    if usual is not None:
        return usual
    header, position = decodeHeader(frame, keys)
    key, version = header.apiKey, header.apiVersion
    decode = _DECODERS.get(key)
    if decode is not None:
        return header, decode(frame, version, position)
    if not header.isVersionServed:
        return header, messages.ApiVersionsRequest()
    return header, key.requestClass.decode(frame, version, position)[0]


def _decodeUsualProduce(frame: bytes) -> tuple[RequestHeader, ProduceRequest] | None:
    """
    Decode a Produce request for one partition. A producer sends one after another, which differ in
    correlation id and records: what is between is decoded once, and looked up from then on.

    @return: L{None}: it is another request, or none.
    """
    try:
        number, version, correlationId, size = _HEAD.unpack_from(frame)
        if number != ApiKey.PRODUCE or size < 0:
            return None
        # L{_usualHead} checks what is assumed here: sizes and counts of one byte.
        position = _HEAD.size + size + 1
        position += (frame[position] or 1) + _ACKS_TIMEOUT_SIZE + 1
        position += (_UUID_SIZE if version >= _TOPIC_ID_VERSION else frame[position]) + 1 + 4
        if position > _USUAL_HEAD_SIZE_MAX:
            return None
        usual = _usualHead(version, frame[_HEAD.size - 2 : position])
        size, start = readUnsignedVarint(frame, position, "records")
    except (IndexError, struct.error, WireError):
        return None
    end = start + size - 1
    if usual is None or not size or frame[end:] != _NO_TAGS:
        return None
    clientId, transactionalId, acks, timeoutMs, name, topicId, index = usual
    part = _new(PartitionProduceData, (index, memoryview(frame)[start:end]))
    topic = _new(TopicProduceData, (name, topicId, [part]))
    header = _new(RequestHeader, (ApiKey.PRODUCE, version, correlationId, clientId))
    return header, _new(ProduceRequest, (transactionalId, acks, timeoutMs, [topic]))


def decodeProduceRun(
    buffer: bytes, position: int, sizeMax: int
) -> tuple[RequestHeader, ProduceRun, int] | None:
    """
    Decode Produce requests that follow one another and need no look at more than the first.

    @param buffer: frames, with their sizes; the first has one behind it.
    @param position: of the first.
    @param sizeMax: bytes of a frame.
    @return: the header of the first, the run, and the position behind it; L{None}: there are not
        two such requests.
    """
    unpack, startswith, end = _SIZED_HEAD.unpack_from, buffer.startswith, len(buffer)
    headAt = _SIZED_HEAD.size - 2  # behind the correlation id
    try:
        _, number, version, correlationId, size = unpack(buffer, position)
        if number != ApiKey.PRODUCE or version < _RUN_VERSION_MIN or size < 0:
            return None
        # As in _decodeUsualProduce.
        at = position + _SIZED_HEAD.size + size + 1
        at += (buffer[at] or 1) + _ACKS_TIMEOUT_SIZE + 1
        at += (_UUID_SIZE if version >= _TOPIC_ID_VERSION else buffer[at]) + 1 + 4
        head = buffer[position + headAt : at]
        headSize = len(head)
        usual = _usualHead(version, head) if headSize <= _USUAL_HEAD_SIZE_MAX else None
    except (IndexError, struct.error, WireError):
        return None
    if usual is None:
        return None
    view = memoryview(buffer)
    correlationIds: list[int] = []
    records: list[memoryview] = []
    while len(records) < RUN_COUNT_MAX and position + headAt + headSize < end:
        size, number, other, correlationId, _ = unpack(buffer, position)
        behind = position + 4 + size
        if (
            number != ApiKey.PRODUCE
            or other != version
            or not 0 < size <= sizeMax
            or behind > end
            or not startswith(head, position + headAt)
        ):
            break
        try:
            size, start = readUnsignedVarint(buffer, position + headAt + headSize, "records")
        except WireError:
            break
        at = start + size - 1
        if not size or at + len(_NO_TAGS) != behind or not startswith(_NO_TAGS, at):
            break
        correlationIds.append(correlationId)
        records.append(view[start:at])
        position = behind
    if len(records) < 2:
        return None
    clientId, transactionalId, acks, timeoutMs, name, topicId, index = usual
    topic = TopicProduceData(name, topicId, [PartitionProduceData(index, records[0])])
    header = RequestHeader(ApiKey.PRODUCE, version, correlationIds[0], clientId)
    request = ProduceRequest(transactionalId, acks, timeoutMs, [topic])
    return header, ProduceRun(request, correlationIds, records), position


@lru_cache(maxsize=1024)
def _usualHead(version: int, head: bytes) -> tuple[Any, ...] | None:
    """
    What the bytes from the client's id up to the size of the records mean.

    @return: L{None}: a size or a count is longer than a byte, or there are tags, or not one topic
        and one partition.
    @raise WireError: no request begins so.
    """
    start = _HEAD.pack(ApiKey.PRODUCE, version, 0, 0)[:-2]
    frame = b"".join((start, head, b"\1", _NO_TAGS))
    header, position = decodeHeader(frame, (ApiKey.PRODUCE,))
    _, _, _, size = _HEAD.unpack_from(frame)
    hasTags = version < ApiKey.PRODUCE.flexibleVersion or position != _HEAD.size + size + 1
    idSize = frame[position]
    topicsAt = position + (idSize or 1) + _ACKS_TIMEOUT_SIZE
    nameSize = _UUID_SIZE if version >= _TOPIC_ID_VERSION else frame[topicsAt + 1]
    partitionsAt = topicsAt + 1 + nameSize
    if hasTags or max(idSize, nameSize) > 127 or frame[topicsAt] != 2 or frame[partitionsAt] != 2:
        return None
    transactionalId, acks, timeoutMs, topics = decodeProduceRequest(frame, version, position)
    (topic,) = topics
    (part,) = topic.partitionData
    return (
        header.clientId, transactionalId, acks, timeoutMs, topic.name, topic.topicId, part.index
    )  # fmt: skip


def decodeHeader(frame: bytes, keys: Container[ApiKey]) -> tuple[RequestHeader, int]:
    """
    Decode the header alone, for instance to refuse a request before its body is looked at.

    @return: the header, and the position of the body.
    @raise WireError: as L{decodeRequest}.
    """
    if len(frame) < _HEAD.size:
        raise WireError(f"a request of {len(frame)} bytes, which end in its header")
    number, version, correlationId, size = _HEAD.unpack_from(frame)
    key = _KEYS.get(number)
    if key is None or key not in keys:
        raise UnknownRequestError(f"request {number} of version {version} is not served")
    if not key.firstVersion <= version <= key.lastVersion and key is not ApiKey.API_VERSIONS:
        raise UnsupportedVersionError(
            f"{key.apiName} of version {version}; {key.firstVersion} to {key.lastVersion} are"
            " served"
        )
    position = _HEAD.size
    clientId = None
    if size >= 0:
        position += size
        if position > len(frame):
            raise WireError(f"client id of {size} bytes in a request of {len(frame)}")
        clientId = frame[_HEAD.size : position].decode("utf-8", "replace")
    if version >= key.flexibleVersion and key.isServed(version):
        isTagged = frame[position : position + 1] != b"\0"
        position = skipTags(frame, position) if isTagged else position + 1
    return _new(RequestHeader, (key, version, correlationId, clientId)), position


def encodeRequest(header: RequestHeader, body: Any) -> bytes:
    """
    A whole frame, as a client sends it.

    @param body: an object of C{messages}.
    @raise WireError: a value does not fit into the version.
    """
    key, version, correlationId, clientId = header
    name = b"" if clientId is None else clientId.encode("utf-8", "replace")
    size = -1 if clientId is None else len(name)
    tags = b"\0" if version >= key.flexibleVersion else b""
    encoded = body.encode(version)
    frameSize = _HEAD.size + len(name) + len(tags) + len(encoded)
    try:
        head = _SIZED_HEAD.pack(frameSize, key, version, correlationId, size)
    except struct.error as error:
        raise WireError(f"header of {key.apiName} v{version}: {error}") from error
    return b"".join((head, name, tags, encoded))


def skipTags(frame: bytes, position: int) -> int:
    """The position behind the tags of a header."""
    count, position = readUnsignedVarint(frame, position, "tags of the header")
    for _ in range(count):
        _, position = readUnsignedVarint(frame, position, "tag of the header")
        size, position = readUnsignedVarint(frame, position, "tag of the header")
        position += size
    return position
