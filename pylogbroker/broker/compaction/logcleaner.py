"""
L{LogCleaner}: compacts the partitions of topics with C{cleanup.policy=compact}. A module of its
own, since the log's manager moves data of every partition, and this decides for a few.

One partition at a time: by the clock, the one with the largest part of uncompacted bytes, above
C{min.cleanable.dirty.ratio}, or with records older than C{max.compaction.lag.ms}. The long part, a
run, is done by a process of its own (L{CompactionProcess}), with low priority, in bounded memory,
and no faster than C{log.cleaner.io.max.bytes.per.second}. It changes nothing, so that the partition
works as always. The exchange of the files is a job of the partition, as a roll is.

A partition whose segments cannot be read is not tried again before the next start; one that failed
otherwise (a full disk) is tried again by the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.compaction.compactionprocess import decodeAnswer, encodeRequest
from pylogbroker.broker.logmanager import LogManager
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.metrics.counters import CompactionCounters
from pylogbroker.net.workers import IWorker
from pylogbroker.storage.kafka.batchlog import BatchLog, Compactable
from pylogbroker.storage.kafka.checkpoints import CLEANER
from pylogbroker.storage.kafka.compaction import (
    CompactedGroup,
    CompactionRequest,
    CompactionResult,
    Compactor,
)
from pylogbroker.storage.kafka.segmentswap import ReplaceJob, removeCleaned
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.segments import Segment
from pylogbroker.types import TopicPartition

_MODULE = "pylogbroker.broker.compaction.compactionprocess"
_ERROR_SIZE_MAX = 2000


class CompactionProcess:
    """A L{Compactor} that has a process of its own for each run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._isStopped = False

    def __call__(self, request: CompactionRequest) -> CompactionResult:
        """
        Compact. Blocks.

        @raise StorageError: it did not work, or C{stop} was called.
        """
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)
        with subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
            # Linux may share the processor out among sessions first (sched_autogroup). In the
            # broker's, compaction would use up the broker's share, whatever its nice value.
            start_new_session=True,
        ) as process:
            self._process = process
            if self._isStopped:
                process.kill()
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(encodeRequest(request) + "\n")
                process.stdin.flush()  # it stays open: its end would end the process
                answer = process.stdout.readline()
            except OSError:
                answer = ""
            if not answer:
                process.kill()
                with suppress(OSError):  # of a request that was not flushed
                    process.stdin.close()
                assert process.stderr is not None
                said = process.stderr.read()[-_ERROR_SIZE_MAX:].strip()
                raise StorageError(request.directory, "compact", f"the process ended: {said}")
            self._process = None
        return decodeAnswer(answer)

    def stop(self) -> None:
        """End the run under way; later ones fail. On any thread."""
        self._isStopped = True
        process = self._process
        if process is not None:
            process.kill()


