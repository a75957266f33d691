"""
Clients of today's Kafka over SASL_SSL, and with certificates: confluent-kafka (librdkafka),
aiokafka and kafka-python.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
import subprocess
import sys
from typing import Any

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.brokersettings import STANDARD_AUTHORIZER
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.cli.commands import ROOT
from tests.integration.certificates import Authority

TIMEOUT_SECONDS = 120
POLL_SECONDS = 0.1
POLL_COUNT_MAX = 1_200
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class SecureCase(SynchronousTestCase):
    """A broker with a listener that has TLS."""

    properties: dict[str, str] = {}

    def setUp(self) -> None:
        self.authority = Authority(self.mktemp())
        self.broker = BackgroundBroker(
            {
                "ssl.keystore.location": self.authority.issue("broker"),
                "ssl.truststore.location": self.authority.ca,
                **self.properties,
            }
        )
        self.addCleanup(self.broker.close)
        self.broker.start()
        self.servers = self.broker.bootstrapServers

    def exchange(self, topic: str, settings: dict[str, Any]) -> list[bytes | None]:
        """What confluent-kafka produces to a topic, and consumes from it."""
        settings = {
            "bootstrap.servers": self.servers,
            "ssl.ca.location": self.authority.ca,
            **settings,
        }
        producer = confluent_kafka.Producer(settings)
        for number in range(3):
            producer.produce(topic, b"%d" % number)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        consumer = confluent_kafka.Consumer(
            {**settings, "group.id": topic, "auto.offset.reset": "earliest"}
        )
        self.addCleanup(consumer.close)
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        for _ in range(POLL_COUNT_MAX):
            message = consumer.poll(POLL_SECONDS)
            if message is not None:
                self.assertIsNone(message.error())
                found.append(message.value())
            if len(found) == 3:
                break
        return found


class SaslTests(SecureCase):
    """SASL_SSL, with each mechanism."""

    properties = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connections.max.reauth.ms": "3600000",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
    }

    def setUp(self) -> None:
        super().setUp()
        admin = AdminClient(self.confluent("PLAIN"))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion("alice", info, b"secret")
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(TIMEOUT_SECONDS)

    def confluent(self, mechanism: str, password: str = "secret") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.ca,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }

    def test_confluent(self) -> None:
        """Records come back; a wrong password is told."""
        for mechanism in MECHANISMS:
            found = self.exchange(mechanism, self.confluent(mechanism))
            self.assertEqual(found, [b"0", b"1", b"2"], mechanism)
        for mechanism in MECHANISMS:
            errors: list[Any] = []
            producer = confluent_kafka.Producer(
                {**self.confluent(mechanism, "wrong"), "error_cb": errors.append}
            )
            for _ in range(POLL_COUNT_MAX):
                producer.poll(POLL_SECONDS)
                if errors:
                    break
            codes = {error.code() for error in errors}
            self.assertIn(confluent_kafka.KafkaError._AUTHENTICATION, codes)

    def test_aiokafka(self) -> None:
        """Records come back."""

        async def main() -> None:
            for mechanism in MECHANISMS:
                settings: dict[str, Any] = {
                    "bootstrap_servers": self.servers,
                    "security_protocol": "SASL_SSL",
                    "ssl_context": ssl.create_default_context(cafile=self.authority.ca),
                    "sasl_mechanism": mechanism,
                    "sasl_plain_username": "alice",
                    "sasl_plain_password": "secret",
                }
                async with aiokafka.AIOKafkaProducer(**settings) as producer:
                    await producer.send_and_wait(mechanism, b"x")
                async with aiokafka.AIOKafkaConsumer(
                    mechanism, auto_offset_reset="earliest", group_id=mechanism, **settings
                ) as consumer:
                    self.assertEqual((await consumer.getone()).value, b"x")

        asyncio.run(asyncio.wait_for(main(), TIMEOUT_SECONDS))

    def test_kafkaPython(self) -> None:
        """Records come back."""
        for mechanism in MECHANISMS:
            settings: dict[str, Any] = {
                "bootstrap_servers": self.servers,
                "security_protocol": "SASL_SSL",
                "ssl_cafile": self.authority.ca,
                "sasl_mechanism": mechanism,
                "sasl_plain_username": "alice",
                "sasl_plain_password": "secret",
            }
            producer = kafka.KafkaProducer(**settings)
            self.addCleanup(producer.close, TIMEOUT_SECONDS)
            producer.send(mechanism, b"x").get(TIMEOUT_SECONDS)
            consumer = kafka.KafkaConsumer(
                mechanism, auto_offset_reset="earliest", group_id=mechanism, **settings
            )
            self.addCleanup(consumer.close)
            found: list[Any] = []
            for _ in range(POLL_COUNT_MAX):
                for records in consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)).values():
                    found += [record.value for record in records]
                if found:
                    break
            self.assertEqual(found, [b"x"])


class PrincipalTests(SynchronousTestCase):
    """Users of a broker that has passwords for SCRAM and an authorizer."""

    def setUp(self) -> None:
        directory = os.path.join(self.mktemp(), "logs")
        self.broker = BackgroundBroker(
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "super.users": "User:admin",
            },
            directory,
        )
        self.addCleanup(self.broker.close)
        for user in ("admin", "alice"):
            subprocess.run(
                [sys.executable, "-m", "pylogbroker", "user", "add", user, "--log-dir", directory],
                input=b"secret",
                check=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=subprocess.DEVNULL,
            )
        self.broker.start()

    def settings(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.broker.bootstrapServers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": "secret",
        }

    def test_users(self) -> None:
        """
        Users that were there before the broker get in; each may do what the access control lists
        say about its name.
        """
        admin = AdminClient(self.settings("admin"))
        admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_SECONDS)
        alice = AdminClient(self.settings("alice"))
        self.assertEqual(list(alice.list_topics(timeout=TIMEOUT_SECONDS).topics), [])
        rule = AclBinding(
            ResourceType.TOPIC,
            "t",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([rule])[rule].result(TIMEOUT_SECONDS)
        self.assertEqual(list(alice.list_topics(timeout=TIMEOUT_SECONDS).topics), ["t"])


class CertificateTests(SecureCase):
    """Clients that show a certificate, where one is required."""

    properties = {
        "listeners": "MUTUAL://127.0.0.1:0",
        "listener.security.protocol.map": "MUTUAL:SSL",
        "ssl.client.auth": "required",
    }

    def test_confluent(self) -> None:
        """With a certificate they get in."""
        own = self.authority.issue("client")
        found = self.exchange(
            "t",
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": own,
                "ssl.key.location": own,
            },
        )
        self.assertEqual(found, [b"0", b"1", b"2"])

    def test_without(self) -> None:
        """Without one, nothing that they send is answered."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        address = self.broker.host, self.broker.port
        with (
            socket.create_connection(address, TIMEOUT_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 1, 0))
            self.assertRaises(ssl.SSLError, client.recv, 1)


class MappedCertificateTests(SecureCase):
    """Clients whose names are made of the subjects of their certificates."""

    properties = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/U",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:CLIENT",
    }

    def test_confluent(self) -> None:
        """The one that may do everything does, and the other may do nothing."""
        found = {}
        for name in ("client", "other"):
            own = self.authority.issue(name)
            admin = AdminClient(
                {
                    "bootstrap.servers": self.servers,
                    "ssl.ca.location": self.authority.ca,
                    "security.protocol": "SSL",
                    "ssl.certificate.location": own,
                    "ssl.key.location": own,
                }
            )
            done = admin.create_topics([NewTopic(name, 1, 1)])[name]
            found[name] = done.exception(TIMEOUT_SECONDS)
        self.assertIsNone(found["client"])
        self.assertIn("TOPIC_AUTHORIZATION_FAILED", str(found["other"]))


class TlsTests(SecureCase):
    """TLS without certificates of clients."""

    properties = {"listeners": "SSL://127.0.0.1:0"}

    def test_confluent(self) -> None:
        """Records come back."""
        found = self.exchange("t", {"security.protocol": "SSL"})
        self.assertEqual(found, [b"0", b"1", b"2"])
