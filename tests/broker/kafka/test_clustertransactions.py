"""Transactions whose partitions, coordinator and groups are on two brokers."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators import transactionmarkers, verification
from pylogbroker.broker.kafka.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from pylogbroker.cluster.metadataimage import FenceBrokerRecord, Record
from pylogbroker.coordinator.transactions.transactioncoordinator import TransactionMarkers
from pylogbroker.errors import ConnectionLostError
from pylogbroker.interfaces import ConnectBroker
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records.recordbatch import Record as LogRecord
from pylogbroker.records.recordbatch import encodeBatch
from pylogbroker.types import TopicPartition
from tests.broker.kafka.clustercase import PORT, ClusterCase
from tests.broker.kafka.kafkacase import frameOf
from tests.broker.kafka.test_transactions import BUMPING, CLASSIC, ID, Producer

NOT_ENOUGH = [ErrorCode.NOT_ENOUGH_REPLICAS]


class _HeldClient:
    """A client whose responses are delivered when the test says so."""

    def __init__(self, client: Any, held: list[Deferred[None]]) -> None:
        self._client = client
        self._held = held
        self.close = client.close

    def connection(self) -> Any:
        return self._client.connection().addCallback(self._hold)

    def _hold(self, connection: Any) -> Any:
        self._connection = connection
        return self

    def request(self, *arguments: Any) -> Any:
        return self._connection.request(*arguments).addCallback(self._later)

    def _later(self, response: Any) -> Any:
        release: Deferred[None] = Deferred()
        self._held.append(release)
        return release.addCallback(lambda _none: response)


class TwoBrokerCase(ClusterCase):
    """Requests to either broker."""

    def sent(self, number: int, *arguments: Any, **fields: Any) -> list[int]:
        """The error codes of a produce request to a broker."""
        found: list[int] = self.on(number, partial(self.produce, *arguments, **fields))
        return found

    def hold(self, number: int) -> list[Deferred[None]]:
        """Hold back the responses that a broker gets from the other one; fire each to release."""
        held: list[Deferred[None]] = []
        connect: ConnectBroker = self.connect[number]
        self.connect[number] = lambda *address: _HeldClient(connect(*address), held)
        return held

    def elapse(self, seconds: float) -> None:
        """Time goes by, and both brokers do what is due."""
        for _ in range(int(seconds * 10)):
            self.lead.advance(0.1)
            self.lead.settle()


class MarkerTests(TwoBrokerCase):
    """The end markers of partitions that another broker leads."""

    def test_commit(self) -> None:
        """A commit reaches the partitions of both brokers."""
        producer = self.producer()
        for index in range(3):
            self.assertEqual(self.add(producer, index), 0)
        self.assertEqual(self.produce(producer, indexes=(0, 2)), [0, 0])
        self.assertEqual(self.sent(1, producer, indexes=(1,)), [0])
        self.assertEqual(self.marksOf(1, 1), (0, 1))
        self.assertEqual(self.end(producer).errorCode, 0)
        found = [self.marksOf(leader, index) for index, leader in enumerate((0, 1, 0))]
        self.assertEqual(found, [(2, 2)] * 3)
        self.assertEqual(self.state(), "CompleteCommit")

    def test_unreachable(self) -> None:
        """Markers are tried again while the leader cannot be reached, and the end waits for it."""
        producer = self.producer()
        self.add(producer, 1)
        self.network.unreachable.add(PORT + 1)
        self.assertEqual(self.end(producer, False).errorCode, 0)
        self.elapse(5)
        self.assertEqual(self.state(), "PrepareAbort")
        self.assertGreater(len(self.network.attempts), 2)
        self.assertEqual(self.init()[0], ErrorCode.CONCURRENT_TRANSACTIONS)
        self.network.unreachable.clear()
        self.elapse(5)
        self.assertEqual(self.state(), "CompleteAbort")
        self.assertEqual(self.marksOf(1, 1), (1, 1))

    def test_lostAnswer(self) -> None:
        """A marker whose answer was lost is written again, and the records count once."""
        producer = self.producer()
        self.add(producer, 1)
        self.assertEqual(self.sent(1, producer, indexes=(1,)), [0])
        held = self.hold(0)
        self.end(producer)
        self.assertEqual(len(held), 1)
        self.assertEqual(self.marksOf(1, 1), (2, 2))
        held.pop().errback(ConnectionLostError("lost"))
        self.elapse(1)
        held.pop().callback(None)
        self.elapse(1)
        self.assertEqual(self.state(), "CompleteCommit")
        self.assertEqual(self.marksOf(1, 1), (3, 3))

    def test_movedLeader(self) -> None:
        """
        The coordinator does not know the new leader yet: the old one refuses the marker, and the
        next attempt goes to the new one.
        """
        producer = self.producer()
        self.add(producer, 1)
        move = self.moveLeader("t", 1, 0)
        self.change(move, [self.leads[1]])
        self.end(producer)
        self.elapse(1)
        self.assertEqual(self.state(), "PrepareCommit")
        self.change(move, [self.leads[0]])
        self.elapse(2)
        self.assertEqual(self.state(), "CompleteCommit")
        self.assertEqual(self.marksOf(0, 1), (1, 1))

    def test_withoutLeader(self) -> None:
        """A partition without a leader waits for one; a deleted one for nothing."""
        producer = self.producer()
        self.add(producer, 1)
        self.change(self.moveLeader("t", 1, -1))
        self.end(producer)
        self.elapse(2)
        self.assertEqual(self.state(), "PrepareCommit")
        self.assertEqual(self.network.attempts, [])
        self.change(self.moveLeader("t", 1, 1))
        self.elapse(2)
        self.assertEqual(self.state(), "CompleteCommit")

    def test_batches(self) -> None:
        """While a request is under way, markers wait; the next one has a bounded number of them."""
        self.patch(transactionmarkers, "PARTITION_COUNT_MAX", 2)
        writer = self.lead.service.kafka.transactions._markers
        held = self.hold(0)
        places = [TopicPartition("t", 1)]
        outcomes: list[Any] = []
        for producerId in (1, 2, 3, 3, 4):
            markers = TransactionMarkers(producerId, 0, True, 0, 0, places)
            Deferred.fromCoroutine(writer.write(markers)).addBoth(outcomes.append)
        counts = []
        while len(outcomes) < 5:
            self.lead.settle()
            (release,) = held
            held.clear()
            before = len(outcomes)
            release.callback(None)
            counts.append(len(outcomes) - before)
        self.assertEqual(outcomes, [[]] * 5)
        self.assertEqual(counts, [1, 2, 2])
        self.assertEqual(self.marksOf(1, 1), (5, 5))
        self.assertEqual(writer._channels, {})

    def test_fencedCoordinator(self) -> None:
        """A partition that has a marker of a later coordinator needs none, and that is logged."""
        producer = self.producer()
        self.add(producer, 1)
        self.assertEqual(self.marker(1, producer, 9), 0)
        texts = self.sentences()
        self.end(producer)
        self.elapse(1)
        self.assertEqual(self.state(), "CompleteCommit")
        self.assertIn("TRANSACTION_COORDINATOR_FENCED", " ".join(texts()))

    def marker(self, number: int, producer: Producer, coordinatorEpoch: int) -> int:
        """The code of WriteTxnMarkers to partition 1 at a broker."""
        cls = messages.WriteTxnMarkersRequest
        marker = cls.WritableTxnMarker(
            producerId=producer[0],
            producerEpoch=producer[1],
            transactionResult=False,
            topics=[cls.WritableTxnMarkerTopic(name="t", partitionIndexes=[1])],
            coordinatorEpoch=coordinatorEpoch,
        )
        body = self.on(number, partial(self.ask, ApiKey.WRITE_TXN_MARKERS, 1, markers=[marker]))
        code: int = body.markers[0].topics[0].partitions[0].errorCode
        return code

    def test_refused(self) -> None:
        """A broker refuses markers for a partition that it does not lead."""
        producer = self.producer()
        self.assertEqual(self.marker(0, producer, 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def test_restart(self) -> None:
        """
        A coordinator that restarts while markers wait for a leader writes them again, to that
        leader, too.
        """
        producer = self.producer()
        self.add(producer, 1)
        self.network.unreachable.add(PORT + 1)
        self.end(producer)
        old = self.leads[0]
        old.stop()
        self.leads[0] = self._newLead(0, fileSystem=old.fileSystem)
        for lead, other in (self.leads, self.leads[::-1]):
            lead.others = [other]
        self.network.leads[PORT] = self.lead = self.leads[0]
        self.network.unreachable.clear()
        self.lead.settle()
        self.elapse(3)
        self.assertEqual(self.state(), "CompleteCommit")
        self.assertEqual(self.marksOf(1, 1), (1, 1))


class VerificationTests(TwoBrokerCase):
    """What a partition's leader asks a coordinator elsewhere."""

    def test_add(self) -> None:
        """A client that leaves it to the broker: the partition is in the transaction behind it."""
        producer = self.producer()
        self.assertEqual(self.sent(1, producer, indexes=(1,), version=BUMPING), [0])
        self.assertEqual(self.state(), "Ongoing")
        ended = self.end(producer, version=5)
        self.assertEqual((ended.errorCode, ended.producerEpoch), (0, producer[1] + 1))
        self.lead.settle()
        self.assertEqual(self.marksOf(1, 1), (2, 2))

    def test_onceOnly(self) -> None:
        """Later batches of the transaction are appended without a question."""
        producer = self.producer()
        self.assertEqual(self.sent(1, producer, indexes=(1,), version=BUMPING), [0])
        held = self.hold(1)
        self.network.cut(PORT)
        self.assertEqual(self.sent(1, producer, 1, indexes=(1,), version=BUMPING), [0])
        self.assertEqual(held, [])

    def test_refused(self) -> None:
        """A partition that is not in the transaction, a producer that was replaced, another id."""
        producer = self.producer()
        for version, code in (
            (CLASSIC, ErrorCode.INVALID_TXN_STATE),
            (11, ErrorCode.TRANSACTION_ABORTABLE),
        ):
            self.assertEqual(self.sent(1, producer, indexes=(1,), version=version), [code])
        self.assertEqual(self.producer()[1], producer[1] + 1)
        fenced = [ErrorCode.INVALID_PRODUCER_EPOCH]
        for version in (CLASSIC, BUMPING):
            self.assertEqual(self.sent(1, producer, indexes=(1,), version=version), fenced)
        mapping = [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        self.assertEqual(self.sent(1, (999, 0), indexes=(1,)), mapping)
        self.assertEqual(self.marksOf(1, 1), (0, 0))

    def test_unreachable(self) -> None:
        """While the coordinator cannot be asked, clients are told to try again."""
        producer = self.producer()
        self.network.unreachable.add(PORT)
        for version in (CLASSIC, BUMPING):
            self.assertEqual(self.sent(1, producer, indexes=(1,), version=version), NOT_ENOUGH)
            self.elapse(0.1)
        self.change(self.moveLeader(TRANSACTIONS_TOPIC, 0, -1))
        self.assertEqual(self.sent(1, producer, indexes=(1,)), NOT_ENOUGH)

    def test_fencedBroker(self) -> None:
        """A coordinator on a fenced broker is not asked."""
        producer = self.producer()
        records: list[Record] = [FenceBrokerRecord(0, 1)]
        self.change(records, [self.leads[1]])
        self.assertEqual(self.sent(1, producer, indexes=(1,)), NOT_ENOUGH)
        self.assertEqual(self.network.attempts, [])

    def test_overtaken(self) -> None:
        """
        The end of the transaction comes between the coordinator's answer and the append: the batch
        is refused, and nothing stays open.
        """
        producer = self.producer()
        self.add(producer, 1)
        held = self.hold(1)
        answer = self.on(1, partial(self.sending, producer, indexes=(1,)))
        self.lead.settle()
        (release,) = held
        self.end(producer, False)
        self.elapse(0.2)
        self.assertEqual(self.marksOf(1, 1), (1, 1))
        release.callback(None)
        self.assertEqual(self.codes(answer), [ErrorCode.INVALID_TXN_STATE])
        self.assertEqual(self.marksOf(1, 1), (1, 1))

    def test_newEpoch(self) -> None:
        """
        The leadership was lost and won again meanwhile: the batch is refused, and the client tries
        again in the same transaction.
        """
        producer = self.producer()
        self.add(producer, 1)
        held = self.hold(1)
        answer = self.on(1, partial(self.sending, producer, indexes=(1,)))
        self.lead.settle()
        self.change(self.moveLeader("t", 1, 1))
        held.pop().callback(None)
        self.assertEqual(self.codes(answer), NOT_ENOUGH)
        answer = self.on(1, partial(self.sending, producer, indexes=(1,)))
        self.lead.settle()
        held.pop().callback(None)
        self.assertEqual(self.codes(answer), [ErrorCode.NONE])

    def test_movedCoordinator(self) -> None:
        """The coordinator has moved away from this broker meanwhile: the client tries again."""
        producer = self.producer()
        self.add(producer, 0)
        partition = self.lead.partition("t", 0)
        partition.isDiskBlocked = True
        answer = self.sending(producer, indexes=(0,))
        self.lead.settle()
        self.change(self.moveLeader(TRANSACTIONS_TOPIC, 0, 1))
        partition.isDiskBlocked = False
        partition.capacityWaiters.fire(None)
        self.assertEqual(self.codes(answer), NOT_ENOUGH)

    def test_waitingSize(self) -> None:
        """Batches that wait for the coordinator are bounded, and guards do not stay behind."""
        self.patch(verification, "WAITING_SIZE_MAX", 100)
        producer = self.producer()
        self.add(producer, 1)
        held = self.hold(1)
        first = self.on(1, partial(self.sending, producer, indexes=(1,), value=b"v" * 200))
        self.lead.settle()
        self.assertEqual(self.sent(1, producer, indexes=(1,)), NOT_ENOUGH)
        held.pop().callback(None)
        self.assertEqual(self.codes(first), [0])
        verifier = self.leads[1].service.kafka.transactions._verifier
        self.assertEqual((verifier.waitingSize, verifier._guards), (0, {}))

    def test_order(self) -> None:
        """Requests behind one that waits for the coordinator are appended behind it."""
        producer = self.producer()
        held = self.hold(1)
        peer = self.leads[1].connect()
        for sequence in range(2):
            body = self.body(producer, sequence)
            peer.send(frameOf(ApiKey.PRODUCE, BUMPING, body))
        self.lead.settle()
        self.assertEqual(self.marksOf(1, 1), (0, 0))
        held.pop().callback(None)
        self.lead.settle()
        self.assertEqual(held, [])
        self.assertEqual(self.marksOf(1, 1), (0, 2))

    def body(self, producer: Producer, sequence: int) -> Any:
        """A Produce request to partition 1."""
        cls = messages.ProduceRequest
        records = encodeBatch(
            [LogRecord(0, 1_300_000_000_000, None, b"v")],
            producerId=producer[0],
            producerEpoch=producer[1],
            baseSequence=sequence,
            isTransactional=True,
        )
        topicId = self.lead.service.kafka.topics.image.topics["t"].topicId.bytes
        data = cls.PartitionProduceData(index=1, records=records)
        topic = cls.TopicProduceData(topicId=topicId, partitionData=[data])
        return cls(transactionalId=ID, acks=-1, timeoutMs=9000, topicData=[topic])


class PositionTests(TwoBrokerCase):
    """Offsets that are committed in a transaction, at a group coordinator on another broker."""

    def test_commit(self) -> None:
        """They count when the transaction is committed."""
        producer = self.producer()
        self.assertEqual(self.addOffsets(producer), 0)
        self.assertEqual(self.on(1, partial(self.commitIn, producer, 7)), 0)
        self.assertEqual(self.on(1, self.position), -1)
        self.end(producer)
        self.lead.settle()
        self.assertEqual(self.on(1, self.position), 7)

    def test_implicit(self) -> None:
        """A client of C{transaction.version} 2 leaves the adding to the group coordinator."""
        producer = self.producer()
        self.assertEqual(self.on(1, partial(self.commitIn, producer, 7, version=5)), 0)
        self.end(producer, False, version=5)
        self.lead.settle()
        self.assertEqual(self.on(1, self.position), -1)
        self.assertEqual(self.state(), "CompleteAbort")

    def test_refused(self) -> None:
        """Without the partition in the transaction; without the coordinator."""
        producer = self.producer()
        code = self.on(1, partial(self.commitIn, producer, 7))
        self.assertEqual(code, ErrorCode.INVALID_TXN_STATE)
        self.network.unreachable.add(PORT)
        self.network.cut(PORT)
        for version in (3, 5):
            self.elapse(5)  # the wait until the next attempt to connect
            code = self.on(1, partial(self.commitIn, producer, 7, version=version))
            self.assertEqual(code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def test_overtaken(self) -> None:
        """The transaction ends while the offsets wait for the coordinator: they are refused."""
        producer = self.producer()
        self.addOffsets(producer)
        held = self.hold(1)
        answer = self.committing(producer)
        self.end(producer)
        self.elapse(0.2)
        held.pop().callback(None)
        self.lead.settle()
        code = answer.body.topics[0].partitions[0].errorCode
        self.assertEqual(code, ErrorCode.INVALID_TXN_STATE)
        self.assertEqual(self.on(1, self.position), -1)

    def committing(self, producer: Producer) -> Any:
        """An answer of broker 1 that waits for the coordinator's, which is held."""
        cls = messages.TxnOffsetCommitRequest
        part = cls.TxnOffsetCommitRequestPartition(partitionIndex=0, committedOffset=7)
        answer = self.on(
            1,
            partial(
                self.send,
                ApiKey.TXN_OFFSET_COMMIT,
                3,
                transactionalId=ID,
                groupId="g",
                producerId=producer[0],
                producerEpoch=producer[1],
                topics=[cls.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
            ),
        )
        self.lead.settle()
        return answer

    def test_newEpoch(self) -> None:
        """
        The group's coordinator lost its partition and won it again while the offsets waited: the
        client tries again in the same transaction.
        """
        producer = self.producer()
        self.addOffsets(producer)
        held = self.hold(1)
        answer = self.committing(producer)
        image = self.leads[1].service.kafka.metadata.image
        for index in range(len(image.topics[OFFSETS_TOPIC].partitions)):
            self.change(self.moveLeader(OFFSETS_TOPIC, index, 1))
        held.pop().callback(None)
        self.lead.settle()
        code = answer.body.topics[0].partitions[0].errorCode
        self.assertEqual(code, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


class AuthorizationTests(TwoBrokerCase):
    """Broker 1 gives nothing to clients that are not authorized; broker 0 comes as one."""

    propertiesOf = (
        {},
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:operator",
        },
    )
    leaders = {"t": (0, 1, 0), TRANSACTIONS_TOPIC: (0,), OFFSETS_TOPIC: (0, 0)}

    def setUp(self) -> None:
        super().setUp()
        self.texts = self.sentences()

    def test_markers(self) -> None:
        """Markers are refused, which is logged; when it is allowed, they are written."""
        producer = self.producer()
        self.add(producer, 1)
        self.end(producer)
        self.elapse(1)
        self.assertEqual(self.state(), "PrepareCommit")
        self.assertIn("needs ClusterAction", " ".join(self.texts()))
        authorizer = self.leads[1].service.kafka.authorizer
        assert authorizer is not None
        authorizer._superUsers = frozenset(("User:ANONYMOUS",))
        self.elapse(2)
        self.assertEqual(self.state(), "CompleteCommit")


class CoordinatorAuthorizationTests(TwoBrokerCase):
    """Broker 1 is the coordinator, and does not know broker 0 as one."""

    propertiesOf = AuthorizationTests.propertiesOf
    leaders = {"t": (0, 1, 0), TRANSACTIONS_TOPIC: (1,), OFFSETS_TOPIC: (0, 0)}

    def setUp(self) -> None:
        # FindCoordinator of an anonymous client is refused: the topic is loaded without it.
        self.texts = self.sentences()
        super().setUp()

    def find(self, version: int = 6, keyType: int = 0, key: str = "g") -> Any:
        service = self.lead.service.kafka
        coordinators = service.transactions if keyType else service.groups
        Deferred.fromCoroutine(coordinators.findCoordinator(key))
        self.lead.settle()

    def test_verification(self) -> None:
        """The producer's client is told that the partition is not in its transaction."""
        for version in (CLASSIC, BUMPING):
            found = self.sent(0, (5, 0), version=version)
            self.assertEqual(found, [ErrorCode.INVALID_TXN_STATE])
        self.assertIn("does not verify transactions", " ".join(self.texts()))
        self.assertEqual(self.marksOf(0, 0), (0, 0))
