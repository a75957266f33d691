"""
Jobs: the part of an operation that blocks, cut out so that it can run on a worker.

Each is made by a C{begin…} method on the owner's thread, run once, anywhere, and taken in by the matching C{finish…} on the owner's thread. A job
touches files only; it reads nothing of the log that could change meanwhile, and changes nothing of it. What it found out is in its attributes.

The order of the file operations in each is what makes the log survive a power cut between any two of them.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IRecordFormat, ISegmentIndex
from pylogbroker.storage.descriptors import DescriptorCache, SegmentFile
from pylogbroker.storage.events import ConflictingFileRemoved, LogEvent
from pylogbroker.storage.filenames import RETIRED_SUFFIX, segmentName
from pylogbroker.storage.segment import Segment
from pylogbroker.types import LogPosition


class Job(Protocol):
    """
    @ivar events: after the run, what to log.
    """

    events: list[LogEvent]

    def run(self) -> None:
        """
        Do it. Blocks; on any thread; once.

        @raise StorageError: it failed; hand it to C{finish…}.
        """
        ...


class FlushJob:
    """
    Sync a segment file.

    @ivar segment: whose file.
    @ivar position: what the sync covers: what was written when the job was made.
    """

    def __init__(self, segment: Segment, position: LogPosition) -> None:
        self.events: list[LogEvent] = []
        self.segment = segment
        self.position = position

    def run(self) -> None:
        """C{fsync}."""
        self.segment.file.sync()


class RollJob:
    """
    Sync the old segment and its index, then create the new file, then sync the directory.

    In this order: when the new name is visible after a crash, the old file is whole, and recovery
    does not look at its end again. Nothing may be appended to the new file before the directory is
    synced, or the name could be lost with the bytes.

    @ivar segment: the old one.
    @ivar position: the old segment's end; its offset is the base offset of the new one.
    @ivar pinned: whether the job holds the old file's descriptor.
    @ivar flushed: whether the old segment is synced.
    @ivar created: whether the new file exists; a failure before may pass, a later one may not.
    @ivar file: the new file, after a successful run.
    @ivar index: of the new file, after a successful run.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        directory: str,
        format: IRecordFormat,
        segment: Segment,
        position: LogPosition,
        pinned: bool,
    ) -> None:
        self.events: list[LogEvent] = []
        self.segment = segment
        self.position = position
        self.pinned = pinned
        self.flushed = False
        self.created = False
        self.file: SegmentFile | None = None
        self.index: ISegmentIndex | None = None
        self._cache = cache
        self._directory = directory
        self._format = format
        self._needsSync = segment.size < segment.writtenSize
        self._newPath = f"{directory}/{segmentName(position.offset, format.suffix)}"

    def run(self) -> None:
        """See the class."""
        fileSystem = self._cache.fileSystem
        if self._needsSync:
            self.segment.file.sync()
        self.flushed = True
        self.segment.index.save()
        if fileSystem.status(self._newPath) is not None:
            fileSystem.remove(self._newPath)
            fileSystem.syncDirectory(self._directory)
            self.events.append(ConflictingFileRemoved(self._newPath))
        file = fileSystem.open(self._newPath, create=True)
        self.created = True
        try:
            fileSystem.syncDirectory(self._directory)
            self.index = self._format.openIndex(
                fileSystem, self._newPath, self.position.offset, 0, True
            )
        except StorageError:
            file.close()
            raise
        self.file = self._cache.adopt(file)


class DeleteJob:
    """
    Delete segments: rename each, oldest first, the directory synced after each, then unlink those that nobody reads any more.

    One after the other: if two names vanished in one sync, a power cut could keep the older and lose the newer, which leaves a gap. A renamed file
    is not loaded again, so that it may stay until the last reader has let go; unlinking is what frees the space, and belongs on a worker.

    @ivar segments: those to rename.
    @ivar renamed: segments whose files have their new name.
    @ivar vanished: segments whose files were not there.
    @ivar unlinked: segments whose files are gone.
    @ivar touched: the empty last segment, if its time was set to C{nowMs}.
    """

    def __init__(
        self,
        cache: DescriptorCache,
        directory: str,
        segments: Sequence[Segment],
        doomed: Sequence[Segment],
        touch: Segment | None,
        nowMs: int,
    ) -> None:
        self.events: list[LogEvent] = []
        self.renamed: list[Segment] = list(doomed)
        self.segments = segments
        self.unlinked: list[Segment] = []
        self.vanished: list[Segment] = []
        self._cache = cache
        self._directory = directory
        self.touched: Segment | None = None
        self.nowMs = nowMs
        self._touch = touch

    def run(self) -> None:
        """See the class. Stops at the first failure: to go on with newer segments would leave a gap."""
        fileSystem = self._cache.fileSystem
        for segment in self.segments:
            segment.index.remove()
            try:
                fileSystem.rename(segment.path, segment.path + RETIRED_SUFFIX)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
                # Somebody has removed it already: what we wanted.
                segment.file.retire()
                self.vanished.append(segment)
                continue
            self.renamed.append(segment)
            fileSystem.syncDirectory(self._directory)
        for segment in self.renamed:
            if segment.file.retire():
                try:
                    fileSystem.remove(segment.path + RETIRED_SUFFIX)
                except StorageError as error:
                    if error.errno != errno.ENOENT:
                        raise
                self.unlinked.append(segment)
        if self._touch is not None:
            fileSystem.setModified(self._touch.path, self.nowMs)
            self.touched = self._touch


class StatJob:
    """
    Ask the file system for the modification times: retention and offsets-before-time go by them, and somebody may have set them (C{touch -d}).

    @ivar times: (segment, milliseconds since the epoch).
    @ivar last: the last segment.
    @ivar lastWrittenSize: of that one, when the job was made: if it has grown since, its time here is an old one.
    """

    def __init__(self, cache: DescriptorCache, segments: Sequence[Segment]) -> None:
        self.events: list[LogEvent] = []
        self.times: list[tuple[Segment, int]] = []
        self.last = segments[-1]
        self.lastWrittenSize = self.last.writtenSize
        self._cache = cache
        self._segments = segments

    def run(self) -> None:
        """C{stat} each file."""
        for segment in self._segments:
            status = self._cache.fileSystem.status(segment.path)
            if status is not None:
                self.times.append((segment, status.modifiedMs))


class CloseJob:
    """
    Sync the last segment, if it needs it, and its index, before the log is closed.

    @ivar segment: the last one.
    @ivar position: its end.
    """

    def __init__(self, segment: Segment, position: LogPosition) -> None:
        self.events: list[LogEvent] = []
        self.segment = segment
        self.position = position
        self._needsSync = segment.size < segment.writtenSize

    def run(self) -> None:
        """C{fsync}."""
        if self._needsSync:
            self.segment.file.sync()
        self.segment.index.save()


class SearchJob:
    """
    Find the byte of an offset with the help of the segment's file.

    @ivar segment: the one that the offset falls in.
    @ivar position: after the run, the byte in its file.
    """

    def __init__(self, segment: Segment, offset: int) -> None:
        self.events: list[LogEvent] = []
        self.segment = segment
        self.position = 0
        self._offset = offset

    def run(self) -> None:
        """Open the file if need be, and search."""
        file = self.segment.file
        file.openPinned()
        try:
            self.position = self.segment.index.search(file.file, self._offset)
        finally:
            file.unpin()
