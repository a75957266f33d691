"""
Clients of today's Kafka, as their users install them, each at its default settings:
confluent-kafka (librdkafka), aiokafka and kafka-python.

What is waited for has a limit of L{TIMEOUT_SECONDS}. A poll returns as soon as there is something,
so a slow machine only makes the tests slow.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker

TIMEOUT_SECONDS = 120
POLL_SECONDS = 0.1
RECORD_COUNT = 100


class Sent(NamedTuple):
    """A record, as every client knows it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def records(count: int = RECORD_COUNT) -> list[Sent]:
    """Keys, headers, and values that can be compressed; one is a tombstone."""
    return [
        Sent(
            b"key %d" % number,
            b"value %d " % number * 20 if number else None,
            (("number", b"%d" % number), ("from", b"test")) if number % 2 else (),
        )
        for number in range(count)
    ]


class ClientCase(SynchronousTestCase):
    """
    One broker for each test.

    @cvar properties: of the broker.
    """

    properties: Mapping[str, str] = {}

    def setUp(self) -> None:
        self.broker = BackgroundBroker(self.properties)
        self.addCleanup(self.broker.close)
        self.broker.start()
        self.servers = self.broker.bootstrapServers

    def create(self, topic: str, partitionCount: int) -> None:
        """A topic with several partitions."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        created = admin.create_topics([NewTopic(topic, partitionCount)])
        created[topic].result(TIMEOUT_SECONDS)

    def until(self, step: Callable[[], Any], isDone: Callable[[], bool]) -> None:
        """Do something again and again, until something is so."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not isDone():
            self.assertLess(time.monotonic(), end, "polled for too long")
            step()


class ConfluentCase(ClientCase):
    """confluent-kafka."""

    def consumer(self, **settings: Any) -> Any:
        """One that ends with the test."""
        found = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.addCleanup(found.close)
        return found

    def produce(self, topic: str, sent: Iterable[Sent], settings: dict[str, Any]) -> list[int]:
        """Returns the offsets, in the order of the reports."""
        offsets: list[int] = []

        def report(error: Any, message: Any) -> None:
            self.assertIsNone(error)
            offsets.append(message.offset())

        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, **settings})
        for each in sent:
            producer.produce(
                topic, each.value, each.key, headers=list(each.headers), on_delivery=report
            )
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        return offsets

    def consume(self, consumer: Any, count: int) -> list[Sent]:
        """So many records, as a group's member gets them."""
        found: list[Sent] = []

        def poll() -> None:
            message = consumer.poll(POLL_SECONDS)
            if message is not None:
                self.assertIsNone(message.error())
                headers = tuple(message.headers() or ())
                found.append(Sent(message.key(), message.value(), headers))

        self.until(poll, lambda: len(found) >= count)
        return found


class ConfluentTests(ConfluentCase):
    """Records and groups."""

    def test_records(self) -> None:
        """Keys, values and headers come back, in order, in every codec."""
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            self.produce(codec, records(), {"compression.type": codec, "linger.ms": 50})
            consumer = self.consumer(group_id=codec)
            consumer.subscribe([codec])
            self.assertEqual(self.consume(consumer, RECORD_COUNT), records(), codec)

    def test_idempotent(self) -> None:
        """An idempotent producer's records have offsets without gaps or repetitions."""
        offsets = self.produce("t", records(), {"enable.idempotence": True})
        self.assertEqual(offsets, list(range(RECORD_COUNT)))

    def test_restart(self) -> None:
        """Committed positions survive a restart, and a C{kill -9}, of the broker."""
        for number, end in enumerate((self.broker.stop, self.broker.kill)):
            new = records(20)[10 * number :][:10]
            self.produce("t", new, {})
            consumer = self.consumer()
            consumer.subscribe(["t"])
            self.assertEqual(self.consume(consumer, 10), new)
            [committed] = consumer.commit(asynchronous=False)
            self.assertEqual(committed.offset, 10 * number + 10)
            consumer.close()
            end()
            self.broker.start()

    def test_rebalance(self) -> None:
        """A second member gets one of two partitions; when it leaves, the first has both."""
        self.create("t", 2)
        first, second = self.consumer(), self.consumer()
        first.subscribe(["t"])
        self.until(lambda: first.poll(POLL_SECONDS), lambda: len(first.assignment()) == 2)
        second.subscribe(["t"])

        def step() -> None:
            first.poll(POLL_SECONDS)
            second.poll(POLL_SECONDS)

        self.until(step, lambda: len(first.assignment()) == len(second.assignment()) == 1)
        owned = {place.partition for each in (first, second) for place in each.assignment()}
        self.assertEqual(owned, {0, 1})
        second.close()
        self.until(lambda: first.poll(POLL_SECONDS), lambda: len(first.assignment()) == 2)


