"""
A source's stored offsets: only what the target has confirmed.

A consumer commits where it is, which is what it has handed out. This store stands between it and the one where offsets really are kept (ZooKeeper), and
stores what the L{pylogbroker.mirror.offsettracker.Ledger} says instead. It waits a moment for what is under way, so that a partition that goes to another mirror goes
with all that was read of it; when the target does not confirm in time, less is stored, and that comes again.

A partition is read from when its offset was loaded; so that is where it is taken over, too (C{taken}).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError  # noqa: A004

from pylogbroker.consumer.offsetstores import IOffsetStore, missingOffsets
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.types import PartitionId

PATIENCE_MS = 5_000
"""How long a commit waits for what is under way."""


class ConfirmedOffsetStore:
    """
    An L{IOffsetStore} that knows of no more than the ledger.
    """

    def __init__(
        self,
        clock: Any,
        store: IOffsetStore,
        ledger: OffsetTracker,
        taken: Callable[[PartitionId], Awaitable[None]],
        committed: Callable[[Mapping[PartitionId, int]], None] = lambda offsets: None,
        patienceMs: int = PATIENCE_MS,
    ) -> None:
        """
        @param store: where offsets are kept.
        @param taken: called before a partition is read, with it; if it fails, it is called again later.
        @param committed: told of what was stored.
        """
        self._clock = clock
        self._store = store
        self._ledger = ledger
        self._taken = taken
        self._committed = committed
        self._patienceMs = patienceMs

    def load(self, place: PartitionId) -> Deferred[int | None]:
        """Where to begin, when all that is still under way of an earlier time is confirmed. (Else it would be sent twice.)"""
        return Deferred.fromCoroutine(self._load(place))

    async def _load(self, place: PartitionId) -> int | None:
        await self._ledger.settled([place])
        self._ledger.takeOver(place)
        await self._taken(place)
        offset = await self._store.load(place)
        self._ledger.begin(place, offset)
        return offset

    def missing(self, partitions: Iterable[PartitionId]) -> Deferred[list[PartitionId]]:
        """Those whose stored offsets were deleted."""
        return missingOffsets(self._store, partitions)

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        """Store what is confirmed of them; what that was is the answer."""
        return Deferred.fromCoroutine(self._commit(positions))

    async def _commit(self, positions: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        settled = self._ledger.settled(positions)
        if not settled.called:
            try:
                await settled.addTimeout(self._patienceMs / 1000, self._clock)
            except TimeoutError:
                pass
        found = {
            place: self._ledger.committable(place, position)
            for place, position in positions.items()
        }
        stored = await self._store.commit(
            {place: offset for place, offset in found.items() if offset is not None}
        )
        self._committed(stored)
        return stored
