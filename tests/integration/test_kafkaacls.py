"""Access control lists by confluent-kafka's admin client, and what they do to clients."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import confluent_kafka.admin
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewPartitions, NewTopic
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker

TIMEOUT_SECONDS = 120
_admin: Any = confluent_kafka.admin  # its stubs know nothing of filters that leave a field open
AclBinding, AclBindingFilter = _admin.AclBinding, _admin.AclBindingFilter
AclOperation, AclPermissionType = _admin.AclOperation, _admin.AclPermissionType
ResourcePatternType, ResourceType = _admin.ResourcePatternType, _admin.ResourceType
ANONYMOUS = "User:ANONYMOUS"


def binding(name: str, operation: Any, principal: str = ANONYMOUS) -> Any:
    return AclBinding(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.PREFIXED,
        principal,
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


class AclTests(SynchronousTestCase):
    """One broker, where a topic without a list is everybody's."""

    def setUp(self) -> None:
        broker = BackgroundBroker(
            {
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "allow.everyone.if.no.acl.found": "true",
            }
        )
        self.addCleanup(broker.close)
        broker.start()
        self.servers = broker.bootstrapServers
        self.admin = _admin.AdminClient({"bootstrap.servers": self.servers})
        self.admin.create_topics([NewTopic("orders", 1)])["orders"].result(TIMEOUT_SECONDS)

    def make(self, *bindings: Any) -> None:
        for made in self.admin.create_acls(list(bindings)).values():
            made.result(TIMEOUT_SECONDS)

    def find(self) -> list[Any]:
        wanted = AclBindingFilter(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.MATCH,
            None,
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        found: list[Any] = self.admin.describe_acls(wanted).result(TIMEOUT_SECONDS)
        return found

    def produce(self) -> int | None:
        """The code of the report; L{None}: it was acknowledged."""
        reports: list[Any] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers})
        producer.produce("orders", b"value", on_delivery=lambda *report: reports.append(report))
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        ((error, _),) = reports
        return None if error is None else error.code()

    def test_lists(self) -> None:
        """Lists are made, seen and deleted, and hold at once, also for open connections."""
        alices = binding("ord", AclOperation.ALL, "User:alice")
        mine = binding("orders", AclOperation.READ)
        self.assertIsNone(self.produce())
        self.make(alices)
        self.assertEqual(self.find(), [alices])
        self.assertEqual(self.produce(), KafkaError.TOPIC_AUTHORIZATION_FAILED)
        self.make(mine, binding("orders", AclOperation.WRITE))
        self.assertEqual(len(self.find()), 3)
        self.assertIsNone(self.produce())
        wanted = AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            ANONYMOUS,
            None,
            AclOperation.WRITE,
            AclPermissionType.ANY,
        )
        deleted = self.admin.delete_acls([wanted])[wanted].result(TIMEOUT_SECONDS)
        self.assertEqual(deleted, [binding("orders", AclOperation.WRITE)])
        self.assertEqual(self.produce(), KafkaError.TOPIC_AUTHORIZATION_FAILED)
        self.assertEqual(self.read(), [b"value", b"value"])

    def read(self) -> list[bytes | None]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
            }
        )
        self.addCleanup(consumer.close)
        consumer.subscribe(["orders"])
        found = consumer.consume(2, TIMEOUT_SECONDS)
        return [each.value() for each in found]

    def test_refusals(self) -> None:
        """What is refused to an admin client has Kafka's codes; what is hidden is not listed."""
        self.make(binding("orders", AclOperation.ALL, "User:alice"))
        grown = self.admin.create_partitions([NewPartitions("orders", 2)])["orders"]
        error = self.assertRaises(KafkaException, grown.result, TIMEOUT_SECONDS)
        self.assertEqual(error.args[0].code(), KafkaError.TOPIC_AUTHORIZATION_FAILED)
        self.assertNotIn("orders", self.admin.list_topics(timeout=TIMEOUT_SECONDS).topics)
