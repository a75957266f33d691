"""
What a leader answers to other replicas: fetches up to what is written, where logs part, and who is
refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.broker.kafka.topics import batchLog
from pylogbroker.broker.logmanager import GATHER_SECONDS, Partition, ReplicaProgress
from pylogbroker.cluster.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclResourceType,
    PatternType,
)
from pylogbroker.cluster.metadataimage import PartitionRecord, Record, TopicRecord
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.messages import MESSAGES
from pylogbroker.storage.kafka.batchlog import BatchLog
from tests.broker.kafka.clustercase import PORT, ClusterCase
from tests.broker.kafka.kafkacase import CORRELATION, NOW_MS, batchOf, decoded, frameOf

Request: Any = MESSAGES["FetchRequest"]
OffsetsRequest: Any = MESSAGES["ListOffsetsRequest"]
EpochRequest: Any = MESSAGES["OffsetForLeaderEpochRequest"]
TOPIC_ID = "12345678-1234-4234-8234-1234567800ff"
EPOCH = 4
ALLOW = 3


class ReplicaFetchCase(ClusterCase):
    """
    C{r} has two partitions: broker 0 leads both, broker 1 has the first, too. The brokers do not
    reach one another, so that all fetches are the test's.
    """

    def setUp(self) -> None:
        super().setUp()
        self.peer = self.lead.connect()
        self.peer.send(struct.pack(">ihhih", 10, ApiKey.API_VERSIONS, 0, CORRELATION, 0))
        self.assertEqual(len(self.peer.frames()), 1)
        self.fetches: list[ReplicaProgress] = []
        self.partition().onReplicaFetch = self.fetches.append

    def records(self) -> list[Record]:
        self.network.unreachable.update((PORT, PORT + 1))
        return [
            *super().records(),
            TopicRecord("r", TOPIC_ID, 2),
            PartitionRecord(TOPIC_ID, 0, 0, EPOCH, 0, [0, 1], [0, 1], [], -1, [], []),
            PartitionRecord(TOPIC_ID, 1, 0, EPOCH, 0, [0], [0], [], -1, [], []),
        ]

    def partition(self, number: int = 0, index: int = 0) -> Partition:
        found = self.leads[number].service.kafka.topics.hosted("r", index)
        assert found is not None
        return found

    def leaderLog(self) -> BatchLog:
        return batchLog(self.partition())

    def put(self, *values: bytes) -> None:
        """A batch for each value, written and not flushed."""
        for value in values:
            self.lead.service._broker.tryAppend(self.partition(), batchOf(value))
        self.partition().write()

    def fetchRequest(
        self,
        offset: int,
        *,
        version: int = 12,
        index: int = 0,
        replicaId: int = 1,
        replicaEpoch: int = -1,
        epoch: int = EPOCH,
        lastEpoch: int = -1,
        waitMs: int = 0,
        sizeMax: int = 1 << 20,
        isolation: int = 0,
        sessionId: int = 0,
        sessionEpoch: int = -1,
    ) -> Any:
        part = Request.FetchPartition(
            partition=index,
            fetchOffset=offset,
            logStartOffset=0,
            partitionMaxBytes=sizeMax,
            currentLeaderEpoch=epoch if version >= 9 else -1,
            lastFetchedEpoch=lastEpoch,
        )
        topicId = UUID(TOPIC_ID).bytes if version >= 13 else bytes(16)
        topic = Request.FetchTopic(
            topic="" if version >= 13 else "r", topicId=topicId, partitions=[part]
        )
        found = Request(
            maxWaitMs=waitMs,
            minBytes=1,
            maxBytes=sizeMax,
            isolationLevel=isolation,
            sessionId=sessionId,
            sessionEpoch=sessionEpoch,
            topics=[topic],
        )
        if version >= 15:
            found.replicaState.replicaId = replicaId
            found.replicaState.replicaEpoch = replicaEpoch
        else:
            found.replicaId = replicaId
        return found

    def exchange(self, key: ApiKey, version: int, body: Any) -> Any:
        """The answer to a request, when the broker has settled; L{None}: there is none yet."""
        self.peer.send(frameOf(key, version, body))
        self.lead.settle()
        return self.answered(key, version)

    def answered(self, key: ApiKey, version: int) -> Any:
        frames = self.peer.frames()
        if not frames:
            return None
        (frame,) = frames
        return decoded(key, version, frame)

    def fetch(self, offset: int, version: int = 12, **more: Any) -> Any:
        """The answer for the partition."""
        body = self.exchange(
            ApiKey.FETCH, version, self.fetchRequest(offset, version=version, **more)
        )
        return self.only(body)

    def only(self, body: Any) -> Any:
        ((part,),) = (topic.partitions for topic in body.responses)
        return part

    def bytesOf(self, part: Any) -> bytes:
        return bytes(part.records or b"")


class ReadTests(ReplicaFetchCase):
    """What a replica gets."""

    def test_everyVersion(self) -> None:
        """A replica reads up to what is written; a consumer to the high watermark."""
        self.put(b"a", b"b")
        self.assertEqual((self.leaderLog().highWatermark, self.leaderLog().flushedOffset), (0, 0))
        for version in range(4, 19):
            part = self.fetch(0, version)
            self.assertEqual((part.errorCode, part.highWatermark), (0, 0), version)
            data = self.bytesOf(part)
            self.assertEqual(len(data), self.leaderLog().logEnd.byte, version)
            self.assertEqual(int.from_bytes(data[12:16], "big"), EPOCH)
            part = self.fetch(0, version, replicaId=-1)
            self.assertEqual((part.errorCode, self.bytesOf(part)), (0, b""), version)

    def test_follow(self) -> None:
        """What a replica reads is what its log takes; then both logs are the same."""
        self.put(b"a", b"b", b"c")
        follower = self.partition(1)
        log = batchLog(follower)
        self.assertEqual((log.leaderEpoch, log.isReplicated, log.lastEpoch), (EPOCH, True, -1))
        size = 100  # cuts a batch
        while log.logEndOffset < 3:
            part = self.fetch(log.logEndOffset, sizeMax=size, lastEpoch=log.lastEpoch)
            appending = self.do(follower.appendAsFollower(self.bytesOf(part)))
            self.assertEqual(appending, log.logEndOffset)
        self.assertEqual(log.lastEpoch, EPOCH)
        self.assertEqual([each.offset for each in self.fetches], [0, 1, 2])
        self.partition().setHighWatermark(3)
        part = self.fetch(3, lastEpoch=log.lastEpoch)
        self.assertEqual((part.highWatermark, self.bytesOf(part)), (3, b""))
        follower.setHighWatermark(part.highWatermark)
        self.assertEqual(log.highWatermark, 3)

    def do(self, coroutine: Any) -> Any:
        running = Deferred.fromCoroutine(coroutine)
        self.leads[1].settle()
        return self.successResultOf(running)

    def test_isolation(self) -> None:
        """A replica reads everything, whatever it says of transactions."""
        self.put(b"a")
        part = self.fetch(0, isolation=1)
        self.assertGreater(len(self.bytesOf(part)), 0)
        self.assertIsNone(part.abortedTransactions)

    def test_outOfRange(self) -> None:
        """Offsets that the leader does not have; the replica is not heard then."""
        self.put(b"a")
        self.assertEqual(self.fetch(2).errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.assertEqual(self.fetch(-1).errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.assertEqual(self.fetches, [])

    def test_heard(self) -> None:
        """The leader hears what the replica has, and what its own end was then."""
        self.put(b"a", b"b")
        self.fetch(1, 15, replicaEpoch=2)
        self.fetch(2)
        self.assertEqual(
            self.fetches, [ReplicaProgress(1, 2, 1, 0, 2), ReplicaProgress(1, -1, 2, 0, 2)]
        )

    def test_consumer(self) -> None:
        """A consumer is no replica, and does not wait for what is above the high watermark."""
        self.put(b"a", b"b")
        self.partition().setHighWatermark(1)
        part = self.fetch(1, replicaId=-1)
        self.assertEqual((part.errorCode, part.highWatermark, self.bytesOf(part)), (0, 1, b""))
        self.assertEqual(self.fetches, [])


class WaitTests(ReplicaFetchCase):
    """When a replica is answered."""

    def test_data(self) -> None:
        """A replica that has everything waits for the next write, not for a flush."""
        self.fetch(0)
        self.assertIsNone(self.exchange(ApiKey.FETCH, 12, self.fetchRequest(0, waitMs=500)))
        self.put(b"a")
        self.lead.settle()
        part = self.only(self.answered(ApiKey.FETCH, 12))
        self.assertGreater(len(self.bytesOf(part)), 0)
        self.assertEqual(self.leaderLog().highWatermark, 0)

    def test_time(self) -> None:
        """Or until its time is over."""
        self.fetch(0)
        self.assertIsNone(self.exchange(ApiKey.FETCH, 12, self.fetchRequest(0, waitMs=500)))
        self.lead.reactor.advance(0.6)
        self.lead.settle()
        self.assertEqual(self.only(self.answered(ApiKey.FETCH, 12)).errorCode, 0)

    def test_watermark(self) -> None:
        """A replica that was not told the high watermark is answered at once, once."""
        self.put(b"a")
        self.fetch(0)
        self.partition().onReplicaFetch = lambda fetch: self.partition().setHighWatermark(
            fetch.offset
        )
        body = self.exchange(ApiKey.FETCH, 12, self.fetchRequest(1, waitMs=500))
        self.assertEqual(self.only(body).highWatermark, 1)
        self.assertIsNone(self.exchange(ApiKey.FETCH, 12, self.fetchRequest(1, waitMs=500)))

    def test_notLedYet(self) -> None:
        """
        A replica is told at once that a partition is not led here, and does not wait with those
        that do not exist: it is led here soon, perhaps, and producers wait for the replica.
        """
        self.fetch(0)  # and is told the high watermark
        request = self.fetchRequest(0, waitMs=500)
        (topic,) = request.topics
        topic.partitions += self.fetchRequest(0, index=9).topics[0].partitions
        body = self.exchange(ApiKey.FETCH, 12, request)
        errors = [part.errorCode for part in body.responses[0].partitions]
        self.assertIn(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, errors)

    def test_gathering(self) -> None:
        """
        While the leader gathers requests, a replica is given neither records nor a high watermark.
        """
        partition = self.partition()
        self.put(b"a")
        self.fetch(0)

        def heard(fetch: ReplicaProgress) -> None:
            partition.setHighWatermark(fetch.offset)
            if fetch.offset == 1:
                partition.answered(2)

        partition.onReplicaFetch = heard
        self.peer.send(frameOf(ApiKey.FETCH, 12, self.fetchRequest(1, waitMs=500)))
        self.assertIsNotNone(partition.gathering)
        partition.awaited(1)
        self.put(b"b")
        self.assertIsNone(self.answered(ApiKey.FETCH, 12))
        partition.awaited(1)
        self.put(b"c")
        part = self.only(self.answered(ApiKey.FETCH, 12))
        self.assertEqual(part.highWatermark, 1)
        self.assertEqual(len(self.bytesOf(part)), len(batchOf(b"b") + batchOf(b"c")))

    def test_gatheringInVain(self) -> None:
        """It is told the high watermark when no request comes."""
        partition = self.partition()
        self.put(b"a")
        self.fetch(0)
        partition.setHighWatermark(1)
        partition.answered(1)
        self.peer.send(frameOf(ApiKey.FETCH, 12, self.fetchRequest(1, waitMs=500)))
        self.assertIsNone(self.answered(ApiKey.FETCH, 12))
        self.lead.reactor.advance(GATHER_SECONDS)
        self.lead.settle()
        self.assertEqual(self.only(self.answered(ApiKey.FETCH, 12)).highWatermark, 1)


class DivergenceTests(ReplicaFetchCase):
    """Where logs part."""

    def setUp(self) -> None:
        super().setUp()
        self.put(b"a", b"b", b"c")
        log = self.leaderLog()
        log.assignEpoch(EPOCH + 3)
        self.put(b"d")
        self.epoch = EPOCH + 3

    def test_same(self) -> None:
        """A replica whose last epoch reaches its offset here goes on."""
        for offset, lastEpoch in ((3, EPOCH), (4, self.epoch), (2, EPOCH), (3, -1)):
            part = self.fetch(offset, epoch=self.epoch, lastEpoch=lastEpoch)
            self.assertEqual((part.errorCode, part.divergingEpoch.epoch), (0, -1))
        self.assertEqual([each.offset for each in self.fetches], [3, 4, 2, 3])

    def test_diverging(self) -> None:
        """
        Otherwise it is told the largest epoch that both may have, and where that ends here; it gets
        nothing, and does not count as having anything. It is told at once, also in a session.
        """
        wanted = {(4, EPOCH): (EPOCH, 3), (3, EPOCH + 1): (EPOCH, 3), (9, self.epoch): (7, 4)}
        for version in (12, 15, 18):
            for (offset, lastEpoch), answer in wanted.items():
                part = self.fetch(
                    offset, version, epoch=self.epoch, lastEpoch=lastEpoch, waitMs=500
                )
                found = part.divergingEpoch
                self.assertEqual((part.errorCode, found.epoch, found.endOffset), (0, *answer))
                self.assertEqual((self.bytesOf(part), part.highWatermark), (b"", 0))
        self.assertEqual(self.fetches, [])

    def test_session(self) -> None:
        """A partition that diverges is news in every response of a session."""
        more: dict[str, Any] = {"epoch": self.epoch, "lastEpoch": EPOCH}
        body = self.exchange(ApiKey.FETCH, 12, self.fetchRequest(4, sessionEpoch=0, **more))
        self.assertEqual(self.only(body).divergingEpoch.epoch, EPOCH)
        for sessionEpoch in (1, 2):
            request = self.fetchRequest(
                4, sessionId=body.sessionId, sessionEpoch=sessionEpoch, **more
            )
            again = self.exchange(ApiKey.FETCH, 12, request)
            self.assertEqual(self.only(again).divergingEpoch.epoch, EPOCH)

    def test_unknownEpoch(self) -> None:
        """A later epoch than the leader's, and an offset before its start, are out of range."""
        part = self.fetch(4, epoch=self.epoch, lastEpoch=self.epoch + 1)
        self.assertEqual(part.errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)
        part = self.fetch(-1, epoch=self.epoch, lastEpoch=EPOCH + 1)
        self.assertEqual(part.errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)

    def test_consumer(self) -> None:
        """A consumer that names an epoch is told the same."""
        part = self.fetch(4, epoch=self.epoch, lastEpoch=EPOCH, replicaId=-1)
        self.assertEqual((part.divergingEpoch.epoch, part.divergingEpoch.endOffset), (EPOCH, 3))

    def test_offsetForLeaderEpoch(self) -> None:
        """A replica that asks for the end of an epoch is told the same, up to the log end."""
        for version in (2, 3, 4):
            for wanted, answer in (
                (EPOCH, (EPOCH, 3)),
                (EPOCH + 1, (EPOCH, 3)),
                (self.epoch, (self.epoch, 4)),
                (self.epoch + 1, (-1, -1)),
            ):
                part = EpochRequest.OffsetForLeaderPartition(
                    partition=0, currentLeaderEpoch=self.epoch, leaderEpoch=wanted
                )
                topic = EpochRequest.OffsetForLeaderTopic(topic="r", partitions=[part])
                request = EpochRequest(replicaId=1, topics=[topic])
                body = self.exchange(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)
                ((found,),) = (each.partitions for each in body.topics)
                self.assertEqual((found.leaderEpoch, found.endOffset), answer)


