"""Tests for L{pylogbroker.config.consumersettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.errors import ConfigurationError


class ConsumerSettingsTests(SynchronousTestCase):
    """A consumer's property file."""

    def setUp(self) -> None:
        self.warnings: list[str] = []

    def settings(self, **properties: str) -> ConsumerSettings:
        return ConsumerSettings.fromProperties(
            {"groupid": "g", **{key.replace("_", "."): value for key, value in properties.items()}},
            self.warnings.append,
        )

    def test_defaults(self) -> None:
        """Defaults are those of 0.7.2's code (spec-0.7 config §2)."""
        settings = self.settings()
        self.assertEqual(
            {key.name: getattr(settings, key.name) for key in settings.keys if key.isEffective},
            {
                "groupId": "g",
                "consumerId": None,
                "zkConnect": "",
                "zkSessionTimeoutMs": 6_000,
                "zkConnectionTimeoutMs": 6_000,
                "zkSyncTimeMs": 2_000,
                "zkDigest": "",
                "zkAcl": "readable",
                "brokerEndpoint": "",
                "socketTimeoutMs": 30_000,
                "socketBufferSize": 0,
                "fetchSize": 1_048_576,
                "fetchSizeMax": 67_108_864,
                "maxResponseBytes": 16_777_216,
                "fetcherBackoffMs": 1_000,
                "queuedChunksMax": 10,
                "maxQueuedBytes": 67_108_864,
                "autoCommitEnable": True,
                "autoCommitIntervalMs": 10_000,
                "autoOffsetReset": "smallest",
                "rebalanceRetriesMax": 4,
                "rebalanceBackoffMs": 2_000,
                "consumerTimeoutMs": -1,
                "shallowIteratorEnable": False,
            },
        )
        self.assertEqual(self.warnings, [])

    def test_derived(self) -> None:
        """What is derived follows what it is derived from, unless it is given."""
        settings = self.settings(
            zk_sessiontimeout_ms="9000", zk_synctime_ms="500", fetch_size="100000000", consumerid=""
        )
        self.assertEqual(
            (
                settings.zkConnectionTimeoutMs,
                settings.rebalanceBackoffMs,
                settings.fetchSizeMax,
                settings.consumerId,
            ),
            (9_000, 500, 100_000_000, None),
        )
        settings = self.settings(
            zk_connectiontimeout_ms="1", rebalance_backoff_ms="0", consumerid="c"
        )
        self.assertEqual(
            (settings.zkConnectionTimeoutMs, settings.rebalanceBackoffMs, settings.consumerId),
            (1, 0, "c"),
        )

    def test_group(self) -> None:
        """A group is required, and has a name."""
        with self.assertRaisesRegex(ConfigurationError, "groupid is missing"):
            ConsumerSettings.fromProperties({}, self.fail)
        with self.assertRaisesRegex(ConfigurationError, "groupid=: must not be empty"):
            self.settings(groupid="")

    def test_fetchSizes(self) -> None:
        """C{fetch.size.max} is at least C{fetch.size}."""
        with self.assertRaisesRegex(
            ConfigurationError,
            r"fetch\.size\.max=10: must be at least fetch\.size, which is 1048576",
        ):
            self.settings(fetch_size_max="10")

    def test_reset(self) -> None:
        """A policy that is neither smallest nor largest is allowed, as in 0.7, and explained."""
        self.assertEqual(self.settings(autooffset_reset="fail").autoOffsetReset, "fail")
        self.assertIn("autooffset.reset=fail", self.warnings[0])

    def test_allWrong(self) -> None:
        """Every wrong value is named."""
        with self.assertRaises(ConfigurationError) as caught:
            self.settings(fetch_size="0", autocommit_enable="yes", queuedchunks_max="x")
        self.assertEqual(len(str(caught.exception).splitlines()), 3)

    def test_rows(self) -> None:
        """Every setting has one row, and every row with an effect a setting."""
        effective = [key.name for key in ConsumerSettings.keys if key.isEffective]
        self.assertEqual(sorted(vars(self.settings())), sorted(effective))
        self.assertTrue(all(row.doc.endswith((".", ".)")) for row in ConsumerSettings.keys))
