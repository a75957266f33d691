"""
Where a group's positions are kept.

What a store must do is little: give the position of a partition, and take new ones. 0.7 keeps them in ZooKeeper, and so does L{ZookeeperOffsetStore}. An
application that keeps its results in a database is better off with the positions in the same transaction: then a message counts exactly once, however the
application dies (L{SqliteOffsetStore}).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Protocol

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pylogbroker.client.waiting import allOf
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import decodeNumber, encodeNumber
from pylogbroker.errors import NoNodeException, ZnodeError, ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.model import BrokerPartition, Place
from pylogbroker.zookeeper.ephemeral import write


class IOffsetStore(Protocol):
    """Keeps, for one group, what to fetch next of each partition."""

    def load(self, place: Place) -> Deferred[int | None]:
        """
        @return: fires with an offset, or L{None} when there is none.
        """
        ...

    def commit(self, positions: Mapping[Place, int]) -> Deferred[dict[Place, int]]:
        """
        @return: fires with those that are safe now; fails only when none could be tried, or with C{CancelledError} when it was cancelled.
        """
        ...


class MemoryOffsetStore:
    """
    Forgets everything with the process: for tests, and for readers that always begin anew.

    @ivar positions: what it has.
    """

    def __init__(self, positions: Mapping[Place, int] | None = None) -> None:
        self.positions = dict(positions or {})

    def load(self, place: Place) -> Deferred[int | None]:
        return succeed(self.positions.get(place))

    def commit(self, positions: Mapping[Place, int]) -> Deferred[dict[Place, int]]:
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

    def load(self, place: Place) -> Deferred[int | None]:
        return Deferred.fromCoroutine(self._load(place))

    async def _load(self, place: Place) -> int | None:
        path = self._paths.offset(place.topic, place.partition)
        try:
            data, _stat = await self._zookeeper.get(path)
            return decodeNumber(path, data)
        except NoNodeException:
            return None
        except ZnodeError as error:
            self._log.error("A stored offset cannot be read, as if there were none: {error}", error=error)
            return None

    def commit(self, positions: Mapping[Place, int]) -> Deferred[dict[Place, int]]:
        return Deferred.fromCoroutine(self._commit(positions))

    async def _commit(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        errors: dict[Place, ZookeeperError] = {}
        left = iter(positions.items())
        await allOf([self._writeAll(left, errors) for _lane in range(min(len(positions), WRITE_COUNT_MAX))])
        if errors:
            self._tell(positions, errors)
        return {place: offset for place, offset in positions.items() if place not in errors}

    async def _writeAll(self, left: Iterator[tuple[Place, int]], errors: dict[Place, ZookeeperError]) -> None:
        for place, offset in left:
            try:
                await write(self._zookeeper, self._paths.offset(place.topic, place.partition), encodeNumber(offset))
            except ZookeeperError as error:
                errors[place] = error

    def _tell(self, positions: Mapping[Place, int], errors: Mapping[Place, ZookeeperError]) -> None:
        """One line a commit: while ZooKeeper is away all of them fail, again and again."""
        some = [f"{positions[place]} of {place}" for place in islice(errors, TOLD_COUNT_MAX)]
        self._log.warn(
            "{count} offsets were not committed ({some}{more}): {error}",
            count=len(errors), some=", ".join(some), more=" …" if len(errors) > len(some) else "", error=next(iter(errors.values())),
        )  # fmt: skip


class SqliteOffsetStore:
    """
    Positions in a table of the application's own database, which it changes in its own transactions.

    For each batch the application does its work and calls L{store} on the same connection, then commits: either both are there or neither. The consumer is
    created with C{autocommit.enable=false} and this store; it reads positions from it when it takes over a partition.
    """

    TABLE = "pylogbroker_offsets"

    def __init__(self, connection: sqlite3.Connection, group: str) -> None:
        """
        @param connection: of the thread that calls L{store} and runs the reactor.
        """
        self._connection = connection
        self._group = group
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.TABLE} ("
            '"group" TEXT, topic TEXT, broker INTEGER, "partition" INTEGER, offset INTEGER NOT NULL, PRIMARY KEY ("group", topic, broker, "partition"))'
        )
        connection.commit()

    def store(self, topic: str, partition: BrokerPartition, nextOffset: int) -> None:
        """In the transaction that is open: this is done up to here. The application commits."""
        self._connection.execute(f"INSERT OR REPLACE INTO {self.TABLE} VALUES (?, ?, ?, ?, ?)", (self._group, topic, *partition, nextOffset))

    def load(self, place: Place) -> Deferred[int | None]:
        row = self._connection.execute(
            f'SELECT offset FROM {self.TABLE} WHERE "group" = ? AND topic = ? AND broker = ? AND "partition" = ?', (self._group, place.topic, *place.partition)
        ).fetchone()
        return succeed(None if row is None else row[0])

    def commit(self, positions: Mapping[Place, int]) -> Deferred[dict[Place, int]]:
        """In a transaction of its own; for starting positions. What the application has open is not committed by this, it fails."""
        if self._connection.in_transaction:
            return succeed({})
        for place, offset in positions.items():
            self.store(place.topic, place.partition, offset)
        self._connection.commit()
        return succeed(dict(positions))
