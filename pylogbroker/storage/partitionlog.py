"""
One partition: append, read, flush, roll, delete.

B{Marks.} C{startOffset ≤ highWatermark ≤ logEndOffset} and C{flushedOffset ≤ logEndOffset}. The end moves when bytes are appended, which is when they are
put into C{pending}, before the system has them. The flushed mark is the end of the contiguous prefix that was synced. What may be read ends at the
visible mark; what moves it is a policy given to the log, and in the 2011 log that is: what is flushed is visible, and nothing else.

B{One thread.} All methods belong to the owner's thread. None blocks, with one exception: C{write} hands pending bytes to the page cache (and opens
the file if its descriptor was given up meanwhile). What does block is a job, see L{pylogbroker.storage.jobs}: C{begin…} fixes what it covers,
C{finish…} moves the marks.

B{Pending bytes.} Appending costs a few bytecodes and no system call; the owner calls C{write} at the end of a turn, and sooner when C{pendingSize}
grows. What is pending is never lost by a failure that may pass: the disk is full (C{ENOSPC}, C{EDQUOT}), there are no descriptors left. Then the file
is cut back to the last whole set, the rest stays pending, C{blocked} says why, and the next C{write} tries again. Whoever owns the log stops taking
in more. Every other error fails the partition.

B{A failed partition} stays failed: pending bytes are let go, those who wait are told, every call raises L{PartitionOfflineError}. A failed C{fsync} is
one of those errors, and is never retried: the kernel has marked the pages clean, and a second one would report success for bytes that are not there.
Restarting the broker recovers the partition from what the disk really has.

B{Rolling.} Before each append the owner asks C{rollDue}; if so, it appends nothing until C{beginRoll} … C{finishRoll} are done. C{fits} saves asking
for each set of a run. The size rule is 0.7.2's (spec-0.7 log-storage §4). The age of a segment counts from its first append; after a restart that
moment is estimated from file times, so that a broker that is restarted every day still rolls (gotcha 19): see
L{pylogbroker.storage.logdirectory.firstAppendMs}.

B{Deleting.} C{expired} decides, C{beginDelete} takes the segments out of the list at once, the job deals with the files. Readers that hold a slice go
on reading.

B{Offsets are not positions.} The format given to the log calculates the one from the other; the log adds up bytes of the file only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pylogbroker.errors import OffsetOutOfRangeError, PartitionOfflineError, StorageError
from pylogbroker.interfaces import EMPTY_SLICE, IFormat, Slice
from pylogbroker.storage.descriptors import OUT_OF_DESCRIPTORS, DescriptorCache
from pylogbroker.storage.filenames import segmentName
from pylogbroker.storage.jobs import CloseJob, DeleteJob, FlushJob, RollJob, StatJob
from pylogbroker.storage.offsetwaiters import NoticeCallback, OffsetWaiters
from pylogbroker.storage.retention import RetentionPolicy, keepAll
from pylogbroker.storage.segment import Segment
from pylogbroker.storage.segmentlist import SegmentList, SegmentsView
from pylogbroker.storage.vectoredwrite import writeAll
from pylogbroker.types import EARLIEST, LATEST, TopicPartition

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
PASSING = DISK_FULL | OUT_OF_DESCRIPTORS
"""Failures that may pass, and for which nothing accepted is given up."""

HOUR_MS = 3_600_000
_NEVER = 1 << 63


@dataclass(frozen=True)
class PartitionSettings:
    """
    How one partition is kept.

    @ivar segmentSizeMax: bytes; a segment larger than this is rolled before the next append (C{log.file.size}).
    @ivar rollAgeMs: so is one whose first append is longer ago (C{log.roll.hours}).
    @ivar flushCountMax: unflushed messages at which a flush is due (C{log.flush.interval}).
    @ivar flushIntervalMs: time since the last flush at which one is due (C{log.default.flush.interval.ms}).
    @ivar retention: which segments may go.
    """

    segmentSizeMax: int = 1 << 30
    rollAgeMs: int = 168 * HOUR_MS
    flushCountMax: int = 500
    flushIntervalMs: int = 3000
    retention: RetentionPolicy = keepAll


def visibleWhenFlushed(log: PartitionLog) -> int:
    """The 2011 policy of visibility."""
    return log.flushedOffset


class PartitionLog:
    """
    See the module.

    @ivar topicPartition: which one.
    @ivar path: of its directory.
    @ivar settings: how it is kept.
    @ivar startOffset: the oldest offset that can be read.
    @ivar highWatermark: where reading ends.
    @ivar logEndOffset: what the next append gets.
    @ivar flushedOffset: everything below is synced.
    @ivar flushDueOffset: what flushes by count that are due, or under way, will make visible; at least C{highWatermark}.
    @ivar pendingSize: bytes appended and not yet written.
    @ivar room: bytes that may be appended without the size rule asking for a roll in between; negative: it asks for one now.
    @ivar appendedCount: messages appended since the log was opened.
    @ivar lastFlushMs: when the last flush ended that flushed something; at first, when the log was opened.
    @ivar rolling: a roll is under way: C{append} must not be called.
    @ivar blocked: why C{write} or a roll could not go on. The next C{write} tries again; if there is nothing to write, it only takes this away, and
        the roll, which is still due, can be tried again.
    @ivar failure: why the partition is out of service.
    @ivar closed: whether it is closed.
    """

    def __init__(
        self,
        topicPartition: TopicPartition,
        path: str,
        format: IFormat,
        cache: DescriptorCache,
        segments: Sequence[Segment],
        settings: PartitionSettings,
        clock: Callable[[], int],
        firstAppendMs: int | None = None,
        visibility: Callable[[PartitionLog], int] = visibleWhenFlushed,
    ) -> None:
        """
        @param segments: at least one, contiguous, all bytes of them synced.
        @param clock: milliseconds since the epoch.
        @param firstAppendMs: when the last segment was first appended to; L{None}: it is empty.
        """
        self.topicPartition = topicPartition
        self.path = path
        self.settings = settings
        self._format = format
        self._locate = format.locate
        self._nextOffset = format.nextOffset
        self._cache = cache
        self._clock = clock
        self._visibility = visibility
        self._list = SegmentList(segments)
        self._active = active = segments[-1]
        self._pinned = False
        self._pending: list[bytes] = []
        self._flushing: FlushJob | None = None
        self._retiring = False
        self._closing = False
        self._leftovers: tuple[Segment, ...] = ()
        self._doomed: tuple[Segment, ...] = ()
        self._notices = {
            "visible": OffsetWaiters(),
            "flushed": OffsetWaiters(),
            "end": OffsetWaiters(),
        }
        self._endNotices = self._notices["end"]
        self._endWaiting = self._endNotices.waiting
        self._flushCountLeft = settings.flushCountMax
        self._rollAtMs = _NEVER if firstAppendMs is None else firstAppendMs + settings.rollAgeMs
        self.startOffset = segments[0].baseOffset
        self.logEndOffset = self._writtenOffset = self.flushedOffset = self._nextOffset(
            active.baseOffset, active.size
        )
        self.highWatermark = self.flushDueOffset = self.startOffset
        self.pendingSize = 0
        self.room = settings.segmentSizeMax - active.size
        self.appendedCount = 0
        self.lastFlushMs = clock()
        self.rolling = False
        self._refusing = False  # rolling, failed or closed: the one thing that append looks at
        self.blocked: StorageError | None = None
        self.failure: StorageError | None = None
        self.closed = False
        self._moveVisible()

    # -- what it looks like -------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """A snapshot, oldest first."""
        return self._list.view.segments

    @property
    def size(self) -> int:
        """Flushed bytes in all segments."""
        return sum(segment.size for segment in self._list.view.segments)

    @property
    def unflushedSize(self) -> int:
        """Bytes appended and not yet synced, those pending included."""
        return self.logEndOffset - self.flushedOffset

    @property
    def unflushedCount(self) -> int:
        """Messages appended and not yet synced."""
        return (
            self.settings.flushCountMax
            - self._flushCountLeft
            + (0 if self._flushing is None else self._flushing.count)
        )

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way."""
        return self._flushing is not None

    @property
    def busy(self) -> bool:
        """Whether a job is under way that must be finished before C{beginClose}."""
        return self._flushing is not None or self.rolling or self._retiring or self._closing

    def __repr__(self) -> str:
        state = (
            "failed"
            if self.failure is not None
            else "closed"
            if self.closed
            else f"{self.startOffset}..{self.highWatermark}..{self.logEndOffset}"
        )
        return f"<PartitionLog {self.topicPartition} {state}>"

    def refusal(self, action: str) -> PartitionOfflineError:
        """Why it takes part in nothing now; to be asked when it has failed, or is closed or rolling."""
        if self.failure is not None:
            return PartitionOfflineError(
                self.path,
                action,
                f"the partition is out of service: {self.failure}",
                self.failure.errno,
            )
        return PartitionOfflineError(
            self.path, action, "the log is closed" if self.closed else "a roll is under way"
        )

    # -- append -------------------------------------------------------------------------------------------------------

    def rollDue(self, nowMs: int) -> bool:
        """Whether the segment must be rolled before the next append, be it of an empty set (spec-0.7 log-storage §4)."""
        return self.room < 0 or nowMs > self._rollAtMs

    def fits(self, size: int) -> bool:
        """Whether a run of sets of so many bytes can be appended without a roll becoming due between two of them."""
        return size <= self.room

    def append(self, sets: Sequence[bytes], size: int, count: int) -> None:
        """
        Take message sets that were checked. They count in C{logEndOffset} at once and are written by C{write}.

        @param sets: whole sets, one a buffer: where a write must be cut short, it is cut between two of them.
        @param size: bytes of all.
        @param count: messages in all.
        @raise PartitionOfflineError: the partition has failed or is closed (or the caller has not waited for a roll).
        """
        if self._refusing:
            raise self.refusal("append to")
        self._pending += sets
        self.pendingSize += size
        self.room -= size
        self.logEndOffset = end = self._nextOffset(self.logEndOffset, size)
        self.appendedCount += count
        self._flushCountLeft = left = self._flushCountLeft - count
        if left <= 0:
            self.flushDueOffset = end
        if self._rollAtMs == _NEVER and size:
            self._rollAtMs = self._clock() + self.settings.rollAgeMs
        if self._endWaiting:
            self._endNotices.moved(end)

    def write(self) -> None:
        """
        Hand what is pending to the system. Never raises: look at C{blocked} and C{failure}.

        A short write, or a full disk, cuts the file back to the last whole set first.
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
            # The torn end stays, and nothing may be written behind it.
            self._fail(error)
            return
        self.pendingSize -= size
        active.writtenSize += size
        active.modifiedMs = self._clock()
        self._writtenOffset = self._nextOffset(self._writtenOffset, size)
        if problem is None:
            self._pending = []
            self.blocked = None
        else:
            del pending[:bufferCount]
            self._stop(problem)

    def _stop(self, problem: StorageError) -> None:
        if problem.errno in PASSING:
            self.blocked = problem
            self._unpinIfClean()
        else:
            self._fail(problem)

    # -- read ---------------------------------------------------------------------------------------------------------

    def read(self, offset: int, sizeMax: int) -> Slice:
        """
        The range from an offset, up to the visible mark, never over the end of a segment (spec-0.7 wire-protocol §7.1, 5 to 7).

        @param sizeMax: bytes; negative is as 0.
        @return: empty at the end.
        @raise OffsetOutOfRangeError: below the start, or beyond the visible mark.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self._refusing and not self.rolling:
            raise self.refusal("read")
        visible = self.highWatermark
        if offset >= visible or offset < self.startOffset:
            if offset == visible:
                return EMPTY_SLICE
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topicPartition} is not in {self.startOffset} to {visible}"
            )
        view = self._list.view
        index = view.indexOf(offset)
        segment = view.segments[index]
        position = self._locate(segment.baseOffset, offset)
        size = self._endPosition(view, index, visible) - position
        if size > sizeMax:
            size = sizeMax
        if size <= 0:
            return EMPTY_SLICE
        return Slice(segment.file, position, size)

    def _endPosition(self, view: SegmentsView, index: int, mark: int) -> int:
        """Where in a segment a read up to a mark ends."""
        if index + 1 < len(view.bases) and mark >= view.bases[index + 1]:
            return view.segments[index].writtenSize
        return self._locate(view.bases[index], mark)

    def readsPastWatermark(self, offset: int, sizeMax: int, mark: int) -> bool:
        """
        Whether a read of this range would answer otherwise if everything below a mark were visible: what 0.7.2 would have answered, which flushes
        by count before it returns from an append.

        @param mark: C{flushDueOffset}, usually.
        """
        visible = self.highWatermark
        if mark <= visible or offset > mark or offset < self.startOffset:
            return False
        if offset > visible:
            return True
        if offset == visible:
            return sizeMax > 0 and offset < mark
        view = self._list.view
        index = view.indexOf(offset)
        end = self._endPosition(view, index, visible)
        return self._endPosition(view, index, mark) > end and sizeMax > end - self._locate(
            view.bases[index], offset
        )

    def offsetsBefore(self, time: int, countMax: int, nowMs: int) -> list[int]:
        """
        Segment starts, and the visible end, that were there at a time, newest first (spec-0.7 wire-protocol §10).

        @param time: milliseconds since the epoch, or L{LATEST}, or L{EARLIEST}.
        @param countMax: how many offsets to answer.
        @raise ValueError: C{countMax} is negative.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self.failure is not None or self.closed:
            raise self.refusal("look up offsets of")
        if countMax < 0:
            raise ValueError(f"{countMax} offsets asked for")
        known = [(segment.baseOffset, segment.modifiedMs) for segment in self._list.view.segments]
        if self.highWatermark > known[-1][0]:
            known.append((self.highWatermark, nowMs))
        if time == EARLIEST:
            last = 0
        elif time == LATEST:
            last = len(known) - 1
        else:
            last = next((i for i in range(len(known) - 1, -1, -1) if known[i][1] <= time), -1)
        return [offset for offset, _ in reversed(known[: last + 1])][:countMax]

    # -- flush --------------------------------------------------------------------------------------------------------

    def flushDue(self, nowMs: int) -> bool:
        """
        Whether enough messages, or anything for long enough, are unflushed, and no flush is under way.

        By bytes, not by messages: a wrapper without messages is flushed, too (gotcha 15).
        """
        if self._flushing is not None or self._refusing or self.logEndOffset == self.flushedOffset:
            return False
        return (
            self._flushCountLeft <= 0 or nowMs - self.lastFlushMs >= self.settings.flushIntervalMs
        )

    def beginFlush(self) -> FlushJob | None:
        """
        Flush what has been appended so far. Writes what is pending first.

        @return: L{None}: there is nothing to do, or a flush or roll is under way, or the partition has failed, or the write did.
        """
        if self._flushing is not None or self._refusing:
            return None
        self.write()
        active = self._active
        if self.failure is not None or active.size == active.writtenSize:
            return None
        count = 0
        if not self._pending:
            count = self.settings.flushCountMax - self._flushCountLeft
            self._flushCountLeft = self.settings.flushCountMax
        active.file.pin()  # held already by the unsynced bytes; the job's own, since a roll may sync them first
        self._flushing = job = FlushJob(active, active.writtenSize, self._writtenOffset, count)
        return job

    def finishFlush(self, job: FlushJob, error: StorageError | None, nowMs: int) -> None:
        """
        Move the marks to what the job covered, or fail the partition.

        @param error: what C{job.run} raised.
        """
        self._flushing = None
        job.segment.file.unpin()
        if error is not None:
            self._fail(error)
        elif self.failure is None:
            self.lastFlushMs = nowMs
            self._flushed(job.segment, job.position, job.offset)

    def _flushed(self, segment: Segment, position: int, offset: int) -> None:
        if position > segment.size:
            segment.size = position
        self._unpinIfClean()
        if offset > self.flushedOffset:
            self.flushedOffset = offset
            self._notices["flushed"].moved(offset)
        self._moveVisible()

    def _unpinIfClean(self) -> None:
        active = self._active
        if self._pinned and active.size == active.writtenSize:
            self._pinned = False
            active.file.unpin()

    def _moveVisible(self) -> None:
        visible = min(self._visibility(self), self.logEndOffset)
        if visible > self.highWatermark:
            self.highWatermark = visible
            if self.flushDueOffset < visible:
                self.flushDueOffset = visible
            self._notices["visible"].moved(visible)

    # -- roll ---------------------------------------------------------------------------------------------------------

    def beginRoll(self) -> RollJob | None:
        """
        Close the last segment, open a new one behind it. Writes what is pending first. Until C{finishRoll}, nothing may be appended.

        @return: L{None}: the last segment is empty, or a roll is under way, or the partition has failed, or what is pending cannot be written
            now (C{blocked}; try again later).
        """
        if self._refusing:
            return None
        self.write()
        active = self._active
        if self.failure is not None or self._pending or active.writtenSize == 0:
            return None
        self.rolling = self._refusing = True
        if self._pinned:
            active.file.pin()
        newPath = f"{self.path}/{segmentName(self.logEndOffset)}"
        return RollJob(self._cache, self.path, active, self.logEndOffset, newPath, self._pinned)

    def finishRoll(self, job: RollJob, error: StorageError | None, nowMs: int) -> None:
        """
        Take the new segment in, or fail the partition. If only the new file could not be made, for a reason that may pass, the roll stays due,
        and C{blocked} says why.
        """
        self.rolling = False
        if job.pinned:
            job.segment.file.unpin()
        if self.failure is not None:
            if job.file is not None:
                job.file.retire()
            return
        if error is not None and (not job.flushed or job.created or error.errno not in PASSING):
            self._fail(error)
            return
        self._refusing = False
        if job.segment.size < job.position:
            self.lastFlushMs = nowMs
            self._flushCountLeft = self.settings.flushCountMax
        if error is not None:
            self.blocked = error
        else:
            self._startSegment(job, nowMs)
        self._flushed(job.segment, job.position, job.offset)

    def _startSegment(self, job: RollJob, nowMs: int) -> None:
        assert job.file is not None
        old = job.segment
        old.size = job.position
        self._unpinIfClean()
        old.file.writable = False
        self._active = Segment(job.offset, job.file, 0, nowMs)
        self._list.append(self._active)
        self.room = self.settings.segmentSizeMax
        self._rollAtMs = _NEVER
        self.blocked = None

    # -- retention ----------------------------------------------------------------------------------------------------

    def beginStat(self) -> StatJob | None:
        """Look at the files' times before deciding by them. L{None}: the partition has failed or is closed."""
        if self.failure is not None or self.closed:
            return None
        return StatJob(self._cache, self._list.view.segments)

    def finishStat(self, job: StatJob, error: StorageError | None) -> None:
        """
        Take the times in. An error means that those not seen stay as they were. So does the last segment's if it was written to meanwhile: the file may
        have been looked at before, and retention would then delete what has just come.
        """
        for segment, modifiedMs in job.times:
            if segment is not job.last or segment.writtenSize == job.lastWrittenSize:
                segment.modifiedMs = modifiedMs

    def expired(self, nowMs: int) -> tuple[Segment, ...]:
        """
        What retention would delete now: some of the oldest segments, perhaps all. Not the last while something is pending: its time is that of the last
        write, and what has just come would go with it.
        """
        if self.failure is not None or self.closed:
            return ()
        segments = self._list.view.segments
        count = self.settings.retention(segments, nowMs)
        return segments[: min(count, len(segments) - 1) if self._pending else count]

    def needsRoll(self, segments: Sequence[Segment]) -> bool:
        """
        Whether to roll before these are retired: the last is among them, and not empty. Then a new empty segment at the end offset keeps the
        offsets going (spec-0.7 log-storage §10).
        """
        return (
            bool(segments)
            and segments[-1] is self._active
            and self.logEndOffset > self._active.baseOffset
        )

    def beginDelete(self, segments: Sequence[Segment], nowMs: int) -> DeleteJob | None:
        """
        Take the oldest segments out of the list and delete their files. The last segment is never among them: if it is empty it stays and its
        time is set to now; if it is not, roll first (C{needsRoll}), or it stays, too.

        Files that earlier calls had to leave, since readers held them or a renaming failed, are done with this one: call it now and then, with
        nothing to delete, too.

        @param segments: what C{expired} said.
        @return: L{None}: nothing to do, or one is under way, or the partition has failed.
        """
        if self._retiring or self.failure is not None or self.closed:
            return None
        view = self._list.view
        wanted = set(segments)
        count = 0
        while count < len(view.segments) - 1 and view.segments[count] in wanted:
            count += 1
        touch = (
            self._active
            if self._active in wanted and self.logEndOffset == self._active.baseOffset
            else None
        )
        if not (count or touch or self._leftovers or self._doomed):
            return None
        removed = self._leftovers + self._list.dropOldest(count)
        self._leftovers = ()
        self.startOffset = self._list.view.bases[0]
        self._retiring = True
        return DeleteJob(self._cache, self.path, removed, self._doomed, touch, nowMs)

    def finishDelete(self, job: DeleteJob, error: StorageError | None) -> None:
        """
        Note what could not be deleted, for the next time. A failed sync of the directory fails the partition; other errors do not, the owner
        logs them.
        """
        self._retiring = False
        done = set(job.renamed) | set(job.vanished)
        self._leftovers = tuple(segment for segment in job.segments if segment not in done)
        self._doomed = tuple(segment for segment in job.renamed if segment not in job.unlinked)
        if job.touched is not None:
            job.touched.modifiedMs = max(job.touched.modifiedMs, job.nowMs)
        if error is not None and error.action == "fsync":
            self._fail(error)

    # -- notices ------------------------------------------------------------------------------------------------------

    def reached(self, mark: str, offset: int, callback: NoticeCallback) -> Callable[[], None]:
        """
        Be told, once, when a mark has come to an offset; at once, before this returns, if it has already.

        @param mark: C{"visible"}, C{"flushed"} or C{"end"}.
        @param callback: called with L{None}, or with the failure when the partition fails or is closed first. It must not raise.
        @return: what cancels it.
        """
        notices = self._notices[mark]
        if self.failure is not None or self.closed:
            callback(self.refusal("wait for"))
            return _nothing
        now = {
            "visible": self.highWatermark,
            "flushed": self.flushedOffset,
            "end": self.logEndOffset,
        }[mark]
        if now >= offset:
            callback(None)
            return _nothing
        return notices.add(offset, callback)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, failure: StorageError) -> None:
        if self.failure is None:
            self.failure = failure
            self._letGo()

    def _letGo(self) -> None:
        """Release bytes, descriptors and those who wait."""
        self._refusing = True
        self.blocked = None
        self._pending = []
        self.pendingSize = 0
        self.logEndOffset = self.flushedOffset
        self.flushDueOffset = self.highWatermark
        if self._pinned:
            self._pinned = False
            self._active.file.unpin()
        for segment in self._list.view.segments:
            segment.file.retire()
        refusal = self.refusal("wait for")
        for notices in self._notices.values():
            notices.fail(refusal)

    def beginClose(self) -> CloseJob | None:
        """
        Write and sync what is left, then close. No other job may be under way (C{busy}). From now on nothing may be appended.

        @return: L{None}: it is closed now; it had failed before, or what was pending could not be written, which fails it: then C{failure} says
            so and the directory must not be marked as closed in order.
        """
        if self.busy:
            raise ValueError(f"{self!r} is busy")
        if self.failure is None and not self.closed:
            self.write()
            if self._pending:
                assert self.blocked is not None
                self._fail(self.blocked)
        if self.failure is not None or self.closed:
            self.closed = True
            return None
        self._refusing = self._closing = True
        return CloseJob(self._active, self._writtenOffset)

    def finishClose(self, job: CloseJob, error: StorageError | None, nowMs: int) -> None:
        """Move the marks a last time and let everything go; if the sync failed, so has the partition."""
        self._closing = False
        if error is not None:
            self._fail(error)
            self.closed = True
        else:
            self._flushed(job.segment, job.position, job.offset)
            self.closed = True
            self._letGo()


def _nothing() -> None:
    """What cancels a notice that was given already."""
