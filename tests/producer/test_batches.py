"""
Tests for L{pylogbroker.producer.batches}.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.batches import PartitionBatch, QueueItem, groupByPartition, itemsOf


class CollateTests(SynchronousTestCase):
    """Grouping."""

    def test_groups(self) -> None:
        """AsyncProducerTest.testCollateEvents: by topic and partition, in order of first appearance, order inside a group kept."""
        items = [
            QueueItem(topic, index, None, partition)
            for index, (topic, partition) in enumerate([("b", 1), ("a", 0), ("b", 0), ("b", 1)])
        ]
        batches = groupByPartition(items)
        found = [(batch.topic, batch.partition, batch.values) for batch in batches]
        self.assertEqual(found, [("b", 1, [0, 3]), ("a", 0, [1]), ("b", 0, [2])])
        self.assertEqual(itemsOf(batches), [items[0], items[3], items[1], items[2]])
        self.assertIn("b-1", repr(items[0]))


class PartitionBatchTests(SynchronousTestCase):
    """Messages column by column, and one by one."""

    def test_items(self) -> None:
        """Each has all that was given, the same item whenever it is asked for; they move with their batch."""
        batch = PartitionBatch.of("t", (b"one", "three", 7), "k")
        (first, second, third) = items = batch.items()
        found = [(item.topic, item.partition, item.value, item.key, item.size) for item in items]
        self.assertEqual(found[1:], [("t", -1, "three", "k", 5), ("t", -1, 7, "k", 0)])
        self.assertEqual((first.size, batch.sizes, batch.isOpen), (3, [3, 5, 0], False))
        batch.moveTo(4)
        self.assertEqual([item.partition for item in batch.items()], [4, 4, 4])
        self.assertEqual(batch.items(), [first, second, third])

    def test_succeed(self) -> None:
        """Who waits is told, with items and without; of an item that is in it twice only once."""
        waiting: list[Deferred[None]] = [Deferred() for _ in range(2)]
        batch = PartitionBatch.of("t", (b"1", b"2"), None)
        batch.waiters = [waiting[0], None]
        batch.succeed()
        self.successResultOf(waiting[0])
        item = QueueItem("t", b"x", waiter=waiting[1])
        PartitionBatch("t", 0, [item, item]).succeed()
        self.successResultOf(waiting[1])
