"""
Tests for L{pylogbroker.net.listeners}. That certificates are checked is shown by connections, in
L{tests.integration.test_security}.
"""

from __future__ import annotations

import os
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.endpoints import (
    SSL4ServerEndpoint,
    TCP4ServerEndpoint,
    TCP6ServerEndpoint,
)
from twisted.internet.error import CannotListenError, ConnectionDone
from twisted.internet.testing import MemoryReactor
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.listenersettings import Listener, TlsStores
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.listeners import (
    clientName,
    distinguishedName,
    formatAddress,
    isTlsFailure,
    listenerDescription,
    listenerEndpoint,
    listenError,
    listenNow,
    serverEndpoint,
    tlsReason,
)
from tests.integration.certificates import Authority


class EndpointTests(SynchronousTestCase):
    """Strings that say where to listen."""

    def setUp(self) -> None:
        self.authority = Authority(self.mktemp())
        self.key = self.authority.issue("broker")

    def mode(self, endpoint: Any) -> int:
        """What is asked of clients."""
        connection: SSL.Connection = endpoint._sslContextFactory.serverConnectionForTLS(None)
        return connection.get_context().get_verify_mode()

    def test_twisteds(self) -> None:
        """All strings but ours are Twisted's."""
        self.assertIsInstance(serverEndpoint(MemoryReactor(), "tcp:0"), TCP4ServerEndpoint)
        self.assertRaises(ValueError, serverEndpoint, MemoryReactor(), "tlsx:0")

    def test_tls(self) -> None:
        """Port, interface and backlog are what the string says; a colon can be quoted."""
        endpoint: Any = serverEndpoint(
            MemoryReactor(),
            f"tls:9093:privateKey={self.key}:clientCAs={self.authority.ca}:interface=\\:\\:1:backlog=7",
        )
        self.assertIsInstance(endpoint, SSL4ServerEndpoint)
        self.assertEqual((endpoint._port, endpoint._interface, endpoint._backlog), (9093, "::1", 7))
        self.assertEqual(
            self.mode(endpoint) & SSL.VERIFY_FAIL_IF_NO_PEER_CERT, SSL.VERIFY_FAIL_IF_NO_PEER_CERT
        )

    def test_withoutClientCertificates(self) -> None:
        """
        Without C{clientCAs} nobody is asked for a certificate; the broker's own may be in a file of
        its own, with a chain.
        """
        endpoint: Any = serverEndpoint(
            MemoryReactor(), f"tls:9093:privateKey={self.key}:certKey={self.key}"
        )
        self.assertEqual(self.mode(endpoint), SSL.VERIFY_NONE)

    def test_listeners(self) -> None:
        """Kafka's listeners: an address of IPv4 or IPv6, or an endpoint string; with TLS or not."""
        for listener, kind in (
            (Listener(endpoint="tcp:0"), TCP4ServerEndpoint),
            (Listener(interface="127.0.0.1"), TCP4ServerEndpoint),
            (Listener(interface="::1"), TCP6ServerEndpoint),
            (Listener(stores=TlsStores(self.key), interface="::1"), SSL4ServerEndpoint),
        ):
            self.assertIsInstance(listenerEndpoint(MemoryReactor(), listener), kind)

    def test_stores(self) -> None:
        """Key, chain and authorities may be texts; the key may be encrypted."""
        with open(self.key) as file:
            text = file.read()
        start = text.index("-----BEGIN CERTIFICATE")
        key = load_pem_private_key(text[:start].encode(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        )
        with open(self.authority.ca) as file:
            authority = file.read()
        stores = TlsStores(
            key=key.decode(),
            chain=text[start:],
            keyPassword="secret",
            authorities=authority,
            clientAuth="requested",
        )
        found = listenerEndpoint(MemoryReactor(), Listener(stores=stores))
        self.assertEqual(self.mode(found) & 3, SSL.VERIFY_PEER)
        for wrong in ("", "wrong"):
            stores = stores._replace(keyPassword=wrong)
            self.assertRaises(
                ConfigurationError, listenerEndpoint, MemoryReactor(), Listener(stores=stores)
            )

    def test_wrong(self) -> None:
        """What is wrong with a string, or with a file that it names, is said."""
        other = self.authority.issue("another")
        broken = os.path.join(self.authority.folder, "broken.pem")
        with open(broken, "w") as file:
            file.write("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        for description, reason in (
            ("tls:", "no port"),
            ("tls:x:privateKey=k", "no port"),
            ("tls:65536:privateKey=k", "no port"),
            ("tls:9093", "privateKey= is missing"),
            ("tls:9093:nonsense", "'nonsense'"),
            ("tls:9093:privatekey=x", "'privatekey=x'"),
            (f"tls:9093:privateKey={self.key}:backlog=x", "backlog"),
            ("tls:9093:privateKey=/nowhere", "/nowhere"),
            (f"tls:9093:privateKey={self.key}:clientCAs=/nowhere", "/nowhere"),
            (f"tls:9093:privateKey={self.authority.ca}", "TLS cannot be used"),
            (
                f"tls:9093:privateKey={self.key}:certKey={other}",
                "TLS cannot be used|do not match|mismatch",
            ),
        ):
            with self.assertRaisesRegex(ConfigurationError, reason):
                serverEndpoint(MemoryReactor(), description)
        with self.assertRaises(ConfigurationError):
            serverEndpoint(MemoryReactor(), f"tls:9093:privateKey={self.key}:certKey={broken}")
        empty = os.path.join(self.authority.folder, "empty.pem")
        open(empty, "w").close()
        with self.assertRaisesRegex(ConfigurationError, "no certificate"):
            serverEndpoint(MemoryReactor(), f"tls:9093:privateKey={self.key}:certKey={empty}")


class PeerTests(SynchronousTestCase):
    """Who is at the other end."""

    def test_noTls(self) -> None:
        """A plain connection has no name."""
        self.assertIs(clientName(object()), None)
        self.assertIs(distinguishedName(object()), None)

    def test_distinguishedName(self) -> None:
        """
        The subject as C{javax.security.auth.x500.X500Principal.getName()} gives it: the last part
        first, what RFC 2253 does not name as DER in hexadecimal digits.
        """

        class Transport:
            """One whose client has shown a certificate, or none."""

            subject: Any = None

            def getPeerCertificate(self) -> Any:
                return None if self.subject is None else self

            def to_cryptography(self) -> Any:
                return self

        transport = Transport()
        self.assertIs(distinguishedName(transport), None)
        one = x509.NameAttribute
        transport.subject = x509.Name(
            [
                x509.RelativeDistinguishedName([one(NameOID.COUNTRY_NAME, "DE")]),
                x509.RelativeDistinguishedName([one(NameOID.ORGANIZATION_NAME, ' A, "B"\\ ')]),
                x509.RelativeDistinguishedName([one(NameOID.EMAIL_ADDRESS, "a@example.org")]),
                x509.RelativeDistinguishedName([one(NameOID.TITLE, "x" * 130)]),
                x509.RelativeDistinguishedName([one(NameOID.COMMON_NAME, "#alice")]),
            ]
        )
        self.assertEqual(
            distinguishedName(transport),
            "CN=\\#alice,2.5.4.12=#0c8182" + "78" * 130 + ","
            "1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267,"
            'O=\\ A\\, \\"B\\"\\\\\\ ,C=DE',
        )

    def test_failures(self) -> None:
        """What OpenSSL raises is told from other ends, in its own words."""
        failure = Failure(
            SSL.Error([("SSL routines", "", "certificate required"), ("x", "y", "z")])
        )
        self.assertTrue(isTlsFailure(failure))
        self.assertEqual(tlsReason(failure), "certificate required, z")
        self.assertEqual(tlsReason(Failure(SSL.Error())), "Error")
        self.assertFalse(isTlsFailure(Failure(ConnectionDone())))


class AddressTests(SynchronousTestCase):
    """Addresses for people."""

    def test_formats(self) -> None:
        """Host and port, an IPv6 address in brackets, a path; anything else as it prints itself."""
        for address, text in (
            (IPv4Address("TCP", "127.0.0.1", 9092), "127.0.0.1:9092"),
            (IPv6Address("TCP", "::1", 9092), "[::1]:9092"),
            (UNIXAddress(b"/run/broker"), "unix:/run/broker"),
            (UNIXAddress(None), "UNIXAddress(None)"),
        ):
            self.assertEqual(formatAddress(address), text)

    def test_whyNot(self) -> None:
        """A port that is taken is said once, without the address, which the caller names."""
        taken = CannotListenError("127.0.0.1", 9092, OSError(98, "Address already in use"))
        self.assertEqual(listenError(taken), "Address already in use")
        self.assertEqual(listenError(ValueError("no such kind")), "no such kind")


class DescriptionTests(SynchronousTestCase):
    """Where a site listens."""

    def test_loopback(self) -> None:
        """If nothing else was said, on the loopback interface."""
        for text, description in (
            ("8067", "tcp:8067:interface=127.0.0.1"),
            (" 0 ", "tcp:0:interface=127.0.0.1"),
            ("tcp:8067", "tcp:8067:interface=127.0.0.1"),
            ("tcp:8067:interface=0.0.0.0", "tcp:8067:interface=0.0.0.0"),
            ("tcp6:8067", r"tcp6:8067:interface=\:\:1"),
            ("ssl:8067:privateKey=k", "ssl:8067:privateKey=k:interface=127.0.0.1"),
            ("tls:8081:privateKey=k", "tls:8081:privateKey=k:interface=127.0.0.1"),
            ("unix:/run/console", "unix:/run/console"),
            ("systemd:domain=INET:index=0", "systemd:domain=INET:index=0"),
        ):
            self.assertEqual(listenerDescription(text), description)


class ListenNowTests(SynchronousTestCase):
    """Taking a port before the reactor runs."""

    def test_port(self) -> None:
        """What listens is returned."""
        port = self.patchedPort()
        self.assertIs(listenNow(lambda: succeed(port), "listen=1"), port)

    def patchedPort(self) -> object:
        class Port:
            def stopListening(self) -> None:
                """As a real one."""

        return Port()

    def test_refused(self) -> None:
        """
        A port that is taken, an endpoint that is none and one that takes its time are told with
        their setting.
        """

        def wrong() -> Deferred[object]:
            raise ValueError("no endpoint")

        for listen, text in (
            (lambda: fail(CannotListenError("", 80, OSError("taken"))), "taken"),
            (wrong, "listen=80: no endpoint"),
            (lambda: Deferred(), "needs a running reactor"),
        ):
            error = self.assertRaises(ConfigurationError, listenNow, listen, "listen=80")
            self.assertIn(text, str(error))
            self.assertTrue(str(error).startswith("listen=80"))
