"""
Rows that go because their range is loaded again.

They may lie in any file of the topic, beside others, for instance behind a compaction. The files that have some of them are taken out of the table, and
what else is in these is written again with the new rows; all of that is one commit.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from pylogbroker.lake.loadplan import LoadPlan
from pylogbroker.lake.table import Table, topicOf
from pylogbroker.spark.loader.reading import readFiles
from pylogbroker.spark.loader.rowcounts import Counts, countRows, within
from pylogbroker.spark.loader.tableschema import COUNTED

OFFSET_MAX = 2**63 - 1


class Replaced(NamedTuple):
    """
    What goes.

    @ivar kept: rows that stay and lie in the same files; L{None}: there are none.
    @ivar files: those files, below the table's folder.
    @ivar counts: of the rows that go.
    @ivar emptied: topics of which no row stays.
    """

    kept: DataFrame | None
    files: tuple[str, ...]
    counts: Counts
    emptied: frozenset[str] = frozenset()


def findReplaced(spark: SparkSession, found: Table, plan: LoadPlan, windowMs: int) -> Replaced:
    """
    Look for the rows of ranges that are loaded again. Of files in which nothing else is, nothing but what is counted is read: so what nobody can read any more
    can be loaded again.
    """
    again = [each for each in plan.ranges if each.isAgain]
    files = found.files() if again else []
    if not files:
        return _NOTHING
    rows = readFiles(spark, found, files, COUNTED)
    parts = (
        rows.groupBy(sql.input_file_name().alias("file"))
        .agg(sql.count_if(within(again)).alias("gone"), sql.count("*").alias("all"))
        .collect()
    )
    touched = {
        unquote(urlsplit(row["file"]).path): row["gone"] < row["all"]
        for row in parts
        if row["gone"]
    }
    if not touched:
        return _NOTHING
    gone = {each.place: each._replace(toOffset=OFFSET_MAX) for each in again}
    counts = countRows(
        readFiles(spark, found, sorted(touched), COUNTED).where(within(again)), gone, windowMs
    )
    shared = sorted(path for path, hasOthers in touched.items() if hasOthers)
    kept = readFiles(spark, found, shared).where(~within(again)) if shared else None
    staying = {_topic(found, path) for path in files if touched.get(path, True)}
    emptied = frozenset(_topic(found, path) for path in touched) - staying
    return Replaced(
        kept,
        tuple(path.removeprefix(found.path + "/") for path in sorted(touched)),
        counts,
        emptied,
    )


def _topic(found: Table, path: str) -> str:
    return topicOf(path.removeprefix(found.path + "/"))


_NOTHING = Replaced(None, (), Counts({}, (), {}))
