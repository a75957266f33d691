"""
The cluster that is mirrored to: its brokers, the producers that send to it, and where its partitions end.

It may be away at any time, at the start as well: it is looked for until it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import SystemRandom
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.clusterreader import ClusterReader
from pylogbroker.client.discovery import (
    BrokerNode,
    IDiscovery,
    ZookeeperDiscovery,
    connectDiscovery,
)
from pylogbroker.client.simpleconsumer import ConsumerPool, SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import NoBrokersError, TimedOutError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.mirror.retry import loggedOutage
from pylogbroker.net.deferreds import gatherSettled, retryForever
from pylogbroker.net.endpoints import brokerEndpoint
from pylogbroker.producer.inflight import InFlightLimiter
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.types import LATEST, BrokerPartition
from pylogbroker.zookeeper.client import ZookeeperClient

PROVIDE_MS_MAX = 10_000
"""How long the target's brokers have for entering a new topic in ZooKeeper."""

_LOOK_MS = 100


class _Shared:
    """
    One discovery for many producers, none of which starts or stops it.
    """

    isStatic = False

    def __init__(self, discovery: IDiscovery) -> None:
        self._discovery = discovery

    @property
    def version(self) -> int:
        return self._discovery.version

    @property
    def brokers(self) -> Mapping[int, BrokerNode]:
        return self._discovery.brokers

    def start(self) -> Deferred[None]:
        return self._discovery.refresh() if not self._discovery.brokers else _done()

    def stop(self) -> None:
        pass

    def partitions(self, name: str) -> list[BrokerPartition]:
        return self._discovery.partitions(name)

    def lookUp(self, name: str) -> Deferred[list[BrokerPartition]]:
        return self._discovery.lookUp(name)

    def refresh(self) -> Deferred[None]:
        return self._discovery.refresh()

    def listen(self, listener: Any) -> Callable[[], None]:
        return self._discovery.listen(listener)


def _done() -> Deferred[None]:
    done: Deferred[None] = Deferred()
    done.callback(None)
    return done


