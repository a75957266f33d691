"""
Reading a whole cluster to count it: every partition of a topic, from a time on up to where it ends now, and the next time from there on.

An auditor is no consumer group: it must see every message, owns nothing, and leaves nothing in ZooKeeper. Where it has got to is kept in memory alone; one that
is started anew reads the horizon again, which costs time, and is exact.

A message set counts as a whole or not at all: what is counted and where to go on change together. Otherwise a set that breaks in the middle would be
counted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.client.consumers import Consumers
from pylogbroker.client.discovery import ZookeeperDiscovery, openedDiscovery
from pylogbroker.client.logends import edgeOf
from pylogbroker.config.auditsettings import AuditorSettings, TierAddress
from pylogbroker.errors import InvalidMessageSizeError, OffsetOutOfRangeError, RemoteOffsetOutOfRangeError, RemotePartitionError
from pylogbroker.formats.messageset import MessageSet
from pylogbroker.interfaces import IZookeeper
from pylogbroker.model import EARLIEST, LATEST
from pylogbroker.zookeeper.client import ZookeeperClient

PARTITION_COUNT_MAX = 10_000
"""Of a topic on a broker that is asked for them."""

Take = Callable[[MessageSet], "int | None"]
"""Counts a set, or raises and counts nothing. Returns the offset behind the last message, L{None} when there was none."""


class TierReader:
    """
    One cluster.

    @ivar name: of the tier.
    @ivar skippedCount: how often a partition did not begin, or end, where the reader was: its data was deleted before it was read.
    """

    def __init__(self, reactor: Any, address: TierAddress, settings: AuditorSettings, zookeeper: Callable[[TierAddress], IZookeeper] | None = None) -> None:
        """
        @param zookeeper: makes a client, not connected.
        """
        self.name = address.name
        self.skippedCount = 0
        self._reactor = reactor
        self._address = address
        self._settings = settings
        self._makeZookeeper = zookeeper or self._client
        self._zookeeper: IZookeeper | None = None
        self._discovery: ZookeeperDiscovery | None = None
        self._consumers = Consumers(reactor, settings.timeoutMs, template=settings.brokerEndpoint)
        self._positions: dict[tuple[str, str, int], int] = {}

    def _client(self, address: TierAddress) -> IZookeeper:
        return ZookeeperClient(self._reactor, address.zookeeperServers, digest=self._settings.zookeeperDigest)

    async def open(self) -> None:
        """
        Find out who is there, now.

        @raise PylogbrokerError: ZooKeeper cannot be asked; can be called again then.
        """
        if not self._address.zookeeperServers:
            return
        if self._discovery is not None:
            await self._discovery.refresh()
            return
        zookeeper = self._makeZookeeper(self._address)
        self._discovery = await openedDiscovery(self._reactor, zookeeper, self._settings.timeoutMs)
        self._zookeeper = zookeeper

    async def close(self) -> None:
        """Let go of all connections."""
        if self._discovery is not None:
            self._discovery.stop()
        await self._consumers.close()
        zookeeper, self._zookeeper, self._discovery = self._zookeeper, None, None
        if zookeeper is not None:
            await zookeeper.close()

    async def read(self, topic: str, sinceMs: int, take: Take) -> None:
        """
        All of a topic that has not been read yet; nothing, if the tier does not have it.

        @param sinceMs: what was written before need not be read, the first time; it may be all the same, for a broker knows times by segments only.
        @raise PylogbrokerError: some of it cannot be read; what was read before is counted.
        """
        for endpoint, partition in await self._partitions(topic):
            await self._readPartition(endpoint, topic, partition, sinceMs, take)

    async def _partitions(self, topic: str) -> list[tuple[str, int]]:
        discovery = self._discovery
        if discovery is not None:
            return [(discovery.brokers[number].endpoint, partition) for number, partition in discovery.partitions(topic)]
        found = []
        for endpoint in self._address.brokers:
            for partition in range(PARTITION_COUNT_MAX):  # a fetch of nothing tells whether it has one (spec-0.7 wire-protocol §7.1)
                answer = await self._consumers.to(endpoint).fetch(topic, partition, 0, 0)
                if isinstance(answer.error, RemotePartitionError):
                    break
                if answer.error is not None and not isinstance(answer.error, RemoteOffsetOutOfRangeError):
                    raise answer.error
                found.append((endpoint, partition))
        return found

    async def _readPartition(self, endpoint: str, topic: str, partition: int, sinceMs: int, take: Take) -> None:
        consumer, key = self._consumers.to(endpoint), (endpoint, topic, partition)

        def bound(time: int) -> Deferred[list[int]]:
            return consumer.getOffsetsBefore(topic, partition, time, 1)

        async def edge(time: int) -> int:
            return edgeOf(await bound(time))

        end = await edge(LATEST)
        offset = self._positions.get(key)
        if offset is None:
            before = await bound(sinceMs)
            offset = before[0] if before else await edge(EARLIEST)
        elif offset > end:  # somebody has emptied it
            self.skippedCount += 1
            offset = await edge(EARLIEST)
        size = self._settings.fetchSize
        while offset < end:
            fetched = await consumer.fetch(topic, partition, offset, size)
            try:
                behind = take(fetched)
            except OffsetOutOfRangeError:
                earliest = await edge(EARLIEST)
                if earliest <= offset:
                    raise
                self.skippedCount += 1
                offset = earliest
                continue
            except InvalidMessageSizeError:
                if size >= self._settings.fetchSizeMax:
                    raise
                behind = None
            if behind is not None:
                self._positions[key] = offset = behind
            elif fetched.sizeInBytes and size < self._settings.fetchSizeMax:  # a message that is larger
                size = min(2 * size, self._settings.fetchSizeMax)
            else:
                break
        self._positions[key] = offset
