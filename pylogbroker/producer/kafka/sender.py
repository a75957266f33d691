"""
Sends the batches of a producer: requests to the leaders, retries, and the outcome of each message.
A module of its own, since L{pylogbroker.producer.kafka.producer} is what applications call.

What must be true:

  - Each accepted message has one outcome, at most C{delivery.timeout.ms} after it came into a
  batch: the offset; a failure, when it is certain that it is not in the log; or unknown.
  - The order of a partition is that of L{pylogbroker.producer.kafka.partitionqueue}; while batches
  are in flight to one broker, none goes to another, although the leader has moved.
  - A broker has at most C{max.in.flight.requests.per.connection} unanswered requests, each with one
  batch for a partition.

Everything that can be sent leaves at the end of the reactor's turn. An open batch that is due goes
on taking messages while its broker has no place for a request, so batches grow under load.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import KafkaBrokerClient, NegotiatedConnection
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.client.kafka.metadata import PartitionLeader
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    PylogbrokerError,
    TimedOutError,
    UnknownOutcomeError,
    UnsupportedVersionError,
    WireError,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.producer.completion import ProducerCounters, fireLazily
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.producer.kafka.partitionqueue import (
    NO_OFFSET,
    NO_TIME,
    BatchMetadata,
    PartitionQueue,
    ProducerBatch,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records.recordbatch import BATCH_OVERHEAD

NAMED_VERSION = 12
"""The last version of Produce that names topics instead of giving their ids."""

EXPLICIT_VERSION = 11
"""The last version of Produce that does not add a partition to a transaction."""

CONCURRENT_PAUSE_MS = 20
"""The wait before a batch is sent again whose transaction cannot begin yet."""

_TRANSACTION_TIMEOUT_MAX_MS = 0x7FFFFFFF

log = Logger()


class ISenderTransactions(Protocol):
    """What a sender asks and tells of the transaction that its batches are in."""

    def admits(self, topic: str, partition: int) -> bool:
        """Whether a batch for a partition may leave now."""

    def failed(self, error: PylogbrokerError) -> None:
        """Messages failed, or their outcome is unknown."""


class _Node:
    """
    A broker that leads partitions.

    @ivar retryAtMs: no attempt to connect before this time.
    @ivar lastError: of the last attempt to connect; L{None}: it succeeded.
    """

    __slots__ = ("failureCount", "inFlightCount", "isConnecting", "lastError", "retryAtMs")

    def __init__(self) -> None:
        self.inFlightCount = 0
        self.failureCount = 0
        self.isConnecting = False
        self.lastError: PylogbrokerError | None = None
        self.retryAtMs = 0.0


class KafkaSender:
    """
    Gets messages to their brokers.

    @ivar counters: of messages; this object counts their outcomes.
    @ivar fatalError: why nothing is sent any more, or L{None}.
    @ivar transactions: L{None}: there are none.
    """

    def __init__(
        self,
        clock: IReactorTime,
        settings: KafkaProducerSettings,
        cluster: ClusterClient,
        limiter: InFlightMessageLimiter,
        onSettled: Callable[[], None],
        isLoggingFailures: bool = True,
    ) -> None:
        """
        @param onSettled: called when messages have their outcomes.
        @param isLoggingFailures: whether messages that were not sent are logged.
        """
        self.counters = ProducerCounters()
        self.fatalError: PylogbrokerError | None = None
        self.transactions: ISenderTransactions | None = None
        self._isImplicit = False  # partitions join the transaction with their first batch
        self._abandonError: PylogbrokerError | None = None
        self._requestEnds: Waiters[None] = Waiters()
        self._clock = clock
        self._settings = settings
        self._cluster = cluster
        self._limiter = limiter
        self._onSettled = onSettled
        self._isLoggingFailures = isLoggingFailures
        self._inFlightCountMax = settings.maxInFlightRequestsPerConnection
        self._nodes: dict[int, _Node] = {}
        self._active: dict[PartitionQueue, None] = {}  # those with something to send, in turn
        # Without an outcome, in the order of their deadlines.
        self._deadlines: OrderedDict[ProducerBatch, None] = OrderedDict()
        self._lingering: deque[tuple[float, ProducerBatch]] = deque()  # likewise
        self._pumpTimer = Timer(clock)
        self._lingerTimer = Timer(clock)
        self._retryTimer = Timer(clock)
        self._deadlineTimer = Timer(clock)
        self._producer: tuple[int, int] | None = None  # id and epoch
        self._isIdentifying = False
        self._identityTimer = Timer(clock)
        self._identityFailureCount = 0
        self._identityError: PylogbrokerError | None = None  # of the last attempt
        self._isFlushing = False
        self._isStopped = False
        cluster.listen(self.wake)

    def nowMs(self) -> float:
        """Milliseconds on the clock."""
        return self._clock.seconds() * 1000

    # -- batches

    def openBatch(self, queue: PartitionQueue) -> ProducerBatch:
        """A new batch for messages. The one that was open is full."""
        if queue.open is not None:
            queue.full.append(queue.open)
            self._activate(queue)
        nowMs, settings = self.nowMs(), self._settings
        batch = queue.open = ProducerBatch(queue, nowMs + settings.deliveryTimeoutMs)
        batch.roomySize = settings.batchSize - BATCH_OVERHEAD
        self._deadlines[batch] = None
        if not self._deadlineTimer.isRunning:
            self._deadlineTimer.start(settings.deliveryTimeoutMs, self._onDeadline)
        self._lingering.append((nowMs + settings.lingerMs, batch))
        if not self._lingerTimer.isRunning:
            self._lingerTimer.start(settings.lingerMs, self._onLinger)
        if self._limiter.waitingCount or self._isFlushing:
            self._activate(queue)
        return batch

    def makeDue(self, batch: ProducerBatch) -> None:
        """Send a batch without waiting for more messages."""
        batch.isDue = True
        self._activate(batch.queue)

    def _onLinger(self) -> None:
        nowMs, lingering = self.nowMs(), self._lingering
        while lingering and lingering[0][0] <= nowMs:
            _dueMs, batch = lingering.popleft()
            if batch.queue.open is batch:
                batch.isDue = True
                self._active[batch.queue] = None
        if lingering:
            self._lingerTimer.start(lingering[0][0] - nowMs, self._onLinger)
        self._pump()

    def flush(self) -> None:
        """Send open batches at once, until no message is in flight."""
        self._isFlushing = bool(self._limiter.count)
        for batch in self._deadlines:
            if batch.queue.open is batch:
                self._activate(batch.queue)

    async def drain(self) -> None:
        """Send what there is, until all messages have an outcome and no request is on its way."""
        self.flush()
        await self._limiter.whenIdle()
        while any(node.inFlightCount for node in self._nodes.values()):
            await self._requestEnds.wait()

    def resume(self, producer: tuple[int, int], isImplicit: bool) -> None:
        """
        A transaction begins.

        @param producer: id and epoch.
        @param isImplicit: whether partitions join it with their first batch.
        """
        self._producer = producer
        self._isImplicit = isImplicit
        self._abandonError = None

    def abandon(self, error: PylogbrokerError) -> None:
        """Send nothing more of a transaction. Batches in requests are answered, and not retried."""
        self._abandonError = error
        for batch in list(self._deadlines):
            if not batch.isInRequest and not batch.isSettled:
                self._giveUp(batch, error)

    def _activate(self, queue: PartitionQueue) -> None:
        self._active[queue] = None
        self.wake()

    def wake(self) -> None:
        """Send what can be sent, at the end of the reactor's turn."""
        if not self._pumpTimer.isRunning and not self._isStopped:
            self._pumpTimer.start(0, self._pump)

    # -- sending

    def _pump(self) -> None:
        self._pumpTimer.stop()
        if self._isStopped or not self._active:
            return
        transactions = self.transactions
        if self._producer is None and self._settings.enableIdempotence:
            if transactions is None:
                self._identify()
            return
        nowMs = self.nowMs()
        isFlushing = self._isFlushing or self._limiter.waitingCount > 0
        retryAtMs = inf
        byNode: dict[int, list[PartitionQueue]] = {}
        metadata = self._cluster.metadata
        for queue in list(self._active):
            if not queue.hasWork(isFlushing):
                del self._active[queue]
                continue
            if nowMs < queue.retryAtMs:
                retryAtMs = min(retryAtMs, queue.retryAtMs)
                continue
            if transactions is not None:
                if not transactions.admits(queue.topic, queue.partition):
                    continue
            elif queue.isExhausted and self._producer is not None:
                if queue.producerId == self._producer[0]:
                    self._producer = None
                    self._identify()
                    return
                queue.identify(*self._producer)
            leader = metadata.leader(queue.topic, queue.partition)
            if leader is None:
                self._cluster.topic(queue.topic)  # which is asked for until there is one
            else:
                byNode.setdefault(leader.node, []).append(queue)
        for number, queues in byNode.items():
            node = self._nodes.setdefault(number, _Node())
            if nowMs < node.retryAtMs:
                retryAtMs = min(retryAtMs, node.retryAtMs)
            else:
                self._sendTo(number, node, queues, nowMs, isFlushing)
        if retryAtMs < inf and not self._isStopped:
            self._retryTimer.start(retryAtMs - nowMs, self._pump)

    def _sendTo(
        self,
        number: int,
        node: _Node,
        queues: Sequence[PartitionQueue],
        nowMs: float,
        isFlushing: bool,
    ) -> None:
        if node.isConnecting or node.inFlightCount >= self._inFlightCountMax:
            return
        client = self._cluster.broker(number)
        connection = client.current
        if connection is None:
            self._connect(node, client)
            return
        while node.inFlightCount < self._inFlightCountMax and not self._isStopped:
            batches = self._select(number, queues, nowMs, isFlushing)
            if not batches:
                return
            self._request(connection, node, batches)

    def _select(
        self, number: int, queues: Sequence[PartitionQueue], nowMs: float, isFlushing: bool
    ) -> list[ProducerBatch]:
        """At most one batch of each queue, for one request. They count as sent."""
        selected: list[ProducerBatch] = []
        sizeLeft = self._settings.maxRequestSize
        for queue in queues:
            if self._producer is not None and (
                not queue.isIdentified
                or (self.transactions is not None and queue.producer != self._producer)
            ):
                queue.identify(*self._producer)
            if queue.inRequestCount and queue.node != number:
                continue
            batch = queue.next(nowMs, isFlushing)
            if batch is None:
                continue
            if selected and batch.size > sizeLeft:
                break
            batch.pack(self._settings.compressionType)
            sizeLeft -= batch.size
            queue.begin(batch, number)
            selected.append(batch)
        for batch in selected:  # the others come first next time
            del self._active[batch.queue]
            self._active[batch.queue] = None
        return selected

    def _connect(self, node: _Node, client: KafkaBrokerClient) -> None:
        node.isConnecting = True
        client.connection().addCallbacks(self._connected, self._notConnected, (node,), {}, (node,))

    def _connected(self, _connection: NegotiatedConnection, node: _Node) -> None:
        node.isConnecting = False
        node.failureCount = 0
        node.lastError = None
        self.wake()

    def _notConnected(self, reason: Failure, node: _Node) -> None:
        node.isConnecting = False
        if self._isStopped:
            return
        node.lastError = _asError(reason)
        node.failureCount += 1
        node.retryAtMs = self.nowMs() + self._cluster.backoffMs(node.failureCount)
        self._cluster.refreshSoon()
        self.wake()

    def _request(
        self, connection: NegotiatedConnection, node: _Node, batches: list[ProducerBatch]
    ) -> None:
        self.counters.batchCount += len(batches)
        cls = messages.ProduceRequest
        isTransactional = self.transactions is not None
        topics: dict[str, Any] = {}
        for batch in batches:
            queue = batch.queue
            topic = topics.get(queue.topic)
            if topic is None:
                known = self._cluster.metadata.topics.get(queue.topic)
                topicId = ZERO_UUID if known is None else known.topicId
                topic = cls.TopicProduceData(name=queue.topic, topicId=topicId)
                topics[queue.topic] = topic
            part = cls.PartitionProduceData(
                index=queue.partition, records=batch.encode(isTransactional)
            )
            topic.partitionData.append(part)
        isNamed = any(topic.topicId == ZERO_UUID for topic in topics.values())
        settings = self._settings
        body = cls(
            transactionalId=settings.transactionalId,
            acks=settings.acks,
            timeoutMs=settings.requestTimeoutMs,
            topicData=list(topics.values()),
        )
        key = ApiKey.PRODUCE
        versionMax = NAMED_VERSION if isNamed else key.lastVersion
        if isTransactional and not self._isImplicit:
            versionMax = EXPLICIT_VERSION
        node.inFlightCount += 1
        if not settings.acks:
            sending: Deferred[Any] = connection.send(key, body, versionMax)
        else:
            sending = connection.request(key, body, versionMax=versionMax)
        sending.addCallbacks(self._answered, self._lost, (batches, body), {}, (batches,))
        sending.addBoth(self._ended, node)

    def _ended(self, result: Failure | None, node: _Node) -> None:
        if isinstance(result, Failure):
            log.failure(
                "Messages may be unaccounted for: handling an answer failed unexpectedly", result
            )
        node.inFlightCount -= 1
        self._requestEnds.fire(None)
        self.wake()

    # -- answers

    def _answered(self, response: Any, batches: list[ProducerBatch], body: Any) -> None:
        if response is None:  # acks=0
            for batch in batches:
                self._acknowledge(batch, NO_OFFSET, NO_TIME)
            return
        names = {topic.topicId: topic.name for topic in body.topicData}
        found: dict[tuple[Any, int], Any] = {}
        for topic in response.responses:
            name = topic.name or names.get(topic.topicId)
            for part in topic.partitionResponses:
                found[name, part.index] = part
        for batch in batches:
            queue = batch.queue
            part = found.get((queue.topic, queue.partition))
            if part is None:
                missing = WireError(f"the response to a produce request lacks {queue}")
                batch.isUncertain = True
                self._retry(batch, missing)
            elif not part.errorCode:
                self._acknowledge(batch, part.baseOffset, part.logAppendTimeMs)
            elif part.errorCode == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                self._acknowledge(batch, NO_OFFSET, NO_TIME)
            else:
                self._onError(batch, part, response)

    def _acknowledge(self, batch: ProducerBatch, baseOffset: int, timeMs: int) -> None:
        batch.queue.acknowledged(batch)
        self._succeed(batch, baseOffset, timeMs)
        if batch.queue.hasWork(self._isFlushing):
            self._active.setdefault(batch.queue)

    def _onError(self, batch: ProducerBatch, part: Any, response: Any) -> None:
        queue, code = batch.queue, part.errorCode
        policy = policyOf(code)
        error = ResponseError(code, str(queue), part.errorMessage)
        if ErrorPolicy.UNCERTAIN in policy:
            batch.isUncertain = True
        if ErrorPolicy.REFRESH in policy:
            self._findLeader(queue, part.currentLeader, response.nodeEndpoints)
        isAbandoned = self._abandonError is not None
        if code == ErrorCode.MESSAGE_TOO_LARGE and self._canSplit(batch) and not isAbandoned:
            self._split(batch)
        elif ErrorPolicy.FATAL in policy:
            self._giveUp(batch, error)
            self.fail(error)
        elif ErrorPolicy.OUT_OF_SEQUENCE in policy and queue.isIdentified:
            self._retry(batch, error, isForSequence=True)
        elif ErrorPolicy.RETRY in policy:
            self._retry(batch, error)
        else:
            self._giveUp(batch, error)

    def _findLeader(self, queue: PartitionQueue, leader: Any, endpoints: Any) -> None:
        news = PartitionLeader(leader.leaderId, leader.leaderEpoch)
        if not self._cluster.metadata.moveLeader(queue.topic, queue.partition, news, endpoints):
            self._cluster.refreshSoon()

    def _canSplit(self, batch: ProducerBatch) -> bool:
        """
        Whether halves may be sent in a batch's place. A broker that has the whole of it would take
        the halves for new ones.
        """
        return len(batch) > 1 and not batch.isSettled and not batch.isUncertain

    def _split(self, batch: ProducerBatch) -> None:
        queue = batch.queue
        halves = batch.split(self._settings.compressionType)
        queue.replace(batch, halves)
        self._deadlines = OrderedDict.fromkeys(
            part for each in self._deadlines for part in (halves if each is batch else (each,))
        )
        self._activate(queue)

    def _lost(self, reason: Failure, batches: list[ProducerBatch]) -> None:
        """The request has no answer, or was not sent."""
        error = _asError(reason)
        isSent = not isinstance(error, UnsupportedVersionError | BackpressureError)
        if isinstance(error, BrokerConnectionError):
            self._cluster.refreshSoon()
        for batch in batches:
            batch.isUncertain = batch.isUncertain or isSent
            if isinstance(error, UnsupportedVersionError) or not self._settings.acks:
                self._giveUp(batch, error)
            else:
                self._retry(batch, error)

    def _retry(
        self, batch: ProducerBatch, error: PylogbrokerError, isForSequence: bool = False
    ) -> None:
        queue = batch.queue
        batch.lastError = error
        isLost = isForSequence and queue.unacknowledged[0] is batch
        if self._abandonError is not None or (isLost and self.transactions is not None):
            # The coordinator gives the next epoch, when the transaction is aborted.
            self._giveUp(batch, self._abandonError or error)
            return
        if batch.isSettled or batch.attemptCount > self._settings.retries:
            self._giveUp(batch, error)
            return
        self.counters.retriedCount += len(batch)
        if batch.isUncertain and not queue.isIdentified:
            self.counters.repeatedCount += len(batch)
        waitMs = self._cluster.backoffMs(batch.attemptCount)
        if getattr(error, "code", 0) == ErrorCode.CONCURRENT_TRANSACTIONS:
            waitMs = min(waitMs, CONCURRENT_PAUSE_MS)
        retryAtMs = self.nowMs() + waitMs
        if isForSequence:
            queue.refusedForSequence(batch, retryAtMs)
        else:
            queue.mustRetry(batch, retryAtMs)
        log.debug("A batch for {queue} is sent again: {error}", queue=queue, error=error)
        self._activate(queue)

    def _giveUp(self, batch: ProducerBatch, error: PylogbrokerError) -> None:
        batch.queue.drop(batch)
        if batch.queue.hasWork(self._isFlushing):
            self._activate(batch.queue)
        if not batch.isSettled:
            self._fail(batch, error)

    # -- outcomes

    def _succeed(self, batch: ProducerBatch, baseOffset: int, timeMs: int) -> None:
        if batch.isSettled:
            return
        self.counters.writtenCount += len(batch)
        self._settle(batch)
        queue = batch.queue
        results = BatchMetadata(queue.topic, queue.partition, baseOffset, batch.timestamps, timeMs)
        fireLazily(batch.waiters, results.of)
        self._finish(batch)

    def _fail(self, batch: ProducerBatch, error: PylogbrokerError) -> None:
        count = len(batch)
        if batch.isUncertain:
            self.counters.unknownCount += count
            if not isinstance(error, UnknownOutcomeError):
                error = UnknownOutcomeError(f"whether {batch.queue} has it is unknown: {error}")
        else:
            self.counters.failedCount += count
        self._settle(batch)
        if self.transactions is not None:
            self.transactions.failed(error)
        if self._isLoggingFailures:
            log.error(
                "{count} messages for {queue} {outcome}: {error}",
                count=count,
                queue=batch.queue,
                outcome="may have been sent or not" if batch.isUncertain else "were not sent",
                error=error,
            )
        failure = Failure(error)
        for waiter in batch.waiters:
            if waiter is not None:
                waiter.errback(failure)
        self._finish(batch)

    def _settle(self, batch: ProducerBatch) -> None:
        batch.isSettled = True
        self._deadlines.pop(batch, None)
        self._limiter.release(len(batch), batch.memorySize)

    def _finish(self, batch: ProducerBatch) -> None:
        batch.waiters, batch.timestamps, batch.packed = [], [], None
        if not self._limiter.count:
            self._isFlushing = False
        self._onSettled()
        self._limiter.notify()

    def _onDeadline(self) -> None:
        nowMs = self.nowMs()
        while self._deadlines:
            batch = next(iter(self._deadlines))
            if batch.deadlineMs > nowMs:
                self._deadlineTimer.start(batch.deadlineMs - nowMs, self._onDeadline)
                return
            self._expire(batch)

    def _expire(self, batch: ProducerBatch) -> None:
        reason = self._lateReason(batch)
        error = TimedOutError(
            f"not sent to {batch.queue} within {self._settings.deliveryTimeoutMs} ms"
            + (f"; the last attempt: {reason}" if reason else "")
        )
        if batch.isInRequest:  # its answer still counts for the order of those behind it
            batch.isUncertain = True
            self._fail(batch, error)
        else:
            self._giveUp(batch, error)

    def _lateReason(self, batch: ProducerBatch) -> object:
        """What keeps a batch from being sent; L{None}: nothing is known."""
        error = batch.lastError or self._identityError
        if error is not None:
            return error
        leader = self._cluster.metadata.leader(batch.queue.topic, batch.queue.partition)
        if leader is None:
            return "the partition has no leader"
        node = self._nodes.get(leader.node)
        return None if node is None else node.lastError

    # -- the producer's id

    def _identify(self) -> None:
        if self._isIdentifying or self._identityTimer.isRunning:
            return
        self._isIdentifying = True
        Deferred.fromCoroutine(self._askIdentity()).addErrback(self._notIdentified)

    async def _askIdentity(self) -> None:
        connection = await self._cluster.anyConnection()
        body = messages.InitProducerIdRequest(
            transactionalId=None, transactionTimeoutMs=_TRANSACTION_TIMEOUT_MAX_MS
        )
        found = await connection.request(ApiKey.INIT_PRODUCER_ID, body)
        checkCode(found.errorCode, "the producer's id")
        self._producer = found.producerId, found.producerEpoch
        self._identityError = None
        self._isIdentifying = False
        self.wake()

    def _notIdentified(self, reason: Failure) -> None:
        self._isIdentifying = False
        if self._isStopped:
            return
        error = self._identityError = _asError(reason)
        isPassing = isinstance(error, BrokerConnectionError) or getattr(error, "isRetriable", False)
        if isPassing:
            self._identityFailureCount += 1
            self._identityTimer.start(
                self._cluster.backoffMs(self._identityFailureCount), self._pump
            )
        else:
            self.fail(error)

    # -- the end

    def fail(self, error: PylogbrokerError) -> None:
        """Send nothing any more: all messages fail."""
        if self.fatalError is None:
            self.fatalError = error
            log.error("The producer cannot go on: {error}", error=error)
        self._onSettled()  # from now on, before any message knows its outcome
        self.stop(error)

    def stop(self, error: PylogbrokerError) -> None:
        """Send nothing any more: all messages that have no outcome fail, those sent as unknown."""
        self._isStopped = True
        for timer in (
            self._pumpTimer,
            self._lingerTimer,
            self._retryTimer,
            self._deadlineTimer,
            self._identityTimer,
        ):
            timer.stop()
        self._active.clear()
        self._lingering.clear()
        while self._deadlines:
            batch = next(iter(self._deadlines))
            batch.isUncertain = batch.isUncertain or batch.isInRequest
            self._fail(batch, error)


def _asError(reason: Failure) -> PylogbrokerError:
    error = reason.value
    if isinstance(error, PylogbrokerError):
        return error
    log.failure("A step of sending failed unexpectedly", reason)
    return UnknownOutcomeError(f"sending failed unexpectedly: {error!r}")
