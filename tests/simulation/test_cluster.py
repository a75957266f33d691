"""
A whole cluster with its clients in random orders of events and faults, and planted faults that are
found.
"""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.cluster.planted import PLANTS
from tests.simulation.cluster.world import FAULTS, ClusterWorld
from tests.simulation.seedtests import addPlantTests, addSeedTests, checkRepeated

SEED_COUNT = 1_000
EACH_COUNT = 100
REPEAT_COUNT = 6
CLOSED = "cannot reuse already awaited coroutine"
MUST_HAPPEN = ("acknowledged", "not acknowledged", "copies", "led", *FAULTS)


class ClusterTestCase(SynchronousTestCase):
    """
    The coroutines of processes that were killed are closed when they are collected. Deferreds that
    they wait for may end then, and go on with a coroutine that is closed.
    """

    def tearDown(self) -> None:
        gc.collect()  # here, and not in another test
        found = [str(each.value) for each in self.flushLoggedErrors(RuntimeError)]
        self.assertEqual([each for each in found if each != CLOSED], [])


class ClusterSeedTests(ClusterTestCase):
    """What must hold of a whole cluster, holds (C{tests.simulation.cluster.world})."""


addSeedTests(
    ClusterSeedTests,
    ClusterWorld,
    SEED_COUNT,
    EACH_COUNT,
    MUST_HAPPEN,
    "python -m tests.simulation.cluster",
)


class PlantedClusterTests(ClusterTestCase):
    """
    A mistake of Kafka's or Redpanda's, planted into the wiring of a cluster, is found: here by a
    seed that finds it (C{python -m tests.simulation.cluster --planted 2000} looks for the first).
    """


addPlantTests(PlantedClusterTests, ClusterWorld, PLANTS)


class ClusterItselfTests(SynchronousTestCase):
    """The simulation does what it says."""

    def test_reproducible(self) -> None:
        """A seed does the same in every process, however Python's own hashes fall."""
        checkRepeated(self, ClusterWorld, REPEAT_COUNT)
