"""
Owners' nodes: which thread of which member has a partition (spec-0.7 zookeeper §4.4).

An owner node of ours is watched, since anybody can delete it: 0.7's C{ConsoleConsumer --from-beginning} does so with all that a group has. Until it is made
again, another member may claim the partition.

An owner's node that is nobody's keeps that partition from us, and nothing else. What is not ours is never deleted. So many at a time: how many partitions there
are stands in a node that anybody can write.
"""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.consumer.childwatches import ChildWatches
from pylogbroker.consumer.rebalance import Assignment
from pylogbroker.errors import BadVersionException, NoNodeException
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import BATCH_COUNT_MAX, batched, gatherInBatches, gatherSettled
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.ephemeral import ConflictError, claim


class PartitionOwners:
    """
    Claims partitions for one member, and lets go of them.
    """

    _log = Logger()

    def __init__(
        self, zookeeper: IZookeeper, watches: ChildWatches, groupPaths: GroupPaths, consumerId: str
    ) -> None:
        """
        @param watches: armed on each owner node that is ours.
        @param consumerId: for the log.
        """
        self._zookeeper = zookeeper
        self._watches = watches
        self._paths = groupPaths
        self._consumerId = consumerId

    async def claim(self, share: Assignment) -> frozenset[PartitionId]:
        """
        @return: those that are ours now; the others are somebody else's.
        @raise pylogbroker.errors.ZookeeperError: something went wrong, with one of them at least.
        """
        claimed = await gatherInBatches(self._claimPlace, share.items())
        return frozenset(place for place in claimed if place is not None)

    async def _claimPlace(self, item: tuple[PartitionId, str]) -> PartitionId | None:
        place, thread = item
        try:
            await claim(
                self._zookeeper, self._paths.owner(place.topic, place.partition), thread.encode()
            )
        except ConflictError as conflict:
            self._log.debug(
                "{consumerId}: {place} is not free: {conflict}",
                consumerId=self._consumerId,
                place=place,
                conflict=conflict,
            )
            return None
        return place if await self._isOurs(item) else None

    async def missing(self, share: Assignment) -> frozenset[PartitionId]:
        """
        Those of our partitions whose owner nodes are not ours any more. Only nodes whose watches have fired are read.

        @raise pylogbroker.errors.ZookeeperError: one of them cannot be read.
        """
        found = await gatherInBatches(self._isOurs, share.items())
        return frozenset(
            place for place, isAllowedHost in zip(share, found, strict=True) if not isAllowedHost
        )

    async def _isOurs(self, item: tuple[PartitionId, str]) -> bool:
        """Whether an owner node is our session's, with our thread's name in it; then it is watched."""
        place, thread = item
        path = self._paths.owner(place.topic, place.partition)
        if self._watches.isWatched(path):
            return True
        found = await self._watches.node(path)
        if found is None:
            return False
        data, stat = found
        isAllowedHost = (
            stat.ephemeralOwner == self._zookeeper.session_id and data == thread.encode()
        )
        if not isAllowedHost:
            self._watches.forget(path)
        return isAllowedHost

    async def disown(self, share: Assignment) -> None:
        """
        Let go of partitions, as far as they are still ours. One that cannot be deleted keeps none of the others: with a session that goes on, they would stay.

        @raise pylogbroker.errors.ZookeeperError: something went wrong, with one of them at least; when all were tried.
        """
        failures: list[Failure] = []
        for some in batched(share.items(), BATCH_COUNT_MAX):
            failures += [
                outcome
                for outcome in await gatherSettled([self._disownPlace(item) for item in some])
                if isinstance(outcome, Failure)
            ]
            if any(failure.check(CancelledError) for failure in failures):
                break  # who is broken off begins no more
        if failures:
            failures[0].raiseException()

    async def _disownPlace(self, item: tuple[PartitionId, str]) -> None:
        place, thread = item
        path = self._paths.owner(place.topic, place.partition)
        self._watches.forget(path)
        await self.deleteIfOwned(path, thread.encode())

    async def deleteIfOwned(self, path: str, data: bytes | None = None) -> None:
        """
        Delete a node if it is still our session's.

        @param data: what we wrote; if something else is there, it stays.
        """
        try:
            found, stat = await self._zookeeper.get(path)
            if stat.ephemeralOwner == self._zookeeper.session_id and data in (None, found):
                await self._zookeeper.delete(path, stat.version)
        except (NoNodeException, BadVersionException):
            pass
