"""
Tests for L{pylogbroker.spark.loader.planning}.
"""

from __future__ import annotations

import json

from pylogbroker.errors import ConfigurationError, LoadError, NoBrokersError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.spark.loader.planning import checkFolder, parseBeginnings, planLoad
from pylogbroker.spark.options import SourceOptions, sourceOptions
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition, PartitionId
from tests.spark.loader.cases import HERE, LoadCase


class PlanningTests(LoadCase):
    """What brokers say."""

    def options(self, **more: str) -> SourceOptions:
        return sourceOptions({"brokers": self.cluster.listed, "subscribe": self.topic, **more})

    def test_plan(self) -> None:
        """From where the table ends to where the logs end."""
        self.write(b"a", b"b")
        self.write(b"c", partition=1)
        places = [PartitionId(self.topic, BrokerPartition(0, partition)) for partition in (0, 1)]
        plan = planLoad(self.options(), {places[1]: self.end(1)})
        self.assertEqual(
            (plan.ranges, plan.notes), ((PlannedRange(places[0], 0, self.end(), False),), ())
        )

    def test_away(self) -> None:
        """A partition that the table has and nobody else is left for later, and said; one of another topic is none of this."""
        self.write(b"a")
        positions = {
            PartitionId(self.topic, BrokerPartition(9, 0)): 5,
            PartitionId("another", BrokerPartition(9, 0)): 5,
        }
        plan = planLoad(self.options(), positions)
        self.assertEqual((len(plan.ranges), len(plan.notes)), (1, 1))
        self.assertIn("goes on when its broker is back", plan.notes[0])

    def test_wrong(self) -> None:
        """A topic that nobody has, and a table that is ahead, are errors."""
        self.assertRaises(
            NoBrokersError,
            planLoad,
            sourceOptions({"zookeeper": self.cluster.zookeeper, "subscribe": "nobody-has-it"}),
            {},
        )
        self.assertIn(
            f"topic {self.topic} does not exist in the brokers",
            str(self.assertRaises(NoBrokersError, planLoad, self.options(), {})),
        )
        self.write(b"a")
        self.assertRaises(
            LoadError, planLoad, self.options(), {PartitionId(self.topic, HERE): 10**6}
        )

    def test_longNames(self) -> None:
        """A topic whose folder could not be made is refused before anything is read, by its name; what Spark escapes counts as it is written."""
        for name in ("x" * 249, "#" * 83, "é" * 124):
            checkFolder(name)
        for name in ("x" * 250, "#" * 84, "é" * 125):
            self.assertIn(
                f"topic {name}: the name is too long",
                str(self.assertRaises(LoadError, checkFolder, name)),
            )
        options = sourceOptions(
            {"brokers": self.cluster.listed, "assign": json.dumps({"x" * 250: ["0-0"]})}
        )
        self.assertIn("too long", str(self.assertRaises(LoadError, planLoad, options, {})))

    def test_beginnings(self) -> None:
        """Words mean all partitions; offsets come as JSON or as values; anything else is refused."""
        place = PartitionId("clicks", HERE)
        self.assertEqual(parseBeginnings(None, [place]), {})
        self.assertEqual(parseBeginnings("Earliest", [place]), {place: EARLIEST})
        self.assertEqual(parseBeginnings("latest", [place]), {place: LATEST})
        for given in ('{"clicks": {"0-0": 5}}', {"clicks": {"0-0": 5}}):
            self.assertEqual(parseBeginnings(given, []), {place: 5})
        for wrong in ("soon", "[]", {"clicks": 5}, {"clicks": {"0": 5}}, {"clicks": {"0-0": b"5"}}):
            self.assertIn(
                "beginnings",
                str(self.assertRaises(ConfigurationError, parseBeginnings, wrong, [place])),
            )
