"""
Tests for L{pylogbroker.producer.sender}.
"""

from __future__ import annotations

from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    NoBrokersError,
    TimedOutError,
    UnknownOutcomeError,
)
from pylogbroker.producer.producer import ProducerData
from tests.producer.producercase import ClusterCase, ProducerCase


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
        self.assertFalse(
            self.failureResultOf(later, BrokerConnectionError).check(UnknownOutcomeError)
        )
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
        producer = self.producer(
            {"broker.list": "0:a:1,1:b:1", "num.retries": 1, "batch.size": 1}, lambda: 0.0
        )
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
        self.assertIn(
            "an attempt was unknown", str(self.failureResultOf(doubtful, UnknownOutcomeError).value)
        )
        self.failureResultOf(new, BrokerConnectionError)
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
            self.failureResultOf(sending, BrokerConnectionError)
        self.assertEqual(producer.counters.retriedCount, 4)
        self.close(producer)


class ClusterTests(ClusterCase):
    """Where brokers have to be found."""

    def test_noBrokersForAWhile(self) -> None:
        """num.retries counts for a broker that is not to be found, too."""
        self.register(0, "a:1")
        producer = self.clustered(
            {
                "producer.type": "async",
                "batch.size": 1,
                "num.retries": 10,
                "zk.read.num.retries": 1,
                "confirm": "true",
            }
        )
        self.done(producer.send("t", b"1"))
        self.a.isAnswering = False
        sending = producer.send("t", b"2")
        self.settle()
        self.unregister(0)
        self.a.cut()
        self.cluster.pass_(0.4)
        self.assertNoResult(sending)
        self.a.isAnswering = True
        self.register(0, "a:1")
        self.cluster.pass_(5)
        self.successResultOf(sending)
        self.close(producer)

    def test_syncOrder(self) -> None:
        """In sync mode a call for several topics, one of which has to be looked up, is not overtaken by a later one for any of them."""
        self.register(0, "a:1")
        self.topic("t", 0, 1)
        producer = self.clustered()
        self.done(producer.send("t", b"1", "k"))
        sendings = [
            producer.sendMany([ProducerData("t", [b"2"], "k"), ProducerData("new", [b"x"])]),
            producer.send("t", b"3", "k"),
            producer.sendMany([ProducerData("new", [b"y"]), ProducerData("t", [b"4"], "k")]),
        ]
        self.settle()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(
            (self.a.payloads("t"), self.a.payloads("new")), ([b"1", b"2", b"3", b"4"], [b"x", b"y"])
        )
        self.close(producer)

    def test_syncGivenUp(self) -> None:
        """Who waits behind such a call when the producer's time is over is told so."""
        producer = self.clustered({"close.timeout.ms": 100})
        sendings = [
            producer.sendMany([ProducerData("t", [b"1"]), ProducerData("new", [b"x"])]),
            producer.send("t", b"2"),
        ]
        closing = producer.close()
        self.cluster.pass_(1)
        self.failureResultOf(closing, TimedOutError)
        for sending in sendings:
            self.failureResultOf(sending, ClosedError, NoBrokersError)
        self.books()
