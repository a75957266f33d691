"""
Tests for L{pylogbroker.broker.registration}.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.registration import advertisedHost, isLocal
from pylogbroker.config.brokersettings import BrokerSettings


class AdvertisedHostTests(SynchronousTestCase):
    """What others are told."""

    def host(
        self, address: str = "10.0.0.5", listening: Sequence[str] = ("0.0.0.0",), **properties: str
    ) -> str:
        """
        The host with these settings, on a machine called C{box} whose name has this address, if it
        has one; warnings are kept.
        """
        self.warnings: list[str] = []
        given = {
            "brokerid": "0",
            "log.dir": "x",
            "enable.zookeeper": "false",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        settings = BrokerSettings.fromProperties(given, self.fail)

        async def resolve(name: str) -> str:
            self.assertEqual(name, "box")
            if not address:
                raise OSError("Name or service not known")
            return address

        return self.successResultOf(
            Deferred.fromCoroutine(
                advertisedHost(settings, listening, self.warnings.append, resolve, lambda: "box")
            )
        )

    def refusal(
        self, address: str = "10.0.0.5", listening: Sequence[str] = ("0.0.0.0",), **properties: str
    ) -> str:
        """The same, where there is none."""
        with self.assertRaises(self.failureException) as raised:
            self.host(address, listening, **properties)
        self.assertIn("ConfigurationError", str(raised.exception))
        return str(raised.exception)

    def test_given(self) -> None:
        """C{hostname} counts before all else, and is not looked up."""
        self.assertEqual(
            self.host(hostname="log1.example.org", listen_interface="10.1.1.1"), "log1.example.org"
        )
        self.assertEqual(self.warnings, [])

    def test_interface(self) -> None:
        """
        Without it, the one address that is listened on; if that is the machine's own, it was meant
        so.
        """
        self.assertEqual(self.host(listen_interface="10.1.1.1"), "10.1.1.1")
        self.assertEqual(self.host(listen_interface="127.0.0.1"), "127.0.0.1")
        self.assertEqual(self.warnings, [])

    def test_ownAddress(self) -> None:
        """Without that, the address of the host's name, as with 0.7."""
        self.assertEqual(self.host(), "10.0.0.5")
        self.assertEqual(self.host(listen_interface="0.0.0.0"), "10.0.0.5")
        self.assertEqual(self.warnings, [])

    def test_unreachable(self) -> None:
        """
        Debian's 127.0.1.1, or any address at which everybody finds himself, is warned of; the
        broker starts all the same.
        """
        self.assertEqual(self.host("127.0.1.1"), "127.0.1.1")
        self.assertEqual(len(self.warnings), 1)
        for part in ("box", "127.0.1.1", "Set hostname"):
            self.assertIn(part, self.warnings[0])
        for name in ("localhost", "127.0.0.1", "0.0.0.0"):
            self.host(hostname=name)
            self.assertEqual(len(self.warnings), 1, name)
        self.host("127.0.1.1", listen_interface="0.0.0.0")
        self.assertEqual(len(self.warnings), 1)

    def test_everywhere(self) -> None:
        """So it is where all IPv6 addresses are listened on."""
        self.host("127.0.1.1", listen_interface="::")
        self.assertEqual(len(self.warnings), 1)
        self.host(hostname="127.0.1.1", listen_interface="::")
        self.assertEqual(len(self.warnings), 1)

    def test_listeners(self) -> None:
        """
        Where C{listeners} is set it decides, and not C{listen.interface}: the first address that
        can be told, or that of the host's name.
        """
        everywhere, one = "tcp:6667", "tcp:6667:interface=10.0.0.9"
        self.assertEqual(
            self.host("127.0.1.1", ["0.0.0.0"], listeners=everywhere, listen_interface="127.0.0.1"),
            "127.0.1.1",
        )
        self.assertEqual(len(self.warnings), 1)
        self.assertEqual(self.host("127.0.1.1", ["10.0.0.9"], listeners=one), "10.0.0.9")
        self.assertEqual(self.host("127.0.1.1", ["::1", "10.0.0.9"], listeners=one), "10.0.0.9")
        self.assertEqual(self.host("127.0.1.1", ["127.0.0.1"], listeners=one), "127.0.0.1")
        self.assertEqual(self.warnings, [])
        self.host("127.0.1.1", ["127.0.0.1", "10.0.0.9"], listeners=one)
        self.assertIn("listeners is 127.0.0.1", self.warnings[0])
        self.assertEqual(self.host("127.0.1.1", [], listeners="unix:x"), "127.0.1.1")
        self.assertEqual(len(self.warnings), 1)

    def test_noAddress(self) -> None:
        """A host whose name has no address needs the setting, and is told so."""
        self.assertIn(
            "box, has no address (Name or service not known): set hostname", self.refusal("")
        )

    def test_literal(self) -> None:
        """An IPv6 literal is refused, wherever it comes from."""
        self.assertIn(
            "hostname=fe80::1: the value in ZooKeeper cannot carry an IPv6",
            self.refusal(hostname="fe80::1"),
        )
        self.assertIn("listen.interface=::1: the value", self.refusal(listen_interface="::1"))
        self.assertIn(
            "listeners=::1: the value", self.refusal("", ["::1"], listeners="tcp6:1:interface=x")
        )
        self.assertEqual(self.host(hostname="log1", listen_interface="::1"), "log1")

    def test_isLocal(self) -> None:
        """What every machine calls itself."""
        for host in (
            "127.0.0.1",
            "127.0.1.1",
            "::1",
            "0.0.0.0",
            "localhost",
            "LOCALHOST",
            "a.localhost",
        ):
            self.assertTrue(isLocal(host), host)
        for host in ("10.0.0.1", "fe80::1", "box", "localhost.example.org", ""):
            self.assertFalse(isLocal(host), host)
