"""
A log directory: all partitions of a broker, one lock, one clean-shutdown marker (spec-0.7
log-storage §1, §8, §9).

B{The marker} C{.kafka_cleanshutdown} says that every byte in the directory is synced and whole.
C{open} removes it, and syncs the removal, before it touches a partition. Only an orderly close
after a successful open writes it again, if all partitions were closed well. 0.7.2 wrote it even
after a failed start, and skipped recovery the next time (gotcha 2). The file C{.lock} keeps a
second broker out.

B{One bad partition} (unreadable, with a gap, on a failing disk) is kept in C{failures} with the
reason; the others serve (gotcha 30). Then no marker is written, except an earlier one after a
failed load, which leaves the files as they were.

B{Creating a partition} while serving is a job: C{beginCreate}, C{run} on a worker, C{finishCreate},
one a partition at a time (gotcha 14). It syncs both directories, so that no message is flushed into
a directory that a power cut could remove.

B{A partition keeps one format for life}: the suffix of its segment files tells which. Partitions of
record batches are L{BatchLog}s, if C{LogSettings.forBatches} gives settings for them; their
checkpoints, for the whole directory, are Kafka's.

B{What was lost} shows when the directory is opened: the checkpoint of high watermarks names a
partition that is not there, or an offset behind a log's end. A broker of a cluster must tell the
others before it begins such a partition anew. So C{open} can keep the checkpoints as they are until
C{forgetLosses}; a broker that fails to start in between finds the same again.

B{Removing a partition} is a job, too. It renames the directory as Kafka does,
C{<topic>-<partition>.<id>-delete}, and syncs that, before it removes the files: what a crash leaves
is no partition, and C{open} removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from uuid import UUID

from pylogbroker.errors import CorruptLogError, PartitionOfflineError, StorageError
from pylogbroker.interfaces import IFileSystem, IRecordFormat
from pylogbroker.storage.events import (
    DamagedFileIgnored,
    DeletedSegmentPurged,
    PartitionLoaded,
    PartitionOffline,
    PurgeFailed,
    RecoveryNeeded,
    Reporter,
    UnexpectedDirectory,
    UnexpectedFileInLogDirectory,
)
from pylogbroker.storage.filenames import (
    BATCH_SUFFIX,
    directoryName,
    isRemovedName,
    parseDirectoryName,
    removedName,
    validateTopic,
)
from pylogbroker.storage.files import DescriptorCache
from pylogbroker.storage.jobs import DiskJob
from pylogbroker.storage.kafka.batchlog import BatchLog, BatchLogSettings
from pylogbroker.storage.kafka.batchrecovery import LoadedBatches, LoadRequest, loadBatches
from pylogbroker.storage.kafka.checkpoints import (
    BROKER_EPOCH,
    CHECKPOINTS,
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT,
    readOffsets,
    readTopicId,
    writeOffsets,
    writeTopicId,
)
from pylogbroker.storage.partitionlog import PartitionLog, PartitionSettings
from pylogbroker.storage.recovery import LoadedPartition, formatOf, loadPartition
from pylogbroker.types import TopicPartition

MARKER_NAME = ".kafka_cleanshutdown"
LOCK_NAME = ".lock"
APACHE_METADATA = "__cluster_metadata-0"
"""Apache's metadata log, which is no partition."""

_OWN_NAMES = frozenset(
    {
        LOCK_NAME,
        MARKER_NAME,
        META_PROPERTIES,
        BROKER_EPOCH,
        *CHECKPOINTS,
        "metadata.journal",
        "metadata.journal.moved",
        "bootstrap.checkpoint",
        APACHE_METADATA,
    }
)


