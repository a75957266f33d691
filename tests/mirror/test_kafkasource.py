"""
Tests for L{pylogbroker.mirror.kafkasource} and L{pylogbroker.mirror.kafkaoffsetsyncs}: mirrors of
clusters of today.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.kafka.admin.client import (
    AdminClient,
    AlterConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceKind,
    checkAll,
)
from pylogbroker.cluster.subscription import WildcardSubscription, whitelist
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import FormatError
from pylogbroker.mirror.checkpoints import (
    Checkpoint,
    OffsetSync,
    applyCheckpoint,
    checkpointsTopic,
    decodeCheckpoint,
    decodeOffsetSync,
    offsetSyncsTopic,
    readCheckpoints,
)
from pylogbroker.mirror.offsetsyncs import OffsetSyncTable, readTables, translate
from pylogbroker.mirror.service import MirrorService, MirrorSettings
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import BrokerPartition, PartitionId, TopicPartition
from tests.mirror.clusters import Cluster, MirrorCase, reactor
from tests.mirror.test_service import payloads

HEADERS = (("trace", b"\x00\x01"), ("empty", None))


class KafkaSourceCase(MirrorCase):
    """A source and a target of today."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.source = await self.broker(group_min_session_timeout_ms="500")
        self.target = await self.broker()

    async def broker(self, **properties: str) -> LocalBroker:
        named = {key.replace("_", "."): value for key, value in properties.items()}
        broker = LocalBroker(reactor, {"num.partitions": "2", **named})
        await broker.start()
        self.addCleanup(broker.stop)
        return broker

    def admin(self, broker: LocalBroker) -> AdminClient:
        admin = AdminClient(reactor, {"bootstrap.servers": broker.bootstrapServers})
        self.addCleanup(admin.close)
        return admin

    def producer(self, broker: LocalBroker, **properties: str) -> KafkaProducer:
        named = {key.replace("_", "."): value for key, value in properties.items()}
        producer = KafkaProducer(reactor, {"bootstrap.servers": broker.bootstrapServers, **named})
        self.addCleanup(producer.close)
        return producer

    async def send(self, topic: str, values: list[bytes], partition: int = 0) -> None:
        """To the source, one batch for each call."""
        producer = self.producer(self.source)
        waiting = [producer.send(topic, value, b"k", partition=partition) for value in values]
        for each in waiting:
            await each
        await producer.close()

    def todayMirror(
        self,
        target: LocalBroker | Cluster | None = None,
        topics: WildcardSubscription | None = None,
        producer: Mapping[str, str] | None = None,
        streamCount: int = 1,
        **consumer: str,
    ) -> MirrorService:
        """A mirror of the source, not started."""
        named = {key.replace("_", "."): value for key, value in consumer.items()}
        into = self.target if target is None else target
        settings = MirrorSettings.fromProperties(
            [
                {
                    "bootstrap.servers": self.source.bootstrapServers,
                    "group.id": "mirrors",
                    "auto.commit.interval.ms": "50",
                    "metadata.max.age.ms": "200",
                    "heartbeat.interval.ms": "100",
                    "retry.backoff.ms": "10",
                    **named,
                }
            ],
            {
                **(
                    {"zk.connect": into.name}
                    if isinstance(into, Cluster)
                    else {"bootstrap.servers": into.bootstrapServers}
                ),
                "close.timeout.ms": "5000",
                **(producer or {}),
            },
            topics or whitelist("t.*"),
            self.fail,
            streamCount=streamCount,
        )
        service = MirrorService(
            reactor,
            settings,
            targetZookeeper=into.client if isinstance(into, Cluster) else None,
        )
        self.addCleanup(self.end, service)
        return service

    async def read(
        self, broker: LocalBroker, topic: str, offsets: Mapping[int, int] | None = None
    ) -> dict[int, list[ConsumerRecord]]:
        """The messages of a topic by partition, from offsets on to the end."""
        consumer = KafkaConsumer(
            reactor,
            {
                "bootstrap.servers": broker.bootstrapServers,
                "auto.offset.reset": "earliest",
                "consumer.timeout.ms": "20000",
            },
        )
        self.addCleanup(consumer.close)
        places = await consumer.partitionsFor(topic)
        ends = await consumer.endOffsets(places)
        consumer.assign({place: (offsets or {}).get(place.partition, 0) for place in places})
        found: dict[int, list[ConsumerRecord]] = {}
        while any(consumer.positions.get(place, 0) < ends[place] for place in places):
            records = consumer.takeMany()
            for record in records:
                found.setdefault(record.partition, []).append(record)
            if not records:
                await consumer.wait()
        await consumer.close()
        return found

    async def values(self, topic: str) -> dict[int, list[bytes | None]]:
        found = await self.read(self.target, topic)
        return {number: [each.value for each in records] for number, records in found.items()}


