"""Tests of streams between instances: each grouping, over three simulated containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.topology import StreamId, TopologyBuilder

COUNT = 120
GROUPINGS = {
    "shuffle": Grouping.SHUFFLE,
    "fields": Grouping.fields("key"),
    "all": Grouping.ALL,
    "global": Grouping.GLOBAL,
    "none": Grouping.NONE,
    "direct": Grouping.DIRECT,
    "local": Grouping.LOCAL_OR_SHUFFLE,
}


class Ends:
    """A custom grouping: the first task, and the last one."""

    def prepare(self, context: TopologyContext, stream: str, targetTasks: Sequence[int]) -> None:
        """Keep the tasks."""
        self.tasks = targetTasks

    def chooseTasks(self, values: Sequence[Any]) -> Sequence[int]:
        """Both."""
        return [self.tasks[0], self.tasks[-1]]


class Keys(Spout):
    """Emits numbers with keys, on a stream for each grouping."""

    outputs = {name: ["key", "number"] for name in (*GROUPINGS, "custom")}

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Begins at 0."""
        self.context, self.number, self.isDone = context, 0, Counter[Any]()

    def nextTuple(self) -> None:
        """Emits one on each stream."""
        if self.number < COUNT:
            values = [f"key-{self.number % 10}", [self.context.taskId, self.number]]
            tasks = self.context.componentTasks["direct"]
            for name in self.outputs:
                task = tasks[self.number % len(tasks)] if name == "direct" else None
                self.emit(values, (name, self.number), name, task)
            self.number += 1

    def ack(self, tupleId: Any) -> None:
        """Counts."""
        self.isDone[tupleId] += 1


class Keep(Bolt):
    """Keeps what it gets."""

    isAutoAcked = True

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Begins with nothing."""
        self.context = context
        self.got: list[tuple[int, int]] = []
        self.keys: set[str] = set()

    def process(self, tup: StreamTuple) -> None:
        """Keeps one."""
        self.got.append((tup["number"][0], tup["number"][1]))
        self.keys.add(tup["key"])


class DeliveryTests(SynchronousTestCase):
    """Who gets what, and in which order."""

    def started(self, mode: str) -> TopologySimulator:
        """Run two spouts with a bolt of three instances for each grouping."""
        builder = TopologyBuilder("delivery", {"topology.reliability.mode": mode})
        builder.setSpout("keys", Keys, 2)
        for name, grouping in {**GROUPINGS, "custom": Grouping.custom(Ends)}.items():
            builder.setBolt(name, Keep, 3, {StreamId("keys", name): grouping})
        simulator = TopologySimulator(builder.build(), 3)
        simulator.advance(10)
        self.assertEqual(simulator.failures, [])
        return simulator

    def test_groupings(self) -> None:
        """Each bolt gets what its grouping says, once, and in order from each spout."""
        for mode in ("ATMOST_ONCE", "ATLEAST_ONCE"):
            simulator = self.started(mode)
            spouts: Any = simulator.components("keys")
            sent = {(each.context.taskId, number) for each in spouts for number in range(COUNT)}
            for spout in spouts:
                self.assertEqual(set(spout.isDone.values()), {1})
                self.assertEqual(len(spout.isDone), COUNT * len(Keys.outputs))
            bolts: dict[str, Any] = {name: simulator.components(name) for name in Keys.outputs}
            for name, each in bolts.items():
                for bolt in each:
                    for task in {task for task, _ in bolt.got}:
                        numbers = [number for got, number in bolt.got if got == task]
                        self.assertEqual(numbers, sorted(set(numbers)), (mode, name))
                total = Counter(number for bolt in each for number in bolt.got)
                wanted = {"all": 3, "custom": 2}.get(name, 1)
                self.assertEqual(total, dict.fromkeys(sent, wanted), (mode, name))
            counts = {name: [len(bolt.got) for bolt in each] for name, each in bolts.items()}
            third = 2 * COUNT // 3
            self.assertEqual(counts["shuffle"], [third] * 3)
            self.assertEqual(counts["none"], [third] * 3)
            self.assertEqual(counts["direct"], [third] * 3)
            self.assertEqual(counts["global"], [2 * COUNT, 0, 0])
            self.assertEqual(counts["custom"], [2 * COUNT, 0, 2 * COUNT])
            keys = [bolt.keys for bolt in bolts["fields"]]
            self.assertEqual(sum(map(len, keys)), len(set.union(*keys)))
            containers = {
                instance.task: container.number
                for container in simulator.packing.containers
                for instance in container.instances
            }
            for bolt in bolts["local"]:
                for task, _ in bolt.got:
                    self.assertEqual(containers[task], containers[bolt.context.taskId])
