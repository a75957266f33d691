"""
The options of the data source and the sink. Names and meanings follow Spark's Kafka source where
the thing is the same.

Spark passes on every option that it is given, so an unknown one is refused with its nearest
neighbour: a misspelt C{failOnDataLoss} must not go unnoticed. Options that Spark adds are ignored.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from pylogbroker.cluster import paths
from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.connectionsettings import ConnectionSettings
from pylogbroker.config.keys import Settings, ownKey
from pylogbroker.config.propertytypes import (
    LONG_MAX,
    Boolean,
    BrokerAddress,
    Enum,
    Integer,
    Text,
)
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.net.socketendpoints import Endpoint, brokerEndpoint, endpoint
from pylogbroker.protocol.brokercalls import PAYLOAD_SIZE_MAX, RESPONSE_SIZE_MAX
from pylogbroker.records.compression import CODEC_NAMES
from pylogbroker.syncclient.clustermetadata import (
    IClusterMetadata,
    StaticMetadata,
    ZookeeperMetadata,
    parseBrokers,
)
from pylogbroker.syncclient.connection import CONNECT_TIMEOUT_MS
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition

T = TypeVar("T")

SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Options that Spark adds, in lower case."""

BATCH_SIZE_MAX = 64 << 20
"""Bytes; readers do not decompress larger sets."""

ACCESS_OPTIONS = {
    "zookeeperDigest": "zk.digest",
    "zookeeperAcl": "zk.acl",
    "brokerEndpoint": "broker.endpoint",
}
"""The keys of a property file, by option."""

CLUSTER_OPTIONS = ("zookeeper", "brokers", "config", *ACCESS_OPTIONS, "timeoutMs", "retryCount")
SOURCE_OPTIONS = (
    *CLUSTER_OPTIONS,
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxBytesPerTrigger",
    "fetchSize",
    "fetchSizeMax",
)
SINK_OPTIONS = (*CLUSTER_OPTIONS, "topic", "compression", "maxMessageSize", "batchSize")

_CODECS = {name: codec for codec, name in CODEC_NAMES.items()}


class _Options(Settings):
    """All options; a source and a sink allow some of them each."""

    zookeeper = ownKey("zookeeper", Text(), "", "ZooKeeper's addresses and chroot.")
    brokers = ownKey("brokers", Text(), "", "Or the brokers, `id:host:port,…`.")
    config = ownKey("config", Text(), "", "A property file with credentials.")
    zookeeperDigest = ownKey("zookeeperDigest", Text(), "", "The key `zk.digest`.")
    zookeeperAcl = ownKey("zookeeperAcl", Text(), "", "The key `zk.acl`.")
    brokerEndpoint = ownKey("brokerEndpoint", Text(), "", "The key `broker.endpoint`.")
    timeoutMs = ownKey("timeoutMs", Integer(1, LONG_MAX), "30000", "For each answer.")
    retryCount = ownKey("retryCount", Integer(0, 1000), "3", "Repeated requests to a broker.")
    subscribe = ownKey("subscribe", Text(), "", "Topics, separated by commas.")
    subscribePattern = ownKey("subscribePattern", Text(), "", "Or a pattern of topics.")
    assign = ownKey("assign", Text(), "", "Or partitions by topic, as JSON.")
    startingOffsets = ownKey("startingOffsets", Text(), "", "A word, or offsets as JSON.")
    endingOffsets = ownKey("endingOffsets", Text(), "", "A word, or offsets as JSON.")
    startingTimestamp = ownKey("startingTimestamp", Integer(0, LONG_MAX), None, "Or a time.")
    failOnDataLoss = ownKey("failOnDataLoss", Boolean(), "true", "Whether lost data are an error.")
    minPartitions = ownKey("minPartitions", Integer(1, 10**6), None, "The least number of tasks.")
    maxBytesPerTrigger = ownKey(
        "maxBytesPerTrigger", Integer(1, LONG_MAX), None, "Bytes of a micro-batch."
    )
    fetchSize = ownKey("fetchSize", Integer(64, LONG_MAX), str(4 << 20), "Bytes of a fetch.")
    fetchSizeMax = ownKey(
        "fetchSizeMax", Integer(64, RESPONSE_SIZE_MAX - 2), str(64 << 20), "Bytes of an entry."
    )
    topic = ownKey("topic", Text(), "", "The topic of all rows.")
    compression = ownKey("compression", Enum(_CODECS), "none", "The codec.")
    maxMessageSize = ownKey(
        "maxMessageSize", Integer(1, LONG_MAX), str(PAYLOAD_SIZE_MAX), "Bytes of a message."
    )
    batchSize = ownKey("batchSize", Integer(1, BATCH_SIZE_MAX), "200000", "Bytes of a batch.")