class MirrorOfTodayTests(KafkaSourceCase):
    """What arrives in a target of today, and when it is committed."""

    async def test_mirrors(self) -> None:
        """
        Keys, values, headers and timestamps arrive in the partition of the same number; a tombstone
        is one. The topic has the source's partitions and settings. What is committed is not
        mirrored again.
        """
        source = self.admin(self.source)
        configs = {"cleanup.policy": "compact", "max.message.bytes": "3000000"}
        checkAll(await source.createTopics([NewTopic("t", 3, configs=configs)]))
        producer = self.producer(self.source)
        sent = []
        for number in range(600):
            value = None if number % 50 == 7 else b"v%d" % number
            key, place, time = b"k%d" % (number % 9), number % 3, 1_600_000_000_000 + number
            headers = HEADERS if number % 2 else ()
            sent.append((place, key, value, headers, time))
            await producer.whenReady()
            producer.send("t", value, key, headers, time, place)
        await producer.flush()
        first = self.todayMirror()
        first.startService()
        await self.until(lambda: first.counters.confirmedCount == 600)
        await first.stopService()
        await producer.send("t", b"last", b"k", partition=0)
        second = self.todayMirror()
        second.startService()
        await self.until(lambda: second.counters.confirmedCount == 1)
        await second.stopService()
        found = await self.read(self.target, "t")
        for place in range(3):
            wanted = [each[1:] for each in sent if each[0] == place]
            got = [
                (each.key, each.value, tuple(each.headers), each.timestamp)
                for each in found[place]
                if each.value != b"last"
            ]
            self.assertEqual(got, wanted)
        self.assertEqual(found[0][-1].value, b"last")
        resource = ConfigResource(ResourceKind.TOPIC, "t")
        known = checkAll(await self.admin(self.target).describeConfigs([resource]))[resource]
        self.assertEqual({name: known[name].value for name in configs}, configs)
        self.assertIn("127.0.0.1", repr(first.sources[0]))

    async def test_members(self) -> None:
        """Two mirrors share the partitions; one stops, and nothing is missing or repeated."""
        checkAll(await self.admin(self.source).createTopics([NewTopic("t", 4)]))
        for place in range(4):
            await self.send("t", payloads("a", 300), place)
        first, second = self.todayMirror(streamCount=2), self.todayMirror()
        first.startService()
        second.startService()
        mirrors = (first, second)
        await self.until(lambda: all(each.isOwning for one in mirrors for each in one.sources))
        joined = [
            sample.value
            for family in first.metricFamilies()
            if family.name == "pylogbroker_mirror_source_joined"
            for sample in family.samples
        ]
        self.assertEqual(joined, [True])
        await self.until(lambda: sum(each.counters.confirmedCount for each in mirrors) >= 1200)
        await first.stopService()
        for place in range(4):
            await self.send("t", payloads("a", 100, 300), place)
        await self.until(lambda: sum(each.counters.confirmedCount for each in mirrors) >= 1600)
        await second.stopService()
        wanted = dict.fromkeys(range(4), payloads("a", 400))
        self.assertEqual(await self.values("t"), wanted)

    async def test_newTopics(self) -> None:
        """Topics that appear later, and partitions that are added, are mirrored; others are not."""
        await self.send("t1", payloads("a", 10))
        mirror = self.todayMirror(topics=whitelist("t.*|mm2.*"))
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 10)
        await self.send("t2", payloads("b", 10))
        await self.send("u", payloads("c", 10))
        checkAll(await self.admin(self.source).createPartitions({"t1": 4}))
        await self.send("t1", payloads("d", 10), 3)
        await self.until(lambda: mirror.counters.confirmedCount == 30)
        await mirror.stopService()
        self.assertEqual(await self.values("t1"), {0: payloads("a", 10), 3: payloads("d", 10)})
        self.assertEqual(await self.values("t2"), {0: payloads("b", 10)})
        names = await self.admin(self.target).listTopics()
        self.assertEqual([name for name in names if name.startswith(("u", "mm2"))], [])

    async def test_slowTarget(self) -> None:
        """
        A mirror whose target has no room stays in its group for longer than
        C{max.poll.interval.ms}, and repeats nothing.
        """
        await self.send("t", payloads("a", 3000))
        self.target.injectDelay("Produce", 3000)
        mirror = self.todayMirror(
            producer={"queue.size": "100"},
            max_poll_interval_ms="2000",
            session_timeout_ms="6000",
        )
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 3000)
        await mirror.stopService()
        self.assertEqual(await self.values("t"), {0: payloads("a", 3000)})

    async def test_faults(self) -> None:
        """Lost connections and refusals at either end lose nothing; order is kept."""
        await self.send("t", payloads("a", 1500))
        for broker, name in (
            (self.target, "CreateTopics"),
            (self.source, "DescribeConfigs"),
            (self.source, "OffsetCommit"),
            (self.source, "Fetch"),
            (self.target, "Produce"),
        ):
            broker.injectDisconnect(name, count=1)
        self.source.injectError("OffsetCommit", "REBALANCE_IN_PROGRESS")
        self.target.injectError("Produce", "NOT_LEADER_OR_FOLLOWER")
        mirror = self.todayMirror()
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount >= 1500)
        await mirror.stopService()
        found = (await self.values("t"))[0]
        self.assertEqual(list(dict.fromkeys(found)), payloads("a", 1500))

    async def test_lostMembership(self) -> None:
        """
        A mirror that its group has forgotten, before anything was committed, mirrors nothing again:
        neither what was confirmed nor what was in flight then.
        """
        await self.send("t", payloads("a", 1000))
        mirror = self.todayMirror(auto_commit_interval_ms="600000", session_timeout_ms="600")
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 1000)
        self.target.injectDelay("Produce", 1500, count=1)
        await self.send("t", payloads("b", 100))
        self.source.injectError("Heartbeat", "UNKNOWN_MEMBER_ID", count=1)
        (source,) = mirror.sources
        await self.until(lambda: not source.isOwning)
        await self.until(lambda: source.isOwning)
        await self.send("t", payloads("c", 100))
        await self.until(lambda: mirror.counters.confirmedCount >= 1200)
        await mirror.stopService()
        wanted = [*payloads("a", 1000), *payloads("b", 100), *payloads("c", 100)]
        self.assertEqual(await self.values("t"), {0: wanted})

    async def test_lostAndMadeAgain(self) -> None:
        """
        What was confirmed of a topic says nothing about another one of its name: a topic that was
        created again while the group had forgotten the mirror is mirrored from its first message.
        """
        admin = self.admin(self.source)
        await self.send("t", payloads("a", 100))
        mirror = self.todayMirror(auto_commit_interval_ms="600000", session_timeout_ms="600")
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 100)
        self.source.injectError("Heartbeat", "UNKNOWN_MEMBER_ID", count=1)
        self.source.injectDelay("OffsetFetch", 1_000, count=1)
        (source,) = mirror.sources
        await self.until(lambda: not source.isOwning)
        checkAll(await admin.deleteTopics(["t"]))
        await self.send("t", payloads("b", 300))
        await self.until(lambda: mirror.counters.confirmedCount >= 400)
        await mirror.stopService()
        self.assertEqual(await self.values("t"), {0: [*payloads("a", 100), *payloads("b", 300)]})

    async def test_stuck(self) -> None:
        """
        A message that the target refuses is named; those before it arrive, and all others once it
        is accepted. Some that were in flight with it arrive earlier, and again.
        """
        await self.send("t", [*payloads("a", 20), b"x" * 5000, *payloads("b", 20)])
        admin = self.admin(self.target)
        small = {"max.message.bytes": "2000"}
        checkAll(await admin.createTopics([NewTopic("t", 2, configs=small)]))
        mirror = self.todayMirror()
        mirror.startService()
        await self.until(lambda: mirror.counters.stuck)
        (stuck,) = mirror.counters.stuck.values()
        self.assertEqual((stuck.offset, stuck.labels["group"]), (20, "mirrors"))
        resource = ConfigResource(ResourceKind.TOPIC, "t")
        change = {resource: {"max.message.bytes": (AlterConfigOperation.SET, "100000")}}
        checkAll(await admin.incrementalAlterConfigs(change))
        await self.until(lambda: mirror.counters.confirmedCount == 41)
        await mirror.stopService()
        found = (await self.values("t"))[0]
        self.assertEqual(list(dict.fromkeys(found))[:20], payloads("a", 20))
        self.assertEqual({*found}, {*payloads("a", 20), b"x" * 5000, *payloads("b", 20)})

    async def test_aborted(self) -> None:
        """Messages of aborted transactions are not mirrored; positions go behind them."""
        producer = self.producer(self.source, transactional_id="x")
        async with producer.transaction():
            producer.send("t", b"good", partition=0)
        try:
            async with producer.transaction():
                await producer.send("t", b"bad", partition=0)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        await self.send("t", [b"last"])
        mirror = self.todayMirror()
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 2)
        await mirror.stopService()
        self.assertEqual(await self.values("t"), {0: [b"good", b"last"]})


