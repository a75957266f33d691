"""
Tasks under C{kill -9}, in short; C{python -m tests.long.taskkills} is the long form.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.integration.taskkills import TaskKillTrial

KILL_COUNT = 10


class TaskKillTests(SynchronousTestCase):
    """L{TaskKillTrial}: containers, the broker and both are killed, folders of stores deleted."""

    def test_atLeastOnce(self) -> None:
        """No count is below the truth, nor above it by more than what was handled again."""
        figures = TaskKillTrial(1, AT_LEAST_ONCE, KILL_COUNT).run()
        self.assertEqual(sum(figures.kills.values()), KILL_COUNT)
        self.assertEqual(len(figures.kills), 4)

    def test_exactlyOnce(self) -> None:
        """Each count is exact, in the changelog, on disk, and restored; there are stand-bys."""
        figures = TaskKillTrial(10, EXACTLY_ONCE, KILL_COUNT).run()
        self.assertEqual(figures.standbyCount, 1)
        self.assertEqual(sum(figures.kills.values()), KILL_COUNT)
        self.assertEqual(len(figures.kills), 4)
        self.assertEqual(figures.aboveCount, 0)
        self.assertGreater(figures.handledCount, figures.messageCount)
