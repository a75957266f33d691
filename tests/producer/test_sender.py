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
        """
        A connection that breaks before the answer makes it unknown; what had no connection yet has
        failed.
        """
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
        """
        What was unknown, and could not be sent again, stays unknown: it may be in the log. What was
        never sent has failed.
        """
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
        """
        In sync mode a call for several topics, one of which has to be looked up, is not overtaken
        by a later one for any of them.
        """
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


class BrokerTests(ClusterCase):
    """Brokers come and go."""

    def test_deadBroker(self) -> None:
        """ProducerTest.testZKSendWithDeadBroker: after broker 1 died all goes to broker 0."""
        self.register(0, "a:1")
        self.register(1, "b:1")
        self.topic("t", 0, 1)
        self.topic("t", 1, 1)
        producer = self.clustered(partitioner=lambda key, count: count - 1)
        self.done(producer.send("t", b"1", "k"))
        self.assertEqual(self.b.payloads(), [b"1"])
        self.unregister(1, "t")
        self.b.isUp = False
        self.done(producer.send("t", b"2", "k"))
        self.assertEqual(self.a.payloads(), [b"2"])
        self.assertEqual(self.b.lines, {})  # the connection was closed (gotcha 39)
        self.close(producer)

    def test_brokerVanishesWithMessages(self) -> None:
        """What waits for a broker that vanishes goes elsewhere; that is no retry."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 100})
        sending = producer.send("t", b"1")
        self.settle()
        self.register(1, "b:1")
        self.unregister(0)
        self.assertEqual(self.b.payloads(), [b"1"])
        self.successResultOf(sending)
        self.assertEqual(producer.counters.retriedCount, 0)
        self.close(producer)

    def test_brokerVanishesUnconnected(self) -> None:
        """So does what waits for a connection to it."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 1})
        self.a.isUp = False
        sending = producer.send("t", b"1")
        self.settle()
        self.assertNoResult(sending)
        self.register(1, "b:1")
        self.unregister(0)
        self.successResultOf(sending)
        self.assertEqual(self.b.payloads(), [b"1"])
        self.close(producer)

    def test_brokerMoves(self) -> None:
        """A broker that comes back elsewhere under its number is found there."""
        self.register(0, "a:1")
        producer = self.clustered()
        self.done(producer.send("t", b"1"))
        self.registrar.set("/brokers/ids/0", b"c:b:1")
        self.settle()
        self.done(producer.send("t", b"2"))
        self.assertEqual((self.a.payloads(), self.b.payloads()), ([b"1"], [b"2"]))
        self.close(producer)

    def test_vanishesBadly(self) -> None:
        """A connection to a broker that has vanished may break instead of ending."""
        self.register(0, "a:1")
        producer = self.clustered()
        self.done(producer.send("t", b"1"))
        lines = list(self.a.lines)
        self.a.lines.clear()
        self.registrar.delete("/brokers/ids/0")
        self.settle()
        lines[0].cut()
        self.close(producer)

    def test_brokerVanishesInOrder(self) -> None:
        """
        Batches that waited for brokers that all vanish keep the order of each key, also when a
        later one has fewer messages.
        """
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 3})
        self.a.isUp = False
        sendings = [
            producer.send("t", value, key)
            for value, key in ((b"1", "k"), (b"2", "k"), (b"3", "l"), (b"4", "l"))
        ]
        producer.flush()
        self.settle()
        self.unregister(0)
        self.register(1, "b:1")
        self.cluster.pass_(5)
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.b.payloads(), [b"1", b"2", b"3", b"4"])
        self.close(producer)

    def test_registersAgain(self) -> None:
        """
        A broker whose session expires registers again where it is. What is on the way there over
        the connection from before is not overtaken by what is sent then, nor by what was moved
        because it had none: each key keeps its order, nothing is tried again, and nothing comes
        twice.
        """
        for mode in ("sync", "async"):
            for confirm in ("true", "false"):
                self.a.log.clear()
                self.register(0, "a:1")
                producer = self.clustered(
                    {"producer.type": mode, "batch.size": 1, "confirm": confirm}
                )
                producer.send("t", b"0", "k")
                self.settle()
                line = next(iter(self.a.lines))
                line.stall()
                values = [b"%d" % number + bytes(300_000) for number in range(1, 4)]
                sendings = [producer.send("t", value, "k") for value in values]
                self.settle()
                later = [b"4", b"5"] if mode == "async" else [b"4"]  # a sync producer moves nothing
                for value in later:
                    self.unregister(0)
                    self.register(0, "a:1")
                    sendings.append(producer.send("t", value, "k"))
                    self.settle()
                line.flow()
                self.cluster.pass_(1)
                for sending in sendings:
                    self.successResultOf(sending)
                self.assertEqual(self.a.payloads(), [b"0", *values, *later], (mode, confirm))
                self.assertEqual(producer.counters.retriedCount, 0)
                self.close(producer)
                self.unregister(0)

    def test_registersAgainUnconnected(self) -> None:
        """
        What waited for a connection to a broker that registers again where it is goes there before
        what is sent then, and once.
        """
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 1})
        self.a.isUp = False
        sendings = [producer.send("t", b"%d" % number, "k") for number in range(3)]
        self.settle()
        self.unregister(0)
        self.register(0, "a:1")
        sendings.append(producer.send("t", b"3", "k"))
        self.a.isUp = True
        self.cluster.pass_(5)
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"%d" % number for number in range(4)])
        self.close(producer)
