"""
One client: feed the decoder, take a request, ask what it means, send the answer.

What must be true: requests are carried out in the order of their arrival, and one begins when the one before has ended, its answer
handed to the kernel, so that a client that does not read cannot make us queue; the decoder holds back what has arrived meanwhile; what is held is
bounded, for when it grows the connection is no longer read, and TCP tells the client. "Connect, send, close" keeps the data: what was received whole is
carried out, though the client is gone.

The phases of a connection (the row says what each event leads to):

  =========== ==================== ======================= =====================
  phase       no request is left   the peer stops sending  the connection ends
  =========== ==================== ======================= =====================
  serving     serving              finishing               finishing, unheard
  finishing   the end              -                       finishing, unheard
  =========== ==================== ======================= =====================

In *finishing* nothing more is read; held requests go on, produce requests even when nobody is there any more to hear of it ("unheard"). An Automat
machine a connection would double what an idle one costs (they must stay under 2 KiB), for these two rows.

"Nothing more is read" must hold whatever the transport does: plain TCP stops reading when it is told to close, TLS says that it closes and goes on handing
out what arrives until the peer closes, too. Those bytes begin anywhere, in the middle of a payload perhaps, and somebody's payload must not become a
request: they are not looked at. Nor can the peer's end be waited for without a limit, or who never closes would keep its place: see
L{BrokerFactory.dropUnclosed}. What was written before is given that time to arrive, since a 0.7 client may still read the answers to what it sent first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.broker.protocolsniffer import sniff
from pylogbroker.broker.requestmemory import RequestMemory
from pylogbroker.broker.unackedproduces import UnackedProduces
from pylogbroker.errors import NotAllowedError, PylogbrokerError, WireError
from pylogbroker.limits import Reservation
from pylogbroker.metrics.counters import ConnectionCounters
from pylogbroker.net.listeners import formatAddress, isTls, isTlsFailure, tlsReason
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.sendfile import (
    BufferedSender,
    ISendContext,
    ResponsePart,
    SendfileTransport,
    letGo,
)
from pylogbroker.types import TopicPartition

GREETING_SIZE = 64


class IDecoder(Protocol):
    """What a dialect decodes with; see L{pylogbroker.protocol.kafka07.requests.RequestDecoder}."""

    @property
    def frameSize(self) -> int: ...

    @property
    def heldSize(self) -> int: ...

    def feed(self, data: bytes) -> None: ...

    def takeRequest(self) -> Any: ...


class IProtocolHandler(Protocol):
    """What a connection speaks; see L{pylogbroker.broker.kafka07.Kafka07Protocol}."""

    def newDecoder(self) -> Any: ...

    def carryOut(self, request: Any, unproven: UnackedProduces) -> Any: ...

    def describe(self, request: Any) -> tuple[str, TopicPartition | None]: ...


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class ServerConnection(TwistedProtocol):
    """
    A broker's end of a connection.

    @ivar busy: whether a request is being carried out, or its answer sent; the next one waits.
    """

    _log = Logger()
    transport: Any
    busy = False
    _advancing = False
    _outgoing: SendfileTransport | BufferedSender | None = None  # what sends the answer
    _paused = False
    _finishing = False
    _unheard = False
    _sentBefore = -1
    _grant: Reservation | None = None
    _greeting: bytes | None = b""  # the first bytes, until the first request was understood
    _underWay: Any = None  # the request whose answer has to wait

    def __init__(self, factory: BrokerFactory) -> None:
        self.factory: BrokerFactory = factory
        self._decoder: IDecoder = factory.dialect.newDecoder()
        # Attributes that an instance gets later cost it a dictionary of its own: 800 bytes a connection, instead of 8 for each of these.
        self.busy = self._advancing = self._paused = self._finishing = self._unheard = False
        self._outgoing = self._grant = self._underWay = None
        self._greeting = b""
        self._sentBefore = -1
        self._unproven = UnackedProduces()
        self._dialect: IProtocolHandler | None = (
            factory.dialect if factory.dialectFor is None else None
        )

    @property
    def receiveSize(self) -> int:
        """Bytes to receive at once; the transport asks."""
        return self.factory.admission.receiveSize

    @property
    def unreservedSize(self) -> int:
        """Bytes that are held and that no grant stands for."""
        return 0 if self._grant is not None and self._grant.granted else self._decoder.heldSize

    # -- feed

    def connectionMade(self) -> None:
        self.factory.connectionMade(self)
        if isTls(self.transport):
            self.factory.unshaken[self] = False

    def handshakeCompleted(self) -> None:
        """Over TLS: the client has shown what it was asked for."""
        self.factory.unshaken.pop(self, None)

    def dataReceived(self, data: bytes) -> None:
        counters = self.factory.counters
        counters.readSize += len(data)
        counters.readCount += 1
        if self._finishing:
            return
        if self._greeting == b"":
            self._greeting = data[:GREETING_SIZE]
        self._decoder.feed(data)
        if not self.busy:
            self._advance()
        elif self._decoder.heldSize > self.receiveSize:
            self._pause()

    def readConnectionLost(self) -> None:
        """The peer has sent all it wants to."""
        self._finishing = True
        if not self.busy:
            self._advance()

    def writeConnectionLost(self) -> None:
        """Never asked for."""

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._finishing = self._unheard = True
        self.factory.connectionLost(self)
        self.factory.unshaken.pop(self, None)
        self.factory.lingering.pop(self, None)
        if reason is not None and isTlsFailure(reason):
            self.factory.counters.malformedCount += 1
            self.factory.quietLog.warn(
                "{peer} did not get past TLS: {reason}", peer=self._peer(), reason=tlsReason(reason)
            )
        if self._outgoing is not None:
            self._sent()
        elif not self.busy:
            self._advance()
        if self.busy:
            self.factory.unheard[self] = None

    # -- take and ask

    def _advance(self) -> None:
        """Carry out requests until one has to wait, or none is whole."""
        dialect = self._dialect
        if dialect is None:
            assert self.factory.dialectFor is not None
            dialect = self._dialect = self.factory.dialectFor(self.transport)
        carryOut = dialect.carryOut
        self._advancing = True
        try:
            while not self.busy:
                request = self._decoder.takeRequest()
                if request is None:
                    break
                if self._grant is not None:
                    self.factory.admission.arrived(self._grant)
                answer = carryOut(request, self._unproven)
                self._greeting = None
                if answer is not None:
                    self._answer(answer, request)
                elif self._grant is not None:
                    self._release()
        except PylogbrokerError as error:
            self._refuse(error)
        finally:
            self._advancing = False
        if not self.busy:
            self._idle()

    def _idle(self) -> None:
        """No whole request is held, and none is under way."""
        if self._finishing:
            self._end()
        elif self._grant is None and self._decoder.frameSize > self.receiveSize:
            self._ask()
        elif self._grant is None or self._grant.granted:
            self._resume()

    # -- send

    def _answer(self, answer: Any, request: Any) -> None:
        self.busy = True
        if isinstance(answer, Deferred):
            self._underWay = request
            answer.addCallback(self._send).addErrback(self._failed)
        else:
            self._send(answer)

    def _send(self, pieces: list[ResponsePart] | None) -> None:
        self._underWay = None
        if pieces is None:
            self._sent()
        elif self._unheard:
            letGo(pieces)
            self._sent()
        elif isinstance(self.transport, SendfileTransport):
            self._outgoing = self.transport
            if self.transport.sendPieces(pieces, self.factory.flow, self._sent):
                self._sent()
        else:
            self._outgoing = transfer = BufferedSender(
                self.transport, pieces, self.factory.flow, self._sent
            )
            transfer.start()

    def _sent(self) -> None:
        """The answer is with the kernel, or there is none; the next request may go."""
        self.busy, self._outgoing = False, None
        if self._grant is not None:
            self._release()
        if not self._advancing:
            self._advance()

    def waiting(self) -> tuple[str, str, TopicPartition | None] | None:
        """
        What this connection waits for, if it does: for whoever looks.

        @return: the peer, what it waits for, and in which partition: C{"memory"} for a large request, C{"reader"} (its answer is not taken as fast as it
            could be sent); or the kind of the request that has to wait, as the dialect names it.
        """
        if self._underWay is not None:
            kind, where = self.factory.dialect.describe(self._underWay)
            return self._peer(), kind, where
        if self._outgoing is not None:
            return (self._peer(), "reader", None) if self._outgoing.isSending else None
        if self._grant is not None and not self._grant.granted:
            return self._peer(), "memory", None
        return None

    def isStalled(self) -> bool:
        """Whether the peer has taken nothing of what waits for it since this was last asked."""
        if self._outgoing is None or not self._outgoing.isSending:
            self._sentBefore = -1
            return False
        before, self._sentBefore = self._sentBefore, self._outgoing.sentSize
        return before == self._sentBefore

    # -- reading, or not

    def _ask(self) -> None:
        """A large frame has begun: memory for it, or a pause."""
        self._grant = self.factory.admission.ask(
            self._decoder.frameSize, self._resume, self._cutOverdue
        )
        if self._grant.granted:
            self._resume()
        else:
            self._pause()

    def _release(self) -> None:
        grant, self._grant = self._grant, None
        if grant is not None:
            self.factory.admission.release(grant)

    def _pause(self) -> None:
        if not self._paused and not self._finishing:
            self._paused = True
            self.transport.pauseProducing()

    def _resume(self) -> None:
        if self._paused and not self._finishing:
            self._paused = False
            self.transport.resumeProducing()

    # -- the end

    def _failed(self, failure: Failure) -> None:
        self.busy, self._underWay = False, None
        if failure.check(PylogbrokerError):
            self._refuse(failure.value)  # type: ignore[arg-type]
        else:
            self._log.failure(
                "A request of {peer} failed in a way that nobody foresaw",
                failure,
                peer=self._peer(),
            )
            self.drop()

    def _refuse(self, error: PylogbrokerError) -> None:
        """The connection cannot go on."""
        counters, quietLog = self.factory.counters, self.factory.quietLog
        counters.malformedCount += 1
        if isinstance(error, NotAllowedError):  # who has refused it has said so, once
            self.drop()
            return
        stranger = (
            sniff(self._greeting) if self._greeting and isinstance(error, WireError) else None
        )
        if stranger is None:
            quietLog.warn(
                "Closed the connection of {peer}: {error}", peer=self._peer(), error=error
            )
        else:
            counters.foreignCount += 1
            sentence = (
                "{peer} seems to speak {stranger}, not the protocol of Kafka 0.7: closed ({error})"
            )
            quietLog.warn(sentence, peer=self._peer(), stranger=stranger, error=error)
        self.drop()

    def _cutOverdue(self) -> None:
        self.factory.counters.slowCount += 1
        self.factory.quietLog.warn(
            "{peer} was too slow with a large request, and others wait for its memory: cut off",
            peer=self._peer(),
        )
        self.drop()

    def finish(self) -> None:
        """Take nothing more in; carry out what is held, then close."""
        if not self._finishing:
            self.transport.pauseProducing()
            self.readConnectionLost()

    def abort(self) -> None:
        """Close now; held produce requests are carried out all the same."""
        self.transport.abortConnection()

    def drop(self) -> None:
        """Forget what is held, and close."""
        self._decoder = self.factory.dialect.newDecoder()
        self._finishing = True
        self._end()

    def _end(self) -> None:
        self._release()
        if self._unheard:
            self.factory.unheard.pop(self, None)
        else:
            self.factory.lingering.setdefault(self, False)
            self.transport.loseConnection()
            if isTls(self.transport):
                self.transport.resumeProducing()  # it may be paused, and the peer's end has to be seen

    def _peer(self) -> str:
        return formatAddress(self.transport.getPeer())


class BrokerFactory(ServerFactory):
    """
    Makes the connections of a broker, and knows them.

    @ivar connections: those that are open.
    @ivar unheard: those that are not any more, and still have requests to carry out.
    @ivar unshaken: those over TLS whose handshake is not over, and whether they were so the last time that anybody looked.
    @ivar lingering: those that we have closed and that have not ended yet, and whether they were so the last time that anybody looked.
    @ivar dialectFor: makes the dialect for a connection, by its transport, when its first request is there; L{None}: they all have the same.
    """

    noisy = False

    def __init__(
        self,
        dialect: IProtocolHandler,
        admission: RequestMemory,
        flow: ISendContext,
        counters: ConnectionCounters,
        quietLog: RateLimitedLogger,
        connectionCountMax: int = 0,
    ) -> None:
        """
        @param connectionCountMax: one more is cut at once; 0 for no limit.
        """
        self.dialect = dialect
        self.admission = admission
        self.flow = flow
        self.counters = counters
        self.quietLog = quietLog
        self.connectionCountMax = connectionCountMax
        self.dialectFor: Callable[[Any], IProtocolHandler] | None = None
        self.connections: dict[ServerConnection, None] = {}
        self.unheard: dict[ServerConnection, None] = {}
        self.unshaken: dict[ServerConnection, bool] = {}
        self.lingering: dict[ServerConnection, bool] = {}
        admission.measure = lambda: sum(
            connection.unreservedSize for connection in (*self.connections, *self.unheard)
        )

    def buildProtocol(self, addr: object) -> ServerConnection | None:  # type: ignore[override] # what a connection needs of its factory is in its constructor
        """L{None}, which closes it, when there are too many."""
        if self.connectionCountMax and len(self.connections) >= self.connectionCountMax:
            self.counters.refusedCount += 1
            self.quietLog.warn(
                "There are {count} connections already: {address} was turned away",
                count=self.connectionCountMax,
                address=formatAddress(addr),
            )
            return None
        return ServerConnection(self)

    def connectionMade(self, connection: ServerConnection) -> None:
        self.connections[connection] = None
        self.counters.opened()
        self.admission.connectionMade()

    def connectionLost(self, connection: ServerConnection) -> None:
        del self.connections[connection]
        self.counters.closed()
        self.admission.connectionLost()

    def dropStalled(self) -> None:
        """
        Cut off who takes nothing of its answer, since it keeps deleted segments on the disk; and who does not come to the end of its TLS handshake, since
        strangers must not hold places for ever. Called by the clock; two calls in which nothing moved are enough.
        """
        self._cutSeen(
            self.unshaken, "{peer} does not come to the end of its TLS handshake: cut off"
        )
        for connection in list(self.connections):
            if connection.isStalled():
                self._cut(connection, "{peer} takes nothing of its answer: cut off")

    def dropUnclosed(self) -> None:
        """Cut off who was closed and does not end, since it keeps its place among all connections. Called by the clock; two calls are enough."""
        self._cutSeen(
            self.lingering, "{peer} does not end its side of a connection that was closed: cut off"
        )

    def _cutSeen(self, found: dict[ServerConnection, bool], sentence: str) -> None:
        for connection, wasSeen in list(found.items()):
            found[connection] = True
            if wasSeen:
                self._cut(connection, sentence)

    def _cut(self, connection: ServerConnection, sentence: str) -> None:
        self.counters.slowCount += 1
        self.quietLog.warn(sentence, peer=formatAddress(connection.transport.getPeer()))
        connection.transport.abortConnection()
