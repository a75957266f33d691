"""
Tests of one partition.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import OffsetOutOfRangeError, PartitionOfflineError, StorageError
from pylogbroker.interfaces import EMPTY_SLICE, AppendResult, Slice, ValidatedBatches
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.jobs import FindPositionJob
from pylogbroker.storage.partitionlog import (
    HOUR_MS,
    MarkKind,
    PartitionLog,
    flushedWatermark,
    writtenWatermark,
)
from pylogbroker.storage.segments import byAge, bySize
from pylogbroker.types import LogPosition, TopicPartition
from tests.storage.driving import (
    KAFKA,
    KAFKA07,
    START_MS,
    Site,
    append,
    bytesOf,
    clean,
    close,
    entry,
    flush,
    kafkaBatch,
    put,
    putFlushed,
    read,
    readAll,
    retire,
    roll,
    run,
    validated,
)


class LogCase(SynchronousTestCase):
    """
    @ivar records: the format, and its sets.
    @ivar twelve: a set of one message and 12 bytes.
    @ivar site: a log directory on the double.
    @ivar told: what waiters were told.
    """

    records = KAFKA07

    def start(self, **settings: Any) -> PartitionLog:
        """A fresh partition."""
        self.site = Site(records=self.records, **{"flushCountMax": 1000, **settings})
        self.site.open()
        self.told: list[Any] = []
        return self.site.create()

    @property
    def twelve(self) -> bytes:
        return self.records.entry(b"ab")

    @property
    def suffix(self) -> str:
        return self.records.format.suffix

    def entry(self, payload: bytes) -> bytes:
        return self.records.entry(payload)

    def at(self, byte: int, size: int = 12) -> int:
        """The offset of a byte in a log of entries of C{size} bytes, all from 0 on."""
        return self.records.offsetAt(byte, size)

    def units(self, count: int) -> int:
        """Bytes of so many units."""
        return count * self.records.unit

    def segmentFile(self, byte: int = 0) -> str:
        """Of the segment that begins at a byte."""
        return f"t-0/{self.at(byte):020d}{self.suffix}"

    def content(self, byte: int = 0) -> bytes:
        """Of a segment's file, as it was sent."""
        return self.records.asSent(self.site.content(self.segmentFile(byte)))

    def read(self, log: PartitionLog, offset: int, sizeMax: int) -> bytes:
        """The bytes that a read of so many units gives, as they were sent."""
        return self.records.asSent(bytesOf(read(log, offset, sizeMax * self.records.unit)))

    def readAll(self, log: PartitionLog, **options: Any) -> bytes:
        """Everything readable, as it was sent."""
        return self.records.asSent(readAll(log, **options))

    def names(self) -> list[str]:
        """First bytes of the segment files on disk, for entries of 12 bytes."""
        found = []
        for name in sorted(self.site.files.list(self.site.path("t-0"))):
            digits, _, more = name.partition(self.suffix)
            if digits != name:
                found.append(str(self.records.byteAt(int(digits))) + more)
        return found

    def marks(self, log: PartitionLog, size: int = 12) -> tuple[int, ...]:
        """Start, high watermark, flushed offset and end, as bytes of entries of one size."""
        offsets = log.logStartOffset, log.highWatermark, log.flushedOffset, log.logEndOffset
        return tuple(self.records.byteAt(offset, size) for offset in offsets)


class AppendTests(LogCase):
    """Bytes go in, and marks move."""

    def test_endCountsPending(self) -> None:
        """
        Appended bytes count in the end offset at once, before anything is written; they are not
        visible.
        """
        log = self.start()
        append(log, self.twelve, self.twelve)
        self.assertEqual(self.marks(log), (0, 0, 0, 24))
        self.assertEqual(
            (log.pendingSize, log.unflushedSize, log.appendedCount),
            (self.units(24), self.units(24), 2),
        )
        self.assertEqual(log.segments[0].writtenSize, 0)

    def test_write(self) -> None:
        """C{write} hands them to the file in order; they are still not visible."""
        log = self.start()
        append(log, self.entry(b"a"), self.entry(b"b"))
        append(log, self.entry(b"c"))
        log.write()
        self.assertEqual(
            self.content(),
            self.entry(b"a") + self.entry(b"b") + self.entry(b"c"),
        )
        self.assertEqual(
            (log.pendingSize, log.unflushedSize, log.segments[0].writtenSize),
            (0, self.units(33), self.units(33)),
        )
        self.assertEqual(self.marks(log, 11), (0, 0, 0, 33))
        log.write()
        self.assertEqual(log.segments[0].writtenSize, self.units(33))

    def test_emptySet(self) -> None:
        """An empty run changes nothing."""
        log = self.start()
        append(log)
        log.write()
        self.assertEqual(self.marks(log), (0, 0, 0, 0))
        self.assertFalse(log.flushDue(START_MS + HOUR_MS))

    def test_manyBuffers(self) -> None:
        """More buffers than one gather-write takes go in several."""
        log = self.start()
        sets = [self.entry(b"%d" % i) for i in range(2500)]
        append(log, *sets)
        log.write()
        flush(log)
        self.assertEqual(self.readAll(log), b"".join(sets))

    def test_fileSize(self) -> None:
        """FileMessageSetTest.testFileSize: the segment's size follows the appends."""
        log = self.start()
        for i in range(1, 21):
            putFlushed(log, self.twelve)
            self.assertEqual((log.segments[0].size, log.size), (self.units(12 * i),) * 2)

    def test_repr(self) -> None:
        """A log's text names it and its marks, or its state."""
        log = self.start()
        self.assertEqual(repr(log), "<PartitionLog t-0 0..0..0>")
        close(log)
        self.assertEqual(repr(log), "<PartitionLog t-0 closed>")


