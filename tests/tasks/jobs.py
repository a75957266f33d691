"""Jobs for tests, and what a test does with their topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.tasks.api import (
    Config,
    IncomingMessageEnvelope,
    MessageCollector,
    OutgoingMessageEnvelope,
    StreamTask,
    SystemStream,
    TaskContext,
    TaskCoordinator,
)
from pylogbroker.tasks.job import MEMORY, Input, Job, Output, Repartition, Store
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.types import TopicPartition

WORDS = SystemStream("kafka", "words")


class SplitWords(StreamTask):
    """The paper's Figure 2, its first half."""

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        for word in envelope.getMessage().split():
            collector.send(OutgoingMessageEnvelope(WORDS, word, 1))


class CountWords(StreamTask):
    """Its second half. A word C{bad} is more than it can handle."""

    def init(self, config: Config, context: TaskContext) -> None:
        self.store = context.getStore("word-counts")

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        word = envelope.getKey()
        self.store.put(word, (self.store.get(word) or 0) + envelope.getMessage())
        if word == "bad":
            raise ValueError("a bad word")
        if word == "enough":
            coordinator.shutdown()


def splitWords(**changes: Any) -> Job:
    """From C{lines} to C{words}."""
    inputs, outputs = [Input("lines", message=STRING)], [Output("words", STRING, INTEGER)]
    return Job("split-words", SplitWords, inputs, outputs, **changes)


def countWords(engine: str = MEMORY, **changes: Any) -> Job:
    """Of C{words}; the changelog C{word-counts} is the output."""
    store = Store("word-counts", STRING, INTEGER, changelog="word-counts", engine=engine)
    given = {"task": CountWords, "inputs": [Input("words", STRING, INTEGER)], **changes}
    return Job("count-words", stores=[store], **given)


class SplitAndCount(CountWords):
    """Both halves in one task: the words go through a repartition, each to the task of its key."""

    def init(self, config: Config, context: TaskContext) -> None:
        super().init(config, context)
        self.lines = context.getCounter("lines")

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        if envelope.topic == "by-word":
            super().process(envelope, collector, coordinator)
            return
        self.lines.increment()
        for word in envelope.getMessage().split():
            collector.send(OutgoingMessageEnvelope("by-word", word, 1))


def splitAndCount(engine: str = MEMORY, **changes: Any) -> Job:
    """From C{lines}, by the repartition C{by-word}, to the changelog C{word-counts}."""
    store = Store("word-counts", STRING, INTEGER, changelog="word-counts", engine=engine)
    repartition = Repartition("by-word", STRING, INTEGER)
    inputs = [Input("lines", message=STRING)]
    given = {"inputs": inputs, "stores": [store], "repartitions": [repartition], **changes}
    return Job("split-and-count", SplitAndCount, **given)


class CountLines(StreamTask):
    """Both halves in one: the words go through a repartition, by which each has one task."""

    def init(self, config: Config, context: TaskContext) -> None:
        self.store = context.getStore("word-counts")

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        if envelope.topic == "lines":
            for word in envelope.getMessage().split():
                collector.send(OutgoingMessageEnvelope("by-word", word, 1))
        else:
            word = envelope.getKey()
            self.store.put(word, (self.store.get(word) or 0) + envelope.getMessage())


def countLines(**changes: Any) -> Job:
    """Of C{lines}; the changelog is C{count-lines-word-counts-changelog}."""
    return Job(
        "count-lines",
        CountLines,
        [Input("lines", message=STRING)],
        stores=[Store("word-counts", STRING, INTEGER, engine=MEMORY)],
        repartitions=[Repartition("by-word", STRING, INTEGER)],
        **changes,
    )


async def publish(
    reactor: Any, servers: str, topic: str, messages: Iterable[tuple[str | None, bytes | None]]
) -> None:
    """Send (key, value) pairs, and wait until they are stored."""
    producer = KafkaProducer(reactor, {"bootstrap.servers": servers})
    try:
        for key, value in messages:
            await producer.whenReady()
            producer.sendNoWait(topic, value, None if key is None else key.encode())
        await producer.flush()
        lost = producer.counters.failedCount + producer.counters.unknownCount
        assert not lost, f"{lost} messages were not stored"
    finally:
        await producer.close()


async def readAll(
    reactor: Any, servers: str, topic: str, isolation: str = "read_committed"
) -> list[ConsumerRecord]:
    """All messages of a topic, each partition's in order."""
    found: list[ConsumerRecord] = []
    settings = {
        "bootstrap.servers": servers,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
    }
    async with KafkaConsumer(reactor, settings) as consumer:
        places = await consumer.partitionsFor(topic)
        ends = await consumer.endOffsets(places)
        consumer.assign(places)

        def isDone() -> bool:
            at = consumer.positions
            return all(at.get(place, -1) >= end for place, end in ends.items())

        while not isDone():
            records = consumer.takeMany()
            found += records
            if not records and not isDone():
                await consumer.wait()
    return found


def lastValues(records: Iterable[ConsumerRecord]) -> dict[str, int]:
    """The last number of each key, without tombstones."""
    found: dict[str, int] = {}
    for each in records:
        assert each.key is not None
        if each.value is None:
            found.pop(each.key.decode(), None)
        else:
            found[each.key.decode()] = INTEGER.decode(each.value)
    return found


async def committedOffsets(
    reactor: Any, servers: str, group: str, places: Iterable[TopicPartition]
) -> Mapping[TopicPartition, int | None]:
    """The positions of a group."""
    settings = {"bootstrap.servers": servers, "group.id": group}
    async with KafkaConsumer(reactor, settings) as consumer:
        found = await consumer.committed(places)
    return {place: None if each is None else each.offset for place, each in found.items()}
