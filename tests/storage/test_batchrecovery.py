"""
Loading partitions of record batches: after stops, kills and power cuts, from damaged and missing
files, from directories like Apache's.
"""

from __future__ import annotations

import errno
from random import Random
from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import OutOfOrderSequenceError, StorageError
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.storage.events import DamagedFileIgnored, SegmentTruncated
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.batchrecovery import LoadRequest, loadBatches
from pylogbroker.storage.kafka.checkpoints import readOffsets, readTopicId
from pylogbroker.storage.kafka.producerstate import encodeSnapshot
from pylogbroker.testing.powercut import PowerLostError
from pylogbroker.types import TopicPartition
from tests.storage.batches import BatchSite, batch, marker, readRecords, validated
from tests.storage.driving import START_MS, clean, flush, roll

ID = UUID("f3a1b0c4-1234-4abc-8def-0123456789ab")


def append(log: BatchLog, data: bytes) -> int:
    """Append and write a batch, with a roll if need be. Returns its base offset."""
    found = validated(data)
    if log.rollDue(START_MS, found):
        roll(log)
    result = log.append(found, START_MS)
    log.write()
    return result.baseOffset


def end(log: BatchLog, isCommit: bool, producer: int) -> None:
    log.append(marker(isCommit, producer), START_MS)
    log.write()


def state(log: BatchLog) -> tuple[object, ...]:
    """What a restart must find again: of each producer's batches, only the last."""
    producers = sorted(log.producers.producers.values(), key=lambda each: each.producerId)
    return (
        log.logStartOffset,
        log.logEndOffset,
        log.lastStableOffset,
        log.stable if log.producers.ongoing else None,
        encodeSnapshot(producers),
        log.abortedIn(0, log.logEndOffset),
        log.epochs.entries,
        readRecords(log),
    )


class RecoveryCase(SynchronousTestCase):
    """A partition with segments, producers and transactions."""

    def fill(self, **settings: object) -> BatchLog:
        self.site = BatchSite(**settings)
        self.log = log = self.site.make()
        for number in range(4):
            append(log, batch(b"a", b"b", producer=1, sequence=2 * number))
            append(log, batch(b"c", producer=2, sequence=number, transactional=True))
            append(log, batch(b"d"))
            end(log, number == 2, 2)
            if number < 3:
                roll(log)
        append(log, batch(b"e", producer=3, sequence=0, transactional=True))
        append(log, batch(b"f", producer=1, sequence=8))
        flush(log)
        return log

    def assertSame(self, before: tuple[object, ...], log: BatchLog) -> None:
        for one, other in zip(before, state(log), strict=True):
            self.assertEqual(one, other)

    def damage(self, name: str) -> None:
        """Remove a file of the partition."""
        self.site.files.remove(self.site.path(f"t-0/{name}"))

    def segment(self, offset: int, suffix: str = "log") -> str:
        return f"{offset:020d}.{suffix}"


