"""
A member of a consumer group, as an application uses it (spec-0.7 consumer §2, zookeeper §4).

This module has streams, commits, start and shutdown; L{pylogbroker.consumer.rebalance} decides how
the member gets its partitions.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random, SystemRandom
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
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.fetchermanager import EndpointFor, FetcherManager
from pylogbroker.consumer.groupstate import TOPIC_SIZE_MAX
from pylogbroker.consumer.member import Member
from pylogbroker.consumer.offsetstores import ConsumedOffsets, IOffsetStore, ZookeeperOffsetStore
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
from pylogbroker.net.deferreds import Waiters, asDeferred
from pylogbroker.net.endpointstrings import brokerEndpoint
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.client import ZookeeperClient


class ConsumerConnector:
    """
    A member of a consumer group::

        async with ConsumerConnector(reactor, settings) as consumer:
            streams = await consumer.createMessageStreams({"clicks": 1})
            async for message in streams["clicks"][0]:
                ...

    With C{async with} the reactor shuts it down before it stops (L{shutdownBeforeStop}), which ends
    all readers, also in threads.

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
        @param settings: or properties; questionable ones are logged.
        @param zookeeper: a shared client, which stays open; by default one for C{zk.connect}.
        @param offsetStore: by default ZooKeeper.
        @param hostName: for the consumer id; by default this machine's.
        @param random: for the consumer id and jitter.
        @param endpointFor: gives a broker's endpoint; by default as C{broker.endpoint} says.
        @raise ConfigurationError: C{zk.connect} is missing, or a property is wrong.
        @raise InvalidNameError: the group's name is invalid.
        """
        if not isinstance(settings, ConsumerSettings):
            settings = ConsumerSettings.fromProperties(
                settings, lambda text: self._log.warn("{text}", text=text)
            )
        self._clock = reactor
        self._settings = settings
        paths.GroupPaths(settings.groupId)
        if zookeeper is None and not settings.zkConnect:
            raise ConfigurationError("zk.connect is missing: a consumer group lives in ZooKeeper")
        self._ownsZookeeper = zookeeper is None
        self._zookeeper: IZookeeper = zookeeper or ZookeeperClient.fromSettings(reactor, settings)
        template = settings.brokerEndpoint
        endpointFor = endpointFor or (lambda broker: brokerEndpoint(template, broker.address))
        random = random or SystemRandom()
        self.consumerId = self._makeId(hostName or socket.gethostname(), random)
        self._offsets = ConsumedOffsets(
            offsetStore or ZookeeperOffsetStore(self._zookeeper, settings.groupId)
        )
        self._tracksIntraBatch = getattr(offsetStore, "tracksIntraBatch", False)
        # By topic and number; a filter's streams have the topic "".
        self._streams: dict[tuple[str, int], MessageStream] = {}
        self._fetchers = FetcherManager(
            reactor, settings, self._offsets, endpointFor, random, self._streams, self.consumerId
        )
        self._member = Member(
            reactor,
            settings,
            self._zookeeper,
            self.consumerId,
            self._fetchers,
            self._offsets,
            self._commitAndLog,
        )
        self._isConnected = False
        self._subscription: ISubscription | None = None
        self._autoCommit = LoopingCall(self._commitAndLog, self._positionedPartitions)
        self._autoCommit.clock = reactor
        self._commitFailure = ""
        self._isShutDown = False
        self._trigger: Any = None
        self._shutdownWaiters: Waiters[None] = Waiters()

    def __repr__(self) -> str:
        member = self._member
        state = member.state.value
        return f"<ConsumerConnector {self.consumerId} {state}, {len(member.owned)} partitions>"

    def _makeId(self, hostName: str, random: Random) -> str:
        group, fixed = self._settings.groupId, self._settings.consumerId
        if fixed is not None:
            return f"{group}_{fixed}"
        nowMs = int(self._clock.seconds() * 1000)
        return f"{group}_{hostName}-{nowMs}-{format(random.getrandbits(64), 'x')[:8]}"

    @property
    def counters(self) -> ConsumerCounters:
        """Messages fetched and handed out since the consumer was created."""
        return self._fetchers.counters

    def metricFamilies(self, labels: Mapping[str, str] | None = None) -> list[Family]:
        """
        Metrics for L{pylogbroker.console.service.MetricsService}.

        @param labels: beside the group.
        """
        return consumerFamilies(
            self.counters,
            len(self._member.owned),
            {"group": self._settings.groupId, **(labels or {})},
        )

    @property
    def isOwning(self) -> bool:
        """Whether this member owns all that is assigned to it, as far as it knows."""
        return self._member.state is State.OWNING

    @property
    def owned(self) -> Assignment:
        """This member's partitions, and the consumer thread of each."""
        return dict(self._member.owned)

    @property
    def positions(self) -> dict[PartitionId, int]:
        """The offsets a commit would store now, for each partition begun."""
        found = self._offsets.positions
        return {each: found[each] for each in self._positionedPartitions() if each in found}

    # -- joining

    @asDeferred
    async def connect(self) -> ConsumerConnector:
        """
        Connect to ZooKeeper. Other members do not see this one before it has streams.

        @return: fires with this connector. Fails with L{ZookeeperError} after
            C{zk.connectiontimeout.ms}, or when the chroot does not exist.
        """
        if self._member.isStopped:
            raise ConsumerStateError(f"{self.consumerId} was shut down")
        if not self._isConnected:
            # A shared client that has lost its connection is its owner's concern.
            if not self._zookeeper.session_id:
                await self._zookeeper.connect(self._settings.zkConnectionTimeoutMs)
            self._isConnected = True
        return self

    start = connect

    def createMessageStreams(
        self, topicCounts: Mapping[str, int], decode: Callable[[bytes], Any] | None = None
    ) -> Deferred[dict[str, list[MessageStream]]]:
        """
        Join the group. Once for each connector.

        @param topicCounts: the number of streams for each topic; at least 1. May be empty.
        @param decode: from a payload to a value; by default the payload itself.
        @return: fires with each topic's streams, when this member first has its partitions. Fails
            with L{ConsumerStateError} the second time, L{InvalidNameError}, L{ZookeeperError} when
            registering fails, L{RebalanceFailedError} after C{rebalance.retries.max} attempts (the
            member keeps trying), and L{ClosedError} when the consumer is shut down.
        @raise ValueError: a number of streams is not positive.
        """
        for topic, count in topicCounts.items():
            if not 1 <= count <= STREAM_COUNT_MAX:
                raise ValueError(
                    f"{count} streams of {topic}: 1 to {STREAM_COUNT_MAX} are possible"
                )
        counts = dict(topicCounts)
        joining = self._join(StaticSubscription(counts), counts, decode)
        return Deferred.fromCoroutine(joining)

    def createMessageStreamsByFilter(
        self,
        topics: WildcardSubscription,
        streamCount: int | None = None,
        decode: Callable[[bytes], Any] | None = None,
    ) -> Deferred[list[MessageStream]]:
        """
        Join the group and read all topics that pass a filter, also those created later.

        @param topics: from L{pylogbroker.cluster.subscription.whitelist} or C{blacklist}.
        @param streamCount: consumer thread i of each topic feeds stream i. By default from
            C{topics}.
        @return: as L{createMessageStreams}, but all streams.
        @raise ValueError: C{streamCount} is not positive.
        """
        count = topics.streamCount if streamCount is None else streamCount
        if not 1 <= count <= STREAM_COUNT_MAX:
            raise ValueError(f"{count} streams: 1 to {STREAM_COUNT_MAX} are possible")

        joining = self._join(replace(topics, streamCount=count), {"": count}, decode)
        return Deferred.fromCoroutine(joining).addCallback(lambda streams: streams[""])

    async def _join(
        self,
        subscription: ISubscription,
        counts: Mapping[str, int],
        decode: Callable[[bytes], Any] | None,
    ) -> dict[str, list[MessageStream]]:
        for topic in counts:
            if topic or isinstance(subscription, StaticSubscription):
                paths.topic(topic)
            size = len(topic.encode())
            if size > TOPIC_SIZE_MAX:
                raise InvalidNameError(
                    f"the name of a topic has {size} bytes; {TOPIC_SIZE_MAX} fit in a request"
                )
        if self._member.isStopped:
            raise ConsumerStateError(f"{self.consumerId} was shut down")
        if not self._isConnected:
            raise ConsumerStateError(f"{self.consumerId} is not connected yet")
        if self._subscription is not None:
            raise ConsumerStateError(f"{self.consumerId} has its streams already")
        self._subscription = subscription
        streams = {
            topic: [self._makeStream(topic, index, decode) for index in range(count)]
            for topic, count in counts.items()
        }
        self._streams.clear()
        for topic, each in streams.items():
            self._streams.update({(topic, index): stream for index, stream in enumerate(each)})
        try:
            await self._member.register(subscription)
        except ZookeeperError:
            if not self._member.isStopped:
                self._subscription = None
            raise
        if self._member.isStopped:
            raise ClosedError(f"{self.consumerId} was shut down")
        if self._settings.autoCommitEnable:
            self._autoCommit.start(self._settings.autoCommitIntervalMs / 1000, now=False)
        await self._member.join()
        return streams

    def _makeStream(
        self, topic: str, index: int, decode: Callable[[bytes], Any] | None
    ) -> MessageStream:
        settings = self._settings
        return MessageStream(
            f"{self.consumerId}-{index}{' of ' + topic if topic else ''}",
            self._clock,
            self._offsets.positions,
            decode=decode,
            isShallow=settings.shallowIteratorEnable,
            tracksIntraBatch=self._tracksIntraBatch,
            chunkCountMax=settings.queuedChunksMax,
            queuedSizeMax=settings.maxQueuedBytes,
            timeoutMs=settings.consumerTimeoutMs,
            counters=self.counters,
        )

    # -- offsets

    def commitOffsets(self) -> Deferred[None]:
        """
        Store the moved positions of all partitions of this member.

        @return: fires when they are stored. Fails with L{CommitFailedError} when some are not.
        """
        return Deferred.fromCoroutine(self._commit(self._positionedPartitions))

    async def _commit(self, partitions: Callable[[], Collection[PartitionId]]) -> None:
        failed = sorted(await self._offsets.commit(partitions))
        if failed:
            some = ", ".join(map(str, failed[:10])) + (" …" if len(failed) > 10 else "")
            plural = "" if len(failed) == 1 else "s"
            raise CommitFailedError(
                f"the positions of {len(failed)} partition{plural} were not stored: {some}"
            )

    def _positionedPartitions(self) -> list[PartitionId]:
        return self._fetchers.positionedPartitions

    async def _commitAndLog(self, partitions: Callable[[], Collection[PartitionId]]) -> None:
        """A failure that repeats itself is logged once, and its end, too."""
        try:
            await self._commit(partitions)
        except CommitFailedError as error:
            if str(error) != self._commitFailure:
                self._log.warn("{error}. It is tried again", error=error)
            self._commitFailure = str(error)
        else:
            if self._commitFailure:
                self._log.info("Positions are stored again")
            self._commitFailure = ""

    def seek(self, partition: PartitionId, offset: int) -> None:
        """
        Discard a partition's queue, reload its stored offset, and go on at C{offset}. Does nothing
        for another member's partition.

        @param offset: where a message begins. An offset that another member has stored takes
            precedence.
        """
        self._fetchers.seek(partition, offset)

    # -- shutdown

    def shutdown(self) -> Deferred[None]:
        """
        Leave the group: hand out nothing more, commit with C{autocommit.enable}, release all
        partitions. May be called at any time, and again.

        @return: fires when that is done or has failed; does not fail.
        """
        if not self._member.isStopped:
            Deferred.fromCoroutine(self._shutdown())
        return succeed(None) if self._isShutDown else self._shutdownWaiters.wait()

    def shutdownBeforeStop(self) -> None:
        """
        Shut this consumer down before the reactor stops. Otherwise after Ctrl-C the group waits for
        the session's end, and a thread in L{MessageStream.blocking} for ever.
        """
        if self._trigger is None and not self._isShutDown:
            self._trigger = self._clock.addSystemEventTrigger(
                "before", "shutdown", self._shutdownAtStop
            )

    def _shutdownAtStop(self) -> Deferred[None]:
        self._trigger = None
        return self.shutdown()

    async def _shutdown(self) -> None:
        try:
            self._member.stop()
            if self._autoCommit.running:
                self._autoCommit.stop()
            for stream in self._streams.values():
                stream.end()
            await self._member.leave(isSessionOver=self._ownsZookeeper)
            await self._fetchers.stop()
            if self._ownsZookeeper:
                await self._zookeeper.close()
            self._member.failJoin(ClosedError(f"{self.consumerId} was shut down"))
        except Exception:
            self._log.failure("A shutdown failed unexpectedly: this is a bug")
        self._isShutDown = True
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._clock.removeSystemEventTrigger(trigger)
        self._shutdownWaiters.fire(None)

    async def __aenter__(self) -> ConsumerConnector:
        if IReactorCore.providedBy(self._clock):
            self.shutdownBeforeStop()
        try:
            return await self.connect()
        except Exception:
            await self.shutdown()
            raise

    async def __aexit__(self, *_exception: object) -> None:
        await self.shutdown()
