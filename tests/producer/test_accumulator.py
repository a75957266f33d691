"""
Tests for L{pylogbroker.producer.accumulator}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.accumulator import BatchAccumulator, HookedAccumulator
from pylogbroker.producer.batches import PartitionBatch, QueueItem, itemsOf


class LaneTests(SynchronousTestCase):
    """Batches by count, by bytes and by time."""

    def polled(self, poll: Any = None) -> HookedAccumulator:
        return HookedAccumulator(*self.laneArguments(3, 100), poll)

    def laneArguments(
        self, countMax: int, sizeMax: int
    ) -> tuple[Clock, int, int, int, Callable[[list[PartitionBatch]], None]]:
        self.clock = Clock()
        self.batches: list[tuple[float, list[Any]]] = []

        def dispatch(batches: list[PartitionBatch]) -> None:
            self.batches.append(
                (round(self.clock.seconds(), 6), [item.value for item in itemsOf(batches)])
            )

        return self.clock, countMax, sizeMax, 200, dispatch

    def lane(self, countMax: int = 3, sizeMax: int = 100) -> BatchAccumulator:
        return BatchAccumulator(*self.laneArguments(countMax, sizeMax))

    def add(self, lane: BatchAccumulator, value: Any, size: int = 1) -> None:
        lane.open("t", -1).add(value, None, size, None)

    def item(self, value: Any, size: int = 1) -> QueueItem:
        return QueueItem("t", value, size=size)

    def test_count(self) -> None:
        """AsyncProducerTest.testBatchSize: as many as say so go at once; the rest waits, and no timer is left behind when there is none."""
        lane = self.lane()
        for value in range(7):
            self.add(lane, value)
        self.assertEqual(self.batches, [(0, [0, 1, 2]), (0, [3, 4, 5])])
        lane.flush()
        self.assertEqual(self.batches[2:], [(0, [6])])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        lane.flush()
        self.assertEqual(len(self.batches), 3)

    def test_bytes(self) -> None:
        """Large messages go before there are so many."""
        lane = self.lane()
        self.add(lane, "a", 60)
        self.add(lane, "b", 40)
        self.assertEqual(self.batches, [(0, ["a", "b"])])

    def test_time(self) -> None:
        """AsyncProducerTest.testQueueTimeExpired: after queue.time what there is goes; the time is counted from the dispatch before."""
        lane = self.lane()
        self.add(lane, 1)
        self.clock.advance(0.15)
        self.add(lane, 2)
        self.clock.advance(0.05)
        self.assertEqual(self.batches, [(0.2, [1, 2])])
        self.clock.advance(0.45)  # 0.65: an idle sender has looked at 0.4 and 0.6
        self.add(lane, 3)
        self.clock.advance(0.14)
        self.assertEqual(len(self.batches), 1)
        self.clock.advance(0.01)
        self.assertEqual(self.batches[1:], [(0.8, [3])])

    def test_addAll(self) -> None:
        """Messages may come together, without a poll; then no timer runs when there is nothing."""
        lane = self.polled()
        lane.addAll([self.item(1), self.item(2)])
        lane.addAll([])
        lane.addAll([self.item(3), self.item(4)])
        self.assertEqual(self.batches, [(0, [1, 2, 3, 4])])
        lane.addAll([self.item(5)])
        self.clock.advance(0.2)
        self.assertEqual(self.batches[1:], [(0.2, [5])])
        lane.addAll([])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_open(self) -> None:
        """What is collected for a partition takes more until it goes, at once if there is enough; then another one does."""
        lane = self.lane(sizeMax=10)
        batch = lane.open("t", 0)
        self.assertIs(lane.open("t", 0), batch)
        batch.add(1, None, 4, None)
        lane.open("t", 1).add(2, None, 5, None)
        self.assertTrue(batch.isOpen)
        batch.add(3, None, 1, None)
        self.assertEqual((self.batches, batch.isOpen), ([(0, [1, 3, 2])], False))
        self.assertIsNot(lane.open("t", 0), batch)

    def test_addBatch(self) -> None:
        """What came together stays in order, and batches are no larger for it."""
        lane = self.lane()
        lane.addBatch(PartitionBatch.of("t", ("1", "2"), None))
        lane.addBatch(PartitionBatch.of("t", ("3",), None))
        self.assertEqual(self.batches, [(0, ["1", "2", "3"])])
        lane.addBatch(PartitionBatch.of("t", ("4", "5"), None))
        lane.addBatch(PartitionBatch.of("t", ("6", "7", "8", "9"), None))
        self.assertEqual(self.batches[1:], [(0, ["4", "5", "6"]), (0, ["7", "8", "9"])])
        self.assertEqual((lane.stop(), self.clock.getDelayedCalls()), ([], []))
        lane = self.lane(sizeMax=3)
        lane.addBatch(PartitionBatch.of("t", ("12", "34"), None))
        self.assertEqual(self.batches, [(0, ["12", "34"])])

    def test_ordered(self) -> None:
        """For an application's own event sender messages stay in the order in which they came, whatever their partitions."""
        lane = HookedAccumulator(
            Clock(),
            3,
            100,
            200,
            lambda batches: self.assertEqual(
                [item.value for item in itemsOf(batches)], ["a", "b", "c"]
            ),
        )
        items = [
            QueueItem("t", value, partition=partition, size=1)
            for value, partition in (("a", 0), ("b", 1), ("c", 0))
        ]
        lane.addBatch(PartitionBatch("t", 0, items))
        self.assertEqual(lane.stop(), [])

    def test_poll(self) -> None:
        """With hooks each message is polled, and nothing in time is, too; what the hook gives is collected."""
        asked: list[Any] = []

        def poll(item: QueueItem | None) -> list[QueueItem]:
            asked.append(item and item.value)
            return [self.item("extra")] if item is None else [item, item]

        lane = self.polled(poll)
        self.clock.advance(0.2)
        self.assertEqual(self.batches, [(0.2, ["extra"])])
        lane.add(self.item(1))
        lane.add(self.item(2))
        self.assertEqual(self.batches[1:], [(0.2, [1, 1, 2, 2])])
        self.clock.advance(0.2)
        self.assertEqual(asked, [None, 1, 2, None])
        lane.add(self.item(3))
        self.assertEqual([item.value for item in itemsOf(lane.stop())], [3, 3])
        self.assertEqual(self.clock.getDelayedCalls(), [])
