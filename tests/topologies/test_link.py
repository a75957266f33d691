"""
Links against what they promise, over connections that are cut at random.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import WireError
from pylogbroker.topologies.link import LinkReceiver, LinkSender
from pylogbroker.topologies.messages import (
    TUPLES,
    batchNumber,
    decodeBatch,
    encodeEntry,
)


def entry(number: int, size: int = 0) -> bytes:
    """An entry that says which one it is."""
    return encodeEntry(TUPLES, number, 1, bytes(size))


def tasks(frame: bytes) -> list[int]:
    """Which entries are in a frame."""
    return [each.task for each in decodeBatch(frame[4:])]


class LinkSenderTests(SynchronousTestCase):
    """What is sent, and when."""

    def test_numbers(self) -> None:
        """Batches are numbered from 1; what was pushed in one turn is one batch."""
        sender = LinkSender()
        sender.begin(False, 0)
        self.assertIsNone(sender.take())
        sender.push(entry(7), 1)
        sender.push(entry(8), 1)
        first = sender.take() or b""
        self.assertEqual((batchNumber(first[4:]), tasks(first)), (1, [7, 8]))
        self.assertEqual(first[:4], (len(first) - 4).to_bytes(4, "big"))
        self.assertIsNone(sender.take())
        sender.push(entry(9), 1)
        second = sender.take() or b""
        self.assertEqual((batchNumber(second[4:]), tasks(second)), (2, [9]))
        self.assertEqual((sender.unsentSize, sender.number), (0, 2))
        self.assertEqual(sender.heldSize, len(first) + len(second))

    def test_window(self) -> None:
        """
        A window of bytes is under way, or one batch over it; what waits is gathered to whole
        batches, in order.
        """
        sender = LinkSender(windowSize=100, batchSize=60)
        sender.begin(False, 0)
        for number in range(6):
            sender.push(entry(number, 7), 1)  # 20 bytes
            sender.fold()
        self.assertEqual(tasks(sender.take() or b""), [0, 1, 2])
        self.assertTrue(sender.hasRoom)
        self.assertEqual(tasks(sender.take() or b""), [3, 4, 5])
        sender.push(entry(6, 200), 1)
        self.assertIsNone(sender.take())
        self.assertEqual(sender.unsentSize, 213)
        sender.confirm(2)
        self.assertEqual(tasks(sender.take() or b""), [6])
        self.assertIsNone(sender.take())

    def test_closedAtItsSize(self) -> None:
        """What is pushed in one turn makes batches of a limited size, but one entry is whole."""
        sender = LinkSender(windowSize=10_000, batchSize=60)
        sender.begin(False, 0)
        for number in range(5):
            sender.push(memoryview(entry(number, 7)), 1)
        sender.push(entry(5, 500), 1)
        frames = [tasks(sender.take() or b"") for _ in range(3)]
        self.assertEqual(frames, [[0, 1, 2], [3, 4], [5]])

    def test_sentAgain(self) -> None:
        """The same receiver gets again what it lacks, and no other number for it."""
        sender = LinkSender()
        sender.begin(False, 0)
        for number in range(3):
            sender.push(entry(number), 1)
            sender.take()
        sender.push(entry(3), 1)
        sender.begin(True, 1)
        frames = [sender.take() or b"" for _ in range(3)]
        self.assertEqual([batchNumber(frame[4:]) for frame in frames], [2, 3, 4])
        self.assertEqual([tasks(frame) for frame in frames], [[1], [2], [3]])
        self.assertIsNone(sender.take())

    def test_anotherIncarnation(self) -> None:
        """Another receiver gets only what was never sent."""
        sender = LinkSender()
        sender.begin(False, 0)
        sender.push(entry(0), 5)
        sender.take()
        sender.push(entry(1), 1)
        sender.begin(False, 0)
        frame = sender.take() or b""
        self.assertEqual((batchNumber(frame[4:]), tasks(frame)), (2, [1]))
        self.assertEqual((sender.lostAmount, sender.heldSize), (5, len(frame)))

    def test_clear(self) -> None:
        """All can be given up, and is counted."""
        sender = LinkSender()
        sender.begin(False, 0)
        sender.push(entry(0), 5)
        sender.take()
        sender.push(entry(1), 1)
        sender.fold()
        sender.push(entry(2), 2)
        sender.clear()
        self.assertEqual((sender.lostAmount, sender.heldSize), (8, 0))
        sender.begin(False, 0)
        self.assertIsNone(sender.take())

    def test_noConnection(self) -> None:
        """Nothing is sent before the other end has said what it has."""
        sender = LinkSender()
        sender.push(entry(0), 1)
        self.assertIsNone(sender.take())
        sender.begin(True, 0)
        self.assertIsNotNone(sender.take())
        sender.end()
        self.assertIsNone(sender.take())
        sender.begin(True, 0)
        self.assertIsNotNone(sender.take())

    def test_wrongConfirmation(self) -> None:
        """A number that no batch has is refused."""
        sender = LinkSender()
        sender.begin(False, 0)
        sender.push(entry(0), 1)
        sender.take()
        with self.assertRaisesRegex(WireError, "batch 2 is confirmed; 1 is the last one"):
            sender.confirm(2)
        with self.assertRaises(WireError):
            sender.begin(True, 2)
        sender.confirm(1)
        sender.confirm(1)
        self.assertEqual(sender.heldSize, 0)


class LinkReceiverTests(SynchronousTestCase):
    """What is taken, and confirmed."""

    def test_duplicates(self) -> None:
        """
        A batch that has arrived is not taken again; numbers may begin anywhere, but none may be
        left out.
        """
        receiver = LinkReceiver()
        taken = [receiver.accept(number, 10) for number in (3, 3, 2, 4, 3, 5)]
        self.assertEqual(taken, [True, False, False, True, False, True])
        with self.assertRaisesRegex(WireError, "batch 7 behind batch 5"):
            receiver.accept(7, 10)
        self.assertEqual(receiver.received, 5)

    def test_confirmations(self) -> None:
        """What is settled is confirmed, once, and at once when it is much."""
        receiver = LinkReceiver(confirmSize=20)
        receiver.accept(1, 15)
        receiver.accept(2, 15)
        self.assertIsNone(receiver.takeConfirm())
        receiver.settle(1)
        self.assertFalse(receiver.isConfirmDue)
        receiver.settle(2)
        self.assertTrue(receiver.isConfirmDue)
        self.assertEqual(receiver.takeConfirm(), 2)
        self.assertIsNone(receiver.takeConfirm())
        self.assertFalse(receiver.isConfirmDue)


class LinkTests(SynchronousTestCase):
    """Both ends, over connections that are cut, to incarnations that die."""

    def test_random(self) -> None:
        """
        No entry arrives twice, or out of order; each arrives, but those that were under way to an
        incarnation that has died; the window is kept.
        """
        lost = again = 0
        for seed in range(200):
            random = Random(seed)
            sender = LinkSender(windowSize=300, batchSize=100)
            sender.begin(False, 0)
            receiver = LinkReceiver(confirmSize=100)
            pushed = 0
            handled: list[int] = []
            wire: list[bytes] = []
            for _ in range(300):
                choice = random.random()
                if choice < 0.4:
                    sender.push(entry(pushed, random.choice((1, 50, 200))), 1)
                    pushed += 1
                elif choice < 0.7:
                    frame = sender.take()
                    if frame is not None:
                        wire += [frame] * random.choice((1, 1, 1, 2))
                    self.assertLess(sender.unconfirmedSize, 300 + 313)
                elif choice < 0.9:
                    if wire:
                        frame = wire.pop(0)
                        number = batchNumber(frame[4:])
                        if receiver.accept(number, len(frame)):
                            handled += tasks(frame)
                        else:
                            again += 1
                        if random.random() < 0.7:
                            receiver.settle(number)
                elif choice < 0.95:
                    number = receiver.takeConfirm() or 0
                    sender.confirm(number)
                elif choice < 0.97:
                    sender.fold()
                elif choice < 0.99:
                    wire.clear()
                    sender.begin(True, receiver.received)
                else:
                    wire.clear()
                    receiver = LinkReceiver(confirmSize=100)
                    sender.begin(False, 0)
            sender.begin(True, receiver.received)
            while (frame := sender.take()) is not None:
                if receiver.accept(batchNumber(frame[4:]), len(frame)):
                    handled += tasks(frame)
                receiver.settle(receiver.received)
                sender.confirm(receiver.takeConfirm() or 0)
            self.assertEqual(handled, sorted(set(handled)))
            self.assertGreaterEqual(len(handled) + sender.lostAmount, pushed)
            self.assertEqual(sender.heldSize, 0)
            lost += pushed - len(handled)
        self.assertTrue(lost and again)
