"""
From offsets of a source to offsets of the target: the table that lets a group move between clusters (pure).

An entry says: I{everything of this source partition from offset S on is sent when the target's partitions have ended at T, U, … already}. To make one,
a mirror asks where the target's partitions end, and when it knows, looks up to where it has handed on the source partition. That is cheap, needs no
acknowledgement with an offset, which the wire does not have, and stays true whatever happens later: a mirror that dies, or loses the partition, leaves
it to one that begins at a committed offset, which is S or less, and sends after that; others who write to the same partitions only make them longer.

So for a group that has read up to P, the entry with the greatest S up to P names a place in the target from which on it finds all that it has not
read: at or before the true point, never after it. How far before depends on how dense the entries are. They are dense near the end and thinner the further back
they lie, so that a group which is B bytes behind lands, roughly, a tenth of B before its true point, however long the table has
grown; and the table does not grow: L{COUNT_MAX} entries, L{SIZE_MAX} bytes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from pylogbroker.cluster.znodes import decodePartition, decodeText
from pylogbroker.errors import ZnodeError
from pylogbroker.types import BrokerPartition, PartitionId

COUNT_MAX = 64
"""Entries of one source partition."""

SIZE_MAX = 64 << 10
"""Bytes of one source partition's table. (ZooKeeper takes 1 MiB.)"""

VERSION = 1
Ends = Mapping[BrokerPartition, int]
"""Of a topic's partitions in the target: where each ended."""


class OffsetSyncTable:
    """
    What is known of one source partition.

    @ivar home: the target partition that all of it goes to, if it was asked for; L{None} if it goes to any.
    @ivar entries: (source offset, ends), by source offset; no two have the same.
    """

    def __init__(
        self, home: BrokerPartition | None = None, entries: Iterable[tuple[int, Ends]] = ()
    ) -> None:
        self.home = home
        self.entries: list[tuple[int, dict[BrokerPartition, int]]] = [
            (offset, dict(ends)) for offset, ends in entries
        ]

    def __repr__(self) -> str:
        return f"<OffsetSyncTable to {self.home or 'any'}, {len(self.entries)} entries>"

    def record(self, offset: int, ends: Ends) -> bool:
        """
        One more entry.

        @param offset: nothing from here on had been handed on when the ends were known.
        @param ends: where the target's partitions ended, or had ended before.
        @return: whether that says anything new.
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
        """Do without the entry that is missed least: where the gap it leaves is small, seen from the end."""
        entries = self.entries
        last = entries[-1][0]
        costs = [
            (entries[at + 1][0] - entries[at - 1][0]) / (last - entries[at][0])
            for at in range(1, len(entries) - 1)
        ]
        del entries[1 + costs.index(min(costs))]

    def lookUp(self, position: int) -> dict[BrokerPartition, int] | None:
        """
        @param position: a source offset, up to which somebody has read.
        @return: for each of the target's partitions an offset at or before which nothing stands that they have not read; for a partition that
            is not named, 0 is one. L{None} when the table does not go back so far: then 0 is one for all.
        """
        index = bisect_right(self.entries, position, key=lambda entry: entry[0])
        return dict(self.entries[index - 1][1]) if index else None

    def encode(self) -> bytes:
        """As it is kept: JSON, with the target's partitions named once."""
        while True:
            targets = sorted({partition for _offset, ends in self.entries for partition in ends})
            rows = [
                [offset, *(ends.get(partition, 0) for partition in targets)]
                for offset, ends in self.entries
            ]
            content = {
                "version": VERSION,
                "home": None if self.home is None else str(self.home),
                "targets": [str(each) for each in targets],
                "entries": rows,
            }
            data = json.dumps(content, separators=(",", ":")).encode()
            if len(data) <= SIZE_MAX or len(self.entries) < 3:
                return data
            self._thin()


def decodeTable(path: str, data: bytes | None) -> OffsetSyncTable:
    """
    A table that somebody wrote; no data are an empty one.

    @param path: for the error.
    @raise ZnodeError: it is none.
    """
    text = decodeText(path, data)
    if not text:
        return OffsetSyncTable()
    try:
        content: Any = json.loads(text)
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']!r}")
        home = None if content["home"] is None else decodePartition(path, content["home"])
        targets = [decodePartition(path, name) for name in content["targets"]]
        rows = [[int(number) for number in row] for row in content["entries"]]
        if any(len(row) != 1 + len(targets) for row in rows) or any(
            after[0] <= before[0] for before, after in pairwise(rows)
        ):
            raise ValueError("its entries do not fit together")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ZnodeError(path, repr(text[:100]), f"it is no table of offsets: {error!r}") from error
    return OffsetSyncTable(
        home, [(row[0], dict(zip(targets, row[1:], strict=True))) for row in rows]
    )


def translate(
    positions: Mapping[PartitionId, int],
    tables: Mapping[PartitionId, OffsetSyncTable],
    targets: Mapping[str, Iterable[BrokerPartition]],
) -> dict[PartitionId, int]:
    """
    Where a group that comes from the source is to begin in the target.

    @param positions: the group's offsets in the source; a partition that is not named it has not read.
    @param tables: those of the mirror, of all source partitions of the topics.
    @param targets: the partitions that each topic has in the target.
    @return: an offset for each of them that something of the group's topics may have gone to. From there on it finds all that it has not read.
    """
    found: dict[PartitionId, int] = {}
    topics = {place.topic for place in positions}
    for place in {*positions, *(place for place in tables if place.topic in topics)}:
        table = tables.get(place, OffsetSyncTable())
        ends = table.lookUp(positions.get(place, 0))
        concerned = {*targets.get(place.topic, ()), *(ends or ())}
        if ends is not None and table.home is not None:
            concerned = {table.home}
        for partition in concerned:
            target = PartitionId(place.topic, partition)
            offset = 0 if ends is None else ends.get(partition, 0)
            found[target] = min(found.get(target, offset), offset)
    return found
