"""
One pipelined connection to a broker.

What must be true:

  - The protocol has no request numbers (spec-0.7 wire-protocol §2), so an answer belongs to the
  oldest unanswered request. The place of a cancelled or timed-out request stays; its answer is
  discarded.
  - Bytes leave in the order of the calls. Only this makes an OFFSETS request behind a PRODUCE a
  proof.
  - While the transport pauses us, frames wait here, within limits; beyond them a frame is refused
  with L{BackpressureError}.
  - Every wait ends. A request has its time-out. A transport that takes nothing for C{stallMs} is
  cut. So is a connection without waiting callers whose oldest request was abandoned C{abandonedMs}
  ago.

The transport gets a frame in pieces of L{WRITE_SIZE}, so that 100 MB on a slow line are no stall. A
frame cannot be withdrawn once its first piece has left.

C{close} half-closes first where the transport can (TCP, not TLS) and waits for the broker to close
its side, so that no reset overtakes written bytes (§11). This proves nothing: the broker may have
closed for another reason a moment before.

The life cycle, for all but frames, is that of L{_Phase}.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import (
    IHalfCloseableDescriptor,
    IPushProducer,
    IReactorTime,
    ISSLTransport,
    ITCPTransport,
    IUNIXTransport,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    ConnectionLostError,
    PylogbrokerError,
    TimedOutError,
    WireError,
    copyForReraise,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.protocol.brokercalls import RESPONSE_SIZE_MAX
from pylogbroker.protocol.framing import FrameDecoder

WRITE_SIZE = 128 << 10
"""Bytes of a write, as many as Twisted sends at a time (C{FileDescriptor.SEND_LIMIT})."""


class ConnectionLimits(NamedTuple):
    """
    The limits of a connection.

    @ivar responseSizeMax: bytes of an answer, with its error code.
    @ivar inFlightCountMax: requests written and not answered.
    @ivar waitingCountMax: frames that wait to be written.
    @ivar waitingSizeMax: bytes of these; a single frame may be larger while no other waits.
    @ivar abandonedMs: how long an answer without a caller may take.
    @ivar stallMs: how long the transport may take nothing.
    @ivar closeMs: how long L{ClientConnection.close} may take.
    @ivar sendBufferSize: the socket's SO_SNDBUF; 0 leaves it to the system.
    @ivar receiveBufferSize: the socket's SO_RCVBUF.
    @ivar readSize: bytes that are read from a plain connection at once; 0: as many as Twisted
        reads, 64 KiB.
    """

    responseSizeMax: int = RESPONSE_SIZE_MAX
    inFlightCountMax: int = 100
    waitingCountMax: int = 10_000
    waitingSizeMax: int = 64 << 20
    abandonedMs: float = 10_000
    stallMs: float = 30_000
    closeMs: float = 10_000
    sendBufferSize: int = 0
    receiveBufferSize: int = 0
    readSize: int = 0


DEFAULT_LIMITS = ConnectionLimits()


class _Phase(Enum):
    """
    The phase of a connection. Only an open one takes requests; all others have a C{refusal}.

    C{OPEN} - close -> C{DRAINING} - all is written and answered -> C{FINISHING} - lost -> C{LOST};
    from each of the first three, drop -> C{DROPPING} - lost -> C{LOST}.
    """

    OPEN = auto()
    DRAINING = auto()
    FINISHING = auto()
    DROPPING = auto()
    LOST = auto()


@dataclass(eq=False, slots=True)
class _Exchange:
    """
    A request frame and its caller.

    @ivar position: bytes that the transport has.
    @ivar waiter: fires with the answer, or, without one, with L{None} when the frame has left;
        L{None} without a caller.
    @ivar abandonedAt: when the caller went, seconds on the clock.
    @ivar sentCount: requests without an answer that were written before it.
    """

    frame: bytes
    isAnswered: bool
    position: int = 0
    waiter: Deferred[Any] | None = None
    timer: Timer | None = None
    abandonedAt: float = 0.0
    sentCount: int = 0

    def takeWaiter(self) -> Deferred[Any] | None:
        waiter, self.waiter = self.waiter, None
        if self.timer is not None:
            self.timer.stop()
        return waiter

    def complete(self, result: bytes | Failure | None = None) -> None:
        waiter = self.takeWaiter()
        if waiter is not None:
            waiter.callback(result)


@implementer(IPushProducer)
class ClientConnection(Protocol):
    """
    A connection to a broker, as a Twisted protocol.

    @ivar name: the broker's, for texts.
    @ivar refusal: why no request is taken; L{None} while the connection is open.
    @ivar lastUnackedAt: when a request without an answer was last written, seconds on the clock;
        L{None} when a later request was answered.
    """

    def __init__(
        self,
        clock: IReactorTime,
        name: str,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        onEnd: Callable[[ClientConnection], None] = lambda connection: None,
    ) -> None:
        """
        @param onEnd: called once, when the connection stops taking requests, before pending ones
            fail.
        """
        self.name = name
        self.limits = limits
        self.refusal: PylogbrokerError | None = BrokerConnectionError(
            f"not connected to {name} yet"
        )
        self.lastUnackedAt: float | None = None
        self._sentCount = 0
        self._clock = clock
        self._onEnd = onEnd
        self._decoder: FrameDecoder | None = FrameDecoder(limits.responseSizeMax)
        self._waiting: deque[_Exchange] = (
            deque()
        )  # in the order of the calls; the first may be partly written
        self._waitingSize = 0
        self._beingSent: deque[_Exchange] = (
            deque()
        )  # written without an answer to come, while the transport has not let them go
        self._inFlight: deque[_Exchange] = deque()  # written, answer to come
        self._isFlowing = True
        self._isTls = False
        self._stallTimer = Timer(clock)
        self._abandonedTimer = Timer(clock)
        self._closeTimer = Timer(clock)
        self._closers: Waiters[None] = Waiters()
        self._closeFailure: PylogbrokerError | None = None
        self._phase = _Phase.OPEN

    def __repr__(self) -> str:
        state = "open" if self.refusal is None else str(self.refusal)
        return (
            f"<BrokerConnection {self.name} {state}, {len(self._inFlight)} in flight, "
            f"{len(self._waiting)} waiting>"
        )

    # -- requests

    def send(self, frame: bytes) -> Deferred[None]:
        """
        Write a request without an answer.

        @return: fires when the transport has all bytes and does not push back: they are in its
            buffer of at most 64 KiB, or in the kernel's. This says nothing about the broker. Fails
            with L{BrokerConnectionError} when the connection is lost first (the broker may have
            handled the request or not); with L{BackpressureError} when too much waits (nothing was
            sent). Cancelling withdraws a frame of which nothing has left, and otherwise has no
            effect.
        """
        if (
            self._waiting
            or not self._isFlowing
            or self.refusal is not None
            or len(frame) > WRITE_SIZE
        ):
            return self._enqueue(_Exchange(frame, isAnswered=False))
        self._sent()
        if self._write(frame):
            return succeed(None)
        exchange = _Exchange(frame, isAnswered=False)
        self._beingSent.append(exchange)
        return self._newWaiter(exchange)

    def request(self, frame: bytes, timeoutMs: float) -> Deferred[bytes]:
        """
        Write a request and wait for its answer.

        @param timeoutMs: from now to the answer.
        @return: fires with the answer's frame, without its size field. Fails with L{TimedOutError};
            with L{BrokerConnectionError} when the connection is lost; with L{WireError} when the
            broker sent no frame; with L{BackpressureError} when too much waits. Cancelling
            withdraws a frame of which nothing has left; otherwise the answer is discarded.
        """
        exchange = _Exchange(frame, isAnswered=True)
        waiter = self._enqueue(exchange)
        if exchange.waiter is not None:
            exchange.timer = Timer(self._clock)
            exchange.timer.start(timeoutMs, self._expire, exchange, timeoutMs)
        return waiter

    @property
    def inFlightCount(self) -> int:
        """Requests that were written and are not answered."""
        return len(self._inFlight)

    def canTake(self, size: int) -> bool:
        limits = self.limits
        return not self._waiting or (
            len(self._waiting) < limits.waitingCountMax
            and self._waitingSize + size <= limits.waitingSizeMax
        )

    def _enqueue(self, exchange: _Exchange) -> Deferred[Any]:
        if self.refusal is not None:
            return fail(copyForReraise(self.refusal))
        if not self.canTake(len(exchange.frame)):
            return fail(
                BackpressureError(
                    f"{len(self._waiting)} requests of {self._waitingSize} bytes wait for "
                    f"{self.name} already"
                )
            )
        self._waiting.append(exchange)
        self._waitingSize += len(exchange.frame)
        waiter = self._newWaiter(exchange)
        self._pump()
        return waiter

    def _newWaiter(self, exchange: _Exchange) -> Deferred[Any]:
        exchange.waiter = Deferred(lambda _waiter: self._withdraw(exchange))
        return exchange.waiter

    def _pump(self) -> None:
        while self._waiting and self._isFlowing:
            exchange = self._waiting[0]
            if exchange.isAnswered and len(self._inFlight) >= self.limits.inFlightCountMax:
                return
            frame, start = exchange.frame, exchange.position
            exchange.position = min(start + WRITE_SIZE, len(frame))
            if exchange.position < len(frame):
                self._write(frame[start : exchange.position])
                continue
            self._waiting.popleft()
            self._waitingSize -= len(frame)
            if exchange.isAnswered:
                exchange.sentCount = self._sentCount
                self._inFlight.append(exchange)
            else:
                self._sent()
            isFlowing = self._write(frame[start:])
            if exchange.isAnswered:
                if exchange.waiter is None:  # given up between its first and its last piece
                    self._dropIfAbandoned()
            elif isFlowing:
                exchange.complete()
            elif exchange.waiter is not None:
                self._beingSent.append(exchange)
        self._checkDrained()

    def _sent(self) -> None:
        self._sentCount += 1
        self.lastUnackedAt = self._clock.seconds()

    def _write(self, data: bytes) -> bool:
        cast(ITCPTransport, self.transport).write(data)
        return self._isFlowing

    # -- cancellation and time-outs

    def _expire(self, exchange: _Exchange, timeoutMs: float) -> None:
        waiter = exchange.takeWaiter()
        assert waiter is not None  # or else the timer would have been stopped
        self._withdraw(exchange)
        waiter.errback(TimedOutError(f"no answer from {self.name} within {timeoutMs:.0f} ms"))

    def _withdraw(self, exchange: _Exchange) -> None:
        exchange.takeWaiter()
        if exchange in self._beingSent:
            self._beingSent.remove(exchange)
        elif exchange in self._waiting and not exchange.position:
            self._waiting.remove(exchange)
            self._waitingSize -= len(exchange.frame)
            self._pump()
        else:
            exchange.abandonedAt = self._clock.seconds()
            self._dropIfAbandoned()

    def _dropIfAbandoned(self) -> None:
        self._abandonedTimer.stop()
        if not self._inFlight or any(exchange.waiter is not None for exchange in self._inFlight):
            return
        leftMs = (
            self.limits.abandonedMs - (self._clock.seconds() - self._inFlight[0].abandonedAt) * 1000
        )
        if leftMs > 0:
            self._abandonedTimer.start(leftMs, self._dropIfAbandoned)
        else:
            self.drop(
                BrokerConnectionError(
                    f"{self.name} did not answer the requests whose callers have gone"
                )
            )

    # -- the transport

    def connectionMade(self) -> None:
        transport: Any = self.transport
        if ITCPTransport.providedBy(transport) and not IUNIXTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
        self._isTls = ISSLTransport.providedBy(transport)
        if self.limits.readSize and not self._isTls:
            transport.bufferSize = self.limits.readSize
        made = getattr(transport, "socket", None)
        for option, size in (
            (socket.SO_SNDBUF, self.limits.sendBufferSize),
            (socket.SO_RCVBUF, self.limits.receiveBufferSize),
        ):
            if size and made is not None:
                made.setsockopt(socket.SOL_SOCKET, option, size)
        transport.registerProducer(self, True)
        self.refusal = None

    def dataReceived(self, data: bytes) -> None:
        decoder = self._decoder
        if decoder is None:
            return
        decoder.feed(data)
        try:
            while decoder is self._decoder and (body := decoder.take()) is not None:
                self._answer(body)
        except WireError as error:
            self.drop(error)

    def _answer(self, body: bytes) -> None:
        if not self._inFlight:
            raise WireError(f"{self.name} sent {len(body)} bytes without a request")
        exchange = self._inFlight.popleft()
        if exchange.sentCount == self._sentCount:
            self.lastUnackedAt = None
        exchange.complete(body)
        self._pump()

    def pauseProducing(self) -> None:
        self._isFlowing = False
        self._restartStallTimer()

    def resumeProducing(self) -> None:
        """
        Go on writing: the transport has sent all its bytes.

        A broker that refuses a request over TLS ends TLS while we still write. Twisted then empties
        its buffer and calls this method, but does not close while a producer is registered. So we
        register again: a TLS connection that is over stops its producer.
        """
        self._isFlowing = True
        if self._isTls:
            transport: Any = self.transport
            transport.unregisterProducer()
            transport.registerProducer(self, True)
        self._restartStallTimer()
        if not self._isFlowing:
            return
        beingSent, self._beingSent = self._beingSent, deque()
        for exchange in beingSent:
            exchange.complete()
        self._pump()

    def stopProducing(self) -> None:
        """C{connectionLost} follows."""
        self._isFlowing = False

    def _restartStallTimer(self) -> None:
        self._stallTimer.stop()
        if not self._isFlowing and self._decoder is not None:
            stallMs = self.limits.stallMs
            reason = TimedOutError(f"{self.name} took nothing for {stallMs:g} ms")
            self._stallTimer.start(stallMs, self.drop, reason)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        isOrderly = isinstance(reason.value, ConnectionDone)
        lost = ConnectionLostError(
            f"{self.name} closed the connection: it has stopped, or refuses a request"
            if isOrderly
            else f"the connection to {self.name} was lost: {reason.getErrorMessage()}"
        )
        if self._phase is _Phase.DRAINING or (self._phase is _Phase.FINISHING and not isOrderly):
            self._closeFailure = lost
        self._phase = _Phase.LOST
        self._end(lost)
        self._fireClosers()

    # -- closing

    def close(self, flush: bool = True) -> Deferred[None]:
        """
        Take no more requests, finish those under way, and close.

        @param flush: L{False} fails those under way with L{ClosedError} instead.
        @return: fires when the connection is gone. Fails with L{BrokerConnectionError} when it was
            lost before all was written, answered and read by the broker, as far as can be known;
            with its subclass L{TimedOutError} after C{closeMs}.
        """
        if not flush:
            closed = ClosedError(f"the connection to {self.name} was closed")
            if self._waiting and self._waiting[0].position:
                self.drop(closed)
            else:
                self._decoder = None  # answers may still come
                self._refuse(closed)
                self._failAll(closed)
        closing = self._closers.wait()
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.DRAINING
            closeMs = self.limits.closeMs
            late = TimedOutError(
                f"the connection to {self.name} could not be closed within {closeMs:g} ms; what "
                "the broker has taken is unknown"
            )
            self._closeTimer.start(closeMs, self.drop, late)
            self._refuse(ClosedError(f"the connection to {self.name} was closed"))
            self._checkDrained()
        elif self._phase is _Phase.LOST:
            self._fireClosers()
        return closing

    def drop(self, reason: PylogbrokerError) -> None:
        """Cut the connection. Requests under way fail with C{reason}."""
        if self._phase in (_Phase.DROPPING, _Phase.LOST):
            return
        if self._phase is not _Phase.OPEN:
            self._closeFailure = reason
        self._phase = _Phase.DROPPING
        cast(ITCPTransport, self.transport).abortConnection()
        self._end(reason)

    def _checkDrained(self) -> None:
        if self._phase is not _Phase.DRAINING or self._waiting or self._beingSent or self._inFlight:
            return
        self._phase = _Phase.FINISHING
        transport: Any = self.transport
        transport.unregisterProducer()
        if IHalfCloseableDescriptor.providedBy(transport) and not ISSLTransport.providedBy(
            transport
        ):
            cast(Any, transport).loseWriteConnection()
        else:
            transport.loseConnection()

    def _end(self, reason: PylogbrokerError) -> None:
        self._decoder = None
        for timer in (self._stallTimer, self._abandonedTimer, self._closeTimer):
            timer.stop()
        self._refuse(reason)
        self._failAll(reason)

    def _refuse(self, reason: PylogbrokerError) -> None:
        if self.refusal is None:
            self.refusal = reason
            self._onEnd(self)

    def _failAll(self, reason: PylogbrokerError) -> None:
        exchanges = (*self._inFlight, *self._beingSent, *self._waiting)
        self._inFlight.clear()
        self._beingSent.clear()
        self._waiting.clear()
        self._waitingSize = 0
        for exchange in exchanges:
            exchange.complete(Failure(reason))

    def _fireClosers(self) -> None:
        self._closers.fire(None if self._closeFailure is None else Failure(self._closeFailure))
