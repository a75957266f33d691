"""
The low-level consumer of one broker: the application gives and remembers offsets (spec-0.7 consumer
§1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint

from pylogbroker.client.brokerclient import CONNECT_TIMEOUT_MS, TIMEOUT_MS, BrokerClient
from pylogbroker.client.connection import DEFAULT_LIMITS, ConnectionLimits
from pylogbroker.net.deferreds import gatherSettled
from pylogbroker.net.endpointstrings import brokerEndpoint
from pylogbroker.protocol.brokercalls import FetchRange, fetchCall, multiFetchCall, offsetsCall
from pylogbroker.records.messageset import MessageSet


class SimpleConsumer:
    """
    The low-level consumer of one broker.

    It connects for the first call. Calls are pipelined; the broker answers in order. A call on a
    lost connection is sent once more, since it only reads.

    All L{Deferred}s can be cancelled, and fail with L{pylogbroker.errors.TimedOutError} after
    C{timeoutMs}; with L{pylogbroker.errors.BrokerConnectionError} when no connection can be made,
    or it was lost twice; with L{pylogbroker.errors.WireError} when the answer cannot be decoded;
    with L{pylogbroker.errors.BackpressureError} when too many calls are under way; with
    L{pylogbroker.errors.ClosedError} when C{close} is called meanwhile.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: str | IStreamClientEndpoint,
        *,
        timeoutMs: float = TIMEOUT_MS,
        connectTimeoutMs: float = CONNECT_TIMEOUT_MS,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param endpoint: C{"host:port"}, a Twisted client endpoint string, or an endpoint.
        @param timeoutMs: for a call, connecting and the second try included.
        @param connectTimeoutMs: for connecting; at most C{timeoutMs}.
        @param limits: of the connection; C{responseSizeMax} bounds a fetch.
        @param random: in [0, 1), for jitter; by default the system's.
        @raise pylogbroker.errors.ConfigurationError: the endpoint cannot be read.
        """
        self._client = BrokerClient(
            reactor, endpoint, connectTimeoutMs=connectTimeoutMs, limits=limits, random=random
        )
        self._timeoutMs = timeoutMs
        self._responseSizeMax = limits.responseSizeMax

    def __repr__(self) -> str:
        return f"<SimpleConsumer of {self._client.name}>"

    def fetch(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[MessageSet]:
        """
        The messages from an offset on.

        @param offset: 0, or a C{nextOffset} of an earlier read.
        @param sizeMax: bytes at most. A larger message cannot be read; see L{MessageSet}.
        @return: fires with the set, also for an error code: the set's C{error}, raised when it is
            iterated.
        @raise ValueError: C{sizeMax} is negative or too large.
        """
        return self._client.call(
            fetchCall(topic, partition, offset, sizeMax, self._responseSizeMax), self._timeoutMs
        )

    def multifetch(self, fetches: Iterable[FetchRange]) -> Deferred[list[MessageSet]]:
        """
        Several fetches in one request.

        @param fetches: of (topic, partition, offset, sizeMax); at most 32,767.
        @return: fires with a set for each, in order, each with its own C{error}.
        @raise ValueError: a C{sizeMax} is negative, their sum is too large, or there are too many.
        """
        return self._client.call(multiFetchCall(fetches, self._responseSizeMax), self._timeoutMs)

    def getOffsetsBefore(
        self, topic: str, partition: int, time: int, countMax: int
    ) -> Deferred[list[int]]:
        """
        Offsets at which segments start, by time (spec-0.7 wire-protocol §10).

        @param time: milliseconds since the epoch, L{pylogbroker.types.LATEST} or
            L{pylogbroker.types.EARLIEST}.
        @return: fires with them in descending order. For an invalid topic or partition a 0.7 broker
            closes the connection: this fails with L{pylogbroker.errors.BrokerConnectionError}.
        @raise ValueError: C{countMax} is negative.
        """
        return self._client.call(offsetsCall(topic, partition, time, countMax), self._timeoutMs)

    def close(self) -> Deferred[None]:
        """
        Close the connection; calls under way fail. The next call connects again, as with 0.7.2.

        @return: fires when the connection is gone; does not fail.
        """
        return self._client.close(flush=False, final=False).addErrback(lambda _reason: None)


class ConsumerPool:
    """Consumers of many brokers, by address, made on demand."""

    def __init__(
        self,
        reactor: Any,
        timeoutMs: float,
        connectTimeoutMs: float | None = None,
        template: str = "",
    ) -> None:
        """
        @param timeoutMs: for each answer, connecting included.
        @param connectTimeoutMs: by default the same.
        @param template: makes an endpoint of C{host:port}; see
            L{pylogbroker.net.endpointstrings.brokerEndpoint}.
        """
        self._make = partial(
            SimpleConsumer,
            reactor,
            timeoutMs=timeoutMs,
            connectTimeoutMs=timeoutMs if connectTimeoutMs is None else connectTimeoutMs,
        )
        self._template = template
        self._consumers: dict[str, SimpleConsumer] = {}

    def get(self, address: str) -> SimpleConsumer:
        """
        The consumer of a broker; the same address gives the same one.

        @param address: C{host:port}.
        @raise pylogbroker.errors.ConfigurationError: the address, or its endpoint, cannot be read.
        """
        found = self._consumers.get(address)
        if found is None:
            found = self._consumers[address] = self._make(brokerEndpoint(self._template, address))
        return found

    async def close(self) -> None:
        """Close all connections. Does not fail."""
        consumers, self._consumers = self._consumers, {}
        await gatherSettled([consumer.close() for consumer in consumers.values()])
