"""
Tests for L{pylogbroker.spark.rangereader}.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import pyarrow as pa

from pylogbroker.errors import BrokerConnectionError, DataLossError, UnreadableRangeError
from pylogbroker.protocol.kafka07.requests import Fetch
from pylogbroker.records.columns import ColumnBatch, columnBatches
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.spark import rangereader
from pylogbroker.spark.rangereader import ARROW_SCHEMA, ArrowBatchBuilder, RangeReader, readSplit
from pylogbroker.spark.splits import InputSplit
from tests.spark.sourcecase import SourceCase

EMBEDDED = encodeSet([encodeSet([b"deep", b"in"]), b"side"])
PAYLOADS = [b"one", EMBEDDED, b"", b"four" * 50, EMBEDDED * 3]


def payloadsOf(batch: ColumnBatch) -> list[bytes]:
    """Each message's payload."""
    edges = array("i", batch.payloadOffsets)
    return [batch.payloads[start:end] for start, end in pairwise(edges)]


def rowsOf(batch: pa.RecordBatch) -> list[tuple[bytes, int, int]]:
    """Payloads, offsets and next offsets."""
    names = ("value", "offset", "nextOffset")
    return list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))


class RangeReaderCase(SourceCase):
    """Reads ranges of the one partition."""

    def read(self, start: int, end: int, **options: Any) -> list[bytes]:
        """The payloads of a range."""
        reader = RangeReader(self.range(start, end), self.brokers(), self.options(**options))
        return [payload for stretch in reader for payload in payloadsOf(stretch)]

    def failure(self, kind: type[Exception], start: int, end: int, **options: Any) -> str:
        """What reading a range fails with."""
        return str(self.assertRaises(kind, self.read, start, end, **options))


class ReadingTests(RangeReaderCase):
    """A log that stays as it is."""

    def test_allOfIt(self) -> None:
        """Every message of several segments, plain and compressed, with fetches of any size."""
        self.broker.log().append(
            encodeSet(PAYLOADS), encodeSet(PAYLOADS, GZIP), encodeSet(PAYLOADS)
        )
        end = self.broker.log().end
        for size in (64, 100, 1_000, 1_000_000):
            self.assertEqual(self.read(0, end, fetchSize=size), PAYLOADS * 3)

    def test_rangesMeet(self) -> None:
        """
        Cut at any boundary of an entry, two ranges have together what one has; embedded sets are no
        entries.
        """
        entries = [encodeMessage(payload) for payload in PAYLOADS]
        self.broker.log().append(b"".join(entries))
        end, cut = self.broker.log().end, 0
        for index, entry in enumerate(entries):
            self.assertEqual(
                (self.read(0, cut), self.read(cut, end)), (PAYLOADS[:index], PAYLOADS[index:])
            )
            cut += len(entry)

    def test_noBoundary(self) -> None:
        """
        A range that ends inside an entry is an error that says where that begins, even where the
        embedded bytes would do for an entry.
        """
        self.broker.log().append(encodeSet([b"one", EMBEDDED]))
        first, end = len(encodeMessage(b"one")), self.broker.log().end
        inner = first + 10 + len(encodeMessage(encodeSet([b"deep", b"in"])))
        for cut in (first + 2, first + 10, inner, end - 1):
            text = self.failure(UnreadableRangeError, 0, cut)
            self.assertIn(f"offset {first}: ", text)
            self.assertIn(f"crosses {cut}", text)

    def test_nothingBehindTheEnd(self) -> None:
        """Not a byte behind the end is asked for."""
        self.broker.log().append(encodeSet([b"one", b"two"]))
        self.read(0, 13)
        self.assertEqual(self.broker.requests, [Fetch("clicks", 0, 0, 13)])

    def test_largeMessage(self) -> None:
        """
        A message larger than a fetch is fetched by its own size; one larger than is allowed is an
        error that names offset and size.
        """
        self.broker.log().append(encodeSet([b"small", b"x" * 5_000, b"small"]))
        self.assertEqual(len(self.read(0, self.broker.log().end, fetchSize=64)), 3)
        self.assertEqual(
            [request.sizeMax for request in self.broker.requests if isinstance(request, Fetch)][:3],
            [64, 64, 5_010],
        )
        text = self.failure(
            UnreadableRangeError, 0, self.broker.log().end, fetchSize=64, fetchSizeMax=5_000
        )
        self.assertEqual(
            text,
            "topic clicks, partition 0-0, offset 15: the entry there has 5010 bytes, more than"
            " fetchSizeMax=5000, or is corrupt",
        )

    def test_corrupt(self) -> None:
        """
        A bad checksum, a size that is none, and a wrapper that cannot be opened are errors that
        name topic, partition and offset.
        """
        good = encodeMessage(b"good")
        for bad, reason in (
            (encodeMessage(b"bad")[:-1] + b"?", "checksum is"),
            (b"\xff\xff\xff\xfe" + good, "size field is -2"),
            (b"\0\0\0\1" + good, "size field is 1"),
            (encodeMessage(b"no gzip", codec=GZIP), "not gzip"),
        ):
            self.broker.logs.clear()
            self.broker.log().append(good + bad + good)
            text = self.failure(UnreadableRangeError, 0, self.broker.log().end)
            self.assertIn(f"topic clicks, partition 0-0, offset {len(good)}: {reason}", text)

    def test_errorCode(self) -> None:
        """
        An error code other than "out of range" is an error that names topic, partition and offset.
        """
        self.broker.partitionCount = 0
        self.assertIn(
            "topic clicks, partition 0-0, offset 3: Code 3: the topic has no such partition",
            self.failure(UnreadableRangeError, 3, 9),
        )


