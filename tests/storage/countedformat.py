"""
A second record format, which proves that storage and broker know formats through L{IRecordFormat}
only. Today's format replaces it.

Unlike 2011's, its offsets count messages, so a batch holds its base offset, which the log stamps;
offsets may have gaps; and a sparse index in a file beside each segment tells where offsets are.

A batch is a header of L{HEADER_SIZE} bytes and a payload: base offset (4 bytes, 0 until stamped),
size of the payload, count of messages (at least 1), checksum of size, count and payload (2 bytes
each). An entry of one message is as large as 2011's, so that tests share their sizes.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from pylogbroker.errors import InvalidChecksumError, InvalidMessageSizeError, MessageTooLargeError
from pylogbroker.interfaces import (
    CheckLimits,
    IFile,
    IFileSystem,
    ScannedEntry,
    ValidatedBatches,
)

HEADER = struct.Struct(">IHHH")
HEADER_SIZE = HEADER.size
INDEX_INTERVAL_SIZE = 40
"""Bytes of batches between two entries of an index."""

_OFFSET = struct.Struct(">I")
_INDEX_ENTRY = struct.Struct(">II")


def _checksum(count: int, payload: bytes) -> int:
    return zlib.crc32(payload, count * 65536 + len(payload)) & 0xFFFF


def encodeBatch(payload: bytes, count: int = 1, baseOffset: int = 0) -> bytes:
    """One batch of C{count} messages."""
    return HEADER.pack(baseOffset, len(payload), count, _checksum(count, payload)) + payload


def unstamped(data: bytes) -> bytes:
    """Batches as the producer sent them, even a cut one."""
    found = bytearray(data)
    position = 0
    while position < len(found):
        found[position : position + 4] = bytes(len(found[position : position + 4]))
        if position + HEADER_SIZE > len(found):
            break
        position += HEADER_SIZE + HEADER.unpack_from(found, position)[1]
    return bytes(found)


def _readBatch(data: bytes, position: int) -> tuple[int, int, int]:
    """(base offset, count, position behind) of the batch at a position."""
    if position + HEADER_SIZE > len(data):
        raise InvalidMessageSizeError("the header is cut", position)
    offset, size, count, checksum = HEADER.unpack_from(data, position)
    behind = position + HEADER_SIZE + size
    if behind > len(data) or count == 0:
        raise InvalidMessageSizeError(f"size {size}, count {count}", position)
    if _checksum(count, data[position + HEADER_SIZE : behind]) != checksum:
        raise InvalidChecksumError("checksum", position)
    return offset, count, behind


class CountedFormat:
    """
    The format, provider of L{pylogbroker.interfaces.IRecordFormat}.

    @ivar searchCount: how often an offset was searched in a file.
    """

    suffix = ".counted"
    isStamped = True

    def __init__(self) -> None:
        self.searchCount = 0

    def validatePlain(self, sets: Sequence[bytes], payloadSizeMax: int) -> ValidatedBatches | None:
        """Every set is validated alone."""
        return None

    def validate(self, data: bytes, limits: CheckLimits) -> ValidatedBatches:
        """Split a set into its batches, all of which must be whole."""
        buffers, position, messageCount = [], 0, 0
        while position < len(data):
            _, count, behind = _readBatch(data, position)
            if behind - position - HEADER_SIZE > limits.payloadSizeMax:
                raise MessageTooLargeError(f"{behind - position} bytes", position)
            buffers.append(data[position:behind])
            messageCount += count
            position = behind
        return ValidatedBatches(buffers, len(data), messageCount, messageCount)

    def stamp(
        self, batches: ValidatedBatches, baseOffset: int, epoch: int, timeMs: int
    ) -> Sequence[bytes]:
        """The batches with their base offsets."""
        stamped = []
        for buffer in batches.buffers:
            stamped.append(_OFFSET.pack(baseOffset) + buffer[_OFFSET.size :])
            baseOffset += HEADER.unpack_from(buffer)[2]
        return stamped

    def nextOffset(self, offset: int, buffers: Sequence[bytes]) -> int:
        """Behind the last whole batch."""
        data, position = b"".join(buffers), 0
        while position + HEADER_SIZE <= len(data):
            base, size, count, _ = HEADER.unpack_from(data, position)
            position += HEADER_SIZE + size
            if position <= len(data):
                offset = base + count
        return offset

    def contiguousEnd(self, baseOffset: int, size: int) -> None:
        """Gaps are allowed."""
        return None

    def openIndex(
        self, fileSystem: IFileSystem, path: str, baseOffset: int, size: int, rebuild: bool
    ) -> SparseIndex:
        """Read the index's file, or rebuild it from the segment."""
        index = SparseIndex(self, fileSystem, path, baseOffset)
        if rebuild or not index.load(size):
            index.rebuild(size)
        return index

    def scan(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> CountedScan:
        """Walk batches whose offsets ascend."""
        return CountedScan(read, baseOffset, start, end)


class CountedScan:
    """See L{pylogbroker.interfaces.ISegmentScan}."""

    def __init__(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> None:
        self._data = read(start, end - start)
        self._start = start
        self._nextOffset = baseOffset
        self.position = start
        self.reason: str | None = None

    def __iter__(self) -> Iterator[ScannedEntry]:
        position = self.position - self._start
        while position < len(self._data):
            try:
                offset, count, behind = _readBatch(self._data, position)
            except (InvalidMessageSizeError, InvalidChecksumError) as error:
                self.reason = error.reason
                return
            if offset < self._nextOffset:
                self.reason = f"offset {offset} below {self._nextOffset}"
                return
            self._nextOffset = offset + count
            self.position = self._start + behind
            yield ScannedEntry(self._start + position, behind - position, offset, self._nextOffset)
            position = behind

    def skipToEnd(self) -> int:
        for _ in self:
            pass
        return self.position


class SparseIndex:
    """
    Offsets and positions of some batches, at least L{INDEX_INTERVAL_SIZE} bytes apart; provider of
    L{pylogbroker.interfaces.ISegmentIndex}.
    """

    def __init__(
        self, form: CountedFormat, fileSystem: IFileSystem, path: str, baseOffset: int
    ) -> None:
        self._form = form
        self._fileSystem = fileSystem
        self._segmentPath = path
        self._path = path.removesuffix(form.suffix) + ".index"
        self._baseOffset = baseOffset
        self._offsets: list[int] = []
        self._positions: list[int] = []

    def _floor(self, offset: int) -> tuple[int, int]:
        """The last entry at or below an offset; (base offset, 0) before the first."""
        found = bisect_right(self._offsets, offset) - 1
        return (self._offsets[found], self._positions[found]) if found >= 0 else (-1, 0)

    def positionOf(self, offset: int) -> int | None:
        known, position = self._floor(offset)
        return position if known == offset else None

    def search(self, file: IFile, offset: int) -> int:
        self._form.searchCount += 1
        size = file.size()
        scan = self._form.scan(file.readAt, 0, self._floor(offset)[1], size)
        for each in scan:
            if each.nextOffset > offset:
                return each.position
        return scan.position

    def findEnd(self, size: int) -> int:
        end = self._baseOffset
        for entry in self._scan(self._positions[-1] if self._positions else 0, size):
            end = entry.nextOffset
        return end

    def _scan(self, start: int, size: int) -> list[ScannedEntry]:
        file = self._fileSystem.open(self._segmentPath, write=False)
        try:
            return list(self._form.scan(file.readAt, self._baseOffset, start, size))
        finally:
            file.close()

    largestTimestampMs = -1
    isFull = False

    def searchTime(self, file: IFile, timestampMs: int, startOffset: int) -> None:
        """Nothing has a timestamp."""

    def searchLargestTime(self, file: IFile) -> None:
        """Nothing has a timestamp."""

    def add(self, batches: ValidatedBatches, offset: int, position: int, timeMs: int) -> None:
        self._note(offset, position)

    def _note(self, offset: int, position: int) -> None:
        if not self._positions or position - self._positions[-1] >= INDEX_INTERVAL_SIZE:
            self._positions.append(position)
            self._offsets.append(offset)

    def rebuild(self, size: int) -> None:
        """From the batches in the segment's file."""
        self._offsets, self._positions = [], []
        for entry in self._scan(0, size) if size else ():
            self._note(entry.offset, entry.position)

    def load(self, size: int) -> bool:
        """From the index's file. Whether there was one that fits."""
        if self._fileSystem.status(self._path) is None:
            return False
        file = self._fileSystem.open(self._path, write=False)
        try:
            data = file.readAt(0, file.size())
        finally:
            file.close()
        entries = list(_INDEX_ENTRY.iter_unpack(data)) if len(data) % _INDEX_ENTRY.size == 0 else []
        self._offsets = [offset for offset, _ in entries]
        self._positions = [position for _, position in entries]
        isWhole = self._positions == sorted(set(self._positions)) and self._positions[:1] == [0]
        return isWhole and self._positions[-1] < size

    def save(self) -> None:
        self.remove()
        if not self._offsets:
            return
        file = self._fileSystem.open(self._path, create=True)
        try:
            entries = zip(self._offsets, self._positions, strict=True)
            file.writeAt(0, [b"".join(_INDEX_ENTRY.pack(*entry) for entry in entries)])
            file.sync()
        finally:
            file.close()

    def remove(self) -> None:
        if self._fileSystem.status(self._path) is not None:
            self._fileSystem.remove(self._path)
