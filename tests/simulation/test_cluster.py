"""
A whole cluster with its clients in random orders of events and faults.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.seedtests import addSeedTests, outputsByHashes

SEED_COUNT = 180
EACH_COUNT = 60
REPEAT_COUNT = 2
MUST_HAPPEN = ("acknowledged", "kill", "led")


class ClusterSeedTests(SynchronousTestCase):
    """What must hold of a whole cluster, holds (C{tests.simulation.cluster.world})."""


addSeedTests(
    ClusterSeedTests,
    ClusterWorld,
    SEED_COUNT,
    EACH_COUNT,
    MUST_HAPPEN,
    "python -m tests.simulation.cluster",
)


class ClusterItselfTests(SynchronousTestCase):
    """The simulation does what it says."""

    def test_reproducible(self) -> None:
        """A seed does the same in every process, however Python's own hashes fall."""
        program = (
            "from tests.simulation.cluster.world import ClusterWorld\n"
            "from tests.simulation.coordinators.world import simulateCoordinator\n"
            "print([simulateCoordinator(ClusterWorld, seed).fingerprint"
            f" for seed in range({REPEAT_COUNT})])"
        )
        outputs = outputsByHashes(program)
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(outputs[0].count(","), REPEAT_COUNT - 1)
