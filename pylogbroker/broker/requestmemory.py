"""
Memory for requests that are still arriving, shared among all connections of a broker.

What must be true: five thousand clients that each begin a frame of 100 MB, and stop half-way, must not fill the memory, nor keep out a
client with ordinary requests, nor keep out for ever another one with large ones.

So memory comes from three places. What a connection may hold without asking is twice what it receives at once (L{RequestMemory.receiveSize}), and that
is a share of a fixed amount: 256 KiB while there are few connections, less as there are more. Shares are dealt out anew each time that there are
a quarter more connections, after looking how much the old ones hold: who filled a large share while there were few keeps it, and is not counted
on to give it back. A frame that is larger asks, before any of it is kept beyond
that, for its whole size: up to 1 MiB of the budget for ordinary frames, else of the one for large frames. Who has to wait is not
read from meanwhile. The memory is given back when the request has been carried out, which takes long while producers are held back. Who was
granted memory and has not sent the frame by its deadline (a time, and more for more bytes) loses the connection, but only while somebody waits.
Rejected: to count bytes as they arrive (see L{pylogbroker.limits}); one budget for all (large frames would keep out small ones).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogbroker.limits import MemoryBudget, Reservation

RECEIVE_SIZE_MAX = 256 << 10
RECEIVE_SIZE_MIN = 4 << 10
RECEIVE_SIZE_TOTAL = 64 << 20
HELD_SIZE_TOTAL = 2 * RECEIVE_SIZE_TOTAL
"""Bytes that all connections together hold without having asked. Beyond that each has its least."""

FEW_COUNT = RECEIVE_SIZE_TOTAL // RECEIVE_SIZE_MAX
DEAL_COUNT = 256
"""After so many connections made or lost, shares are dealt out anew."""

ORDINARY_SIZE_MAX = 1 << 20
ORDINARY_SIZE_TOTAL = 64 << 20
RATE_MIN = 1 << 20
"""Bytes a second that a sender of a large frame must reach in the long run, while others wait."""


class RequestMemory:
    """
    Grants memory to connections.

    @ivar receiveSize: bytes that each connection may receive at once, and hold without asking.
    @ivar connectionCount: how many there are.
    @ivar measure: tells how many bytes all of them hold without having asked.
    """

    def __init__(self, clock: Any, largeSizeTotal: int, deadlineMs: int) -> None:
        """
        @param clock: an L{twisted.internet.interfaces.IReactorTime}.
        @param largeSizeTotal: bytes for frames above 1 MiB, all together.
        @param deadlineMs: how long a granted frame may take at least, before it can be cut off for one that waits.
        """
        self._clock = clock
        self._ordinary = MemoryBudget(ORDINARY_SIZE_TOTAL)
        self._large = MemoryBudget(largeSizeTotal)
        self._deadlineMs = deadlineMs
        self._holders: dict[Reservation, tuple[float, Callable[[], None]]] = {}
        self._look: Any = None
        self._dealtCount = FEW_COUNT
        self._changeCount = 0
        self.measure: Callable[[], int] = int
        self.connectionCount = 0
        self.receiveSize = RECEIVE_SIZE_MAX

    @property
    def grantedSize(self) -> int:
        """Bytes granted now."""
        return self._ordinary.size + self._large.size

    @property
    def waitingCount(self) -> int:
        """Connections that wait for memory."""
        return self._ordinary.waitingCount + self._large.waitingCount

    def connectionMade(self) -> None:
        self.connectionCount += 1
        self._changed()

    def connectionLost(self) -> None:
        self.connectionCount -= 1
        self._changed()

    def _changed(self) -> None:
        self._changeCount += 1
        if self._changeCount >= DEAL_COUNT or self.connectionCount > self._dealtCount:
            self._deal()

    def _deal(self) -> None:
        """Share out what is not held, among a quarter more connections than there are."""
        self._changeCount = 0
        if self.connectionCount <= FEW_COUNT:
            self._dealtCount, share = FEW_COUNT, RECEIVE_SIZE_MAX
        else:
            self._dealtCount = self.connectionCount + self.connectionCount // 4
            share = (HELD_SIZE_TOTAL - self.measure()) // (2 * self._dealtCount)
        self.receiveSize = max(min(share, RECEIVE_SIZE_MAX), RECEIVE_SIZE_MIN)

    def ask(self, size: int, granted: Callable[[], None], cut: Callable[[], None]) -> Reservation:
        """
        Ask for memory for a frame.

        @param size: bytes of the frame, with its size field.
        @param granted: called later if it is not granted at once.
        @param cut: called when the frame is overdue and another one waits.
        """
        budget = self._ordinary if size <= ORDINARY_SIZE_MAX else self._large

        def late() -> None:
            self._hold(grant, cut)
            granted()

        grant = budget.reserve(min(size, budget.sizeMax), late)
        if grant.granted:
            self._hold(grant, cut)
        elif self._look is None:
            self._lookLater()
        return grant

    def arrived(self, grant: Reservation) -> None:
        """The frame is whole: its memory is not overdue any more, however long the request waits to be carried out."""
        self._holders.pop(grant, None)

    def release(self, grant: Reservation) -> None:
        """Give memory back, or stop waiting."""
        self._holders.pop(grant, None)
        grant.release()

    def _hold(self, grant: Reservation, cut: Callable[[], None]) -> None:
        self._holders[grant] = (
            self._clock.seconds() + self._deadlineMs / 1000 + grant.size / RATE_MIN,
            cut,
        )

    def _lookLater(self) -> None:
        self._look = self._clock.callLater(1, self._cutOverdue)

    def _cutOverdue(self) -> None:
        self._look = None
        now = self._clock.seconds()
        for grant, (deadline, cut) in list(self._holders.items()):
            if self.waitingCount and deadline <= now and grant in self._holders:
                cut()
        if self.waitingCount:
            self._lookLater()

    def close(self) -> None:
        """Stop looking."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
