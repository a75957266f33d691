"""Tests for L{pylogbroker.records.kafkaformat} and L{pylogbroker.records.batchscan}."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    CorruptCompressionError,
    DecompressionLimitError,
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnknownCodecError,
    UnsupportedForMessageFormatError,
)
from pylogbroker.interfaces import (
    BatchHeader,
    CheckLimits,
    EndMarker,
    IRecordFormat,
    ScannedEntry,
    ValidatedBatches,
)
from pylogbroker.records import scanwindow
from pylogbroker.records.batchscan import COMPRESSED_RECORD_COUNT_MAX, BatchScan
from pylogbroker.records.compression import GZIP, LZ4, NONE, ZSTD
from pylogbroker.records.kafkaformat import (
    CHECKED_RULES,
    DEFAULT_RULES,
    LOG_RULES,
    KafkaFormat,
    RecordRules,
)
from pylogbroker.records.recordbatch import (
    APPEND_TIME_ATTRIBUTE,
    BATCH_OVERHEAD,
    Record,
    assembleBatch,
    controlBatch,
    encodeBatch,
    iterateRecords,
    readHeader,
)
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.records.goldenbatches import START_MS, goldenBatches, manyRecords, mixedRecords

GOLDEN = goldenBatches()
MIXED = GOLDEN["mixed"]
LIMITS = CheckLimits()


def changed(data: bytes, **fields: int) -> bytes:
    """A batch with other fields in its header, and a checksum that is right."""
    return assembleBatch(readHeader(data)._replace(**fields), data[BATCH_OVERHEAD:])


def validated(rules: RecordRules, *sets: bytes, nowMs: int | None = None) -> ValidatedBatches:
    """One set each, in both ways, which must agree where the fast one has an opinion."""
    form = KafkaFormat(rules, None if nowMs is None else lambda: nowMs)
    slow = [form.validate(data, LIMITS) for data in sets]
    fast = form.validatePlain(sets, LIMITS.payloadSizeMax)
    if fast is not None:
        assert list(fast.buffers) == [each.buffers[0] for each in slow]
        assert fast.headers == [each.headers[0] for each in slow]
        assert fast.size == sum(each.size for each in slow)
        assert fast.messageCount == sum(each.messageCount for each in slow)
        assert fast.offsetCount == sum(each.offsetCount for each in slow)
        assert fast.timestampMaxMs == max(each.timestampMaxMs for each in slow)
        return fast._replace(buffers=list(fast.buffers))
    [found] = slow
    return found


class FastTests(SynchronousTestCase):
    """The hot loop of producing."""

    def test_ordinary(self) -> None:
        """Whole batches of clients, compressed or not, idempotent or transactional."""
        form: IRecordFormat = KafkaFormat()
        sets = [MIXED, GOLDEN["transactional"], GOLDEN["idempotent"], GOLDEN["lz4"], GOLDEN["zstd"]]
        found = form.validatePlain(sets, 1 << 20)
        assert found is not None
        self.assertEqual(found.buffers, sets)
        self.assertEqual(found.headers, [readHeader(data) for data in sets])
        self.assertEqual(found[1:5], (sum(map(len, sets)), 815, 815, START_MS + 70_000))
        self.assertIsNone(found.marker)
        self.assertEqual([form.validate(data, LIMITS).headers[0] for data in sets], found.headers)

    def test_noOpinion(self) -> None:
        """A batch with anything unusual is left to C{validate}, with the whole run."""
        form = KafkaFormat()
        for bad in (
            b"",
            MIXED[:-1],
            MIXED + b"x",
            MIXED[:-1] + b"x",
            MIXED[:16] + b"\1" + MIXED[17:],
            GOLDEN["commit"],
            GOLDEN["placed"],
            GOLDEN["appendTime"],
            changed(MIXED, recordCount=4),
            changed(MIXED, lastOffsetDelta=3),
            changed(MIXED, lastOffsetDelta=-1, recordCount=0),
            changed(MIXED, lastOffsetDelta=99, recordCount=100),
            changed(MIXED, attributes=5),
            changed(MIXED, producerId=1),
        ):
            self.assertIsNone(form.validatePlain([MIXED, bad], 1 << 20))
        self.assertIsNone(form.validatePlain([MIXED], len(MIXED) - 1))
        self.assertIsNotNone(form.validatePlain([MIXED], len(MIXED)))

    def test_rulesThatOpen(self) -> None:
        """Where a rule needs the records, or where the batch is not a client's, likewise."""
        for rules in (
            RecordRules(isCompacted=True),
            RecordRules(isEveryRecordChecked=True),
            RecordRules(timestampBeforeMaxMs=1000),
            LOG_RULES,
            RecordRules(codec=ZSTD),
            RecordRules(batchSizeMax=len(MIXED) - 1),
        ):
            self.assertIsNone(KafkaFormat(rules).validatePlain([MIXED], 1 << 20))
        rules = RecordRules(batchSizeMax=len(MIXED), codec=NONE)
        self.assertIsNotNone(KafkaFormat(rules).validatePlain([MIXED], 1))
        early = RecordRules(timestampBeforeMaxMs=1000, isLogAppendTime=True)
        self.assertIsNotNone(KafkaFormat(early).validatePlain([MIXED], 1 << 20))

    @given(st.integers(0, len(MIXED) - 1), st.integers(1, 255))
    def test_flipped(self, position: int, flip: int) -> None:
        """No flipped bit passes but in the leader epoch, which is the broker's."""
        bad = bytearray(MIXED)
        bad[position] ^= flip
        passed = KafkaFormat().validatePlain([bytes(bad)], 1 << 20) is not None
        self.assertEqual(passed, position in range(12, 16))


