"""
The coordinator of transactions, as a pure state machine: requests in; answers, records, end markers
and deadlines out. No Twisted, no clock of its own: a module of its own, so that simulations can
drive it.

  ============== ============================================ =====================================
  state          meaning                                      then
  ============== ============================================ =====================================
  Empty          the producer is known, and has done nothing  Ongoing, PrepareAbort
  Ongoing        partitions are in the transaction            PrepareCommit, PrepareAbort
  PrepareCommit  the transaction is committed: its markers    CompleteCommit
                 are being written
  PrepareAbort   it is aborted: likewise                      CompleteAbort
  CompleteCommit all markers are written                      Ongoing, Empty, PrepareAbort
  CompleteAbort  likewise                                     Ongoing, Empty, PrepareAbort
  ============== ============================================ =====================================

The caller

  - appends records when the coordinator calls C{append}, and calls back what it is given;
  - writes end markers when the coordinator calls C{writeMarkers}, and calls back with the
    partitions where that could not be done, which are tried again;
  - calls L{TransactionCoordinator.advance} at L{TransactionCoordinator.nextDeadlineMs};
  - reads the partitions of C{__transaction_state} at the start, and gives their records to
    L{TransactionCoordinator.replay}.

What must be true: a transaction is decided by the record of PrepareCommit or PrepareAbort, and by
nothing else. The client is told when that record is appended. From then on its markers are written,
again after a restart, until all are there; writing one twice does no harm. Until then no producer
of the transactional id can begin anything.

B{Fencing.} A producer that asks for its id gets the next epoch, and every earlier one is refused. A
transaction that its predecessor has left open is aborted first, with an epoch that nobody has, so
that partitions refuse what the predecessor still sends. A transaction that takes too long is
aborted in the same way.

B{C{transaction.version} 2} (KIP-890): with clients that know it, each transaction has an epoch of
its own. EndTxn raises it; the markers have the new one, and so no record of the old transaction can
come behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pylogbroker.coordinator.effects import Append, Deadlines, Effects, Record, appendError
from pylogbroker.coordinator.transactions.transactionmessages import (
    DescribedTransaction,
    EndTxn,
    InitProducerId,
    ListedTransaction,
    ListTransactionsAnswer,
    PartitionData,
    ProducerIdAnswer,
)
from pylogbroker.coordinator.transactions.transactionstopic import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONAL_ID_SIZE_MAX,
    StoredTransaction,
    TransactionState,
    decodeTransaction,
    decodeTransactionKey,
    encodeTransaction,
    encodeTransactionKey,
    transactionPartition,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.types import TopicPartition

EPOCH_MAX = 2**15 - 1
"""The last epoch, which only markers have. A producer with the one before gets another id."""

EPOCH_BUMP_VERSION = 2
"""The C{transaction.version} from which each transaction has an epoch of its own."""

MARKER_RETRY_MIN_MS, MARKER_RETRY_MAX_MS = 50, 1_000
"""
How long to wait until markers are tried again that could not be written: the first time, doubled
with each further one, at most.
"""

EXPIRED_COUNT_MAX = 500
"""Transactional ids that expire at a time."""

_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_IDLE = (TransactionState.EMPTY, *_ENDED)
_STATES_BY_NAME = {each.value: each for each in TransactionState}
_TIMEOUTS_KEY = "timeouts"
_EXPIRY_KEY = "expiry"


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """
    Settings of a transaction coordinator. Those with a name in brackets are Kafka's, with its
    defaults.

    @ivar partitionCount: of C{__transaction_state} (C{transaction.state.log.num.partitions}).
    @ivar timeoutMaxMs: the longest transaction that a client may ask for
        (C{transaction.max.timeout.ms}).
    @ivar idExpirationMs: how long an unused transactional id is kept
        (C{transactional.id.expiration.ms}).
    @ivar timeoutCheckIntervalMs: how often transactions that take too long are looked for
        (C{transaction.abort.timed.out.transaction.cleanup.interval.ms}).
    @ivar expiryCheckIntervalMs: how often unused ids are
        (C{transaction.remove.expired.transaction.cleanup.interval.ms}).
    @ivar transactionCountMax: transactional ids; Kafka has no such limit.
    """

    partitionCount: int = 50
    timeoutMaxMs: int = 900_000
    idExpirationMs: int = 7 * 24 * 3_600_000
    timeoutCheckIntervalMs: int = 10_000
    expiryCheckIntervalMs: int = 3_600_000
    transactionCountMax: int = 100_000


class TransactionMarkers(NamedTuple):
    """
    The end markers of a transaction.

    @ivar coordinatorEpoch: the leader epoch of the partition that holds the transaction.
    @ivar transactionVersion: from 2 on, the epoch is newer than that of the transaction.
    @ivar partitions: where to write one.
    """

    producerId: int
    producerEpoch: int
    isCommit: bool
    coordinatorEpoch: int
    transactionVersion: int
    partitions: Collection[TopicPartition]


WriteMarkers = Callable[[TransactionMarkers, Callable[[Collection[TopicPartition]], None]], object]
"""
Writes markers, and calls back, now or later, when each is written as an acknowledged write is, or
cannot be written: with the partitions that are left. A partition that does not exist any more, or
whose producer is a newer one, needs none.
"""

NewProducerId = Callable[[Callable[[int | None], None]], object]
"""Calls back with a producer id that was never used; L{None}: there is none now."""

Answered = Callable[[ErrorCode], object]


class _Transaction:
    """
    @ivar partition: of C{__transaction_state}.
    @ivar stored: as appended.
    @ivar lastEpoch: the epoch before C{stored}'s, if its producer may not know the new one; -1.
    @ivar isPending: a change is being appended, or markers are being written; always so once the
        transaction is decided, and until it is complete.
    @ivar retryCount: how often the writing of markers, or the completion, has failed.
    """

    __slots__ = ("isPending", "lastEpoch", "partition", "retryCount", "stored", "transactionalId")

    def __init__(self, transactionalId: str, partition: int, stored: StoredTransaction) -> None:
        self.transactionalId = transactionalId
        self.partition = partition
        self.stored = stored
        self.lastEpoch = NO_PRODUCER_EPOCH
        self.isPending = False
        self.retryCount = 0

    @property
    def isNew(self) -> bool:
        """Whether nothing of it was appended yet."""
        return self.stored.producerEpoch == NO_PRODUCER_EPOCH

    @property
    def isEpochExhausted(self) -> bool:
        """Whether the next epoch needs another producer id."""
        return self.stored.producerEpoch >= EPOCH_MAX - 1


class TransactionCoordinator:
    """The coordinator of the transactions of a broker."""

    def __init__(
        self,
        settings: TransactionSettings,
        append: Append,
        writeMarkers: WriteMarkers,
        newProducerId: NewProducerId,
        nowMs: Callable[[], int],
        isCurrent: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param append: appends to a partition of C{__transaction_state}, see L{Append}.
        @param nowMs: the time since 1970.
        @param isCurrent: whether no other broker can have taken over the transactions unnoticed.
            While one can, every request is refused.
        """
        self._isCurrent = isCurrent
        self.settings = settings
        self.nowMs = nowMs
        self._effects = Effects(append)
        self._deadlines = Deadlines()
        self._writeMarkers = writeMarkers
        self._newProducerId = newProducerId
        self._transactions: dict[str, _Transaction] = {}
        self._ongoing: dict[str, None] = {}
        self._epochs: dict[int, int] = {}  # of the partitions that are served
        self._loading: set[int] = set()

    def partitionOf(self, transactionalId: str) -> int:
        """The partition of C{__transaction_state} that holds a transactional id."""
        return transactionPartition(transactionalId, self.settings.partitionCount)

    # -- InitProducerId

    def initProducerId(
        self, request: InitProducerId, reply: Callable[[ProducerIdAnswer], object]
    ) -> None:
        """
        InitProducerId with a transactional id. Answered when the new epoch is appended; with
        CONCURRENT_TRANSACTIONS when the abort of an ongoing transaction is.
        """
        self._init(request, reply, None)
        self._effects.deliver()

    def _init(
        self,
        request: InitProducerId,
        reply: Callable[[ProducerIdAnswer], object],
        spareId: int | None,
    ) -> None:
        """@param spareId: a new producer id, if this request has asked for one."""

        def refuse(error: ErrorCode) -> None:
            self._effects.reply(reply, ProducerIdAnswer(error))

        error = self._initError(request)
        if error:
            return refuse(error)
        name = request.transactionalId
        found = self._transactions.get(name)
        isRotating = found is not None and self._isRotating(found, request)
        if (found is None or isRotating) and spareId is None:
            if found is None and len(self._transactions) >= self.settings.transactionCountMax:
                return refuse(ErrorCode.POLICY_VIOLATION)
            self._effects.reply(self._newProducerId, partial(self._gotProducerId, request, reply))
            return None
        if found is None:
            assert spareId is not None
            stored = StoredTransaction(spareId, NO_PRODUCER_EPOCH, request.transactionTimeoutMs)
            found = _Transaction(name, self.partitionOf(name), stored)
            self._transactions[name] = found
        stored = found.stored
        if found.isPending:
            return refuse(ErrorCode.CONCURRENT_TRANSACTIONS)
        if not _isExpected(found, request):
            return refuse(ErrorCode.PRODUCER_FENCED)
        if stored.state is TransactionState.ONGOING:
            self._fence(found, lambda error: refuse(error or ErrorCode.CONCURRENT_TRANSACTIONS))
            return None
        hasProducer = request.producerId != NO_PRODUCER_ID
        new = stored._replace(
            timeoutMs=request.transactionTimeoutMs,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            lastUpdateMs=self.nowMs(),
            startMs=-1,
            nextProducerId=NO_PRODUCER_ID,
        )
        lastEpoch = NO_PRODUCER_EPOCH
        if isRotating:
            assert spareId is not None
            lastEpoch = stored.producerEpoch if hasProducer else NO_PRODUCER_EPOCH
            new = new._replace(
                producerId=spareId, producerEpoch=0, previousProducerId=stored.producerId
            )
        elif not hasProducer or found.isNew or request.producerEpoch == stored.producerEpoch:
            lastEpoch = stored.producerEpoch if hasProducer else NO_PRODUCER_EPOCH
            new = new._replace(producerEpoch=stored.producerEpoch + 1)
        elif request.producerEpoch == found.lastEpoch:
            lastEpoch = found.lastEpoch  # the answer was lost: the epoch is raised already
        else:
            return refuse(ErrorCode.PRODUCER_FENCED)

        def appended(error: ErrorCode) -> None:
            if error:
                return refuse(error)
            self._effects.reply(reply, ProducerIdAnswer(0, new.producerId, new.producerEpoch))

        self._store(found, new, lastEpoch, appended)
        return None

    def _initError(self, request: InitProducerId) -> ErrorCode:
        name = request.transactionalId
        if not name or len(name.encode()) > TRANSACTIONAL_ID_SIZE_MAX:
            return ErrorCode.INVALID_REQUEST
        if not 0 < request.transactionTimeoutMs <= self.settings.timeoutMaxMs:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return self._unavailable(name)

    @staticmethod
    def _isRotating(found: _Transaction, request: InitProducerId) -> bool:
        return (
            not found.isPending
            and found.stored.state in _IDLE
            and found.isEpochExhausted
            and request.producerEpoch
            in (NO_PRODUCER_EPOCH, found.stored.producerEpoch, found.lastEpoch)
        )

    def _gotProducerId(
        self,
        request: InitProducerId,
        reply: Callable[[ProducerIdAnswer], object],
        producerId: int | None,
    ) -> None:
        if producerId is None:
            answer = ProducerIdAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            self._effects.reply(reply, answer)
        else:
            self._init(request, reply, producerId)
        self._effects.deliver()

    # -- partitions

    def addPartitions(
        self,
        transactionalId: str,
        producerId: int,
        producerEpoch: int,
        partitions: Collection[TopicPartition],
        clientVersion: int,
        reply: Answered,
    ) -> None:
        """
        Add partitions, with which the transaction begins if it has not. Answered when that is
        appended, at once if they are in it.

        @param partitions: that exist.
        @param clientVersion: C{transaction.version} of the client.
        """
        error = self._unavailable(transactionalId)
        found = self._transactions.get(transactionalId)
        if not error:
            error = self._addError(found, producerId, producerEpoch)
        if error or found is None:
            self._effects.reply(reply, error)
            self._effects.deliver()
            return
        stored = found.stored
        isOngoing = stored.state is TransactionState.ONGOING
        if isOngoing and stored.partitions.issuperset(partitions):
            self._effects.reply(reply, ErrorCode.NONE)
            self._effects.deliver()
            return
        nowMs = self.nowMs()
        new = stored._replace(
            state=TransactionState.ONGOING,
            partitions=(stored.partitions if isOngoing else frozenset()).union(partitions),
            lastUpdateMs=nowMs,
            startMs=stored.startMs if isOngoing else nowMs,
            clientVersion=clientVersion,
        )
        self._store(found, new, found.lastEpoch, lambda error: self._effects.reply(reply, error))
        self._effects.deliver()

    @staticmethod
    def _addError(found: _Transaction | None, producerId: int, producerEpoch: int) -> ErrorCode:
        if found is None or found.stored.producerId != producerId:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.stored.producerEpoch != producerEpoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if found.isPending else ErrorCode.NONE

    def verify(
        self,
        transactionalId: str,
        producerId: int,
        producerEpoch: int,
        partitions: Iterable[TopicPartition],
    ) -> list[ErrorCode]:
        """
        Whether records may be appended to partitions, one answer for each: TRANSACTION_ABORTABLE if
        a partition is not in the ongoing transaction.
        """
        error = self._unavailable(transactionalId)
        found = self._transactions.get(transactionalId)
        if not error:
            if found is None or found.stored.producerId != producerId:
                error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            elif found.stored.producerEpoch != producerEpoch:
                error = ErrorCode.PRODUCER_FENCED
            elif found.stored.state in _PREPARED:
                error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error or found is None:
            return [error for _ in partitions]
        return [
            ErrorCode.NONE if each in found.stored.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for each in partitions
        ]

    # -- the end

    def endTransaction(
        self,
        request: EndTxn,
        clientVersion: int,
        reply: Callable[[ProducerIdAnswer], object],
    ) -> None:
        """
        EndTxn. Answered when the decision is appended, with the producer id and epoch of the next
        transaction.

        @param clientVersion: C{transaction.version} of the client.
        """
        self._endTransaction(request, clientVersion, reply, None)
        self._effects.deliver()

    def _endTransaction(
        self,
        request: EndTxn,
        clientVersion: int,
        reply: Callable[[ProducerIdAnswer], object],
        spareId: int | None,
    ) -> None:
        def refuse(error: ErrorCode) -> None:
            self._effects.reply(reply, ProducerIdAnswer(error))

        name = request.transactionalId
        error = self._unavailable(name)
        if error:
            return refuse(error)
        found = self._transactions.get(name)
        if found is None:
            return refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        isBumping = clientVersion >= EPOCH_BUMP_VERSION
        error, isDone = (_endWithBump if isBumping else _endWithout)(found, request)
        stored = found.stored
        if error:
            return refuse(error)
        if isDone:
            answer = ProducerIdAnswer(0, stored.producerId, stored.producerEpoch)
            return self._effects.reply(reply, answer)
        if isBumping and found.isEpochExhausted and spareId is None:

            def got(producerId: int | None) -> None:
                if producerId is None:
                    refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                else:
                    self._endTransaction(request, clientVersion, reply, producerId)
                self._effects.deliver()

            return self._effects.reply(self._newProducerId, got)
        isUsed = isBumping and found.isEpochExhausted
        nextId = spareId if isUsed and spareId is not None else NO_PRODUCER_ID

        def appended(error: ErrorCode) -> None:
            if error:
                return refuse(error)
            new = found.stored
            answer = ProducerIdAnswer(0, new.producerId, new.producerEpoch)
            if nextId != NO_PRODUCER_ID:
                answer = ProducerIdAnswer(0, nextId, 0)
            return self._effects.reply(reply, answer)

        return self._decide(found, request.committed, clientVersion, isBumping, nextId, appended)

    def _fence(self, found: _Transaction, done: Callable[[ErrorCode], None]) -> None:
        """Abort an ongoing transaction whose producer is not asked, with an epoch of its own."""
        version = found.stored.clientVersion
        self._decide(found, False, version, True, NO_PRODUCER_ID, done)

    def _decide(
        self,
        found: _Transaction,
        isCommit: bool,
        clientVersion: int,
        isBumping: bool,
        nextId: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Append the decision, then write the markers. C{done} is called between."""
        stored, nowMs = found.stored, self.nowMs()
        isOngoing = stored.state is TransactionState.ONGOING
        new = stored._replace(
            producerEpoch=stored.producerEpoch + isBumping,
            state=TransactionState.PREPARE_COMMIT if isCommit else TransactionState.PREPARE_ABORT,
            partitions=stored.partitions if isOngoing else frozenset(),
            lastUpdateMs=nowMs,
            startMs=stored.startMs if isOngoing else nowMs,
            nextProducerId=nextId,
            clientVersion=clientVersion,
        )
        lastEpoch = stored.producerEpoch if isBumping else found.lastEpoch

        def appended(error: ErrorCode) -> None:
            if not error:
                self._mark(found, new.partitions)
            done(error)

        self._store(found, new, lastEpoch, appended)

    def _mark(self, found: _Transaction, partitions: Collection[TopicPartition]) -> None:
        """Write markers, then complete the transaction."""
        found.isPending = True
        if not partitions:
            self._complete(found)
            return
        stored = found.stored
        markers = TransactionMarkers(
            stored.producerId,
            stored.producerEpoch,
            stored.state is TransactionState.PREPARE_COMMIT,
            self._epochs[found.partition],
            stored.clientVersion,
            partitions,
        )
        self._effects.reply(self._write, (found, markers))

    def _write(self, work: tuple[_Transaction, TransactionMarkers]) -> None:
        found, markers = work
        self._writeMarkers(markers, partial(self._written, found))

    def _written(self, found: _Transaction, left: Collection[TopicPartition]) -> None:
        if self._has(found):
            if left:
                again = partial(self._mark, found, left)
                self._retry(found, again)
            else:
                self._complete(found)
        self._effects.deliver()

    def _complete(self, found: _Transaction) -> None:
        stored = found.stored
        isCommit = stored.state is TransactionState.PREPARE_COMMIT
        new = stored._replace(
            state=TransactionState.COMPLETE_COMMIT if isCommit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            lastUpdateMs=self.nowMs(),
            nextProducerId=NO_PRODUCER_ID,
        )
        if stored.nextProducerId != NO_PRODUCER_ID:
            new = new._replace(
                producerId=stored.nextProducerId,
                producerEpoch=0,
                previousProducerId=stored.producerId,
            )

        def appended(error: ErrorCode) -> None:
            if not error:
                found.retryCount = 0
            elif self._has(found):
                found.isPending = True
                self._retry(found, partial(self._complete, found))

        self._store(found, new, found.lastEpoch, appended)

    def _retry(self, found: _Transaction, act: Callable[[], None]) -> None:
        key: Hashable = ("retry", found.transactionalId)
        waitMs = min(MARKER_RETRY_MIN_MS << min(found.retryCount, 16), MARKER_RETRY_MAX_MS)
        found.retryCount += 1
        self._deadlines.set(key, self.nowMs() + waitMs, act)

    # -- appends

    def _store(
        self,
        found: _Transaction,
        new: StoredTransaction,
        lastEpoch: int,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Append the next record of a transaction, and take it over when it is appended."""
        found.isPending = True

        def appended(error: ErrorCode) -> None:
            found.isPending = False
            if not self._has(found):
                error = ErrorCode.NOT_COORDINATOR
            elif not error:
                self._take(found, new)
                found.lastEpoch = lastEpoch
            elif found.isNew:
                del self._transactions[found.transactionalId]
            done(appendError(error))

        record = encodeTransactionKey(found.transactionalId), encodeTransaction(new)
        self._effects.append(found.partition, [record], appended)

    def _take(self, found: _Transaction, new: StoredTransaction) -> None:
        found.stored = new
        if new.state is TransactionState.ONGOING:
            self._ongoing[found.transactionalId] = None
        else:
            self._ongoing.pop(found.transactionalId, None)

    def _has(self, found: _Transaction) -> bool:
        """Whether this very transaction is there, not another one of its name."""
        return self._transactions.get(found.transactionalId) is found

    # -- administration

    def describeTransactions(self, transactionalIds: Iterable[str]) -> list[DescribedTransaction]:
        """DescribeTransactions, version 0."""
        return [self._described(each) for each in transactionalIds]

    def _described(self, name: str) -> DescribedTransaction:
        error = self._unavailable(name)
        found = self._transactions.get(name)
        if not error and found is None:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if error or found is None:
            return DescribedTransaction(name, error)
        stored = found.stored
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(stored.partitions):
            topics.setdefault(topic, []).append(index)
        return DescribedTransaction(
            name,
            0,
            stored.state.value,
            stored.timeoutMs,
            stored.startMs,
            stored.producerId,
            stored.producerEpoch,
            [PartitionData(*each) for each in topics.items()],
        )

    def listTransactions(
        self,
        producerIdFilters: Collection[int] = (),
        stateFilters: Iterable[str] = (),
        durationFilter: int = -1,
        hasName: Callable[[str], bool] = lambda name: True,
    ) -> ListTransactionsAnswer:
        """
        ListTransactions, versions 0 to 2.

        @param durationFilter: milliseconds that the transaction has been there at least; -1: any.
        @param hasName: whether a transactional id is wanted.
        """
        if self._loading or not self._isCurrent():
            # Kafka's own client asks again after this code alone.
            return ListTransactionsAnswer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        names = list(stateFilters)
        states = {_STATES_BY_NAME[each] for each in names if each in _STATES_BY_NAME}
        unknown = [each for each in names if each not in _STATES_BY_NAME]
        nowMs = self.nowMs()
        return ListTransactionsAnswer(
            unknownStateFilters=unknown,
            transactionStates=[
                ListedTransaction(name, each.stored.producerId, each.stored.state.value)
                for name, each in self._transactions.items()
                if (not names or each.stored.state in states)
                and (not producerIdFilters or each.stored.producerId in producerIdFilters)
                and (durationFilter < 0 or nowMs - each.stored.startMs >= durationFilter)
                and hasName(name)
            ],
        )

    # -- the log

    def beginLoading(self, partition: int) -> None:
        """A partition of C{__transaction_state} is going to be read."""
        self._loading.add(partition)

    def replay(self, partition: int, key: bytes, value: bytes | None) -> None:
        """
        A record was read.

        @raise FormatError: the record is broken.
        """
        name = decodeTransactionKey(key)
        if name is None:
            return
        if value is None:
            self._forget(name)
            return
        stored = decodeTransaction(value)
        found = self._transactions.get(name)
        if found is None:
            found = self._transactions[name] = _Transaction(name, partition, stored)
        self._take(found, stored)

    def loaded(self, partition: int, epoch: int) -> None:
        """
        A partition was read to its end: its transactions are served, and completed if they are
        decided.

        @param epoch: of the partition's leader.
        """
        self._loading.discard(partition)
        self._epochs[partition] = epoch
        for found in list(self._transactions.values()):
            if found.partition == partition and found.stored.state in _PREPARED:
                self._mark(found, found.stored.partitions)
        if _TIMEOUTS_KEY not in self._deadlines:
            self._expectTimeouts()
            self._expectExpiry()
        self._effects.deliver()

    def unload(self, partition: int) -> None:
        """A partition is not to be served any more, since its log has failed."""
        self._loading.discard(partition)
        self._epochs.pop(partition, None)
        for name, found in list(self._transactions.items()):
            if found.partition == partition:
                self._forget(name)
        self._effects.deliver()

    def _forget(self, name: str) -> None:
        self._transactions.pop(name, None)
        self._ongoing.pop(name, None)
        self._deadlines.cancel(("retry", name))

    def _unavailable(self, transactionalId: str) -> ErrorCode:
        if not transactionalId:
            return ErrorCode.INVALID_REQUEST
        if not self._isCurrent():
            return ErrorCode.NOT_COORDINATOR
        partition = self.partitionOf(transactionalId)
        if partition in self._epochs:
            return ErrorCode.NONE
        isLoading = partition in self._loading
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isLoading else ErrorCode.NOT_COORDINATOR

    # -- time

    def nextDeadlineMs(self) -> int | None:
        """When L{advance} is to be called, at the latest; L{None} if nothing is due ever."""
        return self._deadlines.nextMs()

    def advance(self) -> None:
        """Do what is due: abort transactions that take too long, forget unused ids, try again."""
        nowMs = self.nowMs()
        while (due := self._deadlines.takeDue(nowMs)) is not None:
            due()
        self._effects.deliver()

    def _expectTimeouts(self) -> None:
        dueMs = self.nowMs() + self.settings.timeoutCheckIntervalMs
        self._deadlines.set(_TIMEOUTS_KEY, dueMs, self._abortTimedOut)

    def _abortTimedOut(self) -> None:
        self._expectTimeouts()
        nowMs = self.nowMs()
        for name in list(self._ongoing):
            found = self._transactions[name]
            stored = found.stored
            isServed = found.partition in self._epochs
            if isServed and not found.isPending and stored.startMs + stored.timeoutMs < nowMs:
                self._fence(found, lambda error: None)

    def _expectExpiry(self) -> None:
        dueMs = self.nowMs() + self.settings.expiryCheckIntervalMs
        self._deadlines.set(_EXPIRY_KEY, dueMs, self._expire)

    def _expire(self) -> None:
        """Forget unused transactional ids, some at a time."""
        nowMs = self.nowMs()
        limitMs = nowMs - self.settings.idExpirationMs
        expired: dict[int, list[_Transaction]] = {}
        count = 0
        for found in self._transactions.values():
            stored = found.stored
            isServed = found.partition in self._epochs
            isIdle = isServed and not found.isPending and stored.state in _IDLE
            if isIdle and stored.lastUpdateMs <= limitMs:
                expired.setdefault(found.partition, []).append(found)
                count += 1
                if count == EXPIRED_COUNT_MAX:
                    break
        for partition, some in expired.items():
            self._remove(partition, some)
        if count == EXPIRED_COUNT_MAX:
            self._deadlines.set(_EXPIRY_KEY, nowMs + 1, self._expire)
        else:
            self._expectExpiry()

    def _remove(self, partition: int, some: list[_Transaction]) -> None:
        for each in some:
            each.isPending = True

        def appended(error: ErrorCode) -> None:
            for each in some:
                each.isPending = False
                if not error and self._has(each):
                    self._forget(each.transactionalId)

        records: list[Record] = [
            (encodeTransactionKey(each.transactionalId), None) for each in some
        ]
        self._effects.append(partition, records, appended)


def _isExpected(found: _Transaction, request: InitProducerId) -> bool:
    """
    Whether the producer that a request names, if any, is the one that is known: perhaps under the
    id before the last, if it has not heard of the new one.
    """
    stored = found.stored
    return (
        request.producerId in (NO_PRODUCER_ID, stored.producerId)
        or found.isNew
        or (
            request.producerId == stored.previousProducerId
            and request.producerEpoch >= EPOCH_MAX - 1
        )
    )


def _endWithout(found: _Transaction, request: EndTxn) -> tuple[ErrorCode, bool]:
    """
    Whether a client of C{transaction.version} below 2 may end a transaction now, and whether that
    is done already.
    """
    stored = found.stored
    error = ErrorCode.NONE
    if request.producerId != stored.producerId:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    elif request.producerEpoch != stored.producerEpoch:
        error = ErrorCode.PRODUCER_FENCED
    elif found.isPending:
        error = ErrorCode.CONCURRENT_TRANSACTIONS
    if error or stored.state is TransactionState.ONGOING:
        return error, False
    return _repeatedEnd(stored.state, request.committed)


def _endWithBump(found: _Transaction, request: EndTxn) -> tuple[ErrorCode, bool]:
    """The same for clients of C{transaction.version} 2."""
    stored = found.stored
    if found.isPending:
        return ErrorCode.CONCURRENT_TRANSACTIONS, False
    isNext = request.producerEpoch == stored.producerEpoch
    wasBumped = stored.clientVersion >= EPOCH_BUMP_VERSION
    isOverflow = (
        wasBumped
        and request.producerId == stored.previousProducerId
        and request.producerEpoch == EPOCH_MAX - 1
        and stored.producerEpoch == 0
    )
    isRepeated = wasBumped and (isOverflow or request.producerEpoch + 1 == stored.producerEpoch)
    if request.producerId != stored.producerId and not isOverflow:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING, False
    if not isNext and not (isRepeated and stored.state in _ENDED):
        return ErrorCode.PRODUCER_FENCED, False
    if stored.state is TransactionState.ONGOING:
        return ErrorCode.NONE, False
    if isRepeated:
        if stored.producerEpoch >= EPOCH_MAX:
            # Another has aborted it, with the last epoch: there is none left to go on with.
            return ErrorCode.PRODUCER_FENCED, False
        return _repeatedEnd(stored.state, request.committed)
    # Nothing was added to the transaction: there is nothing to commit.
    return (ErrorCode.INVALID_TXN_STATE if request.committed else ErrorCode.NONE), False


def _repeatedEnd(state: TransactionState, isCommit: bool) -> tuple[ErrorCode, bool]:
    """The answer to an end behind the end, or before the beginning."""
    wanted = TransactionState.COMPLETE_COMMIT if isCommit else TransactionState.COMPLETE_ABORT
    isDone = state is wanted
    return (ErrorCode.NONE if isDone else ErrorCode.INVALID_TXN_STATE), isDone
