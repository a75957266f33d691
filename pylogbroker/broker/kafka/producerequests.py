"""
Produce: appending batches, and acknowledging them. A module of its own, since order and
acknowledgement have rules that no other request has.

B{acks.} With 0 there is no response; an error closes the connection, as in Kafka. With 1 the
response leaves when the batches are in the page cache, so that C{kill -9} loses nothing of what was
acknowledged: all requests that a connection has at hand are appended first, then written at once.
With -1 (C{all}) it leaves when they are flushed, unless a setting says otherwise
(docs/decisions/0015); one C{fsync} serves all that wait.

B{Order.} The requests of a connection are appended in the order in which they came, though a worker
checks some of them; only the wait for acknowledgements overlaps. Otherwise an idempotent producer
would see its sequences out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.coordinators.transactionservice import TransactionService
from pylogbroker.broker.kafka.coordinators.verification import Admission
from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Respond
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.security.authorizer import AclAuthorizer
from pylogbroker.broker.kafka.topics import (
    INTERNAL_TOPICS,
    NotLeaderOrFollowerError,
    TopicManager,
    batchLog,
)
from pylogbroker.broker.logmanager import LogManager, Partition
from pylogbroker.broker.server import Broker
from pylogbroker.cluster.acls import AclOperation, AclResourceType
from pylogbroker.cluster.metadataimage import ReachableBroker
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.errors import (
    CorruptCompressionError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidRequestValueError,
    OutOfOrderSequenceError,
    PylogbrokerError,
    StorageError,
    UnknownCodecError,
)
from pylogbroker.interfaces import AppendResult
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
    encodeProduceResponse,
    frameProduceResponse,
    frameProduceRun,
)
from pylogbroker.protocol.kafka.requests import ProduceRun, RequestHeader
from pylogbroker.protocol.kafka.responses import frameResponse
from pylogbroker.records.compression import ZSTD
from pylogbroker.records.kafkaformat import LEGACY_OVERHEAD, KafkaFormat
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    CODEC_ATTRIBUTES,
    MAGIC,
    MAGIC_POSITION,
    SIZE_HEAD_SIZE,
    TRANSACTIONAL_ATTRIBUTE,
    readHeader,
)
from pylogbroker.storage.partitionlog import MarkKind
from pylogbroker.types import TopicPartition

ALL, NONE, _LEADER = -1, 0, 1
_ADMIN_CLIENT = "__admin_client"
_ATTRIBUTES = 22
"""The lower byte of a batch's attributes."""

_LOG_REFUSALS = (
    CorruptCompressionError,
    InvalidProducerEpochError,
    InvalidRecordError,
    OutOfOrderSequenceError,
    UnknownCodecError,
)

ZSTD_VERSION = 7
"""The first version in which clients may use zstd."""

ABORTABLE_VERSION = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""

ADDING_VERSION = 12
"""The first version whose clients leave it to the broker to add partitions to transactions."""

LEADER_VERSION = 10
"""The first version whose clients want to know who leads instead (KIP-951)."""

TIMEOUT_MS_MAX = 3_600_000

_new = tuple.__new__
"""Makes a named tuple at half the cost of calling its class."""

_UNAVAILABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
)


class RefusedBatchError(KafkaError):
    """
    A batch is not in an ongoing transaction of its producer, or does not begin like a batch.

    @ivar shown: the text that Kafka has in this case; L{None}: none.
    """

    def __init__(self, code: ErrorCode, text: str | None = None) -> None:
        super().__init__(code, text)
        self.shown = text


class Appended(NamedTuple):
    """
    What became of the batches for one partition.

    @ivar response: without acknowledgement: what to answer, if nothing goes wrong.
    @ivar partition: to which something was appended, or L{None}.
    @ivar leader: the broker that leads the partition instead, if the client is to be told.
    """

    topic: TopicProduceData
    response: PartitionProduceResponse
    partition: Partition | None = None
    result: AppendResult | None = None
    leader: ReachableBroker | None = None


