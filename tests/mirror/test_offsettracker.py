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
        """It is as if it had not been handed on; who waits for it waits for what is left, and may give up."""
        ledger = OffsetTracker()
        ledger.begin(ONE, 100)
        first, second, third = (ledger.hand(ONE, offset) for offset in (200, 300, 400))
        waiting, leaving = ledger.settled([ONE]), ledger.settled([ONE])
        ledger.done(third)
        self.assertTrue(ledger.discardAfter(ONE, first))
        self.assertEqual(
            (ledger.handed(ONE), ledger.edge(ONE, 400), ledger.committable(ONE, 400)),
            (200, None, 100),
        )
        ledger.done(second)
        self.assertEqual(ledger.committable(ONE, 400), 100)
        leaving.cancel()
        self.failureResultOf(leaving, CancelledError)
        self.assertNoResult(waiting)
        ledger.done(first)
        self.successResultOf(waiting)
        self.assertEqual(ledger.committable(ONE, 200), 200)

    def test_notOurs(self) -> None:
        """A partition that was taken over since is not touched."""
        ledger = OffsetTracker()
        entry = ledger.hand(ONE, 200)
        ledger.takeOver(ONE)
        self.assertFalse(ledger.discardAfter(ONE, entry))
        self.assertIs(ledger.handed(ONE), None)


class CommittableTests(SynchronousTestCase):
    """What may be committed."""

    def setUp(self) -> None:
        self.ledger = OffsetTracker()
        self.ledger.begin(ONE, 100)

    def test_nothingUnderWay(self) -> None:
        """Where the consumer is, when nothing is under way; of a partition that nobody knows, too."""
        self.assertEqual(self.ledger.committable(ONE, 100), 100)
        self.assertEqual(self.ledger.committable(TWO, 7), 7)
        self.ledger.done(self.ledger.hand(ONE, 300))
        self.assertEqual(self.ledger.committable(ONE, 300), 300)

    def test_inOrder(self) -> None:
        """Up to the first batch that is not confirmed; from where it began, if that is the first of all."""
        entries = [self.ledger.hand(ONE, offset) for offset in (200, 300, 400)]
        found = [self.ledger.committable(ONE, 400)]
        for index in (1, 0, 2):
            self.ledger.done(entries[index])
            found.append(self.ledger.committable(ONE, 400))
        self.assertEqual(found, [100, 100, 300, 400])

    def test_unknownStart(self) -> None:
        """Nothing, where it is not known from where was read, until something is confirmed."""
        self.ledger.begin(ONE, None)
        first, _second = self.ledger.hand(ONE, 200), self.ledger.hand(ONE, 300)
        self.assertIs(self.ledger.committable(ONE, 300), None)
        self.ledger.done(first)
        self.assertEqual(self.ledger.committable(ONE, 300), 200)

    def test_sourceBeganAnew(self) -> None:
        """What was confirmed of a source's earlier life says nothing about what is read of it now."""
        self.ledger.done(self.ledger.hand(ONE, 5000))
        entry = self.ledger.hand(ONE, 210)
        self.assertIs(self.ledger.committable(ONE, 210), None)
        self.ledger.done(entry)
        self.assertEqual(self.ledger.committable(ONE, 210), 210)

    def test_sourceBeganAnewMeanwhile(self) -> None:
        """Nor does what is confirmed late of its earlier life, which is waited for all the same."""
        old, next_ = self.ledger.hand(ONE, 1_000_000), self.ledger.hand(ONE, 1_000_500)
        first, second = self.ledger.hand(ONE, 210), self.ledger.hand(ONE, 320)
        settled = self.ledger.settled([ONE])
        found = [self.ledger.committable(ONE, 320)]
        for entry in (old, first, next_):
            self.ledger.done(entry)
            found.append(self.ledger.committable(ONE, 320))
        self.assertEqual(found, [None, None, None, 210])
        self.assertNoResult(settled)
        self.ledger.done(second)
        self.successResultOf(settled)
        self.assertEqual(
            (self.ledger.committable(ONE, 320), self.ledger.confirmed(ONE)), (320, 320)
        )

    def test_takenOver(self) -> None:
        """What is still under way from before counts no more in a partition that was taken over."""
        late = self.ledger.hand(ONE, 5000)
        self.ledger.takeOver(ONE)
        self.ledger.begin(ONE, 300)
        entry = self.ledger.hand(ONE, 400)
        self.ledger.done(late)
        self.assertEqual(self.ledger.committable(ONE, 400), 300)
        self.ledger.done(entry)
        self.assertEqual(self.ledger.committable(ONE, 400), 400)

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.randoms(use_true_random=False))
    def test_anyOrder(self, sizes: list[int], random: Random) -> None:
        """In whatever order batches are confirmed, nothing unconfirmed is ever before what may be committed, and in the end all is."""
        ledger = OffsetTracker()
        ledger.begin(ONE, 0)
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        open_: dict[int, Any] = {end: ledger.hand(ONE, end) for end in ends}
        order = list(open_)
        random.shuffle(order)
        for end in order:
            ledger.done(open_.pop(end))
            committable = ledger.committable(ONE, ends[-1])
            assert committable is not None
            first = min(open_, default=None)
            self.assertEqual(
                committable, ends[-1] if first is None else ([0, *ends])[ends.index(first)]
            )


class EdgeTests(SynchronousTestCase):
    """From where on nothing has been handed on."""

    def test_edge(self) -> None:
        """Behind the last message; where the consumer is as long as there was none; nowhere inside a wrapper, or before a partition is ours."""
        ledger = OffsetTracker()
        self.assertIs(ledger.edge(ONE, 50), None)
        ledger.takeOver(ONE)
        self.assertIs(ledger.edge(ONE, 50), None)
        ledger.begin(ONE, 40)
        self.assertEqual(
            (ledger.edge(ONE, 50), ledger.handed(ONE), ledger.handed(TWO)), (50, None, None)
        )
        ledger.hand(ONE, 100)
        self.assertEqual((ledger.edge(ONE, 50), ledger.handed(ONE)), (100, 100))
        ledger.hand(ONE, 100, isWhole=False)
        self.assertIs(ledger.edge(ONE, 50), None)


class SettledTests(SynchronousTestCase):
    """Waiting for what is under way."""

    def test_nothing(self) -> None:
        """Nothing under way: at once."""
        ledger = OffsetTracker()
        ledger.done(ledger.hand(ONE, 10))
        self.successResultOf(ledger.settled([ONE, TWO]))

    def test_waits(self) -> None:
        """For all that is under way now, in all of the partitions; not for what comes later."""
        ledger = OffsetTracker()
        first, second, other = ledger.hand(ONE, 10), ledger.hand(ONE, 20), ledger.hand(TWO, 10)
        settled = ledger.settled([ONE, TWO])
        ledger.hand(ONE, 30)
        for entry in (second, other):
            ledger.done(entry)
        self.assertNoResult(settled)
        ledger.done(first)
        self.successResultOf(settled)

    def test_cancel(self) -> None:
        """Who does not want to wait any more leaves nothing behind."""
        ledger = OffsetTracker()
        entry = ledger.hand(ONE, 10)
        settled, other = ledger.settled([ONE]), ledger.settled([ONE])
        settled.cancel()
        self.failureResultOf(settled)
        self.assertEqual(len(entry.waiters), 1)
        ledger.done(entry)
        self.successResultOf(other)
        self.assertEqual(repr(ledger), "<Ledger, 1 partitions>")