class FlushTests(LogCase):
    """What is flushed is visible, and nothing else (spec-0.7 log-storage §5)."""

    def test_flush(self) -> None:
        """A flush makes visible what had been appended when it began; not before it is finished."""
        log = self.start()
        put(log, self.twelve)
        job = log.beginFlush()
        assert job is not None
        put(log, self.twelve)
        self.assertEqual(self.marks(log), (0, 0, 0, 24))
        log.finishFlush(job, run(job), START_MS + 5)
        self.assertEqual(self.marks(log), (0, 12, 12, 24))
        self.assertEqual((log.lastFlushMs, log.unflushedSize), (START_MS + 5, self.units(12)))

    def test_flushWritesFirst(self) -> None:
        """What is pending is written, and flushed with the rest."""
        log = self.start()
        append(log, self.twelve)
        flush(log)
        self.assertEqual(self.marks(log), (0, 12, 12, 12))

    def test_nothingToFlush(self) -> None:
        """Without unflushed bytes a flush does nothing, and does not count as one."""
        log = self.start()
        self.site.clock.nowMs += 7
        self.assertFalse(flush(log, START_MS + 7))
        self.assertEqual(log.lastFlushMs, START_MS)

    def test_oneAtATime(self) -> None:
        """While a flush is under way no other begins."""
        log = self.start()
        put(log, self.twelve)
        job = log.beginFlush()
        assert job is not None
        put(log, self.twelve)
        self.assertTrue(log.busy)
        self.assertIsNone(log.beginFlush())
        self.assertFalse(log.flushDue(START_MS + HOUR_MS))
        log.finishFlush(job, run(job), START_MS)
        self.assertFalse(log.busy)
        self.assertTrue(flush(log))

    def test_dueByCount(self) -> None:
        """A flush is due when as many messages as configured are unflushed, not one sooner."""
        log = self.start(flushCountMax=3)
        put(log, self.twelve, self.twelve)
        self.assertFalse(log.flushDue(START_MS))
        self.assertEqual(log.flushDueOffset, 0)
        put(log, self.twelve)
        self.assertTrue(log.flushDue(START_MS))
        self.assertEqual(log.flushDueOffset, self.at(36))
        flush(log)
        self.assertFalse(log.flushDue(START_MS))
        self.assertEqual((log.flushDueOffset, log.highWatermark), (self.at(36), self.at(36)))

    def test_dueWhenSetBack(self) -> None:
        """The clock may be set back by more than the interval between flushes."""
        log = self.start()
        put(log, self.twelve)
        self.assertFalse(log.flushDue(START_MS))
        self.assertTrue(log.flushDue(START_MS - HOUR_MS))

    def test_dueByCountDuringAFlush(self) -> None:
        """Messages that come while a flush is under way count for the next one."""
        log = self.start(flushCountMax=2)
        put(log, self.twelve, self.twelve)
        job = log.beginFlush()
        assert job is not None
        self.assertEqual(log.unflushedSize, self.units(24))
        put(log, self.twelve)
        self.assertEqual((log.flushDueOffset, log.unflushedSize), (self.at(24), self.units(36)))
        put(log, self.twelve)
        self.assertEqual(log.flushDueOffset, self.at(48))
        log.finishFlush(job, run(job), START_MS)
        self.assertEqual((log.highWatermark, log.unflushedSize), (self.at(24), self.units(24)))
        self.assertTrue(log.flushDue(START_MS))

    def test_countIsOfMessages(self) -> None:
        """The messages inside wrappers count one by one."""
        log = self.start(flushCountMax=3)
        append(log, self.records.batch(3))
        self.assertTrue(log.flushDue(START_MS))

    def test_dueByTime(self) -> None:
        """
        A flush is due when something is unflushed and the last flush is as long ago as configured;
        after an idle time, at once.
        """
        log = self.start(flushIntervalMs=100)
        self.assertFalse(log.flushDue(START_MS + 1000), "nothing to flush")
        put(log, self.twelve)
        self.assertFalse(log.flushDue(START_MS + 99))
        self.assertTrue(log.flushDue(START_MS + 100))
        flush(log, START_MS + 100)
        put(log, self.twelve)
        self.assertFalse(log.flushDue(START_MS + 199))
        self.assertTrue(log.flushDue(START_MS + 200))

    def test_timeBasedFlush(self) -> None:
        """
        LogManagerTest.testTimeBasedFlush: with a tick every 50 ms and an interval of 100 ms for the
        topic, the last flush is never longer ago than that.
        """
        log = self.start(flushIntervalMs=HOUR_MS, flushIntervalMsByTopic={"t": 100})
        now = START_MS
        for tick in range(200):
            now += 50
            put(log, self.twelve, nowMs=now)
            if log.flushDue(now):
                flush(log, now)
            if tick:
                self.assertTrue(now - log.lastFlushMs <= 100)
        self.assertTrue(log.highWatermark >= self.at(198 * 12))

    def test_failedFlush(self) -> None:
        """
        A failed sync fails the partition: it is not tried again, what waits is told, nothing more
        is visible.
        """
        log = self.start()
        putFlushed(log, self.twelve)
        put(log, self.twelve)
        append(log, self.twelve)
        log.whenReached(MarkKind.HIGH_WATERMARK, self.at(24), self.told.append)
        self.site.double.fail("fsync", self.suffix, errno.EIO)
        flush(log)
        assert log.failure is not None
        self.assertEqual(log.failure.errno, errno.EIO)
        self.assertEqual(
            (log.pendingSize, log.unflushedSize, log.highWatermark), (0, 0, self.at(12))
        )
        self.assertEqual([type(failure) for failure in self.told], [PartitionOfflineError])
        self.assertIn("Input/output error", str(self.told[0]))
        self.assertIsNone(log.beginFlush())
        self.assertEqual(repr(log), "<PartitionLog t-0 failed>")
        self.assertEqual(self.site.directory.cache.openCount, 0)

    def test_failedPartitionRefusesEverything(self) -> None:
        """
        After a failure every call is refused or does nothing; jobs that were under way can be
        finished.
        """
        log = self.start()
        putFlushed(log, self.twelve)
        put(log, self.twelve)
        rolling = log.beginRoll()
        assert rolling is not None
        inspection = log.beginStat()
        assert inspection is not None
        log._fail(StorageError("/x", "write", "no"))
        self.assertIsNone(run(rolling))
        log.finishRoll(rolling, None, START_MS)
        run(inspection)
        log.finishStat(inspection)
        self.assertEqual(self.site.directory.cache.openCount, 0)
        for call in (
            lambda: append(log, self.twelve),
            lambda: read(log, 0, 100),
            lambda: log.offsetsBefore(-1, 1, START_MS),
        ):
            self.assertIn(
                "cannot write /x: no", str(self.assertRaises(PartitionOfflineError, call))
            )
        self.assertFalse(log.rolling)
        self.assertFalse(log.flushDue(START_MS + HOUR_MS))
        self.assertIsNone(log.beginFlush())
        self.assertIsNone(log.beginRoll())
        self.assertIsNone(log.beginStat())
        self.assertEqual(log.expired(START_MS * 2), ())
        self.assertIsNone(log.beginDelete(log.segments, START_MS))
        log.whenReached(MarkKind.HIGH_WATERMARK, 0, self.told.append)()
        self.assertEqual(len(self.told), 1)
        log.write()
        self.assertIsNone(log.beginClose())
        self.assertTrue(log.closed)

    def test_watermarkIsAPolicy(self) -> None:
        """
        A policy moves the high watermark, at once and when it is asked again, never beyond what is
        written.
        """
        log = self.start()
        self.assertEqual(flushedWatermark(log), LogPosition(0, 0, 0))
        allowed = LogPosition(0, 0, 0)
        log.setWatermarkPolicy(lambda log: allowed)
        putFlushed(log, self.twelve, self.twelve)
        self.assertEqual(self.marks(log), (0, 0, 24, 24))
        allowed = LogPosition(self.at(12), 0, self.units(12))
        putFlushed(log, self.twelve)
        self.assertEqual(
            (log.highWatermark, read(log, 0, 1000).size), (self.at(12), self.units(12))
        )
        roll(log)
        self.assertEqual(read(log, 0, 1000).size, self.units(12))
        allowed = LogPosition(self.at(1000), self.at(36), self.units(964))
        append(log, self.twelve)
        log.updateHighWatermark()
        self.assertEqual(
            (log.highWatermark, read(log, 0, 1000).size), (self.at(36), self.units(36))
        )
        putFlushed(log, self.twelve)
        self.assertEqual(
            (log.highWatermark, read(log, 0, 1000).size), (self.at(60), self.units(36))
        )
        self.assertEqual(log.lastStableOffset, self.at(60))

    def test_watermarkTriggered(self) -> None:
        """
        C{updateHighWatermark} applies what the policy allows by now, and fires those who wait; it
        never moves it back.
        """
        log = self.start()
        allowed = LogPosition(0, 0, 0)
        log.setWatermarkPolicy(lambda log: allowed)
        putFlushed(log, self.twelve, self.twelve)
        log.whenReached(MarkKind.HIGH_WATERMARK, self.at(12), self.told.append)
        allowed = LogPosition(self.at(12), 0, 12)
        self.assertEqual((log.highWatermark, self.told), (0, []))
        log.updateHighWatermark()
        self.assertEqual((log.highWatermark, self.told), (self.at(12), [None]))
        allowed = LogPosition(0, 0, 0)
        log.updateHighWatermark()
        self.assertEqual(log.highWatermark, self.at(12))
        log.setWatermarkPolicy(flushedWatermark)
        self.assertEqual(log.highWatermark, self.at(24))

    def test_writtenWatermark(self) -> None:
        """
        Under the policy of a single replica, what the page cache has is visible before the flush.
        """
        log = self.start()
        log.setWatermarkPolicy(writtenWatermark)
        append(log, self.twelve)
        self.assertEqual(self.marks(log), (0, 0, 0, 12))
        log.write()
        self.assertEqual(self.marks(log), (0, 12, 0, 12))
        self.assertEqual(self.read(log, 0, 100), self.twelve)

    def test_marksArePositions(self) -> None:
        """
        Each mark is an offset, a segment and a byte in it; an append returns the offsets it
        assigned.
        """
        log = self.start()
        putFlushed(log, self.twelve)
        roll(log)
        self.assertEqual(
            append(log, self.twelve, self.twelve, nowMs=7),
            AppendResult(self.at(12), self.at(36) - 1, 7),
        )
        self.assertEqual(append(log, nowMs=8), AppendResult(self.at(36), self.at(36) - 1, 8))
        self.assertEqual(log.watermark, LogPosition(self.at(12), 0, self.units(12)))
        self.assertEqual(log.flushed, LogPosition(self.at(12), 0, self.units(12)))
        log.write()
        self.assertEqual(log.written, LogPosition(self.at(36), self.at(12), self.units(24)))
        append(log, self.twelve)
        self.assertEqual(log.logEnd, LogPosition(self.at(48), self.at(12), self.units(36)))


