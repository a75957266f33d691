"""Tests for L{pylogbroker.net.endpointstrings}."""

from __future__ import annotations

import os
import ssl

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet.endpoints import clientFromString
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.net.endpointstrings import KINDS, SocketAddress, brokerEndpoint, endpoint
from tests.integration.certificates import Authority


class PlainTests(SynchronousTestCase):
    """Without TLS."""

    def test_address(self) -> None:
        """A name or an address and a port; with or without C{tcp:}."""
        for description, host, port in (
            ("log1:9092", "log1", 9092),
            ("[2001:db8::7]:9092", "2001:db8::7", 9092),
            ("tcp:log1:65535", "log1", 65535),
            ("tcp:2001\\:db8\\:\\:7:9092", "2001:db8::7", 9092),
        ):
            self.assertEqual(endpoint(description), SocketAddress(host, port, None))

    def test_wrong(self) -> None:
        """
        What is no endpoint is refused, and repeated; so is what Twisted's strings have, and nobody
        here can do.
        """
        for description in (
            "",
            "log1",
            ":9092",
            "log1:",
            "log1:x",
            "log1:0",
            "log1:65536",
            "tcp:9092",
            "tls:9093",
            "tcp::9092",
            "tcp:log1:9092:1",
            "unix:/run/b",
            "ssl:log1:9093",
            "tcp:log1:9092:trustRoots=/ca",
            "tls:log1:9093:endpoint=x",
            "log1:" + "9" * 5000,
            "2001:db8::7:9092",
            "tcp:log1:9092\\",
        ):
            self.assertIn(
                repr(description), str(self.assertRaises(ConfigurationError, endpoint, description))
            )

    def test_template(self) -> None:
        """
        A template says how a broker is reached that is known by its address; colons of an IPv6
        address do not end its part.
        """
        self.assertEqual(brokerEndpoint("", "log1:9092"), "log1:9092")
        template = "tls:{host}:{port}:trustRoots=/ca"
        self.assertEqual(brokerEndpoint(template, "log1:9092"), "tls:log1:9092:trustRoots=/ca")
        self.assertEqual(
            brokerEndpoint(template, "[2001:db8::7]:9092"),
            "tls:2001\\:db8\\:\\:7:9092:trustRoots=/ca",
        )
        self.assertEqual(brokerEndpoint(template, "tls:log1:9093"), "tls:log1:9093")
        self.assertEqual(brokerEndpoint(template, "tcp:9092"), "tls:tcp:9092:trustRoots=/ca")
        self.assertEqual(
            endpoint(brokerEndpoint("tcp:{host}:{port}", "[2001:db8::7]:9092")),
            SocketAddress("2001:db8::7", 9092),
        )

    def test_kinds(self) -> None:
        """A broker whose host has the name of a kind of endpoint is reached like any other."""
        for host in sorted(KINDS):
            self.assertEqual(
                endpoint(brokerEndpoint("", f"{host}:9092")), SocketAddress(host, 9092)
            )


class HostTests(SynchronousTestCase):
    """What stands for the host."""

    def test_brackets(self) -> None:
        """
        Brackets are for IPv6 addresses, and whole; what is no host is shown, before anybody
        connects.
        """
        for text in (
            "[evil]:9092",
            "tcp:ev[il:9092",
            "tls:[log1]:9093",
            "tcp:2001\\:db8\\:\\:g:9092",
        ):
            error = self.assertRaises(ConfigurationError, endpoint, text)
            self.assertIn(repr(text), str(error))


class TlsTests(SynchronousTestCase):
    """With TLS."""

    def setUp(self) -> None:
        self.authority = Authority(self.mktemp())
        self.key = self.authority.issue("me")

    def test_trusted(self) -> None:
        """
        Those in the folder are trusted, and nobody else; who is talked to is checked; nothing older
        than TLS 1.2 is spoken.
        """
        made = endpoint(f"tls:log1:9093:trustRoots={self.authority.trustFolder()}")
        assert made.tls is not None
        self.assertEqual(made[:2], ("log1", 9093))
        self.assertEqual(
            (made.tls.verify_mode, made.tls.check_hostname, made.tls.minimum_version),
            (ssl.CERT_REQUIRED, True, ssl.TLSVersion.TLSv1_2),
        )
        self.assertEqual(len(made.tls.get_ca_certs()), 1)

    def test_machine(self) -> None:
        """
        Without a folder, those that the machine trusts; and who is talked to is checked all the
        same.
        """
        made = endpoint("tls:log1:9093")
        assert made.tls is not None
        self.assertEqual((made.tls.verify_mode, made.tls.check_hostname), (ssl.CERT_REQUIRED, True))

    def test_sameAsTwisted(self) -> None:
        """What is understood here, Twisted understands, too."""
        folder = self.authority.trustFolder()
        text = (
            f"tls:127.0.0.1:9093:trustRoots={folder}:certificate={self.key}:privateKey={self.key}"
        )
        self.assertEqual(endpoint(text).host, "127.0.0.1")
        self.assertIsNotNone(clientFromString(MemoryReactorClock(), text))

    def test_files(self) -> None:
        """
        One of key and certificate may stand for both; a file that is missing, or none, is named,
        and so is a folder without certificates.
        """
        folder, empty = self.authority.trustFolder(), self.mktemp()
        os.makedirs(empty)
        for words in (f"certificate={self.key}", f"privateKey={self.key}"):
            self.assertIsNotNone(endpoint(f"tls:log1:9093:trustRoots={folder}:{words}").tls)
        for words in (
            f"trustRoots={empty}",
            "trustRoots=/nowhere",
            f"trustRoots={self.authority.ca}",
            "certificate=/nowhere",
            f"privateKey={self.authority.ca}",
            f"privateKey={self.encrypted()}",
            f"certificate={self.key}:privateKey=/nowhere",
        ):
            self.assertIn(
                words,
                str(self.assertRaises(ConfigurationError, endpoint, f"tls:log1:9093:{words}")),
            )

    def encrypted(self) -> str:
        """A key that wants a password."""
        path = self.mktemp()
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8
        with open(path, "wb") as file, open(self.key, "rb") as own:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    form,
                    serialization.BestAvailableEncryption(b"password"),
                )
                + own.read()
            )
        return path
