"""
The watches of all connections.

A one-time watch of data or existence fires with the next change of its node, one of children with
the next child that comes or goes, or with the node's own end. A client that watches both hears of a
node's end once. A persistent watch stays: of one node and its children, or, recursive, of a node
and all below it, without changes of children.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from enum import IntEnum

from pylogbroker.zookeeper.server.datatree import (
    CHILDREN_CHANGED,
    CREATED,
    DATA_CHANGED,
    DELETED,
    DataTree,
    Event,
    parentOf,
)
from pylogbroker.zookeeper.server.requests import SetWatchesRequest


class WatchKind(IntEnum):
    """What a watch sees."""

    CHILDREN = 1
    DATA = 2
    PERSISTENT = 3
    RECURSIVE = 4


_WATCH_SIZE = 400
"""Bytes of memory that a watch takes beside its path, about."""

_ANY_KIND = 3
"""On the wire: a client removes its watches of all kinds."""


class WatchTable(dict[str, dict[Hashable, None]]):
    """The watchers of one kind, by path."""

    def add(self, path: str, watcher: Hashable) -> bool:
        """Returns whether it is new."""
        watchers = self.setdefault(path, {})
        isNew = watcher not in watchers
        watchers[watcher] = None
        return isNew

    def discard(self, path: str, watcher: Hashable) -> bool:
        """Returns whether it was there."""
        watchers = self.get(path, {})
        wasThere = watcher in watchers
        if wasThere:
            del watchers[watcher]
            if not watchers:
                del self[path]
        return wasThere


class Watches:
    """
    All watches of a server. A watcher is a connection.

    @ivar count: of all watches.
    @ivar size: bytes of memory that they take, about.
    """

    def __init__(self) -> None:
        self.count = self.size = 0
        self._tables: dict[WatchKind, WatchTable] = {kind: WatchTable() for kind in WatchKind}
        self._paths: dict[Hashable, dict[tuple[WatchKind, str], None]] = {}
        self._sizes: dict[Hashable, int] = {}

    def countOf(self, watcher: Hashable) -> int:
        return len(self._paths.get(watcher, ()))

    def sizeOf(self, watcher: Hashable) -> int:
        """Bytes of memory that a client's watches take, about."""
        return self._sizes.get(watcher, 0)

    def add(self, kind: WatchKind, path: str, watcher: Hashable) -> None:
        """A second watch of the same is the first."""
        if self._tables[kind].add(path, watcher):
            self.count += 1
            self._paths.setdefault(watcher, {})[kind, path] = None
            self._grow(watcher, _WATCH_SIZE + len(path))

    def _grow(self, watcher: Hashable, size: int) -> None:
        self.size += size
        self._sizes[watcher] = self._sizes.get(watcher, 0) + size

    def _discard(self, kind: WatchKind, path: str, watcher: Hashable) -> bool:
        wasThere = self._tables[kind].discard(path, watcher)
        if wasThere:
            self.count -= 1
            paths = self._paths[watcher]
            del paths[kind, path]
            self._grow(watcher, -_WATCH_SIZE - len(path))
            if not paths:
                del self._paths[watcher], self._sizes[watcher]
        return wasThere

    def remove(self, number: int, path: str, watcher: Hashable, isTest: bool = False) -> bool:
        """
        Remove a client's watches of a path.

        @param number: a L{WatchKind}, or 3 for all kinds.
        @param isTest: remove nothing.
        @return: whether there were some.
        """
        kinds = tuple(WatchKind) if number == _ANY_KIND else (WatchKind(number),)
        if isTest:
            return any((kind, path) in self._paths.get(watcher, ()) for kind in kinds)
        return sum(self._discard(kind, path, watcher) for kind in kinds) > 0

    def removeAll(self, watcher: Hashable) -> None:
        """The connection has ended."""
        for kind, path in list(self._paths.get(watcher, ())):
            self._discard(kind, path, watcher)

    # -- firing

    def fired(self, events: Iterable[Event]) -> Iterator[tuple[Hashable, int, str]]:
        """
        The watchers that hear of changes, with kind and path of what each is told. Their one-time
        watches are gone.
        """
        for kind, path in events:
            yield from self._firedOf(kind, path)

    def _firedOf(self, kind: int, path: str) -> Iterator[tuple[Hashable, int, str]]:
        told = dict.fromkeys(self._taken(WatchKind.DATA, path))
        if kind == DELETED:
            told.update(dict.fromkeys(self._taken(WatchKind.CHILDREN, path)))
        told.update(dict.fromkeys(self._tables[WatchKind.PERSISTENT].get(path, ())))
        told.update(dict.fromkeys(self._recursive(path)))
        for watcher in told:
            yield watcher, kind, path
        if kind != DATA_CHANGED and path != "/":
            parent = parentOf(path)
            told = dict.fromkeys(self._taken(WatchKind.CHILDREN, parent))
            told.update(dict.fromkeys(self._tables[WatchKind.PERSISTENT].get(parent, ())))
            for watcher in told:
                yield watcher, CHILDREN_CHANGED, parent

    def _taken(self, kind: WatchKind, path: str) -> list[Hashable]:
        watchers = list(self._tables[kind].get(path, ()))
        for watcher in watchers:
            self._discard(kind, path, watcher)
        return watchers

    def _recursive(self, path: str) -> Iterator[Hashable]:
        table = self._tables[WatchKind.RECURSIVE]
        while table:
            yield from table.get(path, ())
            if path == "/":
                return
            path = parentOf(path)

    # -- a client that comes back

    def renew(
        self, request: SetWatchesRequest, tree: DataTree, watcher: Hashable
    ) -> Iterator[tuple[int, str]]:
        """
        Set the watches that a client had on another connection.

        @return: kind and path of what has happened meanwhile; these watches are not set.
        """
        for path in request.data:
            node = tree.nodes.get(path)
            if node is None:
                yield DELETED, path
            elif node.mzxid > request.lastZxid:
                yield DATA_CHANGED, path
            else:
                self.add(WatchKind.DATA, path, watcher)
        for path in request.existence:
            if path in tree.nodes:
                yield CREATED, path
            else:
                self.add(WatchKind.DATA, path, watcher)
        for path in request.children:
            node = tree.nodes.get(path)
            if node is None:
                yield DELETED, path
            elif node.pzxid > request.lastZxid:
                yield CHILDREN_CHANGED, path
            else:
                self.add(WatchKind.CHILDREN, path, watcher)
        for path in request.persistent:
            self.add(WatchKind.PERSISTENT, path, watcher)
        for path in request.recursive:
            self.add(WatchKind.RECURSIVE, path, watcher)
