"""
Compaction of partitions of record batches: what stays, the exchange of files, power cuts.
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.compaction import segmentrewrite
from pylogbroker.broker.compaction.compactionprocess import (
    decodeAnswer,
    encodeRequest,
    serve,
)
from pylogbroker.broker.compaction.segmentrewrite import compact, firstTimestamp
from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.interfaces import CheckLimits
from pylogbroker.records.kafkaformat import LOG_RULES, KafkaFormat
from pylogbroker.records.recordbatch import Record, controlBatch, encodeBatch, iterateRecords
from pylogbroker.storage.jobs import FindPositionJob
from pylogbroker.storage.kafka.batchlog import BatchLog, CompactionSettings
from pylogbroker.storage.kafka.compaction import CompactionRequest, CompactionResult
from pylogbroker.storage.kafka.segmentswap import removeCleaned
from pylogbroker.testing.powercut import PowerLostError
from tests.storage.batches import BatchSite, scan
from tests.storage.driving import START_MS, bytesOf, close, flush, read, retire, roll, run

DAY_MS = 86_400_000
Found = dict[bytes, tuple[int, bytes | None]]


def keyed(
    *pairs: tuple[bytes | None, bytes | None], timestampMs: int = START_MS, **fields: Any
) -> bytes:
    """A batch of keys and values."""
    records = [
        Record(delta, timestampMs + delta, key, value, (("h", b"x"),))
        for delta, (key, value) in enumerate(pairs)
    ]
    return encodeBatch(records, **fields)


def put(log: BatchLog, *batches: bytes) -> None:
    """Append and flush batches."""
    for data in batches:
        log.append(KafkaFormat(LOG_RULES).validate(data, CheckLimits(1 << 24)), START_MS)
    flush(log)


def segment(log: BatchLog, *batches: bytes) -> None:
    """A closed segment of batches."""
    put(log, *batches)
    roll(log)


def records(log: BatchLog, offset: int | None = None) -> list[Record]:
    """All visible records of clients, by successive reads from an offset on."""
    found = []
    offset = log.logStartOffset if offset is None else offset
    while data := bytesOf(read(log, offset, 4 << 20)):
        entries = scan(data)
        for entry in entries:
            assert entry.header is not None
            if not entry.header.isControl:
                each = iterateRecords(data, entry.position, entry.header)
                found += [record for record in each if record.offset >= offset]
        offset = entries[-1].nextOffset
    return found


def latest(found: list[Record]) -> Found:
    """The last record of each key; tombstones remove it."""
    made: Found = {}
    for record in found:
        if record.value is None:
            made.pop(record.key or b"", None)
        else:
            made[record.key or b""] = (record.offset, record.value)
    return made


def headers(log: BatchLog) -> list[Any]:
    """The headers of all visible batches."""
    found = []
    offset = log.logStartOffset
    while data := bytesOf(read(log, offset, 4 << 20)):
        found += [entry.header for entry in scan(data)]
        offset = scan(data)[-1].nextOffset
    return found


class CompactionCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.begin()

    def begin(self, **settings: Any) -> None:
        """A new log."""
        self.site = BatchSite(
            **{"compaction": CompactionSettings(deleteRetentionMs=DAY_MS), **settings}
        )
        self.log = self.site.make()

    def request(self, mapSize: int = 1 << 20) -> CompactionRequest | None:
        found = self.log.compactable(self.site.clock())
        if found is None:
            return None
        return self.log.compactionRequest(found, self.site.clock(), mapSize, 0)

    def compact(self, mapSize: int = 1 << 20, isNoted: bool = True) -> CompactionResult | None:
        """One run, and the exchange of its groups, as the broker does it."""
        log = self.log
        found = log.compactable(self.site.clock())
        request = self.request(mapSize)
        if found is None or request is None:
            return None
        removeCleaned(self.site.double, log.path)
        result = compact(self.site.double, request)
        for group in result.groups:
            job = log.beginReplace(found, group)
            assert job is not None
            log.finishReplace(job, run(job))
        if isNoted:
            log.setCleaned(result.endOffset)
            self.site.checkpoint()
        return result

    def keysAndValues(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(each.offset, each.key, each.value) for each in records(self.log)]


class RetentionTests(CompactionCase):
    """What stays."""

    def test_latest(self) -> None:
        """The last record of each key stays, with offset, time and headers; the rest goes."""
        segment(self.log, keyed((b"a", b"1"), (b"b", b"2"), (b"a", b"3")))
        segment(self.log, keyed((b"c", b"4")), keyed((b"a", b"5"), (b"b", b"6")))
        put(self.log, keyed((b"c", b"7")))
        before = {each.offset: each for each in records(self.log)}
        result = self.compact()
        assert result is not None
        self.assertEqual(
            self.keysAndValues(),
            [(3, b"c", b"4"), (4, b"a", b"5"), (5, b"b", b"6"), (6, b"c", b"7")],
        )
        for each in records(self.log):
            self.assertEqual(each, before[each.offset])
        self.assertEqual((result.recordCount, result.keptCount, result.keyCount), (6, 3, 3))
        self.assertEqual((self.log.logStartOffset, self.log.logEndOffset), (0, 7))
        self.assertEqual(len(self.log.segments), 2)
        self.assertIsNone(self.compact())

    def test_activeSegment(self) -> None:
        """The active segment is not touched: nothing to do while there is no other."""
        put(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        self.assertIsNone(self.compact())

    def test_readers(self) -> None:
        """A reader goes on from any offset, also from one that is gone."""
        for number in range(5):
            segment(self.log, keyed((b"a", b"%d" % number), (b"k%d" % number, b"")))
        self.compact()
        whole = records(self.log)
        for offset in range(self.log.logEndOffset):
            expected = [each for each in whole if each.offset >= offset]
            self.assertEqual(records(self.log, offset), expected)

    def test_codecs(self) -> None:
        """Compressed batches stay compressed with their codec, also with the log's time."""
        for codec in range(5):
            self.begin(timeType=codec == 3)
            segment(
                self.log, keyed(*[(b"k%d" % (i % 7), b"v" * i) for i in range(40)], codec=codec)
            )
            before = {each.offset: each for each in records(self.log)}
            self.compact()
            found = records(self.log)
            self.assertEqual([each.offset for each in found], list(range(33, 40)))
            self.assertEqual(found, [before[each.offset] for each in found])
            (header,) = headers(self.log)
            self.assertEqual((header.codec, header.baseOffset, header.lastOffset), (codec, 0, 39))

    def test_withoutKey(self) -> None:
        """Records without a key, from before the topic was compacted, go."""
        segment(self.log, keyed((None, b"1"), (b"a", b"2"), (None, b"3")))
        self.compact()
        self.assertEqual(self.keysAndValues(), [(1, b"a", b"2")])

    def test_tombstones(self) -> None:
        """
        A tombstone stays until delete.retention.ms after the run that removed what it deletes.
        """
        segment(self.log, keyed((b"a", b"1"), (b"b", b"2")))
        segment(self.log, keyed((b"a", None)))
        self.compact()
        self.assertEqual(self.keysAndValues(), [(1, b"b", b"2"), (2, b"a", None)])
        horizons = [each.deleteHorizonMs for each in headers(self.log)]
        self.assertEqual(horizons, [None, START_MS + DAY_MS])
        self.assertEqual(records(self.log)[-1].timestampMs, START_MS)
        self.site.clock.nowMs += DAY_MS - 1
        segment(self.log, keyed((b"c", b"3")))
        self.compact()
        self.assertEqual(len(records(self.log)), 3)
        self.site.clock.nowMs += 1
        segment(self.log, keyed((b"c", b"4")))
        self.compact()
        self.assertEqual(self.keysAndValues(), [(1, b"b", b"2"), (4, b"c", b"4")])

    def test_smallMap(self) -> None:
        """More keys than memory: a run ends where the map is full, the next one goes on."""
        for number in range(20):
            segment(self.log, keyed(*[(b"k%d" % (number * 3 + i), b"") for i in range(5)]))
        expected = latest(records(self.log))
        ends = []
        while (result := self.compact(mapSize=1)) is not None:
            ends.append(result.endOffset)
            self.assertEqual(latest(records(self.log)), expected)
        self.assertGreater(len(ends), 3)
        self.assertEqual(ends, sorted(set(ends)))
        self.assertEqual(len(records(self.log)), len(expected))

    def test_producers(self) -> None:
        """The last batch of each known producer stays, empty, so that a scan finds its sequence."""
        first = keyed((b"a", b"1"), producerId=7, producerEpoch=1, baseSequence=0)
        last = keyed((b"a", b"2"), (b"a", b"3"), producerId=7, producerEpoch=1, baseSequence=1)
        segment(self.log, first, last)
        segment(self.log, keyed((b"a", b"4")))
        self.compact()
        (empty, other) = headers(self.log)
        self.assertEqual((empty.recordCount, empty.baseOffset, empty.lastOffset), (0, 1, 2))
        self.assertEqual((empty.producerId, empty.lastSequence), (7, 2))
        self.assertEqual(other.baseOffset, 3)
        close(self.log)
        for name in self.site.names():
            if name.endswith(".snapshot"):
                self.site.double.remove(f"{self.log.path}/{name}")
        self.site.kill()
        log = self.site.reopen()
        self.assertEqual(log.producers.producers[7].lastSequence, 2)
        self.log = log
        segment(self.log, keyed((b"b", b"5")))
        self.compact()
        self.assertEqual(headers(self.log)[0].recordCount, 0)
        del log.producers.producers[7]
        segment(self.log, keyed((b"b", b"6")))
        self.compact()
        self.assertEqual(headers(self.log)[0].baseOffset, 3)