def _read(allowed: tuple[str, ...], options: Mapping[str, str]) -> _Options:
    """
    @param allowed: names of options.
    @param options: keys in any case; an empty value counts as missing.
    @raise ConfigurationError: an option is unknown or wrong.
    """
    known = {name.lower(): name for name in allowed}
    given = {}
    for name, value in options.items():
        option = known.get(name.lower())
        if option is None:
            if name.lower() not in SPARK_OPTIONS:
                raise ConfigurationError(f"there is no option {name}{_nearest(name, known)}")
            continue
        text = str(value).strip()
        if text:
            given[option] = text.lower() if option in ("failOnDataLoss", "compression") else text
    return _Options.fromProperties(given)


def _nearest(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    return (
        f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(known.values())}"
    )


# -- offsets and partitions, as JSON


OffsetMap = dict[str, dict[BrokerPartition, int]]
"""Offsets by topic and partition; -1 stands for the latest, -2 for the earliest."""

OffsetSpec = int | OffsetMap
"""L{EARLIEST}, L{LATEST}, or an offset for each partition."""


def _parseObject(option: str, text: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:  # JSON's rule silently drops one of them
                raise ConfigurationError(f"{option}: {name} appears twice")
            found[name] = value
        return found

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{option}={text}: neither a known word nor JSON: {error}"
        ) from error
    if not isinstance(found, dict) or not found:
        raise ConfigurationError(f"{option}={text}: must be an object of topics")
    return found


def parsePartition(option: str, name: object) -> BrokerPartition:
    """
    @param name: C{"<broker>-<partition>"}.
    @raise ConfigurationError: it has another form.
    """
    try:
        return decodePartition(option, str(name))
    except PylogbrokerError as error:
        raise ConfigurationError(f"{option}: {name!r} is not <broker>-<partition>") from error


def _checkTopic(option: str, name: str) -> str:
    try:
        paths.topic(name)
    except PylogbrokerError as error:
        raise ConfigurationError(f"{option}: {error}") from error
    return name


def parseOffsets(option: str, text: str) -> OffsetMap:
    """
    Offsets by topic and partition, C{{"clicks": {"0-0": 4711, "1-0": -2}}}.

    @param option: its name, for errors.
    @raise ConfigurationError: the text has another form.
    """
    found: OffsetMap = {}
    for name, partitions in _parseObject(option, text).items():
        if not isinstance(partitions, dict):
            raise ConfigurationError(f"{option}: {name} must have an object of offsets")
        offsets = found[_checkTopic(option, name)] = {}
        for partition, offset in partitions.items():
            if type(offset) is not int or not EARLIEST <= offset < 2**63:
                raise ConfigurationError(
                    f"{option}: {name} {partition} has {offset!r}, which is neither an offset"
                    " nor -1 (latest) nor -2 (earliest)"
                )
            if (number := parsePartition(option, partition)) in offsets:
                raise ConfigurationError(
                    f"{option}: {name} {number} appears twice, once as {partition!r}"
                )
            offsets[number] = offset
    return found