class ReadTests(LogCase):
    """spec-0.7 wire-protocol §7.1, 5 to 7."""

    def start(self, **settings: Any) -> PartitionLog:
        """Twenty sets of 12 bytes in segments of 108, 108 and 24."""
        log = super().start(segmentSizeMax=100, **settings)
        putFlushed(log, *[self.twelve] * 20)
        return log

    def test_range(self) -> None:
        """A read gives the range, cut to what is asked for, wherever it begins."""
        log = self.start()
        found = read(log, self.at(12), self.units(24))
        self.assertEqual((found.position, found.size), (self.units(12), self.units(24)))
        self.assertEqual(self.records.asSent(bytesOf(found)), self.twelve * 2)

    def test_neverOverTheEndOfASegment(self) -> None:
        """A read ends with the segment."""
        log = self.start()
        self.assertEqual(
            [read(log, self.at(byte), 1 << 31).size for byte in (0, 96, 108, 204, 216)],
            [self.units(size) for size in (108, 12, 108, 12, 24)],
        )
        self.assertEqual(read(log, self.at(108), 50).position, 0)

    def test_readFromTheFirstEntrysEnd(self) -> None:
        """FileMessageSetTest.testRead: a read from the first entry's end gives the tail."""
        log = self.start()
        self.assertEqual(self.read(log, self.at(12), 1 << 20), self.twelve * 8)

    def test_atTheEnd(self) -> None:
        """At the visible end a read is empty; so is one of no bytes, or fewer."""
        log = self.start()
        self.assertEqual(read(log, self.at(240), 100), EMPTY_SLICE)
        self.assertEqual(read(log, self.at(12), 0), EMPTY_SLICE)
        self.assertEqual(read(log, self.at(12), -1), EMPTY_SLICE)

    def test_outOfRange(self) -> None:
        """
        Below the start, and beyond the visible end though the bytes are there, is out of range.
        """
        log = self.start()
        put(log, self.twelve)
        for offset in (-1, self.at(240) + 1, self.at(252), 1 << 62):
            self.assertRaises(OffsetOutOfRangeError, read, log, offset, 100)
        retire(log, log.segments[:1])
        self.assertRaises(OffsetOutOfRangeError, read, log, self.at(107), 100)
        self.assertEqual(read(log, self.at(108), 100).size, 100)

    def test_readOutOfRange(self) -> None:
        """
        LogTest.testReadOutOfRange: with only the segment 1024, a read there is empty, 0 and 1025
        are out of range.
        """
        site = Site(records=self.records)
        site.write(f"t-0/00000000000000001024{self.suffix}", b"")
        site.open()
        log = site.log()
        self.assertEqual(read(log, 1024, 1000), EMPTY_SLICE)
        self.assertRaises(OffsetOutOfRangeError, read, log, 0, 1000)
        self.assertRaises(OffsetOutOfRangeError, read, log, 1025, 1000)

    def test_logRolls(self) -> None:
        """
        LogTest.testLogRolls: a hundred messages over many segments are all read by successive
        reads.
        """
        log = LogCase.start(self, segmentSizeMax=100)
        sets = [self.entry(b"message %d" % i) for i in range(100)]
        putFlushed(log, *sets)
        self.assertTrue(len(log.segments) > 10)
        self.assertEqual(self.readAll(log), b"".join(sets))
        self.assertEqual(self.readAll(log, sizeMax=7), b"".join(sets))

    def test_readingOldSegments(self) -> None:
        """
        A slice of a segment can be read after the segment was deleted, if its descriptor was held
        before; not if not.
        """
        log = self.start()
        held, other = read(log, 0, 100), read(log, self.at(108), 100)
        assert held.file is not None and other.file is not None
        held.file.openPinned()
        self.assertEqual(retire(log, log.segments[:2]), 1)
        self.assertEqual(self.records.asSent(bytesOf(held)), (self.twelve * 9)[:100])
        self.assertRaises(StorageError, bytesOf, other)
        held.file.unpin()
        self.assertRaises(StorageError, bytesOf, held)


