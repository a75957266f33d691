"""
A consumer group: what an application holds in its hand (spec-0.7 consumer §2, zookeeper §4).

How a member comes to its share is L{pylogbroker.consumer.rebalance} (decides) and L{pylogbroker.consumer.member} (carries out, with C{looking}, C{owning} and
C{fetchers}); here are the streams that it feeds, the commits, and the beginning and the end of all.

What others write into ZooKeeper may be anything. It is named in the log, once, and does not stop us; C{looking} and C{owning} say what becomes of it. A stored
offset that cannot be read is as if there were none.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from random import Random, SystemRandom
from types import TracebackType
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from pylogbroker.cluster import paths
from pylogbroker.cluster.subscription import (
    STREAM_COUNT_MAX,
    ISubscription,
    StaticSubscription,
    WildcardSubscription,
)
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.consumedoffsets import Positions
from pylogbroker.consumer.fetchermanager import EndpointFor, FetcherManager
from pylogbroker.consumer.groupstate import TOPIC_SIZE_MAX
from pylogbroker.consumer.member import Member
from pylogbroker.consumer.offsetstores import IOffsetStore, ZookeeperOffsetStore
from pylogbroker.consumer.rebalance import Assignment, State
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import (
    ClosedError,
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    InvalidNameError,
    ZookeeperError,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.clientmetrics import consumerFamilies
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.metrics.exposition import Family
from pylogbroker.net.endpoints import brokerEndpoint
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient


def _endpointOf(template: str, broker: BrokerRegistration) -> str:
    return brokerEndpoint(template, broker.address)


class ConsumerConnector:
    """
    A member of a consumer group::

        async with ConsumerConnector(reactor, settings) as consumer:
            streams = await consumer.createMessageStreams({"clicks": 1})
            async for message in streams["clicks"][0]:
                ...

    With C{async with} the reactor shuts it down before it stops (L{shutdownBeforeStop}), however it is told to: who reads comes to the end then, threads
    included.

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
        endpointFor: EndpointFor | None = None,
    ) -> None:
        """
        @param reactor: for connecting, for time, and for L{shutdownBeforeStop}.
        @param settings: or the properties that they are made of, whose oddities are then logged.
        @param zookeeper: a client to share with others, which stays open; by default one is made for C{zk.connect}.
        @param offsetStore: where positions are kept; by default ZooKeeper.
        @param hostName: this machine's, for the consumer id.
        @param random: for the consumer id and for jitter; by default the system's.
        @param endpointFor: where a broker is reached, of what its registration says; by default as C{broker.endpoint} says.
        @raise ConfigurationError: C{zk.connect} is missing, or a property is wrong.
        @raise InvalidNameError: the name of the group cannot be one.
        """
        if not isinstance(settings, ConsumerSettings):
            settings = ConsumerSettings.fromProperties(
                settings, lambda text: self._log.warn("{text}", text=text)
            )
        self._clock = reactor
        self._settings = settings
        paths.GroupPaths(settings.group)
        if zookeeper is None and not settings.zkConnect:
            raise ConfigurationError("zk.connect is missing: a consumer group lives in ZooKeeper")
        self._ownsZookeeper = zookeeper is None
        self._zookeeper: IZookeeper = zookeeper or ZookeeperClient(
            reactor,
            settings.zkConnect,
            settings.zkSessionTimeoutMs,
            digest=settings.zkDigest,
            acl=settings.zkAcl,
        )
        if endpointFor is None:
            endpointFor = partial(_endpointOf, settings.brokerEndpoint)
        random = random or SystemRandom()
        self.consumerId = self._makeId(hostName or socket.gethostname(), random)
        self._positions = Positions(
            offsetStore or ZookeeperOffsetStore(self._zookeeper, settings.group)
        )
        self._tracksIntraBatch = getattr(offsetStore, "tracksIntraBatch", False)
        self._streams: dict[
            tuple[str, int], MessageStream
        ] = {}  # by topic, or "" with a filter, and number
        self._fetchers = FetcherManager(
            reactor,
            settings,
            self._positions,
            endpointFor,
            random,
            self._streams,
            self.consumerId,
        )
        self._member = Member(
            reactor,
            settings,
            self._zookeeper,
            self.consumerId,
            self._fetchers,
            self._positions,
            self._commitSoftly,
        )
        self._isConnected = False
        self._subscription: ISubscription | None = None
        self._autoCommit = LoopingCall(self._commitByClock)
        self._autoCommit.clock = reactor
        self._isGone = False
        self._trigger: Any = None
        self._shutdownWaiters: list[Deferred[None]] = []

    def __repr__(self) -> str:
        return f"<ConsumerConnector {self.consumerId} {self._member.state.value}, {len(self._member.owned)} partitions>"

    def _makeId(self, hostName: str, random: Random) -> str:
        group, fixed = self._settings.group, self._settings.consumerId
        if fixed is not None:
            return f"{group}_{fixed}"
        return f"{group}_{hostName}-{int(self._clock.seconds() * 1000)}-{format(random.getrandbits(64), 'x')[:8]}"

    @property
    def counters(self) -> ConsumerCounters:
        """What has been fetched and handed out since the consumer was made."""
        return self._fetchers.counters

    def figures(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """
        Its figures, to be served to a scraper (L{pylogbroker.console.service.MetricsService}).

        @param labels: beside the group.
        """
        return consumerFamilies(
            self.counters,
            len(self._member.owned),
            {"group": self._settings.group, **(labels or {})},
        )

    @property
    def isOwning(self) -> bool:
        """Whether this member has what is its own, as far as it knows."""
        return self._member.state is State.OWNING

    @property
    def owned(self) -> Assignment:
        """The partitions that this member has now, and the thread of each."""
        return dict(self._member.owned)

    @property
    def positions(self) -> dict[PartitionId, int]:
        """What would be committed now: of each partition that this member has and has begun, the next offset of the last message handed out."""
        consumed = self._positions.consumed
        return {place: consumed[place] for place in self._begunPlaces() if place in consumed}

    # -- what an application calls ------------------------------------------------------------------------------------

    def connect(self) -> Deferred[ConsumerConnector]:
        """
        Connect to ZooKeeper. Nobody else sees this member before it has streams.

        @return: fires with this connector. Fails with L{ZookeeperError} when it takes longer than C{zk.connectiontimeout.ms}, or the chroot does not exist.
        """
        return Deferred.fromCoroutine(self._connect())

    start = connect

    async def _connect(self) -> ConsumerConnector:
        if self._member.isHalted:
            raise ConsumerStateError(f"{self.consumerId} was shut down")
        if not self._isConnected:
            if (
                not self._zookeeper.session_id
            ):  # one that is shared, and has lost its connection, is its owner's business
                await self._zookeeper.connect(self._settings.zkConnectionTimeoutMs)
            self._isConnected = True
        return self

    def createMessageStreams(
        self, topicCounts: Mapping[str, int], decode: Callable[[bytes], Any] | None = None
    ) -> Deferred[dict[str, list[MessageStream]]]:
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
                raise ValueError(
                    f"{count} streams of {topic}: 1 to {STREAM_COUNT_MAX} are possible"
                )
        counts = dict(topicCounts)

        async def create() -> dict[str, list[MessageStream]]:
            for topic in counts:
                paths.topic(topic)
                if len(topic.encode()) > TOPIC_SIZE_MAX:
                    raise InvalidNameError(
                        f"the name of a topic has {len(topic.encode())} bytes; {TOPIC_SIZE_MAX} fit in a request"
                    )
            await self._join(
                StaticSubscription(counts),
                [(topic, index) for topic, count in counts.items() for index in range(count)],
                decode,
            )
            return {
                topic: [self._streams[topic, index] for index in range(count)]
                for topic, count in counts.items()
            }

        return Deferred.fromCoroutine(create())

    def createMessageStreamsByFilter(
        self,
        topics: WildcardSubscription,
        streamCount: int | None = None,
        decode: Callable[[bytes], Any] | None = None,
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
            await self._join(
                replace(topics, streamCount=count), [("", index) for index in range(count)], decode
            )
            return [self._streams["", index] for index in range(count)]

        return Deferred.fromCoroutine(create())

    async def _join(
        self,
        subscription: ISubscription,
        names: list[tuple[str, int]],
        decode: Callable[[bytes], Any] | None,
    ) -> None:
        if self._member.isHalted or not self._isConnected or self._subscription is not None:
            why = (
                "was shut down"
                if self._member.isHalted
                else "is not connected yet"
                if not self._isConnected
                else "has its streams already"
            )
            raise ConsumerStateError(f"{self.consumerId} {why}")
        self._subscription = subscription
        self._streams.clear()
        self._streams.update({name: self._makeStream(*name, decode) for name in names})
        try:
            await self._member.register(subscription)
        except ZookeeperError:
            if not self._member.isHalted:
                self._subscription = None
            raise
        if self._member.isHalted:
            raise ClosedError(f"{self.consumerId} was shut down")
        if self._settings.autoCommit:
            self._autoCommit.start(self._settings.autoCommitIntervalMs / 1000, now=False)
        await self._member.begin()

    def _makeStream(
        self, topic: str, index: int, decode: Callable[[bytes], Any] | None
    ) -> MessageStream:
        settings = self._settings
        return MessageStream(
            f"{self.consumerId}-{index}{' of ' + topic if topic else ''}",
            self._clock,
            self._positions.consumed,
            decode=decode,
            isShallow=settings.isShallow,
            tracksIntraBatch=self._tracksIntraBatch,
            chunkCountMax=settings.queuedChunkCountMax,
            queuedSizeMax=settings.queuedSizeMax,
            timeoutMs=settings.consumerTimeoutMs,
            counters=self.counters,
        )

    def commitOffsets(self) -> Deferred[None]:
        """
        Store the positions of all partitions that this member has, as far as they have moved.

        @return: fires when they are stored. Fails with L{CommitFailedError} when some are not.
        """
        return Deferred.fromCoroutine(self._commit(self._begunPlaces))

    async def _commit(self, places: Callable[[], Collection[PartitionId]]) -> None:
        unsafe = await self._positions.commit(places)
        if unsafe:
            some = ", ".join(str(place) for place in unsafe[:10])
            raise CommitFailedError(
                f"the positions of {len(unsafe)} partitions were not stored: {some}{' …' if len(unsafe) > 10 else ''}"
            )

    def _begunPlaces(self) -> list[PartitionId]:
        return self._fetchers.positionedPartitions

    async def _commitSoftly(self, places: Callable[[], Collection[PartitionId]]) -> None:
        try:
            await self._commit(places)
        except CommitFailedError as error:
            self._log.warn("{error}", error=error)

    def _commitByClock(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._commitSoftly(self._begunPlaces))

    def readAgain(self, place: PartitionId, offset: int) -> None:
        """
        Forget what is queued of a partition, and hand out what there is from an offset on, once the offset store has answered C{load} anew; until then nothing
        of it is committed. For a partition that this member does not have it does nothing.

        @param offset: where a message begins. If the store knows then of an offset that is not from this member, that one counts.
        """
        self._fetchers.readAgain(place, offset)

    def shutdown(self) -> Deferred[None]:
        """
        Leave the group: hand out nothing more, commit with C{autocommit.enable}, let go of all partitions.

        @return: fires when that is done, or could not be done; does not fail. Can be called at any time, and again.
        """
        if not self._member.isHalted:
            ending = Deferred.fromCoroutine(self._shutdown(self._member.halt()))
            ending.addErrback(
                lambda failure: self._log.failure(
                    "Shutting down failed in a way that nobody foresaw", failure
                )
            )
            ending.addCallback(self._tellShutdown)
        if self._isGone:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._shutdownWaiters.append(waiter)
        return waiter

    def shutdownBeforeStop(self) -> None:
        """
        Have the reactor shut this consumer down before it stops, and wait for that. Without it Ctrl-C leaves the group waiting for the session's end, and a
        thread that reads (L{MessageStream.blocking}) for ever in its place, and the process with it.
        """
        if self._trigger is None and not self._isGone:
            self._trigger = self._clock.addSystemEventTrigger(
                "before", "shutdown", self._shutdownAtStop
            )

    def _shutdownAtStop(self) -> Deferred[None]:
        self._trigger = None
        return self.shutdown()

    def _tellShutdown(self, _result: object) -> None:
        self._isGone = True
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._clock.removeSystemEventTrigger(trigger)
        waiters, self._shutdownWaiters = self._shutdownWaiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.callback(None)

    async def _shutdown(self, settled: Deferred[None] | None) -> None:
        if self._autoCommit.running:
            self._autoCommit.stop()
        for stream in self._streams.values():
            stream.end()
        await self._member.leave(isSessionOver=self._ownsZookeeper)
        await self._fetchers.stop()
        if self._ownsZookeeper:
            await self._zookeeper.close()
        if settled is not None:
            settled.errback(ClosedError(f"{self.consumerId} was shut down"))

    async def __aenter__(self) -> ConsumerConnector:
        if IReactorCore.providedBy(self._clock):
            self.shutdownBeforeStop()
        try:
            return await self._connect()
        except BaseException:
            await self.shutdown()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.shutdown()
