"""Tests for L{pylogbroker.client.brokerclient.BrokerClientPool}."""

from __future__ import annotations

from random import Random

from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client import brokerclient
from pylogbroker.client.brokerclient import BrokerClientPool
from pylogbroker.errors import BackpressureError, ClosedError, ConfigurationError, TimedOutError
from pylogbroker.testing.network import MemoryNetwork, MemoryPeer
from tests.producer.puppets import PuppetConnections


class ConnectionsTests(SynchronousTestCase):
    """The ways to many brokers."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.connections = BrokerClientPool(self.reactor, connectTimeoutMs=1234)

    def test_oneToEach(self) -> None:
        """The same endpoint gives the same link; nothing is connected for that."""
        first, second = (
            self.connections.get("192.0.2.7:9092"),
            self.connections.get("192.0.2.8:9092"),
        )
        self.assertIs(self.connections.get("192.0.2.7:9092"), first)
        self.assertIsNot(first, second)
        self.assertEqual(len(self.connections), 2)
        self.assertEqual(first.connectTimeoutMs, 1234)
        self.assertEqual(self.reactor.tcpClients, [])

    def test_template(self) -> None:
        """With a template, that is how a broker of an address is reached."""
        pool = BrokerClientPool(self.reactor, template="tcp:{host}:{port}:timeout=7")
        link = pool.get("192.0.2.7:9092")
        self.assertIs(pool.get("192.0.2.7:9092"), link)
        self.assertEqual(link.name, "tcp:192.0.2.7:9092:timeout=7")

    def test_forget(self) -> None:
        """
        A broker that is gone is closed and forgotten; should it come again, it is met anew. One
        that nobody knows is forgotten already.
        """
        first = self.connections.get("192.0.2.7:9092")
        self.successResultOf(self.connections.forget("192.0.2.7:9092"))
        self.successResultOf(self.connections.forget("192.0.2.9:9092"))
        self.failureResultOf(first.connection(), ClosedError)
        self.assertIsNot(self.connections.get("192.0.2.7:9092"), first)

    def test_close(self) -> None:
        """All are closed, and no more are to be had."""
        links = [self.connections.get(f"192.0.2.{each}:9092") for each in range(3)]
        self.successResultOf(self.connections.close())
        for link in links:
            self.failureResultOf(link.connection(), ClosedError)
        self.assertRaises(ClosedError, self.connections.get, "192.0.2.7:9092")

    def test_limit(self) -> None:
        """Brokers are limited in number."""
        self.patch(brokerclient, "BROKER_COUNT_MAX", 1)
        self.connections.get("192.0.2.7:9092")
        self.assertRaises(BackpressureError, self.connections.get, "192.0.2.8:9092")
        self.connections.get("192.0.2.7:9092")

    def test_wrong(self) -> None:
        """A wrong endpoint is an error, and is not kept."""
        self.assertRaises(ConfigurationError, self.connections.get, "nonsense")
        self.assertEqual(len(self.connections), 0)


class AgainTests(SynchronousTestCase):
    """A broker is forgotten, and met again before it has seen the end of the connection."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.connections = PuppetConnections(self.network, Random(7).random)

    def connected(self) -> MemoryPeer:
        """Connect."""
        asked = self.connections.get("a:1").connection()
        line = self.network.accept()
        self.successResultOf(asked)
        return line

    def test_oneAtATime(self) -> None:
        """
        The new way makes its connection when the old one is gone, so that nothing sent over it
        overtakes what was sent before.
        """
        line = self.connected()
        closing = self.connections.forget("a:1")
        asked = self.connections.get("a:1").connection()
        self.network.turn()
        self.assertEqual(self.network.waiting, [])
        line.end()
        self.successResultOf(closing)
        self.network.accept()
        self.successResultOf(asked)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_onlyIfAsked(self) -> None:
        """
        Nobody connects for nobody; who asks later finds the way free, and other brokers are always.
        """
        line = self.connected()
        self.connections.forget("a:1")
        link = self.connections.get("a:1")
        self.connections.get("b:1").connection()
        self.network.accept()
        self.network.turn()
        line.end()
        self.assertEqual(self.network.waiting, [])
        asked = link.connection()
        self.network.accept()
        self.successResultOf(asked)

    def test_bounded(self) -> None:
        """
        A connection that does not end is cut when its time to close is over, and the way is free;
        till then the time to connect does not run.
        """
        self.connected()
        closing = self.connections.forget("a:1")
        asked = self.connections.get("a:1").connection()
        self.clock.advance(2)
        self.network.turn()
        self.failureResultOf(closing, TimedOutError)
        self.clock.advance(4.9)
        self.assertNoResult(asked)
        self.network.accept()
        self.successResultOf(asked)

    def test_againAndAgain(self) -> None:
        """
        However often it comes and goes meanwhile; who waited for a way that was forgotten is told.
        """
        line = self.connected()
        self.connections.forget("a:1").addErrback(lambda _failure: None)
        for _time in range(3):
            asked = self.connections.get("a:1").connection()
            self.successResultOf(self.connections.forget("a:1"))
            self.failureResultOf(asked, ClosedError)
        asked = self.connections.get("a:1").connection()
        self.network.turn()
        self.assertEqual(self.network.waiting, [])
        line.cut()
        self.network.accept()
        self.successResultOf(asked)

    def test_close(self) -> None:
        """
        Closing all waits for those that were forgotten, too; who waits for one of these is told at
        once.
        """
        line = self.connected()
        self.connections.forget("a:1")
        asked = self.connections.get("a:1").connection()
        closing = self.connections.close()
        self.failureResultOf(asked, ClosedError)
        self.network.turn()
        self.assertNoResult(closing)
        line.end()
        self.successResultOf(closing)
        self.assertEqual(self.network.waiting, [])

    def test_abort(self) -> None:
        """
        Without time for order all are cut, those of the forgotten, too; C{close} waits for the cut,
        and no way is to be had any more.
        """
        forgotten = self.connected()
        self.connections.forget("a:1").addErrback(lambda failure: failure.trap(ClosedError))
        self.connections.get("b:1").connection()
        line = self.network.accept()
        self.connections.abort()
        self.assertRaises(ClosedError, self.connections.get, "c:1")
        closing = self.connections.close()
        self.assertNoResult(closing)
        self.network.turn()
        self.failureResultOf(closing, ClosedError)
        self.assertTrue(forgotten.reason and line.reason)
        self.assertEqual(self.clock.getDelayedCalls(), [])
