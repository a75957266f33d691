"""
The log of a replica: a leader's batches as they are, and truncation, with power cuts at every step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    AppendTruncatedError,
    LeaderBatchError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    StorageError,
)
from pylogbroker.interfaces import BatchHeader
from pylogbroker.records.recordbatch import controlBatch, readHeader, stampBatch
from pylogbroker.storage.jobs import FindPositionJob
from pylogbroker.storage.kafka.batchlog import BatchLog, CompactionSettings
from pylogbroker.storage.kafka.epochcheckpoint import readEpochs, writeEpochs
from pylogbroker.storage.kafka.epochs import EpochStart
from pylogbroker.storage.kafka.producerstate import encodeSnapshot
from pylogbroker.storage.partitionlog import MarkKind
from pylogbroker.testing.powercut import PowerLostError
from tests.storage.batches import (
    BatchSite,
    batch,
    marker,
    readRecords,
    scan,
    validated,
)
from tests.storage.driving import START_MS, bytesOf, close, flush, read, readAll, roll, run

LATEST_EPOCH = 1000
"""Of leaders whose epoch the test does not look at."""


def lead(log: BatchLog, data: bytes) -> None:
    """Append as a leader does."""
    found = validated(data)
    if log.rollDue(START_MS, found):
        roll(log)
    log.append(found, START_MS)


def endTransaction(log: BatchLog, isCommit: bool, producer: int) -> None:
    log.append(marker(isCommit, producer), START_MS)


def follow(log: BatchLog, data: bytes, nowMs: int = START_MS) -> int:
    """Append as a follower does. Returns how many batches were whole."""
    found = validated(data)
    done, count = 0, len(found.headers)
    while done < count:
        done = log.appendAsFollower(found, done, nowMs)
        if done < count:
            assert roll(log, nowMs)
    log.write()
    return count


def truncate(log: BatchLog, offset: int, isAnew: bool = False) -> StorageError | None:
    job = log.beginTruncate(offset, isAnew)
    if job is None:
        return None
    error = run(job)
    log.finishTruncate(job, error)
    return error


def state(log: BatchLog) -> tuple[object, ...]:
    """What follows from the batches of a log, and what its readers see."""
    producers = sorted(log.producers.producers.values(), key=lambda each: each.producerId)
    times = log.findLargestTime()
    times.run()
    return (
        log.logStartOffset,
        log.logEndOffset,
        log.lastStableOffset,
        encodeSnapshot(producers),
        log.abortedIn(0, log.logEndOffset),
        [each for each in log.epochs.entries if each.startOffset < log.logEndOffset],
        readRecords(log),
        times.found,
    )


def stamped(data: bytes, offset: int, epoch: int) -> bytes:
    """A batch as a leader has it."""
    return bytes(stampBatch(data, readHeader(data), offset, epoch, START_MS))


def headersOf(data: bytes) -> list[BatchHeader]:
    return [entry.header for entry in scan(data) if entry.header is not None]


class ReplicaCase(SynchronousTestCase):
    """A leader's log, and followers' logs."""

    def leader(self, random: Random, count: int = 40, segmentSizeMax: int = 700) -> BatchLog:
        """A log with epochs, producers, transactions and times."""
        log = BatchSite(segmentSizeMax=segmentSizeMax, indexInterval=100).make()
        self.write(log, random, count)
        return log

    def write(self, log: BatchLog, random: Random, count: int, epoch: int = 0) -> None:
        sequences = {1: 0, 2: 0}
        isOpen = False
        log.assignEpoch(epoch)
        for number in range(count):
            act = random.random()
            timestampMs = START_MS + random.randrange(1000)
            values = [b"%d" % number] * random.randint(1, 4)
            if act < 0.2:
                log.assignEpoch(log.leaderEpoch + random.randint(1, 2))
            elif act < 0.4:
                data = batch(
                    *values, producer=1, epoch=epoch, sequence=sequences[1], timestampMs=timestampMs
                )
                lead(log, data)
                sequences[1] += len(values)
            elif act < 0.6:
                data = batch(
                    *values, producer=2, epoch=epoch, sequence=sequences[2], transactional=True
                )
                lead(log, data)
                sequences[2] += len(values)
                isOpen = True
            elif act < 0.75 and isOpen:
                log.append(marker(random.random() < 0.5, 2, epoch), START_MS)
                isOpen = False
            else:
                lead(log, batch(*values, timestampMs=timestampMs))
        log.write()
        flush(log)

    def follower(self, **settings: object) -> BatchLog:
        self.site = BatchSite(**{"segmentSizeMax": 500, "indexInterval": 150, **settings})
        log = self.site.make()
        log.followEpoch(LATEST_EPOCH)
        return log

    def copyOf(self, data: bytes, **settings: object) -> BatchLog:
        """A follower's log that has these batches."""
        log = self.follower(**settings)
        follow(log, data)
        flush(log)
        return log

    def bytesIn(self, log: BatchLog) -> bytes:
        """Of all segment files."""
        found = []
        for segment in log.segments:
            with closing(log._cache.fileSystem.open(segment.path, write=False)) as file:
                found.append(file.readAt(0, file.size()))
        return b"".join(found)

    def prefix(self, data: bytes, offset: int) -> bytes:
        """The batches below an offset."""
        size = sum(each.size for each in headersOf(data) if each.nextOffset <= offset)
        return data[:size]

    def assertSame(self, log: BatchLog, expected: BatchLog, hint: object = None) -> None:
        for one, other in zip(state(log), state(expected), strict=True):
            self.assertEqual(one, other, hint)


