"""The settings of topics."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.brokersettings import BrokerSettings, kafkaValues
from pylogbroker.config.topicconfigs import (
    SERVER_CONFIGS,
    TOPIC_CONFIGS,
    VALUE_LENGTH_MAX,
    EffectiveConfigs,
    checkTopicConfig,
    topicDefaults,
)
from pylogbroker.errors import ConfigurationError


class CheckTests(SynchronousTestCase):
    """L{checkTopicConfig}."""

    def test_defaults(self) -> None:
        """Each setting accepts its own default, and the table is sorted."""
        for name, config in TOPIC_CONFIGS.items():
            self.assertEqual(checkTopicConfig(name, config.default), config.default)
        self.assertEqual(list(TOPIC_CONFIGS), sorted(TOPIC_CONFIGS))

    def test_valid(self) -> None:
        """Valid values, in their usual form."""
        for name, text, value in (
            ("retention.ms", " 5 ", "5"),
            ("cleanup.policy", "compact, delete", "compact,delete"),
            ("cleanup.policy", "", ""),
            ("unclean.leader.election.enable", "TRUE", "true"),
            ("min.cleanable.dirty.ratio", "0.1", "0.1"),
            ("compression.type", "zstd", "zstd"),
            ("compression.gzip.level", "-1", "-1"),
            ("compression.gzip.level", "9", "9"),
            ("message.timestamp.type", "LogAppendTime", "LogAppendTime"),
        ):
            self.assertEqual(checkTopicConfig(name, text), value)

    def test_tooLong(self) -> None:
        """A value's length is limited, and the error's with it."""
        name = "min.cleanable.dirty.ratio"
        longest = "0.5".ljust(VALUE_LENGTH_MAX, "0")
        self.assertEqual(checkTopicConfig(name, longest), longest)
        error = self.assertRaises(ValueError, checkTopicConfig, name, longest + "0")
        self.assertEqual(
            str(error),
            f"Invalid value 0.500000000000000000... for configuration {name}: "
            "Value must be no longer than 1000 characters",
        )

    def test_invalid(self) -> None:
        """What is not valid, or not honoured, is refused, and the text names setting and value."""
        for name, text in (
            ("retention.ms", "soon"),
            ("retention.ms", "-2"),
            ("segment.bytes", "9"),
            ("segment.bytes", "99999999999"),
            ("compression.gzip.level", "0"),
            ("compression.gzip.level", "10"),
            ("flush.ms", "9223372036854775808"),
            ("cleanup.policy", "shrink"),
            ("cleanup.policy", "delete,delete"),
            ("compression.type", "brotli"),
            ("unclean.leader.election.enable", "yes"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("remote.storage.enable", "true"),
            ("preallocate", "true"),
            ("leader.replication.throttled.replicas", "0:1,2"),
            ("leader.replication.throttled.replicas", "*,0:1"),
            ("follower.replication.throttled.replicas", "0:-1"),
            ("follower.replication.throttled.replicas", "none"),
        ):
            error = self.assertRaises(ValueError, checkTopicConfig, name, text)
            self.assertIn(name, str(error))
            self.assertIn(f"Invalid value {text} for", str(error))
        self.assertIn("Unknown", str(self.assertRaises(ValueError, checkTopicConfig, "x", "1")))
        self.assertIn(
            "Null value", str(self.assertRaises(ValueError, checkTopicConfig, "flush.ms", None))
        )

    def test_replicas(self) -> None:
        """Lists of replicas may be long, up to a limit; spaces are dropped."""
        key = "leader.replication.throttled.replicas"
        for text, value in (("", ""), ("*", "*"), ("0:1, 1:2 ", "0:1,1:2"), ("7:100", "7:100")):
            self.assertEqual(checkTopicConfig(key, text), value)
        long = ",".join(f"{number}:1" for number in range(3_000))
        self.assertEqual(checkTopicConfig(key, long), long)
        self.assertRaises(ValueError, checkTopicConfig, key, f"{long},{'1' * 60_000}:1")

    def test_effective(self) -> None:
        """A topic's setting comes before the broker's, and that before the default."""
        configs = EffectiveConfigs(
            {"retention.ms": "1"}, {"retention.ms": "2", "segment.bytes": "3000000"}
        )
        self.assertEqual(configs.number("retention.ms"), 1)
        self.assertEqual(configs.number("segment.bytes"), 3_000_000)
        self.assertEqual(configs["cleanup.policy"], "delete")
        self.assertFalse(configs.isTrue("preallocate"))
        self.assertEqual((len(configs), set(configs)), (len(TOPIC_CONFIGS), set(TOPIC_CONFIGS)))


class TopicDefaultTests(SynchronousTestCase):
    """The broker's file gives defaults of topics."""

    def settings(self, **properties: str) -> BrokerSettings:
        named = {key.replace("_", "."): value for key, value in properties.items()}
        return BrokerSettings.fromProperties(
            {"brokerid": "0", "log.dir": "/x", "enable.zookeeper": "false", **named}, self.fail
        )

    def defaults(self, **properties: str) -> dict[str, str]:
        keys = (*SERVER_CONFIGS, "log.retention.minutes", "log.retention.hours")
        others = ("log.roll.hours", "log.roll.jitter.hours")
        return topicDefaults(kafkaValues(self.settings(**properties), (*keys, *others)))

    def test_none(self) -> None:
        """A file that says nothing changes no default."""
        self.assertEqual(self.defaults(), {})

    def test_each(self) -> None:
        """Every setting that the broker has a key for can have a default in its file."""
        for key, config in SERVER_CONFIGS.items():
            found = self.defaults(**{key.replace(".", "_"): config.default})
            name = next(each.name for each in TOPIC_CONFIGS.values() if each.serverKey == key)
            self.assertEqual(found, {name: config.default})
        self.assertEqual(
            self.defaults(log_cleanup_policy="compact, delete")["cleanup.policy"], "compact,delete"
        )
        self.assertEqual(
            self.defaults(unclean_leader_election_enable="TRUE"),
            {"unclean.leader.election.enable": "true"},
        )

    def test_units(self) -> None:
        """Milliseconds go before minutes, and these before hours, which 0.7 has, too."""
        self.assertEqual(self.defaults(log_retention_hours="2"), {"retention.ms": "7200000"})
        both = {"log_retention_hours": "2", "log_retention_minutes": "3"}
        self.assertEqual(self.defaults(**both), {"retention.ms": "180000"})
        self.assertEqual(self.defaults(**both, log_retention_ms="4"), {"retention.ms": "4"})
        self.assertEqual(self.defaults(log_retention_minutes="-1"), {"retention.ms": "-1"})
        self.assertEqual(
            self.defaults(log_roll_hours="1", log_roll_jitter_hours="2"),
            {"segment.ms": "3600000", "segment.jitter.ms": "7200000"},
        )

    def test_of2011(self) -> None:
        """0.7's keys of other names are for its topics alone."""
        found = self.defaults(log_file_size="100", log_retention_size="9", log_flush_interval="1")
        self.assertEqual(found, {})

    def test_wrong(self) -> None:
        """What is wrong or not honoured stops the start, and the text says why."""
        for key, value, text in (
            ("log_segment_bytes", "5", "log.segment.bytes=5: Value must be at least 1048576"),
            ("compression_type", "xz", "String must be one of: uncompressed"),
            ("log_preallocate", "true", "this broker only has false"),
        ):
            error = self.assertRaises(ConfigurationError, self.settings, **{key: value})
            self.assertIn(text, str(error))
