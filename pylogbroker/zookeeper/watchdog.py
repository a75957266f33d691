"""
Ends the session of an application whose reactor hangs.

The heartbeats of a session come from kazoo's thread. An application that is stuck in a loop would keep its session, and with it its ephemeral
nodes: a broker that answers nobody would stay registered. So a thread of ours asks the reactor for a sign of life, and ends the session when none
came for as long as C{hangMs}. When the reactor comes back, it finds its session expired, like after any other expiry.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LOOKS = 4
"""How often it looks within C{hangMs}."""


class Watchdog:
    """
    @ivar hangMs: how long the reactor may give no sign.
    """

    def __init__(self, reactor: Any, bite: Callable[[], None], hangMs: float) -> None:
        """
        @param bite: called on the thread, once for each hang.
        """
        self.hangMs = hangMs
        self._reactor = reactor
        self._bite = bite
        self._missed = 0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to look. Twice does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._look, name="pylogbroker-watchdog", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """No more looks; does not wait."""
        self._stopped.set()

    def _alive(self) -> None:
        """The reactor's sign."""
        self._missed = 0

    def _look(self) -> None:
        while not self._stopped.wait(self.hangMs / 1000 / LOOKS):
            self._missed += 1
            if self._missed == LOOKS + 1:
                self._bite()
            elif self._missed <= LOOKS:
                self._reactor.callFromThread(self._alive)
