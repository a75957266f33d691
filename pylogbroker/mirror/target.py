"""
The target cluster: its brokers, the producers that send to it, and the ends of its partitions.

The target may be unavailable at any time, also at the start; the mirror retries until it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import SystemRandom
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.clustermetadata import ClusterMetadataReader
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
from pylogbroker.mirror.pipeline import loggedOutage
from pylogbroker.net.deferreds import gatherSettled, retryForever
from pylogbroker.net.socketendpoints import brokerEndpoint
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.types import LATEST, BrokerPartition
from pylogbroker.zookeeper.client import ZookeeperClient

TOPIC_TIMEOUT_MS = 10_000
"""How long the target's brokers have for entering a new topic in ZooKeeper."""

_POLL_MS = 100


class _Shared:
    """One discovery for several producers. None of them starts or stops it."""

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


class TargetCluster:
    """
    The target of a mirror.

    @ivar inFlight: limits the messages in flight, over all streams and sources.
    @ivar batchCountMax: messages in a batch.
    @ivar batchSizeMax: bytes of payload in a batch; a single message may be larger.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings,
        producerCount: int = 1,
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """@param zookeeper: makes an unconnected client; by default one of C{zk.connect}."""
        self._reactor = reactor
        self._settings = settings
        self._producerCount = producerCount
        self._makeZookeeper = zookeeper or self._client
        self._zookeeper: IZookeeper | None = None
        self._discovery: ZookeeperDiscovery | None = None
        self._producers: list[Producer] = []
        self._turn = 0
        self._consumers = ConsumerPool(
            reactor, settings.socketTimeoutMs, settings.connectTimeoutMs, settings.brokerEndpoint
        )
        self._known: dict[tuple[str, BrokerPartition], int] = {}
        self.inFlight = InFlightMessageLimiter(
            reactor,
            producerCount * settings.queueSize,
            producerCount * settings.queueBytes,
            -1,
        )
        self.batchCountMax = settings.batchSize
        # A compressed set counts as one message; what is too large for one is compressed again, in
        # several, which is better not needed.
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
        """Connect, with retries until it succeeds."""
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
        """Close everything. The outcome of messages in flight is then unknown."""
        await gatherSettled([producer.close() for producer in self._producers])
        await self._consumers.close()
        if self._discovery is not None:
            self._discovery.stop()
        if self._zookeeper is not None:
            await self._zookeeper.close()

    # -- sending

    def _indexOf(self, key: tuple[str, BrokerPartition], _count: int) -> int:
        """The partitioner: the key names the partition."""
        assert self._discovery is not None
        topic, partition = key
        try:
            return self._discovery.partitions(topic).index(partition)
        except ValueError:
            raise NoBrokersError(
                f"partition {partition} of {topic} is not there; it is waited for"
            ) from None

    def send(
        self, topic: str, payloads: list[bytes], fixedTarget: BrokerPartition | None
    ) -> Deferred[None]:
        """
        Send payloads in one request.

        @param fixedTarget: the partition; L{None} for any.
        @return: fires when the broker has confirmed them. Fails as L{Producer.send}.
        """
        if fixedTarget is None:
            self._turn = (self._turn + 1) % len(self._producers)
            return self._producers[self._turn].sendMany((ProducerData(topic, payloads),))
        producer = self._producers[
            (31 * fixedTarget.broker + fixedTarget.partition) % len(self._producers)
        ]
        return producer.sendMany((ProducerData(topic, payloads, (topic, fixedTarget)),))

    # -- where it ends

    async def ends(self, topics: Collection[str]) -> dict[str, dict[BrokerPartition, int]]:
        """
        The high watermarks of the partitions of some topics.

        @return: the watermark of each known partition; the last known one if its broker does not
            answer. Nothing if brokers pick the partition.
        """
        if self._discovery is None:
            return {}
        found: dict[str, dict[BrokerPartition, int]] = {topic: {} for topic in topics}
        requested = [
            (topic, partition)
            for topic in topics
            for partition in self._discovery.partitions(topic)
        ]
        for (topic, partition), answer in zip(
            requested, await gatherSettled([self._end(*each) for each in requested]), strict=True
        ):
            if not isinstance(answer, Failure):
                self._known[topic, partition] = answer
            if (topic, partition) in self._known:
                found[topic][partition] = self._known[topic, partition]
        return found

    async def _end(self, topic: str, partition: BrokerPartition) -> int:
        offsets = await self._consumer(partition.broker).getOffsetsBefore(
            topic, partition.partition, LATEST, 1
        )
        return offsets[0] if offsets else 0

    def _consumer(self, number: int) -> SimpleConsumer:
        assert self._discovery is not None
        broker = self._discovery.brokers.get(number)
        if broker is None:
            raise NoBrokersError(f"broker {number} is not there")
        return self._consumers.get(broker.endpoint)

    # -- a topic that is new

    async def ensureTopic(self, topic: str) -> list[BrokerPartition]:
        """
        All partitions of a topic, which is created if need be: partitions are to be dealt out once
        and for all, so it must be known how many there are.

        @raise PylogbrokerError: it cannot be found out now.
        """
        found = await self._registered(topic)
        if found:
            return found
        assert self._discovery is not None
        for broker in list(self._discovery.brokers.values()):
            await self._create(topic, broker)
        for _look in range(TOPIC_TIMEOUT_MS // _POLL_MS):
            found = await self._registered(topic)
            if found:
                return found
            await deferLater(self._reactor, _POLL_MS / 1000)
        raise TimedOutError(
            f"no broker of the target has entered topic {topic} in ZooKeeper within {TOPIC_TIMEOUT_MS} ms"
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
        registries = ClusterMetadataReader(
            self._zookeeper, lambda text: self._log.warn("Left out: {text}", text=text)
        )
        return [partition for _topic, partition in await registries.partitions([topic])]
