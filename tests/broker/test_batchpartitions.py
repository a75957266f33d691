"""
Partitions of record batches under the log manager: acknowledgements by group commit, DeleteRecords,
checkpoints, removal, and power cuts.
"""

from __future__ import annotations

import errno
import os
import select
from collections import deque
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactor
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.logmanager import (
    GATHER_COUNT_MAX,
    GATHER_PAUSE_COUNT,
    GATHER_SECONDS,
    LogManager,
    Partition,
)
from pylogbroker.broker.server import Broker
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import (
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionOfflineError,
    StorageError,
)
from pylogbroker.interfaces import AppendResult
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.aiofsync import AioFsync
from pylogbroker.net.pagecache import PageCache
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.checkpoints import readOffsets
from pylogbroker.storage.partitionlog import MarkKind
from pylogbroker.testing.powercut import PowerLostError
from pylogbroker.testing.worker import ManualWorker
from pylogbroker.types import TopicPartition
from tests.storage.batches import BatchSite, batch, readRecords, validated
from tests.storage.driving import START_MS

PLACE = TopicPartition("t", 0)


class Bench:
    """
    A log manager over partitions of record batches; time and workers come when the test says so.
    """

    def __init__(
        self,
        site: BatchSite | None = None,
        flushesAcks: bool = True,
        aioFsync: Any = None,
        **settings: Any,
    ) -> None:
        self.site = site or BatchSite(**settings)
        self.clock = Clock()
        self.clock.rightNow = START_MS / 1000
        self.worker = ManualWorker()
        self.readWorker = ManualWorker()
        brokerSettings = BrokerSettings.fromProperties(
            {
                "brokerid": "0",
                "enable.zookeeper": "false",
                "log.dir": self.site.root,
                "log.flush.acks.all": str(flushesAcks).lower(),
                "log.cleanup.interval.mins": "1000",
            },
            lambda warning: None,
        )
        self.site.open()
        counters = BrokerCounters(10)
        self.pageCache = PageCache(100)
        self.manager = LogManager(
            self.clock, self.worker, brokerSettings, self.pageCache, counters.flushes, aioFsync
        )
        self.manager.start(self.site.directory)
        self.broker = Broker(
            self.clock,
            self.site.directory,
            brokerSettings,
            self.manager,
            self.pageCache,
            self.readWorker,
            counters,
        )

    def partition(self, topic: str = "t") -> Partition:
        """An existing partition, or a new one."""
        log = self.site.directory.get(topic, 0) or self.site.make(topic)
        return self.manager.partition(log)

    def log(self) -> BatchLog:
        return self.site.batchLog()

    def turn(self) -> None:
        """End the reactor's turn."""
        self.clock.advance(0)

    def settle(self) -> None:
        """Do whatever there is to do now, or behind the short wait of a flush."""
        for _ in range(1000):
            self.turn()
            if self.worker.performAll():
                continue
            soon = self.clock.seconds() + GATHER_SECONDS
            if not any(call.getTime() <= soon for call in self.clock.getDelayedCalls()):
                return
            self.clock.advance(GATHER_SECONDS)
        raise AssertionError("it does not come to rest")

    def send(
        self, data: bytes, acks: list[StorageError | None], isByAll: bool = True
    ) -> AppendResult:
        """What a producer's request does: append, and wait for the acknowledgement."""
        partition = self.partition()
        found = validated(data)
        result = partition.append(found, self.manager.nowMs())
        while result is None:
            waiting = partition.awaitAdmission()
            self.settle()
            assert waiting.called
            result = partition.append(found, self.manager.nowMs())
        partition.whenAcknowledged(result, isByAll, acks.append)
        return result

    def do(self, coroutine: Any) -> Any:
        """The result of a coroutine that needs the workers."""
        found: list[Any] = []
        running = Deferred.fromCoroutine(coroutine)
        running.addBoth(found.append)
        for _ in range(100):
            if found:
                break
            self.settle()
            self.readWorker.performAll()
        if hasattr(found[0], "raiseException"):
            found[0].raiseException()
        return found[0]

    def stop(self) -> None:
        """Stop in order."""
        self.manager.stopTimers()
        for log in list(self.site.directory.logs.values()):
            self.do(self.manager.close(log))
        self.manager.stop()
        self.site.directory.writeCleanShutdownMarker()
        self.site.directory.close()


