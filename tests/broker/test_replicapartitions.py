"""
Partitions of replicas under the log manager: a leader's batches, truncation, and what is durable of
them.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.logmanager import GATHER_COUNT_MAX, GATHER_PAUSE_COUNT, GATHER_SECONDS
from pylogbroker.errors import (
    AppendTruncatedError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    LeaderBatchError,
    PartitionOfflineError,
    StorageError,
)
from pylogbroker.interfaces import AppendResult, Slice
from pylogbroker.storage.kafka.checkpoints import readOffsets
from pylogbroker.storage.partitionlog import MarkKind
from pylogbroker.types import TopicPartition
from tests.broker.test_batchpartitions import Bench
from tests.storage.batches import batch, readRecords
from tests.storage.driving import bytesOf, readAll
from tests.storage.test_replicalog import LATEST_EPOCH, headersOf, stamped

PLACE = TopicPartition("t", 0)


class ReplicaPartitionCase(SynchronousTestCase):
    """A bench with the partition of a follower."""

    def setUp(self) -> None:
        self.bench = self.makeBench()

    def makeBench(self, **settings: Any) -> Bench:
        bench = Bench(**settings)
        self.partition = bench.partition()
        bench.log().followEpoch(LATEST_EPOCH)
        return bench

    def follow(self, data: bytes) -> int:
        found: int = self.bench.do(self.partition.appendAsFollower(data))
        return found

    def truncate(self, offset: int, isAnew: bool = False) -> int:
        found: int = self.bench.do(self.partition.truncate(offset, isAnew))
        return found

    def saved(self, name: str) -> int | None:
        """What a checkpoint says of the partition."""
        files = self.bench.site.files
        return readOffsets(files, self.bench.site.path(name)).get(PLACE)


class AppendTests(ReplicaPartitionCase):
    """A leader's response goes into the log."""

    def test_append(self) -> None:
        """Whole batches are appended, over as many segments as they need; a cut one is left out."""
        self.bench = self.makeBench(segmentSizeMax=300)
        pieces = [stamped(batch(b"%d" % offset), offset, offset // 4) for offset in range(20)]
        data = b"".join(pieces)
        self.assertEqual(self.follow(data + pieces[0][:40]), 20)
        self.bench.settle()
        log = self.bench.log()
        self.assertGreater(len(log.segments), 4)
        self.assertEqual((log.lastEpoch, log.appendedCount), (4, 20))
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        self.assertEqual((log.flushedOffset, readAll(log)), (20, data))
        self.assertEqual(self.bench.manager.unflushedSize, 0)

    def test_nothing(self) -> None:
        """An empty response changes nothing."""
        self.assertEqual(self.follow(b""), 0)

    def test_damaged(self) -> None:
        """Damaged or unfit batches are refused, with all that came with them."""
        good = stamped(batch(b"a"), 0, 0)
        bad = bytearray(stamped(batch(b"b"), 1, 0))
        bad[-1] ^= 1
        running = self.partition.appendAsFollower(good + bytes(bad))
        self.assertRaises(InvalidChecksumError, self.bench.do, running)
        running = self.partition.appendAsFollower(good[:-1])
        self.assertRaises(InvalidMessageSizeError, self.bench.do, running)
        running = self.partition.appendAsFollower(good + good)
        self.assertRaises(LeaderBatchError, self.bench.do, running)
        self.assertEqual(self.bench.log().logEndOffset, 0)
        self.assertEqual(self.follow(good), 1)

    def test_startWithinBatch(self) -> None:
        """
        The leader's log start is within a batch: a log that began anew there takes the whole batch,
        and then hides the same offsets as the leader.
        """
        self.follow(stamped(batch(b"old"), 0, 0))
        self.truncate(52, isAnew=True)
        data = stamped(batch(b"a", b"b", b"c", b"d"), 50, 3)
        self.assertEqual(self.follow(data), 54)
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        log = self.bench.log()
        self.assertEqual(log.logStartOffset, 50)
        self.bench.do(self.bench.manager.deleteRecords(self.partition, 52))
        self.assertEqual(next(each for each in readRecords(log) if each[0] >= 52), (52, b"c"))
        running = self.partition.appendAsFollower(data)
        self.assertRaises(LeaderBatchError, self.bench.do, running)

    def test_backPressure(self) -> None:
        """While too much is unflushed, a leader's batches wait like a producer's."""
        self.bench.manager.partitionUnflushedSizeMax = 100
        self.follow(stamped(batch(bytes(100)), 0, 0))
        waiting = Deferred.fromCoroutine(
            self.partition.appendAsFollower(stamped(batch(b"b"), 1, 0))
        )
        self.assertEqual((self.bench.log().logEndOffset, waiting.called), (1, False))
        self.bench.settle()
        self.assertEqual(self.successResultOf(waiting), 2)

    def test_fullDisk(self) -> None:
        """On a full disk they wait until there is room."""
        self.bench.site.double.fail("write", ".log", errno.ENOSPC)
        self.follow(stamped(batch(b"a"), 0, 0))
        self.bench.turn()
        self.assertTrue(self.partition.isDiskBlocked)
        waiting = Deferred.fromCoroutine(
            self.partition.appendAsFollower(stamped(batch(b"b"), 1, 0))
        )
        self.bench.turn()
        self.assertFalse(waiting.called)
        self.bench.clock.advance(60)
        self.bench.settle()
        self.assertEqual(self.successResultOf(waiting), 2)
        self.assertEqual(self.bench.log().writtenOffset, 2)

    def test_failed(self) -> None:
        """A partition that is out of service takes nothing."""
        self.bench.site.double.fail("write", ".log", errno.EIO)
        self.follow(stamped(batch(b"a"), 0, 0))
        self.bench.turn()
        running = self.partition.appendAsFollower(stamped(batch(b"b"), 0, 0))
        self.assertRaises(PartitionOfflineError, self.bench.do, running)
        self.assertRaises(PartitionOfflineError, self.bench.do, self.partition.truncate(0))


class AcknowledgeTests(ReplicaPartitionCase):
    """When a producer to a replicated partition gets its answer."""

    def setUp(self) -> None:
        self.acks: list[StorageError | None] = []

    def makeBench(self, **settings: Any) -> Bench:
        bench = super().makeBench(isReplicated=True, **settings)
        bench.send(batch(b"a"), self.acks)
        bench.send(batch(b"b"), self.acks)
        return bench

    def test_both(self) -> None:
        """C{acks=all} waits for the in-sync replicas and for the flush here, in any order."""
        self.bench = self.makeBench()
        self.bench.turn()
        self.partition.setHighWatermark(1)
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([], 1))
        self.bench.settle()
        self.assertEqual(self.acks, [None])
        self.partition.setHighWatermark(2)
        self.assertEqual(self.acks, [None, None])

    def test_withoutFlush(self) -> None:
        """By setting, the replicas are enough."""
        self.bench = self.makeBench(flushesAcks=False, isReadWhenFlushed=False)
        self.bench.turn()
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([], 0))
        self.partition.setHighWatermark(2)
        self.assertEqual((self.acks, self.bench.log().flushedOffset), ([None, None], 0))

    def test_one(self) -> None:
        """C{acks=1} waits for neither."""
        self.bench = self.makeBench()
        acks: list[StorageError | None] = []
        self.bench.send(batch(b"c"), acks, isByAll=False)
        self.bench.turn()
        self.assertEqual((acks, self.acks), ([None], []))

    def test_cancel(self) -> None:
        """A wait that is cancelled is not called, nor kept."""
        self.bench = self.makeBench()
        result = self.bench.send(batch(b"c"), [])
        told: list[StorageError | None] = []
        self.partition.whenAcknowledged(result, True, told.append)()
        self.bench.settle()
        self.partition.setHighWatermark(3)
        self.assertEqual((told, self.acks), ([], [None, None]))

    def test_failure(self) -> None:
        """A failure of either is told once."""
        self.bench = self.makeBench()
        self.bench.site.double.fail("fsync", ".log", errno.EIO)
        self.bench.settle()
        self.assertEqual(len(self.acks), 2)
        self.assertIsInstance(self.acks[0], PartitionOfflineError)
        result = AppendResult(5, 5, 0)
        self.partition.whenAcknowledged(result, True, self.acks.append)
        self.assertEqual(len(self.acks), 3)

    def test_truncated(self) -> None:
        """The leader was replaced, and its batches are cut off: their producers are told, once."""
        self.bench = self.makeBench()
        self.bench.settle()
        self.assertEqual(self.truncate(1), 1)
        self.assertEqual(len(self.acks), 1)
        self.assertIsInstance(self.acks[0], AppendTruncatedError)
        self.partition.setHighWatermark(1)
        self.assertEqual(self.acks[1:], [None])


