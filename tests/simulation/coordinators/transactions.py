"""
Producers with transactional ids, the coordinator of transactions, the partitions they write to and
the coordinator of a group whose offsets they commit, in random orders of events; and what must hold
in each.

Producers begin, write to some partitions and commit or abort; processes come and take over the id
of another, which goes on as if nothing had happened; transactions take too long. Markers are late,
cannot be written, or are lost in a crash.

The checkers know the requests, the answers and the partitions:

  - I{a fenced producer that gets through}: behind the answer to InitProducerId, no request and no
    record with an older epoch is accepted;
  - I{one outcome}: all records of a transaction are committed, or all are aborted, in every
    partition; as the answer to EndTxn has said, if there was one;
  - I{a lost offset}: the group has the offset of the last committed transaction, after a restart,
    too;
  - I{a transaction that never ends}: at rest, every record has its marker.
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
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.types import TopicPartition
from tests.simulation.coordinators.world import (
    BrokenPromiseError,
    CoordinatorWorld,
    SimulatedClient,
)

TOPIC, GROUP = "t", "g"
OFFSETS = TopicPartition("__consumer_offsets", 0)
PLACES = (*(TopicPartition(TOPIC, index) for index in range(3)), OFFSETS)
CLIENT_COUNT_MAX = 4
TIMEOUT_MS = 5_000

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

    @ivar number: of the transaction.
    """

    transactionalId: str
    producerId: int
    producerEpoch: int
    place: TopicPartition
    number: int


class Entry(NamedTuple):
    """
    What is in a partition.

    @ivar number: of a record's transaction; L{None} for a marker.
    """

    producerId: int
    producerEpoch: int
    number: int | None
    isCommit: bool = False


