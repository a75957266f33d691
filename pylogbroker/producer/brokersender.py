"""
Sending to one broker: its batches, its requests and the connection.

0.7's protocol does not acknowledge produce requests. Two outcomes can still be known:

  - I{written}: the bytes are in the kernel's buffer, or nearly so. 0.7's clients know no more.
  - I{confirmed}: an OFFSETS request followed on the same connection and was answered. A broker
    handles a connection's requests in order. (Kafka 0.7.2 also answers after dropping a payload
    over its own limit. Our broker closes the connection then.)

When a connection breaks, a request that was not begun I{failed} and can be sent elsewhere. One that
was begun and not confirmed is I{unknown}: L{UnknownOutcomeError}.

The OFFSETS request names a partition of the produce request (0 where the broker picks one): a
broker closes the connection for an offline partition. Both requests are written together, so that a
broker that stops in order answers all that it took.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.brokerclient import BrokerClient
from pylogbroker.client.connection import ClientConnection
from pylogbroker.client.discovery import BrokerNode
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    InvalidTopicError,
    PylogbrokerError,
    RemoteError,
    UnknownOutcomeError,
    WireError,
)
from pylogbroker.producer.accumulator import BatchAccumulator, PartitionBatch
from pylogbroker.producer.completion import Completions
from pylogbroker.producer.encoding import Encoding
from pylogbroker.protocol.brokercalls import BrokerCall, offsetsCall
from pylogbroker.protocol.kafka07.requests import COUNT_MAX, encodeMultiProduce, encodeProduce
from pylogbroker.retry import PeriodicReconnect
from pylogbroker.types import LATEST

T = TypeVar("T")

Part = tuple[str, int, bytes]
"""Topic, partition, message set."""

log = Logger()


class RequestSender:
    """
    Writes produce requests to one broker and, on request, confirms them. An event handler of the
    application gets one for each batch.
    """

    def __init__(
        self,
        clock: Any,
        client: BrokerClient,
        reconnectPolicy: PeriodicReconnect,
        *,
        isConfirming: bool,
        timeoutMs: float,
    ) -> None:
        """
        @param isConfirming: whether to confirm each request.
        @param timeoutMs: for a confirmation.
        """
        self.name = client.name
        self._clock = clock
        self._client = client
        self._reconnectPolicy = reconnectPolicy
        self._isConfirming = isConfirming
        self._timeoutMs = timeoutMs
        self._connection: ClientConnection | None = None

    def send(self, topic: str, partition: int, messageSet: bytes) -> Deferred[None]:
        """
        Send a PRODUCE request; see L{sendFrame}.

        @raise ValueError: the request exceeds a limit of the protocol.
        """
        return self.sendFrame(encodeProduce(topic, partition, messageSet), topic, partition)

    def multiSend(self, parts: Iterable[Part]) -> Deferred[None]:
        """
        Send a MULTIPRODUCE request, or several for more than 32,767 parts.

        @return: as of L{sendFrame}; fails with C{ValueError} if a request exceeds a limit of the
            protocol.
        """
        return Deferred.fromCoroutine(self._multiSend(list(parts)))

    async def _multiSend(self, parts: list[Part]) -> None:
        for start in range(0, len(parts), COUNT_MAX):
            some = parts[start : start + COUNT_MAX]
            try:
                await self.sendFrame(encodeMultiProduce(some), *some[-1][:2])
            except PylogbrokerError as error:
                if not start or isinstance(error, UnknownOutcomeError):
                    raise
                raise self._unknown(error) from error  # the parts before were sent

    def sendFrame(self, frame: bytes, topic: str, partition: int) -> Deferred[None]:
        """
        Send one request. Requests keep the order of the calls.

        @param topic: one in the request.
        @param partition: one of that topic in the request; may be -1.
        @return: fires when the request is written, or confirmed. Fails with L{UnknownOutcomeError}
            when the broker may have it; with another L{PylogbrokerError} when nothing of it was
            sent. Cancelling fails it in one of these ways.
        """
        return Deferred.fromCoroutine(self._sendFrame(frame, topic, partition))

    async def _sendFrame(self, frame: bytes, topic: str, partition: int) -> None:
        connection = self._client.current
        if connection is None:
            try:
                connection = await self._client.connection()
            except CancelledError:
                raise ClosedError(f"there was no connection to {self.name} yet") from None
        try:
            if self._isConfirming:
                call = offsetsCall(topic, max(partition, 0), LATEST, 1)
                answer = connection.request(frame + call.frame, self._timeoutMs)
                self._checkAnswer(connection, call, await self._begun(connection, answer))
            else:
                await self._begun(connection, connection.send(frame))
        except (BrokerConnectionError, WireError, CancelledError) as error:
            raise self._unknown(error) from error

    def _unknown(self, error: BaseException) -> UnknownOutcomeError:
        reason = "it was given up" if isinstance(error, CancelledError) else error
        return UnknownOutcomeError(f"whether {self.name} took a request is unknown: {reason}")

    def _begun(self, connection: ClientConnection, sending: Deferred[T]) -> Deferred[T]:
        nowMs = self._clock.seconds() * 1000
        if connection is not self._connection:
            self._connection = connection
            self._reconnectPolicy.connected(nowMs)
        if self._reconnectPolicy.sent(nowMs):
            self._client.replace().addErrback(self._logNotReplaced)
        return sending

    def _logNotReplaced(self, failure: Failure) -> None:
        log.warn(
            "A connection to {name} that was to be replaced did not end well: {reason}",
            name=self.name,
            reason=failure.getErrorMessage(),
        )

    def _checkAnswer(
        self, connection: ClientConnection, call: BrokerCall[list[int]], answer: bytes
    ) -> None:
        """An error code proves as much as any answer. Invalid bytes do not."""
        try:
            call.decode(answer)
        except RemoteError as error:
            log.warn(
                "{name} answered the OFFSETS request behind a produce request with {error}",
                name=self.name,
                error=error,
            )
        except WireError as error:
            connection.drop(error)
            raise


class BrokerSender:
    """Sends the batches for one broker."""

    def __init__(
        self,
        node: BrokerNode,
        requests: RequestSender,
        encoding: Encoding,
        completions: Completions,
        retryCount: int,
        onFailed: Callable[
            [BrokerSender, list[PartitionBatch], PylogbrokerError, int, int], Awaitable[None]
        ],
    ) -> None:
        """
        @param retryCount: how often failed batches may be sent again.
        @param onFailed: called with this object, the failed batches, the reason, the retries left
            and the moves to another broker so far; it decides what happens next.
        """
        self.node = node
        self.requests = requests
        self.accumulator: BatchAccumulator
        self._encoding = encoding
        self._completions = completions
        self._retryCount = retryCount
        self._onFailed = onFailed

    def dispatch(self, batches: list[PartitionBatch]) -> None:
        sending = Deferred.fromCoroutine(self.send(batches, self._retryCount))
        sending.addErrback(logUnexpected)

    async def send(
        self, batches: list[PartitionBatch], retriesLeft: int, moveCount: int = 0
    ) -> None:
        """
        Send batches in one request and complete their messages. A message that cannot be encoded
        fails alone. If the request fails, C{onFailed} decides.
        """
        parts, batches = self._encode(batches)
        if not batches:
            return
        self._completions.counters.batchCount += 1
        try:
            await self._sendParts(parts)
        except PylogbrokerError as error:
            await self._onFailed(self, batches, error, retriesLeft, moveCount)
        except Exception as error:
            log.failure("Sending to {name} failed unexpectedly", name=self.requests.name)
            unknown = UnknownOutcomeError(f"sending failed unexpectedly: {error!r}")
            self._completions.complete(batches, Failure(unknown))
        else:
            self._completions.complete(batches)

    def sendSync(self, batches: list[PartitionBatch]) -> Deferred[None]:
        """
        Send batches as sync mode does: all or none, without a retry; one batch as a PRODUCE
        request.
        """
        return Deferred.fromCoroutine(self._sendSync(batches)).addErrback(logUnexpected)

    async def _sendSync(self, batches: list[PartitionBatch]) -> None:
        try:
            encode = self._encoding.encodeAll
            parts = [
                (each.topic, each.partition, encode(each.values, each.topic)) for each in batches
            ]
            self._completions.counters.batchCount += 1
            if len(parts) == 1:
                await self.requests.sendFrame(encodeProduce(*parts[0]), *parts[0][:2])
            else:
                await self._sendParts(parts)
        except PylogbrokerError as error:
            self._completions.complete(batches, Failure(error))
        except ValueError as error:
            self._completions.complete(batches, Failure(_tooLong(error)))
        else:
            self._completions.complete(batches)

    def _encode(self, batches: list[PartitionBatch]) -> tuple[list[Part], list[PartitionBatch]]:
        parts: list[Part] = []
        encoded: list[PartitionBatch] = []
        for batch in batches:
            try:
                data, refused = self._encoding.encode(batch.values, batch.topic)
            except PylogbrokerError as error:
                self._completions.complete([batch], Failure(error))
                continue
            if refused:
                for index, reason in refused.items():
                    self._completions.complete([batch.select([index])], Failure(reason))
                batch = batch.select(at for at in range(len(batch)) if at not in refused)
            if batch.values:
                parts.append((batch.topic, batch.partition, data))
                encoded.append(batch)
        return parts, encoded

    async def _sendParts(self, parts: Sequence[Part]) -> None:
        try:
            await self.requests.multiSend(parts)
        except ValueError as error:
            raise _tooLong(error) from error


def _tooLong(error: ValueError) -> InvalidTopicError:
    return InvalidTopicError(f"the messages do not fit in a request: {error}")


def logUnexpected(failure: Failure) -> None:
    """Log an error that only a defect of ours can cause."""
    log.failure("Messages may be unaccounted for: a step of sending failed unexpectedly", failure)
