"""
Tests of the console of a cluster of today's Kafka: a real broker in this process, asked as any
client asks.
"""

from __future__ import annotations

import base64
from typing import Any

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from pylogbroker.client.kafka.admin.client import AdminClient, NewTopic, checkAll
from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.console.kafkacluster import KafkaClusterView
from pylogbroker.console.standalone import KafkaClusterConsole
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import ConfigurationError, UnknownPartitionError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.testing.localbroker import LocalBroker
from tests.console.asking import figures, get


class KafkaCase(TestCase):
    """A broker, and a client of today's Kafka beside the console."""

    timeout = 120

    async def start(self) -> None:
        self.broker = LocalBroker(reactor, {"num.partitions": "2"})
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        self.servers = f"{self.broker.host}:{self.broker.port}"
        admin = AdminClient(reactor, {"bootstrap.servers": self.servers})
        self.addCleanup(admin.close)
        checkAll(await admin.createTopics([NewTopic("visits", partitionCount=2)]))
        producer = KafkaProducer(reactor, {"bootstrap.servers": self.servers})
        for number in range(5):
            await producer.send("visits", b"%d" % number, key=b"k", partition=1)
        await producer.close()

    async def member(self, **properties: str) -> KafkaConsumer:
        """A member of the group I{readers} that has read two records and committed."""
        consumer = KafkaConsumer(
            reactor,
            {
                "bootstrap.servers": self.servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": "false",
                **properties,
            },
        )
        self.addCleanup(consumer.close)
        consumer.subscribe(["visits"])
        records = aiter(consumer)
        for _ in range(2):
            await anext(records)
        await consumer.commitOffsets()
        return consumer

    def view(self, **properties: str) -> KafkaClusterView:
        view = KafkaClusterView(reactor, {"bootstrap.servers": self.servers, **properties})
        self.addCleanup(view.close)
        return view

    def visits(self, state: Any) -> Any:
        """The partitions of the topic."""
        [found] = [topic["partitions"] for topic in state["topics"] if topic["name"] == "visits"]
        return found


class StateTests(KafkaCase):
    """Brokers and topics."""

    async def test_topics(self) -> None:
        """Brokers with the controller, and partitions with their offsets and bytes."""
        await self.start()
        state = await self.view().state()
        [broker] = state["brokers"]
        self.assertEqual(
            (broker["endpoint"], broker["isController"], broker["problem"]),
            (self.servers, True, ""),
        )
        [visits] = [topic for topic in state["topics"] if topic["name"] == "visits"]
        self.assertEqual((visits["kind"], visits["counts"]), ("kafka", None))
        rows = [(part["partition"], part["start"], part["end"]) for part in visits["partitions"]]
        self.assertEqual(rows, [(0, 0, 0), (1, 0, 5)])
        self.assertEqual(visits["partitions"][0]["size"], 0)
        self.assertGreater(visits["partitions"][1]["size"], 5)
        self.assertEqual((state["isKnown"], state["problems"], state["own"]), (True, [], None))

    async def test_refused(self) -> None:
        """A failed disk, or offsets that may not be seen, are told beside the rest."""
        await self.start()
        self.broker.injectError("DescribeLogDirs", "KAFKA_STORAGE_ERROR", count=None)
        self.broker.injectError(
            "ListOffsets", "TOPIC_AUTHORIZATION_FAILED", topic="visits", partition=0, count=None
        )
        state = await self.view().state()
        [problem] = state["problems"]
        self.assertRegex(problem, "of broker 0: KAFKA_STORAGE_ERROR")
        refused, shown = self.visits(state)
        self.assertIn("TOPIC_AUTHORIZATION_FAILED", refused["problem"])
        self.assertNotIn("end", refused)
        self.assertEqual((shown["problem"], shown["end"], "size" in shown), ("", 5, False))

    async def test_noSizes(self) -> None:
        """Without an answer for sizes, offsets are shown."""
        await self.start()
        self.broker.injectDisconnect("DescribeLogDirs", count=None)
        state = await self.view(**{"default.api.timeout.ms": "300"}).state()
        [problem] = state["problems"]
        self.assertIn("sizes are not known: ", problem)
        self.assertEqual([part["end"] for part in self.visits(state)], [0, 5])

    async def test_away(self) -> None:
        """A cluster that does not answer is not known, and the answer says why."""
        settings = {"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": "300"}
        view = KafkaClusterView(reactor, settings)
        self.addCleanup(view.close)
        state, groups = await view.state(), await view.groups()
        self.assertEqual((state["isKnown"], state["topics"]), (False, []))
        self.assertIn("the cluster: ", state["problems"][0])
        self.assertEqual((groups["isKnown"], groups["groups"]), (False, []))

    def test_wrongProperty(self) -> None:
        """A wrong property is named at once."""
        error = self.assertRaises(
            ConfigurationError,
            KafkaClusterView,
            reactor,
            {"bootstrap.servers": "h:1", "sasl.username": "u"},
        )
        self.assertIn("sasl.password", str(error))


