"""
Where blocking work goes: the reactor never waits for a disk.

Everything that blocks is a function handed to an L{IWorker}; its result comes back to the reactor's thread as a Deferred. Tests give a worker on a
lead instead (L{pylogbroker.testing.worker.ManualWorker}), which does a job when it is told to. There is no queue limit here: each caller
has its own (one flush, roll or deletion a partition, one cold read a connection, a budget for decompression).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

T = TypeVar("T")


class IWorker(Protocol):
    """Does blocking work elsewhere."""

    def do(self, work: Callable[[], T]) -> Deferred[T]:
        """
        @return: fires on the reactor's thread with what C{work} returned, or fails with what it raised. It cannot be cancelled: work that has begun ends.
        """
        ...

    def start(self) -> None:
        """Begin to do what is given. Twice does nothing."""
        ...

    def stop(self) -> None:
        """Wait for the work that was given and end. May block, for as long as that takes."""
        ...


class ThreadWorker:
    """An L{IWorker} of so many threads."""

    def __init__(self, reactor: Any, name: str, threadCount: int) -> None:
        self._reactor = reactor
        self._pool = ThreadPool(0, threadCount, name)

    def do(self, work: Callable[[], T]) -> Deferred[T]:
        return deferToThreadPool(self._reactor, self._pool, work)

    def start(self) -> None:
        if not self._pool.started:
            self._pool.start()

    def stop(self) -> None:
        if self._pool.started:
            self._pool.stop()
