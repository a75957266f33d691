"""
Tests of topologies for C{streamparse} in the simulator: real subprocesses, by the test's clock.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.api import Bolt, StreamTuple
from pylogbroker.topologies.multilang.definitions import loadAnyTopologies
from pylogbroker.topologies.topology import StreamId
from tests.topologies.instance.instances import withSink

PROJECT = Path(__file__).parent / "project"


class Kept(Bolt):
    """Keeps what it gets."""

    isAutoAcked = True

    def __init__(self) -> None:
        self.values: list[int] = []

    def process(self, tup: StreamTuple) -> None:
        """Keeps it."""
        self.values.append(tup.values[0])


class SimulationTests(SynchronousTestCase):
    """A topology over two containers, at least once."""

    def test_kill(self) -> None:
        """What a bolt's process had when it was killed comes again: each number arrives."""
        path = PROJECT / "topologies" / "flaky.py"
        topology = loadAnyTopologies(str(path))["flaky"].withConfig(
            {"topology.message.timeout.secs": 5}
        )
        topology = withSink(topology, StreamId("flaky"), kind=Kept)
        simulator = TopologySimulator(topology, 2, seed=4)
        self.addCleanup(simulator.close)
        simulator.advance(2)
        (task,) = (
            each.task
            for each in simulator.packing.instances
            if (each.component, each.index) == ("flaky", 1)
        )
        simulator.instances[task].kill()
        (kept,) = simulator.components("sink")
        for _ in range(60):
            if len(set(kept.values)) < 1000:
                simulator.advance(1)
        self.assertEqual(set(kept.values), set(range(0, 2000, 2)))
        self.assertEqual(simulator.failures, [])