def parseAssignment(option: str, text: str) -> dict[str, tuple[BrokerPartition, ...]]:
    """
    Partitions by topic, C{{"clicks": ["0-0", "1-0"]}}.

    @raise ConfigurationError: the text has another form.
    """
    found = {}
    for name, partitions in _parseObject(option, text).items():
        if not isinstance(partitions, list) or not partitions:
            raise ConfigurationError(f"{option}: {name} must have a list of partitions")
        found[_checkTopic(option, name)] = tuple(
            sorted({parsePartition(option, partition) for partition in partitions})
        )
    return found


# -- the cluster


@dataclass(frozen=True)
class AccessOptions:
    """
    Credentials, as workers get them: each worker reads the file on its own machine.

    @ivar config: path of a property file with keys of L{ConnectionSettings}; empty: none.
    @ivar changes: C{key=value} each; they override the file.
    """

    config: str
    changes: tuple[str, ...] = field(repr=False)

    def settings(self) -> ConnectionSettings:
        """
        The settings on this machine. Blocks.

        @raise ConfigurationError: the file cannot be read, or a value is wrong.
        """
        return ConnectionSettings.read(self.config or None, self.changes)


@dataclass(frozen=True)
class ClusterOptions:
    """
    Where the brokers are and how to reach them.

    @ivar zookeeper: addresses and chroot; empty with a list of C{brokers}.
    @ivar timeoutMs: for each answer of a broker or ZooKeeper.
    @ivar retryCount: how often a request without an answer is repeated.
    """

    zookeeper: str
    brokers: tuple[BrokerAddress, ...]
    access: AccessOptions
    timeoutMs: int
    retryCount: int

    @property
    def name(self) -> str:
        """The cluster, for error messages."""
        if self.zookeeper:
            return f"the cluster of ZooKeeper {self.zookeeper}"
        return f"the brokers {', '.join(f'{each.host}:{each.port}' for each in self.brokers)}"

    def metadata(self) -> IClusterMetadata:
        """
        A reader of the cluster's brokers and topics, which the caller closes.

        @raise ConfigurationError: as L{AccessOptions.settings}; so do C{consumer} and C{endpoint}.
        """
        if self.zookeeper:
            access = self.access.settings()
            return ZookeeperMetadata(
                self.zookeeper,
                digest=access.zkDigest,
                acl=access.zkAcl,
                timeoutMs=self.timeoutMs,
            )
        return StaticMetadata(self.brokers, consumer=self.consumer)

    def consumer(self, address: BrokerAddress) -> SimpleConsumer:
        """A client of one broker, which the caller closes."""
        return SimpleConsumer(
            *self.endpoint(address),
            timeoutMs=self.timeoutMs,
            connectTimeoutMs=min(self.timeoutMs, CONNECT_TIMEOUT_MS),
        )

    def endpoint(self, address: BrokerAddress) -> Endpoint:
        """How to connect to a broker."""
        return endpoint(
            brokerEndpoint(self.access.settings().brokerEndpoint, f"{address.host}:{address.port}")
        )


def clusterOptions(options: Mapping[str, str]) -> ClusterOptions:
    """
    @param options: keys in any case.
    @raise ConfigurationError: an option is wrong, unknown or missing, or the file is wrong on this
        machine.
    """
    return _cluster(_read(CLUSTER_OPTIONS, options))


def _cluster(given: _Options) -> ClusterOptions:
    if bool(given.zookeeper) == bool(given.brokers):
        which = (
            "zookeeper and brokers are both"
            if given.brokers
            else "neither zookeeper nor brokers is"
        )
        raise ConfigurationError(f"{which} given: one of them locates the brokers")
    changes = {key: getattr(given, name) for name, key in ACCESS_OPTIONS.items()}
    access = AccessOptions(
        given.config, tuple(f"{key}={value}" for key, value in changes.items() if value)
    )
    access.settings()
    return ClusterOptions(
        given.zookeeper,
        parseBrokers(given.brokers) if given.brokers else (),
        access,
        given.timeoutMs,
        given.retryCount,
    )


# -- sink and source


