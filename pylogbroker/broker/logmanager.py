"""
Upkeep: what happens to partitions by the clock and on worker threads. Writing at the end of each reactor turn, flushing, rolling, retention; and
the pushing back that goes with them.

The states of a partition's writes, and what moves them:

 - *pending*: appended in this turn, in memory. At the end of the turn, or above 256 KiB at once, one gather-write takes them to the page cache.
 - *unflushed*: in the page cache. A flush on a worker makes them durable and visible. It begins when enough messages are unflushed (a flush *by count*),
   at a scheduler's tick when the oldest has waited long enough (*by time*), or when the bytes go over a limit (*by size*). One flush a partition at a time;
   what arrives meanwhile is the next one's.
 - *held up*: the disk is full. What was accepted stays in memory and is tried again by the clock. Other partitions go on where they can.
 - *failed*: a write or a flush failed in another way. A failed fsync is never repeated: the kernel may have dropped the pages, and a second fsync would
   say that all is well. The partition is out of service, who waits for it is told, the others go on.

Pushing back is one question that the broker asks before each append, L{LogManager.isThrottled}: too many bytes unflushed in the partition, or in all of
them, or the disk is full. Who has to wait does so until *half* of the limit is reached, so that producers move in strides and not in steps.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from pylogbroker.broker.unackedproduces import UnackedProduces
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import StorageError
from pylogbroker.metrics.counters import FlushCounters
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.workers import IWorker
from pylogbroker.storage.events import LogEvent
from pylogbroker.storage.jobs import DeleteJob, Job
from pylogbroker.storage.partitionlog import PartitionLog

WRITE_SIZE_MAX = 256 << 10
RETENTION_DELAY_MS = 60_000
_MINUTE_MS = 60_000


class LogManager:
    """
    Keeps the partitions of one broker.

    @ivar unflushedSize: bytes in all partitions that are appended and not flushed.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        worker: IWorker,
        settings: BrokerSettings,
        warmth: PageCache,
        counters: FlushCounters,
    ) -> None:
        """
        @param clock: an L{twisted.internet.interfaces.IReactorTime}.
        @param worker: for flushes, rolls and deletions.
        """
        self._clock = clock
        self._worker = worker
        self._settings = settings
        self._warmth = warmth
        self._counters = counters
        self._logs: Callable[[], list[PartitionLog]] = list
        self._partitionSizeMax = settings.maxUnflushedBytesPerPartition
        self._sizeMax = settings.maxUnflushedBytes
        self.unflushedSize = 0
        self._touched: dict[PartitionLog, None] = {}
        self._turn: Any = None
        self._unflushed: dict[PartitionLog, int] = {}
        self._heldUp: dict[PartitionLog, None] = {}
        self._lost: dict[PartitionLog, None] = {}
        self._retry: Any = None
        self._busy: dict[PartitionLog, list[Callable[[], None]]] = {}
        self._rolls: dict[PartitionLog, list[Deferred[None]]] = {}
        self._relief: dict[PartitionLog, list[Deferred[None]]] = {}
        self._processRelief: list[Deferred[None]] = []
        self._retaining: dict[PartitionLog, None] = {}
        self._ticks: list[LoopingCall] = []
        self._firstRetention: Any = None

    def nowMs(self) -> int:
        """The clock, in milliseconds since the epoch."""
        return int(self._clock.seconds() * 1000)

    # -- the clock

    def start(self, logs: Callable[[], list[PartitionLog]]) -> None:
        """
        Begin to look after partitions.

        @param logs: gives those that there are.
        """
        self._logs = logs
        self._tick(self._settings.logDefaultFlushSchedulerIntervalMs, self._flushByTime)
        self._firstRetention = self._clock.callLater(
            RETENTION_DELAY_MS / 1000, self._beginRetention
        )

    def _tick(self, intervalMs: int, act: Callable[[], object], now: bool = False) -> None:
        call = LoopingCall(act)
        call.clock = self._clock
        call.start(intervalMs / 1000, now=now).addErrback(self._tickFailed)
        self._ticks.append(call)

    def _tickFailed(self, failure: Failure) -> None:
        self._log.failure("Upkeep by the clock has stopped: this is a bug", failure)

    def _beginRetention(self) -> None:
        self._firstRetention = None
        self._tick(self._settings.logCleanupIntervalMins * _MINUTE_MS, self.retain, now=True)

    def stopTimers(self) -> None:
        """No more by the clock; what is under way goes on."""
        for call in self._ticks:
            call.stop()
        self._ticks.clear()
        for delayed in (self._firstRetention, self._retry):
            if delayed is not None:
                delayed.cancel()
        self._firstRetention = self._retry = None

    def stop(self) -> None:
        """Nothing happens by the clock any more; all partitions are closed."""
        self.stopTimers()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    # -- writing

    def appended(self, log: PartitionLog, size: int) -> None:
        """The broker has appended bytes to a partition."""
        self.unflushedSize += size
        self._unflushed[log] = self._unflushed.get(log, 0) + size
        self._touched[log] = None
        if log.pendingSize >= WRITE_SIZE_MAX:
            self._write(log)
        if self._turn is None:
            self._turn = self._clock.callLater(0, self._endTurn)

    def _endTurn(self) -> None:
        self._turn = None
        self.writePending()

    def writePending(self) -> None:
        """
        Take what was appended in this turn to the page cache, without waiting for the turn's end. An answer that proves to a producer that the broker has
        taken something must not be ahead of this: if the broker were killed in between, it would have proven too much.
        """
        touched, self._touched = self._touched, {}
        for log in touched:
            self._write(log)

    def _write(self, log: PartitionLog) -> None:
        segment = log.segments[-1]
        position = segment.writtenSize
        log.write()
        if log.failure is not None:
            self._failed(log)
            return
        if log.pendingSize and log.blocked is not None:
            self._holdUp(log, log.blocked)
            return
        if segment.writtenSize > position:
            self._warmth.remember(segment.path, position, segment.writtenSize - position)
        if log.flushDueOffset > log.highWatermark or log.unflushedSize > self._partitionSizeMax:
            self._flush(log)
        elif self.unflushedSize > self._sizeMax:
            self._flushAll()

    def lostCount(self) -> int:
        """How many partitions have failed so far."""
        return len(self._lost)

    async def proven(self, unproven: UnackedProduces) -> None:
        """
        What was written is out of our hands; what could not be is not. Fires when all that a connection has produced was written: at once, but for a full disk.

        @param unproven: what it has produced, all of which was tried to be written.
        @raise PartitionOfflineError: a partition that it went to is out of service, so some of it may be lost.
        """
        lost = islice(
            self._lost, unproven.failedPartitionsBefore, None
        )  # in the order in which they failed
        for log in [log for log in (*lost, *self._heldUp) if unproven.concerns(log.topicPartition)]:
            while log in self._heldUp and log.pendingSize:
                await self.relief(log)
            if log.failure is not None:
                raise log.unavailableError("keep what was produced to")

    def _holdUp(self, log: PartitionLog, reason: StorageError) -> None:
        if log not in self._heldUp:
            self._heldUp[log] = None
            sentence = "{topicPartition} waits for room on the disk: {reason}. Its producers wait, nothing is lost"
            self._log.error(sentence, topicPartition=log.topicPartition, reason=reason)
        if self._retry is None:
            self._retry = self._clock.callLater(
                self._settings.diskFullRetryMs / 1000, self._tryAgain
            )

    def _tryAgain(self) -> None:
        self._retry = None
        for log in list(self._heldUp):
            self._write(log)
            # Nothing pending: it was a roll that had no room, and those who are let go now try that again.
            if not log.pendingSize and self._heldUp.pop(log, 0) is None:
                self._log.info("{topicPartition} is tried again", topicPartition=log.topicPartition)
                self._relieve(log)
                if (
                    log in self._relief
                ):  # more than half of the limit was held up: relief comes when that is flushed
                    self._flush(log)

    def _failed(self, log: PartitionLog) -> None:
        if log not in self._lost:  # a write and the job that ends behind it may both find out
            self._lost[log] = None
            self._log.critical(
                "{topicPartition} is out of service: {reason}",
                topicPartition=log.topicPartition,
                reason=log.failure,
            )
        self._heldUp.pop(log, None)
        self._account(log)
        self._relieve(log)

    # -- pushing back

    def isThrottled(self, log: PartitionLog) -> bool:
        """Whether the next append to a partition has to wait."""
        return (
            log.unflushedSize > self._partitionSizeMax
            or self.unflushedSize > self._sizeMax
            or log in self._heldUp
        )

    def relief(self, log: PartitionLog) -> Deferred[None]:
        """
        When the next append may be tried again.

        @return: fires with L{None} when the partition, or the process, is down to half of its limit, has room on the disk, or has failed. Can be cancelled.
        """
        waiting: Deferred[None] = Deferred(self._forget)
        if log.unflushedSize > self._partitionSizeMax or log in self._heldUp:
            self._relief.setdefault(log, []).append(waiting)
            self._flush(log)
        else:
            self._processRelief.append(waiting)
            self._flushAll()
        return waiting

    def _forget(self, waiting: Deferred[None]) -> None:
        for queue in (self._processRelief, *self._relief.values(), *self._rolls.values()):
            if waiting in queue:
                queue.remove(waiting)

    def _relieve(self, log: PartitionLog) -> None:
        if log.failure is not None or (
            log.unflushedSize <= self._partitionSizeMax // 2 and log not in self._heldUp
        ):
            _fire(self._relief.pop(log, ()))
        if self.unflushedSize <= self._sizeMax // 2:
            queue, self._processRelief = self._processRelief, []
            _fire(queue)

    @property
    def waitingCount(self) -> int:
        """How many produce requests wait because of limits, a full disk or a roll."""
        return sum(map(len, (self._processRelief, *self._relief.values(), *self._rolls.values())))

    def waits(self) -> list[tuple[PartitionLog | None, str, int]]:
        """
        Who holds producers back.

        @return: partition (L{None}: all of them together), why, and how many requests wait: C{"disk"} (it is full), C{"flush"} (too much is
            unflushed), C{"roll"} (its next segment is being made).
        """
        found: list[tuple[PartitionLog | None, str, int]] = []
        if self._processRelief:
            found.append((None, "flush", len(self._processRelief)))
        for log in {**self._heldUp, **self._relief}:
            found.append(
                (log, "disk" if log in self._heldUp else "flush", len(self._relief.get(log, ())))
            )
        found += [(log, "roll", len(queue)) for log, queue in self._rolls.items()]
        return found

    # -- flushing

    def _flushByTime(self) -> None:
        now = self.nowMs()
        for log in list(self._unflushed):
            if log.flushDue(now):
                self._flush(log)

    def _flushAll(self) -> None:
        for log in list(self._unflushed):
            self._flush(log)

    def _flush(self, log: PartitionLog) -> None:
        if log in self._busy:
            return
        job = log.beginFlush()
        if job is None:
            return
        begun = self._clock.seconds()

        def finish(error: StorageError | None) -> None:
            log.finishFlush(job, error, self.nowMs())
            if error is None:
                self._counters.flushed(int((self._clock.seconds() - begun) * 1000))
            else:
                self._counters.failedCount += 1

        self._run(log, job, finish)

    def _run(
        self, log: PartitionLog, job: Job, finish: Callable[[StorageError | None], None]
    ) -> None:
        """Carry out a log's job; one at a time for each log, and then what has waited for it."""
        self._busy[log] = []

        def done(result: object) -> None:
            waiting = self._busy.pop(log)
            finish(self._errorIn(result))
            for report in job.events:
                self.report(report)
            self._settle(log)
            for act in waiting:
                act()

        self._worker.do(job.run).addBoth(done).addErrback(self._tickFailed)

    def report(self, report: LogEvent) -> None:
        """Log what the log has to say."""
        self._log.emit(
            LogLevel.warn if report.isWarning else LogLevel.info, report.format, **vars(report)
        )

    def _errorIn(self, result: object) -> StorageError | None:
        if not isinstance(result, Failure):
            return None
        if isinstance(result.value, StorageError):
            return result.value
        self._log.failure("A job of the log failed in a way that nobody foresaw", result)
        return StorageError("", "work on a partition", result.getErrorMessage())

    def _settle(self, log: PartitionLog) -> None:
        """After a job: the counts, the next flush, and who has waited."""
        if log.failure is not None:
            self._failed(log)
            return
        self._account(log)
        isWaitedFor = bool(self._processRelief) or log in self._relief
        if (
            log.flushDueOffset > log.highWatermark
            or log.unflushedSize > self._partitionSizeMax
            or (isWaitedFor and log.unflushedSize)
        ):
            self._flush(log)
        self._relieve(log)

    def _account(self, log: PartitionLog) -> None:
        """Bring the sum up to date with what a partition has unflushed now."""
        size = log.unflushedSize
        self.unflushedSize += size - self._unflushed.pop(log, 0)
        if size:
            self._unflushed[log] = size

    # -- rolling

    def roll(self, log: PartitionLog) -> Deferred[None]:
        """
        Begin the next segment of a partition, or join a roll that is under way.

        @return: fires with L{None} when that is over; whether it went well, the log's C{failure} and C{blocked} say. Can be cancelled.
        """
        waiting: Deferred[None] = Deferred(self._forget)
        joined = self._rolls.get(log)
        if joined is not None:
            joined.append(waiting)
            return waiting
        self._rolls[log] = [waiting]
        self._beginRoll(log)
        return waiting

    def _beginRoll(self, log: PartitionLog) -> None:
        if log not in self._busy:
            self._write(log)
        if log in self._busy:  # with another job; or writing has begun a flush
            self._busy[log].append(lambda: self._beginRoll(log))
            return
        job = log.beginRoll()
        if job is None:
            _fire(self._rolls.pop(log))
            return

        def finish(error: StorageError | None) -> None:
            log.finishRoll(job, error, self.nowMs())
            if error is None:
                self._log.info(
                    "Rolled {topicPartition} at {baseOffset}",
                    topicPartition=log.topicPartition,
                    baseOffset=job.position.offset,
                )
            elif log.blocked is not None:
                self._holdUp(log, log.blocked)
            _fire(self._rolls.pop(log))

        self._run(log, job, finish)

    # -- retention

    def retain(self) -> None:
        """Delete the segments that the retention rules let go; skipped where the last time is not over."""
        for log in self._logs():
            if log not in self._retaining:
                self._retaining[log] = None
                Deferred.fromCoroutine(self._retainOne(log)).addErrback(self._tickFailed)

    async def _retainOne(self, log: PartitionLog) -> None:
        try:
            await self._retainInTurn(log)
        finally:
            del self._retaining[log]

    async def _retainInTurn(self, log: PartitionLog) -> None:
        await self._jobsDone(log)
        inspection = log.beginStat()
        if inspection is None:
            return
        self._run(log, inspection, lambda error: log.finishStat(inspection, error))
        await self._jobsDone(log)
        segments = log.expired(self.nowMs())
        if log.needsRoll(segments):
            await self.roll(log)
        await self._jobsDone(log)
        deletion = log.beginDelete(segments, self.nowMs())
        if deletion is not None:
            self._run(log, deletion, lambda error: self._retired(log, deletion, error))
            await self._jobsDone(log)

    def _retired(self, log: PartitionLog, job: DeleteJob, error: StorageError | None) -> None:
        log.finishDelete(job, error)
        if job.segments:
            sentence = (
                "Deleted {count} segments of {topicPartition}, which begins at {startOffset} now"
            )
            self._log.info(
                sentence,
                count=len(job.renamed),
                topicPartition=log.topicPartition,
                startOffset=log.logStartOffset,
            )
        if error is not None:
            self._log.error(
                "Deleting segments of {topicPartition} did not work: {error}. It is tried again",
                topicPartition=log.topicPartition,
                error=error,
            )

    # -- the end

    def drain(self) -> Deferred[None]:
        """
        Write and flush everything, and wait for every job.

        @return: fires with L{None}. What could not be flushed, the logs' C{failure} or C{blocked} says.
        """
        return Deferred.fromCoroutine(self._drain())

    async def _drain(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._endTurn()
        for log in list(self._unflushed):
            if log in self._heldUp:
                self._write(log)  # one last time
            await self._jobsDone(log)
            self._flush(log)
        for log in list(self._busy):
            await self._jobsDone(log)

    async def close(self, log: PartitionLog) -> None:
        """Flush what is left in a partition, and close it. Nothing may be appended any more."""
        await self._jobsDone(log)
        pendingSize = log.pendingSize
        job = log.beginClose()
        if job is not None:
            self._run(log, job, lambda error: log.finishClose(job, error, self.nowMs()))
            await self._jobsDone(log)
        elif log.failure is not None:
            if pendingSize:
                sentence = "{topicPartition} is closed with {size} bytes that could not be written: they are lost ({reason})"
                self._log.critical(
                    sentence,
                    topicPartition=log.topicPartition,
                    size=pendingSize,
                    reason=log.failure,
                )
            self._relieve(log)

    async def _jobsDone(self, log: PartitionLog) -> None:
        while log in self._busy:
            done: Deferred[None] = Deferred()
            self._busy[log].append(lambda done=done: done.callback(None))  # type: ignore[misc] # mypy: a lambda with a default
            await done

    async def perform(self, job: Job) -> StorageError | None:
        """
        Carry out a job that belongs to no partition that is there yet.

        @return: why it failed, whatever that was.
        """
        try:
            result: object = await self._worker.do(job.run)
        except Exception:
            result = Failure()
        for report in job.events:
            self.report(report)
        return self._errorIn(result)


def _fire(waiting: Any) -> None:
    for each in waiting:
        each.callback(None)
