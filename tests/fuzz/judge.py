"""
An independent reading of message sets, from spec-0.7 wire-protocol §5 to §7 and log-storage §8, to
hold C{pylogbroker.records} against.

It shares no code with what it judges: CRCs by crcmod, raw snappy blocks in plain Python, sizes by
C{int.from_bytes}. It is slow, it copies, and it has no limits but those that it is told, which is
what makes it easy to believe.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from crcmod.predefined import mkPredefinedCrcFun

from pylogbroker.errors import (
    CorruptCompressionError,
    DecompressionLimitError,
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    UnknownCodecError,
    UnknownMagicError,
)

crc32 = mkPredefinedCrcFun("crc-32")

GZIP_MEMBER_COUNT_MAX = 16
SNAPPY_STREAM = b"\x82SNAPPY\x00"


class RefusedError(Exception):
    """
    The judge's verdict that bytes are not valid.

    @ivar error: the class of the error that should be raised for them.
    """

    def __init__(self, error: type[FormatError]) -> None:
        super().__init__(error.__name__)
        self.error = error


class Seen(NamedTuple):
    """
    One entry.

    @ivar start: byte in the set.
    @ivar end: byte behind it.
    """

    start: int
    end: int
    magic: int
    attributes: int
    checksum: int
    payload: bytes

    @property
    def codec(self) -> int:
        return self.attributes % 4


def entries(data: bytes) -> Iterator[Seen]:
    """The entries of one level, as spec-0.7 wire-protocol §7.2 walks them."""
    at = 0
    while len(data) - at >= 4:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size < 0:
            raise RefusedError(InvalidMessageSizeError)
        if size > len(data) - at - 4:
            if at == 0:
                raise RefusedError(InvalidMessageSizeError)
            return
        body = data[at + 4 : at + 4 + size]
        if size < 5 or (body[0] == 1 and size < 6):
            raise RefusedError(InvalidMessageSizeError)
        if body[0] == 0:
            attributes, rest = 0, body[1:]
        elif body[0] == 1:
            attributes, rest = body[1], body[2:]
        else:
            raise RefusedError(UnknownMagicError)
        checksum, payload = int.from_bytes(rest[:4], "big"), rest[4:]
        if crc32(payload) != checksum:
            raise RefusedError(InvalidChecksumError)
        yield Seen(at, at + 4 + size, body[0], attributes, checksum, payload)
        at += 4 + size


class Purse:
    """How much may still be opened."""

    def __init__(self, sizeMax: int, depthMax: int) -> None:
        self.left = sizeMax
        self.depthMax = depthMax


def inside(wrapper: Seen, purse: Purse, depth: int = 0) -> Iterator[Seen]:
    """The messages inside a wrapper, at all depths."""
    if wrapper.codec == 3:
        raise RefusedError(UnknownCodecError)
    if depth >= purse.depthMax:
        raise RefusedError(DecompressionLimitError)
    data = gunzip(wrapper.payload) if wrapper.codec == 1 else unsnappy(wrapper.payload)
    if len(data) > purse.left:
        raise RefusedError(DecompressionLimitError)
    purse.left -= len(data)
    for entry in entries(data):
        if entry.codec:
            yield from inside(entry, purse, depth + 1)
        else:
            yield entry


def deep(data: bytes, sizeMax: int, depthMax: int) -> Iterator[tuple[bytes, int]]:
    """
    The payloads of a set and the offset behind each, as spec-0.7 wire-protocol §6 has them. What a
    wrapper allows is counted for each anew.

    Of a wrapper that turns out bad, the messages before the last good one are given first: which
    one is the last of a wrapper is not known before the next one was looked at.
    """
    for entry in entries(data):
        if not entry.codec:
            yield entry.payload, entry.end
            continue
        waiting: Seen | None = None
        for found in inside(entry, Purse(sizeMax, depthMax)):
            if waiting is not None:
                yield waiting.payload, entry.start
            waiting = found
        if waiting is not None:
            yield waiting.payload, entry.end


def count(data: bytes, payloadSizeMax: int, sizeMax: int, depthMax: int) -> tuple[int, int] | None:
    """
    What a broker makes of a set: (bytes kept, messages), or L{None} when a payload is over
    C{payloadSizeMax} before anything else is wrong.
    """
    top = []
    for entry in entries(data):
        if len(entry.payload) > payloadSizeMax:
            return None
        top.append(entry)
    purse = Purse(sizeMax, depthMax)
    messages = 0
    for entry in top:
        messages += len(list(inside(entry, purse))) if entry.codec else 1
    return (top[-1].end if top else 0), messages


def recoverable(data: bytes) -> list[Seen]:
    """
    The entries that recovery keeps, gotcha 3 mended: it stops, and never raises, at the first that
    is not whole and valid.
    """
    kept: list[Seen] = []
    try:
        for entry in entries(data):
            kept.append(entry)
    except RefusedError:
        pass
    return kept


def gunzip(data: bytes) -> bytes:
    """
    As Java reads: members one behind the other, what is no member behind the first is ignored.
    """
    out: list[bytes] = []
    while True:
        if len(out) == GZIP_MEMBER_COUNT_MAX:
            raise RefusedError(CorruptCompressionError)
        member = zlib.decompressobj(16 + zlib.MAX_WBITS)
        piece = b""
        try:
            piece = member.decompress(data)
        except zlib.error:
            pass
        if not member.eof:
            if out:
                return b"".join(out)
            raise RefusedError(CorruptCompressionError)
        out.append(piece)
        data = member.unused_data
        if not data:
            return b"".join(out)


def unsnappy(data: bytes) -> bytes:
    """snappy-java's stream, or one raw block."""
    if len(data) < 16 or data[:8] != SNAPPY_STREAM:
        return unsnappyBlock(data)
    if int.from_bytes(data[8:12], "big", signed=True) < 1:
        raise RefusedError(CorruptCompressionError)
    out, at = b"", 16
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if len(data) - at < 4 or not 0 <= size <= len(data) - at - 4:
            raise RefusedError(CorruptCompressionError)
        out += unsnappyBlock(data[at + 4 : at + 4 + size])
        at += 4 + size
    return out


def unsnappyBlock(data: bytes) -> bytes:
    """One raw block of snappy: its size as a varint, then literals and copies."""
    try:
        return _unsnappyBlock(data)
    except IndexError:
        raise RefusedError(CorruptCompressionError) from None


def _unsnappyBlock(data: bytes) -> bytes:
    announced = shift = at = 0
    while True:
        byte = data[at]
        announced |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
        if shift > 28:
            raise RefusedError(CorruptCompressionError)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        kind, upper = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            size = upper + 1
            if upper >= 60:
                width = upper - 59
                size = 1 + int.from_bytes(_exactly(data, at, width), "little")
                at += width
            out += _exactly(data, at, size)
            at += size
        else:
            if kind == 1:
                size, back, width = (upper & 7) + 4, (tag >> 5) << 8 | data[at], 1
            else:
                width = 2 if kind == 2 else 4
                size, back = upper + 1, int.from_bytes(_exactly(data, at, width), "little")
            at += width
            if not 0 < back <= len(out):
                raise RefusedError(CorruptCompressionError)
            out += (bytes(out[-back:]) * (size // back + 1))[:size]
        if len(out) > announced:
            raise RefusedError(CorruptCompressionError)
    if len(out) != announced:
        raise RefusedError(CorruptCompressionError)
    return bytes(out)


def _exactly(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise RefusedError(CorruptCompressionError)
    return data[at : at + size]
