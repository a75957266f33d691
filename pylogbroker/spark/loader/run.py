"""
One run of the loader: plan, read, write, count, commit.

A run loads from the end of the table, or from the user's start offsets, to the ends of the logs.
Start offsets may come from lines of 0.7's Hadoop consumer (L{pylogbroker.cluster.offsetexport}),
and positions may be written as such lines. The lines name brokers by address, the table by id;
ZooKeeper or the list of brokers translates.

The ends of the logs are fixed at the start, so a run ends even while producers write. The driver
holds counts, never rows; Spark's own operators spill to disk.

Rows of a range that is loaded again may lie in any file of the topic, beside other rows. The run
removes these files, and writes their other rows again with the new ones, all in one commit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from time import time  # noqa: TID251 - the default clock
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from pylogbroker.cluster.offsetexport import FROM_EARLIEST, EtlOffset, decodeEtlLines
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import ConfigurationError, InvalidNameError, LoadError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.loadplan import LoadPlan, advancePositions, planRanges
from pylogbroker.lake.manifest import LOAD, LoadedRange, RunManifest
from pylogbroker.lake.table import LEVELS, Table, topicOf
from pylogbroker.records.columns import sizeBetween
from pylogbroker.spark.brokerclients import PartitionDiscovery
from pylogbroker.spark.loader.eventtime import DEFAULT_RULE, withEventTime
from pylogbroker.spark.loader.jobprogress import (
    ProgressCallback,
    reportProgress,
    translateErrors,
)
from pylogbroker.spark.loader.stagedfiles import (
    NO_ROWS,
    RowCounts,
    checkCompression,
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
    union,
)
from pylogbroker.spark.options import SourceOptions, parseOffsets
from pylogbroker.spark.splits import existingBounds
from pylogbroker.types import EARLIEST, OffsetBounds, PartitionId, byTopic

WINDOW_MS = 60_000
OFFSET_MAX = 2**63 - 1
Transform = Callable[[DataFrame], DataFrame]
StartOffsets = str | Mapping[str, Mapping[str, int]] | None
FOLDER_NAME_SIZE_MAX = 255
"""Bytes, on every common file system."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(1, 32)))
"""
Characters that Spark writes as three in a folder name (C{ExternalCatalogUtils.escapePathName}).
"""

_RESERVED = ("startingOffsets", "endingOffsets", "startingTimestamp", "assign")


# -- the plan


def parseStartOffsets(given: StartOffsets, partitions: list[PartitionId]) -> dict[PartitionId, int]:
    """
    @param given: C{"earliest"}, C{"latest"}, or offsets by topic and partition, as JSON or values.
    @param partitions: to load; the words apply to them.
    @raise ConfigurationError: it has another form.
    """
    if not given:
        return {}
    try:
        found = parseOffsets(given if isinstance(given, str) else json.dumps(given))
    except (TypeError, ValueError, InvalidNameError) as error:
        raise ConfigurationError(f"startOffsets={given!r}: {error}") from error
    return dict.fromkeys(partitions, found) if isinstance(found, int) else found


def checkFolder(topic: str) -> None:
    """
    @raise LoadError: the topic's name is too long for a folder. Spark would fail after reading all.
    """
    size = len(LEVELS[0]) + sum(
        3 if char in _ESCAPED else len(char.encode("utf-8", "surrogatepass")) for char in topic
    )
    if size > FOLDER_NAME_SIZE_MAX:
        raise LoadError(
            f"topic {topic}: the name is too long for a folder, which would have a name of"
            f" {size} bytes; {FOLDER_NAME_SIZE_MAX} are allowed"
        )


