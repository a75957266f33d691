"""
Offset syncs: pairs of source and target offsets, from which a consumer group's offsets are
translated to the target cluster (MirrorMaker 2's word).

A sync says: I{every message of this source partition from offset S on was sent after the target's
partitions had ended at T, U, …}. The mirror asks for the ends of the target's partitions, and then
notes the offset up to which it has registered the source partition. This needs no acknowledgement
with an offset, which the 0.7 protocol lacks, and it stays true: the successor of a mirror begins at
a committed offset, which is at most S, and other producers only make the partitions longer. For a
group that has read up to P, the sync with the greatest S up to P gives target offsets at or before
the true point, never after it. Syncs are dense near the end and sparse further back: a group that
lags by B bytes lands roughly a tenth of B before its true point. A table has at most L{COUNT_MAX}
syncs and L{SIZE_MAX} bytes.

The tables are kept in the source's ZooKeeper,
C{/consumers/<group>/mirror/<topic>/<broker>-<partition>}: a node is written whole or not at all,
all mirrors and tools see it, and it is deleted with the group, as it should be, since a new mirror
sends everything again. Rejected: a file (on one machine only), and a topic in the target (it must
be read from the start, and outlives its group).

What must be true: a mirror writes a sync only while no other mirror can have sent messages of the
partition. A mirror with an expired session may not know that yet. So a mirror that takes a
partition over first writes its node, and every mirror writes only over the version that it wrote
last. The fixed target of a partition does not change with its owner: a mirror that has lost a
partition may still have messages to send, and they go where the earlier ones went.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.cluster.metadata import GetChildren, GetData, Query
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import decodePartition, decodeText
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
from pylogbroker.mirror.target import MirrorTarget
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.ephemeral import createParents

COUNT_MAX = 64
"""Entries of one source partition."""

SIZE_MAX = 64 << 10
"""Bytes of one source partition's table. (ZooKeeper takes 1 MiB.)"""

VERSION = 1
Ends = Mapping[BrokerPartition, int]
"""Of a topic's partitions in the target: where each ended."""


@dataclass
class OffsetSyncTable:
    """
    The syncs of one source partition.

    @ivar fixedTarget: the target partition of all its messages, if the mirror keeps partitions;
        otherwise L{None}.
    @ivar entries: (source offset, ends) in the order of the source offsets, which differ.
    """

    fixedTarget: BrokerPartition | None = None
    entries: list[tuple[int, dict[BrokerPartition, int]]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<OffsetSyncTable to {self.fixedTarget or 'any'}, {len(self.entries)} entries>"

    def record(self, offset: int, ends: Ends) -> bool:
        """
        Add a sync.

        @param offset: no message from here on was registered when the ends were known.
        @param ends: the ends of the target's partitions, or earlier ones.
        @return: whether the table changed.
        """
        entries = self.entries
        index = bisect_right(entries, offset, key=lambda entry: entry[0])
        isThere = bool(index) and entries[index - 1][0] == offset
        if isThere:
            index -= 1
        else:
            entries.insert(index, (offset, {}))
        isNews = not isThere
        for _offset, known in entries[index:]:  # what holds from here on holds further on, too
            for partition, end in ends.items():
                if known.get(partition, -1) < end:
                    known[partition] = end
                    isNews = True
        while len(entries) > COUNT_MAX:
            self._thin()
        return isNews

    def _thin(self) -> None:
        """Remove the sync whose gap is the smallest in relation to its distance from the end."""
        entries = self.entries
        last = entries[-1][0]
        costs = [
            (entries[at + 1][0] - entries[at - 1][0]) / (last - entries[at][0])
            for at in range(1, len(entries) - 1)
        ]
        del entries[1 + costs.index(min(costs))]

    def lookUp(self, position: int) -> dict[BrokerPartition, int] | None:
        """
        Translate an offset.

        @param position: a source offset that a group has read up to.
        @return: for each target partition an offset with no unread message before it; 0 for a
            partition that is not named. L{None} if the table does not go back so far: then 0 for
            all.
        """
        index = bisect_right(self.entries, position, key=lambda entry: entry[0])
        return dict(self.entries[index - 1][1]) if index else None

    def encode(self) -> bytes:
        """As JSON that names each target partition once."""
        while True:
            targets = sorted({partition for _offset, ends in self.entries for partition in ends})
            rows = [
                [offset, *(ends.get(partition, 0) for partition in targets)]
                for offset, ends in self.entries
            ]
            content = {
                "version": VERSION,
                "home": None if self.fixedTarget is None else str(self.fixedTarget),
                "targets": [str(each) for each in targets],
                "entries": rows,
            }
            data = json.dumps(content, separators=(",", ":")).encode()
            if len(data) <= SIZE_MAX or len(self.entries) < 3:
                return data
            self._thin()


def decodeTable(path: str, data: bytes | None) -> OffsetSyncTable:
    """
    Decode a node; no data are an empty table.

    @param path: for the error.
    @raise ZnodeError: the data are no table.
    """
    text = decodeText(path, data)
    if not text:
        return OffsetSyncTable()
    try:
        content: Any = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r}")
        fixedTarget = None if content["home"] is None else decodePartition(path, content["home"])
        targets = [decodePartition(path, name) for name in content["targets"]]
        rows = [[int(number) for number in row] for row in content["entries"]]
        if any(len(row) != 1 + len(targets) for row in rows) or any(
            after[0] <= before[0] for before, after in pairwise(rows)
        ):
            raise ValueError("its entries do not fit together")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ZnodeError(path, repr(text[:100]), f"it is no table of offsets: {error!r}") from error
    return OffsetSyncTable(
        fixedTarget, [(row[0], dict(zip(targets, row[1:], strict=True))) for row in rows]
    )