class TransactionTests(CompactionCase):
    """Transactions: what is aborted goes, markers stay for a while."""

    def write(self, producer: int, sequence: int, *pairs: tuple[bytes, bytes]) -> None:
        data = keyed(
            *pairs,
            producerId=producer,
            producerEpoch=0,
            baseSequence=sequence,
            isTransactional=True,
        )
        put(self.log, data)

    def end(self, producer: int, isCommit: bool) -> None:
        put(self.log, controlBatch(isCommit, producer, 0, 0, START_MS))

    def test_lastStableOffset(self) -> None:
        """Nothing of an ongoing transaction, or behind its start, is touched."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        self.write(1, 0, (b"a", b"3"))
        roll(self.log)
        segment(self.log, keyed((b"a", b"4")))
        self.compact()
        self.assertEqual([each[0] for each in self.keysAndValues()], [1, 2, 3])
        self.end(1, True)
        roll(self.log)
        self.compact()
        self.assertEqual([each[0] for each in self.keysAndValues()], [3])

    def test_aborted(self) -> None:
        """
        Aborted records go, and do not replace others; their marker goes after its horizon, and with
        it the index of aborted transactions.
        """
        segment(self.log, keyed((b"a", b"1")))
        self.write(1, 0, (b"a", b"2"))
        self.end(1, False)
        roll(self.log)
        self.write(1, 1, (b"b", b"3"))
        self.end(1, True)
        roll(self.log)
        self.assertEqual(len(self.log.abortedIn(0, 9)), 1)
        self.compact()
        self.assertEqual(self.keysAndValues(), [(0, b"a", b"1"), (3, b"b", b"3")])
        self.assertEqual(self.log.abortedIn(0, 9), [])
        self.assertEqual([each.baseOffset for each in headers(self.log)], [0, 2, 3, 4])
        segment(self.log, keyed((b"c", b"4")))
        self.compact()
        horizons = [each.deleteHorizonMs for each in headers(self.log)]
        self.assertEqual(horizons, [None, START_MS + DAY_MS, None, None, None])
        self.site.clock.nowMs += DAY_MS
        segment(self.log, keyed((b"c", b"5")))
        self.compact()
        self.assertEqual([each.baseOffset for each in headers(self.log)], [0, 3, 4, 6])

    def test_abortedFrom(self) -> None:
        """
        A reader is told of the aborted transactions of the segment with its offset, and of the next
        one, since its offset may be in a gap at the end.
        """
        for index in range(3):
            self.write(1, index, (b"a", b"aborted"))
            self.end(1, False)
            roll(self.log)
        self.write(1, 3, (b"a", b"aborted"))
        self.end(1, False)
        told = [[each.firstOffset for each in self.log.abortedFrom(at)] for at in (0, 1, 2, 5, 6)]
        self.assertEqual(told, [[0, 2], [0, 2], [2, 4], [4, 6], [6]])

    def test_abortedBehindEmptySegments(self) -> None:
        """
        A reader whose offset is in a segment that compaction has emptied reads the next one, and is
        told of what is aborted there.
        """
        self.write(1, 0, (b"a", b"aborted"))
        roll(self.log)
        self.end(1, False)
        self.write(1, 1, (b"b", b"aborted"))
        roll(self.log)
        self.compact()
        self.end(1, False)
        flush(self.log)
        self.assertEqual([each.size > 0 for each in self.log.segments], [False, True, True])
        self.assertIs(read(self.log, 0, 1 << 20).file, self.log.segments[1].file)
        told = self.log.abortedFrom(0)
        self.assertEqual([each.firstOffset for each in told], [0, 2])

    def test_emptyBatchOfAborted(self) -> None:
        """
        The empty batch that stands for a live producer begins no transaction, also when its marker
        is gone and all is scanned again.
        """
        self.begin(compaction=CompactionSettings(deleteRetentionMs=0))
        self.write(1, 0, (b"a", b"aborted"))
        self.end(1, False)
        segment(self.log, keyed((b"z", b"z")))
        for index in range(4):
            segment(self.log, keyed((b"y", b"%d" % index)))
            self.site.clock.nowMs += 1000
            self.compact()
        first = headers(self.log)[0]
        self.assertEqual((first.recordCount, first.isTransactional), (0, True))
        self.assertNotIn(True, [each.isControl for each in headers(self.log)])
        self.site.kill()
        for name in self.site.double.list(self.site.root):
            if "recovery-point" in name:
                self.site.double.remove(f"{self.site.root}/{name}")
        self.log = self.site.reopen()
        self.assertEqual(self.log.lastStableOffset, self.log.logEndOffset)

    def test_committed(self) -> None:
        """A commit marker goes a horizon after the last batch of its transaction."""
        self.write(1, 0, (b"a", b"1"))
        self.end(1, True)
        roll(self.log)
        segment(self.log, keyed((b"a", b"2")))
        del self.log.producers.producers[1]
        for _ in range(3):
            self.compact()
            segment(self.log, keyed((b"a", b"3")))
        self.assertIsNotNone(headers(self.log)[0].deleteHorizonMs)
        self.site.clock.nowMs += DAY_MS
        self.compact()
        self.assertFalse(any(each.isControl for each in headers(self.log)))

    def test_earlierAborted(self) -> None:
        """A producer's earlier aborted transaction does not make its later records aborted."""
        self.write(1, 0, (b"a", b"1"))
        self.end(1, False)
        roll(self.log)
        self.compact(isNoted=True)
        segment(self.log, keyed((b"a", b"2")))
        self.write(1, 1, (b"a", b"3"))
        self.end(1, True)
        roll(self.log)
        self.compact()
        self.assertEqual(self.keysAndValues(), [(3, b"a", b"3")])

    def test_otherControl(self) -> None:
        """Control records of a type that this broker does not know stay."""
        record = Record(0, START_MS, b"\0\0\0\x07", b"")
        put(self.log, encodeBatch([record], isControl=True))
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        self.site.clock.nowMs += DAY_MS
        self.compact()
        self.assertEqual([each.isControl for each in headers(self.log)], [True, False])

    def test_fenced(self) -> None:
        """The marker of a producer without records in its epoch stays, for its epoch."""
        self.write(1, 0, (b"a", b"1"))
        put(self.log, controlBatch(True, 1, 1, 0, START_MS))
        roll(self.log)
        segment(self.log, keyed((b"a", b"2")))
        self.assertEqual(self.log.producers.producers[1].lastSequence, -1)
        for _ in range(4):
            self.site.clock.nowMs += DAY_MS
            self.compact()
            segment(self.log, keyed((b"b", b"3")))
        found = [each for each in headers(self.log) if each.isControl]
        self.assertEqual([each.producerEpoch for each in found], [1])
        self.assertEqual(found[0].recordCount, 0)


