"""
Tests for L{pylogbroker.zookeeper.handler}.
"""

from __future__ import annotations

from typing import Any

from kazoo.protocol.states import Callback
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.zookeeper.handler import ReactorHandler


class ReactorHandlerTests(SynchronousTestCase):
    """What kazoo hands over."""

    def test_callbacks(self) -> None:
        """Watches and answers go to the reactor, in order, and no thread is started for them."""
        handed: list[Any] = []
        handler = ReactorHandler(handed.append)
        called: list[str] = []
        handler.start()
        self.assertTrue(handler.running)
        handler.dispatch_callback(Callback("watch", called.append, ("watch",)))
        result = handler.async_result()
        result.rawlink(lambda found: called.append(found.value))
        result.set("answer")
        self.assertEqual((called, handler._workers), ([], []))
        for call in handed:
            call()
        self.assertEqual(called, ["watch", "answer"])
        handler.stop()
        self.assertFalse(handler.running)