def translate(
    positions: Mapping[PartitionId, int],
    tables: Mapping[PartitionId, OffsetSyncTable],
    targets: Mapping[str, Iterable[BrokerPartition]],
) -> dict[PartitionId, int]:
    """
    Translate a group's offsets to the target.

    @param positions: the group's offsets in the source. It has not read other partitions.
    @param tables: the mirror's tables of all source partitions of the topics.
    @param targets: the partitions of each topic in the target.
    @return: an offset for each target partition that messages of the group's topics may have gone
        to; from there on it finds all its unread messages.
    """
    found: dict[PartitionId, int] = {}
    topics = {partitionId.topic for partitionId in positions}
    for partitionId in {*positions, *(each for each in tables if each.topic in topics)}:
        table = tables.get(partitionId, OffsetSyncTable())
        ends = table.lookUp(positions.get(partitionId, 0))
        concerned = {*targets.get(partitionId.topic, ()), *(ends or ())}
        if ends is not None and table.fixedTarget is not None:
            concerned = {table.fixedTarget}
        for partition in concerned:
            target = PartitionId(partitionId.topic, partition)
            offset = 0 if ends is None else ends.get(partition, 0)
            found[target] = min(found.get(target, offset), offset)
    return found


_ROUNDS_MAX = 10
_log = Logger()


@dataclass(slots=True)
class _OwnedTable:
    """
    A node that this mirror may write.

    @ivar version: its last known version.
    @ivar unconfirmed: data of a last write that was not answered.
    """

    table: OffsetSyncTable
    version: int
    unconfirmed: bytes | None = None


