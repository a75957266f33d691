"""
Workers, which run blocking functions: the reactor never waits for a disk.

An L{IWorker}'s result returns to the reactor's thread as a Deferred. Tests use
L{pylogbroker.testing.worker.ManualWorker}, which runs a job on demand. There is no queue limit
here, since each caller has its own: one job a partition, one read a connection, a memory budget for
decompression.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

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
    An L{IWorker} with a pool of threads; one starts when there is more work than threads. Its queue
    has no limit: callers limit what they submit.

    A flush for each turn of the reactor must cost little beside its C{fsync}. Work takes one queue
    to a thread, and one wake-up of the reactor back; Twisted's C{ThreadPool} has a coordinator and
    locks in between, and changes threads ten times.
    """

    def __init__(self, reactor: Any, name: str, threadCount: int) -> None:
        self._callFromThread = reactor.callFromThread
        self._name = name
        self._threadCountMax = threadCount
        self._threads: list[Thread] = []
        self._queue: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._isStarted = False
        self._leftCount = 0

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        done: Deferred[T] = Deferred()
        self._leftCount += 1
        self._queue.put((work, done))
        if self._isStarted:
            self._addThreads()
        return done

    def _addThreads(self) -> None:
        while len(self._threads) < min(self._leftCount, self._threadCountMax):
            thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}")
            try:
                thread.start()
            except RuntimeError:  # the system allows no more
                if not self._threads:
                    raise
                return
            self._threads.append(thread)

    def _serve(self) -> None:
        for work, done in iter(self._queue.get, None):
            try:
                result = work()
            except BaseException:
                result = Failure()
            self._callFromThread(self._ended, done, result)
            del work, done, result  # nothing lives on while the thread waits

    def _ended(self, done: Deferred[Any], result: Any) -> None:
        self._leftCount -= 1
        done.callback(result)  # a L{Failure} makes it fail

    def start(self) -> None:
        self._isStarted = True
        self._addThreads()

    def stop(self) -> None:
        self._isStarted = False
        for _ in self._threads:
            self._queue.put(None)
        while self._threads:
            self._threads.pop().join()
