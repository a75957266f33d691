"""
Tests for L{pylogbroker.producer.brokersenders}.
"""

from __future__ import annotations

from tests.producer.producercase import ClusterCase


class WayTests(ClusterCase):
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
        """Batches that waited for brokers that all vanish keep the order of each key, also when a later one has fewer messages."""
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
        A broker whose session expires registers again where it is. What is on the way there over the connection from before is not overtaken by what is sent
        then, nor by what was moved because it had none: each key keeps its order, nothing is tried again, and nothing comes twice.
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
        """What waited for a connection to a broker that registers again where it is goes there before what is sent then, and once."""
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