class AcknowledgeTests(SynchronousTestCase):
    """When a producer gets its answer."""

    def setUp(self) -> None:
        self.bench = Bench()
        self.acks: list[StorageError | None] = []

    def test_written(self) -> None:
        """C{acks=1} is answered when the batch is in the page cache, at the end of the turn."""
        self.bench.send(batch(b"a"), self.acks, False)
        self.assertEqual(self.acks, [])
        self.bench.turn()
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([None], 0))

    def test_groupCommit(self) -> None:
        """
        One fsync answers all that came in the turn; what comes while it runs waits for the next.
        """
        self.sendEach(b"abc")
        self.assertEqual((len(self.bench.worker.jobs), self.acks), (0, []))
        self.bench.turn()
        self.assertEqual((len(self.bench.worker.jobs), self.acks), (1, []))
        self.sendEach(b"de")
        self.bench.turn()
        self.assertEqual((len(self.bench.worker.jobs), self.acks), (1, []))
        self.bench.worker.perform()
        self.assertEqual(self.acks, [None] * 3)
        self.bench.settle()
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([None] * 5, 0))
        self.assertEqual(self.bench.log().highWatermark, 5)

    def sendEach(self, values: bytes) -> None:
        """Requests that come in one turn."""
        for value in values:
            self.bench.send(batch(b"%c" % value), self.acks)

    def flushOf(self, values: bytes) -> None:
        """A flush that ends while these wait for it, and begins with the first."""
        self.sendEach(values[:1])
        self.bench.turn()
        self.sendEach(values[1:])
        self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 1)
        self.acks.clear()
        self.bench.worker.perform()
        self.assertEqual(self.acks, [None])

    def test_gather(self) -> None:
        """
        The next flush waits until the requests that were answered have been followed by as many.
        """
        self.flushOf(b"abcde")
        self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 0)
        self.sendEach(b"f")
        self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 1)
        self.bench.worker.perform()
        self.assertEqual((self.acks, self.bench.worker.jobs), ([None] * 6, deque()))
        self.sendEach(b"ghij")
        self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 0)
        self.sendEach(b"k")
        self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 1)

    def test_gatherInVain(self) -> None:
        """
        Where fewer follow, it waits for a millisecond behind the last that needs the flush; then
        some flushes do not wait.
        """
        self.flushOf(b"abcd")
        self.sendEach(b"e")
        self.bench.settle()
        for value, isByAll in ((b"f", True), (b"g", True), (b"h", False)):
            self.bench.send(batch(value), [], isByAll)
            self.bench.turn()
            self.assertEqual(len(self.bench.worker.jobs), 0)
            self.bench.clock.advance(GATHER_SECONDS / 2)
        self.assertEqual(len(self.bench.worker.jobs), 1)
        self.bench.settle()
        for _ in range(GATHER_PAUSE_COUNT // 2):
            self.flushOf(b"ab")
            self.bench.turn()
            self.assertEqual(len(self.bench.worker.jobs), 1)
            self.bench.worker.perform()
        self.flushOf(b"ab")
        self.assertEqual(len(self.bench.worker.jobs), 0)

    def test_gatherBesideJob(self) -> None:
        """No gathering begins while a flush is under way: its end looks for further requests."""
        self.flushOf(b"abcde")
        self.bench.manager.flush(self.bench.partition())
        self.bench.send(batch(b"f"), [], False)
        self.bench.turn()
        self.assertIsNone(self.bench.partition().gathering)
        self.bench.settle()
        self.assertEqual(self.acks, [None] * 5)

    def test_gatherFew(self) -> None:
        """It does not wait where more than L{GATHER_COUNT_MAX} requests share a flush."""
        self.flushOf(bytes(range(GATHER_COUNT_MAX + 1)))
        self.assertEqual(len(self.bench.worker.jobs), 1)

    def test_gatherEnds(self) -> None:
        """A flush for another reason ends the wait, and so does the end of the partition."""
        self.flushOf(b"ab")
        (waiting,) = self.bench.clock.getDelayedCalls()[:1]
        self.bench.manager.flush(self.bench.partition())
        self.assertEqual((len(self.bench.worker.jobs), waiting.active()), (1, 0))
        self.bench.settle()
        self.flushOf(b"ab")
        (waiting,) = self.bench.clock.getDelayedCalls()[:1]
        self.bench.stop()
        self.assertEqual((self.acks, waiting.active()), ([None] * 2, 0))

    def test_gatherWhileRemoved(self) -> None:
        """The end of the partition ends the wait, too, and those who wait are told."""
        self.flushOf(b"ab")
        (waiting,) = self.bench.clock.getDelayedCalls()[:1]
        removed = Deferred.fromCoroutine(
            self.bench.manager.remove(self.bench.partition().topicPartition)
        )
        self.assertEqual(waiting.active(), 0)
        self.bench.settle()
        self.successResultOf(removed)
        self.assertIsInstance(self.acks[1], StorageError)

    def test_withoutFlush(self) -> None:
        """By setting, C{acks=all} is answered from the page cache, as by Kafka."""
        self.bench = Bench(flushesAcks=False, isReadWhenFlushed=False)
        self.bench.send(batch(b"a"), self.acks)
        self.bench.turn()
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([None], 0))
        self.assertEqual(self.bench.log().highWatermark, 1)

    def test_duplicate(self) -> None:
        """A batch that comes again waits for the same flush, and takes no room."""
        data = batch(b"a", producer=1, sequence=0)
        self.bench.send(data, self.acks)
        self.bench.turn()
        unflushedSize = self.bench.manager.unflushedSize
        self.assertTrue(self.bench.send(data, self.acks).isDuplicate)
        self.bench.turn()
        self.assertEqual((self.acks, self.bench.manager.unflushedSize), ([], unflushedSize))
        self.bench.worker.perform()
        self.assertEqual((self.acks, self.bench.manager.unflushedSize), ([None, None], 0))
        self.assertTrue(self.bench.send(data, self.acks).isDuplicate)
        self.assertEqual(self.acks, [None] * 3)

    def test_failure(self) -> None:
        """When the flush fails, nobody is acknowledged: all get the failure."""
        self.bench.send(batch(b"a"), self.acks)
        self.bench.send(batch(b"b"), self.acks, False)
        self.bench.site.double.fail("fsync", ".log", errno.EIO)
        self.bench.settle()
        self.assertEqual(self.acks[0], None)
        self.assertIsInstance(self.acks[1], PartitionOfflineError)
        self.flushLoggedErrors()

    def test_cancel(self) -> None:
        """A cancelled wait is not called, and needs no flush any more."""
        partition = self.bench.partition()
        result = partition.append(validated(batch(b"a")), START_MS)
        assert result is not None
        partition.whenAcknowledged(result, True, self.acks.append)()
        self.bench.settle()
        self.assertEqual((self.acks, self.bench.log().flushedOffset), ([], 0))

    def test_waitingFetch(self) -> None:
        """A fetch that waits starts a flush: now, and for what comes while it waits."""
        partition = self.bench.partition()
        self.bench.send(batch(b"a"), self.acks, False)
        self.bench.settle()
        self.assertEqual(self.bench.log().highWatermark, 0)
        partition.whenReached(MarkKind.HIGH_WATERMARK, 1, self.acks.append)
        self.bench.settle()
        self.assertEqual((self.bench.log().highWatermark, len(self.acks)), (1, 2))
        partition.whenReached(MarkKind.HIGH_WATERMARK, 2, self.acks.append)
        self.bench.settle()
        self.bench.send(batch(b"b"), self.acks, False)
        self.bench.settle()
        self.assertEqual((self.bench.log().highWatermark, len(self.acks)), (2, 4))

    def test_waitingReader(self) -> None:
        """A reader that waits for more starts the flush that it needs."""
        partition = self.bench.partition()
        self.bench.send(batch(b"a"), self.acks, False)
        self.bench.settle()
        self.assertEqual(self.bench.log().highWatermark, 0)
        partition.whenReached(MarkKind.HIGH_WATERMARK, 1, self.acks.append)
        self.bench.settle()
        self.assertEqual(self.bench.log().highWatermark, 1)

    def test_cached(self) -> None:
        """What readers may see is known to be cached: after the flush, or after the write."""
        for isReadWhenFlushed in (True, False):
            self.bench = Bench(isReadWhenFlushed=isReadWhenFlushed)
            self.bench.send(batch(b"a"), self.acks, isReadWhenFlushed)
            self.bench.settle()
            path = self.bench.log().segments[0].path
            self.assertIn((path, 0), self.bench.pageCache._recent)

    def test_roll(self) -> None:
        """While the segment rolls, producers wait; then they go on in the next one."""
        self.bench = Bench(segmentSizeMax=200)
        for number in range(9):
            self.bench.send(batch(b"%d" % number * 20), self.acks)
        self.bench.settle()
        self.assertEqual((self.acks, len(self.bench.log().segments)), ([None] * 9, 5))


