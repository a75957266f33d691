"""
Rows on their way to brokers: gathered by partition, sent in sets, proven when it is over.

The protocol knows no acknowledgement. What a task sent is taken when C{close} returns, which asks each broker a question behind all that was sent to it;
until then nothing is known, and a task that fails is repeated as a whole. So messages may be there twice, and none is missing.

A key goes where a producer with the default partitioner sends it (L{pylogbroker.cluster.partitioner}). Rows without a key go to partitions by chance, a set
at a time. What is held is bounded: a set for each partition, and all of them together.

A compressed set counts as one message, which brokers refuse if it is too large, and no row may be refused for its company. So the messages of such a set are,
before they are compressed, no more than a message may have, as with the mirror; and a set that is too large all the same, since what cannot be compressed
grows a little, is sent in halves, and one that does not fit even alone as it is (producers do the same, L{pylogbroker.producer.encoding}). Without
compression each message is measured alone, however many go together.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

from pylogbroker.cluster import paths
from pylogbroker.cluster.partitioner import defaultPartitioner
from pylogbroker.errors import (
    BrokerConnectionError,
    ConfigurationError,
    EncodingError,
    InvalidNameError,
    MessageTooLargeError,
    NoBrokersError,
)
from pylogbroker.records.compression import NONE
from pylogbroker.spark.options import SinkOptions
from pylogbroker.syncclient.clustermetadata import IClusterMetadata
from pylogbroker.syncclient.syncproducer import SyncProducer
from pylogbroker.types import BrokerPartition, PartitionId

HELD_SIZE_MAX = 64 << 20
ENTRY_HEADER_SIZE = 10


class TaskWriter:
    """
    What one task writes.

    @ivar sentCount: of messages.
    """

    def __init__(
        self,
        options: SinkOptions,
        view: IClusterMetadata,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param view: tells where to; who made it closes it.
        @param random: numbers from 0 up to, not including, 1; by default the system's.
        """
        self.sentCount = 0
        self._options = options
        self._view = view
        self._random = random or SystemRandom().random
        self._addresses = view.brokers()
        self._partitions: dict[str, list[BrokerPartition]] = {}
        self._chosen: dict[
            str, BrokerPartition
        ] = {}  # where rows without a key go, until a set is full
        self._held: dict[PartitionId, list[bytes]] = {}
        self._sizes: dict[PartitionId, int] = {}
        self._heldSize = 0
        self._isCompressed = options.codec != NONE
        self._producers: dict[int, SyncProducer] = {}

    def add(
        self, topic: str | None, key: bytes | str | int | None, value: bytes | str | None
    ) -> None:
        """
        Take a row, and send what is full.

        @raise EncodingError: it has no topic or no value.
        @raise NoBrokersError: there is no broker.
        @raise MessageTooLargeError: one of those that were held is too large, alone, compressed and as it is.
        @raise ConnectionError: as L{SyncProducer.send}.
        """
        if topic is None or value is None:
            raise EncodingError(
                f"a row without a {'topic' if topic is None else 'value'} (key {key!r}) cannot be sent"
            )
        payload = value.encode() if isinstance(value, str) else value
        place = PartitionId(topic, self._choose(topic, key))
        size = len(payload) + ENTRY_HEADER_SIZE
        if (
            self._isCompressed
            and place in self._held
            and self._sizes[place] + size > self._options.payloadSizeMax
        ):
            self._send(place)
        self._held.setdefault(place, []).append(payload)
        self._sizes[place] = self._sizes.get(place, 0) + size
        self._heldSize += size
        if self._sizes[place] >= self._options.batchSize:
            self._send(place)
        elif self._heldSize > HELD_SIZE_MAX:
            self._flush()

    def _choose(self, topic: str, key: bytes | str | int | None) -> BrokerPartition:
        partitions = self._partitions.get(topic) or self._lookUp(topic)
        if key is not None:
            return partitions[defaultPartitioner(key, len(partitions))]
        chosen = self._chosen.get(topic)
        if chosen is None:
            chosen = self._chosen[topic] = partitions[int(self._random() * len(partitions))]
        return chosen

    def _lookUp(self, topic: str) -> list[BrokerPartition]:
        """Its partitions; of one that nobody has, partition 0 of each broker, as with every producer (spec-0.7 producer §2)."""
        try:
            paths.topic(topic)
        except InvalidNameError as error:
            raise ConfigurationError(f"topic={topic}: {error}") from error
        found = self._view.partitions(topic) or [
            BrokerPartition(number, 0) for number in sorted(self._addresses)
        ]
        if not found:
            raise NoBrokersError(f"there is no broker for topic {topic}")
        self._partitions[topic] = found
        return found

    def _send(self, place: PartitionId) -> None:
        payloads = self._held.pop(place)
        self._heldSize -= self._sizes.pop(place)
        self._chosen.pop(place.topic, None)
        self._sendSet(place, payloads)

    def _sendSet(self, place: PartitionId, payloads: list[bytes]) -> None:
        topic, partition = place
        producer = self._producer(partition.broker)
        try:
            producer.send(topic, partition.partition, payloads, codec=self._options.codec)
        except MessageTooLargeError:
            if not self._isCompressed:
                raise
            if len(payloads) > 1:
                middle = len(payloads) // 2
                self._sendSet(place, payloads[:middle])
                self._sendSet(place, payloads[middle:])
                return
            producer.send(topic, partition.partition, payloads)
        self.sentCount += len(payloads)

    def _flush(self) -> None:
        for place in list(self._held):
            self._send(place)

    def _producer(self, broker: int) -> SyncProducer:
        producer = self._producers.get(broker)
        if producer is None:
            if broker not in self._addresses:
                raise NoBrokersError(f"broker {broker} is registered for a topic, and not at all")
            address, options = self._addresses[broker], self._options
            producer = self._producers[broker] = SyncProducer(
                *options.cluster.endpoint(address), payloadSizeMax=options.payloadSizeMax, timeoutMs=options.cluster.timeoutMs,
                closeMs=options.cluster.timeoutMs,
            )  # fmt: skip
        return producer

    def close(self) -> None:
        """
        Send what is left, and prove that all was taken.

        @raise ConnectionError: whether it was is not known.
        """
        self._flush()
        producers, self._producers = self._producers, {}
        failure: BrokerConnectionError | None = None
        for producer in producers.values():
            try:
                producer.close()
            except BrokerConnectionError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def abandon(self) -> None:
        """Let go of connections after a failure; what became of what was sent is not asked."""
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            try:
                producer.close()
            except BrokerConnectionError:
                pass  # there is a failure already
