"""
The clients of a simulated cluster: our own, each in a process, as applications use them.

A producer with C{acks=all}; a member of a group; an application that copies a topic in
transactions; readers that follow partitions without a group; an operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from pylogbroker.consumer.kafka.assignedpartition import NO_REPLICA
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import (
    LogTruncatedError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    UnknownOutcomeError,
)
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.testing.simulatednetwork import Process
from pylogbroker.types import TopicPartition
from tests.simulation.cluster.ledger import Ledger, Outcome
from tests.simulation.seeds import BrokenPromiseError

LOGS, COPIES = "logs", "copies"
READERS, COPIERS = "readers", "copiers"
AGAIN_SECONDS = 0.2
BATCH_COUNT = 8
SOON_SECONDS = 0.4
"""A commit with an answer in this time was not sent again, if no connection was lost meanwhile."""

Properties = Mapping[str, str]


class SimulatedClient:
    """
    @ivar process: in which it lives.
    @ivar isOver: whether it was told to end, or killed.
    @ivar failures: what must not happen.
    """

    def __init__(
        self, process: Process, properties: Properties, ledger: Ledger, random: Random
    ) -> None:
        self.process = process
        self.properties = {**properties, "client.id": process.name}
        self.ledger = ledger
        self.random = random
        self.isOver = False
        self.onFailure: Callable[[str], None] = lambda text: None
        self.say: Callable[[str], None] = lambda text: None

    def start(self) -> None:
        """Begin."""
        self.process.perform(lambda: self._spawn(self.live()))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        Deferred.fromCoroutine(work).addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        if failure.check(BrokenPromiseError):
            self.onFailure(failure.getErrorMessage())
        else:
            self.onFailure(f"{self.process} failed: {failure.getTraceback()}")

    async def live(self) -> None:
        """What it does until it is over."""
        raise NotImplementedError

    async def pause(self, secondsMax: float) -> None:
        """Some time goes by."""
        await deferLater(self.process, self.random.random() * secondsMax)

    def kill(self) -> None:
        """C{kill -9}."""
        self.isOver = True
        self.process.kill()

    def trouble(self, error: PylogbrokerError) -> None:
        """An application of this kind begins anew after such an error."""
        self.say(f"{self.process} begins anew: {type(error).__name__}: {error}")


class SimulatedProducer(SimulatedClient):
    """
    Sends numbered messages.

    @ivar waitingCount: messages without an outcome.
    """

    waitingCount = 0
    partitionCount = 2

    async def live(self) -> None:
        number = 0
        while not self.isOver:
            producer = KafkaProducer(
                self.process, self.properties, random=self.random.random, isLoggingFailures=False
            )
            while producer.fatalError is None:
                await self.pause(0.8)
                if self.isOver:
                    break
                for _ in range(self.random.choice((0, 1, 1, 3, 6))):
                    self._send(producer, number)
                    number += 1
            try:
                await producer.close()
            except PylogbrokerError as error:
                self.trouble(error)

    def _send(self, producer: KafkaProducer, number: int) -> None:
        value = f"{self.process.name}.{number}".encode()
        partition = self.random.randrange(self.partitionCount)
        self.ledger.targets[value] = LOGS, partition
        self.ledger.outcomes[value] = Outcome.WAITING
        self.waitingCount += 1
        producer.send(LOGS, value, partition=partition).addCallbacks(
            self._sent, self._notSent, callbackArgs=(value,), errbackArgs=(value,)
        ).addErrback(self._failed)

    def _sent(self, metadata: RecordMetadata, value: bytes) -> None:
        self.waitingCount -= 1
        self.ledger.outcomes[value] = metadata.offset

    def _notSent(self, failure: Failure, value: bytes) -> None:
        failure.trap(PylogbrokerError)
        self.waitingCount -= 1
        self.say(f"{value!r}: {failure.getErrorMessage()}")
        isUnknown = failure.check(UnknownOutcomeError)
        self.ledger.outcomes[value] = Outcome.UNKNOWN if isUnknown else Outcome.REFUSED

    def end(self) -> None:
        """Send no more."""
        self.isOver = True


class _Listener:
    """Writes down which partitions a member owns."""

    def __init__(self, client: SimulatedClient, group: str, consumer: KafkaConsumer) -> None:
        self._client = client
        self._group = group
        self._consumer = consumer

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> None:
        metadata, client = self._consumer.groupMetadata(), self._client
        client.say(f"{client.process} owns {partitions} in generation {metadata.generationId}")
        for each in partitions:
            try:
                client.ledger.wasAssigned(
                    self._group,
                    metadata.generationId,
                    (each.topic, each.partition),
                    metadata.memberId,
                )
            except BrokenPromiseError as error:
                client.onFailure(str(error))

    def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing."""

    def partitionsLost(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing."""


class SimulatedMember(SimulatedClient):
    """A member of the group of readers. It commits what it was given."""

    async def live(self) -> None:
        while not self.isOver:
            consumer = KafkaConsumer(self.process, self.properties, random=self.random.random)
            try:
                consumer.subscribe([LOGS], _Listener(self, READERS, consumer))
                async for batch in consumer.batches(BATCH_COUNT):
                    self.handle(batch)
                    await self.pause(0.05)
                    await self._commit(consumer, _behind(batch))
            except (LogTruncatedError, OffsetOutOfRangeError) as error:
                self.onFailure(f"{self.process}: {error}")
            except PylogbrokerError as error:
                self.trouble(error)
            await _close(consumer)
            await self.pause(AGAIN_SECONDS)

    async def _commit(self, consumer: KafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
        begun, lostCount = self.process.seconds(), self.process.lostCount
        doubtful = [
            (self.ledger.doubtful[READERS, (place.topic, place.partition)], offset)
            for place, offset in offsets.items()
        ]
        for known, offset in doubtful:
            known.add(offset)
        await consumer.commitOffsets(offsets)
        isSoon = self.process.seconds() - begun < SOON_SECONDS
        if isSoon and self.process.lostCount == lostCount:
            for known, offset in doubtful:
                known.discard(offset)

    def handle(self, batch: Collection[ConsumerRecord]) -> None:
        """Write down what was given."""
        for each in batch:
            place = each.topic, each.partition
            self.ledger.wasRead(place, each.offset, each.value)
            self.ledger.delivered[READERS, place].add(each.offset)


class SimulatedCopier(SimulatedClient):
    """Copies L{LOGS} to L{COPIES}, partition by partition, in transactions."""

    producerProperties: Properties = {}

    async def live(self) -> None:
        while not self.isOver:
            producer = KafkaProducer(
                self.process,
                {**self.producerProperties, "client.id": self.process.name},
                random=self.random.random,
                isLoggingFailures=False,
            )
            consumer = KafkaConsumer(self.process, self.properties, random=self.random.random)
            try:
                async with producer.transaction():
                    pass  # ends what an earlier process of this name has open
                consumer.subscribe([LOGS], _Listener(self, COPIERS, consumer))
                async for batch in consumer.batches(BATCH_COUNT):
                    await self._copy(producer, consumer, batch)
            except (LogTruncatedError, OffsetOutOfRangeError) as error:
                self.onFailure(f"{self.process}: {error}")
            except PylogbrokerError as error:
                self.trouble(error)
            await _close(consumer)
            await _close(producer)
            await self.pause(AGAIN_SECONDS)

    async def _copy(
        self, producer: KafkaProducer, consumer: KafkaConsumer, batch: Collection[ConsumerRecord]
    ) -> None:
        async with producer.transaction() as transaction:
            for each in batch:
                self.ledger.wasRead((each.topic, each.partition), each.offset, each.value)
                sent = producer.send(COPIES, each.value, partition=each.partition)
                sent.addErrback(lambda _failure: None)  # the transaction raises it
            await self.pause(0.1)
            await transaction.sendOffsets(_behind(batch), consumer.groupMetadata())


class SimulatedReader(SimulatedClient):
    """
    Follows all partitions of a topic, without a group, and asks for their ends.

    @ivar topic: L{LOGS}, read uncommitted, or L{COPIES}, read committed.
    @ivar consumer: the one of now.
    @ivar counts: of the world.
    """

    partitionCount = 2
    consumer: KafkaConsumer | None = None

    def __init__(
        self,
        process: Process,
        properties: Properties,
        ledger: Ledger,
        random: Random,
        topic: str,
        counts: Counter[str],
    ) -> None:
        super().__init__(process, properties, ledger, random)
        self.topic = topic
        self.counts = counts

    async def live(self) -> None:
        places = [TopicPartition(self.topic, each) for each in range(self.partitionCount)]
        positions = dict.fromkeys(places, 0)
        while not self.isOver:
            self.consumer = consumer = KafkaConsumer(
                self.process, self.properties, random=self.random.random
            )
            try:
                consumer.assign(positions)
                if self.topic == LOGS:
                    self._spawn(self._askEnds(consumer, places))
                async for batch in consumer.batches(BATCH_COUNT):
                    self._handle(batch, consumer)
                    positions.update(_behind(batch))
            except (LogTruncatedError, OffsetOutOfRangeError) as error:
                self.onFailure(f"{self.process}: {error}")
            except PylogbrokerError as error:
                self.trouble(error)
            await _close(consumer)
            await self.pause(AGAIN_SECONDS)

    def _handle(self, batch: Collection[ConsumerRecord], consumer: KafkaConsumer) -> None:
        for each in batch:
            place = each.topic, each.partition
            self.ledger.wasRead(place, each.offset, each.value)
            partition = consumer._partitions.get(TopicPartition(*place))
            if partition is not None and partition.readReplica != NO_REPLICA:
                self.counts["read from a follower"] += 1
            if self.topic == COPIES:
                self.ledger.audited[place].append((each.offset, each.value))

    async def _askEnds(self, consumer: KafkaConsumer, places: list[TopicPartition]) -> None:
        while not consumer.isEnded:
            await self.pause(2.0)
            try:
                found = await consumer.endOffsets(places)
            except PylogbrokerError:
                continue  # asked again
            for place, offset in found.items():
                self.ledger.ended((place.topic, place.partition), offset)


def _behind(batch: Collection[ConsumerRecord]) -> dict[TopicPartition, int]:
    """The positions behind messages."""
    return {TopicPartition(each.topic, each.partition): each.offset + 1 for each in batch}


async def _close(client: KafkaConsumer | KafkaProducer) -> None:
    try:
        await client.close()
    except PylogbrokerError:
        pass  # what it could not do, the next one does
