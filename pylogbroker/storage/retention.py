"""
Retention policies: pure functions from segments to the number of segments to delete.

A policy gets the time and one partition's segments, oldest first. It returns how many of the oldest
may be deleted. Only whole segments go, from the old end, up to the first that does not qualify
(spec-0.7 log-storage §10). Sizes are those of flushed bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class IRetainableSegment(Protocol):
    """
    A policy's view of a segment.

    @ivar size: flushed bytes.
    @ivar modifiedMs: time of the last append, milliseconds since the epoch.
    """

    @property
    def baseOffset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def modifiedMs(self) -> int: ...


RetentionPolicy = Callable[[Sequence[IRetainableSegment], int], int]
"""C{policy(segments, nowMs)}: how many of the oldest to delete."""


def keepAll(segments: Sequence[IRetainableSegment], nowMs: int) -> int:
    """Delete nothing."""
    return 0


def byAge(ageMsMax: int) -> RetentionPolicy:
    """Delete segments whose last append is more than C{ageMsMax} ago (C{log.retention.hours})."""

    def decide(segments: Sequence[IRetainableSegment], nowMs: int) -> int:
        count = 0
        for segment in segments:
            if nowMs - segment.modifiedMs <= ageMsMax:
                break
            count += 1
        return count

    return decide


def bySize(sizeMin: int) -> RetentionPolicy:
    """
    Delete while at least C{sizeMin} bytes remain (C{log.retention.size}); negative: delete nothing.
    """

    def decide(segments: Sequence[IRetainableSegment], nowMs: int) -> int:
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

    def decide(segments: Sequence[IRetainableSegment], nowMs: int) -> int:
        count = first(segments, nowMs)
        return count + second(segments[count:], nowMs)

    return decide