class ClientTests(SynchronousTestCase):
    """What clients may send."""

    def refused(
        self, data: bytes, error: type[FormatError], rules: RecordRules = DEFAULT_RULES
    ) -> FormatError:
        self.assertIsNone(KafkaFormat(rules).validatePlain([data], 1 << 20))
        found: FormatError = self.assertRaises(error, KafkaFormat(rules).validate, data, LIMITS)
        return found

    def test_earlierFormats(self) -> None:
        """Formats 0 and 1 are refused, by their magic byte alone."""
        for magic in (0, 1):
            old = MIXED[:16] + bytes([magic]) + bytes(8)
            self.refused(
                old[:8] + struct.pack(">i", 14) + old[12:], UnsupportedForMessageFormatError
            )
        self.refused(MIXED[:16] + b"\3" + MIXED[17:], FormatError)

    def test_sizes(self) -> None:
        """Nothing, a cut batch, a size that cannot be, a second batch, a batch too large."""
        for none in (b"", b"\0" * 12, MIXED[:16], MIXED[:-1]):
            self.assertIn("no whole batch", str(self.refused(none, InvalidRecordError)))
        for size in (-1, 13):
            bad = MIXED[:8] + struct.pack(">i", size) + MIXED[12:]
            self.refused(bad, InvalidMessageSizeError)
        self.refused(MIXED[:8] + struct.pack(">i", 30) + MIXED[12:], InvalidMessageSizeError)
        self.assertEqual(self.refused(MIXED * 2, InvalidRecordError).position, len(MIXED))
        self.refused(MIXED, MessageTooLargeError, RecordRules(batchSizeMax=len(MIXED) - 1))
        self.assertRaises(
            MessageTooLargeError, KafkaFormat().validate, MIXED, CheckLimits(len(MIXED) - 1)
        )

    def test_junkBehind(self) -> None:
        """A cut second batch is left out, as by Apache."""
        for junk in (b"x", MIXED[:-1], MIXED[:17]):
            found = KafkaFormat().validate(MIXED + junk, LIMITS)
            self.assertEqual((found.buffers, found.size), ([MIXED], len(MIXED)))

    def test_header(self) -> None:
        """Checksum, counts, offsets, sequences, codecs, control batches, the broker's time."""
        self.refused(MIXED[:-1] + b"x", InvalidChecksumError)
        for fields in (
            {"baseOffset": 1},
            {"baseOffset": -1},
            {"recordCount": 4},
            {"recordCount": -1},
            {"lastOffsetDelta": -1, "recordCount": 0},
            {"lastOffsetDelta": 2**31 - 2, "recordCount": 2**31 - 1},
            {"producerId": 4711},
            {"attributes": 0x20},
        ):
            self.refused(changed(MIXED, **fields), InvalidRecordError)
        self.refused(changed(MIXED, attributes=5), UnknownCodecError)
        most = COMPRESSED_RECORD_COUNT_MAX
        packed = changed(GOLDEN["zstd"], lastOffsetDelta=most - 1, recordCount=most)
        self.assertIsNotNone(KafkaFormat().validatePlain([packed], 1 << 20))
        bad = changed(GOLDEN["zstd"], lastOffsetDelta=most, recordCount=most + 1)
        self.refused(bad, InvalidRecordError)

    def test_unusual(self) -> None:
        """Attributes that mean nothing here are taken, as by Apache."""
        data = changed(MIXED, attributes=0x80)
        self.assertIsNone(KafkaFormat().validatePlain([data], 1 << 20))
        self.assertEqual(KafkaFormat().validate(data, LIMITS).buffers, [data])

    def test_unopened(self) -> None:
        """By default records are not opened: a batch whose records are junk is taken."""
        junk = assembleBatch(readHeader(GOLDEN["gzip"]), b"no gzip")
        self.assertIsNotNone(KafkaFormat().validatePlain([junk], 1 << 20))
        rules = RecordRules(isEveryRecordChecked=True)
        self.refused(junk, CorruptCompressionError, rules)
        self.refused(assembleBatch(readHeader(MIXED), b"junk" * 20), InvalidRecordError, rules)
        self.assertEqual(validated(rules, MIXED).buffers, [MIXED])
        self.assertEqual(validated(rules, GOLDEN["lz4"]).buffers, [GOLDEN["lz4"]])

    def test_offsets(self) -> None:
        """Opened records have the offsets 0, 1, 2 and so on."""
        records = [Record(0, START_MS, b"k", b"v"), Record(2, START_MS, b"k", b"v")]
        data = encodeBatch(records, lastOffsetDelta=1)
        self.refused(data, InvalidRecordError, RecordRules(isEveryRecordChecked=True))

    def test_compacted(self) -> None:
        """Compacted topics refuse records without a key, and tell which; tombstones are fine."""
        rules = RecordRules(isCompacted=True)
        keyed = manyRecords(20)
        self.assertEqual(validated(rules, encodeBatch(keyed)).messageCount, 20)
        for codec in (NONE, ZSTD):
            bare = [
                each._replace(key=None) if each.offset in (3, 5, 7, 9) else each for each in keyed
            ]
            error = self.refused(encodeBatch(bare, codec=codec), InvalidRecordError, rules)
            assert isinstance(error, InvalidRecordError)
            self.assertEqual([index for index, _ in error.recordErrors], [3, 5, 7, 9])
            self.assertIn("due to 4 record errors", error.reason)
            self.assertEqual(error.reason.count("without key"), 3)

    def test_limitsOfOpening(self) -> None:
        """What must be opened and is large is refused as such, so that a worker opens it."""
        rules = RecordRules(isCompacted=True)
        form = KafkaFormat(rules)
        for data in (GOLDEN["none"], GOLDEN["gzip"]):
            for limits in (CheckLimits(compressedSizeMax=99), CheckLimits(decompressedSizeMax=99)):
                if limits.compressedSizeMax == 99 or data is GOLDEN["gzip"]:
                    self.assertRaises(DecompressionLimitError, form.validate, data, limits)
            self.assertEqual(len(form.validate(data, LIMITS).buffers), 1)


