"""
A broker that does what a test tells it to, on real sockets in the test's reactor: for what a real
broker does not do on demand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.python.failure import Failure

from pylogbroker.protocol.framing import FrameDecoder


class ScriptedConnection(Protocol):
    """
    A client.

    @ivar index: which of the broker's connections it is, from 0.
    @ivar requests: the frames that came, without their size fields.
    """

    def __init__(self, broker: ScriptedBroker, index: int) -> None:
        self.index = index
        self.requests: list[bytes] = []
        self._broker = broker
        self._decoder = FrameDecoder(1 << 20)

    @property
    def tcp(self) -> Any:
        """The transport."""
        return self.transport

    def dataReceived(self, data: bytes) -> None:
        """Twisted's."""
        self._decoder.feed(data)
        while (body := self._decoder.take()) is not None:
            self.requests.append(body)
            self._broker.onRequest(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Twisted's."""
        self._broker.open.discard(self)

    def write(self, data: bytes) -> None:
        """Answer."""
        self.tcp.write(data)

    def end(self) -> None:
        """Close."""
        self.tcp.loseConnection()

    def cut(self) -> None:
        """Reset."""
        self.tcp.abortConnection()


class ScriptedBroker:
    """
    @ivar onRequest: what to do when a connection has one request more.
    @ivar connections: all there were.
    """

    def __init__(self, reactor: Any) -> None:
        self.onRequest: Callable[[ScriptedConnection], object] = lambda connection: None
        self.connections: list[ScriptedConnection] = []
        self.open: set[ScriptedConnection] = set()
        self._port: Any = reactor.listenTCP(
            0, Factory.forProtocol(self._build), interface="127.0.0.1"
        )
        self.host = "127.0.0.1"
        self.port: int = self._port.getHost().port

    def _build(self) -> ScriptedConnection:
        connection = ScriptedConnection(self, len(self.connections))
        self.connections.append(connection)
        self.open.add(connection)
        return connection

    async def stopListening(self) -> None:
        """Accept no more."""
        port, self._port = self._port, None
        if port is not None:
            await port.stopListening()

    async def stop(self) -> None:
        """Close all."""
        await self.stopListening()
        for connection in list(self.open):
            connection.cut()
