"""
Where to stop short of an end: at the last boundary of an entry that a number of bytes reaches, so that reading can go on from there exactly.

What must be true: the answer is a boundary, whatever the payloads are. Segment starts are boundaries, and so is what is found by stepping from one boundary
over whole entries; nothing else is taken. Stepping reads what it steps over, in the driver, within the limit that was asked for; where the start of a
segment is about as far, that is taken instead and nothing is read.

Size fields alone are believed here. If one of them is corrupt, so is the entry, and whoever reads it stops there with an error, before the wrong boundary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pylogbroker.records.columns import completeEntriesSize
from pylogbroker.records.messageset import SIZE_FIELD_SIZE
from pylogbroker.spark.brokerclients import BrokerClients
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.splits import OffsetRange


def lastEntryBoundary(
    brokers: BrokerClients,
    options: SourceOptions,
    whole: OffsetRange,
    sizeMax: int,
    starts: Sequence[int],
) -> int:
    """
    @param sizeMax: how far to go, in bytes; an entry that is larger is taken all the same.
    @param starts: of the partition's segments, ascending.
    @return: behind C{whole.start}, at most C{whole.end}.
    @raise pylogbroker.errors.BrokerConnectionError: the broker gives no answer.
    """
    sizeMax = max(sizeMax, 1)
    wanted = whole.start + sizeMax
    if wanted >= whole.end:
        return whole.end
    index = bisect_right(starts, wanted)
    nearest = max(starts[index - 1] if index else 0, whole.start)
    if 2 * (nearest - whole.start) >= sizeMax:
        return nearest
    found = _step(brokers, options, whole, nearest, wanted)
    if found > whole.start:
        return min(found, whole.end)
    # Nothing whole is there: it was deleted meanwhile, or is corrupt. Who reads up to the next boundary that is sure will find out which.
    return min(starts[index] if index < len(starts) else whole.end, whole.end)


def _step(
    brokers: BrokerClients, options: SourceOptions, whole: OffsetRange, offset: int, wanted: int
) -> int:
    """From one boundary to the last that is not behind C{wanted}; or to the one behind the first entry."""
    topic, (broker, partition) = whole.topic, whole.partition
    while offset < wanted:
        size = min(options.fetchSize, max(wanted - offset, SIZE_FIELD_SIZE))
        data = brokers.ask(
            broker,
            str(whole),
            lambda consumer, at=offset, size=size: consumer.fetch(topic, partition, at, size),  # type: ignore[misc]
        ).data
        done = completeEntriesSize(data)
        if not done:
            isFirst = offset == whole.start
            needed = (
                int.from_bytes(data[:SIZE_FIELD_SIZE], "big", signed=True) + SIZE_FIELD_SIZE
                if len(data) >= SIZE_FIELD_SIZE
                else 0
            )
            if not needed > SIZE_FIELD_SIZE or (offset + needed > wanted and not isFirst):
                break
            done = needed
        offset += done
    return offset
