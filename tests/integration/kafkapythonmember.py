"""
Programs with kafka-python for L{tests.integration.clusterclients}: a producer of numbered messages,
and a member of a group. They write down what those of L{tests.integration.kafkachaosmember} do.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from random import Random
from typing import Any

import kafka
from kafka.errors import KafkaError

from tests.integration.chaosprogram import Record
from tests.integration.numberedmessages import (
    CLICKS,
    AssignmentRecorder,
    Messages,
    placed,
    start,
    valueName,
)

CLOSE_SECONDS = 150
AGAIN_SECONDS = 0.3
POLL_MS = 60_000
"""
A poll must not end while it joins a group: if the answer to its SyncGroup comes between two polls,
kafka-python 3.0.12 takes itself for joined and never applies the assignment.
"""


def publish(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """Publish with keys until it is C{over}."""
    messages = Messages(options["name"], Random(options["seed"]), record)

    def acknowledged(number: int, found: Any) -> None:
        messages.acknowledged(number, found.topic, found.partition, found.offset)

    def failed(number: int, error: Any) -> None:
        messages.unknown(number, type(error).__name__, error)

    producer = kafka.KafkaProducer(**options["properties"])
    while not over.wait(options["pause"]):
        message = messages.next()
        try:
            sent = producer.send(CLICKS, message.value, message.key)
        except KafkaError as error:
            failed(message.number, error)
            continue
        sent.add_callback(partial(acknowledged, message.number))
        sent.add_errback(partial(failed, message.number))
    producer.flush(CLOSE_SECONDS)
    producer.close(CLOSE_SECONDS)
    messages.end()


class _Listener(AssignmentRecorder, kafka.ConsumerRebalanceListener):
    """Writes down which partitions the member has."""


class _OverError(Exception):
    """Takes the program out of a poll that waits for messages."""


def consume(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """
    Be a member of a group, which commits by time, until it is C{over}. Polls raise errors of lost
    connections; after one it begins anew, as an application does that was started again.
    """

    def end(*_: object) -> None:
        raise _OverError

    signal.signal(signal.SIGTERM, end)
    try:
        while True:
            try:
                _poll(options, record)
            except KafkaError as error:
                record.write("error", type(error).__name__, error)
                record.write("left")
            over.wait(AGAIN_SECONDS)
    except _OverError:
        record.write("left")
        record.write("end", "{}")
        os._exit(0)  # a client that was taken out of its poll cannot be closed


def _poll(options: dict[str, Any], record: Record) -> None:
    """Returns by an error only."""
    consumer = kafka.KafkaConsumer(**options["properties"])
    try:
        consumer.subscribe([options["topic"]], listener=_Listener(record))
        while True:
            for place, records in consumer.poll(timeout_ms=POLL_MS).items():
                for each in records:
                    name = valueName(each.value)
                    record.write("got", placed(place.topic, place.partition), each.offset, name)
    except KafkaError:
        consumer.close()
        raise


if __name__ == "__main__":
    start({"producer": publish, "consumer": consume})
