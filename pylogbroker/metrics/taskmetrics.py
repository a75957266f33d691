"""
The metrics of a container of tasks; a module of its own, since applications with a container may
serve them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pylogbroker.metrics.exposition import Family, Sample, families

_CONTAINER_FIGURES = (
    ("tasks", "taskCount", "Tasks that the container has."),
    ("restoring_stores", "restoringCount", "Stores that are being restored."),
    ("standby_tasks", "standbyCount", "Tasks whose state it follows as a stand-by."),
    (
        "handled_messages_total",
        "handledCount",
        "Messages that tasks have handled, with those that were left out.",
    ),
    (
        "failed_messages_total",
        "failedCount",
        "Messages that were left out, or are dead letters.",
    ),
    ("commits_total", "commitCount", "Commits of positions."),
    ("restored_changes_total", "restoredCount", "Changes of stores that changelogs have given."),
)
_TASK_FIGURES = (
    ("running", "isRunning", "Whether the task is given messages; 0: its stores are restored."),
    (
        "handled_messages_total",
        "handledCount",
        "Messages that the task has handled since it came to this container.",
    ),
    (
        "failed_messages_total",
        "failedCount",
        "Messages of these that were left out, or are dead letters.",
    ),
)


class TaskFigures(Protocol):
    """A task; a container's C{TaskStatus} is such."""

    @property
    def partition(self) -> int: ...

    @property
    def phase(self) -> str: ...

    @property
    def handledCount(self) -> int: ...

    @property
    def failedCount(self) -> int: ...

    @property
    def storeSizes(self) -> Mapping[str, int]: ...

    @property
    def counters(self) -> Mapping[str, int]: ...


class StandbyFigures(Protocol):
    """A stand-by task; a container's C{StandbyStatus} is such."""

    @property
    def partition(self) -> int: ...

    @property
    def lag(self) -> int | None: ...


class ContainerFigures(Protocol):
    """A container; a C{TaskContainer} is such. Counts are totals since its start."""

    @property
    def handledCount(self) -> int: ...

    @property
    def failedCount(self) -> int: ...

    @property
    def commitCount(self) -> int: ...

    @property
    def restoredCount(self) -> int: ...

    def status(self) -> Iterable[TaskFigures]: ...

    def standbys(self) -> Sequence[StandbyFigures]: ...

    def restoring(self) -> list[str]: ...


def containerFamilies(job: str, container: ContainerFigures) -> list[Family]:
    """
    The metrics of a container, and of each of its tasks.

    @param job: its name.
    """
    tasks = list(container.status())
    values = {
        "taskCount": len(tasks),
        "restoringCount": len(container.restoring()),
        "standbyCount": len(container.standbys()),
        "handledCount": container.handledCount,
        "failedCount": container.failedCount,
        "commitCount": container.commitCount,
        "restoredCount": container.restoredCount,
    }
    rows = [
        (
            {"job": job, "task": str(each.partition)},
            {
                "isRunning": each.phase == "running",
                "handledCount": each.handledCount,
                "failedCount": each.failedCount,
            },
        )
        for each in tasks
    ]
    sizes = [
        Sample(size, {"job": job, "task": str(each.partition), "store": name})
        for each in tasks
        for name, size in each.storeSizes.items()
    ]
    lags = [
        Sample(each.lag, {"job": job, "task": str(each.partition)})
        for each in container.standbys()
        if each.lag is not None
    ]
    counts = [
        Sample(count, {"job": job, "task": str(each.partition), "counter": name})
        for each in tasks
        for name, count in each.counters.items()
    ]
    return [
        *families("pylogbroker_container", _CONTAINER_FIGURES, [({"job": job}, values)]),
        *families("pylogbroker_task", _TASK_FIGURES, rows),
        Family(
            "pylogbroker_task_store_bytes",
            "Bytes of a store on the disk, about; of one in memory there.",
            sizes,
        ),
        Family(
            "pylogbroker_task_standby_lag_changes",
            "Changes of its stores that a stand-by lacks.",
            lags,
        ),
        Family(
            "pylogbroker_task_counter_total",
            "What the job's author counts in the task, since it came to this container.",
            counts,
        ),
    ]
