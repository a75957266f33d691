"""
A file system in memory that loses unsynced data when the power is cut.

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

import errno
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from random import Random

from pylogbroker.errors import DirectoryLockedError, PylogbrokerError, StorageError
from pylogbroker.interfaces import FileStatus, IFile

BUFFER_COUNT_MAX = 1024


class PowerLostError(PylogbrokerError):
    """The power is off, or was off since the file was opened."""


class _Node:
    """A file or directory, as programs see it. C{time} is in milliseconds."""

    def __init__(self, time: int) -> None:
        self.time = time


class _FileNode(_Node):
    """
    C{durable} is what the disk has, C{unsynced} what was done since: (position, bytes) for a write,
    (size, None) for a truncation.
    """

    def __init__(self, time: int, data: bytes = b"") -> None:
        super().__init__(time)
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
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self.unsynced.append((position, data))
        if self.descriptor >= 0:
            os.pwrite(self.descriptor, data, position)

    def truncate(self, size: int) -> None:
        _resize(self.data, size, b"\0")
        self.unsynced.append((size, None))
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, size)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.unsynced.clear()

    def survivor(self, random: Random | None, pageSize: int) -> _FileNode:
        if random is None or not self.unsynced:
            return _FileNode(self.time, self.durable)
        data = bytearray(self.durable)
        # Sizes survive in order, up to some point, perhaps inside a write; bytes in no order.
        sizedCount = random.randint(0, len(self.unsynced))
        for i, (position, written) in enumerate(self.unsynced):
            if written is None:
                if i < sizedCount:
                    _resize(data, position, b"\0")
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
        return _FileNode(self.time, bytes(data))


class _DirectoryNode(_Node):
    """
    C{unsynced} has (name, node) for a new name, (old, new) for a rename, (name, None) for a
    removal.
    """

    def __init__(self, time: int) -> None:
        super().__init__(time)
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.unsynced: list[tuple[str, _Node | str | None]] = []

    def change(self, time: int, name: str, to: _Node | str | None) -> None:
        self.time = time
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
        found = _DirectoryNode(self.time)
        for name, node in entries.items():
            assert isinstance(node, _FileNode | _DirectoryNode)
            found.entries[name] = node.survivor(random, pageSize)
        found.durable = dict(found.entries)
        return found


def _apply(entries: dict[str, _Node], name: str, to: _Node | str | None) -> None:
    if isinstance(to, str):
        if name in entries:
            entries[to] = entries.pop(name)
    elif to is None:
        entries.pop(name, None)
    else:
        entries[name] = to


def _resize(data: bytearray, size: int, filler: bytes) -> None:
    del data[size:]
    data.extend(filler * (size - len(data)))


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

    def _enter(self, action: str, changes: bool = True) -> None:
        self._fileSystem._enter(action, self.path, changes, self._generation)
        if not self._isOpen:
            raise _error(self.path, action, errno.EBADF)

    def fileno(self) -> int:
        """A real descriptor, of a memory file with the same bytes; -1 once closed."""
        return self._node.openDescriptor() if self._isOpen else -1

    def writeAt(self, position: int, buffers: Sequence[bytes]) -> int:
        """As C{os.pwritev}."""
        with self._fileSystem._lock:
            self._enter("write")
            if not self._writable:
                raise _error(self.path, "write", errno.EBADF)
            if len(buffers) > BUFFER_COUNT_MAX:
                raise _error(self.path, "write", errno.EINVAL)
            data = b"".join(buffers)
            room = self._fileSystem._room(len(self._node.data) - position)
            if len(data) > room:
                if room <= 0:
                    raise _error(self.path, "write", errno.ENOSPC)
                data = data[:room]
            self._node.write(position, data)
            self._node.time = self._fileSystem.clock()
            return len(data)

    def readAt(self, position: int, size: int) -> bytes:
        """Fewer bytes only at the end."""
        with self._fileSystem._lock:
            self._enter("read", False)
            return bytes(self._node.data[position : position + size])

    def size(self) -> int:
        """Bytes in the file."""
        with self._fileSystem._lock:
            self._enter("stat", False)
            return len(self._node.data)

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""
        with self._fileSystem._lock:
            self._enter("truncate")
            if not self._writable:
                raise _error(self.path, "truncate", errno.EINVAL)
            self._node.truncate(size)
            self._node.time = self._fileSystem.clock()

    def sync(self) -> None:
        """Make the content durable, if its name is."""
        with self._fileSystem._lock:
            self._enter("fsync")
            if self._fileSystem.syncs:
                self._node.sync()

    def close(self) -> None:
        """Sync nothing. May be called twice, and without power."""
        self._isOpen = False


class _Fault:
    def __init__(self, action: str, pathEnd: str, code: int, count: int) -> None:
        self.action = action
        self.pathEnd = pathEnd
        self.code = code
        self.count = count


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

    def __init__(self, clock: Callable[[], int] = lambda: 0, pageSize: int = 512) -> None:
        self.clock = clock
        self.pageSize = pageSize
        self.operationCount = 0
        self.cutAt: int | None = None
        self.sizeMax: int | None = None
        self.syncs = True
        self.generation = 0
        self._faults: list[_Fault] = []
        self._isOff = False
        self._lock = threading.RLock()
        self._locks: set[str] = set()
        self._root = _DirectoryNode(clock())

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
            self._faults.append(_Fault(action, pathEnd, code, count))

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
        node = self._find(path)
        assert isinstance(node, _FileNode), path
        return bytes(node.data)

    # -- what the code under test does

    def _enter(
        self, action: str, path: str, changes: bool = True, generation: int | None = None
    ) -> None:
        if self._isOff or (generation is not None and generation != self.generation):
            raise PowerLostError(f"{action} {path}: the power is off")
        if changes:
            if self.cutAt is not None and self.operationCount >= self.cutAt:
                self._isOff = True
                raise PowerLostError(f"{action} {path}: the power fails here")
            self.operationCount += 1
        for fault in self._faults:
            if fault.count and fault.action == action and path.endswith(fault.pathEnd):
                fault.count -= 1
                raise _error(path, action, fault.code)

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

    def _directory(self, path: str, action: str) -> _DirectoryNode:
        node = self._find(path)
        if node is None:
            raise _error(path, action, errno.ENOENT)
        if not isinstance(node, _DirectoryNode):
            raise _error(path, action, errno.ENOTDIR)
        return node

    def _parent(self, path: str, action: str) -> tuple[_DirectoryNode, str]:
        names = _names(path)
        parent = self._find("/".join(names[:-1]))
        if not isinstance(parent, _DirectoryNode):
            raise _error(path, action, errno.ENOENT if parent is None else errno.ENOTDIR)
        return parent, names[-1]

    def open(self, path: str, *, create: bool = False, write: bool = True) -> IFile:
        """C{create}: it must not exist yet."""
        action = "create" if create else "open"
        with self._lock:
            self._enter(action, path, create)
            parent, name = self._parent(path, action)
            node = parent.entries.get(name)
            if create:
                if node is not None:
                    raise _error(path, action, errno.EEXIST)
                node = _FileNode(self.clock())
                parent.change(self.clock(), name, node)
            if node is None:
                raise _error(path, action, errno.ENOENT)
            if not isinstance(node, _FileNode):
                raise _error(path, action, errno.EISDIR)
            return PowerCutFile(self, path, node, write or create)

    def list(self, path: str) -> list[str]:
        """The names in a directory."""
        with self._lock:
            self._enter("list", path, False)
            return list(self._directory(path, "list").entries)

    def status(self, path: str) -> FileStatus | None:
        """L{None} when nothing is there."""
        with self._lock:
            self._enter("stat", path, False)
            node = self._find(path)
            if node is None:
                return None
            return FileStatus(
                len(node.data) if isinstance(node, _FileNode) else 0,
                node.time,
                isinstance(node, _DirectoryNode),
            )

    def makeDirectories(self, path: str) -> None:
        """With parents; it may exist."""
        with self._lock:
            self._enter("create", path)
            node = self._root
            for name in _names(path):
                found = node.entries.get(name)
                if found is None:
                    found = _DirectoryNode(self.clock())
                    node.change(self.clock(), name, found)
                if not isinstance(found, _DirectoryNode):
                    raise _error(path, "create", errno.EEXIST)
                node = found

    def rename(self, old: str, new: str) -> None:
        """Rename within one directory; the target is replaced."""
        with self._lock:
            self._enter("rename", old)
            parent, oldName = self._parent(old, "rename")
            newParent, newName = self._parent(new, "rename")
            if oldName not in parent.entries:
                raise _error(old, "rename", errno.ENOENT)
            if parent is not newParent:
                raise _error(old, "rename", errno.EXDEV)
            parent.change(self.clock(), oldName, newName)

    def link(self, old: str, new: str) -> None:
        """
        Add a name to a file. Unsynced changes may survive under one name and not under the other.
        """
        with self._lock:
            self._enter("link", new)
            node = self._find(old)
            parent, name = self._parent(new, "link")
            if not isinstance(node, _FileNode):
                raise _error(new, "link", errno.ENOENT if node is None else errno.EPERM)
            if name in parent.entries:
                raise _error(new, "link", errno.EEXIST)
            parent.change(self.clock(), name, node)

    def remove(self, path: str) -> None:
        """Unlink a file."""
        with self._lock:
            self._enter("remove", path)
            parent, name = self._parent(path, "remove")
            node = parent.entries.get(name)
            if not isinstance(node, _FileNode):
                raise _error(path, "remove", errno.ENOENT if node is None else errno.EISDIR)
            parent.change(self.clock(), name, None)

    def removeDirectory(self, path: str) -> None:
        """One that is empty."""
        with self._lock:
            self._enter("remove", path)
            parent, name = self._parent(path, "remove")
            node = self._directory(path, "remove")
            if node.entries:
                raise _error(path, "remove", errno.ENOTEMPTY)
            parent.change(self.clock(), name, None)

    def setModified(self, path: str, modifiedMs: int) -> None:
        """Set a file's time."""
        with self._lock:
            self._enter("set the time of", path)
            node = self._find(path)
            if node is None:
                raise _error(path, "set the time of", errno.ENOENT)
            node.time = modifiedMs

    def syncDirectory(self, path: str) -> None:
        """Make the names in a directory durable, and removals; not the content of files."""
        with self._lock:
            self._enter("fsync", path)
            node = self._directory(path, "fsync")
            if self.syncs:
                node.sync()

    def lock(self, path: str) -> Callable[[], None]:
        """Released by the holder, by a power cut, and by a kill."""
        with self._lock:
            self._enter("lock", path)
            parent, name = self._parent(path, "lock")
            if name not in parent.entries:
                parent.change(self.clock(), name, _FileNode(self.clock()))
            if path in self._locks:
                raise DirectoryLockedError(path, "lock", "another broker has it", errno.EAGAIN)
            self._locks.add(path)
            generation = self.generation

        def release() -> None:
            with self._lock:
                if generation == self.generation:
                    self._locks.discard(path)

        return release


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _sizeOf(node: _Node) -> int:
    if isinstance(node, _DirectoryNode):
        return sum(map(_sizeOf, node.entries.values()))
    assert isinstance(node, _FileNode)
    return len(node.data)


def _error(path: str, action: str, code: int) -> StorageError:
    return StorageError(path, action, os.strerror(code), code)
