"""
Random jobs, inputs and faults against a plain function of the inputs, and planted faults that are
found.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.seedtests import addPlantTests, addSeedTests, checkRepeated
from tests.simulation.tasks.planted import PLANTS
from tests.simulation.tasks.streamplans import KINDS
from tests.simulation.tasks.world import TasksWorld
from tests.simulation.test_cluster import ClusterTestCase

SEED_COUNT = 500
EACH_COUNT = 100
REPEAT_COUNT = 6
MUST_HAPPEN = (
    "batches of stores lost",
    "changes restored",
    "handled again",
    "stand-bys compared",
    "stores with something opened",
    *(f"jobs: {kind}" for kind in KINDS),
    *TasksWorld.faults,
)


class TasksSeedTests(ClusterTestCase):
    """What must hold of jobs, holds (C{tests.simulation.tasks.world})."""


addSeedTests(
    TasksSeedTests,
    TasksWorld,
    SEED_COUNT,
    EACH_COUNT,
    MUST_HAPPEN,
    "python -m tests.simulation.tasks",
)


class PlantedTasksTests(ClusterTestCase):
    """
    A mistake that is planted into a container of tasks is found: here by a seed that finds it
    (C{python -m tests.simulation.tasks --planted 2000} looks for the first).
    """


addPlantTests(PlantedTasksTests, TasksWorld, PLANTS)


class TasksItselfTests(SynchronousTestCase):
    """The simulation does what it says."""

    def test_reproducible(self) -> None:
        """A seed does the same in every process, however Python's own hashes fall."""
        checkRepeated(self, TasksWorld, REPEAT_COUNT)