class ChangingTests(RangeReaderCase):
    """A log that changes under its reader."""

    def deleteAtFetch(self, number: int, act: Any) -> None:
        """Something happens when the fetch of this number comes."""
        seen = [0]

        def before(request: Any) -> bool:
            seen[0] += isinstance(request, Fetch) and request.sizeMax > 0
            if seen[0] == number:
                seen[0] += 1
                act()
            return True

        self.broker.before = before

    def test_deleted(self) -> None:
        """
        Data that are deleted before they are read are an error that names both offsets; or are left
        out, and what is left comes exactly.
        """
        for flag in (True, False):
            self.broker.logs.clear()
            starts = self.broker.log().append(
                *[encodeSet([b"%d" % number] * 10) for number in range(4)]
            )
            self.deleteAtFetch(2, lambda starts=starts: self.broker.log().deleteBefore(starts[2]))
            end = self.broker.log().end
            if flag:
                text = self.failure(DataLossError, 0, end, fetchSize=110)
                self.assertIn(
                    f"offset {starts[1]}: it was deleted before it was read; the earliest offset"
                    f" left is {starts[2]}",
                    text,
                )
            else:
                self.assertEqual(
                    self.read(0, end, fetchSize=110, failOnDataLoss="false"),
                    [b"0"] * 10 + [b"2"] * 10 + [b"3"] * 10,
                )

    def test_allDeleted(self) -> None:
        """A split all of which is gone gives nothing, when that may be."""
        starts = self.broker.log().append(encodeSet([b"a"]), encodeSet([b"b"]))
        self.broker.log().deleteBefore(starts[1])
        self.assertEqual(self.read(0, starts[1], failOnDataLoss="false"), [])

    def test_emptied(self) -> None:
        """
        A log that ends before the range does was emptied, which is no less an error; or the rest is
        left out.
        """
        self.broker.log().append(encodeSet([b"left"]))
        end = self.broker.log().end
        self.assertIn(
            f"the log ends at {end}, and ended at {end + 50} when the query was planned",
            self.failure(DataLossError, 0, end + 50),
        )
        self.assertEqual(self.read(0, end + 50, failOnDataLoss="false"), [b"left"])
        self.broker.logs.clear()
        self.assertEqual(self.read(5, end, failOnDataLoss="false"), [])

    def test_nothingForAWhile(self) -> None:
        """
        A broker that has the data and gives none is asked again, and is an error when that goes on.
        """
        self.broker.log().append(encodeSet([b"one"]))
        fetch, answers = self.broker.log().fetch, iter([b"", None])
        self.broker.log().fetch = lambda offset, sizeMax: next(answers, fetch(offset, sizeMax))  # type: ignore[method-assign]
        self.assertEqual(self.read(0, 13), [b"one"])
        self.broker.log().fetch = lambda offset, sizeMax: b""  # type: ignore[method-assign]
        self.assertIn(
            "the broker gives nothing, though it has 0 to 13",
            self.failure(BrokerConnectionError, 0, 13),
        )

    def test_halfAnEntry(self) -> None:
        """A broker that always gives less than an entry is an error, after some tries."""
        self.broker.log().append(encodeSet([b"one"]))
        self.broker.log().fetch = lambda offset, sizeMax: encodeMessage(b"one")[:7]  # type: ignore[method-assign]
        self.assertIn(
            "the entry there has 13 bytes, of which the broker gives 7",
            self.failure(BrokerConnectionError, 0, 13),
        )


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
        """
        Batches have ten thousand rows, and the last what is left, wherever fetches and sets end.
        """
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
        self.patch(rangereader, "BATCH_SIZE_MAX", 7_000)
        batches = self.batches(encodeSet([b"x" * 2_000] * 9), fetchSize=4_100)
        self.assertEqual([batch.num_rows for batch in batches], [4, 4, 1])

    def test_wrapperThatOpensLarge(self) -> None:
        """What counts is what the messages take, not what they took on the way."""
        self.patch(rangereader, "BATCH_SIZE_MAX", 50_000)
        batches = self.batches(*[encodeSet([b"x" * 20_000] * 2, GZIP)] * 4)
        self.assertEqual([batch.num_rows for batch in batches], [4, 4])

    def test_cutWithoutCopies(self) -> None:
        """
        A stretch of any number of messages costs in proportion to them: it is cut into batches
        whose payloads stay where they are.
        """
        self.patch(rangereader, "ROW_COUNT", 10)
        builder = ArrowBatchBuilder(self.range(0, 1_000))
        [stretch] = columnBatches(encodeSet([b"%04d" % number for number in range(1_000)]), 0)
        found = [each.column("value") for each in builder.add(stretch)]
        self.assertEqual([len(each) for each in found], [10] * 100)
        self.assertEqual(found[7].to_pylist(), [b"%04d" % number for number in range(70, 80)])
        address = pa.py_buffer(stretch.payloads).address
        self.assertEqual({each.buffers()[2].address for each in found}, {address})

    def test_joined(self) -> None:
        """A batch has the messages of several stretches, and a part of the last one."""
        self.patch(rangereader, "ROW_COUNT", 5)
        builder = ArrowBatchBuilder(self.range(0, 1_000))
        batches: list[pa.RecordBatch] = []
        wanted: list[tuple[bytes, int, int]] = []
        base = 0
        for count in (3, 4, 1, 9):
            entries = [encodeMessage(b"%d" % number) for number in range(count)]
            batches += builder.add(*columnBatches(b"".join(entries), base))
            for number, entry in enumerate(entries):
                wanted.append((b"%d" % number, base, base + len(entry)))
                base += len(entry)
        batches += builder.flush()
        self.assertEqual([batch.num_rows for batch in batches], [5, 5, 5, 2])
        self.assertEqual([row for batch in batches for row in rowsOf(batch)], wanted)

    def test_nothing(self) -> None:
        """An empty range has no batches."""
        self.assertEqual(self.batches(b""), [])
