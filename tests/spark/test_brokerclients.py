"""Tests for L{pylogbroker.spark.brokerclients}."""

from __future__ import annotations

from pylogbroker.errors import BrokerConnectionError, NoBrokersError, RemotePartitionError
from tests.spark.sourcecase import SourceCase


class BrokersTests(SourceCase):
    """Questions that are repeated."""

    def test_answer(self) -> None:
        """An answer comes back at once; the connection is kept for the next question."""
        brokers = self.brokers()
        for _time in range(2):
            self.assertEqual(
                brokers.ask(
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
            self.brokers().ask(
                0, "what", lambda consumer: consumer.getOffsetsBefore("clicks", 0, -1, 1)
            ),
            [0],
        )
        self.assertEqual(self.pauses, [0.1, 0.2])

    def test_givenUp(self) -> None:
        """A broker that gives no answer, as often as it is asked, is an error that says what was asked, of whom and how often."""
        self.broker.before = lambda request: False
        error = self.assertRaises(
            BrokerConnectionError,
            self.brokers(retryCount=1).ask,
            0,
            "topic t",
            lambda consumer: consumer.fetch("t", 0, 0, 9),
        )
        self.assertIn("topic t: broker 0 gave no answer, 2 times: ", str(error))
        self.assertEqual(len(self.broker.requests), 4)

    def test_errorCodesAreAnswers(self) -> None:
        """What a broker answers is not asked again."""
        found = self.brokers().ask(0, "what", lambda consumer: consumer.fetch("clicks", 5, 0, 9))
        self.assertIsInstance(found.error, RemotePartitionError)
        self.assertEqual(len(self.broker.requests), 1)

    def test_unknownBroker(self) -> None:
        """A number that no broker has is an error that says which there are."""
        error = self.assertRaises(
            NoBrokersError, self.brokers().ask, 7, "topic t", lambda consumer: None
        )
        self.assertEqual(str(error), "topic t: there is no broker 7; there are 0")