class PositionTests(KafkaSourceCase):
    """Groups move to the other cluster."""

    async def commit(self, broker: LocalBroker, group: str, offsets: dict[int, int]) -> None:
        places = {TopicPartition("t", number): offset for number, offset in offsets.items()}
        checkAll(await self.admin(broker).alterConsumerGroupOffsets(group, places))

    async def test_movedGroup(self) -> None:
        """
        A group's translated position is at or before the true one, and behind the sync before it:
        it misses nothing, and reads again no more than that. The target's offsets differ from the
        source's. A group that is at the first message is translated, too.
        """
        target = self.admin(self.target)
        checkAll(await target.createTopics([NewTopic("t", 2)]))
        producer = self.producer(self.target)
        for _number in range(37):  # so that offsets differ
            await producer.send("t", b"before", partition=0)
        mirror = self.todayMirror(sync_group_offsets_enabled="true")
        for start in range(0, 1000, 100):
            await self.send("t", payloads("a", 100, start))
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 1000)
        (source,) = mirror.sources
        await source.record()
        await self.send("t", payloads("a", 70, 1000))
        await self.until(lambda: mirror.counters.confirmedCount == 1070)
        await source.record()
        # The newest sync and the first one are exact.
        groups = {"near": 1070, "middle": 1030, "begin": 0, "console-consumer-1": 1030}
        for group, position in groups.items():
            await self.commit(self.source, group, {0: position})
        await self.commit(self.target, "middle", {0: 2000})  # it is further already
        await source.checkpoint()  # type: ignore[union-attr]
        properties = {"bootstrap.servers": self.target.bootstrapServers}
        near = await readCheckpoints(reactor, properties, "near")
        self.assertEqual(near, {TopicPartition("t", 0): 1107})
        middle = await readCheckpoints(reactor, properties, "middle")
        offset = middle[TopicPartition("t", 0)]
        self.assertTrue(1037 <= offset <= 1067, offset)
        found = (await self.read(self.target, "t", {0: offset}))[0]
        self.assertEqual([each.value for each in found], payloads("a", 1107 - offset, offset - 37))
        self.assertEqual(await readCheckpoints(reactor, properties, "console-consumer-1"), {})
        for group, wanted in (("near", 1107), ("middle", 2000), ("begin", 37)):
            committed = await target.listConsumerGroupOffsets(group)
            self.assertEqual(committed[TopicPartition("t", 0)].offset, wanted)
        # A position that has not changed is not written again.
        before = len((await self.read(self.target, checkpointsTopic("source")))[0])
        await source.checkpoint()  # type: ignore[union-attr]
        after = (await self.read(self.target, checkpointsTopic("source")))[0]
        self.assertEqual((len(after), before), (3, 3))
        await mirror.stopService()

    async def test_successor(self) -> None:
        """A mirror translates by its predecessor's syncs; damaged ones are left out."""
        await self.send("t", payloads("a", 100))
        first = self.todayMirror()
        first.startService()
        await self.until(lambda: first.counters.confirmedCount == 100)
        await first.stopService()
        producer = self.producer(self.source)
        await producer.send(offsetSyncsTopic("target"), b"?", b"?", partition=0)
        await self.commit(self.source, "g", {0: 100})
        self.source.injectDelay("OffsetFetch", 300)  # its generation comes first, then partitions
        second = self.todayMirror()
        second.startService()
        (source,) = second.sources
        await self.until(lambda: source.isOwning)
        await source.checkpoint()  # type: ignore[union-attr]
        properties = {"bootstrap.servers": self.target.bootstrapServers}
        found = await readCheckpoints(reactor, properties, "g")
        self.assertEqual(found, {TopicPartition("t", 0): 100})
        await second.stopService()

    async def test_format(self) -> None:
        """The topics hold MirrorMaker 2's records, byte for byte."""
        await self.send("t", payloads("a", 3), 1)
        mirror = self.todayMirror(source_cluster_alias="A", target_cluster_alias="B")
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 3)
        await mirror.sources[0].record()
        await self.commit(self.source, "g", {1: 3})
        await mirror.sources[0].checkpoint()  # type: ignore[union-attr]
        await mirror.stopService()
        first, sync = (await self.read(self.source, "mm2-offset-syncs.B.internal"))[0]
        self.assertEqual((first.key, first.value), (b"\0\1t\0\0\0\1", b"\0" * 16))
        self.assertEqual(sync.key, b"\0\1t\0\0\0\1")
        self.assertEqual(sync.value, b"\0" * 7 + b"\2" + b"\0" * 7 + b"\2")
        place = TopicPartition("t", 1)
        self.assertEqual(decodeOffsetSync(sync), OffsetSync(place, 2, 2))
        (checkpoint,) = (await self.read(self.target, "A.checkpoints.internal"))[0]
        self.assertEqual(checkpoint.key, b"\0\1g\0\1t\0\0\0\1")
        self.assertEqual(
            checkpoint.value, b"\0\0" + b"\0" * 7 + b"\3" + b"\0" * 7 + b"\3" + b"\0\0"
        )
        self.assertEqual(decodeCheckpoint(checkpoint), Checkpoint("g", place, 3, 3))


