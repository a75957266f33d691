"""
What clients ask of the logs of partitions: offsets by time and by epoch, deleting records, sizes on
the disk, producers; a module of its own, since these requests neither read nor append records.

Readers see up to the high watermark, which a flush moves. So that a client finds what it was
acknowledged before, a request for offsets first waits until the watermark reaches what was the end
of the log when it came, with the flush that this needs; at most L{WAIT_MS_MAX}. A partition with
other replicas is not waited for: what was acknowledged by all is below its high watermark. But a
client must ask again for what may be behind it, while it has not reached the start of its leader's
epoch (KIP-207).

Records are deleted when all replicas in sync have done it, since another one may lead next. After
the request's time the client is told that it must ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState, Handler, RepeatLimit
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import INTERNAL_TOPICS, TopicManager, checkName
from pylogbroker.broker.logmanager import Partition
from pylogbroker.broker.server import Broker
from pylogbroker.errors import PylogbrokerError, StorageError
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.partitionlog import MarkKind

WAIT_MS_MAX = 5_000

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
_FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version of ListOffsets with each time that is none."""

_CONSUMER = -1
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_NO_EPOCH = -1
_NOT_AVAILABLE_VERSION = 5
"""The first version of ListOffsets with OFFSET_NOT_AVAILABLE."""
_HIGH_WATERMARK = -1


def checkEpoch(log: BatchLog, epoch: int) -> None:
    """
    @param epoch: of the leader, as the client knows it; -1: it does not.
    @raise KafkaError: it is another one.
    """
    if 0 <= epoch < log.leaderEpoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if epoch > log.leaderEpoch:
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)


def _checkEpoch(log: BatchLog, epoch: int) -> None:
    """As L{checkEpoch}, but for requests that know only -1 as no epoch."""
    if epoch < _NO_EPOCH:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    checkEpoch(log, epoch)


