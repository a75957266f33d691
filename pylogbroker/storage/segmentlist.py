"""
The segments of one partition, oldest first: an immutable snapshot that is replaced as a whole
(spec-0.7 log-storage §7). Offsets may have gaps between segments.

The holder of a L{SegmentsView} keeps a consistent view, whatever is rolled, deleted, compacted or
truncated afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
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
        """The index of the last segment that begins at or below an offset; -1: none does."""
        return bisect_right(self.bases, offset) - 1


class SegmentList:
    """
    The current snapshot.

    @ivar view: replaced as a whole.
    """

    __slots__ = ("view",)

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self.view = SegmentsView((), ())
        self.replace(0, 0, segments)

    def replace(
        self, start: int, stop: int, segments: Sequence[Segment] = ()
    ) -> tuple[Segment, ...]:
        """
        Put segments in the place of others: a roll puts one behind the last, retention removes the
        oldest, truncation the newest, compaction replaces some by fewer.

        @param start: index of the first to take out.
        @param stop: index behind the last to take out.
        @return: those taken out.
        @raise ValueError: the base offsets would not ascend.
        """
        old = self.view.segments
        new = (*old[:start], *segments, *old[stop:])
        bases = tuple(segment.baseOffset for segment in new)
        if list(bases) != sorted(set(bases)):
            raise ValueError(f"segments do not ascend: {bases}")
        self.view = SegmentsView(bases, new)
        return old[start:stop]
