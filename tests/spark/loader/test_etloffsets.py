"""
Tests for L{pylogbroker.spark.loader.etloffsets}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import LoadError
from pylogbroker.spark.loader.etloffsets import beginningsOf, linesOf
from pylogbroker.types import BrokerPartition, PartitionId

BROKERS = {3: BrokerAddress(3, "log1", 9092), 5: BrokerAddress(5, "log2", 9092)}
LINES = ["tcp://log1:9092\tclicks\t0\t100", "tcp://log2:9092\tclicks\t1\t7"]


class OffsetTests(SynchronousTestCase):
    """Addresses and numbers."""

    def test_beginnings(self) -> None:
        """A line's broker is found by its address; -1 is the earliest."""
        self.assertEqual(
            beginningsOf([*LINES, "tcp://log2:9092\tx\t0\t-1"], BROKERS),
            {"clicks": {"3-0": 100, "5-1": 7}, "x": {"5-0": -2}},
        )

    def test_lines(self) -> None:
        """Positions become lines that begin where the table ends."""
        positions = {
            PartitionId("clicks", BrokerPartition(5, 1)): 7,
            PartitionId("clicks", BrokerPartition(3, 0)): 100,
        }
        self.assertEqual(linesOf(positions, BROKERS), LINES)

    def test_unknown(self) -> None:
        """An address or a number that nobody has is an error that names it."""
        error = self.assertRaises(LoadError, beginningsOf, ["tcp://log9:1\tx\t0\t0"], BROKERS)
        self.assertIn("tcp://log9:1: there is no such broker now; there are log1:9092", str(error))
        self.assertIn("there are none", str(self.assertRaises(LoadError, beginningsOf, LINES, {})))
        self.assertIn(
            "clicks/9-0",
            str(
                self.assertRaises(
                    LoadError, linesOf, {PartitionId("clicks", BrokerPartition(9, 0)): 1}, BROKERS
                )
            ),
        )

    def test_otherTopics(self) -> None:
        """Brokers that are gone matter only to the topics that are wanted; of others there are the lines that can be."""
        positions = {
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
