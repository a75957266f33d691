"""Waits with one timer."""

from __future__ import annotations

from random import Random

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.purgatory import SLACK_COUNT, Purgatory


class PurgatoryTests(SynchronousTestCase):
    """L{Purgatory}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.purgatory = Purgatory(self.clock)
        self.called: list[object] = []

    def wait(self, ms: float, what: object) -> int:
        return self.purgatory.wait(ms, lambda: self.called.append(what))

    def test_inTime(self) -> None:
        """Calls come when their time has come, whatever the order of the waits; one timer runs."""
        for ms in (300, 100, 200):
            self.wait(ms, ms)
            self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        for expected in ([100], [100, 200], [100, 200, 300]):
            self.clock.advance(0.1)
            self.assertEqual(self.called, expected)
        self.assertEqual((len(self.purgatory), self.clock.getDelayedCalls()), (0, []))

    def test_together(self) -> None:
        """Deadlines that are close to each other are served together."""
        for ms in (100, 101, 102):
            self.wait(ms, ms)
        self.clock.advance(0.1)
        self.assertEqual(self.called, [100, 101, 102])

    def test_cancel(self) -> None:
        """
        A cancelled call is not made; without any the timer ends when its time has come; twice is
        harmless.
        """
        first, second = self.wait(100, 1), self.wait(200, 2)
        self.purgatory.cancel(first)
        self.clock.advance(0.1)
        self.assertEqual(self.called, [])
        self.purgatory.cancel(second)
        self.purgatory.cancel(second)
        self.clock.advance(0.1)
        self.assertEqual((self.called, self.clock.getDelayedCalls()), ([], []))

    def test_callThatWaits(self) -> None:
        """A call may wait again."""
        self.purgatory.wait(100, lambda: self.wait(100, "again"))
        self.clock.advance(0.1)
        self.clock.advance(0.1)
        self.assertEqual(self.called, ["again"])

    def test_stop(self) -> None:
        """After C{stop} nothing is called."""
        self.wait(100, 1)
        self.purgatory.stop()
        self.clock.advance(1)
        self.assertEqual((self.called, self.clock.getDelayedCalls()), ([], []))

    def test_bounded(self) -> None:
        """Waits that come and are cancelled do not pile up behind one that stays."""
        self.wait(1_000_000, "last")
        for _ in range(1_000):
            self.purgatory.cancel(self.wait(500_000, "never"))
        self.assertLessEqual(len(self.purgatory._heap), SLACK_COUNT + 4)

    def test_random(self) -> None:
        """Each call that was not cancelled comes once, and not before its time."""
        random = Random(1)
        due: dict[int, float] = {}
        for number in range(500):
            ms = random.randrange(1, 3_000)
            key = self.wait(ms, number)
            if random.random() < 0.5:
                self.purgatory.cancel(key)
            else:
                due[number] = self.clock.seconds() + ms / 1000
            self.clock.advance(random.random() / 20)
            for done in self.called:
                self.assertLessEqual(due[done], self.clock.seconds() + 0.005)  # type: ignore[index]
        self.clock.advance(3.1)
        self.assertEqual(sorted(self.called), sorted(due))
