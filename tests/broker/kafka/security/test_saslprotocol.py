"""
Listeners with SASL. That clients get Apache Kafka's answers is shown by its recorded ones
(L{tests.integration.test_oracle}); here is what needs a clock, or cannot be seen from outside.
"""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from twisted.logger import capturedLogs

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.kafkacase import decoded, frameOf
from tests.broker.manualbroker import LeadBroker, LeadTestCase, Peer

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
ALICE, BOB = b"\0alice\0secret", b"\0bob\0secret"


class SaslCase(LeadTestCase):
    """A broker whose listener has SASL."""

    def started(self, **properties: str) -> LeadBroker:
        return self.broker(
            {
                "listeners": "SASL_PLAINTEXT://:9092",
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{MODULE} required"
                ' user_alice="secret" user_bob="secret";',
                **{key.replace("_", "."): value for key, value in properties.items()},
            }
        )

    def setUp(self) -> None:
        self.lead = self.started()

    def ask(self, peer: Peer, key: ApiKey, version: int, body: Any) -> Any:
        """The answer, which is there at once."""
        peer.send(frameOf(key, version, body))
        (frame,) = peer.frames()
        return decoded(key, version, frame)

    def handshake(self, peer: Peer, mechanism: str = "PLAIN", version: int = 1) -> int:
        body = messages.SaslHandshakeRequest(mechanism=mechanism)
        return int(self.ask(peer, ApiKey.SASL_HANDSHAKE, version, body).errorCode)

    def token(self, peer: Peer, token: bytes = ALICE) -> Any:
        body = messages.SaslAuthenticateRequest(authBytes=token)
        return self.ask(peer, ApiKey.SASL_AUTHENTICATE, 2, body)

    def entered(self, lead: LeadBroker | None = None) -> Peer:
        """A client that has authenticated."""
        peer = (lead or self.lead).connect()
        self.assertEqual(self.handshake(peer), 0)
        self.assertEqual(self.token(peer).errorCode, 0)
        return peer

    def metadata(self, peer: Peer) -> Any:
        return self.ask(peer, ApiKey.METADATA, 1, messages.MetadataRequest(topics=[]))

    def principal(self, peer: Peer) -> str:
        return str(peer.protocol._state.principal)


class TimeTests(SaslCase):
    """How long a client may take."""

    properties = {"reader_idle_ms": "1000", "connections_max_idle_ms": "60000"}

    def setUp(self) -> None:
        self.lead = self.started(**self.properties)
        self.lead.settle()

    def test_silent(self) -> None:
        """A client that does not authenticate in time is cut off, silent or not; others stay."""
        entered, silent, begun = self.entered(), self.lead.connect(), self.lead.connect()
        self.handshake(begun)
        with capturedLogs() as events:
            for _ in range(5):
                self.lead.advance(0.5)
        self.assertEqual([peer.isClosed for peer in (entered, silent, begun)], [False, True, True])
        found = [event["log_format"] for event in events]
        self.assertIn("{peer} does not authenticate: cut off{more}", found)
        self.metadata(entered)

    def test_idle(self) -> None:
        """A connection that is silent for long is closed; one that asks now and then is not."""
        idle, busy = self.entered(), self.entered()
        for _ in range(12):
            self.lead.advance(6)
            self.metadata(busy)
        self.assertEqual([idle.isClosed, busy.isClosed], [True, False])


class PrincipalTests(SaslCase):
    """Who a client is."""

    def test_principal(self) -> None:
        """The user's name, once it has proved it."""
        peer = self.lead.connect()
        self.handshake(peer)
        self.assertEqual(self.principal(peer), "User:ANONYMOUS")
        self.token(peer)
        self.assertEqual(self.principal(peer), "User:alice")

    def test_oldRequests(self) -> None:
        """No request of 2011 is understood, and none that comes before the handshake is served."""
        for data in (
            struct.pack(">ihh", 20, 1, 1) + b"t" + bytes(17),
            frameOf(ApiKey.METADATA, 1, messages.MetadataRequest(topics=[])),
        ):
            peer = self.lead.connect()
            peer.send(data)
            self.lead.advance(0.1)
            self.assertTrue(peer.isClosed)


