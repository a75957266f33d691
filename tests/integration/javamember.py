"""
Programs with the Java client for L{tests.integration.clusterclients}: a producer of numbered
messages, a member of a group, and an application that copies a topic in transactions. They write
down what those of L{tests.integration.kafkachaosmember} do.

Each is a process that drives, by py4j, clients in one
L{JavaProcess<tests.integration.kafkatools.JavaProcess>} that all of them share.
"""

from __future__ import annotations

import threading
from random import Random
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError

from tests.integration.chaosprogram import Record
from tests.integration.kafkatools import fetchTools
from tests.integration.numberedmessages import CLICKS, Messages, placed, start, valueName

BYTES = "org.apache.kafka.common.serialization.ByteArray"
POLL_MS = 200
CLOSE_SECONDS = 150
AGAIN_SECONDS = 0.3
WRITER = {f"{part}.serializer": f"{BYTES}Serializer" for part in ("key", "value")}
READER = {f"{part}.deserializer": f"{BYTES}Deserializer" for part in ("key", "value")}


def classPath() -> str:
    """The jars of Kafka's tools and client."""
    return ":".join(map(str, sorted(fetchTools().glob("*.jar"))))


class _Java:
    """The classes that the programs need."""

    def __init__(self, port: int) -> None:
        parameters = GatewayParameters(port=port, auto_convert=True)
        jvm: Any = JavaGateway(gateway_parameters=parameters).jvm
        kafka = jvm.org.apache.kafka
        self._clients = kafka.clients
        self.record = kafka.clients.producer.ProducerRecord
        self.offset = kafka.clients.consumer.OffsetAndMetadata
        self.duration = jvm.java.time.Duration

    def producer(self, properties: dict[str, Any]) -> Any:
        return self._clients.producer.KafkaProducer({**WRITER, **properties})

    def consumer(self, properties: dict[str, Any]) -> Any:
        return self._clients.consumer.KafkaConsumer({**READER, **properties})

    def poll(self, consumer: Any) -> list[Any]:
        return list(consumer.poll(self.duration.ofMillis(POLL_MS)).iterator())


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).replace("\n", " ")


def publish(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """Publish with keys until it is C{over}."""
    messages = Messages(options["name"], Random(options["seed"]), record)
    java = _Java(options["java"])
    producer = java.producer(options["properties"])
    waiting: dict[int, Any] = {}

    def look() -> None:
        for number, sent in [*waiting.items()]:
            if not sent.isDone():
                return  # those behind it are later
            del waiting[number]
            try:
                found = sent.get()
            except Py4JJavaError as error:
                messages.unknown(number, "Java", _reason(error))
            else:
                messages.acknowledged(number, found.topic(), found.partition(), found.offset())

    while not over.wait(options["pause"]):
        message = messages.next()
        made = java.record(CLICKS, message.key, message.value)
        waiting[message.number] = producer.send(made)
        look()
    producer.close(java.duration.ofSeconds(CLOSE_SECONDS))
    while waiting:
        look()
    messages.end()


class _Tenures:
    """
    Writes down which partitions a member has; asked after each poll, since a listener would need
    calls from Java.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._generation = -1
        self._places: set[str] = set()

    def look(self, consumer: Any) -> None:
        found = consumer.assignment()
        places = {placed(each.topic(), each.partition()) for each in found}
        generation = consumer.groupMetadata().generationId()
        if places != self._places or generation != self._generation:
            if self._places:
                self._record.write("revoked", ",".join(sorted(self._places)))
            self._generation, self._places = generation, places
            if places:
                self._record.write("assigned", ",".join(sorted(places)))


def consume(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """Be a member of a group, which commits by time, until it is C{over}."""
    java = _Java(options["java"])
    consumer = java.consumer(options["properties"])
    consumer.subscribe([options["topic"]])
    tenures = _Tenures(record)
    while not over.is_set():
        found = java.poll(consumer)
        tenures.look(consumer)
        for each in found:
            place = placed(each.topic(), each.partition())
            record.write("got", place, each.offset(), valueName(each.value()))
    consumer.close()
    record.write("left")
    record.write("end", "{}")


def copy(options: dict[str, Any], record: Record, over: threading.Event) -> None:
    """
    Copy L{CLICKS}, partition by partition, in transactions, until it is C{over}. After an error it
    begins anew, as an application does that was started again.
    """
    java, target = _Java(options["java"]), options["target"]
    while not over.is_set():
        producer = java.producer(options["producer"])
        consumer = java.consumer(options["consumer"])
        try:
            producer.initTransactions()
            consumer.subscribe([CLICKS])
            while not over.wait(options["pause"]):
                found = consumer.poll(java.duration.ofMillis(POLL_MS))
                if found.isEmpty():
                    continue
                producer.beginTransaction()
                positions = {}
                for place in found.partitions():
                    partition, records = place.partition(), list(found.records(place))
                    for each in records:
                        made = java.record(target, partition, each.key(), each.value())
                        producer.send(made)
                    positions[place] = java.offset(records[-1].offset() + 1)
                producer.sendOffsetsToTransaction(positions, consumer.groupMetadata())
                producer.commitTransaction()
                record.write("copied", len(positions))
        except Py4JJavaError as error:
            record.write("error", "Java", _reason(error))
        finally:
            for each in (consumer, producer):
                try:
                    each.close()
                except Py4JJavaError as error:
                    record.write("closing", "Java", _reason(error))
        if not over.is_set():
            over.wait(AGAIN_SECONDS)
    record.write("end", "{}")


if __name__ == "__main__":
    start({"producer": publish, "consumer": consume, "copier": copy})
