"""Tests for L{pylogbroker.config.auditsettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.auditsettings import (
    AuditedSettings,
    AuditorSettings,
    TierAddress,
    parseTier,
)
from pylogbroker.errors import ConfigurationError


class AuditedSettingsTests(SynchronousTestCase):
    """A producer's part."""

    def test_defaults(self) -> None:
        """Nobody has to say anything."""
        settings = AuditedSettings.fromProperties({}, self.fail)
        self.assertEqual(
            tuple(getattr(settings, key.name) for key in settings.keys),
            ("pylogbroker-audit", 60_000, 10_000, "live", None, True),
        )
        self.assertIs(AuditedSettings.fromProperties({"audit.host": ""}, self.fail).auditHost, None)

    def test_wrong(self) -> None:
        """Every wrong value is named."""
        with self.assertRaises(ConfigurationError) as caught:
            AuditedSettings.fromProperties(
                {"audit.window.ms": "0", "audit.envelope": "yes", "audit.topic": ""}, self.fail
            )
        self.assertEqual(len(str(caught.exception).splitlines()), 3)

    def test_keys(self) -> None:
        """The prefix of every key shows whose it is."""
        self.assertTrue(
            all(key.key.startswith("audit.") and not key.isKafkaKey for key in AuditedSettings.keys)
        )


class AuditorSettingsTests(SynchronousTestCase):
    """An auditor's property file."""

    def settings(self, **properties: str) -> AuditorSettings:
        given = {key.replace("_", "."): value for key, value in properties.items()}
        return AuditorSettings.fromProperties({"tiers": "live=zk1:2181/kafka", **given}, self.fail)

    def test_defaults(self) -> None:
        """Only the tiers have to be given."""
        settings = self.settings()
        self.assertEqual(settings.tiers, (TierAddress("live", "zk1:2181/kafka", ()),))
        self.assertEqual(
            (
                settings.auditWindowMs,
                settings.graceMs,
                settings.horizonMs,
                settings.timeOf,
                settings.topics,
            ),
            (60_000, 120_000, 86_400_000, None, ()),
        )

    def test_tiers(self) -> None:
        """Several, with ZooKeeper or without."""
        settings = self.settings(
            tiers="live=zk1:2181,zk2:2181/kafka | mirror=broker:log1:9092,log2:9092"
        )
        self.assertEqual(settings.tiers[1], TierAddress("mirror", "", ("log1:9092", "log2:9092")))
        self.assertEqual(settings.tiers[0].zookeeperServers, "zk1:2181,zk2:2181/kafka")
        self.assertEqual(
            parseTier("warehouse=table:/data/clicks"),
            TierAddress("warehouse", "", (), "/data/clicks"),
        )

    def test_expected(self) -> None:
        """
        A tier may say which brokers there must be; what only looks a little like it belongs to the
        servers.
        """
        self.assertEqual(
            parseTier("live=zk1,zk2:2181/kafka@0,12"),
            TierAddress("live", "zk1,zk2:2181/kafka", (), expected=frozenset((0, 12))),
        )
        self.assertEqual(parseTier("live=zk1/a@b").expected, frozenset())

    def test_wrongTiers(self) -> None:
        """None, two of one name, and what is no tier, are refused."""
        for wrong in (
            "",
            "|",
            "live",
            "live=",
            "=zk:2181",
            "a=zk:1 | a=zk:2",
            "a=broker:",
            "a=table:",
            "a b=zk:1",
        ):
            self.assertRaises(ConfigurationError, self.settings, tiers=wrong)
        self.assertRaises(ConfigurationError, AuditorSettings.fromProperties, {}, self.fail)
        self.assertRaises(ConfigurationError, parseTier, "live=zk1 zk2")

    def test_noAddresses(self) -> None:
        """
        A tier's address that is none is refused, and shown; what may be an endpoint string is left
        to who connects.
        """
        for tier in (
            "a=broker:ev[il:9092",
            "a=broker:log1",
            "a=broker:log1:9092,log2:x",
            "a=broker:[::1:9092",
            "a=ev[il:2181",
            "a=zk1:x",
        ):
            error = self.assertRaises(ConfigurationError, parseTier, tier)
            self.assertIn(repr(tier), str(error))
        self.assertEqual(
            parseTier("a=broker:[::1]:9092,tls:log1:9093").brokers, ("[::1]:9092", "tls:log1:9093")
        )

    def test_derived(self) -> None:
        """A fetch can grow at least to what it begins with."""
        self.assertEqual(
            self.settings(fetch_size="67108864", fetch_size_max="5").fetchSizeMax, 67_108_864
        )

    def test_keys(self) -> None:
        """Every key has a setting."""
        self.assertEqual(
            sorted(vars(self.settings())), sorted(key.name for key in AuditorSettings.keys)
        )