@dataclass(frozen=True)
class LogSettings:
    """
    Settings of a broker's partitions.

    @ivar forTopic: gives the settings of a topic's partitions; called once for each topic.
    @ivar forBatches: the same for topics of record batches; L{None} for one that nobody manages,
        whose log is a plain one. It is called again by C{configure}.
    @ivar isReplicated: whether other brokers have a partition of record batches, too; asked when
        it is loaded.
    @ivar partitionCount: gives the number of partitions of a topic (C{num.partitions}).
    @ivar topicLengthMax: UTF-16 code units (C{max.topic.name.length}).
    @ivar descriptorCountMax: segment files that may be open without need.
    """

    forTopic: Callable[[str], PartitionSettings]
    partitionCount: Callable[[str], int]
    topicLengthMax: int
    descriptorCountMax: int
    forBatches: Callable[[str], BatchLogSettings | None] = lambda topic: None
    isReplicated: Callable[[TopicPartition], bool] = lambda topicPartition: False


LoadedLog = LoadedPartition | LoadedBatches


@dataclass(eq=False)
class CreateJob(DiskJob):
    """
    Create a partition's directory and first segment, durably.

    @ivar directory: the log directory.
    @ivar path: of the partition's directory.
    @ivar load: loads the partition from its directory.
    @ivar batchSettings: as of the beginning; L{None}: it is no partition of a known topic of record
        batches.
    @ivar topicId: for C{partition.metadata}; L{None}: the partition has none.
    @ivar loaded: the partition, after a successful run.
    """

    fileSystem: IFileSystem
    directory: str
    path: str
    topicPartition: TopicPartition
    load: Callable[[Reporter], LoadedLog]
    batchSettings: BatchLogSettings | None
    topicId: UUID | None = None
    loaded: LoadedLog | None = None

    def run(self) -> None:
        """
        Files of an interrupted attempt are loaded as after a crash.

        @raise StorageError: the partition cannot be created; the next request may try again.
        """
        self.fileSystem.makeDirectories(self.path)
        if self.topicId is not None:
            writeTopicId(self.fileSystem, self.path, self.topicId)
        self.loaded = self.load(self.events.append)
        self.fileSystem.syncDirectory(self.directory)


@dataclass(eq=False)
class CheckpointJob(DiskJob):
    """
    Write Kafka's offset checkpoints.

    @ivar offsets: by the names of the files.
    """

    fileSystem: IFileSystem
    directory: str
    offsets: Mapping[str, Mapping[TopicPartition, int]]

    def run(self) -> None:
        for name, offsets in self.offsets.items():
            writeOffsets(self.fileSystem, f"{self.directory}/{name}", offsets)


@dataclass(eq=False)
class RemoveJob(DiskJob):
    """
    Remove a partition's directory.

    @ivar removedPath: its name from the first step on.
    @ivar checkpoint: forgets the partition, before another of its name can be created.
    @ivar isRenamed: whether the first step, which is durable, is done: the partition is gone.
    """

    fileSystem: IFileSystem
    directory: str
    path: str
    topicPartition: TopicPartition
    removedPath: str
    checkpoint: CheckpointJob | None
    isRenamed: bool = False

    def run(self) -> None:
        """
        @raise StorageError: once C{isRenamed}, the next start of the broker removes the rest.
        """
        isThere = self.fileSystem.status(self.path) is not None  # no, if its creation failed early
        if isThere:
            self.fileSystem.rename(self.path, self.removedPath)
        self.fileSystem.syncDirectory(self.directory)
        self.isRenamed = True
        if self.checkpoint is not None:
            self.checkpoint.run()
        if isThere:
            _removeTree(self.fileSystem, self.removedPath)


