"""
The nodes of a group in ZooKeeper, without offsets (spec-0.7 zookeeper §4).

What must be true:

  - A watch is armed before its data are read, and stays armed until it fires.
  - Invalid data are logged once and left out: a member's registration or pattern (0.7's members all
    stop at it), a broker, a partition count, a topic's name.
  - Any client can delete owner nodes: 0.7's C{ConsoleConsumer --from-beginning} deletes all of a
    group. So each owner watches its own.
  - A stale owner node blocks only its own partition. A member deletes only its own nodes.
  - Requests are batched, since partition counts are untrusted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import compress
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.cluster import paths
from pylogbroker.cluster.subscription import ISubscription, WildcardSubscription
from pylogbroker.consumer.rebalance import Assignment, GroupState
from pylogbroker.errors import (
    BadVersionException,
    InvalidNameError,
    InvalidPatternError,
    NoNodeException,
)
from pylogbroker.interfaces import IZookeeper, Stat
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.ephemeral import ConflictError, claim

T = TypeVar("T")

TOPIC_SIZE_MAX = 32_767
"""Bytes of a topic's name in a request."""


class GroupWatches:
    """At most one watch for each node: on its children, or on its data."""

    def __init__(self, zookeeper: IZookeeper, changed: Callable[[], None]) -> None:
        self._zookeeper = zookeeper
        self._changed = changed
        self._armed: dict[str, Deferred[Any]] = {}

    async def children(self, path: str) -> list[str]:
        """
        Read and watch a node's children. A missing node has none, and its creation is watched.

        @raise pylogbroker.errors.ZookeeperError: the request failed.
        """
        while path not in self._armed:
            children, fired = self._zookeeper.get_children_and_watch(path)
            try:
                return await self._arm(path, children, fired)
            except NoNodeException:
                pass
            stat, fired = self._zookeeper.exists_and_watch(path)
            if await self._arm(path, stat, fired) is None:
                return []
            fired.cancel()
        try:
            return list(await self._zookeeper.get_children(path))
        except NoNodeException:
            return []

    async def node(self, path: str) -> tuple[bytes, Stat] | None:
        """
        Read and watch a node's data and status; L{None} for a missing node.

        @raise pylogbroker.errors.ZookeeperError: the request failed.
        """
        self.cancel(path)
        found, fired = self._zookeeper.get_and_watch(path)
        try:
            data, stat = await self._arm(path, found, fired)
        except NoNodeException:
            return None
        return data or b"", stat

    def isArmed(self, path: str) -> bool:
        return path in self._armed

    async def _arm(self, path: str, result: Awaitable[T], fired: Deferred[Any]) -> T:
        def over(event: object) -> None:
            if self._armed.get(path) is fired:
                del self._armed[path]
            if not isinstance(event, Failure):
                self._changed()

        self._armed[path] = fired
        fired.addBoth(over)
        try:
            return await result
        except Exception:
            self.cancel(path)
            raise

    def cancel(self, path: str) -> None:
        fired = self._armed.get(path)
        if fired is not None:
            fired.cancel()

    def cancelAll(self) -> None:
        for path in list(self._armed):
            self.cancel(path)


