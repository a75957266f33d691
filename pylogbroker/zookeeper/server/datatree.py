"""
The tree of nodes, and the sessions: what a ZooKeeper server knows. Pure: transactions in, events
out.

A node is a value that a change replaces. So a copy of the dictionary of nodes is a snapshot that
later changes do not touch, which a worker thread can write, and a transaction of several changes is
undone by putting the old values back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from pylogbroker.zookeeper.server.jute import Acl
from pylogbroker.zookeeper.server.requests import NodeStat
from pylogbroker.zookeeper.server.transactions import (
    Change,
    CloseSession,
    CreateNode,
    CreateSession,
    DeleteNode,
    SetAcl,
    SetData,
    Several,
    Transaction,
)

K = TypeVar("K", int, str)

CONTAINER_OWNER = -(1 << 63)
"""The owner of a container: a node that goes when its last child has gone."""

OPEN_ACLS = (Acl(31, "world", "anyone"),)
READABLE_ACLS = (Acl(1, "world", "anyone"),)

SYSTEM_PATHS = ("/zookeeper", "/zookeeper/config", "/zookeeper/quota")
"""Nodes that every ZooKeeper server has from its beginning."""

CREATED, DELETED, DATA_CHANGED, CHILDREN_CHANGED = 1, 2, 3, 4
"""Kinds of L{Event}, as on the wire."""

_NODE_SIZE = 600
"""Bytes of memory that a node takes beside its path, data and a list of one entry, about."""

_ACL_SIZE = 300
"""Bytes of memory that a further entry of its list takes, beside the identity."""

_SHARED_ACLS_COUNT_MAX = 10_000


class Event(NamedTuple):
    """
    A change of a node, for watches.

    @ivar kind: L{CREATED}, L{DELETED} or L{DATA_CHANGED}; a change of the children follows from
        the other events.
    """

    kind: int
    path: str


class Node(NamedTuple):
    """
    One node. Times are milliseconds since the epoch.

    @ivar createdCount: children that were ever created: the next sequence number.
    @ivar pzxid: the last transaction that created or deleted a child.
    @ivar azxid: the last transaction that set the access control list.
    """

    data: bytes | None
    acls: tuple[Acl, ...]
    owner: int
    czxid: int
    mzxid: int
    pzxid: int
    azxid: int
    ctimeMs: int
    mtimeMs: int
    version: int
    createdCount: int
    aversion: int

    @property
    def isEphemeral(self) -> bool:
        return self.owner not in (0, CONTAINER_OWNER)

    @property
    def zxid(self) -> int:
        """The last transaction that a reader of the node sees something of."""
        return max(self.mzxid, self.pzxid, self.azxid)


class Session(NamedTuple):
    """A client's session; the server knows when it ends."""

    timeoutMs: int
    password: bytes


def parentOf(path: str) -> str:
    """The path of a node's parent."""
    return path[: path.rfind("/")] or "/"


def nameOf(path: str) -> str:
    """A node's name within its parent."""
    return path[path.rfind("/") + 1 :]