class RestartTests(RecoveryCase):
    """Everything is found again."""

    def test_stop(self) -> None:
        """After an orderly stop nothing is scanned, and everything is as it was."""
        before = state(self.fill())
        self.assertTrue(self.site.close())
        log = self.site.reopen()
        self.assertSame(before, log)
        self.assertEqual(log.producers.snapshotOffset, 22)

    def test_kill(self) -> None:
        """After a kill a scan finds the same, with and without a checkpoint."""
        before = state(self.fill())
        for attempt in range(3):
            if attempt == 1:
                self.site.checkpoint()
            self.site.kill()
            self.assertSame(before, self.site.reopen())

    def test_empty(self) -> None:
        """An empty partition is loaded, and has an epoch."""
        self.site = BatchSite()
        self.site.make()
        for close in (self.site.close, self.site.kill):
            close()
            log = self.site.reopen()
            self.assertEqual((log.logEndOffset, log.epochs.entries), (0, ((0, 0),)))

    def test_strayTransactions(self) -> None:
        """Aborted transactions of no segment are removed: a later segment may have that offset."""
        before = state(self.fill())
        self.site.write("t-0/00000000000000000099.txnindex", bytes(34))
        self.site.kill()
        self.assertSame(before, self.site.reopen())
        self.assertNotIn("00000000000000000099.txnindex", self.site.names())

    def test_duplicateAfterRestart(self) -> None:
        """A producer's last batch is known after a kill: its repetition is answered."""
        self.fill()
        self.site.kill()
        log = self.site.reopen()
        again = log.append(validated(batch(b"f", producer=1, sequence=8)), START_MS)
        self.assertEqual((again.baseOffset, again.isDuplicate), (21, True))
        self.assertRaises(
            OutOfOrderSequenceError,
            log.append,
            validated(batch(b"x", producer=1, sequence=12)),
            START_MS,
        )

    def test_logStart(self) -> None:
        """Log start and epochs survive retention, DeleteRecords and restarts."""
        log = self.fill()
        log.deleteRecords(7)
        clean(log, START_MS)
        self.site.checkpoint()
        before = state(log)
        self.assertEqual(log.epochs.entries, ((0, 7),))
        for close in (self.site.kill, self.site.close, self.site.kill):
            close()
            self.assertSame(before, self.site.reopen())

    def test_strays(self) -> None:
        """Snapshots that belong to no segment are removed, but for the latest."""
        log = self.fill()
        self.site.close()
        log = self.site.reopen()
        append(log, batch(b"g"))
        roll(log)
        append(log, batch(b"h"))
        self.site.close()
        self.site.reopen()
        self.assertEqual(
            [name for name in self.site.names() if name.endswith(".snapshot")],
            [self.segment(offset, "snapshot") for offset in (5, 10, 15, 23, 24)],
        )

    def test_oldFiles(self) -> None:
        """Files that were deleted or half written before the stop are removed."""
        self.fill()
        self.site.write(f"t-0/{self.segment(99)}.deleted", b"x")
        self.site.write("t-0/leader-epoch-checkpoint.tmp", b"x")
        self.site.kill()
        self.site.reopen()
        self.assertFalse([name for name in self.site.names() if name.endswith(("deleted", "tmp"))])


