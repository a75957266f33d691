"""
Tests of the blocking client of today's Kafka, with a real broker and the faults that it can be
given.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    BrokerConnectionError,
    FormatError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnsupportedVersionError,
    WireError,
)
from pylogbroker.net.endpointstrings import SocketAddress
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeHeader
from pylogbroker.protocol.kafka.responses import frameResponse
from pylogbroker.records.compression import LZ4
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.connection import KafkaConnection
from pylogbroker.syncclient.kafka.groupmember import KafkaGroupMember
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.syncclient.kafka.recordwriter import RecordWriter
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.types import TopicPartition

TIMEOUT_MS = 60_000
ALL = frozenset(ApiKey)


class OldBroker:
    """
    A broker in a thread that knows some versions only, and answers what the test says.

    @ivar asked: the versions of the ApiVersions requests.
    """

    def __init__(self, versions: dict[ApiKey, tuple[int, int]], *answers: bytes) -> None:
        self.versions = versions
        self.asked: list[int] = []
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                while size := file.read(4):
                    self._answer(connection, file.read(int.from_bytes(size, "big")))

    def _answer(self, connection: socket.socket, frame: bytes) -> None:
        header, _ = decodeHeader(frame, ALL)
        if header.apiKey is not ApiKey.API_VERSIONS:
            connection.sendall(self._answers.pop(0))
            return
        self.asked.append(header.apiVersion)
        cls = messages.ApiVersionsResponse
        first, last = self.versions[ApiKey.API_VERSIONS]
        isKnown = first <= header.apiVersion <= last
        body = cls(
            errorCode=0 if isKnown else ErrorCode.UNSUPPORTED_VERSION,
            apiKeys=[
                cls.ApiVersion(apiKey=key, minVersion=low, maxVersion=high)
                for key, (low, high) in self.versions.items()
            ],
        )
        version = header.apiVersion if isKnown else 0
        connection.sendall(frameResponse(header, body.encode(version)))

    def close(self) -> None:
        self._listening.close()


class ConnectionTests(SynchronousTestCase):
    """Versions, and what is no answer."""

    def connect(self, broker: OldBroker) -> KafkaConnection:
        self.addCleanup(broker.close)
        made = KafkaConnection("127.0.0.1", broker.port, timeoutMs=TIMEOUT_MS)
        self.addCleanup(made.close)
        return made

    def test_negotiated(self) -> None:
        """An older broker's ApiVersions is found, and requests leave in versions of both."""
        key = ApiKey.HEARTBEAT
        header = RequestHeader(key, 2, 3, None)
        body = messages.HeartbeatResponse(errorCode=27)
        broker = OldBroker(
            {ApiKey.API_VERSIONS: (0, 2), key: (0, 2), ApiKey.LEAVE_GROUP: (50, 60)},
            frameResponse(header, body.encode(2)),
        )
        connection = self.connect(broker)
        self.assertTrue(connection.supports(key, 2))
        self.assertFalse(connection.supports(key, 3))
        self.assertFalse(connection.supports(ApiKey.FETCH))
        self.assertEqual(broker.asked, [ApiKey.API_VERSIONS.lastVersion, 2])
        self.assertEqual(connection.request(key, messages.HeartbeatRequest()).errorCode, 27)
        for missing, text in ((ApiKey.FETCH, "has none"), (ApiKey.LEAVE_GROUP, "has 50 to 60")):
            with self.assertRaisesRegex(UnsupportedVersionError, text):
                connection.request(missing, None)
        with self.assertRaisesRegex(UnsupportedVersionError, "has 0 to 2"):
            connection.request(key, None, versionMax=-1)

    def test_oldest(self) -> None:
        """One that names no versions of ApiVersions is asked in the first."""
        broker = OldBroker({ApiKey.API_VERSIONS: (0, 0)})
        connection = self.connect(broker)
        self.assertTrue(connection.supports(ApiKey.API_VERSIONS))
        self.assertEqual(broker.asked[-1], 0)

    def test_noAnswer(self) -> None:
        """What answers another request drops the connection; the next one is negotiated anew."""
        key = ApiKey.HEARTBEAT
        wrong = frameResponse(RequestHeader(key, 0, 99, None), b"\0\0")
        broker = OldBroker({ApiKey.API_VERSIONS: (0, 4), key: (0, 0)}, wrong)
        connection = self.connect(broker)
        with self.assertRaisesRegex(WireError, "response 99"):
            connection.request(key, messages.HeartbeatRequest())
        self.assertTrue(connection.supports(key))
        self.assertEqual(broker.asked, [4, 4])