class Target:
    """
    Where messages go.

    @ivar room: for what is under way, over all streams and sources; who takes messages asks it first.
    @ivar batchCountMax: messages that go together.
    @ivar batchSizeMax: bytes of payload of these; a single message may have more.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings,
        producerCount: int = 1,
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """
        @param zookeeper: makes a client, not connected; by default one of C{zk.connect}.
        """
        self._reactor = reactor
        self._settings = settings
        self._producerCount = producerCount
        self._makeZookeeper = zookeeper or self._client
        self._zookeeper: IZookeeper | None = None
        self._discovery: ZookeeperDiscovery | None = None
        self._producers: list[Producer] = []
        self._turn = 0
        self._askers = ConsumerPool(
            reactor, settings.socketTimeoutMs, settings.connectTimeoutMs, settings.brokerEndpoint
        )
        self._known: dict[tuple[str, BrokerPartition], int] = {}
        self.room = InFlightLimiter(
            reactor,
            producerCount * settings.queueSize,
            producerCount * settings.queueBytes,
            -1,
        )
        self.batchCountMax = settings.batchSize
        # A compressed set counts as one message; what is too large for one is compressed again, in several, which is better not needed.
        self.batchSizeMax = (
            min(settings.batchBytes, settings.maxMessageSize)
            if settings.compressionCodec
            else settings.batchBytes
        )

    def _client(self) -> IZookeeper:
        return ZookeeperClient.fromSettings(self._reactor, self._settings)

    def __repr__(self) -> str:
        where = self._settings.zkConnect or ",".join(
            f"{each.host}:{each.port}" for each in self._settings.brokerList
        )
        return f"the target at {where}"

    # -- there and away

    async def connect(self) -> None:
        """Find it, however long it takes."""
        if self._settings.zkConnect:
            outage = loggedOutage(SystemRandom().random, f"{self!r} is not there yet")
            await retryForever(self._reactor, self._find, outage)
        # The room is smaller than any one producer's queue; so that nothing is ever refused there.
        own = self._settings.replace(
            queueSize=2 * self._producerCount * self._settings.queueSize,
            queueBytes=2 * self._producerCount * self._settings.queueBytes,
        )
        discovery = None if self._discovery is None else _Shared(self._discovery)
        partitioner = None if self._discovery is None else self._indexOf
        self._producers = [
            Producer(
                self._reactor,
                own,
                discovery=discovery,
                partitioner=partitioner,
                isLoggingFailures=False,  # the routes log what cannot be sent, once
            )
            for _number in range(self._producerCount)
        ]

    async def _find(self) -> None:
        zookeeper = self._makeZookeeper()
        settings, random = self._settings, SystemRandom().random
        timeoutMs, retryCount = settings.zkConnectionTimeoutMs, settings.zkReadNumRetries
        self._discovery = await connectDiscovery(
            self._reactor, zookeeper, timeoutMs, readRetryCount=retryCount, random=random
        )
        self._zookeeper = zookeeper

    async def close(self) -> None:
        """Close everything; what is under way is unknown then."""
        await gatherSettled([producer.close() for producer in self._producers])
        await self._askers.close()
        if self._discovery is not None:
            self._discovery.stop()
        if self._zookeeper is not None:
            await self._zookeeper.close()

    # -- sending

    def _indexOf(self, key: tuple[str, BrokerPartition], _count: int) -> int:
        """The partitioner: the key says it."""
        assert self._discovery is not None
        topic, partition = key
        try:
            return self._discovery.partitions(topic).index(partition)
        except ValueError:
            raise NoBrokersError(
                f"partition {partition} of {topic} is not there; it is waited for"
            ) from None

    def send(
        self, topic: str, payloads: list[bytes], home: BrokerPartition | None
    ) -> Deferred[None]:
        """
        One request.

        @param home: the partition; L{None} for any.
        @return: fires when the broker has confirmed it. Fails as L{Producer.send}.
        """
        if home is None:
            self._turn = (self._turn + 1) % len(self._producers)
            return self._producers[self._turn].sendMany((ProducerData(topic, payloads),))
        producer = self._producers[(31 * home.broker + home.partition) % len(self._producers)]
        return producer.sendMany((ProducerData(topic, payloads, (topic, home)),))

    # -- where it ends

    async def ends(self, topics: Collection[str]) -> dict[str, dict[BrokerPartition, int]]:
        """
        Where partitions end.

        @return: for each partition that is known its visible end; of a broker that does not answer, what it was when it last did. Nothing where the brokers
            pick the partition.
        """
        if self._discovery is None:
            return {}
        found: dict[str, dict[BrokerPartition, int]] = {topic: {} for topic in topics}
        asked = [
            (topic, partition)
            for topic in topics
            for partition in self._discovery.partitions(topic)
        ]
        for (topic, partition), answer in zip(
            asked, await gatherSettled([self._end(*each) for each in asked]), strict=True
        ):
            if not isinstance(answer, Failure):
                self._known[topic, partition] = answer
            if (topic, partition) in self._known:
                found[topic][partition] = self._known[topic, partition]
        return found

    async def _end(self, topic: str, partition: BrokerPartition) -> int:
        offsets = await self._asker(partition.broker).getOffsetsBefore(
            topic, partition.partition, LATEST, 1
        )
        return offsets[0] if offsets else 0

    def _asker(self, number: int) -> SimpleConsumer:
        assert self._discovery is not None
        broker = self._discovery.brokers.get(number)
        if broker is None:
            raise NoBrokersError(f"broker {number} is not there")
        return self._askers.get(broker.endpoint)

    # -- a topic that is new

    async def provide(self, topic: str) -> list[BrokerPartition]:
        """
        All partitions of a topic, which is created if need be: partitions are to be dealt out once and for all, so it must be known how many there are.

        @raise PylogbrokerError: it cannot be found out now.
        """
        found = await self._registered(topic)
        if found:
            return found
        assert self._discovery is not None
        for broker in list(self._discovery.brokers.values()):
            await self._create(topic, broker)
        for _look in range(PROVIDE_MS_MAX // _LOOK_MS):
            found = await self._registered(topic)
            if found:
                return found
            await deferLater(self._reactor, _LOOK_MS / 1000)
        raise TimedOutError(
            f"no broker of the target has entered topic {topic} in ZooKeeper within {PROVIDE_MS_MAX} ms"
        )

    async def _create(self, topic: str, broker: BrokerNode) -> None:
        """A broker creates a topic when something is produced to it, were it nothing."""
        endpoint = brokerEndpoint(self._settings.brokerEndpoint, broker.endpoint)
        producer = SyncProducer(
            self._reactor,
            endpoint,
            connectTimeoutMs=self._settings.connectTimeoutMs,
            timeoutMs=self._settings.socketTimeoutMs,
        )
        try:
            await producer.send(topic, 0, b"")
            await producer.confirm(topic, 0)
        finally:
            await producer.close().addErrback(lambda _failure: None)

    async def _registered(self, topic: str) -> list[BrokerPartition]:
        assert self._zookeeper is not None
        registries = ClusterReader(
            self._zookeeper, lambda text: self._log.warn("Left out: {text}", text=text)
        )
        return [partition for _topic, partition in await registries.partitions([topic])]
