"""
The handlers of all requests of a session: reads from the tree, changes, watches, credentials. It is
a module of its own, so that the server is sessions and life, and this the table of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pylogbroker.errors import WireError
from pylogbroker.zookeeper.server.changes import (
    ADMINISTER,
    READ,
    Client,
    RefusedError,
    prepare,
    requireAccess,
    requireNode,
    requireValidPath,
)
from pylogbroker.zookeeper.server.datatree import DataTree
from pylogbroker.zookeeper.server.jute import (
    Acl,
    encodeAcls,
    encodeBuffer,
    encodeInt,
    encodeString,
    encodeStrings,
)
from pylogbroker.zookeeper.server.requests import (
    NO_RESULT,
    AuthRequest,
    CreateRequest,
    KeeperCode,
    MultiRequest,
    OpCode,
    ReadRequest,
    Request,
    SetWatchesRequest,
    WatchRequest,
    encodeOperations,
)
from pylogbroker.zookeeper.server.transactionlog import TRANSACTION_SIZE_MAX
from pylogbroker.zookeeper.server.transactions import (
    Change,
    CreateNode,
    DeleteNode,
    Several,
    encodeTransaction,
)
from pylogbroker.zookeeper.server.watches import Watches, WatchKind

if TYPE_CHECKING:
    from pylogbroker.zookeeper.server.connection import ZookeeperConnection
    from pylogbroker.zookeeper.server.service import ZookeeperServer

WATCH_MODES = (WatchKind.PERSISTENT, WatchKind.RECURSIVE)
"""By their numbers on the wire."""

RESULTS_SIZE_MAX = 16 << 20
"""Bytes that one request for several reads gives; a large node may be named 50,000 times."""

_SMALL_SIZE = 100
"""Bytes of an answer without text or data, at most."""


class RequestHandler:
    """The requests of all connections of a server."""

    def __init__(self, server: ZookeeperServer) -> None:
        self._server = server
        self._readers: dict[OpCode, Callable[[ZookeeperConnection, Any], tuple[int, bytes]]] = {
            OpCode.EXISTS: self._exists,
            OpCode.GET_DATA: self._getData,
            OpCode.GET_ACL: self._getAcl,
            OpCode.GET_CHILDREN: self._getChildren,
            OpCode.GET_CHILDREN2: self._getChildren2,
            OpCode.SYNC: self._sync,
            OpCode.MULTI_READ: self._readSeveral,
            OpCode.GET_EPHEMERALS: self._getEphemerals,
            OpCode.GET_ALL_CHILDREN_NUMBER: self._countDescendants,
            OpCode.WHO_AM_I: self._whoAmI,
            OpCode.SET_WATCHES: self._setWatches,
            OpCode.SET_WATCHES2: self._setWatches,
            OpCode.ADD_WATCH: self._addWatch,
            OpCode.CHECK_WATCHES: self._checkWatches,
            OpCode.REMOVE_WATCHES: self._removeWatches,
        }

    @property
    def _tree(self) -> DataTree:
        return self._server.tree

    @property
    def _watches(self) -> Watches:
        return self._server.watches

    def handle(
        self, connection: ZookeeperConnection, xid: int, opCode: OpCode, request: Request
    ) -> None:
        """
        Carry out a request, and answer it.

        @raise WireError: it costs its connection.
        """
        read = self._readers.get(opCode)
        try:
            if read is not None:
                zxid, body = read(connection, request)
                connection.answer(xid, zxid, body=body)
            elif opCode == OpCode.MULTI:
                assert isinstance(request, MultiRequest)
                self._changeSeveral(connection, xid, request)
            elif opCode == OpCode.AUTH:
                assert isinstance(request, AuthRequest)
                self._authenticate(connection, xid, request)
            else:
                self._change(connection, xid, opCode, request)
        except RefusedError as error:
            # What it was refused for may be on its way to the disk, as the node that exists.
            connection.answer(xid, self._tree.zxid, error.code)

    def answerSize(self, connection: ZookeeperConnection, number: int, request: Request) -> int:
        """Bytes of a request's answer, about, or more."""
        tree = self._tree
        if isinstance(request, MultiRequest):
            return sum(self.answerSize(connection, each[0], each[1]) for each in request.operations)
        if isinstance(request, CreateRequest):
            return _SMALL_SIZE + len(request.path)
        if not isinstance(request, ReadRequest) or request.path not in tree.nodes:
            return _SMALL_SIZE
        if number == OpCode.GET_DATA:
            return _SMALL_SIZE + len(tree.nodes[request.path].data or b"")
        if number in (OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2):
            return _SMALL_SIZE + _listSize(tree.children(request.path))
        if number == OpCode.GET_EPHEMERALS:
            return _listSize(tree.ephemerals(connection.client.sessionId))
        return _SMALL_SIZE + len(request.path)

    # -- changes

    def _change(
        self, connection: ZookeeperConnection, xid: int, opCode: OpCode, request: Request
    ) -> None:
        server = self._server
        sizeMax = server.settings.treeSizeMax
        change = prepare(self._tree, request, connection.client, sizeMax)
        if change is None:
            connection.answer(xid, self._tree.zxid)
            return
        zxid = server.propose(change)
        connection.answer(xid, zxid, body=self._result(opCode, request, change), isWrite=True)

    def _result(self, opCode: OpCode, request: Request, change: Change) -> bytes:
        """The body of a change's response, behind the change."""
        if isinstance(change, CreateNode):
            assert isinstance(request, CreateRequest)
            stat = self._tree.stat(change.path).encode() if request.returnsStat else b""
            return encodeString(change.path) + stat
        if isinstance(change, DeleteNode):
            return b""
        return self._tree.stat(change.path).encode()

    def _changeSeveral(
        self, connection: ZookeeperConnection, xid: int, request: MultiRequest
    ) -> None:
        """All changes, or none: then each operation has an error, which is 0 before the bad one."""
        server, tree = self._server, self._tree
        zxid, nowMs = tree.zxid + 1, server.nowMs()
        changes: list[Change] = []
        events = []
        results: list[tuple[int, int, bytes]] = []
        try:
            for opCode, operation in request.operations:
                sizeMax = server.settings.treeSizeMax
                change = prepare(tree, operation, connection.client, sizeMax)
                body = b""
                if change is not None:
                    event = tree.change(change, zxid, nowMs)
                    events += [] if event is None else [event]
                    changes.append(change)
                    body = self._result(opCode, operation, change)
                if opCode == OpCode.CREATE_CONTAINER:
                    opCode = OpCode.CREATE2  # as ZooKeeper; its clients know no other
                results.append((opCode, 0, body))
            encoded = encodeTransaction(Several(tuple(changes)))
            if len(encoded) > TRANSACTION_SIZE_MAX:
                results.clear()
                raise RefusedError(
                    KeeperCode.BAD_ARGUMENTS, f"a transaction of {len(encoded)} bytes"
                )
        except RefusedError as error:
            tree.rollBack()
            done = len(results)
            left = len(request.operations) - done - 1
            failed = [
                *((NO_RESULT, KeeperCode.OK, b"") for _ in range(done)),
                (NO_RESULT, error.code, b""),
                *((NO_RESULT, KeeperCode.RUNTIME_INCONSISTENCY, b"") for _ in range(left)),
            ]
            connection.answer(xid, tree.zxid, body=encodeOperations(failed))
            return
        except BaseException:
            tree.rollBack()
            raise
        if not changes:
            connection.answer(xid, tree.zxid, body=encodeOperations(results))
            return
        tree.commit(zxid)
        server.log(zxid, nowMs, encoded, events)
        connection.answer(xid, zxid, body=encodeOperations(results), isWrite=True)

    # -- reads

    def _watch(self, connection: ZookeeperConnection, kind: WatchKind, path: str) -> None:
        self._watches.add(kind, path, connection)
        self._requireWatchRoom(connection)

    def _requireWatchRoom(self, connection: ZookeeperConnection) -> None:
        watches, settings = self._watches, self._server.settings
        count, size = watches.countOf(connection), watches.sizeOf(connection)
        if count > settings.watchCountMax:
            raise WireError(f"{count} watches; a connection has at most {settings.watchCountMax}")
        if size > settings.watchSizeMax:
            raise WireError(
                f"watches that take {size} bytes; those of a connection take at most"
                f" {settings.watchSizeMax}"
            )
        if watches.size > settings.watchesSizeMax:
            raise WireError(
                f"watches for which no room is left: all take {watches.size} bytes, at most"
                f" {settings.watchesSizeMax}"
            )

    def _exists(self, connection: ZookeeperConnection, request: ReadRequest) -> tuple[int, bytes]:
        path = request.path
        requireValidPath(path)
        if request.isWatched:
            self._watch(connection, WatchKind.DATA, path)
        node = requireNode(self._tree, path)
        return node.zxid, self._tree.stat(path).encode()

    def _getData(self, connection: ZookeeperConnection, request: ReadRequest) -> tuple[int, bytes]:
        path = request.path
        node = requireNode(self._tree, path)
        requireAccess(node, path, READ, connection.client)
        if request.isWatched:
            self._watch(connection, WatchKind.DATA, path)
        return node.zxid, encodeBuffer(node.data) + self._tree.stat(path).encode()

    def _getChildren(
        self, connection: ZookeeperConnection, request: ReadRequest
    ) -> tuple[int, bytes]:
        path = request.path
        node = requireNode(self._tree, path)
        requireAccess(node, path, READ, connection.client)
        if request.isWatched:
            self._watch(connection, WatchKind.CHILDREN, path)
        return node.zxid, encodeStrings(self._tree.children(path))

    def _getChildren2(
        self, connection: ZookeeperConnection, request: ReadRequest
    ) -> tuple[int, bytes]:
        zxid, body = self._getChildren(connection, request)
        return zxid, body + self._tree.stat(request.path).encode()

    def _readSeveral(
        self, connection: ZookeeperConnection, request: MultiRequest
    ) -> tuple[int, bytes]:
        results: list[tuple[int, int, bytes]] = []
        last = size = 0
        for opCode, operation in request.operations:
            assert isinstance(operation, ReadRequest)
            try:
                zxid, body = self._readers[opCode](connection, operation)
            except RefusedError as error:
                zxid = self._tree.zxid
                results.append((NO_RESULT, error.code, b""))
            else:
                results.append((opCode, 0, body))
                size += len(body)
                if size > RESULTS_SIZE_MAX:
                    raise RefusedError(
                        KeeperCode.BAD_ARGUMENTS, f"reads of more than {RESULTS_SIZE_MAX} bytes"
                    )
            last = max(last, zxid)
        return last, encodeOperations(results)

    def _getAcl(self, connection: ZookeeperConnection, request: ReadRequest) -> tuple[int, bytes]:
        path, client = request.path, connection.client
        node = requireNode(self._tree, path)
        requireAccess(node, path, READ | ADMINISTER, client)
        acls = node.acls
        if not _mayAdminister(node, path, client):
            acls = tuple(map(_withoutDigest, acls))
        return node.zxid, encodeAcls(acls) + self._tree.stat(path).encode()

    def _sync(self, connection: ZookeeperConnection, request: ReadRequest) -> tuple[int, bytes]:
        requireValidPath(request.path)
        return self._tree.zxid, encodeString(request.path)

    def _getEphemerals(
        self, connection: ZookeeperConnection, request: ReadRequest
    ) -> tuple[int, bytes]:
        found = self._tree.ephemerals(connection.client.sessionId)
        prefix = request.path.rstrip("/")
        wanted = [each for each in found if each == prefix or each.startswith(prefix + "/")]
        return self._tree.zxid, encodeStrings(wanted)

    def _countDescendants(
        self, connection: ZookeeperConnection, request: ReadRequest
    ) -> tuple[int, bytes]:
        node = requireNode(self._tree, request.path)
        requireAccess(node, request.path, READ, connection.client)
        return self._tree.zxid, encodeInt(self._tree.descendantCount(request.path))

    def _whoAmI(self, connection: ZookeeperConnection, request: Request) -> tuple[int, bytes]:
        identities = connection.client.identities
        shown = [(scheme, identity.partition(":")[0]) for scheme, identity in identities]
        return 0, encodeInt(len(shown)) + b"".join(
            encodeString(scheme) + encodeString(user) for scheme, user in shown
        )

    # -- watches and credentials

    def _setWatches(
        self, connection: ZookeeperConnection, request: SetWatchesRequest
    ) -> tuple[int, bytes]:
        watches = self._watches
        for kind, path in watches.renew(request, self._tree, connection):
            connection.notify(self._tree.zxid, kind, path)
        self._requireWatchRoom(connection)
        return 0, b""

    def _addWatch(
        self, connection: ZookeeperConnection, request: WatchRequest
    ) -> tuple[int, bytes]:
        requireValidPath(request.path)
        if not 0 <= request.number < len(WATCH_MODES):
            raise RefusedError(KeeperCode.BAD_ARGUMENTS, f"mode {request.number} of a watch")
        self._watch(connection, WATCH_MODES[request.number], request.path)
        return 0, encodeInt(0)

    def _checkWatches(
        self, connection: ZookeeperConnection, request: WatchRequest
    ) -> tuple[int, bytes]:
        return self._lookForWatches(connection, request, True)

    def _removeWatches(
        self, connection: ZookeeperConnection, request: WatchRequest
    ) -> tuple[int, bytes]:
        return self._lookForWatches(connection, request, False)

    def _lookForWatches(
        self, connection: ZookeeperConnection, request: WatchRequest, isTest: bool
    ) -> tuple[int, bytes]:
        requireValidPath(request.path)
        if not 1 <= request.number <= 3:
            raise RefusedError(KeeperCode.BAD_ARGUMENTS, f"type {request.number} of a watch")
        if not self._watches.remove(request.number, request.path, connection, isTest):
            raise RefusedError(KeeperCode.NO_WATCHER, f"{request.path}: no such watch")
        return 0, b""

    def _authenticate(
        self, connection: ZookeeperConnection, xid: int, request: AuthRequest
    ) -> None:
        try:
            connection.client.authenticate(request, connection.address)
        except RefusedError as error:
            connection.refuseCredentials(xid, error)
            return
        connection.answer(xid, 0)


def _listSize(texts: list[str]) -> int:
    return sum(map(len, texts)) + 4 * len(texts)


def _mayAdminister(node: Any, path: str, client: Client) -> bool:
    try:
        requireAccess(node, path, ADMINISTER, client)
    except RefusedError:
        return False
    return True


def _withoutDigest(acl: Acl) -> Acl:
    """As ZooKeeper: who may not administer a node does not see the digests of passwords."""
    if acl.scheme != "digest":
        return acl
    return acl._replace(identity=acl.identity.partition(":")[0] + ":x")
