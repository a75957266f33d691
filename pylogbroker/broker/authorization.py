"""
Who may use which topics: a broker as one client sees it.

L{AuthorizedBroker} stands before the real one and knows a client's name, which is the common name of its certificate. What the client may not do never reaches
the broker; what it may do costs a look-up. The dialect does not know the difference: a refusal is an error like that for a topic that cannot be, so a fetch is
answered with code -1, and a produce or offsets request, for which the protocol has no answer, ends the connection. Each client, right and topic is
logged once, however often it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.connection import IProtocolHandler
from pylogbroker.broker.server import Broker, Refused
from pylogbroker.broker.unackedproduces import UnackedProduces
from pylogbroker.config.allowlist import FETCH, PRODUCE, AllowList
from pylogbroker.errors import NotAllowedError, PylogbrokerError
from pylogbroker.interfaces import Slice
from pylogbroker.net.listeners import clientName
from pylogbroker.net.ratelimitedlog import RateLimitedLogger

DIALECT_COUNT_MAX = 1_000
"""Names whose dialects are kept; a client of another gets one of its own."""

TOLD_COUNT_MAX = 1_000
"""Refusals that are logged one by one; more are logged now and then."""

NAME_LENGTH_MAX = 200
"""Characters of a name, or of a topic's, in the log."""


class Authorizer:
    """
    Hands out dialects by the client's certificate.

    @ivar refusedCount: requests, or parts of them, that were refused.
    """

    _log = Logger()

    def __init__(
        self,
        broker: Broker,
        allowList: AllowList,
        makeDialect: Callable[[Any], IProtocolHandler],
        quietLog: RateLimitedLogger,
    ) -> None:
        """
        @param makeDialect: makes a dialect over a broker.
        @param quietLog: for refusals beyond those that are logged one by one.
        """
        self.refusedCount = 0
        self._broker = broker
        self._allowList = allowList
        self._makeDialect = makeDialect
        self._quietLog = quietLog
        self._dialects: dict[str | None, IProtocolHandler] = {}
        self._told: set[tuple[str | None, str, str]] = set()

    def dialectFor(self, transport: Any) -> IProtocolHandler:
        """What a connection speaks, once its certificate is known."""
        name = clientName(transport)
        dialect = self._dialects.get(name)
        if dialect is None:
            dialect = self._makeDialect(AuthorizedBroker(self._broker, self, name))
            if len(self._dialects) < DIALECT_COUNT_MAX:
                self._dialects[name] = dialect
        return dialect

    def refusal(
        self, name: str | None, right: str, topic: str, orElse: str = ""
    ) -> NotAllowedError | None:
        """
        @param orElse: another right that will do.
        @return: L{None} when it is allowed.
        """
        if self._allowList.allows(name, right, topic) or (
            orElse and self._allowList.allows(name, orElse, topic)
        ):
            return None
        self.refusedCount += 1
        client = "a client without a certificate" if name is None else repr(name[:NAME_LENGTH_MAX])
        sentence = "Refused: {client} may not {right} {topic} (allow.file)"
        key = name, right, topic[:NAME_LENGTH_MAX]
        if key not in self._told:
            if len(self._told) < TOLD_COUNT_MAX:
                self._told.add(key)
                self._log.warn(sentence, client=client, right=right, topic=repr(key[2]))
            else:
                self._quietLog.warn(sentence, client=client, right=right, topic=repr(key[2]))
        return NotAllowedError(f"{client} may not {right} {topic!r}")


class AuthorizedBroker:
    """
    The broker, as a client of a name sees it.
    """

    def __init__(self, broker: Broker, guard: Authorizer, name: str | None) -> None:
        self._broker = broker
        self._guard = guard
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """All else is the broker's."""
        return getattr(self._broker, name)

    def produce(
        self,
        topic: str,
        partition: int,
        sets: Sequence[bytes],
        unproven: UnackedProduces,
        refused: Refused,
    ) -> Deferred[None] | None:
        """See L{Broker.produce}."""
        refusal: PylogbrokerError | None = self._guard.refusal(self._name, PRODUCE, topic)
        if refusal is not None:
            refused(unproven, refusal)
            return None
        return self._broker.produce(topic, partition, sets, unproven, refused)

    def fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int
    ) -> Slice | Deferred[Slice]:
        """See L{Broker.fetch}."""
        refusal = self._guard.refusal(self._name, FETCH, topic)
        if refusal is not None:
            raise refusal
        return self._broker.fetch(topic, partition, offset, sizeMax)

    async def offsets(
        self,
        topic: str,
        partition: int,
        time: int,
        countMax: int,
        unproven: UnackedProduces | None = None,
    ) -> list[int]:
        """See L{Broker.offsets}. Who may produce may ask, too: that is how a producer finds out whether the broker has taken what it sent."""
        refusal = self._guard.refusal(self._name, FETCH, topic, PRODUCE)
        if refusal is not None:
            raise refusal
        return await self._broker.offsets(topic, partition, time, countMax, unproven)
