"""
The target cluster: its brokers, the producers that send to it, and the ends of its partitions.

The target may be unavailable at any time, also at the start; the mirror retries until it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import SystemRandom
from typing import Any, Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.client.discovery import BrokerNode, ZookeeperDiscovery
from pylogbroker.client.offsetlookup import OffsetLookup
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.errors import NoBrokersError, TimedOutError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.mirror.pipeline import Outage, retryForever
from pylogbroker.net.deferreds import gatherSettled
from pylogbroker.net.endpointstrings import brokerEndpoint
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient

TOPIC_TIMEOUT_MS = 10_000
"""How long the target's brokers have for entering a new topic in ZooKeeper."""

_POLL_MS = 100


class MirrorRecord:
    """
    A message of a source of today, for a target of today. Its C{len} is its bytes.

    @ivar record: a L{ConsumerRecord}.
    """

    __slots__ = ("_size", "record")

    def __init__(self, record: ConsumerRecord) -> None:
        self.record = record
        self._size = len(record.key or b"") + len(record.value or b"")
        for name, value in record.headers:
            self._size += len(name) + len(value or b"")

    def __len__(self) -> int:
        return self._size


class MirrorOutlet(Protocol):
    """
    What a forwarder sends to.

    @ivar inFlight: limits the messages in flight, over all streams and sources.
    @ivar batchCountMax: messages in a batch.
    @ivar batchSizeMax: bytes of payload in a batch; a single message may be larger.
    """

    inFlight: InFlightMessageLimiter
    batchCountMax: int
    batchSizeMax: int

    def send(
        self, topic: str, payloads: list[Any], fixedTarget: BrokerPartition | None
    ) -> Deferred[Any]:
        """
        Send payloads in their order.

        @param payloads: bytes; to a target of today also L{MirrorRecord}s.
        @param fixedTarget: the partition; L{None} for any.
        @return: fires when the target has confirmed all of them: with the offsets of the first and
            the last one if they are known, otherwise with L{None}.
        """


class MirrorTarget(MirrorOutlet, Protocol):
    """Where a mirror sends to, whatever protocol the cluster speaks."""

    async def connect(self) -> None:
        """Connect, with retries until it succeeds."""

    async def close(self) -> None:
        """Close everything. The outcome of messages in flight is then unknown."""

    async def ends(self, topics: Collection[str]) -> dict[str, dict[BrokerPartition, int]]:
        """Where the partitions of some topics end, or did when it was last known."""

    async def ensureTopic(self, topic: str) -> list[BrokerPartition]:
        """
        All partitions of a topic, which is created if need be.

        @raise PylogbrokerError: it cannot be found out now.
        """


class _SharedDiscovery:
    """One discovery for several producers. None of them starts or stops it."""

    isStatic = False

    def __init__(self, discovery: ZookeeperDiscovery) -> None:
        self._discovery = discovery
        self.brokers = discovery.brokers
        self.partitions = discovery.partitions
        self.lookUp = discovery.lookUp
        self.refresh = discovery.refresh
        self.listen = discovery.listen

    @property
    def version(self) -> int:
        return self._discovery.version

    def start(self) -> Deferred[None]:
        return succeed(None) if self.brokers else self.refresh()

    def stop(self) -> None:
        pass


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
        self._makeZookeeper = zookeeper or partial(ZookeeperClient.fromSettings, reactor, settings)
        self._zookeeper: IZookeeper | None = None
        self._discovery: ZookeeperDiscovery | None = None
        self._producers: list[Producer] = []
        self._turn = 0
        self._offsets = OffsetLookup(
            reactor,
            self._broker,
            settings.socketTimeoutMs,
            settings.connectTimeoutMs,
            settings.brokerEndpoint,
        )
        self._ends: dict[PartitionId, int] = {}
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

    def __repr__(self) -> str:
        where = self._settings.zkConnect or ",".join(
            f"{each.host}:{each.port}" for each in self._settings.brokerList
        )
        return f"the target at {where}"

    @property
    def zookeeper(self) -> IZookeeper:
        """The cluster's, once C{connect} has fired."""
        assert self._zookeeper is not None
        return self._zookeeper

    # -- there and away

    async def connect(self) -> None:
        """Connect, with retries until it succeeds."""
        if self._settings.zkConnect:
            outage = Outage(SystemRandom().random, f"{self!r} is not there yet")
            await retryForever(self._reactor, self._find, outage)
        # The room is smaller than any one producer's queue; so that nothing is ever refused there.
        own = self._settings.replace(
            queueSize=2 * self._producerCount * self._settings.queueSize,
            queueBytes=2 * self._producerCount * self._settings.queueBytes,
        )
        discovery = None if self._discovery is None else _SharedDiscovery(self._discovery)
        partitioner = None if self._discovery is None else self._indexOf
        self._producers = [
            Producer(
                self._reactor,
                own,
                discovery=discovery,
                partitioner=partitioner,
                isLoggingFailures=False,  # the pipelines log what cannot be sent, once
            )
            for _number in range(self._producerCount)
        ]

    async def _find(self) -> None:
        zookeeper = self._makeZookeeper()
        discovery = ZookeeperDiscovery(
            self._reactor,
            zookeeper,
            readRetryCount=self._settings.zkReadNumRetries,
            random=SystemRandom().random,
        )
        await discovery.connect(self._settings.zkConnectionTimeoutMs)
        self._zookeeper, self._discovery = zookeeper, discovery

    async def close(self) -> None:
        """Close everything. The outcome of messages in flight is then unknown."""
        await gatherSettled([producer.close() for producer in self._producers])
        await self._offsets.close()
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
            PartitionId(topic, partition)
            for topic in topics
            for partition in self._discovery.partitions(topic)
        ]
        ends = await gatherSettled([self._offsets.end(*each) for each in requested])
        for each, end in zip(requested, ends, strict=True):
            if not isinstance(end, Failure):
                self._ends[each] = end
            if each in self._ends:
                found[each.topic][each.partition] = self._ends[each]
        return found

    async def _broker(self, number: int) -> BrokerNode:
        assert self._discovery is not None
        if number not in self._discovery.brokers:
            raise NoBrokersError(f"broker {number} is not there")
        return self._discovery.brokers[number]

    # -- a topic that is new

    async def ensureTopic(self, topic: str) -> list[BrokerPartition]:
        """
        All partitions of a topic, which is created if need be: partitions are to be dealt out once
        and for all, so it must be known how many there are.

        @raise PylogbrokerError: it cannot be found out now.
        """
        for look in range(1 + TOPIC_TIMEOUT_MS // _POLL_MS):
            found = await self._registered(topic)
            if found:
                return found
            if look:
                await deferLater(self._reactor, _POLL_MS / 1000)
                continue
            assert self._discovery is not None
            for broker in list(self._discovery.brokers.values()):
                await self._create(topic, broker)
        raise TimedOutError(
            f"no broker of the target has entered topic {topic} in ZooKeeper within "
            f"{TOPIC_TIMEOUT_MS} ms"
        )

    async def _create(self, topic: str, broker: BrokerNode) -> None:
        """A broker creates a topic when something is produced to it, were it nothing."""
        endpoint = brokerEndpoint(self._settings.brokerEndpoint, broker.address)
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
