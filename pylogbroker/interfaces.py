"""
Interfaces between rooms: record formats, files, slices of files, ZooKeeper, connections between
brokers.

They are L{typing.Protocol}s; zope's are used only where Twisted demands them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol


class CheckLimits(NamedTuple):
    """
    Limits of validation.

    @ivar payloadSizeMax: bytes of a top-level payload (C{max.message.size}).
    @ivar decompressedSizeMax: decompressed bytes of a set's compressed entries, over all depths.
    @ivar depthMax: nesting of compressed entries; 1: they hold plain messages.
    @ivar compressedSizeMax: bytes of a compressed payload. The reactor decompresses small ones, a
        worker the others.
    """

    payloadSizeMax: int = 1_000_000
    decompressedSizeMax: int = 64 << 20
    depthMax: int = 8
    compressedSizeMax: int = 2**31 - 1


NO_PRODUCER = -1
"""The producer id of a batch that no idempotent producer wrote."""

_CODEC = 0x07
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class BatchHeader(NamedTuple):
    """
    The header of a record batch, version 2, which L{pylogbroker.records.recordbatch} reads.

    @ivar size: bytes of the whole batch.
    @ivar leaderEpoch: of the leader that appended the batch; -1: not stamped.
    @ivar crc: CRC-32C of everything behind it.
    @ivar lastOffsetDelta: the last offset less the base offset. Compaction removes records and
        keeps it.
    @ivar baseTimestampMs: to which the records' timestamps are added; the delete horizon in a batch
        that has one.
    @ivar maxTimestampMs: the largest timestamp; the time of the append with C{isLogAppendTime}.
    @ivar producerId: -1: none.
    @ivar baseSequence: number of the first record in the producer's sequence; -1: none.
    """

    baseOffset: int
    size: int
    leaderEpoch: int
    magic: int
    crc: int
    attributes: int
    lastOffsetDelta: int
    baseTimestampMs: int
    maxTimestampMs: int
    producerId: int
    producerEpoch: int
    baseSequence: int
    recordCount: int

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC

    @property
    def isLogAppendTime(self) -> bool:
        """Whether every record's timestamp is C{maxTimestampMs}."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def isTransactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def isControl(self) -> bool:
        """Whether the batch holds a transaction's marker."""
        return bool(self.attributes & _CONTROL)

    @property
    def deleteHorizonMs(self) -> int | None:
        """When compaction may remove the batch's tombstones or marker; L{None}: not set yet."""
        return self.baseTimestampMs if self.attributes & _DELETE_HORIZON else None

    @property
    def lastOffset(self) -> int:
        return self.baseOffset + self.lastOffsetDelta

    @property
    def nextOffset(self) -> int:
        return self.baseOffset + self.lastOffsetDelta + 1

    @property
    def lastSequence(self) -> int:
        """Sequences begin again at 0 behind 2^31-1. -1: none."""
        if self.baseSequence < 0:
            return -1
        return (self.baseSequence + self.lastOffsetDelta) & 0x7FFFFFFF


class EndMarker(NamedTuple):
    """
    What a control batch says: a transaction has ended.

    @ivar isCommit: otherwise it was aborted.
    @ivar coordinatorEpoch: of the transaction coordinator that decided it.
    @ivar transactionVersion: when it is appended: from 2 on, its producer epoch is newer than that
        of the transaction.
    """

    isCommit: bool
    coordinatorEpoch: int
    transactionVersion: int = 0


class ValidatedBatches(NamedTuple):
    """
    Batches that a format has validated and not yet stamped. In the 2011 format, a batch is a
    message set.

    @ivar buffers: one whole batch each; a write may be cut short between two of them.
    @ivar size: bytes of all buffers.
    @ivar messageCount: messages, also those inside compressed entries.
    @ivar offsetCount: the offsets that the messages take: the last offset delta and 1.
    @ivar timestampMaxMs: the largest timestamp; -1 in formats without timestamps.
    @ivar headers: of the batches, in formats that are stamped; offsets and epoch are the sender's.
        With C{isLogAppendTime}, timestamp and checksum are still to be stamped.
    @ivar marker: what a control batch says, which then is the only batch.
    @ivar isFromCoordinator: the batches are a coordinator's own; their sequences mean nothing.
    """

    buffers: Sequence[bytes]
    size: int
    messageCount: int
    offsetCount: int
    timestampMaxMs: int = -1
    headers: Sequence[BatchHeader] = ()
    marker: EndMarker | None = None
    isFromCoordinator: bool = False


