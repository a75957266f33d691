"""
What a tuple costs in the instances of a topology: a spout emits words, grouped by fields for four
instances of a bolt, which count them, without threads and connections. At least once, each tuple
has an id, is acknowledged, and comes back to the spout.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from pylogbroker.topologies import Bolt, Grouping, Spout, StreamTuple, Topology, TopologyBuilder
from pylogbroker.topologies.acktrees import AckTrees
from pylogbroker.topologies.api import TopologyContext
from pylogbroker.topologies.instance.collectors import EncodedEntry
from pylogbroker.topologies.instance.runners import RunnerOutput, newRunner
from pylogbroker.topologies.messages import (
    ACKED,
    ACKS,
    ROOTS,
    TUPLES,
    BatchEntry,
    decodeBatch,
    decodeNumbers,
    encodeBatch,
    encodeNumbers,
)
from pylogbroker.topologies.packings import packRoundRobin
from pylogbroker.topologies.topology import ATLEAST_ONCE, RELIABILITY_MODE

VOCABULARY = [f"word-{number}" for number in range(1_000)]
BOLT_COUNT = 4


class Words(Spout):
    """Emits words, with ids if they are tracked."""

    outputs = ["word", "number"]

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Reads whether its tuples are tracked."""
        self.isTracked = config[RELIABILITY_MODE] == ATLEAST_ONCE
        self.number = 0
        self.ackedCount = 0

    def nextTuple(self) -> None:
        """Emits one."""
        self.number = number = self.number + 1
        self.emit([VOCABULARY[number % 1_000], number], number if self.isTracked else None)

    def ack(self, tupleId: int) -> None:
        """Counts."""
        self.ackedCount += 1


class Counts(Bolt):
    """Counts words."""

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Begins with none."""
        self.counts: dict[str, int] = defaultdict(int)

    def process(self, tup: StreamTuple) -> None:
        """Counts one."""
        self.counts[tup.values[0]] += 1
        self.ack(tup)


def wordCount(mode: str) -> Topology:
    """The topology, in a mode of reliability."""
    builder = TopologyBuilder("words", {RELIABILITY_MODE: mode})
    builder.setSpout("words", Words)
    builder.setBolt("counts", Counts, BOLT_COUNT, {"words": Grouping.fields("word")})
    return builder.build()


class InstancePair:
    """A spout and its bolts, whose entries are carried by hand: a stream manager without cost."""

    def __init__(self, mode: str) -> None:
        topology = wordCount(mode)
        packing = packRoundRobin(topology, 1)
        self.spent: dict[str, float] = {"spout": 0.0, "bolts": 0.0}
        self.trees = AckTrees()
        self.number = 0
        self.sent: list[EncodedEntry] = []
        output = RunnerOutput(
            lambda entries, number: self.sent.extend(entries), lambda: True, self.fail
        )
        self.runners = {
            each.task: newRunner(
                topology, packing, each.task, output, time.monotonic, Random(each.task)
            )
            for each in packing.instances
        }
        (self.spoutTask,) = (each.task for each in packing.instances if each.component == "words")
        self.runners[self.spoutTask].setActive(True)

    def fail(self, text: str) -> None:
        """An instance reports an error."""
        raise RuntimeError(text)

    def turn(self) -> None:
        """A turn of the spout, and turns of the bolts until all is handled."""
        self.timed("spout", self.runners[self.spoutTask].turn)
        self.carry()
        for task, runner in self.runners.items():
            if task != self.spoutTask:
                while self.timed("bolts", runner.turn) is not None:
                    pass
        self.carry()

    def timed(self, kind: str, call: Callable[[], float | None]) -> float | None:
        """Call, and count what it takes."""
        begun = time.process_time()
        wait = call()
        self.spent[kind] += time.process_time() - begun
        return wait

    def carry(self) -> None:
        """Bring what was sent to whom it is for."""
        sent, self.sent = self.sent, []
        arrived: dict[int, list[BatchEntry]] = defaultdict(list)
        for entry in decodeBatch(encodeBatch(1, [each.data for each in sent])[4:]):
            if entry.kind == ROOTS:
                self.trees.announce(decodeNumbers(entry.data))
            elif entry.kind == ACKS:
                done = self.trees.acknowledge(decodeNumbers(entry.data))
                data = encodeNumbers(done)
                arrived[entry.task].append(BatchEntry(ACKED, entry.task, len(done), data))
            elif entry.kind == TUPLES:
                arrived[entry.task].append(entry)
        for task, entries in arrived.items():
            self.number += 1
            self.runners[task].take(self.number, entries)


class InstanceFigures(NamedTuple):
    """Microseconds of the processor for a tuple: in the spout, and in its bolt."""

    spout: float
    bolt: float


def instanceCosts(mode: str, seconds: float) -> InstanceFigures:
    """
    Run a spout and its bolts for some time.

    @raise RuntimeError: a tuple is lost or counted twice.
    """
    pair = InstancePair(mode)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pair.turn()
    components: dict[int, Any] = {task: each.component for task, each in pair.runners.items()}
    spout = components.pop(pair.spoutTask)
    counted: Counter[str] = Counter()
    for bolt in components.values():
        counted.update(bolt.counts)
    truth = Counter(VOCABULARY[number % 1_000] for number in range(1, spout.number + 1))
    if counted != truth:
        raise RuntimeError(f"{counted.total()} tuples were counted of {truth.total()}")
    pair.runners[pair.spoutTask].setActive(False)
    pair.runners[pair.spoutTask].turn()
    if spout.isTracked and (pair.trees or spout.ackedCount != spout.number):
        raise RuntimeError(f"{spout.ackedCount} acknowledged of {spout.number}")
    spent = {kind: each * 1e6 / truth.total() for kind, each in pair.spent.items()}
    return InstanceFigures(spent["spout"], spent["bolts"])
