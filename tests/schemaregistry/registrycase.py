"""
A broker and registries in the test's own reactor.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.schemaregistry.service import RegistryService
from pylogbroker.schemaregistry.topiclog import TopicLog
from pylogbroker.testing.localbroker import LocalBroker

LOOK_COUNT_MAX = 1_500


class RegistryCase(TestCase):
    """
    @ivar broker: the one that runs.
    """

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.requests = count()
        self.properties: dict[str, str] = {}
        await self.startBroker()
        self.addCleanup(lambda: self.broker.stop())

    async def startBroker(self, **properties: str) -> None:
        """With what is in the directory; on the port that it had before."""
        self.broker = LocalBroker(
            reactor, {"log.file.size": "4096", **self.properties, **properties}, self.directory
        )
        await self.broker.start()
        self.properties["port"] = str(self.broker.port)

    def cut(self, topic: str = "_schemas") -> None:
        """What retention does: the first segment goes. For a broker that is stopped."""
        folder = f"{self.directory}/{topic}-0"
        os.unlink(f"{folder}/{min(name for name in os.listdir(folder) if name.endswith('.kafka'))}")

    def settings(self, **properties: str) -> RegistrySettings:
        given = {key.replace("_", "."): value for key, value in properties.items()}
        own = {
            "broker": self.broker.endpoint,
            "listen": "0",
            "poll.interval.ms": "10",
            "timeout.ms": "20000",
            **given,
        }
        return RegistrySettings.fromProperties(own, self.fail)

    def makeService(self, **properties: str) -> RegistryService:
        service = RegistryService(
            reactor,
            self.settings(**properties),
            request=lambda: f"{id(self)}-{next(self.requests)}",
        )
        self.addCleanup(service.stopService)
        return service

    async def startService(self, **properties: str) -> RegistryService:
        """One that is ready."""
        service = self.makeService(**properties)
        service.startService()
        await self.eventually(lambda: service.registry.isReady)
        return service

    def client(self, service: RegistryService) -> RegistryClient:
        return RegistryClient(reactor, f"http://127.0.0.1:{service.port.getHost().port}")

    def makeLog(
        self, topic: str = "log", checkIntervalMs: float = 1e9, clock: Any = reactor
    ) -> TopicLog:
        """@param clock: for its waits; its connections are the reactor's."""
        ways = (
            SimpleConsumer(reactor, self.broker.endpoint),
            SyncProducer(reactor, self.broker.endpoint),
        )
        log = TopicLog(clock, topic, *ways, 10, checkIntervalMs)
        self.addCleanup(lambda: Deferred.fromCoroutine(log.close()))
        return log

    async def produce(self, topic: str, *payloads: bytes) -> None:
        """Messages that are visible."""
        producer = SyncProducer(reactor, self.broker.endpoint)
        before = await producer.confirm(topic, 0)
        await producer.send(topic, 0, payloads)
        while await producer.confirm(topic, 0) == before:  # it is flushed on a worker
            await deferLater(reactor, 0.01)
        await producer.close()

    async def eventually(self, condition: Callable[[], Any]) -> None:
        """Look again and again, up to a limit."""
        for _look in range(LOOK_COUNT_MAX):
            if condition():
                return
            await deferLater(reactor, 0.02)
        self.fail("it has not come true")
