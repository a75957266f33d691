"""Tests for L{pylogbroker.spark.reading}."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pylogbroker.records.columns import ColumnBatch
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.spark import reading
from pylogbroker.spark.reading import ARROW_SCHEMA, ArrowBatchBuilder, readSplit
from pylogbroker.spark.splits import InputSplit
from tests.spark.sourcecase import SourceCase


class ReadSplitTests(SourceCase):
    """A split as batches."""

    def batches(self, *sets: bytes, **options: Any) -> list[pa.RecordBatch]:
        """Of a log that has these."""
        self.broker.log().append(*sets)
        return list(
            readSplit(
                InputSplit(self.range(0, self.broker.log().end), self.broker.address),
                self.options(**options),
            )
        )

    def test_columns(self) -> None:
        """All columns, for plain messages and for those inside a wrapper."""
        plain, wrapper = encodeMessage(b"plain"), encodeSet([b"in", b"side"], GZIP)
        [batch] = self.batches(plain + wrapper)
        self.assertEqual(batch.schema, ARROW_SCHEMA)
        batch.validate(full=True)
        start, end = len(plain), len(plain + wrapper)
        same = {"key": None, "topic": "clicks", "broker": 0, "partition": 0, "timestamp": None}
        self.assertEqual(
            batch.to_pylist(),
            [
                {"value": b"plain", "offset": 0, "nextOffset": start, **same},
                {"value": b"in", "offset": start, "nextOffset": start, **same},
                {"value": b"side", "offset": start, "nextOffset": end, **same},
            ],
        )

    def test_batchSizes(self) -> None:
        """Batches have ten thousand rows, and the last what is left, wherever fetches and sets end."""
        payloads = [b"%d" % number for number in range(25_000)]
        batches = self.batches(
            encodeSet(payloads[:3]),
            encodeSet(payloads[3:24_000], GZIP),
            encodeSet(payloads[24_000:]),
            fetchSize=1_000,
        )
        self.assertEqual([batch.num_rows for batch in batches], [10_000, 10_000, 5_000])
        self.assertEqual(
            [value for batch in batches for value in batch.column("value").to_pylist()], payloads
        )

    def test_largeMessages(self) -> None:
        """Few large messages make a batch: what is held is bounded in bytes, too."""
        self.patch(reading, "BATCH_SIZE_MAX", 7_000)
        batches = self.batches(encodeSet([b"x" * 2_000] * 9), fetchSize=4_100)
        self.assertEqual([batch.num_rows for batch in batches], [4, 4, 1])

    def test_wrapperThatOpensLarge(self) -> None:
        """What counts is what the messages take, not what they took on the way."""
        self.patch(reading, "BATCH_SIZE_MAX", 50_000)
        batches = self.batches(*[encodeSet([b"x" * 20_000] * 2, GZIP)] * 4)
        self.assertEqual([batch.num_rows for batch in batches], [4, 4])

    def test_measuredTwice(self) -> None:
        """A stretch of any number of messages costs in proportion to them: each is measured when it comes and when it goes."""
        measured = 0

        class Payload(bytes):
            def __len__(self) -> int:
                nonlocal measured
                measured += 1
                return super().__len__()

        self.patch(reading, "ROW_COUNT", 10)
        batches, count = ArrowBatchBuilder(self.range(0, 1_000)), 1_000
        found = list(batches.add(ColumnBatch([Payload(b"x")] * count, [0] * count, [1] * count, 1)))
        self.assertEqual((len(found), measured), (100, 2 * count))

    def test_nothing(self) -> None:
        """An empty range has no batches."""
        self.assertEqual(self.batches(b""), [])
