"""
Tests for L{pylogbroker.broker.unackedproduces}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.unackedproduces import PLACE_COUNT_MAX, UnackedProduces
from pylogbroker.types import RANDOM_PARTITION, TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def none() -> int:
    """No partition is out of service."""
    return 0


class UnprovenTests(SynchronousTestCase):
    """Where a connection's messages went."""

    def concerned(self, unproven: UnackedProduces) -> list[TopicPartition]:
        return [where for where in (T0, T1, U0) if unproven.concerns(where)]

    def test_places(self) -> None:
        """It is concerned by the partitions that it was told of, and, where the broker picked one, by all of the topic; by none when all is proven."""
        unproven = UnackedProduces()
        self.assertEqual(self.concerned(unproven), [])
        unproven.clear()
        unproven.add("t", 0, none)
        self.assertEqual(self.concerned(unproven), [T0])
        unproven.add("t", RANDOM_PARTITION, none)
        self.assertEqual(self.concerned(unproven), [T0, T1])
        unproven.clear()
        self.assertEqual(self.concerned(unproven), [])

    def test_limit(self) -> None:
        """Of more places than it remembers, it is concerned by all there are."""
        unproven = UnackedProduces()
        for number in range(PLACE_COUNT_MAX - 1):
            unproven.add(f"topic{number}", 0, none)
        self.assertEqual(self.concerned(unproven), [])
        unproven.add("t", 0, none)
        unproven.add("more", 0, none)
        self.assertEqual(self.concerned(unproven), [T0, T1, U0])
        unproven.clear()
        self.assertEqual(self.concerned(unproven), [])

    def test_dropped(self) -> None:
        """That something was dropped, and why the first time, stays so."""
        unproven = UnackedProduces()
        self.assertIsNone(unproven.dropped)
        unproven.add("t", 0, none)
        unproven.drop("first")
        unproven.drop("second")
        unproven.clear()
        self.assertEqual(unproven.dropped, "first")

    def test_lostBefore(self) -> None:
        """It knows how many partitions had failed before the first message since the last answer, and not before a later one."""
        unproven = UnackedProduces()
        counts = iter((3, 5))
        for _answer, before in ((1, 3), (2, 5)):
            unproven.add("t", 0, lambda: next(counts))
            unproven.add("t", 1, lambda: next(counts))
            self.assertEqual(unproven.failedPartitionsBefore, before)
            unproven.clear()
