"""
Tests for L{pylogbroker.zookeeper.kazoothreads}.
"""

from __future__ import annotations

import socket
import struct
from functools import partial
from typing import Any

from kazoo.protocol.states import Callback
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.zookeeper.kazoothreads import NegotiatingSocket, ReactorCallbacks


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


class NegotiatingSocketTests(SynchronousTestCase):
    """The session time-out in a server's first frame."""

    def test_granted(self) -> None:
        """The time-out is reported once, however the frame is cut up, and every byte reaches kazoo."""
        frame = struct.pack(">iiiq", 16, 0, 6_000, 5) + b"more"
        for size in (1, 5, 100):
            ours, theirs = socket.socketpair()
            granted: list[int] = []
            reading = NegotiatingSocket(ours, granted.append)
            theirs.sendall(frame)
            theirs.close()
            found = b"".join(iter(partial(reading.recv, size), b""))
            reading.close()
            self.assertEqual((found, granted), (frame, [6_000]))
