"""
Producers with transactional ids, the coordinator of transactions, the partitions they write to and
the coordinator of a group whose offsets they commit, in random orders of events; and what must hold
in each.

Producers begin, write to some partitions and commit or abort; processes come and take over the id
of another, which goes on as if nothing had happened; transactions take too long. A producer that
has lost an answer sends its record again, or aborts; what it had sent before may arrive much later.
Markers are late, cannot be written, or are lost in a crash. Some epochs are near their end.

The checkers know the requests, the answers and the partitions:

  - I{a fenced producer that gets through}: behind the answer to InitProducerId, no request and no
    record with an older epoch is accepted; behind the answer to EndTxn, no record that its producer
    sends only then;
  - I{one outcome}: all records of a transaction are committed, or all are aborted, in every
    partition; as the answer to EndTxn has said, if there was one; committed only if its producer
    has asked for that; and no record is committed twice;
  - I{a lost offset}: the group has the offset of the last committed transaction, after a restart,
    too;
  - I{a transaction that never ends}: at rest, every record has its marker, and batches that arrive
    now begin none that stays open;
  - no marker is refused, and no producer is given the epoch that only markers have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from pylogbroker.coordinator.effects import Appended, Record, TransactionalProducer
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    CommitPartition,
    CommitTopic,
    OffsetCommitAnswer,
    OffsetFetchGroup,
    TxnOffsetCommit,
)
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.coordinator.grouptable import GroupSettings
from pylogbroker.coordinator.transactions.transactioncoordinator import (
    TransactionCoordinator,
    TransactionMarkers,
    TransactionSettings,
)
from pylogbroker.coordinator.transactions.transactionmessages import (
    EndTxn,
    InitProducerId,
    ProducerIdAnswer,
)
from pylogbroker.coordinator.transactions.transactionstopic import (
    StoredTransaction,
    encodeTransaction,
    encodeTransactionKey,
)
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import EndMarker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.storage.kafka.producerstate import EPOCH_MAX
from pylogbroker.types import TopicPartition
from tests.simulation.coordinators.producedpartition import ProducedPartition, ProducedRecord
from tests.simulation.coordinators.world import CoordinatorWorld, SimulatedClient
from tests.simulation.seeds import BrokenPromiseError

TOPIC, GROUP = "t", "g"
OFFSETS = TopicPartition("__consumer_offsets", 0)
PLACES = (*(TopicPartition(TOPIC, index) for index in range(3)), OFFSETS)
IDS = ("x", "y", "z")
CLIENT_COUNT_MAX = 4
TIMEOUTS_MS = (5_000, 60_000)
IDS_BEHIND = 100
"""Producer ids below this one may have been given away before a run."""

TRY_AGAIN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


class AddPartition(NamedTuple):
    """Add a partition to the transaction."""

    transactionalId: str
    producerId: int
    producerEpoch: int
    place: TopicPartition


class Write(NamedTuple):
    """
    Write a record; from C{transaction.version} 2 on this adds the partition, too.

    @ivar sequence: in the partition, of this producer with this epoch.
    """

    transactionalId: str
    producerId: int
    producerEpoch: int
    place: TopicPartition
    sequence: int
    record: ProducedRecord


class SimulatedTransactor(SimulatedClient):
    """
    A producer with a transactional id.

    @ivar producer: its id and epoch, if it has one.
    @ivar number: of its transaction, if it has begun.
    @ivar ending: whether to commit, if it is about to end.
    @ivar sequences: of its next records, by partition.
    @ivar writing: its last record, if it has no answer.
    @ivar mustBegin: it does not know what became of a record, and needs another epoch.
    """

    def __init__(self, world: TransactionWorld, name: str, transactionalId: str) -> None:
        super().__init__(world, name)
        self.transactionalId = transactionalId
        self.version = world.random.choice((0, 1, 2, 2))
        self.timeoutMs = world.random.choice(TIMEOUTS_MS)
        self.producer: tuple[int, int] | None = None
        self.number: int | None = None
        self.added: set[TopicPartition] = set()
        self.leftCount = 0
        self.ending: bool | None = None
        self.sequences: dict[TopicPartition, int] = {}
        self.writing: Write | None = None
        self.mustBegin = False
        self._transactions = world

    def act(self) -> None:
        random = self.world.random
        if self.producer is None:
            self.send(InitProducerId(self.transactionalId, self.timeoutMs), self._initialised)
            return
        if self.number is None:
            if self.world.isCalm:
                return
            self._transactions.number += 1
            self.number, self.added, self.ending = self._transactions.number, set(), None
            self.leftCount = random.randint(1, 4)
        if self.writing is not None:
            if random.random() < 0.5:
                self.world.counts["sent again"] += 1
                self.send(self.writing, partial(self._written, self.writing))
                return
            # It does not know what became of its record.
            self.writing, self.ending, self.mustBegin = None, False, True
        if self.ending is None and not self.leftCount:
            self.ending = random.random() < 0.7
        if self.ending is not None:
            end = EndTxn(self.transactionalId, *self.producer, self.ending)
            self.send(end, partial(self._ended, self.ending))
            return
        place = random.choice(PLACES)
        if self.version < 2 and place not in self.added:
            add = AddPartition(self.transactionalId, *self.producer, place)
            self.send(add, partial(self._added, place))
            return
        self._transactions.value += 1
        record = ProducedRecord(self.number, self._transactions.value)
        sequence = self.sequences.get(place, 0)
        self.writing = Write(self.transactionalId, *self.producer, place, sequence, record)
        self.send(self.writing, partial(self._written, self.writing))

    def _initialised(self, answer: ProducerIdAnswer) -> None:
        if not self._failed(answer.errorCode):
            self.producer, self.sequences = (answer.producerId, answer.producerEpoch), {}

    def _added(self, place: TopicPartition, error: ErrorCode) -> None:
        if not self._failed(error):
            self.added.add(place)

    def _written(self, write: Write, error: ErrorCode) -> None:
        self.writing = None
        if not self._failed(error):
            self.added.add(write.place)
            self.sequences[write.place] = write.sequence + 1
            self.leftCount -= 1

    def _ended(self, isCommit: bool, answer: ProducerIdAnswer) -> None:
        if self._failed(answer.errorCode):
            return
        self.number, self.ending = None, None
        if self.version >= 2:
            self.producer, self.sequences = (answer.producerId, answer.producerEpoch), {}
        elif self.mustBegin:
            self.producer = None
        self.mustBegin = False

    def _failed(self, error: int) -> bool:
        if error == ErrorCode.TRANSACTION_ABORTABLE:
            self.ending = False
        elif error and error not in TRY_AGAIN:
            self.isAlive = False
        return bool(error)


class TransactionWorld(CoordinatorWorld):
    """
    One run with a few transactional ids.

    @ivar number: of the last transaction.
    @ivar value: of the last record.
    @ivar fence: the producer id and epoch that a transactional id has got last from InitProducerId.
    @ivar newest: the same, perhaps from EndTxn.
    @ivar asked: transactions whose producer has asked to commit them.
    @ivar answered: outcomes that EndTxn has answered.
    @ivar outcomes: of transactions with a marker.
    @ivar committed: the values of records that readers of committed ones see.
    """

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        super().__init__(seed, isTraced)
        self.number = 0
        self.value = 0
        self.places = {place: ProducedPartition(partial(self._decided, place)) for place in PLACES}
        self.markers: list[tuple[TransactionMarkers, Callable[[Any], None], int]] = []
        self.fence: dict[str, tuple[int, int]] = {}
        self.newest: dict[str, tuple[int, int]] = {}
        self.asked: set[int] = set()
        self.answered: dict[int, bool] = {}
        self.outcomes: dict[int, bool] = {}
        self.committed: set[int] = set()
        self.offset = -1
        self.offsetRecords: list[tuple[Record | None, int, bool]] = []
        self.nextProducerId = self.random.choice((0, IDS_BEHIND))
        self.settings = TransactionSettings(
            partitionCount=1, timeoutCheckIntervalMs=1_000, expiryCheckIntervalMs=10_000,
            idExpirationMs=self.random.choice((20_000, 10**9)),
        )  # fmt: skip
        if self.nextProducerId and self.random.random() < 0.5:
            self._preload()
        self._coordinator = self.load()
        self._groups = self._loadGroups()

    def _preload(self) -> None:
        """A transactional id was used before, until its epochs were nearly used up."""
        epoch = EPOCH_MAX - self.random.randint(2, 5)
        stored = StoredTransaction(0, epoch, TIMEOUTS_MS[0], lastUpdateMs=self.nowMs)
        record = encodeTransactionKey(IDS[0]), encodeTransaction(stored)
        self.log.append([record], self.nowMs, lambda error: None)
        self.log.write(1)
        self.log.flush(1)

    @property
    def coordinator(self) -> TransactionCoordinator:
        return self._coordinator

    def load(self) -> TransactionCoordinator:
        incarnation = self.incarnation
        made = TransactionCoordinator(
            self.settings,
            partial(self.append, incarnation),
            partial(self._writeMarkers, incarnation),
            self._newProducerId,
            lambda: self.nowMs,
        )
        made.beginLoading(0)
        for key, value in self.log.records:
            made.replay(0, key, value)
        made.loaded(0, incarnation)
        return made

    def _loadGroups(self) -> GroupCoordinator:
        made = GroupCoordinator(
            GroupSettings(partitionCount=1), self._appendOffsets, lambda: self.nowMs, Random(0)
        )
        made.beginLoading(0)
        for record, producerId, isCommit in self.offsetRecords:
            if record is None:
                made.transactionEnded(0, producerId, isCommit)
            else:
                made.replay(*record, 0, producerId)
        made.loaded(0)
        return made

    def restarted(self) -> None:
        for markers, _done, incarnation in self.markers:
            if incarnation == self.incarnation - 1 and self.random.random() < 0.5:
                self._mark(markers, 0.5)
        self.markers = []
        self._coordinator = self.load()
        self._groups = self._loadGroups()

    def kept(self, key: bytes, value: bytes | None) -> None:
        """Nothing to note: the partitions show what is true."""

    def _newProducerId(self, done: Callable[[int | None], None]) -> None:
        if self.random.random() < 0.1 and not self.isCalm:
            done(None)
            return
        self.nextProducerId += 1
        done(self.nextProducerId)

    # -- markers and records

    def _writeMarkers(
        self,
        incarnation: int,
        markers: TransactionMarkers,
        done: Callable[[Collection[TopicPartition]], None],
    ) -> None:
        self.markers.append((markers, done, incarnation))

    def markersArrive(self) -> None:
        """Markers are written, or some of them cannot be."""
        if self.markers:
            index = self.random.randrange(len(self.markers))
            markers, done, incarnation = self.markers.pop(index)
            if incarnation == self.incarnation:
                done(self._mark(markers, 0.0 if self.isCalm else 0.2))

    def _mark(self, markers: TransactionMarkers, failing: float) -> list[TopicPartition]:
        left = []
        producer, isCommit = (markers.producerId, markers.producerEpoch), markers.isCommit
        marker = EndMarker(isCommit, markers.coordinatorEpoch, markers.transactionVersion)
        for place in sorted(markers.partitions):
            if self.random.random() < failing:
                left.append(place)
                continue
            self.say(partial("marker in {}: {}".format, place, markers))
            self.counts["markers"] += 1
            try:
                self.places[place].mark(producer, marker)
            except PylogbrokerError as error:
                raise BrokenPromiseError(f"a marker is refused: {error}") from error
            if place == OFFSETS:
                self.offsetRecords.append((None, markers.producerId, isCommit))
                self._groups.transactionEnded(0, markers.producerId, isCommit)
        return left

    def _decided(self, place: TopicPartition, record: ProducedRecord, isCommit: bool) -> None:
        """A marker says what becomes of a record."""
        number = record.number
        if self.outcomes.setdefault(number, isCommit) != isCommit:
            raise BrokenPromiseError(f"transaction {number} is {isCommit} in {place}")
        if self.answered.get(number, isCommit) != isCommit:
            raise BrokenPromiseError(f"transaction {number} was answered otherwise")
        if not isCommit:
            return
        if number not in self.asked:
            raise BrokenPromiseError(f"nobody has asked to commit transaction {number}")
        if place == OFFSETS:
            self.offset = number
        elif record.value in self.committed:
            raise BrokenPromiseError(f"{record} is committed twice")
        self.committed.add(record.value)

    def _write(self, request: Write, isCurrent: bool) -> ErrorCode:
        """@param isCurrent: its producer waits for the answer."""
        producer = request.producerId, request.producerEpoch
        if request.place == OFFSETS:
            return self._commitOffset(request, isCurrent)
        try:
            isNew = self.places[request.place].append(producer, request.sequence, request.record)
        except PylogbrokerError as error:
            self.say(partial(str, error))
            return ErrorCode.INVALID_PRODUCER_EPOCH
        self.counts["records" if isNew else "repeated"] += 1
        if isNew:
            self._checkWritten(request, isCurrent, "a record")
        return ErrorCode.NONE

    def _commitOffset(self, request: Write, isCurrent: bool) -> ErrorCode:
        topics = [CommitTopic(TOPIC, [CommitPartition(0, request.record.number)])]
        commit = TxnOffsetCommit(GROUP, topics, request.producerId, request.producerEpoch)
        answers: list[OffsetCommitAnswer] = []
        self._writing = request
        self._groups.offsetCommit(ClientContext(5), commit, answers.append)
        error = answers[0].topics[0].partitions[0].errorCode
        code = next(each for each in ErrorCode if each == error)
        if not code:
            self._checkWritten(request, isCurrent, "an offset")
        return code

    def _appendOffsets(
        self,
        _partition: int,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        assert producer is not None
        try:
            self.places[OFFSETS].appendOffsets(producer, self._writing.record)
        except PylogbrokerError:
            done(ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        self.counts["offsets"] += 1
        self.offsetRecords += [(record, producer.producerId, False) for record in records]
        done(ErrorCode.NONE)

    # -- events

    def events(self) -> Mapping[Callable[[], None], float]:
        return {
            self.clientComes: 1.5, self.clientDies: 0.4, self.markersArrive: 15.0,
            self.lateArrives: 1.0,
        }  # fmt: skip

    def clientComes(self) -> None:
        """A process takes over a transactional id, or is the first to have it."""
        if sum(each.isAlive for each in self.clients) < CLIENT_COUNT_MAX:
            made = SimulatedTransactor(self, f"p{len(self.clients)}", self.random.choice(IDS))
            self.clients.append(made)
            self.say(lambda: f"{made.name} comes for {made.transactionalId}, TV{made.version}")

    def clientDies(self) -> None:
        """In the midst of whatever it does."""
        alive = [each for each in self.clients if each.isAlive]
        if alive:
            client = self.random.choice(alive)
            client.isAlive = False
            self.say(lambda: f"{client.name} dies")

    # -- requests

    def deliver(self, client: Any, request: Any, reply: Callable[[Any], None]) -> None:
        coordinator, name = self._coordinator, request.transactionalId
        if isinstance(request, InitProducerId):
            coordinator.initProducerId(request, partial(self._checkInit, name, reply))
            return
        known = dict(self.fence)
        if isinstance(request, EndTxn):
            if request.committed:
                self.asked.add(client.number)
            check = partial(self._checkEnd, client.number, request, known, reply)
            coordinator.endTransaction(request, client.version, check)
            return
        producer = request.producerId, request.producerEpoch
        added = partial(self._checkAdded, name, producer, known)
        if isinstance(request, AddPartition):

            def answered(error: ErrorCode) -> None:
                added(error)
                reply(error)

            coordinator.addPartitions(name, *producer, [request.place], client.version, answered)
            return
        isCurrent = client.request is request
        if not isCurrent:
            reply = partial(self._lateAnswered, reply)
        if client.version < 2 or self._isIn(request):
            reply(self._verified(request, isCurrent))
            return

        def admitted(error: ErrorCode) -> None:
            added(error)
            reply(error or self._verified(request, isCurrent))

        coordinator.addPartitions(name, *producer, [request.place], client.version, admitted)

    def _lateAnswered(self, reply: Callable[[Any], None], error: ErrorCode) -> None:
        self.counts["late refused" if error else "late"] += 1
        reply(error)

    def _isIn(self, request: Write) -> bool:
        """Whether the producer's transaction has a record in the partition already."""
        partition, producer = (
            self.places[request.place],
            (request.producerId, request.producerEpoch),
        )
        return request.place != OFFSETS and partition.producers.hasOngoingTransaction(*producer)

    def _verified(self, request: Write, isCurrent: bool) -> ErrorCode:
        """Write, as a broker does, if the partition is in the producer's transaction."""
        producer, known = (request.producerId, request.producerEpoch), dict(self.fence)
        if not self._isIn(request):
            name = request.transactionalId
            (error,) = self._coordinator.verify(name, *producer, [request.place])
            self._checkAdded(name, producer, known, error)
            if error:
                return error
        return self._write(request, isCurrent)

    def isDelayable(self, client: Any, request: object) -> bool:
        """
        A record has a number in a sequence. An offset has none: before C{transaction.version} 2 a
        late one counts in its producer's next transaction, in Kafka, too.
        """
        return isinstance(request, Write) and (client.version >= 2 or request.place != OFFSETS)

    # -- the checkers

    def _checkFence(
        self,
        name: str,
        producer: tuple[int, int],
        fence: Mapping[str, tuple[int, int]],
        what: str,
    ) -> None:
        if producer < fence.get(name, producer):
            raise BrokenPromiseError(f"{what} of {producer} got through behind {fence[name]}")

    def _checkWritten(self, request: Write, isCurrent: bool, what: str) -> None:
        producer, name = (request.producerId, request.producerEpoch), request.transactionalId
        self._checkFence(name, producer, self.newest if isCurrent else self.fence, what)

    def _given(self, name: str, answer: ProducerIdAnswer) -> tuple[int, int]:
        """A producer is given an id and an epoch."""
        if answer.producerEpoch >= EPOCH_MAX:
            raise BrokenPromiseError("a producer has the epoch of markers")
        given = answer.producerId, answer.producerEpoch
        before = self.newest.get(name, given)
        self.counts["epochs used up"] += given > before and before[1] >= EPOCH_MAX - 2
        self.newest[name] = max(before, given)
        return given

    def _checkInit(self, name: str, reply: Callable[[Any], None], answer: ProducerIdAnswer) -> None:
        if not answer.errorCode:
            producer = self._given(name, answer)
            if producer <= self.fence.get(name, (-1, -1)):
                raise BrokenPromiseError(f"{producer} was given behind {self.fence[name]}")
            self.fence[name] = producer
            self.counts["initialised"] += 1
        reply(answer)

    def _checkAdded(
        self,
        name: str,
        producer: tuple[int, int],
        known: Mapping[str, tuple[int, int]],
        error: ErrorCode,
    ) -> None:
        self.counts["refused" if error else "added"] += 1
        self.counts["fenced"] += error == ErrorCode.PRODUCER_FENCED
        if not error:
            self._checkFence(name, producer, known, "a partition")

    def _checkEnd(
        self,
        number: int,
        request: EndTxn,
        known: Mapping[str, tuple[int, int]],
        reply: Callable[[Any], None],
        answer: ProducerIdAnswer,
    ) -> None:
        self.counts["fenced"] += answer.errorCode == ErrorCode.PRODUCER_FENCED
        if not answer.errorCode:
            producer = request.producerId, request.producerEpoch
            self._checkFence(request.transactionalId, producer, known, "an end")
            self._given(request.transactionalId, answer)
            if self.answered.setdefault(number, request.committed) != request.committed:
                raise BrokenPromiseError(f"transaction {number} has two outcomes")
            if self.outcomes.get(number, request.committed) != request.committed:
                raise BrokenPromiseError(f"transaction {number} was answered otherwise")
            self.counts["committed" if request.committed else "aborted"] += 1
        reply(answer)

    def check(self) -> None:
        """Everything is checked when it happens."""

    # -- peace

    def calm(self) -> None:
        """Those that live end what they have begun."""

    def isAtRest(self) -> bool:
        while self.markers:
            self.markersArrive()
        isOpen = any(each.isOpen for each in self.places.values())
        listed = self._coordinator.listTransactions().transactionStates
        isBusy = any(not each.transactionState.startswith(("Empty", "Com")) for each in listed)
        isWaiting = any(each.isIdle and each.number is not None for each in self.clients)
        if isOpen or isBusy or isWaiting or self.unanswered:
            return False
        if self.late:
            while self.late:
                self.lateArrives()
            return False
        self._checkOffsets()
        return True

    def _checkOffsets(self) -> None:
        """The group has the offset of the last transaction whose commit its partition shows."""
        for groups in (self._groups, self._loadGroups()):
            answers: list[Any] = []
            fetch = OffsetFetchGroup(GROUP)
            groups.offsetFetch(ClientContext(8), fetch, False, answers.append)
            offsets = [each.committedOffset for t in answers[0].topics for each in t.partitions]
            if (offsets or [-1]) != [self.offset]:
                raise BrokenPromiseError(f"the group has {offsets}, not {self.offset}")

    def describe(self) -> str:
        listed = self._coordinator.listTransactions().transactionStates
        clients = [
            (each.name, each.producer, each.number, each.ending)
            for each in self.clients
            if each.isAlive
        ]
        return f"{listed}; {clients}; {self.unanswered}"
