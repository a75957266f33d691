"""
The transactions on the disk: our commit log, and snapshots that bound it.

B{The log} is one partition of record batches in a L{LogDirectory}. A record is a transaction, and
its offset is the transaction's number less 1: what a batch has is there whole or not at all.
C{append} returns when its transactions are synced.

B{A snapshot} C{snapshots/snapshot.<zxid, 16 hex digits>} has the tree behind that transaction, in
record batches, too; its last record has the counts of all others. It is written under another name
and synced, and gets its name when the log is synced up to its transaction: otherwise the log could
end before a snapshot after a power cut. The two latest snapshots are kept, with the log from the
older one on, so that a damaged snapshot costs nothing.

B{Opening} takes the latest whole snapshot and applies the log behind it. A log that ends before a
snapshot, begins behind it, or has a transaction that does not fit is an error: then the files are
damaged, and nothing is served.

All methods block. L{writeSnapshot} may run beside the others, which must not overlap.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from pylogbroker.errors import (
    ConfigurationError,
    CorruptLogError,
    DirectoryLockedError,
    FormatError,
    StorageError,
    WireError,
)
from pylogbroker.interfaces import CheckLimits, IFileSystem, ScannedEntry, ValidatedBatches
from pylogbroker.records.batchbuilder import BatchBuilder
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.records.recordbatch import Record, iterateRecords, readHeader, stampBatch
from pylogbroker.storage.events import DamagedFileIgnored, Reporter
from pylogbroker.storage.files import writeAll
from pylogbroker.storage.jobs import DiskJob
from pylogbroker.storage.kafka.batchlog import BatchLog, BatchLogSettings
from pylogbroker.storage.logdirectory import LogDirectory, LogSettings
from pylogbroker.storage.partitionlog import NEVER
from pylogbroker.zookeeper.server.datatree import DataTree, Node, Session
from pylogbroker.zookeeper.server.jute import (
    JuteReader,
    encodeAcls,
    encodeBuffer,
    encodeInt,
)
from pylogbroker.zookeeper.server.transactions import decodeTransaction

LOG_TOPIC = "transactions"
APACHES_DIRECTORY = "version-2"
"""Where Apache's server keeps its data."""

SEGMENT_SIZE_MAX = 16 << 20
BATCH_SIZE_MAX = 1 << 20
TRANSACTION_SIZE_MAX = 8 << 20
SNAPSHOT_COUNT = 2
SNAPSHOT_TRANSACTION_COUNT = 100_000
SNAPSHOT_LOG_SIZE_MIN = 16 << 20
LAST_SNAPSHOT_TRANSACTION_COUNT = 1_000
"""Transactions behind the last snapshot that make one worth its time when the server stops."""

_LIMITS = CheckLimits(payloadSizeMax=SEGMENT_SIZE_MAX)
_SNAPSHOT_PREFIX = "snapshot."
_NODE_KEY, _SESSION_KEY, _END_KEY = b"n", b"s", b"e"
_NUMBERS = struct.Struct(">qqqqqqqiii")
_LONG = struct.Struct(">q")
_END = struct.Struct(">qqq")


class Entry(NamedTuple):
    """A transaction for the log: its time, milliseconds since the epoch, and its bytes."""

    timeMs: int
    data: bytes


class Snapshot(NamedTuple):
    """A copy of a tree, which no later change touches."""

    zxid: int
    nodes: dict[str, Node]
    sessions: dict[int, Session]

    @classmethod
    def of(cls, tree: DataTree) -> Snapshot:
        return cls(tree.zxid, tree.nodes.copy(), tree.sessions.copy())


