"""
Reads a cluster's nodes in ZooKeeper once: brokers, topics, partitions and consumer groups.

It writes nothing and watches nothing; L{pylogbroker.client.discovery} follows changes.
L{pylogbroker.cluster.metadata} knows what nodes mean. Nodes of one step are read concurrently,
L{pylogbroker.net.deferreds.BATCH_COUNT_MAX} at a time.

All coroutines fail with L{pylogbroker.errors.ZookeeperError} when ZooKeeper does not answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from pylogbroker.cluster import metadata, paths
from pylogbroker.cluster.metadata import (
    GetChildren,
    GetData,
    MemberRegistration,
    Node,
    Query,
    ZnodeWarnings,
)
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import BrokerRegistration, decodeBroker
from pylogbroker.errors import NoBrokersError, NoNodeException
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.types import PartitionId

T = TypeVar("T")


class ClusterMetadataReader:
    """
    A reader of one cluster.

    @ivar warnings: the reported nodes.
    """

    def __init__(
        self,
        zookeeper: IZookeeper,
        warn: Callable[[str], object],
        children: Callable[[str], Awaitable[Iterable[str]]] | None = None,
    ) -> None:
        """
        @param zookeeper: connected.
        @param warn: called once with a text for each unusable node; see L{ZnodeWarnings}.
        @param children: reads the children of a node; by default of C{zookeeper}.
        """
        self.warnings = ZnodeWarnings(warn)
        self._zookeeper = zookeeper
        self._children = children or zookeeper.get_children

    async def read(self, query: Query[T]) -> T:
        found: Any = None
        try:
            while True:
                found = await gatherInBatches(self.node, query.send(found))
        except StopIteration as end:
            result: T = end.value
            return result

    async def node(self, node: Node) -> Any:
        try:
            if isinstance(node, GetChildren):
                return node.decoded(await self._children(node.path), self.warnings)
            if isinstance(node, GetData):
                data, _stat = await self._zookeeper.get(node.path)
                return node.decoded(data, self.warnings)
        except NoNodeException:
            pass
        return node.absent(self.warnings)

    async def children(self, path: str) -> list[str]:
        """The names of a node's children, sorted; empty for a missing node."""
        try:
            return list(await self._zookeeper.get_children(path))
        except NoNodeException:
            return []

    async def value(self, path: str, decode: Callable[[str, bytes | None], T]) -> T | None:
        """A node's decoded data; L{None} when it is missing or unusable."""
        found: T | None = await self.node(GetData(path, decode))
        return found

    async def broker(self, number: int) -> BrokerRegistration:
        """
        A broker's registration.

        @raise NoBrokersError: it is not registered.
        @raise ZnodeError: its registration cannot be used.
        """
        path = paths.brokerId(number)
        try:
            data, _stat = await self._zookeeper.get(path)
        except NoNodeException as error:
            raise NoBrokersError(f"broker {number} is not registered") from error
        return decodeBroker(path, data)

    async def brokers(self, countMax: int | None = None) -> dict[int, BrokerRegistration]:
        return await self.read(metadata.brokers(countMax))

    async def topics(self) -> list[str]:
        return await self.read(metadata.topics())

    async def partitionCounts(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        return await self.read(metadata.partitionCounts(topics))

    async def partitions(self, topics: Iterable[str]) -> list[PartitionId]:
        return await self.read(metadata.partitions(topics))

    async def groups(self) -> list[str]:
        return await self.read(metadata.groups())

    async def members(self, group: GroupPaths) -> dict[str, MemberRegistration]:
        return await self.read(metadata.members(group))

    async def owners(
        self, group: GroupPaths, countMax: int | None = None
    ) -> dict[PartitionId, str]:
        return await self.read(metadata.owners(group, countMax))

    async def offsets(
        self, group: GroupPaths, countMax: int | None = None
    ) -> dict[PartitionId, int]:
        return await self.read(metadata.offsets(group, countMax))
