"""
L{Broker}: the effect of requests, free of any wire format.

A result is a value, or a Deferred of one: it may wait for a partition, a segment, a compressed set
that a worker validates, or a limit. A refusal is an exception of L{pylogbroker.errors}; the
protocol handler turns it into a code, a silent drop or a closed connection.

L{Broker.tryProduce} appends a run of plain sets to an existing, free partition at once; the
benchmarks measure it. Everything else takes L{Broker.produce}, a coroutine for one set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.logmanager import LogManager, Partition
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import (
    DecompressionLimitError,
    InvalidRequestValueError,
    InvalidTopicError,
    PartitionOutOfRangeError,
    PylogbrokerError,
    StorageError,
    UnknownPartitionError,
)
from pylogbroker.interfaces import (
    EMPTY_SLICE,
    AppendResult,
    CheckLimits,
    IRecordFormat,
    Slice,
    TimestampOffset,
    ValidatedBatches,
)
from pylogbroker.limits import MemoryBudget
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.workers import IWorker
from pylogbroker.storage.jobs import FindPositionJob
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import MarkKind, PartitionLog
from pylogbroker.storage.segments import Segment
from pylogbroker.types import TopicPartition

BATCH_HEAD_SIZE = 12
"""Base offset and size of a record batch."""

INLINE_COMPRESSED_SIZE_MAX = 2 << 10
INLINE_DECOMPRESSED_SIZE_MAX = 64 << 10
DECOMPRESSION_COPY_COUNT = 2  # a set in pieces, and joined
DUE_FLUSH_WAIT_MS = 5_000
RUN_OFFSET_COUNT_MAX = 1 << 20
"""Offsets of batches that are appended together: indexes rely on fewer than 2^24."""


class Broker:
    """
    Carries requests out.

    @ivar pageCache: which data can be sent without waiting
        (L{pylogbroker.net.sendfile.ISendContext}).
    @ivar readWorker: reads the other data.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        directory: LogDirectory,
        settings: BrokerSettings,
        logManager: LogManager,
        pageCache: PageCache,
        readWorker: IWorker,
        counters: BrokerCounters,
        onCreate: Callable[[str], None] = lambda topic: None,
        isCurrent: Callable[[str], bool] = lambda topic: False,
    ) -> None:
        """
        @param onCreate: called with the topic of each created partition.
        @param isCurrent: whether a topic is one of Kafka's current protocol, which that of 2011
            neither reads nor creates.
        """
        self._clock = clock
        self._directory = directory
        self._partitions: dict[tuple[str, int], Partition] = {}  # those that requests have named
        self._payloadSizeMax = settings.maxMessageSize
        self._limits = CheckLimits(
            settings.maxMessageSize, settings.maxDecompressedBytes, settings.maxCompressionDepth
        )
        self._inlineLimits = self._limits._replace(
            decompressedSizeMax=min(INLINE_DECOMPRESSED_SIZE_MAX, settings.maxDecompressedBytes),
            compressedSizeMax=INLINE_COMPRESSED_SIZE_MAX,
        )
        self._partitionCountMax = settings.maxPartitions
        self._decompression = MemoryBudget(settings.maxDecompressionMemoryBytes)
        self._logManager = logManager
        self._nowMs = logManager.nowMs
        self._counters = counters
        self._onCreate = onCreate
        self._isCurrent = isCurrent
        self._creations: dict[TopicPartition, Waiters[Partition]] = {}
        self.pageCache = pageCache
        self.readWorker = readWorker

    def onBytesSent(self, size: int) -> None:
        counters = self._counters.requests
        counters.writtenSize += size
        counters.writeCount += 1

    # -- producing

    def tryProduce(self, topic: str, partition: int, sets: Sequence[bytes]) -> AppendResult | None:
        """
        Append a run of sets to a partition, if that can be done at once.

        @return: the append of all sets together; L{None}: call L{produce} for each.
        @raise PartitionOfflineError: the partition is out of service.
        """
        found = self._partitions.get((topic, partition))
        if found is None:
            return None
        batches = found.log.format.validatePlain(sets, self._payloadSizeMax)
        if batches is None:
            return None
        if batches.size > found.log.bytesUntilRoll and len(sets) > 1:
            return None  # the segment may roll between two sets
        return self._tryAppend(found, batches, batches.size)

    async def produce(
        self, topic: str, partition: int, data: bytes, createMissing: bool = False
    ) -> AppendResult:
        """
        Append one set, when the partition admits it.

        @param createMissing: create a missing partition.
        @raise PylogbrokerError: why the set is refused: L{find}'s reasons;
            L{UnknownPartitionError}; L{FormatError}s; L{PartitionOfflineError}.
        """
        try:
            found = self.find(topic, partition)
            if found is None and createMissing:
                found = await self._create(TopicPartition(topic, partition))
            if found is None:
                raise UnknownPartitionError(f"{topic} has no partition {partition} yet")
            batches = await self._validate(found.log.format, data)
        except PylogbrokerError:
            self._countFailure(topic)
            raise
        # As in 0.7.2, a cut entry at the end is counted, though it is not appended.
        while (result := self._tryAppend(found, batches, len(data))) is None:
            await found.awaitAdmission()
        return result

    def _countFailure(self, topic: str) -> None:
        self._counters.refused(topic, self.exists(topic)).failedProduceCount += 1

    async def _validate(self, format: IRecordFormat, data: bytes) -> ValidatedBatches:
        """Small sets here, others on a worker, which may wait for memory."""
        try:
            return format.validate(data, self._inlineLimits)
        except DecompressionLimitError:
            pass  # more than the reactor should do, or more than is allowed at all
        granted: Deferred[None] = Deferred()
        size = DECOMPRESSION_COPY_COUNT * self._limits.decompressedSizeMax
        reservation = self._decompression.reserve(
            min(size, self._decompression.sizeMax), lambda: granted.callback(None)
        )
        try:
            if not reservation.granted:
                await granted
            return await self.readWorker.submit(lambda: format.validate(data, self._limits))
        finally:
            reservation.release()

    # -- today's protocol: on a partition that is known

    def tryAppend(self, partition: Partition, data: bytes | memoryview) -> AppendResult | None:
        """
        Append a batch, if that can be done at once.

        @param data: copied.
        @return: L{None}: call L{append}.
        @raise PylogbrokerError: why it is refused: L{FormatError}s, errors of idempotent producers,
            L{PartitionOfflineError}.
        """
        sets: tuple[Any] = (data,)  # today's format reads a view as it reads bytes
        batches = partition.log.format.validatePlain(sets, self._payloadSizeMax)
        return None if batches is None else self._tryAppend(partition, batches, batches.size)

    def tryAppendRun(
        self, partition: Partition, batches: Sequence[Any]
    ) -> tuple[AppendResult, Sequence[int]] | None:
        """
        Append a batch of each of several requests together, if that can be done at once.

        @param batches: views of bytes, or bytes; copied.
        @return: the append of all, and the base offset of each; L{None}: nothing was appended, call
            L{tryAppend} for each.
        """
        log = partition.log
        assert isinstance(log, BatchLog)
        found = log.format.validatePlain(batches, self._payloadSizeMax)
        if (
            found is None
            or log.isOffline
            or found.size > log.bytesUntilRoll  # it may roll between two of them
            or found.offsetCount > RUN_OFFSET_COUNT_MAX
            or not log.producers.areNext(found.headers)
        ):
            return None
        result = self._tryAppend(partition, found, found.size)
        if result is None:
            return None
        offset = result.baseOffset
        baseOffsets = []
        for each in found.headers:
            baseOffsets.append(offset)
            offset += each.recordCount
        return result, baseOffsets

    def _tryAppend(
        self, partition: Partition, batches: ValidatedBatches, producedSize: int
    ) -> AppendResult | None:
        """@param producedSize: bytes that the counters get."""
        try:
            result = partition.append(batches, self._nowMs())
        except PylogbrokerError:
            self._countFailure(partition.topicPartition.topic)
            raise
        if result is not None and not result.isDuplicate:
            counters = partition.topicCounters
            if counters is None:
                topic = partition.topicPartition.topic
                counters = partition.topicCounters = self._counters.topic(topic)
            counters.messageCount += batches.messageCount
            counters.producedSize += producedSize
        return result

    async def append(
        self, partition: Partition, data: bytes, check: Callable[[], object] | None = None
    ) -> AppendResult:
        """
        Append a batch, when it is checked and the partition admits it.

        @param check: called at the moment of the append; raises if it may not be.
        @raise PylogbrokerError: as L{tryAppend}.
        """
        try:
            batches = await self._validate(partition.log.format, data)
        except PylogbrokerError:
            self._countFailure(partition.topicPartition.topic)
            raise
        while True:
            if check is not None:
                check()
            result = self._tryAppend(partition, batches, batches.size)
            if result is not None:
                return result
            await partition.awaitAdmission()

    def readBatches(
        self,
        log: BatchLog,
        offset: int,
        sizeMax: int,
        isFirst: bool,
        isCommitted: bool,
        isReplica: bool = False,
    ) -> Slice | Deferred[Slice]:
        """
        Find a range of batches, of which the last may be cut, but not the first: clients take a
        range without a whole batch for an error.

        @param isFirst: give one whole batch, however large, if there is any. Otherwise a batch
            larger than C{sizeMax} gives nothing.
        @param isCommitted: end at the last stable offset.
        @param isReplica: end at the written offset: the reader is another replica.
        @return: a slice, now or later. It is pinned: the receiver must unpin it.
        @raise PylogbrokerError: L{OffsetOutOfRangeError}, L{PartitionOfflineError}; from the
            Deferred, too.
        """
        if isFirst:
            sizeMax = max(sizeMax, 1)
        found = log.read(offset, sizeMax, None, isCommitted, False, isReplica)
        if isinstance(found, Slice):
            if found.file is None:
                return found
            if found.file.pin():
                batchSize = 1 if found.size < sizeMax else _batchSizeNow(found)
                if 0 < batchSize <= found.size:
                    return found
                found.file.unpin()
                if batchSize and not isFirst:
                    return EMPTY_SLICE
        return Deferred.fromCoroutine(
            self._readBatchesLater(log, offset, sizeMax, isFirst, isCommitted, isReplica)
        )

    async def _readBatchesLater(
        self,
        log: BatchLog,
        offset: int,
        sizeMax: int,
        isFirst: bool,
        isCommitted: bool,
        isReplica: bool,
    ) -> Slice:
        found = await readWholeBatches(
            log, self.readWorker, offset, sizeMax, isCommitted, isReplica
        )
        if found.file is not None and found.size > sizeMax and not isFirst:
            found.file.unpin()
            return EMPTY_SLICE
        return found

    async def offsetForTime(
        self, partition: Partition, timestampMs: int | None
    ) -> TimestampOffset | None:
        """
        The first record that is not older than a time, or, with L{None}, the first that has the
        largest timestamp. Readers may not see it yet: compare it with their mark.

        @return: L{None}: there is none.
        @raise FormatError: the batch that must hold it cannot be read.
        @raise StorageError: a file cannot be read, or the partition is out of service.
        """
        log = partition.log
        assert isinstance(log, BatchLog)
        while True:
            job = log.findLargestTime() if timestampMs is None else log.findTime(timestampMs)
            if not job.segments or await _runOnSegments(
                self.readWorker, log, job.segments, job.run
            ):
                return job.found

    async def deleteRecords(self, partition: Partition, offset: int) -> int:
        """
        Move the log start, durably.

        @param offset: -1: the high watermark.
        @return: the log start.
        @raise OffsetOutOfRangeError: above the high watermark.
        @raise StorageError: the partition is out of service, or the checkpoint cannot be written.
        """
        return await self._logManager.deleteRecords(partition, offset)

    # -- partitions

    def exists(self, topic: str) -> bool:
        """Whether a topic has a partition here, in service or not."""
        return topic in self._directory.topics

    def partitionCount(self, topic: str) -> int:
        """The number of partitions that a topic has, or would have, here."""
        return self._directory.partitionCount(topic)

    def find(self, topic: str, partition: int) -> Partition | None:
        """
        @return: L{None}: the partition does not exist yet.
        @raise InvalidTopicError: the topic's name breaks the rules.
        @raise PartitionOutOfRangeError: the topic cannot have such a partition.
        @raise StorageError: the partition is out of service.
        """
        known = self._partitions.get((topic, partition))
        if known is not None:
            return known
        self._directory.validateTopic(topic)
        if self._isCurrent(topic):
            raise InvalidTopicError(f"{topic} is a topic of Kafka's current protocol")
        count = self._directory.partitionCount(topic)
        if not 0 <= partition < count:
            raise PartitionOutOfRangeError(
                f"{topic} has partitions 0 to {count - 1}, not {partition}"
            )
        log = self._directory.get(topic, partition)
        if log is None:
            return None
        found = self._partitions[topic, partition] = self._logManager.partition(log)
        return found

    def _existing(self, topic: str, partition: int) -> PartitionLog:
        found = self._partitions.get((topic, partition)) or self.find(topic, partition)
        if found is None:
            raise UnknownPartitionError(f"{topic} has no partition {partition} yet")
        return found.log

    def _create(self, topicPartition: TopicPartition) -> Deferred[Partition]:
        waiters = self._creations.get(topicPartition)
        if waiters is not None:
            return waiters.wait()
        waiters = self._creations[topicPartition] = Waiters()
        waiting = waiters.wait()
        Deferred.fromCoroutine(self._createOne(topicPartition)).addBoth(
            lambda result: self._creations.pop(topicPartition).fire(result)
        )
        return waiting

    async def _createOne(self, topicPartition: TopicPartition) -> Partition:
        if len(self._directory.logs) + len(self._creations) > self._partitionCountMax:
            raise StorageError(
                self._directory.path,
                f"create {topicPartition} in",
                f"there are {self._partitionCountMax} partitions already (max.partitions)",
            )
        job = self._directory.beginCreate(*topicPartition)
        log = self._directory.finishCreate(job, await self._logManager.runJob(job))
        self._log.info("Created {topicPartition}", topicPartition=topicPartition)
        self._onCreate(topicPartition.topic)
        return self._logManager.partition(log)

    # -- fetching

    def fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int, awaitDueFlush: bool = False
    ) -> Slice | Deferred[Slice]:
        """
        Find a range of a partition (spec-0.7 wire-protocol §7.1).

        @param awaitDueFlush: if the range reaches beyond the high watermark, first wait for a flush
            that is due by count: at most L{DUE_FLUSH_WAIT_MS}.
        @return: a slice, now or later. It is pinned: the receiver must unpin it.
        @raise PylogbrokerError: L{find}'s reasons; L{UnknownPartitionError};
            L{OffsetOutOfRangeError}; L{InvalidRequestValueError} for a negative size. From the
            Deferred, too.
        """
        log = self._existing(topic, partition)
        if awaitDueFlush and log.readsPastWatermark(offset, sizeMax):
            return Deferred.fromCoroutine(self._fetchLater(log, offset, sizeMax, True))
        found = self._read(log, offset, sizeMax)
        if isinstance(found, Slice) and (found.file is None or found.file.pin()):
            return found
        return Deferred.fromCoroutine(self._fetchLater(log, offset, sizeMax, False))

    def _read(
        self, log: PartitionLog, offset: int, sizeMax: int, search: FindPositionJob | None = None
    ) -> Slice | FindPositionJob:
        found = log.read(offset, max(sizeMax, 0), search)
        if sizeMax < 0 and offset != log.highWatermark:
            raise InvalidRequestValueError(f"fetch of {sizeMax} bytes")
        return found

    async def _fetchLater(
        self, log: PartitionLog, offset: int, sizeMax: int, awaitDueFlush: bool
    ) -> Slice:
        if awaitDueFlush:
            await self._awaitDueFlush(log)
        found = self._read(log, offset, sizeMax)
        while isinstance(found, FindPositionJob):
            await self.readWorker.submit(found.run)
            found = self._read(log, offset, sizeMax, found)
        if found.file is not None and not found.file.pin():
            await self.readWorker.submit(found.file.openPinned)
        return found

    async def _awaitDueFlush(self, log: PartitionLog) -> None:
        if (
            not log.isFlushDueByCount
            or log.flushDueOffset <= log.highWatermark
            or log.blocked is not None
        ):
            return
        waiting: Deferred[object] = Deferred()
        cancel = log.whenReached(MarkKind.HIGH_WATERMARK, log.flushDueOffset, waiting.callback)
        waiting.addTimeout(DUE_FLUSH_WAIT_MS / 1000, self._clock, lambda *_timedOut: None)
        try:
            await waiting
        finally:
            cancel()

    # -- offsets

    async def offsets(
        self,
        topic: str,
        partition: int,
        time: int,
        countMax: int,
        awaitDueFlush: bool = False,
    ) -> list[int]:
        """
        Offsets before a time (spec-0.7 wire-protocol §10), descending.

        @param awaitDueFlush: as of L{fetch}.
        @raise PylogbrokerError: L{find}'s reasons; L{UnknownPartitionError};
            L{InvalidRequestValueError} for a negative count.
        """
        log = self._existing(topic, partition)
        if countMax < 0:
            raise InvalidRequestValueError(f"at most {countMax} offsets asked for")
        if awaitDueFlush:
            await self._awaitDueFlush(log)
        return log.offsetsBefore(time, countMax, self._nowMs())

    # -- acknowledgements

    def failedPartitionCount(self) -> int:
        return self._logManager.failedPartitionCount()

    async def awaitWritten(
        self, mayInclude: Callable[[TopicPartition], bool], failedBefore: int
    ) -> None:
        await self._logManager.awaitWritten(mayInclude, failedBefore)


