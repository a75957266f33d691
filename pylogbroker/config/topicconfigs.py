"""
The settings of topics in today's protocol: every one of Kafka 4.3, with type, default and meaning.

A setting is I{honoured}, or I{refused} unless it has its default: to take a value that has no
effect would be a lie. The settings of remote storage are refused: there is no tier. A topic's
setting overrides the broker's, whose key is C{serverKey}; without either the default holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from pylogbroker.config.keys import ConfigKey, ownKey
from pylogbroker.config.propertytypes import Nullable, PropertyType, Warn

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
VALUE_LENGTH_MAX = 1000
"""Characters of a setting's value; each is kept in the metadata's journal."""
REPLICAS_LENGTH_MAX = 65_536
"""Characters of a list of replicas."""
ALL_REPLICAS = "*"
LEADER_THROTTLED_RATE = "leader.replication.throttled.rate"
LEADER_THROTTLED_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_RATE = "follower.replication.throttled.rate"
FOLLOWER_THROTTLED_REPLICAS = "follower.replication.throttled.replicas"
_REPLICA = re.compile("[0-9]+:[0-9]+", re.ASCII)


class ConfigType(IntEnum):
    """Types, numbered as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True)
class TopicConfig:
    """
    One setting.

    @ivar default: as text.
    @ivar serverKey: the broker's key with the same meaning; C{""}: there is none.
    @ivar doc: one sentence.
    @ivar low: the least number.
    @ivar alternative: a number that is valid, too, outside of L{low} to L{high}.
    @ivar choices: valid texts, of a list for each element; empty: any.
    @ivar isHonoured: whether another value than the default is accepted.
    @ivar isOfReplicas: whether the elements of a list are C{partition:broker}.
    """

    name: str
    type: ConfigType
    default: str
    serverKey: str
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    isHonoured: bool = True
    alternative: int | None = None
    isOfReplicas: bool = False

    def check(self, text: str) -> str:
        """
        The value in its usual form.

        @raise ValueError: why it is not valid, as a sentence that names the setting.
        """
        lengthMax = REPLICAS_LENGTH_MAX if self.isOfReplicas else VALUE_LENGTH_MAX
        if len(text) > lengthMax:
            reason = f"Value must be no longer than {lengthMax} characters"
            raise self._error(f"{text[:20]}...", reason)
        text = text.strip()
        if self.type is ConfigType.BOOLEAN:
            text = text.lower()
            if text not in ("true", "false"):
                raise self._error(text, "Expected value to be either true or false")
        elif self.type is ConfigType.LIST:
            parts = [part.strip() for part in text.split(",")] if text else []
            self._checkChoices(text, parts)
            if len(set(parts)) < len(parts):
                raise self._error(text, "a value occurs twice")
            text = ",".join(parts)
        elif self.type is ConfigType.STRING:
            self._checkChoices(text, [text])
        else:
            self._checkNumber(text)
        if not self.isHonoured and text != self.default:
            raise self._error(text, f"this broker only has {self.default or 'an empty value'}")
        return text

    def _checkChoices(self, text: str, parts: list[str]) -> None:
        if self.isOfReplicas and text != ALL_REPLICAS and not all(map(_REPLICA.fullmatch, parts)):
            reason = (
                f"it must be '{ALL_REPLICAS}' or a list of replicas in the form"
                " [partitionId]:[brokerId],[partitionId]:[brokerId],..."
            )
            raise self._error(text, reason)
        if self.choices and any(part not in self.choices for part in parts):
            raise self._error(text, f"String must be one of: {', '.join(self.choices)}")

    def _checkNumber(self, text: str) -> None:
        widest = LONG_MAX if self.type is ConfigType.LONG else INT_MAX
        try:
            number = float(text) if self.type is ConfigType.DOUBLE else int(text)
        except ValueError:
            number = math.nan
        if not -widest - 1 <= number <= widest:
            raise self._error(text, f"Not a number of type {self.type.name}")
        low, high = self.low, self.high
        isBelow = low is not None and number < low
        isAbove = high is not None and number > high
        if self.alternative is not None:
            if (isBelow or isAbove) and number != self.alternative:
                reason = f"Value must be between {low} and {high} or equal to {self.alternative}"
                raise self._error(text, reason)
        elif isBelow:
            raise self._error(text, f"Value must be at least {low}")
        elif isAbove:
            raise self._error(text, f"Value must be no more than {high}")

    def _error(self, text: str, reason: str) -> ValueError:
        return ValueError(f"Invalid value {text} for configuration {self.name}: {reason}")


