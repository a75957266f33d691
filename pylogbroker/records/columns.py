"""
Messages as the buffers of Arrow's columns, for readers that build tables, where an object per
message costs too much: message sets of 2011 (L{columnBatches}) and record batches
(L{recordColumns}).

A L{ColumnBatch} is a run of plain entries, or the content of one compressed entry. One tight loop
walks plain, whole, valid entries; L{readEntry} reads the rest, so both accept the same. Messages
inside a compressed entry share its offset, and all but the last lead back to it (spec-0.7
wire-protocol §6).

The buffers are those of docs/decisions/0023: with the C speed-up no object is made for a record.
pyarrow is not imported here.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pylogbroker.errors import FormatError, InvalidRecordError
from pylogbroker.interfaces import BatchHeader, CheckLimits
from pylogbroker.records.compression import NONE, crc32
from pylogbroker.records.messageset import (
    DEFAULT_LIMITS,
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    PLAIN,
    PLAIN_HEAD,
    SIZE,
    SIZE_FIELD_SIZE,
    DecompressionBudget,
    decompressedPayloads,
    readEntry,
)
from pylogbroker.records.recordbatch import RECORD_SIZE_MIN, Record, iterateRecords, openRecords
from pylogbroker.speedups import native

ROW_COUNT_MAX = 1 << 16
COLUMN_SIZE_MAX = 16 << 20
"""Bytes of keys, values and headers after which columns are handed out."""

_INT64_MIN, _INT64_MAX = -1 << 63, (1 << 63) - 1


class ColumnBatch(NamedTuple):
    """
    Consecutive messages of a set of 2011, in the machine's byte order.

    @ivar payloadOffsets: edges of each message in C{payloads}, four bytes a row, and one more for
        the end.
    @ivar offsets: of each message's top-level entry, eight bytes a row.
    @ivar nextOffsets: the offset to fetch after each message, eight bytes a row.
    @ivar behind: the offset behind the last entry, also of an empty compressed entry.
    """

    payloadOffsets: bytes
    payloads: bytes
    offsets: bytes
    nextOffsets: bytes
    behind: int


def columnBatches(
    data: bytes, baseOffset: int, limits: CheckLimits = DEFAULT_LIMITS
) -> Iterator[ColumnBatch]:
    """
    Read a message set.

    @param data: whole entries; the last may be cut.
    @param baseOffset: of the first.
    @raise FormatError: as from L{pylogbroker.records.messageset.MessageSet}, behind the columns of
        the entries before the fault.
    """
    position, end = 0, len(data)
    while True:
        start = position
        plain, position = _plainColumns(data, position, baseOffset)
        if position > start:
            yield plain
        found = readEntry(data, position, end, position == 0)
        if found is None:
            return
        message, behind = found
        payloads = (
            [message.payload]
            if message.codec == NONE
            else list(decompressedPayloads(message, DecompressionBudget(limits), 0, position))
        )
        offset, nextOffset, count = baseOffset + position, baseOffset + behind, len(payloads)
        nextOffsets = [offset] * (count - 1) + [nextOffset] * (count > 0)
        offsets = _int64s([offset] * count)
        yield ColumnBatch(*_joined(payloads), offsets, _int64s(nextOffsets), nextOffset)
        position = behind


def _plainColumns(data: bytes, position: int, baseOffset: int) -> tuple[ColumnBatch, int]:
    if native is not None:
        edges, payloads, offsets, position = native.plainColumns(data, position, baseOffset)
        behind = baseOffset + position
        return ColumnBatch(edges, payloads, offsets[:-8], offsets[8:], behind), position
    bounds, checksums = [position], list[int]()
    unpack, end, add, addChecksum = PLAIN.unpack_from, len(data), bounds.append, checksums.append
    try:
        while True:
            size, head, checksum = unpack(data, position)
            position += SIZE_FIELD_SIZE + size
            if head != PLAIN_HEAD or size < HEADER_SIZE_1 or position > end:
                break
            add(position)
            addChecksum(checksum)
    except struct.error:
        pass  # fewer bytes than a header
    found = [data[start + PLAIN.size : behind] for start, behind in pairwise(bounds)]
    computed = list(map(crc32, found))
    if computed != checksums:
        count = next(index for index, each in enumerate(computed) if each != checksums[index])
        del found[count:], bounds[count + 1 :]
    offsets = _int64s([baseOffset + bound for bound in bounds])
    behind = baseOffset + bounds[-1]
    return ColumnBatch(*_joined(found), offsets[:-8], offsets[8:], behind), bounds[-1]


def _int64s(values: list[int]) -> bytes:
    return array("q", values).tobytes()


def _joined(values: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Edges and bytes of a column without nulls."""
    return array("i", accumulate(map(len, values), initial=0)).tobytes(), b"".join(values)


