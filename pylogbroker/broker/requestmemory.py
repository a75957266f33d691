"""
L{RequestMemory}: the memory for requests that are still arriving.

What must be true: thousands of clients that each begin a large request do not fill the memory; a
client that waits for memory gets it in turn; a client that has memory and does not continue cannot
starve the others.

Each connection may hold a share (C{shareSize}) of a fixed amount without a reservation, at most 960
KiB; while there are few connections, it may receive half as much again at once. Shares are dealt
anew whenever there are a quarter more connections, or few again. The deal subtracts what
connections hold, because they may keep it.

A larger frame first needs a reservation of its whole size: up to 1 MiB from the budget for ordinary
frames, else from the one for large frames. A connection that waits for it is not read. The memory
returns when the request is done. A connection whose frame misses its deadline is closed, but only
while another one waits.

Rejected: counting bytes as they arrive (see L{pylogbroker.limits}); one budget for all frames
(large ones would keep small ones out).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogbroker.limits import MemoryBudget, Reservation

RECEIVE_SIZE_MAX = 1440 << 10
"""
What is received at once is appended partition by partition, so this bounds how many requests share
the cost of an append: for example 120 with a message of 200 bytes, for each of 50 partitions.
"""

SHARE_SIZE_MAX = 960 << 10
"""A little below L{ORDINARY_SIZE_MAX}, so that a frame of 1 MiB has a reservation."""

RECEIVE_SIZE_MIN = 4 << 10
RECEIVE_SIZE_TOTAL = 64 << 20
HELD_SIZE_TOTAL = 2 * RECEIVE_SIZE_TOTAL
"""Bytes that all connections together hold without reservations. Beyond, each has its minimum."""

FEW_COUNT = RECEIVE_SIZE_TOTAL // RECEIVE_SIZE_MAX
DEAL_COUNT = 256
"""Connections made or lost after which shares are dealt anew."""

ORDINARY_SIZE_MAX = 1 << 20
ORDINARY_SIZE_TOTAL = 64 << 20
RATE_MIN = 1 << 20
"""Bytes per second that a sender of a large frame must reach on average, while others wait."""


class RequestMemory:
    """
    The memory budget of requests.

    @ivar receiveSize: bytes that each connection may receive at once.
    @ivar shareSize: bytes that each connection may hold without a reservation.
    @ivar unreservedSize: gives the bytes that all connections hold without reservations.
    @ivar onShareChange: called when C{receiveSize} has changed.
    """

    def __init__(self, clock: Any, largeSizeTotal: int, deadlineMs: int) -> None:
        """
        @param largeSizeTotal: bytes for all frames above 1 MiB.
        @param deadlineMs: the least time that a reserved frame has to arrive.
        """
        self._clock = clock
        self._ordinary = MemoryBudget(ORDINARY_SIZE_TOTAL)
        self._large = MemoryBudget(largeSizeTotal)
        self._deadlineMs = deadlineMs
        self._holders: dict[Reservation, tuple[float, Callable[[], None]]] = {}
        self._check: Any = None
        self._dealtCount = FEW_COUNT
        self._changeCount = 0
        self.unreservedSize: Callable[[], int] = int
        self.onShareChange: Callable[[], object] = int
        self.connectionCount = 0
        self.receiveSize = RECEIVE_SIZE_MAX
        self.shareSize = SHARE_SIZE_MAX

    @property
    def reservedSize(self) -> int:
        return self._ordinary.size + self._large.size

    @property
    def waitingCount(self) -> int:
        return self._ordinary.waitingCount + self._large.waitingCount

    def connectionMade(self) -> None:
        self.connectionCount += 1
        self._changed()

    def connectionLost(self) -> None:
        self.connectionCount -= 1
        self._changed()

    def _changed(self) -> None:
        self._changeCount += 1
        if (
            self._changeCount >= DEAL_COUNT
            or self.connectionCount > self._dealtCount
            or self.connectionCount <= FEW_COUNT < self._dealtCount
        ):
            self._deal()

    def _deal(self) -> None:
        self._changeCount = 0
        if self.connectionCount <= FEW_COUNT:
            self._dealtCount, share = FEW_COUNT, RECEIVE_SIZE_MAX
        else:
            self._dealtCount = self.connectionCount + self.connectionCount // 4
            share = (HELD_SIZE_TOTAL - self.unreservedSize()) // (2 * self._dealtCount)
        before, self.receiveSize = (
            self.receiveSize,
            max(min(share, RECEIVE_SIZE_MAX), RECEIVE_SIZE_MIN),
        )
        self.shareSize = min(self.receiveSize, SHARE_SIZE_MAX)
        if self.receiveSize != before:
            self.onShareChange()

    def reserve(
        self, size: int, granted: Callable[[], None], drop: Callable[[], None]
    ) -> Reservation:
        """
        @param size: bytes of the frame, with its size field.
        @param granted: called later if the reservation is not granted at once.
        @param drop: called when the frame is overdue and another connection waits.
        """
        budget = self._ordinary if size <= ORDINARY_SIZE_MAX else self._large

        def late() -> None:
            self._hold(reservation, drop)
            granted()

        reservation = budget.reserve(min(size, budget.sizeMax), late)
        if reservation.granted:
            self._hold(reservation, drop)
        elif self._check is None:
            self._checkLater()
        return reservation

    def frameComplete(self, reservation: Reservation) -> None:
        """The frame is not overdue any more, however long its request takes."""
        self._holders.pop(reservation, None)

    def release(self, reservation: Reservation) -> None:
        """Return memory, or stop waiting."""
        self._holders.pop(reservation, None)
        reservation.release()

    def _hold(self, reservation: Reservation, drop: Callable[[], None]) -> None:
        self._holders[reservation] = (
            self._clock.seconds() + self._deadlineMs / 1000 + reservation.size / RATE_MIN,
            drop,
        )

    def _checkLater(self) -> None:
        self._check = self._clock.callLater(1, self._dropOverdue)

    def _dropOverdue(self) -> None:
        self._check = None
        now = self._clock.seconds()
        for reservation, (deadline, drop) in list(self._holders.items()):
            if self.waitingCount and deadline <= now and reservation in self._holders:
                drop()
        if self.waitingCount:
            self._checkLater()

    def close(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
