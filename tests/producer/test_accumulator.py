"""
Tests for L{pylogbroker.producer.accumulator}.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.accumulator import BatchAccumulator, PartitionBatch


def valuesOf(batches: list[PartitionBatch]) -> list[Any]:
    """What the batches hold, in order."""
    return list(chain.from_iterable(batch.values for batch in batches))


class PartitionBatchTests(SynchronousTestCase):
    """Messages in columns."""

    def test_of(self) -> None:
        """Each message has its value, the key, its size in bytes and the waiter."""
        waiter = object()
        batch = PartitionBatch.of("t", (b"one", "three", 7), "k", waiter)
        self.assertEqual((batch.topic, batch.partition, len(batch)), ("t", -1, 3))
        self.assertEqual((batch.values, batch.keys), ([b"one", "three", 7], ["k"] * 3))
        self.assertEqual((batch.sizes, batch.waiters), ([3, 5, 0], [waiter] * 3))
        self.assertEqual((batch.isOpen, batch.mayBeDuplicate), (False, False))

    def test_select(self) -> None:
        """Some messages of a batch keep what they have; the batch keeps all."""
        batch = PartitionBatch.of("t", (b"1", b"22", b"333"), "k")
        batch.partition, batch.mayBeDuplicate = 4, True
        some = batch.select([2, 0])
        self.assertEqual((some.topic, some.partition, some.mayBeDuplicate), ("t", 4, True))
        self.assertEqual((some.values, some.keys, some.sizes), ([b"333", b"1"], ["k"] * 2, [3, 1]))
        self.assertEqual((len(some.waiters), batch.values), (2, [b"1", b"22", b"333"]))

    def test_extend(self) -> None:
        """A batch that takes the messages of another one may be a duplicate if either may be."""
        batch, other = PartitionBatch.of("t", (b"1",), None), PartitionBatch.of("t", (b"2",), "k")
        other.mayBeDuplicate = True
        batch.extend(other)
        self.assertEqual(
            (batch.values, batch.keys, batch.sizes), ([b"1", b"2"], [None, "k"], [1, 1])
        )
        self.assertTrue(batch.mayBeDuplicate)


class BatchAccumulatorTests(SynchronousTestCase):
    """Batches by count, by size and by time."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.batches: list[tuple[float, list[Any]]] = []

    def dispatch(self, batches: list[PartitionBatch]) -> None:
        self.batches.append((round(self.clock.seconds(), 6), valuesOf(batches)))

    def accumulator(
        self,
        countMax: int = 3,
        sizeMax: int = 100,
        onPoll: Callable[[], object] | None = None,
    ) -> BatchAccumulator:
        return BatchAccumulator(self.clock, countMax, sizeMax, 200, self.dispatch, onPoll)

    def add(self, accumulator: BatchAccumulator, value: Any, size: int = 1) -> None:
        accumulator.open("t", -1).append(value, None, size, None)

    def test_count(self) -> None:
        """
        AsyncProducerTest.testBatchSize: a batch goes as soon as it has enough messages. The rest
        waits, and no timer is left behind when there is none.
        """
        accumulator = self.accumulator()
        for value in range(7):
            self.add(accumulator, value)
        self.assertEqual(self.batches, [(0, [0, 1, 2]), (0, [3, 4, 5])])
        accumulator.flush()
        self.assertEqual(self.batches[2:], [(0, [6])])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        accumulator.flush()
        self.assertEqual(len(self.batches), 3)

    def test_bytes(self) -> None:
        """Large messages go when they reach the size limit."""
        accumulator = self.accumulator()
        self.add(accumulator, "a", 60)
        self.add(accumulator, "b", 40)
        self.assertEqual(self.batches, [(0, ["a", "b"])])

    def test_time(self) -> None:
        """
        AsyncProducerTest.testQueueTimeExpired: what has collected goes after queue.time, counted
        from the dispatch before.
        """
        accumulator = self.accumulator()
        self.add(accumulator, 1)
        self.clock.advance(0.15)
        self.add(accumulator, 2)
        self.clock.advance(0.05)
        self.assertEqual(self.batches, [(0.2, [1, 2])])
        self.clock.advance(0.45)  # 0.65: 0.7's idle thread has polled at 0.4 and 0.6
        self.add(accumulator, 3)
        self.clock.advance(0.14)
        self.assertEqual(len(self.batches), 1)
        self.clock.advance(0.01)
        self.assertEqual(self.batches[1:], [(0.8, [3])])

    def test_addWhole(self) -> None:
        """Messages may be kept together, whatever the limit; no timer runs when there are none."""
        accumulator = self.accumulator()
        for values in ([1, 2], [], [3, 4]):
            accumulator.addWhole(PartitionBatch.of("", values, None))
        self.assertEqual(self.batches, [(0, [1, 2, 3, 4])])
        accumulator.addWhole(PartitionBatch.of("", [5], None))
        self.clock.advance(0.2)
        self.assertEqual(self.batches[1:], [(0.2, [5])])
        accumulator.addWhole(PartitionBatch.of("", [], None))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_open(self) -> None:
        """
        The open batch of a partition takes messages until it goes, at once if it has enough; then
        there is another one.
        """
        accumulator = self.accumulator(sizeMax=10)
        batch = accumulator.open("t", 0)
        self.assertIs(accumulator.open("t", 0), batch)
        batch.append(1, None, 4, None)
        accumulator.open("t", 1).append(2, None, 5, None)
        self.assertTrue(batch.isOpen)
        batch.append(3, None, 1, None)
        self.assertEqual((self.batches, batch.isOpen), ([(0, [1, 3, 2])], False))
        self.assertIsNot(accumulator.open("t", 0), batch)

    def test_add(self) -> None:
        """The messages of a batch stay in order, and no batch grows beyond the limits."""
        accumulator = self.accumulator()
        accumulator.add(PartitionBatch.of("t", ("1", "2"), None))
        accumulator.add(PartitionBatch.of("t", ("3",), None))
        self.assertEqual(self.batches, [(0, ["1", "2", "3"])])
        accumulator.add(PartitionBatch.of("t", ("4", "5"), None))
        accumulator.add(PartitionBatch.of("t", ("6", "7", "8", "9"), None))
        self.assertEqual(self.batches[1:], [(0, ["4", "5", "6"]), (0, ["7", "8", "9"])])
        self.assertFalse(accumulator.isClosed)
        self.assertEqual((accumulator.close(), self.clock.getDelayedCalls()), ([], []))
        self.assertTrue(accumulator.isClosed)
        accumulator = self.accumulator(sizeMax=3)
        accumulator.add(PartitionBatch.of("t", ("12", "34"), None))
        self.assertEqual(self.batches[3:], [(0, ["12", "34"])])

    def test_poll(self) -> None:
        """With a poll the timer runs even when nothing has collected; the poll may add messages."""
        polledAt: list[float] = []

        def onPoll() -> None:
            polledAt.append(round(self.clock.seconds(), 6))
            if len(polledAt) == 1:
                self.add(accumulator, "extra")

        accumulator = self.accumulator(onPoll=onPoll)
        self.clock.advance(0.2)
        self.assertEqual(self.batches, [(0.2, ["extra"])])
        for value in range(3):
            self.add(accumulator, value)
        self.assertEqual(self.batches[1:], [(0.2, [0, 1, 2])])
        self.clock.advance(0.2)
        self.assertEqual(polledAt, [0.2, 0.4])
        self.add(accumulator, 3)
        self.assertEqual(valuesOf(accumulator.close()), [3])
        self.assertEqual(self.clock.getDelayedCalls(), [])
