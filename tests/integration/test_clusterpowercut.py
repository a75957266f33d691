"""
Power cuts of three brokers at once: nothing that was acknowledged is lost, replicas agree, and a
cluster that does not flush, or whose disks do not, is found out. The long form is
C{tests.long.powercut}.
"""

from __future__ import annotations

import gc
from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.clusterpowercuts import ClusterFileSystem, ClusterPowerCutLife
from tests.integration.kills import LostError

SEEDS = range(4)
CUT_COUNT = 3
LIAR_SEED_COUNT = 10


class _Liar(ClusterFileSystem):
    """C{fsync} of files and directories is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = False


class ClusterPowerCutTests(SynchronousTestCase):
    """A cluster in this process, on a clock that stands still."""

    def setUp(self) -> None:
        gc.freeze()
        gc.disable()
        self.addCleanup(gc.enable)
        self.addCleanup(gc.unfreeze)
        self.addCleanup(self._collect)

    def _collect(self) -> None:
        """
        Collect brokers that lost their power here, and not in another test, where their coroutines
        would say so.
        """
        gc.collect()
        gc.collect()
        self.flushLoggedErrors()

    def live(self, isDurable: bool) -> Counter[str]:
        """The figures of some lives."""
        figures: Counter[str] = Counter()
        for seed in SEEDS:
            life = ClusterPowerCutLife(seed, isDurable)
            life.run(CUT_COUNT)
            figures += life.figures
        self.assertGreater(figures["cuts"], len(SEEDS))
        self.assertGreater(figures["acknowledged"], 0)
        return figures

    def test_durable(self) -> None:
        """With durable acknowledgement nothing is lost."""
        self.assertEqual(self.live(True)["lost"], 0)

    def test_pageCache(self) -> None:
        """
        Without it, the last leader's loss is the cluster's. It has happened, and the replicas
        agree, on a beginning of what one of them had.
        """
        self.assertGreater(self.live(False)["lost"], 0)

    def test_notFlushed(self) -> None:
        """Brokers that acknowledge what they have not flushed are found out."""
        with self.assertRaises(LostError) as caught:
            for seed in range(LIAR_SEED_COUNT):
                ClusterPowerCutLife(seed, True, isFlushing=False).run(CUT_COUNT)
        self.assertIn("has lost", str(caught.exception))

    def test_liar(self) -> None:
        """Disks that do not sync are found out."""
        with self.assertRaises(LostError):
            for seed in range(LIAR_SEED_COUNT):
                ClusterPowerCutLife(seed, True, _Liar).run(CUT_COUNT)