class LogRequests:
    """The handlers that ask the logs of partitions."""

    def __init__(
        self,
        broker: Broker,
        topics: TopicManager,
        purgatory: Purgatory,
        logDirectory: str,
        diskSpace: Callable[[str], tuple[int, int]],
    ) -> None:
        """
        @param logDirectory: the absolute path of C{log.dir}.
        @param diskSpace: gives the bytes of the file system of a path, and those that are free. May
            block, and raise L{OSError}.
        """
        self._broker = broker
        self._topics = topics
        self._purgatory = purgatory
        self._logDirectory = logDirectory
        self._diskSpace = diskSpace

    @property
    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.LIST_OFFSETS: self.listOffsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.offsetForLeaderEpoch,
            ApiKey.DELETE_RECORDS: self.deleteRecords,
            ApiKey.DESCRIBE_LOG_DIRS: self.describeLogDirs,
            ApiKey.DESCRIBE_PRODUCERS: self.describeProducers,
        }

    def _find(self, topic: str, index: int) -> tuple[Partition, BatchLog]:
        """@raise KafkaError: there is none in service."""
        found = self._topics.find(topic, index)
        if found is None or not isinstance(found.log, BatchLog):
            raise self._topics.unavailable(self._topics.image.topics.get(topic), index)
        if found.log.isOffline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return found, found.log

    async def _awaitReadable(self, partition: Partition, log: BatchLog) -> None:
        """@raise StorageError: the partition has failed."""
        end = log.logEndOffset
        if log.highWatermark >= end or log.isReplicated:
            return
        reached: Deferred[StorageError | None] = Deferred()
        cancel = partition.whenReached(MarkKind.HIGH_WATERMARK, end, reached.callback)
        key = self._purgatory.wait(WAIT_MS_MAX, lambda: reached.callback(None))
        error = await reached
        self._purgatory.cancel(key)
        cancel()
        if error is not None:
            raise error

    # -- ListOffsets

    def listOffsets(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle ListOffsets; as L{Handler}."""
        cls = messages.ListOffsetsResponse
        version = header.apiVersion
        counts = Counter(
            (topic.name, part.partitionIndex)
            for topic in request.topics
            for part in topic.partitions
        )
        isUnknown = request.isolationLevel not in (_READ_UNCOMMITTED, _READ_COMMITTED)

        async def answer(name: str, part: Any) -> Any:
            result = cls.ListOffsetsPartitionResponse(partitionIndex=part.partitionIndex)
            try:
                if counts[name, part.partitionIndex] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST)
                if isUnknown:
                    raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
                if part.timestamp < 0:
                    first = _FIRST_VERSIONS.get(part.timestamp)
                    if first is None or version < first:
                        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
                await self._putOffset(name, part, request, result, version)
            except PylogbrokerError as error:
                result.errorCode = errorOf(error).code
            return result

        async def answerAll() -> Any:
            return cls(
                topics=[
                    cls.ListOffsetsTopicResponse(
                        name=name,
                        partitions=list({each.partitionIndex: each for each in parts}.values()),
                    )
                    for name, parts in await _forEach(request.topics, "name", answer)
                    if parts
                ]
            )

        return Deferred.fromCoroutine(answerAll())

    async def _putOffset(
        self, name: str, part: Any, request: Any, result: Any, version: int
    ) -> None:
        partition, log = self._find(name, part.partitionIndex)
        _checkEpoch(log, part.currentLeaderEpoch)
        timestamp, epoch = part.timestamp, -1
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            result.offset = log.logStartOffset
            epoch = log.epochs.epochOf(log.logStartOffset)
        elif timestamp not in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            end = log.logEndOffset
            isBehind = False
            if request.replicaId == _CONSUMER:
                await self._awaitReadable(partition, log)
                isCommitted = request.isolationLevel == _READ_COMMITTED
                end = log.lastStableOffset if isCommitted else log.highWatermark
                isBehind = log.isBehindEpoch
            if timestamp == LATEST and not isBehind:
                result.offset, epoch = end, log.leaderEpoch
            else:
                found = sought = None
                if timestamp != LATEST:
                    sought = None if timestamp == MAX_TIMESTAMP else timestamp
                    found = await self._broker.offsetForTime(partition, sought)
                if found is not None and found.offset < end:
                    result.offset, result.timestamp = found.offset, found.timestampMs
                    epoch = found.leaderEpoch
                elif isBehind:
                    raise KafkaError(
                        ErrorCode.OFFSET_NOT_AVAILABLE
                        if version >= _NOT_AVAILABLE_VERSION
                        else ErrorCode.LEADER_NOT_AVAILABLE
                    )
                elif found is None and sought is None and log.logStartOffset < end:
                    # No record has a timestamp: Kafka answers the first one.
                    result.offset = log.logStartOffset
                    epoch = log.epochs.epochOf(log.logStartOffset)
        if version >= 4:
            result.leaderEpoch = epoch

    # -- OffsetForLeaderEpoch

    def offsetForLeaderEpoch(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Any:
        """Handle OffsetForLeaderEpoch; as L{Handler}."""
        cls = messages.OffsetForLeaderEpochResponse

        def answer(name: str, part: Any) -> Any:
            result = cls.EpochEndOffset(partition=part.partition)
            try:
                _, log = self._find(name, part.partition)
                _checkEpoch(log, part.currentLeaderEpoch)
                found = log.epochs.endOffsetFor(part.leaderEpoch, log.logEndOffset)
                result.leaderEpoch, result.endOffset = found
            except KafkaError as error:
                result.errorCode = error.code
            return result

        return cls(
            topics=[
                cls.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[answer(topic.topic, part) for part in topic.partitions],
                )
                for topic in request.topics
            ]
        )

    # -- DeleteRecords

    def deleteRecords(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle DeleteRecords; as L{Handler}."""
        cls = messages.DeleteRecordsResponse

        async def delete(name: str, part: Any) -> Any:
            result = cls.DeleteRecordsPartitionResult(
                partitionIndex=part.partitionIndex, lowWatermark=-1
            )
            try:
                result.lowWatermark = await self._delete(name, part, request.timeoutMs)
            except PylogbrokerError as error:
                result.errorCode = errorOf(error).code
            return result

        async def deleteAll() -> Any:
            return cls(
                topics=[
                    cls.DeleteRecordsTopicResult(name=name, partitions=parts)
                    for name, parts in await _forEach(request.topics, "name", delete)
                ]
            )

        return Deferred.fromCoroutine(deleteAll())

    async def _delete(self, name: str, part: Any, timeoutMs: int) -> int:
        partition, log = self._find(name, part.partitionIndex)
        if name in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        topic = self._topics.image.topics[name]
        if "delete" not in self._topics.configs(topic)["cleanup.policy"].split(","):
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if part.offset < _HIGH_WATERMARK:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if part.offset == _HIGH_WATERMARK or part.offset > log.highWatermark:
            await self._awaitReadable(partition, log)
        start = await self._broker.deleteRecords(partition, part.offset)
        if not log.isReplicated or self._topics.replicas is None:
            return start
        waiting = self._topics.replicas.awaitDeletion(partition, start)
        key = self._purgatory.wait(max(timeoutMs, 0), waiting.cancel)
        try:
            return await waiting
        except CancelledError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None
        finally:
            self._purgatory.cancel(key)

    # -- DescribeLogDirs

    def describeLogDirs(
        self, header: RequestHeader, request: Any, state: ConnectionState
    ) -> Deferred[Any]:
        """Handle DescribeLogDirs; as L{Handler}."""
        return Deferred.fromCoroutine(self._describeLogDirs(request))

    async def _describeLogDirs(self, request: Any) -> Any:
        cls = messages.DescribeLogDirsResponse
        topics = self._topics.image.topics
        wanted = {name: list(range(topic.partitionCount)) for name, topic in topics.items()}
        if request.topics is not None:
            wanted = {}
            for topic in request.topics:
                wanted.setdefault(topic.topic, []).extend(topic.partitions)
        found = []
        for name, indexes in wanted.items():
            parts = []
            for index in dict.fromkeys(indexes):
                partition = self._topics.hosted(name, index)
                if partition is not None and not partition.log.isOffline:
                    size = partition.log.size + partition.log.unflushedSize
                    parts.append(
                        cls.DescribeLogDirsPartition(partitionIndex=index, partitionSize=size)
                    )
            if parts:
                found.append(cls.DescribeLogDirsTopic(name=name, partitions=parts))
        result = cls.DescribeLogDirsResult(logDir=self._logDirectory, topics=found)
        try:
            result.totalBytes, result.usableBytes = await self._broker.readWorker.submit(
                lambda: self._diskSpace(self._logDirectory)
            )
        except OSError:  # the sizes of the partitions are an answer, too
            pass
        return cls(results=[result])

    # -- DescribeProducers

    def describeProducers(self, header: RequestHeader, request: Any, state: ConnectionState) -> Any:
        """Handle DescribeProducers; as L{Handler}."""
        cls = messages.DescribeProducersResponse

        def answer(name: str, index: int) -> Any:
            result = cls.PartitionResponse(partitionIndex=index)
            try:
                checkName(name)
                _, log = self._find(name, index)
                result.activeProducers = [
                    cls.ProducerState(
                        producerId=each.producerId,
                        producerEpoch=each.epoch,
                        lastSequence=each.lastSequence,
                        lastTimestamp=each.timestampMs,
                        coordinatorEpoch=each.coordinatorEpoch,
                        currentTxnStartOffset=each.transactionStart,
                    )
                    for each in log.producers.producers.values()
                ]
            except KafkaError as error:
                result.errorCode = error.code
                isTopicThere = name in self._topics.image.topics
                result.errorMessage = None if isTopicThere else error.text
            return result

        limit = RepeatLimit()
        return cls(
            topics=[
                cls.TopicResponse(
                    name=topic.name,
                    partitions=[
                        answer(topic.name, index)
                        for index in topic.partitionIndexes
                        if limit.admits((topic.name, index))
                    ],
                )
                for topic in request.topics
            ]
        )


async def _forEach(
    topics: list[Any], key: str, answer: Callable[[str, Any], Awaitable[Any]]
) -> list[tuple[str, list[Any]]]:
    """Answer for all partitions of a request, many at a time."""
    places = [(getattr(topic, key), part) for topic in topics for part in topic.partitions]

    async def one(place: tuple[str, Any]) -> Any:
        return await answer(*place)

    answers = iter(await gatherInBatches(one, places))
    return [(getattr(topic, key), [next(answers) for _ in topic.partitions]) for topic in topics]
