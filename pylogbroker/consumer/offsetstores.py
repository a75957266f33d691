"""
Where a group's positions are kept.

What a store must do is little: give the position of a partition, and take new ones. 0.7 keeps them in ZooKeeper, and so does L{ZookeeperOffsetStore}. An
application that keeps its results in a database is better off with the positions in the same transaction: then a message counts exactly once, however the
application dies (L{SqliteOffsetStore}).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from random import Random, SystemRandom
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import decodeNumber, encodeNumber
from pylogbroker.errors import NoNodeException, OffsetConflictError, ZnodeError, ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherAll, gatherInBatches
from pylogbroker.types import BrokerPartition, IntraBatchOffset, PartitionId, consumedCount
from pylogbroker.zookeeper.ephemeral import write


class IOffsetStore(Protocol):
    """
    Keeps, for one group, what to fetch next of each partition. One with an attribute C{tracksIntraBatch} that is true gets positions in the midst of compressed sets
    as L{pylogbroker.types.IntraBatchOffset}s, and gives them back as such. One that others can delete positions from may have a method C{missing}: see
    L{ZookeeperOffsetStore.missing}.
    """

    def load(self, place: PartitionId) -> Deferred[int | None]:
        """
        @return: fires with an offset, or L{None} when there is none.
        """
        ...

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        """
        @return: fires with those that are safe now; fails only when none could be tried, or with C{CancelledError} when it was cancelled.
        """
        ...


class MemoryOffsetStore:
    """
    Forgets everything with the process: for tests, and for readers that always begin anew.

    @ivar positions: what it has.
    """

    def __init__(self, positions: Mapping[PartitionId, int] | None = None) -> None:
        self.positions = dict(positions or {})

    def load(self, place: PartitionId) -> Deferred[int | None]:
        return succeed(self.positions.get(place))

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        self.positions.update(positions)
        return succeed(dict(positions))


WRITE_COUNT_MAX = 100
"""Writes of one commit that are under way at a time: to begin a thousand at once would hold up the streams."""

TOLD_COUNT_MAX = 3
"""Partitions that are named in the line about those that could not be written."""


class ZookeeperOffsetStore:
    """
    C{/consumers/<group>/offsets/<topic>/<broker>-<partition>}, as 0.7 has it (spec-0.7 zookeeper §4.6): plain decimal numbers, the last writer wins.
    """

    _log = Logger()

    def __init__(self, zookeeper: IZookeeper, group: str) -> None:
        self._zookeeper = zookeeper
        self._paths = GroupPaths(group)

    def load(self, place: PartitionId) -> Deferred[int | None]:
        return Deferred.fromCoroutine(self._load(place))

    async def _load(self, place: PartitionId) -> int | None:
        path = self._paths.offset(place.topic, place.partition)
        try:
            data, _stat = await self._zookeeper.get(path)
            return decodeNumber(path, data)
        except NoNodeException:
            return None
        except ZnodeError as error:
            self._log.error(
                "A stored offset cannot be read, as if there were none: {error}", error=error
            )
            return None

    def missing(self, places: Iterable[PartitionId]) -> Deferred[list[PartitionId]]:
        """
        @param places: partitions whose positions this member has stored.
        @return: fires with those whose positions are deleted. Fails with L{ZookeeperError}.
        """
        return Deferred.fromCoroutine(self._missing(places))

    async def _missing(self, places: Iterable[PartitionId]) -> list[PartitionId]:
        byTopic: dict[str, list[PartitionId]] = {}
        for place in places:
            byTopic.setdefault(place.topic, []).append(place)
        names = await gatherInBatches(self._stored, byTopic)
        return [
            place
            for stored, wanted in zip(names, byTopic.values(), strict=True)
            for place in wanted
            if str(place.partition) not in stored
        ]

    async def _stored(self, topic: str) -> set[str]:
        try:
            return set(await self._zookeeper.get_children(self._paths.topicOffsets(topic)))
        except NoNodeException:
            return set()

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        return Deferred.fromCoroutine(self._commit(positions))

    async def _commit(self, positions: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        errors: dict[PartitionId, ZookeeperError] = {}
        left = iter(positions.items())
        await gatherAll(
            [self._writeAll(left, errors) for _lane in range(min(len(positions), WRITE_COUNT_MAX))]
        )
        if errors:
            self._tell(positions, errors)
        return {place: offset for place, offset in positions.items() if place not in errors}

    async def _writeAll(
        self, left: Iterator[tuple[PartitionId, int]], errors: dict[PartitionId, ZookeeperError]
    ) -> None:
        for place, offset in left:
            try:
                await write(
                    self._zookeeper,
                    self._paths.offset(place.topic, place.partition),
                    encodeNumber(offset),
                )
            except ZookeeperError as error:
                errors[place] = error

    def _tell(
        self, positions: Mapping[PartitionId, int], errors: Mapping[PartitionId, ZookeeperError]
    ) -> None:
        """One line a commit: while ZooKeeper is away all of them fail, again and again."""
        some = [f"{positions[place]} of {place}" for place in islice(errors, TOLD_COUNT_MAX)]
        self._log.warn(
            "{count} offsets were not committed ({some}{more}): {error}",
            count=len(errors), some=", ".join(some), more=" …" if len(errors) > len(some) else "", error=next(iter(errors.values())),
        )  # fmt: skip


_Row = tuple[int | None, int | None, str | None]
"""What stands in a row: the offset, how many messages of the set there are done, and who wrote it."""
_NO_ROW: _Row = (None, None, None)
_ADDED = {"done": "INTEGER NOT NULL DEFAULT 0", "writer": "TEXT"}
"""Columns that tables of earlier versions have not."""


class SqliteOffsetStore:
    """
    Positions in a table of the application's own database, which it changes in its own transactions.

    The application does its work and calls L{store} on the same connection for each message, in order, then commits, as often as it likes: either both are
    there or neither. The consumer is created with C{autocommit.enable=false} and this store; it reads positions from it when it takes over a partition.

    So each message counts exactly once, because

      - a transaction may end in the midst of a compressed set: how many of its messages are done is stored, too, and they are left out by who comes next;
      - a position changes only if it is still what this member has read or written last, and only forward. When a partition goes to another member, the
        one that it came from may still have messages in hand, or a transaction open; whoever of the two is later gets an L{OffsetConflictError}, rolls its
        transaction back, and joins the group anew. Where C{autooffset.reset} has put the position back, it goes forward from there.

    @ivar tracksIntraBatch: asks the streams to say how many messages of a compressed set are done (L{pylogbroker.types.IntraBatchOffset}). A store of your own may do so.
    """

    TABLE = "pylogbroker_offsets"
    tracksIntraBatch = True

    def __init__(
        self, connection: sqlite3.Connection, group: str, random: Random | None = None
    ) -> None:
        """
        @param connection: of the thread that calls L{store} and runs the reactor.
        @param random: for the name under which this member writes; by default the system's.
        """
        self._connection = connection
        self._group = group
        self._writer = format((random or SystemRandom()).getrandbits(64), "x")
        self._loaded: dict[PartitionId, _Row] = {}
        self._anewCount = 0
        self._anew: dict[
            PartitionId, str
        ] = {}  # put back while a transaction was open, and the name under which this member writes there since
        if not _ADDED.keys() <= self._columns():
            self._makeTable()

    def _columns(self) -> set[str]:
        return {
            name
            for _number, name, *_rest in self._connection.execute(
                f"PRAGMA table_info({self.TABLE})"
            )
        }

    def _makeTable(self) -> None:
        """Or add what one of an earlier version has not. Two may begin together, so the table is locked first, and looked at again."""
        connection = self._connection
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.TABLE} ("
            '"group" TEXT, topic TEXT, broker INTEGER, "partition" INTEGER, offset INTEGER NOT NULL, PRIMARY KEY ("group", topic, broker, "partition"))'
        )
        there = self._columns()
        for name, kind in _ADDED.items():
            if name not in there:
                connection.execute(f"ALTER TABLE {self.TABLE} ADD COLUMN {name} {kind}")
        connection.commit()

    def store(self, topic: str, partition: BrokerPartition, nextOffset: int) -> None:
        """
        In the transaction that is open: this is done up to here. The application commits.

        @param nextOffset: a message's, as it came.
        @raise OffsetConflictError: the position is another's by now, or is there already. Roll back.
        """
        place = PartitionId(topic, partition)
        if not self._write(place, nextOffset, isForward=True):
            raise OffsetConflictError(
                f"{place}: the position {nextOffset} is not stored, since another member has been here, or this one was here already"
            )

    def _write(self, place: PartitionId, offset: int, isForward: bool) -> bool:
        """Whether the position was as this member knows it, and is the new one now."""
        loaded = self._loaded.get(place)
        anew = self._anew.get(place)
        cursor = self._connection.execute(
            f'INSERT INTO {self.TABLE} ("group", topic, broker, "partition", offset, done, writer) VALUES (?, ?, ?, ?, ?, ?, ?) '
            'ON CONFLICT ("group", topic, broker, "partition") DO UPDATE SET offset = excluded.offset, done = excluded.done, writer = excluded.writer '
            "WHERE (? OR writer GLOB ? OR (offset IS ? AND done IS ? AND writer IS ?)) "
            "AND (? OR (? AND writer IS NOT excluded.writer) OR excluded.offset > offset OR (excluded.offset = offset AND excluded.done > done))",
            (
                self._group, place.topic, *place.partition, int(offset), consumedCount(offset), anew or self._writer,
                loaded is None, f"{self._writer}*", *(loaded or _NO_ROW), not isForward, anew is not None,
            ),
        )  # fmt: skip
        return cursor.rowcount > 0

    def _row(self, place: PartitionId) -> _Row:
        row: _Row | None = self._connection.execute(
            f'SELECT offset, done, writer FROM {self.TABLE} WHERE "group" = ? AND topic = ? AND broker = ? AND "partition" = ?',
            (self._group, place.topic, *place.partition),
        ).fetchone()
        return row or _NO_ROW

    def load(self, place: PartitionId) -> Deferred[int | None]:
        self._loaded[place] = offset, doneCount, _writer = self._row(place)
        self._anew.pop(place, None)
        return succeed(
            IntraBatchOffset(offset, doneCount) if offset is not None and doneCount else offset
        )

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        """
        In a transaction of its own; for starting positions. What the application has open is not committed by this, it fails. Where a position is put back
        then, the first that the application stores may be in front of what is there; by the name in the row it is seen whether that was undone.
        """
        if self._connection.in_transaction:
            for place, position in positions.items():
                offset, doneCount, _writer = self._row(place)
                if offset is not None and (offset, doneCount or 0) > (
                    position,
                    consumedCount(position),
                ):
                    self._anewCount += 1
                    self._anew[place] = f"{self._writer}-{self._anewCount}"
            return succeed({})
        written = {
            place: offset
            for place, offset in positions.items()
            if self._write(place, offset, isForward=False)
        }
        self._connection.commit()
        return succeed(written)