class KernelFlushTests(SynchronousTestCase):
    """Flushes that the kernel does, without a worker."""

    def setUp(self) -> None:
        self.aio = AioFsync(MemoryReactor())
        self.addCleanup(self.aio.stop)
        self.bench = Bench(aioFsync=self.aio)
        self.acks: list[StorageError | None] = []
        self.bench.send(batch(b"a"), self.acks)
        self.bench.turn()
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([], 0))

    def test_flush(self) -> None:
        """It is acknowledged when the kernel has synced the file; so is the next one."""
        for count in (1, 2):
            select.select([self.aio], [], [])
            self.aio.doRead()
            self.assertEqual(self.acks, [None] * count)
            self.assertEqual(self.bench.log().flushedOffset, count)
            self.bench.send(batch(b"b"), self.acks)
            self.bench.turn()
        self.assertEqual(len(self.bench.worker.jobs), 0)

    def test_failure(self) -> None:
        """The partition is out of service, and its file is not synced again."""
        file = self.bench.log().segments[-1].file
        self.aio.ended(1, -errno.EIO)
        self.assertIsInstance(self.acks[0], PartitionOfflineError)
        self.assertIn(os.strerror(errno.EIO), str(self.acks[0]))
        self.assertRaises(StorageError, file.sync)
        self.flushLoggedErrors()

    def test_stopped(self) -> None:
        """What the kernel is not asked for, a worker does."""
        self.aio.ended(1, 0)
        self.aio.stop()
        self.bench.send(batch(b"b"), self.acks)
        self.bench.turn()
        self.assertEqual((self.acks, len(self.bench.worker.jobs)), ([None], 1))
        self.bench.settle()
        self.assertEqual(self.acks, [None, None])


