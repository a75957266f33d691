"""
The log of record batches: producers, transactions, flush on demand, rolls, retention, look-ups.
"""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    BatchSizeError,
    CoordinatorFencedError,
    InvalidTransactionStateError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionOfflineError,
    StorageError,
)
from pylogbroker.interfaces import AppendResult, Slice
from pylogbroker.storage.jobs import FindPositionJob
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.partitionlog import MarkKind
from pylogbroker.storage.segments import Segment
from tests.storage.batches import BatchSite, batch, marker, validated, values
from tests.storage.driving import START_MS, bytesOf, clean, flush, retire, roll, run


class BatchLogCase(SynchronousTestCase):
    """One partition."""

    def start(self, **settings: object) -> BatchLog:
        self.site = BatchSite(**settings)
        self.log = self.site.make()
        return self.log

    def append(self, data: bytes, nowMs: int = START_MS) -> AppendResult:
        """What the owner does: roll if need be, append, write."""
        found = validated(data, self.log.format)
        if self.log.rollDue(nowMs, found):
            roll(self.log, nowMs)
        result = self.log.append(found, nowMs)
        self.log.write()
        return result

    def appendFlushed(self, data: bytes, nowMs: int = START_MS) -> AppendResult:
        result = self.append(data, nowMs)
        flush(self.log)
        return result

    def end(self, isCommit: bool, producer: int, epoch: int = 0) -> AppendResult:
        result = self.log.append(marker(isCommit, producer, epoch), START_MS)
        self.log.write()
        return result

    def read(
        self, offset: int, sizeMax: int = 1 << 20, committed: bool = False, whole: bool = False
    ) -> list[tuple[int, bytes | None]]:
        """The records that a fetch gets, from the batch with the offset on."""
        return values(bytesOf(self.slice(offset, sizeMax, committed, whole)))

    def slice(
        self, offset: int, sizeMax: int = 1 << 20, committed: bool = False, whole: bool = False
    ) -> Slice:
        found = self.log.read(offset, sizeMax, None, committed, whole)
        for _ in range(2):
            if isinstance(found, FindPositionJob):
                found.run()
                found = self.log.read(offset, sizeMax, found, committed, whole)
        assert isinstance(found, Slice)
        return found

    def sequence(self, *counts: int) -> None:
        """Batches of records, flushed; values are the offsets."""
        for count in counts:
            first = self.log.logEndOffset
            self.append(batch(*(b"%d" % (first + each) for each in range(count))))
        flush(self.log)


class AppendTests(BatchLogCase):
    """Offsets, producers, markers."""

    def test_offsets(self) -> None:
        """Each record has an offset; the answer names the first and the last."""
        self.start()
        self.assertEqual(self.append(batch(b"0", b"1", b"2")), (0, 2, START_MS, False))
        self.assertEqual(self.append(batch(b"3")), (3, 3, START_MS, False))
        flush(self.log)
        self.assertEqual(self.read(0), [(n, b"%d" % n) for n in range(4)])
        self.assertEqual(self.read(3), [(3, b"3")])

    def test_duplicate(self) -> None:
        """A batch that an idempotent producer sends again gets its offsets; nothing is added."""
        self.start()
        data = batch(b"a", b"b", producer=7, sequence=0)
        self.append(data)
        self.append(batch(b"c", producer=7, sequence=2))
        size = self.log.unflushedSize
        self.assertEqual(self.append(data), (0, 1, START_MS, True))
        self.assertEqual((self.log.logEndOffset, self.log.unflushedSize), (3, size))

    def test_outOfOrder(self) -> None:
        """A gap in a producer's sequence is refused, and changes nothing."""
        self.start()
        self.append(batch(b"a", producer=7, sequence=0))
        later = batch(b"c", producer=7, sequence=2)
        self.assertRaises(OutOfOrderSequenceError, self.append, later)
        self.assertEqual(self.log.logEndOffset, 1)
        self.append(batch(b"b", producer=7, sequence=1))

    def test_appendTime(self) -> None:
        """With LogAppendTime, batches have the broker's time, in the log and in what it knows."""
        self.start(timeType=True)
        self.appendFlushed(batch(b"a", producer=1, sequence=0, timestampMs=5), START_MS + 9)
        entry = self.log.producers.producers[1]
        self.assertEqual(entry.timestampMs, START_MS + 9)
        self.assertEqual(self.log.segments[0].timestampMs, START_MS + 9)

    def test_fencedCoordinator(self) -> None:
        """A marker of an older coordinator is refused."""
        self.start()
        self.log.append(marker(True, 1, 0, 5), START_MS)
        old = marker(True, 1, 0, 4)
        self.assertRaises(CoordinatorFencedError, self.log.append, old, START_MS)

    def test_refusing(self) -> None:
        """A closed log appends, reads, looks up and deletes nothing."""
        log = self.start()
        log.remove()
        log.remove()
        found = validated(batch(b"a"))
        for act in (
            lambda: log.append(found, START_MS),
            lambda: log.read(0, 1),
            lambda: log.findTime(0),
            lambda: log.findLargestTime(),
            lambda: log.deleteRecords(0),
        ):
            self.assertRaises(PartitionOfflineError, act)
        self.assertEqual(log.expired(START_MS), ())
        self.assertIsNone(log.beginDelete((), START_MS))

    def test_removeWhileBusy(self) -> None:
        """A log cannot be removed while a job of it is under way."""
        log = self.start()
        self.append(batch(b"a"))
        job = log.beginFlush()
        assert job is not None
        self.assertRaises(ValueError, log.remove)
        log.finishFlush(job, run(job), START_MS)


