"""
The producer: publishes messages to the brokers of a cluster (spec-0.7 producer).

In sync mode a call makes one request per broker. In async mode messages collect in batches per
broker. L{Deferred}s fire when the request is written or, with C{confirm}, confirmed: the protocol
has no acknowledgement (L{pylogbroker.producer.sender}).

What must be true:

  - Each accepted message has one outcome: sent, failed (nothing of it was sent) or unknown. The
    counters add up, bad outcomes are logged, and the caller of C{send} learns of them.
  - Calls for one topic and key keep their order until a retry.
  - Messages in flight are limited. Beyond the limit, callers wait.
  - Only C{num.retries} sends a message twice, and then the log says so.

A message passes C{producer} (acceptance) → C{inflight} (capacity) → C{routing} (broker and
partition) → C{accumulator} (batch) → C{sender} with C{encoding} (request, connection) →
C{completion} (outcome). C{sender} also handles brokers that come and go, and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from random import Random, SystemRandom
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.client.brokerclient import BrokerClientPool
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.discovery import IDiscovery
from pylogbroker.cluster.partitioner import Partitioner, defaultPartitioner
from pylogbroker.config.producersettings import DEFAULT_PARTITIONER, ProducerSettings
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
    TimedOutError,
    copyForReraise,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.clientmetrics import producerFamilies
from pylogbroker.metrics.exposition import Family
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.producer.accumulator import PartitionBatch, sizeOf
from pylogbroker.producer.completion import (
    Completions,
    ProducerCounters,
    SendGroup,
    SucceededDeferred,
    sendResultClass,
)
from pylogbroker.producer.encoding import ENCODERS, Encoder, Encoding
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.producer.lifecycle import (
    DiscoveryStartup,
    GracefulShutdown,
    UpstreamFlowControl,
)
from pylogbroker.producer.plugins import (
    CallbackHandler,
    HandlerRunner,
    IEventHandler,
    callableOf,
    itemEncoder,
    loadPlugin,
)
from pylogbroker.producer.routing import TopicRoute, TopicRouter
from pylogbroker.producer.sender import Sender

__all__ = ["Producer", "ProducerCounters", "ProducerData"]

CLOSE_MS_MAX = 10_000

TURN_COUNT_MAX = 200
"""Messages that a loop may send before it yields to the reactor; see L{Producer.whenReady}."""

PAUSE_FROM_COUNT, PAUSE_MS, PAUSE_COUNT_MAX = 500, 1, 1
"""
A loop that yields with more than 500 messages in flight waits 1 ms, once, for them to leave. A
longer pause would slow down a loop whose confirmations come from afar.
"""

_MANY = frozenset((list, tuple))

_Call = tuple[str, Any, Any, int, Any] | list[PartitionBatch]
"""One message (topic, value, key, size, waiter), or messages by topic and key."""

log = Logger()


class ProducerData(NamedTuple):
    """
    Messages for one topic that go to one partition together.

    @ivar key: chooses the partition; L{None} leaves it to chance.
    """

    topic: str
    values: Sequence[Any]
    key: Any = None


def _requireText(topic: Any) -> None:
    """@raise TypeError: the topic is not a L{str}."""
    if not isinstance(topic, str):
        raise TypeError(f"topic {topic!r} is not a str")


def _poolFor(
    reactor: Any, settings: ProducerSettings, random: Callable[[], float]
) -> BrokerClientPool:
    """
    The limiter bounds messages in flight; the connections' limits only have to be wide enough.
    """
    limits = ConnectionLimits(
        waitingCountMax=2 * settings.queueSize + 1,
        waitingSizeMax=2**40,
        stallMs=settings.socketTimeoutMs,
        closeMs=min(CLOSE_MS_MAX, settings.closeTimeoutMs),
        sendBufferSize=settings.bufferSize,
    )
    return BrokerClientPool(
        reactor,
        connectTimeoutMs=settings.connectTimeoutMs,
        limits=limits,
        random=random,
        template=settings.brokerEndpoint,
    )


def _partitionerFor(settings: ProducerSettings, given: Partitioner | Any) -> Partitioner:
    if settings.brokerList and given is not None:
        raise ConfigurationError(
            "a partitioner does not go with broker.list: "
            "there the broker picks the partition, and keys mean nothing"
        )
    if given is None:
        name = settings.partitionerClass or DEFAULT_PARTITIONER
        builtIn = {DEFAULT_PARTITIONER: defaultPartitioner}
        given = loadPlugin("partitioner.class", name, builtIn, "partition")
    return callableOf("partitioner", given, "partition")


@implementer(IConsumer)
class Producer:
    """
    Publishes messages to a cluster; the module states its promises.

    As a Twisted C{IConsumer} it takes any push or pull producer:
    C{producer.registerProducer(source, True)}. Each C{write} is a message for the topic of the
    C{topic} setting.

    @ivar counters: a L{ProducerCounters}.
    @ivar settings: a L{ProducerSettings}.
    """

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings | Mapping[str, str],
        *,
        zookeeper: IZookeeper | None = None,
        discovery: IDiscovery | None = None,
        connectionPool: BrokerClientPool | None = None,
        encoder: Encoder | Any = None,
        partitioner: Partitioner | Any = None,
        callbackHandler: CallbackHandler | None = None,
        eventHandler: IEventHandler | None = None,
        random: Callable[[], float] | None = None,
        isLoggingFailures: bool = True,
    ) -> None:
        """
        @param settings: or properties.
        @param zookeeper: a connected client, which its owner closes, in place of C{zk.connect}.
        @param discovery: in place of C{zk.connect} and C{broker.list}.
        @param encoder: in place of C{serializer.class}: a function, or an object with C{encode}.
        @param partitioner: in place of C{partitioner.class}: a function of key and count, or an
            object with C{partition}.
        @param callbackHandler: in place of C{callback.handler}.
        @param eventHandler: in place of C{event.handler}.
        @param random: numbers from 0 up to, not including, 1.
        @param isLoggingFailures: L{False} is for a caller that handles each failure and sends
            again.
        @raise ConfigurationError: the settings are wrong, or name an object that cannot be loaded.
        """
        if not isinstance(settings, ProducerSettings):
            settings = ProducerSettings.fromProperties(settings, _logWarning)
        partitioner = _partitionerFor(settings, partitioner)
        if encoder is None:
            encoder = loadPlugin("serializer.class", settings.serializerClass, ENCODERS, "encode")
        encoder = callableOf("encoder", encoder, "encode")
        if callbackHandler is None and settings.callbackHandler is not None:
            callbackHandler = loadPlugin("callback.handler", settings.callbackHandler, {})
        if eventHandler is None and settings.eventHandler is not None:
            eventHandler = loadPlugin("event.handler", settings.eventHandler, {})
        if random is None:  # not the system's, which takes as long as all the rest of a message
            random = Random(SystemRandom().getrandbits(64)).random
        if connectionPool is None:
            connectionPool = _poolFor(reactor, settings, random)
        self.settings = settings
        self._callbackHandler = callbackHandler
        self._eventHandler = eventHandler
        self._connectionPool = connectionPool
        self._random = random
        self._turnTimer = Timer(reactor)
        self._flushTimer = Timer(reactor)
        self._turnAt = TURN_COUNT_MAX  # accepted messages at which a loop yields to the reactor
        self._turnWaiters: Waiters[None] = Waiters()
        self._refusal: PylogbrokerError | None = None
        self._isDrained = False
        self._stopListening: Callable[[], None] | None = None
        self._discovery: IDiscovery | None = None
        self._newResult = sendResultClass()
        self._limiter = InFlightMessageLimiter(
            reactor,
            settings.queueSize,
            settings.queueBytes,
            settings.queueEnqueueTimeoutMs,
            self._onAdmitted,
            self._onRefused,
        )
        self._completions = Completions(self._limiter, self._onCompleted, isLoggingFailures)
        self.counters = self._completions.counters
        self._flowControl = UpstreamFlowControl(reactor, self._limiter.fullness)
        self._handlers: HandlerRunner | None = None
        if settings.isAsync and (callbackHandler is not None or eventHandler is not None):
            self._handlers = HandlerRunner(
                callbackHandler, eventHandler, encoder, self._limiter, self._completions
            )
            encoder = itemEncoder(encoder)
        self._isAsync = settings.isAsync
        self._isQuick = self._handlers is None  # until the producer is closed
        self._router = TopicRouter(self.start, partitioner, random)
        self._routes = self._router.routes
        self._sender = Sender(
            reactor,
            settings,
            connectionPool,
            self._router,
            Encoding(
                encoder,
                settings.compressionCodec,
                settings.compressedTopics,
                settings.maxMessageSize,
            ),
            self._completions,
            random,
            self._handlers,
        )
        self._shutdown = GracefulShutdown(
            reactor,
            settings.closeTimeoutMs,
            self._beginClose,
            self._close,
            self._abort,
            self._describeLosses,
        )
        if callbackHandler is not None:
            callbackHandler.init(settings.callbackHandlerProps)
        if eventHandler is not None:
            eventHandler.init(settings.eventHandlerProps)
        self._startup = DiscoveryStartup(
            reactor, settings, self._onDiscovery, random, zookeeper, discovery
        )

    def __repr__(self) -> str:
        mode = "async" if self.settings.isAsync else "sync"
        return f"<Producer {mode}, {self._limiter.count} messages in flight>"

    def start(self) -> Deferred[Producer]:
        """
        Find the brokers. The first C{send} also does this, and waits for it.

        @return: fires with this producer. Fails with L{pylogbroker.errors.ZookeeperError}; then it
            can be called again.
        """
        return self._startup.start().addCallback(lambda _nothing: self)

    def _onDiscovery(self, discovery: IDiscovery) -> None:
        self._discovery = discovery
        self._router.use(discovery)
        self._stopListening = discovery.listen(self._sender.onBrokerChange)

    # -- sending

    def send(self, topic: str, value: Any, key: Any = None) -> Deferred[None]:
        """
        Publish a message, or several to one partition.

        @param value: what the encoder takes (by default bytes); or a list or tuple of such values.
        @param key: messages with the same key go to the same partition while the partitions stay
            the same; L{None} leaves the partition to chance.
        @return: fires when all is written to the broker's connection, or, with C{confirm}, when the
            broker has handled it. Fails with L{UnknownOutcomeError} when the broker may have it.
            All other failures mean that nothing of at least one message was sent:
            L{QueueFullError}, L{NoBrokersError}, L{pylogbroker.errors.InvalidPartitionError},
            L{pylogbroker.errors.EncodingError}, L{pylogbroker.errors.MessageTooLargeError},
            L{pylogbroker.errors.BrokerConnectionError}, L{pylogbroker.errors.ZookeeperError},
            L{ClosedError} after C{close}. When the queue is full, the call waits for capacity (see
            C{queue.enqueueTimeout.ms}); a loop awaits L{whenReady} before each call. Cancelling
            stops waiting, and takes nothing back.
        """
        if type(topic) is not str:
            _requireText(topic)
        if not self._isQuick or type(value) in _MANY:
            values = value if type(value) in _MANY else (value,)
            return self.sendMany((ProducerData(topic, values, key),))
        waiter = self._newResult()
        size = len(value) if type(value) is bytes else sizeOf(value)
        self.counters.acceptedCount += 1
        if self._limiter.tryAcquire(1, size):
            self._append(topic, value, key, size, waiter)
        else:
            self._limiter.acquire(1, size, (topic, value, key, size, waiter))
        return waiter

    def sendNoWait(self, topic: str, value: Any, key: Any = None) -> None:
        """
        Publish like C{send} at less cost, without a L{Deferred}. The counters and the log report
        the outcome, as in 0.7.
        """
        if type(topic) is not str:
            _requireText(topic)
        if not self._isQuick or type(value) in _MANY:
            self.send(topic, value, key).addErrback(lambda _failure: None)
            return
        size = len(value) if type(value) is bytes else sizeOf(value)
        self.counters.acceptedCount += 1
        if self._limiter.tryAcquire(1, size):
            self._append(topic, value, key, size, None)
        else:
            self._limiter.acquire(1, size, (topic, value, key, size, None))

    def sendMany(self, datas: Iterable[ProducerData]) -> Deferred[None]:
        """
        Publish messages of several topics and keys.

        @param datas: (topic, values, key) of each. Like a C{send} for each, but in sync mode the
            data for one broker is one request: PRODUCE for one of them, MULTIPRODUCE for more.
        @return: as C{send}, for all. Not atomic across brokers.
        """
        groups = self._group(datas)
        count = sum([len(group.values) for group in groups])
        if not count:
            return succeed(None)
        result = SendGroup(count)
        for group in groups:
            group.waiters = [result] * len(group.values)
        self._acceptGroups(groups)
        return result.waiter

    def sendEach(self, datas: Iterable[ProducerData]) -> list[Deferred[None]]:
        """
        Publish messages of several topics and keys, with an outcome for each message.

        @param datas: as of L{sendMany}.
        @return: for each message, in order, as C{send}. Messages of one request mostly share their
            outcome.
        """
        groups = self._group(datas)
        for group in groups:
            group.waiters = [self._newResult() for _value in group.values]
        results = [result for group in groups for result in group.waiters]
        if results:
            self._acceptGroups(groups)
        return results

    def _group(self, datas: Iterable[ProducerData]) -> list[PartitionBatch]:
        groups = []
        for topic, values, key in datas:
            _requireText(topic)
            group = PartitionBatch.of(topic, values, key)
            if group.values:
                groups.append(group)
        return groups

    def _acceptGroups(self, groups: list[PartitionBatch]) -> None:
        sizes = [size for group in groups for size in group.sizes]
        self.counters.acceptedCount += len(sizes)
        if self._refusal is not None:
            self._completions.report(groups, Failure(copyForReraise(self._refusal)))
            return
        if self._handlers is not None:
            before = groups
            try:
                groups = [each for one in before for each in self._handlers.beforeEnqueue(one)]
            except Exception as error:  # the application's own
                text = f"the handler's beforeEnqueue failed: {error!r}"
                self._completions.report(before, Failure(PylogbrokerError(text)))
                return
        self._limiter.acquire(len(sizes), sum(sizes), groups)

    def _onRefused(self, call: _Call, reason: PylogbrokerError) -> None:
        groups = call
        if isinstance(groups, tuple):
            topic, value, key, _size, waiter = groups
            groups = [PartitionBatch.of(topic, (value,), key, waiter)]
        if self._handlers is not None:
            self._handlers.afterEnqueue(groups, False)
        self._completions.refuse(groups, reason)

    def _onAdmitted(self, call: _Call) -> None:
        if isinstance(call, tuple):
            self._append(*call)
            return
        if self._handlers is not None:
            self._handlers.afterEnqueue(call, True)
        if self._isAsync:
            for group in call:
                self._routeGroup(group)
        else:
            self._sender.run(self._sender.sendSync(call))

    # -- routing

    def _append(self, topic: str, value: Any, key: Any, size: int, waiter: Any) -> None:
        try:
            route = self._routes.get(topic)
            if route is None or route.version != self._discovery.version:  # type: ignore[union-attr]
                route = self._router.route(topic)
            if route is not None:
                if key is None:
                    index = int(self._random() * route.count) if route.count > 1 else 0
                else:
                    found = route.indexes.get(key) if type(key) is str else None
                    if found is None:
                        found = self._router.indexOn(route, topic, key)
                    index = found
                if self._isAsync:
                    batch = route.batches[index]
                    if not batch.isOpen:
                        batch = self._openBatch(topic, route, index)
                    batch.append(value, key, size, waiter)
                    return
                if topic not in self._sender.holds:
                    number, partition = route.partitions[index]
                    sender = self._sender.get(number)
                    batch = PartitionBatch.of(topic, (value,), key, waiter)
                    batch.partition = partition
                    self._sender.start(sender.sendSync([batch]))
                    return
        except Exception as error:  # the application's own discovery or partitioner
            failed = PartitionBatch.of(topic, (value,), key, waiter)
            self._completions.complete([failed], Failure(error))
            return
        self._onAdmitted([PartitionBatch.of(topic, (value,), key, waiter)])

    def _openBatch(self, topic: str, route: TopicRoute, index: int) -> PartitionBatch:
        number, partition = route.partitions[index]
        accumulator = route.batches[index].accumulator
        if accumulator is None or accumulator.isClosed:
            accumulator = self._sender.get(number).accumulator
        batch = route.batches[index] = accumulator.open(topic, partition)
        return batch

    def _routeGroup(self, group: PartitionBatch) -> None:
        try:
            chosen = self._router.chooseNow(group.topic, group.keys[0])
            if chosen is None:
                self._sender.run(self._routeLater(group))
            else:
                self._collect(group, *chosen)
        except Exception as error:  # as above
            self._completions.complete([group], Failure(error))

    async def _routeLater(self, group: PartitionBatch) -> None:
        try:
            self._collect(group, *await self._router.lookUp(group.topic, group.keys[0]))
        except Exception as error:  # as above
            self._completions.complete([group], Failure(error))
        else:
            self._flushSoon()  # when those behind in the line are there, too

    def _collect(self, group: PartitionBatch, number: int, partition: int) -> None:
        sender = self._sender.get(number)
        group.partition = partition
        if self._handlers is None:
            sender.accumulator.add(group)
        else:
            self._handlers.collect(sender, group)

    def _flushSoon(self) -> None:
        if self._refusal is not None and not self._isDrained and not self._flushTimer.isRunning:
            self._flushTimer.start(0, self._sender.flush)

    def _onCompleted(self) -> None:
        self._flushSoon()  # not at once: the flush before may still be completing messages
        if self._flowControl.isPaused:
            self._flowControl.check()

    # -- waiting

    def whenReady(self) -> Deferred[None]:
        """
        Wait for capacity. A loop awaits this before each C{send}.

        @return: fires at once if there is capacity, otherwise when half of the queue is free. Every
            TURN_COUNT_MAX messages it yields to the reactor so that pending sends can complete;
            otherwise the queue fills and the cost of garbage collection rises.
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
            L{TimedOutError} when it was cut short: messages in flight have failed or are unknown,
            and messages written but not confirmed may be lost. Fails with
            L{pylogbroker.errors.BrokerConnectionError} when a connection did not end well: without
            C{confirm}, the messages written last may be lost.
        """
        return self._shutdown.close(timeoutMs)

    def _beginClose(self) -> None:
        self._refusal = ClosedError("the producer was closed")
        self._isQuick = False
        self._startup.refusal = self._refusal
        self._flowControl.end()
        self._turnTimer.stop()
        self._onTurn(0)

    async def _close(self) -> None:
        await self._drain()
        if self._handlers is not None and not self._shutdown.isAborted:
            for sender in list(self._sender.brokers.values()):
                self._handlers.addLastBatch(sender)
            await self._drain()
        self._isDrained = True
        self._flushTimer.stop()
        self._sender.close()
        for handler in (self._eventHandler, self._callbackHandler):
            if handler is not None:
                try:
                    handler.close()
                except Exception:  # the application's own
                    log.failure("Closing {handler!r} failed", handler=handler)
        if self._stopListening is not None:
            self._stopListening()
        self._startup.stop()
        try:
            await self._connectionPool.close()
        except PylogbrokerError as error:
            if not self.settings.confirm and not self._shutdown.isAborted:
                raise
            log.warn("A connection did not end well: {error}", error=error)
        finally:
            await self._shutdown.awaitOrAbort(Deferred.fromCoroutine(self._startup.close()))

    async def _drain(self) -> None:
        self._sender.flush()
        await self._shutdown.awaitOrAbort(self._limiter.whenIdle())

    def _abort(self, reason: TimedOutError) -> None:
        self._router.isStopped = True
        self._limiter.refuseAll(reason)
        self._sender.abort(reason)
        self._connectionPool.abort()
        self._startup.cancel()
        self._router.cancel()
        self._sender.cancel()

    def _describeLosses(self) -> str:
        inFlight = f"; {self._limiter.count} more are in flight" if self._limiter.count else ""
        counters = self.counters
        return (
            f"{counters.failedCount} messages have failed and {counters.unknownCount} are unknown, "
            f"all in all{inFlight}"
        )


def _logWarning(message: str) -> None:
    log.warn("{message}", message=message)
