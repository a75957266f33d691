"""
Frames between the processes of a topology: what cannot be read is refused, and says why. Mutations
of all of them are in C{tests.fuzz.test_decoders}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.topologies.messages import (
    ROOTS,
    TUPLES,
    BatchEntry,
    Hello,
    batchNumber,
    decodeBatch,
    decodeControl,
    decodeNumbers,
    encodeBatch,
    encodeControl,
    encodeEntry,
    encodeNumbers,
    entryPlaces,
)


class ControlTests(SynchronousTestCase):
    """Control messages."""

    def test_comesBack(self) -> None:
        """A message comes back from its frame."""
        hello = Hello("words", "instance", 7, 1 << 62, attempt=3)
        frame = encodeControl(hello)
        self.assertEqual(frame[:5], (len(frame) - 4).to_bytes(4, "big") + b"\0")
        self.assertEqual(decodeControl(frame[4:]), hello)

    def test_refused(self) -> None:
        """What is no message is refused."""
        for body in (b"\0", b"\0\x81\xa4type\xa4Nope", b"\0\xc1", b"\0\x81\xa4type\xa5Hello"):
            with self.assertRaisesRegex(WireError, "a control message cannot be decoded: "):
                decodeControl(body)


class BatchTests(SynchronousTestCase):
    """Batches and their entries."""

    def test_comesBack(self) -> None:
        """Entries come back from a frame, with their places in it."""
        entries = [encodeEntry(TUPLES, 7, 2, b"abc"), encodeEntry(ROOTS, 8, 1, b"")]
        frame = encodeBatch(1 << 40, entries)
        body = frame[4:]
        self.assertEqual(int.from_bytes(frame[:4], "big"), len(body))
        self.assertEqual(batchNumber(body), 1 << 40)
        self.assertEqual(
            decodeBatch(body), [BatchEntry(TUPLES, 7, 2, b"abc"), BatchEntry(ROOTS, 8, 1, b"")]
        )
        self.assertEqual([body[at.start : at.end] for at in entryPlaces(body)], entries)

    def test_refused(self) -> None:
        """A batch that is cut off, or has an unknown kind, is refused, and says where."""
        body = encodeBatch(1, [encodeEntry(TUPLES, 7, 2, b"abc")])[4:]
        for cut, reason in (
            (body[:-1], "an entry of 3 bytes at byte 9 has only 2"),
            (body[:15], "a batch ends within an entry's head, at byte 9"),
            (body[:9] + b"\x06" + body[10:], "an entry at byte 9 is of the unknown kind 6"),
        ):
            with self.assertRaisesRegex(WireError, reason):
                decodeBatch(cut)
        with self.assertRaisesRegex(WireError, "a batch of 8 bytes has no number"):
            batchNumber(body[:8])

    def test_numbers(self) -> None:
        """Numbers of 64 bits come back; parts of them, or of pairs, are refused."""
        numbers = (0, 1, (1 << 64) - 1)
        self.assertEqual(decodeNumbers(encodeNumbers(numbers)), numbers)
        with self.assertRaisesRegex(WireError, "numbers of 8 bytes, 1 together, in 23 bytes"):
            decodeNumbers(encodeNumbers(numbers)[:-1])
        with self.assertRaisesRegex(WireError, "numbers of 8 bytes, 2 together, in 24 bytes"):
            decodeNumbers(encodeNumbers(numbers), 2)
