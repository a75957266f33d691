"""Tests for L{pylogbroker.cli.streams}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.streams import LineDecoder


class LineDecoderTests(SynchronousTestCase):
    """Bytes become lines."""

    def decode(self, *pieces: bytes, sizeMax: int = 100) -> tuple[list[bytes], LineDecoder]:
        decoder = LineDecoder(sizeMax)
        lines = [line for piece in pieces for line in decoder.feed(piece)]
        return lines + decoder.finish(), decoder

    def test_lines(self) -> None:
        """A line feed ends a line, and nothing else does; empty lines are lines."""
        self.assertEqual(
            self.decode(b"a\n\nb\r\nc\x00\xff\x0b\x85\n")[0],
            [b"a", b"", b"b\r", b"c\x00\xff\x0b\x85"],
        )

    def test_lastLine(self) -> None:
        """A last line without its end is a line; that is remembered."""
        for data, lines, isEnded in (
            (b"", [], True),
            (b"\n", [b""], True),
            (b"a", [b"a"], False),
            (b"a\n", [b"a"], True),
            (b"a\n\n", [b"a", b""], True),
        ):
            found, decoder = self.decode(data)
            self.assertEqual((found, decoder.isEnded, decoder.count), (lines, isEnded, len(lines)))

    @given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"x", b"\n")), max_size=8))
    def test_pieces(self, pieces: list[bytes]) -> None:
        """However the bytes are cut, the lines are the same, and make the bytes again."""
        lines, decoder = self.decode(*pieces)
        whole = b"".join(pieces)
        self.assertEqual(lines, self.decode(whole)[0])
        self.assertEqual(b"\n".join(lines) + (b"\n" if lines and decoder.isEnded else b""), whole)

    def test_limit(self) -> None:
        """A line may have as many bytes as the limit says."""
        self.assertEqual(self.decode(b"12345\n12345", sizeMax=5)[0], [b"12345", b"12345"])

    def test_overlong(self) -> None:
        """A line with more is told by its number; those before it are given, and none after it."""
        for pieces in (
            (b"1\n123456\n2\n",),
            (b"1\n12", b"3456\n2\n"),
            (b"1\n123456",),
            (b"1\n", b"123456", b"7\n2\n"),
        ):
            lines, decoder = self.decode(*pieces, sizeMax=5)
            self.assertEqual((lines, decoder.overlong, decoder.count), ([b"1"], 2, 1))

    def test_overlongIsNotGathered(self) -> None:
        """A line without an end is given up as soon as it is over the limit."""
        decoder = LineDecoder(5)
        decoder.feed(b"123456")
        self.assertEqual(decoder.overlong, 1)
        self.assertEqual((decoder.feed(b"\n1\n"), decoder.finish(), decoder.overlong), ([], [], 1))
