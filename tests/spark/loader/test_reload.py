"""
Tests for L{pylogbroker.spark.loader.reload}; whole runs that replace are in L{tests.spark.loader.test_run}.
"""

from __future__ import annotations

from pylogbroker.lake.loadplan import LoadPlan, PlannedRange
from pylogbroker.spark.loader.reading import tableAt
from pylogbroker.spark.loader.reload import findReplaced
from pylogbroker.types import PartitionId
from tests.spark.loader.cases import HERE, NOW_MS, LoadCase, packed

HOUR_MS = 3_600_000


class ReplacingTests(LoadCase):
    """Which files are touched."""

    def test_files(self) -> None:
        """Only files with rows that go; what else is in them stays; a plan that loads nothing again looks at nothing."""
        self.write(packed(NOW_MS, b"a"), packed(NOW_MS - HOUR_MS, b"b"))
        first = self.end()
        self.write(packed(NOW_MS, b"c"))
        manifest = self.loaded()
        found, place = tableAt(self.folder), PartitionId(self.topic, HERE)
        replaced = findReplaced(
            self.spark, found, LoadPlan((PlannedRange(place, first, self.end(), True),), ()), 60_000
        )
        self.assertEqual(
            replaced.files, tuple(each.path for each in manifest.added if "/hour=13/" in each.path)
        )
        assert replaced.kept is not None
        self.assertEqual(
            [bytes(row["value"]) for row in replaced.kept.collect()], [packed(NOW_MS, b"a")]
        )
        self.assertEqual(replaced.counts.rows, {place: 1})
        for plan in (
            LoadPlan((PlannedRange(place, first, 10**6, False),), ()),
            LoadPlan((PlannedRange(place, 10**6, 10**7, True),), ()),
        ):
            self.assertEqual(findReplaced(self.spark, found, plan, 60_000)[:2], (None, ()))
