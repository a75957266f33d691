"""
Tests for L{pylogbroker.zookeeper.callbacks}.
"""

from __future__ import annotations

from typing import Any

from kazoo.protocol.states import Callback
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.zookeeper.callbacks import ReactorCallbacks


class ReactorCallbacksTests(SynchronousTestCase):
    """What kazoo hands over."""

    def test_callbacks(self) -> None:
        """Watches and answers go to the reactor, in order, and no thread is started for them."""
        handed: list[Any] = []
        callbacks = ReactorCallbacks(handed.append)
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
