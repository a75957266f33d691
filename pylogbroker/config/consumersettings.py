"""
The settings of a consumer.

Kafka 0.7's keys keep name, meaning, unit and default (spec-0.7 config §2; the defaults come from
0.7.2's code, not from its web page). Only the socket buffers differ: the system sizes them. Our own
keys add limits that 0.7 lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogbroker.config.keys import ConfigKey, Settings, ignoredKey, ownKey
from pylogbroker.config.propertytypes import (
    ANY_INTEGER,
    BOOLEAN,
    NOT_EMPTY,
    NOT_NEGATIVE,
    NULLABLE_TEXT,
    POSITIVE,
    TEXT,
    Integer,
    Warn,
    ZookeeperServers,
)
from pylogbroker.config.securitysettings import BROKER_ENDPOINT, ZK_ACL, ZK_DIGEST

_SIZE_MAX = Integer(1, 1 << 30)

RESETS = ("smallest", "largest")


class ConsumerSettings(Settings):
    """
    The settings of a consumer; sizes are bytes, times milliseconds.
    """

    # -- who
    groupId = ConfigKey(
        "groupid",
        NOT_EMPTY,
        None,
        "The consumer group. Each message goes to one of its members.",
        isRequired=True,
    )
    consumerId = ConfigKey(
        "consumerid",
        NULLABLE_TEXT,
        "",
        "A fixed id for this member, for tests. Two members with the same id block each other.",
        derived="made of host name, time and chance",
    )
    # -- ZooKeeper
    zkConnect = ConfigKey(
        "zk.connect",
        ZookeeperServers(),
        "",
        "ZooKeeper's servers, `host:port[,host:port…][/chroot]`. The chroot must exist.",
    )
    zkSessionTimeoutMs = ConfigKey(
        "zk.sessiontimeout.ms",
        POSITIVE,
        "6000",
        "The session time-out in milliseconds: without a heartbeat for this time, other "
        "members take this one's partitions.",
    )
    zkConnectionTimeoutMs = ConfigKey(
        "zk.connectiontimeout.ms",
        POSITIVE,
        None,
        "The longest time for the first connection to ZooKeeper, in milliseconds.",
        fallback=zkSessionTimeoutMs,
    )
    zkSyncTimeMs = ConfigKey(
        "zk.synctime.ms",
        NOT_NEGATIVE,
        "2000",
        "The largest lag of a ZooKeeper follower: the default of `rebalance.backoff.ms`.",
    )
    zkDigest = ZK_DIGEST
    zkAcl = ZK_ACL
    # -- fetching
    brokerEndpoint = BROKER_ENDPOINT
    socketTimeoutMs = ConfigKey(
        "socket.timeout.ms",
        POSITIVE,
        "30000",
        "The longest time that a broker may take to answer, in milliseconds. (In 0.7: no effect.)",
    )
    socketBufferSize = ConfigKey(
        "socket.buffersize",
        Integer(0, 1 << 30),
        "0",
        "SO_RCVBUF of each connection in bytes; 0 lets the kernel size it. (In 0.7: 65536.)",
    )
    fetchSize = ConfigKey(
        "fetch.size", _SIZE_MAX, "1048576", "The bytes to fetch from a partition in one request."
    )
    fetchSizeMax = ownKey(
        "fetch.size.max",
        _SIZE_MAX,
        "67108864",
        "The limit to which the fetch size doubles for a message larger than `fetch.size`. "
        "At least `fetch.size`.",
        least=fetchSize,
    )
    maxResponseBytes = ownKey(
        "max.response.bytes",
        _SIZE_MAX,
        "16777216",
        "The bytes to fetch from all partitions of a broker in one request; partitions take"
        " turns. A single partition may use `fetch.size.max`.",
    )
    fetcherBackoffMs = ConfigKey(
        "fetcher.backoff.ms",
        NOT_NEGATIVE,
        "1000",
        "The pause in milliseconds after a fetch that brought nothing from any partition.",
    )
    queuedChunksMax = ConfigKey(
        "queuedchunks.max",
        POSITIVE,
        "10",
        "The largest number of chunks in a stream's queue; a chunk is the result of one "
        "fetch from one partition.",
    )
    maxQueuedBytes = ownKey(
        "max.queued.bytes",
        POSITIVE,
        "67108864",
        "The largest size of the chunks in a stream's queue, in bytes. An empty stream "
        "takes one chunk of any size.",
    )
    # -- positions
    autoCommitEnable = ConfigKey(
        "autocommit.enable",
        BOOLEAN,
        "true",
        "Commit offsets at an interval, in rebalances and on shutdown.",
    )
    autoCommitIntervalMs = ConfigKey(
        "autocommit.interval.ms",
        POSITIVE,
        "10000",
        "The interval of automatic commits, in milliseconds.",
    )
    autoOffsetReset = ConfigKey(
        "autooffset.reset",
        TEXT,
        "smallest",
        "The start without a stored offset, or with one that is out of range: `smallest` or"
        " `largest`. With any other value the stream raises an error.",
    )
    # -- sharing
    rebalanceRetriesMax = ConfigKey(
        "rebalance.retries.max",
        POSITIVE,
        "4",
        "The number of attempts after which a rebalance counts as failed. The member then "
        "continues with the partitions that it has, and retries with longer pauses.",
    )
    rebalanceBackoffMs = ConfigKey(
        "rebalance.backoff.ms",
        NOT_NEGATIVE,
        None,
        "The pause between rebalance attempts, in milliseconds.",
        fallback=zkSyncTimeMs,
    )
    # -- reading
    consumerTimeoutMs = ConfigKey(
        "consumer.timeout.ms",
        ANY_INTEGER,
        "-1",
        "The longest time in milliseconds that an iterator waits for a message before it "
        "raises; negative: no limit.",
    )
    shallowIteratorEnable = ConfigKey(
        "shallowiterator.enable",
        BOOLEAN,
        "false",
        "Deliver compressed sets without decompressing them.",
    )
    # -- without effect
    mirrorTopicsWhitelist = ignoredKey(
        "mirror.topics.whitelist",
        TEXT,
        None,
        "A key of 0.7.0's embedded mirror. 0.7.2 ignores it, too.",
    )
    mirrorTopicsBlacklist = ignoredKey(
        "mirror.topics.blacklist",
        TEXT,
        None,
        "A key of 0.7.0's embedded mirror. 0.7.2 ignores it, too.",
    )
    mirrorConsumerNumthreads = ignoredKey(
        "mirror.consumer.numthreads",
        POSITIVE,
        None,
        "A key of 0.7.0's embedded mirror. 0.7.2 ignores it, too.",
    )
    backoffIncrementMs = ignoredKey(
        "backoff.increment.ms",
        NOT_NEGATIVE,
        None,
        "0.7.0's name of `fetcher.backoff.ms`. 0.7.2 ignores it, too.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        if values["autoOffsetReset"] not in RESETS:
            warn(
                f"autooffset.reset={values['autoOffsetReset']}: neither smallest nor largest:"
                " without a stored offset, or with one that is out of range, the stream of the"
                " partition raises an error"
            )
