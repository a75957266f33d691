"""
The connections of a broker: decode requests, have them handled, send the answers.

What must be true: requests are handled, and their answers leave, in the order of arrival. At most
C{slotCountMax} requests of a connection are in progress or have an unsent answer (what a decoder
takes together is one), so a client that does not read cannot fill our memory. The decoder holds
later requests up to a bound; beyond it the connection is not read, and TCP tells the client.
"Connect, send, close" keeps the data: complete requests are handled though the client is gone. A
client that exceeded a quota is I{held back}: no request of it is taken, and its connection is not
read, but for the rest of a frame that has memory reserved already. So it keeps what the decoder may
hold, and no more, for however long it lasts.

The phases of a connection, and the effect of each event:

  =========== ==================== ======================= =====================
  phase       no request is left   the peer stops sending  the connection ends
  =========== ==================== ======================= =====================
  serving     serving              finishing               finishing, orphaned
  finishing   the end              -                       finishing, orphaned
  =========== ==================== ======================= =====================

In I{finishing} nothing more is read; held requests are handled, even when the peer is gone
(I{orphaned}). An Automat machine would double the memory of an idle connection, which must stay
under 2 KiB.

TLS delivers bytes after we close, until the peer closes, too. They may begin inside a payload,
which must not become a request, so they are ignored. The peer's end is awaited with a limit
(L{BrokerConnections.dropUnclosed}), which leaves a 0.7 client time to read earlier answers.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Protocol as TwistedProtocol
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.broker.requestmemory import RequestMemory
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
    releaseSlices,
)
from pylogbroker.types import TopicPartition

GREETING_SIZE = 64

DELAYED_COUNT_MAX = 1_000
"""Connections of addresses that connect too often; further ones are closed at once."""

CHOICE_SIZE = 15
"""
The first bytes of a connection, by which its protocol is chosen: the head of a request of today's
protocol, to the first byte of the client's id.
"""
_SIZE_SIZE = 4


class IDecoder(Protocol):
    """Decodes requests; see L{pylogbroker.protocol.kafka07.requests.RequestDecoder}."""

    @property
    def frameSize(self) -> int: ...

    @property
    def heldSize(self) -> int: ...

    def feed(self, data: bytes) -> None: ...

    def takeRequest(self) -> Any: ...


class IProtocolHandler(Protocol):
    """
    A protocol of clients; see L{pylogbroker.broker.kafka07.Kafka07Protocol}.

    @ivar name: for log lines.
    @ivar slotCountMax: requests of one connection that are in progress or have unsent answers.
    @ivar endsIdle: whether a connection is closed that is silent for long.
    @ivar allowsHalfClose: a client that has closed its half still gets the answers to what it
        asked. Else it gets those that need not wait.
    """

    name: str
    slotCountMax: int
    allowsHalfClose: bool
    endsIdle: bool

    def newDecoder(self) -> Any:
        """The L{IDecoder} of one connection."""
        ...

    def newState(self, transport: Any) -> Any:
        """
        The state of one connection, for C{handle}.

        @param transport: L{None} before the connection is made.
        @raise PylogbrokerError: the client is not served, and its connection must be closed.
        """
        ...

    def handle(self, request: Any, state: Any) -> Any:
        """
        Carry out a request.

        @return: the parts of its answer, or L{None} for no answer; or a Deferred of either. Or a
            function, which is called when all requests at hand are handled, so that they share what
            an answer must wait for, such as the write of their records. It takes a function that it
            calls once with one of the former, now or later: a Deferred with two callbacks costs as
            much as the rest of a small request.
            Or L{SeparateRequests}, of which nothing is done: they are handled instead.
        @raise PylogbrokerError: the connection must be closed; from Deferred and function, too.
        """
        ...

    def mustAuthenticate(self, state: Any) -> bool:
        """Whether a client has still to authenticate."""
        ...

    def keepsFrame(self, request: Any) -> bool:
        """
        Whether memory stays reserved for the frame of a request while its answer is awaited. Else
        the request, when it has been decoded, holds no bytes of it, and may wait for long.
        """
        ...

    def isThrottled(self, state: Any, released: Callable[[], object]) -> bool:
        """
        Whether no further request of a client may be taken now, since it exceeded a quota.

        @param released: called when that is over; of several calls, that of the last one.
        """
        ...

    def connectionLost(self, state: Any) -> None:
        """The client is gone; what waits only for its sake may end."""
        ...

    def describe(self, request: Any) -> tuple[str, TopicPartition | None]:
        """The kind of a request, such as C{"produce"}, and its first partition."""
        ...

    def sniff(self, greeting: bytes) -> str | None:
        """The protocol that the client seems to speak instead."""
        ...


class LastAnswer(list[ResponsePart]):
    """The parts of an answer behind which the connection is closed."""


class SeparateRequests(list[Any]):
    """The requests that a decoder took together, which are to be handled one by one."""


ChooseHandler = Callable[[Any, bytes, bool], IProtocolHandler | None]
"""
C{choose(transport, greeting, isEnough)}: the handler of a connection, by the client's certificate
and its first bytes. C{isEnough}: these are L{CHOICE_SIZE} or more, or a whole frame; without that
the answer may be L{None}, and is asked for again.
"""


class _Slot:
    """
    A request in progress, and then its answer, which may wait for those of earlier requests.

    @ivar request: L{None} once C{isDone}: it would keep its frame.
    @ivar outcome: parts to send, L{None} for no answer, or a L{Failure}; valid once C{isDone}.
    @ivar reservation: memory of the request, if it keeps its frame (C{keepsFrame}).
    """

    __slots__ = ("isDone", "outcome", "request", "reservation")

    def __init__(self, request: Any, reservation: Reservation | None) -> None:
        self.request = request
        self.reservation = reservation
        self.isDone = False
        self.outcome: list[ResponsePart] | Failure | None = None


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class ServerConnection(TwistedProtocol):
    """
    The broker's end of a connection.
    """

    _log = Logger()
    transport: Any

    def __init__(
        self,
        connections: BrokerConnections,
        handler: IProtocolHandler,
        chooseHandler: ChooseHandler | None = None,
    ) -> None:
        """
        @param chooseHandler: gives another handler; called when the first bytes are there.
        """
        # Attributes that an instance gets later cost it a dictionary of its own, 800 bytes.
        self.connections = connections
        self._chooseHandler = chooseHandler
        self._handler = handler
        self._decoder: IDecoder = self._handler.newDecoder()
        self._state = self._handler.newState(None)
        self._slots: list[_Slot] | None = None  # few: a deque has 600 bytes more
        self._sender: SendfileTransport | BufferedSender | None = None  # sends the first slot
        self._advancing = self._paused = self._finishing = self._orphaned = False
        self._sendingSoon = False
        self._separate: SeparateRequests | None = None  # taken, and to be handled next
        self._reservation: Reservation | None = None  # of the frame that is arriving
        self._greeting: bytes | None = b""  # the first bytes, until a request was understood
        self._sentBefore = -1
        self._activeTick = connections.tick

    @property
    def busy(self) -> bool:
        return self._slots is not None and len(self._slots) >= self._handler.slotCountMax

    @property
    def unreservedSize(self) -> int:
        reservation = self._reservation
        return 0 if reservation is not None and reservation.granted else self._decoder.heldSize

    # -- received bytes

    def connectionMade(self) -> None:
        connections = self.connections
        if self._chooseHandler is None:
            self._state = self._handler.newState(self.transport)
        connections.connectionMade(self)
        if self._handler.mustAuthenticate(self._state):
            connections.authenticating[self] = False
        if isinstance(self.transport, SendfileTransport):
            self.transport.bufferSize = connections.memory.receiveSize
        if isTls(self.transport):
            connections.handshaking[self] = False

    def handshakeCompleted(self) -> None:
        self.connections.handshaking.pop(self, None)

    def dataReceived(self, data: bytes) -> None:
        counters = self.connections.counters
        counters.readSize += len(data)
        counters.readCount += 1
        self._activeTick = self.connections.tick
        if self._finishing:
            return
        if self._chooseHandler is not None:
            try:
                data = self._choose(data)
            except PylogbrokerError as error:
                self._refuse(error)
                return
        if self._greeting is not None and len(self._greeting) < CHOICE_SIZE:
            self._greeting += data[:GREETING_SIZE]
        self._decoder.feed(data)
        if not self.busy:
            self._advance()
        elif self._decoder.heldSize > self.connections.memory.shareSize:
            self._pause()

    def _choose(self, data: bytes) -> bytes:
        """
        Choose the protocol, once there are bytes enough; until then the first one has them, to
        refuse a frame of an impossible size. Returns the bytes that the decoder has not had.
        """
        assert self._chooseHandler is not None
        greeting = (self._greeting or b"") + data
        frameSize = _SIZE_SIZE + int.from_bytes(greeting[:_SIZE_SIZE], "big", signed=True)
        isEnough = len(greeting) >= max(_SIZE_SIZE, min(CHOICE_SIZE, frameSize))
        handler = self._chooseHandler(self.transport, greeting, isEnough)
        if handler is None:
            return data
        self._state = handler.newState(self.transport)  # first: it may refuse the client
        self._handler, self._chooseHandler = handler, None
        self._decoder = self._handler.newDecoder()
        self._greeting = b""
        return greeting

    def readConnectionLost(self) -> None:
        self._finish()
        if self._slots and not self._handler.allowsHalfClose:
            self.transport.loseConnection()

    def _finish(self) -> None:
        self._finishing = True
        if not self.busy:
            self._advance()

    def writeConnectionLost(self) -> None:
        """Never requested."""

    def connectionLost(self, reason: Failure | None = None) -> None:
        connections = self.connections
        self._finishing = self._orphaned = True
        connections.connectionLost(self)
        connections.handshaking.pop(self, None)
        connections.authenticating.pop(self, None)
        connections.closing.pop(self, None)
        self._handler.connectionLost(self._state)
        if reason is not None and isTlsFailure(reason):
            connections.counters.malformedCount += 1
            connections.log.warn(
                "{peer} did not get past TLS: {reason}", peer=self._peer(), reason=tlsReason(reason)
            )
        if self._sender is not None:
            self._sent()
        else:
            self._sendReady()
        if self._slots:
            connections.orphaned[self] = None

    # -- requests

    def _advance(self) -> None:
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._handleRequests():
                pass
        finally:
            self._advancing = False
        if not self.busy:
            self._onIdle()

    def _handleRequests(self) -> bool:
        """
        Handle the requests at hand, as far as there are slots, then send what is answered.

        @return: whether there may be more requests, and slots for them.
        """
        handle, state, memory = self._handler.handle, self._state, self.connections.memory
        slotCountMax = self._handler.slotCountMax
        unfinished: list[tuple[_Slot, Callable[[Callable[[Any], None]], None]]] = []
        isMore = True
        try:
            while self._slots is None or len(self._slots) < slotCountMax:
                request = None if self._isHeldBack() else self._takeRequest()
                if request is None:
                    isMore = False
                    break
                reservation, self._reservation = self._reservation, None
                if reservation is not None:
                    memory.frameComplete(reservation)
                try:
                    answer = handle(request, state)
                except Exception:  # also an unexpected one: else its reservation would leak
                    answer = Failure()
                self._greeting = None
                if type(answer) is SeparateRequests:
                    self._separate, self._reservation = answer, reservation
                    continue
                if (
                    reservation is not None
                    and isinstance(answer, Deferred)
                    and not self._handler.keepsFrame(request)
                ):
                    memory.release(reservation)
                    reservation = None
                if answer is not None or self._slots:
                    slot = self._newSlot(request, reservation)
                    if type(answer) is not list and callable(answer):
                        unfinished.append((slot, answer))
                    else:
                        self._fill(slot, answer)
                elif reservation is not None:
                    memory.release(reservation)
        except PylogbrokerError as error:  # of the decoder
            self._fill(self._newSlot(None, None), Failure(error))
        for slot, finish in unfinished:
            try:
                finish(partial(self._answered, slot))
            except Exception:
                self._fill(slot, Failure())
        self._sendReady()
        return isMore and not self.busy

    def _takeRequest(self) -> Any:
        separate = self._separate
        if separate is None:
            return self._decoder.takeRequest()
        request = separate.pop(0)
        if not separate:
            self._separate = None
        return request

    def _isHeldBack(self) -> bool:
        """A frame that has memory reserved is taken all the same: it would keep that memory."""
        return (
            not self._finishing
            and self._reservation is None
            and self._handler.isThrottled(self._state, self._advance)
        )

    def _onIdle(self) -> None:
        if self._finishing:
            if not self._slots:
                self._end()
        elif self._isHeldBack():
            self._pause()
        elif (
            self._reservation is None
            and self._decoder.frameSize > self.connections.memory.shareSize
        ):
            self._reserve()
        elif self._reservation is None or self._reservation.granted:
            self._resume()

    # -- answers

    def _newSlot(self, request: Any, reservation: Reservation | None) -> _Slot:
        if self._slots is None:
            self._slots = []
        slot = _Slot(request, reservation)
        self._slots.append(slot)
        return slot

    def _fill(self, slot: _Slot, answer: Any) -> None:
        # The type first, here and below: isinstance of an abstract class, as Deferred is, is slow.
        if type(answer) is not list and isinstance(answer, Deferred):
            answer.addBoth(self._done, slot)
        else:
            self._done(answer, slot)

    def _answered(self, slot: _Slot, answer: Any) -> None:
        """Fill a slot. The caller goes on with other clients, whatever goes wrong with this one."""
        try:
            self._fill(slot, answer)
        except Exception:
            self._fail(Failure())

    def _done(self, outcome: Any, slot: _Slot) -> None:
        slot.outcome, slot.isDone, slot.request = outcome, True, None
        if slot.reservation is not None:
            self._release(slot)
        if type(outcome) is not list and isinstance(outcome, (Failure, LastAnswer)):
            self._ignoreRest()
        if self._slots and (self._orphaned or self._slots[0] is slot):
            if self._advancing:
                pass  # it sends all that are done
            elif self._orphaned or self._slots[-1].isDone:
                self._sendReady()
            elif not self._sendingSoon:
                # What has fired this one, a flush perhaps, fires more in this turn of the reactor.
                self._sendingSoon = True
                self.connections.clock.callLater(0, self._sendSoon)
        elif slot not in (self._slots or ()) and isinstance(outcome, list):
            releaseSlices(outcome)  # the connection was dropped meanwhile

    def _sendSoon(self) -> None:
        self._sendingSoon = False
        if self._slots:
            self._sendReady()

    def _sendReady(self) -> None:
        if self._orphaned and self._slots:  # the answers are not read: their order is free
            self._slots = sorted(self._slots, key=lambda slot: not slot.isDone)
        while self._slots and self._slots[0].isDone and self._sender is None:
            outcome = self._slots[0].outcome
            if type(outcome) is not list and isinstance(outcome, Failure):
                self._fail(outcome)
                return
            if outcome is None or self._send(self._joined(outcome)):
                self._freeSlot()
        if not self.busy:
            self._advance()

    def _joined(self, parts: list[ResponsePart]) -> list[ResponsePart]:
        """
        The parts of the first answer and, if they are bytes, those of the answers behind it that
        are there already, which are empty then: one write costs a tenth of ten.
        """
        assert self._slots is not None
        if len(self._slots) == 1 or len(parts) != 1 or not isinstance(parts[0], bytes):
            return parts
        joined = [parts[0]]
        for slot in islice(self._slots, 1, None):
            outcome = slot.outcome
            if type(outcome) is not list or len(outcome) != 1 or type(outcome[0]) is not bytes:
                break
            joined.append(outcome[0])
            slot.outcome = None
        return [b"".join(joined)]

    def _send(self, parts: list[ResponsePart]) -> bool:
        """Returns whether the kernel has all already; else C{_sent} is called."""
        if self._orphaned:
            releaseSlices(parts)
            return True
        context = self.connections.sendContext
        if isinstance(self.transport, SendfileTransport):
            self._sender = self.transport
            if self.transport.sendParts(parts, context, self._sent):
                self._sender = None
                return True
            return False
        self._sender = sender = BufferedSender(self.transport, parts, context, self._sent)
        sender.start()
        return False

    def _sent(self) -> None:
        self._sender = None
        self._freeSlot()
        self._sendReady()

    def _freeSlot(self) -> None:
        assert self._slots is not None
        del self._slots[0]
        if not self._slots:
            self._slots = None
            self._activeTick = self.connections.tick

    def _release(self, slot: _Slot) -> None:
        reservation, slot.reservation = slot.reservation, None
        if reservation is not None:
            self.connections.memory.release(reservation)

    def waiting(self) -> tuple[str, str, TopicPartition | None] | None:
        """
        The event that this connection waits for; L{None}: nothing, or what other clients do.

        @return: the peer; C{"memory"} for a large request, C{"reader"} when the peer does not take
            the answer as fast as we could send it, or the kind of its first request in progress;
            and that request's partition.
        """
        for slot in self._slots or ():
            if not slot.isDone:
                if not self._handler.keepsFrame(slot.request):
                    return None  # it waits for other clients, as long as it wants to
                return self._peer(), *self._handler.describe(slot.request)
        if self._sender is not None:
            return (self._peer(), "reader", None) if self._sender.isSending else None
        if self._reservation is not None and not self._reservation.granted:
            return self._peer(), "memory", None
        return None

    def isStalled(self) -> bool:
        """Whether the peer has taken nothing of its answer since the last call."""
        if self._sender is None or not self._sender.isSending:
            self._sentBefore = -1
            return False
        before, self._sentBefore = self._sentBefore, self._sender.sentSize
        return before == self._sentBefore

    @property
    def mustAuthenticate(self) -> bool:
        return self._handler.mustAuthenticate(self._state)

    def isIdle(self, tickCount: int) -> bool:
        """Whether nothing has come for C{tickCount} ticks, and nothing is in progress."""
        return (
            self._handler.endsIdle
            and not self._slots
            and not self._finishing
            and self.connections.tick - self._activeTick > tickCount
        )

    # -- flow control

    def _reserve(self) -> None:
        self._reservation = self.connections.memory.reserve(
            self._decoder.frameSize, self._resume, self._dropOverdue
        )
        if self._reservation.granted:
            self._resume()
        else:
            self._pause()

    def _pause(self) -> None:
        if not self._paused and not self._finishing:
            self._paused = True
            self.transport.pauseProducing()

    def _resume(self) -> None:
        if self._paused and not self._finishing:
            self._paused = False
            self.transport.resumeProducing()

    # -- the end

    def _fail(self, failure: Failure) -> None:
        if isinstance(failure.value, PylogbrokerError):
            self._refuse(failure.value)
        else:
            self._log.failure("A request of {peer} failed unexpectedly", failure, peer=self._peer())
            self.drop()

    def _refuse(self, error: PylogbrokerError) -> None:
        counters, log = self.connections.counters, self.connections.log
        counters.malformedCount += 1
        if isinstance(error, NotAllowedError):  # logged already, once
            self.drop()
            return
        foreign = None
        if self._greeting and isinstance(error, WireError):
            foreign = self._handler.sniff(self._greeting)
        if foreign is None:
            log.warn("Closed the connection of {peer}: {error}", peer=self._peer(), error=error)
        else:
            counters.foreignCount += 1
            log.warn(
                "{peer} seems to speak {foreign}, not {expected}: closed ({error})",
                peer=self._peer(),
                foreign=foreign,
                expected=self._handler.name,
                error=error,
            )
        self.drop()

    def _dropOverdue(self) -> None:
        self.connections.counters.slowCount += 1
        self.connections.log.warn(
            "{peer} was too slow with a large request, and others wait for its memory: cut off",
            peer=self._peer(),
        )
        self.drop()

    def finish(self) -> None:
        """Read nothing more; handle held requests, then close."""
        if not self._finishing:
            self.transport.pauseProducing()
            self._finish()

    def abort(self) -> None:
        """Close now; held requests are handled all the same."""
        self.transport.abortConnection()

    def drop(self) -> None:
        """Discard held requests, and close."""
        self._ignoreRest()
        while self._slots and (self._sender is None or len(self._slots) > 1):
            slot = self._slots.pop()
            if isinstance(slot.outcome, list):
                releaseSlices(slot.outcome)
            self._release(slot)
        self._end()

    def _ignoreRest(self) -> None:
        self._decoder = self._handler.newDecoder()
        self._separate = None
        self._finishing = True

    def _end(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            self.connections.memory.release(reservation)
        if self._orphaned:
            self.connections.orphaned.pop(self, None)
        else:
            self.connections.closing.setdefault(self, False)
            self.transport.loseConnection()
            if isTls(self.transport):
                self.transport.resumeProducing()  # else the peer's end would not be seen

    def _peer(self) -> str:
        return formatAddress(self.transport.getPeer())


class BrokerConnections:
    """
    All connections of a broker, over all listeners and protocols.

    @ivar orphaned: closed ones with requests in progress.
    @ivar handshaking: those in their TLS handshake, and whether the last check found them there.
    @ivar authenticating: those that have to authenticate, and perhaps have done so since the last
        check; likewise.
    @ivar closing: those that we have closed and whose end we wait for; likewise.
    @ivar delayed: connections that are not read, and will be closed.
    @ivar tick: grows by one with each call of L{dropIdle}.
    """

    def __init__(
        self,
        clock: Any,
        memory: RequestMemory,
        sendContext: ISendContext,
        counters: ConnectionCounters,
        log: RateLimitedLogger,
        countMax: int = 0,
        addressCountMax: int = sys.maxsize,
        addressCountsMax: Mapping[str, int] | None = None,
    ) -> None:
        """
        @param countMax: connections beyond it are closed at once; 0 for no limit.
        @param addressCountMax: likewise, of one address.
        @param addressCountsMax: of addresses that have another such limit.
        """
        self.clock = clock
        self.memory = memory
        self.sendContext = sendContext
        self.counters = counters
        self.log = log
        self.countMax = countMax
        self._addressCountMax = addressCountMax
        self._addressCountsMax = addressCountsMax or {}
        self._addressCounts: Counter[str] = Counter()
        self.tick = 0
        self.open: dict[ServerConnection, None] = {}
        self.orphaned: dict[ServerConnection, None] = {}
        self.handshaking: dict[ServerConnection, bool] = {}
        self.authenticating: dict[ServerConnection, bool] = {}
        self.closing: dict[ServerConnection, bool] = {}
        self._delayMs: Callable[[str], int] | None = None
        self._clock: Any = None
        self.delayed: dict[DelayedConnection, None] = {}
        memory.unreservedSize = lambda: sum(
            connection.unreservedSize for connection in (*self.open, *self.orphaned)
        )
        memory.onShareChange = self._resizeReceives

    def _resizeReceives(self) -> None:
        for connection in self.open:
            if isinstance(connection.transport, SendfileTransport):
                connection.transport.bufferSize = self.memory.receiveSize

    def admits(self, address: object) -> bool:
        """Whether one more may connect; a refusal is counted and logged."""
        if self.countMax and len(self.open) >= self.countMax:
            self.counters.refusedCount += 1
            self.log.warn(
                "There are {count} connections already: {address} was turned away",
                count=self.countMax,
                address=formatAddress(address),
            )
            return False
        host = _hostOf(address)
        countMax = self._addressCountsMax.get(host, self._addressCountMax)
        if host and self._addressCounts[host] >= countMax:
            self.counters.refusedCount += 1
            self.log.warn(
                "There are {count} connections of its address already: {address} was turned away",
                count=countMax,
                address=formatAddress(address),
            )
            return False
        return True

    def limitRate(self, delayMs: Callable[[str], int], clock: Any) -> None:
        """
        Limit how often an address connects.

        @param delayMs: called with each address that connects; gives milliseconds after which its
            connection is closed, unread, or 0 if it is welcome.
        """
        self._delayMs = delayMs
        self._clock = clock

    def delayMs(self, address: object) -> int:
        """How long an address that connects too often has to wait; 0: it is welcome."""
        return 0 if self._delayMs is None else self._delayMs(getattr(address, "host", ""))

    def delayedFor(self, delayMs: int) -> DelayedConnection | None:
        """A connection that is closed after a time; L{None}, at once, if there are many."""
        self.counters.refusedCount += 1
        if len(self.delayed) >= DELAYED_COUNT_MAX:
            return None
        return DelayedConnection(self, delayMs, self._clock)

    def abortDelayed(self) -> None:
        """Close connections that were to be closed later."""
        for connection in list(self.delayed):
            connection.transport.abortConnection()

    def connectionMade(self, connection: ServerConnection) -> None:
        self.open[connection] = None
        self._addressCounts[_hostOf(connection.transport.getPeer())] += 1
        self.counters.opened()
        self.memory.connectionMade()

    def connectionLost(self, connection: ServerConnection) -> None:
        del self.open[connection]
        host = _hostOf(connection.transport.getPeer())
        self._addressCounts[host] -= 1
        if not self._addressCounts[host]:
            del self._addressCounts[host]
        self.counters.closed()
        self.memory.connectionLost()

    def dropStalled(self) -> None:
        """
        Close connections whose peers take nothing of their answers, which pins deleted segments, or
        do not complete their TLS handshake, or do not authenticate. Called by the clock: two calls
        without progress are enough.
        """
        self._dropSeen(
            self.handshaking, "{peer} does not come to the end of its TLS handshake: cut off"
        )
        for connection in list(self.authenticating):
            if not connection.mustAuthenticate:
                del self.authenticating[connection]
        self._dropSeen(self.authenticating, "{peer} does not authenticate: cut off")
        for connection in list(self.open):
            if connection.isStalled():
                self._abort(connection, "{peer} takes nothing of its answer: cut off")

    def dropIdle(self, tickCount: int) -> None:
        """Close connections that are silent for C{tickCount} calls. Called by the clock."""
        self.tick += 1
        for connection in list(self.open):
            if connection.isIdle(tickCount):
                connection.drop()

    def dropUnclosed(self) -> None:
        """
        Abort connections that we have closed and whose peers do not close. Called by the clock: two
        calls are enough.
        """
        self._dropSeen(
            self.closing, "{peer} does not end its side of a connection that was closed: cut off"
        )

    def _dropSeen(self, found: dict[ServerConnection, bool], message: str) -> None:
        for connection, wasSeen in list(found.items()):
            found[connection] = True
            if wasSeen:
                self._abort(connection, message)

    def _abort(self, connection: ServerConnection, message: str) -> None:
        self.counters.slowCount += 1
        self.log.warn(message, peer=formatAddress(connection.transport.getPeer()))
        connection.transport.abortConnection()


def _hostOf(address: Any) -> str:
    """The text of an IP address; of one of IPv4 in IPv6, the former; C{""}: there is none."""
    host: str = getattr(address, "host", "")
    return host.removeprefix("::ffff:").partition("%")[0] if ":" in host else host


class DelayedConnection(TwistedProtocol):
    """
    A connection of an address that connects too often: it is not read, and closed after a time, so
    that a client that connects again at once does not do so all the time.
    """

    transport: Any

    def __init__(self, connections: BrokerConnections, delayMs: int, clock: Any) -> None:
        self._connections = connections
        self._clock = clock
        self._delayMs = delayMs

    def connectionMade(self) -> None:
        self._connections.delayed[self] = None
        self.transport.pauseProducing()
        self._call = self._clock.callLater(self._delayMs / 1000, self.transport.abortConnection)

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._connections.delayed.pop(self, None)
        if self._call.active():
            self._call.cancel()


class BrokerFactory(ServerFactory):
    """
    Makes the connections of one listener.
    """

    noisy = False

    def __init__(
        self,
        connections: BrokerConnections,
        handler: IProtocolHandler,
        chooseHandler: ChooseHandler | None = None,
    ) -> None:
        """@param chooseHandler: as of L{ServerConnection}."""
        self.connections = connections
        self._handler = handler
        self._chooseHandler = chooseHandler

    def buildProtocol(self, addr: object) -> TwistedProtocol | None:
        """L{None}, which closes the connection, when there are too many."""
        if not self.connections.admits(addr):
            return None
        delayMs = self.connections.delayMs(addr)
        if delayMs:
            return self.connections.delayedFor(delayMs)
        return ServerConnection(self.connections, self._handler, self._chooseHandler)
