"""
A run of compaction: reads closed segments, and writes what stays beside them. The rules are told in
L{pylogbroker.storage.kafka.compaction}. It is a module of its own, since a process of its own runs
it, without a broker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from pylogbroker.broker.compaction.offsetmap import OffsetMap
from pylogbroker.errors import CorruptLogError, FormatError, StorageError
from pylogbroker.interfaces import BatchHeader, IFile, IFileSystem
from pylogbroker.records.batchfilter import RawRecord, emptyBatch, filterBatch, walkRecords
from pylogbroker.records.batchscan import markerIn
from pylogbroker.records.recordbatch import BATCH_OVERHEAD, checkCrc, openRecords, readHeader
from pylogbroker.records.segmentindex import RELATIVE_OFFSET_MAX
from pylogbroker.storage.filenames import BATCH_SUFFIX, segmentName
from pylogbroker.storage.files import writeAll
from pylogbroker.storage.kafka.compaction import (
    CompactedGroup,
    CompactionRequest,
    CompactionResult,
)
from pylogbroker.storage.kafka.segmentswap import CLEANED_SUFFIX
from pylogbroker.storage.segments import Segment

GROUP_COUNT_MAX = 64
"""Segments of a group: their descriptors are held during the exchange."""

WINDOW_SIZE = 1 << 20
WRITE_SIZE = 1 << 20
FILE_SIZE_MAX = 2**31 - 1


class _Transactions:
    """
    The transactions along a walk over the log.

    Aborted ones come from the indexes, since a batch stands before the marker that decides.
    """

    def __init__(self, aborted: Sequence[tuple[int, int, int]], startOffset: int) -> None:
        self._coming = deque(
            sorted(
                (first, producerId) for producerId, first, last in aborted if last >= startOffset
            )
        )
        self._aborted: dict[int, bool] = {}  # producer: whether a batch of it was seen
        self._committed: set[int] = set()

    def _begin(self, lastOffset: int) -> None:
        while self._coming and self._coming[0][0] <= lastOffset:
            self._aborted[self._coming.popleft()[1]] = False

    def isAborted(self, header: BatchHeader) -> bool:
        """Whether a batch of records is of an aborted transaction."""
        self._begin(header.lastOffset)
        if not header.isTransactional:
            return False
        if header.producerId in self._aborted:
            self._aborted[header.producerId] = True
            return True
        self._committed.add(header.producerId)
        return False

    def isObsolete(self, data: bytes, header: BatchHeader) -> bool:
        """Whether a control batch is not needed: no batch of its transaction was seen."""
        self._begin(header.lastOffset)
        if header.recordCount == 0:
            return True
        marker = markerIn(data, header)
        if marker is None:
            return False
        if marker.isCommit:
            wasSeen = header.producerId in self._committed
            self._committed.discard(header.producerId)
            return not wasSeen
        return not self._aborted.pop(header.producerId, False)


class _Run:
    def __init__(
        self,
        fileSystem: IFileSystem,
        request: CompactionRequest,
        pause: Callable[[float], object],
        clock: Callable[[], float],
    ) -> None:
        self._fileSystem = fileSystem
        self._request = request
        self._pause = pause
        self._clock = clock
        self._startedAt = clock()
        self._walkedSize = 0
        recordMax = max(request.endOffset - request.dirtyStart, 0)
        self._map = OffsetMap(request.mapSize, recordMax)
        self._producers = {each[0]: (each[1], each[2]) for each in request.producers}
        self.result = CompactionResult(request.endOffset)

    # -- reading

    def _batches(self, base: int, size: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """
        The batches of a segment.

        @raise CorruptLogError: one is not whole and valid.
        """
        path = f"{self._request.directory}/{segmentName(base, BATCH_SUFFIX)}"
        window, windowStart, position = b"", 0, 0
        with closing(self._fileSystem.open(path, write=False)) as file:
            while position < size:
                at = position - windowStart
                try:
                    if at + BATCH_OVERHEAD > len(window):
                        at, windowStart = 0, position
                        window = self._read(file, position, min(WINDOW_SIZE, size - position))
                    header = readHeader(window, at)
                    if header.size > size - position:
                        raise FormatError("the batch is cut")
                    if at + header.size > len(window):
                        at, windowStart = 0, position
                        wanted = min(max(WINDOW_SIZE, header.size), size - position)
                        window = self._read(file, position, wanted)
                    data = window[at : at + header.size]
                    checkCrc(data, 0, header)
                    yield header, data
                except FormatError as error:
                    raise CorruptLogError(
                        path, "compact", f"{error.reason}, at byte {position}"
                    ) from error
                position += header.size

    def _read(self, file: IFile, position: int, size: int) -> bytes:
        limit = self._request.readSizeMax
        if limit:
            ahead = self._walkedSize / limit - (self._clock() - self._startedAt)
            if ahead > 0:
                self._pause(ahead)
        data = file.readAt(position, size)
        self._walkedSize += len(data)
        return data

    # -- the map

    def fillMap(self) -> None:
        """Stops where the map is full."""
        request, offsets = self._request, self._map
        start = request.dirtyStart
        bases = [each[0] for each in request.segments]
        first = max(bisect_right(bases, start) - 1, 0)
        transactions = _Transactions(request.aborted, bases[first])
        for base, size, _ in request.segments[first:]:
            for header, data in self._batches(base, size):
                if header.isControl:
                    transactions.isObsolete(data, header)
                elif header.lastOffset >= start and not transactions.isAborted(header):
                    for record in walkRecords(openRecords(data, 0, header), header):
                        if record.key is not None and record.offset >= start:
                            if offsets.isFull:
                                self.result.endOffset = offsets.latestOffset + 1
                                return
                            offsets.put(record.key, record.offset)
                            offsets.latestOffset = record.offset
                offsets.latestOffset = max(offsets.latestOffset, header.lastOffset)
        offsets.latestOffset = max(offsets.latestOffset, request.endOffset - 1)

    # -- the groups

    def _groups(self) -> list[list[tuple[int, int, int]]]:
        """Neighbours that fit into one segment, by their bytes and by the offsets' four bytes."""
        request = self._request
        wanted = [each for each in request.segments if each[0] < self.result.endOffset]
        ends = [*(each[0] for each in request.segments[1:]), request.endOffset]
        groups: list[list[tuple[int, int, int]]] = []
        groupSize = 0
        for segment, end in zip(wanted, ends, strict=False):
            if (
                not groups
                or groupSize + segment[1] > request.segmentSizeMax
                or end - groups[-1][0][0] > RELATIVE_OFFSET_MAX
                or len(groups[-1]) >= GROUP_COUNT_MAX
            ):
                groups.append([])
                groupSize = 0
            groups[-1].append(segment)
            groupSize += segment[1]
        return groups

    def rewrite(self) -> None:
        """Write the groups."""
        transactions = _Transactions(self._request.aborted, self._request.segments[0][0])
        for group in self._groups():
            self._rewriteGroup(group, transactions)

    def _rewriteGroup(
        self, group: Sequence[tuple[int, int, int]], transactions: _Transactions
    ) -> None:
        directory = self._request.directory
        base = group[0][0]
        path = f"{directory}/{segmentName(base, BATCH_SUFFIX)}{CLEANED_SUFFIX}"
        isChanged = len(group) > 1
        pending: list[bytes] = []
        pendingSize = position = 0
        with closing(self._fileSystem.open(path, create=True)) as file:
            for segmentBase, size, _ in group:
                for header, data in self._batches(segmentBase, size):
                    kept = self._filtered(header, data, transactions)
                    isChanged = isChanged or kept is not data
                    if kept is not None:
                        pending.append(kept)
                        pendingSize += len(kept)
                        if pendingSize >= WRITE_SIZE:
                            position = _append(file, position, pending)
                            pending, pendingSize = [], 0
            position = _append(file, position, pending)
            if isChanged:
                if position > FILE_SIZE_MAX:
                    raise StorageError(path, "compact", f"{position} bytes are too many")
                file.sync()
        if not isChanged:
            self._fileSystem.remove(path)
            return
        self._fileSystem.setModified(path, group[-1][2])
        self.result.writtenSize += position
        self.result.groups.append(CompactedGroup([each[0] for each in group], position))

    def _filtered(
        self, header: BatchHeader, data: bytes, transactions: _Transactions
    ) -> bytes | None:
        """The batch as it stays; C{data}: unchanged; L{None}: it goes."""
        result, nowMs = self.result, self._request.nowMs
        result.recordCount += header.recordCount
        result.readSize += header.size
        horizonMs = header.deleteHorizonMs
        kept: bytes | None
        if header.isControl:
            isObsolete = transactions.isObsolete(data, header)
            hasPassed = horizonMs is not None and horizonMs <= nowMs
            kept = None
            if header.recordCount and not (isObsolete and hasPassed):
                kept = data
                if isObsolete and horizonMs is None:
                    kept = filterBatch(data, header, _everything, self._newHorizonMs, True)
        elif transactions.isAborted(header) or not header.recordCount:
            kept = None
        else:
            kept = filterBatch(
                data,
                header,
                _Retention(self._map, horizonMs is None or nowMs < horizonMs).retains,
                self._newHorizonMs,
            )
        if kept is not None:
            result.keptCount += readHeader(kept).recordCount
            return kept
        if self._isLastOfProducer(header):
            return emptyBatch(header) if header.recordCount else data
        return None

    @property
    def _newHorizonMs(self) -> int:
        return self._request.nowMs + self._request.deleteRetentionMs

    def _isLastOfProducer(self, header: BatchHeader) -> bool:
        found = self._producers.get(header.producerId)
        if found is None:
            return False
        lastOffset, epoch = found
        if lastOffset >= 0:
            return header.lastOffset == lastOffset
        return header.isControl and header.producerEpoch == epoch


