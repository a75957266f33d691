"""
Writing to one broker, which never answers (spec-0.7 producer §4, wire-protocol §3).

What a success means is the hard part of this module. C{send} succeeds when the bytes have left this program; whether the broker took, dropped or
never saw them cannot be known from that, and a 0.7 client leaves it there. But requests on one connection are carried out in order, so the answer to an OFFSETS
request says that the broker is done with all that was sent before it. That is what L{SyncProducer.confirm} asks, and C{close}, and the
producer itself before it replaces a connection (C{reconnectIntervalCount}). For the answer to prove anything:

  - The question goes over the connection over which the messages went. Should that have been lost in between, a new connection
    would answer just as well. So the producer remembers which sends are not proven, and the next C{confirm} or C{close} after such
    a loss fails, whatever a new connection says.
  - A connection that is replaced is closed to the end; only then is the next one made. So nothing overtakes.
  - Sends keep their order while there is no connection yet; see L{pylogbroker.client.brokerclient}.

Rejected: to take the broker's closing of its side, after we closed ours, for the proof. It may have closed a moment before, for a reason of
its own, and thrown away what it had not read; our end looks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import SystemRandom
from typing import Any, TypeVar, overload

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure

from pylogbroker.client.brokerclient import CONNECT_TIMEOUT_MS, TIMEOUT_MS, BrokerClient
from pylogbroker.client.connection import DEFAULT_LIMITS, ClientConnection, ConnectionLimits
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    RemoteError,
    WireError,
    copyForReraise,
)
from pylogbroker.protocol.brokercalls import (
    PAYLOAD_SIZE_MAX,
    BrokerCall,
    Messages,
    ProducePart,
    checkedPartition,
    destination,
    multiProduceFrame,
    offsetsCall,
    produceFrame,
)
from pylogbroker.records.compression import NONE
from pylogbroker.retry import (
    RECONNECT_INTERVAL,
    RECONNECT_TIME_INTERVAL_MS,
    ReconnectPolicy,
)
from pylogbroker.types import LATEST

T = TypeVar("T")

QUESTION_SIZE_MAX = 65_536
"""Bytes that an OFFSETS request has at most."""


class _UnackedSends:
    """
    What went over one connection.

    @ivar sentCount: requests.
    @ivar settledCount: how many of them, from the first on, the broker is known to be done with, or were said to be unknown.
    @ivar question: what to ask for a proof: about a partition to which was sent.
    """

    __slots__ = ("connection", "question", "sentCount", "settledCount")

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.sentCount = 0
        self.settledCount = 0
        self.question: tuple[str, int] = ("", 0)

    @property
    def unprovenCount(self) -> int:
        """How many requests may come into doubt."""
        return self.sentCount - self.settledCount


class SyncProducer:
    """
    The low-level producer for one broker. It connects when it first has something to send; nothing is ever sent twice.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: str | IStreamClientEndpoint,
        *,
        payloadSizeMax: int = PAYLOAD_SIZE_MAX,
        timeoutMs: float = TIMEOUT_MS,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        reconnectIntervalCount: int = RECONNECT_INTERVAL,
        reconnectTimeIntervalMs: float = RECONNECT_TIME_INTERVAL_MS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param reactor: for connecting and for time.
        @param endpoint: the broker: C{"host:port"}, a Twisted client endpoint string, or an endpoint.
        @param payloadSizeMax: bytes of a top-level payload, which is the wrapper's for a compressed set (C{max.message.size}).
        @param timeoutMs: for a C{confirm}.
        @param connectTimeoutMs: how long a call waits for a connection, over all attempts.
        @param reconnectIntervalCount: requests after which the connection is replaced.
        @param reconnectTimeIntervalMs: milliseconds after which it is; negative for never.
        @param limits: of the connection; C{waitingSizeMax} bounds what waits for a connection, too, and C{stallMs} what waits for a broker that does not read.
        @param random: numbers from 0 up to, not including, 1, for jitter; by default the system's.
        @raise pylogbroker.errors.ConfigurationError: the endpoint is none.
        """
        random = SystemRandom().random if random is None else random
        self._link = BrokerClient(
            reactor, endpoint, connectTimeoutMs=connectTimeoutMs, limits=limits, random=random
        )
        self._rule = ReconnectPolicy(reconnectIntervalCount, reconnectTimeIntervalMs, random)
        self._clock = reactor
        self._payloadSizeMax = payloadSizeMax
        self._timeoutMs = timeoutMs
        self._waitingSizeMax = limits.waitingSizeMax
        self._waitingSize = 0  # of frames that wait for a connection
        self._pendingCount = 0  # of sends whose Deferred has not fired
        self._idlers: list[Deferred[None]] = []
        self._trail: _UnackedSends | None = None
        self._doubt: BrokerConnectionError | None = None
        self._refusal: ClosedError | None = None

    def __repr__(self) -> str:
        return f"<SyncProducer for {self._link.name}>"

    # -- sending ------------------------------------------------------------------------------------------------------

    @overload
    def send(
        self, topic: str, partition: int, messages: Messages, *, codec: int = NONE
    ) -> Deferred[None]: ...

    @overload
    def send(self, topic: str, partition: Messages, /, *, codec: int = NONE) -> Deferred[None]: ...

    def send(
        self,
        topic: str,
        partition: int | Messages,
        messages: Messages | None = None,
        *,
        codec: int = NONE,
    ) -> Deferred[None]:
        """
        Send a message set: C{send(topic, partition, messages)}, or C{send(topic, messages)} to let the broker pick a partition.

        @param messages: an encoded message set, of whole entries (a last one that is cut is left out by the broker, which says nothing, and is not missed by
            C{confirm}); or an iterable of payloads.
        @param codec: to compress with; see L{pylogbroker.records.compression}.
        @return: fires when the bytes were handed to the transport and it is not pushing back. They are then in its buffer of at most 64 KiB, or
            in the kernel's, or on their way. *There is no acknowledgement*: the broker may still drop them without a word (a payload over its
            own limit), close the connection (a topic or partition that cannot be), or crash; see C{confirm}. It fails with
            L{pylogbroker.errors.BrokerConnectionError} when there is no connection to be had (nothing was sent), or when it is lost before that (the
            broker may have it or not); it is not tried again. With L{pylogbroker.errors.BackpressureError}, when too much is waiting (nothing was
            sent): wait for earlier L{Deferred}s before you send more. With L{pylogbroker.errors.ClosedError} after C{close}.
            Cancelling takes the request back if nothing of it has left, and else changes nothing.
        @raise pylogbroker.errors.MessageTooLargeError: a top-level payload is larger than C{payloadSizeMax}; the text says which. Nothing was sent.
        @raise pylogbroker.errors.UnknownCodecError: C{codec} is none.
        """
        part = destination(topic, partition, messages)
        return self._send(produceFrame(*part, codec, self._payloadSizeMax), part[:2])

    def multiSend(self, parts: Iterable[ProducePart], *, codec: int = NONE) -> Deferred[None]:
        """
        Send several message sets in one request. The broker takes them in order, up to the first that it refuses.

        @param parts: of (topic, partition, messages), at most 32,767; partition -1 lets the broker pick.
        @param codec: to compress each of them with.
        @return: as C{send}.
        @raise pylogbroker.errors.MessageTooLargeError: as C{send}; nothing of any part was sent.
        @raise ValueError: there are too many.
        """
        parts = list(parts)
        return self._send(
            multiProduceFrame(parts, codec, self._payloadSizeMax), parts[-1][:2] if parts else None
        )

    def _send(self, frame: bytes, where: tuple[str, int] | None) -> Deferred[None]:
        if self._refusal is not None:
            return fail(copyForReraise(self._refusal))
        connection = self._link.current
        if connection is None:
            return self._pending(self._sendLater(frame, where))
        sending = self._sendOver(connection, frame, where)
        return sending if sending.called else self._pending(sending)

    def _sendLater(self, frame: bytes, where: tuple[str, int] | None) -> Deferred[None]:
        """There is no connection yet."""
        size = len(frame)
        if self._waitingSize and self._waitingSize + size > self._waitingSizeMax:
            return fail(
                BackpressureError(
                    f"{self._waitingSize} bytes wait for a connection to {self._link.name} already"
                )
            )
        self._waitingSize += size

        def connected(result: Any) -> Any:
            self._waitingSize -= size
            return (
                self._sendOver(result, frame, where)
                if isinstance(result, ClientConnection)
                else result
            )

        return self._link.connection().addBoth(connected)

    def _sendOver(
        self, connection: ClientConnection, frame: bytes, where: tuple[str, int] | None
    ) -> Deferred[None]:
        trail = self._trailOf(connection)
        if where is not None and connection.canTake(
            len(frame)
        ):  # what has no parts, or is refused, leaves nothing to prove
            trail.sentCount += 1
            trail.question = where
        sending = connection.send(frame)
        if self._rule.sent(self._nowMs()) and connection.canTake(QUESTION_SIZE_MAX):
            self._replace(trail)
        return sending

    def _pending(self, result: Deferred[T]) -> Deferred[T]:
        """C{close} waits for it."""
        self._pendingCount += 1
        return result.addBoth(self._settled)

    def _settled(self, result: Any) -> Any:
        self._pendingCount -= 1
        if not self._pendingCount:
            idlers, self._idlers = self._idlers, []
            for idler in idlers:
                idler.callback(None)
        return result

    def _nowMs(self) -> float:
        return float(self._clock.seconds() * 1000)

    def _trailOf(self, connection: ClientConnection) -> _UnackedSends:
        trail = self._trail
        if trail is None or trail.connection is not connection:
            self._leave()
            trail = self._trail = _UnackedSends(connection)
            self._rule.connected(self._nowMs())
        return trail

    def _leave(self) -> None:
        """The connection over which was sent is not there any more."""
        trail, self._trail = self._trail, None
        if trail is not None and trail.unprovenCount:
            self._doubt = self._unknown(trail, trail.connection.refusal)

    def _unknown(self, trail: _UnackedSends, cause: BaseException | None) -> BrokerConnectionError:
        unknown = BrokerConnectionError(
            f"whether {self._link.name} took the last {trail.unprovenCount} requests is unknown: {cause}"
        )
        unknown.__cause__ = cause
        return unknown

    def _replace(self, trail: _UnackedSends) -> None:
        """The connection is old."""
        self._trail = None
        self._proveOrDoubt(trail)
        self._link.replace().addErrback(lambda _reason: None)

    # -- knowing ------------------------------------------------------------------------------------------------------

    def confirm(self, topic: str, partition: int) -> Deferred[int]:
        """
        Find out whether the broker is done with all that was sent before.

        It asks for the latest offset of a partition, over the connection over which was sent, behind what was sent.

        @param topic: any; the answer tells its offset. The proof is for all topics and partitions.
        @param partition: one of the topic's. -1 is none.
        @return: fires with the partition's visible end. Then the broker has carried out every request whose C{send} came before this call (Kafka 0.7.2
            may have dropped some: payloads over its own limit. Ours does not answer then); what it carried out is in its log, and visible and
            safe from a crash only when it flushed. A message set that was given as bytes and whose last entry is cut is carried out without that
            one (spec-0.7 wire-protocol §9). Fails with L{pylogbroker.errors.BrokerConnectionError} when the connection was lost before the answer
            came, or before this call and after a send that was not confirmed: whether the broker took those is then *unknown*. With
            L{pylogbroker.errors.TimedOutError}, when there is no answer within C{timeoutMs}; ask again.
        @raise ValueError: C{partition} is negative: the broker would close the connection.
        """
        call = offsetsCall(topic, checkedPartition(partition), LATEST, 1)
        return (
            fail(copyForReraise(self._refusal))
            if self._refusal is not None
            else self._pending(Deferred.fromCoroutine(self._confirm(call)))
        )

    async def _confirm(self, call: BrokerCall[list[int]]) -> int:
        connection = await self._link.connection()
        trail = self._trailOf(connection)
        doubt, self._doubt = self._doubt, None
        if doubt is not None:
            raise doubt
        count = trail.sentCount
        try:
            return await self._prove(trail, call)
        except BrokerConnectionError as error:
            if connection.refusal is None or not trail.unprovenCount:
                raise
            unknown = self._unknown(trail, error)
            trail.settledCount = max(
                trail.settledCount, count
            )  # what was sent after this question is for the next one to tell
            raise unknown from error

    async def _prove(self, trail: _UnackedSends, call: BrokerCall[list[int]]) -> int:
        """Ask, behind all that was sent. Returns the offset, as far as that is wanted."""
        count = trail.sentCount
        try:
            (offset,) = call.decode(await trail.connection.request(call.frame, self._timeoutMs))
        except RemoteError:  # an answer, too, and it proves as much
            trail.settledCount = max(trail.settledCount, count)
            raise
        except (WireError, ValueError) as error:
            reason = WireError(f"{self._link.name} did not answer with an offset: {error}")
            trail.connection.drop(reason)
            raise reason from error
        trail.settledCount = max(trail.settledCount, count)
        return offset

    def _proveOrDoubt(self, trail: _UnackedSends) -> None:
        """Ask, and remember it when there is no answer. The question is written at once; who closes the connection then waits for the answer."""

        def failed(reason: Failure) -> None:
            if not reason.check(RemoteError):
                self._doubt = self._unknown(trail, reason.value)

        topic, partition = trail.question
        Deferred.fromCoroutine(
            self._prove(trail, offsetsCall(topic, max(partition, 0), LATEST, 1))
        ).addErrback(failed)

    def close(self) -> Deferred[None]:
        """
        Send what was given to C{send}, find out whether the broker is done with it, close. No call is taken any more.

        @return: fires when the broker is done with all that was sent, and the connection is gone. Fails with
            L{pylogbroker.errors.BrokerConnectionError} when that was not so within the connection's C{closeMs}, or when an earlier connection was lost with
            something on it that was not confirmed: whether the broker took that is then unknown.
        """
        self._refusal = ClosedError(f"the producer for {self._link.name} was closed")
        idle: Deferred[None] = Deferred()
        if self._pendingCount:
            self._idlers.append(idle)
        else:
            idle.callback(None)
        return idle.addCallback(self._finish)

    def _finish(self, _nothing: None) -> Deferred[None]:
        trail = self._trail
        if trail is not None and trail.unprovenCount and trail.connection.refusal is None:
            self._trail = None
            self._proveOrDoubt(trail)
        else:
            self._leave()
        return self._link.close().addBoth(self._closed)

    def _closed(self, _result: object) -> None:
        """The connection is gone, one way or another; what matters is what was proven before."""
        if self._doubt is not None:
            raise self._doubt
