"""InitProducerId, and Produce with sequence numbers; DescribeProducers."""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.pieces import batch, fetch, makeTopic, produce, produceBody, versionsOf
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario


@scenario()
def initProducerId(setting: Setting) -> Steps:
    """New ids, ids with epochs, and requests that make no sense; without transactions."""
    key, cls = ApiKey.INIT_PRODUCER_ID, messages.InitProducerIdRequest
    yield from newProducer()
    for version in versionsOf(key):
        first = yield Ask(
            "first", key, version, cls(transactionalId=None, transactionTimeoutMs=60_000)
        )
        yield Ask("second", key, version, cls(transactionalId=None, transactionTimeoutMs=60_000))
        yield Ask("time-out 0", key, version, cls(transactionalId=None))
        yield Ask("time-out -1", key, version, cls(transactionalId=None, transactionTimeoutMs=-1))
        empty = cls(transactionalId="", transactionTimeoutMs=60_000)
        yield Ask("empty transactional id", key, version, empty)
        if version >= 3:
            for label, producerId, epoch in (
                ("the same", first.producerId, first.producerEpoch),
                ("another epoch", first.producerId, 5),
                ("epoch without id", -1, 5),
                ("id without epoch", first.producerId, -1),
                ("unknown id", 987_654_321, 0),
                ("id -2", -2, 0),
            ):
                body = cls(transactionalId=None, producerId=producerId, producerEpoch=epoch)
                yield Ask(label, key, version, body)


def newProducer() -> Steps:
    """A new producer id; nothing is recorded."""
    body = messages.InitProducerIdRequest(transactionalId=None, transactionTimeoutMs=60_000)
    made = yield Until(
        Ask("producer", ApiKey.INIT_PRODUCER_ID, 4, body, isRecorded=False),
        lambda found: found.errorCode == 0,
    )
    return made.producerId


@scenario()
def sequences(setting: Setting) -> Steps:
    """In order, out of order, twice, from the middle; epochs that rise and fall."""
    for version in versionsOf(ApiKey.PRODUCE):
        name = f"sequences-{version}"
        topicId = yield from makeTopic(name, 2)
        producer = yield from newProducer()

        def send(
            label: str,
            sequence: int,
            count: int = 1,
            epoch: int = 0,
            partition: int = 0,
            who: int | None = None,
            **fields: Any,
        ) -> Ask:
            records = batch(
                setting.baseMs,
                *[b"v"] * count,
                producerId=producer if who is None else who,  # noqa: B023
                producerEpoch=epoch,
                baseSequence=sequence,
                **fields,
            )
            return produce(label, version, name, topicId, records, partition=partition)  # noqa: B023

        yield send("first 0-1", 0, 2)
        yield send("next 2-4", 2, 3)
        yield send("2-4 again", 2, 3)
        yield send("first again", 0, 2)
        yield send("a gap", 6)
        yield send("before the end, another count", 3, 2)
        yield send("next 5", 5)
        for sequence in range(6, 10):
            yield send(f"next {sequence}", sequence)
        yield send("the oldest of five", 5)
        yield send("older than five", 2, 3)
        yield send("first of all", 0, 2)
        yield send("sequence -1", -1)
        yield send("sequence -2", -2)
        yield send("new epoch, not from 0", 3, epoch=1)
        yield send("new epoch", 0, epoch=1)
        yield send("new epoch next", 1, epoch=1)
        yield send("old epoch", 10, epoch=0)
        yield send("old epoch 0", 0, epoch=0)
        yield send("a jump of epochs", 0, epoch=9)
        yield send("epoch -1", 0, epoch=-1)
        yield send("another partition, not from 0", 4, partition=1)
        yield send("another partition again from 0", 0, partition=1, epoch=3)
        yield send("unknown producer, not from 0", 7, who=987_654_321)
        yield send("unknown producer from 0", 0, who=987_654_322)
        yield send("unknown producer, epoch 7", 0, epoch=7, who=987_654_323)
        yield send("packed", 2, 2, epoch=9, codec=4)
        yield send("packed in order", 1, 2, epoch=9, codec=4)
        yield send("packed again", 1, 2, epoch=9, codec=4)
        yield send("transactional without transaction", 3, 1, epoch=9, isTransactional=True)
        one = batch(setting.baseMs, b"v", producerId=producer, producerEpoch=9, baseSequence=3)
        two = batch(setting.baseMs, b"v", producerId=producer, producerEpoch=9, baseSequence=4)
        yield produce("two batches with sequences", version, name, topicId, one + two)
        yield produce(
            "a batch without, a batch with",
            version,
            name,
            topicId,
            batch(setting.baseMs, b"p") + one,
        )
        yield produce("acks 1", version, name, topicId, one, acks=1)
        yield produce("acks 1 again", version, name, topicId, one, acks=1)
        yield produce("acks 0 again", version, name, topicId, one, acks=0)
        yield produce("acks 0", version, name, topicId, two, acks=0)
        yield fetch("what was stored", 11, name, topicId, 0)
        body = produceBody(version, name, topicId, [(0, two), (1, two)])
        yield Ask("two partitions", ApiKey.PRODUCE, version, body)


