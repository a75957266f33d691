"""
Tests of loading and recovery.

The judge of recovery is L{wholePrefix}, an independent reading of spec-0.7 log-storage §8 with
gotcha 3 mended, whose CRC is crcmod's.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from random import Random

import crcmod.predefined
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import encodeSet
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.storage.events import (
    DeletedSegmentPurged,
    PurgeFailed,
    SegmentTruncated,
    StorageEvent,
)
from pylogbroker.storage.files import DescriptorCache
from pylogbroker.storage.recovery import LoadedPartition, loadPartition
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.storage.driving import KAFKA, KAFKA07, entry

crc = crcmod.predefined.mkCrcFun("crc-32")
crc32c = crcmod.predefined.mkCrcFun("crc-32c")
PATH = "/t-0"


def wholePrefix(data: bytes) -> int:
    """How many bytes of a segment recovery keeps."""
    position = 0
    while len(data) - position >= 4:
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        if size < 5 or position + 4 + size > len(data):
            break
        message = data[position + 4 : position + 4 + size]
        if message[0] == 0:
            checksum, payload = message[1:5], message[5:]
        elif message[0] == 1 and size >= 6:
            checksum, payload = message[2:6], message[6:]
        else:
            break
        if crc(payload) != int.from_bytes(checksum, "big"):
            break
        position += 4 + size
    return position


SMALL_LOG = b"".join(
    (
        encodeSet([b"one"]),
        encodeSet([b"zero"], magic=0),
        encodeSet([b""]),
        encodeSet([b"a" * 9, b"b" * 9], GZIP),
        encodeSet([b""], magic=0),
        encodeSet([b"\x01\x00\x00\x00\x00\x00", b"last"]),
    )
)


def kafkaPrefix(data: bytes) -> int:
    """The bytes of a segment of today's format that recovery keeps."""
    position = following = 0
    while len(data) - position >= 61:
        offset = int.from_bytes(data[position : position + 8], "big")
        size = int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        batch = data[position : position + 12 + size]
        if (
            size < 49
            or len(batch) < 12 + size
            or batch[16] != 2
            or crc32c(batch[21:]) != int.from_bytes(batch[17:21], "big")
            or not following <= offset < 1 << 31
        ):
            break
        following = offset + int.from_bytes(batch[23:27], "big") + 1
        position += 12 + size
    return position


def _kafkaLog() -> bytes:
    batches = []
    for values, offset, codec in (((b"one",), 0, 0), ((b"", b"2"), 1, 4), ((b"last",), 11, 0)):
        records = [Record(offset + i, 7, None, value) for i, value in enumerate(values)]
        batches.append(encodeBatch(records, baseOffset=offset, codec=codec))
    return b"".join(batches)


KAFKA_LOG = _kafkaLog()


class RecoveryCase(SynchronousTestCase):
    """
    @ivar records: the format.
    @ivar smallLog: a segment of it.
    @ivar wholePrefix: the judge.
    @ivar boundaryCount: of places where the judge may cut the small log.
    @ivar lastSize: of its last entry.
    @ivar cutReason: why the small log without its last byte is cut.
    """

    records = KAFKA07
    smallLog = SMALL_LOG
    wholePrefix = staticmethod(wholePrefix)
    boundaryCount = 8
    cutReason = "size field is 10 and 9 bytes follow"
    lastSize = 14

    @property
    def suffix(self) -> str:
        return self.records.format.suffix

    @property
    def last(self) -> str:
        return f"{PATH}/{0:020d}{self.suffix}"