class ConfluentTransactionTests(ConfluentCase):
    """confluent-kafka's transactions."""

    def transactional(self, name: str = "transaction") -> Any:
        """A producer that may begin transactions."""
        made = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "transactional.id": name}
        )
        made.init_transactions(TIMEOUT_SECONDS)
        return made

    def committed(self, topic: str, count: int) -> list[bytes]:
        """So many values, as a reader of committed records gets them."""
        consumer = self.consumer(group_id="reader", isolation_level="read_committed")
        consumer.subscribe([topic])
        found = [each.value or b"" for each in self.consume(consumer, count)]
        consumer.close()
        return found

    def test_committedAndAborted(self) -> None:
        """Readers of committed records never see aborted ones."""
        producer = self.transactional()
        for number in range(6):
            producer.begin_transaction()
            producer.produce("t", b"%d" % number)
            if number % 2:
                producer.flush(TIMEOUT_SECONDS)
                producer.abort_transaction(TIMEOUT_SECONDS)
            else:
                producer.commit_transaction(TIMEOUT_SECONDS)
        self.assertEqual(self.committed("t", 3), [b"0", b"2", b"4"])

    def test_fencing(self) -> None:
        """A second producer with the same id ends what the first has begun, and fences it."""
        first = self.transactional()
        first.begin_transaction()
        first.produce("t", b"first")
        first.flush(TIMEOUT_SECONDS)
        second = self.transactional()
        second.begin_transaction()
        second.produce("t", b"second")
        second.commit_transaction(TIMEOUT_SECONDS)
        with self.assertRaises(confluent_kafka.KafkaException) as raised:
            first.produce("t", b"late")
            first.commit_transaction(TIMEOUT_SECONDS)
        self.assertTrue(raised.exception.args[0].fatal())
        self.assertEqual(self.committed("t", 1), [b"second"])

    def test_consumeTransformProduce(self) -> None:
        """
        Records and the positions behind which they were made count together: what is aborted is
        made again, over a kill of the broker, and nothing comes twice.
        """
        self.create("in", 1)
        self.produce("in", [Sent(None, b"%d" % each, ()) for each in range(40)], {})
        for number in range(4):
            producer = self.transactional()
            consumer = self.consumer(group_id="work", enable_auto_commit=False)
            consumer.subscribe(["in"])
            for isCommit in (False, True):
                producer.begin_transaction()
                for each in self.consume(consumer, 10):
                    producer.produce("out", (each.value or b"") + b"!")
                producer.send_offsets_to_transaction(
                    consumer.position(consumer.assignment()),
                    consumer.consumer_group_metadata(),
                    TIMEOUT_SECONDS,
                )
                if isCommit:
                    producer.commit_transaction(TIMEOUT_SECONDS)
                else:
                    producer.abort_transaction(TIMEOUT_SECONDS)
                    consumer.close()
                    consumer = self.consumer(group_id="work", enable_auto_commit=False)
                    consumer.subscribe(["in"])
            consumer.close()
            if number == 1:
                self.broker.kill()
                self.broker.start()
        self.assertEqual(self.committed("out", 40), [b"%d!" % each for each in range(40)])


