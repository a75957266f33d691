"""
Tests for L{pylogbroker.net.tls}: the server's side of TLS, which is given a client's bytes by hand.
"""

from __future__ import annotations

import ssl

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from pylogbroker.net.listeners import isTlsFailure, tlsReason
from pylogbroker.net.tls import ServerConnectionCreator
from tests.fuzz.tlsmutation import hello
from tests.integration.certificates import Authority

CLOSE_NOTIFY = b"\x15\x03\x03\x00\x02\x01\x00"


class _Kept(Protocol):
    """
    What is behind TLS.

    @ivar reason: why it ended, once it has.
    """

    reason: Failure | None = None

    def connectionLost(self, reason: Failure = Failure(Exception())) -> None:  # noqa: B008
        self.reason = reason


class HandshakeTests(SynchronousTestCase):
    """A client's bytes."""

    def setUp(self) -> None:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        path = Authority(self.mktemp()).issue("broker")
        context.use_privatekey_file(path)
        context.use_certificate_file(path)
        self.connections = ServerConnectionCreator(context)
        verifyObject(IOpenSSLServerConnectionCreator, self.connections)
        self.kept = _Kept()
        self.transport = StringTransport()
        self.tls = TLSMemoryBIOFactory(
            self.connections, False, Factory.forProtocol(lambda: self.kept)
        ).buildProtocol(None)
        self.tls.makeConnection(self.transport)

    def test_closedInTheMiddle(self) -> None:
        """
        A client that closes before the end of its handshake is let go, with a reason that is one of
        TLS; nothing is raised.
        """
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.maximum_version = ssl.TLSVersion.TLSv1_2
        self.tls.dataReceived(hello(client, "localhost"))
        self.assertFalse(self.transport.disconnecting)
        self.tls.dataReceived(CLOSE_NOTIFY)
        self.assertTrue(self.transport.disconnecting)
        self.tls.connectionLost(Failure(ConnectionError()))
        reason = self.kept.reason
        assert reason is not None
        self.assertTrue(isTlsFailure(reason), reason)
        self.assertEqual(tlsReason(reason), "closed before the end of the handshake")

    def test_nonsense(self) -> None:
        """What is no handshake ends as ever, with OpenSSL's own words."""
        self.tls.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
        self.tls.connectionLost(Failure(ConnectionError()))
        reason = self.kept.reason
        assert reason is not None
        self.assertTrue(isTlsFailure(reason), reason)
        self.assertIn("http request", tlsReason(reason))
