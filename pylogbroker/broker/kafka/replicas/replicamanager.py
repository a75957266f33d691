"""
L{ReplicaManager}: the partitions of this broker that other brokers have, too. It carries out what
the pure machines of L{pylogbroker.replication} decide.

What must be true:

  - After each change of the metadata each replica leads, follows, or does neither, as they say
  (L{PartitionReplica.metadataChanged}); one with an older leader epoch changes nothing. A replica
  is never given another role while its log is written or truncated; the change waits for the end.
  - The replicas of a registration act from it on: before, and in the next one, what the metadata
  say is about another process. When the broker is registered anew, all of them begin anew.
  - Only a leader's log takes what producers send, and only a follower's what a leader sends
  (C{BatchLog.isFollowing}).
  - A leader's in-sync set changes by the metadata log: the request is decided on the latest image
  (L{alterPartition}), and the leader learns the outcome from it, with all changes before.
  - A partition whose log fails is given up in the metadata, so that another replica leads. Those
  that fail together, as with their disk, are given up together.
  - A partition at rest costs nothing: the clock looks only at those where something has happened
  (L{LeaderReplica.isAtRest}), and a change of the metadata only at those that it concerns.

B{Acknowledgements} are durable by default: a leader counts what is flushed, and a follower names
what is flushed. With C{log.flush.acks.all=false} both count what is written to the page cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from twisted.internet.defer import Deferred, fail
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.interbroker import InterBrokerConnections
from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.broker.kafka.fetchsessions import FetchSessionCache
from pylogbroker.broker.kafka.replicas.replicafetcher import FetchSettings, ReplicaFetcher
from pylogbroker.broker.kafka.topics import TopicManager, batchLog
from pylogbroker.broker.logmanager import LogManager, Partition, ReplicaProgress
from pylogbroker.cluster.kafka.metadatalog import beginningOf
from pylogbroker.cluster.metadataimage import MetadataImage, Record, TopicImage
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import PylogbrokerError, StorageError
from pylogbroker.metrics.counters import ReplicationCounters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.controller import (
    AlterPartition,
    PartitionKey,
    alterPartition,
    loseReplicas,
    minInSyncReplicas,
    settle,
    shutDownBroker,
)
from pylogbroker.replication.elections import NO_LEADER
from pylogbroker.replication.follower import (
    AppendRecords,
    FetchState,
    Flush,
    FollowerReplica,
    SetHighWatermark,
    StartOver,
    Truncate,
)
from pylogbroker.replication.leader import (
    LeaderReplica,
    MoveHighWatermark,
    PartitionState,
    ProposeInSync,
)
from pylogbroker.replication.replica import (
    PartitionReplica,
    ReplicaEffect,
    ReplicaSettings,
    StopLeading,
)
from pylogbroker.replication.replicafetch import UNDEFINED, ReplicaFetch, ReplicaFetchAnswer
from pylogbroker.replication.replicaselector import NO_REPLICA, preferredReadReplica
from pylogbroker.replication.replicationquota import ReplicationQuota
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.epochs import LeaderEpochs
from pylogbroker.storage.partitionlog import MarkKind

FIRST_BACK_OFF_MS = 20
"""How long a follower waits at first for a broker that does not know yet that it leads."""

TICK_MS = 500
"""How often a leader looks for followers that are behind, at the least."""

log = Logger()


class _Log:
    """A replica's log, as its machine wants it."""

    def __init__(self, batches: BatchLog, isFlushed: bool) -> None:
        self._batches = batches
        self._isFlushed = isFlushed

    @property
    def epochs(self) -> LeaderEpochs:
        return self._batches.epochs

    @property
    def logEndOffset(self) -> int:
        return self._batches.logEndOffset

    @property
    def logStartOffset(self) -> int:
        return self._batches.logStartOffset

    @property
    def flushedOffset(self) -> int:
        """The end of the records that an acknowledgement may promise."""
        found = self._batches
        return found.flushedOffset if self._isFlushed else found.writtenOffset

    def assignEpoch(self, epoch: int) -> None:
        self._batches.assignEpoch(epoch)

    def followEpoch(self, epoch: int) -> None:
        self._batches.followEpoch(epoch)


class _Seen(NamedTuple):
    """What a machine was told last: the state, and in which registration."""

    state: PartitionState
    epoch: int


