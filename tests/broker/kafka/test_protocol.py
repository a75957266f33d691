"""Requests of today's protocol on a connection."""

from __future__ import annotations

import struct
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.protocol import ConnectionState, KafkaProtocol, isCurrentProtocol
from pylogbroker.config.listenersettings import Listener
from pylogbroker.errors import ConfigurationError, FrameSizeError, UnknownRequestError, WireError
from pylogbroker.metrics.counters import BrokerCounters
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.protocol.kafka07.requests import encodeFetch
from tests.broker.manualbroker import LeadTestCase, Peer


def frame(key: int, version: int, body: bytes = b"", flexible: bool = False) -> bytes:
    """A request with correlation id 7 of client C{c}."""
    data = struct.pack(">hhih", key, version, 7, 1) + b"c" + b"\0" * flexible + body
    return struct.pack(">i", len(data)) + data


class StateTests(SynchronousTestCase):
    """L{ConnectionState}."""

    def test_local(self) -> None:
        """Where the client came, which a lost connection of Twisted cannot tell any more."""
        transport = StringTransport(hostAddress=IPv4Address("TCP", "127.0.0.1", 9092))
        state = ConnectionState(transport)
        self.assertEqual(state.local, ("127.0.0.1", 9092))
        del transport.hostAddr
        state.isLost = True
        self.assertEqual(state.local, ("", 0))


