"""
Tests for L{pylogbroker.lake.loadplan}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import LoadError
from pylogbroker.lake.loadplan import LoadPlan, PlannedRange, advancePositions, planRanges
from pylogbroker.types import (
    EARLIEST,
    LATEST,
    AnyPartition,
    BrokerPartition,
    OffsetBounds,
    PartitionId,
    TopicPartition,
)

A = PartitionId("clicks", BrokerPartition(0, 0))
B = PartitionId("clicks", BrokerPartition(1, 0))


class RangeTests(SynchronousTestCase):
    """From where to where."""

    def one(
        self,
        position: int | None,
        start: int,
        end: int,
        wish: int | None = None,
        isLossFatal: bool = True,
    ) -> LoadPlan:
        """One partition."""
        positions: dict[AnyPartition, int] = {} if position is None else {A: position}
        return planRanges(
            positions,
            {A: OffsetBounds(start, end)},
            {} if wish is None else {A: wish},
            isLossFatal=isLossFatal,
        )

    def range(self, *arguments: int | None) -> tuple[int, int, bool] | None:
        """One partition's, without notes."""
        plan = self.one(*arguments)  # type: ignore[arg-type]
        self.assertEqual(plan.notes, ())
        return plan.ranges[0][1:] if plan.ranges else None

    def refused(self, *arguments: int | None) -> str:
        return str(self.assertRaises(LoadError, self.one, *arguments))

    def test_first(self) -> None:
        """What was never loaded is loaded from its oldest message."""
        self.assertEqual(self.range(None, 30, 90), (30, 90, False))

    def test_next(self) -> None:
        """The next run goes on where the last one ended; with nothing new it does nothing."""
        self.assertEqual(self.range(40, 30, 90), (40, 90, False))
        self.assertIsNone(self.range(90, 30, 90))
        self.assertIsNone(self.range(None, 30, 30))

    def test_lost(self) -> None:
        """
        What was deleted before it was loaded is an error; told to, the load goes on behind it, and
        says so.
        """
        self.assertIn(
            "clicks/0-0: offsets 20 to 30 were deleted before they were loaded",
            self.refused(20, 30, 90),
        )
        plan = self.one(20, 30, 90, None, False)
        self.assertEqual(plan.ranges, (PlannedRange(A, 30, 90, False),))
        self.assertEqual(len(plan.notes), 1)

    def test_madeAnew(self) -> None:
        """
        A log that ends before the table does is an error, unless a beginning is given; then its
        rows are loaded again.
        """
        self.assertIn("was the log created anew?", self.refused(100, 30, 90))
        self.assertEqual(self.range(100, 30, 90, EARLIEST), (30, 90, True))

    def test_again(self) -> None:
        """
        A beginning before the table's end loads again; at its end it changes nothing; both words
        are known.
        """
        self.assertEqual(self.range(60, 30, 90, 40), (40, 90, True))
        self.assertEqual(self.range(60, 30, 90, 60), (60, 90, False))
        self.assertEqual(self.range(60, 30, 90, EARLIEST), (30, 90, True))
        self.assertEqual(self.range(None, 30, 90, 40), (40, 90, False))
        self.assertIsNone(self.range(90, 30, 90, LATEST))

    def test_clamped(self) -> None:
        """
        A beginning before the oldest message becomes that, as with 0.7, and it is said; one behind
        the end is refused.
        """
        plan = self.one(60, 30, 90, 10)
        self.assertEqual((plan.ranges, len(plan.notes)), ((PlannedRange(A, 30, 90, True),), 1))
        self.assertIn("cannot be loaded from 91", self.refused(60, 30, 90, 91))

    def test_skipped(self) -> None:
        """A beginning behind the table's end skips, and says so."""
        plan = self.one(60, 30, 90, 70)
        self.assertEqual(plan.ranges, (PlannedRange(A, 70, 90, False),))
        self.assertIn("offsets 60 to 70 are skipped", plan.notes[0])

    def test_moved(self) -> None:
        """
        A beginning that leaves nothing to load still moves the table's end, so that the next run
        goes on there.
        """
        plan = self.one(50, 0, 100, LATEST)
        self.assertEqual(plan.ranges, (PlannedRange(A, 100, 100, False),))
        self.assertEqual(advancePositions({A: 50}, plan), {A: 100})
        self.assertEqual(self.range(None, 0, 100, LATEST), (100, 100, False))
        self.assertEqual(self.range(500, 0, 0, EARLIEST), (0, 0, True))
        self.assertIsNone(self.range(100, 0, 100, 100))

    def test_today(self) -> None:
        """Partitions of today's Kafka are planned alike, and are named as Kafka names them."""
        place = TopicPartition("clicks", 7)
        plan = planRanges({place: 40}, {place: OffsetBounds(30, 90)})
        self.assertEqual(plan.ranges, (PlannedRange(place, 40, 90, False),))
        self.assertEqual(advancePositions({place: 40}, plan), {place: 90})
        error = self.assertRaises(LoadError, planRanges, {place: 40}, {place: OffsetBounds(50, 90)})
        self.assertIn("clicks-7: offsets 40 to 50 were deleted", str(error))

    def test_several(self) -> None:
        """
        All problems are told at once, and partitions that no broker has are one; a plan's size is
        that of its ranges.
        """
        error = self.assertRaises(
            LoadError,
            planRanges,
            {A: 100, B: 100},
            {A: OffsetBounds(0, 90), B: OffsetBounds(0, 80)},
            {PartitionId("x", BrokerPartition(0, 0)): 0},
        )
        self.assertEqual(len(str(error).splitlines()), 3)
        plan = planRanges({A: 40}, {A: OffsetBounds(0, 90), B: OffsetBounds(0, 80)})
        self.assertEqual(sum(each.toOffset - each.fromOffset for each in plan.ranges), 130)
        self.assertFalse(plan.isEmpty)
        self.assertEqual(
            advancePositions({A: 40, PartitionId("x", BrokerPartition(0, 0)): 7}, plan),
            {A: 90, B: 80, PartitionId("x", BrokerPartition(0, 0)): 7},
        )
