"""
The log of one partition: append, read, flush, roll, delete.

B{Marks.} C{logStartOffset ≤ highWatermark ≤ logEndOffset} and C{flushedOffset ≤ logEndOffset}. The
log end moves on append, before the system has the bytes. Everything below the flushed offset is
synced. Reads end at the high watermark, which a policy moves (2011: L{flushedWatermark}). It never
passes what is written, and never goes back.

B{Bytes are not offsets.} Each mark is a L{LogPosition}. Limits and sizes come from bytes, counts
from offsets; only the partition's format converts them. Offsets may have gaps.

B{One thread.} All methods belong to the owner's thread and do not block, except that C{write} hands
pending bytes to the page cache, and may open the file. Jobs block: C{begin…} fixes what a job
covers, C{finish…} moves the marks (L{pylogbroker.storage.jobs}).

B{Pending bytes.} The owner calls C{write} at the end of a reactor turn, and sooner when
C{pendingSize} grows. Transient failures (L{TRANSIENT_ERRNOS}: a full disk, no descriptor left) lose
nothing. The file is cut back to the last whole batch, C{blocked} says why, and the next C{write}
tries again. The owner admits nothing meanwhile.

B{A failed partition} stays failed: it drops pending bytes, fails its waiters, and raises
L{PartitionOfflineError} from every call. Every error that is not transient fails it. A failed
C{fsync} is never retried: the kernel has marked the pages clean, and would report success for lost
bytes. A restart recovers what the disk really has.

B{Rolling.} The owner asks C{rollDue} before each append, and appends nothing while a roll is due or
under way. A segment I{larger} than the limit is rolled before the next append (spec-0.7 log-storage
§4). Its age counts from its first append; after a restart
C{LoadedPartition.firstAppendMs} estimates it (gotcha 19).

B{Deleting.} C{expired} decides, C{beginDelete} takes the segments out of the list at once, and the
job deletes the files. Slices stay readable.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import dropwhile, takewhile

from pylogbroker.errors import OffsetOutOfRangeError, PartitionOfflineError, StorageError
from pylogbroker.interfaces import (
    EMPTY_SLICE,
    AppendResult,
    Slice,
    ValidatedBatches,
)
from pylogbroker.storage.files import OUT_OF_DESCRIPTORS, DescriptorCache, writeAll
from pylogbroker.storage.jobs import (
    DeleteJob,
    FinalFlushJob,
    FindPositionJob,
    FlushJob,
    RollJob,
    StatJob,
)
from pylogbroker.storage.recovery import LoadedPartition
from pylogbroker.storage.segments import RetentionPolicy, Segment, SegmentList
from pylogbroker.types import EARLIEST, LATEST, LogPosition, TopicPartition

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
TRANSIENT_ERRNOS = DISK_FULL | OUT_OF_DESCRIPTORS
"""Failures that may pass: nothing that was accepted is lost by them."""

HOUR_MS = 3_600_000
NEVER = 1 << 63

WatermarkPolicy = Callable[["PartitionLog"], LogPosition]
"""Gives the position below which everything may be read."""


@dataclass(frozen=True)
class PartitionSettings:
    """
    Settings of one partition (spec-0.7 config §1).

    @ivar segmentSizeMax: bytes (C{log.file.size}).
    @ivar rollAgeMs: milliseconds (C{log.roll.hours}).
    @ivar flushCountMax: messages (C{log.flush.interval}).
    @ivar flushIntervalMs: milliseconds (C{log.default.flush.interval.ms}).
    @ivar retention: chooses the segments to delete (C{log.retention.hours} and
        C{log.retention.size}).
    """

    segmentSizeMax: int
    rollAgeMs: int
    flushCountMax: int
    flushIntervalMs: int
    retention: RetentionPolicy


OffsetCallback = Callable[[StorageError | None], object]
"""
Called once: with L{None} when the mark is reached, with the failure when it never will be. It must
not raise.
"""


class OffsetWaiters:
    """
    The purgatory of a partition: one-shot callbacks that wait for one mark to reach an offset.

    At most one callback waits per connection, and a moving mark mostly reaches all, so C{advance}
    looks at all. It removes a due callback before calling it: the callback may wait again, or
    cancel another.

    @ivar waiting: the same dictionary for life, so that a hot path can test it without a call.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[object, tuple[int, OffsetCallback]] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def wait(self, offset: int, callback: OffsetCallback) -> Callable[[], object]:
        """
        Wait for an offset. Returns what cancels the call, without effect once C{callback} was
        called.
        """
        key = object()
        self.waiting[key] = (offset, callback)
        return partial(self.waiting.pop, key, None)

    def advance(self, mark: int) -> None:
        if not self.waiting:
            return
        for key in [key for key, (offset, _) in self.waiting.items() if offset <= mark]:
            found = self.waiting.pop(key, None)
            if found is not None:
                found[1](None)

    def fail(self, failure: StorageError) -> None:
        while self.waiting:
            _, callback = self.waiting.pop(next(iter(self.waiting)))
            callback(failure)

    def failAbove(self, mark: int, failure: StorageError) -> None:
        """Fail those that wait for more than a mark, but none that begins to wait meanwhile."""
        for key in [key for key, (offset, _) in self.waiting.items() if offset > mark]:
            found = self.waiting.pop(key, None)
            if found is not None:
                found[1](failure)


