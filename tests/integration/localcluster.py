"""
Brokers of one cluster in this process, on real sockets and files. They share one image of the
metadata, whose changes each of them is told of at once; the controller's decisions are the real
ones.
"""

from __future__ import annotations

import os
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from pylogbroker.broker.metadata.journal import MetadataJournal
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import (
    ClusterRecord,
    MetadataImage,
    Record,
    RegisterBrokerRecord,
)
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.replication.controller import LogState, fenceAbsent, registerBroker
from pylogbroker.storage.metadatastore import MetadataStore
from pylogbroker.testing.localbroker import LocalBroker, UnsyncedFileSystem

PROPERTIES = {
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "auto.create.topics.enable": "false",
    "inter.broker.listener.name": "PLAINTEXT",
}


class LocalCluster:
    """
    @ivar brokers: those that run, by id.
    @ivar metadata: of the cluster.
    """

    def __init__(self, case: TestCase) -> None:
        """@param case: at whose end everything stops."""
        self._case = case
        self.brokers: dict[int, LocalBroker] = {}
        self._directories: dict[int, str] = {}
        self._listeners: dict[int, list[Any]] = {}
        directory = os.path.abspath(case.mktemp())
        os.makedirs(directory)
        self._worker = ThreadPoolWorker(reactor, "metadata", 1)
        journal = MetadataJournal(MetadataStore(UnsyncedFileSystem(), directory), self._worker)
        self.metadata = MetadataManager(journal, Random(5).randbytes)
        journal.open(self.metadata, lambda: [ClusterRecord("C" * 22)])
        self._worker.start()
        case.addCleanup(self.close)

    async def close(self) -> None:
        for brokerId in list(self.brokers):
            await self.stop(brokerId)
        self.metadata.close()
        self._worker.stop()

    async def start(self, brokerId: int) -> None:
        """Start a broker, perhaps again; it registers when it serves."""
        directory = self._directories.setdefault(brokerId, os.path.abspath(self._case.mktemp()))
        made = LocalBroker(reactor, {**PROPERTIES, "brokerid": str(brokerId)}, directory)
        kafka = made.broker.service.kafka
        kafka.metadata = kafka.topics.metadata = self.metadata
        kafka.open = kafka._identify  # type: ignore[method-assign]
        before = list(self.metadata._listeners)
        await made.start()
        self._listeners[brokerId] = [
            each for each in self.metadata._listeners if each not in before
        ]
        self.brokers[brokerId] = made

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            endpoint = ["PLAINTEXT", made.host, made.port, "PLAINTEXT"]
            epoch = self.metadata.position + 1
            registration = RegisterBrokerRecord(brokerId, epoch, [endpoint], None)
            known = image.brokers.get(brokerId)
            previous = -1 if known is None else known.epoch
            return registerBroker(image, registration, LogState.INTACT, previous), None

        await self.metadata.change(decide)

    async def stop(self, brokerId: int) -> None:
        """Stop a broker, and have it fenced."""
        made = self.brokers.pop(brokerId)
        for each in self._listeners.pop(brokerId):
            self.metadata._listeners.remove(each)
        made.broker.service.kafka.metadata = MetadataManager(
            self.metadata._log, Random(5).randbytes
        )
        made.broker.service.kafka.metadata.close = lambda: None  # type: ignore[method-assign]
        await made.stop()

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            return fenceAbsent(image, list(self.brokers), self.metadata.position), None

        await self.metadata.change(decide)

    @property
    def servers(self) -> str:
        """C{bootstrap.servers}: one broker, which names the others."""
        return next(iter(self.brokers.values())).bootstrapServers
