"""
Tests of gathering what the page shows: a broker on a lead, a double of ZooKeeper, and other brokers
that are real ones.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.console import cluster as module
from pylogbroker.console.cluster import ClusterView
from pylogbroker.console.peek import OwnSource, RemoteSource
from pylogbroker.errors import NoBrokersError
from pylogbroker.protocol.kafka07.requests import encodeOffsets, encodeProduce
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import FakeZookeeper
from tests.broker.client import connect

A = encodeSet([b"hello"])


class ClusterCase(TestCase):
    """Brokers 0 and 1, of which 0 serves the page, and a group."""

    timeout = 60

    async def start(self) -> None:
        self.double = FakeZookeeper(reactor)
        self.addCleanup(self.double.stop)
        self.brokers = []
        for number in range(2):
            properties = {
                "brokerid": str(number),
                "enable.zookeeper": "true",
                "zk.connect": "double",
                "num.partitions": str(number + 1),
            }
            broker = LocalBroker(reactor, properties, zookeeper=self.double.client)
            self.addCleanup(broker.stop)
            await broker.start()
            self.brokers.append(broker)
            client = await connect(self, broker.endpoint)
            client.send(encodeProduce("t", number, A), encodeOffsets("t", number, -1, 1))
            await client.answer()
        self.zookeeper = self.double.client()
        await self.zookeeper.connect()
        self.addCleanup(self.zookeeper.close)
        for path, data in (
            ("/consumers", b""),
            ("/consumers/g", b""),
            ("/consumers/g/ids", b""),
            ("/consumers/g/ids/g_host-1", b'{ "t": 1 }'),
            ("/consumers/g/offsets", b""),
            ("/consumers/g/offsets/t", b""),
            ("/consumers/g/offsets/t/0-0", b"5"),
            ("/consumers/g/offsets/t/1-1", b"0"),
            ("/consumers/g/offsets/t/1-0", b"rubbish"),
            ("/consumers/g/offsets/t/nonsense", b"1"),
            ("/consumers/g/owners", b""),
            ("/consumers/g/owners/t", b""),
            ("/consumers/g/owners/t/0-0", b"g_host-1-0"),
            ("/consumers/empty", b""),
        ):
            await self.zookeeper.create(path, data)

    def view(self, own: bool = True) -> ClusterView:
        service = self.brokers[0].broker.service if own else None
        view = ClusterView(reactor, service, lambda: self.zookeeper)
        self.addCleanup(lambda: Deferred.fromCoroutine(view.close()))
        return view

    async def registered(self) -> None:
        """The topics' entries follow the broker's."""
        for broker in self.brokers:
            while not broker.broker.service.picture().isRegistered:
                await later()


def later() -> Deferred[None]:
    """The next turn or so."""
    waiting: Deferred[None] = Deferred()
    reactor.callLater(0.01, waiting.callback, None)
    return waiting


class StateTests(ClusterCase):
    """Brokers, topics, partitions."""

    async def test_own(self) -> None:
        """
        The own broker's partitions come from it, with all that it knows; the others' are asked for.
        """
        await self.start()
        await self.registered()
        state = await self.view().state()
        rows = [
            (row["id"], row["isOwn"], row["isRegistered"], row["problem"])
            for row in state["brokers"]
        ]
        self.assertEqual(rows, [(0, True, True, ""), (1, False, True, "")])
        self.assertEqual(state["brokers"][1]["endpoint"], f"127.0.0.1:{self.brokers[1].port}")
        [topic] = state["topics"]
        self.assertEqual((topic["name"], topic["counts"]["messageCount"]), ("t", 1))
        parts = [
            (row["broker"], row["partition"], row["start"], row["end"], row["size"], row["problem"])
            for row in topic["partitions"]
        ]
        self.assertEqual(parts, [(0, 0, 0, 15, 15, ""), (1, 0, 0, 0, 0, ""), (1, 1, 0, 15, 15, "")])
        self.assertEqual(
            (topic["partitions"][0]["segments"], "segments" in topic["partitions"][1]), (1, False)
        )
        self.assertIsNone(state["cluster"])  # it keeps its metadata by itself
        self.assertEqual(
            (
                state["own"]["id"],
                state["own"]["total"]["producedSize"],
                state["problems"],
                state["hasGroups"],
            ),
            (0, 15, [], True),
        )

    async def test_counts(self) -> None:
        """
        What the own broker counts of a topic is 0 before its first traffic since the start; not
        known if it may be counted among other topics; and nothing if the broker does not have it.
        """
        await self.start()
        await self.registered()
        client = await connect(self, self.brokers[1].endpoint)
        client.send(encodeProduce("u", 0, A), encodeOffsets("u", 0, -1, 1))
        await client.answer()
        view, counters = self.view(), self.brokers[0].broker.service.counters
        while len((await view.state())["topics"]) < 2:
            await later()

        async def counts() -> list[int | None]:
            topics = (await view.state())["topics"]
            return [topic["counts"] and topic["counts"]["messageCount"] for topic in topics]

        self.assertEqual(await counts(), [1, None])
        counters.topics.clear()
        self.assertEqual(await counts(), [0, None])
        counters.otherTopics.messageCount += 1
        self.assertEqual(await counts(), [None, None])

    async def test_alone(self) -> None:
        """
        Without an own broker all are asked, and nothing is said of what only they know; a second
        look soon after tells the same, and since when.
        """
        await self.start()
        await self.registered()
        view = self.view(own=False)
        state = await view.state()
        self.assertEqual(
            (state["own"], [row["isOwn"] for row in state["brokers"]]), (None, [False, False])
        )
        self.assertEqual([row["end"] for row in state["topics"][0]["partitions"]], [15, 0, 15])
        again = await view.state()
        self.assertEqual(again["foreignTimeMs"], state["foreignTimeMs"])
        self.assertTrue(0 < state["foreignTimeMs"] <= state["timeMs"] <= again["timeMs"])

    async def test_unreachable(self) -> None:
        """
        A broker that does not answer, entries that say nothing and names that are none are
        problems, told beside the rest.
        """
        await self.start()
        await self.registered()
        await self.zookeeper.create(
            "/brokers/ids/7", BrokerRegistration("x", "127.0.0.1", 1).encode()
        )
        await self.zookeeper.create("/brokers/ids/8", b"rubbish")
        await self.zookeeper.create("/brokers/topics/t/7", b"1")
        await self.zookeeper.create("/brokers/topics/t/1x", b"1")
        await self.zookeeper.create("/brokers/topics/t/9", b"many")
        state = await self.view().state()
        rows = {row["id"]: row["problem"] for row in state["brokers"]}
        self.assertEqual(sorted(rows), [0, 1, 7])
        self.assertNotEqual(rows[7], "")
        for path in ("/brokers/ids/8", "/brokers/topics/t/1x", "/brokers/topics/t/9"):
            self.assertEqual(
                sum(path in problem for problem in state["problems"]), 1, state["problems"]
            )
        self.assertEqual(
            [bool(row["problem"]) for row in state["topics"][0]["partitions"]],
            [False, False, False, True],
        )

    async def test_stoppedBroker(self) -> None:
        """
        A broker that has stopped is shown as down, and so are its partitions; it is up again when
        it registers again.
        """
        await self.start()
        await self.registered()
        view = self.view()
        await view.state()
        registration = await self.zookeeper.get("/brokers/ids/1")
        await self.brokers[1].stop()
        state = await view.state()
        while "down" not in state["brokers"][1]["problem"]:
            await later()
            state = await view.state()
        self.assertEqual(
            [(row["id"], row["isRegistered"]) for row in state["brokers"]], [(0, True), (1, False)]
        )
        self.assertIn("down", state["brokers"][1]["problem"])
        while len(state["topics"][0]["partitions"]) < 3:
            state = await view.state()
            await later()
        parts = [
            (row["broker"], row["partition"], bool(row["problem"]))
            for row in state["topics"][0]["partitions"]
        ]
        self.assertEqual(parts, [(0, 0, False), (1, 0, True), (1, 1, True)])
        await self.zookeeper.create("/brokers/ids/1", registration[0])
        while "down" in state["brokers"][1]["problem"]:
            await later()
            state = await view.state()
        self.assertEqual(len(state["brokers"]), 2)

    async def test_away(self) -> None:
        """When ZooKeeper is away, what the own broker knows is shown all the same."""
        await self.start()
        await self.registered()
        view = self.view()
        self.double.disconnect(self.zookeeper)
        state = await view.state()
        self.assertEqual((len(state["topics"][0]["partitions"]), len(state["problems"])), (1, 1))
        self.assertIn("ZooKeeper", state["problems"][0])
        self.assertEqual((await view.groups())["groups"], [])

    async def test_limits(self) -> None:
        """Of very many topics and groups so many are shown, and that is told."""
        await self.start()
        await self.registered()
        self.patch(module, "TOPIC_COUNT_MAX", 1)
        self.patch(module, "GROUP_COUNT_MAX", 1)
        await self.zookeeper.create("/brokers/topics/u", b"")
        view = self.view()
        self.assertIn("1 of 2 topics are shown", (await view.state())["problems"])
        found = await view.groups()
        self.assertEqual(
            (len(found["groups"]), found["problems"]), (1, ["1 of 2 groups are shown"])
        )

    async def test_noZookeeper(self) -> None:
        """A broker without ZooKeeper shows itself."""
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        view = ClusterView(reactor, broker.broker.service, lambda: None)
        state = await view.state()
        self.assertEqual(
            (len(state["brokers"]), state["topics"], state["hasGroups"]), (1, [], False)
        )
        self.assertEqual(await view.groups(), {"groups": [], "problems": []})


class GroupTests(ClusterCase):
    """Groups."""

    async def test_groups(self) -> None:
        """
        Members, owners, offsets, and the lag in bytes behind what can be read; what is no offset is
        left out, and told.
        """
        await self.start()
        await self.registered()
        found = await self.view().groups()
        empty, group = found["groups"]
        self.assertEqual((empty["name"], empty["members"], empty["partitions"]), ("empty", [], []))
        self.assertEqual((group["name"], group["members"]), ("g", ["g_host-1"]))
        rows = [
            (
                row["topic"],
                row["broker"],
                row["partition"],
                row["owner"],
                row["offset"],
                row["end"],
                row["lag"],
            )
            for row in group["partitions"]
        ]
        self.assertEqual(
            rows,
            [
                ("t", 0, 0, "g_host-1-0", 5, 15, 10),
                ("t", 1, 0, "", None, 0, 0),
                ("t", 1, 1, "", 0, 15, 15),
            ],
        )
        for path in ("/consumers/g/offsets/t/1-0", "/consumers/g/offsets/t/nonsense"):
            self.assertEqual(
                sum(path in problem for problem in found["problems"]), 1, found["problems"]
            )

    async def test_withoutOffset(self) -> None:
        """
        A partition without a stored offset counts from the start of its log: otherwise the sum of
        lags is too small.
        """
        await self.start()
        await self.registered()
        await self.zookeeper.delete("/consumers/g/offsets/t/1-1")
        found = await self.view().groups()
        lags = {
            (row["broker"], row["partition"]): row["lag"]
            for row in found["groups"][1]["partitions"]
        }
        self.assertEqual(lags, {(0, 0): 10, (1, 0): 0, (1, 1): 15})

    async def test_idleMembers(self) -> None:
        """Members that own no partition are named."""
        await self.start()
        await self.registered()
        await self.zookeeper.create("/consumers/g/ids/g_host-2", b'{ "t": 1 }')
        found = await self.view().groups()
        self.assertEqual(found["groups"][1]["idleMembers"], ["g_host-2"])


class SourceTests(ClusterCase):
    """Where messages come from."""

    async def test_goneMeanwhile(self) -> None:
        """When ZooKeeper goes while it is being looked at, that is the answer, and no error."""
        await self.start()
        await self.registered()
        given = iter([self.zookeeper, self.zookeeper])  # for groups; none for where partitions end
        view = ClusterView(reactor, None, lambda: next(given, None))
        self.addCleanup(lambda: Deferred.fromCoroutine(view.close()))
        self.assertEqual(
            await view.groups(), {"groups": [], "problems": ["ZooKeeper: there is no connection"]}
        )

    async def test_source(self) -> None:
        """From the own broker directly, from others as any client; nobody else."""
        await self.start()
        await self.registered()
        view = self.view()
        await view.state()
        own, other = await view.source(0), await view.source(1)
        self.assertIsInstance(own, OwnSource)
        self.assertIsInstance(other, RemoteSource)
        self.assertEqual((await own.read("t", 0, 0, 100), await other.read("t", 1, 0, 100)), (A, A))
        await self.assertFailure(Deferred.fromCoroutine(view.source(5)), NoBrokersError)


class NoneTests(SynchronousTestCase):
    """Nothing to look at."""

    def test_nothing(self) -> None:
        """Neither a broker nor ZooKeeper: empty, and no error."""
        view: Any = ClusterView(Clock(), None, lambda: None)
        state = self.successResultOf(Deferred.fromCoroutine(view.state()))
        self.assertEqual((state["brokers"], state["topics"], state["own"]), ([], [], None))
        self.successResultOf(succeed(None))
