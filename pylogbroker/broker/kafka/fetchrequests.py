"""
Fetch: slices of segment files, now or when there is enough. A module of its own, since no other
request waits for data.

A response that has fewer than C{min.bytes} waits: for the high watermark of any of its partitions
to move, or for its time, C{max.wait}. Then everything is read anew. All waits share one timer
(L{pylogbroker.broker.kafka.purgatory.Purgatory}). A wait ends with its connection.

Sizes are limits, but for one batch: the first partition that has data gives a whole batch, however
large, or its reader would never go on.

There are no fetch sessions yet: each response has session id 0, and so a client sends all of its
partitions each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.protocol import ConnectionState
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.kafka.topics import TopicManager, batchLog
from pylogbroker.broker.logmanager import Partition
from pylogbroker.broker.server import Broker
from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.sendfile import ResponsePart, releaseSlices
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.fetch import FetchPartition, FetchRequest, FetchResponseWriter
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.partitionlog import MarkKind

WAIT_MS_MAX = 600_000
RESPONSE_SIZE_MAX = 64 << 20
"""Bytes of records in a response; a client may ask for more."""

_NO_SESSION = 0
_READ_COMMITTED = 1


class _Read:
    """
    One partition of a request.

    @ivar partition: L{None}: C{error} says why.
    @ivar slice: pinned.
    @ivar later: gives the slice, when only a worker can find or open it.
    """

    __slots__ = ("error", "later", "partition", "slice", "wanted")

    def __init__(self, wanted: FetchPartition, partition: Partition | None) -> None:
        self.wanted = wanted
        self.partition = partition
        self.slice = EMPTY_SLICE
        self.error: KafkaError | None = None
        self.later: Deferred[Slice] | None = None


class FetchRequests:
    """The handler of Fetch requests."""

    def __init__(
        self, broker: Broker, topics: TopicManager, purgatory: Purgatory, counters: BrokerCounters
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._purgatory = purgatory
        self._counters = counters

    def fetch(self, header: RequestHeader, request: FetchRequest, state: ConnectionState) -> Any:
        """Handle a request; as L{pylogbroker.broker.kafka.protocol.Handler}."""
        if request.sessionId != _NO_SESSION:
            writer = FetchResponseWriter(
                header.apiVersion,
                header.correlationId,
                0,
                errorCode=ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            )
            return writer.finish()
        return _Fetch(self._broker, self._topics, self._purgatory, self._counters).begin(
            header, request, state
        )


class _Fetch:
    """One request in progress."""

    __slots__ = (
        "_broker",
        "_cancels",
        "_counters",
        "_done",
        "_header",
        "_isOver",
        "_key",
        "_purgatory",
        "_reads",
        "_request",
        "_state",
        "_topics",
    )

    def __init__(
        self, broker: Broker, topics: TopicManager, purgatory: Purgatory, counters: BrokerCounters
    ) -> None:
        self._broker = broker
        self._topics = topics
        self._purgatory = purgatory
        self._counters = counters
        self._cancels: list[Callable[[], object]] = []
        self._done: Deferred[list[ResponsePart]] | None = None
        self._key = 0
        self._isOver = False
        self._reads: list[_Read] = []

    def begin(self, header: RequestHeader, request: FetchRequest, state: ConnectionState) -> Any:
        self._header, self._request, self._state = header, request, state
        self._reads = [
            self._find(topic.topic, topic.topicId, wanted)
            for topic in request.topics
            for wanted in topic.partitions
        ]
        isComplete = self._readNow()
        if isComplete and (self._isEnough() or request.maxWaitMs <= 0):
            return self._response()
        self._done = Deferred()
        if isComplete:
            self._wait()
        else:
            self._readLater()
        return self._done

    def _find(self, name: str, topicId: bytes, wanted: FetchPartition) -> _Read:
        if self._header.apiVersion >= 13:
            found = self._topics.findById(topicId, wanted.partition)
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
            if found is None and self._topics.topicById(topicId) is not None:
                unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            found = self._topics.find(name, wanted.partition)
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        read = _Read(wanted, found)
        if found is None:
            read.error = KafkaError(unknown)
            return read
        epoch, ours = wanted.currentLeaderEpoch, found.log.leaderEpoch
        if epoch >= 0 and epoch != ours:
            isOld = epoch < ours
            read.error = KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH if isOld else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        return read

    # -- reading

    def _sizeLeft(self) -> int:
        left = min(self._request.maxBytes, RESPONSE_SIZE_MAX)
        return left - sum(each.slice.size for each in self._reads)

    def _readNow(self) -> bool:
        """Returns whether everything could be read without waiting for a file."""
        for read in self._reads:
            if read.error is None and not read.slice.size:
                found = self._read(read)
                if isinstance(found, Deferred):
                    read.later = found
                    return False
                read.slice = found
        return True

    def _read(self, read: _Read) -> Slice | Deferred[Slice]:
        """Sets C{read.error} if the partition refuses."""
        assert read.partition is not None
        log, offset = batchLog(read.partition), read.wanted.fetchOffset
        isFirst = not any(each.slice.size for each in self._reads)
        left = self._sizeLeft()
        if left <= 0 and not isFirst:
            return EMPTY_SLICE
        sizeMax = min(read.wanted.partitionMaxBytes, left)
        try:
            return self._broker.readBatches(log, offset, sizeMax, isFirst, self._isCommitted)
        except PylogbrokerError as error:
            read.error = errorOf(error)
            return EMPTY_SLICE

    def _readLater(self) -> None:
        async def readAll() -> None:
            for read in self._reads:
                if read.error is not None or read.slice.size:
                    continue
                later, read.later = read.later, None
                found = self._read(read) if later is None else later
                try:
                    read.slice = await found if isinstance(found, Deferred) else found
                except PylogbrokerError as error:
                    read.error = errorOf(error)

        def go(_none: None) -> None:
            if self._isEnough() or self._request.maxWaitMs <= 0:
                self._end()
            else:
                self._wait()

        assert self._done is not None
        Deferred.fromCoroutine(readAll()).addCallback(go).addErrback(self._done.errback)

    def _isEnough(self) -> bool:
        if any(read.error is not None for read in self._reads):
            return True
        return sum(read.slice.size for read in self._reads) >= self._request.minBytes

    # -- waiting

    def _wait(self) -> None:
        if self._isOver:
            self._end()
            return
        if not self._key:
            waitMs = min(self._request.maxWaitMs, WAIT_MS_MAX)
            self._key = self._purgatory.wait(waitMs, self._expire)
            self._state.fetches[self._key] = self._expire
        for read in self._reads:
            assert read.partition is not None
            log = read.partition.log
            mark = MarkKind.LAST_STABLE if self._isCommitted else MarkKind.HIGH_WATERMARK
            end = log.lastStableOffset if self._isCommitted else log.highWatermark
            self._cancels.append(read.partition.whenReached(mark, end + 1, self._moved))

    def _expire(self) -> None:
        self._isOver = True
        if self._cancels:
            self._end()

    def _moved(self, error: object) -> None:
        if not self._cancels:
            return
        self._stopWaiting()
        for read in self._reads:  # there may be more now
            releaseSlices((read.slice,))
            read.slice = EMPTY_SLICE
        if self._readNow():
            if self._isEnough():
                self._end()
            else:
                self._wait()
        else:
            self._readLater()

    def _stopWaiting(self) -> None:
        cancels, self._cancels = self._cancels, []
        for cancel in cancels:
            cancel()

    # -- the end

    def _end(self) -> None:
        self._stopWaiting()
        if self._key:
            self._purgatory.cancel(self._key)
            self._state.fetches.pop(self._key, None)
        assert self._done is not None
        self._done.callback(self._response())

    def _response(self) -> list[ResponsePart]:
        request, header = self._request, self._header
        writer = FetchResponseWriter(header.apiVersion, header.correlationId, len(request.topics))
        reads = iter(self._reads)
        for topic in request.topics:
            writer.topic(topic.topic, topic.topicId, len(topic.partitions))
            for _ in topic.partitions:
                self._putPartition(writer, next(reads))
        return writer.finish()

    def _putPartition(self, writer: FetchResponseWriter, read: _Read) -> None:
        index = read.wanted.partition
        if read.error is not None or read.partition is None:
            releaseSlices((read.slice,))
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if read.error is None else read.error.code
            writer.partition(index, errorCode=code)
            return
        log = batchLog(read.partition)
        if read.slice.size:
            topic = read.partition.topicPartition.topic
            self._counters.topic(topic).fetchedSize += read.slice.size
        else:
            releaseSlices((read.slice,))
        writer.partition(
            index,
            read.slice if read.slice.size else b"",
            highWatermark=log.highWatermark,
            lastStableOffset=log.lastStableOffset,
            logStartOffset=log.logStartOffset,
            abortedTransactions=self._aborted(log, read) if self._isCommitted else None,
        )

    @property
    def _isCommitted(self) -> bool:
        """Whether the client reads committed records only."""
        return self._request.isolationLevel == _READ_COMMITTED

    @staticmethod
    def _aborted(log: BatchLog, read: _Read) -> list[tuple[int, int]]:
        if not read.slice.size:
            return []
        found = log.abortedIn(read.wanted.fetchOffset, log.lastStableOffset)
        return [(each.producerId, each.firstOffset) for each in found]
