"""
Tests of L{pylogbroker.producer.kafka.partitionqueue}: every order of answers, against a broker that
checks sequence numbers as Kafka does.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.kafka.partitionqueue import PartitionQueue, ProducerBatch
from pylogbroker.records.recordbatch import iterateRecords, readHeader


class Log:
    """A partition that keeps Kafka's rules of idempotence."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.epoch = 0
        self.known: list[tuple[int, int]] = []

    def append(self, data: bytes) -> bool:
        """Whether the log has the batch now."""
        header = readHeader(data)
        first, last = header.baseSequence, header.baseSequence + header.recordCount - 1
        known = self.known if header.producerEpoch == self.epoch else []
        isNewEpoch = header.producerEpoch > self.epoch
        if header.producerEpoch < self.epoch or (isNewEpoch and first and self.known):
            return False
        if (first, last) in known[-5:]:
            return True
        if known and known[-1][1] + 1 != first:  # without any batch, each number will do
            return False
        self.epoch, self.known = header.producerEpoch, [*known, (first, last)]
        self.values += [each.value for each in iterateRecords(data, 0, header)]
        return True


class QueueTests(SynchronousTestCase):
    """L{PartitionQueue}."""

    def setUp(self) -> None:
        self.queue = PartitionQueue("t", 0, 5)
        self.queue.identify(7, 0)

    def store(self) -> None:
        """The log has a batch of the producer."""
        first = self.add(b"")
        self.begin()
        self.queue.acknowledged(first)
        self.queue.identify(7, self.queue.epoch)

    def add(self, *values: bytes) -> ProducerBatch:
        """A full batch."""
        batch = ProducerBatch(self.queue, 1000)
        for value in values:
            assert batch.builder is not None
            batch.builder.append(5, None, value)
            batch.waiters.append(Deferred())
            batch.memorySize += 11
        self.queue.full.append(batch)
        return batch

    def begin(self, nowMs: float = 0) -> ProducerBatch | None:
        """Send the next one, if there is one."""
        batch = self.queue.next(nowMs, False)
        if batch is not None:
            batch.pack(0)
            self.queue.begin(batch, 1)
        return batch

    def test_numbers(self) -> None:
        """Batches are numbered in their order; five may be unacknowledged."""
        self.store()
        batches = [self.add(b"a", b"b") for _batch in range(6)]
        sent = [self.begin() for _batch in range(6)]
        self.assertEqual(sent, [*batches[:5], None])
        self.assertEqual([batch.sequence for batch in batches[:5]], [0, 2, 4, 6, 8])
        self.queue.acknowledged(batches[0])
        self.assertIs(self.begin(), batches[5])
        self.assertEqual(str(self.queue), "t-0")

    def test_first(self) -> None:
        """The first batch of a producer leaves alone: a broker would take the second before it."""
        first, second, third = (self.add(each) for each in (b"a", b"b", b"c"))
        self.assertEqual([self.begin(), self.begin()], [first, None])
        self.queue.mustRetry(first, 0)
        self.assertEqual([self.begin(), self.begin()], [first, None])
        self.queue.acknowledged(first)
        self.assertEqual([self.begin(), self.begin()], [second, third])

    def test_wrap(self) -> None:
        """Sequence numbers begin anew behind the largest."""
        self.store()
        self.queue._nextSequence = 2**31 - 1
        first, second = self.add(b"a", b"b"), self.add(b"c")
        self.begin()
        self.begin()
        self.assertEqual((first.sequence, second.sequence), (2**31 - 1, 1))

    def test_open(self) -> None:
        """An open batch is sent when it is due, or when all are flushed."""
        batch = self.add(b"a")
        self.queue.open = self.queue.full.pop()
        self.assertFalse(self.queue.hasWork(False))
        self.assertTrue(self.queue.hasWork(True))
        self.assertIsNone(self.queue.next(0, False))
        self.assertIs(self.queue.next(0, True), batch)
        batch.isDue = True
        self.assertIs(self.begin(), batch)
        self.assertIsNone(self.queue.open)

    def test_retry(self) -> None:
        """Behind a failure nothing leaves until all are answered and the time has come."""
        self.store()
        first, second, third = (self.add(each) for each in (b"a", b"b", b"c"))
        self.begin()
        self.begin()
        self.queue.mustRetry(first, 100)
        self.assertIsNone(self.begin(200))
        self.queue.refusedForSequence(second, 50)
        self.assertTrue(self.queue.hasWork(False))
        self.assertIsNone(self.begin(99))
        self.assertEqual([self.begin(100) for _each in range(3)], [first, second, third])
        self.assertEqual((first.sequence, second.sequence, third.sequence), (0, 1, 2))

    def test_window(self) -> None:
        """
        While the oldest batch is uncertain, no more follow it than the broker remembers, although
        those between are acknowledged: else it would be refused as out of order, and stored twice.
        """
        self.store()
        batches = [self.add(b"%d" % number) for number in range(6)]
        sent = [self.begin() for _batch in range(5)]
        batches[0].isUncertain = True
        self.queue.mustRetry(batches[0], 0)
        for batch in sent[1:]:
            assert batch is not None
            self.queue.acknowledged(batch)
        self.assertEqual([self.begin(), self.begin()], [batches[0], None])
        self.queue.acknowledged(batches[0])
        self.assertIs(self.begin(), batches[5])

    def test_splitWindow(self) -> None:
        """Halves count as two: the last of those behind waits for the first half."""
        self.store()
        batches = [self.add(b"%d" % number, b"x") for number in range(5)]
        for _batch in batches:
            self.begin()
        self.queue.replace(batches[0], batches[0].split(0))
        for batch in batches[1:]:
            self.queue.refusedForSequence(batch, 0)
        sent = [self.begin() for _batch in range(6)]
        self.assertEqual(sent[2:], [*batches[1:4], None])
        assert sent[0] is not None
        self.queue.acknowledged(sent[0])
        self.assertIs(self.begin(), batches[4])

    def test_gap(self) -> None:
        """Behind a refused batch a new epoch begins, for all that are certain not to be there."""
        self.store()
        first, second, third = (self.add(each) for each in (b"a", b"b", b"c"))
        self.begin()
        self.begin()
        self.queue.drop(first)
        second.isUncertain = True
        self.queue.mustRetry(second, 0)
        self.assertIs(self.begin(), second)
        self.assertEqual((self.queue.epoch, second.sequence), (0, 1))
        self.assertIsNone(self.begin())
        self.queue.refusedForSequence(second, 0)
        self.assertEqual([self.begin(), self.begin()], [second, third])
        self.assertEqual((self.queue.epoch, second.sequence, third.sequence), (1, 0, 1))

    def test_gapBeforeUncertain(self) -> None:
        """
        Where the oldest batch behind a gap is certainly not there, those behind it are not, either:
        a new epoch begins at once, although the answer for one of them was lost.
        """
        self.store()
        first, second, third = (self.add(each) for each in (b"a", b"b", b"c"))
        for _batch in range(3):
            self.begin()
        self.queue.drop(first)
        self.queue.refusedForSequence(second, 0)
        third.isUncertain = True
        self.queue.mustRetry(third, 0)
        self.assertEqual([self.begin(), self.begin()], [second, third])
        self.assertEqual((self.queue.epoch, second.sequence, third.sequence), (1, 0, 1))
        self.assertFalse(third.isUncertain)

    def test_lostState(self) -> None:
        """A broker that refuses the next batch has forgotten the ones before: a new epoch."""
        first, second = self.add(b"a"), self.add(b"b")
        self.begin()
        self.queue.acknowledged(first)
        self.begin()
        self.queue.refusedForSequence(second, 0)
        self.assertIs(self.begin(), second)
        self.assertEqual((self.queue.epoch, second.sequence), (1, 0))

    def test_exhausted(self) -> None:
        """The last epoch has no next one: another producer's id is needed, once all is certain."""
        self.queue.identify(7, 0x7FFF)
        self.store()
        first, second, third = (self.add(each) for each in (b"a", b"b", b"c"))
        self.begin()
        self.begin()
        self.assertFalse(self.queue.isExhausted)
        self.queue.drop(first)
        self.assertFalse(self.queue.isExhausted)
        second.isUncertain = True
        self.queue.mustRetry(second, 0)
        self.assertFalse(self.queue.isExhausted)
        self.assertIs(self.begin(), second)
        self.queue.refusedForSequence(second, 0)
        self.assertTrue(self.queue.isExhausted)
        self.assertIsNone(self.begin())
        self.queue.identify(8, 0)
        self.assertEqual([self.begin(), self.begin()], [second, None])
        self.queue.acknowledged(second)
        self.assertIs(self.begin(), third)
        self.assertEqual((self.queue.producerId, self.queue.epoch), (8, 0))
        self.assertEqual((second.sequence, third.sequence), (0, 1))

    def test_split(self) -> None:
        """The halves have the messages, their numbers and their memory."""
        self.store()
        batch, behind = self.add(b"a", b"b", b"c"), self.add(b"d")
        self.begin()
        self.begin()
        halves = batch.split(0)
        self.queue.replace(batch, halves)
        self.queue.refusedForSequence(behind, 0)
        self.assertEqual([len(each) for each in halves], [1, 2])
        self.assertEqual(sum(each.memorySize for each in halves), 33)
        self.assertEqual([each for half in halves for each in half.waiters], batch.waiters)
        log = Log()
        for _each in range(3):
            sent = self.begin()
            assert sent is not None
            self.assertTrue(log.append(sent.encode()))
        self.assertEqual(log.values, [b"a", b"b", b"c", b"d"])

    def test_withoutNumbers(self) -> None:
        """Without idempotence a batch has no numbers, is split, and leaves no gap."""
        self.queue = PartitionQueue("t", 0, 2)
        batch, other = self.add(b"a", b"b"), self.add(b"c")
        self.begin()
        header = readHeader(batch.encode())
        self.assertEqual((header.producerId, header.baseSequence), (-1, -1))
        self.queue.replace(batch, batch.split(0))
        self.queue.drop(self.queue.unacknowledged[0])
        self.assertEqual(len(self.queue.unacknowledged), 1)
        self.begin()
        self.assertIs(self.begin(), other)
        self.assertFalse(self.queue.isExhausted)

    def test_drop(self) -> None:
        """A batch can be given up wherever it is."""
        full, opened = self.add(b"a"), self.add(b"b")
        self.queue.open = self.queue.full.pop()
        self.assertTrue(self.queue.hasWork(False))
        self.queue.drop(full)
        self.queue.drop(opened)
        self.assertFalse(self.queue.hasWork(True))
        self.assertEqual((full.size, opened.size), (69, 69))

    @given(st.data())
    def test_anyOrder(self, data: st.DataObject) -> None:
        """
        Whatever is lost, refused, given up or answered late: each message is stored at most once
        and in order, those whose outcome is success are stored, those that were refused are not.
        """
        self.setUp()
        queue, log, nowMs = self.queue, Log(), 0
        batches = [self.add(b"%d" % number) for number in range(data.draw(st.integers(1, 12)))]
        flying: list[ProducerBatch] = []
        outcome: dict[ProducerBatch, str] = {}
        for _step in range(1000):
            if len(outcome) == len(batches):
                break
            nowMs += 1
            while (batch := self.begin(nowMs)) is not None:
                flying.append(batch)
            if not flying:
                continue
            batch = flying.pop(0)  # answers come in the order of the requests
            kinds = ["ok", "ok", "ok", "lost", "lostAnswer", "retriable", "refused", "gone"]
            kind, isStored = data.draw(st.sampled_from(kinds)), False
            if kind in ("ok", "lostAnswer"):
                isStored = log.append(batch.encode())
            if kind == "ok" and isStored:
                queue.acknowledged(batch)
                outcome[batch] = "stored"
            elif kind == "ok":
                queue.refusedForSequence(batch, nowMs)
            elif kind in ("lost", "lostAnswer"):
                batch.isUncertain = True
                queue.mustRetry(batch, nowMs)
            elif kind == "retriable":
                queue.mustRetry(batch, nowMs)
            else:
                queue.drop(batch)
                outcome[batch] = "unknown" if batch.isUncertain else "absent"
        numbers = [int(value or b"") for value in log.values]
        self.assertEqual(numbers, sorted(set(numbers)))
        for number, batch in enumerate(batches):
            if outcome.get(batch) == "stored":
                self.assertIn(number, numbers)
            elif outcome.get(batch) == "absent":
                self.assertNotIn(number, numbers)
