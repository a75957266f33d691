"""
The codecs: gzip and snappy (spec-0.7 wire-protocol §5.4), which both dialects know, lz4 and zstd,
which record batches add; and the 2011 format's CRC-32.

What must be true: no payload makes us allocate more than C{sizeMax}, whatever it claims; input that
Java's readers accept is accepted. gzip is decoded in bounded steps and stops at the first output
byte over the limit. Snappy blocks announce their size, which is checked before decompression. Like
Java's gzip reader, ours takes concatenated members and ignores junk behind the last. The number of
members is limited, since each costs a copy of the rest.

lz4 and zstd decompress into a buffer of fixed size. Their frames are walked first, block by block:
the headers tell how much the blocks can open to at most, and the buffer has that size, or
C{sizeMax} if that is less. Announced content sizes may be absent or false, and are not used.

gzip is written at level 6, as Java does; lz4 frames as Java's: independent blocks of 64 KiB.

CRC-32 (IEEE 802.3) and deflate come from the fastest module: C{zlib_ng}, else the standard C{zlib},
which has the same functions. zlib_ng takes 39 ns for the checksum of 200 bytes, zlib 125. Rejected:
C{isal}, which takes 169, and whose AVX-512 code slows zlib_ng down to 170 for the rest of the
process's life.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Mapping
from typing import Any

import cramjam

from pylogbroker.errors import CorruptCompressionError, DecompressionLimitError, UnknownCodecError

NONE = 0
GZIP = 1
SNAPPY = 2
LZ4 = 3
ZSTD = 4

CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy"}
"""The codecs of the 2011 format."""

BATCH_CODEC_NAMES = {**CODEC_NAMES, LZ4: "lz4", ZSTD: "zstd"}
"""The codecs of record batches."""

_GZIP_LEVEL = 6
_GZIP_WINDOW = 31  # 15 bits, and 16 for the gzip header
_STREAM_MAGIC = b"\x82SNAPPY\x00"
_STREAM_HEADER = struct.Struct(">8sii")
_STREAM_VERSION = 1
_BLOCK_SIZE = 32 << 10
_SIZE = struct.Struct(">i")
_GZIP_MEMBER_COUNT_MAX = 16
_SNAPPY_RATIO_MAX = 22  # the densest element is a copy of 64 bytes in 3
_LZ4_RATIO_MAX = 255  # a length grows by 255 with each byte
_LZ4_HEADER = bytes.fromhex("04224d18604082")  # independent blocks of 64 KiB, no checksums
_LZ4_BLOCK_SIZE = 64 << 10
_LZ4_END = bytes(4)
_LZ4_SIZE = struct.Struct("<I")
_LZ4_STORED = 1 << 31
_ZSTD_LEVEL = 3
_ZSTD_BLOCK_SIZE_MAX = 128 << 10
_ZSTD_FRAME_COUNT_MAX = 16
_ZSTD_WINDOW_SIZE_MAX = 8 << 20  # what every decoder must support
_BLOCK_COUNT_MAX = 1 << 16


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


def codecByName(name: str, names: Mapping[int, str] = CODEC_NAMES) -> int:
    """
    The number of a codec.

    @param name: C{"none"}, C{"gzip"} or C{"snappy"}, or its number in decimal.
    @param names: those that are known.
    @raise UnknownCodecError: any other name.
    """
    for number, known in names.items():
        if name in (known, str(number)):
            return number
    raise UnknownCodecError(f"unknown codec {name!r}; known are {', '.join(names.values())}")


def compress(codec: int, data: bytes, level: int | None = None) -> bytes:
    """
    @param codec: L{NONE} returns the data unchanged.
    @param level: as the codec counts it; snappy has none. L{None}: Kafka's default.
    @raise UnknownCodecError: an unknown codec.
    """
    if codec == NONE:
        return data
    if codec == GZIP:
        deflate = zlib.compressobj(
            _GZIP_LEVEL if level is None else level, zlib.DEFLATED, _GZIP_WINDOW
        )
        return bytes(deflate.compress(data) + deflate.flush())
    if codec == SNAPPY:
        pieces = [_STREAM_HEADER.pack(_STREAM_MAGIC, _STREAM_VERSION, _STREAM_VERSION)]
        for start in range(0, len(data), _BLOCK_SIZE):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + _BLOCK_SIZE]))
            pieces += (_SIZE.pack(len(block)), block)
        return b"".join(pieces)
    if codec == LZ4:
        return _lz4Frame(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, _ZSTD_LEVEL if level is None else level))
    raise UnknownCodecError(f"unknown codec {codec}")


def decompress(codec: int, data: bytes, sizeMax: int) -> bytes:
    """
    @param codec: any but L{NONE}.
    @param sizeMax: bytes of output.
    @raise CorruptCompressionError: the data are not the codec's, or end too soon.
    @raise DecompressionLimitError: the output exceeds C{sizeMax}; no more was allocated.
    @raise UnknownCodecError: another codec.
    """
    if codec == GZIP:
        return _gunzip(data, sizeMax)
    if codec == SNAPPY:
        return _unsnappy(data, sizeMax)
    if codec == LZ4:
        return _openFrames(cramjam.lz4, *_measureLz4(data), sizeMax)
    if codec == ZSTD:
        return _openFrames(cramjam.zstd, *_measureZstd(data, sizeMax), sizeMax)
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


# -- lz4 and zstd


def _lz4Frame(data: bytes, level: int | None) -> bytes:
    """A frame that Java's reader accepts, which refuses blocks that depend on one another."""
    mode: dict[str, Any] = (
        {} if level is None else {"mode": "high_compression", "compression": level}
    )
    pieces = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_SIZE):
        block = data[start : start + _LZ4_BLOCK_SIZE]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False, **mode))
        if len(packed) < len(block):
            pieces += (_LZ4_SIZE.pack(len(packed)), packed)
        else:
            pieces += (_LZ4_SIZE.pack(len(block) | _LZ4_STORED), block)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def _openFrames(module: Any, data: bytes, boundSize: int, sizeMax: int) -> bytes:
    """
    Decompress frames.

    @param boundSize: bytes that they can open to at most.
    """
    output = bytearray(min(boundSize, sizeMax))
    try:
        size = module.decompress_into(data, output)
    except Exception as error:  # a native library may raise anything on foreign bytes
        if boundSize > sizeMax:
            raise DecompressionLimitError(f"the data open to more than {sizeMax} bytes") from error
        raise CorruptCompressionError(f"cannot be decompressed: {error}") from error
    return bytes(memoryview(output)[:size])


