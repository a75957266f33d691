"""
L{Partition} admits appends; L{LogManager} moves their data to the disk, by the clock. What would
block, the kernel does (L{AioFsync}), or a worker thread.

The states of a partition's data:

 - I{pending}: appended in this turn, in memory. One gather-write moves it to the page cache at the
 end of the turn, or at once above L{WRITE_SIZE_MAX}.
 - I{unflushed}: in the page cache. A flush makes it durable, which moves the high watermark. It
 starts when enough messages are unflushed (I{by count}), when the oldest has waited long enough
 (I{by time}), or when the bytes exceed a limit (I{by size}). A partition has one flush at a time.
 - I{disk-blocked}: the disk is full. Accepted data stays in memory and is written again by the
 clock. Other partitions continue.
 - I{failed}: another error of a write or flush. A failed C{fsync} is never repeated: the kernel may
 have dropped the pages, and a second call would report success. The partition is out of service.

Group commit: an answer to C{acks=all} waits for the flushed offset, and so, by setting, does a
fetch that waits for new records. Such a wait starts a flush at the end of the turn. All that is
appended by then is covered by one C{fsync}; what comes while it runs, by the next, which begins
when it ends.

Gathering: a producer has five requests under way, of which a flush often covers two. While it runs
the others come, and the next begins before the producer has sent the two again. So it waits until
as many requests wait as did at the end of the flush before, but no longer than L{GATHER_SECONDS}
for each: a flush costs the processor more than a request does. After a wait in vain the next
L{GATHER_PAUSE_COUNT} flushes begin at once, and so do those for more than L{GATHER_COUNT_MAX}
requests, whose share of a flush is small.

A I{replicated} partition gathers once for all its replicas: for C{acks=all} the leader flushes, and
its followers are given what is written, when as many requests have come as were answered since the
last time. So each replica fetches, writes and flushes once for all of them. While the leader
gathers, followers are not told a new high watermark by itself either: records will come with it.

Throttling: L{Partition.append} admits nothing while too many bytes are unflushed, in the partition
or in all, or while the disk is full. Producers wait until I{half} of the limit is flushed, so that
they proceed in large steps. Only C{LogManager._account} updates the sum of all
C{PartitionLog.unflushedSize}s.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import InvalidMessageSizeError, StorageError
from pylogbroker.interfaces import AppendResult, CheckLimits, ValidatedBatches
from pylogbroker.metrics.brokermetrics import ThrottledPartition
from pylogbroker.metrics.counters import FlushCounters, TopicCounters
from pylogbroker.net.aiofsync import AioFsync
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.timer import Timer
from pylogbroker.net.workers import IWorker
from pylogbroker.records.kafkaformat import LOG_RULES, KafkaFormat
from pylogbroker.storage.events import StorageEvent
from pylogbroker.storage.jobs import DeleteJob, DiskJob, FindPositionJob, RollJob
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.checkpoints import CHECKPOINTS, HIGH_WATERMARK, LOG_START
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import MarkKind, OffsetCallback, PartitionLog
from pylogbroker.types import TopicPartition, formatCount

J = TypeVar("J", bound=DiskJob)
T = TypeVar("T")

GATHER_COUNT_MAX = 16
GATHER_PAUSE_COUNT = 16
GATHER_SECONDS = 0.001
WRITE_SIZE_MAX = 256 << 10
RETENTION_DELAY_MS = 60_000
LEADER_FORMAT = KafkaFormat(LOG_RULES)
LEADER_LIMITS = CheckLimits(payloadSizeMax=2**31 - 1)
"""A leader has checked sizes by the topic's setting of then."""

_MINUTE_MS = 60_000


class ReplicaProgress(NamedTuple):
    """
    The progress of another replica, as its fetch tells the leader.

    @ivar replicaEpoch: the broker epoch of the replica; -1: it does not say.
    @ivar offset: that log has everything below, as this one has.
    @ivar logStartOffset: of that log; -1: it does not say.
    @ivar endOffset: the log end here when the fetch was read: a replica that reaches it was not
        behind at that time.
    """

    replicaId: int
    replicaEpoch: int
    offset: int
    logStartOffset: int
    endOffset: int


