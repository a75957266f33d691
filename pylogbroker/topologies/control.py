"""
Connections that carry control messages only: to the master and to metrics managers. A module of its
own, since both ends of both use it.

The one that connects says L{Hello} first and is answered with L{Welcome} or L{Refused}. What is
written to a peer is bounded: a message for a peer that does not read is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import WireError
from pylogbroker.retry import Backoff, RetryDelays
from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.messages import Control, Hello, Refused, Welcome

log = Logger()

HELLO_SECONDS_MAX = 10
"""How long a connection may take to say hello, or to be welcomed."""

CONNECT_DELAYS = RetryDelays(50, 1_000)
"""Between attempts to connect."""


@implementer(IPushProducer)
class ControlPeer:
    """
    The other end of a connection.

    @ivar hello: what it has said first; L{None}: nothing yet.
    """

    def __init__(self, connection: TopologyConnection) -> None:
        self.hello: Hello | None = None
        self._connection = connection
        self._isFull = False
        connection.transport.registerProducer(self, True)

    def __repr__(self) -> str:
        return f"<ControlPeer {self._connection.transport.getPeer()}>"

    def send(self, message: Control) -> bool:
        """@return: L{False}: it is not sent, since the peer does not read, or is gone."""
        if self._isFull or self._connection.isOver:
            return False
        self._connection.send(message)
        return True

    def close(self, reason: str) -> None:
        """End the connection, when all is sent."""
        self._connection.transport.unregisterProducer()
        self._connection.close(reason)

    def abort(self, reason: str) -> None:
        """End the connection now."""
        self._connection.abort(reason)

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

    @ivar peers: of the open connections.
    """

    noisy = False

    def __init__(
        self,
        reactor: Any,
        hello: Callable[[ControlPeer, Hello], object],
        received: Callable[[ControlPeer, Control], object],
        lost: Callable[[ControlPeer], object],
        countMax: int,
    ) -> None:
        """
        @param hello: called first for each connection; it answers.
        @param received: called with each further message.
        @param lost: called when a connection has ended that had said hello.
        @param countMax: the most connections; one more is cut off.
        """
        self.peers: dict[TopologyConnection, ControlPeer] = {}
        self._reactor = reactor
        self._onHello = hello
        self._onMessage = received
        self._onLost = lost
        self._countMax = countMax
        self._timers: dict[TopologyConnection, Any] = {}

    def buildProtocol(self, addr: object) -> TopologyConnection | None:
        if len(self.peers) >= self._countMax:
            log.warn("A connection is refused: there are {count} already", count=self._countMax)
            return None
        return TopologyConnection(self)

    def connected(self, connection: TopologyConnection) -> None:
        """See L{IFrameHandler}."""
        self.peers[connection] = ControlPeer(connection)
        self._timers[connection] = self._reactor.callLater(
            HELLO_SECONDS_MAX, connection.abort, f"no hello within {HELLO_SECONDS_MAX} s"
        )

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See L{IFrameHandler}."""
        peer = self.peers[connection]
        if peer.hello is not None:
            self._onMessage(peer, message)
        elif isinstance(message, Hello):
            self._timers.pop(connection).cancel()
            peer.hello = message
            self._onHello(peer, message)
        else:
            raise WireError(f"{type(message).__name__} before Hello")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See L{IFrameHandler}."""
        raise WireError("a batch where only control messages are")

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See L{IFrameHandler}."""
        timer = self._timers.pop(connection, None)
        if timer is not None and timer.active():
            timer.cancel()
        peer = self.peers.pop(connection)
        log.info("The connection of {peer} has ended: {reason}", peer=peer, reason=reason)
        if peer.hello is not None:
            self._onLost(peer)

    def closeAll(self, reason: str) -> None:
        """Cut off all."""
        for each in list(self.peers):
            each.abort(reason)


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
        @param random: numbers from 0 up to, not including, 1.
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
        self._connection: TopologyConnection | None = None
        self._peer: ControlPeer | None = None
        self._timer: Any = None

    def connectTo(self, endpoint: Any) -> None:
        """
        Connect, and cut off a present connection.

        @param endpoint: an L{twisted.internet.interfaces.IStreamClientEndpoint}; L{None}: connect
            no more.
        """
        self._endpoint = None
        self._stopTimer()
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        if self._connection is not None:
            self._connection.abort("another end was chosen")
        self._backoff.succeeded()
        self._endpoint = endpoint
        if endpoint is not None:
            self._connect()

    def stop(self) -> None:
        """End the connection, and connect no more."""
        self.connectTo(None)

    def send(self, message: Control) -> bool:
        """@return: L{False}: it is not sent, since there is no connection that can take it."""
        return self.isWelcome and self._peer is not None and self._peer.send(message)

    def _connect(self) -> None:
        self._timer = None
        factory = Factory.forProtocol(lambda: TopologyConnection(self))
        factory.noisy = False
        self._connecting = maybeDeferred(self._endpoint.connect, factory)
        self._connecting.addErrback(self._notConnected)

    def _notConnected(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._connecting = None
            self._again()

    def _again(self) -> None:
        if self._endpoint is not None:
            self._timer = self._reactor.callLater(self._backoff.failed() / 1000, self._connect)

    def _stopTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    def connected(self, connection: TopologyConnection) -> None:
        """See L{IFrameHandler}."""
        self._connecting = None
        self._connection = connection
        self._peer = ControlPeer(connection)
        self._timer = self._reactor.callLater(
            HELLO_SECONDS_MAX, connection.abort, f"no welcome within {HELLO_SECONDS_MAX} s"
        )
        connection.send(self._hello())

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See L{IFrameHandler}."""
        if self.isWelcome:
            self._onMessage(message)
        elif isinstance(message, Welcome):
            self.isWelcome = True
            self._stopTimer()
            self._backoff.succeeded()
        elif isinstance(message, Refused):
            log.warn("A hello was refused: {reason}", reason=message.reason)
            connection.abort("the hello was refused")
        else:
            raise WireError(f"{type(message).__name__} before Welcome")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See L{IFrameHandler}."""
        raise WireError("a batch where only control messages are")

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See L{IFrameHandler}."""
        self._stopTimer()
        self._connection = self._peer = None
        self.isWelcome = False
        self._again()