class ProduceRequests:
    """The handler of Produce requests."""

    def __init__(
        self,
        broker: Broker,
        topics: TopicManager,
        logManager: LogManager,
        purgatory: Purgatory,
        transactions: TransactionService,
        nodes: Callable[[ConnectionState], dict[int, ReachableBroker]],
        authorizer: AclAuthorizer | None = None,
    ) -> None:
        """
        @param nodes: gives the brokers that clients of a connection's listener reach, by id.
        @param authorizer: L{None}: every client may write to every topic.
        """
        self._nodes = nodes
        self._authorizer = authorizer
        self._broker = broker
        self._transactions = transactions
        self._topics = topics
        self._logManager = logManager
        self._purgatory = purgatory
        self._lastWait = _Acknowledgement()

    def produce(
        self, header: RequestHeader, request: ProduceRequest, state: ConnectionState
    ) -> Any:
        """Handle a request; as L{pylogbroker.broker.kafka.protocol.Handler}."""
        done: list[Appended] = []
        if state.appending is not None:
            return self._produceLater(header, request, state, done)
        for topic in request.topicData:
            for part in _withoutRepeats(topic.partitionData):
                appended = self._tryAppend(header, request, topic, part, state)
                if appended is None:
                    return self._produceLater(header, request, state, done)
                done.append(appended)
        _forgetRecords(request)
        if request.acks == NONE:
            _checkUnacknowledged(done)
            return None
        return partial(self._acknowledge, header, request, done)

    def tryRun(
        self, header: RequestHeader, run: ProduceRun, state: ConnectionState
    ) -> Callable[[Respond], None] | None:
        """
        Handle the requests of a run; as L{pylogbroker.broker.kafka.protocol.TryRun}. What would be
        refused is told when each is handled by itself.
        """
        request, correlationIds, records = run
        isUsual = request.acks in (ALL, _LEADER) and request.transactionalId is None
        if state.appending is not None or not isUsual:
            return None
        (topic,) = request.topicData
        (part,) = topic.partitionData
        try:
            partition = self._find(header, request, topic, part, state)
            found = self._broker.tryAppendRun(partition, records)
        except PylogbrokerError:
            return None
        if found is None:
            return None
        result, baseOffsets = found
        appended = self._appended(topic, part.index, partition, result)
        records.clear()
        _forgetRecords(request)

        def finish(respond: Respond) -> None:
            unanswered = _UnansweredRun(header, appended, correlationIds, baseOffsets, respond)
            self._await(unanswered, request)

        return finish

    def _produceLater(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        state: ConnectionState,
        done: list[Appended],
    ) -> Deferred[Any]:
        """@param done: the first partitions, which are appended already."""
        parts = [
            (topic, part)
            for topic in request.topicData
            for part in _withoutRepeats(topic.partitionData)
        ]
        before, mine = state.appending, Deferred[None]()
        state.appending = mine
        reigns = [_reignOf(each) for each in done]

        async def produce() -> Any:
            try:
                if before is not None:
                    await before
                await self._appendEach(header, request, parts[len(done) :], state, done, reigns)
            finally:
                if state.appending is mine:
                    state.appending = None
                mine.callback(None)
            parts.clear()
            _forgetRecords(request)
            if request.acks == NONE:
                _checkUnacknowledged(done)
                return None
            for at, (each, reign) in enumerate(zip(done, reigns, strict=True)):
                if _reignOf(each) != reign:  # its offsets may be another leader's records by now
                    refused = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    done[at] = Appended(each.topic, _refused(each.response.index, refused))
            acknowledged: Deferred[list[bytes]] = Deferred()
            self._acknowledge(header, request, done, acknowledged.callback)
            return await acknowledged

        return Deferred.fromCoroutine(produce())

    # -- appending

    async def _appendEach(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        parts: list[tuple[TopicProduceData, PartitionProduceData]],
        state: ConnectionState,
        done: list[Appended],
        reigns: list[tuple[int, bool] | None],
    ) -> None:
        admission = self._transactions.newAdmission()
        try:
            await self._admit(header, request, parts, state, admission)
            for topic, part in parts:
                done.append(await self._append(header, request, topic, part, state, admission))
                reigns.append(_reignOf(done[-1]))
        finally:
            admission.close()

    def _find(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        topic: TopicProduceData,
        part: PartitionProduceData,
        state: ConnectionState,
    ) -> Partition:
        """@raise KafkaError: nothing may be appended there."""
        index, records = part
        if not -1 <= request.acks <= 1:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        if self._authorizer is not None:
            self._authorize(header, topic, state)
        isById = header.apiVersion >= 13
        if isById:
            found = self._topics.findById(topic.topicId, index)
        else:
            found = self._topics.find(topic.name, index)
        if found is None:
            if not isById:
                raise self._topics.unavailable(self._topics.image.topics.get(topic.name), index)
            known = self._topics.topicById(topic.topicId)
            if known is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            raise self._topics.unavailable(known, index)
        if found.log.topicPartition.topic in INTERNAL_TOPICS and header.clientId != _ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if found.lacksInSync and request.acks == ALL:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        _checkOneBatch(records)
        attributes = 0
        if records is not None and len(records) > _ATTRIBUTES and records[MAGIC_POSITION] == MAGIC:
            attributes = records[_ATTRIBUTES]
        if attributes & TRANSACTIONAL_ATTRIBUTE and request.transactionalId is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        if attributes & CODEC_ATTRIBUTES == ZSTD and header.apiVersion < ZSTD_VERSION:
            raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return found

    def _authorize(
        self, header: RequestHeader, topic: TopicProduceData, state: ConnectionState
    ) -> None:
        """@raise KafkaError: the client may not write to the topic."""
        assert self._authorizer is not None
        name = topic.name
        if header.apiVersion >= 13:
            found = self._topics.topicById(topic.topicId)
            if found is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            name = found.name
        if not self._authorizer.requires(state, AclOperation.WRITE, AclResourceType.TOPIC, name):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _tryAppend(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        topic: TopicProduceData,
        part: PartitionProduceData,
        state: ConnectionState,
    ) -> Appended | None:
        """L{None}: a worker must check the batch, or the partition admits nothing now."""
        partition = None
        try:
            partition = self._find(header, request, topic, part, state)
            name = request.transactionalId
            if (
                name is not None
                and _isTransactional(part.records)
                and not _isInTransaction(partition, part)
            ):
                isAdding = header.apiVersion >= ADDING_VERSION
                if isAdding or not self._transactions.isCoordinator(name):
                    return None
                admission = self._transactions.newAdmission()  # no other broker is asked
                self._verify(header, request, partition, part, admission)
            # The frame's own bytes: the stamp of the log makes the one copy that is needed.
            result = self._broker.tryAppend(partition, part.records or b"")
        except PylogbrokerError as error:
            return self._refusal(header, state, topic, part.index, partition, error)
        return None if result is None else self._appended(topic, part.index, partition, result)

    async def _append(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        topic: TopicProduceData,
        part: PartitionProduceData,
        state: ConnectionState,
        admission: Admission,
    ) -> Appended:
        partition = None
        try:
            partition = found = self._find(header, request, topic, part, state)
            check: Callable[[], object] | None = None
            if request.transactionalId is not None and _isTransactional(part.records):

                def check() -> None:
                    self._verify(header, request, found, part, admission)

            result = await self._broker.append(partition, bytes(part.records or b""), check)
        except PylogbrokerError as error:
            return self._refusal(header, state, topic, part.index, partition, error)
        return self._appended(topic, part.index, partition, result)

    def _refusal(
        self,
        header: RequestHeader,
        state: ConnectionState,
        topic: TopicProduceData,
        index: int,
        partition: Partition | None,
        error: PylogbrokerError,
    ) -> Appended:
        response = _refused(index, error, _startOf(partition))
        leader = None
        if isinstance(error, NotLeaderOrFollowerError) and header.apiVersion >= LEADER_VERSION:
            response = response._replace(currentLeader=error.leader)
            leader = self._nodes(state).get(error.leader[0])
        return Appended(topic, response, leader=leader)

    # -- transactions

    def _verify(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        partition: Partition,
        part: PartitionProduceData,
        admission: Admission,
    ) -> None:
        """
        At the moment of the append: a batch behind the end of its transaction would begin one that
        never ends. A producer whose transactions each have their own epoch begins a partition at
        sequence 0 (KIP-890). Where that producer is unknown, a later batch would otherwise take the
        place of an earlier one, which was refused and would be tried again in vain.

        @raise KafkaError: the partition is not in the producer's ongoing transaction.
        @raise OutOfOrderSequenceError: an earlier batch is missing.
        """
        if not _isInTransaction(partition, part):
            assert request.transactionalId is not None
            producer = _producerOf(part)
            error = self._transactions.verify(
                request.transactionalId, producer, partition.topicPartition, admission
            )
            if error:
                raise _refusedByTransaction(header, error)
            if header.apiVersion >= ADDING_VERSION:
                assert part.records is not None
                sequence = readHeader(bytes(part.records[:BATCH_OVERHEAD])).baseSequence
                batchLog(partition).producers.checkBegin(producer.producerId, sequence)

    async def _admit(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        parts: Iterable[tuple[TopicProduceData, PartitionProduceData]],
        state: ConnectionState,
        admission: Admission,
    ) -> None:
        """
        Ask about partitions that are not in their producer's transaction yet, as far as this broker
        knows; add those of a client that does not do so itself.
        """
        name = request.transactionalId
        if name is None:
            return
        wanted: dict[TransactionalProducer, list[TopicPartition]] = {}
        size = 0
        for topic, part in parts:
            if _isTransactional(part.records):
                try:
                    partition = self._find(header, request, topic, part, state)
                    isIn = _isInTransaction(partition, part)
                except PylogbrokerError:
                    continue  # is refused later
                if not isIn:
                    wanted.setdefault(_producerOf(part), []).append(partition.topicPartition)
                    size += len(part.records or b"")
        isAdding = header.apiVersion >= ADDING_VERSION
        for producer, places in wanted.items():
            await self._transactions.admit(admission, name, producer, places, isAdding, size)

    @staticmethod
    def _appended(
        topic: TopicProduceData, index: int, partition: Partition, result: AppendResult
    ) -> Appended:
        log = partition.log
        assert isinstance(log.format, KafkaFormat)
        isTimeTold = log.format.rules.isLogAppendTime or result.isDuplicate  # as by Apache
        timeMs = result.timeMs if isTimeTold else -1
        response: PartitionProduceResponse = _new(
            PartitionProduceResponse,
            (index, 0, result.baseOffset, timeMs, log.logStartOffset, (), None, None),
        )
        return _new(Appended, (topic, response, partition, result, None))

    # -- acknowledging

    def _acknowledge(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        done: list[Appended],
        respond: Respond,
    ) -> None:
        """
        Respond when all is acknowledged, or the time is over. One write serves all requests that
        came together: the first of these calls does it. So does one flush, and one wait for it.
        """
        self._await(_Unanswered(header, done, respond), request)

    def _await(self, unanswered: _Unanswered, request: ProduceRequest) -> None:
        done = unanswered.done
        timeoutMs = min(max(request.timeoutMs, 0), TIMEOUT_MS_MAX)
        isFlushed = self._logManager.flushesAcksAll
        if request.acks == ALL:
            partition = done[0].partition if len(done) == 1 else None
            if partition is not None and (isFlushed or partition.log.isReplicated):
                if not self._lastWait.join(partition, timeoutMs, unanswered):
                    self._lastWait = _Acknowledgement(unanswered)
                    self._lastWait.share(partition, timeoutMs, self._purgatory)
                return
        if request.acks == ALL and isFlushed:
            mark = MarkKind.FLUSHED
        else:
            self._logManager.writePending()
            mark, isFlushed = MarkKind.WRITTEN, False
        isByAll, wait = request.acks == ALL, None
        for at, (_, _, partition, result, _) in enumerate(done):
            if partition is not None and result is not None:
                offset, log = result.lastOffset + 1, partition.log
                isAwaited = isFlushed or (isByAll and log.isReplicated)
                if isAwaited or offset > log.writtenOffset:
                    wait = wait or _Acknowledgement(unanswered)
                    wait.begin(at, partition, mark, offset, isByAll)
        if wait is None:
            unanswered.answer()
        else:
            wait.start(self._purgatory, timeoutMs)


