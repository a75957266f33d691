"""
Tests for L{pylogbroker.spark.loader.compaction}.
"""

from __future__ import annotations

import os
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError, LoadError, TableError
from pylogbroker.lake.table import fileName
from pylogbroker.spark.loader import compact, table
from pylogbroker.spark.loader.compaction import SMALL_PART, needsCompaction, sizeOf
from pylogbroker.spark.loader.tablereader import tableAt
from pylogbroker.storage.files import RealFileSystem
from tests.lake.tables import write
from tests.spark.loader.cases import NOW_MS, LoadCase, packed

DAY_MS = 24 * 3_600_000


def full(sizes: dict[str, int]) -> bool:
    """With two files of fewer than ten bytes, in a table whose runs 6 and 7 were compactions."""
    return needsCompaction(sizes, 2, 10, (6, 7).__contains__)


class SizeTests(SynchronousTestCase):
    """Which days are worth it."""

    def test_full(self) -> None:
        """
        Small files of one hour count; large ones, which would only be written again, and those of
        other hours do not.
        """
        self.assertTrue(full({"d/hour=1/a": 9, "d/hour=1/b": 9, "d/hour=1/c": 10}))
        self.assertFalse(full({"d/hour=1/a": 10, "d/hour=1/b": 10, "d/hour=1/c": 9}))
        self.assertFalse(full({"d/hour=1/a": 1, "d/hour=2/a": 1}))
        self.assertFalse(full({}))

    def test_compacted(self) -> None:
        """
        What one compaction has made of an hour is one file, beside those of loads and of other
        compactions.
        """
        made = {f"d/hour=1/{fileName(7, index, 'x.parquet')}": 9 for index in range(3)}
        self.assertFalse(full(made))
        for more in (fileName(8, 0, "x.parquet"), fileName(6, 0, "x.parquet"), "stranger.parquet"):
            self.assertTrue(full({**made, f"d/hour=1/{more}": 9}))
        self.assertFalse(full({**made, f"d/hour=1/{fileName(8, 0, 'x.parquet')}": 10}))
        self.assertTrue(
            full({f"d/hour=1/{fileName(8, index, 'x.parquet')}": 9 for index in range(2)})
        )

    def test_sizes(self) -> None:
        """Sizes as Spark writes them, and as people do."""
        self.assertEqual(
            [sizeOf(text) for text in ("67108864b", "64MB", "64m", "1 g", "17", "2k")],
            [64 << 20, 64 << 20, 64 << 20, 1 << 30, 17, 2048],
        )
        for text in ("", None, "x", "-1", "1.5m"):
            self.assertIn(
                "advisoryPartitionSizeInBytes",
                str(self.assertRaises(ConfigurationError, sizeOf, text)),
            )


class CompactingTests(LoadCase):
    """Few files of many."""

    def test_days(self) -> None:
        """
        A day with small files becomes one with few; others stay as they are; no row changes; the
        next load goes on.
        """
        for number in range(3):
            self.write(
                packed(NOW_MS, b"%d" % number),
                *([packed(NOW_MS - DAY_MS, b"old")] if number == 0 else []),
            )
            self.loaded()
        rows = sorted(
            map(
                tuple,
                table(self.spark, self.folder).select("value", "offset", "eventTime").collect(),
            )
        )
        self.assertEqual(compact(self.spark, self.folder, date="2025-12-31"), [])
        [day] = compact(self.spark, self.folder)
        self.assertEqual(day[:5], (self.topic, "2026-01-01", 3, 1, 3))
        self.assertEqual(
            sorted(
                map(
                    tuple,
                    table(self.spark, self.folder).select("value", "offset", "eventTime").collect(),
                )
            ),
            rows,
        )
        self.assertEqual(
            (
                self.spark.read.parquet(self.folder).count(),
                len(list(tableAt(self.folder).published())),
            ),
            (4, 2),
        )
        self.assertEqual(compact(self.spark, self.folder), [])
        self.write(b"more")
        self.assertEqual(self.loaded().rowCount, 1)

    def test_twice(self) -> None:
        """
        An hour of which Spark makes several small files, since they are larger on their way, is
        compacted once, and again when a load has added one.
        """
        name = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
        self.addCleanup(self.spark.conf.unset, name)
        payload = Random(5).randbytes(8_000)
        for _run in range(3):
            self.write(*[packed(NOW_MS, payload)] * 100)
            self.loaded()
        self.spark.conf.set(name, "128k")
        [day] = compact(self.spark, self.folder)
        self.assertEqual((day.fileCountBefore, day.rowCount), (3, 300))
        self.assertGreater(day.fileCount, 1)
        self.assertLess(day.size, (128 << 10) // SMALL_PART)
        self.assertEqual(compact(self.spark, self.folder), [])
        self.write(packed(NOW_MS, b"more"))
        self.loaded()
        [day] = compact(self.spark, self.folder)
        self.assertEqual((day.rowCount, compact(self.spark, self.folder)), (301, []))

    def test_nothing(self) -> None:
        """An empty table has nothing to compact; a wrong option is refused."""
        self.assertEqual(compact(self.spark, self.folder), [])
        self.assertRaises(ConfigurationError, compact, self.spark, self.folder, compression="zip")
        self.assertRaises(TableError, compact, self.spark, "s3://x")
        for name in ("a", "b"):
            write(
                RealFileSystem(),
                f"{self.folder}/topic=x/date=2026-01-01/hour=1/{name}.parquet",
                b"",
            )
        self.assertIn(
            "no load has made it",
            str(self.assertRaises(TableError, compact, self.spark, self.folder)),
        )

    def test_fails(self) -> None:
        """A file that cannot be read leaves the day as it was."""
        for value in (b"a", b"b"):
            self.write(value)
            self.loaded()
        [path, *_more] = tableAt(self.folder).files()
        with open(path, "wb") as file:
            file.write(b"no Parquet")
        self.assertRaises(LoadError, compact, self.spark, self.folder)
        self.assertEqual(
            (tableAt(self.folder).manifestCount(), os.listdir(f"{self.folder}/_staging")), (2, [])
        )