def completeEntriesSize(data: bytes) -> int:
    """Bytes of complete entries at the start, by size fields alone, up to an impossible size."""
    unpack, position, end = SIZE.unpack_from, 0, len(data)
    while position + SIZE_FIELD_SIZE <= end:
        (size,) = unpack(data, position)
        behind = position + SIZE_FIELD_SIZE + size
        if size < HEADER_SIZE_0 or behind > end:
            break
        position = behind
    return position


# -- offsets and sizes: an offset of the 2011 format is the number of a byte


def entrySize(data: bytes) -> int:
    """
    Bytes of the first entry, by its size field alone.

    @return: L{SIZE_FIELD_SIZE} if the size field is cut or invalid.
    """
    if len(data) < SIZE_FIELD_SIZE:
        return SIZE_FIELD_SIZE
    return SIZE_FIELD_SIZE + max(int(SIZE.unpack_from(data)[0]), 0)


def sizeBetween(start: int, end: int) -> int:
    """Bytes of the log between two offsets."""
    return end - start


def offsetAfter(offset: int, size: int) -> int:
    """The offset a number of bytes behind another one."""
    return offset + size


# -- record batches as Arrow's columns


class RecordColumns(NamedTuple):
    """
    Records as the buffers of Arrow's columns, in the machine's byte order. C{offsets} have eight
    bytes a row, C{...Offsets} four, and one more for the end: they are edges in the bytes behind
    them. C{...Validity} is a bitmap; L{None}: every row has a value. A tombstone has no value.

    @ivar rowCount: of records.
    @ivar headerCount: of the headers of all rows.
    @ivar timestamps: milliseconds since the epoch, eight bytes a row.
    @ivar timestampTypes: four bytes a row; 0: the producer's, 1: the broker's.
    @ivar headerOffsets: edges of each row's headers, counted in headers.
    @ivar headerNames: valid UTF-8.
    """

    rowCount: int
    headerCount: int
    offsets: bytes
    timestamps: bytes
    timestampTypes: bytes
    keyOffsets: bytes
    keys: bytes
    keyValidity: bytes | None
    valueOffsets: bytes
    values: bytes
    valueValidity: bytes | None
    headerOffsets: bytes
    headerNameOffsets: bytes
    headerNames: bytes
    headerValueOffsets: bytes
    headerValues: bytes
    headerValueValidity: bytes | None


