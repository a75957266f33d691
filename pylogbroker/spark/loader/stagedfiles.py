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
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from glob import glob
from typing import NamedTuple

import pyarrow.parquet as parquet
from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as sql

from pylogbroker.errors import ConfigurationError, LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.lake.manifest import WINDOW_COUNT_MAX, WINDOWS_SIZE_MAX, TableFile, WindowCount
from pylogbroker.lake.table import SUFFIX, fileName
from pylogbroker.spark.loader.partitioncolumns import (
    KAFKA07_COLUMNS,
    isOf,
    partitionColumns,
    partitionOf,
)
from pylogbroker.spark.loader.tablereader import PARTITION_COLUMNS
from pylogbroker.types import AnyPartition

COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_DATA = "data"


def checkCompression(name: str) -> None:
    """@raise ConfigurationError: it is not one of L{COMPRESSIONS}."""
    if name not in COMPRESSIONS:
        raise ConfigurationError(f"compression={name}: it must be one of {', '.join(COMPRESSIONS)}")


def writeStaged(
    rows: DataFrame,
    staging: str,
    compression: str,
    columns: Sequence[str] = KAFKA07_COLUMNS,
) -> int:
    """
    Write the rows of a table to a run's staging folder.

    @param columns: those that name a partition.
    @return: the number of rows.
    """
    written = Observation()
    # Behind the shuffle, where a repeated task counts once; before the sort, whose order counts.
    counted = rows.hint("rebalance", *PARTITION_COLUMNS).observe(
        written, sql.count(sql.lit(1)).alias("count")
    )
    spread = counted.sortWithinPartitions(*PARTITION_COLUMNS, *columns, "offset")
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
    found = glob(f"**/*{SUFFIX}", root_dir=f"{staging}/{_DATA}", recursive=True)
    files = []
    for index, path in enumerate(sorted(path for path in found if "/_" not in f"/{path}")):
        staged = f"{_DATA}/{path}"
        full = f"{staging}/{staged}"
        try:
            fileRowCount = parquet.read_metadata(full).num_rows
        except Exception as error:  # Arrow raises errors of many types
            raise LoadError(f"{full}: it cannot be read back: {error}") from error
        final = f"{os.path.dirname(path)}/{fileName(number, index, path)}"
        files.append(TableFile(final, staged, fileRowCount, os.path.getsize(full)))
    foundCount = sum(each.rowCount for each in files)
    if foundCount != rowCount:
        raise LoadError(
            f"{staging}: {rowCount} rows were written, and its files have {foundCount};"
            " nothing was committed. Does another run write to this table?"
        )
    return tuple(files)


# -- counts


class RowCounts(NamedTuple):
    """
    Numbers of rows.

    @ivar rows: by partition.
    @ivar arrivals: by topic, rows without an event time.
    @ivar leftOutCount: rows missing in C{windows}.
    """

    rows: Mapping[AnyPartition, int]
    windows: tuple[WindowCount, ...]
    arrivals: Mapping[str, int]
    leftOutCount: int = 0


NO_ROWS = RowCounts({}, (), {})


def inRanges(ranges: Iterable[PlannedRange]) -> Column:
    """Whether a row lies in one of the ranges, or behind it in the partition."""
    found = sql.lit(False)
    for partition, fromOffset, _to, _again in ranges:
        found = found | (isOf(partition) & (sql.col("offset") >= fromOffset))
    return found


def countRows(
    rows: DataFrame,
    ranges: Collection[PlannedRange],
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
    found = byPartition(
        rows,
        ranges,
        sql.count("*").alias("count"),
        sql.min("offset").alias("first"),
        sql.max("offset").alias("last"),
        sql.count_if("isArrival").alias("arrivals"),
    )
    wanted = {each.partition: each for each in ranges}
    arrivals = Counter[str]()
    for key, row in found.items():
        planned = wanted.get(key)
        if planned is None or row["first"] < planned.fromOffset or row["last"] >= planned.toOffset:
            raise LoadError(
                f"{key}: rows of offsets {row['first']} to {row['last']} were written, which are"
                f" not {planned}; nothing was committed"
            )
        arrivals[key.topic] += row["arrivals"]
    counts = {key: row["count"] for key, row in found.items()}
    windows = _windows(rows, windowMs, lineCountMax, sizeMax)
    timedCount = sum(counts.values()) - arrivals.total()
    return RowCounts(
        counts, windows, +arrivals, timedCount - sum(each.rowCount for each in windows)
    )


def byPartition(
    rows: DataFrame, ranges: Iterable[PlannedRange], *columns: Column
) -> dict[AnyPartition, Row]:
    """
    Aggregates of rows, by partition.

    @param ranges: of the run, which tell how its rows name a partition.
    """
    names = partitionColumns(each.partition for each in ranges)
    found = rows.groupBy("topic", *names).agg(*columns).collect()
    return {partitionOf(row): row for row in found}


def _windows(
    rows: DataFrame, windowMs: int, lineCountMax: int, sizeMax: int
) -> tuple[WindowCount, ...]:
    startMs = sql.floor(sql.unix_millis("eventTime") / windowMs) * windowMs
    timed = rows.where(~sql.col("isArrival")).select(
        "topic",
        startMs.cast("long").alias("startMs"),
        sql.coalesce("host", sql.lit("")).alias("host"),
    )
    keys = ("topic", "startMs", "host")
    found = timed.groupBy(*keys).count().limit(lineCountMax + 1).collect()
    if len(found) > lineCountMax or len(json.dumps(found)) > sizeMax:
        counted = timed.withColumn("host", sql.lit("")).groupBy(*keys).count()
        found = counted.orderBy(sql.desc("count")).limit(lineCountMax).collect()
    return tuple(sorted(WindowCount(*row) for row in found))


def netCounts(
    added: RowCounts, removed: RowCounts
) -> tuple[tuple[WindowCount, ...], dict[str, int]]:
    """Windows and arrivals of a run that has replaced rows by others."""
    windows = Counter[tuple[str, int, str]]()
    arrivals = Counter[str]()
    for counts, sign in ((added, 1), (removed, -1)):
        for topic, startMs, host, count in counts.windows:
            windows[topic, startMs, host] += sign * count
        for topic, count in counts.arrivals.items():
            arrivals[topic] += sign * count
    return tuple(WindowCount(*key, count) for key, count in sorted(windows.items()) if count), {
        topic: count for topic, count in arrivals.items() if count
    }
