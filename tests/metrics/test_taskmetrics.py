"""
Tests for L{pylogbroker.metrics.taskmetrics}.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.exposition import render
from pylogbroker.metrics.taskmetrics import containerFamilies

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "metrics.md"


class Task(NamedTuple):
    """A task's figures."""

    partition: int
    phase: str
    handledCount: int
    failedCount: int
    storeSizes: dict[str, int]
    counters: dict[str, int]


class Standby(NamedTuple):
    """A stand-by's figures."""

    partition: int
    lag: int | None


class Container:
    """A container's figures."""

    handledCount, failedCount, commitCount, restoredCount = 10, 3, 4, 5

    def status(self) -> list[Task]:
        return [
            Task(0, "running", 7, 1, {"s": 90, "t": 0}, {"late": 3}),
            Task(2, "starting", 0, 0, {}, {}),
        ]

    def standbys(self) -> list[Standby]:
        return [Standby(1, 6), Standby(3, None)]

    def restoring(self) -> list[str]:
        return ["j-s-changelog-2: 1 of 2"]


class TaskFiguresTests(SynchronousTestCase):
    """Names and values."""

    def test_figures(self) -> None:
        """Those of the container, of each task, and of each store; all are on the page."""
        families = containerFamilies("j", Container())
        lines = [
            line for line in render(families).decode().splitlines() if not line.startswith("#")
        ]
        self.assertEqual(
            lines,
            [
                'pylogbroker_container_tasks{job="j"} 2',
                'pylogbroker_container_restoring_stores{job="j"} 1',
                'pylogbroker_container_standby_tasks{job="j"} 2',
                'pylogbroker_container_handled_messages_total{job="j"} 10',
                'pylogbroker_container_failed_messages_total{job="j"} 3',
                'pylogbroker_container_commits_total{job="j"} 4',
                'pylogbroker_container_restored_changes_total{job="j"} 5',
                'pylogbroker_task_running{job="j",task="0"} 1',
                'pylogbroker_task_running{job="j",task="2"} 0',
                'pylogbroker_task_handled_messages_total{job="j",task="0"} 7',
                'pylogbroker_task_handled_messages_total{job="j",task="2"} 0',
                'pylogbroker_task_failed_messages_total{job="j",task="0"} 1',
                'pylogbroker_task_failed_messages_total{job="j",task="2"} 0',
                'pylogbroker_task_store_bytes{job="j",task="0",store="s"} 90',
                'pylogbroker_task_store_bytes{job="j",task="0",store="t"} 0',
                'pylogbroker_task_standby_lag_changes{job="j",task="1"} 6',
                'pylogbroker_task_counter_total{job="j",task="0",counter="late"} 3',
            ],
        )
        page = PAGE.read_text(encoding="utf-8")
        self.assertEqual([each.name for each in families if each.name not in page], [])
