"""
The books of what was handed on: which messages of each source partition the target has confirmed.

What must be true: the offset of a partition that is committed never has a message before it that the target has not confirmed. Messages go in batches, and
batches are confirmed in any order; so an account keeps its batches in the order in which they were handed on, and what counts is
where the first one begins that is not confirmed.

A partition that comes back (after a session expired, or from another mirror) gets a new account; what is still under way from before counts in the old
one, and nobody looks there any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from twisted.internet.defer import CancelledError, Deferred, DeferredList, succeed

from pylogbroker.types import PartitionId


class InFlightBatch:
    """
    One batch in the books.

    @ivar nextOffset: behind its last message; L{None} once the source has begun anew.
    """

    __slots__ = ("account", "isDone", "nextOffset", "waiters")

    def __init__(self, account: PartitionTracker, nextOffset: int) -> None:
        self.account = account
        self.nextOffset: int | None = nextOffset
        self.isDone = False
        self.waiters: list[Deferred[None]] = []


class PartitionTracker:
    """
    One source partition, while it is ours.

    @ivar confirmed: all before this offset is confirmed; L{None} when nothing is known.
    @ivar isBegun: whether it is known where it begins.
    @ivar handed: behind the last message that was handed on.
    @ivar edge: the same, if it is where a reader can begin; L{None} if it lies inside a wrapper.
    @ivar entries: batches that are under way, in order; the first of them is not confirmed.
    """

    __slots__ = ("confirmed", "edge", "entries", "handed", "isBegun")

    def __init__(self, offset: int | None, isBegun: bool) -> None:
        self.confirmed = offset
        self.isBegun = isBegun
        self.edge: int | None = None
        self.handed: int | None = None
        self.entries: deque[InFlightBatch] = deque()

    def withdraw(self, waiter: Deferred[None]) -> None:
        """It waits no more."""
        for entry in self.entries:
            if waiter in entry.waiters:
                entry.waiters.remove(waiter)


class OffsetTracker:
    """
    The accounts of one source.
    """

    def __init__(self) -> None:
        self._accounts: dict[PartitionId, PartitionTracker] = {}

    def __repr__(self) -> str:
        return f"<Ledger, {len(self._accounts)} partitions>"

    def takeOver(self, place: PartitionId) -> None:
        """A partition is about to be ours: what we knew of it counts no more, since others may have had it."""
        self._accounts[place] = PartitionTracker(None, False)

    def begin(self, place: PartitionId, offset: int | None) -> None:
        """
        A partition is ours from now on.

        @param offset: what was stored of it; L{None} when nothing was.
        """
        self._accounts[place] = PartitionTracker(offset, True)

    def hand(self, place: PartitionId, nextOffset: int, isWhole: bool = True) -> InFlightBatch:
        """
        A batch is handed on.

        @param nextOffset: behind its last message.
        @param isWhole: whether a reader that begins at C{nextOffset} begins with the message behind the last of these: not so inside a wrapper, where it
            gets the wrapper's first messages again.
        """
        account = self._accounts.setdefault(place, PartitionTracker(None, True))
        before = account.confirmed if account.handed is None else account.handed
        if before is not None and nextOffset < before:
            account.confirmed = (
                None  # the source has begun anew; what was confirmed before says nothing about it
            )
            for each in account.entries:
                each.nextOffset = None  # nor what is still under way, which whoever settles accounts waits for all the same
        account.handed = nextOffset
        account.edge = nextOffset if isWhole else None
        entry = InFlightBatch(account, nextOffset)
        account.entries.append(entry)
        return entry

    def done(self, entry: InFlightBatch) -> None:
        """The target has confirmed a batch."""
        entry.isDone = True
        account, entries = entry.account, entry.account.entries
        waiters: list[Deferred[None]] = []
        while entries and entries[0].isDone:
            first = entries.popleft()
            account.confirmed = first.nextOffset
            waiters += first.waiters
        for waiter in waiters:
            waiter.callback(None)

    def discardAfter(self, place: PartitionId, entry: InFlightBatch) -> bool:
        """
        What is behind a batch is to be handed on once more, confirmed or not.

        @return: whether its account is still the partition's.
        """
        account = entry.account
        while account.entries[-1] is not entry:
            entry.waiters += account.entries.pop().waiters
        account.handed = entry.nextOffset
        account.edge = None
        return self._accounts.get(place) is account

    def committable(self, place: PartitionId, position: int) -> int | None:
        """
        What may be committed.

        @param position: where the consumer is, which has handed out all before it.
        @return: that, if nothing is under way; else where the first batch begins that is not confirmed, L{None} if that is not known.
        """
        account = self._accounts.get(place)
        return position if account is None or not account.entries else account.confirmed

    def handed(self, place: PartitionId) -> int | None:
        """Behind the last message that was handed on; L{None} if none was."""
        account = self._accounts.get(place)
        return None if account is None else account.handed

    def confirmed(self, place: PartitionId) -> int | None:
        """All before this offset is confirmed, or was when the partition became ours; L{None} when that is not known."""
        account = self._accounts.get(place)
        return None if account is None else account.confirmed

    def edge(self, place: PartitionId, position: int | None) -> int | None:
        """
        From where on nothing has been handed on yet.

        @param position: where the consumer is; that counts as long as nothing was handed on.
        @return: L{None} when that is not known, or lies inside a wrapper.
        """
        account = self._accounts.get(place)
        if account is None or not account.isBegun:
            return None
        return position if account.handed is None else account.edge

    def settled(self, places: Iterable[PartitionId]) -> Deferred[None]:
        """
        @return: fires when all is confirmed that is under way now, and was handed on of these; does not fail. Can be cancelled.
        """
        waiting: list[Deferred[None]] = []
        for place in places:
            account = self._accounts.get(place)
            if account is not None and account.entries:
                waiter: Deferred[None] = Deferred(account.withdraw)
                account.entries[-1].waiters.append(waiter)
                waiting.append(waiter)
        if not waiting:
            return succeed(None)

        def cancel(all_: Deferred[None]) -> None:
            all_.errback(CancelledError())
            for each in waiting:
                if not each.called:
                    each.addErrback(lambda _failure: None)
                    each.cancel()

        everything: Deferred[None] = Deferred(cancel)

        def over(_results: object) -> None:
            if not everything.called:
                everything.callback(None)

        DeferredList(waiting).addCallback(over)
        return everything