class _Unanswered:
    """
    A request whose batches are appended.

    @ivar done: what became of the batches for each partition.
    @ivar count: of requests.
    """

    __slots__ = ("done", "header", "respond")
    count = 1

    def __init__(self, header: RequestHeader, done: list[Appended], respond: Respond) -> None:
        self.header = header
        self.done = done
        self.respond = respond

    def refuse(self, at: int, error: PylogbrokerError) -> None:
        """A batch, by its place, is not acknowledged."""
        each = self.done[at]
        self.done[at] = Appended(each.topic, _refused(each.response.index, error))

    def lateCode(self, at: int) -> ErrorCode:
        """Why a batch, by its place, was not acknowledged in time."""
        partition = self.done[at].partition
        if partition is not None and partition.lacksInSync:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.REQUEST_TIMED_OUT

    def answer(self) -> None:
        """Respond."""
        self.respond(_response(self.header, self.done))


class _UnansweredRun(_Unanswered):
    """The requests of a run, whose batches were appended together."""

    __slots__ = ("baseOffsets", "correlationIds", "count")

    def __init__(
        self,
        header: RequestHeader,
        appended: Appended,
        correlationIds: Sequence[int],
        baseOffsets: Sequence[int],
        respond: Respond,
    ) -> None:
        super().__init__(header, [appended], respond)
        self.correlationIds = correlationIds
        self.baseOffsets = baseOffsets
        self.count = len(baseOffsets)

    def answer(self) -> None:
        version = self.header.apiVersion
        ((topic, response, partition, _, _),) = self.done
        if partition is not None:
            frames = frameProduceRun(
                version, self.correlationIds, topic, response, self.baseOffsets
            )
            self.respond([frames])
            return
        headers = (self.header._replace(correlationId=each) for each in self.correlationIds)
        self.respond([part for header in headers for part in _response(header, self.done)])


