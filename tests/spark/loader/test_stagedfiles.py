"""
Tests for L{pylogbroker.spark.loader.stagedfiles}.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.lake.manifest import WindowCount
from pylogbroker.spark.loader.eventtime import withEventTime
from pylogbroker.spark.loader.kafka07 import dataLossNotes
from pylogbroker.spark.loader.stagedfiles import (
    COMPRESSIONS,
    RowCounts,
    countRows,
    inRanges,
    netCounts,
    stagedFiles,
    writeStaged,
)
from pylogbroker.types import BrokerPartition, PartitionId
from tests.spark.loader.cases import HERE, NOW_MS, SparkCase, packed

HOUR_MS = 3_600_000


class StagingTests(SparkCase):
    """A run's folder."""

    def test_files(self) -> None:
        """
        One file for each topic and hour, however many tasks had rows of it; each with its rows and
        bytes, and a name of the run.
        """
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
        """
        A file that another run has removed stops the run; no row is no file, and nothing is
        missing.
        """
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


PLACE = PartitionId("clicks", HERE)
MINUTE = 60_000


class CountTests(SparkCase):
    """Rows of a table."""

    def timed(self, *values: bytes) -> Any:
        return withEventTime(self.rows(values), None, NOW_MS)

    def count(
        self,
        rows: Any,
        toOffset: int,
        fromOffset: int = 0,
        lineCountMax: int = 100,
        sizeMax: int = 10_000,
    ) -> RowCounts:
        return countRows(
            rows,
            [PlannedRange(PLACE, fromOffset, toOffset, False)],
            MINUTE,
            lineCountMax,
            sizeMax,
        )

    def test_windows(self) -> None:
        """Per topic, window and host; those without a time are counted apart."""
        rows = self.timed(
            packed(5),
            packed(MINUTE - 1),
            packed(MINUTE),
            packed(MINUTE, b"x", b"web2"),
            b"plain",
            b"plain",
        )
        counts = self.count(rows, 6)
        self.assertEqual(counts.rows, {PLACE: 6})
        self.assertEqual(
            [each[1:] for each in counts.windows],
            [(0, "web1", 2), (MINUTE, "web1", 1), (MINUTE, "web2", 1)],
        )
        self.assertEqual((counts.arrivals, counts.leftOutCount), ({"clicks": 2}, 0))

    def test_tooMany(self) -> None:
        """With too many lines, hosts are left out, and then the smallest windows, which is said."""
        rows = self.timed(packed(0, b"x", b"a"), packed(0, b"x", b"b"), packed(MINUTE, b"x", b"a"))
        counts = self.count(rows, 3, lineCountMax=2)
        self.assertEqual(
            (counts.windows, counts.leftOutCount),
            ((WindowCount("clicks", 0, "", 2), WindowCount("clicks", MINUTE, "", 1)), 0),
        )
        counts = self.count(rows, 3, lineCountMax=1)
        self.assertEqual(
            (counts.windows, counts.leftOutCount), ((WindowCount("clicks", 0, "", 2),), 1)
        )

    def test_tooLarge(self) -> None:
        """Hosts are left out also when they would need too many bytes, as a manifest has them."""
        rows = self.timed(packed(0, b"x", b"\x01" * 255), packed(0, b"x", b"\x02" * 255))
        self.assertEqual(len(self.count(rows, 2, sizeMax=3_200).windows), 2)
        self.assertEqual(
            self.count(rows, 2, sizeMax=3_000).windows, (WindowCount("clicks", 0, "", 2),)
        )

    def test_lost(self) -> None:
        """
        What rows have not come of is missing, to the byte, also of a partition that has none;
        without C{nextOffset} that is unknown.
        """
        rows = self.timed(b"a", b"b", b"c").where("offset != 1")
        other = PlannedRange(PartitionId("clicks", BrokerPartition(0, 1)), 5, 9, False)
        ranges = [
            PlannedRange(PLACE, 0, 3, False),
            other,
            PlannedRange(other.partition, 9, 9, False),
        ]
        missing = "bytes have no rows: they were deleted before they were read"
        of = f"{other.partition}: of offsets 5 to 9, 4 {missing}"
        self.assertEqual(
            dataLossNotes(rows, ranges), (f"{PLACE}: of offsets 0 to 3, 1 {missing}", of)
        )
        self.assertEqual(
            (dataLossNotes(None, [other]), dataLossNotes(rows.drop("nextOffset"), ranges)),
            ((of,), ()),
        )

    def test_strangers(self) -> None:
        """A row that comes of no range stops the run."""
        rows = self.timed(packed(5), packed(6))
        for fromOffset, toOffset in ((0, 1), (1, 2)):
            self.assertIn(
                "were written, which are not",
                str(self.assertRaises(LoadError, self.count, rows, toOffset, fromOffset)),
            )
        self.assertRaises(LoadError, countRows, rows, [], MINUTE)

    def test_within(self) -> None:
        """Rows of a range's partition, from its beginning on."""
        rows = self.timed(*[b"x"] * 5)
        self.assertEqual(rows.where(inRanges([PlannedRange(PLACE, 2, 3, True)])).count(), 3)
        self.assertEqual(
            rows.where(inRanges([PlannedRange(PartitionId("other", HERE), 0, 9, True)])).count(), 0
        )
        self.assertEqual(rows.where(inRanges([])).count(), 0)


class DifferenceTests(SynchronousTestCase):
    """Rows in the place of others."""

    def test_difference(self) -> None:
        """What went is counted with a minus; what is the same leaves no line."""
        one, two = WindowCount("a", 0, "h", 5), WindowCount("a", MINUTE, "h", 3)
        added = RowCounts({}, (one, two), {"a": 1})
        self.assertEqual(netCounts(added, RowCounts({}, (one,), {"a": 1})), ((two,), {}))
        self.assertEqual(
            netCounts(RowCounts({}, (one,), {}), RowCounts({}, (two,), {"b": 2})),
            ((one, two._replace(rowCount=-3)), {"b": -2}),
        )