def planLoad(
    options: SourceOptions,
    positions: Mapping[PartitionId, int],
    startOffsets: StartOffsets = None,
) -> LoadPlan:
    """
    Ask the brokers, and plan. A partition that no broker has now is left for later, with a note.

    @param positions: where the table ends, by partition.
    @raise PylogbrokerError: a broker does not answer, a topic does not exist, or a partition cannot
        be loaded.
    """
    expected = [each for each in positions if each.topic in options.selection.topics]
    with PartitionDiscovery(options) as cluster:
        partitions = cluster.partitions(options.selection, expected)
        topics = dict.fromkeys(each.topic for each in partitions)
        for topic in topics:
            checkFolder(topic)
        with cluster.brokers(partitions) as brokers:
            found = existingBounds(options, brokers, partitions)
    plan = planRanges(
        positions,
        {key: OffsetBounds(bounds.earliest, bounds.latest) for key, bounds in found.items()},
        parseStartOffsets(startOffsets, partitions),
        isLossFatal=options.failOnDataLoss,
    )
    away = [
        f"{each}: no broker has this partition now; it is loaded when its broker is back"
        for each in sorted(positions)
        if each.topic in topics and each not in found
    ]
    return LoadPlan(plan.ranges, (*plan.notes, *away))


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
    checkCompression(compression)
    for name in source:
        if name in _RESERVED:
            raise ConfigurationError(
                f"{name}: the table knows where to continue; use startOffsets to begin elsewhere,"
                " and subscribe to choose topics"
            )
    options = SourceOptions.fromOptions(source)
    found = tableAt(path)
    with TableWriter(found) as writer:
        last = found.last()
        plan = planLoad(options, last.positions, startOffsets)
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
                source,
                options.failOnDataLoss,
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
    @ivar source: the data source's options.
    """

    spark: SparkSession
    table: Table
    last: RunManifest
    plan: LoadPlan
    runId: str
    startedMs: int
    source: Mapping[str, str]
    isLossFatal: bool
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
                rowCount = writeStaged(union(parts), staging, self.compression)
        number = 1 + self.last.number
        added = stagedFiles(staging, number, rowCount)
        loaded, counts, notes = None, NO_ROWS, self.plan.notes
        with progress("counting"):
            if added:
                wanted = COUNTED
                if fresh is not None and "nextOffset" in fresh.columns:
                    # Without it, lost data cannot be reported.
                    wanted = StructType(list(COUNTED)).add("nextOffset", "long")
                files = [f"{staging}/{each.staged}" for each in added]
                loaded = readFiles(self.spark, self.table, files, wanted)
                if replaced.kept is not None:
                    loaded = loaded.where(inRanges(self.plan.ranges))
                counts = countRows(loaded, self.plan.ranges, self.windowMs)
            if not self.isLossFatal:  # messages that were deleted since the plan
                notes += dataLossNotes(loaded, self.plan.ranges)
        windows, arrivals = netCounts(counts, replaced.counts)
        return RunManifest(
            number,
            self.runId,
            LOAD,
            self.startedMs,
            DEFAULT_RULE
            if self.eventTime is None
            else f"{self.eventTime}, else the time of the run",
            tuple(
                LoadedRange(
                    *key,
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
            sum(sizeBetween(each.fromOffset, each.toOffset) for each in self.plan.ranges),
        )

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
        starts = byTopic({each.partition: each.fromOffset for each in ranges})
        ends = byTopic({each.partition: each.toOffset for each in ranges})
        # Spark Connect has no context, and does not say how many tasks it runs at a time.
        context = getattr(self.spark, "sparkContext", None)
        options = {
            "minPartitions": str(2 * context.defaultParallelism if context else 1),
            **{key: value for key, value in self.source.items() if not key.startswith("subscribe")},
            "assign": json.dumps({topic: list(offsets) for topic, offsets in starts.items()}),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
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
    gone = [each._replace(toOffset=OFFSET_MAX) for each in again]
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


# -- the lines of 0.7's Hadoop consumer


def startOffsetsOf(
    lines: Iterable[str], brokers: Mapping[int, BrokerAddress]
) -> dict[str, dict[str, int]]:
    """
    Start offsets for L{pylogbroker.spark.loader.load}.

    @param brokers: by id.
    @raise pylogbroker.errors.FormatError: a line cannot be decoded.
    @raise LoadError: no broker has the address of a line.
    """
    numbers = {(address.host, address.port): number for number, address in brokers.items()}
    found: dict[str, dict[str, int]] = {}
    for each in decodeEtlLines(lines):
        number = numbers.get((each.host, each.port))
        if number is None:
            known = ", ".join(f"{host}:{port}" for host, port in sorted(numbers)) or "none"
            raise LoadError(
                f"tcp://{each.host}:{each.port}: there is no such broker now; there are {known}"
            )
        offset = EARLIEST if each.offset == FROM_EARLIEST else each.offset
        found.setdefault(each.topic, {})[f"{number}-{each.partition}"] = offset
    return found


def linesOf(
    positions: Mapping[PartitionId, int],
    brokers: Mapping[int, BrokerAddress],
    isWanted: Callable[[str], bool] = lambda topic: True,
) -> list[str]:
    """
    Lines of the table's positions, without line ends.

    @param isWanted: whether a topic must be complete. Of other topics, partitions whose broker is
        gone are left out.
    @raise LoadError: the address of a wanted topic's broker is unknown.
    """
    lines = []
    for key, offset in sorted(positions.items()):
        address = brokers.get(key.partition.broker)
        if address is None:
            if not isWanted(key.topic):
                continue
            raise LoadError(f"{key}: its broker is not there now, so its address is unknown")
        number = key.partition.partition
        lines.append(EtlOffset(address.host, address.port, key.topic, number, offset).encode())
    return lines