class GroupNodes:
    """
    A group's nodes as one member reads and writes them: the member's registration, what its
    assignment depends on, and the owner nodes of its partitions. All that may change is watched.
    """

    _log = Logger()

    def __init__(
        self,
        zookeeper: IZookeeper,
        watches: GroupWatches,
        groupPaths: paths.GroupPaths,
        consumerId: str,
    ) -> None:
        self._zookeeper = zookeeper
        self._watches = watches
        self._paths = groupPaths
        self._consumerId = consumerId
        self._path = groupPaths.consumer(consumerId)
        self._reader = ClusterMetadataReader(zookeeper, self._warn, watches.children)

    def _warn(self, text: str) -> None:
        self._log.error("{consumerId}: {text}", consumerId=self._consumerId, text=text)

    async def register(self, subscription: ISubscription) -> None:
        """
        Create the member's node, which the other members see.

        @raise pylogbroker.errors.ZookeeperError: see L{claim}.
        """
        await claim(self._zookeeper, self._path, subscription.encode())

    async def unregister(self) -> None:
        """
        Delete the member's node if it is still our session's.

        @raise pylogbroker.errors.ZookeeperError: a request failed.
        """
        await self._deleteIfOwned(self._path)

    async def read(self, subscription: ISubscription) -> GroupState:
        """
        Read all that an assignment depends on.

        @param subscription: this member's own, which is registered again if its node is gone.
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be read.
        """
        isFilter = isinstance(subscription, WildcardSubscription)
        names = await self._reader.topics() if isFilter else ()
        wanted = [topic for topic in subscription.streamCounts(names) if self._isValid(topic)]
        found = await self._reader.members(self._paths)
        members = {name: member.subscription for name, member in found.items()}
        if self._consumerId not in members:
            await self.register(subscription)
        members[self._consumerId] = subscription
        brokers = await self._reader.brokers()
        counts = await self._reader.partitionCounts(wanted)
        topics = {
            topic: [
                BrokerPartition(broker, index)
                for broker, count in byBroker.items()
                for index in range(count)
            ]
            for topic, byBroker in counts.items()
        }
        usable = {
            name: each for name, each in members.items() if self._canMatch(name, each, topics)
        }
        return GroupState(usable, topics, brokers)

    def _isValid(self, topic: str) -> bool:
        if len(topic.encode()) <= TOPIC_SIZE_MAX:
            return True
        path = f"{paths.BROKER_TOPICS}/{topic}"
        text = f"{path[:100]}…: the name of the topic fits in no request"
        self._reader.warnings.warnOnce(path, InvalidNameError(text))
        return False

    def _canMatch(
        self, member: str, subscription: ISubscription, topics: Mapping[str, Any]
    ) -> bool:
        try:
            subscription.streamCounts(topics)
        except InvalidPatternError as error:
            path = f"{self._paths.ids}/{member}"
            text = (
                f"{path}: {error}. This member is ignored, and its partitions cannot be agreed upon"
            )
            # Not the path itself: the reader clears that, since the registration is readable.
            self._reader.warnings.warnOnce(f"{path}/pattern", InvalidPatternError(text))
            return False
        return True

    # -- the owner nodes of partitions

    def _ownerPath(self, partition: PartitionId) -> str:
        return self._paths.owner(partition.topic, partition.partition)

    async def claim(self, assignment: Assignment) -> frozenset[PartitionId]:
        """
        Create owner nodes.

        @return: the partitions that are now this member's; another session has the others.
        @raise pylogbroker.errors.ZookeeperError: at least one request failed.
        """
        claimed = await gatherInBatches(self._claimOne, assignment.items())
        return frozenset(compress(assignment, claimed))

    async def _claimOne(self, item: tuple[PartitionId, str]) -> bool:
        partition, thread = item
        try:
            await claim(self._zookeeper, self._ownerPath(partition), thread.encode())
        except ConflictError as conflict:
            self._log.debug(
                "{consumerId}: {partition} is not free: {conflict}",
                consumerId=self._consumerId,
                partition=partition,
                conflict=conflict,
            )
            return False
        return await self._isOwned(item)

    async def missing(self, assignment: Assignment) -> frozenset[PartitionId]:
        """
        This member's partitions whose owner nodes were deleted or overwritten. Reads only nodes
        whose watches have fired.

        @raise pylogbroker.errors.ZookeeperError: at least one request failed.
        """
        owned = await gatherInBatches(self._isOwned, assignment.items())
        return frozenset(assignment).difference(compress(assignment, owned))

    async def _isOwned(self, item: tuple[PartitionId, str]) -> bool:
        partition, thread = item
        path = self._ownerPath(partition)
        if self._watches.isArmed(path):
            return True
        found = await self._watches.node(path)
        if found is None:
            return False
        data, stat = found
        if stat.ephemeralOwner == self._zookeeper.session_id and data == thread.encode():
            return True
        self._watches.cancel(path)
        return False

    async def release(self, assignment: Assignment) -> None:
        """
        Delete owner nodes that are still ours. Tries each: the session may outlive a failure.

        @raise pylogbroker.errors.ZookeeperError: at least one request failed.
        """
        for error in await gatherInBatches(self._releaseOne, assignment.items()):
            if error is not None:
                raise error

    async def _releaseOne(self, item: tuple[PartitionId, str]) -> Exception | None:
        partition, thread = item
        path = self._ownerPath(partition)
        self._watches.cancel(path)
        try:
            await self._deleteIfOwned(path, thread.encode())
        except CancelledError:
            raise
        except Exception as error:  # the other partitions are released all the same
            return error
        return None

    async def _deleteIfOwned(self, path: str, data: bytes | None = None) -> None:
        """@param data: what we wrote; a node with other data stays."""
        try:
            found, stat = await self._zookeeper.get(path)
            if stat.ephemeralOwner == self._zookeeper.session_id and data in (None, found):
                await self._zookeeper.delete(path, stat.version)
        except (NoNodeException, BadVersionException):
            pass
