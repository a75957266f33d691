"""Tests for L{pylogbroker.config.registrysettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.errors import ConfigurationError


class RegistrySettingsTests(SynchronousTestCase):
    """A registry's property file."""

    def test_defaults(self) -> None:
        """Only the broker has to be named."""
        settings = RegistrySettings.fromProperties({"broker": "b:1"}, self.fail)
        expected = (
            "b:1",
            "_schemas",
            "tcp:8081:interface=127.0.0.1",
            (),
            10_000,
            100,
            60_000,
            1 << 20,
            100,
        )
        self.assertEqual(tuple(getattr(settings, key.name) for key in settings.keys), expected)
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
        self.assertEqual(len(str(caught.exception).splitlines()), 4)

    def test_keys(self) -> None:
        """Every key is ours, and has a setting."""
        self.assertEqual(
            [key for key in RegistrySettings.keys if key.isKafkaKey or not key.isEffective], []
        )
