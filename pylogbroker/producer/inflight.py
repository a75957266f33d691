"""
How many messages a producer may have under way, and what happens to those for which there is no room.

All that was accepted and is not settled counts: messages that wait for their batch, for a broker to be found, for a connection, for the socket,
for a confirmation. 0.7 counts only the first, and for each broker by itself. What is over the limit waits outside, in order, and as long as the policy says
(C{queue.enqueueTimeout.ms}); that too has an end, since an application that sends without looking would otherwise fill the memory there: as many bytes as may
be under way, and L{WAITING_COUNT_MAX} messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from pylogbroker.errors import PylogbrokerError, QueueFullError
from pylogbroker.net.timer import Timer

T = TypeVar("T")

WAITING_COUNT_MAX = 250_000
"""Messages outside, each of which takes some 600 bytes besides its own."""


class _Outside:
    """
    Messages that wait for room.
    """

    __slots__ = ("admit", "count", "refuse", "size", "subject", "timer")

    def __init__(
        self,
        count: int,
        size: int,
        subject: Any,
        admit: Callable[[Any], None],
        refuse: Callable[[Any, PylogbrokerError], None],
    ) -> None:
        self.count = count
        self.size = size
        self.subject = subject
        self.admit = admit
        self.refuse = refuse
        self.timer: Timer | None = None


class InFlightLimiter:
    """
    Room for messages.

    @ivar count: messages that are in.
    @ivar size: bytes that they have.
    @ivar waitingCount: messages outside.
    @ivar isReady: whether one more message would go in at once. Kept, since it is asked for each message.
    """

    def __init__(
        self, clock: IReactorTime, countMax: int, sizeMax: int, enqueueTimeoutMs: int
    ) -> None:
        """
        @param countMax: messages that may be in.
        @param sizeMax: bytes that may be in, and again as many outside.
        @param enqueueTimeoutMs: how long to wait outside: 0 not at all, negative for as long as it takes.
        """
        self.count = self.size = self.waitingCount = 0
        self.isReady = countMax > 0 and sizeMax > 0
        self._clock = clock
        self._countMax = countMax
        self._sizeMax = sizeMax
        self._enqueueTimeoutMs = enqueueTimeoutMs
        self._outside: OrderedDict[_Outside, None] = OrderedDict()
        self._waitingSize = 0
        self._isAdmitting = False
        self._idlers: list[Deferred[None]] = []
        self._readers: list[Deferred[None]] = []

    def take(self, count: int, size: int) -> bool:
        """Go in, if there is room and nobody waits. A call that is larger than all room goes when it is alone. Returns whether."""
        newCount, newSize = self.count + count, self.size + size
        if newCount >= self._countMax or newSize >= self._sizeMax or self._outside:
            if self._outside or (
                self.count and (newCount > self._countMax or newSize > self._sizeMax)
            ):
                return False
            self.isReady = False
        self.count, self.size = newCount, newSize
        return True

    def enter(
        self,
        count: int,
        size: int,
        subject: T,
        admit: Callable[[T], None],
        refuse: Callable[[T, PylogbrokerError], None],
    ) -> None:
        """
        Go in, now or later.

        @param subject: what is told to the others.
        @param admit: called with it when they are in.
        @param refuse: called with it and a L{QueueFullError} when the time is over, or what C{refuseAll} was given.
        """
        if self.take(count, size):
            admit(subject)
            return
        timeoutMs = self._enqueueTimeoutMs
        if timeoutMs == 0:
            refuse(subject, QueueFullError(self._fullText()))
            return
        if self._outside and (
            self.waitingCount + count > WAITING_COUNT_MAX
            or self._waitingSize + size > self._sizeMax
        ):
            refuse(
                subject,
                QueueFullError(
                    f"{self._fullText()}, and {self.waitingCount} of {self._waitingSize} wait for room already"
                ),
            )
            return
        outside = _Outside(count, size, subject, admit, refuse)
        self._outside[outside] = None
        self.waitingCount += count
        self._waitingSize += size
        self._measure()
        if timeoutMs > 0:
            outside.timer = Timer(self._clock)
            outside.timer.start(
                timeoutMs,
                self._expire,
                outside,
                QueueFullError(f"{self._fullText()}, for {timeoutMs} ms"),
            )

    def _fullText(self) -> str:
        return f"{self.count} messages of {self.size} bytes are under way, {self._countMax} of {self._sizeMax} may be"

    def _leave(self, outside: _Outside) -> None:
        del self._outside[outside]
        if outside.timer is not None:
            outside.timer.stop()
        self.waitingCount -= outside.count
        self._waitingSize -= outside.size
        self._measure()

    def _expire(self, outside: _Outside, reason: PylogbrokerError) -> None:
        self._leave(outside)
        outside.refuse(outside.subject, reason)
        self._admit()
        self.look()

    def refuseAll(self, reason: PylogbrokerError) -> None:
        """Nobody waits outside any more."""
        for outside in list(self._outside):
            if outside in self._outside:
                self._leave(outside)
                outside.refuse(outside.subject, reason)
        self.look()

    def add(self, count: int, size: int) -> None:
        """Go in, room or not: messages that a hook has made."""
        self.count += count
        self.size += size
        self._measure()

    def release(self, count: int, size: int) -> None:
        """Go out; others come in. To be followed by L{look} when who waited for these messages knows."""
        self.count -= count
        self.size -= size
        self._measure()
        self._admit()

    def _admit(self) -> None:
        if self._isAdmitting:
            return
        self._isAdmitting = True
        try:
            while self._outside:
                first = next(iter(self._outside))
                count, size = self.count + first.count, self.size + first.size
                if self.count and (count > self._countMax or size > self._sizeMax):
                    return
                self.count, self.size = count, size
                self._leave(first)
                first.admit(first.subject)
        finally:
            self._isAdmitting = False

    def look(self) -> None:
        """Tell those who wait for room, or for nothing to be under way."""
        if (
            self._readers
            and self.isReady
            and self.count <= self._countMax // 2
            and self.size <= self._sizeMax // 2
        ):
            readers, self._readers = self._readers, []
            for reader in list(readers):
                if not reader.called:  # or one before has cancelled it
                    reader.callback(None)
        if self._idlers and self.isIdle:
            idlers, self._idlers = self._idlers, []
            for idler in list(idlers):
                if not idler.called:
                    idler.callback(None)

    def _measure(self) -> None:
        self.isReady = (
            not self._outside and self.count < self._countMax and self.size < self._sizeMax
        )

    @property
    def isIdle(self) -> bool:
        """Whether nothing is under way."""
        return not self.count and not self._outside

    def whenReady(self, waiter: Deferred[None] | None = None) -> Deferred[None]:
        """
        Fires when there is room: at once if there is any, and else when half of it is free, so that who comes back need not wait again soon.

        @param waiter: to be fired instead of one that is made here; who cancels it calls L{forget}.
        """
        return self._wait(self._readers, self.isReady, waiter)

    def whenIdle(self) -> Deferred[None]:
        """Fires when nothing is under way."""
        return self._wait(self._idlers, self.isIdle)

    def forget(self, waiter: Deferred[None]) -> None:
        """Who asked C{whenReady} does not wait any more."""
        if waiter in self._readers:
            self._readers.remove(waiter)

    def _wait(
        self, waiting: list[Deferred[None]], isNow: bool, waiter: Deferred[None] | None = None
    ) -> Deferred[None]:
        waiter = Deferred(waiting.remove) if waiter is None else waiter
        if isNow:
            waiter.callback(None)
        else:
            waiting.append(waiter)
        return waiter
