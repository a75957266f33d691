"""
Three brokers with three replicas of each partition: what is acknowledged to C{acks=all} is there
once and in order, whichever broker is lost, and the logs of all replicas become the same.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import NewTopic
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import PylogbrokerError, StorageError
from pylogbroker.net.deferreds import closing
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.programs.localcluster import LocalCluster, ProcessCluster
from pylogbroker.storage import partitionlog
from pylogbroker.storage.files import writeAll
from pylogbroker.types import TopicPartition
from tests.cli.commands import performAtOnce
from tests.integration.test_twistedclients import ClientCase

BROKERS = (1, 2, 3)
PARTITION_COUNT = 3
PAUSE_SECONDS = 0.002
MIN_IN_SYNC = "min.insync.replicas"
SESSION_MS = 1_000
PROPERTIES = {
    "zk.sessiontimeout.ms": str(SESSION_MS),
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "replica.fetch.wait.max.ms": "100",
    "replica.fetch.backoff.ms": "50",
    "replica.lag.time.max.ms": "2000",
    # Each replica compacts the topic of groups by itself; the logs are compared byte for byte.
    "log.cleaner.backoff.ms": "600000",
}
CLIENT = {"retry_backoff_ms": "20", "retry_backoff_max_ms": "200"}


class ReplicationTests(ClientCase):
    """Brokers in processes of their own, with flushes before each acknowledgement."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.directory = os.path.abspath(self.mktemp())
        self.cluster = ProcessCluster(reactor, self.directory, len(BROKERS), PROPERTIES)
        self.addCleanup(self.cluster.stop)
        await self.cluster.start()
        self.servers = ",".join(self.cluster.addresses.values())
        self.isEnding = False
        self.addCleanup(self.end)
        await self.withAdmin(
            lambda admin: admin.createTopics(
                [
                    NewTopic(name, PARTITION_COUNT, 3, {MIN_IN_SYNC: "2"})
                    for name in ("ours", "confluent")
                ]
            )
        )

    def end(self) -> None:
        self.isEnding = True

    async def withAdmin(self, ask: Callable[[AdminClient], Any]) -> Any:
        servers = ",".join(self.cluster.addresses.values())
        admin = AdminClient(reactor, {"bootstrap.servers": servers})
        async with closing(admin):
            return await ask(admin)

    # -- faults

    def signal(self, broker: int, name: str) -> None:
        os.kill(self.cluster.pids[broker], getattr(signal, f"SIG{name}"))

    async def inSync(self, *brokers: int) -> None:
        """Wait until the in-sync sets of all partitions are these."""
        while True:
            found = await self.withAdmin(lambda admin: admin.describeTopics(["ours", "confluent"]))
            sets = [set(each.isrNodes) for topic in found.values() for each in topic.partitions]
            if all(each == set(brokers) for each in sets):
                return
            await deferLater(reactor, 0.1)

    async def acknowledged(self, count: int) -> None:
        """Wait until C{count} more messages of our producer are acknowledged."""
        until = len(self.places) + count
        while len(self.places) < until:
            await deferLater(reactor, 0.01)

    # -- clients

    async def produce(self, producer: KafkaProducer) -> None:
        number = 0
        while not self.isEnding:
            await producer.whenReady()
            sent = producer.send("ours", b"%d" % number, partition=number % PARTITION_COUNT)
            sent.addCallback(self.places.append).addErrback(self.refused.append)
            self.sent.append(sent)
            number += 1
            await deferLater(reactor, PAUSE_SECONDS)

    def produceByConfluent(self) -> list[bytes]:
        """In a thread, until the end. Returns what was acknowledged, in the order of sending."""
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 60_000,
            }
        )
        kept: list[bytes] = []

        def told(error: Any, message: Any) -> None:
            if error is None:
                kept.append(message.value())
            else:
                self.refused.append(error)

        number, pause = 0, threading.Event()
        while not self.isEnding:
            producer.produce(
                "confluent", b"%d" % number, partition=number % PARTITION_COUNT, on_delivery=told
            )
            producer.poll(0)
            number += 1
            pause.wait(PAUSE_SECONDS)
        assert producer.flush(30) == 0
        return kept

    async def consume(self, consumer: KafkaConsumer) -> None:
        consumer.subscribe(["ours"])
        async for record in consumer:
            self.received.append((record.partition, record.offset))
            if self.isEnding and len(set(self.received)) == len(self.sent):
                return

    async def begin(self) -> None:
        """All clients have begun."""
        self.places: list[Any] = []
        self.refused: list[Any] = []
        self.sent: list[Deferred[Any]] = []
        self.received: list[tuple[int, int]] = []
        producer = self.producer(delivery_timeout_ms="60000", linger_ms="0", **CLIENT)
        self.producing = Deferred.fromCoroutine(self.produce(producer))
        self.member = self.consumer(group_id="g", auto_commit_interval_ms="100", **CLIENT)
        self.consuming = Deferred.fromCoroutine(self.consume(self.member))
        self.byConfluent = deferToThread(self.produceByConfluent)
        await self.acknowledged(100)

    async def finish(self) -> None:
        """Nothing is missing, and the replicas are the same."""
        self.isEnding = True
        self.servers = ",".join(self.cluster.addresses.values())
        await self.producing
        await DeferredList(self.sent)
        kept = await self.byConfluent
        self.assertEqual(self.refused, [])
        await self.consuming
        self.assertEqual(len(set(self.received)), len(self.sent))
        await self.member.close()
        await self.check("ours", len(self.sent))
        await self.check("confluent", len(kept))
        await self.inSync(1, 2, 3)
        await self.cluster.stop()
        self.compareLogs()

    async def test_losses(self) -> None:
        """A broker is killed, another one is cut off, the third stops, while all clients go on."""
        await self.begin()
        self.signal(1, "KILL")
        await self.acknowledged(100)
        await self.inSync(2, 3)
        await self.cluster.startBroker(1)
        await self.inSync(1, 2, 3)

        self.signal(2, "STOP")
        await self.acknowledged(100)
        self.signal(2, "CONT")
        await self.inSync(1, 2, 3)

        self.signal(3, "TERM")
        await self.acknowledged(100)
        await self.inSync(1, 2)
        await self.cluster.startBroker(3)
        await self.inSync(1, 2, 3)
        await self.finish()

    async def test_rollingRestart(self) -> None:
        """
        Brokers are restarted one after another, as docs/operations.md says for an upgrade: each has
        given its leaders away when it stops, C{topic describe --under-replicated} says when the
        next one may go, and C{partition elect} gives the leaders back. All clients go on.
        """
        await self.begin()
        leaders = await self.leaders()
        for number in BROKERS:
            await self.stopInOrder(number)
            self.assertNotIn(number, await self.leaders())
            await self.acknowledged(50)
            await self.cluster.startBroker(number)
            while await self.command("topic", "describe", "--under-replicated"):
                await deferLater(reactor, 0.1)
        await self.command("partition", "elect", "--execute")
        while await self.leaders() != leaders:  # a broker may know a little later
            await deferLater(reactor, 0.1)
        await self.acknowledged(50)
        await self.finish()

    async def stopInOrder(self, number: int) -> None:
        """Returns when the process has ended."""
        process = Path("/proc", str(self.cluster.pids[number]))
        self.signal(number, "TERM")
        while process.exists():
            await deferLater(reactor, 0.05)

    async def leaders(self) -> list[int]:
        """Of the topics' partitions."""
        found = await self.withAdmin(lambda admin: admin.describeTopics(["ours", "confluent"]))
        return [each.leaderId for topic in found.values() for each in topic.partitions]

    async def command(self, *words: str) -> bytes:
        """The output of one of our commands, which must succeed."""
        servers = ",".join(self.cluster.addresses.values())
        place = ("--bootstrap-server", servers)
        outcome = await deferToThread(performAtOnce, *words, *place)
        self.assertEqual(outcome.code, 0, outcome.errors)
        return outcome.output

    async def check(self, topic: str, count: int) -> None:
        """Each message is there once, in the order of sending."""
        found = await self.consumed(topic, count, **CLIENT)
        for index in range(PARTITION_COUNT):
            values = [int(each.value or b"") for each in found[index]]
            self.assertEqual(values, list(range(index, count, PARTITION_COUNT)))

    def compareLogs(self) -> None:
        """
        The logs of all replicas are the same, byte for byte. The brokers did not stop at once: the
        last one may have written more about the group.
        """
        for name in ("ours", "confluent"):
            for index in range(PARTITION_COUNT):
                found = [self.logOf(broker, f"{name}-{index}") for broker in BROKERS]
                self.assertEqual([len(each) for each in found], [len(found[0])] * len(found))
                self.assertEqual(len({*found}), 1, f"{name}-{index}")
                self.assertTrue(found[0])
        for index in range(2):
            found = [self.logOf(broker, f"__consumer_offsets-{index}") for broker in BROKERS]
            longest = max(found, key=len)
            for each in found:
                self.assertTrue(longest.startswith(each))

    def logOf(self, broker: int, partition: str) -> bytes:
        directory = Path(self.directory, f"broker{broker}", partition)
        return b"".join(each.read_bytes() for each in sorted(directory.glob("*.log")))


