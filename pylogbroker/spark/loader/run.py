"""
One run of the loader: see how far the table is and where the logs end, read what lies between, write it, count it, commit it.

The ends are asked for once, at the start; so the run ends also while others publish, and how much it does is known before it begins. Memory is bounded by
what Spark's own operators need, which spill: the driver holds counts, never rows.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from time import time  # noqa: TID251 - who does not care has the real clock
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from pylogbroker.errors import ConfigurationError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.loadplan import LoadPlan, advanced
from pylogbroker.lake.manifest import LOAD, LoadedRange, Manifest
from pylogbroker.lake.table import topicOf
from pylogbroker.spark.loader.eventtime import DEFAULT_RULE, withEventTime
from pylogbroker.spark.loader.planning import StartOffsets, planLoad
from pylogbroker.spark.loader.progress import Report, watched
from pylogbroker.spark.loader.reading import readFiles, tableAt
from pylogbroker.spark.loader.reload import Replaced, findReplaced
from pylogbroker.spark.loader.rowcounts import Counts, countRows, dataLossNotes, difference, within
from pylogbroker.spark.loader.sparkerrors import sparkErrors
from pylogbroker.spark.loader.staging import COMPRESSIONS, stagedFiles, writeStaged
from pylogbroker.spark.loader.tableschema import COUNTED, dataColumns, evolve
from pylogbroker.spark.options import SourceOptions, sourceOptions
from pylogbroker.storage.files import RealFileSystem

WINDOW_MS = 60_000
Transform = Callable[[DataFrame], DataFrame]
_OURS = ("startingOffsets", "endingOffsets", "startingTimestamp", "assign")


class LoadResult(NamedTuple):
    """
    What came of a run.

    @ivar manifest: of what was committed; L{None} if there was nothing new.
    @ivar notes: what somebody should know, a sentence each.
    """

    manifest: Manifest | None
    notes: tuple[str, ...]


class LoadRequest(NamedTuple):
    """
    What to load and how; see L{load}.
    """

    source: SourceOptions
    given: Mapping[str, str]
    beginnings: StartOffsets
    eventTime: str | Column | None
    transform: Transform | None
    compression: str
    windowMs: int
    report: Report | None


def load(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    beginnings: StartOffsets = None,
    eventTime: str | Column | None = None,
    transform: Transform | None = None,
    compression: str = "zstd",
    windowMs: int = WINDOW_MS,
    report: Report | None = None,
    nowMs: Callable[[], int] = lambda: int(time() * 1000),
    **source: str,
) -> LoadResult:
    """
    Load what is new. Whatever happens, the next call goes on from what was committed; nothing is lost, and nothing is there twice.

    @param path: the table's folder, on a local or mounted file system; it is made, if need be.
    @param beginnings: where to begin instead of where the table ends: C{"earliest"}, or offsets by topic and partition, C{{"clicks": {"0-0": 4711}}}, of -1 for
        the latest and -2 for the earliest. What the table already has from there on is loaded again and replaced.
    @param eventTime: a column or an expression that says when a message was made; see L{pylogbroker.spark.loader.eventtime}.
    @param transform: adds columns to the source's. It must give a row for each row.
    @param compression: of the files, one of L{COMPRESSIONS}.
    @param windowMs: of the counts in the manifest; an auditor's windows must be a multiple of it.
    @param report: is told, on another thread, how far the run is.
    @param nowMs: milliseconds since the epoch.
    @param source: the data source's options: C{zookeeper} or C{brokers}, C{subscribe} or C{subscribePattern}, C{failOnDataLoss} …
    @return: what was done; with nothing new, and no beginning that moves the table's end, no run is committed.
    @raise ConfigurationError: an option is wrong.
    @raise pylogbroker.errors.TableBusyError: another run writes to the table.
    @raise pylogbroker.errors.LoadError: it came to nothing, and why.
    @raise pylogbroker.errors.PostCommitError: the run is committed, and not all of its files are published; the next call does that.
    @raise pylogbroker.errors.PylogbrokerError: the cluster or the table cannot be read. Nothing was committed.
    """
    if compression not in COMPRESSIONS:
        raise ConfigurationError(
            f"compression={compression}: it must be one of {', '.join(COMPRESSIONS)}"
        )
    for name in source:
        if name in _OURS:
            raise ConfigurationError(
                f"{name}: the table knows how far it is loaded; beginnings says where to begin instead, subscribe what to load"
            )
    request = LoadRequest(
        sourceOptions(source),
        source,
        beginnings,
        eventTime,
        transform,
        compression,
        windowMs,
        report,
    )
    found = tableAt(path)
    with TableWriter(found, RealFileSystem()) as writer:
        last = found.last()
        plan = planLoad(request.source, last.positions if last else {}, beginnings)
        if not plan.ranges:
            return LoadResult(None, plan.notes)
        run = _Run(spark, writer, request, plan, nowMs())
        manifest = run.carryOut(last)
        return LoadResult(manifest, manifest.notes)


class _Run:
    """One that has something to do."""

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

    def carryOut(self, last: Manifest | None) -> Manifest:
        """Read, write, count, commit."""
        try:
            with sparkErrors():
                manifest = self._stage(last)
        except BaseException:
            self._writer.discard(self._runId)
            raise
        self._writer.commit(manifest)
        return manifest

    def _stage(self, last: Manifest | None) -> Manifest:
        fresh = (
            withEventTime(self._read(), self._request.eventTime, self._startedMs)
            if self._plan.size
            else None
        )
        replaced = findReplaced(self._spark, self._writer.table, self._plan, self._request.windowMs)
        columns = self._columns(last, fresh, replaced)
        rows = _joined(fresh, replaced.kept)
        rowCount = 0
        if rows is not None:
            with watched(self._spark, self._runId, "reading and writing", self._request.report):
                rowCount = writeStaged(rows, self._staging, self._request.compression)
        number = 1 + (last.number if last else 0)
        added = stagedFiles(self._staging, number, rowCount)
        staged = [f"{self._staging}/{each.staged}" for each in added]
        written = (
            readFiles(self._spark, self._writer.table, staged, _counted(fresh)) if added else None
        )
        with watched(self._spark, self._runId, "counting", self._request.report):
            loaded = self._loaded(written, replaced)
            counts = self._count(loaded)
            notes = self._plan.notes + self._lost(loaded)
        windows, arrivals = difference(counts, replaced.counts)
        return Manifest(
            number, self._runId, LOAD, self._startedMs, _ruleText(self._request.eventTime), self._ranges(counts, replaced),
            advanced(last.positions if last else {}, self._plan), added, replaced.files, self._request.windowMs, windows, arrivals, counts.leftOutCount,
            columns, notes,
        )  # fmt: skip

    def _columns(
        self, last: Manifest | None, fresh: DataFrame | None, replaced: Replaced
    ) -> Mapping[str, str]:
        """By topic. One whose files say more than the manifests, since an earlier release has written them, goes on like that."""
        before = last.columns if last else {}
        topics = {each.place.topic for each in self._plan.ranges if each.size}
        unknown = (
            {topicOf(name) for name, _date in self._writer.table.days()}
            - before.keys()
            - replaced.emptied
        )
        schema = dataColumns(fresh.schema) if fresh is not None else StructType()
        return evolve(before, topics - unknown, schema, replaced.emptied)

    def _read(self) -> DataFrame:
        """The rows of the plan, from the data source, which is not asked for ranges that have none."""
        parts: dict[str, dict[str, dict[str, int]]] = {"startingOffsets": {}, "endingOffsets": {}}
        for (topic, partition), fromOffset, toOffset, _again in (
            each for each in self._plan.ranges if each.size
        ):
            parts["startingOffsets"].setdefault(topic, {})[str(partition)] = fromOffset
            parts["endingOffsets"].setdefault(topic, {})[str(partition)] = toOffset
        assigned = {topic: list(offsets) for topic, offsets in parts["startingOffsets"].items()}
        options = {
            name: value
            for name, value in self._request.given.items()
            if not name.startswith("subscribe")
        }
        # Spark Connect has no context, and does not say how many tasks it runs at a time.
        context = getattr(self._spark, "sparkContext", None)
        options.setdefault("minPartitions", str(2 * context.defaultParallelism if context else 1))
        options |= {
            "assign": json.dumps(assigned),
            **{name: json.dumps(value) for name, value in parts.items()},
        }
        rows = self._spark.read.format("pylogbroker").options(**options).load()
        return rows if self._request.transform is None else self._request.transform(rows)

    def _loaded(self, written: DataFrame | None, replaced: Replaced) -> DataFrame | None:
        """Of what was written, what has come of the logs."""
        return (
            written
            if written is None or replaced.kept is None
            else written.where(within(self._plan.ranges))
        )

    def _count(self, loaded: DataFrame | None) -> Counts:
        if loaded is None:
            return Counts({}, (), {})
        return countRows(
            loaded, {each.place: each for each in self._plan.ranges}, self._request.windowMs
        )

    def _lost(self, loaded: DataFrame | None) -> tuple[str, ...]:
        """What was deleted between the plan and the reading; where that is an error, there is none of it."""
        return (
            () if self._request.source.failOnDataLoss else dataLossNotes(loaded, self._plan.ranges)
        )

    def _ranges(self, counts: Counts, replaced: Replaced) -> tuple[LoadedRange, ...]:
        return tuple(
            LoadedRange(
                *place,
                fromOffset,
                toOffset,
                counts.rows.get(place, 0),
                replaced.counts.rows.get(place, 0),
            )
            for place, fromOffset, toOffset, _again in self._plan.ranges
        )


def _counted(fresh: DataFrame | None) -> StructType:
    """The columns to read back: where a transform has left C{nextOffset} out, nothing can be said of what was lost."""
    names = [] if fresh is None else fresh.columns
    return StructType(
        [*COUNTED, *(StructField(name, LongType()) for name in ("nextOffset",) if name in names)]
    )


def _joined(fresh: DataFrame | None, kept: DataFrame | None) -> DataFrame | None:
    if fresh is None or kept is None:
        return kept if fresh is None else fresh
    return fresh.unionByName(kept, allowMissingColumns=True)


def _ruleText(eventTime: str | Column | None) -> str:
    return DEFAULT_RULE if eventTime is None else f"{eventTime}, else the time of the run"
