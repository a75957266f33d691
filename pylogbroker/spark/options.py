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
from typing import Any, NamedTuple, Self, TypeVar

from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.cluster.paths import pathSegment
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.config.keys import Settings, ownKey
from pylogbroker.config.propertytypes import (
    LONG_MAX,
    Boolean,
    BrokerAddress,
    Enum,
    Integer,
    Nullable,
    PropertyType,
    SecretText,
    Text,
    Warn,
)
from pylogbroker.config.securitysettings import SecuritySettings
from pylogbroker.errors import (
    ConfigurationError,
    InvalidNameError,
    InvalidPatternError,
    ZnodeError,
)
from pylogbroker.net.endpointstrings import SocketAddress, brokerEndpoint, endpoint
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
from pylogbroker.types import EARLIEST, LATEST, BrokerPartition, PartitionId

T = TypeVar("T")

SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname", "outputmode"})
"""Options that Spark adds, in lower case."""

CASELESS_OPTIONS = frozenset({"failOnDataLoss", "includeHeaders", "compression"})
"""Options whose value may be in any case."""

BATCH_SIZE_MAX = 64 << 20
"""Bytes; readers do not decompress larger sets."""

ACCESS_OPTIONS = {
    "zookeeperDigest": "zk.digest",
    "zookeeperAcl": "zk.acl",
    "brokerEndpoint": "broker.endpoint",
}
"""The keys of a property file, by option."""

_CODECS = {name: codec for codec, name in CODEC_NAMES.items()}


# -- offsets and partitions, as JSON


OffsetSpec = int | dict[PartitionId, int]
"""L{EARLIEST}, L{LATEST}, or one of them or an offset for each partition."""


def parsePartition(name: str) -> BrokerPartition:
    """
    @param name: C{"<broker>-<partition>"}.
    @raise ValueError: it has another form.
    """
    try:
        return decodePartition("a partition", name)
    except ZnodeError as error:
        raise ValueError(f"{name!r} is not <broker>-<partition>") from error


def parseOffsets(text: str) -> OffsetSpec:
    """
    C{earliest}, C{latest}, or offsets by topic and partition,
    C{{"clicks": {"0-0": 4711, "1-0": -2}}}, where -1 is the latest and -2 the earliest.

    @raise ValueError: the text has another form.
    @raise InvalidNameError: a topic has an impossible name.
    """
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    found: dict[PartitionId, int] = {}
    for topic, offsets in parseTopics(text).items():
        if not isinstance(offsets, dict):
            raise ValueError(f"{topic} must have an object of offsets")
        for name, offset in offsets.items():
            if type(offset) is not int or not EARLIEST <= offset < 2**63:
                raise ValueError(
                    f"{topic} {name} has {offset!r}, which is neither an offset"
                    " nor -1 (latest) nor -2 (earliest)"
                )
            partition = PartitionId(topic, parsePartition(name))
            if partition in found:
                raise ValueError(f"{topic} {partition.partition} appears twice, once as {name!r}")
            found[partition] = offset
    return found


def _parseAssignment(text: str) -> tuple[PartitionId, ...]:
    found = set()
    for topic, names in parseTopics(text).items():
        if not isinstance(names, list) or not names:
            raise ValueError(f"{topic} must have a list of partitions")
        found |= {PartitionId(topic, parsePartition(str(name))) for name in names}
    return tuple(sorted(found))


