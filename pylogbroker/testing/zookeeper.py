"""
A ZooKeeper in memory: sessions, ephemeral nodes, watches, and faults on command.

For tests that control each step, on their own clock. The contract suite
C{tests.contracts.zookeeper} runs on it and on a real server. It has no quotas, and no access
control lists that refuse.

A request takes C{latencyMs} to the server and back. A connection that is cut in between leaves open
whether a change was made: a request that had reached the server has its effect, and its answer is
lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from pylogbroker.errors import (
    BadVersionException,
    ClosingException,
    ConnectionLossException,
    MultiFailedException,
    NoChildrenForEphemeralsException,
    NodeExistsException,
    NoNodeException,
    NotEmptyException,
    RequestSizeException,
    SessionExpiredException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import (
    EPHEMERAL,
    SEQUENCE,
    CheckOperation,
    CreateOperation,
    DeleteOperation,
    SessionEvent,
    SetOperation,
    Stat,
    ZookeeperOperation,
)
from pylogbroker.net.deferreds import Waiters, asDeferred
from pylogbroker.zookeeper.multi import refused, requireSize
from pylogbroker.zookeeper.watch import ZookeeperClientBase, _WatchCallback

FIRST_SESSION = 0x1000


class _Node:
    def __init__(self, data: bytes | None, owner: int, zxid: int) -> None:
        self.data = data
        self.owner = owner
        self.czxid = self.mzxid = zxid
        self.version = self.cversion = self.sequence = 0
        self.children: set[str] = set()  # paths

    def stat(self) -> Stat:
        return Stat(
            self.czxid, self.mzxid, self.version, self.cversion, self.owner, len(self.children)
        )

    def requireVersion(self, path: str, version: int) -> None:
        if version not in (-1, self.version):
            raise BadVersionException(f"{path}: it has version {self.version}, not {version}")


def _parentOf(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class FakeZookeeper:
    """
    The server.

    @ivar isRunning: L{False} after C{stop}: all clients are disconnected, and no session ends.
    """

    def __init__(self, clock: Any, latencyMs: float = 0, sessionTimeoutMsMin: int = 0) -> None:
        """
        @param clock: an L{twisted.internet.interfaces.IReactorTime}.
        @param latencyMs: of a request, there and back.
        @param sessionTimeoutMsMin: the shortest session time-out that it grants.
        """
        self.clock = clock
        self.latency = latencyMs / 2000
        self.sessionTimeoutMsMin = sessionTimeoutMsMin
        self.isRunning = True
        self._nodes = {"/": _Node(b"", 0, 0)}
        self._zxid = 0
        self._isInMulti = False
        self._events: list[tuple[str, str, str]] = []  # of the multi under way
        self._nextSession = FIRST_SESSION
        self._sessions: dict[int, FakeZookeeperClient] = {}
        self._expiries: dict[int, Any] = {}
        self._watchers: dict[tuple[str, str], dict[_WatchCallback, FakeZookeeperClient]] = {}

    def client(self, session_timeout: int = 6_000, chroot: str = "") -> FakeZookeeperClient:
        """A client, not connected yet."""
        return FakeZookeeperClient(self, session_timeout, chroot)

    def tree(self, path: str = "") -> dict[str, tuple[Any, int]]:
        """All nodes by path: data, and the owner's session (0 for a persistent node)."""
        return {
            each: (node.data, node.owner)
            for each, node in sorted(self._nodes.items())
            if each.startswith(f"{path}/") and each != "/"
        }

    # -- faults

    def disconnect(self, client: FakeZookeeperClient) -> None:
        """Cut a client's connection. Its session expires unless C{reconnect} comes in time."""
        if client.connected:
            self._drop(client)
            self._expireLater(client)
            client._suspended()

    def reconnect(self, client: FakeZookeeperClient) -> None:
        """Let a client connect again, to its session or, if that has expired, to a new one."""
        if client.connected or client.isClosed or not self.isRunning:
            return
        if client.session_id and client.session_id not in self._sessions:
            client._expired()
        self._cancelExpiry(client.session_id)
        if not client.isClosed:
            client._connected(client.session_id or self._open(client))

    def expire(self, client: FakeZookeeperClient) -> None:
        """End a client's session. A connected client has a new one at once, as with kazoo."""
        wasConnected = client.connected
        self._drop(client)
        self._end(client.session_id)
        if wasConnected:
            client._expired()
            if not client.isClosed:  # by one of its listeners
                client._connected(self._open(client))

    def lose(self, client: FakeZookeeperClient) -> None:
        """
        A client's process has died: it hears nothing any more, what it had sent and had not
        arrived is lost, and its session expires.
        """
        client._generation += 1
        if client.connected:
            client.connected = False
            self._drop(client)
            self._expireLater(client)
        client.isClosed = True

    def stop(self) -> None:
        """Stop the server: all clients are disconnected, and no session ends meanwhile."""
        for client in list(self._sessions.values()):
            self.disconnect(client)
        for session in list(self._expiries):
            self._cancelExpiry(session)
        self.isRunning = False

    def start(self) -> None:
        """Start it again; clients have to C{reconnect}."""
        self.isRunning = True
        for client in self._sessions.values():
            self._expireLater(client)

    # -- sessions

    def _open(self, client: FakeZookeeperClient) -> int:
        session, self._nextSession = self._nextSession, self._nextSession + 1
        self._sessions[session] = client
        client.session_timeout = max(client.session_timeout, self.sessionTimeoutMsMin)
        return session

    def _drop(self, client: FakeZookeeperClient) -> None:
        for watchers in self._watchers.values():
            for seen, owner in list(watchers.items()):
                if owner is client:
                    del watchers[seen]

    def _expireLater(self, client: FakeZookeeperClient) -> None:
        session = client.session_id
        self._expiries[session] = self.clock.callLater(
            client.session_timeout / 1000, self._end, session
        )

    def _cancelExpiry(self, session: int) -> None:
        expiry = self._expiries.pop(session, None)
        if expiry is not None and expiry.active():
            expiry.cancel()

    def _end(self, session: int) -> None:
        self._cancelExpiry(session)
        if self._sessions.pop(session, None) is not None:
            for path, (_data, owner) in self.tree().items():
                if owner == session:
                    self.delete(path, -1)

    # -- what a server does

    def _node(self, path: str) -> _Node:
        if path not in self._nodes:
            raise NoNodeException(f"{path}: there is no such node")
        return self._nodes[path]

    def _changing(self, path: str) -> _Node:
        """A node as a copy, which takes its place: a C{multi} that fails has the earlier one."""
        node = copy(self._node(path))
        node.children = node.children.copy()
        self._nodes[path] = node
        return node

    def _newZxid(self) -> int:
        if not self._isInMulti:
            self._zxid += 1
        return self._zxid

    def multi(self, operations: Sequence[ZookeeperOperation], session: int) -> list[Any]:
        """All operations in one transaction, or none; their paths are the server's."""
        nodes = self._nodes.copy()
        self._newZxid()
        self._isInMulti = True
        try:
            results = []
            for index, operation in enumerate(operations):
                try:
                    results.append(self._carryOut(operation, session))
                except ZookeeperError as error:
                    self._nodes, self._events = nodes, []
                    raise refused(operations, index, type(error)) from None
        finally:
            self._isInMulti = False
        events, self._events = self._events, []
        for event in events:
            self._notify(*event)
        return results

    def _carryOut(self, operation: ZookeeperOperation, session: int) -> Any:
        match operation:
            case CreateOperation(path, data, _, flags):
                return self.create(path, data, flags, session)
            case SetOperation(path, data, version):
                return self.set(path, data, version)
            case DeleteOperation(path, version):
                return self.delete(path, version)
            case CheckOperation(path, version):
                return self._node(path).requireVersion(path, version)

    def create(self, path: str, data: bytes | None, flags: int, session: int) -> str:
        parentPath = _parentOf(path)
        parent = self._node(parentPath)
        if parent.owner:
            raise NoChildrenForEphemeralsException(f"{path}: the parent is ephemeral")
        if flags & SEQUENCE:
            path += f"{parent.sequence:010d}"
        if path in self._nodes:
            raise NodeExistsException(f"{path}: it is there already")
        self._nodes[path] = _Node(data, session if flags & EPHEMERAL else 0, self._newZxid())
        parent = self._changing(parentPath)
        parent.children.add(path)
        parent.cversion += 1
        parent.sequence += 1
        self._notify("changed", path, "created")
        self._notify("child", parentPath, "child")
        return path

    def get(self, path: str) -> tuple[bytes | None, Stat]:
        node = self._node(path)
        return node.data, node.stat()

    def exists(self, path: str) -> Stat | None:
        try:
            return self._node(path).stat()
        except NoNodeException:
            return None

    def children(self, path: str) -> list[str]:
        return sorted(child.rpartition("/")[2] for child in self._node(path).children)

    def set(self, path: str, data: bytes, version: int) -> Stat:
        self._node(path).requireVersion(path, version)
        node = self._changing(path)
        node.data, node.version, node.mzxid = data, node.version + 1, self._newZxid()
        self._notify("changed", path, "changed")
        return node.stat()

    def delete(self, path: str, version: int) -> None:
        node = self._node(path)
        node.requireVersion(path, version)
        if node.children:
            raise NotEmptyException(f"{path}: it has children")
        parentPath = _parentOf(path)
        parent = self._changing(parentPath)
        del self._nodes[path]
        parent.children.remove(path)
        parent.cversion += 1
        self._newZxid()
        self._notify("changed", path, "deleted")
        self._notify("child", path, "deleted")
        self._notify("child", parentPath, "child")

    def watch(
        self, kind: str, path: str, seen: _WatchCallback, client: FakeZookeeperClient
    ) -> None:
        wanted = {
            each: owner
            for each, owner in self._watchers.get((kind, path), {}).items()
            if each.isWanted
        }
        self._watchers[kind, path] = {**wanted, seen: client}

    def _notify(self, kind: str, path: str, event: str) -> None:
        if self._isInMulti:
            self._events.append((kind, path, event))
            return
        for seen, client in self._watchers.pop((kind, path), {}).items():
            client._deliver(partial(seen, event))


