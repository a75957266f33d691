"""
What a broker can be told, and what it is told when nobody says anything.

Kafka 0.7's keys keep name, meaning, unit and default (spec-0.7 config §1; the defaults are those of 0.7.2's code, not of its web page). Beside
them stand our own, for what 0.7 could not do or left without a limit. Settings have the unit that the code counts in
as the last word of their name, whatever unit the file has: hours and minutes of the file are C{Ms} here.

Where this reads a file differently from 0.7.2: a negative C{brokerid} is refused (gotcha 25), C{topic.log.retention.size} works (gotcha 5),
a key that nobody knows is reported (gotcha 24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from pylogbroker.config.allowlist import readAllowList
from pylogbroker.config.connectionsettings import ACL_ROW, DIGEST_ROW
from pylogbroker.config.keys import ConfigKey, asMarkdown, readSettings
from pylogbroker.config.propertytypes import (
    LONG_MAX,
    Boolean,
    EndpointTemplate,
    Host,
    Integer,
    Text,
    TextList,
    TopicMap,
    ZookeeperServers,
)
from pylogbroker.errors import ConfigurationError

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_POSITIVE = Integer(1)
_SIZE = Integer(1, LONG_MAX)


_ours = partial(ConfigKey, isKafkaKey=False)
_idle = partial(ConfigKey, used=False)


BROKER_ROWS: tuple[ConfigKey, ...] = (
    # -- who and where
    ConfigKey(
        "brokerid",
        "brokerId",
        Integer(0),
        None,
        "The broker's number, unique in its cluster.",
        required=True,
    ),
    ConfigKey(
        "hostname",
        "hostName",
        Host(),
        None,
        "The name or address that others are told to reach this broker by; it is not what it listens on.",
        derived="`listen.interface`, or the address in `listeners`, or that of the host's name",
    ),
    ConfigKey(
        "port",
        "port",
        Integer(0, 65535),
        "6667",
        "The TCP port to listen on; 0 takes any free one. With `listeners`, only the port that others are told.",
    ),
    _ours(
        "listen.interface",
        "listenInterface",
        Host(),
        "",
        "The address to listen on, such as 127.0.0.1 or ::1; none means all IPv4 addresses of the machine, as in 0.7.",
    ),
    _ours(
        "listeners",
        "listeners",
        TextList(),
        None,
        "Where to listen instead, as endpoint strings with `|` between them: `tcp:9092:interface=127.0.0.1 | "
        "tls:9093:privateKey=key.pem:clientCAs=ca.pem`. A backslash must be doubled in the file.",
        derived="made of `port` and `listen.interface`",
    ),
    # -- ZooKeeper
    ConfigKey(
        "enable.zookeeper",
        "enableZookeeper",
        Boolean(),
        "true",
        "Register the broker and its topics in ZooKeeper, where producers and consumers find them. Without it, clients must be told where the broker is.",
    ),
    ConfigKey(
        "zk.connect",
        "zookeeperServers",
        ZookeeperServers(),
        None,
        "ZooKeeper's servers, and a path under which everything is (it must exist): `zk1:2181,zk2:2181,zk3:2181/kafka`. Required with `enable.zookeeper`.",
    ),
    ConfigKey(
        "zk.sessiontimeout.ms",
        "zookeeperSessionTimeoutMs",
        _POSITIVE,
        "6000",
        "After how long without a sign of life ZooKeeper forgets the broker, in milliseconds; the server has limits of its own.",
    ),
    ConfigKey(
        "zk.connectiontimeout.ms",
        "zookeeperConnectionTimeoutMs",
        _POSITIVE,
        None,
        "How long the broker's start waits for ZooKeeper, in milliseconds, before it fails.",
        derived="`zk.sessiontimeout.ms`",
    ),
    DIGEST_ROW,
    ACL_ROW,
    # -- connections
    ConfigKey(
        "socket.send.buffer",
        "socketSendBufferSize",
        Integer(0),
        "0",
        "SO_SNDBUF of each connection in bytes; 0 leaves it to the system, which makes it as large as a connection needs. (In 0.7: 102400.)",
    ),
    ConfigKey(
        "socket.receive.buffer",
        "socketReceiveBufferSize",
        Integer(0),
        "0",
        "SO_RCVBUF of each connection in bytes; 0 leaves it to the system, which makes it as large as a connection needs. (In 0.7: 102400.)",
    ),
    _ours(
        "max.connections",
        "connectionCountMax",
        Integer(0),
        "0",
        "How many clients may be connected; one more is cut at once. 0: as many as there are file descriptors for.",
    ),
    _ours(
        "frame.deadline.ms",
        "frameDeadlineMs",
        _POSITIVE,
        "120000",
        "How long a large request may take to arrive, and a second more for each MiB of it, while others wait for its memory; then its "
        "connection is cut. Requests that nobody waits for may take their time.",
    ),
    _ours(
        "reader.idle.ms",
        "readerIdleMs",
        _POSITIVE,
        "120000",
        "How long a client may take nothing of an answer that waits for it; then its connection is cut, since it keeps deleted "
        "segments on the disk.",
    ),
    _ours(
        "allow.file",
        "allowFile",
        Text(),
        "",
        "A file with rules that say which clients, by the common name of their certificates, may produce to and fetch which topics. None: "
        "all may do everything.",
    ),
    # -- requests
    ConfigKey(
        "max.socket.request.bytes",
        "requestSizeMax",
        _POSITIVE,
        "104857600",
        "The largest request in bytes; a larger one closes its connection.",
    ),
    ConfigKey(
        "max.message.size",
        "payloadSizeMax",
        Integer(0),
        "1000000",
        "The largest payload of a top-level message in bytes; a request with a larger one is dropped, as in 0.7 without a word "
        "to the producer, and counted.",
    ),
    ConfigKey(
        "max.topic.name.length",
        "topicNameSizeMax",
        _POSITIVE,
        "255",
        "The longest topic name, in UTF-16 units. A name must also fit into a directory name of 255 bytes together with its "
        "partition number.",
    ),
    _ours(
        "max.request.memory.bytes",
        "requestMemorySizeMax",
        _SIZE,
        "268435456",
        "Memory for large requests that are still arriving, all connections together; who finds none left is not read from "
        "until there is. At least `max.socket.request.bytes`.",
        derived="`268435456`, or `max.socket.request.bytes` if that is more",
    ),
    _ours(
        "max.decompressed.bytes",
        "decompressedSizeMax",
        _SIZE,
        "67108864",
        "What the compressed messages of one set may open to in bytes, all depths together; a set that opens to more is refused.",
    ),
    _ours(
        "max.decompression.memory.bytes",
        "decompressionMemorySizeMax",
        _SIZE,
        "268435456",
        "Memory for opening compressed sets, all connections together; who finds none left waits. At least `max.decompressed.bytes`.",
        derived="`268435456`, or `max.decompressed.bytes` if that is more",
    ),
    _ours(
        "max.compression.depth",
        "compressionDepthMax",
        _POSITIVE,
        "8",
        "How deep compressed messages may stand inside one another; a deeper set is refused.",
    ),
    # -- the log
    ConfigKey(
        "log.dir",
        "logDirectory",
        Text(empty=False),
        None,
        "The directory of the data; made if it is missing.",
        required=True,
    ),
    ConfigKey(
        "num.partitions", "partitionCount", _POSITIVE, "1", "Partitions of a topic on this broker."
    ),
    ConfigKey(
        "topic.partition.count.map",
        "partitionCountByTopic",
        TopicMap(),
        "",
        "`num.partitions` for some topics: `topic1:3,topic2:4`.",
    ),
    _ours(
        "max.partitions",
        "partitionCountMax",
        _POSITIVE,
        "10000",
        "How many partitions producers may bring into being on this broker; a request that would add one more is refused. What "
        "is on the disk is always served.",
    ),
    ConfigKey(
        "log.file.size",
        "segmentSizeMax",
        Integer(5),
        "1073741824",
        "The size in bytes above which a partition begins a new segment file.",
    ),
    ConfigKey(
        "topic.log.file.size",
        "segmentSizeMaxByTopic",
        TopicMap(),
        "",
        "`log.file.size` for some topics: `topic1:1048576`.",
    ),
    ConfigKey(
        "log.roll.hours",
        "rollMs",
        Integer(1, factor=_HOUR_MS),
        "168",
        "The age in hours, counted from its first message, above which a partition begins a new segment file.",
    ),
    ConfigKey(
        "topic.log.roll.hours",
        "rollMsByTopic",
        TopicMap(factor=_HOUR_MS),
        "",
        "`log.roll.hours` for some topics: `topic1:24`.",
    ),
    # -- flushing
    ConfigKey(
        "log.flush.interval",
        "flushMessageCount",
        _POSITIVE,
        "500",
        "After how many messages a partition is flushed to the disk. Consumers see nothing that is not flushed.",
    ),
    ConfigKey(
        "log.default.flush.scheduler.interval.ms",
        "flushSchedulerIntervalMs",
        _POSITIVE,
        "3000",
        "How often the broker looks for partitions that are to be flushed because of the time, in milliseconds.",
    ),
    ConfigKey(
        "log.default.flush.interval.ms",
        "flushIntervalMs",
        Integer(),
        None,
        "How long a message may wait for its flush, in milliseconds, rounded up to the next look.",
        derived="`log.default.flush.scheduler.interval.ms`",
    ),
    ConfigKey(
        "topic.flush.intervals.ms",
        "flushIntervalMsByTopic",
        TopicMap(),
        "",
        "`log.default.flush.interval.ms` for some topics: `topic1:1000,topic2:3000`.",
    ),
    _ours(
        "flush.threads",
        "flushThreadCount",
        Integer(1, 256),
        "4",
        "Threads that flush, begin segment files and delete them: how many partitions can wait for the disk at a time.",
    ),
    _ours(
        "max.unflushed.bytes.per.partition",
        "partitionUnflushedSizeMax",
        _SIZE,
        "67108864",
        "Bytes in one partition that are not flushed yet; above it a flush is begun at once and its producers wait until half "
        "of it is done.",
    ),
    _ours(
        "max.unflushed.bytes",
        "unflushedSizeMax",
        _SIZE,
        "268435456",
        "`max.unflushed.bytes.per.partition` for all partitions together.",
    ),
    _ours(
        "disk.full.retry.ms",
        "diskFullRetryMs",
        _POSITIVE,
        "1000",
        "How often the broker tries again to write what a full disk has refused; nothing that was accepted is lost meanwhile, "
        "and its producers wait.",
    ),
    # -- reading
    _ours(
        "cold.read.threads",
        "coldReadThreadCount",
        Integer(1, 256),
        "4",
        "Threads that bring old data from the disk, so that nobody else waits for it.",
    ),
    _ours(
        "warm.bytes",
        "warmSize",
        Integer(0, LONG_MAX),
        "16777216",
        "Bytes before a partition's end that count as still in the machine's memory and are sent without asking.",
    ),
    _ours(
        "max.open.segments",
        "openSegmentCountMax",
        _POSITIVE,
        "512",
        "Segment files that are kept open for readers; the one that was not read for longest is closed first.",
    ),
    # -- retention
    ConfigKey(
        "log.retention.hours",
        "retentionMs",
        Integer(1, factor=_HOUR_MS),
        "168",
        "How many hours after its last message a segment file is deleted.",
    ),
    ConfigKey(
        "topic.log.retention.hours",
        "retentionMsByTopic",
        TopicMap(factor=_HOUR_MS),
        "",
        "`log.retention.hours` for some topics: `topic1:24`.",
    ),
    ConfigKey(
        "log.retention.size",
        "retentionSize",
        Integer(-LONG_MAX - 1, LONG_MAX),
        "-1",
        "Bytes that a partition may hold before its oldest segment files are deleted (it never falls below it); negative: as "
        "many as it likes.",
    ),
    ConfigKey(
        "topic.log.retention.size",
        "retentionSizeByTopic",
        TopicMap(LONG_MAX),
        "",
        "`log.retention.size` for some topics: `topic1:1073741824`. 0.7.2 fell over this key; here it works.",
    ),
    ConfigKey(
        "log.cleanup.interval.mins",
        "retentionIntervalMs",
        Integer(1, factor=_MINUTE_MS),
        "10",
        "How often the broker looks for segment files to delete, in minutes; the first time one minute after its start.",
    ),
    # -- looking in
    _ours(
        "max.topic.counters",
        "topicCounterCountMax",
        Integer(0),
        "1000",
        "How many topics are counted one by one; those that come later are counted together.",
    ),
    _ours(
        "http.listener",
        "httpListener",
        Text(),
        "",
        "Where to serve metrics for Prometheus and the console, as a Twisted endpoint string, or only a port: `8067`. Without `interface=` that is "
        "127.0.0.1: nobody is asked for a password. None: nowhere.",
    ),
    _ours(
        "http.hosts",
        "httpHosts",
        TextList(),
        "",
        "The names by which browsers may reach `http.listener`, beside `localhost` and every bare address: a request with another name in its Host "
        "header is refused, since it may come from a page elsewhere.",
    ),
    _ours(
        "http.console",
        "httpConsole",
        Boolean(),
        "true",
        "Serve the console, too, and not only metrics.",
    ),
    _ours(
        "http.messages",
        "httpMessages",
        Boolean(),
        None,
        "Let whoever looks at the console look at messages, those of all topics: `allow.file` does not bind the console.",
        derived="`true`, or `false` with `allow.file`",
    ),
    _ours(
        "broker.endpoint",
        "brokerEndpoint",
        EndpointTemplate(),
        "",
        "How the console reaches the other brokers of the cluster, as a Twisted client endpoint string: "
        "`tls:{host}:{port}:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`. None: plain TCP.",
    ),
    _ours(
        "log.requests",
        "logRequests",
        Boolean(),
        "false",
        "Log every request, as 0.7 does with its logger `kafka.request.logger` at TRACE. For hunting a client's mistake: it costs more than the requests do.",
    ),
    _ours(
        "metrics.log.interval.ms",
        "metricsLogIntervalMs",
        Integer(0),
        "0",
        "How often the broker logs its figures, as an event with fields, in milliseconds; 0: never.",
    ),
    # -- without effect
    _idle(
        "num.threads",
        "",
        _POSITIVE,
        None,
        "0.7's network threads. One thread does the work here; see `flush.threads` and `cold.read.threads`.",
    ),
    _idle(
        "monitoring.period.secs",
        "",
        _POSITIVE,
        "600",
        "0.7's window of its statistics. Counters here are running totals.",
    ),
    _idle(
        "zk.synctime.ms",
        "",
        Integer(),
        "2000",
        "How far a ZooKeeper follower may be behind. 0.7.2's broker did nothing with it, either.",
    ),
)
"""All keys that a broker's property file can have."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """
    A broker's settings. Each is explained by its row in L{BROKER_ROWS}; sizes are bytes.

    @ivar hostName: L{None} when it was not given.
    @ivar listeners: endpoint strings, at least one.
    @ivar zookeeperServers: C{""} only without C{enableZookeeper}.
    @ivar retentionSize: negative for no limit.
    @ivar flushIntervalMs: 0 and less flush at every look.
    @ivar connectionCountMax: 0 for no limit of its own.
    @ivar allowFile: C{""} when all may do everything. It was read, to find what is wrong with it, and is read again when the broker is made.
    @ivar httpListener: C{""} for none.
    @ivar metricsLogIntervalMs: 0 for never.
    """

    brokerId: int
    hostName: str | None
    port: int
    listenInterface: str
    listeners: tuple[str, ...]
    enableZookeeper: bool
    zookeeperServers: str
    zookeeperSessionTimeoutMs: int
    zookeeperConnectionTimeoutMs: int
    zookeeperDigest: str = field(repr=False)
    zookeeperAcl: str
    socketSendBufferSize: int
    socketReceiveBufferSize: int
    connectionCountMax: int
    frameDeadlineMs: int
    readerIdleMs: int
    allowFile: str
    requestSizeMax: int
    payloadSizeMax: int
    topicNameSizeMax: int
    requestMemorySizeMax: int
    decompressedSizeMax: int
    decompressionMemorySizeMax: int
    compressionDepthMax: int
    logDirectory: str
    partitionCount: int
    partitionCountByTopic: Mapping[str, int]
    partitionCountMax: int
    segmentSizeMax: int
    segmentSizeMaxByTopic: Mapping[str, int]
    rollMs: int
    rollMsByTopic: Mapping[str, int]
    flushMessageCount: int
    flushSchedulerIntervalMs: int
    flushIntervalMs: int
    flushIntervalMsByTopic: Mapping[str, int]
    flushThreadCount: int
    partitionUnflushedSizeMax: int
    unflushedSizeMax: int
    diskFullRetryMs: int
    coldReadThreadCount: int
    warmSize: int
    openSegmentCountMax: int
    retentionMs: int
    retentionMsByTopic: Mapping[str, int]
    retentionSize: int
    retentionSizeByTopic: Mapping[str, int]
    retentionIntervalMs: int
    topicCounterCountMax: int
    httpListener: str
    httpHosts: tuple[str, ...]
    httpConsole: bool
    httpMessages: bool
    brokerEndpoint: str
    logRequests: bool
    metricsLogIntervalMs: int

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None]
    ) -> BrokerSettings:
        """
        Judge a property file.

        @param properties: keys and values; a L{pylogbroker.config.properties.Properties} lets errors name file and line.
        @param warn: called with a sentence for each thing that is odd but no error.
        @raise ConfigurationError: names every key that is missing or wrong, its value and what would be right, a line each.
        """
        values = cast("dict[str, Any]", readSettings(BROKER_ROWS, properties, warn))
        values["zookeeperServers"] = (values["zookeeperServers"] or "").strip()
        if values["enableZookeeper"] and not values["zookeeperServers"]:
            raise ConfigurationError(
                "zk.connect is missing: enable.zookeeper=true"
                + ("" if "enable.zookeeper" in properties else " (the default, as in Kafka 0.7)")
                + " needs ZooKeeper's servers, such as zk.connect=localhost:2181; or set enable.zookeeper=false"
            )
        if values["zookeeperConnectionTimeoutMs"] is None:
            values["zookeeperConnectionTimeoutMs"] = values["zookeeperSessionTimeoutMs"]
        values["hostName"] = values["hostName"] or None
        if values["flushIntervalMs"] is None:
            values["flushIntervalMs"] = values["flushSchedulerIntervalMs"]
        for key, setting, other, otherSetting in (
            (
                "max.request.memory.bytes",
                "requestMemorySizeMax",
                "max.socket.request.bytes",
                "requestSizeMax",
            ),
            (
                "max.decompression.memory.bytes",
                "decompressionMemorySizeMax",
                "max.decompressed.bytes",
                "decompressedSizeMax",
            ),
        ):
            least = values[otherSetting]
            if key in properties and values[setting] < least:
                raise ConfigurationError(
                    f"{key}={properties[key]}: must be at least {other}, which is {least}"
                )
            values[setting] = max(values[setting], least)
        if not values["listeners"]:
            values["listeners"] = (listener(values["port"], values["listenInterface"]),)
        if values["httpMessages"] is None:
            values["httpMessages"] = not values["allowFile"]
        if values["allowFile"]:
            readAllowList(values["allowFile"])
        return cls(**values)


def listener(port: int, interface: str) -> str:
    """The endpoint string for a port; all IPv4 addresses without an interface, as 0.7 does by default."""
    if not interface:
        return f"tcp:{port}"
    quoted = interface.replace("\\", "\\\\").replace(":", "\\:")
    return f"{'tcp6' if ':' in interface else 'tcp'}:{port}:interface={quoted}"


_PAGE_HEAD = """\
# Settings

A [broker](#broker) reads one file of Java properties (`twistd pylogbroker --config FILE`); `--set KEY=VALUE` overrides it.
[`etc/broker.properties`](../etc/broker.properties) has every key that has an effect, with its sentence.
A [producer](#producer) and a [consumer](#consumer) are given the same kind of properties as a mapping of texts.

<!-- made by `python -m pylogbroker.config` from the tables in pylogbroker/config; a test compares them -->

How values are written, as in Kafka 0.7:

| type | |
|---|---|
| int, long | a whole number of 32, or 64, bits. White space at its end is part of the value, and an error |
| bool | exactly `true` or `false` |
| topic map | `topic1:5,topic2:7`. White space before a topic is part of its name. What is no such pair is skipped with a warning; 0 and less are errors |
| list | texts with `\\|` between |

A key that nobody knows is reported with the one that it resembles, and has no effect. A key that comes twice is reported; the last one counts.
Wrong values are named all at once, each with its line. The file is UTF-8, or else ISO 8859-1.

## Broker

"""


def brokerPage() -> str:
    """The part of the reference page that is about brokers, and what is so for all, as Markdown."""
    return _PAGE_HEAD + asMarkdown(BROKER_ROWS)
