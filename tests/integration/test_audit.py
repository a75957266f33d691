"""
The audit over two clusters at a real ZooKeeper: producers that count, a copy of what they sent in
another cluster, and holes that were planted.
"""

from __future__ import annotations

import json
from itertools import count
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.audit.comparison import Comparison
from pylogbroker.audit.comparisonformats import asJson
from pylogbroker.audit.envelope import envelopeTime
from pylogbroker.auditor.auditedproducer import AuditedProducer
from pylogbroker.auditor.auditor import Auditor
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.config.auditsettings import AuditorSettings
from pylogbroker.producer.producer import Producer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.integration.zookeeperprocess import sharedZookeeper

WINDOW_MS = 500
_numbers = count()


class TwoClustersTests(TestCase):
    """A source and a target, two brokers of two partitions each."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers: dict[str, str] = {}
        self.brokers: dict[str, list[LocalBroker]] = {"source": [], "target": []}
        outer = ZookeeperClient(reactor, sharedZookeeper().servers)
        await outer.connect()
        for name, brokers in self.brokers.items():
            chroot = f"/audit{next(_numbers)}"
            await outer.create(chroot)
            self.servers[name] = servers = sharedZookeeper().servers + chroot
            for number in (0, 1):
                properties = {
                    "brokerid": str(number),
                    "num.partitions": "2",
                    "enable.zookeeper": "true",
                    "zk.connect": servers,
                    "hostname": "127.0.0.1",
                }
                broker = LocalBroker(reactor, properties)
                await broker.start()
                self.addCleanup(broker.stop)
                brokers.append(broker)
        await outer.close()

    async def produce(self, topics: tuple[str, ...], total: int) -> dict[tuple[str, int], int]:
        """
        Messages by two audited producers, over some windows.

        @return: the truth: how many of each topic and window.
        """
        properties = {
            "zk.connect": self.servers["source"],
            "producer.type": "async",
            "queue.time": "20",
            "batch.size": "50",
            "compression.codec": "1",
            "confirm": "true",
            "audit.window.ms": str(WINDOW_MS),
            "audit.interval.ms": "100",
        }
        producers = [
            AuditedProducer(reactor, properties, auditRandom=Random(number)) for number in range(2)
        ]
        for part in range(5):
            await gatherResults(
                [
                    producers[number % 2].send(
                        topics[number % len(topics)],
                        b"message %d" % number,
                        key=f"key {number % 9}",
                    )
                    for number in range(part * total // 5, (part + 1) * total // 5)
                ]
            )
            await deferLater(reactor, 0.25)
        for producer in producers:
            await producer.close()
            self.assertEqual(
                (producer.counters.failedCount, producer.counters.unknownCount), (0, 0)
            )
        truth: dict[tuple[str, int], int] = {}
        for topic in topics:
            for payload in await self.stored("source", topic):
                time = envelopeTime(payload)
                assert time is not None
                place = topic, time // WINDOW_MS * WINDOW_MS
                truth[place] = truth.get(place, 0) + 1
        self.assertEqual(sum(truth.values()), total)
        return truth

    async def flushed(self, name: str) -> None:
        """What was confirmed is written; readers see it when it is flushed."""
        while any(broker.broker.service.picture().unflushedSize for broker in self.brokers[name]):
            await deferLater(reactor, 0.01)

    async def stored(self, name: str, topic: str) -> list[bytes]:
        """All that a cluster has of a topic."""
        await self.flushed(name)
        found: list[bytes] = []
        for broker in self.brokers[name]:
            consumer = SimpleConsumer(reactor, broker.endpoint)
            for partition in (0, 1):
                offset = 0
                while pairs := list(
                    (await consumer.fetch(topic, partition, offset, 4 << 20)).payloads()
                ):
                    found += [payload for payload, _ in pairs]
                    offset = pairs[-1][1]
            await consumer.close()
        return found

    async def copy(self, topic: str, skip: Any = lambda payload: False, *more: bytes) -> None:
        """What a mirror does, but for what is to be left out, and for what is added."""
        producer = Producer(
            reactor,
            {
                "zk.connect": self.servers["target"],
                "producer.type": "async",
                "queue.time": "20",
                "confirm": "true",
            },
        )
        await gatherResults(
            [
                producer.send(topic, payload)
                for payload in [*await self.stored("source", topic), *more]
                if not skip(payload)
            ]
        )
        await producer.close()

    async def audit(self, **properties: str) -> Comparison:
        for name in self.brokers:
            await self.flushed(name)
        given = {
            "tiers": f"source={self.servers['source']} | target={self.servers['target']}",
            "audit.window.ms": str(WINDOW_MS),
            "grace.ms": "0",
        }
        auditor = Auditor(
            reactor, AuditorSettings.fromProperties({**given, **properties}, self.fail)
        )
        try:
            comparison = await auditor.audit()
            while any(line.status == "open" for line in comparison.lines):
                await deferLater(reactor, 0.1)
                comparison = await auditor.audit()
            return comparison
        finally:
            await auditor.close()

    async def test_truth(self) -> None:
        """
        Over source and target the audit says exactly what there is: in each window of each topic as
        many as were sent, and nothing missing.
        """
        truth = await self.produce(("clicks", "views"), 1000)
        for topic in ("clicks", "views"):
            await self.copy(topic)
        comparison = await self.audit()
        for tier in ("source", "target"):
            lines = [line for line in comparison.lines if line.tier == tier]
            self.assertEqual(
                {(line.topic, line.startMs): line.expectedCount for line in lines}, truth
            )
            self.assertEqual({(line.topic, line.startMs): line.seenCount for line in lines}, truth)
        self.assertEqual(
            (comparison.isComplete, comparison.isCertain, list(comparison.notes)), (True, True, [])
        )
        self.assertGreater(len(truth), 4)

    async def test_hole(self) -> None:
        """
        Seven messages of one window that were not copied are reported: that topic, that window,
        that tier, that many, and no other.
        """
        truth = await self.produce(("clicks", "views"), 1000)
        await self.copy("clicks")
        place = max(
            (place for place in truth if place[0] == "views"), key=lambda place: truth[place]
        )
        left = 7

        def skip(payload: bytes) -> bool:
            nonlocal left
            time = envelopeTime(payload)
            assert time is not None
            if not left or time // WINDOW_MS * WINDOW_MS != place[1]:
                return False
            left -= 1
            return True

        await self.copy("views", skip)
        self.assertEqual(left, 0)
        comparison = await self.audit()
        self.assertEqual(
            [
                (line.topic, line.startMs, line.tier, line.missingCount)
                for line in comparison.missing
            ],
            [(*place, "target", 7)],
        )
        self.assertFalse(json.loads(asJson(comparison))["isComplete"])

    async def test_lostAndDoubled(self) -> None:
        """
        A message that is lost while another one of its window is doubled leaves the count as it
        was, and is reported: that topic, window and tier.
        """
        truth = await self.produce(("clicks",), 500)
        place = max(truth, key=lambda place: truth[place])
        stored = await self.stored("source", "clicks")
        lost, doubled, *_others = [
            payload
            for payload in stored
            if (envelopeTime(payload) or 0) // WINDOW_MS * WINDOW_MS == place[1]
        ]
        await self.copy("clicks", lambda payload: payload == lost, doubled)
        comparison = await self.audit()
        self.assertEqual(
            [(line.topic, line.startMs, line.tier, line.status) for line in comparison.missing],
            [(*place, "target", "different")],
        )
        self.assertEqual(
            {
                (line.topic, line.startMs): line.seenCount
                for line in comparison.lines
                if line.tier == "target"
            },
            truth,
        )
