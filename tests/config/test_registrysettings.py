"""Tests for L{pylogbroker.config.registrysettings}."""

from __future__ import annotations

import dataclasses

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.registrysettings import REGISTRY_ROWS, RegistrySettings
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
        self.assertEqual(dataclasses.astuple(settings), expected)
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

    def test_rows(self) -> None:
        """Every setting has one row."""
        self.assertEqual(
            [row.setting for row in REGISTRY_ROWS],
            [field.name for field in dataclasses.fields(RegistrySettings)],
        )
