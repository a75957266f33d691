"""
The producer of today's protocol, for any Kafka that has at least Produce 3. A module of its own,
since applications import it.

What must be true:

  - Each accepted message has one outcome. Its Deferred fires with a L{RecordMetadata}, or fails:
  with L{UnknownOutcomeError} when it may be in the log, with any other error when it is not.
  - Idempotence is not given up silently: a broker without it is an error.
  - Calls for one partition keep their order, also through retries.
  - The bytes and the number of messages in the producer are limited. Beyond, calls wait.

A message passes C{producer} (acceptance, partition), L{pylogbroker.producer.inflight} (capacity),
L{pylogbroker.records.batchbuilder} (its bytes), C{partitionqueue} (order) and C{sender} (requests,
retries, outcome). The methods are those of L{pylogbroker.producer.producer.Producer}, which speaks
the protocol of 2011.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from random import Random, SystemRandom
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.metadata import TopicMetadata
from pylogbroker.cluster.kafkapartitioner import (
    CRC32,
    KEY_PARTITIONERS,
    MURMUR2,
    KeyPartitioner,
)
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    EncodingError,
    InvalidPartitionError,
    MessageTooLargeError,
    PylogbrokerError,
    QueueFullError,
    TimedOutError,
    copyForReraise,
)
from pylogbroker.metrics.clientmetrics import producerFamilies
from pylogbroker.metrics.exposition import Family
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer, wallMs
from pylogbroker.producer.completion import (
    FailureWaiter,
    ProducerCounters,
    SendGroup,
    SucceededDeferred,
    sendResultClass,
)
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.producer.kafka.partitionqueue import PartitionQueue, RecordMetadata
from pylogbroker.producer.kafka.sender import KafkaSender
from pylogbroker.producer.kafka.transactions import Transaction, TransactionManager
from pylogbroker.producer.lifecycle import GracefulShutdown, UpstreamFlowControl
from pylogbroker.producer.plugins import callableOf, loadPlugin
from pylogbroker.producer.producer import (
    PAUSE_COUNT_MAX,
    PAUSE_FROM_COUNT,
    PAUSE_MS,
    TURN_COUNT_MAX,
    ProducerData,
)
from pylogbroker.records.batchbuilder import (
    RECORD_OVERHEAD_MAX,
    GivenHeaders,
    recordSizeMax,
)
from pylogbroker.records.recordbatch import BATCH_OVERHEAD

__all__ = ["KafkaProducer", "RecordMetadata"]

_TIMESTAMP_MAX = 0x7FFFFFFFFFFFFFFF

log = Logger()

_Call = tuple[str, bytes | None, bytes | None, GivenHeaders, int, int | None, Any, int]
"""Topic, value, key, headers, timestamp, partition, waiter and size of a message."""


class _TopicRoute:
    """
    The partitions of a topic.

    @ivar queues: by the partition's number; empty while they are not known.
    @ivar waiting: calls, in order, while the partitions are not known.
    @ivar sticky: where messages without a key go.
    @ivar stickySize: bytes that have gone there.
    """

    __slots__ = ("queues", "sticky", "stickySize", "topic", "waiting")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.queues: list[PartitionQueue] = []
        self.waiting: list[_Call] = []
        self.sticky = 0
        self.stickySize = 0


@implementer(IConsumer)
class KafkaProducer:
    """
    Publishes messages to the topics of a cluster; the module states its promises.

    As a Twisted C{IConsumer} it takes any push or pull producer:
    C{producer.registerProducer(source, True)}. Each C{write} is a message for the topic of the
    C{topic} setting.

    @ivar counters: a L{ProducerCounters}.
    @ivar settings: a L{KafkaProducerSettings}.
    """

    def __init__(
        self,
        reactor: Any,
        settings: KafkaProducerSettings | Mapping[str, str],
        *,
        partitioner: KeyPartitioner | Any = None,
        random: Callable[[], float] | None = None,
        isLoggingFailures: bool = True,
    ) -> None:
        """
        @param settings: or properties.
        @param partitioner: in place of C{partitioner.class}: a function of key and count, or an
            object with C{partition}. It is asked for messages with a key.
        @param random: numbers from 0 up to, not including, 1.
        @param isLoggingFailures: L{False} is for a caller that handles each failure.
        @raise ConfigurationError: the settings are wrong, or name an object that cannot be loaded.
        """
        if not isinstance(settings, KafkaProducerSettings):
            settings = KafkaProducerSettings.fromProperties(settings, _logWarning)
        if random is None:
            random = Random(SystemRandom().getrandbits(64)).random
        name = settings.partitionerClass or MURMUR2
        if partitioner is None:
            partitioner = loadPlugin("partitioner.class", name, KEY_PARTITIONERS, "partition")
        self.settings = settings
        self._messageSizeMax = settings.maxRequestSize - BATCH_OVERHEAD
        self._batchSize = settings.batchSize
        self._clock = reactor
        self._random = random
        self._partitioner: KeyPartitioner = callableOf("partitioner", partitioner, "partition")
        # librdkafka's "consistent_random" hashes no empty key.
        self._hashesEmptyKeys = self._partitioner is not KEY_PARTITIONERS[CRC32]
        self._cluster = ClusterClient(reactor, settings, random=random)
        self._cluster.listen(self._onMetadata)
        self._limiter = InFlightMessageLimiter(
            reactor,
            settings.queueSize,
            settings.bufferMemory,
            settings.maxBlockMs,
            self._onAdmitted,
            self._onRefused,
        )
        self._flowControl = UpstreamFlowControl(reactor, self._limiter.fullness)
        self._sender = KafkaSender(
            reactor,
            settings,
            self._cluster,
            self._limiter,
            self._onSettled,
            isLoggingFailures,
        )
        self.counters: ProducerCounters = self._sender.counters
        self._isLoggingFailures = isLoggingFailures
        self._isFullLogged = False
        self._newResult = sendResultClass()
        self._routes: dict[str, _TopicRoute] = {}
        self._isClosing = False
        self._isRefusing = False  # closed, or it cannot go on, or no transaction is open
        self._transactions: TransactionManager | None = None
        if settings.transactionalId:
            self._transactions = TransactionManager(
                reactor, settings, self._cluster, self._sender, self._onTransaction
            )
            self._sender.transactions = self._transactions
            self._isRefusing = True
        self._turnAt = TURN_COUNT_MAX
        self._turnTimer = Timer(reactor)
        self._turnWaiters: Waiters[None] = Waiters()
        self._shutdown = GracefulShutdown(
            reactor,
            settings.closeTimeoutMs,
            self._beginClose,
            self._close,
            self._abort,
            self._describeLosses,
        )

    def __repr__(self) -> str:
        servers = ",".join(self.settings.bootstrapServers)
        return f"<KafkaProducer {servers}, {self._limiter.count} messages in flight>"

    @property
    def fatalError(self) -> PylogbrokerError | None:
        """
        Why the producer takes nothing any more, and must be replaced; or L{None}. For example a
        refused password, a broker that is none, a newer producer of the same C{transactional.id}.
        """
        return self._sender.fatalError

    # -- sending

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Deferred[RecordMetadata]:
        """
        Publish a message.

        @param value: L{None}: a tombstone, which deletes the key from a compacted topic.
        @param key: messages with the same key go to the same partition while the topic has as many
            partitions; without one a partition is drawn for each C{batch.size} bytes.
        @param headers: pairs of name and bytes.
        @param timestamp: milliseconds since the epoch; by default now.
        @param partition: in place of the partitioner's.
        @return: fires with a L{RecordMetadata} when the message counts as sent by C{acks}. Fails
            with L{pylogbroker.errors.UnknownOutcomeError} when the broker may have it. All other
            failures mean that it is not in the log:
            L{ResponseError<pylogbroker.protocol.kafka.errorcodes.ResponseError>} when the broker
            refuses it; L{TimedOutError} when C{delivery.timeout.ms} is over, or C{max.block.ms} for
            an unknown topic; L{QueueFullError} after C{max.block.ms} without room;
            L{MessageTooLargeError}; L{InvalidPartitionError};
            L{pylogbroker.errors.InvalidTopicError}; L{EncodingError} for values that are no bytes,
            and the like; L{ClosedError} after C{close}. A loop awaits L{whenReady} before each
            call. Cancelling stops waiting, and takes nothing back.
        """
        waiter: Deferred[RecordMetadata] = self._newResult()
        self._accept(topic, value, key, headers, timestamp, partition, waiter)
        return waiter

    def sendNoWait(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: GivenHeaders = (),
        timestamp: int | None = None,
        partition: int | None = None,
        waiter: FailureWaiter | None = None,
    ) -> None:
        """
        Publish like L{send} at less cost, without a L{Deferred}. The counters and the log report
        the outcome.

        @param waiter: told of the failure, too, if the message fails.
        """
        self._accept(topic, value, key, headers, timestamp, partition, waiter)

    def sendMany(
        self, datas: Iterable[ProducerData], partition: int | None = None
    ) -> Deferred[None]:
        """
        Publish messages of several topics and keys.

        @param datas: (topic, values, key) of each.
        @param partition: of all of them, in place of the partitioner's.
        @return: fires with L{None} when all are sent; fails with the worst failure (unknown before
            failed).
        """
        calls = [(topic, value, key) for topic, values, key in datas for value in values]
        if not calls:
            return succeed(None)
        group = SendGroup(len(calls))
        for topic, value, key in calls:
            self._accept(topic, value, key, (), None, partition, group)
        return group.waiter

    def sendEach(self, datas: Iterable[ProducerData]) -> list[Deferred[RecordMetadata]]:
        """
        Publish messages of several topics and keys, with an outcome for each message.

        @param datas: as of L{sendMany}.
        @return: for each message, in order, as L{send}.
        """
        return [self.send(topic, value, key) for topic, values, key in datas for value in values]

    def _accept(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: GivenHeaders,
        timestamp: Any,
        partition: Any,
        waiter: Any,
        size: int = 0,
    ) -> None:
        """
        Put a message into a batch, once there is capacity. This is one function, since it is most
        of what a message costs.

        @param size: bytes that it has of the capacity; 0: none yet.
        """
        if not size:
            self.counters.acceptedCount += 1
            if timestamp is None:
                timestamp = wallMs(self._clock)
            elif not (isinstance(timestamp, int) and 0 <= timestamp <= _TIMESTAMP_MAX):
                text = f"timestamp {timestamp!r} is no number of milliseconds since the epoch"
                self._refuse(EncodingError(text), waiter)
                return
            if headers or type(value) is not bytes or (key is not None and type(key) is not bytes):
                try:
                    # A copy, pair by pair: records are encoded later.
                    headers = tuple([(name, content) for name, content in headers])
                    size = recordSizeMax(key, value, headers)
                except (TypeError, ValueError) as error:
                    self._refuse(EncodingError(f"headers: {error}"), waiter)
                    return
                except PylogbrokerError as error:
                    self._refuse(error, waiter)
                    return
            else:
                size = RECORD_OVERHEAD_MAX + len(value) + (len(key) if key is not None else 0)
            if size > self._messageSizeMax or self._isRefusing:
                self._refuse(self._refusalOf(topic, size), waiter)
                return
            limiter = self._limiter
            count, held = limiter.count + 1, limiter.size + size
            if limiter.isReady and count < limiter.countMax and held < limiter.sizeMax:
                limiter.count, limiter.size = count, held  # as tryAcquire(), without a call
            elif not limiter.tryAcquire(1, size):
                call = (topic, value, key, headers, timestamp, partition, waiter, size)
                limiter.acquire(1, size, call)
                self._sender.wake()
                return
        elif self._sender.fatalError is not None:
            self._discard(size, waiter, self._sender.fatalError)
            return
        route = self._routes.get(topic)
        if route is None or not route.queues:
            call = (topic, value, key, headers, timestamp, partition, waiter, size)
            self._await(topic, route, call)
            return
        queues = route.queues
        if partition is None:
            if key is None or not (key or self._hashesEmptyKeys):
                if route.stickySize + size > self._batchSize:
                    self._moveSticky(route)
                route.stickySize += size
                partition = route.sticky
            else:
                try:
                    partition = self._partitioner(key, len(queues))
                except Exception as error:  # the application's own
                    failed = InvalidPartitionError(f"the partitioner failed: {error!r}")
                    self._discard(size, waiter, failed)
                    return
        if not (isinstance(partition, int) and 0 <= partition < len(queues)):
            text = f"partition {partition!r} of {topic}, which has {len(queues)}"
            self._cluster.refreshSoon()  # it may have grown
            self._discard(size, waiter, InvalidPartitionError(text))
            return
        batch = queues[partition].open
        if batch is None or (
            batch.memorySize + size > batch.roomySize and not batch.hasRoom(size, self._batchSize)
        ):
            batch = self._sender.openBatch(queues[partition])
        batch.memorySize += size
        batch.waiters.append(waiter)
        builder: Any = batch.builder  # as its append(), without a call
        if headers:
            builder.headers[len(builder.values)] = headers
        builder.timestamps.append(timestamp)
        builder.keys.append(key)
        builder.values.append(value)

    def _refusalOf(self, topic: str, size: int) -> PylogbrokerError:
        if size > self._messageSizeMax:
            return MessageTooLargeError(
                f"a message for {topic} of {size + BATCH_OVERHEAD} bytes with its batch; "
                f"{self.settings.maxRequestSize} are allowed by max.request.size"
            )
        if self._sender.fatalError is not None:
            return self._sender.fatalError
        refusal = None if self._transactions is None else self._transactions.refusal
        return refusal or ClosedError("the producer was closed")

    def _onAdmitted(self, call: _Call) -> None:
        self._accept(*call)

    def _onRefused(self, call: _Call, reason: PylogbrokerError) -> None:
        if isinstance(reason, QueueFullError):
            self.counters.droppedCount += 1
            if not self._isFullLogged and self._isLoggingFailures:
                self._isFullLogged = True
                log.error("The queue is full, messages are refused: {reason}", reason=reason)
        self._refuse(reason, call[-2])

    def _refuse(self, reason: PylogbrokerError, waiter: Any) -> None:
        """A message fails that has no capacity."""
        self.counters.failedCount += 1
        if waiter is not None:
            waiter.errback(Failure(copyForReraise(reason)))

    def _discard(self, size: int, waiter: Any, reason: PylogbrokerError) -> None:
        """A message fails that has capacity, and is in no batch."""
        self._limiter.release(1, size)
        self._refuse(reason, waiter)
        self._limiter.notify()

    def _onSettled(self) -> None:
        self._isRefusing = self._isRefusing or self._sender.fatalError is not None
        self._flowControl.check()

    def _onTransaction(self) -> None:
        assert self._transactions is not None
        refusal = self._transactions.refusal
        self._isRefusing = self._isClosing or refusal is not None
        if self._transactions.isGivenUp:
            assert refusal is not None
            self._limiter.refuseAll(refusal)
            for route in self._routes.values():
                waiting, route.waiting = route.waiting, []
                for call in waiting:
                    self._discard(call[-1], call[-2], refusal)

    # -- topics

    def _await(self, topic: str, route: _TopicRoute | None, call: _Call) -> None:
        if route is None:
            route = self._routes[topic] = _TopicRoute(topic)
            route.waiting.append(call)
            finding = self._cluster.findTopic(topic, self.settings.maxBlockMs)
            finding.addCallbacks(self._found, self._notFound, (route,), {}, (route,))
        else:
            route.waiting.append(call)

    def _found(self, found: TopicMetadata, route: _TopicRoute) -> None:
        self._extend(route, found)
        self._moveSticky(route)
        waiting, route.waiting = route.waiting, []
        for call in waiting:
            self._accept(*call)
        self._sender.wake()

    def _notFound(self, reason: Failure, route: _TopicRoute) -> None:
        error = reason.value
        if not isinstance(error, PylogbrokerError):
            error = ClosedError(f"the search for topic {route.topic} was given up: {error!r}")
        self._routes.pop(route.topic, None)
        for call in route.waiting:
            self._discard(call[-1], call[-2], error)

    def _extend(self, route: _TopicRoute, found: TopicMetadata) -> None:
        countMax = self.settings.maxInFlightRequestsPerConnection
        for number in range(len(route.queues), len(found.partitions)):
            route.queues.append(PartitionQueue(route.topic, number, countMax))

    def _onMetadata(self) -> None:
        for name, route in self._routes.items():
            found = self._cluster.metadata.topics.get(name)
            if found is not None and route.queues:
                if 0 < len(found.partitions) < len(route.queues):  # the topic was made again
                    self._shrink(route, len(found.partitions))
                self._extend(route, found)

    def _shrink(self, route: _TopicRoute, count: int) -> None:
        """Put no more messages into partitions that are gone. Those in them wait for their end."""
        del route.queues[count:]
        if route.sticky >= count:
            route.sticky = 0
            self._moveSticky(route)

    def _moveSticky(self, route: _TopicRoute) -> None:
        """
        Draw the partition for messages without a key, among those with a leader; the batch of the
        one before is full.
        """
        before = route.queues[route.sticky].open
        if before is not None:
            self._sender.makeDue(before)
        metadata, count = self._cluster.metadata, len(route.queues)
        if count > 1:
            led = [
                number
                for number in range(count)
                if metadata.leader(route.topic, number) is not None
            ]
            chosen = led or range(count)
            route.sticky = chosen[int(self._random() * len(chosen))]
        route.stickySize = 0

    def partitionsFor(self, topic: str) -> Deferred[list[int]]:
        """
        The numbers of a topic's partitions.

        @return: fails as L{ClusterClient.findTopic} after C{max.block.ms}.
        """
        finding = self._cluster.findTopic(topic, self.settings.maxBlockMs)
        return finding.addCallback(lambda found: list(found.partitions))

    # -- waiting

    def whenReady(self) -> Deferred[None]:
        """
        Wait for capacity. A loop awaits this before each L{send}.

        @return: fires at once if there is capacity, otherwise when half of it is free. Every
            TURN_COUNT_MAX messages it yields to the reactor.
        """
        if self.counters.acceptedCount < self._turnAt:
            return SucceededDeferred() if self._limiter.isReady else self._limiter.whenReady()
        if not self._turnTimer.isRunning:
            self._turnTimer.start(0, self._onTurn, PAUSE_COUNT_MAX)
        return self._turnWaiters.wait().addCallback(lambda _nothing: self._limiter.whenReady())

    def _onTurn(self, pausesLeft: int) -> None:
        if pausesLeft and self._limiter.count > PAUSE_FROM_COUNT:
            self._turnTimer.start(PAUSE_MS, self._onTurn, pausesLeft - 1)
            return
        self._turnAt = self.counters.acceptedCount + TURN_COUNT_MAX
        self._turnWaiters.fire(None)

    def flush(self) -> Deferred[None]:
        """
        Send collected messages at once.

        @return: fires when nothing is in flight, whatever the outcomes.
        """
        self._sender.flush()
        return self._limiter.whenIdle()

    # -- transactions

    def transaction(self) -> Transaction:
        """
        A transaction, with C{transactional.id}: messages and positions that count together or not
        at all, for readers with C{isolation.level=read_committed}::

            async with producer.transaction() as transaction:
                producer.send("results", b"...")
                await transaction.sendOffsets(consumer.positions, consumer.groupMetadata())

        The block begins when the coordinator has given the producer its epoch, which ends the
        transactions of every earlier producer of the same id. At the end of the block all messages
        are sent, and the transaction is committed; when the block raises it is aborted. The
        statement itself raises:

          - L{pylogbroker.errors.TransactionAbortedError}: a message or a position was not stored.
            The transaction was aborted; the producer can begin the next one.
          - L{UnknownOutcomeError}: whether it was committed is unknown. The producer must be
            replaced: the next one of the same id waits until the coordinator has decided.
          - L{ResponseError<pylogbroker.protocol.kafka.errorcodes.ResponseError>}, for example
            PRODUCER_FENCED, L{TimedOutError} and L{ClosedError}: at the end, it was not committed,
            and the producer must be replaced.
          - L{pylogbroker.errors.TransactionStateError}: another transaction of this producer is
            open.

        @raise ConfigurationError: the settings have no C{transactional.id}.
        """
        if self._transactions is None:
            raise ConfigurationError("transactional.id is missing: transactions need it")
        return Transaction(self._transactions)

    # -- IConsumer

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Register the Twisted producer that writes to this one. It is paused when the queue is three
        quarters full, and resumed at one quarter.

        @raise RuntimeError: another one is registered.
        @raise ConfigurationError: the settings have no C{topic}.
        """
        self.ownTopic()
        self._flowControl.register(producer, streaming)

    def unregisterProducer(self) -> None:
        self._flowControl.unregister()

    def write(self, data: bytes) -> None:
        """
        Publish a message of the registered Twisted producer, as L{sendNoWait}.

        @raise ConfigurationError: the settings have no C{topic}.
        """
        self.sendNoWait(self.ownTopic(), data)
        self.onUpstreamWrite()

    def onUpstreamWrite(self) -> None:
        """Pause the Twisted producer if need be. For wrappers that send its data in another way."""
        self._flowControl.onWrite()

    def ownTopic(self) -> str:
        """@raise ConfigurationError: the settings have no C{topic}."""
        if self.settings.topic is None:
            raise ConfigurationError(
                "topic is missing: it says where bytes go that are written to a producer"
            )
        return self.settings.topic

    def metricFamilies(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """
        Metrics for L{pylogbroker.console.service.MetricsService}.

        @param labels: distinguish this producer from others in the process.
        """
        limiter = self._limiter
        return producerFamilies(asdict(self.counters), limiter.count, limiter.size, labels)

    # -- the end

    def closeBeforeStop(self) -> None:
        """Close this producer before the reactor stops, which waits for that."""
        self._shutdown.beforeStop()

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        Refuse further calls, send accepted messages, wait for the outcomes, and close everything.

        @param timeoutMs: for all of it; by default C{close.timeout.ms}.
        @return: fires when it is done, whatever the outcomes (see C{counters}). Fails with
            L{TimedOutError} when it was cut short: messages in flight have failed or are unknown.
        """
        return self._shutdown.close(timeoutMs)

    def _beginClose(self) -> None:
        self._isClosing = self._isRefusing = True
        self._flowControl.end()
        self._turnTimer.stop()
        self._onTurn(0)

    async def _close(self) -> None:
        if self._transactions is not None:
            closing = Deferred.fromCoroutine(self._transactions.close())
            await self._shutdown.awaitOrAbort(closing)
        self._sender.flush()
        await self._shutdown.awaitOrAbort(self._limiter.whenIdle())
        self._sender.stop(ClosedError("the producer was closed"))
        try:
            await self._cluster.close()
        except PylogbrokerError as error:  # all outcomes are known
            log.debug("A connection did not end well: {error}", error=error)

    def _abort(self, reason: TimedOutError) -> None:
        self._limiter.refuseAll(reason)
        self._cluster.abort()
        self._sender.stop(reason)

    def _describeLosses(self) -> str:
        counters = self.counters
        return (
            f"{counters.failedCount} messages have failed and {counters.unknownCount} are unknown, "
            "all in all"
        )


def _logWarning(message: str) -> None:
    log.warn("{sentence}", sentence=message)
