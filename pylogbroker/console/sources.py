"""
Where the console gets messages and offsets from: the broker that it is served by, or others, which it asks as any client does.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet.defer import Deferred

from pylogbroker.broker.service import BrokerService
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.formats.messageset import MessageSet
from pylogbroker.model import EARLIEST, LATEST

TIMEOUT_MS = 5_000


class ISource(Protocol):
    """One broker, read from. Deferreds fail with a L{pylogbroker.errors.PylogbrokerError}."""

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        """Bytes of a message set, from an offset on."""
        ...

    def bounds(self, topic: str, partition: int) -> Deferred[tuple[int, int]]:
        """The oldest offset, and where reading ends."""
        ...

    def close(self) -> Deferred[None]: ...


class OwnSource:
    """The broker that serves the console."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        return self._broker.read(topic, partition, offset, sizeMax)

    def bounds(self, topic: str, partition: int) -> Deferred[tuple[int, int]]:
        return Deferred.fromCoroutine(self._bounds(topic, partition))

    async def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        earliest = await self._broker.offsetsBefore(topic, partition, EARLIEST, 1)
        latest = await self._broker.offsetsBefore(topic, partition, LATEST, 1)
        return (earliest or [0])[0], (latest or [0])[0]

    def close(self) -> Deferred[None]:
        done: Deferred[None] = Deferred()
        done.callback(None)
        return done


class RemoteSource:
    """Another broker, over one connection, which is made when it is asked."""

    def __init__(self, reactor: Any, host: str, port: int) -> None:
        endpoint = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._consumer = SimpleConsumer(reactor, endpoint, timeoutMs=TIMEOUT_MS, connectTimeoutMs=TIMEOUT_MS // 2)

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        return self._consumer.fetch(topic, partition, offset, sizeMax).addCallback(self._data)

    @staticmethod
    def _data(found: MessageSet) -> bytes:
        if found.error is not None:
            raise found.error
        return found.data

    def bounds(self, topic: str, partition: int) -> Deferred[tuple[int, int]]:
        return Deferred.fromCoroutine(self._bounds(topic, partition))

    async def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        first = self._consumer.getOffsetsBefore(topic, partition, EARLIEST, 1)  # both on their way before either is waited for
        last = self._consumer.getOffsetsBefore(topic, partition, LATEST, 1)
        try:
            earliest = await first
        except BaseException:
            last.addErrback(lambda _failure: None)
            raise
        return (earliest or [0])[0], ((await last) or [0])[0]

    def close(self) -> Deferred[None]:
        return self._consumer.close()
