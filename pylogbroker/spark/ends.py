"""
Where partitions begin and end, as their brokers know it.

One question tells all: asked for the offsets before now, a broker answers with its visible end and the starts of all its segments (spec-0.7 wire-protocol §10).
All of them are boundaries of entries, which nothing else is known to be.
"""

from __future__ import annotations

from pylogbroker.errors import RemotePartitionError, UnreadableError
from pylogbroker.model import LATEST, BrokerPartition
from pylogbroker.spark.asking import Brokers
from pylogbroker.spark.plan import Bounds

SEGMENT_COUNT_MAX = 1_000_000


def _offsetsBefore(
    brokers: Brokers, topic: str, partition: BrokerPartition, time: int
) -> list[int]:
    what = f"topic {topic}, partition {partition}"
    # A broker answers a question about offsets of a partition that it does not have by closing the connection; a fetch gets a code.
    error = brokers.ask(
        partition.broker, what, lambda consumer: consumer.fetch(topic, partition.partition, 0, 0)
    ).error
    if isinstance(error, RemotePartitionError):
        raise UnreadableError(f"{what}: the broker does not have this partition") from error
    return brokers.ask(
        partition.broker,
        what,
        lambda consumer: consumer.getOffsetsBefore(
            topic, partition.partition, time, SEGMENT_COUNT_MAX
        ),
    )


def askBounds(brokers: Brokers, topic: str, partition: BrokerPartition) -> Bounds:
    """
    @raise UnreadableError: the broker does not have this partition.
    @raise pylogbroker.errors.ConnectionError: as L{Brokers.ask}.
    """
    newestFirst = _offsetsBefore(brokers, topic, partition, LATEST)
    if not newestFirst:
        raise UnreadableError(
            f"topic {topic}, partition {partition}: the broker does not say where it ends"
        )
    return Bounds(tuple(reversed(newestFirst[1:])) or (newestFirst[-1],), newestFirst[0])


def askOffsetAt(brokers: Brokers, topic: str, partition: BrokerPartition, timeMs: int) -> int:
    """
    Where to begin so as to read everything that was written since a time. A broker knows times by segments only, so older messages come along.

    @param timeMs: milliseconds since the epoch.
    @raise pylogbroker.errors.ConnectionError: as L{Brokers.ask}.
    """
    found = _offsetsBefore(brokers, topic, partition, timeMs)
    return found[0] if found else askBounds(brokers, topic, partition).earliest