class AppendResult(NamedTuple):
    """
    The offsets that an append assigned.

    @ivar lastOffset: the last offset; C{baseOffset - 1} when nothing was appended.
    @ivar timeMs: milliseconds since the epoch.
    @ivar isDuplicate: nothing was appended: an idempotent producer sent the batch before, and the
        offsets are those that it got then.
    """

    baseOffset: int
    lastOffset: int
    timeMs: int
    isDuplicate: bool = False


class ScannedEntry(NamedTuple):
    """
    One top-level entry of a segment.

    @ivar position: byte in the file.
    @ivar size: bytes, with its own size field.
    @ivar nextOffset: the offset behind the entry.
    @ivar header: of the batch, in formats that are stamped.
    @ivar marker: what a control batch says, if it ends a transaction.
    """

    position: int
    size: int
    offset: int
    nextOffset: int
    header: BatchHeader | None = None
    marker: EndMarker | None = None


class TimestampOffset(NamedTuple):
    """
    A record, found by time.

    @ivar timestampMs: of the record, since the epoch.
    @ivar leaderEpoch: of its batch; -1: none.
    """

    timestampMs: int
    offset: int
    leaderEpoch: int


class ISegmentScan(Protocol):
    """
    A walk over the entries of a segment file. It stops, and never raises, at the first entry that
    is not whole and valid.

    @ivar position: byte behind the last good entry; grows during the walk.
    @ivar reason: after the walk, why it stopped; L{None}: exactly at the end.
    """

    position: int
    reason: str | None

    def __iter__(self) -> Iterator[ScannedEntry]: ...

    def skipToEnd(self) -> int:
        """Walk to the stop without yielding entries, which is faster, and return C{position}."""
        ...


# -- files


class FileStatus(NamedTuple):
    """
    @ivar size: bytes.
    @ivar modifiedMs: since the epoch.
    """

    size: int
    modifiedMs: int
    isDirectory: bool


class IFile(Protocol):
    """An open file. All methods except C{fileno} may block and raise L{StorageError}."""

    path: str

    def fileno(self) -> int: ...

    def writeAt(self, position: int, buffers: Sequence[bytes]) -> int:
        """
        C{os.pwritev} of at most 1,024 buffers. Returns bytes written, perhaps fewer than given.
        """
        ...

    def readAt(self, position: int, size: int) -> bytes: ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """C{fsync}: data and metadata."""
        ...

    def close(self) -> None: ...


