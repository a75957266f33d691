"""
Limits for the whole process.

A L{MemoryBudget} is so many bytes that many askers share. What must be true: what is granted never exceeds the budget by a byte; askers are
served in the order in which they asked, so that a large request is not starved by small ones; whoever waits can go away. Rejected:
counting bytes as they arrive, without a reservation: then five thousand half-received frames can each hold a little, together
all, and none can be finished.

A budget is used from one thread. It calls back, it does not block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable


class Reservation:
    """
    So many bytes of a L{MemoryBudget}, held or waited for.

    @ivar size: bytes.
    @ivar granted: whether they are ours yet.
    """

    __slots__ = ("_budget", "granted", "size")

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self._budget: MemoryBudget | None = budget
        self.size = size
        self.granted = False

    def release(self) -> None:
        """Give the bytes back, or stop waiting for them. Twice does nothing."""
        budget, self._budget = self._budget, None
        if budget is not None:
            budget._release(self)


class MemoryBudget:
    """
    Bytes that many share.

    @ivar sizeMax: bytes that may be out at a time.
    @ivar size: bytes that are out now.
    """

    def __init__(self, sizeMax: int) -> None:
        self.sizeMax = sizeMax
        self.size = 0
        self._waiting: OrderedDict[Reservation, Callable[[], None]] = OrderedDict()

    @property
    def waitingCount(self) -> int:
        """How many askers wait."""
        return len(self._waiting)

    def ask(self, size: int, notify: Callable[[], None]) -> Reservation:
        """
        Ask for bytes.

        @param size: bytes; at most C{sizeMax}.
        @param notify: called once, later, when a grant that had to wait is granted; never called when the returned grant is C{granted} already.
        @raise ValueError: C{size} can never be had.
        """
        if size > self.sizeMax:
            raise ValueError(f"{size} bytes asked of a budget of {self.sizeMax}")
        grant = Reservation(self, size)
        if not self._waiting and self.size + size <= self.sizeMax:
            self._give(grant)
        else:
            self._waiting[grant] = notify
        return grant

    def _give(self, grant: Reservation) -> None:
        self.size += grant.size
        grant.granted = True

    def _release(self, grant: Reservation) -> None:
        if grant.granted:
            self.size -= grant.size
        else:
            del self._waiting[grant]
        while self._waiting:
            first, notify = next(iter(self._waiting.items()))
            if self.size + first.size > self.sizeMax:
                return
            del self._waiting[first]
            self._give(first)
            notify()