class TransactionTests(BatchLogCase):
    """What readers of committed records see."""

    def test_lastStableOffset(self) -> None:
        """Readers of committed records wait for the marker of the oldest transaction."""
        self.start()
        self.append(batch(b"0"))
        self.append(batch(b"1", producer=1, sequence=0, transactional=True))
        self.append(batch(b"2"))
        flush(self.log)
        self.assertEqual((self.log.highWatermark, self.log.lastStableOffset), (3, 1))
        self.assertEqual(self.read(0, committed=True), [(0, b"0")])
        self.assertEqual(self.read(1, committed=True), [])
        self.assertEqual(self.read(0), [(0, b"0"), (1, b"1"), (2, b"2")])
        self.end(True, 1)
        self.assertEqual(self.log.lastStableOffset, 1)
        flush(self.log)
        self.assertEqual((self.log.highWatermark, self.log.lastStableOffset), (4, 4))
        self.assertEqual(self.read(1, committed=True), [(1, b"1"), (2, b"2")])
        self.assertEqual(self.log.abortedIn(0, 4), [])

    def test_waiters(self) -> None:
        """Whoever waits for the last stable offset is called when it has moved."""
        self.start()
        self.append(batch(b"0", producer=1, sequence=0, transactional=True))
        flush(self.log)
        calls: list[StorageError | None] = []
        self.log.whenReached(MarkKind.LAST_STABLE, 1, calls.append)
        self.append(batch(b"1"))
        flush(self.log)
        self.assertEqual(calls, [])
        self.end(True, 1)
        flush(self.log)
        self.assertEqual(calls, [None])

    def test_aborted(self) -> None:
        """The aborted transactions of a range are known, over segments and restarts."""
        self.start()
        for producer in (1, 2):
            self.append(batch(b"x", producer=producer, sequence=0, transactional=True))
        self.end(False, 1)
        roll(self.log)
        self.end(False, 2)
        self.append(batch(b"y", producer=2, sequence=1, transactional=True))
        self.end(False, 2)
        flush(self.log)
        expected = [(1, 0, 2, 1), (2, 1, 3, 4), (2, 4, 5, 6)]
        for attempt in range(3):
            self.assertEqual(self.log.abortedIn(0, 6), expected, attempt)
            self.assertEqual(self.log.abortedIn(0, 1), expected[:1], attempt)
            self.assertEqual(self.log.abortedIn(4, 6), expected[2:], attempt)
            if attempt < 2:
                (self.site.close, self.site.kill)[attempt]()
                self.log = self.site.reopen()

    def test_outside(self) -> None:
        """A producer cannot write outside of its ongoing transaction."""
        self.start()
        self.append(batch(b"0", producer=1, sequence=0, transactional=True))
        plain = batch(b"1", producer=1, sequence=1)
        self.assertRaises(InvalidTransactionStateError, self.append, plain)

    def test_commitWithoutRecords(self) -> None:
        """A marker without a transaction is appended, and nothing waits for it."""
        self.start()
        self.assertEqual(self.end(True, 1)[:2], (0, 0))
        flush(self.log)
        self.assertEqual(self.log.lastStableOffset, 1)

    def test_ongoingOverRestart(self) -> None:
        """An ongoing transaction is ongoing after a stop, and after a kill; readers end there."""
        self.start()
        self.sequence(2)
        self.append(batch(b"2", producer=1, sequence=0, transactional=True))
        self.append(batch(b"3"))
        flush(self.log)
        for end in (self.site.close, self.site.kill):
            end()
            self.log = self.site.reopen()
            self.assertEqual((self.log.highWatermark, self.log.lastStableOffset), (4, 2))
            self.assertEqual(self.read(0, committed=True), [(0, b"0"), (1, b"1")])
        self.end(True, 1)
        flush(self.log)
        self.assertEqual(self.log.lastStableOffset, 5)


