"""
The contract of the clients of today's protocol with a cluster: what applications rely on, whichever
broker there is. Each scenario uses the clients' public methods alone.

It runs on our broker, on recorded conversations with Apache Kafka (L{tests.contracts.replay}) and,
by C{python -m tests.long.kafkacontract}, on Apache Kafka itself.

A scenario is a method of L{KafkaClientContract}, and its docstring is the promise. Two things keep
what it says to a broker the same in every run: chance is seeded, and a client's id is its kind and
number.
"""

from __future__ import annotations

import re
import unittest
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.client.kafka.admin.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    AdminClient,
    AlterConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceKind,
    checkAll,
)
from pylogbroker.cluster.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer, OffsetAndTimestamp
from pylogbroker.errors import (
    LogTruncatedError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    TimedOutError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownOutcomeError,
    UnknownPartitionError,
)
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

PLAINTEXT, SASL, TLS, SASL_TLS = "PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"
LISTENERS = (PLAINTEXT, SASL, TLS, SASL_TLS)
CLIENT_IDS = re.compile(r"(KafkaProducer|KafkaConsumer|AdminClient)\d+")
USER, PASSWORD = "alice", "secret"
BROKER_ID = 1
_LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_SALT = b"0123456789abcdef"
_WAIT_SECONDS_MAX = 30
_TIME_MS = 1_600_000_000_000
"""Of the first message where a scenario gives timestamps."""


class FixedSecrets:
    """
    In place of the module C{secrets} in C{saslclient}: nonces of SCRAM that are the same in every
    run.
    """

    @staticmethod
    def token_hex(size: int) -> str:  # the module's name
        """Always the same."""
        return "5c" * size


def brokerSettings(keystore: str) -> dict[str, str]:
    """
    The settings that a broker needs for the contract, but for its ports.

    @param keystore: a PEM file with the key and the certificate of the broker.
    """
    settings = {
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "50",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *_SCRAM_MECHANISMS)),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
    }
    for listener in (SASL, SASL_TLS):
        start = f"listener.name.{listener.lower()}"
        settings[f"{start}.plain.sasl.jaas.config"] = (
            f'{_LOGIN_MODULE} required user_{USER}="{PASSWORD}";'
        )
        for mechanism in _SCRAM_MECHANISMS:
            settings[f"{start}.{mechanism.lower()}.sasl.jaas.config"] = f"{_SCRAM_MODULE} required;"
    return settings


class ContractCluster(NamedTuple):
    """
    A cluster for the contract: one broker with L{brokerSettings}.

    @ivar servers: C{host:port} of each listener, by its name.
    @ivar trustFolder: the certificate of the authority that has signed the broker's.
    @ivar otherTrustFolder: the certificate of another authority.
    """

    servers: Mapping[str, str]
    trustFolder: str
    otherTrustFolder: str


SCENARIOS: list[str] = []
"""The names of the scenarios, in order."""

_Scenario = Callable[["KafkaClientContract"], Coroutine[Any, Any, None]]


def scenario(method: _Scenario) -> _Scenario:
    """A method of L{KafkaClientContract} that is a scenario."""
    SCENARIOS.append(method.__name__)
    return method


