"""
A simulation of the coordinator of transactions: producers of both versions of transactions, of
which several have the same transactional id, partitions with Kafka's producer state, appends and
markers that take their time, fail or are lost in a crash, answers that are lost. A seed decides
everything.

In the end nothing is open, and L{Simulation.check} looks for transactions of which a part is
visible, or more or less than their producers were told. While it runs, a producer that was replaced
must not get through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

from pylogbroker.coordinator.effects import Appended, Record
from pylogbroker.coordinator.transactions.transactioncoordinator import (
    TransactionCoordinator,
    TransactionMarkers,
    TransactionSettings,
)
from pylogbroker.coordinator.transactions.transactionmessages import EndTxn, InitProducerId
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import BatchHeader, EndMarker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records.recordbatch import CONTROL_ATTRIBUTE, TRANSACTIONAL_ATTRIBUTE
from pylogbroker.storage.kafka.producerstate import EPOCH_MAX, ProducerStateManager
from pylogbroker.types import TopicPartition

NAMES = ("a", "b")
PRODUCER_COUNT = 4
PARTITION_COUNT = 3
STEP_COUNT = 400
QUIET_STEP_COUNT_MAX = 5_000
TIMEOUT_MS = 5_000
SETTINGS = TransactionSettings(partitionCount=1, timeoutCheckIntervalMs=1_000)


class BrokenRuleError(Exception):
    """Something that must not be."""


class Partition:
    """
    One partition.

    @ivar entries: (producer id, value) of records, and (producer id, L{EndMarker}).
    """

    def __init__(self) -> None:
        self.state = ProducerStateManager("p", 1 << 60)
        self.entries: list[tuple[int, int | EndMarker]] = []

    def _header(self, producer: tuple[int, int], sequence: int, attributes: int) -> BatchHeader:
        producerId, epoch = producer
        return BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, 0, producerId, epoch, sequence, 1)

    def append(self, producer: tuple[int, int], sequence: int, value: int) -> None:
        """
        @raise PylogbrokerError: the batch is refused.
        """
        header = self._header(producer, sequence, TRANSACTIONAL_ATTRIBUTE)
        if self.state.check(header) is None:
            self.state.append(header, len(self.entries), 0)
            self.entries.append((producer[0], value))

    def mark(self, producer: tuple[int, int], marker: EndMarker) -> None:
        """
        @raise PylogbrokerError: the marker is refused.
        """
        header = self._header(producer, -1, TRANSACTIONAL_ATTRIBUTE | CONTROL_ATTRIBUTE)
        self.state.checkMarker(header, marker)
        self.state.append(header, len(self.entries), 0, marker)
        self.entries.append((producer[0], marker))

    def committed(self) -> list[int]:
        """The values that readers of committed records see."""
        found: list[int] = []
        ongoing: dict[int, list[int]] = {}
        for producerId, entry in self.entries:
            if not isinstance(entry, EndMarker):
                ongoing.setdefault(producerId, []).append(entry)
            else:
                values = ongoing.pop(producerId, [])
                found += values if entry.isCommit else []
        return found


class Transaction:
    """
    What a producer knows of one of its transactions.

    @ivar values: by partition; those whose append was answered.
    @ivar isCommitted: L{None}: it was not told.
    """

    def __init__(self) -> None:
        self.values: list[tuple[int, int]] = []
        self.isCommitAsked = False
        self.isCommitted: bool | None = None


class Simulation:
    """A world of producers, partitions and a coordinator."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.nowMs = 1_000_000
        self.generation = 0  # of the coordinator
        self.records: list[Record] = []
        self.appends: list[tuple[Sequence[Record], Appended]] = []
        self.markers: list[Callable[[], None]] = []
        self.late: list[Callable[[], None]] = []  # batches that are on their way for long
        self.partitions = [Partition() for _ in range(PARTITION_COUNT)]
        self.nextId = 0
        self.nextValue = 0
        self.newest: dict[str, tuple[int, int]] = {}  # id and epoch that a producer was given
        self.transactions: list[Transaction] = []
        self.isQuiet = False
        self.coordinator = self._made()
        self.producers = [
            Producer(self, self.random.choice(NAMES), self.random.choice((0, 2)))
            for _ in range(PRODUCER_COUNT)
        ]

    def _made(self) -> TransactionCoordinator:
        made = TransactionCoordinator(
            SETTINGS, self._append, self._write, self._newId, lambda: self.nowMs
        )
        made.beginLoading(0)
        for key, value in self.records:
            made.replay(0, key, value)
        self.coordinator = made
        made.loaded(0, self.generation)
        return made

    def _newId(self, got: Callable[[int | None], None]) -> None:
        self.nextId += 1
        got(self.nextId)

    def _append(
        self, partition: int, records: Sequence[Record], done: Appended, producer: object = None, /
    ) -> None:
        self.appends.append((records, done))

    def _write(
        self, markers: TransactionMarkers, done: Callable[[Collection[TopicPartition]], None]
    ) -> None:
        """Each marker takes its time; some cannot be written now."""
        waiting = list(markers.partitions)
        left: list[TopicPartition] = []
        generation = self.generation

        def write(place: TopicPartition) -> None:
            if generation != self.generation:
                return
            if not self.isQuiet and self.random.random() < 0.1:
                left.append(place)
            else:
                producer = markers.producerId, markers.producerEpoch
                marker = EndMarker(
                    markers.isCommit, markers.coordinatorEpoch, markers.transactionVersion
                )
                self.partitions[place.partition].mark(producer, marker)
            waiting.remove(place)
            if not waiting:
                done(left)

        for place in sorted(waiting):
            self.markers.append(lambda place=place: write(place))  # type: ignore[misc]

    # -- what happens

    def run(self) -> None:
        """
        @raise BrokenRuleError: what must not be.
        """
        for _ in range(STEP_COUNT):
            self._step()
        self._end()
        self.check()

    def _step(self) -> None:
        chance = self.random.random()
        if chance < 0.6:
            self.random.choice(self.producers).step()
        elif chance < 0.8:
            self._flush(self.random.randint(0, 2))
        elif chance < 0.93:
            self._mark()
        elif chance < 0.94:
            if self.late:
                self.late.pop(self.random.randrange(len(self.late)))()
        elif chance < 0.98:
            self._advance(self.random.choice((10, 100, 1_500, TIMEOUT_MS)))
        else:
            self._crash()

    def _flush(self, count: int) -> None:
        done, self.appends = self.appends[:count], self.appends[count:]
        for records, callback in done:
            isRefused = not self.isQuiet and self.random.random() < 0.03
            if not isRefused:
                self.records += records
            callback(ErrorCode.REQUEST_TIMED_OUT if isRefused else ErrorCode.NONE)

    def _mark(self) -> None:
        if self.markers:
            self.markers.pop(self.random.randrange(len(self.markers)))()

    def _advance(self, ms: int) -> None:
        self.nowMs += ms
        self.coordinator.advance()

    def _crash(self) -> None:
        """Some of what waits was written; nobody was told. Markers that wait are lost."""
        for records, _ in self.appends[: self.random.randint(0, len(self.appends))]:
            self.records += records
        self.appends, self.markers = [], []
        self.generation += 1
        self._made()

    def _end(self) -> None:
        """Every transactional id gets a last producer, with whom nothing is open any more."""
        self.isQuiet = True
        last = [Producer(self, name, 2) for name in NAMES]
        for each in last:
            each.isLast = True
        for _ in range(QUIET_STEP_COUNT_MAX):
            if all(each.isReady for each in last) and not self.appends and not self.markers:
                for arrive in self.late:
                    arrive()
                return
            for each in last:
                each.step()
            self._flush(len(self.appends))
            while self.markers:
                self._mark()
            self._advance(1_000)
        raise BrokenRuleError("a transaction never ends")

    def check(self) -> None:
        """
        @raise BrokenRuleError: what must not be.
        """
        seen = [each.committed() for each in self.partitions]
        for each in self.partitions:
            if each.state.ongoing:
                raise BrokenRuleError("a transaction is open for ever")
        for found in seen:
            if len(set(found)) != len(found):
                raise BrokenRuleError("a record is committed twice")
        for transaction in self.transactions:
            isSeen = {value in seen[index] for index, value in transaction.values}
            if len(isSeen) > 1:
                raise BrokenRuleError("a part of a transaction is visible")
            if transaction.isCommitted is not None and isSeen == {not transaction.isCommitted}:
                raise BrokenRuleError(f"a producer was told {transaction.isCommitted}")
            if not transaction.isCommitAsked and True in isSeen:
                raise BrokenRuleError("a transaction is committed that nobody has committed")


