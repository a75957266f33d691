"""
Power cuts before any file operation of a broker with clients of today's protocol: nothing that was
acknowledged is lost, and a broker that forgets an C{fsync} is found out. The long form is
C{tests.long.powercut}.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.storage import metadatastore
from pylogbroker.testing.powercut import PowerLostError
from tests.integration.kafkapowercuts import (
    JOURNAL_SIZE,
    KINDS,
    CountingFileSystem,
    KafkaPowerCutLife,
)
from tests.integration.kills import LostError

SEED_COUNT = 16
LIAR_SEED_COUNT = 20
ACT_COUNT = 400


def _liar(kind: str) -> type[CountingFileSystem]:
    """A file system that skips the C{fsync} of files of a kind, not that of directories."""

    class Liar(CountingFileSystem):
        @property
        def syncs(self) -> bool:
            return self._latest != kind

        @syncs.setter
        def syncs(self, value: bool) -> None:
            pass

        def syncDirectory(self, path: str) -> None:
            with self._operation("fsync", path):
                self._directory(path).sync()

    return Liar


class _SyncsNoDirectory(CountingFileSystem):
    """C{fsync} of directories is skipped."""

    def syncDirectory(self, path: str) -> None:
        with self._operation("fsync", path):
            pass


class KafkaPowerCutTests(SynchronousTestCase):
    """The whole broker, in memory."""

    def setUp(self) -> None:
        self.patch(metadatastore, "SNAPSHOT_SIZE_MIN", JOURNAL_SIZE)
        gc.freeze()
        gc.disable()
        self.addCleanup(gc.enable)
        self.addCleanup(gc.unfreeze)
        self.addCleanup(self._collect)

    def _collect(self) -> None:
        """
        Collect brokers that lost their power, here and not in another test: a coroutine that ends
        by it may wake one that has ended, or write to a transport that is gone.
        """
        gc.collect()
        gc.collect()  # what the first has logged
        self.flushLoggedErrors()

    def live(
        self, seed: int, makeFileSystem: type[CountingFileSystem] = CountingFileSystem
    ) -> Counter[str]:
        """
        A life. Returns what it was made of.

        @raise LostError: something is lost.
        """
        try:
            life = KafkaPowerCutLife(seed, makeFileSystem)
            life.run(ACT_COUNT)
            more = {"power cuts": life.cutCount, "deaths": life.deathCount}
            return life.fileSystem.counts + Counter(more)
        finally:
            # A broker without power says so in many ways.
            self.flushLoggedErrors(PowerLostError)
            for failure in self.flushLoggedErrors(RuntimeError):
                self.assertEqual(str(failure.value), "cannot reuse already awaited coroutine")

    def test_nothingAcknowledgedIsLost(self) -> None:
        """
        Records, values of keys, transactions, positions, members, topics, settings and producer ids
        are there after power cuts, kills and stops in random lives.
        """
        counts: Counter[str] = Counter()
        for seed in range(SEED_COUNT):
            counts += self.live(seed)
            self._collect()
        sys.stdout.write(f"[seeds 0 to {SEED_COUNT - 1}: {dict(counts)}] ")
        self.assertGreater(counts["power cuts"], SEED_COUNT)
        self.assertEqual([name for name, _ in KINDS if not counts[name]], [])

    def assertFoundOut(self, liar: type[CountingFileSystem], what: str) -> None:
        for seed in range(LIAR_SEED_COUNT):
            try:
                self.live(seed, liar)
            except LostError:
                return
            self._collect()
        self.fail(f"{what}: nothing was lost in {LIAR_SEED_COUNT} lives")

    def test_skippedSyncsAreFound(self) -> None:
        """A broker that skips the C{fsync} of files of one kind fails the test above."""
        for kind in ("journal", "positions", "transactions", "logs"):
            self.assertFoundOut(_liar(kind), kind)

    def test_skippedDirectorySyncsAreFound(self) -> None:
        """A broker that skips the C{fsync} of directories fails the first test, too."""
        self.assertFoundOut(_SyncsNoDirectory, "directories")
