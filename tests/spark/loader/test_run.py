"""
Tests for L{pylogbroker.spark.loader.run}.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.sql import functions as sql

from pylogbroker.errors import ConfigurationError, LoadError, TableBusyError, TableError
from pylogbroker.lake.commit import TableWriter
from pylogbroker.lake.loadplan import LoadPlan, PlannedRange
from pylogbroker.lake.table import STAGING
from pylogbroker.records.messageset import encodeSet
from pylogbroker.spark.loader import compact, load, table
from pylogbroker.spark.loader.run import findReplaced
from pylogbroker.spark.loader.tablereader import tableAt
from pylogbroker.types import PartitionId, byTopic
from tests.spark.loader.cases import HERE, NOW_MS, KafkaLoadCase, LoadCase, packed
from tests.spark.logbroker import LogBroker

HOUR_MS = 3_600_000


class RunTests(LoadCase):
    """One run after the other; L{KafkaRunTests} has the same tests."""

    def values(self) -> list[bytes]:
        """What the table has, sorted."""
        return sorted(
            bytes(row["value"]) for row in table(self.spark, self.folder).select("value").collect()
        )

    def logSize(self) -> int:
        """Bytes of the topic, as a run of all of it tells."""
        return self.end() + self.end(1)

    def starts(self, offset: int) -> dict[str, dict[str, int]]:
        """A start in the first partition."""
        return byTopic({self.place(): offset})

    def test_goesOn(self) -> None:
        """
        Each run loads what is new, to folders of topic, date and hour; with nothing new there is no
        run.
        """
        self.write(packed(NOW_MS - HOUR_MS, b"a"), b"b", codec=1)
        self.write(b"c", partition=1)
        first = self.loaded()
        self.assertEqual((first.number, first.rowCount, first.arrivals), (1, 3, {self.topic: 2}))
        self.assertEqual(first.logSize, self.logSize())
        self.assertEqual([(each.host, each.rowCount) for each in first.windows], [("web1", 1)])
        self.assertEqual(
            {each.path.rpartition("/")[0] for each in first.added},
            {f"topic={self.topic}/date=2026-01-01/hour={hour}" for hour in (12, 13)},
        )
        self.assertEqual(self.load(), (None, ()))
        self.write(b"d")
        self.assertEqual(
            (
                self.loaded().rowCount,
                len(self.values()),
                self.spark.read.parquet(self.folder).count(),
            ),
            (1, 4, 4),
        )
        self.assertEqual(tableAt(self.folder).manifestCount(), 2)

    def test_columns(self) -> None:
        """
        The rows have the source's columns, when they were made, and what a transform adds; an
        expression over these may be the time.
        """
        self.write(b"7200000", b"3600000")
        manifest = self.loaded(
            transform=lambda rows: rows.withColumn(
                "made", sql.expr("bigint(cast(value as string))")
            ),
            eventTime="made",
            compression="gzip",
        )
        self.assertEqual(
            (manifest.eventTime, manifest.arrivals), ("made, else the time of the run", {})
        )
        found = table(self.spark, self.folder)
        self.assertEqual(
            found.columns,
            [
                *self.SOURCE_COLUMNS,
                "made",
                "eventTime",
                "isArrival",
                "host",
                "topic",
                "date",
                "hour",
            ],
        )
        self.assertEqual(
            sorted((row["made"], row["hour"]) for row in found.collect()),
            [(3_600_000, 1), (7_200_000, 2)],
        )
        self.assertTrue(
            all(each.path.endswith(".gz.parquet") for each in manifest.added), manifest.added
        )

    def test_again(self) -> None:
        """
        A range that is loaded again replaces its rows, and those alone, also behind a compaction;
        the counts say what is there.
        """
        self.write(*[packed(NOW_MS - number % 2 * HOUR_MS, b"%d" % number) for number in range(10)])
        self.write(b"other", partition=1)
        middle = self.end()
        self.loaded()
        self.write(*[packed(NOW_MS, b"1%d" % number) for number in range(10)])
        self.loaded()
        before = self.values()
        compact(self.spark, self.folder)
        again = self.loaded(startOffsets=self.starts(middle), eventTime="cast(null as timestamp)")
        self.assertEqual(
            (again.rowCount, again.replacedCount, again.arrivals), (10, 10, {self.topic: 10})
        )
        self.assertEqual([(each.host, each.rowCount) for each in again.windows], [("web1", -10)])
        self.assertEqual(self.values(), before)
        self.assertEqual(self.spark.read.parquet(self.folder).where("isArrival").count(), 11)
        every = self.loaded(startOffsets="earliest")
        self.assertEqual((every.rowCount, every.replacedCount), (21, 21))
        self.assertEqual(
            (self.values(), self.spark.read.parquet(self.folder).count()), (before, 21)
        )
        counts: dict[str, int] = {}
        for number in range(1, every.number + 1):
            manifest = tableAt(self.folder).manifest(number)
            for topic, count in [
                *manifest.arrivals.items(),
                *((each.topic, each.rowCount) for each in manifest.windows),
            ]:
                counts[topic] = counts.get(topic, 0) + count
        self.assertEqual(counts, {self.topic: 21})

    def test_nothingBehind(self) -> None:
        """
        A beginning behind which nothing lies is committed: rows behind it go, others in their files
        stay, and the next run goes on there.
        """
        self.write(b"a")
        self.write(b"b", partition=1)
        self.loaded()
        old, self.topic = self.topic, self.topic + "anew"
        self.write(b"c", partition=1)
        os.rename(f"{self.folder}/topic={old}", f"{self.folder}/topic={self.topic}")
        path = f"{self.folder}/_manifests/000000000001.json"
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        document |= {"positions": byTopic({self.place(): 500, self.place(1): self.end(1)})}
        document |= {"added": []}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        anew = self.loaded(startOffsets=self.starts(0))
        self.assertEqual(
            (anew.ranges[0][2:], len(anew.ranges), self.values()), ((0, 0, 0, 1), 1, [b"b"])
        )
        self.assertEqual(self.load(), (None, ()))
        self.write(b"d")
        skipping = self.loaded(startOffsets="latest")
        self.assertEqual((skipping.rowCount, skipping.added, len(skipping.ranges)), (0, (), 1))
        self.write(b"e")
        self.assertEqual((self.loaded().rowCount, self.values()), (1, [b"b", b"e"]))

    def test_againWithoutRows(self) -> None:
        """
        A range that is loaded again though the table has no row of it, since it was skipped, is
        loaded.
        """
        self.write(b"a")
        end = self.end()
        self.write(b"b")
        self.loaded(startOffsets=self.starts(end))
        self.write(b"c")
        manifest = self.loaded(startOffsets=self.starts(0))
        self.assertEqual(
            (manifest.rowCount, manifest.replacedCount, self.values()), (3, 1, [b"a", b"b", b"c"])
        )

    def test_pattern(self) -> None:
        """
        Topics can be chosen by a pattern; no topic is nothing to do.
        """
        self.write(b"a")
        pattern = self.topic[:-1] + "[" + self.topic[-1] + "]"
        found = self.loaded(**self.chosenBy(pattern))
        self.assertEqual({each.topic for each in found.ranges}, {self.topic})
        self.assertEqual(self.load(**self.chosenBy("nobody.*")), (None, ()))


class KafkaRunTests(KafkaLoadCase, RunTests):
    """Runs over topics of today's Kafka."""

    def logSize(self) -> int:
        """Offsets do not tell bytes."""
        return 0


