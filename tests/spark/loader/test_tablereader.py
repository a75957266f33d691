"""
Tests for L{pylogbroker.spark.loader.tablereader}.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import LoadError, TableError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.spark.loader import compact
from pylogbroker.spark.loader.eventtime import withEventTime
from pylogbroker.spark.loader.stagedfiles import stagedFiles, writeStaged
from pylogbroker.spark.loader.tablereader import (
    encodeColumns,
    evolve,
    mergeSchemas,
    table,
    tableAt,
    tableColumns,
)
from tests.integration.sparksession import sharedSession
from tests.lake.tables import manifest
from tests.spark.loader.cases import NOW_MS, LoadCase, SparkCase


class ReadingTests(SparkCase):
    """A table as a DataFrame."""

    def commit(self, number: int, topic: str, *values: bytes) -> None:
        """A run of such rows."""
        found = tableAt(self.folder)
        with TableWriter(found) as writer:
            count = writeStaged(
                withEventTime(self.rows(values, topic), None, NOW_MS),
                writer.staging(f"run{number}"),
                "zstd",
            )
            writer.commit(
                manifest(number, added=stagedFiles(writer.staging(f"run{number}"), number, count))
            )

    def values(self) -> list[tuple[str, bytes]]:
        return sorted(
            (row["topic"], bytes(row["value"])) for row in table(self.spark, self.folder).collect()
        )

    def test_topicsAreTexts(self) -> None:
        """
        A topic that is all digits is read as it is called; a plain reader finds the same rows.
        """
        self.commit(1, "0012", b"a", b"b")
        self.assertEqual(self.values(), [("0012", b"a"), ("0012", b"b")])
        self.assertEqual(self.spark.read.parquet(self.folder).count(), 2)

    def test_strangeTopics(self) -> None:
        """A topic may be called what a folder cannot be."""
        for number, topic in enumerate(("a b", "ü%41:=x", "_under")):
            self.commit(number + 1, topic, b"v")
        self.assertEqual(self.values(), [("_under", b"v"), ("a b", b"v"), ("ü%41:=x", b"v")])

    def test_unpublished(self) -> None:
        """Rows of a run that died between its commit and its end are there."""
        self.commit(1, "clicks", b"a")
        self.commit(2, "clicks", b"b")
        found = tableAt(self.folder)
        [added] = found.manifest(2).added
        staged = Path(found.path("_staging", "run2", added.staged))
        staged.parent.mkdir(parents=True)
        shutil.move(found.path(added.path), staged)
        self.assertEqual(self.values(), [("clicks", b"a"), ("clicks", b"b")])

    def test_nothing(self) -> None:
        """A table without a load, and a place that is no folder, are errors."""
        self.assertIn(
            "nothing was ever loaded",
            str(self.assertRaises(TableError, table, self.spark, self.folder)),
        )
        self.assertIn(
            "local or mounted",
            str(self.assertRaises(TableError, table, self.spark, "s3a://bucket/x")),
        )


def columns(text: str) -> StructType:
    """Of Spark's short form, which a session reads."""
    sharedSession()
    found = StructType.fromDDL(text)
    assert isinstance(found, StructType)
    return found


class JoinedTests(SynchronousTestCase):
    """The columns of two."""

    def test_wider(self) -> None:
        """
        Columns come behind the ones that are there; of numbers the wider type counts, also within
        records, arrays and maps, and on either side.
        """
        left = columns("a int, b struct<c: float, d: array<bigint>>, e map<string, int>, g binary")
        right = columns(
            "A bigint, b struct<c: double, d: array<int>, x: string>, e map<string, smallint>, f"
            " date"
        )
        whole = columns(
            "a bigint, b struct<c: double, d: array<bigint>, x: string>, e map<string, int>, g"
            " binary, f date"
        )
        self.assertEqual(mergeSchemas(left, right), whole)
        self.assertEqual(mergeSchemas(right, left).simpleString().count("bigint"), 2)

    def test_other(self) -> None:
        """Types that do not go together are an error that names the column, wherever it is."""
        for left, right, name in (
            ("a int", "a string", "a"),
            ("a int", "a double", "a"),
            ("a struct<b: int>", "a struct<b: date>", "a.b"),
            ("a array<int>", "a array<string>", "a[]"),
            ("a map<int, int>", "a map<string, int>", "a{key}"),
            ("a map<int, int>", "a map<int, date>", "a{}"),
            ("a struct<b: int>", "a int", "a"),
        ):
            self.assertIn(
                f"column {name} is of type ",
                str(self.assertRaises(LoadError, mergeSchemas, columns(left), columns(right))),
            )