class ReadTests(BatchLogCase):
    """Slices."""

    def test_range(self) -> None:
        """Below the log start and above the log end is out of range; at the end is nothing."""
        self.start()
        self.sequence(2)
        self.append(batch(b"2"))
        self.assertEqual(self.read(2), [])
        self.assertEqual(self.read(3), [])
        self.assertRaises(OffsetOutOfRangeError, self.log.read, 4, 10)
        self.assertRaises(OffsetOutOfRangeError, self.log.read, -1, 10)
        self.log.deleteRecords(1)
        self.assertRaises(OffsetOutOfRangeError, self.log.read, 0, 10)
        self.assertEqual(self.slice(1, 0).size, 0)
        self.assertEqual(self.slice(1, -5).size, 0)

    def test_search(self) -> None:
        """After a restart the file tells where a batch is."""
        self.start(indexInterval=100)
        self.sequence(*[3] * 40)
        self.site.close()
        self.log = self.site.reopen()
        self.assertIsInstance(self.log.read(50, 1000), FindPositionJob)
        self.assertEqual(self.read(50, 1000)[0], (48, b"48"))
        self.assertEqual(self.read(119), [(117 + each, b"%d" % (117 + each)) for each in range(3)])

    def test_wholeBatch(self) -> None:
        """The first batch comes whole on request, though it is larger than what was asked for."""
        self.start()
        self.sequence(5, 5)
        self.assertEqual(self.slice(0, 10).size, 10)
        self.assertEqual(self.read(0, 10, whole=True), [(n, b"%d" % n) for n in range(5)])
        self.assertEqual(self.read(7, 0, whole=True), [(n, b"%d" % n) for n in range(5, 10)])
        self.assertEqual(len(self.read(0, 110, whole=True)), 5)
        self.assertEqual(len(self.read(0, 1000, whole=True)), 10)
        self.log.configure(replace(self.log.settings, batchSizeMax=20))
        self.assertEqual(
            len(self.read(0, 20, whole=True)), 5
        )  # an old batch, larger than allowed now

    def test_gap(self) -> None:
        """An offset in a gap, as compaction leaves them, reads from behind it."""
        self.start()
        self.sequence(2)
        roll(self.log)
        self.sequence(3)
        roll(self.log)
        self.sequence(1)
        self.log._list = self.log._list.replaced(1, 2)
        self.assertEqual(self.read(3), [(5, b"5")])
        self.assertEqual(self.read(3, 10, whole=True), [(5, b"5")])

    def test_wholeBatchBehindGap(self) -> None:
        """
        The first batch behind a gap comes whole, though it is larger than what is allowed now; also
        after a restart, when only the file tells where the batches are.
        """
        self.start(indexInterval=100)
        self.sequence(2)
        roll(self.log)
        self.sequence(3)
        roll(self.log)
        self.sequence(3, 3)
        self.site.close()
        self.log = self.site.reopen()
        self.log._list = self.log._list.replaced(1, 2)
        self.log.configure(replace(self.log.settings, batchSizeMax=20))
        expected = [(n, b"%d" % n) for n in range(5, 8)]
        self.assertEqual(self.read(3, 10, whole=True), expected)
        search: FindPositionJob | None = None
        for segment in (self.log.segments[0], self.log.segments[1]):
            found = self.log.read(3, 10, search, False, True)
            assert isinstance(found, FindPositionJob)
            self.assertIs(found.segment, segment)
            found.run()
            search = found
        segment = self.log.segments[1]
        other = Segment(segment.baseOffset, segment.file, segment.size, 0, segment.index)
        self.log._list = self.log._list.replaced(1, 2, [other])  # meanwhile, by compaction
        found = self.log.read(3, 10, search, False, True)
        assert isinstance(found, FindPositionJob)
        self.assertIs(found.segment, self.log.segments[0])