class AppendAsFollowerTests(ReplicaCase):
    """A follower's log has the leader's bytes, and knows what they say."""

    def test_same(self) -> None:
        """
        Whatever pieces the leader's bytes come in, and wherever the follower rolls, its log has the
        same bytes, producers, transactions, epochs and times, also after a restart or a kill.
        """
        for seed in range(30):
            random = Random(seed)
            leader = self.leader(random)
            data = readAll(leader)
            log = self.follower(segmentSizeMax=random.choice((150, 400, 3000)))
            left = data
            while left:
                piece = left[: random.randint(300, 900)]
                count = follow(log, piece)
                self.assertGreater(count, 0)
                left = left[sum(each.size for each in headersOf(left)[:count]) :]
            flush(log)
            self.assertEqual(self.bytesIn(log), data, seed)
            self.assertSame(log, leader, seed)
            self.site.kill()
            self.assertSame(self.site.reopen(), leader, seed)
            self.site.close()
            self.assertSame(self.site.reopen(), leader, seed)

    def test_cut(self) -> None:
        """A batch that is not whole is left out; damaged ones are refused, all of them."""
        data = readAll(self.leader(Random(1), 3))
        log = self.follower()
        count = len(headersOf(data))
        self.assertEqual(follow(log, data[:-1]), count - 1)
        self.assertEqual(log.logEndOffset, headersOf(data)[-1].baseOffset)

    def test_gaps(self) -> None:
        """Gaps that compaction has left stay, also between segments and over billions."""
        log = self.follower(segmentSizeMax=200)
        offsets = [0, 3, 4, 9, 1 << 32, (1 << 32) + 1, 1 << 50]
        data = b"".join(stamped(batch(b"x"), offset, 0) for offset in offsets)
        follow(log, data)
        flush(log)
        self.assertEqual(self.bytesIn(log), data)
        for base in [each.baseOffset for each in log.segments[1:]]:
            self.assertIn(base, offsets)
        for offset in (1, 10, 1 << 33, 1 << 50):
            expected = next(each for each in offsets if each >= offset)
            found = bytesOf(read(log, offset, 1000))
            self.assertEqual(readHeader(found).baseOffset, expected)
        self.site.kill()
        log = self.site.reopen()
        self.assertEqual((self.bytesIn(log), log.logEndOffset), (data, offsets[-1] + 1))

    def test_gapBehindEmptySegment(self) -> None:
        """An empty segment is not used for offsets that its index cannot tell."""
        log = self.follower()
        follow(log, stamped(batch(b"a"), 0, 0))
        roll(log)
        follow(log, stamped(batch(b"b"), 1 << 40, 0))
        flush(log)
        self.assertEqual([each.baseOffset for each in log.segments], [0, 1, 1 << 40])
        for _ in range(2):
            found = bytesOf(read(log, 1, 1000))
            self.assertEqual(readHeader(found).baseOffset, 1 << 40)
            self.site.kill()
            log = self.site.reopen()

    def test_markerBehindGap(self) -> None:
        """The end of a transaction is known wherever it is."""
        log = self.follower()
        data = batch(b"a", producer=2, sequence=0, transactional=True)
        follow(log, stamped(data, 1 << 40, 0))
        self.assertEqual(log.lastStableOffset, 1 << 40)
        follow(log, stamped(controlBatch(False, 2, 0, 0, START_MS), (1 << 40) + 1, 0))
        flush(log)
        self.assertEqual(log.lastStableOffset, log.logEndOffset)
        self.assertEqual(len(log.abortedIn(0, log.logEndOffset)), 1)

    def test_refused(self) -> None:
        """
        What is there already, and epochs that go back or are later than the leader's, are refused,
        and nothing is appended.
        """
        log = self.follower()
        follow(log, stamped(batch(b"a", b"b", b"c"), 0, 3))
        good = stamped(batch(b"d"), 3, 3)
        for bad in (
            stamped(batch(b"x"), 0, 3),
            stamped(batch(b"x", b"y"), 2, 3),
            good + good,
            stamped(batch(b"x"), 3, 2),
            good + stamped(batch(b"x"), 4, 2),
            stamped(batch(b"x"), 3, LATEST_EPOCH + 1),
        ):
            self.assertRaises(LeaderBatchError, follow, log, bad)
            self.assertEqual((log.logEndOffset, log.lastEpoch), (3, 3))
        follow(log, good + stamped(batch(b"x"), 4, LATEST_EPOCH))
        self.assertEqual((log.logEndOffset, log.lastEpoch), (5, LATEST_EPOCH))

    def test_lastEpoch(self) -> None:
        """An epoch that was assigned and has no batch is not the last batch's, and gives way."""
        log = self.follower()
        self.assertEqual(log.lastEpoch, -1)
        follow(log, stamped(batch(b"a"), 0, 1))
        log.assignEpoch(7)
        self.assertEqual((log.lastEpoch, log.epochs.latest), (1, 7))
        log.followEpoch(8)
        follow(log, stamped(batch(b"b"), 1, 5))
        self.assertEqual((log.lastEpoch, log.epochs.entries[-1]), (5, (5, 1)))

    def test_emptyEpochBeforeOlderRecords(self) -> None:
        """
        A replica that led, wrote nothing, and follows a leader with more records of the epoch
        before, forgets its own: these records are not of it, with and without a gap before them.
        """
        for offset in (1, 4):
            log = self.follower()
            follow(log, stamped(batch(b"a"), 0, 1))
            log.assignEpoch(7)
            log.followEpoch(8)
            follow(log, stamped(batch(b"b"), offset, 1))
            self.assertEqual((log.lastEpoch, log.epochs.entries), (1, ((1, 0),)))

    def test_largeBatch(self) -> None:
        """A batch that is larger than a segment has one for itself."""
        log = self.follower(segmentSizeMax=100)
        pieces = [stamped(batch(bytes(size)), offset, 0) for offset, size in enumerate((1, 300, 1))]
        follow(log, b"".join(pieces))
        flush(log)
        self.assertEqual([each.baseOffset for each in log.segments], [0, 1, 2])
        self.assertEqual(self.bytesIn(log), b"".join(pieces))

    def test_rollByTime(self) -> None:
        """Segments roll by the follower's segment.ms, in record time."""
        log = self.follower(segmentMs=10)
        for offset, timestampMs in enumerate((0, 10, 11, 20, 22)):
            data = batch(b"x", timestampMs=START_MS + timestampMs)
            follow(log, stamped(data, offset, 0))
        self.assertEqual([each.baseOffset for each in log.segments], [0, 2, 4])

    def test_logAppendTime(self) -> None:
        """A batch that the leader stamped with its time keeps that time, also in the indexes."""
        leader = BatchSite(timeType=True).make()
        data = batch(b"x", timestampMs=5)
        leader.append(validated(data, leader.format), START_MS)
        leader.write()
        flush(leader)
        log = self.follower()
        follow(log, readAll(leader), START_MS + 999)
        flush(log)
        self.assertSame(log, leader)

    def test_closed(self) -> None:
        """Nothing is appended to a log that is closed."""
        log = self.follower()
        close(log)
        self.assertRaises(PartitionOfflineError, follow, log, stamped(batch(b"x"), 0, 0))


