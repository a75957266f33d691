"""Tests for L{pylogbroker.client.connections}."""

from __future__ import annotations

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client import connections
from pylogbroker.client.connections import Connections
from pylogbroker.errors import BusyError, ClosedError, ConfigurationError


class ConnectionsTests(SynchronousTestCase):
    """The ways to many brokers."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.connections = Connections(self.reactor, connectTimeoutMs=1234)

    def test_oneToEach(self) -> None:
        """The same endpoint gives the same link; nothing is connected for that."""
        first, second = self.connections.to("192.0.2.7:9092"), self.connections.to("192.0.2.8:9092")
        self.assertIs(self.connections.to("192.0.2.7:9092"), first)
        self.assertIsNot(first, second)
        self.assertEqual(len(self.connections), 2)
        self.assertEqual(first.connectTimeoutMs, 1234)
        self.assertEqual(self.reactor.tcpClients, [])

    def test_template(self) -> None:
        """With a template, that is how a broker of an address is reached."""
        connections = Connections(self.reactor, template="tcp:{host}:{port}:timeout=7")
        link = connections.to("192.0.2.7:9092")
        self.assertIs(connections.to("192.0.2.7:9092"), link)
        self.assertEqual(link.name, "tcp:192.0.2.7:9092:timeout=7")

    def test_forget(self) -> None:
        """A broker that is gone is closed and forgotten; should it come again, it is met anew. One that nobody knows is forgotten already."""
        first = self.connections.to("192.0.2.7:9092")
        self.successResultOf(self.connections.forget("192.0.2.7:9092"))
        self.successResultOf(self.connections.forget("192.0.2.9:9092"))
        self.failureResultOf(first.connection(), ClosedError)
        self.assertIsNot(self.connections.to("192.0.2.7:9092"), first)

    def test_close(self) -> None:
        """All are closed, and no more are to be had."""
        links = [self.connections.to(f"192.0.2.{each}:9092") for each in range(3)]
        self.successResultOf(self.connections.close())
        for link in links:
            self.failureResultOf(link.connection(), ClosedError)
        self.assertRaises(ClosedError, self.connections.to, "192.0.2.7:9092")

    def test_limit(self) -> None:
        """Brokers are limited in number."""
        self.patch(connections, "BROKER_COUNT_MAX", 1)
        self.connections.to("192.0.2.7:9092")
        self.assertRaises(BusyError, self.connections.to, "192.0.2.8:9092")
        self.connections.to("192.0.2.7:9092")

    def test_wrong(self) -> None:
        """A wrong endpoint is an error, and is not kept."""
        self.assertRaises(ConfigurationError, self.connections.to, "nonsense")
        self.assertEqual(len(self.connections), 0)
