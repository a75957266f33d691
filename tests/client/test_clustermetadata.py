"""Tests for L{pylogbroker.client.clustermetadata}."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import StaticSubscription
from pylogbroker.cluster.znodes import PARTITION_COUNT_MAX, BrokerRegistration, decodeBroker
from pylogbroker.errors import ClosingException, NoBrokersError, ZnodeError
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition
from pylogbroker.zookeeper.ephemeral import write

GROUP = GroupPaths("g")


class RegistriesTests(SynchronousTestCase):
    """
    What stands there.

    @ivar problems: what was complained about.
    """

    def setUp(self) -> None:
        self.clock: Any = Clock()
        self.zookeeper: Any = FakeZookeeper(self.clock).client()
        self.settle(self.zookeeper.connect())
        self.problems: list[str] = []
        self.registries = ClusterMetadataReader(self.zookeeper, self.problems.append)

    def settle(self, waiting: Any) -> Any:
        """Let what is under way come to its end."""
        self.clock.pump([0.01] * 40)
        return waiting

    def read(self, reading: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine comes to."""
        return self.successResultOf(self.settle(Deferred.fromCoroutine(reading)))

    def nodes(self, *nodes: tuple[str, bytes]) -> None:
        """Somebody writes."""
        for path, data in nodes:
            self.read(write(self.zookeeper, path, data))

    def complained(self, *paths: str) -> None:
        """Each of these was named, in a line of its own, and nothing else was."""
        for path in paths:
            self.assertEqual(
                sum(path in problem for problem in self.problems), 1, (path, self.problems)
            )
        self.assertEqual(len(self.problems), len(paths), self.problems)

    def test_empty(self) -> None:
        """An empty cluster has nothing, which is no problem, and is not written to."""
        registries = self.registries
        found = [
            self.read(each)
            for each in (
                registries.brokers(),
                registries.topics(),
                registries.partitions(["t"]),
                registries.groups(),
            )
        ]
        found += [
            self.read(each)
            for each in (
                registries.members(GROUP),
                registries.owners(GROUP),
                registries.offsets(GROUP),
            )
        ]
        self.assertEqual(found, [{}, [], [], [], {}, {}, {}])
        self.assertIsNone(self.read(self.registries.value("/brokers/ids/0", decodeBroker)))
        self.assertEqual(self.successResultOf(self.settle(self.zookeeper.get_children("/"))), [])
        self.complained()

    def test_brokers(self) -> None:
        """In the order of their numbers; what cannot be read is named, and the others are told."""
        self.nodes(
            *((f"/brokers/ids/{number}", b"x:host%d:9092" % number) for number in (10, 9, 8))
        )
        self.nodes(("/brokers/ids/1", b"nonsense"), ("/brokers/ids/one", b"x:host:9092"))
        expected = [
            (number, BrokerRegistration("x", f"host{number}", 9092)) for number in (8, 9, 10)
        ]
        self.assertEqual(list(self.read(self.registries.brokers()).items()), expected)
        self.complained("/brokers/ids/1 ", "/brokers/ids/one")
        self.assertEqual(list(self.read(self.registries.brokers(2))), [8])

    def test_broker(self) -> None:
        """A single one; it is an error when it is not registered, or cannot be read."""
        self.nodes(("/brokers/ids/0", b"x:host:9092"), ("/brokers/ids/1", b"nonsense"))
        self.assertEqual(self.read(self.registries.broker(0)).address, "host:9092")
        failed = self.failureResultOf(
            self.settle(Deferred.fromCoroutine(self.registries.broker(2))), NoBrokersError
        )
        self.assertIn("broker 2 is not registered", str(failed.value))
        self.failureResultOf(
            self.settle(Deferred.fromCoroutine(self.registries.broker(1))), ZnodeError
        )
        self.complained()

    def test_topics(self) -> None:
        """
        Partitions by topic, as topics were asked for, broker and number; garbage is named, and the
        rest is told.
        """
        self.nodes(*((f"/brokers/topics/t/{number}", b"2") for number in (10, 9)))
        self.nodes(
            ("/brokers/topics/t/1", b"many"),
            ("/brokers/topics/t/2", b"%d" % (PARTITION_COUNT_MAX + 1)),
            ("/brokers/topics/t/x", b"1"),
        )
        self.nodes(("/brokers/topics/a/0", b"1"))
        self.assertEqual(self.read(self.registries.topics()), ["a", "t"])
        counts = self.read(self.registries.partitionCounts(["t", "a", "none", "a/b"]))
        self.assertEqual(counts, {"t": {9: 2, 10: 2}, "a": {0: 1}, "none": {}, "a/b": {}})
        self.complained(
            "/brokers/topics/t/1 ", "/brokers/topics/t/2 ", "/brokers/topics/t/x ", "a/b"
        )
        found = [
            f"{topic} {partition}"
            for topic, partition in self.read(self.registries.partitions(["t", "a"]))
        ]
        self.assertEqual(found, ["t 9-0", "t 9-1", "t 10-0", "t 10-1", "a 0-0"])

    def test_group(self) -> None:
        """
        Members with what they want, owners, and offsets; what cannot be read is named, and a node
        with an odd name is read where it is.
        """
        self.nodes(
            ("/consumers/g/ids/g_a", b'{ "t": 2 }'),
            ("/consumers/g/ids/g_b", b"nonsense"),
            ("/consumers/g/owners/t/0-1", b"g_a-0"),
            ("/consumers/g/offsets/t/0-1", b"77"),
            ("/consumers/g/offsets/t/0-0", b"x"),
            ("/consumers/g/offsets/t/odd", b"1"),
            ("/consumers/g/offsets/t/01-0", b"5"),
            ("/consumers/g/offsets/a/3-0", b"6"),
        )
        self.assertEqual(self.read(self.registries.groups()), ["g"])
        self.assertEqual(
            self.read(self.registries.members(GROUP)),
            {"g_a": ('{ "t": 2 }', StaticSubscription({"t": 2}))},
        )
        self.assertEqual(
            self.read(self.registries.owners(GROUP)), {("t", BrokerPartition(0, 1)): "g_a-0"}
        )
        offsets = self.read(self.registries.offsets(GROUP))
        self.assertEqual(
            list(offsets.items()),
            [
                (("a", BrokerPartition(3, 0)), 6),
                (("t", BrokerPartition(0, 1)), 77),
                (("t", BrokerPartition(1, 0)), 5),
            ],
        )
        self.complained(
            "/consumers/g/ids/g_b", "/consumers/g/offsets/t/0-0", "/consumers/g/offsets/t/odd"
        )
        self.assertEqual(
            list(self.read(self.registries.offsets(GROUP, 1))), [("a", BrokerPartition(3, 0))]
        )

    def test_closed(self) -> None:
        """When ZooKeeper does not answer, that is an error and no emptiness."""
        self.settle(self.zookeeper.close())
        for reading in (
            self.registries.brokers(),
            self.registries.partitions(["t"]),
            self.registries.offsets(GROUP),
        ):
            self.failureResultOf(self.settle(Deferred.fromCoroutine(reading)), ClosingException)
