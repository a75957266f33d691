"""
Log directories that Apache Kafka 4.3.1 left: the broker opens them, and clients see what they saw
of Apache (C{tests/oracle/directoryrecording.py}).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.brokersettings import STANDARD_AUTHORIZER
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.oracle.directories import NODE_ID, Picture, extract
from tests.oracle.directoryrecording import picture, readRecords

TIMED_OUT_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
TRIES_MAX = 5000
PROPERTIES = {
    "brokerid": str(NODE_ID),
    "group.initial.rebalance.delay.ms": "0",
    "offsets.retention.minutes": "2000000000",
    "log.cleaner.backoff.ms": "2000000000",
    TIMED_OUT_INTERVAL: "2000000000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "2000000000",
}
"""
The recorded positions and transactions may be as old as they are, and nothing more is compacted.
"""


class ApacheDirectoryTests(SynchronousTestCase):
    """Directories, one stopped in order and one killed."""

    def opened(
        self, name: str, properties: Mapping[str, str] = PROPERTIES
    ) -> tuple[BackgroundBroker, Picture]:
        directory = os.path.abspath(self.mktemp())
        expected = extract(name, directory)
        broker = BackgroundBroker(properties, directory)
        self.addCleanup(shutil.rmtree, directory)
        self.addCleanup(broker.close)
        return broker.start(), expected

    def check(self, name: str) -> None:
        broker, expected = self.opened(name)
        del expected["recordedMs"]
        address = broker.bootstrapServers
        self.assertEqual(picture(address), expected)
        broker.kill()
        broker.start()
        topics = ("plain", "compacted", "transactions")
        producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        for topic in topics:
            producer.produce(topic, b"new", b"key", partition=0)
        self.assertEqual(producer.flush(60), 0)
        del producer
        broker.stop()
        broker.start()
        found = picture(address)
        for topic in topics:
            place = f"{topic}-0"
            record = found["records"][place].pop()
            offset = expected["marks"][place][1]
            self.assertEqual([record[0], *record[3:5]], [offset, "key", "new"])
            self.assertEqual(found["committed"][place].pop(), offset)
            found["marks"][place][1] -= 1
        self.assertEqual(found, expected)

    def test_stopped(self) -> None:
        """
        From a directory that was stopped in order: topics, settings, records of each isolation,
        marks and positions are those that Apache gave, also after a kill; and the broker goes on
        with them.
        """
        self.check("clean")

    def test_killed(self) -> None:
        """The same from the directory of a broker that was killed."""
        self.check("killed")

    def test_transactions(self) -> None:
        """
        A transaction that Apache left open is aborted when its time is over, and a producer goes on
        with its transactional id.
        """
        broker, expected = self.opened("killed", {**PROPERTIES, TIMED_OUT_INTERVAL: "50"})
        address = broker.bootstrapServers
        place = TopicPartition("transactions", 1)
        consumer = Consumer({"bootstrap.servers": address, "group.id": "nobody"})
        self.addCleanup(consumer.close)
        start, end = marks = tuple(expected["marks"]["transactions-1"])
        for _ in range(TRIES_MAX):
            marks = consumer.get_watermark_offsets(place, timeout=60)
            if marks != (start, end):
                break
        self.assertEqual(marks, (start, end + 2))  # the record that was open, and the marker
        producer = Producer({"bootstrap.servers": address, "transactional.id": "committing"})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("transactions", b"new", partition=1)
        producer.commit_transaction(60)
        found = readRecords(address, [("transactions", 1)], "read_committed")["transactions-1"]
        committed = expected["committed"]["transactions-1"]
        self.assertEqual([record[0] for record in found], [*committed, end + 2])
        self.assertEqual(found[-1][4], "new")

    def test_users(self) -> None:
        """
        Apache's users authenticate with their passwords, and its ACLs decide what they may do.
        """
        broker, expected = self.opened(
            "killed",
            {
                **PROPERTIES,
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
                "authorizer.class.name": STANDARD_AUTHORIZER,
                "super.users": "User:bob",
            },
        )

        def metadata(user: str, mechanism: str, password: str) -> set[str]:
            client = AdminClient(
                {
                    "bootstrap.servers": broker.bootstrapServers,
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": mechanism,
                    "sasl.username": user,
                    "sasl.password": password,
                    "log_level": 0,
                }
            )
            listed = client.list_topics(timeout=60).topics
            return {name for name in listed if not name.startswith("__")}

        self.assertEqual(metadata("bob", "SCRAM-SHA-512", "secret of bob"), set(expected["topics"]))
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            self.assertEqual(metadata("alice", mechanism, "secret of alice"), {"plain"})