class IFileSystem(Protocol):
    """
    The files of a machine. The real one is L{pylogbroker.storage.files.RealFileSystem};
    L{pylogbroker.testing.powercut.PowerCutFileSystem} forgets unsynced bytes. Failures are
    L{pylogbroker.errors.StorageError}s.
    """

    def open(
        self, path: str, *, create: bool = False, write: bool = True, isPrivate: bool = False
    ) -> IFile:
        """
        C{create}: the file must not exist yet. C{isPrivate}: only its owner may read and write it
        from now on, also if it exists.
        """
        ...

    def list(self, path: str) -> list[str]: ...

    def status(self, path: str) -> FileStatus | None:
        """L{None}: no such file."""
        ...

    def makeDirectories(self, path: str) -> None:
        """With parents; it may exist."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> None:
        """A second name for a file. Fails if the name exists: one of several callers succeeds."""
        ...

    def remove(self, path: str) -> None: ...

    def removeDirectory(self, path: str) -> None:
        """An empty one."""
        ...

    def setModified(self, path: str, modifiedMs: int) -> None: ...

    def syncDirectory(self, path: str) -> None:
        """C{fsync} of a directory, for its creations, renamings and removals."""
        ...

    def lock(self, path: str) -> Callable[[], None]:
        """
        Lock a file exclusively, without waiting; create it if need be.

        @return: releases the lock, as the end of the process does.
        @raise DirectoryLockedError: another broker has it.
        """
        ...


class IPinnableFile(Protocol):
    """The file behind slices. Counted pins keep its descriptor open."""

    path: str

    def pin(self) -> bool:
        """L{False}: the file is not open; use C{openPinned} on a worker."""
        ...

    def unpin(self) -> None: ...

    def openPinned(self) -> None:
        """Open and pin. Blocks. L{StorageError}: it cannot be opened, or was deleted."""
        ...

    def fileno(self) -> int:
        """Valid while pinned."""
        ...


class Slice(NamedTuple):
    """
    A range of a segment file.

    @ivar position: byte in the file.
    @ivar size: bytes; 0 for an empty slice, whose C{file} is L{None}.
    """

    file: IPinnableFile | None
    position: int
    size: int


EMPTY_SLICE = Slice(None, 0, 0)


# -- record formats


class ISegmentIndex(Protocol):
    """
    The offsets in one segment file. A format may keep it in its own file, which can be lost and
    rebuilt. Blocking methods are called on workers, the others on the log's thread.

    @ivar largestTimestampMs: of the segment's records; -1: none has a timestamp.
    @ivar isFull: whether the segment must roll, since the index has no room.
    """

    @property
    def isFull(self) -> bool: ...

    @property
    def largestTimestampMs(self) -> int: ...

    def positionOf(self, offset: int) -> int | None:
        """
        The byte in the file where a read from an offset begins: the start of the first batch that
        reaches the offset, or the end of the file.

        @return: L{None}: memory does not tell; use C{search}.
        """
        ...

    def search(self, file: IFile, offset: int) -> int:
        """C{positionOf}, with the file's help. Blocks; C{add} may run at the same time."""
        ...

    def searchTime(self, file: IFile, timestampMs: int, startOffset: int) -> TimestampOffset | None:
        """
        The first record, by offset, whose timestamp is not below C{timestampMs}. Blocks, like
        C{search}.

        @param startOffset: records below it do not count.
        @return: L{None}: the segment has none.
        @raise FormatError: the batch that must hold it cannot be read.
        """
        ...

    def searchLargestTime(self, file: IFile) -> TimestampOffset | None:
        """
        The first record with the largest timestamp. Blocks, like C{search}.

        @return: L{None}: no record has a timestamp.
        @raise FormatError: the batch that must hold it cannot be read.
        """
        ...

    def findEnd(self, size: int) -> int:
        """The offset behind the last of the segment's C{size} bytes. Blocks."""
        ...

    def add(self, batches: ValidatedBatches, offset: int, position: int, timeMs: int) -> None:
        """
        Batches were appended.

        @param offset: the first one's base offset.
        @param position: its byte in the file.
        @param timeMs: of the append.
        """
        ...

    def truncate(self, size: int, endOffset: int) -> None:
        """
        The segment is cut to C{size} bytes, and ends before C{endOffset}: make the index what it
        would be without what was cut off, durably. Blocks. Nothing else uses this index meanwhile,
        and it is not added to afterwards.
        """
        ...

    def save(self) -> None:
        """Make the index durable, before the log rolls or closes. Blocks."""
        ...

    def remove(self) -> None:
        """Remove the index's file, before the segment is deleted. Blocks."""
        ...


