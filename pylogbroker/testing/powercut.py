"""
A file system in memory that loses unsynced data when the power is cut. A module of its own, since
the tests of everything that writes files stand on it.

It keeps two states: what programs see, and what the disk has. A write, a truncation, a new, renamed
or removed name is in the first at once, and in the second after C{sync} of the file, or
C{syncDirectory} of the directory. C{cutPower} throws the first away.

Given a C{random.Random}, each unsynced change survives or not by itself, as on disks that reorder:
pieces of C{pageSize} bytes of a write, the growth of a file without its bytes, a truncation, a
name. Real file systems mostly keep the order of names. A rename is all or nothing.

C{cutAt} names the operation before which the power fails. From then on every call raises
L{PowerLostError}, which is no L{StorageError}, so that no code handles it as a disk error. C{fail}
plants errors. C{sizeMax} makes the disk full, with short writes.

Files have real descriptors on request (C{fileno}), for C{sendfile}.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import (
    EAGAIN,
    EBADF,
    EEXIST,
    EINVAL,
    EISDIR,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    ENOTEMPTY,
    EPERM,
    EXDEV,
)
from random import Random

from pylogbroker.errors import DirectoryLockedError, PylogbrokerError
from pylogbroker.interfaces import FileStatus, IFile
from pylogbroker.storage.files import BUFFER_COUNT_MAX, storageError

Clock = Callable[[], int]


class PowerLostError(PylogbrokerError):
    """The power is off, or was off since the file was opened."""


class _FileNode:
    """
    A file. C{data} is what programs see, C{durable} what the disk has, C{unsynced} what was done
    since: (position, bytes) for a write, (size, None) for a truncation. C{time} is in milliseconds.
    """

    def __init__(self, clock: Clock, data: bytes = b"") -> None:
        self.clock = clock
        self.time = clock()
        self.data = bytearray(data)
        self.durable = bytes(data)
        self.unsynced: list[tuple[int, bytes | None]] = []
        self.descriptor = -1

    def openDescriptor(self) -> int:
        if self.descriptor < 0:
            self.descriptor = os.memfd_create("powercut", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, self.descriptor)
            os.pwrite(self.descriptor, self.data, 0)
        return self.descriptor

    def write(self, position: int, data: bytes) -> None:
        _resize(self.data, max(position, len(self.data)))
        self.data[position : position + len(data)] = data
        self.unsynced.append((position, data))
        self.time = self.clock()
        if self.descriptor >= 0:
            os.pwrite(self.descriptor, data, position)

    def truncate(self, size: int) -> None:
        _resize(self.data, size)
        self.unsynced.append((size, None))
        self.time = self.clock()
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.unsynced.clear()

    def survivor(self, random: Random | None, pageSize: int) -> _FileNode:
        data = bytearray(self.durable)
        if random is not None and self.unsynced:
            self._survive(data, random, pageSize)
        found = _FileNode(self.clock, bytes(data))
        found.time = self.time
        return found

    def _survive(self, data: bytearray, random: Random, pageSize: int) -> None:
        """Sizes survive in order, up to some point, perhaps inside a write; bytes in no order."""
        sizedCount = random.randint(0, len(self.unsynced))
        for i, (position, written) in enumerate(self.unsynced):
            if written is None:
                if i < sizedCount:
                    _resize(data, position)
                continue
            end = position + len(written)
            if i <= sizedCount and end > len(data):
                filler = bytes([random.choice((0, 0, random.randrange(256)))])
                _resize(data, end if i < sizedCount else random.randint(len(data), end), filler)
            for start in range(0, len(written), pageSize):
                if random.random() < 0.5:
                    room = max(0, len(data) - position - start)
                    piece = written[start : start + min(pageSize, room)]
                    data[position + start : position + start + len(piece)] = piece


class _DirectoryNode:
    """
    A directory, with the states of L{_FileNode}. C{unsynced} has (name, node) for a new name,
    (old, new) for a rename, (name, None) for a removal.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.time = clock()
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.unsynced: list[tuple[str, _Node | str | None]] = []

    def change(self, name: str, to: _Node | str | None) -> None:
        self.time = self.clock()
        self.unsynced.append((name, to))
        _apply(self.entries, name, to)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def survivor(self, random: Random | None, pageSize: int) -> _DirectoryNode:
        entries = dict(self.durable)
        for name, to in self.unsynced:
            if random is not None and random.random() < 0.5:
                _apply(entries, name, to)
        found = _DirectoryNode(self.clock)
        found.time = self.time
        for name, node in entries.items():
            found.entries[name] = node.survivor(random, pageSize)
        found.sync()
        return found


_Node = _FileNode | _DirectoryNode


def _apply(entries: dict[str, _Node], name: str, to: _Node | str | None) -> None:
    if isinstance(to, str):
        if name in entries:
            entries[to] = entries.pop(name)
    elif to is None:
        entries.pop(name, None)
    else:
        entries[name] = to


def _resize(data: bytearray, size: int, filler: bytes = b"\0") -> None:
    del data[size:]
    data.extend(filler * (size - len(data)))