class KafkaClientContract(unittest.TestCase):
    """
    The scenarios, and what they share; the assertions are C{unittest}'s.
    """

    def __init__(
        self, reactor: Any, cluster: ContractCluster, prefix: str, sessionTimeoutMs: int
    ) -> None:
        """
        @param prefix: of the names of topics, groups, users and transactional ids; another one in
            each run on the same cluster.
        @param sessionTimeoutMs: of members of classic groups.
        """
        super().__init__()
        self._sessionTimeoutMs = sessionTimeoutMs
        self._reactor = reactor
        self._cluster = cluster
        self._prefix = prefix
        self._clients: list[Any] = []
        self._counts: dict[type, int] = {}
        self.admin = self._made(AdminClient, {})

    def runTest(self) -> None:
        """Nothing: scenarios are awaited."""

    async def close(self) -> None:
        """
        Close the clients, the last one first.

        @raise PylogbrokerError: of the first that could not be closed in order; the others are
            closed all the same.
        """
        problem: PylogbrokerError | None = None
        for each in reversed(self._clients):
            try:
                await each.close()
            except PylogbrokerError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    # -- clients

    def _made(self, kind: Any, given: Mapping[str, str], **arguments: Any) -> Any:
        number = self._counts.get(kind, 0) + 1
        self._counts[kind] = number
        settings = {
            "bootstrap.servers": self._cluster.servers[PLAINTEXT],
            "client.id": f"{kind.__name__}{number}",
            "retry.backoff.ms": "20",
            **{key.replace("_", "."): value for key, value in given.items()},
        }
        seed = f"{kind.__name__}{number}"
        made = kind(self._reactor, settings, random=Random(seed).random, **arguments)
        self._clients.append(made)
        return made

    def producer(self, **settings: str) -> KafkaProducer:
        """A producer; words in names of settings are joined by underscores."""
        given = {"linger_ms": "0", "close_timeout_ms": "3000", **settings}
        made: KafkaProducer = self._made(KafkaProducer, given, isLoggingFailures=False)
        return made

    def consumer(self, **settings: str) -> KafkaConsumer:
        """A consumer that begins with the first message."""
        made: KafkaConsumer = self._made(
            KafkaConsumer,
            {
                "auto_offset_reset": "earliest",
                "fetch_max_wait_ms": "100",
                "heartbeat_interval_ms": "100",
                "session_timeout_ms": str(self._sessionTimeoutMs),
                "enable_auto_commit": "false",
                **settings,
            },
        )
        return made

    def login(self, mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
        """Settings of a client that authenticates."""
        return {
            "bootstrap_servers": self._cluster.servers[SASL],
            "sasl_mechanism": mechanism,
            "sasl_username": user,
            "sasl_password": password,
        }

    def trusting(self, folder: str, listener: str = TLS) -> dict[str, str]:
        """Settings of a client that uses TLS."""
        return {
            "bootstrap_servers": self._cluster.servers[listener],
            "broker_endpoint": "tls:{host}:{port}:trustRoots=" + folder,
        }

    # -- what scenarios do

    def name(self, name: str) -> str:
        """The name of something of this run."""
        return f"{self._prefix}{name}"

    async def topic(self, count: int = 1, name: str = "t", **configs: str) -> str:
        """Create a topic, whose messages may be old. Returns its name."""
        given = {"retention.ms": "-1"}
        given.update({key.replace("_", "."): value for key, value in configs.items()})
        new = NewTopic(self.name(name), count, configs=given)
        found = (await self.admin.createTopics([new]))[new.name]
        # A request whose answer was lost has been carried out.
        isThere = isinstance(found, ResponseError) and found.code == ErrorCode.TOPIC_ALREADY_EXISTS
        if not isThere:
            checkAll({new.name: found})
        await self.led(new.name, count)
        return new.name

    async def led(self, topic: str, count: int) -> None:
        """Wait until a new topic's partitions have their leaders."""
        places = [TopicPartition(topic, number) for number in range(count)]
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while True:
            found = await self.admin.listOffsets(dict.fromkeys(places, LATEST))
            if not any(isinstance(each, Exception) for each in found.values()):
                return
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    async def send(
        self, producer: KafkaProducer, topic: str, values: Iterable[bytes], partition: int = 0
    ) -> list[RecordMetadata]:
        """Send messages to a partition, all at once. Returns what became of each."""
        sent = [producer.send(topic, value, partition=partition) for value in values]
        return [await each for each in sent]

    async def read(self, consumer: KafkaConsumer, count: int) -> list[ConsumerRecord]:
        """The next C{count} messages, exactly."""
        found: list[ConsumerRecord] = []
        while len(found) < count:
            found += consumer.takeMany(count - len(found))
            if len(found) < count:
                await consumer.wait()
        return found

    async def values(self, topic: str, count: int, **settings: str) -> list[bytes | None]:
        """The first values of partition 0, read by a consumer of their own."""
        consumer = self.consumer(**settings)
        consumer.assign([TopicPartition(topic, 0)])
        found = [record.value for record in await self.read(consumer, count)]
        await consumer.close()
        return found

    async def until(self, isSo: Callable[[], bool]) -> None:
        """Wait for something, at most L{_WAIT_SECONDS_MAX}."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while not isSo():
            if self._reactor.seconds() > deadline:
                raise AssertionError("what was waited for has not happened in time")
            await deferLater(self._reactor, 0.01)

    async def failure(self, waiting: Deferred[Any], *kinds: type[Exception]) -> str:
        """The text of the error with which something fails."""
        try:
            found = await waiting
        except kinds as error:
            return str(error)
        raise AssertionError(f"{found!r} in place of an error")

    def refused(self, found: Any, *codes: ErrorCode) -> str:
        """The text of an item's error."""
        self.assertIsInstance(found, ResponseError)
        self.assertIn(found.code, codes, str(found))
        return str(found)

    # -- producing

    @scenario
    async def keyed(self) -> None:
        """Messages of a key go to one partition and stay in order; each has the offset told."""
        topic = await self.topic(3)
        producer = self.producer()
        sent = [producer.send(topic, b"%d" % number, b"k%d" % (number % 7)) for number in range(40)]
        places = [await each for each in sent]
        self.assertEqual(producer.counters.writtenCount, 40)
        consumer = self.consumer()
        consumer.assign([TopicPartition(topic, number) for number in range(3)])
        found = {(each.partition, each.offset): each for each in await self.read(consumer, 40)}
        partitions: dict[bytes | None, set[int]] = {}
        for number, place in enumerate(places):
            record = found[place.partition, place.offset]
            self.assertEqual(record.value, b"%d" % number)
            partitions.setdefault(record.key, set()).add(place.partition)
        self.assertEqual({len(each) for each in partitions.values()}, {1})
        for partition in range(3):
            numbers = [
                int(each.value or b"")
                for each in sorted(found.values(), key=lambda each: each.offset)
                if each.partition == partition
            ]
            self.assertEqual(numbers, sorted(numbers))

    @scenario
    async def parts(self) -> None:
        """Keys, values, headers and timestamps come back as they were; tombstones, too."""
        topic = await self.topic()
        producer = self.producer()
        headers = [("a", b"1"), ("a", b""), ("\u00e4", b"\x00\xff")]
        sent = [
            producer.send(topic, b"value", b"key", headers, _TIME_MS, 0),
            producer.send(topic, None, b"gone", (), _TIME_MS + 5, 0),
            producer.send(topic, b"", b"", (), _TIME_MS + 3, 0),
        ]
        places = [await each for each in sent]
        self.assertEqual([place.offset for place in places], [0, 1, 2])
        consumer = self.consumer()
        consumer.assign([TopicPartition(topic, 0)])
        found = [
            (each.value, each.key, tuple(each.headers), each.timestamp)
            for each in await self.read(consumer, 3)
        ]
        self.assertEqual(
            found,
            [
                (b"value", b"key", tuple(headers), _TIME_MS),
                (None, b"gone", (), _TIME_MS + 5),
                (b"", b"", (), _TIME_MS + 3),
            ],
        )

    @scenario
    async def codecs(self) -> None:
        """Messages survive every compression."""
        topic = await self.topic()
        expected = []
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = self.producer(compression_type=codec)
            expected += [b"%s %d " % (codec.encode(), number) * 20 for number in range(10)]
            await self.send(producer, topic, expected[-10:])
        self.assertEqual(await self.values(topic, 50), expected)

    @scenario
    async def acks(self) -> None:
        """Messages are stored with each setting of C{acks}; with 0 no offset is told."""
        topic = await self.topic()
        offsets = []
        for acks in ("0", "1", "all"):
            producer = self.producer(acks=acks, enable_idempotence="false")
            [place] = await self.send(producer, topic, [acks.encode()])
            offsets.append(place.offset)
            await self.untilStored(topic, len(offsets))
        self.assertEqual(offsets, [-1, 1, 2])
        self.assertEqual(await self.values(topic, 3), [b"0", b"1", b"all"])

    async def untilStored(self, topic: str, count: int) -> None:
        """Wait until a partition has C{count} messages: C{acks=0} says nothing."""
        place = TopicPartition(topic, 0)
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while checkAll(await self.admin.listOffsets({place: LATEST}))[place].offset < count:
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    @scenario
    async def tooLarge(self) -> None:
        """A message that the topic does not take is refused; the next ones are stored."""
        topic = await self.topic(max_message_bytes="1000")
        producer = self.producer()
        # Unknown, if a connection was lost before: the topic may have taken larger ones then.
        sending = producer.send(topic, b"x" * 2_000, partition=0)
        text = await self.failure(sending, ResponseError, UnknownOutcomeError)
        self.assertIn("MESSAGE_TOO_LARGE", text)
        # In one batch they are too large, and one by one they are not.
        [*places] = await self.send(producer, topic, [b"y" * 600, b"z" * 600])
        self.assertEqual([place.offset for place in places], [0, 1])
        self.assertEqual(await self.values(topic, 2), [b"y" * 600, b"z" * 600])

    @scenario
    async def unknownTopic(self) -> None:
        """A message for a topic that does not exist fails in time, and waits until then."""
        name = self.name("t")
        producer = self.producer(max_block_ms="500")
        text = await self.failure(producer.send(name, b"lost"), TimedOutError)
        self.assertIn("UNKNOWN_TOPIC_OR_PARTITION", text)
        waiting = self.producer().send(name, b"kept", partition=0)
        await self.topic()
        self.assertEqual((await waiting).offset, 0)
        self.assertEqual(await self.values(name, 1), [b"kept"])

    # -- consuming

    @scenario
    async def positions(self) -> None:
        """A consumer begins where it is told, and C{seek} moves it; what is paused is not read."""
        topic = await self.topic(2)
        producer = self.producer()
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        await self.send(producer, topic, [b"%d" % number for number in range(10)])
        await self.send(producer, topic, [b"other"], 1)
        consumer = self.consumer()
        self.assertEqual(await consumer.partitionsFor(topic), [first, second])
        consumer.assign({first: 4})
        self.assertEqual([each.value for each in await self.read(consumer, 2)], [b"4", b"5"])
        self.assertEqual(consumer.positions, {first: 6})
        consumer.seek(first, 8)
        self.assertEqual([each.value for each in await self.read(consumer, 2)], [b"8", b"9"])
        consumer.seekToBeginning()
        self.assertEqual([each.value for each in await self.read(consumer, 1)], [b"0"])
        consumer.seekToEnd()
        await self.until(lambda: consumer.positions.get(first) == 10)
        await self.send(producer, topic, [b"new"])
        self.assertEqual([each.value for each in await self.read(consumer, 1)], [b"new"])
        consumer.assign({first: 0, second: 0})
        consumer.pause([first])
        self.assertEqual([each.value for each in await self.read(consumer, 1)], [b"other"])
        consumer.resume([first])
        self.assertEqual([each.value for each in await self.read(consumer, 1)], [b"0"])

    @scenario
    async def times(self) -> None:
        """Offsets are found by time, at the beginning and at the end."""
        topic = await self.topic(2)
        producer = self.producer()
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        for number in range(5):
            await producer.send(topic, b"x", timestamp=_TIME_MS + number * 10, partition=0)
        consumer = self.consumer()
        found = await consumer.offsetsForTimes({first: _TIME_MS + 11, second: _TIME_MS})
        self.assertEqual(found[first], OffsetAndTimestamp(2, _TIME_MS + 20, 0))
        self.assertIsNone(found[second])
        self.assertIsNone((await consumer.offsetsForTimes({first: _TIME_MS + 41}))[first])
        self.assertEqual(await consumer.beginningOffsets([first]), {first: 0})
        self.assertEqual(await consumer.endOffsets([first, second]), {first: 5, second: 0})

    @scenario
    async def outOfRange(self) -> None:
        """A position that is not in the log is an error, or follows C{auto.offset.reset}."""
        topic = await self.topic()
        place = TopicPartition(topic, 0)
        await self.send(self.producer(), topic, [b"%d" % number for number in range(6)])
        checkAll(await self.admin.deleteRecords({place: 2}))
        strict = self.consumer(auto_offset_reset="none")
        strict.assign({place: 1})
        with self.assertRaises(OffsetOutOfRangeError):
            await self.read(strict, 1)
        strict.seek(place, 3)
        self.assertEqual([each.value for each in await self.read(strict, 1)], [b"3"])
        lenient = self.consumer()
        lenient.assign({place: 1})
        self.assertEqual([each.value for each in await self.read(lenient, 1)], [b"2"])

    @scenario
    async def madeAgain(self) -> None:
        """A topic that was deleted and made again is told to a reader, who goes on with the new."""
        topic = await self.topic()
        producer = self.producer()
        await self.send(producer, topic, [b"old"] * 3)
        await producer.close()
        consumer = self.consumer()
        consumer.assign([TopicPartition(topic, 0)])
        self.assertEqual(len(await self.read(consumer, 3)), 3)
        consumer.pause()
        await self.gone(topic)
        await self.topic()
        await self.send(self.producer(), topic, [b"new"])
        consumer.resume()
        with self.assertRaises(LogTruncatedError):
            await self.read(consumer, 1)
        self.assertEqual([each.value for each in await self.read(consumer, 1)], [b"new"])

    async def gone(self, topic: str) -> None:
        """Delete a topic, and wait until nothing is left of it."""
        await self.admin.deleteTopics([topic])
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while not isinstance((await self.admin.describeTopics([topic]))[topic], ResponseError):
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    # -- groups

    async def exchange(self, **settings: str) -> None:
        """
        Two members join, one after the other, and one leaves: each partition has one owner, and
        each message one reader.
        """
        topic = await self.topic(4)
        producer, sentCount = self.producer(), 0
        found: list[bytes | None] = []

        async def more() -> None:
            nonlocal sentCount
            for partition in range(4):
                values = [b"%d" % (sentCount + each) for each in range(2)]
                await self.send(producer, topic, values, partition)
                sentCount += 2

        def take(*members: KafkaConsumer) -> int:
            for each in members:
                found.extend(record.value for record in each.takeMany())
            return len(found)

        given = {"group_id": self.name("g"), **settings}
        await more()
        first, second = self.consumer(**given), self.consumer(**given)
        first.subscribe([topic])
        await self.until(lambda: take(first) == 8)
        self.assertEqual(len(first.assignment()), 4)
        await first.commitOffsets()
        second.subscribe([topic])
        members = (first, second)
        await self.until(lambda: take(*members) == 8 and self.shares(*members) == [2, 2])
        await more()
        await self.until(lambda: take(*members) == 16)
        for member in members:
            await member.commitOffsets()
        await first.close()
        await self.until(lambda: take(second) == 16 and self.shares(second) == [4])
        await more()
        await self.until(lambda: take(second) == 24)
        self.assertEqual(sorted(int(value or b"") for value in found), list(range(24)))

    @staticmethod
    def shares(*members: KafkaConsumer) -> list[int]:
        """How many partitions each member has, if none has two owners."""
        places = [place for each in members for place in each.assignment()]
        isSound = len(places) == len({*places})
        return [len(each.assignment()) for each in members] if isSound else []

    @scenario
    async def rangeGroup(self) -> None:
        """A group with the assignor C{range}: one owner, and each message once."""
        await self.exchange(partition_assignment_strategy="range")

    @scenario
    async def roundRobinGroup(self) -> None:
        """A group with the assignor C{roundrobin}: one owner, and each message once."""
        await self.exchange(partition_assignment_strategy="roundrobin")

    @scenario
    async def cooperativeGroup(self) -> None:
        """A group with the assignor C{cooperative-sticky}: one owner, and each message once."""
        await self.exchange(partition_assignment_strategy="cooperative-sticky")

    @scenario
    async def coordinatedGroup(self) -> None:
        """A group of the new protocol (KIP-848): one owner, and each message once."""
        await self.exchange(group_protocol="consumer")

    @scenario
    async def commits(self) -> None:
        """Positions are committed with their text, and the group's next reader begins there."""
        topic = await self.topic()
        place, none = TopicPartition(topic, 0), TopicPartition(topic, 7)
        await self.send(self.producer(), topic, [b"0", b"1", b"2"])
        first = self.consumer(group_id=self.name("g"))
        first.subscribe([topic])
        await self.read(first, 2)
        await first.commitOffsets({place: OffsetAndMetadata(1, 0, "half")})
        self.assertEqual(
            await first.committed([place, none]),
            {place: OffsetAndMetadata(1, 0, "half"), none: None},
        )
        await first.commitOffsets()
        await first.close()
        second = self.consumer(group_id=self.name("g"))
        second.subscribe([topic])
        self.assertEqual([each.value for each in await self.read(second, 1)], [b"2"])

    @scenario
    async def assignedCommits(self) -> None:
        """Positions of partitions that are assigned by hand can be kept in a group, too."""
        topic = await self.topic()
        place = TopicPartition(topic, 0)
        await self.send(self.producer(), topic, [b"0", b"1"])
        for number in range(2):
            consumer = self.consumer(group_id=self.name("g"))
            consumer.assign([place])
            [record] = await self.read(consumer, 1)
            self.assertEqual(record.value, b"%d" % number)
            await consumer.commitOffsets()
            await consumer.close()

    @scenario
    async def staticMember(self) -> None:
        """A static member that comes back has its partitions again, in the same generation."""
        topic = await self.topic(2)
        given = {"group_id": self.name("g"), "partition_assignment_strategy": "range"}
        first = self.consumer(group_instance_id="one", **given)
        first.subscribe([topic])
        await self.until(lambda: self.shares(first) == [2] and len(first.positions) == 2)
        generation = first.groupMetadata().generationId
        await first.close()
        again = self.consumer(group_instance_id="one", **given)
        again.subscribe([topic])
        await self.until(lambda: self.shares(again) == [2] and len(again.positions) == 2)
        self.assertEqual(again.groupMetadata().generationId, generation)

    # -- transactions

    async def write(self, producer: KafkaProducer, topic: str, values: Sequence[bytes]) -> None:
        """A transaction with messages, sent all at once."""
        async with producer.transaction():
            for value in values:
                producer.send(topic, value, partition=0).addErrback(lambda _failure: None)

    @scenario
    async def transactions(self) -> None:
        """What is committed is visible, what is aborted is not, and the producer goes on."""
        topic = await self.topic()
        writer = self.producer(transactional_id=self.name("x"))
        for number in range(4):
            if number % 2:
                await self.write(writer, topic, [b"%d" % number, b"%d more" % number])
            else:
                with self.assertRaises(ZeroDivisionError):
                    async with writer.transaction():
                        await writer.send(topic, b"%d" % number, partition=0)
                        raise ZeroDivisionError
        async with writer.transaction():
            pass
        await self.send(self.producer(), topic, [b"end"])
        committed = [b"1", b"1 more", b"3", b"3 more", b"end"]
        found = await self.values(topic, 5, isolation_level="read_committed")
        self.assertEqual(found, committed)
        self.assertEqual(len(await self.values(topic, 7)), 7)

    @scenario
    async def openTransaction(self) -> None:
        """A transaction that is open hides what is behind it, until it ends."""
        topic = await self.topic()
        place = TopicPartition(topic, 0)
        writer = self.producer(transactional_id=self.name("x"))
        consumer = self.consumer(isolation_level="read_committed")
        async with writer.transaction():
            await writer.send(topic, b"inside", partition=0)
            await self.send(self.producer(), topic, [b"behind"])
            self.assertEqual(await consumer.endOffsets([place]), {place: 0})
            plain = self.consumer()
            self.assertEqual(await plain.endOffsets([place]), {place: 2})
        consumer.assign([place])
        found = [each.value for each in await self.read(consumer, 2)]
        self.assertEqual(found, [b"inside", b"behind"])

    @scenario
    async def fenced(self) -> None:
        """A second producer of the id ends the transaction of the first, which is told."""
        topic = await self.topic()
        first = self.producer(transactional_id=self.name("x"))
        second = self.producer(transactional_id=self.name("x"))
        with self.assertRaises(PylogbrokerError) as caught:
            async with first.transaction():
                await first.send(topic, b"first", partition=0)
                await self.write(second, topic, [b"second"])
        self.assertIn("PRODUCER_FENCED", str(caught.exception))
        refusals = ResponseError, TransactionStateError
        self.assertIn("PRODUCER_FENCED", await self.failure(first.send(topic, b"x"), *refusals))
        found = await self.values(topic, 1, isolation_level="read_committed")
        self.assertEqual(found, [b"second"])

    @scenario
    async def refusedMessage(self) -> None:
        """A message that is refused aborts its transaction, and the next one succeeds."""
        topic = await self.topic(max_message_bytes="1000")
        writer = self.producer(transactional_id=self.name("x"))
        await self.write(writer, topic, [b"0"])
        with self.assertRaises(TransactionAbortedError):
            await self.write(writer, topic, [b"1", b"x" * 2_000])
        await self.write(writer, topic, [b"2"])
        found = await self.values(topic, 2, isolation_level="read_committed")
        self.assertEqual(found, [b"0", b"2"])

    @scenario
    async def offsetsInside(self) -> None:
        """Positions in a transaction count with it: of one that is aborted they do not."""
        source, results = await self.topic(name="source"), await self.topic(name="results")
        place = TopicPartition(source, 0)
        await self.send(self.producer(), source, [b"0", b"1"])
        group = self.name("g")
        reader = self.consumer(group_id=group)
        reader.subscribe([source])
        writer = self.producer(transactional_id=self.name("x"))
        for isWhole in (False, True):
            [record] = await self.read(reader, 1)
            try:
                async with writer.transaction() as transaction:
                    await writer.send(results, record.value, partition=0)
                    await transaction.sendOffsets(reader.positions, reader.groupMetadata())
                    if not isWhole:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                self.assertEqual(await reader.committed([place]), {place: None})
        stored = (await reader.committed([place]))[place]
        assert stored is not None
        self.assertEqual(stored.offset, 2)
        found = await self.values(results, 1, isolation_level="read_committed")
        self.assertEqual(found, [b"1"])

    @scenario
    async def offsetsOfNoMember(self) -> None:
        """Positions of a group without members go into a transaction, too."""
        topic = await self.topic()
        place = TopicPartition(topic, 0)
        writer = self.producer(transactional_id=self.name("x"))
        async with writer.transaction() as transaction:
            await writer.send(topic, b"x", partition=0)
            await transaction.sendOffsets({place: 5}, ConsumerGroupMetadata(self.name("g")))
        found = await self.admin.listConsumerGroupOffsets(self.name("g"), [place], isStable=True)
        self.assertEqual(found[place].offset, 5)

    # -- administration

    @scenario
    async def adminTopics(self) -> None:
        """Topics are created with their settings, described, grown and deleted, by name and id."""
        new = NewTopic(self.name("t"), 3, 1, {"retention.ms": "5000"})
        wrong = [NewTopic("wrong/name"), NewTopic(self.name("u"), configs={"retention.ms": "no"})]
        none = self.name("none")
        dry = await self.admin.createTopics([new], isDryRun=True)
        self.assertEqual(checkAll(dry)[new.name].numPartitions, 3)
        self.assertNotIn(new.name, await self.admin.listTopics())
        found = await self.admin.createTopics([new, *wrong])
        self.assertEqual(list(found), [new.name, *(each.name for each in wrong)])
        self.refused(found["wrong/name"], ErrorCode.INVALID_TOPIC_EXCEPTION)
        text = self.refused(found[self.name("u")], ErrorCode.INVALID_CONFIG)
        self.assertIn("retention.ms", text)
        again = await self.admin.createTopics([new])
        self.refused(again[new.name], ErrorCode.TOPIC_ALREADY_EXISTS)
        await self.described(new.name, 3)
        self.assertIn(new.name, await self.admin.listTopics())
        described = await self.admin.describeTopics([none])
        self.refused(described[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        pieces = await self.admin.describeTopicPartitions([new.name], 2)
        self.assertEqual([part.partitionIndex for part in pieces[new.name]], [0, 1, 2])
        await self.failure(self.admin.describeTopicPartitions([none]), ResponseError)
        grown = await self.admin.createPartitions({new.name: 5, none: 5})
        self.assertIn(getattr(grown[new.name], "code", None), (None, ErrorCode.INVALID_PARTITIONS))
        self.refused(grown[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topicId = (await self.described(new.name, 5)).topicId
        gone = await self.admin.deleteTopics([topicId, none])
        self.refused(gone[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await self.gone(new.name)

    async def described(self, topic: str, count: int) -> Any:
        """Wait until the broker knows a topic's partitions. Returns its description."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while True:
            found = (await self.admin.describeTopics([topic]))[topic]
            if not isinstance(found, Exception) and len(found.partitions) == count:
                self.assertEqual({part.leaderId for part in found.partitions}, {BROKER_ID})
                return found
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    @scenario
    async def adminRecords(self) -> None:
        """Offsets are found by time at the leaders, and records are deleted."""
        topic = await self.topic(2)
        first, second, missing = (TopicPartition(topic, number) for number in (0, 1, 7))
        none = TopicPartition(self.name("none"), 0)
        producer = self.producer()
        for number in range(5):
            await producer.send(topic, b"x", timestamp=_TIME_MS + number, partition=0)
        found = await self.admin.listOffsets(dict.fromkeys((first, second, missing, none), LATEST))
        self.assertEqual([found[place].offset for place in (first, second)], [5, 0])
        self.assertIsInstance(found[missing], UnknownPartitionError)
        self.refused(found[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        times = ((EARLIEST, 0), (_TIME_MS + 2, 2), (MAX_TIMESTAMP, 4), (_TIME_MS + 9, -1))
        for time, offset in times:
            found = await self.admin.listOffsets({first: time}, isCommitted=True)
            self.assertEqual(found[first].offset, offset, time)
        deleted = await self.admin.deleteRecords({first: 3, second: 5})
        self.assertEqual(deleted[first], 3)
        self.refused(deleted[second], ErrorCode.OFFSET_OUT_OF_RANGE)
        self.assertEqual((await self.admin.listOffsets({first: EARLIEST}))[first].offset, 3)

    @scenario
    async def adminConfigs(self) -> None:
        """Settings are described, set, taken back and replaced; a broker's own are its own."""
        topic = ConfigResource(ResourceKind.TOPIC, await self.topic())
        broker = ConfigResource(ResourceKind.BROKER, str(BROKER_ID))
        none = ConfigResource(ResourceKind.TOPIC, self.name("none"))
        change = {"retention.ms": (AlterConfigOperation.SET, "7000")}
        found = await self.admin.incrementalAlterConfigs({topic: change}, isDryRun=True)
        self.assertEqual(found, {topic: None})
        self.assertEqual(await self.setting(topic, "retention.ms"), "-1")
        found = await self.admin.incrementalAlterConfigs({topic: change, none: change})
        self.assertIsNone(found[topic])
        self.refused(found[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await self.settled(topic, "retention.ms", "7000")
        described = await self.admin.describeConfigs(
            [topic, broker, none],
            ["retention.ms", "log.dirs"],
            includeSynonyms=True,
            includeDocumentation=True,
        )
        self.assertTrue(described[topic]["retention.ms"].synonyms)
        self.assertTrue(described[topic]["retention.ms"].documentation)
        self.assertIn("log.dirs", described[broker])
        self.refused(described[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.assertIn(topic, await self.admin.listConfigResources([ResourceKind.TOPIC]))
        checkAll(await self.admin.alterConfigs({topic: {"cleanup.policy": "compact"}}))
        await self.settled(topic, "cleanup.policy", "compact")
        self.assertNotEqual(await self.setting(topic, "retention.ms"), "7000")

    async def setting(self, resource: ConfigResource, name: str) -> str:
        """The value of a setting."""
        found = checkAll(await self.admin.describeConfigs([resource], [name]))
        value: str = found[resource][name].value
        return value

    async def settled(self, resource: ConfigResource, name: str, value: str) -> None:
        """Wait until a broker has learnt of a setting."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while await self.setting(resource, name) != value:
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    @scenario
    async def adminCluster(self) -> None:
        """The cluster, its log directories, its leaders and its replicas."""
        topic = await self.topic(2)
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        await self.send(self.producer(), topic, [b"x"] * 3)
        cluster = await self.admin.describeCluster()
        self.assertEqual([each.brokerId for each in cluster.brokers], [BROKER_ID])
        sizes = await self.sizes(topic, None, 2)
        self.assertGreater(sizes[0], sizes[1])
        self.assertEqual(await self.sizes(topic, [BROKER_ID], 2), sizes)
        elected = await self.admin.electLeaders([first])
        self.refused(elected[first], ErrorCode.ELECTION_NOT_NEEDED)
        self.assertEqual(await self.admin.listPartitionReassignments([first]), {})
        self.assertEqual(await self.admin.listPartitionReassignments(), {})
        moved = await self.admin.alterPartitionReassignments({first: [BROKER_ID], second: None})
        self.refused(moved[second], ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        self.assertIn(first, moved)

    async def sizes(self, topic: str, brokers: Sequence[int] | None, count: int) -> dict[int, int]:
        """Wait until all partitions of a topic are in the log directory. Returns their bytes."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while True:
            [[directory]] = (await self.admin.describeLogDirs(brokers)).values()
            found = {
                part.partitionIndex: part.partitionSize
                for each in directory.topics
                if each.name == topic
                for part in each.partitions
            }
            if len(found) == count:
                return found
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    @scenario
    async def adminGroups(self) -> None:
        """A group is listed and described; a member is removed; an empty group is deleted."""
        topic, group, none = await self.topic(), self.name("g"), self.name("none")
        member = self.consumer(
            group_id=group, group_instance_id="one", partition_assignment_strategy="range"
        )
        await self.send(self.producer(), topic, [b"x"])
        member.subscribe([topic])
        await self.read(member, 1)
        self.assertEqual((await self.admin.listGroups())[group].groupState, "Stable")
        self.assertNotIn(group, await self.admin.listGroups(["Empty"], ["classic"]))
        found = await self.admin.describeGroups([group])
        [described] = checkAll(found)[group].members
        self.assertEqual(described.groupInstanceId, "one")
        self.refused((await self.admin.deleteGroups([group]))[group], ErrorCode.NON_EMPTY_GROUP)
        described = await self.admin.describeConsumerGroups([group, none])
        for each in (group, none):
            self.refused(described[each], ErrorCode.GROUP_ID_NOT_FOUND)
        await member.close()
        removed = await self.admin.removeMembers(group, [("", "one"), ("no", None)], "test")
        self.assertIn(getattr(removed["one"], "code", None), (None, ErrorCode.UNKNOWN_MEMBER_ID))
        self.refused(removed["no"], ErrorCode.UNKNOWN_MEMBER_ID)
        gone = (await self.admin.deleteGroups([group]))[group]
        self.assertIn(getattr(gone, "code", None), (None, ErrorCode.GROUP_ID_NOT_FOUND))
        self.assertNotIn(group, await self.admin.listGroups())

    @scenario
    async def adminOffsets(self) -> None:
        """Positions of a group are set, listed and forgotten."""
        topic, group = await self.topic(2), self.name("g")
        first, second, missing = (TopicPartition(topic, number) for number in (0, 1, 9))
        given = {first: OffsetAndMetadata(5, 0, "here"), second: OffsetAndMetadata(7)}
        checkAll(await self.admin.alterConsumerGroupOffsets(group, given))
        altered = await self.admin.alterConsumerGroupOffsets(group, {missing: 1})
        self.refused(altered[missing], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.assertEqual(await self.admin.listConsumerGroupOffsets(group), given)
        found = await self.admin.listConsumerGroupOffsets(group, [second], isStable=True)
        self.assertEqual(found, {second: OffsetAndMetadata(7)})
        checkAll(await self.admin.deleteConsumerGroupOffsets(group, [first]))
        self.assertEqual(list(await self.admin.listConsumerGroupOffsets(group)), [second])
        failing = self.admin.deleteConsumerGroupOffsets(self.name("none"), [first])
        self.assertIn("GROUP_ID_NOT_FOUND", await self.failure(failing, ResponseError))

    @scenario
    async def adminTransactions(self) -> None:
        """Producers and transactions are described, and a producer is fenced."""
        topic, name, none = await self.topic(), self.name("x"), self.name("none")
        place = TopicPartition(topic, 0)
        await self.send(self.producer(), topic, [b"x"])
        [[active]] = checkAll(await self.admin.describeProducers([place])).values()
        self.assertEqual(active.lastSequence, 0)
        (producerId, epoch) = checkAll(await self.admin.fenceProducers([name]))[name]
        self.assertGreaterEqual(producerId, 0)
        self.assertEqual(list(await self.admin.listTransactions(["Empty"], [producerId])), [name])
        self.assertEqual(await self.admin.listTransactions(durationMs=9, pattern=none), {})
        found = await self.admin.describeTransactions([name, none])
        self.assertEqual(found[name].producerEpoch, epoch)
        self.refused(found[none], ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        missing = TopicPartition(topic, 9)
        failing = self.admin.abortTransaction(missing, producerId, epoch, 0)
        await self.failure(failing, UnknownPartitionError)

    @scenario
    async def hangingTransaction(self) -> None:
        """An administrator aborts a transaction at its partition, and readers go on."""
        topic = await self.topic()
        place = TopicPartition(topic, 0)
        writer = self.producer(transactional_id=self.name("x"))
        with self.assertRaises(PylogbrokerError):
            async with writer.transaction():
                await writer.send(topic, b"hanging", partition=0)
                [[active]] = checkAll(await self.admin.describeProducers([place])).values()
                await self.admin.abortTransaction(
                    place, active.producerId, active.producerEpoch, active.coordinatorEpoch
                )
                checkAll(await self.admin.fenceProducers([self.name("x")]))
        await self.send(self.producer(), topic, [b"behind"])
        found = await self.values(topic, 1, isolation_level="read_committed")
        self.assertEqual(found, [b"behind"])

    @scenario
    async def adminAcls(self) -> None:
        """Bindings are made, found and removed."""
        user, other = f"User:{self.name('a')}", f"User:{self.name('b')}"
        first = AclBinding(
            AclResourceType.TOPIC,
            PatternType.PREFIXED,
            self.name("t"),
            user,
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )
        second = first._replace(resourceName=self.name("u"), principal=other)
        wrong = first._replace(principal="no principal")
        found = await self.admin.createAcls([first, second, wrong])
        self.assertEqual([found[first], found[second]], [None, None])
        self.refused(found[wrong], ErrorCode.INVALID_REQUEST)
        await self.untilBound({first, second})
        some = AclFilter(principal=user)
        self.assertEqual(await self.admin.describeAcls(some), [first])
        removed = checkAll(await self.admin.deleteAcls([some]))
        self.assertIn(removed[some], ([first], []))
        await self.untilBound({second})

    async def untilBound(self, expected: set[AclBinding]) -> None:
        """Wait until the bindings of this run are as expected."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while {
            each
            for each in await self.admin.describeAcls()
            if each.principal.startswith(f"User:{self._prefix}")
        } != expected:
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    @scenario
    async def adminUsers(self) -> None:
        """Passwords are set and removed; wrong arguments are refused before anything is sent."""
        [mechanism, other] = _SCRAM_MECHANISMS
        user, none = self.name("a"), self.name("none")
        checkAll(await self.admin.alterUserScramCredentials({(user, mechanism): "secret"}, _SALT))
        await self.untilKnown({user: {mechanism: 4096}}, [user])
        self.assertEqual(await self.admin.describeUserScramCredentials([none]), {})
        found = await self.admin.alterUserScramCredentials(
            {(user, mechanism): None, (none, mechanism): None}, _SALT
        )
        self.refused(found[none], ErrorCode.RESOURCE_NOT_FOUND)
        await self.untilKnown({}, [user])
        self.assertNotIn(user, await self.admin.describeUserScramCredentials())
        for passwords, salt in (({(user, "MD5"): "x"}, _SALT), ({(user, other): "x"}, b"short")):
            with self.assertRaises(ValueError):
                self.admin.alterUserScramCredentials(passwords, salt)

    async def untilKnown(self, expected: Mapping[str, Any], users: Sequence[str]) -> None:
        """Wait until the passwords of users are as expected."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while await self.admin.describeUserScramCredentials(users) != expected:
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    @scenario
    async def adminQuotas(self) -> None:
        """Quotas are set, found and removed."""
        key = "producer_byte_rate"
        user, wrong = (("user", self.name("a")),), (("no", "x"),)
        found = await self.admin.alterClientQuotas({user: {key: 1000.0}, wrong: {key: 1.0}})
        self.assertIsNone(found[user])
        self.refused(found[wrong], ErrorCode.INVALID_REQUEST)
        await self.untilLimited({user: {key: 1000.0}}, self.name("a"))
        self.assertIn(user, await self.admin.describeClientQuotas())
        checkAll(await self.admin.alterClientQuotas({user: {key: None}}))
        await self.untilLimited({}, self.name("a"))

    async def untilLimited(self, expected: Any, user: str) -> None:
        """Wait until a user's quotas are as expected."""
        deadline = self._reactor.seconds() + _WAIT_SECONDS_MAX
        while await self.admin.describeClientQuotas({"user": user}, isStrict=True) != expected:
            self.assertLess(self._reactor.seconds(), deadline)
            await deferLater(self._reactor, 0.02)

    # -- security

    async def roundTrip(self, settings: Mapping[str, str]) -> None:
        """Producer, consumer and admin client work with some settings."""
        topic = await self.topic()
        await self.send(self.producer(**settings), topic, [b"x"])
        self.assertEqual(await self.values(topic, 1, **settings), [b"x"])
        admin = self._made(AdminClient, settings)
        self.assertIn(topic, await admin.listTopics())

    @scenario
    async def plainPassword(self) -> None:
        """Clients authenticate with SASL PLAIN; a wrong password is told at once."""
        await self.roundTrip(self.login("PLAIN"))
        wrong = self.producer(**self.login("PLAIN", password="wrong"))
        text = await self.failure(wrong.send(self.name("t"), b"x"), PylogbrokerError)
        self.assertIn("SASL_AUTHENTICATION_FAILED", text)

    @scenario
    async def scramPasswords(self) -> None:
        """Clients authenticate with SCRAM; a wrong password is told at once."""
        topic = await self.topic()
        for mechanism in _SCRAM_MECHANISMS:
            given = {(USER, mechanism): PASSWORD}
            checkAll(await self.admin.alterUserScramCredentials(given, _SALT))
        known = {USER: dict.fromkeys(_SCRAM_MECHANISMS, 4096)}
        await self.untilKnown(known, [USER])
        for number, mechanism in enumerate(_SCRAM_MECHANISMS):
            login = self.login(mechanism)
            await self.send(self.producer(**login), topic, [b"%d" % number])
            self.assertEqual(len(await self.values(topic, number + 1, **login)), number + 1)
            wrong = self.consumer(**self.login(mechanism, password="wrong"))
            wrong.assign([TopicPartition(topic, 0)])
            with self.assertRaises(PylogbrokerError) as caught:
                await self.read(wrong, 1)
            self.assertIn("SASL_AUTHENTICATION_FAILED", str(caught.exception))

    @scenario
    async def tls(self) -> None:
        """Clients use TLS; a broker whose certificate they do not trust is not spoken to."""
        await self.roundTrip(self.trusting(self._cluster.trustFolder))
        wrong = self.consumer(
            **self.trusting(self._cluster.otherTrustFolder), default_api_timeout_ms="500"
        )
        text = await self.failure(wrong.partitionsFor(self.name("t")), TimedOutError)
        self.assertIn("certificate", text)

    @scenario
    async def passwordInTls(self) -> None:
        """Clients authenticate within TLS."""
        settings = {**self.login("PLAIN"), **self.trusting(self._cluster.trustFolder, SASL_TLS)}
        await self.roundTrip(settings)


async def perform(
    reactor: Any,
    cluster: ContractCluster,
    scenario: str,
    prefix: str,
    sessionTimeoutMs: int = 10_000,
) -> None:
    """
    Run one scenario. The parameters are those of L{KafkaClientContract}.

    @raise AssertionError: the contract is not kept.
    """
    contract = KafkaClientContract(reactor, cluster, prefix, sessionTimeoutMs)
    try:
        await getattr(contract, scenario)()
    finally:
        await contract.close()
