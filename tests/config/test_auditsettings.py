"""Tests for L{pylogbroker.config.auditsettings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.auditsettings import (
    AuditedSettings,
    AuditorSettings,
    TierAddress,
    parseTier,
)
from pylogbroker.config.kafka.auditedsettings import KafkaAuditedSettings
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

    def test_today(self) -> None:
        """A producer of today has the same keys, and needs no envelopes."""
        settings = KafkaAuditedSettings.fromProperties({}, self.fail)
        self.assertEqual(settings.auditEnvelope, False)
        self.assertEqual(
            sorted(key.key for key in KafkaAuditedSettings.keys),
            sorted(key.key for key in AuditedSettings.keys),
        )
        self.assertTrue(
            KafkaAuditedSettings.fromProperties({"audit.envelope": "true"}).auditEnvelope
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

    def test_kafkaTiers(self) -> None:
        """
        Clusters of today; a host of ZooKeeper's may be called C{kafka} all the same, with a port.
        """
        for address, servers in (
            ("log1:9092", ("log1:9092",)),
            ("log1:9092,[::1]:9093", ("log1:9092", "[::1]:9093")),
            ("10.0.0.1:9092", ("10.0.0.1:9092",)),
        ):
            self.assertEqual(
                parseTier(f"live=kafka:{address}"),
                TierAddress("live", "", (), bootstrapServers=servers),
            )
        for text in ("kafka:2181", "kafka:2181,zk2:2181/x", "kafka:2181/x", "kafka"):
            self.assertEqual(parseTier(f"live={text}"), TierAddress("live", text, ()))
        self.assertEqual(
            parseTier("live=kafka:2181@0"),
            TierAddress("live", "kafka:2181", (), expected=frozenset((0,))),
        )

    def test_clientSettings(self) -> None:
        """
        A tier of today is reached as its own keys say, else as the auditor's do; passwords are not
        shown.
        """
        settings = self.settings(
            tiers="live=kafka:log1:9092 | live.b=kafka:log2:9092",
            timeout_ms="1234",
            broker_endpoint="tls:{host}:{port}",
            **{
                "tier.live.sasl.username": "auditor",
                "tier.live.sasl.password": "hidden",
                "tier.live.b.broker.endpoint": "tcp:{host}:{port}",
                "tier.live.b.request.timeout.ms": "99",
            },
        )
        first, second = [settings.clientSettings(tier, self.fail) for tier in settings.tiers]
        self.assertEqual(
            (
                first.bootstrapServers,
                first.saslUsername,
                first.saslPassword,
                first.brokerEndpoint,
                first.requestTimeoutMs,
                first.socketConnectionSetupTimeoutMs,
                first.clientId,
            ),
            (
                ("log1:9092",),
                "auditor",
                "hidden",
                "tls:{host}:{port}",
                1234,
                1234,
                "pylogbroker-auditor",
            ),
        )
        self.assertEqual(
            (second.bootstrapServers, second.saslUsername, second.brokerEndpoint),
            (("log2:9092",), "", "tcp:{host}:{port}"),
        )
        self.assertEqual(second.requestTimeoutMs, 99)
        for each in (settings, first):
            self.assertNotIn("hidden", repr(each))

    def test_wrongClientSettings(self) -> None:
        """What is wrong for a tier is an error that names key and tier; an unknown key is told."""
        for key, value, reason in (
            ("tier.other.sasl.username", "x", "there is no tier NAME=kafka:HOST:PORT"),
            ("tier.live.sasl.username", "x", r"tier\.live\.sasl.username and sasl.password"),
            ("tier.live.request.timeout.ms", "x", r"tier\.live\.request.timeout.ms=x"),
            ("tier.live.bootstrap.servers", "h:1", "the tier's address says it"),
        ):
            with self.assertRaisesRegex(ConfigurationError, reason):
                self.settings(tiers="live=kafka:log1:9092", **{key: value})
        warnings: list[str] = []
        AuditorSettings.fromProperties(
            {"tiers": "live=kafka:log1:9092", "tier.live.sasl.user": "x"}, warnings.append
        )
        self.assertEqual(len(warnings), 1)
        self.assertIn("tier.live.sasl.user=", warnings[0])

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
            "a=kafka:",
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
            "a=kafka:log1",
            "a=kafka:log1:9092,log2:x",
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