_T = ConfigType
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _refused(name: str, type: ConfigType, default: str, doc: str) -> TopicConfig:
    return TopicConfig(name, type, default, "", doc, isHonoured=False)


TOPIC_CONFIGS: Mapping[str, TopicConfig] = {
    each.name: each
    for each in (
        TopicConfig(
            "cleanup.policy",
            _T.LIST,
            "delete",
            "log.cleanup.policy",
            "What happens to old segments: delete them, or compact: keep each key's last record.",
            choices=("compact", "delete"),
        ),
        TopicConfig(
            "compression.gzip.level",
            _T.INT,
            "-1",
            "compression.gzip.level",
            "The level for gzip; -1 is the library's.",
            low=1,
            high=9,
            alternative=-1,
        ),
        TopicConfig(
            "compression.lz4.level",
            _T.INT,
            "9",
            "compression.lz4.level",
            "The level for lz4.",
            low=1,
            high=17,
        ),
        TopicConfig(
            "compression.type",
            _T.STRING,
            "producer",
            "compression.type",
            "The codec of stored batches; producer keeps the producer's.",
            choices=_CODECS,
        ),
        TopicConfig(
            "compression.zstd.level",
            _T.INT,
            "3",
            "compression.zstd.level",
            "The level for zstd.",
            low=-131072,
            high=22,
        ),
        TopicConfig(
            "delete.retention.ms",
            _T.LONG,
            "86400000",
            "log.cleaner.delete.retention.ms",
            "How long a tombstone stays in a compacted topic.",
            low=0,
        ),
        TopicConfig(
            "file.delete.delay.ms",
            _T.LONG,
            "60000",
            "log.segment.delete.delay.ms",
            "How long a removed file stays on the disk.",
            low=0,
        ),
        TopicConfig(
            "flush.messages",
            _T.LONG,
            str(LONG_MAX),
            "log.flush.interval.messages",
            "Records after which the log is flushed.",
            low=1,
        ),
        TopicConfig(
            "flush.ms",
            _T.LONG,
            str(LONG_MAX),
            "log.flush.interval.ms",
            "Milliseconds after which the log is flushed.",
            low=0,
        ),
        TopicConfig(
            FOLLOWER_THROTTLED_REPLICAS,
            _T.LIST,
            "",
            "",
            "Replicas whose fetching is throttled: partition:broker, with commas, or *.",
            isOfReplicas=True,
        ),
        TopicConfig(
            "index.interval.bytes",
            _T.INT,
            "4096",
            "log.index.interval.bytes",
            "Bytes between two entries of an index.",
            low=0,
        ),
        TopicConfig(
            LEADER_THROTTLED_REPLICAS,
            _T.LIST,
            "",
            "",
            "Leaders that are throttled when they serve replicas that are behind: "
            "partition:broker, with commas, or *.",
            isOfReplicas=True,
        ),
        _refused(
            "local.retention.bytes", _T.LONG, "-2", "Bytes that stay on the disk beside a tier."
        ),
        _refused(
            "local.retention.ms",
            _T.LONG,
            "-2",
            "Milliseconds that records stay on the disk beside a tier.",
        ),
        TopicConfig(
            "max.compaction.lag.ms",
            _T.LONG,
            str(LONG_MAX),
            "log.cleaner.max.compaction.lag.ms",
            "The longest time that a record is not compacted.",
            low=1,
        ),
        TopicConfig(
            "max.message.bytes",
            _T.INT,
            "1048588",
            "message.max.bytes",
            "The largest batch, after compression.",
            low=0,
        ),
        TopicConfig(
            "message.timestamp.after.max.ms",
            _T.LONG,
            "3600000",
            "log.message.timestamp.after.max.ms",
            "How far a record's timestamp may be ahead of the broker's clock.",
            low=0,
        ),
        TopicConfig(
            "message.timestamp.before.max.ms",
            _T.LONG,
            str(LONG_MAX),
            "log.message.timestamp.before.max.ms",
            "How far a record's timestamp may be behind the broker's clock.",
            low=0,
        ),
        TopicConfig(
            "message.timestamp.type",
            _T.STRING,
            "CreateTime",
            "log.message.timestamp.type",
            "Whether a record's timestamp is the producer's or that of the append.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        TopicConfig(
            "min.cleanable.dirty.ratio",
            _T.DOUBLE,
            "0.5",
            "log.cleaner.min.cleanable.ratio",
            "The part of a log that must be uncompacted before it is compacted.",
            low=0,
            high=1,
        ),
        TopicConfig(
            "min.compaction.lag.ms",
            _T.LONG,
            "0",
            "log.cleaner.min.compaction.lag.ms",
            "The least time before a record is compacted.",
            low=0,
        ),
        TopicConfig(
            "min.insync.replicas",
            _T.INT,
            "1",
            "min.insync.replicas",
            "Replicas that must have a record that is acknowledged to acks=all.",
            low=1,
        ),
        TopicConfig(
            "preallocate",
            _T.BOOLEAN,
            "false",
            "log.preallocate",
            "Whether a segment's file has its full size from the beginning.",
            isHonoured=False,
        ),
        _refused(
            "remote.log.copy.disable",
            _T.BOOLEAN,
            "false",
            "Whether nothing more is copied to a tier.",
        ),
        _refused(
            "remote.log.delete.on.disable",
            _T.BOOLEAN,
            "false",
            "Whether the tier is emptied when it is switched off.",
        ),
        _refused(
            "remote.storage.enable", _T.BOOLEAN, "false", "Whether segments are copied to a tier."
        ),
        TopicConfig(
            "retention.bytes",
            _T.LONG,
            "-1",
            "log.retention.bytes",
            "The size of a partition above which old segments are deleted; -1: no limit.",
        ),
        TopicConfig(
            "retention.ms",
            _T.LONG,
            "604800000",
            "log.retention.ms",
            "The age of records above which a segment is deleted; -1: no limit.",
            low=-1,
        ),
        TopicConfig(
            "segment.bytes",
            _T.INT,
            "1073741824",
            "log.segment.bytes",
            "The largest segment file.",
            low=1048576,
        ),
        TopicConfig(
            "segment.index.bytes",
            _T.INT,
            "10485760",
            "log.index.size.max.bytes",
            "The largest index file; a full one rolls the segment.",
            low=4,
        ),
        TopicConfig(
            "segment.jitter.ms",
            _T.LONG,
            "0",
            "log.roll.jitter.ms",
            "The most that is taken from segment.ms at random.",
            low=0,
        ),
        TopicConfig(
            "segment.ms",
            _T.LONG,
            "604800000",
            "log.roll.ms",
            "The age of a segment at which it is rolled.",
            low=1,
        ),
        TopicConfig(
            "unclean.leader.election.enable",
            _T.BOOLEAN,
            "false",
            "unclean.leader.election.enable",
            "Whether a replica that is not in sync may lead.",
        ),
    )
}
"""By name, sorted by it."""

