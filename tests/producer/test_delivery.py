"""
Tests for L{pylogbroker.producer.delivery}.
"""

from __future__ import annotations

from pylogbroker.errors import (
    ConnectionError,  # noqa: A004
    UnknownOutcomeError,
)
from tests.producer.producercase import ProducerCase


class ConfirmTests(ProducerCase):
    """Knowing what the broker took."""

    def test_confirmed(self) -> None:
        """A message is through when the question behind it is answered."""
        producer = self.producer({"confirm": "true", "batch.size": 1})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.turn()
        self.assertEqual(self.a.kinds, ["MultiProduce", "Offsets"])
        self.assertNoResult(sending)
        self.a.isAnswering = True
        more = producer.send("t", b"y")
        self.turn()
        self.successResultOf(sending)  # answers have no names: the first is for the first question
        self.assertNoResult(more)
        self.a.cut()
        self.turn()
        self.failureResultOf(more, UnknownOutcomeError)
        self.assertEqual((producer.counters.writtenCount, producer.counters.unknownCount), (1, 1))
        self.close(producer)

    def test_unknown(self) -> None:
        """A connection that breaks before the answer makes it unknown; what had no connection yet has failed."""
        producer = self.producer({"confirm": "true", "batch.size": 1})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.turn()
        self.a.cut()
        self.a.isUp = False
        later = producer.send("t", b"y")
        self.cluster.pass_(6)
        self.assertIn("a:1", str(self.failureResultOf(sending, UnknownOutcomeError).value))
        self.assertFalse(self.failureResultOf(later, ConnectionError).check(UnknownOutcomeError))
        self.assertEqual((producer.counters.failedCount, producer.counters.unknownCount), (1, 1))
        self.close(producer)

    def test_noAnswer(self) -> None:
        """A question that is not answered in time makes it unknown."""
        producer = self.producer({"confirm": "true", "batch.size": 1, "socket.timeout.ms": 1000})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.cluster.pass_(1.1)
        self.failureResultOf(sending, UnknownOutcomeError)
        producer.close()
        self.cluster.pass_(20)

    def test_sync(self) -> None:
        """It works in sync mode as well."""
        producer = self.producer({"producer.type": "sync", "confirm": "true"})
        sending = producer.send("t", b"x")
        self.turn()
        self.successResultOf(sending)
        self.assertEqual(self.a.kinds, ["Produce", "Offsets"])
        self.close(producer)


class RetryTests(ProducerCase):
    """num.retries."""

    def test_otherBroker(self) -> None:
        """A batch that failed is tried again at another broker (gotcha 32), and that is counted."""
        self.a.isUp = False
        producer = self.producer({"broker.list": "0:a:1,1:b:1", "num.retries": 1, "batch.size": 1}, lambda: 0.0)
        sending = producer.send("t", b"x")
        self.cluster.pass_(6)
        self.successResultOf(sending)
        self.assertEqual(self.b.payloads(), [b"x"])
        self.assertEqual((producer.counters.retriedCount, producer.counters.repeatedCount), (1, 0))
        self.close(producer)

    def test_repeated(self) -> None:
        """What was unknown may be in the log twice after a retry; that is counted."""
        producer = self.producer({"num.retries": 1, "batch.size": 1, "confirm": "true"})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.turn()
        self.a.isAnswering = True
        self.a.cut()
        self.cluster.pass_(1)
        self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"x", b"x"])
        self.assertEqual(producer.counters.repeatedCount, 1)
        self.close(producer)

    def test_failedAfterUnknown(self) -> None:
        """What was unknown, and could not be sent again, stays unknown: it may be in the log. What was never sent has failed."""
        producer = self.producer({"num.retries": 2, "batch.size": 1, "confirm": "true"})
        self.a.isAnswering = False
        doubtful = producer.send("t", b"x")
        self.turn()
        self.a.isUp = False
        self.a.cut()
        new = producer.send("t", b"y")
        self.cluster.pass_(30)
        self.assertIn("an attempt was unknown", str(self.failureResultOf(doubtful, UnknownOutcomeError).value))
        self.failureResultOf(new, ConnectionError)
        self.assertEqual(self.a.payloads(), [b"x"])
        self.assertEqual((producer.counters.unknownCount, producer.counters.failedCount), (1, 1))
        self.close(producer)

    def test_exhausted(self) -> None:
        """After the last retry the failure is told."""
        self.a.isUp = False
        producer = self.producer({"num.retries": 2, "batch.size": 2})
        sendings = [producer.send("t", b"x"), producer.send("t", b"y", "key")]
        self.cluster.pass_(20)
        for sending in sendings:
            self.failureResultOf(sending, ConnectionError)
        self.assertEqual(producer.counters.retriedCount, 4)
        self.close(producer)
