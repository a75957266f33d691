"""
Tests of topics and groups of today's Kafka in the console and in the metrics: a real broker in this
process, and a client in a thread.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from confluent_kafka import Consumer
from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.broker.kafka.coordinators.groupsnapshots import assignedPartitions
from pylogbroker.console.cluster import ClusterView
from pylogbroker.metrics.brokermetrics import brokerFamilies
from pylogbroker.metrics.exposition import render
from pylogbroker.net.endpointstrings import SocketAddress
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka07.requests import encodeOffsets, encodeProduce
from pylogbroker.records.messageset import encodeSet
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.groupmember import KafkaGroupMember
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.broker.client import connect
from tests.console.asking import get

TIMEOUT_MS = 60_000


class CurrentCase(TestCase):
    """A broker with a topic of each kind, and a group with a member and without."""

    timeout = 120

    async def start(self, **properties: str) -> None:
        self.broker = LocalBroker(reactor, {"num.partitions": "2", **properties})
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        client = await connect(self, self.broker.endpoint)
        client.send(encodeProduce("old", 0, encodeSet([b"x"])), encodeOffsets("old", 0, -1, 1))
        await client.answer()
        address = SocketAddress(self.broker.host, self.broker.port)
        self.cluster = KafkaCluster([address], timeoutMs=TIMEOUT_MS)
        self.addCleanup(lambda: self.cluster.close())
        self.member = KafkaGroupMember(self.cluster, "readers", ["new"])
        await deferToThread(self.fill)

    def fill(self) -> None:
        """In a thread."""
        self.cluster.partitions("new", isCreating=True)
        where = TopicPartition("new", 1)
        RecordWriter(self.cluster).write(where, [Record(0, 0, None, b"x")] * 5)
        self.member.join()
        self.member.commit({where: 2})
        gone = KafkaGroupMember(self.cluster, "gone", ["new"])
        gone.join()
        gone.leave()
        body = messages.HeartbeatRequest(groupId="none", memberId="m")
        self.cluster.coordinator("none").request(ApiKey.HEARTBEAT, body)

    def view(self) -> ClusterView:
        view = ClusterView(reactor, self.broker.broker.service, lambda: None)
        self.addCleanup(view.close)
        return view


class ConsoleTests(CurrentCase):
    """What the page is told."""

    async def test_topics(self) -> None:
        """Topics of both kinds are there, marked by their protocol."""
        await self.start()
        state = await self.view().state()
        kinds = {topic["name"]: topic["kind"] for topic in state["topics"]}
        self.assertEqual(kinds, {"__consumer_offsets": "kafka", "new": "kafka", "old": "kafka07"})
        [new] = [topic for topic in state["topics"] if topic["name"] == "new"]
        self.assertEqual([part["end"] for part in new["partitions"]], [0, 5])

    async def test_unflushed(self) -> None:
        """The size of a topic of today has what no flush has reached yet."""
        await self.start(**{"log.flush.interval": "1000"})
        state = await self.view().state()
        [new] = [topic for topic in state["topics"] if topic["name"] == "new"]
        sizes = [(part["size"], part["unflushed"]) for part in new["partitions"]]
        self.assertGreater(sizes[1][1], 0)
        self.assertEqual(sizes, [(0, 0), (sizes[1][1], sizes[1][1])])

    async def test_groups(self) -> None:
        """Groups that the broker coordinates, with their members, owners and lag in records."""
        await self.start()
        found = await self.view().groups()
        self.assertEqual(found["problems"], [])
        groups = {group["name"]: group for group in found["groups"]}
        self.assertEqual(sorted(groups), ["gone", "readers"])
        self.assertEqual(groups["gone"]["members"], [])
        readers = groups["readers"]
        self.assertEqual((readers["kind"], readers["members"]), ("kafka", [self.member.memberId]))
        self.assertEqual(readers["idleMembers"], [])
        rows = [
            (row["partition"], row["owner"], row["offset"], row["end"], row["lag"])
            for row in readers["partitions"]
        ]
        owner = self.member.memberId
        self.assertEqual(rows, [(0, owner, None, 0, 0), (1, owner, 2, 5, 3)])

    async def test_longPoll(self) -> None:
        """A fetch that waits for records, as long as its client wants to, is no back pressure."""
        await self.start()
        service = self.broker.broker.service
        reader = RecordReader(self.cluster, {TopicPartition("new", 1): 5})
        waiting = deferToThread(lambda: list(reader.poll(600_000)))
        while not service.kafka._fetches.waiting:
            await deferLater(reactor, 0.01)
        self.assertEqual(service.picture().waiting, ())
        await deferToThread(self.more)
        self.assertEqual([record.value for _, record in await waiting], [b"y"])

    def more(self) -> None:
        """In a thread, by a client of its own."""
        address = SocketAddress(self.broker.host, self.broker.port)
        with KafkaCluster([address], timeoutMs=TIMEOUT_MS) as cluster:
            RecordWriter(cluster).write(TopicPartition("new", 1), [Record(0, 0, None, b"y")])


class RecordTests(CurrentCase):
    """Records in the page."""

    async def records(self, **query: int | str) -> Any:
        console = self.broker.broker.console
        assert console is not None
        path = "/api/messages?" + urlencode({"broker": 0, "partition": 1, **query})
        return await get(console.port.getHost().port, path)

    def fillMore(self) -> None:
        """In a thread."""
        record = Record(0, 1_700_000_000_123, b"key", None, (("name", b"value"),))
        RecordWriter(self.cluster).write(TopicPartition("new", 1), [record])

    async def test_records(self) -> None:
        """Key, value, headers, offset and time; the last ones, or those from an offset on."""
        await self.start(**{"http.listener": "0"})
        await deferToThread(self.fillMore)
        found = (await self.records(topic="new", count=1)).json()
        self.assertEqual((found["offset"], found["nextOffset"]), (5, 6))
        self.assertEqual((found["start"], found["end"], found["problem"]), (0, 6, ""))
        [row] = found["messages"]
        self.assertEqual((row["offset"], row["timestampMs"]), (5, 1_700_000_000_123))
        self.assertEqual((row["key"], row["payload"]), ("a2V5", None))
        self.assertEqual(row["headers"], [["name", "dmFsdWU="]])
        found = (await self.records(topic="new", offset=3)).json()
        self.assertEqual([row["offset"] for row in found["messages"]], [3, 4, 5])
        # Looking is no traffic.
        self.assertEqual(self.broker.broker.service.counters.topic("new").fetchedSize, 0)

    async def test_refused(self) -> None:
        """What cannot be answered is 400, with a sentence; topics of 2011 are read as ever."""
        await self.start(**{"http.listener": "0"})
        queries: list[dict[str, int]] = [{"partition": 2}, {"offset": 9}, {"broker": 5}]
        for query in queries:
            answer = await self.records(topic="new", **query)
            self.assertEqual(answer.status, 400, query)
            self.assertNotEqual(answer.json()["error"], "")
        found = (await self.records(topic="old", partition=0)).json()
        self.assertEqual([row["payload"] for row in found["messages"]], ["eA=="])

    async def test_accessControl(self) -> None:
        """
        With access control lists the console shows no records, since it does not know its users,
        unless the operator sets C{http.messages}.
        """
        lists = {
            "http.listener": "0",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        await self.start(**lists)
        self.assertEqual((await self.records(topic="new")).status, 404)
        await self.start(**{**lists, "http.messages": "true"})
        self.assertEqual((await self.records(topic="new")).status, 200)


class MetricsTests(CurrentCase):
    """What a scrape is told."""

    async def test_metrics(self) -> None:
        """Requests by name, their errors, groups with lag, compaction, and producers."""
        await self.start()
        place = 'group="readers",topic="new",partition="1"'
        lines = render(brokerFamilies(self.broker.broker.service.picture(), "1")).decode()
        for line in (
            'pylogbroker_api_requests_total{request="Produce"} 1',
            'pylogbroker_api_requests_total{request="InitProducerId"} 1',
            'pylogbroker_api_requests_total{request="AlterConfigs"} 0',
            'pylogbroker_api_request_errors_total{request="Heartbeat",code="25"} 1',
            "pylogbroker_coordinated_groups 2",
            'pylogbroker_coordinated_group_members{group="readers"} 1',
            f"pylogbroker_coordinated_group_offset{{{place}}} 2",
            f"pylogbroker_coordinated_group_lag_records{{{place}}} 3",
            'pylogbroker_partition_producers{topic="new",partition="1"} 1',
            'pylogbroker_partition_producers{topic="old",partition="0"} 0',
            "pylogbroker_compactions_total 0",
        ):
            self.assertIn(line, lines.splitlines())
        self.assertIn('pylogbroker_api_request_seconds_total{request="JoinGroup"}', lines)

    async def test_newProtocol(self) -> None:
        """Groups of KIP-848 are there with their members and what these have."""
        await self.start()
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "group.id": "assigned",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe(["new"])

        def read() -> None:
            while consumer.poll(1) is None:
                pass
            consumer.commit(asynchronous=False)

        await deferToThread(read)
        found = {each.name: each for each in self.broker.broker.service.picture().groups}
        [member] = found["assigned"].members
        self.assertEqual(sorted(member.partitions), [("new", 0), ("new", 1)])
        self.assertIn(("new", 1), [offset[:2] for offset in found["assigned"].offsets])
        await deferToThread(consumer.close)


class AssignmentTests(SynchronousTestCase):
    """Assignments of members that are no consumers."""

    def test_foreign(self) -> None:
        """They have no partitions that could be shown."""
        for data in (b"", b"x", b"\0\1garbage"):
            self.assertEqual(assignedPartitions(data), ())
