"""
Tests for L{pylogbroker.spark.brokerclients}.
"""

from __future__ import annotations

from pylogbroker.errors import (
    BrokerConnectionError,
    NoBrokersError,
    RemotePartitionError,
    UnreadableRangeError,
)
from pylogbroker.records.messageset import encodeSet
from pylogbroker.spark.brokerclients import SegmentBounds
from tests.spark.sourcecase import HERE, SourceCase


class BrokersTests(SourceCase):
    """Questions that are repeated."""

    def test_answer(self) -> None:
        """An answer comes back at once; the connection is kept for the next question."""
        brokers = self.brokers()
        for _time in range(2):
            self.assertEqual(
                brokers.call(
                    0, "what", lambda consumer: consumer.getOffsetsBefore("clicks", 0, -1, 1)
                ),
                [0],
            )
        self.assertEqual(self.pauses, [])
        self.assertEqual(brokers.address(0), self.broker.address)

    def test_askedAgain(self) -> None:
        """A question without an answer is asked again, after longer and longer pauses."""
        closings = iter([False] * 4)  # a client itself tries each twice
        self.broker.before = lambda request: next(closings, True)
        self.assertEqual(
            self.brokers().call(
                0, "what", lambda consumer: consumer.getOffsetsBefore("clicks", 0, -1, 1)
            ),
            [0],
        )
        self.assertEqual(self.pauses, [0.1, 0.2])

    def test_givenUp(self) -> None:
        """
        A broker that gives no answer, as often as it is asked, is an error that says what was
        asked, of whom and how often.
        """
        self.broker.before = lambda request: False
        error = self.assertRaises(
            BrokerConnectionError,
            self.brokers(retryCount=1).call,
            0,
            "topic t",
            lambda consumer: consumer.fetch("t", 0, 0, 9),
        )
        self.assertIn("topic t: broker 0 did not answer 2 requests: ", str(error))
        self.assertEqual(len(self.broker.requests), 4)

    def test_errorCodesAreAnswers(self) -> None:
        """What a broker answers is not asked again."""
        found = self.brokers().call(0, "what", lambda consumer: consumer.fetch("clicks", 5, 0, 9))
        self.assertIsInstance(found.error, RemotePartitionError)
        self.assertEqual(len(self.broker.requests), 1)

    def test_unknownBroker(self) -> None:
        """A number that no broker has is an error that says which there are."""
        error = self.assertRaises(
            NoBrokersError, self.brokers().call, 7, "topic t", lambda consumer: None
        )
        self.assertEqual(str(error), "topic t: there is no broker 7; the brokers are 0")


SET = encodeSet([b"payload"])


class EndsTests(SourceCase):
    """Where partitions begin and end."""

    def test_segments(self) -> None:
        """Segment starts, ascending, and the end behind them."""
        starts = self.broker.log().append(SET, SET, SET)
        self.assertEqual(
            self.brokers().segmentBounds("clicks", HERE), SegmentBounds(tuple(starts), 3 * len(SET))
        )
        self.broker.log().deleteBefore(starts[1])
        self.assertEqual(self.brokers().segmentBounds("clicks", HERE).earliest, starts[1])

    def test_emptySegmentAtTheEnd(self) -> None:
        """
        A log that was just rolled ends where its last segment begins, and one that never had a
        message at 0.
        """
        self.broker.log().append(SET, b"")
        self.assertEqual(
            self.brokers().segmentBounds("clicks", HERE), SegmentBounds((0,), len(SET))
        )
        self.assertEqual(self.brokers().segmentBounds("other", HERE), SegmentBounds((0,), 0))

    def test_noSuchPartition(self) -> None:
        """A partition that the broker does not have is an error that names it."""
        error = self.assertRaises(
            UnreadableRangeError, self.brokers().segmentBounds, "clicks", HERE._replace(partition=3)
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
            [self.brokers().offsetAt("clicks", HERE, time) for time in (500, 1_000, 2_500, 9_000)],
            [0, 0, starts[1], starts[2]],
        )

    def test_noAnswerToRelyOn(self) -> None:
        """A broker that names no offset at all is an error."""
        self.broker.log().offsets = lambda time: []  # type: ignore[method-assign]
        self.assertIn(
            "does not name its end",
            str(
                self.assertRaises(
                    UnreadableRangeError, self.brokers().segmentBounds, "clicks", HERE
                )
            ),
        )