class TimeTests(SynchronousTestCase):
    """Timestamps."""

    def test_tooLate(self) -> None:
        """A timestamp more than an hour ahead is refused, and the records are told."""
        nowMs = START_MS + 70_000 - 3_600_000
        self.assertEqual(validated(DEFAULT_RULES, MIXED, nowMs=nowMs).buffers, [MIXED])
        for rules in (DEFAULT_RULES, RecordRules(isEveryRecordChecked=True)):
            form = KafkaFormat(rules, lambda: nowMs - 1)
            self.assertIsNone(form.validatePlain([MIXED], 1 << 20))
            error: Any = self.assertRaises(InvalidTimestampError, form.validate, MIXED, LIMITS)
            [(index, text)] = error.recordErrors
            self.assertEqual(index, 1)
            self.assertIn(f"Timestamp {START_MS + 70_000} of message with offset 1", text)

    def test_tooEarly(self) -> None:
        """With a limit, so is one that is too old; a record without a timestamp is neither."""
        rules = RecordRules(timestampBeforeMaxMs=1000)
        self.assertEqual(validated(rules, MIXED, nowMs=START_MS + 995).buffers, [MIXED])
        form = KafkaFormat(rules, lambda: START_MS + 996)
        error: Any = self.assertRaises(InvalidTimestampError, form.validate, MIXED, LIMITS)
        self.assertEqual([index for index, _ in error.recordErrors], [2])
        bare = encodeBatch([Record(0, -1, None, b"v")])
        self.assertEqual(form.validate(bare, LIMITS).timestampMaxMs, -1)

    def test_keysAndTimes(self) -> None:
        """Both kinds of faults are told together."""
        form = KafkaFormat(RecordRules(isCompacted=True), lambda: START_MS - 3_600_000)
        error: Any = self.assertRaises(InvalidTimestampError, form.validate, MIXED, LIMITS)
        self.assertEqual([index for index, _ in error.recordErrors], [1, 1, 3, 4])

    def test_noClock(self) -> None:
        """Without a clock timestamps are not compared."""
        future = encodeBatch([Record(0, 1 << 60, None, b"v")])
        self.assertEqual(validated(DEFAULT_RULES, future).timestampMaxMs, 1 << 60)
        rules = RecordRules(timestampBeforeMaxMs=1000)
        self.assertEqual(validated(rules, future).timestampMaxMs, 1 << 60)

    def test_logAppendTime(self) -> None:
        """With C{LogAppendTime} any timestamp is taken; the header says what is to be stamped."""
        rules = RecordRules(isLogAppendTime=True, timestampBeforeMaxMs=0)
        found = validated(rules, MIXED, GOLDEN["lz4"], nowMs=0)
        self.assertEqual([header.isLogAppendTime for header in found.headers], [True, True])
        form = KafkaFormat(rules)
        [data, _] = form.stamp(found, 0, -1, START_MS + 99)
        self.assertEqual(data, GOLDEN["appendTime"])
        plain = KafkaFormat().validate(data, LIMITS)
        self.assertFalse(plain.headers[0].isLogAppendTime)  # it is not the client's to say
        self.assertFalse(readHeader(plain.buffers[0]).isLogAppendTime)
        opened = KafkaFormat(RecordRules(isLogAppendTime=True, isCompacted=True))
        keyed = opened.validate(GOLDEN["none"], LIMITS)
        self.assertTrue(keyed.headers[0].isLogAppendTime)

    def test_largestTimestamp(self) -> None:
        """
        Of a batch that is opened, the header gets the largest timestamp of its records, and the
        bytes a checksum that fits; of others, the header is believed.
        """
        times = (START_MS + 5, START_MS)
        for codec in (0, 4):
            good = encodeBatch(
                [Record(at, timeMs, b"k", b"v") for at, timeMs in enumerate(times)], codec=codec
            )
            for claimedMs in (START_MS, START_MS + 6, -1, -2):
                claim = readHeader(good)._replace(maxTimestampMs=claimedMs)
                data = assembleBatch(claim, good[BATCH_OVERHEAD:])
                opened = validated(RecordRules(isEveryRecordChecked=True), data)
                self.assertEqual(opened.timestampMaxMs, START_MS + 5)
                self.assertEqual(opened.buffers, [good])
                self.assertEqual(validated(DEFAULT_RULES, data).timestampMaxMs, max(claimedMs, -1))
                stamped = validated(RecordRules(isLogAppendTime=True, isCompacted=True), data)
                self.assertEqual(stamped.buffers, [data])
        none = encodeBatch([Record(0, -2, b"k", b"v")])
        opened = validated(RecordRules(isEveryRecordChecked=True), none)
        self.assertEqual(opened.timestampMaxMs, -1)

    def test_claimedAppendTime(self) -> None:
        """A client that claims C{LogAppendTime} does not hide the times of its records."""
        good = encodeBatch([Record(0, START_MS, b"k", b"v")])
        header = readHeader(good)
        claim = header._replace(
            attributes=header.attributes | APPEND_TIME_ATTRIBUTE, maxTimestampMs=START_MS + 5000
        )
        data = assembleBatch(claim, good[BATCH_OVERHEAD:])
        opened = validated(RecordRules(isEveryRecordChecked=True), data)
        self.assertEqual((opened.timestampMaxMs, opened.buffers), (START_MS, [good]))
        rules = RecordRules(timestampBeforeMaxMs=1000)
        with self.assertRaises(InvalidTimestampError):
            validated(rules, data, nowMs=START_MS + 5000)