def parseTopics(text: str) -> dict[str, Any]:
    """
    A JSON object of topics, with any values.

    @raise ValueError: the text is something else.
    @raise InvalidNameError: a topic has an impossible name.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:  # JSON's rule silently drops one of them
                raise ValueError(f"{name} appears twice")
            found[name] = value
        return found

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"neither a known word nor JSON: {error}") from error
    if not isinstance(found, dict) or not found:
        raise ValueError("must be an object of topics")
    for name in found:
        pathSegment("topic", name)
    return found


def parseTopicNames(text: str) -> tuple[str, ...]:
    """
    Topics, separated by commas.

    @raise ValueError: there is none.
    @raise InvalidNameError: a name is impossible.
    """
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("it names no topic")
    return tuple(pathSegment("topic", name) for name in names)


class Parsed(PropertyType[T]):
    """Anything that a function reads from a text."""

    def __init__(self, parse: Callable[[str], T]) -> None:
        self._parse = parse

    def parse(self, text: str, warn: Warn) -> T:
        try:
            return self._parse(text)
        except (InvalidNameError, InvalidPatternError) as error:
            raise ValueError(str(error)) from error


# -- the options

SUBSCRIBE = ownKey(
    "subscribe", Nullable(Parsed(parseTopicNames)), "", "Topics, separated by commas."
)
SUBSCRIBE_PATTERN = ownKey(
    "subscribePattern",
    Nullable(Parsed(lambda text: TopicPattern(text).pattern)),
    "",
    "Or a pattern of topics.",
)
FAIL_ON_DATA_LOSS = ownKey("failOnDataLoss", Boolean(), "true", "Whether lost data are an error.")
MIN_PARTITIONS = ownKey(
    "minPartitions", Nullable(Integer(1, 10**6)), "", "The least number of tasks."
)


class DataSourceOptions(Settings):
    """Options as Spark passes them on."""

    @classmethod
    def isIgnored(cls, name: str) -> bool:
        """
        Whether an option without a key has no meaning here.

        @param name: in lower case.
        @raise ConfigurationError: it must not be given.
        """
        return name in SPARK_OPTIONS

    @classmethod
    def fromOptions(cls, options: Mapping[str, str]) -> Self:
        """
        @param options: keys in any case; an empty value counts as missing.
        @raise ConfigurationError: an option is wrong, unknown or missing, or the property file is
            wrong on this machine.
        """
        known = {key.key.lower(): key.key for key in cls.keys}
        given = {}
        for name, value in options.items():
            option = known.get(name.lower())
            if option is None:
                if not cls.isIgnored(name.lower()):
                    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
                    raise ConfigurationError(
                        f"there is no option {name}; "
                        + (
                            f"did you mean {known[near[0]]}?"
                            if near
                            else f"there are {', '.join(known.values())}"
                        )
                    )
                continue
            text = str(value).strip()
            if text:
                given[option] = text.lower() if option in CASELESS_OPTIONS else text
        found = cls.fromProperties(given)
        found.access()
        return found

    def access(self) -> SecuritySettings:
        """
        Credentials and the endpoint of brokers, from the options and this machine's file. Blocks.

        @raise ConfigurationError: the file cannot be read, or a value is wrong.
        """
        raise NotImplementedError


class ClusterOptions(DataSourceOptions):
    """
    Where the brokers are and how to reach them: the options that the source and the sink share.

    Workers get copies. Each machine reads the property file itself.
    """

    zookeeper = ownKey("zookeeper", Text(), "", "ZooKeeper's addresses and chroot.")
    brokers = ownKey(
        "brokers", Nullable(Parsed(parseBrokers)), "", "Or the brokers, `id:host:port,…`."
    )
    config = ownKey("config", Text(), "", "A property file with credentials.")
    zookeeperDigest = ownKey("zookeeperDigest", SecretText(), "", "The key `zk.digest`.")
    zookeeperAcl = ownKey("zookeeperAcl", Text(), "", "The key `zk.acl`.")
    brokerEndpoint = ownKey("brokerEndpoint", Text(), "", "The key `broker.endpoint`.")
    timeoutMs = ownKey("timeoutMs", Integer(1, LONG_MAX), "30000", "For each answer.")
    retryCount = ownKey("retryCount", Integer(0, 1000), "3", "Repeated requests to a broker.")

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        """See L{Settings.complete}."""
        if bool(values["zookeeper"]) == bool(values["brokers"]):
            which = (
                "zookeeper and brokers are both"
                if values["brokers"]
                else "neither zookeeper nor brokers is"
            )
            raise ConfigurationError(f"{which} given: one of them locates the brokers")

    @property
    def name(self) -> str:
        """The cluster, for error messages."""
        if self.zookeeper:
            return f"the cluster of ZooKeeper {self.zookeeper}"
        addresses = self.brokers or ()
        return f"the brokers {', '.join(f'{each.host}:{each.port}' for each in addresses)}"

    def access(self) -> SecuritySettings:
        """See L{DataSourceOptions.access}."""
        values = (self.zookeeperDigest, self.zookeeperAcl, self.brokerEndpoint)
        changes = zip(ACCESS_OPTIONS.values(), values, strict=True)
        return SecuritySettings.read(
            self.config or None, [f"{key}={value}" for key, value in changes if value]
        )

    def metadata(self) -> IClusterMetadata:
        """
        A reader of the cluster's brokers and topics, which the caller closes.

        @raise ConfigurationError: as L{access}; so do C{consumer} and C{endpoint}.
        """
        if self.brokers:
            return StaticMetadata(self.brokers, consumer=self.consumer)
        access = self.access()
        return ZookeeperMetadata(
            self.zookeeper, digest=access.zkDigest, acl=access.zkAcl, timeoutMs=self.timeoutMs
        )

    def consumer(self, address: BrokerAddress) -> SimpleConsumer:
        """A client of one broker, which the caller closes."""
        return SimpleConsumer(
            *self.endpoint(address),
            timeoutMs=self.timeoutMs,
            connectTimeoutMs=min(self.timeoutMs, CONNECT_TIMEOUT_MS),
        )

    def endpoint(self, address: BrokerAddress) -> SocketAddress:
        """How to connect to a broker."""
        return endpoint(
            brokerEndpoint(self.access().brokerEndpoint, f"{address.host}:{address.port}")
        )


class SinkOptions(ClusterOptions):
    """How to write."""

    topic = ownKey("topic", Text(), "", "The topic of all rows; else the column `topic` names it.")
    compression = ownKey("compression", Enum(_CODECS), "none", "The codec.")
    maxMessageSize = ownKey(
        "maxMessageSize",
        Integer(1, LONG_MAX),
        str(PAYLOAD_SIZE_MAX),
        "Bytes of a message, or of a compressed set, that brokers accept.",
    )
    batchSize = ownKey(
        "batchSize", Integer(1, BATCH_SIZE_MAX), "200000", "Bytes of messages sent together."
    )


class Selection(NamedTuple):
    """
    The partitions to read. One of the three is not empty.

    @ivar pattern: of topics, in Java's syntax.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[PartitionId, ...] = ()


