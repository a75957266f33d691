"""
A table as a DataFrame, with exactly the rows of the committed runs.

C{spark.read.parquet(folder)} has the same, as long as no run is just between its commit and its end; and it reads a topic called 0012 as the number 12,
since Spark guesses the types of folders' names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from pylogbroker.commitlog.files import RealFileSystem
from pylogbroker.errors import TableError
from pylogbroker.warehouse.table import STAGING, Table
from pylogbroker.warehouse.writing import localPath


def tableAt(path: str | os.PathLike[str]) -> Table:
    """
    @raise TableError: it is no path of this machine's file systems.
    """
    return Table(os.path.abspath(localPath(os.fspath(path))), RealFileSystem())


def table(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """
    All rows that are committed now. Runs that end later do not change it; a compaction that ends before it is read takes its files away, which is an error
    then.

    @raise TableError: there is no such table, or nothing was ever loaded to it.
    """
    found = tableAt(path)
    files = found.files()
    if not files:
        raise TableError(found.path, "nothing was ever loaded to this table")
    return readFiles(spark, found, files)


def readFiles(spark: SparkSession, found: Table, files: Sequence[str], *, isOneRun: bool = False) -> DataFrame:
    """
    @param files: of this table, staged or published; absolute paths; at least one.
    @param isOneRun: all are of one run, and have the same columns; then Spark need not look into each of them before it begins.
    """
    byRoot: dict[str, list[str]] = {}
    for file in files:
        byRoot.setdefault(_root(found, file), []).append(file)
    parts = [_readBelow(spark, root, some, isOneRun) for root, some in sorted(byRoot.items())]
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)


def _root(found: Table, file: str) -> str:
    """The folder above the one of the topic."""
    staging = found.at(STAGING) + "/"
    return file[: file.index("/topic=", len(staging))] if file.startswith(staging) else found.path


def _readBelow(spark: SparkSession, root: str, files: Sequence[str], isOneRun: bool) -> DataFrame:
    def reader() -> DataFrameReader:
        return spark.read.option("basePath", root).option("mergeSchema", str(not isOneRun).lower())

    guessed = reader().parquet(*files).schema
    known = StructType([StructField("topic", StringType()) if field.name == "topic" else field for field in guessed])
    return reader().schema(known).parquet(*files)
