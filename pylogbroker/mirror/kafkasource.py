"""
A source cluster of today: a member of a consumer group there, whose partitions are forwarded. A
module of its own, since a reader of one protocol need not read the other.

Messages keep key, value, headers and timestamp on their way to a cluster of today. A cluster of
2011 gets their values; a tombstone becomes an empty payload.

What must be true:

  - A position is committed only when the target has confirmed all messages before it. So the
  consumer commits nothing by itself.
  - Before a partition goes to another member, what is in flight is confirmed and committed, unless
  the target takes too long.
  - A partition that was lost, and comes back, goes on behind what was sent to the target, though
  that could not be committed. A source whose broker restarts may forget its members. That holds for
  the same topic only: one that was created again is mirrored from its first message.
  - While the target has no room, nothing is taken; but a member that takes nothing would be put out
  of its group. So it takes from paused partitions then, which have nothing to give.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from random import SystemRandom
from typing import Any

from twisted.internet.defer import (
    CancelledError,
    Deferred,
    DeferredList,
    DeferredLock,
    TimeoutError,  # noqa: A004
)
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import WildcardSubscription
from pylogbroker.config.kafka.clientsettings import KafkaProducerSettings
from pylogbroker.config.kafka.mirrorsettings import KafkaSourceSettings
from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.consumer.kafka.groupmembership import NO_GENERATION
from pylogbroker.consumer.stream import ConsumedMessage
from pylogbroker.errors import PylogbrokerError
from pylogbroker.metrics.mirrormetrics import MirrorCounters
from pylogbroker.mirror.checkpoints import OffsetSync
from pylogbroker.mirror.forwarder import Forwarder
from pylogbroker.mirror.kafkaoffsetsyncs import KafkaOffsetSyncStore, adminClient
from pylogbroker.mirror.offsetsyncs import ZookeeperOffsetSyncStore
from pylogbroker.mirror.offsettracker import COMMIT_TIMEOUT_MS, OffsetTracker
from pylogbroker.mirror.pipeline import Outage, retryForever
from pylogbroker.mirror.target import MirrorRecord, MirrorTarget, TargetCluster
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.types import BrokerPartition, PartitionId, TopicPartition

ALIVE_SECONDS = 1
"""How often a member shows that it is there while the target has no room."""

_INTERNAL = ("__",)
_INTERNAL_ENDS = (".internal", "-internal", ".replica")


def isInternal(topic: str) -> bool:
    """Whether a topic is Kafka's own or a mirror's, which are not mirrored."""
    return topic.startswith(_INTERNAL) or topic.endswith(_INTERNAL_ENDS)


def partitionIdOf(place: TopicPartition) -> PartitionId:
    """As the rooms of 2011 name it."""
    return PartitionId(place.topic, BrokerPartition(0, place.partition))


def placeOf(partitionId: PartitionId) -> TopicPartition:
    """The opposite of L{partitionIdOf}."""
    return TopicPartition(partitionId.topic, partitionId.partition.partition)


class KafkaSourceStream:
    """
    The messages of a consumer, as a L{Forwarder} takes them.

    @ivar isReading: whether the forwarder waits for a message.
    """

    def __init__(self, consumer: KafkaConsumer, name: str, isWhole: bool) -> None:
        """@param isWhole: the target takes L{MirrorRecord}s; otherwise it takes bytes."""
        self._consumer = consumer
        self._isWhole = isWhole
        self.name = name
        self.isReading = False

    def __repr__(self) -> str:
        return f"<KafkaSourceStream {self.name}>"

    def _message(self, record: ConsumerRecord) -> ConsumedMessage:
        payload = MirrorRecord(record) if self._isWhole else record.value or b""
        partition = BrokerPartition(0, record.partition)
        return ConsumedMessage(payload, record.topic, partition, record.offset + 1)

    def take(self) -> ConsumedMessage | None:
        """The next message, if there is one. Raises as L{KafkaConsumer.take}."""
        record = self._consumer.take()
        return None if record is None else self._message(record)

    async def __anext__(self) -> ConsumedMessage:
        """Wait for the next message. Raises as L{KafkaConsumer.__anext__}."""
        self.isReading = True
        try:
            return self._message(await self._consumer.__anext__())
        finally:
            self.isReading = False


class _Outlet:
    """
    The target, as the L{Forwarder} of one source sees it: a partition is prepared before its first
    message is sent, and the offsets of what was stored are noted.
    """

    def __init__(
        self, target: MirrorTarget, syncs: KafkaOffsetSyncStore | ZookeeperOffsetSyncStore
    ) -> None:
        self._target = target
        self._syncs = syncs
        self._ready: set[PartitionId] = set()
        self._taking: dict[PartitionId, DeferredLock] = {}
        self.inFlight = target.inFlight
        self.batchCountMax = target.batchCountMax
        self.batchSizeMax = target.batchSizeMax

    def forget(self, partitionId: PartitionId) -> None:
        """Another mirror may have the partition from now on."""
        self._ready.discard(partitionId)
        if isinstance(self._syncs, KafkaOffsetSyncStore):
            self._syncs.drop(placeOf(partitionId))

    def send(
        self, topic: str, payloads: list[Any], fixedTarget: BrokerPartition | None
    ) -> Deferred[Any]:
        """See L{MirrorTarget.send}; here C{fixedTarget} is the partition of the source."""
        assert fixedTarget is not None
        partitionId = PartitionId(topic, fixedTarget)
        if partitionId in self._ready:
            return self._send(partitionId, payloads)
        return Deferred.fromCoroutine(self._prepareAndSend(partitionId, payloads))

    async def _prepareAndSend(self, partitionId: PartitionId, payloads: list[Any]) -> Any:
        async with self._taking.setdefault(partitionId, DeferredLock()):  # keeps the order
            if partitionId not in self._ready:
                await self._syncs.take(partitionId)
                self._ready.add(partitionId)
            sending = self._send(partitionId, payloads)
        return await sending

    def _send(self, partitionId: PartitionId, payloads: list[Any]) -> Deferred[Any]:
        sending = self._target.send(
            partitionId.topic, payloads, self._syncs.fixedTarget(partitionId)
        )
        if isinstance(self._syncs, KafkaOffsetSyncStore):
            upstream = payloads[0].record.offset, payloads[-1].record.offset
            sending.addCallback(self._note, partitionId, upstream)
        return sending

    def _note(
        self,
        downstream: tuple[int, int] | None,
        partitionId: PartitionId,
        upstream: tuple[int, int],
    ) -> None:
        if downstream is not None and partitionId in self._ready:
            assert isinstance(self._syncs, KafkaOffsetSyncStore)
            place = placeOf(partitionId)
            first, last = (
                OffsetSync(place, *offsets) for offsets in zip(upstream, downstream, strict=True)
            )
            self._syncs.stored(first, last)


class KafkaSourceCluster:
    """
    One member of a group of a source, and the forwarder of its partitions. Members with the same
    C{group.id} share them.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        settings: KafkaSourceSettings,
        topics: WildcardSubscription,
        target: MirrorTarget,
        targetSettings: Any,
        counters: MirrorCounters,
    ) -> None:
        """@param targetSettings: L{KafkaProducerSettings} of a target of today."""
        self._reactor = reactor
        self._settings = settings
        self._topics = topics
        self._target = target
        self._targetSettings = targetSettings
        self._counters = counters
        self._tracker = OffsetTracker()
        self._topicIds: dict[str, bytes] = {}  # when a partition came last
        self._consumer: KafkaConsumer | None = None
        self._admin: AdminClient | None = None
        self._syncs: KafkaOffsetSyncStore | ZookeeperOffsetSyncStore | None = None
        self._outlet: _Outlet | None = None
        self._stream: KafkaSourceStream | None = None
        self._forwarder: Forwarder | None = None
        self._known: frozenset[str] = frozenset()
        self._work: list[Deferred[None]] = []
        self._recordLock = DeferredLock()
        self._failing: set[str] = set()
        self._loops = [
            self._loop(self._recordAndLog, settings.autoCommitIntervalMs / 1000),
            self._loop(self._findTopicsAndLog, settings.metadataMaxAgeMs / 1000),
            self._loop(self._checkpointAndLog, settings.emitCheckpointsIntervalSeconds),
            self._loop(self._stayInGroup, ALIVE_SECONDS),
        ]

    def _loop(self, work: Any, seconds: float) -> tuple[LoopingCall, float]:
        loop = LoopingCall(work)
        loop.clock = self._reactor
        return loop, seconds

    def __repr__(self) -> str:
        servers = ",".join(self._settings.bootstrapServers)
        return f"the source at {servers} (group {self._settings.groupId})"

    @property
    def isOwning(self) -> bool:
        """True if it owns its share of the partitions."""
        return self._consumer is not None and self._consumer.isOwning

    @property
    def labels(self) -> dict[str, str]:
        """Of the source, in metrics."""
        servers = ",".join(self._settings.bootstrapServers)
        return {"group": self._settings.groupId, "bootstrap_servers": servers}

    # -- the beginning

    async def run(self) -> None:
        """Join the group, with retries, and start to forward. Can be cancelled."""
        random = SystemRandom().random
        if isinstance(self._targetSettings, KafkaProducerSettings):
            self._syncs = KafkaOffsetSyncStore(self._reactor, self._settings, self._targetSettings)
        else:
            assert isinstance(self._target, TargetCluster)
            self._syncs = ZookeeperOffsetSyncStore(
                self._target.zookeeper,
                GroupPaths(self._settings.groupId),
                self._target,
                self._tracker,
                isKeeping=True,
            )
        self._consumer = KafkaConsumer(self._reactor, self._settings)
        self._admin = adminClient(self._reactor, self._settings)
        self._outlet = _Outlet(self._target, self._syncs)
        self._stream = KafkaSourceStream(
            self._consumer,
            repr(self),
            isinstance(self._targetSettings, KafkaProducerSettings),
        )
        self._forwarder = Forwarder(
            self._reactor,
            random,
            self._stream,
            self._outlet,
            self._tracker,
            self._counters,
            lambda partitionId: partitionId.partition,
            self.labels,
            self._seek,
        )
        outage = Outage(random, f"{self!r} is not there yet")
        await retryForever(self._reactor, self._findTopics, outage)
        self._log.info(
            "{source}: mirroring {pattern}", source=self, pattern=self._topics.encode().decode()
        )
        self._work = [Deferred.fromCoroutine(self._forwarder.run()).addErrback(self._logBug)]
        for loop, seconds in self._loops:
            loop.start(seconds, now=False).addErrback(self._logBug)

    def _logBug(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.failure("{source} stopped unexpectedly: this is a bug", failure, source=self)

    async def _findTopics(self) -> None:
        """
        Subscribe to the topics that there are now.

        @raise PylogbrokerError: they cannot be found out.
        """
        consumer, admin = self._consumer, self._admin
        assert consumer is not None and admin is not None
        names = await admin.listTopics()
        chosen = frozenset(
            name for name in self._topics.streamCounts(names) if not isInternal(name)
        )
        if chosen and chosen != self._known:
            self._known = chosen
            consumer.subscribe(chosen, self)

    async def _findTopicsAndLog(self) -> None:
        try:
            await self._findTopics()
        except PylogbrokerError as error:
            self._log.info("{source}: its topics are not found: {error}", source=self, error=error)

    # -- partitions come and go

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> None:
        """See L{IRebalanceListener}."""
        assert self._consumer is not None and self._outlet is not None
        positions = self._consumer.positions
        for topic in {place.topic for place in partitions}:
            self._checkId(topic)
        for place in partitions:
            partitionId, position = partitionIdOf(place), positions.get(place)
            self._outlet.forget(partitionId)
            start = self._tracker.takeBack(partitionId, position)
            if start is not None and start != position:
                self._seek(partitionId, start)

    def _checkId(self, topic: str) -> None:
        """Forget what was sent of a topic that was created again."""
        assert self._consumer is not None
        topicId = self._consumer.topicId(topic)
        if topicId == ZERO_UUID:
            return
        if self._topicIds.get(topic, topicId) != topicId:
            self._tracker.forgetGiven(topic)
        self._topicIds[topic] = topicId

    async def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> None:
        """See L{IRebalanceListener}."""
        assert self._outlet is not None
        try:
            await self._whenConfirmed(partitions).addTimeout(
                COMMIT_TIMEOUT_MS / 1000, self._reactor
            )
        except TimeoutError:
            pass  # they are read again
        await self._recordAndLog()
        self._forget(partitions)

    def partitionsLost(self, partitions: Collection[TopicPartition]) -> None:
        """See L{IRebalanceListener}."""
        self._forget(partitions)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        assert self._outlet is not None
        for place in partitions:
            self._outlet.forget(partitionIdOf(place))
            self._tracker.giveUp(partitionIdOf(place))

    def _whenConfirmed(self, partitions: Iterable[TopicPartition]) -> Deferred[Any]:
        return self._tracker.whenConfirmed(map(partitionIdOf, partitions))

    def _seek(self, partitionId: PartitionId, offset: int) -> None:
        """Read a partition again from an offset on, when all before it is confirmed."""
        consumer, place = self._consumer, placeOf(partitionId)
        assert consumer is not None
        if place not in consumer.assignment():
            return
        consumer.pause([place])
        consumer.seek(place, offset)

        def resume(_confirmed: object) -> None:
            if not consumer.isEnded and place in consumer.assignment():
                consumer.resume([place])

        self._tracker.whenConfirmed([partitionId]).addCallback(resume)

    def _stayInGroup(self) -> None:
        """Take from paused partitions while the forwarder takes nothing."""
        consumer, stream = self._consumer, self._stream
        if consumer is None or stream is None or stream.isReading or consumer.isEnded:
            return
        paused = set(consumer.paused())
        running = [place for place in consumer.assignment() if place not in paused]
        consumer.pause(running)
        try:
            consumer.take()
        except PylogbrokerError as error:
            self._counters.faultCount += 1
            self._log.error("{stream}: {error}", stream=stream.name, error=error)
        finally:
            consumer.resume(running)

    # -- commits

    async def record(self) -> None:
        """
        Commit what the target has confirmed, and write down where it is there.

        @raise PylogbrokerError: it was not committed, or not written; the next call tries again.
        """
        async with self._recordLock:
            consumer, syncs = self._consumer, self._syncs
            if consumer is None or syncs is None:
                return
            if consumer.groupMetadata().generationId == NO_GENERATION:
                return  # others may have the partitions: a commit would be refused
            stored = syncs.takeStored() if isinstance(syncs, KafkaOffsetSyncStore) else {}
            try:
                committed = await self._commit(consumer)
                known = [sync for sync in stored.values() if sync.place in committed]
                if isinstance(syncs, KafkaOffsetSyncStore):
                    await syncs.write(known)
                else:
                    positions = {
                        partitionIdOf(place): each for place, each in consumer.positions.items()
                    }
                    await syncs.record(list(positions), positions)
            except PylogbrokerError:
                if isinstance(syncs, KafkaOffsetSyncStore):
                    syncs.restore(stored, set(consumer.assignment()))
                raise

    async def _commit(self, consumer: KafkaConsumer) -> Collection[TopicPartition]:
        """Returns what was committed."""
        offsets = {}
        for place, position in consumer.positions.items():
            offset = self._tracker.committableOffset(partitionIdOf(place), position)
            if offset is not None:
                offsets[place] = offset
        if offsets:
            await consumer.commitOffsets(offsets)
            self._counters.commitCount += len(offsets)
        return offsets

    async def checkpoint(self) -> None:
        """
        Translate the positions of the source's groups, in a target of today.

        @raise PylogbrokerError: a cluster does not answer; the next call tries again.
        """
        if isinstance(self._syncs, KafkaOffsetSyncStore) and self._consumer is not None:
            await self._syncs.checkpoint(self._consumer.assignment())

    async def _recordAndLog(self) -> None:
        await self._logged("committed its positions", self.record)

    async def _checkpointAndLog(self) -> None:
        await self._logged("translated the positions of groups", self.checkpoint)

    async def _logged(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """A failure that repeats itself is logged once."""
        try:
            await work()
        except PylogbrokerError as error:
            if what not in self._failing:
                self._log.warn(
                    "{source} has not {what}: {error}. It is tried again",
                    source=self,
                    what=what,
                    error=error,
                )
            self._failing.add(what)
        else:
            self._failing.discard(what)

    # -- the end

    async def pause(self) -> None:
        """Take no more messages."""
        if self._forwarder is not None:
            self._forwarder.stop()
        for work in self._work:
            work.cancel()
        await DeferredList(self._work, consumeErrors=True)

    async def leave(self) -> None:
        """Commit the confirmed offsets and leave the group."""
        for loop, _seconds in self._loops:
            if loop.running:
                loop.stop()
        await self._recordAndLog()
        if self._consumer is not None:
            await self._consumer.close()
        if self._forwarder is not None:
            self._forwarder.abort()
        if isinstance(self._syncs, KafkaOffsetSyncStore):
            await self._syncs.close()
        if self._admin is not None:
            await self._admin.close()
