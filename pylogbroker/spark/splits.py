"""
From ranges of partitions to splits that are read side by side. Pure: what brokers know is an argument.

What must be true: no message is read twice and none is left out, whatever the payloads are. A payload may itself be a valid message set, so no look at
bytes in the middle of a segment can tell whether an entry begins there. So a cut is the start of a segment, which the broker knows; there are no other
cuts. As a proof besides, the reader of a split refuses an entry that crosses its end (L{pylogbroker.spark.fetching}): then a cut was none.

Rejected: cuts at guessed positions, to be proven by the split before ending exactly there. Splits are read side by side, and Spark has no way to tell the
later one where the earlier ended, so that the proof would come after the rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.types import BrokerPartition


class SegmentBounds(NamedTuple):
    """
    What a broker has of a partition.

    @ivar starts: where its segments begin, ascending; at least one.
    @ivar latest: the visible end.
    """

    starts: tuple[int, ...]
    latest: int

    @property
    def earliest(self) -> int:
        """The oldest offset that is there."""
        return self.starts[0]


class OffsetRange(NamedTuple):
    """
    A part of a partition: entries that begin at C{start} or later, up to one that ends at C{end}.
    """

    topic: str
    partition: BrokerPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, {self.start} to {self.end}"


class InputSplit(NamedTuple):
    """A range and who has it."""

    range: OffsetRange
    address: BrokerAddress


def splitRanges(
    ranges: Sequence[OffsetRange], countMin: int, startsOf: Callable[[OffsetRange], Sequence[int]]
) -> list[OffsetRange]:
    """
    Cut large ranges so that there are about C{countMin} or more, as far as there are segments to cut between. Empty ranges are left out.

    @param startsOf: where the segments of a range's partition begin, ascending; asked only of ranges that should be cut.
    """
    filled = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in filled)
    found = []
    for each in filled:
        count = -(-each.size * countMin // total)  # rounded up
        found += (
            _cut(each, count, startsOf(each)) if count > 1 and len(filled) < countMin else [each]
        )
    return found


def _cut(whole: OffsetRange, count: int, starts: Sequence[int]) -> list[OffsetRange]:
    """At the segment starts that are nearest to where equal parts would end."""
    inner = starts[bisect_right(starts, whole.start) : bisect_left(starts, whole.end)]
    cuts = (
        {_nearest(inner, whole.start + whole.size * index // count) for index in range(1, count)}
        if inner
        else set()
    )
    edges = [whole.start, *sorted(cuts), whole.end]
    return [whole._replace(start=start, end=end) for start, end in pairwise(edges)]


def _nearest(values: Sequence[int], wanted: int) -> int:
    index = bisect_left(values, wanted)
    return min(values[max(index - 1, 0) : index + 1], key=lambda value: abs(value - wanted))
