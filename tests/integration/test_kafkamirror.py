"""
The mirror from and to clusters of today, as processes that are killed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.kafkamirrortrial import KINDS, KafkaMirrorTrial
from tests.integration.mirrorends import TODAY, MirrorEnd, OldEnd, TodayEnd
from tests.integration.zookeeperprocess import sharedZookeeper

MESSAGE_COUNT = 8_000


class KafkaMirrorTests(SynchronousTestCase):
    """
    C{twistd pylogbroker-mirror} as a process, between brokers as processes; each of the three is
    killed once.
    """

    def old(self, side: str) -> OldEnd:
        """A cluster of 2011."""
        root = f"/kafkamirror-{side}-{self.seed}"
        return OldEnd(f"{self.folder}/{side}", sharedZookeeper(), root)

    def today(self, side: str) -> TodayEnd:
        """A cluster of today."""
        return TodayEnd(BackgroundBroker(TODAY, f"{self.folder}/{side}"))

    def setUp(self) -> None:
        self.seed = SystemRandom().randrange(1 << 32)
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, True)

    def mirror(self, source: MirrorEnd, target: MirrorEnd) -> None:
        """Mirror, kill, and judge."""
        trial = KafkaMirrorTrial(self.folder, source, target, self.seed)
        self.addCleanup(trial.end)
        sys.stdout.write(f"[seed {self.seed}")
        trial.run(MESSAGE_COUNT, KINDS)
        figures = trial.figures
        sys.stdout.write(f": {figures}] ")
        kills = (figures.mirrorKillCount, figures.sourceKillCount, figures.targetKillCount)
        self.assertEqual((figures.messageCount, *kills), (MESSAGE_COUNT, 1, 1, 1))
        self.assertGreater(figures.restCount, 0)
        self.assertLessEqual(figures.againCount, figures.boundCount)

    def test_fromOld(self) -> None:
        """
        From 2011: nothing is missing, order is kept, only what was expected is there twice; a group
        goes on at today's offsets.
        """
        self.mirror(self.old("source"), self.today("target"))

    def test_intoOld(self) -> None:
        """Back to 2011: as before; a group goes on at the offsets of 2011."""
        self.mirror(self.today("source"), self.old("target"))

    def test_today(self) -> None:
        """
        Between clusters of today: as before, and keys, headers and timestamps arrive; a group goes
        on at the positions that the mirror has committed in the target.
        """
        self.mirror(self.today("source"), self.today("target"))