def _sizeOf(node: _Node) -> int:
    if isinstance(node, _DirectoryNode):
        return sum(map(_sizeOf, node.entries.values()))
    return len(node.data)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _systemError(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def _require(isPossible: bool, code: int) -> None:
    """Fail the operation with one of the system's numbers unless it is possible."""
    if not isPossible:
        raise _systemError(code)


class PowerCutFile:
    """An open file of a L{PowerCutFileSystem}, provider of L{IFile}."""

    def __init__(
        self, fileSystem: PowerCutFileSystem, path: str, node: _FileNode, writable: bool
    ) -> None:
        self.path = path
        self._fileSystem = fileSystem
        self._generation = fileSystem.generation
        self._isOpen = True
        self._node = node
        self._writable = writable

    @contextmanager
    def _operation(self, action: str, changes: bool = True) -> Iterator[None]:
        with self._fileSystem._operation(action, self.path, changes, self._generation):
            _require(self._isOpen, EBADF)
            yield

    def fileno(self) -> int:
        """A real descriptor, of a memory file with the same bytes; -1 once closed."""
        return self._node.openDescriptor() if self._isOpen else -1

    def writeAt(self, position: int, buffers: Sequence[bytes]) -> int:
        """As C{os.pwritev}."""
        with self._operation("write"):
            _require(self._writable, EBADF)
            _require(len(buffers) <= BUFFER_COUNT_MAX, EINVAL)
            data = b"".join(buffers)
            room = self._fileSystem._room(len(self._node.data) - position)
            _require(room > 0 or not data, ENOSPC)
            data = data[:room]
            self._node.write(position, data)
            return len(data)

    def readAt(self, position: int, size: int) -> bytes:
        """Fewer bytes only at the end."""
        with self._operation("read", False):
            return bytes(self._node.data[position : position + size])

    def size(self) -> int:
        """Bytes in the file."""
        with self._operation("stat", False):
            return len(self._node.data)

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        with self._operation("truncate"):
            _require(self._writable, EINVAL)
            self._node.truncate(size)

    def sync(self) -> None:
        """Make the content durable, if its name is."""
        with self._operation("fsync"):
            if self._fileSystem.syncs:
                self._node.sync()

    def close(self) -> None:
        """Sync nothing. May be called twice, and without power."""
        self._isOpen = False


class PowerCutFileSystem:
    """
    Provider of L{pylogbroker.interfaces.IFileSystem}. Paths are absolute. Thread-safe.

    @ivar clock: milliseconds since the epoch, for the times of files.
    @ivar pageSize: bytes of a write that survive together or not.
    @ivar operationCount: operations so far that change or sync something.
    @ivar cutAt: the power fails before the operation with this number, counted from 0; L{None}:
        never.
    @ivar sizeMax: bytes of all files together; L{None}: any number.
    @ivar syncs: L{False}: C{sync} and C{syncDirectory} do nothing; for tests of tests.
    @ivar generation: how often all open files became useless.
    """

    def __init__(self, clock: Clock = lambda: 0, pageSize: int = 512) -> None:
        self.clock = clock
        self.pageSize = pageSize
        self.operationCount = 0
        self.cutAt: int | None = None
        self.sizeMax: int | None = None
        self.syncs = True
        self.generation = 0
        self._faults: Counter[tuple[str, str, int]] = Counter()
        self._isOff = False
        self._lock = threading.RLock()
        self._locks: set[str] = set()
        self._root = _DirectoryNode(clock)

    # -- what tests do

    def cutPower(self, random: Random | None = None) -> None:
        """
        Forget what was not synced, and switch the power on again. Open files are useless, locks are
        free.

        @param random: lets unsynced changes survive by chance; L{None}: none does.
        """
        with self._lock:
            self._root = self._root.survivor(random, self.pageSize)
            self.cutAt = None
            self.kill()

    def kill(self) -> None:
        """
        C{kill -9}: open files are useless, locks are free, and everything that was written is
        there. If the power had failed at C{cutAt}, the process died there instead.
        """
        with self._lock:
            self.generation += 1
            self._locks.clear()
            if self._isOff:
                self._isOff = False
                self.cutAt = None

    def fail(self, action: str, pathEnd: str, code: int, count: int = 1) -> None:
        """
        Let operations fail, without effect.

        @param action: as in L{StorageError.action}: C{"create"}, C{"open"}, C{"write"}, C{"read"},
            C{"stat"}, C{"truncate"}, C{"fsync"}, C{"list"}, C{"rename"}, C{"link"}, C{"remove"},
            C{"set the time of"} or C{"lock"}.
        @param pathEnd: the end of their paths.
        @param code: C{errno.EIO} …
        @param count: how often.
        """
        with self._lock:
            self._faults[action, pathEnd, code] += count

    def mend(self) -> None:
        """Remove all planted failures."""
        with self._lock:
            self._faults.clear()

    @property
    def usedSize(self) -> int:
        """Bytes of all files that have a name."""
        with self._lock:
            return _sizeOf(self._root)

    def contents(self, path: str) -> bytes:
        """A file's bytes, as programs see them. Counts as no operation, works without power."""
        return bytes(self._file(path).data)

    # -- what the code under test does

    @contextmanager
    def _operation(
        self, action: str, path: str, changes: bool = True, generation: int | None = None
    ) -> Iterator[None]:
        with self._lock:
            if self._isOff or generation not in (None, self.generation):
                raise PowerLostError(f"{action} {path}: the power is off")
            if changes:
                if self.cutAt is not None and self.operationCount >= self.cutAt:
                    self._isOff = True
                    raise PowerLostError(f"{action} {path}: the power fails here")
                self.operationCount += 1
            try:
                for fault, count in self._faults.items():
                    planned, pathEnd, code = fault
                    if count and planned == action and path.endswith(pathEnd):
                        self._faults[fault] -= 1
                        raise _systemError(code)
                yield
            except OSError as error:
                raise storageError(path, action, error) from error

    def _room(self, inPlaceSize: int) -> int:
        if self.sizeMax is None:
            return 1 << 62
        return max(0, inPlaceSize) + max(0, self.sizeMax - self.usedSize)

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for name in _names(path):
            if not isinstance(node, _DirectoryNode):
                return None
            node = node.entries.get(name)
        return node

    def _file(self, path: str, otherwise: int = EISDIR) -> _FileNode:
        node = self._find(path)
        if not isinstance(node, _FileNode):
            raise _systemError(ENOENT if node is None else otherwise)
        return node

    def _directory(self, path: str) -> _DirectoryNode:
        node = self._find(path)
        if not isinstance(node, _DirectoryNode):
            raise _systemError(ENOENT if node is None else ENOTDIR)
        return node

    def _parent(self, path: str) -> tuple[_DirectoryNode, str]:
        *names, name = _names(path)
        return self._directory("/".join(names)), name

    def open(
        self, path: str, *, create: bool = False, write: bool = True, isPrivate: bool = False
    ) -> IFile:
        """C{create}: it must not exist yet. There are no others to be kept from a file."""
        with self._operation("create" if create else "open", path, create):
            parent, name = self._parent(path)
            if create:
                _require(name not in parent.entries, EEXIST)
                parent.change(name, _FileNode(self.clock))
            return PowerCutFile(self, path, self._file(path), write or create)

    def list(self, path: str) -> list[str]:
        """The names in a directory."""
        with self._operation("list", path, False):
            return list(self._directory(path).entries)

    def status(self, path: str) -> FileStatus | None:
        """L{None} when nothing is there."""
        with self._operation("stat", path, False):
            node = self._find(path)
            if node is None:
                return None
            isDirectory = isinstance(node, _DirectoryNode)
            return FileStatus(0 if isDirectory else _sizeOf(node), node.time, isDirectory)

    def makeDirectories(self, path: str) -> None:
        """With parents; it may exist."""
        with self._operation("create", path):
            node = self._root
            for name in _names(path):
                if name not in node.entries:
                    node.change(name, _DirectoryNode(self.clock))
                found = node.entries[name]
                if not isinstance(found, _DirectoryNode):
                    raise _systemError(EEXIST)
                node = found

    def rename(self, old: str, new: str) -> None:
        """Rename within one directory; the target is replaced."""
        with self._operation("rename", old):
            parent, oldName = self._parent(old)
            newParent, newName = self._parent(new)
            _require(oldName in parent.entries, ENOENT)
            _require(parent is newParent, EXDEV)
            parent.change(oldName, newName)

    def link(self, old: str, new: str) -> None:
        """
        Add a name to a file. Unsynced changes may survive under one name and not under the other.
        """
        with self._operation("link", new):
            parent, name = self._parent(new)
            node = self._file(old, EPERM)
            _require(name not in parent.entries, EEXIST)
            parent.change(name, node)

    def remove(self, path: str) -> None:
        """Unlink a file."""
        with self._operation("remove", path):
            parent, name = self._parent(path)
            self._file(path)
            parent.change(name, None)

    def removeDirectory(self, path: str) -> None:
        """One that is empty."""
        with self._operation("remove", path):
            parent, name = self._parent(path)
            _require(not self._directory(path).entries, ENOTEMPTY)
            parent.change(name, None)

    def setModified(self, path: str, modifiedMs: int) -> None:
        """Set a file's time."""
        with self._operation("set the time of", path):
            node = self._find(path)
            if node is None:
                raise _systemError(ENOENT)
            node.time = modifiedMs

    def syncDirectory(self, path: str) -> None:
        """Make the names in a directory durable, and removals; not the content of files."""
        with self._operation("fsync", path):
            node = self._directory(path)
            if self.syncs:
                node.sync()

    def lock(self, path: str) -> Callable[[], None]:
        """Released by the holder, by a power cut, and by a kill."""
        with self._operation("lock", path):
            parent, name = self._parent(path)
            if name not in parent.entries:
                parent.change(name, _FileNode(self.clock))
            if path in self._locks:
                raise DirectoryLockedError(path, "lock", "another broker has it", EAGAIN)
            self._locks.add(path)
            generation = self.generation

        def release() -> None:
            with self._lock:
                if generation == self.generation:
                    self._locks.discard(path)

        return release