class LargeTests(CompactionCase):
    """Batches and segments that are larger than what is read or written at once."""

    def test_windows(self) -> None:
        """Batches cross the ends of what is read at once, and are larger than it."""
        big = b"x" * (700 << 10)
        segment(self.log, *[keyed((b"%d" % i, big)) for i in range(4)])
        segment(self.log, keyed((b"0", big), (b"1", big)), keyed((b"2", b"")))
        self.compact()
        self.assertEqual([each[0] for each in self.keysAndValues()], [3, 4, 5, 6])

    def test_cut(self) -> None:
        """A segment that is shorter than its batches say is not compacted."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        request = self.request()
        assert request is not None
        base, size, timeMs = request.segments[0]
        cut = replace(request, segments=[(base, size - 1, timeMs)])
        error = self.assertRaises(CorruptLogError, compact, self.site.double, cut)
        self.assertIn("the batch is cut", str(error))

    def test_grown(self) -> None:
        """A file that would be too large is not written."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        request = self.request()
        assert request is not None
        self.patch(segmentrewrite, "FILE_SIZE_MAX", 1)
        error = self.assertRaises(StorageError, compact, self.site.double, request)
        self.assertIn("are too many", str(error))

    def test_firstTimestamp(self) -> None:
        """The oldest of the segments' first batches tells; a segment may be empty, or damaged."""
        self.assertEqual(firstTimestamp(self.site.double, self.log.segments), -1)
        segment(self.log, keyed((b"a", b"1"), timestampMs=START_MS + 5))
        segment(self.log, keyed((b"a", b"1")))
        self.assertEqual(firstTimestamp(self.site.double, self.log.segments), START_MS)
        self.site.double.open(self.log.segments[0].path).writeAt(16, [b"\x09"])
        self.assertRaises(CorruptLogError, firstTimestamp, self.site.double, self.log.segments)