class IRecordFormat(Protocol):
    """
    A format of records. A partition keeps one format for life.

    @ivar suffix: of segment files, with the dot; it names the format.
    @ivar isStamped: whether batches hold their offsets. Otherwise the log calls neither C{stamp}
        nor an index's C{add}.
    """

    suffix: str
    isStamped: bool

    def validatePlain(self, sets: Sequence[bytes], payloadSizeMax: int) -> ValidatedBatches | None:
        """
        Validate a run of sets quickly: the hot loop of producing.

        @param payloadSizeMax: bytes of a payload.
        @return: L{None}: not every set is plain (uncompressed), whole and valid; validate each.
        """
        ...

    def validate(self, data: bytes, limits: CheckLimits) -> ValidatedBatches:
        """
        Validate one set; compressed entries are opened.

        @return: without a cut last entry, if the format allows one.
        @raise FormatError: why the set is refused, and where. Callers treat
            L{pylogbroker.errors.MessageTooLargeError} and
            L{pylogbroker.errors.DecompressionLimitError} apart.
        """
        ...

    def stamp(
        self, batches: ValidatedBatches, baseOffset: int, epoch: int, timeMs: int
    ) -> Sequence[bytes]:
        """
        Assign offsets.

        @param epoch: of the partition's leader.
        @param timeMs: of the append.
        @return: the buffers to write, one for each batch, of the same sizes.
        """
        ...

    def nextOffset(self, offset: int, buffers: Sequence[bytes]) -> int:
        """The offset behind stamped batches that begin at C{offset}."""
        ...

    def contiguousEnd(self, baseOffset: int, size: int) -> int | None:
        """
        The offset at which the segment behind one of C{size} bytes must begin; L{None}: offsets may
        have gaps, as after compaction.
        """
        ...

    def openIndex(
        self, fileSystem: IFileSystem, path: str, baseOffset: int, size: int, rebuild: bool
    ) -> ISegmentIndex:
        """
        Open the index of a segment, or make it. Blocks.

        @param path: of the segment file.
        @param size: bytes in that file.
        @param rebuild: ignore a file of the index.
        """
        ...

    def scan(
        self, read: Callable[[int, int], bytes], baseOffset: int, start: int, end: int
    ) -> ISegmentScan:
        """
        Walk a segment.

        @param read: C{read(position, size)} gives bytes, fewer only at the end of the file.
        @param start: position of the first entry.
        @param end: position at which to stop.
        """
        ...


# -- ZooKeeper

EPHEMERAL = 1
SEQUENCE = 2
"""Flags of C{create}, as in txzookeeper."""


class Stat(NamedTuple):
    """
    ZooKeeper's metadata of a node.

    @ivar czxid: the transaction that created it; a node made anew has another one.
    @ivar mzxid: the transaction of its last data change.
    @ivar version: the number of changes of its data.
    @ivar cversion: the number of changes of its children.
    @ivar ephemeralOwner: its session, 0 for a persistent node.
    """

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ephemeralOwner: int
    numChildren: int


class CreateOperation(NamedTuple):
    """
    Of a C{multi}: create a node. The result is its path, including a sequence number.

    @ivar acls: as kazoo has them; L{None} for the client's.
    @ivar flags: L{EPHEMERAL}, L{SEQUENCE}, both or none.
    """

    path: str
    data: bytes = b""
    acls: Any = None
    flags: int = 0


class SetOperation(NamedTuple):
    """Of a C{multi}: change a node's data. The result is the new L{Stat}."""

    path: str
    data: bytes
    version: int = -1


class DeleteOperation(NamedTuple):
    """Of a C{multi}: delete a node. The result is L{None}."""

    path: str
    version: int = -1


class CheckOperation(NamedTuple):
    """
    Of a C{multi}: require that a node exists, and has a version. The result is L{None}.

    @ivar version: -1 for any.
    """

    path: str
    version: int


ZookeeperOperation = CreateOperation | SetOperation | DeleteOperation | CheckOperation


class WatchEvent(NamedTuple):
    """
    The one event of a watch.

    @ivar kind: C{"created"}, C{"deleted"}, C{"changed"} (its data) or C{"child"} (its children).
    """

    kind: str
    path: str


