"""
The producer of the 0.7 page: topics and keys in, requests to the right brokers out (spec-0.7 producer).

Two modes. In sync mode a call makes one request for each broker that it concerns, and its L{Deferred} fires when these are written; in async mode
messages collect in a L{Lane} for each broker and go in batches, and the L{Deferred} of each fires with its batch. What the brokers made of it is not
known, since the wire has no acknowledgement; unless C{confirm} is set (L{pylogbroker.producer.confirmation}).

What must be true:

  - Each message that was accepted is settled once: sent (written, or confirmed), failed (nothing of it has left) or unknown. The counters
    add up, what did not go well is in the log, and whoever called C{send} is told.
  - Calls for one topic and key keep their order as long as nothing is tried again. So while a topic is being looked up, calls for it form a line.
  - What is under way is bounded (L{pylogbroker.producer.queue}), and whoever fills it is told to wait.
  - Nothing is sent twice but for C{num.retries}, and then the log says so.

A broker that vanishes or moves takes nothing with it that has not been sent: its lane's messages, and those that wait for a connection to it, are
given a place anew. That is no retry. (0.7 keeps the old connection for ever; gotcha 39.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import SystemRandom
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, DeferredList, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IConsumer
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.blocking.pacing import ReconnectRule
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.connections import Connections
from pylogbroker.client.discovery import Broker, IDiscovery, StaticDiscovery, ZookeeperDiscovery
from pylogbroker.client.timer import Timer
from pylogbroker.cluster import paths
from pylogbroker.cluster.partitioning import Partitioner, defaultPartitioner
from pylogbroker.config.producersettings import DEFAULT_PARTITIONER, ProducerSettings
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    InvalidTopicError,
    NoBrokersError,
    PylogbrokerError,
    QueueFullError,
    TimedOutError,
    UnknownOutcomeError,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.model import BrokerPartition
from pylogbroker.producer.batching import Lane, QueueItem, collate
from pylogbroker.producer.classes import callableOf, load
from pylogbroker.producer.confirmation import Carrier, Part
from pylogbroker.producer.encoding import ENCODERS, Encoder, Encoding
from pylogbroker.producer.hooks import Hooks, IEventSender
from pylogbroker.producer.queue import Queue
from pylogbroker.producer.routing import Router
from pylogbroker.wire.requests import COUNT_MAX, encodeMultiProduce, encodeProduce

CLOSE_MS_MAX = 10_000
MOVE_COUNT_MAX = 10
"""How often messages that were never sent may be given a place anew because their broker went."""

TOPIC_LENGTH_MAX = 8_000
"""Characters of a topic's name; more might not fit in a request. Brokers have limits of their own."""

TOPIC_COUNT_MAX = 10_000
"""How many names are remembered as good."""

HIGH_PARTS, LOW_PARTS = 3 / 4, 1 / 4
"""Of the queue: where a Twisted producer is paused, and where it is resumed."""

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


@dataclass(slots=True)
class ProducerCounters:
    """
    What became of messages, since the producer was made. C{acceptedCount = writtenCount + failedCount + unknownCount + } those under way.

    @ivar acceptedCount: messages given to C{send}, refused ones included.
    @ivar writtenCount: sent; with C{confirm}, and confirmed.
    @ivar failedCount: nothing of them has left; the refused among them.
    @ivar unknownCount: begun, and lost sight of.
    @ivar droppedCount: of the failed, those for which the queue had no room.
    @ivar retriedCount: messages that were tried once more, each time counted.
    @ivar repeatedCount: of these, those whose first outcome was unknown: they may be in the log twice.
    @ivar batchCount: requests, or batches, that were given to a connection.
    """

    acceptedCount: int = 0
    writtenCount: int = 0
    failedCount: int = 0
    unknownCount: int = 0
    droppedCount: int = 0
    retriedCount: int = 0
    repeatedCount: int = 0
    batchCount: int = 0


class _Ticket:
    """
    Many messages and one who waits for all: takes the place of a L{Deferred} in each.
    """

    __slots__ = ("_failure", "_leftCount", "waiter")

    def __init__(self, count: int) -> None:
        self.waiter: Deferred[None] = Deferred()
        self._leftCount = count
        self._failure: Failure | None = None

    def callback(self, result: None) -> None:
        self._leftCount -= 1
        if not self._leftCount:
            if self._failure is None:
                self.waiter.callback(None)
            else:
                self.waiter.errback(self._failure)

    def errback(self, failure: Failure) -> None:
        """The worst is what is told: unknown before failed."""
        if self._failure is None or failure.check(UnknownOutcomeError):
            self._failure = failure
        self.callback(None)