class OffsetsBeforeTests(LogCase):
    """spec-0.7 wire-protocol §10."""

    def start(self, **settings: Any) -> PartitionLog:
        """The example of the specification, each segment a second after the one before."""
        log = super().start(segmentSizeMax=100)
        for i in range(20):
            self.site.clock.nowMs = START_MS + 1000 * (i // 9)
            putFlushed(log, self.twelve, nowMs=self.site.clock.nowMs)
        return log

    def test_getOffsetsBeforeLatestTime(self) -> None:
        """
        LogOffsetTest.testGetOffsetsBeforeLatestTime: 20 entries of 12 bytes, segments of 100: 240,
        216, 108, 0; a read at 240 is empty.
        """
        log = self.start()
        self.assertEqual(
            log.offsetsBefore(-1, 10, START_MS + 5000),
            [self.at(240), self.at(216), self.at(108), 0],
        )
        self.assertEqual(read(log, self.at(240), 100), EMPTY_SLICE)

    def test_getOffsetsBeforeNow(self) -> None:
        """
        LogOffsetTest.testGetOffsetsBeforeNow: a time after the writes and before the question gives
        the segments; from the question on, the end, too.
        """
        log = self.start()
        self.assertEqual(
            log.offsetsBefore(START_MS + 4999, 10, START_MS + 5000), [self.at(216), self.at(108), 0]
        )
        self.assertEqual(
            log.offsetsBefore(START_MS + 5000, 10, START_MS + 5000),
            [self.at(240), self.at(216), self.at(108), 0],
        )

    def test_getOffsetsBeforeEarliestTime(self) -> None:
        """
        LogOffsetTest.testGetOffsetsBeforeEarliestTime: exactly one, however many are asked for.
        """
        log = self.start()
        self.assertEqual(log.offsetsBefore(-2, 10, START_MS + 5000), [0])
        retire(log, log.segments[:1])
        self.assertEqual(log.offsetsBefore(-2, 10, START_MS + 5000), [self.at(108)])

    def test_emptyLogsGetOffsets(self) -> None:
        """
        LogOffsetTest.testEmptyLogsGetOffsets: an empty log answers its start, to earliest and
        latest, again and again.
        """
        log = super().start()
        for _ in range(20):
            self.assertEqual(log.offsetsBefore(-2, 1, START_MS), [0])
            self.assertEqual(log.offsetsBefore(-1, 10, START_MS), [0])

    def test_byTime(self) -> None:
        """A time gives the segments last appended to by then."""
        log = self.start()
        for time, expected in (
            (0, []),
            (-3, []),
            (START_MS - 1, []),
            (START_MS, [0]),
            (START_MS + 999, [0]),
            (START_MS + 1000, [self.at(108), 0]),
            (START_MS + 2000, [self.at(216), self.at(108), 0]),
        ):
            self.assertEqual(log.offsetsBefore(time, 10, START_MS + 5000), expected, time)

    def test_count(self) -> None:
        """At most as many as asked for, the newest; none for 0; a negative number is an error."""
        log = self.start()
        self.assertEqual(
            [log.offsetsBefore(-1, count, START_MS) for count in (0, 1, 2)],
            [[], [self.at(240)], [self.at(240), self.at(216)]],
        )
        self.assertRaises(ValueError, log.offsetsBefore, -1, -1, START_MS)

    def test_unflushedEndIsNotTold(self) -> None:
        """The end is the visible one."""
        log = self.start()
        put(log, self.twelve)
        self.assertEqual(log.offsetsBefore(-1, 1, START_MS), [self.at(240)])

    def test_timesAreThoseOfTheFiles(self) -> None:
        """After a stat job the files' own times count, which a person may have set."""
        log = self.start()
        self.site.files.setModified(log.segments[1].path, START_MS - 50)
        self.assertEqual(log.offsetsBefore(START_MS - 50, 10, START_MS), [])
        job = log.beginStat()
        assert job is not None
        run(job)
        log.finishStat(job)
        self.assertEqual(log.offsetsBefore(START_MS - 50, 10, START_MS), [self.at(108), 0])

    def test_inspectionOfWhatIsGone(self) -> None:
        """A file that was removed, or that cannot be read, keeps the time it had."""
        log = self.start()
        self.site.files.remove(log.segments[0].path)
        self.site.double.fail("stat", log.segments[2].path, errno.EIO)
        times = [segment.modifiedMs for segment in log.segments]
        job = log.beginStat()
        assert job is not None
        error = run(job)
        log.finishStat(job)
        self.assertEqual([segment.modifiedMs for segment in log.segments], times)
        self.assertIsNotNone(error)
        self.assertIsNone(log.failure)


class RollTests(LogCase):
    """spec-0.7 log-storage §4."""

    def test_sizeBasedLogRoll(self) -> None:
        """
        LogTest.testSizeBasedLogRoll: with room for ten entries a segment, the eleventh opens a
        second.
        """
        log = self.start(segmentSizeMax=12 * 10 - 1)
        put(log, *[self.twelve] * 10)
        self.assertEqual(len(log.segments), 1)
        put(log, self.twelve)
        self.assertEqual(self.names(), ["0", "120"])

    def test_strictlyLarger(self) -> None:
        """A segment of exactly the limit is not rolled, one byte more is; unwritten bytes count."""
        log = self.start(segmentSizeMax=24)
        append(log, self.twelve, self.twelve)
        self.assertFalse(log.rollDue(START_MS))
        append(log, self.entry(b""))
        self.assertTrue(log.rollDue(START_MS))
        self.assertEqual(log.bytesUntilRoll, self.units(-10))

    def test_fits(self) -> None:
        """A run fits if no roll can become due in the middle of it."""
        log = self.start(segmentSizeMax=24)
        self.assertEqual(
            [self.units(size) <= log.bytesUntilRoll for size in (0, 24, 25)], [True, True, False]
        )
        append(log, self.twelve)
        self.assertEqual(
            [self.units(size) <= log.bytesUntilRoll for size in (0, 12, 13)], [True, True, False]
        )

    def test_timeBasedLogRoll(self) -> None:
        """
        LogTest.testTimeBasedLogRoll: age counts from the first append; an empty segment does not
        roll by age; what is asked before an append of an empty set can roll, too.
        """
        log = self.start(rollAgeMs=HOUR_MS)
        clock = self.site.clock
        clock.nowMs += 2 * HOUR_MS
        self.assertFalse(log.rollDue(clock.nowMs), "empty")
        append(log)
        self.assertFalse(log.rollDue(clock.nowMs + 2 * HOUR_MS), "still empty")
        put(log, self.twelve, nowMs=clock.nowMs)
        self.assertFalse(log.rollDue(clock.nowMs + HOUR_MS))
        self.assertTrue(log.rollDue(clock.nowMs + HOUR_MS + 1))
        clock.nowMs += HOUR_MS // 2
        put(log, self.twelve, nowMs=clock.nowMs)
        self.assertTrue(
            log.rollDue(clock.nowMs + HOUR_MS // 2 + 1), "a later append does not make it younger"
        )
        clock.nowMs += HOUR_MS
        put(log, b"", nowMs=clock.nowMs)
        self.assertEqual(len(log.segments), 2)
        self.assertFalse(log.rollDue(clock.nowMs + 9 * HOUR_MS), "the new one is empty")

    def test_roll(self) -> None:
        """
        A roll flushes what there is, opens a file named after the end, and takes appends there.
        """
        log = self.start()
        putFlushed(log, self.twelve)
        put(log, self.twelve)
        append(log, self.twelve)
        log.whenReached(MarkKind.HIGH_WATERMARK, self.at(36), self.told.append)
        self.assertTrue(roll(log, START_MS + 3))
        self.assertEqual(self.marks(log), (0, 36, 36, 36))
        self.assertEqual(
            (log.lastFlushMs, log.unflushedSize, log.bytesUntilRoll),
            (START_MS + 3, 0, self.units(1 << 30)),
        )
        self.assertEqual(self.told, [None])
        self.assertEqual(self.names(), ["0", "36"])
        putFlushed(log, self.entry(b"new"))
        self.assertEqual(self.read(log, self.at(36), 100), self.entry(b"new"))
        self.assertEqual(read(log, 0, 1000).size, self.units(36))

    def test_rollOfAFlushedSegment(self) -> None:
        """A roll with nothing to flush does not count as a flush."""
        log = self.start()
        putFlushed(log, self.twelve, nowMs=START_MS + 1)
        roll(log, START_MS + 9)
        self.assertEqual(log.lastFlushMs, START_MS + 1)
        self.assertEqual(self.names(), ["0", "12"])

    def test_emptySegmentIsNotRolled(self) -> None:
        """The last segment is not rolled while it is empty: the new one would have its name."""
        log = self.start()
        self.assertFalse(roll(log))
        putFlushed(log, self.twelve)
        self.assertTrue(roll(log))
        self.assertFalse(roll(log))

    def test_whileRolling(self) -> None:
        """
        While a roll is under way nothing is appended, flushed, or rolled again; reading goes on.
        """
        log = self.start()
        putFlushed(log, self.twelve)
        put(log, self.twelve)
        job = log.beginRoll()
        assert job is not None
        self.assertTrue(log.rolling and log.busy)
        self.assertIn(
            "a roll is under way",
            str(self.assertRaises(PartitionOfflineError, append, log, self.twelve)),
        )
        self.assertIsNone(log.beginRoll())
        self.assertIsNone(log.beginFlush())
        self.assertFalse(log.flushDue(START_MS + HOUR_MS))
        self.assertEqual(read(log, 0, 1000).size, self.units(12))
        log.finishRoll(job, run(job), START_MS)
        self.assertFalse(log.rolling or log.busy)
        append(log, self.twelve)

    def test_rollDuringAFlush(self) -> None:
        """
        A roll may begin while a flush is under way; whichever ends first, the marks are right and
        no descriptor is left over.
        """
        for rollFirst in (True, False):
            log = self.start(descriptorCountMax=0)
            put(log, self.twelve)
            flushing = log.beginFlush()
            assert flushing is not None
            put(log, self.twelve)
            rolling = log.beginRoll()
            assert rolling is not None
            self.assertIsNone(run(flushing))
            if not rollFirst:
                log.finishFlush(flushing, None, START_MS)
                self.assertEqual(log.highWatermark, self.at(12))
            self.assertIsNone(run(rolling))
            log.finishRoll(rolling, None, START_MS)
            if rollFirst:
                log.finishFlush(flushing, None, START_MS)
            self.assertEqual(self.marks(log), (0, 24, 24, 24))
            self.assertEqual(self.site.directory.cache.openCount, 0)

    def test_syncFailureOfAFlushIsNotLostInARoll(self) -> None:
        """
        If a flush under way takes the report of lost bytes, the roll behind it does not succeed,
        though the system says so.
        """
        log = self.start()
        put(log, self.twelve)
        flushing = log.beginFlush()
        assert flushing is not None
        put(log, self.twelve)
        rolling = log.beginRoll()
        assert rolling is not None
        self.site.double.fail("fsync", self.suffix, errno.EIO, 1)
        flushError = run(flushing)
        rollError = run(rolling)
        self.assertIsNotNone(rollError)
        log.finishRoll(rolling, rollError, START_MS)
        log.finishFlush(flushing, flushError, START_MS)
        self.assertIsNotNone(log.failure)
        self.assertEqual(log.highWatermark, 0)

    def test_obstacle(self) -> None:
        """A file that has the new segment's name is removed, with a report."""
        log = self.start()
        putFlushed(log, self.twelve)
        self.site.write(self.segmentFile(12), b"stray")
        job = log.beginRoll()
        assert job is not None
        log.finishRoll(job, run(job), START_MS)
        self.assertEqual([report.isWarning for report in job.events], [True])
        self.assertEqual(self.content(12), b"")
        self.assertEqual(self.marks(log), (0, 12, 12, 12))

    def test_failedSyncFailsTheRoll(self) -> None:
        """If the old file or the directory cannot be synced, the partition fails."""
        for pathEnd in (self.suffix, "t-0"):
            log = self.start()
            put(log, self.twelve)
            self.site.double.fail("fsync", pathEnd, errno.ENOSPC)
            roll(log)
            self.assertIsNotNone(log.failure, pathEnd)
            self.assertFalse(log.rolling)
            self.assertEqual(self.site.directory.cache.openCount, 0)

    def test_otherErrorsFailTheRoll(self) -> None:
        """If the new file cannot be made for a reason that does not pass, the partition fails."""
        log = self.start()
        put(log, self.twelve)
        self.site.double.fail("create", self.suffix, errno.EIO)
        roll(log)
        self.assertIsNotNone(log.failure)

    def test_noRoomForTheNewFile(self) -> None:
        """
        If the disk is full, or there are no descriptors, the old segment is flushed, the roll stays
        due and can be tried again.
        """
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            log = self.start(segmentSizeMax=10)
            put(log, self.twelve)
            self.site.double.fail("create", self.suffix, code)
            roll(log)
            assert log.blocked is not None
            self.assertEqual(log.blocked.errno, code)
            self.assertIsNone(log.failure)
            self.assertTrue(log.rollDue(START_MS))
            self.assertEqual(self.marks(log), (0, 12, 12, 12))
            log.write()
            self.assertIsNone(log.blocked)
            self.assertTrue(roll(log))
            self.assertEqual(self.names(), ["0", "12"])
            putFlushed(log, self.twelve)
            self.assertEqual(self.readAll(log), self.twelve * 2)


class BadDiskTests(LogCase):
    """Writes that fail."""

    def test_fullDisk(self) -> None:
        """
        On a full disk the file ends with the last whole set that fits; the rest stays pending and
        counts in the end; once there is room it is written. Nothing is lost, nothing is torn.
        """
        log = self.start()
        sets = [self.entry(b"%d" % i) for i in range(10)]
        self.site.double.sizeMax = self.site.double.usedSize + self.units(50)
        append(log, *sets)
        log.write()
        assert log.blocked is not None
        self.assertEqual(log.blocked.errno, errno.ENOSPC)
        self.assertEqual((log.pendingSize, log.logEndOffset), (self.units(66), self.at(110, 11)))
        self.assertEqual(self.content(), b"".join(sets[:4]))
        flush(log)
        self.assertEqual(self.marks(log, 11), (0, 44, 44, 110))
        self.assertTrue(log.flushDue(START_MS + HOUR_MS))
        self.assertIsNone(log.beginFlush(), "nothing more to sync")
        self.site.double.sizeMax += self.units(22)
        log.write()
        self.assertEqual((log.pendingSize, log.blocked is None), (self.units(44), False))
        self.site.double.sizeMax = None
        log.write()
        self.assertEqual((log.pendingSize, log.blocked), (0, None))
        flush(log)
        self.assertEqual(self.readAll(log), b"".join(sets))
        self.assertEqual(log.unflushedSize, 0)

    def test_everySizeOfTheRest(self) -> None:
        """
        Wherever the disk becomes full, the file ends with a whole set, and all sets get there in
        order in the end.
        """
        sets = [self.entry(b"x" * i) for i in range(6)]
        whole = b"".join(sets)
        for room in range(len(whole) + 1):
            log = self.start()
            self.site.double.sizeMax = self.site.double.usedSize + room
            append(log, *sets)
            log.write()
            on = self.content()
            self.assertTrue(
                len(on) <= room and whole.startswith(on) and len(on) + log.pendingSize == len(whole)
            )
            stored = self.site.content(self.segmentFile())
            self.assertEqual(self.records.wholeSize(stored), len(on))
            self.site.double.sizeMax = None
            flush(log)
            self.assertEqual(self.readAll(log), whole)

    def test_appendsWhileBlocked(self) -> None:
        """What is appended while the disk is full waits behind what waits already."""
        log = self.start()
        self.site.double.sizeMax = 0
        append(log, self.entry(b"1"))
        log.write()
        append(log, self.entry(b"2"))
        log.write()
        self.site.double.sizeMax = None
        flush(log)
        self.assertEqual(self.readAll(log), self.entry(b"1") + self.entry(b"2"))

    def test_noRollWhileBlocked(self) -> None:
        """A roll waits until what is pending is written."""
        log = self.start()
        putFlushed(log, self.twelve)
        self.site.double.sizeMax = 0
        append(log, self.twelve)
        self.assertFalse(roll(log))
        self.assertFalse(log.rolling)
        self.site.double.sizeMax = None
        self.assertTrue(roll(log))
        self.assertEqual(self.names(), ["0", "24"])

    def test_manyBuffersOnAFullDisk(self) -> None:
        """The same over several gather-writes, the second of which does not fit."""
        log = self.start()
        sets = [self.entry(b"%04d" % i) for i in range(3000)]
        self.site.double.sizeMax = self.site.double.usedSize + self.units(14 * 2000 + 5)
        append(log, *sets)
        log.write()
        self.assertEqual(log.pendingSize, self.units(14 * 1000))
        self.site.double.sizeMax = None
        flush(log)
        self.assertEqual(self.readAll(log), b"".join(sets))

    def test_quotaIsAFullDisk(self) -> None:
        """C{EDQUOT} is as C{ENOSPC}."""
        log = self.start()
        self.site.double.fail("write", self.suffix, errno.EDQUOT)
        put(log, self.twelve)
        self.assertEqual((log.pendingSize, log.failure), (self.units(12), None))
        put(log, self.twelve)
        flush(log)
        self.assertEqual(self.readAll(log), self.twelve * 2)

    def test_outOfDescriptors(self) -> None:
        """
        Without a descriptor for its file, a log keeps what is pending, and writes it when there is
        one.
        """
        log = self.start(descriptorCountMax=0)
        self.site.double.fail("open", self.suffix, errno.EMFILE)
        put(log, self.twelve)
        assert log.blocked is not None
        self.assertEqual(
            (log.blocked.errno, log.pendingSize, log.failure),
            (errno.EMFILE, self.units(12), None),
        )
        log.write()
        flush(log)
        self.assertEqual((self.readAll(log), log.blocked), (self.twelve, None))

    def test_blockedFileIsNotHeldOpen(self) -> None:
        """A log that could write nothing holds no descriptor, since it has nothing to sync."""
        log = self.start(descriptorCountMax=0)
        self.site.double.sizeMax = 0
        put(log, self.twelve)
        self.assertEqual(self.site.directory.cache.openCount, 0)

    def test_otherErrorsFailThePartition(self) -> None:
        """
        Any other error on writing, or on opening the file, fails the partition and releases what
        was pending.
        """
        for action in ("write", "open"):
            log = self.start(descriptorCountMax=0)
            putFlushed(log, self.twelve)
            self.site.double.fail(action, self.suffix, errno.EIO)
            put(log, self.twelve)
            assert log.failure is not None
            self.assertEqual(
                (log.failure.errno, log.pendingSize, log.unflushedSize), (errno.EIO, 0, 0)
            )
            self.assertIsNone(log.beginFlush())
            self.assertIsNone(log.beginRoll())

    def test_cutBackFails(self) -> None:
        """
        If a torn end cannot be cut off, the partition fails: nothing may be written behind it.
        """
        log = self.start()
        self.site.double.sizeMax = self.site.double.usedSize + 5
        self.site.double.fail("truncate", self.suffix, errno.EIO)
        put(log, self.twelve)
        assert log.failure is not None
        self.assertEqual((log.failure.action, log.failure.errno), ("truncate", errno.EIO))

    def test_otherPartitionsGoOn(self) -> None:
        """One partition that has failed does not keep another from serving."""
        log = self.start()
        other = self.site.create("t", 1)
        self.site.double.fail("write", self.segmentFile(), errno.EIO)
        put(log, self.twelve)
        self.assertIsNotNone(log.failure)
        putFlushed(other, self.twelve)
        self.assertEqual(self.readAll(other), self.twelve)


class RetentionTests(LogCase):
    """spec-0.7 log-storage §10."""

    def test_cleanupExpiredSegments(self) -> None:
        """
        LogManagerTest.testCleanupExpiredSegments: 1000 messages in segments of 1024 bytes; when all
        are old, one empty segment remains; a read at the old end is empty, at 0 out of range;
        appending goes on.
        """
        log = self.start(segmentSizeMax=1024, retentionAgeMs=HOUR_MS)
        putFlushed(log, *[self.twelve] * 1000)
        self.assertTrue(len(log.segments) > 10)
        self.assertEqual(clean(log, START_MS + HOUR_MS), 0)
        self.assertTrue(clean(log, START_MS + HOUR_MS + 1) > 10)
        self.assertEqual(
            [(segment.baseOffset, segment.size) for segment in log.segments], [(self.at(12000), 0)]
        )
        self.assertEqual(self.names(), ["12000"])
        self.assertEqual(read(log, self.at(12000), 1000), EMPTY_SLICE)
        self.assertRaises(OffsetOutOfRangeError, read, log, 0, 1000)
        putFlushed(log, self.twelve)
        self.assertEqual(self.readAll(log), self.twelve)

    def test_whatHasJustComeIsNotOld(self) -> None:
        """
        What is appended to a partition that was idle for long, while its files are looked at, is
        not deleted with them: neither what is still pending when it is decided, nor what was
        written after the look.
        """
        log = self.start(retentionAgeMs=HOUR_MS)
        putFlushed(log, self.twelve)
        self.site.clock.nowMs = later = START_MS + 2 * HOUR_MS
        self.site.files.setModified(log.segments[0].path, START_MS)
        append(log, self.twelve)
        self.assertEqual(log.expired(later), ())
        inspection = log.beginStat()
        assert inspection is not None
        self.assertIsNone(run(inspection))
        log.write()
        flush(log, later)
        log.finishStat(inspection)
        self.assertEqual(log.segments[0].modifiedMs, later)
        self.assertEqual(clean(log, later), 0)
        self.assertEqual(self.readAll(log), self.twelve * 2)

    def test_cleanupSegmentsToMaintainSize(self) -> None:
        """
        LogManagerTest.testCleanupSegmentsToMaintainSize: 1000 entries of 14 bytes, segments of 130,
        710 bytes to keep: of 100 segments, 6 stay.
        """
        log = self.start(segmentSizeMax=130, retentionSize=710)
        putFlushed(log, *[self.entry(b"test")] * 1000)
        self.assertEqual(len(log.segments), 100)
        self.assertEqual(clean(log, START_MS), 94)
        self.assertEqual(len(log.segments), 6)
        self.assertEqual(len(self.names()), 6)
        self.assertEqual((log.logStartOffset, log.size), (self.at(94 * 140, 14), self.units(840)))
        self.assertEqual(self.readAll(log), self.entry(b"test") * 60)

    def test_edgeLogRolls(self) -> None:
        """
        LogTest.testEdgeLogRolls: deleting everything keeps the next offset, for an empty log at 0
        and elsewhere; an empty last segment is not deleted, its time is set to now.
        """
        log = self.start(retentionAgeMs=HOUR_MS)
        later = START_MS + 2 * HOUR_MS
        self.assertEqual(clean(log, later), 0)
        self.assertEqual((self.names(), log.segments[0].modifiedMs), (["0"], later))
        self.assertEqual(self.site.files.status(log.segments[0].path), (0, later, False))
        putFlushed(log, self.twelve, nowMs=later)
        self.assertEqual(clean(log, later + 2 * HOUR_MS), 1)
        self.assertEqual(self.names(), ["12"])
        self.assertEqual(clean(log, later + 5 * HOUR_MS), 0)
        self.assertEqual(self.names(), ["12"])
        self.assertEqual(self.marks(log), (12, 12, 12, 12))
        putFlushed(log, self.twelve)
        self.assertEqual(self.readAll(log), self.twelve)

    def test_policyIsGiven(self) -> None:
        """A policy can be put in place of both rules."""
        log = self.start(segmentSizeMax=10, retention=lambda segments, nowMs: 2)
        putFlushed(log, *[self.twelve] * 4)
        self.assertEqual(clean(log, START_MS), 2)
        self.assertEqual(self.names(), ["24", "36"])
        self.assertEqual(bySize(-1)(log.segments, START_MS), 0)

    def test_perTopic(self) -> None:
        """Limits of retention can be set for a topic."""
        self.start(
            segmentSizeMax=10,
            retentionAgeMsByTopic={"young": 5},
            retentionSizeByTopic={"small": self.records.unit * 24},
        )
        kept = {}
        for topic in ("young", "small", "t2"):
            log = self.site.create(topic)
            putFlushed(log, *[self.twelve] * 4)
            clean(log, START_MS + 6)
            kept[topic] = len(log.segments)
        self.assertEqual(kept, {"young": 1, "small": 2, "t2": 4})

    def test_listIsCutFirst(self) -> None:
        """From C{beginDelete} on the segments are out of the log, whenever their files go."""
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 3)
        job = log.beginDelete(log.segments[:2], START_MS)
        assert job is not None
        self.assertEqual(
            (log.logStartOffset, len(log.segments), self.names()),
            (self.at(24), 1, ["0", "12", "24"]),
        )
        self.assertRaises(OffsetOutOfRangeError, read, log, 0, 10)
        self.assertTrue(log.busy)
        self.assertIsNone(log.beginDelete(log.segments, START_MS), "one at a time")
        log.finishDelete(job, run(job))
        self.assertEqual(self.names(), ["24"])
        self.assertFalse(log.busy)

    def test_onlyTheOldest(self) -> None:
        """
        Segments behind one that stays are not deleted, whatever is asked; nor is the last, if it is
        not empty.
        """
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 3)
        self.assertEqual(retire(log, log.segments[1:]), 0)
        self.assertEqual(retire(log, log.segments), 2)
        self.assertEqual(self.names(), ["24"])
        self.assertEqual(self.readAll(log), self.twelve)

    def test_readersHoldTheFile(self) -> None:
        """
        A file that a reader holds keeps its new name until he lets go; a later retirement unlinks
        it, with nothing else to do.
        """
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 2)
        held = read(log, 0, 10).file
        assert held is not None
        held.openPinned()
        self.assertEqual(retire(log, log.segments[:1]), 0)
        self.assertEqual(
            self.site.files.list(self.site.path("t-0"))[-1], f"{0:020d}{self.suffix}.deleted"
        )
        self.assertEqual(retire(log, ()), 0)
        held.unpin()
        self.assertEqual(retire(log, ()), 1)
        self.assertEqual(self.names(), ["12"])
        self.assertIsNone(log.beginDelete((), START_MS))

    def test_failedRenameIsTriedAgain(self) -> None:
        """
        If a file cannot be renamed, no newer one is touched, or there would be a gap; the next
        retirement goes on from there.
        """
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 5)
        self.site.double.fail("rename", self.segmentFile(12), errno.EACCES)
        self.assertEqual(retire(log, log.segments[:3]), 0)
        self.assertIsNone(log.failure)
        self.assertEqual(log.logStartOffset, self.at(36))
        self.assertEqual(self.names(), ["0.deleted", "12", "24", "36", "48"])
        self.assertEqual(retire(log, ()), 3)
        self.assertEqual(self.names(), ["36", "48"])

    def test_restartAfterAFailedRename(self) -> None:
        """A restart in that state finds a whole log."""
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 5)
        self.site.double.fail("rename", self.segmentFile(12), errno.EACCES)
        retire(log, log.segments[:3])
        self.site.kill()
        self.site.open()
        self.assertEqual(self.marks(self.site.log())[::3], (12, 60))

    def test_failedUnlinkIsTriedAgain(self) -> None:
        """
        If a renamed file cannot be unlinked, that is tried again; a file that was removed
        already is as good as unlinked.
        """
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 3)
        self.site.double.fail("remove", ".deleted", errno.EBUSY)
        self.assertEqual(retire(log, log.segments[:1]), 0)
        self.assertEqual(retire(log, ()), 1)
        self.site.double.fail("remove", ".deleted", errno.ENOENT)
        self.assertEqual(retire(log, log.segments[:1]), 1)
        self.assertIsNone(log.beginDelete((), START_MS))

    def test_vanishedFile(self) -> None:
        """
        A segment whose file was removed already is done with, and keeps no newer one from
        being deleted.
        """
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 3)
        self.site.files.remove(log.segments[0].path)
        self.assertEqual(retire(log, log.segments[:2]), 1)
        self.assertEqual(self.names(), ["24"])
        self.assertIsNone(log.beginDelete((), START_MS))

    def test_failedSyncOfTheDirectory(self) -> None:
        """If the directory cannot be synced, the partition fails."""
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 3)
        self.site.double.fail("fsync", "t-0", errno.EIO)
        retire(log, log.segments[:2])
        self.assertIsNotNone(log.failure)

    def test_emptySegmentThatIsNotEmptyAnyMore(self) -> None:
        """
        If something is appended to the empty last segment between deciding and deleting, it stays
        as it is.
        """
        log = self.start(retention=byAge(0))
        segments = log.expired(START_MS + 5)
        self.assertFalse(log.needsRoll(segments))
        append(log, self.twelve)
        self.assertTrue(log.needsRoll(segments))
        self.assertIsNone(log.beginDelete(segments, START_MS + 5))
        flush(log)
        self.assertEqual(self.readAll(log), self.twelve)

    def test_retireDuringAFlush(self) -> None:
        """Old segments go while the last is being flushed."""
        log = self.start(segmentSizeMax=10)
        putFlushed(log, *[self.twelve] * 3)
        flush(log)
        append(log)
        roll(log)
        put(log, self.twelve)
        job = log.beginFlush()
        assert job is not None
        self.assertEqual(retire(log, log.segments[:2]), 2)
        log.finishFlush(job, run(job), START_MS)
        self.assertEqual(self.readAll(log), self.twelve * 2)


