"""
Tests for L{pylogbroker.spark.splits}.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError, DataLossError
from pylogbroker.protocol.kafka07.requests import Offsets, Request
from pylogbroker.records.messageset import encodeSet
from pylogbroker.spark.brokerclients import OffsetRange, SegmentBounds
from pylogbroker.spark.splits import (
    checkNamed,
    expectedPartitions,
    plannedRanges,
    splitRanges,
    withinBounds,
)
from pylogbroker.types import EARLIEST, BrokerPartition, PartitionId
from tests.spark.sourcecase import HERE, SourceCase

SET = encodeSet([b"12345678901"])
SIZE = len(SET)


class RangesTests(SourceCase):
    """A batch's ranges."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.broker.log()
        self.log.append(*[SET] * 5)
        self.log.times = {index * SIZE: index * 1_000 for index in range(5)}
        self.log.deleteBefore(SIZE)

    def ends(self, **options: Any) -> tuple[int, int]:
        """Start and end of the one range, in sets."""
        [found] = plannedRanges(
            self.options(**options), self.brokers(), [PartitionId("clicks", HERE)], EARLIEST
        )
        return found.start // SIZE, found.end // SIZE

    def at(self, count: int) -> str:
        """A map with an offset."""
        return f'{{"clicks": {{"0-0": {count * SIZE if count >= 0 else count}}}}}'

    def test_wholeLog(self) -> None:
        """By default it is all there is, up to now."""
        self.assertEqual(self.ends(), (1, 5))

    def test_positions(self) -> None:
        """Words, offsets, the two numbers that stand for words, and times."""
        self.assertEqual(self.ends(startingOffsets="latest"), (5, 5))
        self.assertEqual(self.ends(startingOffsets=self.at(2), endingOffsets=self.at(4)), (2, 4))
        self.assertEqual(self.ends(startingOffsets=self.at(-2), endingOffsets=self.at(-1)), (1, 5))
        self.assertEqual(self.ends(startingTimestamp=3_500), (3, 5))

    def test_timeUnderWrites(self) -> None:
        """
        A time in the future means the end, also while a producer writes: messages that arrive
        between two requests are not lost data.
        """

        def write(request: Request) -> bool:
            if isinstance(request, Offsets) and request.time >= 0:
                self.log.append(SET, SET)
            return True

        self.broker.before = write
        self.assertEqual(self.ends(startingTimestamp=2**62), (5, 5))

    def test_lost(self) -> None:
        """
        A start that was deleted, or an end or a start beyond the log, is an error, or what is left
        is taken.
        """
        for start, end, left in ((0, 3, (1, 3)), (2, 9, (2, 5)), (7, -1, (5, 5)), (7, 9, (5, 5))):
            options = {"startingOffsets": self.at(start), "endingOffsets": self.at(end)}
            self.assertRaises(DataLossError, self.ends, **options)
            self.assertEqual(self.ends(**options, failOnDataLoss="false"), left)

    def test_allLost(self) -> None:
        """A range all of which was deleted is empty."""
        found = withinBounds(
            self.options(failOnDataLoss="false"), self.range(0, 10), SegmentBounds((50,), 90)
        )
        self.assertEqual(found.size, 0)

    def test_backwards(self) -> None:
        """A range that ends before it begins is refused."""
        self.assertRaises(
            ConfigurationError, self.ends, startingOffsets=self.at(3), endingOffsets=self.at(2)
        )

    def test_named(self) -> None:
        """
        A map of offsets names every partition that is read and no other, and what it names is
        expected.
        """
        options = self.options(startingOffsets='{"clicks": {"0-0": 5}}')
        self.assertEqual(expectedPartitions(options), {("clicks", HERE)})
        checkNamed("startingOffsets", options.startingOffsets, [PartitionId("clicks", HERE)])
        checkNamed("startingOffsets", None, [PartitionId("clicks", HERE)])
        other = BrokerPartition(1, 0)
        text = str(
            self.assertRaises(
                ConfigurationError,
                checkNamed,
                "startingOffsets",
                options.startingOffsets,
                [PartitionId("clicks", HERE), PartitionId("clicks", other)],
            )
        )
        self.assertIn("startingOffsets has no offset for topic clicks, partition 1-0", text)
        text = str(
            self.assertRaises(
                ConfigurationError, checkNamed, "startingOffsets", options.startingOffsets, []
            )
        )
        self.assertIn(
            "startingOffsets names topic clicks, partition 0-0, which does not exist", text
        )


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
        """
        The splits of a range stand edge to edge, none is empty, and each edge inside is the start
        of a segment.
        """
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
        """
        Where there are segments enough there are as many splits as were asked for, of about the
        same size, the larger partition in more.
        """
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
        """With enough ranges, no broker is asked for segments."""

        def asked(_each: OffsetRange) -> list[int]:
            raise AssertionError

        whole = ranges([(0, 10), (0, 10)])
        self.assertEqual(splitRanges(whole, 2, asked), whole)
        self.assertEqual(splitRanges(whole, 0, asked), whole)

    def test_words(self) -> None:
        """A range says what it is; bounds say where they begin."""
        self.assertEqual(str(ranges([(3, 4)])[0]), "topic t, partition 0-0, 3 to 7")
        self.assertEqual(SegmentBounds((3, 9), 12).earliest, 3)
