"""
Keeping the tables of offsets, and which target partition a source partition goes to: in the source's ZooKeeper, beside the group's offsets,
C{/consumers/<group>/mirror/<topic>/<broker>-<partition>}.

Why there: each node is written whole or not at all; it does not grow; all mirrors of the group see it, on whatever machine they run, and so does who
moves a group; it goes when the group is deleted, as it should, since a mirror that begins anew sends everything again; and (source, group) is just what
a mirroring is. Rejected: a file, which only one machine has; a topic in the target, which would have to be read from the beginning, and outlives what it is
about.

What must be true: an entry is written only while nobody else can have sent anything of the partition. A mirror whose session has expired without its
knowing may still try to. So whoever takes a partition over writes its node before it reads anything, and everybody writes only over what they know
themselves to have written last (ZooKeeper's versions): who was overtaken finds another version, and writes no more.

Where a partition goes is another thing than who may write that down. Who was overtaken may still have messages to send, and it may have been no mirror that
wrote there: they go where those before them went. With partitions kept, nothing is ever sent to "any".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.errors import (
    BadVersionException,
    NoBrokersError,
    NodeExistsException,
    NoNodeException,
    ZnodeError,
    ZookeeperError,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.mirror.target import Target
from pylogbroker.mirror.translation import OffsetSyncTable, decodeTable
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.ephemeral import createParents

_ROUNDS_MAX = 10


@dataclass(slots=True)
class _Kept:
    """
    A node that is ours to write.

    @ivar version: that it has, as far as we know.
    @ivar doubt: what was written without an answer, if that was the last thing.
    """

    table: OffsetSyncTable
    version: int
    doubt: bytes | None = None


async def readTable(zookeeper: IZookeeper, path: str) -> tuple[OffsetSyncTable, int]:
    """
    @return: (what is there, its version); of what is not there, or cannot be read, an empty table; version -1 when it is not there.
    """
    try:
        data, stat = await zookeeper.get(path)
    except NoNodeException:
        return OffsetSyncTable(), -1
    try:
        return decodeTable(path, data), stat.version
    except ZnodeError as error:
        _log.error("A table of offsets cannot be read, as if there were none: {error}", error=error)
        return OffsetSyncTable(), stat.version


_log = Logger()


class OffsetSyncStore:
    """
    The tables of one source.
    """

    def __init__(
        self,
        zookeeper: IZookeeper,
        groupPaths: GroupPaths,
        target: Target,
        ledger: OffsetTracker,
        isKeeping: bool,
    ) -> None:
        """
        @param isKeeping: whether a source partition always goes to the same target partition.
        """
        self._zookeeper = zookeeper
        self._paths = groupPaths
        self._target = target
        self._ledger = ledger
        self._isKeeping = isKeeping
        self._kept: dict[PartitionId, _Kept] = {}
        self._homes: dict[PartitionId, BrokerPartition] = {}
        self._choosing = DeferredLock()
        self._recording = DeferredLock()

    def __repr__(self) -> str:
        return f"<Tables, {len(self._kept)} partitions>"

    def home(self, place: PartitionId) -> BrokerPartition | None:
        """
        Where a partition that was taken goes; L{None} for anywhere, when they are not kept.

        @raise NoBrokersError: that is not known.
        """
        if not self._isKeeping:
            return None
        home = self._homes.get(place)
        if home is None:
            raise NoBrokersError(f"it is not known which partition of the target {place} goes to")
        return home

    # -- taking over

    async def take(self, place: PartitionId) -> None:
        """
        A partition is ours: nobody else writes its table from now on.

        @raise ZookeeperError: that could not be written down. Nothing of the partition may be read then.
        @raise pylogbroker.errors.PylogbrokerError: where it should go cannot be found out.
        """
        self._kept.pop(place, None)
        path = self._paths.mirrored(place.topic, place.partition)
        for _round in range(_ROUNDS_MAX):
            table, version = await readTable(self._zookeeper, path)
            if self._isKeeping != (table.home is not None):
                table = OffsetSyncTable()  # what was sent in the other way is of no use in this one
            if not self._isKeeping:
                version = await self._write(path, table, version)
            else:
                async with self._choosing:  # each sees what the one before has chosen
                    if table.home is None:
                        table.home = await self._chooseHome(place.topic)
                    version = await self._write(path, table, version)
            if version >= 0:
                self._kept[place] = _Kept(table, version)
                if table.home is not None:
                    self._homes[place] = table.home
                return
        raise ZookeeperError(f"{path}: somebody else writes there all the time")

    async def _chooseHome(self, topic: str) -> BrokerPartition:
        """The target partition that the fewest come to."""
        partitions = await self._target.provide(topic)
        counts = dict.fromkeys(partitions, 0)
        root = self._paths.topicMirrored(topic)
        try:
            names = await self._zookeeper.get_children(root)
        except NoNodeException:
            names = []
        for name in names:
            table, _version = await readTable(self._zookeeper, f"{root}/{name}")
            if table.home in counts:
                counts[table.home] += 1
        return min(partitions, key=lambda partition: counts[partition])

    async def _write(self, path: str, table: OffsetSyncTable, version: int) -> int:
        """Over the version that is known; returns the new one, -1 when somebody was faster."""
        try:
            if version >= 0:
                stat = await self._zookeeper.set(path, table.encode(), version)
                return int(stat.version)
            await createParents(self._zookeeper, path)
            await self._zookeeper.create(path, table.encode())
            return 0
        except (BadVersionException, NodeExistsException, NoNodeException):
            return -1

    # -- recording

    async def record(
        self, places: Iterable[PartitionId], positions: Mapping[PartitionId, int]
    ) -> None:
        """
        One more entry for each partition.

        @param places: those that are ours.
        @param positions: where the consumer is in partitions of which nothing was handed on yet.
        @raise ZookeeperError: some could not be written; they are tried again the next time.
        """
        async with self._recording:
            await self._record(places, positions)

    async def _record(
        self, places: Iterable[PartitionId], positions: Mapping[PartitionId, int]
    ) -> None:
        kept = {place: self._kept[place] for place in places if place in self._kept}
        ends = await self._target.ends({place.topic for place in kept})
        # From here to the end of the loop nothing may come in between: nothing is handed on while we look how much was.
        changed = []
        for place, each in kept.items():
            edge = self._ledger.edge(place, positions.get(place))
            if self._kept.get(place) is not each or edge is None:
                continue
            found = ends.get(place.topic, {})
            if each.table.home is not None:
                found = {
                    partition: end
                    for partition, end in found.items()
                    if partition == each.table.home
                }
            if found and (each.table.record(edge, found) or each.doubt is not None):
                changed.append((place, each))
        for place, each in changed:
            if (
                not await self._rewrite(self._paths.mirrored(place.topic, place.partition), each)
                and self._kept.get(place) is each
            ):
                del self._kept[place]
                _log.warn(
                    "{place}: another mirror has taken it over, or somebody has written over its table of offsets: no more is written there",
                    place=place,
                )

    async def _rewrite(self, path: str, kept: _Kept) -> bool:
        """Write a table over what we have written before. Returns whether that was there still."""
        if kept.doubt is not None:
            data, stat = await self._zookeeper.get(path)
            if stat.version == kept.version + 1 and data == kept.doubt:
                kept.version += 1
            elif stat.version != kept.version:
                return False
        kept.doubt = kept.table.encode()
        version = await self._write(path, kept.table, kept.version)
        kept.version, kept.doubt = version, None
        return version >= 0


async def readTables(
    zookeeper: IZookeeper, group: str, topics: Iterable[str]
) -> dict[PartitionId, OffsetSyncTable]:
    """
    All tables that the mirrors of a group keep of some topics; for whoever moves another group.

    @param zookeeper: the source's.
    @param group: the mirrors'.
    @raise ZookeeperError: they cannot be read.
    """
    groupPaths = GroupPaths(group)
    found = {}
    for topic in topics:
        root = groupPaths.topicMirrored(topic)
        try:
            names = await zookeeper.get_children(root)
        except NoNodeException:
            continue
        for name in names:
            try:
                partition = decodePartition(f"{root}/{name}", name)
            except ZnodeError as error:
                _log.warn("{error}. It is left out", error=error)
                continue
            found[PartitionId(topic, partition)], _version = await readTable(
                zookeeper, f"{root}/{name}"
            )
    return found
