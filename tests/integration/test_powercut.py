"""
Power cuts before any file operation: nothing that was visible is lost, and a broker that forgets an
C{fsync} is found out.
"""

from __future__ import annotations

import sys

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from tests.integration.kills import LostError
from tests.integration.powercuts import PowerCutLife

SEED_COUNT = 200
LIAR_SEED_COUNT = 60
ACT_COUNT = 250


class _SyncsNothing(PowerCutFileSystem):
    """Every C{fsync} is skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = False


class _SyncsNoFile(_SyncsNothing):
    """C{fsync} of files is skipped, that of directories is not."""

    def syncDirectory(self, path: str) -> None:
        self.syncs = True
        try:
            super().syncDirectory(path)
        finally:
            self.syncs = False


class _SyncsNoDirectory(PowerCutFileSystem):
    """C{fsync} of directories is skipped, that of files is not."""

    def syncDirectory(self, path: str) -> None:
        with self._operation("fsync", path):
            pass


class PowerCutTests(SynchronousTestCase):
    """The whole broker, in memory."""

    def live(
        self, seed: int, makeFileSystem: type[PowerCutFileSystem] = PowerCutFileSystem
    ) -> PowerCutLife:
        try:
            life = PowerCutLife(seed, makeFileSystem)
            life.run(ACT_COUNT)
            return life
        finally:
            # A broker without power says so in many ways.
            self.flushLoggedErrors(PowerLostError)

    def test_nothingVisibleIsLost(self) -> None:
        """Whatever was visible is there after power cuts, kills and stops in random lives."""
        cutCount = deathCount = sentSize = 0
        for seed in range(SEED_COUNT):
            life = self.live(seed)
            cutCount += life.cutCount
            deathCount += life.deathCount
            sentSize += sum(len(books.sent) for books in life.books.values())
        sys.stdout.write(
            f"[seeds 0 to {SEED_COUNT - 1}: {cutCount} power cuts, {deathCount} deaths, {sentSize}"
            " bytes survived] "
        )
        self.assertGreater(cutCount, SEED_COUNT)
        self.assertGreater(sentSize, SEED_COUNT * 1000)

    def assertFoundOut(self, liar: type[PowerCutFileSystem]) -> None:
        for seed in range(LIAR_SEED_COUNT):
            try:
                self.live(seed, liar)
            except LostError:
                return
        self.fail(f"{liar.__name__} lost nothing in {LIAR_SEED_COUNT} lives")

    def test_skippedSyncsAreFound(self) -> None:
        """A broker that skips every C{fsync} fails the test above: the test of the test."""
        self.assertFoundOut(_SyncsNothing)

    def test_skippedFileSyncsAreFound(self) -> None:
        """So does one that syncs directories only."""
        self.assertFoundOut(_SyncsNoFile)

    def test_skippedDirectorySyncsAreFound(self) -> None:
        """
        So does one that syncs files only: the name of a new segment is lost with what is in it.
        """
        self.assertFoundOut(_SyncsNoDirectory)