class ChoiceTests(CompactionCase):
    """What can be compacted when."""

    def test_notCompacted(self) -> None:
        """A topic without compaction has nothing to compact; nor has a failed partition."""
        self.begin(compaction=None)
        segment(self.log, keyed((b"a", b"1")))
        self.assertIsNone(self.log.compactable(START_MS))
        self.begin()
        segment(self.log, keyed((b"a", b"1")))
        close(self.log)
        self.assertIsNone(self.log.compactable(START_MS))

    def test_ratio(self) -> None:
        """The dirty part of the bytes counts segments that reach the checkpoint."""
        segment(self.log, keyed((b"a", b"1")))
        found = self.log.compactable(START_MS)
        assert found is not None
        self.assertEqual((found.ratio, found.dirtyStart, found.endOffset), (1, 0, 1))
        self.compact()
        segment(self.log, keyed((b"b", b"1")))
        found = self.log.compactable(START_MS)
        assert found is not None
        self.assertEqual((found.ratio, found.dirtyStart, found.endOffset), (0.5, 1, 2))
        self.assertEqual([each.baseOffset for each in found.dirtySegments], [1])

    def test_minLag(self) -> None:
        """Segments with a record that is too young wait, and all behind them."""
        self.begin(compaction=CompactionSettings(minLagMs=1000))
        segment(self.log, keyed((b"a", b"1")))
        segment(self.log, keyed((b"a", b"2"), timestampMs=START_MS + 500))
        self.assertIsNone(self.log.compactable(START_MS + 999))
        found = self.log.compactable(START_MS + 1000)
        assert found is not None
        self.assertEqual(found.endOffset, 1)
        found = self.log.compactable(START_MS + 1500)
        assert found is not None
        self.assertEqual(found.endOffset, 2)

    def test_groups(self) -> None:
        """Neighbours become one segment as far as they fit into it."""
        size = len(keyed((b"a", b"1")))
        self.begin(segmentSizeMax=2 * size)
        for number in range(5):
            segment(self.log, keyed((b"%d" % number, b"1")))
        self.compact()
        self.assertEqual([each.baseOffset for each in self.log.segments], [0, 2, 4, 5])
        self.assertEqual(len(records(self.log)), 5)
        retire(self.log, ())
        self.assertFalse([name for name in self.site.names() if name.endswith(".deleted")])
        self.assertEqual(self.log.segments[0].index.largestTimestampMs, START_MS)

    def test_afterRestart(self) -> None:
        """The checkpoint is Apache's, and holds after a restart."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        self.compact()
        text = self.site.double.contents(f"{self.site.root}/cleaner-offset-checkpoint")
        self.assertEqual(text, b"0\n1\nt 0 2\n")
        self.site.kill()
        self.log = self.site.reopen()
        self.assertEqual(self.log.cleanedOffset, 2)
        self.assertIsNone(self.compact())


class ExchangeTests(CompactionCase):
    """The exchange, while others use the log."""

    def test_openReader(self) -> None:
        """A reader that has a range of an old file reads it to its end."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        part = read(self.log, 0, 1 << 20)
        assert part.file is not None
        part.file.openPinned()
        before = bytesOf(part)
        self.compact()
        self.assertEqual(bytesOf(part), before)
        part.file.unpin()
        self.assertEqual(self.keysAndValues(), [(1, b"a", b"2")])

    def test_search(self) -> None:
        """A search that runs while the index is replaced finds its place all the same."""
        self.begin(indexInterval=1)
        segment(self.log, *[keyed((b"%d" % i, b"1")) for i in range(30)])
        self.site.checkpoint()
        self.site.kill()
        self.log = self.site.reopen()
        expected = sum(each.size for each in headers(self.log)[:20])
        search = self.log.read(20, 1)
        assert isinstance(search, FindPositionJob)
        search.segment.index.remove()
        search.run()
        self.assertEqual(search.position, expected)

    def test_marks(self) -> None:
        """Marks at the end of the compacted segment stay right: reads end where the bytes end."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        self.compact()
        part = read(self.log, 0, 1 << 20)
        self.assertEqual(part.size, self.log.segments[0].size)
        put(self.log, keyed((b"a", b"3")))
        self.assertEqual(len(records(self.log)), 2)

    def test_deletedMeanwhile(self) -> None:
        """Segments that retention has removed meanwhile are not exchanged."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        found = self.log.compactable(START_MS)
        request = self.request()
        assert found is not None and request is not None
        result = compact(self.site.double, request)
        retire(self.log, self.log.segments[:1])
        self.assertIsNone(self.log.beginReplace(found, result.groups[0]))

    def test_failures(self) -> None:
        """
        A failure before the first change leaves all as it was; a later one takes the partition out
        of service, and the next start completes the exchange.
        """
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        segment(self.log, keyed((b"a", b"3")))
        for action, isFatal in (("open", False), ("rename", True)):
            found = self.log.compactable(START_MS)
            request = self.request()
            assert found is not None and request is not None
            removeCleaned(self.site.double, self.log.path)
            result = compact(self.site.double, request)
            job = self.log.beginReplace(found, result.groups[0])
            assert job is not None
            self.assertIsNone(self.log.beginReplace(found, result.groups[0]))
            if action == "open":
                removeCleaned(self.site.double, self.log.path)
            else:
                self.site.double.fail("rename", ".log.swap", 5)
            error = run(job)
            assert error is not None
            self.log.finishReplace(job, error)
            self.assertEqual(self.log.failure is not None, isFatal)
            if not isFatal:
                self.assertEqual(len(records(self.log)), 3)
        self.site.double.mend()
        self.site.kill()
        self.log = self.site.reopen()
        self.assertEqual(self.keysAndValues(), [(2, b"a", b"3")])

    def test_corrupt(self) -> None:
        """A segment with a flipped byte is not compacted."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        request = self.request()
        assert request is not None
        path = self.log.segments[0].path
        file = self.site.double.open(path)
        file.writeAt(100, [b"\xff"])
        error = self.assertRaises(CorruptLogError, compact, self.site.double, request)
        self.assertIn("at byte", str(error))

    def test_leftovers(self) -> None:
        """A start removes cleaned files, and swap files that are not whole."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        path = self.log.path
        for name in (
            "00000000000000000000.log.cleaned",
            "00000000000000000000.timeindex.swap",
            "00000000000000000000.log.swap",
        ):
            file = self.site.double.open(f"{path}/{name}", create=True)
            file.writeAt(0, [b"broken"])
        self.site.kill()
        self.log = self.site.reopen()
        self.assertEqual(len(records(self.log)), 2)
        names = self.site.names()
        self.assertFalse([name for name in names if "swap" in name or "cleaned" in name])

    def test_paced(self) -> None:
        """A run reads no faster than it may."""
        segment(self.log, keyed((b"a", b"1" * 1000)))
        found = self.log.compactable(START_MS)
        assert found is not None
        request = self.log.compactionRequest(found, START_MS, 1 << 20, 100)
        pauses: list[float] = []
        compact(self.site.double, request, pauses.append)
        size = self.log.segments[0].size
        self.assertEqual(pauses, [size / 100])


