"""
Tests for L{pylogbroker.mirror.kafkatarget}: mirrors of 2011's clusters into brokers of today.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred

from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import MessageTooLargeError, TimedOutError
from pylogbroker.mirror.kafkatarget import KafkaTargetCluster
from pylogbroker.mirror.offsetsyncs import readTables, translate
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import BrokerPartition, PartitionId, TopicPartition
from tests.mirror.clusters import MirrorCase, reactor
from tests.mirror.test_service import payloads

OFFSETS = "/consumers/mirrors/offsets"
ENTRY_SIZE = 17
"""Bytes of a message of L{payloads} with a name of one letter, in the log of 2011."""


class KafkaTargetCase(MirrorCase):
    """A source of 2011, and a target of today with three partitions for each topic."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.source = self.cluster("source")
        await self.source.start()
        self.target = await self.broker()

    async def broker(self, **properties: str) -> LocalBroker:
        named = {key.replace("_", "."): value for key, value in properties.items()}
        broker = LocalBroker(reactor, {"num.partitions": "3", **named})
        await broker.start()
        self.addCleanup(broker.stop)
        return broker

    async def read(
        self, topic: str, count: int, offsets: dict[int, int] | None = None
    ) -> dict[int, list[bytes | None]]:
        """So many values of a topic by partition, from offsets on; none has key or headers."""
        consumer = KafkaConsumer(
            reactor,
            {
                "bootstrap.servers": self.target.bootstrapServers,
                "auto.offset.reset": "earliest",
                "consumer.timeout.ms": "20000",
            },
        )
        self.addCleanup(consumer.close)
        found: dict[int, list[bytes | None]] = {}
        consumer.assign(await consumer.partitionsFor(topic))
        for number, offset in (offsets or {}).items():
            consumer.seek(TopicPartition(topic, number), offset)
        async for batch in consumer.batches():
            for record in batch:
                self.assertEqual((record.key, record.headers), (None, ()))
                found.setdefault(record.partition, []).append(record.value)
            count -= len(batch)
            if count <= 0:
                break
        await consumer.close()
        return found


