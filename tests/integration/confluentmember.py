"""
Programs with confluent-kafka for L{tests.long.replicationchaos} and
L{tests.integration.clusterclients}: producers of numbered messages, a member of a group, and an
application that copies a topic in transactions. They write down what those of
L{tests.integration.kafkachaosmember} do, so the same judge reads it. They have no reactor:
C{SIGTERM} sets an event.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import Counter
from functools import partial
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.integration.chaosprogram import Record
from tests.integration.kafkachaosjudge import NO_OFFSET
from tests.integration.numberedmessages import (
    BATCH_COUNT,
    CLICKS,
    PAUSE_SECONDS,
    Messages,
    placed,
    start,
    valueName,
)

POLL_SECONDS = 0.2
FLUSH_SECONDS = 150.0
STUCK_SECONDS = 8
"""
In librdkafka 2.16 the call that commits offsets in a transaction waits for ever when the group's
coordinator has been away (its issue 5511): a broker that is not in the metadata any more is given
up, and stays the coordinator.
"""
LEAVE_SECONDS = 5
"""A group's coordinator may be away just then; the session ends by itself."""
_COUNTERS = {"ok": "writtenCount", "failed": "failedCount", "unknown": "unknownCount"}


def publish(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """Publish without keys, to one partition after another, until it is C{over}."""
    random = Random(options["seed"])
    producer = Producer(options["properties"])
    told: Counter[str] = Counter()

    def delivered(number: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            place = placed(message.topic(), message.partition())
            offset = message.offset()  # None: the broker had stored the batch before
            record.write("ok", number, place, NO_OFFSET if offset is None else offset)
        else:
            record.write("unknown", number, error.name(), error.str())
        told["ok" if error is None else "unknown"] += 1

    number = 0
    while not over.is_set():
        for _message in range(random.randrange(1, 9)):
            value = f"{options['name']}.{number}.0.{'x' * random.randrange(200)}".encode()
            record.write("sent", number)
            producer.produce(
                CLICKS,
                value,
                partition=number % options["partitions"],
                on_delivery=partial(delivered, number),
            )
            number += 1
        producer.poll(0)
        over.wait(random.uniform(*options.get("pauseSeconds", PAUSE_SECONDS)))
    left = producer.flush(FLUSH_SECONDS)
    if left:
        record.write("trouble", "flush", f"{left} messages without an outcome")
    record.write("end", json.dumps({name: told[word] for word, name in _COUNTERS.items()}))


def publishByKey(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """Publish with keys until it is C{over}."""
    messages = Messages(options["name"], Random(options["seed"]), record)
    producer = Producer(options["properties"])

    def delivered(number: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            found = message.topic(), message.partition(), message.offset()
            messages.acknowledged(number, *found)
        else:
            messages.unknown(number, error.name(), error.str())

    while not over.wait(options["pause"]):
        number, key, value = messages.next()
        producer.produce(CLICKS, value, key, on_delivery=partial(delivered, number))
        producer.poll(0)
    producer.flush(FLUSH_SECONDS)
    messages.end()


def consume(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """
    Be a member of a group until it is C{over}; with C{enable.auto.commit=False} it commits what was
    handled, and waits for it.
    """
    isByHand = options["properties"].get("enable.auto.commit") is False
    consumer = Consumer(options["properties"])
    handled: dict[tuple[str, int], int] = {}

    def commit() -> None:
        positions = [TopicPartition(*place, offset) for place, offset in handled.items()]
        handled.clear()
        if not positions or not isByHand:
            return
        try:
            done = consumer.commit(offsets=positions, asynchronous=False) or []
        except KafkaException as error:
            record.write("error", "commit", error)
            return
        for each in done:
            if each.error is None:
                record.write("committed", placed(each.topic, each.partition), each.offset)
            else:
                record.write("error", "commit", each.error)

    def tell(word: str, partitions: list[TopicPartition]) -> None:
        record.write(word, ",".join(placed(each.topic, each.partition) for each in partitions))

    def assigned(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tell("assigned", partitions)

    def revoked(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        commit()
        tell("revoked", partitions)

    def lost(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
        handled.clear()
        tell("lost", partitions)

    consumer.subscribe([options["topic"]], on_assign=assigned, on_revoke=revoked, on_lost=lost)
    count = 0
    while not over.is_set():
        message = consumer.poll(POLL_SECONDS)
        if message is None:
            commit()
            continue
        error = message.error()
        if error is not None:
            record.write("error", error.name(), error.str())
            continue
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None and partition is not None and offset is not None
        record.write("got", placed(topic, partition), offset, valueName(message.value()))
        handled[topic, partition] = offset + 1
        count += 1
        if count % BATCH_COUNT == 0:
            commit()
    consumer.close()
    record.write("left")
    record.write("end", "{}")


def copy(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """
    Copy L{CLICKS}, partition by partition, in transactions, until it is C{over}. After an error it
    begins anew, as an application does that was started again. So it does where a call does not
    return (L{STUCK_SECONDS}): it leaves the group, so that its next process need not wait until the
    session is over, and starts.
    """

    isStuck = threading.Event()

    def startAgain() -> None:
        isStuck.set()
        record.write("error", "copy", f"a transaction has taken {STUCK_SECONDS} s")
        leaving = threading.Thread(target=consumer.close, daemon=True)
        leaving.start()
        leaving.join(LEAVE_SECONDS)
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.argv[1:]])

    while not over.is_set():
        producer, consumer = Producer(options["producer"]), Consumer(options["consumer"])
        try:
            producer.init_transactions()
            consumer.subscribe([CLICKS])
            while not over.wait(options["pause"]):
                found = [
                    each for each in consumer.consume(BATCH_COUNT, POLL_SECONDS) if not each.error()
                ]
                if found:
                    watchdog = threading.Timer(STUCK_SECONDS, startAgain)
                    watchdog.start()
                    try:
                        _transact(producer, consumer, options["target"], found)
                    finally:
                        watchdog.cancel()
                        if isStuck.is_set():
                            threading.Event().wait()  # until then: its consumer is closed
                    record.write("copied", len(found))
        except KafkaException as error:
            record.write("error", "copy", error)
        consumer.close()
        if not over.is_set():
            over.wait(POLL_SECONDS)
    record.write("end", "{}")


def _transact(producer: Producer, consumer: Consumer, target: str, found: list[Any]) -> None:
    behind: dict[int, int] = {}
    producer.begin_transaction()
    for each in found:
        behind[each.partition()] = each.offset() + 1
        producer.produce(target, each.value(), each.key(), partition=each.partition())
    places = [TopicPartition(CLICKS, *place) for place in behind.items()]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata())
    producer.commit_transaction()


if __name__ == "__main__":
    start({"producer": publish, "keyproducer": publishByKey, "consumer": consume, "copier": copy})
