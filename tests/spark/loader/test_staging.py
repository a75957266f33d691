"""
Tests for L{pylogbroker.spark.loader.staging}.
"""

from __future__ import annotations

import os

from pylogbroker.errors import LoadError
from pylogbroker.spark.loader.eventtime import withEventTime
from pylogbroker.spark.loader.staging import COMPRESSIONS, stagedFiles, writeStaged
from tests.spark.loader.cases import NOW_MS, SparkCase, packed

HOUR_MS = 3_600_000


class StagingTests(SparkCase):
    """A run's folder."""

    def test_files(self) -> None:
        """One file for each topic and hour, however many tasks had rows of it; each with its rows and bytes, and a name of the run."""
        rows = withEventTime(
            self.rows([packed(number % 3 * HOUR_MS) for number in range(300)]).repartition(8),
            None,
            NOW_MS,
        )
        self.assertEqual(writeStaged(rows, self.folder, "snappy"), 300)
        files = stagedFiles(self.folder, 7, 300)
        wanted = [
            f"topic=clicks/date=1970-01-01/hour={hour}/000000000007-{hour:06d}.c000.snappy.parquet"
            for hour in range(3)
        ]
        self.assertEqual([each.path for each in files], wanted)
        self.assertEqual([each.rowCount for each in files], [100] * 3)
        self.assertEqual(
            [each.size for each in files],
            [os.path.getsize(f"{self.folder}/{each.staged}") for each in files],
        )

    def test_missing(self) -> None:
        """A file that somebody has taken away stops the run; no row is no file, and nothing is missing."""
        rows = withEventTime(
            self.rows([packed(number % 3 * HOUR_MS) for number in range(30)]), None, NOW_MS
        )
        count = writeStaged(rows, self.folder, "snappy")
        os.remove(f"{self.folder}/{stagedFiles(self.folder, 1, count)[0].staged}")
        self.assertIn(
            "30 rows were written, and its files have 20",
            str(self.assertRaises(LoadError, stagedFiles, self.folder, 1, count)),
        )
        self.assertEqual(writeStaged(rows.where("offset < 0"), f"{self.folder}/none", "snappy"), 0)
        self.assertEqual(stagedFiles(f"{self.folder}/none", 1, 0), ())

    def test_compressions(self) -> None:
        """Every kind that is offered can be written."""
        for name in COMPRESSIONS:
            writeStaged(
                withEventTime(self.rows([b"x"]), None, NOW_MS), f"{self.folder}/{name}", name
            )
            self.assertEqual(len(stagedFiles(f"{self.folder}/{name}", 1, 1)), 1)

    def test_broken(self) -> None:
        """A file that is no Parquet stops the run; with no file there is none."""
        self.assertEqual(stagedFiles(self.folder, 1, 0), ())
        os.makedirs(f"{self.folder}/data/_temporary/0")
        for name in ("_temporary/0/x.parquet", ".y.parquet", "_SUCCESS"):
            with open(f"{self.folder}/data/{name}", "w", encoding="ascii"):
                pass
        self.assertEqual(stagedFiles(self.folder, 1, 0), ())
        with open(f"{self.folder}/data/z.parquet", "w", encoding="ascii"):
            pass
        self.assertIn(
            "z.parquet: it cannot be read back",
            str(self.assertRaises(LoadError, stagedFiles, self.folder, 1, 0)),
        )
