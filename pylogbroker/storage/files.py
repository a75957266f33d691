"""
The files of this machine, behind L{pylogbroker.interfaces.IFileSystem}: one system call a method.

Every C{OSError} becomes a L{StorageError} that names the file and the action. Nothing is durable
until C{sync} or C{syncDirectory} has returned.

What must be true. A slice that is queued for a socket keeps its file's descriptor open, whatever
happens to the segment. A file with unsynced bytes keeps I{its} descriptor, since the kernel reports
a failed write-back only to descriptors that were open at the time. Every other file may be closed
at any moment, so that ten thousand partitions share a limited number of descriptors.

The rule: slices, unsynced bytes and jobs I{pin} a L{SegmentFile}. A pinned file is never closed.
Above C{descriptorCountMax} open files, the L{DescriptorCache} closes the unpinned file that was
idle longest. The broker's limits on queued and unflushed bytes bound the pinned files. When the
system has no more descriptors, the cache closes all idle files and tries once more.

Rejected: a C{dup} for each slice, which spends a descriptor on each; reference counting by the
garbage collector, since closing must happen at a known moment.

Pins change on the owner's thread; workers open and sync files: hence the locks. The cache's is
never held over a system call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from pylogbroker.errors import DirectoryLockedError, StorageError
from pylogbroker.interfaces import FileStatus, IFile, IFileSystem

BUFFER_COUNT_MAX = 1024
"""Buffers of one vectored write: IOV_MAX on Linux."""

_FILE_MODE = 0o644
_PRIVATE_MODE = 0o600


def storageError(path: str, action: str, error: OSError) -> StorageError:
    """The L{StorageError} for an C{OSError}."""
    return StorageError(path, action, error.strerror or str(error), error.errno)


@contextmanager
def _storageErrors(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storageError(path, action, error) from error


class RealFile:
    """An open file, provider of L{IFile}."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def writeAt(self, position: int, buffers: Sequence[bytes]) -> int:
        """
        Write at most L{BUFFER_COUNT_MAX} buffers. Returns the bytes written, perhaps fewer than
        given.

        @raise StorageError: what was written is unknown.
        """
        try:
            return os.pwritev(self._descriptor, buffers, position)
        except OSError as error:
            raise storageError(self.path, "write", error) from error

    def readAt(self, position: int, size: int) -> bytes:
        parts = []
        with _storageErrors(self.path, "read"):
            while size and (part := os.pread(self._descriptor, size, position)):
                parts.append(part)
                position += len(part)
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        with _storageErrors(self.path, "stat"):
            return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file, or fill it up with zero bytes."""
        with _storageErrors(self.path, "truncate"):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """
        C{fsync}: data and metadata. Never repeat one that failed: the kernel may have dropped the
        bytes, and would report success.
        """
        if self._descriptor < 0:  # Python would raise ValueError
            raise StorageError(self.path, "fsync", os.strerror(errno.EBADF), errno.EBADF)
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise storageError(self.path, "fsync", error) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _storageErrors(self.path, "close"):
                os.close(descriptor)


class RealFileSystem:
    """
    The files of this machine, provider of L{pylogbroker.interfaces.IFileSystem}.

    @cvar fileClass: of what L{open} returns.
    """

    fileClass = RealFile

    def open(
        self, path: str, *, create: bool = False, write: bool = True, isPrivate: bool = False
    ) -> IFile:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        mode = _PRIVATE_MODE if isPrivate else _FILE_MODE
        with _storageErrors(path, "create" if create else "open"):
            file = self.fileClass(path, os.open(path, flags | os.O_CLOEXEC, mode))
        if isPrivate and not create:
            try:
                with _storageErrors(path, "restrict"):
                    if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & ~_PRIVATE_MODE:
                        os.fchmod(file.fileno(), _PRIVATE_MODE)
            except StorageError:
                file.close()
                raise
        return file

    def list(self, path: str) -> list[str]:
        try:  # without a context: a start calls this and C{status} for each of many partitions
            return os.listdir(path)
        except OSError as error:
            raise storageError(path, "list", error) from error

    def status(self, path: str) -> FileStatus | None:
        """Size, time, kind; L{None}: no such file."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storageError(path, "stat", error) from error
        return FileStatus(
            found.st_size, found.st_mtime_ns // 1_000_000, stat.S_ISDIR(found.st_mode)
        )

    def makeDirectories(self, path: str) -> None:
        with _storageErrors(path, "create"):
            os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file of the new name."""
        with _storageErrors(old, "rename"):
            os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Add a second name, which must be free."""
        with _storageErrors(new, "link"):
            os.link(old, new)

    def remove(self, path: str) -> None:
        with _storageErrors(path, "remove"):
            os.unlink(path)

    def removeDirectory(self, path: str) -> None:
        with _storageErrors(path, "remove"):
            os.rmdir(path)

    def setModified(self, path: str, modifiedMs: int) -> None:
        """Set the time of modification, milliseconds since the epoch."""
        with _storageErrors(path, "set the time of"):
            os.utime(path, ns=(modifiedMs * 1_000_000, modifiedMs * 1_000_000))

    def syncDirectory(self, path: str) -> None:
        with _storageErrors(path, "fsync"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: str) -> Callable[[], None]:
        """
        Lock a file, exclusively and without waiting. The file stays: after a removal two brokers
        could lock two files of one name. C{flock} keeps out brokers of this kind, in this process,
        too; C{lockf} keeps out Java's, which do not see the other lock.

        @return: releases the lock; a second call does nothing.
        @raise DirectoryLockedError: another broker has it, in this process or another.
        """
        with _storageErrors(path, "open"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryLockedError(
                    path, "lock", "another broker has it", error.errno
                ) from error
            raise storageError(path, "lock", error) from error
        return RealFile(path, descriptor).close


class WriteResult(NamedTuple):
    """
    How far a write came.

    @ivar bufferCount: buffers that are in the file, whole.
    @ivar size: bytes of those.
    @ivar problem: why the write stopped; L{None} on success.
    """

    bufferCount: int
    size: int
    problem: StorageError | None


def writeAll(file: IFile, position: int, buffers: Sequence[bytes], size: int) -> WriteResult:
    """
    Write whole buffers at the end of a file. When a full disk takes fewer bytes, the file is cut
    back at once to the last whole buffer.

    @param position: the end of the file.
    @param size: bytes of all buffers.
    @raise StorageError: the file could not be cut back: it must not be written to any more.
    """
    bufferCount = doneSize = 0
    problem: StorageError | None = None
    while problem is None and bufferCount < len(buffers):
        batch = (
            buffers[bufferCount : bufferCount + BUFFER_COUNT_MAX]
            if len(buffers) > BUFFER_COUNT_MAX or bufferCount
            else buffers
        )
        batchCount = len(batch)
        batchSize = (
            size - doneSize if bufferCount + batchCount == len(buffers) else sum(map(len, batch))
        )
        taken = 0
        try:
            taken = file.writeAt(position + doneSize, batch)
        except StorageError as error:
            problem = error
        if taken != batchSize:
            batchCount, batchSize = _wholePrefix(batch, taken)
            if problem is None and batchCount == 0:
                problem = StorageError(
                    file.path,
                    "write",
                    f"only {taken} bytes of {len(batch[0])} were taken, as on a full disk",
                    errno.ENOSPC,
                )
            file.truncate(position + doneSize + batchSize)
        bufferCount += batchCount
        doneSize += batchSize
    return WriteResult(bufferCount, doneSize, problem)


def _wholePrefix(batch: Sequence[bytes], taken: int) -> tuple[int, int]:
    size = 0
    for count, buffer in enumerate(batch):
        if size + len(buffer) > taken:
            return count, size
        size += len(buffer)
    raise AssertionError("all were taken")


# -- descriptors

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorCache:
    """
    The open files of one log directory.

    @ivar descriptorCountMax: files that may stay open without need.
    """

    def __init__(self, fileSystem: IFileSystem, descriptorCountMax: int) -> None:
        self.fileSystem = fileSystem
        self.descriptorCountMax = descriptorCountMax
        self.openCount = 0
        self._idle: OrderedDict[SegmentFile, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def idleCount(self) -> int:
        return len(self._idle)

    def adopt(self, file: IFile) -> SegmentFile:
        found = SegmentFile(self, file.path, True)
        with self._lock:
            found._file = file
            self.openCount += 1
            self._idle[found] = None
            surplus = self._takeSurplus()
        _closeAll(surplus)
        return found

    def closeIdle(self) -> None:
        with self._lock:
            files = [self._take(found) for found in list(self._idle)]
        _closeAll(files)

    def _takeSurplus(self) -> list[IFile]:
        surplus = []
        while self.openCount > self.descriptorCountMax and self._idle:
            surplus.append(self._take(next(iter(self._idle))))
        return surplus

    def _take(self, found: SegmentFile) -> IFile:
        self._idle.pop(found, None)
        self.openCount -= 1
        file, found._file = found._file, None
        assert file is not None
        return file


def _closeAll(files: list[IFile]) -> None:
    for file in files:
        # Its bytes were synced, or failed with the partition; the descriptor is gone.
        with suppress(StorageError):
            file.close()


class SegmentFile:
    """
    The file of a segment, provider of L{pylogbroker.interfaces.IPinnableFile}.

    @ivar path: its first name; the renaming before a deletion does not change it.
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
        return self._file is not None

    def pin(self) -> bool:
        """Hold the descriptor. Returns L{False}, and holds nothing, if the file is not open."""
        cache = self._cache
        with cache._lock:
            if self._file is None:
                return False
            if self.pinCount == 0:
                del cache._idle[self]
            self.pinCount += 1
        return True

    def unpin(self) -> None:
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
            toClose = [] if self._gone else [self._open()]
            with cache._lock:
                isInUse = not self._gone
                if isInUse:
                    self._file = toClose.pop()
                    self.pinCount = 1
                    cache.openCount += 1
                    toClose = cache._takeSurplus()
        _closeAll(toClose)
        if not isInUse:
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
        file = self._file
        if file is None:
            raise StorageError(self.path, "use", "it is not open", errno.EBADF)
        return file

    def fileno(self) -> int:
        return self.file.fileno()

    def sync(self) -> None:
        """
        C{fsync}, while pinned. Blocks; one at a time.

        @raise StorageError: this sync failed, or an earlier one did. The kernel reports a lost
            write to the first sync only, so a file that failed stays failed.
        """
        with self._syncLock:
            if self._syncFailure is not None:
                raise self._syncFailure
            try:
                self.file.sync()
            except StorageError as error:
                self._syncFailure = error
                raise

    def syncError(self, number: int) -> StorageError | None:
        """
        The error of an C{fsync} that the kernel was asked for, instead of L{sync}; every later
        C{sync} fails with it, too.

        @param number: the system's, or 0.
        """
        if number:
            self._syncFailure = StorageError(self.path, "fsync", os.strerror(number), number)
        return self._syncFailure

    def retire(self) -> bool:
        """
        Take the file out of use: it is not opened again, and the last C{unpin} closes the
        descriptor. Returns whether no pin is left.
        """
        cache = self._cache
        with cache._lock:
            self._gone = True
            if self._file is None or self.pinCount:
                return self.pinCount == 0
            file = cache._take(self)
        _closeAll([file])
        return True

    def __repr__(self) -> str:
        state = "closed" if self._file is None else f"open, {self.pinCount} pins"
        return f"<SegmentFile {self.path} {state}>"
