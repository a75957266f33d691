"""
What a run has written, counted from the files themselves: for its manifest, and as a last look before the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from pylogbroker.errors import LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.lake.manifest import WINDOW_COUNT_MAX, WINDOWS_SIZE_MAX, WindowCount
from pylogbroker.types import BrokerPartition, PartitionId


class Counts(NamedTuple):
    """
    Of some rows.

    @ivar rows: by partition.
    @ivar arrivals: by topic, those without an event time.
    @ivar leftOutCount: those that C{windows} does not have.
    """

    rows: Mapping[PartitionId, int]
    windows: tuple[WindowCount, ...]
    arrivals: Mapping[str, int]
    leftOutCount: int = 0


def within(ranges: Iterable[PlannedRange]) -> Column:
    """Whether a row comes of one of these, or of what is behind it in the same partition."""
    each = [
        (sql.col("topic") == place.topic) & (sql.col("broker") == place.partition.broker) & (sql.col("partition") == place.partition.partition)
        & (sql.col("offset") >= fromOffset)
        for place, fromOffset, _to, _again in ranges
    ]  # fmt: skip
    return reduce(lambda left, right: left | right, each, sql.lit(False))


def countRows(
    rows: DataFrame,
    ranges: Mapping[PartitionId, PlannedRange],
    windowMs: int,
    lineCountMax: int = WINDOW_COUNT_MAX,
    sizeMax: int = WINDOWS_SIZE_MAX,
) -> Counts:
    """
    @param rows: of a table.
    @param ranges: what they come of.
    @param lineCountMax: windows and hosts; with more, hosts are left out, and of the windows that are still too many the smallest.
    @param sizeMax: bytes of these lines in a manifest; with more, hosts are left out.
    @raise LoadError: a row comes of none of the ranges: a bug, here or in Spark, that must not become a commit.
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
        place = PartitionId(row["topic"], BrokerPartition(row["broker"], row["partition"]))
        planned = ranges.get(place)
        if planned is None or row["first"] < planned.fromOffset or row["last"] >= planned.toOffset:
            raise LoadError(
                f"{place}: rows of offsets {row['first']} to {row['last']} were written, which are not {planned}; nothing was committed"
            )
        counts[place] = row["count"]
        arrivals[place.topic] = arrivals.get(place.topic, 0) + row["arrivals"]
    windows = _windows(rows, windowMs, lineCountMax, sizeMax)
    known = sum(counts.values()) - sum(arrivals.values())
    return Counts(
        counts,
        windows,
        {topic: count for topic, count in arrivals.items() if count},
        known - sum(each.rowCount for each in windows),
    )


def dataLossNotes(rows: DataFrame | None, ranges: Iterable[PlannedRange]) -> tuple[str, ...]:
    """
    What is missing of ranges though they were read to their ends, since it was deleted in between: a sentence for each partition.

    Offsets are bytes of the log, and the entries of a range lie behind one another; so what all rows have come of is as long as the range, or something is
    gone. (All but the last message of a compressed set lead back to its beginning, and add nothing.)

    @param rows: of these ranges, as they were written; L{None}: there are none.
    """
    sizes: dict[PartitionId, int] = {}
    if rows is not None:
        if "nextOffset" not in rows.columns:
            return ()  # a transform has left it out
        found = rows.groupBy("topic", "broker", "partition").agg(
            sql.sum(sql.col("nextOffset") - sql.col("offset")).alias("size")
        )
        sizes = {
            PartitionId(row["topic"], BrokerPartition(row["broker"], row["partition"])): row["size"]
            for row in found.collect()
        }
    missing = [(each, each.size - sizes.get(each.place, 0)) for each in ranges]
    return tuple(
        f"{each.place}: of offsets {each.fromOffset} to {each.toOffset}, {size} bytes have given no rows: they were deleted before they were read"
        for each, size in missing if size > 0
    )  # fmt: skip


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


def difference(added: Counts, removed: Counts) -> tuple[tuple[WindowCount, ...], dict[str, int]]:
    """Windows and arrivals of a run that has put rows in the place of others."""
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
