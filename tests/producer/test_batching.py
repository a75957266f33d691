"""
Tests for L{pylogbroker.producer.batching}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.batching import Lane, QueueItem, collate


class CollateTests(SynchronousTestCase):
    """Grouping."""

    def test_groups(self) -> None:
        """AsyncProducerTest.testCollateEvents: by topic and partition, in order of first appearance, order inside a group kept."""
        items = [QueueItem(topic, index, None, partition) for index, (topic, partition) in enumerate([("b", 1), ("a", 0), ("b", 0), ("b", 1)])]
        groups = collate(items)
        self.assertEqual([(place, [item.value for item in group]) for place, group in groups.items()], [(("b", 1), [0, 3]), (("a", 0), [1]), (("b", 0), [2])])
        self.assertIn("b-1", repr(items[0]))


class LaneTests(SynchronousTestCase):
    """Batches by count, by bytes and by time."""

    def lane(self, countMax: int = 3, sizeMax: int = 100, poll: Any = None) -> Lane:
        self.clock = Clock()
        self.batches: list[tuple[float, list[Any]]] = []

        def dispatch(items: list[QueueItem]) -> None:
            self.batches.append((round(self.clock.seconds(), 6), [item.value for item in items]))

        return Lane(self.clock, countMax, sizeMax, 200, dispatch, poll)

    def item(self, value: Any, size: int = 1) -> QueueItem:
        return QueueItem("t", value, size=size)

    def test_count(self) -> None:
        """AsyncProducerTest.testBatchSize: as many as say so go at once; the rest waits, and no timer is left behind when there is none."""
        lane = self.lane()
        for value in range(7):
            lane.add(self.item(value))
        self.assertEqual(self.batches, [(0, [0, 1, 2]), (0, [3, 4, 5])])
        lane.flush()
        self.assertEqual(self.batches[2:], [(0, [6])])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        lane.flush()
        self.assertEqual(len(self.batches), 3)

    def test_bytes(self) -> None:
        """Large messages go before there are so many."""
        lane = self.lane()
        lane.add(self.item("a", 60))
        lane.add(self.item("b", 40))
        self.assertEqual(self.batches, [(0, ["a", "b"])])

    def test_time(self) -> None:
        """AsyncProducerTest.testQueueTimeExpired: after queue.time what there is goes; the time is counted from the dispatch before."""
        lane = self.lane()
        lane.add(self.item(1))
        self.clock.advance(0.15)
        lane.add(self.item(2))
        self.clock.advance(0.05)
        self.assertEqual(self.batches, [(0.2, [1, 2])])
        self.clock.advance(0.45)  # 0.65: an idle sender has looked at 0.4 and 0.6
        lane.add(self.item(3))
        self.clock.advance(0.14)
        self.assertEqual(len(self.batches), 1)
        self.clock.advance(0.01)
        self.assertEqual(self.batches[1:], [(0.8, [3])])

    def test_addAll(self) -> None:
        """Messages may come together."""
        lane = self.lane()
        lane.addAll([self.item(1), self.item(2)])
        lane.addAll([])
        lane.addAll([self.item(3), self.item(4)])
        self.assertEqual(self.batches, [(0, [1, 2, 3, 4])])
        lane.addAll([self.item(5)])
        self.clock.advance(0.2)
        self.assertEqual(self.batches[1:], [(0.2, [5])])
        lane.addAll([])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_poll(self) -> None:
        """With hooks each message is polled, and nothing in time is, too; what the hook gives is collected."""
        asked: list[Any] = []

        def poll(item: QueueItem | None) -> list[QueueItem]:
            asked.append(item and item.value)
            return [self.item("extra")] if item is None else [item, item]

        lane = self.lane(poll=poll)
        self.clock.advance(0.2)
        self.assertEqual(self.batches, [(0.2, ["extra"])])
        lane.add(self.item(1))
        lane.add(self.item(2))
        self.assertEqual(self.batches[1:], [(0.2, [1, 1, 2, 2])])
        self.clock.advance(0.2)
        self.assertEqual(asked, [None, 1, 2, None])
        lane.add(self.item(3))
        self.assertEqual([item.value for item in lane.stop()], [3, 3])
        self.assertEqual(self.clock.getDelayedCalls(), [])