class FailureTests(SaslCase):
    """Clients that do not get in."""

    def test_delay(self) -> None:
        """The answer comes after a time, then the end; meanwhile nothing is understood."""
        peer = self.lead.connect()
        self.handshake(peer)
        body = messages.SaslAuthenticateRequest(authBytes=b"\0alice\0wrong")
        peer.send(frameOf(ApiKey.SASL_AUTHENTICATE, 2, body))
        body = messages.SaslAuthenticateRequest(authBytes=ALICE)
        peer.send(frameOf(ApiKey.SASL_AUTHENTICATE, 2, body) * 2)
        self.lead.advance(0.09)
        self.assertEqual(peer.frames(), [])
        self.lead.advance(0.01)
        (frame,) = peer.frames()
        answer = decoded(ApiKey.SASL_AUTHENTICATE, 2, frame)
        self.assertEqual(answer.errorCode, ErrorCode.SASL_AUTHENTICATION_FAILED)
        self.assertTrue(peer.isClosed)
        self.assertEqual(self.principal(peer), "User:ANONYMOUS")

    def test_clientGone(self) -> None:
        """A client that fails and goes leaves nothing behind."""
        peer = self.lead.connect()
        self.handshake(peer)
        peer.send(
            frameOf(ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(authBytes=b"x"))
        )
        peer.vanish()
        self.lead.advance(1)
        connections = self.lead.service.connections
        self.assertEqual((len(connections.open), len(connections.orphaned)), (0, 0))

    def test_largeFrames(self) -> None:
        """Large frames are for clients that have authenticated."""
        lead = self.started(sasl_server_max_receive_size="1000")
        size = struct.pack(">i", 1001)
        peer = lead.connect()
        peer.send(size)
        self.assertTrue(peer.isClosed)
        peer = self.entered(lead)
        peer.send(size)
        self.assertFalse(peer.isClosed)

    def test_largeRequests(self) -> None:
        """Before authentication no large request is decoded, whatever it is."""
        cls = messages.CreateTopicsRequest
        body = cls(topics=[cls.CreatableTopic(name=f"topic-{index}") for index in range(500)])
        peer = self.lead.connect()
        peer.send(frameOf(ApiKey.CREATE_TOPICS, 4, body))
        self.lead.advance(1)
        self.assertTrue(peer.isClosed)

    def test_secrets(self) -> None:
        """No line of the log has a password or a token, not even where requests are logged."""
        lead = self.started(log_requests="true")
        with capturedLogs() as events:
            peer = self.entered(lead)
            self.token(peer, b"\0alice\0wrong-secret")
            peer = lead.connect()
            self.handshake(peer)
            body = messages.SaslAuthenticateRequest(authBytes=b"\0alice\0wrong-secret")
            peer.send(frameOf(ApiKey.SASL_AUTHENTICATE, 2, body))
            lead.advance(1)
        self.assertTrue(any("did not authenticate" in str(each) for each in events))
        self.assertFalse(any("secret" in repr(each) for each in events))