class FakeZookeeperClient(ZookeeperClientBase):
    """
    A client of L{FakeZookeeper}; provides L{pylogbroker.interfaces.IZookeeper}.

    @ivar isClosed: whether C{close} was called.
    """

    def __init__(self, server: FakeZookeeper, session_timeout: int, chroot: str) -> None:
        super().__init__()
        self.session_timeout = session_timeout
        self.isClosed = False
        self._server = server
        self._chroot = chroot
        self._generation = 0
        self._requests: dict[Deferred[Any], tuple[str, Callable[[], Any]]] = {}
        self._connecting: Waiters[Any] = Waiters()
        self._reaching: Any = None

    # -- the session

    @asDeferred
    async def connect(self, timeoutMs: int | None = None) -> FakeZookeeperClient:
        """Fires with this client; see L{pylogbroker.zookeeper.client.ZookeeperClient.connect}."""
        if self.isClosed:
            raise ClosingException("the client was closed")
        if self.connected:
            return self
        if self._reaching is None:
            self._reaching = self._server.clock.callLater(
                self._server.latency, self._server.reconnect, self
            )
        timeoutMs = timeoutMs or 2 * self.session_timeout
        try:
            await self._within(timeoutMs, self._connecting.wait(), "no connection in time")
            if await self.exists("/") is None:
                raise NoNodeException(f"the chroot {self._chroot} does not exist")
        except Exception:
            self.close()
            raise
        return self

    def _within(self, timeoutMs: int, answer: Deferred[Any], text: str) -> Deferred[Any]:
        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException(text)

        return answer.addTimeout(timeoutMs / 1000, self._server.clock, late)

    def close(self) -> Deferred[None]:
        """End the session at once."""
        if not self.isClosed:
            self.isClosed = True
            self.connected = False
            self._server._drop(self)
            self._server._end(self.session_id)
            if self._reaching is not None and self._reaching.active():
                self._reaching.cancel()
            closing = ClosingException("the client was closed")
            self._connecting.fire(Failure(closing))
            self._over(closing, SessionEvent.CLOSED)
        return succeed(None)

    def _connected(self, session: int) -> None:
        self.session_id = session
        self.connected = True
        for answer in list(self._requests):
            self._begin(answer)
        for watch in list(self._watches):
            watch.renew()
        self._connecting.fire(self)
        self._report(SessionEvent.CONNECTED)

    def _suspended(self) -> None:
        self.connected = False
        self._generation += 1
        self._failRequests(ConnectionLossException)
        self._report(SessionEvent.SUSPENDED)

    def _expired(self) -> None:
        self.connected = False
        self._over(SessionExpiredException("the session has expired"), SessionEvent.EXPIRED)

    def _over(self, reason: ZookeeperError, event: SessionEvent) -> None:
        self.session_id = 0
        self._generation += 1
        self._failRequests(type(reason))
        for watch in list(self._watches):
            watch.fail(reason)
        self._report(event)

    def _failRequests(self, reason: type[ZookeeperError]) -> None:
        requests, self._requests = self._requests, {}
        for answer, (what, _work) in requests.items():
            if not answer.called:
                answer.errback(reason(f"{what}: {reason.__doc__}"))

    # -- requests

    def _deliver(self, event: Callable[[], None]) -> None:
        generation = self._generation

        def arrive() -> None:
            if generation == self._generation:
                event()

        self._server.clock.callLater(self._server.latency, arrive)

    def _ask(self, what: str, path: str, work: Callable[[str], Any]) -> Deferred[Any]:
        what = f"{what} {path}"
        if self.isClosed:
            return fail(ClosingException(f"{what}: the client was closed"))
        answer = self._within(2 * self.session_timeout, Deferred(), f"{what}: no answer in time")
        self._requests[answer] = what, partial(work, self._path(path))
        if self.connected:
            self._begin(answer)
        return answer

    def _begin(self, answer: Deferred[Any]) -> None:
        what, work = self._requests[answer]

        def reach() -> None:
            try:
                result = work()
            except MultiFailedException as error:
                result = Failure(error)
            except ZookeeperError as error:
                result = Failure(type(error)(f"{what}: {error}"))
            self._deliver(lambda: finish(result))

        def finish(result: Any) -> None:
            self._requests.pop(answer, None)
            if not answer.called:
                answer.callback(result)

        if not answer.called:
            self._deliver(reach)

    def _path(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or "/"

    def create(
        self, path: str, data: bytes | None = b"", acls: Any = None, flags: int = 0
    ) -> Deferred[str]:
        made = self._ask(
            "create", path, lambda full: self._server.create(full, data, flags, self.session_id)
        )
        return made.addCallback(lambda found: found[len(self._chroot) :])

    def get(self, path: str) -> Deferred[tuple[bytes | None, Stat]]:
        return self._ask("get", path, self._server.get)

    def set(self, path: str, data: bytes, version: int = -1) -> Deferred[Stat]:
        return self._ask("set", path, lambda full: self._server.set(full, data, version))

    def delete(self, path: str, version: int = -1) -> Deferred[None]:
        return self._ask("delete", path, lambda full: self._server.delete(full, version))

    def multi(self, operations: Sequence[ZookeeperOperation]) -> Deferred[list[Any]]:
        try:
            requireSize(operations)
        except RequestSizeException as error:
            return fail(error)
        full = [each._replace(path=self._path(each.path)) for each in operations]

        def work(_root: str) -> list[Any]:
            try:
                results = self._server.multi(full, self.session_id)
            except MultiFailedException as error:
                raise refused(operations, error.index, type(error.reason)) from None
            return [
                each[len(self._chroot) :] if isinstance(each, str) else each for each in results
            ]

        return self._ask("carry out", f"multi of {len(full)} operations", work)

    def exists(self, path: str) -> Deferred[Stat | None]:
        return self._ask("look for", path, self._server.exists)

    def get_children(self, path: str) -> Deferred[list[str]]:
        return self._ask("list", path, self._server.children)

    def sync(self, path: str = "/") -> Deferred[None]:
        return self._ask("sync", path, lambda _: None)

    def add_auth(self, scheme: str, identity: str) -> Deferred[None]:
        """Accept any credentials."""
        return self._ask("authenticate by", scheme, lambda _: None)

    # -- watches

    def _readWatching(
        self, what: str, path: str, kind: str, seen: _WatchCallback
    ) -> Deferred[tuple[Any, Stat | None]]:
        server = self._server
        read = {"get": server.get, "look for": server.exists, "list": server.children}[what]

        def armed(full: str) -> tuple[Any, Stat | None]:
            answer = read(full)
            server.watch(kind, full, seen, self)
            return answer, server.exists(full)

        return self._ask(what, path, armed)
