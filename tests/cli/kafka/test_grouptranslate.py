"""
Tests for L{pylogbroker.cli.kafka.groupoffsets}: a group moves behind a mirror that runs, from a
cluster of today and from one of 2011 with a real ZooKeeper.
"""

from __future__ import annotations

import json

from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread

from pylogbroker.client.kafka.admin.client import checkAll
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.mirror.service import MirrorService, MirrorSettings
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from pylogbroker.zookeeper.ephemeral import write
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, performAtOnce, reactor
from tests.mirror.test_kafkasource import KafkaSourceCase
from tests.mirror.test_service import payloads

ENTRY_SIZE = 17
"""Bytes of a message of L{payloads} with a name of one letter, in the log of 2011."""


async def translated(broker: LocalBroker, *words: str) -> Outcome:
    """C{group translate} of the group C{g}, made."""
    place = ("--bootstrap-server", broker.bootstrapServers)
    return await deferToThread(
        performAtOnce, "group", "translate", "g", *place, *words, "--execute", "--json"
    )


class BetweenTodaysTests(KafkaSourceCase):
    """From a cluster of today's Kafka."""

    async def test_moves(self) -> None:
        """The group goes on in the target where it was in the source when the mirror noted it."""
        await self.send("t", payloads("a", 100))
        mirror = self.todayMirror(source_cluster_alias="east")
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 100)
        source = mirror.sources[0]
        await source.record()
        place = TopicPartition("t", 0)
        checkAll(await self.admin(self.source).alterConsumerGroupOffsets("g", {place: 100}))
        await source.checkpoint()  # type: ignore[union-attr]
        outcome = await translated(self.target, "--source-alias", "east")
        self.assertEqual((outcome.code, outcome.errors), (0, "set 1 offset\n"))
        committed = await self.admin(self.target).listConsumerGroupOffsets("g")
        self.assertEqual({where: each.offset for where, each in committed.items()}, {place: 100})
        await mirror.stopService()


class From2011Tests(ClusterCase):
    """From a cluster of 2011, with its ZooKeeper."""

    async def test_moves(self) -> None:
        """
        The group misses nothing in the target. A group without positions, and a mirror that has
        mirrored nothing, are errors.
        """
        await self.startBrokers(1)
        target = LocalBroker(reactor, {"num.partitions": "2"})
        self.addCleanup(target.stop)
        await target.start()
        mirror = MirrorService(
            reactor,
            MirrorSettings.fromProperties(
                [
                    {
                        "zk.connect": self.servers,
                        "groupid": "mirror",
                        "autocommit.interval.ms": "50",
                        "fetcher.backoff.ms": "20",
                    }
                ],
                {"bootstrap.servers": target.bootstrapServers},
                whitelist("t"),
                self.fail,
            ),
        )
        mirror.startService()
        producer = SyncProducer(reactor, self.brokers[0].endpoint)
        for start in range(0, 200, 50):
            await producer.send("t", 0, payloads("a", 50, start))
            while mirror.counters.confirmedCount < start + 50:
                await deferLater(reactor, 0.01)
            await mirror.sources[0].record()
        await producer.close()
        await mirror.stopService()
        options = ("--from", self.servers, "--mirror-group", "mirror")
        outcome = await translated(target, *options)
        self.assertEqual((outcome.code, outcome.output), (1, b""))
        self.assertIn("the group g has no positions at", outcome.errors)
        await write(self.admin, "/consumers/g/offsets/t/0-0", b"%d" % (120 * ENTRY_SIZE))
        outcome = await translated(target, *options, "--topic", "u")
        self.assertIn("the group g has no positions at", outcome.errors)
        outcome = await translated(target, *options[:3], "another")
        self.assertIn("no mirror of the group another", outcome.errors)
        outcome = await translated(target, *options)
        self.assertEqual((outcome.code, outcome.errors), (0, "set 2 offsets\n"))
        # Of the source's other partition nothing was mirrored, and nothing was read.
        change, other = sorted(json.loads(outcome.output)["changes"], key=lambda each: -each["new"])
        self.assertEqual(other["new"], 0)
        consumer = KafkaConsumer(
            reactor,
            {"bootstrap.servers": target.bootstrapServers, "consumer.timeout.ms": "20000"},
        )
        self.addCleanup(consumer.close)
        consumer.assign({TopicPartition("t", change["partition"]): change["new"]})
        found: list[bytes | None] = []
        while payloads("a", 200)[-1] not in found:
            await consumer.wait()
            found += [record.value for record in consumer.takeMany()]
        self.assertEqual(found, payloads("a", 200)[-len(found) :])
        self.assertTrue(80 <= len(found) <= 150, len(found))
