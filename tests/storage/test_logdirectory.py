"""
Tests of a log directory.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    CorruptLogError,
    DirectoryLockedError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    StorageError,
)
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.storage.events import (
    PartitionLoaded,
    PartitionOffline,
    RecoveryNeeded,
    SegmentTruncated,
    UnexpectedDirectory,
    UnexpectedFileInLogDirectory,
)
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.logdirectory import LOCK_NAME, MARKER_NAME
from pylogbroker.storage.partitionlog import HOUR_MS
from pylogbroker.storage.recovery import LoadedPartition
from pylogbroker.storage.segments import Segment
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.types import TopicPartition
from tests.storage.driving import (
    ROOT,
    START_MS,
    Site,
    bytesOf,
    close,
    entry,
    flush,
    put,
    putFlushed,
    read,
    readAll,
    run,
)

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


class LogFormat(Kafka07Format):
    """The same records in files of another name."""

    suffix = ".log"


class OpenTests(SynchronousTestCase):
    """spec-0.7 log-storage §1 and §8."""

    def test_madeWithParents(self) -> None:
        """A directory that is missing is made, with its parents, durably."""
        site = Site()
        site.open()
        site.create()
        site.double.cutPower()
        self.assertEqual(site.files.list(ROOT), [LOCK_NAME, "t-0"])

    def test_relativePath(self) -> None:
        """A relative path will do, as in C{golden/broker.properties}."""
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.mkdir(place := self.mktemp())
        os.chdir(place)
        site = Site(RealFileSystem(), "golden-logs")
        site.open()
        site.create()
        self.assertTrue(site.close())
        self.assertEqual(sorted(os.listdir("golden-logs")), [MARKER_NAME, LOCK_NAME, "t-0"])

    def test_notADirectory(self) -> None:
        """A file in its place is an error."""
        site = Site()
        site.write("x", b"")
        site.root = site.path("x")
        self.assertIn("not a directory", str(self.assertRaises(StorageError, site.open)))

    def test_partitions(self) -> None:
        """
        Every directory C{<topic>-<number>} is a partition, those beyond the configured count, too;
        progress is reported.
        """
        site = Site()
        for name in ("a-b-0", "a-7", "c-0"):
            site.write(f"{name}/00000000000000000000.kafka", entry(b"x"))
        site.open()
        self.assertEqual(sorted(site.directory.logs), [("a", 7), ("a-b", 0), ("c", 0)])
        self.assertEqual(
            [str(log.topicPartition) for log in site.directory.logs.values()],
            ["a-7", "a-b-0", "c-0"],
        )
        self.assertEqual(site.reports[0], RecoveryNeeded(ROOT))
        loaded = [report for report in site.reports if isinstance(report, PartitionLoaded)]
        self.assertEqual(
            [(report.done, report.total, report.logEndOffset) for report in loaded],
            [(1, 3, 11), (2, 3, 11), (3, 3, 11)],
        )

    def test_oddThings(self) -> None:
        """
        Gotcha 4: sub-directories of other names, and plain files, are passed by with a warning.
        """
        site = Site()
        site.write("lost+found/x", b"")
        site.write("notes.txt", b"")
        site.write("t-0/00000000000000000000.kafka", b"")
        site.open()
        self.assertEqual(list(site.directory.logs), [("t", 0)])
        self.assertEqual(
            [report for report in site.reports if report.isWarning],
            [
                UnexpectedDirectory(f"{ROOT}/lost+found"),
                UnexpectedFileInLogDirectory(f"{ROOT}/notes.txt"),
            ],
        )

    def test_badPartitionIsIsolated(self) -> None:
        """
        Gotcha 30: a partition whose files do not fit together is left out, and said; the others
        serve.
        """
        site = Site()
        site.write("good-0/00000000000000000000.kafka", entry(b"x"))
        site.write("bad-0/00000000000000000000.kafka", b"")
        site.write("bad-0/00000000000000000015.kafka", b"")
        site.open()
        self.assertEqual(list(site.directory.logs), [("good", 0)])
        error = site.directory.failures[TopicPartition("bad", 0)]
        self.assertIsInstance(error, CorruptLogError)
        self.assertIn(PartitionOffline(TopicPartition("bad", 0), error), site.reports)
        self.assertEqual(readAll(site.log("good")), entry(b"x"))
        self.assertIn(
            "do not fit together",
            str(self.assertRaises(PartitionOfflineError, site.directory.get, "bad", 0)),
        )
        self.assertRaises(PartitionOfflineError, site.directory.beginCreate, "bad", 0)
        self.assertIsNone(site.directory.get("bad", 1))

    def test_unreadablePartitionIsIsolated(self) -> None:
        """So is one that the disk does not give."""
        for action, pathEnd in (
            ("list", "bad-0"),
            ("open", "bad-0/00000000000000000000.kafka"),
            ("fsync", "bad-0"),
        ):
            site = Site()
            site.write("good-0/00000000000000000000.kafka", b"")
            site.write("bad-0/00000000000000000000.kafka", b"")
            site.double.fail(action, pathEnd, errno.EIO)
            site.open()
            self.assertEqual(
                (list(site.directory.logs), list(site.directory.failures)),
                ([("good", 0)], [("bad", 0)]),
                action,
            )

    def test_unreadableDirectory(self) -> None:
        """If the directory itself cannot be listed, nothing opens, and the lock is free again."""
        site = Site()
        site.open().close()
        site.double.fail("list", ROOT, errno.EACCES)
        self.assertRaises(StorageError, site.open)
        self.assertFalse(site.directory.isOpen)
        site.open()

    def test_openedAgain(self) -> None:
        """A start that fails late leaves nothing of what it loaded, nor of what did not load."""
        site = Site()
        site.write("bad-0/00000000000000000000.kafka", b"")
        site.double.fail("list", "bad-0", errno.EIO)
        site.double.fail("fsync", ROOT, errno.EIO)
        self.assertRaises(StorageError, site.open)
        directory = site.directory
        self.assertEqual((directory.logs, directory.failures, directory.topics), ({}, {}, set()))
        directory.open(site.reports.append)
        self.assertEqual((list(directory.logs), directory.failures), ([("bad", 0)], {}))

    def test_segmentSample(self) -> None:
        """The segment that 0.7.2 wrote opens unchanged, and its messages are read."""
        sample = (GOLDEN / "segment-sample.kafka").read_bytes()
        site = Site()
        site.write("sample-0/00000000000000000000.kafka", sample)
        site.open()
        self.assertEqual([report for report in site.reports if report.isWarning], [])
        self.assertEqual(site.content("sample-0/00000000000000000000.kafka"), sample)
        log = site.log("sample")
        self.assertEqual(log.highWatermark, len(sample))
        self.assertTrue(len(list(MessageSet(bytesOf(read(log, 0, 1 << 20))).payloads())) >= 10)

    def test_magic0Segment(self) -> None:
        """
        BackwardsCompatibilityTest.testProtocolVersion0: a magic-0 segment of 10900 bytes, 100 times
        C{x} in each of 100 entries, gives 100 messages.
        """
        site = Site()
        data = encodeSet([b"x" * 100] * 100, magic=0)
        self.assertEqual((len(data), data[:13].hex()), (10900, "00000069005e0e5d8f78787878"))
        site.write("old-0/00000000000000000000.kafka", data)
        site.open()
        self.assertEqual(
            [payload for payload, _ in MessageSet(readAll(site.log("old"))).payloads()],
            [b"x" * 100] * 100,
        )

    def test_perTopicSettings(self) -> None:
        """
        What is configured for a topic holds for its partitions, what is configured for all, for the
        others.
        """
        site = Site(
            segmentSizeMaxByTopic={"a": 1},
            rollAgeMsByTopic={"a": 2},
            flushIntervalMsByTopic={"a": 3},
            flushCountMax=4,
            segmentSizeMax=10,
            rollAgeMs=20,
        )
        site.open()
        found = site.create("a", 0).settings
        self.assertEqual(
            (found.segmentSizeMax, found.rollAgeMs, found.flushIntervalMs, found.flushCountMax),
            (1, 2, 3, 4),
        )
        found = site.create("b", 0).settings
        self.assertEqual(
            (found.segmentSizeMax, found.rollAgeMs, found.flushIntervalMs, found.flushCountMax),
            (10, 20, 3000, 4),
        )
        self.assertIs(site.log("a", 0).settings, site.create("a", 1).settings)


class LockTests(SynchronousTestCase):
    """One broker a directory."""

    def test_secondBroker(self) -> None:
        """
        A directory that is open cannot be opened again, and is not touched by the attempt; closed,
        it can.
        """
        site = Site()
        first = site.open()
        operationCount = site.double.operationCount
        self.assertRaises(DirectoryLockedError, site.open)
        self.assertEqual(site.double.operationCount, operationCount + 1, "the attempt to lock")
        first.close()
        first.close()
        site.open()

    def test_realLock(self) -> None:
        """The same on this machine's files."""
        site = Site(RealFileSystem(), self.mktemp())
        first = site.open()
        self.assertRaises(DirectoryLockedError, site.open)
        first.close()
        site.open().close()

    def test_lockedMarkIsNotTaken(self) -> None:
        """Who comes second leaves the mark where it is."""
        site = Site()
        site.open()
        site.close()
        release = site.files.lock(site.path(LOCK_NAME))
        self.assertRaises(DirectoryLockedError, site.open)
        release()
        site.open()
        self.assertEqual(site.reports, [])


