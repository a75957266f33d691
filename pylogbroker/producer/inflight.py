"""
The limit on a producer's messages in flight, and the calls that wait for capacity.

A message is in flight from its acceptance until its outcome is known. (0.7 counts only messages
that wait for their batch, per broker.) A call without capacity waits in order, for at most
C{queue.enqueueTimeout.ms}. Waiting calls have limits, too: the bytes that may be in flight, and
L{WAITING_COUNT_MAX} messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime

from pylogbroker.errors import PylogbrokerError, QueueFullError
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer

WAITING_COUNT_MAX = 250_000
"""Messages that may wait for capacity. Each takes some 600 bytes besides its own."""


@dataclass(slots=True, eq=False)
class _Waiting:
    count: int
    size: int
    call: Any
    timer: Timer


class InFlightMessageLimiter:
    """
    Counts messages in flight, and admits more while there is capacity.

    @ivar count: messages in flight.
    @ivar size: bytes in flight.
    @ivar countMax: messages that may be in flight.
    @ivar sizeMax: bytes that may be in flight.
    @ivar isReady: whether one more message would be admitted at once.
    """

    def __init__(
        self,
        clock: IReactorTime,
        countMax: int,
        sizeMax: int,
        enqueueTimeoutMs: int = -1,
        onAdmitted: Callable[[Any], None] | None = None,
        onRefused: Callable[[Any, PylogbrokerError], None] | None = None,
    ) -> None:
        """
        @param countMax: messages that may be in flight.
        @param sizeMax: bytes that may be in flight, and again bytes that may wait.
        @param enqueueTimeoutMs: how long a call may wait: 0 not at all, negative without limit.
        @param onAdmitted: called with the C{call} of L{acquire} once in flight.
        @param onRefused: called with the C{call} and the reason.
        """
        self.count = self.size = self.waitingCount = 0
        self.isReady = countMax > 0 and sizeMax > 0
        self._clock = clock
        self.countMax = countMax
        self.sizeMax = sizeMax
        self._enqueueTimeoutMs = enqueueTimeoutMs
        self._waiting: OrderedDict[_Waiting, None] = OrderedDict()
        self._waitingSize = 0
        self._isAdmitting = False
        self._onAdmitted: Any = onAdmitted
        self._onRefused: Any = onRefused
        self._idleWaiters: Waiters[None] = Waiters()
        self._readyWaiters: Waiters[None] = Waiters()

    def tryAcquire(self, count: int, size: int) -> bool:
        """
        Take capacity, if there is enough and no call waits. A call that exceeds the whole capacity
        is admitted when nothing else is in flight.
        """
        newCount, newSize = self.count + count, self.size + size
        if newCount >= self.countMax or newSize >= self.sizeMax or self._waiting:
            if self._waiting or not self._fits(count, size):
                return False
            self.isReady = False
        self.count, self.size = newCount, newSize
        return True

    def acquire(self, count: int, size: int, call: Any) -> None:
        if self.tryAcquire(count, size):
            self._onAdmitted(call)
            return
        timeoutMs = self._enqueueTimeoutMs
        if timeoutMs == 0:
            self._onRefused(call, QueueFullError(self._fullText()))
            return
        if self._waiting and (
            self.waitingCount + count > WAITING_COUNT_MAX or self._waitingSize + size > self.sizeMax
        ):
            text = f"{self.waitingCount} messages of {self._waitingSize} bytes wait for capacity"
            self._onRefused(call, QueueFullError(f"{self._fullText()}, and {text} already"))
            return
        waiting = _Waiting(count, size, call, Timer(self._clock))
        self._waiting[waiting] = None
        self.waitingCount += count
        self._waitingSize += size
        self._updateReady()
        if timeoutMs > 0:
            reason = QueueFullError(f"{self._fullText()}, for {timeoutMs} ms")
            waiting.timer.start(timeoutMs, self._expire, waiting, reason)

    def _fits(self, count: int, size: int) -> bool:
        return not self.count or (
            self.count + count <= self.countMax and self.size + size <= self.sizeMax
        )

    def _fullText(self) -> str:
        return (
            f"{self.count} messages of {self.size} bytes are in flight, "
            f"{self.countMax} of {self.sizeMax} may be"
        )

    def _stopWaiting(self, waiting: _Waiting) -> None:
        del self._waiting[waiting]
        waiting.timer.stop()
        self.waitingCount -= waiting.count
        self._waitingSize -= waiting.size
        self._updateReady()

    def _expire(self, waiting: _Waiting, reason: PylogbrokerError) -> None:
        self._stopWaiting(waiting)
        self._onRefused(waiting.call, reason)
        self._admitWaiting()
        self.notify()

    def refuseAll(self, reason: PylogbrokerError) -> None:
        for waiting in list(self._waiting):
            if waiting in self._waiting:
                self._stopWaiting(waiting)
                self._onRefused(waiting.call, reason)
        self.notify()

    def add(self, count: int, size: int) -> None:
        """Count messages that a handler of the application made, even beyond the limit."""
        self.count += count
        self.size += size
        self._updateReady()

    def release(self, count: int, size: int) -> None:
        """
        Give capacity back and admit waiting calls. Call L{notify} once the senders know the
        outcome.
        """
        self.count -= count
        self.size -= size
        self._updateReady()
        self._admitWaiting()

    def _admitWaiting(self) -> None:
        if self._isAdmitting:
            return
        self._isAdmitting = True
        try:
            while self._waiting:
                first = next(iter(self._waiting))
                if not self._fits(first.count, first.size):
                    return
                self.count += first.count
                self.size += first.size
                self._stopWaiting(first)
                self._onAdmitted(first.call)
        finally:
            self._isAdmitting = False

    def notify(self) -> None:
        """Fire the Deferreds of L{whenReady} and L{whenIdle} whose condition holds."""
        if (
            self._readyWaiters
            and self.isReady
            and self.count <= self.countMax // 2
            and self.size <= self.sizeMax // 2
        ):
            self._readyWaiters.fire(None)
        if not self.count and not self._waiting:
            self._idleWaiters.fire(None)

    def _updateReady(self) -> None:
        self.isReady = not self._waiting and self.count < self.countMax and self.size < self.sizeMax

    def fullness(self) -> float:
        """The part of the capacity that messages in flight and waiting calls need; may exceed 1."""
        return max((self.count + self.waitingCount) / self.countMax, self.size / self.sizeMax)

    def whenReady(self) -> Deferred[None]:
        """Fires at once if L{isReady}, otherwise when half of the capacity is free."""
        return succeed(None) if self.isReady else self._readyWaiters.wait()

    def whenIdle(self) -> Deferred[None]:
        return self._idleWaiters.wait() if self.count or self._waiting else succeed(None)