class LogCleaner:
    """
    Compacts, by the clock; the module states the rules.
    """

    _log = Logger()

    def __init__(
        self,
        logManager: LogManager,
        directory: LogDirectory,
        settings: BrokerSettings,
        fileSystem: IFileSystem,
        worker: IWorker,
        compactor: Compactor,
        stop: Callable[[], object] = lambda: None,
        counters: CompactionCounters | None = None,
    ) -> None:
        """
        @param worker: runs C{compactor}, which takes long: a worker of its own.
        @param stop: ends what C{compactor} does.
        @param counters: the broker's.
        """
        self._logManager = logManager
        self._directory = directory
        self._settings = settings
        self._fileSystem = fileSystem
        self._worker = worker
        self._compactor = compactor
        self._stopCompactor = stop
        self.counters = CompactionCounters() if counters is None else counters
        self._isRunning = False
        self._unreadable: set[TopicPartition] = set()
        self._isUnderWay = False

    def start(self) -> None:
        """Begin to look for what to compact, every C{log.cleaner.backoff.ms}."""
        self._isRunning = True
        self._logManager.repeat(self._settings.logCleanerBackoffMs, self.check)

    def stop(self) -> None:
        """End the run under way, and begin no more. What it has written is of no use."""
        self._isRunning = False
        self._stopCompactor()

    def check(self) -> None:
        """Compact what is due, unless that is under way."""
        if self._isRunning and not self._isUnderWay:
            self._isUnderWay = True
            underWay = Deferred.fromCoroutine(self._compactDue())
            underWay.addErrback(self._failedUnexpectedly).addBoth(self._ended)

    def _ended(self, _result: Any) -> None:
        self._isUnderWay = False

    def _failedUnexpectedly(self, failure: Any) -> None:
        self._log.failure("Compaction failed unexpectedly: this is a bug", failure)

    async def _compactDue(self) -> None:
        tried: set[TopicPartition] = set()
        while self._isRunning:
            found = await self._choose(tried)
            if found is None:
                return
            log, compactable = found
            if not await self._compact(log, compactable):
                tried.add(log.topicPartition)

    async def _choose(self, tried: set[TopicPartition]) -> tuple[BatchLog, Compactable] | None:
        """The partition that needs it most, with what can be compacted."""
        nowMs = self._logManager.nowMs()
        best: tuple[BatchLog, Compactable] | None = None
        for topicPartition, log in list(self._directory.logs.items()):
            if (
                not isinstance(log, BatchLog)
                or topicPartition in tried
                or topicPartition in self._unreadable
            ):
                continue
            found = log.compactable(nowMs)
            if found is None or (best is not None and best[1].ratio >= found.ratio):
                continue
            settings = log.settings.compaction
            assert settings is not None
            if found.ratio > settings.minDirtyRatio or (
                await self._isOverdue(found, nowMs - settings.maxLagMs)
            ):
                best = log, found
        return best

    async def _isOverdue(self, found: Compactable, latestMs: int) -> bool:
        """Whether a record of a dirty segment is older than a time."""
        if latestMs < 0:
            return False
        look = partial(_firstTimestamp, self._fileSystem, found.dirtySegments)
        try:
            timestampMs = await self._worker.submit(look)
        except StorageError:  # the run will say why
            return True
        return 0 <= timestampMs < latestMs

    async def _compact(self, log: BatchLog, found: Compactable) -> bool:
        """Whether it went well, and brought the log forward."""
        isDone = await self._compactAndReplace(log, found)
        if not isDone and self._isRunning:
            self.counters.failedCount += 1
            # Another partition of this name may be there now, whose files these are not.
            with suppress(StorageError):
                await self._worker.submit(partial(removeCleaned, self._fileSystem, log.path))
        return isDone

    async def _compactAndReplace(self, log: BatchLog, found: Compactable) -> bool:
        settings, name = self._settings, log.topicPartition
        startedMs = self._logManager.nowMs()
        request = log.compactionRequest(
            found,
            startedMs,
            settings.logCleanerDedupeBufferSize,
            settings.logCleanerIoMaxBytesPerSecond,
        )
        try:
            result = await self._worker.submit(partial(self._run, request))
            for group in result.groups:
                if not await self._replace(log, found, group):
                    return False
        except StorageError as error:
            # Else a truncation has cut what was read.
            isStillThere = set(found.segments) <= set(log.segments)
            if isinstance(error, CorruptLogError) and isStillThere:
                self._unreadable.add(name)
            if self._isRunning and not log.closed:
                self._log.error(
                    "Compacting {topicPartition} did not work: {error}",
                    topicPartition=name,
                    error=error,
                )
            return False
        if log.isOffline:
            return False
        log.setCleaned(result.endOffset)
        await self._logManager.checkpoint((CLEANER,))
        seconds = (self._logManager.nowMs() - startedMs) / 1000
        self.counters.compacted(result.recordCount, result.keptCount, seconds)
        self._log.info(
            "Compacted {topicPartition} up to {endOffset}: {keptCount} of {recordCount} records"
            " stay",
            topicPartition=name,
            endOffset=result.endOffset,
            keptCount=result.keptCount,
            recordCount=result.recordCount,
        )
        return True

    def _run(self, request: CompactionRequest) -> CompactionResult:
        removeCleaned(self._fileSystem, request.directory)
        return self._compactor(request)

    async def _replace(self, log: BatchLog, found: Compactable, group: CompactedGroup) -> bool:
        """
        Exchange a group.

        @raise StorageError: it did not work.
        """
        if not self._isRunning:
            return False

        def begin() -> ReplaceJob | None:
            return log.beginReplace(found, group)

        job, error = await self._logManager.runAlone(log, begin, log.finishReplace)
        if error is not None:
            raise error
        return job is not None


def _firstTimestamp(fileSystem: IFileSystem, segments: Sequence[Segment]) -> int:
    """What compacts is imported by the worker that needs it, not by every broker that starts."""
    from pylogbroker.broker.compaction.segmentrewrite import firstTimestamp

    return firstTimestamp(fileSystem, segments)