class DataTree:
    """
    @ivar zxid: the last transaction that was applied.
    @ivar nodes: by path.
    @ivar sessions: by number.
    @ivar size: bytes of memory that the nodes take, about.
    """

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Node] = {"/": _systemNode(OPEN_ACLS)}
        self.sessions: dict[int, Session] = {}
        self.size = 0
        self._children: dict[str, dict[str, None]] = {}
        self._descendantCounts: dict[str, int] = {}
        self._owned: dict[int, dict[str, None]] = {}
        self._undo: list[tuple[str, Node | None]] = []
        self._sharedAcls: dict[tuple[Acl, ...], tuple[Acl, ...]] = {}
        for path in SYSTEM_PATHS:
            isConfig = path == "/zookeeper/config"
            self._put(path, _systemNode(READABLE_ACLS if isConfig else OPEN_ACLS))

    @classmethod
    def restored(
        cls, zxid: int, nodes: Iterable[tuple[str, Node]], sessions: Iterable[tuple[int, Session]]
    ) -> DataTree:
        """A tree of a snapshot."""
        tree = cls()
        tree.zxid = zxid
        tree.sessions = dict(sessions)
        for path, node in nodes:
            tree._put(path, node._replace(acls=tree._shared(node.acls)))
        return tree

    # -- reading

    def children(self, path: str) -> list[str]:
        """The names of a node's children."""
        return list(self._children.get(path, ()))

    def childCount(self, path: str) -> int:
        return len(self._children.get(path, ()))

    def ephemerals(self, sessionId: int) -> list[str]:
        """The paths of a session's nodes."""
        return list(self._owned.get(sessionId, ()))

    def descendantCount(self, path: str) -> int:
        """How many nodes are below a node."""
        return self._descendantCounts.get(path, 0)

    def ephemeralCount(self) -> int:
        return sum(map(len, self._owned.values()))

    def stat(self, path: str) -> NodeStat:
        """@raise KeyError: there is no such node."""
        node = self.nodes[path]
        count = len(self._children.get(path, ()))
        return NodeStat(
            node.czxid,
            node.mzxid,
            node.ctimeMs,
            node.mtimeMs,
            node.version,
            2 * node.createdCount - count,
            node.aversion,
            node.owner,
            len(node.data or b""),
            count,
            node.pzxid,
        )

    def emptyContainers(self) -> Iterator[str]:
        """Containers that had children and have none."""
        for path in self._owned.get(CONTAINER_OWNER, ()):
            if self.nodes[path].createdCount and not self._children.get(path):
                yield path

    # -- changes

    def apply(self, transaction: Transaction, zxid: int, timeMs: int) -> list[Event]:
        """
        Make a change that L{pylogbroker.zookeeper.server.changes} has found possible.

        @param zxid: the one behind C{self.zxid}.
        @raise KeyError: the change does not fit to the tree: it is of another log.
        """
        if zxid != self.zxid + 1:
            raise KeyError(f"transaction {zxid} behind {self.zxid}")
        changes: Iterable[Change] = ()
        if isinstance(transaction, CreateSession):
            self.sessions[transaction.sessionId] = Session(
                transaction.timeoutMs, transaction.password
            )
        elif isinstance(transaction, CloseSession):
            self.sessions.pop(transaction.sessionId, None)
            changes = map(DeleteNode, self.ephemerals(transaction.sessionId))
        elif isinstance(transaction, Several):
            changes = transaction.changes
        else:
            changes = (transaction,)
        events = [self.change(each, zxid, timeMs) for each in changes]
        self.commit(zxid)
        return [each for each in events if each is not None]

    def change(self, change: Change, zxid: int, timeMs: int) -> Event | None:
        """
        Make one of the changes of a transaction, which L{commit} or L{rollBack} ends.

        @return: L{None}: no watch sees it.
        @raise KeyError: as L{apply}.
        """
        path = change.path
        if isinstance(change, CreateNode):
            parentPath = parentOf(path)
            parent = self.nodes[parentPath]
            self._replace(
                path,
                Node(
                    change.data,
                    self._shared(change.acls),
                    change.owner,
                    czxid=zxid,
                    mzxid=zxid,
                    pzxid=zxid,
                    azxid=0,
                    ctimeMs=timeMs,
                    mtimeMs=timeMs,
                    version=0,
                    createdCount=0,
                    aversion=0,
                ),
            )
            self._replace(
                parentPath, parent._replace(pzxid=zxid, createdCount=parent.createdCount + 1)
            )
            return Event(CREATED, path)
        node = self.nodes[path]
        if isinstance(change, DeleteNode):
            parentPath = parentOf(path)
            self._replace(path, None)
            self._replace(parentPath, self.nodes[parentPath]._replace(pzxid=zxid))
            return Event(DELETED, path)
        if isinstance(change, SetData):
            self._replace(
                path,
                node._replace(
                    data=change.data, version=node.version + 1, mzxid=zxid, mtimeMs=timeMs
                ),
            )
            return Event(DATA_CHANGED, path)
        assert isinstance(change, SetAcl)
        acls = self._shared(change.acls)
        self._replace(path, node._replace(acls=acls, aversion=node.aversion + 1, azxid=zxid))
        return None

    def commit(self, zxid: int) -> None:
        """The changes since the last commit are transaction C{zxid}."""
        self._undo.clear()
        self.zxid = zxid

    def rollBack(self) -> None:
        """Undo the changes since the last commit."""
        for path, node in reversed(self._undo):
            self._put(path, node)
        self._undo.clear()

    def _replace(self, path: str, node: Node | None) -> None:
        self._undo.append((path, self.nodes.get(path)))
        self._put(path, node)

    def _shared(self, acls: tuple[Acl, ...]) -> tuple[Acl, ...]:
        """One tuple for all nodes with equal lists."""
        if len(self._sharedAcls) >= _SHARED_ACLS_COUNT_MAX:
            self._sharedAcls.clear()
        return self._sharedAcls.setdefault(acls, acls)

    def _put(self, path: str, node: Node | None) -> None:
        old = self.nodes.get(path)
        if node is not None:
            self.nodes[path] = node
        else:
            del self.nodes[path]
        if old is None and node is not None:
            self.size += _NODE_SIZE + 2 * len(path)
            _add(self._children, parentOf(path), nameOf(path))
            self._countDescendants(path, 1)
            if node.owner:
                _add(self._owned, node.owner, path)
        elif old is not None and node is None:
            self.size -= _NODE_SIZE + 2 * len(path)
            _remove(self._children, parentOf(path), nameOf(path))
            self._countDescendants(path, -1)
            if old.owner:
                _remove(self._owned, old.owner, path)
        if old is not None and node is not None and old.acls is node.acls:  # the usual change
            self.size += len(node.data or b"") - len(old.data or b"")
            return
        self.size += _contentSize(node) if node is not None else 0
        self.size -= _contentSize(old) if old is not None else 0

    def _countDescendants(self, path: str, change: int) -> None:
        """A node has come or gone: count it in all nodes above."""
        counts = self._descendantCounts
        while path != "/":
            path = parentOf(path)
            count = counts.get(path, 0) + change
            if count:
                counts[path] = count
            else:
                del counts[path]


def _contentSize(node: Node) -> int:
    size = len(node.data or b"") + _ACL_SIZE * max(len(node.acls) - 1, 0)
    return size + sum(len(each.identity) for each in node.acls)


def _systemNode(acls: tuple[Acl, ...]) -> Node:
    return Node(b"", acls, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def _add(table: dict[K, dict[str, None]], key: K, name: str) -> None:
    table.setdefault(key, {})[name] = None


def _remove(table: dict[K, dict[str, None]], key: K, name: str) -> None:
    names = table[key]
    del names[name]
    if not names:
        del table[key]
