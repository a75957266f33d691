"""
What a consumer group's member can be told, and what it is told when nobody says anything.

Kafka 0.7's keys keep name, meaning, unit and default (spec-0.7 config §2; the defaults are those of 0.7.2's code, not of its web page,
but for the sockets' buffers, which the system sizes). Beside them stand our own: limits where 0.7 had none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from pylogbroker.config.connectionsettings import ACL_ROW, DIGEST_ROW, ENDPOINT_ROW
from pylogbroker.config.keys import ConfigKey, readSettings
from pylogbroker.config.propertytypes import Boolean, Integer, Text, ZookeeperServers
from pylogbroker.errors import ConfigurationError

_POSITIVE = Integer(1)
_NOT_NEGATIVE = Integer(0)
_SIZE_MAX = Integer(1, 1 << 30)

_ours = partial(ConfigKey, isKafkaKey=False)
_idle = partial(ConfigKey, used=False)

CONSUMER_ROWS: tuple[ConfigKey, ...] = (
    # -- who
    ConfigKey(
        "groupid",
        "group",
        Text(empty=False),
        None,
        "The consumer group: each message goes to one of its members.",
        required=True,
    ),
    ConfigKey(
        "consumerid",
        "consumerId",
        Text(),
        None,
        "A fixed name for this member, for tests; two members with one name keep each other out.",
        derived="made of host name, time and chance",
    ),
    # -- ZooKeeper
    ConfigKey(
        "zk.connect",
        "zkConnect",
        ZookeeperServers(),
        "",
        "ZooKeeper's addresses, `host:port[,host:port…][/chroot]`. The chroot must exist.",
    ),
    ConfigKey(
        "zk.sessiontimeout.ms",
        "zkSessionTimeoutMs",
        _POSITIVE,
        "6000",
        "How long ZooKeeper waits for a sign of life before others get this member's partitions.",
    ),
    ConfigKey(
        "zk.connectiontimeout.ms",
        "zkConnectionTimeoutMs",
        _POSITIVE,
        None,
        "How long the first connection to ZooKeeper may take.",
        derived="`zk.sessiontimeout.ms`",
    ),
    ConfigKey(
        "zk.synctime.ms",
        "zkSyncTimeMs",
        _NOT_NEGATIVE,
        "2000",
        "How far a ZooKeeper follower may be behind: the default of `rebalance.backoff.ms`.",
    ),
    DIGEST_ROW._replace(setting="zkDigest"),
    ACL_ROW._replace(setting="zkAcl"),
    # -- fetching
    ENDPOINT_ROW,
    ConfigKey(
        "socket.timeout.ms",
        "socketTimeoutMs",
        _POSITIVE,
        "30000",
        "How long an answer of a broker may take. (In 0.7 without effect.)",
    ),
    ConfigKey(
        "socket.buffersize",
        "receiveBufferSize",
        Integer(0, 1 << 30),
        "0",
        "SO_RCVBUF of each connection in bytes; 0 leaves it to the system, which makes it as large as it must be. (In 0.7: 65536.)",
    ),
    ConfigKey(
        "fetch.size", "fetchSize", _SIZE_MAX, "1048576", "Bytes of a partition to fetch at a time."
    ),
    _ours(
        "fetch.size.max",
        "fetchSizeMax",
        _SIZE_MAX,
        "67108864",
        "What the fetch size of a partition may grow to, by doubling, for a message that is larger than `fetch.size`. At least that.",
        derived="`67108864`, or `fetch.size` if that is more",
    ),
    _ours(
        "max.response.bytes",
        "responseSizeMax",
        _SIZE_MAX,
        "16777216",
        "Bytes to fetch of all partitions of a broker at a time; they take turns. A single partition may have `fetch.size.max`.",
    ),
    ConfigKey(
        "fetcher.backoff.ms",
        "fetchBackoffMs",
        _NOT_NEGATIVE,
        "1000",
        "How long a partition is left alone when a whole round brought nothing.",
    ),
    ConfigKey(
        "queuedchunks.max",
        "queuedChunkCountMax",
        _POSITIVE,
        "10",
        "Chunks (each what one fetch brought of one partition) that may wait in a stream.",
    ),
    _ours(
        "max.queued.bytes",
        "queuedSizeMax",
        Integer(1),
        "67108864",
        "Bytes of the chunks that may wait in a stream, on top of that; a stream that is empty may have one chunk of any size.",
    ),
    # -- positions
    ConfigKey(
        "autocommit.enable",
        "autoCommit",
        Boolean(),
        "true",
        "Commit positions by the clock, in rebalances and at the end.",
    ),
    ConfigKey("autocommit.interval.ms", "autoCommitIntervalMs", _POSITIVE, "10000", "How often."),
    ConfigKey(
        "autooffset.reset",
        "autoOffsetReset",
        Text(),
        "smallest",
        "Where to begin without a stored offset, or with one that is out of range: `smallest`, `largest`; anything else is an error of the stream.",
    ),
    # -- sharing
    ConfigKey(
        "rebalance.retries.max",
        "rebalanceRetryCountMax",
        _POSITIVE,
        "4",
        "Attempts after which a rebalance that fails counts as failed. This one goes on all the same, with what it could get, later and later.",
    ),
    ConfigKey(
        "rebalance.backoff.ms",
        "rebalanceBackoffMs",
        _NOT_NEGATIVE,
        None,
        "How long to wait between the attempts.",
        derived="`zk.synctime.ms`",
    ),
    # -- reading
    ConfigKey(
        "consumer.timeout.ms",
        "consumerTimeoutMs",
        Integer(),
        "-1",
        "How long an iterator waits for a message before it raises; negative: for ever.",
    ),
    ConfigKey(
        "shallowiterator.enable",
        "isShallow",
        Boolean(),
        "false",
        "Hand out compressed sets as they are.",
    ),
    # -- without effect
    _idle(
        "mirror.topics.whitelist",
        "",
        Text(),
        None,
        "Of 0.7.0's embedded mirror; 0.7.2 does not read it either.",
    ),
    _idle(
        "mirror.topics.blacklist",
        "",
        Text(),
        None,
        "Of 0.7.0's embedded mirror; 0.7.2 does not read it either.",
    ),
    _idle(
        "mirror.consumer.numthreads",
        "",
        _POSITIVE,
        None,
        "Of 0.7.0's embedded mirror; 0.7.2 does not read it either.",
    ),
    _idle(
        "backoff.increment.ms",
        "",
        _NOT_NEGATIVE,
        None,
        "0.7.0's name of `fetcher.backoff.ms`; 0.7.2 does not read it either.",
    ),
)
"""All keys that a consumer's property file can have."""

