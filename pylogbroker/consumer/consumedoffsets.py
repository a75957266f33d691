"""
Where a member of a group is: what was handed out, what is stored, and which of the two to go on with.

Streams move a position when they hand out a message; a commit stores those that have moved. What a member knows of the store is what it read there last, and
what it tried to write since: a write whose answer was lost may have been made, or not. So when a partition comes back (after a session expired, say), and the
store says one of these things, then nobody else has stored a position of it, and the member goes on where it was. So it does when the store says nothing any
more: positions were deleted, and nobody has stored one since. If the store says something else, somebody else had the partition meanwhile, and what they
stored counts.

Positions in ZooKeeper can be deleted by anybody. So a commit also stores, as every commit of 0.7.2 does, those that have not moved and are gone from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.defer import CancelledError, DeferredLock
from twisted.logger import Logger

from pylogbroker.consumer.offsetstores import IOffsetStore
from pylogbroker.errors import ZookeeperError
from pylogbroker.types import PartitionId, consumedCount

_KNOWN_COUNT_MAX = 100
"""Writes without an answer that are remembered, for each partition; one that is forgotten looks like somebody else's, and then what is stored counts."""


_Exact = tuple[int | None, int]


def _exactly(offset: int | None) -> _Exact:
    """An offset, and how many messages of the set that stands there are done; as a number the one is as good as the other."""
    return offset, 0 if offset is None else consumedCount(offset)


class Positions:
    """
    The positions of one member.

    @ivar consumed: for each partition what to commit: the next offset of the last message handed out, at first the offset from which it is read.
    """

    _log = Logger()

    def __init__(self, store: IOffsetStore) -> None:
        self.consumed: dict[PartitionId, int] = {}
        self._store = store
        self._known: dict[
            PartitionId, set[_Exact]
        ] = {}  # what the store may say if nobody else wrote to it
        self._safe: dict[PartitionId, _Exact] = {}  # what it says for certain
        self._turn = DeferredLock()

    async def find(self, place: PartitionId) -> int | None:
        """
        Where to go on with a partition.

        @return: L{None} when nobody has been there.
        @raise Exception: what the store's C{load} fails with.
        """
        stored = await self._store.load(place)
        exact = _exactly(stored)
        if stored is not None and exact not in self._known.get(place, ()):
            self.consumed.pop(place, None)
        self._known[place], self._safe[place] = {exact}, exact
        return self.consumed.get(place, stored)

    def begin(self, place: PartitionId, offset: int) -> None:
        """A partition is read from here on."""
        self.consumed[place] = offset

    async def commit(self, places: Callable[[], Iterable[PartitionId]]) -> list[PartitionId]:
        """
        Store what has moved, or is gone from the store. One commit at a time; who comes meanwhile waits.

        @param places: says, when it is this one's turn, which are ours.
        @return: those that could not be stored.
        """
        async with self._turn:
            consumed = {place: self.consumed[place] for place in places() if place in self.consumed}
            stored = [
                place
                for place, offset in consumed.items()
                if self._safe.get(place) == _exactly(offset)
            ]
            unsafe = await self._write(
                {
                    place: offset
                    for place, offset in consumed.items()
                    if self._safe.get(place) != _exactly(offset)
                }
            )
            missing = await self._missing(stored)
            return unsafe + await self._write({place: consumed[place] for place in missing})

    async def _missing(self, places: list[PartitionId]) -> list[PartitionId]:
        """Those that are gone from the store; none if that cannot be found out, since the next commit asks again."""
        ask = getattr(self._store, "missing", None)
        if ask is None or not places:
            return []
        try:
            found: list[PartitionId] = await ask(places)
        except ZookeeperError:
            return []
        return found

    async def put(self, place: PartitionId, offset: int) -> None:
        """Store a position at once, without anything having been handed out. That it cannot be stored is only logged."""
        async with self._turn:
            await self._write({place: offset})

    async def _write(self, positions: dict[PartitionId, int]) -> list[PartitionId]:
        if not positions:
            return []
        for place, offset in positions.items():
            known = self._known.setdefault(place, set())
            if len(known) >= _KNOWN_COUNT_MAX:
                known.pop()
            known.add(_exactly(offset))
            self._safe.pop(place, None)
        try:
            safe = await self._store.commit(positions)
        except CancelledError:
            raise
        except Exception:
            self._log.failure("Positions could not be stored")
            safe = {}
        self._known.update({place: {_exactly(offset)} for place, offset in safe.items()})
        self._safe.update({place: _exactly(offset) for place, offset in safe.items()})
        return [place for place in positions if place not in safe]

    def forget(self, places: Iterable[PartitionId]) -> None:
        """They are others' now: where we were counts no more."""
        for place in places:
            self.consumed.pop(place, None)
            self._known.pop(place, None)
            self._safe.pop(place, None)