SERVER_CONFIGS: Mapping[str, TopicConfig] = {
    each.serverKey: replace(each, name=each.serverKey)
    for each in TOPIC_CONFIGS.values()
    if each.serverKey and each.isHonoured
}
"""The settings of the broker that can be changed while it runs: defaults of those of topics."""

THROTTLE_CONFIGS: Mapping[str, TopicConfig] = {
    each.name: each
    for each in (
        TopicConfig(
            FOLLOWER_THROTTLED_RATE,
            _T.LONG,
            str(LONG_MAX),
            FOLLOWER_THROTTLED_RATE,
            "Bytes in a second that the broker fetches for throttled replicas that are behind.",
            low=0,
        ),
        TopicConfig(
            LEADER_THROTTLED_RATE,
            _T.LONG,
            str(LONG_MAX),
            LEADER_THROTTLED_RATE,
            "Bytes in a second that the broker sends of throttled leaders to replicas that are "
            "behind.",
            low=0,
        ),
    )
}
"""Settings of the broker that are only set while it runs."""

DYNAMIC_CONFIGS: Mapping[str, TopicConfig] = {**SERVER_CONFIGS, **THROTTLE_CONFIGS}
"""All settings of the broker that can be changed while it runs."""

OTHER_UNITS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
}
"""Keys of the broker that hold if this one is absent, the first first, with their units."""