class ProtocolTests(SynchronousTestCase):
    """L{KafkaProtocol}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.counters = BrokerCounters(10)
        self.answer: Any = None
        self.protocol = self.made()

    def made(self, requestLog: Logger | None = None) -> KafkaProtocol:
        handlers = dict.fromkeys(
            (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.HEARTBEAT), lambda *_arguments: self.answer
        )
        return KafkaProtocol(handlers, 1_000, self.counters, self.clock.seconds, requestLog)

    def handled(self, data: bytes) -> Any:
        decoder = self.protocol.newDecoder()
        decoder.feed(data)
        request = decoder.takeRequest()
        assert request is not None
        return self.protocol.handle(request, self.protocol.newState(None))

    def test_apiVersions(self) -> None:
        """Requests that have a handler are advertised, and no others."""
        (found,) = self.handled(frame(18, 3, b"\2x\2y\0", True))
        body, _ = messages.ApiVersionsResponse.decode(found, 3, 8)
        self.assertEqual([each.apiKey for each in body.apiKeys], [0, 1, 12, 18])
        self.assertEqual(struct.unpack_from(">ii", found), (len(found) - 4, 7))

    def test_keepsFrame(self) -> None:
        """What waits as long as a client says does not keep its frame; produce requests do."""
        keeping = [
            key
            for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
            if self.protocol.keepsFrame((RequestHeader(key, 5, 1, None), None))
        ]
        self.assertEqual(keeping, [ApiKey.PRODUCE])

    def test_namesOfSoftware(self) -> None:
        """A client's software is named by letters, digits, dots and hyphens between them."""
        for name, version, code in (
            (b"a.b-c", b"1-2.3", 0),
            (b"", b"1", ErrorCode.INVALID_REQUEST),
            (b"a", b"", ErrorCode.INVALID_REQUEST),
            (b"-a", b"1", ErrorCode.INVALID_REQUEST),
            (b"a b", b"1", ErrorCode.INVALID_REQUEST),
        ):
            data = b"".join(bytes((len(text) + 1,)) + text for text in (name, version))
            (found,) = self.handled(frame(18, 3, data + b"\0", True))
            body, _ = messages.ApiVersionsResponse.decode(found, 3, 8)
            self.assertEqual((body.errorCode, bool(body.apiKeys)), (code, not code))

    def test_unknownApiVersions(self) -> None:
        """An ApiVersions request of an unknown version gets error 35 in the layout of version 0."""
        (found,) = self.handled(frame(18, 99))
        expected = struct.pack(">hihhh", ErrorCode.UNSUPPORTED_VERSION, 1, 18, 0, 4)
        self.assertEqual(found[8:], expected)

    def test_kindsOfAnswers(self) -> None:
        """A body is encoded; parts and no answer pass; a Deferred gives either."""
        heartbeat = frame(12, 0, b"\0\1g\0\0\0\1\0\1m")
        self.answer = messages.HeartbeatResponse(errorCode=25)
        expected = [struct.pack(">iih", 6, 7, 25)]
        self.assertEqual(self.handled(heartbeat), expected)
        later, body = Deferred[Any](), self.answer
        self.answer = later
        found = self.handled(heartbeat)
        self.assertNoResult(found)
        later.callback(body)
        self.assertEqual(self.successResultOf(found), expected)
        self.answer = [b"parts"]
        self.assertEqual(self.handled(heartbeat), [b"parts"])
        self.answer = None
        self.assertIsNone(self.handled(heartbeat))

    def test_counted(self) -> None:
        """Produce and fetch requests are counted, and timed until their answer."""
        produce = frame(0, 3, struct.pack(">hhii", -1, 1, 1000, 0))
        fetch = frame(1, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 0))
        self.answer = Deferred()
        self.handled(produce)
        self.clock.advance(2)
        self.answer.callback(None)
        self.answer = None
        self.handled(fetch)
        requests = self.counters.requests
        self.assertEqual((requests.produceCount, requests.fetchCount), (1, 1))
        self.assertEqual(requests.produceSeconds, 2)

    def test_refused(self) -> None:
        """Bytes that are no request, and requests without a handler, are errors."""
        for data, error in (
            (frame(3, 0), UnknownRequestError),
            (frame(12, 77), WireError),
            (frame(12, 0, b"\0"), WireError),
            (struct.pack(">i", 1_001), FrameSizeError),
        ):
            self.assertRaises(error, self.handled, data)

    def test_log(self) -> None:
        """Requests are logged where that is asked for."""
        self.protocol = self.made(Logger())
        with capturedLogs() as events:
            self.handled(frame(18, 0))
        self.assertEqual((events[0]["kind"], events[0]["clientId"]), ("ApiVersions", "c"))

    def test_describe(self) -> None:
        """Requests have the names that metrics use for both protocols, or Kafka's."""
        decoder = self.protocol.newDecoder()
        decoder.feed(frame(1, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 0)) + frame(18, 0))
        self.assertEqual(self.protocol.describe(decoder.takeRequest()), ("fetch", None))  # type: ignore[arg-type]
        self.assertEqual(self.protocol.describe(decoder.takeRequest()), ("ApiVersions", None))  # type: ignore[arg-type]
        self.assertIsNone(decoder.takeRequest())
        self.assertIsNone(self.protocol.sniff(b"GET / HTTP"))

    def test_connectionLost(self) -> None:
        """The waits of a connection end with it."""
        state = self.protocol.newState(None)
        ended: list[int] = []
        state.fetches = {1: lambda: ended.append(1), 2: lambda: ended.append(2)}
        self.protocol.connectionLost(state)
        self.assertEqual(ended, [1, 2])
        self.assertEqual(state.local, ("", 0))

    def test_principal(self) -> None:
        """A client of a listener without authentication is anonymous."""
        self.assertEqual(self.protocol.newState(None).principal, "User:ANONYMOUS")

    def test_principalOfACertificate(self) -> None:
        """A client with a certificate has the name that the rules of its listener give it."""

        class Transport:
            def getPeerCertificate(self) -> Any:
                return self

            def to_cryptography(self) -> Any:
                return self

            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Alice")])

        for rules, expected in (("DEFAULT", "User:CN=Alice"), ("RULE:CN=(.*)/$1/L", "User:alice")):
            listener = Listener(protocol="SSL", principalRules=rules)
            protocol = KafkaProtocol({}, 100, BrokerCounters(1), lambda: 0.0, None, listener)
            self.assertEqual(protocol.newState(Transport()).principal, expected)
        listener = Listener(protocol="SSL", principalRules="RULE:")
        self.assertRaises(
            ConfigurationError,
            *(KafkaProtocol, {}, 100, BrokerCounters(1), lambda: 0.0, None, listener),
        )

    def test_whichProtocol(self) -> None:
        """Keys that only today's protocol has choose it; 0 to 4, and what is no key, do not."""
        for key, expected in ((18, True), (17, True), (36, True), (0, False), (4, False)):
            self.assertIs(isCurrentProtocol(frame(key, 0)), expected)
        self.assertFalse(isCurrentProtocol(b"GET / HTTP/1.1"))
        self.assertFalse(isCurrentProtocol(b"\0\0\0\x10\xff\xff"))

    def test_sharedKeys(self) -> None:
        """A whole head of today's protocol chooses it, where 2011's would have no topic's name."""

        def head(key: int, version: int, correlation: int, clientId: bytes) -> bytes:
            body = struct.pack(">hhih", key, version, correlation, len(clientId)) + clientId
            return struct.pack(">i", len(body)) + body

        for key, versions in ((0, (3, 13)), (1, (4, 18)), (2, (1, 11)), (3, (0, 13))):
            for version in versions:
                for correlation in (0, 1, 0xFFFF):
                    self.assertTrue(isCurrentProtocol(head(key, version, correlation, b"a")))
        for key, version, correlation, clientId in (
            (0, 2, 0, b"a"),
            (1, 3, 0, b"a"),
            (1, 19, 0, b"a"),
            (4, 1, 0, b"a"),
            (1, 4, 0x10000, b"a"),
            (1, 4, -1, b"a"),
            (1, 4, 0, b""),
            (1, 4, 0, b"\0a"),
            (1, 4, int.from_bytes(b"name", "big"), b"a"),
        ):
            self.assertFalse(isCurrentProtocol(head(key, version, correlation, clientId)))
        empty = struct.pack(
            ">ihh", 4, 3, 0
        )  # a request of 2011's with no parts, and more behind it
        self.assertFalse(isCurrentProtocol(empty + struct.pack(">ih", 12, 1) + b"a" * 9))