def _binary(values: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes | None]:
    """Edges, bytes and validity of a column."""
    validity = None
    if None in values:
        bits = "".join("01"[value is not None] for value in reversed(values))
        validity = int(bits, 2).to_bytes((len(values) + 7) // 8, "little")
    return *_joined([value or b"" for value in values]), validity


class _ColumnsEncoder:
    """
    Collects records in Python.

    @ivar size: bytes of keys, values and headers.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._timestampTypes = array("i")
        self.size = 0

    @property
    def count(self) -> int:
        return len(self._records)

    def append(self, record: Record, timestampType: int) -> None:
        self._records.append(record)
        self._timestampTypes.append(timestampType)
        self.size += len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            self.size += len(name.encode()) + len(value or b"")

    def take(self) -> tuple[Any, ...]:
        """The fields of L{RecordColumns}. It begins anew."""
        records, types = self._records, self._timestampTypes
        self.__init__()  # type: ignore[misc]
        headers = [header for record in records for header in record.headers]
        names = _binary([name.encode() for name, _value in headers])
        return (
            len(records),
            len(headers),
            _int64s([record.offset for record in records]),
            _int64s([record.timestampMs for record in records]),
            types.tobytes(),
            *_binary([record.key for record in records]),
            *_binary([record.value for record in records]),
            array("i", accumulate((len(each.headers) for each in records), initial=0)).tobytes(),
            *names[:2],
            *_binary([value for _name, value in headers]),
        )


class _Run(NamedTuple):
    """What L{recordColumns} takes: limits of offsets, of columns, and of decompression."""

    start: int
    end: int
    countMax: int
    sizeMax: int
    limits: CheckLimits


def recordColumns(
    batches: Iterable[tuple[bytes | memoryview, int, BatchHeader]],
    startOffset: int = 0,
    endOffset: int = _INT64_MAX,
    rowCountMax: int = ROW_COUNT_MAX,
    columnSizeMax: int = COLUMN_SIZE_MAX,
    limits: CheckLimits = DEFAULT_LIMITS,
) -> Iterator[RecordColumns]:
    """
    The records of batches. Which batches are read, such as no control batches and none of aborted
    transactions, is the caller's to choose, and their checksums are the caller's to compare.

    @param batches: bytes, the position of a batch in them, and its header.
    @param endOffset: records from here on are left out.
    @param columnSizeMax: one record more may stand above it.
    @raise FormatError: a batch is damaged, or a number in it has more than 64 bits; behind the
        columns of the records before it.
    """
    run = _Run(startOffset, endOffset, rowCountMax, columnSizeMax, limits)
    encoder: Any
    if native is None:
        encoder, fill = _ColumnsEncoder(), _fill
    else:
        encoder, fill = native.ColumnsEncoder(), _fillNatively
    try:
        for data, position, header in batches:
            for _full in fill(encoder, run, data, position, header):
                yield RecordColumns(*encoder.take())
    except FormatError:
        if encoder.count:
            yield RecordColumns(*encoder.take())
        raise
    if encoder.count:
        yield RecordColumns(*encoder.take())


def _checkedRecords(
    data: bytes | memoryview, position: int, header: BatchHeader, limits: CheckLimits
) -> Iterator[Record]:
    for record in iterateRecords(data, position, header, limits):
        if not (
            _INT64_MIN <= record.offset <= _INT64_MAX
            and _INT64_MIN <= record.timestampMs <= _INT64_MAX
        ):
            raise InvalidRecordError("an offset or a timestamp has more than 64 bits", position)
        yield record


def _fill(
    encoder: _ColumnsEncoder,
    run: _Run,
    data: bytes | memoryview,
    position: int,
    header: BatchHeader,
) -> Iterator[None]:
    """Add a batch. Yields whenever the columns must be taken."""
    for record in _checkedRecords(data, position, header, run.limits):
        if encoder.count and (encoder.count >= run.countMax or encoder.size >= run.sizeMax):
            yield
        if run.start <= record.offset < run.end:
            encoder.append(record, int(header.isLogAppendTime))


def _fillNatively(
    encoder: Any, run: _Run, data: bytes | memoryview, position: int, header: BatchHeader
) -> Iterator[None]:
    body = openRecords(data, position, header, run.limits)
    at, left = 0, header.recordCount
    appendMs = header.maxTimestampMs if header.isLogAppendTime else None
    isFull = 0 < left <= len(body) // RECORD_SIZE_MIN
    while isFull:
        at, count, isFull = encoder.add(
            body,
            at,
            left,
            header.baseOffset,
            header.baseTimestampMs,
            appendMs,
            int(header.isLogAppendTime),
            run.start,
            run.end,
            run.countMax,
            run.sizeMax,
        )
        left -= count
        if isFull:
            yield
    if left or at != len(body):
        for _record in _checkedRecords(data, position, header, run.limits):
            pass  # up to the fault
        raise InvalidRecordError("a record does not fit in columns", position)