class DamageTests(RecoveryCase):
    """Files that are missing or broken."""

    def test_everySmallFile(self) -> None:
        """Each small file may be missing or damaged: the log tells the same."""
        before = state(self.fill())
        self.site.close()
        self.site.reopen()
        names = [name for name in self.site.names() if not name.endswith(".log")]
        self.assertEqual({name.rpartition(".")[2] for name in names}, {
            "index", "timeindex", "txnindex", "snapshot", "leader-epoch-checkpoint"
        })  # fmt: skip
        for name in names:
            # Without a .txnindex, or with an empty one, a segment has no aborted transactions.
            isBelieved = name.endswith("txnindex")
            for data in (b"x" * 33,) if isBelieved else (None, b"", b"nonsense"):
                for close in (self.site.close, self.site.kill):
                    close()
                    if name in self.site.names():
                        self.damage(name)
                    if data is not None:
                        self.site.write(f"t-0/{name}", data)
                    self.assertSame(before, self.site.reopen())

    def test_earlierSnapshot(self) -> None:
        """Without its last snapshot, a partition scans from the one before, inside of a segment."""
        log = self.fill()
        self.site.close()
        log = self.site.reopen()
        append(log, batch(b"g", producer=1, sequence=9))
        flush(log)
        before = state(log)
        self.site.close()
        self.damage(self.segment(23, "snapshot"))
        self.assertSame(before, self.site.reopen())

    def test_vanished(self) -> None:
        """A directory that vanishes while it is loaded is no partition."""
        self.fill()
        self.site.close()
        path = self.site.path("t-0")
        request = LoadRequest("t-0", None, 0, 1, START_MS)
        for name in self.site.files.list(path):
            self.site.files.remove(f"{path}/{name}")
        self.site.files.removeDirectory(path)
        cache = self.site.directory.cache
        with self.assertRaises(StorageError):
            loadBatches(cache, path, KafkaFormat(), request, lambda report: None)

    def test_reported(self) -> None:
        """A damaged file is reported, with its name."""
        self.fill()
        self.site.close()
        self.damage("leader-epoch-checkpoint")
        self.site.write("t-0/leader-epoch-checkpoint", b"x")
        self.site.reopen()
        found = [each for each in self.site.reports if isinstance(each, DamagedFileIgnored)]
        self.assertEqual(len(found), 1)
        self.assertIn("leader-epoch-checkpoint", str(found[0]))

    def test_tornEnd(self) -> None:
        """A torn last batch is cut off, with what producers and transactions knew of it."""
        log = self.fill()
        before = state(log)
        append(log, batch(b"g", producer=1, sequence=9))
        end(log, False, 3)
        flush(log)
        active = log.segments[-1]
        self.site.kill()
        file = self.site.files.open(active.path)
        file.truncate(active.writtenSize - 90)
        file.close()
        log = self.site.reopen()
        self.assertSame(before, log)
        self.assertEqual(
            [each.path for each in self.site.reports if isinstance(each, SegmentTruncated)],
            [active.path],
        )

    def test_flippedByteInTheMidst(self) -> None:
        """
        Above the recovery point, a bad batch ends the log, and later segments are deleted, as in
        Apache's directories after a power cut.
        """
        log = self.fill()
        second = log.segments[1]
        self.site.kill()
        file = self.site.files.open(second.path)
        file.writeAt(second.size - 5, [b"\xff"])
        file.close()
        log = self.site.reopen()
        self.assertEqual([each.baseOffset for each in log.segments], [0, 5])
        self.assertEqual((log.logEndOffset, log.producers.ongoing.keys()), (9, {7: 0}.keys()))
        self.assertEqual(log.producers.producers[1].lastSequence, 3)
        self.assertFalse([name for name in self.site.names() if name > self.segment(6)[:20]][1:])
        append(log, batch(b"z", producer=1, sequence=4))
        roll(log)

    def test_belowTheRecoveryPoint(self) -> None:
        """Segments below the recovery point are not read after a kill."""
        log = self.fill()
        self.site.checkpoint()
        first = log.segments[0]
        self.site.kill()
        file = self.site.files.open(first.path)
        file.writeAt(first.size - 5, [b"\xff"])
        file.close()
        self.assertEqual(len(self.site.reopen().segments), 4)

    def test_lostBehindTheStart(self) -> None:
        """A log that lost everything behind its start begins there, empty."""
        log = self.fill(isReadWhenFlushed=False)
        append(log, batch(b"g"))
        log.deleteRecords(23)
        self.site.checkpoint()
        self.site.double.cutPower()
        log = self.site.reopen()
        self.assertEqual((log.logStartOffset, log.logEndOffset), (23, 23))
        self.assertEqual(len(log.segments), 1)
        append(log, batch(b"h"))
        flush(log)
        self.assertEqual(readRecords(log), [(23, b"h")])
        self.site.kill()
        self.assertEqual(self.site.reopen().logEndOffset, 24)

    def test_unreadable(self) -> None:
        """A partition that cannot be read is out of service, alone."""
        self.fill()
        self.site.create("u")
        self.site.close()
        self.site.double.fail("open", "leader-epoch-checkpoint", errno.EIO)
        self.site.open()
        self.assertEqual(list(self.site.directory.failures), [TopicPartition("t", 0)])
        self.assertEqual(list(self.site.directory.logs), [TopicPartition("u", 0)])


