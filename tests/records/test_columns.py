"""
Tests of message sets as columns: held against the other readings.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import FormatError, InvalidChecksumError, InvalidMessageSizeError
from pylogbroker.records.columns import ColumnBatch, columnBatches, completeEntriesSize
from pylogbroker.records.compression import GZIP, NONE, SNAPPY
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet, wrapCompressed

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


def columns(data: bytes, base: int) -> tuple[list[tuple[bytes, int]], str]:
    """Payloads with next offsets, and what was wrong at the end."""
    found: list[tuple[bytes, int]] = []
    try:
        for stretch in columnBatches(data, base):
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
            list(columnBatches(plain + wrapper, 100)),
            [
                ColumnBatch([b"a", b"bc"], [100, 111], [111, 123], 123),
                ColumnBatch([b"x", b"y", b"z"], [start] * 3, [start, start, end], end),
            ],
        )

    def test_emptyWrapper(self) -> None:
        """A wrapper around nothing gives no messages, and leads on."""
        wrapper = encodeMessage(b"\0", codec=SNAPPY)
        self.assertEqual(
            list(columnBatches(wrapper, 7)), [ColumnBatch([], [], [], 7 + len(wrapper))]
        )

    def test_badChecksum(self) -> None:
        """What is before a bad entry is given out before the error, which says where it is."""
        good, bad = encodeMessage(b"good"), bytearray(encodeMessage(b"bad"))
        bad[-1] ^= 1
        found = columnBatches(good + bytes(bad), 0)
        self.assertEqual(next(found).payloads, [b"good"])
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