class MarkTests(BatchLogCase):
    """Marks, and the flushes that they need."""

    def test_flushOnDemand(self) -> None:
        """A flush is wanted when someone waits for the flushed offset, and while something is
        unflushed."""
        self.start()
        self.assertFalse(self.log.wantsFlush)
        calls: list[StorageError | None] = []
        self.append(batch(b"0"))
        self.assertFalse(self.log.wantsFlush)
        self.log.whenReached(MarkKind.FLUSHED, 1, calls.append)
        self.assertTrue(self.log.wantsFlush)
        flush(self.log)
        self.assertEqual((calls, self.log.wantsFlush), ([None], False))

    def test_waitingFetch(self) -> None:
        """A fetch that waits needs a flush as soon as there is something to flush."""
        for mark in (MarkKind.HIGH_WATERMARK, MarkKind.LAST_STABLE):
            self.start()
            cancel = self.log.whenReached(mark, 1, lambda failure: None)
            self.assertFalse(self.log.wantsFlush)
            self.append(batch(b"0"))
            self.assertTrue(self.log.wantsFlush)
            cancel()
            self.assertFalse(self.log.wantsFlush)

    def test_readWhenWritten(self) -> None:
        """By setting, readers see what is in the page cache, and no fetch needs a flush."""
        self.start(isReadWhenFlushed=False)
        calls: list[StorageError | None] = []
        self.log.whenReached(MarkKind.HIGH_WATERMARK, 1, calls.append)
        self.append(batch(b"0"))
        self.assertEqual((self.log.highWatermark, self.log.flushedOffset, calls), (1, 0, [None]))
        self.log.whenReached(MarkKind.HIGH_WATERMARK, 2, calls.append)
        self.assertFalse(self.log.wantsFlush)
        self.assertEqual(self.read(0), [(0, b"0")])

    def test_written(self) -> None:
        """The written offset moves with the write, before any flush."""
        self.start()
        calls: list[StorageError | None] = []
        self.log.append(validated(batch(b"0")), START_MS)
        self.log.whenReached(MarkKind.WRITTEN, 1, calls.append)
        self.assertEqual(calls, [])
        self.log.write()
        self.assertEqual(calls, [None])
        self.log.whenReached(MarkKind.LOG_END, 1, calls.append)
        self.assertEqual(calls, [None, None])


