"""
The ZooKeeper client: Deferreds over kazoo, with the calls of txzookeeper.

txzookeeper does not run on Python 3. Its applications keep its calls: names, arguments, the two
Deferreds of a watch, flags. They change their import and this:

  - The client takes a reactor before the servers. C{connect} takes only a time, in milliseconds.
  C{close} cannot be forced.
  - Data are bytes. The fields of stats and events are attributes, C{stat.version} for
  C{stat["version"]}; an event's C{kind} is txzookeeper's C{type_name}. C{delete} and C{sync} fire
  with L{None}.
  - Errors come from L{pylogbroker.errors}, with the names of the module C{zookeeper}.
  - The session callback takes a L{SessionEvent}, without the client. Requests wait for a
  connection, and fail with L{ZookeeperTimeoutException} when none comes.
  - Access control lists are kazoo's. C{get_acl}, C{set_acl}, C{set_connection_watcher},
  C{set_connection_error_callback}, C{set_deterministic_order}, C{client_id}, C{handle}, C{state}
  and C{unrecoverable} do not exist.

What must be true, whatever kazoo does:

  - Callbacks run on the reactor's thread (L{pylogbroker.zookeeper.kazoothreads}).
  - Every request has a time-out. kazoo's socket pair blocks its caller when some 270 requests wait
  in it, and kazoo sends requests whose time is over. So kazoo gets at most L{IN_FLIGHT_COUNT_MAX}
  requests, and only while connected. The rest wait here, in order, and are never sent late.
  - Watches survive a lost connection (L{pylogbroker.zookeeper.watch}); kazoo drops them.
  - Every listener hears of a session's end exactly once.
  - Ephemeral nodes do not outlive their application: a watchdog ends the session of a hung reactor.

Rejected: txzookeeper's exact class. It needs a global reactor, and text in place of bytes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kazoo import exceptions as kazoo
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import EventType, KeeperState
from kazoo.retry import KazooRetry
from twisted.internet.defer import Deferred, fail, succeed
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
from pylogbroker.zookeeper import IN_FLIGHT_COUNT_MAX, READABLE, accessControl
from pylogbroker.zookeeper.kazoothreads import ReactorCallbacks, ReactorWatchdog
from pylogbroker.zookeeper.multi import refused, requireSize
from pylogbroker.zookeeper.watch import ZookeeperClientBase, _WatchCallback

T = TypeVar("T")

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
)

KINDS = {
    EventType.CREATED: "created",
    EventType.DELETED: "deleted",
    EventType.CHANGED: "changed",
    EventType.CHILD: "child",
}
"""
Kinds of watch events. kazoo's C{NONE}, for a watch lost with its connection, is missing on purpose.
"""

SESSION_TIMEOUT_MS = 6_000
WAITING_COUNT_MAX = 50_000
"""Requests that wait here; a further one is refused."""

HANG_FACTOR = 3
"""Session time-outs that the reactor may hang before its session is ended."""

REPORT_AFTER_MS = 2_000
"""A caller that waits longer for a connection sees a warning in the log."""

RETRY_DELAY_MAX = 2.0  # seconds between attempts to connect, at the most
SESSION_PARTS = 6
"""
Attempts to connect within one session time-out, at least: a returning server keeps its sessions no
longer.
"""


def _stat(stat: Any) -> Stat:
    return Stat(
        stat.czxid, stat.mzxid, stat.version, stat.cversion, stat.ephemeralOwner, stat.numChildren
    )


class _Request(NamedTuple):
    what: str
    path: str
    begin: Callable[[], Any]
    answer: Deferred[Any]


class _KazooLogCapture(logging.Handler):
    """
    Keeps the last warning of kazoo's log, to quote it when connecting fails. Nothing is parsed.

    @ivar warning: its text; empty before the first.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warning = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.warning = record.getMessage()


