"""
A file of metadata changes that survives a power cut at any moment.

The file C{metadata.journal} begins with L{MAGIC}; then comes an entry for each change: the size of
its data (4 bytes), CRC-32 of the data (4 bytes), the data. L{MetadataStore.append} returns when an
entry is synced. Only the last entry can be torn, since each is synced before the next is written;
so a torn end is cut off, and a bad entry with a whole one behind it is an error, which names the
byte.

Above L{SNAPSHOT_SIZE_MIN}, and when the file is four times as large as the last snapshot, the next
append writes a new file with a snapshot instead: it is written under another name, synced, renamed,
and the directory is synced. A cut in between leaves the old file or the new one.

A disk that is full takes a part of an entry. That part is cut off at once, so that the journal is
as before (C{isCertain}) and the next append may succeed. After any later failure it is unknown what
the disk has, before the file is opened anew.

The data may hold secrets, such as the keys of users: only the owner of the file may read it. One
that others may read, as earlier versions made it, is closed to them when it is opened.

What the data mean is the caller's business (L{pylogbroker.cluster.metadataimage}).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import IFile, IFileSystem
from pylogbroker.storage.files import writeAll

JOURNAL_NAME = "metadata.journal"
MOVED_JOURNAL_NAME = "metadata.journal.moved"
"""The journal of a broker whose metadata are in ZooKeeper now."""

MAGIC = b"pylogbroker metadata 1\n"
SNAPSHOT_SIZE_MIN = 1 << 20
ENTRY_SIZE_MAX = 64 << 20

_HEAD = struct.Struct(">II")


def _entry(data: bytes) -> bytes:
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


class MetadataStore:
    """
    The journal; the module states its rules. All methods block; calls must not overlap.

    @ivar size: bytes in the file.
    @ivar isCertain: whether the disk has what C{append} said. After a failure: whether the journal
        is as it was before.
    """

    def __init__(self, fileSystem: IFileSystem, directory: str) -> None:
        """@param directory: exists, and belongs to this process alone."""
        self.path = f"{directory}/{JOURNAL_NAME}"
        self.size = 0
        self.isCertain = True
        self._directory = directory
        self._fileSystem = fileSystem
        self._file: IFile | None = None
        self._snapshotSize = 0

    def open(self) -> list[bytes]:
        """
        Open the journal, or create it.

        @return: the data of all changes, in order.
        @raise CorruptLogError: the file is no journal, or an entry in its midst is bad.
        @raise pylogbroker.errors.StorageError: it cannot be read, cut or synced.
        """
        if self._fileSystem.status(self.path) is None:
            self._replace([])
            return []
        file = self._fileSystem.open(self.path, isPrivate=True)
        try:
            data = file.readAt(0, file.size())
            found, end = self._parse(data)
            if end < len(data):
                file.truncate(end)
            file.sync()
        except BaseException:
            file.close()
            raise
        self._file = file
        self.size = end
        self._snapshotSize = len(MAGIC) + sum(_HEAD.size + len(each) for each in found[:1])
        return found

    def _parse(self, data: bytes) -> tuple[list[bytes], int]:
        if not data.startswith(MAGIC):
            raise CorruptLogError(self.path, "read", "it does not begin as a metadata journal")
        found: list[bytes] = []
        position = len(MAGIC)
        while position + _HEAD.size <= len(data):
            size, checksum = _HEAD.unpack_from(data, position)
            body = data[position + _HEAD.size : position + _HEAD.size + size]
            if len(body) < size or zlib.crc32(body) != checksum or not size:
                if self._hasEntryBehind(data, position):
                    raise CorruptLogError(
                        self.path,
                        "read",
                        f"the entry at byte {position} is damaged, and whole ones are behind it",
                    )
                break
            found.append(body)
            position += _HEAD.size + size
        return found, position

    @staticmethod
    def _hasEntryBehind(data: bytes, position: int) -> bool:
        """Whether a whole entry follows a damaged one whose size may be right."""
        size, _ = _HEAD.unpack_from(data, position)
        behind = position + _HEAD.size + size
        if not size or behind + _HEAD.size > len(data):
            return False
        size, checksum = _HEAD.unpack_from(data, behind)
        body = data[behind + _HEAD.size : behind + _HEAD.size + size]
        return bool(0 < size == len(body) and zlib.crc32(body) == checksum)

    def append(self, data: bytes, snapshot: Callable[[], Iterable[bytes]]) -> None:
        """
        Make a change durable.

        @param snapshot: called when the file is to be replaced; gives the data of a few changes
            that stand for all, this one included.
        @raise ValueError: the change has no data, or more than L{ENTRY_SIZE_MAX} bytes.
        @raise pylogbroker.errors.StorageError: it is not there, if C{isCertain}; otherwise that is
            unknown, and the store must be opened anew.
        """
        if not 0 < len(data) <= ENTRY_SIZE_MAX:
            raise ValueError(f"a change of {len(data)} bytes; 1 to {ENTRY_SIZE_MAX} are possible")
        assert self._file is not None
        entry = _entry(data)
        if self.size + len(entry) > max(SNAPSHOT_SIZE_MIN, 4 * self._snapshotSize):
            self._replace(snapshot())
            return
        self.isCertain = False
        problem = writeAll(self._file, self.size, [entry], len(entry)).problem
        if problem is not None:
            self.isCertain = True
            raise problem
        self._file.sync()
        self.size += len(entry)
        self.isCertain = True

    def _replace(self, changes: Iterable[bytes]) -> None:
        content = MAGIC + b"".join(map(_entry, changes))
        temporary = self.path + ".tmp"
        if self._fileSystem.status(temporary) is not None:
            self._fileSystem.remove(temporary)
        with closing(self._fileSystem.open(temporary, create=True, isPrivate=True)) as file:
            problem = writeAll(file, 0, [content], len(content)).problem
            if problem is not None:
                raise problem
            file.sync()
        self.isCertain = False
        self._fileSystem.rename(temporary, self.path)
        self._fileSystem.syncDirectory(self._directory)
        self.close()
        self._file = self._fileSystem.open(self.path)
        self.size = self._snapshotSize = len(content)
        self.isCertain = True

    def close(self) -> None:
        """A second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
