"""
A server on a manual clock, with a file system that forgets unsynced bytes and workers that work on
demand. Its clients are bytes: kazoo's encoders make the requests.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from kazoo.protocol import serialization as wire
from kazoo.security import OPEN_ACL_UNSAFE
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger

from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.worker import ManualWorker
from pylogbroker.zookeeper.server.connection import ZookeeperConnection
from pylogbroker.zookeeper.server.service import ServerSettings, ZookeeperServer
from pylogbroker.zookeeper.server.transactionlog import TransactionLog

DIRECTORY = "/srv/zookeeper"
START = 1_300_000_000.0
TICK_MS = 1_000


class Reply(NamedTuple):
    """A frame from the server."""

    xid: int
    zxid: int
    error: int
    body: bytes


class Transport(StringTransport):
    """A transport that knows how it was closed."""

    isAborted = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing."""

    def abortConnection(self) -> None:
        super().abortConnection()
        self.isAborted = True
        self.disconnecting = True


class Peer:
    """
    A client's end of a connection.

    @ivar sessionId: once it is connected.
    """

    def __init__(self, server: ZookeeperServer) -> None:
        connection = server.buildProtocol(None)
        assert isinstance(connection, ZookeeperConnection)
        self.connection = connection
        self.transport = Transport()
        self.sessionId = self.timeoutMs = 0
        self.password = bytes(16)
        self._xid = 0
        connection.makeConnection(self.transport)

    @property
    def isClosed(self) -> bool:
        return bool(self.transport.disconnecting)

    def send(self, data: bytes) -> None:
        """A frame."""
        self.connection.dataReceived(struct.pack(">i", len(data)) + data)

    def sendConnect(
        self,
        timeoutMs: int = 4_000,
        sessionId: int = 0,
        password: bytes = bytes(16),
        lastZxid: int = 0,
        isOld: bool = False,
    ) -> None:
        """@param isOld: without the field that ZooKeeper 3.4 added."""
        body = bytes(wire.Connect(0, lastZxid, timeoutMs, sessionId, password, False).serialize())
        self.send(body[:-1] if isOld else body)

    def request(self, request: Any, opCode: int | None = None) -> int:
        """Send one of kazoo's requests; returns its number."""
        self._xid += 1
        number = request.type if opCode is None else opCode
        self.send(struct.pack(">ii", self._xid, number) + bytes(request.serialize()))
        return self._xid

    def raw(self, opCode: int, body: bytes = b"") -> int:
        self._xid += 1
        self.send(struct.pack(">ii", self._xid, opCode) + body)
        return self._xid

    def frames(self) -> list[bytes]:
        """What has come since the last call."""
        data, found = self.transport.value(), []
        self.transport.clear()
        while data:
            (size,) = struct.unpack_from(">i", data)
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found

    def replies(self) -> list[Reply]:
        return [
            Reply(*struct.unpack_from(">iqi", frame), frame[16:])  # type: ignore[call-arg]
            for frame in self.frames()
        ]

    def connected(self) -> None:
        """Take the response to the first frame."""
        (frame,) = self.frames()
        found, _ = wire.Connect.deserialize(frame, 0)
        self.timeoutMs, self.sessionId = found.time_out, found.session_id
        self.password = found.passwd

    def lose(self) -> None:
        """The connection breaks."""
        self.connection.connectionLost()


def create(path: str, data: bytes | None = b"", flags: int = 0, acls: Any = None) -> Any:
    return wire.Create(path, data, acls or OPEN_ACL_UNSAFE, flags)


class ServerBench:
    """
    The machine.

    @ivar worker: of the log.
    @ivar snapshotWorker: of the snapshots.
    @ivar events: what the log has reported.
    """

    def __init__(self, snapshotCount: int = 1_000_000, **settings: Any) -> None:
        self.clock = Clock()
        self.clock.advance(START)
        self.fileSystem = PowerCutFileSystem(self.nowMs)
        self.snapshotCount = snapshotCount
        self.segmentSizeMax = 16 << 20
        self.settings = ServerSettings(**{"tickMs": TICK_MS, **settings})
        self.events: list[Any] = []
        self._passwordCount = 0
        self.make()

    def nowMs(self) -> int:
        return int(self.clock.seconds() * 1000)

    def make(self) -> None:
        """A server that has not started."""
        self.worker, self.snapshotWorker = ManualWorker(), ManualWorker()
        self.log = TransactionLog(
            self.fileSystem,
            DIRECTORY,
            self.nowMs,
            self.events.append,
            self.snapshotCount,
            self.segmentSizeMax,
        )
        self.server = ZookeeperServer(
            self.clock,
            self.log,
            self.worker.submit,
            self.snapshotWorker.submit,
            self._password,
            RateLimitedLogger(self.clock, Logger()),
            self.settings,
        )

    def _password(self, size: int) -> bytes:
        self._passwordCount += 1
        return self._passwordCount.to_bytes(size, "big")

    def start(self) -> None:
        """Raises what the start fails with."""
        started = Deferred.fromCoroutine(self.server.start())
        self.worker.performAll()
        self._resultOf(started)

    def stop(self) -> None:
        """Raises what the stop fails with."""
        stopped = Deferred.fromCoroutine(self.server.stop())
        self.settle()
        self._resultOf(stopped)

    @staticmethod
    def _resultOf(done: Deferred[None]) -> None:
        results: list[Any] = []
        done.addBoth(results.append)
        (result,) = results
        if result is not None:
            result.raiseException()

    def settle(self) -> None:
        """Let everything happen that is on its way, without time."""
        for _ in range(1_000):
            self.clock.advance(0)
            if not self.worker.performAll() + self.snapshotWorker.performAll():
                return
        raise AssertionError("it does not settle")

    def kill(self) -> None:
        """End the server without warning, and start it again."""
        self.fileSystem.kill()
        self.make()
        self.start()

    def peer(self) -> Peer:
        """A connection without a session."""
        return Peer(self.server)

    def client(self, timeoutMs: int = 4_000, **keywords: Any) -> Peer:
        """A connection with a session."""
        peer = self.peer()
        peer.sendConnect(timeoutMs, **keywords)
        self.settle()
        peer.connected()
        return peer

    def ask(self, peer: Peer, request: Any, opCode: int | None = None) -> Reply:
        """The answer to a request; events must not come meanwhile."""
        xid = peer.request(request, opCode)
        self.settle()
        (reply,) = peer.replies()
        assert reply.xid == xid, (reply, xid)
        return reply