@dataclass(eq=False, slots=True)
class Partition:
    """
    One partition of this broker. It admits appends; L{LogManager} moves its data to the disk.

    @ivar accountedSize: its unflushed bytes in the sum over all partitions.
    @ivar isDiskBlocked: accepted bytes, or a roll, wait for room on the disk.
    @ivar isRolling: a roll is requested or under way.
    @ivar isRetaining: retention of this partition is under way.
    @ivar gatherCount: requests for which the next flush waits; of a replicated partition: that were
        answered since its last release.
    @ivar gatheredCount: those that have come when the wait was last prolonged, or since that
        release.
    @ivar gatherPause: flushes, or releases, that do not wait.
    @ivar gathering: ends the wait.
    @ivar onGathered: called at the end of the wait for a replicated partition, once.
    @ivar joinedCount: requests that wait for a flush beside the first of each wait.
    @ivar capacityWaiters: fire when this partition admits appends again, or fails.
    @ivar jobWaiters: fire when the job under way has ended.
    @ivar rollWaiters: fire when the roll has ended, however it ended.
    @ivar topicCounters: of its topic, after the first message.
    @ivar replicaLock: held while a leader's batches are appended, or the log is truncated.
    @ivar onReplicaFetch: called for each fetch of another replica whose log is this one's up to
        where it reads, before the answer.
    @ivar onWritten: called when a leader's appends are in the page cache.
    @ivar lacksInSync: the partition is replicated, and fewer than C{min.insync.replicas} are in
        sync: C{acks=all} is refused.
    @ivar outOfSync: the other replicas that are not in sync, while this one leads.
    @ivar sentWatermarks: the high watermark that each other replica was told last.
    @ivar soughtWatermark: the high watermark whose byte a worker looks for; -1: none does.
    """

    log: PartitionLog
    _manager: LogManager
    accountedSize: int = 0
    isDiskBlocked: bool = False
    isRolling: bool = False
    isRetaining: bool = False
    gatherCount: int = 0
    gatheredCount: int = 0
    gatherPause: int = 0
    gathering: IDelayedCall | None = None
    onGathered: dict[Callable[[], object], None] = field(default_factory=dict)
    joinedCount: int = 0
    capacityWaiters: Waiters[None] = field(default_factory=Waiters)
    jobWaiters: Waiters[None] = field(default_factory=Waiters)
    rollWaiters: Waiters[None] = field(default_factory=Waiters)
    topicCounters: TopicCounters | None = None
    replicaLock: DeferredLock = field(default_factory=DeferredLock)
    onReplicaFetch: Callable[[ReplicaProgress], object] | None = None
    onWritten: Callable[[], object] | None = None
    lacksInSync: bool = False
    outOfSync: tuple[int, ...] = ()
    sentWatermarks: dict[int, int] = field(default_factory=dict)
    soughtWatermark: int = -1

    @property
    def topicPartition(self) -> TopicPartition:
        return self.log.topicPartition

    @property
    def flushRequestCount(self) -> int:
        """How many requests wait for a flush."""
        return self.log.flushWaiterCount + self.joinedCount

    @property
    def isOverLimit(self) -> bool:
        return self.log.unflushedSize > self._manager.partitionUnflushedSizeMax

    @property
    def isThrottled(self) -> bool:
        """
        Whether appends must wait: too many bytes are unflushed, here or in all, or the disk is
        full.
        """
        manager = self._manager
        return (
            self.isOverLimit
            or manager.unflushedSize > manager.unflushedSizeMax
            or self.isDiskBlocked
        )

    def append(self, batches: ValidatedBatches, nowMs: int) -> AppendResult | None:
        """
        Append if the partition admits it now.

        @param batches: not split: the segment rolls before them or behind them.
        @return: L{None}: wait for L{awaitAdmission} and call again.
        @raise PartitionOfflineError: the partition has failed or is closed.
        @raise PylogbrokerError: the reasons of L{BatchLog}, for record batches.
        """
        log, manager = self.log, self._manager
        if (
            log.rolling
            or log.rollDue(nowMs, batches)
            # As isThrottled, without a call: this is the hot path.
            or log.unflushedSize > manager.partitionUnflushedSizeMax
            or manager.unflushedSize > manager.unflushedSizeMax
            or self.isDiskBlocked
        ) and (log.failure is None and not log.closed):
            return None
        result = log.append(batches, nowMs)
        if not result.isDuplicate:
            manager.onAppend(self, batches.size)
        return result

    def _whenAllReached(
        self, marks: Sequence[MarkKind], offset: int, callback: OffsetCallback
    ) -> Callable[[], object]:
        """As C{whenReached}, for the last of several marks, or the first that fails."""
        left = len(marks)
        cancels: list[Callable[[], object]] = []

        def cancel() -> None:
            nonlocal left
            left = 0
            for each in cancels:
                each()

        def reached(error: StorageError | None) -> None:
            nonlocal left
            left -= 1
            if left == 0 or (error is not None and left > 0):
                cancel()
                callback(error)

        for mark in marks:
            if left > 0:
                cancels.append(self.whenReached(mark, offset, reached))
        return cancel

    def setHighWatermark(self, offset: int) -> None:
        """
        Move the high watermark of a replicated partition (L{BatchLog.setHighWatermark}): at once,
        or, if only the file tells where the offset is, when a worker has found it. A larger offset
        that comes meanwhile takes its place.
        """
        log = self.log
        assert isinstance(log, BatchLog)
        if offset <= self.soughtWatermark:
            return
        search = log.setHighWatermark(offset)
        if search is None:
            self.soughtWatermark = -1
            return
        isUnderWay = self.soughtWatermark >= 0
        self.soughtWatermark = offset
        if not isUnderWay:
            self._manager.seekWatermark(self, search)

    async def appendAsFollower(self, data: bytes) -> int:
        """
        Append what a leader sent, byte for byte, rolling where it is due. Waits while the partition
        admits nothing, and for a truncation.

        @param data: whole batches, and perhaps the beginning of one, which is left out.
        @return: the log end, from which to fetch next. What is flushed, C{flushedOffset} tells.
        @raise LeaderBatchError: the batches do not follow the log end
            (L{BatchLog.checkLeaderBatches}).
        @raise FormatError: a batch is damaged, or there is no whole one in C{data}. Nothing was
            appended.
        @raise PartitionOfflineError: the partition has failed or is closed. What was appended
            before, the log tells.
        """
        manager, log = self._manager, self.log
        assert isinstance(log, BatchLog)
        batches = LEADER_FORMAT.validate(data, LEADER_LIMITS)
        if not batches.headers and data:
            raise InvalidMessageSizeError(f"no whole batch in {len(data)} bytes")
        done, count = 0, len(batches.headers)
        await self.replicaLock.acquire()
        try:
            if count and log.beginsWithin(batches.headers[0]):
                await manager.truncate(self, batches.headers[0].baseOffset, isAnew=True)
            while done < count:
                if (log.rolling or self.isThrottled) and not log.isOffline:
                    await self.awaitAdmission()
                    continue
                start, done = done, log.appendAsFollower(batches, done, manager.nowMs())
                if done > start:
                    size = sum(each.size for each in batches.headers[start:done])
                    manager.onFollowerAppend(self, size)
                if done < count:
                    await manager.roll(self)
        finally:
            self.replicaLock.release()
        return log.logEndOffset

    async def truncate(self, offset: int, isAnew: bool = False) -> int:
        """
        Remove everything from an offset on, durably (L{BatchLog.beginTruncate}).

        @param isAnew: remove everything, and begin at C{offset}.
        @return: the log end, which is lower than C{offset} if a batch reaches across it, or if the
            log ended before.
        @raise StorageError: the partition is out of service, or a checkpoint could not be written;
            then truncate again before appending.
        """
        await self.replicaLock.acquire()
        try:
            return await self._manager.truncate(self, offset, isAnew)
        finally:
            self.replicaLock.release()

    def awaitAdmission(self) -> Deferred[None]:
        """
        @return: fires with L{None} when an append may be tried again. Can be cancelled.
        """
        if self.isThrottled:
            return self._manager.awaitCapacity(self)
        return self._manager.roll(self)

    def write(self) -> None:
        """Write what is appended now, not at the end of the turn; not while the disk is full."""
        if self.log.pendingSize and not self.isDiskBlocked:
            self._manager.write(self)

    def whenReached(
        self, mark: MarkKind, offset: int, callback: OffsetCallback
    ) -> Callable[[], object]:
        """
        L{PartitionLog.whenReached}, and start the flush that the mark may need: at the end of this
        turn, or when the flush under way ends.
        """
        cancel = self.log.whenReached(mark, offset, callback)
        if self.log.wantsFlush:
            self._manager.requestFlush(self)
        return cancel

    # -- the requests for C{acks=all} of a replicated partition, which its leader gathers

    def awaited(self, count: int) -> None:
        """Requests have come; they wait for all replicas in sync."""
        self.gatheredCount += count
        if self.gathering is not None and self.gatheredCount < self.gatherCount:
            self.gathering.reset(GATHER_SECONDS)

    def answered(self, count: int) -> None:
        """Requests that have waited are answered: as many may follow."""
        if self.gatherPause or not self.log.isReplicated:
            return
        self.gatherCount += count
        if self.gatherCount > GATHER_COUNT_MAX:
            self._manager.release(self)
        elif self.gathering is None:
            self.gather()

    def gather(self) -> None:
        """Wait for further requests, L{GATHER_SECONDS} behind the last one at the longest."""
        manager = self._manager
        self.gathering = manager.callSoon(GATHER_SECONDS, manager.gatheredTooFew, self)

    def endGathering(self) -> None:
        """Wait no more, without calling what waits for the end."""
        if self.gathering is not None:
            self.gathering.cancel()
            self.gathering = None

    def whenGathered(self, call: Callable[[], object]) -> Callable[[], object]:
        """
        Call a function once, when the partition gathers no more; it does now.

        @param call: must not raise, and is not registered twice.
        @return: what cancels the call.
        """
        self.onGathered[call] = None
        return lambda: self.onGathered.pop(call, None)

    def whenAcknowledged(
        self, result: AppendResult, isByAll: bool, callback: OffsetCallback
    ) -> Callable[[], object]:
        """
        Call back when an append may be acknowledged, at once if it may be now.

        @param result: of the append; a duplicate waits for the batch that it repeats.
        @param isByAll: whether the producer wants C{acks=all}: a flush, unless the setting
            C{log.flush.acks.all} says otherwise; and the high watermark, if the partition is
            replicated. If not: the page cache.
        @param callback: as of C{whenReached}.
        @return: what cancels the call.
        """
        return self.whenKept(result.lastOffset + 1, isByAll, callback)

    def whenKept(
        self, offset: int, isByAll: bool, callback: OffsetCallback
    ) -> Callable[[], object]:
        """As L{whenAcknowledged}, for everything before an offset."""
        isFlushed = isByAll and self._manager.flushesAcksAll
        if isByAll and self.log.isReplicated:
            marks = (MarkKind.HIGH_WATERMARK, MarkKind.FLUSHED)[: 1 + isFlushed]
            return self._whenAllReached(marks, offset, callback)
        return self.whenReached(
            MarkKind.FLUSHED if isFlushed else MarkKind.WRITTEN, offset, callback
        )


