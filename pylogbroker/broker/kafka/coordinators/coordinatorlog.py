"""
The partitions of a coordinator's topic: appending the coordinator's records, and reading them at
the start. A module of its own, since every coordinator needs the same.

B{Appending.} The records of one step of a coordinator are one batch, or as many as they need. They
are acknowledged as C{acks=all} is. Where the partition does not admit an append now, because it
rolls, the disk is full, or too much is unflushed, later ones wait behind it: the order of a
partition's appends, and of their outcomes, is that of the coordinator's calls.

B{Reading.} In pieces of L{PIECE_SIZE} bytes (or one batch), on a worker. Records of transactions
count when the end marker says so.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from twisted.internet.defer import Deferred

from pylogbroker.broker.kafka.errors import KafkaError, errorOf
from pylogbroker.broker.logmanager import Partition
from pylogbroker.coordinator.effects import Appended, Record
from pylogbroker.errors import FormatError, PylogbrokerError
from pylogbroker.interfaces import BatchHeader, IPinnableFile, Slice, ValidatedBatches
from pylogbroker.net.workers import IWorker
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.records import recordbatch
from pylogbroker.storage.jobs import FindPositionJob
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.partitionlog import MarkKind

PIECE_SIZE = 256 << 10
"""Bytes of a partition that are read at a time."""

QUEUED_SIZE_MAX = 64 << 20
"""Bytes of records that wait for one partition; more are refused."""

RECORD_OVERHEAD_MAX = 32
"""Bytes of a record beside key and value, at most."""


class Appender:
    """
    Appends to one partition, in order.
    """

    def __init__(
        self, partition: Partition, nowMs: Callable[[], int], onFailed: Callable[[], object]
    ) -> None:
        """@param onFailed: called when the log has failed, behind what that means for appends."""
        self.partition = partition
        self._nowMs = nowMs
        self._onFailed = onFailed
        self._waiting: deque[tuple[Sequence[Record] | None, int, Appended]] = deque()
        self._waitingSize = 0
        self._isWaiting = False

    def append(self, records: Sequence[Record], done: Appended) -> None:
        """
        Append records.

        @param done: called with the outcome, now or later.
        """
        if not self._waiting and self._tryAppend(records, done):
            return
        size = sum(map(_sizeOf, records))
        if self._waitingSize + size > QUEUED_SIZE_MAX:
            self._waiting.append((None, 0, done))  # refused in its turn
        else:
            self._waitingSize += size
            self._waiting.append((records, size, done))
        self._wait()

    def _tryAppend(self, records: Sequence[Record] | None, done: Appended) -> bool:
        """Whether the append was begun, or refused for good."""
        partition = self.partition
        try:
            if records is None:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
            batches = encodeRecords(records, self._nowMs(), _batchSizeMax(partition))
            result = partition.append(batches, self._nowMs())
        except PylogbrokerError as error:
            self._done(done, error)
            return True
        if result is None:
            return False
        partition.whenAcknowledged(result, True, partial(self._done, done))
        return True

    def _done(self, done: Appended, error: PylogbrokerError | None) -> None:
        done(ErrorCode.NONE if error is None else errorOf(error).code)
        if error is not None and self.partition.log.isOffline:
            self._onFailed()

    def _wait(self) -> None:
        if not self._isWaiting:
            self._isWaiting = True
            self.partition.awaitAdmission().addCallback(self._admitted)

    def _admitted(self, _none: None) -> None:
        self._isWaiting = False
        while self._waiting:
            records, size, done = self._waiting[0]
            if not self._tryAppend(records, done):
                self._wait()
                return
            self._waiting.popleft()
            self._waitingSize -= size


def _batchSizeMax(partition: Partition) -> int:
    found = partition.log
    assert isinstance(found, BatchLog)
    return found.settings.batchSizeMax


def _sizeOf(record: Record) -> int:
    key, value = record
    return len(key) + (0 if value is None else len(value)) + RECORD_OVERHEAD_MAX


def encodeRecords(records: Sequence[Record], nowMs: int, batchSizeMax: int) -> ValidatedBatches:
    """
    Batches of a coordinator's records.

    @param batchSizeMax: bytes of a batch.
    @raise KafkaError: a record does not fit into one.
    """
    some: list[recordbatch.Record] = []
    buffers: list[bytes] = []
    size = recordbatch.BATCH_OVERHEAD
    for record in records:
        more = _sizeOf(record)
        if recordbatch.BATCH_OVERHEAD + more > batchSizeMax:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        if size + more > batchSizeMax:
            buffers.append(recordbatch.encodeBatch(some))
            some, size = [], recordbatch.BATCH_OVERHEAD
        some.append(recordbatch.Record(len(some), nowMs, *record))
        size += more
    buffers.append(recordbatch.encodeBatch(some))
    headers = [recordbatch.readHeader(each) for each in buffers]
    count = len(records)
    return ValidatedBatches(buffers, sum(map(len, buffers)), count, count, nowMs, headers)


class Loader:
    """
    Reads the records of a partition that counted when this began, and of committed transactions
    only, in the order in which they count.
    """

    def __init__(self, partition: Partition, worker: IWorker) -> None:
        self._partition = partition
        self._worker = worker
        self._offset = partition.log.logStartOffset
        self._end = partition.log.logEndOffset
        self._open: dict[int, dict[bytes, bytes | None]] = {}

    async def nextRecords(self) -> list[Record] | None:
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
        search: FindPositionJob | None = None
        while True:
            piece = found.read(self._offset, PIECE_SIZE, search, wholeBatch=True)
            if isinstance(piece, Slice):
                break
            search = piece
            await self._worker.submit(search.run)
        if piece.file is not None and not piece.file.pin():
            await self._worker.submit(piece.file.openPinned)
        return piece

    def _read(self, file: IPinnableFile, position: int, size: int) -> list[Record]:
        """On a worker. Whole batches; a cut one is the first of the next piece."""
        try:
            data = os.pread(file.fileno(), size, position)
        finally:
            file.unpin()
        records: list[Record] = []
        at = 0
        while at + recordbatch.BATCH_OVERHEAD <= len(data):
            header = recordbatch.readHeader(data, at)
            if at + header.size > len(data):
                break
            recordbatch.checkCrc(data, at, header)
            records += self._recordsOf(data, at, header)
            at += header.size
            self._offset = header.nextOffset
        if not at:
            raise FormatError(f"no whole batch in {len(data)} bytes", position)
        return records

    def _recordsOf(self, data: bytes, at: int, header: BatchHeader) -> list[Record]:
        found = recordbatch.iterateRecords(data, at, header)
        if header.isControl:
            ended = self._open.pop(header.producerId, {})
            markers = [recordbatch.readMarker(record) for record in found]
            isCommit = any(each is not None and each.isCommit for each in markers)
            return list(ended.items()) if isCommit else []
        records = [(each.key, each.value) for each in found if each.key is not None]
        if not header.isTransactional:
            return records
        self._open.setdefault(header.producerId, {}).update(records)
        return []
