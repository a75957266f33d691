"""
L{BatchLog}: the log of a partition of record batches, with Kafka's rules.

It adds to L{PartitionLog}:

B{Producers.} C{append} answers a batch that an idempotent producer sends again with the offsets
that it has (L{pylogbroker.storage.kafka.producerstate}).

B{Transactions.} Readers of committed records end at the last stable offset, and leave out aborted
transactions, which each segment's L{TransactionIndex} knows.

B{Flush on demand.} A flush starts when someone waits for a mark that only a flush moves
(C{wantsFlush}): an answer to C{acks=all}; a waiting fetch, if readers see only what is flushed.
What waits when it begins is served by it. What comes later is served by the next, which begins
when it ends.

B{Rolling.} A segment never exceeds its size. Its age is the difference of record times: between its
first batch and the one to be appended (C{segment.ms}).

B{Deleting.} A segment goes by the time of its newest record, and when it is below the log start,
which C{deleteRecords} moves. It never goes before all of it is below the high watermark.

B{Compaction} replaces closed segments (L{pylogbroker.storage.kafka.compaction}): C{compactable}
says which, C{beginReplace} and C{finishReplace} exchange a group.

B{Replicas.} The high watermark of a replicated partition is the least log end of the in-sync
replicas. It moves only as the log is told (C{setHighWatermark}), on the leader and on followers,
and begins with its checkpoint after a start. Everything that ends at the high watermark (reads, the
last stable offset, retention, compaction) ends there for replicas as for a single log. A follower
appends its leader's batches as they are (C{appendAsFollower}), with their offsets and epochs. It
truncates its log where that is not the leader's (L{pylogbroker.storage.kafka.truncation},
L{pylogbroker.storage.kafka.epochs}).

B{Files beside the segments.} Rolls and the orderly close write a snapshot of the producers, the
aborted transactions and the epochs, behind the sync of the segment: none is ever ahead of the
flushed log. What is missing after a crash is found again by a scan
(L{pylogbroker.storage.kafka.batchrecovery}).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, islice, takewhile
from typing import NamedTuple
from uuid import UUID

from pylogbroker.errors import (
    AppendTruncatedError,
    BatchSizeError,
    LeaderBatchError,
    LeadershipLostError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    StorageError,
)
from pylogbroker.interfaces import (
    EMPTY_SLICE,
    AppendResult,
    BatchHeader,
    IRecordFormat,
    Slice,
    ValidatedBatches,
)
from pylogbroker.storage.files import DescriptorCache, SegmentFile
from pylogbroker.storage.jobs import (
    DeleteJob,
    FindLargestTimeJob,
    FindPositionJob,
    FindTimeJob,
    RollJob,
)
from pylogbroker.storage.kafka.batchrecovery import LoadedBatches, LoadRequest
from pylogbroker.storage.kafka.compaction import CompactedGroup, CompactionRequest
from pylogbroker.storage.kafka.epochcheckpoint import writeEpochs
from pylogbroker.storage.kafka.producerstate import CompletedTransaction, snapshotPath
from pylogbroker.storage.kafka.segmentswap import ReplaceJob
from pylogbroker.storage.kafka.transactionindex import (
    AbortedTransaction,
    TransactionIndex,
    transactionPath,
)
from pylogbroker.storage.kafka.truncation import TruncateJob
from pylogbroker.storage.partitionlog import (
    NEVER,
    MarkKind,
    PartitionLog,
    PartitionSettings,
    WatermarkPolicy,
    flushedWatermark,
    writtenWatermark,
)
from pylogbroker.storage.segments import Segment
from pylogbroker.types import LogPosition, TopicPartition

SEGMENT_OFFSET_COUNT_MAX = (1 << 31) - 1
"""The last offset of a segment less its base offset: an index has four bytes for it."""


@dataclass(frozen=True)
class BatchLogSettings(PartitionSettings):
    """
    Settings of a partition of record batches. C{rollAgeMs} is C{segment.ms}, less the jitter.

    @ivar batchSizeMax: bytes of a batch (C{max.message.bytes}).
    @ivar producerExpirationMs: C{producer.id.expiration.ms}.
    @ivar isReadWhenFlushed: whether readers see only what is flushed
        (C{log.flush.before.read}).
    @ivar format: record batches with the topic's rules; L{None}: the log directory's.
    @ivar compaction: L{None}: C{cleanup.policy} has no C{compact}.
    @ivar topicId: that C{partition.metadata} must have, if it is there; L{None}: any.
    """

    batchSizeMax: int = 1_048_588
    producerExpirationMs: int = 86_400_000
    isReadWhenFlushed: bool = True
    format: IRecordFormat | None = None
    compaction: CompactionSettings | None = None
    topicId: UUID | None = None


class CompactionSettings(NamedTuple):
    """
    When and how to compact.

    @ivar minDirtyRatio: part of the bytes that must be dirty (C{min.cleanable.dirty.ratio}).
    @ivar minLagMs: records stay this long (C{min.compaction.lag.ms}).
    @ivar maxLagMs: and are compacted after this (C{max.compaction.lag.ms}).
    @ivar deleteRetentionMs: C{delete.retention.ms}.
    """

    minDirtyRatio: float = 0.5
    minLagMs: int = 0
    maxLagMs: int = NEVER
    deleteRetentionMs: int = 86_400_000


class Compactable(NamedTuple):
    """
    What can be compacted now.

    @ivar segments: from the log's first on.
    @ivar endOffset: behind them.
    @ivar dirtyStart: everything below is compacted.
    @ivar dirtySize: bytes of segments that reach it.
    @ivar size: bytes of all.
    """

    segments: tuple[Segment, ...]
    endOffset: int
    dirtyStart: int
    dirtySize: int
    size: int

    @property
    def ratio(self) -> float:
        return self.dirtySize / self.size if self.size else 0.0

    @property
    def dirtySegments(self) -> tuple[Segment, ...]:
        return tuple(each for each in self.segments if each.baseOffset >= self.dirtyStart)


class BatchLog(PartitionLog):
    """
    One partition's log of record batches; the module states its rules.

    @ivar topicId: of C{partition.metadata}; L{None}: there is none.
    @ivar producers: what is known of its producers.
    @ivar epochs: its leader epochs.
    @ivar isFollowing: another replica leads, or none: only its batches are appended.
    @ivar cleanedOffset: everything below is compacted.
    """

    settings: BatchLogSettings

    def __init__(
        self,
        topicPartition: TopicPartition,
        loaded: LoadedBatches,
        cache: DescriptorCache,
        settings: BatchLogSettings,
        clock: Callable[[], int],
        isReplicated: bool = False,
    ) -> None:
        """@param clock: milliseconds since the epoch."""
        super().__init__(topicPartition, loaded.partition, cache, settings, clock)
        self.topicId = loaded.topicId
        self.cleanedOffset = 0
        self._truncating = False
        self.isFollowing = False
        self._takeState(loaded)
        self.leaderEpoch = max(self.epochs.latest, 0)
        self.logStartOffset = max(loaded.logStartOffset, self.logStartOffset)
        self._flushWaiting = self._waiters[MarkKind.FLUSHED].waiting
        self._readWaiting = (
            self._waiters[MarkKind.HIGH_WATERMARK].waiting,
            self._waiters[MarkKind.LAST_STABLE].waiting,
        )
        self._told = loaded.watermark
        self._ownPolicy: WatermarkPolicy = flushedWatermark
        if not settings.isReadWhenFlushed:
            self._ownPolicy = writtenWatermark
            self.isReadWhenWritten = True
        self.isReplicated = isReplicated
        if isReplicated:
            self.watermark, self.highWatermark = loaded.watermark, loaded.watermark.offset
        self._watermarkPolicy = _toldWatermark if isReplicated else self._ownPolicy
        self._onHighWatermark()

    def _takeState(self, loaded: LoadedBatches) -> None:
        self.producers = loaded.producers
        self.epochs = loaded.epochs
        self._savedEpochs = loaded.epochs.entries
        self._aborted = loaded.aborted
        self._firstTimestampMs = loaded.firstTimestampMs if loaded.firstTimestampMs >= 0 else NEVER

    def configure(self, settings: PartitionSettings) -> None:
        """Change the settings of a serving partition, except C{isReadWhenFlushed}."""
        assert isinstance(settings, BatchLogSettings)
        super().configure(replace(settings, isReadWhenFlushed=self.settings.isReadWhenFlushed))
        self.producers.expirationMs = settings.producerExpirationMs
        if settings.format is not None:
            self.format = settings.format
            self._stamp = settings.format.stamp

    def assignEpoch(self, epoch: int) -> None:
        """
        This replica leads from now on: the epoch begins at the log end, and is stamped on what is
        appended. The file is written with the next roll; until then a crash finds the epoch in the
        batches.
        """
        self.leaderEpoch = epoch
        self.isFollowing = False
        self.epochs.assign(epoch, self.logEndOffset)

    def followEpoch(self, epoch: int) -> None:
        """
        Another replica leads from now on, in this epoch. It begins in this log with its first
        batch.
        """
        self.leaderEpoch = epoch

    def stopLeading(self) -> None:
        """
        Append nothing but a leader's batches from now on. Those who wait for what a leader decides
        are told L{LeadershipLostError}.
        """
        self.isFollowing = True
        told = LeadershipLostError(self.path, "go on with", "this broker does not lead it any more")
        for mark in (MarkKind.HIGH_WATERMARK, MarkKind.LAST_STABLE, MarkKind.WRITTEN):
            self._waiters[mark].failAbove(-1, told)

    @property
    def lastEpoch(self) -> int:
        """Of the last batch, which a follower names when it fetches; -1: none, or unknown."""
        return self.epochs.lastOf(self.logEndOffset)

    @property
    def isBehindEpoch(self) -> bool:
        """
        Whether this replica has begun to lead, and its high watermark has not reached the start of
        its epoch: other replicas may have had a larger one, which readers have seen (KIP-207).
        """
        entries = self.epochs.entries
        return (
            self.isReplicated
            and self.epochs.latest == self.leaderEpoch
            and self.highWatermark < entries[-1].startOffset
        )

    # -- append

    def rollDue(self, nowMs: int, batches: ValidatedBatches | None = None) -> bool:
        """
        Whether to roll before these batches.

        @raise BatchSizeError: no segment can hold them.
        """
        if batches is None:
            return False
        size = batches.size
        if (
            size <= self.bytesUntilRoll
            and not self._active.index.isFull
            and _timestampOf(batches, nowMs) - self._firstTimestampMs <= self.settings.rollAgeMs
        ):
            return False
        if size > self.settings.segmentSizeMax:
            raise BatchSizeError(
                f"{size} bytes for {self.topicPartition}, whose segments have at most"
                f" {self.settings.segmentSizeMax}"
            )
        return not self._isActiveEmpty

    def append(self, batches: ValidatedBatches, nowMs: int) -> AppendResult:
        """
        Add batches; C{write} writes them. Several at once are of no producer, or as
        L{pylogbroker.storage.kafka.producerstate.ProducerStateManager.areNext} wants them.

        @return: C{isDuplicate}: the producer had sent the batch before; nothing was added.
        @raise PartitionOfflineError: the partition has failed, is closed, or is rolling.
        @raise LeadershipLostError: this replica follows.
        @raise PylogbrokerError: why the producer's batch, or the marker, is refused:
            L{pylogbroker.storage.kafka.producerstate.ProducerStateManager.check}'s reasons and
            C{checkMarker}'s.
        """
        if self._refusing:
            raise self.unavailableError("append to")
        if self.isFollowing:
            raise LeadershipLostError(self.path, "append to", "this broker does not lead it")
        header = batches.headers[0]
        hasProducer = header.producerId >= 0
        if hasProducer:
            if batches.marker is not None:
                self.producers.checkMarker(header, batches.marker)
            elif batches.isFromCoordinator:
                self.producers.checkEpoch(header)
            else:
                known = self.producers.check(header)
                if known is not None:
                    return AppendResult(
                        known.firstOffset, known.lastOffset, known.timestampMs, True
                    )
        position = self._active.writtenSize + self.pendingSize
        if position == 0:
            self._firstTimestampMs = _timestampOf(batches, nowMs)
        result = super().append(batches, nowMs)
        offset = result.baseOffset
        if hasProducer:
            place = None
            if header.isTransactional:
                place = LogPosition(offset, self._active.baseOffset, position)
            for each in batches.headers:
                timestampMs = _timeOf(each.maxTimestampMs, each, nowMs)
                ended = self.producers.append(each, offset, timestampMs, batches.marker, place)
                offset += each.lastOffsetDelta + 1
                if ended is not None:
                    self._end(ended)
        return result

    # -- the high watermark of replicas

    def setReplicated(self, isReplicated: bool) -> None:
        """
        Other brokers have the partition, too, or no longer. The high watermark stays; then it moves
        as it is told, or as this log is flushed or written.
        """
        self.isReplicated = isReplicated
        self._told = self.watermark
        self._watermarkPolicy = _toldWatermark if isReplicated else self._ownPolicy
        self.updateHighWatermark()

    def setHighWatermark(
        self, offset: int, search: FindPositionJob | None = None
    ) -> FindPositionJob | None:
        """
        Move the high watermark of a replicated partition: every in-sync replica has what is below.
        It never goes back, since that stays true, and never passes what is written here: a
        follower that is behind gives its leader's offset again with the next response.

        @param offset: a batch that reaches across it is not read yet.
        @param search: the job that an earlier call returned for this offset, after its run.
        @return: L{None}: done; a job if only the file tells the offset's byte. Run it on a worker
            and call again.
        """
        offset = min(offset, self.writtenOffset)
        if offset <= self.highWatermark or self.isOffline or self._truncating:
            return None
        position = self.written
        if offset < position.offset:
            segment = self._list.segments[self._list.indexOf(offset)]
            byte = segment.index.positionOf(offset)
            if byte is None:
                if search is None or search.segment is not segment or search.offset != offset:
                    return FindPositionJob(segment, offset)
                byte = search.position
            position = LogPosition(offset, segment.baseOffset, byte)
        self._told = position
        self.updateHighWatermark()
        return None

    # -- append as a follower

    def checkLeaderBatches(self, batches: ValidatedBatches, start: int = 0) -> None:
        """
        Whether a leader's batches may be appended: each begins at the end of the log or of the one
        before it, or behind a gap, which compaction has left; no epoch is before that of the batch
        before it, or behind that of the leader. A batch of which the log has something already is
        refused: it would be another leader's, or the answer to another fetch.

        @param start: the index of the first to be appended.
        @raise LeaderBatchError: they may not.
        """
        end, epoch = self.logEndOffset, self.lastEpoch
        for header in batches.headers[start:]:
            if header.baseOffset < end:
                raise LeaderBatchError(
                    f"a batch of offsets {header.baseOffset} to {header.lastOffset} for"
                    f" {self.topicPartition}, whose next offset is {end}"
                )
            if not epoch <= header.leaderEpoch <= self.leaderEpoch:
                raise LeaderBatchError(
                    f"a batch of epoch {header.leaderEpoch} at offset {header.baseOffset} for"
                    f" {self.topicPartition}, behind epoch {epoch}, from the leader of epoch"
                    f" {self.leaderEpoch}"
                )
            end, epoch = header.nextOffset, header.leaderEpoch

    def beginsWithin(self, header: BatchHeader) -> bool:
        """
        Whether this log is empty, and begins within a leader's batch: the leader's log start is
        there. Then it is truncated anew to the batch's base offset first; the log start follows the
        leader's again when the batch is below the high watermark.
        """
        end = self.logEndOffset
        return self.logStartOffset == end and header.baseOffset < end <= header.lastOffset

    def appendAsFollower(self, batches: ValidatedBatches, start: int, nowMs: int) -> int:
        """
        Add batches of the leader as they are, with their offsets and epochs; C{write} writes them.
        Producers, transactions and epochs follow. As many are added as the segment takes.

        @param batches: as L{pylogbroker.interfaces.IRecordFormat.validate} gives them, with rules
            for batches of a log.
        @param start: the index of the first to be added.
        @return: the index behind the last that was added; if it is not their number, roll and call
            again.
        @raise LeaderBatchError: they do not follow (C{checkLeaderBatches}); none was added.
        @raise PartitionOfflineError: the partition has failed, is closed, is rolling, or is being
            truncated.
        """
        if self._refusing:
            raise self.unavailableError("append to")
        self.checkLeaderBatches(batches, start)
        headers, index = batches.headers, start
        while index < len(headers) and not self._rollDueAsFollower(headers[index]):
            self._takeFromLeader(headers[index], batches.buffers[index])
            index += 1
        if index < len(headers) and headers[index].baseOffset > self.logEndOffset:
            # The next segment begins with the batch, not in the gap before it, which may be larger
            # than a segment's offsets.
            self.logEndOffset = headers[index].baseOffset
            if not self._pending:
                self.writtenOffset = self.logEndOffset
        if index > start:
            if self._flushCountLeft <= 0:
                self.flushDueOffset = self.logEndOffset
                self._flushDueByte = self._active.writtenSize + self.pendingSize
            if self._rollAtMs == NEVER:
                self._rollAtMs = nowMs + self.settings.rollAgeMs
            if self._endWaiting:
                self._endWaiters.advance(self.logEndOffset)
        return index

    def _rollDueAsFollower(self, header: BatchHeader) -> bool:
        """As C{rollDue}; but a batch that is larger than a segment has one for itself."""
        active = self._active
        if header.lastOffset - active.baseOffset > SEGMENT_OFFSET_COUNT_MAX:
            return True
        return not self._isActiveEmpty and (
            header.size > self.bytesUntilRoll
            or active.index.isFull
            or header.maxTimestampMs - self._firstTimestampMs > self.settings.rollAgeMs
        )

    def _takeFromLeader(self, header: BatchHeader, data: bytes) -> None:
        active, offset = self._active, header.baseOffset
        position = active.writtenSize + self.pendingSize
        if position == 0:
            self._firstTimestampMs = header.maxTimestampMs
        if header.leaderEpoch != self.epochs.epochOf(offset):
            self.epochs.append(header.leaderEpoch, self.logEndOffset, offset)
        one = ValidatedBatches(
            [data], header.size, header.recordCount, header.lastOffsetDelta + 1, -1, [header]
        )
        active.index.add(one, offset, position, header.maxTimestampMs)
        self._pending.append(data)
        self.pendingSize += header.size
        self.unflushedSize += header.size
        self.bytesUntilRoll -= header.size
        self.logEndOffset = header.nextOffset
        self.appendedCount += header.recordCount
        self._flushCountLeft -= header.recordCount
        if header.producerId >= 0:
            marker = None
            if header.isControl:
                scan = self.format.scan(lambda at, n: data[at : at + n], offset, 0, len(data))
                marker = next((entry.marker for entry in scan), None)
            place = LogPosition(offset, active.baseOffset, position)
            ended = self.producers.append(header, offset, header.maxTimestampMs, marker, place)
            if ended is not None:
                self._end(ended)

    def _end(self, ended: CompletedTransaction) -> None:
        if ended.isAborted:
            active = self._active
            index = self._aborted.get(active.baseOffset)
            if index is None:
                path = transactionPath(active.path, self.format.suffix)
                index = self._aborted[active.baseOffset] = TransactionIndex(path)
            index.add(self.producers.aborted(ended))

    # -- read

    @property
    def lastStableOffset(self) -> int:
        """Everything below is committed or aborted, or has no transaction."""
        unstable = self.producers.firstUnstableOffset
        if unstable < 0:
            return self.highWatermark
        return max(min(unstable, self.highWatermark), self.logStartOffset)

    @property
    def stable(self) -> LogPosition:
        """The last stable offset, with its byte."""
        place = self.producers.firstUnstablePosition
        return self.watermark if place is None else min(place, self.watermark)

    def read(
        self,
        offset: int,
        sizeMax: int,
        search: FindPositionJob | None = None,
        isCommitted: bool = False,
        wholeBatch: bool = False,
        isReplica: bool = False,
    ) -> Slice | FindPositionJob:
        """
        The range from the batch with an offset, up to the high watermark or the end of a segment.
        An offset in a gap reads from behind the gap.

        @param sizeMax: bytes; negative is as 0.
        @param search: the job that an earlier call returned for this offset, after its run.
        @param isCommitted: end at the last stable offset.
        @param wholeBatch: return the first batch whole, though it is larger than C{sizeMax}.
        @param isReplica: end at the written offset.
        @return: empty when there is nothing to read yet; a job if only the file tells. Run it on a
            worker and call again.
        @raise OffsetOutOfRangeError: below the log start, or above the log end.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self._refusing and not self.rolling:
            raise self.unavailableError("read")
        if not self.logStartOffset <= offset <= self.logEndOffset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topicPartition} is not in"
                f" {self.logStartOffset} to {self.logEndOffset}"
            )
        limit = self.stable if isCommitted else self.watermark
        if isReplica and not self._truncating:
            limit = self.written
        if offset >= limit.offset:
            return EMPTY_SLICE
        view = self._list
        index = view.indexOf(offset)
        if search is not None and search.segment.baseOffset > offset:  # an earlier call saw a gap
            found = view.indexOf(search.segment.baseOffset)
            index = found if view.segments[found] is search.segment else index
        segment = view.segments[index]
        position = segment.index.positionOf(offset)
        if position is None:
            if search is None or search.segment is not segment:
                return FindPositionJob(segment, offset, self.format if wholeBatch else None)
            position = search.position
        end = _endByte(segment, limit)
        while (
            position >= end and index + 1 < len(view.bases) and view.bases[index + 1] < limit.offset
        ):
            index += 1  # the offset is in a gap
            segment = view.segments[index]
            position, end = 0, _endByte(segment, limit)
        size = end - position
        if size > sizeMax:
            size = max(sizeMax, 0)
            if wholeBatch:  # an old batch may exceed what max.message.bytes says now
                if search is None or search.segment is not segment or search.batchSize == 0:
                    return FindPositionJob(segment, offset, self.format)
                size = min(max(size, search.batchSize), end - position)
        return Slice(segment.file, position, size) if size > 0 else EMPTY_SLICE

    def abortedIn(self, startOffset: int, endOffset: int) -> list[AbortedTransaction]:
        """
        The aborted transactions that a reader of committed records leaves out of a range.

        @param endOffset: behind the range.
        """
        found: list[AbortedTransaction] = []
        if self._aborted:
            view = self._list
            for segment in view.segments[max(view.indexOf(startOffset), 0) :]:
                index = self._aborted.get(segment.baseOffset)
                if index is not None and index.collect(startOffset, endOffset, found):
                    break
        return found

    def abortedFrom(self, offset: int) -> list[AbortedTransaction]:
        """
        The aborted transactions that a reader of committed records leaves out of what it reads from
        an offset: never more than the rest of a segment, which is the one with the offset, or, if
        the offset is in a gap that compaction has left, the next one that has bytes. Which of them
        only the file tells, so that those of both are given.
        """
        if not self._aborted:
            return []
        segments = self._list.segments[max(self._list.indexOf(offset), 0) + 1 :]
        behind = dropwhile(lambda each: not each.writtenSize, segments)
        ends = [segment.baseOffset for segment in islice(behind, 1, 2)]
        return self.abortedIn(offset, min((self.lastStableOffset, *ends)))

    def findTime(self, timestampMs: int) -> FindTimeJob:
        """
        A job that finds the first record that is not older than a time. It may find one that
        readers do not see yet.

        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self.isOffline:
            raise self.unavailableError("look up offsets of")
        segments = [each for each in self.segments if each.index.largestTimestampMs >= timestampMs]
        return FindTimeJob(segments, timestampMs, self.logStartOffset)

    def findLargestTime(self) -> FindTimeJob:
        """
        A job that finds the first record with the largest timestamp.

        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self.isOffline:
            raise self.unavailableError("look up offsets of")
        newest = max(self.segments, key=lambda segment: segment.index.largestTimestampMs)
        segments = [newest] if newest.index.largestTimestampMs >= 0 else []
        return FindLargestTimeJob(segments, 0, self.logStartOffset)

    # -- flush

    @property
    def wantsFlush(self) -> bool:
        """Whether to flush now what is written: by count, or because someone waits for it."""
        return self.flushDueOffset > self.flushed.offset or (
            self.unflushedSize > 0
            and (
                bool(self._flushWaiting)
                or (self.settings.isReadWhenFlushed and any(self._readWaiting))
            )
        )

    def _onHighWatermark(self) -> None:
        producers = self.producers
        if producers.undecided:
            producers.onHighWatermark(self.highWatermark)
        if self._readWaiting[1]:
            self._waiters[MarkKind.LAST_STABLE].advance(self.lastStableOffset)

    # -- roll

    def _startSegment(self, job: RollJob, nowMs: int) -> None:
        super()._startSegment(job, nowMs)
        self._firstTimestampMs = NEVER

    def _stateToSave(self) -> Callable[[], None] | None:
        fileSystem, path = self._cache.fileSystem, self.path
        snapshot = self.producers.takeSnapshot(self.writtenOffset)
        if self.writtenOffset == self.segments[0].baseOffset and not self.producers.producers:
            snapshot = None  # nothing was ever written: a load without one finds the same
        aborted = self._aborted.get(self._active.baseOffset)
        epochs = self.epochs.entries

        def save() -> None:
            if snapshot is not None:
                snapshot.write(fileSystem, path)
            if aborted is not None:
                aborted.save(fileSystem)
            if epochs != self._savedEpochs:
                writeEpochs(fileSystem, path, epochs)
                self._savedEpochs = epochs

        return save

    def _onSaved(self, offset: int) -> None:
        self.producers.snapshotOffset = offset

    # -- retention

    def deleteRecords(self, offset: int) -> bool:
        """
        Move the log start, so that readers do not see what is below. The owner makes it durable
        (C{LogDirectory.beginCheckpoint}) and deletes the segments (C{expired}).

        @param offset: -1: the high watermark.
        @return: whether the log start has moved.
        @raise OffsetOutOfRangeError: above the high watermark.
        @raise PartitionOfflineError: the partition has failed or is closed.
        """
        if self.isOffline:
            raise self.unavailableError("delete records of")
        if offset == -1:
            offset = self.highWatermark
        if not 0 <= offset <= self.highWatermark:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.topicPartition} is not in 0 to {self.highWatermark}"
            )
        if offset <= self.logStartOffset:
            return False
        self.logStartOffset = offset
        self.epochs.truncateFromStart(offset)
        self.onNews()
        return True

    def expired(self, nowMs: int) -> tuple[Segment, ...]:
        """
        The oldest segments that retention would delete, or that are below the log start. None that
        reaches the high watermark.
        """
        wanted = len(super().expired(nowMs))
        segments = self.segments
        ends = [*(each.baseOffset for each in segments[1:]), self.logEndOffset]
        belowStart = len(list(takewhile(lambda end: end <= self.logStartOffset, ends[:-1])))
        readable = len(list(takewhile(lambda end: end <= self.highWatermark, ends)))
        return segments[: min(max(wanted, belowStart), readable)]

    def beginDelete(self, segments: Sequence[Segment], nowMs: int) -> DeleteJob | None:
        """See L{PartitionLog.beginDelete}."""
        job = super().beginDelete(segments, nowMs)
        if job is not None:
            self.epochs.truncateFromStart(self.logStartOffset)
            for segment in job.segments:
                self._aborted.pop(segment.baseOffset, None)
        return job

    # -- truncation

    def unavailableError(self, action: str) -> PartitionOfflineError:
        if self._truncating and not self.isOffline:
            return PartitionOfflineError(self.path, action, "a truncation is under way")
        return super().unavailableError(action)

    def beginTruncate(self, offset: int, isAnew: bool = False) -> TruncateJob | None:
        """
        Remove everything from an offset on; what was not written is dropped in any case. C{append}
        must wait for C{finishTruncate}, and reads end below the offset from now on. No other job
        may be under way (C{busy}).

        @param offset: a batch that reaches across it is removed as a whole. If the log begins
            behind it, everything is removed, and the log begins there.
        @param isAnew: remove everything, and begin at C{offset}: the leader's log begins behind
            the end of this one.
        @return: L{None}: the log ends there or before, or it has failed.
        """
        if self.busy:
            raise ValueError(f"{self!r} is busy")
        if self.isOffline:
            return None
        self.write()
        if self.failure is not None:
            return None
        isAnew = isAnew or offset < self.segments[0].baseOffset
        if offset >= self.logEndOffset and not isAnew:
            self.epochs.truncateFromEnd(offset)
            return None
        self._truncating = self.rolling = self._refusing = True
        self._pending = []
        self.pendingSize = 0
        offset = offset if isAnew else min(offset, self.writtenOffset)
        index = 0 if isAnew else self._list.indexOf(offset)
        segment = self.segments[index]
        highWatermark = self.highWatermark
        if isAnew or highWatermark > offset:
            # Which byte it is, only the file tells; meanwhile readers get what is surely left.
            self.watermark = LogPosition(segment.baseOffset, segment.baseOffset, 0)
            self.highWatermark = segment.baseOffset
        aborted = self._aborted.get(segment.baseOffset)
        return TruncateJob(
            self._cache,
            self.path,
            self.format,
            offset,
            self.segments,
            isAnew,
            self.epochs.entries,
            () if aborted is None else tuple(aborted.entries),
            LoadRequest(
                self.topicPartition,
                None,
                self.logStartOffset,
                self.settings.producerExpirationMs,
                self._clock(),
                self.topicId,
                highWatermark if self.isReplicated else None,
            ),
        )

    def finishTruncate(self, job: TruncateJob, error: StorageError | None) -> None:
        """
        Take in what is left. Those who wait for an offset above the end are told
        L{AppendTruncatedError}. A failure fails the partition.
        """
        self._truncating = self.rolling = False
        if self.failure is not None:
            return
        if error is not None:
            self._fail(error)
            return
        assert job.loaded is not None
        self._refusing = False
        self._unpin()
        for segment in self.segments:
            segment.file.retire()
        self._begin(job.loaded.partition)
        self._takeState(job.loaded)
        end = self.logEndOffset
        self.logStartOffset = job.loaded.logStartOffset
        self.cleanedOffset = min(self.cleanedOffset, end)
        self.blocked = None
        self.watermark = self._told = job.loaded.watermark
        self.highWatermark = self.watermark.offset
        self._onHighWatermark()
        told = AppendTruncatedError(self.path, "keep what was appended to", f"it ends at {end} now")
        for waiters in self._waiters.values():
            waiters.failAbove(end, told)
        self._waiters[MarkKind.FLUSHED].advance(end)
        self.onFlushed()

    # -- compaction

    def setCleaned(self, offset: int) -> None:
        """Note up to where the log is compacted; at most up to the active segment."""
        self.cleanedOffset = min(offset, self._active.baseOffset)

    def compactable(self, nowMs: int) -> Compactable | None:
        """
        What can be compacted, whether it is worth it or not. L{None}: nothing, or the topic is not
        compacted, or the partition has failed.
        """
        settings = self.settings.compaction
        if settings is None or self.isOffline:
            return None
        limit = min(self.flushedOffset, self.lastStableOffset)
        segments = self.segments
        ends = [each.baseOffset for each in segments[1:]]
        count = len(list(takewhile(lambda end: end <= limit, ends)))
        start = max(self.cleanedOffset, segments[0].baseOffset)
        if settings.minLagMs > 0:
            for index, segment in enumerate(segments[:count]):
                isDirty = ends[index] > start
                if isDirty and segment.timestampMs > nowMs - settings.minLagMs:
                    count = index
                    break
        if count == 0 or ends[count - 1] <= start:
            return None
        chosen = segments[:count]
        dirty = sum(each.size for each, end in zip(chosen, ends, strict=False) if end > start)
        return Compactable(chosen, ends[count - 1], start, dirty, sum(each.size for each in chosen))

    def compactionRequest(
        self, found: Compactable, nowMs: int, mapSize: int, readSizeMax: int
    ) -> CompactionRequest:
        """
        The request to compact.

        @param mapSize: bytes of memory for keys.
        @param readSizeMax: bytes a second; 0: no limit.
        """
        settings = self.settings.compaction
        assert settings is not None
        return CompactionRequest(
            self.path,
            [(each.baseOffset, each.size, each.modifiedMs) for each in found.segments],
            found.endOffset,
            found.dirtyStart,
            nowMs,
            settings.deleteRetentionMs,
            self.settings.segmentSizeMax,
            mapSize,
            readSizeMax,
            [
                (each.producerId, each.firstOffset, each.lastOffset)
                for each in self.abortedIn(self.segments[0].baseOffset, found.endOffset)
            ],
            [
                (each.producerId, each.batches[-1].lastOffset if each.batches else -1, each.epoch)
                for each in self.producers.producers.values()
            ],
        )

    def beginReplace(self, found: Compactable, group: CompactedGroup) -> ReplaceJob | None:
        """
        Exchange segments for their compacted file. No other job may be under way.

        @return: L{None}: the segments are not there any more as they were, or the partition has
            failed.
        """
        if self.busy or self.isOffline:
            return None
        wanted = [each for each in found.segments if each.baseOffset in set(group.bases)]
        start = self._list.indexOf(wanted[0].baseOffset)
        if list(self.segments[max(start, 0) : start + len(wanted)]) != wanted:
            return None
        self._deleting = True
        return ReplaceJob(self._cache.fileSystem, self.path, wanted, group.size, self.format)

    def finishReplace(self, job: ReplaceJob, error: StorageError | None) -> None:
        """
        Take the new segment in. A failure before the first change leaves all as it was; a later one
        fails the partition, and recovery completes the exchange.
        """
        self._deleting = False
        for segment in job.pinned:
            segment.file.unpin()
        if error is not None:
            if job.isBegun:
                self._fail(error)
            return
        if self.isOffline:
            return
        assert job.index is not None
        first, *others = job.segments
        new = Segment(
            first.baseOffset,
            SegmentFile(self._cache, first.path, False),
            job.size,
            job.segments[-1].modifiedMs,
            job.index,
        )
        start = self._list.indexOf(first.baseOffset)
        stop = start + len(job.segments)
        following = self.segments[stop].baseOffset
        self._list = self._list.replaced(start, stop, [new])
        bases = [each.baseOffset for each in job.segments]
        # A mark at the end of a closed segment is at the start of the next: bytes have changed.
        if self.flushed.segment in bases:
            self.flushed = LogPosition(self.flushed.offset, following, 0)
        if self.watermark.segment in bases:
            self.watermark = LogPosition(self.watermark.offset, following, 0)
        for segment in job.segments:
            self._aborted.pop(segment.baseOffset, None)
            segment.file.retire()
        self._toUnlink += tuple(others)

    def _removeState(self, segment: Segment) -> None:
        fileSystem = self._cache.fileSystem
        for path in (
            transactionPath(segment.path, self.format.suffix),
            snapshotPath(self.path, segment.baseOffset),
        ):
            if fileSystem.status(path) is not None:
                fileSystem.remove(path)


def _toldWatermark(log: PartitionLog) -> LogPosition:
    """The policy of a replica."""
    assert isinstance(log, BatchLog)
    return log._told


def _timestampOf(batches: ValidatedBatches, nowMs: int) -> int:
    return _timeOf(batches.timestampMaxMs, batches.headers[0], nowMs)


def _timeOf(timestampMs: int, header: BatchHeader, nowMs: int) -> int:
    return nowMs if timestampMs < 0 or header.isLogAppendTime else timestampMs


def _endByte(segment: Segment, mark: LogPosition) -> int:
    return mark.byte if mark.segment == segment.baseOffset else segment.writtenSize
