"""
A cluster of 2011's protocol as a tier: its reader counts the messages of a topic from a time to the
current ends, and continues there in the next pass. A module of its own, since a reader of one
protocol need not read the other.

An auditor is no consumer group: it must see every message, owns nothing, and leaves nothing in
ZooKeeper. Its positions are in memory; a new auditor reads the horizon again, which takes time and
is exact.

ZooKeeper says which brokers are there, not which should be. A broker that is away takes its
messages along: they look lost, and if it held the counts, losses look as if nothing was sent. So a
tier is complete only with all known brokers: those in the tier's address; otherwise those that this
reader has met within the horizon, partition by partition, and those with stored offsets of groups.

A message set counts as a whole or not at all, together with the position behind it. Otherwise a set
that breaks in the middle would count twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from math import inf
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.auditor.messagecounter import MessageCounter, Take
from pylogbroker.auditor.tiers import skippedNotes
from pylogbroker.client.discovery import ZookeeperDiscovery
from pylogbroker.client.offsetlookup import singleOffset
from pylogbroker.client.simpleconsumer import ConsumerPool
from pylogbroker.cluster.paths import CONSUMERS, GroupPaths
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.auditsettings import AuditorSettings, TierAddress
from pylogbroker.errors import (
    InvalidMessageSizeError,
    InvalidNameError,
    NoAuthException,
    NoNodeException,
    OffsetOutOfRangeError,
    RemoteOffsetOutOfRangeError,
    RemotePartitionError,
    ZnodeError,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.records.messageset import MessageSet
from pylogbroker.types import EARLIEST, LATEST
from pylogbroker.zookeeper.client import ZookeeperClient

PARTITION_COUNT_MAX = 10_000
"""Of a topic on a broker that is asked for them."""

NAMED_COUNT_MAX = 10
"""Brokers and partitions that are named in one sentence."""


class _Messages:
    """
    The messages of a set, for a L{Take}.

    @ivar nextOffset: behind the last message that was taken; L{None}: there was none.
    """

    def __init__(self, fetched: MessageSet) -> None:
        self._fetched = fetched
        self.nextOffset: int | None = None

    def __iter__(self) -> Iterator[tuple[bytes, None]]:
        for payload, nextOffset in self._fetched.payloads():
            self.nextOffset = nextOffset
            yield payload, None


class _TierMember(NamedTuple):
    """
    A partition, or a whole broker.

    @ivar broker: its number; its address without ZooKeeper.
    @ivar topic: C{""} for a broker.
    """

    broker: str
    topic: str = ""
    partition: int = 0

    def __str__(self) -> str:
        return (
            f"{self.topic}/{self.broker}-{self.partition}"
            if self.topic
            else f"broker {self.broker}"
        )


class ClusterTier:
    """
    The reader of one cluster.

    @ivar name: see L{IAuditTier}.
    @ivar skippedCount: times that a partition did not begin or end at the reader's position,
        because its data was deleted before it was read.
    """

    def __init__(
        self,
        reactor: Any,
        address: TierAddress,
        settings: AuditorSettings,
        zookeeper: Callable[[TierAddress], IZookeeper] | None = None,
    ) -> None:
        """@param zookeeper: makes an unconnected client."""
        self.name = address.name
        self.skippedCount = 0
        self._reactor = reactor
        self._address = address
        self._settings = settings
        self._makeZookeeper = zookeeper or (
            lambda _: ZookeeperClient.fromSettings(reactor, settings, address.zookeeperServers)
        )
        self._zookeeper: IZookeeper | None = None
        self._discovery: ZookeeperDiscovery | None = None
        self._consumers = ConsumerPool(
            reactor, settings.timeoutMs, template=settings.brokerEndpoint
        )
        self._positions: dict[tuple[str, str, int], int] = {}
        self._metMs: dict[_TierMember, float] = {}  # when they were there last
        self._present: set[_TierMember] = set()  # in this pass
        self._topics: set[str] = set()  # that this pass has looked at
        self._hasAsked = False

    async def open(self) -> None:
        """
        Find the brokers and partitions.

        @raise PylogbrokerError: ZooKeeper does not answer; can be called again.
        """
        self._present.clear()
        self._topics.clear()
        if not self._address.zookeeperServers:
            return
        if self._discovery is not None:
            await self._discovery.refresh()
        else:
            zookeeper = self._makeZookeeper(self._address)
            discovery = ZookeeperDiscovery(self._reactor, zookeeper)
            await discovery.connect(self._settings.timeoutMs)
            self._zookeeper, self._discovery = zookeeper, discovery
        if not self._hasAsked and not self._address.expected:
            await self._askGroups()
            self._hasAsked = True
        for number in self._discovery.brokers:
            self._meet(_TierMember(str(number)))

    # -- who should be there

    async def _askGroups(self) -> None:
        """The brokers with stored offsets of groups."""
        for group in await self._children(CONSUMERS):
            try:
                paths = GroupPaths(group)
                for topic in await self._children(paths.offsets):
                    path = paths.topicOffsets(topic)
                    for name in await self._children(path):
                        self._metMs[_TierMember(str(decodePartition(path, name).broker))] = inf
            except (InvalidNameError, ZnodeError):
                continue  # nothing that a group has written

    async def _children(self, path: str) -> list[str]:
        """The children of a node; none if it is missing or forbidden."""
        assert self._zookeeper is not None
        try:
            return list(await self._zookeeper.get_children(path))
        except (NoNodeException, NoAuthException):
            return []

    def _meet(self, part: _TierMember) -> None:
        self._present.add(part)
        self._metMs[part] = max(self._metMs.get(part, 0), self._reactor.seconds() * 1000)

    def lack(self, sinceMs: int) -> str:
        """
        The known parts of the tier that this pass has not found.

        @param sinceMs: parts last seen before this time are not missed.
        @return: a sentence; C{""} if nothing is missing.
        """
        self._metMs = {part: ms for part, ms in self._metMs.items() if ms >= sinceMs}
        expected = {str(number) for number in self._address.expected}
        parts = [part for part in self._metMs if not expected or part.broker in expected]
        parts += [
            _TierMember(number) for number in expected if _TierMember(number) not in self._metMs
        ]
        away = {part.broker for part in parts if not part.topic and part not in self._present}
        lost = [
            part
            for part in parts
            if part.topic in self._topics and part not in self._present and part.broker not in away
        ]
        names = sorted(str(_TierMember(broker)) for broker in away) + sorted(map(str, lost))
        if not names:
            return ""
        more = " …" if len(names) > NAMED_COUNT_MAX else ""
        verb = "is" if len(names) == 1 else "are"
        return f"{', '.join(names[:NAMED_COUNT_MAX])}{more} {verb} away"

    def notes(self) -> list[str]:
        """See L{IAuditTier}."""
        return skippedNotes(self.name, self.skippedCount)

    async def close(self) -> None:
        """Close all connections."""
        if self._discovery is not None:
            self._discovery.stop()
        await self._consumers.close()
        zookeeper, self._zookeeper, self._discovery = self._zookeeper, None, None
        if zookeeper is not None:
            await zookeeper.close()

    async def readCounts(self, counter: MessageCounter, sinceMs: int) -> None:
        """See L{IAuditTier}."""
        await self.open()
        await self.read(self._settings.auditTopic, sinceMs, counter.takeReports)

    async def readData(
        self, counter: MessageCounter, topics: Collection[str], sinceMs: int
    ) -> None:
        """See L{IAuditTier}."""
        for topic in topics:
            await self.read(topic, sinceMs, partial(counter.takeMessages, self.name, topic))

    async def read(self, topic: str, sinceMs: int, take: Take) -> None:
        """
        Count the unread messages of a topic; none if the tier does not have it.

        @param sinceMs: the first pass may skip older messages. Brokers know times by segments only,
            so it may count some of them.
        @raise PylogbrokerError: a part cannot be read; the messages before it are counted.
        """
        found = await self._partitions(topic)
        self._topics.add(topic)
        for endpoint, partition in found:
            await self._readPartition(endpoint, topic, partition, sinceMs, take)

    async def _partitions(self, topic: str) -> list[tuple[str, int]]:
        discovery = self._discovery
        if discovery is not None:
            places = discovery.partitions(topic)
            for number, partition in places:
                self._meet(_TierMember(str(number), topic, partition))
            return [(discovery.brokers[number].address, partition) for number, partition in places]
        found = []
        for endpoint in self._address.brokers:
            for partition in range(
                PARTITION_COUNT_MAX
            ):  # a fetch of nothing tells whether it has one (spec-0.7 wire-protocol §7.1)
                answer = await self._consumers.get(endpoint).fetch(topic, partition, 0, 0)
                if isinstance(answer.error, RemotePartitionError):
                    break
                if answer.error is not None and not isinstance(
                    answer.error, RemoteOffsetOutOfRangeError
                ):
                    raise answer.error
                self._meet(_TierMember(endpoint, topic, partition))
                found.append((endpoint, partition))
        return found

    async def _readPartition(
        self, endpoint: str, topic: str, partition: int, sinceMs: int, take: Take
    ) -> None:
        consumer, key = self._consumers.get(endpoint), (endpoint, topic, partition)

        def bound(time: int) -> Deferred[list[int]]:
            return consumer.getOffsetsBefore(topic, partition, time, 1)

        async def edge(time: int) -> int:
            return singleOffset(await bound(time))

        end = await edge(LATEST)
        offset = self._positions.get(key)
        if offset is None:
            before = await bound(sinceMs)
            offset = before[0] if before else await edge(EARLIEST)
        elif offset > end:  # the topic was emptied
            self.skippedCount += 1
            offset = await edge(EARLIEST)
        size = self._settings.fetchSize
        while offset < end:
            fetched = await consumer.fetch(topic, partition, offset, size)
            messages = _Messages(fetched)
            try:
                take(messages)
                behind = messages.nextOffset
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
            elif (
                fetched.sizeInBytes and size < self._settings.fetchSizeMax
            ):  # a message that is larger
                size = min(2 * size, self._settings.fetchSizeMax)
            else:
                break
        self._positions[key] = offset
