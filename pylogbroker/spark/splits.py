"""
From options to the splits that tasks read side by side.

What must be true: no message is read twice and none is left out, whatever the payloads are. A
payload may itself be a valid message set, so the bytes in the middle of a segment do not tell where
an entry begins. So partitions are split at the starts of segments only. As a check, the reader of a
split refuses an entry that crosses its end (L{pylogbroker.spark.rangereader}).

Missing data are an error, or a logged warning where the user allows it. An explicit object of
offsets must name every partition and no other. That, or C{assign}, makes sure that no broker is
missing: a broker whose session has expired leaves no trace in ZooKeeper.

Rejected: splits at guessed offsets, each confirmed by the split before it. Tasks run side by side,
and Spark cannot pass the end of one to the next.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import ConfigurationError, DataLossError, NoBrokersError
from pylogbroker.records.columns import offsetAfter, sizeBetween
from pylogbroker.spark.brokerclients import (
    EMPTY,
    BrokerClients,
    SegmentBounds,
    fetchBounds,
    fetchOffsetAt,
    hasLog,
)
from pylogbroker.spark.options import OffsetSpec, SourceOptions
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition, PartitionId

log = logging.getLogger(__name__)


class OffsetRange(NamedTuple):
    """
    Part of a partition: the entries from C{start} to one that ends at C{end}.
    """

    topic: str
    partition: BrokerPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return sizeBetween(self.start, self.end)

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, {self.start} to {self.end}"


class InputSplit(NamedTuple):
    """A range, and the broker that has it."""

    range: OffsetRange
    address: BrokerAddress


def reportDataLoss(options: SourceOptions, text: str) -> None:
    """
    @raise DataLossError: unless the user has allowed lost data, which are then logged.
    """
    if options.failOnDataLoss:
        raise DataLossError(f"{text}; with failOnDataLoss=false it would be skipped")
    log.warning("%s; it is skipped, since failOnDataLoss=false", text)


# -- where partitions begin and end


def expectedPartitions(options: SourceOptions) -> set[PartitionId]:
    """The partitions for which offsets are given, and which must therefore exist."""
    return {
        PartitionId(topic, partition)
        for spec in (options.starting, options.ending)
        if isinstance(spec, dict)
        for topic in spec
        for partition in spec[topic]
    }


def checkNamed(option: str, spec: OffsetSpec | None, partitions: Iterable[PartitionId]) -> None:
    """
    @raise ConfigurationError: an object of offsets omits a partition, or names one that is not
        read.
    """
    if not isinstance(spec, dict):
        return
    named = {
        PartitionId(topic, partition) for topic, offsets in spec.items() for partition in offsets
    }
    wanted = set(partitions)
    for topic, partition in sorted(wanted - named):
        raise ConfigurationError(
            f"{option} has no offset for topic {topic}, partition {partition}; it must name all"
            " partitions (-2 is the earliest, -1 the latest)"
        )
    for topic, partition in sorted(named - wanted):
        raise ConfigurationError(
            f"{option} names topic {topic}, partition {partition}, which does not exist or is not"
            " to be read"
        )


def checkTopics(
    options: SourceOptions, brokers: BrokerClients, bounds: Mapping[PartitionId, SegmentBounds]
) -> None:
    """
    Tell a topic that does not exist from a topic without messages, whose bounds are the same.

    @param bounds: of all partitions to read.
    @raise NoBrokersError: a topic has no log on any broker.
    """
    for topic in dict.fromkeys(each.topic for each in bounds):
        own = [each for each in bounds if each.topic == topic]
        if all(bounds[each] == EMPTY for each in own) and not any(
            hasLog(brokers, *each) for each in own
        ):
            raise NoBrokersError(
                f"topic {topic} does not exist in {options.cluster.name};"
                " the first message that is sent to it creates it"
            )


def _offset(spec: OffsetSpec, partition: PartitionId, bounds: SegmentBounds) -> int:
    offset = spec[partition.topic][partition.partition] if isinstance(spec, dict) else spec
    return {EARLIEST: bounds.earliest, LATEST: bounds.latest}.get(offset, offset)


def startOf(
    options: SourceOptions,
    brokers: BrokerClients,
    partition: PartitionId,
    bounds: SegmentBounds,
    default: int,
) -> int:
    """
    Where a partition is to begin.

    @param default: L{EARLIEST} or L{LATEST}; used if the options say nothing.
    """
    if options.startingTimestampMs is not None:
        # The bounds are older than this answer, which may lie behind them during writes.
        found = fetchOffsetAt(brokers, *partition, options.startingTimestampMs)
        return min(found, bounds.latest)
    spec = default if options.starting is None else options.starting
    return _offset(spec, partition, bounds)


def withinBounds(options: SourceOptions, wanted: OffsetRange, bounds: SegmentBounds) -> OffsetRange:
    """
    The part of a range that the log still has.

    @raise DataLossError: a part is lost, and the options forbid that.
    """
    start, end = wanted.start, wanted.end
    if end > bounds.latest:
        reportDataLoss(
            options, f"{wanted}: the log ends at {bounds.latest}: it was emptied or truncated"
        )
        end = bounds.latest
    if start < bounds.earliest:
        reportDataLoss(
            options,
            f"{wanted}: {start} was deleted; the earliest offset left is {bounds.earliest}",
        )
        start = bounds.earliest
    return wanted._replace(start=min(start, end), end=end)


def batchRanges(
    options: SourceOptions, brokers: BrokerClients, partitions: Iterable[PartitionId]
) -> dict[OffsetRange, SegmentBounds]:
    """
    The ranges of a batch.

    @raise ConfigurationError: a range ends before it begins.
    @raise NoBrokersError: as L{checkTopics}.
    @raise DataLossError: as L{withinBounds}.
    """
    found = {}
    known = {each: fetchBounds(brokers, *each) for each in partitions}
    checkTopics(options, brokers, known)
    for each, bounds in known.items():
        start = startOf(options, brokers, each, bounds, EARLIEST)
        end = _offset(options.ending, each, bounds)
        if end < start <= bounds.latest:
            raise ConfigurationError(
                f"topic {each.topic}, partition {each.partition}: endingOffsets is {end}, before"
                f" the start at {start}"
            )
        wanted = OffsetRange(*each, start, max(end, start))
        found[withinBounds(options, wanted, bounds)] = bounds
    return found


# -- how many tasks read them


def splitRanges(
    ranges: Sequence[OffsetRange],
    countMin: int,
    startsOf: Callable[[OffsetRange], Sequence[int]],
) -> list[OffsetRange]:
    """
    Split large ranges, as far as segments allow, into about C{countMin} parts or more. Empty ranges
    are left out.

    @param startsOf: the segment starts of a range's partition, ascending; called only for ranges
        that are to be split.
    """
    filled = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in filled)
    found = []
    for each in filled:
        count = -(-each.size * countMin // total)  # rounded up
        isSplit = count > 1 and len(filled) < countMin
        found += _split(each, count, startsOf(each)) if isSplit else [each]
    return found


def _split(whole: OffsetRange, count: int, starts: Sequence[int]) -> list[OffsetRange]:
    """Split at the segment starts that are nearest to the ends of equal parts."""
    inner = starts[bisect_right(starts, whole.start) : bisect_left(starts, whole.end)]
    ends = (offsetAfter(whole.start, whole.size * index // count) for index in range(1, count))
    cuts = {_nearest(inner, end) for end in ends} if inner else set()
    edges = [whole.start, *sorted(cuts), whole.end]
    return [whole._replace(start=start, end=end) for start, end in pairwise(edges)]


def _nearest(values: Sequence[int], wanted: int) -> int:
    index = bisect_left(values, wanted)
    return min(values[max(index - 1, 0) : index + 1], key=lambda value: abs(value - wanted))
