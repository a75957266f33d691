"""
The fetchers of one member, one for each broker that it has partitions of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.consumedoffsets import Positions
from pylogbroker.consumer.fetcher import FETCH_COUNT_MAX, Fetcher
from pylogbroker.consumer.rebalance import Assignment
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import PylogbrokerError
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.net.deferreds import gatherSettled
from pylogbroker.protocol.brokercalls import SET_HEADER_SIZE
from pylogbroker.types import PartitionId

EndpointFor = Callable[[BrokerRegistration], "str | IStreamClientEndpoint"]

_MULTIFETCH_OVERHEAD = 2 + SET_HEADER_SIZE * FETCH_COUNT_MAX


class FetcherManager:
    """
    Sees to it that each partition of a share is fetched from where its broker is, and no other.

    @ivar counters: of all of them.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        settings: ConsumerSettings,
        positions: Positions,
        endpointFor: EndpointFor,
        random: Random,
        streams: Mapping[tuple[str, int], MessageStream],
        name: str,
    ) -> None:
        """
        @param endpointFor: where a broker is reached, of what its registration says.
        @param streams: by topic and number of the thread; those of a filter, which take all topics, by "" and number. May be filled later.
        @param name: the member's, for the log.
        """
        self._clock = clock
        self._settings = settings
        self._positions = positions
        self._endpointFor = endpointFor
        self._random = random
        self._streams = streams
        self._name = name
        self.counters = ConsumerCounters()
        self._byBroker: dict[int, tuple[BrokerRegistration, Fetcher]] = {}
        self._unreachable: dict[int, BrokerRegistration] = {}  # of those that were told of
        self._missed: set[int] = set()  # brokers that are not registered, and were told of

    def __repr__(self) -> str:
        return f"<Fetchers of {self._name}: {', '.join(repr(fetcher) for _broker, fetcher in self._byBroker.values()) or 'none'}>"

    @property
    def places(self) -> list[PartitionId]:
        """What is fetched."""
        return [place for _broker, fetcher in self._byBroker.values() for place in fetcher.places]

    @property
    def positionedPartitions(self) -> list[PartitionId]:
        """Of these, those whose position is known."""
        return [
            place
            for _broker, fetcher in self._byBroker.values()
            for place in fetcher.positionedPartitions
        ]

    def fetch(self, share: Assignment, brokers: Mapping[int, BrokerRegistration]) -> None:
        """From now on fetch these, and no others."""
        byBroker: dict[int, list[PartitionId]] = {}
        for place in share:
            byBroker.setdefault(place.partition.broker, []).append(place)
        for number in self._byBroker.keys() - byBroker.keys():
            _broker, fetcher = self._byBroker.pop(number)
            self._closing(fetcher.stop())
        for number, places in byBroker.items():
            found = brokers.get(number)
            if found is not None:
                self._missed.discard(number)
                self._reach(number, found)
            if number not in self._byBroker:
                if found is None:
                    self._miss(number, len(places))
                continue
            _registration, fetcher = self._byBroker[number]
            fetcher.remove([place for place in fetcher.places if place not in share])
            for place in places:
                fetcher.add(place, self._streamOf(place.topic, share[place]))

    def _streamOf(self, topic: str, thread: str) -> MessageStream:
        index = int(thread.rpartition("-")[2])
        return self._streams.get((topic, index)) or self._streams["", index]

    def _miss(self, number: int, count: int) -> None:
        """Said once, until it has been there: with a partition that cannot be claimed, each attempt comes by here."""
        if number not in self._missed:
            self._missed.add(number)
            self._log.warn(
                "{consumerId}: broker {number} is not registered; its partitions ({count}) wait for it",
                consumerId=self._name, number=number, count=count,
            )  # fmt: skip

    def _reach(self, number: int, broker: BrokerRegistration) -> None:
        """See to it that a broker's fetcher asks at the right address. One that says it is where nobody can be is as good as not registered."""
        before, fetcher = self._byBroker.get(number, (None, None))
        if before is not None and (before.host, before.port) == (broker.host, broker.port):
            return
        try:
            consumer = self._consumerOf(broker)
        except PylogbrokerError as error:
            if self._unreachable.get(number) != broker:
                self._unreachable[number] = broker
                self._log.warn(
                    "{consumerId}: broker {number} cannot be asked: {error}",
                    consumerId=self._name,
                    number=number,
                    error=error,
                )
            return
        if fetcher is None:
            fetcher = Fetcher(
                self._clock, consumer, self._settings, self._positions, self._random, self.counters
            )
        else:
            self._closing(fetcher.moveTo(consumer))
        self._byBroker[number] = broker, fetcher

    def _consumerOf(self, broker: BrokerRegistration) -> SimpleConsumer:
        settings = self._settings
        responseSizeMax = (
            max(settings.responseSizeMax, settings.fetchSizeMax) + _MULTIFETCH_OVERHEAD
        )
        limits = ConnectionLimits(
            responseSizeMax=responseSizeMax, receiveBufferSize=settings.receiveBufferSize
        )
        return SimpleConsumer(
            self._clock,
            self._endpointFor(broker),
            timeoutMs=settings.socketTimeoutMs,
            limits=limits,
            random=self._random.random,
        )

    def _closing(self, closed: Deferred[None]) -> None:
        closed.addErrback(
            lambda failure: self._log.debug(
                "A connection was not closed in order: {reason}", reason=failure.getErrorMessage()
            )
        )

    def letGo(self, places: Collection[PartitionId]) -> None:
        """Fetch these no more, and hand out nothing more of them."""
        for _broker, fetcher in self._byBroker.values():
            fetcher.remove(places)

    def readAgain(self, place: PartitionId, offset: int) -> None:
        """Forget what is queued of a partition, and begin with it anew, at an offset."""
        found = self._byBroker.get(place.partition.broker)
        if found is not None:
            found[1].readAgain(place, offset)

    async def stop(self) -> None:
        """Fetch nothing any more, and close all connections, well or not."""
        await gatherSettled([fetcher.stop() for _broker, fetcher in self._byBroker.values()])
        self._byBroker.clear()
