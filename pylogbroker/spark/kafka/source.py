"""
The readers of batches and streams of today's topics. A module of its own, since the data source
chooses between these and those for topics of 2011.

A stream's checkpoint says where each partition of a micro-batch begins and ends,
C{{"clicks": {"0": {"from": 0, "to": 4711}}}}, so that a micro-batch that Spark repeats has the same
rows (L{pylogbroker.spark.datasource} explains why an end alone is not enough).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pylogbroker.errors import ConfigurationError, UnreadableRangeError
from pylogbroker.spark.kafka.options import KafkaSourceOptions
from pylogbroker.spark.kafka.rangereader import readRange
from pylogbroker.spark.kafka.ranges import (
    KafkaRange,
    LogBounds,
    asked,
    isSelected,
    logBounds,
    plannedRanges,
    plannedStarts,
    selectedPartitions,
    splitRanges,
    withinBounds,
)
from pylogbroker.spark.splits import apportion, reportDataLoss
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import LATEST, KafkaCluster
from pylogbroker.types import TopicPartition, byTopic

FROM, TO = "from", "to"

log = logging.getLogger(__name__)


def _inputPartitions(
    options: KafkaSourceOptions, ranges: Collection[KafkaRange]
) -> list[InputPartition]:
    parts = splitRanges(ranges, options.minPartitions or 0, options.maxRecordsPerPartition)
    return [InputPartition(each) for each in parts]


def checkBatchStart(options: KafkaSourceOptions) -> None:
    """
    @raise ConfigurationError: a batch would begin at the end of a partition. Spark's own source
        refuses that, too.
    """
    spec = options.startingOffsets
    if options.startingTimestamp is not None or options.startingOffsetsByTimestamp:
        return
    if spec == LATEST or (isinstance(spec, dict) and LATEST in spec.values()):
        raise ConfigurationError(
            "startingOffsets: a batch that begins at the latest offset would read nothing; give"
            " earliest, or an offset"
        )


class KafkaBatchReader(DataSourceReader):
    """The data source's reader of a batch. Workers get copies, so it holds only options."""

    def __init__(self, options: KafkaSourceOptions) -> None:
        """
        @raise ConfigurationError: the batch would begin at the end.
        """
        checkBatchStart(options)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """
        One for each split of the batch, whose end is fixed now.

        @raise PylogbrokerError: something to read is missing, or no broker can be asked.
        """
        with self._options.cluster() as cluster:
            ranges = asked(self._options, lambda: plannedRanges(self._options, cluster))
            return _inputPartitions(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split. Spark passes one without a value if there are no splits."""
        return iter(()) if partition.value is None else readRange(partition.value, self._options)


# -- the checkpoints of streams


def encodeKafkaCheckpoint(ranges: Mapping[TopicPartition, KafkaRange]) -> dict[str, dict[str, Any]]:
    """The end of a micro-batch, as Spark stores it."""
    return byTopic({where: {FROM: each.start, TO: each.end} for where, each in ranges.items()})


def decodeKafkaCheckpoint(stored: Mapping[str, Any]) -> dict[TopicPartition, KafkaRange]:
    """
    @raise UnreadableRangeError: L{encodeKafkaCheckpoint} has not made it.
    """
    try:
        return {
            (where := TopicPartition(topic, int(number))): KafkaRange(
                where, int(each[FROM]), int(each[TO])
            )
            for topic, partitions in stored.items()
            for number, each in partitions.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRangeError(
            f"the checkpoint has {stored!r}, which is not an offset of pylogbroker in a topic of"
            " today's Kafka"
        ) from error


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    The data source's reader of a stream. The driver has one; workers get copies that only read.
    """

    def __init__(self, options: KafkaSourceOptions, clock: Callable[[], float] = monotonic) -> None:
        """
        @param clock: seconds.
        """
        self._options = options
        self._clock = clock
        self._triggeredAt: float | None = None
        self._opened: KafkaCluster | None = None
        self._targets: dict[TopicPartition, int] | None = None

    @property
    def _cluster(self) -> KafkaCluster:
        if self._opened is None:
            self._opened = self._options.cluster()
        return self._opened

    def _bounds(self) -> dict[TopicPartition, LogBounds]:
        def ask() -> dict[TopicPartition, LogBounds]:
            places = selectedPartitions(self._options, self._cluster)
            return logBounds(self._options, self._cluster, places)

        return asked(self._options, ask)

    def initialOffset(self) -> dict[str, Any]:
        """
        The start of a query that has no checkpoint.

        @raise PylogbrokerError: a topic does not exist, or no broker can be asked.
        """
        bounds = self._bounds()
        starts = plannedStarts(self._options, self._cluster, bounds, LATEST)
        ranges = {
            where: withinBounds(self._options, KafkaRange(where, start, start), bounds[where])
            for where, start in starts.items()
        }
        return encodeKafkaCheckpoint(
            {where: each._replace(end=each.start) for where, each in ranges.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """
        C{maxOffsetsPerTrigger}, else C{minOffsetsPerTrigger}. Spark for Python has no limit that is
        both.
        """
        most, least = self._options.maxOffsetsPerTrigger, self._options.minOffsetsPerTrigger
        if most:
            return ReadMaxRows(most)
        return ReadMinRows(least) if least else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a run that reads what exists now."""
        self._targets = {where: each.latest for where, each in self._bounds().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        The end of the next micro-batch; C{start} if nothing is new.

        @raise pylogbroker.errors.DataLossError: unread data are gone.
        """
        before = decodeKafkaCheckpoint(start)
        bounds = self._bounds()
        if self._targets is not None:
            bounds = {
                where: each._replace(latest=min(each.latest, self._targets.get(where, 0)))
                for where, each in bounds.items()
                if where in before or where in self._targets
            }
        bounds = self._untilStop(bounds, before)
        for where in sorted(before.keys() - bounds.keys()):
            self._reportGone(before[where])
        ahead = {
            where: self._ahead(where, before.get(where), each) for where, each in bounds.items()
        }
        size = sum(each.size for each in ahead.values())
        if not isinstance(limit, ReadAllAvailable) and self._isDelayed(size):
            return start
        if isinstance(limit, ReadMaxRows):
            shares = apportion({key: each.size for key, each in ahead.items()}, limit.max_rows)
            ahead = {
                where: each._replace(end=each.start + shares[where])
                for where, each in ahead.items()
            }
        unchanged = {where: each._replace(start=each.end) for where, each in before.items()}
        after = unchanged | ahead
        return start if after == unchanged else encodeKafkaCheckpoint(after)

    def _untilStop(
        self, bounds: dict[TopicPartition, LogBounds], before: Mapping[TopicPartition, KafkaRange]
    ) -> dict[TopicPartition, LogBounds]:
        """The bounds, up to C{stopOffsets}. What was read before is not unread."""
        stops = self._options.stopOffsets
        if not stops:
            return bounds
        topics = {where.topic for where in stops}
        found = {}
        for where, each in bounds.items():
            if where.topic in topics:
                read = before[where].end if where in before else each.earliest
                each = each._replace(latest=min(each.latest, max(stops.get(where, 0), read)))
            found[where] = each
        return found

    def _isDelayed(self, size: int) -> bool:
        """
        Whether a micro-batch waits for more records. The first one does not, and neither do those
        of a run that reads what exists: it would end without the last of them.

        @param size: in offsets.
        """
        least = self._options.minOffsetsPerTrigger
        if least is None or self._targets is not None:
            return False
        now, before = self._clock(), self._triggeredAt
        delay = self._options.maxTriggerDelay / 1000
        if size < least and before is not None and now - before < delay:
            return True
        if size:
            self._triggeredAt = now
        return False

    def _reportGone(self, before: KafkaRange) -> None:
        why = f"it does not exist any more; {before.end} of it was read"
        if not isSelected(self._options, before.where):
            why = f"the checkpoint has it up to {before.end}, and it is no longer subscribed"
        reportDataLoss(self._options, f"{before.where}: {why}")

    def _ahead(
        self, where: TopicPartition, before: KafkaRange | None, bounds: LogBounds
    ) -> KafkaRange:
        """All unread records of a partition."""
        if before is None:
            log.info("There is a new partition %s, which is read from %d", where, bounds.earliest)
        elif bounds.latest >= before.end:
            return withinBounds(self._options, KafkaRange(where, before.end, bounds.latest), bounds)
        elif self._targets is None:
            reportDataLoss(
                self._options,
                f"{where}: the log ends at {bounds.latest}, and {before.end} was read: it was"
                " truncated, or the topic was made anew",
            )
        else:
            return KafkaRange(where, before.end, before.end)
        return KafkaRange(where, bounds.earliest, max(bounds.earliest, bounds.latest))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of a micro-batch; C{end} describes it."""
        return _inputPartitions(self._options, decodeKafkaCheckpoint(end).values())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        return readRange(partition.value, self._options)

    def stop(self) -> None:
        """End the query."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
