"""
What a partition knows of its producers, as in Kafka 4.x: pure, and known from the log alone.

B{Idempotence.} A producer numbers its records; a batch has the producer's id, its epoch and the
sequence of its first record. The next batch must follow the last one (sequences are 31 bits and
begin again at 0). The last L{BATCH_COUNT} batches are remembered: one that comes again is answered
with the offsets that it has, since its answer may have been lost. A smaller epoch is refused: the
producer was replaced. A new epoch begins at sequence 0. An unknown producer may begin anywhere:
retention may have removed what the partition knew of it.

B{Transactions.} A transaction is ongoing from its first transactional batch to its end marker. The
last stable offset is the first offset of the oldest one that is ongoing, or whose marker is not yet
below the high watermark; readers of committed records stop there.

B{Snapshots.} The state at an offset, in Kafka's format, in a file named after the offset. It is
written at rolls and at an orderly close, behind the sync of the segment: it never knows more than
the flushed log. At a start, the latest valid snapshot is read, and the batches behind it are
scanned.

B{Limits.} A producer without an ongoing transaction is forgotten when it was idle for
C{producer.id.expiration.ms}, or, above L{PRODUCER_COUNT_MAX}, when it is among the tenth that was
idle longest. Kafka has the first limit only.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from crc32c import crc32c

from pylogbroker.errors import (
    CoordinatorFencedError,
    CorruptLogError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    PylogbrokerError,
)
from pylogbroker.interfaces import NO_PRODUCER, BatchHeader, EndMarker, IFileSystem
from pylogbroker.storage.kafka.checkpoints import readSmallFile, replaceFile
from pylogbroker.storage.kafka.transactionindex import AbortedTransaction
from pylogbroker.types import LogPosition

SUFFIX = ".snapshot"
BATCH_COUNT = 5
PRODUCER_COUNT_MAX = 100_000

EPOCH_BUMP_VERSION = 2
"""The transaction version in which each transaction has an epoch of its own."""

EPOCH_MAX = 2**15 - 1
SEQUENCE_MASK = 0x7FFFFFFF
NO_EPOCH = -1
NO_OFFSET = -1

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class ProducedBatch(NamedTuple):
    """
    A batch that a producer has appended.

    @ivar lastSequence: of its last record.
    @ivar offsetDelta: its last offset less its first.
    """

    lastSequence: int
    lastOffset: int
    offsetDelta: int
    timestampMs: int

    @property
    def firstOffset(self) -> int:
        return self.lastOffset - self.offsetDelta


class ProducerEntry:
    """
    What is known of one producer.

    @ivar coordinatorEpoch: of the coordinator that wrote its last end marker; -1: none has.
    @ivar timestampMs: of its last batch or marker.
    @ivar transactionStart: first offset of its ongoing transaction; -1: none.
    @ivar batches: its last batches in this epoch, oldest first.
    """

    __slots__ = (
        "batches",
        "coordinatorEpoch",
        "epoch",
        "producerId",
        "timestampMs",
        "transactionStart",
    )

    def __init__(self, producerId: int) -> None:
        self.producerId = producerId
        self.epoch = NO_EPOCH
        self.coordinatorEpoch = -1
        self.timestampMs = -1
        self.transactionStart = NO_OFFSET
        self.batches: deque[ProducedBatch] = deque(maxlen=BATCH_COUNT)

    @property
    def lastSequence(self) -> int:
        """Of its last batch; -1: none in this epoch."""
        return self.batches[-1].lastSequence if self.batches else -1


class CompletedTransaction(NamedTuple):
    """A transaction that its end marker, at C{lastOffset}, has ended."""

    producerId: int
    firstOffset: int
    lastOffset: int
    isAborted: bool


class ProducerStateManager:
    """
    The producers of one partition; the module states the rules.

    @ivar producers: by id.
    @ivar ongoing: the first offset of each ongoing transaction, ascending, and its place in the
        log; L{None}: it is not known yet, after a start.
    @ivar undecided: completed transactions whose marker is not below the high watermark: first
        offset, and the marker's offset and the place of the first.
    @ivar endOffset: the state covers everything below.
    @ivar snapshotOffset: of the last snapshot; -1: none.
    """

    def __init__(self, name: object, expirationMs: int) -> None:
        """
        @param name: of the partition, for the texts of errors.
        @param expirationMs: C{producer.id.expiration.ms}.
        """
        self._name = name
        self.expirationMs = expirationMs
        self.producers: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, LogPosition | None] = {}
        self.undecided: dict[int, tuple[int, LogPosition | None]] = {}
        self.endOffset = 0
        self.snapshotOffset = -1

    # -- appending

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """
        Whether a client's batch may be appended now.

        @return: L{None}: append it. Otherwise the batch as it was appended before.
        @raise OutOfOrderSequenceError: it is not the producer's next one.
        @raise InvalidProducerEpochError: a newer producer has written.
        @raise InvalidTransactionStateError: it is outside of the producer's ongoing transaction.
        """
        entry = self.producers.get(header.producerId)
        if entry is None:
            return None
        first = header.baseSequence
        if entry.epoch == header.producerEpoch:
            known = entry.batches
            last = known[-1].lastSequence if known else -1
            # -1 and 2^31-1 are both followed by 0.
            if first != (last + 1) & SEQUENCE_MASK:
                delta = header.lastOffsetDelta
                end = (first + delta) & SEQUENCE_MASK
                for each in known:
                    if each.lastSequence == end and each.offsetDelta == delta:
                        return each
                raise OutOfOrderSequenceError(
                    f"producer {header.producerId} sent sequence {first} to {self._name}, behind"
                    f" {last}"
                )
        else:
            self._checkEpoch(entry, header)
            if first != 0 and entry.epoch != NO_EPOCH:
                raise OutOfOrderSequenceError(
                    f"producer {header.producerId} began its epoch {header.producerEpoch} in"
                    f" {self._name} with sequence {first}, not 0"
                )
        if entry.transactionStart >= 0 and not header.isTransactional:
            raise InvalidTransactionStateError(
                f"producer {header.producerId} wrote to {self._name} outside of its transaction"
            )
        return None

    def checkBegin(self, producerId: int, sequence: int) -> None:
        """
        Whether a producer that begins each of its transactions at sequence 0 may append a batch.

        @raise OutOfOrderSequenceError: nothing is known of the producer, and it is not its first.
        """
        if sequence != 0 and producerId not in self.producers:
            raise OutOfOrderSequenceError(
                f"producer {producerId} began its transaction in {self._name} with sequence"
                f" {sequence}, not 0"
            )

    def areNext(self, headers: Sequence[BatchHeader]) -> bool:
        """
        Whether clients' batches may be appended together: they are of no transaction, and of no
        producer, or of one, whose next ones they are.
        """
        first = headers[0]
        sequence = first.baseSequence
        for each in headers:
            if each.producerId != first.producerId or each.isTransactional:
                return False
            if each.producerId >= 0:
                if each.producerEpoch != first.producerEpoch or each.baseSequence != sequence:
                    return False
                sequence = (sequence + each.recordCount) & SEQUENCE_MASK
        try:
            return first.producerId < 0 or self.check(first) is None
        except PylogbrokerError:
            return False  # why is told when it is appended alone

    def checkMarker(self, header: BatchHeader, marker: EndMarker) -> None:
        """
        Whether an end marker may be appended.

        @raise InvalidProducerEpochError: a newer producer has written.
        @raise CoordinatorFencedError: a newer coordinator has.
        """
        entry = self.producers.get(header.producerId)
        if entry is None:
            return
        self._checkEpoch(entry, header)
        if (
            marker.transactionVersion >= EPOCH_BUMP_VERSION
            and header.producerEpoch == entry.epoch
            and entry.transactionStart >= 0  # otherwise the marker is a repetition
            and header.producerEpoch != EPOCH_MAX
        ):
            raise InvalidProducerEpochError(
                f"the end of a transaction of producer {header.producerId} in {self._name} has its"
                f" epoch, {entry.epoch}, not a newer one"
            )
        if marker.coordinatorEpoch < entry.coordinatorEpoch:
            raise CoordinatorFencedError(
                f"coordinator epoch {marker.coordinatorEpoch} for producer {header.producerId} in"
                f" {self._name}, behind {entry.coordinatorEpoch}"
            )

    def checkEpoch(self, header: BatchHeader) -> None:
        """
        Whether a batch of a coordinator may be appended in a producer's transaction.

        @raise InvalidProducerEpochError: a newer producer has written.
        """
        entry = self.producers.get(header.producerId)
        if entry is not None:
            self._checkEpoch(entry, header)

    def _checkEpoch(self, entry: ProducerEntry, header: BatchHeader) -> None:
        if header.producerEpoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"producer {header.producerId} wrote to {self._name} with epoch"
                f" {header.producerEpoch}, behind {entry.epoch}"
            )

    def hasOngoingTransaction(self, producerId: int, epoch: int) -> bool:
        entry = self.producers.get(producerId)
        return entry is not None and entry.transactionStart >= 0 and entry.epoch == epoch

    def append(
        self,
        header: BatchHeader,
        baseOffset: int,
        timestampMs: int,
        marker: EndMarker | None = None,
        position: LogPosition | None = None,
    ) -> CompletedTransaction | None:
        """
        Take in a batch that is in the log, whether it was checked or not.

        @param timestampMs: its largest timestamp.
        @param position: its place in the log, if it is known; of transactional batches alone.
        @return: the transaction that it ends, if it ends one.
        """
        producerId = header.producerId
        if producerId == NO_PRODUCER or (header.isControl and marker is None):
            return None
        entry = self.producers.get(producerId)
        if entry is None:
            if len(self.producers) >= PRODUCER_COUNT_MAX:
                self._forgetIdle()
            entry = self.producers[producerId] = ProducerEntry(producerId)
        if entry.epoch != header.producerEpoch:
            entry.epoch = header.producerEpoch
            entry.batches.clear()
        entry.timestampMs = timestampMs
        if marker is not None:
            return self._end(entry, baseOffset, marker)
        delta = header.lastOffsetDelta
        sequence = (header.baseSequence + delta) & SEQUENCE_MASK
        batch: ProducedBatch = tuple.__new__(  # half the cost of calling the class
            ProducedBatch, (sequence, baseOffset + delta, delta, timestampMs)
        )
        entry.batches.append(batch)
        if entry.transactionStart < 0 and header.isTransactional and header.recordCount:
            entry.transactionStart = baseOffset
            self.ongoing[baseOffset] = position
        return None

    def _end(
        self, entry: ProducerEntry, offset: int, marker: EndMarker
    ) -> CompletedTransaction | None:
        entry.coordinatorEpoch = marker.coordinatorEpoch
        start, entry.transactionStart = entry.transactionStart, NO_OFFSET
        if start < 0:
            return None
        self.undecided[start] = (offset, self.ongoing.pop(start, None))
        return CompletedTransaction(entry.producerId, start, offset, not marker.isCommit)

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """The entry of the transaction index for an aborted transaction, at its completion."""
        start = next(iter(self.ongoing), completed.lastOffset + 1)
        return AbortedTransaction(
            completed.producerId, completed.firstOffset, completed.lastOffset, start
        )

    # -- the last stable offset

    def onHighWatermark(self, offset: int) -> None:
        """Forget completed transactions whose markers readers can see."""
        if self.undecided:
            for start, (markerOffset, _) in list(self.undecided.items()):
                if markerOffset < offset:
                    del self.undecided[start]

    @property
    def firstUnstableOffset(self) -> int:
        """The first offset that is not decided; -1: there is none."""
        ongoing = next(iter(self.ongoing), NO_OFFSET)
        undecided = min(self.undecided, default=NO_OFFSET)
        return (
            min(ongoing, undecided) if ongoing >= 0 and undecided >= 0 else max(ongoing, undecided)
        )

    @property
    def firstUnstablePosition(self) -> LogPosition | None:
        """The place of C{firstUnstableOffset}, if it is known."""
        offset = self.firstUnstableOffset
        found = self.undecided.get(offset)
        return found[1] if found is not None else self.ongoing.get(offset)

    # -- forgetting

    def expire(self, nowMs: int) -> int:
        """Forget producers that were idle too long. Returns how many."""
        idle = [
            each.producerId
            for each in self.producers.values()
            if each.transactionStart < 0 and nowMs - each.timestampMs >= self.expirationMs
        ]
        for producerId in idle:
            del self.producers[producerId]
        return len(idle)

    def _forgetIdle(self) -> None:
        idle = sorted(
            (each for each in self.producers.values() if each.transactionStart < 0),
            key=attrgetter("timestampMs"),
        )
        for each in idle[: PRODUCER_COUNT_MAX // 10]:
            del self.producers[each.producerId]

    # -- snapshots

    def restore(self, offset: int, entries: Iterable[ProducerEntry], nowMs: int) -> None:
        """Begin with the state of a snapshot; expired producers are left out."""
        self.producers = {each.producerId: each for each in entries}
        self.undecided = {}
        starts = {each.transactionStart for each in self.producers.values()} - {NO_OFFSET}
        self.ongoing = dict.fromkeys(sorted(starts))
        self.expire(nowMs)
        self.endOffset = self.snapshotOffset = offset

    def takeSnapshot(self, offset: int) -> ProducerSnapshot | None:
        """
        The state at an offset, the log's end. The caller appends nothing until it is written.

        @return: L{None}: there is a snapshot at this offset already.
        """
        self.endOffset = offset
        if offset <= self.snapshotOffset:
            return None
        return ProducerSnapshot(offset, tuple(self.producers.values()))


class ProducerSnapshot(NamedTuple):
    """The producers at an offset, to be written by a job."""

    offset: int
    entries: tuple[ProducerEntry, ...]

    def write(self, fileSystem: IFileSystem, directory: str) -> None:
        """Write the file durably. Blocks."""
        data = encodeSnapshot(self.entries)
        replaceFile(fileSystem, snapshotPath(directory, self.offset), data)


def snapshotPath(directory: str, offset: int) -> str:
    """The file of the snapshot at an offset."""
    return f"{directory}/{offset:020d}{SUFFIX}"


def encodeSnapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """
    Kafka's snapshot, version 1: version, CRC-32C of what follows, entries. Of each producer's
    batches it has the last.
    """
    parts = []
    for each in entries:
        last = each.batches[-1] if each.batches else ProducedBatch(-1, -1, 0, -1)
        parts.append(
            _ENTRY.pack(
                each.producerId, each.epoch, last.lastSequence, last.lastOffset,
                last.offsetDelta, each.timestampMs, each.coordinatorEpoch, each.transactionStart,
            )
        )  # fmt: skip
    body = _COUNT.pack(len(parts)) + b"".join(parts)
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decodeSnapshot(data: bytes, path: str = "snapshot") -> list[ProducerEntry]:
    """
    @raise CorruptLogError: the data are no snapshot.
    """
    headSize = _HEAD.size + _COUNT.size
    if len(data) < headSize:
        raise CorruptLogError(path, "read", f"{len(data)} bytes")
    version, checksum = _HEAD.unpack_from(data)
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    if version != _VERSION or crc32c(data[_HEAD.size :]) != checksum:
        raise CorruptLogError(path, "read", f"version {version}, or a wrong checksum")
    if len(data) != headSize + count * _ENTRY.size:
        raise CorruptLogError(path, "read", f"{count} entries in {len(data)} bytes")
    entries = []
    for fields in _ENTRY.iter_unpack(data[headSize:]):
        producerId, epoch, sequence, offset, delta, timestampMs, coordinatorEpoch, start = fields
        entry = ProducerEntry(producerId)
        entry.epoch = epoch
        entry.timestampMs = timestampMs
        entry.coordinatorEpoch = coordinatorEpoch
        entry.transactionStart = start
        if offset >= 0:
            entry.batches.append(ProducedBatch(sequence, offset, delta, timestampMs))
        entries.append(entry)
    return entries


def parseSnapshotName(name: str) -> int | None:
    """The offset of a snapshot file; L{None}: it is none."""
    digits = name.removesuffix(SUFFIX)
    isSnapshot = digits != name and digits.isascii() and digits.isdigit()
    return int(digits) if isSnapshot else None


def loadLatestSnapshot(
    fileSystem: IFileSystem, directory: str, endOffset: int, offsetMax: int = 1 << 63
) -> tuple[int, list[ProducerEntry]] | None:
    """
    The latest valid snapshot up to an offset. Invalid ones are removed. Blocks.

    @param endOffset: snapshots behind it, which the log has lost the batches for, are removed.
    @param offsetMax: of the snapshot.
    @return: (offset, entries); L{None}: there is none.
    @raise StorageError: a file cannot be read or removed.
    """
    offsets = {parseSnapshotName(name) for name in fileSystem.list(directory)} - {None}
    for offset in sorted((each for each in offsets if each is not None), reverse=True):
        path = snapshotPath(directory, offset)
        if offsetMax < offset <= endOffset:
            continue
        if offset <= endOffset:
            try:
                return offset, decodeSnapshot(readSmallFile(fileSystem, path) or b"", path)
            except CorruptLogError:
                pass
        fileSystem.remove(path)
    return None
