"""
L{InterBrokerConnections}: a broker's requests to other brokers of its cluster.

What must be true:

  - A broker is known by its id. Its address comes from the metadata, by the name of the listener
  that brokers share. When its address or its epoch changes, the connection is cut: it may lead to
  a process that is gone. Its requests fail, and their callers decide anew by the new metadata.
  - No request goes to a broker that is fenced or unknown.
  - Responses on a connection come in the order of the requests, so a request that waits long would
  hold up all behind it. Hence each L{Purpose} has a connection of its own to each broker.
  - At most L{REQUEST_COUNT_MAX} requests of a purpose are under way to a broker.

The connections are made by what the broker was given: L{pylogbroker.interfaces.ConnectBroker}.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.cluster.metadataimage import BrokerImage, MetadataImage
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
)
from pylogbroker.interfaces import ConnectBroker, IBrokerClient
from pylogbroker.net.deferreds import asDeferred, gatherSettled
from pylogbroker.protocol.kafka.apikeys import ApiKey

REQUEST_COUNT_MAX = 1_000
"""Requests of a purpose to a broker, in flight or waiting for the connection."""

_VERSION_MAX = 0x7FFF


class Purpose(Enum):
    """What a connection is for."""

    MARKERS = "markers"
    VERIFICATION = "verification"
    REPLICATION = "replication"


class _Link:
    """
    The connection to a broker for a purpose.

    @ivar target: the broker's epoch, host and port.
    @ivar count: requests under way.
    """

    __slots__ = ("client", "count", "target")

    def __init__(self, target: tuple[int, str, int], client: IBrokerClient) -> None:
        self.target = target
        self.client = client
        self.count = 0


class InterBrokerConnections:
    """Connections to the other brokers, by id and purpose; the module states the rules."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        listenerName: str,
        connect: ConnectBroker | None,
    ) -> None:
        """
        @param image: gives the metadata. Call L{follow} after each change.
        @param listenerName: of the listener by which the brokers reach one another.
        @param connect: makes connections; L{None}: every request fails.
        """
        self._image = image
        self._listenerName = listenerName
        self._connect = connect
        self._links: dict[tuple[int, Purpose], _Link] = {}
        self._closing: set[Deferred[None]] = set()
        self._isClosed = False

    def __len__(self) -> int:
        return len(self._links)

    @asDeferred
    async def request(
        self,
        brokerId: int,
        purpose: Purpose,
        key: ApiKey,
        body: Any,
        waitMs: float = 0,
        versionMax: int = _VERSION_MAX,
    ) -> Any:
        """
        Send a request to a broker.

        @param body: an object of C{messages}, which must not change any more.
        @return: as of L{pylogbroker.interfaces.IBrokerConnection.request}. Fails also with
            L{BrokerConnectionError} when the broker is unknown or fenced, or cannot be reached;
            with L{BackpressureError} when REQUEST_COUNT_MAX requests are under way; with
            L{ClosedError} after L{close}; with L{pylogbroker.errors.ConfigurationError} when the
            settings do not suffice for a connection; with another
            L{pylogbroker.errors.PylogbrokerError} when the broker refuses the password. Can be
            cancelled.
        """
        link = self._link(brokerId, purpose)
        if link.count >= REQUEST_COUNT_MAX:
            raise BackpressureError(
                f"{link.count} requests for {purpose.value} are under way to broker {brokerId}"
            )
        link.count += 1
        try:
            connection = await link.client.connection()
            return await connection.request(key, body, waitMs, versionMax)
        finally:
            link.count -= 1

    def _link(self, brokerId: int, purpose: Purpose) -> _Link:
        if self._isClosed:
            raise ClosedError("the broker is stopping")
        if self._connect is None:
            raise BrokerConnectionError("this broker was given no connections to other brokers")
        target = self._target(brokerId)
        link = self._links.get((brokerId, purpose))
        if link is None or link.target != target:
            self._cut((brokerId, purpose))
            link = _Link(target, self._connect(*target[1:]))
            self._links[brokerId, purpose] = link
        return link

    def _target(self, brokerId: int) -> tuple[int, str, int]:
        """@raise BrokerConnectionError: the broker cannot be reached."""
        broker = self._image().brokers.get(brokerId)
        if broker is None:
            raise BrokerConnectionError(f"the cluster has no broker {brokerId}")
        if broker.isFenced:
            raise BrokerConnectionError(f"broker {brokerId} is fenced")
        for endpoint in broker.endpoints:
            if endpoint.listener == self._listenerName:
                return broker.epoch, endpoint.host, endpoint.port
        raise BrokerConnectionError(
            f"broker {brokerId} has no listener {self._listenerName}: it has"
            f" {_listenersOf(broker) or 'none'}"
        )

    def follow(self) -> None:
        """The metadata have changed: cut the connections that lead to where no broker is now."""
        for key, link in list(self._links.items()):
            try:
                isRight = self._target(key[0]) == link.target
            except BrokerConnectionError:
                isRight = False
            if not isRight:
                self._cut(key)

    def _cut(self, key: tuple[int, Purpose]) -> None:
        link = self._links.pop(key, None)
        if link is not None:
            closing = link.client.close()
            self._closing.add(closing)
            closing.addBoth(lambda _none: self._closing.discard(closing))

    @asDeferred
    async def close(self) -> None:
        """
        Cut all connections; requests under way fail.

        @return: fires when the connections are gone.
        """
        self._isClosed = True
        for key in list(self._links):
            self._cut(key)
        await gatherSettled(list(self._closing))


def _listenersOf(broker: BrokerImage) -> str:
    return ", ".join(each.listener for each in broker.endpoints)
