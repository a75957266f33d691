"""
A store in memory, which is restored from its changelog at each start. A module of its own, since
jobs choose between it and L{pylogbroker.tasks.state.rocksdbengine}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Self
from weakref import WeakSet

from pylogbroker.tasks.state.engines import ChangelogMark


class MemoryEngine:
    """
    An L{IStoreEngine<pylogbroker.tasks.state.engines.IStoreEngine>} over a dictionary. Keys are
    sorted by the first C{range} after a write that adds or deletes one.
    """

    def __init__(self) -> None:
        self.mark: ChangelogMark | None = None
        self.size = 0
        self._entries: dict[bytes, bytes] = {}
        self._sorted: list[bytes] = []
        self._added: list[bytes] = []  # keys that are not in C{_sorted} yet
        self._isWithDeleted = False  # whether C{_sorted} has keys that are gone
        self._ranges: WeakSet[_Range] = WeakSet()

    def get(self, key: bytes) -> bytes | None:
        """See the interface."""
        return self._entries.get(key)

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See the interface; a write copies what is left of it (not the bytes)."""
        keys = self._sortedKeys()
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        found = _Range(self._entries, keys, first, last)
        self._ranges.add(found)
        return found

    def _sortedKeys(self) -> list[bytes]:
        if self._isWithDeleted:
            self._sorted = [key for key in self._sorted if key in self._entries]
            added = self._entries.keys() & self._added
            self._added = list(added.difference(self._sorted))
            self._isWithDeleted = False
        if self._added:  # two sorted runs, which sort() merges
            self._sorted = [*self._sorted, *sorted(self._added)]
            self._sorted.sort()
            self._added = []
        return self._sorted

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], mark: ChangelogMark) -> None:
        """See the interface."""
        held = self._entries
        entries = list(entries)
        for each in list(self._ranges):
            each.copy()
        self._ranges.clear()
        for key, value in entries:
            old = held.get(key)
            if old is not None:
                self.size -= len(key) + len(old)
            elif value is not None:
                self._added.append(key)
            if value is not None:
                held[key] = value
                self.size += len(key) + len(value)
            elif old is not None:
                del held[key]
                self._isWithDeleted = True
        self.mark = mark

    def clear(self) -> None:
        """See the interface."""
        for each in list(self._ranges):
            each.end()
        self._ranges.clear()
        self.mark = None
        self.size = 0
        self._entries = {}
        self._sorted, self._added = [], []
        self._isWithDeleted = False

    def close(self) -> None:
        """The entries are gone."""
        self.clear()


class _Range:
    """An iteration over entries as they are, until something is written."""

    def __init__(
        self, entries: dict[bytes, bytes], keys: list[bytes], place: int, end: int
    ) -> None:
        self._entries, self._keys, self._place, self._end = entries, keys, place, end

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        if self._place >= self._end:
            raise StopIteration
        key = self._keys[self._place]
        self._place += 1
        return key, self._entries[key]

    def copy(self) -> None:
        """Keep what is left."""
        self._keys = self._keys[self._place : self._end]
        self._entries = {key: self._entries[key] for key in self._keys}
        self._place, self._end = 0, len(self._keys)

    def end(self) -> None:
        """The entries are gone."""
        self._end = 0
