"""
Connections that carry control messages only: to the master and to metrics managers. A module of its
own, since both ends of both use it.

The one that connects says L{Hello} first and is answered with L{Welcome} or L{Refused}. What is
written to a peer is bounded: a message for a peer that does not read is not sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IPushProducer, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger
from zope.interface import implementer

from pylogbroker.errors import WireError
from pylogbroker.net.timer import Timer
from pylogbroker.topologies.connection import TopologyClient, TopologyConnection
from pylogbroker.topologies.messages import Control, Hello, Refused, Welcome

log = Logger()

HELLO_SECONDS_MAX = 10
"""How long a connection may take to say hello, or to be welcomed."""


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
        self._timers: dict[TopologyConnection, Timer] = {}

    def buildProtocol(self, addr: object) -> TopologyConnection | None:
        if len(self.peers) >= self._countMax:
            log.warn("A connection is refused: there are {count} already", count=self._countMax)
            return None
        return TopologyConnection(self)

    def connected(self, connection: TopologyConnection) -> None:
        """See L{IFrameHandler}."""
        self.peers[connection] = ControlPeer(connection)
        timer = self._timers[connection] = Timer(self._reactor)
        reason = f"no hello within {HELLO_SECONDS_MAX} s"
        timer.start(HELLO_SECONDS_MAX * 1000, connection.abort, reason)

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See L{IFrameHandler}."""
        peer = self.peers[connection]
        if peer.hello is not None:
            self._onMessage(peer, message)
        elif isinstance(message, Hello):
            self._timers[connection].stop()
            peer.hello = message
            self._onHello(peer, message)
        else:
            raise WireError(f"{type(message).__name__} before Hello")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See L{IFrameHandler}."""
        raise WireError("a batch where only control messages are")

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See L{IFrameHandler}."""
        self._timers.pop(connection).stop()
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
    Keeps a connection that begins with a hello: it connects again when it ends.

    @ivar isWelcome: whether there is one whose hello was taken.
    """

    def __init__(
        self,
        clock: IReactorTime,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        random: Callable[[], float],
        hello: Callable[[int], Hello],
        received: Callable[[Control], object] = lambda message: None,
    ) -> None:
        """
        @param endpointTo: makes an endpoint of C{host:port}.
        @param random: numbers from 0 up to, not including, 1.
        @param hello: what to say first, called at each connection with its number, from 1.
        @param received: called with each message behind the welcome.
        """
        self.isWelcome = False
        self._hello = hello
        self._onMessage = received
        self._client = TopologyClient(clock, endpointTo, self, random)
        self._lateness = Timer(clock)
        self._peer: ControlPeer | None = None

    def goTo(self, address: str | None) -> None:
        """Connect to an address, and leave another one; L{None}: to none."""
        self._client.goTo(address)

    def send(self, message: Control) -> bool:
        """@return: L{False}: it is not sent, since there is no connection that can take it."""
        return self.isWelcome and self._peer is not None and self._peer.send(message)

    def connected(self, connection: TopologyConnection) -> None:
        """See L{IFrameHandler}."""
        self._peer = ControlPeer(connection)
        self._lateness.start(HELLO_SECONDS_MAX * 1000, connection.abort, "no welcome in time")
        connection.send(self._hello(self._client.attempt))

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See L{IFrameHandler}."""
        if self.isWelcome:
            self._onMessage(message)
        elif isinstance(message, Welcome):
            self.isWelcome = True
            self._lateness.stop()
            self._client.welcomed()
        elif isinstance(message, Refused):
            raise WireError(f"the hello was refused: {message.reason}")
        else:
            raise WireError(f"{type(message).__name__} before Welcome")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See L{IFrameHandler}."""
        raise WireError("a batch where only control messages are")

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See L{IFrameHandler}."""
        self._lateness.stop()
        peer, self._peer = self._peer, None
        self.isWelcome = False
        log.info("The connection to {peer} has ended: {reason}", peer=peer, reason=reason)
