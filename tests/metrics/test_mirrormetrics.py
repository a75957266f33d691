"""
Tests for L{pylogbroker.metrics.mirrormetrics}.
"""

from __future__ import annotations

import re

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.exposition import COUNTER, render
from pylogbroker.metrics.mirrormetrics import (
    STUCK_COUNT_MAX,
    TOPIC_COUNT_MAX,
    MirrorCounters,
    StuckMessage,
    mirrorFamilies,
)


class MirrorFigureTests(SynchronousTestCase):
    """Names and values."""

    def lines(self, counters: MirrorCounters) -> list[str]:
        families = mirrorFamilies(
            counters,
            [
                ({"group": "g", "zookeeper": "zk1:2181"}, True),
                ({"group": "g", "zookeeper": "zk2:2181"}, False),
            ],
        )
        for family in families:
            self.assertTrue(
                re.fullmatch("[a-z_]+", family.name) and family.sentence.endswith("."), family.name
            )
            self.assertEqual(family.kind == COUNTER, family.name.endswith("_total"), family.name)
        return [line for line in render(families).decode().splitlines() if not line.startswith("#")]

    def test_all(self) -> None:
        """
        Each of a mirror's counters is a figure; what is under way, topics, and its share of each
        source are, too.
        """
        counters = MirrorCounters()
        counters.taken(13, 1030)
        counters.givenBack(3, 30)
        counters.confirmed("t", 4, 300)
        counters.retriedCount, counters.repeatedCount, counters.faultCount, counters.commitCount = (
            21,
            22,
            23,
            24,
        )
        self.assertEqual(
            self.lines(counters),
            [
                "pylogbroker_mirror_taken_messages_total 13",
                "pylogbroker_mirror_taken_bytes_total 1030",
                "pylogbroker_mirror_confirmed_messages_total 4",
                "pylogbroker_mirror_confirmed_bytes_total 300",
                "pylogbroker_mirror_given_back_messages_total 3",
                "pylogbroker_mirror_given_back_bytes_total 30",
                "pylogbroker_mirror_under_way_messages 6",
                "pylogbroker_mirror_under_way_bytes 700",
                "pylogbroker_mirror_retried_messages_total 21",
                "pylogbroker_mirror_repeated_messages_total 22",
                "pylogbroker_mirror_faults_total 23",
                "pylogbroker_mirror_commits_total 24",
                "pylogbroker_mirror_stuck_messages 0",
                'pylogbroker_mirror_topic_messages_total{topic="t"} 4',
                'pylogbroker_mirror_topic_bytes_total{topic="t"} 300',
                'pylogbroker_mirror_source_joined{group="g",zookeeper="zk1:2181"} 1',
                'pylogbroker_mirror_source_joined{group="g",zookeeper="zk2:2181"} 0',
            ],
        )

    def test_stuck(self) -> None:
        """
        Messages that the target does not take are counted, and each has its offset and size, of so
        many at most.
        """
        counters = MirrorCounters()
        for number in range(STUCK_COUNT_MAX + 5):
            counters.stuck[number] = StuckMessage(
                {"topic": "t", "partition": str(number)}, 100 + number, 1_000_001
            )
        lines = self.lines(counters)
        self.assertIn("pylogbroker_mirror_stuck_messages 1005", lines)
        self.assertIn('pylogbroker_mirror_stuck_offset{topic="t",partition="7"} 107', lines)
        self.assertIn('pylogbroker_mirror_stuck_bytes{topic="t",partition="7"} 1000001', lines)
        self.assertEqual(sum("stuck_bytes" in line for line in lines), STUCK_COUNT_MAX)

    def test_otherTopics(self) -> None:
        """Topics beyond the limit are one figure, under no name, once there are some."""
        counters = MirrorCounters()
        for number in range(TOPIC_COUNT_MAX):
            counters.confirmed(str(number), 1, 1)
        self.assertNotIn('{topic=""}', "".join(self.lines(counters)))
        counters.confirmed("one more", 2, 3)
        lines = self.lines(counters)
        self.assertIn('pylogbroker_mirror_topic_messages_total{topic=""} 2', lines)
        self.assertIn('pylogbroker_mirror_topic_bytes_total{topic=""} 3', lines)
