"""
Tests for the log spout and the log bolt on a cluster of 2011: a broker and ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.errors import MessageTooLargeError
from pylogbroker.records.compression import GZIP
from pylogbroker.syncclient.clustermetadata import ZookeeperMetadata
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.localzookeeper import LocalZookeeper
from pylogbroker.topologies.log import LogBolt, LogSpout, kafka07log
from pylogbroker.types import BrokerPartition
from tests.topologies.log.logcase import Harness, Values, feed, tupleOf

P0, P1 = BrokerPartition(0, 0), BrokerPartition(0, 1)


class Kafka07LogCase(TestCase):
    """
    Has a broker, registered in ZooKeeper, with two partitions of each topic. What blocks runs in a
    thread, since both serve in this one.
    """

    async def setUp(self) -> None:  # type: ignore[override]
        self.zookeeper = LocalZookeeper(reactor)
        self.addCleanup(self.zookeeper.stop)
        await self.zookeeper.start()
        self.broker = self.makeBroker()
        await self.broker.start()
        self.addCleanup(lambda: self.broker.stop())
        self.port = self.broker.port

    def makeBroker(self, **more: str) -> LocalBroker:
        return LocalBroker(
            reactor,
            {
                "enable.zookeeper": "true",
                "zk.connect": self.zookeeper.servers,
                "num.partitions": "2",
                **{key.replace("_", "."): value for key, value in more.items()},
            },
        )

    def config(self, **more: Any) -> dict[str, Any]:
        """A configuration; C{_} stands for a dot."""
        return {
            "topology.reliability.mode": "ATLEAST_ONCE",
            "zk.connect": self.zookeeper.servers,
            "fetch.max.wait.ms": 10,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def send(self, partition: int, *payloads: bytes, codec: int = 0) -> None:
        """A message set for C{clicks}; then ZooKeeper has its partitions."""
        with SyncProducer("127.0.0.1", self.port) as producer:
            producer.send("clicks", partition, payloads, codec=codec)
            producer.confirm("clicks", partition)
        with ZookeeperMetadata(self.zookeeper.servers) as metadata:
            while len(metadata.partitions("clicks")) < 2:  # the broker registers them behind
                pass

    def committed(self, partition: BrokerPartition, group: str = "topology-of-test") -> int | None:
        """The position of a group."""
        with ZookeeperMetadata(self.zookeeper.servers) as metadata:
            return metadata.number(GroupPaths(group).offset("clicks", partition))

    def spout(self, harness: Harness, **more: Any) -> Values:
        """A spout that emits values."""
        return harness.start(Values("clicks"), self.config(**more))


def blocking(test: Callable[[Any], None]) -> Callable[[Any], Any]:
    """Run a test in a thread."""

    def run(self: Any) -> Any:
        return deferToThread(test, self)

    run.__doc__, run.__name__ = test.__doc__, test.__name__
    return run


class LogSpoutOf2011Tests(Kafka07LogCase):
    """L{LogSpout} on a cluster of 2011."""

    @blocking
    def test_positionStaysBeforeGap(self) -> None:
        """Positions are those of the group in ZooKeeper, behind acknowledged tuples only."""
        self.send(0, b"a", b"b", b"c")
        self.send(1, b"d")
        harness = Harness()
        spout = self.spout(harness)
        emitted = harness.takeFrom(spout, 4)
        self.assertEqual(sorted(values[0] for values, _id in emitted), [b"a", b"b", b"c", b"d"])
        for values, tupleId in emitted:
            if values != [b"b"]:
                spout.ack(tupleId)
        spout.close()
        self.assertEqual(self.committed(P0), 11)  # behind a: ten bytes of head, one of payload
        again = Harness()
        successor = self.spout(again)
        self.assertEqual(again.valuesFrom(successor, 2), [b"b", b"c"])
        successor.close()

    @blocking
    def test_fields(self) -> None:
        """A tuple has what is known of a message; of a partition, broker and number."""
        self.send(1, b"v")
        harness = Harness()
        spout = harness.start(LogSpout("clicks"), self.config())
        self.assertEqual(harness.takeFrom(spout, 1)[0][0], ["clicks", "0-1", 0, None, b"v", -1])
        spout.close()

    @blocking
    def test_instancesDividePartitions(self) -> None:
        """An instance has the partitions whose broker and number, added, are its index."""
        self.send(0, b"a")
        self.send(1, b"b")
        for index, value in enumerate([b"a", b"b"]):
            harness = Harness()
            spout = harness.start(Values("clicks"), self.config(), index, 2)
            self.assertEqual(harness.valuesFrom(spout, 1), [value])
            spout.close()

    @blocking
    def test_compressedSet(self) -> None:
        """A compressed set is read whole, and again whole until all of it is acknowledged."""
        self.send(0, b"a", b"b", codec=GZIP)
        self.send(0, b"c")
        harness = Harness()
        spout = self.spout(harness)
        emitted = harness.takeFrom(spout, 3)
        spout.ack(emitted[0][1])
        spout.close()
        self.assertEqual(self.committed(P0), 0)
        again = Harness()
        successor = self.spout(again)
        emitted = again.takeFrom(successor, 3)
        self.assertEqual([values[0] for values, _id in emitted], [b"a", b"b", b"c"])
        for _values, tupleId in emitted:
            successor.ack(tupleId)
        successor.close()
        with SimpleConsumer("127.0.0.1", self.port) as consumer:
            [end] = consumer.getOffsetsBefore("clicks", 0, -1, 1)
        self.assertEqual(self.committed(P0), end)

    @blocking
    def test_largeEntry(self) -> None:
        """An entry that is larger than a fetch is fetched whole."""
        self.send(0, b"x" * 10_000, b"y")
        harness = Harness()
        spout = self.spout(harness, max_partition_fetch_bytes=100)
        self.assertEqual(harness.valuesFrom(spout, 2), [b"x" * 10_000, b"y"])
        spout.close()

    @blocking
    def test_damagedSize(self) -> None:
        """An entry that is too large for all fetches is an error that names its place."""
        self.send(0, b"x" * 10_000)
        self.patch(kafka07log, "FETCH_SIZE_MAX", 5_000)
        spout = self.spout(Harness(), max_partition_fetch_bytes=100)
        error = self.assertRaises(MessageTooLargeError, spout.nextTuple)
        self.assertIn("clicks/0-0: the entry at offset 0 has 10010 bytes", str(error))
        spout.close()

    @blocking
    def test_starts(self) -> None:
        """The end, the beginning, and segments by bytes before the end, or by time."""
        self.send(0, b"old")
        for group, (reset, value) in enumerate(
            [
                ("earliest", b"old"),
                ("by_lag:1", b"old"),
                ("by_duration:PT1H", b"old"),
                ("by_timestamp:2000-01-01T00:00:00Z", b"old"),
                ("latest", b"new"),
            ]
        ):
            harness = Harness()
            spout = self.spout(harness, auto_offset_reset=reset, group_id=f"g{group}")
            spout.nextTuple()
            if value == b"new":
                self.send(0, b"new")
            self.assertEqual(harness.valuesFrom(spout, 1), [value], reset)
            spout.close()

    @blocking
    def test_lagAndLostPositions(self) -> None:
        """The lag is in bytes; a position behind the end begins anew."""
        self.send(0, b"a")
        with ZookeeperMetadata(self.zookeeper.servers) as metadata:
            for each in (P0, P1):
                metadata.storeNumber(GroupPaths("topology-of-test").offset("clicks", each), 99)
        harness = Harness()
        spout = self.spout(harness)
        self.assertEqual(harness.valuesFrom(spout, 1), [b"a"])
        harness.clock.advance(10)
        spout.nextTuple()
        self.assertEqual(harness.counters["log.lag.clicks/0-0"], 11)
        spout.close()

    async def test_goesOnAfterRestart(self) -> None:
        """A broker that comes back, also on another port, is read on."""
        harness = Harness()
        spout = self.spout(harness, request_timeout_ms=500)

        def waitForTopic() -> None:
            spout.nextTuple()  # there is none
            self.send(0, b"a")
            self.assertEqual(harness.valuesFrom(spout, 1), [b"a"])

        await deferToThread(waitForTopic)
        await self.broker.stop()

        def whileAway() -> None:
            for _turn in range(3):
                spout.nextTuple()
                harness.clock.advance(10)
            self.assertEqual(harness.collector.take(), [])

        await deferToThread(whileAway)
        self.broker = self.makeBroker()
        await self.broker.start()
        self.port = self.broker.port

        def again() -> None:
            self.send(0, b"a", b"b")  # its log is new, and longer than what was read
            self.assertEqual(harness.valuesFrom(spout, 1), [b"b"])
            spout.close()

        await deferToThread(again)


class LogBoltOf2011Tests(Kafka07LogCase):
    """L{LogBolt} on a cluster of 2011."""

    def bolt(self, harness: Harness, **more: Any) -> LogBolt:
        return harness.start(LogBolt("clicks"), self.config(**more))

    def payloads(self, partition: int) -> list[bytes]:
        with SimpleConsumer("127.0.0.1", self.port) as consumer:
            found = consumer.fetch("clicks", partition, 0, 1 << 20)
            return [message.payload for message, _next in found]

    @blocking
    def test_keysChoosePartitions(self) -> None:
        """A key chooses the partition as 2011's producers do, once the topic is there."""
        self.send(0, b"first")
        harness = Harness()
        bolt = self.bolt(harness)
        tuples = [tupleOf({"key": f"k{n}", "value": f"v{n}"}) for n in range(10)]
        feed(bolt, *tuples, tupleOf({"value": "without"}), tupleOf({"value": "a key"}))
        self.assertEqual(len(harness.collector.acked), 12)
        expected: Sequence[list[bytes]] = ([b"first"], [])
        for n in range(10):
            expected[defaultPartitioner(b"k%d" % n, 2)].append(b"v%d" % n)
        expected[0].extend([b"without", b"a key"])
        self.assertEqual([self.payloads(0), self.payloads(1)], list(expected))
        bolt.close()

    @blocking
    def test_tooLarge(self) -> None:
        """A set that is too large is sent in parts; a message that is too large fails alone."""
        noise = Random(1).randbytes
        harness = Harness()
        bolt = self.bolt(harness, max_message_size=300, compression_type="gzip")
        values = [noise(200), noise(200), noise(290), b"x" * 1_000, noise(400)]
        tuples = [tupleOf({"value": value}) for value in values]
        feed(bolt, *tuples)
        self.assertEqual(harness.collector.failed, [tuples[4]])
        self.assertEqual(self.payloads(0), values[:4])
        bolt.close()

    @blocking
    def test_tooLargeAlone(self) -> None:
        """Without compression, only the message that is too large fails."""
        harness = Harness()
        bolt = self.bolt(harness, max_message_size=300)
        tuples = [tupleOf({"value": value}) for value in (b"a", b"x" * 400, b"b")]
        feed(bolt, *tuples)
        self.assertEqual(harness.collector.failed, [tuples[1]])
        self.assertEqual(self.payloads(0), [b"a", b"b"])
        bolt.close()

    async def test_brokerIsAway(self) -> None:
        """Tuples fail while the broker is away; then messages are written again."""
        harness = Harness()
        bolt = self.bolt(harness, request_timeout_ms=500)
        await deferToThread(feed, bolt, tupleOf({"value": "a"}))
        self.assertEqual(len(harness.collector.acked), 1)
        await self.broker.stop()
        for _time in range(2):
            await deferToThread(feed, bolt, tupleOf({"value": "b"}))
        self.assertEqual(len(harness.collector.failed), 2)
        self.broker = self.makeBroker()
        await self.broker.start()
        self.port = self.broker.port
        while len(harness.collector.acked) < 2:  # ZooKeeper may still have the old address
            await deferToThread(feed, bolt, tupleOf({"value": "c"}))
        self.assertEqual(await deferToThread(self.payloads, 0), [b"c"])
        await deferToThread(bolt.close)

    @blocking
    def test_deadLetters(self) -> None:
        """A spout of 2011's log writes its dead letters there, as payloads."""
        self.send(0, b"bad")
        harness = Harness()
        spout = self.spout(harness, replay_limit=0, replay_exhausted="dead-letter")
        [(_values, tupleId)] = harness.takeFrom(spout, 1)
        spout.fail(tupleId)
        spout.close()
        with SimpleConsumer("127.0.0.1", self.port) as consumer:
            found = consumer.fetch("clicks-dead-letters", 0, 0, 1_000)
            self.assertEqual([message.payload for message, _next in found], [b"bad"])
