"""
Topics of today's Kafka in a run of the loader. A module of its own, so that what only one protocol
has is in one place.

Rows have headers, and records of open and aborted transactions are left out, unless the caller
wants it otherwise. The end of a log is then where its first open transaction begins.

Offsets have gaps: compaction takes records away, and transactions leave markers. So rows alone do
not tell whether something was lost. What retention deletes while a run reads lies before the log's
start when the run has read; only there can a record be missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from pylogbroker.config.kafka.clientsettings import READ_COMMITTED
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.spark.kafka.options import KafkaSourceOptions, parseKafkaOffsets
from pylogbroker.spark.kafka.ranges import (
    LogBounds,
    asked,
    highWatermarks,
    logBounds,
    selectedPartitions,
)
from pylogbroker.spark.loader.partitioncolumns import isOf
from pylogbroker.spark.loader.stagedfiles import byPartition
from pylogbroker.spark.loader.topicsource import FoundLogs, TopicSource, checkFolder
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.types import AnyPartition, OffsetBounds, TopicPartition

DEFAULTS = {"includeHeaders": "true", "kafka.isolation.level": READ_COMMITTED}
"""Options that the data source leaves off."""


class KafkaTopics(TopicSource):
    """Topics of today's Kafka."""

    kind = TopicPartition
    title = "today's Kafka"

    def __init__(self, given: Mapping[str, str]) -> None:
        """
        @param given: the data source's options, by names in any case.
        @raise ConfigurationError: an option is wrong.
        """
        names = {name.lower() for name in given}
        self.given = {
            **{name: value for name, value in DEFAULTS.items() if name.lower() not in names},
            **given,
        }
        self.options = KafkaSourceOptions.fromOptions(self.given)
        self.isLossFatal = self.options.failOnDataLoss

    def logs(self, positions: Mapping[AnyPartition, int]) -> FoundLogs:
        """See L{TopicSource.logs}. A partition that is gone has a note."""
        with self.options.cluster() as cluster:
            places = asked(self.options, lambda: selectedPartitions(self.options, cluster))
            topics = dict.fromkeys(each.topic for each in places)
            for topic in topics:
                checkFolder(topic)
            found = asked(self.options, lambda: logBounds(self.options, cluster, places))
            waiting = self._unstable(cluster, positions, found)
        gone = [
            f"{each}: the topic has no such partition now, and the table has it up to"
            f" {positions[each]}: was the topic created anew?"
            for each in sorted(positions)
            if each.topic in topics and each not in found
        ]
        bounds: dict[AnyPartition, OffsetBounds] = {
            key: OffsetBounds(*each) for key, each in found.items()
        }
        return FoundLogs(bounds, tuple(gone), waiting)

    def _unstable(
        self,
        cluster: KafkaCluster,
        positions: Mapping[AnyPartition, int],
        found: Mapping[TopicPartition, LogBounds],
    ) -> frozenset[AnyPartition]:
        """
        The partitions that an earlier run has loaded beyond the last stable offset, with
        C{read_uncommitted}: nothing is new there until the open transactions have ended.
        """
        ahead = [where for where, each in found.items() if positions.get(where, 0) > each.latest]
        if not ahead or not self.options.isCommitted:
            return frozenset()
        ends = highWatermarks(cluster, ahead)
        return frozenset(where for where in ahead if positions[where] <= ends[where])

    def parseOffsets(self, text: str) -> int | Mapping[Any, int]:
        """See L{TopicSource.parseOffsets}."""
        return parseKafkaOffsets(text)

    def assigned(self, name: str) -> str | int:
        """See L{TopicSource.assigned}."""
        return int(name)

    def lossColumns(self, fresh: StructType) -> StructType:
        """See L{TopicSource.lossColumns}."""
        return StructType()

    def lossNotes(
        self, rows: DataFrame | None, ranges: Collection[PlannedRange]
    ) -> tuple[str, ...]:
        """See L{TopicSource.lossNotes}. Gaps that the log had there count as lost, too."""
        ends = {each.partition: each for each in ranges if not each.isEmpty}
        places = [each for each in ends if isinstance(each, TopicPartition)]
        with self.options.cluster() as cluster:
            bounds = logBounds(self.options, cluster, places)
        deleted, notes = {}, []
        for where, each in sorted(bounds.items()):
            _where, start, end, _again = ends[where]
            if each.earliest > start:
                deleted[where] = OffsetBounds(start, min(each.earliest, end))
            if each.latest < end:
                notes.append(
                    f"{where}: the log ends at {each.latest}, and ended at {end} when the run was"
                    " planned: it was truncated, or the topic was created anew"
                )
        found: Mapping[AnyPartition, Row] = {}
        if rows is not None and deleted:
            wasDeleted = sql.lit(False)
            for where, lost in deleted.items():
                wasDeleted = wasDeleted | (isOf(where) & (sql.col("offset") < lost.end))
            found = byPartition(rows.where(wasDeleted), ranges, sql.count("*").alias("count"))
        for where, lost in sorted(deleted.items()):
            count = lost.end - lost.start - (found[where]["count"] if where in found else 0)
            if count:
                notes.append(
                    f"{where}: offsets {lost.start} to {lost.end} were deleted while they were"
                    f" read, and {count} of them have no rows"
                )
        return tuple(notes)

    def logSize(self, ranges: Collection[PlannedRange]) -> int:
        """See L{TopicSource.logSize}."""
        return 0
