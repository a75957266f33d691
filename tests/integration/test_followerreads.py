"""Consumers in another rack than the leader, on three real brokers in three racks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import NewTopic
from pylogbroker.config.brokersettings import RACK_AWARE_SELECTOR
from pylogbroker.net.deferreds import closing
from pylogbroker.programs.localcluster import LocalCluster
from tests.integration.test_replication import CLIENT
from tests.integration.test_twistedclients import ClientCase

LEADER, FOLLOWER = 1, 2
RACKS = {LEADER: "a", FOLLOWER: "b", 3: "c"}
PROPERTIES = {
    "zk.sessiontimeout.ms": "1000",
    "default.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "replica.fetch.backoff.ms": "50",
    "replica.selector.class": RACK_AWARE_SELECTOR,
}
COUNT = 50
VALUE = bytes(1_000)
WAIT_SECONDS = 20


class _AbortedError(Exception):
    """A transaction is to be aborted."""


class FollowerReadTests(ClientCase):
    """The leader of C{t} is in rack a; the consumer, and a follower, are in rack b."""

    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        own = {number: {"broker.rack": rack} for number, rack in RACKS.items()}
        self.cluster = LocalCluster(reactor, self.mktemp(), len(RACKS), PROPERTIES, own=own)
        self.addCleanup(self.cluster.stop)
        await self.cluster.start()
        self.servers = ",".join(self.cluster.addresses.values())
        admin = AdminClient(reactor, {"bootstrap.servers": self.servers})
        async with closing(admin):
            await admin.createTopics([NewTopic("t", replicas={0: (LEADER, FOLLOWER, 3)})])

    def fetchedSize(self, broker: int) -> int:
        """Bytes of C{t} that a broker has sent to consumers."""
        service = self.cluster.brokers[broker].service
        size: int = service.counters.topic("t").fetchedSize
        return size

    async def until(self, isTrue: Callable[[], object]) -> None:
        while not isTrue():
            await deferLater(reactor, 0.02)

    async def send(self, number: int, isCommitted: bool) -> None:
        """A transaction of C{COUNT} messages."""
        producer = self.producer(linger_ms="0", transactional_id=f"x{number}", **CLIENT)
        try:
            async with producer.transaction():
                sent = [
                    producer.send("t", b"%d" % number + VALUE, partition=0) for _ in range(COUNT)
                ]
                for each in sent:
                    await each
                if not isCommitted:
                    raise _AbortedError
        except _AbortedError:
            pass
        await producer.close()

    async def readBy(self, isolation: str) -> tuple[list[int], Any]:
        """Begin to read with confluent-kafka, in a thread. Returns what it reads, and its end."""
        found: list[int] = []
        isEnding = threading.Event()

        def read() -> None:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": self.servers,
                    "client.rack": RACKS[FOLLOWER],
                    "group.id": "g",
                    "isolation.level": isolation,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                    "log_level": 0,
                    "topic.metadata.refresh.interval.ms": 1_000,
                }
            )
            consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
            while not isEnding.is_set():
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    found.append(int((message.value() or b"")[: -len(VALUE)]))
            consumer.close()

        reading = deferToThread(read)

        def end() -> Deferred[None]:
            isEnding.set()
            return reading

        self.addCleanup(end)
        return found, end

    async def test_clients(self) -> None:
        """
        A follower in the consumer's rack serves confluent-kafka, committed records only if it wants
        that, and our consumer; when the follower is gone, the leader does.
        """
        await self.send(1, isCommitted=True)
        await self.send(2, isCommitted=False)
        committed, _end = await self.readBy("read_committed")
        await self.until(lambda: len(committed) == COUNT)
        await self.send(3, isCommitted=True)
        await self.until(lambda: len(committed) == 2 * COUNT)
        self.assertEqual(committed, [1] * COUNT + [3] * COUNT)
        self.assertEqual(self.fetchedSize(LEADER), 0)
        self.assertGreater(self.fetchedSize(FOLLOWER), 3 * COUNT * len(VALUE))

        everything, end = await self.readBy("read_uncommitted")
        await self.until(lambda: len(everything) == 3 * COUNT)
        await end()
        before = self.fetchedSize(FOLLOWER)
        rack = RACKS[FOLLOWER]
        ours = await self.consumed(
            "t", 2 * COUNT, client_rack=rack, isolation_level="read_committed"
        )
        self.assertEqual([int((each.value or b"")[: -len(VALUE)]) for each in ours[0]], committed)
        self.assertGreater(self.fetchedSize(FOLLOWER) - before, 3 * COUNT * len(VALUE))
        self.assertEqual(self.fetchedSize(LEADER), 0)

        await self.cluster.stopBroker(FOLLOWER)
        await self.send(4, isCommitted=True)
        await self.until(lambda: len(committed) == 3 * COUNT)
        self.assertEqual(committed[2 * COUNT :], [4] * COUNT)
        self.assertGreater(self.fetchedSize(LEADER), COUNT * len(VALUE))
