"""
A target that speaks today's protocol. A module of its own, since a reader of one protocol need not
read the other.

A payload of 2011 becomes the value of a message without key and headers; its timestamp is the time
of mirroring, since it has none. Each source partition goes to one target partition
(L{pylogbroker.mirror.offsetsyncs} chooses and remembers it; from a source of today it has the same
number), because today's readers count on the order of a partition.

What must be true: batches of one partition that are in flight together are stored in their order.
So the producer is idempotent, and gives up no message by time: one that failed while the next was
stored would change the order. Only a refusal that a retry cannot cure fails.

Today's partitions have no broker of their own: here partition N is C{0-N}.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.config.kafka.clientsettings import (
    EARLIEST,
    KafkaClientSettings,
    KafkaConsumerSettings,
    KafkaProducerSettings,
)
from pylogbroker.config.propertytypes import INT_MAX
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import MessageTooLargeError, UnknownOutcomeError
from pylogbroker.mirror.target import TOPIC_TIMEOUT_MS, MirrorRecord
from pylogbroker.net.deferreds import gatherSettled
from pylogbroker.producer.inflight import InFlightMessageLimiter
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.producer.producer import ProducerData
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.records.batchbuilder import RECORD_OVERHEAD_MAX
from pylogbroker.types import BrokerPartition, PartitionId

BATCH_COUNT = 200
"""Messages that are confirmed together; the producer makes its own batches of them."""

ENDS_TIMEOUT_MS = 10_000
CLOSE_MS = 1_000
"""How long closing may take: the mirror has waited for the messages in flight before."""

_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


def _raiseTooLarge(failure: Failure) -> Any:
    """The broker's refusal of a size, as the pipeline knows it."""
    error = failure.value
    if isinstance(error, ResponseError) and error.code in _TOO_LARGE:
        raise MessageTooLargeError(str(error)) from error
    failure.raiseException()


async def _sendRecords(
    producer: KafkaProducer, topic: str, payloads: list[MirrorRecord], partition: int
) -> tuple[int, int] | None:
    """@return: see L{KafkaTargetCluster.send}; fails with the worst failure of a message."""
    outcomes = await gatherSettled(
        [
            producer.send(
                topic,
                record.value,
                record.key,
                record.headers,
                record.timestamp if record.timestamp >= 0 else None,
                partition,
            )
            for record in (payload.record for payload in payloads)
        ]
    )
    failures = [each for each in outcomes if isinstance(each, Failure)]
    if failures:
        unknown = [each for each in failures if each.check(UnknownOutcomeError)]
        (unknown or failures)[0].raiseException()
    first, last = outcomes[0], outcomes[-1]
    assert isinstance(first, RecordMetadata) and isinstance(last, RecordMetadata)
    return (first.offset, last.offset) if min(first.offset, last.offset) >= 0 else None


