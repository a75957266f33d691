"""
The producer and the consumer of today's protocol on real brokers: all that is produced is consumed,
once and in order, whatever happens in between; TLS and passwords; what other clients wrote, and
where they send a key.
"""

from __future__ import annotations

import os
import random
import re
import sys
from typing import Any

import confluent_kafka
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.cluster.kafkapartitioner import KEY_PARTITIONERS
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import PylogbrokerError, TimedOutError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.cli.commands import ROOT
from tests.integration.certificates import Authority

TIMEOUT_SECONDS = 120
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
DOCS = ROOT / "docs"


class ClientCase(TestCase):
    """A broker, and clients that are closed in the end."""

    timeout = TIMEOUT_SECONDS
    servers: str

    def producer(self, **settings: str) -> KafkaProducer:
        made = KafkaProducer(reactor, self.settings(settings), isLoggingFailures=False)
        self.addCleanup(made.close)
        return made

    def consumer(self, **settings: str) -> KafkaConsumer:
        made = KafkaConsumer(reactor, {"auto.offset.reset": "earliest", **self.settings(settings)})
        self.addCleanup(made.close)
        return made

    def settings(self, given: dict[str, str]) -> dict[str, str]:
        named = {key.replace("_", "."): value for key, value in given.items()}
        return {"bootstrap.servers": self.servers, **named}

    async def consumed(
        self, topic: str, count: int, **settings: str
    ) -> dict[int, list[ConsumerRecord]]:
        """The first messages of a topic, by partition."""
        consumer = self.consumer(**settings)
        consumer.assign(await consumer.partitionsFor(topic))
        found: dict[int, list[ConsumerRecord]] = {}
        async for batch in consumer.batches():
            for record in batch:
                found.setdefault(record.partition, []).append(record)
            count -= len(batch)
            if count <= 0:
                break
        await consumer.close()
        return found


class RoundTripTests(ClientCase):
    """On a broker in this process, which takes orders for faults."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(reactor, {"num.partitions": "3"})
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        self.servers = self.broker.bootstrapServers

    async def test_codecs(self) -> None:
        """Keys, values, headers and timestamps come back, in order, in every codec."""
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = self.producer(compression_type=codec)
            sent = [
                producer.send(
                    codec, b"%d" % number, b"k%d" % (number % 5), [("h", b"%d" % number)], number
                )
                for number in range(500)
            ]
            places = [await each for each in sent]
            found = await self.consumed(codec, 500)
            for number, place in enumerate(places):
                record = found[place.partition][place.offset]
                self.assertEqual(
                    (record.value, record.key, record.headers, record.timestamp),
                    (b"%d" % number, b"k%d" % (number % 5), (("h", b"%d" % number),), number),
                )

    async def ordered(
        self, topic: str, count: int, producer: KafkaProducer, **settings: str
    ) -> None:
        """Every message is there once, in the order of its key, at the offset that was told."""
        sent = []
        for number in range(count):
            await producer.whenReady()
            sent.append(producer.send(topic, b"%d" % number, b"k%d" % (number % 5)))
            if number % 50 == 0:
                await deferLater(reactor, 0)
        places = [await each for each in sent]
        found = await self.consumed(topic, count, **settings)
        self.assertEqual(sum(map(len, found.values())), count)
        for number, place in enumerate(places):
            self.assertEqual(found[place.partition][place.offset].value, b"%d" % number)
        for records in found.values():
            for key in {record.key for record in records}:
                numbers = [int(each.value or b"") for each in records if each.key == key]
                self.assertEqual(numbers, sorted(numbers))

    async def test_everyRetriableError(self) -> None:
        """Each error that passes, at each step of both clients."""
        for number, code in enumerate(each for each in ErrorCode if each.isRetriable):
            topic = f"t{number}"
            for request in ("Metadata", "InitProducerId", "Produce", "ListOffsets", "Fetch"):
                if request == "Fetch" and code is ErrorCode.CORRUPT_MESSAGE:
                    continue  # the reader is told
                count = 2 if request in ("Produce", "Fetch") else 1
                self.broker.injectError(request, code.name, count=count)
            producer = self.producer(retry_backoff_ms="1", linger_ms="0")
            await self.ordered(topic, 60, producer, retry_backoff_ms="1")
            self.broker.clearFaults()
            await producer.close()

    async def test_disconnects(self) -> None:
        """Connections that are cut before and after a request was carried out."""
        producer = self.producer(linger_ms="0", retry_backoff_ms="1", batch_size="500")
        for request in ("Metadata", "InitProducerId", "Produce", "ListOffsets", "Fetch"):
            for isHandled in (False, True):
                self.broker.injectDisconnect(request, count=2, isHandled=isHandled)
        await self.ordered("t", 1_000, producer)

    async def test_movedLeaders(self) -> None:
        """Leaders that move while messages are on their way, and while they are read."""
        producer = self.producer(linger_ms="0", retry_backoff_ms="1", batch_size="500")
        await producer.send("t", b"0", b"k0")
        consumer = self.consumer(retry_backoff_ms="1")
        consumer.assign(await consumer.partitionsFor("t"))
        sent, found = [], list[ConsumerRecord]()
        for number in range(1, 1_000):
            sent.append(producer.send("t", b"%d" % number, b"k%d" % (number % 5)))
            if number % 100 == 0:
                self.broker.moveLeader("t", number // 100 % 3)
                await deferLater(reactor, 0.02)
                found += consumer.takeMany(10_000)
        for each in sent:
            await each
        async for record in consumer:
            found.append(record)
            if len(found) == 1_000:
                break
        for key in {record.key for record in found}:
            numbers = [int(each.value or b"") for each in found if each.key == key]
            self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual({int(each.value or b"") for each in found}, set(range(1_000)))

    async def test_bounded(self) -> None:
        """A producer that is faster than the broker waits; memory stays bounded."""
        self.broker.injectDelay("Produce", 300, count=3)
        producer = self.producer(buffer_memory="100000", linger_ms="0")
        largest = 0
        for number in range(2_000):
            await producer.whenReady()
            producer.sendNoWait("t", b"x" * 500, b"%d" % number)
            largest = max(largest, producer.counters.acceptedCount - producer.counters.writtenCount)
        await producer.flush()
        self.assertEqual(producer.counters.writtenCount, 2_000)
        self.assertLess(largest, 100_000 // 500 + 1)

    async def test_transactions(self) -> None:
        """read_committed sees what a transaction of another client committed, and no more."""
        await self.producer().send("t", b"plain", partition=0)
        ended = await getProcessOutputAndValue(
            sys.executable, ["-c", TRANSACTIONS, self.servers], os.environ
        )
        self.assertEqual(ended, (b"", b"", 0))
        found = await self.consumed("t", 3, isolation_level="read_committed")
        self.assertEqual(
            [each.value for each in found[0]], [b"plain", b"committed 0", b"committed 1"]
        )
        found = await self.consumed("t", 5)
        self.assertEqual(len(found[0]), 5)


TRANSACTIONS = """
import sys
import confluent_kafka
producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "x"})
producer.init_transactions(60)
ends = {"aborted": producer.abort_transaction, "committed": producer.commit_transaction}
for kind, end in ends.items():
    producer.begin_transaction()
    for number in range(2):
        producer.produce("t", f"{kind} {number}".encode(), partition=0)
    producer.flush(60)
    end(60)