class LogManager:
    """
    The partitions of one broker.

    @ivar unflushedSize: bytes in all partitions that are appended and not flushed.
    @ivar unflushedSizeMax: the limit of that, above which all producers wait
        (C{max.unflushed.bytes}).
    @ivar partitionUnflushedSizeMax: the limit of one partition
        (C{max.unflushed.bytes.per.partition}).
    @ivar flushesAcksAll: whether C{acks=all} waits for a flush (C{log.flush.acks.all}).
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        worker: IWorker,
        settings: BrokerSettings,
        pageCache: PageCache,
        counters: FlushCounters,
        aioFsync: AioFsync | None = None,
    ) -> None:
        """
        @param worker: for rolls and deletions, and for flushes that the kernel does not do.
        @param aioFsync: for flushes of real files.
        """
        self._clock = clock
        self._worker = worker
        self._settings = settings
        self._pageCache = pageCache
        self._counters = counters
        self._aioFsync = aioFsync
        self._logs: Callable[[], list[PartitionLog]] = list
        self._directory: LogDirectory | None = None
        self._checkpoint = DeferredLock()
        self._remembering: Waiters[StorageError | None] | None = None
        self.flushesAcksAll = settings.logFlushAcksAll
        self._partitions: dict[TopicPartition, Partition] = {}
        self.partitionUnflushedSizeMax = settings.maxUnflushedBytesPerPartition
        self.unflushedSizeMax = settings.maxUnflushedBytes
        self.unflushedSize = 0
        # Sets of partitions, in the order in which they entered.
        self._dirty: dict[Partition, None] = {}
        self._unflushed: dict[Partition, None] = {}
        self._diskBlocked: dict[Partition, None] = {}
        self._failed: dict[Partition, None] = {}
        self._busy: dict[Partition, None] = {}
        self._capacityWaiters: Waiters[None] = Waiters()
        self._turn: Any = None
        self._retry = Timer(clock)
        self._firstRetention = Timer(clock)
        self._loops: list[LoopingCall] = []

    def nowMs(self) -> int:
        # wallMs, written out: each request of a producer calls it.
        return int(getattr(self._clock, "wallSeconds", self._clock.seconds)() * 1000)

    def partition(self, log: PartitionLog) -> Partition:
        found = self._partitions.get(log.topicPartition)
        if found is None:
            found = self._partitions[log.topicPartition] = Partition(log, self)
        return found

    # -- the clock

    def start(self, directory: LogDirectory) -> None:
        """@param directory: open."""
        self._directory = directory
        self._logs = lambda: list(directory.logs.values())
        settings = self._settings
        self.repeat(settings.logFlushOffsetCheckpointIntervalMs, self._writeCheckpoints)
        self.repeat(settings.producerIdExpirationCheckIntervalMs, self._expireProducers)
        self.repeat(self._settings.logDefaultFlushSchedulerIntervalMs, self._flushByTime)
        self._firstRetention.start(
            RETENTION_DELAY_MS,
            self.repeat,
            self._settings.logCleanupIntervalMins * _MINUTE_MS,
            self.applyRetention,
            now=True,
        )

    def repeat(self, intervalMs: int, act: Callable[[], object], now: bool = False) -> None:
        """Call a function by the clock, until L{stopTimers} or until it raises, which is a bug."""
        call = LoopingCall(act)
        call.clock = self._clock
        call.start(intervalMs / 1000, now=now).addErrback(self._failedUnexpectedly)
        self._loops.append(call)

    def _failedUnexpectedly(self, failure: Failure) -> None:
        self._log.failure("Background work failed unexpectedly: this is a bug", failure)

    def stopTimers(self) -> None:
        """Stop the timers; jobs under way continue."""
        for call in self._loops:
            if call.running:
                call.stop()
        self._firstRetention.stop()
        self._retry.stop()

    def stop(self) -> None:
        self.stopTimers()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    # -- writing

    def onAppend(self, partition: Partition, size: int) -> None:
        self.unflushedSize += size
        partition.accountedSize += size
        self._unflushed[partition] = self._dirty[partition] = None
        if partition.log.pendingSize >= WRITE_SIZE_MAX:
            self.write(partition)
        if self._turn is None:
            self._turn = self._clock.callLater(0, self._endTurn)

    def onFollowerAppend(self, partition: Partition, size: int) -> None:
        """As L{onAppend}; what a leader sends has come together already, and is written at once."""
        self.unflushedSize += size
        partition.accountedSize += size
        self._unflushed[partition] = None
        self.write(partition)

    def requestFlush(self, partition: Partition) -> None:
        """Flush at the end of this turn, together with what is appended until then."""
        self._dirty[partition] = None
        if self._turn is None:
            self._turn = self._clock.callLater(0, self._endTurn)

    def _account(self, partition: Partition) -> None:
        size = partition.log.unflushedSize
        self.unflushedSize += size - partition.accountedSize
        partition.accountedSize = size
        if size:
            self._unflushed[partition] = None
        else:
            self._unflushed.pop(partition, None)

    def _endTurn(self) -> None:
        self._turn = None
        self.writePending()

    def writePending(self) -> None:
        """
        Write this turn's appends, without waiting. An acknowledgement must not be sent before: the
        broker might be killed in between.
        """
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            self.write(partition)

    def write(self, partition: Partition) -> None:
        """Write what is appended to one partition, without waiting."""
        log = partition.log
        isReleased = log.isReplicated and (
            partition.gathering is None or partition.gatheredCount >= partition.gatherCount
        )
        if isReleased:
            partition.endGathering()  # before followers see what is written
        if log.isReadWhenWritten or log.isReplicated:
            _, base, byte = log.written
            log.write()
            _, segment, end = log.written
            if segment == base and end > byte:
                self._pageCache.markCached(log.segments[-1].path, byte, end - byte)
        else:
            log.write()
        if log.failure is not None:
            self._onFailure(partition)
            return
        if partition.onWritten is not None:
            partition.onWritten()
        if isReleased:
            self._released(partition)
        if log.pendingSize and log.blocked is not None:
            self._blockOnDisk(partition, log.blocked)
            return
        # As isOverLimit, without a call: this is the hot path.
        if log.unflushedSize > self.partitionUnflushedSizeMax:
            self.flush(partition)
        elif log.wantsFlush:
            self._flushGathered(partition)
        elif self.unflushedSize > self.unflushedSizeMax:
            self._flushAll()

    def failedPartitionCount(self) -> int:
        return len(self._failed)

    async def awaitWritten(
        self, mayInclude: Callable[[TopicPartition], bool], failedBefore: int
    ) -> None:
        """
        Wait until appended data is in the page cache: at once, unless the disk is full.

        @param mayInclude: selects the partitions.
        @param failedBefore: C{failedPartitionCount} before the data was appended.
        @raise PartitionOfflineError: a selected partition has failed since, so data may be lost.
        """
        self.writePending()
        candidates = (*islice(self._failed, failedBefore, None), *self._diskBlocked)
        for partition in [each for each in candidates if mayInclude(each.topicPartition)]:
            log = partition.log
            while partition.isDiskBlocked and log.pendingSize:
                await self.awaitCapacity(partition)
            if log.failure is not None:
                raise log.unavailableError("keep what was produced to")

    def _blockOnDisk(self, partition: Partition, reason: StorageError) -> None:
        if not partition.isDiskBlocked:
            partition.isDiskBlocked = True
            self._diskBlocked[partition] = None
            self._log.error(
                "{topicPartition} waits for room on the disk: {reason}. "
                "Its producers wait, nothing is lost",
                topicPartition=partition.topicPartition,
                reason=reason,
            )
        if not self._retry.isRunning:
            self._retry.start(self._settings.diskFullRetryMs, self._retryBlocked)

    def _retryBlocked(self) -> None:
        for partition in list(self._diskBlocked):
            self.write(partition)
            # Nothing is pending: a roll had no room, and its waiters try again when they fire.
            if not partition.log.pendingSize and partition.isDiskBlocked:
                self._unblock(partition)
                self._log.info(
                    "{topicPartition} is tried again", topicPartition=partition.topicPartition
                )
                self._fireCapacity(partition)
                if len(partition.capacityWaiters):  # more than half of the limit is unflushed
                    self.flush(partition)

    def _unblock(self, partition: Partition) -> None:
        partition.isDiskBlocked = False
        self._diskBlocked.pop(partition, None)

    def _onFailure(self, partition: Partition) -> None:
        if partition not in self._failed:  # a write and the job behind it may both report it
            self._failed[partition] = None
            self._log.critical(
                "{topicPartition} is out of service: {reason}",
                topicPartition=partition.topicPartition,
                reason=partition.log.failure,
            )
        self._unblock(partition)
        self._account(partition)
        self._fireCapacity(partition)

    # -- throttling

    def awaitCapacity(self, partition: Partition) -> Deferred[None]:
        """
        Wait until a throttled partition admits appends, and start the flush for that.

        @return: fires with L{None} when the partition, or the process, is down to half of its
            limit, has room on the disk, or has failed. Can be cancelled.
        """
        if partition.isOverLimit or partition.isDiskBlocked:
            waiting = partition.capacityWaiters.wait()
            self.flush(partition)
        else:
            waiting = self._capacityWaiters.wait()
            self._flushAll()
        return waiting

    def _fireCapacity(self, partition: Partition) -> None:
        log = partition.log
        if log.failure is not None or (
            log.unflushedSize <= self.partitionUnflushedSizeMax // 2 and not partition.isDiskBlocked
        ):
            partition.capacityWaiters.fire(None)
        if self.unflushedSize <= self.unflushedSizeMax // 2:
            self._capacityWaiters.fire(None)

    def throttled(self) -> list[ThrottledPartition]:
        """
        The causes of throttling: C{"disk"} (full), C{"flush"} (too much is unflushed) or C{"roll"}
        (the next segment is being made).
        """
        found = []
        if waitingCount := len(self._capacityWaiters):
            found.append(ThrottledPartition("", -1, "flush", waitingCount))
        for each in self._partitions.values():
            waitingCount = len(each.capacityWaiters)
            if each.isDiskBlocked or waitingCount:
                reason = "disk" if each.isDiskBlocked else "flush"
                found.append(ThrottledPartition(*each.topicPartition, reason, waitingCount))
            if each.isRolling:
                waitingCount = len(each.rollWaiters)
                found.append(ThrottledPartition(*each.topicPartition, "roll", waitingCount))
        return found

    # -- flushing

    def _flushByTime(self) -> None:
        now = self.nowMs()
        for partition in list(self._unflushed):
            if partition.log.flushDue(now):
                self.flush(partition)

    def _flushAll(self) -> None:
        for partition in list(self._unflushed):
            self.flush(partition)

    def _flushGathered(self, partition: Partition) -> None:
        """Start the flush that requests wait for, or wait a little for further requests."""
        if partition in self._busy:
            return  # the end of its job looks again
        if partition.log.isReplicated:
            if partition.gathering is None:
                self.flush(partition)
            return
        count = partition.flushRequestCount
        if not 0 < count < partition.gatherCount:
            self.flush(partition)
        elif partition.gathering is None:
            partition.gatheredCount = count
            partition.gather()
        elif count > partition.gatheredCount:
            partition.gatheredCount = count
            partition.gathering.reset(GATHER_SECONDS)

    def _endGathering(self, partition: Partition) -> None:
        if partition.gathering is not None:
            partition.endGathering()
            if partition.log.isReplicated:
                self._released(partition)

    def gatheredTooFew(self, partition: Partition) -> None:
        """The requests for which the next flush, or the next release, has waited do not come."""
        partition.gathering = None
        partition.gatherPause = GATHER_PAUSE_COUNT
        if partition.log.isReplicated:
            self.release(partition)
        else:
            self.flush(partition)

    def callSoon(self, seconds: float, call: Callable[..., object], *what: Any) -> IDelayedCall:
        """Call a function by the clock."""
        found: IDelayedCall = self._clock.callLater(seconds, call, *what)
        return found

    def release(self, partition: Partition) -> None:
        """Let followers have what is written, and flush it if a request waits for that."""
        partition.endGathering()
        self._released(partition)
        if partition.log.wantsFlush and partition.log.failure is None:
            self.flush(partition)

    def _released(self, partition: Partition) -> None:
        partition.gatherCount = partition.gatheredCount = 0
        if partition.gatherPause:
            partition.gatherPause -= 1
        waiting, partition.onGathered = partition.onGathered, {}
        for call in waiting:
            call()

    def flush(self, partition: Partition) -> None:
        """Start a flush, unless a job of the partition is under way or all is flushed."""
        if partition in self._busy:
            return
        self._endGathering(partition)
        log = partition.log
        job = log.beginFlush()
        if job is None:
            if log.failure is not None:  # of the write that it begins with
                self._onFailure(partition)
            return
        started, before, after = self._clock.seconds(), log.flushed, job.position

        def finish(error: StorageError | None) -> None:
            if error is None:
                self._counters.flushed(int((self._clock.seconds() - started) * 1000))
                start = before.byte if before.segment == after.segment else 0
                self._pageCache.markCached(job.segment.file.path, start, after.byte - start)
            else:
                self._counters.failedCount += 1
            if not log.isReplicated:
                partition.gatherCount = 0
                if partition.gatherPause:
                    partition.gatherPause -= 1
                elif partition.flushRequestCount <= GATHER_COUNT_MAX:
                    partition.gatherCount = partition.flushRequestCount
            log.finishFlush(job, error, self.nowMs())  # fetches that waited for it are sent now

        file, aio = job.segment.file, self._aioFsync

        def synced(number: int) -> None:
            try:
                self._jobDone(partition, finish, file.syncError(number))
            except Exception:
                self._failedUnexpectedly(Failure())

        if aio is not None and aio.fsync(file.fileno(), synced):
            self._busy[partition] = None
        else:
            self._run(partition, job, finish)

    def _run(
        self, partition: Partition, job: DiskJob, finish: Callable[[StorageError | None], None]
    ) -> None:
        """
        Run the only job of a partition.

        @param finish: takes the error of the job. C{_jobsDone} comes behind it, for the caller
            first: what belongs together, such as the jobs of a retention, is not interrupted.
        """
        self._busy[partition] = None
        self._endGathering(partition)  # the end of every job looks for those who want a flush
        done = partial(self._jobDone, partition, finish)
        self.runJob(job).addCallback(done).addErrback(self._failedUnexpectedly)

    def _jobDone(
        self,
        partition: Partition,
        finish: Callable[[StorageError | None], None],
        error: StorageError | None,
    ) -> None:
        del self._busy[partition]
        # Who begins to wait in the next lines waits for the next job.
        waiters, partition.jobWaiters = partition.jobWaiters, Waiters()
        try:
            finish(error)
            self._afterJob(partition)
        finally:
            waiters.fire(None)

    def report(self, event: StorageEvent) -> None:
        self._log.emit(
            LogLevel.warn if event.isWarning else LogLevel.info, event.format, **vars(event)
        )

    def _afterJob(self, partition: Partition) -> None:
        log = partition.log
        if log.failure is not None:
            self._onFailure(partition)
            return
        self._account(partition)
        hasWaiters = bool(len(self._capacityWaiters) or len(partition.capacityWaiters))
        if partition.isOverLimit or (hasWaiters and log.unflushedSize):
            self.flush(partition)
        elif log.wantsFlush:
            self._flushGathered(partition)
        self._fireCapacity(partition)

    # -- rolling

    def roll(self, partition: Partition) -> Deferred[None]:
        """
        Begin the next segment of a partition, or join a roll under way.

        @return: fires with L{None} at its end; the log's C{failure} and C{blocked} tell how it
            ended. Can be cancelled.
        """
        waiting = partition.rollWaiters.wait()
        if not partition.isRolling:
            partition.isRolling = True
            Deferred.fromCoroutine(self._roll(partition)).addErrback(self._failedUnexpectedly)
        return waiting

    async def _roll(self, partition: Partition) -> None:
        log = partition.log
        while True:
            await self._jobsDone(partition)
            self.write(partition)
            if partition not in self._busy:  # else writing has started a flush
                break
        job = log.beginRoll()
        if job is None:
            self._endRoll(partition)
        else:
            self._run(partition, job, lambda error: self._rolled(partition, job, error))

    def _rolled(self, partition: Partition, job: RollJob, error: StorageError | None) -> None:
        log = partition.log
        log.finishRoll(job, error, self.nowMs())
        if error is None:
            self._log.info(
                "Rolled {topicPartition} at {baseOffset}",
                topicPartition=log.topicPartition,
                baseOffset=job.position.offset,
            )
        elif log.blocked is not None:
            self._blockOnDisk(partition, log.blocked)
        self._endRoll(partition)

    def _endRoll(self, partition: Partition) -> None:
        partition.isRolling = False
        partition.rollWaiters.fire(None)

    # -- retention

    def applyRetention(self) -> None:
        """Delete expired segments; partitions whose last retention has not ended are skipped."""
        for log in self._logs():
            self._startRetention(self.partition(log))

    def _startRetention(self, partition: Partition) -> None:
        if not partition.isRetaining:
            partition.isRetaining = True
            Deferred.fromCoroutine(self._retain(partition)).addErrback(self._failedUnexpectedly)

    async def _retain(self, partition: Partition) -> None:
        log = partition.log
        try:
            await self._jobsDone(partition)
            stat = log.beginStat()
            if stat is None:
                return
            self._run(partition, stat, lambda _error: log.finishStat(stat))
            await self._jobsDone(partition)
            segments = log.expired(self.nowMs())
            if log.needsRoll(segments):
                await self.roll(partition)
            await self._jobsDone(partition)
            job = log.beginDelete(segments, self.nowMs())
            if job is not None:
                self._run(partition, job, lambda error: self._deleted(log, job, error))
                await self._jobsDone(partition)
        finally:
            partition.isRetaining = False

    def _deleted(self, log: PartitionLog, job: DeleteJob, error: StorageError | None) -> None:
        log.finishDelete(job, error)
        if job.segments:
            self._log.info(
                "Deleted {segments} of {topicPartition}, which begins at {startOffset} now",
                segments=formatCount(len(job.renamed), "segment"),
                topicPartition=log.topicPartition,
                startOffset=log.logStartOffset,
            )
        if error is not None:
            self._log.error(
                "Deleting segments of {topicPartition} did not work: {error}. It is tried again",
                topicPartition=log.topicPartition,
                error=error,
            )

    async def runAlone(
        self,
        log: PartitionLog,
        begin: Callable[[], J | None],
        finish: Callable[[J, StorageError | None], None],
    ) -> tuple[J | None, StorageError | None]:
        """
        Run a job of a partition when no other is under way.

        @param begin: makes the job; L{None}: there is nothing to do.
        @return: the job, and why it failed.
        """
        partition = self.partition(log)
        await self._jobsDone(partition)
        job = begin()
        if job is None:
            return None, None
        ended: list[StorageError | None] = []

        def done(error: StorageError | None) -> None:
            finish(job, error)
            ended.append(error)

        self._run(partition, job, done)
        while not ended:
            await self._jobsDone(partition)
        return job, ended[0]

    # -- the end

    async def drain(self) -> None:
        """
        Write and flush everything, and wait for every job. The logs' C{failure} and C{blocked} tell
        what is not flushed.
        """
        if self._turn is not None:
            self._turn.cancel()
            self._endTurn()
        for partition in list(self._unflushed):
            if partition.isDiskBlocked:
                self.write(partition)  # one last time
            await self._jobsDone(partition)
            self.flush(partition)
        for partition in list(self._busy):
            await self._jobsDone(partition)

    # -- record batches

    async def deleteRecords(self, partition: Partition, offset: int) -> int:
        """
        Move the log start of a partition of record batches, durably. Its segments below are deleted
        later.

        @param offset: -1: the high watermark.
        @return: the log start.
        @raise OffsetOutOfRangeError: above the high watermark.
        @raise StorageError: the partition is out of service, or the checkpoint cannot be written.
        """
        log = partition.log
        assert isinstance(log, BatchLog)
        hasMoved = log.deleteRecords(offset)
        # Also for the offset of a request before, whose checkpoint may be under way or have failed.
        error = await self.checkpoint((LOG_START,))
        if error is not None:
            raise error
        if hasMoved:
            self._startRetention(partition)
        return log.logStartOffset

    def seekWatermark(self, partition: Partition, search: FindPositionJob) -> None:
        """Set a high watermark when a worker has found its byte, or a later one that is known."""

        def found(error: StorageError | None) -> None:
            log, offset = partition.log, partition.soughtWatermark
            assert isinstance(log, BatchLog)
            partition.soughtWatermark = -1
            if error is not None or offset < 0:
                return  # the next response or fetch of a replica tries again
            following = log.setHighWatermark(offset, search)
            if following is not None:
                partition.soughtWatermark = offset
                self.seekWatermark(partition, following)

        self.runJob(search).addCallback(found).addErrback(self._failedUnexpectedly)

    async def truncate(self, partition: Partition, offset: int, isAnew: bool = False) -> int:
        """
        L{Partition.truncate}, whose lock the caller has.
        """
        log = partition.log
        assert isinstance(log, BatchLog) and self._directory is not None
        oldEnd = log.logEndOffset
        job, error = await self.runAlone(
            log, partial(log.beginTruncate, offset, isAnew), log.finishTruncate
        )
        if error is not None:
            raise error
        if log.isOffline:
            raise log.unavailableError("truncate")
        if job is not None:
            self._log.info(
                "Truncated {topicPartition} from {oldEnd} to {end}",
                topicPartition=log.topicPartition,
                oldEnd=oldEnd,
                end=log.logEndOffset,
            )
        error = await self.checkpoint(self._directory.checkpointsAhead(log))
        if error is not None:
            raise error
        return log.logEndOffset

    async def checkpoint(self, names: Sequence[str] = CHECKPOINTS) -> StorageError | None:
        """
        Write the offset checkpoints as of now.

        @return: why they could not be written, or L{None}.
        """
        error = await self._alone(partial(self._checkpointNow, names))
        if error is not None:
            self._log.error("Offset checkpoints could not be written: {error}", error=error)
        return error

    async def _checkpointNow(self, names: Sequence[str]) -> StorageError | None:
        assert self._directory is not None
        job = self._directory.beginCheckpoint(names)
        if job is None:
            return None
        error = await self.runJob(job)
        self._directory.finishCheckpoint(job, error)
        return error

    def _alone(self, work: Callable[[], Coroutine[Deferred[Any], Any, T]]) -> Deferred[T]:
        """Do what changes checkpoints, one after the other. What is abandoned starts no other."""
        return self._checkpoint.run(lambda: Deferred.fromCoroutine(work()))

    def flushedStart(self, partition: Partition) -> int:
        """As L{LogDirectory.flushedStart}."""
        assert self._directory is not None and isinstance(partition.log, BatchLog)
        return self._directory.flushedStart(partition.log)

    async def remember(self, topicPartition: TopicPartition) -> None:
        """
        Note durably that a partition is in the directory, so that a later start finds out if it is
        lost. Partitions that are created at the same time share a checkpoint.

        @raise StorageError: the checkpoint could not be written.
        """
        assert self._directory is not None
        while not self._directory.isRemembered(topicPartition):
            underWay = self._remembering
            if underWay is not None:
                error = await underWay.wait()
            else:
                underWay = self._remembering = Waiters()
                error = await self.checkpoint((HIGH_WATERMARK,))
                self._remembering = None
                underWay.fire(error)
            if error is not None:
                raise error

    def _writeCheckpoints(self) -> None:
        if not self._checkpoint.locked:
            writing = Deferred.fromCoroutine(self.checkpoint())
            writing.addErrback(self._failedUnexpectedly)

    def _expireProducers(self) -> None:
        now = self.nowMs()
        for log in self._logs():
            if isinstance(log, BatchLog) and not log.busy:
                log.producers.expire(now)

    async def remove(self, topicPartition: TopicPartition) -> None:
        """
        Remove a partition, in service or not, and its files. Those who wait for it fail.

        @raise StorageError: its directory cannot be renamed; it does not serve any more.
        """
        await self._alone(partial(self._removeNow, topicPartition))

    async def _removeNow(self, topicPartition: TopicPartition) -> None:
        assert self._directory is not None
        partition = self._partitions.get(topicPartition)
        if partition is not None:
            await self._jobsDone(partition)
        job = self._directory.beginRemove(topicPartition)
        if partition is not None:
            self._forget(partition)
        error = await self.runJob(job)
        self._directory.finishRemove(job, error)
        if error is not None:
            self._log.error("{path} is left: {error}", path=job.removedPath, error=error)

    def _forget(self, partition: Partition) -> None:
        """The log is closed: those who wait for it try again, and fail."""
        self._unblock(partition)
        self._endGathering(partition)
        self._account(partition)
        self._dirty.pop(partition, None)
        self._failed.pop(partition, None)
        del self._partitions[partition.topicPartition]
        partition.capacityWaiters.fire(None)
        self._fireCapacity(partition)

    async def close(self, log: PartitionLog) -> None:
        """Flush the rest of a partition, and close its log for good."""
        partition = self.partition(log)
        await self._jobsDone(partition)
        pendingSize = log.pendingSize
        job = log.beginClose()
        if job is not None:
            self._run(partition, job, lambda error: log.finishClose(job, error))
            await self._jobsDone(partition)
        elif log.failure is not None:
            if pendingSize:
                self._log.critical(
                    "{topicPartition} is closed with {size} bytes that could not be written: "
                    "they are lost ({reason})",
                    topicPartition=log.topicPartition,
                    size=pendingSize,
                    reason=log.failure,
                )
            self._fireCapacity(partition)

    async def _jobsDone(self, partition: Partition) -> None:
        while partition in self._busy:
            await partition.jobWaiters.wait()

    def runJob(self, job: DiskJob) -> Deferred[StorageError | None]:
        """
        Run a job on the worker, and log its events.

        @return: fires with the reason why it failed, or L{None}.
        """
        return self._worker.submit(job.run).addBoth(self._jobEnded, job)

    def _jobEnded(self, result: object, job: DiskJob) -> StorageError | None:
        error: StorageError | None = None
        if isinstance(result, Failure):
            if isinstance(result.value, StorageError):
                error = result.value
            else:
                self._log.failure("A job of the log failed unexpectedly", result)
                error = StorageError("", "work on a partition", str(result.value))
        for event in job.events:
            self.report(event)
        return error
