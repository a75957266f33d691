"""
What a user can say to the source, checked before anything is asked: names and meanings are those of Spark's Kafka source, where the meaning is the same.

An option that nobody knows is refused with its nearest neighbour: Spark itself passes on whatever it is given, and a misspelt C{failOnDataLoss} must
not go unnoticed. The few names that Spark's own machinery adds are let through.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pylogbroker.cluster import paths
from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.config.connectionsettings import AccessSettings
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.net.endpoints import Endpoint, brokerEndpoint, endpoint
from pylogbroker.protocol.brokercalls import PAYLOAD_SIZE_MAX, RESPONSE_SIZE_MAX
from pylogbroker.records.compression import CODEC_NAMES, NONE
from pylogbroker.spark.offsetmaps import OffsetMap, parseAssignment, parseOffsets
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

ACCESS_OPTIONS = {
    "zookeeperDigest": "zk.digest",
    "zookeeperAcl": "zk.acl",
    "brokerEndpoint": "broker.endpoint",
}
"""What stands in a property file under another name: C{zookeeperDigest}, C{zookeeperAcl}, C{brokerEndpoint}."""

CLUSTER_OPTIONS = ("zookeeper", "brokers", "config", *ACCESS_OPTIONS, "timeoutMs", "retryCount")
SOURCE_OPTIONS = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp", "failOnDataLoss", "minPartitions",
    "maxBytesPerTrigger", "fetchSize", "fetchSizeMax",
)  # fmt: skip
SINK_OPTIONS = ("topic", "compression", "maxMessageSize", "batchSize")
SPARKS_OPTIONS = {"path", "paths", "checkpointlocation", "queryname", "outputmode"}
"""Lower case, as Spark passes keys on."""

BATCH_SIZE = 200_000
BATCH_SIZE_MAX = 64 << 20
"""What readers open at the most."""

FETCH_SIZE = 4 << 20
FETCH_SIZE_MAX = 64 << 20
TIMEOUT_MS = 30_000
RETRY_COUNT = 3


class OptionReader:
    """
    Options as they were given, read one by one.
    """

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        """
        @param options: keys in any case.
        @param known: names that mean something.
        @raise ConfigurationError: one of the keys means nothing.
        """
        self._values = {key.lower(): value for key, value in options.items()}
        names = {name.lower(): name for name in known}
        for key in self._values:
            if key not in names and key not in SPARKS_OPTIONS:
                near = difflib.get_close_matches(key, names, 1, 0.6)
                raise ConfigurationError(
                    f"there is no option {key}"
                    + (
                        f"; did you mean {names[near[0]]}?"
                        if near
                        else f"; there are {', '.join(known)}"
                    )
                )

    def text(self, name: str) -> str:
        """Without white space around it; empty when it was not given."""
        return str(self._values.get(name.lower(), "")).strip()

    def number(self, name: str, default: int, low: int, high: int = 2**63 - 1) -> int:
        """
        @raise ConfigurationError: it is no whole number from C{low} to C{high}.
        """
        text = self.text(name)
        if not text:
            return default
        try:
            number = int(text)
        except ValueError as error:
            raise ConfigurationError(f"{name}={text}: it is no whole number") from error
        if not low <= number <= high:
            raise ConfigurationError(f"{name}={text}: it must be from {low} to {high}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        """
        @raise ConfigurationError: it is neither C{true} nor C{false}.
        """
        return self.choice(name, {"true": True, "false": False, "": default})

    def choice(self, name: str, values: Mapping[str, T]) -> T:
        """
        @param values: what each word, in lower case, stands for.
        @raise ConfigurationError: it is none of them.
        """
        text = self.text(name)
        if text.lower() not in values:
            raise ConfigurationError(
                f"{name}={text}: it must be one of {', '.join(word for word in values if word)}"
            )
        return values[text.lower()]


@dataclass(frozen=True)
class AccessOptions:
    """
    How to get at a secured cluster. Workers get this object, and what stands in the file stays there: each reads its own.

    @ivar config: path of a property file, of which the keys of L{AccessSettings} are heeded; empty: none.
    @ivar changes: C{key=value} each, over the file's.
    """

    config: str
    changes: tuple[str, ...] = field(repr=False)

    def settings(self) -> AccessSettings:
        """
        What holds on this machine.

        @raise ConfigurationError: the file cannot be read, or a value is wrong.
        """
        return AccessSettings.read(self.config or None, self.changes)


def accessOptions(given: OptionReader) -> AccessOptions:
    """
    @raise ConfigurationError: an option, or what stands in the file on this machine, is wrong.
    """
    access = AccessOptions(
        given.text("config"),
        tuple(
            f"{key}={given.text(name)}" for name, key in ACCESS_OPTIONS.items() if given.text(name)
        ),
    )
    access.settings()
    return access


@dataclass(frozen=True)
class ClusterOptions:
    """
    Where the brokers are, how to get at them, and how long to wait for them.

    @ivar zookeeper: addresses and chroot; empty, if there is a list of C{brokers}.
    @ivar retryCount: how often a question to a broker is repeated when it gave no answer.
    """

    zookeeper: str
    brokers: tuple[BrokerAddress, ...]
    access: AccessOptions
    timeoutMs: int
    retryCount: int

    @property
    def name(self) -> str:
        """The cluster, for texts."""
        if self.zookeeper:
            return f"the cluster of ZooKeeper {self.zookeeper}"
        return f"the brokers {', '.join(f'{each.host}:{each.port}' for each in self.brokers)}"

    def view(self) -> IClusterMetadata:
        """A look at the cluster; to be closed. Raises as L{AccessOptions.settings}, and so do the others."""
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
        """A client for a broker; to be closed."""
        return SimpleConsumer(
            *self.endpoint(address),
            timeoutMs=self.timeoutMs,
            connectTimeoutMs=min(self.timeoutMs, CONNECT_TIMEOUT_MS),
        )

    def endpoint(self, address: BrokerAddress) -> Endpoint:
        """How to reach a broker."""
        return endpoint(
            brokerEndpoint(self.access.settings().brokerEndpoint, f"{address.host}:{address.port}")
        )


def clusterOptions(given: OptionReader) -> ClusterOptions:
    """
    @raise ConfigurationError: an option is wrong or missing.
    """
    zookeeper, brokers = given.text("zookeeper"), given.text("brokers")
    if bool(zookeeper) == bool(brokers):
        which = "zookeeper and brokers are both" if brokers else "neither zookeeper nor brokers is"
        raise ConfigurationError(f"{which} given: the brokers are found by one of them")
    return ClusterOptions(
        zookeeper,
        parseBrokers(brokers) if brokers else (),
        accessOptions(given),
        given.number("timeoutMs", TIMEOUT_MS, 1),
        given.number("retryCount", RETRY_COUNT, 0, 1000),
    )


@dataclass(frozen=True)
class SinkOptions:
    """
    How to write.

    @ivar topic: of all rows; empty: each row says its own.
    @ivar codec: to compress with.
    @ivar payloadSizeMax: bytes of a message, or of a compressed set, that the brokers take.
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
    @raise ConfigurationError: one is wrong, unknown or missing; the text names it.
    """
    given = OptionReader(options, CLUSTER_OPTIONS + SINK_OPTIONS)
    return SinkOptions(
        clusterOptions(given),
        given.text("topic"),
        given.choice(
            "compression", {"": NONE, **{name: codec for codec, name in CODEC_NAMES.items()}}
        ),
        given.number("maxMessageSize", PAYLOAD_SIZE_MAX, 1),
        given.number("batchSize", BATCH_SIZE, 1, BATCH_SIZE_MAX),
    )


@dataclass(frozen=True)
class Selection:
    """
    Which partitions are to be read. One of the three is not empty.

    @ivar pattern: of topics, as Java means it.
    @ivar assigned: partitions by topic.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[BrokerPartition, ...]] | None = None