class _Acknowledgement:
    """
    The wait for the acknowledgement of a request; or of several, all for one partition alone, that
    came together: they wait for the flush of all that the partition has.
    """

    __slots__ = ("_cancels", "_isRefused", "_key", "_purgatory", "_requests", "_shared")

    def __init__(self, *requests: _Unanswered) -> None:
        self._requests = [*requests]
        # By the place of the partition; of those that are not acknowledged yet.
        self._cancels: dict[int, Callable[[], object] | None] = {}
        self._purgatory: Purgatory | None = None
        self._isRefused = False
        self._shared: tuple[Partition, int, int] | None = None

    def share(self, partition: Partition, timeoutMs: int, purgatory: Purgatory) -> None:
        """Wait for the only partition of the requests, and let others L{join}."""
        endOffset = partition.log.logEndOffset
        self._shared = partition, endOffset, timeoutMs
        partition.joinedCount += self._requests[0].count - 1
        partition.awaited(self._requests[0].count)
        self.begin(0, partition, MarkKind.FLUSHED, endOffset, True)
        self.start(purgatory, timeoutMs)

    def join(self, partition: Partition, timeoutMs: int, request: _Unanswered) -> bool:
        """
        Let a request wait for the same.

        @return: L{False}: it must wait for more, or not as long, or this wait is over.
        """
        if self._shared != (partition, partition.log.logEndOffset, timeoutMs):
            return False
        self._requests.append(request)
        partition.joinedCount += request.count
        partition.awaited(request.count)
        return True

    def begin(
        self, at: int, partition: Partition, mark: MarkKind, offset: int, isByAll: bool
    ) -> None:
        """
        Wait for the partition of one outcome; perhaps it is acknowledged at once.

        @param mark: what a partition must reach that no other broker has.
        """
        self._cancels[at] = None
        reached = partial(self._reached, at)
        if partition.log.isReplicated:
            cancel = partition.whenKept(offset, isByAll, reached)
        else:
            cancel = partition.whenReached(mark, offset, reached)
        if at in self._cancels:
            self._cancels[at] = cancel

    def start(self, purgatory: Purgatory, timeoutMs: int) -> None:
        """Respond when all are acknowledged, or the time is over."""
        if self._cancels:
            self._purgatory = purgatory
            self._key = purgatory.wait(timeoutMs, self._expire)
        else:
            self._respond()

    def _reached(self, at: int, error: StorageError | None) -> None:
        if error is not None:
            self._refuse(at, error)
        del self._cancels[at]
        if not self._cancels and self._purgatory is not None:
            self._purgatory.cancel(self._key)
            self._respond()

    def _refuse(self, at: int, error: PylogbrokerError) -> None:
        self._isRefused = True
        for each in self._requests:
            each.refuse(at, error)

    def _expire(self) -> None:
        for at, cancel in self._cancels.items():
            assert cancel is not None
            cancel()
            self._refuse(at, KafkaError(self._requests[0].lateCode(at)))
        self._respond()

    def _respond(self) -> None:
        requests, self._requests = self._requests, []
        if self._shared is not None:
            count = sum(each.count for each in requests)
            self._shared[0].joinedCount -= count - 1
            if not self._isRefused:
                self._shared[0].answered(count)
            self._shared = None
        # The last one first: a connection sends all when it has the first one's.
        for each in reversed(requests):
            each.answer()


