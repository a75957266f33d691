"""
Compaction: of each key, a log keeps the last record. By Kafka's rules, in Kafka's files.

What must be true: offsets never change; a reader that goes on from any offset sees the last record
of each key; nothing at or above the first unstable offset, or in the active segment, is touched; a
power cut at any step leaves the old segments or the new ones.

B{A run} (L{pylogbroker.broker.compaction.segmentrewrite}) reads closed segments and changes
nothing. It puts the latest offsets of the keys between C{dirtyStart} and the end into an
L{OffsetMap}; if that is full, the run ends there, and the next one goes on. Then it writes each
group of neighbouring segments, as many as fit into one, again into a file C{.cleaned}, without

 - records whose key has a later one, and records without a key;
 - tombstones and markers whose delete horizon has passed. The horizon, C{delete.retention.ms} from
 now, is noted in the batch by the first run that could remove all older records (KIP-534): a
 marker gets one when no batch of its transaction is left;
 - records of aborted transactions.

The last batch of a producer that the log still knows stays, even empty, since its sequence number
and epoch must be found again by a scan.

B{The exchange} (L{pylogbroker.storage.kafka.segmentswap}), one for each group, oldest first:
C{.cleaned} becomes C{.swap}, durably, and from then on recovery completes the exchange; the group's
other segments get C{.deleted} names, durably; C{.swap} becomes the group's first segment, durably.
Older groups first: a tombstone must not go before the records that it deletes. If recovery does not
know a segment to belong to the group, since nothing of it was left, the segment stays, with records
that later ones replace; the checkpoint has not moved, so that the next run removes them.

The C{.txnindex} of a compacted segment is removed, since no records of aborted transactions are
left below it. It must go: an entry whose marker is gone would hide later transactions.

B{A process of its own} runs it (L{pylogbroker.broker.compaction.compactionprocess}): a thread would
hold the interpreter's lock against the reactor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompactionRequest:
    """
    What to compact.

    @ivar directory: of the partition.
    @ivar segments: all that are to be read, from the log's first on: base offset, bytes, and time
        of modification in milliseconds.
    @ivar endOffset: behind the last segment.
    @ivar dirtyStart: everything below is compacted.
    @ivar nowMs: milliseconds since the epoch.
    @ivar deleteRetentionMs: C{delete.retention.ms}.
    @ivar segmentSizeMax: bytes of a group.
    @ivar mapSize: bytes of the offset map.
    @ivar readSizeMax: bytes that may be read in a second; 0: no limit.
    @ivar aborted: aborted transactions: producer, first and last offset.
    @ivar producers: active ones: id, last data offset or -1, epoch.
    """

    directory: str
    segments: Sequence[tuple[int, int, int]]
    endOffset: int
    dirtyStart: int
    nowMs: int
    deleteRetentionMs: int
    segmentSizeMax: int
    mapSize: int
    readSizeMax: int = 0
    aborted: Sequence[tuple[int, int, int]] = ()
    producers: Sequence[tuple[int, int, int]] = ()


@dataclass(frozen=True)
class CompactedGroup:
    """
    Neighbouring segments that become one.

    @ivar bases: their base offsets; the new segment has the first.
    @ivar size: bytes of the C{.cleaned} file.
    """

    bases: Sequence[int]
    size: int


@dataclass
class CompactionResult:
    """
    What a run has done.

    @ivar endOffset: when the groups are exchanged, everything below is compacted.
    @ivar groups: to be exchanged, ascending; those without a change are left out.
    @ivar recordCount: records that were read.
    @ivar keptCount: those that stay.
    @ivar keyCount: keys in the map.
    """

    endOffset: int
    groups: list[CompactedGroup] = field(default_factory=list)
    recordCount: int = 0
    keptCount: int = 0
    keyCount: int = 0
    readSize: int = 0
    writtenSize: int = 0


Compactor = Callable[[CompactionRequest], CompactionResult]
"""Runs a compaction. Blocks. Raises L{StorageError}; nothing is changed then."""
