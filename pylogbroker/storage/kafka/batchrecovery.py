"""
Loading a partition of record batches, after an orderly stop or a crash, ours or Apache's.

What must be true after a crash at any moment: what was flushed is there; the log ends with a whole,
valid batch; what is known of producers, transactions and epochs is what the log's batches say, no
more.

B{After an orderly stop} the latest snapshot is at the log's end, and nothing is read but the small
files.

B{After a crash} every segment that reaches the recovery point is scanned, checksums included, and
its index rebuilt. The first batch that is not whole and valid ends the log; later segments are
deleted. Our rolls sync a segment before the next one has a name, so that only the last can be torn.
Apache syncs in the background, so that in its directories several can be. The recovery point is a
checkpoint, at most minutes old; without one all segments are scanned.

B{The high watermark} of a replicated partition is that of its checkpoint, if the log is not
shorter. Everything below was on every in-sync replica; what is above may have to be truncated.
Without replicas it is the log end.

B{Producers and transactions} begin with the latest snapshot up to the first segment that is
scanned, and take in every batch behind it. If the small files are missing or broken, the scan
begins earlier: at the first segment, if need be.

B{A compaction} that was interrupted is completed or undone first
(L{pylogbroker.storage.kafka.segmentswap.completeSwaps}).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import IFileSystem, IRecordFormat, ScannedEntry
from pylogbroker.storage.events import DamagedFileIgnored, Reporter, SegmentTruncated
from pylogbroker.storage.filenames import DELETED_SUFFIX
from pylogbroker.storage.files import DescriptorCache, SegmentFile
from pylogbroker.storage.kafka.checkpoints import readTopicId
from pylogbroker.storage.kafka.epochcheckpoint import readEpochs, writeEpochs
from pylogbroker.storage.kafka.epochs import EpochStart, LeaderEpochs
from pylogbroker.storage.kafka.producerstate import (
    ProducerStateManager,
    loadLatestSnapshot,
    parseSnapshotName,
    snapshotPath,
)
from pylogbroker.storage.kafka.segmentswap import completeSwaps
from pylogbroker.storage.kafka.transactionindex import SUFFIX as TRANSACTIONS_SUFFIX
from pylogbroker.storage.kafka.transactionindex import TransactionIndex, transactionPath
from pylogbroker.storage.recovery import (
    LoadedPartition,
    LoadedSegment,
    createSegment,
    purge,
    statSegments,
)
from pylogbroker.storage.segments import Segment
from pylogbroker.types import LogPosition

BEHIND_END = "the log ends before it"


class LoadedBatches(NamedTuple):
    """
    A partition of record batches, fit to be appended to.

    @ivar aborted: by the base offset of the segment; only of segments that have some.
    @ivar firstTimestampMs: of the last segment's first batch.
    @ivar watermark: the high watermark.
    """

    partition: LoadedPartition
    producers: ProducerStateManager
    epochs: LeaderEpochs
    aborted: dict[int, TransactionIndex]
    logStartOffset: int
    firstTimestampMs: int
    topicId: UUID | None
    watermark: LogPosition


@dataclass(frozen=True)
class LoadRequest:
    """
    How to load a partition.

    @ivar name: of the partition, for texts.
    @ivar recoveryPoint: everything below is synced and whole; L{None}: everything is.
    @ivar logStartOffset: of the checkpoint.
    @ivar nowMs: milliseconds since the epoch.
    @ivar topicId: whose the directory must be, if it says so; L{None}: anyone's.
    @ivar highWatermark: of the checkpoint, for a replicated partition; L{None}: the log end.
    """

    name: object
    recoveryPoint: int | None
    logStartOffset: int
    producerExpirationMs: int
    nowMs: int
    topicId: UUID | None = None
    highWatermark: int | None = None


def loadBatches(
    cache: DescriptorCache,
    path: str,
    format: IRecordFormat,
    request: LoadRequest,
    report: Reporter,
) -> LoadedBatches:
    """
    Load a directory. Blocks.

    @raise CorruptLogError: the files do not fit together, or are those of another topic.
    @raise StorageError: a file cannot be read, cut or synced.
    """
    fileSystem = cache.fileSystem
    topicId = readTopicId(fileSystem, path)
    if None not in (topicId, request.topicId) and topicId != request.topicId:
        raise CorruptLogError(
            path, "load", f"it belongs to topic id {topicId}, and the topic has {request.topicId}"
        )
    names = fileSystem.list(path)
    if completeSwaps(fileSystem, path, names, format, report):
        names = fileSystem.list(path)
    found = statSegments(fileSystem, path, names, format)
    for name in names:
        if name.endswith((DELETED_SUFFIX, ".tmp")):
            purge(fileSystem, f"{path}/{name}", report)
    if not found:
        found = [createSegment(fileSystem, path, request.logStartOffset, format)]
    loading = _Loading(cache, path, format, request, report, found, set(names))
    loading.load()
    return LoadedBatches(
        # BatchLog rolls by record times: the directory's time is not needed.
        LoadedPartition(path, format, tuple(loading.opened), loading.endOffset, request.nowMs),
        loading.producers,
        loading.epochs,
        {base: index for base, index in loading.aborted.items() if index.entries},
        loading.startOffset,
        loading.firstTimestamp(),
        topicId,
        loading.locate(loading.highWatermark),
    )


class _Loading:
    """The steps of loading one partition."""

    def __init__(
        self,
        cache: DescriptorCache,
        path: str,
        format: IRecordFormat,
        request: LoadRequest,
        report: Reporter,
        found: list[LoadedSegment],
        names: set[str],
    ) -> None:
        self._cache = cache
        self._fileSystem: IFileSystem = cache.fileSystem
        self._path = path
        self._format = format
        self._request = request
        self._report = report
        self._found = found
        self._names = names
        self.producers = ProducerStateManager(request.name, request.producerExpirationMs)
        self.epochs = LeaderEpochs()
        self._savedEpochs: tuple[EpochStart, ...] = ()
        self._hasEpochs = False
        self.aborted: dict[int, TransactionIndex] = {}
        self.opened: list[Segment] = []
        self.endOffset = 0

    def load(self) -> None:
        found, recoveryPoint = self._found, self._request.recoveryPoint
        bases = [segment.baseOffset for segment in found]
        count = len(found)
        # The first segment to recover, and the first to scan.
        recovered = count
        if recoveryPoint is not None:
            recovered = max(bisect_right(bases, recoveryPoint) - 1, 0)
        scanned = min(recovered, self._loadAborted(recovered), self._loadEpochs(count))
        if recovered == count:
            self._openAll(recovered)
        start = self._restore(self.endOffset if scanned == count else bases[scanned])
        if start < self.endOffset or scanned < count:
            scanned = min(scanned, max(bisect_right(bases, start) - 1, 0))
        for index in range(scanned, count):
            if index < recovered:
                self._scan(found[index], start)
            elif self._recover(index):
                break
        if recovered < count:
            self._fileSystem.syncDirectory(self._path)
            self._openAll(recovered)
        if self.endOffset < self._request.logStartOffset:
            self._beginAnew()
        self._finish()

    def _openAll(self, recovered: int) -> None:
        self.opened = [
            self._open(segment, index >= recovered) for index, segment in enumerate(self._found)
        ]
        for segment in self.opened[recovered:-1]:
            segment.index.save()
        last = self.opened[-1]
        self.endOffset = last.index.findEnd(last.size)

    def _loadAborted(self, recovered: int) -> int:
        """
        Read the aborted transactions of segments that are not recovered. Returns the index of the
        first segment whose file is damaged, or the number of segments.
        """
        damaged = len(self._found)
        for index, segment in enumerate(self._found):
            path = transactionPath(segment.path, self._format.suffix)
            self.aborted[segment.baseOffset] = TransactionIndex(path)
            if path.rpartition("/")[2] not in self._names:
                continue
            if index < recovered:
                try:
                    loaded = TransactionIndex.load(self._fileSystem, path)
                    self.aborted[segment.baseOffset] = loaded
                    continue
                except CorruptLogError as error:
                    self._report(DamagedFileIgnored(error))
                    damaged = min(damaged, index)
            self._fileSystem.remove(path)
        return damaged

    def _loadEpochs(self, count: int) -> int:
        """Read the epochs. Returns the first segment to scan for them."""
        try:
            self.epochs = readEpochs(self._fileSystem, self._path)
        except CorruptLogError as error:
            self._report(DamagedFileIgnored(error))
        self._savedEpochs = self.epochs.entries
        self._hasEpochs = bool(self._savedEpochs) or (count == 1 and self._found[0].size == 0)
        return count if self._hasEpochs else 0

    def _restore(self, offset: int) -> int:
        """Begin with the latest snapshot up to an offset. Returns from where on to scan."""
        # Transactions that ended behind the high watermark are undecided; no snapshot has them.
        known = self._request.highWatermark
        offsetMax = offset if known is None else min(offset, known)
        snapshot = loadLatestSnapshot(self._fileSystem, self._path, offset, offsetMax)
        if snapshot is None:
            first = self._found[0]
            self.producers.endOffset = first.baseOffset
            return first.baseOffset
        self.producers.restore(*snapshot, self._request.nowMs)
        return snapshot[0]

    # -- scanning

    def _take(self, segment: LoadedSegment, entry: ScannedEntry) -> None:
        """One batch of the log."""
        header = entry.header
        assert header is not None
        # The file may say what a truncation, interrupted by a crash, has cut off since.
        if header.leaderEpoch not in (-1, self.epochs.epochOf(entry.offset)):
            self.epochs.assign(header.leaderEpoch, entry.offset)
        if entry.offset < self.producers.endOffset:
            return
        self.producers.endOffset = entry.nextOffset
        place = LogPosition(entry.offset, segment.baseOffset, entry.position)
        ended = self.producers.append(
            header, entry.offset, header.maxTimestampMs, entry.marker, place
        )
        index = self.aborted[segment.baseOffset]
        if ended is not None and ended.isAborted:
            # The file of a segment that is not recovered has it already.
            if not index.entries or index.entries[-1].lastOffset < ended.lastOffset:
                index.add(self.producers.aborted(ended))

    def _scan(self, segment: LoadedSegment, start: int) -> None:
        """A segment that needs no recovery, from an offset on."""
        position = 0
        if segment.baseOffset < start and self._hasEpochs:
            opened = self._open(segment, False)
            opened.file.openPinned()
            try:
                position = opened.index.search(opened.file.file, start)
            finally:
                opened.file.unpin()
        with closing(self._fileSystem.open(segment.path, write=False)) as file:
            base, size = segment.baseOffset, segment.size
            for entry in self._format.scan(file.readAt, base, position, size):
                self._take(segment, entry)

    def _recover(self, index: int) -> bool:
        """
        Cut a segment at the first batch that is not whole and valid, and sync it. Returns whether
        the log ends there.
        """
        segment = self._found[index]
        if index > 0:
            self._snapshot(segment.baseOffset)
        with closing(self._fileSystem.open(segment.path)) as file:
            oldSize = file.size()
            scan = self._format.scan(file.readAt, segment.baseOffset, 0, oldSize)
            for entry in scan:
                self._take(segment, entry)
            size = scan.position
            if size < oldSize:
                file.truncate(size)
            file.sync()
        self._found[index] = segment._replace(size=size)
        if size == oldSize:
            return False
        reason = scan.reason or "the batch there is cut"
        self._report(SegmentTruncated(segment.path, oldSize, size, reason))
        self._delete(self._found[index + 1 :])
        return True

    def _snapshot(self, offset: int) -> None:
        snapshot = self.producers.takeSnapshot(offset)
        if snapshot is not None:
            snapshot.write(self._fileSystem, self._path)
            self.producers.snapshotOffset = offset

    # -- segments

    def _open(self, segment: LoadedSegment, rebuild: bool) -> Segment:
        base, path, size, modifiedMs = segment
        index = self._format.openIndex(self._fileSystem, path, base, size, rebuild)
        isLast = base == self._found[-1].baseOffset
        return Segment(base, SegmentFile(self._cache, path, isLast), size, modifiedMs, index)

    def _delete(self, segments: Sequence[LoadedSegment]) -> None:
        """Delete the newest segments, the newest first."""
        for segment in reversed(segments):
            size = segment.size
            self._report(SegmentTruncated(segment.path, size, 0, BEHIND_END))
            self._format.openIndex(
                self._fileSystem, segment.path, segment.baseOffset, 0, True
            ).remove()
            self._fileSystem.rename(segment.path, segment.path + DELETED_SUFFIX)
            self._fileSystem.syncDirectory(self._path)
            purge(self._fileSystem, segment.path + DELETED_SUFFIX, self._report)
            del self.aborted[segment.baseOffset]
            self._found.remove(segment)

    def _beginAnew(self) -> None:
        """The log lost what was behind its start: it has nothing, and begins there."""
        start = self._request.logStartOffset
        new = createSegment(self._fileSystem, self._path, start, self._format)
        self._delete([*self._found])
        self._found.append(new)
        self.opened = [self._open(new, True)]
        path = transactionPath(new.path, self._format.suffix)
        self.aborted = {start: TransactionIndex(path)}
        self.endOffset = start
        request = self._request
        self.producers = ProducerStateManager(request.name, request.producerExpirationMs)
        self.producers.endOffset = start

    # -- the end

    @property
    def highWatermark(self) -> int:
        """Not above the log end, which a crash may have moved back, nor below the start."""
        known = self._request.highWatermark
        return (
            self.endOffset if known is None else max(min(known, self.endOffset), self.startOffset)
        )

    @property
    def startOffset(self) -> int:
        return max(self._request.logStartOffset, self.opened[0].baseOffset)

    def _finish(self) -> None:
        end = self.endOffset
        before = self.epochs.entries
        self.epochs.truncateFromEnd(end)
        self.epochs.truncateFromStart(self.startOffset)
        if not self.epochs.entries:
            self.epochs.assign(before[-1].epoch if before else 0, end)
        if self.epochs.entries != self._savedEpochs:
            writeEpochs(self._fileSystem, self._path, self.epochs.entries)
        for segment in self.opened[:-1]:  # the last is recovered again after a crash
            if not self.aborted[segment.baseOffset].isSaved:
                self.aborted[segment.baseOffset].save(self._fileSystem)
        self.producers.onHighWatermark(self.highWatermark)
        self.producers.expire(self._request.nowMs)
        self._locateTransactions()
        self._removeStrays()

    def _locateTransactions(self) -> None:
        """Find the bytes of ongoing transactions that a snapshot knows by their offset only."""
        for offset, place in self.producers.ongoing.items():
            if place is None:
                self.producers.ongoing[offset] = self.locate(offset)

    def locate(self, offset: int) -> LogPosition:
        """Find the byte of an offset."""
        if offset >= self.endOffset:
            return LogPosition(offset, self.opened[-1].baseOffset, self.opened[-1].size)
        bases = [segment.baseOffset for segment in self.opened]
        segment = self.opened[max(bisect_right(bases, offset) - 1, 0)]
        segment.file.openPinned()
        try:
            byte = segment.index.search(segment.file.file, offset)
        finally:
            segment.file.unpin()
        return LogPosition(offset, segment.baseOffset, byte)

    def _removeStrays(self) -> None:
        """
        Remove snapshots that belong to no segment, but for the latest, and aborted transactions of
        no segment: a segment that begins at their offset later would seem to have them.
        """
        names = self._fileSystem.list(self._path)
        indexes = {transactionPath(each.path, self._format.suffix) for each in self.opened}
        for name in names:
            path = f"{self._path}/{name}"
            if name.endswith(TRANSACTIONS_SUFFIX) and path not in indexes:
                self._fileSystem.remove(path)
        offsets = {parseSnapshotName(name) for name in names}
        known = [each for each in offsets if each is not None]
        keep = {segment.baseOffset for segment in self.opened} | {max(known, default=-1)}
        for offset in set(known) - keep:
            self._fileSystem.remove(snapshotPath(self._path, offset))

    def firstTimestamp(self) -> int:
        """Of the last segment's first batch; -1: it has none."""
        last = self.opened[-1]
        with closing(self._fileSystem.open(last.path, write=False)) as file:
            scan = self._format.scan(file.readAt, last.baseOffset, 0, last.size)
            for entry in scan:
                return entry.header.maxTimestampMs if entry.header is not None else -1
        return -1