class Producer:
    """
    A producer. It sends a request, and the next one when it has the answer; sometimes it has lost
    the answer, and asks again, or ends, and another one with its transactional id begins.

    @ivar isReady: has got its first epoch.
    @ivar isLast: only begins.
    """

    def __init__(self, world: Simulation, name: str, version: int) -> None:
        self._world = world
        self._random = world.random
        self._name = name
        self._version = version
        self.isLast = False
        self._begin()

    def _begin(self) -> None:
        self.isReady = self._isGivingUp = False
        self.producer = (-1, -1)
        self._sequences: dict[int, int] = {}
        self._transaction: Transaction | None = None
        self._wanted: list[int] = []
        self._added: set[int] = set()
        self._send: Callable[[Callable[[Any], object]], object] | None = None
        self._take: Callable[[Any], None] = lambda answer: None
        self._answers: list[Any] = []
        self._sentIn = -1

    def _ask(
        self,
        send: Callable[[Callable[[Any], object]], object],
        take: Callable[[Any], None],
    ) -> None:
        self._send, self._take = send, take
        self._answers = []
        self._sentIn = self._world.generation
        send(self._answers.append)

    def step(self) -> None:
        """Do one thing."""
        if not self.isLast and self._random.random() < 0.004:
            self._begin()
        if self._send is not None:
            self._await(self._send)
        elif not self.isReady:
            self._init()
        elif not self.isLast:
            self._work()

    def _await(self, send: Callable[[Callable[[Any], object]], object]) -> None:
        isLost = self._sentIn != self._world.generation and not self._answers
        if isLost or (self._answers and not self.isLast and self._random.random() < 0.05):
            self._ask(send, self._take)
        elif self._answers:
            answer = self._answers[0]
            code = answer if isinstance(answer, ErrorCode) else _codeOf(answer)
            if code in _RETRIED:
                self._ask(send, self._take)
            else:
                self._send = None
                self._take(answer)

    def _init(self) -> None:
        request = InitProducerId(self._name, TIMEOUT_MS, *self.producer)

        def take(answer: Any) -> None:
            if answer.errorCode:
                self._begin()
                return
            self.isReady = True
            self.producer = answer.producerId, answer.producerEpoch
            self._note()

        self._ask(lambda reply: self._world.coordinator.initProducerId(request, reply), take)

    def _note(self) -> None:
        """An epoch was given to this producer."""
        newest = self._world.newest
        newest[self._name] = max(newest.get(self._name, (0, 0)), self.producer)

    @property
    def _isReplaced(self) -> bool:
        """Whether another producer has got a newer epoch."""
        return self._world.newest[self._name] > self.producer

    def _work(self) -> None:
        world = self._world
        if self._transaction is None:
            self._transaction = Transaction()
            world.transactions.append(self._transaction)
            self._added = set()
            count = self._random.randint(1, PARTITION_COUNT)
            self._wanted = [self._random.randrange(PARTITION_COUNT) for _ in range(count)]
        elif self._wanted:
            index = self._wanted[-1]
            if index in self._added:
                self._wanted.pop()
                self._produce(index)
            else:
                self._add(index)
        else:
            self._finish(self._transaction, self._random.random() < 0.7)

    def _add(self, index: int) -> None:
        def take(error: ErrorCode) -> None:
            if error:
                self._begin()
            else:
                self._added.add(index)

        self._ask(
            lambda reply: self._world.coordinator.addPartitions(
                self._name, *self.producer, [TopicPartition("t", index)], self._version, reply
            ),
            take,
        )

    def _produce(self, index: int) -> None:
        world = self._world
        partition, place = world.partitions[index], TopicPartition("t", index)
        value, world.nextValue = world.nextValue, world.nextValue + 1
        producer, name, sequence = self.producer, self._name, self._sequences.get(index, 0)

        def append() -> bool:
            """As a broker does, at whatever time it gets the batch."""
            if not partition.state.hasOngoingTransaction(*producer):
                (error,) = world.coordinator.verify(name, *producer, [place])
                if error:
                    return False
            try:
                partition.append(producer, sequence, value)
            except PylogbrokerError:
                return False
            return True

        assert self._transaction is not None
        if self._random.random() < 0.05:
            # It has got no answer in time: it aborts, and the batch may come at any time.
            world.late.append(lambda: _discard(append()))
            self._isGivingUp = True
            self._finish(self._transaction, False)
        elif not append():
            self._begin()
        elif self._isReplaced:
            raise BrokenRuleError("a producer that was replaced gets through")
        else:
            self._sequences[index] = sequence + 1
            self._transaction.values.append((index, value))

    def _finish(self, transaction: Transaction, isCommit: bool) -> None:
        request = EndTxn(self._name, *self.producer, isCommit)
        transaction.isCommitAsked = isCommit

        def take(answer: Any) -> None:
            if answer.errorCode:
                self._begin()
                return
            transaction.isCommitted = isCommit
            if self._isGivingUp:
                self._begin()
                return
            if self._version:
                if answer.producerEpoch >= EPOCH_MAX:
                    raise BrokenRuleError("a producer has the epoch of markers")
                self.producer = answer.producerId, answer.producerEpoch
                self._note()
                self._sequences = {}
            self._transaction = None

        self._ask(
            lambda reply: self._world.coordinator.endTransaction(request, self._version, reply),
            take,
        )


_RETRIED = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def _codeOf(answer: Any) -> int:
    """Of an answer with a field for it."""
    code: int = answer.errorCode
    return code


def _discard(_: object) -> None:
    """Drop what a callback returns."""
