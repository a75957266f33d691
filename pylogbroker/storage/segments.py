"""
Segments: the files of one partition, the list of them (spec-0.7 log-storage §1, §7), and the
retention policies that choose which to delete.

In a segment C{size ≤ writtenSize}; they differ only in a partition's last one. Pending bytes belong
to the log, not to the segment.

The list is an immutable snapshot that is replaced as a whole: the holder of a L{SegmentList} keeps
a consistent view after rolls, deletions, compactions and truncations. Offsets may have gaps between
segments.

A retention policy gets the time and one partition's segments, oldest first. It returns how many of
the oldest may be deleted. Only whole segments go, from the old end, up to the first that does not
qualify (spec-0.7 log-storage §10). Sizes are those of flushed bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile

from pylogbroker.interfaces import ISegmentIndex
from pylogbroker.storage.files import SegmentFile


class Segment:
    """
    @ivar baseOffset: no offset in the segment is below it; the file is named after it.
    @ivar size: flushed bytes.
    @ivar writtenSize: bytes in the file.
    @ivar modifiedMs: time of the last append, milliseconds since the epoch.
    @ivar index: where offsets are in the file.
    """

    __slots__ = ("baseOffset", "file", "index", "modifiedMs", "size", "writtenSize")

    def __init__(
        self, baseOffset: int, file: SegmentFile, size: int, modifiedMs: int, index: ISegmentIndex
    ) -> None:
        self.baseOffset = baseOffset
        self.file = file
        self.size = self.writtenSize = size
        self.modifiedMs = modifiedMs
        self.index = index

    @property
    def path(self) -> str:
        return self.file.path

    @property
    def timestampMs(self) -> int:
        """Of its newest record; without timestamps, of the last append."""
        largest = self.index.largestTimestampMs
        return largest if largest >= 0 else self.modifiedMs

    def __repr__(self) -> str:
        return f"<Segment {self.baseOffset} {self.size}/{self.writtenSize} bytes>"


class SegmentList:
    """
    The segments of a partition, ascending; immutable.

    @ivar bases: their base offsets.
    """

    __slots__ = ("bases", "segments")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        """@raise ValueError: the base offsets do not ascend."""
        self.segments = tuple(segments)
        self.bases = tuple(segment.baseOffset for segment in segments)
        if list(self.bases) != sorted(set(self.bases)):
            raise ValueError(f"segments do not ascend: {self.bases}")

    def indexOf(self, offset: int) -> int:
        """The index of the last segment that begins at or below an offset, or -1."""
        return bisect_right(self.bases, offset) - 1

    def replaced(self, start: int, stop: int, segments: Sequence[Segment] = ()) -> SegmentList:
        """
        A list in which others take the place of a run of segments: behind the last for a roll, the
        oldest for retention, the newest for truncation, any for compaction.

        @raise ValueError: the base offsets would not ascend.
        """
        return SegmentList((*self.segments[:start], *segments, *self.segments[stop:]))


# -- retention

RetentionPolicy = Callable[[Sequence[Segment], int], int]
"""C{policy(segments, nowMs)}: how many of the oldest to delete."""


def byAge(ageMsMax: int) -> RetentionPolicy:
    """Delete segments whose last append is more than C{ageMsMax} ago (C{log.retention.hours})."""

    def decide(segments: Sequence[Segment], nowMs: int) -> int:
        expired = takewhile(lambda segment: nowMs - segment.modifiedMs > ageMsMax, segments)
        return len(list(expired))

    return decide


def byRecordTime(ageMsMax: int) -> RetentionPolicy:
    """
    Delete segments whose largest timestamp is more than C{ageMsMax} ago (C{retention.ms}), or
    whose last append, if no record has a timestamp; negative: delete nothing.
    """

    def decide(segments: Sequence[Segment], nowMs: int) -> int:
        if ageMsMax < 0:
            return 0
        return len(
            list(takewhile(lambda segment: nowMs - segment.timestampMs > ageMsMax, segments))
        )

    return decide


def bySize(sizeMin: int) -> RetentionPolicy:
    """
    Delete while at least C{sizeMin} bytes remain (C{log.retention.size}); negative: delete nothing.
    """

    def decide(segments: Sequence[Segment], nowMs: int) -> int:
        if sizeMin < 0:
            return 0
        surplus = sum(segment.size for segment in segments) - sizeMin
        count = 0
        # A log below the limit has a negative surplus, so that even an empty segment stays.
        for segment in segments:
            surplus -= segment.size
            if surplus < 0:
                break
            count += 1
        return count

    return decide


def both(first: RetentionPolicy, second: RetentionPolicy) -> RetentionPolicy:
    """Apply C{second} to what C{first} keeps. 0.7.2: age first, then size."""

    def decide(segments: Sequence[Segment], nowMs: int) -> int:
        count = first(segments, nowMs)
        return count + second(segments[count:], nowMs)

    return decide