async def readTable(zookeeper: IZookeeper, path: str) -> tuple[OffsetSyncTable, int]:
    """
    @return: (table, version); an empty table for a missing or unreadable node, with version -1 for
        a missing one.
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


class ZookeeperOffsetSyncStore:
    """The tables of one source."""

    def __init__(
        self,
        zookeeper: IZookeeper,
        groupPaths: GroupPaths,
        target: MirrorTarget,
        tracker: OffsetTracker,
        isKeeping: bool,
    ) -> None:
        """@param isKeeping: whether a source partition always goes to the same target partition."""
        self._zookeeper = zookeeper
        self._paths = groupPaths
        self._target = target
        self._tracker = tracker
        self._isKeeping = isKeeping
        self._owned: dict[PartitionId, _OwnedTable] = {}
        self._fixedTargets: dict[PartitionId, BrokerPartition] = {}
        self._choosing = DeferredLock()
        self._recording = DeferredLock()

    def __repr__(self) -> str:
        return f"<ZookeeperOffsetSyncStore, {len(self._owned)} partitions>"

    def fixedTarget(self, partitionId: PartitionId) -> BrokerPartition | None:
        """
        The target partition of an owned source partition; L{None} for any, if the mirror does not
        keep partitions.

        @raise NoBrokersError: it is not known.
        """
        if not self._isKeeping:
            return None
        fixedTarget = self._fixedTargets.get(partitionId)
        if fixedTarget is None:
            raise NoBrokersError(
                f"it is not known which partition of the target {partitionId} goes to"
            )
        return fixedTarget

    # -- taking over

    async def take(self, partitionId: PartitionId) -> None:
        """
        Take over the table of a partition, before the mirror reads the partition.

        @raise ZookeeperError: the node could not be written. The partition must not be read then.
        @raise pylogbroker.errors.PylogbrokerError: its fixed target cannot be found.
        """
        self._owned.pop(partitionId, None)
        path = self._paths.mirrored(*partitionId)
        for _round in range(_ROUNDS_MAX):
            table, version = await readTable(self._zookeeper, path)
            if self._isKeeping != (table.fixedTarget is not None):
                table = OffsetSyncTable()  # what was sent in the other way is of no use in this one
            if not self._isKeeping:
                version = await self._write(path, table, version)
            else:
                async with self._choosing:  # each sees what the one before has chosen
                    if table.fixedTarget is None:
                        table.fixedTarget = await self._chooseFixedTarget(partitionId.topic)
                    version = await self._write(path, table, version)
            if version >= 0:
                self._owned[partitionId] = _OwnedTable(table, version)
                if table.fixedTarget is not None:
                    self._fixedTargets[partitionId] = table.fixedTarget
                return
        raise ZookeeperError(f"{path}: another mirror keeps writing to it")

    async def _chooseFixedTarget(self, topic: str) -> BrokerPartition:
        """The target partition with the fewest source partitions."""
        partitions = await self._target.ensureTopic(topic)
        tables = await readTables(self._zookeeper, self._paths.group, [topic])
        counts = Counter(table.fixedTarget for table in tables.values())
        return min(partitions, key=lambda partition: counts[partition])

    async def _write(self, path: str, table: OffsetSyncTable, version: int) -> int:
        """Write over a known version; returns the new one, or -1 if another mirror was faster."""
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
        self, partitionIds: Iterable[PartitionId], positions: Mapping[PartitionId, int]
    ) -> None:
        """
        Add a sync to each table.

        @param partitionIds: the owned partitions.
        @param positions: the consumer's positions, for partitions without a registered message.
        @raise ZookeeperError: some tables could not be written; the next call retries them.
        """
        async with self._recording:
            owned = {each: self._owned[each] for each in partitionIds if each in self._owned}
            ends = await self._target.ends({partitionId.topic for partitionId in owned})
            # From here to the end of the loop nothing may come in between: nothing is handed on
            # while we look how much was.
            changed = []
            for partitionId, each in owned.items():
                readBoundary = self._tracker.readBoundary(partitionId, positions.get(partitionId))
                if self._owned.get(partitionId) is not each or readBoundary is None:
                    continue
                found = {
                    partition: end
                    for partition, end in ends.get(partitionId.topic, {}).items()
                    if each.table.fixedTarget in (None, partition)
                }
                if found and (
                    each.table.record(readBoundary, found) or each.unconfirmed is not None
                ):
                    changed.append((partitionId, each))
            for partitionId, each in changed:
                path = self._paths.mirrored(*partitionId)
                if await self._rewrite(path, each) or self._owned.get(partitionId) is not each:
                    continue
                del self._owned[partitionId]
                _log.warn(
                    "{partitionId}: another mirror has taken it over, or its table of offsets was "
                    "changed: it is not written any more",
                    partitionId=partitionId,
                )

    async def _rewrite(self, path: str, owned: _OwnedTable) -> bool:
        """Write a table over its last version. Returns false if another writer has changed it."""
        if owned.unconfirmed is not None:
            data, stat = await self._zookeeper.get(path)
            if stat.version == owned.version + 1 and data == owned.unconfirmed:
                owned.version += 1
            elif stat.version != owned.version:
                return False
        owned.unconfirmed = owned.table.encode()
        version = await self._write(path, owned.table, owned.version)
        owned.version, owned.unconfirmed = version, None
        return version >= 0


def mirrorTables(group: str, topics: Iterable[str]) -> Query[dict[PartitionId, OffsetSyncTable]]:
    """
    All tables of a mirror's group for some topics; an empty one for an unreadable node.

    @param group: the mirror's.
    """
    groupPaths, names = GroupPaths(group), list(topics)
    children = yield [
        GetChildren(groupPaths.topicMirrored(topic), decodePartition) for topic in names
    ]
    places = [
        PartitionId(topic, partition)
        for topic, found in zip(names, children, strict=True)
        for partition in found
    ]
    tables = yield [GetData(groupPaths.mirrored(*each), decodeTable) for each in places]
    return {
        place: OffsetSyncTable() if table is None else table
        for place, table in zip(places, tables, strict=True)
    }


async def readTables(
    zookeeper: IZookeeper, group: str, topics: Iterable[str]
) -> dict[PartitionId, OffsetSyncTable]:
    """
    Read L{mirrorTables}, for tools that move another group. Nodes that cannot be read are logged.

    @param zookeeper: the source's.
    @raise ZookeeperError: they cannot be read.
    """
    reader = ClusterMetadataReader(
        zookeeper, lambda text: _log.warn("{text}. It is left out", text=text)
    )
    return await reader.read(mirrorTables(group, topics))
