"""
A member of a consumer group: what an application holds in its hand (spec-0.7 consumer §2, zookeeper §4).

L{pylogbroker.consumer.rebalance.Rebalance} decides, and this module does what it says, one effect at a time: it watches and reads, claims and lets go, starts
and stops fetchers, and tells it what came of it. An effect that a session's end has overtaken is cancelled, and its answer counts no more.

What others write into ZooKeeper may be anything. It is named in the log, once, and does not stop us:

  - a member whose registration cannot be read, or whose pattern cannot be used, is taken not to be there. (0.7's members all stop at it.)
  - a broker or a count of partitions that cannot be read is taken not to be there, and so is a topic whose name no request can carry;
  - a stored offset that cannot be read is as if there were none;
  - an owner's node that is nobody's keeps that partition from us, and nothing else.

A watch is armed before anything is read that it is to watch over, and stays armed until it fires; so that what changes between two readings is never missed.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredList, succeed
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.blocking.calls import SET_HEADER_SIZE
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.timer import Timer
from pylogbroker.cluster import paths
from pylogbroker.cluster.subscription import ISubscription, StaticSubscription, WildcardSubscription, decodeSubscription
from pylogbroker.cluster.znodes import BrokerRegistration, decodeBroker, decodeNumber
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.fetcher import FETCH_COUNT_MAX, Fetcher
from pylogbroker.consumer.offsetstores import IOffsetStore, ZookeeperOffsetStore
from pylogbroker.consumer.positions import Positions
from pylogbroker.consumer.rebalance import (
    Answer,
    BackOff,
    Claim,
    Claimed,
    Effect,
    Failed,
    Fetch,
    Finish,
    Forget,
    Look,
    Place,
    Rebalance,
    Release,
    Released,
    Seen,
    Share,
    State,
    View,
)
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import (
    BadVersionException,
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    InvalidNameError,
    InvalidPatternError,
    NoNodeException,
    PylogbrokerError,
    RebalanceFailedError,
    ZnodeError,
    ZookeeperError,
)
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.model import BrokerPartition
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import ConflictError, claim

T = TypeVar("T")

PARTITION_COUNT_MAX = 100_000
"""Of a topic on a broker; more is taken for garbage."""

TOPIC_SIZE_MAX = 32_767
"""Bytes of a topic's name in a request."""

STREAM_COUNT_MAX = 100_000
_COMPLAINT_COUNT_MAX = 1_000
_MULTIFETCH_OVERHEAD = 2 + SET_HEADER_SIZE * FETCH_COUNT_MAX

EndpointFor = Callable[[BrokerRegistration], "str | IStreamClientEndpoint"]


