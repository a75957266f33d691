"""
Where a metrics manager puts metrics, beside the master: a file of JSON lines, a topic, and text for
Prometheus. A module of its own, since which of them there are is a setting.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import msgspec
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.metrics.exposition import Family, Sample, render
from pylogbroker.net.workers import IWorker
from pylogbroker.topologies.messages import Metrics

log = Logger()

WAITING_COUNT_MAX = 100
"""Metrics that wait for the disk or for brokers; further ones are left out."""

_encode = msgspec.json.Encoder().encode


def metricsLine(metrics: Metrics) -> bytes:
    """Metrics as a line of JSON, without the line's end."""
    return _encode({"timeMs": metrics.timeMs, **msgspec.structs.asdict(metrics)})


class IMetricsSink(Protocol):
    """A place for metrics."""

    def take(self, metrics: Metrics) -> None:
        """Metrics of a process. Does not wait, and does not fail."""

    def close(self) -> Deferred[None]:
        """@return: fires when all that was taken is there, or given up."""


class FileSink:
    """
    A file with a line of JSON for each report. When it is full it is renamed, in place of the one
    before: both together have at most twice C{sizeMax} bytes, and one line.
    """

    def __init__(self, worker: IWorker, path: str, sizeMax: int) -> None:
        """
        @param worker: writes; started and stopped by the caller.
        @param sizeMax: bytes of the file.
        """
        self.leftOutCount = 0
        self._worker = worker
        self._path = path
        self._sizeMax = sizeMax
        self._waitingCount = 0
        self._last: Deferred[None] = succeed(None)

    def take(self, metrics: Metrics) -> None:
        """See L{IMetricsSink}."""
        if self._waitingCount >= WAITING_COUNT_MAX:
            self.leftOutCount += 1
            return
        line = metricsLine(metrics) + b"\n"
        self._waitingCount += 1
        self._last = self._worker.submit(lambda: self._write(line))
        self._last.addBoth(self._written)

    def _write(self, line: bytes) -> None:
        with open(self._path, "ab") as file:
            file.write(line)
            size = file.tell()
        if size >= self._sizeMax:
            os.replace(self._path, f"{self._path}.1")

    def _written(self, result: Failure | None) -> None:
        self._waitingCount -= 1
        if isinstance(result, Failure):
            log.warn("Metrics cannot be written: {reason}", reason=result.getErrorMessage())

    def close(self) -> Deferred[None]:
        """See L{IMetricsSink}."""
        return self._last


class TopicSink:
    """A topic of today's Kafka: messages of JSON, by the name of the topology as key."""

    def __init__(self, producer: Any, topic: str, topology: str) -> None:
        """
        @param producer: a L{pylogbroker.producer.kafka.producer.KafkaProducer}, closed with the
            sink.
        """
        self.leftOutCount = 0
        self._producer = producer
        self._topic = topic
        self._key = topology.encode()
        self._waitingCount = 0

    def take(self, metrics: Metrics) -> None:
        """See L{IMetricsSink}."""
        if self._waitingCount >= WAITING_COUNT_MAX:
            self.leftOutCount += 1
            return
        self._waitingCount += 1
        sent = self._producer.send(
            self._topic, metricsLine(metrics), self._key, timestamp=metrics.timeMs
        )
        sent.addBoth(self._sent)

    def _sent(self, result: object) -> None:
        self._waitingCount -= 1
        if isinstance(result, Failure):
            log.warn("Metrics cannot be published: {reason}", reason=result.getErrorMessage())

    def close(self) -> Deferred[None]:
        """See L{IMetricsSink}."""
        closing: Deferred[None] = self._producer.close()
        return closing


class PrometheusSink:
    """The last metrics of each process, as text for Prometheus."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._last: dict[str, Metrics] = {}

    def take(self, metrics: Metrics) -> None:
        """See L{IMetricsSink}."""
        self._last[metrics.source] = metrics

    def text(self) -> bytes:
        """
        The answer to a scrape: one metric, whose label C{name} is the name of the value, since
        authors name values as they like.
        """
        samples = [
            Sample(
                value,
                {
                    "topology": self._topology,
                    "container": str(metrics.container),
                    "source": metrics.source,
                    "component": metrics.component,
                    "name": name,
                },
            )
            for _source, metrics in sorted(self._last.items())
            for name, value in sorted(metrics.values.items())
        ]
        text = "What a process of a topology has counted since it began, or measures."
        return render([Family("pylogbroker_topology_value", text, samples)])

    def close(self) -> Deferred[None]:
        """See L{IMetricsSink}."""
        return succeed(None)