class DataPartition:
    """
    A partition, in which nothing is lost.

    @ivar epochs: of producers.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.epochs: dict[int, int] = {}

    def append(self, entry: Entry) -> bool:
        """Whether a record was written, or a newer producer is known."""
        if entry.producerEpoch < self.epochs.get(entry.producerId, 0):
            return False
        self.epochs[entry.producerId] = entry.producerEpoch
        self.entries.append(entry)
        return True

    def outcomes(self) -> dict[int, bool | None]:
        """Of each transaction with a record here; L{None} if it is open."""
        found: dict[int, bool | None] = {}
        unmarked: dict[int, list[int]] = {}
        for each in self.entries:
            if each.number is not None:
                found[each.number] = None
                unmarked.setdefault(each.producerId, []).append(each.number)
            else:
                for number in unmarked.pop(each.producerId, ()):
                    found[number] = each.isCommit
        return found


class SimulatedTransactor(SimulatedClient):
    """
    A producer with a transactional id.

    @ivar producer: its id and epoch, if it has one.
    @ivar number: of its transaction, if it has begun.
    @ivar ending: whether to commit, if it is about to end.
    """

    def __init__(self, world: TransactionWorld, name: str, transactionalId: str) -> None:
        super().__init__(world, name)
        self.transactionalId = transactionalId
        self.version = world.random.choice((1, 2))
        self.producer: tuple[int, int] | None = None
        self.number: int | None = None
        self.added: set[TopicPartition] = set()
        self.leftCount = 0
        self.ending: bool | None = None
        self.isWriting = False
        self._transactions = world

    def act(self) -> None:
        random = self.world.random
        if self.producer is None:
            self.send(InitProducerId(self.transactionalId, TIMEOUT_MS), self._initialised)
            return
        if self.number is None:
            if self.world.isCalm:
                return
            self._transactions.number += 1
            self.number, self.added, self.ending = self._transactions.number, set(), None
            self.leftCount = random.randint(1, 4)
        if self.isWriting:
            self.ending = False  # it does not know what became of its record
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
        self.isWriting = True
        write = Write(self.transactionalId, *self.producer, place, self.number)
        self.send(write, partial(self._written, place))

    def _initialised(self, answer: ProducerIdAnswer) -> None:
        if not self._failed(answer.errorCode):
            self.producer = answer.producerId, answer.producerEpoch

    def _added(self, place: TopicPartition, error: ErrorCode) -> None:
        if not self._failed(error):
            self.added.add(place)

    def _written(self, place: TopicPartition, error: ErrorCode) -> None:
        self.isWriting = False
        if not self._failed(error):
            self.added.add(place)
            self.leftCount -= 1

    def _ended(self, isCommit: bool, answer: ProducerIdAnswer) -> None:
        if self._failed(answer.errorCode):
            return
        self.number, self.ending, self.isWriting = None, None, False
        if self.version >= 2:
            self.producer = answer.producerId, answer.producerEpoch

    def _failed(self, error: int) -> bool:
        if error == ErrorCode.TRANSACTION_ABORTABLE:
            self.ending = False
        elif error and error not in TRY_AGAIN:
            self.isAlive = False
        return bool(error)


class TransactionWorld(CoordinatorWorld):
    """
    One run with two transactional ids.

    @ivar number: of the last transaction.
    @ivar fence: the producer id and epoch that a transactional id has got last.
    @ivar answered: outcomes that EndTxn has answered.
    """

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        super().__init__(seed, isTraced)
        self.number = 0
        self.places = {place: DataPartition() for place in PLACES}
        self.markers: list[tuple[TransactionMarkers, Callable[[Any], None], int]] = []
        self.fence: dict[str, tuple[int, int]] = {}
        self.answered: dict[int, bool] = {}
        self.offsets: dict[int, int] = {}
        self.offsetRecords: list[tuple[Record | None, int, bool]] = []
        self.nextProducerId = self.random.choice((0, 100))
        self.settings = TransactionSettings(
            partitionCount=1, timeoutCheckIntervalMs=1_000, expiryCheckIntervalMs=10_000,
            idExpirationMs=self.random.choice((20_000, 10**9)),
        )  # fmt: skip
        self._coordinator = self.load()
        self._groups = self._loadGroups()

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
        for place in sorted(markers.partitions):
            if self.random.random() < failing:
                left.append(place)
                continue
            producerId, isCommit = markers.producerId, markers.isCommit
            self.say(partial("marker in {}: {}".format, place, markers))
            self.counts["markers"] += 1
            marker = Entry(producerId, markers.producerEpoch, None, isCommit)
            if self.places[place].append(marker) and place == OFFSETS:
                self.offsetRecords.append((None, producerId, isCommit))
                self._groups.transactionEnded(0, producerId, isCommit)
        return left

    def _write(self, request: Write) -> ErrorCode:
        producer = request.producerId, request.producerEpoch
        entry = Entry(*producer, request.number)
        if request.place == OFFSETS:
            return self._commitOffset(request)
        if not self.places[request.place].append(entry):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        self._checkFence(request.transactionalId, producer, self.fence, "a record")
        self.counts["records"] += 1
        return ErrorCode.NONE

    def _commitOffset(self, request: Write) -> ErrorCode:
        topics = [CommitTopic(TOPIC, [CommitPartition(0, request.number)])]
        commit = TxnOffsetCommit(GROUP, topics, request.producerId, request.producerEpoch)
        answers: list[OffsetCommitAnswer] = []
        self._writing = request
        self._groups.offsetCommit(ClientContext(5), commit, answers.append)
        code = answers[0].topics[0].partitions[0].errorCode
        return next(each for each in ErrorCode if each == code)

    def _appendOffsets(
        self,
        _partition: int,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        assert producer is not None
        entry = Entry(producer.producerId, producer.producerEpoch, self._writing.number)
        if not self.places[OFFSETS].append(entry):
            done(ErrorCode.INVALID_PRODUCER_EPOCH)
            return
        place = producer.producerId, producer.producerEpoch
        self._checkFence(self._writing.transactionalId, place, self.fence, "an offset")
        self.counts["offsets"] += 1
        self.offsetRecords += [(record, producer.producerId, False) for record in records]
        done(ErrorCode.NONE)

    # -- events

    def events(self) -> Mapping[Callable[[], None], float]:
        return {self.clientComes: 0.7, self.clientDies: 0.4, self.markersArrive: 15.0}

    def clientComes(self) -> None:
        """A process takes over a transactional id, or is the first to have it."""
        if sum(each.isAlive for each in self.clients) < CLIENT_COUNT_MAX:
            made = SimulatedTransactor(self, f"p{len(self.clients)}", self.random.choice("xy"))
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
            check = partial(self._checkEnd, client.number, request, known, reply)
            coordinator.endTransaction(request, client.version, check)
            return
        producer = request.producerId, request.producerEpoch
        added = partial(self._checkAdded, name, producer, known)
        if isinstance(request, AddPartition) or client.version >= 2:
            places = [request.place]

            def answered(error: ErrorCode) -> None:
                added(error)
                isWriting = isinstance(request, Write) and not error
                reply(self._write(request) if isWriting else error)

            coordinator.addPartitions(name, *producer, places, client.version, answered)
        else:
            (error,) = coordinator.verify(name, *producer, [request.place])
            added(error)
            reply(error or self._write(request))

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

    def _checkInit(self, name: str, reply: Callable[[Any], None], answer: ProducerIdAnswer) -> None:
        if not answer.errorCode:
            producer = answer.producerId, answer.producerEpoch
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
            if self.answered.setdefault(number, request.committed) != request.committed:
                raise BrokenPromiseError(f"transaction {number} has two outcomes")
            self.counts["committed" if request.committed else "aborted"] += 1
        reply(answer)

    def check(self) -> None:
        """Each transaction has one outcome, and the one that was answered."""
        if self.random.random() < 0.03 or self.isCalm:
            self._outcomes()

    def _outcomes(self) -> dict[int, bool]:
        found: dict[int, bool] = {}
        for place, partition in self.places.items():
            for number, isCommit in partition.outcomes().items():
                if isCommit is None:
                    continue
                if found.setdefault(number, isCommit) != isCommit:
                    raise BrokenPromiseError(f"transaction {number} is {isCommit} in {place}")
                if self.answered.get(number, isCommit) != isCommit:
                    raise BrokenPromiseError(f"transaction {number} was answered otherwise")
        return found

    # -- peace

    def calm(self) -> None:
        """Those that live end what they have begun."""

    def isAtRest(self) -> bool:
        while self.markers:
            self.markersArrive()
        isOpen = any(None in each.outcomes().values() for each in self.places.values())
        listed = self._coordinator.listTransactions().transactionStates
        isBusy = any(not each.transactionState.startswith(("Empty", "Com")) for each in listed)
        isWaiting = any(each.isIdle and each.number is not None for each in self.clients)
        if isOpen or isBusy or isWaiting or self.unanswered:
            return False
        self._checkOffsets()
        return True

    def _checkOffsets(self) -> None:
        """The group has the offset of the last transaction whose commit its partition shows."""
        expected, unmarked = -1, dict[int, int]()
        for each in self.places[OFFSETS].entries:
            if each.number is not None:
                unmarked[each.producerId] = each.number
            else:
                number = unmarked.pop(each.producerId, None)
                if number is not None and each.isCommit:
                    expected = number
        for groups in (self._groups, self._loadGroups()):
            answers: list[Any] = []
            fetch = OffsetFetchGroup(GROUP)
            groups.offsetFetch(ClientContext(8), fetch, False, answers.append)
            offsets = [each.committedOffset for t in answers[0].topics for each in t.partitions]
            if (offsets or [-1]) != [expected]:
                raise BrokenPromiseError(f"the group has {offsets}, not {expected}")

    def describe(self) -> str:
        listed = self._coordinator.listTransactions().transactionStates
        clients = [
            (each.name, each.producer, each.number, each.ending)
            for each in self.clients
            if each.isAlive
        ]
        return f"{listed}; {clients}; {self.unanswered}"
