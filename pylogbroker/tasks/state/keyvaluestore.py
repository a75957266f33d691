"""
A task's store of keys and values: serdes, and what is not committed yet, over an engine.

What must be true:

  - A task sees its own writes at once; the engine has only what was committed.
  - What was written since the last commit is bounded: the container commits when
  L{KeyValueStore.dirtySize} is at its limit.
  - What a message has written can be taken back, until the next message (C{onError=skip}).

Keys are in order of their bytes: text by code point, negative numbers behind positive ones. The
first range sorts the keys that are not committed; from then on each new one is put in its place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, Generic, TypeVar

from pylogbroker.errors import RecordTooLargeError
from pylogbroker.records.batchbuilder import RECORD_OVERHEAD_MAX
from pylogbroker.tasks.serdes import Serde
from pylogbroker.tasks.state.engines import ChangelogMark, IStoreEngine

K = TypeVar("K")
V = TypeVar("V")

ENTRY_OVERHEAD = 100
"""Bytes that an entry costs in the cache beside those of key and value, about."""

_MISSING: Any = object()

Entry = tuple[bytes, bytes | None]
"""An encoded key and value; L{None}: deleted."""


class KeyValueStore(Generic[K, V]):
    """
    A store, as Samza's. Not thread-safe.

    @ivar name: in the job.
    @ivar dirtySize: bytes that are not committed, with L{ENTRY_OVERHEAD}.
    @ivar size: bytes in the engine, when it was measured last.
    """

    def __init__(
        self,
        name: str,
        keySerde: Serde,
        valueSerde: Serde,
        engine: IStoreEngine,
        cacheSize: int,
        recordSizeMax: float = inf,
    ) -> None:
        """
        @param cacheSize: bytes of committed values that are kept in memory to be read again.
        @param recordSizeMax: bytes of an entry as a record of the changelog; see
            L{recordSizeMax<pylogbroker.records.batchbuilder.recordSizeMax>}.
        """
        self.name = name
        self.dirtySize = self.size = 0
        self._encodeKey, self._decodeKey = keySerde.encode, keySerde.decode
        self._encodeValue, self._decodeValue = valueSerde.encode, valueSerde.decode
        self._engine = engine
        self._dirty: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] | None = None  # its keys; None: there was no range yet
        self._clean: dict[bytes, bytes | None] = {}
        self._cleanSize = 0
        self._cacheSize = cacheSize
        self._entrySizeMax = recordSizeMax - RECORD_OVERHEAD_MAX
        self._undo: dict[bytes, Any] = {}  # what stood in C{_dirty} at L{begin}

    def __repr__(self) -> str:
        return f"<KeyValueStore {self.name}, {len(self._dirty)} entries not committed>"

    # -- for the task

    def get(self, key: K) -> V | None:
        """
        @return: L{None}: there is none.
        @raise EncodingError: the key is none of the store's serde.
        @raise InvalidPayloadError: the value that is stored is none of the store's serde.
        @raise StorageError: the store cannot be read.
        """
        data = self._encodeKey(key)
        value = self._dirty.get(data, _MISSING)
        if value is _MISSING:
            value = self._clean.get(data, _MISSING)
            if value is _MISSING:
                value = self._engine.get(data)
                self._keep(data, value)
        return None if value is None else self._decodeValue(value)

    def put(self, key: K, value: V | None) -> None:
        """
        @param value: L{None} deletes the key, as in Samza.
        @raise EncodingError: key or value is none of the store's serdes.
        @raise RecordTooLargeError: the changelog's producer does not take so large an entry.
        """
        self._set(self._encodeKey(key), None if value is None else self._encodeValue(value))

    def putAll(self, entries: Iterable[tuple[K, V | None]]) -> None:
        """As L{put}, for each."""
        for key, value in entries:
            self.put(key, value)

    def delete(self, key: K) -> None:
        """Without effect for a key that is not there."""
        self._set(self._encodeKey(key), None)

    def range(self, start: K | None, end: K | None) -> Iterator[tuple[K, V]]:
        """
        Entries in the order of their keys' bytes, as they are now: later writes do not show.

        @param start: the first key; L{None}: from the beginning.
        @param end: the first key that is not wanted any more; L{None}: to the end.
        @raise EncodingError: a key is none of the store's serde.
        """
        first = None if start is None else self._encodeKey(start)
        last = None if end is None else self._encodeKey(end)
        keys = self._sortedKeys()
        low = 0 if first is None else bisect_left(keys, first)
        high = len(keys) if last is None else bisect_left(keys, last)
        mine = [(key, self._dirty[key]) for key in keys[low:high]]
        return self._merge(self._engine.range(first, last), mine)

    def first(self, start: K, end: K | None) -> tuple[K, V] | None:
        """
        The first entry of a L{range}, without the rest. Not for a range in which much was deleted
        since the last commit: it is passed over one by one.

        @return: L{None}: the range is empty.
        """
        first = self._encodeKey(start)
        last = None if end is None else self._encodeKey(end)
        keys = self._sortedKeys()
        stored = self._engine.range(first, last)
        found = next(((key, value) for key, value in stored if key not in self._dirty), None)
        behind = last if found is None else found[0]
        for place in range(bisect_left(keys, first), len(keys)):
            key = keys[place]
            if behind is not None and key >= behind:
                break
            value = self._dirty[key]
            if value is not None:
                found = key, value
                break
        return None if found is None else (self._decodeKey(found[0]), self._decodeValue(found[1]))

    def _sortedKeys(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._dirty)
        return self._sorted

    def all(self) -> Iterator[tuple[K, V]]:
        """All entries; see L{range}."""
        return self.range(None, None)

    def _merge(
        self, stored: Iterator[tuple[bytes, bytes]], mine: list[Entry]
    ) -> Iterator[tuple[K, V]]:
        place = 0
        for key, value in stored:
            while place < len(mine) and mine[place][0] < key:
                yield from self._decoded(*mine[place])
                place += 1
            if place < len(mine) and mine[place][0] == key:
                yield from self._decoded(*mine[place])
                place += 1
            else:
                yield from self._decoded(key, value)
        for entry in mine[place:]:
            yield from self._decoded(*entry)

    def _decoded(self, key: bytes, value: bytes | None) -> Iterator[tuple[K, V]]:
        if value is not None:
            yield self._decodeKey(key), self._decodeValue(value)

    # -- the cache

    def _set(self, key: bytes, value: bytes | None) -> None:
        size = len(key) if value is None else len(key) + len(value)
        if size > self._entrySizeMax:
            raise RecordTooLargeError(
                f"store {self.name}: an entry of {size:,} bytes: max.request.size of the producer"
                f" allows {self._entrySizeMax:,} for its changelog"
            )
        before = self._dirty.get(key, _MISSING)
        self._undo.setdefault(key, before)
        self._replace(key, before, value)

    def _replace(self, key: bytes, before: Any, value: Any) -> None:
        if before is not _MISSING:
            self.dirtySize -= self._sizeOf(key, before)
        if value is _MISSING:
            del self._dirty[key]
            if self._sorted is not None:
                del self._sorted[bisect_left(self._sorted, key)]
        else:
            if before is _MISSING and self._sorted is not None:
                insort(self._sorted, key)
            self._dirty[key] = value
            self.dirtySize += self._sizeOf(key, value)

    @staticmethod
    def _sizeOf(key: bytes, value: bytes | None) -> int:
        return ENTRY_OVERHEAD + len(key) + (0 if value is None else len(value))

    def _keep(self, key: bytes, value: bytes | None) -> None:
        self._cleanSize += self._sizeOf(key, value)
        if self._cleanSize > self._cacheSize:
            self._clean.clear()
            self._cleanSize = self._sizeOf(key, value)
        self._clean[key] = value

    # -- for the container

    @property
    def mark(self) -> ChangelogMark | None:
        """The engine's."""
        return self._engine.mark

    def begin(self) -> None:
        """A message is begun: L{rollBack} goes back to here."""
        self._undo.clear()

    def rollBack(self) -> None:
        """Take back all writes since L{begin}."""
        for key, before in self._undo.items():
            self._replace(key, self._dirty.get(key, _MISSING), before)
        self._undo.clear()

    def changes(self) -> list[Entry]:
        """What is to be committed, each key once."""
        return list(self._dirty.items())

    def commit(self, changes: list[Entry], mark: ChangelogMark) -> None:
        """
        Write what L{changes} gave to the engine, with the changelog's mark behind it. May block.
        Nothing may be written meanwhile.

        @raise StorageError: the engine cannot be written: it is given up, and restored.
        """
        self._engine.write(changes, mark)
        self.measure()
        self._undo.clear()
        for key, value in changes:
            stale = self._clean.pop(key, _MISSING)
            if stale is not _MISSING:
                self._cleanSize -= self._sizeOf(key, stale)
            self._keep(key, value)
        self._dirty.clear()
        if self._sorted is not None:
            self._sorted = []
        self.dirtySize = 0

    def measure(self) -> None:
        """Set L{size}. May block."""
        self.size = self._engine.size
