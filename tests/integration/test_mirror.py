"""
The mirror between two clusters of processes with a real ZooKeeper; the long form is C{python -m tests.long.mirror}.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.formats.messageset import encodeSet
from tests.integration.brokerprocess import until
from tests.integration.mirrortrial import PARTITION_COUNT, TOPIC, MirrorTrial
from tests.integration.zookeeperprocess import sharedZookeeper

MESSAGE_COUNT = 50_000
LARGE_COUNT = 1_500
LARGE_SIZE = 100_000


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

    def test_memory(self) -> None:
        """While a target hangs, the mirror takes no more than it has room for, however much there is to mirror; when it goes on, all arrives, once."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        trial = MirrorTrial(folder, sharedZookeeper(), f"memory{SystemRandom().randrange(1 << 32)}", 0, {"queue.bytes": str(8 << 20)})
        self.addCleanup(trial.end)
        trial.source.start()
        trial.target.start()
        trial.mirror.start()
        trial.target.hang()
        mirror = trial.mirror
        before = mirror.rssSize()
        mirror.forgetRssMax()
        with trial.source.client(60) as client:
            for number in range(LARGE_COUNT):
                client.produce(TOPIC, number % PARTITION_COUNT, encodeSet([b"%d " % number + bytes(LARGE_SIZE)]))
            client.processed()
        ticks: list[int] = []

        def rests() -> bool:
            ticks.append(mirror.cpuTicks())
            return len(ticks) > 5 and ticks[-1] - ticks[-5] <= 1

        until(rests, "the mirror comes to rest", 30, 200)
        grown = mirror.rssSizeMax() - before
        self.assertLess(trial.targetEnd(), LARGE_COUNT * LARGE_SIZE // 2)
        self.assertLess(grown, LARGE_COUNT * LARGE_SIZE // 2, f"{grown >> 20} MiB for {LARGE_COUNT * LARGE_SIZE >> 20}")
        trial.target.goOn()
        until(lambda: len(trial.numbers()) >= LARGE_COUNT, "all is in the target", 60, 100)
        self.assertEqual(mirror.stop(), 0)
        self.assertEqual(sorted(trial.numbers()), list(range(LARGE_COUNT)))
