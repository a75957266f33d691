"""Tests for L{pylogbroker.spark.partitionbounds}."""

from __future__ import annotations

from pylogbroker.errors import UnreadableRangeError
from pylogbroker.records.messageset import encodeSet
from pylogbroker.spark.partitionbounds import fetchBounds, fetchOffsetAt
from pylogbroker.spark.splits import SegmentBounds
from tests.spark.sourcecase import HERE, SourceCase

SET = encodeSet([b"payload"])


class EndsTests(SourceCase):
    """Where partitions begin and end."""

    def test_segments(self) -> None:
        """Segment starts, ascending, and the end behind them."""
        starts = self.broker.log().append(SET, SET, SET)
        self.assertEqual(
            fetchBounds(self.brokers(), "clicks", HERE), SegmentBounds(tuple(starts), 3 * len(SET))
        )
        self.broker.log().deleteBefore(starts[1])
        self.assertEqual(fetchBounds(self.brokers(), "clicks", HERE).earliest, starts[1])

    def test_emptySegmentAtTheEnd(self) -> None:
        """A log that was just rolled ends where its last segment begins, and one that never had a message at 0."""
        self.broker.log().append(SET, b"")
        self.assertEqual(fetchBounds(self.brokers(), "clicks", HERE), SegmentBounds((0,), len(SET)))
        self.assertEqual(fetchBounds(self.brokers(), "other", HERE), SegmentBounds((0,), 0))

    def test_noSuchPartition(self) -> None:
        """A partition that the broker does not have is an error that names it."""
        error = self.assertRaises(
            UnreadableRangeError, fetchBounds, self.brokers(), "clicks", HERE._replace(partition=3)
        )
        self.assertEqual(
            str(error), "topic clicks, partition 0-3: the broker does not have this partition"
        )

    def test_times(self) -> None:
        """Reading since a time begins at a segment that was complete before, or at the earliest."""
        log = self.broker.log()
        starts = log.append(SET, SET, SET)
        log.times = {starts[0]: 1_000, starts[1]: 2_000, starts[2]: 3_000}
        self.assertEqual(
            [
                fetchOffsetAt(self.brokers(), "clicks", HERE, time)
                for time in (500, 1_000, 2_500, 9_000)
            ],
            [0, 0, starts[1], starts[2]],
        )

    def test_noAnswerToRelyOn(self) -> None:
        """A broker that names no offset at all is an error."""
        self.broker.log().offsets = lambda time: []  # type: ignore[method-assign]
        self.assertIn(
            "does not say where it ends",
            str(
                self.assertRaises(UnreadableRangeError, fetchBounds, self.brokers(), "clicks", HERE)
            ),
        )
