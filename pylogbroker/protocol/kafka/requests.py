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
from typing import Any, NamedTuple

from pylogbroker.errors import UnknownRequestError, UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.fetch import decodeFetchRequest
from pylogbroker.protocol.kafka.produce import decodeProduceRequest
from pylogbroker.protocol.kafka.schemas import readUnsignedVarint

_HEAD = struct.Struct(">hhih")
_SIZED_HEAD = struct.Struct(">ihhih")
_KEYS = {int(key): key for key in ApiKey}


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
    header, position = decodeHeader(frame, keys)
    key, version = header.apiKey, header.apiVersion
    decode = _DECODERS.get(key)
    if decode is not None:
        return header, decode(frame, version, position)
    if not header.isVersionServed:
        return header, messages.ApiVersionsRequest()
    return header, key.requestClass.decode(frame, version, position)[0]


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
    return tuple.__new__(RequestHeader, (key, version, correlationId, clientId)), position


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
