"""
The ways to many brokers, one to each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, succeed

from pylogbroker.blocking.endpoints import brokerEndpoint
from pylogbroker.client.connection import DEFAULT_LIMITS, ConnectionLimits
from pylogbroker.client.link import CONNECT_TIMEOUT_MS, BrokerLink
from pylogbroker.client.waiting import allOf
from pylogbroker.errors import BusyError, ClosedError, another

BROKER_COUNT_MAX = 10_000


class Connections:
    """
    The ways to many brokers, one to each.
    """

    def __init__(
        self,
        reactor: Any,
        *,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        random: Callable[[], float] | None = None,
        template: str = "",
    ) -> None:
        """
        @param reactor: as of L{BrokerLink}, and so are the others.
        @param template: how brokers are reached that are known by C{host:port}; see L{pylogbroker.blocking.endpoints.brokerEndpoint}.
        """
        self._make = partial(BrokerLink, reactor, connectTimeoutMs=connectTimeoutMs, limits=limits, random=random)
        self._template = template
        self._links: dict[str, BrokerLink] = {}
        self._refusal: ClosedError | None = None

    def __len__(self) -> int:
        return len(self._links)

    def to(self, endpoint: str) -> BrokerLink:
        """
        The way to a broker, which is not connected before somebody asks it for something.

        @param endpoint: see L{clientEndpoint}; the same string gives the same link.
        @raise ConfigurationError: the endpoint is none.
        @raise BusyError: there are as many brokers as can be.
        @raise ClosedError: after C{close}.
        """
        if self._refusal is not None:
            raise another(self._refusal)
        link = self._links.get(endpoint)
        if link is None:
            if len(self._links) >= BROKER_COUNT_MAX:
                raise BusyError(f"there are ways to {len(self._links)} brokers already")
            link = self._links[endpoint] = self._make(brokerEndpoint(self._template, endpoint))
        return link

    def forget(self, endpoint: str) -> Deferred[None]:
        """
        A broker is gone, or is to be met anew: close its connection and keep nothing of it.

        @return: as L{BrokerLink.close}.
        """
        link = self._links.pop(endpoint, None)
        return succeed(None) if link is None else link.close()

    def close(self) -> Deferred[None]:
        """
        Close all.

        @return: fires when all connections are gone; fails as L{BrokerLink.close}.
        """
        self._refusal = ClosedError("the connections were closed")
        return Deferred.fromCoroutine(self._closeAll())

    async def _closeAll(self) -> None:
        await allOf([self.forget(endpoint) for endpoint in list(self._links)])