class DirectoryTests(RecoveryCase):
    """The log directory's own files, creation and removal."""

    def checkpointOf(self, name: str) -> dict[TopicPartition, int]:
        return readOffsets(self.site.files, self.site.path(name))

    def test_checkpoints(self) -> None:
        """The checkpoints have Apache's names, and the marks as of then."""
        log = self.fill()
        log.deleteRecords(3)
        append(log, batch(b"g"))
        self.site.checkpoint()
        place = TopicPartition("t", 0)
        self.assertEqual(self.checkpointOf("recovery-point-offset-checkpoint"), {place: 22})
        self.assertEqual(self.checkpointOf("replication-offset-checkpoint"), {place: 22})
        self.assertEqual(self.checkpointOf("log-start-offset-checkpoint"), {place: 3})
        self.assertIsNone(self.site.directory.beginCheckpoint())
        self.site.close()
        self.assertEqual(self.checkpointOf("recovery-point-offset-checkpoint"), {place: 23})

    def test_losses(self) -> None:
        """
        A partition that was there and is gone, and one that ends before its high watermark, are
        told at each opening until they are forgotten, also after a start that fails. One whose
        creation was not noted is no loss.
        """
        self.site = BatchSite()
        for topic in ("t", "u", "v"):
            log = self.site.make(topic)
            append(log, batch(b"a", b"b"))
            flush(log)
        self.assertFalse(self.site.directory.isRemembered(TopicPartition("t", 0)))
        self.site.close()
        self.remove("t-0")
        self.remove("u-0")
        for _start in range(2):
            directory = self.site.open(keepsLosses=True)
            self.assertEqual(directory.missing, {TopicPartition("t", 0), TopicPartition("u", 0)})
            self.assertIsNone(directory.beginCheckpoint())
            self.site.close()
        self.site.open()
        self.site.close()
        for name in self.site.files.list(self.site.path("v-0")):
            self.site.files.remove(self.site.path(f"v-0/{name}"))
        for _start in range(2):
            directory = self.site.open(keepsLosses=True)
            self.assertEqual(directory.missing, set())
            self.assertEqual(directory.shortened, {TopicPartition("v", 0)})
            self.site.close()
        directory = self.site.open(keepsLosses=True)
        directory.forgetLosses()
        self.assertEqual(directory.shortened, set())
        self.assertEqual(
            self.checkpointOf("replication-offset-checkpoint"), {TopicPartition("v", 0): 0}
        )

    def test_notedAtTheStart(self) -> None:
        """A partition whose creation a crash has cut off before it was noted, is noted then."""
        self.fill()
        self.site.kill()
        directory = self.site.open(keepsLosses=True)
        self.assertFalse(directory.isRemembered(TopicPartition("t", 0)))
        directory.forgetLosses()
        self.assertTrue(directory.isRemembered(TopicPartition("t", 0)))
        self.assertEqual(list(self.checkpointOf("replication-offset-checkpoint")), [("t", 0)])

    def test_damagedMemory(self) -> None:
        """It is told, too, that nothing is known of partitions that are gone."""
        self.fill()
        self.site.checkpoint()
        self.site.kill()
        self.site.files.remove(self.site.path("replication-offset-checkpoint"))
        self.site.write("replication-offset-checkpoint", b"x")
        self.assertTrue(self.site.open(keepsLosses=True).isMemoryDamaged)
        self.site.directory.forgetLosses()
        self.assertFalse(self.site.directory.isMemoryDamaged)

    def remove(self, name: str) -> None:
        """Remove a partition's directory, as an operator does by hand."""
        path = self.site.path(name)
        for each in self.site.files.list(path):
            self.site.files.remove(f"{path}/{each}")
        self.site.files.removeDirectory(path)

    def test_damagedCheckpoint(self) -> None:
        """Without a readable recovery point every segment is checked."""
        before = state(self.fill())
        self.site.checkpoint()
        self.site.kill()
        self.site.files.remove(self.site.path("recovery-point-offset-checkpoint"))
        self.site.write("recovery-point-offset-checkpoint", b"x")
        self.assertSame(before, self.site.reopen())

    def test_failedCheckpoint(self) -> None:
        """A checkpoint that could not be written is written by the next one."""
        self.fill()
        job = self.site.directory.beginCheckpoint()
        assert job is not None
        self.site.directory.finishCheckpoint(job, StorageError("x", "write", "y"))
        self.site.checkpoint()
        self.assertEqual(len(self.checkpointOf("recovery-point-offset-checkpoint")), 1)

    def test_failedPartitionKeepsItsCheckpoint(self) -> None:
        """A partition that could not be loaded keeps what the checkpoints say of it."""
        log = self.fill()
        log.deleteRecords(7)
        self.site.close()
        self.site.double.fail("open", self.segment(0, "txnindex"), errno.EIO)
        self.site.open()
        self.site.make("u")
        self.site.checkpoint()
        self.site.kill()
        self.assertEqual(self.site.reopen().logStartOffset, 7)

    def test_topicId(self) -> None:
        """A created partition has C{partition.metadata}, durably."""
        self.site = BatchSite()
        self.site.open()
        job = self.site.directory.beginCreate("t", 0, topicId=ID)
        job.run()
        log = self.site.directory.finishCreate(job, None)
        assert isinstance(log, BatchLog)
        self.assertEqual(log.topicId, ID)
        self.site.double.cutPower()
        self.assertEqual(self.site.reopen().topicId, ID)
        self.assertEqual(readTopicId(self.site.files, self.site.path("t-0")), ID)
        remove = self.site.directory.beginRemove(TopicPartition("t", 0))
        self.assertEqual(remove.removedPath, self.site.path(f"t-0.{ID.hex}-delete"))

    def test_remove(self) -> None:
        """A removed partition is gone, and another of its name begins at 0."""
        log = self.fill()
        log.deleteRecords(7)
        self.site.checkpoint()
        place = TopicPartition("t", 0)
        job = self.site.directory.beginRemove(place)
        self.assertRaises(KeyError, self.site.directory.beginRemove, place)
        self.assertEqual((self.site.directory.topics, log.closed), (set(), True))
        job.run()
        self.site.directory.finishRemove(job, None)
        self.assertEqual(self.checkpointOf("log-start-offset-checkpoint"), {})
        self.assertFalse([name for name in self.site.files.list(self.site.root) if "t-0" in name])
        again = self.site.make()
        append(again, batch(b"x"))
        self.site.kill()
        again = self.site.reopen()
        self.assertEqual((again.logStartOffset, again.logEndOffset), (0, 1))

    def test_removeAtEveryStep(self) -> None:
        """After a power cut at any step of a removal the partition is there, or gone for good."""
        isThere = []
        for step in range(100):
            log = self.fill()
            log.deleteRecords(7)
            self.site.checkpoint()
            job = self.site.directory.beginRemove(TopicPartition("t", 0))
            self.site.double.cutAt = self.site.double.operationCount + step
            try:
                job.run()
                break
            except PowerLostError:
                pass
            self.site.double.cutPower(Random(step))
            self.site.open()
            self.assertEqual(self.site.directory.failures, {})
            isThere.append(bool(self.site.directory.logs))
            if isThere[-1]:
                self.assertEqual(self.site.batchLog().logStartOffset, 7)
            else:
                names = self.site.files.list(self.site.root)
                self.assertFalse([name for name in names if name.startswith("t")])
                self.site.make()
                self.site.kill()
                self.assertEqual(self.site.reopen().logStartOffset, 0)
        self.assertEqual(isThere, sorted(isThere, reverse=True))
        self.assertTrue(isThere[0] and not isThere[-1])

    def test_removeFails(self) -> None:
        """If the directory cannot be renamed, the caller is told; later failures are cleaned up."""
        self.fill()
        place = TopicPartition("t", 0)
        self.site.double.fail("rename", "t-0", errno.EIO)
        job = self.site.directory.beginRemove(place)
        error = self.assertRaises(StorageError, job.run)
        self.assertRaises(StorageError, self.site.directory.finishRemove, job, error)
        self.site.kill()
        self.site.open()
        job = self.site.directory.beginRemove(place)
        self.site.double.fail("remove", ".log", errno.EIO)
        error = self.assertRaises(StorageError, job.run)
        self.site.directory.finishRemove(job, error)
        self.site.kill()
        self.site.open()
        self.assertEqual(self.site.directory.logs, {})
        self.assertFalse(
            [name for name in self.site.files.list(self.site.root) if "delete" in name]
        )

    def test_removeFailedPartition(self) -> None:
        """A partition that is out of service can be removed, too; its inner folders go with it."""
        self.fill()
        self.site.files.makeDirectories(self.site.path("t-0/inner"))
        self.site.close()
        self.site.double.fail("open", "leader-epoch-checkpoint", errno.EIO)
        self.site.open()
        job = self.site.directory.beginRemove(TopicPartition("t", 0))
        job.run()
        self.site.directory.finishRemove(job, None)
        self.assertFalse([name for name in self.site.files.list(self.site.root) if "t-0" in name])

    def test_leftOver(self) -> None:
        """What cannot be removed at a start is reported, and tried again at the next."""
        self.fill()
        self.site.write(f"t-1.{ID.hex}-delete/x.log", b"x")
        self.site.kill()
        self.site.double.fail("remove", "x.log", errno.EIO)
        self.site.reopen()
        self.assertTrue(any("x.log" in str(report) for report in self.site.reports))
        self.site.kill()
        self.site.reopen()
        self.assertTrue(any("delete" in str(report) for report in self.site.reports))
        self.assertFalse(
            [name for name in self.site.files.list(self.site.root) if "delete" in name]
        )

    def test_apachesOwn(self) -> None:
        """Apache's metadata log and files are no partitions, and not reported."""
        self.fill()
        self.site.write("__cluster_metadata-0/00000000000000000000.log", b"")
        self.site.write("meta.properties", b"version=1\n")
        self.site.write("bootstrap.checkpoint", b"x")
        self.site.close()
        self.site.reopen()
        self.assertEqual(len(self.site.directory.logs), 1)
        self.assertEqual(len(self.site.reports), 1, self.site.reports)