class _Retention:
    """Which records of a batch stay."""

    __slots__ = ("_get", "_isTombstoneKept", "_latestOffset")

    def __init__(self, offsets: OffsetMap, isTombstoneKept: bool) -> None:
        self._get = offsets.get
        self._latestOffset = offsets.latestOffset
        self._isTombstoneKept = isTombstoneKept

    def retains(self, record: RawRecord) -> bool:
        if record.offset > self._latestOffset:
            return True
        if record.key is None or record.offset < self._get(record.key):
            return False
        return record.hasValue or self._isTombstoneKept


def _everything(record: RawRecord) -> bool:
    return True


def firstTimestamp(fileSystem: IFileSystem, segments: Sequence[Segment]) -> int:
    """
    The smallest of the largest timestamps of the segments' first batches; -1: none has one. Blocks.

    @raise StorageError: a file cannot be read.
    """
    found = []
    for segment in segments:
        with closing(fileSystem.open(segment.path, write=False)) as file:
            data = file.readAt(0, BATCH_OVERHEAD)
        if data:
            try:
                found.append(readHeader(data).maxTimestampMs)
            except FormatError as error:
                raise CorruptLogError(segment.path, "read", error.reason) from error
    return min((each for each in found if each >= 0), default=-1)


def _append(file: IFile, position: int, buffers: Sequence[bytes]) -> int:
    if not buffers:
        return position
    size = sum(map(len, buffers))
    problem = writeAll(file, position, buffers, size).problem
    if problem is not None:
        raise problem
    return position + size


def compact(
    fileSystem: IFileSystem,
    request: CompactionRequest,
    pause: Callable[[float], object] = lambda seconds: None,
    clock: Callable[[], float] = lambda: 0.0,
) -> CompactionResult:
    """
    Write the compacted segments beside the old ones. Blocks. No C{.cleaned} file may be there.

    @param pause: waits for some seconds, to keep C{readSizeMax}.
    @param clock: seconds.
    @raise CorruptLogError: a segment cannot be read: it must not be compacted.
    @raise StorageError: a file cannot be read or written.
    """
    run = _Run(fileSystem, request, pause, clock)
    run.fillMap()
    run.result.keyCount = len(run._map)
    run.rewrite()
    return run.result
