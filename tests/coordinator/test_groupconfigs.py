"""The values that settings of groups may have."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.groupconfigs import (
    ASSIGNMENT_INTERVAL,
    GROUP_CONFIGS,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
    checkGroupConfig,
)


class GroupConfigTests(SynchronousTestCase):
    """L{checkGroupConfig}."""

    def test_valid(self) -> None:
        """The least, the largest and the default value are valid."""
        for name, low, high in (
            (ASSIGNMENT_INTERVAL, "0", "15000"),
            (HEARTBEAT_INTERVAL, "5000", "15000"),
            (SESSION_TIMEOUT, "45000", "60000"),
        ):
            for text in (low, high, GROUP_CONFIGS[name].default):
                self.assertEqual(checkGroupConfig(name, f" {text} "), text)

    def test_invalid(self) -> None:
        """A value that is out of bounds, or none, is refused in Kafka's words."""
        for name, text, expected in (
            ("no.such", "1", "Unknown group config name: no.such"),
            ("share.session.timeout.ms", "45000", "Unknown group config name: share.session"),
            (SESSION_TIMEOUT, "x", "Not a number of type INT"),
            (SESSION_TIMEOUT, "0", "Value must be at least 1"),
            (
                SESSION_TIMEOUT,
                "44999",
                "consumer.session.timeout.ms must be greater than or equal to"
                " group.consumer.min.session.timeout.ms",
            ),
            (
                ASSIGNMENT_INTERVAL,
                "15001",
                "consumer.assignment.interval.ms must be less than or equal to"
                " group.consumer.max.assignment.interval.ms",
            ),
        ):
            error = self.assertRaises(ValueError, checkGroupConfig, name, text)
            self.assertIn(expected, str(error))
