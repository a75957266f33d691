"""
Limits for the whole process.

A L{MemoryBudget} is a number of bytes that many callers share. What must be true: reservations
never exceed the budget; callers are served in order, so that small requests do not starve a large
one; a waiting caller can withdraw. Rejected: counting bytes as they arrive, without a reservation.
Then five thousand half-received frames could hold the whole budget, and none could be finished.

A budget is used from one thread. It calls back, it does not block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Reservation:
    """
    Bytes of a L{MemoryBudget}, held or waited for.

    @ivar size: bytes.
    @ivar granted: whether they are held.
    """

    _budget: MemoryBudget | None
    size: int
    granted: bool = False

    def release(self) -> None:
        """Return the bytes, or stop waiting for them. A second call does nothing."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget._release(self)


class MemoryBudget:
    """
    Bytes that many callers share.

    @ivar sizeMax: bytes that may be reserved.
    @ivar size: bytes that are reserved.
    """

    def __init__(self, sizeMax: int) -> None:
        self.sizeMax = sizeMax
        self.size = 0
        self._waiting: OrderedDict[Reservation, Callable[[], None]] = OrderedDict()

    @property
    def waitingCount(self) -> int:
        """Reservations that wait."""
        return len(self._waiting)

    def reserve(self, size: int, notify: Callable[[], None]) -> Reservation:
        """
        Reserve bytes.

        @param size: bytes; at most C{sizeMax}.
        @param notify: called once, later, when a reservation that had to wait is granted; never if
            the returned one is C{granted} already.
        @raise ValueError: C{size} exceeds the budget.
        """
        if size > self.sizeMax:
            raise ValueError(f"{size} bytes asked of a budget of {self.sizeMax}")
        reservation = Reservation(self, size)
        if not self._waiting and self.size + size <= self.sizeMax:
            self._grant(reservation)
        else:
            self._waiting[reservation] = notify
        return reservation

    def _grant(self, reservation: Reservation) -> None:
        self.size += reservation.size
        reservation.granted = True

    def _release(self, reservation: Reservation) -> None:
        if reservation.granted:
            self.size -= reservation.size
        else:
            del self._waiting[reservation]
        while self._waiting:
            first, notify = next(iter(self._waiting.items()))
            if self.size + first.size > self.sizeMax:
                return
            del self._waiting[first]
            self._grant(first)
            notify()
