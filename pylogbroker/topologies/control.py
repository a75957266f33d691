"""
Connections that carry control messages only: to the master and to metrics managers. A module of its
own, since both ends of both use it.

The one that connects says L{Hello} first and is answered with L{Welcome} or L{Refused}. A peer that
does not read, or that says what cannot be decoded, is cut off: it can connect again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import FrameSizeError, WireError
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.retry import Backoff, RetryDelays
from pylogbroker.topologies.messages import (
    CONTROL,
    FRAME_SIZE_MAX,
    Control,
    Hello,
    Refused,
    Welcome,
    decodeControl,
    encodeControl,
)

log = Logger()

HELLO_SECONDS_MAX = 10
"""How long a connection may take to say hello, or to be welcomed."""

CONNECT_DELAYS = RetryDelays(50, 1_000)
"""Between attempts to connect."""

_SIZE = struct.Struct(">I")


@implementer(IPushProducer)
class ControlConnection(Protocol):
    """
    A connection.

    @ivar hello: what the other end has said first; L{None}: nothing yet, or it does not say hello.
    """

    transport: Any

    def __init__(
        self,
        made: Callable[[ControlConnection], object],
        received: Callable[[ControlConnection, Control], object],
        lost: Callable[[ControlConnection], object],
    ) -> None:
        """
        @param received: called with each message; a L{WireError} that it raises ends the
            connection.
        @param lost: called once when the connection has ended.
        """
        self.hello: Hello | None = None
        self._made = made
        self._received = received
        self._lost = lost
        self._decoder = FrameDecoder(FRAME_SIZE_MAX)
        self._isFull = False
        self._isClosing = False

    def connectionMade(self) -> None:
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._made(self)

    def dataReceived(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            while not self._isClosing and (frame := self._decoder.take()) is not None:
                if frame[0] != CONTROL:
                    raise WireError(f"a frame of kind {frame[0]} is no control message")
                self._received(self, decodeControl(frame))
        except (WireError, FrameSizeError) as error:
            log.warn(
                "A connection from {peer} is closed: {error}",
                peer=self.transport.getPeer(),
                error=error,
            )
            self.abort()

    def send(self, message: Control) -> bool:
        """@return: L{False}: the other end does not read, and the connection is cut off."""
        if self._isFull:
            self.abort()
            return False
        body = encodeControl(message)
        self.transport.write(_SIZE.pack(len(body)) + body)
        return True

    def close(self) -> None:
        """End it, when all is sent."""
        self._isClosing = True
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abort(self) -> None:
        """End it now."""
        self._isClosing = True
        self.transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._lost(self)

    # of the transport, which has more to write than the other end reads

    def pauseProducing(self) -> None:
        self._isFull = True

    def resumeProducing(self) -> None:
        self._isFull = False

    def stopProducing(self) -> None:
        """The connection has ended."""


class ControlServer(Factory):
    """
    Connections that others make, each with a hello.

    @ivar connections: the open ones.
    """

    noisy = False

    def __init__(
        self,
        reactor: Any,
        hello: Callable[[ControlConnection, Hello], object],
        received: Callable[[ControlConnection, Control], object],
        lost: Callable[[ControlConnection], object],
        countMax: int,
    ) -> None:
        """
        @param hello: called first for each connection; it answers.
        @param received: called with each further message.
        @param lost: called when a connection has ended that had said hello.
        @param countMax: the most connections; one more is cut off.
        """
        self._reactor = reactor
        self._onHello = hello
        self._onMessage = received
        self._onLost = lost
        self._countMax = countMax
        self.connections: dict[ControlConnection, Any] = {}  # and their timers

    def buildProtocol(self, addr: object) -> ControlConnection | None:
        if len(self.connections) >= self._countMax:
            log.warn("A connection is refused: there are {count} already", count=self._countMax)
            return None
        return ControlConnection(self._made, self._received, self._lost)

    def _made(self, connection: ControlConnection) -> None:
        self.connections[connection] = self._reactor.callLater(HELLO_SECONDS_MAX, connection.abort)

    def _received(self, connection: ControlConnection, message: Control) -> None:
        if connection.hello is not None:
            self._onMessage(connection, message)
        elif isinstance(message, Hello):
            self.connections[connection].cancel()
            connection.hello = message
            self._onHello(connection, message)
        else:
            raise WireError(f"{type(message).__name__} before Hello")

    def _lost(self, connection: ControlConnection) -> None:
        timer = self.connections.pop(connection)
        if timer.active():
            timer.cancel()
        if connection.hello is not None:
            self._onLost(connection)

    def closeAll(self) -> None:
        """Cut off all."""
        for each in list(self.connections):
            each.abort()


class ControlClient:
    """
    Keeps a connection: it connects again when one ends.

    @ivar isWelcome: whether there is one whose hello was taken.
    """

    def __init__(
        self,
        reactor: Any,
        random: Callable[[], float],
        hello: Callable[[], Hello],
        received: Callable[[Control], object] = lambda message: None,
    ) -> None:
        """
        @param hello: what to say first, asked at each connection.
        @param received: called with each message behind the welcome.
        """
        self.isWelcome = False
        self._reactor = reactor
        self._hello = hello
        self._onMessage = received
        self._backoff = Backoff(random, CONNECT_DELAYS)
        self._endpoint: Any = None
        self._connecting: Deferred[Any] | None = None
        self._connection: ControlConnection | None = None
        self._timer: Any = None

    def connectTo(self, endpoint: Any) -> None:
        """
        @param endpoint: an L{twisted.internet.interfaces.IStreamClientEndpoint}; L{None}: connect
            no more. A present connection is cut off.
        """
        self._endpoint = endpoint
        self._backoff.succeeded()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, self._connection = self._connection, None
        self.isWelcome = False
        if connection is not None:
            connection.abort()
        if endpoint is not None:
            self._connect()

    def stop(self) -> None:
        """End the connection, and connect no more."""
        self.connectTo(None)

    def send(self, message: Control) -> bool:
        """@return: L{False}: it is not sent, since there is no connection that can take it."""
        return self.isWelcome and self._connection is not None and self._connection.send(message)

    def _connect(self) -> None:
        self._timer = None
        factory = Factory.forProtocol(
            lambda: ControlConnection(self._made, self._received, self._lost)
        )
        factory.noisy = False
        self._connecting = maybeDeferred(self._endpoint.connect, factory)
        self._connecting.addErrback(self._notConnected)

    def _notConnected(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            return
        self._connecting = None
        self._again()

    def _again(self) -> None:
        if self._endpoint is not None and self._timer is None:
            self._timer = self._reactor.callLater(self._backoff.failed() / 1000, self._connect)

    def _made(self, connection: ControlConnection) -> None:
        self._connecting = None
        self._connection = connection
        connection.send(self._hello())
        self._timer = self._reactor.callLater(HELLO_SECONDS_MAX, self._late, connection)

    def _late(self, connection: ControlConnection) -> None:
        self._timer = None
        connection.abort()

    def _received(self, connection: ControlConnection, message: Control) -> None:
        if connection is not self._connection:
            return
        if self.isWelcome:
            self._onMessage(message)
        elif isinstance(message, Welcome):
            self.isWelcome = True
            self._timer.cancel()
            self._timer = None
            self._backoff.succeeded()
        elif isinstance(message, Refused):
            log.warn("A hello was refused: {reason}", reason=message.reason)
            connection.abort()
        else:
            raise WireError(f"{type(message).__name__} before Welcome")

    def _lost(self, connection: ControlConnection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self.isWelcome = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._again()
