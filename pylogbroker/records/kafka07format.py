"""
The 2011 format, magic 0 and 1, as the log sees it (L{pylogbroker.interfaces.IRecordFormat}).

An offset is the number of a byte in the partition's stream. Only this module may know that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from pylogbroker.errors import DecompressionLimitError, FormatError, MessageTooLargeError
from pylogbroker.interfaces import CheckLimits, IFile, IFileSystem, ScannedEntry, ValidatedBatches
from pylogbroker.records.compression import NONE, crc32
from pylogbroker.records.messageset import (
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    PAYLOAD_SIZE_MAX,
    PLAIN,
    PLAIN_HEAD,
    SIZE_FIELD_SIZE,
    DecompressionBudget,
    innerMessages,
    readEntry,
)
from pylogbroker.records.scanwindow import ScanWindow
from pylogbroker.speedups import chosen
from pylogbroker.types import Message

HEADER_SIZES = {0: HEADER_SIZE_0, 1: HEADER_SIZE_1}
CHECKSUM_SIZE = 4
_JOINED_SIZE_MAX = 1 << 10
"""Sets of fewer bytes on average are joined: to write each as a buffer of its own costs more."""


class ByteOffsetIndex:
    """The offsets in a segment: each is a byte's number, so no file is needed."""

    __slots__ = ("_baseOffset",)

    def __init__(self, baseOffset: int) -> None:
        self._baseOffset = baseOffset

    def positionOf(self, offset: int) -> int:
        return offset - self._baseOffset

    def search(self, file: IFile, offset: int) -> int:
        return offset - self._baseOffset

    def findEnd(self, size: int) -> int:
        return self._baseOffset + size

    isFull = False

    @property
    def largestTimestampMs(self) -> int:
        """The format has no timestamps."""
        return -1

    def searchTime(self, file: IFile, timestampMs: int, startOffset: int) -> None:
        """Nothing has a timestamp."""

    def searchLargestTime(self, file: IFile) -> None:
        """Nothing has a timestamp."""

    def add(self, batches: ValidatedBatches, offset: int, position: int, timeMs: int) -> None:
        """Nothing to note."""

    def truncate(self, size: int, endOffset: int) -> None:
        """Nothing to truncate."""

    def save(self) -> None:
        """Nothing to save."""

    def remove(self) -> None:
        """Nothing to remove."""