def _reignOf(appended: Appended) -> tuple[int, bool] | None:
    """The leader epoch of a partition, and whether this broker only follows in it."""
    if appended.partition is None:
        return None
    found = batchLog(appended.partition)
    return found.leaderEpoch, found.isFollowing


def _checkUnacknowledged(done: list[Appended]) -> None:
    """@raise InvalidRequestValueError: something is wrong, and there is no response to say it."""
    for each in done:
        if each.response.errorCode:
            raise InvalidRequestValueError(
                f"produce to {each.topic.name}-{each.response.index} without"
                f" acknowledgement failed with code {each.response.errorCode}"
            )


def _response(header: RequestHeader, done: list[Appended]) -> list[bytes]:
    if len(done) == 1:
        topic, response, _, _, _ = done[0]
        frame = frameProduceResponse(header.apiVersion, header.correlationId, topic, response)
        if frame is not None:
            return [frame]
    topics: list[TopicProduceResponse] = []
    last: TopicProduceData | None = None
    leaders: dict[int, ReachableBroker] = {}
    for topic, response, _, _, leader in done:
        if topic is not last:
            topics.append(TopicProduceResponse(topic.name, topic.topicId, []))
            last = topic
        topics[-1].partitionResponses.append(response)
        if leader is not None:
            leaders[leader.nodeId] = leader
    made = messages.ProduceResponse.NodeEndpoint
    endpoints = [made(**each._asdict()) for each in leaders.values()]
    body = encodeProduceResponse(header.apiVersion, topics, nodeEndpoints=endpoints)
    return [frameResponse(header, body)]


