"""
One run of the loader: plan, read, write, count, commit.

A run loads from the end of the table, or from the user's start offsets, to the ends of the logs.
The topics are those of Kafka 0.7 or of today's Kafka (L{pylogbroker.spark.loader.topicsource}).

The ends of the logs are fixed at the start, so a run ends even while producers write. The driver
holds counts, never rows; Spark's own operators spill to disk.

Rows of a range that is loaded again may lie in any file of the topic, beside other rows. The run
removes these files, and writes their other rows again with the new ones, all in one commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import time  # noqa: TID251 - the default clock
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from pylogbroker.errors import ConfigurationError, LoadError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.loadplan import LoadPlan, advancePositions, planRanges
from pylogbroker.lake.manifest import EVENT_TIME_RULE, LOAD, LoadedRange, RunManifest
from pylogbroker.lake.table import Table, topicOf
from pylogbroker.spark.kafka.options import isKafka
from pylogbroker.spark.loader.eventtime import withEventTime
from pylogbroker.spark.loader.jobprogress import (
    ProgressCallback,
    reportProgress,
    translateErrors,
)
from pylogbroker.spark.loader.kafka import KafkaTopics
from pylogbroker.spark.loader.kafka07 import Kafka07Topics
from pylogbroker.spark.loader.partitioncolumns import countedColumns, partitionColumns
from pylogbroker.spark.loader.stagedfiles import (
    NO_ROWS,
    RowCounts,
    checkCompression,
    countRows,
    inRanges,
    netCounts,
    stagedFiles,
    writeStaged,
)
from pylogbroker.spark.loader.tablereader import (
    dataColumns,
    evolve,
    readFiles,
    tableAt,
    union,
)
from pylogbroker.spark.loader.topicsource import StartOffsets, TopicSource, parseStartOffsets
from pylogbroker.types import AnyPartition

WINDOW_MS = 60_000
OFFSET_MAX = 2**63 - 1
Transform = Callable[[DataFrame], DataFrame]

_RESERVED = frozenset(
    {
        "startingoffsets",
        "endingoffsets",
        "startingtimestamp",
        "endingtimestamp",
        "startingoffsetsbytimestamp",
        "endingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "assign",
    }
)
"""Options of the data source, in lower case, that the loader sets."""


# -- the plan


def topicSource(given: Mapping[str, str]) -> TopicSource:
    """
    The topics that options of the data source choose.

    @raise ConfigurationError: an option is wrong.
    """
    for name in given:
        if name.lower() in _RESERVED:
            raise ConfigurationError(
                f"{name}: the table knows where to continue; use startOffsets to begin elsewhere,"
                " and subscribe to choose topics"
            )
    return KafkaTopics(given) if isKafka(given) else Kafka07Topics(given)


def planLoad(
    source: TopicSource,
    positions: Mapping[AnyPartition, int],
    startOffsets: StartOffsets = None,
) -> LoadPlan:
    """
    Ask the brokers, and plan.

    @param positions: where the table ends, by partition.
    @raise PylogbrokerError: a broker does not answer, a topic does not exist, or a partition cannot
        be loaded.
    """
    if not all(isinstance(each, source.kind) for each in positions):
        raise LoadError(
            f"the topics are those of {source.title}, and the table has others: rows of both name"
            " their partitions by other columns, so they need two folders"
        )
    found = source.logs(positions)
    wanted = parseStartOffsets(startOffsets, source.parseOffsets, found.bounds.keys())
    absent = found.waiting - wanted.keys()
    bounds = {key: each for key, each in found.bounds.items() if key not in absent}
    plan = planRanges(positions, bounds, wanted, isLossFatal=source.isLossFatal)
    return LoadPlan(plan.ranges, (*plan.notes, *found.notes))


# -- the run


class LoadResult(NamedTuple):
    """
    The outcome of a run.

    @ivar manifest: what was committed; L{None} if there was nothing new.
    @ivar notes: sentences for the user.
    """

    manifest: RunManifest | None
    notes: tuple[str, ...]


def load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    startOffsets: StartOffsets = None,
    eventTime: str | Column | None = None,
    transform: Transform | None = None,
    compression: str = "zstd",
    windowMs: int = WINDOW_MS,
    progress: ProgressCallback | None = None,
    nowMs: Callable[[], int] = lambda: int(time() * 1000),
    **source: str,
) -> LoadResult:
    """
    Load what is new. Whatever fails, the next call continues from the last commit; nothing is lost
    or duplicated.

    @param path: the table's folder, on a local or mounted file system; created if needed.
    @param startOffsets: where to begin instead of the end of the table: C{"earliest"}, or offsets
        by topic and partition, C{{"clicks": {"0-0": 4711}}} (of today's Kafka C{{"clicks": {"0":
        4711}}}), where -1 is the latest and -2 the earliest. Rows of the table from there on are
        replaced.
    @param eventTime: a column or expression of a message's time; see
        L{pylogbroker.spark.loader.eventtime}.
    @param transform: adds columns to the source's. It must return one row for each row.
    @param compression: of the files, one of L{COMPRESSIONS}.
    @param windowMs: the length of the manifest's windows; the windows of an audit must be
        multiples.
    @param progress: called on another thread while the run works.
    @param nowMs: gives milliseconds since 1970.
    @param source: the data source's options: C{zookeeper}, C{brokers} or, as
        C{**{"kafka.bootstrap.servers": …}}, brokers of today's Kafka; C{subscribe} or
        C{subscribePattern}, C{failOnDataLoss} …
    @return: without new messages, and without start offsets that move the end of the table, nothing
        is committed.
    @raise ConfigurationError: an option is wrong.
    @raise pylogbroker.errors.TableBusyError: another run writes to the table.
    @raise pylogbroker.errors.LoadError: the run failed; the text says why.
    @raise pylogbroker.errors.PostCommitError: the run is committed, but not all its files are
        published; the next call does that.
    @raise pylogbroker.errors.PylogbrokerError: the cluster or the table cannot be read. Nothing was
        committed.
    """
    checkCompression(compression)
    topics = topicSource(source)
    found = tableAt(path)
    with TableWriter(found) as writer:
        last = found.last()
        plan = planLoad(topics, last.positions, startOffsets)
        if not plan.ranges:
            return LoadResult(None, plan.notes)
        startedMs = nowMs()
        with writer.newRun(startedMs) as runId, translateErrors():
            manifest = _Run(
                spark,
                found,
                last,
                plan,
                runId,
                startedMs,
                topics,
                eventTime,
                transform,
                compression,
                windowMs,
                progress,
            ).stage(writer.staging(runId))
        writer.commit(manifest)
        return LoadResult(manifest, manifest.notes)


@dataclass(frozen=True)
class _Run:
    """
    A run that has something to do.

    @ivar last: what the previous run has committed.
    @ivar topics: that are loaded.
    """

    spark: SparkSession
    table: Table
    last: RunManifest
    plan: LoadPlan
    runId: str
    startedMs: int
    topics: TopicSource
    eventTime: str | Column | None
    transform: Transform | None
    compression: str
    windowMs: int
    progress: ProgressCallback | None

    def stage(self, staging: str) -> RunManifest:
        """
        Read, write and count.

        @param staging: the folder for files.
        """
        progress = partial(reportProgress, self.spark, self.runId, callback=self.progress)
        fresh = None
        if not self.plan.isEmpty:
            fresh = withEventTime(self._read(), self.eventTime, self.startedMs)
        replaced = findReplaced(self.spark, self.table, self.plan, self.windowMs)
        columns = self._columns(fresh, replaced)
        parts = [rows for rows in (fresh, replaced.kept) if rows is not None]
        rowCount = 0
        if parts:
            with progress("reading and writing"):
                rowCount = writeStaged(union(parts), staging, self.compression, self._names)
        number = 1 + self.last.number
        added = stagedFiles(staging, number, rowCount)
        loaded, counts, notes = None, NO_ROWS, self.plan.notes
        with progress("counting"):
            if added:
                wanted = countedColumns(self._names)
                if fresh is not None:
                    more = self.topics.lossColumns(fresh.schema)
                    wanted = StructType([*wanted, *more])
                files = [f"{staging}/{each.staged}" for each in added]
                loaded = readFiles(self.spark, self.table, files, wanted)
                if replaced.kept is not None:
                    loaded = loaded.where(inRanges(self.plan.ranges))
                counts = countRows(loaded, self.plan.ranges, self.windowMs)
            if not self.topics.isLossFatal:  # messages that were deleted since the plan
                notes += self.topics.lossNotes(loaded, self.plan.ranges)
        windows, arrivals = netCounts(counts, replaced.counts)
        return RunManifest(
            number,
            self.runId,
            LOAD,
            self.startedMs,
            EVENT_TIME_RULE
            if self.eventTime is None
            else f"{self.eventTime}, else the time of the run",
            tuple(
                LoadedRange(
                    key.topic,
                    key.partition,
                    fromOffset,
                    toOffset,
                    counts.rows.get(key, 0),
                    replaced.counts.rows.get(key, 0),
                )
                for key, fromOffset, toOffset, _again in self.plan.ranges
            ),
            advancePositions(self.last.positions, self.plan),
            added,
            replaced.files,
            self.windowMs,
            windows,
            arrivals,
            counts.leftOutCount,
            columns,
            notes,
            self.topics.logSize(self.plan.ranges),
        )

    @property
    def _names(self) -> tuple[str, ...]:
        """The columns that name a partition."""
        return partitionColumns(each.partition for each in self.plan.ranges)

    def _columns(self, fresh: DataFrame | None, replaced: ReplacedRows) -> Mapping[str, str]:
        """
        The table's columns by topic. A topic that an early release loaded is in no manifest, and
        stays so.
        """
        before = self.last.columns
        topics = {each.partition.topic for each in self.plan.ranges if not each.isEmpty}
        unknown = (
            {topicOf(name) for name, _date in self.table.days()} - before.keys() - replaced.emptied
        )
        schema = dataColumns(fresh.schema) if fresh is not None else StructType()
        return evolve(before, topics - unknown, schema, replaced.emptied)

    def _read(self) -> DataFrame:
        """The rows of the plan's ranges that are not empty, from the data source."""
        ranges = [each for each in self.plan.ranges if not each.isEmpty]
        # Spark Connect has no context, and does not say how many tasks it runs at a time.
        context = getattr(self.spark, "sparkContext", None)
        options = {
            "minPartitions": str(2 * context.defaultParallelism if context else 1),
            **self.topics.readOptions(ranges),
        }
        rows = self.spark.read.format("pylogbroker").options(**options).load()
        return rows if self.transform is None else self.transform(rows)


