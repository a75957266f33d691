"""The settings of topics."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.topicconfigs import (
    TOPIC_CONFIGS,
    VALUE_LENGTH_MAX,
    EffectiveConfigs,
    checkTopicConfig,
)


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
            ("leader.replication.throttled.replicas", "0:1"),
        ):
            error = self.assertRaises(ValueError, checkTopicConfig, name, text)
            self.assertIn(name, str(error))
            self.assertIn(f"Invalid value {text} for", str(error))
        self.assertIn("Unknown", str(self.assertRaises(ValueError, checkTopicConfig, "x", "1")))
        self.assertIn(
            "Null value", str(self.assertRaises(ValueError, checkTopicConfig, "flush.ms", None))
        )

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