def _batchSizeNow(found: Slice) -> int:
    """The size of a slice's first batch, if that can be read without waiting; 0: it cannot."""
    assert found.file is not None
    head = bytearray(BATCH_HEAD_SIZE)
    try:
        size = os.preadv(found.file.fileno(), (head,), found.position, os.RWF_NOWAIT)
    except OSError:  # not cached, or the file system cannot tell
        return 0
    return BATCH_HEAD_SIZE + int.from_bytes(head[8:], "big") if size == BATCH_HEAD_SIZE else 0


async def readWholeBatches(
    log: BatchLog,
    worker: IWorker,
    offset: int,
    sizeMax: int,
    isCommitted: bool = False,
    isReplica: bool = False,
) -> Slice:
    """
    Find a range of batches, of which the first is whole, with a worker that opens and searches
    files. Where retention or compaction removes a file meanwhile, the range is found again.

    @param isCommitted: end at the last stable offset.
    @param isReplica: end at the written offset.
    @return: a slice, pinned: the receiver must unpin it.
    @raise PylogbrokerError: L{OffsetOutOfRangeError}; L{StorageError}: a file cannot be read, or
        the partition is out of service.
    """
    search: FindPositionJob | None = None
    while True:
        found = log.read(offset, sizeMax, search, isCommitted, True, isReplica)
        search = None
        if isinstance(found, FindPositionJob):
            if await _runOnSegments(worker, log, [found.segment], found.run):
                search = found
            continue
        file = found.file
        if file is None or file.pin():
            return found
        owners = [segment for segment in log.segments if segment.file is file]
        if await _runOnSegments(worker, log, owners, file.openPinned):
            return found


async def _runOnSegments(
    worker: IWorker, log: PartitionLog, segments: Sequence[Segment], work: Callable[[], object]
) -> bool:
    """
    Have a worker do something with the files of segments.

    @return: L{False}: it could not, since one of them is no longer the log's.
    @raise StorageError: it could not.
    """
    try:
        await worker.submit(work)
    except StorageError:
        if set(segments) <= set(log.segments):
            raise
        return False
    return True
