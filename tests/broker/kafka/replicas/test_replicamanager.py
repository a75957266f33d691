"""Roles of replicas, as the metadata change; the brokers do not reach one another."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.replicas.replicamanager import FIRST_BACK_OFF_MS
from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, batchLog
from pylogbroker.broker.logmanager import Partition
from pylogbroker.broker.metadata.journal import MetadataJournal
from pylogbroker.cluster.kafka import metadatalog
from pylogbroker.cluster.metadataimage import ConfigRecord, FenceBrokerRecord, PartitionImage
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.errors import StorageError
from pylogbroker.interfaces import EndMarker
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records import compression
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.replication.replicafetch import ReplicaFetchAnswer
from pylogbroker.types import TopicPartition
from tests.broker.kafka.clusterbench import ClusterBench
from tests.storage.batches import batch

BOTH = (1, 2)


class ReplicaCase(SynchronousTestCase):
    """
    A topic C{a} with three partitions on brokers 1 and 2, in sync. Broker 1 leads them.
    """

    def setUp(self) -> None:
        self.bench = ClusterBench({"log.check.records": "true"})
        assignment = [BOTH] * 3
        topics = self.bench.brokers[1].topics
        self.bench.do(
            topics.change(lambda image: (topics.newTopic(image, "a", 3, {}, 2, assignment), None))
        )
        self.topic = self.bench.metadata.image.topics["a"]

    def put(self, index: int, part: PartitionImage) -> None:
        """Give a partition another state."""
        self.bench.change(part.record(self.topic.topicId, index))

    def partition(self, index: int) -> Partition:
        """At broker 1."""
        found = self.bench.brokers[1].topics.hosted("a", index)
        assert found is not None
        return found

    def leaders(self) -> list[int]:
        return [each.leader for each in self.bench.metadata.image.topics["a"].partitions]


class RoleTests(ReplicaCase):
    """Leading no more."""

    def test_shutDownInPieces(self) -> None:
        """What others are to lead may not fit into one change: it is split."""
        self.assertEqual(self.leaders(), [1, 1, 1])
        self.patch(metadatalog, "RECORDS_SIZE_MAX", 1)
        self.patch(self.bench.metadata._log, "changeSizeMax", 400)
        self.bench.do(self.bench.brokers[1].kafka.leave())
        self.assertEqual(self.leaders(), [2, 2, 2])

    def test_shutDownAlone(self) -> None:
        """Without an answer from ZooKeeper, the broker stops without a successor, in time."""
        self.patch(self.bench.metadata, "change", lambda decide: Deferred())
        settings = self.bench.brokers[1].kafka.replicas._settings
        with capturedLogs() as events:
            leaving = Deferred.fromCoroutine(self.bench.brokers[1].kafka.leave())
            for _try in range(settings.controlledShutdownMaxRetries + 1):
                self.assertNoResult(leaving)
                self.bench.brokers[1].clock.advance(settings.controlledShutdownRetryBackoffMs / 1e3)
        self.successResultOf(leaving)
        self.assertEqual(
            [formatEvent(each) for each in events],
            ["The broker stops without a successor for what it leads"],
        )
        self.assertEqual(self.leaders(), [1, 1, 1])

    def test_failedBefore(self) -> None:
        """
        A log that has failed is given up in each registration: what was said in the one before may
        not have come about.
        """
        batchLog(self.partition(0))._fail(StorageError("/logs/a-0", "write", "the disk is gone"))
        self.bench.brokers[1].clock.advance(1)
        self.bench.settle()
        self.assertEqual(self.leaders(), [2, 1, 1])
        part = PartitionImage(1, 7, 7, BOTH, BOTH)
        self.bench.change(self.bench.registration(1), part.record(self.topic.topicId, 0))
        self.assertEqual(self.leaders(), [2, 1, 1])


class CreationTests(SynchronousTestCase):
    """Partitions that a broker cannot create."""

    def test_givenUp(self) -> None:
        """
        Another replica leads; this one follows, and is in sync when a later change has let it.
        """
        bench = ClusterBench()
        topics, files = bench.brokers[1].topics, bench.brokers[1].files
        files.fail("create", ".log", errno.ENOSPC)
        with capturedLogs() as events:
            bench.do(
                topics.change(
                    lambda image: (topics.newTopic(image, "a", 1, {}, 2, [BOTH]), None),
                )
            )
            bench.settle()
        self.assertIn("a-0 cannot be created", " ".join(map(str, map(formatEvent, events))))
        topic = bench.metadata.image.topics["a"]
        self.assertEqual((topic.partitions[0].leader, topic.partitions[0].inSync), (2, (2,)))
        self.assertEqual(topic.partitions[0].replicas, BOTH)
        state = topic.partitions[0]
        bench.brokers[1].clock.advance(2)
        bench.settle()
        self.assertIs(bench.metadata.image.topics["a"].partitions[0], state)  # it was said once
        files.mend()
        bench.do(topics.create("a", 1))
        self.assertIsNotNone(topics.hosted("a", 0))


class ClockTests(ReplicaCase):
    """Time-outs."""

    def test_setBack(self) -> None:
        """A wall clock that was set back does not keep a silent follower in sync."""
        broker = self.bench.brokers[1]
        clock: Any = broker.clock
        clock.advance(1)
        clock.wallSeconds = lambda: clock.seconds() - 300
        for _second in range(broker.kafka.replicas._settings.replicaLagTimeMaxMs // 1000 + 2):
            clock.advance(1)
            self.bench.settle()
        parts = self.bench.metadata.image.topics["a"].partitions
        self.assertEqual([each.inSync for each in parts], [(1,)] * 3)


class FollowTests(ReplicaCase):
    """What a follower does with its leader's answers."""

    def test_leaderDoesNotKnowYet(self) -> None:
        """A leader that has not read the metadata yet is asked again long before the back-off."""
        self.put(0, PartitionImage(2, 1, 1, BOTH, BOTH))
        clock, manager = self.bench.brokers[1].clock, self.bench.brokers[1].kafka.replicas
        replica = manager._replicas[self.partition(0)]
        follower = replica.follower
        assert follower is not None
        request = follower.nextFetch(manager.nowMs() + 60_000)
        assert request is not None
        answer = ReplicaFetchAnswer(ErrorCode.UNKNOWN_LEADER_EPOCH)
        manager.answered(replica, follower, request, answer, None)
        soonMs = follower.retryMs
        self.assertEqual(soonMs - manager.nowMs(), FIRST_BACK_OFF_MS)
        clock.advance((FIRST_BACK_OFF_MS - 1) / 1000)
        self.assertEqual(follower.retryMs, soonMs)
        clock.advance(0.003)
        self.bench.settle()  # it has asked, and does not reach the broker
        self.assertEqual(follower.retryMs, manager.nowMs() + 1_000)

    def test_logStart(self) -> None:
        """The log begins where the leader's does when the watermark moves, not an answer later."""
        self.put(0, PartitionImage(2, 1, 1, BOTH, BOTH))
        manager, partition = self.bench.brokers[1].kafka.replicas, self.partition(0)
        replica = manager._replicas[partition]
        follower = replica.follower
        assert follower is not None
        follower.unanswered(follower._request, 0)  # type: ignore[arg-type]
        nowMs = manager.nowMs()
        request = follower.nextFetch(nowMs + 60_000)
        assert request is not None
        data = b"".join(
            encodeBatch([Record(offset, nowMs, None, b"x")], baseOffset=offset, leaderEpoch=1)
            for offset in range(2)
        )
        answer = ReplicaFetchAnswer(ErrorCode.NONE, 2, 1, None)
        manager.answered(replica, follower, request, answer, data)
        self.bench.settle()
        log = batchLog(partition)
        self.assertEqual((log.logStartOffset, log.highWatermark, log.logEndOffset), (1, 2, 2))


