"""
Ends the ZooKeeper session of an application whose reactor hangs.

kazoo's thread sends the heartbeats, so a session would outlive a hung reactor, and a broker that
answers no request would stay registered. A thread of ours asks the reactor for a sign of life, and
ends the session when none comes for C{hangMs}. Back again, the reactor finds its session expired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LOOKS = 4
"""Checks within C{hangMs}."""


class Watchdog:
    """
    A watchdog for one reactor.

    @ivar hangMs: how long the reactor may hang.
    """

    def __init__(self, reactor: Any, onHang: Callable[[], None], hangMs: float) -> None:
        """@param onHang: called on the thread, once for each hang."""
        self.hangMs = hangMs
        self._reactor = reactor
        self._onHang = onHang
        self._missed = 0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._look, name="pylogbroker-watchdog", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop checking, without waiting for the thread."""
        self._stopped.set()

    def _alive(self) -> None:
        self._missed = 0

    def _look(self) -> None:
        while not self._stopped.wait(self.hangMs / 1000 / LOOKS):
            self._missed += 1
            if self._missed == LOOKS + 1:
                self._onHang()
            elif self._missed <= LOOKS:
                self._reactor.callFromThread(self._alive)