class RecompressionTests(SynchronousTestCase):
    """C{compression.type}."""

    def test_otherCodec(self) -> None:
        """A batch of another codec is rebuilt: the same records and producer, from any codec."""
        for codec in (NONE, GZIP, LZ4):
            form = KafkaFormat(RecordRules(codec=codec))
            for name in ("none", "zstd", "snappy"):
                data = GOLDEN[name]
                if readHeader(data).codec == codec:
                    continue
                data = changed(
                    data,
                    producerId=9,
                    producerEpoch=1,
                    baseSequence=5,
                    attributes=0x10 | readHeader(data).codec,
                )
                found = form.validate(data, LIMITS)
                [batch], [header] = found.buffers, found.headers
                self.assertEqual(readHeader(batch), header)
                self.assertEqual(
                    list(iterateRecords(batch, 0, header)),
                    manyRecords(header.recordCount),
                )
                self.assertEqual((header.codec, header.isTransactional), (codec, True))
                self.assertEqual(header[9:12], (9, 1, 5))
                self.assertEqual(found.size, len(batch))

    def test_sameCodec(self) -> None:
        """A batch of the codec is left as it is."""
        self.assertEqual(
            validated(RecordRules(codec=LZ4, level=9), GOLDEN["lz4"]).buffers, [GOLDEN["lz4"]]
        )

    def test_tooLarge(self) -> None:
        """A batch that is too large once it is rebuilt is refused."""
        form = KafkaFormat(RecordRules(codec=NONE, batchSizeMax=10_000))
        self.assertRaises(MessageTooLargeError, form.validate, GOLDEN["zstd"], LIMITS)


