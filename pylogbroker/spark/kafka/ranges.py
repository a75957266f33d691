"""
From options to ranges of offsets in partitions of today's Kafka. A module of its own, since batches
and streams plan alike, and tasks do not plan.

Each offset is a number of a record, so a range can be split anywhere. Missing data are an error, or
a logged warning where the user allows it, as for topics of 2011.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple, TypeVar

from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.errors import BrokerConnectionError, ConfigurationError, UnknownPartitionError
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.retry import BlockingRetryPolicy, RetryDelays
from pylogbroker.spark.kafka.options import ERROR, KafkaOffsets, KafkaSourceOptions
from pylogbroker.spark.splits import reportDataLoss
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.types import TopicPartition

T = TypeVar("T")

log = logging.getLogger(__name__)


class KafkaRange(NamedTuple):
    """Offsets of a partition, from C{start} up to, not including, C{end}."""

    where: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """In offsets, of which compaction and transactions may have taken some."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.where}, offsets {self.start} to {self.end}"


class LogBounds(NamedTuple):
    """
    What the leader has of a partition.

    @ivar latest: behind the last record that can be read.
    """

    earliest: int
    latest: int


def selectedPartitions(options: KafkaSourceOptions, cluster: KafkaCluster) -> list[TopicPartition]:
    """
    The partitions to read, sorted.

    @raise ResponseError: a topic that is named does not exist, or may not be seen.
    @raise UnknownPartitionError: a partition that is named does not exist.
    @raise BrokerConnectionError: no broker can be reached.
    """
    if options.assign:
        for topic in dict.fromkeys(where.topic for where in options.assign):
            numbers = cluster.partitions(topic)
            for where in options.assign:
                if where.topic == topic and where.partition not in numbers:
                    raise UnknownPartitionError(f"{options.name} has no partition {where}")
        return sorted(options.assign)
    names: Iterable[str] = options.subscribe or ()
    if options.subscribePattern:
        matches = TopicPattern(options.subscribePattern).matches
        topics = cluster.metadata(None).topics
        names = [each.name for each in topics if not each.isInternal and matches(each.name)]
    return sorted(
        TopicPartition(name, number) for name in names for number in cluster.partitions(name)
    )


def asked(
    options: KafkaSourceOptions,
    ask: Callable[[], T],
    pause: Callable[[float], object] = sleep,
) -> T:
    """
    Ask brokers, C{fetchOffset.numRetries} times more if none answers or the error may pass.

    @param ask: may be repeated.
    @param pause: waits for a number of seconds.
    @raise PylogbrokerError: the last failure.
    """
    intervalMs = options.fetchOffsetRetryIntervalMs
    policy = BlockingRetryPolicy(
        options.fetchOffsetNumRetries,
        pause,
        lambda: 0.0,
        RetryDelays(intervalMs, intervalMs, jitter=0),
    )
    for isLast in policy.attempts():
        try:
            return ask()
        except (BrokerConnectionError, ResponseError) as error:
            isPassing = not isinstance(error, ResponseError) or error.isRetriable
            if isLast or not isPassing:
                raise
            log.warning("The partitions and their ends are asked for again: %s", error)
    raise AssertionError("a policy has at least one attempt")


def isSelected(options: KafkaSourceOptions, where: TopicPartition) -> bool:
    """Whether the options include a partition, whether or not it exists."""
    if options.subscribePattern:
        return TopicPattern(options.subscribePattern).matches(where.topic)
    return where in (options.assign or ()) or where.topic in (options.subscribe or ())


def logBounds(
    options: KafkaSourceOptions, cluster: KafkaCluster, places: Collection[TopicPartition]
) -> dict[TopicPartition, LogBounds]:
    """
    @raise ResponseError: a partition has no leader, or may not be read.
    """
    first = _offsets(cluster, places, EARLIEST, options.isCommitted)
    last = _offsets(cluster, places, LATEST, options.isCommitted)
    return {where: LogBounds(first[where], max(first[where], last[where])) for where in places}