def checkSelection(values: Mapping[str, Any], properties: Mapping[str, str]) -> None:
    """
    @param values: of a source's options, by name.
    @param properties: their texts.
    @raise ConfigurationError: not exactly one option says what to read, or it would be nothing.
    """
    ending = values["endingOffsets"]
    if ending == EARLIEST or (isinstance(ending, dict) and EARLIEST in ending.values()):
        raise ConfigurationError(
            f"endingOffsets={properties['endingOffsets']}:"
            " to end at the earliest would be to read nothing"
        )
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if values[name]]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"{' and '.join(chosen) or 'none'} of {', '.join(names)} given: exactly one is needed"
        )


class SourceOptions(ClusterOptions):
    """
    What to read.

    @ivar selection: of C{subscribe}, C{subscribePattern} or C{assign}.
    """

    subscribe = SUBSCRIBE
    subscribePattern = SUBSCRIBE_PATTERN
    assign = ownKey(
        "assign",
        Nullable(Parsed(_parseAssignment)),
        "",
        "Or partitions by topic, as JSON.",
    )
    startingOffsets = ownKey(
        "startingOffsets",
        Nullable(Parsed(parseOffsets)),
        "",
        "A word, or offsets as JSON.",
    )
    endingOffsets = ownKey(
        "endingOffsets",
        Parsed(parseOffsets),
        "latest",
        "A word, or offsets as JSON.",
    )
    startingTimestamp = ownKey(
        "startingTimestamp",
        Nullable(Integer(0, LONG_MAX)),
        "",
        "Or a time, in milliseconds since 1970.",
    )
    failOnDataLoss = FAIL_ON_DATA_LOSS
    minPartitions = MIN_PARTITIONS
    maxBytesPerTrigger = ownKey(
        "maxBytesPerTrigger", Nullable(Integer(1, LONG_MAX)), "", "Bytes of a micro-batch."
    )
    fetchSize = ownKey("fetchSize", Integer(64, LONG_MAX), str(4 << 20), "Bytes of a fetch.")
    fetchSizeMax = ownKey(
        "fetchSizeMax",
        Integer(64, RESPONSE_SIZE_MAX - 2),
        str(64 << 20),
        "Bytes of the largest entry.",
    )
    selection: Selection

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        """See L{Settings.complete}."""
        super().complete(values, properties, warn)
        if values["startingTimestamp"] is not None and values["startingOffsets"] is not None:
            raise ConfigurationError(
                "startingOffsets and startingTimestamp are both given: one of them is the start"
            )
        checkSelection(values, properties)
        values["selection"] = Selection(
            values["subscribe"] or (), values["subscribePattern"] or "", values["assign"] or ()
        )
        values["fetchSize"] = min(values["fetchSize"], values["fetchSizeMax"])
