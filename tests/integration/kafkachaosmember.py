"""
The programs of the chaos run of today's protocol (L{tests.integration.kafkachaos}): a broker that
takes orders for faults; a producer of numbered messages; a member of a group; an application that
copies a topic in transactions, with the positions of its group; and an administrator. Each is a
process of its own (L{tests.integration.chaosprogram}), and writes down what it sees::

    serving                     the broker serves clients
    sent N                      before the message is given to the producer
    ok N PLACE OFFSET           the broker has acknowledged it
    failed N / unknown N        the producer has given it up
    assigned / revoked / lost PLACES
                                before the first and after the last message of partitions
    left                        the consumer was closed
    got PLACE OFFSET VALUE      before the message counts as handled
    committed PLACE OFFSET      the coordinator has acknowledged a position
    copied N                    a transaction was committed
    done N                      a round of an administrator
    error TYPE TEXT             what an application of this kind begins anew after
    trouble TYPE TEXT           what must not happen
    late SECONDS                how long the process had no turn
    end {...}                   the last; the producer's counters
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from random import Random
from time import monotonic
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.stdio import StandardIO
from twisted.internet.task import LoopingCall, deferLater
from twisted.protocols.basic import LineOnlyReceiver

from pylogbroker.client.kafka.admin.client import (
    AdminClient,
    AlterConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceKind,
    checkAll,
)
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import (
    CommitFailedError,
    LogTruncatedError,
    PylogbrokerError,
    UnknownOutcomeError,
)
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.programs.clocksteps import bootSeconds, keepTimers
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.testing.faults.faultinjector import FaultInjector
from pylogbroker.types import TopicPartition
from tests.integration.chaosprogram import Record, start
from tests.integration.numberedmessages import (
    BATCH_COUNT,
    CLICKS,
    COPIES,
    KEY_COUNT,
    PAUSE_SECONDS,
    placed,
    valueName,
)

WORK_SECONDS = 0.06
"""How long at most a list of messages is worked on: faults meet messages in hand."""
LOOK_SECONDS = 0.02
LATE_SECONDS = 1.0
AGAIN_SECONDS = 0.3


class _Turns:
    """Writes down when the process had no turn for long, since it was stopped or starved."""

    def __init__(self, reactor: Any, record: Record) -> None:
        self._record = record
        self._lookedAt = monotonic()
        self._looking = LoopingCall(self.look)
        self._looking.clock = reactor
        self._looking.start(LOOK_SECONDS).addErrback(self._broken)

    def _broken(self, failure: Any) -> None:
        self._record.write("trouble", failure.type.__name__, failure.getErrorMessage())

    def stop(self) -> None:
        self._looking.stop()

    def look(self) -> None:
        now = monotonic()
        if now - self._lookedAt > LATE_SECONDS:
            self._record.write("late", now - self._lookedAt)
        self._lookedAt = now


# -- the broker


class _Orders(LineOnlyReceiver):
    """Takes faults from standard input: a line of JSON each; an empty object clears them."""

    delimiter = b"\n"

    def __init__(self, faults: FaultInjector) -> None:
        self._faults = faults

    def lineReceived(self, line: bytes) -> None:
        order = json.loads(line)
        if order:
            self._faults.inject(topic=None, partition=None, **order)
        else:
            self._faults.clear()


async def serve(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """Be a broker until it is C{over}."""
    keepTimers(reactor, bootSeconds)
    broker = EmbeddedBroker(reactor, options["properties"])
    faults = FaultInjector(reactor, broker.service, broker.settings.brokerId)
    await broker.start()
    makeStandardIO: Any = StandardIO  # mypy takes it for that of Windows
    makeStandardIO(_Orders(faults), reactor=reactor)
    turns = _Turns(reactor, record)
    record.write("serving")
    await over
    turns.stop()
    await faults.stop()
    await broker.stop()
    record.write("end", "{}")


# -- producers


async def publish(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """
    Publish numbered messages until it is C{over}. One without a key has key 0 in its value.
    """
    random = Random(options["seed"])
    producer = KafkaProducer(reactor, options["properties"], isLoggingFailures=False)
    number = 0

    def stored(metadata: RecordMetadata, number: int) -> None:
        place = placed(metadata.topic, metadata.partition)
        record.write("ok", number, place, metadata.offset)

    def failed(failure: Any, number: int) -> None:
        word = "unknown" if failure.check(UnknownOutcomeError) else "failed"
        record.write(word, number, failure.type.__name__, failure.getErrorMessage())

    while not over.called:
        await deferLater(reactor, random.uniform(*options.get("pauseSeconds", PAUSE_SECONDS)))
        for _message in range(random.randrange(1, 9)):
            await producer.whenReady()
            key = random.randrange(KEY_COUNT)
            long = random.random() < 0.01
            padding = "x" * random.randrange(20_000 if long else 200)
            record.write("sent", number)
            value = f"{options['name']}.{number}.{key}.{padding}".encode()
            producer.send(CLICKS, value, b"key %d" % key if key else None).addCallbacks(
                stored, failed, (number,), errbackArgs=(number,)
            )
            number += 1
    try:
        await producer.close()
    except PylogbrokerError as error:
        record.write("closing", type(error).__name__, error)
    record.write("end", json.dumps(asdict(producer.counters)))


# -- members of groups


class _Witness(_Turns):
    """
    Writes down what a consumer knows of its partitions; its rebalance listener.

    No caller learns of the acknowledgement of a commit by time, so it looks at what the consumer
    takes for committed.
    """

    def __init__(self, reactor: Any, record: Record) -> None:
        self._consumer: KafkaConsumer | None = None
        self._committed: dict[TopicPartition, int] = {}
        super().__init__(reactor, record)

    def follow(self, consumer: KafkaConsumer) -> None:
        self._consumer, self._committed = consumer, {}

    def left(self) -> None:
        self.look()
        self._consumer = None
        self._record.write("left")

    def look(self) -> None:
        super().look()
        if self._consumer is not None:
            for place, found in self._consumer._group.offsets.committed.items():
                if self._committed.get(place) != found.offset:
                    self._committed[place] = found.offset
                    self._record.write("committed", placed(*place), found.offset)

    def _tell(self, word: str, partitions: Collection[TopicPartition]) -> None:
        self.look()
        self._record.write(word, ",".join(placed(*each) for each in partitions))

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> None:
        for each in partitions:
            self._committed.pop(each, None)
        self._tell("assigned", partitions)

    def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> None:
        self._tell("revoked", partitions)

    def partitionsLost(self, partitions: Collection[TopicPartition]) -> None:
        self._tell("lost", partitions)


class _Reader:
    """Reads lists of messages until it is C{over}: comes back from the last one first."""

    def __init__(self, over: Deferred[None]) -> None:
        self._over = over
        self._isIdle = False
        self._consumer: KafkaConsumer | None = None
        over.addCallback(self._end)

    def _end(self, _none: None) -> None:
        if self._isIdle and self._consumer is not None:
            self._consumer.close()

    async def read(self, consumer: KafkaConsumer, handle: Any) -> None:
        """@param handle: a coroutine function of a list of messages."""
        self._consumer, self._isIdle = consumer, True
        try:
            async for batch in consumer.batches(BATCH_COUNT):
                self._isIdle = False
                await handle(batch)
                self._isIdle = True
                if self._over.called:
                    return
        finally:
            self._isIdle = False


def _behind(batch: Collection[ConsumerRecord]) -> dict[TopicPartition, int]:
    """The positions behind messages."""
    return {TopicPartition(each.topic, each.partition): each.offset + 1 for each in batch}


async def consume(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """
    Be a member of a group until it is C{over}. With C{enable.auto.commit=false} each list of
    messages is committed; with C{isCommittedFirst} before it is handled, which is wrong.
    """
    random = Random(options["seed"])
    isByHand = options["properties"].get("enable.auto.commit") == "false"
    witness, reader = _Witness(reactor, record), _Reader(over)
    while not over.called:
        consumer = KafkaConsumer(reactor, options["properties"])

        async def commit(
            batch: Collection[ConsumerRecord], consumer: KafkaConsumer = consumer
        ) -> None:
            positions = _behind(batch)
            try:
                await consumer.commitOffsets(positions)
            except CommitFailedError as error:
                record.write("error", type(error).__name__, error)
                return
            for place, offset in positions.items():
                record.write("committed", placed(*place), offset)

        async def handle(batch: Collection[ConsumerRecord], commit: Any = commit) -> None:
            if options.get("isCommittedFirst"):
                await commit(batch)
            for each in batch:
                name = valueName(each.value)
                record.write("got", placed(each.topic, each.partition), each.offset, name)
            await deferLater(reactor, random.uniform(0, WORK_SECONDS))
            if isByHand:
                await commit(batch)

        witness.follow(consumer)
        try:
            consumer.subscribe([options["topic"]], witness)
            await reader.read(consumer, handle)
        except LogTruncatedError as error:
            record.write("trouble", type(error).__name__, error)
        except PylogbrokerError as error:
            record.write("error", type(error).__name__, error)
        finally:
            await consumer.close()
            witness.left()
        if not over.called:
            await deferLater(reactor, AGAIN_SECONDS)
    witness.stop()
    record.write("end", "{}")


async def copy(reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]) -> None:
    """
    Copy L{CLICKS} to L{COPIES}, or to a C{target}, partition by partition, in transactions, until
    it is C{over}. After an error it begins anew, as an application does that was started again.
    """
    random = Random(options["seed"])
    target = options.get("target", COPIES)
    witness, reader = _Witness(reactor, record), _Reader(over)
    while not over.called:
        producer = KafkaProducer(reactor, options["producer"], isLoggingFailures=False)
        consumer = KafkaConsumer(reactor, options["consumer"])

        async def handle(
            batch: Collection[ConsumerRecord],
            producer: KafkaProducer = producer,
            consumer: KafkaConsumer = consumer,
        ) -> None:
            async with producer.transaction() as transaction:
                for each in batch:
                    await producer.whenReady()
                    sent = producer.send(target, each.value, each.key, partition=each.partition)
                    sent.addErrback(lambda _failure: None)  # the transaction raises it
                await deferLater(reactor, random.uniform(0, WORK_SECONDS))
                await transaction.sendOffsets(_behind(batch), consumer.groupMetadata())
            record.write("copied", len(batch))

        witness.follow(consumer)
        try:
            async with producer.transaction():
                pass  # ends what an earlier process of this name has open
            if not over.called:
                consumer.subscribe([CLICKS], witness)
                await reader.read(consumer, handle)
        except PylogbrokerError as error:
            record.write("error", type(error).__name__, error)
        finally:
            await consumer.close()
            witness.left()
            try:
                await producer.close()
            except PylogbrokerError as error:
                record.write("closing", type(error).__name__, error)
        if not over.called:
            await deferLater(reactor, AGAIN_SECONDS)
    witness.stop()
    record.write("end", "{}")


# -- an administrator


async def administer(
    reactor: Any, options: dict[str, Any], record: Record, over: Deferred[None]
) -> None:
    """Create, alter, describe and delete a topic again and again until it is C{over}."""
    admin = AdminClient(reactor, options["properties"])
    number = 0
    while not over.called:
        name = f"{options['name']}{number}"
        resource = ConfigResource(ResourceKind.TOPIC, name)
        change = {"retention.ms": (AlterConfigOperation.SET, "77777")}
        try:
            checkAll(await admin.createTopics([NewTopic(name, 1, 2)]))
            # Each broker takes note of a change in its own time.
            while True:
                found = await admin.incrementalAlterConfigs({resource: change})
                if found[resource] is None:
                    break
                await deferLater(reactor, LOOK_SECONDS)
            while True:
                found = await admin.describeConfigs([resource], ["retention.ms"])
                settings = found[resource]
                if isinstance(settings, dict) and settings["retention.ms"].value == "77777":
                    break
                await deferLater(reactor, LOOK_SECONDS)
            await admin.describeCluster()
            await admin.listGroups()
            checkAll(await admin.deleteTopics([name]))
            record.write("done", number)
        except PylogbrokerError as error:
            record.write("error", type(error).__name__, error)
        number += 1
        await deferLater(reactor, AGAIN_SECONDS)
    await admin.close()
    record.write("end", "{}")


if __name__ == "__main__":
    start(
        {
            "broker": serve,
            "producer": publish,
            "consumer": consume,
            "copier": copy,
            "admin": administer,
        }
    )