def highWatermarks(
    cluster: KafkaCluster, places: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """
    Where logs end, whether or not transactions are open before it.

    @raise ResponseError: as L{logBounds}.
    """
    return _offsets(cluster, places, LATEST, False)


def _offsets(
    cluster: KafkaCluster, places: Collection[TopicPartition], time: int, isCommitted: bool
) -> dict[TopicPartition, int]:
    """By time; -1: there is no such record."""
    found = {}
    if places:
        for where, each in cluster.offsets(places, time, isCommitted).items():
            if isinstance(each, ResponseError):
                raise each
            found[where] = each[0]
    return found


def checkNamed(
    option: str, named: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
) -> None:
    """
    @raise ConfigurationError: an object of offsets or times omits a partition, or names one that is
        not read.
    """
    expected = set(wanted)
    for where in sorted(expected - named.keys()):
        raise ConfigurationError(f"{option} does not name {where}; it must name all partitions")
    for where in sorted(named.keys() - expected):
        raise ConfigurationError(
            f"{option} names {where}, which does not exist or is not to be read"
        )


def _byOffset(
    option: str, spec: KafkaOffsets, bounds: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, int]:
    if isinstance(spec, dict):
        checkNamed(option, spec, bounds)
    found = {}
    for where, each in bounds.items():
        offset = spec[where] if isinstance(spec, dict) else spec
        found[where] = {EARLIEST: each.earliest, LATEST: each.latest}.get(offset, offset)
    return found


def _byTime(
    options: KafkaSourceOptions,
    cluster: KafkaCluster,
    times: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, LogBounds],
    isStrict: bool,
) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for time in set(times.values()):
        places = [where for where in bounds if times[where] == time]
        for where, offset in _offsets(cluster, places, time, options.isCommitted).items():
            if offset < 0 and isStrict:
                raise ConfigurationError(
                    f"{where} has no record of time {time} or later;"
                    " startingOffsetsByTimestampStrategy=latest would begin at its end"
                )
            latest = bounds[where].latest
            # The bounds are older than this answer, which may lie behind them during writes.
            found[where] = latest if offset < 0 else min(offset, latest)
    return found


def plannedStarts(
    options: KafkaSourceOptions,
    cluster: KafkaCluster,
    bounds: Mapping[TopicPartition, LogBounds],
    default: int,
) -> dict[TopicPartition, int]:
    """
    Where a query begins.

    @param default: the start that applies if the options give none: L{EARLIEST} or L{LATEST}.
    @raise ConfigurationError: the options name other partitions, or a time without records.
    """
    isStrict = options.startingOffsetsByTimestampStrategy == ERROR
    if options.startingTimestamp is not None:
        times = dict.fromkeys(bounds, options.startingTimestamp)
        return _byTime(options, cluster, times, bounds, isStrict)
    if options.startingOffsetsByTimestamp:
        checkNamed("startingOffsetsByTimestamp", options.startingOffsetsByTimestamp, bounds)
        return _byTime(options, cluster, options.startingOffsetsByTimestamp, bounds, isStrict)
    spec = default if options.startingOffsets is None else options.startingOffsets
    return _byOffset("startingOffsets", spec, bounds)


def _plannedEnds(
    options: KafkaSourceOptions,
    cluster: KafkaCluster,
    bounds: Mapping[TopicPartition, LogBounds],
) -> dict[TopicPartition, int]:
    if options.endingTimestamp is not None:
        times = dict.fromkeys(bounds, options.endingTimestamp)
        return _byTime(options, cluster, times, bounds, False)
    if options.endingOffsetsByTimestamp:
        checkNamed("endingOffsetsByTimestamp", options.endingOffsetsByTimestamp, bounds)
        return _byTime(options, cluster, options.endingOffsetsByTimestamp, bounds, False)
    return _byOffset("endingOffsets", options.endingOffsets, bounds)


def plannedRanges(options: KafkaSourceOptions, cluster: KafkaCluster) -> list[KafkaRange]:
    """
    The ranges of a batch, whose ends are fixed now.

    @raise ConfigurationError: as L{plannedStarts}; a range ends before it begins.
    @raise DataLossError: a part is lost, and the options forbid that.
    """
    bounds = logBounds(options, cluster, selectedPartitions(options, cluster))
    starts = plannedStarts(options, cluster, bounds, EARLIEST)
    ends = _plannedEnds(options, cluster, bounds)
    found = []
    for where, each in bounds.items():
        start, end = starts[where], ends[where]
        if end < start <= each.latest:
            raise ConfigurationError(f"{where}: the end is {end}, before the start at {start}")
        found.append(withinBounds(options, KafkaRange(where, start, max(start, end)), each))
    return found


def withinBounds(options: KafkaSourceOptions, wanted: KafkaRange, bounds: LogBounds) -> KafkaRange:
    """
    The part of a range that the log still has.

    @raise DataLossError: a part is lost, and the options forbid that.
    """
    start, end = wanted.start, wanted.end
    if end > bounds.latest:
        reportDataLoss(options, f"{wanted}: the log ends at {bounds.latest}: it was truncated")
        end = bounds.latest
    if start < bounds.earliest:
        reportDataLoss(
            options,
            f"{wanted}: {start} was deleted; the earliest offset left is {bounds.earliest}",
        )
        start = bounds.earliest
    return KafkaRange(wanted.where, min(start, end), end)


def splitRanges(
    ranges: Iterable[KafkaRange], countMin: int, sizeMax: int | None = None
) -> list[KafkaRange]:
    """
    Split large ranges into about C{countMin} equal parts or more. Empty ranges are left out.

    @param sizeMax: the most offsets of a part.
    """
    filled = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in filled)
    found = []
    for each in filled:
        count = 1 if len(filled) >= countMin else -(-each.size * countMin // total)
        if sizeMax is not None:
            count = max(count, -(-each.size // sizeMax))
        count = min(count, each.size)
        edges = [each.start + each.size * index // count for index in range(count + 1)]
        found += [KafkaRange(each.where, start, end) for start, end in pairwise(edges)]
    return found
