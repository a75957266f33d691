"""A broker as the client of another one: over real sockets, with each kind of security."""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import BrokerConnectionError, ConfigurationError, PylogbrokerError
from pylogbroker.net.deferreds import closing
from pylogbroker.programs.interbroker import interBrokerClients
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.testing import LocalBroker
from tests.integration.certificates import Authority

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
TIMEOUT = 30


class SecurityTests(TestCase):
    """Listeners between brokers, whose settings both brokers have."""

    timeout = TIMEOUT

    def setUp(self) -> None:
        self.authority = Authority(self.mktemp())

    async def answer(self, served: dict[str, str], own: dict[str, str]) -> Any:
        """What a broker with some settings gets from one with others."""
        broker = LocalBroker(reactor, served)
        self.addCleanup(broker.stop)
        await broker.start()
        settings = BrokerSettings.fromProperties(
            {"brokerid": "1", "log.dir": "unused", "enable.zookeeper": "false", **own}
        )
        client = interBrokerClients(reactor, settings)("127.0.0.1", broker.port)
        async with closing(client):
            connection = await client.connection()
            body = messages.MetadataRequest(topics=[])
            return await connection.request(ApiKey.METADATA, body)

    def secured(self, protocol: str, *more: dict[str, str], name: str = "broker") -> dict[str, str]:
        """Settings with a key of its own."""
        found = {
            "listeners": f"{protocol}://127.0.0.1:0",
            "ssl.keystore.location": self.authority.issue(name),
            "ssl.truststore.location": self.authority.ca,
        }
        for each in more:
            found.update(each)
        return found

    async def _plain(self) -> None:
        found = await self.answer({}, {})
        self.assertEqual(len(found.brokers), 1)

    def test_plain(self) -> Deferred[None]:
        """Without any."""
        return Deferred.fromCoroutine(self._plain())

    async def _certificates(self) -> None:
        required = {"ssl.client.auth": "required"}
        served = self.secured("SSL", required)
        found = await self.answer(served, self.secured("SSL", required, name="other"))
        self.assertEqual(len(found.brokers), 1)
        stranger = Authority(self.mktemp(), "another authority")
        for change in (
            {"ssl.keystore.location": stranger.issue("broker")},  # is not believed
            {"ssl.truststore.location": stranger.ca},  # does not believe
        ):
            with self.assertRaises(BrokerConnectionError):
                await self.answer(served, {**served, **change})

    def test_certificates(self) -> Deferred[None]:
        """Both show certificates of one authority, and check them."""
        return Deferred.fromCoroutine(self._certificates())

    def login(self, mechanism: str, module: str, options: str) -> dict[str, str]:
        return {
            "sasl.enabled.mechanisms": mechanism,
            "sasl.mechanism.inter.broker.protocol": mechanism,
            f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config": (
                f"{module} required {options};"
            ),
        }

    async def _password(self) -> None:
        users = 'user_b1="secret" username="b1" password='
        served = self.secured("SASL_SSL", self.login("PLAIN", PLAIN, users + '"secret"'))
        found = await self.answer(served, served)
        self.assertEqual(len(found.brokers), 1)
        own = {**served, **self.login("PLAIN", PLAIN, users + '"wrong"')}
        with self.assertRaises(PylogbrokerError) as caught:
            await self.answer(served, own)
        self.assertIn("SASL_AUTHENTICATION_FAILED", str(caught.exception))
        self.assertNotIn("wrong", str(caught.exception))

    def test_password(self) -> Deferred[None]:
        """A broker authenticates with its name and password; a wrong one is refused."""
        return Deferred.fromCoroutine(self._password())

    async def _unknownUser(self) -> None:
        own = self.login("SCRAM-SHA-256", SCRAM, 'username="b1" password="secret"')
        served = self.secured("SASL_SSL", own)
        with self.assertRaises(PylogbrokerError) as caught:
            await self.answer(served, served)
        self.assertIn("SASL_AUTHENTICATION_FAILED", str(caught.exception))

    def test_unknownUser(self) -> Deferred[None]:
        """With SCRAM, too: the user must be there."""
        return Deferred.fromCoroutine(self._unknownUser())


class SettingsTests(TestCase):
    """What does not suffice for a connection."""

    def refused(self, **properties: str) -> str:
        settings = BrokerSettings.fromProperties(
            {
                "brokerid": "1",
                "log.dir": "unused",
                "enable.zookeeper": "false",
                **{key.replace("_", "."): value for key, value in properties.items()},
            }
        )
        connect = interBrokerClients(reactor, settings)
        return str(self.assertRaises(ConfigurationError, connect, "127.0.0.1", 1))

    def test_refused(self) -> None:
        """The setting that is missing is named."""
        found = self.refused(listeners="SASL_PLAINTEXT://:9092")
        self.assertIn("listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config", found)
        key = Authority(self.mktemp()).issue("broker")
        found = self.refused(listeners=f"tls:9092:privateKey={os.path.relpath(key)}")
        self.assertIn("ssl.keystore.location", found)
        found = self.refused(listener_dialect="kafka07")
        self.assertIn("no listener speaks Kafka's current protocol", found)
