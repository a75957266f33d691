"""
Clients of different make in one consumer group: Java's, confluent-kafka, aiokafka and
L{KafkaConsumer} come and go. Each assignor is one that they share.

Every member polls in a thread of its own, and tells L{Owners} of partitions that come and go before
it goes on; so two owners of one partition are seen whenever that happens.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from twisted.internet.defer import Deferred
from twisted.internet.selectreactor import SelectReactor
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.types import TopicPartition
from tests.integration.kafkatools import JavaProcess, sharedJava

NEEDS = ("java", "maven")
TIMEOUT_SECONDS = 120
POLL_MS = 50
PARTITION_COUNT = 12  # each number of members up to four has equal shares
MESSAGE_COUNT = 60
BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
AIOKAFKA_ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}


class Owners:
    """
    The owners of the partitions, and what they read.

    @ivar faults: what must not happen.
    @ivar values: all that was read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[int, str] = {}
        self.faults: list[str] = []
        self.values: set[bytes] = set()

    def assigned(self, member: str, partitions: Iterable[int]) -> None:
        with self._lock:
            for partition in partitions:
                owner = self._owners.setdefault(partition, member)
                if owner != member:
                    self.faults.append(f"{member} has got {partition}, which {owner} has")

    def revoked(self, member: str, partitions: Iterable[int]) -> None:
        with self._lock:
            for partition in partitions:
                if self._owners.get(partition) == member:
                    del self._owners[partition]

    def read(self, member: str, partition: int, value: bytes) -> None:
        with self._lock:
            if self._owners.get(partition) != member:
                self.faults.append(f"{member} reads {partition}, which it does not have")
            self.values.add(value)

    def counts(self) -> dict[str, int]:
        """How many partitions each member has."""
        with self._lock:
            found = list(self._owners.values())
        return {member: found.count(member) for member in found}


