"""
Tests for L{pylogbroker.broker.unproven}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.unproven import PLACE_COUNT_MAX, Unproven
from pylogbroker.model import RANDOM_PARTITION, TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class UnprovenTests(SynchronousTestCase):
    """Where a connection's messages went."""

    def concerned(self, unproven: Unproven) -> list[TopicPartition]:
        return [where for where in (T0, T1, U0) if unproven.concerns(where)]

    def test_places(self) -> None:
        """It is concerned by the partitions that it was told of, and, where the broker picked one, by all of the topic; by none when all is proven."""
        unproven = Unproven()
        self.assertEqual(self.concerned(unproven), [])
        unproven.clear()
        unproven.add("t", 0)
        self.assertEqual(self.concerned(unproven), [T0])
        unproven.add("t", RANDOM_PARTITION)
        self.assertEqual(self.concerned(unproven), [T0, T1])
        unproven.clear()
        self.assertEqual(self.concerned(unproven), [])

    def test_limit(self) -> None:
        """Of more places than it remembers, it is concerned by all there are."""
        unproven = Unproven()
        for number in range(PLACE_COUNT_MAX - 1):
            unproven.add(f"topic{number}", 0)
        self.assertEqual(self.concerned(unproven), [])
        unproven.add("t", 0)
        unproven.add("more", 0)
        self.assertEqual(self.concerned(unproven), [T0, T1, U0])
        unproven.clear()
        self.assertEqual(self.concerned(unproven), [])
