"""
The files of this machine, behind L{pylogbroker.interfaces.IFileSystem}.

Thin on purpose: one system call a method, and every C{OSError} becomes a L{StorageError} that names the file and the action, so that no C{OSError}
ever leaves the room. Nothing here is durable until C{sync} or C{syncDirectory} has returned; the callers know the order.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence

from pylogbroker.errors import DirectoryLockedError, StorageError
from pylogbroker.interfaces import FileStatus, IFile

_FILE_MODE = 0o644


def storageError(path: str, action: str, error: OSError) -> StorageError:
    """The L{StorageError} that an C{OSError} becomes."""
    return StorageError(path, action, error.strerror or str(error), error.errno)


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
        Gather-write at most 1,024 buffers.

        @return: bytes written, which may be fewer than given.
        @raise StorageError: nothing may be assumed about what was written.
        """
        try:
            return os.pwritev(self._descriptor, buffers, position)
        except OSError as error:
            raise storageError(self.path, "write", error) from error

    def readAt(self, position: int, size: int) -> bytes:
        """Up to C{size} bytes; fewer only at the end of the file."""
        try:
            data = os.pread(self._descriptor, size, position)
            if 0 < len(data) < size:
                parts = [data]
                missing = size - len(data)
                while missing:
                    more = os.pread(self._descriptor, missing, position + size - missing)
                    if not more:
                        break
                    parts.append(more)
                    missing -= len(more)
                data = b"".join(parts)
            return data
        except OSError as error:
            raise storageError(self.path, "read", error) from error

    def size(self) -> int:
        """Bytes in the file."""
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise storageError(self.path, "stat", error) from error

    def truncate(self, size: int) -> None:
        """Cut the file, or fill it up with zero bytes."""
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise storageError(self.path, "truncate", error) from error

    def sync(self) -> None:
        """C{fsync}: data and metadata. Never repeat one that failed: the kernel may have dropped the bytes and report success."""
        if self._descriptor < 0:  # for which Python has a ValueError
            raise StorageError(self.path, "fsync", os.strerror(errno.EBADF), errno.EBADF)
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise storageError(self.path, "fsync", error) from error

    def close(self) -> None:
        """Give the descriptor back. Twice does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError as error:
                raise storageError(self.path, "close", error) from error


class RealFileSystem:
    """The files of this machine, provider of L{pylogbroker.interfaces.IFileSystem}."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> IFile:
        """
        Open a file.

        @param create: it must not exist yet, and is made.
        @param write: for reading and writing, not for reading alone.
        """
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        try:
            return RealFile(path, os.open(path, flags | os.O_CLOEXEC, _FILE_MODE))
        except OSError as error:
            raise storageError(path, "create" if create else "open", error) from error

    def list(self, path: str) -> list[str]:
        """The names in a directory, in no order."""
        try:
            return os.listdir(path)
        except OSError as error:
            raise storageError(path, "list", error) from error

    def status(self, path: str) -> FileStatus | None:
        """Size, time, kind; L{None} when nothing is there."""
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
        """With parents; it may exist."""
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise storageError(path, "create", error) from error

    def rename(self, old: str, new: str) -> None:
        """Atomic; what had the new name is replaced."""
        try:
            os.rename(old, new)
        except OSError as error:
            raise storageError(old, "rename", error) from error

    def link(self, old: str, new: str) -> None:
        """A second name for a file; nothing may have it yet."""
        try:
            os.link(old, new)
        except OSError as error:
            raise storageError(new, "link", error) from error

    def remove(self, path: str) -> None:
        """Unlink a file."""
        try:
            os.unlink(path)
        except OSError as error:
            raise storageError(path, "remove", error) from error

    def removeDirectory(self, path: str) -> None:
        """One that is empty."""
        try:
            os.rmdir(path)
        except OSError as error:
            raise storageError(path, "remove", error) from error

    def setModified(self, path: str, modifiedMs: int) -> None:
        """Set the time of the last modification, milliseconds since the epoch."""
        try:
            os.utime(path, ns=(modifiedMs * 1_000_000, modifiedMs * 1_000_000))
        except OSError as error:
            raise storageError(path, "set the time of", error) from error

    def syncDirectory(self, path: str) -> None:
        """C{fsync} of a directory."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storageError(path, "fsync", error) from error

    def lock(self, path: str) -> Callable[[], None]:
        """
        C{flock} a file, exclusively and without waiting. The file stays: removing it would let two hold locks on two files of one name.

        @return: what releases it; called twice does nothing.
        @raise DirectoryLockedError: somebody else has it, in this process or another.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise storageError(path, "open", error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryLockedError(
                    path, "lock", "another broker has it", error.errno
                ) from error
            raise storageError(path, "lock", error) from error
        held = RealFile(path, descriptor)
        return held.close
