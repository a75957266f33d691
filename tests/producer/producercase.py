"""
What tests of a whole producer share: brokers on a puppet network, and a ZooKeeper double.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.producer.producer import Producer
from pylogbroker.testing.zookeeper import FakeZookeeper
from tests.producer.puppets import PuppetBroker, PuppetCluster, PuppetConnections


class ProducerCase(SynchronousTestCase):
    """A producer on a puppet network."""

    names: tuple[str, ...] = ("a:1", "b:1")

    def setUp(self) -> None:
        self.cluster = PuppetCluster(*self.names)
        self.clock = self.cluster.clock
        self.random = Random(7)

    @property
    def a(self) -> PuppetBroker:
        return self.cluster.brokers["a:1"]

    @property
    def b(self) -> PuppetBroker:
        return self.cluster.brokers["b:1"]

    def producer(
        self,
        properties: dict[str, Any] | None = None,
        random: Callable[[], float] | None = None,
        **arguments: Any,
    ) -> Producer:
        given = {"broker.list": "0:a:1", "producer.type": "async", **(properties or {})}
        connections = PuppetConnections(self.cluster.network, self.random.random)
        texts = {
            key.replace("_", "."): str(value) for key, value in given.items() if value is not None
        }
        self.made = Producer(
            self.clock,
            texts,
            connectionPool=connections,
            random=random or self.random.random,
            **arguments,
        )
        return self.made

    def turn(self) -> None:
        self.cluster.turn()

    def books(self) -> None:
        """The counters add up."""
        counters = self.made.counters
        self.assertEqual(
            counters.acceptedCount,
            counters.writtenCount
            + counters.failedCount
            + counters.unknownCount
            + self.made._limiter.count,
        )

    def close(self, producer: Producer) -> None:
        closing = producer.close()
        self.cluster.pass_(0.1)
        self.successResultOf(closing)
        self.books()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class ClusterCase(ProducerCase):
    """A producer with the registries."""

    def setUp(self) -> None:
        super().setUp()
        self.server = FakeZookeeper(self.clock)
        self.registrar = self.server.client()
        self.registrar.connect()
        self.zookeeper = self.server.client()
        self.zookeeper.connect()
        self.settle()
        for path in ("/brokers", "/brokers/ids", "/brokers/topics"):
            self.registrar.create(path)
        self.settle()

    def settle(self) -> None:
        for _turn in range(40):
            self.turn()

    def register(self, number: int, address: str) -> None:
        self.registrar.create(f"/brokers/ids/{number}", f"c:{address}".encode(), flags=EPHEMERAL)
        self.settle()

    def topic(self, name: str, number: int, count: int) -> None:
        self.registrar.create(f"/brokers/topics/{name}").addErrback(lambda failure: None)
        self.registrar.create(
            f"/brokers/topics/{name}/{number}", str(count).encode(), flags=EPHEMERAL
        )
        self.settle()

    def unregister(self, number: int, *topics: str) -> None:
        for name in topics:
            self.registrar.delete(f"/brokers/topics/{name}/{number}")
        self.registrar.delete(f"/brokers/ids/{number}")
        self.settle()

    def clustered(self, properties: dict[str, Any] | None = None, **arguments: Any) -> Producer:
        given = {
            "broker.list": None,
            "zk.connect": "z:2181",
            "producer.type": "sync",
            **(properties or {}),
        }
        return self.producer(given, zookeeper=self.zookeeper, **arguments)

    def done(self, sending: Any) -> Any:
        self.settle()
        return self.successResultOf(sending)
