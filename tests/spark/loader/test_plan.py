"""
Tests for the plans of L{pylogbroker.spark.loader.run}.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import ConfigurationError, LoadError, NoBrokersError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.spark.loader.kafka07 import Kafka07Topics, linesOf, startOffsetsOf
from pylogbroker.spark.loader.run import planLoad
from pylogbroker.spark.loader.topicsource import checkFolder, parseStartOffsets
from pylogbroker.spark.options import parseOffsets
from pylogbroker.types import EARLIEST, LATEST, AnyPartition, BrokerPartition, PartitionId
from tests.spark.loader.cases import HERE, LoadCase


class PlanningTests(LoadCase):
    """What brokers say."""

    def topics(self, **more: str) -> Kafka07Topics:
        return Kafka07Topics({"brokers": self.cluster.listed, "subscribe": self.topic, **more})

    def test_plan(self) -> None:
        """From where the table ends to where the logs end."""
        self.write(b"a", b"b")
        self.write(b"c", partition=1)
        places = [PartitionId(self.topic, BrokerPartition(0, partition)) for partition in (0, 1)]
        plan = planLoad(self.topics(), {places[1]: self.end(1)})
        self.assertEqual(
            (plan.ranges, plan.notes), ((PlannedRange(places[0], 0, self.end(), False),), ())
        )

    def test_away(self) -> None:
        """
        A partition of the table that no broker has is left for later, with a note; a partition of
        another topic gets none.
        """
        self.write(b"a")
        positions: dict[AnyPartition, int] = {
            PartitionId(self.topic, BrokerPartition(9, 0)): 5,
            PartitionId("another", BrokerPartition(9, 0)): 5,
        }
        plan = planLoad(self.topics(), positions)
        self.assertEqual((len(plan.ranges), len(plan.notes)), (1, 1))
        self.assertIn("is loaded when its broker is back", plan.notes[0])

    def test_wrong(self) -> None:
        """A topic that no broker has, and a table that is ahead, are errors."""
        self.assertRaises(
            NoBrokersError,
            planLoad,
            Kafka07Topics({"zookeeper": self.cluster.zookeeper, "subscribe": "nobody-has-it"}),
            {},
        )
        self.assertIn(
            f"topic {self.topic} does not exist in the brokers",
            str(self.assertRaises(NoBrokersError, planLoad, self.topics(), {})),
        )
        self.write(b"a")
        self.assertRaises(
            LoadError, planLoad, self.topics(), {PartitionId(self.topic, HERE): 10**6}
        )

    def test_longNames(self) -> None:
        """
        A topic whose folder could not be made is refused before anything is read, by its name; what
        Spark escapes counts as it is written.
        """
        for name in ("x" * 249, "#" * 83, "é" * 124):
            checkFolder(name)
        for name in ("x" * 250, "#" * 84, "é" * 125):
            self.assertIn(
                f"topic {name}: the name is too long",
                str(self.assertRaises(LoadError, checkFolder, name)),
            )
        topics = Kafka07Topics(
            {"brokers": self.cluster.listed, "assign": json.dumps({"x" * 250: ["0-0"]})}
        )
        self.assertIn("too long", str(self.assertRaises(LoadError, planLoad, topics, {})))

    def test_beginnings(self) -> None:
        """
        Words mean all partitions; offsets come as JSON or as values; anything else is refused.
        """
        place = PartitionId("clicks", HERE)
        self.assertEqual(parseStartOffsets(None, parseOffsets, [place]), {})
        self.assertEqual(parseStartOffsets("Earliest", parseOffsets, [place]), {place: EARLIEST})
        self.assertEqual(parseStartOffsets("latest", parseOffsets, [place]), {place: LATEST})
        for given in ('{"clicks": {"0-0": 5}}', {"clicks": {"0-0": 5}}):
            self.assertEqual(parseStartOffsets(given, parseOffsets, []), {place: 5})
        for wrong in ("soon", "[]", {"clicks": 5}, {"clicks": {"0": 5}}, {"clicks": {"0-0": b"5"}}):
            error = self.assertRaises(
                ConfigurationError, parseStartOffsets, wrong, parseOffsets, [place]
            )
            self.assertIn("startOffsets", str(error))


BROKERS = {3: BrokerAddress(3, "log1", 9092), 5: BrokerAddress(5, "log2", 9092)}
LINES = ["tcp://log1:9092\tclicks\t0\t100", "tcp://log2:9092\tclicks\t1\t7"]


class OffsetTests(SynchronousTestCase):
    """Addresses and numbers."""

    def test_beginnings(self) -> None:
        """A line's broker is found by its address; -1 is the earliest."""
        self.assertEqual(
            startOffsetsOf([*LINES, "tcp://log2:9092\tx\t0\t-1"], BROKERS),
            {"clicks": {"3-0": 100, "5-1": 7}, "x": {"5-0": -2}},
        )

    def test_lines(self) -> None:
        """Positions become lines that begin where the table ends."""
        positions: dict[AnyPartition, int] = {
            PartitionId("clicks", BrokerPartition(5, 1)): 7,
            PartitionId("clicks", BrokerPartition(3, 0)): 100,
        }
        self.assertEqual(linesOf(positions, BROKERS), LINES)

    def test_unknown(self) -> None:
        """An address or a number that no broker has is an error that names it."""
        error = self.assertRaises(LoadError, startOffsetsOf, ["tcp://log9:1\tx\t0\t0"], BROKERS)
        self.assertIn("tcp://log9:1: there is no such broker now; there are log1:9092", str(error))
        self.assertIn(
            "there are none", str(self.assertRaises(LoadError, startOffsetsOf, LINES, {}))
        )
        self.assertIn(
            "clicks/9-0",
            str(
                self.assertRaises(
                    LoadError, linesOf, {PartitionId("clicks", BrokerPartition(9, 0)): 1}, BROKERS
                )
            ),
        )

    def test_otherTopics(self) -> None:
        """
        Brokers that are gone matter only to the topics that are wanted; of others there are the
        lines that can be.
        """
        positions: dict[AnyPartition, int] = {
            PartitionId("clicks", BrokerPartition(3, 0)): 100,
            PartitionId("old", BrokerPartition(9, 0)): 1,
            PartitionId("old", BrokerPartition(5, 1)): 7,
        }
        self.assertEqual(
            linesOf(positions, BROKERS, ["clicks"].__contains__),
            [LINES[0], "tcp://log2:9092\told\t1\t7"],
        )
        self.assertIn(
            "old/9-0",
            str(self.assertRaises(LoadError, linesOf, positions, BROKERS, ["old"].__contains__)),
        )
