"""
Tests for L{pylogbroker.config.topologies.logsettings}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.topologies.logsettings import (
    LogBoltSettings,
    LogSpoutSettings,
    StartPosition,
)
from pylogbroker.errors import ConfigurationError

SERVERS = {"bootstrap.servers": "a:1"}


class LogSettingsTests(SynchronousTestCase):
    """What is accepted, and what is refused with which words."""

    def refusal(self, kind: type[LogSpoutSettings] | type[LogBoltSettings], **more: str) -> str:
        given = {**SERVERS, **{key.replace("_", "."): value for key, value in more.items()}}
        properties = {key: value for key, value in given.items() if value}
        return str(self.assertRaises(ConfigurationError, kind.fromProperties, properties))

    def test_whereTheLogIs(self) -> None:
        """One of both dialects is chosen."""
        self.assertIn("not both", self.refusal(LogSpoutSettings, zk_connect="b:2"))
        self.assertIn(
            "where the log is: give bootstrap.servers",
            self.refusal(LogSpoutSettings, bootstrap_servers=""),
        )
        found = LogBoltSettings.fromProperties({"zk.connect": "b:2", "compression.type": "gzip"})
        self.assertEqual((found.bootstrapServers, found.zkConnect), (None, "b:2"))

    def test_nameAndPassword(self) -> None:
        """A name without a password is refused."""
        self.assertEqual(
            self.refusal(LogSpoutSettings, sasl_username="me"),
            "sasl.username and sasl.password need each other",
        )

    def test_codecOf2011(self) -> None:
        """The log of 2011 has fewer codecs."""
        text = self.refusal(
            LogBoltSettings, bootstrap_servers="", zk_connect="b:2", compression_type="zstd"
        )
        self.assertIn("compression.type=zstd: the log of 2011 knows none, gzip and snappy", text)

    def test_startPositions(self) -> None:
        """Words, durations, times and numbers."""
        for text, expected in {
            "earliest": ("earliest", 0),
            "latest": ("latest", 0),
            "none": ("none", 0),
            "by_duration:PT90M": ("by_duration", 5_400_000),
            "by_duration:P2DT3H4M5.25S": ("by_duration", 183_845_250),
            "by_duration:P1D": ("by_duration", 86_400_000),
            "by_timestamp:1970-01-01T00:00:02": ("by_timestamp", 2_000),
            "by_timestamp:1970-01-01T01:00:02+01:00": ("by_timestamp", 2_000),
            "by_lag:100": ("by_lag", 100),
        }.items():
            found = LogSpoutSettings.fromProperties({**SERVERS, "auto.offset.reset": text})
            self.assertEqual(found.autoOffsetReset, StartPosition(*expected))

    def test_noStartPositions(self) -> None:
        """Each refusal says what would be right."""
        for text, reason in {
            "early": "must be `earliest`",
            "earliest:1": "must be `earliest`",
            "by_duration:P": "is not a duration such as PT15M",
            "by_duration:15m": "is not a duration such as PT15M",
            "by_timestamp:noon": "is not a time such as 2026-01-31T12:00:00Z",
            "by_lag:-1": "is not a number of records",
        }.items():
            self.assertIn(reason, self.refusal(LogSpoutSettings, auto_offset_reset=text))
