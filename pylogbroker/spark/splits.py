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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import ConfigurationError, DataLossError, NoBrokersError
from pylogbroker.records.columns import offsetAfter
from pylogbroker.spark.brokerclients import (
    EMPTY,
    BrokerClients,
    OffsetRange,
    PartitionDiscovery,
    SegmentBounds,
)
from pylogbroker.spark.options import OffsetSpec, SourceOptions
from pylogbroker.types import EARLIEST, LATEST, PartitionId

K = TypeVar("K")

log = logging.getLogger(__name__)


class InputSplit(NamedTuple):
    """A range, and the broker that has it."""

    range: OffsetRange
    address: BrokerAddress


class LossPolicy(Protocol):
    """Options that say whether lost data are an error."""

    @property
    def failOnDataLoss(self) -> bool:
        """If not, the loss is logged."""
        ...


def reportDataLoss(options: LossPolicy, text: str) -> None:
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
        each
        for spec in (options.startingOffsets, options.endingOffsets)
        if isinstance(spec, dict)
        for each in spec
    }


def namedPartitions(options: SourceOptions, cluster: PartitionDiscovery) -> list[PartitionId]:
    """
    The partitions to read, sorted.

    @raise ConfigurationError: as L{checkNamed}.
    @raise PylogbrokerError: as L{PartitionDiscovery.partitions}.
    """
    found = cluster.partitions(options.selection, expectedPartitions(options))
    checkNamed("startingOffsets", options.startingOffsets, found)
    checkNamed("endingOffsets", options.endingOffsets, found)
    return found


def checkNamed(option: str, spec: OffsetSpec | None, partitions: Iterable[PartitionId]) -> None:
    """
    @raise ConfigurationError: an object of offsets omits a partition, or names one that is not
        read.
    """
    if not isinstance(spec, dict):
        return
    wanted = set(partitions)
    for topic, partition in sorted(wanted - spec.keys()):
        raise ConfigurationError(
            f"{option} has no offset for topic {topic}, partition {partition}; it must name all"
            " partitions (-2 is the earliest, -1 the latest)"
        )
    for topic, partition in sorted(spec.keys() - wanted):
        raise ConfigurationError(
            f"{option} names topic {topic}, partition {partition}, which does not exist or is not"
            " to be read"
        )


def existingBounds(
    options: SourceOptions, brokers: BrokerClients, partitions: Iterable[PartitionId]
) -> dict[PartitionId, SegmentBounds]:
    """
    The bounds of all partitions to read. A topic that does not exist has the same bounds as a topic
    without messages, so the brokers are asked for its logs.

    @raise NoBrokersError: a topic has no log on any broker.
    """
    bounds = {each: brokers.segmentBounds(*each) for each in partitions}
    for topic in dict.fromkeys(each.topic for each in bounds):
        if not any(
            bounds[each] != EMPTY or brokers.hasLog(*each) for each in bounds if each.topic == topic
        ):
            raise NoBrokersError(
                f"topic {topic} does not exist in {options.name};"
                " the first message that is sent to it creates it"
            )
    return bounds


def _offset(spec: OffsetSpec, partition: PartitionId, bounds: SegmentBounds) -> int:
    offset = spec[partition] if isinstance(spec, dict) else spec
    return {EARLIEST: bounds.earliest, LATEST: bounds.latest}.get(offset, offset)


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


def plannedRanges(
    options: SourceOptions, brokers: BrokerClients, partitions: Iterable[PartitionId], default: int
) -> list[OffsetRange]:
    """
    The ranges of a query, whose ends are fixed now.

    @param default: the start that applies if the options give none: L{EARLIEST} or L{LATEST}.
    @raise ConfigurationError: a range ends before it begins.
    @raise NoBrokersError: as L{existingBounds}.
    @raise DataLossError: as L{withinBounds}.
    """
    found = []
    spec = default if options.startingOffsets is None else options.startingOffsets
    for each, bounds in existingBounds(options, brokers, partitions).items():
        if options.startingTimestamp is None:
            start = _offset(spec, each, bounds)
        else:
            # The bounds are older than this answer, which may lie behind them during writes.
            start = min(brokers.offsetAt(*each, options.startingTimestamp), bounds.latest)
        end = _offset(options.endingOffsets, each, bounds)
        if end < start <= bounds.latest:
            raise ConfigurationError(
                f"topic {each.topic}, partition {each.partition}: endingOffsets is {end}, before"
                f" the start at {start}"
            )
        wanted = OffsetRange(*each, start, max(end, start))
        found.append(withinBounds(options, wanted, bounds))
    return found


# -- how many tasks read them


def apportion(sizes: Mapping[K, int], sizeMax: int) -> dict[K, int]:
    """
    The part of each range that belongs to a micro-batch, in proportion to the ranges, so that all
    of them end together.

    @param sizes: of the ranges, in bytes or offsets.
    @param sizeMax: of the micro-batch.
    """
    total = sum(sizes.values())
    return {
        key: size if total <= sizeMax else -(-size * sizeMax // total)
        for key, size in sizes.items()
    }


def splitRanges(
    ranges: Collection[OffsetRange],
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
