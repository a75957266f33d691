"""
A worker that works when the test tells it to, on the caller's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred


class ManualWorker:
    """
    A manual L{pylogbroker.net.workers.IWorker}: request a flush, see the high watermark unmoved,
    call C{perform}, see it move.

    @ivar jobs: submitted, and not done yet.
    """

    def __init__(self, reactor: Any = None, name: str = "", threadCount: int = 1) -> None:
        self.jobs: deque[tuple[Callable[[], Any], Deferred[Any]]] = deque()

    def submit(self, work: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.jobs.append((work, done))
        return done

    def perform(self) -> None:
        """Do the oldest job. L{IndexError}: there is none."""
        work, done = self.jobs.popleft()
        maybeDeferred(work).chainDeferred(done)

    def performAll(self, countMax: int = 1000) -> int:
        """
        Do all jobs, also those that come meanwhile.

        @return: how many.
        @raise RuntimeError: there were more than C{countMax}.
        """
        for count in range(countMax):
            if not self.jobs:
                return count
            self.perform()
        raise RuntimeError(f"more than {countMax} jobs")

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Do the remaining jobs."""
        self.performAll()
