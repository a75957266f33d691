"""
Programs with confluent-kafka for L{tests.long.replicationchaos}: a producer of numbered messages,
and a member of a group. They write down what those of L{tests.integration.kafkachaosmember} do, so
the same judge reads it. They have no reactor: C{SIGTERM} sets an event.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from functools import partial
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.integration.chaosprogram import Record
from tests.integration.kafkachaosjudge import NO_OFFSET
from tests.integration.kafkachaosmember import BATCH_COUNT, CLICKS, PAUSE_SECONDS, placed

POLL_SECONDS = 0.2
FLUSH_SECONDS = 150.0
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


def consume(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """Be a member of a group until it is C{over}; commits what was handled, and waits for it."""
    consumer = Consumer(options["properties"])
    handled: dict[tuple[str, int], int] = {}

    def commit() -> None:
        positions = [TopicPartition(*place, offset) for place, offset in handled.items()]
        handled.clear()
        if not positions:
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
        value = (message.value() or b"").decode().rpartition(".")[0]
        record.write("got", placed(topic, partition), offset, value)
        handled[topic, partition] = offset + 1
        count += 1
        if count % BATCH_COUNT == 0:
            commit()
    consumer.close()
    record.write("left")
    record.write("end", "{}")


def main() -> None:
    """Run the program that the command line names, in JSON."""
    options = json.loads(sys.argv[1])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    program = {"producer": publish, "consumer": consume}[options["program"]]
    program(options, Record(options["record"]), over)


if __name__ == "__main__":
    main()