class LoadCase(RecoveryCase):
    """A directory to load."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem(lambda: 77)
        self.files.makeDirectories(PATH)
        self.files.syncDirectory("/")
        self.reports: list[StorageEvent] = []

    def make(self, name: str, data: bytes, modifiedMs: int = 5) -> None:
        file = self.files.open(f"{PATH}/{name}", create=True)
        file.writeAt(0, [data])
        file.sync()
        file.close()
        self.files.setModified(f"{PATH}/{name}", modifiedMs)
        self.files.syncDirectory(PATH)

    def load(self, recover: bool = True) -> LoadedPartition:
        cache = DescriptorCache(self.files, 1)
        return loadPartition(cache, PATH, [self.records.format], recover, self.reports.append)

    def refused(self, recover: bool = True) -> str:
        """The directory does not load, and nothing in it is touched."""
        before = {name: self.files.status(f"{PATH}/{name}") for name in self.files.list(PATH)}
        operationCount = self.files.operationCount
        error = self.assertRaises(CorruptLogError, self.load, recover)
        self.assertEqual(
            {name: self.files.status(f"{PATH}/{name}") for name in self.files.list(PATH)}, before
        )
        self.assertEqual(self.files.operationCount, operationCount)
        return str(error)


class LoadTests(LoadCase):
    """What a directory loads as."""

    def test_empty(self) -> None:
        """A directory without segments gets the one at 0, durably."""
        loaded = self.load(False)
        [segment] = loaded.segments
        self.assertEqual(
            (segment.baseOffset, segment.path, segment.size, segment.modifiedMs),
            (0, self.last, 0, 77),
        )
        self.files.cutPower()
        self.assertEqual(self.files.list(PATH), [f"00000000000000000000{self.suffix}"])

    def test_loadEmptyLog(self) -> None:
        """LogTest.testLoadEmptyLog: a zero-byte segment at 0 loads."""
        self.make(f"00000000000000000000{self.suffix}", b"")
        [segment] = self.load().segments
        self.assertEqual(
            (segment.baseOffset, segment.path, segment.size, segment.modifiedMs),
            (0, self.last, 0, 5),
        )

    def test_twiceTheSameOffset(self) -> None:
        """Two files of one offset refuse the directory, empty or not."""
        self.make(f"0{self.suffix}", b"")
        self.make(f"00{self.suffix}", b"")
        self.refused()

    def test_oddSegmentName(self) -> None:
        """A name ending in C{.kafka} that is no offset refuses the directory."""
        self.make(f"backup{self.suffix}", b"")
        self.assertIn("decimal digits", self.refused())

    def test_directoryForASegment(self) -> None:
        """So does a directory of such a name."""
        self.files.makeDirectories(f"{PATH}/00000000000000000000{self.suffix}")
        self.assertIn("not a file", self.refused())

    def test_leftoversAreRemoved(self) -> None:
        """What retention had renamed before the last stop is removed, and said."""
        self.make(f"00000000000000000000{self.suffix}.deleted", b"x")
        self.make(f"00000000000000000001{self.suffix}", b"")
        self.assertEqual([segment.baseOffset for segment in self.load(False).segments], [1])
        self.assertEqual(self.files.list(PATH), [f"00000000000000000001{self.suffix}"])
        self.assertEqual(
            self.reports,
            [DeletedSegmentPurged(f"{PATH}/00000000000000000000{self.suffix}.deleted")],
        )

    def test_leftoverThatStays(self) -> None:
        """A leftover that cannot be removed is said, and stops nothing."""
        self.make(f"00000000000000000000{self.suffix}.deleted", b"x")
        self.make(f"00000000000000000001{self.suffix}", b"")
        self.files.fail("remove", ".deleted", errno.EPERM)
        self.assertEqual(len(self.load(False).segments), 1)
        (report,) = self.reports
        assert isinstance(report, PurgeFailed)
        self.assertEqual(report.error.errno, errno.EPERM)

    def test_directoryTime(self) -> None:
        """The directory's time is that from before a leftover was removed."""
        self.make(f"00000000000000000000{self.suffix}.deleted", b"x")
        self.files.setModified(PATH, 12)
        self.assertEqual(self.load().modifiedMs, 12)

    def test_vanishedDirectory(self) -> None:
        """A directory that is not there is an error of the log, whenever that is noticed."""
        self.assertRaises(
            StorageError,
            loadPartition,
            DescriptorCache(self.files, 1),
            "/none-0",
            [self.records.format],
            True,
            self.reports.append,
        )

        class Racing(PowerCutFileSystem):
            def list(self, path: str) -> list[str]:
                return []

        self.assertRaises(
            CorruptLogError,
            loadPartition,
            DescriptorCache(Racing(), 1),
            PATH,
            [self.records.format],
            True,
            self.reports.append,
        )

    def test_withoutRecovery(self) -> None:
        """After a clean stop the last segment is taken as it is, unread and unsynced."""
        self.make(f"00000000000000000000{self.suffix}", b"junk")
        operationCount = self.files.operationCount
        self.assertEqual(self.load(False).segments[0].size, 4)
        self.assertEqual(self.files.operationCount, operationCount)

    def test_onlyTheLastSegmentIsRecovered(self) -> None:
        """Earlier segments are not read: a roll has synced them."""
        self.make(f"00000000000000000000{self.suffix}", b"junk")
        self.make(f"00000000000000000004{self.suffix}", b"junk")
        self.assertEqual([segment.size for segment in self.load().segments], [4, 0])
        self.assertEqual(self.files.contents(f"{PATH}/00000000000000000000{self.suffix}"), b"junk")

    def test_recoveryIsReported(self) -> None:
        """What was cut, and why, is said; what was whole is not."""
        self.make(f"00000000000000000000{self.suffix}", self.smallLog)
        self.load()
        self.assertEqual(self.reports, [])
        self.files.open(self.last).truncate(len(self.smallLog) - 1)
        self.load()
        (report,) = self.reports
        assert isinstance(report, SegmentTruncated)
        self.assertEqual(
            (report.path, report.oldSize, report.size),
            (self.last, len(self.smallLog) - 1, len(self.smallLog) - self.lastSize),
        )
        self.assertIn(self.cutReason, report.reason)

    def test_recoverySyncs(self) -> None:
        """
        What recovery keeps survives a power cut from then on, even if nothing was cut off: after
        C{kill -9} it was in the page cache only.
        """
        self.files.open(self.last, create=True).writeAt(0, [self.smallLog])
        self.load()
        self.files.cutPower()
        self.assertEqual(self.files.contents(self.last), self.smallLog)

    def test_cutIsSynced(self) -> None:
        """What recovery cuts off does not come back."""
        self.make(f"00000000000000000000{self.suffix}", self.smallLog + b"junk!")
        self.load()
        self.files.cutPower()
        self.assertEqual(self.files.contents(self.last), self.smallLog)

    def test_badDisk(self) -> None:
        """
        A last segment that cannot be opened, read, cut or synced is an error of this partition, and
        its file is closed again.
        """
        for action in ("open", "stat", "read", "truncate", "fsync"):
            self.setUp()
            self.make(f"00000000000000000000{self.suffix}", self.smallLog + b"junk!")
            self.files.fail(action, self.suffix, errno.EIO)
            self.assertEqual(self.assertRaises(StorageError, self.load).errno, errno.EIO, action)
            self.files.mend()
            self.assertEqual(self.load().segments[0].size, len(self.smallLog), "another attempt")


