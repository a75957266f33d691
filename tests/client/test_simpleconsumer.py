"""
Tests for L{pylogbroker.client.simpleconsumer}, on a puppet network. What it shares with its
blocking sister is in C{tests/contracts}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.connection import DEFAULT_LIMITS, ConnectionLimits
from pylogbroker.client.simpleconsumer import ConsumerPool, SimpleConsumer
from pylogbroker.errors import (
    BackpressureError,
    ClosedError,
    ConfigurationError,
    RemoteOffsetOutOfRangeError,
    TimedOutError,
    WireError,
)
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeMultiFetch, encodeOffsets
from pylogbroker.protocol.kafka07.responses import encodeOffsets as offsetsAnswer
from pylogbroker.protocol.kafka07.responses import fetchHeader, multiFetchHeader
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.network import MemoryNetwork, MemoryPeer

HELLO = encodeSet([b"hello"])
ANSWER = fetchHeader(0, len(HELLO)) + HELLO


class SimpleConsumerTests(SynchronousTestCase):
    """Reading from one broker."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.consumer = self.build()

    def build(self, limits: ConnectionLimits = DEFAULT_LIMITS) -> SimpleConsumer:
        return SimpleConsumer(
            self.clock,
            self.network.endpoint("broker:9092"),
            timeoutMs=30_000,
            limits=limits,
            random=lambda: 0.0,
        )

    def arrived(self, line: MemoryPeer) -> bytes:
        self.network.turn()
        return line.take()

    def test_fetch(self) -> None:
        """A fetch asks for what it is told to, and gives the set that came."""
        fetching = self.consumer.fetch("topic", 2, 40, 1000)
        line = self.network.accept()
        self.assertEqual(self.arrived(line), encodeFetch("topic", 2, 40, 1000))
        line.deliver(ANSWER)
        self.assertEqual(list(self.successResultOf(fetching).payloads()), [(b"hello", 55)])

    def test_errorWaits(self) -> None:
        """
        A fetch that the broker refuses does not fail: the set has the error, and raises it when it
        is read.
        """
        fetching = self.consumer.fetch("topic", 2, 40, 1000)
        self.network.accept().deliver(fetchHeader(1, 0))
        messages = self.successResultOf(fetching)
        self.assertIsInstance(messages.error, RemoteOffsetOutOfRangeError)
        self.assertRaises(RemoteOffsetOutOfRangeError, list, messages)

    def test_multifetch(self) -> None:
        """Several fetches go in one request."""
        fetching = self.consumer.multifetch([("topic", 0, 40, 1000), ("other", 1, 0, 500)])
        line = self.network.accept()
        self.assertEqual(
            self.arrived(line), encodeMultiFetch([("topic", 0, 40, 1000), ("other", 1, 0, 500)])
        )
        line.deliver(multiFetchHeader([len(HELLO), 0]) + ANSWER + fetchHeader(0, 0))
        self.assertEqual(
            [list(each.payloads()) for each in self.successResultOf(fetching)],
            [[(b"hello", 55)], []],
        )

    def test_getOffsetsBefore(self) -> None:
        """Offsets come as the broker sent them."""
        asking = self.consumer.getOffsetsBefore("topic", 0, -1, 10)
        line = self.network.accept()
        self.assertEqual(self.arrived(line), encodeOffsets("topic", 0, -1, 10))
        line.deliver(offsetsAnswer([240, 0]))
        self.assertEqual(self.successResultOf(asking), [240, 0])

    def test_pipelined(self) -> None:
        """Calls do not wait for one another."""
        first, second = (
            self.consumer.fetch("topic", 0, 0, 100),
            self.consumer.getOffsetsBefore("topic", 0, -1, 1),
        )
        line = self.network.accept()
        self.assertEqual(
            self.arrived(line), encodeFetch("topic", 0, 0, 100) + encodeOffsets("topic", 0, -1, 1)
        )
        line.deliver(ANSWER + offsetsAnswer([15]))
        self.assertEqual(len(self.successResultOf(first).data), 15)
        self.assertEqual(self.successResultOf(second), [15])

    def test_cancelledFetch(self) -> None:
        """A cancelled fetch leaves the others as they are."""
        first, second = (
            self.consumer.fetch("topic", 0, 0, 100),
            self.consumer.fetch("topic", 0, 15, 100),
        )
        line = self.network.accept()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        line.deliver(ANSWER + fetchHeader(0, 0))
        self.assertEqual(self.successResultOf(second).data, b"")

    def test_timeout(self) -> None:
        """A broker that does not answer is given up after C{timeoutMs}."""
        fetching = self.consumer.fetch("topic", 0, 0, 100)
        self.network.accept()
        self.clock.advance(29.9)
        self.assertNoResult(fetching)
        self.clock.advance(0.1)
        self.failureResultOf(fetching, TimedOutError)

    def test_sizes(self) -> None:
        """
        What is asked for is bounded by what is accepted; a broker that sends more all the same is
        cut off.
        """
        consumer = self.build(ConnectionLimits(responseSizeMax=1000))
        self.assertRaises(ValueError, consumer.fetch, "topic", 0, 0, 999)
        self.assertRaises(
            ValueError, consumer.multifetch, [("topic", 0, 0, 500), ("topic", 0, 0, 500)]
        )
        self.assertRaises(ValueError, consumer.fetch, "topic", 0, 0, -1)
        self.assertRaises(ValueError, consumer.getOffsetsBefore, "topic", 0, -1, -1)
        fetching = consumer.fetch("topic", 0, 0, 998)
        self.network.accept().deliver(fetchHeader(0, 999))
        self.failureResultOf(fetching, WireError)

    def test_tooManyCalls(self) -> None:
        """Calls that wait are limited."""
        consumer = self.build(ConnectionLimits(inFlightCountMax=1, waitingCountMax=1))
        calls = [consumer.fetch("topic", 0, 0, 100) for _ in range(3)]
        self.network.accept()
        self.failureResultOf(calls[2], BackpressureError)

    def test_close(self) -> None:
        """
        Closing fails what is under way, and ends the connection; the next call connects again.
        """
        fetching = self.consumer.fetch("topic", 0, 0, 100)
        line = self.network.accept()
        closing = self.consumer.close()
        self.failureResultOf(fetching, ClosedError)
        self.network.turn()
        self.assertTrue(line.isEnded)
        line.end()
        self.successResultOf(closing)
        again = self.consumer.fetch("topic", 0, 0, 100)
        self.network.accept().deliver(ANSWER)
        self.assertEqual(len(self.successResultOf(again).data), 15)

    def test_closeDoesNotFail(self) -> None:
        """A broker that does not let go is left."""
        self.consumer.fetch("topic", 0, 0, 100).addErrback(lambda _reason: None)
        self.network.accept()
        closing = self.consumer.close()
        self.clock.advance(10)
        self.clock.advance(0)
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeUnused(self) -> None:
        """What was never connected is closed."""
        self.successResultOf(self.consumer.close())

    def test_repr(self) -> None:
        """It names its broker."""
        self.assertEqual(repr(self.consumer), "<SimpleConsumer of broker:9092>")


class ConsumersTests(SynchronousTestCase):
    """A consumer for each broker."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()

    def test_one(self) -> None:
        """
        The same address gives the same consumer, and nothing is connected before it is asked
        something.
        """
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