class DeleteRecordsTests(ReplicaCase):
    """What is deleted does not come back with the next leader."""

    def setUp(self) -> None:
        super().setUp()
        cls = messages.ProduceRequest
        part = cls.PartitionProduceData(index=0, records=batch(b"a", b"b", b"c"))
        topic = cls.TopicProduceData(name="a", topicId=ZERO_UUID, partitionData=[part])
        self.bench.begin(1, ApiKey.PRODUCE, 12, cls(acks=-1, timeoutMs=1000, topicData=[topic]))
        self.bench.settle()
        self.follow(3, 0)

    def follow(self, offset: int, logStart: int) -> None:
        """Broker 2 fetches."""
        cls = messages.FetchRequest
        part = cls.FetchPartition(
            partition=0, fetchOffset=offset, logStartOffset=logStart, partitionMaxBytes=1000
        )
        topic = cls.FetchTopic(topicId=self.topic.topicId.bytes, partitions=[part])
        state = cls.ReplicaState(
            replicaId=2, replicaEpoch=self.bench.metadata.image.brokers[2].epoch
        )
        body = cls(replicaState=state, maxWaitMs=0, maxBytes=1000, topics=[topic])
        self.bench.ask(1, ApiKey.FETCH, 16, body)

    def delete(self, offset: int = -1, timeoutMs: int = 5000) -> list[Any]:
        cls = messages.DeleteRecordsRequest
        part = cls.DeleteRecordsPartition(partitionIndex=0, offset=offset)
        topic = cls.DeleteRecordsTopic(name="a", partitions=[part])
        answers = self.bench.begin(
            1, ApiKey.DELETE_RECORDS, 2, cls(topics=[topic], timeoutMs=timeoutMs)
        )
        self.bench.settle()
        return answers

    def outcome(self, answers: list[Any]) -> tuple[int, int]:
        (part,) = answers[0].topics[0].partitions
        return part.errorCode, part.lowWatermark

    def test_followersFirst(self) -> None:
        """The answer comes when each replica in sync has deleted, and says how far."""
        answers = self.delete(2)
        self.assertEqual(answers, [])
        self.follow(3, 1)
        self.assertEqual(answers, [])
        self.follow(3, 2)
        self.assertEqual(self.outcome(answers), (0, 2))
        self.assertEqual(self.outcome(self.delete(1)), (0, 2))

    def test_late(self) -> None:
        """After the request's time the client must ask again."""
        answers = self.delete(2, 700)
        self.bench.brokers[1].clock.advance(0.8)
        self.bench.settle()
        self.assertEqual(self.outcome(answers), (ErrorCode.REQUEST_TIMED_OUT, -1))
        self.follow(3, 2)
        self.assertEqual(self.outcome(self.delete(2)), (0, 2))

    def test_leavesInSync(self) -> None:
        """One that is not in sync any more, since it is gone, is not waited for."""
        answers = self.delete(2)
        fence = FenceBrokerRecord(2, self.bench.metadata.image.brokers[2].epoch)
        part = PartitionImage(1, 0, 1, BOTH, (1,))
        self.bench.change(fence, part.record(self.topic.topicId, 0))
        self.bench.settle()
        self.assertEqual(self.outcome(answers), (0, 2))

    def test_leaderMoves(self) -> None:
        """A leader that is replaced meanwhile does not know what the next one has."""
        answers = self.delete(2)
        self.put(0, PartitionImage(2, 1, 1, BOTH, BOTH))
        self.bench.settle()
        self.assertEqual(self.outcome(answers), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))

    def test_flushedStart(self) -> None:
        """A follower tells the start that a power cut leaves, not one that is being written."""
        bench = self.bench.brokers[1]
        partition, manager = self.partition(0), bench.kafka.replicas
        deleting = Deferred.fromCoroutine(bench.logManager.deleteRecords(partition, 1))
        self.assertEqual(batchLog(partition).logStartOffset, 1)
        self.assertEqual(manager.logStartOf(manager._replicas[partition]), 0)
        self.bench.settle()
        self.successResultOf(deleting)
        self.assertEqual(manager.logStartOf(manager._replicas[partition]), 1)


