"""
Descriptors: the files of all segments share a limited number of them.

What must be true. A slice that is queued for a socket keeps its file's descriptor open, whatever happens to the segment; a file with bytes that were
not synced keeps I{its} descriptor, since the kernel reports a failed write-back only to descriptors that were open at the time; every other file may
be closed at any moment, so that ten thousand partitions do not need ten thousand descriptors.

The rule: a L{SegmentFile} counts I{pins}. Slices pin, unsynced bytes pin, jobs pin. A file with pins is never closed. Files that are open without
pins are I{idle}; the L{DescriptorCache} keeps them in the order in which they became so and closes the oldest when more than C{descriptorCountMax}
files are open. Pinned files alone may exceed that number: they are limited by what the broker allows to be queued and to be unflushed; when the
system itself has no more, all idle ones are closed and the opening is tried once more.

Rejected: a C{dup} for each slice (spends a descriptor on each), and reference counting by the garbage collector (closing must happen at a known
moment).

Pins are taken and given on the owner's thread, files are opened and synced on workers, too; hence the locks. The one of the cache is held for a few
dictionary operations only, never over a system call.
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

    @ivar descriptorCountMax: how many files may stay open while nobody needs them to.
    @ivar openCount: files that are open now.
    """

    def __init__(self, fileSystem: IFileSystem, descriptorCountMax: int) -> None:
        self.fileSystem = fileSystem
        self.descriptorCountMax = descriptorCountMax
        self.openCount = 0
        self._idle: OrderedDict[SegmentFile, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def idleCount(self) -> int:
        """Files that are open without need."""
        return len(self._idle)

    def file(self, path: str, *, writable: bool) -> SegmentFile:
        """A segment's file, not opened."""
        return SegmentFile(self, path, writable)

    def adopt(self, file: IFile) -> SegmentFile:
        """A segment's file that was just created: open, writable, idle."""
        found = SegmentFile(self, file.path, True)
        with self._lock:
            found._file = file
            self.openCount += 1
            self._idle[found] = None
            surplus = self._takeSurplus()
        _closeAll(surplus)
        return found

    def closeIdle(self) -> None:
        """Close all files that nobody needs."""
        with self._lock:
            files = [self._take(found) for found in list(self._idle)]
        _closeAll(files)

    def _takeSurplus(self) -> list[IFile]:
        surplus = []
        while self.openCount > self.descriptorCountMax and self._idle:
            surplus.append(self._take(next(iter(self._idle))))
        return surplus

    def _take(self, found: SegmentFile) -> IFile:
        """Under the lock: make an open file without pins a closed one; the caller closes what is returned."""
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
        # Everything in it was synced, or given up with the partition; the descriptor is gone either way.
        pass


class SegmentFile:
    """
    The file of a segment, provider of L{pylogbroker.interfaces.ISegmentFile}.

    @ivar path: where it was made; it keeps this name here when it is renamed to be deleted.
    @ivar writable: whether it is opened for writing, too.
    """

    __slots__ = (
        "_cache",
        "_file",
        "_gone",
        "_openLock",
        "_pinCount",
        "_syncFailure",
        "_syncLock",
        "path",
        "writable",
    )

    def __init__(self, cache: DescriptorCache, path: str, writable: bool) -> None:
        self._cache = cache
        self._file: IFile | None = None
        self._gone = False
        self._openLock = threading.Lock()
        self._pinCount = 0
        self._syncFailure: StorageError | None = None
        self._syncLock = threading.Lock()
        self.path = path
        self.writable = writable

    @property
    def pinCount(self) -> int:
        """How many hold the descriptor."""
        return self._pinCount

    @property
    def isOpen(self) -> bool:
        """Whether it has a descriptor now."""
        return self._file is not None

    def pin(self) -> bool:
        """
        Hold the descriptor.

        @return: L{False} when the file is not open now: then nothing is held.
        """
        cache = self._cache
        with cache._lock:
            if self._file is None:
                return False
            if self._pinCount == 0:
                del cache._idle[self]
            self._pinCount += 1
        return True

    def unpin(self) -> None:
        """Let the descriptor go. One for each pin."""
        cache = self._cache
        surplus: list[IFile] = []
        with cache._lock:
            self._pinCount -= 1
            if self._pinCount == 0:
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

        @raise StorageError: it cannot be opened, or was taken out.
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
                    self._pinCount = 1
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
        C{fsync} it, while pinned. Blocks; one at a time.

        @raise StorageError: it failed, or an earlier one did. The kernel reports a lost write once, to whoever syncs first: so that nobody
            takes the silence afterwards for success, a file that failed stays failed.
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
        The segment is no more: the file is not opened from now on, and its descriptor is closed, by the last C{unpin} if somebody holds it.

        @return: whether nobody does.
        """
        cache = self._cache
        with cache._lock:
            self._gone = True
            if self._file is None or self._pinCount:
                return self._pinCount == 0
            file = cache._take(self)
        _closeQuietly(file)
        return True

    def __repr__(self) -> str:
        state = "closed" if self._file is None else f"open, {self._pinCount} pins"
        return f"<SegmentFile {self.path} {state}>"
