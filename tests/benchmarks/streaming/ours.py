"""
The jobs as pylogbroker has them, and a loop of a bare consumer and producer without a group:
C{python -m tests.benchmarks.streaming.ours JOB SERVERS TOPIC COUNT COMMIT_SECONDS FOLDER} prints
the processor seconds of its process from the first message to the commit behind the last, the
greatest resident size in MiB, and the changes that were restored.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import Input, Job, Output, Store
from pylogbroker.tasks.serdes import JSON, STRING
from pylogbroker.types import TopicPartition

BARE, STATELESS, WORD_COUNT = "bare", "stateless", "wordcount"
OUT = "ours-out"


class _Begun:
    """When the first message was handled, in seconds of the processor."""

    seconds = 0.0


class PassOn(StreamTask):
    """Sends what it gets."""

    def init(self, config: Any, context: Any) -> None:
        _Begun.seconds = time.process_time()

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        collector.send(OutgoingMessageEnvelope(OUT, envelope.key, envelope.message))


class CountWords(StreamTask):
    """Figure 3 of the paper."""

    def init(self, config: Any, context: Any) -> None:
        self.store = context.getStore("counts")
        _Begun.seconds = time.process_time()

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        word = envelope.key
        self.store.put(word, (self.store.get(word) or 0) + envelope.message)


def jobOf(name: str, topic: str) -> Job:
    """The job that is named."""
    inputs = [Input(topic, STRING, JSON)]
    if name == WORD_COUNT:
        return Job(f"ours-{name}", CountWords, inputs, stores=[Store("counts", STRING, JSON)])
    return Job(f"ours-{name}", PassOn, inputs, [Output(OUT, STRING, JSON)])


async def _runBare(reactor: Any, servers: str, topic: str, count: int) -> None:
    consumer = KafkaConsumer(
        reactor,
        {
            "bootstrap.servers": servers,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        },
    )
    producer = KafkaProducer(reactor, {"bootstrap.servers": servers, "linger.ms": "5"})
    consumer.assign([TopicPartition(topic, 0)])
    done = 0
    while done < count:
        records = consumer.takeMany(500)
        if not records:
            await consumer.wait()
            continue
        _Begun.seconds = _Begun.seconds or time.process_time()
        for each in records:
            await producer.whenReady()
            producer.sendNoWait("bare-out", each.value, each.key)
        done += len(records)
    await producer.flush()
    await consumer.close()
    await producer.close()


async def _run(
    reactor: Any, name: str, servers: str, topic: str, count: str, seconds: str, folder: str
) -> None:
    restored = 0
    if name == BARE:
        await _runBare(reactor, servers, topic, int(count))
    else:
        settings = {
            "bootstrap.servers": servers,
            "state.dir": folder,
            "commit.interval.ms": str(int(float(seconds) * 1000)),
        }
        container = TaskContainer(reactor, jobOf(name, topic), settings, isUntilEnd=True)
        await container.run()
        restored = container.restoredCount
        if not restored and container.handledCount != int(count):
            raise RuntimeError(f"{container.handledCount} messages of {count} were handled")
    used = time.process_time() - _Begun.seconds
    print(used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, restored)


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(_run(reactor, *sys.argv[1:])))