class AgainTests(SaslCase):
    """Where an authentication holds for a time only."""

    def setUp(self) -> None:
        self.lead = self.started(connections_max_reauth_ms="10000")

    def test_lifetime(self) -> None:
        """A client is told the time; after it, its requests close the connection."""
        peer = self.lead.connect()
        self.handshake(peer)
        self.assertEqual(self.token(peer).sessionLifetimeMs, 10_000)
        self.lead.advance(9.9)
        self.assertEqual(len(self.metadata(peer).brokers), 1)
        self.lead.advance(0.1)
        peer.send(frameOf(ApiKey.METADATA, 1, messages.MetadataRequest(topics=[])))
        self.assertTrue(peer.isClosed)

    def test_again(self) -> None:
        """A client that authenticates again in time, or after it, goes on."""
        peer = self.entered()
        for seconds in (9, 11):
            self.lead.advance(seconds)
            self.assertEqual(self.handshake(peer), 0)
            self.assertEqual(self.token(peer).sessionLifetimeMs, 10_000)
            self.assertEqual(len(self.metadata(peer).brokers), 1)

    def test_tooOften(self) -> None:
        """It may do so once a second."""
        peer = self.entered()
        for seconds, code in ((0, 0), (0.9, ErrorCode.ILLEGAL_SASL_STATE), (0.1, 0)):
            self.lead.advance(seconds)
            self.assertEqual(self.handshake(peer), code)
            if not code:
                self.assertEqual(self.token(peer).errorCode, 0)

    def test_anotherUser(self) -> None:
        """It stays the same user."""
        peer = self.entered()
        self.handshake(peer)
        peer.send(
            frameOf(ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(authBytes=BOB))
        )
        self.lead.advance(0.1)
        (frame,) = peer.frames()
        answer = decoded(ApiKey.SASL_AUTHENTICATE, 2, frame)
        self.assertEqual(answer.errorCode, ErrorCode.SASL_AUTHENTICATION_FAILED)
        self.assertIn("Cannot change principals", answer.errorMessage)
        self.assertTrue(peer.isClosed)
        self.assertEqual(self.principal(peer), "User:alice")


class HostileTests(SaslCase):
    """Bytes that no client sends."""

    def test_mutations(self) -> None:
        """
        Whatever comes at whatever stage, the client is answered or disconnected, never let in, and
        nothing fails that nobody foresaw.
        """
        random = Random(11)
        begin = messages.SaslHandshakeRequest(mechanism="PLAIN")
        scram = messages.SaslHandshakeRequest(mechanism="SCRAM-SHA-256")
        token = messages.SaslAuthenticateRequest(authBytes=b"\0alice\0wrong")
        frames = [
            frameOf(ApiKey.API_VERSIONS, 0, messages.ApiVersionsRequest()),
            frameOf(ApiKey.SASL_HANDSHAKE, 0, begin),
            frameOf(ApiKey.SASL_HANDSHAKE, 1, begin),
            frameOf(ApiKey.SASL_HANDSHAKE, 1, scram),
            frameOf(ApiKey.SASL_AUTHENTICATE, 2, token),
            frameOf(ApiKey.METADATA, 12, messages.MetadataRequest(topics=[])),
        ]
        with capturedLogs() as events:
            for _ in range(300):
                peer = self.lead.connect()
                for frame in random.choices(frames, k=3):
                    data = bytearray(frame)
                    for _change in range(random.randrange(3)):
                        data[random.randrange(4, len(data))] = random.randrange(256)
                    peer.send(bytes(data))
                self.lead.advance(0.1)
                peer.frames()
                self.assertEqual(self.principal(peer), "User:ANONYMOUS")
                peer.close()
        texts = [str(each.get("log_format")) for each in events]
        self.assertEqual([each for each in texts if "unexpectedly" in each or "bug" in each], [])


class OtherListenerTests(LeadTestCase):
    """Listeners without SASL, beside one with it."""

    def test_open(self) -> None:
        """They stay open to everybody; SASL's requests are refused there, and do no harm."""
        lead = self.broker(
            {"listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://:9093", "listener.dialect": "kafka"}
        )
        peer = lead.connect()
        body = messages.SaslHandshakeRequest(mechanism="PLAIN")
        for key, version, request in (
            (ApiKey.SASL_HANDSHAKE, 1, body),
            (ApiKey.SASL_AUTHENTICATE, 2, messages.SaslAuthenticateRequest(authBytes=b"x")),
        ):
            peer.send(frameOf(key, version, request))
            (frame,) = peer.frames()
            self.assertEqual(decoded(key, version, frame).errorCode, ErrorCode.ILLEGAL_SASL_STATE)
        closed = lead.connect(listener=1)
        closed.send(frameOf(ApiKey.METADATA, 1, messages.MetadataRequest(topics=[])))
        lead.advance(0.1)
        self.assertTrue(closed.isClosed)
