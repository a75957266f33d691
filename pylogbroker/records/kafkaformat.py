"""
Today's format, record batches of version 2, as the log sees it
(L{pylogbroker.interfaces.IRecordFormat}). It is a module of its own, since broker and tools give it
to storage.

B{What is checked} is docs/decisions/0014. Header and checksum always: whole, not too large, counts
that match, nothing that clients may not write. The records inside are opened only where a rule of
the topic needs it (L{RecordRules.opensRecords}), since that costs more than all the rest.

B{Rules are bound.} A L{KafkaFormat} is made for a topic's rules and given to its partitions, so
that storage calls every format alike. It has no state: new settings make a new one.

A batch's bytes are never rebuilt, but to recompress its records, unchanged, for a topic's
C{compression.type}, and to mend what a client's header must not say, as Apache does:
C{LogAppendTime}, and, of a batch that is opened, a largest timestamp that none of its records has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from pylogbroker.errors import (
    DecompressionLimitError,
    InvalidMessageSizeError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
)
from pylogbroker.interfaces import (
    BatchHeader,
    CheckLimits,
    EndMarker,
    IFileSystem,
    ValidatedBatches,
)
from pylogbroker.records.batchscan import BatchScan, checkCounts, markerIn, recordCountMax
from pylogbroker.records.compression import ZSTD, compress
from pylogbroker.records.recordbatch import (
    APPEND_TIME_ATTRIBUTE,
    BATCH_OVERHEAD,
    CHECKED_POSITION,
    CODEC_ATTRIBUTES,
    HEADER,
    MAGIC,
    MAGIC_POSITION,
    SIZE_HEAD_SIZE,
    TRANSACTIONAL_ATTRIBUTE,
    Record,
    assembleBatch,
    checkCrc,
    checkMagic,
    iterateRecords,
    openRecords,
    readHeader,
    stampBatch,
)
from pylogbroker.records.recordcheck import DELTA_MAX_MS, areOrdinary
from pylogbroker.records.segmentindex import DEFAULT_INDEX_SETTINGS, IndexSettings, SegmentIndex

ALWAYS_MS = (1 << 63) - 1
HOUR_MS = 3_600_000

_UNUSUAL = ~(CODEC_ATTRIBUTES | TRANSACTIONAL_ATTRIBUTE)
LEGACY_OVERHEAD = 14
"""The smallest size field of a batch of any format."""

_ERROR_TEXT_COUNT_MAX = 3


@dataclass(frozen=True)
class RecordRules:
    """
    A topic's rules for batches.

    @ivar batchSizeMax: bytes of a batch (C{max.message.bytes}); L{None}: the limit of the caller.
    @ivar isLogAppendTime: C{message.timestamp.type}.
    @ivar timestampBeforeMaxMs: how far a timestamp may be behind the broker's time.
    @ivar timestampAfterMaxMs: how far before it.
    @ivar codec: C{compression.type}; L{None}: the producer's.
    @ivar level: of compression; L{None}: the codec's default.
    @ivar isCompacted: records without a key are refused.
    @ivar isEveryRecordChecked: open every batch, as Apache does.
    @ivar isFromClient: batches come from clients: one batch with offsets from 0, no markers.
        Otherwise they are from a log, from a leader, or our own.
    @ivar index: when to note a batch in the indexes.
    """

    batchSizeMax: int | None = None
    isLogAppendTime: bool = False
    timestampBeforeMaxMs: int = ALWAYS_MS
    timestampAfterMaxMs: int = HOUR_MS
    codec: int | None = None
    level: int | None = None
    isCompacted: bool = False
    isEveryRecordChecked: bool = False
    isFromClient: bool = True
    index: IndexSettings = DEFAULT_INDEX_SETTINGS

    @property
    def opensRecords(self) -> bool:
        """Whether every batch must be opened. Header and checksum do not tell the oldest time."""
        return (
            self.isCompacted
            or self.isEveryRecordChecked
            or (self.timestampBeforeMaxMs < ALWAYS_MS and not self.isLogAppendTime)
        )


DEFAULT_RULES = RecordRules()
LOG_RULES = RecordRules(isFromClient=False)
"""For batches that a broker has stored."""

CHECKED_RULES = RecordRules(isFromClient=False, isEveryRecordChecked=True)
"""For tools: batches of a log, opened."""


class KafkaFormat:
    """
    Today's format (L{pylogbroker.interfaces.IRecordFormat}), bound to rules.
    """

    suffix = ".log"
    isStamped = True

    def __init__(
        self, rules: RecordRules = DEFAULT_RULES, clock: Callable[[], int] | None = None
    ) -> None:
        """
        @param clock: milliseconds since the epoch; L{None}: timestamps are not compared with it.
        """
        self.rules = rules
        self._clock = clock
        self._opensRecords = rules.opensRecords
        self._isOrdinary = rules.isFromClient and not rules.opensRecords

    # -- validation

    def validatePlain(self, sets: Sequence[bytes], payloadSizeMax: int) -> ValidatedBatches | None:
        """
        Sets of one batch each, perhaps compressed, whose records no rule needs opened.
        """
        if not self._isOrdinary:
            return None
        rules = self.rules
        sizeMax = payloadSizeMax if rules.batchSizeMax is None else rules.batchSizeMax
        codec, isLogAppendTime = rules.codec, rules.isLogAppendTime
        latestMs = self._latestMs()
        total = count = 0
        largestMs = -1
        headers = []
        unpack, new = HEADER.unpack_from, tuple.__new__
        try:
            for data in sets:
                fields = unpack(data)
                size = fields[1] + SIZE_HEAD_SIZE
                attributes, recordCount, maxMs = fields[5], fields[12], fields[8]
                used = attributes & CODEC_ATTRIBUTES
                if (
                    fields[3] != MAGIC
                    or size != len(data)
                    or size > sizeMax
                    or fields[0]
                    or recordCount != fields[6] + 1
                    or recordCount < 1
                    or recordCount > recordCountMax(used, size)
                    or attributes & _UNUSUAL
                    or used > ZSTD
                    or (codec is not None and used != codec)
                    or (fields[9] >= 0 and fields[11] < 0)
                    or maxMs > latestMs
                    or crc32c(memoryview(data)[CHECKED_POSITION:]) != fields[4]
                ):
                    return None
                header = new(BatchHeader, (0, size, *fields[2:]))
                if isLogAppendTime:
                    header = header._replace(attributes=attributes | APPEND_TIME_ATTRIBUTE)
                headers.append(header)
                total += size
                count += recordCount
                if maxMs > largestMs:
                    largestMs = maxMs
        except struct.error:  # fewer bytes than a header
            return None
        found: ValidatedBatches = new(
            ValidatedBatches, (sets, total, count, count, largestMs, headers, None, False)
        )
        return found

    def _latestMs(self) -> int:
        """The largest timestamp that is allowed now."""
        if self._clock is None or self.rules.isLogAppendTime:
            return ALWAYS_MS
        return self._clock() + self.rules.timestampAfterMaxMs

    def validate(self, data: bytes, limits: CheckLimits) -> ValidatedBatches:
        """
        Validate batches: one from a client, any number from a log.

        @return: without a cut batch at the end.
        @raise UnsupportedForMessageFormatError: format 0 or 1.
        @raise InvalidMessageSizeError: from a log: there is no whole batch.
        @raise InvalidChecksumError: the checksum does not match.
        @raise InvalidRecordError: a rule is broken; the records that break it are told.
        @raise InvalidTimestampError: a timestamp is too far from now.
        @raise MessageTooLargeError: a batch is larger than allowed.
        @raise DecompressionLimitError: the records must be opened, and are too large for that here.
        """
        headers: list[BatchHeader] = []
        buffers: list[bytes] = []
        marker: EndMarker | None = None
        position, end = 0, _wholeSize(data)
        if self.rules.isFromClient and not end:
            raise InvalidRecordError("no whole batch")
        while position < end:
            header = readHeader(data, position)
            if self.rules.isFromClient:
                if end > header.size:
                    raise InvalidRecordError("more than one batch for a partition", header.size)
                self._checkFromClient(header, position)
            self._checkHeader(data, position, header, limits)
            batch = data[position : position + header.size]
            if header.isControl:
                marker = markerIn(batch, header)
            position += header.size
            batch, header = self._checkRecords(batch, header, limits)
            headers.append(header)
            buffers.append(batch)
        return ValidatedBatches(
            buffers,
            sum(header.size for header in headers),
            sum(header.recordCount for header in headers),
            sum(header.lastOffsetDelta + 1 for header in headers),
            max([-1, *(header.maxTimestampMs for header in headers)]),
            headers,
            marker if len(headers) == 1 else None,
        )

    @staticmethod
    def _checkFromClient(header: BatchHeader, position: int) -> None:
        if header.baseOffset:
            raise InvalidRecordError(f"base offset {header.baseOffset} is not 0", position)
        if header.isControl:
            raise InvalidRecordError("clients may not write control batches", position)
        if header.recordCount < 1 or header.recordCount != header.lastOffsetDelta + 1:
            raise InvalidRecordError(
                f"{header.recordCount} records, and last offset {header.lastOffsetDelta}", position
            )
        if header.producerId >= 0 and header.baseSequence < 0:
            raise InvalidRecordError(
                f"sequence {header.baseSequence} of producer {header.producerId}", position
            )

    def _checkHeader(
        self, data: bytes, position: int, header: BatchHeader, limits: CheckLimits
    ) -> None:
        self._checkSize(header.size, position, limits)
        checkCrc(data, position, header)
        checkCounts(header, position)

    def _checkSize(self, size: int, position: int, limits: CheckLimits) -> None:
        sizeMax = self.rules.batchSizeMax
        if sizeMax is None:
            sizeMax = limits.payloadSizeMax
        if size > sizeMax:
            raise MessageTooLargeError(f"batch of {size} bytes, {sizeMax} are allowed", position)

    def _checkRecords(
        self, batch: bytes, header: BatchHeader, limits: CheckLimits
    ) -> tuple[bytes, BatchHeader]:
        """Open the batch if a rule says so. The batch, perhaps recompressed, and its header."""
        rules = self.rules
        codec = header.codec if rules.codec is None or header.isControl else rules.codec
        latestMs = self._latestMs()
        wanted, packed = header, memoryview(batch)[BATCH_OVERHEAD:]
        if self._opensRecords or codec != header.codec or header.maxTimestampMs > latestMs:
            if len(batch) - BATCH_OVERHEAD > limits.compressedSizeMax:
                raise DecompressionLimitError(
                    f"records of {len(batch) - BATCH_OVERHEAD} bytes,"
                    f" {limits.compressedSizeMax} are to be opened"
                )
            body = openRecords(batch, 0, header, limits)
            largestMs = self._checkBody(body, batch, header, limits, latestMs)
            wanted = header._replace(maxTimestampMs=largestMs)
            if codec != header.codec:
                attributes = header.attributes & ~CODEC_ATTRIBUTES | codec
                wanted = wanted._replace(attributes=attributes)
                packed = memoryview(compress(codec, body, rules.level))
        if header.isLogAppendTime and rules.isFromClient and not rules.isLogAppendTime:
            # As by Apache: it is not theirs to say.
            wanted = wanted._replace(attributes=wanted.attributes & ~APPEND_TIME_ATTRIBUTE)
        if wanted != header:
            batch = assembleBatch(wanted, packed)
            header = readHeader(batch)
            self._checkSize(header.size, 0, limits)
        if rules.isLogAppendTime and rules.isFromClient:
            header = header._replace(attributes=header.attributes | APPEND_TIME_ATTRIBUTE)
        return batch, header

    def _checkBody(
        self, body: bytes, batch: bytes, header: BatchHeader, limits: CheckLimits, latestMs: int
    ) -> int:
        """
        @return: the largest timestamp that the batch's header must have.
        @raise InvalidRecordError: a record is not as it must be.
        """
        baseMs, largestMs = header.baseTimestampMs, header.maxTimestampMs
        isTimeChecked = self.rules.isFromClient and not self.rules.isLogAppendTime
        largest = None
        if isTimeChecked:
            largest = largestMs - baseMs if largestMs >= -1 else DELTA_MAX_MS
        isOrdinary = areOrdinary(
            body,
            header.recordCount,
            self.rules.isCompacted and not header.isControl,
            self._earliestMs() - baseMs,
            latestMs - baseMs,
            largest,
        )
        if not isOrdinary:
            read = header
            if isTimeChecked:  # a client's LogAppendTime would hide the times of its records
                read = header._replace(attributes=header.attributes & ~APPEND_TIME_ATTRIBUTE)
            records = list(iterateRecords(batch, 0, read, limits))
            self._checkEach(records, header, latestMs)
            if isTimeChecked:
                largestMs = max(-1, max((record.timestampMs for record in records), default=-1))
        return largestMs

    def _checkEach(self, records: Sequence[Record], header: BatchHeader, latestMs: int) -> None:
        rules = self.rules
        faults: list[tuple[int, str]] = []
        if rules.isFromClient and any(
            record.offset != index for index, record in enumerate(records)
        ):
            raise InvalidRecordError("the offsets of the records are not 0, 1, 2 …")
        if rules.isCompacted and not header.isControl:
            faults = [
                (index, "Compacted topic cannot accept message without key")
                for index, record in enumerate(records)
                if record.key is None
            ]
        earliestMs = self._earliestMs()
        late = [
            (
                index,
                f"Timestamp {record.timestampMs} of message with offset {record.offset} is out of"
                f" range. The timestamp should be within [{earliestMs}, {latestMs}]",
            )
            for index, record in enumerate(records)
            if record.timestampMs != -1 and not earliestMs <= record.timestampMs <= latestMs
        ]
        if late:
            raise InvalidTimestampError(
                "One or more records have been rejected due to invalid timestamp",
                0,
                tuple(sorted(faults + late)),
            )
        if faults:
            shown = ", ".join(
                f"RecordError(batchIndex={index}, message='{text}')"
                for index, text in faults[:_ERROR_TEXT_COUNT_MAX]
            )
            raise InvalidRecordError(
                f"One or more records have been rejected due to {len(faults)} record errors in"
                f" total, and only showing the first three errors at most: [{shown}]",
                0,
                tuple(faults),
            )

    def _earliestMs(self) -> int:
        rules = self.rules
        if self._clock is None or rules.isLogAppendTime or rules.timestampBeforeMaxMs == ALWAYS_MS:
            return -ALWAYS_MS
        return self._clock() - rules.timestampBeforeMaxMs

    # -- the log

    def stamp(
        self, batches: ValidatedBatches, baseOffset: int, epoch: int, timeMs: int
    ) -> Sequence[bytes]:
        """Copies of the batches, with base offset and leader epoch."""
        buffers, headers = batches.buffers, batches.headers
        if len(headers) == 1:
            return [stampBatch(buffers[0], headers[0], baseOffset, epoch, timeMs)]
        stamped = []
        for data, header in zip(buffers, headers, strict=True):
            stamped.append(stampBatch(data, header, baseOffset, epoch, timeMs))
            baseOffset += header.lastOffsetDelta + 1
        return stamped

    def nextOffset(self, offset: int, buffers: Sequence[bytes]) -> int:
        data, position = buffers[-1] if buffers else b"", 0
        while position < len(data):
            header = readHeader(data, position)
            offset = header.nextOffset
            position += header.size
        return offset

    def contiguousEnd(self, baseOffset: int, size: int) -> None:
        """Offsets may have gaps."""

    def openIndex(
        self, fileSystem: IFileSystem, path: str, baseOffset: int, size: int, rebuild: bool
    ) -> SegmentIndex:
        index = SegmentIndex(fileSystem, path, baseOffset, self.rules.index)
        index.open(size, rebuild)
        return index

    def scan(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> BatchScan:
        return BatchScan(read, baseOffset, start, end)


def _wholeSize(data: bytes, position: int = 0) -> int:
    """
    Where the last whole batch ends, by size fields. As by Apache, a cut one at the end is ignored.

    @raise FormatError: a size or a magic that cannot be.
    """
    while position + MAGIC_POSITION < len(data):
        size = int.from_bytes(data[position + 8 : position + SIZE_HEAD_SIZE], "big", signed=True)
        if size < LEGACY_OVERHEAD:
            raise InvalidMessageSizeError(f"size field is {size}", position)
        checkMagic(data[position + MAGIC_POSITION], position)
        if position + SIZE_HEAD_SIZE + size > len(data):
            break
        position += SIZE_HEAD_SIZE + size
    return position
