"""
Tests for L{pylogbroker.lake.table}.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError, TableError
from pylogbroker.lake.manifest import NO_RUN
from pylogbroker.lake.table import (
    LIST_COUNT_MAX,
    MANIFESTS,
    Table,
    fileName,
    manifestName,
    runNumber,
)
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.lake.tables import HOUR, PATH, compact, load, manifest, read, rows, write


class TableTests(SynchronousTestCase):
    """A folder."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.files.makeDirectories("/data")
        self.table = Table(PATH, self.files)

    def test_nothing(self) -> None:
        """A table that is not there has no runs and no files."""
        self.assertEqual(
            (
                self.table.last(),
                self.table.files(),
                list(self.table.since(0)),
                list(self.table.days()),
            ),
            (NO_RUN, [], [], []),
        )

    def test_names(self) -> None:
        """A file's name has its run and index, and how it is compressed."""
        self.assertEqual(
            fileName(12, 3, "topic=a/part-00000-uuid-c000.snappy.parquet"),
            "000000000012-000003.snappy.parquet",
        )
        self.assertEqual(fileName(12, 3, "part.parquet"), "000000000012-000003.parquet")
        self.assertEqual(runNumber(f"{HOUR}1/000000000012-000003.snappy.parquet"), 12)
        self.assertEqual(
            [
                runNumber(name)
                for name in (
                    "part-00000-uuid-c000.parquet",
                    "12-3.parquet",
                    "x000000000012-000003.parquet",
                )
            ],
            [None] * 3,
        )

    def test_strangers(self) -> None:
        """Other files are none of the table's."""
        load(self.files, "first")
        for name in (
            "_SUCCESS",
            "readme.txt",
            f"{HOUR}1/.hidden.parquet",
            f"{HOUR}1/_x.parquet",
            f"{HOUR}1/x.crc",
            "x=1/y.parquet",
        ):
            write(self.files, f"{PATH}/{name}", b"99\n")
        self.assertEqual(rows(self.files), list(range(10)))

    def test_days(self) -> None:
        """Topics and dates, and the files of one of them."""
        load(self.files, "first")
        self.assertEqual(list(self.table.days()), [("clicks", "2026-01-31")])
        self.assertEqual(list(self.table.day("clicks", "2026-01-31")), list(self.table.published()))
        self.assertEqual(list(self.table.day("clicks", "2026-02-01")), [])

    def test_since(self) -> None:
        """The latest runs come first, up to a time, or down to a number."""
        for name in ("a", "b", "c"):
            load(self.files, name)
        self.assertEqual([each.number for each in self.table.since(0)], [3, 2, 1])
        self.assertEqual([each.number for each in self.table.since(1_000_002)], [3, 2])
        self.assertEqual([each.number for each in self.table.since(0, 2)], [3])

    def test_gap(self) -> None:
        """
        A manifest that is missing is an error that names it, and so is one with another's number,
        or of a size that cannot be.
        """
        write(self.files, f"{PATH}/{MANIFESTS}/{manifestName(2)}", manifest(2).encode())
        self.assertIn(
            "000000000001.json: it is missing", str(self.assertRaises(TableError, self.table.files))
        )
        write(self.files, f"{PATH}/{MANIFESTS}/{manifestName(1)}", manifest(2).encode())
        self.assertIn(
            "it says that it is number 2",
            str(self.assertRaises(TableError, self.table.manifest, 1)),
        )
        file = self.files.open(f"{PATH}/{MANIFESTS}/{manifestName(2)}")
        file.truncate(300 << 20)
        self.assertIn(
            "bytes, more than", str(self.assertRaises(TableError, self.table.manifest, 2))
        )

    def test_foreignFile(self) -> None:
        """
        A file whose run has no manifest is named: the folder is a copy, of which the manifests are
        older.
        """
        load(self.files, "first")
        write(self.files, f"{PATH}/{HOUR}5/{fileName(2, 0, 'x.parquet')}", b"99\n")
        error = self.assertRaises(TableError, rows, self.files)
        self.assertIn(
            "hour=5/000000000002-000000.parquet: no manifest knows its run, and the last one is 1",
            str(error),
        )


class _Moving(PowerCutFileSystem):
    """Something happens each time that a folder is listed."""

    happens: Callable[[], object] | None = None

    def list(self, path: str) -> list[str]:
        found = super().list(path)
        happens, self.happens = self.happens, None
        if happens is not None and path.endswith("2026-01-31"):
            happens()
        else:
            self.happens = happens
        return found


class MovingTests(SynchronousTestCase):
    """A table that changes while it is looked at."""

    def setUp(self) -> None:
        self.files = _Moving()
        self.files.makeDirectories("/data")
        load(self.files, "first")

    def test_committedMeanwhile(self) -> None:
        """A reader sees a run that is committed while it looks either whole or not at all."""
        self.files.happens = lambda: load(self.files, "second")
        self.assertEqual(rows(self.files), list(range(20)))

    def test_compactedMeanwhile(self) -> None:
        """A reader during a compaction misses no rows, and sees none twice."""
        load(self.files, "second")

        def happens() -> None:
            compact(self.files, "third")

        self.files.happens = happens
        found = Table(PATH, self.files).files()
        self.assertEqual(
            sorted(int(line) for path in found for line in read(self.files, path).split()),
            list(range(20)),
        )

    def test_always(self) -> None:
        """When it changes each time, that is said."""
        names = iter("abcdefghijklmnop")

        def happens() -> None:
            load(self.files, next(names))
            self.files.happens = happens

        self.files.happens = happens
        self.assertIn(
            f"changed {LIST_COUNT_MAX} times",
            str(self.assertRaises(TableError, Table(PATH, self.files).files)),
        )

    def test_folderHasGone(self) -> None:
        """
        A folder that goes away with a run makes the reader look again; one that cannot be read is
        an error.
        """
        load(self.files, "second")

        def happens() -> None:
            load(self.files, "third")
            self.files.fail("list", "hour=1", errno.ENOENT, 1)

        self.files.happens = happens
        self.assertEqual(rows(self.files), list(range(30)))
        self.files.fail("list", "hour=1", errno.EIO, 1)
        self.assertRaises(StorageError, Table(PATH, self.files).files)
