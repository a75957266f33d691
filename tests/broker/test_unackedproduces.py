"""
Tests for L{pylogbroker.broker.kafka07}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka07 import PARTITION_COUNT_MAX, UnconfirmedPartitions
from pylogbroker.types import RANDOM_PARTITION, TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def none() -> int:
    """No partition is out of service."""
    return 0


class UnprovenTests(SynchronousTestCase):
    """Where a connection's messages went."""

    def concerned(self, unacked: UnconfirmedPartitions) -> list[TopicPartition]:
        return [where for where in (T0, T1, U0) if unacked.mayInclude(where)]

    def test_places(self) -> None:
        """
        It is concerned by the partitions that it was told of, and, where the broker picked one, by
        all of the topic; by none when all is proven.
        """
        unacked = UnconfirmedPartitions()
        self.assertEqual(self.concerned(unacked), [])
        unacked.clear()
        unacked.record("t", 0, none)
        self.assertEqual(self.concerned(unacked), [T0])
        unacked.record("t", RANDOM_PARTITION, none)
        self.assertEqual(self.concerned(unacked), [T0, T1])
        unacked.clear()
        self.assertEqual(self.concerned(unacked), [])

    def test_limit(self) -> None:
        """Of more places than it remembers, it is concerned by all there are."""
        unacked = UnconfirmedPartitions()
        for number in range(PARTITION_COUNT_MAX - 1):
            unacked.record(f"topic{number}", 0, none)
        self.assertEqual(self.concerned(unacked), [])
        unacked.record("t", 0, none)
        unacked.record("more", 0, none)
        self.assertEqual(self.concerned(unacked), [T0, T1, U0])
        unacked.clear()
        self.assertEqual(self.concerned(unacked), [])

    def test_dropped(self) -> None:
        """That something was dropped, and why the first time, stays so."""
        unacked = UnconfirmedPartitions()
        self.assertIsNone(unacked.dropped)
        unacked.record("t", 0, none)
        unacked.markDropped("first")
        unacked.markDropped("second")
        unacked.clear()
        self.assertEqual(unacked.dropped, "first")

    def test_lostBefore(self) -> None:
        """
        It knows how many partitions had failed before the first message since the last answer, and
        not before a later one.
        """
        unacked = UnconfirmedPartitions()
        counts = iter((3, 5))
        for _answer, before in ((1, 3), (2, 5)):
            unacked.record("t", 0, lambda: next(counts))
            unacked.record("t", 1, lambda: next(counts))
            self.assertEqual(unacked.failedBefore, before)
            unacked.clear()
