"""
The producer of the 0.7 page: topics and keys in, requests to the right brokers out (spec-0.7 producer).

Two modes. In sync mode a call makes one request for each broker that it concerns, and its L{Deferred} fires when these are written; in async mode
messages collect in a L{pylogbroker.producer.accumulator.BatchAccumulator} for each broker and go in batches, and the L{Deferred} of each fires with its batch.
What the brokers made of it is not known, since the wire has no acknowledgement; unless C{confirm} is set (L{pylogbroker.producer.brokersender}).

What must be true:

  - Each message that was accepted is settled once: sent (written, or confirmed), failed (nothing of it has left) or unknown. The counters
    add up, what did not go well is in the log, and whoever called C{send} is told.
  - Calls for one topic and key keep their order as long as nothing is tried again. So while a topic is being looked up, calls for it form a line.
  - What is under way is bounded (L{pylogbroker.producer.inflight}), and whoever fills it is told to wait.
  - Nothing is sent twice but for C{num.retries}, and then the log says so.

A message's way through the room: C{producer} (takes it in) → C{queue} (is there room?) → C{places}, C{routing} (where to?) → C{ways}, C{batching},
C{batches} (what goes together) → C{delivery}, C{encoding} (a request) → C{confirmation} (to the broker) → C{outcomes} (what became of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from random import Random, SystemRandom
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IConsumer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.connectionpool import ConnectionPool
from pylogbroker.client.discovery import BrokerNode, IDiscovery
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
from pylogbroker.net.timer import Timer
from pylogbroker.producer.accumulator import BatchAccumulator, HookedAccumulator
from pylogbroker.producer.batches import PartitionBatch, QueueItem, itemsOf, sizeOf
from pylogbroker.producer.brokersenders import BrokerSenders
from pylogbroker.producer.completion import Completions, ProducerCounters, SendGroup
from pylogbroker.producer.encoding import ENCODERS, Encoder, Encoding
from pylogbroker.producer.flowcontrol import UpstreamFlowControl
from pylogbroker.producer.hooks import HookRunner, Hooks, IEventSender
from pylogbroker.producer.inflight import InFlightLimiter
from pylogbroker.producer.plugins import callableOf, loadPlugin
from pylogbroker.producer.sender import Sender
from pylogbroker.producer.sending import Done, sendings
from pylogbroker.producer.shutdown import GracefulShutdown
from pylogbroker.producer.startup import DiscoveryStartup
from pylogbroker.producer.topicrouter import TopicRouter
from pylogbroker.types import RANDOM_PARTITION, BrokerPartition

__all__ = ["Producer", "ProducerCounters", "ProducerData"]

CLOSE_MS_MAX = 10_000
TURN_COUNT_MAX = 200
"""Messages that a loop may send in one turn of the reactor: what hangs on each is gone then before Python's garbage collector looks at it more than once."""

PAUSE_FROM_COUNT, PAUSE_MS, PAUSE_COUNT_MAX = 500, 1, 1
"""
From how many messages under way on, how long, and how often, such a loop waits for them to leave before it goes on all the same: not for long, since a
confirmation from afar takes its time.
"""

_MANY = frozenset((list, tuple))

log = Logger()


class ProducerData(NamedTuple):
    """
    Messages for one topic, which go to one partition together.

    @ivar values: what the encoder takes.
    @ivar key: chooses the partition; L{None} leaves it to chance.
    """

    topic: str
    values: Sequence[Any]
    key: Any = None


def _requireText(topic: Any) -> None:
    """@raise TypeError: a topic is no text."""
    if not isinstance(topic, str):
        raise TypeError(f"topic {topic!r} is no text")


def _connectionsFor(
    reactor: Any, settings: ProducerSettings, random: Callable[[], float]
) -> ConnectionPool:
    """What is under way is bounded by the queue; these limits only have to be wide enough."""
    limits = ConnectionLimits(
        waitingCountMax=2 * settings.queueCountMax + 1,
        waitingSizeMax=2**40,
        stallMs=settings.timeoutMs,
        closeMs=min(CLOSE_MS_MAX, settings.closeTimeoutMs),
        sendBufferSize=settings.sendBufferSize,
    )
    return ConnectionPool(
        reactor,
        connectTimeoutMs=settings.connectTimeoutMs,
        limits=limits,
        random=random,
        template=settings.brokerEndpoint,
    )