class DeleteTests(SynchronousTestCase):
    """DeleteRecords, checkpoints, and removed partitions."""

    def setUp(self) -> None:
        self.bench = Bench(segmentSizeMax=200)
        for number in range(9):
            self.bench.send(batch(b"%d" % number * 20), [])
        self.bench.settle()

    def starts(self) -> dict[TopicPartition, int]:
        path = self.bench.site.path("log-start-offset-checkpoint")
        return readOffsets(self.bench.site.files, path)

    def test_deleteRecords(self) -> None:
        """The answer comes when the log start is durable; then the segments below go."""
        partition = self.bench.partition()
        answer = Deferred.fromCoroutine(self.bench.broker.deleteRecords(partition, 5))
        self.assertNoResult(answer)
        self.bench.worker.perform()
        self.assertEqual(self.successResultOf(answer), 5)
        self.assertEqual(self.starts(), {PLACE: 5})
        self.bench.settle()
        self.assertEqual([each.baseOffset for each in partition.log.segments], [4, 6, 8])
        self.assertEqual(self.bench.do(self.bench.broker.deleteRecords(partition, 3)), 5)
        self.assertEqual(self.bench.do(self.bench.broker.deleteRecords(partition, -1)), 9)
        refused = self.bench.broker.deleteRecords(partition, 10)
        self.assertRaises(OffsetOutOfRangeError, self.bench.do, refused)

    def test_deleteRecordsFails(self) -> None:
        """Without a checkpoint there is no answer but the failure."""
        self.bench.site.double.fail("rename", ".tmp", errno.EIO)
        delete = self.bench.broker.deleteRecords(self.bench.partition(), 5)
        self.assertRaises(StorageError, self.bench.do, delete)
        self.assertEqual(self.starts(), {})
        again = self.bench.broker.deleteRecords(self.bench.partition(), 5)
        self.assertEqual(self.bench.do(again), 5)
        self.assertEqual(self.starts(), {PLACE: 5})

    def test_deleteRecordsTwice(self) -> None:
        """A second request for an offset is answered when the first one's checkpoint is written."""
        partition = self.bench.partition()
        answers = [
            Deferred.fromCoroutine(self.bench.broker.deleteRecords(partition, 5)) for _ in range(2)
        ]
        self.assertNoResult(answers[1])
        self.bench.settle()
        self.assertEqual([self.successResultOf(each) for each in answers], [5, 5])
        self.assertEqual(self.starts(), {PLACE: 5})

    def test_checkpointByTheClock(self) -> None:
        """The checkpoints are written every minute, if something has changed."""
        path = self.bench.site.path("recovery-point-offset-checkpoint")
        self.bench.clock.advance(60)
        self.bench.settle()
        self.assertEqual(readOffsets(self.bench.site.files, path), {PLACE: 9})
        self.bench.clock.advance(60)
        self.assertEqual(len(self.bench.worker.jobs), 0)
        self.bench.send(batch(b"x"), [])
        self.bench.settle()
        self.bench.clock.advance(60)
        self.bench.clock.advance(60)
        self.assertEqual(len(self.bench.worker.jobs), 1)
        self.bench.settle()
        self.assertEqual(readOffsets(self.bench.site.files, path), {PLACE: 10})

    def test_producersExpire(self) -> None:
        """Producers that did not write for a day are forgotten."""
        self.bench.send(batch(b"x", producer=1, sequence=0), [])
        self.bench.settle()
        self.bench.clock.advance(86_400 - 1)
        self.bench.settle()
        self.assertEqual(list(self.bench.log().producers.producers), [1])
        self.bench.clock.advance(601)
        self.bench.settle()
        self.assertEqual(list(self.bench.log().producers.producers), [])

    def test_offsetForTime(self) -> None:
        """Look-ups by time are done by a worker; without a candidate at once."""
        broker, partition = self.bench.broker, self.bench.partition()
        found = self.bench.do(broker.offsetForTime(partition, START_MS))
        self.assertEqual((found.offset, found.timestampMs), (0, START_MS))
        largest = self.bench.do(broker.offsetForTime(partition, None))
        self.assertEqual(largest, found)
        answer = Deferred.fromCoroutine(broker.offsetForTime(partition, START_MS + 1))
        self.assertIsNone(self.successResultOf(answer))

    def test_remove(self) -> None:
        """A removed partition fails those who wait, and is gone when the answer comes."""
        acks: list[StorageError | None] = []
        self.bench.send(batch(b"x"), acks)
        partition = self.bench.partition()
        self.bench.turn()
        removed = Deferred.fromCoroutine(self.bench.manager.remove(partition.topicPartition))
        self.bench.worker.perform()
        self.assertEqual(acks, [None])
        self.bench.settle()
        self.successResultOf(removed)
        self.assertEqual(
            (self.bench.manager.unflushedSize, self.bench.site.directory.logs), (0, {})
        )
        self.assertRaises(PartitionOfflineError, partition.append, validated(batch(b"y")), START_MS)
        self.assertFalse(
            [name for name in self.bench.site.files.list(self.bench.site.root) if "t-0" in name]
        )
        self.assertIsNot(self.bench.partition(), partition)

    def test_removeWaiting(self) -> None:
        """What waits for a flush of a partition that is removed gets the failure."""
        acks: list[StorageError | None] = []
        partition = self.bench.partition()
        partition.whenReached(MarkKind.HIGH_WATERMARK, 10, acks.append)
        self.bench.do(self.bench.manager.remove(partition.topicPartition))
        self.assertIsInstance(acks[0], PartitionOfflineError)

    def test_removeLeavesFiles(self) -> None:
        """What cannot be removed now is logged, and removed at the next start."""
        self.bench.site.double.fail("remove", ".log", errno.EIO)
        self.bench.do(self.bench.manager.remove(self.bench.partition().topicPartition))
        names = self.bench.site.files.list(self.bench.site.root)
        self.assertEqual(len([name for name in names if name.endswith("-delete")]), 1)

    def test_stop(self) -> None:
        """After an orderly stop nothing is checked."""
        self.bench.stop()
        self.bench = Bench(self.bench.site)
        self.assertFalse([each for each in self.bench.site.reports if each.isWarning])
        self.assertEqual(self.bench.log().logEndOffset, 9)


