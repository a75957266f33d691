"""
Offset stores of a group, and a member's knowledge of the stored offsets.

0.7 stores offsets in ZooKeeper (L{ZookeeperOffsetStore}). An application that stores them in the
database transaction of its results counts each message exactly once (L{SqliteOffsetStore}).

L{ConsumedOffsets} knows the offset it last read from the store, and those it tried to write since.
When a partition comes back and the store holds one of these or none, the member goes on where it
was. Any other offset is a later owner's, and takes precedence.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from random import Random, SystemRandom
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, succeed
from twisted.logger import Logger

from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import decodeNumber, encodeNumber
from pylogbroker.errors import OffsetConflictError, ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import asDeferred, gatherInBatches
from pylogbroker.types import BrokerPartition, PartialBatchOffset, PartitionId, consumedCount
from pylogbroker.zookeeper.ephemeral import write

WRITE_COUNT_MAX = 100
"""
Writes of one commit that are under way at a time: a thousand at once would hold up the streams.
"""

REPORTED_COUNT_MAX = 3
"""Partitions named in a log line about failed writes."""

_UNCONFIRMED_COUNT_MAX = 100
"""
Unanswered writes remembered for each partition. A forgotten one looks like another member's, and
then what is stored counts.
"""


class IOffsetStore(Protocol):
    """
    Stores, for one group, the next offset of each partition.

    A store with a true C{tracksIntraBatch} takes and returns positions inside compressed sets as
    L{pylogbroker.types.PartialBatchOffset}s. A store whose offsets other clients can delete may
    have a method C{missing}, as L{ZookeeperOffsetStore.missing}.
    """

    def load(self, partition: PartitionId) -> Deferred[int | None]:
        """@return: fires with an offset, or L{None} when none is stored."""
        ...

    def commit(self, offsets: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        """
        @return: fires with those stored now. Fails only when none could be tried, or with
            C{CancelledError} when cancelled.
        """
        ...


def missingOffsets(
    store: IOffsetStore, partitions: Iterable[PartitionId]
) -> Deferred[list[PartitionId]]:
    """C{missing} of a store; none for a store without that method."""
    missing = getattr(store, "missing", None)
    return succeed([]) if missing is None else missing(partitions)


class MemoryOffsetStore:
    """Offsets that are lost with the process: for tests, and for readers that always begin anew."""

    def __init__(self, offsets: Mapping[PartitionId, int] | None = None) -> None:
        self.offsets = dict(offsets or {})

    def load(self, partition: PartitionId) -> Deferred[int | None]:
        return succeed(self.offsets.get(partition))

    def commit(self, offsets: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        self.offsets.update(offsets)
        return succeed(dict(offsets))


class ZookeeperOffsetStore:
    """
    C{/consumers/<group>/offsets/<topic>/<broker>-<partition>}, as in 0.7 (spec-0.7 zookeeper §4.6):
    plain decimal numbers; the last writer wins.
    """

    _log = Logger()

    def __init__(self, zookeeper: IZookeeper, group: str) -> None:
        self._zookeeper = zookeeper
        self._paths = GroupPaths(group)
        self._reader = ClusterMetadataReader(zookeeper, self._warn)

    def _warn(self, text: str) -> None:
        self._log.error("An unreadable stored offset is ignored: {error}", error=text)

    def load(self, partition: PartitionId) -> Deferred[int | None]:
        path = self._paths.offset(partition.topic, partition.partition)
        return Deferred.fromCoroutine(self._reader.value(path, decodeNumber))

    @asDeferred
    async def missing(self, partitions: Iterable[PartitionId]) -> list[PartitionId]:
        """
        @param partitions: those whose offsets this member has stored.
        @return: fires with those whose offsets were deleted. Fails with L{ZookeeperError}.
        """
        byTopic: dict[str, list[PartitionId]] = {}
        for partition in partitions:
            byTopic.setdefault(partition.topic, []).append(partition)
        stored = await gatherInBatches(
            lambda topic: self._reader.children(self._paths.topicOffsets(topic)), byTopic
        )
        return [
            partition
            for names, wanted in zip(map(frozenset, stored), byTopic.values(), strict=True)
            for partition in wanted
            if str(partition.partition) not in names
        ]

    @asDeferred
    async def commit(self, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        outcomes = await gatherInBatches(self._write, offsets.items(), WRITE_COUNT_MAX)
        errors: dict[PartitionId, ZookeeperError] = {}
        for partition, error in zip(offsets, outcomes, strict=True):
            if isinstance(error, ZookeeperError):
                errors[partition] = error
            elif error is not None:
                raise error
        if errors:
            self._report(offsets, errors)
        return {
            partition: offset for partition, offset in offsets.items() if partition not in errors
        }

    async def _write(self, item: tuple[PartitionId, int]) -> Exception | None:
        partition, offset = item
        path = self._paths.offset(partition.topic, partition.partition)
        try:
            await write(self._zookeeper, path, encodeNumber(offset))
        except CancelledError:
            raise
        except Exception as error:  # the other offsets are stored all the same
            return error
        return None

    def _report(
        self, offsets: Mapping[PartitionId, int], errors: Mapping[PartitionId, ZookeeperError]
    ) -> None:
        """Log one line per commit: while ZooKeeper is away every write fails."""
        some = [
            f"{offsets[partition]} of {partition}"
            for partition in islice(errors, REPORTED_COUNT_MAX)
        ]
        self._log.warn(
            "{count} offsets were not committed ({some}{more}): {error}",
            count=len(errors),
            some=", ".join(some),
            more=" …" if len(errors) > len(some) else "",
            error=next(iter(errors.values())),
        )


_Row = tuple[int | None, int | None, str | None]
"""A row: the offset, how many messages of the set there are done, and who wrote it."""
_NO_ROW: _Row = (None, None, None)
_ADDED = {"done": "INTEGER NOT NULL DEFAULT 0", "writer": "TEXT"}
"""Columns that tables of earlier versions lack."""


class SqliteOffsetStore:
    """
    Offsets in a table of the application's own database, changed in its own transactions.

    The application calls L{store} on the same connection for each finished message, in order, and
    commits at will. The consumer has C{autocommit.enable=false} and this store. So each message
    counts exactly once:

      - A transaction may end inside a compressed set: the store counts the finished messages of the
        set, and the next reader skips them.
      - An offset changes only forward, and only if it is what this member loaded or stored last.
        When two members work on a moved partition, the later writer gets an L{OffsetConflictError},
        rolls back and joins anew. Where C{autooffset.reset} has moved the offset back, it goes
        forward from there.
    """

    TABLE = "pylogbroker_offsets"
    tracksIntraBatch = True

    def __init__(
        self, connection: sqlite3.Connection, group: str, random: Random | None = None
    ) -> None:
        """
        @param connection: of the thread that calls L{store} and runs the reactor.
        @param random: for this member's name as a writer; by default the system's.
        """
        self._connection = connection
        self._group = group
        self._writer = format((random or SystemRandom()).getrandbits(64), "x")
        self._loaded: dict[PartitionId, _Row] = {}
        self._rewindCount = 0
        # Reset to an earlier offset in an open transaction, and the writer's name there since then.
        self._rewound: dict[PartitionId, str] = {}
        if not _ADDED.keys() <= self._columns():
            self._makeTable()

    def _columns(self) -> set[str]:
        rows = self._connection.execute(f"PRAGMA table_info({self.TABLE})")
        return {name for _number, name, *_rest in rows}

    def _makeTable(self) -> None:
        """Lock the table and look again: two members may create it or add columns at once."""
        connection = self._connection
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.TABLE} ("
            '"group" TEXT, topic TEXT, broker INTEGER, "partition" INTEGER, '
            "offset INTEGER NOT NULL, "
            'PRIMARY KEY ("group", topic, broker, "partition"))'
        )
        there = self._columns()
        for name, kind in _ADDED.items():
            if name not in there:
                connection.execute(f"ALTER TABLE {self.TABLE} ADD COLUMN {name} {kind}")
        connection.commit()

    def store(self, topic: str, partition: BrokerPartition, nextOffset: int) -> None:
        """
        Store an offset in the open transaction, which the application commits.

        @param nextOffset: of the finished message, unchanged.
        @raise OffsetConflictError: another member has stored one, or this member this one. Roll
            back.
        """
        partitionId = PartitionId(topic, partition)
        if not self._write(partitionId, nextOffset, isForward=True):
            raise OffsetConflictError(
                f"{partitionId}: the position {nextOffset} is not stored, since another member has "
                "stored one, or this member has stored this one already"
            )

    def _write(self, partition: PartitionId, offset: int, isForward: bool) -> bool:
        loaded = self._loaded.get(partition)
        rewound = self._rewound.get(partition)
        cursor = self._connection.execute(
            f'INSERT INTO {self.TABLE} ("group", topic, broker, "partition", offset, done, writer) '
            "VALUES (?, ?, ?, ?, ?, ?, ?) "
            'ON CONFLICT ("group", topic, broker, "partition") DO UPDATE '
            "SET offset = excluded.offset, done = excluded.done, writer = excluded.writer "
            "WHERE (? OR writer GLOB ? OR (offset IS ? AND done IS ? AND writer IS ?)) "
            "AND (? OR (? AND writer IS NOT excluded.writer) OR excluded.offset > offset "
            "OR (excluded.offset = offset AND excluded.done > done))",
            (
                self._group,
                partition.topic,
                *partition.partition,
                int(offset),
                consumedCount(offset),
                rewound or self._writer,
                loaded is None,
                f"{self._writer}*",
                *(loaded or _NO_ROW),
                not isForward,
                rewound is not None,
            ),
        )
        return cursor.rowcount > 0

    def _row(self, partition: PartitionId) -> _Row:
        row: _Row | None = self._connection.execute(
            f"SELECT offset, done, writer FROM {self.TABLE} "
            'WHERE "group" = ? AND topic = ? AND broker = ? AND "partition" = ?',
            (self._group, partition.topic, *partition.partition),
        ).fetchone()
        return row or _NO_ROW

    def load(self, partition: PartitionId) -> Deferred[int | None]:
        self._loaded[partition] = offset, doneCount, _writer = self._row(partition)
        self._rewound.pop(partition, None)
        if offset is None or not doneCount:
            return succeed(offset)
        return succeed(PartialBatchOffset(offset, doneCount))

    def commit(self, offsets: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        """
        Store start offsets, in a transaction of its own; nothing while the application has one
        open. A backward move skipped then lets the application's first offset be behind the stored
        one. The row's writer shows whether the application rolled that back.
        """
        if self._connection.in_transaction:
            for partition, offset in offsets.items():
                stored, doneCount, _writer = self._row(partition)
                if stored is not None and (stored, doneCount or 0) > _exact(offset):
                    self._rewindCount += 1
                    self._rewound[partition] = f"{self._writer}-{self._rewindCount}"
            return succeed({})
        written = {
            partition: offset
            for partition, offset in offsets.items()
            if self._write(partition, offset, isForward=False)
        }
        self._connection.commit()
        return succeed(written)


def _exact(offset: int) -> tuple[int, int]:
    return offset, consumedCount(offset)


class ConsumedOffsets:
    """
    The offsets of one member.

    @ivar positions: for each partition what to commit: the next offset of the last message handed
        out, or where reading began.
    """

    _log = Logger()

    def __init__(self, store: IOffsetStore) -> None:
        self.positions: dict[PartitionId, int] = {}
        self._store = store
        # What the store may hold if no other member wrote to it, and what it holds for certain.
        self._possible: dict[PartitionId, set[tuple[int, int]]] = {}
        self._stored: dict[PartitionId, tuple[int, int]] = {}
        self._turn = DeferredLock()

    async def find(self, partition: PartitionId) -> int | None:
        """
        The offset where a partition goes on; L{None} if there is none.

        @raise Exception: what C{load} of the store fails with.
        """
        stored = await self._store.load(partition)
        possible = self._possible.pop(partition, set())
        self._stored.pop(partition, None)
        if stored is not None:
            exact = _exact(stored)
            if exact not in possible:
                self.positions.pop(partition, None)
            self._possible[partition], self._stored[partition] = {exact}, exact
        return self.positions.get(partition, stored)

    def begin(self, partition: PartitionId, offset: int) -> None:
        self.positions[partition] = offset

    async def commit(self, partitions: Callable[[], Iterable[PartitionId]]) -> list[PartitionId]:
        """
        Store moved offsets and those deleted from the store: every commit of 0.7.2 writes all
        offsets, so deleted ones come back. Commits wait for one another.

        @param partitions: returns our partitions when this commit's turn comes.
        @return: those that could not be stored.
        """
        async with self._turn:
            offsets = {
                partition: self.positions[partition]
                for partition in partitions()
                if partition in self.positions
            }
            moved = {
                partition: offset
                for partition, offset in offsets.items()
                if self._stored.get(partition) != _exact(offset)
            }
            failed = await self._write(moved)
            try:
                missing = await missingOffsets(
                    self._store, [each for each in offsets if each not in moved]
                )
            except ZookeeperError:
                missing = []  # the next commit asks again
            return failed + await self._write({each: offsets[each] for each in missing})

    async def put(self, partition: PartitionId, offset: int) -> None:
        """Store an offset at once. A failure is only logged."""
        async with self._turn:
            await self._write({partition: offset})

    async def _write(self, offsets: dict[PartitionId, int]) -> list[PartitionId]:
        if not offsets:
            return []
        for partition, offset in offsets.items():
            possible = self._possible.setdefault(partition, set())
            if len(possible) >= _UNCONFIRMED_COUNT_MAX:
                possible.pop()
            possible.add(_exact(offset))
            self._stored.pop(partition, None)
        try:
            stored = await self._store.commit(offsets)
        except CancelledError:
            raise
        except Exception:
            self._log.failure("Offsets could not be stored")
            stored = {}
        for partition, offset in stored.items():
            self._stored[partition] = exact = _exact(offset)
            self._possible[partition] = {exact}
        return [partition for partition in offsets if partition not in stored]

    def forget(self, partitions: Iterable[PartitionId]) -> None:
        for partition in partitions:
            self.positions.pop(partition, None)
            self._possible.pop(partition, None)
            self._stored.pop(partition, None)
