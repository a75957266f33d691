"""
Responses of today's protocol: size, header and body in one frame.

A response has the correlation id of its request and, where its version is flexible, tags, of which
we send none. An ApiVersions response never has them: a client reads it before it knows what the
broker speaks. Fetch responses are made by C{fetch.FetchResponseWriter}, since their records are
slices of files; Metadata is packed by hand here, since it has thousands of partitions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader, skipTags
from pylogbroker.protocol.kafka.schemas import packUnsignedVarint

_HEAD = struct.Struct(">ii")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")


class MetadataResponsePartition(NamedTuple):
    """A partition in a Metadata response; cheaper than the class in C{messages}."""

    errorCode: int
    partitionIndex: int
    leaderId: int
    leaderEpoch: int
    replicaNodes: Sequence[int]
    isrNodes: Sequence[int]
    offlineReplicas: Sequence[int] = ()


def frameResponse(header: RequestHeader, body: bytes) -> bytes:
    """
    Put size and response header before a body that is encoded already.

    @param header: of the request.
    """
    key = header.apiKey
    isFlexible = header.apiVersion >= key.flexibleVersion and key is not ApiKey.API_VERSIONS
    size = 4 + isFlexible + len(body)
    head = _HEAD.pack(size, header.correlationId)
    return b"".join((head, b"\0", body)) if isFlexible else head + body


def encodeResponse(header: RequestHeader, body: Any) -> bytes:
    """
    A whole frame.

    @param header: of the request. An ApiVersions request of an unknown version gets the layout of
        version 0.
    @param body: an object of C{messages}; the partitions of a Metadata response may be
        L{MetadataResponsePartition}s.
    @raise WireError: a value does not fit into the version.
    """
    if header.apiKey is ApiKey.METADATA:
        return frameResponse(header, _encodeMetadata(header.apiVersion, body))
    version = header.apiVersion if header.isVersionServed else 0
    return frameResponse(header, body.encode(version))


def apiVersionsResponse(header: RequestHeader, keys: Iterable[ApiKey]) -> Any:
    """
    The body of an ApiVersions response, to which a broker may add its features. To a request of an
    unknown version it is error 35, with the versions of ApiVersions alone.

    @param keys: the requests that the broker has finished.
    """
    cls = messages.ApiVersionsResponse
    errorCode = ErrorCode.NONE
    if not header.isVersionServed:
        errorCode, keys = ErrorCode.UNSUPPORTED_VERSION, (ApiKey.API_VERSIONS,)
    return cls(
        errorCode=errorCode,
        apiKeys=[
            cls.ApiVersion(apiKey=key, minVersion=key.advertisedVersion, maxVersion=key.lastVersion)
            for key in sorted(keys)
        ],
    )


def decodeResponse(header: RequestHeader, frame: bytes) -> Any:
    """
    The body of a response, for a client.

    @param header: of the request.
    @param frame: without its size field.
    @return: an object of C{messages}. That of an ApiVersions request of a version that the broker
        does not have is in the layout of version 0.
    @raise WireError: it is no response to this request.
    """
    key, version = header.apiKey, header.apiVersion
    if len(frame) < _INT.size:
        raise WireError(f"a response of {len(frame)} bytes")
    (correlationId,) = _INT.unpack_from(frame)
    if correlationId != header.correlationId:
        raise WireError(f"response {correlationId} to request {header.correlationId}")
    position = _INT.size
    if key is ApiKey.API_VERSIONS:
        if frame[position : position + 2] == _SHORT.pack(ErrorCode.UNSUPPORTED_VERSION):
            version = 0
    elif version >= key.flexibleVersion:
        position = skipTags(frame, position)
    return key.responseClass.decode(frame, version, position)[0]


# -- Metadata by hand


@lru_cache(maxsize=256)
def _partitionLayout(
    version: int, replicaCount: int, isrCount: int, offlineCount: int
) -> struct.Struct:
    """A partition with so many replicas; C{x} is the byte of its tags."""
    if version < 9:
        offline = f"i{offlineCount}i" if version >= 5 else ""
        epoch = "i" if version >= 7 else ""
        return struct.Struct(f">hii{epoch}i{replicaCount}ii{isrCount}i{offline}")
    if max(replicaCount, isrCount, offlineCount) > _REPLICA_COUNT_MAX:
        raise WireError(f"MetadataResponse v{version}: more than {_REPLICA_COUNT_MAX} replicas")
    return struct.Struct(f">hiiiB{replicaCount}iB{isrCount}iB{offlineCount}ix")


_REPLICA_COUNT_MAX = 126
"""A compact count up to here is one byte."""


def _packPartition(version: int, part: Any) -> bytes:
    replicas, isr, offline = part.replicaNodes, part.isrNodes, part.offlineReplicas
    replicaCount, isrCount, offlineCount = len(replicas), len(isr), len(offline)
    pack = _partitionLayout(
        version, replicaCount, isrCount, offlineCount if version >= 5 else 0
    ).pack
    numbers = part.errorCode, part.partitionIndex, part.leaderId
    if version >= 9:
        return pack(
            *numbers, part.leaderEpoch, replicaCount + 1, *replicas, isrCount + 1, *isr,
            offlineCount + 1, *offline,
        )  # fmt: skip
    epoch = (part.leaderEpoch,) if version >= 7 else ()
    rest = (offlineCount, *offline) if version >= 5 else ()
    return pack(*numbers, *epoch, replicaCount, *replicas, isrCount, *isr, *rest)


def _putTopic(parts: list[bytes], version: int, topic: Any) -> None:
    isFlexible = version >= 9
    parts.append(_SHORT.pack(topic.errorCode))
    if topic.name is None:
        if version < 12:
            raise WireError(f"MetadataResponse v{version}: a topic without a name")
        parts.append(b"\0")
    else:
        text = topic.name.encode("utf-8", "replace")
        parts += (packUnsignedVarint(len(text) + 1) if isFlexible else _SHORT.pack(len(text)), text)
    if version >= 10:
        parts.append(topic.topicId)
    if version >= 1:
        parts.append(b"\1" if topic.isInternal else b"\0")
    count = len(topic.partitions)
    parts.append(packUnsignedVarint(count + 1) if isFlexible else _INT.pack(count))
    parts += [_packPartition(version, part) for part in topic.partitions]
    if version >= 8:
        parts.append(_INT.pack(topic.topicAuthorizedOperations))
    if isFlexible:
        parts.append(b"\0")


def _encodeMetadata(version: int, body: Any) -> bytes:
    """
    The bytes of C{body.encode(version)}, in less time: a response without topics is encoded in the
    general way, and the topics are put in.
    """
    isFlexible = version >= 9
    empty = messages.MetadataResponse(**{**vars(body), "topics": []}).encode(version)
    tailSize = (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + isFlexible
    topicsEnd = len(empty) - tailSize
    count = len(body.topics)
    parts = [
        empty[: topicsEnd - (1 if isFlexible else 4)],
        packUnsignedVarint(count + 1) if isFlexible else _INT.pack(count),
    ]
    try:
        for topic in body.topics:
            _putTopic(parts, version, topic)
    except struct.error as error:
        raise WireError(f"MetadataResponse v{version}: {error}") from error
    parts.append(empty[topicsEnd:])
    return b"".join(parts)