@dataclass(frozen=True)
class SinkOptions:
    """
    How to write.

    @ivar topic: of all rows; empty: the column C{topic} names it.
    @ivar payloadSizeMax: bytes of a message, or of a compressed set, that brokers accept.
    @ivar batchSize: bytes of messages that are sent together.
    """

    cluster: ClusterOptions
    topic: str
    codec: int
    payloadSizeMax: int
    batchSize: int


def sinkOptions(options: Mapping[str, str]) -> SinkOptions:
    """
    @param options: keys in any case.
    @raise ConfigurationError: an option is wrong, unknown or missing.
    """
    given = _read(SINK_OPTIONS, options)
    return SinkOptions(
        _cluster(given), given.topic, given.compression, given.maxMessageSize, given.batchSize
    )


@dataclass(frozen=True)
class Selection:
    """
    The partitions to read. One of the three is not empty.

    @ivar pattern: of topics, in Java's syntax.
    @ivar assigned: partitions by topic.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[BrokerPartition, ...]] | None = None


@dataclass(frozen=True)
class SourceOptions:
    """
    What to read.

    @ivar starting: L{None}: not given.
    @ivar startingTimestampMs: since 1970; L{None}: C{starting} applies.
    @ivar minPartitionCount: the least number of splits; 0: one for each partition.
    @ivar triggerSizeMax: bytes of a micro-batch; 0: without limit.
    @ivar fetchSize: bytes of a fetch.
    @ivar fetchSizeMax: bytes of the largest entry.
    """

    cluster: ClusterOptions
    selection: Selection
    starting: OffsetSpec | None
    ending: OffsetSpec
    startingTimestampMs: int | None
    failOnDataLoss: bool
    minPartitionCount: int
    triggerSizeMax: int
    fetchSize: int
    fetchSizeMax: int


def sourceOptions(options: Mapping[str, str]) -> SourceOptions:
    """
    @param options: keys in any case.
    @raise ConfigurationError: an option is wrong, unknown or missing.
    """
    given = _read(SOURCE_OPTIONS, options)
    starting = _offsetSpec("startingOffsets", given.startingOffsets)
    timestamp = cast("int | None", given.startingTimestamp)
    if timestamp is not None and starting is not None:
        raise ConfigurationError(
            "startingOffsets and startingTimestamp are both given: one of them is the start"
        )
    ending = _offsetSpec("endingOffsets", given.endingOffsets)
    if ending == EARLIEST or (
        isinstance(ending, dict)
        and any(EARLIEST in offsets.values() for offsets in ending.values())
    ):
        raise ConfigurationError(
            f"endingOffsets={given.endingOffsets}: to end at the earliest would be to read nothing"
        )
    return SourceOptions(
        _cluster(given),
        _selection(given),
        starting,
        LATEST if ending is None else ending,
        timestamp,
        given.failOnDataLoss,
        given.minPartitions or 0,
        given.maxBytesPerTrigger or 0,
        min(given.fetchSize, given.fetchSizeMax),
        given.fetchSizeMax,
    )


def _offsetSpec(name: str, text: str) -> OffsetSpec | None:
    words = {"": None, "earliest": EARLIEST, "latest": LATEST}
    return words[text.lower()] if text.lower() in words else parseOffsets(name, text)


def _selection(given: _Options) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if getattr(given, name)]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"{' and '.join(chosen) or 'none'} of {', '.join(names)} given: exactly one is needed"
        )
    text: str = getattr(given, chosen[0])
    if chosen == ["assign"]:
        return Selection(assigned=parseAssignment("assign", text))
    if chosen == ["subscribePattern"]:
        return Selection(
            pattern=_checked("subscribePattern", text, lambda: TopicPattern(text).pattern)
        )
    topics = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise ConfigurationError(f"subscribe={text}: it names no topic")
    return _checked(
        "subscribe",
        text,
        lambda: Selection(topics=tuple(paths.pathSegment("topic", name) for name in topics)),
    )


def _checked(name: str, text: str, check: Callable[[], T]) -> T:
    try:
        return check()
    except PylogbrokerError as error:
        raise ConfigurationError(f"{name}={text}: {error}") from error