class RollTests(BatchLogCase):
    """When a new segment begins, and what is saved then."""

    def test_bySize(self) -> None:
        """No segment exceeds its size; a batch that fits into none is refused."""
        self.start(segmentSizeMax=200)
        for _ in range(9):
            self.append(batch(b"x" * 20))
        self.assertEqual(len(self.log.segments), 5)
        self.assertTrue(all(each.writtenSize <= 200 for each in self.log.segments))
        self.assertRaises(BatchSizeError, self.append, batch(b"x" * 200))
        self.append(batch(b"x" * 120))

    def test_byRecordTime(self) -> None:
        """Segments roll by the distance of record times, not by the clock."""
        self.start(segmentMs=1000)
        self.append(batch(b"0", timestampMs=START_MS))
        self.append(batch(b"1", timestampMs=START_MS + 1000), START_MS + 10**9)
        self.assertEqual(len(self.log.segments), 1)
        self.append(batch(b"2", timestampMs=START_MS + 1001))
        self.append(batch(b"3", timestampMs=5))
        self.assertEqual([each.baseOffset for each in self.log.segments], [0, 2])
        flush(self.log)
        self.site.close()
        self.log = self.site.reopen()
        self.append(batch(b"4", timestampMs=START_MS + 2002))
        self.assertEqual([each.baseOffset for each in self.log.segments], [0, 2, 4])

    def test_withoutBatches(self) -> None:
        """Without something to append nothing is due."""
        self.assertFalse(self.start(segmentMs=0).rollDue(START_MS))

    def test_snapshots(self) -> None:
        """Each roll writes a snapshot of the producers, and so does the orderly close."""
        self.start()
        for number in range(3):
            self.append(batch(b"x", producer=1, sequence=number))
            roll(self.log)
        self.append(batch(b"x", producer=1, sequence=3))
        self.assertTrue(self.site.close())
        self.assertEqual(
            [name for name in self.site.names() if name.endswith(".snapshot")],
            [f"{offset:020d}.snapshot" for offset in (1, 2, 3, 4)],
        )

    def test_noSnapshot(self) -> None:
        """A log that nothing was written to needs none, and begins where it did."""
        self.start()
        self.assertTrue(self.site.close())
        self.assertEqual(
            [name for name in self.site.names() if name.endswith(".snapshot")],
            [],
        )
        self.log = self.site.reopen()
        self.assertEqual((self.log.logEndOffset, self.log.producers.endOffset), (0, 0))
        self.append(batch(b"x", producer=1, sequence=0))
        self.assertEqual(self.log.logEndOffset, 1)

    def test_configure(self) -> None:
        """Changed settings hold for the next append."""
        self.start(segmentSizeMax=10_000)
        for _ in range(5):
            self.append(batch(b"x" * 100))
        self.site.batchSettings["segmentSizeMax"] = 1000
        self.site.directory.configure("t")
        self.append(batch(b"x" * 100))
        self.append(batch(b"x" * 100))
        self.assertEqual(len(self.log.segments), 2)
        self.assertEqual(self.log.bytesUntilRoll, 1000 - self.log.segments[1].writtenSize)


class RetentionTests(BatchLogCase):
    """Which segments go."""

    def test_byRecordTime(self) -> None:
        """A segment goes when its newest record is too old, whatever the time of its file."""
        self.start(retentionMs=1000)
        for number in range(3):
            self.append(batch(b"x", timestampMs=START_MS + 100 * number))
            roll(self.log)
        self.assertEqual(clean(self.log, START_MS + 1000), 0)
        self.assertEqual(clean(self.log, START_MS + 1101), 2)
        self.assertEqual(self.log.logStartOffset, 2)
        self.assertEqual(
            self.site.names()[:3],
            [f"{2:020d}.index", f"{2:020d}.log", f"{2:020d}.snapshot"],
        )

    def test_keepForEver(self) -> None:
        """A negative C{retention.ms} keeps everything."""
        self.start(retentionMs=-1)
        self.sequence(1)
        roll(self.log)
        self.assertEqual(clean(self.log, 1 << 62), 0)

    def test_activeToo(self) -> None:
        """When all records are too old, the log rolls, and only an empty segment is left."""
        self.start(retentionMs=1000)
        self.sequence(2)
        self.assertEqual(clean(self.log, START_MS + 1001), 1)
        self.assertEqual((self.log.logStartOffset, self.log.logEndOffset), (2, 2))

    def test_notBeyondTheHighWatermark(self) -> None:
        """What readers could not see yet is not deleted."""
        self.start(retentionMs=1000)
        self.append(batch(b"0"))
        self.assertEqual(self.log.expired(START_MS + 5000), ())
        flush(self.log)
        self.assertEqual(len(self.log.expired(START_MS + 5000)), 1)

    def test_withoutTimestamps(self) -> None:
        """Without timestamps a segment goes by the time of its last append."""
        self.start(retentionMs=1000)
        self.appendFlushed(batch(b"0", timestampMs=-1))
        self.assertEqual(self.log.segments[0].timestampMs, START_MS)
        self.assertEqual(self.log.expired(START_MS + 1000), ())
        self.assertEqual(len(self.log.expired(START_MS + 1001)), 1)

    def test_abortedGoToo(self) -> None:
        """The aborted transactions of a deleted segment go with it."""
        self.start()
        self.append(batch(b"x", producer=1, sequence=0, transactional=True))
        self.end(False, 1)
        roll(self.log)
        self.assertIn(f"{0:020d}.txnindex", self.site.names())
        self.log.deleteRecords(-1)
        self.assertEqual(retire(self.log, self.log.expired(START_MS)), 1)
        self.assertEqual(self.log.abortedIn(0, 9), [])
        self.assertNotIn(f"{0:020d}.txnindex", self.site.names())


