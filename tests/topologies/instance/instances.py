"""
All instances of a topology in this process: real runners, whose entries are carried by hand, with
an acker for each spout. What a component emits is recorded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from random import Random
from threading import Event
from typing import Any

import msgspec

from pylogbroker.topologies.acktrees import AckTrees
from pylogbroker.topologies.api import Bolt, Grouping, StreamTuple
from pylogbroker.topologies.instance.collectors import EncodedEntry
from pylogbroker.topologies.instance.runners import Runner, RunnerOutput, newRunner
from pylogbroker.topologies.messages import (
    ACKED,
    ACKS,
    FAILED,
    FAILS,
    ROOTS,
    TUPLES,
    BatchEntry,
    decodeBatch,
    decodeNumbers,
    encodeBatch,
    encodeNumbers,
)
from pylogbroker.topologies.packings import packRoundRobin
from pylogbroker.topologies.topology import ComponentSpec, Resources, StreamId, Topology


class Sink(Bolt):
    """Has what it gets recorded, since all that is emitted to it is."""

    isAutoAcked = True

    def process(self, tup: StreamTuple) -> None:
        """Nothing more."""


def withSink(topology: Topology, *streams: StreamId, kind: type[Bolt] = Sink) -> Topology:
    """A topology with a bolt more, which gets some streams: what has no receiver is not sent."""
    inputs = dict.fromkeys(streams, Grouping.SHUFFLE)
    sink = ComponentSpec("sink", False, kind, 1, {}, {}, inputs, Resources())
    return topology._replace(components={**topology.components, "sink": sink})


class Instances:
    """
    The instances of a topology, at least once or at most once as it says.

    @ivar emitted: the values that each component emitted on each stream to each task.
    @ivar acked: how many trees of each spout's task were completed.
    @ivar failed: how many have failed.
    @ivar trees: the acker of each spout's task.
    """

    def __init__(self, topology: Topology, isThreaded: bool) -> None:
        """@param isThreaded: whether components may call us from threads, as in real instances."""
        self.emitted: dict[tuple[str, str, int], list[list[Any]]] = defaultdict(list)
        self.acked: dict[int, int] = defaultdict(int)
        self.failed: dict[int, int] = defaultdict(int)
        self.trees: dict[int, AckTrees] = defaultdict(AckTrees)
        self._sent: list[EncodedEntry] = []
        self._number = 0
        self._woken = Event()
        self._isTracked = topology.options.isAtLeastOnce
        packing = packRoundRobin(topology, 1)
        self._components = {each.task: each.component for each in packing.instances}
        output = RunnerOutput(
            lambda entries, number: self._sent.extend(entries),
            lambda: True,
            self.report,
            self._woken.set if isThreaded else None,
        )
        self.runners: dict[int, Runner] = {
            task: newRunner(topology, packing, task, output, time.monotonic, Random(task))
            for task in self._components
        }
        for runner in self.runners.values():
            runner.setActive(True)

    def tasksOf(self, component: str) -> list[int]:
        """The tasks of a component."""
        return [task for task, each in self._components.items() if each == component]

    def report(self, text: str) -> None:
        """An instance reports an error that it survives."""
        raise RuntimeError(text)

    def values(self, component: str, stream: str = "default") -> list[list[Any]]:
        """All that a component has emitted on a stream."""
        return [
            values
            for (name, its, _task), tuples in self.emitted.items()
            if (name, its) == (component, stream)
            for values in tuples
        ]

    def countOf(self, component: str) -> int:
        """How many tuples a component has emitted, on all streams."""
        return sum(
            len(tuples)
            for (name, _stream, _task), tuples in self.emitted.items()
            if name == component
        )

    def run(self, isDone: Callable[[], bool]) -> None:
        """Turns of all instances, until it is done."""
        while not isDone():
            self._woken.clear()
            waits = [runner.turn(100) for runner in self.runners.values()]
            if not self.carry():
                self._woken.wait(min((each for each in waits if each is not None), default=0.5))

    def close(self) -> None:
        """Close all components."""
        for runner in self.runners.values():
            runner.close()
            runner.turn()

    def carry(self) -> bool:
        """
        Bring what the instances have sent to its receivers.

        @return: whether there was anything.
        """
        sent, self._sent = self._sent, []
        arrived: dict[int, list[BatchEntry]] = defaultdict(list)
        for entry in decodeBatch(encodeBatch(1, [each.data for each in sent])[4:]):
            kind, task, amount, data = entry
            trees = self.trees[task]
            if kind == TUPLES:
                self.record(entry)
                arrived[task].append(BatchEntry(kind, task, amount, bytes(data)))
            elif kind == ROOTS:
                trees.announce(decodeNumbers(data))
            else:
                assert kind in (ACKS, FAILS)
                numbers = decodeNumbers(data)
                ended = trees.acknowledge(numbers) if kind == ACKS else trees.fail(numbers)
                (self.acked if kind == ACKS else self.failed)[task] += len(ended)
                kind = ACKED if kind == ACKS else FAILED
                arrived[task].append(BatchEntry(kind, task, len(ended), encodeNumbers(ended)))
        for task, entries in arrived.items():
            self._number += 1
            self.runners[task].take(self._number, entries)
        return bool(sent)

    def record(self, entry: BatchEntry) -> None:
        """Keep what a component emits."""
        source, stream, tuples = msgspec.msgpack.decode(entry.data)
        self.emitted[self._components[source], stream, entry.task] += (
            [values for _roots, values in tuples] if self._isTracked else tuples
        )