"""


class SecureTests(ClientCase):
    """A broker with TLS and passwords."""

    def setUp(self) -> None:
        self.authority = Authority(self.mktemp())
        self.broker = BackgroundBroker(
            {
                "ssl.keystore.location": self.authority.issue("broker"),
                "listeners": "SASL_SSL://127.0.0.1:0",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "connections.max.reauth.ms": "1000",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                    f'{MODULE} required user_alice="secret";'
                ),
            }
        )
        self.addCleanup(self.broker.close)
        self.broker.start()
        self.servers = self.broker.bootstrapServers
        endpoint = "tls:{host}:{port}:trustRoots=" + self.authority.trustFolder()
        self.secure = {
            "broker_endpoint": endpoint,
            "sasl_mechanism": "PLAIN",
            "sasl_username": "alice",
            "sasl_password": "secret",
        }

    async def test_again(self) -> None:
        """Both clients go on when the time of their authentication is over."""
        producer = self.producer(**self.secure)
        consumer = self.consumer(**self.secure)
        await producer.send("t", b"0")
        consumer.assign(await consumer.partitionsFor("t"))
        for number in range(1, 6):
            await deferLater(reactor, 0.4)
            await producer.send("t", b"%d" % number)
        found = []
        async for record in consumer:
            found.append(record.value)
            if len(found) == 6:
                break
        self.assertEqual(found, [b"%d" % number for number in range(6)])
        self.assertEqual(producer.counters.retriedCount, 0)

    async def test_wrongPassword(self) -> None:
        """A wrong password, and a certificate of somebody else, are told to whoever waits."""
        producer = self.producer(**{**self.secure, "sasl_password": "wrong"}, max_block_ms="20000")
        failure = await self.assertFailure(producer.send("t", b"x"), PylogbrokerError)
        self.assertIn("SASL_AUTHENTICATION_FAILED", str(failure))
        other = Authority(self.mktemp(), "other")
        endpoint = "tls:{host}:{port}:trustRoots=" + other.trustFolder()
        consumer = self.consumer(
            **{**self.secure, "broker_endpoint": endpoint}, default_api_timeout_ms="1000"
        )
        finding: Any = consumer.partitionsFor("t")
        failure = await self.assertFailure(finding, TimedOutError)
        self.assertIn("certificate", str(failure))


class OtherClientTests(ClientCase):
    """What other clients do with the same topics."""

    def setUp(self) -> None:
        self.broker = BackgroundBroker({"num.partitions": "7"})
        self.addCleanup(self.broker.close)
        self.broker.start()
        self.servers = self.broker.bootstrapServers

    def test_partitions(self) -> None:
        """librdkafka sends a thousand random keys to the same partitions, by either rule."""
        chance = random.Random(13)
        keys = [chance.randbytes(chance.randint(1, 30)) for _key in range(1_000)]
        for name, theirs in (("murmur2", "murmur2_random"), ("crc32", "consistent_random")):
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": self.servers, "partitioner": theirs, "linger.ms": 50}
            )
            found: dict[bytes, int] = {}

            def delivered(error: Any, message: Any, found: dict[bytes, int] = found) -> None:
                self.assertIsNone(error)
                found[message.key()] = message.partition()

            for key in keys:
                producer.produce("t", b"x", key, on_delivery=delivered)
            self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
            choose = KEY_PARTITIONERS[name]
            self.assertEqual(found, {key: choose(key, 7) for key in keys})

    async def test_killed(self) -> None:
        """A broker that is killed and comes back: no message is lost, and none is there twice."""
        producer = self.producer(batch_size="1000", linger_ms="0")
        await producer.send("t", b"first", b"0")
        sent = []
        for number in range(3_000):
            await producer.whenReady()
            sent.append(producer.send("t", b"%d" % number, b"%d" % (number % 50)))
            if number in (1_000, 2_000):
                self.broker.kill()
                self.broker.start()
        for each in sent:
            await each
        found = await self.consumed("t", 3_001)
        values = sorted(
            int(e.value or b"") for r in found.values() for e in r if e.value != b"first"
        )
        self.assertEqual(values, list(range(3_000)))
        self.assertIn(TopicPartition("t", 0), await self.consumer().partitionsFor("t"))


class ProgramTests(ClientCase):
    """The programs of the page, as they are."""

    def setUp(self) -> None:
        self.broker = BackgroundBroker({"num.partitions": "3"})
        self.addCleanup(self.broker.close)
        self.broker.start()

    async def say(self, name: str, *more: str) -> str:
        """What a program prints, which ends well."""
        path = DOCS / "examples" / "kafka" / f"{name}.py"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        arguments = [str(path), "--bootstrap-server", self.broker.bootstrapServers]
        output, errors, status = await getProcessOutputAndValue(
            sys.executable, [*arguments, *more], environment
        )
        self.assertEqual((errors, status), (b"", 0))
        return str(output.decode())

    async def test_run(self) -> None:
        """What the one publishes the other reads."""
        said = await self.say("produce", "--count", "300")
        self.assertIn("writtenCount=300, failedCount=0, unknownCount=0", said)
        self.assertRegex(said, r"at offset \d+ of partition \d")
        self.assertIn(
            "300 messages, the last one b'click ", await self.say("consume", "--count", "300")
        )
        said = await self.say("group", "--count", "300")
        self.assertRegex(said, r"^assigned: clicks-0 clicks-1 clicks-2\n")
        self.assertRegex(said, r"300 messages\nrevoked: clicks-0 clicks-1 clicks-2\n$")
        said = await self.say("transactions", "--count", "300")
        self.assertEqual(said, "300 messages copied, each once\n")
        said = await self.say("admin")
        self.assertIn("TOPIC_ALREADY_EXISTS", said)
        self.assertRegex(said, r"clicks-2 on broker 0: \d+ of \d+ read\n$")


class PageTests(SynchronousTestCase):
    """C{docs/clients.md}."""

    def test_shown(self) -> None:
        """The programs that it shows are those in the files, to the letter."""
        page = (DOCS / "clients.md").read_text(encoding="utf-8")
        shown = re.findall(
            r"^\[`examples/kafka/(\w+)\.py`\][^\n]*:\n\n```python\n(.*?)^```$",
            page,
            re.MULTILINE | re.DOTALL,
        )
        programs = sorted(path.stem for path in (DOCS / "examples" / "kafka").glob("*.py"))
        self.assertEqual(sorted(name for name, _text in shown), programs)
        for name, text in shown:
            path = DOCS / "examples" / "kafka" / f"{name}.py"
            self.assertEqual(text, path.read_text(encoding="utf-8"))