async def _all(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Do all at the same time, to their ends; then raise the first error, if there was one."""
    outcomes: list[tuple[bool, Any]] = await DeferredList([Deferred.fromCoroutine(work) for work in works], consumeErrors=True)
    for succeeded, outcome in outcomes:
        if not succeeded:
            outcome.raiseException()
    return [outcome for _, outcome in outcomes]


def _plainEndpoint(broker: BrokerRegistration) -> str:
    return f"{broker.host}:{broker.port}"


class ConsumerConnector:
    """
    A member of a consumer group::

        async with ConsumerConnector(reactor, settings) as consumer:
            streams = await consumer.createMessageStreams({"clicks": 1})
            async for message in streams["clicks"][0]:
                ...

    @ivar consumerId: C{<group>_<hostname>-<millis>-<8 hex>} (spec-0.7 zookeeper §4.1).
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: ConsumerSettings | Mapping[str, str],
        zookeeper: IZookeeper | None = None,
        offsetStore: IOffsetStore | None = None,
        *,
        hostName: str | None = None,
        random: Random | None = None,
        endpointFor: EndpointFor = _plainEndpoint,
    ) -> None:
        """
        @param reactor: for connecting and for time.
        @param settings: or the properties that they are made of, whose oddities are then logged.
        @param zookeeper: a client to share with others, which stays open; by default one is made for C{zk.connect}.
        @param offsetStore: where positions are kept; by default ZooKeeper.
        @param hostName: this machine's, for the consumer id.
        @param random: for the consumer id and for jitter; by default the system's.
        @param endpointFor: where a broker is reached, of what its registration says.
        @raise ConfigurationError: C{zk.connect} is missing, or a property is wrong.
        @raise InvalidNameError: the name of the group cannot be one.
        """
        if not isinstance(settings, ConsumerSettings):
            settings = ConsumerSettings.fromProperties(settings, lambda text: self._log.warn("{text}", text=text))
        self._clock = reactor
        self._settings = settings
        self._paths = paths.GroupPaths(settings.group)
        if zookeeper is None and not settings.zkConnect:
            raise ConfigurationError("zk.connect is missing: a consumer group lives in ZooKeeper")
        self._ownsZookeeper = zookeeper is None
        self._zookeeper: IZookeeper = zookeeper or ZookeeperClient(reactor, settings.zkConnect, settings.zkSessionTimeoutMs)
        self._random = random or SystemRandom()
        self._endpointFor = endpointFor
        self.consumerId = self._makeId(hostName or socket.gethostname())
        self._path = self._paths.consumer(self.consumerId)
        self._positions = Positions(offsetStore or ZookeeperOffsetStore(self._zookeeper, settings.group))
        self._rebalance = Rebalance(self.consumerId, settings.rebalanceRetryCountMax)
        self._isConnected = False
        self._subscription: ISubscription | None = None
        self._streams: dict[tuple[str, int], MessageStream] = {}  # of a topic; of all topics, with a filter: under ""
        self._fetchers: dict[int, tuple[BrokerRegistration, Fetcher]] = {}
        self._watches: dict[str, Deferred[Any]] = {}
        self._complaints: set[str] = set()
        self._work: Deferred[Answer] | None = None
        self._registering: Deferred[None] | None = None
        self._backOffTimer = Timer(reactor)
        self._autoCommit = LoopingCall(self._commitByClock)
        self._autoCommit.clock = reactor
        self._settled: Deferred[None] | None = None
        self._finished: Deferred[None] | None = None
        self._removeListener: Callable[[], None] | None = None
        self._isShutDown = self._isGone = False
        self._shutdownWaiters: list[Deferred[None]] = []

    def __repr__(self) -> str:
        return f"<ConsumerConnector {self.consumerId} {self._rebalance.state.value}, {len(self._rebalance.owned)} partitions>"

    def _makeId(self, hostName: str) -> str:
        group, fixed = self._settings.group, self._settings.consumerId
        if fixed is not None:
            return f"{group}_{fixed}"
        return f"{group}_{hostName}-{int(self._clock.seconds() * 1000)}-{format(self._random.getrandbits(64), 'x')[:8]}"

    @property
    def isOwning(self) -> bool:
        """Whether this member has what is its own, as far as it knows."""
        return self._rebalance.state is State.OWNING

    @property
    def owned(self) -> Share:
        """The partitions that this member has now, and the thread of each."""
        return dict(self._rebalance.owned)

    # -- what an application calls ------------------------------------------------------------------------------------

    def connect(self) -> Deferred[ConsumerConnector]:
        """
        Connect to ZooKeeper. Nobody else sees this member before it has streams.

        @return: fires with this connector. Fails with L{ZookeeperError} when it takes longer than C{zk.connectiontimeout.ms}, or the chroot does not exist.
        """
        return Deferred.fromCoroutine(self._connect())

    start = connect

    async def _connect(self) -> ConsumerConnector:
        if self._isShutDown:
            raise ConsumerStateError(f"{self.consumerId} was shut down")
        if not self._isConnected:
            if not self._zookeeper.session_id:  # one that is shared, and has lost its connection, is its owner's business
                await self._zookeeper.connect(self._settings.zkConnectionTimeoutMs)
            self._isConnected = True
        return self

    def createMessageStreams(self, topicCounts: Mapping[str, int], decode: Callable[[bytes], Any] | None = None) -> Deferred[dict[str, list[MessageStream]]]:
        """
        Join the group. Once for each connector.

        @param topicCounts: topics, and how many streams of each are wanted; at least 1. May be empty.
        @param decode: from a payload to a value; by default the value is the payload.
        @return: fires with the streams of each topic, when this member has its share for the first time. Fails with L{ConsumerStateError} the second
            time; with L{InvalidNameError}; with L{ZookeeperError} when this member cannot be registered; with L{RebalanceFailedError}
            when C{rebalance.retries.max} attempts came to nothing: it goes on trying, and the application may shut it down; with L{ClosedError} when it is.
        @raise ValueError: a number of streams is not positive.
        """
        for topic, count in topicCounts.items():
            if not 1 <= count <= STREAM_COUNT_MAX:
                raise ValueError(f"{count} streams of {topic}: 1 to {STREAM_COUNT_MAX} are possible")
        counts = dict(topicCounts)

        async def create() -> dict[str, list[MessageStream]]:
            for topic in counts:
                paths.topic(topic)
                if len(topic.encode()) > TOPIC_SIZE_MAX:
                    raise InvalidNameError(f"the name of a topic has {len(topic.encode())} bytes; {TOPIC_SIZE_MAX} fit in a request")
            await self._join(StaticSubscription(counts), [(topic, index) for topic, count in counts.items() for index in range(count)], decode)
            return {topic: [self._streams[topic, index] for index in range(count)] for topic, count in counts.items()}

        return Deferred.fromCoroutine(create())

    def createMessageStreamsByFilter(
        self, topics: WildcardSubscription, streamCount: int | None = None, decode: Callable[[bytes], Any] | None = None
    ) -> Deferred[list[MessageStream]]:
        """
        Join the group and read all topics that pass a filter, those that come later included.

        @param topics: what L{pylogbroker.cluster.subscription.whitelist} or C{blacklist} returned.
        @param streamCount: how many streams; thread i of each topic feeds stream i. By default what C{topics} says.
        @return: fires with the streams, and fails, as L{createMessageStreams}.
        @raise ValueError: C{streamCount} is not positive.
        """
        count = topics.streamCount if streamCount is None else streamCount
        if not 1 <= count <= STREAM_COUNT_MAX:
            raise ValueError(f"{count} streams: 1 to {STREAM_COUNT_MAX} are possible")

        async def create() -> list[MessageStream]:
            await self._join(replace(topics, streamCount=count), [("", index) for index in range(count)], decode)
            return [self._streams["", index] for index in range(count)]

        return Deferred.fromCoroutine(create())

    async def _join(self, subscription: ISubscription, names: list[tuple[str, int]], decode: Callable[[bytes], Any] | None) -> None:
        if self._isShutDown or not self._isConnected or self._subscription is not None:
            why = "was shut down" if self._isShutDown else "is not connected yet" if not self._isConnected else "has its streams already"
            raise ConsumerStateError(f"{self.consumerId} {why}")
        self._subscription = subscription
        self._streams = {name: self._makeStream(*name, decode) for name in names}
        self._removeListener = self._zookeeper.add_session_listener(self._sessionChanged)
        try:
            await claim(self._zookeeper, self._path, subscription.encode())
        except ZookeeperError:
            if not self._isShutDown:
                self._removeListener()
                self._subscription = self._removeListener = None
            raise
        if self._isShutDown:
            raise ClosedError(f"{self.consumerId} was shut down")
        if self._settings.autoCommit:
            self._autoCommit.start(self._settings.autoCommitIntervalMs / 1000, now=False)
        settled = self._settled = Deferred(lambda _settled: setattr(self, "_settled", None))
        self._carryOut(self._rebalance.started())
        await settled

    def _makeStream(self, topic: str, index: int, decode: Callable[[bytes], Any] | None) -> MessageStream:
        settings = self._settings
        return MessageStream(
            f"{self.consumerId}-{index}{' of ' + topic if topic else ''}",
            self._clock,
            self._positions.consumed,
            self._wake,
            decode=decode,
            isShallow=settings.isShallow,
            chunkCountMax=settings.queuedChunkCountMax,
            queuedSizeMax=settings.queuedSizeMax,
            timeoutMs=settings.consumerTimeoutMs,
            unreadable=self._unreadable,
        )

    def commitOffsets(self) -> Deferred[None]:
        """
        Store the positions of all partitions that this member has, as far as they have moved.

        @return: fires when they are stored. Fails with L{CommitFailedError} when some are not.
        """
        return Deferred.fromCoroutine(self._commit(self._begunPlaces))

    async def _commit(self, places: Callable[[], Collection[Place]]) -> None:
        unsafe = await self._positions.commit(places)
        if unsafe:
            some = ", ".join(str(place) for place in unsafe[:10])
            raise CommitFailedError(f"the positions of {len(unsafe)} partitions were not stored: {some}{' …' if len(unsafe) > 10 else ''}")

    def _begunPlaces(self) -> list[Place]:
        return [place for _broker, fetcher in self._fetchers.values() for place in fetcher.begunPlaces]

    async def _commitSoftly(self, places: Callable[[], Collection[Place]]) -> None:
        try:
            await self._commit(places)
        except CommitFailedError as error:
            self._log.warn("{error}", error=error)

    def _commitByClock(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._commitSoftly(self._begunPlaces))

    def shutdown(self) -> Deferred[None]:
        """
        Leave the group: hand out nothing more, commit with C{autocommit.enable}, let go of all partitions.

        @return: fires when that is done, or could not be done; does not fail. Can be called at any time, and again.
        """
        if not self._isShutDown:
            self._isShutDown = True
            ending = Deferred.fromCoroutine(self._shutdown())
            ending.addErrback(lambda failure: self._log.failure("Shutting down failed in a way that nobody foresaw", failure))
            ending.addCallback(self._tellShutdown)
        if self._isGone:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._shutdownWaiters.append(waiter)
        return waiter

    def _tellShutdown(self, _result: object) -> None:
        self._isGone = True
        waiters, self._shutdownWaiters = self._shutdownWaiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    async def _shutdown(self) -> None:
        if self._autoCommit.running:
            self._autoCommit.stop()
        for stream in self._streams.values():
            stream.end()
        self._backOffTimer.stop()
        self._cancelWork()
        settled, self._settled = self._settled, None
        if self._rebalance.state is not State.IDLE:
            self._finished = Deferred()
            self._carryOut(self._rebalance.stopped())
            await self._finished
        if self._removeListener is not None:
            self._removeListener()
            if not self._ownsZookeeper:
                try:
                    await self._deleteOwn(self._path)
                except ZookeeperError as error:
                    self._log.warn("{consumerId} stays registered until its session ends: {error}", consumerId=self.consumerId, error=error)
        for watch in list(self._watches.values()):
            watch.cancel()
        await DeferredList([fetcher.stop() for _broker, fetcher in self._fetchers.values()], consumeErrors=True)
        self._fetchers.clear()
        if self._ownsZookeeper:
            await self._zookeeper.close()
        if settled is not None:
            settled.errback(ClosedError(f"{self.consumerId} was shut down"))

    async def __aenter__(self) -> ConsumerConnector:
        try:
            return await self._connect()
        except BaseException:
            await self.shutdown()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.shutdown()

    # -- the session --------------------------------------------------------------------------------------------------

    def _sessionChanged(self, event: SessionEvent) -> None:
        state = self._rebalance.state
        if state is State.IDLE:
            return
        if event in (SessionEvent.EXPIRED, SessionEvent.CLOSED):
            if state is not State.STOPPING:
                self._log.warn("{consumerId}: the session with ZooKeeper is over, and others may have our partitions", consumerId=self.consumerId)
                self._cancelWork()
            self._carryOut(self._rebalance.expired())
        elif event is SessionEvent.CONNECTED:
            if state is State.SUSPENDED:
                self._register()
            else:
                self._carryOut(self._rebalance.connected())

    def _register(self) -> None:
        """In a new session."""
        if self._registering is None and self._subscription is not None:
            self._registering = registering = Deferred.fromCoroutine(claim(self._zookeeper, self._path, self._subscription.encode()))
            registering.addCallbacks(self._registered, self._notRegistered, callbackArgs=(registering,), errbackArgs=(registering,))

    def _registered(self, _result: None, registering: Deferred[None]) -> None:
        if self._registering is registering:
            self._registering = None
            self._carryOut(self._rebalance.connected())

    def _notRegistered(self, failure: Failure, registering: Deferred[None]) -> None:
        if self._registering is not registering:
            return
        self._registering = None
        self._log.warn("{consumerId} cannot register in ZooKeeper: {reason}", consumerId=self.consumerId, reason=failure.getErrorMessage())
        self._backOffTimer.start(self._settings.rebalanceBackoffMs, self._registerAgain)

    def _registerAgain(self) -> None:
        if self._rebalance.state is State.SUSPENDED:
            self._register()

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carryOut(self, effects: list[Effect]) -> None:
        isSettled = False
        for effect in effects:
            if self._isShutDown and not isinstance(effect, Release | Finish):
                return  # an application that was told of the effect before has stopped us
            if isinstance(effect, Look):
                self._backOffTimer.stop()
                self._begin(self._look())
            elif isinstance(effect, Release):
                self._begin(self._release(effect.share))
            elif isinstance(effect, Claim):
                self._begin(self._claim(effect.share))
            elif isinstance(effect, Fetch):
                self._fetch(effect)
                isSettled = True
            elif isinstance(effect, BackOff):
                self._backOff(effect, isSettled)
            elif isinstance(effect, Forget):
                self._letGo([place for _broker, fetcher in self._fetchers.values() for place in fetcher.places])
                self._backOffTimer.stop()
            elif self._finished is not None:  # Finish
                self._finished.callback(None)
        if isSettled and self._settled is not None:
            settled, self._settled = self._settled, None
            settled.callback(None)

    def _begin(self, work: Coroutine[Any, Any, Answer]) -> None:
        self._work = doing = Deferred.fromCoroutine(work)
        doing.addErrback(self._workFailed)
        doing.addCallback(self._workDone, doing)

    def _workFailed(self, failure: Failure) -> Answer:
        if not failure.check(PylogbrokerError, CancelledError):
            self._log.failure("{consumerId}: a step of a rebalance failed in a way that nobody foresaw", failure, consumerId=self.consumerId)
        return Failed(failure.getErrorMessage() or repr(failure.value))

    def _workDone(self, answer: Answer, doing: Deferred[Answer]) -> None:
        if self._work is doing:
            self._work = None
            self._carryOut(self._rebalance.answered(answer))

    def _cancelWork(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        registering, self._registering = self._registering, None
        if registering is not None:
            registering.cancel()

    def _backOff(self, effect: BackOff, isSettled: bool) -> None:
        waitMs = effect.factor * self._settings.rebalanceBackoffMs
        text = "{consumerId}: attempt {attempt} to rebalance failed: {reason}. The next is in {waitMs} ms"
        isLast = effect.attempt >= self._settings.rebalanceRetryCountMax
        (self._log.error if isLast else self._log.info)(text, consumerId=self.consumerId, attempt=effect.attempt, reason=effect.reason, waitMs=waitMs)
        self._backOffTimer.start(waitMs, self._woken)
        settled = self._settled
        if isLast and settled is not None and not isSettled:
            self._settled = None
            settled.errback(RebalanceFailedError(f"{self.consumerId}: {effect.attempt} attempts to rebalance failed, the last one: {effect.reason}"))

    def _woken(self) -> None:
        self._carryOut(self._rebalance.woken())

    # -- looking

    async def _look(self) -> Answer:
        subscription = self._subscription
        assert subscription is not None
        names = await self._children(paths.BROKER_TOPICS) if isinstance(subscription, WildcardSubscription) else ()
        wanted = [name for name in subscription.streamCounts(names) if self._isUsable(name)]
        members = await self._members()
        brokerNames = await self._children(paths.BROKER_IDS)
        partitions = await _all([self._partitions(name) for name in wanted])
        topics = dict(zip(wanted, partitions, strict=True))
        needed = {str(partition.broker) for found in partitions for partition in found}
        brokers = await _all([self._broker(name) for name in brokerNames if name in needed])
        usable = {member: each for member, each in members.items() if self._isComprehensible(member, each, topics)}
        return Seen(View(usable, topics, {number: broker for number, broker in brokers if broker is not None}))

    def _isUsable(self, topic: str) -> bool:
        try:
            paths.topic(topic)
        except InvalidNameError as error:
            self._complain(f"{error}: it is left out")
            return False
        if len(topic.encode()) > TOPIC_SIZE_MAX:
            self._complain(f"the topic {topic[:100]}… has a name that no request can carry: it is left out")
            return False
        return True

    def _isComprehensible(self, member: str, subscription: ISubscription, topics: Mapping[str, Any]) -> bool:
        try:
            subscription.streamCounts(topics)
        except InvalidPatternError as error:
            self._complain(f"{self._paths.ids}/{member}: {error}. This member is taken not to be there, and its partitions cannot be agreed upon")
            return False
        return True

    async def _members(self) -> dict[str, ISubscription]:
        names = await self._children(self._paths.ids)
        if self.consumerId not in names:  # somebody has deleted it
            assert self._subscription is not None
            await claim(self._zookeeper, self._path, self._subscription.encode())
            names = await self._zookeeper.get_children(self._paths.ids)
        found = await _all([self._member(name) for name in names])
        return {name: subscription for name, subscription in zip(names, found, strict=True) if subscription is not None}

    async def _member(self, name: str) -> ISubscription | None:
        path = f"{self._paths.ids}/{name}"
        if name == self.consumerId:
            return self._subscription
        try:
            data, _stat = await self._zookeeper.get(path)
            return decodeSubscription(path, data)
        except NoNodeException:
            return None
        except ZnodeError as error:
            self._complain(f"{error}. This member is taken not to be there")
            return None

    async def _partitions(self, topic: str) -> list[BrokerPartition]:
        brokers = await self._children(paths.topic(topic))
        return [partition for found in await _all([self._brokerPartitions(topic, name) for name in brokers]) for partition in found]

    async def _brokerPartitions(self, topic: str, broker: str) -> list[BrokerPartition]:
        path = f"{paths.topic(topic)}/{broker}"
        number = self._brokerNumber(path, broker)
        if number is None:
            return []
        try:
            data, _stat = await self._zookeeper.get(path)
            count = decodeNumber(path, data)
            if not 0 <= count <= PARTITION_COUNT_MAX:
                raise ZnodeError(path, str(count), f"a number of partitions is from 0 to {PARTITION_COUNT_MAX}")
        except NoNodeException:
            return []
        except ZnodeError as error:
            self._complain(f"{error}. It is left out")
            return []
        return [BrokerPartition(number, index) for index in range(count)]

    def _brokerNumber(self, path: str, name: str) -> int | None:
        if name.isascii() and name.isdigit() and str(int(name[:10])) == name:
            return int(name)
        self._complain(f"{path} is not named like a broker. It is left out")
        return None

    async def _broker(self, name: str) -> tuple[int, BrokerRegistration | None]:
        path = f"{paths.BROKER_IDS}/{name}"
        try:
            data, _stat = await self._zookeeper.get(path)
            return int(name), decodeBroker(path, data)
        except NoNodeException:
            return int(name), None
        except ZnodeError as error:
            self._complain(f"{error}. Its partitions are not read")
            return int(name), None

    def _complain(self, text: str) -> None:
        """About what somebody has written; once."""
        if text not in self._complaints and len(self._complaints) < _COMPLAINT_COUNT_MAX:
            self._complaints.add(text)
            self._log.error("{consumerId}: {text}", consumerId=self.consumerId, text=text)

    # -- watching

    async def _children(self, path: str) -> list[str]:
        """The children of a node, which are watched from now on if they were not; none of a node that is not there, which is watched for, too."""
        while path not in self._watches:
            children, fired = self._zookeeper.get_children_and_watch(path)
            try:
                return await self._watched(path, children, fired)
            except NoNodeException:
                pass
            stat, fired = self._zookeeper.exists_and_watch(path)
            if await self._watched(path, stat, fired) is None:
                return []
            fired.cancel()
        try:
            return list(await self._zookeeper.get_children(path))
        except NoNodeException:
            return []

    async def _watched(self, path: str, result: Awaitable[T], fired: Deferred[Any]) -> T:
        self._watches[path] = fired
        fired.addCallbacks(self._seen, self._unseen, callbackArgs=(path, fired), errbackArgs=(path, fired))
        try:
            return await result
        except BaseException:
            self._watches.pop(path, None)
            fired.cancel()
            raise

    def _seen(self, _event: object, path: str, fired: Deferred[Any]) -> None:
        self._unseen(None, path, fired)
        self._carryOut(self._rebalance.changed())

    def _unseen(self, _failure: Failure | None, path: str, fired: Deferred[Any]) -> None:
        """Its session is over, or it was cancelled."""
        if self._watches.get(path) is fired:
            del self._watches[path]

    # -- letting go and claiming

    def _letGo(self, places: Collection[Place]) -> None:
        """Fetch these no more, and hand out nothing more of them."""
        for _broker, fetcher in self._fetchers.values():
            fetcher.remove(places)

    async def _release(self, share: Share) -> Answer:
        if share:
            begun = [place for place in self._begunPlaces() if place in share]  # of the others the position may be an old one, kept from an earlier session
            self._letGo(share)
            if self._settings.autoCommit:
                await self._commitSoftly(lambda: begun)
            await _all([self._disown(place, thread) for place, thread in share.items()])
            self._positions.forget(begun)
        return Released()

    async def _disown(self, place: Place, thread: str) -> None:
        await self._deleteOwn(self._paths.owner(place.topic, place.partition), thread.encode())

    async def _deleteOwn(self, path: str, data: bytes | None = None) -> None:
        """Delete a node if it is still our session's, and says what we wrote."""
        try:
            found, stat = await self._zookeeper.get(path)
            if stat.ephemeralOwner == self._zookeeper.session_id and data in (None, found):
                await self._zookeeper.delete(path, stat.version)
        except (NoNodeException, BadVersionException):
            pass

    async def _claim(self, share: Share) -> Answer:
        claimed = await _all([self._claimPlace(place, thread) for place, thread in share.items()])
        return Claimed(frozenset(place for place in claimed if place is not None))

    async def _claimPlace(self, place: Place, thread: str) -> Place | None:
        try:
            await claim(self._zookeeper, self._paths.owner(place.topic, place.partition), thread.encode())
        except ConflictError as conflict:
            self._log.debug("{consumerId}: {place} is not free: {conflict}", consumerId=self.consumerId, place=place, conflict=conflict)
            return None
        return place

    # -- fetching

    def _fetch(self, effect: Fetch) -> None:
        byBroker: dict[int, list[Place]] = {}
        for place in effect.share:
            byBroker.setdefault(place.partition.broker, []).append(place)
        for number in self._fetchers.keys() - byBroker.keys():
            _broker, fetcher = self._fetchers.pop(number)
            self._closing(fetcher.stop())
        for number, places in byBroker.items():
            found = effect.brokers.get(number)
            if found is not None:
                self._reach(number, found)
            if number not in self._fetchers:
                self._log.warn(
                    "{consumerId}: broker {number} is not registered; its partitions ({count}) wait for it",
                    consumerId=self.consumerId, number=number, count=len(places),
                )  # fmt: skip
                continue
            _registration, fetcher = self._fetchers[number]
            fetcher.remove(set(fetcher.places) - set(places))
            for place in places:
                fetcher.add(place, self._streamOf(place, effect.share[place]))

    def _reach(self, number: int, broker: BrokerRegistration) -> None:
        """See to it that a broker's fetcher asks at the right address."""
        before, fetcher = self._fetchers.get(number, (None, None))
        if before is None or fetcher is None:
            fetcher = Fetcher(self._clock, self._consumerOf(broker), self._settings, self._positions, self._random)
        elif (before.host, before.port) != (broker.host, broker.port):
            self._closing(fetcher.moveTo(self._consumerOf(broker)))
        self._fetchers[number] = broker, fetcher

    def _consumerOf(self, broker: BrokerRegistration) -> SimpleConsumer:
        settings = self._settings
        limits = ConnectionLimits(responseSizeMax=max(settings.responseSizeMax, settings.fetchSizeMax) + _MULTIFETCH_OVERHEAD)
        return SimpleConsumer(self._clock, self._endpointFor(broker), timeoutMs=settings.socketTimeoutMs, limits=limits, random=self._random.random)

    def _closing(self, closed: Deferred[None]) -> None:
        closed.addErrback(lambda failure: self._log.debug("A connection was not closed in order: {reason}", reason=failure.getErrorMessage()))

    def _streamOf(self, place: Place, thread: str) -> MessageStream:
        index = int(thread.rpartition("-")[2])
        return self._streams["" if isinstance(self._subscription, WildcardSubscription) else place.topic, index]

    def _wake(self) -> None:
        for _broker, fetcher in list(self._fetchers.values()):
            fetcher.wake()

    def _unreadable(self, place: Place, offset: int) -> None:
        _broker, fetcher = self._fetchers[place.partition.broker]
        fetcher.unreadable(place, offset)