def _withoutRepeats(parts: list[PartitionProduceData]) -> Iterable[PartitionProduceData]:
    """Of a partition that comes twice the last counts, as by Apache."""
    return parts if len(parts) == 1 else {each.index: each for each in parts}.values()


def _forgetRecords(request: ProduceRequest) -> None:
    """Free the records, which are appended, and their frame before the request is acknowledged."""
    for topic in request.topicData:
        topic.partitionData.clear()


def _checkOneBatch(records: memoryview | None) -> None:
    """
    As by Apache, fewer bytes than a header's beginning may stand behind a batch, and bytes that are
    no batch are looked at later.

    @raise KafkaError: there is not one whole batch, by size fields and magic.
    """
    count = 0 if records is None else len(records)
    if records is not None and count >= SIZE_HEAD_SIZE:
        size = int.from_bytes(records[8:SIZE_HEAD_SIZE], "big", signed=True)
        if size < LEGACY_OVERHEAD:
            raise RefusedBatchError(
                ErrorCode.CORRUPT_MESSAGE,
                f"Record size {size} is less than the minimum record overhead ({LEGACY_OVERHEAD})",
            )
        if count > MAGIC_POSITION:
            magic = records[MAGIC_POSITION]
            if magic > MAGIC:
                shown = magic if magic < 1 << 7 else magic - (1 << 8)  # as Java's bytes
                raise RefusedBatchError(
                    ErrorCode.CORRUPT_MESSAGE, f"Invalid magic found in record: {shown}"
                )
            end = SIZE_HEAD_SIZE + size
            behind = end + MAGIC_POSITION
            if magic == MAGIC and end <= count:
                if behind >= count or records[behind] != MAGIC:
                    return
    raise KafkaError(ErrorCode.INVALID_RECORD)


