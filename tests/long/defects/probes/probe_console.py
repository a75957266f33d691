"""The web console."""

from __future__ import annotations

import os
import re
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.console.standalone import ClusterConsole
from pylogbroker.testing.zookeeper import ZookeeperDouble
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import createPersistent
from tests.broker.onlead import capture
from tests.console import test_cluster
from tests.console.test_cluster import later
from tests.integration import test_console
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.chromium import Chromium
from tests.integration.chroots import registered
from tests.integration.test_console import inReactor
from tests.integration.threaded import inThread


class StateProbes(test_cluster.ClusterCase):
    async def test_stoppedBroker(self) -> None:
        await self.start()
        await self.registered()
        view = self.view()
        await view.state()
        await self.brokers[1].stop()
        while await self.zookeeper.exists("/brokers/ids/1"):
            await later()
        started = view._nowMs()
        while view._nowMs() < started + 5_000:  # what was read before is too old by then
            await later()
        state = await view.state()
        rows = [(row["id"], row["isRegistered"]) for row in state["brokers"]]
        self.assertEqual(rows, [(0, True), (1, False)])


class GroupProbes(test_cluster.ClusterCase):
    async def test_withoutOffset(self) -> None:
        await self.start()
        await self.registered()
        await self.zookeeper.delete("/consumers/g/offsets/t/1-1")
        found = await self.view().groups()
        rows = found["groups"][1]["partitions"]
        lags = {(row["broker"], row["partition"]): row["lag"] for row in rows}
        self.assertEqual(lags, {(0, 0): 10, (1, 0): 0, (1, 1): 15})


