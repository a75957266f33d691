"""
The low-level producer of one broker for threads; L{pylogbroker.client.syncproducer} says what a
success means.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from threading import Lock
from typing import Unpack, overload

from pylogbroker.errors import (
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
    PeriodicReconnect,
)
from pylogbroker.syncclient.connection import CLOSE_MS, TIMEOUT_MS, BrokerSocket, SocketOptions
from pylogbroker.types import LATEST, formatCount


class SyncProducer:
    """
    The low-level producer of one broker. It connects for the first send, and sends nothing twice.
    One call at a time; other threads wait.

    A context manager: leaving it closes it, and raises what C{close} raises, unless another
    exception is on its way.

    @ivar socket: its L{BrokerSocket}.
    """

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        payloadSizeMax: int = PAYLOAD_SIZE_MAX,
        timeoutMs: float = TIMEOUT_MS,
        closeMs: float = CLOSE_MS,
        reconnectIntervalCount: int = RECONNECT_INTERVAL,
        reconnectTimeIntervalMs: float = RECONNECT_TIME_INTERVAL_MS,
        **options: Unpack[SocketOptions],
    ) -> None:
        """
        @param tls: for TLS (L{pylogbroker.net.endpointstrings.endpoint} makes it); by default plain
            TCP.
        @param timeoutMs: how long the broker may take nothing, and how long a C{confirm} may take.
        @param closeMs: how long the last confirmation may take, and then the end of a connection
            that is closed or replaced.
        @param options: of L{BrokerSocket}: C{connectTimeoutMs}, C{random}, C{clock}, C{pause} and
            C{responseSizeMax}. The others are those of
            L{pylogbroker.client.syncproducer.SyncProducer}.
        """
        self.socket = BrokerSocket(host, port, tls, **options)
        self._reconnectPolicy = PeriodicReconnect(
            reconnectIntervalCount, reconnectTimeIntervalMs, self.socket.random
        )
        self._payloadSizeMax = payloadSizeMax
        self._timeoutMs = timeoutMs
        self._closeMs = closeMs
        self._serial = 0  # of the connection that was used last
        self._unconfirmedCount = 0  # of requests sent over it
        self._lastPartition = ("", 0)  # about a partition to which was sent
        self._unknownOutcome: BrokerConnectionError | None = None
        self._refusal: ClosedError | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<SyncProducer for {self.socket.name}>"

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            self.close()
        except BrokerConnectionError:
            if error is None:
                raise

    @overload
    def send(
        self, topic: str, partition: int, messages: Messages, *, codec: int = NONE
    ) -> None: ...

    @overload
    def send(self, topic: str, partition: Messages, /, *, codec: int = NONE) -> None: ...

    def send(
        self,
        topic: str,
        partition: int | Messages,
        messages: Messages | None = None,
        *,
        codec: int = NONE,
    ) -> None:
        """
        Send a message set: C{send(topic, partition, messages)}, or C{send(topic, messages)} to let
        the broker choose a partition. Returns when the kernel has the bytes. *There is no
        acknowledgement*; see C{confirm}.

        @param messages: an encoded message set, or an iterable of payloads.
        @param codec: to compress with; see L{pylogbroker.records.compression}.
        @raise pylogbroker.errors.BrokerConnectionError: no connection can be made (nothing was
            sent), or it was lost (the broker may have the request, which is not sent again).
            L{pylogbroker.errors.TimedOutError}: the broker took nothing for C{timeoutMs}.
        @raise pylogbroker.errors.MessageTooLargeError: a top-level payload is larger than
            C{payloadSizeMax}; nothing was sent.
        @raise pylogbroker.errors.UnknownCodecError: C{codec} is unknown.
        """
        part = destination(topic, partition, messages)
        self._send(produceFrame(*part, codec, self._payloadSizeMax), part[:2])

    def multiSend(self, parts: Iterable[ProducePart], *, codec: int = NONE) -> None:
        """
        Send several message sets in one request; see
        L{pylogbroker.client.syncproducer.SyncProducer.multiSend}. Raises as C{send}, and
        L{ValueError} for too many parts.
        """
        parts = list(parts)
        self._send(
            multiProduceFrame(parts, codec, self._payloadSizeMax), parts[-1][:2] if parts else None
        )

    def _send(self, frame: bytes, where: tuple[str, int] | None) -> None:
        with self._lock:
            self._connect()
            if where is not None:  # what has no parts leaves nothing to prove
                self._unconfirmedCount += 1
                self._lastPartition = where
            self.socket.write(frame, self._timeoutMs)
            if self._reconnectPolicy.sent(self.socket.nowMs()):
                self._end()

    def _connect(self) -> None:
        if self._refusal is not None:
            raise copyForReraise(self._refusal)
        self.socket.connect()
        if self.socket.serial != self._serial:
            self._serial = self.socket.serial
            self._reconnectPolicy.connected(self.socket.nowMs())
            self._leave(None)

    def _leave(self, cause: Exception | None) -> None:
        if self._unconfirmedCount:
            self._unknownOutcome = BrokerConnectionError(
                f"whether {self.socket.name} took the last"
                f" {formatCount(self._unconfirmedCount, 'request')} is unknown:"
                f" {cause or 'the connection was lost'}"
            )
            self._unknownOutcome.__cause__ = cause
            self._unconfirmedCount = 0

    def _raiseUnknown(self) -> None:
        outcome, self._unknownOutcome = self._unknownOutcome, None
        if outcome is not None:
            raise outcome

    def _end(self) -> None:
        if self._unconfirmedCount and not self.socket.isConnected:
            self._leave(None)
        elif self._unconfirmedCount:
            topic, partition = self._lastPartition
            try:
                self._requestConfirmation(
                    offsetsCall(topic, max(partition, 0), LATEST, 1), self._closeMs
                )
            except RemoteError:
                pass  # an answer, too, and it proves as much
            except (BrokerConnectionError, WireError) as error:
                self._leave(error)
        try:
            self.socket.close(self._closeMs)
        except BrokerConnectionError:
            pass  # what matters is what was proven before

    def _requestConfirmation(self, call: BrokerCall[list[int]], timeoutMs: float) -> int:
        """Send the OFFSETS request behind everything that was sent. Returns the offset."""
        self.socket.write(call.frame, timeoutMs)
        try:
            (offset,) = call.decode(self.socket.read(timeoutMs))
        except RemoteError:
            self._unconfirmedCount = 0
            raise
        except (WireError, ValueError) as error:
            self.socket.drop()
            raise WireError(f"{self.socket.name} did not answer with an offset: {error}") from error
        self._unconfirmedCount = 0
        return offset

    def confirm(self, topic: str, partition: int) -> int:
        """
        Find out whether the broker is done with everything that was sent before. Arguments, result
        and errors are those of L{pylogbroker.client.syncproducer.SyncProducer.confirm}, but for a
        time-out, which loses the connection.
        """
        call = offsetsCall(topic, checkedPartition(partition), LATEST, 1)
        with self._lock:
            self._connect()
            self._raiseUnknown()
            try:
                return self._requestConfirmation(call, self._timeoutMs)
            except BrokerConnectionError as error:
                self._leave(error)
                self._raiseUnknown()
                raise

    def close(self) -> None:
        """
        Find out whether the broker is done with everything that was sent, and close, after the call
        that is under way. No call is taken any more.

        @raise pylogbroker.errors.BrokerConnectionError: there was no answer within C{closeMs}, or
            the fate of sends over an earlier connection is unknown.
        """
        with self._lock:
            self._refusal = ClosedError(f"the producer for {self.socket.name} was closed")
            self._end()
            if self._unknownOutcome is not None:
                raise copyForReraise(self._unknownOutcome)