class MarkTests(SynchronousTestCase):
    """The clean-shutdown mark, done right (gotcha 2)."""

    def site(self) -> Site:
        site = Site()
        site.open()
        putFlushed(site.create(), entry(b"x"))
        return site

    def isMarked(self, site: Site) -> bool:
        return MARKER_NAME in site.files.list(ROOT)

    def test_orderlyStop(self) -> None:
        """
        An orderly stop writes it, durably, empty; the next start takes it away, durably, and does
        not look into the segments.
        """
        site = self.site()
        self.assertFalse(self.isMarked(site))
        self.assertTrue(site.close())
        site.double.cutPower()
        self.assertEqual(site.content(MARKER_NAME), b"")
        file = site.files.open(site.path("t-0/00000000000000000000.kafka"))
        file.writeAt(11, [b"junk"])
        file.sync()
        site.open()
        self.assertEqual(site.log().logEndOffset, 15, "not recovered")
        self.assertFalse(self.isMarked(site))
        site.double.cutPower()
        self.assertFalse(self.isMarked(site))
        site.open()
        self.assertEqual(site.log().logEndOffset, 11, "recovered")
        self.assertTrue(any(isinstance(report, SegmentTruncated) for report in site.reports))

    def test_cleanShutdown(self) -> None:
        """
        ServerShutdownTest.testCleanShutdown, the log's part: two messages, stop, start: the same
        two; two more are read behind them.
        """
        site = Site()
        site.open()
        putFlushed(site.create(), entry(b"hello"), entry(b"there"))
        self.assertTrue(site.close())
        self.assertTrue(self.isMarked(site))
        site.open()
        self.assertEqual(readAll(site.log()), entry(b"hello") + entry(b"there"))
        putFlushed(site.log(), entry(b"more"), entry(b"messages"))
        self.assertEqual(readAll(site.log(), 30), entry(b"more") + entry(b"messages"))

    def test_stopsThatFollowEachOther(self) -> None:
        """Stop and start as often as one likes: the mark comes and goes."""
        site = self.site()
        for _ in range(3):
            self.assertTrue(site.close())
            site.open()
            self.assertEqual(site.log().logEndOffset, 11)

    def test_newDirectory(self) -> None:
        """
        A directory without partitions has nothing to recover, and nothing is said of its missing
        mark.
        """
        site = Site()
        site.open()
        self.assertEqual(site.reports, [])
        site.create()
        site.kill()
        site.open()
        self.assertIn(RecoveryNeeded(ROOT), site.reports)

    def test_notWithoutOpening(self) -> None:
        """It is never written by who has not opened the directory, or has closed it."""
        site = Site()
        self.assertRaises(ValueError, site.directory.writeCleanShutdownMarker)
        site.open().close()
        self.assertRaises(ValueError, site.directory.writeCleanShutdownMarker)

    def test_notAfterAFailedStart(self) -> None:
        """
        A start that fails takes the mark away and cannot write it again: the next start recovers.
        """
        site = self.site()
        site.close()
        site.double.fail("list", ROOT, errno.EIO)
        self.assertRaises(StorageError, site.open)
        self.assertRaises(ValueError, site.directory.writeCleanShutdownMarker)
        site.open()
        self.assertIn(RecoveryNeeded(ROOT), site.reports)

    def test_notBeforeAllAreClosed(self) -> None:
        """Nor while a partition is open."""
        site = self.site()
        self.assertRaises(ValueError, site.directory.writeCleanShutdownMarker)

    def test_notWithAFailedPartition(self) -> None:
        """Nor if a partition has failed: recovery must look at it."""
        site = self.site()
        put(site.log(), entry(b"y"))
        site.double.fail("fsync", ".kafka", errno.EIO)
        flush(site.log())
        self.assertFalse(site.close())
        self.assertFalse(self.isMarked(site))

    def test_notWithAFailedClose(self) -> None:
        """
        Nor if a partition could not be synced on closing, or has bytes that the disk did not take.
        """
        for fault in ("fsync", "full"):
            site = self.site()
            if fault == "full":
                site.double.sizeMax = 0
            put(site.log(), entry(b"y"))
            if fault == "fsync":
                site.double.fail("fsync", ".kafka", errno.EIO)
            self.assertFalse(site.close())
            self.assertFalse(self.isMarked(site))

    def test_withAPartitionThatDidNotLoad(self) -> None:
        """
        A partition that could not be loaded after a crash prevents the marker: it needs recovery
        once it is mended. With a marker before, its files were whole, and unchanged since: the
        marker is written.
        """
        site = self.site()
        site.write("bad-0/00000000000000000015.kafka", b"torn")
        site.write("bad-0/00000000000000000000.kafka", b"")
        site.kill()
        site.open()
        self.assertEqual(len(site.directory.failures), 1)
        self.assertFalse(site.close())
        for i in range(2):
            site.files.rename(
                site.path(f"bad-0/000000000000000000{15 * i:02d}.kafka"),
                site.path(f"bad-0/{15 * i}.hidden"),
            )
        site.open()
        self.assertTrue(site.close())
        for i in range(2):
            site.files.rename(
                site.path(f"bad-0/{15 * i}.hidden"),
                site.path(f"bad-0/000000000000000000{15 * i:02d}.kafka"),
            )
        site.files.remove(site.path("bad-0/00000000000000000000.kafka"))
        site.write("bad-0/00000000000000000000.kafka", b"")
        site.open()
        self.assertEqual(len(site.directory.failures), 1)
        self.assertTrue(site.close())

    def test_cannotBeWritten(self) -> None:
        """If it cannot be written or synced, that is told, and the file is closed again."""
        for action, pathEnd in (("create", MARKER_NAME), ("fsync", MARKER_NAME), ("fsync", ROOT)):
            site = self.site()
            site.double.fail(action, pathEnd, errno.EIO)
            self.assertRaises(StorageError, site.close)


