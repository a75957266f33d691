"""
A table as a DataFrame, with exactly the rows of the committed runs; and the columns of a table.

C{spark.read.parquet(folder)} has the same rows, except between the commit and the end of a run. It
also reads a topic called 0012 as the number 12, since Spark guesses types from folder names.

A run may add columns and widen columns (C{int} to C{long}, as an evolving schema does). A run that
would give a column another type is refused before it reads anything, since the table could not be
read afterwards. So each manifest has the columns of each topic, of all runs so far. They also spare
Spark a look into each file; and of files that differ, Spark could not merge the types.

The manifest has the columns by topic, so that a topic whose rows are all loaded again starts anew.
But a column has one type in the table.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructField,
    StructType,
)

from pylogbroker.errors import LoadError, TableError
from pylogbroker.lake.commit import localPath
from pylogbroker.lake.table import STAGING, Table, topicOf
from pylogbroker.spark.loader.jobprogress import reason
from pylogbroker.storage.files import RealFileSystem

PARTITION_COLUMNS = ("topic", "date", "hour")
"""Columns that the names of folders hold."""

_WIDER: tuple[tuple[type[DataType], ...], ...] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
)
"""Types that Spark reads as the last one of each row."""


def tableAt(path: str | os.PathLike[str]) -> Table:
    """
    @raise TableError: it is not a path on this machine.
    """
    return Table(os.path.abspath(localPath(os.fspath(path))), RealFileSystem())


def table(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """
    All rows that are committed now. Later runs add nothing to it. A run that ends before it is read
    may remove files (a compaction, rows that were loaded again) or rename files (a run between its
    commit and its end). Spark raises an error then, and the table must be opened again.

    @raise TableError: there is no such table, it is empty, or it cannot be read.
    """
    found = tableAt(path)
    files = found.files()
    if not files:
        raise TableError(found.folder, "nothing was ever loaded to this table")
    try:
        return readFiles(spark, found, files)
    except PySparkException as error:
        raise TableError(found.folder, f"Spark cannot read it: {reason(str(error))}") from error


def readFiles(
    spark: SparkSession, found: Table, files: Sequence[str], columns: StructType | None = None
) -> DataFrame:
    """
    @param files: of this table, staged or published; absolute paths; at least one.
    @param columns: what to read, besides topic, date and hour; L{None}: the columns of the last
        manifest, and for topics that it does not know, the columns that Spark finds in the files.
    @raise TableError: the manifest has columns that are not columns.
    """
    known = found.last().columns if columns is None else {}
    staging = found.path(STAGING) + "/"
    byRoot: dict[tuple[str, bool], list[str]] = {}
    for file in files:
        root = found.folder
        if file.startswith(staging):
            root = file[: file.index("/topic=", len(staging))]
        isKnown = columns is not None or topicOf(file[len(root) + 1 :]) in known
        byRoot.setdefault((root, isKnown), []).append(file)
    whole = tableColumns(known) if columns is None else columns
    return union(
        _readBelow(spark, root, some, whole if isKnown else None)
        for (root, isKnown), some in sorted(byRoot.items())
    )


def union(parts: Iterable[DataFrame]) -> DataFrame:
    """All rows, with the columns of all; at least one part."""
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)


def _readBelow(
    spark: SparkSession, root: str, files: Sequence[str], columns: StructType | None
) -> DataFrame:
    """Read files with the topic as a string, whatever Spark would guess."""
    reader = spark.read.option("basePath", root)
    if columns is None:
        columns = reader.option("mergeSchema", "true").parquet(*files).schema
    fields = [field for field in columns if field.name != "topic"]
    return reader.schema(StructType(fields).add("topic", "string")).parquet(*files)


# -- columns


def dataColumns(schema: StructType) -> StructType:
    """A schema without the columns that folder names hold."""
    return StructType([field for field in schema if field.name not in PARTITION_COLUMNS])


def encodeColumns(columns: StructType) -> str:
    """Columns as a manifest has them."""
    return json.dumps(columns.jsonValue(), separators=(",", ":"))


def tableColumns(columns: Mapping[str, str]) -> StructType:
    """
    The columns of a whole table.

    @param columns: by topic, as a manifest has them.
    @raise TableError: they cannot be decoded or merged: this package has not written them.
    """
    try:
        return reduce(
            mergeSchemas,
            (StructType.fromJson(json.loads(text)) for text in sorted(set(columns.values()))),
            StructType(),
        )
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException, LoadError) as error:
        raise TableError("columns", f"the manifest has invalid columns: {error}") from error


def evolve(
    columns: Mapping[str, str], topics: Collection[str], fresh: StructType, emptied: Collection[str]
) -> dict[str, str]:
    """
    The columns of a table after a run.

    @param columns: before the run.
    @param topics: that the run loads.
    @param fresh: the columns of the run.
    @param emptied: topics that keep no earlier row.
    @raise LoadError: the run would change a column's type; the text names the column.
    """
    after = {topic: text for topic, text in columns.items() if topic not in emptied}
    mergeSchemas(tableColumns(after), fresh)
    for topic in topics:
        before = tableColumns({topic: after[topic]} if topic in after else {})
        after[topic] = encodeColumns(mergeSchemas(before, fresh))
    return after


def mergeSchemas(left: StructType, right: StructType, path: str = "") -> StructType:
    """
    The columns of both, with the wider types. Names that differ in case only are equal, as in
    Spark.

    @param path: of the column that has these fields.
    @raise LoadError: a column has two types, neither of which is wider.
    """
    later = {field.name.casefold(): field for field in right}
    fields = []
    for field in left:
        other = later.pop(field.name.casefold(), field)
        fields.append(
            StructField(field.name, _wider(field.dataType, other.dataType, path + field.name))
        )
    return StructType(
        [*fields, *(StructField(field.name, field.dataType) for field in later.values())]
    )


def _wider(left: DataType, right: DataType, path: str) -> DataType:
    if isinstance(left, StructType) and isinstance(right, StructType):
        return mergeSchemas(left, right, path + ".")
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return ArrayType(_wider(left.elementType, right.elementType, path + "[]"))
    if isinstance(left, MapType) and isinstance(right, MapType):
        return MapType(
            _wider(left.keyType, right.keyType, path + "{key}"),
            _wider(left.valueType, right.valueType, path + "{}"),
        )
    if left == right:
        return left
    for ladder in _WIDER:
        if type(left) in ladder and type(right) in ladder:
            return max(left, right, key=lambda each: ladder.index(type(each)))
    raise LoadError(
        f"column {path} is of type {left.simpleString()} in the table and {right.simpleString()} in"
        " this run, and nothing was loaded: a column has one type in a table. Rename the column,"
        " load to another folder, or load all of it again from the earliest"
    )