class KeptTests(SynchronousTestCase):
    """What a manifest keeps."""

    def test_advanced(self) -> None:
        """
        A run's topics get its columns; a topic of which nothing stays begins anew; a column has one
        type in all topics.
        """
        before = {"a": encodeColumns(columns("x int")), "b": encodeColumns(columns("y int"))}
        after = evolve(before, {"a", "c"}, columns("x bigint, z date"), ())
        self.assertEqual(
            {topic: tableColumns({topic: text}).simpleString() for topic, text in after.items()},
            {
                "a": "struct<x:bigint,z:date>",
                "b": "struct<y:int>",
                "c": "struct<x:bigint,z:date>",
            },
        )
        self.assertEqual(tableColumns(after), columns("x bigint, z date, y int"))
        self.assertRaises(LoadError, evolve, before, {"c"}, columns("x string"), ())
        self.assertRaises(LoadError, evolve, before, {"a"}, columns("x string"), {"b"})
        self.assertEqual(
            tableColumns(evolve(before, {"a"}, columns("x string"), {"a"})),
            columns("x string, y int"),
        )

    def test_broken(self) -> None:
        """Columns that another program has changed are an error of the table."""
        for text in (
            "",
            "{}",
            "[1]",
            '{"type": "struct", "fields": [{"name": "x", "type": "nothing"}]}',
            "null",
            '"int"',
        ):
            self.assertRaises(TableError, tableColumns, {"a": text})
        self.assertRaises(
            TableError,
            tableColumns,
            {"a": encodeColumns(columns("x int")), "b": encodeColumns(columns("x date"))},
        )


class RunTests(LoadCase):
    """Whole runs."""

    def amount(self, literal: Any, kind: str) -> Callable[[DataFrame], DataFrame]:
        """A transform with a column of such a type, beside others and within a record."""
        value = sql.lit(literal).cast(kind)
        return lambda rows: rows.withColumn("amount", value).withColumn(
            "inner", sql.struct(value.alias("amount"))
        )

    def found(self) -> list[tuple[bytes, Any, Any]]:
        return sorted(
            (bytes(row["value"]), row["amount"], row["inner"]["amount"])
            for row in table(self.spark, self.folder).collect()
        )

    def test_widened(self) -> None:
        """
        A column that has become wider, or is new: the table is read, compacted and loaded again.
        """
        self.write(b"a")
        self.loaded(transform=self.amount(1, "int"))
        self.write(b"b")
        self.loaded(transform=self.amount(2**40, "long"))
        whole = [(b"a", 1, 1), (b"b", 2**40, 2**40)]
        self.assertEqual(self.found(), whole)
        compact(self.spark, self.folder)
        self.assertEqual(self.found(), whole)
        self.write(b"c")
        self.loaded(transform=self.amount(3, "int"))
        self.assertEqual(self.found(), [*whole, (b"c", 3, 3)])
        self.loaded(transform=self.amount(4, "int"), startOffsets="earliest")
        self.assertEqual(self.found(), [(value, 4, 4) for value in (b"a", b"b", b"c")])

    def test_otherType(self) -> None:
        """
        Another type is refused, and nothing has changed; with all rows loaded again it is not, and
        no old row is looked at for it.
        """
        self.write(b"5")
        self.loaded(transform=self.amount(5, "int"))
        middle = self.end()
        self.write(b"6")
        error = self.assertRaises(LoadError, self.load, transform=self.amount("five", "string"))
        self.assertIn(
            "column amount is of type int in the table and string in this run", str(error)
        )
        self.assertEqual(self.found(), [(b"5", 5, 5)])
        self.loaded(transform=self.amount("five", "string"), startOffsets="earliest")
        self.assertEqual(self.found(), [(b"5", "five", "five"), (b"6", "five", "five")])
        self.assertRaises(
            LoadError,
            self.load,
            transform=self.amount(1, "int"),
            startOffsets={self.topic: {"0-0": middle}},
        )

    def test_anotherTopic(self) -> None:
        """
        A topic with another type for a column of a table's is refused; it does not keep the one
        that is there from being read.
        """
        self.write(b"a")
        self.loaded(transform=self.amount(1, "int"))
        first, self.topic = self.topic, self.topic + "too"
        self.write(b"b")
        self.assertRaises(LoadError, self.load, transform=self.amount("x", "string"))
        self.loaded(transform=lambda rows: rows.withColumn("more", sql.lit(True)))
        found = table(self.spark, self.folder).orderBy("topic").collect()
        self.assertEqual(
            [(row["topic"], row["amount"], row["more"]) for row in found],
            [(first, 1, None), (self.topic, None, True)],
        )
