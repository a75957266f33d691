"""
What the log has to say to its operator, as values: L{pylogbroker.storage.logdirectory.LogDirectory.open} and the jobs hand them to whoever asked,
who logs them.

Each has a C{format} for its own fields, so that C{log.info(report.format, **vars(report))} makes an event with fields, and C{str} for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pylogbroker.errors import StorageError
from pylogbroker.types import TopicPartition


@dataclass(frozen=True)
class LogEvent:
    """
    @cvar isWarning: whether an operator should look.
    @cvar format: text with the fields in braces.
    """

    isWarning: ClassVar[bool] = False
    format: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.format.format(**vars(self))


Reporter = Callable[[LogEvent], None]


@dataclass(frozen=True)
class RecoveryNeeded(LogEvent):
    """The directory was not closed in order: the last segment of every partition is checked."""

    format: ClassVar[str] = (
        "{path} has no clean-shutdown mark: the last segment of each partition is checked"
    )
    path: str


@dataclass(frozen=True)
class PartitionLoaded(LogEvent):
    """One more is there; C{done} of C{total} directories have been looked at."""

    format: ClassVar[str] = (
        "Loaded {topicPartition}: {segmentCount} segments, offsets {startOffset} to {logEndOffset} ({done} of {total})"
    )
    topicPartition: TopicPartition
    segmentCount: int
    startOffset: int
    logEndOffset: int
    done: int
    total: int


@dataclass(frozen=True)
class SegmentTruncated(LogEvent):
    """Recovery cut bytes off the end of a segment: they were not whole, valid entries."""

    isWarning: ClassVar[bool] = True
    format: ClassVar[str] = "Cut {path} back from {oldSize} to {size} bytes: {reason}"
    path: str
    oldSize: int
    size: int
    reason: str


@dataclass(frozen=True)
class PartitionOffline(LogEvent):
    """A partition is out of service; the others serve."""

    isWarning: ClassVar[bool] = True
    format: ClassVar[str] = "{topicPartition} is out of service: {error}"
    topicPartition: TopicPartition
    error: StorageError


@dataclass(frozen=True)
class UnexpectedDirectory(LogEvent):
    """A sub-directory that is no partition (gotcha 4)."""

    isWarning: ClassVar[bool] = True
    format: ClassVar[str] = "Ignored {path}: a directory that is not named <topic>-<partition>"
    path: str


@dataclass(frozen=True)
class UnexpectedFile(LogEvent):
    """A plain file where partitions are expected."""

    isWarning: ClassVar[bool] = True
    format: ClassVar[str] = "Ignored {path}: not a directory"
    path: str


@dataclass(frozen=True)
class DeletedSegmentPurged(LogEvent):
    """A segment that retention had taken out before the broker stopped, now gone."""

    format: ClassVar[str] = "Removed {path}, which was deleted before the last stop"
    path: str


@dataclass(frozen=True)
class PurgeFailed(LogEvent):
    """The same, but it cannot be removed; it is not loaded in any case."""

    isWarning: ClassVar[bool] = True
    format: ClassVar[str] = "Could not remove a deleted segment: {error}"
    error: StorageError


@dataclass(frozen=True)
class ConflictingFileRemoved(LogEvent):
    """A file had the name of the segment that a roll was about to make (spec-0.7 log-storage §4)."""

    isWarning: ClassVar[bool] = True
    format: ClassVar[str] = (
        "Removed {path}: it was not part of the log and had the name of the next segment"
    )
    path: str
