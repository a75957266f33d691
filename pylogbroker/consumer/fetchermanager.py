"""
The fetchers of one member, one for each broker that it has partitions on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.fetcher import FETCH_COUNT_MAX, Fetcher
from pylogbroker.consumer.offsetstores import ConsumedOffsets
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
    Fetches each assigned partition from its broker, and no other partition.

    @ivar counters: of all fetchers.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        settings: ConsumerSettings,
        offsets: ConsumedOffsets,
        endpointFor: EndpointFor,
        random: Random,
        streams: Mapping[tuple[str, int], MessageStream],
        name: str,
    ) -> None:
        """
        @param streams: by topic ("" for a filter's streams) and number of the consumer thread. May
            be filled later.
        """
        self._clock = clock
        self._settings = settings
        self._offsets = offsets
        self._endpointFor = endpointFor
        self._random = random
        self._streams = streams
        self._name = name
        self.counters = ConsumerCounters()
        self._fetchers: dict[int, Fetcher] = {}
        self._addresses: dict[int, str] = {}
        # Brokers that were reported in the log, with their registrations then.
        self._reported: dict[int, BrokerRegistration | None] = {}

    def __repr__(self) -> str:
        fetchers = ", ".join(repr(fetcher) for fetcher in self._fetchers.values())
        return f"<FetcherManager of {self._name}: {fetchers or 'none'}>"

    @property
    def partitions(self) -> list[PartitionId]:
        return [each for fetcher in self._fetchers.values() for each in fetcher.partitions]

    @property
    def positionedPartitions(self) -> list[PartitionId]:
        return [
            each for fetcher in self._fetchers.values() for each in fetcher.positionedPartitions
        ]

    def fetch(self, assignment: Assignment, brokers: Mapping[int, BrokerRegistration]) -> None:
        """Fetch these partitions from now on, and no others."""
        byBroker: dict[int, list[PartitionId]] = {}
        for partition in assignment:
            byBroker.setdefault(partition.partition.broker, []).append(partition)
        for number in self._fetchers.keys() - byBroker.keys():
            self._fetchers.pop(number).stop()
        for number, partitions in byBroker.items():
            self._connect(number, brokers.get(number), len(partitions))
            fetcher = self._fetchers.get(number)
            if fetcher is not None:
                fetcher.remove([each for each in fetcher.partitions if each not in assignment])
                for partition in partitions:
                    fetcher.add(partition, self._streamOf(partition.topic, assignment[partition]))

    def _streamOf(self, topic: str, thread: str) -> MessageStream:
        index = int(thread.rpartition("-")[2])
        return self._streams.get((topic, index)) or self._streams["", index]

    def _connect(self, number: int, broker: BrokerRegistration | None, count: int) -> None:
        fetcher = self._fetchers.get(number)
        if broker is None:
            if fetcher is None:
                self._report(
                    "{consumerId}: broker {number} is not registered; its partitions ({detail}) "
                    "wait for it",
                    number,
                    broker,
                    count,
                )
            return
        if fetcher is not None and self._addresses[number] == broker.address:
            return
        try:
            consumer = self._consumerOf(broker)
        except PylogbrokerError as error:
            text = "{consumerId}: broker {number} cannot be asked: {detail}"
            self._report(text, number, broker, error)
            return
        self._reported.pop(number, None)
        self._addresses[number] = broker.address
        if fetcher is None:
            self._fetchers[number] = Fetcher(
                self._clock, consumer, self._settings, self._offsets, self._random, self.counters
            )
        else:
            fetcher.moveTo(consumer)

    def _report(
        self, text: str, number: int, broker: BrokerRegistration | None, detail: object
    ) -> None:
        if number not in self._reported or self._reported[number] != broker:
            self._reported[number] = broker
            self._log.warn(text, consumerId=self._name, number=number, detail=detail)

    def _consumerOf(self, broker: BrokerRegistration) -> SimpleConsumer:
        settings = self._settings
        return SimpleConsumer(
            self._clock,
            self._endpointFor(broker),
            timeoutMs=settings.socketTimeoutMs,
            limits=ConnectionLimits(
                responseSizeMax=max(settings.maxResponseBytes, settings.fetchSizeMax)
                + _MULTIFETCH_OVERHEAD,
                receiveBufferSize=settings.socketBufferSize,
            ),
            random=self._random.random,
        )

    def remove(self, partitions: Collection[PartitionId]) -> None:
        for fetcher in self._fetchers.values():
            fetcher.remove(partitions)

    def seek(self, partition: PartitionId, offset: int) -> None:
        found = self._fetchers.get(partition.partition.broker)
        if found is not None:
            found.seek(partition, offset)

    async def stop(self) -> None:
        """Stop fetching, and close all connections; does not fail."""
        await gatherSettled([fetcher.stop() for fetcher in self._fetchers.values()])
        self._fetchers.clear()