@implementer(IConsumer)
class Producer:
    """
    Publishes to a cluster. See the module for what it promises.

    As a Twisted C{IConsumer} it takes any push or pull producer: C{producer.registerProducer(source, True)}; what is written goes to the topic
    of the C{topic} setting, a message a C{write}.

    @ivar counters: a L{ProducerCounters}.
    @ivar settings: as they were given.
    """

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings | Mapping[str, str],
        *,
        zookeeper: IZookeeper | None = None,
        discovery: IDiscovery | None = None,
        connections: ConnectionPool | None = None,
        encoder: Encoder | Any = None,
        partitioner: Partitioner | Any = None,
        hooks: Hooks | None = None,
        eventSender: IEventSender | None = None,
        random: Callable[[], float] | None = None,
        isLoggingFailures: bool = True,
    ) -> None:
        """
        @param reactor: for connecting, for time, and for C{closeBeforeStop}.
        @param settings: or properties that make some.
        @param zookeeper: a connected client, which stays its owner's; by default one is made as C{zk.connect} says.
        @param discovery: who is there; by default as the settings say.
        @param connections: ways to the brokers; by default one to each C{host:port}.
        @param encoder: instead of C{serializer.class}: a function, or an object with a method C{encode}.
        @param partitioner: instead of C{partitioner.class}: a function of key and count, or an object with a method C{partition}.
        @param hooks: instead of C{callback.handler}.
        @param eventSender: instead of C{event.handler}.
        @param random: numbers from 0 up to, not including, 1; by default a generator of its own.
        @param isLoggingFailures: whether messages that were not sent are logged. L{False} is for a caller that handles the failure of each C{send}, and sends
            again what must not get lost: it would log each attempt.
        @raise ConfigurationError: the settings are wrong, or name what cannot be had.
        """
        if not isinstance(settings, ProducerSettings):
            settings = ProducerSettings.fromProperties(
                settings, lambda message: log.warn("{message}", message=message)
            )
        if settings.brokers and partitioner is not None:
            raise ConfigurationError(
                "a partitioner does not go with broker.list: there the broker picks the partition, and keys mean nothing"
            )
        if partitioner is None:
            partitioner = loadPlugin(
                "partitioner.class",
                settings.partitioner or DEFAULT_PARTITIONER,
                {DEFAULT_PARTITIONER: defaultPartitioner},
                "partition",
            )
        partitioner = callableOf("partitioner", partitioner, "partition")
        encoder = (
            loadPlugin("serializer.class", settings.encoder, ENCODERS, "encode")
            if encoder is None
            else callableOf("encoder", encoder, "encode")
        )
        if hooks is None and settings.hooks is not None:
            hooks = loadPlugin("callback.handler", settings.hooks, {})
        if eventSender is None and settings.eventSender is not None:
            eventSender = loadPlugin("event.handler", settings.eventSender, {})
        if random is None:
            random = Random(
                SystemRandom().getrandbits(64)
            ).random  # asked for each message, and the system's takes as long as all the rest
        if connections is None:
            connections = _connectionsFor(reactor, settings, random)
        self.settings = settings
        self._hooks = hooks
        self._eventSender = eventSender
        self._connections = connections
        self._turnTimer = Timer(reactor)
        self._flushTimer = Timer(reactor)
        self._isDrained = False
        self._turnAt = TURN_COUNT_MAX  # accepted messages; then the reactor is to have its turn
        self._turnWaiters: list[Deferred[None]] = []
        self._refusal: PylogbrokerError | None = None
        self._isQuick = (
            settings.isAsync and hooks is None and eventSender is None
        )  # whether a message goes the short way; not when the producer was closed
        self._newSending = sendings()
        self._stopListening: Callable[[], None] = lambda: None
        self._queue = InFlightLimiter(
            reactor, settings.queueCountMax, settings.queueSizeMax, settings.enqueueTimeoutMs
        )
        self._outcomes = Completions(self._queue, self._settled, isLoggingFailures)
        self.counters = self._outcomes.counters
        self._hookCalls = (
            HookRunner(hooks, self._queue, self._outcomes)
            if hooks is not None and settings.isAsync
            else None
        )
        # made once: a burst would make one of each for every message that waits, and the collector look at them
        self._admitOne = lambda item: self._placeOne(
            item.topic, item.value, item.key, item.size, item.waiter
        )
        self._refuseOne = lambda item, reason: self._outcomes.refused([item], reason)
        self._source = UpstreamFlowControl(reactor, self._fullness)
        self._places = TopicRouter(self.start, partitioner, random)
        self._ways = BrokerSenders(
            reactor, settings, connections, self._brokers, random,
            dispatch=lambda way, batches: self._delivery.batch(way, batches),
            abandoned=lambda number, batches: self._delivery.anew(number, batches),
            makeLane=BatchAccumulator if hooks is None and eventSender is None else partial(HookedAccumulator, poll=None if self._hookCalls is None else self._hookCalls.poll),
        )  # fmt: skip
        encoding = Encoding(
            encoder, settings.codec, settings.compressedTopics, settings.payloadSizeMax
        )
        self._delivery = Sender(
            encoding,
            self._places,
            self._ways,
            self._outcomes,
            settings.retryCount,
            self._hookCalls,
            eventSender,
        )
        self._closing = GracefulShutdown(
            reactor,
            settings.closeTimeoutMs,
            self._beginToClose,
            self._close,
            self._abort,
            self._losses,
        )
        if hooks is not None:
            hooks.init(settings.hookProperties)
        if eventSender is not None:
            eventSender.init(settings.eventSenderProperties)
        self._starting = DiscoveryStartup(
            reactor, settings, self._found, random, zookeeper, discovery
        )

    def __repr__(self) -> str:
        return f"<Producer {'async' if self.settings.isAsync else 'sync'}, {self._queue.count} messages under way>"

    # -- who is there -------------------------------------------------------------------------------------------------

    def start(self) -> Deferred[Producer]:
        """
        Find out who is there. Calls of C{send} before that wait for it, and begin it.

        @return: fires with this producer. Fails with L{pylogbroker.errors.ZookeeperError}; can be called again then.
        """
        return self._starting.start().addCallback(lambda _nothing: self)

    def _found(self, discovery: IDiscovery) -> None:
        self._places.use(discovery)
        self._stopListening = discovery.listen(self._ways.changed)

    def _brokers(self) -> Mapping[int, BrokerNode]:
        assert self._starting.discovery is not None
        return self._starting.discovery.brokers

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, key: Any = None) -> Deferred[None]:
        """
        Publish a message, or several to one partition.

        @param value: what the encoder takes (bytes, by default); or a list or tuple of such.
        @param key: the same key goes to the same partition, as long as the partitions are the same; L{None} goes to any.
        @return: fires when all is written to the broker's connection, or, with C{confirm}, when the broker has taken it. Fails with
            L{UnknownOutcomeError} when it was begun and nobody knows. All other failures mean that nothing of at least one message was sent:
            L{QueueFullError}, L{NoBrokersError}, L{pylogbroker.errors.InvalidPartitionError}, L{pylogbroker.errors.EncodingError},
            L{pylogbroker.errors.MessageTooLargeError}, L{pylogbroker.errors.BrokerConnectionError}, L{pylogbroker.errors.ZookeeperError},
            L{ClosedError} after C{close}. When the queue is full, the call waits outside (see C{queue.enqueueTimeout.ms}); who sends much at a time looks
            at C{whenReady} before. Cancelling stops waiting, and takes nothing back.
        """
        if type(topic) is not str:
            _requireText(topic)
        if not self._isQuick or type(value) in _MANY:
            return self.sendMany(
                (ProducerData(topic, value if type(value) in _MANY else (value,), key),)
            )
        waiter = self._newSending()
        self._takeIn(topic, value, key, waiter)
        return waiter

    def post(self, topic: str, value: Any, key: Any = None) -> None:
        """
        As C{send}, for who does not want to be told: what becomes of it is counted (C{counters}), and logged if it did not go well. That is what 0.7's
        asynchronous producers offer. It costs less than a L{Deferred} for each message.
        """
        if type(topic) is not str:
            _requireText(topic)
        if not self._isQuick or type(value) in _MANY:
            self.send(topic, value, key).addErrback(lambda _failure: None)
        else:
            self._takeIn(topic, value, key, None)

    def _takeIn(self, topic: str, value: Any, key: Any, waiter: Any) -> None:
        """Async: one message, and nobody to be asked about it."""
        size = len(value) if type(value) is bytes else sizeOf(value)
        self.counters.acceptedCount += 1
        if self._queue.take(1, size):
            self._placeOne(topic, value, key, size, waiter)
        else:
            self._queue.enter(
                1,
                size,
                QueueItem(topic, value, key, RANDOM_PARTITION, size, waiter),
                self._admitOne,
                self._refuseOne,
            )

    def sendMany(self, datas: Iterable[ProducerData]) -> Deferred[None]:
        """
        Publish messages of several topics and keys.

        @param datas: (topic, values, key) of each; a C{send} of its own for each would do the same, but in sync mode what concerns one broker is
            one request here: PRODUCE if it is one of these, MULTIPRODUCE if more.
        @return: as C{send}; it waits for all. On several brokers it is not atomic.
        """
        groups = self._grouped(datas)
        count = sum([len(group.values) for group in groups])
        if not count:
            return succeed(None)
        ticket = SendGroup(count)
        for group in groups:
            group.waiters = [ticket] * len(group.values)
        self._enter(groups)
        return ticket.waiter

    def sendEach(self, datas: Iterable[ProducerData]) -> list[Deferred[None]]:
        """
        The same, for who wants to know what became of each message.

        @return: for each, in order, as C{send}. What goes in one request mostly shares its fate.
        """
        groups = self._grouped(datas)
        for group in groups:
            group.waiters = [self._newSending() for _value in group.values]
        sendings = [sending for group in groups for sending in group.waiters]
        if sendings:
            self._enter(groups)
        return sendings

    def _grouped(self, datas: Iterable[ProducerData]) -> list[PartitionBatch]:
        groups = []
        for topic, values, key in datas:
            _requireText(topic)
            group = PartitionBatch.of(topic, values, key)
            if group.values:
                groups.append(group)
        return groups

    def _enter(self, groups: list[PartitionBatch]) -> None:
        """Take messages in, those of one topic and key together."""
        sizes = [size for group in groups for size in group.sizes]
        self.counters.acceptedCount += len(sizes)
        if self._refusal is not None:
            self._outcomes.tell(itemsOf(groups), Failure(copyForReraise(self._refusal)))
            return
        if self._hookCalls is not None:
            try:
                groups = [
                    hooked for group in groups for hooked in self._hooked(self._hookCalls, group)
                ]
            except Exception as error:  # the application's own
                self._outcomes.tell(
                    itemsOf(groups),
                    Failure(PylogbrokerError(f"the hook beforeEnqueue failed: {error!r}")),
                )
                return
        self._queue.enter(len(sizes), sum(sizes), groups, self._admitted, self._refused)

    def _hooked(self, hookCalls: HookRunner, group: PartitionBatch) -> list[PartitionBatch]:
        """What a hook makes of messages before they are in the queue; those that go together, as long as all have the same topic and key."""
        items = [hookCalls.beforeEnqueue(item) for item in group.items()]
        first = items[0]
        isTogether = all(item.topic == first.topic and item.key is first.key for item in items)
        return [
            PartitionBatch(some[0].topic, some[0].partition, some)
            for some in ([items] if isTogether else [[item] for item in items])
        ]

    def _refused(self, groups: list[PartitionBatch], reason: PylogbrokerError) -> None:
        """There was no room."""
        items = itemsOf(groups)
        if self._hookCalls is not None:
            self._hookCalls.afterEnqueue(items, False)
        self._outcomes.refused(items, reason)

    def _admitted(self, groups: list[PartitionBatch]) -> None:
        if not self.settings.isAsync:
            self._delivery.now(groups)
            return
        if self._hookCalls is not None:
            self._hookCalls.afterEnqueue(itemsOf(groups), True)
        for group in groups:
            self._place(group)

    def _placeOne(self, topic: str, value: Any, key: Any, size: int, waiter: Any) -> None:
        """The same as C{_place} of one message, which is what most calls are."""
        places = self._places
        try:
            route = places.routes.get(topic)
            if route is None or route.places is not route.router.partitions(topic):
                route = places.route(topic)
            if route is not None:
                index = route.indexes.get(key) if key is None or type(key) is str else None
                if index is None:
                    index = route.choose(topic, key)
                batch = route.batches[index]
                if not batch.isOpen:
                    number, partition = route.places[index]
                    batch = route.batches[index] = self._ways.to(number).lane.open(topic, partition)
                batch.add(value, key, size, waiter)
                return
        except Exception as error:  # of a discovery of the application's own, too
            self._outcomes.settle(
                (QueueItem(topic, value, key, RANDOM_PARTITION, size, waiter),), Failure(error)
            )
            return
        group = PartitionBatch.of(topic, (value,), key)
        group.waiters = [waiter]
        self._delivery.carryOn(self._placeLater(group))

    def _place(self, group: PartitionBatch) -> None:
        """Async: find a partition for messages of one topic and key, now or when the topic has been looked up."""
        try:
            place = self._places.choose(group.topic, group.keys[0])
            if place is not None:
                self._enqueue(group, place)
                return
        except Exception as error:  # as above
            self._outcomes.settle(group.items(), Failure(error))
            return
        self._delivery.carryOn(self._placeLater(group))

    async def _placeLater(self, group: PartitionBatch) -> None:
        try:
            self._enqueue(group, await self._places.lookUp(group.topic, group.keys[0]))
        except Exception as error:  # as above
            self._outcomes.settle(group.items(), Failure(error))
        else:
            self._flushSoon()  # when those that stand in line behind are there, too

    def _enqueue(self, group: PartitionBatch, place: BrokerPartition) -> None:
        lane = self._ways.to(place.broker).lane
        group.moveTo(place.partition)
        lane.addBatch(group)

    def _flushSoon(self) -> None:
        """While the producer is being closed, messages that find their place or their room do not wait for more of them."""
        if self._refusal is not None and not self._isDrained and not self._flushTimer.isRunning:
            self._flushTimer.start(0, self._ways.flush)

    def _settled(self) -> None:
        """Messages have left the queue."""
        self._flushSoon()  # and not at once, in the midst of what a flush before has settled
        if self._source.isPaused:
            self._source.look()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def whenReady(self) -> Deferred[None]:
        """
        For loops that send much.

        @return: fires when there is room: at once if there is any, and else when half the queue is free. (C{send} fires when it is through, which is later.)
            Once in L{TURN_COUNT_MAX} messages it fires in the reactor's next turn instead of at once, or a moment later if what was sent before is not
            gone by then: a loop that only waits for what has happened already would not let anything leave before the queue is full, and all that
            is in the queue is the garbage collector's business.
        """
        if self.counters.acceptedCount < self._turnAt:
            return Done() if self._queue.isReady else self._queue.whenReady()
        if not self._turnTimer.isRunning:
            self._turnTimer.start(0, self._turn, PAUSE_COUNT_MAX)
        waiter: Deferred[None] = Deferred(self._notWaiting)
        self._turnWaiters.append(waiter)
        return waiter

    def _notWaiting(self, waiter: Deferred[None]) -> None:
        if waiter in self._turnWaiters:
            self._turnWaiters.remove(waiter)
        else:
            self._queue.forget(waiter)

    def _turn(self, pausesLeft: int) -> None:
        if pausesLeft and self._queue.count > PAUSE_FROM_COUNT:
            self._turnTimer.start(PAUSE_MS, self._turn, pausesLeft - 1)
            return
        self._turnAt = self.counters.acceptedCount + TURN_COUNT_MAX
        waiters, self._turnWaiters = self._turnWaiters, []
        for waiter in waiters:
            if not waiter.called:  # or one before has cancelled it
                self._queue.whenReady(waiter)

    def flush(self) -> Deferred[None]:
        """
        Send what has been collected, without waiting for more.

        @return: fires when nothing is under way any more, well or not.
        """
        self._ways.flush()
        return self._queue.whenIdle()

    # -- as a consumer of bytes, in Twisted's sense ---------------------------------------------------------------------

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Twisted's: who writes from now on. It is paused when the queue is three quarters full, and resumed when it is a quarter full.

        @raise RuntimeError: there is one already.
        @raise ConfigurationError: there is no C{topic} in the settings.
        """
        self.ownTopic()
        self._source.register(producer, streaming)

    def unregisterProducer(self) -> None:
        """Twisted's: it writes no more."""
        self._source.unregister()

    def write(self, data: bytes) -> None:
        """
        Twisted's: a message. What becomes of it is counted, and logged if it is lost.

        @raise ConfigurationError: there is no C{topic} in the settings.
        """
        self.post(self.ownTopic(), data)
        self.wrote()

    def wrote(self) -> None:
        """To be called by whoever stands before this one, and sends in another way what a Twisted producer has written: it may be time to pause it."""
        self._source.wrote()

    def ownTopic(self) -> str:
        """
        Where bytes go that are written to this one.

        @raise ConfigurationError: there is no C{topic} in the settings.
        """
        if self.settings.topic is None:
            raise ConfigurationError(
                "topic is missing: it says where bytes go that are written to a producer"
            )
        return self.settings.topic

    def figures(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """
        Its figures, to be served to a scraper (L{pylogbroker.console.service.MetricsService}).

        @param labels: what tells it from others in the same process.
        """
        return producerFamilies(asdict(self.counters), self._queue.count, self._queue.size, labels)

    def _fullness(self) -> float:
        queue, settings = self._queue, self.settings
        return max(
            (queue.count + queue.waitingCount) / settings.queueCountMax,
            queue.size / settings.queueSizeMax,
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def closeBeforeStop(self) -> None:
        """Have the reactor close this producer before it stops, and wait for that."""
        self._closing.beforeStop()

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        Send what has been accepted, wait for it, close everything. No call is taken any more.

        @param timeoutMs: for all of it; by default C{close.timeout.ms}.
        @return: fires when it is done, whatever became of the messages (see C{counters}). Fails with L{TimedOutError} when it was cut short: all that was
            still under way has failed, or is unknown, and the connections were cut, so what was written last and not confirmed may be lost (a session with
            ZooKeeper that takes its time to end goes on ending by itself); with L{pylogbroker.errors.BrokerConnectionError} when a connection did not end well
            and nothing was confirmed: what was written last may be lost.
        """
        return self._closing.close(timeoutMs)

    def _beginToClose(self) -> None:
        self._refusal = ClosedError("the producer was closed")
        self._isQuick = False
        self._starting.refuse(self._refusal)
        self._source.end()
        self._turnTimer.stop()
        self._turn(0)

    async def _close(self) -> None:
        ways = self._ways.byNumber
        await self._drain()
        if self._hookCalls is not None and not self._closing.isAborted:
            for way in list(
                ways.values()
            ):  # a hook has seen all messages by now, and knows what it has kept
                assert isinstance(way.lane, HookedAccumulator)
                way.lane.addAll(self._hookCalls.lastBatch())
            await self._drain()
        self._isDrained = True
        self._flushTimer.stop()
        for way in ways.values():
            way.lane.stop()
        for each in (self._eventSender, self._hooks):
            if each is not None:
                try:
                    each.close()
                except Exception:  # the application's own
                    log.failure("Closing {each!r} failed", each=each)
        self._stopListening()
        self._starting.stop()
        try:
            await self._connections.close()
        except PylogbrokerError as error:
            if not self.settings.isConfirming and not self._closing.isAborted:
                raise
            log.warn("A connection did not end well: {error}", error=error)
        finally:
            await self._closing.within(Deferred.fromCoroutine(self._starting.close()))

    async def _drain(self) -> None:
        """Until nothing is under way, or the time is over."""
        self._ways.flush()
        await self._closing.within(self._queue.whenIdle())

    def _abort(self, reason: TimedOutError) -> None:
        """The time is over."""
        self._places.stop()
        ways = list(self._ways.byNumber.values())
        self._queue.refuseAll(reason)
        for way in ways:
            items = itemsOf(way.lane.stop())
            if items:
                self._outcomes.settle(items, Failure(reason))
        self._connections.abort()
        self._starting.cancel()
        self._places.cancel()
        self._delivery.cancel()

    def _losses(self) -> str:
        left = f"; {self._queue.count} more are still under way" if self._queue.count else ""
        return f"{self.counters.failedCount} messages have failed and {self.counters.unknownCount} are unknown, all in all{left}"
