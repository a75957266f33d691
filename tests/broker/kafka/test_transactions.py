"""Transactions: from requests to records, over restarts, power cuts and failures."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators.coordinatorlog import encodeMarker
from pylogbroker.broker.kafka.topics import TRANSACTIONS_TOPIC
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.interfaces import EndMarker
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.transactionindex import AbortedTransaction
from tests.broker.kafka.groupcase import GROUP, PARTITION, Answer, GroupCase
from tests.broker.kafka.kafkacase import KafkaCase

ID = "transaction"
PROPERTIES = {"transaction.state.log.num.partitions": "1"}
Producer = tuple[int, int]
CLASSIC, BUMPING = 9, 13
"""Versions of Produce: the client adds partitions itself; the broker does."""


class TransactionCase(GroupCase):
    """A broker with a coordinator of transactions."""

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(self.find(keyType=1, key=ID).errorCode, 0)

    def made(self, properties: dict[str, str] | None = None, **more: Any) -> Any:
        return super().made({**PROPERTIES, **(properties or {})}, **more)

    # -- requests

    def init(self, version: int = 5, transactionalId: str | None = ID, **fields: Any) -> Any:
        """InitProducerId: (code, producer id, epoch)."""
        body = self.ask(
            ApiKey.INIT_PRODUCER_ID,
            version,
            **{"transactionalId": transactionalId, "transactionTimeoutMs": 60_000, **fields},
        )
        return body.errorCode, body.producerId, body.producerEpoch

    def aborted(self, offset: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions of a range of offsets."""
        log = self.lead.log("t")
        assert isinstance(log, BatchLog)
        return log.abortedIn(offset, end)

    def producer(self) -> Producer:
        code, *found = self.init()
        self.assertEqual(code, 0)
        return tuple(found)

    def add(self, producer: Producer, index: int = 0, topic: str = "t", version: int = 3) -> int:
        """AddPartitionsToTxn of one partition, below version 4."""
        cls = messages.AddPartitionsToTxnRequest
        body = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3AndBelowTransactionalId=ID,
            v3AndBelowProducerId=producer[0],
            v3AndBelowProducerEpoch=producer[1],
            v3AndBelowTopics=[cls.AddPartitionsToTxnTopic(name=topic, partitions=[index])],
        )
        code: int = body.resultsByTopicV3AndBelow[0].resultsByPartition[0].partitionErrorCode
        return code

    def sending(
        self,
        producer: Producer,
        sequence: int = 0,
        version: int = CLASSIC,
        indexes: tuple[int, ...] = (0,),
        value: bytes = b"v",
    ) -> Answer:
        """Produce one record to each partition, which is not answered yet."""
        cls = messages.ProduceRequest
        records = encodeBatch(
            [Record(0, self.lead.logManager.nowMs(), None, value)],
            producerId=producer[0],
            producerEpoch=producer[1],
            baseSequence=sequence,
            isTransactional=True,
        )
        topic = cls.TopicProduceData(
            partitionData=[
                cls.PartitionProduceData(index=index, records=records) for index in indexes
            ]
        )
        if version >= BUMPING:
            topic.topicId = self.lead.service.kafka.topics.image.topics["t"].topicId.bytes
        else:
            topic.name = "t"
        return self.send(
            ApiKey.PRODUCE, version, transactionalId=ID, acks=-1, timeoutMs=9000, topicData=[topic]
        )

    def codes(self, answer: Answer) -> list[int]:
        self.lead.settle()
        return [
            each.errorCode for topic in answer.body.responses for each in topic.partitionResponses
        ]

    def produce(self, *arguments: Any, **fields: Any) -> list[int]:
        """The error codes of C{sending}."""
        return self.codes(self.sending(*arguments, **fields))

    def end(self, producer: Producer, isCommit: bool = True, version: int = 4) -> Any:
        """EndTxn."""
        return self.ask(
            ApiKey.END_TXN,
            version,
            transactionalId=ID,
            producerId=producer[0],
            producerEpoch=producer[1],
            committed=isCommit,
        )

    def state(self) -> str:
        found = self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactionalIds=[ID])
        state: str = found.transactionStates[0].transactionState
        return state

    def marks(self, index: int = 0) -> tuple[int, int]:
        """Last stable offset, and end, of a partition."""
        found = self.lead.log("t", index)
        return found.lastStableOffset, found.logEndOffset

    def addOffsets(self, producer: Producer) -> int:
        body = self.ask(
            ApiKey.ADD_OFFSETS_TO_TXN,
            4,
            transactionalId=ID,
            producerId=producer[0],
            producerEpoch=producer[1],
            groupId=GROUP,
        )
        code: int = body.errorCode
        return code

    def commitIn(
        self,
        producer: Producer,
        offset: int,
        version: int = 3,
        topic: str = "t",
        group: str = GROUP,
    ) -> int:
        """TxnOffsetCommit of partition 0."""
        cls = messages.TxnOffsetCommitRequest
        part = cls.TxnOffsetCommitRequestPartition(partitionIndex=0, committedOffset=offset)
        body = self.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            transactionalId=ID,
            groupId=group,
            producerId=producer[0],
            producerEpoch=producer[1],
            topics=[cls.TxnOffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        code: int = body.topics[0].partitions[0].errorCode
        return code


class ProducerIdTests(TransactionCase):
    """InitProducerId."""

    def test_withoutTransactions(self) -> None:
        """Each producer gets an id that no other has, also one that has an id already."""
        first = self.init(0, None)[1]
        self.assertEqual(self.init(5, None), (0, first + 1, 0))
        self.assertEqual(self.init(5, None, producerId=1, producerEpoch=4), (0, first + 2, 0))

    def test_refused(self) -> None:
        """Half an id; and what the store refuses."""
        refused = (ErrorCode.INVALID_REQUEST, -1, -1)
        self.assertEqual(self.init(3, None, producerId=1), refused)
        self.assertEqual(self.init(3, None, producerEpoch=1), refused)
        self.lead.service.kafka.metadata.close()
        self.assertEqual(self.init(5, None), (ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1))

    def test_noIds(self) -> None:
        """A transactional id needs one, too."""
        metadata = self.lead.service.kafka.metadata
        metadata.close()
        code, *_ = self.init()
        self.assertEqual(code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def test_fenced(self) -> None:
        """A producer that was replaced is told so, with the code that its version knows."""
        producerId, epoch = self.producer()
        for version, code in (
            (3, ErrorCode.INVALID_PRODUCER_EPOCH),
            (4, ErrorCode.PRODUCER_FENCED),
        ):
            found = self.init(version, producerId=producerId + 9, producerEpoch=epoch)
            self.assertEqual(found[0], code)


class TransactionTests(TransactionCase):
    """Producing in transactions."""

    def test_commit(self) -> None:
        """Committed records are stable behind the marker."""
        producer = self.producer()
        self.assertEqual(self.produce(producer), [ErrorCode.INVALID_TXN_STATE])
        self.assertEqual(self.produce(producer, version=11), [ErrorCode.TRANSACTION_ABORTABLE])
        self.assertEqual(self.add(producer), 0)
        self.assertEqual(self.produce(producer), [0])
        self.assertEqual(self.produce(producer, 1), [0])
        self.assertEqual(self.marks(), (0, 2))
        self.assertEqual(self.end(producer).errorCode, 0)
        self.assertEqual((self.marks(), self.state()), ((3, 3), "CompleteCommit"))
        self.assertEqual(self.aborted(0, 3), [])

    def test_abort(self) -> None:
        """Aborted ones are known to readers."""
        producer = self.producer()
        self.add(producer)
        self.produce(producer)
        self.assertEqual(self.end(producer, False).errorCode, 0)
        self.assertEqual((self.marks(), self.state()), ((2, 2), "CompleteAbort"))
        (aborted,) = self.aborted(0, 2)
        self.assertEqual((aborted.producerId, aborted.firstOffset), (producer[0], 0))

    def test_implicit(self) -> None:
        """The broker adds partitions for clients of transaction.version 2, once a transaction."""
        producer = self.producer()
        self.assertEqual(self.produce(producer, version=BUMPING, indexes=(0, 1)), [0, 0])
        self.assertEqual(self.produce(producer, 1, version=BUMPING), [0])
        ended = self.end(producer, version=5)
        self.assertEqual((ended.producerId, ended.producerEpoch), (producer[0], 1))
        self.assertEqual((self.marks(0), self.marks(1)), ((3, 3), (2, 2)))
        # The old epoch is over; the new one begins at sequence 0.
        self.assertEqual(
            self.produce(producer, 2, version=BUMPING), [ErrorCode.INVALID_PRODUCER_EPOCH]
        )
        self.assertEqual(self.produce((producer[0], 1), version=BUMPING), [0])

    def test_implicitBeginsAtZero(self) -> None:
        """
        Behind a batch that was refused, the next one does not take its place: both are tried again.
        """
        producer = self.producer()
        busy = self.patch(
            self.lead.service.kafka.transactions.coordinator,
            "addPartitions",
            lambda *arguments: arguments[-1](ErrorCode.CONCURRENT_TRANSACTIONS),
        )
        found = self.produce(producer, version=BUMPING)
        self.assertEqual(found, [ErrorCode.CONCURRENT_TRANSACTIONS])
        busy.restore()
        found = self.produce(producer, 1, version=BUMPING)
        self.assertEqual(found, [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
        self.assertEqual(self.produce(producer, 0, version=BUMPING), [0])
        self.assertEqual(self.produce(producer, 1, version=BUMPING), [0])

    def test_implicitBadPartition(self) -> None:
        """A partition that does not exist is refused; the others are added."""
        producer = self.producer()
        found = self.produce(producer, version=BUMPING, indexes=(9, 0))
        self.assertEqual(found, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0])

    def test_unknownCoordinator(self) -> None:
        """While the coordinator is not there, the client tries again."""
        producer = self.producer()
        self.lead.service.kafka.transactions.stop()
        for version in (CLASSIC, BUMPING):
            found = self.produce(producer, version=version)
            self.assertEqual(found, [ErrorCode.NOT_ENOUGH_REPLICAS])

    def test_whileEnding(self) -> None:
        """A batch that comes behind the end of its transaction is refused, whoever checks it."""
        producer = self.producer()
        self.add(producer)
        self.add(producer, 1)
        self.produce(producer)
        for version, code in (
            (CLASSIC, ErrorCode.NOT_ENOUGH_REPLICAS),
            (BUMPING, ErrorCode.CONCURRENT_TRANSACTIONS),
        ):
            coordinator = self.lead.service.kafka.transactions.coordinator
            self.patch(coordinator, "verify", lambda *_: [ErrorCode.CONCURRENT_TRANSACTIONS])
            self.patch(
                coordinator,
                "addPartitions",
                lambda *arguments: arguments[-1](ErrorCode.CONCURRENT_TRANSACTIONS),
            )
            self.assertEqual(self.produce(producer, version=version, indexes=(1,)), [code])

    def test_overtaken(self) -> None:
        """Likewise while a worker checks it: a transaction would begin that nobody ends."""
        producer = self.producer()
        self.add(producer, 1)
        partition = self.lead.partition("t", 1)
        partition.isDiskBlocked = True
        answer = self.sending(producer, indexes=(1,))
        self.assertEqual(self.end(producer).errorCode, 0)
        self.assertIsNone(answer.body)
        partition.isDiskBlocked = False
        partition.capacityWaiters.fire(None)
        self.assertEqual(self.codes(answer), [ErrorCode.NOT_ENOUGH_REPLICAS])
        self.assertEqual((self.marks(1), self.state()), ((1, 1), "CompleteCommit"))

    def test_twoProducers(self) -> None:
        """A second producer with the same id ends what the first has begun, and fences it."""
        first = self.producer()
        self.add(first)
        self.produce(first)
        self.assertEqual(self.init()[0], ErrorCode.CONCURRENT_TRANSACTIONS)
        second = self.producer()
        self.assertEqual(second, (first[0], first[1] + 2))
        self.assertEqual(self.marks(), (2, 2))
        self.assertEqual(self.produce(first, 1), [ErrorCode.INVALID_PRODUCER_EPOCH])
        self.assertEqual(self.end(first).errorCode, ErrorCode.PRODUCER_FENCED)
        self.assertEqual(self.end(first, version=1).errorCode, ErrorCode.INVALID_PRODUCER_EPOCH)

    def test_timeout(self) -> None:
        """A transaction whose producer is gone is aborted."""
        producer = self.producer()
        self.add(producer)
        self.produce(producer)
        self.lead.advance(80)
        self.lead.settle()
        self.assertEqual((self.state(), self.marks()), ("CompleteAbort", (2, 2)))


class PartitionTests(TransactionCase):
    """AddPartitionsToTxn."""

    def test_refused(self) -> None:
        """Partitions that do not exist, and Kafka's own."""
        producer = self.producer()
        self.assertEqual(self.add(producer, 9), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        internal = self.add(producer, topic=TRANSACTIONS_TOPIC)
        self.assertEqual(internal, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        self.assertEqual(self.add((producer[0], 5)), ErrorCode.PRODUCER_FENCED)
        self.assertEqual(self.add((producer[0], 5), version=1), ErrorCode.INVALID_PRODUCER_EPOCH)

    def test_batched(self) -> None:
        """From version 4 on, of several transactions; or a question only."""
        producerId, epoch = self.producer()
        cls = messages.AddPartitionsToTxnRequest
        for isVerification, codes in ((True, [120, 120]), (False, [0, 0]), (True, [0, 0])):
            one = cls.AddPartitionsToTxnTransaction(
                transactionalId=ID,
                producerId=producerId,
                producerEpoch=epoch,
                verifyOnly=isVerification,
                topics=[cls.AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
            )
            body = self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, transactions=[one] * 3)
            self.assertEqual(len(body.resultsByTransaction), 2)
            (topic,) = body.resultsByTransaction[0].topicResults
            found = [each.partitionErrorCode for each in topic.resultsByPartition]
            self.assertEqual(found, codes)
        self.assertEqual(
            self.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 4, transactions=[]).resultsByTransaction, []
        )


class PositionTests(TransactionCase):
    """AddOffsetsToTxn and TxnOffsetCommit."""

    def test_commit(self) -> None:
        """Positions count when their transaction is committed."""
        producer = self.producer()
        self.assertEqual(self.commitIn(producer, 5), ErrorCode.INVALID_TXN_STATE)
        self.assertEqual(self.commitIn(producer, 5, 4), ErrorCode.TRANSACTION_ABORTABLE)
        self.assertEqual(self.addOffsets(producer), 0)
        self.assertEqual(self.commitIn(producer, 5), 0)
        self.assertEqual(self.position(), -1)
        self.end(producer)
        self.assertEqual(self.position(), 5)

    def test_abort(self) -> None:
        """And not if it is aborted; the broker adds them for transaction.version 2."""
        producer = self.producer()
        self.assertEqual(self.commitIn(producer, 5, 5), 0)
        self.end(producer, False, 5)
        self.assertEqual(self.position(), -1)
        self.assertEqual(self.state(), "CompleteAbort")

    def test_refused(self) -> None:
        """No group, no topic, a producer that was replaced, and no coordinator."""
        producer = self.producer()
        self.assertEqual(self.commitIn(producer, 5, group=""), ErrorCode.INVALID_GROUP_ID)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.assertEqual(self.commitIn(producer, 5, topic="none"), unknown)
        old = producer[0], 9
        for version in (0, 5):
            found = self.commitIn(old, 5, version)
            self.assertEqual(found, ErrorCode.INVALID_PRODUCER_EPOCH)
        self.assertEqual(self.addOffsets(old), ErrorCode.PRODUCER_FENCED)
        self.lead.service.kafka.transactions.stop()
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self.assertEqual(self.commitIn(producer, 5), loading)
        self.lead.service.kafka.groups.stop()
        self.assertEqual(self.addOffsets(producer), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.assertEqual(self.commitIn(producer, 5), ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def test_stoppedWhileLoading(self) -> None:
        """
        A broker that stops while its groups are being read does not begin to read transactions
        then: it would report that the partition cannot be read, which is being closed.
        """
        producer = self.producer()
        self.assertEqual((self.addOffsets(producer), self.commitIn(producer, 5)), (0, 0))
        self.lead.stop()
        self.startUnsettled()
        said = self.sentences()
        transactions = self.lead.service.kafka.transactions
        self.assertEqual(len(transactions._appenders), 0)
        self.lead.stop()
        self.assertEqual(len(transactions._appenders), 0)
        self.assertEqual([each for each in said() if "could not load" in each], [])

    def test_endedWhileLoading(self) -> None:
        """
        The offsets of a transaction count also when its end marker is appended while they are being
        read, as by a broker that has just become the coordinator of the group.
        """
        producer = self.producer()
        self.assertEqual((self.addOffsets(producer), self.commitIn(producer, 5)), (0, 0))
        self.lead.stop()
        self.startUnsettled()
        groups, written = self.lead.service.kafka.groups, Deferred[Any]()
        marker = encodeMarker(TransactionalProducer(*producer), EndMarker(True, 0), groups.nowMs())
        self.assertTrue(groups.endTransaction(PARTITION, marker, written.callback))
        for _ in range(5):
            self.lead.flushWorker.performAll()
            self.lead.turn()
        self.assertIsNone(self.successResultOf(written))
        self.assertTrue(groups.coordinator.isLoading(PARTITION))
        self.lead.settle()
        self.assertEqual(self.position(), 5)

    def test_whileEnding(self) -> None:
        """While the last transaction ends, clients that know it are told so."""
        producer = self.producer()
        coordinator = self.lead.service.kafka.transactions.coordinator
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        self.patch(coordinator, "addPartitions", lambda *arguments: arguments[-1](concurrent))
        self.patch(coordinator, "verify", lambda *_: [concurrent])
        self.assertEqual(self.commitIn(producer, 5, 5), concurrent)
        self.assertEqual(self.commitIn(producer, 5, 4), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class BatchTests(TransactionCase):
    """Batches that are no batches."""

    def test_malformed(self) -> None:
        """One refuses itself only, where the coordinator is asked about the other first."""
        producer = self.producer()
        good = encodeBatch(
            [Record(0, 1, None, b"v")],
            producerId=producer[0],
            producerEpoch=producer[1],
            baseSequence=0,
            isTransactional=True,
        )
        bad = good[:8] + bytes(4) + good[12:]
        cls = messages.ProduceRequest
        parts = [
            cls.PartitionProduceData(index=index, records=records)
            for index, records in enumerate((good, bad))
        ]
        topicId = self.lead.service.kafka.topics.image.topics["t"].topicId.bytes
        topic = cls.TopicProduceData(topicId=topicId, partitionData=parts)
        answer = self.send(
            ApiKey.PRODUCE, 13, transactionalId=ID, acks=-1, timeoutMs=9000, topicData=[topic]
        )
        self.lead.settle()
        (found,) = answer.body.responses
        codes = [part.errorCode for part in found.partitionResponses]
        self.assertEqual(codes, [0, ErrorCode.CORRUPT_MESSAGE])


class DurableTests(TransactionCase):
    """Restarts, power cuts and failures."""

    def cutPower(self) -> None:
        """Only what was flushed is left; another broker opens it."""
        self.lead.fileSystem.cutPower()
        self.lead = self.made(fileSystem=self.lead.fileSystem)

    def begun(self) -> Producer:
        """A transaction with a record and a position."""
        self.find()
        producer = self.producer()
        self.add(producer)
        self.assertEqual(self.produce(producer), [0])
        self.addOffsets(producer)
        self.commitIn(producer, 5)
        return producer

    def test_ongoing(self) -> None:
        """An ongoing transaction goes on after a power cut, and can be committed then."""
        producer = self.begun()
        self.cutPower()
        self.assertEqual((self.state(), self.marks(), self.position()), ("Ongoing", (0, 1), -1))
        self.assertEqual(self.end(producer).errorCode, 0)
        self.assertEqual((self.marks(), self.position()), ((2, 2), 5))

    def test_decided(self) -> None:
        """
        From the moment at which the client is told, a decision stands, at whatever step of the
        markers and of the completion the power is cut.
        """
        told = set()
        for isCommit in (True, False):
            for turns in range(12):
                self.lead.stop()
                self.lead = self.made()
                self.createTopic("t", 3)
                self.find(keyType=1, key=ID)
                producer = self.begun()
                answer = self.send(
                    ApiKey.END_TXN,
                    4,
                    transactionalId=ID,
                    producerId=producer[0],
                    producerEpoch=producer[1],
                    committed=isCommit,
                )
                for _ in range(turns):
                    self.lead.turn()
                    if self.lead.flushWorker.jobs:
                        self.lead.flushWorker.perform()
                isTold = answer.body is not None
                told.add(isTold)
                self.cutPower()
                state = self.state()
                if isTold:
                    self.assertEqual(state, f"Complete{'Commit' if isCommit else 'Abort'}")
                if state == "Ongoing":
                    self.assertEqual(self.marks(), (0, 1))
                    self.assertEqual(self.end(producer, isCommit).errorCode, 0)
                stable, end = self.marks()
                self.assertEqual(stable, end)
                self.assertEqual(self.position(), 5 if isCommit else -1)
                aborted = self.aborted(0, end)
                self.assertEqual(len(aborted), not isCommit)
        self.assertEqual(told, {False, True})

    def test_partitionOutOfService(self) -> None:
        """
        A partition that cannot be opened at a start is no deleted one: its transaction is completed
        when it is there again.
        """
        producer = self.begun()
        path = self.lead.log("t").segments[0].path
        self.lead.fileSystem.fail("fsync", path, errno.EIO)
        self.assertEqual(self.end(producer).errorCode, 0)
        self.lead.fileSystem.cutPower()
        self.lead.fileSystem.fail("open", path, errno.EIO)
        self.lead = self.made(fileSystem=self.lead.fileSystem)
        self.assertIsNone(self.lead.service.kafka.topics.find("t", 0))
        self.assertEqual(self.state(), "PrepareCommit")
        self.cutPower()
        self.assertEqual((self.state(), self.marks()), ("CompleteCommit", (2, 2)))

    def test_failedPartition(self) -> None:
        """Where a partition has failed, the transaction is completed after a restart."""
        producer = self.begun()
        self.lead.fileSystem.fail("fsync", self.lead.log("t").segments[0].path, errno.EIO)
        self.assertEqual(self.end(producer).errorCode, 0)
        self.lead.advance(3)
        self.lead.settle()
        self.assertEqual(self.state(), "PrepareCommit")
        self.cutPower()
        self.assertEqual(self.state(), "CompleteCommit")

    def test_deletedTopic(self) -> None:
        """A partition that is gone needs no marker."""
        producer = self.begun()
        self.ask(
            ApiKey.DELETE_TOPICS,
            5,
            topicNames=["t"],
            timeoutMs=9000,
        )
        self.end(producer)
        self.assertEqual(self.state(), "CompleteCommit")


class AdministrationTests(TransactionCase):
    """WriteTxnMarkers, DescribeTransactions, ListTransactions, ApiVersions."""

    def write(self, producer: Producer, *places: tuple[str, int], **fields: Any) -> list[int]:
        cls = messages.WriteTxnMarkersRequest
        marker = cls.WritableTxnMarker(
            producerId=producer[0],
            producerEpoch=producer[1],
            transactionResult=False,
            topics=[
                cls.WritableTxnMarkerTopic(name=name, partitionIndexes=[index])
                for name, index in places
            ],
            **fields,
        )
        body = self.ask(ApiKey.WRITE_TXN_MARKERS, 2, markers=[marker])
        return [each.errorCode for topic in body.markers[0].topics for each in topic.partitions]

    def test_markers(self) -> None:
        """An operator ends a transaction that hangs."""
        producer = self.producer()
        self.add(producer)
        self.produce(producer)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.assertEqual(self.write(producer, ("none", 0), ("t", 9)), [unknown] * 2)
        self.assertEqual(self.write((producer[0], -1), ("t", 0)), [-1])
        self.assertEqual(self.write(producer, ("t", 0), coordinatorEpoch=3), [0])
        self.assertEqual(self.marks(), (2, 2))
        fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
        self.assertEqual(self.write(producer, ("t", 0), coordinatorEpoch=2), [fenced])

    def test_refusedMarker(self) -> None:
        """A partition that has ended it already with a newer epoch needs no marker of ours."""
        producer = self.producer()
        self.add(producer)
        self.produce(producer)
        self.write((producer[0], producer[1] + 5), ("t", 0))
        lines = self.sentences()
        self.assertEqual(self.end(producer).errorCode, 0)
        self.assertEqual(self.state(), "CompleteCommit")
        self.assertTrue(any("has no end marker in t-0" in each for each in lines()))

    def test_lists(self) -> None:
        """By state and by pattern."""
        self.producer()
        for version, fields, ids in (
            (0, {}, [ID]),
            (1, {"stateFilters": ["Ongoing"]}, []),
            (2, {"transactionalIdPattern": "trans.*"}, [ID]),
            (2, {"transactionalIdPattern": "x"}, []),
        ):
            body = self.ask(ApiKey.LIST_TRANSACTIONS, version, **fields)
            self.assertEqual([each.transactionalId for each in body.transactionStates], ids)
        body = self.ask(ApiKey.LIST_TRANSACTIONS, 2, transactionalIdPattern="(")
        self.assertEqual(body.errorCode, ErrorCode.INVALID_REGULAR_EXPRESSION)

    def test_topic(self) -> None:
        """The topic is Kafka's, and other brokers' settings hold."""
        topic = self.lead.service.kafka.topics.image.topics[TRANSACTIONS_TOPIC]
        self.assertEqual(topic.partitionCount, 1)
        self.assertEqual(topic.configs["cleanup.policy"], "compact")
        self.lead.stop()
        self.restart(properties={"transaction.state.log.num.partitions": "7"})
        self.assertEqual(self.find(keyType=1, key="another").errorCode, 0)


class FeatureTests(KafkaCase):
    """ApiVersions."""

    def test_version(self) -> None:
        """Clients learn that each transaction has an epoch of its own."""
        cls = messages.ApiVersionsRequest
        for version, supported in ((3, False), (4, True)):
            request = cls(clientSoftwareName="a", clientSoftwareVersion="1")
            body = self.ask(ApiKey.API_VERSIONS, version, request)
            names = [each.name for each in body.supportedFeatures]
            self.assertEqual("transaction.version" in names, supported)
            levels = {each.name: each.maxVersionLevel for each in body.finalizedFeatures}
            self.assertEqual(levels["transaction.version"], 2)
