"""
A connection between two processes of a topology: frames in, frames out. A module of its own, since
instances, stream managers, the master and metrics managers speak over it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.python.failure import Failure

from pylogbroker.errors import WireError
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.retry import Backoff, RetryDelays
from pylogbroker.topologies.messages import (
    BATCH,
    FRAME_SIZE_MAX,
    Control,
    decodeControl,
    encodeControl,
)

CONNECT_DELAYS = RetryDelays(20, 1_000)
"""Between attempts to connect to a process of a topology."""

CONNECT_TIMEOUT = 5.0
"""Seconds that a connection may take to be made."""

SILENCE_SECONDS_MAX = 10.0
"""
Seconds that the other end may take to acknowledge bytes, or to have room for more; then the
connection is lost. The kernel measures it, and asks an end that has nothing to say.
"""

_PROBE_COUNT = 5


class IFrameHandler(Protocol):
    """What a connection tells. A L{WireError} that a method raises closes the connection."""

    def connected(self, connection: TopologyConnection) -> None:
        """It can be written to."""

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """A control message."""

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """A batch; C{body} is a frame's, and its first byte is L{BATCH}."""

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """It is gone; called once, and nothing of it is called behind it."""


class TopologyConnection(TwistedProtocol):
    """
    One end of a connection.

    @ivar isOver: whether nothing is read from it, or written to it, any more.
    """

    transport: Any

    def __init__(self, handler: IFrameHandler) -> None:
        self._handler = handler
        self._decoder = FrameDecoder(FRAME_SIZE_MAX)
        self.isOver = False

    def connectionMade(self) -> None:
        """See C{IProtocol}."""
        noDelay = getattr(self.transport, "setTcpNoDelay", None)
        if noDelay is not None:  # not on a unix socket
            noDelay(True)
            _limitSilence(self.transport)
        self._handler.connected(self)

    def dataReceived(self, data: bytes) -> None:
        """See C{IProtocol}."""
        if self.isOver:
            return
        decoder, handler = self._decoder, self._handler
        decoder.feed(data)
        try:
            while not self.isOver:
                body = decoder.take()
                if body is None:
                    break
                if body[0] == BATCH:
                    handler.batchReceived(self, body)
                else:
                    handler.controlReceived(self, decodeControl(body))
        except WireError as error:
            self.abort(str(error))

    def connectionLost(self, reason: Any = None) -> None:
        """See C{IProtocol}."""
        self._end(reason.getErrorMessage())

    def send(self, message: Control) -> None:
        """Write a control message."""
        self.write(encodeControl(message))

    def write(self, frame: bytes) -> None:
        """Write a frame."""
        if not self.isOver:
            self.transport.write(frame)

    def close(self, reason: str) -> None:
        """Close it, behind what was written; its handler is told at once."""
        if not self.isOver:
            self.transport.loseConnection()
            self._end(reason)

    def abort(self, reason: str) -> None:
        """Close it at once, and tell its handler."""
        if not self.isOver:
            self.transport.abortConnection()
            self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.isOver:
            self.isOver = True
            self._handler.disconnected(self, reason)


def _limitSilence(transport: Any) -> None:
    """Have a link that is cut without a word end as one that is closed does."""
    transport.setTcpKeepAlive(True)
    getHandle = getattr(transport, "getHandle", None)
    if getHandle is None or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return  # a network in memory, or a system that has its own limits only
    halfSeconds = SILENCE_SECONDS_MAX / 2
    options = {
        socket.TCP_USER_TIMEOUT: SILENCE_SECONDS_MAX * 1000,
        socket.TCP_KEEPIDLE: halfSeconds,
        socket.TCP_KEEPINTVL: halfSeconds / _PROBE_COUNT,
        socket.TCP_KEEPCNT: _PROBE_COUNT,
    }
    for option, value in options.items():
        getHandle().setsockopt(socket.IPPROTO_TCP, option, max(1, int(value)))


class TopologyClient:
    """
    Keeps a connection to one address: it connects again, with growing delays, whenever the
    connection is gone.

    @ivar address: C{host:port}; L{None}: it is not to connect.
    @ivar connection: the one that there is now, if any.
    @ivar attempt: counts its connections, for C{Hello.attempt}.
    """

    def __init__(
        self,
        clock: IReactorTime,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        handler: IFrameHandler,
        random: Callable[[], float],
    ) -> None:
        """
        @param endpointTo: makes an endpoint of C{host:port}.
        @param handler: of all its connections, one after the other.
        @param random: gives numbers from 0 up to, not including, 1.
        """
        self.address: str | None = None
        self.connection: TopologyConnection | None = None
        self.attempt = 0
        self._clock = clock
        self._endpointTo = endpointTo
        self._handler = handler
        self._timer = Timer(clock)
        self._connecting: Deferred[Any] | None = None
        self._backoff = Backoff(random, CONNECT_DELAYS)

    def goTo(self, address: str | None) -> None:
        """Connect to an address, and leave another one; L{None}: to none."""
        if address == self.address:
            return
        self.address = address
        self._backoff.succeeded()
        self._timer.stop()
        if self._connecting is not None:
            self._connecting.cancel()
        if self.connection is not None:
            self.connection.abort("it is to connect to another address")
        self._connect()

    def welcomed(self) -> None:
        """The other side has answered as it should: the next delay is a short one."""
        self._backoff.succeeded()

    def _connect(self) -> None:
        if self.address is None or self._connecting is not None or self.connection is not None:
            return
        factory = Factory.forProtocol(lambda: TopologyConnection(self))
        factory.noisy = False
        self._connecting = self._endpointTo(self.address).connect(factory)
        self._connecting.addTimeout(CONNECT_TIMEOUT, self._clock)
        self._connecting.addCallbacks(self._reached, self._notReached)

    def _reached(self, _connection: Any) -> None:
        self._connecting = None

    def _notReached(self, _failure: Failure) -> None:
        self._connecting = None
        self._retry()

    def _retry(self) -> None:
        if self.address is not None:
            self._timer.start(self._backoff.failed(), self._connect)

    # IFrameHandler

    def connected(self, connection: TopologyConnection) -> None:
        """See L{IFrameHandler}."""
        self.connection = connection
        self.attempt += 1
        self._handler.connected(connection)

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See L{IFrameHandler}."""
        self._handler.controlReceived(connection, message)

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See L{IFrameHandler}."""
        self._handler.batchReceived(connection, body)

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See L{IFrameHandler}."""
        self.connection = None
        self._handler.disconnected(connection, reason)
        self._retry()


def tcpEndpoints(reactor: Any) -> Callable[[str], IStreamClientEndpoint]:
    """
    @return: makes an endpoint of C{host:port}, where the host is an address.
    """

    def endpointTo(address: str) -> IStreamClientEndpoint:
        host, _, port = address.rpartition(":")
        return TCP4ClientEndpoint(reactor, host, int(port))

    return endpointTo
