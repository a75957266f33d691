"""
Segments: the files of one partition, and the list of them (spec-0.7 log-storage §1, §7).

In a segment C{size ≤ writtenSize}; they differ only in a partition's last one. Pending bytes belong
to the log, not to the segment.

The list is an immutable snapshot that is replaced as a whole: the holder of a L{SegmentsView} keeps
a consistent view after rolls, deletions, compactions and truncations. Offsets may have gaps between
segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

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

    def __repr__(self) -> str:
        return f"<Segment {self.baseOffset} {self.size}/{self.writtenSize} bytes>"


class SegmentsView(NamedTuple):
    """
    A snapshot of a partition's segments.

    @ivar bases: the base offsets, ascending.
    """

    bases: tuple[int, ...]
    segments: tuple[Segment, ...]

    def indexOf(self, offset: int) -> int:
        """The index of the last segment that begins at or below an offset, or -1."""
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
        Replace a run of segments: behind the last for a roll, the oldest for retention, the newest
        for truncation, any for compaction.

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
