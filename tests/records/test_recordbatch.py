"""Tests for L{pylogbroker.records.recordbatch}."""

from __future__ import annotations

import random
import struct
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
    UnsupportedForMessageFormatError,
)
from pylogbroker.interfaces import CheckLimits, EndMarker
from pylogbroker.records.compression import BATCH_CODEC_NAMES, GZIP, LZ4, SNAPPY, ZSTD
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    assembleBatch,
    checkCrc,
    controlBatch,
    controlType,
    encodeBatch,
    iterateRecords,
    readHeader,
    readMarker,
    stampBatch,
)
from tests.records.goldenbatches import START_MS, goldenBatches, manyRecords, mixedRecords

GOLDEN = goldenBatches()

VARINTS = st.integers(-(2**31), 2**31 - 1) | st.integers(-200, 200)
FIELDS = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), FIELDS), max_size=4).map(tuple)
RECORDS = st.lists(st.tuples(VARINTS, FIELDS, FIELDS, HEADERS), max_size=8)


def decode(data: bytes, limits: CheckLimits | None = None) -> list[Record]:
    """The records of a batch that must be whole and valid."""
    header = readHeader(data)
    checkCrc(data, 0, header)
    return list(iterateRecords(data, 0, header, limits or CheckLimits()))


def rebuilt(data: bytes, body: bytes, **changes: int) -> bytes:
    """A batch with other records' bytes, and a checksum that is right."""
    return assembleBatch(readHeader(data)._replace(**changes), body)


class GoldenTests(SynchronousTestCase):
    """The batches that Apache Kafka 4.3.1 built."""

    def test_encoded(self) -> None:
        """What is not compressed has Apache's bytes."""
        records = mixedRecords()
        producer: Any = {"producerId": 4711, "producerEpoch": 3, "baseSequence": 7}
        placed = mixedRecords(10**12)
        self.assertEqual(encodeBatch(records), GOLDEN["mixed"])
        self.assertEqual(encodeBatch(placed, baseOffset=10**12, leaderEpoch=9), GOLDEN["placed"])
        self.assertEqual(encodeBatch(records, **producer), GOLDEN["idempotent"])
        self.assertEqual(
            encodeBatch(records, isTransactional=True, **producer), GOLDEN["transactional"]
        )
        self.assertEqual(encodeBatch(records, appendTimeMs=START_MS + 99), GOLDEN["appendTime"])
        self.assertEqual(encodeBatch(manyRecords(20)), GOLDEN["none"])

    def test_markers(self) -> None:
        """So have the markers of transactions."""
        for name, isCommit, offset, epoch in (("commit", True, 42, 12), ("abort", False, 43, 13)):
            data = controlBatch(
                isCommit, 4711, 3, epoch, START_MS, baseOffset=offset, leaderEpoch=5
            )
            self.assertEqual(data, GOLDEN[name])
            self.assertTrue(readHeader(data).isControl and readHeader(data).isTransactional)
            [record] = decode(data)
            self.assertEqual(readMarker(record), EndMarker(isCommit, epoch))

    def test_decoded(self) -> None:
        """What Apache wrote is read, compressed or not."""
        self.assertEqual(decode(GOLDEN["mixed"]), mixedRecords())
        self.assertEqual(decode(GOLDEN["placed"]), mixedRecords(10**12))
        self.assertEqual(decode(GOLDEN["none"]), manyRecords(20))
        for name in ("gzip", "snappy", "lz4", "zstd"):
            self.assertEqual(decode(GOLDEN[name]), manyRecords(400), name)
            self.assertEqual(BATCH_CODEC_NAMES[readHeader(GOLDEN[name]).codec], name)
        self.assertEqual(
            {record.timestampMs for record in decode(GOLDEN["appendTime"])}, {START_MS + 99}
        )

    def test_header(self) -> None:
        """Every field of a header, and what follows from them."""
        data = GOLDEN["transactional"]
        header = readHeader(data)
        self.assertEqual(
            header,
            (
                *(0, len(data), -1, 2, header.crc, 0x10, 4),
                *(START_MS, START_MS + 70_000, 4711, 3, 7, 5),
            ),
        )
        self.assertTrue(header.isTransactional)
        self.assertFalse(header.isControl or header.isLogAppendTime)
        self.assertEqual((header.lastOffset, header.nextOffset, header.lastSequence), (4, 5, 11))
        self.assertIsNone(header.deleteHorizonMs)
        placed = readHeader(b"before" + GOLDEN["placed"], 6)
        self.assertEqual((placed.lastOffset, placed.leaderEpoch), (10**12 + 4, 9))
        self.assertEqual(placed.lastSequence, -1)
        self.assertTrue(readHeader(GOLDEN["appendTime"]).isLogAppendTime)

    def test_sequencesWrap(self) -> None:
        """Behind 2^31-1 sequence numbers begin again at 0."""
        header = readHeader(GOLDEN["idempotent"])._replace(baseSequence=2**31 - 2)
        self.assertEqual(header.lastSequence, 2)


