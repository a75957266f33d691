"""
One run of the loader: plan, read, write, count, commit.

The ends of the logs are fixed at the start, so a run ends even while producers write. The driver
holds counts, never rows; Spark's own operators spill to disk.

Rows of a range that is loaded again may lie in any file of the topic, beside other rows. The run
removes these files, and writes their other rows again with the new ones, all in one commit.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from time import time  # noqa: TID251 - the default clock
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType, StructField, StructType

from pylogbroker.errors import ConfigurationError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.loadplan import LoadPlan, advancePositions
from pylogbroker.lake.manifest import LOAD, LoadedRange, RunManifest
from pylogbroker.lake.table import Table, topicOf
from pylogbroker.records.columns import sizeBetween
from pylogbroker.spark.loader.eventtime import DEFAULT_RULE, withEventTime
from pylogbroker.spark.loader.jobprogress import (
    ProgressCallback,
    reportProgress,
    translateErrors,
)
from pylogbroker.spark.loader.plan import StartOffsets, planLoad
from pylogbroker.spark.loader.stagedfiles import (
    COMPRESSIONS,
    RowCounts,
    countRows,
    dataLossNotes,
    inRanges,
    netCounts,
    stagedFiles,
    writeStaged,
)
from pylogbroker.spark.loader.tablereader import (
    COUNTED,
    dataColumns,
    evolve,
    readFiles,
    tableAt,
)
from pylogbroker.spark.options import SourceOptions, sourceOptions
from pylogbroker.storage.files import RealFileSystem

WINDOW_MS = 60_000
OFFSET_MAX = 2**63 - 1
Transform = Callable[[DataFrame], DataFrame]
_RESERVED = ("startingOffsets", "endingOffsets", "startingTimestamp", "assign")


class LoadResult(NamedTuple):
    """
    The outcome of a run.

    @ivar manifest: what was committed; L{None} if there was nothing new.
    @ivar notes: sentences for the user.
    """

    manifest: RunManifest | None
    notes: tuple[str, ...]


class LoadRequest(NamedTuple):
    """The arguments of L{load}."""

    source: SourceOptions
    given: Mapping[str, str]
    eventTime: str | Column | None
    transform: Transform | None
    compression: str
    windowMs: int
    progress: ProgressCallback | None


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
        by topic and partition, C{{"clicks": {"0-0": 4711}}}, where -1 is the latest and -2 the
        earliest. Rows of the table from there on are replaced.
    @param eventTime: a column or expression of a message's time; see
        L{pylogbroker.spark.loader.eventtime}.
    @param transform: adds columns to the source's. It must return one row for each row.
    @param compression: of the files, one of L{COMPRESSIONS}.
    @param windowMs: the length of the manifest's windows; the windows of an audit must be
        multiples.
    @param progress: called on another thread while the run works.
    @param nowMs: gives milliseconds since 1970.
    @param source: the data source's options: C{zookeeper} or C{brokers}, C{subscribe} or
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
    if compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"compression={compression}: it must be one of {', '.join(COMPRESSIONS)}"
        )
    for name in source:
        if name in _RESERVED:
            raise ConfigurationError(
                f"{name}: the table knows where to continue; use startOffsets to begin elsewhere,"
                " and subscribe to choose topics"
            )
    request = LoadRequest(
        sourceOptions(source), source, eventTime, transform, compression, windowMs, progress
    )
    found = tableAt(path)
    with TableWriter(found, RealFileSystem()) as writer:
        last = found.last()
        plan = planLoad(request.source, last.positions if last else {}, startOffsets)
        if not plan.ranges:
            return LoadResult(None, plan.notes)
        manifest = _Run(spark, writer, request, plan, nowMs()).execute(last)
        return LoadResult(manifest, manifest.notes)


class _Run:
    """A run that has something to do."""

    def __init__(
        self,
        spark: SparkSession,
        writer: TableWriter,
        request: LoadRequest,
        plan: LoadPlan,
        startedMs: int,
    ) -> None:
        self._spark = spark
        self._writer = writer
        self._request = request
        self._plan = plan
        self._startedMs = startedMs
        self._runId = f"{startedMs}-{uuid.uuid4().hex}"
        self._staging = writer.staging(self._runId)

    def execute(self, last: RunManifest | None) -> RunManifest:
        """Read, write, count, commit."""
        try:
            with translateErrors():
                manifest = self._stage(last)
        except BaseException:
            self._writer.discard(self._runId)
            raise
        self._writer.commit(manifest)
        return manifest

    def _stage(self, last: RunManifest | None) -> RunManifest:
        request, table = self._request, self._writer.table
        fresh = None
        if not self._plan.isEmpty:
            fresh = withEventTime(self._read(), request.eventTime, self._startedMs)
        replaced = findReplaced(self._spark, table, self._plan, request.windowMs)
        columns = self._columns(last, fresh, replaced)
        rows = _union(fresh, replaced.kept)
        rowCount = 0
        if rows is not None:
            with self._progress("reading and writing"):
                rowCount = writeStaged(rows, self._staging, request.compression)
        number = 1 + (last.number if last else 0)
        added = stagedFiles(self._staging, number, rowCount)
        staged = [f"{self._staging}/{each.staged}" for each in added]
        written = readFiles(self._spark, table, staged, _counted(fresh)) if added else None
        with self._progress("counting"):
            loaded = written
            if written is not None and replaced.kept is not None:
                loaded = written.where(inRanges(self._plan.ranges))
            counts = self._count(loaded)
            notes = self._plan.notes
            if not request.source.failOnDataLoss:  # messages that were deleted since the plan
                notes += dataLossNotes(loaded, self._plan.ranges)
        windows, arrivals = netCounts(counts, replaced.counts)
        return RunManifest(
            number,
            self._runId,
            LOAD,
            self._startedMs,
            _ruleText(request.eventTime),
            self._ranges(counts, replaced),
            advancePositions(last.positions if last else {}, self._plan),
            added,
            replaced.files,
            request.windowMs,
            windows,
            arrivals,
            counts.leftOutCount,
            columns,
            notes,
            sum(sizeBetween(each.fromOffset, each.toOffset) for each in self._plan.ranges),
        )

    def _progress(self, stage: str) -> AbstractContextManager[None]:
        return reportProgress(self._spark, self._runId, stage, self._request.progress)

    def _columns(
        self, last: RunManifest | None, fresh: DataFrame | None, replaced: ReplacedRows
    ) -> Mapping[str, str]:
        """
        The table's columns by topic. A topic that an early release loaded is in no manifest, and
        stays so.
        """
        before = last.columns if last else {}
        topics = {each.partition.topic for each in self._plan.ranges if not each.isEmpty}
        unknown = (
            {topicOf(name) for name, _date in self._writer.table.days()}
            - before.keys()
            - replaced.emptied
        )
        schema = dataColumns(fresh.schema) if fresh is not None else StructType()
        return evolve(before, topics - unknown, schema, replaced.emptied)

    def _read(self) -> DataFrame:
        """The rows of the plan's ranges that are not empty, from the data source."""
        starts: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        for (topic, partition), fromOffset, toOffset, _again in (
            each for each in self._plan.ranges if not each.isEmpty
        ):
            starts.setdefault(topic, {})[str(partition)] = fromOffset
            ends.setdefault(topic, {})[str(partition)] = toOffset
        options = {
            name: value
            for name, value in self._request.given.items()
            if not name.startswith("subscribe")
        }
        # Spark Connect has no context, and does not say how many tasks it runs at a time.
        context = getattr(self._spark, "sparkContext", None)
        options.setdefault("minPartitions", str(2 * context.defaultParallelism if context else 1))
        options |= {
            "assign": json.dumps({topic: list(offsets) for topic, offsets in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
        }
        rows = self._spark.read.format("pylogbroker").options(**options).load()
        return rows if self._request.transform is None else self._request.transform(rows)

    def _count(self, loaded: DataFrame | None) -> RowCounts:
        if loaded is None:
            return RowCounts({}, (), {})
        ranges = {each.partition: each for each in self._plan.ranges}
        return countRows(loaded, ranges, self._request.windowMs)

    def _ranges(self, counts: RowCounts, replaced: ReplacedRows) -> tuple[LoadedRange, ...]:
        return tuple(
            LoadedRange(
                *key,
                fromOffset,
                toOffset,
                counts.rows.get(key, 0),
                replaced.counts.rows.get(key, 0),
            )
            for key, fromOffset, toOffset, _again in self._plan.ranges
        )


def _counted(fresh: DataFrame | None) -> StructType:
    """The columns to read back. Without C{nextOffset}, lost data cannot be reported."""
    fields = list(COUNTED)
    if fresh is not None and "nextOffset" in fresh.columns:
        fields.append(StructField("nextOffset", LongType()))
    return StructType(fields)


def _union(fresh: DataFrame | None, kept: DataFrame | None) -> DataFrame | None:
    if fresh is None or kept is None:
        return kept if fresh is None else fresh
    return fresh.unionByName(kept, allowMissingColumns=True)


def _ruleText(eventTime: str | Column | None) -> str:
    return DEFAULT_RULE if eventTime is None else f"{eventTime}, else the time of the run"


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


_NOTHING = ReplacedRows(None, (), RowCounts({}, (), {}))


def findReplaced(spark: SparkSession, found: Table, plan: LoadPlan, windowMs: int) -> ReplacedRows:
    """
    Find the rows of ranges that are loaded again. Of files that have no other rows, only the
    counted columns are read, so that rows which have become unreadable can be loaded again.
    """
    again = [each for each in plan.ranges if each.isAgain]
    files = found.files() if again else []
    if not files:
        return _NOTHING
    rows = readFiles(spark, found, files, COUNTED)
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
    gone = {each.partition: each._replace(toOffset=OFFSET_MAX) for each in again}
    removed = readFiles(spark, found, sorted(touched), COUNTED).where(inRanges(again))
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