class ProcessTests(CompactionCase):
    """The process of its own."""

    def test_serve(self) -> None:
        """A request comes as a line, a result goes as a line; errors keep their kind."""
        segment(self.log, keyed((b"a", b"1")), keyed((b"a", b"2")))
        request = self.request()
        assert request is not None
        begun: list[int] = []

        def ask() -> str:
            answer = io.StringIO()
            asked = io.StringIO(encodeRequest(request) + "\n")
            serve(asked, answer, self.site.double, lambda: begun.append(1))
            return answer.getvalue()

        result = decodeAnswer(ask())
        self.assertEqual((result.recordCount, result.keptCount, result.endOffset), (2, 1, 2))
        self.assertEqual(list(result.groups[0].bases), [0])
        self.assertEqual(begun, [1])
        self.assertRaises(StorageError, decodeAnswer, ask())  # .cleaned is there
        removeCleaned(self.site.double, self.log.path)
        self.site.double.open(self.log.segments[0].path).writeAt(100, [b"\xff"])
        self.assertRaises(CorruptLogError, decodeAnswer, ask())

    def start(self, request: CompactionRequest) -> subprocess.Popen[str]:
        """A process that has its request."""
        command = [sys.executable, "-m", "pylogbroker.broker.compaction.compactionprocess"]
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        found = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.addCleanup(found.communicate)
        assert found.stdin is not None
        found.stdin.write(encodeRequest(request) + "\n")
        found.stdin.flush()
        return found

    def test_process(self) -> None:
        """The process answers, and ends; it ends without an answer when its input does."""
        directory = os.path.abspath(self.mktemp())
        os.makedirs(directory)
        data = keyed((b"a", b"1"))
        for base in (0, 1):
            with open(f"{directory}/{base:020d}.log", "wb") as file:
                file.write(struct.pack(">q", base) + data[8:])
        segments = [(base, len(data), START_MS) for base in (0, 1)]
        request = CompactionRequest(directory, segments, 2, 0, START_MS, 0, 1 << 20, 1 << 20)
        done = self.start(request)
        assert done.stdout is not None
        result = decodeAnswer(done.stdout.readline())
        self.assertEqual((result.recordCount, result.keptCount), (2, 1))
        self.assertEqual(done.wait(), 0)
        done = self.start(replace(request, readSizeMax=1))
        assert done.stdin is not None
        done.stdin.close()
        done.stdin = None
        self.assertEqual(done.wait(), 1)