class AiokafkaCase(ClientCase):
    """aiokafka."""

    def execute(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """In an event loop of its own."""
        asyncio.run(asyncio.wait_for(coroutine, TIMEOUT_SECONDS))

    async def produce(self, topic: str, sent: Iterable[Sent], **settings: Any) -> list[int]:
        """Returns the offsets."""
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.servers, **settings
        ) as producer:
            waiting = [
                await producer.send(topic, each.value, each.key, headers=list(each.headers))
                for each in sent
            ]
            return [(await each).offset for each in waiting]

    def consumer(
        self, *topics: str, group: str = "g", **settings: Any
    ) -> aiokafka.AIOKafkaConsumer:
        return aiokafka.AIOKafkaConsumer(
            *topics,
            bootstrap_servers=self.servers,
            group_id=group,
            auto_offset_reset="earliest",
            **settings,
        )

    async def consume(self, consumer: aiokafka.AIOKafkaConsumer, count: int) -> list[Sent]:
        """So many records."""
        found = [await consumer.getone() for _ in range(count)]
        return [Sent(each.key, each.value, tuple(each.headers)) for each in found]


class AiokafkaTests(AiokafkaCase):
    """Records and groups."""

    def test_records(self) -> None:
        """Keys, values and headers come back, in order, in every codec."""

        async def main() -> None:
            for codec in (None, "gzip", "snappy", "lz4", "zstd"):
                topic = codec or "none"
                await self.produce(topic, records(), compression_type=codec, linger_ms=50)
                async with self.consumer(topic, group=topic) as consumer:
                    found = await self.consume(consumer, RECORD_COUNT)
                self.assertEqual(found, records(), topic)

        self.execute(main())

    def test_idempotent(self) -> None:
        """An idempotent producer's records have offsets without gaps or repetitions."""

        async def main() -> None:
            offsets = await self.produce("t", records(), enable_idempotence=True)
            self.assertEqual(offsets, list(range(RECORD_COUNT)))

        self.execute(main())

    def test_restart(self) -> None:
        """Committed positions survive a restart of the broker."""

        async def main() -> None:
            for new in (records(20)[:10], records(20)[10:]):
                await self.produce("t", new)
                async with self.consumer("t") as consumer:
                    self.assertEqual(await self.consume(consumer, 10), new)
                    await consumer.commit()
                self.broker.stop()
                self.broker.start()

        self.execute(main())

    def test_rebalance(self) -> None:
        """A second member gets one of two partitions; when it leaves, the first has both."""
        self.create("t", 2)

        async def main() -> None:
            async with self.consumer("t") as first:
                self.assertEqual(len(first.assignment()), 2)
                async with self.consumer("t") as second:
                    while [len(each.assignment()) for each in (first, second)] != [1, 1]:
                        for each in (first, second):
                            await each.getmany(timeout_ms=int(POLL_SECONDS * 1000))
                    self.assertEqual(len(first.assignment() | second.assignment()), 2)
                while len(first.assignment()) != 2:
                    await first.getmany(timeout_ms=int(POLL_SECONDS * 1000))

        self.execute(main())


class AiokafkaTransactionTests(AiokafkaCase):
    """aiokafka's transactions."""

    def test_transactions(self) -> None:
        """Records and positions of committed transactions count, and no others."""
        place = aiokafka.TopicPartition("t", 0)

        async def main() -> None:
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.servers, transactional_id="transaction"
            ) as producer:
                for number in range(4):
                    await producer.begin_transaction()
                    await producer.send_and_wait("t", b"%d" % number)
                    await producer.send_offsets_to_transaction({place: number + 10}, "work")
                    if number == 2:
                        await producer.commit_transaction()
                    else:
                        await producer.abort_transaction()
            async with self.consumer("t", isolation_level="read_committed") as consumer:
                (found,) = await self.consume(consumer, 1)
            self.assertEqual(found.value, b"2")
            async with self.consumer(group="work") as worker:
                worker.assign([place])
                self.assertEqual(await worker.committed(place), 12)

        self.execute(main())