class NoticeTests(LogCase):
    """One-shot notices of marks."""

    def tell(self, mark: MarkKind, failure: StorageError | None) -> None:
        self.told.append((mark, failure))

    def test_marks(self) -> None:
        """
        Each mark tells when it has come to the offset: the end on append, flushed and visible after
        the flush.
        """
        log = self.start()
        for mark in (MarkKind.LOG_END, MarkKind.FLUSHED, MarkKind.HIGH_WATERMARK):
            log.whenReached(mark, self.at(24), partial(self.tell, mark))
        append(log, self.twelve)
        self.assertEqual(self.told, [])
        append(log, self.twelve)
        self.assertEqual(self.told, [(MarkKind.LOG_END, None)])
        flush(log)
        self.assertEqual(self.told[1:], [(MarkKind.FLUSHED, None), (MarkKind.HIGH_WATERMARK, None)])

    def test_already(self) -> None:
        """Who asks for what is reached already is told at once; to cancel then does nothing."""
        log = self.start()
        putFlushed(log, self.twelve)
        for mark in (MarkKind.LOG_END, MarkKind.FLUSHED, MarkKind.HIGH_WATERMARK):
            log.whenReached(mark, self.at(12), self.told.append)()
        self.assertEqual(self.told, [None] * 3)

    def test_cancelled(self) -> None:
        """Who has cancelled is not told."""
        log = self.start()
        log.whenReached(MarkKind.HIGH_WATERMARK, self.at(12), self.told.append)()
        putFlushed(log, self.twelve)
        self.assertEqual(self.told, [])

    def test_closed(self) -> None:
        """Who still waits when the log is closed is told that it is."""
        log = self.start()
        log.whenReached(MarkKind.HIGH_WATERMARK, self.at(12), self.told.append)
        close(log)
        self.assertIn("closed", str(self.told[0]))
        log.whenReached(MarkKind.HIGH_WATERMARK, 0, self.told.append)
        self.assertIsInstance(self.told[1], PartitionOfflineError)


