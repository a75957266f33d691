"""
Tests of framing.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import FrameSizeError
from pylogbroker.protocol.framing import PIECE_COUNT_MIN, PIECE_SIZE_MIN, FrameDecoder
from tests.fuzz.promises import cut

SIZE_MAX = 100 << 20


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def taken(decoder: FrameDecoder) -> list[bytes]:
    """All frames that are whole."""
    frames = []
    while (frame := decoder.take()) is not None:
        frames.append(frame)
    return frames


def allocated(steps: Iterable[Callable[[], object]]) -> int:
    """
    Bytes that were allocated, and so written or copied, by all steps together: of each step, by how
    much memory in use rose above what it was before.

    Time says nothing on a busy machine; this says the same on each.
    """
    total = 0
    tracemalloc.start()
    try:
        for step in steps:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            step()
            _, peak = tracemalloc.get_traced_memory()
            total += peak - before
    finally:
        tracemalloc.stop()
    return total


class FrameTests(SynchronousTestCase):
    """Bytes in, frames out (spec-0.7 wire-protocol §2)."""

    def test_oneFrame(self) -> None:
        """A frame comes without its size field, once."""
        decoder = FrameDecoder(SIZE_MAX)
        decoder.feed(framed(b"hello"))
        self.assertEqual([decoder.take(), decoder.take()], [b"hello", None])
        self.assertEqual(decoder.heldSize, 0)

    def test_severalAtOnce(self) -> None:
        """Frames that come together are taken one by one, in order; what is not taken stays."""
        decoder = FrameDecoder(SIZE_MAX)
        decoder.feed(framed(b"a") + framed(b"bc") + framed(b"def")[:5])
        self.assertEqual(decoder.take(), b"a")
        self.assertEqual(decoder.heldSize, 11)
        self.assertEqual([decoder.take(), decoder.take()], [b"bc", None])
        decoder.feed(b"ef" + framed(b"g"))
        self.assertEqual(taken(decoder), [b"def", b"g"])

    def test_nothing(self) -> None:
        """
        An empty decoder has no frame, and being fed nothing changes that as little as it changes an
        unfinished frame.
        """
        decoder = FrameDecoder(SIZE_MAX)
        self.assertIs(decoder.take(), None)
        decoder.feed(b"")
        self.assertIs(decoder.take(), None)
        decoder.feed(framed(b"hello")[:6])
        decoder.feed(b"")
        self.assertIs(decoder.take(), None)
        decoder.feed(b"llo")
        self.assertEqual(taken(decoder), [b"hello"])

    @given(
        st.lists(st.binary(min_size=1, max_size=50), max_size=6),
        st.lists(st.integers(0, 300)),
        st.booleans(),
    )
    def test_cutAnywhere(self, bodies: list[bytes], positions: list[int], patient: bool) -> None:
        """
        However a stream is cut, and whether frames are taken as they come or at the end, the frames
        are the same.
        """
        decoder = FrameDecoder(SIZE_MAX)
        found = []
        for piece in cut(b"".join(map(framed, bodies)), positions):
            decoder.feed(piece)
            if not patient:
                found += taken(decoder)
        self.assertEqual(found + taken(decoder), bodies)
        self.assertEqual(decoder.heldSize, 0)

    def test_byteByByte(self) -> None:
        """A stream that comes byte by byte gives each frame with its last byte."""
        decoder = FrameDecoder(SIZE_MAX)
        stream = framed(b"hello") + framed(b"there")
        found = []
        for at in range(len(stream)):
            decoder.feed(stream[at : at + 1])
            found.append(decoder.take())
        self.assertEqual(
            [(at, frame) for at, frame in enumerate(found) if frame is not None],
            [(8, b"hello"), (17, b"there")],
        )


class SizeTests(SynchronousTestCase):
    """Sizes that are accepted, and sizes that are not."""

    def test_limit(self) -> None:
        """
        A size equal to the limit is accepted, one more is not; 1 is accepted, 0 and less are not.
        """
        decoder = FrameDecoder(5)
        decoder.feed(framed(b"x") + framed(b"12345"))
        self.assertEqual(taken(decoder), [b"x", b"12345"])
        for size in (6, 2**31 - 1, 0, -1, -(2**31)):
            decoder = FrameDecoder(5)
            decoder.feed(struct.pack(">i", size))
            self.assertIn(
                f"frame of {size} bytes", str(self.assertRaises(FrameSizeError, decoder.take))
            )

    def test_raisedAgain(self) -> None:
        """
        A bad size is raised again whenever the decoder is asked again, also when more has come.
        """
        decoder = FrameDecoder(5)
        decoder.feed(framed(b"good") + bytes(4))
        self.assertEqual(decoder.take(), b"good")
        for _ in range(3):
            self.assertRaises(FrameSizeError, decoder.take)
            decoder.feed(framed(b"more"))

    def test_refusedBeforeAnythingIsAllocated(self) -> None:
        """
        The four bytes of a size are all that is there when it is refused; 100 MB that are accepted
        allocate nothing until they come.
        """
        for size, limit in ((SIZE_MAX + 1, SIZE_MAX), (SIZE_MAX, SIZE_MAX), (2**31 - 1, 2**31 - 1)):
            decoder = FrameDecoder(limit)

            def attempt(decoder: FrameDecoder = decoder, size: int = size) -> None:
                decoder.feed(struct.pack(">i", size))
                try:
                    decoder.take()
                except FrameSizeError:
                    pass

            self.assertLess(allocated([attempt]), 4096)


class HeldTests(SynchronousTestCase):
    """What a connection asks about the frame that is not whole."""

    def look(self, decoder: FrameDecoder) -> tuple[int, int, int]:
        missing = max(decoder.frameSize - decoder.heldSize, 0)
        return decoder.heldSize, decoder.frameSize, missing

    def test_figures(self) -> None:
        """
        Bytes held, size of the unfinished frame with its size field, bytes missing: known once the
        size field was seen, 0 between frames.
        """
        decoder = FrameDecoder(SIZE_MAX)
        self.assertEqual(self.look(decoder), (0, 0, 0))
        stream = framed(b"hello") + framed(b"there")
        seen = []
        for piece in (stream[:3], stream[3:4], stream[4:8], stream[8:15], stream[15:]):
            decoder.feed(piece)
            taken(decoder)
            seen.append(self.look(decoder))
        self.assertEqual(seen, [(3, 0, 0), (4, 9, 5), (8, 9, 1), (6, 9, 3), (0, 0, 0)])

    def test_wholeButNotTaken(self) -> None:
        """
        Of a frame that is whole and was not taken, nothing is missing, though more than it has
        come.
        """
        decoder = FrameDecoder(SIZE_MAX)
        decoder.feed(framed(b"hello")[:6])
        self.assertIs(decoder.take(), None)
        decoder.feed(b"llo" + framed(b"there"))
        self.assertEqual(self.look(decoder), (18, 9, 0))
        self.assertEqual(taken(decoder), [b"hello", b"there"])
        self.assertEqual(self.look(decoder), (0, 0, 0))


class CostTests(SynchronousTestCase):
    """
    The cost of a frame is linear in its size, in bytes copied and in bytes kept, however it is cut
    up.
    """

    def costOf(self, size: int, pieceSize: int, patient: bool = False) -> int:
        """Bytes allocated while a frame of C{size} comes in pieces and is taken out."""
        decoder = FrameDecoder(SIZE_MAX)
        pieces = cut(framed(bytes(size)), range(0, size + 4, pieceSize))
        found: list[bytes] = []

        def step(piece: bytes) -> None:
            decoder.feed(piece)
            if not patient:
                found.extend(taken(decoder))

        def last() -> None:
            found.extend(taken(decoder))

        cost = allocated([*(lambda piece=piece: step(piece) for piece in pieces), last])
        self.assertEqual([len(frame) for frame in found], [size])
        return cost

    def test_largeFrame(self) -> None:
        """
        8 MiB in pieces of 64 KiB are copied once, into the frame; twice if they were all there
        before they are looked at: into one buffer and out of it. Not once for each of 128 pieces.
        """
        size = 8 << 20
        self.assertLess(self.costOf(size, 64 << 10), 1.1 * size)
        self.assertLess(self.costOf(size, 64 << 10, True), 2.1 * size)

    def test_fourTimesTheSizeFourTimesTheCost(self) -> None:
        """
        In pieces of every size, a frame four times as large costs at most about four times as much.
        """
        for pieceSize in (3, 100, 1460):
            small, large = self.costOf(50_000, pieceSize), self.costOf(200_000, pieceSize)
            self.assertLess(large, 5 * small, pieceSize)

    def test_nobodyTakes(self) -> None:
        """
        Bytes that nobody takes meanwhile, as when a connection is busy, are joined once, not at
        each feed.
        """
        size = 1 << 20
        self.assertLess(self.costOf(size, 4096, patient=True), 2.2 * size)

    def test_wholeFramesThatNobodyTakes(self) -> None:
        """The same for many whole small frames."""
        decoder = FrameDecoder(SIZE_MAX)
        piece = framed(bytes(996)) * 4
        cost = allocated(
            [
                *(lambda: decoder.feed(piece) for _ in range(256)),
                lambda: self.assertEqual(len(taken(decoder)), 1024),
            ]
        )
        self.assertLess(cost, 4 * 256 * len(piece))

    def test_tinyPiecesAreNotKept(self) -> None:
        """
        Half a large frame in pieces of two bytes holds a little more than its bytes, not an object
        of forty bytes for each two.
        """
        decoder = FrameDecoder(SIZE_MAX)
        tracemalloc.start()
        try:
            decoder.feed(struct.pack(">i", 1 << 20))
            decoder.take()
            for number in range(1 << 16):
                decoder.feed(number.to_bytes(2, "big"))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertEqual(decoder.heldSize, 4 + (2 << 16))
        pieceCountMax = PIECE_COUNT_MIN + (2 << 16) // PIECE_SIZE_MIN
        self.assertLess(held, (2 << 16) + 64 * pieceCountMax)

    def test_takenFramesAreLetGo(self) -> None:
        """A decoder whose frames were all taken holds nothing of them."""
        decoder = FrameDecoder(SIZE_MAX)
        tracemalloc.start()
        try:
            decoder.feed(framed(bytes(1 << 20)))
            self.assertEqual(len(taken(decoder)), 1)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        self.assertLess(held, 4096)

    def test_takenFramesAreLetGoBeforeTheirNeighbours(self) -> None:
        """
        A frame of 1 MiB that was taken is let go, though the beginning of the next one has come
        behind it; and that one is read as ever.
        """
        stream = framed(bytes(1 << 20)) + framed(b"next") + framed(b"last")
        for size in range(len(stream) - 15, len(stream) + 1):
            decoder = FrameDecoder(SIZE_MAX)
            tracemalloc.start()
            try:
                frames: bytes | None = None
                piece = b""
                for piece in cut(stream[:size], range(0, size, 64 << 10)):
                    decoder.feed(piece)
                    frames = decoder.take()
                assert frames is not None
                self.assertEqual(len(frames), 1 << 20)
                del frames, piece
                held, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            self.assertLess(held, 4096)
            decoder.feed(stream[size:])
            self.assertEqual(taken(decoder), [b"next", b"last"])

    def test_buffersAreNotCutForLittle(self) -> None:
        """
        Many small frames that come at once are not copied to the front each time one is taken.
        """
        decoder = FrameDecoder(SIZE_MAX)
        stream = framed(bytes(996)) * 1000
        cost = allocated([lambda: decoder.feed(stream), *(decoder.take for _ in range(1000))])
        self.assertEqual(decoder.heldSize, 0)
        self.assertLess(cost, 4 * len(stream))
