"""
Connections of a command: one broker, a whole cluster, or a member of a consumer group.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Awaitable, Mapping
from random import SystemRandom
from typing import Self, TypeVar

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import endpointOf
from pylogbroker.cli.output import Progress
from pylogbroker.cli.streams import Streams
from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.client.offsetlookup import OffsetLookup
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.securitysettings import SecuritySettings
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import PartitionOutOfRangeError, ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import closeAll
from pylogbroker.zookeeper.client import ZookeeperClient

T = TypeVar("T")

NOTICE_SECONDS = 1.5
"""A command announces a wait that lasts longer than this."""

_FAR_FUTURE_MS = 2**63 - 1


async def announceWait(
    streams: Streams,
    waiting: Awaitable[T],
    what: str,
    timeoutMs: float,
    progress: Progress | None = None,
) -> T:
    """
    Wait for a Deferred or a coroutine. After L{NOTICE_SECONDS} one line says what the command waits
    for.

    @param what: the awaited thing, for people.
    @param timeoutMs: when the command gives up.
    @param progress: is cleared before.
    """

    def announce() -> None:
        if progress is not None:
            progress.clear()
        streams.warn(f"waiting for {what}; gives up after {timeoutMs / 1000:g} s")

    notice = streams.reactor.callLater(NOTICE_SECONDS, announce)
    try:
        return await waiting
    finally:
        if notice.active():
            notice.cancel()


def openConsumer(options: Namespace, streams: Streams) -> SimpleConsumer:
    """A consumer of C{--broker}, which connects at its first request."""
    timeoutMs = options.timeoutMs
    return SimpleConsumer(
        streams.reactor, endpointOf(options), timeoutMs=timeoutMs, connectTimeoutMs=timeoutMs
    )


async def _isOutOfRange(consumer: SimpleConsumer, topic: str, partition: int) -> bool:
    error: Exception | None = (await consumer.fetch(topic, partition, 0, 0)).error
    return isinstance(error, PartitionOutOfRangeError)


async def requirePartition(consumer: SimpleConsumer, topic: str, partition: int) -> None:
    """
    Check by an empty fetch that the broker has a partition. It would answer other requests for a
    missing one by closing the connection (spec-0.7 wire-protocol §7.1, §9).

    @raise CommandError: the broker has no such partition.
    """
    if await _isOutOfRange(consumer, topic, partition):
        raise CommandError(f"the broker has no partition {partition} of topic {topic}")


async def missingTopic(consumer: SimpleConsumer, topic: str, partition: int) -> str:
    """
    Check whether the broker has a log of a topic: it has none before the first message.

    A 0.7 broker answers offset 0 for the end and the beginning of a missing log, as for an empty
    one. For the offsets before a time in the far future, it answers at least one for every log,
    and none for a missing one (spec-0.7 wire-protocol §10).

    @param partition: asked first; the others are asked if it has no log.
    @return: what to say about a topic without a log; empty if there is one.
    @raise CommandError: the broker has no such partition.
    """
    await requirePartition(consumer, topic, partition)
    following = 0
    while not await consumer.getOffsetsBefore(topic, partition, _FAR_FUTURE_MS, 1):
        if await _isOutOfRange(consumer, topic, following):
            return f"the broker has no topic {topic}: nothing was ever published to it"
        partition, following = following, following + 1
    return ""


async def requireTopic(consumer: SimpleConsumer, topic: str, partition: int) -> None:
    """Raise L{CommandError} if the broker has no such topic or partition."""
    if text := await missingTopic(consumer, topic, partition):
        raise CommandError(text)


class ClusterSession:
    """
    Connections to ZooKeeper and the brokers of a cluster, open within C{async with}.

    @ivar zookeeper: the client.
    @ivar reader: reads the cluster's nodes.
    @ivar offsets: asks brokers for offsets.
    @ivar problems: what could not be read, for people.
    """

    def __init__(
        self,
        options: Namespace,
        streams: Streams,
        servers: str | None = None,
        access: SecuritySettings | None = None,
    ) -> None:
        """
        @param servers: C{host:port[,host:port…][/chroot]}; by default, C{--zookeeper}.
        @param access: credentials; by default, those of C{--config}.
        """
        access = access or options.access
        self._servers = servers or options.zookeeper
        self.zookeeper: IZookeeper = ZookeeperClient.fromSettings(
            streams.reactor, access, self._servers
        )
        self.problems: list[str] = []
        self.reader = ClusterMetadataReader(self.zookeeper, self.problems.append)
        self.offsets = OffsetLookup(
            streams.reactor, self._broker, options.timeoutMs, template=access.brokerEndpoint
        )
        self._streams = streams
        self._timeoutMs = options.timeoutMs
        self._brokers: dict[int, BrokerRegistration] = {}

    async def _broker(self, number: int) -> BrokerRegistration:
        if number not in self._brokers:
            self._brokers[number] = await self.reader.broker(number)
        return self._brokers[number]

    async def connect(self) -> None:
        """
        @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be reached, or has no such
            chroot.
        """
        await announceWait(
            self._streams,
            self.zookeeper.connect(self._timeoutMs),
            f"ZooKeeper at {self._servers}",
            self._timeoutMs,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.offsets.close()
        await self.zookeeper.close()

    async def __aenter__(self) -> Self:
        """Raises as C{connect}."""
        try:
            await self.connect()
        except Exception:
            await closeAll(self.close())
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await closeAll(self.close())

    def warnOfProblems(self) -> None:
        """Print C{problems}."""
        for problem in self.problems:
            self._streams.warn(problem)

    async def knownGroups(self, names: list[str]) -> list[str]:
        """The named consumer groups, or all; a missing one is a L{CommandError}."""
        return _known("consumer group", names, await self.reader.groups())

    async def knownTopics(self, names: list[str]) -> list[str]:
        """The named topics, or all; a missing one is a L{CommandError}."""
        return _known("topic", names, await self.reader.topics())


def _known(kind: str, names: list[str], found: list[str]) -> list[str]:
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandError(
            f"there is no {kind} {', '.join(missing)}; there are: {', '.join(found) or 'none'}"
        )
    return names or found


class GroupMember(ClusterSession):
    """
    A command as a member of a consumer group: of C{--group}, whose offsets stay, or of a group of
    its own, which is deleted at the end. It prints what it cannot read at once.

    @ivar consumer: the member.
    """

    def __init__(
        self,
        options: Namespace,
        streams: Streams,
        prefix: str,
        pollMs: int,
        changes: Mapping[str, str],
    ) -> None:
        """
        @param prefix: of the name of a group of its own.
        @param pollMs: wait of a stream for messages, and of a fetcher that has found none.
        @param changes: more properties of the consumer.
        """
        self._isOwnGroup = options.group is None
        self._group = options.group or f"{prefix}-{SystemRandom().randrange(100_000)}"
        timeout = str(options.timeoutMs)
        properties = {
            **options.access.asProperties(),
            "groupid": self._group,
            "zk.connect": options.zookeeper,
            "zk.connectiontimeout.ms": timeout,
            "socket.timeout.ms": timeout,
            "fetch.size": str(options.fetchSize),
            "fetcher.backoff.ms": str(pollMs),
            "consumer.timeout.ms": str(pollMs),
            **changes,
        }
        settings = ConsumerSettings.fromProperties(properties, streams.say)
        super().__init__(options, streams)
        self.reader = ClusterMetadataReader(self.zookeeper, streams.say)
        self.consumer = ConsumerConnector(streams.reactor, settings, self.zookeeper)

    async def _broker(self, number: int) -> BrokerRegistration:
        """A broker may move while the member reads."""
        return await self.reader.broker(number)

    async def connect(self) -> None:
        """Raises as L{ClusterSession.connect}."""
        await super().connect()
        await self.consumer.connect()

    async def close(self) -> None:
        """Leave the group, delete a group of its own, and close."""
        await self.consumer.shutdown()
        if self._isOwnGroup and self.zookeeper.connected:
            await _deleteTree(self.zookeeper, GroupPaths(self._group).root)
        await super().close()


async def _deleteTree(zookeeper: IZookeeper, path: str) -> None:
    try:
        for name in await zookeeper.get_children(path):
            await _deleteTree(zookeeper, f"{path}/{name}")
        await zookeeper.delete(path)
    except ZookeeperError:
        pass
