"""
The handler that connects kazoo's threads to the reactor's, and the watchdog. It is a module of its
own, since it alone depends on kazoo's handlers.

kazoo calls back from its own threads, out of two queues: answers and watches.
L{ReactorCallbacks} replaces both and hands each callback to the reactor, in kazoo's order. An
answer has its place in that order when kazoo receives it (L{_Answer}), and not when the reactor's
thread links a callback to it: an event that followed it would come first, and find no watch yet.

kazoo does not tell which session time-out the server has granted. A handler creates kazoo's
sockets, so L{ConnectResponseSniffer} reads it from the server's first frame (C{ConnectResponse}:
int32 size, int32 protocol version, int32 time-out in milliseconds). The contract suite of clients
checks it on a real server.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

_HEAD = struct.Struct(">iii")


class ConnectResponseSniffer:
    """A socket to a ZooKeeper server that reports the granted session time-out."""

    def __init__(self, inner: Any, granted: Callable[[int], object]) -> None:
        """
        @param granted: called once, on the reading thread, with milliseconds; 0 or less: the
            session has expired.
        """
        self._inner = inner
        self._granted = granted
        self._head: bytes | None = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def recv(self, size: int) -> bytes:
        data: bytes = self._inner.recv(size)
        if self._head is not None:
            self._head += data
            if len(self._head) >= _HEAD.size:
                _size, _version, timeoutMs = _HEAD.unpack_from(self._head)
                self._head = None
                self._granted(timeoutMs)
        return data


class _Answer(AsyncResult):  # type: ignore[misc] # kazoo has no annotations
    """
    An answer that is handed to the reactor when kazoo receives it. A callback that is linked in the
    reactor's turn in which the request was made is called before those of later events.
    """

    def __init__(self, handler: Any) -> None:
        super().__init__(handler)
        self._linked: list[Callable[[Any], object]] | None = []
        super().rawlink(self._handOver)

    def rawlink(self, callback: Callable[[Any], object]) -> None:
        """See C{AsyncResult.rawlink}."""
        with self._condition:
            if self._linked is not None:
                self._linked.append(callback)
                return
        super().rawlink(callback)

    def _handOver(self, _self: object) -> None:
        with self._condition:
            linked, self._linked = self._linked or [], None
        for each in linked:
            each(self)


class ReactorCallbacks(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no annotations
    """kazoo's handler without threads for callbacks."""

    def __init__(
        self, callFromThread: Callable[..., object], granted: Callable[[int], object]
    ) -> None:
        """
        @param granted: called on kazoo's thread with the granted time-out, in milliseconds, before
            kazoo reports the connection.
        """
        super().__init__()
        self._granted = granted
        self.callback_queue: Any = SimpleNamespace(put=callFromThread)
        self.completion_queue: Any = self.callback_queue
        self.async_result: Callable[[], Any] = partial(_Answer, self)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        return ConnectResponseSniffer(super().create_connection(*args, **kwargs), self._granted)

    def start(self) -> None:
        """There are no threads."""
        self._running = True

    def stop(self) -> None:
        """There are no threads."""
        self._running = False


LOOKS = 4
"""Checks within C{hangMs}."""


class ReactorWatchdog:
    """
    A watchdog for one reactor.

    @ivar hangMs: how long the reactor may hang.
    """

    def __init__(self, reactor: Any, onHang: Callable[[], None], hangMs: float) -> None:
        """@param onHang: called on the thread, once for each hang."""
        self.hangMs = hangMs
        self._reactor = reactor
        self._onHang = onHang
        self._missed = 0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._look, name="pylogbroker-watchdog", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop checking, without waiting for the thread."""
        self._stopped.set()

    def _alive(self) -> None:
        self._missed = 0

    def _look(self) -> None:
        while not self._stopped.wait(self.hangMs / 1000 / LOOKS):
            self._missed += 1
            if self._missed == LOOKS + 1:
                self._onHang()
            elif self._missed <= LOOKS:
                self._reactor.callFromThread(self._alive)
