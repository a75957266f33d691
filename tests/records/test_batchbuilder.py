"""
Tests of L{pylogbroker.records.batchbuilder}.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import EncodingError
from pylogbroker.records.batchbuilder import BatchBuilder, recordSizeMax
from pylogbroker.records.compression import BATCH_CODEC_NAMES
from pylogbroker.records.recordbatch import Record, encodeBatch, iterateRecords, readHeader

FIELDS = st.one_of(st.none(), st.binary(max_size=200))
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), FIELDS), max_size=3)
RECORDS = st.lists(
    st.tuples(st.integers(0, 2**41), FIELDS, FIELDS, HEADERS), min_size=1, max_size=20
)


class BuilderTests(SynchronousTestCase):
    """L{BatchBuilder}."""

    @given(RECORDS)
    def test_sameBytes(self, rows: list) -> None:
        """The bytes are those of the encoder for whole batches; the size is known before."""
        builder = BatchBuilder()
        sizeMax = builder.size
        for row in rows:
            builder.append(*row)
            sizeMax += recordSizeMax(*row[1:])
        records = [
            Record(at, ms, key, value, tuple(headers))
            for at, (ms, key, value, headers) in enumerate(rows)
        ]
        packed = builder.close()
        expected = encodeBatch(records, producerId=7, producerEpoch=3, baseSequence=9)
        self.assertEqual(packed.encode(7, 3, 9), expected)
        self.assertEqual((builder.size, packed.size), (len(expected), len(expected)))
        self.assertLessEqual(len(expected), sizeMax)

    def test_manyRecords(self) -> None:
        """Numbers that are not looked up are encoded."""
        builder = BatchBuilder()
        value = b"v" * 9_000
        for index in range(9_000):
            builder.append(10**12 + 10_000 * (index % 2), None, value if index == 0 else b"")
        packed = builder.close()
        data = packed.encode()
        found = list(iterateRecords(data, 0, readHeader(data)))
        self.assertEqual([each.offset for each in found], list(range(9_000)))
        self.assertEqual(found[0].value, value)
        self.assertEqual(found[-1].timestampMs, 10**12 + 10_000)

    def test_compressed(self) -> None:
        """Every codec packs the records; the batch of a transaction says so."""
        for codec in BATCH_CODEC_NAMES:
            builder = BatchBuilder()
            for index in range(100):
                builder.append(index, b"key", b"value" * 10)
            packed = builder.close(codec)
            data = packed.encode(1, 0, 0, isTransactional=True)
            header = readHeader(data)
            self.assertEqual((header.codec, header.isTransactional), (codec, True))
            self.assertEqual(len(list(iterateRecords(data, 0, header))), 100)
            self.assertEqual(packed.size, len(data))

    def test_wrongTypes(self) -> None:
        """What is no bytes is refused, and named."""
        self.assertIn("str", str(self.assertRaises(EncodingError, recordSizeMax, "k", b"", ())))
        self.assertIn("int", str(self.assertRaises(EncodingError, recordSizeMax, None, 1, ())))
        for headers in ((1,), ((b"name", b""),), (("name", 7),), (("\ud800", b""),)):
            self.assertRaises(EncodingError, recordSizeMax, None, b"", headers)