class CoordinatorTests(ReplicaCase):
    """The group C{g}, whose partition is on brokers 1 and 2, in sync. Broker 1 coordinates it."""

    def setUp(self) -> None:
        super().setUp()
        topics = self.bench.brokers[1].topics
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):

            def decide(image: Any, name: str = name) -> Any:
                return topics.newTopic(image, name, 1, {}, 2, [BOTH]), None

            self.bench.do(topics.change(decide))
        self.topic = self.bench.metadata.image.topics[OFFSETS_TOPIC]
        self.follow(0)
        self.bench.settle()

    def follow(self, offset: int) -> None:
        """Broker 2 fetches."""
        cls = messages.FetchRequest
        part = cls.FetchPartition(partition=0, fetchOffset=offset, partitionMaxBytes=1000)
        topic = cls.FetchTopic(topicId=self.topic.topicId.bytes, partitions=[part])
        epoch = self.bench.metadata.image.brokers[2].epoch
        state = cls.ReplicaState(replicaId=2, replicaEpoch=epoch)
        body = cls(replicaState=state, maxWaitMs=0, maxBytes=1000, topics=[topic])
        self.bench.ask(1, ApiKey.FETCH, 16, body)

    def commit(self, offset: int) -> list[Any]:
        cls = messages.OffsetCommitRequest
        part = cls.OffsetCommitRequestPartition(partitionIndex=0, committedOffset=offset)
        topic = cls.OffsetCommitRequestTopic(name="a", partitions=[part])
        answers = self.bench.begin(
            1, ApiKey.OFFSET_COMMIT, 8, cls(groupId="g", topics=[topic], memberId="")
        )
        self.bench.settle()
        return answers

    def codeOf(self, answers: list[Any]) -> int:
        code: int = answers[0].topics[0].partitions[0].errorCode
        return code

    def committed(self, isStable: bool) -> list[Any]:
        cls = messages.OffsetFetchRequest
        topic = cls.OffsetFetchRequestTopics(name="a", partitionIndexes=[0])
        group = cls.OffsetFetchRequestGroup(groupId="g", topics=[topic])
        answers = self.bench.begin(
            1, ApiKey.OFFSET_FETCH, 8, cls(groups=[group], requireStable=isStable)
        )
        self.bench.settle()
        return answers

    def offsetOf(self, answers: list[Any]) -> int:
        offset: int = answers[0].groups[0].topics[0].partitions[0].committedOffset
        return offset

    def test_followerIsSilent(self) -> None:
        """
        A commit that the replicas in sync do not have in time is not acknowledged, and its client
        tries again. It may come about all the same: behind a change of the leader it is there.
        """
        answers, stable = self.commit(5), self.committed(True)
        self.assertEqual((answers, stable), ([], []))
        self.bench.brokers[1].clock.advance(5.1)
        self.bench.settle()
        self.assertEqual(self.codeOf(answers), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.offsetOf(stable), -1)
        answers = self.commit(7)
        self.follow(2)
        self.assertEqual(self.codeOf(answers), 0)
        self.assertEqual(self.offsetOf(self.committed(True)), 7)
        late = self.commit(9)
        self.bench.brokers[1].clock.advance(5.1)
        self.bench.settle()
        self.assertEqual(self.codeOf(late), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.offsetOf(self.committed(True)), 7)
        self.follow(3)
        self.put(0, PartitionImage(1, 1, 1, BOTH, BOTH))
        self.bench.settle()
        self.follow(3)
        self.assertEqual(self.offsetOf(self.committed(True)), 9)

    def test_tooFewInSync(self) -> None:
        """Below min.insync.replicas a commit is refused at once."""
        self.bench.change(
            ConfigRecord("topic", str(self.topic.topicId), "min.insync.replicas", "2"),
            FenceBrokerRecord(2, self.bench.metadata.image.brokers[2].epoch),
            PartitionImage(1, 0, 1, BOTH, (1,), (2,)).record(self.topic.topicId, 0),
        )
        self.assertEqual(self.codeOf(self.commit(5)), ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def test_mayBeReplaced(self) -> None:
        """A broker that may have been replaced coordinates nothing, and says so."""
        self.patch(MetadataJournal, "isCurrent", False)
        self.assertEqual(self.codeOf(self.commit(5)), ErrorCode.NOT_COORDINATOR)
        (answer,) = self.committed(False)
        self.assertEqual(answer.groups[0].errorCode, ErrorCode.NOT_COORDINATOR)
        cls = messages.HeartbeatRequest
        answer = self.bench.ask(1, ApiKey.HEARTBEAT, 4, cls(groupId="g", memberId="m"))
        self.assertEqual(answer.errorCode, ErrorCode.NOT_COORDINATOR)
        answer = self.bench.ask(1, ApiKey.LIST_GROUPS, 5, messages.ListGroupsRequest())
        self.assertEqual(answer.errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        init = messages.InitProducerIdRequest(transactionalId="x", transactionTimeoutMs=1000)
        answer = self.bench.ask(1, ApiKey.INIT_PRODUCER_ID, 4, init)
        self.assertEqual(answer.errorCode, ErrorCode.NOT_COORDINATOR)
        answer = self.bench.ask(1, ApiKey.LIST_TRANSACTIONS, 1, messages.ListTransactionsRequest())
        self.assertEqual(answer.errorCode, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for keyType in (0, 1):
            find = messages.FindCoordinatorRequest(keyType=keyType, coordinatorKeys=["g"])
            (found,) = self.bench.ask(1, ApiKey.FIND_COORDINATOR, 6, find).coordinators
            self.assertEqual(found.errorCode, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class ProduceTests(ReplicaCase):
    """Several partitions of one request."""

    def test_leaderMovesMeanwhile(self) -> None:
        """
        A broker appends to one partition, ceases to lead it, and then appends to another one. What
        is at the offsets of the first one now, its new leader decides: nothing is acknowledged.
        """
        large = encodeBatch([Record(0, 0, None, bytes(2_000_000))], codec=compression.GZIP)
        cls = messages.ProduceRequest
        parts = [
            cls.PartitionProduceData(index=index, records=data)
            for index, data in enumerate((batch(b"x"), large))
        ]
        topic = cls.TopicProduceData(name="a", topicId=ZERO_UUID, partitionData=parts)
        body = cls(acks=-1, timeoutMs=1000, topicData=[topic])
        answers: list[Any] = self.bench.begin(1, ApiKey.PRODUCE, 12, body)
        record = PartitionImage(2, 1, 1, BOTH, BOTH).record(self.topic.topicId, 0)
        changing = self.bench.metadata.change(lambda image: ([record], None))
        while self.bench.worker.performAll():
            pass  # the broker's own workers stand still
        self.successResultOf(changing)
        first, second = map(self.partition, (0, 1))
        self.assertTrue(batchLog(first).isFollowing)
        self.assertEqual(batchLog(second).logEndOffset, 0)
        self.bench.settle()
        first.setHighWatermark(1)  # as the new leader says
        second.setHighWatermark(1)
        self.bench.settle()
        (answer,) = answers
        codes = [each.errorCode for each in answer.responses[0].partitionResponses]
        self.assertEqual(codes, [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0])

    def test_markerLacksInSync(self) -> None:
        """
        The end of a transaction is refused below min.insync.replicas, as what producers send: its
        coordinator tries again and again.
        """
        self.bench.change(
            ConfigRecord("topic", str(self.topic.topicId), "min.insync.replicas", "2")
        )
        self.put(0, PartitionImage(1, 0, 1, BOTH, (1,)))
        writing = Deferred.fromCoroutine(
            self.bench.brokers[1].kafka.transactions.writeMarker(
                TopicPartition("a", 0), TransactionalProducer(7, 0), EndMarker(True, 0)
            )
        )
        self.bench.settle()
        error = self.failureResultOf(writing, KafkaError).value
        self.assertEqual(error.code, ErrorCode.NOT_ENOUGH_REPLICAS)
        self.assertEqual(self.partition(0).log.logEndOffset, 0)
