"""Tests for L{pylogbroker.client.simpleconsumer}."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.simpleconsumer import ConsumerPool
from pylogbroker.errors import ConfigurationError, TimedOutError


class ConsumersTests(SynchronousTestCase):
    """A consumer for each broker."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()

    def test_one(self) -> None:
        """The same address gives the same consumer, and nothing is connected before it is asked something."""
        consumers = ConsumerPool(self.reactor, 1_000)
        first = consumers.get("192.0.2.7:9092")
        self.assertIs(consumers.get("192.0.2.7:9092"), first)
        self.assertIsNot(consumers.get("192.0.2.8:9092"), first)
        self.assertEqual(self.reactor.tcpClients, [])

    def test_template(self) -> None:
        """Brokers are reached as the template says."""
        consumers = ConsumerPool(
            self.reactor, 1_000, template="tcp:192.0.2.1:{port}:bindAddress={host}"
        )
        consumers.get("192.0.2.7:9092").fetch("t", 0, 0, 10).addErrback(lambda _failure: None)
        [client] = self.reactor.tcpClients
        self.assertEqual((client[:2], client[4]), (("192.0.2.1", 9092), ("192.0.2.7", 0)))

    def test_times(self) -> None:
        """An answer is waited for so long, connecting included."""
        asked = ConsumerPool(self.reactor, 1_000, 400).get("192.0.2.7:9092").fetch("t", 0, 0, 10)
        for _tick in range(11):
            self.reactor.advance(0.1)
        self.failureResultOf(asked, TimedOutError)

    def test_wrong(self) -> None:
        """What is no endpoint is refused, and not kept."""
        consumers = ConsumerPool(self.reactor, 1_000)
        for _attempt in range(2):
            self.assertRaises(ConfigurationError, consumers.get, "what:ever:else")

    def test_close(self) -> None:
        """After closing, nothing is kept of any."""
        consumers = ConsumerPool(self.reactor, 1_000)
        first = consumers.get("192.0.2.7:9092")
        self.successResultOf(Deferred.fromCoroutine(consumers.close()))
        self.assertIsNot(consumers.get("192.0.2.7:9092"), first)