class CreateTests(SynchronousTestCase):
    """spec-0.7 log-storage §12."""

    def setUp(self) -> None:
        self.site = Site()
        self.site.open()

    def test_createLog(self) -> None:
        """LogManagerTest.testCreateLog: creating kafka/0 makes C{kafka-0}; appending works."""
        log = self.site.create("kafka", 0)
        self.assertEqual(
            self.site.files.list(self.site.path("kafka-0")), ["00000000000000000000.kafka"]
        )
        putFlushed(log, entry(b"test"))
        self.assertEqual(readAll(log), entry(b"test"))
        self.assertIs(self.site.directory.get("kafka", 0), log)

    def test_getLog(self) -> None:
        """LogManagerTest.testGetLog: a plain get makes nothing."""
        self.assertIsNone(self.site.directory.get("fake", 0))
        self.assertNotIn("fake-0", self.site.files.list(ROOT))

    def test_configurablePartitions(self) -> None:
        """
        LogManagerTest.testConfigurablePartitions: the count of a topic is that of the map, else
        that of all.
        """
        site = Site(partitionCount=3, partitionCountByTopic={"testPartition": 2})
        self.assertEqual(
            [site.directory.partitionCount(topic) for topic in ("testPartition", "other")], [2, 3]
        )

    def test_formats(self) -> None:
        """
        A format that the directory does not know is not used; files of two formats are not loaded.
        """
        site = Site()
        site.write("t-0/00000000000000000000.kafka", entry(b"x"))
        site.write("t-0/00000000000000000000.log", entry(b"x"))
        site.write("u-0/00000000000000000011.log", entry(b"x"))
        site.formats.append(LogFormat())
        site.open()
        self.assertIn(
            "segments of two formats: .kafka and .log",
            str(site.directory.failures[TopicPartition("t", 0)]),
        )
        log = site.log("u")
        self.assertEqual(
            (log.format.suffix, log.logStartOffset, log.logEndOffset), (".log", 11, 22)
        )
        job = site.directory.beginCreate("u", 1, site.formats[1])
        site.directory.finishCreate(job, run(job))
        self.assertEqual(site.log("u", 1).segments[0].path, site.path("u-1/" + "0" * 20 + ".log"))
        self.assertEqual(site.create("u", 2).format.suffix, ".kafka")

    def test_validateTopic(self) -> None:
        """Names are checked with the configured length."""
        site = Site(topicLengthMax=5)
        site.directory.validateTopic("12345")
        self.assertRaises(InvalidTopicError, site.directory.validateTopic, "123456")
        self.assertRaises(InvalidTopicError, site.directory.validateTopic, "a/b")

    def test_durable(self) -> None:
        """A partition that was created is there after a power cut."""
        self.site.create("kafka", 0)
        self.site.double.cutPower()
        self.site.open()
        self.assertEqual(list(self.site.directory.logs), [("kafka", 0)])

    def test_oneAtATime(self) -> None:
        """
        Gotcha 14: a partition is made once; who comes while it is being made, or later, is told
        that it is.
        """
        job = self.site.directory.beginCreate("kafka", 0)
        self.assertRaises(ValueError, self.site.directory.beginCreate, "kafka", 0)
        self.site.create("kafka", 1)
        self.assertTrue(self.site.directory.isCreating("kafka"))
        self.site.directory.finishCreate(job, run(job))
        self.assertFalse(self.site.directory.isCreating("kafka"))
        self.assertRaises(ValueError, self.site.directory.beginCreate, "kafka", 0)

    def test_tooLongForTheFileSystem(self) -> None:
        """
        Gotcha 21: a topic that is valid, but whose directory's name would be too long, is refused,
        and nothing is made.
        """
        name = "w" * 254
        self.site.directory.validateTopic(name)
        self.assertRaises(InvalidTopicError, self.site.directory.beginCreate, name, 0)
        self.assertRaises(InvalidTopicError, self.site.directory.beginCreate, name, 0)
        self.assertEqual(self.site.files.list(ROOT), [LOCK_NAME])

    def test_failedCreation(self) -> None:
        """Wherever creating fails, it can be tried again, and goes on from what is there."""
        for action, pathEnd in (
            ("create", "t-0"),
            ("create", ".kafka"),
            ("fsync", "t-0"),
            ("fsync", ROOT),
        ):
            self.setUp()
            self.site.double.fail(action, pathEnd, errno.ENOSPC)
            self.assertEqual(self.assertRaises(StorageError, self.site.create).errno, errno.ENOSPC)
            self.assertIsNone(self.site.directory.get("t", 0))
            log = self.site.create()
            putFlushed(log, entry(b"x"))
            self.site.double.cutPower()
            self.site.open()
            self.assertEqual(readAll(self.site.log()), entry(b"x"), (action, pathEnd))

    def test_whatIsThereIsLoaded(self) -> None:
        """A directory that exists already is recovered and loaded."""
        self.site.write("t-0/00000000000000000100.kafka", entry(b"x") + b"junk")
        job = self.site.directory.beginCreate("t", 0)
        log = self.site.directory.finishCreate(job, run(job))
        self.assertEqual((log.logStartOffset, log.logEndOffset), (100, 111))
        self.assertEqual([type(report) for report in job.events], [SegmentTruncated])

    def test_emptyLogs(self) -> None:
        """
        LogOffsetTest.testEmptyLogs, the log's part: a new partition answers 0 to earliest and
        latest, and an empty read at 0.
        """
        log = self.site.create()
        self.assertEqual(
            (log.offsetsBefore(-1, 10, START_MS), log.offsetsBefore(-2, 10, START_MS)), ([0], [0])
        )
        self.assertEqual(read(log, 0, 100).size, 0)
        self.assertRaises(OffsetOutOfRangeError, read, log, 1, 100)


