"""
What stands in a cluster's registries (spec-0.7 zookeeper §1, §4), read once: brokers, topics, consumer groups.

Nothing is written and nothing watched; who wants to keep up has L{pylogbroker.client.discovery}. Values in, values out: paths and bytes stay here. What others
have written may be anything: what cannot be read is named to C{complain}, and the rest is read all the same. A node that is not there, also one that goes
while it is looked for, is no complaint.

Many nodes are asked for at the same time, though no more than a ZooKeeper client takes anyway (L{pylogbroker.net.deferreds.gatherInBatches}). How much of a cluster is
wanted at all is the caller's to say, by what is asked for.

All coroutines fail with L{pylogbroker.errors.ZookeeperError} when ZooKeeper does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from pylogbroker.cluster import paths
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import ISubscription, decodeSubscription
from pylogbroker.cluster.znodes import (
    BrokerRegistration,
    brokerNumbers,
    decodeBroker,
    decodeCount,
    decodeNumber,
    decodePartition,
    decodeText,
)
from pylogbroker.errors import InvalidNameError, NoBrokersError, NoNodeException, ZnodeError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.types import BrokerPartition

T = TypeVar("T")

Complain = Callable[[str], object]
"""Called with what could not be read, for people."""

Decode = Callable[[str, "bytes | None"], T]
"""Of a path and what stands there; raises L{ZnodeError}."""

PartitionId = tuple[str, BrokerPartition]
"""A topic and a partition of it."""


class MemberNode(NamedTuple):
    """
    A member of a group.

    @ivar text: its registration, for people.
    @ivar subscription: what it says.
    """

    text: str
    subscription: ISubscription


class ClusterReader:
    """The registries of one cluster."""

    def __init__(self, zookeeper: IZookeeper, complain: Complain) -> None:
        """
        @param zookeeper: connected.
        """
        self._zookeeper = zookeeper
        self._complain = complain

    # -- nodes

    async def children(self, path: str) -> list[str]:
        """Sorted; none of a node that is not there."""
        try:
            return list(await self._zookeeper.get_children(path))
        except NoNodeException:
            return []

    async def value(self, path: str, decode: Decode[T]) -> T | None:
        """What a node says; L{None} when it is not there, or cannot be understood."""
        try:
            data, _stat = await self._zookeeper.get(path)
            return decode(path, data)
        except NoNodeException:
            return None
        except ZnodeError as error:
            self._complain(str(error))
            return None

    async def _values(self, wanted: Iterable[str], decode: Decode[T]) -> list[T | None]:
        return await gatherInBatches(lambda path: self.value(path, decode), wanted)

    # -- brokers and topics

    async def brokers(self, countMax: int | None = None) -> dict[int, BrokerRegistration]:
        """
        Those that are registered, by number, in their order.

        @param countMax: how many at most; by default all.
        """
        numbers = sorted(
            brokerNumbers(paths.BROKER_IDS, await self.children(paths.BROKER_IDS), self._told)
        )[:countMax]
        found = await self._values([paths.brokerId(number) for number in numbers], decodeBroker)
        return {
            number: broker
            for number, broker in zip(numbers, found, strict=True)
            if broker is not None
        }

    async def broker(self, number: int) -> BrokerRegistration:
        """
        Where a broker is.

        @raise NoBrokersError: it is not registered.
        @raise ZnodeError: its registration cannot be read.
        """
        path = paths.brokerId(number)
        try:
            data, _stat = await self._zookeeper.get(path)
        except NoNodeException as error:
            raise NoBrokersError(f"broker {number} is not registered") from error
        return decodeBroker(path, data)

    def _told(self, error: ZnodeError) -> None:
        self._complain(str(error))

    async def topics(self) -> list[str]:
        """The names of all, sorted."""
        return await self.children(paths.BROKER_TOPICS)

    async def partitionCounts(self, topics: Iterable[str]) -> dict[str, dict[int, int]]:
        """
        Of each topic, how many partitions it has on each broker that ever had it, in the order of brokers. What cannot be the name of a topic is complained
        about, and has none.
        """
        names = list(topics)
        children = await gatherInBatches(self._topicBrokers, names)
        wanted = [
            (name, number)
            for name, numbers in zip(names, children, strict=True)
            for number in numbers
        ]
        found = await self._values([paths.topicBroker(*each) for each in wanted], decodeCount)
        counts: dict[str, dict[int, int]] = {name: {} for name in names}
        for (name, number), count in zip(wanted, found, strict=True):
            if count is not None:
                counts[name][number] = count
        return counts

    async def _topicBrokers(self, topic: str) -> list[int]:
        try:
            path = paths.topic(topic)
        except InvalidNameError as error:
            self._complain(str(error))
            return []
        return sorted(brokerNumbers(path, await self.children(path), self._told))

    async def partitions(self, topics: Iterable[str]) -> list[PartitionId]:
        """The partitions of topics, by topic as they were given, broker and number."""
        counts = await self.partitionCounts(topics)
        return [
            (topic, BrokerPartition(*each))
            for topic, byBroker in counts.items()
            for each in partitionsOf(byBroker)
        ]

    # -- groups

    async def groups(self) -> list[str]:
        """The names of all consumer groups, sorted."""
        return await self.children(paths.CONSUMERS)

    async def members(self, group: GroupPaths) -> dict[str, MemberNode]:
        """The members by their ids, in the order of these; without those whose registration says nothing that can be understood."""
        names = await self.children(group.ids)
        found = await self._values([f"{group.ids}/{name}" for name in names], _decodeMember)
        return {
            name: member for name, member in zip(names, found, strict=True) if member is not None
        }

    async def owners(
        self, group: GroupPaths, countMax: int | None = None
    ) -> dict[PartitionId, str]:
        """
        Which thread owns what, by topic, broker and number.

        @param countMax: how many at most; by default all.
        """
        return await self._places(group.owners, decodeText, countMax)

    async def offsets(
        self, group: GroupPaths, countMax: int | None = None
    ) -> dict[PartitionId, int]:
        """What is committed, by topic, broker and number. See C{owners}."""
        return await self._places(group.offsets, decodeNumber, countMax)

    async def _places(
        self, root: str, decode: Decode[T], countMax: int | None
    ) -> dict[PartitionId, T]:
        topics = (await self.children(root))[:countMax]
        children = await gatherInBatches(lambda topic: self.children(f"{root}/{topic}"), topics)
        wanted: dict[PartitionId, str] = {}
        for topic, names in zip(topics, children, strict=True):
            for name in names:
                path = f"{root}/{topic}/{name}"
                try:
                    wanted[topic, decodePartition(path, name)] = path
                except ZnodeError as error:
                    self._complain(str(error))
        places = sorted(wanted)[:countMax]
        found = await self._values([wanted[place] for place in places], decode)
        return {
            place: value for place, value in zip(places, found, strict=True) if value is not None
        }


def _decodeMember(path: str, data: bytes | None) -> MemberNode:
    return MemberNode(decodeText(path, data), decodeSubscription(path, data))


def partitionsOf(counts: dict[int, int]) -> list[tuple[int, int]]:
    """Broker and number of each partition, where brokers have so many."""
    return [(number, partition) for number, count in counts.items() for partition in range(count)]
