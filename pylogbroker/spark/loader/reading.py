"""
A table as a DataFrame, with exactly the rows of the committed runs.

C{spark.read.parquet(folder)} has the same, as long as no run is just between its commit and its end; and it reads a topic called 0012 as the number 12,
since Spark guesses the types of folders' names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pylogbroker.errors import TableError
from pylogbroker.lake.commit import localPath
from pylogbroker.lake.table import STAGING, Table, topicOf
from pylogbroker.spark.loader.sparkerrors import reason
from pylogbroker.spark.loader.tableschema import tableColumns
from pylogbroker.storage.files import RealFileSystem


def tableAt(path: str | os.PathLike[str]) -> Table:
    """
    @raise TableError: it is no path of this machine's file systems.
    """
    return Table(os.path.abspath(localPath(os.fspath(path))), RealFileSystem())


def table(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """
    All rows that are committed now. Runs that end later add nothing to it; but one that ends before it is read may take files away (a compaction, rows that
    were loaded again) or give them their final names (a run that was just between its commit and its end): an error of Spark's then, and it must be opened
    again.

    @raise TableError: there is no such table, or nothing was ever loaded to it, or it cannot be read.
    """
    found = tableAt(path)
    files = found.files()
    if not files:
        raise TableError(found.path, "nothing was ever loaded to this table")
    try:
        return readFiles(spark, found, files)
    except PySparkException as error:
        raise TableError(found.path, f"Spark cannot read it: {reason(str(error))}") from error


def readFiles(
    spark: SparkSession, found: Table, files: Sequence[str], columns: StructType | None = None
) -> DataFrame:
    """
    @param files: of this table, staged or published; absolute paths; at least one.
    @param columns: what to read, beside topic, date and hour; L{None}: all that the last manifest knows of, and of topics of which it does not, what Spark
        finds in their files.
    @raise TableError: the columns in the manifest are none.
    """
    last = found.last() if columns is None else None
    known = last.columns if last else {}
    byRoot: dict[tuple[str, bool], list[str]] = {}
    for file in files:
        root = _root(found, file)
        byRoot.setdefault((root, topicOf(file[len(root) + 1 :]) in known), []).append(file)
    whole = tableColumns(known) if columns is None else columns
    parts = [
        _readBelow(spark, root, some, whole if isKnown or columns is not None else None)
        for (root, isKnown), some in sorted(byRoot.items())
    ]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)


def _root(found: Table, file: str) -> str:
    """The folder above the one of the topic."""
    staging = found.at(STAGING) + "/"
    return file[: file.index("/topic=", len(staging))] if file.startswith(staging) else found.path


def _readBelow(
    spark: SparkSession, root: str, files: Sequence[str], columns: StructType | None
) -> DataFrame:
    """A topic is always a text: Spark guesses the types of folders' names."""
    reader = spark.read.option("basePath", root)
    if columns is None:
        columns = reader.option("mergeSchema", "true").parquet(*files).schema
    fields = [field for field in columns if field.name != "topic"]
    return (
        spark.read.option("basePath", root)
        .schema(StructType([*fields, StructField("topic", StringType())]))
        .parquet(*files)
    )