class PowerCutTests(SynchronousTestCase):
    """A producer with C{acks=all} and idempotence, over power cuts and kills."""

    def live(self, seed: int, syncs: bool = True) -> None:
        random = Random(seed)
        site = BatchSite(segmentSizeMax=random.choice((300, 900)), indexInterval=100)
        site.double.pageSize = random.choice((16, 64, 512))
        bench = Bench(site)
        bench.partition()
        site.double.syncs = syncs
        sent: list[bytes] = []  # each is acknowledged before the next begins
        for _ in range(4):
            site.double.cutAt = site.double.operationCount + random.randrange(1, 80)
            try:
                for _ in range(30):
                    # The last may have been stored without an answer: it is sent again.
                    self.produce(bench, random, sent)
            except (PowerLostError, PartitionOfflineError):
                self.assertRaises(PowerLostError, site.files.status, "/")
            self.flushLoggedErrors(PowerLostError)
            if random.random() < 0.3:
                site.double.cutAt = None
                site.double.kill()
            else:
                site.double.cutPower(random)
            bench = Bench(site)
            self.assertEqual(site.directory.failures, {})
            found = [value for _, value in readRecords(bench.log())]
            self.assertIn(found, (sent[:-1], sent), seed)
        site.double.cutAt = None
        self.produce(bench, random, sent)
        found = [value for _, value in readRecords(bench.log())]
        self.assertEqual(found, sent, seed)

    def produce(self, bench: Bench, random: Random, sent: list[bytes]) -> None:
        """Send the last batch again, then new ones."""
        count = random.randrange(1, 4)
        for number in range(max(len(sent) - 1, 0), len(sent) + count):
            value = b"%d" % number
            if number == len(sent):
                sent.append(value)
            acks: list[StorageError | None] = []
            bench.send(batch(value, producer=1, sequence=number), acks)
            bench.settle()
            if not acks:
                raise PowerLostError("no answer")
            if acks[0] is not None:
                raise acks[0]
            if random.random() < 0.1:
                bench.do(bench.manager.checkpoint())

    def test_acknowledgedIsKept(self) -> None:
        """
        Whatever was acknowledged by all is there after power cuts and kills, once: a producer that
        sends its last batch again gets its offset, or is taken in.
        """
        for seed in range(60):
            self.live(seed)

    def test_skippedSyncsAreFound(self) -> None:
        """A log that skips every C{fsync} fails the test above: the test of the test."""
        for seed in range(60):
            try:
                self.live(seed, False)
            except self.failureException:
                return
        self.fail("nothing was lost")

    def test_outOfOrderAfterRestart(self) -> None:
        """After a stop, only the last batch of a producer is known, as by Kafka."""
        bench = Bench()
        acks: list[StorageError | None] = []
        for number in range(3):
            bench.send(batch(b"x", producer=1, sequence=number), acks)
        bench.settle()
        bench.stop()
        bench = Bench(bench.site)
        self.assertTrue(bench.send(batch(b"x", producer=1, sequence=2), acks).isDuplicate)
        old = batch(b"x", producer=1, sequence=1)
        self.assertRaises(OutOfOrderSequenceError, bench.send, old, acks)
