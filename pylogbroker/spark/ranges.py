"""
From options to ranges: which partitions there are, where each is to begin and where to end, as far as the log still has that.

What is asked for and is not there is an error or, where the user has said so, is left out and logged; never is it left out without a word. An explicit
map of offsets must name every partition and no other: that, or C{assign}, is how to be sure that no broker is missing, since one whose session is over has
left no trace in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pylogbroker.errors import ConfigurationError, NoBrokersError
from pylogbroker.spark.brokerclients import BrokerClients
from pylogbroker.spark.fetching import reportDataLoss
from pylogbroker.spark.options import SourceOptions, Where
from pylogbroker.spark.partitionbounds import fetchBounds, fetchOffsetAt, hasLog
from pylogbroker.spark.splits import OffsetRange, SegmentBounds
from pylogbroker.types import EARLIEST, LATEST, PartitionId


def expectedPlaces(options: SourceOptions) -> set[PartitionId]:
    """The partitions for which offsets are given, and which must therefore be there."""
    return {
        PartitionId(topic, partition)
        for where in (options.starting, options.ending)
        if isinstance(where, dict)
        for topic in where
        for partition in where[topic]
    }


def checkNamed(option: str, where: Where | None, places: Iterable[PartitionId]) -> None:
    """
    @raise ConfigurationError: a map of offsets leaves out a partition, or names one that is not read.
    """
    if not isinstance(where, dict):
        return
    named = {
        PartitionId(topic, partition) for topic, offsets in where.items() for partition in offsets
    }
    wanted = set(places)
    for topic, partition in sorted(wanted - named):
        raise ConfigurationError(
            f"{option} says nothing of topic {topic}, partition {partition}; it must name all (-2 is the earliest, -1 the latest)"
        )
    for topic, partition in sorted(named - wanted):
        raise ConfigurationError(
            f"{option} names topic {topic}, partition {partition}, which is not there, or not to be read"
        )


def _offset(where: Where, place: PartitionId, bounds: SegmentBounds) -> int:
    topic, partition = place
    offset = where[topic][partition] if isinstance(where, dict) else where
    return bounds.earliest if offset == EARLIEST else bounds.latest if offset == LATEST else offset


def startOf(
    options: SourceOptions,
    brokers: BrokerClients,
    place: PartitionId,
    bounds: SegmentBounds,
    default: int,
) -> int:
    """
    Where a partition is to begin.

    @param default: if nothing is said: L{EARLIEST} or L{LATEST}.
    """
    if options.startingTimestampMs is not None:
        # The bounds are older than this answer, which may be behind them when somebody writes meanwhile: that is no loss.
        return min(fetchOffsetAt(brokers, *place, options.startingTimestampMs), bounds.latest)
    return _offset(default if options.starting is None else options.starting, place, bounds)


def inBounds(options: SourceOptions, wanted: OffsetRange, bounds: SegmentBounds) -> OffsetRange:
    """
    What of a range the log has.

    @raise pylogbroker.errors.DataLossError: not all, and that may not be.
    """
    start, end = wanted.start, wanted.end
    if end > bounds.latest:
        reportDataLoss(
            options, f"{wanted}: the log ends at {bounds.latest} already: it was emptied or cut"
        )
        end = bounds.latest
    if start < bounds.earliest:
        reportDataLoss(
            options,
            f"{wanted}: {start} was deleted; the earliest that is left is {bounds.earliest}",
        )
        start = bounds.earliest
    return wanted._replace(start=min(start, end), end=end)


_EMPTY = SegmentBounds((0,), 0)


def checkTopics(
    options: SourceOptions, brokers: BrokerClients, bounds: Mapping[PartitionId, SegmentBounds]
) -> None:
    """
    Tell a topic that does not exist from one that has no messages. Brokers answer both alike when they are asked for bounds.

    @param bounds: of all partitions that are to be read.
    @raise NoBrokersError: a topic has no log on any broker.
    """
    for topic in dict.fromkeys(place.topic for place in bounds):
        places = [place for place in bounds if place.topic == topic]
        if all(bounds[place] == _EMPTY for place in places) and not any(
            hasLog(brokers, *place) for place in places
        ):
            raise NoBrokersError(
                f"topic {topic} does not exist in {options.cluster.name}; the first message that is sent to it creates it"
            )


def batchRanges(
    options: SourceOptions, brokers: BrokerClients, places: list[PartitionId]
) -> dict[OffsetRange, SegmentBounds]:
    """
    The ranges of a batch read.

    @raise ConfigurationError: a range ends before it begins.
    @raise NoBrokersError: as L{checkTopics}.
    @raise pylogbroker.errors.DataLossError: some of it is gone.
    """
    found = {}
    known = {place: fetchBounds(brokers, *place) for place in places}
    checkTopics(options, brokers, known)
    for place, bounds in known.items():
        start = startOf(options, brokers, place, bounds, EARLIEST)
        end = _offset(options.ending, place, bounds)
        if end < start <= bounds.latest:
            raise ConfigurationError(
                f"topic {place[0]}, partition {place[1]}: endingOffsets says {end}, before the start at {start}"
            )
        found[inBounds(options, OffsetRange(*place, start, max(end, start)), bounds)] = bounds
    return found
