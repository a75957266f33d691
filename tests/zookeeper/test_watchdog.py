"""
Tests for L{pylogbroker.zookeeper.kazoothreads}, with its real thread and a reactor that hangs when it is told to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.zookeeper.kazoothreads import LOOKS, Watchdog

HANG_MS = 40
SECONDS_MAX = 300.0


class HangingReactor:
    """
    @ivar asked: released once for each sign of life that was asked for.
    """

    def __init__(self) -> None:
        self.hangs = False
        self.asked = threading.Semaphore(0)
        self._waiting: list[Callable[[], None]] = []

    def callFromThread(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)
        if not self.hangs:
            self.goOn()
        self.asked.release()

    def goOn(self) -> None:
        self.hangs = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


class WatchdogTests(SynchronousTestCase):
    """When it bites."""

    def setUp(self) -> None:
        self.reactor = HangingReactor()
        self.bites = threading.Semaphore(0)
        self.watchdog = Watchdog(self.reactor, self.bites.release, HANG_MS)
        self.addCleanup(self.watchdog.stop)

    def test_alive(self) -> None:
        """A reactor that gives its signs is left alone; starting twice begins once."""
        self.watchdog.start()
        self.watchdog.start()
        for _look in range(5 * LOOKS):
            self.assertTrue(self.reactor.asked.acquire(timeout=SECONDS_MAX))
        self.assertFalse(self.bites.acquire(blocking=False))

    def test_hangs(self) -> None:
        """A reactor that hangs is bitten once; and again when it hangs after it was back."""
        self.watchdog.start()
        for _hang in range(2):
            self.reactor.hangs = True
            self.assertTrue(self.bites.acquire(timeout=SECONDS_MAX))
            self.assertFalse(self.bites.acquire(timeout=2 * HANG_MS / 1000))
            self.reactor.goOn()

    def test_stop(self) -> None:
        """After C{stop} nobody is bitten."""
        self.watchdog.start()
        self.assertTrue(self.reactor.asked.acquire(timeout=SECONDS_MAX))
        self.watchdog.stop()
        thread = self.watchdog._thread
        assert thread is not None
        thread.join(SECONDS_MAX)
        self.assertFalse(thread.is_alive())
