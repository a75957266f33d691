"""
What a store asks of the engine that keeps its entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol


class ChangelogMark(NamedTuple):
    """
    How much of its changelog a store holds: all of the partition before the offset.

    @ivar topicId: of the changelog, 16 bytes: a topic that is created again has another one.
    @ivar offset: the first one that the store may lack.
    """

    topicId: bytes
    offset: int


class IStoreEngine(Protocol):
    """
    Entries by key, in the order of the keys' bytes, and the mark that belongs to them.

    An engine blocks, and is used by one thread at a time. Each method raises L{StorageError} when
    the files fail; its text names the directory.

    @ivar mark: L{None}: there are no entries; restore from the changelog's beginning.
    @ivar size: bytes on disk (an estimate), or of keys and values in memory.
    """

    @property
    def mark(self) -> ChangelogMark | None:
        """See the class."""

    @property
    def size(self) -> int:
        """See the class."""

    def get(self, key: bytes) -> bytes | None:
        """
        @return: the value, which may be empty; L{None}: there is no such key.
        """

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """
        The entries at the time of the call, by key: later writes do not show. C{clear} and C{close}
        end the iteration.

        @param start: the first key; L{None}: from the beginning.
        @param end: the key behind the last one; L{None}: to the end.
        """

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], mark: ChangelogMark) -> None:
        """
        Write entries and mark in one batch: after a crash there are all, or none.

        @param entries: L{None} deletes a key, which need not be there. The last one of a key
            counts.
        """

    def clear(self) -> None:
        """Remove all entries, and the mark."""

    def close(self) -> None:
        """Release the files; a second call does nothing."""


def closeEngines(engines: dict[str, IStoreEngine]) -> None:
    """Close them all, by name, and forget them. Blocks."""
    for engine in engines.values():
        engine.close()
    engines.clear()
