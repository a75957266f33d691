"""
Tests of looking at records of today's protocol.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.console.peek import LIMITS, READ_SIZE_MAX, SHOWN_SIZE_MAX, PeekResult
from pylogbroker.console.recordpeek import (
    HEADER_COUNT_MAX,
    HEADER_SIZE_MAX,
    peekLastRecords,
    peekRecords,
)
from pylogbroker.errors import OffsetOutOfRangeError
from pylogbroker.records.compression import GZIP, ZSTD
from pylogbroker.records.recordbatch import Record, controlBatch, encodeBatch, readHeader
from pylogbroker.types import OffsetBounds


class BatchesInMemory:
    """A partition of batches: a read begins with the batch that has the offset."""

    def __init__(self, *batches: bytes, start: int = 0, segmentBatchCount: int = 100) -> None:
        """@param segmentBatchCount: batches of a segment, at whose end a read ends."""
        self.batches = batches
        self.segmentBatchCount = segmentBatchCount
        last = readHeader(batches[-1]).nextOffset if batches else start
        self.bounds = OffsetBounds(start, last)

    def readBatches(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        assert (topic, partition) == ("t", 1)
        start, end = self.bounds
        if not start <= offset <= end:
            raise OffsetOutOfRangeError(str(offset))
        before = sum(readHeader(each).nextOffset <= offset for each in self.batches)
        end = before + self.segmentBatchCount - before % self.segmentBatchCount
        return succeed(b"".join(self.batches[before:end])[:sizeMax])

    async def recordBounds(self, topic: str, partition: int) -> OffsetBounds:
        return self.bounds


def batch(offset: int, *values: bytes | None, **fields: Any) -> bytes:
    records = [Record(offset + at, 1000 + at, None, value) for at, value in enumerate(values)]
    return encodeBatch(records, baseOffset=offset, **fields)


class RecordPeekTests(SynchronousTestCase):
    """L{peekRecords} and L{peekLastRecords}."""

    def work(self, decode: Callable[[], Any]) -> Deferred[Any]:
        return maybeDeferred(decode)

    def peek(self, source: BatchesInMemory, offset: int, count: int = 20) -> PeekResult:
        found = peekRecords(source, "t", 1, offset, count, self.work)
        return self.successResultOf(Deferred.fromCoroutine(found))

    def last(self, source: BatchesInMemory, count: int = 20) -> PeekResult:
        found = peekLastRecords(source, "t", 1, count, self.work)
        return self.successResultOf(Deferred.fromCoroutine(found))

    def offsets(self, found: PeekResult) -> list[int]:
        return [row["offset"] for row in found.messages]

    def test_row(self) -> None:
        """Offset, time, key, value, headers and codec of a record."""
        record = Record(7, 1234, b"k", b"\0v", (("h", b"x"), ("n", None)))
        source = BatchesInMemory(encodeBatch([record], baseOffset=7, codec=ZSTD), start=7)
        self.assertEqual(
            self.peek(source, 7),
            PeekResult(
                [
                    {
                        "offset": 7,
                        "next": 8,
                        "timestampMs": 1234,
                        "size": 2,
                        "keySize": 1,
                        "codec": "zstd",
                        "key": "aw==",
                        "payload": "AHY=",
                        "headers": [["h", "eA=="], ["n", None]],
                        "headerCount": 2,
                        "control": False,
                        "marker": "",
                    }
                ],
                7,
                8,
                "",
            ),
        )

    def test_absent(self) -> None:
        """A tombstone has no value; a key may be absent."""
        [row] = self.peek(BatchesInMemory(batch(0, None)), 0).messages
        self.assertEqual(
            (row["key"], row["payload"], row["size"], row["codec"]), (None, None, 0, "")
        )

    def test_from(self) -> None:
        """Records of a batch before the offset are left out; the number is limited."""
        source = BatchesInMemory(batch(0, b"a", b"b", b"c"), batch(3, b"d", codec=GZIP))
        for offset, count, wanted, further in (
            (0, 20, [0, 1, 2, 3], 4),
            (1, 2, [1, 2], 3),
            (1, 1, [1], 2),
            (3, 5, [3], 4),
            (4, 5, [], 4),
        ):
            found = self.peek(source, offset, count)
            self.assertEqual((self.offsets(found), found.nextOffset), (wanted, further))
            self.assertEqual(found.problem, "")

    def test_refused(self) -> None:
        """What the broker refuses, fails."""
        found = peekRecords(BatchesInMemory(), "t", 1, 5, 1, self.work)
        self.failureResultOf(Deferred.fromCoroutine(found), OffsetOutOfRangeError)

    def test_last(self) -> None:
        """The last records, from the log start on at most; there may be none."""
        source = BatchesInMemory(batch(5, b"a", b"b", b"c"), batch(8, b"d"), start=5)
        self.assertEqual(self.offsets(self.last(source, 2)), [7, 8])
        self.assertEqual(self.offsets(self.last(source)), [5, 6, 7, 8])
        self.assertEqual(self.last(BatchesInMemory(start=3)), PeekResult([], 3, 3, ""))

    def test_segments(self) -> None:
        """A look goes on behind the end of a segment."""
        source = BatchesInMemory(*(batch(at, b"v") for at in range(9)), segmentBatchCount=2)
        self.assertEqual(self.offsets(self.peek(source, 1)), list(range(1, 9)))
        self.assertEqual(self.offsets(self.last(source, 6)), list(range(3, 9)))

    def test_lastOfLarge(self) -> None:
        """Of large records, as many of the last ones as are read at once."""
        large = bytes(READ_SIZE_MAX // 3)
        source = BatchesInMemory(*(batch(at, large) for at in range(20)))
        found = self.last(source, 16)
        self.assertEqual((self.offsets(found), found.nextOffset), ([18, 19], 20))

    def test_tooLarge(self) -> None:
        """A batch that is larger than what is read is a problem, and no records."""
        found = self.last(BatchesInMemory(batch(0, bytes(READ_SIZE_MAX))))
        self.assertEqual((found.messages, found.nextOffset), ([], 0))
        self.assertIn("larger than", found.problem)

    def test_behindTooLarge(self) -> None:
        """The last records are shown, also behind one that is too large."""
        source = BatchesInMemory(batch(0, bytes(READ_SIZE_MAX)), batch(1, b"a", b"b"))
        self.assertEqual(self.offsets(self.last(source, 4)), [1, 2])

    def test_bombs(self) -> None:
        """All compressed batches of a look together open to a limited size."""
        large = bytes(LIMITS.decompressedSizeMax // 3)
        source = BatchesInMemory(*(batch(at, large, codec=GZIP) for at in range(9)))
        found = self.peek(source, 0)
        self.assertEqual(self.offsets(found), [0, 1])
        self.assertEqual(found.nextOffset, 2)
        self.assertNotEqual(found.problem, "")

    def test_cutToShow(self) -> None:
        """Of keys, values and headers the first bytes are shown, and their sizes."""
        headers = tuple(("h" * 1000, bytes(1000)) for _ in range(HEADER_COUNT_MAX + 1))
        size = SHOWN_SIZE_MAX + 1
        record = Record(0, 0, b"k" * size, b"v" * size, headers)
        [row] = self.peek(BatchesInMemory(encodeBatch([record])), 0).messages
        self.assertEqual((row["keySize"], row["size"]), (size, size))
        for name in ("key", "payload"):
            self.assertEqual(len(base64.b64decode(row[name])), SHOWN_SIZE_MAX)
        self.assertEqual((len(row["headers"]), row["headerCount"]), (HEADER_COUNT_MAX, 21))
        name, value = row["headers"][0]
        self.assertEqual((len(name), len(base64.b64decode(value))), (HEADER_SIZE_MAX,) * 2)

    def test_markers(self) -> None:
        """The end of a transaction is shown as such."""
        markers = [
            controlBatch(isCommit, 5, 0, 0, 9, baseOffset=at)
            for at, isCommit in enumerate((True, False))
        ]
        found = self.peek(BatchesInMemory(*markers), 0).messages
        self.assertEqual(
            [(row["control"], row["marker"]) for row in found], [(True, "COMMIT"), (True, "ABORT")]
        )

    def test_damaged(self) -> None:
        """A damaged batch ends the look, with a reason; what is before it is shown."""
        bad = bytearray(batch(1, b"b"))
        bad[-1] ^= 1
        found = self.peek(BatchesInMemory(batch(0, b"a"), bytes(bad)), 0)
        self.assertEqual((self.offsets(found), found.nextOffset), ([0], 1))
        self.assertIn("checksum", found.problem)

    @given(st.integers(0, 400))
    def test_cutAnywhere(self, size: int) -> None:
        """A read that ends inside of a batch shows those before it."""
        batches = [batch(at, b"x" * 40) for at in range(4)]
        data = b"".join(batches)[:size]

        class Cut(BatchesInMemory):
            def readBatches(
                self, topic: str, partition: int, offset: int, sizeMax: int
            ) -> Deferred[bytes]:
                return succeed(data if not offset else b"")

        found = self.peek(Cut(*batches), 0)
        self.assertEqual(self.offsets(found), list(range(min(4, size // len(batches[0])))))
