"""
Whole clusters on real sockets, each with a ZooKeeper in memory, for tests of mirrors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster.subscription import WildcardSubscription, whitelist
from pylogbroker.errors import ConnectionLossException, ZookeeperTimeoutException
from pylogbroker.mirror.service import MirrorService, MirrorSettings
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition

reactor: Any = _reactor

SESSION_MS = 400


class Nowhere:
    """A client of a ZooKeeper that is not there."""

    def connect(self, timeoutMs: int) -> Deferred[Any]:
        return fail(ZookeeperTimeoutException(f"no server answers within {timeoutMs} ms"))

    def get_children(self, path: str) -> Deferred[Any]:
        return fail(ConnectionLossException(path))

    def close(self) -> Deferred[None]:
        return succeed(None)


class Cluster:
    """
    @ivar zookeeper: a L{FakeZookeeper}.
    @ivar properties: more of them, for brokers that are started from now on.
    @ivar away: how often it is not there when a mirror looks for it.
    @ivar brokers: by number; L{None} while one is down.
    """

    def __init__(
        self, name: str, brokerCount: int = 1, partitionCount: int = 2, directory: str = ""
    ) -> None:
        self.name = name
        self.zookeeper = FakeZookeeper(reactor)
        self.partitionCount = partitionCount
        self._directory = directory
        self.brokers: dict[int, LocalBroker | None] = dict.fromkeys(range(brokerCount))
        self.properties: dict[str, str] = {}
        self.away = 0

    def client(self) -> Any:
        """A client of the ZooKeeper; a mirror's finds none so many times as C{away} says."""
        if self.away:
            self.away -= 1
            return Nowhere()
        return self.zookeeper.client(SESSION_MS)

    async def start(self) -> None:
        for number in self.brokers:
            await self.startBroker(number)

    async def startBroker(self, number: int) -> None:
        properties = {
            "brokerid": str(number),
            "num.partitions": str(self.partitionCount),
            "enable.zookeeper": "true",
            "zk.connect": "double",
            "zk.sessiontimeout.ms": str(SESSION_MS),
            **self.properties,
        }
        broker = LocalBroker(
            reactor,
            properties,
            f"{self._directory}-{self.name}-{number}",
            zookeeper=lambda: self.zookeeper.client(SESSION_MS),
        )
        await broker.start()
        self.brokers[number] = broker

    async def stopBroker(self, number: int) -> None:
        broker, self.brokers[number] = self.brokers[number], None
        if broker is not None:
            await broker.stop()

    async def stop(self) -> None:
        for number in self.brokers:
            await self.stopBroker(number)

    def endpoint(self, number: int) -> str:
        broker = self.brokers[number]
        assert broker is not None
        return broker.endpoint

    async def produce(
        self, topic: str, partition: str, payloads: list[bytes], codec: int = 0
    ) -> None:
        """Some messages in one set to C{"0-1"}."""
        number, _, index = partition.partition("-")
        producer = SyncProducer(reactor, self.endpoint(int(number)))
        await producer.send(topic, int(index), encodeSet(payloads, codec))
        await producer.confirm(topic, int(index))
        await producer.close()

    async def read(
        self, topic: str, offsets: Mapping[BrokerPartition, int] | None = None
    ) -> dict[str, list[bytes]]:
        """What stands in each partition, from the offsets on."""
        found: dict[str, list[bytes]] = {}
        for number in self.brokers:
            consumer = SimpleConsumer(reactor, self.endpoint(number))
            for index in range(self.partitionCount):
                offset = (offsets or {}).get(BrokerPartition(number, index), 0)
                messages = await consumer.fetch(topic, index, offset, 1 << 22)
                if messages.data:
                    found[f"{number}-{index}"] = [payload for payload, _next in messages.payloads()]
            await consumer.close()
        return found

    async def messages(self, topic: str) -> list[bytes]:
        """All of it, sorted."""
        return sorted(
            payload for payloads in (await self.read(topic)).values() for payload in payloads
        )

    def node(self, path: str) -> bytes | None:
        found = self.zookeeper.tree().get(path)
        return None if found is None else found[0]


class MirrorCase(TestCase):
    """A source, a target, and mirrors between them."""

    timeout = 90

    def cluster(self, name: str, brokerCount: int = 1, partitionCount: int = 2) -> Cluster:
        cluster = Cluster(name, brokerCount, partitionCount, self.mktemp())
        self.addCleanup(cluster.stop)
        return cluster

    def mirror(
        self,
        sources: list[Cluster],
        target: Cluster | LocalBroker,
        topics: WildcardSubscription | None = None,
        *,
        producer: Mapping[str, str] | None = None,
        consumer: Mapping[str, str] | None = None,
        **more: Any,
    ) -> MirrorService:
        """One that is not started."""
        consumers = [
            {
                "zk.connect": source.name,
                "groupid": "mirrors",
                "autocommit.interval.ms": "100",
                "rebalance.backoff.ms": "50",
                "fetcher.backoff.ms": "20",
                "zk.sessiontimeout.ms": str(SESSION_MS),
                **(consumer or {}),
            }
            for source in sources
        ]
        settings = MirrorSettings.fromProperties(
            consumers,
            {
                **(
                    {"zk.connect": target.name, "zk.sessiontimeout.ms": str(SESSION_MS)}
                    if isinstance(target, Cluster)
                    else {"bootstrap.servers": target.bootstrapServers}
                ),
                "close.timeout.ms": "5000",
                **(producer or {}),
            },
            topics or whitelist("t.*"),
            self.fail,
            **more,
        )
        service = MirrorService(
            reactor,
            settings,
            sourceZookeepers=lambda index: sources[index].client(),
            targetZookeeper=target.client if isinstance(target, Cluster) else None,
        )
        self.addCleanup(self.end, service)
        return service

    async def end(self, service: MirrorService) -> None:
        if service.running:
            await service.stopService()

    async def until(self, holds: Callable[[], Any], what: str = "it") -> None:
        """Wait for something to be so."""
        for _look in range(3000):
            if holds():
                return
            await deferLater(reactor, 0.01)
        self.fail(f"{what} has not happened")
