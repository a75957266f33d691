"""
Authorization: the broker as one client may use it. A module of its own, since its table of rules
must be easy to find and to audit.

L{AuthorizedBroker} stands before L{Broker} for the clients of one name, their certificates' common
name. It fails closed: a call without a rule is an error for every client. The protocol handler
treats a refusal like an invalid topic: for Kafka 0.7, code -1 for a fetch, a closed connection for
other requests. Each client, right and topic is logged once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

from pylogbroker.broker.connection import IProtocolHandler
from pylogbroker.broker.server import Broker
from pylogbroker.config.allowlist import FETCH, PRODUCE, AllowList
from pylogbroker.errors import NotAllowedError
from pylogbroker.net.listeners import clientName
from pylogbroker.net.ratelimitedlog import RateLimitedLogger

HANDLER_COUNT_MAX = 1_000
"""Names whose handlers are kept; a client of another name gets one of its own."""

LOGGED_COUNT_MAX = 1_000
"""Refusals that are logged one by one; later ones are logged at a limited rate."""

NAME_LENGTH_MAX = 200
"""Characters of a client's or topic's name in the log."""


Rights = tuple[str, ...]

RULES: dict[str, Rights] = {
    "tryProduce": (PRODUCE,),
    "produce": (PRODUCE,),
    "fetch": (FETCH,),
    "offsets": (FETCH, PRODUCE),  # its answer acknowledges what a producer sent
    "exists": (),
    "partitionCount": (),
    "failedPartitionCount": (),
    "awaitWritten": (),
}
"""
For each method of L{Broker} that handlers may call, the rights to the topic of which a client needs
one. Methods without rights disclose no data.
"""


class Authorizer:
    """
    Gives protocol handlers by the client's certificate.

    @ivar refusedCount: refused requests, or parts of requests.
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

    def guarded(self, method: Callable[..., Any], name: str | None, rights: Rights) -> Any:
        """
        A method of L{Broker} that requires one of some rights to its first argument, the topic.
        """

        def call(topic: str, *arguments: Any) -> Any:
            self.require(name, topic, *rights)
            return method(topic, *arguments)

        return call if rights else method


class AuthorizedBroker:
    """
    The methods of L{Broker} that L{RULES} name, for the clients of one name.
    """

    __slots__ = tuple(RULES)

    def __init__(self, broker: Broker, authorizer: Authorizer, name: str | None) -> None:
        for method, rights in RULES.items():
            setattr(self, method, authorizer.guarded(getattr(broker, method), name, rights))