class CloseTests(LogCase):
    """The end of a log."""

    def test_close(self) -> None:
        """
        Closing writes and syncs what is left; afterwards nothing works and no descriptor is open.
        """
        log = self.start()
        put(log, self.twelve)
        append(log, self.twelve)
        log.whenReached(MarkKind.FLUSHED, self.at(24), self.told.append)
        close(log)
        self.assertEqual((log.closed, log.failure, log.flushedOffset), (True, None, self.at(24)))
        self.assertEqual(self.told, [None])
        self.site.double.cutPower()
        self.assertEqual(self.content(), self.twelve * 2)
        self.assertEqual(self.site.directory.cache.openCount, 0)
        self.assertIn(
            "the log is closed",
            str(self.assertRaises(PartitionOfflineError, append, log, self.twelve)),
        )
        self.assertRaises(PartitionOfflineError, read, log, 0, 1)
        self.assertRaises(PartitionOfflineError, log.offsetsBefore, -1, 1, 0)
        self.assertEqual(log.expired(START_MS * 2), ())
        self.assertIsNone(log.beginStat())
        self.assertIsNone(log.beginDelete((), 0))
        self.assertIsNone(log.beginClose())

    def test_closeOfAnEmptyLog(self) -> None:
        """A log without anything to sync closes, too, and syncs nothing."""
        log = self.start()
        operationCount = self.site.double.operationCount
        close(log)
        self.assertEqual((log.closed, self.site.double.operationCount), (True, operationCount))

    def test_closeWhileBusy(self) -> None:
        """A log cannot be closed while a job is under way."""
        log = self.start()
        put(log, self.twelve)
        job = log.beginFlush()
        assert job is not None
        self.assertRaises(ValueError, log.beginClose)
        log.finishFlush(job, run(job), START_MS)
        closing = log.beginClose()
        assert closing is not None
        self.assertRaises(ValueError, log.beginClose)
        for attempt in (lambda: append(log, self.twelve), lambda: read(log, 0, 1)):
            error = self.assertRaises(PartitionOfflineError, attempt)
            self.assertIn("the log is closed", str(error))
        log.finishClose(closing, run(closing))
        self.assertFalse(log.busy)

    def test_failedSync(self) -> None:
        """If the last sync fails, the log is closed and failed."""
        log = self.start()
        put(log, self.twelve)
        self.site.double.fail("fsync", self.suffix, errno.EIO)
        close(log)
        self.assertTrue(log.closed)
        self.assertIsNotNone(log.failure)
        self.assertEqual(self.site.directory.cache.openCount, 0)

    def test_blockedToTheEnd(self) -> None:
        """
        If what is pending cannot be written even now, the log is closed and failed, and says why.
        """
        log = self.start()
        self.site.double.sizeMax = 0
        put(log, self.twelve)
        self.assertIsNone(log.beginClose())
        assert log.failure is not None
        self.assertEqual((log.failure.errno, log.closed), (errno.ENOSPC, True))

    def test_readersGoOn(self) -> None:
        """Who holds the file when the log is closed reads on, and closes it."""
        log = self.start()
        putFlushed(log, self.twelve)
        found = read(log, 0, 100)
        assert found.file is not None
        found.file.openPinned()
        close(log)
        self.assertEqual(self.site.directory.cache.openCount, 1)
        found.file.unpin()
        self.assertEqual(self.site.directory.cache.openCount, 0)


