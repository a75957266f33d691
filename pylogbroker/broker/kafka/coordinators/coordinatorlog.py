"""
The partitions of a coordinator's topic: appending the coordinator's records, and reading them at
the start. A module of its own, since every coordinator needs the same.

B{Appending.} The records of one step of a coordinator are one batch, or as many as they need. They
are acknowledged as C{acks=all} is. Where the partition does not admit an append now, because it
rolls, the disk is full, or too much is unflushed, later ones wait behind it: the order of a
partition's appends, and of their outcomes, is that of the coordinator's calls.

An append that is not acknowledged in time, as when replicas are behind, fails with
REQUEST_TIMED_OUT. Its records may be in the log, and come about yet. The coordinator goes on
without them, as Kafka's does: a client that tries again appends them again, behind; and for each
key the last record counts, for this coordinator and for one that reads the log later. What waits
for its turn is not appended after its time. The ends of transactions have no time: each further
try would append another one.

B{Reading.} In pieces of L{PIECE_SIZE} bytes (or one batch), on a worker. Records of transactions
come with their producer, and count when the end of its transaction comes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.kafka.purgatory import Purgatory
from pylogbroker.broker.logmanager import Partition
from pylogbroker.broker.server import readWholeBatches
from pylogbroker.coordinator.effects import Appended, Record, TransactionalProducer
from pylogbroker.errors import FormatError, PylogbrokerError
from pylogbroker.interfaces import (
    NO_PRODUCER,
    BatchHeader,
    EndMarker,
    IPinnableFile,
    Slice,
    ValidatedBatches,
)
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records import recordbatch
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.partitionlog import MarkKind

PIECE_SIZE = 256 << 10
"""Bytes of a partition that are read at a time."""

QUEUED_SIZE_MAX = 64 << 20
"""Bytes of records that wait for one partition; more are refused."""

RECORD_OVERHEAD_MAX = 32
"""Bytes of a record beside key and value, at most."""


class LoadedRecord(NamedTuple):
    """
    A record of the partition.

    @ivar producerId: in whose transaction it was appended; -1: in none.
    """

    key: bytes
    value: bytes | None
    producerId: int = NO_PRODUCER


class LoadedEnd(NamedTuple):
    """The end of a producer's transaction."""

    producerId: int
    isCommit: bool


Loaded = LoadedRecord | LoadedEnd

AppendOutcome = Callable[[PylogbrokerError | None], object]
"""Called with L{None} when batches are appended as acknowledged writes are, or with why not."""

_MakeBatches = Callable[[], ValidatedBatches]


class _Append:
    """
    An append whose outcome is not known.

    @ivar make: makes the batches.
    @ivar size: of the records, while they wait for their turn.
    @ivar key: of the time-out; -1: there is none.
    @ivar cancel: waits no more for the acknowledgement; L{None} before the turn.
    """

    __slots__ = ("cancel", "done", "key", "make", "size")

    def __init__(self, make: _MakeBatches, size: int, done: AppendOutcome) -> None:
        self.make = make
        self.size = size
        self.done = done
        self.key = -1
        self.cancel: Callable[[], object] | None = None


