"""
Tests for L{pylogbroker.spark.loader.reading}.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pylogbroker.errors import TableError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.spark.loader.eventtime import withEventTime
from pylogbroker.spark.loader.reading import table, tableAt
from pylogbroker.spark.loader.staging import stagedFiles, writeStaged
from pylogbroker.storage.files import RealFileSystem
from tests.lake.tables import manifest
from tests.spark.loader.cases import NOW_MS, SparkCase


class ReadingTests(SparkCase):
    """A table as a DataFrame."""

    def commit(self, number: int, topic: str, *values: bytes) -> None:
        """A run of such rows."""
        found = tableAt(self.folder)
        with TableWriter(found, RealFileSystem()) as writer:
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
        """A topic that is all digits is read as it is called; a plain reader finds the same rows."""
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
        staged = Path(found.at("_staging", "run2", added.staged))
        staged.parent.mkdir(parents=True)
        shutil.move(found.at(added.path), staged)
        self.assertEqual(self.values(), [("clicks", b"a"), ("clicks", b"b")])

    def test_nothing(self) -> None:
        """A table that nobody has loaded to, and a place that is no folder, are errors."""
        self.assertIn(
            "nothing was ever loaded",
            str(self.assertRaises(TableError, table, self.spark, self.folder)),
        )
        self.assertIn(
            "local or mounted",
            str(self.assertRaises(TableError, table, self.spark, "s3a://bucket/x")),
        )