class PowerCutTests(CompactionCase):
    """A power cut at every step."""

    def fill(self) -> Found:
        self.begin(segmentSizeMax=1200)
        for number in range(8):
            segment(
                self.log,
                keyed((b"a", b"%d" % number), (b"k%d" % number, b"1" * 80)),
                keyed((b"k%d" % (number - 1), None), (b"b", b"%d" % number)),
                keyed((b"c", b"%d" % number), producerId=number % 2, producerEpoch=0,
                      baseSequence=number // 2),
            )  # fmt: skip
        put(self.log, keyed((b"d", b"9")))
        self.site.checkpoint()
        return latest(records(self.log))

    def test_everyStep(self) -> None:
        """
        Whatever step the power fails at, and whatever survives: the log opens, each key's last
        record is there, and the next compaction ends as if nothing had happened.
        """
        expected = self.fill()
        start = self.site.double.operationCount
        self.compact()
        count = self.site.double.operationCount - start
        self.assertGreater(count, 40)
        wanted = self.keysAndValues()
        for step in range(count):
            for seed in (None, step, step + 1000):
                self.fill()
                files = self.site.double
                files.cutAt = files.operationCount + step
                self.assertRaises(PowerLostError, self.compact)
                files.cutPower(None if seed is None else Random(seed))
                self.log = self.site.reopen()
                found = records(self.log)
                self.assertEqual(latest(found), expected, (step, seed))
                offsets = [each.offset for each in found]
                self.assertEqual(offsets, sorted(set(offsets)))
                self.assertEqual(self.log.logEndOffset, 41)
                self.assertEqual(self.log.producers.producers[1].lastSequence, 3)
                self.compact()
                if self.log.cleanedOffset == 40:
                    self.assertEqual(self.keysAndValues(), wanted, (step, seed))


_KEYS = st.integers(0, 6)
_VALUES = st.one_of(st.none(), st.integers(0, 99))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.lists(st.tuples(_KEYS, _VALUES), min_size=1, max_size=4)),
        st.tuples(st.just("roll"), st.just([])),
        st.tuples(st.just("compact"), st.just([])),
        st.tuples(st.just("wait"), st.just([])),
        st.tuples(st.just("crash"), st.just([])),
    ),
    max_size=40,
)


