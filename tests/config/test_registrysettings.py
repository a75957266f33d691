"""Tests for L{pylogbroker.config.registrysettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.errors import ConfigurationError


class RegistrySettingsTests(SynchronousTestCase):
    """A registry's property file."""

    def test_defaults(self) -> None:
        """Only the broker has to be named, of either protocol."""
        expected = (
            "_schemas",
            3,
            "pylogbroker-registry",
            "",
            "SCRAM-SHA-512",
            "",
            "",
            "schema-registry",
            True,
            "",
            10_000,
            3_000,
            300_000,
            "tcp:8081:interface=127.0.0.1",
            (),
            10_000,
            100,
            60_000,
            1 << 20,
            100,
        )
        for given, servers in (
            ({"broker": "b:1"}, ("b:1", None, None)),
            ({"bootstrap.servers": "b:1,c:2"}, (None, ("b:1", "c:2"), None)),
        ):
            settings = RegistrySettings.fromProperties(given, self.fail)
            self.assertEqual(
                tuple(getattr(settings, key.name) for key in settings.keys), servers + expected
            )
        self.assertEqual(
            RegistrySettings.fromProperties({"broker": "b:1", "hosts": "a | b"}, self.fail).hosts,
            ("a", "b"),
        )

    def test_wrong(self) -> None:
        """Every value that is wrong or missing is named."""
        with self.assertRaises(ConfigurationError) as caught:
            RegistrySettings.fromProperties(
                {"topic": "", "timeout.ms": "0", "requests.max": "many"}, self.fail
            )
        self.assertEqual(len(str(caught.exception).splitlines()), 3)

    def test_keys(self) -> None:
        """Every key is ours, and has a setting."""
        self.assertEqual(
            [key for key in RegistrySettings.keys if key.isKafkaKey or not key.isEffective], []
        )

    def test_confluents(self) -> None:
        """The name and the form that Confluent's registry has for the servers do, too; TLS no."""
        name = "kafkastore.bootstrap.servers"
        given = {name: "PLAINTEXT://b:1, SASL_PLAINTEXT://c:2", "sasl.username": "u"}
        given["sasl.password"] = "p"
        settings = RegistrySettings.fromProperties(given, self.fail)
        self.assertEqual(settings.bootstrapServers, ("b:1", "c:2"))
        self.assertEqual(
            settings.kafkaProperties(),
            {
                "bootstrap.servers": "b:1,c:2",
                "client.id": "pylogbroker-registry",
                "broker.endpoint": "",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "u",
                "sasl.password": "p",
            },
        )
        with self.assertRaises(ConfigurationError) as caught:
            RegistrySettings.fromProperties({name: "SSL://b:1"}, self.fail)
        self.assertIn("set broker.endpoint", str(caught.exception))

    def test_contradictions(self) -> None:
        """Keys that contradict each other, and a missing broker, are named."""
        servers = {"bootstrap.servers": "b:1"}
        for given, reason in (
            ({}, "is required"),
            ({"broker": "b:1", **servers}, "not both"),
            ({"sasl.username": "u", **servers}, "need each other"),
            ({"kafkagroup.heartbeat.interval.ms": "5000", **servers}, "a third of"),
            ({"kafkagroup.rebalance.timeout.ms": "19999", **servers}, "together (20000)"),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                RegistrySettings.fromProperties(given, self.fail)
            self.assertIn(reason, str(caught.exception))
