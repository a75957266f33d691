"""
What to delete: pure functions, segments in, segments to delete out.

A policy gets the segments of one partition, oldest first, and the time; it answers how many of the oldest may go, as a prefix of what it was given.
It removes nothing. Whole segments only, from the old end only, stopping at the first that does not qualify (spec-0.7 log-storage §10). Sizes are
those of flushed bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class RetainedSegment(Protocol):
    """
    What a policy may look at.

    @ivar baseOffset: of the segment's first byte.
    @ivar size: flushed bytes.
    @ivar modifiedMs: when it was last appended to, milliseconds since the epoch.
    """

    @property
    def baseOffset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def modifiedMs(self) -> int: ...


RetentionPolicy = Callable[[Sequence[RetainedSegment], int], int]
"""C{policy(segments, nowMs)}: how many of the oldest to delete."""


def keepAll(segments: Sequence[RetainedSegment], nowMs: int) -> int:
    """Delete nothing."""
    return 0


def byAge(ageMsMax: int) -> RetentionPolicy:
    """Delete what was not appended to for more than C{ageMsMax} milliseconds (C{log.retention.hours})."""

    def decide(segments: Sequence[RetainedSegment], nowMs: int) -> int:
        count = 0
        for segment in segments:
            if nowMs - segment.modifiedMs <= ageMsMax:
                break
            count += 1
        return count

    return decide


def bySize(sizeMin: int) -> RetentionPolicy:
    """
    Delete while the rest keeps at least C{sizeMin} bytes, so that the partition never shrinks below it (C{log.retention.size}).

    @param sizeMin: bytes; negative: delete nothing.
    """

    def decide(segments: Sequence[RetainedSegment], nowMs: int) -> int:
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
    """What C{first} lets go, then what C{second} lets go of the rest. 0.7.2 asks age first, then size."""

    def decide(segments: Sequence[RetainedSegment], nowMs: int) -> int:
        count = first(segments, nowMs)
        return count + second(segments[count:], nowMs)

    return decide
