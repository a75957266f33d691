"""
Time that a step of the wall clock does not move.

Twisted's reactors take the wall clock for the time. If that is set back by five minutes, no timer
fires for five minutes, and what compares two readings of C{reactor.seconds()} waits as long: a
leader does not notice that a follower has gone, and the messages that wait for it are not
acknowledged. If it is set forward, all time-outs are over at once. A program that serves calls
L{keepTimers}; L{pylogbroker.net.timer.wallMs} reads the wall clock, for what is written down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def bootSeconds() -> float:
    """Seconds since the machine has started, also those for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def keepTimers(reactor: Any, elapsed: Callable[[], float]) -> None:
    """
    Let the time of a reactor go on as a clock that is never set: its timers fire after the seconds
    that they were given, and C{reactor.seconds()} does not jump. It begins at the wall clock, which
    C{reactor.wallSeconds()} reads from now on.

    @param reactor: a L{twisted.internet.base.ReactorBase}; another one is left as it is, and so is
        one whose timers are kept already.
    @param elapsed: seconds of that clock.
    """
    if hasattr(reactor, "wallSeconds") or not hasattr(reactor, "runUntilCurrent"):
        return
    wallSeconds = reactor.seconds
    ahead = wallSeconds() - elapsed()
    reactor.wallSeconds = wallSeconds
    reactor.seconds = lambda: elapsed() + ahead