class PropertyTests(CompactionCase):
    """Any history."""

    @settings(max_examples=60, deadline=None)
    @given(_STEPS, st.integers(0, 4), st.sampled_from([1, 1 << 16]))
    def test_model(self, steps: list[tuple[str, Any]], codec: int, mapSize: int) -> None:
        """
        Each key's last value is what a plain map says, offsets ascend, and a reader may begin
        anywhere.
        """
        self.begin(segmentSizeMax=600)
        model: dict[bytes, bytes] = {}
        for kind, pairs in steps:
            if kind == "batch":
                made = [(b"%d" % key, None if v is None else b"%d" % v) for key, v in pairs]
                put(self.log, keyed(*made, codec=codec))
                for key, value in made:
                    if value is None:
                        model.pop(key, None)
                    else:
                        model[key] = value
            elif kind == "roll":
                roll(self.log)
            elif kind == "compact":
                self.compact(mapSize)
            elif kind == "wait":
                self.site.clock.nowMs += DAY_MS // 2
            else:
                self.site.kill()
                self.log = self.site.reopen()
            found = records(self.log)
            self.assertEqual({key: value for key, (_, value) in latest(found).items()}, model)
            offsets = [each.offset for each in found]
            self.assertEqual(offsets, sorted(set(offsets)))
        end = self.log.logEndOffset
        for offset in range(0, end, max(end // 5, 1)):
            expected = [each for each in records(self.log) if each.offset >= offset]
            self.assertEqual(records(self.log, offset), expected)
