"""
Tests for L{pylogbroker.metrics.mirrormetrics}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.mirrormetrics import TOPIC_COUNT_MAX, MirrorCounters, StuckMessage


class MirrorCountersTests(SynchronousTestCase):
    """What a mirror counts."""

    def test_underWay(self) -> None:
        """What is under way is what was taken and is not confirmed."""
        counters = MirrorCounters()
        counters.taken(10, 1000)
        counters.confirmed("t", 4, 300)
        self.assertEqual((counters.underWayCount, counters.underWaySize), (6, 700))

    def test_snapshot(self) -> None:
        """A picture has all numbers, and does not change afterwards."""
        counters = MirrorCounters()
        counters.taken(3, 30)
        counters.confirmed("t", 1, 10)
        counters.stuck[self] = StuckMessage({"topic": "t"}, 7, 20)
        picture: Any = counters.snapshot()
        counters.stuck.clear()
        counters.confirmed("t", 1, 10)
        self.assertEqual(
            picture,
            {
                "takenCount": 3,
                "takenSize": 30,
                "confirmedCount": 1,
                "confirmedSize": 10,
                "underWayCount": 2,
                "underWaySize": 20,
                "retriedCount": 0,
                "repeatedCount": 0,
                "givenBackCount": 0,
                "givenBackSize": 0,
                "faultCount": 0,
                "commitCount": 0,
                "stuck": [{"topic": "t", "offset": 7, "size": 20}],
                "topics": {"t": {"messageCount": 1, "size": 10}},
                "otherTopics": {"messageCount": 0, "size": 0},
            },
        )

    def test_bounded(self) -> None:
        """
        So many topics are counted one by one, and none with a very long name; the others together.
        """
        counters = MirrorCounters()
        counters.confirmed("x" * 256, 1, 1)
        for number in range(TOPIC_COUNT_MAX + 5):
            counters.confirmed(str(number), 1, 2)
        self.assertEqual(
            (len(counters.topics), counters.otherTopics.messageCount, counters.otherTopics.size),
            (TOPIC_COUNT_MAX, 6, 11),
        )
