"""
Record batches, version 2: today's message format. A batch is a header of L{BATCH_OVERHEAD} bytes
and records, compressed as a whole or not at all. It is a module of its own, since storage's format
(L{pylogbroker.records.kafkaformat}), clients and tools all need it.

What must be true: foreign bytes raise L{FormatError}s and nothing else; a length is compared with
the bytes that are there before anything is read or allocated; what we write is what Apache's own
builder writes, byte for byte where nothing is compressed.

The checksum covers everything behind itself. Base offset, size and leader epoch stand before it, so
a broker stamps a batch without computing a new one, except for C{LogAppendTime}.

Numbers inside records are varints: seven bits a byte, low ones first, zigzag for the sign. Most
take one byte, which the loop of L{iterateRows} reads without a call.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from crc32c import crc32c

from pylogbroker.errors import (
    DecompressionLimitError,
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    InvalidRecordError,
    UnsupportedForMessageFormatError,
)
from pylogbroker.interfaces import NO_PRODUCER, BatchHeader, CheckLimits, EndMarker
from pylogbroker.records.compression import NONE, compress, decompress
from pylogbroker.speedups import native

MAGIC = 2
MAGIC_POSITION = 16
"""The byte of the magic number, in every format since 0.8."""

CRC_POSITION = 17
CHECKED_POSITION = 21
"""Where the bytes that the checksum covers begin."""

SIZE_HEAD_SIZE = 12
"""Bytes of base offset and size field, which the size field does not count."""

HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_OVERHEAD = HEADER.size
STAMP = struct.Struct(">qii")
"""Base offset, size field, leader epoch: the bytes that a broker stamps."""

CODEC_ATTRIBUTES = 0x07
APPEND_TIME_ATTRIBUTE = 0x08
TRANSACTIONAL_ATTRIBUTE = 0x10
CONTROL_ATTRIBUTE = 0x20
DELETE_HORIZON_ATTRIBUTE = 0x40

ABORT_MARKER = 0
COMMIT_MARKER = 1

DEFAULT_LIMITS = CheckLimits()

Headers = tuple[tuple[str, bytes | None], ...]

_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")
RECORD_SIZE_MIN = 7
"""Bytes of the smallest record."""

_VARINT_SIZE_MAX = 10
_ROW_COUNT = 500
"""Records that the C speed-up decodes at a time."""

FROM_ALL = -1 << 63
"""No offset is below it."""

_T = TypeVar("_T", bound=tuple[Any, ...])
_CRC = struct.Struct(">I")


class Record(NamedTuple):
    """
    @ivar timestampMs: since the epoch; -1: none.
    @ivar value: L{None}: a tombstone.
    """

    offset: int
    timestampMs: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


# -- reading


def readHeader(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """
    Read a header, without checks of its values but magic and size.

    @raise InvalidMessageSizeError: fewer bytes than a header, or a size that cannot be.
    @raise UnsupportedForMessageFormatError: magic 0 or 1.
    @raise FormatError: another magic.
    """
    try:
        fields = HEADER.unpack_from(data, position)
    except struct.error as error:
        left = len(data) - position
        if left > MAGIC_POSITION:
            checkMagic(data[position + MAGIC_POSITION], position)
        raise InvalidMessageSizeError(
            f"{left} bytes are left, less than a header", position
        ) from error
    if fields[3] != MAGIC:
        checkMagic(fields[3], position)
    size = fields[1] + SIZE_HEAD_SIZE
    if size < BATCH_OVERHEAD:
        raise InvalidMessageSizeError(f"size field is {fields[1]}", position)
    header: BatchHeader = tuple.__new__(BatchHeader, (fields[0], size, *fields[2:]))
    return header


def checkMagic(magic: int, position: int) -> None:
    """@raise FormatError: as L{readHeader}."""
    if magic in (0, 1):
        raise UnsupportedForMessageFormatError(f"message format {magic}", position)
    if magic != MAGIC:
        raise FormatError(f"magic byte is {magic}", position)


def checkCrc(data: bytes | memoryview, position: int, header: BatchHeader) -> None:
    """
    @raise InvalidMessageSizeError: the batch is cut.
    @raise InvalidChecksumError: the checksum does not match.
    """
    end = position + header.size
    if end > len(data):
        raise InvalidMessageSizeError(
            f"batch of {header.size} bytes and {len(data) - position} are left", position
        )
    found = crc32c(memoryview(data)[position + CHECKED_POSITION : end])
    if found != header.crc:
        raise InvalidChecksumError(
            f"checksum is {header.crc:08x}, the batch's is {found:08x}", position
        )


def openRecords(
    data: bytes | memoryview,
    position: int,
    header: BatchHeader,
    limits: CheckLimits = DEFAULT_LIMITS,
) -> bytes:
    """
    The bytes of a batch's records, decompressed.

    @raise FormatError: they are cut, or cannot be decompressed.
    @raise DecompressionLimitError: compressed or not, they are more than the limits allow.
    """
    packed = bytes(data[position + BATCH_OVERHEAD : position + header.size])
    if len(packed) != header.size - BATCH_OVERHEAD:
        raise InvalidMessageSizeError(f"batch of {header.size} bytes is cut", position)
    if header.codec == NONE:
        return packed
    if len(packed) > limits.compressedSizeMax:
        raise DecompressionLimitError(
            f"compressed records of {len(packed)} bytes,"
            f" {limits.compressedSizeMax} are to be opened",
            position,
        )
    try:
        return decompress(header.codec, packed, limits.decompressedSizeMax)
    except FormatError as error:
        raise type(error)(error.reason, position) from error


def iterateRecords(
    data: bytes | memoryview,
    position: int,
    header: BatchHeader,
    limits: CheckLimits = DEFAULT_LIMITS,
) -> Iterator[Record]:
    """
    The records of a batch; of a control batch, too.

    @raise FormatError: when the walk reaches the first fault.
    """
    return iterateRows(Record, (), (), FROM_ALL, data, position, header, limits)


def iterateRows(
    cls: type[_T],
    before: tuple[Any, ...],
    behind: tuple[Any, ...],
    startOffset: int,
    data: bytes | memoryview,
    position: int,
    header: BatchHeader,
    limits: CheckLimits = DEFAULT_LIMITS,
) -> Iterator[_T]:
    """
    The records of a batch as instances of another class.

    @param cls: a C{NamedTuple}. Its fields are C{before}, those of L{Record}, and C{behind}.
    @param startOffset: records below it are left out.
    @raise FormatError: when the walk reaches the first fault.
    """
    body = openRecords(data, position, header, limits)
    baseOffset, baseMs = header.baseOffset, header.baseTimestampMs
    appendMs = header.maxTimestampMs if header.isLogAppendTime else None
    at, end, left, new = 0, len(body), header.recordCount, tuple.__new__
    if not 0 <= header.recordCount <= end // RECORD_SIZE_MIN:
        raise InvalidRecordError(f"{header.recordCount} records in {end} bytes", position)
    isUsual = native is not None
    while left and isUsual:  # what is not usual is left to the loop below
        rows, at, count = native.decodeRecords(
            cls,
            before,
            behind,
            body,
            at,
            min(left, _ROW_COUNT),
            baseOffset,
            baseMs,
            appendMs,
            startOffset,
        )
        yield from rows
        isUsual = count == min(left, _ROW_COUNT)
        left -= count
    try:
        for _ in range(left):
            number = body[at]
            at += 1
            if number > 127:
                number, at = readUnsignedVarint(body, at - 1)
            edge = at + (number >> 1 ^ -(number & 1))
            at += 1  # attributes, which are not used
            deltaMs = body[at]
            at += 1
            if deltaMs > 127:
                deltaMs, at = readUnsignedVarint(body, at - 1)
            delta = body[at]
            at += 1
            if delta > 127:
                delta, at = readUnsignedVarint(body, at - 1)
            number = body[at]
            at += 1
            if number > 127:
                number, at = readUnsignedVarint(body, at - 1)
            key = value = None
            if not number & 1:
                start = at
                at += number >> 1
                key = body[start:at]
            number = body[at]
            at += 1
            if number > 127:
                number, at = readUnsignedVarint(body, at - 1)
            if not number & 1:
                start = at
                at += number >> 1
                value = body[start:at]
            number = body[at]
            at += 1
            headers: Headers = ()
            if number:
                headers, at = _readHeaders(body, at - 1)
            if at != edge or at > end:
                raise InvalidRecordError(f"a record's size does not fit, at {at}", position)
            offset = baseOffset + (delta >> 1 ^ -(delta & 1))
            if offset >= startOffset:
                timestampMs = (
                    baseMs + (deltaMs >> 1 ^ -(deltaMs & 1)) if appendMs is None else appendMs
                )
                fields = (offset, timestampMs, key, value, headers)
                yield new(cls, before + fields + behind)
    except IndexError as error:
        raise InvalidRecordError("a record is cut", position) from error
    except ValueError as error:
        raise InvalidRecordError(f"a record cannot be read: {error}", position) from error
    if at != end:
        raise InvalidRecordError(f"{end - at} bytes are behind the last record", position)


def readUnsignedVarint(body: bytes, at: int) -> tuple[int, int]:
    """
    A number as it is encoded, zigzag included.

    @return: the number, and the position behind it.

    @raise ValueError: the number has no end.
    """
    number = shift = 0
    for byte in body[at : at + _VARINT_SIZE_MAX]:
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError("a number without end")


def _readSized(body: bytes, at: int) -> tuple[bytes | None, int]:
    number, at = readUnsignedVarint(body, at)
    if number & 1:
        return None, at
    behind = at + (number >> 1)
    if behind > len(body):
        raise ValueError("a header is cut")
    return body[at:behind], behind


def _readHeaders(body: bytes, at: int) -> tuple[Headers, int]:
    number, at = readUnsignedVarint(body, at)
    count = number >> 1
    if number & 1 or count > len(body) - at:
        raise ValueError(f"header count {number >> 1 ^ -(number & 1)}")
    headers = []
    for _ in range(count):
        name, at = _readSized(body, at)
        if name is None:
            raise ValueError("a header without a name")
        value, at = _readSized(body, at)
        headers.append((name.decode("utf-8", "replace"), value))  # as Java does
    return tuple(headers), at


def controlType(record: Record) -> int:
    """
    The type of a control record: L{ABORT_MARKER}, L{COMMIT_MARKER}, or one that this broker does
    not write.

    @raise InvalidRecordError: the key is none of a control record.
    """
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise InvalidRecordError("a control record without a type")
    _version, kind = _CONTROL_KEY.unpack_from(record.key)
    return int(kind)


def readMarker(record: Record) -> EndMarker | None:
    """
    The marker in a control record; L{None}: one of another type.

    @raise InvalidRecordError: key or value is cut.
    """
    kind = controlType(record)
    if kind not in (ABORT_MARKER, COMMIT_MARKER):
        return None
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise InvalidRecordError("a marker without a value")
    _version, coordinatorEpoch = _CONTROL_VALUE.unpack_from(record.value)
    return EndMarker(kind == COMMIT_MARKER, coordinatorEpoch)


# -- writing


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _encodeUnsigned(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_VARINTS = [_encodeUnsigned(number) for number in range(1 << 10)]


def encodeVarint(value: int) -> bytes:
    """A number as records have it, with zigzag."""
    number = _zigzag(value)
    return _VARINTS[number] if number < len(_VARINTS) else _encodeUnsigned(number)


def _encodeRecord(record: Record, delta: int, deltaMs: int) -> bytes:
    pieces = [b"\0", encodeVarint(deltaMs), encodeVarint(delta)]
    for field in (record.key, record.value):
        pieces += (_VARINTS[1],) if field is None else (encodeVarint(len(field)), field)
    pieces.append(encodeVarint(len(record.headers)))
    for name, value in record.headers:
        encoded = name.encode()
        pieces += (encodeVarint(len(encoded)), encoded)
        pieces += (_VARINTS[1],) if value is None else (encodeVarint(len(value)), value)
    data = b"".join(pieces)
    return encodeVarint(len(data)) + data


def encodeBatch(
    records: Iterable[Record],
    *,
    baseOffset: int = 0,
    codec: int = NONE,
    level: int | None = None,
    producerId: int = NO_PRODUCER,
    producerEpoch: int = -1,
    baseSequence: int = -1,
    isTransactional: bool = False,
    isControl: bool = False,
    leaderEpoch: int = -1,
    lastOffsetDelta: int | None = None,
    appendTimeMs: int | None = None,
    deleteHorizonMs: int | None = None,
) -> bytes:
    """
    Encode a batch.

    @param records: ascending offsets, none below C{baseOffset}. An empty batch keeps offsets and
        sequence numbers, as compaction needs it.
    @param level: of compression; L{None}: the codec's default.
    @param lastOffsetDelta: L{None}: the last record's offset is the batch's last.
    @param appendTimeMs: with C{LogAppendTime}, the time of all records.
    @param deleteHorizonMs: see L{BatchHeader.deleteHorizonMs}.
    @raise UnknownCodecError: an unknown codec.
    """
    found = list(records)
    last = found[-1].offset - baseOffset if lastOffsetDelta is None else lastOffsetDelta
    baseMs = found[0].timestampMs if found else -1
    if deleteHorizonMs is not None:
        baseMs = deleteHorizonMs
    maxMs = max((record.timestampMs for record in found), default=-1)
    attributes = (
        codec
        | (APPEND_TIME_ATTRIBUTE if appendTimeMs is not None else 0)
        | (TRANSACTIONAL_ATTRIBUTE if isTransactional else 0)
        | (CONTROL_ATTRIBUTE if isControl else 0)
        | (DELETE_HORIZON_ATTRIBUTE if deleteHorizonMs is not None else 0)
    )
    body = b"".join(
        [
            _encodeRecord(record, record.offset - baseOffset, record.timestampMs - baseMs)
            for record in found
        ]
    )
    return assembleBatch(
        BatchHeader(
            baseOffset,
            0,
            leaderEpoch,
            MAGIC,
            0,
            attributes,
            last,
            baseMs,
            maxMs if appendTimeMs is None else appendTimeMs,
            producerId,
            producerEpoch,
            baseSequence,
            len(found),
        ),
        compress(codec, body, level),
    )


def assembleBatch(header: BatchHeader, packed: bytes | memoryview) -> bytes:
    """
    A batch of a header and the bytes of its records.

    @param header: size and checksum are computed anew.
    @param packed: compressed as the header says.
    """
    size = len(packed) + BATCH_OVERHEAD - SIZE_HEAD_SIZE
    head = HEADER.pack(header.baseOffset, size, *header[2:4], 0, *header[5:])
    checksum = crc32c(packed, crc32c(head[CHECKED_POSITION:]))
    return b"".join((head[:CRC_POSITION], _CRC.pack(checksum), head[CHECKED_POSITION:], packed))


def controlBatch(
    isCommit: bool,
    producerId: int,
    producerEpoch: int,
    coordinatorEpoch: int,
    timestampMs: int,
    *,
    baseOffset: int = 0,
    leaderEpoch: int = -1,
) -> bytes:
    """The batch that ends a transaction in a partition."""
    key = _CONTROL_KEY.pack(0, COMMIT_MARKER if isCommit else ABORT_MARKER)
    value = _CONTROL_VALUE.pack(0, coordinatorEpoch)
    return encodeBatch(
        [Record(baseOffset, timestampMs, key, value)],
        baseOffset=baseOffset,
        producerId=producerId,
        producerEpoch=producerEpoch,
        isTransactional=True,
        isControl=True,
        leaderEpoch=leaderEpoch,
    )


def stampBatch(
    data: bytes | memoryview, header: BatchHeader, baseOffset: int, leaderEpoch: int, timeMs: int
) -> bytes:
    """
    A copy of a batch, as a leader stores it.

    @param header: of the batch; with C{isLogAppendTime} the batch gets C{timeMs}, and a new
        checksum.
    """
    if header.attributes & APPEND_TIME_ATTRIBUTE:
        timed = header._replace(
            baseOffset=baseOffset, leaderEpoch=leaderEpoch, maxTimestampMs=timeMs
        )
        return assembleBatch(timed, memoryview(data)[BATCH_OVERHEAD:])
    stamp = STAMP.pack(baseOffset, header.size - SIZE_HEAD_SIZE, leaderEpoch)
    return b"".join((stamp, memoryview(data)[STAMP.size :]))