class TransactionLog:
    """
    The log of one server; the module states its rules.

    @ivar path: of the directory of the data.
    """

    def __init__(
        self,
        fileSystem: IFileSystem,
        path: str,
        clock: Callable[[], int],
        report: Reporter,
        snapshotTransactionCount: int = SNAPSHOT_TRANSACTION_COUNT,
        segmentSizeMax: int = SEGMENT_SIZE_MAX,
    ) -> None:
        """
        @param path: is made if it is missing.
        @param clock: milliseconds since the epoch.
        @param report: called on the thread of the method, with what an operator should know.
        @param snapshotTransactionCount: transactions between two snapshots, at most.
        """
        self.path = path
        self._fileSystem = fileSystem
        self._clock = clock
        self._report = report
        self._snapshotCount = snapshotTransactionCount
        self._batchSizeMax = min(BATCH_SIZE_MAX, segmentSizeMax // 4)
        self._snapshotDirectory = f"{path}/snapshots"
        self._format = KafkaFormat()
        settings = BatchLogSettings(
            segmentSizeMax=segmentSizeMax,
            rollAgeMs=NEVER,
            flushCountMax=NEVER,
            flushIntervalMs=NEVER,
            retention=lambda segments, nowMs: 0,
            batchSizeMax=segmentSizeMax,
        )
        self._directory = LogDirectory(
            f"{path}/log",
            [self._format],
            fileSystem,
            LogSettings(
                forTopic=lambda topic: settings,
                partitionCount=lambda topic: 1,
                topicLengthMax=255,
                descriptorCountMax=8,
                forBatches=lambda topic: settings,
            ),
            clock,
        )
        self._log: BatchLog | None = None
        self._snapshotZxid = 0
        self._sinceSize = 0
        self._snapshotSize = 0
        self._zxid = 0

    @property
    def isSnapshotDue(self) -> bool:
        """Whether so much has come since the last snapshot that a new one is worth its bytes."""
        return self._zxid - self._snapshotZxid >= self._snapshotCount or (
            self._sinceSize >= max(SNAPSHOT_LOG_SIZE_MIN, 2 * self._snapshotSize)
        )

    @property
    def isLastSnapshotDue(self) -> bool:
        """
        Whether a snapshot before the end saves the next start more than it costs: much has come
        since the last one, also beside what a new one has to write again.
        """
        count = self._zxid - self._snapshotZxid
        isWorthIt = 4 * self._sinceSize >= self._snapshotSize
        return count >= LAST_SNAPSHOT_TRANSACTION_COUNT and isWorthIt

    # -- opening

    def open(self) -> DataTree:
        """
        @return: the tree behind the last transaction.
        @raise ConfigurationError: the directory is another server's.
        @raise CorruptLogError: the files are damaged; the text says which.
        @raise StorageError: they cannot be read or written.
        """
        if self._fileSystem.status(f"{self.path}/{APACHES_DIRECTORY}") is not None:
            raise ConfigurationError(
                f"{self.path} has the data of Apache's ZooKeeper ({APACHES_DIRECTORY}), which this"
                " server cannot read: choose another directory, or run Apache's zkServer.sh"
            )
        try:
            self._directory.open(self._report)
        except DirectoryLockedError as error:
            raise ConfigurationError(
                f"{self.path}: another ZooKeeper has its data there"
            ) from error
        try:
            self._makeSnapshotDirectory()
            self._log = self._openLog()
            tree = self._newestTree()
            self._replay(self._log, tree)
        except BaseException:
            self._directory.close()
            raise
        self._zxid = tree.zxid
        return tree

    def _makeSnapshotDirectory(self) -> None:
        if self._fileSystem.status(self._snapshotDirectory) is None:
            self._fileSystem.makeDirectories(self._snapshotDirectory)
            self._fileSystem.syncDirectory(self.path)
        for name in self._fileSystem.list(self._snapshotDirectory):
            if name.endswith(".tmp"):
                self._fileSystem.remove(f"{self._snapshotDirectory}/{name}")

    def _openLog(self) -> BatchLog:
        log = self._directory.get(LOG_TOPIC, 0)
        if log is None:
            job = self._directory.beginCreate(LOG_TOPIC, 0)
            job.run()
            log = self._directory.finishCreate(job, None)
        assert isinstance(log, BatchLog)
        return log

    def _newestTree(self) -> DataTree:
        """Of the latest snapshot that is whole."""
        problem: CorruptLogError | None = None
        for zxid in self._snapshots():
            path = self._snapshotPath(zxid)
            try:
                tree = self._readSnapshot(path, zxid)
            except CorruptLogError as error:
                self._report(DamagedFileIgnored(error))
                problem = error
                continue
            self._snapshotZxid = zxid
            status = self._fileSystem.status(path)
            self._snapshotSize = status.size if status is not None else 0
            return tree
        if problem is not None:
            raise problem
        return DataTree()

    def _snapshots(self) -> list[int]:
        """The numbers of all snapshots, the latest first."""
        names = self._fileSystem.list(self._snapshotDirectory)
        return sorted(
            (
                int(name.removeprefix(_SNAPSHOT_PREFIX), 16)
                for name in names
                if name.startswith(_SNAPSHOT_PREFIX) and not name.endswith(".tmp")
            ),
            reverse=True,
        )

    def _snapshotPath(self, zxid: int) -> str:
        return f"{self._snapshotDirectory}/{_SNAPSHOT_PREFIX}{zxid:016x}"

    def _replay(self, log: BatchLog, tree: DataTree) -> None:
        if log.logEndOffset < tree.zxid or log.segments[0].baseOffset > tree.zxid:
            raise CorruptLogError(
                log.path,
                "read",
                f"it has the transactions {log.segments[0].baseOffset + 1} to {log.logEndOffset},"
                f" which do not follow the snapshot {tree.zxid}",
            )
        for record in self._records(log, tree.zxid):
            zxid = record.offset + 1
            try:
                tree.apply(decodeTransaction(record.value or b""), zxid, record.timestampMs)
            except (KeyError, WireError) as error:
                raise CorruptLogError(
                    log.path, "read", f"transaction {zxid} does not fit: {error}"
                ) from error
            self._sinceSize += len(record.value or b"")
        if tree.zxid != log.logEndOffset:
            raise CorruptLogError(
                log.path, "read", f"it ends at {log.logEndOffset}, and its records at {tree.zxid}"
            )

    def _records(self, log: BatchLog, offset: int) -> Iterator[Record]:
        """The records from an offset on."""
        ends = [*(each.baseOffset for each in log.segments[1:]), log.logEndOffset]
        for segment, end in zip(log.segments, ends, strict=True):
            if end > offset:
                yield from self._recordsOf(segment.path, segment.baseOffset, segment.size, offset)

    def _recordsOf(self, path: str, baseOffset: int, size: int, offset: int) -> Iterator[Record]:
        with closing(self._fileSystem.open(path, write=False)) as file:
            scan = self._format.scan(file.readAt, baseOffset, 0, size)
            for entry in scan:
                if entry.nextOffset > offset:
                    yield from _recordsIn(path, file.readAt(entry.position, entry.size), entry)
            if scan.reason is not None:
                raise CorruptLogError(path, "read", f"byte {scan.position}: {scan.reason}")

    # -- appending

    def append(self, entries: Sequence[Entry]) -> None:
        """
        Append transactions, in order, and sync them.

        @raise StorageError: it is unknown which of them are there. Nothing may be appended any
            more.
        """
        log = self._log
        assert log is not None
        for batch in _batches(entries, self._batchSizeMax):
            validated = self._format.validate(batch, _LIMITS)
            if log.rollDue(self._clock(), validated):
                self._roll(log)
            self._append(log, validated)
        job = log.beginFlush()
        if job is not None:
            log.finishFlush(job, _errorOf(job), self._clock())
        self._check(log)
        self._zxid = log.flushedOffset

    def _append(self, log: BatchLog, validated: ValidatedBatches) -> None:
        self._check(log)
        log.append(validated, self._clock())
        self._sinceSize += validated.size

    def _roll(self, log: BatchLog) -> None:
        job = log.beginRoll()
        if job is not None:
            log.finishRoll(job, _errorOf(job), self._clock())
        self._check(log)

    @staticmethod
    def _check(log: BatchLog) -> None:
        problem = log.failure or log.blocked
        if problem is not None:
            raise problem

    # -- snapshots

    def writeSnapshot(self, snapshot: Snapshot) -> int:
        """
        Write a snapshot that has no name yet.

        @return: its bytes, for L{nameSnapshot}.
        @raise StorageError: it is not written; the log is as it was.
        """
        path = self._snapshotPath(snapshot.zxid) + ".tmp"
        if self._fileSystem.status(path) is not None:
            self._fileSystem.remove(path)
        try:
            return self._write(path, snapshot)
        except StorageError:
            with suppress(StorageError):  # the next start removes it
                self._fileSystem.remove(path)
            raise

    def _write(self, path: str, snapshot: Snapshot) -> int:
        position = 0
        with closing(self._fileSystem.open(path, create=True, isPrivate=True)) as file:
            for batch in _snapshotBatches(snapshot):
                problem = writeAll(file, position, [batch], len(batch)).problem
                if problem is not None:
                    raise problem
                position += len(batch)
            file.sync()
        return position

    def nameSnapshot(self, zxid: int, size: int) -> None:
        """
        Give a written snapshot its name, and remove what is older than the last but one.

        @param zxid: of the snapshot; the log is synced up to it.
        @raise StorageError: a file cannot be renamed, removed or synced.
        """
        assert self._log is not None and self._log.flushedOffset >= zxid
        path = self._snapshotPath(zxid)
        self._fileSystem.rename(path + ".tmp", path)
        self._fileSystem.syncDirectory(self._snapshotDirectory)
        self._snapshotZxid, self._snapshotSize, self._sinceSize = zxid, size, 0
        kept = self._snapshots()
        for old in kept[SNAPSHOT_COUNT:]:
            self._fileSystem.remove(self._snapshotPath(old))
        if len(kept) >= SNAPSHOT_COUNT:
            self._trim(self._log, kept[SNAPSHOT_COUNT - 1])

    def _trim(self, log: BatchLog, offset: int) -> None:
        """Delete the segments below an offset."""
        log.deleteRecords(offset)
        job = log.beginDelete(log.expired(self._clock()), self._clock())
        if job is not None:
            error = _errorOf(job)
            log.finishDelete(job, error)
            if error is not None:
                raise error
        checkpoint = self._directory.beginCheckpoint()
        if checkpoint is not None:
            checkpoint.run()
            self._directory.finishCheckpoint(checkpoint, None)

    # -- the end

    def close(self) -> None:
        """
        @raise StorageError: the log could not be closed in order; the next start recovers it.
        """
        log, self._log = self._log, None
        if log is None:
            return
        try:
            job = log.beginClose()
            if job is not None:
                log.finishClose(job, _errorOf(job))
            self._directory.writeCleanShutdownMarker()
        finally:
            self._directory.close()

    # -- reading a snapshot

    def _readSnapshot(self, path: str, zxid: int) -> DataTree:
        nodes: list[tuple[str, Node]] = []
        sessions: list[tuple[int, Session]] = []
        counts: tuple[int, int, int] | None = None
        status = self._fileSystem.status(path)
        assert status is not None
        for record in self._recordsOf(path, 0, status.size, 0):
            key, value = record.key or b"", record.value or b""
            try:
                if key[:1] == _NODE_KEY:
                    nodes.append((key[1:].decode("utf-8"), _decodeNode(value)))
                elif key[:1] == _SESSION_KEY:
                    sessions.append((_LONG.unpack(key[1:])[0], _decodeSession(value)))
                else:
                    counts = _END.unpack(value)
            except (struct.error, UnicodeDecodeError, WireError) as error:
                raise CorruptLogError(path, "read", f"record {record.offset}: {error}") from error
        if counts != (zxid, len(nodes), len(sessions)):
            raise CorruptLogError(path, "read", "it is not whole")
        return DataTree.restored(zxid, nodes, sessions)


def _errorOf(job: DiskJob) -> StorageError | None:
    """Run a job of the log; its error is for the log's C{finish...}."""
    try:
        job.run()
    except StorageError as error:
        return error
    return None


def _recordsIn(path: str, batch: bytes, entry: ScannedEntry) -> Iterator[Record]:
    assert entry.header is not None
    try:
        yield from iterateRecords(batch, 0, entry.header)
    except FormatError as error:
        raise CorruptLogError(path, "read", f"byte {entry.position}: {error}") from error


def _batches(entries: Sequence[Entry], sizeMax: int) -> Iterator[bytes]:
    builder, size = BatchBuilder(), 0
    for entry in entries:
        if size and size + len(entry.data) > sizeMax:
            yield builder.close().encode()
            builder, size = BatchBuilder(), 0
        builder.append(entry.timeMs, None, entry.data)
        size += len(entry.data)
    if size:
        yield builder.close().encode()


def _snapshotBatches(snapshot: Snapshot) -> Iterator[bytes]:
    offset, builder, size = 0, BatchBuilder(), 0
    for key, value in _snapshotRecords(snapshot):
        builder.append(0, key, value)
        size += len(key) + len(value)
        if size >= BATCH_SIZE_MAX or key == _END_KEY:
            batch = builder.close().encode()
            header = readHeader(batch)
            yield stampBatch(batch, header, offset, 0, 0)
            offset += header.recordCount
            builder, size = BatchBuilder(), 0


def _snapshotRecords(snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
    for path, node in snapshot.nodes.items():
        yield _NODE_KEY + path.encode("utf-8"), _encodeNode(node)
    for sessionId, session in snapshot.sessions.items():
        value = encodeInt(session.timeoutMs) + encodeBuffer(session.password)
        yield _SESSION_KEY + _LONG.pack(sessionId), value
    yield _END_KEY, _END.pack(snapshot.zxid, len(snapshot.nodes), len(snapshot.sessions))


def _encodeNode(node: Node) -> bytes:
    return _NUMBERS.pack(*node[2:]) + encodeAcls(node.acls) + encodeBuffer(node.data)


def _decodeNode(data: bytes) -> Node:
    numbers = _NUMBERS.unpack_from(data)
    reader = JuteReader(data, _NUMBERS.size)
    acls, content = reader.readAcls(), reader.readBuffer()
    reader.readEnd()
    return Node(content, acls, *numbers)


def _decodeSession(data: bytes) -> Session:
    reader = JuteReader(data)
    found = Session(reader.readInt(), reader.readBuffer() or b"")
    reader.readEnd()
    return found
