"""
What happens, and what is lost, when a process or a link of a topology dies: each row of the table
in C{docs/topologies.md}, in both modes, in the simulator. C{tests.integration.test_topologies}
kills real processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.topology import ATLEAST_ONCE, ATMOST_ONCE, Topology, TopologyBuilder

SPOUT, NEAR, FAR = 1, 2, 3
"""Tasks, and the containers that have them."""

MESSAGE_SECONDS = 8
"""The time-out of messages."""


class Diary:
    """
    What spout and bolts have done, over all lives of their processes.

    @ivar emitted: numbers, in their order.
    @ivar handled: by task, how often each number.
    @ivar ends: when a number was acknowledged or failed, and which of it; the last one.
    @ivar lives: how many objects each task has had.
    """

    def __init__(self) -> None:
        self.emitted: list[int] = []
        self.handled: dict[int, Counter[int]] = {NEAR: Counter(), FAR: Counter()}
        self.ends: dict[int, tuple[float, str]] = {}
        self.counts: Counter[str] = Counter()
        self.lives: Counter[int] = Counter()
        self.isEnded = False


class NumberSpout(Spout):
    """Emits numbers to both bolts."""

    outputs = ("number",)

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """A new life."""
        self.diary.lives[context.taskId] += 1
        self.seconds = context.seconds

    def nextTuple(self) -> None:
        """The next one."""
        if not self.diary.isEnded:
            number = len(self.diary.emitted)
            self.diary.emitted.append(number)
            self.emit([number], number)

    def ack(self, tupleId: Any) -> None:
        """Note it."""
        self._end(tupleId, "acked")

    def fail(self, tupleId: Any) -> None:
        """Note it."""
        self._end(tupleId, "failed")

    def _end(self, number: int, what: str) -> None:
        if number in self.diary.ends:
            raise ValueError(f"{number} is {what}, and was {self.diary.ends[number]}")
        self.diary.ends[number] = self.seconds(), what
        self.diary.counts[what] += 1


class NoteBolt(Bolt):
    """Notes numbers."""

    isAutoAcked = True

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """A new life."""
        self.diary.lives[context.taskId] += 1
        self.task = context.taskId

    def process(self, tup: StreamTuple) -> None:
        """Note it."""
        self.diary.handled[self.task][tup["number"]] += 1


def numbers(mode: str, diary: Diary) -> Topology:
    """A spout and two bolts, each of which gets all of its tuples."""
    config = {
        "topology.reliability.mode": mode,
        "topology.message.timeout.secs": MESSAGE_SECONDS,
        "topology.max.spout.pending": 10_000,
    }
    builder = TopologyBuilder("numbers", config)
    builder.setSpout("spout", partial(NumberSpout, diary), outputs=NumberSpout.outputs)
    for name in ("near", "far"):
        builder.setBolt(name, partial(NoteBolt, diary), 1, {"spout": Grouping.SHUFFLE})
    return builder.build()


class DeathTests(SynchronousTestCase):
    """Something dies, and the topology goes on by itself."""

    def run_(self, mode: str, die: Callable[[TopologySimulator], object]) -> Diary:
        """
        A topology over three containers, a hundred tuples a second: something dies after two
        seconds, and what does not come again in eight more is lost.
        """
        diary = self.diary = Diary()
        service = {"spout": 0.01, "far": 0.002}
        topology = numbers(mode, diary)
        with TopologySimulator(topology, 3, serviceSeconds=service) as simulator:
            simulator.advance(2)
            self.assertGreater(len(diary.emitted), 150)
            self.diedAt = simulator.instances[SPOUT].process.seconds()
            die(simulator)
            simulator.advance(8)
            diary.isEnded = True
            simulator.advance(MESSAGE_SECONDS * 2.5)
            self.assertEqual(simulator.failures, [])
            self.reported = sum(
                value
                for manager in simulator.streamManagers.values()
                for name, value in manager.metricValues().items()
                if name.startswith(("tuples.lost.", "tuples.dropped."))
            )
        for task in (NEAR, FAR):
            self.assertEqual(max(diary.handled[task].values()), 1)  # none ever twice
            last = diary.emitted[-1]
            self.assertEqual(diary.handled[task][last], 1)  # it goes on
        return diary

    def lost(self, task: int) -> list[int]:
        """The numbers that a bolt did not get."""
        return [each for each in self.diary.emitted if not self.diary.handled[task][each]]

    def failed(self) -> list[int]:
        """The numbers that have failed."""
        return [each for each, (_, what) in self.diary.ends.items() if what == "failed"]

    def checkTold(self) -> None:
        """
        At least once, each number has come to an end, and what a bolt has not got is none that was
        acknowledged.
        """
        self.assertEqual(sorted(self.diary.ends), self.diary.emitted)
        self.assertLessEqual(set(self.lost(NEAR) + self.lost(FAR)), set(self.failed()))

    # -- an instance of a bolt

    def killBolt(self, simulator: TopologySimulator) -> None:
        """Kill it in the middle of its work."""
        simulator.killInstance(FAR)

    def test_boltAtMostOnce(self) -> None:
        """What it had, and what was on its way to it, is lost; nothing else is."""
        self.run_(ATMOST_ONCE, self.killBolt)
        self.assertEqual(self.lost(NEAR), [])
        self.assertLessEqual(len(self.lost(FAR)), self.reported)
        self.assertLess(len(self.lost(FAR)), 10)  # what comes while it is away waits
        self.assertEqual(self.diary.lives, {SPOUT: 1, NEAR: 1, FAR: 2})

    def test_boltAtLeastOnce(self) -> None:
        """What it had fails at its time-out."""
        self.run_(ATLEAST_ONCE, self.killBolt)
        self.checkTold()
        self.assertTrue(self.failed())
        for number in self.failed():
            seconds = self.diary.ends[number][0] - self.diedAt
            self.assertGreater(seconds, MESSAGE_SECONDS - 1)
            self.assertLess(seconds, MESSAGE_SECONDS * 1.25 + 1)

    # -- an instance of a spout

    def test_spoutAtMostOnce(self) -> None:
        """What it has handed over is handled."""
        self.run_(ATMOST_ONCE, lambda simulator: simulator.killInstance(SPOUT))
        self.assertEqual(self.diary.lives[SPOUT], 2)
        self.assertLess(len(self.lost(FAR)), 2)

    def test_spoutAtLeastOnce(self) -> None:
        """The new process hears nothing of what the former one has emitted."""
        diary = self.run_(ATLEAST_ONCE, lambda simulator: simulator.killInstance(SPOUT))
        silent = [each for each in diary.emitted if each not in diary.ends]
        self.assertTrue(silent)
        self.assertLess(len(silent), 10)
        self.assertEqual(diary.counts["failed"], 0)

    # -- a stream manager

    def test_managerAtMostOnce(self) -> None:
        """What was in it is lost, little; what comes while it is away waits."""
        for container in (SPOUT, FAR):
            self.run_(
                ATMOST_ONCE,
                partial(TopologySimulator.killStreamManager, container=container),
            )
            self.assertLess(len(self.lost(FAR)), 10)
            self.assertEqual(self.diary.lives, {SPOUT: 1, NEAR: 1, FAR: 1})

    def test_spoutsManagerAtLeastOnce(self) -> None:
        """All that was pending fails as soon as the spout sees another stream manager."""
        self.run_(ATLEAST_ONCE, lambda simulator: simulator.killStreamManager(SPOUT))
        self.checkTold()
        self.assertTrue(self.failed())
        for number in self.failed():
            self.assertLess(self.diary.ends[number][0] - self.diedAt, 3)

    def test_boltsManagerAtLeastOnce(self) -> None:
        """What was in it fails at its time-out."""
        self.run_(ATLEAST_ONCE, lambda simulator: simulator.killStreamManager(FAR))
        self.checkTold()
        self.assertEqual(self.lost(NEAR), [])

    # -- the master

    def test_master(self) -> None:
        """Nothing is lost, and nothing waits: there need not be a master."""
        for mode in (ATMOST_ONCE, ATLEAST_ONCE):
            diary = self.run_(mode, lambda simulator: simulator.killMaster(restartSeconds=6))
            self.assertEqual(self.lost(NEAR) + self.lost(FAR) + self.failed(), [])
            self.assertGreater(len(diary.emitted), 900)

    # -- a container

    def test_containerAtMostOnce(self) -> None:
        """What was in it is lost; what comes while it is away waits."""
        self.run_(ATMOST_ONCE, lambda simulator: simulator.killContainer(FAR))
        self.assertEqual(self.lost(NEAR), [])
        self.assertLess(len(self.lost(FAR)), 10)
        self.assertEqual(self.diary.lives, {SPOUT: 1, NEAR: 1, FAR: 2})

    def test_containerAtLeastOnce(self) -> None:
        """What was in it fails."""
        self.run_(ATLEAST_ONCE, lambda simulator: simulator.killContainer(FAR))
        self.checkTold()
        self.assertEqual(self.lost(NEAR), [])

    # -- a link

    def cutLink(self, simulator: TopologySimulator) -> None:
        """Lose connections between stream managers again and again, and cut their path."""
        for number in range(10):
            each = simulator.streamManagers[SPOUT]
            process = next(p for p in simulator.processes() if p is each.clock)
            simulator.callLater(0.1 * number, simulator.cutConnections, process)
        simulator.partition(SPOUT, FAR)
        simulator.callLater(3, simulator.mend, SPOUT, FAR)

    def test_link(self) -> None:
        """Nothing is lost, and nothing fails: what was not confirmed is sent again."""
        for mode in (ATMOST_ONCE, ATLEAST_ONCE):
            self.run_(mode, self.cutLink)
            self.assertEqual(self.lost(NEAR) + self.lost(FAR) + self.failed(), [])
            self.assertEqual(self.reported, 0)
