"""
The 2011 format, magic 0 and 1, as a log sees it (L{pylogbroker.interfaces.IFormat}).

Offsets are bytes of the partition's lifetime stream, so that the next offset is this one plus the size of the entry, and an offset's
position in a segment is a subtraction. Nobody but this module may know that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from pylogbroker.errors import FormatError
from pylogbroker.interfaces import CheckLimits, Entry, IFile, IFileSystem, ValidatedBatches
from pylogbroker.records.messageset import (
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    SIZE_FIELD_SIZE,
    checkPlain,
    checkSet,
    readEntry,
)
from pylogbroker.records.zlibbackend import crc32

SCAN_WINDOW_SIZE = 1 << 20
HEADER_SIZES = {0: HEADER_SIZE_0, 1: HEADER_SIZE_1}
CHECKSUM_SIZE = 4
SHORTER = "the file is shorter than it was"


class ByteOffsetIndex:
    """Where offsets are in a segment: each is the number of a byte, so no file is needed."""

    __slots__ = ("_baseOffset",)

    def __init__(self, baseOffset: int) -> None:
        self._baseOffset = baseOffset

    def positionOf(self, offset: int) -> int:
        """The distance from the base offset."""
        return offset - self._baseOffset

    def search(self, file: IFile, offset: int) -> int:
        """The same: the file is not read."""
        return offset - self._baseOffset

    def findEnd(self, size: int) -> int:
        """The base offset and the size."""
        return self._baseOffset + size

    def add(self, offset: int, position: int) -> None:
        """Nothing to note."""

    def save(self) -> None:
        """Nothing to save."""

    def remove(self) -> None:
        """Nothing to remove."""


class Kafka07Format:
    """
    The 2011 format, provider of L{pylogbroker.interfaces.IRecordFormat}: messages of magic 0 and 1,
    in one log as in one set.
    """

    suffix = ".kafka"

    def validatePlain(self, sets: Sequence[bytes], payloadSizeMax: int) -> ValidatedBatches | None:
        """See L{pylogbroker.records.messageset.checkPlain}."""
        setCount, messageCount = checkPlain(sets, payloadSizeMax)
        if setCount < len(sets):
            return None
        size = sum(map(len, sets))
        return ValidatedBatches(sets, size, messageCount, size)

    def validate(self, data: bytes, limits: CheckLimits) -> ValidatedBatches:
        """See L{pylogbroker.records.messageset.checkSet}."""
        size, messageCount = checkSet(data, limits)
        buffers = (data[:size],) if size else ()
        return ValidatedBatches(buffers, size, messageCount, size)

    def stamp(
        self, batches: ValidatedBatches, baseOffset: int, epoch: int, timeMs: int
    ) -> Sequence[bytes]:
        """The sets as they are: they hold no offsets."""
        return batches.buffers

    def nextOffset(self, offset: int, buffers: Sequence[bytes]) -> int:
        """Offsets grow by what is written."""
        return offset + sum(map(len, buffers))

    def contiguousEnd(self, baseOffset: int, size: int) -> int:
        """The offset behind the last byte."""
        return baseOffset + size

    def openIndex(
        self, fileSystem: IFileSystem, path: str, baseOffset: int, size: int, rebuild: bool
    ) -> ByteOffsetIndex:
        """Arithmetic in place of an index. Does not block."""
        return ByteOffsetIndex(baseOffset)

    def scan(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> Scan:
        """See L{pylogbroker.interfaces.IRecordFormat.scan}."""
        return Scan(read, baseOffset, start, end)


class Scan:
    """
    A walk over a segment that ends, without raising, at the first entry that spec-0.7 log-storage §8 would cut off; gotcha 3 mended: an unknown
    magic byte and a magic-1 entry too short for its header end it, too. Wrappers are not opened.

    The file is read in windows of L{SCAN_WINDOW_SIZE}; of an entry that is larger the checksum is taken piece by piece, since a corrupt size field may
    claim a gigabyte.

    @ivar position: byte behind the last good entry.
    @ivar reason: why the walk stopped; L{None} when it ended exactly at C{end}, and until it has ended.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> None:
        self._read = read
        self._baseOffset = baseOffset
        self._end = end
        self._window = b""
        self._windowStart = start
        self.position = start
        self.reason: str | None = None

    def __iter__(self) -> Iterator[Entry]:
        while (size := self._step()) is not None:
            position = self.position - size
            yield Entry(
                position, size, self._baseOffset + position, self._baseOffset + self.position
            )

    def skipToEnd(self) -> int:
        """Walk to the stop. Returns the position behind the last good entry."""
        unpack, crc = struct.Struct(">iHI").unpack_from, crc32
        while self._step() is not None:
            window, end = self._window, len(self._window)
            at = self.position - self._windowStart
            while at + 10 <= end:
                size, head, checksum = unpack(window, at)
                behind = at + 4 + size
                if (
                    head != 0x0100
                    or size < 6
                    or behind > end
                    or crc(window[at + 10 : behind]) != checksum
                ):
                    break
                at = behind
            self.position = self._windowStart + at
        return self.position

    def _step(self) -> int | None:
        """Past one entry. Returns its size, or L{None} at the stop."""
        left = self._end - self.position
        if left <= 0:
            return None
        if left < SIZE_FIELD_SIZE:
            self.reason = f"{left} bytes are left, less than a size field"
            return None
        at = self._have(SIZE_FIELD_SIZE)
        if at is None:
            return None
        size = int.from_bytes(self._window[at : at + SIZE_FIELD_SIZE], "big", signed=True)
        if size < HEADER_SIZE_0:
            self.reason = f"size field is {size}"
            return None
        if size > left - SIZE_FIELD_SIZE:
            self.reason = f"size field is {size} and {left - SIZE_FIELD_SIZE} bytes follow"
            return None
        isGood = (
            self._isGood(size)
            if SIZE_FIELD_SIZE + size <= SCAN_WINDOW_SIZE
            else self._isGoodLarge(size)
        )
        if not isGood:
            return None
        self.position += SIZE_FIELD_SIZE + size
        return SIZE_FIELD_SIZE + size

    def _isGood(self, size: int) -> bool:
        """Whether the entry of so many bytes behind its size field is valid; it fits in a window."""
        at = self._have(SIZE_FIELD_SIZE + size)
        if at is None:
            return False
        try:
            readEntry(self._window, at, len(self._window), True)
        except FormatError as error:
            self.reason = error.reason
            return False
        return True

    def _isGoodLarge(self, size: int) -> bool:
        """The same for one that does not fit."""
        header = self._read(self.position, SIZE_FIELD_SIZE + HEADER_SIZE_1)
        magic = int.from_bytes(header[SIZE_FIELD_SIZE : SIZE_FIELD_SIZE + 1], "big")
        if magic not in HEADER_SIZES:
            self.reason = f"magic byte is {magic}"
            return False
        start = SIZE_FIELD_SIZE + HEADER_SIZES[magic]
        checksum, expected = 0, int.from_bytes(header[start - CHECKSUM_SIZE : start], "big")
        position, end = self.position + start, self.position + SIZE_FIELD_SIZE + size
        while position < end:
            piece = self._read(position, min(SCAN_WINDOW_SIZE, end - position))
            if not piece:
                self.reason = SHORTER
                return False
            checksum = crc32(piece, checksum)
            position += len(piece)
        if checksum != expected:
            self.reason = f"checksum is {expected:08x}, the payload's is {checksum:08x}"
            return False
        return True

    def _have(self, size: int) -> int | None:
        """See to it that the window has so many bytes from the position on. Returns where in the window; L{None} if the file no longer has them."""
        at = self.position - self._windowStart
        if at + size > len(self._window):
            self._window = self._read(
                self.position, min(max(size, SCAN_WINDOW_SIZE), self._end - self.position)
            )
            self._windowStart = self.position
            at = 0
            if size > len(self._window):
                self.reason = SHORTER
                return None
        return at
