"""
The settings of the log spout and the log bolt. A module of its own, since only they read them.

Keys that Kafka's clients have keep name, meaning and unit. Whether the log is one of today's Kafka
or of 2011's follows from which of C{bootstrap.servers} and C{zk.connect} is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pylogbroker.config.kafka.clientsettings import (
    CODECS,
    EARLIEST,
    LATEST,
    NO_RESET,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BootstrapServers,
    KafkaClientSettings,
    KafkaConsumerSettings,
)
from pylogbroker.config.keys import ConfigKey, Settings, ownKey
from pylogbroker.config.propertytypes import (
    NULLABLE_TEXT,
    POSITIVE,
    SIZE,
    TEXT,
    Enum,
    Integer,
    Nullable,
    PropertyType,
    Warn,
    ZookeeperServers,
)
from pylogbroker.config.securitysettings import (
    BROKER_ENDPOINT,
    ZK_ACL,
    ZK_DIGEST,
    requireSaslPair,
)
from pylogbroker.errors import ConfigurationError

BY_DURATION, BY_TIMESTAMP, BY_LAG = "by_duration", "by_timestamp", "by_lag"

STOP, SKIP, DEAD_LETTER = "stop", "skip", "dead-letter"

_DURATION = re.compile(
    r"P(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,8})M)?(?:(\d{1,9}(?:\.\d{1,3})?)S)?)?"
)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


class StartPosition(NamedTuple):
    """
    Where a partition without a position is read from.

    @ivar kind: one of the words of C{auto.offset.reset}.
    @ivar amount: milliseconds back, milliseconds since 1970, or how much before the end.
    """

    kind: str
    amount: int = 0


class StartPositionType(PropertyType[StartPosition]):
    """A word of C{auto.offset.reset}, with what follows its colon."""

    name = "string"
    range = (
        "`earliest`, `latest`, `none`, `by_duration:PT1H`, `by_timestamp:2026-01-31T12:00:00Z` or"
        " `by_lag:100000`"
    )

    def parse(self, text: str, warn: Warn) -> StartPosition:
        kind, colon, rest = text.partition(":")
        if kind in (EARLIEST, LATEST, NO_RESET) and not colon:
            return StartPosition(kind)
        if kind == BY_DURATION:
            return StartPosition(kind, _durationMs(rest))
        if kind == BY_TIMESTAMP:
            return StartPosition(kind, _timestampMs(rest))
        if kind == BY_LAG:
            if not re.fullmatch("[0-9]{1,18}", rest):
                raise ValueError(f"{rest!r} is not a number of records")
            return StartPosition(kind, int(rest))
        raise ValueError(f"must be {self.range}")


def _durationMs(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration such as PT15M or P1DT12H")
    parts = zip(found.groups(), _UNITS_MS, strict=True)
    return sum(round(float(number) * unit) for number, unit in parts if number)


def _timestampMs(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


class LogClientSettings(Settings):
    """
    Where the log is. Times are milliseconds.
    """

    bootstrapServers = ConfigKey(
        "bootstrap.servers",
        Nullable(BootstrapServers()),
        "",
        "The brokers of today's Kafka to ask first, `host:port,host:port`.",
    )
    zkConnect = ConfigKey(
        "zk.connect",
        ZookeeperServers(),
        "",
        "Or the ZooKeeper of a cluster of 2011, `host:port[,host:port…][/chroot]`.",
    )
    zkDigest = ZK_DIGEST
    zkAcl = ZK_ACL
    clientId = KafkaClientSettings.clientId
    brokerEndpoint = BROKER_ENDPOINT
    saslMechanism = KafkaClientSettings.saslMechanism
    saslUsername = KafkaClientSettings.saslUsername
    saslPassword = KafkaClientSettings.saslPassword
    requestTimeoutMs = ConfigKey(
        "request.timeout.ms",
        POSITIVE,
        "10000",
        "How long a request may take, retries included, in milliseconds.",
    )
    metadataMaxAgeMs = ConfigKey(
        "metadata.max.age.ms",
        POSITIVE,
        "300000",
        "How often new partitions are looked for, in milliseconds.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        if bool(values["bootstrapServers"]) == bool(values["zkConnect"]):
            raise ConfigurationError(
                "where the log is: give bootstrap.servers for a cluster of today's Kafka, or"
                " zk.connect for one of 2011, and not both"
            )
        requireSaslPair(values)


class LogSpoutSettings(LogClientSettings):
    """
    The settings of a L{pylogbroker.topologies.log.logspout.LogSpout}. Sizes are bytes.
    """

    groupId = ConfigKey(
        "group.id",
        TEXT,
        "",
        "The consumer group whose positions are read and committed. It must have no members.",
        derived="the topology's name",
    )
    autoOffsetReset = ConfigKey(
        "auto.offset.reset",
        StartPositionType(),
        EARLIEST,
        "Where to read a partition without a position, or whose position is not in the log: its "
        "beginning; its end; nowhere, which is an error; as long ago as a duration of ISO 8601 "
        "says; at a time; or so many records before the end. In 2011's log `by_lag` counts bytes, "
        "and the start is that of a segment.",
    )
    isolationLevel = ConfigKey(
        "isolation.level",
        Enum({READ_UNCOMMITTED: False, READ_COMMITTED: True}),
        READ_COMMITTED,
        "`read_committed` leaves out messages of aborted transactions, and waits for the end of "
        "open ones.",
    )
    maxPartitionFetchBytes = KafkaConsumerSettings.maxPartitionFetchBytes
    fetchMaxWaitMs = ConfigKey(
        "fetch.max.wait.ms",
        POSITIVE,
        "100",
        "How long the spout waits for records when there are none, in milliseconds. "
        "Acknowledgements wait as long.",
    )
    autoCommitIntervalMs = ConfigKey(
        "auto.commit.interval.ms",
        POSITIVE,
        "5000",
        "How often positions are committed, in milliseconds.",
    )
    maxUncommittedOffsets = ownKey(
        "max.uncommitted.offsets",
        POSITIVE,
        "10000",
        "Records of a partition from the first that is not acknowledged to the last that was "
        "read. A partition that has reached it is not read on.",
    )
    bufferMemory = ownKey(
        "buffer.memory",
        SIZE,
        "67108864",
        "Bytes of keys and values that an instance has read, and that are not acknowledged. At "
        "more, it reads nothing.",
    )
    replayBackoffMs = ownKey(
        "replay.backoff.ms",
        POSITIVE,
        "1000",
        "The wait before a record that failed is emitted again, in milliseconds; it doubles with "
        "each further failure.",
    )
    replayBackoffMaxMs = ownKey(
        "replay.backoff.max.ms", POSITIVE, "60000", "The longest such wait, in milliseconds."
    )
    replayLimit = ownKey(
        "replay.limit",
        Integer(-1),
        "-1",
        "How often a record that fails is emitted again; -1: until it succeeds.",
    )
    replayExhausted = ownKey(
        "replay.exhausted",
        Enum({word: word for word in (STOP, SKIP, DEAD_LETTER)}),
        STOP,
        "What follows when a record has failed once more than `replay.limit`. `stop`: the "
        "instance ends with an error, and begins at the committed position. `skip`: it is left "
        "out with a warning. `dead-letter`: it is also written to a topic.",
    )
    deadLetterTopic = ownKey(
        "dead.letter.topic",
        NULLABLE_TEXT,
        "",
        "The topic of records that are given up.",
        derived="the record's topic with `-dead-letters`",
    )


class LogBoltSettings(LogClientSettings):
    """
    The settings of a L{pylogbroker.topologies.log.logbolt.LogBolt}. Sizes are bytes.
    """

    compressionType = ConfigKey(
        "compression.type",
        Enum(CODECS),
        "none",
        "The compression of batches; in 2011's log, `none`, `gzip` or `snappy`.",
    )
    batchSize = ConfigKey(
        "batch.size",
        Integer(1, 64 << 20),
        "262144",
        "The bytes of unsent records, over all partitions, at which they are sent at once.",
    )
    maxMessageSize = ConfigKey(
        "max.message.size",
        POSITIVE,
        "1000000",
        "In 2011's log, the bytes of a message, and of a compressed set; a larger message fails. "
        "Brokers of today say themselves what is too large.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        super().complete(values, properties, warn)
        if values["zkConnect"] and values["compressionType"] > CODECS["snappy"]:
            raise ConfigurationError(
                f"compression.type={properties['compression.type']}: the log of 2011 knows none,"
                " gzip and snappy"
            )