@scenario()
def sequencesAtTheirEnd(setting: Setting) -> Steps:
    """Sequence numbers and epochs at the end of their range."""
    last = 2**31 - 1
    for version in (3, 9, 13):
        name = f"wrap-{version}"
        topicId = yield from makeTopic(name)
        # A producer that the partition does not know may begin anywhere.
        for number, (label, sequence, count, epoch) in enumerate(
            (
                ("the last", last, 1, 0),
                ("the last two", last - 1, 2, 0),
                ("over the end", last, 2, 0),
                ("epoch 32767", 0, 1, 32767),
            )
        ):
            who = 1_000_000_000 + version * 100 + number
            fields: dict[str, Any] = {"producerId": who, "producerEpoch": epoch}
            records = batch(setting.baseMs, *[b"v"] * count, baseSequence=sequence, **fields)
            yield produce(label, version, name, topicId, records)
            for follow in (0, 1, last):
                records = batch(setting.baseMs, b"w", baseSequence=follow, **fields)
                yield produce(f"{label}, then {follow}", version, name, topicId, records)
        yield fetch("what was stored", 11, name, topicId, 0)


@scenario()
def describeProducers(setting: Setting) -> Steps:
    """Of partitions with and without producers."""
    key, cls = ApiKey.DESCRIBE_PRODUCERS, messages.DescribeProducersRequest
    topicId = yield from makeTopic("producers", 3)
    producer = yield from newProducer()
    for sequence in (0, 1):
        records = batch(
            setting.baseMs, b"v", producerId=producer, producerEpoch=0, baseSequence=sequence
        )
        yield produce("fill", 9, "producers", topicId, records, isRecorded=False)
    other = batch(setting.baseMs, b"v", producerId=987_654_321, producerEpoch=4, baseSequence=7)
    yield produce("fill", 9, "producers", topicId, other, isRecorded=False, partition=1)
    yield produce("fill", 9, "producers", topicId, other, isRecorded=False)

    def body(name: str, *partitions: int) -> Any:
        return cls(topics=[cls.TopicRequest(name=name, partitionIndexes=list(partitions))])

    for label, asked in (
        ("three partitions", body("producers", 0, 1, 2)),
        ("an unknown partition", body("producers", 3)),
        ("partition -1", body("producers", -1)),
        ("a partition twice", body("producers", 0, 0)),
        ("no partitions", body("producers")),
        ("an unknown topic", body("producers-none", 0)),
        ("an invalid topic", body("a/b", 0)),
        ("nothing", cls()),
    ):
        yield Ask(label, key, 0, asked)