class HostedReplica:
    """
    A replica on this broker.

    @ivar key: the topic's id, and the partition's number.
    @ivar machine: decides; L{None} before the first registration, and after the release.
    @ivar isWriting: a leader's batches are appended, or the log is truncated.
    @ivar isAsking: a change of the in-sync set is under way.
    @ivar sent: the last in-sync set that was asked for.
    @ivar hasFailed: the failure of the log was seen.
    @ivar fetcher: of the leader that the replica follows; L{None}: it follows none.
    @ivar deletions: those who wait until records before an offset are deleted on all replicas in
        sync.
    """

    __slots__ = (
        "deletions",
        "epoch",
        "fetcher",
        "hasFailed",
        "index",
        "isAsking",
        "isLeading",
        "isReleased",
        "isWriting",
        "key",
        "machine",
        "partition",
        "seen",
        "sent",
        "topic",
    )

    def __init__(self, topic: TopicImage, index: int, partition: Partition) -> None:
        self.topic = topic
        self.index = index
        self.key = topic.topicId.bytes, index
        self.partition = partition
        self.machine: PartitionReplica | None = None
        self.epoch = -1
        self.seen: _Seen | None = None
        self.sent: AlterPartition | None = None
        self.fetcher: ReplicaFetcher | None = None
        self.isWriting = self.isAsking = self.isLeading = False
        self.isReleased = self.hasFailed = False
        self.deletions: list[tuple[int, Deferred[int]]] = []

    @property
    def follower(self) -> FollowerReplica | None:
        return None if self.machine is None else self.machine.follower

    @property
    def log(self) -> BatchLog:
        return batchLog(self.partition)