class ListOffsetsTests(ReplicaFetchCase):
    """Offsets of a partition with other replicas."""

    def offsetOf(self, timestamp: int, version: int = 7, isolation: int = 0) -> tuple[int, int]:
        """(error code, offset)."""
        wanted = OffsetsRequest.ListOffsetsPartition(partitionIndex=0, timestamp=timestamp)
        topic = OffsetsRequest.ListOffsetsTopic(name="r", partitions=[wanted])
        request = OffsetsRequest(replicaId=-1, isolationLevel=isolation, topics=[topic])
        body = self.exchange(ApiKey.LIST_OFFSETS, version, request)
        ((found,),) = (each.partitions for each in body.topics)
        return found.errorCode, found.offset

    def test_watermark(self) -> None:
        """The latest offset is the high watermark, at once."""
        self.put(b"a", b"b")
        self.assertEqual(self.offsetOf(-1), (0, 0))
        self.partition().setHighWatermark(1)
        self.assertEqual((self.offsetOf(-1), self.offsetOf(-1, isolation=1)), ((0, 1), (0, 1)))
        self.assertEqual((self.offsetOf(-2), self.offsetOf(NOW_MS)), ((0, 0), (0, 0)))

    def test_newLeader(self) -> None:
        """
        KIP-207: a new leader whose high watermark is behind the start of its epoch does not answer
        with an offset that may be smaller than one that was answered before.
        """
        self.put(b"a", b"b")
        self.partition().setHighWatermark(1)
        self.leaderLog().assignEpoch(EPOCH + 1)
        self.put(b"c")
        for timestamp in (-1, NOW_MS + 1):
            for isolation in (0, 1):
                found = self.offsetOf(timestamp, isolation=isolation)[0]
                self.assertEqual(found, ErrorCode.OFFSET_NOT_AVAILABLE)
            self.assertEqual(self.offsetOf(timestamp, 4)[0], ErrorCode.LEADER_NOT_AVAILABLE)
        self.assertEqual((self.offsetOf(-2), self.offsetOf(NOW_MS)), ((0, 0), (0, 0)))
        self.partition().setHighWatermark(2)
        self.assertEqual((self.offsetOf(-1), self.offsetOf(NOW_MS + 1)), ((0, 2), (0, -1)))


