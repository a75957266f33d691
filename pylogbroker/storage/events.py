"""
Log events for the operator, as values that the caller logs.

C{log.info(event.format, **vars(event))} makes a log event with fields, C{str(event)} a text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from pylogbroker.errors import StorageError
from pylogbroker.types import TopicPartition


@dataclass(frozen=True)
class StorageEvent:
    """
    @cvar isWarning: whether an operator should look.
    @cvar format: text with the fields in braces.
    """

    isWarning: ClassVar[bool] = False
    format: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.format.format(**vars(self))


Reporter = Callable[[StorageEvent], None]


@dataclass(frozen=True)
class RecoveryNeeded(StorageEvent):
    """The directory was not closed in order: each partition's last segment is checked."""

    format = "{path} has no clean-shutdown mark: the last segment of each partition is checked"
    path: str


@dataclass(frozen=True)
class PartitionLoaded(StorageEvent):
    """A partition was loaded: C{done} of C{total} partitions."""

    format = (
        "Loaded {topicPartition}: offsets {logStartOffset} to {logEndOffset},"
        " segments: {segmentCount} ({done} of {total})"
    )
    topicPartition: TopicPartition
    segmentCount: int
    logStartOffset: int
    logEndOffset: int
    done: int
    total: int


@dataclass(frozen=True)
class SegmentTruncated(StorageEvent):
    """Recovery cut off the invalid end of a segment."""

    isWarning = True
    format = "Truncated {path} from {oldSize} to {size} bytes: {reason}"
    path: str
    oldSize: int
    size: int
    reason: str


@dataclass(frozen=True)
class PartitionOffline(StorageEvent):
    """A partition is out of service; the others serve."""

    isWarning = True
    format = "{topicPartition} is out of service: {error}"
    topicPartition: TopicPartition
    error: StorageError


@dataclass(frozen=True)
class UnexpectedDirectory(StorageEvent):
    """A sub-directory that is no partition (gotcha 4)."""

    isWarning = True
    format = "Ignored {path}: a directory that is not named <topic>-<partition>"
    path: str


@dataclass(frozen=True)
class UnexpectedFileInLogDirectory(StorageEvent):
    """A plain file beside the partitions."""

    isWarning = True
    format = "Ignored {path}: not a directory"
    path: str


@dataclass(frozen=True)
class DeletedSegmentPurged(StorageEvent):
    """A segment, or a partition, that was deleted before the stop was removed."""

    format = "Removed {path}, which was deleted before the last stop"
    path: str


@dataclass(frozen=True)
class PurgeFailed(StorageEvent):
    """A segment that retention deleted cannot be removed. It is not loaded."""

    isWarning = True
    format = "Could not remove a deleted segment: {error}"
    error: StorageError


@dataclass(frozen=True)
class ConflictingFileRemoved(StorageEvent):
    """A file had the name of a roll's new segment (spec-0.7 log-storage §4)."""

    isWarning = True
    format = "Removed {path}: it was not part of the log and had the name of the next segment"
    path: str


@dataclass(frozen=True)
class DamagedFileIgnored(StorageEvent):
    """A small file beside the segments cannot be read; the log tells the same."""

    isWarning = True
    format = "Ignored a damaged file, and read the log instead: {error}"
    error: StorageError
