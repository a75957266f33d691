"""
Tests for L{pylogbroker.producer.topicrouter}.
"""

from __future__ import annotations

from typing import Any

from pylogbroker.client.discovery import StaticDiscovery
from pylogbroker.errors import (
    InvalidPartitionError,
    NoBrokersError,
)
from pylogbroker.producer.producer import ProducerData
from pylogbroker.types import BrokerPartition
from tests.producer.producercase import ClusterCase


class PlaceTests(ClusterCase):
    """Where messages go, and who waits to know."""

    def test_newTopic(self) -> None:
        """ProducerTest.testZKSendToNewTopic: partition 0 of all brokers first; once one has registered, its partitions come to them: 4 mod 5 is broker 1."""
        self.register(0, "a:1")
        self.register(1, "b:1")
        producer = self.clustered(partitioner=lambda key, count: len(key) % count)
        self.done(producer.send("new", b"1", "test"))
        self.assertEqual(self.a.log, [("new", 0, b"1")])
        self.topic("new", 0, 4)
        self.done(producer.send("new", b"2", "test"))
        self.assertEqual(self.b.log, [("new", 0, b"2")])
        self.close(producer)

    def test_noBrokers(self) -> None:
        """ProducerMethodsTest: without partitions the error is NoBrokersForPartition, whose text has the key in it."""
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode, "zk.read.num.retries": 1})
            sending = producer.send("t", b"x", "the-key")
            self.cluster.pass_(1)
            self.assertIn("the-key", str(self.failureResultOf(sending, NoBrokersError).value))
            closing = producer.close()
            self.settle()
            self.successResultOf(closing)

    def test_invalidPartition(self) -> None:
        """ProducerTest.testInvalidPartition: a partitioner that returns -1 is an error, in both modes."""
        self.register(0, "a:1")
        self.topic("t", 0, 1)
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode}, partitioner=lambda key, count: -1)
            sendings = [producer.send("t", b"x", "k")]
            self.done(producer.send("t", b"first")) if mode == "sync" else self.settle()
            sendings += [producer.send("t", b"x", "k"), producer.send("t", [b"x"], "k")]
            self.settle()
            for sending in sendings:
                self.failureResultOf(sending, InvalidPartitionError)
            self.close(producer)

    def test_asyncKeys(self) -> None:
        """Messages go to the partitions of their keys, in order, also those that were sent before anything was known."""
        self.register(0, "a:1")
        self.topic("t", 0, 5)
        producer = self.clustered({"producer.type": "async", "batch.size": 3})
        sendings = [producer.send("t", b"%d" % index, "test-key") for index in range(6)]
        self.settle()
        sendings += [producer.send("t", b"%d" % index, "test-key") for index in range(6, 9)]
        self.settle()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.log, [("t", 3, b"%d" % index) for index in range(9)])
        self.close(producer)

    def test_allBrokersVanish(self) -> None:
        """When the last broker vanishes, what waited for it fails, with the topic's name."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "zk.read.num.retries": 0})
        sendings = [producer.send("t", b"1"), producer.send("t", b"2", "key")]
        self.settle()
        self.unregister(0)
        for sending in sendings:
            self.assertIn("topic t", str(self.failureResultOf(sending, NoBrokersError).value))
        self.close(producer)

    def test_foreignDiscovery(self) -> None:
        """A discovery of one's own may fail in its own way, or name brokers that are not there."""

        class Strange(StaticDiscovery):
            isStatic = False
            places: list[BrokerPartition] = []

            def partitions(self, name: str) -> list[BrokerPartition]:
                return self.places

            def lookUp(self, name: str) -> Any:
                if name == "broken":
                    raise ZeroDivisionError
                return super().lookUp(name)

        strange = Strange([])
        for mode in ("sync", "async"):
            strange.places = []
            producer = self.clustered({"producer.type": mode}, discovery=strange)
            for topic in ("broken", "t"):
                sending = producer.send(topic, b"x")
                self.settle()
                self.failureResultOf(sending, NoBrokersError)
            strange.places = [BrokerPartition(5, 0)]
            sending = producer.send("t", b"x")
            self.settle()
            self.failureResultOf(sending, NoBrokersError)
            self.close(producer)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_unknownTopicInOrder(self) -> None:
        """Calls that wait for a topic to be looked up keep the order of each key, also when a later one has fewer messages."""
        self.register(0, "a:1")
        producer = self.clustered()
        calls = [
            [ProducerData("t", [b"1"], "k"), ProducerData("t", [b"2"], "l")],
            [ProducerData("t", [b"3"], "l")],
        ]
        sendings = [producer.sendMany(call) for call in calls]
        self.settle()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"1", b"2", b"3"])
        self.close(producer)

    def test_closedBeforeLookedUp(self) -> None:
        """Messages that were sent and closed upon before anything was known go in batches all the same."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 10})
        sendings = [producer.send("t", b"%d" % index) for index in range(25)]
        closing = producer.close()
        self.settle()
        self.successResultOf(closing)
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(
            (self.a.payloads(), producer.counters.batchCount),
            ([b"%d" % index for index in range(25)], 3),
        )
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_failingDiscovery(self) -> None:
        """A discovery of the application's own that fails when it is asked costs the message that it was asked for, and no other."""

        class Failing(StaticDiscovery):
            isFailing = False

            def partitions(self, name: str) -> list[BrokerPartition]:
                if self.isFailing:
                    raise ZeroDivisionError(name)
                return super().partitions(name)

        discovery = Failing([(0, "a", 1)])
        producer = self.producer({"batch.size": 2}, discovery=discovery)
        first = producer.send("t", b"1")
        discovery.isFailing = True
        self.failureResultOf(producer.send("t", b"x"), ZeroDivisionError)
        self.failureResultOf(producer.send("t", [b"x", b"y"]), ZeroDivisionError)
        synchronous = self.producer({"producer.type": "sync"}, discovery=discovery)
        both = synchronous.sendMany([ProducerData("t", [b"x"]), ProducerData("u", [b"y"])])
        self.settle()
        self.failureResultOf(both, ZeroDivisionError)
        discovery.isFailing = False
        self.done(synchronous.send("t", b"0"))
        self.a.log.clear()
        second = producer.send("t", b"2")
        self.settle()
        for sending in (first, second):
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"1", b"2"])
        self.settle()
        self.made = synchronous
        self.close(producer)
        self.done(synchronous.close())
