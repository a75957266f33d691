"""
Tests for L{pylogbroker.client.discovery}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.discovery import BrokerNode, StaticDiscovery, ZookeeperDiscovery
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import (
    ConnectionLossException,
    NoBrokersError,
    NoNodeException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition


class StaticDiscoveryTests(SynchronousTestCase):
    """What C{broker.list} says."""

    def test_brokers(self) -> None:
        """Each broker is good for every topic, and picks the partition itself."""
        discovery = StaticDiscovery([BrokerAddress(2, "b", 9), BrokerAddress(1, "::1", 8)])
        self.assertTrue(discovery.isStatic)
        self.successResultOf(discovery.start())
        self.assertEqual(
            discovery.partitions("any"), [BrokerPartition(1, -1), BrokerPartition(2, -1)]
        )
        self.assertEqual(self.successResultOf(discovery.lookUp("any")), discovery.partitions("any"))
        self.assertEqual(
            [discovery.brokers[1].address, discovery.brokers[2].address], ["[::1]:8", "b:9"]
        )
        self.successResultOf(discovery.refresh())
        discovery.listen(lambda number, broker: None)()
        discovery.stop()


class ZookeeperDiscoveryTests(SynchronousTestCase):
    """Registries in ZooKeeper (spec-0.7 zookeeper §3)."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.server = FakeZookeeper(self.clock)
        self.cluster = self.connect()
        self.zookeeper = self.connect()
        self.discovery = ZookeeperDiscovery(self.clock, self.zookeeper)
        self.changes: list[tuple[int, BrokerNode | None]] = []
        self.discovery.listen(lambda number, broker: self.changes.append((number, broker)))
        self.events: list[str] = []
        observer: Any = self.observe
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        globalLogPublisher.addObserver(observer)

    def observe(self, event: Any) -> None:
        if (
            event.get("log_namespace", "").endswith("discovery")
            and event["log_level"].name == "warn"
        ):
            self.events.append(event["log_format"].format(**event))

    def connect(self) -> Any:
        client = self.server.client()
        connecting = client.connect()
        self.settle()
        self.successResultOf(connecting)
        return client

    def settle(self) -> None:
        for _turn in range(60):
            self.clock.advance(0)

    def do(self, deferred: Deferred[Any]) -> Any:
        self.settle()
        return self.successResultOf(deferred)

    def put(self, path: str, data: bytes = b"", flags: int = EPHEMERAL) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self.server.tree():
            self.put(parent, b"", 0)
        self.do(self.cluster.create(path, data, flags=flags))

    def broker(self, number: int, host: str = "h", port: int = 9092) -> None:
        self.put(f"/brokers/ids/{number}", f"c-1:{host}:{port}".encode())

    def registration(self, topic: str, number: int, count: int) -> None:
        self.put(f"/brokers/topics/{topic}/{number}", str(count).encode())

    def remove(self, path: str) -> None:
        self.do(self.cluster.delete(path))

    def start(self) -> None:
        self.do(self.discovery.start())
        self.changes.clear()

    def names(self, topic: str) -> str:
        return " ".join(map(str, self.discovery.partitions(topic)))

    def test_readsAll(self) -> None:
        """
        At the start brokers and partitions are read; partitions are sorted by the numbers of broker
        and partition.
        """
        for number in (10, 9):
            self.broker(number, f"h{number}")
        self.registration("t", 9, 1)
        self.registration("t", 10, 11)
        self.start()
        self.assertEqual(
            self.discovery.brokers, {9: BrokerNode(9, "h9", 9092), 10: BrokerNode(10, "h10", 9092)}
        )
        self.assertEqual(self.names("t"), "9-0 " + " ".join(f"10-{index}" for index in range(11)))
        self.assertEqual(self.names("u"), "")

    def test_emptyTree(self) -> None:
        """In an empty tree the registries are made, as 0.7 does, and watched."""
        self.start()
        self.assertEqual(
            [
                (path, value)
                for path, value in self.server.tree().items()
                if path.startswith("/brokers/")
            ],
            [("/brokers/ids", (None, 0)), ("/brokers/topics", (None, 0))],
        )
        self.broker(1)
        self.registration("t", 1, 2)
        self.assertEqual(self.names("t"), "1-0 1-1")

    def test_cannotStart(self) -> None:
        """
        A ZooKeeper that does not answer is a failure of the start, and nothing is left on the
        clock.
        """
        self.server.disconnect(self.zookeeper)
        starting = self.discovery.start()
        self.clock.pump([1] * 14)
        self.failureResultOf(starting, ZookeeperTimeoutException)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cannotStartHalfway(self) -> None:
        """A connection that is lost while the children are read is a failure of the start, too."""
        self.broker(1)
        self.server.latency = 0.1
        starting = self.discovery.start()
        self.clock.pump([0.05] * 11)
        self.server.disconnect(self.zookeeper)
        self.failureResultOf(starting, ZookeeperError)

    def test_brokerComesAndGoes(self) -> None:
        """
        ProducerTest.testPartitionedSendToNewTopic, NewBrokerInExistingTopic: brokers that appear or
        vanish are told, and so are their partitions.
        """
        self.broker(0)
        self.registration("t", 0, 2)
        self.start()
        self.broker(1, "x", 7)
        self.assertEqual(self.changes, [(1, BrokerNode(1, "x", 7))])
        self.registration("t", 1, 2)
        self.assertEqual(self.names("t"), "0-0 0-1 1-0 1-1")
        self.remove("/brokers/ids/0")
        self.assertEqual(self.changes[1:], [(0, None)])
        self.assertEqual(self.names("t"), "1-0 1-1")

    def test_brokerMoves(self) -> None:
        """
        A broker whose value changes in place, or that vanishes and comes back elsewhere in one
        breath, is noticed (gotcha 39).
        """
        self.broker(0, "a")
        self.start()
        self.do(self.cluster.set("/brokers/ids/0", b"c:b:1"))
        self.assertEqual(self.changes, [(0, BrokerNode(0, "b", 1))])
        deleting = self.cluster.delete("/brokers/ids/0")
        creating = self.cluster.create("/brokers/ids/0", b"c:d:1", flags=EPHEMERAL)
        self.do(deleting)
        self.successResultOf(creating)
        self.assertEqual(self.discovery.brokers, {0: BrokerNode(0, "d", 1)})
        self.do(self.cluster.set("/brokers/ids/0", b"c:e:1"))
        self.assertEqual(self.discovery.brokers, {0: BrokerNode(0, "e", 1)})

    def test_topicBeforeItsBroker(self) -> None:
        """
        A topic's registration that is seen before its broker's counts once the broker is there.
        """
        self.start()
        self.registration("t", 5, 3)
        self.assertEqual(self.names("t"), "")
        self.broker(5)
        self.assertEqual(self.names("t"), "5-0 5-1 5-2")

    def test_partitionsStay(self) -> None:
        """
        Partitions are merged: a registration that vanishes while its broker is alive takes none
        away (§3).
        """
        self.broker(0)
        self.registration("t", 0, 3)
        self.start()
        self.remove("/brokers/topics/t/0")
        self.assertEqual(self.names("t"), "0-0 0-1 0-2")
        self.registration("t", 0, 1)
        self.assertEqual(self.names("t"), "0-0 0-1 0-2")

    def test_bootstrap(self) -> None:
        """
        An unregistered topic is on partition 0 of every broker; what is registered later is merged
        (ProducerTest.testZKSendToNewTopic).
        """
        self.broker(1)
        self.broker(0)
        self.start()
        self.assertEqual(list(map(str, self.do(self.discovery.lookUp("new")))), ["0-0", "1-0"])
        self.assertEqual(self.names("new"), "0-0 1-0")
        self.registration("new", 0, 4)
        self.assertEqual(self.names("new"), "0-0 0-1 0-2 0-3 1-0")

    def test_topicWithoutBrokers(self) -> None:
        """
        ProducerTest.testZKSendToExistingTopicWithNoBrokers: a topic node without children is as
        good as none.
        """
        self.broker(0)
        self.put("/brokers/topics/t", b"", 0)
        self.start()
        self.assertEqual(list(map(str, self.do(self.discovery.lookUp("t")))), ["0-0"])

    def test_lookUpReadsAnew(self) -> None:
        """
        Without a broker everything is read again, so often as was said, later and later; then it is
        an error.
        """
        self.start()
        looking = self.discovery.lookUp("t")
        self.settle()
        self.clock.advance(0.1)
        self.settle()
        self.assertNoResult(looking)
        self.broker(3)
        self.clock.advance(1)
        self.assertEqual(list(map(str, self.do(looking))), ["3-0"])
        self.remove("/brokers/ids/3")
        looking = self.discovery.lookUp("t")
        for _wait in range(3):
            self.settle()
            self.assertNoResult(looking)
            self.clock.advance(1)
        self.settle()
        self.assertIn("topic t", str(self.failureResultOf(looking, NoBrokersError).value))

    def test_lookUpOverALostConnection(self) -> None:
        """
        A reading whose connection is lost is one of the readings: another is made, and answered
        when the connection is back.
        """
        self.broker(0)
        self.start()
        self.server.latency = 0.1
        for end in (self.server.disconnect, self.server.expire):
            looking = self.discovery.lookUp(f"new {end.__name__}")
            end(self.zookeeper)
            self.clock.pump([0.1] * 50)
            self.server.reconnect(self.zookeeper)
            self.clock.pump([0.1] * 20)
            self.assertEqual(list(map(str, self.do(looking))), ["0-0"])

    def test_lookUpFindsARegistration(self) -> None:
        """A topic that is registered meanwhile is where it is registered, and nowhere else."""
        self.start()
        looking = self.discovery.lookUp("t")
        self.server.disconnect(self.zookeeper)
        self.broker(0)
        self.broker(1)
        self.registration("t", 1, 2)
        self.clock.advance(1)
        self.server.reconnect(self.zookeeper)
        self.assertEqual(list(map(str, self.do(looking))), ["1-0", "1-1"])

    def test_lookUpWithoutZookeeper(self) -> None:
        """
        So often as was said; and a reading that has waited for its whole time for a ZooKeeper is
        the last.
        """
        self.broker(0)
        self.start()
        self.server.latency = 0.1
        never = ZookeeperDiscovery(self.clock, self.zookeeper, readRetryCount=0)
        for discovery, seconds, error in (
            (never, 1, ConnectionLossException),
            (self.discovery, 13, ZookeeperTimeoutException),
        ):
            looking = discovery.lookUp("new")
            self.server.disconnect(self.zookeeper)
            self.clock.pump([0.1] * (10 * seconds))
            self.assertIs(type(self.failureResultOf(looking).value), error)
            self.server.reconnect(self.zookeeper)
            self.clock.pump([0.1] * 10)

    def test_garbage(self) -> None:
        """
        What somebody else has written into the registries is skipped with a line in the log, and
        stops nobody.
        """
        self.put("/brokers/ids/no-number", b"x")
        self.put("/brokers/ids/7", b"nonsense")
        self.put("/brokers/ids/8", b"\xff:h:1")
        self.put("/brokers/topics/bad/0", b"many")
        self.put("/brokers/topics/bad/1", b"-1")
        self.put("/brokers/topics/bad/2", b"2000000000")
        self.put("/brokers/topics/bad/x", b"1")
        self.broker(0)
        self.registration("good", 0, 2)
        self.start()
        self.assertEqual(list(self.discovery.brokers), [0])
        self.assertEqual((self.names("bad"), self.names("good")), ("", "0-0 0-1"))
        told = "\n".join(self.events)
        for path in (
            "/brokers/ids/no-number",
            "/brokers/ids/7",
            "/brokers/ids/8",
            *(f"/brokers/topics/bad/{number}" for number in (0, 1, 2)),
        ):
            self.assertIn(path, told)
        self.do(self.cluster.set("/brokers/ids/7", b"c:h:1"))
        self.assertEqual(sorted(self.discovery.brokers), [0, 7])
        self.do(self.cluster.set("/brokers/ids/7", b""))
        self.assertEqual(sorted(self.discovery.brokers), [0])

    def test_garbageOnce(self) -> None:
        """
        It is named once, however often everything is read, until it is another, or gone and back.
        """
        self.put("/brokers/ids/no-number", b"x")
        self.put("/brokers/ids/7", b"nonsense")
        self.put("/brokers/topics/bad/0", b"many")
        self.put("/brokers/topics/a\ue000b/0", b"1")
        self.broker(0)
        self.start()
        for name in ("new", "newer"):
            self.do(self.discovery.lookUp(name))
            self.do(self.discovery.refresh())
            self.broker(8)
            self.remove("/brokers/ids/8")
        self.assertEqual(len(self.events), 4, self.events)
        self.do(self.cluster.set("/brokers/ids/7", b"other nonsense"))
        self.do(self.cluster.set("/brokers/topics/bad/0", b"1"))
        self.do(self.discovery.refresh())
        self.assertEqual(len(self.events), 5, self.events)
        self.do(self.cluster.set("/brokers/topics/bad/0", b"many"))
        self.do(self.discovery.refresh())
        self.remove("/brokers/ids/no-number")
        self.put("/brokers/ids/no-number", b"x")
        self.assertEqual(len(self.events), 7, self.events)

    def test_topicWithAnImpossibleName(self) -> None:
        """A topic whose name cannot be used is skipped."""
        self.broker(0)
        self.put("/brokers/topics/a\ue000b/0", b"1")
        self.registration("good", 0, 1)
        self.start()
        self.assertEqual(self.names("good"), "0-0")
        self.assertIn("Ignored in ZooKeeper: /brokers/topics/a", self.events[0])

    def test_lostConnection(self) -> None:
        """What changes while the connection is lost is noticed when it is back (gotcha 38)."""
        self.broker(0)
        self.registration("t", 0, 1)
        self.start()
        self.server.disconnect(self.zookeeper)
        self.broker(1)
        self.registration("t", 1, 1)
        self.remove("/brokers/ids/0")
        self.server.reconnect(self.zookeeper)
        self.settle()
        self.assertEqual(self.names("t"), "1-0")

    def test_expiry(self) -> None:
        """A new session reads everything anew, in place of what was known, and watches it."""
        self.broker(0)
        self.registration("t", 0, 3)
        self.start()
        self.remove("/brokers/topics/t/0")
        self.registration("t", 0, 1)
        self.assertEqual(self.names("t"), "0-0 0-1 0-2")
        self.server.expire(self.zookeeper)
        self.settle()
        self.assertEqual(self.names("t"), "0-0")
        self.broker(1)
        self.registration("t", 1, 1)
        self.registration("u", 1, 1)
        self.assertEqual((self.names("t"), self.names("u")), ("0-0 1-0", "1-0"))

    def test_expiryWhileDisconnected(self) -> None:
        """A session that expired while nobody was connected is the same."""
        self.broker(0)
        self.start()
        self.server.disconnect(self.zookeeper)
        self.clock.advance(7)
        self.broker(1)
        self.server.reconnect(self.zookeeper)
        self.settle()
        self.assertEqual(sorted(self.discovery.brokers), [0, 1])

    def test_failedReading(self) -> None:
        """A reading that fails is tried again, later, and told."""
        self.broker(0)
        self.start()
        self.server.latency = 0.1
        creating = self.cluster.create("/brokers/ids/1", b"c:h:1", flags=EPHEMERAL)
        self.clock.pump([0.1] * 3)
        self.server.disconnect(self.zookeeper)
        self.successResultOf(creating)
        self.server.latency = 0
        self.clock.advance(0.5)
        self.server.reconnect(self.zookeeper)
        for _wait in range(10):
            self.settle()
            self.clock.advance(1)
        self.assertEqual(sorted(self.discovery.brokers), [0, 1])
        self.assertIn("/brokers/ids", self.events[0])

    def test_refresh(self) -> None:
        """Reading everything anew finds what watches have not told yet."""
        self.broker(0)
        self.registration("t", 0, 1)
        self.start()
        self.do(self.discovery.refresh())
        self.assertEqual(self.names("t"), "0-0")
        self.discovery.stop()
        self.do(self.cluster.set("/brokers/ids/0", b"c:new:1"))
        self.do(self.cluster.delete("/brokers/topics/t/0"))
        self.do(self.cluster.delete("/brokers/topics/t"))
        self.do(self.discovery.refresh())
        self.assertEqual(self.discovery.brokers[0].host, "new")
        self.remove("/brokers/ids/0")
        self.do(self.discovery.refresh())
        self.assertEqual(self.discovery.brokers, {})

    def test_stops(self) -> None:
        """Stopped, it watches nothing and nothing is left on the clock; listeners can go before."""
        self.broker(0)
        self.registration("t", 0, 1)
        self.start()
        remove = self.discovery.listen(lambda number, broker: self.fail("told"))
        remove()
        remove()
        self.discovery.stop()
        self.broker(1)
        self.assertEqual(list(self.discovery.brokers), [0])
        self.assertEqual(self.changes, [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_stopsWhileReading(self) -> None:
        """Stopped in the middle of a reading, it is quiet."""
        self.broker(0)
        self.start()
        self.server.latency = 0.1
        creating = self.cluster.create("/brokers/ids/1", b"c:h:1", flags=EPHEMERAL)
        self.clock.pump([0.1] * 3)
        self.discovery.stop()
        self.clock.pump([0.1] * 5)
        self.successResultOf(creating)
        self.assertEqual(list(self.discovery.brokers), [0])

    def test_clientClosed(self) -> None:
        """When the client is closed first, following ends without a word."""
        self.broker(0)
        self.start()
        self.do(self.zookeeper.close())
        self.assertEqual(list(self.discovery.brokers), [0])
        self.assertEqual(self.events, [])
        self.discovery.stop()

    def test_vanishesWhileBeingRead(self) -> None:
        """A node that vanishes between the list and its reading is as if it had not been there."""
        self.broker(0)
        self.broker(1)
        self.registration("t", 0, 1)
        self.registration("t", 1, 1)
        self.server.latency = 0.1
        starting = self.discovery.start()
        for _turn in range(100):
            self.clock.advance(0.05)
            if _turn == 10:
                for path in ("/brokers/ids/1", "/brokers/topics/t/1"):
                    self.cluster.delete(path)
        self.successResultOf(starting)
        self.assertEqual(self.names("t"), "0-0")

    def test_missingNode(self) -> None:
        """A registry that cannot be made is a failure of the start."""
        client = self.server.client(chroot="/nowhere")
        failing = ZookeeperDiscovery(self.clock, client)
        client.connect().addErrback(lambda failure: None)
        self.settle()
        starting = failing.start()
        self.settle()
        failure = self.failureResultOf(starting)
        self.assertTrue(failure.check(ZookeeperError, NoNodeException))
