"""
Tests for L{pylogbroker.schemaregistry.service}.
"""

from __future__ import annotations

from twisted.internet import reactor

from pylogbroker.errors import BrokerConnectionError, ConfigurationError
from pylogbroker.schemaregistry.service import RegistryService, newRequest
from tests.broker.manualbroker import capture
from tests.schemaregistry.registrycase import RegistryCase
from tests.schemas.schematexts import field, record

X = record("A", field("x", "int"))


class ServiceTests(RegistryCase):
    """Start, service, end."""

    async def test_serves(self) -> None:
        """
        It serves on the loopback interface; when it has stopped nobody is there, and the next one
        knows what it knew.
        """
        service = await self.startService()
        self.assertEqual(service.port.getHost().host, "127.0.0.1")
        client = self.client(service)
        self.assertEqual(await client.register("s", X), 1)
        await service.stopService()
        await self.assertFailure(client.subjects(), BrokerConnectionError)
        again = await self.startService()
        self.assertEqual(await self.client(again).subjects(), ["s"])

    async def test_taken(self) -> None:
        """A port that is taken, and an endpoint that is none, fail the start and are named."""
        port = (await self.startService()).port.getHost().port
        for listen in (str(port), "nonsense:1", "tls:1"):
            error = self.assertRaises(
                ConfigurationError, self.makeService(listen=listen).privilegedStartService
            )
            self.assertIn(f"listen={listen}", str(error))
        self.assertRaises(
            ConfigurationError, RegistryService, reactor, self.settings(broker="tcp:1")
        )

    async def test_cutBefore(self) -> None:
        """A topic that is not a registry's is logged; nothing is served."""
        lines = capture(self)
        await self.produce("other", b"something")
        service = self.makeService(topic="other")
        service.startService()
        await self.eventually(lambda: any("cannot start" in line for line in lines()))
        self.assertFalse(service.registry.isReady)

    async def test_cutWhile(self) -> None:
        """
        One that is cut while it runs is logged, and the service goes on telling what it knows.
        """
        lines = capture(self)
        service = await self.startService(check_interval_ms="1")
        for number in range(30):
            await self.client(service).register(f"s{number}", X)
        await self.broker.stop()
        self.cut()
        await self.startBroker()
        await self.eventually(
            lambda: any("Nothing can be registered any more" in line for line in lines())
        )
        self.assertEqual(len(await self.client(service).subjects()), 30)

    def test_requests(self) -> None:
        """No request has the id of another."""
        self.assertEqual(len({newRequest() for _ in range(100)}), 100)