class RoundTripTests(SynchronousTestCase):
    """What is encoded is decoded."""

    @given(RECORDS, st.sampled_from(sorted(BATCH_CODEC_NAMES)), st.integers(0, 2**40))
    def test_roundTrip(self, fields: list, codec: int, baseOffset: int) -> None:
        """Any records, with any codec, at any offset."""
        records = [
            Record(baseOffset + 3 * index, START_MS + ms, *rest)
            for index, (ms, *rest) in enumerate(fields)
        ]
        data = encodeBatch(
            records, baseOffset=baseOffset, codec=codec, lastOffsetDelta=3 * len(records) + 1
        )
        self.assertEqual(decode(data), records)
        self.assertEqual(readHeader(data).lastOffset, baseOffset + 3 * len(records) + 1)
        self.assertEqual(
            readHeader(data).maxTimestampMs,
            max((record.timestampMs for record in records), default=-1),
        )

    def test_emptyBatch(self) -> None:
        """An empty batch keeps offsets and sequence numbers, as compaction needs it."""
        data = encodeBatch(
            [], baseOffset=20, lastOffsetDelta=9, producerId=1, producerEpoch=0, baseSequence=30
        )
        header = readHeader(data)
        self.assertEqual((len(data), decode(data)), (BATCH_OVERHEAD, []))
        self.assertEqual((header.lastOffset, header.lastSequence), (29, 39))

    def test_deleteHorizon(self) -> None:
        """A batch with a delete horizon has it in place of the base timestamp."""
        records = mixedRecords()
        data = encodeBatch(records, deleteHorizonMs=START_MS + 1000)
        self.assertEqual(readHeader(data).deleteHorizonMs, START_MS + 1000)
        self.assertEqual(decode(data), records)

    def test_levels(self) -> None:
        """A codec's level is its own; the content is the same."""
        for codec, level in ((GZIP, 9), (SNAPPY, 1), (LZ4, 12), (ZSTD, 9)):
            self.assertEqual(
                decode(encodeBatch(manyRecords(50), codec=codec, level=level)), manyRecords(50)
            )

    def test_views(self) -> None:
        """A view of a larger buffer is read as bytes are."""
        data = memoryview(b"xx" + GOLDEN["mixed"] + b"yy")
        header = readHeader(data, 2)
        checkCrc(data, 2, header)
        self.assertEqual(list(iterateRecords(data, 2, header)), mixedRecords())


class StampTests(SynchronousTestCase):
    """What a leader writes into a batch."""

    def test_stamp(self) -> None:
        """Base offset and leader epoch change, and nothing else."""
        data = GOLDEN["mixed"]
        stamped = stampBatch(memoryview(data), readHeader(data), 10**12, 9, 77)
        self.assertEqual(stamped, GOLDEN["placed"])

    def test_appendTime(self) -> None:
        """With C{LogAppendTime} timestamp, attribute and checksum, too."""
        data = GOLDEN["mixed"]
        header = readHeader(data)
        header = header._replace(attributes=header.attributes | 0x08)
        self.assertEqual(stampBatch(data, header, 0, -1, START_MS + 99), GOLDEN["appendTime"])