class PowerCutTests(RecoveryCase):
    """Power cuts at every step of a partition's life."""

    def live(self, random: Random) -> tuple[BatchSite, dict[int, bytes], int, int]:
        """
        A life up to a power cut. Returns the site, what was appended, what was acknowledged by all,
        and the producer's last acknowledged sequence.
        """
        site = BatchSite(segmentSizeMax=random.choice((300, 700)), indexInterval=100)
        site.double.pageSize = random.choice((16, 64, 512))
        log = site.make()
        site.double.cutAt = site.double.operationCount + random.randrange(1, 120)
        sent: dict[int, bytes] = {}
        acknowledged = sequence = known = 0
        isOpen = False
        try:
            for number in range(60):
                value = b"%d" % number
                act = random.random()
                if act < 0.5:
                    offset = append(log, batch(value, producer=1, sequence=sequence))
                    sent[offset] = value
                    sequence += 1
                elif act < 0.7:
                    if not isOpen or random.random() < 0.5:
                        data = batch(value, producer=2, sequence=known, transactional=True)
                        sent[append(log, data)] = value
                        known += 1
                        isOpen = True
                    else:
                        end(log, random.random() < 0.5, 2)
                        isOpen = False
                elif act < 0.75 and log.highWatermark > log.logStartOffset:
                    log.deleteRecords(random.randrange(log.logStartOffset, log.highWatermark))
                    site.checkpoint()
                    clean(log, START_MS)
                elif act < 0.8:
                    site.checkpoint()
                else:
                    flush(log)
                    acknowledged = log.flushedOffset
        except PowerLostError:
            pass
        acknowledged = max(acknowledged, log.flushedOffset)
        site.double.cutPower(random)
        return site, sent, acknowledged, log.logStartOffset

    def test_nothingFlushedIsLost(self) -> None:
        """
        After any power cut what was flushed is there, and what is known of producers is what the
        log's records say.
        """
        for seed in range(150):
            self.checkLife(seed)

    def checkLife(self, seed: int) -> int:
        """Returns how many file operations it had."""
        random = Random(seed)
        site, sent, acknowledged, startOffset = self.live(random)
        if random.random() < 0.5:
            site.double.cutAt = site.double.operationCount + random.randrange(20)
            try:
                site.open()
            except PowerLostError:
                pass
            site.double.cutPower(random)
        log = site.reopen()
        self.assertLessEqual(log.logStartOffset, startOffset, seed)
        self.assertGreaterEqual(log.logEndOffset, acknowledged, seed)
        found = dict(readRecords(log))
        expected = {
            offset: value
            for offset, value in sent.items()
            if log.logStartOffset <= offset < log.logEndOffset
        }
        self.assertEqual(found, expected, seed)
        self.checkProducer(log, sent, seed)
        return site.double.operationCount

    def checkProducer(self, log: BatchLog, sent: dict[int, bytes], seed: int) -> None:
        """The producer's next sequence is the number of its batches that the log had."""
        entry = log.producers.producers.get(1)
        if entry is not None:
            self.assertLess(entry.batches[-1].lastOffset, log.logEndOffset, seed)
            result = log.append(
                validated(batch(b"x", producer=1, sequence=entry.lastSequence + 1)), START_MS
            )
            self.assertFalse(result.isDuplicate)