class GatherTests(ReplicaPartitionCase):
    """A leader gathers requests for C{acks=all}, once for itself and its followers."""

    def setUp(self) -> None:
        self.bench = self.makeBench(isReplicated=True)
        self.acks: list[StorageError | None] = []
        self.told: list[int] = []

    def ask(self, *values: bytes) -> None:
        """Requests that come in one turn, as the broker's handler treats them."""
        for value in values:
            self.bench.send(batch(value), self.acks)
            self.partition.awaited(1)
        self.bench.turn()

    def answer(self, offset: int, count: int) -> None:
        """The followers have everything up to an offset: C{count} requests are answered."""
        self.bench.worker.performAll()
        self.partition.setHighWatermark(offset)
        self.partition.answered(count)

    def listen(self) -> None:
        self.partition.whenGathered(self.tell)

    def tell(self) -> None:
        self.told.append(self.bench.log().writtenOffset)

    @property
    def jobCount(self) -> int:
        return len(self.bench.worker.jobs)

    def test_asMany(self) -> None:
        """
        The flush begins, and followers see what is written, when as many requests have come as were
        answered.
        """
        self.ask(b"a", b"b")
        self.assertEqual(self.jobCount, 1)
        self.answer(2, 2)
        self.listen()
        self.ask(b"c")
        self.assertEqual((self.jobCount, self.told), (0, []))
        self.ask(b"d")
        self.assertEqual((self.jobCount, self.told), (1, [4]))
        self.assertIsNone(self.partition.gathering)

    def test_inVain(self) -> None:
        """
        Where fewer come, it waits for a millisecond behind the last one; then some do not wait.
        """
        self.ask(b"a", b"b", b"c")
        self.answer(3, 3)
        self.listen()
        for value in (b"d", b"e"):
            self.bench.clock.advance(GATHER_SECONDS * 0.75)
            self.ask(value)
            self.assertEqual((self.jobCount, self.told), (0, []))
        self.bench.clock.advance(GATHER_SECONDS)
        self.assertEqual((self.jobCount, self.told), (1, [5]))
        for number in range(GATHER_PAUSE_COUNT - 1):
            self.answer(5 + number, 1)
            self.assertIsNone(self.partition.gathering)
            self.ask(b"f")
        self.answer(5 + GATHER_PAUSE_COUNT, 1)
        self.assertIsNotNone(self.partition.gathering)

    def test_twoWaves(self) -> None:
        """Requests that are answered while others are written already become one wave with them."""
        self.ask(b"a")
        self.ask(b"b", b"c")
        self.answer(1, 1)
        self.ask(b"d")
        self.assertIsNone(self.partition.gathering)
        self.answer(3, 2)
        self.listen()
        self.ask(b"e", b"f")
        self.assertEqual(self.told, [6])

    def test_many(self) -> None:
        """It does not wait where more than L{GATHER_COUNT_MAX} were answered."""
        self.ask(*[b"a"] * (GATHER_COUNT_MAX + 1))
        self.answer(GATHER_COUNT_MAX + 1, GATHER_COUNT_MAX + 1)
        self.assertIsNone(self.partition.gathering)

    def test_otherFlush(self) -> None:
        """A flush for another reason ends the wait, and so does the end of the partition."""
        self.ask(b"a")
        self.answer(1, 1)
        self.listen()
        self.bench.send(batch(b"b"), [], False)
        self.bench.turn()
        self.assertEqual((self.jobCount, self.told), (0, []))
        self.bench.manager.flush(self.partition)
        self.assertEqual((self.jobCount, self.told), (1, [2]))
        self.bench.settle()
        self.answer(2, 1)
        self.bench.stop()
        self.assertIsNone(self.partition.gathering)

    def test_cancelled(self) -> None:
        """Who waits no more is not told."""
        self.ask(b"a")
        self.answer(1, 1)
        self.partition.whenGathered(self.tell)()
        self.ask(b"b")
        self.assertEqual(self.told, [])

    def test_unreplicated(self) -> None:
        """A partition without followers gathers for its flush alone."""
        self.bench = self.makeBench()
        self.ask(b"a")
        self.partition.answered(1)
        self.assertIsNone(self.partition.gathering)


