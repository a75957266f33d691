"""
A ZooKeeper in memory: sessions, ephemeral nodes, watches, and faults on command.

For tests that control each step, on their own clock. The contract suite
C{tests.contracts.zookeeper} runs on it and on a real server. It has no transactions, no quotas, and
no access control lists that refuse.

A request takes C{latencyMs} to the server and back. A connection that is cut in between leaves open
whether a change was made: a request that had reached the server has its effect, and its answer is
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from pylogbroker.errors import (
    BadVersionException,
    ClosingException,
    ConnectionLossException,
    NoChildrenForEphemeralsException,
    NodeExistsException,
    NoNodeException,
    NotEmptyException,
    SessionExpiredException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import EPHEMERAL, SEQUENCE, SessionEvent, Stat, WatchEvent
from pylogbroker.net.deferreds import Waiters
from pylogbroker.zookeeper.watch import NOT_THERE, OneTimeWatch, SessionListeners, _WatchCallback

FIRST_SESSION = 0x1000


class _Node:
    def __init__(self, data: bytes | None, owner: int, zxid: int) -> None:
        self.data = data
        self.owner = owner
        self.czxid = self.mzxid = zxid
        self.version = self.cversion = self.sequence = 0
        self.children: dict[str, _Node] = {}

    def stat(self) -> Stat:
        return Stat(
            self.czxid, self.mzxid, self.version, self.cversion, self.owner, len(self.children)
        )


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
        self._root = _Node(b"", 0, 0)
        self._zxid = 0
        self._nextSession = FIRST_SESSION
        self._sessions: dict[int, FakeZookeeperClient] = {}
        self._expiries: dict[int, Any] = {}
        self._watchers: dict[tuple[str, str], dict[_WatchCallback, FakeZookeeperClient]] = {}

    def client(self, session_timeout: int = 6_000, chroot: str = "") -> FakeZookeeperClient:
        """A client, not connected yet."""
        return FakeZookeeperClient(self, session_timeout, chroot)

    def tree(self, path: str = "") -> dict[str, tuple[Any, int]]:
        """All nodes by path: data, and the owner's session (0 for a persistent node)."""
        found: dict[str, tuple[Any, int]] = {}
        node = self._node(path or "/")
        for name, child in sorted(node.children.items()):
            found[f"{path}/{name}"] = child.data, child.owner
            found.update(self.tree(f"{path}/{name}"))
        return found

    # -- faults

    def disconnect(self, client: FakeZookeeperClient) -> None:
        """Cut a client's connection. Its session expires unless C{reconnect} comes in time."""
        if client.connected:
            self._drop(client)
            self._expiries[client.session_id] = self.clock.callLater(
                client.session_timeout / 1000, self._end, client.session_id
            )
            client._suspended()

    def reconnect(self, client: FakeZookeeperClient) -> None:
        """Let a client connect again, to its session or, if that has expired, to a new one."""
        if client.connected or client.isClosed or not self.isRunning:
            return
        if client.session_id and client.session_id not in self._sessions:
            client._expired()
        expiry = self._expiries.pop(client.session_id, None)
        if expiry is not None:
            expiry.cancel()
        if not client.isClosed:
            client._connected(client.session_id or self._open(client))

    def expire(self, client: FakeZookeeperClient) -> None:
        """End a client's session. A connected client has a new one at once, as with kazoo."""
        wasConnected = client.connected
        self._drop(client)
        expiry = self._expiries.pop(client.session_id, None)
        if expiry is not None:
            expiry.cancel()
        self._end(client.session_id)
        if wasConnected:
            client._expired()
            if not client.isClosed:  # by one of its listeners
                client._connected(self._open(client))

    def stop(self) -> None:
        """Stop the server: all clients are disconnected, and no session ends meanwhile."""
        for client in list(self._sessions.values()):
            self.disconnect(client)
        for expiry in self._expiries.values():
            expiry.cancel()
        self._expiries.clear()
        self.isRunning = False

    def start(self) -> None:
        """Start it again; clients have to C{reconnect}."""
        self.isRunning = True
        for session, client in self._sessions.items():
            self._expiries[session] = self.clock.callLater(
                client.session_timeout / 1000, self._end, session
            )

    # -- sessions

    def _open(self, client: FakeZookeeperClient) -> int:
        session, self._nextSession = self._nextSession, self._nextSession + 1
        self._sessions[session] = client
        client.session_timeout = max(client.session_timeout, self.sessionTimeoutMsMin)
        return session

    def _drop(self, client: FakeZookeeperClient) -> None:
        for watchers in self._watchers.values():
            for seen in [seen for seen, owner in watchers.items() if owner is client]:
                del watchers[seen]

    def _end(self, session: int) -> None:
        self._expiries.pop(session, None)
        if self._sessions.pop(session, None) is not None:
            for path, (_data, owner) in self.tree().items():
                if owner == session:
                    self.delete(path, -1)

    # -- what a server does

    def _node(self, path: str) -> _Node:
        node = self._root
        for name in path.strip("/").split("/") if path != "/" else ():
            if name not in node.children:
                raise NoNodeException(f"{path}: there is no such node")
            node = node.children[name]
        return node

    def _parent(self, path: str) -> tuple[_Node, str, str]:
        parent, _, name = path.rpartition("/")
        return self._node(parent or "/"), parent or "/", name

    def create(self, path: str, data: bytes | None, flags: int, session: int) -> str:
        parent, parentPath, name = self._parent(path)
        if parent.owner:
            raise NoChildrenForEphemeralsException(f"{path}: the parent is ephemeral")
        if flags & SEQUENCE:
            name += f"{parent.sequence:010d}"
        if name in parent.children:
            raise NodeExistsException(f"{path}: it is there already")
        self._zxid += 1
        parent.children[name] = _Node(data, session if flags & EPHEMERAL else 0, self._zxid)
        parent.cversion += 1
        parent.sequence += 1
        made = f"{parentPath.rstrip('/')}/{name}"
        self._notify("data", made, "created")
        self._notify("children", parentPath, "child")
        return made

    def get(self, path: str) -> tuple[bytes | None, Stat]:
        node = self._node(path)
        return node.data, node.stat()

    def exists(self, path: str) -> Stat | None:
        try:
            return self._node(path).stat()
        except NoNodeException:
            return None

    def children(self, path: str) -> tuple[list[str], Stat]:
        node = self._node(path)
        return sorted(node.children), node.stat()

    def set(self, path: str, data: bytes, version: int) -> Stat:
        node = self._node(path)
        if version not in (-1, node.version):
            raise BadVersionException(f"{path}: it has version {node.version}, not {version}")
        self._zxid += 1
        node.data, node.version, node.mzxid = data, node.version + 1, self._zxid
        self._notify("data", path, "changed")
        return node.stat()

    def delete(self, path: str, version: int) -> None:
        parent, parentPath, name = self._parent(path)
        node = self._node(path)
        if version not in (-1, node.version):
            raise BadVersionException(f"{path}: it has version {node.version}, not {version}")
        if node.children:
            raise NotEmptyException(f"{path}: it has children")
        del parent.children[name]
        parent.cversion += 1
        self._zxid += 1
        self._notify("data", path, "deleted")
        self._notify("children", path, "deleted")
        self._notify("children", parentPath, "child")

    def watch(
        self, what: str, path: str, seen: _WatchCallback, client: FakeZookeeperClient
    ) -> None:
        wanted = {
            each: owner
            for each, owner in self._watchers.get((what, path), {}).items()
            if each.isWanted
        }
        self._watchers[what, path] = {**wanted, seen: client}

    def _notify(self, what: str, path: str, kind: str) -> None:
        for seen, client in self._watchers.pop((what, path), {}).items():
            client._deliver(lambda seen=seen: seen(kind))  # type: ignore[misc] # mypy: a lambda with a default