class ByteOffsetTests(LogCase):
    """What holds only where an offset is the number of a byte, and of 2011's sets."""

    def startFlushed(self, **settings: Any) -> PartitionLog:
        """Twenty sets of 12 bytes in segments of 108, 108 and 24."""
        log = self.start(segmentSizeMax=100, **settings)
        putFlushed(log, *[self.twelve] * 20)
        return log

    def test_inTheMiddle(self) -> None:
        """A read can begin inside an entry."""
        log = self.startFlushed()
        self.assertEqual(bytesOf(read(log, 5, 3)), self.twelve[5:8])
        self.assertEqual(bytesOf(read(log, 239, 100)), self.twelve[-1:])

    def test_testAppendAndRead(self) -> None:
        """LogTest.testAppendAndRead: ten messages round trip."""
        log = self.start()
        putFlushed(log, *[self.entry(b"%d" % i) for i in range(10)])
        payloads = [payload for payload, _ in MessageSet(self.read(log, 0, 1 << 20)).payloads()]
        self.assertEqual(payloads, [b"%d" % i for i in range(10)])

    def test_wrapperWithoutMessages(self) -> None:
        """Gotcha 15: bytes that hold no messages are flushed, too."""
        log = self.start(flushIntervalMs=100)
        empty = encodeSet([b""], 1)
        append(log, empty)
        self.assertTrue(log.flushDue(START_MS + 100))
        flush(log)
        self.assertEqual(log.highWatermark, len(empty))

    def test_neverOverTheEndOfASegment(self) -> None:
        """A read ends with the segment."""
        log = self.startFlushed()
        self.assertEqual(
            [read(log, offset, 1 << 31).size for offset in (0, 107, 108, 215, 216)],
            [108, 1, 108, 1, 24],
        )
        self.assertEqual(read(log, self.at(108), 50).position, 0)

    def test_readReaches(self) -> None:
        """
        A read is said to reach a mark when it would answer otherwise once the mark is visible.
        """
        log = self.startFlushed(flushCountMax=2)
        self.assertFalse(log.readsPastWatermark(240, 100))
        put(log, self.twelve, self.twelve)
        self.assertEqual((log.highWatermark, log.flushDueOffset), (240, 264))
        for offset, sizeMax, reaches in (
            (240, 1, True),  # empty now
            (240, 0, False),
            (252, 1, True),  # out of range now
            (264, 1, True),
            (265, 1, False),  # out of range, then as now
            (-1, 1000, False),
            (228, 12, False),
            (228, 13, True),
            (216, 24, False),
            (216, 25, True),
            (0, 1 << 30, False),  # ends with its segment
            (108, 1 << 30, False),
        ):
            self.assertEqual(log.readsPastWatermark(offset, sizeMax), reaches, (offset, sizeMax))

    def test_readReachesIsTrue(self) -> None:
        """
        For every offset and size: it says so exactly when a read before and after the flush differ.
        """

        def answer(offset: int, sizeMax: int) -> object:
            try:
                found = read(log, offset, sizeMax)
            except OffsetOutOfRangeError:
                return "out of range"
            return found.position, found.size

        log = self.startFlushed(flushCountMax=2)
        put(log, self.twelve, self.twelve)
        cases = [
            (offset, sizeMax)
            for offset in range(-1, 267)
            for sizeMax in (0, 1, 11, 12, 13, 24, 25, 36, 200)
        ]
        said = [log.readsPastWatermark(offset, sizeMax) for offset, sizeMax in cases]
        before = [answer(*case) for case in cases]
        flush(log)
        after = [answer(*case) for case in cases]
        self.assertEqual(said, [one != other for one, other in zip(before, after, strict=True)])

    @given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 100), st.integers(0, 60))
    def test_fitsIsRight(self, sizes: list[int], limit: int, before: int) -> None:
        """Whenever a run fits, asking before each of its sets would have rolled nowhere."""
        log = self.start(segmentSizeMax=limit)
        log.append(ValidatedBatches([bytes(before)], before, 1, before), START_MS)
        if log.rollDue(START_MS) or sum(sizes) > log.bytesUntilRoll:
            return
        for size in sizes:
            self.assertFalse(log.rollDue(START_MS))
            log.append(ValidatedBatches([bytes(size)], size, 1, size), START_MS)


class ThreadsTests(SynchronousTestCase):
    """Jobs and reads on real threads, the log on this one."""

    def test_readsDuringAppendsAndDeletes(self) -> None:
        """
        While sets are appended, flushed, rolled and deleted, on few descriptors, every range that
        the log has handed out is read by other threads, and has the bytes that were appended there.
        """
        site = Site(
            RealFileSystem(),
            self.mktemp(),
            segmentSizeMax=2000,
            flushCountMax=20,
            retentionSize=8000,
            descriptorCountMax=3,
        )
        site.open()
        log = site.create()
        random = Random(45)
        written = bytearray()
        workers = ThreadPoolExecutor(3)
        self.addCleanup(workers.shutdown)
        jobs: list[tuple[Future[StorageError | None], Callable[[StorageError | None], object]]] = []
        reads: list[tuple[Future[bytes | None], bytes]] = []

        def finishJobs(wait: bool) -> None:
            for found in [found for found in jobs if wait or found[0].done()]:
                jobs.remove(found)
                found[1](found[0].result())

        def start(job: Any, finish: Callable[..., object], *more: Any) -> None:
            if job is not None:
                jobs.append((workers.submit(run, job), lambda error: finish(job, error, *more)))

        def readPart(part: Slice, isPinned: bool) -> bytes | None:
            assert part.file is not None
            if not isPinned:
                try:
                    part.file.openPinned()
                except StorageError:
                    return None  # deleted before it could be opened, which is allowed
            try:
                return os.pread(part.file.fileno(), part.size, part.position)
            finally:
                part.file.unpin()

        for i in range(4000):
            finishJobs(False)
            if log.rollDue(START_MS):
                start(log.beginRoll(), log.finishRoll, START_MS)
                while log.rolling:
                    finishJobs(True)
            data = entry(b"%d" % i * random.randint(0, 9))
            append(log, data)
            written += data
            if i % 3 == 0:
                log.write()
            if log.flushDue(START_MS):
                start(log.beginFlush(), log.finishFlush, START_MS)
            if i % 100 == 0:
                start(log.beginDelete(log.expired(START_MS)[:-1], START_MS), log.finishDelete)
            if log.highWatermark > log.logStartOffset:
                offset = random.randrange(log.logStartOffset, log.highWatermark)
                part = read(log, offset, 300)
                assert part.file is not None
                reads.append(
                    (
                        workers.submit(readPart, part, part.file.pin()),
                        bytes(written[offset : offset + part.size]),
                    )
                )
        finishJobs(True)
        self.assertIsNone(log.failure)
        missed = 0
        for future, expected in reads:
            found = future.result()
            missed += found is None
            self.assertIn(found, (None, expected))
        self.assertTrue(len(reads) > 1000 and missed < len(reads) / 2, (len(reads), missed))
        self.assertTrue(log.logStartOffset > 20_000)
        flush(log)
        self.assertEqual(readAll(log), bytes(written[log.logStartOffset :]))
        self.assertTrue(site.directory.cache.openCount <= 3)
        self.assertTrue(site.close())
        self.assertEqual(site.directory.cache.openCount, 0)


