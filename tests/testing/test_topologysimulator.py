"""Topologies in the simulator: what tests of authors do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.testing.simulatednetwork import StuckError
from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.api import Bolt, Grouping, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.packings import packRoundRobin
from pylogbroker.topologies.topology import Topology, TopologyBuilder

LINES = ["the log is a list", "a list of messages", "in the order of the log"]
REPEAT_COUNT = 40
TRUTH = Counter(word for line in LINES * REPEAT_COUNT for word in line.split())


class LineSpout(Spout):
    """Emits lines; those that fail again."""

    outputs = ("line",)

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """All are to be emitted."""
        self.todo = list(enumerate(LINES * REPEAT_COUNT))
        self.ended: Counter[str] = Counter()
        self.pending: dict[int, str] = {}

    def nextTuple(self) -> None:
        """One."""
        if self.todo:
            number, line = self.todo.pop(0)
            self.pending[number] = line
            self.emit([line], number)

    def ack(self, tupleId: Any) -> None:
        """It is done."""
        self.ended["acked"] += 1
        del self.pending[tupleId]

    def fail(self, tupleId: Any) -> None:
        """Again."""
        self.ended["failed"] += 1
        self.todo.append((tupleId, self.pending[tupleId]))

    def activate(self) -> None:
        """Count it."""
        self.ended["activated"] += 1

    def deactivate(self) -> None:
        """Count it."""
        self.ended["deactivated"] += 1


class SplitBolt(Bolt):
    """Words."""

    outputs = ("word",)
    isAutoAnchored = True
    isAutoAcked = True

    def process(self, tup: StreamTuple) -> None:
        """Of a line."""
        for word in tup["line"].split():
            self.emit([word])


class CountBolt(Bolt):
    """Counts words."""

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """None yet."""
        self.counts: Counter[str] = Counter()
        self.isClosed = False
        self.seconds = context.seconds

    def process(self, tup: StreamTuple) -> None:
        """One more."""
        self.counts[tup["word"]] += 1
        self.ack(tup)

    def close(self) -> None:
        """Remember it."""
        self.isClosed = True


class BrokenBolt(CountBolt):
    """Cannot count."""

    def process(self, tup: StreamTuple) -> None:
        """Die."""
        raise ZeroDivisionError(tup["word"])


def wordCount(mode: str = "ATLEAST_ONCE", count: type[CountBolt] = CountBolt) -> Topology:
    """The topology."""
    config = {"topology.reliability.mode": mode, "topology.message.timeout.secs": 5}
    builder = TopologyBuilder("word-count", config)
    builder.setSpout("lines", LineSpout)
    builder.setBolt("split", SplitBolt, 2, {"lines": Grouping.SHUFFLE})
    builder.setBolt("count", count, 3, {"split": Grouping.fields("word")})
    return builder.build()


class TopologySimulatorTests(SynchronousTestCase):
    """The word count."""

    def counted(self, simulator: TopologySimulator) -> Counter[str]:
        """What all instances have counted."""
        counts: Counter[str] = Counter()
        for each in simulator.components("count"):
            counts.update(each.counts)
        return counts

    def test_counts(self) -> None:
        """All is counted, on any number of containers, in both modes."""
        for mode in ("ATMOST_ONCE", "ATLEAST_ONCE"):
            for containerCount in (1, 3):
                with TopologySimulator(wordCount(mode), containerCount) as simulator:
                    simulator.advance(5)
                    self.assertEqual(self.counted(simulator), TRUTH)
                    [spout] = simulator.components("lines")
                    self.assertEqual(spout.ended["acked"], len(LINES) * REPEAT_COUNT)
                    self.assertEqual(simulator.failures, [])
                counters = simulator.components("count")
                self.assertEqual([each.isClosed for each in counters], [True] * 3)

    def test_settings(self) -> None:
        """A packing, tasks, metrics and time are there; an unknown component is refused."""
        topology = wordCount()
        simulator = TopologySimulator(topology, packing=packRoundRobin(topology, 2))
        self.assertEqual(sorted(simulator.streamManagers), [1, 2])
        self.assertEqual(simulator.tasks("split"), [2, 3])
        simulator.advance(4)
        self.assertEqual(simulator.seconds, 4)
        self.assertEqual(simulator.metricValues(1)["acked"], len(LINES) * REPEAT_COUNT)
        with self.assertRaisesRegex(ConfigurationError, "has no component splt"):
            TopologySimulator(topology, serviceSeconds={"splt": 1})
        simulator.close()

    def test_states(self) -> None:
        """Spouts are told of the topology's state, and emit nothing while it is not active."""
        with TopologySimulator(wordCount(), 2) as simulator:
            simulator.deactivate()
            simulator.advance(3)
            [spout] = simulator.components("lines")
            self.assertEqual(len(spout.todo), len(LINES) * REPEAT_COUNT)
            simulator.activate()
            simulator.advance(3)
            simulator.kill()
            simulator.advance(1)
            self.assertEqual((spout.ended["activated"], spout.ended["deactivated"]), (1, 1))
            self.assertEqual(self.counted(simulator), TRUTH)

    def test_kills(self) -> None:
        """
        Processes are killed, and connections cut: the topology goes on by itself, and each line is
        acknowledged.
        """
        slow = {"lines": 0.05}
        with TopologySimulator(wordCount(), 3, serviceSeconds=slow) as simulator:
            simulator.advance(1)
            simulator.killStreamManager(1)
            simulator.killMaster()
            simulator.advance(1)
            simulator.killInstance(simulator.tasks("split")[0], restartSeconds=0.1)
            simulator.killContainer(3)
            simulator.partition(1, 2)
            simulator.advance(1)
            simulator.mend(1, 2)
            simulator.startMaster()
            simulator.cutConnections(simulator.instances[1].process)
            simulator.callLater(1, simulator.killMaster)
            [spout] = simulator.components("lines")
            simulator.advanceUntil(lambda: not spout.todo and not spout.pending)
            self.assertEqual(spout.ended["acked"], len(LINES) * REPEAT_COUNT)
            self.assertEqual(len(simulator.processes()), 3 + 6 + 2)

    def test_authorsErrors(self) -> None:
        """An instance whose code raises dies, and is started again; the error is kept."""
        with TopologySimulator(wordCount(count=BrokenBolt), 1) as simulator:
            simulator.advance(3)
            self.assertGreater(len(simulator.failures), 2)
            self.assertIn("ZeroDivisionError", simulator.failures[0].getErrorMessage())
            with self.assertRaisesRegex(AssertionError, "not within 2 s"):
                simulator.advanceUntil(lambda: not simulator.failures, 2)

    def test_repeated(self) -> None:
        """The same seed does the same, another one something else."""
        fingerprints = []
        for seed in (1, 1, 2):
            with TopologySimulator(wordCount(), 2, seed=seed) as simulator:
                simulator.advance(1)
                fingerprints.append(simulator.network.fingerprint)
        self.assertEqual(fingerprints[0], fingerprints[1])
        self.assertNotEqual(fingerprints[0], fingerprints[2])

    def test_circles(self) -> None:
        """What turns in circles is an error."""
        with TopologySimulator(wordCount(), 1) as simulator:
            simulator.advance(1)

            def again() -> None:
                simulator.callLater(0, again)

            again()
            self.assertRaises(StuckError, simulator.advance, 0)
