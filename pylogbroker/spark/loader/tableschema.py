"""
Which columns a table has.

A run may add columns and make one wider (C{int} to C{long}, say, as a schema that evolves does); one that would give a column another type is refused before
it has read a byte, since nobody could read the table afterwards. For that, each manifest keeps the columns of each topic, of the runs so far. Spark is then
told what to read, and need not look into each file; nor would it find a type for two files that differ.

The columns are kept by topic, so that a topic whose rows are all loaded again begins anew. But a column has one type in the table.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)  # fmt: skip

from pylogbroker.errors import LoadError, TableError
from pylogbroker.spark.loader.staging import PARTITION_COLUMNS

COUNTED = StructType(
    [
        StructField("topic", StringType()), StructField("broker", IntegerType()), StructField("partition", IntegerType()), StructField("offset", LongType()),
        StructField("eventTime", TimestampType()), StructField("isArrival", BooleanType()), StructField("host", StringType()),
    ]
)  # fmt: skip
"""What rows are counted by, which each table has."""

_WIDER: tuple[tuple[type[DataType], ...], ...] = (
    (ByteType, ShortType, IntegerType, LongType),
    (FloatType, DoubleType),
)
"""What Spark reads as the wider one."""


def dataColumns(schema: StructType) -> StructType:
    """Without those that are in the names of folders."""
    return StructType([field for field in schema if field.name not in PARTITION_COLUMNS])


def encodeColumns(columns: StructType) -> str:
    """For a manifest."""
    return json.dumps(columns.jsonValue(), separators=(",", ":"))


def tableColumns(columns: Mapping[str, str]) -> StructType:
    """
    All of a table.

    @param columns: by topic, as a manifest has them.
    @raise TableError: they are none, or do not go together: this library has not written them.
    """
    try:
        return reduce(
            joined,
            (StructType.fromJson(json.loads(text)) for text in sorted(set(columns.values()))),
            StructType(),
        )
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException, LoadError) as error:
        raise TableError("columns", f"the manifest has some that are none: {error}") from error


def evolve(
    columns: Mapping[str, str], topics: Collection[str], fresh: StructType, emptied: Collection[str]
) -> dict[str, str]:
    """
    Of a table with a run.

    @param columns: before it.
    @param topics: what it loads.
    @param fresh: what it has of each.
    @param emptied: topics of which no earlier row stays.
    @raise LoadError: the run has a column of another type; the text names it.
    """
    after = {topic: text for topic, text in columns.items() if topic not in emptied}
    joined(tableColumns(after), fresh)
    for topic in topics:
        after[topic] = encodeColumns(
            joined(tableColumns({topic: after[topic]} if topic in after else {}), fresh)
        )
    return after


def joined(left: StructType, right: StructType, path: str = "") -> StructType:
    """
    The columns of two, with the wider types; names that differ in their case only are one, as they are for Spark.

    @param path: of the column that has these fields.
    @raise LoadError: a column has two types, neither of which is the wider.
    """
    later = {field.name.casefold(): field for field in right}
    fields = []
    for field in left:
        other = later.pop(field.name.casefold(), field)
        fields.append(
            StructField(field.name, _wider(field.dataType, other.dataType, path + field.name), True)
        )
    return StructType(
        [*fields, *(StructField(field.name, field.dataType, True) for field in later.values())]
    )


def _wider(left: DataType, right: DataType, path: str) -> DataType:
    if isinstance(left, StructType) and isinstance(right, StructType):
        return joined(left, right, path + ".")
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return ArrayType(_wider(left.elementType, right.elementType, path + "[]"), True)
    if isinstance(left, MapType) and isinstance(right, MapType):
        return MapType(
            _wider(left.keyType, right.keyType, path + "{key}"),
            _wider(left.valueType, right.valueType, path + "{}"),
            True,
        )
    if left == right:
        return left
    for ladder in _WIDER:
        if type(left) in ladder and type(right) in ladder:
            return max(left, right, key=lambda each: ladder.index(type(each)))
    raise LoadError(
        f"column {path} is of type {left.simpleString()} in the table and {right.simpleString()} in this run, and nothing was loaded: a column has one type in "
        "a table. Give it another name, load to another folder, or load all of it again from the earliest"
    )
