"""Tests for L{pylogbroker.records.segmentindex}."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import CheckLimits, IFile, TimestampOffset
from pylogbroker.records import segmentindex
from pylogbroker.records.compression import LZ4, NONE
from pylogbroker.records.kafkaformat import LOG_RULES, KafkaFormat, RecordRules
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.records.segmentindex import RECENT_COUNT, IndexSettings, SegmentIndex
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.goldenfiles import GOLDEN
from tests.records.goldenbatches import START_MS

PATH = "/log/00000000000000001000.log"
OFFSETS = "/log/00000000000000001000.index"
TIMES = "/log/00000000000000001000.timeindex"
BASE = 1000


class Log:
    """
    A segment that begins at offset 1000, and its index.

    @ivar batches: (base offset, last offset, position, timestamps of its records).
    """

    def __init__(self, settings: IndexSettings | None = None) -> None:
        self.files = PowerCutFileSystem()
        self.files.makeDirectories("/log")
        self.files.open(PATH, create=True)
        self.format = KafkaFormat(
            LOG_RULES if settings is None else RecordRules(isFromClient=False, index=settings)
        )
        self.batches: list[tuple[int, int, int, Sequence[int]]] = []
        self.nextOffset = BASE
        self.index = self.open()

    def open(self, rebuild: bool = False) -> SegmentIndex:
        """The index of what is on the disk."""
        self.index = self.format.openIndex(self.files, PATH, BASE, self.size, rebuild)
        return self.index

    @property
    def size(self) -> int:
        status = self.files.status(PATH)
        assert status is not None
        return status.size

    @property
    def file(self) -> IFile:
        return self.files.open(PATH, write=False)

    def append(
        self,
        *times: int,
        size: int = 1,
        gap: int = 0,
        codec: int = NONE,
        appendMs: int | None = None,
    ) -> None:
        """One batch, of a record for each timestamp, behind a gap, as a leader stores it."""
        records = [
            Record(index, START_MS + ms, None, b"v" * size) for index, ms in enumerate(times)
        ]
        found = self.format.validate(encodeBatch(records, codec=codec), CheckLimits())
        if appendMs is not None:
            found = self.format.validate(encodeBatch(records, appendTimeMs=0), CheckLimits())
        base, position = self.nextOffset + gap, self.size
        timeMs = START_MS + (appendMs or 0)
        stored = self.format.stamp(found, base, 7, timeMs)
        self.index.add(found, base, position, timeMs)
        self.files.open(PATH).writeAt(position, stored)
        self.nextOffset = base + len(times)
        self.batches.append((base, self.nextOffset - 1, position, times))

    def positionOf(self, offset: int) -> int:
        """As a log finds it."""
        position = self.index.positionOf(offset)
        return self.index.search(self.file, offset) if position is None else position

    def expected(self, offset: int) -> int:
        """The judge."""
        for _, last, position, _ in self.batches:
            if last >= offset:
                return position
        return self.size

    def byTime(self, ms: int, startOffset: int) -> TimestampOffset | None:
        """The judge."""
        for base, _, _, times in self.batches:
            for index, each in enumerate(times):
                if each >= ms and base + index >= startOffset:
                    return TimestampOffset(START_MS + each, base + index, 7)
        return None

    def entries(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """What is in the files."""
        offsets, times = self.files.contents(OFFSETS), self.files.contents(TIMES)
        return list(struct.iter_unpack(">ii", offsets)), list(struct.iter_unpack(">qi", times))


def filled(count: int = 30, size: int = 1000, **options: int) -> Log:
    """Batches of two records, with times that go up and down, and gaps."""
    log = Log()
    for number in range(count):
        ms = 10 * number if number % 5 else 3 * number
        log.append(ms, ms - 4, size=size, gap=number % 3, **options)
    return log


class LookupCase(SynchronousTestCase):
    """Every offset and time is looked up, and held against the judge."""

    def check(self, log: Log) -> None:
        for offset in range(BASE, log.nextOffset + 2):
            self.assertEqual(log.positionOf(offset), log.expected(offset), offset)
            self.assertEqual(log.index.search(log.file, offset), log.expected(offset), offset)
        largest = max(ms for *_, times in log.batches for ms in times)
        for ms in range(-10, largest + 3):
            for start in (BASE, BASE + 9, log.nextOffset - 1, log.nextOffset):
                self.assertEqual(
                    log.index.searchTime(log.file, START_MS + ms, start), log.byTime(ms, start)
                )
        self.assertEqual(log.index.largestTimestampMs, START_MS + largest)
        self.assertEqual(log.index.searchLargestTime(log.file), log.byTime(largest, 0))


class LookupTests(LookupCase):
    """Offsets and times."""

    def test_active(self) -> None:
        """While the segment is written."""
        self.check(filled())
        self.check(filled(5, 9000))
        self.check(filled(9, 2000, codec=LZ4))

    def test_saved(self) -> None:
        """From the files: after a save, after a restart, and when batches came after it."""
        log = filled()
        log.index.save()
        self.check(log)
        log.open()
        self.assertEqual(log.index.findEnd(log.size), log.nextOffset)
        self.check(log)
        for number in range(20):
            log.append(400 + number, size=900)
        self.check(log)
        log.index.save()
        log.open()
        self.check(log)

    def test_rebuilt(self) -> None:
        """After a crash the files are not looked at."""
        log = filled()
        log.index.save()
        log.append(5000, size=9000)
        for path in (OFFSETS, TIMES):
            log.files.open(path).writeAt(0, [b"\xff" * 80])
        log.open(rebuild=True)
        self.assertEqual(log.index.findEnd(log.size), log.nextOffset)
        self.check(log)
        log.index.save()
        log.open()
        self.check(log)

    def test_recent(self) -> None:
        """Of the last batches memory knows the positions; of earlier ones it does not."""
        log = filled(10)
        self.assertEqual(
            [log.index.positionOf(last) for _, last, _, _ in log.batches],
            [position for _, _, position, _ in log.batches],
        )
        self.assertIsNone(log.index.positionOf(log.nextOffset))
        self.assertEqual(log.index.positionOf(BASE), 0)
        log.index.save()
        log.open()
        log.index.findEnd(log.size)
        known = [log.index.positionOf(last) for _, last, _, _ in log.batches]
        self.assertEqual(known[-1], log.batches[-1][2])
        self.assertIn(None, known)

    def test_recentIsBounded(self) -> None:
        """No more than twice L{RECENT_COUNT} batches are remembered one by one."""
        log = Log()
        found = log.format.validate(encodeBatch([Record(0, 1, None, b"")]), CheckLimits())
        for number in range(3 * RECENT_COUNT):
            log.index.add(found, BASE + number, number * found.size, 0)
        end = BASE + 3 * RECENT_COUNT - 1
        self.assertEqual(log.index.positionOf(end), (3 * RECENT_COUNT - 1) * found.size)
        known = [log.index.positionOf(offset) for offset in range(BASE + 1, end + 1)]
        self.assertTrue(RECENT_COUNT <= sum(each is not None for each in known) <= 2 * RECENT_COUNT)

    def test_manyEntries(self) -> None:
        """The search in a file goes by halves."""
        self.patch(segmentindex, "_SEARCHED_COUNT", 2)
        self.patch(segmentindex, "_SAVED_COUNT", 4)
        log = Log(IndexSettings(intervalSize=1))
        for number in range(60):
            log.append(number, number)
        log.index.save()
        self.assertEqual(len(log.entries()[0]), 59)
        log.open()
        self.check(log)

    def test_appendTime(self) -> None:
        """With C{LogAppendTime} all records of a batch have the time of the append."""
        log = Log()
        log.append(1, 2, appendMs=50)
        log.append(3, 4, appendMs=60)
        for ms, offset in ((0, BASE), (50, BASE), (51, BASE + 2), (60, BASE + 2)):
            found = log.index.searchTime(log.file, START_MS + ms, BASE)
            assert found is not None
            self.assertEqual(found.offset, offset)
        self.assertIsNone(log.index.searchTime(log.file, START_MS + 61, BASE))

    def test_noTimes(self) -> None:
        """Records without timestamps are not found by time."""
        log = Log()
        log.append(-START_MS - 1, -START_MS - 1)
        self.assertEqual(log.index.largestTimestampMs, -1)
        self.assertIsNone(log.index.searchLargestTime(log.file))
        self.assertIsNone(log.index.searchTime(log.file, 0, BASE))
        log.index.save()
        self.assertEqual(log.open().largestTimestampMs, -1)

    def test_halfWritten(self) -> None:
        """A batch of which only a part is in the file yet is not there yet."""
        log = filled(3)
        log.files.open(PATH).truncate(log.size - 1)
        end = log.batches[-1][2]
        self.assertEqual(log.index.search(log.file, log.nextOffset - 1), end)

    def test_largestTimeGone(self) -> None:
        """A file that ends before the batch with a time has nothing of that time."""
        log = filled(3)
        log.files.open(PATH).truncate(0)
        self.assertIsNone(log.index.searchLargestTime(log.file))

    @given(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, 60), min_size=1, max_size=3),
                st.integers(0, 3),
                st.integers(1, 200),
                st.booleans(),
            ),
            min_size=1,
            max_size=12,
        ),
        st.integers(0, 400),
    )
    def test_anyLog(self, batches: list, intervalSize: int) -> None:
        """Any batches, gaps and sizes, with restarts in between."""
        log = Log(IndexSettings(intervalSize))
        for times, gap, size, restarts in batches:
            log.append(*times, size=size, gap=gap)
            if restarts:
                log.index.save()
                log.open().findEnd(log.size)
        self.check(log)


class FileTests(LookupCase):
    """The files, as Apache writes them."""

    def test_entries(self) -> None:
        """
        An entry for a batch that begins more than the interval behind the last one: its last
        offset, its first byte; with it the largest time, when that has grown; at the end, the
        largest of all.
        """
        log = Log(IndexSettings(200))
        for number, ms in enumerate((5, 9, 9, 3, 20, 20, 30)):
            log.append(ms, size=50 + number)
        log.index.save()
        positions = [position for _, _, position, _ in log.batches]
        self.assertEqual(positions[1], 118)
        self.assertEqual(
            log.entries(),
            (
                [(2, positions[2]), (4, positions[4]), (6, positions[6])],
                [(START_MS + 9, 1), (START_MS + 20, 4), (START_MS + 30, 6)],
            ),
        )
        log.index.save()
        self.assertEqual(len(log.entries()[1]), 3, "the last time is written once")

    def test_empty(self) -> None:
        """An empty segment has no index files; those of an earlier life are removed."""
        log = Log()
        log.files.open(OFFSETS, create=True)
        log.index.save()
        self.assertEqual([log.files.status(path) for path in (OFFSETS, TIMES)], [None, None])
        self.assertEqual(log.open().findEnd(0), BASE)
        self.assertEqual(log.open(rebuild=True).findEnd(0), BASE)
        log.append(5)
        self.check(log)

    def test_removed(self) -> None:
        """Both files go with the segment; absent ones are no fault."""
        log = filled()
        log.index.remove()
        log.index.remove()
        self.assertIsNone(log.files.status(OFFSETS))
        self.assertIsNone(log.files.status(TIMES))

    def test_unchanged(self) -> None:
        """Files that are as they should be are not written again."""
        log = filled()
        log.index.save()
        log.open()
        count = log.files.operationCount
        log.index.save()
        self.assertEqual(log.files.operationCount, count)

    def test_durable(self) -> None:
        """What is saved survives a power cut, once the directory is synced."""
        log = filled()
        log.files.open(PATH).sync()
        log.index.save()
        log.files.syncDirectory("/log")
        log.files.syncDirectory("/")
        before = log.entries()
        log.files.cutPower()
        self.assertEqual(log.entries(), before)

    def test_full(self) -> None:
        """An index that is full asks for a roll, and so do offsets and bytes beyond four bytes."""
        log = Log(IndexSettings(intervalSize=1, sizeMax=24))
        for number in range(4):
            self.assertFalse(log.index.isFull)
            log.append(number)
        self.assertTrue(log.index.isFull)
        found = log.format.validate(encodeBatch([Record(0, 1, None, b"")]), CheckLimits())
        for offset, position in ((BASE + 2**31 - 2**24, 0), (BASE, 2**31 + 1)):
            log = Log()
            log.index.add(found, offset, position, 0)
            self.assertTrue(log.index.isFull)

    def test_missing(self) -> None:
        """Files that are missing or damaged are rebuilt, and saved."""

        def zeros(path: str) -> None:
            """As Apache leaves a file that it was still writing."""
            with_ = log.files.open(path)
            with_.truncate(len(log.files.contents(path)) + 24)

        def cut(path: str) -> None:
            log.files.open(path).truncate(len(log.files.contents(path)) - 1)

        def remove(path: str) -> None:
            log.files.remove(path)

        for damage in (zeros, cut, remove):
            for path in (OFFSETS, TIMES):
                log = filled()
                log.index.save()
                before = log.entries()
                damage(path)
                log.open()
                self.assertEqual(log.entries(), before)
                self.check(log)

    def test_wrongEntries(self) -> None:
        """Entries that lead beyond the segment, or into a batch, are not believed."""
        for position in (1 << 30, 100):
            log = filled()
            log.index.save()
            before = log.entries()
            count = len(before[0])
            log.files.open(OFFSETS).writeAt(8 * count - 4, [struct.pack(">i", position)])
            log.open()
            self.assertEqual(log.entries(), before)
            self.check(log)

    def test_wrongInside(self) -> None:
        """One in the midst, which is not looked at when the index is opened, misleads nobody."""
        log = filled()
        log.index.save()
        count = len(log.entries()[0])
        for index in range(1, count - 1):
            log.files.open(OFFSETS).writeAt(8 * index + 4, [struct.pack(">i", 100)])
        log.open()
        self.check(log)

    def test_shorterMeanwhile(self) -> None:
        """
        An index file that became shorter, since compaction has replaced it, is not used: the search
        begins at the first byte.
        """
        log = filled()
        log.index.save()
        log.open()
        expected = log.index.search(log.file, BASE + 50)
        log.files.open(OFFSETS).truncate(8)
        self.assertEqual(log.index.search(log.file, BASE + 50), expected)


class TruncateTests(LookupCase):
    """A segment that is cut has the index of a segment that was never longer."""

    def test_everyBatch(self) -> None:
        """Wherever it is cut: the same answers, and the same files as a rebuild gives."""
        for count in range(1, 31):
            log = filled()
            log.index.save()
            self.truncate(log, count)
            found = log.entries()
            log.open()
            self.assertEqual(log.index.findEnd(log.size), log.nextOffset)
            if count % 3 == 0:
                self.check(log)
            log.open(rebuild=True).save()
            self.assertEqual(log.entries(), found, count)

    def truncate(self, log: Log, count: int) -> None:
        """Leave the first batches."""
        index = log.open()
        if count < len(log.batches):
            size = log.batches[count][2]
            log.nextOffset = log.batches[count - 1][1] + 1
            log.files.open(PATH).truncate(size)
            index.truncate(size, log.batches[count][0])
            del log.batches[count:]

    def test_durable(self) -> None:
        """The files are synced."""
        log = filled()
        log.index.save()
        log.files.open(PATH).sync()
        log.files.syncDirectory("/")
        self.truncate(log, 11)
        log.files.open(PATH).sync()
        log.files.syncDirectory("/log")
        expected = log.entries()
        log.files.cutPower()
        self.assertEqual(log.entries(), expected)

    def test_largestTime(self) -> None:
        """The largest time goes with its batch."""
        log = Log()
        for ms in (1, 99, 5, 7):
            log.append(ms, size=9000)
        log.index.save()
        self.truncate(log, 1)
        self.assertEqual(log.open().largestTimestampMs, START_MS + 1)


class GoldenTests(SynchronousTestCase):
    """A segment and its indexes as Apache Kafka 4.3.1 wrote them, with an interval of 700."""

    def test_sameBytes(self) -> None:
        """Appended batch by batch, or rebuilt, the same batches give the same index files."""
        folder = GOLDEN / "kafka43" / "segment"
        data = (folder / "00000000000000000500.log").read_bytes()
        path = "/log/00000000000000000500.log"
        for rebuild in (True, False):
            files = PowerCutFileSystem()
            files.makeDirectories("/log")
            files.open(path, create=True).writeAt(0, [data])
            form = KafkaFormat(RecordRules(isFromClient=False, index=IndexSettings(700)))
            index = form.openIndex(files, path, 500, len(data) if rebuild else 0, True)
            if not rebuild:
                for entry in form.scan(lambda at, size: data[at : at + size], 500, 0, len(data)):
                    batch = data[entry.position : entry.position + entry.size]
                    found = form.validate(batch, CheckLimits())
                    index.add(found, entry.offset, entry.position, 0)
            index.save()
            for suffix in (".index", ".timeindex"):
                expected = (folder / f"00000000000000000500{suffix}").read_bytes()
                self.assertEqual(files.contents(path.replace(".log", suffix)), expected)

    def test_used(self) -> None:
        """Apache's files are used as they are."""
        files = PowerCutFileSystem()
        files.makeDirectories("/log")
        folder = GOLDEN / "kafka43" / "segment"
        for each in folder.iterdir():
            files.open(f"/log/{each.name}", create=True).writeAt(0, [each.read_bytes()])
        path = "/log/00000000000000000500.log"
        size = len(files.contents(path))
        count = files.operationCount
        index = KafkaFormat(LOG_RULES).openIndex(files, path, 500, size, False)
        self.assertEqual(files.operationCount, count, "nothing was written")
        data = files.contents(path)
        entries = list(KafkaFormat().scan(lambda at, size: data[at : at + size], 500, 0, len(data)))
        self.assertEqual(index.findEnd(size), entries[-1].nextOffset)
        with closing(files.open(path, write=False)) as file:
            for entry in entries:
                for offset in range(entry.offset, entry.nextOffset):
                    self.assertEqual(index.search(file, offset), entry.position)


class DamagedSegmentTests(SynchronousTestCase):
    """Segments that do not end with a whole batch, or hold what none can."""

    def test_end(self) -> None:
        """Without recovery, junk at the end of a segment is an error, not an end."""
        log = filled()
        log.index.save()
        size = log.size
        for junk in (b"x", bytes(100), b"x" * 100):
            log.files.open(PATH).truncate(size)
            log.files.open(PATH).writeAt(size, [junk])
            log.open()
            error = self.assertRaises(CorruptLogError, log.index.findEnd, log.size)
            self.assertIn(f"byte {size} of {log.size}", str(error))

    def test_impossibleOffsets(self) -> None:
        """Offsets that go back, or too far from the segment's, end the walk."""
        for offset in (5, BASE, 1 << 40):
            log = Log()
            log.append(1)
            size = log.size
            form = log.format
            found = form.validate(encodeBatch([Record(0, 1, None, b"")]), CheckLimits())
            log.files.open(PATH).writeAt(size, form.stamp(found, offset, 0, 0))
            log.open(rebuild=True)
            self.assertRaises(CorruptLogError, log.index.findEnd, log.size)
