"""
A network in memory: connections whose far end is the test.

For code that connects through an endpoint. The test accepts or refuses, reads, answers in pieces,
stops reading, cuts; nothing else happens, and time is its clock's. The transport is Twisted's own
L{FileDescriptor}, with its buffering and its rules for producers, so it behaves under pressure like
a socket. C{tests/testing/test_network.py} holds both to the same promises.

    network = MemoryNetwork(clock)
    consumer = SimpleConsumer(clock, network.endpoint())
    fetching = consumer.fetch("topic", 0, 0, 1000)
    line = network.accept()
    network.turn()
    line.take()                 # the request
    line.deliver(answer[:7])    # half an answer
    line.cut()
"""

from __future__ import annotations

from typing import Any

from twisted.internet.abstract import FileDescriptor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
)
from twisted.internet.error import ConnectionRefusedError as RefusedError
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

ADDRESS = IPv4Address("TCP", "192.0.2.1", 9092)
UNLIMITED = 2**63


@implementer(ITCPTransport)
class _MemoryTransport(FileDescriptor):
    """
    The near end of a connection.

    @ivar roomSize: bytes that the wire takes before the far end reads.
    """

    def __init__(self, clock: Clock, line: MemoryPeer) -> None:
        super().__init__(clock)  # type: ignore[arg-type]
        self._clock = clock
        self.connected = 1
        self.roomSize = UNLIMITED
        self.isAborting = False
        self.isNoDelay = False
        self.isKeptAlive = False
        self._line = line
        self._turn: Any = None

    # The reactor's part. A turn is taken when there is something to do; a full wire wakes the
    # transport when it has room.

    def startReading(self) -> None:
        pass

    def stopReading(self) -> None:
        pass

    def startWriting(self) -> None:
        if self._turn is None:
            self._turn = self._clock.callLater(0, self.takeTurn)

    def stopWriting(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def takeTurn(self) -> None:
        """Write, since the wire has room: the reactor's C{doWrite}."""
        self._turn = None
        if self.isAborting or not self.connected:
            return
        before = self.roomSize
        why = self.doWrite() if self._isWanting() else None  # type: ignore[no-untyped-call]
        if why is not None:
            self.connectionLost(Failure(why))
        elif self._isWanting() and self.roomSize != before:
            self.startWriting()

    def _isWanting(self) -> bool:
        heldSize = len(self.dataBuffer) - self.offset + self._tempDataLen
        return (
            heldSize > 0
            or bool(self.disconnecting)
            or self._writeDisconnecting != self._writeDisconnected
        )

    def writeSomeData(self, data: bytes) -> int:
        some = bytes(memoryview(data)[: min(self.roomSize, self.SEND_LIMIT)])
        self.roomSize -= len(some)
        self._line.arrived += some
        return len(some)

    def _closeWriteConnection(self) -> None:
        self._line.isEnded = True

    def connectionLost(self, reason: Failure) -> None:
        if self._line.reason is not None:
            return
        self._line.reason = reason.value
        self._line.isEnded = True
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        self._line.protocol.connectionLost(reason)

    # ITCPTransport

    def abortConnection(self) -> None:
        if self.connected and not self.isAborting:
            self.isAborting = True
            self.stopWriting()
            self._clock.callLater(0, self.connectionLost, Failure(ConnectionAborted()))

    def getTcpNoDelay(self) -> bool:
        return self.isNoDelay

    def setTcpNoDelay(self, enabled: bool) -> None:
        self.isNoDelay = enabled

    def getTcpKeepAlive(self) -> bool:
        return self.isKeptAlive

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self.isKeptAlive = enabled

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.2", 50_000)

    def getPeer(self) -> IPv4Address:
        return ADDRESS


class MemoryPeer:
    """
    The far end of a connection.

    @ivar protocol: of the near end.
    @ivar transport: of the near end.
    @ivar arrived: bytes that came and were not taken yet.
    @ivar isEnded: whether the near end has closed its side, or all; what it wrote before has
        arrived.
    @ivar reason: why the near end's connection is gone; L{None} before.
    """

    def __init__(self, clock: Clock, protocol: IProtocol) -> None:
        self.protocol = protocol
        self.arrived = bytearray()
        self.isEnded = False
        self.reason: BaseException | None = None
        self.transport = _MemoryTransport(clock, self)

    def take(self) -> bytes:
        """
        The bytes that came since the last call. A stalled connection does not read more by it; see
        L{flow}.
        """
        taken = bytes(self.arrived)
        self.arrived.clear()
        return taken

    def stall(self) -> None:
        """Stop reading: what the near end writes from now on stays there."""
        self.transport.roomSize = 0

    def flow(self, size: int = UNLIMITED) -> None:
        """Read C{size} bytes more, or all from now on, in the next turns."""
        self.transport.roomSize = size
        self.transport.startWriting()

    def deliver(self, data: bytes) -> None:
        """Send bytes to the near end, which gets them at once, in one piece."""
        if self.reason is not None:
            raise RuntimeError(f"the line is gone: {self.reason}")
        if not self.transport.isAborting and not self.transport.disconnecting:
            self.protocol.dataReceived(data)

    def end(self) -> None:
        """Close the far end in order."""
        self.transport.connectionLost(Failure(ConnectionDone()))

    def cut(self, reason: BaseException | None = None) -> None:
        """Break the connection."""
        self.transport.connectionLost(Failure(reason or ConnectionLost()))


class PendingConnect:
    """
    An attempt to connect that waits for the test.

    @ivar name: of the endpoint.
    @ivar state: C{"waiting"}, C{"accepted"}, C{"refused"} or C{"cancelled"}.
    """

    def __init__(self, clock: Clock, name: str, factory: IProtocolFactory) -> None:
        self.name = name
        self.state = "waiting"
        self.connecting: Deferred[IProtocol] = Deferred(self._cancel)
        self._clock = clock
        self._factory = factory

    def _cancel(self, connecting: Deferred[IProtocol]) -> None:
        self.state = "cancelled"
        connecting.errback(ConnectingCancelledError(ADDRESS))

    def accept(self) -> MemoryPeer:
        """Let it connect."""
        self.state = "accepted"
        protocol = self._factory.buildProtocol(ADDRESS)
        assert protocol is not None
        line = MemoryPeer(self._clock, protocol)
        protocol.makeConnection(line.transport)
        self.connecting.callback(protocol)
        return line

    def refuse(self, reason: Exception | None = None) -> None:
        """Refuse it."""
        self.state = "refused"
        self.connecting.errback(reason or RefusedError())


@implementer(IStreamClientEndpoint)
class MemoryEndpoint:
    """An endpoint whose attempts to connect wait for the test."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network = network
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """See C{IStreamClientEndpoint}."""
        attempt = PendingConnect(self._network.clock, self._name, protocolFactory)
        self._network.attempts.append(attempt)
        return attempt.connecting


class MemoryNetwork:
    """
    All attempts to connect.

    @ivar attempts: in the order in which they were made.
    """

    def __init__(self, clock: Clock) -> None:
        """@param clock: of the code under test, too."""
        self.clock = clock
        self.attempts: list[PendingConnect] = []

    def endpoint(self, name: str = "puppet:9092") -> MemoryEndpoint:
        """@param name: of the endpoint, in its repr."""
        return MemoryEndpoint(self, name)

    @property
    def waiting(self) -> list[PendingConnect]:
        """Attempts that wait for the test."""
        return [attempt for attempt in self.attempts if attempt.state == "waiting"]

    def accept(self) -> MemoryPeer:
        """Let the oldest waiting attempt connect."""
        return self.waiting[0].accept()

    def refuse(self, reason: Exception | None = None) -> None:
        """Refuse the oldest waiting attempt."""
        self.waiting[0].refuse(reason)

    def turn(self) -> None:
        """Let everything happen that takes no time: bytes arrive, closed connections end."""
        self.clock.advance(0)
