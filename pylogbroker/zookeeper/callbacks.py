"""
How kazoo's threads hand over to the reactor's.

kazoo calls back on threads of its own, out of two queues: answers and watches. L{ReactorQueue} stands in their place; it has no thread, and what is put
into it runs on the reactor's. So completions and watches run where all our code runs, in the order in which kazoo gave them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class ReactorQueue:
    """The end of a queue that kazoo puts callbacks into."""

    def __init__(self, callFromThread: Callable[..., object]) -> None:
        self._callFromThread = callFromThread

    def put(self, callback: Callable[[], object]) -> None:
        self._callFromThread(callback)


class ReactorCallbacks(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no annotations
    """What kazoo calls a handler, without threads for callbacks."""

    def __init__(self, callFromThread: Callable[..., object]) -> None:
        """
        @param callFromThread: the reactor's.
        """
        super().__init__()
        self.callback_queue: Any = ReactorQueue(callFromThread)
        self.completion_queue: Any = ReactorQueue(callFromThread)

    def start(self) -> None:
        """There are no threads to start."""
        self._running = True

    def stop(self) -> None:
        """And none to stop."""
        self._running = False
