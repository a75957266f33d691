"""Tests for L{pylogbroker.spark.ranges}."""

from __future__ import annotations

from typing import Any

from pylogbroker.errors import ConfigurationError, DataLossError
from pylogbroker.protocol.kafka07.requests import Offsets, Request
from pylogbroker.records.messageset import encodeSet
from pylogbroker.spark.ranges import batchRanges, checkNamed, expectedPlaces, inBounds
from pylogbroker.spark.splits import SegmentBounds
from pylogbroker.types import BrokerPartition, PartitionId
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
        [found] = batchRanges(
            self.options(**options), self.brokers(), [PartitionId("clicks", HERE)]
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
        """A time that is not yet is the end, also while somebody writes: what comes between two questions is no loss."""

        def write(request: Request) -> bool:
            if isinstance(request, Offsets) and request.time >= 0:
                self.log.append(SET, SET)
            return True

        self.broker.before = write
        self.assertEqual(self.ends(startingTimestamp=2**62), (5, 5))

    def test_lost(self) -> None:
        """A start that was deleted, or an end or a start beyond the log, is an error, or what is left is taken."""
        for start, end, left in ((0, 3, (1, 3)), (2, 9, (2, 5)), (7, -1, (5, 5)), (7, 9, (5, 5))):
            options = {"startingOffsets": self.at(start), "endingOffsets": self.at(end)}
            self.assertRaises(DataLossError, self.ends, **options)
            self.assertEqual(self.ends(**options, failOnDataLoss="false"), left)

    def test_allLost(self) -> None:
        """A range all of which was deleted is empty."""
        found = inBounds(
            self.options(failOnDataLoss="false"), self.range(0, 10), SegmentBounds((50,), 90)
        )
        self.assertEqual(found.size, 0)

    def test_backwards(self) -> None:
        """A range that ends before it begins is refused."""
        self.assertRaises(
            ConfigurationError, self.ends, startingOffsets=self.at(3), endingOffsets=self.at(2)
        )

    def test_named(self) -> None:
        """A map of offsets names every partition that is read and no other, and what it names is expected."""
        options = self.options(startingOffsets='{"clicks": {"0-0": 5}}')
        self.assertEqual(expectedPlaces(options), {("clicks", HERE)})
        checkNamed("startingOffsets", options.starting, [PartitionId("clicks", HERE)])
        checkNamed("startingOffsets", None, [PartitionId("clicks", HERE)])
        other = BrokerPartition(1, 0)
        text = str(
            self.assertRaises(
                ConfigurationError,
                checkNamed,
                "startingOffsets",
                options.starting,
                [PartitionId("clicks", HERE), PartitionId("clicks", other)],
            )
        )
        self.assertIn("startingOffsets says nothing of topic clicks, partition 1-0", text)
        text = str(
            self.assertRaises(
                ConfigurationError, checkNamed, "startingOffsets", options.starting, []
            )
        )
        self.assertIn("startingOffsets names topic clicks, partition 0-0, which is not there", text)
