"""
The files that a run writes to its staging folder, and their rows by partition and time window.

A run writes one file for each topic and hour, or several if the hour is large: the hint
C{rebalance} lets Spark merge small partitions and split large ones.

Spark counts the rows that it writes, and the files are checked against that count. Where the lock
of a table does not work, another run may have removed some files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import pyarrow.parquet as parquet
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sql

from pylogbroker.errors import LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.lake.manifest import WINDOW_COUNT_MAX, WINDOWS_SIZE_MAX, TableFile, WindowCount
from pylogbroker.lake.table import SUFFIX, fileName
from pylogbroker.records.columns import sizeBetween
from pylogbroker.spark.loader.tablereader import PARTITION_COLUMNS
from pylogbroker.types import BrokerPartition, PartitionId

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_ORDER = (*PARTITION_COLUMNS, "broker", "partition", "offset")
_DATA = "data"


def writeStaged(rows: DataFrame, staging: str, compression: str) -> int:
    """
    Write the rows of a table to a run's staging folder.

    @return: the number of rows.
    """
    written = Observation()
    # Behind the shuffle, where a repeated task counts once; before the sort, whose order counts.
    counted = rows.hint("rebalance", *PARTITION_COLUMNS).observe(
        written, sql.count(sql.lit(1)).alias("count")
    )
    spread = counted.sortWithinPartitions(*_ORDER)
    spread.write.partitionBy(*PARTITION_COLUMNS).option("compression", compression).parquet(
        f"{staging}/{_DATA}"
    )
    return int(written.get.get("count", 0))


def stagedFiles(staging: str, number: int, rowCount: int) -> tuple[TableFile, ...]:
    """
    The files that were written, with their final names.

    @param number: of the run.
    @param rowCount: the number of rows that they must have.
    @raise LoadError: a file is unreadable, or the number of rows is wrong.
    """
    root = f"{staging}/{_DATA}"
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("_"))
        found += [
            os.path.relpath(os.path.join(folder, name), root)
            for name in sorted(names)
            if name.endswith(SUFFIX) and not name.startswith(("_", "."))
        ]
    files = tuple(_describe(root, path, number, index) for index, path in enumerate(found))
    foundCount = sum(each.rowCount for each in files)
    if foundCount != rowCount:
        raise LoadError(
            f"{staging}: {rowCount} rows were written, and its files have {foundCount};"
            " nothing was committed. Does another run write to this table?"
        )
    return files


def _describe(root: str, path: str, number: int, index: int) -> TableFile:
    full = os.path.join(root, path)
    try:
        rowCount = parquet.read_metadata(full).num_rows
    except Exception as error:  # Arrow raises errors of many types
        raise LoadError(f"{full}: it cannot be read back: {error}") from error
    return TableFile(
        f"{os.path.dirname(path)}/{fileName(number, index, path)}",
        f"{_DATA}/{path}",
        rowCount,
        os.path.getsize(full),
    )


# -- counts


class RowCounts(NamedTuple):
    """
    Numbers of rows.

    @ivar rows: by partition.
    @ivar arrivals: by topic, rows without an event time.
    @ivar leftOutCount: rows missing in C{windows}.
    """

    rows: Mapping[PartitionId, int]
    windows: tuple[WindowCount, ...]
    arrivals: Mapping[str, int]
    leftOutCount: int = 0


def inRanges(ranges: Iterable[PlannedRange]) -> Column:
    """Whether a row comes of one of these ranges, or of what is behind it in the partition."""
    found = sql.lit(False)
    for (topic, (broker, partition)), fromOffset, _to, _again in ranges:
        found = found | (
            (sql.col("topic") == topic)
            & (sql.col("broker") == broker)
            & (sql.col("partition") == partition)
            & (sql.col("offset") >= fromOffset)
        )
    return found


def countRows(
    rows: DataFrame,
    ranges: Mapping[PartitionId, PlannedRange],
    windowMs: int,
    lineCountMax: int = WINDOW_COUNT_MAX,
    sizeMax: int = WINDOWS_SIZE_MAX,
) -> RowCounts:
    """
    @param rows: of a table.
    @param ranges: that the rows come of.
    @param lineCountMax: the most window counts. If there are more, hosts are left out, and then the
        smallest windows.
    @param sizeMax: bytes of the window counts; if there are more, hosts are left out.
    @raise LoadError: a row comes of none of the ranges: a bug that must not be committed.
    """
    found = rows.groupBy("topic", "broker", "partition").agg(
        sql.count("*").alias("count"),
        sql.min("offset").alias("first"),
        sql.max("offset").alias("last"),
        sql.count_if("isArrival").alias("arrivals"),
    )
    counts: dict[PartitionId, int] = {}
    arrivals: dict[str, int] = {}
    for row in found.collect():
        key = PartitionId(row["topic"], BrokerPartition(row["broker"], row["partition"]))
        planned = ranges.get(key)
        if planned is None or row["first"] < planned.fromOffset or row["last"] >= planned.toOffset:
            raise LoadError(
                f"{key}: rows of offsets {row['first']} to {row['last']} were written, which are"
                f" not {planned}; nothing was committed"
            )
        counts[key] = row["count"]
        arrivals[key.topic] = arrivals.get(key.topic, 0) + row["arrivals"]
    windows = _windows(rows, windowMs, lineCountMax, sizeMax)
    timedCount = sum(counts.values()) - sum(arrivals.values())
    return RowCounts(
        counts,
        windows,
        {topic: count for topic, count in arrivals.items() if count},
        timedCount - sum(each.rowCount for each in windows),
    )


def dataLossNotes(rows: DataFrame | None, ranges: Iterable[PlannedRange]) -> tuple[str, ...]:
    """
    A sentence for each range of which messages were deleted while it was read.

    The entries of a range follow one another, so the rows cover the whole log between the ends of
    the range, or something is gone. (All but the last message of a compressed set have their own
    offset as the next one, and cover nothing.)

    @param rows: of these ranges, as they were written; L{None}: there are none.
    """
    covered: dict[PartitionId, int] = {}
    if rows is not None:
        if "nextOffset" not in rows.columns:
            return ()  # a transform has dropped it
        size: Any = sizeBetween(cast("Any", sql.col("offset")), cast("Any", sql.col("nextOffset")))
        found = rows.groupBy("topic", "broker", "partition").agg(sql.sum(size).alias("size"))
        covered = {
            PartitionId(row["topic"], BrokerPartition(row["broker"], row["partition"])): row["size"]
            for row in found.collect()
        }
    missing = [
        (each, sizeBetween(each.fromOffset, each.toOffset) - covered.get(each.partition, 0))
        for each in ranges
    ]
    return tuple(
        f"{each.partition}: of offsets {each.fromOffset} to {each.toOffset}, {size} bytes have no"
        " rows: they were deleted before they were read"
        for each, size in missing
        if size > 0
    )


def _windows(
    rows: DataFrame, windowMs: int, lineCountMax: int, sizeMax: int
) -> tuple[WindowCount, ...]:
    startMs = sql.floor(sql.unix_millis("eventTime") / windowMs) * windowMs
    timed = rows.where(~sql.col("isArrival")).select(
        "topic",
        startMs.cast("long").alias("startMs"),
        sql.coalesce("host", sql.lit("")).alias("host"),
    )
    found = timed.groupBy("topic", "startMs", "host").count().limit(lineCountMax + 1).collect()
    if len(found) > lineCountMax or len(json.dumps(found)) > sizeMax:
        counted = (
            timed.groupBy("topic", "startMs").count().orderBy(sql.desc("count")).limit(lineCountMax)
        )
        found = counted.select("topic", "startMs", sql.lit("").alias("host"), "count").collect()
    return tuple(
        sorted(
            WindowCount(row["topic"], row["startMs"], row["host"], row["count"]) for row in found
        )
    )


def netCounts(
    added: RowCounts, removed: RowCounts
) -> tuple[tuple[WindowCount, ...], dict[str, int]]:
    """Windows and arrivals of a run that has replaced rows by others."""
    windows: dict[tuple[str, int, str], int] = {}
    arrivals: dict[str, int] = {}
    for counts, sign in ((added, 1), (removed, -1)):
        for topic, startMs, host, count in counts.windows:
            windows[topic, startMs, host] = windows.get((topic, startMs, host), 0) + sign * count
        for topic, count in counts.arrivals.items():
            arrivals[topic] = arrivals.get(topic, 0) + sign * count
    return tuple(WindowCount(*key, count) for key, count in sorted(windows.items()) if count), {
        topic: count for topic, count in arrivals.items() if count
    }
