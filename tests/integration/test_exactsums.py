"""
An application with positions in its own SQLite transaction, killed. The long form is
C{tests.long.exactsums}.
"""

from __future__ import annotations

import os
from itertools import count
from random import SystemRandom

from kazoo.client import KazooClient
from twisted.trial.unittest import SynchronousTestCase

from tests.integration.exactsums import ExactSumTrial
from tests.integration.zookeeperprocess import sharedZookeeper

KILL_COUNT = 3
_numbers = count()


class ExactSumTests(SynchronousTestCase):
    """Kills."""

    def test_sums(self) -> None:
        """
        However often it is killed, its sums are those of all messages up to its positions, after
        each kill, and at last of all messages: none twice, none left out.
        """
        chroot = f"/sums{next(_numbers)}"
        outer = KazooClient(sharedZookeeper().servers)
        outer.start()
        outer.create(chroot)
        outer.stop()
        outer.close()
        directory = os.path.abspath(self.mktemp())
        os.makedirs(directory)
        seed = SystemRandom().randrange(1 << 32)
        trial = ExactSumTrial(directory, sharedZookeeper().servers + chroot, seed)
        trial.run(KILL_COUNT)
        self.assertEqual(trial.killCount, KILL_COUNT)
        self.assertGreater(trial.numberCount, 0)
