"""
A store in memory, which is restored from its changelog at each start. A module of its own, since
jobs choose between it and L{pylogbroker.tasks.state.rocksdbengine}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

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
        self._sorted: list[bytes] | None = []
        self._clearCount = 0  # a range of earlier entries ends

    def get(self, key: bytes) -> bytes | None:
        """See the interface."""
        return self._entries.get(key)

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See the interface; the entries of the range are copied (not their bytes)."""
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        keys = self._sorted
        first = 0 if start is None else bisect_left(keys, start)
        last = len(keys) if end is None else bisect_left(keys, end)
        return self._iterate([(key, self._entries[key]) for key in keys[first:last]])

    def _iterate(self, found: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        clearCount = self._clearCount
        for entry in found:
            if self._clearCount != clearCount:
                return
            yield entry

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], mark: ChangelogMark) -> None:
        """See the interface."""
        held = self._entries
        for key, value in list(entries):
            old = held.get(key)
            if (old is None) != (value is None):
                self._sorted = None
            if old is not None:
                self.size -= len(key) + len(old)
            if value is not None:
                held[key] = value
                self.size += len(key) + len(value)
            elif old is not None:
                del held[key]
        self.mark = mark

    def clear(self) -> None:
        """See the interface."""
        self._clearCount += 1
        self.mark = None
        self.size = 0
        self._entries = {}
        self._sorted = []

    def close(self) -> None:
        """The entries are gone."""
        self.clear()
