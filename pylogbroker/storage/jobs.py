"""
Jobs: the blocking part of an operation, which a worker runs.

C{begin…} makes a job on the owner's thread, any thread runs it once, and C{finish…} takes it in on
the owner's thread. A job neither reads nor changes mutable state of the log.

The order of file operations in each job lets the log survive a power cut between any two.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import (
    IFileSystem,
    IRecordFormat,
    ISegmentIndex,
    TimestampOffset,
)
from pylogbroker.storage.events import ConflictingFileRemoved, StorageEvent
from pylogbroker.storage.filenames import DELETED_SUFFIX, segmentName
from pylogbroker.storage.files import DescriptorCache, SegmentFile
from pylogbroker.storage.segments import Segment
from pylogbroker.types import LogPosition


@dataclass(eq=False)
class DiskJob:
    """@ivar events: after the run, what to log."""

    events: list[StorageEvent] = field(default_factory=list, init=False)

    def run(self) -> None:
        """
        Blocks; on any thread; once.

        @raise StorageError: hand it to C{finish…}.
        """
        raise NotImplementedError


@dataclass(eq=False)
class FlushJob(DiskJob):
    """
    Sync a segment file, of which something is not synced.

    @ivar position: the segment's end when the job was made: the sync covers what is below.
    """

    segment: Segment
    position: LogPosition

    def run(self) -> None:
        self.segment.file.sync()


@dataclass(eq=False)
class FinalFlushJob(FlushJob):
    """
    Sync the last segment, if need be, and save its index, before the log is closed.

    @ivar saveState: saves what the log keeps beside its segments, never ahead of their sync.
    """

    saveState: Callable[[], None] | None

    def __post_init__(self) -> None:
        self._isSynced = self.segment.size == self.position.byte

    def run(self) -> None:
        self._sync()
        self._save()

    def _sync(self) -> None:
        if not self._isSynced:
            super().run()

    def _save(self) -> None:
        self.segment.index.save()
        if self.saveState is not None:
            self.saveState()


@dataclass(eq=False)
class RollJob(FinalFlushJob):
    """
    Sync the old segment, save its index and the log's state, create the new file, sync the
    directory.

    In this order: when the new name is visible after a crash, the old file is whole, and recovery
    skips its end. Nothing may be appended before the directory is synced, or the name could be lost
    with the bytes.

    @ivar position: the old segment's end, where the new one begins.
    @ivar isPinned: whether the job holds the old file's descriptor.
    @ivar isCreated: whether the new file exists; a failure before may pass, a later one may not.
    """

    cache: DescriptorCache
    directory: str
    format: IRecordFormat
    isPinned: bool
    isFlushed: bool = False
    isCreated: bool = False
    file: SegmentFile | None = None
    index: ISegmentIndex | None = None

    def run(self) -> None:
        self._sync()
        self.isFlushed = True
        self._save()
        fileSystem = self.cache.fileSystem
        baseOffset = self.position.offset
        path = f"{self.directory}/{segmentName(baseOffset, self.format.suffix)}"
        if fileSystem.status(path) is not None:
            fileSystem.remove(path)
            fileSystem.syncDirectory(self.directory)
            self.events.append(ConflictingFileRemoved(path))
        file = fileSystem.open(path, create=True)
        self.isCreated = True
        try:
            fileSystem.syncDirectory(self.directory)
            self.index = self.format.openIndex(fileSystem, path, baseOffset, 0, True)
        except StorageError:
            file.close()
            raise
        self.file = self.cache.adopt(file)


@dataclass(eq=False)
class DeleteJob(DiskJob):
    """
    Delete segments: rename each, oldest first, and sync the directory after each; then unlink those
    without readers.

    If two names vanished in one sync, a power cut could lose only the newer, which leaves a gap. A
    renamed file is not loaded again, so it may stay until the last reader releases it.

    @ivar renamed: segments whose files have their new name.
    @ivar touch: the empty last segment, whose time is to be C{nowMs}.
    @ivar removeState: removes what the log keeps beside a segment.
    @ivar doneCount: segments that are renamed, or whose files were gone already.
    """

    fileSystem: IFileSystem
    directory: str
    segments: tuple[Segment, ...]
    renamed: list[Segment]
    touch: Segment | None
    nowMs: int
    removeState: Callable[[Segment], None] = lambda segment: None
    unlinked: list[Segment] = field(default_factory=list)
    doneCount: int = 0

    def run(self) -> None:
        """Stops at the first failure: deleting a newer segment would leave a gap."""
        fileSystem = self.fileSystem
        for segment in self.segments:
            segment.index.remove()
            try:
                fileSystem.rename(segment.path, segment.path + DELETED_SUFFIX)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                segment.file.retire()
            else:
                self.renamed.append(segment)
                fileSystem.syncDirectory(self.directory)
            self.removeState(segment)
            self.doneCount += 1
        for segment in self.renamed:
            if segment.file.retire():
                try:
                    fileSystem.remove(segment.path + DELETED_SUFFIX)
                except StorageError as error:
                    if error.errno != errno.ENOENT:
                        raise
                self.unlinked.append(segment)
        if self.touch is not None:
            fileSystem.setModified(self.touch.path, self.nowMs)


@dataclass(eq=False)
class StatJob(DiskJob):
    """
    Read the files' modification times, which retention and offsets-before-time use. A person may
    have set them (C{touch -d}).

    @ivar times: (segment, milliseconds since the epoch).
    @ivar lastWrittenSize: of the last segment at the job's creation; if it has grown since, its
        time here is outdated.
    """

    fileSystem: IFileSystem
    segments: Sequence[Segment]
    times: list[tuple[Segment, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lastWrittenSize = self.segments[-1].writtenSize

    def run(self) -> None:
        for segment in self.segments:
            status = self.fileSystem.status(segment.path)
            if status is not None:
                self.times.append((segment, status.modifiedMs))


@dataclass(eq=False)
class FindTimeJob(DiskJob):
    """
    Find the first record, by offset, that is not older than a time.

    @ivar segments: oldest first; the first that has one ends the search.
    @ivar startOffset: records below it do not count.
    @ivar found: after the run; L{None}: there is none.
    """

    segments: Sequence[Segment]
    timestampMs: int
    startOffset: int
    found: TimestampOffset | None = None

    def run(self) -> None:
        """@raise pylogbroker.errors.FormatError: the batch that must hold it cannot be read."""
        for segment in self.segments:
            segment.file.openPinned()
            try:
                self.found = self.search(segment)
            finally:
                segment.file.unpin()
            if self.found is not None:
                return

    def search(self, segment: Segment) -> TimestampOffset | None:
        return segment.index.searchTime(segment.file.file, self.timestampMs, self.startOffset)


class FindLargestTimeJob(FindTimeJob):
    """Find the first record with the largest timestamp of the segments."""

    def search(self, segment: Segment) -> TimestampOffset | None:
        return segment.index.searchLargestTime(segment.file.file)


@dataclass(eq=False)
class FindPositionJob(DiskJob):
    """
    Find the byte of an offset with the help of the segment's file.

    @ivar format: if given, find the size of the batch there, too.
    @ivar position: after the run, the byte in its file.
    @ivar batchSize: after the run, with C{format}: bytes of the batch there.
    """

    segment: Segment
    offset: int
    format: IRecordFormat | None = None
    position: int = 0
    batchSize: int = 0

    def run(self) -> None:
        file = self.segment.file
        file.openPinned()
        try:
            self.position = self.segment.index.search(file.file, self.offset)
            if self.format is not None:
                read, end = file.file.readAt, file.file.size()
                scan = self.format.scan(read, self.segment.baseOffset, self.position, end)
                self.batchSize = next((each.size for each in scan), 1)
        finally:
            file.unpin()
