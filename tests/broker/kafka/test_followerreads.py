"""Consumers that read from a follower (KIP-392)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pylogbroker.cluster.metadataimage import (
    FenceBrokerRecord,
    PartitionImage,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from pylogbroker.config.brokersettings import RACK_AWARE_SELECTOR
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.messages import MESSAGES
from tests.broker.kafka.clustercase import PORT, ClusterCase
from tests.broker.kafka.kafkacase import CORRELATION, batchOf, decoded, frameOf
from tests.broker.kafka.test_transactions import BUMPING
from tests.broker.manualbroker import LeadBroker

Request: Any = MESSAGES["FetchRequest"]
TOPIC_ID = "12345678-1234-4234-8234-123456780000"
EPOCH = 4
BOTH = [0, 1]
FETCHING = {"replica.fetch.backoff.ms": "50"}
SELECTOR = {**FETCHING, "replica.selector.class": RACK_AWARE_SELECTOR}
SECOND_PARTITION_EPOCH = 1


class Exchange:
    """A request by a connection of its own, and its answer."""

    def __init__(self, lead: LeadBroker, version: int, body: Any) -> None:
        self._version = version
        self._peer = lead.connect()
        self._peer.send(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, CORRELATION, 0))
        lead.settle()
        self._peer.frames()
        self._peer.send(frameOf(ApiKey.FETCH, version, body))
        lead.settle()
        self._body: Any = None

    @property
    def body(self) -> Any:
        """L{None}: there is no answer yet."""
        if self._body is None:
            for frame in self._peer.frames():
                self._body = decoded(ApiKey.FETCH, self._version, frame)
        return self._body


class FollowerReadCase(ClusterCase):
    """
    Broker 0, in rack a, leads the first partition of C{t}, and broker 1, in rack b, follows it.
    Each leads another partition alone.
    """

    propertiesOf: Sequence[dict[str, str]] = (SELECTOR, SELECTOR)

    def records(self) -> list[Record]:
        found = [each for each in super().records() if not self.isOfTopic(each)]
        return [
            *found,
            TopicRecord("t", TOPIC_ID, 3),
            PartitionRecord(TOPIC_ID, 0, 0, EPOCH, 0, BOTH, BOTH, [], -1, [], []),
            PartitionRecord(TOPIC_ID, 1, 1, EPOCH, 0, [1], [1], [], -1, [], []),
            PartitionRecord(TOPIC_ID, 2, 0, EPOCH, 0, [0], [0], [], -1, [], []),
        ]

    @staticmethod
    def isOfTopic(record: Record) -> bool:
        return getattr(record, "topicId", "") == TOPIC_ID

    def registration(self, number: int, epoch: int = 1) -> RegisterBrokerRecord:
        return super().registration(number, epoch)._replace(rack="ab"[number])

    def setUp(self) -> None:
        super().setUp()
        self.pass_(1)

    def pass_(self, seconds: float) -> None:
        """Let the brokers fetch from one another."""
        for _ in range(int(seconds * 50)):
            self.reactor.advance(0.02)
            self.lead.settle()

    def put(self, *values: bytes) -> None:
        """Records of the first partition, which both replicas have."""
        found = self.leads[0].service.kafka.topics.hosted("t", 0)
        assert found is not None
        for value in values:
            self.leads[0].service._broker.tryAppend(found, batchOf(value))
        found.write()
        self.pass_(1)

    def hosted(self, number: int) -> Any:
        return self.leads[number].service.kafka.topics.hosted("t", 0)

    def request(
        self,
        offset: int,
        *,
        version: int = 12,
        rack: str = "b",
        epoch: int = EPOCH,
        waitMs: int = 0,
        isolation: int = 0,
        lastEpoch: int = -1,
        sessionId: int = 0,
        sessionEpoch: int = -1,
        index: int = 0,
    ) -> dict[str, Any]:
        part = Request.FetchPartition(
            partition=index,
            fetchOffset=offset,
            partitionMaxBytes=1 << 20,
            currentLeaderEpoch=epoch if version >= 9 else -1,
            lastFetchedEpoch=lastEpoch if version >= 12 else -1,
        )
        topicId = UUID(TOPIC_ID).bytes if version >= 13 else bytes(16)
        topic = Request.FetchTopic(
            topic="" if version >= 13 else "t", topicId=topicId, partitions=[part]
        )
        return {
            "maxWaitMs": waitMs,
            "minBytes": 1,
            "maxBytes": 1 << 20,
            "isolationLevel": isolation,
            "sessionId": sessionId,
            "sessionEpoch": sessionEpoch,
            "topics": [topic],
            "rackId": rack if version >= 11 else "",
        }

    def begin(self, number: int, offset: int, version: int = 12, **more: Any) -> Exchange:
        """A fetch from a broker, which may wait."""
        fields = self.request(offset, version=version, **more)
        return Exchange(self.leads[number], version, Request(**fields))

    def part(self, answer: Exchange) -> Any:
        ((part,),) = (topic.partitions for topic in answer.body.responses)
        return part

    def fetch(self, number: int, offset: int, version: int = 12, **more: Any) -> Any:
        """The partition's answer of a broker."""
        return self.part(self.begin(number, offset, version, **more))

    def offsets(self, part: Any) -> list[int]:
        """The base offsets of the batches in an answer."""
        data, found = bytes(part.records or b""), []
        while data:
            base, size = struct.unpack_from(">qi", data)
            found.append(base)
            data = data[12 + size :]
        return found