class ClusterCase(SynchronousTestCase):
    """A broker, and a client of it."""

    broker = BackgroundBroker({"num.partitions": "2"})  # one for all; the end of the run ends it

    def setUp(self) -> None:
        self.broker.reset()
        self.cluster = self.client()

    def client(self, **more: Any) -> KafkaCluster:
        """It is closed with the test."""
        made = KafkaCluster(
            [SocketAddress(self.broker.host, self.broker.port)], timeoutMs=TIMEOUT_MS, **more
        )
        self.addCleanup(made.close)
        return made

    def write(self, where: TopicPartition, *values: bytes) -> int:
        """Create the topic, and append records; returns the first offset."""
        self.cluster.partitions(where.topic, isCreating=True)
        records = [Record(0, 1000 + place, None, value) for place, value in enumerate(values)]
        return RecordWriter(self.cluster).write(where, records)


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class ClusterTests(ClusterCase):
    """Finding whom to ask."""

    def test_bootstrap(self) -> None:
        """Any broker of the list will do; if none can be reached, the last reason is told."""
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        gone = SocketAddress("127.0.0.1", port)
        with KafkaCluster([gone, SocketAddress("127.0.0.1", self.broker.port)], timeoutMs=200) as c:
            self.assertEqual(len(c.metadata(()).brokers), 1)
        alone = KafkaCluster([gone], timeoutMs=50)
        with alone, self.assertRaisesRegex(BrokerConnectionError, str(port)):
            alone.metadata(())

    def test_missing(self) -> None:
        """What is not there has a name in the error."""
        with self.assertRaisesRegex(ResponseError, "topic t: UNKNOWN_TOPIC_OR_PARTITION"):
            self.cluster.partitions("t")
        self.assertEqual(self.cluster.partitions("t", isCreating=True), [0, 1])
        with self.assertRaisesRegex(UnknownPartitionError, "t-7"):
            self.cluster.leader(TopicPartition("t", 7))
        with self.assertRaisesRegex(BrokerConnectionError, "no broker 9"):
            self.cluster.broker(9)
        self.broker.injectError("Metadata", "LEADER_NOT_AVAILABLE", topic="t", partition=0)
        with self.assertRaisesRegex(ResponseError, "t-0: LEADER_NOT_AVAILABLE"):
            self.client().leader(T0)

    def test_triedAgain(self) -> None:
        """Errors that pass, cut connections and moved leaders are tried again; others are not."""
        self.write(T0, b"x")
        faults = [
            self.broker.injectError("ListOffsets", "NOT_LEADER_OR_FOLLOWER"),
            self.broker.injectDisconnect("ListOffsets"),
        ]
        self.assertEqual(self.cluster.offsets([T0], LATEST), {T0: (1, -1)})
        self.assertEqual([fault.hitCount for fault in faults], [1, 1])
        self.assertEqual(self.broker.moveLeader("t"), 1)
        self.assertEqual(self.cluster.offsets([T0, T1], EARLIEST), {T0: (0, -1), T1: (0, -1)})
        self.assertEqual(self.cluster.leader(T0), 1)
        self.broker.injectError("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", partition=0)
        found = self.cluster.offsets([T0, T1], 1000)
        self.assertIsInstance(found[T0], ResponseError)
        self.assertEqual(found[T1], (-1, -1))

    def test_givesUp(self) -> None:
        """What never passes is told when the time is over."""
        now = [0.0]
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            now[0] += seconds

        client = self.client(clock=lambda: now[0], pause=pause)
        client.partitions("t", isCreating=True)
        self.broker.injectError("ListOffsets", "NOT_LEADER_OR_FOLLOWER", count=None)
        self.assertRaises(ResponseError, client.offsets, [T0], LATEST)
        self.assertGreater(len(pauses), 2)
        self.assertLessEqual(now[0] * 1000, TIMEOUT_MS)

    def test_coordinator(self) -> None:
        """A group's coordinator is asked for, also in the old way, and again if it moves."""
        for version in (3, 4):
            client = self.client()
            client.any()._versions[ApiKey.FIND_COORDINATOR] = (0, version)
            name = f"127.0.0.1:{self.broker.port}"
            self.assertEqual(client.coordinator("g").name, name)
        body = messages.DescribeGroupsRequest(groups=["g"])
        fault = self.broker.injectError("DescribeGroups", "NOT_COORDINATOR")
        self.cluster.askCoordinator(
            "g", ApiKey.DESCRIBE_GROUPS, body, lambda answer: answer.groups[0].errorCode % 69
        )
        self.assertEqual(fault.hitCount, 1)


