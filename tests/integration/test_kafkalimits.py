"""
What administrators set with Kafka's own tools to limit clients: access control lists and quotas;
and librdkafka, which is told to wait.
"""

from __future__ import annotations

from typing import Any

import confluent_kafka

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.test_kafkatools import JavaCase

TIMEOUT_SECONDS = 120
SECURE = {
    "brokerid": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "quota.window.num": "2",
}


class LimitCase(JavaCase):
    """A broker with an authorizer, which quotas measure for two seconds."""

    def setUp(self) -> None:
        super().setUp()
        self.broker.close()
        self.broker = BackgroundBroker(SECURE)
        self.addCleanup(self.broker.close)
        self.broker.start()


class AclToolTests(LimitCase):
    """C{kafka-acls}."""

    TOOL = "AclCommand"

    def test_lists(self) -> None:
        """Lists are added, shown and removed."""
        resource = ("--topic", "orders", "--group", "g")
        principal = ("--allow-principal", "User:alice")
        lines = self.succeed(self.TOOL, "--add", "--consumer", *principal, *resource)
        self.assertIn("Adding ACLs for resource", lines[0])
        text = "\n".join(self.succeed(self.TOOL, "--list"))
        for operation in ("READ", "DESCRIBE"):
            self.assertIn(
                f"(principal=User:alice, host=*, operation={operation}, permissionType=ALLOW)", text
            )
        self.succeed(self.TOOL, "--remove", "--force", "--consumer", *principal, *resource)
        self.assertNotIn("User:alice", "\n".join(self.succeed(self.TOOL, "--list")))


class QuotaToolTests(LimitCase):
    """C{kafka-configs} for clients, and a client that exceeds its quota."""

    TOOL = "kafka.admin.ConfigCommand"

    def test_quotas(self) -> None:
        """Quotas of users and clients are set, described and deleted."""
        for entity, shown in (
            (("--entity-type", "clients", "--entity-name", "c"), "client-id 'c'"),
            (("--entity-type", "users", "--entity-default"), "the default user-principal"),
        ):
            rate = ("--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048")
            self.succeed(self.TOOL, "--alter", *entity, *rate)
            (line,) = self.succeed(self.TOOL, "--describe", *entity)
            self.assertTrue(line.startswith(f"Quota configs for {shown} are "), line)
            self.assertIn("producer_byte_rate=1024.0", line)
            gone = ("--delete-config", "producer_byte_rate,consumer_byte_rate")
            self.succeed(self.TOOL, "--alter", *entity, *gone)
            self.assertEqual(self.succeed(self.TOOL, "--describe", *entity), [])

    def test_throttled(self) -> None:
        """A producer beyond its quota is told to wait, and everything arrives."""
        entity = ("--entity-type", "clients", "--entity-name", "c")
        rate = ("--add-config", "producer_byte_rate=200000")
        self.succeed(self.TOOL, "--alter", *entity, *rate)
        events: list[Any] = []
        reports: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "client.id": "c",
                "linger.ms": 0,
                "batch.num.messages": 1,
                "throttle_cb": events.append,
            }
        )
        for _ in range(5):
            producer.produce("t", b"x" * 100_000, on_delivery=lambda *each: reports.append(each))
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        self.assertEqual([error for error, _ in reports], [None] * 5)
        self.assertTrue(any(event.throttle_time > 0 for event in events), events)