class LogTests(SynchronousTestCase):
    """What logs and tools validate: batches that are stored."""

    def test_anyBatches(self) -> None:
        """Several batches, with offsets, gaps, and markers."""
        gapped = encodeBatch(manyRecords(3), baseOffset=0, lastOffsetDelta=9)
        empty = encodeBatch([], baseOffset=10, lastOffsetDelta=4)
        data = gapped + empty + GOLDEN["commit"] + GOLDEN["placed"] + GOLDEN["appendTime"]
        for rules in (LOG_RULES, CHECKED_RULES):
            found = KafkaFormat(rules).validate(data, LIMITS)
            self.assertEqual(b"".join(found.buffers), data)
            self.assertEqual(found[2:5], (14, 26, START_MS + 70_000))
            self.assertIsNone(found.marker)
        self.assertEqual(KafkaFormat(LOG_RULES).validate(b"", LIMITS).buffers, [])

    def test_markers(self) -> None:
        """The marker of a control batch that is alone; a broken one; one that is emptied."""
        form = KafkaFormat(LOG_RULES)
        self.assertEqual(form.validate(GOLDEN["commit"], LIMITS).marker, EndMarker(True, 12))
        self.assertEqual(form.validate(GOLDEN["abort"], LIMITS).marker, EndMarker(False, 13))
        bad = encodeBatch([Record(0, 0, None, None)], isControl=True)
        self.assertRaises(InvalidRecordError, form.validate, bad, LIMITS)
        empty = encodeBatch([], isControl=True, lastOffsetDelta=0)
        self.assertIsNone(form.validate(empty, LIMITS).marker)

    def test_compacted(self) -> None:
        """Markers have no place for a key of the application, and need none."""
        rules = RecordRules(isCompacted=True, isFromClient=False, codec=ZSTD)
        data = controlBatch(True, 1, 0, 0, START_MS)
        self.assertEqual(KafkaFormat(rules).validate(data, LIMITS).buffers, [data])

    def test_stamp(self) -> None:
        """Batches get ascending base offsets, and the epoch."""
        form = KafkaFormat(LOG_RULES)
        found = form.validate(MIXED + encodeBatch(manyRecords(2)), LIMITS)
        first, second = form.stamp(found, 10**12, 9, 0)
        self.assertEqual(first, GOLDEN["placed"])
        header = readHeader(second)
        self.assertEqual((header.baseOffset, header.leaderEpoch), (10**12 + 5, 9))
        self.assertEqual(form.nextOffset(0, [first, second]), 10**12 + 7)
        self.assertEqual(form.nextOffset(5, []), 5)
        counted: IRecordFormat = form
        self.assertIsNone(counted.contiguousEnd(0, 100))

    def test_index(self) -> None:
        """The index of a new segment."""
        files = PowerCutFileSystem()
        index = KafkaFormat().openIndex(files, "/00.log", 20, 0, False)
        self.assertEqual((index.findEnd(0), index.isFull), (20, False))


