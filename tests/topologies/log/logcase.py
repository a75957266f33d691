"""
What tests of the log spout and the log bolt share: an instance's side of both, without processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from twisted.internet.task import Clock

from pylogbroker.topologies.api import Component, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.log import LogBolt, LogSpout

C = TypeVar("C", bound=Component)

TURN_COUNT = 10_000
"""Calls of C{nextTuple} until a test fails."""

Emitted = tuple[list[Any], Any]
"""The values of a tuple, and its id."""


class RecordingCollector:
    """
    Keeps what a component emits and acknowledges.
    """

    def __init__(self) -> None:
        self.emitted: list[Emitted] = []
        self.acked: list[StreamTuple] = []
        self.failed: list[StreamTuple] = []

    def emit(
        self,
        values: Sequence[Any],
        stream: str,
        tupleId: Any,
        anchors: Sequence[StreamTuple],
        directTask: int | None,
    ) -> list[int]:
        self.emitted.append((list(values), tupleId))
        return [2]

    def ack(self, tup: StreamTuple) -> None:
        self.acked.append(tup)

    def fail(self, tup: StreamTuple) -> None:
        self.failed.append(tup)

    def take(self) -> list[Emitted]:
        """What was emitted since the last call."""
        emitted, self.emitted = self.emitted, []
        return emitted


class Harness:
    """
    The instance of a component: its collector, its counters, and a clock that the test moves.
    """

    def __init__(self, nowSeconds: float = 1_000_000.0) -> None:
        self.clock = Clock()
        self.clock.advance(nowSeconds)
        self.counters = Counter[str]()
        self.collector = RecordingCollector()

    def start(
        self, component: C, config: Mapping[str, Any], index: int = 0, parallelism: int = 1
    ) -> C:
        """Initialize a component as the instance with an index."""
        component.collector = self.collector
        context = TopologyContext(
            topology="topology-of-test",
            component="log",
            taskId=index + 1,
            taskIndex=index,
            componentTasks={"log": list(range(1, parallelism + 1))},
            streams={},
            seconds=self.clock.seconds,
            random=lambda: 0.0,
            counter=lambda name, n: self.counters.update({name: n}),
        )
        component.initialize(config, context)
        return component

    def turn(self, spout: Spout, isEnough: Callable[[], object]) -> None:
        """Call C{nextTuple} until something holds; the clock moves a little each time."""
        for _turn in range(TURN_COUNT):
            if isEnough():
                return
            spout.nextTuple()
            self.clock.advance(0.01)
        raise AssertionError(f"it did not come about within {TURN_COUNT} calls")

    def takeFrom(self, spout: Spout, n: int) -> list[Emitted]:
        """The next tuples."""
        self.turn(spout, lambda: len(self.collector.emitted) >= n)
        return self.collector.take()

    def valuesFrom(self, spout: Spout, n: int) -> list[Any]:
        """The first value of each of the next tuples."""
        return [values[0] for values, _id in self.takeFrom(spout, n)]


class Values(LogSpout):
    """Emits the values of records only."""

    outputs = ["value"]

    def translate(self, record: Any) -> Sequence[Any] | None:
        return None if record.value == b"skip me" else [record.value]


def tupleOf(values: Mapping[str, Any], id: int = 0) -> StreamTuple:
    """A tuple for a bolt."""
    return StreamTuple(id, "words", "default", 1, list(values.values()), list(values))


def feed(bolt: LogBolt, *tuples: StreamTuple) -> None:
    """Tuples, and a tick tuple behind them."""
    for each in (*tuples, StreamTuple(0, "__system", "__tick", -1, [1], ["seconds"])):
        bolt.process(each)
