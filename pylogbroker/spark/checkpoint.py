"""
How far a stream is, as the checkpoint has it: C{{"clicks": {"0-0": {"from": 0, "to": 4711}}}}, the range of each partition that belongs to a micro-batch.

What must be true: a micro-batch that is repeated after a crash is the same one. So its end says all that is needed: not only where each partition ends, but
also where it began. Spark keeps the ends alone, and asks anew where the first one begins: by then "latest" is somewhere else, and what lay between would be
lost. The same goes for partitions that appear on the way, and for jumps over data that were deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogbroker.errors import UnreadableRangeError
from pylogbroker.spark.offsetmaps import parsePartition
from pylogbroker.spark.splits import OffsetRange
from pylogbroker.types import PartitionId

FROM, TO = "from", "to"


def encodeProgress(
    ranges: Mapping[PartitionId, OffsetRange],
) -> dict[str, dict[str, dict[str, int]]]:
    """What Spark keeps."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, partition), each in sorted(ranges.items()):
        found.setdefault(topic, {})[str(partition)] = {FROM: each.start, TO: each.end}
    return found


def decodeProgress(kept: Mapping[str, Any]) -> dict[PartitionId, OffsetRange]:
    """
    @raise UnreadableRangeError: it is not what we have given to Spark.
    """
    try:
        pairs = [
            (PartitionId(topic, parsePartition(topic, name)), each)
            for topic, partitions in kept.items()
            for name, each in partitions.items()
        ]
        return {place: OffsetRange(*place, int(each[FROM]), int(each[TO])) for place, each in pairs}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRangeError(
            f"the checkpoint has {kept!r}, which is no offset of pylogbroker"
        ) from error


def apportion(ranges: Mapping[PartitionId, OffsetRange], sizeMax: int) -> dict[PartitionId, int]:
    """
    How many bytes of each range belong to a micro-batch of C{sizeMax}: parts in proportion, so that all come to their ends together.
    """
    total = sum(each.size for each in ranges.values())
    return {
        place: each.size if total <= sizeMax else -(-each.size * sizeMax // total)
        for place, each in ranges.items()
    }
