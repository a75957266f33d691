"""
A cluster, for as long as a command looks at it: ZooKeeper, what stands there (L{pylogbroker.client.clusterreader}), and its brokers
(L{pylogbroker.client.offsetlookup}).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.brokerchecks import closeAll
from pylogbroker.client.clusterreader import ClusterReader
from pylogbroker.client.offsetlookup import OffsetLookup
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.config.connectionsettings import PLAIN, AccessSettings
from pylogbroker.interfaces import IZookeeper
from pylogbroker.zookeeper.client import ZookeeperClient


class ClusterSession:
    """
    A cluster, open as long as C{async with} has it.

    @ivar zookeeper: its client.
    @ivar registries: what stands there.
    @ivar ends: asks its brokers.
    @ivar problems: for people: what could not be read.
    """

    def __init__(
        self, reactor: Any, servers: str, timeoutMs: int, access: AccessSettings = PLAIN
    ) -> None:
        """
        @param servers: C{host:port[,host:port…][/chroot]}.
        @param timeoutMs: for ZooKeeper, and for each answer of a broker.
        @param access: how to get at both.
        """
        self.zookeeper: IZookeeper = ZookeeperClient.fromSettings(reactor, access, servers)
        self.problems: list[str] = []
        self.registries = ClusterReader(self.zookeeper, self.problems.append)
        self.ends = OffsetLookup(reactor, self._find, timeoutMs, template=access.brokerEndpoint)
        self._timeoutMs = timeoutMs
        self._brokers: dict[int, BrokerRegistration] = {}

    async def _find(self, number: int) -> BrokerRegistration:
        """A command does not last: where a broker was once, it stays."""
        if number not in self._brokers:
            self._brokers[number] = await self.registries.broker(number)
        return self._brokers[number]

    async def __aenter__(self) -> ClusterSession:
        """
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper is not there, or the chroot is not.
        """
        try:
            await self.zookeeper.connect(self._timeoutMs)
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        async def leave() -> None:
            await self.ends.close()
            await self.zookeeper.close()

        await closeAll(Deferred.fromCoroutine(leave()))

    async def knownGroups(self, names: list[str]) -> list[str]:
        """
        The consumer groups that a person asked for.

        @param names: none for all.
        @raise CommandError: one of them is not there.
        """
        return _known("consumer group", names, await self.registries.groups())

    async def knownTopics(self, names: list[str]) -> list[str]:
        """
        The topics that a person asked for.

        @param names: none for all.
        @raise CommandError: one of them is not there.
        """
        return _known("topic", names, await self.registries.topics())


def _known(kind: str, names: list[str], found: list[str]) -> list[str]:
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandError(
            f"there is no {kind} {', '.join(missing)}; there are: {', '.join(found) or 'none'}"
        )
    return names or found