# -- ranges that are loaded again


class ReplacedRows(NamedTuple):
    """
    Rows that a run removes, because it loads their range again.

    @ivar kept: other rows in the same files; L{None}: there are none.
    @ivar files: these files, below the table's folder.
    @ivar counts: of the rows that are removed.
    @ivar emptied: topics that keep no row.
    """

    kept: DataFrame | None
    files: tuple[str, ...]
    counts: RowCounts
    emptied: frozenset[str] = frozenset()


_NOTHING = ReplacedRows(None, (), NO_ROWS)


def findReplaced(spark: SparkSession, found: Table, plan: LoadPlan, windowMs: int) -> ReplacedRows:
    """
    Find the rows of ranges that are loaded again. Of files that have no other rows, only the
    counted columns are read, so that rows which have become unreadable can be loaded again.
    """
    again = [each for each in plan.ranges if each.isAgain]
    files = found.files() if again else []
    if not files:
        return _NOTHING
    wanted = countedColumns(partitionColumns(each.partition for each in again))
    rows = readFiles(spark, found, files, wanted)
    parts = (
        rows.groupBy(sql.input_file_name().alias("file"))
        .agg(sql.count_if(inRanges(again)).alias("gone"), sql.count("*").alias("all"))
        .collect()
    )
    touched = {
        unquote(urlsplit(row["file"]).path): row["gone"] < row["all"]
        for row in parts
        if row["gone"]
    }
    if not touched:
        return _NOTHING
    gone = [each._replace(toOffset=OFFSET_MAX) for each in again]
    removed = readFiles(spark, found, sorted(touched), wanted).where(inRanges(again))
    shared = sorted(path for path, hasOthers in touched.items() if hasOthers)
    kept = readFiles(spark, found, shared).where(~inRanges(again)) if shared else None
    paths = {path: path.removeprefix(found.folder + "/") for path in files}
    staying = {topicOf(paths[path]) for path in files if touched.get(path, True)}
    return ReplacedRows(
        kept,
        tuple(paths[path] for path in sorted(touched)),
        countRows(removed, gone, windowMs),
        frozenset(topicOf(paths[path]) for path in touched) - staying,
    )
