"""
Truncation of a partition's log: a follower's log has an end that the leader's does not have, or
begins anew behind what the leader still has. It is a module of its own, since the order of its
steps is to be checked by itself.

B{What must be true.} After a crash between any two steps the log loads, ends with a whole batch
somewhere between the new end and the old one, has no gap that it did not have, and knows of
producers, transactions and epochs what its batches say. Truncating it again finishes the work. Once
the job has ended, nothing that was cut off can come back.

B{The order.} The newest segments go first, each by a durable rename, so that what is left is always
a beginning of the old log. Then the file with the new end and its indexes are cut and synced, and
the epochs are. Until then it is the last segment, which recovery checks from
its first byte. Then a new, empty segment begins at the new end. From that moment on recovery trusts
the file before it, which is synced, as behind a roll. At last the directory is loaded as at a
start: what a log knows after a truncation is what a restart would find.

B{A new file for what comes.} Readers may hold slices of the bytes that are cut off. The file with
the new end is not appended to any more, so that such a slice is short, which closes its connection
(L{pylogbroker.net.sendfile}), and never has other bytes than those that were there. The files of
whole segments stay readable until their last reader has gone.

B{Checkpoints} of the log directory may say more than is true now. A high watermark or a log start
above the end would, after a crash, cover what is appended next: the owner lowers them before it
appends (C{LogDirectory.checkpointsAhead}). A recovery point may stay: the last segment is
recovered in any case, and those before it are synced.

B{Rejected.} To cut the file and go on in it, as Kafka does, needs no new segment; but then a slice
can have the end of one leader's batch and the beginning of another's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IRecordFormat
from pylogbroker.storage.filenames import DELETED_SUFFIX
from pylogbroker.storage.files import DescriptorCache
from pylogbroker.storage.jobs import DiskJob
from pylogbroker.storage.kafka.batchrecovery import LoadedBatches, LoadRequest, loadBatches
from pylogbroker.storage.kafka.epochcheckpoint import writeEpochs
from pylogbroker.storage.kafka.epochs import EpochStart
from pylogbroker.storage.kafka.producerstate import parseSnapshotName, snapshotPath
from pylogbroker.storage.kafka.transactionindex import (
    AbortedTransaction,
    TransactionIndex,
    transactionPath,
)
from pylogbroker.storage.recovery import createSegment
from pylogbroker.storage.segments import Segment


@dataclass(eq=False)
class TruncateJob(DiskJob):
    """
    Truncate a log, durably; the module states the order.

    @ivar offset: where it shall end. It ends earlier if a batch reaches across: at that batch.
    @ivar segments: all of them, the oldest first.
    @ivar isAnew: remove everything, and begin at C{offset}.
    @ivar epochs: all of them.
    @ivar aborted: the aborted transactions of the segment that holds C{offset}.
    @ivar request: how to load what is left.
    @ivar endOffset: after the run, where the log ends.
    @ivar loaded: after a successful run, what is left.
    """

    cache: DescriptorCache
    directory: str
    format: IRecordFormat
    offset: int
    segments: Sequence[Segment]
    isAnew: bool
    epochs: Sequence[EpochStart]
    aborted: Sequence[AbortedTransaction]
    request: LoadRequest
    endOffset: int = -1
    loaded: LoadedBatches | None = None

    def run(self) -> None:
        """@raise StorageError: recovery must look at what is left."""
        self.endOffset = self.offset
        bases = [each.baseOffset for each in self.segments]
        keptCount = 0 if self.isAnew else bisect_right(bases, self.offset)
        position = 0
        if keptCount:
            position = self._findEnd(self.segments[keptCount - 1])
            if position == 0:
                keptCount -= 1
        self._removeSnapshots()
        for segment in reversed(self.segments[keptCount:]):
            self._remove(segment)
        if position:
            self._cut(self.segments[keptCount - 1], position)
        fileSystem, end = self.cache.fileSystem, self.endOffset
        epochs = [each for each in self.epochs if each.startOffset < end and not self.isAnew]
        writeEpochs(fileSystem, self.directory, epochs)
        createSegment(fileSystem, self.directory, end, self.format)
        start = end if self.isAnew else min(self.request.logStartOffset, end)
        request = replace(self.request, logStartOffset=start)
        self.loaded = loadBatches(
            self.cache, self.directory, self.format, request, self.events.append
        )

    def _findEnd(self, segment: Segment) -> int:
        """The byte at which the segment is cut. Lowers C{endOffset} to that batch's first."""
        file = segment.file
        file.openPinned()
        try:
            position = segment.index.search(file.file, self.offset)
            size = file.file.size()
            scan = self.format.scan(file.file.readAt, segment.baseOffset, position, size)
            for entry in scan:
                self.endOffset = min(self.endOffset, entry.offset)
                break
            if position < size and scan.reason is not None:
                raise StorageError(
                    segment.path, "truncate", f"no batch begins at byte {position}: {scan.reason}"
                )
        finally:
            file.unpin()
        return position

    def _removeSnapshots(self) -> None:
        """Those of what is cut off, before others can be behind them; the directory is synced."""
        fileSystem = self.cache.fileSystem
        for name in fileSystem.list(self.directory):
            offset = parseSnapshotName(name)
            if offset is not None and (self.isAnew or offset > self.endOffset):
                fileSystem.remove(snapshotPath(self.directory, offset))
        fileSystem.syncDirectory(self.directory)

    def _remove(self, segment: Segment) -> None:
        """As L{pylogbroker.storage.jobs.DeleteJob} does, but the newest first."""
        fileSystem, path = self.cache.fileSystem, segment.path
        segment.index.remove()
        TransactionIndex(transactionPath(path, self.format.suffix)).remove(fileSystem)
        fileSystem.rename(path, path + DELETED_SUFFIX)
        fileSystem.syncDirectory(self.directory)
        segment.file.retire()
        fileSystem.remove(path + DELETED_SUFFIX)  # readers have it open

    def _cut(self, segment: Segment, size: int) -> None:
        """The file ends at a byte, is synced, and has saved indexes of what is left."""
        fileSystem, path = self.cache.fileSystem, segment.path
        aborted = TransactionIndex(transactionPath(path, self.format.suffix))
        segment.index.save()
        with closing(fileSystem.open(path)) as file:
            oldSize = file.size()
            if size < oldSize:
                # Not the index that readers use meanwhile. Its files may be missing or broken; then
                # they are rebuilt.
                base = segment.baseOffset
                index = self.format.openIndex(fileSystem, path, base, oldSize, False)
                file.truncate(size)
                index.truncate(size, self.endOffset)
                aborted.remove(fileSystem)
            file.sync()
        for each in self.aborted:
            if each.lastOffset < self.endOffset:
                aborted.add(each)
        aborted.save(fileSystem)
