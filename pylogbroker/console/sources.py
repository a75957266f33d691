"""
Where the console gets messages and offsets from: the broker that it is served by, or others, which
it asks as any client does.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred

from pylogbroker.broker.service import BrokerService
from pylogbroker.client.offsetlookup import bounds
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.records.messageset import MessageSet
from pylogbroker.types import EARLIEST, LATEST, OffsetBounds


class ISource(Protocol):
    """One broker, read from. Deferreds fail with a L{pylogbroker.errors.PylogbrokerError}."""

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        """Bytes of a message set, from an offset on."""
        ...

    def bounds(self, topic: str, partition: int) -> Deferred[OffsetBounds]:
        """The oldest offset, and where reading ends."""
        ...


class OwnSource:
    """The broker that serves the console."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        return self._broker.read(topic, partition, offset, sizeMax)

    def bounds(self, topic: str, partition: int) -> Deferred[OffsetBounds]:
        return Deferred.fromCoroutine(self._bounds(topic, partition))

    async def _bounds(self, topic: str, partition: int) -> OffsetBounds:
        earliest = await self._broker.offsetsBefore(topic, partition, EARLIEST, 1)
        latest = await self._broker.offsetsBefore(topic, partition, LATEST, 1)
        return OffsetBounds((earliest or [0])[0], (latest or [0])[0])


class RemoteSource:
    """Another broker."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        """
        @param consumer: of it; stays open.
        """
        self._consumer = consumer

    def read(self, topic: str, partition: int, offset: int, sizeMax: int) -> Deferred[bytes]:
        return self._consumer.fetch(topic, partition, offset, sizeMax).addCallback(self._data)

    @staticmethod
    def _data(found: MessageSet) -> bytes:
        if found.error is not None:
            raise found.error
        return found.data

    def bounds(self, topic: str, partition: int) -> Deferred[OffsetBounds]:
        return Deferred.fromCoroutine(bounds(self._consumer, topic, partition))
