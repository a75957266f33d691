"""
Tests of the console without a broker of its own.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.console.standalone import RETRY_MS, ClusterConsole, lagFamilies
from pylogbroker.errors import ConfigurationError, ZookeeperTimeoutException
from pylogbroker.metrics.exposition import render
from pylogbroker.protocol.kafka07.requests import encodeOffsets, encodeProduce
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper
from tests.broker.client import connect
from tests.broker.manualbroker import capture
from tests.console.asking import figures, get
from tests.console.test_cluster import A, later


class LagTests(SynchronousTestCase):
    """Figures of groups."""

    def test_unknown(self) -> None:
        """What is not known is not claimed."""
        row = {"topic": "t", "broker": 1, "partition": 0, "owner": "", "offset": None, "lag": None}
        lines = (
            render(lagFamilies({"groups": [{"name": "g", "members": [], "partitions": [row]}]}))
            .decode()
            .splitlines()
        )
        self.assertEqual(
            [line for line in lines if not line.startswith("#")],
            [
                'pylogbroker_group_members{group="g"} 0',
                'pylogbroker_group_owned{group="g",topic="t",broker="1",partition="0"} 0',
            ],
        )


class ServiceTests(TestCase):
    """Served by itself."""

    timeout = 60

    async def test_cluster(self) -> None:
        """It finds brokers, topics and groups in ZooKeeper, and tells scrapers of lags."""
        double = FakeZookeeper(reactor)
        self.addCleanup(double.stop)
        broker = LocalBroker(
            reactor, {"enable.zookeeper": "true", "zk.connect": "double"}, zookeeper=double.client
        )
        self.addCleanup(broker.stop)
        await broker.start()
        client = await connect(self, broker.endpoint)
        client.send(encodeProduce("t", 0, A), encodeOffsets("t", 0, -1, 1))
        await client.answer()
        console = ClusterConsole(reactor, "0", "double", zookeeper=double.client)
        self.addCleanup(console.stopService)
        console.privilegedStartService()
        console.startService()
        while (
            console.zookeeper is None
            or not console.zookeeper.connected
            or not broker.broker.service.picture().isRegistered
        ):
            await later()
        for path in (
            "/consumers",
            "/consumers/g",
            "/consumers/g/offsets",
            "/consumers/g/offsets/t",
        ):
            await console.zookeeper.create(path)
        await console.zookeeper.create("/consumers/g/offsets/t/0-0", b"5")
        port = console.port.getHost().port
        state = (await get(port, "/api/state")).json()
        self.assertEqual(
            (
                state["own"],
                [row["id"] for row in state["brokers"]],
                state["topics"][0]["partitions"][0]["end"],
            ),
            (None, [0], 15),
        )
        self.assertEqual(
            (await get(port, "/api/messages?topic=t&broker=0&partition=0")).json()["messages"][0][
                "size"
            ],
            5,
        )
        found = figures((await get(port, "/metrics")).body)
        self.assertEqual(
            found['pylogbroker_group_lag_bytes{group="g",topic="t",broker="0",partition="0"}'], 10
        )
        self.assertEqual((await get(port, "/")).status, 200)


class WordTests(SynchronousTestCase):
    """What an operator is told."""

    def test_taken(self) -> None:
        """
        A place that cannot be listened on is named as the command line names it, and so is a name
        that is not known.
        """
        console = ClusterConsole(MemoryReactorClock(), "nonsense:1", "zk:2181")
        self.assertIn(
            "(--listen)", str(self.assertRaises(ConfigurationError, console.privilegedStartService))
        )
        self.assertEqual(console.web.namesCalled, "--host")

    def test_nowhere(self) -> None:
        """A console without a listener is refused: no browser could reach it."""
        console = ClusterConsole(MemoryReactorClock(), " ", "zk:2181")
        error = self.assertRaises(ConfigurationError, console.privilegedStartService)
        self.assertIn("(--listen)", str(error))


class AwayTests(SynchronousTestCase):
    """Without ZooKeeper."""

    def test_retry(self) -> None:
        """It is tried again, with a line each time, until it is there; the end ends that, too."""
        memory: Any = MemoryReactorClock()
        made: list[Any] = []

        class Away:
            connected = False

            def __init__(self) -> None:
                self.connecting: Deferred[None] = Deferred()
                self.isClosed = False
                made.append(self)

            def connect(self, timeoutMs: int) -> Deferred[None]:
                return self.connecting

            def close(self) -> None:
                self.isClosed = True

            def add_session_listener(self, listener: Any) -> None:
                self.listener = listener

        lines = capture(self)
        make: Any = Away
        console = ClusterConsole(memory, "8067", "zk:2181", zookeeper=make)
        console.privilegedStartService()
        console.startService()
        made[0].connecting.errback(ZookeeperTimeoutException("too late"))
        self.assertIn("ZooKeeper at zk:2181 cannot be reached", lines()[-1])
        self.assertEqual((len(made), made[0].isClosed), (1, True))
        memory.advance(RETRY_MS / 1000)
        self.assertEqual(len(made), 2)
        made[1].connecting.errback(ZookeeperTimeoutException("too late"))
        console.stopService()
        self.assertEqual(memory.getDelayedCalls(), [])
        memory.advance(RETRY_MS)
        self.assertEqual(len(made), 2)

    def metrics(self, console: ClusterConsole, clock: Clock) -> bytes:
        """What a scraper gets."""
        waiting = Deferred.fromCoroutine(console._metrics({}))
        clock.pump([0.1] * 20)
        return bytes(self.successResultOf(waiting).body)

    def test_lost(self) -> None:
        """
        A lost connection is logged and is a metric; the page does not pretend to know brokers and
        topics.
        """
        clock = Clock()
        double = FakeZookeeper(clock)
        memory: Any = MemoryReactorClock()
        lines = capture(self)
        console = ClusterConsole(memory, "8067", "zk:2181", zookeeper=double.client)
        console.startService()
        clock.pump([0.1] * 10)
        client: Any = console.zookeeper
        self.assertTrue(client.connected)
        self.assertIn(b"zookeeper_connected 1", self.metrics(console, clock))
        double.disconnect(client)
        clock.pump([0.1] * 10)
        self.assertIn("The connection to ZooKeeper at zk:2181 is lost", "\n".join(lines()))
        self.assertIn(b"zookeeper_connected 0", self.metrics(console, clock))
        memory.advance(60)  # what was read before is too old by now
        state = self.successResultOf(Deferred.fromCoroutine(console._cluster.state()))
        self.assertEqual((state["isKnown"], len(state["problems"])), (False, 1))

    def test_stopped(self) -> None:
        """Stopped while it connects, it does not go on."""
        memory: Any = MemoryReactorClock()
        clock = Clock()
        double = FakeZookeeper(clock, latencyMs=1000)
        console = ClusterConsole(memory, "8067", "zk:2181", zookeeper=double.client)
        console.startService()
        console.stopService()
        clock.advance(20)
        self.assertEqual(memory.getDelayedCalls(), [])