def _isTransactional(records: memoryview | None) -> bool:
    """Whether there is a transactional batch, of whatever else may be wrong with it."""
    return (
        records is not None
        and len(records) >= BATCH_OVERHEAD
        and records[MAGIC_POSITION] == MAGIC
        and bool(records[_ATTRIBUTES] & TRANSACTIONAL_ATTRIBUTE)
    )


def _producerOf(part: PartitionProduceData) -> TransactionalProducer:
    """The producer of a batch."""
    assert part.records is not None
    header = readHeader(bytes(part.records[:BATCH_OVERHEAD]))
    return TransactionalProducer(header.producerId, header.producerEpoch)


def _isInTransaction(partition: Partition, part: PartitionProduceData) -> bool:
    """Whether the transaction has a batch in the partition already."""
    return batchLog(partition).producers.hasOngoingTransaction(*_producerOf(part))


def _refusedByTransaction(header: RequestHeader, error: ErrorCode) -> RefusedBatchError:
    """The refusal, with codes that clients of a version know."""
    version = header.apiVersion
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        text = "Partition was not added to the transaction"
        return RefusedBatchError(ErrorCode.INVALID_TXN_STATE, text)
    isConcurrent = error is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDING_VERSION
    if isConcurrent or error in _UNAVAILABLE:
        return RefusedBatchError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. Underlying error:"
            f" {error.name}",
        )
    return RefusedBatchError(error)


def _startOf(partition: Partition | None) -> int:
    return -1 if partition is None else partition.log.logStartOffset


def _refused(
    index: int, error: PylogbrokerError, logStartOffset: int = -1
) -> PartitionProduceResponse:
    """
    As by Apache, a text is given where records are named, and the log start where the log refused.
    """
    records = getattr(error, "recordErrors", ())
    return PartitionProduceResponse(
        index,
        errorOf(error).code,
        logStartOffset=logStartOffset if records or isinstance(error, _LOG_REFUSALS) else -1,
        recordErrors=records,
        errorMessage=_messageOf(error) if records else getattr(error, "shown", None),
    )


def _messageOf(error: PylogbrokerError) -> str:
    return str(getattr(error, "reason", error))