class ListenersTests(LeadTestCase):
    """Several listeners of one broker."""

    def advertised(self, peer: Peer) -> tuple[str, int]:
        """What a Metadata response says."""
        peer.send(frame(3, 1, b"\0\0\0\0"))
        (found,) = peer.frames()
        body, _ = messages.MetadataResponse.decode(found, 1, 4)
        return body.brokers[0].host, body.brokers[0].port

    def test_advertised(self) -> None:
        """
        Clients are told the address of the listener by which they came; the one that they have
        reached where nothing else is known.
        """
        broker = self.broker(
            {
                "listeners": "INSIDE://:9092,OUTSIDE://:9093,OLD://:9094,HERE://10.0.0.5:9095",
                "advertised.listeners": "INSIDE://log1:1,OUTSIDE://log1.example.org:2",
                "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,"
                "OLD:PLAINTEXT,HERE:PLAINTEXT",
                "listener.dialect": "kafka",
                "listener.name.old.listener.dialect": "kafka07",
            }
        )
        found = [self.advertised(broker.connect(listener=number)) for number in (0, 1, 3)]
        self.assertEqual(found, [("log1", 1), ("log1.example.org", 2), ("10.0.0.5", 9092)])
        old = broker.connect(listener=2)
        old.send(encodeFetch("t", 0, 0, 100))
        self.assertEqual(len(old.fetched()), 1)


class DialectTests(LeadTestCase):
    """C{listener.dialect}."""

    def answered(self, dialect: str, data: bytes) -> bool | None:
        """Whether a request is answered; L{None}: its connection is closed."""
        peer = self.broker({"listener.dialect": dialect}).connect()
        peer.send(data)
        found = bool(peer.frames())
        return None if peer.closed else found

    def test_dialects(self) -> None:
        """
        By default the first request chooses, and is 2011's where it exists in both; a listener of
        one protocol speaks no other.
        """
        apiVersions, old = frame(18, 0), encodeFetch("t", 0, 0, 100)
        metadata = frame(3, 1, b"\0\0\0\0")
        for dialect, data, expected in (
            ("auto", apiVersions, True),
            ("auto", old, True),
            ("auto", metadata, True),
            ("auto", frame(3, 0, b"\0\0\0\0"), True),
            ("auto", struct.pack(">ihh", 4, 3, 0) + old, True),
            ("kafka", metadata, True),
            ("kafka", apiVersions, True),
            ("kafka07", apiVersions, None),
            ("kafka07", metadata, None),
            ("kafka07", old, True),
        ):
            self.assertIs(self.answered(dialect, data), expected, (dialect, data))

    def test_cutEverywhere(self) -> None:
        """The choice does not depend on where the first request is cut."""
        for data in (frame(3, 1, b"\0\0\0\0"), frame(18, 0), encodeFetch("t", 0, 0, 100)):
            for cut in range(len(data)):
                peer = self.broker({}).connect()
                peer.send(data[:cut])
                peer.send(data[cut:])
                self.assertEqual((len(peer.frames()), peer.closed), (1, False), cut)
