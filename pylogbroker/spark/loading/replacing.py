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

from pylogbroker.spark.loading.counting import Counts, countRows, within
from pylogbroker.spark.loading.reading import readFiles
from pylogbroker.warehouse.ranges import LoadPlan
from pylogbroker.warehouse.table import Table

OFFSET_MAX = 2**63 - 1


class Replaced(NamedTuple):
    """
    What goes.

    @ivar kept: rows that stay and lie in the same files; L{None}: no file is touched.
    @ivar files: those files, below the table's folder.
    @ivar counts: of the rows that go.
    """

    kept: DataFrame | None
    files: tuple[str, ...]
    counts: Counts


def findReplaced(spark: SparkSession, found: Table, plan: LoadPlan, windowMs: int) -> Replaced:
    """
    Look for the rows of ranges that are loaded again.
    """
    again = [each for each in plan.ranges if each.isAgain]
    files = found.files() if again else []
    if not files:
        return _NOTHING
    touched = readFiles(spark, found, files).where(within(again)).select(sql.input_file_name().alias("file")).distinct().collect()
    paths = sorted(unquote(urlsplit(row["file"]).path) for row in touched)
    if not paths:
        return _NOTHING
    rows = readFiles(spark, found, paths)
    gone = {each.place: each._replace(toOffset=OFFSET_MAX) for each in again}
    counts = countRows(rows.where(within(again)), gone, windowMs)
    return Replaced(rows.where(~within(again)), tuple(path.removeprefix(found.path + "/") for path in paths), counts)


_NOTHING = Replaced(None, (), Counts({}, (), {}))
