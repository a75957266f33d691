"""
Produce: appending batches, and acknowledging them.

B{acks.} With 0 there is no response; an error closes the connection, as in Kafka. With 1 the
response leaves when the batches are in the page cache, so that C{kill -9} loses nothing of what was
acknowledged. With -1 (C{all}) it leaves when the batches are below the high watermark, which the
topic's log moves when they are flushed (docs/decisions/0015); one C{fsync} serves all that wait.

B{Order.} The requests of a connection are appended in the order in which they came, though a worker
checks some of them; only the wait for acknowledgements overlaps. Otherwise an idempotent producer
would see its sequences out of order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import INTERNAL_TOPICS, TopicManager
from pylogbroker.broker.logmanager import LogManager, Partition
from pylogbroker.broker.server import Broker
from pylogbroker.errors import InvalidRequestValueError, PylogbrokerError, StorageError
from pylogbroker.interfaces import AppendResult
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
    TopicProduceResponse,
    encodeProduceResponse,
)
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka.responses import frameResponse
from pylogbroker.storage.partitionlog import MarkKind

ALL, NONE = -1, 0
_ADMIN_CLIENT = "__admin_client"
TIMEOUT_MS_MAX = 3_600_000


class Appended(NamedTuple):
    """
    What became of the batches for one partition.

    @ivar response: without acknowledgement: what to answer, if nothing goes wrong.
    @ivar partition: to which something was appended, or L{None}.
    """

    topic: TopicProduceData
    response: PartitionProduceResponse
    partition: Partition | None = None
    result: AppendResult | None = None


class ProduceRequests:
    """The handler of Produce requests."""

    def __init__(
        self, broker: Broker, topics: TopicManager, logManager: LogManager, purgatory: Purgatory
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._logManager = logManager
        self._purgatory = purgatory

    def produce(
        self, header: RequestHeader, request: ProduceRequest, state: ConnectionState
    ) -> Any:
        """Handle a request; as L{pylogbroker.broker.kafka.protocol.Handler}."""
        if state.appending is None:
            done: list[Appended] = []
            for topic in request.topicData:
                for part in topic.partitionData:
                    appended = self._tryAppend(header, request, topic, part)
                    if appended is None:
                        return self._produceLater(header, request, state, done)
                    done.append(appended)
            return self._acknowledge(header, request, done)
        return self._produceLater(header, request, state, [])

    def _produceLater(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        state: ConnectionState,
        done: list[Appended],
    ) -> Deferred[Any]:
        before, mine = state.appending, Deferred[None]()
        state.appending = mine

        async def produce() -> Any:
            try:
                if before is not None:
                    await before
                for topic in request.topicData:
                    for part in topic.partitionData:
                        if not any(
                            each.topic is topic and each.response.index == part.index
                            for each in done
                        ):
                            done.append(await self._append(header, request, topic, part))
            finally:
                if state.appending is mine:
                    state.appending = None
                mine.callback(None)
            answer = self._acknowledge(header, request, done)
            return await answer if isinstance(answer, Deferred) else answer

        return Deferred.fromCoroutine(produce())

    # -- appending

    def _find(
        self, header: RequestHeader, request: ProduceRequest, topic: TopicProduceData, index: int
    ) -> Partition:
        """@raise KafkaError: nothing may be appended there."""
        if not -1 <= request.acks <= 1:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
        if header.apiVersion >= 13:
            found = self._topics.findById(topic.topicId, index)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            if found is None and self._topics.topicById(topic.topicId) is not None:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            found = self._topics.find(topic.name, index)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is None:
            raise KafkaError(unknown)
        if found.topicPartition.topic in INTERNAL_TOPICS and header.clientId != _ADMIN_CLIENT:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        return found

    def _tryAppend(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        topic: TopicProduceData,
        part: PartitionProduceData,
    ) -> Appended | None:
        """L{None}: a worker must check the batch, or the partition admits nothing now."""
        try:
            partition = self._find(header, request, topic, part.index)
            result = self._broker.tryAppend(partition, part.records or b"")
        except PylogbrokerError as error:
            return Appended(topic, _refused(part.index, error))
        return None if result is None else self._appended(topic, part.index, partition, result)

    async def _append(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        topic: TopicProduceData,
        part: PartitionProduceData,
    ) -> Appended:
        try:
            partition = self._find(header, request, topic, part.index)
            result = await self._broker.append(partition, part.records or b"")
        except PylogbrokerError as error:
            return Appended(topic, _refused(part.index, error))
        return self._appended(topic, part.index, partition, result)

    @staticmethod
    def _appended(
        topic: TopicProduceData, index: int, partition: Partition, result: AppendResult
    ) -> Appended:
        log = partition.log
        timeMs = result.timeMs if log.format.isLogAppendTime else -1
        response = PartitionProduceResponse(index, 0, result.baseOffset, timeMs, log.logStartOffset)
        return Appended(topic, response, partition, result)

    # -- acknowledging

    def _acknowledge(
        self, header: RequestHeader, request: ProduceRequest, done: list[Appended]
    ) -> Any:
        acks = request.acks
        if acks == NONE:
            for each in done:
                if each.response.errorCode:
                    raise InvalidRequestValueError(
                        f"produce to {each.topic.name}-{each.response.index} without"
                        f" acknowledgement failed: {ErrorCode(each.response.errorCode).name}"
                    )
            return None
        if acks == ALL:
            waiting = [each for each in done if each.partition is not None]
            if any(not _isReached(each) for each in waiting):
                return Deferred.fromCoroutine(self._acknowledgeAll(header, request, done))
            return self._response(header, done)
        self._logManager.writePending()
        for each in done:
            if each.partition is not None and not _isWritten(each):
                return Deferred.fromCoroutine(self._acknowledgeWritten(header, done))
        return self._response(header, done)

    async def _acknowledgeWritten(self, header: RequestHeader, done: list[Appended]) -> list[bytes]:
        """A full disk takes the bytes later, or the partition fails."""
        for at, each in enumerate(done):
            partition = each.partition
            while partition is not None and not _isWritten(each):
                if partition.log.isOffline:
                    error = partition.log.unavailableError("keep what was produced to")
                    done[at] = Appended(each.topic, _refused(each.response.index, error))
                    break
                await self._logManager.awaitCapacity(partition)
        return self._response(header, done)

    async def _acknowledgeAll(
        self, header: RequestHeader, request: ProduceRequest, done: list[Appended]
    ) -> list[bytes]:
        waiting: list[Deferred[StorageError | None]] = []
        cancels = []
        for each in done:
            reached: Deferred[StorageError | None] = Deferred()
            waiting.append(reached)
            if each.partition is None or each.result is None:
                reached.callback(None)
                continue
            offset = each.result.lastOffset + 1
            cancels.append(
                each.partition.log.whenReached(MarkKind.HIGH_WATERMARK, offset, reached.callback)
            )
            self._logManager.requestFlush(each.partition)
        timeout = _Timeout(waiting)
        timeoutMs = min(max(request.timeoutMs, 0), TIMEOUT_MS_MAX)
        key = self._purgatory.wait(timeoutMs, timeout.expire)
        for at, reached in enumerate(waiting):
            error = await reached
            if error is not None:
                each = done[at]
                done[at] = Appended(each.topic, _refused(each.response.index, error))
        self._purgatory.cancel(key)
        for cancel in cancels:
            cancel()
        return self._response(header, done)

    @staticmethod
    def _response(header: RequestHeader, done: list[Appended]) -> list[bytes]:
        topics: list[TopicProduceResponse] = []
        last: TopicProduceData | None = None
        for topic, response, _, _ in done:
            if topic is not last:
                topics.append(TopicProduceResponse(topic.name, topic.topicId, []))
                last = topic
            topics[-1].partitionResponses.append(response)
        return [frameResponse(header, encodeProduceResponse(header.apiVersion, topics))]


class _Timeout:
    """Ends waits whose time is over."""

    def __init__(self, waiting: list[Deferred[StorageError | None]]) -> None:
        self._waiting = waiting

    def expire(self) -> None:
        for each in self._waiting:
            if not each.called:
                each.callback(KafkaError(ErrorCode.REQUEST_TIMED_OUT))  # type: ignore[arg-type]


def _isWritten(each: Appended) -> bool:
    assert each.partition is not None and each.result is not None
    return each.partition.log.writtenOffset > each.result.lastOffset


def _isReached(each: Appended) -> bool:
    assert each.partition is not None and each.result is not None
    return each.partition.log.highWatermark > each.result.lastOffset


def _refused(index: int, error: PylogbrokerError) -> PartitionProduceResponse:
    found = errorOf(error)
    records = getattr(error, "recordErrors", ())
    text = found.text if found.text != found.code.message or records else None
    return PartitionProduceResponse(index, found.code, recordErrors=records, errorMessage=text)
