"""
The codecs of the 2011 message format, gzip and snappy (spec-0.7 wire-protocol §5.4), and its
CRC-32.

What must be true: no payload makes us allocate more than C{sizeMax}, whatever it claims; input that
Java's readers accept is accepted. gzip is decoded in bounded steps and stops at the first output
byte over the limit. Snappy blocks announce their size, which is checked before decompression. Like
Java's gzip reader, ours takes concatenated members and ignores junk behind the last. The number of
members is limited, since each costs a copy of the rest.

gzip is written at level 6, as Java does.

CRC-32 (IEEE 802.3) and deflate come from the fastest module: C{zlib_ng}, else the standard C{zlib},
which has the same functions. zlib_ng takes 39 ns for the checksum of 200 bytes, zlib 125. Rejected:
C{isal}, which takes 169, and whose AVX-512 code slows zlib_ng down to 170 for the rest of the
process's life.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable
from typing import Any

import cramjam

from pylogbroker.errors import CorruptCompressionError, DecompressionLimitError, UnknownCodecError

NONE = 0
GZIP = 1
SNAPPY = 2

CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy"}

_GZIP_LEVEL = 6
_GZIP_WINDOW = 31  # 15 bits, and 16 for the gzip header
_STREAM_MAGIC = b"\x82SNAPPY\x00"
_STREAM_HEADER = struct.Struct(">8sii")
_STREAM_VERSION = 1
_BLOCK_SIZE = 32 << 10
_SIZE = struct.Struct(">i")
_GZIP_MEMBER_COUNT_MAX = 16
_SNAPPY_RATIO_MAX = 22  # the densest element is a copy of 64 bytes in 3


def firstModule(*names: str) -> Any:
    """
    The first module that can be imported.

    @raise ImportError: none can.
    """
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError(f"none of {', '.join(names)} can be imported")


zlib = firstModule("zlib_ng.zlib_ng", "zlib")

crc32: Callable[..., int] = zlib.crc32
"""Bytes, and the checksum of the bytes before them (0 at first), to 0..2^32-1."""


def codecByName(name: str) -> int:
    """
    The number of a codec.

    @param name: C{"none"}, C{"gzip"} or C{"snappy"}, or its number in decimal.
    @raise UnknownCodecError: any other name.
    """
    for number, known in CODEC_NAMES.items():
        if name in (known, str(number)):
            return number
    raise UnknownCodecError(f"unknown codec {name!r}; known are {', '.join(CODEC_NAMES.values())}")


def compress(codec: int, data: bytes) -> bytes:
    """
    @param codec: L{GZIP} or L{SNAPPY}; L{NONE} returns the data unchanged.
    @raise UnknownCodecError: any other.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        deflate = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        return bytes(deflate.compress(data) + deflate.flush())
    if codec == SNAPPY:
        pieces = [_STREAM_HEADER.pack(_STREAM_MAGIC, _STREAM_VERSION, _STREAM_VERSION)]
        for start in range(0, len(data), _BLOCK_SIZE):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _BLOCK_SIZE]))
            pieces += (_SIZE.pack(len(block)), block)
        return b"".join(pieces)
    raise UnknownCodecError(f"unknown codec {codec}")


def decompress(codec: int, data: bytes, sizeMax: int) -> bytes:
    """
    @param codec: L{GZIP} or L{SNAPPY}.
    @param sizeMax: bytes of output.
    @raise CorruptCompressionError: the data are not the codec's, or end too soon.
    @raise DecompressionLimitError: the output exceeds C{sizeMax}; no more was allocated.
    @raise UnknownCodecError: another codec.
    """
    if codec == GZIP:
        return _gunzip(data, sizeMax)
    if codec == SNAPPY:
        return _unsnappy(data, sizeMax)
    raise UnknownCodecError(f"unknown codec {codec}")


def _gunzip(data: bytes, sizeMax: int) -> bytes:
    pieces: list[bytes] = []
    left = sizeMax
    while len(pieces) < _GZIP_MEMBER_COUNT_MAX:
        member: Any = zlib.decompressobj(_GZIP_WINDOW)
        try:
            # One byte over the limit tells "too large" from "exactly full".
            piece = member.decompress(data, left + 1)
        except zlib.error as error:
            if pieces:
                break  # junk behind a good member
            raise CorruptCompressionError(f"not gzip: {error}") from error
        if len(piece) > left:
            raise DecompressionLimitError(f"gzip data open to more than {sizeMax} bytes")
        if not member.eof:
            if pieces:
                break  # a cut second member is junk behind the first, too
            raise CorruptCompressionError("gzip data end too soon")
        pieces.append(piece)
        left -= len(piece)
        data = member.unused_data
        if not data:
            break
    else:
        raise CorruptCompressionError(f"gzip data of more than {_GZIP_MEMBER_COUNT_MAX} members")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _unsnappy(data: bytes, sizeMax: int) -> bytes:
    if len(data) < _STREAM_HEADER.size or not data.startswith(_STREAM_MAGIC):
        return _unsnappyBlock(data, sizeMax)
    _magic, version, _compatible = _STREAM_HEADER.unpack_from(data)
    if version < _STREAM_VERSION:
        raise CorruptCompressionError(f"snappy stream of version {version}")
    pieces = []
    left = sizeMax
    position = _STREAM_HEADER.size
    while position < len(data):
        if position + _SIZE.size > len(data):
            raise CorruptCompressionError("snappy stream ends inside a block's size")
        (size,) = _SIZE.unpack_from(data, position)
        position += _SIZE.size
        if not 0 <= size <= len(data) - position:
            raise CorruptCompressionError(
                f"snappy block of {size} bytes where {len(data) - position} are left"
            )
        piece = _unsnappyBlock(data[position : position + size], left)
        pieces.append(piece)
        left -= len(piece)
        position += size
    return b"".join(pieces)


def _unsnappyBlock(block: bytes, sizeMax: int) -> bytes:
    size = _announcedSize(block)
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptCompressionError(
            f"snappy block of {len(block)} bytes that claims to open to {size}"
        )
    if size > sizeMax:
        raise DecompressionLimitError(
            f"snappy data open to more than the {sizeMax} bytes that are left"
        )
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except Exception as error:  # a native library may raise anything on foreign bytes
        raise CorruptCompressionError(f"not snappy: {error}") from error


def _announcedSize(block: bytes) -> int:
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptCompressionError("snappy block without a size")