class RealFileTests(LogCase):
    """The same on this machine's files, in short."""

    def test_lifeOfAPartition(self) -> None:
        """Append, roll, flush, read, delete, restart: the bytes are those that went in."""
        site = Site(
            RealFileSystem(),
            self.mktemp(),
            self.records,
            segmentSizeMax=1000,
            retentionSize=5000,
            descriptorCountMax=2,
        )
        site.open()
        log = site.create()
        sets = [self.entry(b"message %d" % i) for i in range(1000)]
        putFlushed(log, *sets)
        self.assertEqual(self.readAll(log), b"".join(sets))
        self.assertTrue(clean(log, START_MS) > 10)
        left = self.readAll(log)
        self.assertTrue(
            self.units(5000) <= len(left) < self.units(6100) and b"".join(sets).endswith(left)
        )
        self.assertTrue(site.directory.cache.openCount <= 2)
        self.assertTrue(site.close())
        site.open()
        self.assertEqual(self.readAll(site.log()), left)
        site.close()


class Kafka:
    """The same tests with today's format."""

    records = KAFKA


class KafkaAppendTests(Kafka, AppendTests):
    """Bytes go in, and marks move."""


class KafkaFlushTests(Kafka, FlushTests):
    """What is flushed is visible, and nothing else."""


class KafkaReadTests(Kafka, ReadTests):
    """Reads find the byte of an offset."""


class KafkaOffsetsBeforeTests(Kafka, OffsetsBeforeTests):
    """Offsets before a time."""


class KafkaRollTests(Kafka, RollTests):
    """Segments."""


class KafkaBadDiskTests(Kafka, BadDiskTests):
    """Writes that fail."""


class KafkaRetentionTests(Kafka, RetentionTests):
    """Retention."""


class KafkaNoticeTests(Kafka, NoticeTests):
    """Waiting for marks."""


class KafkaCloseTests(Kafka, CloseTests):
    """The end of a log."""


class KafkaRealFileTests(Kafka, RealFileTests):
    """This machine's files."""


class GapTests(LogCase):
    """Offsets with gaps, an index beside each segment, stamps: what only today's format has."""

    records = KAFKA

    def placed(self, offset: int, count: int = 1) -> bytes:
        """A batch of 100 bytes as a log holds it."""

        def made(size: int) -> bytes:
            records = [Record(offset + i, START_MS, None, b"v" * size) for i in range(count)]
            return encodeBatch(records, baseOffset=offset, leaderEpoch=0)

        return next(data for data in map(made, range(100)) if len(data) >= 100)

    def start(self, **settings: Any) -> PartitionLog:
        """Two segments as compaction leaves them: 0, 1, 5, 6, 9 to 11; then 20, 21."""
        self.site = Site(records=self.records, **settings)
        data = [self.placed(*each) for each in ((0, 1), (1, 1), (5, 1), (6, 1), (9, 3))]
        self.site.write(f"t-0/{0:020d}.log", b"".join(data))
        self.site.write(f"t-0/{20:020d}.log", self.placed(20) + self.placed(21))
        self.site.open()
        return self.site.log()

    def firstOf(self, log: PartitionLog, offset: int) -> int:
        """The base offset of the first batch that a read gives."""
        return int.from_bytes(bytesOf(read(log, offset, 100))[:8], "big")

    def test_load(self) -> None:
        """Segments with gaps between them load; the end is behind the last message."""
        log = self.start()
        self.assertEqual((log.logStartOffset, log.logEndOffset), (0, 22))
        self.assertEqual(log.flushed, LogPosition(22, 20, 200))

    def test_readInAGap(self) -> None:
        """
        A read from a gap gives the first batch behind it, in the next segment, too; one from inside
        a batch gives the batch.
        """
        log = self.start()
        expected = [0, 1, 5, 5, 5, 5, 6, 9, 9, 9, 9, 9, *[20] * 9, 21]
        self.assertEqual([self.firstOf(log, offset) for offset in range(22)], expected)
        self.assertEqual(read(log, 22, 100), EMPTY_SLICE)
        self.assertRaises(OffsetOutOfRangeError, read, log, 23, 100)

    def test_gapAtTheWatermark(self) -> None:
        """A read from a gap before the watermark does not go beyond it."""
        log = self.start()
        size = log.segments[0].size
        log.setWatermarkPolicy(lambda log: LogPosition(15, 0, size))
        self.assertEqual(log.highWatermark, 15)
        self.assertEqual(read(log, 13, 100), EMPTY_SLICE)
        self.assertEqual(self.firstOf(log, 9), 9)

    def test_searchIsAJob(self) -> None:
        """
        Where memory does not tell, a read answers with a job, which reads the file; then the read
        succeeds.
        """
        log = self.start()
        job = log.read(6, 100)
        assert isinstance(job, FindPositionJob)
        job.run()
        found = log.read(6, 200, job)
        assert isinstance(found, Slice)
        self.assertEqual((found.position, found.size), (300, 200))
        self.assertIsInstance(log.read(0, 100), Slice)
        self.assertIsInstance(log.read(21, 100), Slice, "of the last segment memory tells")

    def test_jobOfAnotherSegment(self) -> None:
        """A job's answer is used for its own segment alone."""
        log = self.start()
        roll(log)
        put(log, self.twelve)
        flush(log)
        self.assertTrue(self.site.close())
        self.site.open()
        log = self.site.log()
        job = log.read(6, 100)
        assert isinstance(job, FindPositionJob)
        job.run()
        self.assertIsInstance(log.read(21, 100, job), FindPositionJob)

    def test_stamps(self) -> None:
        """An append stamps each batch with its offset, and returns the first and the last."""
        log = self.start()
        size = log.size
        sets = [kafkaBatch(2) + kafkaBatch(3), kafkaBatch(1)]
        self.assertEqual(log.append(validated(log, *sets), 7), AppendResult(22, 27, 7))
        flush(log)
        found = bytesOf(read(log, 22, 1000))
        self.assertEqual(self.records.asSent(found), b"".join(sets))
        self.assertEqual(log.format.nextOffset(0, [found]), 28)
        self.assertEqual((log.logEndOffset, log.appendedCount), (28, 6))
        self.assertEqual(log.size, size + len(found))

    def test_indexFiles(self) -> None:
        """
        A roll and a close save the indexes; a start uses them; deletion removes them; lost ones are
        rebuilt.
        """
        log = self.start(segmentSizeMax=30)
        put(log, *[self.twelve] * 6)
        indexes = sorted(
            name for name in self.site.files.list(self.site.path("t-0")) if "index" in name
        )
        names = [f"{base:020d}.{kind}" for base in (0, 20, 23) for kind in ("index", "timeindex")]
        self.assertEqual(indexes, names)
        retire(log, log.segments[:1])
        self.assertTrue(self.site.close())
        self.site.files.remove(self.site.path(f"t-0/{23:020d}.index"))
        self.site.open()
        log = self.site.log()
        self.assertEqual([self.firstOf(log, offset) for offset in range(20, 28)], [*range(20, 28)])
        retire(log, log.segments[:1])
        left = self.site.files.list(self.site.path("t-0"))
        self.assertFalse({f"{20:020d}.index", f"{20:020d}.timeindex"} & set(left))

    def test_overlap(self) -> None:
        """Two segments with one base offset do not fit together."""
        self.site = Site(records=self.records)
        for name in ("0", "00"):
            self.site.write(f"t-0/{name}.log", b"")
        self.site.open()
        failure = str(self.site.directory.failures[TopicPartition("t", 0)])
        self.assertIn("the one at 0 has 0 bytes, the next begins at 0", failure)
