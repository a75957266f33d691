"""
An application that reads records of one topic and writes others to a second, exactly once::

    python -m tests.integration.transformer HOST:PORT NUMBER SEED

Each transaction holds the new records and the position behind those that were read. Some are
aborted on purpose. After an error it ends; whoever has started it starts it again.
"""

from __future__ import annotations

import os
import signal
import sys
from random import Random
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

SOURCE, TARGET, GROUP = "in", "out", "transformers"
BATCH_COUNT = 5
POLL_SECONDS = 0.2
TIMEOUT_SECONDS = 60
STUCK_SECONDS = 15
"""
A transaction that takes longer ends the application. In librdkafka 2.16 the call that commits
offsets in a transaction waits for ever, though all of its requests have been answered, when the
only broker is restarted meanwhile (its issue 5511).
"""

SESSION_MS = 1_500
QUICK = {"reconnect.backoff.max.ms": 200}
"""A broker that was killed is back at once."""

ABORTED_PART = 0.1


def transactionalId(number: int) -> str:
    """Of the application with a number; its successor has the same."""
    return f"transformer-{number}"


def main(address: str, number: int, random: Random) -> None:
    """Never returns."""
    consumer = Consumer(
        {
            **QUICK,
            "bootstrap.servers": address,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": SESSION_MS // 6,
        }
    )
    producer = Producer(
        {
            **QUICK,
            "bootstrap.servers": address,
            "transactional.id": transactionalId(number),
        }
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    consumer.subscribe([SOURCE])
    while True:
        found = [each for each in consumer.consume(BATCH_COUNT, POLL_SECONDS) if not each.error()]
        if found:
            signal.alarm(STUCK_SECONDS)
            _transform(consumer, producer, found, random.random() < ABORTED_PART)
            signal.alarm(0)


def _transform(consumer: Any, producer: Any, found: list[Any], isAborted: bool) -> None:
    first: dict[int, int] = {}
    behind: dict[int, int] = {}
    producer.begin_transaction()
    for each in found:
        first.setdefault(each.partition(), each.offset())
        behind[each.partition()] = each.offset() + 1
        producer.produce(TARGET, each.value(), each.key(), partition=each.partition())
    places = [TopicPartition(SOURCE, *place) for place in behind.items()]
    producer.send_offsets_to_transaction(
        places, consumer.consumer_group_metadata(), TIMEOUT_SECONDS
    )
    if isAborted:
        producer.flush(TIMEOUT_SECONDS)
        producer.abort_transaction(TIMEOUT_SECONDS)
        for place in first.items():
            consumer.seek(TopicPartition(SOURCE, *place))
    else:
        producer.commit_transaction(TIMEOUT_SECONDS)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), Random(int(sys.argv[3])))
    except KafkaException:
        # The clients' destructors could wait for ever for messages that the error holds.
        os._exit(1)
