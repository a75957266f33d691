"""
Jobs: the blocking part of an operation, which a worker runs.

C{begin…} makes a job on the owner's thread, any thread runs it once, and C{finish…} takes it in on
the owner's thread. A job neither reads nor changes mutable state of the log.

The order of file operations in each job lets the log survive a power cut between any two.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IRecordFormat, ISegmentIndex
from pylogbroker.storage.events import ConflictingFileRemoved, StorageEvent
from pylogbroker.storage.filenames import DELETED_SUFFIX, segmentName
from pylogbroker.storage.files import DescriptorCache, SegmentFile
from pylogbroker.storage.segments import Segment
from pylogbroker.types import LogPosition


class Job:
    """@ivar events: after the run, what to log."""

    def __init__(self) -> None:
        self.events: list[StorageEvent] = []

    def run(self) -> None:
        """
        Blocks; on any thread; once.

        @raise StorageError: hand it to C{finish…}.
        """
        raise NotImplementedError


class FlushJob(Job):
    """
    Sync a segment file.

    @ivar position: the segment's end when the job was made: the sync covers what is below.
    """

    def __init__(self, segment: Segment, position: LogPosition) -> None:
        super().__init__()
        self.segment = segment
        self.position = position
        self._isSynced = segment.size == position.byte

    def run(self) -> None:
        if not self._isSynced:
            self.segment.file.sync()


class FinalFlushJob(FlushJob):
    """Sync the last segment and save its index, before the log is closed."""

    def run(self) -> None:
        super().run()
        self.segment.index.save()


class RollJob(FlushJob):
    """
    Sync the old segment and save its index, then create the new file, then sync the directory.

    In this order: when the new name is visible after a crash, the old file is whole, and recovery
    skips its end. Nothing may be appended before the directory is synced, or the name could be lost
    with the bytes.

    @ivar position: the old segment's end, where the new one begins.
    @ivar isPinned: whether the job holds the old file's descriptor.
    @ivar isCreated: whether the new file exists; a failure before may pass, a later one may not.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        directory: str,
        format: IRecordFormat,
        segment: Segment,
        position: LogPosition,
        isPinned: bool,
    ) -> None:
        super().__init__(segment, position)
        self.isPinned = isPinned
        self.isFlushed = False
        self.isCreated = False
        self.file: SegmentFile | None = None
        self.index: ISegmentIndex | None = None
        self._cache = cache
        self._directory = directory
        self._format = format

    def run(self) -> None:
        super().run()
        self.isFlushed = True
        self.segment.index.save()
        fileSystem = self._cache.fileSystem
        baseOffset = self.position.offset
        path = f"{self._directory}/{segmentName(baseOffset, self._format.suffix)}"
        if fileSystem.status(path) is not None:
            fileSystem.remove(path)
            fileSystem.syncDirectory(self._directory)
            self.events.append(ConflictingFileRemoved(path))
        file = fileSystem.open(path, create=True)
        self.isCreated = True
        try:
            fileSystem.syncDirectory(self._directory)
            self.index = self._format.openIndex(fileSystem, path, baseOffset, 0, True)
        except StorageError:
            file.close()
            raise
        self.file = self._cache.adopt(file)


class DeleteJob(Job):
    """
    Delete segments: rename each, oldest first, and sync the directory after each; then unlink those
    without readers.

    If two names vanished in one sync, a power cut could lose only the newer, which leaves a gap. A
    renamed file is not loaded again, so it may stay until the last reader releases it.

    @ivar renamed: segments whose files have their new name.
    @ivar vanished: segments whose files were gone already.
    @ivar touched: the empty last segment, if its time was set to C{nowMs}.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        directory: str,
        segments: Sequence[Segment],
        renamed: Sequence[Segment],
        touch: Segment | None,
        nowMs: int,
    ) -> None:
        super().__init__()
        self.renamed = [*renamed]
        self.segments = segments
        self.unlinked: list[Segment] = []
        self.vanished: list[Segment] = []
        self.touched: Segment | None = None
        self.nowMs = nowMs
        self._cache = cache
        self._directory = directory
        self._touch = touch

    def run(self) -> None:
        """Stops at the first failure: deleting a newer segment would leave a gap."""
        fileSystem = self._cache.fileSystem
        for segment in self.segments:
            segment.index.remove()
            try:
                fileSystem.rename(segment.path, segment.path + DELETED_SUFFIX)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                segment.file.retire()
                self.vanished.append(segment)
                continue
            self.renamed.append(segment)
            fileSystem.syncDirectory(self._directory)
        for segment in self.renamed:
            if segment.file.retire():
                try:
                    fileSystem.remove(segment.path + DELETED_SUFFIX)
                except StorageError as error:
                    if error.errno != errno.ENOENT:
                        raise
                self.unlinked.append(segment)
        if self._touch is not None:
            fileSystem.setModified(self._touch.path, self.nowMs)
            self.touched = self._touch


class StatJob(Job):
    """
    Read the files' modification times, which retention and offsets-before-time use. A person may
    have set them (C{touch -d}).

    @ivar times: (segment, milliseconds since the epoch).
    @ivar lastWrittenSize: of the last segment at the job's creation; if it has grown since, its
        time here is outdated.
    """

    def __init__(self, cache: DescriptorCache, segments: Sequence[Segment]) -> None:
        super().__init__()
        self.times: list[tuple[Segment, int]] = []
        self.last = segments[-1]
        self.lastWrittenSize = self.last.writtenSize
        self._cache = cache
        self._segments = segments

    def run(self) -> None:
        for segment in self._segments:
            status = self._cache.fileSystem.status(segment.path)
            if status is not None:
                self.times.append((segment, status.modifiedMs))


class FindPositionJob(Job):
    """
    Find the byte of an offset with the help of the segment's file.

    @ivar position: after the run, the byte in its file.
    """

    def __init__(self, segment: Segment, offset: int) -> None:
        super().__init__()
        self.segment = segment
        self.position = 0
        self._offset = offset

    def run(self) -> None:
        file = self.segment.file
        file.openPinned()
        try:
            self.position = self.segment.index.search(file.file, self._offset)
        finally:
            file.unpin()