class RecordTests(ClusterCase):
    """Records, written and read."""

    def read(self, *places: TopicPartition, count: int) -> list[tuple[TopicPartition, Record]]:
        """So many records from the beginning."""
        reader = RecordReader(self.cluster, dict.fromkeys(places, 0))
        found: list[tuple[TopicPartition, Record]] = []
        while len(found) < count:
            found += reader.poll(100)
        return found

    def test_fields(self) -> None:
        """Keys, values, headers and times arrive, compressed or not."""
        self.cluster.partitions("t", isCreating=True)
        records = [
            Record(0, 5, b"k", b"v", (("h", b"x"), ("n", None))),
            Record(1, 9, None, None),
        ]
        for codec in (0, LZ4):
            RecordWriter(self.cluster, codec).write(T1, records)
        found = [record for _, record in self.read(T0, T1, count=4)]
        self.assertEqual(found[:2], records)
        self.assertEqual(found[2:], [each._replace(offset=each.offset + 2) for each in records])

    def test_once(self) -> None:
        """A batch whose answer was lost is stored once; so is one that a moved leader refused."""
        self.assertEqual(self.write(T0, b"0"), 0)
        writer = RecordWriter(self.cluster)
        fault = self.broker.injectDisconnect("Produce", isHandled=True)
        self.assertEqual(writer.write(T0, [Record(0, 0, None, b"1")]), 1)
        self.assertEqual(fault.hitCount, 1)
        self.broker.moveLeader("t")
        self.assertEqual(writer.write(T0, [Record(0, 0, None, b"2"), Record(0, 0, None, b"3")]), 2)
        self.assertEqual(writer.write(T0, [Record(0, 0, None, b"4")]), 4)
        found = [record.value for _, record in self.read(T0, count=5)]
        self.assertEqual(found, [b"0", b"1", b"2", b"3", b"4"])

    def test_refused(self) -> None:
        """A refusal has its name."""
        self.write(T0, b"x")
        self.broker.injectError("Produce", "INVALID_RECORD")
        with self.assertRaisesRegex(ResponseError, "t-0: INVALID_RECORD"):
            RecordWriter(self.cluster).write(T0, [Record(0, 0, None, b"x")])
        self.broker.injectError("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED")
        with self.assertRaisesRegex(ResponseError, "producer id: CLUSTER_AUTHORIZATION_FAILED"):
            RecordWriter(self.cluster).write(T0, [Record(0, 0, None, b"x")])

    def test_positions(self) -> None:
        """A reader begins in the middle of a batch, and its position is behind what it gave."""
        self.write(T0, b"a", b"b", b"c")
        reader = RecordReader(self.cluster, {T0: 1})
        found = reader.poll(100)
        self.assertEqual(next(found)[1].value, b"b")
        self.assertEqual(reader.positions, {T0: 2})
        self.assertEqual([record.value for _, record in found], [b"c"])
        self.assertEqual(list(reader.poll(1)), [])
        self.assertEqual(reader.positions, {T0: 3})

    def test_unreadable(self) -> None:
        """What cannot be read has its reason."""
        self.write(T0, b"a")
        with self.assertRaisesRegex(OffsetOutOfRangeError, "t-0 has no offset 9"):
            list(RecordReader(self.cluster, {T0: 9}).poll(1))
        self.broker.injectError("Fetch", "TOPIC_AUTHORIZATION_FAILED", topic="t")
        with self.assertRaisesRegex(ResponseError, "t-0: TOPIC_AUTHORIZATION_FAILED"):
            list(RecordReader(self.cluster, {T0: 0}).poll(1))

    def test_damaged(self) -> None:
        """A damaged batch is an error that names it, and a cut one at the beginning is, too."""
        batch = bytearray(encodeBatch([Record(0, 0, None, bytes(100))]))
        reader = RecordReader(self.cluster, {T0: 0})
        with self.assertRaisesRegex(MessageTooLargeError, "more than 100 bytes"):
            list(reader.batches(T0, bytes(batch[:100])))
        batch[-1] ^= 1
        with self.assertRaisesRegex(FormatError, "t-0, batch at offset 0"):
            list(reader.batches(T0, bytes(batch)))