class Member:
    """
    A member, which polls until it is told to leave.

    @ivar name: of the client.
    """

    name: ClassVar[str]

    def __init__(self, servers: str, assignor: str, owners: Owners) -> None:
        """@param assignor: or C{consumer}: the group's coordinator assigns."""
        self.settings = {
            "bootstrap.servers": servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
        if assignor == "consumer":
            self.settings["group.protocol"] = "consumer"
        else:
            self.settings["heartbeat.interval.ms"] = "300"
            self.settings["session.timeout.ms"] = "45000"
        self.assignor = assignor
        self.owners = owners
        self.error: Exception | None = None
        self.isLeaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Leave the group, and wait until that is done."""
        self.isLeaving.set()
        self._thread.join(TIMEOUT_SECONDS)
        if self._thread.is_alive():
            raise AssertionError(f"{self.name} does not leave")

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:
            self.error = error
        finally:
            self.owners.revoked(self.name, range(PARTITION_COUNT))

    def run(self) -> None:
        raise NotImplementedError


class ConfluentMember(Member):
    """confluent-kafka."""

    name = "confluent-kafka"

    def run(self) -> None:
        if self.assignor != "consumer":
            self.settings["partition.assignment.strategy"] = self.assignor
        consumer = confluent_kafka.Consumer(self.settings)

        def numbers(places: Iterable[Any]) -> list[int]:
            return [each.partition for each in places]

        consumer.subscribe(
            ["t"],
            on_assign=lambda _, places: self.owners.assigned(self.name, numbers(places)),
            on_revoke=lambda _, places: self.owners.revoked(self.name, numbers(places)),
            on_lost=lambda _, places: self.owners.revoked(self.name, numbers(places)),
        )
        while not self.isLeaving.is_set():
            message = consumer.poll(POLL_MS / 1000)
            if message is not None and not message.error():
                partition, value = message.partition(), message.value()
                assert partition is not None and value is not None
                self.owners.read(self.name, partition, value)
        consumer.close()


class AiokafkaMember(Member, aiokafka.ConsumerRebalanceListener):
    """aiokafka."""

    name = "aiokafka"

    def run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.settings["bootstrap.servers"],
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=300,
            session_timeout_ms=45_000,
            partition_assignment_strategy=(AIOKAFKA_ASSIGNORS[self.assignor],),
        )
        consumer.subscribe(["t"], listener=self)
        async with consumer:
            while not self.isLeaving.is_set():
                for batch in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                    for each in batch:
                        self.owners.read(self.name, each.partition, each.value)

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self.owners.assigned(self.name, [each.partition for each in assigned])

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self.owners.revoked(self.name, [each.partition for each in revoked])


class OurMember(Member):
    """L{KafkaConsumer}, in a reactor of its own."""

    name = "ours"

    def run(self) -> None:
        reactor = SelectReactor()
        failures: list[Failure] = []

        def start() -> None:
            done = Deferred.fromCoroutine(self._main(reactor))
            done.addErrback(failures.append)
            done.addCallback(lambda _: reactor.stop())

        reactor.callWhenRunning(start)
        reactor.run(installSignalHandlers=False)
        for failure in failures:
            failure.raiseException()

    async def _main(self, reactor: SelectReactor) -> None:
        settings = dict(self.settings)
        if self.assignor != "consumer":
            settings["partition.assignment.strategy"] = self.assignor
        consumer = KafkaConsumer(reactor, settings)
        try:
            consumer.subscribe(["t"], self)
            while not self.isLeaving.is_set():
                for record in consumer.takeMany():
                    assert record.value is not None
                    self.owners.read(self.name, record.partition, record.value)
                await deferLater(reactor, POLL_MS / 1000)
        finally:
            await consumer.close()

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> None:
        self.owners.assigned(self.name, [each.partition for each in partitions])

    def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> None:
        self.owners.revoked(self.name, [each.partition for each in partitions])

    partitionsLost = partitionsRevoked


class JavaMember(Member):
    """Java's client."""

    name = "java"
    java: ClassVar[JavaProcess]

    def run(self) -> None:
        settings = {
            **self.settings,
            "key.deserializer": BYTES,
            "value.deserializer": BYTES,
        }
        if self.assignor != "consumer":
            settings["partition.assignment.strategy"] = JAVA_ASSIGNORS[self.assignor]
        consumer = self.java.kafka.clients.consumer.KafkaConsumer(settings)
        consumer.subscribe(["t"], self)
        duration = self.java.jvm.java.time.Duration.ofMillis(POLL_MS)
        while not self.isLeaving.is_set():
            for each in consumer.poll(duration).iterator():
                self.owners.read(self.name, each.partition(), each.value())
        consumer.close()

    def onPartitionsAssigned(self, partitions: Iterable[Any]) -> None:
        self.owners.assigned(self.name, [each.partition() for each in partitions])

    def onPartitionsRevoked(self, partitions: Iterable[Any]) -> None:
        self.owners.revoked(self.name, [each.partition() for each in partitions])

    onPartitionsLost = onPartitionsRevoked

    class Java:
        """For py4j."""

        implements = ("org.apache.kafka.clients.consumer.ConsumerRebalanceListener",)


class MixedGroupTests(SynchronousTestCase):
    """At any time a partition has one owner; nothing is missed."""

    def setUp(self) -> None:
        JavaMember.java = sharedJava(self)
        self.broker = BackgroundBroker({"group.initial.rebalance.delay.ms": "0"})
        self.addCleanup(self.broker.close)
        self.broker.start()
        self.servers = self.broker.bootstrapServers
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic("t", PARTITION_COUNT)])["t"].result(TIMEOUT_SECONDS)
        self.producer = confluent_kafka.Producer({"bootstrap.servers": self.servers})
        self.owners = Owners()
        self.members: list[Member] = []
        self.sent: set[bytes] = set()
        self.addCleanup(self.leave)

    def leave(self) -> None:
        """All end while there is a broker."""
        del self.producer
        for member in self.members:
            member.leave()

    def until(self, isDone: Callable[[], bool]) -> None:
        """Wait, while the members poll."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not isDone():
            self.assertEqual([each.error for each in self.members if each.error], [])
            self.assertLess(time.monotonic(), end, f"{self.owners.counts()}")
            threading.Event().wait(POLL_MS / 1000)

    def settle(self) -> None:
        """Each member gets its share; then messages reach all partitions, and are all read."""
        expected = {each.name: PARTITION_COUNT // len(self.members) for each in self.members}
        self.until(lambda: self.owners.counts() == expected)
        for number in range(len(self.sent), len(self.sent) + MESSAGE_COUNT):
            self.sent.add(b"%d" % number)
            self.producer.produce("t", b"%d" % number, partition=number % PARTITION_COUNT)
        self.assertEqual(self.producer.flush(TIMEOUT_SECONDS), 0)
        self.until(lambda: self.owners.values == self.sent)

    def share(self, assignor: str, *clients: type[Member]) -> None:
        """Clients come one after another, go in the same order, and the first comes back."""
        for client in clients:
            self.members.append(client(self.servers, assignor, self.owners))
            self.settle()
        while len(self.members) > 1:
            self.members.pop(0).leave()
            self.settle()
        self.members.append(clients[0](self.servers, assignor, self.owners))
        self.settle()
        self.assertEqual(self.owners.faults, [])

    def test_range(self) -> None:
        """By C{range}."""
        self.share("range", JavaMember, ConfluentMember, AiokafkaMember, OurMember)

    def test_roundRobin(self) -> None:
        """By C{roundrobin}, with another leader."""
        self.share("roundrobin", OurMember, AiokafkaMember, JavaMember, ConfluentMember)

    def test_cooperativeSticky(self) -> None:
        """By C{cooperative-sticky}; each of them is the leader for some time."""
        self.share("cooperative-sticky", ConfluentMember, OurMember, JavaMember)

    def test_consumerProtocol(self) -> None:
        """By the coordinator (C{group.protocol=consumer})."""
        self.share("consumer", JavaMember, OurMember, ConfluentMember)
