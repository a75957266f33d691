"""
A client of ZooKeeper for Twisted, over kazoo, with the names of txzookeeper.

txzookeeper does not run on Python 3; an application that was written for it changes its import, and goes on. What is under it is another
matter: kazoo has threads, opens a new session by itself when one is lost, drops watches with every connection, and may keep a request for as long
as it has no connection. Here all callbacks come on the reactor's thread (L{pylogbroker.zookeeper.handler}), every request has its time, watches
survive (L{pylogbroker.zookeeper.watch}), and the end of a session is told to every listener exactly once: when kazoo says so, and also when
a new session turns up without that.

Ephemeral nodes must not outlive the application that they speak for. kazoo's heartbeats run on its own thread, so they would, if the
reactor hung; L{pylogbroker.zookeeper.watchdog} ends the session then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import EventType
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE
from twisted.internet.defer import Deferred, fail
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    AuthFailedException,
    BadVersionException,
    ClosingException,
    ConfigurationError,
    ConnectionLossException,
    NoAuthException,
    NoChildrenForEphemeralsException,
    NodeExistsException,
    NoNodeException,
    NotEmptyException,
    SessionExpiredException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import EPHEMERAL, SEQUENCE, SessionEvent, Stat, WatchEvent
from pylogbroker.zookeeper.handler import ReactorHandler
from pylogbroker.zookeeper.watch import NOT_THERE, Read, Watch
from pylogbroker.zookeeper.watchdog import Watchdog

ERRORS: tuple[tuple[type[Exception], type[ZookeeperError]], ...] = (
    (kazoo.NoNodeError, NoNodeException),
    (kazoo.NodeExistsError, NodeExistsException),
    (kazoo.BadVersionError, BadVersionException),
    (kazoo.NotEmptyError, NotEmptyException),
    (kazoo.NoChildrenForEphemeralsError, NoChildrenForEphemeralsException),
    (kazoo.NoAuthError, NoAuthException),
    (kazoo.AuthFailedError, AuthFailedException),
    (kazoo.SessionExpiredError, SessionExpiredException),
    (kazoo.ConnectionLoss, ConnectionLossException),
    (kazoo.ConnectionClosedError, ConnectionLossException),
)

KINDS = {EventType.CREATED: "created", EventType.DELETED: "deleted", EventType.CHANGED: "changed", EventType.CHILD: "child"}
"""Of watch events. kazoo has one more, C{NONE}, which a watch gets that went with its connection."""

SESSION_TIMEOUT_MS = 6_000
RETRY_DELAY_MAX = 2.0  # seconds between attempts to connect, at the most


def _stat(stat: Any) -> Stat:
    return Stat(stat.czxid, stat.mzxid, stat.version, stat.cversion, stat.ephemeralOwner, stat.numChildren)


class ZookeeperClient:
    """
    See L{pylogbroker.interfaces.IZookeeper}, which this provides.

    @ivar servers: C{host:port[,host:port…][/chroot]}.
    @ivar session_id: of the current session; 0 while there is none.
    @ivar connected: whether requests can be answered now.
    """

    _log = Logger()

    def __init__(self, reactor: Any, servers: str, session_timeout: int = SESSION_TIMEOUT_MS, *, requestTimeoutMs: int | None = None) -> None:
        """
        @param servers: as of the C{zk.connect} property.
        @param session_timeout: milliseconds; the server has limits of its own.
        @param requestTimeoutMs: of each request; by default twice the session's.
        @raise ConfigurationError: C{servers} cannot be read.
        """
        self.servers = servers
        self.session_id = 0
        self.connected = False
        self._reactor = reactor
        self._sessionTimeoutMs = session_timeout
        self._requestTimeoutMs = requestTimeoutMs or 2 * session_timeout
        self._told = 0
        self._callback: Callable[[SessionEvent], None] | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._watches: dict[Watch, None] = {}
        self._connecting: list[Deferred[ZookeeperClient]] = []
        self._pending: dict[Deferred[Any], None] = {}
        self._closed = False
        self._watchdog = Watchdog(reactor, self._endSession, 3 * session_timeout)
        try:
            self._kazoo = KazooClient(
                hosts=servers,
                timeout=session_timeout / 1000,
                handler=ReactorHandler(reactor.callFromThread),
                connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=RETRY_DELAY_MAX),
            )
        except (ValueError, TypeError, kazoo.KazooException) as error:
            raise ConfigurationError(f"zk.connect={servers}: {error}") from error
        # kazoo's own thread calls it, and goes on: the order of events is kept, and what else is on its way comes in between.
        self._kazoo.add_listener(lambda state: reactor.callFromThread(self._stateChanged, state, self._kazoo.client_id))

    def __repr__(self) -> str:
        return f"<ZookeeperClient {self.servers} {'connected' if self.connected else 'not connected'}, session {self.session_id:#x}>"

    # -- the session --------------------------------------------------------------------------------------------------

    def connect(self, timeoutMs: int | None = None) -> Deferred[ZookeeperClient]:
        """
        Connect; after that it reconnects by itself.

        @param timeoutMs: by default twice the session's.
        @return: fires with this client. Fails with L{ZookeeperTimeoutException}, and is closed then; with L{NoNodeException} when the chroot does not exist.
        """
        if self._closed:
            return fail(ClosingException(f"the client of {self.servers} was closed"))
        timeoutMs = timeoutMs or 2 * self._sessionTimeoutMs
        connected: Deferred[ZookeeperClient] = Deferred()
        self._connecting.append(connected)

        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException(f"no connection to ZooKeeper at {self.servers} within {timeoutMs} ms")

        connected.addTimeout(timeoutMs / 1000, self._reactor, late)
        self._inThread(self._kazoo.start_async).addErrback(self._notStarted)
        return connected.addCallback(self._checkChroot).addErrback(self._notConnected)

    def _notStarted(self, failure: Any) -> None:
        waiting, self._connecting = self._connecting, []
        for each in waiting:
            each.errback(failure)

    def _checkChroot(self, _client: object) -> Deferred[ZookeeperClient]:
        def check(stat: Stat | None) -> ZookeeperClient:
            if stat is None:
                raise NoNodeException(f"the chroot {self._kazoo.chroot} of {self.servers} does not exist: create it first, nobody else does")
            return self

        return self.exists("/").addCallback(check)

    def _notConnected(self, failure: Any) -> Any:
        return self.close().addBoth(lambda _: failure)

    def close(self) -> Deferred[None]:
        """
        End the session; its ephemeral nodes go.

        @return: fires when that is done, or could not be done.
        """
        if self._closed:
            return self._inThread(lambda: None)
        self._closed = True
        self._watchdog.stop()
        return self._inThread(self._endSession).addBoth(self._ended)

    def _endSession(self) -> None:
        """Blocks: on a thread."""
        self._kazoo.stop()
        self._kazoo.close()

    def _ended(self, result: Any) -> None:
        if isinstance(result, Failure):
            self._log.warn("Closing {client} failed: {reason}", client=self, reason=result.value)
        self._lost(ClosingException(f"the client of {self.servers} was closed"), SessionEvent.CLOSED)

    def _inThread(self, work: Callable[[], Any]) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)

    def _stateChanged(self, state: str, clientId: tuple[int, bytes] | None) -> None:
        if self._closed:
            return
        if state == KazooState.CONNECTED and clientId is not None:
            self._isConnected(clientId[0])
        elif state == KazooState.SUSPENDED:
            self.connected = False
            self._tell(SessionEvent.SUSPENDED)
        elif state == KazooState.LOST:
            self._lost(SessionExpiredException(f"the session with {self.servers} has expired"), SessionEvent.EXPIRED)

    def _isConnected(self, sessionId: int) -> None:
        if self.session_id not in (0, sessionId):
            self._lost(SessionExpiredException(f"the session with {self.servers} has expired"), SessionEvent.EXPIRED)
        self.session_id = sessionId
        self.connected = True
        self._watchdog.start()
        for watch in list(self._watches):
            watch.renew()
        waiting, self._connecting = self._connecting, []
        for each in waiting:
            if not each.called:
                each.callback(self)
        self._tell(SessionEvent.CONNECTED)

    def _lost(self, reason: ZookeeperError, event: SessionEvent) -> None:
        """The session is over, if there was one."""
        self.connected = False
        had, self.session_id = self.session_id, 0
        for watch in list(self._watches):
            watch.fail(reason)
        if had or event is SessionEvent.CLOSED:
            self._tell(event)

    def _tell(self, event: SessionEvent) -> None:
        for listener in [*([self._callback] if self._callback else ()), *self._listeners]:
            try:
                listener(event)
            except Exception:
                self._log.failure("A session listener failed")

    def set_session_callback(self, callback: Callable[[SessionEvent], None]) -> None:
        """As in txzookeeper: the one callback."""
        self._callback = callback

    def add_session_listener(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """
        @return: what removes it.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, what: str, path: str, begin: Callable[[], Any]) -> Deferred[Any]:
        """
        One request.

        @param begin: calls one of kazoo's C{…_async}.
        """
        answer: Deferred[Any] = Deferred()
        if self._closed:
            return fail(ClosingException(f"{what} {path}: the client was closed"))

        def done(result: Any) -> None:
            if not answer.called:
                if result.exception is None:
                    answer.callback(result.value)
                else:
                    answer.errback(_translated(result.exception, what, path))

        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException(f"{what} {path}: no answer within {self._requestTimeoutMs} ms")

        try:
            result = begin()
        except (TypeError, ValueError) as error:
            return fail(ZookeeperError(f"{what} {path}: {error}"))
        answer.addTimeout(self._requestTimeoutMs / 1000, self._reactor, late)
        result.rawlink(done)
        return answer

    def create(self, path: str, data: bytes = b"", acls: Any = None, flags: int = 0) -> Deferred[str]:
        """Fires with the path, which a sequence number makes longer."""
        ephemeral, sequence = bool(flags & EPHEMERAL), bool(flags & SEQUENCE)
        return self._ask("create", path, lambda: self._kazoo.create_async(path, data, acls or OPEN_ACL_UNSAFE, ephemeral, sequence))

    def get(self, path: str) -> Deferred[tuple[bytes | None, Stat]]:
        """Fires with the data, or L{None}, and L{Stat}."""
        return self._ask("get", path, lambda: self._kazoo.get_async(path)).addCallback(_dataAndStat)

    def set(self, path: str, data: bytes, version: int = -1) -> Deferred[Stat]:
        """Fires with the new L{Stat}."""
        return self._ask("set", path, lambda: self._kazoo.set_async(path, data, version)).addCallback(_stat)

    def delete(self, path: str, version: int = -1) -> Deferred[None]:
        """Fires with L{None}."""
        return self._ask("delete", path, lambda: self._kazoo.delete_async(path, version)).addCallback(lambda _: None)

    def exists(self, path: str) -> Deferred[Stat | None]:
        """Fires with L{Stat}, or L{None}."""
        return self._ask("look for", path, lambda: self._kazoo.exists_async(path)).addCallback(_statOrNone)

    def get_children(self, path: str) -> Deferred[list[str]]:
        """Fires with a list of names, sorted."""
        return self._ask("list", path, lambda: self._kazoo.get_children_async(path)).addCallback(sorted)

    def sync(self, path: str = "/") -> Deferred[None]:
        """Fires when this client's server knows all that the leader knew."""
        return self._ask("sync", path, lambda: self._kazoo.sync_async(path)).addCallback(lambda _: None)

    def add_auth(self, scheme: str, identity: str) -> Deferred[None]:
        """Fires when the server has taken the credentials; they are given again with every new connection."""
        return self._ask("authenticate by", scheme, lambda: self._kazoo.add_auth_async(scheme, identity)).addCallback(lambda _: None)

    # -- watches ------------------------------------------------------------------------------------------------------

    def get_and_watch(self, path: str) -> tuple[Deferred[tuple[bytes | None, Stat]], Deferred[WatchEvent]]:
        """See L{pylogbroker.interfaces.IZookeeper}."""

        def read(seen: Callable[[str], None]) -> Deferred[Any]:
            answer = self._ask("get", path, lambda: self._kazoo.get_async(path, _only(seen))).addCallback(_dataAndStat)
            return answer.addCallback(lambda found: (found, (found[1].czxid, found[1].mzxid)))

        return self._watch(path, "changed", read)

    def exists_and_watch(self, path: str) -> tuple[Deferred[Stat | None], Deferred[WatchEvent]]:
        """See L{pylogbroker.interfaces.IZookeeper}; the watch fires, too, when the node is created."""

        def read(seen: Callable[[str], None]) -> Deferred[Any]:
            answer = self._ask("look for", path, lambda: self._kazoo.exists_async(path, _only(seen))).addCallback(_statOrNone)
            return answer.addCallback(lambda stat: (stat, NOT_THERE if stat is None else (stat.czxid, stat.mzxid)))

        return self._watch(path, "changed", read)

    def get_children_and_watch(self, path: str) -> tuple[Deferred[list[str]], Deferred[WatchEvent]]:
        """See L{pylogbroker.interfaces.IZookeeper}."""

        def read(seen: Callable[[str], None]) -> Deferred[Any]:
            answer = self._ask("list", path, lambda: self._kazoo.get_children_async(path, _only(seen), include_data=True))
            return answer.addCallback(lambda found: (sorted(found[0]), (found[1].czxid, found[1].cversion, tuple(sorted(found[0])))))

        return self._watch(path, "child", read)

    def _watch(self, path: str, kind: str, read: Read) -> tuple[Deferred[Any], Deferred[WatchEvent]]:
        watch = Watch(path, kind, read, self._forgetWatch)
        self._watches[watch] = None
        return watch.begin(), watch.fired

    def _forgetWatch(self, watch: Watch) -> None:
        self._watches.pop(watch, None)


def _only(seen: Callable[[str], None]) -> Callable[[Any], None]:
    """What kazoo calls. Each is a function of its own, since kazoo keeps them in sets."""

    def event(found: Any) -> None:
        kind = KINDS.get(found.type)
        if kind is not None:
            seen(kind)

    return event


def _dataAndStat(found: tuple[bytes | None, Any]) -> tuple[bytes | None, Stat]:
    return found[0], _stat(found[1])


def _statOrNone(stat: Any) -> Stat | None:
    return None if stat is None else _stat(stat)


def _translated(error: Exception, what: str, path: str) -> ZookeeperError:
    """kazoo's exception as ours."""
    for theirs, ours in ERRORS:
        if isinstance(error, theirs):
            return ours(f"{what} {path}: {ours.__doc__}")
    return ZookeeperError(f"{what} {path}: {error!r}")
