"""
Timers that a step of the wall clock does not move.

Twisted's reactors keep the time at which a call is due as that of the wall clock. If that is set
back by five minutes, no timer fires for five minutes: a leader does not notice that a follower has
gone, and the messages that wait for it are not acknowledged. If it is set forward, all time-outs
are over at once. A program that serves calls L{keepTimers}; what it reads from
C{reactor.seconds()} is the wall clock, as before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from twisted.logger import Logger

STEP_SECONDS_MIN = 1.0
"""
A smaller difference is left until it has grown: clocks that are slewed look like this.
"""


def bootSeconds() -> float:
    """Seconds since the machine has started, also those for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _SteppedTimers:
    _log = Logger()

    def __init__(self, reactor: Any, elapsed: Callable[[], float]) -> None:
        self._reactor = reactor
        self._elapsed = elapsed
        self._wallSeconds = reactor.seconds
        self._runUntilCurrent = reactor.runUntilCurrent
        self._timeout = reactor.timeout
        self._ahead = self._wallSeconds() - elapsed()
        self._isRunning = False
        self._late: list[tuple[float, Sequence[Any]]] = []

    def seconds(self) -> float:
        """As C{IReactorTime.seconds}; finds steps."""
        now = float(self._wallSeconds())
        step = now - self._elapsed() - self._ahead
        if abs(step) >= STEP_SECONDS_MIN:  # or the process had no turn between the two readings
            now = float(self._wallSeconds())
            step = now - self._elapsed() - self._ahead
        if abs(step) >= STEP_SECONDS_MIN:
            self._ahead += step
            calls = self._reactor.getDelayedCalls()
            if step < 0 and self._isRunning:
                # The reactor compares the calls with the time before the step now: earlier ones
                # would all be due.
                self._late.append((step, calls))
            else:
                self._shift(step, calls)
            self._log.warn(
                "The wall clock was set {direction} by {seconds} s; timers are not changed by that",
                direction="forward" if step > 0 else "back",
                seconds=round(abs(step), 1),
            )
        return now

    @staticmethod
    def _shift(step: float, calls: Sequence[Any]) -> None:
        for call in calls:
            # All of them by the same time, so the reactor's heap stays one. C{delay} would look
            # for each of them in it.
            call.time += step

    def runUntilCurrent(self) -> None:
        """As the reactor's."""
        self.seconds()
        self._isRunning = True
        try:
            self._runUntilCurrent()
        finally:
            self._isRunning = False
            late, self._late = self._late, []
            for step, calls in late:
                self._shift(step, calls)

    def timeout(self) -> float | None:
        """As the reactor's, which takes the time of the first call before it asks for now."""
        self.seconds()
        found: float | None = self._timeout()
        return found


def keepTimers(reactor: Any, elapsed: Callable[[], float]) -> None:
    """
    Let the timers of a reactor fire after the seconds that they were given, also when the wall
    clock is set. A step is found at the next turn of the reactor, and logged.

    @param reactor: a L{twisted.internet.base.ReactorBase}; another one is left as it is, and so is
        one whose timers are kept already.
    @param elapsed: seconds of a clock that is never set.
    """
    isKept = isinstance(getattr(reactor.seconds, "__self__", None), _SteppedTimers)
    if isKept or not hasattr(reactor, "runUntilCurrent"):
        return
    timers = _SteppedTimers(reactor, elapsed)
    reactor.seconds = timers.seconds
    reactor.runUntilCurrent = timers.runUntilCurrent
    reactor.timeout = timers.timeout