class AuthorizerTests(ReplicaFetchCase):
    """With an authorizer a replica needs ClusterAction."""

    def test_clusterAction(self) -> None:
        """To read every topic is not enough, and not needed."""
        self.put(b"a")
        acls: dict[AclBinding, None] = {}

        def allow(kind: AclResourceType, name: str, operation: AclOperation) -> None:
            nonlocal acls
            acls = {
                AclBinding(
                    kind, PatternType.LITERAL, name, "User:ANONYMOUS", "*", operation, ALLOW
                ): None
            }

        self.lead.service.kafka._fetches.authorizer = AclAuthorizer(
            lambda: acls, frozenset(), False, self.lead.reactor
        )
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        self.assertEqual(self.fetch(0).errorCode, refused)
        allow(AclResourceType.TOPIC, "r", AclOperation.ALL)
        self.assertEqual(self.fetch(0).errorCode, refused)
        self.assertEqual(self.fetch(0, replicaId=-1).errorCode, 0)
        allow(AclResourceType.CLUSTER, CLUSTER_NAME, AclOperation.CLUSTER_ACTION)
        self.assertEqual(self.fetch(0).errorCode, 0)
        self.assertEqual(self.fetch(0, replicaId=-1).errorCode, refused)


class RefusalTests(ReplicaFetchCase):
    """Fetches that get nothing."""

    def refusals(self, **more: Any) -> Sequence[int]:
        """With and without the leader's epoch."""
        found = [self.fetch(0, epoch=epoch, **more).errorCode for epoch in (EPOCH, -1)]
        self.assertEqual(self.fetches, [])
        return found

    def test_noReplica(self) -> None:
        """
        A broker that is no replica of the partition, as far as the leader knows, is refused as by
        Apache; so are an unknown one, and the leader itself.
        """
        self.put(b"a")
        refused = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        self.assertEqual(self.refusals(index=1), refused)
        self.assertEqual(self.refusals(replicaId=7), refused)
        self.assertEqual(self.refusals(replicaId=0), refused)

    def test_oldRegistration(self) -> None:
        """So is one that was registered anew since (KIP-903)."""
        self.put(b"a")
        refused = [ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        self.assertEqual(self.refusals(version=15, replicaEpoch=1), refused)
        self.assertEqual(self.fetch(0, 15, replicaEpoch=2).errorCode, 0)

    def test_leaderEpoch(self) -> None:
        """Another leader epoch is refused before that."""
        for index in (0, 1):
            found = [self.fetch(0, epoch=each, index=index).errorCode for each in (3, 5)]
            expected = [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH]
            self.assertEqual(found, expected)
        self.assertEqual(self.fetches, [])

    def test_ownJournal(self) -> None:
        """A partition of a topic that is on one broker has no other replicas."""
        part = self.exchange(ApiKey.FETCH, 12, self.fetchRequest(0, index=1, epoch=-1))
        self.assertEqual(self.only(part).errorCode, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class PolicyTests(ReplicaFetchCase):
    """The metadata say which partitions are replicated."""

    def test_policy(self) -> None:
        """Of several brokers: what is flushed is not yet readable. Of one: it is."""
        for index in (0, 1):
            partition = self.partition(index=index)
            self.lead.service._broker.tryAppend(partition, batchOf(b"a"))
            self.lead.logManager.requestFlush(partition)
            self.lead.settle()
            self.lead.logManager.flush(partition)
            self.lead.settle()
            log = batchLog(partition)
            self.assertEqual((log.flushedOffset, log.highWatermark), (1, index))

    def test_change(self) -> None:
        """A partition that gets or loses its other replicas changes its policy."""
        self.put(b"a")
        self.change([PartitionRecord(TOPIC_ID, 0, 0, EPOCH, 1, [0], [0], [], -1, [], [])])
        log = self.leaderLog()
        self.lead.logManager.flush(self.partition())
        self.lead.settle()
        self.assertEqual((log.isReplicated, log.highWatermark), (False, 1))
        replicas = [0, 1]
        self.change([PartitionRecord(TOPIC_ID, 0, 0, EPOCH, 2, replicas, [0], [], -1, [], [])])
        self.assertEqual((log.isReplicated, log.highWatermark), (True, 1))

    def test_leaderMoves(self) -> None:
        """A replica that no longer leads knows the epoch, and has no batch of it."""
        self.put(b"a")
        self.change([PartitionRecord(TOPIC_ID, 0, 1, 9, 1, [0, 1], [0, 1], [], -1, [], [])])
        log = self.leaderLog()
        self.assertEqual((log.leaderEpoch, log.lastEpoch), (9, EPOCH))
        self.assertEqual(log.epochs.latest, EPOCH)
        new = batchLog(self.partition(1))
        self.assertEqual((new.leaderEpoch, new.epochs.latest, new.lastEpoch), (9, 9, -1))
