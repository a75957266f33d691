"""
The low-level producer of one broker, which never answers (spec-0.7 producer §4, wire-protocol §3).

C{send} succeeds when the bytes have left this program. But a broker handles the requests of a
connection in order, so its answer to an OFFSETS request proves that it is done with earlier
requests. L{SyncProducer.confirm} sends one; so do C{close} and every replacement of a connection
(C{reconnectIntervalCount}). For this proof:

  - The request goes over the connection of the messages; a new connection would answer just as
  well. So the producer remembers unconfirmed sends of a lost one, and the next C{confirm} or
  C{close} fails.
  - A replaced connection is closed to the end before the next one is made, so nothing overtakes.
  - Sends keep their order while there is no connection (L{pylogbroker.client.brokerclient}).

Rejected: the broker's closing of its side as the proof. It may have closed a moment before and
discarded unread bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
from pylogbroker.net.deferreds import Waiters, asDeferred
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
    PeriodicReconnect,
)
from pylogbroker.types import LATEST, formatCount

T = TypeVar("T")

CONFIRMATION_SIZE_MAX = 65_536
"""Bytes of an OFFSETS request at most."""


@dataclass(eq=False, slots=True)
class _UnackedSends:
    """
    The requests of one connection.

    @ivar confirmedCount: how many, from the first on, are confirmed, or reported as unknown.
    @ivar lastPartition: the (topic, partition) of a produce request, for the confirming OFFSETS
        request.
    """

    connection: ClientConnection
    sentCount: int = 0
    confirmedCount: int = 0
    lastPartition: tuple[str, int] = ("", 0)

    @property
    def unconfirmedCount(self) -> int:
        return self.sentCount - self.confirmedCount

    def confirm(self, count: int) -> None:
        self.confirmedCount = max(self.confirmedCount, count)


class SyncProducer:
    """
    The low-level producer of one broker. It connects for the first send, and sends nothing twice.
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
        @param endpoint: C{"host:port"}, a Twisted client endpoint string, or an endpoint.
        @param payloadSizeMax: bytes of a top-level payload, the wrapper's for a compressed set
            (C{max.message.size}).
        @param timeoutMs: for a C{confirm}.
        @param connectTimeoutMs: how long a call waits for a connection, over all attempts.
        @param reconnectIntervalCount: requests after which the connection is replaced.
        @param reconnectTimeIntervalMs: milliseconds after which it is replaced; negative for never.
        @param limits: C{waitingSizeMax} also bounds frames that wait for a connection, and
            C{stallMs} the wait for a broker that does not read.
        @param random: in [0, 1), for jitter; by default the system's.
        @raise pylogbroker.errors.ConfigurationError: the endpoint cannot be read.
        """
        random = SystemRandom().random if random is None else random
        self._client = BrokerClient(
            reactor, endpoint, connectTimeoutMs=connectTimeoutMs, limits=limits, random=random
        )
        self._reconnectPolicy = PeriodicReconnect(
            reconnectIntervalCount, reconnectTimeIntervalMs, random
        )
        self._clock = reactor
        self._payloadSizeMax = payloadSizeMax
        self._timeoutMs = timeoutMs
        self._waitingSizeMax = limits.waitingSizeMax
        self._waitingSize = 0  # of frames that wait for a connection
        self._pendingCount = 0  # of sends whose Deferred has not fired
        self._idle: Waiters[None] = Waiters()
        self._unacked: _UnackedSends | None = None
        self._unknownOutcome: BrokerConnectionError | None = None
        self._refusal: ClosedError | None = None

    def __repr__(self) -> str:
        return f"<SyncProducer for {self._client.name}>"

    # -- sending

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
        Send a message set: C{send(topic, partition, messages)}, or C{send(topic, messages)} to let
        the broker choose the partition.

        @param messages: an iterable of payloads; or an encoded message set of whole entries (the
            broker silently drops a cut last one, and C{confirm} does not notice).
        @param codec: to compress with; see L{pylogbroker.records.compression}.
        @return: fires when the transport has the bytes and does not push back; they may still be in
            its buffer of at most 64 KiB or in the kernel's. *There is no acknowledgement*: the
            broker may drop them (a payload over its limit), close the connection (an invalid topic
            or partition), or crash; see C{confirm}. Fails with
            L{pylogbroker.errors.BrokerConnectionError} without a connection (nothing was sent), or
            when it is lost first (the broker may have the request, which is not sent again); with
            L{pylogbroker.errors.BackpressureError} when too much waits (nothing was sent; wait for
            earlier L{Deferred}s); with L{pylogbroker.errors.ClosedError} after C{close}. Cancelling
            withdraws a request of which nothing has left.
        @raise pylogbroker.errors.MessageTooLargeError: a top-level payload exceeds
            C{payloadSizeMax}; the text says which. Nothing was sent.
        @raise pylogbroker.errors.UnknownCodecError: C{codec} is unknown.
        """
        part = destination(topic, partition, messages)
        return self._send(produceFrame(*part, codec, self._payloadSizeMax), part[:2])

    def multiSend(self, parts: Iterable[ProducePart], *, codec: int = NONE) -> Deferred[None]:
        """
        Send several message sets in one request. The broker takes them in order, up to the first
        that it refuses.

        @param parts: of (topic, partition, messages), at most 32,767; partition -1 lets the broker
            choose.
        @return: as C{send}.
        @raise pylogbroker.errors.MessageTooLargeError: as C{send}; nothing of any part was sent.
        @raise ValueError: there are too many parts.
        """
        parts = list(parts)
        return self._send(
            multiProduceFrame(parts, codec, self._payloadSizeMax), parts[-1][:2] if parts else None
        )

    def _send(self, frame: bytes, where: tuple[str, int] | None) -> Deferred[None]:
        if self._refusal is not None:
            return fail(copyForReraise(self._refusal))
        connection = self._client.current
        if connection is None:  # its Deferred may be called and still wait for that of the send
            return self._pending(self._sendLater(frame, where))
        sending = self._sendOver(connection, frame, where)
        return sending if sending.called else self._pending(sending)

    def _sendLater(self, frame: bytes, where: tuple[str, int] | None) -> Deferred[None]:
        size = len(frame)
        if self._waitingSize and self._waitingSize + size > self._waitingSizeMax:
            return fail(
                BackpressureError(
                    f"{self._waitingSize} bytes wait for a connection to {self._client.name} "
                    "already"
                )
            )
        self._waitingSize += size

        def connected(result: Any) -> Any:
            self._waitingSize -= size
            if isinstance(result, ClientConnection):
                return self._sendOver(result, frame, where)
            return result

        return self._client.connection().addBoth(connected)

    def _sendOver(
        self, connection: ClientConnection, frame: bytes, where: tuple[str, int] | None
    ) -> Deferred[None]:
        unacked = self._unackedOf(connection)
        if where is not None and connection.canTake(len(frame)):
            unacked.sentCount += 1
            unacked.lastPartition = where
        sending = connection.send(frame)
        if self._reconnectPolicy.sent(self._nowMs()) and connection.canTake(CONFIRMATION_SIZE_MAX):
            self._replace(unacked)
        return sending

    def _pending(self, result: Deferred[T]) -> Deferred[T]:
        self._pendingCount += 1
        return result.addBoth(self._settled)

    def _settled(self, result: Any) -> Any:
        self._pendingCount -= 1
        if not self._pendingCount:
            self._idle.fire(None)
        return result

    def _nowMs(self) -> float:
        return float(self._clock.seconds() * 1000)

    def _unackedOf(self, connection: ClientConnection) -> _UnackedSends:
        unacked = self._unacked
        if unacked is None or unacked.connection is not connection:
            self._leave()
            unacked = self._unacked = _UnackedSends(connection)
            self._reconnectPolicy.connected(self._nowMs())
        return unacked

    def _leave(self) -> None:
        unacked, self._unacked = self._unacked, None
        if unacked is not None and unacked.unconfirmedCount:
            self._unknownOutcome = self._unknown(unacked, unacked.connection.refusal)

    def _unknown(
        self, unacked: _UnackedSends, cause: BaseException | None
    ) -> BrokerConnectionError:
        unknown = BrokerConnectionError(
            f"whether {self._client.name} took the last"
            f" {formatCount(unacked.unconfirmedCount, 'request')} is unknown: {cause}"
        )
        unknown.__cause__ = cause
        return unknown

    def _replace(self, unacked: _UnackedSends) -> None:
        self._unacked = None
        self._confirmBeforeClosing(unacked)
        self._client.replace().addErrback(lambda _reason: None)

    # -- confirmation

    def confirm(self, topic: str, partition: int) -> Deferred[int]:
        """
        Learn whether the broker is done with all earlier sends: request the latest offset of a
        partition over the same connection.

        @param topic: any; the proof covers all topics and partitions.
        @param partition: one of the topic's; not -1.
        @return: fires with the partition's high watermark. The broker has handled every request
            whose C{send} came before this call. (Kafka 0.7.2 may have dropped payloads over its
            limit; our broker does not answer then.) The messages are in its log, and visible and
            safe from a crash when it flushed. Fails with
            L{pylogbroker.errors.BrokerConnectionError} when the connection was lost before the
            answer, or earlier with unconfirmed sends: their fate is *unknown*. Fails with
            L{pylogbroker.errors.TimedOutError} after C{timeoutMs}; call again.
        @raise ValueError: C{partition} is negative: the broker would close the connection.
        """
        call = offsetsCall(topic, checkedPartition(partition), LATEST, 1)
        if self._refusal is not None:
            return fail(copyForReraise(self._refusal))
        return self._pending(Deferred.fromCoroutine(self._confirm(call)))

    async def _confirm(self, call: BrokerCall[list[int]]) -> int:
        connection = await self._client.connection()
        unacked = self._unackedOf(connection)
        outcome, self._unknownOutcome = self._unknownOutcome, None
        if outcome is not None:
            raise outcome
        count = unacked.sentCount
        try:
            return await self._requestConfirmation(unacked, call)
        except BrokerConnectionError as error:
            if connection.refusal is None or not unacked.unconfirmedCount:
                raise
            unknown = self._unknown(unacked, error)
            # The next call reports what was sent after this one.
            unacked.confirm(count)
            raise unknown from error

    async def _requestConfirmation(
        self, unacked: _UnackedSends, call: BrokerCall[list[int]]
    ) -> int:
        count = unacked.sentCount
        try:
            (offset,) = call.decode(await unacked.connection.request(call.frame, self._timeoutMs))
        except RemoteError:  # an answer, too, and it proves as much
            unacked.confirm(count)
            raise
        except (WireError, ValueError) as error:
            reason = WireError(f"{self._client.name} did not answer with an offset: {error}")
            unacked.connection.drop(reason)
            raise reason from error
        unacked.confirm(count)
        return offset

    def _confirmBeforeClosing(self, unacked: _UnackedSends) -> None:
        def failed(reason: Failure) -> None:
            if not reason.check(RemoteError):
                self._unknownOutcome = self._unknown(unacked, reason.value)

        topic, partition = unacked.lastPartition
        Deferred.fromCoroutine(
            self._requestConfirmation(unacked, offsetsCall(topic, max(partition, 0), LATEST, 1))
        ).addErrback(failed)

    @asDeferred
    async def close(self) -> None:
        """
        Finish the sends, confirm them, and close. No call is taken any more.

        @return: fires when the broker is done with everything and the connection is gone. Fails
            with L{pylogbroker.errors.BrokerConnectionError} after the connection's C{closeMs}, or
            when an earlier connection was lost with unconfirmed sends, whose fate is unknown.
        """
        self._refusal = ClosedError(f"the producer for {self._client.name} was closed")
        if self._pendingCount:
            await self._idle.wait()
        unacked = self._unacked
        if unacked is not None and unacked.unconfirmedCount and unacked.connection.refusal is None:
            self._unacked = None
            self._confirmBeforeClosing(unacked)
        else:
            self._leave()
        await self._client.close().addErrback(lambda _failure: None)
        if self._unknownOutcome is not None:
            raise self._unknownOutcome
