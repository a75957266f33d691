"""
Tests for L{pylogbroker.producer.completion}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import BrokerConnectionError, QueueFullError, UnknownOutcomeError
from pylogbroker.producer.batches import QueueItem
from pylogbroker.producer.completion import Completions, SendGroup
from pylogbroker.producer.inflight import InFlightLimiter


class TicketTests(SynchronousTestCase):
    """One who waits for many."""

    def test_all(self) -> None:
        """It fires with the last."""
        ticket = SendGroup(2)
        ticket.callback(None)
        self.assertNoResult(ticket.waiter)
        ticket.callback(None)
        self.successResultOf(ticket.waiter)

    def test_worst(self) -> None:
        """Unknown is worse than failed, whichever comes first; and both wait for the rest."""
        failed, unknown = (
            Failure(BrokerConnectionError("no")),
            Failure(UnknownOutcomeError("who knows")),
        )
        for failures in ([failed, unknown], [unknown, failed]):
            ticket = SendGroup(3)
            for failure in failures:
                ticket.errback(failure)
            self.assertNoResult(ticket.waiter)
            ticket.callback(None)
            self.failureResultOf(ticket.waiter, UnknownOutcomeError)


class OutcomesTests(SynchronousTestCase):
    """The books."""

    def setUp(self) -> None:
        self.queue = InFlightLimiter(Clock(), 10, 1000, -1)
        self.settledCounts: list[int] = []
        self.outcomes = Completions(self.queue, lambda: self.settledCounts.append(self.queue.count))

    def items(self, count: int) -> list[QueueItem]:
        """In the queue, each with somebody who waits."""
        items: list[QueueItem] = [
            QueueItem("t", b"12345", None, 0, 5, Deferred()) for _ in range(count)
        ]
        self.assertTrue(self.queue.take(count, 5 * count))
        return items

    def waiters(self, items: list[QueueItem]) -> list[Any]:
        return [item.waiter for item in items]

    def test_sent(self) -> None:
        """Messages that are sent leave the queue, and who waited is told before others may look."""
        items = self.items(3)
        waiters = self.waiters(items)
        waiters[0].addCallback(lambda _: self.assertEqual(self.settledCounts, []))
        self.outcomes.settle(items)
        for waiter in waiters:
            self.successResultOf(waiter)
        self.assertEqual((self.queue.count, self.queue.size, self.settledCounts), (0, 0, [0]))
        self.assertEqual(self.outcomes.counters.writtenCount, 3)
        self.assertEqual(self.waiters(items), [None] * 3)

    def test_failed(self) -> None:
        """Failed and unknown are counted apart."""
        for error, kind in (
            (BrokerConnectionError("no"), BrokerConnectionError),
            (UnknownOutcomeError("who knows"), UnknownOutcomeError),
        ):
            items = self.items(2)
            waiters = self.waiters(items)
            self.outcomes.settle(items, Failure(error))
            for waiter in waiters:
                self.failureResultOf(waiter, kind)
        counters = self.outcomes.counters
        self.assertEqual(
            (counters.writtenCount, counters.failedCount, counters.unknownCount, self.queue.count),
            (0, 2, 2, 0),
        )

    def test_refused(self) -> None:
        """What was refused was never in; it has failed, and was dropped if the queue was full."""
        for reason, droppedCount in ((QueueFullError("full"), 2), (BrokerConnectionError("no"), 2)):
            items: list[QueueItem] = [QueueItem("t", b"x", waiter=Deferred()) for _ in range(2)]
            waiters = self.waiters(items)
            self.outcomes.refused(items, reason)
            for waiter in waiters:
                self.failureResultOf(waiter, type(reason))
            self.assertEqual(self.outcomes.counters.droppedCount, droppedCount)
        self.assertEqual((self.outcomes.counters.failedCount, self.settledCounts), (4, []))

    def test_logged(self) -> None:
        """Messages that were not sent are logged, unless whoever sends them does that; they are counted and told in any case."""
        for isLogging in (True, False):
            outcomes = Completions(self.queue, lambda: None, isLogging)
            with capturedLogs() as events:
                items = self.items(2)
                waiters = self.waiters(items)
                outcomes.settle(items, Failure(BrokerConnectionError("no way")))
                refused: QueueItem = QueueItem("t", b"x", waiter=Deferred())
                waiters.append(refused.waiter)
                outcomes.refused([refused], QueueFullError("no room"))
            texts = [formatEvent(event) for event in events]
            self.assertEqual(len(texts), 2 if isLogging else 0)
            self.assertEqual("no way" in "".join(texts), isLogging)
            for waiter in waiters:
                self.failureResultOf(waiter, BrokerConnectionError, QueueFullError)
            self.assertEqual(outcomes.counters.failedCount, 3)

    def test_retried(self) -> None:
        """A second try of what is unknown may put a message into the log twice, and is counted as that."""
        self.outcomes.retried(self.items(2), "a:1", BrokerConnectionError("no"))
        self.outcomes.retried(self.items(1), "a:1", UnknownOutcomeError("who knows"))
        self.assertEqual(
            (self.outcomes.counters.retriedCount, self.outcomes.counters.repeatedCount), (3, 1)
        )
