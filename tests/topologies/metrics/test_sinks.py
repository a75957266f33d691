"""
Tests for L{pylogbroker.topologies.metrics.sinks}.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.topologies.messages import Metrics
from pylogbroker.topologies.metrics.sinks import (
    WAITING_COUNT_MAX,
    FileSink,
    PrometheusSink,
    TopicSink,
    metricsLine,
)


def metrics(source: str = "3", **values: float) -> Metrics:
    """Of an instance."""
    return Metrics(2, source, "count", 9, 1_000, values)


class LaterWorker:
    """A worker that works when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def submit(self, work: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        self.waiting.append((work, done))
        return done

    def work(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work, done in waiting:
            try:
                done.callback(work())
            except OSError:
                done.errback()

    def start(self) -> None:
        """It does nothing by itself."""

    def stop(self) -> None:
        """Nothing was started."""


class FileSinkTests(SynchronousTestCase):
    """Lines of JSON."""

    def setUp(self) -> None:
        self.worker = LaterWorker()
        self.path = Path(self.mktemp())

    def test_lines(self) -> None:
        """A line for each report; what is full is renamed, once more over the one before."""
        line = len(metricsLine(metrics(emitted=1))) + 1
        sink = FileSink(self.worker, str(self.path), 2 * line)
        for number in range(5):
            sink.take(metrics(emitted=number))
            self.worker.work()
        old = Path(f"{self.path}.1")
        found = [
            [json.loads(each)["values"]["emitted"] for each in path.read_text().splitlines()]
            for path in (old, self.path)
        ]
        self.assertEqual(found, [[2, 3], [4]])
        self.assertEqual(
            json.loads(self.path.read_text()),
            {
                "timeMs": 1_000,
                "container": 2,
                "source": "3",
                "component": "count",
                "incarnation": 9,
                "values": {"emitted": 4},
            },
        )

    def test_bounded(self) -> None:
        """A slow disk: what is too much is left out and counted."""
        sink = FileSink(self.worker, str(self.path), 1 << 20)
        for _each in range(WAITING_COUNT_MAX + 3):
            sink.take(metrics())
        self.assertEqual(sink.leftOutCount, 3)
        closed = sink.close()
        self.assertNoResult(closed)
        self.worker.work()
        self.successResultOf(closed)
        self.assertEqual(len(self.path.read_text().splitlines()), WAITING_COUNT_MAX)

    def test_failing(self) -> None:
        """A disk that fails: the next one is tried."""
        sink = FileSink(self.worker, str(self.path / "missing"), 1 << 20)
        sink.take(metrics())
        self.worker.work()
        self.path.mkdir()
        sink.take(metrics())
        self.worker.work()
        self.assertEqual(len((self.path / "missing").read_text().splitlines()), 1)


class ScriptedProducer:
    """A producer whose outcomes the test gives."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.outcomes: list[Deferred[None]] = []
        self.closed: Deferred[None] = Deferred()

    def send(self, topic: str, value: bytes, key: bytes, timestamp: int) -> Deferred[None]:
        self.sent.append((topic, json.loads(value), key, timestamp))
        self.outcomes.append(Deferred())
        return self.outcomes[-1]

    def close(self) -> Deferred[None]:
        return self.closed


class TopicSinkTests(SynchronousTestCase):
    """Messages of a topic."""

    def test_messages(self) -> None:
        """Each report is a message; failures are survived; what is too much is left out."""
        producer = ScriptedProducer()
        sink = TopicSink(producer, "metrics", "words")
        sink.take(metrics(emitted=1))
        [(topic, value, key, timestamp)] = producer.sent
        self.assertEqual((topic, key, timestamp), ("metrics", b"words", 1_000))
        self.assertEqual(value["values"], {"emitted": 1})
        producer.outcomes[0].errback(OSError("no broker"))
        for _each in range(WAITING_COUNT_MAX + 1):
            sink.take(metrics())
        self.assertEqual((len(producer.sent), sink.leftOutCount), (WAITING_COUNT_MAX + 1, 1))
        producer.outcomes[1].callback(None)
        sink.take(metrics())
        self.assertEqual(len(producer.sent), WAITING_COUNT_MAX + 2)
        self.assertIs(sink.close(), producer.closed)


class PrometheusSinkTests(SynchronousTestCase):
    """Text for a scrape."""

    def test_text(self) -> None:
        """The last values of each process, with their names as a label."""
        sink = PrometheusSink("words")
        self.assertEqual(sink.text(), b"")
        sink.take(metrics(emitted=1))
        sink.take(Metrics(2, "3", "count", 9, 1_000, {"emitted": 2, 'a"b': 0.5}))
        sink.take(metrics("4", acked=3))
        labels = 'topology="words",container="2",source="{}",component="count",name="{}"'
        self.assertEqual(
            sink.text().decode().splitlines()[2:],
            [
                "pylogbroker_topology_value{" + labels.format("3", 'a\\"b') + "} 0.5",
                "pylogbroker_topology_value{" + labels.format("3", "emitted") + "} 2",
                "pylogbroker_topology_value{" + labels.format("4", "acked") + "} 3",
            ],
        )
        self.successResultOf(sink.close())