class WatermarkTests(ReplicaPartitionCase):
    """The high watermark when only a file tells where it is."""

    def setUp(self) -> None:
        self.bench = self.makeBench(isReplicated=True, indexInterval=100)
        self.data = b"".join(stamped(batch(b"%d" % offset), offset, 0) for offset in range(9))
        self.follow(self.data)
        self.bench.stop()
        self.bench = Bench(self.bench.site)
        self.partition = self.bench.partition()

    def test_search(self) -> None:
        """It moves when a worker has found the byte; the largest that was told counts."""
        log = self.bench.log()
        for offset in (3, 5, 4):
            self.partition.setHighWatermark(offset)
        self.assertEqual((log.highWatermark, len(self.bench.worker.jobs)), (0, 1))
        self.bench.settle()
        self.assertEqual((log.highWatermark, self.partition.soughtWatermark), (5, -1))
        self.assertEqual(readAll(log), self.data[: len(self.data) // 9 * 5])

    def test_known(self) -> None:
        """A later one that is known does not wait for the search of an earlier one."""
        log = self.bench.log()
        self.partition.setHighWatermark(3)
        self.partition.setHighWatermark(9)
        self.assertEqual(log.highWatermark, 9)
        self.bench.settle()
        self.assertEqual((log.highWatermark, self.partition.soughtWatermark), (9, -1))

    def test_truncatedMeanwhile(self) -> None:
        """A search for what a truncation cuts off finds nothing."""
        log = self.bench.log()
        log.followEpoch(LATEST_EPOCH)
        self.partition.setHighWatermark(7)
        self.assertEqual(self.truncate(4), 4)
        self.bench.settle()
        self.assertLessEqual(log.highWatermark, 4)
        self.follow(stamped(batch(b"another"), 4, 9))
        self.bench.settle()
        self.assertLessEqual(log.highWatermark, 4)


class TruncateTests(ReplicaPartitionCase):
    """The log manager truncates when no other job is under way."""

    def fill(self, count: int = 6) -> bytes:
        data = b"".join(stamped(batch(b"%d" % offset), offset, 0) for offset in range(count))
        self.follow(data)
        return data

    def test_behindFlush(self) -> None:
        """
        A truncation waits for the flush under way, appends wait for the truncation, and those who
        wait for what is cut off are told.
        """
        self.fill()
        told: list[StorageError | None] = []
        for offset in (2, 6):
            self.partition.whenReached(MarkKind.FLUSHED, offset, told.append)
        self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 1)
        later: list[StorageError | None] = []
        self.follow(stamped(batch(b"x"), 6, 0))
        self.partition.whenReached(MarkKind.FLUSHED, 7, later.append)
        cut = Deferred.fromCoroutine(self.partition.truncate(3))
        more = Deferred.fromCoroutine(self.partition.appendAsFollower(stamped(batch(b"new"), 3, 5)))
        self.assertEqual((cut.called, more.called), (False, False))
        self.bench.worker.perform()
        self.assertEqual((told, later), ([None, None], []))
        self.bench.settle()
        self.assertEqual((self.successResultOf(cut), self.successResultOf(more)), (3, 4))
        self.assertIsInstance(later[0], AppendTruncatedError)
        self.assertEqual(self.bench.manager.unflushedSize, self.bench.log().unflushedSize)
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        values = [each[1] for each in readRecords(self.bench.log())]
        self.assertEqual(values, [b"0", b"1", b"2", b"new"])

    def test_nothing(self) -> None:
        """A truncation above the end is answered with the end."""
        self.fill()
        self.assertEqual(self.truncate(9), 6)

    def test_checkpoints(self) -> None:
        """
        Checkpoints that say more than is true are lowered before anything is appended. Otherwise a
        crash would hide, or show, what was appended since.
        """
        self.fill()
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        self.bench.do(self.bench.manager.deleteRecords(self.partition, 4))
        self.bench.do(self.bench.manager.checkpoint())
        self.assertEqual(self.saved("replication-offset-checkpoint"), 6)
        self.assertEqual(self.saved("log-start-offset-checkpoint"), 4)
        self.assertEqual(self.truncate(1), 1)
        self.assertEqual(self.saved("replication-offset-checkpoint"), 1)
        self.assertEqual(self.saved("log-start-offset-checkpoint"), 1)
        self.follow(stamped(batch(b"new"), 1, 5))
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        self.bench.site.kill()
        log = self.bench.site.reopen()
        self.assertEqual((log.logStartOffset, log.logEndOffset), (1, 2))

    def test_checkpointFails(self) -> None:
        """If they cannot be lowered, the truncation fails, and is finished by the next one."""
        self.fill()
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        self.bench.do(self.bench.manager.checkpoint())
        self.bench.site.double.fail("rename", "replication-offset-checkpoint.tmp", errno.EIO)
        self.assertRaises(StorageError, self.bench.do, self.partition.truncate(3))
        self.assertEqual(self.saved("replication-offset-checkpoint"), 6)
        self.assertEqual(self.truncate(3), 3)
        self.assertEqual(self.saved("replication-offset-checkpoint"), 3)

    def test_readersGoOn(self) -> None:
        """A slice that is held of what is cut off has its old bytes, or none."""
        data = self.fill()
        self.bench.manager.flush(self.partition)
        self.bench.settle()
        log = self.bench.log()
        found = self.bench.broker.readBatches(log, 4, 10_000, True, False)
        assert isinstance(found, Slice)
        was = bytesOf(found)
        self.assertEqual(was, data[len(data) // 6 * 4 :])
        self.truncate(3)
        self.follow(stamped(batch(b"another", b"leader"), 3, 7))
        self.bench.settle()
        self.assertEqual(log.logEndOffset, 5)
        self.assertEqual(bytesOf(found), b"")

    def test_lives(self) -> None:
        """
        Followers that append, flush, truncate and checkpoint, and lose their power: what was
        flushed and not truncated is there, and what was truncated is not.
        """
        for seed in range(60):
            self.checkLife(Random(seed), seed)

    def checkLife(self, random: Random, seed: int) -> None:
        self.bench = self.makeBench(segmentSizeMax=random.choice((200, 400)), indexInterval=100)
        model: list[bytes] = []
        for epoch in range(random.randint(1, 4)):
            for _ in range(random.randint(1, 12)):
                piece = stamped(batch(b"%d" % random.randrange(99)), len(model), epoch)
                self.assertEqual(self.follow(piece), len(model) + 1)
                model.append(piece)
                act = random.random()
                if act < 0.2:
                    self.bench.settle()
                elif act < 0.4:
                    self.bench.manager.flush(self.partition)
                elif act < 0.5:
                    self.bench.do(self.bench.manager.checkpoint())
            if random.random() < 0.8:
                offset = random.randint(0, len(model))
                self.assertEqual(self.truncate(offset), offset)
                del model[offset:]
        self.bench.settle()
        flushed = self.bench.log().flushedOffset
        self.bench.site.double.cutPower(random)
        log = self.bench.site.reopen()
        self.assertGreaterEqual(log.logEndOffset, flushed, seed)
        found = readAll(log)
        self.assertEqual(found, b"".join(model)[: len(found)], seed)
        self.assertEqual(log.logEndOffset, len(headersOf(found)), seed)
        self.assertEqual(log.lastEpoch, headersOf(found)[-1].leaderEpoch if found else -1, seed)
