"""
Authorization: the broker as one client may use it.

L{AuthorizedBroker} stands before L{Broker} for the clients of one name, the common name of their
certificates. It fails closed: it has the methods that a rule names, and no other; a handler that
calls a new method of L{Broker} gets an error for every client until a rule is written here. The
protocol handler sees a refusal as an error, like that for an invalid topic. For Kafka 0.7 that
means code -1 for a fetch, and a closed connection for the other requests. Each client, right and
topic is logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.connection import IProtocolHandler
from pylogbroker.broker.server import Broker
from pylogbroker.config.allowlist import FETCH, PRODUCE, AllowList
from pylogbroker.errors import NotAllowedError
from pylogbroker.interfaces import AppendResult, Slice
from pylogbroker.net.listeners import clientName
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.types import TopicPartition

HANDLER_COUNT_MAX = 1_000
"""Names whose handlers are kept; a client of another name gets one of its own."""

LOGGED_COUNT_MAX = 1_000
"""Refusals that are logged one by one; later ones are logged at a limited rate."""

NAME_LENGTH_MAX = 200
"""Characters of a client's or topic's name in the log."""


class Authorizer:
    """
    Gives protocol handlers by the client's certificate.

    @ivar refusedCount: requests, or parts of requests, that were refused.
    """

    _log = Logger()

    def __init__(
        self,
        broker: Broker,
        allowList: AllowList,
        makeHandler: Callable[[Any], IProtocolHandler],
        log: RateLimitedLogger,
    ) -> None:
        """
        @param makeHandler: makes a handler over a broker.
        @param log: for refusals beyond L{LOGGED_COUNT_MAX}.
        """
        self.refusedCount = 0
        self._broker = broker
        self._allowList = allowList
        self._makeHandler = makeHandler
        self._limitedLog = log
        self._handlers: dict[str | None, IProtocolHandler] = {}
        self._logged: set[tuple[str | None, str, str]] = set()

    def handlerFor(self, transport: Any) -> IProtocolHandler:
        """The handler of a connection whose certificate is known."""
        name = clientName(transport)
        handler = self._handlers.get(name)
        if handler is None:
            handler = self._makeHandler(AuthorizedBroker(self._broker, self, name))
            if len(self._handlers) < HANDLER_COUNT_MAX:
                self._handlers[name] = handler
        return handler

    def require(self, name: str | None, topic: str, *rights: str) -> None:
        """
        @param rights: any one of them is enough.
        @raise NotAllowedError: the client has none.
        """
        if any(self._allowList.allows(name, right, topic) for right in rights):
            return
        self.refusedCount += 1
        client = "a client without a certificate" if name is None else repr(name[:NAME_LENGTH_MAX])
        message = "Refused: {client} may not {right} {topic} (allow.file)"
        key = name, rights[0], topic[:NAME_LENGTH_MAX]
        if key not in self._logged:
            log: Any = self._limitedLog
            if len(self._logged) < LOGGED_COUNT_MAX:
                self._logged.add(key)
                log = self._log
            log.warn(message, client=client, right=rights[0], topic=repr(key[2]))
        raise NotAllowedError(f"{client} may not {rights[0]} {topic!r}")


class AuthorizedBroker:
    """
    The methods of L{Broker} that handlers use, for the clients of one name.
    """

    __slots__ = ("_authorizer", "_broker", "_name")

    def __init__(self, broker: Broker, authorizer: Authorizer, name: str | None) -> None:
        self._broker = broker
        self._authorizer = authorizer
        self._name = name

    # -- by a right to the topic

    def tryProduce(self, topic: str, partition: int, sets: Sequence[bytes]) -> AppendResult | None:
        """See L{Broker.tryProduce}."""
        self._authorizer.require(self._name, topic, PRODUCE)
        return self._broker.tryProduce(topic, partition, sets)

    async def produce(
        self, topic: str, partition: int, data: bytes, createMissing: bool = False
    ) -> AppendResult:
        """See L{Broker.produce}."""
        self._authorizer.require(self._name, topic, PRODUCE)
        return await self._broker.produce(topic, partition, data, createMissing)

    def fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int, awaitDueFlush: bool = False
    ) -> Slice | Deferred[Slice]:
        """See L{Broker.fetch}."""
        self._authorizer.require(self._name, topic, FETCH)
        return self._broker.fetch(topic, partition, offset, sizeMax, awaitDueFlush)

    async def offsets(
        self, topic: str, partition: int, time: int, countMax: int, awaitDueFlush: bool = False
    ) -> list[int]:
        """See L{Broker.offsets}. Producers may call it: its answer acknowledges what they sent."""
        self._authorizer.require(self._name, topic, FETCH, PRODUCE)
        return await self._broker.offsets(topic, partition, time, countMax, awaitDueFlush)

    # -- without a right: they disclose no data

    def exists(self, topic: str) -> bool:
        """See L{Broker.exists}: for counters."""
        return self._broker.exists(topic)

    def partitionCount(self, topic: str) -> int:
        """See L{Broker.partitionCount}: for the choice of a partition."""
        return self._broker.partitionCount(topic)

    def failedPartitionCount(self) -> int:
        """See L{Broker.failedPartitionCount}."""
        return self._broker.failedPartitionCount()

    async def awaitWritten(
        self, mayInclude: Callable[[TopicPartition], bool], failedBefore: int
    ) -> None:
        """See L{Broker.awaitWritten}."""
        await self._broker.awaitWritten(mayInclude, failedBefore)
