"""
What a tuple costs in the instances of a topology: a spout emits words, grouped by fields for four
instances of a bolt, which count them, without threads and connections. At least once, each tuple
has an id, is acknowledged, and comes back to the spout.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pylogbroker.topologies import Bolt, Grouping, Spout, StreamTuple, Topology, TopologyBuilder
from pylogbroker.topologies.api import TopologyContext
from pylogbroker.topologies.messages import BatchEntry
from pylogbroker.topologies.topology import ATLEAST_ONCE, RELIABILITY_MODE
from tests.topologies.instance.instances import Instances

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


class TimedInstances(Instances):
    """
    The instances of the word count, whose turns are timed. What they emit is not kept.

    @ivar spent: seconds of the processor, of the spout and of its bolts.
    """

    def __init__(self, mode: str) -> None:
        super().__init__(wordCount(mode), isThreaded=False)
        self.spent: dict[str, float] = {"spout": 0.0, "bolts": 0.0}
        (self.spoutTask,) = self.tasksOf("words")

    def record(self, entry: BatchEntry) -> None:
        """Nothing: it would grow with each tuple."""

    def turn(self) -> None:
        """A turn of the spout, and turns of the bolts until all is handled."""
        self.timed("spout", self.runners[self.spoutTask].turn)
        self.carry()
        for task in self.tasksOf("counts"):
            while self.timed("bolts", self.runners[task].turn) is not None:
                pass
        self.carry()

    def timed(self, kind: str, call: Callable[[], float | None]) -> float | None:
        """Call, and count what it takes."""
        begun = time.process_time()
        wait = call()
        self.spent[kind] += time.process_time() - begun
        return wait


class InstanceFigures(NamedTuple):
    """Microseconds of the processor for a tuple: in the spout, and in its bolt."""

    spout: float
    bolt: float


def instanceCosts(mode: str, seconds: float) -> InstanceFigures:
    """
    Run a spout and its bolts for some time.

    @raise RuntimeError: a tuple is lost or counted twice.
    """
    instances = TimedInstances(mode)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        instances.turn()
    components: dict[int, Any] = {task: each.component for task, each in instances.runners.items()}
    spout = components.pop(instances.spoutTask)
    counted: Counter[str] = Counter()
    for bolt in components.values():
        counted.update(bolt.counts)
    truth = Counter(VOCABULARY[number % 1_000] for number in range(1, spout.number + 1))
    if counted != truth:
        raise RuntimeError(f"{counted.total()} tuples were counted of {truth.total()}")
    instances.runners[instances.spoutTask].setActive(False)
    instances.runners[instances.spoutTask].turn()
    isOpen = bool(instances.trees[instances.spoutTask])
    if spout.isTracked and (isOpen or spout.ackedCount != spout.number):
        raise RuntimeError(f"{spout.ackedCount} acknowledged of {spout.number}")
    spent = {kind: each * 1e6 / truth.total() for kind, each in instances.spent.items()}
    return InstanceFigures(spent["spout"], spent["bolts"])
