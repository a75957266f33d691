"""
Tracks which source offsets the target has confirmed, and commits only those.

Invariant: the committed offset of a partition never has an unconfirmed message before it. Batches
complete out of order; the committable offset is the start of the oldest unconfirmed batch.

A partition that returns (after an expired session, or from another mirror) gets a new tracker.
Batches still in flight count in the old one, which is no longer read; L{OffsetTracker.takeBack}
reads it on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError  # noqa: A004

from pylogbroker.consumer.offsetstores import IOffsetStore, missingOffsets
from pylogbroker.net.deferreds import Waiters, asDeferred, gatherAll
from pylogbroker.types import PartitionId


@dataclass(eq=False, slots=True)
class InFlightBatch:
    """
    One registered batch.

    @ivar nextOffset: behind its last message; L{None} once the source has restarted.
    @ivar waiters: wait until this batch and all before it are confirmed.
    """

    tracker: PartitionTracker
    nextOffset: int | None
    isDone: bool = False
    waiters: Waiters[None] = field(default_factory=Waiters)


@dataclass(eq=False, slots=True)
class PartitionTracker:
    """
    One source partition while this mirror owns it.

    @ivar confirmed: every message before this offset is confirmed; L{None} if unknown.
    @ivar isBegun: whether the start offset is known.
    @ivar handed: behind the last registered message.
    @ivar readBoundary: the same offset, if a reader can start there; L{None} inside a wrapper.
    @ivar inFlight: the registered batches in order; the first is unconfirmed.
    """

    confirmed: int | None
    isBegun: bool
    handed: int | None = None
    readBoundary: int | None = None
    inFlight: deque[InFlightBatch] = field(default_factory=deque)


class OffsetTracker:
    """The trackers of one source."""

    def __init__(self) -> None:
        self._partitions: dict[PartitionId, PartitionTracker] = {}
        self._given: dict[PartitionId, PartitionTracker] = {}  # given up, or lost

    def __repr__(self) -> str:
        return f"<OffsetTracker, {len(self._partitions)} partitions>"

    def reset(self, partitionId: PartitionId) -> None:
        """
        Forget a partition that this mirror is about to own, because another mirror may have owned
        it.
        """
        self._partitions[partitionId] = PartitionTracker(None, False)

    def begin(self, partitionId: PartitionId, offset: int | None) -> None:
        """
        Start a partition.

        @param offset: its stored offset; L{None} without one.
        """
        self._partitions[partitionId] = PartitionTracker(offset, True)

    def giveUp(self, partitionId: PartitionId) -> None:
        """A partition may go to another mirror; L{takeBack} is for when it returns."""
        known = self._partitions.get(partitionId)
        if known is not None:
            self._given[partitionId] = known
        self.reset(partitionId)

    def forgetGiven(self, topic: str) -> None:
        """Another topic has the name now: what was sent of the old one says nothing about it."""
        for partitionId in [each for each in self._given if each.topic == topic]:
            del self._given[partitionId]

    def takeBack(self, partitionId: PartitionId, offset: int | None) -> int | None:
        """
        Start a partition. One that this mirror has given up before goes on behind what was
        registered: that is confirmed, or still in flight, also if it could not be committed.

        @param offset: its stored offset; L{None} without one.
        @return: where to start; L{None}: where a partition without a stored offset starts.
        """
        given = self._given.pop(partitionId, None)
        if given is None or given.handed is None or (offset or 0) > given.handed:
            self.begin(partitionId, offset)
            return offset
        self._partitions[partitionId] = given
        return given.handed

    def register(
        self, partitionId: PartitionId, nextOffset: int, isWhole: bool = True
    ) -> InFlightBatch:
        """
        Register a batch that is about to be sent.

        @param nextOffset: behind its last message.
        @param isWhole: whether a reader that starts at C{nextOffset} gets the next message first.
            Inside a wrapper it gets the wrapper's first messages again.
        """
        tracker = self._partitions.setdefault(partitionId, PartitionTracker(None, True))
        before = tracker.confirmed if tracker.handed is None else tracker.handed
        if before is not None and nextOffset < before:
            tracker.confirmed = (
                None  # the source has begun anew; what was confirmed before says nothing about it
            )
            for each in tracker.inFlight:
                each.nextOffset = None  # callers still wait for it
        tracker.handed = nextOffset
        tracker.readBoundary = nextOffset if isWhole else None
        batch = InFlightBatch(tracker, nextOffset)
        tracker.inFlight.append(batch)
        return batch

    def confirm(self, batch: InFlightBatch) -> None:
        """The target has confirmed a batch."""
        batch.isDone = True
        tracker, inFlight = batch.tracker, batch.tracker.inFlight
        confirmed = []
        while inFlight and inFlight[0].isDone:
            confirmed.append(inFlight.popleft())
            tracker.confirmed = confirmed[-1].nextOffset
        for each in confirmed:
            each.waiters.fire(None)

    def discardAfter(self, partitionId: PartitionId, batch: InFlightBatch) -> bool:
        """
        Forget the batches behind one; they will be registered again.

        @return: whether this mirror still owns the partition.
        """
        tracker = batch.tracker
        while tracker.inFlight[-1] is not batch:
            batch.waiters.wait().addCallback(tracker.inFlight.pop().waiters.fire)
        tracker.handed = batch.nextOffset
        tracker.readBoundary = None
        return self._partitions.get(partitionId) is tracker

    def committableOffset(self, partitionId: PartitionId, position: int) -> int | None:
        """
        The offset that may be committed.

        @param position: the consumer's position; it has delivered every message before it.
        @return: the position if nothing is in flight; otherwise the start of the oldest unconfirmed
            batch, or L{None} if it is not known.
        """
        tracker = self._partitions.get(partitionId)
        return position if tracker is None or not tracker.inFlight else tracker.confirmed

    def handed(self, partitionId: PartitionId) -> int | None:
        """Behind the last registered message; L{None} if there is none."""
        tracker = self._partitions.get(partitionId)
        return None if tracker is None else tracker.handed

    def confirmed(self, partitionId: PartitionId) -> int | None:
        """
        The offset before which all messages are confirmed, or were when the partition was taken
        over; L{None} if unknown.
        """
        tracker = self._partitions.get(partitionId)
        return None if tracker is None else tracker.confirmed

    def readBoundary(self, partitionId: PartitionId, position: int | None) -> int | None:
        """
        The offset from which nothing has been registered.

        @param position: the consumer's position; it counts while nothing is registered.
        @return: L{None} if it is not known, or inside a wrapper.
        """
        tracker = self._partitions.get(partitionId)
        if tracker is None or not tracker.isBegun:
            return None
        return position if tracker.handed is None else tracker.readBoundary

    def whenConfirmed(self, partitionIds: Iterable[PartitionId]) -> Deferred[list[None]]:
        """
        @return: fires when all batches of these partitions that are in flight now are confirmed;
            does not fail. Can be cancelled.
        """
        trackers = [self._partitions.get(partitionId) for partitionId in partitionIds]
        return Deferred.fromCoroutine(
            gatherAll(
                tracker.inFlight[-1].waiters.wait()
                for tracker in trackers
                if tracker is not None and tracker.inFlight
            )
        )


COMMIT_TIMEOUT_MS = 5_000
"""How long a commit waits for what is under way."""


class ConfirmedOffsetStore:
    """
    An L{IOffsetStore} that stores no more than the target has confirmed.

    It stands between the consumer, which commits its position, and the real store. A commit first
    waits for the batches in flight, so that a partition moves to another mirror with everything
    that was read. If the target does not confirm in time, it stores less, and those messages are
    read again. Loading an offset takes the partition over.
    """

    def __init__(
        self,
        clock: Any,
        store: IOffsetStore,
        tracker: OffsetTracker,
        onTake: Callable[[PartitionId], Awaitable[None]],
        onCommit: Callable[[Mapping[PartitionId, int]], None] = lambda offsets: None,
        timeoutMs: int = COMMIT_TIMEOUT_MS,
    ) -> None:
        """
        @param store: the store of the group's offsets.
        @param onTake: called with a partition before it is read; after a failure it is called again
            later.
        @param onCommit: called with the stored offsets.
        """
        self._clock = clock
        self._store = store
        self._tracker = tracker
        self._onTake = onTake
        self._onCommit = onCommit
        self._timeoutMs = timeoutMs

    @asDeferred
    async def load(self, partitionId: PartitionId) -> int | None:
        """
        The stored offset, once every earlier batch of the partition is confirmed (otherwise it
        would be sent twice).
        """
        await self._tracker.whenConfirmed([partitionId])
        self._tracker.reset(partitionId)
        await self._onTake(partitionId)
        offset = await self._store.load(partitionId)
        self._tracker.begin(partitionId, offset)
        return offset

    def missing(self, partitions: Iterable[PartitionId]) -> Deferred[list[PartitionId]]:
        """The partitions whose stored offsets were deleted."""
        return missingOffsets(self._store, partitions)

    @asDeferred
    async def commit(self, positions: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """
        Store the confirmed part.

        @return: fires with the stored offsets.
        """
        try:
            await self._tracker.whenConfirmed(positions).addTimeout(
                self._timeoutMs / 1000, self._clock
            )
        except TimeoutError:
            pass
        found = {
            partitionId: self._tracker.committableOffset(partitionId, position)
            for partitionId, position in positions.items()
        }
        stored = await self._store.commit(
            {partitionId: offset for partitionId, offset in found.items() if offset is not None}
        )
        self._onCommit(stored)
        return stored