class ContiguousTests(LoadCase):
    """What holds for 2011's offsets, and for a format without files of its own."""

    def test_loadInvalidLogsFails(self) -> None:
        """LogTest.testLoadInvalidLogsFails: zero-byte segments at 0 and 15 do not fit together."""
        self.make(f"00000000000000000000{self.suffix}", b"")
        self.make(f"00000000000000000015{self.suffix}", b"")
        self.assertIn(
            "the one at 0 has 0 bytes and ends at 0, the next begins at 15", self.refused()
        )

    def test_everyPairIsChecked(self) -> None:
        """
        A gap, or an overlap, between any two neighbours refuses the directory, with or without
        recovery.
        """
        data = entry(b"12345")
        for wrong in (1, 2):
            for shift in (-1, 1):
                self.setUp()
                for i in range(3):
                    self.make(
                        f"{i * len(data) + (shift if i == wrong else 0):020d}{self.suffix}", data
                    )
                self.refused(True)
                self.refused(False)

    def test_anyFirstOffset(self) -> None:
        """
        The first segment may begin anywhere; the order is that of the numbers, not of the names.
        """
        self.make(f"999{self.suffix}", b"x" * 1)
        self.make(f"1000{self.suffix}", b"")
        self.make(f"0998{self.suffix}", b"x")
        self.assertEqual(
            [segment.baseOffset for segment in self.load(False).segments], [998, 999, 1000]
        )

    def test_otherFilesAreIgnored(self) -> None:
        """Files of other names are left alone."""
        self.make(f"00000000000000000000{self.suffix}", b"")
        self.make("00000000000000000000.index", b"!")
        self.make("note.deleted", b"!")
        self.load()
        self.assertEqual(len(self.files.list(PATH)), 3)
        self.assertEqual(self.reports, [])