RESETS = ("smallest", "largest")


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """
    A consumer's settings. Each is explained by its row in L{CONSUMER_ROWS}; sizes are bytes.

    @ivar consumerId: L{None} when it was not given.
    @ivar zkConnect: empty when it was not given.
    @ivar consumerTimeoutMs: negative for ever.
    """

    group: str
    consumerId: str | None
    zkConnect: str
    zkSessionTimeoutMs: int
    zkConnectionTimeoutMs: int
    zkSyncTimeMs: int
    zkDigest: str = field(repr=False)
    zkAcl: str
    brokerEndpoint: str
    socketTimeoutMs: int
    receiveBufferSize: int
    fetchSize: int
    fetchSizeMax: int
    responseSizeMax: int
    fetchBackoffMs: int
    queuedChunkCountMax: int
    queuedSizeMax: int
    autoCommit: bool
    autoCommitIntervalMs: int
    autoOffsetReset: str
    rebalanceRetryCountMax: int
    rebalanceBackoffMs: int
    consumerTimeoutMs: int
    isShallow: bool

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None]
    ) -> ConsumerSettings:
        """
        Judge a property file.

        @param properties: keys and values; a L{pylogbroker.config.properties.Properties} lets errors name file and line.
        @param warn: called with a sentence for each thing that is odd but no error.
        @raise ConfigurationError: names every key that is missing or wrong, its value and what would be right, a line each.
        """
        values = cast("dict[str, Any]", readSettings(CONSUMER_ROWS, properties, warn))
        values["consumerId"] = values["consumerId"] or None
        if values["zkConnectionTimeoutMs"] is None:
            values["zkConnectionTimeoutMs"] = values["zkSessionTimeoutMs"]
        if values["rebalanceBackoffMs"] is None:
            values["rebalanceBackoffMs"] = values["zkSyncTimeMs"]
        least = values["fetchSize"]
        if "fetch.size.max" in properties and values["fetchSizeMax"] < least:
            raise ConfigurationError(
                f"fetch.size.max={properties['fetch.size.max']}: must be at least fetch.size, which is {least}"
            )
        values["fetchSizeMax"] = max(values["fetchSizeMax"], least)
        if values["autoOffsetReset"] not in RESETS:
            warn(
                f"autooffset.reset={values['autoOffsetReset']}: neither smallest nor largest: without a stored offset, or with one that is out of range, "
                "a partition is not read, and its stream raises an error"
            )
        return cls(**values)
