"""
A log directory: all partitions of a broker, one lock, one clean-shutdown marker (spec-0.7
log-storage §1, §8, §9).

B{The marker} C{.kafka_cleanshutdown} says that every byte in the directory is synced and whole.
C{open} removes it, and syncs the removal, before anything else. Only an orderly close after a
successful open writes it again, if all partitions were closed well. 0.7.2 wrote it even after a
failed start, and skipped recovery the next time (gotcha 2). The file C{.lock} keeps a second broker
out.

B{One bad partition} (unreadable, with a gap, on a failing disk) is kept in C{failures} with the
reason; the others serve (gotcha 30). Then no marker is written, except an earlier one after a
failed load, which leaves the files as they were.

B{Creating a partition} while serving is a job: C{beginCreate}, C{run} on a worker, C{finishCreate},
one a partition at a time (gotcha 14). It syncs both directories, so that no message is flushed into
a directory that a power cut could remove.

B{A partition keeps one format for life}: the suffix of its segment files tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache

from pylogbroker.errors import PartitionOfflineError, StorageError
from pylogbroker.interfaces import IFileSystem, IRecordFormat
from pylogbroker.storage.events import (
    PartitionLoaded,
    PartitionOffline,
    RecoveryNeeded,
    Reporter,
    UnexpectedDirectory,
    UnexpectedFileInLogDirectory,
)
from pylogbroker.storage.filenames import directoryName, parseDirectoryName, validateTopic
from pylogbroker.storage.files import DescriptorCache
from pylogbroker.storage.jobs import Job
from pylogbroker.storage.partitionlog import PartitionLog, PartitionSettings
from pylogbroker.storage.recovery import LoadedPartition, loadPartition
from pylogbroker.types import TopicPartition

MARKER_NAME = ".kafka_cleanshutdown"
LOCK_NAME = ".lock"


@dataclass(frozen=True)
class LogSettings:
    """
    Settings of a broker's partitions.

    @ivar forTopic: gives the settings of a topic's partitions; called once for each topic.
    @ivar partitionCount: gives the number of partitions of a topic (C{num.partitions}).
    @ivar topicLengthMax: UTF-16 code units (C{max.topic.name.length}).
    @ivar descriptorCountMax: segment files that may be open without need.
    """

    forTopic: Callable[[str], PartitionSettings]
    partitionCount: Callable[[str], int]
    topicLengthMax: int
    descriptorCountMax: int


@dataclass(eq=False)
class CreateJob(Job):
    """
    Create a partition's directory and first segment, durably.

    @ivar directory: the log directory.
    @ivar path: of the partition's directory.
    @ivar loaded: the partition, after a successful run.
    """

    cache: DescriptorCache
    directory: str
    path: str
    topicPartition: TopicPartition
    formats: Sequence[IRecordFormat]
    loaded: LoadedPartition | None = None

    def run(self) -> None:
        """
        Files of an interrupted attempt are loaded as after a crash.

        @raise StorageError: the partition cannot be created; the next request may try again.
        """
        self.cache.fileSystem.makeDirectories(self.path)
        self.loaded = loadPartition(self.cache, self.path, self.formats, True, self.events.append)
        self.cache.fileSystem.syncDirectory(self.directory)


class LogDirectory:
    """
    All partitions of a broker; the module states the rules.

    @ivar path: of the directory (C{log.dir}).
    @ivar logs: every partition that serves, or served until it failed.
    @ivar failures: partitions that could not be loaded, and why.
    @ivar topics: of C{logs} and C{failures}.
    @ivar partitionCount: gives the number of partitions of a topic.
    """

    def __init__(
        self,
        path: str,
        formats: Sequence[IRecordFormat],
        fileSystem: IFileSystem,
        settings: LogSettings,
        clock: Callable[[], int],
    ) -> None:
        """
        @param formats: that partitions may have, known by the suffix of their segment files; new
            partitions get the first.
        @param clock: milliseconds since the epoch.
        """
        self.path = path
        self.partitionCount = settings.partitionCount
        self._topicLengthMax = settings.topicLengthMax
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.failures: dict[TopicPartition, StorageError] = {}
        self.topics: set[str] = set()
        self.cache = DescriptorCache(fileSystem, settings.descriptorCountMax)
        self._clock = clock
        self._creating: set[TopicPartition] = set()
        self._fileSystem = fileSystem
        self._formats = formats
        self._settingsFor = cache(settings.forTopic)
        self._unlock: Callable[[], None] | None = None
        self._hadMarker = False

    @property
    def isOpen(self) -> bool:
        return self._unlock is not None

    def open(self, report: Reporter) -> None:
        """
        Lock the directory, remove the marker, load every partition. Blocks; without a marker it
        also reads each partition's last segment.

        @raise pylogbroker.errors.DirectoryLockedError: another broker has the directory.
        @raise StorageError: the directory itself cannot be created, read or synced.
        """
        _makeDurably(self._fileSystem, self.path)
        unlock = self._fileSystem.lock(f"{self.path}/{LOCK_NAME}")
        try:
            self._hadMarker = self._removeMarker()
            self._load(report)
            if not self._hadMarker:
                # A partition's directory that was created before a crash may not be synced.
                self._fileSystem.syncDirectory(self.path)
        except BaseException:
            self.logs.clear()
            self.failures.clear()
            self.topics.clear()
            unlock()
            raise
        self._unlock = unlock

    def _removeMarker(self) -> bool:
        marker = f"{self.path}/{MARKER_NAME}"
        if self._fileSystem.status(marker) is None:
            return False
        self._fileSystem.remove(marker)
        self._fileSystem.syncDirectory(self.path)
        return True

    def _load(self, report: Reporter) -> None:
        names = sorted(self._fileSystem.list(self.path))
        if not self._hadMarker and any(map(parseDirectoryName, names)):
            report(RecoveryNeeded(self.path))
        total = sum(parseDirectoryName(name) is not None for name in names)
        done = 0
        for name in names:
            path = f"{self.path}/{name}"
            status = self._fileSystem.status(path)
            if status is None or name in (LOCK_NAME, MARKER_NAME):
                continue
            if not status.isDirectory:
                report(UnexpectedFileInLogDirectory(path))
                continue
            topicPartition = parseDirectoryName(name)
            if topicPartition is None:
                report(UnexpectedDirectory(path))
                continue
            done += 1
            try:
                loaded = loadPartition(self.cache, path, self._formats, not self._hadMarker, report)
            except StorageError as error:
                self.failures[topicPartition] = error
                self.topics.add(topicPartition.topic)
                report(PartitionOffline(topicPartition, error))
                continue
            log = self._take(topicPartition, loaded)
            report(
                PartitionLoaded(
                    topicPartition,
                    len(loaded.segments),
                    log.logStartOffset,
                    log.logEndOffset,
                    done,
                    total,
                )
            )

    def _take(self, topicPartition: TopicPartition, loaded: LoadedPartition) -> PartitionLog:
        settings = self._settingsFor(topicPartition.topic)
        log = PartitionLog(topicPartition, loaded, self.cache, settings, self._clock)
        self.logs[topicPartition] = log
        self.topics.add(topicPartition.topic)
        return log

    def validateTopic(self, name: str) -> None:
        """@raise pylogbroker.errors.InvalidTopicError: the name breaks a rule."""
        validateTopic(name, self._topicLengthMax)

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        """
        A partition's log, or L{None}. Creates nothing.

        @raise PartitionOfflineError: the partition could not be loaded.
        """
        topicPartition = TopicPartition(topic, partition)
        error = self.failures.get(topicPartition)
        if error is not None:
            raise PartitionOfflineError(
                f"{self.path}/{topicPartition}",
                "use",
                f"the partition is out of service: {error}",
                error.errno,
            )
        return self.logs.get(topicPartition)

    def beginCreate(
        self, topic: str, partition: int, format: IRecordFormat | None = None
    ) -> CreateJob:
        """
        Create a partition. The caller checks name and number (C{validateTopic}, C{partitionCount}).

        @param format: one of the directory's; L{None}: the first.
        @raise pylogbroker.errors.InvalidTopicError: the name is too long for a file system (gotcha
            21).
        @raise PartitionOfflineError: the partition exists, and could not be loaded.
        @raise ValueError: the partition exists, or is being created.
        """
        topicPartition = TopicPartition(topic, partition)
        if self.get(topic, partition) is not None or topicPartition in self._creating:
            raise ValueError(f"{topicPartition} exists already, or is being created")
        formats = sorted(self._formats, key=lambda each: each is not format)
        path = f"{self.path}/{directoryName(topicPartition)}"
        job = CreateJob(self.cache, self.path, path, topicPartition, formats)
        self._creating.add(topicPartition)
        return job

    def finishCreate(self, job: CreateJob, error: StorageError | None) -> PartitionLog:
        """
        Take the new partition in.

        @raise StorageError: C{error}; a later C{beginCreate} may try again.
        """
        self._creating.discard(job.topicPartition)
        if error is not None:
            raise error
        assert job.loaded is not None
        return self._take(job.topicPartition, job.loaded)

    def writeCleanShutdownMarker(self) -> bool:
        """
        Write the clean-shutdown marker, durably, after all logs have been closed. Blocks.

        @return: L{False} if a partition failed, since recovery must check it.
        @raise ValueError: the directory is not open, or a log is not closed.
        @raise StorageError: it cannot be written; the next start recovers.
        """
        if not self.isOpen:
            raise ValueError(f"{self.path} is not open")
        if any(not log.closed for log in self.logs.values()):
            raise ValueError(f"not all partitions in {self.path} are closed")
        if any(log.failure is not None for log in self.logs.values()) or (
            self.failures and not self._hadMarker
        ):
            return False
        with closing(self._fileSystem.open(f"{self.path}/{MARKER_NAME}", create=True)) as file:
            file.sync()
        self._fileSystem.syncDirectory(self.path)
        return True

    def close(self) -> None:
        """
        Release descriptors and the lock. Without C{writeCleanShutdownMarker} before it, this is a
        crash. A second call does nothing.
        """
        self.cache.closeIdle()
        unlock, self._unlock = self._unlock, None
        if unlock is not None:
            unlock()


def _makeDurably(fileSystem: IFileSystem, path: str) -> None:
    """Create a directory and its parents, and sync the parents."""
    parent, _, name = path.rstrip("/").rpartition("/")
    status = fileSystem.status(path)
    if status is None:
        if name and parent:
            _makeDurably(fileSystem, parent)
        fileSystem.makeDirectories(path)
        fileSystem.syncDirectory(parent or ("/" if path.startswith("/") else "."))
    elif not status.isDirectory:
        raise StorageError(path, "use", "it is not a directory")