Where = int | OffsetMap
"""L{EARLIEST}, L{LATEST}, or an offset for each partition."""


@dataclass(frozen=True)
class SourceOptions:
    """
    What to read.

    @ivar startingTimestampMs: since the epoch; L{None}: C{starting} counts.
    @ivar starting: L{None}: it was not given.
    @ivar minPartitionCount: how many splits there should be at least; 0: one for each partition.
    @ivar triggerSizeMax: bytes of a micro-batch; 0: any.
    @ivar fetchSize: bytes of a fetch.
    @ivar fetchSizeMax: bytes that an entry may have.
    """

    cluster: ClusterOptions
    selection: Selection
    starting: Where | None
    ending: Where
    startingTimestampMs: int | None
    failOnDataLoss: bool
    minPartitionCount: int
    triggerSizeMax: int
    fetchSize: int
    fetchSizeMax: int


def sourceOptions(options: Mapping[str, str]) -> SourceOptions:
    """
    @param options: keys in any case.
    @raise ConfigurationError: one is wrong, unknown or missing; the text names it.
    """
    given = OptionReader(options, CLUSTER_OPTIONS + SOURCE_OPTIONS)
    fetchSizeMax = given.number("fetchSizeMax", FETCH_SIZE_MAX, 64, RESPONSE_SIZE_MAX - 2)
    timestamp = given.number("startingTimestamp", -1, 0)
    starting = _where(given, "startingOffsets")
    if timestamp >= 0 and starting is not None:
        raise ConfigurationError(
            "startingOffsets and startingTimestamp are both given: one of them says where to begin"
        )
    ending = _where(given, "endingOffsets")
    if ending == EARLIEST or (
        isinstance(ending, dict)
        and any(EARLIEST in offsets.values() for offsets in ending.values())
    ):
        raise ConfigurationError(
            f"endingOffsets={given.text('endingOffsets')}: to end at the earliest would be to read nothing"
        )
    return SourceOptions(
        clusterOptions(given),
        _selection(given),
        starting,
        LATEST if ending is None else ending,
        None if timestamp < 0 else timestamp,
        given.flag("failOnDataLoss", True),
        given.number("minPartitions", 0, 1, 1_000_000),
        given.number("maxBytesPerTrigger", 0, 1),
        min(given.number("fetchSize", FETCH_SIZE, 64), fetchSizeMax),
        fetchSizeMax,
    )


def _selection(given: OptionReader) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if given.text(name)]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"{' and '.join(chosen) or 'none'} of {', '.join(names)} given: exactly one says what to read"
        )
    text = given.text(chosen[0])
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


def _where(given: OptionReader, name: str) -> Where | None:
    text = given.text(name)
    words = {"": None, "earliest": EARLIEST, "latest": LATEST}
    return words[text.lower()] if text.lower() in words else parseOffsets(name, text)
