"""
The handler that connects kazoo's threads to the reactor's.

kazoo calls back from threads of its own, out of two queues: answers and watches. L{ReactorQueue}
takes their place and hands each callback to the reactor, in kazoo's order.

kazoo does not tell which session time-out the server has granted. A handler creates kazoo's
sockets, so L{NegotiatingSocket} reads it from the first frame that a server sends
(C{ConnectResponse}: int32 size, int32 protocol version, int32 time-out in milliseconds). The
contract suite of clients checks it on a real server.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class ReactorQueue:
    """A queue for kazoo's callbacks that runs each on the reactor's thread."""

    def __init__(self, callFromThread: Callable[..., object]) -> None:
        self._callFromThread = callFromThread

    def put(self, callback: Callable[[], object]) -> None:
        self._callFromThread(callback)


_HEAD = struct.Struct(">iii")


class NegotiatingSocket:
    """A socket to a ZooKeeper server that reports the granted session time-out."""

    def __init__(self, inner: Any, granted: Callable[[int], object]) -> None:
        """
        @param granted: called once, on the reading thread, with milliseconds; 0 or less means that
            the session has expired.
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


class ReactorCallbacks(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no annotations
    """kazoo's handler without threads for callbacks."""

    def __init__(
        self, callFromThread: Callable[..., object], granted: Callable[[int], object]
    ) -> None:
        """
        @param callFromThread: the reactor's.
        @param granted: called on kazoo's thread with the granted time-out, in milliseconds, before
            kazoo reports the connection.
        """
        super().__init__()
        self._granted = granted
        self.callback_queue: Any = ReactorQueue(callFromThread)
        self.completion_queue: Any = ReactorQueue(callFromThread)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        return NegotiatingSocket(super().create_connection(*args, **kwargs), self._granted)

    def start(self) -> None:
        """Start nothing: there are no threads."""
        self._running = True

    def stop(self) -> None:
        """Stop nothing."""
        self._running = False