class LogDirectory:
    """
    All partitions of a broker; the module states the rules.

    @ivar path: of the directory (C{log.dir}).
    @ivar logs: every partition that serves, or served until it failed.
    @ivar failures: partitions that could not be loaded, and why.
    @ivar topics: of C{logs} and C{failures}.
    @ivar topicIds: of C{partition.metadata}, of partitions that had one at the start, but do not
        serve as those of a known topic of record batches.
    @ivar missing: partitions of record batches that were there when the directory was closed, and
        are not when it is opened.
    @ivar shortened: those whose log then ends before records that were flushed and committed.
    @ivar isMemoryDamaged: whether the checkpoint that tells of C{missing} could not be read.
    @ivar partitionCount: gives the number of partitions of a topic.
    @ivar wasClosedCleanly: whether C{open} has found the clean-shutdown marker.
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
        self.topicIds: dict[TopicPartition, UUID] = {}
        self.missing: set[TopicPartition] = set()
        self.shortened: set[TopicPartition] = set()
        self.isMemoryDamaged = False
        self._keepsLosses = False
        self.cache = DescriptorCache(fileSystem, settings.descriptorCountMax)
        self._clock = clock
        self._creating: set[TopicPartition] = set()
        self._unfinished: set[TopicPartition] = set()
        self._fileSystem = fileSystem
        self._formats = formats
        self._settingsFor = cache(settings.forTopic)
        self._forBatches = settings.forBatches
        self._isReplicated = settings.isReplicated
        self._saved: dict[str, Mapping[TopicPartition, int]] = {name: {} for name in CHECKPOINTS}
        self._unlock: Callable[[], None] | None = None
        self.wasClosedCleanly = False

    @property
    def isOpen(self) -> bool:
        return self._unlock is not None

    def open(
        self,
        report: Reporter,
        onLocked: Callable[[], None] = lambda: None,
        keepsLosses: bool = False,
    ) -> None:
        """
        Lock the directory, remove the marker, load every partition. Blocks; without a marker it
        also reads each partition's last segment.

        @param onLocked: called when the directory is locked, before a partition is loaded; what it
            raises ends the opening.
        @param keepsLosses: leave the checkpoints as they are until C{forgetLosses}, before which
            nothing may be appended or created.
        @raise pylogbroker.errors.DirectoryLockedError: another broker has the directory.
        @raise StorageError: the directory itself cannot be created, read or synced.
        """
        _makeDurably(self._fileSystem, self.path)
        unlock = self._fileSystem.lock(f"{self.path}/{LOCK_NAME}")
        try:
            onLocked()
            self.wasClosedCleanly = self._removeMarker()
            self._readCheckpoints(report)
            self._load(report)
            if not self.wasClosedCleanly:
                # A partition's directory that was created before a crash may not be synced.
                self._fileSystem.syncDirectory(self.path)
            self._findLosses()
            self._keepsLosses = keepsLosses
            if not keepsLosses:
                self.forgetLosses()
        except BaseException:
            self.logs.clear()
            self.failures.clear()
            self.topics.clear()
            self.topicIds.clear()
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
        if not self.wasClosedCleanly and any(map(parseDirectoryName, names)):
            report(RecoveryNeeded(self.path))
        total = sum(parseDirectoryName(name) is not None for name in names)
        done = 0
        for name in names:
            path = f"{self.path}/{name}"
            status = self._fileSystem.status(path)
            if status is None or name.removesuffix(".tmp") in _OWN_NAMES:
                continue
            if not status.isDirectory:
                report(UnexpectedFileInLogDirectory(path))
                continue
            if isRemovedName(name):
                self._purge(path, report)
                continue
            topicPartition = parseDirectoryName(name)
            if topicPartition is None:
                report(UnexpectedDirectory(path))
                continue
            done += 1
            try:
                settings = self._forBatches(topicPartition.topic)
                recover = not self.wasClosedCleanly
                loaded = self._loadLog(topicPartition, self._formats, settings, recover, report)
            except StorageError as error:
                self.failures[topicPartition] = error
                self.topics.add(topicPartition.topic)
                report(PartitionOffline(topicPartition, error))
                self._readTopicId(topicPartition, path)
                continue
            log = self._take(topicPartition, loaded, settings)
            if not isinstance(log, BatchLog):
                self._readTopicId(topicPartition, path)
            report(
                PartitionLoaded(
                    topicPartition,
                    len(log.segments),
                    log.logStartOffset,
                    log.logEndOffset,
                    done,
                    total,
                )
            )

    def _readTopicId(self, topicPartition: TopicPartition, path: str) -> None:
        try:
            found = readTopicId(self._fileSystem, path)
        except StorageError:  # then it is not known whose it is
            return
        if found is not None:
            self.topicIds[topicPartition] = found

    def _purge(self, path: str, report: Reporter) -> None:
        try:
            _removeTree(self._fileSystem, path)
        except StorageError as error:
            report(PurgeFailed(error))
        else:
            report(DeletedSegmentPurged(path))

    def _loadLog(
        self,
        topicPartition: TopicPartition,
        formats: Sequence[IRecordFormat],
        settings: BatchLogSettings | None,
        recover: bool,
        report: Reporter,
    ) -> LoadedLog:
        """Load a partition, or make its first segment. Blocks; on any thread."""
        path = f"{self.path}/{topicPartition}"
        names = self._fileSystem.list(path)
        isForBatches = settings is not None or PARTITION_METADATA in names
        if isForBatches:  # whose creation may not have come to the first segment
            formats = sorted(formats, key=lambda each: not each.isStamped)
        chosen = formatOf(path, names, formats) or formats[0]
        if settings is None or chosen.suffix != BATCH_SUFFIX:
            return loadPartition(self.cache, path, formats, recover, report)
        recoveryPoint = self._saved[RECOVERY_POINT].get(topicPartition, 0)
        request = LoadRequest(
            topicPartition,
            recoveryPoint if recover else None,
            self._saved[LOG_START].get(topicPartition, 0),
            settings.producerExpirationMs,
            self._clock(),
            settings.topicId,
            self._saved[HIGH_WATERMARK].get(topicPartition, 0)
            if self._isReplicated(topicPartition)
            else None,
        )
        return loadBatches(self.cache, path, settings.format or chosen, request, report)

    def _take(
        self,
        topicPartition: TopicPartition,
        loaded: LoadedLog,
        batchSettings: BatchLogSettings | None,
    ) -> PartitionLog:
        log: PartitionLog
        if isinstance(loaded, LoadedBatches):
            assert batchSettings is not None
            isReplicated = self._isReplicated(topicPartition)
            log = BatchLog(
                topicPartition, loaded, self.cache, batchSettings, self._clock, isReplicated
            )
            log.setCleaned(self._saved[CLEANER].get(topicPartition, 0))
        else:
            settings = self._settingsFor(topicPartition.topic)
            log = PartitionLog(topicPartition, loaded, self.cache, settings, self._clock)
        self.logs[topicPartition] = log
        self.topics.add(topicPartition.topic)
        return log

    def configure(self, topic: str) -> None:
        """The settings of a topic of record batches have changed; its partitions take them."""
        settings = self._forBatches(topic)
        for topicPartition, log in self.logs.items():
            if topicPartition.topic == topic and isinstance(log, BatchLog):
                assert settings is not None
                log.configure(settings)

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
        self,
        topic: str,
        partition: int,
        format: IRecordFormat | None = None,
        topicId: UUID | None = None,
    ) -> CreateJob:
        """
        Create a partition. The caller checks name and number (C{validateTopic}, C{partitionCount}).

        @param format: one of the directory's; L{None}: the first.
        @param topicId: of a topic of record batches, whose format the partition gets.
        @raise pylogbroker.errors.InvalidTopicError: the name is too long for a file system (gotcha
            21).
        @raise PartitionOfflineError: the partition exists, and could not be loaded.
        @raise ValueError: the partition exists, or is being created.
        """
        topicPartition = TopicPartition(topic, partition)
        if self.get(topic, partition) is not None or topicPartition in self._creating:
            raise ValueError(f"{topicPartition} exists already, or is being created")
        formats = sorted(
            self._formats,
            key=lambda each: not each.isStamped if topicId is not None else each is not format,
        )
        path = f"{self.path}/{directoryName(topicPartition)}"
        settings = self._forBatches(topic)
        load = partial(self._loadLog, topicPartition, formats, settings, True)
        job = CreateJob(self._fileSystem, self.path, path, topicPartition, load, settings, topicId)
        self._creating.add(topicPartition)
        self._unfinished.discard(topicPartition)
        return job

    def isCreating(self, topic: str) -> bool:
        """Whether a partition of a topic is being created."""
        return any(each.topic == topic for each in self._creating)

    def finishCreate(self, job: CreateJob, error: StorageError | None) -> PartitionLog:
        """
        Take the new partition in.

        @raise StorageError: C{error}; a later C{beginCreate} may try again, and C{beginRemove}
            removes what is there.
        """
        self._creating.discard(job.topicPartition)
        if error is not None:
            self._unfinished.add(job.topicPartition)
            raise error
        assert job.loaded is not None
        # The topic may have been removed since the job began; then its settings are gone.
        settings = self._forBatches(job.topicPartition.topic) or job.batchSettings
        return self._take(job.topicPartition, job.loaded, settings)

    def isToRemove(self, topicPartition: TopicPartition) -> bool:
        """
        Whether there is something to remove of a partition: it serves, or cannot be loaded, or its
        creation failed.
        """
        return any(topicPartition in each for each in (self.logs, self.failures, self._unfinished))

    def beginRemove(self, topicPartition: TopicPartition) -> RemoveJob:
        """
        Remove a partition, and its log from C{logs}. No job of the log and no checkpoint may be
        under way.

        @raise KeyError: it is not C{isToRemove}.
        """
        log = self.logs.get(topicPartition)
        # No topic id comes twice; without one, the time is unique enough.
        uniqueId = self.topicIds.pop(topicPartition, UUID(int=self._clock()))
        if isinstance(log, BatchLog) and log.topicId is not None:
            uniqueId = log.topicId
        if log is None:
            if topicPartition in self._unfinished:
                self._unfinished.remove(topicPartition)
            else:
                del self.failures[topicPartition]
        else:
            log.remove()
            del self.logs[topicPartition]
        if not any(each.topic == topicPartition.topic for each in (*self.logs, *self.failures)):
            self.topics.discard(topicPartition.topic)
        name = removedName(topicPartition, uniqueId.hex)
        return RemoveJob(
            self._fileSystem,
            self.path,
            f"{self.path}/{topicPartition}",
            topicPartition,
            f"{self.path}/{name}",
            self.beginCheckpoint(),
        )

    def finishRemove(self, job: RemoveJob, error: StorageError | None) -> None:
        """
        @raise StorageError: C{error}, if the directory could not be renamed: the next start finds
            the partition. What is left behind a later failure, that start removes.
        """
        if job.checkpoint is not None:
            self.finishCheckpoint(job.checkpoint, error)
        if error is not None and not job.isRenamed:
            raise error

    # -- checkpoints

    def _readCheckpoints(self, report: Reporter) -> None:
        for name in CHECKPOINTS:
            try:
                self._saved[name] = readOffsets(self._fileSystem, f"{self.path}/{name}")
            except CorruptLogError as error:
                self.isMemoryDamaged |= name == HIGH_WATERMARK
                report(DamagedFileIgnored(error))

    def _findLosses(self) -> None:
        watermarks = self._saved[HIGH_WATERMARK]
        self.missing = watermarks.keys() - self.logs.keys() - self.failures.keys()
        self.shortened = {
            each
            for each, log in self.logs.items()
            if isinstance(log, BatchLog) and watermarks.get(each, 0) > log.logEndOffset
        }

    def isRemembered(self, topicPartition: TopicPartition) -> bool:
        """Whether the next C{open} would find a partition C{missing} if it were gone."""
        return topicPartition in self._saved[HIGH_WATERMARK]

    def forgetLosses(self) -> None:
        """
        Take the directory as it is: what is C{missing} or C{shortened} is known to those who must
        know. Blocks. If losses were kept, each partition that is there is noted now, since a crash
        may have come between its creation and that.

        @raise StorageError: the checkpoints could not be corrected.
        """
        wereKept, self._keepsLosses = self._keepsLosses, False
        self._correctCheckpoints(wereKept)
        self.missing.clear()
        self.shortened.clear()
        self.isMemoryDamaged = False

    def _correctCheckpoints(self, namesAll: bool) -> None:
        """
        Drop partitions that are not there any more, before new ones of their names are created; and
        lower what is ahead of a log that a crash has shortened, before anything is appended to it.

        @param namesAll: whether the checkpoints are to name each partition.
        """
        known = {*self.logs, *self.failures}
        logs = [log for log in self.logs.values() if isinstance(log, BatchLog)]
        if (
            any(set(offsets) - known for offsets in self._saved.values())
            or any(self.checkpointsAhead(log) for log in logs)
            or (namesAll and not all(self.isRemembered(log.topicPartition) for log in logs))
        ):
            job = self.beginCheckpoint()
            if job is not None:
                job.run()
                self.finishCheckpoint(job, None)

    def _offsets(self) -> dict[str, dict[TopicPartition, int]]:
        """What the checkpoints should say; partitions that were not loaded keep what they had."""
        offsets: dict[str, dict[TopicPartition, int]] = {
            name: {
                each: offset for each, offset in self._saved[name].items() if each in self.failures
            }
            for name in CHECKPOINTS
        }
        for topicPartition, log in self.logs.items():
            if isinstance(log, BatchLog):
                offsets[RECOVERY_POINT][topicPartition] = log.flushedOffset
                offsets[HIGH_WATERMARK][topicPartition] = min(log.highWatermark, log.flushedOffset)
                if log.cleanedOffset > 0:
                    offsets[CLEANER][topicPartition] = log.cleanedOffset
                if log.logStartOffset > log.oldestOffset:
                    offsets[LOG_START][topicPartition] = log.logStartOffset
        return offsets

    def beginCheckpoint(self, names: Sequence[str] = CHECKPOINTS) -> CheckpointJob | None:
        """
        Write Kafka's offset checkpoints; one such job at a time.

        @param names: of the files.
        @return: L{None}: they are up to date, or must stay as they are.
        """
        if self._keepsLosses:
            return None
        offsets = self._offsets()
        changed = {name: offsets[name] for name in names if offsets[name] != self._saved[name]}
        return CheckpointJob(self._fileSystem, self.path, changed) if changed else None

    def flushedStart(self, log: BatchLog) -> int:
        """Where a log begins after a power cut, at the least."""
        saved = self._saved[LOG_START].get(log.topicPartition, 0)
        return min(log.logStartOffset, max(saved, log.oldestOffset))

    def checkpointsAhead(self, log: BatchLog) -> list[str]:
        """
        The checkpoints that say more of a partition than is true, after a truncation or a crash.
        After another crash they would cover what was appended since; so they are written before.
        """
        known = {
            HIGH_WATERMARK: log.highWatermark,
            LOG_START: log.logStartOffset,
            CLEANER: log.cleanedOffset,
        }
        return [
            name
            for name, offset in known.items()
            if self._saved[name].get(log.topicPartition, 0) > offset
        ]

    def finishCheckpoint(self, job: CheckpointJob, error: StorageError | None) -> None:
        """Note what is written. After an error the next checkpoint writes it again."""
        if error is None:
            self._saved.update(job.offsets)

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
            self.failures and not self.wasClosedCleanly
        ):
            return False
        checkpoint = self.beginCheckpoint()
        if checkpoint is not None:
            checkpoint.run()
            self.finishCheckpoint(checkpoint, None)
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


def _removeTree(fileSystem: IFileSystem, path: str) -> None:
    """Remove a directory and what is in it. Blocks."""
    for name in fileSystem.list(path):
        inner = f"{path}/{name}"
        status = fileSystem.status(inner)
        if status is not None and status.isDirectory:
            _removeTree(fileSystem, inner)
        else:
            fileSystem.remove(inner)
    fileSystem.removeDirectory(path)
