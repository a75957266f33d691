"""
The transactions of a producer: a table of phases, and the requests to the coordinator. A module of
its own, since most producers have none.

  ============= =============================================== ==================================
  phase         meaning                                         then
  ============= =============================================== ==================================
  NEW           the producer has no id, or needs an epoch       READY, FATAL
  READY         no transaction is open                          OPEN, NEW, FATAL
  OPEN          messages and positions are taken                COMMITTING, ABORTABLE, ABORTING,
                                                                FATAL
  COMMITTING    what was taken is sent, then EndTxn             READY, ABORTABLE, FATAL
  ABORTABLE     something failed: it can only be aborted        ABORTING, FATAL
  ABORTING      what was sent is answered, then EndTxn          READY, NEW, FATAL
  FATAL         nothing is possible any more                    (nothing)
  ============= =============================================== ==================================

What must be true:

  - EndTxn leaves only when no request with messages of the transaction is without an answer. Else
  a late one could come into the next transaction, or into none.
  - A transaction is committed only if every message and every position in it was stored.
  - Behind an abort the numbers of batches begin again in another epoch, since some may be missing.
  - A commit is called failed only when it is certain that the coordinator has not carried it out.

With C{transaction.version} 2 of the brokers (KIP-890) a partition joins the transaction with its
first batch, and EndTxn gives the next epoch. Before, AddPartitionsToTxn comes first, and an epoch
is asked for behind an abort.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.errors import (
    ClosedError,
    CommitFailedError,
    PylogbrokerError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownOutcomeError,
    UnsupportedVersionError,
    copyForReraise,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.producer.kafka.sender import KafkaSender
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

IMPLICIT_VERSION = 2
"""The C{transaction.version} in which partitions join with their first batch."""

FEATURE = "transaction.version"

CONCURRENT_PAUSE_MS = 20
CONCURRENT_PAUSE_COUNT = 25
"""While the transaction before is being ended; longer waits follow as for any error."""

# The last versions of clients without IMPLICIT_VERSION.
_ADD_PARTITIONS_VERSION = 3
_COMMIT_OFFSETS_VERSION = 4
_END_VERSION = 4
_EPOCH_VERSION = 3
"""The first version of InitProducerId that gives the next epoch to the producer that asks."""

_MEMBER_VERSION = 3
"""The first version of TxnOffsetCommit that names the member."""

_NO_PRODUCER = -1

T = TypeVar("T")

log = Logger()


class TransactionPhase(Enum):
    """The module states what each phase means."""

    NEW = "new"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTABLE = "abortable"
    ABORTING = "aborting"
    FATAL = "fatal"


_P = TransactionPhase

NEXT_PHASES: Mapping[TransactionPhase, frozenset[TransactionPhase]] = {
    _P.NEW: frozenset((_P.READY, _P.FATAL)),
    _P.READY: frozenset((_P.OPEN, _P.NEW, _P.FATAL)),
    _P.OPEN: frozenset((_P.COMMITTING, _P.ABORTABLE, _P.ABORTING, _P.FATAL)),
    _P.COMMITTING: frozenset((_P.READY, _P.ABORTABLE, _P.FATAL)),
    _P.ABORTABLE: frozenset((_P.ABORTING, _P.FATAL)),
    _P.ABORTING: frozenset((_P.READY, _P.NEW, _P.FATAL)),
    _P.FATAL: frozenset(),
}


class ProducerTransactionState:
    """
    What is decided of a producer's transactions, without any request.

    @ivar error: why the transaction can only be aborted, or why nothing is possible any more.
    @ivar identity: the producer's id and epoch.
    @ivar isImplicit: whether partitions join the transaction with their first batch.
    @ivar hasBegun: whether the coordinator may know of the transaction.
    @ivar waiting: partitions that must be added before batches for them leave.
    @ivar startMs: when the transaction began, on the clock.
    """

    def __init__(self) -> None:
        self.phase = TransactionPhase.NEW
        self.error: PylogbrokerError | None = None
        self.identity = (_NO_PRODUCER, -1)
        self.isImplicit = False
        self.hasBegun = False
        self.waiting: dict[TopicPartition, None] = {}
        self.startMs = 0.0
        self._added: set[TopicPartition] = set()

    def move(self, phase: TransactionPhase) -> None:
        """
        Go to another phase.

        @raise TransactionStateError: the table of the module does not have this step.
        """
        if phase not in NEXT_PHASES[self.phase]:
            raise TransactionStateError(
                f"the transaction is {self.phase.value}: it cannot be {phase.value} next"
            )
        self.phase = phase

    def identified(self, producerId: int, epoch: int) -> None:
        """The coordinator has given an id and an epoch."""
        self.move(TransactionPhase.READY)
        self.identity = producerId, epoch

    def begin(self, isImplicit: bool, nowMs: float) -> None:
        """Open a transaction."""
        self.move(TransactionPhase.OPEN)
        self.error = None
        self.isImplicit = isImplicit
        self.hasBegun = False
        self.startMs = nowMs
        self.waiting.clear()
        self._added.clear()

    def admit(self, place: TopicPartition) -> bool:
        """Whether a batch for a partition may leave now. One that may not must be added."""
        if self.phase not in (TransactionPhase.OPEN, TransactionPhase.COMMITTING):
            return False
        if self.isImplicit:
            self.hasBegun = True
            return True
        if place in self._added:
            return True
        self.waiting[place] = None
        return False

    def added(self, places: Iterable[TopicPartition]) -> None:
        """The coordinator has added partitions."""
        self._added.update(places)
        for place in places:
            self.waiting.pop(place, None)

    def fail(self, error: PylogbrokerError) -> bool:
        """Something in the transaction failed. Whether it is this that makes it abortable."""
        if self.phase not in (TransactionPhase.OPEN, TransactionPhase.COMMITTING):
            return False
        self.move(TransactionPhase.ABORTABLE)
        self.error = error
        return True

    def failFatally(self, error: PylogbrokerError) -> None:
        """Nothing is possible any more."""
        if self.phase is not TransactionPhase.FATAL:
            self.move(TransactionPhase.FATAL)
            self.error = error

    def ended(self, isCommit: bool, producerId: int, epoch: int) -> None:
        """
        The transaction has ended.

        @param producerId: -1: the answer does not say; likewise the epoch.
        """
        if producerId != _NO_PRODUCER:
            self.identity = producerId, epoch
        elif not isCommit:
            self.move(TransactionPhase.NEW)
            return
        self.move(TransactionPhase.READY)


def isFatal(error: PylogbrokerError) -> bool:
    """Whether a producer cannot go on behind an error of its coordinator."""
    if isinstance(error, ResponseError):
        isFenced = error.code == ErrorCode.INVALID_PRODUCER_EPOCH
        return isFenced or ErrorPolicy.FATAL in policyOf(error.code)
    return isinstance(error, UnsupportedVersionError)


_NOT_DONE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def isCertain(code: int) -> bool:
    """
    Whether a coordinator that answers EndTxn with an error has not carried it out. It gives the
    retriable ones also when the decision was appended and not replicated in time.
    """
    policy = policyOf(code)
    return code in _NOT_DONE or not (ErrorPolicy.RETRY | ErrorPolicy.UNCERTAIN) & policy


class TransactionManager:
    """
    Opens and ends the transactions of a producer; the module states the rules.

    @ivar state: a L{ProducerTransactionState}.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaProducerSettings,
        cluster: ClusterClient,
        sender: KafkaSender,
        onChanged: Callable[[], None],
    ) -> None:
        """
        @param onChanged: called when messages are refused from now on, or taken.
        """
        self.state = ProducerTransactionState()
        self._clock = clock
        self._settings = settings
        self._id: str = settings.transactionalId or ""
        self._cluster = cluster
        self._sender = sender
        self._onChanged = onChanged
        self._isAdding = False
        self._askedCount = 0  # requests of the open transaction that have no answer
        self._asked: Waiters[None] = Waiters()
        self._isEnding = False
        self._ends: Waiters[None] = Waiters()
        self._isBeginning = False
        self._isClosed = False

    @property
    def refusal(self) -> PylogbrokerError | None:
        """Why a message is not taken now; L{None}: it is."""
        state = self.state
        if state.phase is TransactionPhase.OPEN:
            return None
        if state.phase in (TransactionPhase.ABORTABLE, TransactionPhase.FATAL):
            return state.error
        return TransactionStateError(
            f"no transaction is open ({state.phase.value}): a producer with transactional.id "
            "sends inside of `async with producer.transaction()`"
        )

    @property
    def isGivenUp(self) -> bool:
        """Whether messages that wait for room, or for their topic, are not sent any more."""
        return self.state.phase in (
            TransactionPhase.ABORTABLE,
            TransactionPhase.ABORTING,
            TransactionPhase.FATAL,
        )

    def _nowMs(self) -> float:
        return self._clock.seconds() * 1000

    # -- what the sender asks and tells

    def admits(self, topic: str, partition: int) -> bool:
        """
        Whether a batch for a partition may leave now. One that may not is added to the transaction,
        and the sender is woken.
        """
        isAdmitted = self.state.admit(TopicPartition(topic, partition))
        if self.state.waiting and not self._isAdding:
            self._isAdding = True
            self._askedCount += 1
            adding = Deferred.fromCoroutine(self._add(list(self.state.waiting)))
            adding.addErrback(self._notAdded).addCallback(self._hasAsked)
        return isAdmitted

    def _notAdded(self, reason: Failure) -> None:
        error = reason.value
        if not isinstance(error, PylogbrokerError):
            log.failure("Adding partitions to a transaction failed unexpectedly", reason)
            error = TransactionAbortedError(f"adding partitions failed unexpectedly: {error!r}")
        self.failed(error)

    def _hasAsked(self, _nothing: None) -> None:
        self._isAdding = False
        self._askedCount -= 1
        self._asked.fire(None)
        self._sender.wake()

    async def _add(self, places: Collection[TopicPartition]) -> None:
        self.state.hasBegun = True
        cls = messages.AddPartitionsToTxnRequest
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        producerId, epoch = self.state.identity
        body = cls(
            v3AndBelowTransactionalId=self._id,
            v3AndBelowProducerId=producerId,
            v3AndBelowProducerEpoch=epoch,
            v3AndBelowTopics=[
                cls.AddPartitionsToTxnTopic(name=name, partitions=numbers)
                for name, numbers in topics.items()
            ],
        )

        async def ask(connection: NegotiatedConnection) -> None:
            key = ApiKey.ADD_PARTITIONS_TO_TXN
            found = await connection.request(key, body, versionMax=_ADD_PARTITIONS_VERSION)
            codes = [
                (part.partitionErrorCode, f"{topic.name}-{part.partitionIndex}")
                for topic in found.resultsByTopicV3AndBelow
                for part in topic.resultsByPartition
            ]
            # Behind one that is refused, the others were not attempted.
            for code, name in sorted(
                codes, key=lambda each: each[0] == ErrorCode.OPERATION_NOT_ATTEMPTED
            ):
                checkCode(code, f"adding {name} to transaction {self._id}")

        await self._ask(
            CoordinatorKind.TRANSACTION, self._id, ask, "adding partitions to a transaction"
        )
        self.state.added(places)

    def failed(self, error: PylogbrokerError) -> None:
        """A message or a position of the transaction was not stored, or may not be."""
        if isFatal(error) and not self._isSequence(error):
            self._failFatally(error)
        elif self.state.fail(error):
            self._onChanged()
            self._sender.abandon(
                TransactionAbortedError(f"transaction {self._id} must be aborted: {error}")
            )

    @staticmethod
    def _isSequence(error: PylogbrokerError) -> bool:
        """Partitions, too, refuse an old epoch. What that means, the coordinator will say."""
        return isinstance(error, ResponseError) and (
            ErrorPolicy.OUT_OF_SEQUENCE in policyOf(error.code)
        )

    def _failFatally(self, error: PylogbrokerError) -> None:
        self.state.failFatally(error)
        self._onChanged()
        if isinstance(error, UnknownOutcomeError):
            # Of the transaction. Its messages are stored; a later one is certainly not.
            error = TransactionStateError(str(error))
        self._sender.fail(error)

    # -- asking

    async def _ask(
        self,
        kind: CoordinatorKind,
        key: str,
        action: Callable[[NegotiatedConnection], Awaitable[T]],
        what: str,
    ) -> T:
        coordinators = self._cluster.coordinators

        async def once() -> T:
            for _pause in range(CONCURRENT_PAUSE_COUNT):
                try:
                    return await coordinators.ask(kind, key, action)
                except ResponseError as error:
                    if error.code != ErrorCode.CONCURRENT_TRANSACTIONS:
                        raise
                await deferLater(self._clock, CONCURRENT_PAUSE_MS / 1000)
            return await coordinators.ask(kind, key, action)

        return await self._cluster.attempt(once, self._settings.deliveryTimeoutMs, what)

    # -- the beginning

    async def begin(self) -> None:
        """
        Open a transaction. The first time, and behind an abort, the producer asks for its epoch.

        @raise TransactionStateError: a transaction is open.
        @raise PylogbrokerError: no epoch was given; the next call asks again, unless it is fatal.
        """
        state = self.state
        if state.phase is TransactionPhase.FATAL:
            assert state.error is not None
            raise copyForReraise(state.error)
        if self._isClosed or self._sender.fatalError is not None:
            raise copyForReraise(self._sender.fatalError or ClosedError("the producer was closed"))
        if state.phase not in (TransactionPhase.NEW, TransactionPhase.READY) or self._isBeginning:
            raise TransactionStateError("a producer has one transaction at a time")
        self._isBeginning = True
        try:
            if state.phase is TransactionPhase.NEW:
                await self._identify()
            isImplicit = await self._ask(
                CoordinatorKind.TRANSACTION, self._id, self._isImplicit, "finding the coordinator"
            )
        except PylogbrokerError as error:
            if isFatal(error):
                self._failFatally(error)
            raise
        finally:
            self._isBeginning = False
        if self._isClosed:
            raise ClosedError("the producer was closed")
        state.begin(isImplicit, self._nowMs())
        self._sender.resume(state.identity, isImplicit)
        self._onChanged()

    @staticmethod
    async def _isImplicit(connection: NegotiatedConnection) -> bool:
        return connection.features.get(FEATURE, 0) >= IMPLICIT_VERSION

    async def _identify(self) -> None:
        producerId, epoch = self.state.identity
        body = messages.InitProducerIdRequest(
            transactionalId=self._id,
            transactionTimeoutMs=self._settings.transactionTimeoutMs,
            producerId=producerId,
            producerEpoch=epoch,
        )

        async def ask(connection: NegotiatedConnection) -> tuple[int, int]:
            key = ApiKey.INIT_PRODUCER_ID
            if producerId != _NO_PRODUCER and not connection.supports(key, _EPOCH_VERSION):
                raise UnsupportedVersionError(
                    f"{connection.name} gives no new epoch behind an aborted transaction "
                    f"(InitProducerId {_EPOCH_VERSION}): replace the producer"
                )
            found = await connection.request(key, body)
            checkCode(found.errorCode, f"transactional id {self._id}")
            return found.producerId, found.producerEpoch

        what = f"asking for the epoch of transactional id {self._id}"
        self.state.identified(*await self._ask(CoordinatorKind.TRANSACTION, self._id, ask, what))

    # -- positions

    async def sendOffsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroupMetadata,
    ) -> None:
        """As L{Transaction.sendOffsets}."""
        refusal = self.refusal
        if refusal is not None:
            raise copyForReraise(refusal)
        if not offsets:
            return
        self.state.hasBegun = True
        self._askedCount += 1
        try:
            if group.generationId < 0 and (group.memberId or group.groupInstanceId):
                raise CommitFailedError(
                    f"no positions were sent, since {group.memberId or group.groupInstanceId} is no"
                    f" member of group {group.groupId} now: others may have its partitions"
                )
            if not self.state.isImplicit:
                await self._addOffsets(group.groupId)
            await self._commitOffsets(offsets, group)
        except PylogbrokerError as error:
            self.failed(error)
            raise
        except CancelledError:
            self.failed(TransactionAbortedError("sending positions was cancelled"))
            raise
        finally:
            self._askedCount -= 1
            self._asked.fire(None)

    async def _addOffsets(self, groupId: str) -> None:
        producerId, epoch = self.state.identity
        body = messages.AddOffsetsToTxnRequest(
            transactionalId=self._id, producerId=producerId, producerEpoch=epoch, groupId=groupId
        )

        async def ask(connection: NegotiatedConnection) -> None:
            found = await connection.request(ApiKey.ADD_OFFSETS_TO_TXN, body)
            checkCode(found.errorCode, f"adding group {groupId} to transaction {self._id}")

        what = "adding positions to a transaction"
        await self._ask(CoordinatorKind.TRANSACTION, self._id, ask, what)

    async def _commitOffsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: ConsumerGroupMetadata,
    ) -> None:
        cls = messages.TxnOffsetCommitRequest
        topics: dict[str, list[Any]] = {}
        for (topic, partition), given in offsets.items():
            place = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            topics.setdefault(topic, []).append(
                cls.TxnOffsetCommitRequestPartition(
                    partitionIndex=partition,
                    committedOffset=place.offset,
                    committedLeaderEpoch=place.leaderEpoch,
                    committedMetadata=place.metadata,
                )
            )
        producerId, epoch = self.state.identity
        body = cls(
            transactionalId=self._id,
            producerId=producerId,
            producerEpoch=epoch,
            topics=[
                cls.TxnOffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
            **group._asdict(),
        )
        key = ApiKey.TXN_OFFSET_COMMIT
        versionMax = key.lastVersion if self.state.isImplicit else _COMMIT_OFFSETS_VERSION

        async def ask(connection: NegotiatedConnection) -> None:
            if group.memberId and not connection.supports(key, _MEMBER_VERSION):
                raise UnsupportedVersionError(
                    f"{connection.name} takes no member in a transaction (TxnOffsetCommit "
                    f"{_MEMBER_VERSION})"
                )
            found = await connection.request(key, body, versionMax=versionMax)
            for topic in found.topics:
                for part in topic.partitions:
                    name = f"position of group {group.groupId} in {topic.name}"
                    checkCode(part.errorCode, f"{name}-{part.partitionIndex}")

        await self._ask(CoordinatorKind.GROUP, group.groupId, ask, "sending positions")

    # -- the end

    async def commit(self) -> None:
        """
        Commit the transaction, when all of it is stored.

        @raise TransactionAbortedError: something failed; it was aborted.
        @raise UnknownOutcomeError: it may be committed or not; the producer must be replaced.
        @raise PylogbrokerError: it was not committed, and the producer must be replaced.
        """
        self._isEnding = True
        try:
            await self._commit()
        finally:
            self._isEnding = False
            self._ends.fire(None)

    async def _commit(self) -> None:
        state = self.state
        if state.phase is TransactionPhase.OPEN:
            state.move(TransactionPhase.COMMITTING)
            self._onChanged()
            try:
                await self._drain()
            except CancelledError:
                self.failed(TransactionAbortedError("the commit was cancelled"))
        if state.phase is TransactionPhase.FATAL:
            assert state.error is not None
            raise copyForReraise(state.error)
        if state.phase is TransactionPhase.ABORTABLE:
            reason = state.error
            await self._abort()
            raise TransactionAbortedError(
                f"transaction {self._id} was aborted: {reason}"
            ) from reason
        if state.phase is not TransactionPhase.COMMITTING:
            raise TransactionAbortedError(
                f"transaction {self._id} was aborted: the producer was closed"
            )
        await self._end(True)

    async def abort(self) -> None:
        """
        Abort the transaction.

        @raise PylogbrokerError: the coordinator has not said that it did; it will, at the latest
            when C{transaction.timeout.ms} is over. The producer must be replaced.
        """
        if self._isClosed and self.state.phase is not TransactionPhase.FATAL:
            return  # C{close} has aborted it, or does
        self._isEnding = True
        try:
            await self._abort()
        finally:
            self._isEnding = False
            self._ends.fire(None)

    async def _abort(self) -> None:
        if self.state.phase is TransactionPhase.FATAL:
            assert self.state.error is not None
            raise copyForReraise(self.state.error)
        self.state.move(TransactionPhase.ABORTING)
        self._onChanged()
        self._sender.abandon(TransactionAbortedError(f"transaction {self._id} was aborted"))
        try:
            await self._drain()
        except CancelledError:
            self._failFatally(ClosedError(f"aborting transaction {self._id} was cancelled"))
        await self._end(False)

    async def _drain(self) -> None:
        await self._sender.drain()
        while self._askedCount:
            await self._asked.wait()

    async def _end(self, isCommit: bool) -> None:
        state = self.state
        if state.phase is TransactionPhase.FATAL:
            assert state.error is not None
            raise copyForReraise(state.error)
        if not state.hasBegun:
            state.ended(True, *state.identity)
            return
        isUncertain = False
        producerId, epoch = state.identity
        body = messages.EndTxnRequest(
            transactionalId=self._id, producerId=producerId, producerEpoch=epoch, committed=isCommit
        )
        key = ApiKey.END_TXN
        versionMax = key.lastVersion if state.isImplicit else _END_VERSION

        async def ask(connection: NegotiatedConnection) -> tuple[int, int]:
            nonlocal isUncertain
            wasUncertain, isUncertain = isUncertain, True
            found = await connection.request(key, body, versionMax=versionMax)
            if found.errorCode and isCertain(found.errorCode):
                isUncertain = wasUncertain
            checkCode(found.errorCode, f"the end of transaction {self._id}{self._ageText()}")
            return found.producerId, found.producerEpoch

        word = "committed" if isCommit else "aborted"
        try:
            identity = await self._ask(
                CoordinatorKind.TRANSACTION, self._id, ask, f"ending transaction {self._id}"
            )
        except (PylogbrokerError, CancelledError) as error:
            if isCommit and isUncertain:
                text = f"whether transaction {self._id} was {word} is unknown: {error!s}"
                failure: PylogbrokerError = UnknownOutcomeError(f"{text}; replace the producer")
            elif isinstance(error, PylogbrokerError):
                failure = error
            else:
                failure = ClosedError(f"transaction {self._id} was not {word}: cancelled")
            self._failFatally(failure)
            raise copyForReraise(failure) from error
        state.ended(isCommit, *identity)
        self._onChanged()

    def _ageText(self) -> str:
        """Of a transaction that the coordinator has aborted by itself, or soon will."""
        ageMs = self._nowMs() - self.state.startMs
        limitMs = self._settings.transactionTimeoutMs
        if ageMs < limitMs:
            return ""
        return f", which took {ageMs:.0f} ms: longer than transaction.timeout.ms={limitMs}"

    async def close(self) -> None:
        """Open no transaction any more, and abort the one that is open."""
        self._isClosed = True
        while self._isEnding:
            await self._ends.wait()
        if self.state.phase in (TransactionPhase.OPEN, TransactionPhase.ABORTABLE):
            try:
                await self._abort()
            except PylogbrokerError as error:
                log.warn("The open transaction was not aborted: {error}", error=error)


class Transaction:
    """
    A transaction, for C{async with}: it is committed at the end of the block, and aborted when the
    block raises.
    """

    def __init__(self, manager: TransactionManager) -> None:
        self._manager = manager

    async def __aenter__(self) -> Transaction:
        await self._manager.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self._manager.commit()
            return
        if isinstance(error, GeneratorExit):
            return  # the coroutine is given up, and cannot wait: the coordinator's time-out aborts
        try:
            await self._manager.abort()
        except PylogbrokerError as reason:  # the block's own error is the one to raise
            log.warn("A transaction was not aborted: {reason}", reason=reason)

    def sendOffsets(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        groupMetadata: ConsumerGroupMetadata,
    ) -> Deferred[None]:
        """
        Commit positions of a consumer group in the transaction: both count, or neither.

        @param offsets: the next message of each partition, behind those that were handled.
        @param groupMetadata: of the consumer.
        @return: fires when they are stored. Fails with
            L{ResponseError<pylogbroker.protocol.kafka.errorcodes.ResponseError>}, such as
            ILLEGAL_GENERATION for a member that has lost its partitions; with
            L{pylogbroker.errors.CommitFailedError} for one that knows that it has; with
            L{pylogbroker.errors.TimedOutError} after C{delivery.timeout.ms}. Then the transaction
            can only be aborted.
        """
        return Deferred.fromCoroutine(self._manager.sendOffsets(offsets, groupMetadata))