class MirrorToTodayTests(KafkaTargetCase):
    """What arrives."""

    async def test_mirrors(self) -> None:
        """
        Payloads become values; each source partition keeps its order in one target partition;
        positions are committed behind what the target has; a next mirror repeats nothing.
        """
        await self.source.produce("t1", "0-0", payloads("a", 700))
        await self.source.produce("t1", "0-1", payloads("b", 300), codec=1)
        first = self.mirror([self.source], self.target, producerCount=2)
        first.startService()
        await self.until(lambda: first.counters.confirmedCount == 1000)
        await self.until(
            lambda: self.source.node(f"{OFFSETS}/t1/0-0") == b"%d" % (700 * ENTRY_SIZE)
        )
        await first.stopService()
        await self.source.produce("t1", "0-0", payloads("a", 50, 700))
        second = self.mirror([self.source], self.target)
        second.startService()
        await self.until(lambda: second.counters.confirmedCount == 50)
        await second.stopService()
        found = await self.read("t1", 1050)
        self.assertEqual(sorted(found.values()), [payloads("a", 750), payloads("b", 300)])
        self.assertIn("127.0.0.1", repr(first.target))

    async def test_lostAnswers(self) -> None:
        """Connections cut behind a produce request lose nothing, and store nothing twice."""
        self.target.injectDisconnect("Produce", count=2, isHandled=True)
        await self.source.produce("t", "0-0", payloads("a", 2000))
        mirror = self.mirror([self.source], self.target, producer={"retry.backoff.ms": "1"})
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 2000)
        await mirror.stopService()
        self.assertEqual(list((await self.read("t", 2000)).values()), [payloads("a", 2000)])

    async def test_fatal(self) -> None:
        """A mirror goes on by itself when the target refuses its producer, and then no more."""
        self.target.injectError("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED")
        await self.source.produce("t", "0-0", payloads("a", 500))
        mirror = self.mirror([self.source], self.target)
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 500)
        await mirror.stopService()
        self.assertGreater(mirror.counters.retriedCount, 0)
        self.assertEqual(list((await self.read("t", 500)).values()), [payloads("a", 500)])

    async def test_movedGroup(self) -> None:
        """
        A group of the source goes on in the target at a translated position: it misses nothing, and
        reads again no more than what was mirrored since the sync before.
        """
        for start in range(0, 1000, 100):
            await self.source.produce("t", "0-0", payloads("a", 100, start))
        mirror = self.mirror([self.source], self.target)
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 1000)
        source = PartitionId("t", BrokerPartition(0, 0))
        end = 1000 * ENTRY_SIZE
        client = self.source.client()
        await client.connect(5000)
        self.addCleanup(client.close)
        tables = await readTables(client, "mirrors", ["t"])
        while (
            not tables
            or tables[source].lookUp(end) in (None, {})
            or (tables[source].entries[-1][0] != end)
        ):
            await mirror.sources[0].record()
            tables = await readTables(client, "mirrors", ["t"])
        await self.source.produce("t", "0-0", payloads("a", 70, 1000))
        await self.until(lambda: mirror.counters.confirmedCount == 1070)
        await mirror.stopService()
        tables = await readTables(client, "mirrors", ["t"])
        for readCount, repeatedMax in ((1070, 70), (1030, 30), (1000, 0)):
            moved = translate({source: readCount * ENTRY_SIZE}, tables, {})
            ((target, offset),) = (
                (place.partition.partition, at)
                for place, at in moved.items()
                if tables[source].fixedTarget == place.partition
            )
            self.assertTrue(readCount - repeatedMax <= offset <= readCount, (readCount, offset))
            found = await self.read("t", 1070 - offset, {target: offset}) if offset < 1070 else {}
            self.assertEqual(found.get(target, []), payloads("a", 1070 - offset, offset), readCount)


class KafkaTargetTests(KafkaTargetCase):
    """The target alone."""

    async def connected(self, broker: LocalBroker, **changes: str) -> KafkaTargetCluster:
        properties = {key.replace("_", "."): value for key, value in changes.items()}
        settings = KafkaProducerSettings.fromProperties(
            {"bootstrap.servers": broker.bootstrapServers, **properties}
        )
        target = KafkaTargetCluster(reactor, settings)
        await target.connect()
        self.addCleanup(target.close)
        return target

    async def test_tooLarge(self) -> None:
        """A message that the broker refuses for its size fails as one that we refuse."""
        broker = await self.broker(message_max_bytes="1000")
        target = await self.connected(broker)
        place = (await target.ensureTopic("t"))[0]
        await self.assertFailure(target.send("t", [b"x" * 5000], place), MessageTooLargeError)
        await self.assertFailure(target.send("t", [b"x" * 5000000], place), MessageTooLargeError)
        await target.send("t", [b"x"], place)

    async def test_ends(self) -> None:
        """Where the partitions end, and when the broker is gone, where they did."""
        target = await self.connected(self.target)
        places = await target.ensureTopic("t")
        self.assertEqual(places, [BrokerPartition(0, number) for number in range(3)])
        await target.send("t", [b"a", b"b"], places[1])
        ends = {places[0]: 0, places[1]: 2, places[2]: 0}
        self.assertEqual(await target.ends(["t"]), {"t": ends})
        self.patch(target._consumer._questions, "_timeoutMs", 200)  # type: ignore[union-attr]
        await self.target.stop()
        self.assertEqual(await target.ends(["t"]), {"t": ends})

    async def test_noTopic(self) -> None:
        """A topic that the broker does not create cannot be found out."""
        broker = await self.broker(auto_create_topics_enable="false")
        target = await self.connected(broker, max_block_ms="200")
        await self.assertFailure(Deferred.fromCoroutine(target.ensureTopic("t")), TimedOutError)