class RecordTests(SynchronousTestCase):
    """L{pylogbroker.mirror.checkpoints}"""

    def test_mirrorMaker2(self) -> None:
        """What MirrorMaker 2 of Apache Kafka 4.3.1 has written is read, and written alike."""
        place = TopicPartition("numbers", 1)
        for written, read, decode in (
            (
                (b"\0\7numbers\0\0\0\1", b"\0" * 7 + b"\xca" + b"\0" * 7 + b"\xca"),
                OffsetSync(place, 202, 202),
                decodeOffsetSync,
            ),
            (
                (
                    b"\0\7readers\0\7numbers\0\0\0\1",
                    b"\0\0" + b"\0" * 6 + b"\2X" + b"\0" * 6 + b"\1\x95" + b"\0\0",
                ),
                Checkpoint("readers", place, 600, 405),
                decodeCheckpoint,
            ),
        ):
            record = ConsumerRecord("x", 0, 0, 0, *written, (), 0, 0)
            self.assertEqual(decode(record), read)
            self.assertEqual(read.encode(), written)

    def test_tombstone(self) -> None:
        """A tombstone removes the position of its key; one with a damaged key changes nothing."""
        place, other = TopicPartition("t", 0), TopicPartition("t", 1)
        positions = {place: 3, other: 4}
        for group, key, expected in (
            ("h", Checkpoint("g", place, 3, 3).encode()[0], {place: 3, other: 4}),
            ("g", Checkpoint("g", place, 3, 3).encode()[0], {other: 4}),
        ):
            record = ConsumerRecord("x", 0, 0, 0, key, None, (), 0, 0)
            applyCheckpoint(record, group, positions)
            self.assertEqual(positions, expected)
        damaged = ConsumerRecord("x", 0, 7, 0, b"\0\1g\0\1t", None, (), 0, 0)
        error = self.assertRaises(FormatError, applyCheckpoint, damaged, "g", positions)
        self.assertIn("x-0 at offset 7: it is no checkpoint", str(error))
        self.assertEqual(positions, {other: 4})


