"""
Three brokers of a cluster, and the clients of today's Kafka: partitions on all brokers, groups,
transactions, a broker that starts again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiokafka
import confluent_kafka
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.cimpl import NewTopic as ConfluentTopic
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import NewTopic
from tests.integration.localcluster import LocalCluster
from tests.integration.test_twistedclients import ClientCase

PARTITION_COUNT = 6
RECORD_COUNT = 300
CLIENT_SECONDS = 60


class ClusterTests(ClientCase):
    """A cluster for each test."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.cluster = LocalCluster(self)
        for brokerId in (1, 2, 3):
            await self.cluster.start(brokerId)
        self.servers = self.cluster.servers

    def admin(self) -> AdminClient:
        made = AdminClient(reactor, {"bootstrap.servers": self.servers})
        self.addCleanup(made.close)
        return made

    async def create(self, topic: str = "t") -> None:
        """A topic, and a look at where its partitions are."""
        found = await self.admin().createTopics([NewTopic(topic, PARTITION_COUNT)])
        self.assertEqual(found[topic].numPartitions, PARTITION_COUNT)
        partitions = self.cluster.images[0].topics[topic].partitions
        self.assertEqual({each.leader for each in partitions}, {1, 2, 3})

    async def send(self, topic: str = "t", **settings: str) -> set[bytes]:
        """Messages with keys, to all partitions."""
        producer = self.producer(**settings)
        values = [b"%d" % number for number in range(RECORD_COUNT)]
        sent = [producer.send(topic, value, value) for value in values]
        places = [await each for each in sent]
        self.assertEqual({each.partition for each in places}, set(range(PARTITION_COUNT)))
        await producer.close()
        return set(values)

    async def received(self, topic: str = "t", **settings: str) -> set[bytes | None]:
        """What a group reads, and commits."""
        consumer = self.consumer(group_id="g", enable_auto_commit="false", **settings)
        consumer.subscribe([topic])
        found: set[bytes | None] = set()
        async for record in consumer:
            found.add(record.value)
            if len(found) == RECORD_COUNT:
                break
        await consumer.commitOffsets()
        await consumer.close()
        return found

    async def test_ourClients(self) -> None:
        """What is sent to all brokers is received, also by a group, until the topic is deleted."""
        await self.create()
        sent = await self.send()
        self.assertEqual(await self.received(), sent)
        admin = self.admin()
        offsets = await admin.listConsumerGroupOffsets("g")
        self.assertEqual(sum(each.offset for each in offsets.values()), RECORD_COUNT)
        self.assertEqual(set(await admin.describeLogDirs()), {1, 2, 3})
        await admin.deleteTopics(["t"])
        image = self.cluster.images[0]
        self.assertNotIn("t", image.topics)
        await self.create()

    async def test_transactions(self) -> None:
        """A transaction over all partitions is visible as a whole."""
        await self.create()
        producer = self.producer(transactional_id="x")
        values = [b"%d" % number for number in range(RECORD_COUNT)]
        async with producer.transaction():
            for value in values:
                producer.send("t", value, value).addErrback(lambda _failure: None)
        found = await self.received(isolation_level="read_committed")
        self.assertEqual(found, set(values))

    async def test_restart(self) -> None:
        """
        A broker that stops and starts again, at another port, has its partitions and groups;
        clients find it, and go on.
        """
        await self.create()
        sent = await self.send()
        self.assertEqual(await self.received(), sent)
        producer = self.producer()
        for brokerId in (2, 3):
            await self.cluster.stop(brokerId)
            leaders = {each.leader for each in self.cluster.images[0].topics["t"].partitions}
            self.assertNotIn(brokerId, leaders)
            later = [
                producer.send("t", b"later %d" % index, None, partition=index) for index in range(6)
            ]
            await self.cluster.start(brokerId)
            for each in later:
                await each
        found = await self.consumed("t", RECORD_COUNT + 2 * PARTITION_COUNT)
        values = [record.value for records in found.values() for record in records]
        self.assertEqual(len(values), RECORD_COUNT + 2 * PARTITION_COUNT)
        self.assertTrue(sent < set(values))
        offsets = await self.admin().listConsumerGroupOffsets("g")
        self.assertEqual(sum(each.offset for each in offsets.values()), RECORD_COUNT)

    async def test_sessionExpired(self) -> None:
        """
        A broker whose session has ended is fenced and serves nothing, until it has registered anew;
        then it leads in another epoch, clients go on, and groups have their offsets.
        """
        await self.create()
        sent = await self.send()
        self.assertEqual(await self.received(), sent)
        producer = self.producer()
        for brokerId in (1, 2, 3):
            await self.cluster.expire(brokerId)
            for index in range(PARTITION_COUNT):
                await producer.send("t", b"later", None, partition=index)
        for part in self.cluster.images[0].topics["t"].partitions:
            self.assertGreater(part.leaderEpoch, 0)
        offsets = await self.admin().listConsumerGroupOffsets("g")
        self.assertEqual(sum(each.offset for each in offsets.values()), RECORD_COUNT)

    async def test_confluent(self) -> None:
        """confluent-kafka at its default settings, with idempotence and transactions."""
        self.assertEqual(await deferToThread(self.confluent), (RECORD_COUNT, RECORD_COUNT))

    def confluent(self) -> tuple[int, int]:
        servers: dict[str, str | int | float | bool] = {"bootstrap.servers": self.servers}
        admin = ConfluentAdmin(servers)
        admin.create_topics([ConfluentTopic("c", PARTITION_COUNT)])["c"].result(CLIENT_SECONDS)
        errors: list[Any] = []

        def report(error: Any, _message: Any) -> None:
            errors.append(error)

        for more in ({"enable.idempotence": True}, {"transactional.id": "c"}):
            producer = confluent_kafka.Producer({**servers, **more})
            if "transactional.id" in more:
                producer.init_transactions(CLIENT_SECONDS)
                producer.begin_transaction()
            for number in range(RECORD_COUNT // 2):
                producer.produce("c", b"%d" % number, b"%d" % number, on_delivery=report)
            if "transactional.id" in more:
                producer.commit_transaction(CLIENT_SECONDS)
            else:
                producer.flush(CLIENT_SECONDS)
        consumer = confluent_kafka.Consumer(
            {**servers, "group.id": "c", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["c"])
        count, end = 0, time.monotonic() + CLIENT_SECONDS
        while count < RECORD_COUNT and time.monotonic() < end:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                count += 1
        consumer.commit(asynchronous=False)
        consumer.close()
        return errors.count(None), count

    async def test_aiokafka(self) -> None:
        """aiokafka at its default settings."""
        await self.create("i")
        count = await deferToThread(lambda: asyncio.run(self.aiokafka()))
        self.assertEqual(count, RECORD_COUNT)

    async def aiokafka(self) -> int:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self.servers)
        await producer.start()
        for number in range(RECORD_COUNT):
            await producer.send("i", b"%d" % number, b"%d" % number)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            "i", bootstrap_servers=self.servers, group_id="i", auto_offset_reset="earliest"
        )
        await consumer.start()
        count, end = 0, time.monotonic() + CLIENT_SECONDS
        while count < RECORD_COUNT and time.monotonic() < end:
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                count += len(messages)
        await consumer.stop()
        return count
