"""
The segments of one partition, oldest first: a list that is replaced, never changed (spec-0.7 log-storage §7).

Whoever took a L{SegmentsView} keeps a consistent picture of the partition, whatever is rolled or deleted afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from pylogbroker.storage.segment import Segment


class SegmentsView(NamedTuple):
    """
    A snapshot.

    @ivar bases: the base offsets, ascending.
    @ivar segments: the segments, in the same order.
    """

    bases: tuple[int, ...]
    segments: tuple[Segment, ...]

    def indexOf(self, offset: int) -> int:
        """The index of the segment that an offset falls in, if it is not beyond the end of the last; -1: it is below the first, or there is none."""
        return bisect_right(self.bases, offset) - 1


class SegmentList:
    """
    The current snapshot.

    @ivar view: replaced as a whole.
    """

    __slots__ = ("view",)

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self.view = SegmentsView((), ())
        self._set(tuple(segments))

    def _set(self, segments: tuple[Segment, ...]) -> None:
        self.view = SegmentsView(tuple(segment.baseOffset for segment in segments), segments)

    def append(self, *segments: Segment) -> None:
        """Add new ones at the end."""
        self._set(self.view.segments + segments)

    def dropOldest(self, count: int) -> tuple[Segment, ...]:
        """
        Take the oldest out.

        @param count: how many; more than there are: all.
        @return: those taken out.
        """
        segments = self.view.segments
        self._set(segments[count:])
        return segments[:count]
