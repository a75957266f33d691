"""
Tests for L{pylogbroker.cli.commands.group}, with two clusters, a real ZooKeeper, and a mirror.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.task import deferLater

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.mirror.offsetsyncs import OffsetSyncTable
from pylogbroker.mirror.service import MirrorService, MirrorSettings
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import write
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, reactor
from tests.integration.chroots import freshChroot, registered

DRY = "nothing was changed; --execute does it\n"
COUNT = 400


class TranslateTests(ClusterCase):
    """
    The cluster of L{ClusterCase} is the source.

    @ivar target: its ZooKeeper.
    """

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.target = await freshChroot("target")
        self.targetAdmin: Any = ZookeeperClient(reactor, self.target)
        self.addCleanup(self.targetAdmin.close)
        await self.targetAdmin.connect()
        await self.startBrokers(1)
        self.targetBroker = LocalBroker(
            reactor, {**registered(self.target), "log.file.size": "2000"}
        )
        self.addCleanup(self.targetBroker.stop)
        await self.targetBroker.start()

    async def produce(
        self, broker: LocalBroker, topic: str, partition: int, payloads: list[bytes]
    ) -> None:
        producer = SyncProducer(reactor, broker.endpoint)
        for start in range(0, len(payloads), 20):
            await producer.send(topic, partition, payloads[start : start + 20])
        await producer.confirm(topic, partition)
        await producer.close()

    async def mirror(self) -> None:
        """
        Mirror what there is, with a table that has an entry each time a little more was there.
        """
        settings = MirrorSettings.fromProperties(
            [
                {
                    "zk.connect": self.servers,
                    "groupid": "mirror",
                    "autocommit.interval.ms": "50",
                    "fetcher.backoff.ms": "20",
                }
            ],
            {"zk.connect": self.target},
            whitelist("t"),
            self.fail,
        )
        mirror = MirrorService(reactor, settings)
        mirror.startService()
        for part in range(4):
            for partition in (0, 1):
                payloads = [
                    b"%d-%04d" % (partition, number)
                    for number in range(part * COUNT // 4, (part + 1) * COUNT // 4)
                ]
                await self.produce(self.brokers[0], "t", partition, payloads)
            while mirror.counters.confirmedCount < 2 * (part + 1) * COUNT // 4:
                await deferLater(reactor, 0.01)
            await mirror.sources[0].record()
        await mirror.stopService()

    async def put(self, **offsets: int) -> None:
        """Where the group C{g} stands in the source."""
        for name, offset in offsets.items():
            await write(
                self.admin, f"/consumers/g/offsets/t/{name[1:].replace('_', '-')}", b"%d" % offset
            )

    async def translate(self, *arguments: str, group: str = "g", mirror: str = "mirror") -> Outcome:
        words = (
            "group",
            "translate",
            group,
            "--from",
            self.servers,
            "--mirror-group",
            mirror,
            "--zookeeper",
            self.target,
        )
        return await self.perform(*words, *arguments)

    async def read(self, offsets: dict[int, int]) -> set[bytes]:
        consumer = SimpleConsumer(reactor, self.targetBroker.endpoint)
        found: set[bytes] = set()
        for partition, offset in offsets.items():
            while messages := [*(await consumer.fetch("t", partition, offset, 1 << 20)).payloads()]:
                found |= {payload for payload, _next in messages}
                offset = messages[-1][1]
        await consumer.close()
        return found

    async def test_moves(self) -> None:
        """
        A group moves: the first time only shown, then done. From there on it finds all that it had
        not read, and not all that it had (row 128).
        """
        await self.mirror()
        size = 16
        await self.put(p0_0=COUNT // 2 * size, p0_1=COUNT // 4 * 3 * size)
        shown = await self.translate()
        self.assertEqual((shown.code, shown.errors), (0, DRY))
        self.assertIn(b"GROUP", shown.output)
        self.assertIs(await self.targetAdmin.exists("/consumers/g/offsets"), None)
        done = await self.translate("--execute", "--json")
        self.assertEqual((done.code, done.errors), (0, "set 2 offsets\n"))
        changes = json.loads(done.output)["changes"]
        self.assertEqual(
            [(each["topic"], each["partition"], each["old"]) for each in changes],
            [("t", 0, None), ("t", 1, None)],
        )
        offsets = {
            partition: int((await self.targetAdmin.get(f"/consumers/g/offsets/t/0-{partition}"))[0])
            for partition in (0, 1)
        }
        self.assertEqual(offsets, {each["partition"]: each["new"] for each in changes})
        found = await self.read(offsets)
        unread = {b"0-%04d" % number for number in range(COUNT // 2, COUNT)} | {
            b"1-%04d" % number for number in range(COUNT // 4 * 3, COUNT)
        }
        self.assertLessEqual(unread, found)
        self.assertLess(len(found), 2 * COUNT)
        named = await self.translate("--execute", "--to-group", "h", "--topic", "t")
        self.assertEqual(named.code, 0)
        self.assertIsNot(await self.targetAdmin.exists("/consumers/h/offsets/t/0-0"), None)

    async def test_refused(self) -> None:
        """
        A group without positions, and a mirror that has mirrored nothing, are errors; nothing is
        written.
        """
        outcome = await self.translate()
        self.assertEqual((outcome.code, outcome.output), (1, b""))
        self.assertIn("no positions", outcome.errors)
        await self.put(p0_0=0)
        outcome = await self.translate(mirror="another")
        self.assertEqual((outcome.code, outcome.output), (1, b""))
        self.assertIn("another", outcome.errors)

    async def test_beginnings(self) -> None:
        """
        What was not mirrored, was deleted in the target since, or lost there, begins where there is
        something; and people are told.
        """
        await self.produce(self.targetBroker, "t", 0, [b"x" * 90] * 100)
        await self.produce(self.targetBroker, "t", 1, [b"x"])
        while await self.targetAdmin.exists("/brokers/topics/t") is None:
            await deferLater(reactor, 0.01)
        await self.put(p0_0=100, p0_1=100)
        table = OffsetSyncTable(
            entries=[(0, {BrokerPartition(0, 0): 4, BrokerPartition(0, 1): 10**9})]
        )
        await write(self.admin, "/consumers/mirror/mirror/t/0-0", table.encode())
        outcome = await self.translate("--json")
        self.assertEqual({each["new"] for each in json.loads(outcome.output)["changes"]}, {0})
        self.assertIn(f"{PartitionId('t', BrokerPartition(0, 1))} was not mirrored", outcome.errors)
        await write(self.admin, "/consumers/mirror/mirror/t/0-1", table.encode())
        outcome = await self.translate("--json")
        self.assertEqual(
            {each["partition"]: each["new"] for each in json.loads(outcome.output)["changes"]},
            {0: 4, 1: 0},
        )
        self.assertIn("its data were lost", outcome.errors)
