"""Tests for L{pylogbroker.client.brokerclient}."""

from __future__ import annotations

from twisted.internet.endpoints import (
    HostnameEndpoint,
    SSL4ClientEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    UNIXClientEndpoint,
)
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from pylogbroker.client.brokerclient import clientEndpoint
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.endpoints import KINDS, brokerEndpoint


class ClientEndpointTests(SynchronousTestCase):
    """Where a broker is."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()

    def connectsTo(self, description: str) -> tuple[str, int]:
        clientEndpoint(self.reactor, description).connect(Factory())
        host, port = self.reactor.tcpClients[0][:2]
        return host, port

    def test_kinds(self) -> None:
        """A broker whose host has the name of a kind of endpoint is connected to like any other."""
        for host in sorted(KINDS):
            self.reactor.tcpClients.clear()
            self.assertEqual(self.connectsTo(brokerEndpoint("", f"{host}:9092")), (host, 9092))

    def test_address(self) -> None:
        """An IPv4 address and a port are connected to as they are, without asking for a name."""
        self.assertIsInstance(clientEndpoint(self.reactor, "192.0.2.7:9092"), TCP4ClientEndpoint)
        self.assertEqual(self.connectsTo("192.0.2.7:9092"), ("192.0.2.7", 9092))

    def test_address6(self) -> None:
        """So is an IPv6 address in brackets."""
        self.assertIsInstance(
            clientEndpoint(self.reactor, "[2001:db8::7]:9092"), TCP6ClientEndpoint
        )
        self.assertEqual(self.connectsTo("[2001:db8::7]:9092"), ("2001:db8::7", 9092))

    def test_name(self) -> None:
        """A name may stand for several addresses, which are tried."""
        self.assertIsInstance(
            clientEndpoint(self.reactor, "broker-1.example.org:9092"), HostnameEndpoint
        )

    def test_strings(self) -> None:
        """Twisted's endpoint strings are understood."""
        for description, kind in (
            ("tcp:192.0.2.7:9092", TCP4ClientEndpoint),
            ("tcp:host=192.0.2.7:port=9092:bindAddress=192.0.2.8", TCP4ClientEndpoint),
            ("ssl:192.0.2.7:9093", SSL4ClientEndpoint),
            ("unix:/var/run/broker", UNIXClientEndpoint),
        ):
            self.assertIsInstance(clientEndpoint(self.reactor, description), kind)
        self.assertTrue(
            verifyObject(
                IStreamClientEndpoint, clientEndpoint(self.reactor, "tls:broker.example.org:9093")
            )
        )

    def test_endpoint(self) -> None:
        """An endpoint is returned as it is."""
        endpoint = TCP4ClientEndpoint(self.reactor, "192.0.2.7", 9092)
        self.assertIs(clientEndpoint(self.reactor, endpoint), endpoint)

    def test_wrong(self) -> None:
        """What is none is a configuration error that repeats it."""
        for description in (
            "",
            "broker",
            ":9092",
            "broker:",
            "broker:x",
            "broker:0",
            "broker:65536",
            "[broker]:9092",
            "2001:db8::7:9092",
            "udp:broker:9092",
            "tcp:broker",
            "tcp:broker:9092:nonsense=1",
            "ssl:broker:9092:privateKey=/nowhere:certKey=/nowhere",
        ):
            error = self.assertRaises(ConfigurationError, clientEndpoint, self.reactor, description)
            self.assertIn(repr(description), str(error))

    def test_serverString(self) -> None:
        """A string for listening, which lacks a host, is told from a host of that name."""
        error = self.assertRaises(ConfigurationError, clientEndpoint, self.reactor, "tcp:9092")
        self.assertIn("tcp:HOST:9092", str(error))
