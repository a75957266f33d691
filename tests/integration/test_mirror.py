"""
The mirror between two clusters of processes with a real ZooKeeper; the long form is C{python -m tests.long.mirror}.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.mirrortrial import MirrorTrial
from tests.integration.zookeeperprocess import sharedZookeeper

MESSAGE_COUNT = 50_000


class MirrorTests(SynchronousTestCase):
    """C{twistd pylogbroker-mirror} as a process."""

    def test_nothingMissing(self) -> None:
        """
        Numbered messages are mirrored while the mirror is killed and the target restarted: none is missing, and those that are there twice are those that
        had been sent and not committed at the kill (rows 120, 132).
        """
        seed = SystemRandom().randrange(1 << 32)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        trial = MirrorTrial(folder, sharedZookeeper(), f"mirror{seed}", seed)
        sys.stdout.write(f"[seed {seed}")
        trial.run(MESSAGE_COUNT, 1)
        sys.stdout.write(f": {trial.figures}] ")
        self.assertEqual((trial.figures.messageCount, trial.figures.killCount, trial.figures.restartCount), (MESSAGE_COUNT, 1, 1))
