"""
The bench of the contract for a server that listens on a port: real connections by kazoo, each
through a proxy that can be cut.
"""

from __future__ import annotations

import socket
from itertools import count
from typing import Any

from kazoo.client import KazooClient
from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.protocols.portforward import ProxyFactory, ProxyServer

from pylogbroker.zookeeper.client import ZookeeperClient
from tests.contracts import zookeeper

reactor: Any = _reactor
_numbers = count()


def freePort() -> int:
    """A free port of the loopback interface."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class _Line(ProxyServer):
    """A connection through the L{Wire}."""

    factory: Any
    transport: Any

    def connectionMade(self) -> None:
        if self.factory.wire.isCut:
            self.transport.abortConnection()
            return
        self.factory.wire.lines.append(self)
        super().connectionMade()

    def connectionLost(self, reason: Any = None) -> None:
        if self in self.factory.wire.lines:
            self.factory.wire.lines.remove(self)
        super().connectionLost(reason)


class Wire:
    """A port that leads to the server, and can be cut."""

    def __init__(self, port: int) -> None:
        self.isCut = False
        self.lines: list[Any] = []
        factory: Any = ProxyFactory("127.0.0.1", port)
        factory.protocol = _Line
        factory.wire = self
        self._listening = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.port = self._listening.getHost().port

    def cut(self) -> None:
        self.isCut = True
        for line in list(self.lines):
            line.transport.abortConnection()

    def mend(self) -> None:
        self.isCut = False

    async def close(self) -> None:
        self.cut()
        await maybeDeferred(self._listening.stopListening)
        while self.lines:
            await zookeeper.pause(0.01)
        await zookeeper.pause(0.01)


class RealBench:
    """A real server; each client has a wire of its own, and each test a chroot."""

    def __init__(self, case: Any, port: int, tickMs: int) -> None:
        """
        @param port: of the server, on the loopback interface.
        @param tickMs: of the server.
        """
        self.sessionTimeoutMsMin = 2 * tickMs
        self._case = case
        self._port = port
        self._wires: dict[Any, Wire] = {}
        self.root = f"/test{next(_numbers)}"

    def begin(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._begin())

    async def _begin(self) -> None:
        client = ZookeeperClient(reactor, f"127.0.0.1:{self._port}")
        await client.connect(zookeeper.CONNECT_MS)
        await client.create(self.root)
        await client.close()

    def client(self, chroot: str = "", session_timeout: int = zookeeper.SESSION_MS) -> Any:
        wire = Wire(self._port)
        self._case.addCleanup(wire.close)
        client = ZookeeperClient(
            reactor, f"127.0.0.1:{wire.port}{self.root}{chroot}", session_timeout
        )
        self._case.addCleanup(client.close)
        self._wires[client] = wire
        return client

    async def disconnect(self, client: Any) -> None:
        self._wires[client].cut()
        await self._case.until(lambda: not client.connected, "the end of the connection")

    async def reconnect(self, client: Any) -> None:
        self._wires[client].mend()

    async def end(self, client: Any) -> None:
        """Another client with the same session closes it."""
        session = client._kazoo._session_id, client._kazoo._session_passwd

        def close() -> None:
            thief = KazooClient(f"127.0.0.1:{self._port}", client_id=session)
            thief.start()
            thief.stop()
            thief.close()

        await deferToThread(close)

    async def stop(self) -> None:
        self._port = 1  # no server listens there
