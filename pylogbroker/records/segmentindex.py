"""
The indexes of a segment of record batches, in Apache's files. It is a module of its own, since
C{kafkaformat} is about batches, and this about where they are.

C{.index} has entries of 8 bytes: the last offset of a batch, less the segment's base offset, and
the byte where the batch begins. C{.timeindex} has entries of 12 bytes: a timestamp, and the last
offset (less the base offset) of the batch that first had it, such that all records up to it are not
later. Both ascend. An entry is made for a batch that begins more than C{interval} bytes behind the
last noted one; the last entry of C{.timeindex}, made when the file is saved, has the largest
timestamp of the segment.

What must be true: an index never leads behind a batch that was looked for. So entries are made in
the order of appends, a file with impossible ends is rebuilt, and an entry that does not fit the
segment's bytes is not used: the search then begins at the segment's first byte.

B{Memory.} Entries of earlier runs stay in the files; entries made since are kept in arrays until
C{save} writes them, at a roll or at the end. The positions of the last L{RECENT_COUNT} batches are
kept as well, so that readers near the end of the log need no file.

The last segment's files are out of date while the log is open. After a crash the log recovers that
segment and has its indexes rebuilt; those of the others were saved and synced before the segment
behind them existed.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from pylogbroker.errors import CorruptLogError, FormatError, StorageError
from pylogbroker.interfaces import (
    BatchHeader,
    IFile,
    IFileSystem,
    TimestampOffset,
    ValidatedBatches,
)
from pylogbroker.records.recordbatch import BATCH_OVERHEAD, iterateRecords, readHeader

RECENT_COUNT = 1024
REBUILD_WINDOW_SIZE = 256 << 10
SEARCH_WINDOW_SIZE = 8 << 10
RELATIVE_OFFSET_MAX = (1 << 31) - 1 - (1 << 24)
"""Behind it a segment is full: offsets are four bytes, and a batch takes fewer than 2^24."""

_POSITION_MAX = 1 << 31
_OFFSET_MAX = (1 << 31) - 1
_SAVED_COUNT = 4096
_SEARCHED_COUNT = 256


class IndexSettings(NamedTuple):
    """
    @ivar intervalSize: bytes of batches between two entries (C{index.interval.bytes}).
    @ivar sizeMax: bytes of an index (C{segment.index.bytes}).
    """

    intervalSize: int = 4096
    sizeMax: int = 10 << 20


DEFAULT_INDEX_SETTINGS = IndexSettings()


class _Table:
    """
    The entries of one index: those in the file, and those made since. Keys and values ascend.

    C{file} and C{made} are replaced together, as one tuple, when they are saved: a search on
    another thread takes it once.
    """

    def __init__(
        self, fileSystem: IFileSystem, path: str, entry: struct.Struct, keyCode: str
    ) -> None:
        self.path = path
        self._fileSystem = fileSystem
        self._entry = entry
        self._keyCode = keyCode
        self.clear()

    def clear(self) -> None:
        """Forget the file's entries; C{save} overwrites them."""
        self.state: tuple[int, array[int], array[int]] = (0, array(self._keyCode), array("I"))
        self._isSaved = False
        self.last: tuple[int, int] | None = None

    def __len__(self) -> int:
        fileCount, keys, _ = self.state
        return fileCount + len(keys)

    def load(self) -> bool:
        """Whether there is a file of whole entries that may be right."""
        self.clear()
        status = self._fileSystem.status(self.path)
        if status is None or status.size % self._entry.size:
            return False
        fileCount = status.size // self._entry.size
        self.state = (fileCount, *self.state[1:])
        if fileCount:
            with closing(self._fileSystem.open(self.path, write=False)) as file:
                first, self.last = self._read(file, 0, 1)[0], self._read(file, fileCount - 1, 1)[0]
            self._isSaved = first <= self.last and first[1] <= self.last[1]
            return self._isSaved
        self._isSaved = True
        return True

    def add(self, key: int, value: int) -> None:
        _, keys, values = self.state
        values.append(value)
        keys.append(key)  # behind the value: a search looks at keys first
        self.last = (key, value)
        self._isSaved = False

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is not above this one. Blocks."""
        fileCount, keys, values = self.state
        found = bisect_right(keys, key) - 1
        if found >= 0:
            return keys[found], values[found]
        return self._floorInFile(fileCount, key) if fileCount else None

    def _floorInFile(self, count: int, key: int) -> tuple[int, int] | None:
        low, high = 0, count
        with closing(self._fileSystem.open(self.path, write=False)) as file:
            while high - low > _SEARCHED_COUNT:
                middle = (low + high) // 2
                if self._read(file, middle, 1)[0][0] <= key:
                    low = middle
                else:
                    high = middle
            entries = self._read(file, low, high - low)
        found = bisect_right([each[0] for each in entries], key) - 1
        return entries[found] if found >= 0 else None

    def _read(self, file: IFile, index: int, count: int) -> list[tuple[int, int]]:
        size = self._entry.size
        data = file.readAt(index * size, count * size)
        if len(data) != count * size:
            raise CorruptLogError(self.path, "read", "it is shorter than it was")
        return list(self._entry.iter_unpack(data))

    def save(self) -> None:
        """Write the entries made since, and sync the file. Blocks."""
        if self._isSaved:
            return
        fileCount, keys, values = self.state
        isThere = self._fileSystem.status(self.path) is not None
        with closing(self._fileSystem.open(self.path, create=not isThere)) as file:
            position = fileCount * self._entry.size
            file.truncate(position)
            for start in range(0, len(keys), _SAVED_COUNT):
                pairs = zip(
                    keys[start : start + _SAVED_COUNT],
                    values[start : start + _SAVED_COUNT],
                    strict=True,
                )
                position = _writeAll(file, position, b"".join(map(self._pack, pairs)))
            file.sync()
        self.state = (fileCount + len(keys), array(self._keyCode), array("I"))
        self._isSaved = True

    def truncate(self, field: int, end: int) -> None:
        """
        Drop the entries of the file whose key (0) or value (1) is not below C{end}. Nothing may
        have been added since C{load}; C{save} cuts the file. Blocks.
        """
        low, high = 0, self.state[0]
        if high:
            with closing(self._fileSystem.open(self.path, write=False)) as file:
                while low < high:
                    middle = (low + high) // 2
                    if self._read(file, middle, 1)[0][field] < end:
                        low = middle + 1
                    else:
                        high = middle
                self.last = self._read(file, low - 1, 1)[0] if low else None
        if low < self.state[0]:
            self.state = (low, *self.state[1:])
            self._isSaved = False

    def _pack(self, pair: tuple[int, int]) -> bytes:
        return self._entry.pack(*pair)

    def remove(self) -> None:
        if self._fileSystem.status(self.path) is not None:
            self._fileSystem.remove(self.path)


def _writeAll(file: IFile, position: int, data: bytes) -> int:
    while data:
        size = file.writeAt(position, [data])
        position, data = position + size, data[size:]
    return position


def walkHeaders(
    read: Callable[[int, int], bytes], start: int, end: int, windowSize: int
) -> Iterator[tuple[int, BatchHeader]]:
    """
    The headers of batches, and where they are, up to the first that is not whole. Checksums are not
    computed.

    @param read: C{read(position, size)} gives bytes, fewer at the end of the file.
    """
    window, windowStart, position = b"", start, start
    while position + BATCH_OVERHEAD <= end:
        at = position - windowStart
        if at + BATCH_OVERHEAD > len(window):
            at, windowStart = 0, position
            window = read(position, min(windowSize, end - position))
        try:
            header = readHeader(window, at)
        except FormatError:
            return
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def _floor(table: _Table, key: int) -> tuple[int, int] | None:
    """
    L{_Table.floor}. Compaction replaces the files under a search on another thread; without an
    entry the search begins at the segment's first byte.
    """
    try:
        return table.floor(key)
    except StorageError:
        return None


class SegmentIndex:
    """
    Offsets and times in a segment (L{pylogbroker.interfaces.ISegmentIndex}); the module states the
    rules.

    @ivar largestTimestampMs: of the segment's records; -1: none has a timestamp.
    @ivar isFull: whether the segment must roll before the next append.
    """

    def __init__(
        self, fileSystem: IFileSystem, path: str, baseOffset: int, settings: IndexSettings
    ) -> None:
        """@param path: of the segment's file."""
        stem = path.rpartition(".")[0]
        self._fileSystem = fileSystem
        self._path = path
        self._baseOffset = baseOffset
        self._settings = settings
        self._countMax = settings.sizeMax // 8
        self._offsets = _Table(fileSystem, stem + ".index", struct.Struct(">II"), "I")
        self._times = _Table(fileSystem, stem + ".timeindex", struct.Struct(">qI"), "q")
        self._begin()

    def _begin(self) -> None:
        self._offsets.clear()
        self._times.clear()
        self.isFull = False
        self.largestTimestampMs = -1
        self._largestOffset = self._baseOffset
        self._sizeSinceEntry = 0
        self._walkedSize: int | None = 0  # None: the files were read instead
        self._forgetRecent()

    def _forgetRecent(self) -> None:
        # The last offsets of recent batches and where these begin. The first pair stands for
        # everything before.
        self._recent = (array("q", [self._baseOffset - 1]), array("q", [0]))

    # -- opening

    def open(self, size: int, rebuild: bool) -> None:
        """
        Read the ends of the files, or rebuild them. Blocks.

        @param size: bytes in the segment.
        """
        if rebuild:
            self._rebuild(size)
        elif size and not self._load(size):
            self._rebuild(size)
            self.save()
            self._forgetRecent()
            self._walkedSize = None

    def _load(self, size: int) -> bool:
        if not (self._offsets.load() and self._times.load()):
            return False
        self._walkedSize = None
        if self._times.last is not None:
            self.largestTimestampMs, relative = self._times.last
            self._largestOffset = self._baseOffset + relative
        entry = self._offsets.last
        if entry is None:
            return True
        if entry[1] >= size:
            return False
        with closing(self._fileSystem.open(self._path, write=False)) as file:
            return self._isEntry(file, size, entry)

    def _isEntry(self, file: IFile, size: int, entry: tuple[int, int]) -> bool:
        """Whether a batch with the entry's last offset begins at its position."""
        relative, position = entry
        for _, header in walkHeaders(file.readAt, position, size, BATCH_OVERHEAD):
            return header.lastOffset == self._baseOffset + relative
        return False

    def _rebuild(self, size: int) -> None:
        self._begin()
        if size:
            self._walkedSize = self._walk(0, size)

    def _walk(self, start: int, size: int) -> int:
        """Note the batches of the file. The byte behind the last whole one."""
        with closing(self._fileSystem.open(self._path, write=False)) as file:
            for position, header in walkHeaders(file.readAt, start, size, REBUILD_WINDOW_SIZE):
                last = self._recent[0][-1]
                if not last < header.lastOffset <= self._baseOffset + _OFFSET_MAX:
                    break
                if position and len(self._recent[0]) == 1:
                    self._recent[0][0] = header.baseOffset - 1
                self._note(header.lastOffset, position, header.size, header.maxTimestampMs)
                start = position + header.size
        return start

    def findEnd(self, size: int) -> int:
        """
        The offset behind the last of the segment's C{size} bytes. Reads from the last entry on.
        Blocks.

        @raise CorruptLogError: the segment does not end with a whole batch.
        """
        if self._walkedSize is None:
            entry = self._offsets.last
            self._walkedSize = self._walk(0 if entry is None else entry[1], size)
        if self._walkedSize != size:
            raise CorruptLogError(
                self._path, "read", f"there is no whole batch at byte {self._walkedSize} of {size}"
            )
        return self._recent[0][-1] + 1

    def truncate(self, size: int, endOffset: int) -> None:
        """
        See L{pylogbroker.interfaces.ISegmentIndex}. Reads what is behind the last entry that is
        left.
        """
        self._offsets.truncate(1, size)
        self._times.truncate(1, endOffset - self._baseOffset)
        self.largestTimestampMs, self._largestOffset = -1, self._baseOffset
        if self._times.last is not None:
            self.largestTimestampMs, relative = self._times.last
            self._largestOffset = self._baseOffset + relative
        self._sizeSinceEntry = 0
        self._walkedSize = None
        self._forgetRecent()
        self.findEnd(size)
        self.save()

    # -- appending

    def add(self, batches: ValidatedBatches, offset: int, position: int, timeMs: int) -> None:
        """Note appended batches."""
        for header in batches.headers:
            last = offset + header.lastOffsetDelta
            self._note(
                last,
                position,
                header.size,
                timeMs if header.isLogAppendTime else header.maxTimestampMs,
            )
            offset = last + 1
            position += header.size

    def _note(self, last: int, position: int, size: int, maxTimestampMs: int) -> None:
        if maxTimestampMs > self.largestTimestampMs:
            self.largestTimestampMs = maxTimestampMs
            self._largestOffset = last
        if self._sizeSinceEntry > self._settings.intervalSize:
            self._offsets.add(last - self._baseOffset, position)
            self._noteTime()
            self._sizeSinceEntry = 0
            self.isFull = len(self._offsets) >= self._countMax
        self._sizeSinceEntry += size
        if last - self._baseOffset > RELATIVE_OFFSET_MAX or position > _POSITION_MAX:
            self.isFull = True
        lasts, positions = self._recent
        if len(lasts) > 2 * RECENT_COUNT:
            lasts, positions = lasts[-RECENT_COUNT:], positions[-RECENT_COUNT:]
            self._recent = (lasts, positions)
        lasts.append(last)
        positions.append(position)

    def _noteTime(self) -> None:
        known = self._times.last
        if self.largestTimestampMs > (-1 if known is None else known[0]):
            self._times.add(self.largestTimestampMs, self._largestOffset - self._baseOffset)

    # -- looking up

    def positionOf(self, offset: int) -> int | None:
        if offset <= self._baseOffset:
            return 0
        lasts, positions = self._recent
        found = bisect_left(lasts, offset)
        return positions[found] if 0 < found < len(lasts) else None

    def search(self, file: IFile, offset: int) -> int:
        """Blocks; C{add} may run at the same time."""
        size = behind = file.size()
        for position, header in self._walkFrom(file, offset, size):
            if header.lastOffset >= offset:
                return position
            behind = position + header.size
        return behind

    def _walkFrom(self, file: IFile, offset: int, size: int) -> Iterator[tuple[int, BatchHeader]]:
        """The headers from the index's entry for an offset on."""
        entry = _floor(self._offsets, max(offset - self._baseOffset, 0))
        start = entry[1] if entry is not None and self._isEntry(file, size, entry) else 0
        return walkHeaders(file.readAt, start, size, SEARCH_WINDOW_SIZE)

    def searchTime(self, file: IFile, timestampMs: int, startOffset: int) -> TimestampOffset | None:
        """Blocks, as C{search}. Opens one batch."""
        if timestampMs > self.largestTimestampMs:
            return None
        entry = _floor(self._times, timestampMs)
        offset = max(startOffset, self._baseOffset + (0 if entry is None else entry[1]))
        for position, header in self._walkFrom(file, offset, file.size()):
            if header.maxTimestampMs >= timestampMs and header.lastOffset >= startOffset:
                data = file.readAt(position, header.size)
                for record in iterateRecords(data, 0, header):
                    if record.timestampMs >= timestampMs and record.offset >= startOffset:
                        return TimestampOffset(
                            record.timestampMs, record.offset, header.leaderEpoch
                        )
        return None

    def searchLargestTime(self, file: IFile) -> TimestampOffset | None:
        """Blocks, as C{search}. Opens one batch."""
        if self.largestTimestampMs < 0:
            return None
        return self.searchTime(file, self.largestTimestampMs, self._baseOffset)

    # -- the files

    def save(self) -> None:
        """Write and sync both files, as far as they have changed; none for no batches. Blocks."""
        if self._walkedSize == 0 and len(self._recent[0]) == 1:
            self.remove()
            return
        self._noteTime()
        self._offsets.save()
        self._times.save()

    def remove(self) -> None:
        """Remove both files. Blocks."""
        self._offsets.remove()
        self._times.remove()