class FakeZookeeperClient(SessionListeners):
    """
    A client of L{FakeZookeeper}; provides L{pylogbroker.interfaces.IZookeeper}.

    @ivar isClosed: whether C{close} was called.
    """

    def __init__(self, server: FakeZookeeper, session_timeout: int, chroot: str) -> None:
        super().__init__()
        self.session_timeout = session_timeout
        self.session_id = 0
        self.connected = False
        self.isClosed = False
        self._server = server
        self._chroot = chroot
        self._generation = 0
        self._watches: dict[OneTimeWatch, None] = {}
        self._held: dict[Deferred[Any], tuple[str, Callable[[], Any]]] = {}
        self._inFlight: dict[Deferred[Any], str] = {}
        self._connecting: Waiters[Any] = Waiters()
        self._reaching: Any = None

    # -- the session

    def connect(self, timeoutMs: int | None = None) -> Deferred[Any]:
        """Fires with this client; see L{pylogbroker.zookeeper.client.ZookeeperClient.connect}."""
        if self.isClosed:
            return fail(ClosingException("the client was closed"))
        if self.connected:
            return succeed(self)
        connected = self._connecting.wait()

        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException("no connection in time")

        connected.addTimeout(
            (timeoutMs or 2 * self.session_timeout) / 1000, self._server.clock, late
        )
        if self._reaching is None:
            self._reaching = self._server.clock.callLater(
                self._server.latency, self._server.reconnect, self
            )
        return connected.addCallback(self._checkChroot).addErrback(
            lambda failure: self.close().addBoth(lambda _: failure)
        )

    def _checkChroot(self, _result: object) -> Any:
        def check(stat: Stat | None) -> FakeZookeeperClient:
            if stat is None:
                raise NoNodeException(f"the chroot {self._chroot} does not exist")
            return self

        return self.exists("/").addCallback(check)

    def close(self) -> Deferred[None]:
        """End the session at once."""
        if not self.isClosed:
            self.isClosed = True
            self.connected = False
            self._server._drop(self)
            expiry = self._server._expiries.pop(self.session_id, None)
            if expiry is not None:
                expiry.cancel()
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
        held, self._held = self._held, {}
        for answer, (what, work) in held.items():
            self._begin(answer, what, work)
        for watch in list(self._watches):
            watch.renew()
        self._connecting.fire(self)
        self._report(SessionEvent.CONNECTED)

    def _suspended(self) -> None:
        self.connected = False
        self._generation += 1
        self._failInFlight(ConnectionLossException)
        self._report(SessionEvent.SUSPENDED)

    def _expired(self) -> None:
        self.connected = False
        self._over(SessionExpiredException("the session has expired"), SessionEvent.EXPIRED)

    def _over(self, reason: ZookeeperError, event: SessionEvent) -> None:
        self.session_id = 0
        self._generation += 1
        self._inFlight.update({answer: what for answer, (what, _work) in self._held.items()})
        self._held.clear()
        self._failInFlight(type(reason))
        for watch in list(self._watches):
            watch.fail(reason)
        self._report(event)

    def _failInFlight(self, reason: type[ZookeeperError]) -> None:
        inFlight, self._inFlight = self._inFlight, {}
        for answer, what in inFlight.items():
            if not answer.called:
                answer.errback(reason(f"{what}: {reason.__doc__}"))

    # -- requests

    def _deliver(self, event: Callable[[], None]) -> None:
        generation = self._generation

        def arrive() -> None:
            if generation == self._generation:
                event()

        self._server.clock.callLater(self._server.latency, arrive)

    def _ask(self, what: str, work: Callable[[], Any]) -> Deferred[Any]:
        if self.isClosed:
            return fail(ClosingException(f"{what}: the client was closed"))
        answer: Deferred[Any] = Deferred()

        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException(f"{what}: no answer in time")

        answer.addTimeout(2 * self.session_timeout / 1000, self._server.clock, late)
        if self.connected:
            self._begin(answer, what, work)
        else:
            self._held[answer] = (what, work)
        return answer

    def _begin(self, answer: Deferred[Any], what: str, work: Callable[[], Any]) -> None:
        if answer.called:
            return
        self._inFlight[answer] = what
        generation = self._generation

        def reach() -> None:
            if generation != self._generation:
                return
            try:
                result, succeeded = work(), True
            except ZookeeperError as error:
                result, succeeded = type(error)(f"{what}: {error}"), False
            self._deliver(lambda: finish(result, succeeded))

        def finish(result: Any, succeeded: bool) -> None:
            self._inFlight.pop(answer, None)
            if not answer.called:
                (answer.callback if succeeded else answer.errback)(result)

        self._server.clock.callLater(self._server.latency, reach)

    def _path(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or "/"

    def create(
        self, path: str, data: bytes | None = b"", acls: Any = None, flags: int = 0
    ) -> Deferred[str]:
        made = self._ask(
            f"create {path}",
            lambda: self._server.create(self._path(path), data, flags, self.session_id),
        )
        return made.addCallback(lambda found: found[len(self._chroot) :])

    def get(self, path: str) -> Deferred[tuple[bytes | None, Stat]]:
        return self._ask(f"get {path}", lambda: self._server.get(self._path(path)))

    def set(self, path: str, data: bytes, version: int = -1) -> Deferred[Stat]:
        return self._ask(f"set {path}", lambda: self._server.set(self._path(path), data, version))

    def delete(self, path: str, version: int = -1) -> Deferred[None]:
        return self._ask(f"delete {path}", lambda: self._server.delete(self._path(path), version))

    def exists(self, path: str) -> Deferred[Stat | None]:
        return self._ask(f"look for {path}", lambda: self._server.exists(self._path(path)))

    def get_children(self, path: str) -> Deferred[list[str]]:
        return self._ask(f"list {path}", lambda: self._server.children(self._path(path))[0])

    def sync(self, path: str = "/") -> Deferred[None]:
        return self._ask(f"sync {path}", lambda: None)

    def add_auth(self, scheme: str, identity: str) -> Deferred[None]:
        """Accept any credentials."""
        return self._ask(f"authenticate by {scheme}", lambda: None)

    # -- watches

    def _watch(
        self, what: str, path: str, kind: str, work: Callable[[], tuple[Any, Any]]
    ) -> tuple[Deferred[Any], Deferred[WatchEvent]]:
        server, full = self._server, self._path(path)

        def read(seen: _WatchCallback) -> Deferred[tuple[Any, Any]]:
            def armed() -> tuple[Any, Any]:
                result = work()
                server.watch(what, full, seen, self)
                return result

            return self._ask(f"watch {path}", armed)

        watch = OneTimeWatch(path, kind, read, lambda over: self._watches.pop(over, None))
        self._watches[watch] = None
        return watch.begin(), watch.fired

    def get_and_watch(
        self, path: str
    ) -> tuple[Deferred[tuple[bytes | None, Stat]], Deferred[WatchEvent]]:
        def work() -> tuple[Any, Any]:
            found = self._server.get(self._path(path))
            return found, (found[1].czxid, found[1].mzxid)

        return self._watch("data", path, "changed", work)

    def exists_and_watch(self, path: str) -> tuple[Deferred[Stat | None], Deferred[WatchEvent]]:
        def work() -> tuple[Any, Any]:
            stat = self._server.exists(self._path(path))
            return stat, NOT_THERE if stat is None else (stat.czxid, stat.mzxid)

        return self._watch("data", path, "changed", work)

    def get_children_and_watch(self, path: str) -> tuple[Deferred[list[str]], Deferred[WatchEvent]]:
        def work() -> tuple[Any, Any]:
            names, stat = self._server.children(self._path(path))
            return names, (stat.czxid, stat.cversion)

        return self._watch("children", path, "child", work)
