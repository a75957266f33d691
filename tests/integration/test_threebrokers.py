"""
Three brokers in this process, coordinated by ZooKeeper: transactions whose partitions, coordinators
and groups are on all of them.
"""

from __future__ import annotations

from typing import Any

import confluent_kafka
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import NewTopic
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import closing
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.programs.localcluster import LocalCluster
from pylogbroker.testing.localbroker import DEFAULTS
from pylogbroker.types import ConsumerGroupMetadata, TopicPartition
from tests.integration.test_twistedclients import ClientCase

BROKER_COUNT = 3
PARTITION_COUNT = 6
CONFLUENT_SECONDS = 30
PROPERTIES = {
    **{key: DEFAULTS[key] for key in DEFAULTS if key.startswith(("log.flush", "group."))},
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


class ThreeBrokerTests(ClientCase):
    """Each partition has one replica."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.cluster = LocalCluster(reactor, self.mktemp(), BROKER_COUNT, PROPERTIES)
        self.addCleanup(self.cluster.stop)
        await self.cluster.start()
        self.servers = ",".join(self.cluster.addresses.values())
        await self.create("t")

    async def create(self, *names: str) -> None:
        admin = AdminClient(reactor, {"bootstrap.servers": self.servers})
        async with closing(admin):
            await admin.createTopics([NewTopic(name, PARTITION_COUNT, 1) for name in names])

    def writer(self, name: str) -> KafkaProducer:
        return self.producer(transactional_id=name, linger_ms="0", retry_backoff_ms="20")

    async def write(self, producer: KafkaProducer, value: bytes, isCommit: bool = True) -> None:
        """A message to each partition, in a transaction."""
        try:
            async with producer.transaction():
                for index in range(PARTITION_COUNT):
                    await producer.send("t", value, partition=index)
                if not isCommit:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    async def committed(self, count: int, topic: str = "t") -> list[list[bytes]]:
        """The values of C{count} committed records of a topic, by partition."""
        found = await self.consumed(topic, count, isolation_level="read_committed")
        return [
            [each.value or b"" for each in found.get(index, ())] for index in range(PARTITION_COUNT)
        ]

    def leaders(self, topic: str) -> list[int]:
        image = self.anyBroker().kafka.metadata.image
        return [each.leader for each in image.topics[topic].partitions]

    def anyBroker(self) -> Any:
        return next(iter(self.cluster.brokers.values())).service

    async def test_ours(self) -> None:
        """Our producers, whose coordinators differ: commits, aborts, fencing, positions."""
        self.assertEqual(sorted(set(self.leaders("t"))), [1, 2, 3])
        names = ["x", "y", "z", "u"]
        for name in names:
            producer = self.writer(name)
            await self.write(producer, name.encode() + b"1")
            await self.write(producer, name.encode() + b"2", False)
            await self.write(producer, name.encode() + b"3")
        expected = [name.encode() + b"%d" % number for name in names for number in (1, 3)]
        found = await self.committed(len(expected) * PARTITION_COUNT)
        self.assertEqual(found, [expected] * PARTITION_COUNT)
        self.assertEqual(sorted(set(self.leaders("__transaction_state"))), [1, 2, 3])

        first, second = self.writer("x"), self.writer("x")
        with self.assertRaises(PylogbrokerError) as caught:
            async with first.transaction():
                await first.send("t", b"first", partition=1)
                await self.write(second, b"second")
        self.assertIn("FENCED", str(caught.exception))

        for number, group in enumerate(("a", "b", "c", "d")):
            async with second.transaction() as transaction:
                await second.send("t", b"with positions", partition=number)
                await transaction.sendOffsets(
                    {TopicPartition("t", 0): number + 1}, ConsumerGroupMetadata(group)
                )
        for number, group in enumerate(("a", "b", "c", "d")):
            self.assertEqual(await self.position(group), number + 1)

    async def position(self, group: str) -> int:
        admin = AdminClient(reactor, {"bootstrap.servers": self.servers})
        async with closing(admin):
            found = await admin.listConsumerGroupOffsets(group)
        return int(found[TopicPartition("t", 0)].offset)

    async def test_confluent(self) -> None:
        """confluent-kafka's producers: commits, aborts, fencing."""
        expected = await deferToThread(self._confluent)
        found = await self.committed(len(expected) * PARTITION_COUNT)
        self.assertEqual(found, [expected] * PARTITION_COUNT)

    def _confluent(self) -> list[bytes]:
        """In a thread. Returns what must be visible in each partition."""
        expected = []
        for name in ("x", "y", "z"):
            producer = self._transactional(name)
            for number in range(3):
                value = name.encode() + b"%d" % number
                producer.begin_transaction()
                for index in range(PARTITION_COUNT):
                    producer.produce("t", value, partition=index)
                if number == 1:
                    producer.flush(CONFLUENT_SECONDS)
                    producer.abort_transaction(CONFLUENT_SECONDS)
                else:
                    producer.commit_transaction(CONFLUENT_SECONDS)
                    expected.append(value)
        first = self._transactional("x")
        first.begin_transaction()
        first.produce("t", b"first", partition=0)
        first.flush(CONFLUENT_SECONDS)
        second = self._transactional("x")
        with self.assertRaises(confluent_kafka.KafkaException) as raised:
            first.produce("t", b"late", partition=1)
            first.commit_transaction(CONFLUENT_SECONDS)
        self.assertTrue(raised.exception.args[0].fatal())
        second.begin_transaction()
        second.abort_transaction(CONFLUENT_SECONDS)
        return expected

    def _transactional(self, name: str) -> Any:
        settings = {"bootstrap.servers": self.servers, "transactional.id": name, "linger.ms": 0}
        made = confluent_kafka.Producer(settings)
        made.init_transactions(CONFLUENT_SECONDS)
        return made

    async def test_restart(self) -> None:
        """
        Each broker in turn is stopped and started in the middle of a transaction: it goes on, and
        is whole.
        """
        expected = []
        producers = {name: self.writer(name) for name in ("x", "y")}
        for number in (1, 2, 3):
            for name, producer in producers.items():
                value = name.encode() + b"%d" % number
                async with producer.transaction():
                    for index in range(PARTITION_COUNT):
                        if index == PARTITION_COUNT // 2 and name == "x":
                            await self.restart(number)
                        await producer.send("t", value, partition=index)
                expected.append(value)
        found = await self.committed(len(expected) * PARTITION_COUNT)
        self.assertEqual(found, [expected] * PARTITION_COUNT)

    async def restart(self, number: int) -> None:
        port = self.cluster.brokers[number].port
        await self.cluster.stopBroker(number)
        await self.cluster.startBroker(number, port)
