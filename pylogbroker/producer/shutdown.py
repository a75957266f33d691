"""
An orderly end: once, for all who ask for it, within a time, and before the reactor stops.

What must be true: it ends when the time is over, or as soon as what was cut short then is gone, which takes no time. So each wait in it has to come to an end
by the abort, or be one that nobody insists on (L{GracefulShutdown.within}): a fault in somebody's books, or a server that does not answer, is no reason to wait on.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import TimedOutError
from pylogbroker.net.timer import Timer

log = Logger()


class GracefulShutdown:
    """
    Closes a producer.

    @ivar isAborted: whether the time was over before it was done.
    """

    def __init__(
        self,
        reactor: Any,
        timeoutMs: float,
        begin: Callable[[], None],
        close: Callable[[], Coroutine[Any, Any, None]],
        abort: Callable[[TimedOutError], None],
        losses: Callable[[], str],
    ) -> None:
        """
        @param reactor: for time, and for C{beforeStop}.
        @param timeoutMs: for all of it, if nothing else is said.
        @param begin: called first, once: nothing is taken any more.
        @param close: does it.
        @param abort: called when the time is over; what C{close} waits for is to come to an end then, unless it does so C{within} the time.
        @param losses: what was lost, for the error.
        """
        self.isAborted = False
        self._reactor = reactor
        self._timeoutMs = timeoutMs
        self._begin = begin
        self._close = close
        self._abort = abort
        self._losses = losses
        self._closers: list[Deferred[None]] | None = None
        self._waitedFor: Deferred[None] | None = None
        self._isDone = False
        self._trigger: Any = None

    def beforeStop(self) -> None:
        """Have the reactor do it before it stops, and wait for it."""
        if self._trigger is None and self._closers is None:
            self._trigger = self._reactor.addSystemEventTrigger(
                "before", "shutdown", self._closeAtStop
            )

    def _closeAtStop(self) -> Deferred[None]:
        self._trigger = None
        return self.close().addErrback(
            lambda failure: log.error("Closing the producer: {error}", error=failure.value)
        )

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        @param timeoutMs: for all of it.
        @return: fires when it is done. Fails with L{TimedOutError} when it was cut short, or as closing failed; who asks after that is not told.
        """
        waiter: Deferred[None] = Deferred()
        if self._closers is not None:
            if self._isDone:
                return succeed(None)
            self._closers.append(waiter)
            return waiter
        self._closers = [waiter]
        if self._trigger is not None:
            trigger, self._trigger = self._trigger, None
            self._reactor.removeSystemEventTrigger(trigger)
        self._begin()
        if timeoutMs is None:
            timeoutMs = self._timeoutMs
        timer = Timer(self._reactor)
        timer.start(timeoutMs, self._timeIsOver, timeoutMs)
        Deferred.fromCoroutine(self._close()).addBoth(self._closed, timer)
        return waiter

    def _timeIsOver(self, timeoutMs: float) -> None:
        self.isAborted = True
        self._abort(TimedOutError(f"the producer could not be closed within {timeoutMs:g} ms"))
        if self._waitedFor is not None:
            self._waitedFor.cancel()

    async def within(self, work: Deferred[None]) -> None:
        """
        To be used by C{close}: wait for something while there is time. When that is over it is cancelled, and whatever goes on of it goes on by itself.
        """
        if self.isAborted:
            work.cancel()
        self._waitedFor = work
        try:
            await work
        except CancelledError:
            pass  # the time is over; nobody else has it to cancel
        finally:
            self._waitedFor = None

    def _closed(self, result: Any, timer: Timer) -> None:
        timer.stop()
        if self.isAborted:
            result = Failure(
                TimedOutError(f"it took too long to close the producer: {self._losses()}")
            )
        self._isDone = True
        closers, self._closers = self._closers or [], []
        for closer in closers:
            if isinstance(result, Failure):
                closer.errback(result)
            else:
                closer.callback(None)