class AwayProbes(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.memory: Any = MemoryReactorClock()
        double = ZookeeperDouble(self.clock)
        self.lines = capture(self)
        self.console = ClusterConsole(self.memory, "8067", "zk:2181", zookeeper=double.client)
        self.console.startService()
        self.clock.pump([0.1] * 10)
        self.assertTrue(self.console.zookeeper.connected)
        double.disconnect(self.console.zookeeper)
        self.clock.pump([0.1] * 10)

    def test_lostLine(self) -> None:
        self.assertIn("The connection to ZooKeeper at zk:2181 is lost", "\n".join(self.lines()))

    def test_lostMetric(self) -> None:
        asking = Deferred.fromCoroutine(self.console._metrics({}))
        self.clock.pump([0.1] * 20)
        self.assertIn(b"zookeeper_connected 0", self.successResultOf(asking).body)


class PageProbes(test_console.ConsoleTests):
    """In Chromium."""

    def dot(self) -> object:
        """The colour of the dot, once the page has drawn what it was told."""
        self.browser.waitFor("a state", lambda: self.browser.text("#status") != "connecting")
        return self.browser.run("return document.querySelector('#status').className")

    async def enter(self, path: str, data: bytes | None) -> None:
        """Create a node of ZooKeeper with its parents, or delete it."""
        zookeeper = ZookeeperClient(reactor, self.servers)
        await zookeeper.connect()
        await (zookeeper.delete(path) if data is None else createPersistent(zookeeper, path, data))
        await zookeeper.close()

    @inThread
    def test_stoppedBroker(self) -> None:
        self.start()
        inReactor(self.enter, "/brokers/ids/7", b"gone-1:127.0.0.1:1")
        self.browser.waitFor("broker 7", lambda: self.isShown() and "down" not in self.brokers())
        inReactor(self.enter, "/brokers/ids/7", None)
        self.browser.waitFor("a change", lambda: not self.isShown() or "down" in self.brokers())
        self.assertEqual(self.dot(), "bad")

    def brokers(self) -> str:
        return str(self.browser.text("#brokers"))

    def isShown(self) -> bool:
        return bool(re.search(r"127\.0\.0\.1:1\b", self.brokers()))

    @inThread
    def test_idleMembers(self) -> None:
        self.start()
        self.send(20)
        self.producer.confirm("orders", 0)
        inReactor(self.enter, "/consumers/late/ids/late_idle", b'{ "orders": 1 }')
        inReactor(self.enter, "/consumers/late/offsets/orders/0-0", b"0")
        sums = "#groups .group > div:first-child"
        self.browser.waitFor("the group", lambda: "1 member" in self.browser.text(sums))
        self.assertIn("late_idle", self.browser.text("#groups"))

    async def startAlone(self) -> ClusterConsole:
        """A console by itself, whose connection to ZooKeeper has been lost."""
        double = ZookeeperDouble(reactor)
        self.addCleanup(double.stop)
        listener = "tcp:0:interface=127.0.0.1"
        console = ClusterConsole(reactor, listener, "double", zookeeper=double.client)
        self.addCleanup(console.stopService)
        console.privilegedStartService()
        console.startService()
        while console.zookeeper is None or not console.zookeeper.connected:
            await later()
        double.disconnect(console.zookeeper)
        return console

    @inThread
    def test_noZookeeper(self) -> None:
        console = inReactor(self.startAlone)
        self.browser = Chromium()
        self.addCleanup(self.browser.close)
        self.browser.open(f"http://127.0.0.1:{console.port.getHost().port}/")
        self.assertEqual(self.dot(), "bad")


class MarkProbes(test_console.ConsoleTests):
    """In Chromium: which texts of a group's card are marked as trouble."""

    async def enter(self, offsets: dict[str, bytes]) -> None:
        zookeeper = ZookeeperClient(reactor, self.servers)
        await zookeeper.connect()
        for place, offset in offsets.items():
            group, partition = place.split("/")
            path = f"/consumers/{group}/offsets/orders/{partition}"
            await createPersistent(zookeeper, path, offset)
        await zookeeper.close()

    def marksOf(self, group: str) -> list[str]:
        """Of two groups without members: one that has read all, and one that has not."""
        self.start()
        self.send(20)
        for partition in range(2):
            self.producer.confirm("orders", partition)
        read, unread = b"10100", b"0"
        offsets = {"done/0-0": read, "done/0-1": read, "late/0-1": read, "late/0-0": unread}
        inReactor(self.enter, offsets)
        late = ".group[data-group=late] > div:first-child"
        self.browser.waitFor("the lag", lambda: "lag 9.9 KiB" in self.browser.text(late))
        marked: list[str] = self.browser.run(
            "return [...document.querySelectorAll(`.group[data-group=${arguments[0]}]"
            " .bad`)].map((each) => each.textContent)",
            group,
        )
        return marked

    @inThread
    def test_noLag(self) -> None:
        self.assertEqual(self.marksOf("done"), [])

    @inThread
    def test_lag(self) -> None:
        self.assertIn("9.9 KiB", self.marksOf("late"))


class ScopeProbes(test_console.ConsoleTests):
    """In Chromium: whose the figures of a page are."""

    def sendElsewhere(self) -> Any:
        """Have a second broker; returns what sends it a message and confirms it."""
        other = BrokerProcess(os.path.abspath(self.mktemp()), registered(self.servers, 1))
        other.start()
        self.addCleanup(other.kill)
        producer = type(self.producer)("127.0.0.1", other.port)
        self.addCleanup(producer.close)

        def send() -> None:
            producer.send("elsewhere", 0, [b"x" * 1000])
            producer.confirm("elsewhere", 0)

        return send

    def rates(self) -> list[str]:
        """Bytes in of the first topic and of the page, as the page shows them at one time."""
        shown: list[str] = self.browser.run(
            "return ['#topics tr td:nth-child(4)', '#tiles .in dd'].map((each) =>"
            " document.querySelector(each)?.innerText ?? '')"
        )
        return shown

    @inThread
    def test_brokerPage(self) -> None:
        """Nothing is sent to the broker whose page it is."""
        self.start()
        send = self.sendElsewhere()

        def flows() -> list[str] | None:
            send()
            rates = self.rates()
            return rates if re.match("[1-9]", rates[0]) else None

        self.assertEqual(self.browser.waitFor("traffic", flows)[1], "0 B/s")

    async def serveCluster(self) -> ClusterConsole:
        console = ClusterConsole(reactor, "tcp:0:interface=127.0.0.1", self.servers)
        self.addCleanup(console.stopService)
        console.privilegedStartService()
        console.startService()
        return console

    @inThread
    def test_clusterPage(self) -> None:
        """What only a broker knows is not on the page of a cluster."""
        self.start()
        self.send(20)
        self.producer.confirm("orders", 0)
        console = inReactor(self.serveCluster)
        self.browser.open(f"http://127.0.0.1:{console.port.getHost().port}/")
        self.browser.waitFor("rates", lambda: all(re.match("[0-9]", rate) for rate in self.rates()))
        text = self.browser.text("main")
        absent = ("bytes out", "not known", "–", "look at its own page")
        self.assertEqual([each for each in absent if each in text], [])