class ReplicaManager:
    """
    The replicas of this broker; the module states the rules.

    @ivar leaderQuota: throttles what is sent to followers that are behind.
    @ivar followerQuota: throttles what is fetched for replicas that are behind.
    """

    def __init__(
        self,
        clock: Any,
        topics: TopicManager,
        logManager: LogManager,
        connections: InterBrokerConnections,
        settings: BrokerSettings,
        sessions: FetchSessionCache,
        counters: ReplicationCounters,
    ) -> None:
        """
        @param connections: to the leaders.
        @param sessions: of the replicas that follow this one.
        """
        self._counters = counters
        self.leaderQuota = ReplicationQuota.ofLeaders(settings.brokerId)
        self.followerQuota = ReplicationQuota.ofFollowers(settings.brokerId)
        self._clock = clock
        self._topics = topics
        self._metadata = topics.metadata
        self._logManager = logManager
        self._connections = connections
        self._settings = settings
        self._sessions = sessions
        self._isFlushed = settings.logFlushAcksAll
        self._replicaSettings = ReplicaSettings(
            True,
            settings.replicaLagTimeMaxMs,
            settings.replicaFetchBackoffMs,
            min(FIRST_BACK_OFF_MS, settings.replicaFetchBackoffMs),
        )
        self._fetchSettings = FetchSettings(
            settings.brokerId,
            settings.replicaFetchMaxBytes,
            settings.replicaFetchResponseMaxBytes,
            settings.replicaFetchMinBytes,
            settings.replicaFetchWaitMaxMs,
            settings.replicaFetchBackoffMs,
        )
        self._replicas: dict[Partition, HostedReplica] = {}
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._active: dict[HostedReplica, None] = {}  # not at rest: the clock looks at them
        self._lost: dict[PartitionKey, None] = {}  # to be given up: they have no log that works
        self._isGivingUp = False
        self._gathering = Timer(clock)
        self._delayed: dict[HostedReplica, None] = {}  # for less than the usual back-off
        self._retryTimer = Timer(clock)
        self._epoch = -1
        self._followed: tuple[Any, ...] = ()
        self._timer = LoopingCall(self._tick)
        self._timer.clock = clock
        self._isStarted = self._isStopped = False

    # -- start and stop

    def start(self) -> None:
        """Act on the metadata. The topics have started."""
        self._isStarted = True
        self._metadata.listen(self._onMetadata)
        self._startTicks()

    def _startTicks(self) -> None:
        """The first replica starts them, or the first to be given up."""
        isRunning = self._isStarted and not self._isStopped
        if isRunning and (self._replicas or self._lost) and not self._timer.running:
            intervalMs = min(TICK_MS, self._settings.replicaLagTimeMaxMs // 4 + 1)
            self._timer.start(intervalMs / 1000, now=False).addErrback(_bug)

    def stop(self) -> None:
        """
        Fetch no more. Requests that wait for followers are told that this broker does not lead
        any more.
        """
        self._isStopped = True
        self._gathering.stop()
        self._retryTimer.stop()
        if self._timer.running:
            self._timer.stop()
        for fetcher in self._fetchers.values():
            fetcher.stop()
        for each in self._replicas.values():
            if each.machine is not None:
                self._perform(each, each.machine.resign())

    async def shutDown(self) -> None:
        """
        Let other brokers lead what they can lead, before this one stops; give up after
        C{controlled.shutdown.max.retries}.
        """
        settings = self._settings
        self._register()
        if not settings.controlledShutdownEnable or self._epoch < 0:
            return

        def decide(image: MetadataImage) -> tuple[list[Record], tuple[ErrorCode, bool]]:
            error, records = shutDownBroker(image, settings.brokerId, self._epoch)
            if error is ErrorCode.NONE and not records:
                records = settle(image)  # what is left of a decision that did not fit
            some = beginningOf(records)
            return some, (error, bool(some))

        backOffMs = settings.controlledShutdownRetryBackoffMs
        for triesLeft in reversed(range(settings.controlledShutdownMaxRetries + 1)):
            try:
                error, hasMore = ErrorCode.NONE, True
                while hasMore:
                    changing = self._metadata.change(decide)
                    changing.addTimeout(max(backOffMs, 1) / 1000, self._clock)
                    error, hasMore = await changing
                if error is ErrorCode.NONE and self._replicas:
                    log.info("Other brokers lead what this one has led, as far as they can")
                return
            except (PylogbrokerError, DeferredTimeoutError) as failure:
                if triesLeft and isinstance(failure, PylogbrokerError):
                    await _pause(self._clock, backOffMs)
        log.warn("The broker stops without a successor for what it leads")

    # -- what the metadata want

    @property
    def image(self) -> MetadataImage:
        return self._metadata.image

    def nowMs(self) -> int:
        return int(self._clock.seconds() * 1000)

    def host(self, topic: TopicImage, index: int, partition: Partition) -> None:
        """As L{pylogbroker.broker.kafka.topics.IReplicas}."""
        found = self._replicas.get(partition)
        if found is None or found.topic.topicId != topic.topicId:
            found = self._replicas[partition] = HostedReplica(topic, index, partition)
            found.log.isFollowing = True
            found.log.onNews = partial(self._tellNews, found)
            if found.log.failure is not None:
                self._active[found] = None
            self._startTicks()
        self._follow(found)

    def creationFailed(self, topic: TopicImage, index: int) -> None:
        """As L{pylogbroker.broker.kafka.topics.IReplicas}."""
        key = topic.topicId, index
        if topic.isReplicated(index) and _mayLead(self.image, key, self._topics.brokerId):
            self._lose(key)

    def release(self, partition: Partition) -> None:
        """As L{pylogbroker.broker.kafka.topics.IReplicas}."""
        found = self._replicas.pop(partition, None)
        if found is not None:
            found.isReleased = True
            found.log.onNews = _nothing
            self._active.pop(found, None)
            self._lost.pop((found.topic.topicId, found.index), None)
            if found.machine is not None:
                self._perform(found, found.machine.resign())
            self._fetchFrom(found, NO_LEADER)
            found.machine = None

    def awaitDeletion(self, partition: Partition, offset: int) -> Deferred[int]:
        """As L{pylogbroker.broker.kafka.topics.IReplicas}."""
        replica = self._replicas.get(partition)
        if replica is None or not replica.isLeading:
            return fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

        def cancelled(waiting: Deferred[int]) -> None:
            replica.deletions = [each for each in replica.deletions if each[1] is not waiting]

        waiting: Deferred[int] = Deferred(cancelled)
        replica.deletions.append((offset, waiting))
        self._endDeletions(replica)
        return waiting

    def _endDeletions(self, replica: HostedReplica) -> None:
        """Tell those who wait for a deletion that it is over, or cannot be waited for any more."""
        leader = None if replica.machine is None else replica.machine.leader
        waiting, replica.deletions = replica.deletions, []
        if leader is None or not replica.isLeading:
            for _offset, each in waiting:
                each.errback(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        low = leader.lowWatermark(self._logManager.flushedStart(replica.partition))
        replica.deletions = [each for each in waiting if each[0] > low]
        for offset, each in waiting:
            if offset <= low:
                each.callback(low)

    def logStartOf(self, replica: HostedReplica) -> int:
        """The log start that a follower tells its leader."""
        return self._logManager.flushedStart(replica.partition)

    # -- readers

    def isFollowing(self, partition: Partition, topicId: UUID, leaderEpoch: int) -> bool:
        """As L{pylogbroker.broker.kafka.topics.IReplicas}."""
        found = self._replicas.get(partition)
        follower = None if found is None else found.follower
        if found is None or follower is None or follower.state is FetchState.FAILED:
            return False
        return found.topic.topicId == topicId and follower.leaderEpoch == leaderEpoch

    def leaderHighWatermark(self, partition: Partition) -> int:
        """What the leader of a partition that is followed has told last; -1: nothing."""
        found = self._replicas.get(partition)
        follower = None if found is None else found.follower
        return -1 if follower is None else follower.leaderHighWatermark

    def preferredReadReplica(
        self, partition: Partition, rack: str, offset: int, racks: Mapping[int, str | None]
    ) -> int:
        """
        The follower from which a consumer is to read what this broker leads.

        @return: as L{preferredReadReplica}.
        """
        found = self._replicas.get(partition)
        leader = None if found is None or found.machine is None else found.machine.leader
        if leader is None:
            return NO_REPLICA
        return preferredReadReplica(leader, rack, offset, racks)

    # -- throttles

    def _covers(self, quota: ReplicationQuota, replica: HostedReplica) -> bool:
        topic = self.image.topicsById.get(replica.topic.topicId)
        return topic is not None and quota.covers(topic, replica.index)

    def isReadThrottled(self, partition: Partition, replicaId: int) -> bool:
        """
        Whether a follower is given no records of a partition now; never one that is in sync.

        @param replicaId: the follower.
        """
        quota = self.leaderQuota
        if quota.rate is None or not quota.isExceeded(self.nowMs()):
            return False
        found = self._replicas.get(partition)
        leader = None if found is None or found.machine is None else found.machine.leader
        if found is None or leader is None or replicaId in leader.inSync:
            return False
        return self._covers(quota, found)

    def onReplicaRead(self, partition: Partition, size: int) -> None:
        """Records of a partition are sent to a follower."""
        quota, found = self.leaderQuota, self._replicas.get(partition)
        if quota.rate is not None and found is not None and self._covers(quota, found):
            quota.record(size, self.nowMs())
            self._counters.leaderThrottledSize += size

    def isThrottled(self, replica: HostedReplica, follower: FollowerReplica) -> bool:
        """Whether nothing is to be fetched for a replica now; never for one that is in sync."""
        quota = self.followerQuota
        if quota.rate is None or follower.isCaughtUp:
            return False
        return quota.isExceeded(self.nowMs()) and self._covers(quota, replica)

    def _onFetchedRecords(self, replica: HostedReplica, size: int) -> None:
        quota = self.followerQuota
        if quota.rate is not None and self._covers(quota, replica):
            quota.record(size, self.nowMs())
            self._counters.followerThrottledSize += size

    # -- roles

    def _onMetadata(self) -> None:
        """
        A change of a partition, or of its topic, comes by L{host}; what concerns all of them is
        looked for here.
        """
        self._register()
        image = self.image
        self.leaderQuota.follow(image)
        self.followerQuota.follow(image)
        followed = self._epoch, image.brokers, image.brokerConfigs.get("")
        if followed != self._followed:
            self._followed = followed
            for each in list(self._replicas.values()):
                self._follow(each)

    def _tellNews(self, replica: HostedReplica) -> None:
        """A log has changed: the followers are to know, and the clock is to look."""
        if replica.isLeading or replica.log.failure is not None:
            self._active[replica] = None
            self._sessions.tell(replica.key)

    def _register(self) -> None:
        """
        Take over this process's registration. A session that is not proved for a while does not end
        it: then another broker may, and the metadata say so.
        """
        broker = self.image.brokers.get(self._topics.brokerId)
        if broker is not None and self._metadata.isCurrent:
            self._epoch = broker.epoch

    def _follow(self, replica: HostedReplica) -> None:
        """Act on the metadata, unless the log is being written: then the end of that does."""
        if replica.isWriting or self._epoch < 0 or self._isStopped or replica.isReleased:
            return
        image = self.image
        topic = image.topicsById.get(replica.topic.topicId)
        if topic is None or not topic.isReplicated(replica.index):
            return  # the topics follow, and release it
        replica.topic = topic
        state = PartitionState(
            topic.partitions[replica.index], image.brokers, minInSyncReplicas(image, topic)
        )
        seen = _Seen(state, self._epoch)
        if seen == replica.seen:
            return
        replica.seen = seen
        if replica.machine is None or replica.epoch != self._epoch:
            if replica.machine is not None:
                self._perform(replica, replica.machine.resign())
            replica.epoch = self._epoch
            replica.hasFailed = False  # what was said of the log was said of that registration
            replica.machine = PartitionReplica(
                topic.topicId,
                replica.index,
                self._topics.brokerId,
                self._epoch,
                _Log(replica.log, self._isFlushed),
                replica.log.highWatermark,
                self._replicaSettings,
            )
        self._failed(replica)
        self._perform(replica, replica.machine.metadataChanged(state, self.nowMs()))

    def _settle(self, replica: HostedReplica) -> None:
        """The role of a replica may be another one now."""
        partition, machine = replica.partition, replica.machine
        leader = None if machine is None else machine.leader
        follower = None if machine is None else machine.follower
        partition.lacksInSync = leader is not None and not leader.hasEnoughInSync
        outOfSync = () if leader is None else leader.outOfSync
        if outOfSync != partition.outOfSync:
            partition.outOfSync = outOfSync
            self._sessions.tell(replica.key)
        if leader is not None and not replica.isLeading:
            replica.isLeading = True
            replica.log.isFollowing = False
            log.info(
                "Leading {topicPartition} in epoch {epoch}, from offset {offset}",
                topicPartition=partition.topicPartition,
                epoch=leader.leaderEpoch,
                offset=leader.epochStartOffset,
            )
            partition.sentWatermarks.clear()
            partition.onReplicaFetch = lambda fetch: self._fetched(replica, fetch)
            replica.log.onFlushed = lambda: self._logChanged(replica)
            if not self._isFlushed:
                partition.onWritten = replica.log.onFlushed
            self._topics.lead(replica.topic, replica.index)
        self._fetchFrom(replica, NO_LEADER if follower is None else follower.leader)
        if replica.deletions:
            self._endDeletions(replica)

    def _fetchFrom(self, replica: HostedReplica, leader: int) -> None:
        """Have the fetcher of a leader fetch a partition, and no other."""
        wanted: ReplicaFetcher | None = None
        if leader not in (NO_LEADER, self._topics.brokerId) and not self._isStopped:
            wanted = self._fetchers.get(leader)
            if wanted is None:
                wanted = self._fetchers[leader] = ReplicaFetcher(
                    self._clock, leader, self._connections, self._fetchSettings, self
                )
        if replica.fetcher is not wanted:
            if replica.fetcher is not None:
                replica.fetcher.remove(replica)
            replica.fetcher = wanted
            if wanted is not None:
                log.info(
                    "{topicPartition} follows broker {leader}",
                    topicPartition=replica.partition.topicPartition,
                    leader=leader,
                )
                wanted.add(replica)
        elif wanted is not None:
            wanted.wake(replica)

    # -- effects

    def _perform(self, replica: HostedReplica, effects: Sequence[ReplicaEffect]) -> None:
        """Carry out what a machine wants, except what needs an answer's records."""
        for effect in effects:
            if isinstance(effect, MoveHighWatermark):
                replica.partition.setHighWatermark(effect.offset)
            elif isinstance(effect, SetHighWatermark):
                replica.partition.setHighWatermark(effect.offset)
                self._followStart(replica, effect.logStartOffset)
            elif isinstance(effect, ProposeInSync):
                self._propose(replica, effect.request)
            elif isinstance(effect, StopLeading):
                self._stopLeading(replica)
            elif isinstance(effect, Flush):
                self._flush(replica)
            elif isinstance(effect, Truncate):
                self._truncate(replica, effect)
            elif isinstance(effect, StartOver):
                self._startOver(replica, effect.offset)
        self._settle(replica)
        if replica.isLeading:
            self._active[replica] = None

    def _stopLeading(self, replica: HostedReplica) -> None:
        partition = replica.partition
        replica.isLeading = False
        partition.onReplicaFetch = partition.onWritten = None
        replica.log.onFlushed = _nothing
        self._topics.unlead(replica.topic, replica.index)
        log.info("{topicPartition} is not led any more", topicPartition=partition.topicPartition)
        replica.log.stopLeading()
        self._sessions.tell(replica.key)

    def _flush(self, replica: HostedReplica) -> None:
        """Flush what was appended as a follower, or write it, as an acknowledgement promises."""
        machine, partition = replica.machine, replica.partition

        def flushed(error: StorageError | None) -> None:
            if replica.machine is not machine or machine is None:
                return
            if error is None:
                self._perform(replica, machine.logChanged(self.nowMs()))
            elif replica.log.isOffline:
                self._failed(replica)

        partition.write()
        mark = MarkKind.FLUSHED if self._isFlushed else MarkKind.WRITTEN
        replica.log.whenReached(mark, replica.log.logEndOffset, flushed)
        if self._isFlushed:
            self._logManager.flush(partition)  # at once: nothing comes that could share it

    # -- as a follower

    def answered(
        self,
        replica: HostedReplica,
        follower: FollowerReplica,
        request: ReplicaFetch,
        answer: ReplicaFetchAnswer,
        records: Any,
    ) -> None:
        """
        The leader has answered.

        @param follower: that has asked; if the replica has another one now, nothing is done.
        @param records: bytes, or L{None}.
        """
        if replica.follower is not follower:
            return
        hasRecords = bool(records) and len(records) > 0
        effects = follower.answered(request, answer, hasRecords, self.nowMs())
        if effects and isinstance(effects[0], AppendRecords):
            data = bytes(records)
            self._onFetchedRecords(replica, len(data))
            self._write(replica, follower, self._append(replica, follower, data))
            return
        self._perform(replica, effects)
        if follower.state is FetchState.DELAYED:
            self._retryLater(replica, follower)

    def _retryLater(self, replica: HostedReplica, follower: FollowerReplica) -> None:
        """Where the usual back-off, for which the fetcher waits, is too long."""
        leftMs = follower.retryMs - self.nowMs()
        if leftMs < self._settings.replicaFetchBackoffMs:
            self._delayed[replica] = None
            if not self._retryTimer.isRunning:
                self._retryTimer.start(leftMs + 1, self._retry)

    def _retry(self) -> None:
        delayed, self._delayed = self._delayed, {}
        for replica in delayed:
            follower = replica.follower
            if follower is not None and follower.state is FetchState.DELAYED:
                if follower.retryMs > self.nowMs():
                    self._retryLater(replica, follower)
                elif replica.fetcher is not None:
                    replica.fetcher.wake(replica)

    def unanswered(
        self, replica: HostedReplica, follower: FollowerReplica, request: ReplicaFetch
    ) -> None:
        """No answer came."""
        if replica.follower is follower:
            self._perform(replica, follower.unanswered(request, self.nowMs()))

    async def _append(
        self,
        replica: HostedReplica,
        follower: FollowerReplica,
        data: bytes,
    ) -> None:
        partition = replica.partition
        try:
            await partition.appendAsFollower(data)
        except PylogbrokerError as error:
            await self._refused(replica, error)
            if replica.log.isOffline:
                return
        replica.isWriting = False
        if replica.follower is follower:
            self._perform(replica, follower.appended(replica.log.logEndOffset))

    async def _refused(self, replica: HostedReplica, error: PylogbrokerError) -> None:
        if replica.isReleased:
            return
        log.error(
            "What the leader of {topicPartition} has sent cannot be taken: {error}",
            topicPartition=replica.partition.topicPartition,
            error=error,
        )
        if replica.log.isOffline:
            self._failed(replica)
        else:
            await _pause(self._clock, self._settings.replicaFetchBackoffMs)

    def _truncate(self, replica: HostedReplica, effect: Truncate) -> None:
        follower = replica.follower
        assert follower is not None
        if effect.isBelowHighWatermark:
            log.critical(
                "{topicPartition} drops committed records from offset {offset} on: its leader does"
                " not have them, after an unclean election",
                topicPartition=replica.partition.topicPartition,
                offset=effect.offset,
            )

        async def truncate() -> None:
            while not await self._cut(replica, effect.offset, False):
                pass
            replica.isWriting = False
            if replica.follower is follower:
                self._perform(replica, follower.truncated(replica.log.logEndOffset))

        self._write(replica, follower, truncate())

    def _startOver(self, replica: HostedReplica, offset: int) -> None:
        follower = replica.follower
        assert follower is not None

        async def startOver() -> None:
            while not await self._cut(replica, offset, True):
                pass
            replica.isWriting = False
            if replica.follower is follower:
                self._perform(replica, follower.startedOver(offset))

        self._write(replica, follower, startOver())

    async def _cut(self, replica: HostedReplica, offset: int, isAnew: bool) -> bool:
        """@return: whether it is done, or cannot be done any more."""
        try:
            await replica.partition.truncate(offset, isAnew)
        except PylogbrokerError as error:
            await self._refused(replica, error)
            return replica.isReleased or replica.log.isOffline
        return True

    def _write(
        self, replica: HostedReplica, follower: FollowerReplica, work: Awaitable[None]
    ) -> None:
        replica.isWriting = True

        async def write() -> None:
            try:
                await work
            finally:
                replica.isWriting = False
            self._follow(replica)
            if replica.fetcher is not None:
                replica.fetcher.wake(replica)

        Deferred.fromCoroutine(write()).addErrback(_bug)

    def _followStart(self, replica: HostedReplica, offset: int) -> None:
        """
        The leader's log begins later now: so does this one, up to the high watermark. In the turn
        in which that moves, since what the leader has deleted may be another leader's here.
        """
        found = replica.log
        start = min(offset, found.highWatermark)
        if start > found.logStartOffset and not found.isOffline:
            deleting = Deferred.fromCoroutine(
                self._logManager.deleteRecords(replica.partition, start)
            )
            deleting.addErrback(_ignoreErrors).addCallback(self._startMoved, replica)
            deleting.addErrback(_bug)

    @staticmethod
    def _startMoved(_offset: object, replica: HostedReplica) -> None:
        """The leader is to know the log start, which is durable now."""
        if replica.fetcher is not None:
            replica.fetcher.wake(replica)

    # -- as a leader

    def _fetched(self, replica: HostedReplica, fetch: ReplicaProgress) -> None:
        """
        A follower has fetched.

        @raise KafkaError: what the follower says does not count.
        """
        self._failed(replica)
        machine = replica.machine
        if machine is None or machine.leader is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        leader, nowMs = machine.leader, self.nowMs()
        self._perform(replica, machine.logChanged(nowMs))
        request = ReplicaFetch(
            fetch.replicaId,
            fetch.replicaEpoch,
            leader.leaderEpoch,
            fetch.offset,
            UNDEFINED,
            0,
            fetch.logStartOffset,
        )
        answer, effects = leader.fetched(request, replica.log.logStartOffset, nowMs)
        self._perform(replica, effects)
        if answer.error is not ErrorCode.NONE:
            raise KafkaError(answer.error)

    def _logChanged(self, replica: HostedReplica) -> None:
        """The leader's log was flushed, or written."""
        if replica.machine is not None:
            self._perform(replica, replica.machine.logChanged(self.nowMs()))

    def _propose(self, replica: HostedReplica, request: AlterPartition) -> None:
        """
        Ask for another in-sync set. Without an outcome, the leader asks again.

        A follower that does not fetch is not joined. It would have to leave again, and hold the
        high watermark back until then. But what was sent once may come about yet.
        """
        if replica.isAsking:
            return
        asked = request
        leader = None if replica.machine is None else replica.machine.leader
        if leader is not None and asked != replica.sent:
            request = self._withoutSilent(replica, leader, asked)
            if {each.brokerId for each in request.inSync} == {*_inSync(replica)}:
                refused = ErrorCode.INELIGIBLE_REPLICA
                self._perform(replica, leader.alterPartitionRefused(asked, refused, self.nowMs()))
                return
        replica.sent = asked
        replica.isAsking = True

        def decide(image: MetadataImage) -> tuple[list[Record], ErrorCode]:
            error, records = alterPartition(image, request)
            return records, error

        def decided(error: ErrorCode) -> None:
            replica.isAsking = False
            leader = None if replica.machine is None else replica.machine.leader
            if error is not ErrorCode.NONE and leader is not None and leader.pending == asked:
                effects = leader.alterPartitionRefused(asked, error, self.nowMs())
                self._perform(replica, effects)

        def failed(failure: Failure) -> None:
            replica.isAsking = False
            failure.trap(PylogbrokerError)
            log.warn(
                "The in-sync set of {topicPartition} could not be changed: {error}",
                topicPartition=replica.partition.topicPartition,
                error=failure.value,
            )

        self._metadata.change(decide).addCallbacks(decided, failed).addErrback(_bug)

    def _withoutSilent(
        self, replica: HostedReplica, leader: LeaderReplica, request: AlterPartition
    ) -> AlterPartition:
        known, sinceMs = _inSync(replica), self.nowMs() - self._settings.replicaLagTimeMaxMs
        kept = []
        for each in request.inSync:
            follower = leader.followers.get(each.brokerId)
            if each.brokerId in known or follower is None or follower.lastFetchMs >= sinceMs:
                kept.append(each)
        return request._replace(inSync=tuple(kept))

    # -- the clock, and disks

    def _tick(self) -> None:
        self._onMetadata()  # the broker may have been registered since the last change
        nowMs = self.nowMs()
        active, self._active = self._active, {}
        for each in active:
            if each.log.failure is not None:
                self._failed(each)
            elif each.machine is not None and each.machine.leader is not None:
                self._perform(each, each.machine.logChanged(nowMs))
                if each.machine.leader is not None:
                    self._perform(each, each.machine.leader.timePassed(nowMs))
            leader = None if each.machine is None else each.machine.leader
            if leader is not None and leader.isAtRest:
                self._active.pop(each, None)
        self._giveUp()

    def _failed(self, replica: HostedReplica) -> None:
        """A log is out of service: let another replica lead."""
        if replica.hasFailed or replica.isReleased or replica.log.failure is None:
            return
        replica.hasFailed = True
        if replica.machine is not None:
            self._perform(replica, replica.machine.logFailed())
        self._lose((replica.topic.topicId, replica.index))

    def _lose(self, key: PartitionKey) -> None:
        self._lost[key] = None
        self._startTicks()
        if not self._gathering.isRunning:  # others fail in the same turn, with their disk
            self._gathering.start(0, self._giveUp)

    def _giveUp(self) -> None:
        """
        Give up what has failed, in one change, or in as few as it fits in. What fails meanwhile is
        given up with the next one.
        """
        if not self._lost or self._isGivingUp or self._isStopped:
            return
        self._isGivingUp = True
        asked: list[PartitionKey] = []

        def decide(image: MetadataImage) -> tuple[list[Record], bool]:
            asked[:] = self._lost
            records = loseReplicas(image, self._topics.brokerId, self._epoch, asked)[1]
            some = beginningOf(records)
            return some, len(some) == len(records)

        def decided(isWhole: bool) -> None:
            self._isGivingUp = False
            if isWhole:
                for each in asked:
                    self._lost.pop(each, None)
            self._giveUp()

        def failed(failure: Failure) -> None:
            self._isGivingUp = False
            failure.trap(PylogbrokerError)  # the clock tries again
            log.warn(
                "{count} replicas whose logs have failed could not be given up: {error}. It is"
                " tried again",
                count=len(asked),
                error=failure.value,
            )

        self._metadata.change(decide).addCallbacks(decided, failed).addErrback(_bug)


def _mayLead(image: MetadataImage, key: PartitionKey, brokerId: int) -> bool:
    """Whether a broker leads a partition, or may be elected its leader."""
    topicId, index = key
    topic = image.topicsById.get(topicId)
    if topic is None or index >= len(topic.partitions):
        return False
    part = topic.partitions[index]
    return brokerId in (part.leader, part.lastKnownLeader, *part.inSync, *part.eligibleLeaders)


def _inSync(replica: HostedReplica) -> tuple[int, ...]:
    """The in-sync set, as the leader has seen it last."""
    return () if replica.seen is None else replica.seen.state.partition.inSync


def _pause(clock: Any, ms: float) -> Deferred[None]:
    paused: Deferred[None] = Deferred()
    Timer(clock).start(ms, paused.callback, None)
    return paused


def _nothing() -> None:
    """What a log calls that is not led."""


def _ignoreErrors(failure: Failure) -> None:
    failure.trap(PylogbrokerError)  # the log says so; the next answer tries again


def _bug(failure: Failure) -> None:
    log.failure("Replicating failed: this is a bug", failure)