class KafkaTargetCluster:
    """
    A cluster of today as the target of a mirror. It may be unavailable at any time.

    @ivar inFlight: limits the messages in flight, over all streams and sources.
    @ivar batchCountMax: messages in a batch.
    @ivar batchSizeMax: bytes of payload in a batch; a single message may be larger.
    """

    def __init__(
        self, reactor: Any, settings: KafkaProducerSettings, producerCount: int = 1
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        # The room is smaller than any one producer's queue, so that nothing is ever refused there.
        countMax = 2 * producerCount * settings.queueSize
        self._own = settings.replace(
            queueSize=countMax,
            bufferMemory=2 * producerCount * settings.bufferMemory + countMax * RECORD_OVERHEAD_MAX,
            maxBlockMs=min(settings.maxBlockMs, TOPIC_TIMEOUT_MS),
            deliveryTimeoutMs=INT_MAX,
            retries=INT_MAX,
        )
        self._producerCount = producerCount
        self._producers: list[KafkaProducer] = []
        self._consumer: KafkaConsumer | None = None
        self._ends: dict[PartitionId, int] = {}
        self.inFlight = InFlightMessageLimiter(
            reactor, producerCount * settings.queueSize, producerCount * settings.bufferMemory, -1
        )
        self.batchCountMax = BATCH_COUNT
        self.batchSizeMax = settings.maxRequestSize

    def __repr__(self) -> str:
        return f"the target at {','.join(self._settings.bootstrapServers)}"

    async def connect(self) -> None:
        """Make the clients, which look for their brokers when they are used, and go on looking."""
        self._producers = [self._newProducer() for _number in range(self._producerCount)]
        common = {key.name: getattr(self._own, key.name) for key in KafkaClientSettings.keys}
        defaults = KafkaConsumerSettings.fromProperties({"bootstrap.servers": "localhost:9092"})
        self._consumer = KafkaConsumer(
            self._reactor,
            defaults.replace(
                **common, autoOffsetReset=EARLIEST, defaultApiTimeoutMs=ENDS_TIMEOUT_MS
            ),
        )

    def _newProducer(self) -> KafkaProducer:
        return KafkaProducer(self._reactor, self._own, isLoggingFailures=False)

    def _producer(self, index: int) -> KafkaProducer:
        """A producer; a new one in place of one that cannot go on, since a mirror retries."""
        producer = self._producers[index]
        if producer.fatalError is not None:
            producer.close(CLOSE_MS).addErrback(lambda _failure: None)
            producer = self._producers[index] = self._newProducer()
        return producer

    async def close(self) -> None:
        """Close everything. The outcome of messages in flight is then unknown."""
        await gatherSettled([producer.close(CLOSE_MS) for producer in self._producers])
        if self._consumer is not None:
            await self._consumer.close()

    def send(
        self, topic: str, payloads: list[Any], fixedTarget: BrokerPartition | None
    ) -> Deferred[tuple[int, int] | None]:
        """
        Send payloads in their order: bytes as values, L{MirrorRecord}s as they are.

        @param fixedTarget: the partition; a mirror to today's protocol names one always.
        @return: fires when all of them are stored; for L{MirrorRecord}s with the offsets of the
            first and the last one, if the broker tells them. Fails as L{KafkaProducer.send}, and
            with L{MessageTooLargeError} also when the broker refuses one for its size.
        """
        assert fixedTarget is not None
        number = fixedTarget.partition
        producer = self._producer(number % len(self._producers))
        sending: Deferred[Any]
        if isinstance(payloads[0], MirrorRecord):
            sending = Deferred.fromCoroutine(_sendRecords(producer, topic, payloads, number))
        else:
            sending = producer.sendMany((ProducerData(topic, payloads),), partition=number)
        return sending.addErrback(_raiseTooLarge)

    async def ends(self, topics: Collection[str]) -> dict[str, dict[BrokerPartition, int]]:
        """
        The high watermarks of the partitions of some topics.

        @return: the last known ones of a topic whose brokers do not answer in time.
        """
        consumer = self._consumer
        assert consumer is not None
        found: dict[str, dict[BrokerPartition, int]] = {}

        async def ask(topic: str) -> None:
            partitions = await consumer.partitionsFor(topic)
            for place, end in (await consumer.endOffsets(partitions)).items():
                self._ends[PartitionId(topic, BrokerPartition(0, place.partition))] = end

        await gatherSettled(Deferred.fromCoroutine(ask(topic)) for topic in topics)
        for topic in topics:
            found[topic] = {
                each.partition: end for each, end in self._ends.items() if each.topic == topic
            }
        return found

    async def ensureTopic(self, topic: str) -> list[BrokerPartition]:
        """
        All partitions of a topic. A broker that creates topics by itself creates a missing one.

        @raise PylogbrokerError: it cannot be found out now, or the broker creates none.
        """
        numbers = await self._producer(0).partitionsFor(topic)
        return [BrokerPartition(0, number) for number in numbers]
