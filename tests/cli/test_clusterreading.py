"""Tests for L{pylogbroker.cli.clusterreading}, with a real ZooKeeper."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cli import CommandError
from pylogbroker.cli.clusterreading import PARTITION_COUNT_MAX, ClusterReading
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import ZookeeperError
from pylogbroker.model import BrokerPartition
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import reactor


class ClusterReadingTests(ClusterCase):
    """What stands in the registries."""

    async def open(self) -> ClusterReading:
        """A reading, to the end of the test."""
        reading = ClusterReading(reactor, self.servers, 20_000)
        await reading.__aenter__()
        self.addCleanup(lambda: self.end(reading))
        return reading

    def end(self, reading: ClusterReading) -> Any:
        return Deferred.fromCoroutine(reading.__aexit__(None, None, None))

    async def test_empty(self) -> None:
        """An empty cluster has nothing, and is not written to."""
        cluster = await self.open()
        self.assertEqual((await cluster.brokers(), await cluster.topics(), await cluster.partitions("t")), ({}, [], []))
        self.assertEqual(await self.children("/"), [])

    async def test_registries(self) -> None:
        """Brokers in the order of their numbers, topics, and partitions in the order of broker and number."""
        for number in (10, 9):
            await self.node(f"/brokers/ids/{number}", b"x:host%d:9092" % number)
            await self.node(f"/brokers/topics/t/{number}", b"2")
        cluster = await self.open()
        self.assertEqual(await cluster.brokers(), {number: BrokerRegistration("x", f"host{number}", 9092) for number in (9, 10)})
        self.assertEqual(list(await cluster.brokers()), [9, 10])
        self.assertEqual(await cluster.topics(), ["t"])
        self.assertEqual(await cluster.partitions("t"), [BrokerPartition(*pair) for pair in ((9, 0), (9, 1), (10, 0), (10, 1))])
        self.assertEqual(cluster.problems, [])

    async def test_garbage(self) -> None:
        """What others wrote and cannot be read is named, and the rest is read."""
        await self.node("/brokers/ids/0", b"x:host:9092")
        await self.node("/brokers/ids/1", b"nonsense")
        await self.node("/brokers/ids/one", b"x:host:9092")
        await self.node("/brokers/topics/t/0", b"1")
        await self.node("/brokers/topics/t/1", b"many")
        await self.node("/brokers/topics/t/2", b"%d" % (PARTITION_COUNT_MAX + 1))
        cluster = await self.open()
        self.assertEqual(list(await cluster.brokers()), [0])
        self.assertEqual(await cluster.partitions("t"), [BrokerPartition(0, 0)])
        for name in ("/brokers/ids/1", "/brokers/ids/one", "/brokers/topics/t/1", "/brokers/topics/t/2"):
            self.assertEqual(sum(name in problem for problem in cluster.problems), 1, name)
        self.assertEqual(await cluster.partitions("a/b"), [])
        self.assertIn("a/b", cluster.problems[-1])

    async def test_knownTopics(self) -> None:
        """A topic that is not there is an error that says which are."""
        await self.node("/brokers/topics/t/0", b"1")
        cluster = await self.open()
        self.assertEqual((await cluster.knownTopics([]), await cluster.knownTopics(["t"])), (["t"], ["t"]))
        error = await self.refused(cluster.knownTopics(["u"]), CommandError)
        self.assertEqual(str(error), "there is no topic u; there are: t")

    async def test_unreachable(self) -> None:
        """A chroot that does not exist is an error, and nothing is left open."""
        await self.refused(ClusterReading(reactor, self.servers + "/nowhere", 20_000).__aenter__(), ZookeeperError)