class GroupTests(KafkaCase):
    """Groups."""

    async def checkGroup(self, **properties: str) -> None:
        await self.start()
        member = await self.member(**properties)
        found = await self.view().groups()
        self.assertEqual((found["problems"], found["isKnown"]), ([], True))
        [group] = found["groups"]
        memberId = member.groupMetadata().memberId
        self.assertEqual(
            (group["name"], group["members"], group["idleMembers"]), ("readers", [memberId], [])
        )
        keys = ("broker", "partition", "owner", "offset", "end", "lag")
        rows = [tuple(row[key] for key in keys) for row in group["partitions"]]
        self.assertEqual(rows, [(0, 0, memberId, 0, 0, 0), (0, 1, memberId, 2, 5, 3)])

    async def test_classic(self) -> None:
        """A group of the classic protocol: members, owners, committed offsets, lag in records."""
        await self.checkGroup()

    async def test_consumer(self) -> None:
        """A group of the new protocol (KIP-848) looks alike."""
        await self.checkGroup(**{"group.protocol": "consumer"})

    async def test_refused(self) -> None:
        """A group that may not be described is a problem that names it; the others are shown."""
        await self.start()
        await self.member()
        await self.member(**{"group.id": "others"})
        self.broker.injectError("OffsetFetch", "GROUP_AUTHORIZATION_FAILED", count=1)
        found = await self.view().groups()
        [problem] = found["problems"]
        self.assertRegex(problem, "^group (others|readers): .*GROUP_AUTHORIZATION_FAILED")
        self.assertEqual(len(found["groups"]), 1)

    async def test_foreignProtocol(self) -> None:
        """Groups that are not of consumers, such as those of Kafka Connect, are left out."""
        await self.start()
        cluster = ClusterClient(
            reactor, KafkaAdminSettings.fromProperties({"bootstrap.servers": self.servers})
        )
        self.addCleanup(cluster.close)
        cls = messages.JoinGroupRequest
        body = cls(
            groupId="workers",
            sessionTimeoutMs=10_000,
            rebalanceTimeoutMs=10_000,
            protocolType="connect",
            protocols=[cls.JoinGroupRequestProtocol(name="compatible", metadata=b"")],
        )
        answer: Any = None
        for _ in range(2):  # the first answer only has a member's id
            answer = await cluster.coordinators.ask(
                CoordinatorKind.GROUP,
                "workers",
                lambda connection: connection.request(ApiKey.JOIN_GROUP, body),
            )
            body.memberId = answer.memberId
        self.assertEqual(answer.errorCode, 0)
        found = await self.view().groups()
        self.assertEqual((found["groups"], found["problems"]), ([], []))


class MessageTests(KafkaCase):
    """Records."""

    async def look(self, offset: int | None, topic: str = "visits", partition: int = 1) -> Any:
        view = self.view()

        async def work(decode: Any) -> Any:
            return decode()

        return await view.messages(0, topic, partition, offset, 2, work)

    async def test_records(self) -> None:
        """The last records, or those from an offset on, with the range of the partition."""
        await self.start()
        found = await self.look(None)
        values = [base64.b64decode(row["payload"]) for row in found["messages"]]
        self.assertEqual((values, found["start"], found["end"]), ([b"3", b"4"], 0, 5))
        found = await self.look(1)
        values = [base64.b64decode(row["payload"]) for row in found["messages"]]
        self.assertEqual((values, found["nextOffset"]), ([b"1", b"2"], 3))

    async def test_movedLeader(self) -> None:
        """Records are read from the broker that leads the partition now."""
        await self.start()
        self.broker.moveLeader("visits", 1)
        found = await self.look(4)
        self.assertEqual([row["offset"] for row in found["messages"]], [4])
        row = self.visits(await self.view().state())[1]
        self.assertEqual((row["broker"], row["end"]), (1, 5))

    async def test_missing(self) -> None:
        """Topics, partitions and offsets that are not there are refused by name."""
        await self.start()
        with self.assertRaises(UnknownPartitionError) as missing:
            await self.look(0, partition=7)
        self.assertIn("visits has no partition 7", str(missing.exception))
        with self.assertRaises(ResponseError) as refused:
            await self.look(0, topic="none")
        self.assertEqual(refused.exception.code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        with self.assertRaises(ResponseError) as refused:
            await self.look(6)
        self.assertEqual(refused.exception.code, ErrorCode.OFFSET_OUT_OF_RANGE)


class ServiceTests(KafkaCase):
    """Over HTTP."""

    async def test_site(self) -> None:
        """The page's API, and the lags as metrics, in records."""
        await self.start()
        await self.member()
        console = KafkaClusterConsole(reactor, "0", {"bootstrap.servers": self.servers})
        self.addCleanup(console.stopService)
        console.privilegedStartService()
        console.startService()
        port = console.port.getHost().port
        state = (await get(port, "/api/state")).json()
        self.assertEqual((state["kind"], [row["id"] for row in state["brokers"]]), ("kafka", [0]))
        found = await get(port, "/api/messages?topic=visits&broker=0&partition=1&count=1")
        self.assertEqual([row["offset"] for row in found.json()["messages"]], [4])
        self.assertEqual(
            (await get(port, "/api/messages?topic=no&broker=0&partition=1")).status, 400
        )
        values = figures((await get(port, "/metrics")).body)
        label = 'group="readers",topic="visits",broker="0",partition="1"'
        self.assertEqual(values["pylogbroker_console_cluster_reachable"], 1)
        self.assertEqual(values[f"pylogbroker_group_lag_records{{{label}}}"], 3)
        self.assertEqual(values['pylogbroker_group_members{group="readers"}'], 1)
        self.assertEqual((await get(port, "/")).status, 200)