class MemberTests(ClusterCase):
    """Members of groups."""

    def member(self, **more: Any) -> KafkaGroupMember:
        """It is alive as long as its connections are."""
        return KafkaGroupMember(self.client(), "g", ["t"], **more)

    def test_alone(self) -> None:
        """One member has all partitions, and its commits are there for the next."""
        self.write(T0, b"x")
        member = self.member()
        self.assertEqual(member.join(), [T0, T1])
        self.assertEqual(member.committed(), {})
        self.assertTrue(member.commit({T0: 1}))
        self.assertTrue(member.commit({}))
        self.assertEqual(member.committed(), {T0: 1})
        member.leave()
        member.leave()
        other = self.member()
        other.join()
        self.assertEqual(other.committed(), {T0: 1})

    def test_shared(self) -> None:
        """
        A second member gets its share; the first learns it from a heartbeat. What is no more its
        own it cannot commit.
        """
        self.write(T0, b"x")
        now = [0.0]
        first, second = self.member(clock=lambda: now[0]), self.member()
        first.join()
        self.assertFalse(first.heartbeat())
        shares: list[list[TopicPartition]] = []
        joining = threading.Thread(target=lambda: shares.append(second.join()))
        joining.start()
        now[0] += 10
        while not first.heartbeat():
            now[0] += 10
        self.assertTrue(first.commit({T0: 1}))
        shares.append(first.join())
        joining.join(TIMEOUT_MS / 1000)
        self.assertEqual(sorted(place for share in shares for place in share), [T0, T1])
        self.assertEqual([len(share) for share in shares], [1, 1])
        second.leave()
        now[0] += 10
        self.assertTrue(first.heartbeat())
        self.assertEqual(first.join(), [T0, T1])

    def test_forgotten(self) -> None:
        """A member that the coordinator does not know any more joins as a new one."""
        self.write(T0, b"x")
        now = [0.0]
        member = self.member(clock=lambda: now[0])
        member.join()
        old = member.memberId
        fault = self.broker.injectError("OffsetCommit", "UNKNOWN_MEMBER_ID")
        self.assertFalse(member.commit({T0: 1}))
        self.assertEqual(fault.hitCount, 1)
        now[0] += 10
        self.broker.injectError("Heartbeat", "UNKNOWN_MEMBER_ID")
        self.assertTrue(member.heartbeat())
        KafkaGroupMember.leave(member)
        member.memberId = old
        self.assertEqual(member.join(), [T0, T1])
        self.assertNotEqual(member.memberId, old)

    def test_refused(self) -> None:
        """What does not pass is raised."""
        self.write(T0, b"x")
        now = [0.0]
        member = self.member(clock=lambda: now[0])
        self.broker.injectError("JoinGroup", "GROUP_AUTHORIZATION_FAILED")
        self.assertRaises(ResponseError, member.join)
        member.join()
        now[0] += 10
        self.broker.injectError("Heartbeat", "GROUP_AUTHORIZATION_FAILED")
        self.assertRaises(ResponseError, member.heartbeat)
        self.broker.injectError("SyncGroup", "REBALANCE_IN_PROGRESS")
        self.assertEqual(member.join(), [T0, T1])