def _byte(data: bytes, position: int) -> int:
    return _littleEndian(data, position, 1)


def _littleEndian(data: bytes, position: int, size: int) -> int:
    if position + size > len(data):
        raise CorruptCompressionError("the frame is cut")
    return int.from_bytes(data[position : position + size], "little")


def _measureLz4(data: bytes) -> tuple[bytes, int]:
    """
    Walk the blocks of the first frame. As Java does, ignore what is behind it.

    @return: the frame; bytes that it can open to at most.
    @raise CorruptCompressionError: it is no frame, or cut.
    """
    if _littleEndian(data, 0, 4) != 0x184D2204:
        raise CorruptCompressionError("no lz4 frame")
    flags, blockSizeCode = _byte(data, 4), _byte(data, 5) >> 4 & 7
    if flags >> 6 != 1 or blockSizeCode < 4:
        raise CorruptCompressionError(f"lz4 frame with flags {flags:#x}, size {blockSizeCode}")
    blockSizeMax = 1 << (8 + 2 * blockSizeCode)
    position = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    boundSize = 0
    for _ in range(_BLOCK_COUNT_MAX):
        field = _littleEndian(data, position, 4)
        position += 4
        if field == 0:
            position += 4 if flags & 0x04 else 0
            return data[:position], boundSize
        size = field & 0x7FFFFFFF
        boundSize += min(blockSizeMax, size if field >> 31 else size * _LZ4_RATIO_MAX)
        position += size + (4 if flags & 0x10 else 0)
    raise CorruptCompressionError(f"lz4 frame of more than {_BLOCK_COUNT_MAX} blocks")


def _measureZstd(data: bytes, sizeMax: int) -> tuple[bytes, int]:
    """
    Walk the blocks of all frames.

    @return: the data; bytes that they can open to at most.
    @raise CorruptCompressionError: they are no frames, or cut.
    @raise DecompressionLimitError: a frame needs too large a window.
    """
    position = boundSize = blockCount = 0
    for _ in range(_ZSTD_FRAME_COUNT_MAX):
        magic = _littleEndian(data, position, 4)
        if magic & 0xFFFFFFF0 == 0x184D2A50:  # a skippable frame
            position += 8 + _littleEndian(data, position + 4, 4)
        elif magic == 0xFD2FB528:
            position, hasChecksum = _zstdHeader(data, position + 4, sizeMax)
            isLast = False
            while not isLast:
                field = _littleEndian(data, position, 3)
                position += 3
                isLast, kind, size = bool(field & 1), field >> 1 & 3, field >> 3
                boundSize += size if kind < 2 else _ZSTD_BLOCK_SIZE_MAX
                position += 1 if kind == 1 else size
                blockCount += 1
                if blockCount > _BLOCK_COUNT_MAX:
                    raise CorruptCompressionError(f"zstd of more than {_BLOCK_COUNT_MAX} blocks")
            position += 4 if hasChecksum else 0
        else:
            raise CorruptCompressionError("no zstd frame")
        if position >= len(data):
            return data, boundSize
    raise CorruptCompressionError(f"zstd data of more than {_ZSTD_FRAME_COUNT_MAX} frames")


def _zstdHeader(data: bytes, position: int, sizeMax: int) -> tuple[int, bool]:
    """(the position of the first block, whether a checksum is behind the last)."""
    flags = _byte(data, position)
    position += 1
    isSingle = bool(flags & 0x20)
    windowSize = 0
    if not isSingle:
        window = _byte(data, position)
        position += 1
        base = 1 << (10 + (window >> 3))
        windowSize = base + base // 8 * (window & 7)
    position += (0, 1, 2, 4)[flags & 3]
    sizeFieldSize = (1 if isSingle else 0, 2, 4, 8)[flags >> 6]
    if isSingle:  # the content is the window
        windowSize = _littleEndian(data, position, sizeFieldSize)
    if windowSize > max(sizeMax, _ZSTD_WINDOW_SIZE_MAX):
        raise DecompressionLimitError(f"zstd frame with a window of {windowSize} bytes")
    return position + sizeFieldSize, bool(flags & 4)
