"""
Getting requests to one broker, and knowing what became of them.

0.7's wire has no acknowledgement of a produce request. Two answers can be given all the same:

  - I{written}: the bytes were handed to the kernel, or nearly so. That is all 0.7's clients know.
  - I{confirmed}: an OFFSETS request followed on the same connection, and was answered. A broker carries out the requests of a connection one after the
    other, so it has taken all that came before. (Kafka 0.7.2 answers, too, when it has dropped some: a payload over its own limit. Ours ends the connection.)

When a connection breaks, what was not even begun has I{failed}, and can be sent elsewhere without a thought. What was begun and has no answer
is I{unknown}: L{UnknownOutcomeError}. Nothing here sends anything twice.

The question is about a partition that is in the request (about partition 0 where the broker picks one). About another it would not do: one that is out of
service is answered by the end of the connection, and requests for healthy ones would be unknown for ever.

It is asked behind each request; the connection's line is a pipeline, so it costs some bytes and no time. That each question is put to the very connection
that the request was given to, in one piece with it, is what makes the answer a proof; so there is nothing to remember between requests. (One piece: were the
question to wait until the transport takes more, a broker that stops in order just then would have taken the request, and nobody would know.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from pylogbroker.client.brokerclient import BrokerClient
from pylogbroker.client.connection import ClientConnection
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    PylogbrokerError,
    RemoteError,
    UnknownOutcomeError,
    WireError,
)
from pylogbroker.protocol.brokercalls import BrokerCall, offsetsCall
from pylogbroker.protocol.kafka07.requests import COUNT_MAX, encodeMultiProduce, encodeProduce
from pylogbroker.retry import ReconnectPolicy
from pylogbroker.types import LATEST

T = TypeVar("T")

Part = tuple[str, int, bytes]
"""Topic, partition, message set."""

log = Logger()


class ConfirmingSender:
    """
    Takes requests to one broker.

    @ivar name: of the broker, for texts.
    """

    def __init__(
        self,
        clock: Any,
        link: BrokerClient,
        rule: ReconnectPolicy,
        *,
        isConfirming: bool,
        timeoutMs: float,
    ) -> None:
        """
        @param link: the way to the broker; others may use it, too.
        @param rule: when a connection is to be replaced.
        @param isConfirming: whether each request is to be confirmed.
        @param timeoutMs: for an answer.
        """
        self.name = link.name
        self._clock = clock
        self._link = link
        self._rule = rule
        self._isConfirming = isConfirming
        self._timeoutMs = timeoutMs
        self._connection: ClientConnection | None = None

    # -- for the application's own event senders

    def send(self, topic: str, partition: int, messageSet: bytes) -> Deferred[None]:
        """
        A PRODUCE request; see L{carry}.

        @raise ValueError: it does not fit in a request; here and below.
        """
        return self.carry(encodeProduce(topic, partition, messageSet), topic, partition)

    def multiSend(self, parts: Iterable[Part]) -> Deferred[None]:
        """A MULTIPRODUCE request, or several if there are more parts than fit in one."""
        return Deferred.fromCoroutine(self._multiSend(list(parts)))

    async def _multiSend(self, parts: list[Part]) -> None:
        for start in range(0, len(parts), COUNT_MAX):
            some = parts[start : start + COUNT_MAX]
            try:
                await self.carry(encodeMultiProduce(some), *some[-1][:2])
            except PylogbrokerError as error:
                if not start or isinstance(error, UnknownOutcomeError):
                    raise
                raise self._unknown(error) from error  # the parts before are sent

    # -- one request

    def carry(self, frame: bytes, topic: str, partition: int) -> Deferred[None]:
        """
        Take one request to the broker. Requests keep the order of the calls.

        @param topic: one that is in it.
        @param partition: of that topic, and in it, too; may be -1.
        @return: fires when it is written, or confirmed. Fails with L{UnknownOutcomeError} when it was begun and whether the broker has it cannot be
            known; with any other L{PylogbrokerError} when nothing of it was sent. Cancelling fails it in one of these two ways.
        """
        return Deferred.fromCoroutine(
            self._carry(frame, offsetsCall(topic, max(partition, 0), LATEST, 1))
        )

    async def _carry(self, frame: bytes, question: BrokerCall[list[int]]) -> None:
        connection = self._link.current
        if connection is None:
            try:
                connection = await self._link.connection()
            except CancelledError:
                raise ClosedError(f"there was no connection to {self.name} yet") from None
        try:
            if self._isConfirming:
                self._decode(
                    connection,
                    question,
                    await self._begin(
                        connection, connection.request(frame + question.frame, self._timeoutMs)
                    ),
                )
            else:
                await self._begin(connection, connection.send(frame))
        except (BrokerConnectionError, WireError, CancelledError) as error:
            raise self._unknown(error) from error

    def _unknown(self, error: BaseException) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"whether {self.name} took a request is unknown: {'it was given up' if isinstance(error, CancelledError) else error}"
        )

    def _begin(self, connection: ClientConnection, sending: Deferred[T]) -> Deferred[T]:
        """A request was handed over."""
        nowMs = self._clock.seconds() * 1000
        if connection is not self._connection:
            self._connection = connection
            self._rule.connected(nowMs)
        if self._rule.sent(nowMs):
            self._link.replace().addErrback(self._notReplaced)
        return sending

    def _notReplaced(self, failure: Any) -> None:
        log.warn(
            "A connection to {name} that was to be replaced did not end well: {reason}",
            name=self.name,
            reason=failure.getErrorMessage(),
        )

    def _decode(
        self, connection: ClientConnection, question: BrokerCall[list[int]], body: bytes
    ) -> None:
        """An error code is an answer, too, and proves as much; what is no answer proves nothing."""
        try:
            question.decode(body)
        except RemoteError as error:
            log.warn(
                "{name} answered the question behind a request with an error: {error}",
                name=self.name,
                error=error,
            )
        except WireError as error:
            connection.drop(error)
            raise
