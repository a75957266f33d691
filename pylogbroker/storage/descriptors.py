"""
Descriptors: the files of all segments share a limited number of them.

What must be true. A slice that is queued for a socket keeps its file's descriptor open, whatever
happens to the segment. A file with unsynced bytes keeps I{its} descriptor, since the kernel reports
a failed write-back only to descriptors that were open at the time. Every other file may be closed
at any moment, so that ten thousand partitions do not need ten thousand descriptors.

The rule: slices, unsynced bytes and jobs I{pin} a L{SegmentFile}. A pinned file is never closed.
The L{DescriptorCache} keeps open files without pins in the order in which they became idle, and
closes the oldest when more than C{descriptorCountMax} files are open. The broker limits what is
queued and unflushed, and so the pinned files. When the system has no more descriptors, the cache
closes all idle files and tries once more.

Rejected: a C{dup} for each slice, which spends a descriptor on each; reference counting by the
garbage collector, since closing must happen at a known moment.

Pins change on the owner's thread, workers open and sync files: hence the locks. The cache's is
never held over a system call.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IFile, IFileSystem

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorCache:
    """
    The open files of one log directory.

    @ivar descriptorCountMax: files that may stay open without need.
    @ivar openCount: open files.
    """

    def __init__(self, fileSystem: IFileSystem, descriptorCountMax: int) -> None:
        self.fileSystem = fileSystem
        self.descriptorCountMax = descriptorCountMax
        self.openCount = 0
        self._idle: OrderedDict[SegmentFile, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def idleCount(self) -> int:
        """Open files without pins."""
        return len(self._idle)

    def file(self, path: str, *, writable: bool) -> SegmentFile:
        """A segment's file, not opened."""
        return SegmentFile(self, path, writable)

    def adopt(self, file: IFile) -> SegmentFile:
        """A new segment's file: open, writable, idle."""
        found = SegmentFile(self, file.path, True)
        with self._lock:
            found._file = file
            self.openCount += 1
            self._idle[found] = None
            surplus = self._takeSurplus()
        _closeAll(surplus)
        return found

    def closeIdle(self) -> None:
        """Close all files without pins."""
        with self._lock:
            files = [self._take(found) for found in list(self._idle)]
        _closeAll(files)

    def _takeSurplus(self) -> list[IFile]:
        surplus = []
        while self.openCount > self.descriptorCountMax and self._idle:
            surplus.append(self._take(next(iter(self._idle))))
        return surplus

    def _take(self, found: SegmentFile) -> IFile:
        """Under the lock, take an open file without pins; the caller closes the result."""
        self._idle.pop(found, None)
        self.openCount -= 1
        file, found._file = found._file, None
        assert file is not None
        return file


def _closeAll(files: list[IFile]) -> None:
    for file in files:
        _closeQuietly(file)


def _closeQuietly(file: IFile) -> None:
    try:
        file.close()
    except StorageError:
        pass  # its bytes were synced, or failed with the partition; the descriptor is gone


class SegmentFile:
    """
    The file of a segment, provider of L{pylogbroker.interfaces.ISegmentFile}.

    @ivar path: its first name; the renaming before a deletion does not change it.
    @ivar writable: whether it is opened for writing, too.
    @ivar pinCount: holders of the descriptor.
    """

    __slots__ = (
        "_cache",
        "_file",
        "_gone",
        "_openLock",
        "_syncFailure",
        "_syncLock",
        "path",
        "pinCount",
        "writable",
    )

    def __init__(self, cache: DescriptorCache, path: str, writable: bool) -> None:
        self._cache = cache
        self._file: IFile | None = None
        self._gone = False
        self._openLock = threading.Lock()
        self.pinCount = 0
        self._syncFailure: StorageError | None = None
        self._syncLock = threading.Lock()
        self.path = path
        self.writable = writable

    @property
    def isOpen(self) -> bool:
        """Whether the file has a descriptor."""
        return self._file is not None

    def pin(self) -> bool:
        """
        Hold the descriptor.

        @return: L{False}: the file is not open, and nothing is held.
        """
        cache = self._cache
        with cache._lock:
            if self._file is None:
                return False
            if self.pinCount == 0:
                del cache._idle[self]
            self.pinCount += 1
        return True

    def unpin(self) -> None:
        """Release the descriptor: once for each pin."""
        cache = self._cache
        surplus: list[IFile] = []
        with cache._lock:
            self.pinCount -= 1
            if self.pinCount == 0:
                if self._gone:
                    surplus = [cache._take(self)]
                else:
                    cache._idle[self] = None
                    if cache.openCount > cache.descriptorCountMax:
                        surplus = cache._takeSurplus()
        if surplus:
            _closeAll(surplus)

    def openPinned(self) -> None:
        """
        Open the file if need be, and pin it. Blocks.

        @raise StorageError: it cannot be opened, or was retired.
        """
        cache = self._cache
        with self._openLock:
            if self.pin():
                return
            self._requireInUse()
            file = self._open()
            surplus = [file]
            with cache._lock:
                if not self._gone:
                    self._file = file
                    self.pinCount = 1
                    cache.openCount += 1
                    surplus = cache._takeSurplus()
        _closeAll(surplus)
        self._requireInUse(file)

    def _requireInUse(self, opened: IFile | None = None) -> None:
        if self._gone and (opened is None or self._file is not opened):
            raise StorageError(self.path, "open", "the segment is no longer in use", errno.ENOENT)

    def _open(self) -> IFile:
        fileSystem = self._cache.fileSystem
        try:
            return fileSystem.open(self.path, write=self.writable)
        except StorageError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._cache.idleCount:
                raise
        self._cache.closeIdle()
        return fileSystem.open(self.path, write=self.writable)

    @property
    def file(self) -> IFile:
        """The open file; valid while pinned."""
        file = self._file
        if file is None:
            raise StorageError(self.path, "use", "it is not open", errno.EBADF)
        return file

    def fileno(self) -> int:
        """The descriptor; valid while pinned."""
        return self.file.fileno()

    def sync(self) -> None:
        """
        C{fsync}, while pinned. Blocks; one at a time.

        @raise StorageError: this sync failed, or an earlier one did. The kernel reports a lost
            write to the first sync only, so a file that failed stays failed.
        """
        with self._syncLock:
            if self._syncFailure is None:
                try:
                    self.file.sync()
                except StorageError as error:
                    self._syncFailure = error
            if self._syncFailure is not None:
                raise self._syncFailure

    def retire(self) -> bool:
        """
        Take the file out of use with its segment: it is not opened from now on, and its descriptor
        is closed, at the latest by the last C{unpin}.

        @return: whether no pin is left.
        """
        cache = self._cache
        with cache._lock:
            self._gone = True
            if self._file is None or self.pinCount:
                return self.pinCount == 0
            file = cache._take(self)
        _closeQuietly(file)
        return True

    def __repr__(self) -> str:
        state = "closed" if self._file is None else f"open, {self.pinCount} pins"
        return f"<SegmentFile {self.path} {state}>"
