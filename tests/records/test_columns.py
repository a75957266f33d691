"""
Tests of message sets as columns: held against the other readings.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    FormatError,
    InvalidChecksumError,
    InvalidMessageSizeError,
    InvalidRecordError,
)
from pylogbroker.interfaces import BatchHeader
from pylogbroker.records import columns as columns_
from pylogbroker.records.columns import (
    ColumnBatch,
    RecordColumns,
    columnBatches,
    completeEntriesSize,
    recordColumns,
)
from pylogbroker.records.compression import GZIP, NONE, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet, wrapCompressed
from pylogbroker.records.recordbatch import Record, encodeBatch, readHeader

PIECES = st.lists(
    st.one_of(
        st.builds(
            encodeSet,
            st.lists(st.binary(max_size=30), max_size=5),
            st.sampled_from((NONE, GZIP, SNAPPY)),
            st.sampled_from((0, 1)),
        ),
        st.builds(
            lambda payloads: wrapCompressed(GZIP, encodeSet(payloads, SNAPPY)),
            st.lists(st.binary(max_size=30), max_size=3),
        ),
        st.just(encodeMessage(b"")),
        st.just(encodeMessage(b"", magic=0)),
    ),
    max_size=5,
)


class Rows(NamedTuple):
    """What a L{ColumnBatch} holds, as values."""

    payloads: list[bytes]
    offsets: list[int]
    nextOffsets: list[int]
    behind: int


def rowsOf(batch: ColumnBatch) -> Rows:
    """Its buffers, decoded."""
    edges = array("i", batch.payloadOffsets)
    return Rows(
        [batch.payloads[start:end] for start, end in pairwise(edges)],
        list(array("q", batch.offsets)),
        list(array("q", batch.nextOffsets)),
        batch.behind,
    )


def columns(data: bytes, base: int) -> tuple[list[tuple[bytes, int]], str]:
    """Payloads with next offsets, and what was wrong at the end."""
    found: list[tuple[bytes, int]] = []
    try:
        for stretch in map(rowsOf, columnBatches(data, base)):
            found += zip(stretch.payloads, stretch.nextOffsets, strict=True)
    except FormatError as error:
        return found, repr(error)
    return found, ""


def messages(data: bytes, base: int) -> tuple[list[tuple[bytes, int]], str]:
    """The same, as L{MessageSet} reads it."""
    found: list[tuple[bytes, int]] = []
    try:
        found += ((message.payload, offset) for message, offset in MessageSet(data, base))
    except FormatError as error:
        return found, repr(error)
    return found, ""


class StretchTests(SynchronousTestCase):
    """Reading columns."""

    @given(
        PIECES,
        st.integers(0, 2**62),
        st.integers(0, 40),
        st.none() | st.tuples(st.integers(0, 200), st.integers(1, 255)),
    )
    def test_likeMessageSet(
        self, pieces: list[bytes], base: int, cut: int, flip: tuple[int, int] | None
    ) -> None:
        """
        The same payloads, next offsets and errors as from L{MessageSet}, for sets that are whole,
        cut or broken.
        """
        data = bytearray(b"".join(pieces))
        if cut:
            del data[-cut:]
        if flip is not None and flip[0] < len(data):
            data[flip[0]] ^= flip[1]
        rows, text = columns(bytes(data), base)
        wanted, wantedText = messages(bytes(data), base)
        self.assertEqual(text, wantedText)
        # A broken wrapper is opened whole before any of it is given out.
        self.assertEqual(rows, wanted[: len(rows)])
        if not text:
            self.assertEqual(rows, wanted)

    def test_offsets(self) -> None:
        """
        Plain entries have their own offsets; those inside a wrapper share its, and all but the last
        lead back to it.
        """
        plain, wrapper = encodeSet([b"a", b"bc"]), encodeSet([b"x", b"y", b"z"], GZIP)
        start, end = 100 + len(plain), 100 + len(plain) + len(wrapper)
        self.assertEqual(
            list(map(rowsOf, columnBatches(plain + wrapper, 100))),
            [
                Rows([b"a", b"bc"], [100, 111], [111, 123], 123),
                Rows([b"x", b"y", b"z"], [start] * 3, [start, start, end], end),
            ],
        )

    def test_emptyWrapper(self) -> None:
        """A wrapper around nothing gives no messages, and leads on."""
        wrapper = encodeMessage(b"\0", codec=SNAPPY)
        self.assertEqual(
            list(map(rowsOf, columnBatches(wrapper, 7))), [Rows([], [], [], 7 + len(wrapper))]
        )

    def test_badChecksum(self) -> None:
        """What is before a bad entry is given out before the error, which says where it is."""
        good, bad = encodeMessage(b"good"), bytearray(encodeMessage(b"bad"))
        bad[-1] ^= 1
        found = columnBatches(good + bytes(bad), 0)
        self.assertEqual(rowsOf(next(found)).payloads, [b"good"])
        self.assertEqual(self.assertRaises(InvalidChecksumError, next, found).position, len(good))

    def test_cutFirst(self) -> None:
        """
        A first entry that is not whole is an error, as everywhere; a later one is left for the next
        fetch.
        """
        entry = encodeMessage(b"payload")
        self.assertRaises(InvalidMessageSizeError, list, columnBatches(entry[:-1], 0))
        self.assertEqual(
            [stretch.behind for stretch in columnBatches(entry + entry[:-1], 0)], [len(entry)]
        )


class WholeSizeTests(SynchronousTestCase):
    """Stepping by size fields."""

    @given(PIECES, st.integers(0, 40))
    def test_likeShallow(self, pieces: list[bytes], cut: int) -> None:
        """For good sets, cut or not, it is where the shallow reading ends."""
        data = b"".join(pieces)
        data = data[: max(len(data) - cut, 0)]
        offset = 0
        try:
            for _message, offset in MessageSet(data).shallow():
                pass
        except InvalidMessageSizeError:
            pass  # not even the first is whole
        self.assertEqual(completeEntriesSize(data), offset)

    def test_impossibleSizes(self) -> None:
        """It stops at a size that is negative, or too small for any entry."""
        entry = encodeMessage(b"payload")
        for size in (b"\xff\xff\xff\xff", b"\0\0\0\x04"):
            self.assertEqual(completeEntriesSize(entry + size + entry), len(entry))


HEADERS = pa.struct([("key", pa.string()), ("value", pa.binary())])


def arrowRows(columns: RecordColumns) -> list[tuple]:
    """What pyarrow reads in the buffers."""

    def array(kind: pa.DataType, count: int, *parts: bytes | None) -> pa.Array:
        buffers = [None if part is None else pa.py_buffer(part) for part in parts]
        return pa.Array.from_buffers(kind, count, buffers)

    count, headerCount = columns.rowCount, columns.headerCount
    names = array(pa.string(), headerCount, None, columns.headerNameOffsets, columns.headerNames)
    contents = array(
        pa.binary(),
        headerCount,
        columns.headerValueValidity,
        columns.headerValueOffsets,
        columns.headerValues,
    )
    headers = pa.Array.from_buffers(
        pa.list_(HEADERS),
        count,
        [None, pa.py_buffer(columns.headerOffsets)],
        children=[pa.StructArray.from_arrays([names, contents], fields=list(HEADERS))],
    )
    found = [
        array(pa.int64(), count, None, columns.offsets),
        array(pa.int64(), count, None, columns.timestamps),
        array(pa.int32(), count, None, columns.timestampTypes),
        array(pa.binary(), count, columns.keyValidity, columns.keyOffsets, columns.keys),
        array(pa.binary(), count, columns.valueValidity, columns.valueOffsets, columns.values),
        headers,
    ]
    for each in found:
        each.validate(full=True)
    return list(zip(*(each.to_pylist() for each in found), strict=True))


class RecordColumnsTests(SynchronousTestCase):
    """L{recordColumns}."""

    def batches(self) -> list[tuple[bytes, int, BatchHeader]]:
        records = [
            Record(10, 1_000, b"k", b"value", (("a", b"1"), ("\u00e9", None))),
            Record(11, 1_001, None, b""),
            Record(14, 999, b"", None, (("", b""),)),
        ]
        plain = encodeBatch(records, baseOffset=10)
        timed = encodeBatch(
            [Record(15, 5, None, b"v")], baseOffset=15, codec=GZIP, appendTimeMs=7_000
        )
        data = plain + timed
        return [(data, at, readHeader(data, at)) for at in (0, len(plain))]

    ROWS = [
        (10, 1_000, 0, b"k", b"value", [{"key": "a", "value": b"1"}, {"key": "é", "value": None}]),
        (11, 1_001, 0, None, b"", []),
        (14, 999, 0, b"", None, [{"key": "", "value": b""}]),
        (15, 7_000, 1, None, b"v", []),
    ]

    def test_rows(self) -> None:
        """pyarrow finds the records in the buffers, with tombstones, headers and both times."""
        (columns,) = recordColumns(self.batches())
        self.assertEqual(arrowRows(columns), self.ROWS)

    def test_limits(self) -> None:
        """Offsets outside are left out; columns have a limit of rows, and one of bytes."""
        (columns,) = recordColumns(self.batches(), 11, 15)
        self.assertEqual(arrowRows(columns), self.ROWS[1:3])
        for limits, counts in (((2, 100), [2, 2]), ((100, 1), [1, 3])):
            found = list(recordColumns(self.batches(), 0, 100, *limits))
            self.assertEqual([each.rowCount for each in found], counts)
            self.assertEqual([row for each in found for row in arrowRows(each)], self.ROWS)

    def test_nothing(self) -> None:
        """Without records there are no columns."""
        self.assertEqual(list(recordColumns([])), [])
        self.assertEqual(list(recordColumns(self.batches(), 100)), [])

    def test_damaged(self) -> None:
        """The records before a fault come first."""
        first, _second = self.batches()
        data = first[0][: first[2].size] + encodeBatch([Record(20, 0, None, b"x" * 40)])
        data = data[:-10] + b"\xff" * 10
        header = readHeader(data, first[2].size)
        columns = recordColumns([(data, 0, first[2]), (data, first[2].size, header)])
        self.assertEqual(arrowRows(next(columns)), self.ROWS[:3])
        self.assertRaises(InvalidRecordError, next, columns)

    def test_largeNumbers(self) -> None:
        """An offset of more than 64 bits is an error: no column can hold it."""
        data = encodeBatch([Record(1, 0, None, None)])
        header = readHeader(data)._replace(baseOffset=(1 << 63) - 1)
        columns = recordColumns([(data, 0, header)])
        self.assertRaises(InvalidRecordError, next, columns)

    def test_stops(self) -> None:
        """
        Where an encoder stops at a record that can be read, the records behind it are not left out
        in silence.
        """

        class Stopping:
            count = 0

            def add(self, body: bytes, at: int, left: int, *_more: object) -> tuple[int, int, bool]:
                return at, 0, False

        data = encodeBatch([Record(1, 0, None, b"x")])
        self.patch(columns_, "native", SimpleNamespace(ColumnsEncoder=Stopping))
        found = recordColumns([(data, 0, readHeader(data))])
        error = self.assertRaises(InvalidRecordError, list, found)
        self.assertIn("does not fit in columns", str(error))

    def test_malformedNames(self) -> None:
        """Names that are no UTF-8 are mended as in Java: Arrow's text is always valid."""
        data = bytearray(encodeBatch([Record(0, 0, None, None, (("ab", b""),))]))
        at = data.index(b"ab")
        data[at] = 0xFF
        (columns,) = recordColumns([(bytes(data), 0, readHeader(bytes(data)))])
        self.assertEqual(arrowRows(columns)[0][-1], [{"key": "\ufffdb", "value": b""}])