class AgeTests(SynchronousTestCase):
    """Gotcha 19: the age of the last segment survives a restart."""

    def loaded(self, directoryMs: int, *sizesAndTimes: tuple[int, int]) -> LoadedPartition:
        none: Any = None
        segments = [Segment(0, none, size, modifiedMs, none) for size, modifiedMs in sizesAndTimes]
        return LoadedPartition("/t-0", Kafka07Format(), tuple(segments), 0, directoryMs)

    def test_estimate(self) -> None:
        """
        It is the time of the segment before, or of the directory; never later than the segment's
        own; none for an empty one.
        """
        self.assertIsNone(self.loaded(5, (0, 7)).firstAppendMs)
        self.assertEqual(self.loaded(5, (1, 7)).firstAppendMs, 5)
        self.assertEqual(self.loaded(9, (1, 7)).firstAppendMs, 7)
        self.assertEqual(self.loaded(9, (1, 3), (1, 7)).firstAppendMs, 3)
        self.assertIsNone(self.loaded(9, (1, 3), (0, 7)).firstAppendMs)

    def restartEveryHour(self, site: Site, hours: int) -> list[int]:
        """
        Append every ten minutes, restart every hour, roll when due. The hours in which that was.
        """
        rolled = []
        for hour in range(hours):
            site.open()
            log = site.log()
            for _ in range(6):
                site.clock.nowMs += HOUR_MS // 6
                if log.rollDue(site.clock.nowMs):
                    rolled.append(hour)
                put(log, entry(b"x"), nowMs=site.clock.nowMs)
                flush(log, site.clock.nowMs)
            self.assertTrue(site.close())
        return rolled

    def test_restartedEveryHour(self) -> None:
        """
        A broker that is restarted every hour rolls by age all the same: every five hours, as
        configured.
        """
        site = Site(rollAgeMs=5 * HOUR_MS)
        site.open()
        site.create()
        site.close()
        self.assertEqual(self.restartEveryHour(site, 22), [5, 10, 15, 20])

    def test_neverRestarted(self) -> None:
        """
        The same without restarts, for comparison: an hour is not missed by more than one append.
        """
        site = Site(rollAgeMs=5 * HOUR_MS)
        site.open()
        log = site.create()
        rolled = []
        for tick in range(22 * 6):
            site.clock.nowMs += HOUR_MS // 6
            if log.rollDue(site.clock.nowMs):
                rolled.append(tick // 6)
            put(log, entry(b"x"), nowMs=site.clock.nowMs)
        self.assertEqual(rolled, [5, 10, 15, 20])

    def test_afterRetention(self) -> None:
        """
        When the segment before is gone, the directory's time counts: that of the last deletion at
        most.
        """
        site = Site(rollAgeMs=5 * HOUR_MS, retentionAgeMs=HOUR_MS, segmentSizeMax=5)
        site.open()
        log = site.create()
        putFlushed(log, entry(b"x"))
        site.clock.nowMs += HOUR_MS
        put(log, entry(b"y"), nowMs=site.clock.nowMs)
        flush(log)
        site.clock.nowMs += 1
        job = log.beginDelete(log.expired(site.clock.nowMs), site.clock.nowMs)
        assert job is not None
        log.finishDelete(job, run(job))
        site.close()
        site.change(segmentSizeMax=1000)
        site.open()
        self.assertEqual(len(site.log().segments), 1)
        self.assertFalse(site.log().rollDue(site.clock.nowMs + 5 * HOUR_MS - 1))
        self.assertTrue(site.log().rollDue(site.clock.nowMs + 5 * HOUR_MS + 1))

    def test_emptySegmentHasNoAge(self) -> None:
        """
        An empty last segment does not roll by age after a restart; its age counts from the first
        append.
        """
        site = Site(rollAgeMs=5 * HOUR_MS)
        site.open()
        site.create()
        site.close()
        site.clock.nowMs += 50 * HOUR_MS
        site.open()
        log = site.log()
        self.assertFalse(log.rollDue(site.clock.nowMs))
        put(log, entry(b"x"), nowMs=site.clock.nowMs)
        self.assertFalse(log.rollDue(site.clock.nowMs + 5 * HOUR_MS))
        self.assertTrue(log.rollDue(site.clock.nowMs + 5 * HOUR_MS + 1))


class DescriptorTests(SynchronousTestCase):
    """Many partitions, few descriptors."""

    def test_openingOpensNothing(self) -> None:
        """
        A directory with a thousand partitions of several segments opens without holding a
        descriptor, and serves each within the limit.
        """
        site = Site(PowerCutFileSystem(), descriptorCountMax=8)
        for i in range(1000):
            site.write(f"t-{i}/00000000000000000000.kafka", entry(b"x"))
            site.write(f"t-{i}/00000000000000000011.kafka", entry(b"y"))
        site.open()
        cache = site.directory.cache
        self.assertEqual(cache.openCount, 0)
        for log in site.directory.logs.values():
            self.assertEqual(readAll(log), entry(b"x") + entry(b"y"))
            putFlushed(log, entry(b"z"))
            self.assertTrue(cache.openCount <= 8)
        self.assertEqual(cache.openCount, 8)
        for log in site.directory.logs.values():
            close(log)
        self.assertEqual(cache.openCount, 0)

    def test_unflushedKeepTheirs(self) -> None:
        """
        Partitions with unflushed bytes keep their descriptors, however many they are, until they
        are flushed.
        """
        site = Site(PowerCutFileSystem(), descriptorCountMax=2)
        site.open()
        logs = [site.create("t", i) for i in range(10)]
        for log in logs:
            put(log, entry(b"x"))
        self.assertEqual(site.directory.cache.openCount, 10)
        for log in logs:
            flush(log)
        self.assertEqual(site.directory.cache.openCount, 2)