class ReplicaTests(ClientCase):
    """Brokers in this process, which acknowledge what is in their page caches."""

    timeout = 20

    async def setUp(self) -> None:  # type: ignore[override]
        properties = {
            **PROPERTIES,
            "log.flush.acks.all": "false",
            "log.flush.before.read": "false",
            "replica.fetch.max.bytes": "40000",
        }
        self.cluster = LocalCluster(reactor, self.mktemp(), len(BROKERS), properties)
        self.addCleanup(self.cluster.stop)
        await self.cluster.start()
        self.servers = ",".join(self.cluster.addresses.values())
        await self.create(1)
        await self.until(lambda: all(map(self.partition, BROKERS)))

    async def create(self, minInSync: int, name: str = "t") -> None:
        topic = NewTopic(name, replicas={0: BROKERS}, configs={MIN_IN_SYNC: str(minInSync)})
        await self.admin().createTopics([topic])

    def admin(self) -> AdminClient:
        servers = ",".join(self.cluster.addresses.values())
        made = AdminClient(reactor, {"bootstrap.servers": servers})
        self.addCleanup(made.close)
        return made

    async def send(self, values: Sequence[bytes], topic: str = "t", **settings: str) -> None:
        producer = self.producer(linger_ms="0", **CLIENT, **settings)
        for each in [producer.send(topic, value, partition=0) for value in values]:
            await each
        await producer.close()

    def partition(self, broker: int, topic: str = "t") -> Any:
        return self.cluster.brokers[broker].service.kafka.topics.hosted(topic, 0)

    def log(self, broker: int) -> Any:
        return self.partition(broker).log

    async def until(self, isTrue: Callable[[], object]) -> None:
        while not isTrue():
            await deferLater(reactor, 0.01)

    def partitionImage(self, topic: str = "t") -> Any:
        image = self.cluster.brokers[2].service.kafka.metadata.image
        return image.topics[topic].partitions[0]

    def throttles(self, topic: str) -> list[str]:
        """Those of a topic and of brokers, as broker 1 knows them."""
        image = self.cluster.brokers[1].service.kafka.metadata.image
        found = [image.topics[topic].configs, *image.brokerConfigs.values()]
        return [key for configs in found for key in configs if "throttled" in key]

    async def inSync(self, *brokers: int) -> None:
        await self.until(lambda: set(self.partitionImage().inSync) == set(brokers))

    async def test_minInSync(self) -> None:
        """
        With fewer in sync than C{min.insync.replicas}, C{acks=all} is refused; what C{acks=1} has
        taken is read when there are enough again.
        """
        await self.create(2, "u")
        for broker in (1, 3):
            await self.cluster.stopBroker(broker)
        with self.assertRaises(PylogbrokerError) as caught:
            await self.send([b"refused"], "u", delivery_timeout_ms="300", request_timeout_ms="200")
        self.assertIn("NOT_ENOUGH_REPLICAS", str(caught.exception))
        await self.send([b"1"], "u", acks="1", enable_idempotence="false")
        log = self.partition(2, "u").log
        self.assertEqual((log.logEndOffset, log.highWatermark), (1, 0))
        await self.cluster.startBroker(1)
        await self.until(lambda: log.highWatermark == 1)
        await self.send([b"2"], "u")
        found = await self.consumed("u", 2)
        self.assertEqual([each.value for each in found[0]], [b"1", b"2"])

    async def test_logStart(self) -> None:
        """Followers drop what the leader has dropped; one that was away begins where it begins."""
        await self.send([b"%d" % number for number in range(10)])
        await self.admin().deleteRecords({TopicPartition("t", 0): 4})
        await self.until(lambda: {self.log(each).logStartOffset for each in BROKERS} == {4})
        await self.cluster.stopBroker(3)
        await self.send([b"%d" % number for number in range(10, 20)])
        await self.admin().deleteRecords({TopicPartition("t", 0): 15})
        await self.cluster.startBroker(3)
        await self.inSync(1, 2, 3)
        await self.until(lambda: self.log(3).highWatermark == 20)
        self.assertEqual((self.log(3).logStartOffset, self.log(3).logEndOffset), (15, 20))

    async def test_lag(self) -> None:
        """A follower that fetches no more leaves the in-sync set, and joins it again."""
        hosted = self.partition(1)
        heard, hosted.onReplicaFetch = hosted.onReplicaFetch, lambda fetch: None
        sending = Deferred.fromCoroutine(self.send([b"1"]))
        await self.inSync(1)
        await sending
        hosted.onReplicaFetch = heard
        await self.inSync(1, 2, 3)

    async def test_brokenDisk(self) -> None:
        """When the log of the leader fails, another replica leads, and nothing is lost."""
        await self.send([b"1"])
        failing = self.log(1).segments[-1].file
        failing.openPinned()
        broken = failing.file

        def writeOrFail(file: Any, *what: Any) -> Any:
            if file is broken:
                raise StorageError(failing.path, "write", "the disk is broken", errno.EIO)
            return writeAll(file, *what)

        self.patch(partitionlog, "writeAll", writeOrFail)
        sending = Deferred.fromCoroutine(self.send([b"2"]))
        await self.until(lambda: self.partitionImage().leader in (2, 3))
        await sending
        found = await self.consumed("t", 2)
        self.assertEqual([each.value for each in found[0]], [b"1", b"2"])

    async def test_throttle(self) -> None:
        """
        A reassignment with a throttle copies no faster, while other topics go on; its end removes
        the throttle.
        """
        await self.admin().createTopics([NewTopic("u", replicas={0: (1,)})])
        await self.until(lambda: self.partition(1, "u"))
        await self.send([bytes(10_000)] * 20, "u", batch_size="20000")
        plan = b'{"partitions": [{"topic": "u", "partition": 0, "replicas": [2, 3]}]}'
        servers = self.cluster.addresses[1]
        words = ("partition", "reassign", "-", "--execute", "--throttle", "200000")
        startedAt = reactor.seconds()
        moving = deferToThread(performAtOnce, *words, "--bootstrap-server", servers, input=plan)
        await self.until(lambda: self.partition(2, "u"))
        await self.send([b"1"] * 10)
        outcome = await moving
        self.assertEqual(outcome.code, 0, outcome.errors)
        self.assertIn("the throttles are removed", outcome.errors)
        # Two copies of 200 kB go through one leader.
        self.assertGreater(reactor.seconds() - startedAt, 1)
        self.assertEqual(self.partitionImage("u").replicas, (2, 3))
        counters = {each: self.cluster.brokers[each].service.counters for each in BROKERS}
        self.assertGreater(counters[1].replication.leaderThrottledSize, 400_000)
        for broker in (2, 3):
            self.assertGreater(counters[broker].replication.followerThrottledSize, 200_000)
        await self.until(lambda: not self.throttles("u"))

    async def test_deleted(self) -> None:
        """A deleted topic is removed from all brokers, and one of its name begins anew."""
        await self.send([b"1"])
        await self.admin().deleteTopics(["t"])
        await self.until(lambda: not any(map(self.partition, BROKERS)))
        await self.create(1)
        await self.send([b"2"])
        found = await self.consumed("t", 1)
        self.assertEqual([each.value for each in found[0]], [b"2"])