class SessionEvent(Enum):
    """
    A change of a session. Every listener gets every EXPIRED exactly once; a CONNECTED after it is
    of a new session.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"
    CLOSED = "closed"


class IZookeeper(Protocol):
    """
    A client of ZooKeeper, with txzookeeper's names. Deferreds fail with a
    L{pylogbroker.errors.ZookeeperError}; none waits for ever.

    The C{…_and_watch} methods give two L{twisted.internet.defer.Deferred}s, (result, watch). The
    watch fires once with a L{WatchEvent} when the read state has changed, and survives lost
    connections without firing falsely. It fails with L{pylogbroker.errors.SessionExpiredException}
    when the session expires, or L{pylogbroker.errors.ClosingException} when the client is closed.
    If the result fails (C{exists_and_watch} knows no missing node), the watch never fires.
    Cancelling a watch forgets it.

    @ivar session_id: of the current session; 0 without one.
    @ivar session_timeout: milliseconds that a session lives without its client: the requested,
        later the granted ones.
    @ivar connected: whether requests can be answered now.
    """

    session_id: int
    connected: bool

    @property
    def session_timeout(self) -> int: ...

    def connect(self, timeoutMs: int | None = None) -> Any: ...

    def close(self) -> Any: ...

    def create(self, path: str, data: bytes | None = b"", acls: Any = None, flags: int = 0) -> Any:
        """
        Fires with the path, including a sequence number. C{data} of L{None} is ZooKeeper's null.
        """
        ...

    def get(self, path: str) -> Any:
        """Fires with (data or L{None}, L{Stat})."""
        ...

    def set(self, path: str, data: bytes, version: int = -1) -> Any:
        """Fires with the new L{Stat}."""
        ...

    def delete(self, path: str, version: int = -1) -> Any: ...

    def multi(self, operations: Sequence[ZookeeperOperation]) -> Any:
        """
        Carry out all operations in one transaction, or none. An operation sees those before it.

        @return: fires with the list of their results. Fails with
            L{pylogbroker.errors.MultiFailedException}, which names the operation that was refused
            and the reason, or with L{pylogbroker.errors.RequestSizeException}: then nothing was
            changed. B{Any other error leaves open} whether all operations were carried out or
            none, as after a lost connection; only reading the nodes tells.
        """
        ...

    def exists(self, path: str) -> Any:
        """Fires with a L{Stat}, or L{None}."""
        ...

    def get_children(self, path: str) -> Any:
        """Fires with a list of names, sorted."""
        ...

    def sync(self, path: str = "/") -> Any: ...

    def add_auth(self, scheme: str, identity: str) -> Any: ...

    def get_and_watch(self, path: str) -> tuple[Any, Any]: ...

    def exists_and_watch(self, path: str) -> tuple[Any, Any]: ...

    def get_children_and_watch(self, path: str) -> tuple[Any, Any]: ...

    def set_session_callback(self, callback: Callable[[SessionEvent], None]) -> None:
        """As in txzookeeper: the one callback; L{add_session_listener} takes more."""
        ...

    def add_session_listener(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """
        @return: what removes it.
        """
        ...


# -- brokers among themselves


class IBrokerConnection(Protocol):
    """
    A connection to another broker, in today's protocol. Both know their versions, and this broker
    has authenticated.

    @ivar name: of the other broker, for texts.
    """

    name: str

    def request(self, key: Any, body: Any, waitMs: float = 0, versionMax: int = ...) -> Any:
        """
        Send a request. Requests leave, and are answered, in the order of the calls.

        @param key: an L{pylogbroker.protocol.kafka.apikeys.ApiKey}.
        @param body: an object of L{pylogbroker.protocol.kafka.messages}.
        @param waitMs: milliseconds that the other broker may wait before it answers.
        @param versionMax: the last version that has what the caller needs.
        @return: a Deferred of the response, an object of C{messages}. Its records are views of the
            received frame, which lives as long as they do. Fails with
            L{pylogbroker.errors.BrokerConnectionError} when the connection is lost or the time is
            over: the other broker may have carried the request out or not; with
            L{pylogbroker.errors.BackpressureError} when too much waits to be sent, and with
            L{pylogbroker.errors.UnsupportedVersionError}: then nothing was sent.
        """
        ...

    def supports(self, key: Any, version: int = 0) -> bool:
        """Whether the other broker has a request, in a version or a later one."""
        ...


class IBrokerClient(Protocol):
    """
    Connections to one address of another broker, one after another.
    """

    def connection(self) -> Any:
        """
        @return: a Deferred of the present L{IBrokerConnection}, or of a new one. Fails with
            L{pylogbroker.errors.BrokerConnectionError} when the first attempt to connect fails;
            the next one waits for longer and longer. Fails with another
            L{pylogbroker.errors.PylogbrokerError} when the other broker refuses the password.
        """
        ...

    def close(self) -> Any:
        """
        Cut the connection; requests under way fail. No other call may follow.

        @return: a Deferred that fires with L{None} when the connection is gone, and never fails.
        """
        ...


ConnectBroker = Callable[[str, int], IBrokerClient]
"""C{connect(host, port)} makes the client of a broker's address; it connects on demand."""
