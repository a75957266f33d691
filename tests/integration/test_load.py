"""
C{pylogbroker load} under C{kill -9}, failing tasks and a twin of itself: real brokers, a real
ZooKeeper, real Spark.

The long form is C{tests.long.load}.
"""

from __future__ import annotations

import os
import sys
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.loadtrial import LoadTrial
from tests.integration.sparksession import SparkCluster

MESSAGE_COUNT = 4_000
KILL_COUNT = 3


class KillTests(SynchronousTestCase):
    """The table equals the topic."""

    def test_rowForRow(self) -> None:
        """
        Three kills at random moments, tasks that fail and are tried again, two loaders at once:
        after each of them the table has what its offsets say, and in the end what the topic has,
        row for row.
        """
        seed = SystemRandom().randrange(1 << 32)
        sys.stderr.write(f"seed {seed} ")
        folder = os.path.abspath(self.mktemp())
        os.makedirs(folder)
        cluster = SparkCluster(2, num_partitions="2", log_file_size="40000")
        self.addCleanup(cluster.end)
        trial = LoadTrial(folder, cluster, seed)
        trial.run(MESSAGE_COUNT, KILL_COUNT)
        self.assertEqual(trial.figures.killCount, KILL_COUNT)
        self.assertGreaterEqual(trial.figures.failedCount, 3)
        self.assertEqual(trial.figures.rowCount, (KILL_COUNT + 3) * MESSAGE_COUNT, trial.figures)
