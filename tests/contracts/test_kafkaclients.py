"""
The clients' contract with a cluster (L{tests.contracts.kafkaclients}), on our broker, and on the
recorded conversations with Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.protocol.kafka import saslclient
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.testing.localbroker import LocalBroker
from tests.contracts.conversations import Conversation, Exchange, readConversation
from tests.contracts.kafkaclients import (
    BROKER_ID,
    LISTENERS,
    SCENARIOS,
    TLS,
    ContractCluster,
    FixedSecrets,
    brokerSettings,
    perform,
)
from tests.contracts.recorder import Recorder
from tests.contracts.replay import ReplayServer
from tests.integration.certificates import Authority

TIMEOUT_SECONDS = 120


class ContractBroker:
    """
    A broker of ours in this process, as the contract needs it.

    @ivar trustFolder: the certificate of the authority that has signed the broker's.
    """

    def __init__(self, folder: str, more: Mapping[str, str] | None = None) -> None:
        """
        @param more: settings.
        """
        authority, other = Authority(f"{folder}/a"), Authority(f"{folder}/b", "other")
        self.broker = LocalBroker(
            reactor,
            {
                **brokerSettings(authority.issue("broker")),
                "brokerid": str(BROKER_ID),
                "listeners": ",".join(f"{name}://127.0.0.1:0" for name in LISTENERS),
                **(more or {}),
            },
        )
        self.trustFolder = authority.trustFolder()
        self._otherTrustFolder = other.trustFolder()

    async def start(self) -> ContractCluster:
        await self.broker.start()
        ports = [port.getHost().port for port in self.broker.broker.service.ports]
        servers = {name: f"127.0.0.1:{port}" for name, port in zip(LISTENERS, ports, strict=True)}
        return ContractCluster(servers, self.trustFolder, self._otherTrustFolder)


def eachScenario(case: Any) -> Any:
    """Give a test case a test for each scenario, which C{case.perform} runs by its name."""
    for name in SCENARIOS:

        def test(self: Any, name: str = name) -> Any:
            return self.perform(name)

        test.__doc__ = f"The scenario C{{{name}}}."
        setattr(case, f"test_{name}", test)
    return case


@eachScenario
class OurBrokerTests(TestCase):
    """On our broker."""

    timeout = TIMEOUT_SECONDS

    async def perform(self, scenario: str) -> None:
        server = ContractBroker(self.mktemp())
        self.addCleanup(server.broker.stop)
        await perform(reactor, await server.start(), scenario, f"{scenario}-")


class ReplayCase(TestCase):
    """Runs scenarios on recorded conversations."""

    timeout = TIMEOUT_SECONDS

    async def replay(self, scenario: str, conversation: Conversation) -> list[str]:
        """What differs from the record; the scenario ends with the first difference."""
        authority, other = Authority(f"{self.mktemp()}/a"), Authority(f"{self.mktemp()}/b", "other")
        self.patch(saslclient, "secrets", FixedSecrets)

        def failed(_difference: str) -> None:
            running.cancel()

        server = ReplayServer(reactor, conversation, authority.issue("broker"), failed)
        await server.listen()
        self.addCleanup(server.stop)
        cluster = ContractCluster(
            {name: f"127.0.0.1:{port}" for name, port in server.ports.items()},
            authority.trustFolder(),
            other.trustFolder(),
        )
        running = Deferred.fromCoroutine(perform(reactor, cluster, scenario, f"{scenario}-"))
        try:
            await running
        except Exception:
            if not server.failures:
                raise
            return server.failures
        return server.failures + server.missing()


@eachScenario
class ApacheTests(ReplayCase):
    """On what Apache Kafka 4.3.1 has answered."""

    async def perform(self, scenario: str) -> None:
        self.assertEqual(await self.replay(scenario, readConversation(scenario)), [])


class DifferenceTests(ReplayCase):
    """What a client says otherwise than in the record is told, with what differs."""

    async def replayChanged(self, change: Callable[[list[Exchange]], list[Exchange]]) -> list[str]:
        """Replay a record in which something else is said."""
        conversation = readConversation("times")
        exchanges = change(list(conversation.exchanges))
        return await self.replay("times", conversation._replace(exchanges=exchanges))

    async def test_body(self) -> None:
        """Another value in a request."""

        def change(exchanges: list[Exchange]) -> list[Exchange]:
            for place, each in enumerate(exchanges):
                if each.key is ApiKey.LIST_OFFSETS:
                    request: Any = each.request
                    request.isolationLevel = 1
                    exchanges[place] = each._replace(body=request.encode(each.version))
            return exchanges

        self.assertEqual(
            await self.replayChanged(change),
            [
                "AdminClient1: ListOffsets v11 differs from the record: isolationLevel: 1 was "
                "recorded, 0 was sent"
            ],
        )

    async def test_version(self) -> None:
        """Another version."""

        def change(exchanges: list[Exchange]) -> list[Exchange]:
            return [
                each._replace(version=10, body=each.request.encode(10))
                if each.key is ApiKey.LIST_OFFSETS
                else each
                for each in exchanges
            ]

        self.assertEqual(
            await self.replayChanged(change),
            ["AdminClient1: ListOffsets v11 was sent, ListOffsets v10 was recorded"],
        )

    async def test_more(self) -> None:
        """A request that was not sent then."""

        def change(exchanges: list[Exchange]) -> list[Exchange]:
            return [each for each in exchanges if each.key is not ApiKey.CREATE_TOPICS]

        [found] = await self.replayChanged(change)
        self.assertIn("CreateTopics v7 was sent, and no more of it was recorded", found)

    async def test_less(self) -> None:
        """A request that was sent then."""

        def change(exchanges: list[Exchange]) -> list[Exchange]:
            [last] = [each for each in exchanges if each.key is ApiKey.INIT_PRODUCER_ID]
            return [*exchanges, last]

        self.assertEqual(
            await self.replayChanged(change),
            ["KafkaProducer1: InitProducerId v5 was recorded, and not sent"],
        )

    async def test_fetch(self) -> None:
        """A fetch of what was not asked for then."""
        conversation = readConversation("parts")
        exchanges = [each for each in conversation.exchanges if each.key is not ApiKey.FETCH]
        changed = conversation._replace(exchanges=exchanges)
        [found] = await self.replay("parts", changed)
        self.assertEqual(found, "KafkaConsumer1: Fetch v18: no fetch of it was recorded")


class RecorderTests(TestCase):
    """What is recorded can be replayed; here from our broker."""

    timeout = TIMEOUT_SECONDS

    async def test_recorded(self) -> None:
        """A scenario's requests and answers pass the recorder, each in its order, TLS included."""
        folder = self.mktemp()
        authority = Authority(f"{folder}/recorder")
        recorder = Recorder(reactor, authority.issue("proxy"), f"{folder}/a/trusted")
        await recorder.listen()
        self.addCleanup(recorder.stop)
        at = [f"{name}://127.0.0.1:{port}" for name, port in recorder.ports.items()]
        server = ContractBroker(folder, {"advertised.listeners": ",".join(at)})
        self.addCleanup(server.broker.stop)
        cluster = await server.start()
        recorder.connect({name: int(at.rpartition(":")[2]) for name, at in cluster.servers.items()})
        admin = AdminClient(
            reactor,
            {
                "bootstrap.servers": f"127.0.0.1:{recorder.ports[TLS]}",
                "broker.endpoint": "tls:{host}:{port}:trustRoots=" + authority.trustFolder(),
                "client.id": "AdminClient1",
            },
        )
        self.addCleanup(admin.close)
        recorder.begin()
        await admin.listGroups()
        conversation, count = recorder.end()
        self.assertEqual(count, len(conversation.exchanges))
        self.assertEqual(
            [each.key.apiName for each in conversation.exchanges[:2]], ["ApiVersions", "Metadata"]
        )
        self.assertEqual([each.after for each in conversation.exchanges[:2]], [1, 2])
        self.assertEqual(cast("Any", conversation.exchanges[1].response).brokers[0].nodeId, 1)