class LeaderTests(FollowerReadCase):
    """What a leader tells a consumer."""

    def test_preferred(self) -> None:
        """
        A consumer in the follower's rack is told the follower at once, instead of records, in each
        version that can say so.
        """
        self.put(b"a", b"b")
        for version in range(4, 19):
            part = self.fetch(0, 0, version, waitMs=500)
            told = 1 if version >= 11 else -1
            self.assertEqual((part.errorCode, part.preferredReadReplica), (0, told))
            self.assertEqual(self.offsets(part), [] if version >= 11 else [0, 1])
            self.assertEqual(part.highWatermark, 2)

    def test_nothingNew(self) -> None:
        """It need not wait for records for that."""
        self.put(b"a")
        self.assertEqual(self.fetch(0, 1, waitMs=500).preferredReadReplica, 1)

    def test_otherRacks(self) -> None:
        """A consumer in the leader's rack, in another one or in none reads from the leader."""
        self.put(b"a")
        for rack in ("a", "c", ""):
            part = self.fetch(0, 0, rack=rack)
            self.assertEqual((part.preferredReadReplica, self.offsets(part)), (-1, [0]))

    def test_ahead(self) -> None:
        """A follower that lacks the offset is not told."""
        self.put(b"a")
        self.assertEqual(self.fetch(0, 2).errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)

    def test_fenced(self) -> None:
        """Nor one that is gone, though it is in sync yet."""
        self.put(b"a")
        epoch = self.leads[0].service.kafka.metadata.image.brokers[1].epoch
        self.change([FenceBrokerRecord(1, epoch)])
        part = self.fetch(0, 0)
        self.assertEqual((part.preferredReadReplica, self.offsets(part)), (-1, [0]))

    def test_unreplicated(self) -> None:
        """A partition without followers is read from its leader."""
        self.assertEqual(self.fetch(0, 0, index=2).preferredReadReplica, -1)

    def test_session(self) -> None:
        """In a session it is news each time."""
        self.put(b"a")
        first = self.begin(0, 0, sessionEpoch=0)
        self.assertEqual(self.part(first).preferredReadReplica, 1)
        for sessionEpoch in (1, 2):
            again = self.begin(0, 0, sessionId=first.body.sessionId, sessionEpoch=sessionEpoch)
            self.assertEqual(self.part(again).preferredReadReplica, 1)


class NoSelectorTests(FollowerReadCase):
    """Without C{replica.selector.class}."""

    propertiesOf = (FETCHING, FETCHING)

    def test_leader(self) -> None:
        """The leader serves every consumer, as Kafka's; a follower serves those that ask it."""
        waiting = self.begin(0, 0, waitMs=5_000)
        self.put(b"a")
        part = self.part(waiting)
        self.assertEqual((part.preferredReadReplica, self.offsets(part)), (-1, [0]))
        self.assertEqual(self.offsets(self.fetch(1, 0)), [0])


