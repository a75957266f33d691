"""
How a container is getting on, as plain values: its record in C{metrics.topic}. A module of its own,
since readers need it without what writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pylogbroker.tasks.reports.jsondocument import decodeDocument, encodeDocument


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """
    A partition that a task reads.

    @ivar position: the next offset; L{None}: not known yet.
    @ivar end: of what can be read; L{None}: not known.
    @ivar lag: messages between them, at most; L{None}: not known.
    """

    topic: str
    partition: int
    position: int | None
    end: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """
    A store of a task.

    @ivar size: bytes, about; L{None}: it is not open yet.
    @ivar restored: offsets of the changelog that were read of C{toRestore}; both are L{None} unless
        the store is being restored.
    """

    name: str
    size: int | None
    restored: int | None = None
    toRestore: int | None = None


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """
    A task.

    @ivar task: its number.
    @ivar phase: C{starting}, C{running} or C{closed}.
    @ivar handledCount: messages, since it came to the container.
    @ivar failedCount: messages of these that were left out, or are dead letters.
    @ivar counters: the author's, by name.
    """

    task: int
    phase: str
    handledCount: int
    failedCount: int
    counters: dict[str, int] = field(default_factory=dict)
    partitions: tuple[PartitionMetrics, ...] = ()
    stores: tuple[StoreMetrics, ...] = ()


@dataclass(frozen=True, slots=True)
class StandbyMetrics:
    """
    A task whose state a container follows as a stand-by.

    @ivar task: its number.
    @ivar isCurrent: whether a takeover would be fast.
    @ivar lag: changes that it lacks, at most; L{None}: its stores are not open yet.
    """

    task: int
    isCurrent: bool
    lag: int | None


@dataclass(frozen=True, slots=True)
class ContainerMetrics:
    """
    A container. Counts are since its start, and of all tasks that it has had. Times are
    milliseconds since the epoch, by the container's clock.

    @ivar container: its id.
    @ivar host: where it runs.
    @ivar memberId: in the job's group; empty: it has not joined.
    @ivar intervalMs: when to expect the next record.
    @ivar restoredCount: changes that were read from changelogs.
    @ivar taskCount: of C{tasks}, before any were left out of a record that is too large.
    @ivar failure: what has ended it; empty: nothing.
    @ivar standbyCount: of C{standbys}, likewise.
    """

    job: str
    container: str
    host: str
    memberId: str
    startedAtMs: int
    writtenAtMs: int
    intervalMs: int
    handledCount: int
    failedCount: int
    commitCount: int
    restoredCount: int
    taskCount: int
    tasks: tuple[TaskMetrics, ...] = ()
    failure: str = ""
    standbyCount: int = 0
    standbys: tuple[StandbyMetrics, ...] = ()

    @property
    def key(self) -> str:
        """The record's key."""
        return f"{self.job}/{self.container}"

    def encode(self) -> bytes:
        """As a record's value. Tasks and stand-bys are left out where it would be too large."""
        return encodeDocument(self, ContainerMetrics._shortened)

    def _shortened(self) -> ContainerMetrics:
        tasks, standbys = self.tasks, self.standbys
        return replace(
            self, tasks=tasks[: len(tasks) // 2], standbys=standbys[: len(standbys) // 2]
        )

    @staticmethod
    def decode(data: bytes) -> ContainerMetrics:
        """@raise ValueError: it is none; the text says why."""
        return decodeDocument(ContainerMetrics, data)