class ZookeeperClient(ZookeeperClientBase):
    """
    A client that provides L{pylogbroker.interfaces.IZookeeper}.

    @ivar servers: C{host:port[,host:port…][/chroot]}.
    @ivar session_id: of the current session; 0 without one.
    @ivar connected: whether requests can be answered now.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        servers: str,
        session_timeout: int = SESSION_TIMEOUT_MS,
        *,
        requestTimeoutMs: int | None = None,
        digest: str = "",
        acl: str = READABLE,
    ) -> None:
        """
        @param servers: the C{zk.connect} property.
        @param session_timeout: milliseconds; the server has limits of its own.
        @param requestTimeoutMs: of each request; by default twice the session's.
        @param digest: C{user:password}, sent with every connection; empty for none.
        @param acl: with C{digest}, the access of others to new nodes: L{READABLE}, L{PRIVATE} or
            L{OPEN}.
        @raise ConfigurationError: C{servers} cannot be read.
        """
        super().__init__()
        self.servers = servers
        self._reactor = reactor
        self._sessionTimeoutMs = session_timeout
        self._requestTimeoutMs = requestTimeoutMs or 2 * session_timeout
        self._acls = accessControl(digest, acl)
        self._watchers: dict[tuple[str, str], _Watcher] = {}
        self._connecting: list[Deferred[ZookeeperClient]] = []
        self._waiting: deque[_Request] = deque()
        self._inFlight: dict[_Request, None] = {}
        self._isBegun = False
        self._closed = False
        self._restarting: Any = None
        self._closing: list[Deferred[None]] = []
        self._life = threading.Lock()  # kazoo is started and stopped by one thread at a time
        self._grantedTimeoutMs = 0  # written on kazoo's thread
        self._kazooLog = _KazooLogCapture()
        self._watchdog = ReactorWatchdog(reactor, self._onHang, HANG_FACTOR * session_timeout)
        logger = logging.Logger(
            "kazoo"
        )  # a logger of its own: not one of those that the application configures
        logger.addHandler(self._kazooLog)
        try:
            if not servers.strip():
                raise ValueError("no servers are given")
            self._kazoo = KazooClient(
                hosts=servers,
                timeout=session_timeout / 1000,
                handler=ReactorCallbacks(reactor.callFromThread, self._granted),
                connection_retry=KazooRetry(
                    max_tries=-1,
                    delay=0.1,
                    max_delay=min(RETRY_DELAY_MAX, session_timeout / 1000 / SESSION_PARTS),
                ),
                logger=logger,
                auth_data=[("digest", str(digest))] if digest else None,
            )
        except (ValueError, TypeError, kazoo.KazooException) as error:
            raise ConfigurationError(f"zk.connect={servers}: {error}") from error
        # kazoo's own thread calls it and does not wait; the order of events is kept.
        self._kazoo.add_listener(
            lambda state: reactor.callFromThread(
                self._stateChanged, state, self._kazoo.client_id, self._kazoo.client_state
            )
        )

    @classmethod
    def fromSettings(
        cls, reactor: Any, settings: Any, servers: str | None = None
    ) -> ZookeeperClient:
        """
        A client for the settings of any role.

        @param settings: with C{zkDigest}; C{zkAcl}, C{zkSessionTimeoutMs} and C{zkConnect} count if
            they exist. (An auditor creates no nodes and has no C{zkAcl}.)
        @param servers: replaces C{zkConnect}.
        """
        return cls(
            reactor,
            settings.zkConnect if servers is None else servers,
            getattr(settings, "zkSessionTimeoutMs", SESSION_TIMEOUT_MS),
            digest=settings.zkDigest,
            acl=getattr(settings, "zkAcl", READABLE),
        )

    def __repr__(self) -> str:
        return (
            f"<ZookeeperClient {self.servers} "
            f"{'connected' if self.connected else 'not connected'}, session {self.session_id:#x}>"
        )

    # -- the session

    @property
    def session_timeout(self) -> int:
        return self._grantedTimeoutMs or self._sessionTimeoutMs

    def _granted(self, timeoutMs: int) -> None:
        """On kazoo's thread. An expired session has no time-out."""
        if timeoutMs > 0:
            self._grantedTimeoutMs = timeoutMs

    def connect(self, timeoutMs: int | None = None) -> Deferred[ZookeeperClient]:
        """
        Connect; later the client reconnects by itself. Concurrent callers share one attempt.

        @param timeoutMs: by default twice the session's.
        @return: fires with this client. Fails with L{ZookeeperTimeoutException}, and closes the
            client; with L{NoNodeException} without the chroot; with L{ClosingException} when the
            client is closed meanwhile, also by another caller's time-out.
        """
        if self._closed:
            return fail(ClosingException(f"the client of {self.servers} was closed"))
        if self.connected:
            return succeed(self)
        timeoutMs = timeoutMs or 2 * self._sessionTimeoutMs
        connected: Deferred[ZookeeperClient] = Deferred()
        self._connecting.append(connected)
        if timeoutMs > REPORT_AFTER_MS:
            slow = self._reactor.callLater(REPORT_AFTER_MS / 1000, self._reportSlow, timeoutMs)
            connected.addBoth(_cancelCall, slow)

        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException(
                f"no connection to ZooKeeper at {self.servers} within {timeoutMs} "
                f"ms{self._reason()}"
            )

        connected.addTimeout(timeoutMs / 1000, self._reactor, late)
        if not self._isBegun:  # kazoo that is started twice has two connections, and ends one
            self._isBegun = True
            self._start()
        return connected.addCallback(self._checkChroot).addErrback(self._notConnected)

    def _reason(self) -> str:
        return f" ({self._kazooLog.warning})" if self._kazooLog.warning else ""

    def _reportSlow(self, timeoutMs: int) -> None:
        self._log.warn(
            "No connection to ZooKeeper at {servers} yet{reason}; trying for {seconds:g} s",
            servers=self.servers,
            reason=self._reason(),
            seconds=timeoutMs / 1000,
        )

    def _start(self) -> None:
        self._restarting = None
        self._inThread(self._begin, self._notStarted)

    def _notStarted(self, error: Exception | None) -> None:
        if error is None:
            return
        if (
            not self._answerConnecting(
                Failure(ZookeeperError(f"connecting to {self.servers}: {error!r}"))
            )
            and not self._closed
        ):
            self._log.error(
                "Connecting to {servers} again did not work: {error}",
                servers=self.servers,
                error=error,
            )
            self._restartLater()

    def _answerConnecting(self, result: ZookeeperClient | Failure) -> bool:
        """@return: whether a caller of C{connect} was waiting."""
        waiting, self._connecting = self._connecting, []
        for each in waiting:
            if not each.called:
                each.callback(result)
        return bool(waiting)

    def _checkChroot(self, _client: object) -> Deferred[ZookeeperClient]:
        def check(stat: Stat | None) -> ZookeeperClient:
            if stat is None:
                raise NoNodeException(
                    f"the chroot {self._kazoo.chroot} of {self.servers} does not exist: create "
                    "it first"
                )
            return self

        return self.exists("/").addCallback(check)

    def _notConnected(self, failure: Any) -> Any:
        return self.close().addBoth(lambda _: failure)

    def close(self) -> Deferred[None]:
        """
        End the session; its ephemeral nodes are deleted.

        @return: fires when the session has ended, at the latest after its time-out, when the server
            ends it.
        """
        if self._closed and not self._closing:
            return succeed(None)
        over: Deferred[None] = Deferred()
        self._closing.append(over)
        if self._closed:
            return over
        self._closed = True
        self._watchdog.stop()
        if self._restarting is not None:
            self._restarting.cancel()
        tooLong = self._reactor.callLater(
            self._sessionTimeoutMs / 1000,
            self._isEnded,
            TimeoutError(f"not within {self._sessionTimeoutMs} ms"),
        )

        def stopped(error: Exception | None) -> None:
            if tooLong.active():
                tooLong.cancel()
                self._isEnded(error)

        self._inThread(self._end, stopped)
        return over

    def _isEnded(self, error: Exception | None) -> None:
        if error is not None:
            self._log.warn(
                "Closing {client} did not work: {error}. The server ends the session when its "
                "time is over",
                client=self,
                error=error,
            )
        closing = ClosingException(f"the client of {self.servers} was closed")
        self._answerConnecting(Failure(closing))
        self._lost(closing, SessionEvent.CLOSED)
        waiting, self._closing = self._closing, []
        for each in waiting:
            each.callback(None)

    # kazoo starts and stops slowly. Each call has a daemon thread of its own: one of the reactor's
    # pool would delay the reactor's end.

    def _inThread(self, work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        def run() -> None:
            try:
                with self._life:
                    work()
            except Exception as error:
                self._reactor.callFromThread(done, error)
            else:
                self._reactor.callFromThread(done, None)

        threading.Thread(target=run, name="pylogbroker-zookeeper", daemon=True).start()

    def _begin(self) -> None:
        if not self._closed:
            self._kazoo.start_async()

    def _end(self) -> None:
        try:
            self._kazoo.stop()
        finally:
            self._kazoo.close()

    def _onHang(self) -> None:
        """
        On the watchdog's thread. kazoo reports the end when the reactor is back, and a new session
        begins.
        """
        self._log.critical(
            "The reactor has given no sign of life for {hangMs} ms: the session with ZooKeeper "
            "is ended",
            hangMs=self._watchdog.hangMs,
        )
        try:
            with self._life:
                self._end()
        except Exception:
            self._log.failure("Ending the session did not work")

    def _restartLater(self) -> None:
        if self._restarting is None:
            self._restarting = self._reactor.callLater(RETRY_DELAY_MAX, self._start)

    def _stateChanged(self, state: str, clientId: tuple[int, bytes] | None, detail: str) -> None:
        if self._closed:
            return
        if state == KazooState.CONNECTED and clientId is not None:
            self._isConnected(clientId[0])
        elif state == KazooState.SUSPENDED:
            self.connected = False
            self._report(SessionEvent.SUSPENDED)
        elif state == KazooState.LOST:
            self._expired()
            if detail == KeeperState.CLOSED:  # kazoo goes on after an expiry, but not after this
                self._start()
            elif detail == KeeperState.AUTH_FAILED:  # nor after this, which may come again
                self._restartLater()

    def _isConnected(self, sessionId: int) -> None:
        if self.session_id not in (0, sessionId):
            self._expired()
        self.session_id = sessionId
        self.connected = True
        self._watchdog.start()
        for watch in list(self._watches):
            watch.renew()
        self._pump()
        self._answerConnecting(self)
        self._report(SessionEvent.CONNECTED)

    def _expired(self) -> None:
        self._lost(
            SessionExpiredException(f"the session with {self.servers} has expired"),
            SessionEvent.EXPIRED,
        )

    def _lost(self, reason: ZookeeperError, event: SessionEvent) -> None:
        self.connected = False
        had, self.session_id = self.session_id, 0
        if not had and event is not SessionEvent.CLOSED:
            return
        self._watchers.clear()
        requests = [*self._inFlight, *self._waiting]
        self._inFlight.clear()
        self._waiting.clear()
        for request in requests:
            if not request.answer.called:
                request.answer.errback(type(reason)(f"{request.what} {request.path}: {reason}"))
        for watch in list(self._watches):
            watch.fail(reason)
        self._report(event)

    # -- requests

    def _ask(
        self, what: str, path: str, begin: Callable[..., Any], *arguments: Any
    ) -> Deferred[Any]:
        """@param begin: one of kazoo's C{…_async}, called with C{path} and C{arguments}."""
        if self._closed:
            return fail(ClosingException(f"{what} {path}: the client was closed"))
        if len(self._waiting) >= WAITING_COUNT_MAX:
            return fail(
                ZookeeperError(f"{what} {path}: {len(self._waiting)} requests are waiting already")
            )
        answer: Deferred[Any] = Deferred()

        def late(_result: object, _seconds: float) -> None:
            raise ZookeeperTimeoutException(
                f"{what} {path}: no answer within {self._requestTimeoutMs} ms"
            )

        answer.addTimeout(self._requestTimeoutMs / 1000, self._reactor, late)
        self._waiting.append(_Request(what, path, partial(begin, path, *arguments), answer))
        self._pump()
        return answer

    def _pump(self) -> None:
        while self._waiting and self.connected and len(self._inFlight) < IN_FLIGHT_COUNT_MAX:
            request = self._waiting.popleft()
            if not request.answer.called:
                self._send(request)
        while self._waiting and self._waiting[0].answer.called:  # their callers have gone
            self._waiting.popleft()

    def _send(self, request: _Request) -> None:
        what, path, begin, answer = request
        try:
            result = begin()
        except (TypeError, ValueError, kazoo.KazooException) as error:
            answer.errback(ZookeeperError(f"{what} {path}: {error}"))
            return
        self._inFlight[request] = None

        def done(result: Any) -> None:
            self._inFlight.pop(request, None)
            if isinstance(result.exception, kazoo.ConnectionLoss):
                # kazoo fails all that it holds before it reports the loss, and what is sent
                # meanwhile as well: its socket pair would fill, and block the reactor.
                self.connected = False
            if not answer.called:
                if result.exception is None:
                    answer.callback(result.value)
                else:
                    answer.errback(self._translated(result.exception, what, path))
            self._pump()

        result.rawlink(done)

    def _translated(self, error: Exception, what: str, path: str) -> ZookeeperError:
        if self._closed:
            return ClosingException(f"{what} {path}: the client was closed")
        kind = _kindOf(error)
        reason = repr(error) if kind is ZookeeperError else kind.__doc__
        return kind(f"{what} {path}: {reason}")

    def create(
        self, path: str, data: bytes | None = b"", acls: Any = None, flags: int = 0
    ) -> Deferred[str]:
        """
        Fires with the path, including a sequence number.

        @param data: L{None} is ZooKeeper's null, which differs from no bytes.
        """
        return self._ask(
            "create",
            path,
            self._kazoo.create_async,
            data,
            acls or self._acls,
            bool(flags & EPHEMERAL),
            bool(flags & SEQUENCE),
        )

    def get(self, path: str) -> Deferred[tuple[bytes | None, Stat]]:
        return self._ask("get", path, self._kazoo.get_async).addCallback(_dataAndStat)

    def set(self, path: str, data: bytes, version: int = -1) -> Deferred[Stat]:
        return self._ask("set", path, self._kazoo.set_async, data, version).addCallback(_stat)

    def delete(self, path: str, version: int = -1) -> Deferred[None]:
        deleted = self._ask("delete", path, self._kazoo.delete_async, version)
        return deleted.addCallback(lambda _: None)

    def multi(self, operations: Sequence[ZookeeperOperation]) -> Deferred[list[Any]]:
        """See L{pylogbroker.interfaces.IZookeeper.multi}; data cannot be null here."""
        operations = tuple(operations)
        try:
            requireSize(operations)
        except RequestSizeException as error:
            return fail(error)
        paths = ", ".join(each.path for each in operations[:3])
        asked = self._ask("carry out multi of", paths, lambda _paths: self._transaction(operations))
        return asked.addCallback(self._operationResults, operations)

    def _transaction(self, operations: Sequence[ZookeeperOperation]) -> Any:
        transaction = self._kazoo.transaction()
        for operation in operations:
            match operation:
                case CreateOperation(path, data, acls, flags):
                    transaction.create(
                        path,
                        data,
                        acls or self._acls,
                        bool(flags & EPHEMERAL),
                        bool(flags & SEQUENCE),
                    )
                case SetOperation(path, data, version):
                    transaction.set_data(path, data, version)
                case DeleteOperation(path, version):
                    transaction.delete(path, version)
                case CheckOperation(path, version):
                    transaction.check(path, version)
        return transaction.commit_async()

    def _operationResults(
        self, results: list[Any], operations: Sequence[ZookeeperOperation]
    ) -> list[Any]:
        for index, result in enumerate(results):
            # Those before the refused one have RolledBackError; those behind it,
            # RuntimeInconsistency.
            if isinstance(result, Exception) and not isinstance(result, kazoo.RolledBackError):
                raise refused(operations, index, _kindOf(result))
        return [
            _stat(result)
            if isinstance(operation, SetOperation)
            else result
            if isinstance(operation, CreateOperation)
            else None
            for operation, result in zip(operations, results, strict=True)
        ]

    def exists(self, path: str) -> Deferred[Stat | None]:
        return self._ask("look for", path, self._kazoo.exists_async).addCallback(_statOrNone)

    def get_children(self, path: str) -> Deferred[list[str]]:
        return self._ask("list", path, self._kazoo.get_children_async).addCallback(sorted)

    def sync(self, path: str = "/") -> Deferred[None]:
        return self._ask("sync", path, self._kazoo.sync_async).addCallback(lambda _: None)

    def add_auth(self, scheme: str, identity: str) -> Deferred[None]:
        """Fires when the server has accepted the credentials; every new connection repeats them."""

        def refused(failure: Failure) -> Failure:
            # Otherwise no later connection would come about.
            self._kazoo.auth_data.discard((scheme, identity))
            return failure

        added = self._ask("authenticate by", scheme, self._kazoo.add_auth_async, identity)
        return added.addCallbacks(lambda _: None, refused)

    # -- watches

    def _readWatching(
        self, what: str, path: str, kind: str, seen: _WatchCallback
    ) -> Deferred[tuple[Any, Stat | None]]:
        key = kind, path
        watcher = self._watchers.get(key) or _Watcher(self._watchers, key)

        def armed(found: Any) -> tuple[Any, Stat | None]:
            self._watchers.setdefault(key, watcher)
            watcher.seen = [each for each in watcher.seen if each.isWanted] + [seen]
            if what == "look for":
                stat = _statOrNone(found)
                return stat, stat
            stat = _stat(found[1])
            return (sorted(found[0]) if what == "list" else (found[0], stat)), stat

        begin = {
            "get": self._kazoo.get_async,
            "look for": self._kazoo.exists_async,
            "list": partial(self._kazoo.get_children_async, include_data=True),
        }[what]
        return self._ask(what, path, begin, watcher).addCallback(armed)


class _Watcher:
    """
    kazoo's callback for a path. All our watches of the path share it, since kazoo never forgets a
    callback.

    @ivar seen: the watches to call.
    """

    def __init__(self, watchers: dict[tuple[str, str], _Watcher], key: tuple[str, str]) -> None:
        self.seen: list[_WatchCallback] = []
        self._watchers = watchers
        self._key = key

    def __call__(self, event: Any) -> None:
        if self._watchers.get(self._key) is self:
            del self._watchers[self._key]
        seen, self.seen = self.seen, []
        kind = KINDS.get(event.type)
        if kind is not None:
            for each in seen:
                each(kind)


def _dataAndStat(found: tuple[bytes | None, Any]) -> tuple[bytes | None, Stat]:
    return found[0], _stat(found[1])


def _kindOf(error: Exception) -> type[ZookeeperError]:
    for theirs, ours in ERRORS:
        if isinstance(error, theirs):
            return ours
    return ZookeeperError


def _cancelCall(result: T, call: Any) -> T:
    if call.active():
        call.cancel()
    return result


def _statOrNone(stat: Any) -> Stat | None:
    return None if stat is None else _stat(stat)