class _Way:
    """
    To one broker: what collects for it, and what takes it there.
    """

    __slots__ = ("broker", "carrier", "lane")

    def __init__(self, broker: Broker, carrier: Carrier) -> None:
        self.broker = broker
        self.carrier = carrier
        self.lane: Lane


def _sizeOf(value: Any) -> int:
    """Bytes that a value counts for before it is encoded."""
    try:
        return len(value)
    except TypeError:
        return 0


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
        connections: Connections | None = None,
        encoder: Encoder | Any = None,
        partitioner: Partitioner | Any = None,
        hooks: Hooks | None = None,
        eventSender: IEventSender | None = None,
        random: Callable[[], float] | None = None,
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
        @param random: numbers from 0 up to, not including, 1; by default the system's.
        @raise ConfigurationError: the settings are wrong, or name what cannot be had.
        """
        if not isinstance(settings, ProducerSettings):
            settings = ProducerSettings.fromProperties(settings, lambda message: log.warn("{message}", message=message))
        if settings.brokers and partitioner is not None:
            raise ConfigurationError("a partitioner does not go with broker.list: there the broker picks the partition, and keys mean nothing")
        self.settings = settings
        self.counters = ProducerCounters()
        self._reactor = reactor
        self._random = SystemRandom().random if random is None else random
        self._zookeeper = zookeeper
        self._ownZookeeper: Any = None
        if discovery is None and settings.brokers:
            discovery = StaticDiscovery(settings.brokers)
        self._discovery = discovery
        self._router: Router | None = None
        if partitioner is None:
            partitioner = load("partitioner.class", settings.partitioner or DEFAULT_PARTITIONER, {DEFAULT_PARTITIONER: defaultPartitioner}, "partition")
        self._partitioner: Partitioner = callableOf("partitioner", partitioner, "partition")
        encoder = load("serializer.class", settings.encoder, ENCODERS, "encode") if encoder is None else callableOf("encoder", encoder, "encode")
        self._encoding = Encoding(encoder, settings.codec, settings.compressedTopics, settings.payloadSizeMax)
        if hooks is None and settings.hooks is not None:
            hooks = load("callback.handler", settings.hooks, {})
        if eventSender is None and settings.eventSender is not None:
            eventSender = load("event.handler", settings.eventSender, {})
        self._hooks = hooks
        self._eventSender = eventSender
        self._queue = Queue(reactor, settings.queueCountMax, settings.queueSizeMax, settings.enqueueTimeoutMs)
        if connections is None:
            connections = Connections(reactor, connectTimeoutMs=settings.connectTimeoutMs, limits=self._limits(), random=self._random)
        self._connections = connections
        self._ways: dict[int, _Way] = {}
        self._lines: dict[str, deque[Deferred[None]]] = {}  # calls for topics that are being looked up
        self._deliveries: dict[Deferred[None], None] = {}
        self._servings: dict[Deferred[None], None] = {}
        self._topics: set[str] = set()  # names that are good
        self._starter: Deferred[None] | None = None
        self._starting: list[Deferred[None]] | None = None
        self._isStarted = False
        self._stopListening: Callable[[], None] = lambda: None
        self._refusal: PylogbrokerError | None = None
        self._isAborted = False
        self._closers: list[Deferred[None]] | None = None
        self._outcome: Any = None
        self._trigger: Any = None
        self._isFullTold = False
        self._source: Any = None
        self._isSourcePushing = False
        self._isSourcePaused = False
        if self._hooks is not None:
            self._hooks.init(settings.hookProperties)
        if self._eventSender is not None:
            self._eventSender.init(settings.eventSenderProperties)
        if self._discovery is not None and self._discovery.isStatic:
            self._useDiscovery(self._discovery)
            self._isStarted = True

    def _limits(self) -> ConnectionLimits:
        """What is under way is bounded by the queue; these only have to be wide enough."""
        settings = self.settings
        return ConnectionLimits(
            waitingCountMax=2 * settings.queueCountMax + 1,
            waitingSizeMax=2**40,
            stallMs=settings.timeoutMs,
            closeMs=min(CLOSE_MS_MAX, settings.closeTimeoutMs),
        )

    def __repr__(self) -> str:
        return f"<Producer {'async' if self.settings.isAsync else 'sync'}, {self._queue.count} messages under way>"

    # -- the beginning ------------------------------------------------------------------------------------------------

    def start(self) -> Deferred[Producer]:
        """
        Find out who is there. Calls of C{send} before that wait for it, and begin it.

        @return: fires with this producer. Fails with L{pylogbroker.errors.ZookeeperError}; can be called again then.
        """
        if self._isStarted:
            return succeed(self)
        waiter: Deferred[None] = Deferred()
        if self._starting is not None:
            self._starting.append(waiter)
        elif self._refusal is not None:
            return fail(self._refusal)
        else:
            self._starting = [waiter]
            self._starter = starter = Deferred.fromCoroutine(self._start())
            starter.addBoth(self._startDone)
        return waiter.addCallback(lambda _nothing: self)

    async def _start(self) -> None:
        discovery = self._discovery
        if discovery is None:
            settings = self.settings
            zookeeper = self._zookeeper
            if zookeeper is None:
                from pylogbroker.zookeeper.client import ZookeeperClient  # kazoo is not needed by who has a list of brokers

                client = ZookeeperClient(self._reactor, settings.zookeeperServers, settings.zookeeperSessionTimeoutMs)
                await client.connect(settings.zookeeperConnectTimeoutMs)
                zookeeper = self._ownZookeeper = client
            discovery = ZookeeperDiscovery(self._reactor, zookeeper, readRetryCount=settings.zookeeperReadRetryCount, random=self._random)
        try:
            await discovery.start()
        except BaseException:
            own, self._ownZookeeper = self._ownZookeeper, None
            if own is not None:
                await own.close()
            raise
        self._useDiscovery(discovery)

    def _useDiscovery(self, discovery: IDiscovery) -> None:
        self._discovery = discovery
        self._router = Router(discovery, self._partitioner, self._random)
        self._stopListening = discovery.listen(self._brokerChanged)

    def _startDone(self, result: Any) -> None:
        starting, self._starting, self._starter = self._starting or [], None, None
        self._isStarted = not isinstance(result, Failure)
        for waiter in starting:
            if isinstance(result, Failure):
                waiter.errback(result)
            else:
                waiter.callback(None)

    # -- brokers ------------------------------------------------------------------------------------------------------

    def _way(self, number: int) -> _Way:
        """
        @raise NoBrokersError: there is no such broker (any more).
        """
        way = self._ways.get(number)
        if way is None:
            assert self._discovery is not None
            broker = self._discovery.brokers.get(number)
            if broker is None:
                raise NoBrokersError(f"broker {number} is not there")
            settings = self.settings
            rule = ReconnectRule(settings.reconnectIntervalCount, settings.reconnectTimeIntervalMs, self._random)
            link = self._connections.to(broker.endpoint)
            way = _Way(broker, Carrier(self._reactor, link, rule, isConfirming=settings.isConfirming, timeoutMs=settings.timeoutMs))
            poll = None if self._hooks is None else self._poll
            way.lane = Lane(self._reactor, settings.batchCount, settings.batchSizeMax, settings.queueTimeMs, lambda items: self._dispatch(way, items), poll)
            self._ways[number] = way
        return way

    def _brokerChanged(self, number: int, broker: Broker | None) -> None:
        way = self._ways.pop(number, None)
        if way is None:
            return
        if all(other.broker.endpoint != way.broker.endpoint for other in self._ways.values()):
            self._connections.forget(way.broker.endpoint).addErrback(self._notClosed, way.broker.endpoint)
        items = way.lane.stop()
        if items:
            self._deliver(self._deliverAnew(items, number, self.settings.retryCount, 0))

    def _notClosed(self, failure: Failure, endpoint: str) -> None:
        log.warn("The connection to {endpoint} did not end well: {reason}", endpoint=endpoint, reason=failure.getErrorMessage())

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, topic: str, value: Any, key: Any = None) -> Deferred[None]:
        """
        Publish a message, or several to one partition.

        @param value: what the encoder takes (bytes, by default); or a list or tuple of such.
        @param key: the same key goes to the same partition, as long as the partitions are the same; L{None} goes to any.
        @return: fires when all is written to the broker's connection, or, with C{confirm}, when the broker has taken it. Fails with
            L{UnknownOutcomeError} when it was begun and nobody knows. All other failures mean that nothing of at least one message was sent:
            L{QueueFullError}, L{NoBrokersError}, L{pylogbroker.errors.InvalidPartitionError}, L{pylogbroker.errors.EncodingError},
            L{pylogbroker.errors.MessageTooLargeError}, L{pylogbroker.errors.ConnectionError}, L{pylogbroker.errors.ZookeeperError},
            L{ClosedError} after C{close}. When the queue is full, the call waits outside (see C{queue.enqueueTimeout.ms}); who sends much at a time looks
            at C{whenReady} before. Cancelling stops waiting, and takes nothing back.
        """
        if not self.settings.isAsync or type(value) in _MANY or self._hooks is not None or self._refusal is not None:
            return self.sendMany((ProducerData(topic, value if type(value) in _MANY else (value,), key),))
        size = len(value) if type(value) is bytes else _sizeOf(value)
        self.counters.acceptedCount += 1
        waiter: Deferred[None] = Deferred()
        item = QueueItem(topic, value, key, -1, size, waiter)
        if not self._queue.take(1, size):
            items = [item]
            self._queue.enter(1, size, partial(self._place, items), partial(self._refused, items))
            return waiter
        router = self._router
        if router is None or topic not in self._topics or topic in self._lines:
            self._place([item])
            return waiter
        try:
            place = router.choose(topic, key)
        except PylogbrokerError as error:
            self._settle([item], Failure(error))
            return waiter
        if place is None or (way := self._ways.get(place[0])) is None:
            self._place([item], place)
        else:
            item.partition = place[1]
            way.lane.add(item)
        return waiter

    def sendMany(self, datas: Iterable[ProducerData]) -> Deferred[None]:
        """
        Publish messages of several topics and keys.

        @param datas: (topic, values, key) of each; a C{send} of its own for each would do the same, but in sync mode what concerns one broker is
            one request here: PRODUCE if it is one of these, MULTIPRODUCE if more.
        @return: as C{send}; it waits for all. On several brokers it is not atomic.
        """
        items: list[list[QueueItem]] = []
        size = 0
        for topic, values, key in datas:
            if not isinstance(topic, str):
                raise TypeError(f"topic {topic!r} is no text")
            group = [QueueItem(topic, value, key, -1, _sizeOf(value)) for value in values]
            if group:
                items.append(group)
                size += sum([item.size for item in group])
        count = sum(map(len, items))
        if not count:
            return succeed(None)
        self.counters.acceptedCount += count
        ticket = _Ticket(count)
        for group in items:
            for item in group:
                item.waiter = ticket
        everything = [item for group in items for item in group]
        if self._refusal is not None:
            self._tell(everything, Failure(self._refusal))
            return ticket.waiter
        if self._hooks is not None and self.settings.isAsync:
            try:
                items = [[self._before(item) for item in group] for group in items]
            except Exception as error:  # the application's own
                self._tell(everything, Failure(PylogbrokerError(f"the hook beforeEnqueue failed: {error!r}")))
                return ticket.waiter
            everything = [item for group in items for item in group]
        self._queue.enter(count, size, lambda: self._admitted(items, everything), lambda reason: self._refused(everything, reason))
        return ticket.waiter

    def _before(self, item: QueueItem) -> QueueItem:
        assert self._hooks is not None
        hooked = self._hooks.beforeEnqueue(item)
        if hooked is not item:
            hooked.waiter, hooked.size = item.waiter, item.size
        return hooked

    def _after(self, items: list[QueueItem], isAdded: bool) -> None:
        assert self._hooks is not None
        for item in items:
            try:
                self._hooks.afterEnqueue(item, isAdded)
            except Exception:  # the application's own
                log.failure("The hook afterEnqueue failed")

    def _refused(self, items: list[QueueItem], reason: PylogbrokerError) -> None:
        """There was no room."""
        if self._hooks is not None and self.settings.isAsync:
            self._after(items, False)
        if isinstance(reason, QueueFullError):
            self.counters.droppedCount += len(items)
            if not self._isFullTold:
                self._isFullTold = True
                log.error("The queue is full, messages are refused: {reason}", reason=reason)
        self._tell(items, Failure(reason), isLogged=False)

    def _admitted(self, groups: list[list[QueueItem]], items: list[QueueItem]) -> None:
        if not self.settings.isAsync:
            self._deliver(self._deliverNow(groups))
            return
        if self._hooks is not None:
            self._after(items, True)
        for group in groups:
            self._place(group)

    # -- a place for each ---------------------------------------------------------------------------------------------

    def _checkTopic(self, topic: str) -> None:
        """
        A broker would cut the connection, and all that is on it would suffer.

        @raise InvalidNameError: it is no topic's name.
        """
        if topic not in self._topics:
            paths.topic(topic)
            if len(topic) > TOPIC_LENGTH_MAX:
                raise InvalidTopicError(f"a topic's name of {len(topic)} characters; {TOPIC_LENGTH_MAX} fit in a request")
            if len(self._topics) >= TOPIC_COUNT_MAX:
                self._topics.clear()
            self._topics.add(topic)

    def _place(self, group: list[QueueItem], place: BrokerPartition | None = None) -> None:
        """Async: find a partition for messages of one topic and key, now or when the topic has been looked up."""
        topic, key = group[0].topic, group[0].key
        try:
            self._checkTopic(topic)
            if place is None and topic not in self._lines and self._router is not None:
                place = self._router.choose(topic, key)
            if place is not None:
                self._enqueue(group, place)
                return
        except PylogbrokerError as error:
            self._settle(group, Failure(error))
            return
        self._deliver(self._placeLater(group, topic, key))

    async def _placeLater(self, group: list[QueueItem], topic: str, key: Any) -> None:
        try:
            place = await self._lookUp(topic, key)
            self._enqueue(group, place)
        except PylogbrokerError as error:
            self._settle(group, Failure(error))
        except CancelledError:
            self._settle(group, Failure(self._refusal or ClosedError("it was given up")))
        else:
            if self._refusal is not None:
                self._flushLanes()

    def _enqueue(self, group: list[QueueItem], place: BrokerPartition) -> None:
        way = self._way(place.broker)
        for item in group:
            item.partition = place.partition
            way.lane.add(item)

    async def _lookUp(self, topic: str, key: Any, avoid: int | None = None) -> BrokerPartition:
        """A place, with every effort; calls for one topic are answered in their order."""
        if self._isAborted:
            raise ClosedError("the producer was closed")
        self._checkTopic(topic)
        if topic not in self._lines and self._router is not None:
            place = self._router.choose(topic, key, avoid)
            if place is not None:
                return place
        turn: Deferred[None] = Deferred(lambda turn: self._leaveLine(topic, turn))
        line = self._lines.get(topic)
        if line is None:
            self._lines[topic] = deque([turn])
            serving = Deferred.fromCoroutine(self._serveLine(topic))
            if not serving.called:
                self._servings[serving] = None
            serving.addBoth(lambda _result: self._servings.pop(serving, None))
        else:
            line.append(turn)
        try:
            await turn
            assert self._router is not None
            place = self._router.choose(topic, key, avoid)
        except NoBrokersError as error:
            raise NoBrokersError(f"there is no broker for topic {topic} (key {key!r})") from error
        if place is None:
            raise NoBrokersError(f"there is no broker for topic {topic} (key {key!r})")
        return place

    def _leaveLine(self, topic: str, turn: Deferred[None]) -> None:
        line = self._lines.get(topic)
        if line is not None and turn in line:
            line.remove(turn)

    async def _serveLine(self, topic: str) -> None:
        failure = None
        try:
            await self.start()
            assert self._discovery is not None
            await self._discovery.lookUp(topic)
        except (PylogbrokerError, CancelledError) as error:
            failure = Failure(error)
        except Exception as error:
            log.failure("Looking up {topic} failed", topic=topic)
            failure = Failure(NoBrokersError(f"looking up {topic} failed: {error!r}"))
        line = self._lines[topic]
        while line:
            turn = line.popleft()
            if failure is None:
                turn.callback(None)
            else:
                turn.errback(failure)
        del self._lines[topic]

    # -- async: hooks and batches -------------------------------------------------------------------------------------

    def _poll(self, item: QueueItem | None) -> list[QueueItem]:
        assert self._hooks is not None
        given = [] if item is None else [item]
        try:
            return self._exchange(given, self._hooks.afterDequeuingExistingData(item))
        except Exception:  # the application's own
            log.failure("The hook afterDequeuingExistingData failed")
            return given

    def _exchange(self, before: Sequence[QueueItem], after: Sequence[QueueItem]) -> list[QueueItem]:
        """A hook took some messages, and gave others."""
        after = list(after)
        kept = {id(item) for item in after}
        had = {id(item) for item in before}
        new = [item for item in after if id(item) not in had]
        if new:
            for item in new:
                item.size = item.size or _sizeOf(item.value)
            self.counters.acceptedCount += len(new)
            self._queue.add(len(new), sum([item.size for item in new]))
        gone = [item for item in before if id(item) not in kept]
        if gone:
            self._settle(gone)
        return after

    def _dispatch(self, way: _Way, items: list[QueueItem]) -> None:
        """A lane has a batch."""
        self._deliver(self._deliverBatch(way, items))

    def _deliver(self, delivering: Any) -> None:
        """Carry on with a coroutine that settles its messages itself."""
        delivery = Deferred.fromCoroutine(delivering)
        if not delivery.called:
            self._deliveries[delivery] = None
        delivery.addBoth(self._delivered, delivery)

    def _delivered(self, result: Any, delivery: Deferred[None]) -> None:
        self._deliveries.pop(delivery, None)
        if isinstance(result, Failure):
            log.failure("This should not have happened; messages may be unaccounted for", failure=result)

    async def _deliverBatch(self, way: _Way, items: list[QueueItem]) -> None:
        if self._eventSender is not None:
            await self._deliverForeign(way, items)
            return
        if self._hooks is not None:
            try:
                items = self._exchange(items, self._hooks.beforeSendingData(items))
            except Exception as error:  # the application's own
                log.failure("A hook failed")
                self._settle(items, Failure(PylogbrokerError(f"the hook beforeSendingData failed: {error!r}")))
                return
        await self._deliverItems(way, items, self.settings.retryCount, 0)

    async def _deliverForeign(self, way: _Way, items: list[QueueItem]) -> None:
        assert self._eventSender is not None
        self.counters.batchCount += 1
        try:
            await maybeDeferred(self._eventSender.handle, items, way.carrier, self._encoding.encoder)
        except CancelledError:
            self._settle(items, Failure(UnknownOutcomeError("the event sender did not come to an end in time")))
        except Exception as error:
            self._settle(items, Failure(error))
        else:
            self._settle(items)

    def _encoded(self, items: list[QueueItem]) -> tuple[list[Part], list[QueueItem]]:
        """Message sets by topic and partition, and the messages in them; those that cannot be sent are settled."""
        encoding = self._encoding
        parts: list[Part] = []
        sent: list[QueueItem] = []
        for (topic, partition), group in collate(items).items():
            values = [item.value for item in group]
            try:
                if not encoding.arePlain(values, topic):
                    payloads, kept = [], []
                    for item, payload in zip(group, encoding.payloads(values, topic), strict=True):
                        if isinstance(payload, PylogbrokerError):
                            self._settle([item], Failure(payload))
                        else:
                            payloads.append(payload)
                            kept.append(item)
                    values, group = payloads, kept
                if values:
                    parts.append((topic, partition, encoding.messageSet(values, topic)))
                    sent += group
            except PylogbrokerError as error:
                self._settle(group, Failure(error))
        return parts, sent

    async def _deliverItems(self, way: _Way, items: list[QueueItem], retriesLeft: int, moveCount: int) -> None:
        """Encode and send, and settle or try again."""
        parts, items = self._encoded(items)
        if not items:
            return
        self.counters.batchCount += 1
        try:
            await self._sendParts(way, parts)
        except PylogbrokerError as error:
            isMoved = isinstance(error, ClosedError) and self._ways.get(way.broker.brokerId) is not way and moveCount < MOVE_COUNT_MAX
            if self._isAborted or not (isMoved or retriesLeft):
                self._settle(items, Failure(error))
                return
            if not isMoved:
                retriesLeft -= 1
                self._countRetry(way, items, error)
            await self._deliverAnew(items, way.broker.brokerId, retriesLeft, moveCount + 1)
        except Exception as error:
            log.failure("This should not have happened")
            self._settle(items, Failure(UnknownOutcomeError(f"sending failed in an unforeseen way: {error!r}")))
        else:
            self._settle(items)

    async def _sendParts(self, way: _Way, parts: list[Part]) -> None:
        if len(parts) > COUNT_MAX:
            await way.carrier.multiSend(parts)
            return
        try:
            frame = encodeMultiProduce(parts)
        except ValueError as error:
            raise InvalidTopicError(f"a batch does not fit in a request: {error}") from error
        await way.carrier.carry(frame, parts[-1][0])

    def _countRetry(self, way: _Way, items: list[QueueItem], error: PylogbrokerError) -> None:
        self.counters.retriedCount += len(items)
        isRepeated = isinstance(error, UnknownOutcomeError)
        if isRepeated:
            self.counters.repeatedCount += len(items)
        log.warn(
            "{count} messages for {broker} are sent again{repeated}: {error}",
            count=len(items), broker=way.broker.endpoint, repeated=", and may be in the log twice" if isRepeated else "", error=error,
        )  # fmt: skip

    async def _deliverAnew(self, items: list[QueueItem], brokerBefore: int, retriesLeft: int, moveCount: int) -> None:
        """Give messages a place anew, away from the broker before if there is a choice, and send them."""
        groups: dict[int, list[QueueItem]] = {}
        for group in collate(items).values():
            keyless = [item for item in group if item.key is None]
            for some in ([keyless] if keyless else []) + [[item] for item in group if item.key is not None]:
                try:
                    place = await self._lookUp(some[0].topic, some[0].key, brokerBefore)
                except PylogbrokerError as error:
                    self._settle(some, Failure(error))
                except CancelledError:
                    self._settle(some, Failure(self._refusal or ClosedError("it was given up")))
                else:
                    for item in some:
                        item.partition = place.partition
                    groups.setdefault(place.broker, []).extend(some)
        sendings = []
        for number, group in groups.items():
            try:
                way = self._way(number)
            except PylogbrokerError as error:
                self._settle(group, Failure(error))
            else:
                sendings.append(Deferred.fromCoroutine(self._deliverItems(way, group, retriesLeft, moveCount)))
        await DeferredList(sendings)

    # -- sync ---------------------------------------------------------------------------------------------------------

    async def _deliverNow(self, groups: list[list[QueueItem]]) -> None:
        """One request for each broker."""
        byBroker: dict[int, list[list[QueueItem]]] = {}
        for group in groups:
            try:
                place = await self._lookUp(group[0].topic, group[0].key)
            except PylogbrokerError as error:
                self._settle(group, Failure(error))
            except CancelledError:
                self._settle(group, Failure(self._refusal or ClosedError("it was given up")))
            else:
                for item in group:
                    item.partition = place.partition
                byBroker.setdefault(place.broker, []).append(group)
        sendings = [Deferred.fromCoroutine(self._sendNow(number, some)) for number, some in byBroker.items()]
        await DeferredList(sendings)

    async def _sendNow(self, number: int, groups: list[list[QueueItem]]) -> None:
        items = [item for group in groups for item in group]
        try:
            way = self._way(number)
            parts = [(group[0].topic, group[0].partition, self._encoding.messageSetOf([item.value for item in group], group[0].topic)) for group in groups]
            self.counters.batchCount += 1
            if len(parts) == 1:
                await way.carrier.carry(encodeProduce(*parts[0]), parts[0][0])
            else:
                await self._sendParts(way, parts)
        except PylogbrokerError as error:
            self._settle(items, Failure(error))
        except ValueError as error:
            self._settle(items, Failure(InvalidTopicError(f"it does not fit in a request: {error}")))
        else:
            self._settle(items)

    # -- settling -----------------------------------------------------------------------------------------------------

    def _settle(self, items: Sequence[QueueItem], failure: Failure | None = None) -> None:
        """What became of messages that were in the queue."""
        size = 0
        for item in items:
            size += item.size
        self._isFullTold = False
        self._queue.release(len(items), size)
        self._tell(items, failure)
        if self._refusal is not None:
            self._flushLanes()
        if self._isSourcePaused:
            self._lookAtSource()
        self._queue.look()

    def _tell(self, items: Sequence[QueueItem], failure: Failure | None, isLogged: bool = True) -> None:
        counters = self.counters
        if failure is None:
            counters.writtenCount += len(items)
            for item in items:
                if item.waiter is not None:
                    waiter, item.waiter = item.waiter, None
                    waiter.callback(None)
            return
        if failure.check(UnknownOutcomeError):
            counters.unknownCount += len(items)
            outcome = "may have been sent or not"
        else:
            counters.failedCount += len(items)
            outcome = "were not sent"
        if isLogged:
            log.error("{count} messages {outcome}: {error}", count=len(items), outcome=outcome, error=failure.value)
        for item in items:
            if item.waiter is not None:
                waiter, item.waiter = item.waiter, None
                waiter.errback(failure)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def whenReady(self) -> Deferred[None]:
        """
        @return: fires when there is room: at once if there is any, and else when half the queue is free. (C{send} fires when it is through, which is later.)
        """
        return self._queue.whenReady()

    def flush(self) -> Deferred[None]:
        """
        Send what has been collected, without waiting for more.

        @return: fires when nothing is under way any more, well or not.
        """
        self._flushLanes()
        return self._queue.whenIdle()

    def _flushLanes(self) -> None:
        for way in list(self._ways.values()):
            way.lane.flush()

    # -- as a consumer of bytes, in Twisted's sense ---------------------------------------------------------------------

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """
        Twisted's: who writes from now on. It is paused when the queue is three quarters full, and resumed when it is a quarter full.

        @raise RuntimeError: there is one already.
        @raise ConfigurationError: there is no C{topic} in the settings.
        """
        if self._source is not None:
            raise RuntimeError(f"{self._source!r} is registered already")
        if self.settings.topic is None:
            raise ConfigurationError("topic is missing: it says where bytes go that are written to a producer")
        self._source = producer
        self._isSourcePushing = streaming
        self._isSourcePaused = False
        if self._refusal is not None:
            producer.stopProducing()
        elif not streaming:
            self._isSourcePaused = True
            self._lookAtSource()

    def unregisterProducer(self) -> None:
        """Twisted's: it writes no more."""
        self._source = None
        self._isSourcePaused = False

    def write(self, data: bytes) -> None:
        """
        Twisted's: a message. What becomes of it is counted, and logged if it is lost.

        @raise ConfigurationError: there is no C{topic} in the settings.
        """
        if self.settings.topic is None:
            raise ConfigurationError("topic is missing: it says where bytes go that are written to a producer")
        self.send(self.settings.topic, data).addErrback(lambda _failure: None)
        if self._source is None:
            return
        if not self._isSourcePushing:
            self._isSourcePaused = True
            self._reactor.callLater(0, self._lookAtSource)
        elif not self._isSourcePaused and self._fullness() >= HIGH_PARTS:
            self._isSourcePaused = True
            self._source.pauseProducing()

    def _fullness(self) -> float:
        queue, settings = self._queue, self.settings
        return max((queue.count + queue.waitingCount) / settings.queueCountMax, queue.size / settings.queueSizeMax)

    def _lookAtSource(self) -> None:
        """May who writes go on?"""
        if self._source is None or not self._isSourcePaused or self._refusal is not None:
            return
        if self._fullness() <= (LOW_PARTS if self._isSourcePushing else HIGH_PARTS):
            self._isSourcePaused = False
            self._source.resumeProducing()

    # -- the end ------------------------------------------------------------------------------------------------------

    def closeBeforeStop(self) -> None:
        """Have the reactor close this producer before it stops, and wait for that."""
        if self._trigger is None and self._refusal is None:
            self._trigger = self._reactor.addSystemEventTrigger("before", "shutdown", self._closeAtStop)

    def _closeAtStop(self) -> Deferred[None]:
        self._trigger = None
        return self.close().addErrback(lambda failure: log.error("Closing the producer: {error}", error=failure.value))

    def close(self, timeoutMs: float | None = None) -> Deferred[None]:
        """
        Send what has been accepted, wait for it, close everything. No call is taken any more.

        @param timeoutMs: for all of it; by default C{close.timeout.ms}.
        @return: fires when it is done, whatever became of the messages (see C{counters}). Fails with L{TimedOutError} when it was cut short: all that was
            still under way has failed, or is unknown; with L{pylogbroker.errors.ConnectionError} when a connection did not end well and
            nothing was confirmed: what was written last may be lost.
        """
        waiter: Deferred[None] = Deferred()
        if self._closers is not None:
            if self._outcome is not None:
                return succeed(None)
            self._closers.append(waiter)
            return waiter
        self._closers = [waiter]
        self._refusal = ClosedError("the producer was closed")
        if self._trigger is not None:
            trigger, self._trigger = self._trigger, None
            self._reactor.removeSystemEventTrigger(trigger)
        if self._source is not None:
            source, self._source = self._source, None
            source.stopProducing()
        if timeoutMs is None:
            timeoutMs = self.settings.closeTimeoutMs
        timer = Timer(self._reactor)
        timer.start(timeoutMs, self._abort, timeoutMs)
        Deferred.fromCoroutine(self._close()).addBoth(self._closed, timer)
        return waiter

    async def _close(self) -> None:
        if self._hooks is not None and self.settings.isAsync:
            for way in list(self._ways.values()):
                try:
                    way.lane.addAll(self._exchange((), self._hooks.lastBatchBeforeClose()))
                except Exception:  # the application's own
                    log.failure("A hook failed")
        self._flushLanes()
        await self._queue.whenIdle()
        for way in self._ways.values():
            way.lane.stop()
        for each in (self._eventSender, self._hooks):
            if each is not None:
                try:
                    each.close()
                except Exception:
                    log.failure("Closing {each!r} failed", each=each)
        self._stopListening()
        if self._discovery is not None:
            self._discovery.stop()
        try:
            await self._connections.close()
        except PylogbrokerError as error:
            if not self.settings.isConfirming and not self._isAborted:
                raise
            log.warn("A connection did not end well: {error}", error=error)
        finally:
            if self._ownZookeeper is not None:
                await self._ownZookeeper.close()

    def _abort(self, timeoutMs: float) -> None:
        """The time is over."""
        self._isAborted = True
        reason = TimedOutError(f"the producer could not be closed within {timeoutMs:g} ms")
        ways = list(self._ways.values())
        self._queue.refuseAll(reason)
        for way in ways:
            items = way.lane.stop()
            if items:
                self._settle(items, Failure(reason))
        for way in ways:
            way.carrier.abort()
        for waiting in (*([self._starter] if self._starter else []), *self._servings, *self._deliveries):
            waiting.cancel()
    def _closed(self, result: Any, timer: Timer) -> None:
        timer.stop()
        if self._isAborted:
            counters = self.counters
            told = f"it took too long to close the producer: {counters.failedCount} messages have failed and {counters.unknownCount} are unknown, all in all"
            result = Failure(TimedOutError(told))
        self._outcome = result if isinstance(result, Failure) else True
        closers, self._closers = self._closers or [], []
        for closer in closers:
            if isinstance(result, Failure):
                closer.errback(result)
            else:
                closer.callback(None)


_MANY = frozenset((list, tuple))