class KafkaPythonTests(ClientCase):
    """
    kafka-python.

    Its C{poll} must not end while it joins a group. If the answer to its SyncGroup comes between
    two polls, version 3.0.12 takes itself for joined and never applies the assignment. So polls
    here are long; they return when there are records, and each member polls in its own thread.
    """

    pollSeconds = 60.0

    def produce(self, topic: str, sent: Iterable[Sent], **settings: Any) -> list[int]:
        """Returns the offsets."""
        producer = kafka.KafkaProducer(bootstrap_servers=self.servers, **settings)
        try:
            waiting = [
                producer.send(topic, each.value, each.key, headers=list(each.headers))
                for each in sent
            ]
            producer.flush(TIMEOUT_SECONDS)
            return [each.get(TIMEOUT_SECONDS).offset for each in waiting]
        finally:
            producer.close(TIMEOUT_SECONDS)

    def consumer(self, topic: str, group: str = "g", **settings: Any) -> Any:
        """One that ends with the test."""
        found = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=self.servers,
            group_id=group,
            auto_offset_reset="earliest",
            **settings,
        )
        self.addCleanup(found.close)
        return found

    def poll(self, consumer: Any) -> list[Sent]:
        """What has come."""
        found = consumer.poll(timeout_ms=int(self.pollSeconds * 1000))
        return [
            Sent(each.key, each.value, tuple(map(tuple, each.headers)))
            for part in found.values()
            for each in part
        ]

    def consume(self, consumer: Any, count: int) -> list[Sent]:
        """So many records."""
        found: list[Sent] = []
        self.until(lambda: found.extend(self.poll(consumer)), lambda: len(found) >= count)
        return found

    def test_records(self) -> None:
        """Keys, values and headers come back, in order, in every codec."""
        for codec in (None, "gzip", "snappy", "lz4", "zstd"):
            topic = codec or "none"
            self.produce(topic, records(), compression_type=codec, linger_ms=50)
            consumer = self.consumer(topic, topic)
            self.assertEqual(self.consume(consumer, RECORD_COUNT), records(), topic)

    def test_transactions(self) -> None:
        """Records and positions of committed transactions count, and no others."""
        place = kafka.TopicPartition("t", 0)
        self.create("t", 1)
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.servers, transactional_id="transaction"
        )
        self.addCleanup(producer.close)
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send("t", b"%d" % number)
            offsets = {place: kafka.OffsetAndMetadata(number + 10, "", -1)}
            producer.send_offsets_to_transaction(offsets, "work")
            if number == 2:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        consumer = self.consumer("t", isolation_level="read_committed")
        self.assertEqual([each.value for each in self.consume(consumer, 1)], [b"2"])
        worker = kafka.KafkaConsumer(bootstrap_servers=self.servers, group_id="work")
        self.addCleanup(worker.close)
        worker.assign([place])
        self.assertEqual(worker.committed(place), 12)

    def test_idempotent(self) -> None:
        """An idempotent producer's records have offsets without gaps or repetitions."""
        offsets = self.produce("t", records(), enable_idempotence=True)
        self.assertEqual(offsets, list(range(RECORD_COUNT)))

    def test_restart(self) -> None:
        """Committed positions survive a restart of the broker."""
        for new in (records(20)[:10], records(20)[10:]):
            self.produce("t", new)
            consumer = self.consumer("t")
            self.assertEqual(self.consume(consumer, 10), new)
            consumer.commit()
            consumer.close()
            self.broker.stop()
            self.broker.start()

    def test_rebalance(self) -> None:
        """A second member gets one of two partitions; when it leaves, the first has both."""
        self.create("t", 2)
        isOver = threading.Event()
        self.inThread(lambda: self.feed("t", 2, isOver), isOver)
        first = self.consumer("t")
        self.until(lambda: self.poll(first), lambda: len(first.assignment()) == 2)
        second = self.consumer("t")
        isLeaving = threading.Event()

        def member() -> None:
            while not isLeaving.is_set():
                self.poll(second)
            second.close()

        self.inThread(member, isLeaving)
        self.until(
            lambda: self.poll(first),
            lambda: len(first.assignment()) == len(second.assignment()) == 1,
        )
        self.assertEqual(len(first.assignment() | second.assignment()), 2)
        isLeaving.set()
        self.until(lambda: self.poll(first), lambda: len(first.assignment()) == 2)

    def inThread(self, work: Callable[[], None], isOver: threading.Event) -> None:
        """Something that ends soon after an event, at the latest with the test."""
        thread = threading.Thread(target=work)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(isOver.set)

    def feed(self, topic: str, partitionCount: int, isOver: threading.Event) -> None:
        """Records for all partitions, so that a poll ends, until an event."""
        producer = kafka.KafkaProducer(bootstrap_servers=self.servers)
        try:
            while not isOver.wait(0.05):
                for partition in range(partitionCount):
                    producer.send(topic, b"value", partition=partition)
        finally:
            producer.close(TIMEOUT_SECONDS)
