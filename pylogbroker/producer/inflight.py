"""
The limit on what a producer has in flight, and the calls that wait for capacity.

A message is in flight from its acceptance until its outcome is known: while it waits for its batch,
a broker, a connection, the socket or a confirmation. 0.7 counts only the first, for each broker by
itself. A call that finds no capacity waits in order, for at most C{queue.enqueueTimeout.ms}. The
waiting calls have limits, too: as many bytes as may be in flight, and L{WAITING_COUNT_MAX} messages.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogbroker.errors import PylogbrokerError, QueueFullError
from pylogbroker.net.timer import Timer

WAITING_COUNT_MAX = 250_000
"""Messages that may wait for capacity. Each takes some 600 bytes besides its own."""


class Admission:
    """
    The messages of one call that ask for capacity. Subclasses say what follows.

    @ivar count: messages.
    @ivar size: bytes of these.
    """

    __slots__ = ("count", "size", "timer")

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self.timer: Timer | None = None

    def onAdmitted(self) -> None:
        """The messages are in flight."""
        raise NotImplementedError

    def onRefused(self, reason: PylogbrokerError) -> None:
        """
        The messages are not in flight, and no longer wait.

        @param reason: L{QueueFullError}, or what L{InFlightLimiter.refuseAll} was given.
        """
        raise NotImplementedError


class InFlightLimiter:
    """
    Counts messages in flight, and admits more while there is capacity.

    @ivar count: messages in flight.
    @ivar size: bytes of these.
    @ivar waitingCount: messages that wait for capacity.
    @ivar isReady: whether one more message would be admitted at once.
    """

    def __init__(
        self, clock: IReactorTime, countMax: int, sizeMax: int, enqueueTimeoutMs: int
    ) -> None:
        """
        @param countMax: messages that may be in flight.
        @param sizeMax: bytes that may be in flight; as many may wait.
        @param enqueueTimeoutMs: how long a call may wait: 0 not at all, negative without limit.
        """
        self.count = self.size = self.waitingCount = 0
        self.isReady = countMax > 0 and sizeMax > 0
        self._clock = clock
        self._countMax = countMax
        self._sizeMax = sizeMax
        self._enqueueTimeoutMs = enqueueTimeoutMs
        self._waiting: OrderedDict[Admission, None] = OrderedDict()
        self._waitingSize = 0
        self._isAdmitting = False
        self._idleWaiters: list[Deferred[None]] = []
        self._readyWaiters: list[Deferred[None]] = []

    def tryAcquire(self, count: int, size: int) -> bool:
        """
        Take capacity, if there is enough and no call waits. A call that exceeds the whole capacity
        is admitted when nothing else is in flight.
        """
        newCount, newSize = self.count + count, self.size + size
        if newCount >= self._countMax or newSize >= self._sizeMax or self._waiting:
            if self._waiting or not self._fits(count, size):
                return False
            self.isReady = False
        self.count, self.size = newCount, newSize
        return True

    def acquire(self, admission: Admission) -> None:
        """Admit a call now or later, or refuse it."""
        if self.tryAcquire(admission.count, admission.size):
            admission.onAdmitted()
            return
        timeoutMs = self._enqueueTimeoutMs
        if timeoutMs == 0:
            admission.onRefused(QueueFullError(self._fullText()))
            return
        if self._waiting and (
            self.waitingCount + admission.count > WAITING_COUNT_MAX
            or self._waitingSize + admission.size > self._sizeMax
        ):
            text = f"{self.waitingCount} messages of {self._waitingSize} bytes wait for capacity"
            admission.onRefused(QueueFullError(f"{self._fullText()}, and {text} already"))
            return
        self._waiting[admission] = None
        self.waitingCount += admission.count
        self._waitingSize += admission.size
        self._updateReady()
        if timeoutMs > 0:
            reason = QueueFullError(f"{self._fullText()}, for {timeoutMs} ms")
            admission.timer = Timer(self._clock)
            admission.timer.start(timeoutMs, self._expire, admission, reason)

    def _fits(self, count: int, size: int) -> bool:
        return not self.count or (
            self.count + count <= self._countMax and self.size + size <= self._sizeMax
        )

    def _fullText(self) -> str:
        return (
            f"{self.count} messages of {self.size} bytes are in flight, "
            f"{self._countMax} of {self._sizeMax} may be"
        )

    def _stopWaiting(self, admission: Admission) -> None:
        del self._waiting[admission]
        if admission.timer is not None:
            admission.timer.stop()
        self.waitingCount -= admission.count
        self._waitingSize -= admission.size
        self._updateReady()

    def _expire(self, admission: Admission, reason: PylogbrokerError) -> None:
        self._stopWaiting(admission)
        admission.onRefused(reason)
        self._admitWaiting()
        self.notify()

    def refuseAll(self, reason: PylogbrokerError) -> None:
        """Refuse all calls that wait for capacity."""
        for admission in list(self._waiting):
            if admission in self._waiting:
                self._stopWaiting(admission)
                admission.onRefused(reason)
        self.notify()

    def add(self, count: int, size: int) -> None:
        """Count messages as in flight even beyond the limit: a handler of the application made them."""
        self.count += count
        self.size += size
        self._updateReady()

    def release(self, count: int, size: int) -> None:
        """
        Give capacity back and admit waiting calls. Call L{notify} once the senders of the released
        messages know their outcome.
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
                first.onAdmitted()
        finally:
            self._isAdmitting = False

    def notify(self) -> None:
        """Fire the Deferreds of L{whenReady} and L{whenIdle} whose condition holds."""
        if (
            self._readyWaiters
            and self.isReady
            and self.count <= self._countMax // 2
            and self.size <= self._sizeMax // 2
        ):
            waiters, self._readyWaiters = self._readyWaiters, []
            _fireAll(waiters)
        if self._idleWaiters and not self.count and not self._waiting:
            waiters, self._idleWaiters = self._idleWaiters, []
            _fireAll(waiters)

    def _updateReady(self) -> None:
        self.isReady = (
            not self._waiting and self.count < self._countMax and self.size < self._sizeMax
        )

    def fullness(self) -> float:
        """The part of the capacity that messages in flight and waiting calls need; may exceed 1."""
        return max((self.count + self.waitingCount) / self._countMax, self.size / self._sizeMax)

    def whenReady(self, waiter: Deferred[None] | None = None) -> Deferred[None]:
        """
        @param waiter: fired instead of a new Deferred. Its owner calls L{cancel} when it is cancelled.
        @return: fires at once if L{isReady}, otherwise when half of the capacity is free.
        """
        return self._wait(self._readyWaiters, self.isReady, waiter)

    def whenIdle(self) -> Deferred[None]:
        """Fires when nothing is in flight."""
        return self._wait(self._idleWaiters, not self.count and not self._waiting)

    def cancel(self, waiter: Deferred[None]) -> None:
        """Forget a Deferred that L{whenReady} was given."""
        if waiter in self._readyWaiters:
            self._readyWaiters.remove(waiter)

    def _wait(
        self, waiters: list[Deferred[None]], isNow: bool, waiter: Deferred[None] | None = None
    ) -> Deferred[None]:
        waiter = Deferred(waiters.remove) if waiter is None else waiter
        if isNow:
            waiter.callback(None)
        else:
            waiters.append(waiter)
        return waiter


def _fireAll(waiters: list[Any]) -> None:
    for waiter in list(waiters):
        if not waiter.called:  # a callback of an earlier one may have cancelled it
            waiter.callback(None)
