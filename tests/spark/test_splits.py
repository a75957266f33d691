"""Tests for L{pylogbroker.spark.splits}."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.spark.splits import OffsetRange, SegmentBounds, splitRanges
from pylogbroker.types import BrokerPartition

PARTITIONS = [BrokerPartition(0, 0), BrokerPartition(0, 1), BrokerPartition(1, 0)]


def ranges(sizes: list[tuple[int, int]]) -> list[OffsetRange]:
    """One for each partition."""
    return [
        OffsetRange("t", partition, start, start + size)
        for partition, (start, size) in zip(PARTITIONS, sizes, strict=False)
    ]


class CutTests(SynchronousTestCase):
    """Ranges and splits."""

    @given(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1_000)), max_size=3),
        st.integers(0, 20),
        st.lists(st.integers(0, 1_200), max_size=30).map(lambda starts: sorted({0, *starts})),
    )
    def test_nothingIsLostOrDoubled(
        self, sizes: list[tuple[int, int]], countMin: int, starts: list[int]
    ) -> None:
        """The splits of a range stand edge to edge, none is empty, and each edge inside is the start of a segment."""
        whole = ranges(sizes)
        found = splitRanges(whole, countMin, lambda each: starts)
        for each in whole:
            parts = [part for part in found if part.partition == each.partition]
            if not each.size:
                self.assertEqual(parts, [])
                continue
            self.assertEqual((parts[0].start, parts[-1].end), (each.start, each.end))
            for before, after in pairwise(parts):
                self.assertEqual(before.end, after.start)
                self.assertIn(after.start, starts)
            self.assertTrue(all(part.size > 0 for part in parts))

    def test_asMany(self) -> None:
        """Where there are segments enough there are as many splits as were asked for, of about the same size, the larger partition in more."""
        found = splitRanges(ranges([(0, 900), (0, 300)]), 8, lambda each: list(range(0, 1_000, 10)))
        self.assertEqual(
            [part.partition for part in found], [PARTITIONS[0]] * 6 + [PARTITIONS[1]] * 2
        )
        self.assertEqual({part.size for part in found}, {150})

    def test_oneSegment(self) -> None:
        """A range without a segment's start inside is not cut, however large it is."""
        whole = ranges([(5, 1_000)])
        self.assertEqual(splitRanges(whole, 8, lambda each: [0, 5, 1_005]), whole)

    def test_notAsked(self) -> None:
        """Where there are ranges enough, nobody is asked for segments."""

        def asked(_each: OffsetRange) -> list[int]:
            raise AssertionError

        whole = ranges([(0, 10), (0, 10)])
        self.assertEqual(splitRanges(whole, 2, asked), whole)
        self.assertEqual(splitRanges(whole, 0, asked), whole)

    def test_words(self) -> None:
        """A range says what it is; bounds say where they begin."""
        self.assertEqual(str(ranges([(3, 4)])[0]), "topic t, partition 0-0, 3 to 7")
        self.assertEqual(SegmentBounds((3, 9), 12).earliest, 3)
