"""
A store of a task in Spark's state store. A module of its own, since it needs no Spark to be tried.

Each call is a round trip to the JVM, some tenths of a millisecond: what
L{KeyValueStore<pylogbroker.tasks.state.keyvaluestore.KeyValueStore>} caches above it costs nothing.
Spark gives the entries of a map in no order. So a C{range} reads all entries of the task, and keeps
them for the rest of the micro-batch if they are not too large; then reading costs nothing either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.memoryengine import MemoryEngine

_MARK = ChangelogMark(bytes(16), 0)
"""Spark's checkpoint says what a store has, so no mark is kept."""


class IMapState(Protocol):
    """What is used of C{pyspark.sql.streaming.stateful_processor.MapState}."""

    def exists(self) -> bool: ...

    def getValue(self, key: tuple[bytes]) -> tuple[bytes] | None: ...

    def updateValue(self, key: tuple[bytes], value: tuple[bytes]) -> None: ...

    def removeKey(self, key: tuple[bytes]) -> None: ...

    def iterator(self) -> Iterator[tuple[tuple[bytes], tuple[bytes]]]: ...


class MapStateEngine:
    """
    An L{IStoreEngine<pylogbroker.tasks.state.engines.IStoreEngine>} over a map of the state store,
    for one task and one micro-batch. What is written belongs to the micro-batch: Spark keeps it
    when all of it has succeeded.

    @ivar size: bytes of keys and values, as far as they are known.
    """

    mark: ChangelogMark | None = None

    def __init__(self, state: IMapState, copySizeMax: int) -> None:
        """
        @param copySizeMax: bytes of keys and values up to which a C{range} keeps all entries.
        """
        self._state = state
        self._copySizeMax = copySizeMax
        self._copy: MemoryEngine | None = None

    @property
    def size(self) -> int:
        """See the class."""
        return 0 if self._copy is None else self._copy.size

    def get(self, key: bytes) -> bytes | None:
        """See the interface."""
        if self._copy is not None:
            return self._copy.get(key)
        found = self._state.getValue((key,))
        return None if found is None else bytes(found[0])

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See the interface; the entries of the range are in memory."""
        if self._copy is not None:
            return self._copy.range(start, end)
        wanted: list[tuple[bytes, bytes]] = []
        copy: MemoryEngine | None = MemoryEngine()
        for (rawKey,), (rawValue,) in self._state.iterator() if self._state.exists() else ():
            key, value = bytes(rawKey), bytes(rawValue)
            if copy is not None:
                copy.write([(key, value)], _MARK)
                if copy.size > self._copySizeMax:
                    copy = None
            if (start is None or key >= start) and (end is None or key < end):
                wanted.append((key, value))
        self._copy = copy
        return iter(sorted(wanted))

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], mark: ChangelogMark) -> None:
        """See the interface; the mark is not kept."""
        for key, value in entries:
            if value is None:
                self._state.removeKey((key,))
            else:
                self._state.updateValue((key,), (value,))
            if self._copy is not None:
                self._copy.write([(key, value)], mark)
                if self._copy.size > self._copySizeMax:
                    self._copy = None

    def clear(self) -> None:
        """See the interface."""
        for (key,), _value in list(self._state.iterator()) if self._state.exists() else ():
            self._state.removeKey((key,))
        self._copy = None

    def close(self) -> None:
        """The copy is given up."""
        self._copy = None