class MarkKind(Enum):
    """The marks that C{whenReached} can wait for."""

    HIGH_WATERMARK = "high watermark"
    LAST_STABLE = "last stable offset"
    WRITTEN = "written offset"
    FLUSHED = "flushed offset"
    LOG_END = "log end"

    __hash__ = object.__hash__  # Enum's is a function in Python, called for every request


def flushedWatermark(log: PartitionLog) -> LogPosition:
    """The policy of 2011: readers see what is flushed."""
    return log.flushed


def writtenWatermark(log: PartitionLog) -> LogPosition:
    """The policy of a single replica: readers see what is in the page cache."""
    return log.written


class PartitionLog:
    """
    One partition's log; the module states its rules.

    @ivar isReadWhenWritten: whether readers see what is not flushed.
    @ivar isReplicated: whether other brokers have the partition, too: then the high watermark moves
        only as it is told.
    @ivar onFlushed: called when the flushed offset has moved, behind those who wait for it. Must
        not raise.
    @ivar onNews: called when something that other replicas are told has changed, perhaps more than
        once: the written offset, the high watermark, the log start, or that the log is out of
        service. Must not raise.
    @ivar leaderEpoch: stamped on appended batches, in formats with epochs.
    @ivar logStartOffset: the oldest readable offset.
    @ivar highWatermark: where reading ends.
    @ivar watermark: the same, with its byte.
    @ivar logEndOffset: the base offset of the next append.
    @ivar writtenOffset: everything below is in the page cache.
    @ivar flushed: everything below is synced.
    @ivar flushDueOffset: the flushed offset after the flushes that are due by count.
    @ivar pendingSize: bytes appended, not yet written.
    @ivar unflushedSize: bytes appended, not yet synced.
    @ivar bytesUntilRoll: bytes until a roll by size; negative: a roll is due.
    @ivar appendedCount: messages appended since the log was opened.
    @ivar lastFlushMs: end of the last flush of any bytes, or the time of opening.
    @ivar rolling: C{append} must not be called.
    @ivar blocked: why C{write} or a roll failed; the next C{write} clears it and retries.
    @ivar failure: why the partition is out of service.
    """

    def __init__(
        self,
        topicPartition: TopicPartition,
        loaded: LoadedPartition,
        cache: DescriptorCache,
        settings: PartitionSettings,
        clock: Callable[[], int],
    ) -> None:
        """@param clock: milliseconds since the epoch."""
        self.topicPartition = topicPartition
        self.path, self.format = loaded.path, loaded.format
        self.settings = settings
        self.leaderEpoch = 0
        self.isReadWhenWritten = self.isReplicated = False
        self.onFlushed: Callable[[], object] = _ignore
        self.onNews: Callable[[], object] = _ignore
        self._isStamped = loaded.format.isStamped
        self._stamp = self.format.stamp
        self._cache = cache
        self._clock = clock
        self._flushing: FlushJob | None = None
        self._deleting = False
        self._closing = False
        self._waiters = {mark: OffsetWaiters() for mark in MarkKind}
        self._endWaiters = self._waiters[MarkKind.LOG_END]
        self._endWaiting = self._endWaiters.waiting
        self._writtenWaiting = self._waiters[MarkKind.WRITTEN].waiting
        self._begin(loaded)
        self.watermark = self.flushed
        self.highWatermark = self.logEndOffset
        self.logStartOffset = self.segments[0].baseOffset
        self._watermarkPolicy: WatermarkPolicy = flushedWatermark
        self.appendedCount = 0
        self.lastFlushMs = clock()
        self.rolling = False
        self._refusing = False  # rolling, failed or closed: the one thing that append looks at
        self.blocked: StorageError | None = None
        self.failure: StorageError | None = None
        self.closed = False

    def _begin(self, loaded: LoadedPartition) -> None:
        """Take the files in: all bytes are synced, and none is pending."""
        _, _, segments, logEndOffset, _ = loaded
        self._list = SegmentList(segments)
        self._active = active = segments[-1]
        self._pinned = False
        self._pending: list[bytes] = []
        self._toRename: tuple[Segment, ...] = ()
        self._toUnlink: tuple[Segment, ...] = ()
        self._flushCountLeft = self.settings.flushCountMax
        firstMs = loaded.firstAppendMs
        self._rollAtMs = NEVER if firstMs is None else firstMs + self.settings.rollAgeMs
        self.logEndOffset = self.writtenOffset = self.flushDueOffset = logEndOffset
        self.flushed = LogPosition(logEndOffset, active.baseOffset, active.size)
        self._flushDueByte = active.size  # in the active segment
        self.pendingSize = self.unflushedSize = 0
        self.bytesUntilRoll = self.settings.segmentSizeMax - active.size

    # -- state

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._list.segments

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def flushedOffset(self) -> int:
        return self.flushed.offset

    @property
    def lastStableOffset(self) -> int:
        """2011's format has no transactions."""
        return self.highWatermark

    @property
    def written(self) -> LogPosition:
        return LogPosition(self.writtenOffset, self._active.baseOffset, self._active.writtenSize)

    @property
    def logEnd(self) -> LogPosition:
        active = self._active
        byte = active.writtenSize + self.pendingSize
        return LogPosition(self.logEndOffset, active.baseOffset, byte)

    @property
    def isOffline(self) -> bool:
        """Whether the partition has failed or is closed."""
        return self.failure is not None or self.closed

    @property
    def busy(self) -> bool:
        return self._flushing is not None or self.rolling or self._deleting or self._closing

    def __repr__(self) -> str:
        state = (
            "failed"
            if self.failure is not None
            else "closed"
            if self.closed
            else f"{self.logStartOffset}..{self.highWatermark}..{self.logEndOffset}"
        )
        return f"<PartitionLog {self.topicPartition} {state}>"

    def unavailableError(self, action: str) -> PartitionOfflineError:
        if self.failure is not None:
            return PartitionOfflineError(
                self.path,
                action,
                f"the partition is out of service: {self.failure}",
                self.failure.errno,
            )
        isClosed = self.closed or self._closing
        return PartitionOfflineError(
            self.path, action, "the log is closed" if isClosed else "a roll is under way"
        )

    # -- append

    def rollDue(self, nowMs: int, batches: ValidatedBatches | None = None) -> bool:
        """
        Whether to roll before the next append, even an empty one (spec-0.7 log-storage §4).

        @param batches: to be appended; 2011's rules do not look at them.
        """
        return self.bytesUntilRoll < 0 or nowMs > self._rollAtMs

    def append(self, batches: ValidatedBatches, nowMs: int) -> AppendResult:
        """
        Add batches; C{write} writes them.

        @raise PartitionOfflineError: the partition has failed, is closed, or is rolling.
        """
        if self._refusing:
            raise self.unavailableError("append to")
        base = self.logEndOffset
        size = batches.size
        active = self._active
        if self._isStamped:
            position = active.writtenSize + self.pendingSize
            active.index.add(batches, base, position, nowMs)
            self._pending += self._stamp(batches, base, self.leaderEpoch, nowMs)
        else:
            self._pending += batches.buffers
        self.pendingSize += size
        self.unflushedSize += size
        self.bytesUntilRoll -= size
        self.logEndOffset = end = base + batches.offsetCount
        self.appendedCount += batches.messageCount
        self._flushCountLeft = left = self._flushCountLeft - batches.messageCount
        if left <= 0:
            self.flushDueOffset = end
            self._flushDueByte = active.writtenSize + self.pendingSize
        if self._rollAtMs == NEVER and size:
            self._rollAtMs = nowMs + self.settings.rollAgeMs
        if self._endWaiting:
            self._endWaiters.advance(end)
        # Half the cost of calling the class.
        return tuple.__new__(AppendResult, (base, end - 1, nowMs, False))

    def write(self) -> None:
        """
        Hand pending bytes to the system. Never raises: see C{blocked} and C{failure}.
        """
        pending = self._pending
        if not pending:
            self.blocked = None
            return
        active = self._active
        if not self._pinned:
            try:
                active.file.openPinned()
            except StorageError as error:
                self._stop(error)
                return
            self._pinned = True
        try:
            bufferCount, size, problem = writeAll(
                active.file.file, active.writtenSize, pending, self.pendingSize
            )
        except StorageError as error:
            # The torn end stays: nothing may be written behind it.
            self._fail(error)
            return
        self.pendingSize -= size
        active.writtenSize += size
        active.modifiedMs = self._clock()
        if problem is None:
            self._pending = []
            self.writtenOffset = self.logEndOffset
            self.blocked = None
        else:
            self.writtenOffset = self.format.nextOffset(self.writtenOffset, pending[:bufferCount])
            del pending[:bufferCount]
            self._stop(problem)
        if self._writtenWaiting:
            self._waiters[MarkKind.WRITTEN].advance(self.writtenOffset)
        self.updateHighWatermark()
        self.onNews()

    def _stop(self, problem: StorageError) -> None:
        if problem.errno in TRANSIENT_ERRNOS:
            self.blocked = problem
            self._unpinIfClean()
        else:
            self._fail(problem)

    # -- read

    def read(
        self, offset: int, sizeMax: int, search: FindPositionJob | None = None
    ) -> Slice | FindPositionJob:
        """
        The range from an offset, up to the high watermark or the end of a segment (spec-0.7
        wire-protocol §7.1, 5 to 7). An offset in a gap reads from behind the gap.

        @param sizeMax: bytes; negative is as 0.
        @param search: the job that an earlier call returned for this offset, after its run.
        @return: empty at the high watermark; a job if only the file tells the offset's byte. Run it
            on a worker and call again.
        @raise OffsetOutOfRangeError: below the start, or above the high watermark.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self._refusing and not self.rolling:
            raise self.unavailableError("read")
        watermark = self.highWatermark
        if offset >= watermark or offset < self.logStartOffset:
            if offset == watermark:
                return EMPTY_SLICE
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topicPartition} is not in"
                f" {self.logStartOffset} to {watermark}"
            )
        view = self._list
        index = view.indexOf(offset)
        segment = view.segments[index]
        position = segment.index.positionOf(offset)
        if position is None:
            if search is None or search.segment is not segment:
                return FindPositionJob(segment, offset)
            position = search.position
        end = _endByte(segment, self.watermark)
        while position >= end and index + 1 < len(view.bases) and view.bases[index + 1] < watermark:
            index += 1  # the offset is in a gap
            segment = view.segments[index]
            position, end = 0, _endByte(segment, self.watermark)
        size = end - position
        if size > sizeMax:
            size = sizeMax
        if size <= 0:
            return EMPTY_SLICE
        return Slice(segment.file, position, size)

    def readsPastWatermark(self, offset: int, sizeMax: int) -> bool:
        """
        Whether flushes that are due by count would change a read: 0.7.2 does those before an append
        returns.
        """
        due, watermark = self.flushDueOffset, self.highWatermark
        if due <= watermark or offset > due or offset < self.logStartOffset:
            return False
        if not self.isFlushDueByCount:  # the high watermark waits for something else
            return False
        if offset > watermark:
            return True
        if offset == watermark:
            return sizeMax > 0 and offset < due
        segment = self.segments[self._list.indexOf(offset)]
        end = _endByte(segment, self.watermark)
        dueEnd = self._flushDueByte if segment is self._active else segment.writtenSize
        position = segment.index.positionOf(offset)
        return dueEnd > end and (position is None or sizeMax > end - position)

    def offsetsBefore(self, time: int, countMax: int, nowMs: int) -> list[int]:
        """
        The base offsets of segments, and the high watermark, as of a time, newest first (spec-0.7
        wire-protocol §10).

        @param time: milliseconds since the epoch, L{LATEST} or L{EARLIEST}.
        @raise ValueError: C{countMax} is negative.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self.isOffline:
            raise self.unavailableError("look up offsets of")
        if countMax < 0:
            raise ValueError(f"{countMax} offsets asked for")
        known = [(segment.baseOffset, segment.modifiedMs) for segment in reversed(self.segments)]
        if self.highWatermark > known[0][0]:
            known.insert(0, (self.highWatermark, nowMs))
        if time == EARLIEST:
            known = known[-1:]
        elif time != LATEST:
            known = list(dropwhile(lambda each: each[1] > time, known))
        return [offset for offset, _ in known[:countMax]]

    # -- flush

    @property
    def isFlushDueByCount(self) -> bool:
        return self.flushDueOffset > self.flushed.offset

    @property
    def flushWaiterCount(self) -> int:
        """How many wait for the flushed offset."""
        return len(self._waiters[MarkKind.FLUSHED])

    @property
    def wantsFlush(self) -> bool:
        """Whether to flush now what is written: by count, or because someone waits for it."""
        return self.flushDueOffset > self.flushed.offset

    def flushDue(self, nowMs: int) -> bool:
        """
        Whether a flush is due by count or time, and none is under way. Bytes without messages (an
        empty wrapper) are flushed, too (gotcha 15). One is due, too, when the clock was set back.
        """
        if self._flushing is not None or self._refusing or not self.unflushedSize:
            return False
        sinceMs = nowMs - self.lastFlushMs
        return self._flushCountLeft <= 0 or not 0 <= sinceMs < self.settings.flushIntervalMs

    def beginFlush(self) -> FlushJob | None:
        """
        Flush all appended bytes. Writes pending bytes first.

        @return: L{None}: nothing to sync, or a flush or roll is under way, or the partition or the
            write has failed.
        """
        if self._flushing is not None or self._refusing:
            return None
        self.write()
        active = self._active
        if self.failure is not None or active.size == active.writtenSize:
            return None
        if not self._pending:
            self._flushCountLeft = self.settings.flushCountMax
        # The unsynced bytes hold a pin, but a roll may sync them first.
        active.file.pin()
        self._flushing = job = FlushJob(active, self.written)
        return job

    def finishFlush(self, job: FlushJob, error: StorageError | None, nowMs: int) -> None:
        """Move the marks to what the job covered, or fail the partition."""
        self._flushing = None
        job.segment.file.unpin()
        if error is not None:
            self._fail(error)
        elif self.failure is None:
            self.lastFlushMs = nowMs
            self._onSynced(job.segment, job.position)

    def _onSynced(self, segment: Segment, position: LogPosition) -> None:
        segment.size = max(segment.size, position.byte)
        active = self._active
        self._unpinIfClean()
        self.unflushedSize = active.writtenSize - active.size + self.pendingSize
        hasMoved = position > self.flushed
        if hasMoved:
            self.flushed = position
            if position.offset > self.flushDueOffset:
                self.flushDueOffset, _, self._flushDueByte = position
            self._waiters[MarkKind.FLUSHED].advance(position.offset)
        self.updateHighWatermark()
        if hasMoved:
            self.onFlushed()

    def _unpinIfClean(self) -> None:
        if self._active.size == self._active.writtenSize:
            self._unpin()

    def _unpin(self) -> None:
        if self._pinned:
            self._pinned = False
            self._active.file.unpin()

    def setWatermarkPolicy(self, policy: WatermarkPolicy) -> None:
        """
        Change what moves the high watermark, before the partition serves: this may move it back.
        """
        self._watermarkPolicy = policy
        self.watermark = LogPosition(self.logStartOffset, self.logStartOffset, 0)
        self.highWatermark = self.logStartOffset
        self.updateHighWatermark()

    def updateHighWatermark(self) -> None:
        """Apply the policy. The high watermark moves only forward."""
        position = self._watermarkPolicy(self)
        if position > self.watermark and self.failure is None:
            self.watermark = position = min(position, self.written)
            self.highWatermark = position.offset
            self._onHighWatermark()
            self._waiters[MarkKind.HIGH_WATERMARK].advance(position.offset)
            self.onNews()

    def _onHighWatermark(self) -> None:
        """The high watermark has moved; those who wait for it are not called yet."""

    def _stateToSave(self) -> Callable[[], None] | None:
        """
        What a job saves beside the segment, behind its sync: a roll or a close begins, and nothing
        is appended until it ends.
        """
        return None

    def _onSaved(self, offset: int) -> None:
        """The state as of this offset is saved."""

    def _removeState(self, segment: Segment) -> None:
        """Remove what lies beside a deleted segment. Runs in a job."""

    # -- roll

    def beginRoll(self) -> RollJob | None:
        """
        Begin the next segment. Writes pending bytes first. C{append} must wait for C{finishRoll}.

        @return: L{None}: the last segment is empty, and begins at the log end, or a roll is under
            way, or the partition has failed, or pending bytes cannot be written now (C{blocked};
            try again later).
        """
        if self._refusing:
            return None
        self.write()
        active = self._active
        isEmpty = active.writtenSize == 0 and self.writtenOffset == active.baseOffset
        if self.failure is not None or self._pending or isEmpty:
            return None
        self.rolling = self._refusing = True
        if self._pinned:
            active.file.pin()
        return RollJob(
            active,
            self.written,
            self._stateToSave(),
            self._cache,
            self.path,
            self.format,
            self._pinned,
        )

    def finishRoll(self, job: RollJob, error: StorageError | None, nowMs: int) -> None:
        """
        Add the new segment, or fail the partition. After a transient failure to create the file the
        roll stays due, and C{blocked} says why.
        """
        self.rolling = False
        if job.isPinned:
            job.segment.file.unpin()
        if self.failure is not None:
            if job.file is not None:
                job.file.retire()
            return
        if error is not None and (
            not job.isFlushed or job.isCreated or error.errno not in TRANSIENT_ERRNOS
        ):
            self._fail(error)
            return
        self._refusing = False
        if job.segment.size < job.position.byte:
            self.lastFlushMs = nowMs
            self._flushCountLeft = self.settings.flushCountMax
        if error is not None:
            self.blocked = error
        else:
            self._startSegment(job, nowMs)
        self._onSynced(job.segment, job.position)

    def _startSegment(self, job: RollJob, nowMs: int) -> None:
        assert job.file is not None and job.index is not None
        old = job.segment
        old.size = job.position.byte
        self._unpinIfClean()
        old.file.writable = False
        self._active = Segment(job.position.offset, job.file, 0, nowMs, job.index)
        self._list = SegmentList((*self.segments, self._active))
        self.bytesUntilRoll = self.settings.segmentSizeMax
        self._rollAtMs = NEVER
        self.blocked = None
        self._onSaved(job.position.offset)

    # -- retention

    def keepAll(self) -> None:
        """Delete nothing by age or size any more: the records belong to no known topic."""
        self.settings = replace(self.settings, retention=lambda segments, nowMs: 0)

    def beginStat(self) -> StatJob | None:
        """Read the files' times. L{None}: the partition has failed or is closed."""
        if self.isOffline:
            return None
        return StatJob(self._cache.fileSystem, self.segments)

    def finishStat(self, job: StatJob) -> None:
        """
        Take the times in. Unread ones stay. So does the last segment's if it was written to
        meanwhile: otherwise retention could delete what has just come.
        """
        for segment, modifiedMs in job.times:
            if segment is not job.segments[-1] or segment.writtenSize == job.lastWrittenSize:
                segment.modifiedMs = modifiedMs

    def expired(self, nowMs: int) -> tuple[Segment, ...]:
        """
        The oldest segments that retention would delete, perhaps all. Not the last while bytes are
        pending: its time is that of the last write.
        """
        if self.isOffline:
            return ()
        segments = self.segments
        count = self.settings.retention(segments, nowMs)
        return segments[: min(count, len(segments) - 1) if self._pending else count]

    def needsRoll(self, segments: Sequence[Segment]) -> bool:
        """
        Whether to roll before deleting these: the last is among them, and not empty. Then a new
        empty segment keeps the log end (spec-0.7 log-storage §10).
        """
        return bool(segments) and segments[-1] is self._active and not self._isActiveEmpty

    @property
    def _isActiveEmpty(self) -> bool:
        return self._active.writtenSize + self.pendingSize == 0

    def beginDelete(self, segments: Sequence[Segment], nowMs: int) -> DeleteJob | None:
        """
        Take the oldest segments out of the list and delete their files. The last segment stays. If
        it is empty, its time is set to now; if not, roll first (C{needsRoll}).

        The job also retries earlier files that readers held or that could not be renamed: call this
        with nothing to delete, too.

        @param segments: the result of C{expired}.
        @return: L{None}: nothing to do, or a deletion is under way, or the partition has failed.
        """
        if self._deleting or self.isOffline:
            return None
        wanted = set(segments)
        count = len(list(takewhile(wanted.__contains__, self.segments[:-1])))
        touch = self._active if self._active in wanted and self._isActiveEmpty else None
        if not (count or touch or self._toRename or self._toUnlink):
            return None
        self._toRename += self.segments[:count]
        self._list = self._list.replaced(0, count)
        self.logStartOffset = max(self.logStartOffset, self.segments[0].baseOffset)
        self.onNews()
        self._deleting = True
        return DeleteJob(
            self._cache.fileSystem,
            self.path,
            self._toRename,
            [*self._toUnlink],
            touch,
            nowMs,
            self._removeState,
        )

    @property
    def oldestOffset(self) -> int:
        """
        The first offset on the disk: after a power cut the log may have what is above it, also if
        that is being deleted.
        """
        return (self._toRename or self.segments)[0].baseOffset

    def finishDelete(self, job: DeleteJob, error: StorageError | None) -> None:
        """
        Note failed deletions for the next time. A failed sync of the directory fails the partition;
        the owner logs other errors.
        """
        self._deleting = False
        self._toRename = job.segments[job.doneCount :]
        self._toUnlink = tuple(segment for segment in job.renamed if segment not in job.unlinked)
        if error is None and job.touch is not None:
            job.touch.modifiedMs = max(job.touch.modifiedMs, job.nowMs)
        if error is not None and error.action == "fsync":
            self._fail(error)

    # -- waiters

    def whenReached(
        self, mark: MarkKind, offset: int, callback: OffsetCallback
    ) -> Callable[[], object]:
        """
        Call back once when a mark reaches an offset, at once if it has.

        @param callback: called with L{None}, or with the failure when the partition fails or is
            closed first. It must not raise.
        @return: what cancels the call.
        """
        if self.failure is None and not self.closed and self._markOffset(mark) < offset:
            return self._waiters[mark].wait(offset, callback)
        callback(self.unavailableError("wait for") if self.isOffline else None)
        return lambda: None

    def _markOffset(self, mark: MarkKind) -> int:
        if mark is MarkKind.FLUSHED:
            return self.flushed.offset
        if mark is MarkKind.WRITTEN:
            return self.writtenOffset
        if mark is MarkKind.HIGH_WATERMARK:
            return self.highWatermark
        return self.lastStableOffset if mark is MarkKind.LAST_STABLE else self.logEndOffset

    # -- settings

    def configure(self, settings: PartitionSettings) -> None:
        """Change the settings of a serving partition, from the next append on."""
        old, self.settings = self.settings, settings
        self.bytesUntilRoll += settings.segmentSizeMax - old.segmentSizeMax
        if self._rollAtMs != NEVER:
            self._rollAtMs += settings.rollAgeMs - old.rollAgeMs
        self._flushCountLeft += settings.flushCountMax - old.flushCountMax

    # -- close

    def _fail(self, failure: StorageError) -> None:
        if self.failure is None:
            self.failure = failure
            self._release()

    def _release(self) -> None:
        self._refusing = True
        self.blocked = None
        self._pending = []
        self.pendingSize = self.unflushedSize = 0
        self.logEndOffset = self.flushedOffset
        self.flushDueOffset = self.flushedOffset
        self._unpin()
        for segment in self.segments:
            segment.file.retire()
        for waiters in self._waiters.values():
            waiters.fail(self.unavailableError("wait for"))
        self.onNews()

    def beginClose(self) -> FinalFlushJob | None:
        """
        Write and sync the rest, then close. No other job may be under way (C{busy}).

        @return: L{None}: the log is closed. If it had failed, or pending bytes could not be
            written, C{failure} says so, and the directory must get no marker.
        """
        if self.busy:
            raise ValueError(f"{self!r} is busy")
        if not self.isOffline:
            self.write()
            if self._pending:
                assert self.blocked is not None
                self._fail(self.blocked)
        if self.isOffline:
            self.closed = True
            return None
        self._refusing = self._closing = True
        return FinalFlushJob(self._active, self.written, self._stateToSave())

    def remove(self) -> None:
        """
        Close without saving anything, since the partition is deleted. No job may be under way.
        """
        if self.busy:
            raise ValueError(f"{self!r} is busy")
        if not self.closed:
            self.closed = True
            self._release()

    def finishClose(self, job: FinalFlushJob, error: StorageError | None) -> None:
        """Move the marks a last time and release everything; a failed sync fails the partition."""
        self._closing = False
        self.closed = True
        if error is not None:
            self._fail(error)
        else:
            self._onSynced(job.segment, job.position)
            self._release()


def _ignore() -> None:
    """In the place of a listener."""


def _endByte(segment: Segment, mark: LogPosition) -> int:
    return mark.byte if mark.segment == segment.baseOffset else segment.writtenSize
