"""
Tests of the memory for requests that are still arriving.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.requestmemory import (
    HELD_SIZE_TOTAL,
    ORDINARY_SIZE_MAX,
    ORDINARY_SIZE_TOTAL,
    RECEIVE_SIZE_MAX,
    RECEIVE_SIZE_MIN,
    RECEIVE_SIZE_TOTAL,
    SHARE_SIZE_MAX,
    RequestMemory,
)
from pylogbroker.limits import Reservation

MIB = 1 << 20


class ReceiveSizeTests(SynchronousTestCase):
    """What each connection may hold without asking."""

    def setUp(self) -> None:
        self.admission = RequestMemory(Clock(), 256 * MIB, 120_000)

    def test_few(self) -> None:
        """Few connections receive 960 KiB at once."""
        self.assertEqual(self.admission.receiveSize, RECEIVE_SIZE_MAX)
        self.admission.connectionMade()
        self.assertEqual(
            (self.admission.connectionCount, self.admission.receiveSize), (1, RECEIVE_SIZE_MAX)
        )

    def test_share(self) -> None:
        """As there are more, they share a fixed amount; when they go, each has more again."""
        for _ in range(1000):
            self.admission.connectionMade()
        self.assertLessEqual(self.admission.receiveSize, RECEIVE_SIZE_TOTAL // 1000)
        self.assertGreater(self.admission.receiveSize, RECEIVE_SIZE_TOTAL // 2000)
        self.assertEqual(self.admission.shareSize, self.admission.receiveSize)
        for _ in range(999):
            self.admission.connectionLost()
        self.assertEqual(
            (self.admission.connectionCount, self.admission.receiveSize), (1, RECEIVE_SIZE_MAX)
        )

    def test_heldByEarlierOnes(self) -> None:
        """
        What those hold that came when there was more for each is not dealt out again: together they
        hold that amount, and the least that each is left.
        """
        held: list[int] = []
        self.admission.unreservedSize = lambda: sum(held)
        for _ in range(10_000):
            self.admission.connectionMade()
            held.append(2 * self.admission.receiveSize)
            self.assertLessEqual(sum(held), HELD_SIZE_TOTAL + 2 * RECEIVE_SIZE_MIN * len(held))
        self.assertEqual(held[0], 2 * RECEIVE_SIZE_MAX)
        held.clear()
        for _ in range(10_000):
            self.admission.connectionLost()
        self.assertEqual(self.admission.receiveSize, RECEIVE_SIZE_MAX)
        self.assertEqual(self.admission.shareSize, SHARE_SIZE_MAX)

    def test_least(self) -> None:
        """However many there are, each has 4 KiB."""
        for _ in range(RECEIVE_SIZE_TOTAL // RECEIVE_SIZE_MIN * 2):
            self.admission.connectionMade()
        self.assertEqual(self.admission.receiveSize, RECEIVE_SIZE_MIN)


class GrantTests(SynchronousTestCase):
    """Frames that are larger ask for memory."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.admission = RequestMemory(self.clock, 100 * MIB, 5_000)
        self.events: list[str] = []

    def ask(self, size: int, name: str = "") -> Reservation:
        def cut() -> None:
            self.events.append(f"{name} cut")
            self.admission.release(grant)

        grant = self.admission.reserve(size, lambda: self.events.append(f"{name} granted"), cut)
        return grant

    def test_atOnce(self) -> None:
        """While there is room memory is granted at once, and counted, without a word."""
        grant = self.ask(60 * MIB)
        self.assertTrue(grant.granted)
        self.assertEqual(
            (self.admission.reservedSize, self.admission.waitingCount, self.events),
            (60 * MIB, 0, []),
        )
        self.admission.release(grant)
        self.assertEqual(self.admission.reservedSize, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_inTurn(self) -> None:
        """
        Who does not fit waits until those before it have gone, in the order of asking; never is
        more out than there is.
        """
        first, second, third = (
            self.ask(60 * MIB, "first"),
            self.ask(60 * MIB, "second"),
            self.ask(2 * MIB, "third"),
        )
        self.assertEqual([each.granted for each in (first, second, third)], [True, False, False])
        self.assertEqual((self.admission.reservedSize, self.admission.waitingCount), (60 * MIB, 2))
        self.admission.release(first)
        self.assertEqual(self.events, ["second granted", "third granted"])
        self.assertEqual(self.admission.reservedSize, 62 * MIB)

    def test_waiterGoes(self) -> None:
        """Who waits can go away, and those behind it come in its place."""
        self.ask(60 * MIB)
        second = self.ask(60 * MIB, "second")
        third = self.ask(40 * MIB, "third")
        self.admission.release(second)
        self.assertTrue(third.granted)
        self.assertEqual(self.events, ["third granted"])

    def test_ordinaryHaveTheirOwn(self) -> None:
        """
        Frames up to 1 MiB have an amount of their own: large frames do not keep them out, nor they
        large ones.
        """
        self.ask(100 * MIB)
        self.assertFalse(self.ask(MIB + 1).granted)
        for _ in range(ORDINARY_SIZE_TOTAL // ORDINARY_SIZE_MAX):
            self.assertTrue(self.ask(MIB).granted)
        self.assertFalse(self.ask(MIB).granted)
        self.assertEqual((self.admission.reservedSize, self.admission.waitingCount), (164 * MIB, 2))

    def test_largerThanAll(self) -> None:
        """
        A frame that is a little larger than the whole amount, by its size field, gets all of it.
        """
        grant = self.ask(100 * MIB + 4)
        self.assertTrue(grant.granted)
        self.assertEqual(self.admission.reservedSize, 100 * MIB)


class OverdueTests(GrantTests):
    """Who was granted memory and does not send."""

    def test_cutForAnother(self) -> None:
        """
        Who has not sent its frame by the deadline, which is later for larger frames, loses the
        memory when another waits, which then has it.
        """
        self.ask(60 * MIB, "slow")
        self.clock.advance(1)
        self.ask(60 * MIB, "other")
        self.clock.pump([1] * 63)
        self.assertEqual(self.events, [])
        self.clock.pump([1] * 2)
        self.assertEqual(self.events, ["slow cut", "other granted"])

    def test_keptWhileNobodyWaits(self) -> None:
        """A slow request keeps its memory while no other waits, and no timer runs meanwhile."""
        self.ask(60 * MIB, "slow")
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.clock.advance(10_000)
        self.ask(40 * MIB, "fits")
        self.assertEqual(self.events, [])
        self.ask(1 * MIB + 1, "other")
        self.clock.advance(1)
        self.assertEqual(self.events, ["slow cut", "other granted"])

    def test_oneIsEnough(self) -> None:
        """Only connections whose memory another one needs are cut."""
        self.ask(50 * MIB, "a")
        self.ask(50 * MIB, "b")
        self.ask(20 * MIB, "other")
        self.clock.pump([1] * 60)
        self.assertEqual(self.events, ["a cut", "other granted"])

    def test_theLookEnds(self) -> None:
        """Looking for overdue frames ends with the waiting."""
        first = self.ask(60 * MIB)
        self.ask(60 * MIB, "second")
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.admission.release(first)
        self.clock.advance(1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_aLateGrantHasItsOwnDeadline(self) -> None:
        """The time of one that had to wait counts from when it was granted."""
        first = self.ask(60 * MIB)
        self.ask(60 * MIB, "second")
        self.clock.pump([1] * 50)
        self.admission.release(first)
        self.ask(60 * MIB, "third")
        self.clock.pump([1] * 64)
        self.assertEqual(self.events, ["second granted"])
        self.clock.pump([1] * 2)
        self.assertEqual(self.events, ["second granted", "second cut", "third granted"])

    def test_close(self) -> None:
        """Closed, it looks no more."""
        self.ask(60 * MIB)
        self.ask(60 * MIB)
        self.admission.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.admission.close()

    def test_arrivedIsNotOverdue(self) -> None:
        """
        A whole frame keeps its memory, however long its request takes and though others wait.
        """
        grant = self.ask(60 * MIB, "held back")
        self.ask(60 * MIB, "other")
        self.admission.frameComplete(grant)
        self.clock.pump([1] * 600)
        self.assertEqual((self.events, self.admission.reservedSize), ([], 60 * MIB))
        self.admission.release(grant)
        self.assertEqual(self.events, ["other granted"])
