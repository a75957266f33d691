"""
Clients of many brokers, one for each endpoint.

A forgotten broker may return before its connection has ended, for example after an expired session
in ZooKeeper. Its new client connects only when the old connection is gone, so that no write
overtakes.

Rejected: not closing the connection at all. A grace time would be a guess, and a broker that has
moved or died would look the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, succeed

from pylogbroker.client.brokerclient import CONNECT_TIMEOUT_MS, BrokerClient
from pylogbroker.client.connection import DEFAULT_LIMITS, ConnectionLimits
from pylogbroker.errors import BackpressureError, ClosedError, copyForReraise
from pylogbroker.net.deferreds import gatherAll
from pylogbroker.net.socketendpoints import brokerEndpoint

BROKER_COUNT_MAX = 10_000


class BrokerClientPool:
    """Clients of many brokers."""

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
        @param template: makes an endpoint of C{host:port}; see
            L{pylogbroker.net.socketendpoints.brokerEndpoint}.
        """
        self._make = partial(
            BrokerClient, reactor, connectTimeoutMs=connectTimeoutMs, limits=limits, random=random
        )
        self._template = template
        self._clients: dict[str, BrokerClient] = {}
        self._leaving: dict[str, BrokerClient] = {}  # forgotten, and not gone yet
        self._refusal: ClosedError | None = None

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, endpoint: str) -> BrokerClient:
        """
        The client of a broker. It connects on demand, after the connection of a forgotten one is
        gone.

        @param endpoint: see L{clientEndpoint}; the same string gives the same client.
        @raise ConfigurationError: the endpoint cannot be read.
        @raise BackpressureError: there are BROKER_COUNT_MAX clients.
        @raise ClosedError: after C{close}.
        """
        if self._refusal is not None:
            raise copyForReraise(self._refusal)
        client = self._clients.get(endpoint)
        if client is None:
            if len(self._clients) >= BROKER_COUNT_MAX:
                raise BackpressureError(f"there are ways to {len(self._clients)} brokers already")
            client = self._clients[endpoint] = self._make(brokerEndpoint(self._template, endpoint))
            before = self._leaving.get(endpoint)
            if before is not None:
                client.connectAfter(before.close())
        return client

    def forget(self, endpoint: str) -> Deferred[None]:
        """
        Close the connection of a broker that is gone or must be connected anew.

        @return: as L{BrokerClient.close}.
        """
        client = self._clients.pop(endpoint, None)
        if client is None:
            return succeed(None)
        closing = client.close()
        if not closing.called:
            self._leaving[endpoint] = client
            closing.addBoth(self._left, endpoint)
        return closing

    def _left(self, result: Any, endpoint: str) -> Any:
        del self._leaving[endpoint]
        return result

    def abort(self) -> None:
        """Cut all connections, also of forgotten brokers. C{close} then takes a moment."""
        self._refuse()
        for client in (*self._leaving.values(), *self._clients.values()):
            client.abort()

    def _refuse(self) -> None:
        self._refusal = ClosedError("the connections were closed")

    def close(self) -> Deferred[None]:
        """
        @return: fires when all connections are gone, also of forgotten brokers; fails as
            L{BrokerClient.close}.
        """
        self._refuse()
        return Deferred.fromCoroutine(self._closeAll())

    async def _closeAll(self) -> None:
        leaving = [client.close() for client in self._leaving.values()]
        await gatherAll(leaving + [self.forget(endpoint) for endpoint in list(self._clients)])
