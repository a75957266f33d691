"""
The coordinator of transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.transactions import transactioncoordinator
from pylogbroker.coordinator.transactions.transactioncoordinator import (
    EPOCH_MAX,
    MARKER_RETRY_MAX_MS,
    MARKER_RETRY_MIN_MS,
    TransactionCoordinator,
    TransactionMarkers,
    TransactionSettings,
)
from pylogbroker.coordinator.transactions.transactionmessages import (
    EndTxn,
    InitProducerId,
    PartitionData,
    ProducerIdAnswer,
)
from pylogbroker.coordinator.transactions.transactionstopic import (
    StoredTransaction,
    TransactionState,
    decodeTransaction,
    encodeTransaction,
    encodeTransactionKey,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.types import TopicPartition
from tests.coordinator.groupcase import START_MS, Log

ID = "transaction"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SETTINGS = TransactionSettings(partitionCount=1)
TIMEOUT_MS = 60_000
FENCED, CONCURRENT = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS
MAPPING, STATE = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE


class TransactionCase(SynchronousTestCase):
    """Requests to a coordinator. What waits for its answer is an empty list until it comes."""

    def setUp(self) -> None:
        self.nowMs = START_MS
        self.log = Log()
        self.nextId: int | None = 1000
        self.heldIds: list[Callable[[int | None], None]] | None = None
        self.isMarkingHeld = False
        self.marking: list[tuple[TransactionMarkers, Callable[[Collection[Any]], None]]] = []
        self.markers: list[TransactionMarkers] = []
        self.coordinator = self.make()
        self.coordinator.beginLoading(0)
        self.coordinator.loaded(0, 7)

    def make(self, settings: TransactionSettings = SETTINGS) -> TransactionCoordinator:
        """A coordinator that has loaded nothing."""
        return TransactionCoordinator(
            settings, self.log.append, self.mark, self.giveId, lambda: self.nowMs
        )

    def reload(self) -> None:
        """Another coordinator reads the log."""
        self.coordinator = self.make()
        self.coordinator.beginLoading(0)
        for partition, (key, value) in self.log.records:
            self.coordinator.replay(partition, key, value)
        self.coordinator.loaded(0, 8)

    def giveId(self, got: Callable[[int | None], None]) -> None:
        if self.heldIds is not None:
            self.heldIds.append(got)
            return
        found = self.nextId
        if found is not None:
            self.nextId = found + 1
        got(found)

    def mark(self, markers: TransactionMarkers, done: Callable[[Collection[Any]], None]) -> None:
        self.markers.append(markers)
        if self.isMarkingHeld:
            self.marking.append((markers, done))
        else:
            done([])

    def written(self, *left: TopicPartition) -> None:
        """The first markers that wait are written, but for some partitions."""
        _, done = self.marking.pop(0)
        done(left)

    def advance(self, ms: int) -> None:
        """Time goes by, deadline by deadline."""
        endMs = self.nowMs + ms
        while (dueMs := self.coordinator.nextDeadlineMs()) is not None and dueMs <= endMs:
            self.nowMs = max(self.nowMs, dueMs)
            self.coordinator.advance()
        self.nowMs = endMs

    # -- requests

    def init(
        self,
        transactionalId: str = ID,
        timeoutMs: int = TIMEOUT_MS,
        producerId: int = -1,
        producerEpoch: int = -1,
    ) -> list[ProducerIdAnswer]:
        answers: list[ProducerIdAnswer] = []
        request = InitProducerId(transactionalId, timeoutMs, producerId, producerEpoch)
        self.coordinator.initProducerId(request, answers.append)
        return answers

    def producer(self, transactionalId: str = ID) -> tuple[int, int]:
        """Id and epoch of a new producer."""
        ((error, producerId, epoch, _),) = self.init(transactionalId)
        self.assertEqual(error, 0)
        return producerId, epoch

    def add(
        self,
        producer: tuple[int, int],
        *partitions: TopicPartition,
        transactionalId: str = ID,
        version: int = 0,
    ) -> list[ErrorCode]:
        answers: list[ErrorCode] = []
        self.coordinator.addPartitions(
            transactionalId, *producer, partitions or [T0], version, answers.append
        )
        return answers

    def end(
        self,
        producer: tuple[int, int],
        isCommit: bool = True,
        version: int = 0,
        transactionalId: str = ID,
    ) -> list[ProducerIdAnswer]:
        answers: list[ProducerIdAnswer] = []
        request = EndTxn(transactionalId, *producer, isCommit)
        self.coordinator.endTransaction(request, version, answers.append)
        return answers

    def errors(self, answers: list[ProducerIdAnswer]) -> list[int]:
        return [each.errorCode for each in answers]

    def state(self, transactionalId: str = ID) -> str:
        (found,) = self.coordinator.describeTransactions([transactionalId])
        return found.transactionState

    def stored(self) -> StoredTransaction:
        """The last record of the log."""
        _, (_, value) = self.log.records[-1]
        assert value is not None
        return decodeTransaction(value)

    def put(self, stored: StoredTransaction, transactionalId: str = ID) -> None:
        """Begin with a record in the log."""
        record = encodeTransactionKey(transactionalId), encodeTransaction(stored)
        self.log.records.append((0, record))
        self.reload()


class InitTests(TransactionCase):
    """InitProducerId."""

    def test_new(self) -> None:
        """A new transactional id gets a producer id; who asks again gets the next epoch."""
        self.assertEqual(self.producer(), (1000, 0))
        self.assertEqual(self.producer(), (1000, 1))
        self.assertEqual(self.producer("other"), (1001, 0))
        self.assertEqual(self.state(), "Empty")

    def test_refused(self) -> None:
        """Bad ids, time-outs, and no room."""
        refused = [ErrorCode.INVALID_REQUEST]
        self.assertEqual(self.errors(self.init("")), refused)
        self.assertEqual(self.errors(self.init("x" * 40_000)), refused)
        for timeoutMs in (0, -1, 900_001):
            self.assertEqual(self.errors(self.init(timeoutMs=timeoutMs)), [50])
        self.coordinator = self.make(TransactionSettings(partitionCount=1, transactionCountMax=0))
        self.assertEqual(self.errors(self.init()), [ErrorCode.NOT_COORDINATOR])
        self.coordinator.beginLoading(0)
        self.assertEqual(self.errors(self.init()), [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
        self.coordinator.loaded(0, 0)
        self.assertEqual(self.errors(self.init()), [ErrorCode.POLICY_VIOLATION])

    def test_noProducerId(self) -> None:
        """Where no id is to be had, clients are told to try again."""
        self.nextId = None
        self.assertEqual(self.errors(self.init()), [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])

    def test_atOnce(self) -> None:
        """Of two that come at once, the second is told to try again."""
        self.heldIds = []
        first, second = self.init(), self.init()
        self.log.isHeld = True
        for number, got in enumerate(self.heldIds):
            got(number)
        self.assertEqual(self.errors(second), [CONCURRENT])
        self.log.flush()
        self.assertEqual(first, [ProducerIdAnswer(0, 0, 0)])

    def test_failed(self) -> None:
        """Nothing is left of an id whose first record could not be appended."""
        self.log.error = ErrorCode.REQUEST_TIMED_OUT
        self.assertEqual(self.errors(self.init()), [ErrorCode.COORDINATOR_NOT_AVAILABLE])
        self.log.error = ErrorCode.NONE
        self.assertEqual(self.producer(), (1001, 0))
        self.log.error = ErrorCode.REQUEST_TIMED_OUT
        self.assertEqual(self.errors(self.init()), [ErrorCode.COORDINATOR_NOT_AVAILABLE])
        self.log.error = ErrorCode.NONE
        self.assertEqual(self.producer(), (1001, 1))

    def test_expected(self) -> None:
        """A producer that names itself is served if it is the last one, or has lost an answer."""
        self.producer()
        self.assertEqual(self.init(producerId=1000, producerEpoch=0), [(0, 1000, 1, 0)])
        self.assertEqual(self.init(producerId=1000, producerEpoch=0), [(0, 1000, 1, 0)])
        self.assertEqual(self.init(producerId=1000, producerEpoch=1), [(0, 1000, 2, 0)])
        self.assertEqual(self.errors(self.init(producerId=1000, producerEpoch=0)), [FENCED])
        self.assertEqual(self.errors(self.init(producerId=999, producerEpoch=2)), [FENCED])

    def test_rotation(self) -> None:
        """Behind the last epoch comes another producer id; the last epoch is for markers."""
        self.put(StoredTransaction(5, EPOCH_MAX - 1, TIMEOUT_MS))
        self.assertEqual(self.init(producerId=5, producerEpoch=EPOCH_MAX - 1), [(0, 1000, 0, 0)])
        self.assertEqual(self.stored().previousProducerId, 5)
        # The answer was lost.
        self.assertEqual(self.init(producerId=5, producerEpoch=EPOCH_MAX - 1), [(0, 1000, 0, 0)])
        self.put(StoredTransaction(6, EPOCH_MAX, TIMEOUT_MS))
        self.assertEqual(self.producer(), (1001, 0))

    def test_ongoing(self) -> None:
        """What the predecessor has left open is aborted, with an epoch that nobody has."""
        before = self.producer()
        self.add(before, T0, T1)
        self.assertEqual(self.errors(self.init()), [CONCURRENT])
        (markers,) = self.markers
        self.assertEqual(markers, TransactionMarkers(1000, 1, False, 7, 0, frozenset((T0, T1))))
        self.assertEqual(self.producer(), (1000, 2))
        self.assertEqual(self.add(before), [FENCED])

    def test_ongoingFailed(self) -> None:
        """If the abort cannot be appended, the transaction goes on."""
        producer = self.producer()
        self.add(producer)
        self.log.error = ErrorCode.KAFKA_STORAGE_ERROR
        self.assertEqual(self.errors(self.init()), [ErrorCode.NOT_COORDINATOR])
        self.log.error = ErrorCode.NONE
        self.assertEqual(self.markers, [])
        self.assertEqual(self.end(producer), [(0, 1000, 0, 0)])


class PartitionTests(TransactionCase):
    """AddPartitionsToTxn."""

    def test_add(self) -> None:
        """A transaction begins with its first partitions; what is in it is not appended again."""
        producer = self.producer()
        self.assertEqual(self.add(producer, T0), [0])
        self.assertEqual(self.state(), "Ongoing")
        self.nowMs += 5
        self.assertEqual(self.add(producer, T1), [0])
        self.assertEqual(self.stored().partitions, {T0, T1})
        self.assertEqual(self.stored().startMs, START_MS)
        count = len(self.log.records)
        self.assertEqual(self.add(producer, T1), [0])
        self.assertEqual(len(self.log.records), count)

    def test_refused(self) -> None:
        """Other producers, other epochs, no such id."""
        producerId, epoch = self.producer()
        self.assertEqual(self.add((producerId, epoch), transactionalId="none"), [MAPPING])
        self.assertEqual(self.add((producerId + 1, epoch)), [MAPPING])
        self.assertEqual(self.add((producerId, epoch + 1)), [FENCED])
        refused = [ErrorCode.INVALID_REQUEST]
        self.assertEqual(self.add((producerId, epoch), transactionalId=""), refused)

    def test_whileEnding(self) -> None:
        """Nothing begins before all markers of the last transaction are written."""
        producer = self.producer()
        self.add(producer)
        self.isMarkingHeld = True
        self.assertEqual(self.errors(self.end(producer)), [0])
        self.assertEqual(self.add(producer), [CONCURRENT])
        self.assertEqual(self.errors(self.init()), [CONCURRENT])
        self.assertEqual(self.coordinator.verify(ID, *producer, [T0]), [CONCURRENT])
        self.assertEqual(self.errors(self.end(producer)), [CONCURRENT])
        self.assertEqual(self.errors(self.end(producer, version=2)), [CONCURRENT])
        self.written()
        self.assertEqual(self.add(producer), [0])

    def test_verify(self) -> None:
        """Records may be appended where the ongoing transaction is."""
        producerId, epoch = self.producer()
        verify, abortable = self.coordinator.verify, ErrorCode.TRANSACTION_ABORTABLE
        self.add((producerId, epoch), T0)
        self.assertEqual(verify(ID, producerId, epoch, [T0, T1]), [0, abortable])
        self.assertEqual(verify(ID, producerId, epoch + 1, [T0]), [FENCED])
        self.assertEqual(verify(ID, producerId + 1, epoch, [T0, T1]), [MAPPING] * 2)
        self.assertEqual(verify("none", producerId, epoch, [T0]), [MAPPING])
        self.assertEqual(verify("", producerId, epoch, [T0]), [ErrorCode.INVALID_REQUEST])
        self.end((producerId, epoch))
        self.assertEqual(verify(ID, producerId, epoch, [T0]), [abortable])


class EndTests(TransactionCase):
    """EndTxn of clients of C{transaction.version} 0 and 1."""

    def test_decision(self) -> None:
        """The client is told when the decision is appended; then the markers are written."""
        for isCommit, state in ((True, "Commit"), (False, "Abort")):
            producer = self.producer()
            self.add(producer)
            self.log.isHeld = self.isMarkingHeld = True
            answers = self.end(producer, isCommit)
            self.assertEqual((answers, self.marking), ([], []))
            self.log.flush()
            self.assertEqual(answers, [(0, *producer, 0)])
            self.assertEqual(self.state(), f"Prepare{state}")
            self.assertEqual(self.markers[-1].isCommit, isCommit)
            self.written()
            self.log.flush()
            self.assertEqual(self.state(), f"Complete{state}")
            self.log.isHeld = self.isMarkingHeld = False
            self.assertEqual(self.end(producer, isCommit), [(0, *producer, 0)])
            self.assertEqual(self.errors(self.end(producer, not isCommit)), [STATE])

    def test_refused(self) -> None:
        """Empty transactions, other producers, no such id."""
        producerId, epoch = self.producer()
        for version in (0, 2):
            self.assertEqual(self.errors(self.end((producerId, epoch), version=version)), [STATE])
            for producer, error in (
                ((producerId + 1, epoch), MAPPING),
                ((producerId, epoch + 1), FENCED),
            ):
                self.assertEqual(self.errors(self.end(producer, version=version)), [error])
        self.assertEqual(self.errors(self.end((producerId, epoch), False)), [STATE])
        none = self.end((producerId, epoch), transactionalId="none")
        self.assertEqual(self.errors(none), [MAPPING])
        none = self.end((producerId, epoch), transactionalId="")
        self.assertEqual(self.errors(none), [ErrorCode.INVALID_REQUEST])

    def test_failed(self) -> None:
        """A decision that cannot be appended is none."""
        producer = self.producer()
        self.add(producer)
        self.log.error = ErrorCode.REQUEST_TIMED_OUT
        failed = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        self.assertEqual(self.errors(self.end(producer)), failed)
        self.assertEqual((self.state(), self.markers), ("Ongoing", []))

    def test_retriedMarkers(self) -> None:
        """Markers that could not be written are tried again, until they are."""
        producer = self.producer()
        self.add(producer, T0, T1)
        self.isMarkingHeld = True
        self.end(producer)
        self.written(T1)
        self.assertEqual(self.marking, [])
        self.advance(MARKER_RETRY_MIN_MS)
        self.assertEqual(self.markers[-1].partitions, (T1,))
        self.written()
        self.assertEqual(self.state(), "CompleteCommit")

    def test_retryBackoff(self) -> None:
        """The waits between the attempts double, up to a limit."""
        producer = self.producer()
        self.add(producer)
        self.isMarkingHeld = True
        self.end(producer)
        waits = []
        for _ in range(7):
            self.written(T0)
            dueMs = self.coordinator.nextDeadlineMs()
            assert dueMs is not None
            waits.append(dueMs - self.coordinator.nowMs())
            self.advance(waits[-1])
        self.assertEqual(waits, [50, 100, 200, 400, 800, 1000, MARKER_RETRY_MAX_MS])

    def test_retriedCompletion(self) -> None:
        """A completion that cannot be appended is tried again; nothing begins before."""
        producer = self.producer()
        self.add(producer)
        self.isMarkingHeld = True
        self.end(producer)
        self.log.error = ErrorCode.REQUEST_TIMED_OUT
        self.written()
        self.assertEqual(self.add(producer), [CONCURRENT])
        self.log.error = ErrorCode.NONE
        self.advance(MARKER_RETRY_MIN_MS)
        self.assertEqual(self.state(), "CompleteCommit")


class BumpTests(TransactionCase):
    """EndTxn of clients of C{transaction.version} 2."""

    def test_epochs(self) -> None:
        """Each transaction has an epoch of its own, and markers have the next one."""
        producer = self.producer()
        self.add(producer, version=2)
        self.assertEqual(self.end(producer, version=2), [(0, 1000, 1, 0)])
        self.assertEqual(self.markers, [TransactionMarkers(1000, 1, True, 7, 2, {T0})])
        # The answer was lost.
        self.assertEqual(self.end(producer, version=2), [(0, 1000, 1, 0)])
        self.assertEqual(self.errors(self.end(producer, False, version=2)), [STATE])
        self.assertEqual(self.add(producer), [FENCED])
        # Nothing was added to the next one.
        self.assertEqual(self.errors(self.end((1000, 1), version=2)), [STATE])
        self.assertEqual(self.end((1000, 1), False, version=2), [(0, 1000, 2, 0)])
        self.assertEqual(self.state(), "CompleteAbort")
        self.assertEqual(self.end((1000, 1), False, version=2), [(0, 1000, 2, 0)])

    def test_lastEpochOfFencing(self) -> None:
        """A producer whose time-out has used the last epoch gets another id, too."""
        self.put(StoredTransaction(5, EPOCH_MAX - 1, TIMEOUT_MS, clientVersion=2))
        self.add((5, EPOCH_MAX - 1), version=2)
        self.advance(2 * TIMEOUT_MS)
        self.assertEqual(self.markers[-1].producerEpoch, EPOCH_MAX)
        self.assertEqual(self.init(producerId=5, producerEpoch=EPOCH_MAX - 1), [(0, 1000, 0, 0)])
        self.assertEqual(self.add((1000, 0), version=2), [0])

    def test_endBehindLastEpochOfFencing(self) -> None:
        """Its abort, behind the time-out, is not answered with the epoch that only markers have."""
        self.put(StoredTransaction(5, EPOCH_MAX - 1, TIMEOUT_MS, clientVersion=2))
        self.add((5, EPOCH_MAX - 1), version=2)
        self.advance(2 * TIMEOUT_MS)
        end = self.end((5, EPOCH_MAX - 1), False, version=2)
        self.assertEqual(self.errors(end), [FENCED])

    def test_fencedByVersion1(self) -> None:
        """
        A transaction that a client of version 1 has ended bumped no epoch: an end with the epoch
        before is that of a fenced producer, and no repetition.
        """
        fenced = self.producer()
        owner = self.producer()
        self.assertEqual(owner[1], fenced[1] + 1)
        self.add(owner)
        self.assertEqual(self.errors(self.end(owner, False)), [0])
        self.assertEqual(self.errors(self.end(fenced, False, 2)), [FENCED])

    def test_abortOfNothing(self) -> None:
        """A new producer may abort before it has begun."""
        producer = self.producer()
        self.assertEqual(self.end(producer, False, version=2), [(0, 1000, 1, 0)])
        self.assertEqual(self.markers, [])
        self.assertEqual((self.state(), self.stored().startMs), ("CompleteAbort", START_MS))

    def test_lastEpoch(self) -> None:
        """Behind the last epoch the producer gets another id."""
        self.put(StoredTransaction(5, EPOCH_MAX - 1, TIMEOUT_MS))
        last = 5, EPOCH_MAX - 1
        self.add(last, version=2)
        self.nextId = None
        failed = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        self.assertEqual(self.errors(self.end(last, version=2)), failed)
        self.nextId = 1000
        self.assertEqual(self.end(last, version=2), [(0, 1000, 0, 0)])
        self.assertEqual(self.markers[-1].producerEpoch, EPOCH_MAX)
        self.assertEqual(self.stored().previousProducerId, 5)
        self.assertEqual(self.end(last, version=2), [(0, 1000, 0, 0)])
        self.assertEqual(self.add((1000, 0), version=2), [0])

    def test_fenced(self) -> None:
        """What a predecessor has left open is aborted with one epoch more."""
        producer = self.producer()
        self.add(producer, version=2)
        self.init()
        self.assertEqual(self.markers, [TransactionMarkers(1000, 1, False, 7, 2, {T0})])
        self.assertEqual(self.producer(), (1000, 2))


class LogTests(TransactionCase):
    """What is in the log."""

    def test_ongoing(self) -> None:
        """An ongoing transaction goes on after a restart."""
        producer = self.producer()
        self.add(producer, T0)
        self.reload()
        self.assertEqual(self.add(producer, T1), [0])
        self.assertEqual(self.end(producer), [(0, *producer, 0)])
        self.assertEqual(self.markers[-1].partitions, {T0, T1})

    def test_decided(self) -> None:
        """A decided transaction is completed after a restart, whatever was written before."""
        for isCommit, state in ((True, "CompleteCommit"), (False, "CompleteAbort")):
            producer = self.producer()
            self.add(producer)
            self.isMarkingHeld = True
            self.end(producer, isCommit)
            old, self.marking = self.marking, []
            self.reload()
            self.assertEqual(self.markers[-1].coordinatorEpoch, 8)
            self.assertEqual(self.markers[-1].isCommit, isCommit)
            self.assertEqual(self.errors(self.init()), [CONCURRENT])
            self.written()
            self.assertEqual(self.state(), state)
            for _, done in old:  # of a coordinator that is gone
                done([])
            self.isMarkingHeld = False

    def test_timeoutWhileLoading(self) -> None:
        """What is only half read neither times out nor expires, and is checked again later."""
        self.coordinator = self.make(TransactionSettings(partitionCount=2))
        partition = self.coordinator.partitionOf("a")
        for each in range(2):
            self.coordinator.beginLoading(each)
        self.coordinator.loaded(1 - partition, 0)
        ongoing = StoredTransaction(
            7, 3, TIMEOUT_MS, TransactionState.ONGOING, frozenset({T0}), clientVersion=2
        )
        idle = ongoing._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset())
        decided = ongoing._replace(producerEpoch=4, state=TransactionState.PREPARE_COMMIT)

        def replay(stored: StoredTransaction) -> None:
            self.coordinator.replay(partition, encodeTransactionKey("a"), encodeTransaction(stored))

        replay(idle)
        self.advance(SETTINGS.expiryCheckIntervalMs)
        replay(ongoing)
        self.advance(2 * TIMEOUT_MS)
        self.assertEqual((self.markers, self.log.records), ([], []))
        replay(decided)
        self.coordinator.loaded(partition, 0)
        self.assertEqual([each.isCommit for each in self.markers], [True])
        producer = self.producer("a")
        self.add(producer, transactionalId="a", version=2)
        self.advance(2 * TIMEOUT_MS)
        self.assertEqual([each.isCommit for each in self.markers], [True, False])

    def test_unknownKeys(self) -> None:
        """Keys of later versions are left out; deletions of unknown ids are nothing."""
        self.log.records += [(0, (b"\0\1x", b"")), (0, (encodeTransactionKey("none"), None))]
        self.reload()
        self.assertEqual(self.state("none"), "")

    def test_unload(self) -> None:
        """A partition that has failed is not served; what waits for it is told so."""
        producer = self.producer()
        self.log.isHeld = True
        added = self.add(producer)
        self.coordinator.unload(0)
        self.log.flush()
        self.assertEqual(added, [ErrorCode.NOT_COORDINATOR])
        self.assertEqual(self.errors(self.init()), [ErrorCode.NOT_COORDINATOR])
        self.coordinator.beginLoading(0)
        listed = self.coordinator.listTransactions()
        self.assertEqual(listed.errorCode, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def test_unloadWhileMarking(self) -> None:
        """Markers of a transaction that is unloaded have no consequence."""
        producer = self.producer()
        self.add(producer)
        self.isMarkingHeld = True
        self.end(producer)
        self.log.isHeld = True
        self.written()
        self.coordinator.unload(0)
        self.log.flush(ErrorCode.KAFKA_STORAGE_ERROR)
        self.assertEqual(self.state(), "")

    def test_unloadBeforeMarking(self) -> None:
        """Nor have those that are written later."""
        producer = self.producer()
        self.add(producer)
        self.isMarkingHeld = True
        self.end(producer)
        self.coordinator.unload(0)
        count = len(self.log.records)
        self.written()
        self.assertEqual((self.state(), len(self.log.records)), ("", count))

    def test_partitions(self) -> None:
        """Each partition is loaded, and fails, by itself."""
        self.coordinator = self.make(TransactionSettings(partitionCount=2))
        names = "a", "b"
        self.assertEqual({self.coordinator.partitionOf(name) for name in names}, {0, 1})
        for partition in range(2):
            self.coordinator.beginLoading(partition)
            self.coordinator.loaded(partition, 0)
        for name in names:
            self.producer(name)
        self.coordinator.unload(self.coordinator.partitionOf("a"))
        self.assertEqual((self.state("a"), self.state("b")), ("", "Empty"))


class TimeTests(TransactionCase):
    """Time-outs and expiry."""

    def test_timeout(self) -> None:
        """A transaction that takes too long is aborted, and its producer fenced."""
        producer = self.producer()
        self.add(producer)
        self.advance(TIMEOUT_MS)
        self.assertEqual(self.state(), "Ongoing")
        self.advance(10_000)
        self.assertEqual(self.state(), "CompleteAbort")
        self.assertEqual(self.errors(self.end(producer)), [FENCED])

    def test_timeoutWhilePending(self) -> None:
        """Not while something of it is being appended, and again if that fails."""
        producer = self.producer()
        self.add(producer)
        self.log.isHeld = True
        self.add(producer, T1)
        self.advance(TIMEOUT_MS + 10_000)
        self.log.flush()
        self.assertEqual(self.state(), "Ongoing")
        self.advance(10_000)
        self.log.flush(ErrorCode.REQUEST_TIMED_OUT)
        self.assertEqual(self.state(), "Ongoing")
        self.log.isHeld = False
        self.advance(10_000)
        self.assertEqual(self.state(), "CompleteAbort")

    def test_expiry(self) -> None:
        """An id without a transaction is forgotten, in the log, too."""
        producer = self.producer()
        self.add(self.producer("ongoing"), transactionalId="ongoing")
        self.nowMs += SETTINGS.idExpirationMs
        self.log.isHeld = True
        self.coordinator.advance()
        self.assertEqual(self.add(producer), [CONCURRENT])
        self.log.flush(ErrorCode.REQUEST_TIMED_OUT)
        self.assertEqual(self.state(), "Empty")
        self.log.isHeld = False
        self.advance(SETTINGS.expiryCheckIntervalMs)
        self.assertEqual(self.state(), "")
        self.assertEqual(self.state("ongoing"), "CompleteAbort")
        self.reload()
        self.assertEqual(self.state(), "")

    def test_expiryInSteps(self) -> None:
        """Many ids are forgotten some at a time."""
        self.patch(transactioncoordinator, "EXPIRED_COUNT_MAX", 2)
        for number in range(5):
            self.producer(str(number))
        self.nowMs += SETTINGS.idExpirationMs
        self.coordinator.advance()
        self.assertEqual(len(self.coordinator.listTransactions().transactionStates), 3)
        self.advance(2)
        self.assertEqual(self.coordinator.listTransactions().transactionStates, [])


class DescribedTests(TransactionCase):
    """DescribeTransactions and ListTransactions."""

    def test_describe(self) -> None:
        """An ongoing one, and one that is not there."""
        producer = self.producer()
        self.add(producer, T1, T0, TopicPartition("a", 3))
        found, none, bad = self.coordinator.describeTransactions([ID, "none", ""])
        self.assertEqual(
            found,
            (
                ID, 0, "Ongoing", TIMEOUT_MS, START_MS, 1000, 0,
                [PartitionData("a", [3]), PartitionData("t", [0, 1])],
            ),
        )  # fmt: skip
        self.assertEqual(none.errorCode, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        self.assertEqual(bad.errorCode, ErrorCode.INVALID_REQUEST)

    def test_list(self) -> None:
        """By state, producer, duration and name."""
        self.add(self.producer())
        self.producer("other")
        self.nowMs += 100

        def listed(**filters: Any) -> list[str]:
            answer = self.coordinator.listTransactions(**filters)
            return [each.transactionalId for each in answer.transactionStates]

        self.assertEqual(listed(), [ID, "other"])
        self.assertEqual(listed(stateFilters=["Empty"]), ["other"])
        self.assertEqual(listed(stateFilters=["empty"]), [])
        self.assertEqual(listed(producerIdFilters=[1000]), [ID])
        self.assertEqual(listed(durationFilter=100), [ID, "other"])
        self.assertEqual(listed(durationFilter=101), ["other"])
        self.assertEqual(listed(hasName=lambda name: name == ID), [ID])
        answer = self.coordinator.listTransactions(stateFilters=["Dead", "none"])
        self.assertEqual(answer.unknownStateFilters, ["none"])
        self.assertEqual(TransactionState.DEAD.value, "Dead")
