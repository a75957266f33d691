"""
The components of simulated topologies. What they do is a function of what they get, so that the
judge knows of each tuple of a spout what must come of it.

A spout emits numbers. A I{split} makes of each some parts. A I{sink} handles a part; a I{pair}
holds one back until it has another one, and emits both together, anchored to both, to I{last}.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from pylogbroker.topologies.api import Bolt, Spout, StreamTuple, TopologyContext
from tests.simulation.topologies.judge import TopologyJudge


class JudgedSpout(Spout):
    """
    Emits the numbers that are its task's, and those again that have failed.

    @ivar emission: each tuple has an id of its own, also one that is emitted again.
    """

    outputs = ("emission", "partCount", "life", "sequence")

    def __init__(self, judge: TopologyJudge, random: Random) -> None:
        self._judge = judge
        self._random = random

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """What a former life has not had acknowledged is emitted again."""
        self._task = context.taskId
        self._life = self._judge.begins(context.taskId)
        self._todo = deque(self._judge.missing(context.taskId))
        self._sequence = 0

    def nextTuple(self) -> None:
        """Emit one, or none."""
        if self._todo:
            number = self._todo.popleft()
            partCount = number % 4
            emission = self._judge.emits(self._task, self._life, number, partCount)
            self._sequence += 1
            self.emit([emission, partCount, self._life, self._sequence], emission)

    def ack(self, tupleId: Any) -> None:
        """It is done."""
        self._judge.acked(self._life, tupleId)

    def fail(self, tupleId: Any) -> None:
        """Emit it again."""
        self._judge.failed(self._life, tupleId)
        self._todo.append(self._judge.numberOf(tupleId))


class JudgedBolt(Bolt):
    """What the bolts share."""

    def __init__(self, judge: TopologyJudge, random: Random) -> None:
        self._judge = judge
        self._random = random

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """It has no memory of a former life."""
        self._task = context.taskId
        self._component = context.component
        self._life = self._judge.begins(context.taskId)
        self._sequence = 0

    def isTaken(self, tup: StreamTuple, path: Sequence[int]) -> bool:
        """
        Whether to go on with a tuple, and not to fail or forget it.

        @param path: which tuple it is, among those that come of one emission.
        """
        *_, life, sequence = tup.values
        self._judge.handles(self._component, self._task, path, life, sequence, self._life)
        if self._judge.isCalm or not self._judge.isTracked:
            return True
        chance = self._random.random()
        if chance < 0.01:
            self._judge.counts["tuples failed by bolts"] += 1
            self.fail(tup)
        elif chance < 0.013:
            self._judge.counts["tuples forgotten by bolts"] += 1
        return chance >= 0.013

    def finish(self, tup: StreamTuple, path: Sequence[int]) -> None:
        """Acknowledge a tuple."""
        self._judge.finishes(self._component, path)
        self.ack(tup)

    def next(self) -> list[int]:
        """What the next tuple says of its origin."""
        self._sequence += 1
        return [self._life, self._sequence]


class SplitBolt(JudgedBolt):
    """Makes parts."""

    outputs = ("emission", "part", "life", "sequence")

    def process(self, tup: StreamTuple) -> None:
        """Emit the parts, each anchored."""
        emission, partCount = tup.values[:2]
        if self.isTaken(tup, (emission,)):
            for part in range(partCount):
                self.emit([emission, part, *self.next()], anchors=[tup])
            self.finish(tup, (emission,))


class SinkBolt(JudgedBolt):
    """Handles parts."""

    def process(self, tup: StreamTuple) -> None:
        """That is all."""
        path = tup.values[:2]
        if self.isTaken(tup, path):
            self.finish(tup, path)


class PairBolt(JudgedBolt):
    """Emits two parts together; at a tick, also one alone."""

    outputs = ("parts", "life", "sequence")

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """It holds nothing."""
        super().initialize(config, context)
        self._held: list[StreamTuple] = []

    def process(self, tup: StreamTuple) -> None:
        """Hold it, or emit it with the one that is held."""
        if not tup.isTick:
            if not self.isTaken(tup, tup.values[:2]):
                return
            self._held.append(tup)
        if self._held and (tup.isTick or len(self._held) == 2):
            held, self._held = self._held, []
            parts = [each.values[:2] for each in held]
            self.emit([parts, *self.next()], anchors=held)
            for each in held:
                self.finish(each, each.values[:2])


class LastBolt(JudgedBolt):
    """Handles parts that come together."""

    def process(self, tup: StreamTuple) -> None:
        """That is all."""
        parts = tup.values[0]
        if self.isTaken(tup, [number for part in parts for number in part]):
            for part in parts:
                self._judge.finishes(self._component, part)
            self.ack(tup)
