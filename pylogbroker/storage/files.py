"""
The files of this machine, behind L{pylogbroker.interfaces.IFileSystem}: one system call a method.

Every C{OSError} becomes a L{StorageError} that names the file and the action; none leaves the room.
Nothing is durable until C{sync} or C{syncDirectory} has returned; the callers know the order.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pylogbroker.errors import DirectoryLockedError, StorageError
from pylogbroker.interfaces import FileStatus, IFile

BUFFER_COUNT_MAX = 1024
"""Buffers of one vectored write: IOV_MAX on Linux."""

_FILE_MODE = 0o644


def storageError(path: str, action: str, error: OSError) -> StorageError:
    """The L{StorageError} that an C{OSError} becomes."""
    return StorageError(path, action, error.strerror or str(error), error.errno)


@contextmanager
def _storageErrors(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storageError(path, action, error) from error


class RealFile:
    """
    An open file, provider of L{IFile}.

    @ivar path: as it was opened.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor; -1 once closed."""
        return self._descriptor

    def writeAt(self, position: int, buffers: Sequence[bytes]) -> int:
        """
        Write at most L{BUFFER_COUNT_MAX} buffers.

        @return: bytes written, perhaps fewer than given.
        @raise StorageError: what was written is unknown.
        """
        try:
            return os.pwritev(self._descriptor, buffers, position)
        except OSError as error:
            raise storageError(self.path, "write", error) from error

    def readAt(self, position: int, size: int) -> bytes:
        """Up to C{size} bytes; fewer only at the end of the file."""
        parts = []
        with _storageErrors(self.path, "read"):
            while size and (part := os.pread(self._descriptor, size, position)):
                parts.append(part)
                position += len(part)
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        """Bytes in the file."""
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
        with _storageErrors(self.path, "fsync"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _storageErrors(self.path, "close"):
                os.close(descriptor)


class RealFileSystem:
    """The files of this machine, provider of L{pylogbroker.interfaces.IFileSystem}."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> IFile:
        """
        Open a file.

        @param create: the file must not exist yet.
        @param write: for reading and writing, not for reading alone.
        """
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        with _storageErrors(path, "create" if create else "open"):
            return RealFile(path, os.open(path, flags | os.O_CLOEXEC, _FILE_MODE))

    def list(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        with _storageErrors(path, "list"):
            return os.listdir(path)

    def status(self, path: str) -> FileStatus | None:
        """Size, time, kind; L{None}: no such file."""
        with _storageErrors(path, "stat"):
            try:
                found = os.stat(path)
            except FileNotFoundError:
                return None
        return FileStatus(
            found.st_size, found.st_mtime_ns // 1_000_000, stat.S_ISDIR(found.st_mode)
        )

    def makeDirectories(self, path: str) -> None:
        """With parents; it may exist."""
        with _storageErrors(path, "create"):
            os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file of the new name."""
        with _storageErrors(old, "rename"):
            os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """A second name for a file; the name must be free."""
        with _storageErrors(new, "link"):
            os.link(old, new)

    def remove(self, path: str) -> None:
        """Unlink a file."""
        with _storageErrors(path, "remove"):
            os.unlink(path)

    def removeDirectory(self, path: str) -> None:
        """An empty one."""
        with _storageErrors(path, "remove"):
            os.rmdir(path)

    def setModified(self, path: str, modifiedMs: int) -> None:
        """Set the time of the last modification, milliseconds since the epoch."""
        with _storageErrors(path, "set the time of"):
            os.utime(path, ns=(modifiedMs * 1_000_000, modifiedMs * 1_000_000))

    def syncDirectory(self, path: str) -> None:
        """C{fsync} of a directory."""
        with _storageErrors(path, "fsync"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def lock(self, path: str) -> Callable[[], None]:
        """
        C{flock} a file, exclusively and without waiting. The file stays: if it were removed, two
        brokers could lock two files of one name.

        @return: what releases the lock; a second call does nothing.
        @raise DirectoryLockedError: another broker has it, in this process or another.
        """
        with _storageErrors(path, "open"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    @ivar problem: why the write stopped; L{None}: all buffers are in the file.
    """

    bufferCount: int
    size: int
    problem: StorageError | None


def writeAll(file: IFile, position: int, buffers: Sequence[bytes], size: int) -> WriteResult:
    """
    Write whole buffers at the end of a file. A vectored write may take fewer bytes than given: that
    is how a disk becomes full. Then the file is cut back at once to the last whole buffer.

    @param position: the end of the file.
    @param size: bytes of all buffers.
    @return: the file ends behind the buffers that are counted.
    @raise StorageError: the file could not be cut back: nothing may be written to it any more.
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
    """How many whole buffers C{taken} bytes hold, which are not all, and their size."""
    size = 0
    for count, buffer in enumerate(batch):
        if size + len(buffer) > taken:
            return count, size
        size += len(buffer)
    raise AssertionError("all were taken")
