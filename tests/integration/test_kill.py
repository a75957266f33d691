"""
C{kill -9} at random moments; the long form is C{python -m tests.long.kill}.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.kills import PARTITIONS, KillTrial
from tests.integration.test_golden import readDirectory

ROUND_COUNT = 20


class KillTests(SynchronousTestCase):
    """C{twistd pylogbroker} as a process, a producer and a watcher."""

    def test_nothingVisibleIsLost(self) -> None:
        """
        After each of twenty kills every message that a consumer saw is there, in order, once; the
        log opens, and goes on.
        """
        seed = SystemRandom().randrange(1 << 32)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        trial = KillTrial(folder + "/logs", seed)
        sys.stdout.write(f"[seed {seed}")
        trial.run(ROUND_COUNT)
        sys.stdout.write(f": {trial.figures}] ")
        self.assertEqual(trial.figures.roundCount, ROUND_COUNT)
        # There was something to lose: visible data, rolls, and data that was not visible yet.
        self.assertGreater(trial.figures.rolledCount, ROUND_COUNT)
        self.assertGreater(trial.figures.messageCount, 1000)
        sent = {
            topicPartition: bytes(partition.sent)
            for topicPartition, partition in trial.partitions.items()
        }
        self.assertEqual(set(sent), set(PARTITIONS))
        self.assertEqual(readDirectory(Path(folder) / "logs"), sent)
