"""
Tests for L{pylogbroker.zookeeper.kazoothreads}.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.protocol.states import Callback
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.zookeeper.kazoothreads import (
    LOOKS,
    ConnectResponseSniffer,
    ReactorCallbacks,
    ReactorWatchdog,
)


class ReactorCallbacksTests(SynchronousTestCase):
    """What kazoo hands over."""

    def test_callbacks(self) -> None:
        """Watches and answers go to the reactor, in order, and no thread is started for them."""
        handed: list[Any] = []
        callbacks = ReactorCallbacks(handed.append, lambda timeoutMs: None)
        called: list[str] = []
        callbacks.start()
        self.assertTrue(callbacks.running)
        callbacks.dispatch_callback(Callback("watch", called.append, ("watch",)))
        result = callbacks.async_result()
        result.rawlink(lambda found: called.append(found.value))
        result.set("answer")
        self.assertEqual((called, callbacks._workers), ([], []))
        for call in handed:
            call()
        self.assertEqual(called, ["watch", "answer"])
        callbacks.stop()
        self.assertFalse(callbacks.running)

    def test_answeredBeforeLinked(self) -> None:
        """An answer that comes before its callback is linked is called before a later event."""
        handed: list[Any] = []
        callbacks = ReactorCallbacks(handed.append, lambda timeoutMs: None)
        called: list[str] = []
        callbacks.start()
        result = callbacks.async_result()
        result.set("answer")
        callbacks.dispatch_callback(Callback("watch", called.append, ("watch",)))
        result.rawlink(lambda found: called.append(found.value))
        for call in handed:
            call()
        self.assertEqual(called, ["answer", "watch"])
        result.rawlink(lambda found: called.append("linked later"))
        handed[-1]()
        self.assertEqual(called, ["answer", "watch", "linked later"])
        callbacks.stop()


class NegotiatingSocketTests(SynchronousTestCase):
    """The session time-out in a server's first frame."""

    def test_granted(self) -> None:
        """
        The time-out is reported once, however the frame is cut up, and every byte reaches kazoo.
        """
        frame = struct.pack(">iiiq", 16, 0, 6_000, 5) + b"more"
        for size in (1, 5, 100):
            ours, theirs = socket.socketpair()
            granted: list[int] = []
            reading = ConnectResponseSniffer(ours, granted.append)
            theirs.sendall(frame)
            theirs.close()
            found = b"".join(iter(partial(reading.recv, size), b""))
            reading.close()
            self.assertEqual((found, granted), (frame, [6_000]))


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
        self.watchdog = ReactorWatchdog(self.reactor, self.bites.release, HANG_MS)
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
