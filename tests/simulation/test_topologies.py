"""
Random topologies and faults against what must come of each tuple, and planted faults that are
found.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.seedtests import addPlantTests, addSeedTests, checkRepeated
from tests.simulation.topologies.planted import PLANTS
from tests.simulation.topologies.world import TopologiesWorld

SEED_COUNT = 500
EACH_COUNT = 100
REPEAT_COUNT = 6
MUST_HAPPEN = (
    "batches again",
    "batches doubled",
    "tuples dropped",
    "tuples failed",
    "tuples failed by bolts",
    "tuples forgotten by bolts",
    "tuples stopped for",
    "bytes late",
    "bytes held back by a cut",
    *TopologiesWorld.faults,
)


class TopologiesSeedTests(SynchronousTestCase):
    """What must hold of topologies, holds (C{tests.simulation.topologies.judge})."""


addSeedTests(
    TopologiesSeedTests,
    TopologiesWorld,
    SEED_COUNT,
    EACH_COUNT,
    MUST_HAPPEN,
    "python -m tests.simulation.topologies",
)


class PlantedTopologiesTests(SynchronousTestCase):
    """
    A mistake that is planted into the machinery of topologies is found: here by a seed that finds
    it (C{python -m tests.simulation.topologies --planted 2000} looks for the first).
    """


addPlantTests(PlantedTopologiesTests, TopologiesWorld, PLANTS)


class TopologiesItselfTests(SynchronousTestCase):
    """The simulation does what it says."""

    def test_reproducible(self) -> None:
        """A seed does the same in every process, however Python's own hashes fall."""
        checkRepeated(self, TopologiesWorld, REPEAT_COUNT)