class ExhaustiveRecoveryTests(RecoveryCase):
    """A small last segment, damaged everywhere."""

    def keeps(self, data: bytes) -> bytes:
        """What recovery keeps of a file."""
        files = PowerCutFileSystem()
        files.makeDirectories(PATH)
        files.open(self.last, create=True).writeAt(0, [data])
        cache = DescriptorCache(files, 1)
        loaded = loadPartition(cache, PATH, [self.records.format], True, lambda report: None)
        found = files.contents(self.last)
        self.assertEqual(loaded.segments[0].size, len(found))
        return found

    def check(self, variants: Iterator[bytes], countMin: int) -> None:
        """Recovery and the judge agree on all, and there were enough."""
        count = 0
        kept = set()
        for data in variants:
            size = self.wholePrefix(data)
            self.assertEqual(self.keeps(data), data[:size], data.hex())
            kept.add(size)
            count += 1
        self.assertTrue(count >= countMin, count)
        self.assertTrue(len(kept) > 3, "the damage makes a difference")

    def test_judge(self) -> None:
        """The judge keeps a good log whole, and knows every boundary of it."""
        self.assertEqual(self.wholePrefix(self.smallLog), len(self.smallLog))
        self.assertEqual(
            len({self.wholePrefix(self.smallLog[:i]) for i in range(len(self.smallLog) + 1)}),
            self.boundaryCount,
        )

    def test_cutEverywhere(self) -> None:
        """The file ends at every byte; zeros, or other bytes, follow the cut."""

        def variants() -> Iterator[bytes]:
            for i in range(len(self.smallLog) + 1):
                yield self.smallLog[:i]
                for filler in (b"\0", b"\xff", b"\x01"):
                    for size in (1, 4, 5, 6, 9, 30):
                        yield self.smallLog[:i] + filler * size

        self.check(variants(), 19 * len(self.smallLog))

    def test_garbledEverywhere(self) -> None:
        """
        Every byte takes other values: each bit flipped, all bits flipped, zero, and small numbers
        as in size fields and magics.
        """

        def variants() -> Iterator[bytes]:
            for i, old in enumerate(self.smallLog):
                for new in {old ^ 1 << bit for bit in range(8)} | {
                    old ^ 255,
                    0,
                    1,
                    2,
                    5,
                    6,
                    255,
                } - {old}:
                    yield self.smallLog[:i] + bytes([new]) + self.smallLog[i + 1 :]

        self.check(variants(), 9 * len(self.smallLog))

    def test_zeroedEverywhere(self) -> None:
        """Any stretch of zeros, as a file system leaves that knew the size and not the bytes."""

        def variants() -> Iterator[bytes]:
            for start in range(len(self.smallLog)):
                for end in {start + 1, start + 4, start + 16, len(self.smallLog)}:
                    yield (
                        self.smallLog[:start]
                        + bytes(min(end, len(self.smallLog)) - start)
                        + self.smallLog[end:]
                    )

        self.check(variants(), 3 * len(self.smallLog))

    def test_junkAdded(self) -> None:
        """Junk behind the end, behind a cut, or in the middle, some of it looking like entries."""

        def variants() -> Iterator[bytes]:
            random = Random(20110612)
            for i in range(len(self.smallLog) + 1):
                junk = random.randbytes(random.randint(1, 40))
                looksGood = (
                    random.randint(0, 40).to_bytes(4, "big")
                    + bytes([random.randint(0, 3)])
                    + random.randbytes(random.randint(0, 40))
                )
                for added in (junk, looksGood):
                    yield self.smallLog + added
                    yield self.smallLog[:i] + added
                    yield self.smallLog[:i] + added + self.smallLog[i:]

        self.check(variants(), 6 * len(self.smallLog))

    def test_partialAndTruncation(self) -> None:
        """
        FileMessageSetTest.testIterationOverPartialAndTruncation: 0, 2, 4, 5 and 6 trailing zero
        bytes are removed by recovery.
        """
        for size in (0, 2, 4, 5, 6):
            self.assertEqual(self.keeps(self.smallLog + bytes(size)), self.smallLog)

    def test_unknownMagicIsAnEnd(self) -> None:
        """
        Gotcha 3: an unknown magic byte, or a magic-1 entry too short for its header, ends the log
        and raises nothing.
        """
        for bad in (b"\0\0\0\x06\x02\0\0\0\0\0", b"\0\0\0\x05\x01\0\0\0\0"):
            self.assertEqual(self.keeps(self.smallLog + bad + self.smallLog), self.smallLog)


class Kafka:
    """Today's format."""

    records = KAFKA
    smallLog = KAFKA_LOG
    wholePrefix = staticmethod(kafkaPrefix)
    boundaryCount = 4
    cutReason = "batch of 72 bytes and 71 are left"
    lastSize = 72


class KafkaLoadTests(Kafka, LoadTests):
    """What a directory loads as."""

    def test_withoutRecovery(self) -> None:
        """After a clean stop the end of the last segment must be a whole batch."""
        self.make(f"00000000000000000000{self.suffix}", b"junk")
        self.assertIn(
            "no whole batch at byte 0 of 4",
            str(self.assertRaises(CorruptLogError, self.load, False)),
        )


class KafkaExhaustiveRecoveryTests(Kafka, ExhaustiveRecoveryTests):
    """A small last segment, damaged everywhere."""

    def test_unknownMagicIsAnEnd(self) -> None:
        """A batch of another format ends the log."""
        for magic in (0, 1, 3):
            bad = bytearray(self.smallLog)
            bad[16] = magic
            self.assertEqual(self.keeps(self.smallLog + bytes(bad)), self.smallLog)
