"""
A broker of today's Kafka and registries on its C{_schemas} topic, in the test's own reactor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater

from pylogbroker.client.kafka.admin.client import AdminClient, NewTopic, checkAll
from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import RegistryRefusalError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.schemaregistry.kafka.registry import KafkaRegistry
from pylogbroker.schemaregistry.service import RegistryService
from pylogbroker.schemas.rest import MEDIA_TYPE
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.schemaregistry.registrycase import RegistryCase

TOPIC = "_schemas"
COMPACTED = {"cleanup.policy": "compact"}
Record = tuple[str, str | None]


class KafkaRegistryCase(RegistryCase):
    """
    @ivar broker: the broker that all registries of a test use.
    """

    bootstrapServers = ""
    """Of another broker; empty: each test has its own L{LocalBroker}. A class variable."""

    async def setUp(self) -> None:  # type: ignore[override]
        if not self.bootstrapServers:
            self.broker = LocalBroker(reactor)
            await self.broker.start()
            self.addCleanup(self.broker.stop)
            return
        async with AdminClient(reactor, self.access()) as admin:
            while TOPIC in await admin.listTopics():
                await admin.deleteTopics([TOPIC])
                await deferLater(reactor, 0.1)

    def settings(self, **properties: str) -> RegistrySettings:
        given = {key.replace("_", "."): value for key, value in properties.items()}
        own = {
            **self.access(),
            "listen": "0",
            "poll.interval.ms": "50",
            "timeout.ms": "20000",
            "kafkagroup.heartbeat.interval.ms": "100",
            **given,
        }
        return RegistrySettings.fromProperties(own, self.fail)

    def registryOf(self, service: RegistryService) -> KafkaRegistry:
        assert isinstance(service.registry, KafkaRegistry)
        return service.registry

    async def startService(self, **properties: str) -> RegistryService:
        """One that knows which registry leads."""
        service = await super().startService(**properties)
        await self.eventually(lambda: self.leaderOf(service) is not None)
        return service

    def leaderOf(self, service: RegistryService) -> str | None:
        """The URL of the registry that leads, as a registry knows it."""
        leadership = self.registryOf(service).leadership
        leader = None if leadership is None else leadership.leader
        return None if leader is None else leader.url

    def urlOf(self, service: RegistryService) -> str:
        return f"http://127.0.0.1:{service.port.getHost().port}"

    # -- the topic

    async def createTopic(self, partitionCount: int = 1, **configs: str) -> None:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        new = NewTopic(TOPIC, partitionCount, 1, given or COMPACTED)
        async with AdminClient(reactor, self.access()) as admin:
            checkAll(await admin.createTopics([new]))

    def access(self) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrapServers or self.broker.bootstrapServers}

    async def write(self, records: Iterable[Record], topic: str = TOPIC) -> None:
        """Records as another registry writes them."""
        producer = KafkaProducer(reactor, {**self.access(), "linger.ms": "0"})
        for key, value in records:
            data = None if value is None else value.encode()
            await producer.send(topic, data, key.encode(), partition=0)
        await producer.close()

    async def records(self, start: int = 0, topic: str = TOPIC) -> list[Record]:
        """The records of the topic from an offset on, without NOOPs."""
        place = TopicPartition(topic, 0)
        async with KafkaConsumer(reactor, {**self.access(), "consumer.timeout.ms": "5000"}) as it:
            end = (await it.endOffsets([place]))[place]
            it.assign({place: start})
            found: list[Record] = []
            while it.positions[place] < end:
                record = await it.__anext__()
                value = None if record.value is None else bytes(record.value).decode()
                found.append((bytes(record.key or b"").decode(), value))
            return [each for each in found if '"NOOP"' not in each[0]]

    async def end(self) -> int:
        """The offset behind the last record."""
        place = TopicPartition(TOPIC, 0)
        async with KafkaConsumer(reactor, self.access()) as consumer:
            return (await consumer.endOffsets([place]))[place]

    # -- requests

    async def ask(
        self,
        service: RegistryService,
        method: str,
        path: str,
        body: Any = None,
        **headers: str,
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            given["Content-Type"] = MEDIA_TYPE
        status, answer = await RegistryClient(reactor, self.urlOf(service)).exchange(
            method, path, given, None if body is None else json.dumps(body).encode()
        )
        return status, json.loads(answer)

    async def asked(self, *arguments: Any, **more: Any) -> Any:
        """The JSON of an answer that is no refusal."""
        status, answer = await self.ask(*arguments, **more)
        self.assertEqual(status, 200, answer)
        return answer

    async def refused(self, code: int, *arguments: Any, **more: Any) -> str:
        """The reason of a refusal."""
        status, answer = await self.ask(*arguments, **more)
        self.assertEqual(answer.get("error_code"), code, answer)
        self.assertEqual(status, RegistryRefusalError(code, "").status)
        return str(answer["message"])