class MirrorInto2011Tests(KafkaSourceCase):
    """Back to a cluster of 2011."""

    async def test_mirrors(self) -> None:
        """
        Values become payloads, a tombstone an empty one; order is kept; a group moves with a
        translated position.
        """
        cluster = self.cluster("old")
        await cluster.start()
        await self.send("t", payloads("a", 500))
        mirror = self.todayMirror(cluster)
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 500)
        client: Any = cluster.client()
        await client.connect(5000)
        self.addCleanup(client.close)
        source = PartitionId("t", BrokerPartition(0, 0))
        tables: dict[PartitionId, OffsetSyncTable] = {}
        while not tables or not tables[source].lookUp(500):
            await mirror.sources[0].record()  # behind the confirmation, so that it is exact
            tables = await readTables(client, "mirrors", ["t"])
        producer = self.producer(self.source)
        await producer.send("t", None, b"k", partition=0)
        await self.send("t", payloads("b", 20))
        await self.until(lambda: mirror.counters.confirmedCount == 521)
        await mirror.stopService()
        wanted = [*payloads("a", 500), b"", *payloads("b", 20)]
        self.assertEqual(list((await cluster.read("t")).values()), [wanted])
        for position in (500, 510):
            moved = translate({source: position}, tables, {})
            offsets = {target.partition: offset for target, offset in moved.items()}
            (rest,) = (await cluster.read("t", offsets)).values()
            self.assertEqual(rest, wanted[500:])
