"""
Our ZooKeeper server as a process: kazoo's own tests, and kills.
"""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.kazootests import SLOW, runKazoosTests
from tests.integration.zookeeperkills import ZookeeperKillTrial

KAZOO_COUNT_MIN = 200
KILL_COUNT = 3


class KazooTests(SynchronousTestCase):
    """Kazoo's own tests; C{python -m tests.long.zookeeper} runs the slow ones, too."""

    def test_kazoo(self) -> None:
        """All of kazoo's tests pass for which one server suffices."""
        folder = self.mktemp()
        os.makedirs(folder)
        outcome = runKazoosTests(folder, SLOW)
        self.assertEqual(outcome.failed, [])
        self.assertGreater(outcome.passedCount, KAZOO_COUNT_MIN)


class KillTests(SynchronousTestCase):
    """C{kill -9}, again and again; C{python -m tests.long.zookeeper} does it for long."""

    def test_kills(self) -> None:
        """Everything that was answered is there, nothing is half there, and sessions go on."""
        trial = ZookeeperKillTrial(self.mktemp(), 1)
        trial.run(KILL_COUNT)
        self.assertEqual(trial.killCount, KILL_COUNT)
        self.assertGreater(trial.lostCount, 0)
