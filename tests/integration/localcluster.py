"""
Brokers of one cluster in this process, on real sockets and files, with a ZooKeeper in memory.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient

SESSION_MS = 1_000
PROPERTIES = {
    "enable.zookeeper": "true",
    "metadata.store": "zookeeper",
    "zk.connect": "memory",
    "zk.sessiontimeout.ms": str(SESSION_MS),
    "hostname": "127.0.0.1",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "auto.create.topics.enable": "false",
    "inter.broker.listener.name": "PLAINTEXT",
}
_LOOK_SECONDS = 0.01


class LocalCluster:
    """
    @ivar zookeeper: the server.
    @ivar brokers: those that run, by id.
    @ivar clients: their clients of ZooKeeper.
    """

    def __init__(self, case: TestCase) -> None:
        """@param case: at whose end everything stops."""
        self._case = case
        self.zookeeper = FakeZookeeper(reactor)
        self.brokers: dict[int, LocalBroker] = {}
        self.clients: dict[int, FakeZookeeperClient] = {}
        self._directories: dict[int, str] = {}
        case.addCleanup(self.close)

    async def close(self) -> None:
        for brokerId in list(self.brokers):
            await self.stop(brokerId)

    async def start(self, brokerId: int) -> None:
        """Start a broker, perhaps again; the others know it then."""
        directory = self._directories.setdefault(brokerId, os.path.abspath(self._case.mktemp()))
        made = LocalBroker(
            reactor,
            {**PROPERTIES, "brokerid": str(brokerId)},
            directory,
            lambda: self._client(brokerId),
        )
        await made.start()
        self.brokers[brokerId] = made
        await self.until(lambda image: brokerId in image.brokers)
        await self.until(lambda image: not image.brokers[brokerId].isFenced)

    def _client(self, brokerId: int) -> FakeZookeeperClient:
        made = self.clients[brokerId] = self.zookeeper.client(SESSION_MS)
        return made

    async def stop(self, brokerId: int) -> None:
        """Stop a broker, and wait until the controller has fenced it, if a broker is left."""
        await self.brokers.pop(brokerId).stop()
        await self.until(lambda image: image.brokers[brokerId].isFenced)

    async def expire(self, brokerId: int) -> None:
        """End a broker's session with ZooKeeper, and wait until the broker has registered anew."""
        kafka = self.brokers[brokerId].broker.service.kafka
        epoch = kafka.metadata.image.brokers[brokerId].epoch
        self.zookeeper.expire(self.clients[brokerId])

        def isBack(image: MetadataImage) -> bool:
            found = image.brokers[brokerId]
            return found.epoch > epoch and not found.isFenced

        await self.until(isBack)

    @property
    def images(self) -> list[MetadataImage]:
        """The metadata, as each broker knows them."""
        return [each.broker.service.kafka.metadata.image for each in self.brokers.values()]

    async def until(self, isTrue: Any) -> None:
        """Wait until something is true of each broker's image."""
        while not all(map(isTrue, self.images)):
            await deferLater(reactor, _LOOK_SECONDS)

    @property
    def servers(self) -> str:
        """C{bootstrap.servers}: one broker, which names the others."""
        return next(iter(self.brokers.values())).bootstrapServers
