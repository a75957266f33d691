"""
Workers, which run blocking functions: the reactor never waits for a disk.

An L{IWorker}'s result returns to the reactor's thread as a Deferred. Tests use
L{pylogbroker.testing.worker.ManualWorker}, which runs a job on demand. There is no queue limit
here, since each caller has its own: one job a partition, one read a connection, a memory budget for
decompression.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

T = TypeVar("T")


class IWorker(Protocol):
    """Runs blocking functions."""

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """
        @return: fires on the reactor's thread with C{work}'s result, or fails with its exception.
            It cannot be cancelled.
        """
        ...

    def start(self) -> None:
        """A second call does nothing."""
        ...

    def stop(self) -> None:
        """Wait for submitted work, and stop. May block for as long as that takes."""
        ...


class ThreadPoolWorker:
    """
    An L{IWorker} with a pool of threads. Its queue has no limit: callers limit what they submit.
    """

    def __init__(self, reactor: Any, name: str, threadCount: int) -> None:
        self._pool = ThreadPool(0, threadCount, name)
        self.submit: Callable[..., Deferred[Any]] = partial(deferToThreadPool, reactor, self._pool)

    def start(self) -> None:
        if not self._pool.started:
            self._pool.start()

    def stop(self) -> None:
        if self._pool.started:
            self._pool.stop()
