"""
C{pylogbroker load} under C{kill -9}, failing tasks and a twin of itself: real brokers of both
protocols, a real ZooKeeper, real Spark.

The long form is C{tests.long.load}.
"""

from __future__ import annotations

import os
import sys
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.loadtrial import (
    PARTITION_COUNT,
    Kafka07Topic,
    KafkaTopic,
    LoadTrial,
    TrialTopic,
)
from tests.integration.sparksession import SparkCluster

MESSAGE_COUNT = 4_000
KILL_COUNT = 3
KILL_COUNT_TODAY = 1


class KillTests(SynchronousTestCase):
    """The table equals the topic."""

    def tried(self, topic: TrialTopic, killCount: int) -> None:
        """A trial."""
        seed = SystemRandom().randrange(1 << 32)
        sys.stderr.write(f"seed {seed} ")
        folder = os.path.abspath(self.mktemp())
        os.makedirs(folder)
        trial = LoadTrial(folder, topic, seed)
        trial.run(MESSAGE_COUNT, killCount)
        self.assertEqual(trial.figures.killCount, killCount)
        self.assertGreaterEqual(trial.figures.failedCount, 3)
        self.assertEqual(trial.figures.rowCount, (killCount + 3) * MESSAGE_COUNT, trial.figures)

    def test_rowForRow(self) -> None:
        """
        Three kills at random moments, tasks that fail and are tried again, two loaders at once:
        after each of them the table has what its offsets say, and in the end what the topic has,
        row for row.
        """
        cluster = SparkCluster(2, num_partitions="2", log_file_size="40000")
        self.addCleanup(cluster.end)
        self.tried(Kafka07Topic(cluster), KILL_COUNT)

    def test_today(self) -> None:
        """
        Likewise a topic of today's Kafka, with transactions of which some are aborted: one kill.
        """
        broker = BackgroundBroker({"num.partitions": str(PARTITION_COUNT)}).start()
        self.addCleanup(broker.close)
        self.tried(KafkaTopic(broker.bootstrapServers), KILL_COUNT_TODAY)
