"""Timers of a real reactor, whose clocks are the test's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from twisted.application.service import Service
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import LoopingCall
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.timer import wallMs
from pylogbroker.programs.clocksteps import keepTimers
from pylogbroker.programs.lifecycle import TwistdLifecycle

START = 1_700_000_000.0


class ClockStepTests(SynchronousTestCase):
    """Steps at every moment of a reactor's turn."""

    def setUp(self) -> None:
        self.elapsed = 50.0
        self.ahead = START
        self.reactor: Any = SelectReactor()
        self.addCleanup(self.reactor.removeAll)
        self.reactor.seconds = lambda: self.elapsed + self.ahead
        self.fired: list[tuple[str, float]] = []

    def keep(self) -> None:
        keepTimers(self.reactor, lambda: self.elapsed)

    def fire(self, name: str, act: Callable[[], Any] = lambda: None) -> None:
        self.fired.append((name, self.elapsed - 50))
        act()

    def turnUntil(self, seconds: float) -> None:
        """Turns of a reactor that sleeps as long as it would, but to a time of the test."""
        end = 50 + seconds
        while self.elapsed < end:
            timeout = self.reactor.timeout()
            self.elapsed = min(end, self.elapsed + (end if timeout is None else timeout))
            self.reactor.runUntilCurrent()

    def test_without(self) -> None:
        """The reactor alone waits as long as the clock was set back."""
        self.reactor.callLater(5, self.fire, "a")
        self.ahead -= 300
        self.turnUntil(100)
        self.assertEqual(self.fired, [])

    def test_back(self) -> None:
        """A clock that is set back."""
        self.keep()
        self.reactor.callLater(5, self.fire, "a")
        self.turnUntil(1)
        self.reactor.callLater(5, self.fire, "b")
        self.ahead -= 300
        self.turnUntil(100)
        self.assertEqual(self.fired, [("a", 5), ("b", 6)])
        self.assertEqual(self.reactor.seconds(), 50 + 100 + START)
        self.assertEqual(wallMs(self.reactor), (50 + 100 + START - 300) * 1000)

    def test_forward(self) -> None:
        """A clock that is set forward."""
        self.keep()
        self.reactor.callLater(5, self.fire, "a")
        self.turnUntil(1)
        self.ahead += 300
        self.reactor.callLater(5, self.fire, "b")
        self.turnUntil(100)
        self.assertEqual(self.fired, [("a", 5), ("b", 6)])

    def test_inCall(self) -> None:
        """A clock that is set while a call runs, which makes another one."""
        for step in (-300, 300):
            self.fired = []
            self.setUp()
            self.keep()

            def act(step: float = step) -> None:
                self.ahead += step
                self.reactor.callLater(3, self.fire, "new")

            self.reactor.callLater(5, self.fire, "a", act)
            self.reactor.callLater(5, self.fire, "due, too")
            self.reactor.callLater(7, self.fire, "b")
            self.turnUntil(100)
            expected = {("a", 5.0), ("due, too", 5.0), ("b", 7.0), ("new", 8.0)}
            self.assertEqual(({*self.fired}, len(self.fired)), (expected, 4), step)

    def test_fromThread(self) -> None:
        """A clock that is set when a thread calls, before the timers' turn."""
        for step in (-300, 300):
            self.setUp()
            self.keep()
            self.reactor.callLater(7, self.fire, "a")
            self.turnUntil(1)
            self.reactor.threadCallQueue.append((self.stepNow, (step,), {}))
            self.turnUntil(100)
            self.assertEqual(self.fired, [("a", 7)], step)

    def stepNow(self, step: float) -> None:
        self.ahead += step
        self.reactor.seconds()

    def test_loopingCall(self) -> None:
        """A call that repeats goes on at its interval."""
        self.keep()
        looping = LoopingCall(self.fire, "tick")
        looping.clock = self.reactor
        looping.start(2)
        self.turnUntil(3)
        self.ahead -= 301
        self.turnUntil(20)
        times = [seconds for _name, seconds in self.fired]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        self.assertTrue(all(0 < gap <= 4 for gap in gaps), times)
        self.assertGreaterEqual(times[-1], 18)

    def test_moved(self) -> None:
        """Calls that were delayed, made sooner or cancelled."""
        self.keep()
        later = self.reactor.callLater(5, self.fire, "later")
        sooner = self.reactor.callLater(50, self.fire, "sooner")
        gone = self.reactor.callLater(5, self.fire, "gone")
        self.turnUntil(1)
        later.delay(10)
        gone.cancel()
        self.ahead -= 300
        self.turnUntil(2)
        sooner.reset(6)
        self.turnUntil(100)
        self.assertEqual(self.fired, [("sooner", 8), ("later", 15)])

    def test_twice(self) -> None:
        """A reactor whose timers are kept already is left as it is."""
        self.keep()
        before = self.reactor.seconds
        self.keep()
        self.assertEqual(self.reactor.seconds, before)

    def test_program(self) -> None:
        """A program under C{twistd} keeps its timers from its start on."""

        class Program(TwistdLifecycle, Service):
            _reactor = self.reactor

        before = self.reactor.seconds
        Program().startService()
        self.assertNotEqual(self.reactor.seconds, before)
        self.assertEqual(self.reactor.wallSeconds, before)

    def test_other(self) -> None:
        """A reactor without a loop is left as it is."""
        reactor: Any = MemoryReactorClock()
        before = reactor.seconds
        keepTimers(reactor, lambda: self.elapsed)
        self.assertEqual(reactor.seconds, before)
