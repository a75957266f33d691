"""
Tests for L{pylogbroker.mirror.offsettracker}.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.types import BrokerPartition, PartitionId

ONE = PartitionId("t", BrokerPartition(0, 0))
TWO = PartitionId("t", BrokerPartition(0, 1))


class ForgetTests(SynchronousTestCase):
    """What is behind a batch that is not taken."""

    def test_handedOnAgain(self) -> None:
        """
        It is as if it had not been handed on; who waits for it waits for what is left, and may give
        up.
        """
        ledger = OffsetTracker()
        ledger.begin(ONE, 100)
        first, second, third = (ledger.register(ONE, offset) for offset in (200, 300, 400))
        waiting, leaving = ledger.whenConfirmed([ONE]), ledger.whenConfirmed([ONE])
        ledger.confirm(third)
        self.assertTrue(ledger.discardAfter(ONE, first))
        self.assertEqual(
            (ledger.handed(ONE), ledger.readBoundary(ONE, 400), ledger.committableOffset(ONE, 400)),
            (200, None, 100),
        )
        ledger.confirm(second)
        self.assertEqual(ledger.committableOffset(ONE, 400), 100)
        leaving.cancel()
        self.failureResultOf(leaving, CancelledError)
        self.assertNoResult(waiting)
        ledger.confirm(first)
        self.successResultOf(waiting)
        self.assertEqual(ledger.committableOffset(ONE, 200), 200)

    def test_notOurs(self) -> None:
        """A partition that was taken over since is not touched."""
        ledger = OffsetTracker()
        batch = ledger.register(ONE, 200)
        ledger.reset(ONE)
        self.assertFalse(ledger.discardAfter(ONE, batch))
        self.assertIs(ledger.handed(ONE), None)


class GivenUpTests(SynchronousTestCase):
    """A partition that goes, and comes back."""

    def test_back(self) -> None:
        """It goes on behind what was registered, and commits as if it had not gone."""
        for stored in (None, 100, 300):
            tracker = OffsetTracker()
            tracker.begin(ONE, 100)
            first, second = (tracker.register(ONE, offset) for offset in (200, 300))
            tracker.giveUp(ONE)
            self.assertIs(tracker.handed(ONE), None)
            tracker.confirm(first)
            self.assertEqual(tracker.takeBack(ONE, stored), 300)
            self.assertEqual(tracker.committableOffset(ONE, 400), 200)
            tracker.confirm(second)
            self.assertEqual(tracker.committableOffset(ONE, 400), 400)

    def test_another(self) -> None:
        """
        One that another mirror has moved meanwhile, or of which nothing was registered, begins at
        its stored offset.
        """
        tracker = OffsetTracker()
        tracker.begin(ONE, 100)
        tracker.register(ONE, 200)
        tracker.giveUp(ONE)
        self.assertEqual(tracker.takeBack(ONE, 900), 900)
        self.assertEqual((tracker.confirmed(ONE), tracker.handed(ONE)), (900, None))
        tracker.giveUp(ONE)
        self.assertEqual(tracker.takeBack(ONE, 950), 950)
        tracker.giveUp(TWO)
        self.assertEqual((tracker.takeBack(TWO, 7), tracker.takeBack(TWO, None)), (7, None))


class CommittableTests(SynchronousTestCase):
    """What may be committed."""

    def setUp(self) -> None:
        self.ledger = OffsetTracker()
        self.ledger.begin(ONE, 100)

    def test_nothingUnderWay(self) -> None:
        """
        Where the consumer is, when nothing is under way; of a partition that nobody knows, too.
        """
        self.assertEqual(self.ledger.committableOffset(ONE, 100), 100)
        self.assertEqual(self.ledger.committableOffset(TWO, 7), 7)
        self.ledger.confirm(self.ledger.register(ONE, 300))
        self.assertEqual(self.ledger.committableOffset(ONE, 300), 300)

    def test_inOrder(self) -> None:
        """
        Up to the first batch that is not confirmed; from where it began, if that is the first of
        all.
        """
        inFlight = [self.ledger.register(ONE, offset) for offset in (200, 300, 400)]
        found = [self.ledger.committableOffset(ONE, 400)]
        for index in (1, 0, 2):
            self.ledger.confirm(inFlight[index])
            found.append(self.ledger.committableOffset(ONE, 400))
        self.assertEqual(found, [100, 100, 300, 400])

    def test_unknownStart(self) -> None:
        """Nothing, where it is not known from where was read, until something is confirmed."""
        self.ledger.begin(ONE, None)
        first, _second = self.ledger.register(ONE, 200), self.ledger.register(ONE, 300)
        self.assertIs(self.ledger.committableOffset(ONE, 300), None)
        self.ledger.confirm(first)
        self.assertEqual(self.ledger.committableOffset(ONE, 300), 200)

    def test_sourceBeganAnew(self) -> None:
        """
        What was confirmed of a source's earlier life says nothing about what is read of it now.
        """
        self.ledger.confirm(self.ledger.register(ONE, 5000))
        batch = self.ledger.register(ONE, 210)
        self.assertIs(self.ledger.committableOffset(ONE, 210), None)
        self.ledger.confirm(batch)
        self.assertEqual(self.ledger.committableOffset(ONE, 210), 210)

    def test_sourceBeganAnewMeanwhile(self) -> None:
        """Nor does what is confirmed late of its earlier life, which is waited for all the same."""
        old, next_ = self.ledger.register(ONE, 1_000_000), self.ledger.register(ONE, 1_000_500)
        first, second = self.ledger.register(ONE, 210), self.ledger.register(ONE, 320)
        whenConfirmed = self.ledger.whenConfirmed([ONE])
        found = [self.ledger.committableOffset(ONE, 320)]
        for batch in (old, first, next_):
            self.ledger.confirm(batch)
            found.append(self.ledger.committableOffset(ONE, 320))
        self.assertEqual(found, [None, None, None, 210])
        self.assertNoResult(whenConfirmed)
        self.ledger.confirm(second)
        self.successResultOf(whenConfirmed)
        self.assertEqual(
            (self.ledger.committableOffset(ONE, 320), self.ledger.confirmed(ONE)), (320, 320)
        )

    def test_takenOver(self) -> None:
        """What is still under way from before counts no more in a partition that was taken over."""
        late = self.ledger.register(ONE, 5000)
        self.ledger.reset(ONE)
        self.ledger.begin(ONE, 300)
        batch = self.ledger.register(ONE, 400)
        self.ledger.confirm(late)
        self.assertEqual(self.ledger.committableOffset(ONE, 400), 300)
        self.ledger.confirm(batch)
        self.assertEqual(self.ledger.committableOffset(ONE, 400), 400)

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.randoms(use_true_random=False))
    def test_anyOrder(self, sizes: list[int], random: Random) -> None:
        """
        In whatever order batches are confirmed, nothing unconfirmed is ever before what may be
        committed, and in the end all is.
        """
        ledger = OffsetTracker()
        ledger.begin(ONE, 0)
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        open_: dict[int, Any] = {end: ledger.register(ONE, end) for end in ends}
        order = list(open_)
        random.shuffle(order)
        for end in order:
            ledger.confirm(open_.pop(end))
            committableOffset = ledger.committableOffset(ONE, ends[-1])
            assert committableOffset is not None
            first = min(open_, default=None)
            self.assertEqual(
                committableOffset, ends[-1] if first is None else ([0, *ends])[ends.index(first)]
            )


class EdgeTests(SynchronousTestCase):
    """From where on nothing has been handed on."""

    def test_edge(self) -> None:
        """
        Behind the last message; where the consumer is as long as there was none; nowhere inside a
        wrapper, or before a partition is ours.
        """
        ledger = OffsetTracker()
        self.assertIs(ledger.readBoundary(ONE, 50), None)
        ledger.reset(ONE)
        self.assertIs(ledger.readBoundary(ONE, 50), None)
        ledger.begin(ONE, 40)
        self.assertEqual(
            (ledger.readBoundary(ONE, 50), ledger.handed(ONE), ledger.handed(TWO)), (50, None, None)
        )
        ledger.register(ONE, 100)
        self.assertEqual((ledger.readBoundary(ONE, 50), ledger.handed(ONE)), (100, 100))
        ledger.register(ONE, 100, isWhole=False)
        self.assertIs(ledger.readBoundary(ONE, 50), None)


class SettledTests(SynchronousTestCase):
    """Waiting for what is under way."""

    def test_nothing(self) -> None:
        """Nothing under way: at once."""
        ledger = OffsetTracker()
        ledger.confirm(ledger.register(ONE, 10))
        self.successResultOf(ledger.whenConfirmed([ONE, TWO]))

    def test_waits(self) -> None:
        """For all that is under way now, in all of the partitions; not for what comes later."""
        ledger = OffsetTracker()
        first, second, other = (
            ledger.register(ONE, 10),
            ledger.register(ONE, 20),
            ledger.register(TWO, 10),
        )
        whenConfirmed = ledger.whenConfirmed([ONE, TWO])
        ledger.register(ONE, 30)
        for batch in (second, other):
            ledger.confirm(batch)
        self.assertNoResult(whenConfirmed)
        ledger.confirm(first)
        self.successResultOf(whenConfirmed)

    def test_cancel(self) -> None:
        """Who does not want to wait any more leaves nothing behind."""
        ledger = OffsetTracker()
        batch = ledger.register(ONE, 10)
        whenConfirmed, other = ledger.whenConfirmed([ONE]), ledger.whenConfirmed([ONE])
        whenConfirmed.cancel()
        self.failureResultOf(whenConfirmed)
        self.assertEqual(len(batch.waiters), 1)
        ledger.confirm(batch)
        self.successResultOf(other)
        self.assertEqual(repr(ledger), "<OffsetTracker, 1 partitions>")
