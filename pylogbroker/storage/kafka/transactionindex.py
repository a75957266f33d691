"""
The aborted transactions of a segment, in Kafka's C{.txnindex}: what a reader of committed records
leaves out. A module of its own, since compaction and tools read it without a log.

The file has an entry of 34 bytes for each aborted transaction, in the order of their markers. It is
made when the first one comes, and can be rebuilt from the segment. Entries are in memory, too:
aborted transactions are few, and a fetch must not wait for a file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.storage.kafka.checkpoints import readSmallFile, replaceFile

SUFFIX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


def transactionPath(segmentPath: str, segmentSuffix: str) -> str:
    """The C{.txnindex} beside a segment."""
    return segmentPath.removesuffix(segmentSuffix) + SUFFIX


class AbortedTransaction(NamedTuple):
    """
    An aborted transaction in one partition.

    @ivar firstOffset: of its first record.
    @ivar lastOffset: of its end marker.
    @ivar lastStableOffset: everything below is decided, as of the end marker.
    """

    producerId: int
    firstOffset: int
    lastOffset: int
    lastStableOffset: int


class TransactionIndex:
    """
    The aborted transactions of a segment.

    @ivar path: of the file, which is missing while there are none.
    @ivar entries: ascending by C{lastOffset}.
    """

    def __init__(self, path: str, entries: Iterable[AbortedTransaction] = ()) -> None:
        self.path = path
        self.entries = list(entries)
        self._savedCount = len(self.entries)

    @classmethod
    def load(cls, fileSystem: IFileSystem, path: str) -> TransactionIndex:
        """
        Read the file. Blocks.

        @raise CorruptLogError: it is no such file.
        """
        data = readSmallFile(fileSystem, path) or b""
        if len(data) % _ENTRY.size:
            raise CorruptLogError(path, "read", f"its {len(data)} bytes are not whole entries")
        entries = []
        last = -1
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            if version != _VERSION or entry.lastOffset <= last:
                raise CorruptLogError(path, "read", f"version {version}, {entry} behind {last}")
            last = entry.lastOffset
            entries.append(entry)
        return cls(path, entries)

    @property
    def isSaved(self) -> bool:
        return self._savedCount == len(self.entries)

    def add(self, entry: AbortedTransaction) -> None:
        self.entries.append(entry)

    def save(self, fileSystem: IFileSystem) -> None:
        """Write the file durably if entries came since. Blocks; C{add} may run meanwhile."""
        entries = tuple(self.entries)
        if len(entries) != self._savedCount:
            data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)
            replaceFile(fileSystem, self.path, data)
            self._savedCount = len(entries)

    def remove(self, fileSystem: IFileSystem) -> None:
        """Remove the file, if there is one. Blocks."""
        if fileSystem.status(self.path) is not None:
            fileSystem.remove(self.path)

    def collect(self, startOffset: int, endOffset: int, found: list[AbortedTransaction]) -> bool:
        """
        Add the aborted transactions that concern a reader of a range.

        @param endOffset: behind the range.
        @return: whether no later segment can have more.
        """
        for entry in self.entries:
            if entry.lastOffset >= startOffset and entry.firstOffset < endOffset:
                found.append(entry)
            if entry.lastStableOffset >= endOffset:
                return True
        return False
