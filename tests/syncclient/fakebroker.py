"""
The far end of real sockets, for tests of code that blocks: the code under test runs on a thread,
the test holds the other end.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.syncclient.connection import BrokerSocket

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE_SECONDS = 60
"""After this a test is not slow but stuck."""


class Connection:
    """One accepted connection."""

    def __init__(self, accepted: socket.socket) -> None:
        accepted.settimeout(PATIENCE_SECONDS)
        self.socket = accepted

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        data = b""
        while len(data) < size and (some := self.socket.recv(size - len(data))):
            data += some
        return data

    def readFrame(self) -> bytes:
        """A whole frame, with its size field."""
        head = self.read(4)
        return head + self.read(*struct.unpack(">i", head))

    def isEnded(self) -> bool:
        """Wait for what comes next; whether it is the end."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def write(self, data: bytes) -> None:
        """Send."""
        self.socket.sendall(data)

    def close(self) -> None:
        """Close in order."""
        self.socket.close()

    def reset(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class FakeBrokerCase(SynchronousTestCase):
    """A listening socket, and threads for what blocks."""

    def setUp(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(PATIENCE_SECONDS)
        self.addCleanup(self.listener.close)
        self.port = self.listener.getsockname()[1]
        self.threads = ThreadPoolExecutor(4)
        self.addCleanup(self.threads.shutdown)

    def accept(self) -> Connection:
        """The next connection."""
        connection = Connection(self.listener.accept()[0])
        self.addCleanup(connection.close)
        return connection

    def start(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let a call block on a thread."""
        return self.threads.submit(call, *args, **kwargs)

    def result(self, call: Future[T]) -> T:
        """What it came to; raises what it raised."""
        return call.result(PATIENCE_SECONDS)

    def failure(self, call: Future[Any], kind: type[Exception]) -> str:
        """What it failed with, as text."""
        error = self.assertRaises(kind, call.result, PATIENCE_SECONDS)
        return str(error)

    def untilHeard(self, near: BrokerSocket) -> None:
        """
        Wait until what the far end did, end or bytes, is there at the near end, which is idle.
        """
        self.assertTrue(select.select([near], [], [], PATIENCE_SECONDS)[0])

    def unusedPort(self) -> int:
        """A port on which nobody listens."""
        with socket.create_server(("127.0.0.1", 0)) as unused:
            return int(unused.getsockname()[1])


class ManualTime:
    """A clock that moves when somebody pauses."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        """Now."""
        return self.seconds

    def pause(self, seconds: float) -> None:
        """Wait."""
        self.pauses.append(round(seconds, 6))
        self.seconds += seconds