def topicDefaults(server: Mapping[str, str]) -> dict[str, str]:
    """
    The defaults of topics, by the names of their settings.

    @param server: what the broker's file says, by its keys.
    """
    found = {}
    for config in TOPIC_CONFIGS.values():
        key = config.serverKey
        if key in server:
            found[config.name] = server[key]
            continue
        for other, unit in OTHER_UNITS.get(key, ()):
            if other in server:
                number = int(server[other])
                found[config.name] = str(number * unit if number > 0 else number)
                break
    return found


_TYPE_NAMES = {
    ConfigType.BOOLEAN: "bool",
    ConfigType.STRING: "string",
    ConfigType.INT: "int",
    ConfigType.LONG: "long",
    ConfigType.DOUBLE: "number",
    ConfigType.LIST: "list with commas",
}


class TopicDefaultType(PropertyType[str]):
    """The type of a broker's key that is the default of a topic's setting: its text, checked."""

    def __init__(self, config: TopicConfig) -> None:
        self._config = config
        self.name = _TYPE_NAMES[config.type]
        if config.choices:
            self.range = ", ".join(config.choices)
        elif config.low is not None:
            ends = (config.alternative, config.low, config.high)
            least, low, high = ("" if each is None else f"{each:g}" for each in ends)
            between = f"{low} to {high}" if high else f"{low} or more"
            self.range = f"{least} or {between}" if least else between

    def parse(self, text: str, warn: Warn) -> str:
        try:
            return self._config.check(text)
        except ValueError as error:
            raise ValueError(str(error).partition(f" {self._config.name}: ")[2]) from error


def topicDefault(name: str) -> ConfigKey[str | None]:
    """
    The broker's key for the default of a topic's setting.

    @param name: of the topic's setting.
    """
    config = TOPIC_CONFIGS[name]
    return ownKey(
        config.serverKey,
        Nullable(TopicDefaultType(config)),
        None,
        f"The default of `{name}`, for topics of Kafka's current protocol. {config.doc}",
        derived=_derived(config),
    )


def _derived(config: TopicConfig) -> str:
    others = [other for other, _ in OTHER_UNITS.get(config.serverKey, ()) if other in _OWN_KEYS]
    if others:
        return " or ".join(f"`{other}`" for other in others)
    return f"`{config.default}`"


_OWN_KEYS = frozenset(
    ("log.retention.minutes", "log.retention.hours", "log.roll.hours", "log.roll.jitter.hours")
)


class EffectiveConfigs(Mapping[str, str]):
    """
    The settings that hold for a topic.

    @ivar topic: those of the topic itself.
    @ivar server: defaults of the broker, by the names of topic settings.
    """

    def __init__(self, topic: Mapping[str, str], server: Mapping[str, str]) -> None:
        self.topic = topic
        self.server = server

    def __getitem__(self, name: str) -> str:
        found = self.topic.get(name)
        if found is None:
            found = self.server.get(name)
        return TOPIC_CONFIGS[name].default if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(TOPIC_CONFIGS)

    def __len__(self) -> int:
        return len(TOPIC_CONFIGS)

    def number(self, name: str) -> int:
        return int(self[name])

    def isTrue(self, name: str) -> bool:
        return self[name] == "true"


def checkTopicConfig(name: str, value: str | None) -> str:
    """
    A setting's value in its usual form.

    @raise ValueError: there is no such setting, or the value is not valid, or not honoured; the
        text names it.
    """
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise ValueError(f"Unknown topic config name: {name}")
    if value is None:
        raise ValueError(f"Null value not supported for topic configs: {name}")
    return config.check(value)
