"""
What stands in a cluster's registries (spec-0.7 zookeeper §1), read once, and connections to its brokers.

Nothing is written and nothing watched. What others have written and cannot be read is named in C{problems}, and the rest is read all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.asking import closed
from pylogbroker.cli.logends import LogEnds
from pylogbroker.cluster import paths
from pylogbroker.cluster.znodes import BrokerRegistration, decodeBroker, decodeNumber
from pylogbroker.errors import InvalidNameError, NoNodeException, ZnodeError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.model import BrokerPartition
from pylogbroker.zookeeper.client import ZookeeperClient

T = TypeVar("T")

PARTITION_COUNT_MAX = 100_000
"""Of a topic on a broker; more is taken for garbage."""


Complain = Callable[[str], None]
"""Called with what could not be read, for people."""


async def children(zookeeper: IZookeeper, path: str) -> list[str]:
    """Sorted; none of a node that is not there."""
    try:
        return list(await zookeeper.get_children(path))
    except NoNodeException:
        return []


async def value(zookeeper: IZookeeper, path: str, decode: Callable[[str, bytes | None], T], complain: Complain) -> T | None:
    """What a node says; L{None} when it is not there, or cannot be understood."""
    try:
        data, _stat = await zookeeper.get(path)
        return decode(path, data)
    except NoNodeException:
        return None
    except ZnodeError as error:
        complain(str(error))
        return None


async def partitionsOf(zookeeper: IZookeeper, topic: str, complain: Complain) -> list[BrokerPartition]:
    """
    The partitions of a topic, on all brokers that ever had it, sorted.

    @raise InvalidNameError: no topic can be called so.
    """
    path = paths.topic(topic)
    found = []
    for name in await children(zookeeper, path):
        number = brokerNumber(path, name, complain)
        count = None if number is None else await value(zookeeper, f"{path}/{name}", decodeNumber, complain)
        if number is None or count is None:
            continue
        if not 0 <= count <= PARTITION_COUNT_MAX:
            complain(f"{path}/{name}: {count} is no number of a broker's partitions")
            continue
        found += [BrokerPartition(number, partition) for partition in range(count)]
    return sorted(found)


def brokerNumber(path: str, name: str, complain: Complain) -> int | None:
    """What a node's name is the number of; L{None} for garbage."""
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name)
    complain(f"{path}/{name}: that is not a broker's number")
    return None


class ClusterReading:
    """
    A cluster, open as long as C{async with} has it.

    @ivar zookeeper: its client.
    @ivar ends: asks its brokers.
    @ivar problems: for people: what could not be read.
    """

    def __init__(self, reactor: Any, servers: str, timeoutMs: int) -> None:
        """
        @param servers: C{host:port[,host:port…][/chroot]}.
        @param timeoutMs: for ZooKeeper, and for each answer of a broker.
        """
        self.zookeeper: IZookeeper = ZookeeperClient(reactor, servers)
        self.ends = LogEnds(reactor, self.zookeeper, timeoutMs)
        self.problems: list[str] = []
        self._timeoutMs = timeoutMs

    async def __aenter__(self) -> ClusterReading:
        """
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper is not there, or the chroot is not.
        """
        try:
            await self.zookeeper.connect(self._timeoutMs)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self._leave()

    async def _leave(self) -> None:
        async def leave() -> None:
            await self.ends.close()
            await self.zookeeper.close()

        await closed(Deferred.fromCoroutine(leave()))

    async def children(self, path: str) -> list[str]:
        """See L{children}."""
        return await children(self.zookeeper, path)

    async def value(self, path: str, decode: Callable[[str, bytes | None], T]) -> T | None:
        """See L{value}."""
        return await value(self.zookeeper, path, decode, self.problems.append)

    async def brokers(self) -> dict[int, BrokerRegistration]:
        """Those that are registered, by number."""
        found = {}
        for name in await self.children(paths.BROKER_IDS):
            number = brokerNumber(paths.BROKER_IDS, name, self.problems.append)
            broker = None if number is None else await self.value(paths.brokerId(number), decodeBroker)
            if number is not None and broker is not None:
                found[number] = broker
        return dict(sorted(found.items()))

    async def topics(self) -> list[str]:
        """The names of all, sorted."""
        return await self.children(paths.BROKER_TOPICS)

    async def partitions(self, topic: str) -> list[BrokerPartition]:
        """See L{partitionsOf}; none of what cannot be a topic."""
        try:
            return await partitionsOf(self.zookeeper, topic, self.problems.append)
        except InvalidNameError as error:
            self.problems.append(str(error))
            return []

    async def knownGroups(self, names: list[str]) -> list[str]:
        """
        The consumer groups that a person asked for.

        @param names: none for all.
        @raise CommandError: one of them is not there.
        """
        return _known("consumer group", names, await self.children(paths.CONSUMERS))

    async def knownTopics(self, names: list[str]) -> list[str]:
        """
        The topics that a person asked for.

        @param names: none for all.
        @raise CommandError: one of them is not there.
        """
        return _known("topic", names, await self.topics())


def _known(kind: str, names: list[str], found: list[str]) -> list[str]:
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandError(f"there is no {kind} {', '.join(missing)}; there are: {', '.join(found) or 'none'}")
    return names or found
