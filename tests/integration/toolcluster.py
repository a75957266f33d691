"""
A cluster for the tests of the tools: a real ZooKeeper and two brokers of two partitions each, all
of them processes, which stay for the whole run. Tests keep out of each other's way by the names of
their topics and groups.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.mirror.offsetsyncs import OffsetSyncTable
from pylogbroker.producer.producer import Producer
from pylogbroker.types import BrokerPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import write
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.chroots import freshChroot, registered

reactor: Any = _reactor
PARTITION_COUNT = 2
FETCH_SIZE = 1 << 20
_FIGURES = re.compile(r"Metrics and console are served on .*:(\d+)")


class ToolCluster:
    """
    @ivar servers: of ZooKeeper, with the chroot, once it has been started.
    @ivar brokers: by number.
    """

    def __init__(self) -> None:
        self.servers = ""
        self._folder = tempfile.mkdtemp(prefix="pylogbroker-tools-")
        self.brokers: list[BrokerProcess] = []

    async def start(self) -> None:
        """Blocks while the brokers start."""
        self.servers = await freshChroot("tools")
        for number in range(2):
            own = {"log.file.size": "4000", "log.flush.interval": "1", "http.listener": "0"}
            broker = BrokerProcess(
                f"{self._folder}/logs{number}",
                {**registered(self.servers, number, PARTITION_COUNT), **own},
            )
            self.brokers.append(broker)
            broker.start()

    def figuresPort(self, number: int) -> int:
        """Where a broker serves its figures."""
        return int(self.brokers[number].waitForLine(_FIGURES).group(1))

    def end(self) -> None:
        """Nothing is left of it."""
        for broker in self.brokers:
            if broker.isRunning:
                broker.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def establish(self, topic: str) -> None:
        """
        Have a topic on all brokers, with a message in partition 0 of each: a producer stays with
        the brokers that have it.
        """
        for broker in self.brokers:
            producer = SyncProducer(reactor, f"127.0.0.1:{broker.port}")
            await producer.send(topic, 0, [b"first"])
            await producer.confirm(topic, 0)
            await producer.close()
        async with self._admin() as admin:
            while await self._brokerCount(admin, topic) < len(self.brokers):
                await deferLater(reactor, 0.02)

    @staticmethod
    async def _brokerCount(admin: ZookeeperClient, topic: str) -> int:
        path = f"/brokers/topics/{topic}"
        return len(await admin.get_children(path)) if await admin.exists(path) else 0

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[ZookeeperClient]:
        admin = ZookeeperClient(reactor, self.servers)
        await admin.connect()
        try:
            yield admin
        finally:
            await admin.close()

    async def node(self, path: str, data: bytes) -> None:
        """Somebody writes a node."""
        async with self._admin() as admin:
            await write(admin, path, data)

    def forget(self, path: str) -> Deferred[None]:
        """Take a node away."""

        async def remove() -> None:
            async with self._admin() as admin:
                await admin.delete(path)

        return Deferred.fromCoroutine(remove())

    async def spread(self, topic: str, payloads: list[bytes], codec: int = 0) -> None:
        """
        Put messages into all partitions; each payload is its own key. They are visible when this
        returns.
        """
        settings = {
            "zk.connect": self.servers,
            "confirm": "true",
            "producer.type": "async",
            "queue.time": "20",
            "compression.codec": str(codec),
        }
        producer = Producer(reactor, settings)
        await producer.start()
        for payload in payloads:
            await producer.whenReady()
            producer.send(topic, payload, payload)
        await producer.close()
        assert producer.counters.writtenCount == len(payloads), producer.counters

    async def stored(self, topic: str) -> dict[BrokerPartition, list[tuple[bytes, int]]]:
        """
        The truth: what the brokers hold, with next offsets, of partitions that hold something.
        """
        found = {}
        for number, broker in enumerate(self.brokers):
            consumer = SimpleConsumer(reactor, f"127.0.0.1:{broker.port}")
            for partition in range(PARTITION_COUNT):
                messages: list[tuple[bytes, int]] = []
                while pairs := list(
                    (
                        await consumer.fetch(
                            topic, partition, messages[-1][1] if messages else 0, FETCH_SIZE
                        )
                    ).payloads()
                ):
                    messages += pairs
                if messages:
                    found[BrokerPartition(number, partition)] = messages
            await consumer.close()
        return found

    async def put(self, group: str, topic: str, offsets: dict[BrokerPartition, int]) -> None:
        """A group's positions."""
        for partition, offset in offsets.items():
            await self.node(f"/consumers/{group}/offsets/{topic}/{partition}", b"%d" % offset)

    async def mirrored(self, group: str, topic: str) -> None:
        """A mirror has written down offsets of a target, though it is not known of which."""
        for broker, partition in (
            (broker, partition)
            for broker in range(len(self.brokers))
            for partition in range(PARTITION_COUNT)
        ):
            await self.node(
                f"/consumers/{group}/mirror/{topic}/{broker}-{partition}",
                OffsetSyncTable(entries=[(0, {})]).encode(),
            )

    async def positions(self, group: str, topic: str) -> dict[BrokerPartition, int]:
        """The truth: what stands in ZooKeeper."""
        found = {}
        async with self._admin() as admin:
            for name in await admin.get_children(f"/consumers/{group}/offsets/{topic}"):
                data, _stat = await admin.get(f"/consumers/{group}/offsets/{topic}/{name}")
                broker, partition = name.split("-")
                found[BrokerPartition(int(broker), int(partition))] = int(data or b"")
        return found


_shared: list[ToolCluster] = []


def sharedCluster() -> Deferred[ToolCluster]:
    """One for all tests of this process; it goes when the process ends."""

    async def find() -> ToolCluster:
        if not _shared:
            cluster = ToolCluster()
            atexit.register(cluster.end)
            await cluster.start()
            _shared.append(cluster)
        return _shared[0]

    return Deferred.fromCoroutine(find())
