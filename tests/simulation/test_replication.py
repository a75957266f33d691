"""
A replicated partition in random orders of events and faults, and planted faults that are found.
"""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.replication.planted import PLANTS
from tests.simulation.replication.storedlog import StoredWorld
from tests.simulation.replication.world import ReplicationWorld
from tests.simulation.seedtests import ROOT, addPlantTests, addSeedTests, checkRepeated

SEED_COUNT = 300
EACH_COUNT = 100
STORED_SEED_COUNT = 150
STORED_EACH_COUNT = 50
REPEAT_COUNT = 10
MUST_HAPPEN = (
    "all cut at once",
    "changes split",
    "clocks changed",
    "consumed",
    "controlled shutdowns",
    "controllers",
    "cut off from ZooKeeper",
    "cut one way",
    "disks failed",
    "diverged",
    "eligible leaders elected",
    "fetch FENCED_LEADER_EPOCH",
    "fetch UNKNOWN_LEADER_EPOCH",
    "in-sync sets refused",
    "killed",
    "last known leaders elected",
    "logs removed",
    "messages cut",
    "messages late",
    "messages lost",
    "min.insync.replicas changed",
    "not enough in sync",
    "paused",
    "power cuts",
    "reassignments",
    "reassignments stopped",
    "records lost unflushed",
    "registrations split",
    "restarted",
    "retention",
    "sessions ended",
    "started over",
    "timed out",
    "unclean elections",
    "watermark not known",
    "wiped",
)


class ReplicationSeedTests(SynchronousTestCase):
    """What must hold of a replicated partition, holds (C{tests.simulation.replication.world})."""


class StoredReplicationSeedTests(SynchronousTestCase):
    """What must hold of a replicated partition, holds with logs that forget what was not synced."""


COMMAND = "python -m tests.simulation.replication"
addSeedTests(ReplicationSeedTests, ReplicationWorld, SEED_COUNT, EACH_COUNT, MUST_HAPPEN, COMMAND)
addSeedTests(
    StoredReplicationSeedTests,
    StoredWorld,
    STORED_SEED_COUNT,
    STORED_EACH_COUNT,
    MUST_HAPPEN,
    f"{COMMAND} --stored",
)


class PlantedReplicationTests(SynchronousTestCase):
    """
    A mistake of Kafka's or Redpanda's, planted into the machines, is found: here by the first seed
    that finds it (C{python -m tests.simulation.replication --planted 2000} looks for it).
    """


addPlantTests(PlantedReplicationTests, ReplicationWorld, PLANTS)


class ReplicationItselfTests(SynchronousTestCase):
    """The simulation does what it says."""

    def test_reproducible(self) -> None:
        """A seed does the same in every process, however Python's own hashes fall."""
        checkRepeated(self, ReplicationWorld, REPEAT_COUNT)

    def test_command(self) -> None:
        """C{--seeds A-B} runs all of them, and says what they were made of."""
        command = [sys.executable, "-m", "tests.simulation.replication", "--seeds", "3-8"]
        output = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        self.assertTrue(output.endswith("all 6 seeds hold\n"), output)
        self.assertIn("power cuts", output)
