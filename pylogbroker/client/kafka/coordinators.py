"""
The coordinators of groups and transactions, as a cluster's brokers name them.

A coordinator is asked on a connection of its own: an answer may wait for all members of a group,
and answers on a connection come in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeVar

from twisted.internet.defer import Deferred

from pylogbroker.client.brokerclient import BrokerClient, BrokerClientPool
from pylogbroker.client.kafka.connection import KafkaBrokerClient, NegotiatedConnection
from pylogbroker.client.kafka.errorpolicy import ErrorPolicy, policyOf
from pylogbroker.client.kafka.metadata import address
from pylogbroker.errors import BrokerConnectionError, UnsupportedVersionError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode

COORDINATOR_COUNT_MAX = 10_000
"""The coordinators that a client remembers; the oldest is forgotten first."""

_MANY_VERSION, _KIND_VERSION = 4, 1
"""The first versions of FindCoordinator that take several keys, and that name the kind."""

T = TypeVar("T")


class CoordinatorKind(IntEnum):
    """What is coordinated; the value is that on the wire."""

    GROUP = 0
    TRANSACTION = 1


class Coordinators:
    """
    Finds coordinators, and remembers their endpoints until a broker says otherwise.

    @ivar endpoints: C{host:port} of each coordinator that is known.
    """

    def __init__(
        self,
        anyConnection: Callable[[], Deferred[NegotiatedConnection]],
        pool: BrokerClientPool,
        newClient: Callable[[BrokerClient], KafkaBrokerClient],
    ) -> None:
        """
        @param anyConnection: gives a connection to any broker.
        @param pool: of connections to coordinators only.
        @param newClient: makes the client of a broker.
        """
        self.endpoints: dict[tuple[CoordinatorKind, str], str] = {}
        self._anyConnection = anyConnection
        self._pool = pool
        self._newClient = newClient
        self._clients: dict[str, KafkaBrokerClient] = {}

    async def connection(self, kind: CoordinatorKind, key: str) -> NegotiatedConnection:
        """
        A connection to a coordinator.

        @param key: the group, or the transactional id.
        @raise ResponseError: the broker refuses, or does not know the coordinator yet.
        @raise BrokerConnectionError: no broker, or not the coordinator, can be reached. A
            coordinator that cannot be reached is forgotten.
        @raise PylogbrokerError: as L{NegotiatedConnection.request}.
        """
        endpoint = self.endpoints.get((kind, key))
        if endpoint is None:
            endpoint = await self._find(kind, key)
            while len(self.endpoints) >= COORDINATOR_COUNT_MAX:
                del self.endpoints[next(iter(self.endpoints))]
            self.endpoints[kind, key] = endpoint
        client = self._clients.get(endpoint)
        if client is None:
            client = self._clients[endpoint] = self._newClient(self._pool.get(endpoint))
        try:
            return await client.connection()
        except BrokerConnectionError:
            self.forget(kind, key)
            raise

    async def _find(self, kind: CoordinatorKind, key: str) -> str:
        connection = await self._anyConnection()
        body = messages.FindCoordinatorRequest()
        if connection.supports(ApiKey.FIND_COORDINATOR, _MANY_VERSION):
            body.coordinatorKeys = [key]
        else:
            body.key = key
        if connection.supports(ApiKey.FIND_COORDINATOR, _KIND_VERSION):
            body.keyType = kind
        elif kind is not CoordinatorKind.GROUP:
            raise UnsupportedVersionError(f"{connection.name} has no coordinators but of groups")
        answer = await connection.request(ApiKey.FIND_COORDINATOR, body)
        [found] = answer.coordinators or [answer]
        checkCode(found.errorCode, f"coordinator of {kind.name.lower()} {key}", found.errorMessage)
        return address(found.host, found.port)

    def abort(self) -> None:
        """Cut all connections. L{close} then takes a moment."""
        self._stop()
        self._pool.abort()

    def close(self) -> Deferred[None]:
        """
        Close all connections.

        @return: as L{BrokerClientPool.close}.
        """
        self._stop()
        return self._pool.close()

    def _stop(self) -> None:
        for client in self._clients.values():
            client.stop()

    def forget(self, kind: CoordinatorKind, key: str) -> None:
        """Ask for a coordinator anew, the next time it is needed."""
        self.endpoints.pop((kind, key), None)

    async def ask(
        self,
        kind: CoordinatorKind,
        key: str,
        action: Callable[[NegotiatedConnection], Awaitable[T]],
    ) -> T:
        """
        Do something with a connection to a coordinator. The coordinator is forgotten when the
        connection fails or the broker says that it does not coordinate; the caller may try again
        (L{ClusterClient.attempt<pylogbroker.client.kafka.cluster.ClusterClient.attempt>}).

        @param action: raises L{ResponseError} for the code of its response.
        @raise PylogbrokerError: as L{connection} and C{action}.
        """
        try:
            return await action(await self.connection(kind, key))
        except BrokerConnectionError:
            self.forget(kind, key)
            raise
        except ResponseError as error:
            if ErrorPolicy.FIND_COORDINATOR in policyOf(error.code):
                self.forget(kind, key)
            raise
