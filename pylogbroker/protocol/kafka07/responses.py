"""
Responses of Kafka 0.7 (spec-0.7 wire-protocol §4): the broker's headers, which precede message
sets, and the client's decoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pylogbroker.errors import NO_ERROR, WireError

_HEAD = struct.Struct(">ih")
_CODE = struct.Struct(">h")
_OFFSETS_HEAD = struct.Struct(">hi")
_CODE_SIZE = 2
SIZE_MAX = 2**31 - 1
SET_SIZE_MAX = SIZE_MAX - _CODE_SIZE
"""Bytes of a message set behind a L{fetchHeader} at most."""


# -- the broker's side


def fetchHeader(code: int, size: int) -> bytes:
    """
    The header of C{size} bytes of message set in a FETCH response, and of each set in a MULTIFETCH
    response.

    @param code: error code.
    @param size: at most L{SET_SIZE_MAX}.
    """
    return _HEAD.pack(_CODE_SIZE + size, code)


def multiFetchHeader(sizes: Sequence[int]) -> bytes:
    """
    The header of a MULTIFETCH response, whose sets have a L{fetchHeader} each.

    @raise WireError: together they do not fit in a frame.
    """
    size = sum(sizes) + len(sizes) * _HEAD.size
    if size + _CODE_SIZE > SIZE_MAX:
        raise WireError(f"a response of {size} bytes does not fit in a frame")
    return fetchHeader(NO_ERROR, size)


def encodeOffsets(offsets: Sequence[int]) -> bytes:
    """An OFFSETS response. It cannot report an error."""
    return struct.pack(
        f">ihi{len(offsets)}q", _CODE_SIZE + 4 + 8 * len(offsets), NO_ERROR, len(offsets), *offsets
    )


# -- the client's side: a body is a frame without its size field


def decodeFetch(body: bytes) -> tuple[int, bytes]:
    """
    @return: (error code, message set).
    @raise WireError: there is no room for a code.
    """
    if len(body) < _CODE_SIZE:
        raise WireError(f"response of {len(body)} bytes has no room for an error code")
    return _CODE.unpack_from(body)[0], body[_CODE_SIZE:]


def decodeMultiFetch(body: bytes) -> list[tuple[int, bytes]]:
    """
    @return: (error code, message set) for each fetch, in the order asked. The outer code has no
        meaning.
    @raise WireError: the sets do not fill the response exactly.
    """
    decodeFetch(body)
    position = _CODE_SIZE
    parts: list[tuple[int, bytes]] = []
    while position < len(body):
        if position + _HEAD.size > len(body):
            raise WireError(f"response ends inside the header of set {len(parts)}")
        size, code = _HEAD.unpack_from(body, position)
        start, position = position + _HEAD.size, position + 4 + size
        if size < _CODE_SIZE or position > len(body):
            raise WireError(
                f"set {len(parts)} of {size} bytes, where {len(body) - start + _CODE_SIZE} are left"
            )
        parts.append((code, body[start:position]))
    return parts


def decodeOffsets(body: bytes) -> tuple[int, list[int]]:
    """
    @return: (error code, offsets in descending order).
    @raise WireError: count and size do not agree.
    """
    if len(body) < _OFFSETS_HEAD.size:
        raise WireError(f"offsets response of {len(body)} bytes")
    code, count = _OFFSETS_HEAD.unpack_from(body)
    if count < 0 or len(body) != _OFFSETS_HEAD.size + 8 * count:
        raise WireError(f"offsets response of {len(body)} bytes that announces {count} offsets")
    return code, list(struct.unpack_from(f">{count}q", body, _OFFSETS_HEAD.size))
