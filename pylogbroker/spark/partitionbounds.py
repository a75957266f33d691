"""
Where partitions begin and end, as their brokers know it.

One question tells all: asked for the offsets before now, a broker answers with its visible end and the starts of all its segments (spec-0.7 wire-protocol §10).
All of them are boundaries of entries, which nothing else is known to be.
"""

from __future__ import annotations

from pylogbroker.errors import RemotePartitionError, UnreadableRangeError
from pylogbroker.spark.brokerclients import BrokerClients
from pylogbroker.spark.splits import SegmentBounds
from pylogbroker.types import LATEST, BrokerPartition

SEGMENT_COUNT_MAX = 1_000_000
TIME_MAX_MS = 2**63 - 1


def _offsetsBefore(
    brokers: BrokerClients, topic: str, partition: BrokerPartition, time: int
) -> list[int]:
    what = f"topic {topic}, partition {partition}"
    # A broker answers a question about offsets of a partition that it does not have by closing the connection; a fetch gets a code.
    error = brokers.ask(
        partition.broker, what, lambda consumer: consumer.fetch(topic, partition.partition, 0, 0)
    ).error
    if isinstance(error, RemotePartitionError):
        raise UnreadableRangeError(f"{what}: the broker does not have this partition") from error
    return brokers.ask(
        partition.broker,
        what,
        lambda consumer: consumer.getOffsetsBefore(
            topic, partition.partition, time, SEGMENT_COUNT_MAX
        ),
    )


def fetchBounds(brokers: BrokerClients, topic: str, partition: BrokerPartition) -> SegmentBounds:
    """
    @raise UnreadableRangeError: the broker does not have this partition.
    @raise pylogbroker.errors.BrokerConnectionError: as L{BrokerClients.ask}.
    """
    newestFirst = _offsetsBefore(brokers, topic, partition, LATEST)
    if not newestFirst:
        raise UnreadableRangeError(
            f"topic {topic}, partition {partition}: the broker does not say where it ends"
        )
    return SegmentBounds(tuple(reversed(newestFirst[1:])) or (newestFirst[-1],), newestFirst[0])


def fetchOffsetAt(
    brokers: BrokerClients, topic: str, partition: BrokerPartition, timeMs: int
) -> int:
    """
    Where to begin so as to read everything that was written since a time. A broker knows times by segments only, so older messages come along.

    @param timeMs: milliseconds since the epoch.
    @raise pylogbroker.errors.BrokerConnectionError: as L{BrokerClients.ask}.
    """
    found = _offsetsBefore(brokers, topic, partition, timeMs)
    return found[0] if found else fetchBounds(brokers, topic, partition).earliest


def hasLog(brokers: BrokerClients, topic: str, partition: BrokerPartition) -> bool:
    """
    Whether the broker has a log for a partition. A broker names no offset for a time if the log does not exist; for the earliest and the latest offset it
    names 0 then, as if the log existed and were empty (spec-0.7 wire-protocol §10).

    @raise pylogbroker.errors.BrokerConnectionError: as L{BrokerClients.ask}.
    """
    return bool(_offsetsBefore(brokers, topic, partition, TIME_MAX_MS))