class Appender:
    """
    Appends to one partition, in order.
    """

    def __init__(
        self,
        partition: Partition,
        nowMs: Callable[[], int],
        onFailed: Callable[[], object],
        purgatory: Purgatory,
        timeoutMs: int,
    ) -> None:
        """
        @param onFailed: called when the log has failed, behind what that means for appends.
        @param timeoutMs: in which records must be acknowledged.
        """
        self.partition = partition
        self._nowMs = nowMs
        self._onFailed = onFailed
        self._purgatory = purgatory
        self._timeoutMs = timeoutMs
        self._waiting: deque[_Append] = deque()
        self._waitingSize = 0
        self._isWaiting = self._isClosed = False

    def close(self) -> None:
        """
        Append nothing any more, since another broker may lead the partition, or this one in another
        epoch. What waits fails.
        """
        self._isClosed = True
        waiting, self._waiting = self._waiting, deque()
        self._waitingSize = 0
        for each in waiting:
            self._end(each, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def append(
        self,
        records: Sequence[Record],
        done: Appended,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """
        Append records.

        @param done: called with the outcome, now or later; after the time-out the records may be
            there, or come yet.
        @param producer: in whose transaction; then the records must fit into one batch.
        """

        def make() -> ValidatedBatches:
            sizeMax = _batchSizeMax(self.partition)
            return encodeRecords(records, self._nowMs(), sizeMax, producer)

        size = sum(map(_sizeOf, records))
        asked = _Append(make, size, lambda error: done(_codeOf(error)))
        asked.key = self._purgatory.wait(self._timeoutMs, partial(self._late, asked))
        self._append(asked)

    def appendBatches(self, batches: ValidatedBatches, done: AppendOutcome) -> None:
        """Append batches, without a time-out."""
        self._append(_Append(lambda: batches, batches.size, done))

    def _append(self, asked: _Append) -> None:
        if self._isClosed:
            self._end(asked, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        if not self._waiting and self._tryAppend(asked):
            return
        if self._waitingSize + asked.size > QUEUED_SIZE_MAX:
            asked.make, asked.size = _refuse, 0  # in its turn
        self._waitingSize += asked.size
        self._waiting.append(asked)
        self._wait()

    def _tryAppend(self, asked: _Append) -> bool:
        """Whether the append was begun, or refused for good."""
        partition = self.partition
        if partition.lacksInSync:
            self._end(asked, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
            return True
        try:
            result = partition.append(asked.make(), self._nowMs())
        except PylogbrokerError as error:
            self._end(asked, error)
            return True
        if result is None:
            return False
        cancel = partition.whenAcknowledged(result, True, partial(self._end, asked))
        asked.cancel = cancel
        return True

    def _late(self, asked: _Append) -> None:
        """The time is over: what is in the log stays there, and what waits is not appended."""
        if asked.cancel is not None:
            asked.cancel()
        else:
            self._waiting.remove(asked)
            self._waitingSize -= asked.size
        self._end(asked, KafkaError(ErrorCode.REQUEST_TIMED_OUT))

    def _end(self, asked: _Append, error: PylogbrokerError | None) -> None:
        if asked.key >= 0:
            self._purgatory.cancel(asked.key)
        asked.done(error)
        if error is not None and self.partition.log.isOffline:
            self._onFailed()

    def _wait(self) -> None:
        if not self._isWaiting:
            self._isWaiting = True
            self.partition.awaitAdmission().addCallback(self._admitted)

    def _admitted(self, _none: None) -> None:
        self._isWaiting = False
        while self._waiting:
            asked = self._waiting.popleft()
            if not self._tryAppend(asked):
                self._waiting.appendleft(asked)
                self._wait()
                return
            self._waitingSize -= asked.size


def _refuse() -> ValidatedBatches:
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


def _codeOf(error: PylogbrokerError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else errorOf(error).code


def _batchSizeMax(partition: Partition) -> int:
    found = partition.log
    assert isinstance(found, BatchLog)
    return found.settings.batchSizeMax


def _sizeOf(record: Record) -> int:
    key, value = record
    return len(key) + (0 if value is None else len(value)) + RECORD_OVERHEAD_MAX


def encodeRecords(
    records: Sequence[Record],
    nowMs: int,
    batchSizeMax: int,
    producer: TransactionalProducer | None = None,
) -> ValidatedBatches:
    """
    Batches of a coordinator's records.

    @param batchSizeMax: bytes of a batch.
    @param producer: in whose transaction the records are, as one batch.
    @raise KafkaError: a record does not fit into one; or all, in a transaction.
    """
    some: list[recordbatch.Record] = []
    buffers: list[bytes] = []
    size = recordbatch.BATCH_OVERHEAD
    for record in records:
        more = _sizeOf(record)
        isWhole = producer is not None
        if (size if isWhole else recordbatch.BATCH_OVERHEAD) + more > batchSizeMax:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        if size + more > batchSizeMax:
            buffers.append(recordbatch.encodeBatch(some))
            some, size = [], recordbatch.BATCH_OVERHEAD
        some.append(recordbatch.Record(len(some), nowMs, *record))
        size += more
    if producer is None:
        buffers.append(recordbatch.encodeBatch(some))
    else:
        # The sequence is as by Kafka, and is not checked: coordinators repeat nothing.
        buffers.append(
            recordbatch.encodeBatch(
                some,
                producerId=producer.producerId,
                producerEpoch=producer.producerEpoch,
                baseSequence=0,
                isTransactional=True,
            )
        )
    headers = [recordbatch.readHeader(each) for each in buffers]
    count = len(records)
    return ValidatedBatches(
        buffers, sum(map(len, buffers)), count, count, nowMs, headers, isFromCoordinator=True
    )


def encodeMarker(
    producer: TransactionalProducer, marker: EndMarker, nowMs: int
) -> ValidatedBatches:
    """The control batch that ends a producer's transaction."""
    data = recordbatch.controlBatch(
        marker.isCommit,
        producer.producerId,
        producer.producerEpoch,
        marker.coordinatorEpoch,
        nowMs,
    )
    headers = [recordbatch.readHeader(data)]
    return ValidatedBatches([data], len(data), 1, 1, nowMs, headers, marker)


class Loader:
    """
    Reads the records of a partition that counted when this began, and the ends of transactions, in
    the order of the log.
    """

    def __init__(self, partition: Partition, worker: IWorker) -> None:
        self._partition = partition
        self._worker = worker
        self._offset = partition.log.logStartOffset
        self._end = partition.log.logEndOffset

    async def nextRecords(self) -> list[Loaded] | None:
        """
        @return: some records; L{None} at the end.
        @raise PylogbrokerError: a file, or a batch, cannot be read.
        """
        if self._offset >= self._end:
            return None
        if self._partition.log.highWatermark < self._end:
            await self._flushed()
        found = await self._slice()
        file, position, size = found
        if file is None:  # a gap up to the end
            self._offset = self._end
            return None
        return await self._worker.submit(partial(self._read, file, position, size))

    async def _flushed(self) -> None:
        waiting: Deferred[PylogbrokerError | None] = Deferred()
        self._partition.whenReached(MarkKind.HIGH_WATERMARK, self._end, waiting.callback)
        error = await waiting
        if error is not None:
            raise error

    async def _slice(self) -> Slice:
        """Pinned."""
        found = self._partition.log
        assert isinstance(found, BatchLog)
        return await readWholeBatches(found, self._worker, self._offset, PIECE_SIZE)

    def _read(self, file: IPinnableFile, position: int, size: int) -> list[Loaded]:
        """On a worker. Whole batches; a cut one is the first of the next piece."""
        try:
            data = os.pread(file.fileno(), size, position)
        finally:
            file.unpin()
        records: list[Loaded] = []
        at = 0
        while at + recordbatch.BATCH_OVERHEAD <= len(data):
            header = recordbatch.readHeader(data, at)
            if at + header.size > len(data):
                break
            recordbatch.checkCrc(data, at, header)
            records += _recordsOf(data, at, header)
            at += header.size
            self._offset = header.nextOffset
        if not at:
            raise FormatError(f"no whole batch in {len(data)} bytes", position)
        return records


def _recordsOf(data: bytes, at: int, header: BatchHeader) -> Iterator[Loaded]:
    found = recordbatch.iterateRecords(data, at, header)
    if header.isControl:
        for record in found:
            marker = recordbatch.readMarker(record)
            if marker is not None:
                yield LoadedEnd(header.producerId, marker.isCommit)
        return
    producerId = header.producerId if header.isTransactional else NO_PRODUCER
    for each in found:
        if each.key is not None:
            yield LoadedRecord(each.key, each.value, producerId)