class TruncateTests(ReplicaCase):
    """A truncated log is the log that never had more."""

    def everyOffset(self, seed: int) -> Iterator[tuple[BatchLog, int, bytes]]:
        """A follower's log, where to truncate it, and what is left."""
        data = readAll(self.leader(Random(seed), 25))
        end = headersOf(data)[-1].nextOffset
        for offset in range(end + 2):
            log = self.copyOf(data)
            yield log, offset, self.prefix(data, offset)

    def test_everyOffset(self) -> None:
        """
        Batches below the offset stay, with all that they say; a batch across it goes.
        """
        for log, offset, left in self.everyOffset(3):
            before = log.logEndOffset
            self.assertIsNone(truncate(log, offset), offset)
            expected = self.copyOf(left)
            self.assertEqual(self.bytesIn(log), left, offset)
            self.assertSame(log, expected, offset)
            self.assertEqual(log.flushedOffset, log.logEndOffset)
            self.assertLessEqual(log.logEndOffset, min(offset, before))

    def test_restart(self) -> None:
        """A truncated log is found as it is by a restart in order, and by one after a kill."""
        for log, offset, left in self.everyOffset(5):
            site = self.site
            truncate(log, offset)
            end = log.logEndOffset
            more = stamped(batch(b"new", b"er"), end, 90) + stamped(batch(b"last"), end + 2, 91)
            follow(log, more)
            flush(log)
            expected = self.copyOf(left + more)
            self.assertSame(log, expected, offset)
            if offset % 2:
                site.checkpoint()
            site.kill()
            self.assertSame(site.reopen(), expected, offset)
            site.close()
            self.assertSame(site.reopen(), expected, offset)

    def test_files(self) -> None:
        """Nothing of what was cut off is left; the epochs are durable."""
        data = readAll(self.leader(Random(3), 40))
        log = self.copyOf(data)
        truncate(log, 20)
        end = log.logEndOffset
        for name in self.site.names():
            stem = name.partition(".")[0]
            if stem.isdigit():
                self.assertLessEqual(int(stem), end, name)
        entries = readEpochs(self.site.files, log.path).entries
        self.assertTrue(all(each.startOffset < end for each in entries), entries)
        self.assertTrue(entries)

    def test_pending(self) -> None:
        """What was not written is dropped; so is what is written, and not flushed."""
        log = self.follower()
        follow(log, stamped(batch(b"a"), 0, 0) + stamped(batch(b"b"), 1, 0))
        found = validated(stamped(batch(b"c"), 2, 0))
        log.appendAsFollower(found, 0, START_MS)
        truncate(log, 1)
        self.assertEqual((log.logEndOffset, log.unflushedSize, log.pendingSize), (1, 0, 0))
        self.assertEqual(readRecords(log), [(0, b"a")])
        self.site.kill()
        self.assertEqual(self.site.reopen().logEndOffset, 1)

    def test_fullDisk(self) -> None:
        """On a full disk, what could not be written is dropped, though it is below the offset."""
        log = self.follower()
        follow(log, stamped(batch(b"a"), 0, 0))
        found = validated(stamped(batch(b"c"), 1, 0) + stamped(batch(b"d"), 2, 0))
        log.appendAsFollower(found, 0, START_MS)
        self.site.double.fail("write", ".log", errno.ENOSPC)
        truncate(log, 2)
        self.assertEqual((log.logEndOffset, log.blocked), (1, None))

    def test_nothing(self) -> None:
        """Above the end nothing is done; an epoch without batches that begins there is dropped."""
        log = self.copyOf(stamped(batch(b"a"), 0, 1))
        log.assignEpoch(4)
        self.assertIsNone(log.beginTruncate(1))
        self.assertEqual((log.logEndOffset, log.epochs.latest), (1, 1))
        self.assertIsNone(log.beginTruncate(9))

    def test_anew(self) -> None:
        """A log begins anew, above or below where it was, with nothing that it had."""
        data = readAll(self.leader(Random(3), 25))
        for start in (0, 5, 1000):
            log = self.copyOf(data)
            site = self.site
            truncate(log, start, isAnew=True)
            self.assertEqual((log.logStartOffset, log.logEndOffset), (start, start))
            self.assertEqual((log.lastEpoch, log.producers.producers), (-1, {}))
            more = stamped(batch(b"new", producer=1, sequence=7), start, 3)
            follow(log, more)
            flush(log)
            expected = state(log)
            site.kill()
            again = site.reopen()
            self.assertEqual(state(again), expected)
            self.assertEqual(again.epochs.entries[-1], EpochStart(3, start))

    def test_belowStart(self) -> None:
        """A truncation below the first segment begins anew there."""
        log = self.follower()
        truncate(log, 100, isAnew=True)
        follow(log, stamped(batch(b"a"), 100, 0))
        truncate(log, 50)
        self.assertEqual((log.logStartOffset, log.logEndOffset, log.highWatermark), (50, 50, 50))

    def test_openSlice(self) -> None:
        """
        A reader that holds a slice of what is cut off gets no other bytes than those: it finds the
        end of the file, or, in a segment that went as a whole, the bytes as they were.
        """
        data = readAll(self.leader(Random(3), 40))
        old = headersOf(data)
        for offset in range(0, old[-1].nextOffset, 3):
            log = self.copyOf(data)
            held = []
            for each in old:
                part = read(log, each.baseOffset, each.size)
                assert part.file is not None
                part.file.openPinned()
                held.append((each, part, bytesOf(part)))
            truncate(log, offset)
            end = log.logEndOffset
            for number in range(30):
                follow(log, stamped(batch(b"another leader"), end + number, 99))
            flush(log)
            for each, part, was in held:
                assert part.file is not None
                now = os.pread(part.file.fileno(), part.size, part.position)
                self.assertIn(now, (was, b"") if each.nextOffset > end else (was,))
                part.file.unpin()

    def test_readersMeanwhile(self) -> None:
        """While the job runs, readers get what is left, and appends wait."""
        data = readAll(self.leader(Random(3), 40))
        log = self.copyOf(data)
        end = log.logEndOffset
        cut = headersOf(data)[len(headersOf(data)) // 2].baseOffset
        job = log.beginTruncate(cut)
        assert job is not None
        self.assertTrue(log.busy and log.rolling)
        self.assertRaises(ValueError, log.beginTruncate, cut)
        refusal = self.assertRaises(
            PartitionOfflineError, follow, log, stamped(batch(b"x"), end, 99)
        )
        self.assertIn("a truncation is under way", str(refusal))
        self.assertLessEqual(log.highWatermark, cut)
        left = self.prefix(data, cut)
        during = readAll(log)
        self.assertEqual(during, left[: len(during)])
        self.assertGreater(len(during), 0)
        log.finishTruncate(job, run(job))
        self.assertFalse(log.busy)
        self.assertEqual(readAll(log), left)

    def test_searchMeanwhile(self) -> None:
        """A reader whose search began before the truncation searches again."""
        data = readAll(self.leader(Random(3), 40))
        log = self.copyOf(data)
        flush(log)
        self.site.close()
        log = self.site.reopen()
        offset = log.segments[0].baseOffset + 1
        search = log.read(offset, 1000)
        assert isinstance(search, FindPositionJob)
        search.run()
        truncate(log, log.segments[1].baseOffset - 1)
        again = log.read(offset, 1000, search)
        if isinstance(again, FindPositionJob):
            again.run()
            again = log.read(offset, 1000, again)
        assert not isinstance(again, FindPositionJob)
        self.assertEqual(bytesOf(again), data[again.position : again.position + again.size])

    def test_waiters(self) -> None:
        """Those who wait for what is cut off are told; the others go on waiting, or are reached."""
        log = self.follower()
        follow(log, b"".join(stamped(batch(b"x"), offset, 0) for offset in range(4)))
        told: list[tuple[int, object]] = []

        def wait(mark: MarkKind, offset: int) -> None:
            log.whenReached(mark, offset, lambda error: told.append((offset, error)))

        wait(MarkKind.FLUSHED, 2)
        wait(MarkKind.FLUSHED, 3)
        wait(MarkKind.HIGH_WATERMARK, 4)
        wait(MarkKind.LOG_END, 5)
        truncate(log, 2)
        self.assertEqual([each for each in told if each[1] is None], [(2, None)])
        failed = {offset for offset, error in told if isinstance(error, AppendTruncatedError)}
        self.assertEqual(failed, {3, 4, 5})
        self.assertEqual([len(waiters) for waiters in log._waiters.values()], [0] * len(MarkKind))

    def test_fails(self) -> None:
        """A truncation that fails takes the partition out of service; a restart recovers."""
        data = readAll(self.leader(Random(3), 40))
        bases = [each.baseOffset for each in self.copyOf(data).segments]
        inner = next(
            each.baseOffset for each in headersOf(data)[15:] if each.baseOffset not in bases
        )
        for action in ("truncate", "fsync", "rename", "create"):
            log = self.copyOf(data)
            self.site.double.fail(action, ".log", errno.EIO)
            self.assertIsNotNone(truncate(log, inner), action)
            self.assertTrue(log.isOffline)
            self.site.kill()
            log = self.site.reopen()
            left = self.bytesIn(log)
            self.assertEqual(left, data[: len(left)])
            self.assertIsNone(truncate(log, inner))
            self.assertEqual(self.bytesIn(log), self.prefix(data, inner))

    def test_damaged(self) -> None:
        """No batch where the cut must be: nothing is cut, and the partition is out of service."""
        log = self.copyOf(b"".join(stamped(batch(b"x"), offset, 0) for offset in range(3)))
        with closing(self.site.files.open(log.segments[0].path)) as file:
            file.writeAt(file.size() - 3, [b"?"])
        self.assertIsNotNone(truncate(log, 2))
        self.assertTrue(log.isOffline)


class WatermarkTests(ReplicaCase):
    """The high watermark of a replica moves as it is told, and everything ends there."""

    def setUp(self) -> None:
        self.data = readAll(self.leader(Random(3), 40))
        self.offsets = [each.baseOffset for each in headersOf(self.data)]
        self.end = headersOf(self.data)[-1].nextOffset

    def replica(self, **settings: object) -> BatchLog:
        return self.copyOf(self.data, isReplicated=True, **settings)

    def tell(self, log: BatchLog, offset: int) -> None:
        search = log.setHighWatermark(offset)
        while search is not None:
            search.run()
            search = log.setHighWatermark(offset, search)

    def test_told(self) -> None:
        """
        Neither a write nor a flush moves it; what is told does, up to the written end, and never
        back. Readers get exactly what is below.
        """
        log = self.replica()
        self.assertEqual((log.highWatermark, log.flushedOffset), (0, self.end))
        self.assertEqual(readAll(log), b"")
        for offset in self.offsets[::3]:
            self.tell(log, offset)
            self.assertEqual(log.highWatermark, offset)
            self.assertEqual(readAll(log), self.prefix(self.data, offset))
            self.assertLessEqual(log.lastStableOffset, offset)
            self.tell(log, offset - 3)
            self.assertEqual(log.highWatermark, offset)
        self.tell(log, self.end + 100)
        self.assertEqual(log.highWatermark, self.end)
        follow(log, stamped(batch(b"x"), self.end, 99))
        flush(log)
        self.assertEqual(log.highWatermark, self.end)

    def test_search(self) -> None:
        """Where memory does not tell the byte, the file is searched."""
        self.replica()
        self.site.close()
        log = self.site.reopen()
        self.assertEqual(log.highWatermark, 0)
        offset = log.segments[1].baseOffset - 1
        search = log.setHighWatermark(offset)
        assert search is not None
        self.assertEqual(log.highWatermark, 0)
        search.run()
        self.assertIsNotNone(log.setHighWatermark(offset + 2, search))
        self.assertIsNone(log.setHighWatermark(offset, search))
        self.assertEqual(readAll(log), self.prefix(self.data, offset))

    def test_waiters(self) -> None:
        """Those who wait for it, or for the last stable offset, are called."""
        log = self.replica()
        told: list[str] = []
        log.whenReached(MarkKind.HIGH_WATERMARK, 2, lambda error: told.append("high"))
        log.whenReached(MarkKind.LAST_STABLE, 1, lambda error: told.append("stable"))
        self.tell(log, 1)
        self.tell(log, 4)
        self.assertEqual(sorted(told), ["high", "stable"])

    def test_restart(self) -> None:
        """
        After a start it is the checkpoint's, but not above the log end; and what producers had
        ended above it is undecided again.
        """
        for offset in (0, 5, *self.offsets[10::4]):
            log = self.replica()
            self.tell(log, offset)
            roll(log)
            before = (log.highWatermark, log.lastStableOffset, log.stable)
            undecided = dict(log.producers.undecided)
            self.site.checkpoint()
            for stop in (self.site.kill, self.site.close, self.site.kill):
                stop()
                log = self.site.reopen()
                self.assertEqual((log.highWatermark, log.lastStableOffset, log.stable), before)
                self.assertEqual(log.producers.undecided, undecided)
                self.assertEqual(readAll(log), self.prefix(self.data, offset))

    def test_lostEnd(self) -> None:
        """A crash that shortens the log lowers the watermark to its end."""
        self.replica()
        self.site.write("replication-offset-checkpoint", b"0\n1\nt 0 %d\n" % (self.end + 5))
        self.site.kill()
        self.assertEqual(self.site.reopen().highWatermark, self.end)

    def test_lostEndTwice(self) -> None:
        """
        The checkpoint is lowered, too, before anything is appended: the next start would take the
        old one for what another leader's batches have reached.
        """
        log = self.replica()
        self.tell(log, self.end)
        self.site.checkpoint()
        with closing(self.site.files.open(log.segments[-1].path)) as file:
            file.truncate(file.size() - 1)
        self.site.kill()
        log = self.site.reopen()
        end = log.logEndOffset
        self.assertEqual((end < self.end, log.highWatermark), (True, end))
        log.followEpoch(LATEST_EPOCH)
        follow(log, b"".join(stamped(batch(b"x"), end + each, 99) for each in range(9)))
        self.site.kill()
        self.assertEqual(self.site.reopen().highWatermark, end)

    def test_staleEpochs(self) -> None:
        """The batches are right, if the file has epochs that a truncation has cut off."""
        log = self.copyOf(stamped(batch(b"a"), 0, 2) + stamped(batch(b"b"), 1, 4))
        expected = log.epochs.entries
        writeEpochs(self.site.files, log.path, [EpochStart(3, 0)])
        self.site.kill()
        self.assertEqual(self.site.reopen().epochs.entries, expected)

    def test_anotherReplica(self) -> None:
        """A log gets, and loses, other replicas: its watermark stays, or follows its flushes."""
        log = self.copyOf(self.data)
        self.assertEqual(log.highWatermark, self.end)
        log.setReplicated(True)
        follow(log, stamped(batch(b"x"), self.end, 99))
        flush(log)
        self.assertEqual(log.highWatermark, self.end)
        log.setReplicated(False)
        self.assertEqual(log.highWatermark, self.end + 1)

    def test_readWhenWritten(self) -> None:
        """Where readers need no flush, a replica's watermark still moves only as it is told."""
        log = self.follower(isReplicated=True, isReadWhenFlushed=False)
        follow(log, self.data)
        self.assertEqual(log.highWatermark, 0)
        self.tell(log, self.end)
        self.assertEqual(log.highWatermark, self.end)
        self.assertLess(log.flushedOffset, self.end)

    def test_truncate(self) -> None:
        """A truncation above it leaves it; one below lowers it to the new end."""
        for offset, cut in ((10, 20), (20, 20), (20, 10)):
            log = self.replica()
            self.tell(log, offset)
            truncate(log, cut)
            self.assertEqual(log.highWatermark, min(offset, log.logEndOffset))
            self.assertEqual(readAll(log), self.prefix(self.data, min(offset, cut)))
            more = stamped(batch(b"x"), log.logEndOffset, 99)
            follow(log, more)
            flush(log)
            self.assertEqual(log.highWatermark, min(offset, log.logEndOffset - 1))
            self.tell(log, log.logEndOffset)
            self.assertEqual(readAll(log), self.prefix(self.data, cut) + more)

    def test_retention(self) -> None:
        """Nothing that is not below it is deleted, by whatever rule."""
        log = self.replica(retentionSize=0)
        self.assertEqual(log.expired(START_MS), ())
        self.tell(log, log.segments[2].baseOffset + 1)
        self.assertEqual(log.expired(START_MS), log.segments[:2])
        self.assertRaises(OffsetOutOfRangeError, log.deleteRecords, self.end)

    def test_compaction(self) -> None:
        """Only what is below is compacted."""
        log = self.replica(compaction=CompactionSettings())
        self.assertIsNone(log.compactable(START_MS))
        self.tell(log, log.segments[2].baseOffset + 1)
        found = log.compactable(START_MS)
        if found is not None:  # where a transaction is open
            self.assertLessEqual(found.endOffset, log.lastStableOffset)
        self.tell(log, self.end)
        found = log.compactable(START_MS)
        assert found is not None
        self.assertLessEqual(found.endOffset, log.lastStableOffset)

    def test_flushed(self) -> None:
        """A listener is called when the flushed offset has moved, behind those who wait."""
        log = self.follower(isReplicated=True)
        told: list[object] = []
        log.onFlushed = lambda: told.append(log.flushedOffset)
        follow(log, stamped(batch(b"x"), 0, 0))
        log.whenReached(MarkKind.FLUSHED, 1, told.append)
        self.assertEqual(told, [])
        flush(log)
        self.assertEqual(told, [None, 1])
        self.assertFalse(flush(log))
        self.assertEqual(told, [None, 1])
        follow(log, stamped(batch(b"x"), 1, 0))
        roll(log)
        self.assertEqual(told, [None, 1, 2])
        truncate(log, 1)
        self.assertEqual(told, [None, 1, 2, 1])


class TruncatePowerCutTests(ReplicaCase):
    """A power cut at any step of a truncation."""

    def checkEveryStep(self, offset: int, isAnew: bool = False) -> int:
        """Returns how many steps there are."""
        data = readAll(self.leader(Random(3), 40))
        left = b"" if isAnew else self.prefix(data, offset)
        for step in range(300):
            log = self.copyOf(data)
            site = self.site
            if step % 3 == 0:
                site.checkpoint()
            job = log.beginTruncate(offset, isAnew)
            assert job is not None
            site.double.cutAt = site.double.operationCount + step
            try:
                job.run()
                return step
            except PowerLostError:
                pass
            site.double.cutPower(Random(step))
            log = site.reopen()
            log.followEpoch(LATEST_EPOCH)
            found = self.bytesIn(log)
            self.assertEqual(found, data[: len(found)], step)
            if not isAnew:
                self.assertGreaterEqual(len(found), len(left), step)
            self.assertSame(log, self.found(found, log.logStartOffset), step)
            self.assertIsNone(truncate(log, offset, isAnew), step)
            self.assertEqual(self.bytesIn(log), left, step)
            more = stamped(batch(b"new"), log.logEndOffset, 99)
            follow(log, more)
            flush(log)
            if not isAnew:
                expected = self.copyOf(left + more)
                self.assertSame(log, expected, step)
            known = state(log)
            site.double.cutPower(Random(step))
            self.assertEqual(state(site.reopen()), known, step)
        raise AssertionError("it does not end")

    def found(self, data: bytes, startOffset: int) -> BatchLog:
        """A log as it must be found that has these batches, and this start if it has none."""
        log = self.copyOf(data)
        if startOffset and not data:
            truncate(log, startOffset, isAnew=True)
        return log

    def test_middle(self) -> None:
        """Between segments, inside of one, and inside of a batch."""
        data = readAll(self.leader(Random(3), 40))
        log = self.copyOf(data)
        bases = [each.baseOffset for each in log.segments]
        inner = next(each for each in headersOf(data) if each.lastOffsetDelta > 1)
        for offset in (bases[-2], bases[-2] + 1, inner.baseOffset + 1, log.logEndOffset - 1):
            self.assertGreater(self.checkEveryStep(offset), 10)

    def test_start(self) -> None:
        """All of it."""
        self.checkEveryStep(0)

    def test_anew(self) -> None:
        """A new start, above and below the old end."""
        self.checkEveryStep(1000, isAnew=True)
        self.checkEveryStep(7, isAnew=True)


class PowerCutTests(ReplicaCase):
    """A follower's life, up to a power cut at any step, and the next one."""

    def test_lives(self) -> None:
        """
        After any power cut the log is a beginning of what it had, with everything that was flushed
        and not truncated; its watermark is one that it had, or its end; and it goes on.
        """
        for seed in (*range(60), 211, 239, 426, 670, 734):
            self.checkLife(seed)

    def checkLife(self, seed: int) -> int:
        """Returns how many file operations it had."""
        random = Random(seed)
        site = BatchSite(
            segmentSizeMax=random.choice((250, 600)), indexInterval=100, isReplicated=True
        )
        site.double.pageSize = random.choice((16, 64, 512))
        log = site.make()
        had: list[bytes] = []
        for _ in range(3):
            log.followEpoch(LATEST_EPOCH)
            site.double.cutAt = site.double.operationCount + random.randrange(1, 150)
            had, flushed, watermark = self.live(site, log, random, had)
            site.double.cutPower(random)
            if random.random() < 0.3:
                site.double.cutAt = site.double.operationCount + random.randrange(20)
                try:
                    site.open()
                except PowerLostError:
                    pass
                site.double.cutPower(random)
            log = site.reopen()
            found = self.bytesIn(log)
            self.assertEqual(found, b"".join(had)[: len(found)], seed)
            count = len(headersOf(found))
            self.assertEqual(len(b"".join(had[:count])), len(found), seed)
            self.assertGreaterEqual(log.logEndOffset, flushed, seed)
            self.assertLessEqual(log.highWatermark, min(watermark, log.logEndOffset), seed)
            del had[count:]
            self.assertSame(log, self.replicaOf(found, log.highWatermark), seed)
        return site.double.operationCount

    def replicaOf(self, data: bytes, highWatermark: int) -> BatchLog:
        log = self.copyOf(data, isReplicated=True)
        log.setHighWatermark(highWatermark)
        return log

    def live(
        self, site: BatchSite, log: BatchLog, random: Random, had: list[bytes]
    ) -> tuple[list[bytes], int, int]:
        """
        Returns the batches that the log may have, where it may not end before, and the largest high
        watermark.
        """
        had = list(had)
        ends = [0]
        for data in had:
            ends.append(headersOf(data)[0].nextOffset)
        flushed, watermark = log.flushedOffset, log.highWatermark
        epoch = max(log.lastEpoch, 0)
        try:
            for number in range(80):
                act = random.random()
                if act < 0.55:
                    epoch += random.random() < 0.1
                    values = [b"%d" % number] * random.randint(1, 3)
                    data = stamped(batch(*values, producer=1, sequence=number), ends[-1], epoch)
                    had.append(data)
                    ends.append(headersOf(data)[0].nextOffset)
                    follow(log, data)
                elif act < 0.75:
                    flush(log)
                elif act < 0.85:
                    search = log.setHighWatermark(random.choice(ends))
                    if search is not None:
                        search.run()
                        log.setHighWatermark(search.offset, search)
                elif act < 0.92:
                    site.checkpoint()
                else:
                    index = random.randrange(len(ends))
                    flushed = min(flushed, ends[index])
                    job = log.beginTruncate(ends[index])
                    if job is not None:
                        job.run()
                        log.finishTruncate(job, None)
                    del had[index:], ends[index + 1 :]
                    for name in site.directory.checkpointsAhead(log):
                        checkpoint = site.directory.beginCheckpoint((name,))
                        assert checkpoint is not None
                        checkpoint.run()
                        site.directory.finishCheckpoint(checkpoint, None)
                    epoch = max(log.lastEpoch, 0)
                flushed = max(flushed, log.flushedOffset)
                watermark = max(watermark, log.highWatermark)
        except PowerLostError:
            pass
        return had, flushed, watermark