class Kafka07Format:
    """
    The 2011 format (L{pylogbroker.interfaces.IRecordFormat}): magic 0 and 1, mixed in a log and in
    a set.
    """

    suffix = ".kafka"
    isStamped = False

    def validatePlain(self, sets: Sequence[bytes], payloadSizeMax: int) -> ValidatedBatches | None:
        setCount, messageCount = validatePlain(sets, payloadSizeMax)
        if setCount < len(sets):
            return None
        size = sum(map(len, sets))
        if setCount > 1 and size < setCount * _JOINED_SIZE_MAX:
            sets = (b"".join(sets),)
        # Half the cost of calling the class.
        return tuple.__new__(
            ValidatedBatches, (sets, size, messageCount, size, -1, (), None, False)
        )

    def validate(self, data: bytes, limits: CheckLimits) -> ValidatedBatches:
        size, messageCount = validateSet(data, limits)
        buffers = (data[:size],) if size else ()
        return ValidatedBatches(buffers, size, messageCount, size)

    def stamp(
        self, batches: ValidatedBatches, baseOffset: int, epoch: int, timeMs: int
    ) -> Sequence[bytes]:
        """The sets unchanged: they hold no offsets."""
        return batches.buffers

    def nextOffset(self, offset: int, buffers: Sequence[bytes]) -> int:
        return offset + sum(map(len, buffers))

    def contiguousEnd(self, baseOffset: int, size: int) -> int:
        return baseOffset + size

    def openIndex(
        self, fileSystem: IFileSystem, path: str, baseOffset: int, size: int, rebuild: bool
    ) -> ByteOffsetIndex:
        """Arithmetic in place of an index. Does not block."""
        return ByteOffsetIndex(baseOffset)

    def scan(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> SegmentScan:
        return SegmentScan(read, baseOffset, start, end)


class SegmentScan:
    """
    A walk over a segment, up to the first entry that spec-0.7 log-storage §8 would cut off. Unlike
    0.7.2's (gotcha 3), it also ends at an unknown magic byte and at a magic-1 entry too short for
    its header. Compressed entries are not opened.

    The file is read by a L{ScanWindow}. The checksum of an entry larger than it is computed in
    pieces.

    @ivar position: byte behind the last good entry.
    @ivar reason: why the walk stopped; L{None} at C{end}, and during the walk.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> None:
        self._baseOffset = baseOffset
        self._end = end
        self._window = ScanWindow(read, start, end)
        self.position = start
        self.reason: str | None = None

    def __iter__(self) -> Iterator[ScannedEntry]:
        while (size := self._step()) is not None:
            position = self.position - size
            yield ScannedEntry(
                position, size, self._baseOffset + position, self._baseOffset + self.position
            )

    def skipToEnd(self) -> int:
        unpack, crc = PLAIN.unpack_from, crc32
        while self._step() is not None:
            window, end = self._window.data, len(self._window.data)
            at = self.position - self._window.start
            while at + 10 <= end:
                size, head, checksum = unpack(window, at)
                behind = at + 4 + size
                if (
                    head != PLAIN_HEAD
                    or size < 6
                    or behind > end
                    or crc(window[at + 10 : behind]) != checksum
                ):
                    break
                at = behind
            self.position = self._window.start + at
        return self.position

    def _step(self) -> int | None:
        left = self._end - self.position
        if left <= 0:
            return None
        try:
            size = self._check(left)
        except FormatError as error:
            self.reason = error.reason
            return None
        self.position += size
        return size

    def _check(self, left: int) -> int:
        """Bytes of the next entry. L{FormatError}: it is not whole and valid."""
        if left < SIZE_FIELD_SIZE:
            raise FormatError(f"{left} bytes are left, less than a size field")
        window = self._window
        at = window.indexOf(self.position, SIZE_FIELD_SIZE)
        size = int.from_bytes(window.data[at : at + SIZE_FIELD_SIZE], "big", signed=True)
        left -= SIZE_FIELD_SIZE
        if size < HEADER_SIZE_0:
            raise FormatError(f"size field is {size}")
        if size > left:
            raise FormatError(f"size field is {size} and {left} bytes follow")
        size += SIZE_FIELD_SIZE
        if size <= window.size:
            at = window.indexOf(self.position, size)
            readEntry(window.data, at, len(window.data), True)
        else:
            self._checkLarge(size)
        return size

    def _checkLarge(self, size: int) -> None:
        header = self._window.read(self.position, SIZE_FIELD_SIZE + HEADER_SIZE_1)
        magic = int.from_bytes(header[SIZE_FIELD_SIZE : SIZE_FIELD_SIZE + 1], "big")
        if magic not in HEADER_SIZES:
            raise FormatError(f"magic byte is {magic}")
        start = SIZE_FIELD_SIZE + HEADER_SIZES[magic]
        checksum, expected = 0, int.from_bytes(header[start - CHECKSUM_SIZE : start], "big")
        for piece in self._window.pieces(self.position + start, self.position + size):
            checksum = crc32(piece, checksum)
        if checksum != expected:
            raise FormatError(f"checksum is {expected:08x}, the payload's is {checksum:08x}")


# -- validation


def pureValidatePlain(sets: Sequence[bytes], payloadSizeMax: int) -> tuple[int, int]:
    """
    The hot loop of producing: how far a run of sets is plain, whole and valid. An empty set ends
    it.

    @return: sets from the first on, messages in them.
    """
    unpack, crc = PLAIN.unpack_from, crc32
    sizeMax = payloadSizeMax + HEADER_SIZE_1
    done = count = 0
    try:
        for data in sets:
            end = len(data)
            position = found = 0
            while True:
                size, head, checksum = unpack(data, position)
                behind = position + 4 + size
                if (
                    head != PLAIN_HEAD
                    or not 6 <= size <= sizeMax
                    or behind > end
                    or crc(data[position + 10 : behind]) != checksum
                ):
                    return done, count
                found += 1
                if behind == end:
                    break
                position = behind
            done += 1
            count += found
    except struct.error:  # fewer bytes than a header
        pass
    return done, count


validatePlain = chosen("validatePlain", pureValidatePlain)


def validateSet(data: bytes, limits: CheckLimits) -> tuple[int, int]:
    """
    Validate one set as 0.7.2's broker does (spec-0.7 wire-protocol §9, log-storage §3): all
    top-level entries, then the insides of wrappers.

    @return: bytes of whole entries, messages.
    @raise FormatError: the first fault.
    """
    position, end, count = 0, len(data), 0
    wrappers: list[tuple[Message, int]] = []
    while found := readEntry(data, position, end, position == 0):
        message, behind = found
        if len(message.payload) > limits.payloadSizeMax:
            raise MessageTooLargeError(
                f"payload of {len(message.payload)} bytes, {limits.payloadSizeMax} are allowed",
                position,
            )
        if message.codec == NONE:
            count += 1
        else:
            wrappers.append((message, position))
        position = behind
    budget = DecompressionBudget(limits)
    for message, at in wrappers:
        if len(message.payload) > limits.compressedSizeMax:
            raise DecompressionLimitError(
                f"compressed payload of {len(message.payload)} bytes,"
                f" {limits.compressedSizeMax} are to be opened",
                at,
            )
        count += _countInside(message, budget, at)
    return position, count


def _countInside(message: Message, budget: DecompressionBudget, position: int) -> int:
    before = budget.size
    inner = budget.open(message, 0, position)
    done, count = validatePlain((inner,), PAYLOAD_SIZE_MAX)
    if done:
        return count
    del inner  # innerMessages decompresses it again
    budget.size = before
    return sum(1 for _ in innerMessages(message, budget, 0, position))
