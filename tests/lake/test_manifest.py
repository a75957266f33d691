"""
Tests for L{pylogbroker.lake.manifest}.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as some
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import TableError
from pylogbroker.lake.manifest import LoadedRange, WindowCount, decodeManifest
from pylogbroker.types import BrokerPartition, PartitionId, TopicPartition
from tests.lake.tables import PLACE, manifest


class ManifestTests(SynchronousTestCase):
    """There and back."""

    def test_round(self) -> None:
        """What was encoded is decoded, all of it."""
        whole = replace(
            manifest(),
            positions={PLACE: 10, PartitionId("größe, z", BrokerPartition(12, 0)): 2**62},
            removed=("topic=a/x.parquet",),
            arrivals={"clicks": 3},
            leftOutCount=4,
            windows=(
                WindowCount("clicks", -60_000, "", -10),
                WindowCount("größe, z", 0, "höst", 2),
            ),
            columns={"größe, z": "{}", "b": "{}", "c": ""},
            notes=("größe, z 12-0: gone", ""),
            logSize=77,
        )
        self.assertEqual(decodeManifest("m", whole.encode()), whole)

    def test_today(self) -> None:
        """
        Partitions of today's Kafka are numbers alone; a manifest has partitions of one kind, since
        the rows of a table name them by the same columns.
        """
        place = TopicPartition("clicks-0", 3)
        whole = replace(
            manifest(),
            ranges=(LoadedRange(*place, 5, 15, 3, 2),),
            positions={place: 15, TopicPartition("größe", 12): 2**62},
        )
        document = whole.asDocument()
        self.assertEqual(document["ranges"][0]["partition"], "3")
        self.assertEqual(document["positions"], {"clicks-0": {"3": 15}, "größe": {"12": 2**62}})
        self.assertEqual(decodeManifest("m", whole.encode()), whole)
        mixed = replace(whole, ranges=(LoadedRange(*PLACE, 0, 10, 10),))
        error = self.assertRaises(TableError, decodeManifest, "m", mixed.encode())
        self.assertIn("partitions of Kafka 0.7 and of today's Kafka", str(error))

    def test_sums(self) -> None:
        """Rows, bytes of the log and bytes of files are sums."""
        both = replace(
            manifest(),
            ranges=(LoadedRange(*PLACE, 5, 15, 3, 2), LoadedRange(*PLACE, 100, 200, 4)),
            logSize=110,
        )
        self.assertEqual(
            (both.rowCount, both.replacedCount, both.logSize, both.size), (7, 2, 110, 100)
        )

    @given(some.binary())
    def test_anything(self, data: bytes) -> None:
        """Bytes that are none are an error that names the file."""
        self.assertIn(
            "the/file", str(self.assertRaises(TableError, decodeManifest, "the/file", data))
        )

    @given(some.data())
    def test_wrongValues(self, data: Any) -> None:
        """A value that is something else, anywhere, is an error; never another exception."""
        document = manifest().asDocument()
        key = data.draw(
            some.sampled_from(
                sorted(
                    set(document) - {"eventTime", "rowCount", "replacedCount", "logSize", "size"}
                )
            )
        )
        document[key] = data.draw(
            some.sampled_from(
                [
                    None,
                    "x",
                    [1],
                    [[1]],
                    1.5,
                    {"a": 1},
                    {"a": {"b": "c"}},
                    [{}],
                    "../x",
                    "/x",
                    ["/x"],
                    ["a/../../x"],
                    True,
                ]
            )
        )
        if (key, document[key]) in (
            ("runId", "x"),
            ("arrivals", {"a": 1}),
            ("notes", ["/x"]),
            ("notes", ["a/../../x"]),
        ):
            return
        self.assertRaises(TableError, decodeManifest, "m", json.dumps(document).encode())

    def test_withoutNotes(self) -> None:
        """A manifest of before there were notes has none."""
        document = manifest().asDocument()
        del document["notes"]
        self.assertEqual(decodeManifest("m", json.dumps(document).encode()), manifest())

    def test_newer(self) -> None:
        """A later version is refused with a reason."""
        data = json.dumps({"manifest": 2}).encode()
        self.assertIn(
            "a newer release has written it",
            str(self.assertRaises(TableError, decodeManifest, "m", data)),
        )