class DeleteRecordsTests(BatchLogCase):
    """Moving the log start."""

    def test_segmentsBelow(self) -> None:
        """Segments below the log start go; one that holds the start stays."""
        self.start()
        for _ in range(3):
            self.sequence(2)
            roll(self.log)
        self.assertTrue(self.log.deleteRecords(3))
        self.assertEqual(self.log.logStartOffset, 3)
        self.assertEqual(clean(self.log, START_MS), 1)
        self.assertEqual((self.log.logStartOffset, self.log.segments[0].baseOffset), (3, 2))
        self.assertEqual(self.read(3), [(2, b"2"), (3, b"3")])

    def test_limits(self) -> None:
        """-1 is the high watermark; above it is out of range; below the start nothing changes."""
        self.start()
        self.sequence(4)
        self.append(batch(b"4"))
        self.assertRaises(OffsetOutOfRangeError, self.log.deleteRecords, 5)
        self.assertRaises(OffsetOutOfRangeError, self.log.deleteRecords, -2)
        self.assertTrue(self.log.deleteRecords(2))
        self.assertFalse(self.log.deleteRecords(1))
        self.assertTrue(self.log.deleteRecords(-1))
        self.assertEqual(self.log.logStartOffset, 4)
        self.assertEqual(self.log.epochs.entries, ((0, 4),))

    def test_durable(self) -> None:
        """With the checkpoint, the log start survives a power cut."""
        self.start()
        self.sequence(4)
        self.log.deleteRecords(3)
        self.site.checkpoint()
        self.site.double.cutPower()
        self.log = self.site.reopen()
        self.assertEqual((self.log.logStartOffset, self.log.logEndOffset), (3, 4))

    def test_durableBesideDeletion(self) -> None:
        """The log start is in the checkpoint as long as segments below it may come back."""
        self.start()
        for _ in range(3):
            self.sequence(2)
            roll(self.log)
        self.log.deleteRecords(4)
        job = self.log.beginDelete(self.log.expired(START_MS), START_MS)
        self.assertEqual((self.log.segments[0].baseOffset, self.log.oldestOffset), (4, 0))
        self.site.checkpoint()
        self.site.double.cutPower()
        self.log = self.site.reopen()
        self.assertEqual(self.log.logStartOffset, 4)
        job = self.log.beginDelete(self.log.expired(START_MS), START_MS)
        assert job is not None
        job.run()
        self.log.finishDelete(job, None)
        self.assertEqual(self.log.oldestOffset, 4)


class TimeTests(BatchLogCase):
    """Offsets by time."""

    def find(self, timestampMs: int) -> tuple[int, int] | None:
        job = self.log.findTime(timestampMs)
        job.run()
        return None if job.found is None else (job.found.offset, job.found.timestampMs)

    def start(self, **settings: object) -> BatchLog:
        super().start(**settings)
        for number in range(6):
            self.append(batch(b"a", b"b", timestampMs=1000 * number))
            if number % 2:
                roll(self.log)
        flush(self.log)
        return self.log

    def test_byTime(self) -> None:
        """The first record that is not older; L{None} if all are older."""
        self.start()
        for timestampMs, answer in (
            (-1, (0, 0)), (0, (0, 0)), (1, (2, 1000)), (1000, (2, 1000)), (2500, (6, 3000)),
            (5000, (10, 5000)), (5001, None),
        ):  # fmt: skip
            self.assertEqual(self.find(timestampMs), answer, timestampMs)

    def test_notBelowTheStart(self) -> None:
        """Deleted records are not found."""
        self.start()
        self.log.deleteRecords(3)
        self.assertEqual(self.find(0), (3, 1000))

    def test_largest(self) -> None:
        """The first record with the largest timestamp; none in an empty log."""
        self.start()
        self.appendFlushed(batch(b"c", timestampMs=7))
        job = self.log.findLargestTime()
        job.run()
        assert job.found is not None
        self.assertEqual((job.found.offset, job.found.timestampMs), (10, 5000))
        empty = self.site.make("u")
        job = empty.findLargestTime()
        job.run()
        self.assertIsNone(job.found)