class FaultTests(SynchronousTestCase):
    """Foreign bytes."""

    def refused(self, data: bytes, error: type[FormatError] = InvalidRecordError) -> str:
        return str(self.assertRaises(error, decode, data))

    def test_header(self) -> None:
        """A header that is cut, of another format, or with an impossible size."""
        data = GOLDEN["mixed"]
        self.refused(data[: BATCH_OVERHEAD - 1], InvalidMessageSizeError)
        self.refused(data[:10], InvalidMessageSizeError)
        self.refused(b"", InvalidMessageSizeError)
        for magic in (0, 1):
            self.refused(data[:16] + bytes([magic]) + data[17:], UnsupportedForMessageFormatError)
            self.refused(data[:16] + bytes([magic]), UnsupportedForMessageFormatError)
        self.assertIn("magic byte is 3", self.refused(data[:16] + b"\3" + data[17:], FormatError))
        for size in (-(2**31), -1, 0, BATCH_OVERHEAD - 13):
            self.refused(data[:8] + struct.pack(">i", size) + data[12:], InvalidMessageSizeError)

    def test_checksum(self) -> None:
        """A cut batch, and one with a flipped bit anywhere behind the checksum."""
        data = GOLDEN["mixed"]
        self.refused(data[:-1], InvalidMessageSizeError)
        for position in range(21, len(data), 37):
            bad = bytearray(data)
            bad[position] ^= 4
            self.refused(bytes(bad), InvalidChecksumError)

    def test_cutWithoutCheck(self) -> None:
        """The records of a cut batch are refused also without a look at the checksum."""
        data = GOLDEN["mixed"]
        records = iterateRecords(data[:-1], 0, readHeader(data))
        self.assertRaises(InvalidMessageSizeError, list, records)

    def test_counts(self) -> None:
        """A count that is negative, or does not match the records."""
        data = GOLDEN["none"]
        body = data[BATCH_OVERHEAD:]
        for count in (-1, 2**31 - 1, 21, 600):
            self.refused(rebuilt(data, body, recordCount=count))
        self.assertIn("are behind the last", self.refused(rebuilt(data, body, recordCount=19)))

    def test_records(self) -> None:
        """Records that are cut, or whose sizes do not fit."""
        data = encodeBatch([Record(0, START_MS, b"k", b"v", (("h", b"x"),))])
        body = data[BATCH_OVERHEAD:]
        self.assertEqual(body.hex(), "18000000026b0276020268" + "0278")
        for bad, reason in (
            ("18000000026b0276020268", "a number without end"),
            ("16000000026b02760202680278", "size does not fit"),
            ("19000000026b02760202680278", "size does not fit"),
            ("ffffffffffffffffffff01", "a number without end"),
            ("18000000fe6b02760202680278", "a record is cut"),
            ("18000000026b02760302680278", "header count -2"),
            ("18000000026b0276fe7f680278", "header count 8191"),
            ("18000000026b02760201680278", "without a name"),
            ("18000000026b0276027e680278", "a header is cut"),
        ):
            self.assertIn(reason, self.refused(rebuilt(data, bytes.fromhex(bad))), bad)

    def test_foreignNames(self) -> None:
        """What is no UTF-8 in the name of a header is replaced, as by Java."""
        data = encodeBatch([Record(0, START_MS, b"k", b"v", (("h", b"x"),))])
        body = data[BATCH_OVERHEAD:].replace(b"h", b"\xff")
        [record] = decode(rebuilt(data, body))
        self.assertEqual(record.headers, (("\ufffd", b"x"),))

    def test_compression(self) -> None:
        """Records that cannot be decompressed, or to more than is allowed."""
        for name in ("gzip", "snappy", "lz4", "zstd"):
            data = GOLDEN[name]
            self.refused(
                rebuilt(data, data[BATCH_OVERHEAD:-50] + bytes(50)), CorruptCompressionError
            )
            size = len(encodeBatch(manyRecords(400))) - BATCH_OVERHEAD
            for limits in (
                CheckLimits(decompressedSizeMax=size - 1),
                CheckLimits(compressedSizeMax=100),
            ):
                self.assertRaises(DecompressionLimitError, decode, data, limits)
            self.assertEqual(len(decode(data, CheckLimits(decompressedSizeMax=size))), 400)
        attributes = readHeader(GOLDEN["none"]).attributes | 5
        self.refused(
            rebuilt(GOLDEN["none"], GOLDEN["none"][61:], attributes=attributes), FormatError
        )

    def test_control(self) -> None:
        """Control records without a type or a value; types of other control records."""

        def control(key: bytes | None, value: bytes | None) -> Record:
            return Record(0, START_MS, key, value)

        for key in (None, b"", b"\0\0\0"):
            self.assertRaises(InvalidRecordError, controlType, control(key, None))
        for value in (None, b"\0\0\0\0\0"):
            self.assertRaises(InvalidRecordError, readMarker, control(b"\0\0\0\1", value))
        other = control(b"\0\0\0\2", b"leader change")
        self.assertEqual((controlType(other), readMarker(other)), (2, None))

    def test_mutations(self) -> None:
        """Thousands of mutated batches raise format errors, and nothing else."""
        chance = random.Random(7)
        batches = list(GOLDEN.values())
        refusedCount = 0
        for _ in range(4000):
            data = bytearray(chance.choice(batches))
            for _ in range(chance.choice((1, 1, 2, 8))):
                if not data:
                    break
                place = chance.randrange(len(data))
                kind = chance.randrange(4)
                if kind == 0:
                    data[place] = chance.randrange(256)
                elif kind == 1:
                    data[place : place + chance.randrange(9)] = chance.randbytes(
                        chance.randrange(9)
                    )
                elif kind == 2:
                    del data[place + 1 :]
                else:
                    data[place : place + 1] = chance.choice((b"\xff" * 5, b"\x80" * 9, b"\0"))
            if len(data) > BATCH_OVERHEAD and chance.random() < 0.9:
                # A checksum and a size that are right lead the walk into the records.
                data[8:12] = struct.pack(">i", len(data) - 12)
                data[16] = 2
                data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
            try:
                decode(bytes(data), CheckLimits(decompressedSizeMax=1 << 20))
            except FormatError:
                refusedCount += 1
        self.assertGreater(refusedCount, 2000)