class FollowerTests(FollowerReadCase):
    """What a follower answers."""

    def test_reads(self) -> None:
        """It serves what it knows to be committed, to consumers that know of followers."""
        self.put(b"a", b"b")
        for version in range(4, 19):
            part = self.fetch(1, 0, version)
            if version >= 11:
                self.assertEqual((part.errorCode, part.highWatermark), (0, 2))
                self.assertEqual((self.offsets(part), part.preferredReadReplica), ([0, 1], -1))
            else:
                self.assertEqual(part.errorCode, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def test_uncommitted(self) -> None:
        """What it has and does not know to be committed, a consumer waits for."""
        self.put(b"a", b"b")
        log = self.hosted(1).log
        log.highWatermark, log.watermark = 1, log.watermark._replace(offset=1, byte=0)
        self.assertEqual(self.offsets(self.fetch(1, 1)), [])
        waiting = self.begin(1, 1, waitMs=5000)
        self.assertIsNone(waiting.body)
        self.hosted(1).setHighWatermark(2)
        self.lead.settle()
        self.assertEqual(self.offsets(self.part(waiting)), [1])

    def test_waits(self) -> None:
        """A consumer at the end is answered when the follower learns of new records."""
        self.put(b"a")
        waiting = self.begin(1, 1, waitMs=5000)
        self.assertIsNone(waiting.body)
        self.put(b"b")
        self.assertEqual(self.offsets(self.part(waiting)), [1])

    def test_epochs(self) -> None:
        """Another leader epoch is refused; an old one with who leads now."""
        self.put(b"a")
        self.assertEqual(
            self.fetch(1, 0, epoch=EPOCH + 1).errorCode, ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        part = self.fetch(1, 0, 16, epoch=EPOCH - 1)
        self.assertEqual(part.errorCode, ErrorCode.FENCED_LEADER_EPOCH)
        self.assertEqual((part.currentLeader.leaderId, part.currentLeader.leaderEpoch), (0, EPOCH))
        self.assertEqual(self.offsets(self.fetch(1, 0, epoch=-1)), [0])

    def test_outOfRange(self) -> None:
        """
        Beyond its end, an offset is not available yet if the leader has said that it is committed;
        else it is out of range, as one before the log start.
        """
        self.put(b"a", b"b")
        replicas = self.leads[1].service.kafka.replicas
        self.assertEqual(replicas.leaderHighWatermark(self.hosted(1)), 2)
        self.assertEqual(self.fetch(1, 3).errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)
        replica = replicas._replicas[self.hosted(1)]
        assert replica.follower is not None
        replica.follower._leaderHighWatermark = 3
        self.assertEqual(self.fetch(1, 3).errorCode, ErrorCode.OFFSET_NOT_AVAILABLE)
        self.assertEqual(self.fetch(1, 4).errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.hosted(1).log.logStartOffset = 1
        self.assertEqual(self.fetch(1, 0).errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)

    def test_lastEpoch(self) -> None:
        """
        A consumer that names the epoch of its last record is told where that ends, but not of what
        the follower has above its watermark.
        """
        self.put(b"a")
        part = self.fetch(1, 1, lastEpoch=EPOCH - 1)
        self.assertEqual((part.divergingEpoch.epoch, part.divergingEpoch.endOffset), (3, 0))
        self.assertEqual(self.fetch(1, 1, lastEpoch=EPOCH).divergingEpoch.epoch, -1)
        self.assertEqual(self.fetch(1, 5, lastEpoch=EPOCH).divergingEpoch.epoch, -1)

    def test_committedOnly(self) -> None:
        """A reader of committed records ends at the last stable offset, and learns what aborted."""
        producer = self.producer()
        self.assertEqual(self.produce(producer, 0, BUMPING), [0])
        self.pass_(1)
        self.assertEqual(self.hosted(1).log.highWatermark, 1)
        self.assertEqual(self.offsets(self.fetch(1, 0, isolation=1)), [])
        waiting = self.begin(1, 0, isolation=1, waitMs=60_000)
        self.assertEqual(self.end(producer, False, 5).errorCode, 0)
        self.pass_(1)
        part = self.part(waiting)
        self.assertEqual(self.offsets(part), [0, 1])
        aborted = [(each.producerId, each.firstOffset) for each in part.abortedTransactions]
        self.assertEqual(aborted, [(producer[0], 0)])
        self.assertEqual(part.lastStableOffset, 2)

    def test_newEpoch(self) -> None:
        """
        A broker that does not follow in the epoch of the metadata, or is no replica, is none to
        read from; one that has no leader in it serves what it has.
        """
        self.put(b"a")
        topic = self.leads[1].service.kafka.metadata.image.topics["t"]
        replicas = self.leads[1].service.kafka.replicas
        self.assertTrue(replicas.isFollowing(self.hosted(1), topic.topicId, EPOCH))
        self.assertFalse(replicas.isFollowing(self.hosted(1), topic.topicId, EPOCH + 1))
        self.assertFalse(replicas.isFollowing(self.hosted(1), UUID(int=1), EPOCH))
        both = (0, 1)
        part = PartitionImage(-1, EPOCH + 1, SECOND_PARTITION_EPOCH, both, both)
        self.change([part.record(topic.topicId, 0)])
        self.assertEqual(self.offsets(self.fetch(1, 0, epoch=EPOCH + 1)), [0])
        self.change(self.moveLeader("t", 0, 0))
        self.assertEqual(self.fetch(1, 0, epoch=-1).errorCode, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def test_sessionEnded(self) -> None:
        """A broker that may have been replaced serves nothing (rule 15)."""
        self.put(b"a")
        metadata = self.leads[1].service.kafka.metadata
        self.patch(type(metadata), "isCurrent", False)
        self.assertEqual(self.fetch(1, 0).errorCode, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def test_dropped(self) -> None:
        """A consumer that waits is told when the broker has the partition no more."""
        self.put(b"a")
        waiting = self.begin(1, 1, waitMs=60_000)
        self.change(self.moveLeader("t", 0, 0))
        self.pass_(1)
        self.assertEqual(self.part(waiting).errorCode, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def test_becomesLeader(self) -> None:
        """A consumer that waits at a follower goes on waiting when that leads."""
        self.put(b"a")
        waiting = self.begin(1, 1, waitMs=60_000)
        both = (0, 1)
        part = PartitionImage(1, EPOCH + 1, SECOND_PARTITION_EPOCH, both, both)
        self.change([part.record(UUID(TOPIC_ID), 0)])
        self.assertIsNone(waiting.body)
        self.leads[1].service._broker.tryAppend(self.hosted(1), batchOf(b"b"))
        self.pass_(1)
        self.assertEqual(self.offsets(self.part(waiting)), [1])


class WatermarkTests(FollowerReadCase):
    """How soon a follower knows what is committed."""

    def setUp(self) -> None:
        super().setUp()
        self.network.unreachable.add(PORT)  # the test fetches instead of broker 1
        self.network.cut(PORT)
        self.put(b"a")
        self.assertEqual(self.hosted(0).log.highWatermark, 0)

    def replica(self, offset: int) -> Exchange:
        fields = self.request(offset, version=15, rack="", waitMs=500)
        state = Request.ReplicaState(replicaId=1, replicaEpoch=2)
        fields["topics"][0].topicId = UUID(TOPIC_ID).bytes
        fields["topics"][0].topic = ""
        return Exchange(self.lead, 15, Request(replicaState=state, **fields))

    def test_waiting(self) -> None:
        """A follower that waits is told a new watermark at once, since consumers wait for it."""
        waiting = self.replica(1)
        if waiting.body is not None:  # the fetch itself has moved the watermark
            waiting = self.replica(1)
        self.assertIsNone(waiting.body)
        log = self.hosted(0).log
        self.leads[0].service._broker.tryAppend(self.hosted(0), batchOf(b"b"))
        self.hosted(0).write()
        self.lead.settle()
        self.assertEqual(self.offsets(self.part(waiting)), [1])
        waiting = self.replica(1)  # still reading: it names nothing new
        self.assertIsNotNone(waiting.body)
        self.hosted(0).onReplicaFetch = None
        waiting = self.replica(2)
        self.assertIsNone(waiting.body)
        self.hosted(0).setHighWatermark(2)
        self.lead.settle()
        self.assertEqual(log.highWatermark, 2)
        self.assertEqual(self.part(waiting).highWatermark, 2)
