"""
What requests mean: L{Broker} knows topics, partitions, limits and waiting, and nothing of bytes on a wire.

An answer is a value, or a Deferred of one: "not yet". Things that can make an answer wait are a partition that must be created, a segment that
must be rolled or opened, a compressed set that a worker checks, producers being held back, and a flush that is due. A refusal is an exception of
L{pylogbroker.errors}; what becomes of it (a code, silence, a closed connection) is the dialect's affair.

Producing has a short way and a long one. The short way, L{Broker.produce}, takes a run of plain sets for a partition that is there and free, and does
everything at once; it is what the benchmarks measure. Whatever else comes goes the long way, a coroutine that takes set after set.

A fetch that reaches beyond what is visible waits for the flush that was due *by count* before the fetch came: 0.7.2 flushes in the
middle of the produce request, so that clients (and most tests of clients, with C{log.flush.interval=1}) find what they have just sent. Here the flush is
elsewhere, and it is the fetch that waits. A flush that is due by time is not waited for; neither does 0.7.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.logmanager import LogManager
from pylogbroker.broker.unackedproduces import UnackedProduces
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import (
    DecompressionLimitError,
    InvalidRequestError,
    PartitionOfflineError,
    PartitionOutOfRangeError,
    PylogbrokerError,
    StorageError,
)
from pylogbroker.interfaces import EMPTY_SLICE, CheckLimits, IRecordFormat, Slice, ValidatedBatches
from pylogbroker.limits import MemoryBudget
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.workers import IWorker
from pylogbroker.storage.jobs import SearchJob
from pylogbroker.storage.logdirectory import LogDirectory
from pylogbroker.storage.partitionlog import Mark, PartitionLog
from pylogbroker.types import EARLIEST, LATEST, RANDOM_PARTITION, TopicPartition

INLINE_COMPRESSED_SIZE_MAX = 2 << 10
INLINE_DECOMPRESSED_SIZE_MAX = 64 << 10
DECOMPRESSION_COPY_COUNT = 2  # a set in pieces, and joined
DUE_FLUSH_WAIT_MS = 5_000

Refused = Callable[[UnackedProduces, PylogbrokerError], None]
"""Told of what its connection has produced, and why a set was refused; returns to go on with the next one, or raises to leave the rest."""


class Broker:
    """
    The meaning of requests.

    @ivar warmth: what can be sent without waiting (L{pylogbroker.net.sendfile.ISendContext}).
    @ivar readWorker: reads what cannot.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        directory: LogDirectory,
        settings: BrokerSettings,
        upkeep: LogManager,
        warmth: PageCache,
        readWorker: IWorker,
        random: Random,
        counters: BrokerCounters,
        created: Callable[[str], None] = lambda topic: None,
    ) -> None:
        """
        @param created: called with a topic for each partition of it that has been made.
        """
        self._clock = clock
        self._directory = directory
        self._reachable: dict[
            tuple[str, int], PartitionLog
        ] = {}  # what _find has found: a name that follows the rules, a number in range
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
        self._upkeep = upkeep
        self._random = random
        self._counters = counters
        self._announce = created
        self._creations: dict[TopicPartition, list[Deferred[PartitionLog]]] = {}
        self.warmth = warmth
        self.readWorker = readWorker

    def countOut(self, size: int) -> None:
        """Bytes have been given to a socket, in one write."""
        counters = self._counters.requests
        counters.writtenSize += size
        counters.writeCount += 1

    # -- producing

    def produce(
        self,
        topic: str,
        partition: int,
        sets: Sequence[bytes],
        unproven: UnackedProduces,
        refused: Refused,
    ) -> Deferred[None] | None:
        """
        Append message sets to a partition, each on its own, in order (spec-0.7 wire-protocol §3.1, §9).

        @param partition: L{RANDOM_PARTITION} picks one for each set.
        @param sets: one for each request.
        @param unproven: the connection's, for C{refused}; an argument of its own, since a function that had it bound would be made for each request.
        @return: L{None} when that is done; else fires with L{None} when it is, and the connection's next request may follow.
        @raise PylogbrokerError: what C{refused} raised; from the Deferred, too.
        """
        log = self._reachable.get((topic, partition))
        if log is not None:
            batches = log.format.validatePlain(sets, self._payloadSizeMax)
            nowMs = self._upkeep.nowMs()
            if (
                batches is not None
                and not log.rolling
                and batches.size <= log.bytesUntilRoll
                and not self._upkeep.isThrottled(log)
                and not log.rollDue(nowMs)
            ):
                try:
                    log.append(batches, nowMs)
                except PartitionOfflineError as error:
                    self._refuse(topic, error, unproven, refused)
                    return None
                self._count(topic, batches.size, batches.messageCount)
                self._upkeep.appended(log, batches.size)
                return None
        return Deferred.fromCoroutine(self._produceEach(topic, partition, sets, unproven, refused))

    def _count(self, topic: str, size: int, count: int) -> None:
        counters = self._counters.topic(topic)
        counters.messageCount += count
        counters.producedSize += size

    def _refuse(
        self, topic: str, error: PylogbrokerError, unproven: UnackedProduces, refused: Refused
    ) -> None:
        self._counters.refused(topic, self.exists(topic)).failedProduceCount += 1
        refused(unproven, error)

    async def _produceEach(
        self,
        topic: str,
        partition: int,
        sets: Sequence[bytes],
        unproven: UnackedProduces,
        refused: Refused,
    ) -> None:
        for data in sets:
            try:
                await self._produceOne(topic, partition, data)
            except PylogbrokerError as error:
                self._refuse(topic, error, unproven, refused)

    async def _produceOne(self, topic: str, partition: int, data: bytes) -> None:
        if partition == RANDOM_PARTITION:
            partition = self._random.randrange(self._directory.partitionCount(topic))
        log = self._find(topic, partition) or await self._create(TopicPartition(topic, partition))
        batches = await self._check(log.format, data)
        while (
            log.failure is None
            and not log.closed
            and (log.rolling or log.rollDue(self._upkeep.nowMs()) or self._upkeep.isThrottled(log))
        ):
            await (
                self._upkeep.relief(log)
                if self._upkeep.isThrottled(log)
                else self._upkeep.roll(log)
            )
        log.append(batches, self._upkeep.nowMs())
        self._count(topic, len(data), batches.messageCount)
        self._upkeep.appended(log, batches.size)

    async def _check(self, form: IRecordFormat, data: bytes) -> ValidatedBatches:
        """Here if it is little work, else on a worker, which may have to wait for memory."""
        try:
            return form.validate(data, self._inlineLimits)
        except DecompressionLimitError:
            pass  # more than is good for the reactor, or than is allowed at all
        granted: Deferred[None] = Deferred()
        size = DECOMPRESSION_COPY_COUNT * self._limits.decompressedSizeMax
        grant = self._decompression.reserve(
            min(size, self._decompression.sizeMax), lambda: granted.callback(None)
        )
        try:
            if not grant.granted:
                await granted
            return await self.readWorker.do(lambda: form.validate(data, self._limits))
        finally:
            grant.release()

    # -- partitions

    def exists(self, topic: str) -> bool:
        """Whether a topic has a partition here, be it out of service."""
        return topic in self._directory.topics

    def _find(self, topic: str, partition: int) -> PartitionLog | None:
        """
        A partition's log; L{None} when there is none yet.

        @raise InvalidTopicError: the topic's name breaks the rules.
        @raise PartitionOutOfRangeError: the topic has no such partition.
        @raise StorageError: the partition is out of service.
        """
        self._directory.validateTopic(topic)
        count = self._directory.partitionCount(topic)
        if not 0 <= partition < count:
            raise PartitionOutOfRangeError(
                f"{topic} has partitions 0 to {count - 1}, not {partition}"
            )
        log = self._directory.get(topic, partition)
        if log is not None:
            self._reachable[topic, partition] = log
        return log

    def _create(self, topicPartition: TopicPartition) -> Deferred[PartitionLog]:
        """Create a partition, or join its creation."""
        waiting: Deferred[PartitionLog] = Deferred()
        queue = self._creations.setdefault(topicPartition, [])
        queue.append(waiting)
        if len(queue) == 1:
            Deferred.fromCoroutine(self._createOne(topicPartition)).addBoth(
                self._created, topicPartition
            )
        return waiting

    async def _createOne(self, topicPartition: TopicPartition) -> PartitionLog:
        if len(self._directory.logs) + len(self._creations) > self._partitionCountMax:
            raise StorageError(
                self._directory.path,
                f"create {topicPartition} in",
                f"there are {self._partitionCountMax} partitions already (max.partitions)",
            )
        job = self._directory.beginCreate(*topicPartition)
        log = self._directory.finishCreate(job, await self._upkeep.perform(job))
        self._log.info("Created {topicPartition}", topicPartition=topicPartition)
        self._announce(topicPartition.topic)
        return log

    def _created(self, result: Any, topicPartition: TopicPartition) -> None:
        for waiting in self._creations.pop(topicPartition):
            waiting.callback(result)  # a Failure is passed on as one

    # -- fetching

    def fetch(
        self, topic: str, partition: int, offset: int, sizeMax: int
    ) -> Slice | Deferred[Slice]:
        """
        Find what a fetch asks for (spec-0.7 wire-protocol §7.1).

        @return: a slice, now or later, that is pinned: who gets it has to let it go. A partition that does not exist is empty at every offset.
        @raise InvalidTopicError: and other L{PylogbrokerError}s, from the Deferred, too. L{InvalidRequestError} for a negative size.
        """
        log = self._reachable.get((topic, partition)) or self._find(topic, partition)
        if log is None:
            return EMPTY_SLICE
        if log.readsPastWatermark(offset, sizeMax):
            return Deferred.fromCoroutine(self._fetchSlowly(log, offset, sizeMax))
        found = self._read(log, offset, sizeMax)
        if isinstance(found, Slice) and (found.file is None or found.file.pin()):
            return found
        return Deferred.fromCoroutine(self._fetchSlowly(log, offset, sizeMax))

    def _read(
        self, log: PartitionLog, offset: int, sizeMax: int, search: SearchJob | None = None
    ) -> Slice | SearchJob:
        found = log.read(offset, max(sizeMax, 0), search)
        if sizeMax < 0 and offset != log.highWatermark:
            raise InvalidRequestError(f"fetch of {sizeMax} bytes")
        return found

    async def _fetchSlowly(self, log: PartitionLog, offset: int, sizeMax: int) -> Slice:
        if log.readsPastWatermark(offset, sizeMax):
            await self._due(log)
        found = self._read(log, offset, sizeMax)
        while isinstance(found, SearchJob):
            await self.readWorker.do(found.run)
            found = self._read(log, offset, sizeMax, found)
        if found.file is not None and not found.file.pin():
            await self.readWorker.do(found.file.openPinned)
        return found

    async def _due(self, log: PartitionLog) -> None:
        """Wait until what is due by count now is visible, or for too long, or for the partition's failure; not for room on a full disk."""
        if log.flushDueOffset <= log.highWatermark or log.blocked is not None:
            return
        waiting: Deferred[None] = Deferred()

        def over(*_: object) -> None:
            if not waiting.called:
                waiting.callback(None)

        cancel = log.whenReached(Mark.HIGH_WATERMARK, log.flushDueOffset, over)
        tooLong = self._clock.callLater(DUE_FLUSH_WAIT_MS / 1000, over)
        try:
            await waiting
        finally:
            cancel()
            if tooLong.active():
                tooLong.cancel()

    # -- offsets

    def lostCount(self) -> int:
        """How many partitions have gone out of service so far; for L{UnackedProduces.add}."""
        return self._upkeep.lostCount()

    async def offsets(
        self,
        topic: str,
        partition: int,
        time: int,
        countMax: int,
        unproven: UnackedProduces | None = None,
    ) -> list[int]:
        """
        Offsets before a time (spec-0.7 wire-protocol §10). To producers, an answer proves that what they sent before has been taken: it survives the
        broker's death (not the machine's, which takes a flush).

        @param unproven: where that went; L{None}: nothing was sent. While a disk has no room for it, the answer waits.
        @return: descending.
        @raise PylogbrokerError: see L{_find}; L{InvalidRequestError} for a negative count; L{PartitionOfflineError} when what was sent before went to a
            partition that is out of service now.
        """
        self._upkeep.writePending()
        if unproven is not None:
            await self._upkeep.proven(unproven)
        log = self._find(topic, partition)
        if log is None:
            return [0] if time in (LATEST, EARLIEST) else []
        if countMax < 0:
            raise InvalidRequestError(f"at most {countMax} offsets asked for")
        await self._due(log)
        return log.offsetsBefore(time, countMax, self._upkeep.nowMs())