class Reads:
    """A segment file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sizes: list[int] = []

    def __call__(self, position: int, size: int) -> bytes:
        self.sizes.append(size)
        return self.data[position : position + size]


def placed(*sets: tuple[int, bytes]) -> bytes:
    """Batches at offsets."""
    return b"".join(changed(data, baseOffset=offset) for offset, data in sets)


LOG = placed((0, MIXED), (7, GOLDEN["zstd"]), (500, GOLDEN["commit"]), (501, GOLDEN["none"]))


class ScanTests(SynchronousTestCase):
    """Walks over segments."""

    def scanned(self, data: bytes, baseOffset: int = 0) -> tuple[BatchScan, list[ScannedEntry]]:
        scan = KafkaFormat().scan(Reads(data), baseOffset, 0, len(data))
        entries = list(scan)
        skipped = KafkaFormat().scan(Reads(data), baseOffset, 0, len(data))
        self.assertEqual((skipped.skipToEnd(), skipped.reason), (scan.position, scan.reason))
        return scan, entries

    def test_entries(self) -> None:
        """Positions, sizes, offsets with gaps, headers, markers."""
        scan, entries = self.scanned(LOG)
        self.assertEqual((scan.position, scan.reason), (len(LOG), None))
        self.assertEqual(
            [(entry.offset, entry.nextOffset) for entry in entries],
            [(0, 5), (7, 407), (500, 501), (501, 521)],
        )
        for entry in entries:
            self.assertEqual(entry.header, readHeader(LOG, entry.position))
        self.assertEqual(
            [entry.marker for entry in entries], [None, None, EndMarker(True, 12), None]
        )
        self.assertEqual(self.scanned(b"")[1], [])

    def test_stops(self) -> None:
        """At a cut, a flipped bit, an offset that goes back, an impossible count: with reasons."""
        flipped = LOG[:-1] + b"x"
        for data, count, reason in (
            (LOG[:-1], 3, "are left"),
            (LOG + b"\0", 4, "less than a header"),
            (LOG + bytes(100), 4, "message format 0"),
            (flipped, 3, "checksum"),
            (LOG + placed((520, MIXED)), 4, "offset 520 where 521"),
            (LOG + changed(MIXED, baseOffset=600, recordCount=6), 4, "6 records"),
            (LOG + changed(MIXED, baseOffset=600, attributes=6), 4, "unknown codec 6"),
            (
                placed((0, MIXED))
                + encodeBatch([Record(9, 0, b"", b"")], baseOffset=9, isControl=True),
                1,
                "without a type",
            ),
        ):
            scan, entries = self.scanned(data)
            self.assertEqual(len(entries), count, reason)
            self.assertIn(reason, scan.reason or "")
            self.assertEqual(scan.position, sum(entry.size for entry in entries))
        far = placed((2**31 - 5, MIXED))
        self.assertEqual(len(self.scanned(far)[1]), 1)
        self.assertIn("last possible", self.scanned(placed((2**31 - 4, MIXED)))[0].reason or "")
        self.assertIn("where 1 or", self.scanned(LOG, 1)[0].reason or "")

    def test_windows(self) -> None:
        """Windows of any size give the same; larger batches are read in pieces."""
        _, expected = self.scanned(LOG)
        for size in (62, 100, 900, 6000):
            self.patch(scanwindow, "SCAN_WINDOW_SIZE", size)
            read = Reads(LOG)
            entries = list(BatchScan(read, 0, 0, len(LOG)))
            self.assertEqual([each[:5] for each in entries], [each[:5] for each in expected])
            self.assertTrue(max(read.sizes) <= size)
            bad = bytearray(LOG)
            bad[len(MIXED) + 400] ^= 1
            scan = BatchScan(Reads(bytes(bad)), 0, 0, len(LOG))
            self.assertEqual(scan.skipToEnd(), len(MIXED))
            self.assertIn("checksum", scan.reason or "")

    def test_shorter(self) -> None:
        """A file that became shorter while it is walked ends the walk."""
        for windowSize in (62, 1 << 20):
            self.patch(scanwindow, "SCAN_WINDOW_SIZE", windowSize)
            for size in (len(MIXED), len(MIXED) + 30, len(LOG) - 1):
                scan = BatchScan(Reads(LOG[:size]), 0, 0, len(LOG))
                self.assertTrue(scan.skipToEnd() <= size)
                self.assertEqual(scan.reason, scanwindow.SHORTER)

    def test_announcedSizes(self) -> None:
        """A batch that announces a gigabyte allocates nothing for it."""
        head = LOG[:8] + struct.pack(">i", 1 << 30) + LOG[12:]
        tracemalloc.start()
        try:
            scan = BatchScan(Reads(head), 0, 0, 1 << 31)
            self.assertEqual(scan.skipToEnd(), 0)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(peak, 4 << 20)


class MutationTests(SynchronousTestCase):
    """Foreign bytes raise format errors, and nothing else."""

    def test_mutations(self) -> None:
        """Thousands of mutated batches, with every set of rules."""
        chance = random.Random(12)
        batches = [*GOLDEN.values(), LOG]
        formats = [
            KafkaFormat(rules, lambda: START_MS)
            for rules in (
                DEFAULT_RULES,
                RecordRules(isCompacted=True, timestampBeforeMaxMs=100_000),
                RecordRules(codec=LZ4),
                RecordRules(isLogAppendTime=True),
                LOG_RULES,
                CHECKED_RULES,
            )
        ]
        passedCount = refusedCount = 0
        for _ in range(3000):
            data = bytearray(chance.choice(batches))
            for _ in range(chance.choice((1, 1, 2, 5))):
                place = chance.randrange(chance.choice((BATCH_OVERHEAD, len(data))))
                if chance.random() < 0.1:
                    del data[place + 1 :]
                elif place < len(data):
                    data[place] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
                if len(data) <= BATCH_OVERHEAD:
                    break
            if len(data) > BATCH_OVERHEAD and chance.random() < 0.8:
                end = min(len(data), max(0, int.from_bytes(data[8:12], "big", signed=True)) + 12)
                data[17:21] = struct.pack(">I", crc32c(bytes(data[21:end])))
            raw = bytes(data)
            for form in formats:
                try:
                    found = form.validatePlain([raw], 1 << 20) or form.validate(raw, LIMITS)
                except FormatError:
                    refusedCount += 1
                else:
                    form.stamp(found, 5, 6, START_MS)
                    passedCount += 1
            BatchScan(Reads(raw), 0, 0, len(raw)).skipToEnd()
        self.assertGreater(refusedCount, 5000)
        self.assertGreater(passedCount, 1000)

    def test_values(self) -> None:
        """Any fields in a header, too."""
        chance = random.Random(13)
        fields = BatchHeader._fields
        form = KafkaFormat(CHECKED_RULES)
        for _ in range(500):
            header = list(readHeader(MIXED))
            name = chance.randrange(len(fields))
            bits = {0: 63, 7: 63, 8: 63, 9: 63, 5: 15, 10: 15}.get(name, 31)
            if fields[name] not in ("size", "magic", "crc"):
                header[name] = chance.choice((-(1 << bits), -1, 0, 1, (1 << bits) - 1))
            data = assembleBatch(BatchHeader(*header), MIXED[BATCH_OVERHEAD:])
            try:
                form.validate(data, LIMITS)
            except FormatError:
                pass
            self.assertIn(
                KafkaFormat().scan(Reads(data), 0, 0, len(data)).skipToEnd(), (0, len(data))
            )
        self.assertEqual(mixedRecords(), list(iterateRecords(MIXED, 0, readHeader(MIXED))))