class FailureTests(LoadCase):
    """Runs that come to nothing."""

    def staged(self) -> list[str]:
        return os.listdir(f"{self.folder}/{STAGING}")

    def test_options(self) -> None:
        """Options that mean nothing, or something else, are refused before anything is touched."""
        for wrong in (
            {"compression": "zip"},
            {"startingOffsets": "earliest"},
            {"endingOffsets": "latest"},
            {"assign": "{}"},
            {"subscribeTo": "x"},
            {"zookeeper": "z"},
        ):
            self.assertRaises(ConfigurationError, self.load, **wrong)
        self.assertRaises(TableError, load, self.spark, "hdfs://x/y", brokers="h:1", subscribe="x")
        self.assertFalse(os.path.exists(self.folder))

    def test_jobFails(self) -> None:
        """
        A job that fails commits nothing, leaves nothing, and says why in a line; the next run does
        all of it.
        """
        self.write(b"a")

        def breaks(batches: Any) -> Any:
            raise ValueError("this cannot be read")

        error = self.assertRaises(
            LoadError, self.load, transform=lambda rows: rows.mapInArrow(breaks, rows.schema)
        )
        self.assertIn("nothing was committed", str(error))
        self.assertLess(len(str(error).splitlines()), 3)
        self.assertEqual((self.staged(), tableAt(self.folder).manifestCount()), ([], 0))
        self.assertRaises(LoadError, self.load, eventTime="no_such_column")
        self.assertEqual(self.loaded().rowCount, 1)

    def test_rowsOfNothing(self) -> None:
        """A transform that invents rows is found out, and nothing is committed."""
        self.write(b"a")
        error = self.assertRaises(
            LoadError,
            self.load,
            transform=lambda rows: rows.withColumn("offset", rows["offset"] + 10**9),
        )
        self.assertIn("which are not", str(error))
        self.assertEqual((self.staged(), tableAt(self.folder).manifestCount()), ([], 0))

    def test_busy(self) -> None:
        """While another run writes, this one is refused."""
        self.write(b"a")
        with TableWriter(tableAt(self.folder)):
            self.assertRaises(TableBusyError, self.load)
            self.assertRaises(TableBusyError, compact, self.spark, self.folder)
        self.assertEqual(self.loaded().rowCount, 1)

    def test_lostMeanwhile(self) -> None:
        """
        What retention deletes between the plan and the reading stands in result and manifest, to
        the byte; also if nothing is left, or it is compressed.
        """
        broker = LogBroker()
        self.addCleanup(broker.close)
        log = broker.log(self.topic)
        starts = log.append(
            *(encodeSet([b"%d" % number, b"x"], codec) for number, codec in enumerate((0, 1, 0, 1)))
        )

        def load(deleted: int) -> Any:
            def late(rows: Any) -> Any:
                log.deleteBefore(deleted)
                return rows

            return self.load(brokers=broker.listed, failOnDataLoss="false", transform=late)

        result = load(starts[2])
        lost = (
            f"of offsets 0 to {log.end}, {starts[2]} bytes have no rows:"
            " they were deleted before they were read"
        )
        self.assertEqual(
            (result.notes, result.manifest.rowCount), ((f"{self.topic}/0-0: {lost}",), 4)
        )
        self.assertEqual(tableAt(self.folder).manifest(1).notes, result.notes)
        log.append(encodeSet([b"a"], 1), encodeSet([b"b", b"c"]))
        self.assertEqual((load(0).notes, tableAt(self.folder).manifest(2).rowCount), ((), 3))
        [start] = log.append(encodeSet([b"d"]))
        end = log.end
        log.append(b"")
        gone = load(end)
        self.assertEqual(
            (gone.manifest.rowCount, gone.manifest.added, gone.manifest.positions),
            (0, (), {PartitionId(self.topic, HERE): end}),
        )
        self.assertIn(
            f"of offsets {start} to {end}, {end - start} bytes have no rows", gone.notes[0]
        )

    def test_lost(self) -> None:
        """
        A log that ends before the table does stops the run; told where to begin, it loads the log
        as it is now.
        """
        self.write(b"a", b"b")
        self.loaded()
        path = f"{self.folder}/_manifests/000000000001.json"
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        document["positions"][self.topic][str(HERE)] += 1_000
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)
        self.assertIn("was the log created anew?", str(self.assertRaises(LoadError, self.load)))
        again = self.loaded(startOffsets="earliest")
        self.assertEqual((again.rowCount, again.replacedCount), (2, 2))


class ReplacingTests(LoadCase):
    """Which files are touched."""

    def test_files(self) -> None:
        """
        Only files with rows that go; what else is in them stays; a plan that loads nothing again
        looks at nothing.
        """
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
