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
    An L{IWorker} with threads, which are started when there is work for them. Its queue has no
    limit: callers limit what they submit.

    Rejected: C{twisted.python.threadpool}, whose hops between thread and reactor cost three times
    as much; a producer of C{acks=all} pays for them with each flush.
    """

    def __init__(self, reactor: Any, name: str, threadCount: int) -> None:
        self._reactor = reactor
        self._name = name
        self._threadCountMax = threadCount
        self._threads: list[Thread] = []
        self._queue: SimpleQueue[tuple[Callable[[], Any], Deferred[Any]] | None] = SimpleQueue()
        self._isStarted = False
        self._leftCount = 0  # submitted, and not done as far as the reactor knows

    def submit(self, work: Callable[[], T]) -> Deferred[T]:
        """To be called on the reactor's thread; see L{IWorker}."""
        result: Deferred[T] = Deferred()
        self._leftCount += 1
        self._queue.put((work, result))
        if self._isStarted:
            self._startThreads()
        return result

    def start(self) -> None:
        self._isStarted = True
        self._startThreads()

    def _startThreads(self) -> None:
        threads = self._threads
        while len(threads) < self._leftCount and len(threads) < self._threadCountMax:
            thread = Thread(target=self._serve, name=f"{self._name}-{len(threads)}")
            threads.append(thread)
            thread.start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, result = item
            try:
                outcome = work()
            except BaseException:
                outcome = Failure()
            self._reactor.callFromThread(self._done, result, outcome)
            del item, work, result, outcome  # nothing is held while waiting

    def _done(self, result: Deferred[Any], outcome: Any) -> None:
        self._leftCount -= 1
        if isinstance(outcome, Failure):
            result.errback(outcome)
        else:
            result.callback(outcome)

    def stop(self) -> None:
        self._isStarted = False
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
