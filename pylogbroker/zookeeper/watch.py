"""
The base of L{pylogbroker.zookeeper.client} and its fake: watches that survive lost connections, and
session listeners.

ZooKeeper's own watch fires once. kazoo drops all watches with the connection. So a L{OneTimeWatch}
remembers the state that it read. When the connection is back with the same session, it reads again
and fires only on a changed state. When the session expires, it fails. It fires or fails once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ConnectionLossException,
    NoNodeException,
    SessionExpiredException,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import SessionEvent, Stat, WatchEvent

Read = Callable[["_WatchCallback"], "Deferred[tuple[Any, Any]]"]
"""
Reads a node and arms the server's watch, which calls its argument. Fires with (the answer, the
state of the node).
"""

NOT_THERE = object()
"""The state of a node that does not exist."""


class _WatchCallback:
    """
    The callback of one reading, for the kind of event of the server's watch.

    @ivar isWanted: whether a call would still have an effect.
    """

    __slots__ = ("_generation", "_watch")

    def __init__(self, watch: OneTimeWatch, generation: int) -> None:
        self._watch = watch
        self._generation = generation

    @property
    def isWanted(self) -> bool:
        return self._watch.isWaitingFor(self._generation)

    def __call__(self, kind: str) -> None:
        if self.isWanted:
            self._watch._fire(kind)


class OneTimeWatch:
    """
    A watch of an application.

    @ivar fired: fires with a L{WatchEvent}.
    """

    def __init__(
        self, path: str, kind: str, read: Read, forget: Callable[[OneTimeWatch], None]
    ) -> None:
        """
        @param kind: the kind of event when only a new reading shows the change: C{"changed"} or
            C{"child"}.
        @param forget: called when the watch is over.
        """
        self.fired: Deferred[WatchEvent] = Deferred(self._cancelled)
        self._path = path
        self._kind = kind
        self._read = read
        self._forget = forget
        self._state: Any = None
        self._generation = 0
        self._isOver = False
        self._isBegun = False

    def begin(self) -> Deferred[Any]:
        """@return: fires with the answer; a failure ends the watch."""
        return self._arm().addCallbacks(self._begun, self._notBegun)

    def _arm(self) -> Deferred[tuple[Any, Any]]:
        self._generation += 1
        return self._read(_WatchCallback(self, self._generation))

    def isWaitingFor(self, generation: int) -> bool:
        """Whether this is the latest reading of an active watch."""
        return generation == self._generation and not self._isOver

    def _begun(self, result: tuple[Any, Any]) -> Any:
        answer, self._state = result
        self._isBegun = True
        return answer

    def _notBegun(self, failure: Failure) -> Failure:
        self._over()
        return failure

    def renew(self) -> None:
        """
        Read again: the connection is back. (A first reading under way has failed, and its watch
        with it.)
        """
        if self._isBegun and not self._isOver:
            reading = self._arm()
            reading.addCallbacks(self._renewed, self._notRenewed, errbackArgs=(self._generation,))

    def _renewed(self, result: tuple[Any, Any]) -> None:
        before, (_answer, state) = self._state, result
        if state == before:
            return
        if before is NOT_THERE:
            self._fire("created")
        elif state is NOT_THERE:
            self._fire("deleted")
        else:
            self._fire(self._kind)

    def _notRenewed(self, failure: Failure, generation: int) -> None:
        if not self.isWaitingFor(generation):
            return
        if failure.check(NoNodeException):
            self._fire("deleted")
        elif failure.check(ZookeeperTimeoutException):
            self.renew()  # the server is slow, and there is no other occasion to read again
        elif failure.value is not None and not failure.check(
            ConnectionLossException, SessionExpiredException
        ):
            self.fail(failure.value)
        # Else the connection will be back again, or the session is over and C{fail} comes.

    def _fire(self, kind: str) -> None:
        if self._over():
            self.fired.callback(WatchEvent(kind, self._path))

    def fail(self, reason: BaseException) -> None:
        if self._over():
            self.fired.errback(reason)

    def _cancelled(self, _fired: Deferred[WatchEvent]) -> None:
        self._over()

    def _over(self) -> bool:
        if self._isOver:
            return False
        self._isOver = True
        self._forget(self)
        return True


class ZookeeperClientBase:
    """
    The base of a client: its listeners and its watches, with the calls of txzookeeper. A subclass
    has the session, and makes the requests.

    @ivar session_id: of the current session; 0 without one.
    @ivar connected: whether requests can be answered now.
    """

    _log = Logger()

    def __init__(self) -> None:
        self.session_id = 0
        self.connected = False
        self._watches: dict[OneTimeWatch, None] = {}
        self._callback: Callable[[SessionEvent], None] | None = None
        self._listeners: list[Callable[[SessionEvent], None]] = []

    def get_and_watch(
        self, path: str
    ) -> tuple[Deferred[tuple[bytes | None, Stat]], Deferred[WatchEvent]]:
        return self._watch("get", path, "changed")

    def exists_and_watch(self, path: str) -> tuple[Deferred[Stat | None], Deferred[WatchEvent]]:
        return self._watch("look for", path, "changed")

    def get_children_and_watch(self, path: str) -> tuple[Deferred[list[str]], Deferred[WatchEvent]]:
        return self._watch("list", path, "child")

    def _watch(self, what: str, path: str, kind: str) -> tuple[Deferred[Any], Deferred[WatchEvent]]:
        def state(found: tuple[Any, Stat | None]) -> tuple[Any, Any]:
            answer, stat = found
            if stat is None:
                return answer, NOT_THERE
            return answer, (stat.czxid, stat.cversion if kind == "child" else stat.mzxid)

        def read(seen: _WatchCallback) -> Deferred[tuple[Any, Any]]:
            return self._readWatching(what, path, kind, seen).addCallback(state)

        watch = OneTimeWatch(path, kind, read, lambda over: self._watches.pop(over, None))
        self._watches[watch] = None
        return watch.begin(), watch.fired

    def _readWatching(
        self, what: str, path: str, kind: str, seen: _WatchCallback
    ) -> Deferred[tuple[Any, Stat | None]]:
        """
        Read a node and arm a watch of the server.

        @param what: the request: C{"get"}, C{"look for"} or C{"list"}.
        @param kind: C{"changed"} for a watch of the node, C{"child"} for one of its children.
        @param seen: called once, if the watch fires after the answer.
        @return: fires with the answer, and with the node's L{Stat} or L{None}.
        """
        raise NotImplementedError

    def set_session_callback(self, callback: Callable[[SessionEvent], None]) -> None:
        self._callback = callback

    def add_session_listener(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """@return: removes the listener."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _report(self, event: SessionEvent) -> None:
        if self._callback is not None:
            self._call(self._callback, event)
        for listener in list(self._listeners):
            if listener in self._listeners:
                self._call(listener, event)

    def _call(self, listener: Callable[[SessionEvent], None], event: SessionEvent) -> None:
        try:
            listener(event)
        except Exception:
            self._log.failure("A session listener failed")
