"""Tests for L{pylogbroker.net.timer}."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.timer import Timer, wallMs


class WallTests(SynchronousTestCase):
    """The time to write down."""

    def test_kept(self) -> None:
        """It is the wall clock's, which the seconds of a clock need not follow."""
        clock: Any = Clock()
        clock.advance(7.5)
        self.assertEqual(wallMs(clock), 7_500)
        clock.wallSeconds = lambda: clock.seconds() - 5
        self.assertEqual(wallMs(clock), 2_500)


class TimerTests(SynchronousTestCase):
    """One call in the future."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.timer = Timer(self.clock)
        self.rung: list[str] = []

    def test_rings(self) -> None:
        """It calls once, after so many milliseconds."""
        self.timer.start(1500, self.rung.append, "x")
        self.assertTrue(self.timer.isRunning)
        self.clock.advance(1.499)
        self.assertEqual(self.rung, [])
        self.clock.advance(0.001)
        self.assertEqual(self.rung, ["x"])
        self.assertFalse(self.timer.isRunning)
        self.clock.advance(10)
        self.assertEqual(self.rung, ["x"])

    def test_stops(self) -> None:
        """
        Stopped, it does not call, and nothing is left on the clock; a second time changes nothing.
        """
        self.timer.start(1500, self.rung.append, "x")
        self.timer.stop()
        self.timer.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_startsAnew(self) -> None:
        """Started again, only the later call is made."""
        self.timer.start(1000, self.rung.append, "x")
        self.timer.start(2000, self.rung.append, "y")
        self.clock.advance(5)
        self.assertEqual(self.rung, ["y"])

    def test_startsItself(self) -> None:
        """What is called may start it again."""
        self.timer.start(1000, lambda: self.timer.start(1000, self.rung.append, "x"))
        self.clock.advance(1)
        self.assertTrue(self.timer.isRunning)
        self.clock.advance(1)
        self.assertEqual(self.rung, ["x"])

    def test_past(self) -> None:
        """A time that is over already is now."""
        self.timer.start(-5, self.rung.append, "x")
        self.clock.advance(0)
        self.assertEqual(self.rung, ["x"])
