"""
Walks over segments of record batches. It is a module of its own, since recovery and tools walk
where nothing is appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from crc32c import crc32c

from pylogbroker.errors import FormatError, InvalidRecordError, UnknownCodecError
from pylogbroker.interfaces import BatchHeader, EndMarker, ScannedEntry
from pylogbroker.records.compression import BATCH_CODEC_NAMES, NONE
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    CHECKED_POSITION,
    RECORD_SIZE_MIN,
    checkCrc,
    iterateRecords,
    readHeader,
    readMarker,
)
from pylogbroker.records.scanwindow import ScanWindow

COMPRESSED_RECORD_COUNT_MAX = (64 << 20) // RECORD_SIZE_MIN
"""Records that a compressed batch may claim without being opened."""

OFFSET_COUNT_MAX = (1 << 31) - 1
"""Offsets of a segment: the indexes have four bytes for them."""


def recordCountMax(codec: int, size: int) -> int:
    """Records that a batch of a size can hold."""
    if codec == NONE:
        return (size - BATCH_OVERHEAD) // RECORD_SIZE_MIN
    return COMPRESSED_RECORD_COUNT_MAX


def checkCounts(header: BatchHeader, position: int) -> None:
    """
    @raise UnknownCodecError: the codec is not known.
    @raise InvalidRecordError: counts that no whole batch has, also after compaction.
    """
    if header.codec not in BATCH_CODEC_NAMES:
        raise UnknownCodecError(f"unknown codec {header.codec}", position)
    countMax = min(recordCountMax(header.codec, header.size), header.lastOffsetDelta + 1)
    if header.baseOffset < 0 or not 0 <= header.recordCount <= countMax:
        raise InvalidRecordError(
            f"{header.recordCount} records in {header.size} bytes, offsets {header.baseOffset} to"
            f" {header.lastOffset}",
            position,
        )


def markerIn(batch: bytes, header: BatchHeader) -> EndMarker | None:
    """L{None}: another control record, or an empty batch, which compaction leaves."""
    for record in iterateRecords(batch, 0, header):
        return readMarker(record)
    return None


class BatchScan:
    """
    A walk over a segment: whole batches with right checksums, whose offsets ascend
    (L{pylogbroker.interfaces.ISegmentScan}). Records are not opened, but those of control batches.

    The file is read by a L{ScanWindow}. The checksum of a batch larger than it is computed in
    pieces.

    @ivar position: byte behind the last good batch.
    @ivar reason: why the walk stopped; L{None} at C{end}, and during the walk.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> None:
        self._nextOffset = baseOffset
        self._lastOffsetMax = baseOffset + OFFSET_COUNT_MAX
        self._end = end
        self._window = ScanWindow(read, start, end)
        self.position = start
        self.reason: str | None = None

    def __iter__(self) -> Iterator[ScannedEntry]:
        while self._end > self.position:
            try:
                header, marker = self._check()
            except FormatError as error:
                self.reason = error.reason
                return
            position = self.position
            self._nextOffset = header.nextOffset
            self.position += header.size
            yield ScannedEntry(
                position, header.size, header.baseOffset, header.nextOffset, header, marker
            )

    def skipToEnd(self) -> int:
        for _ in self:
            pass
        return self.position

    def _check(self) -> tuple[BatchHeader, EndMarker | None]:
        left = self._end - self.position
        window = self._window
        at = window.indexOf(self.position, min(BATCH_OVERHEAD, left))
        header = readHeader(window.data, at)
        if header.size > left:
            raise FormatError(f"batch of {header.size} bytes and {left} are left")
        if header.baseOffset < self._nextOffset:
            raise FormatError(
                f"offset {header.baseOffset} where {self._nextOffset} or a later one must be"
            )
        if header.lastOffset > self._lastOffsetMax:
            raise FormatError(
                f"offset {header.lastOffset} where {self._lastOffsetMax} is the last possible"
            )
        checkCounts(header, self.position)
        if header.size > window.size:
            self._checkLarge(header)
            return header, None
        at = window.indexOf(self.position, header.size)
        checkCrc(window.data, at, header)
        if not header.isControl:
            return header, None
        return header, markerIn(window.data[at : at + header.size], header)

    def _checkLarge(self, header: BatchHeader) -> None:
        found = 0
        end = self.position + header.size
        for piece in self._window.pieces(self.position + CHECKED_POSITION, end):
            found = crc32c(piece, found)
        if found != header.crc:
            raise FormatError(f"checksum is {header.crc:08x}, the batch's is {found:08x}")
