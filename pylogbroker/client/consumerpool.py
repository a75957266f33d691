"""
Reading from many brokers: a L{SimpleConsumer} for each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.net.deferreds import gatherSettled
from pylogbroker.net.endpoints import brokerEndpoint


class ConsumerPool:
    """
    The consumers of brokers that are known by where they are. Each is made when it is first asked for, and connects when it is first asked something.
    """

    def __init__(
        self,
        reactor: Any,
        timeoutMs: float,
        connectTimeoutMs: float | None = None,
        template: str = "",
    ) -> None:
        """
        @param timeoutMs: for each answer, connecting included.
        @param connectTimeoutMs: for connecting; by default the same.
        @param template: how brokers are reached that are known by C{host:port}; see L{pylogbroker.net.endpoints.brokerEndpoint}.
        """
        self._make = partial(
            SimpleConsumer,
            reactor,
            timeoutMs=timeoutMs,
            connectTimeoutMs=timeoutMs if connectTimeoutMs is None else connectTimeoutMs,
        )
        self._template = template
        self._consumers: dict[str, SimpleConsumer] = {}

    def to(self, address: str) -> SimpleConsumer:
        """
        The consumer of a broker; the same address gives the same one.

        @param address: C{host:port}.
        @raise pylogbroker.errors.ConfigurationError: that, or what the template makes of it, is no endpoint.
        """
        found = self._consumers.get(address)
        if found is None:
            found = self._consumers[address] = self._make(brokerEndpoint(self._template, address))
        return found

    async def close(self) -> None:
        """Let go of all connections. Does not fail."""
        consumers, self._consumers = self._consumers, {}
        await gatherSettled([consumer.close() for consumer in consumers.values()])
