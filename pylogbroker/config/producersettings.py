"""
What a producer can be told, and what it is told when nobody says anything.

Kafka 0.7's keys keep name, meaning and unit (spec-0.7 config §3), and the defaults of 0.7.2's code but for two: who sends to a full queue
waits, as in Kafka from 0.8 on, and is not refused (gotcha 33); and the system sizes the sockets' buffers. Beside them stand our
own, for confirmation and for what 0.7 left without a limit.

Where this reads properties differently from 0.7.2: a stray C{host} or C{port} redirects nobody (gotcha 41); codecs have names as well
as numbers; a key that nobody knows is reported (gotcha 24).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from pylogbroker.config.connectionsettings import ACL_ROW, DIGEST_ROW, ENDPOINT_ROW
from pylogbroker.config.keys import ConfigKey, readSettings
from pylogbroker.config.propertytypes import (
    INT_MAX,
    LONG_MAX,
    PORT_MAX,
    Boolean,
    Integer,
    PropertyList,
    Text,
    ZookeeperServers,
)
from pylogbroker.errors import ConfigurationError
from pylogbroker.types import HOST

SYNC = "sync"
ASYNC = "async"
CODECS = {"0": 0, "1": 1, "2": 2, "none": 0, "gzip": 1, "snappy": 2}
DEFAULT_PARTITIONER = "kafka.producer.DefaultPartitioner"
DEFAULT_ENCODER = "kafka.serializer.DefaultEncoder"
STRING_ENCODER = "kafka.serializer.StringEncoder"

_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_POSITIVE = Integer(1)
_NOT_NEGATIVE = Integer(0)
_SIZE = Integer(1, LONG_MAX)
_BUFFER_SIZE = Integer(0, 1 << 30)
_ours = partial(ConfigKey, isKafkaKey=False)
_idle = partial(ConfigKey, used=False)


class BrokerAddress(NamedTuple):
    """One entry of C{broker.list}."""

    brokerId: int
    host: str
    port: int


class BrokerList:
    """
    C{id:host:port,…}. What stands behind a third colon is ignored; white space is part of what it stands in (spec-0.7 producer §1, config §3).
    """

    name = "broker list"
    range = "`id:host:port,…`"

    def parse(self, text: str, warn: Callable[[str], None]) -> tuple[BrokerAddress, ...]:
        found: dict[int, BrokerAddress] = {}
        for entry in text.rstrip(",").split(",") if text.rstrip(",") else ():
            fields = entry.split(":")
            if len(fields) < 3:
                raise ValueError(f"{entry!r} is not id:host:port")
            number, host, port = fields[:3]
            if not _NUMBER.fullmatch(number) or not -INT_MAX - 1 <= int(number) <= INT_MAX:
                raise ValueError(
                    f"{entry!r}: {number!r} is not a broker's number (white space is part of it)"
                )
            if not HOST.fullmatch(host):
                raise ValueError(f"{entry!r}: {host!r} is not a host")
            if not _NUMBER.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
                raise ValueError(f"{entry!r}: {port!r} is not a port from 1 to {PORT_MAX}")
            if int(number) in found:
                warn(f"names broker {int(number)} twice; the last counts")
            found[int(number)] = BrokerAddress(int(number), host, int(port))
        return tuple(found.values())


class MappedEnum:
    """One of a few words, each of which stands for a value."""

    name = "choice"

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values

    @property
    def range(self) -> str:
        return ", ".join(f"`{word}`" for word in self.values)

    def parse(self, text: str, warn: Callable[[str], None]) -> object:
        if text not in self.values:
            raise ValueError(f"must be one of {', '.join(self.values)}")
        return self.values[text]


class TopicList:
    """Topics with C{,} between them; white space around one is part of its name, as in 0.7."""

    name = "topic list"
    range = "`topic1,topic2`"

    def parse(self, text: str, warn: Callable[[str], None]) -> frozenset[str]:
        topics = frozenset(topic for topic in text.split(",") if topic)
        for topic in sorted(topics):
            if topic != topic.strip():
                warn(f"names a topic {topic!r}; the white space counts as part of the name")
        return topics


PRODUCER_ROWS: tuple[ConfigKey, ...] = (
    # -- where to
    ConfigKey(
        "zk.connect",
        "zookeeperServers",
        ZookeeperServers(),
        "",
        "ZooKeeper's addresses, `host:port,host:port/chroot`. Either this or `broker.list` must be given.",
    ),
    ConfigKey(
        "broker.list",
        "brokers",
        BrokerList(),
        "",
        "The brokers, for a producer without ZooKeeper: each message goes to one of them by chance, which picks the partition.",
    ),
    ConfigKey(
        "zk.sessiontimeout.ms",
        "zookeeperSessionTimeoutMs",
        _POSITIVE,
        "6000",
        "ZooKeeper's session time-out.",
    ),
    ConfigKey(
        "zk.connectiontimeout.ms",
        "zookeeperConnectTimeoutMs",
        _POSITIVE,
        None,
        "How long to wait for ZooKeeper at the start.",
        derived="`zk.sessiontimeout.ms`",
    ),
    DIGEST_ROW,
    ACL_ROW,
    ConfigKey(
        "zk.read.num.retries",
        "zookeeperReadRetryCount",
        _NOT_NEGATIVE,
        "3",
        "How often ZooKeeper is read anew for a message whose topic has no broker, or after a lost connection, before that is an error.",
    ),
    ConfigKey(
        "partitioner.class",
        "partitioner",
        Text(),
        None,
        "What gives a key its partition: a dotted name of a function `(key, count)` or of a class with a method `partition`. Not with `broker.list`.",
        derived=f"`{DEFAULT_PARTITIONER}`: `abs(hash) mod count`",
    ),
    # -- how
    ConfigKey(
        "producer.type",
        "isAsync",
        MappedEnum({SYNC: False, ASYNC: True}),
        SYNC,
        "Whether each call is a request of its own, or messages are collected.",
    ),
    ConfigKey(
        "serializer.class",
        "encoder",
        Text(empty=False),
        DEFAULT_ENCODER,
        f"What makes bytes of a value: `{DEFAULT_ENCODER}` (it is bytes already), `{STRING_ENCODER}` (text, as UTF-8), or a dotted name of a function or of a "
        "class with a method `encode`.",
    ),
    ConfigKey(
        "compression.codec",
        "codec",
        MappedEnum(CODECS),
        "0",
        "How message sets are compressed: 0 none, 1 gzip, 2 snappy.",
    ),
    ConfigKey(
        "compressed.topics",
        "compressedTopics",
        TopicList(),
        "",
        "Compress only these topics. 0.7.2 heeded it in async mode only. Empty: all.",
    ),
    ConfigKey(
        "max.message.size",
        "payloadSizeMax",
        _NOT_NEGATIVE,
        "1000000",
        "The largest payload in bytes; a compressed set counts as one.",
    ),
    # -- connections
    ENDPOINT_ROW,
    ConfigKey(
        "connect.timeout.ms",
        "connectTimeoutMs",
        _POSITIVE,
        "5000",
        "How long to try to connect to a broker before what is to be sent has failed.",
    ),
    ConfigKey(
        "socket.timeout.ms",
        "timeoutMs",
        _POSITIVE,
        "30000",
        "How long a broker may take nothing, or leave a confirmation unanswered. (In 0.7.2: no effect.)",
    ),
    ConfigKey(
        "reconnect.interval",
        "reconnectIntervalCount",
        _POSITIVE,
        "30000",
        "Requests after which a connection is replaced.",
    ),
    ConfigKey(
        "reconnect.time.interval.ms",
        "reconnectTimeIntervalMs",
        Integer(),
        "10000000",
        "Milliseconds after which it is; negative: never.",
    ),
    ConfigKey(
        "buffer.size",
        "sendBufferSize",
        _BUFFER_SIZE,
        "0",
        "SO_SNDBUF of each connection in bytes; 0 leaves it to the system. (In 0.7: 102400.)",
    ),
    # -- async mode
    ConfigKey(
        "queue.time",
        "queueTimeMs",
        _POSITIVE,
        "5000",
        "Async: how many milliseconds a message waits at most for others to go with it.",
    ),
    ConfigKey(
        "queue.size",
        "queueCountMax",
        _POSITIVE,
        "10000",
        "How many messages may be under way in the producer: collected, or sent and not yet written (or confirmed).",
    ),
    ConfigKey(
        "queue.enqueueTimeout.ms",
        "enqueueTimeoutMs",
        Integer(),
        "-1",
        "What becomes of a message when the queue is full: 0 it fails at once (0.7.2's default), below 0 it waits, above 0 it waits so long and then fails. "
        "As many bytes as `queue.bytes` may wait, and 250000 messages; more fail at once.",
    ),
    _ours(
        "queue.bytes",
        "queueSizeMax",
        _SIZE,
        "67108864",
        "The same as `queue.size` in bytes of payload; a single larger message may go when no other is there.",
    ),
    ConfigKey(
        "batch.size",
        "batchCount",
        _POSITIVE,
        "200",
        "Async: how many messages for one broker go together.",
    ),
    _ours(
        "batch.bytes",
        "batchSizeMax",
        _SIZE,
        "16777216",
        "Async: bytes of payload at which they go, however few.",
    ),
    ConfigKey(
        "num.retries",
        "retryCount",
        _NOT_NEGATIVE,
        "0",
        "Async: how often a batch that failed is tried again, where the topic then has a partition. A retry can put messages in the log twice.",
    ),
    ConfigKey(
        "event.handler",
        "eventSender",
        Text(),
        None,
        "Async: a dotted name of a class that sends batches, with methods `init`, `handle` and `close`.",
        derived="the one that is built in",
    ),
    ConfigKey(
        "event.handler.props",
        "eventSenderProperties",
        PropertyList(),
        "",
        "What its `init` is given.",
    ),
    ConfigKey(
        "callback.handler",
        "hooks",
        Text(),
        None,
        "Async: a dotted name of a class with the seven hooks.",
        derived="none",
    ),
    ConfigKey(
        "callback.handler.props", "hookProperties", PropertyList(), "", "What its `init` is given."
    ),
    # -- knowing
    _ours(
        "confirm",
        "isConfirming",
        Boolean(),
        "false",
        "Whether a question follows each request, whose answer proves that the broker has taken it. Without, a message counts as sent once it is written.",
    ),
    _ours(
        "close.timeout.ms",
        "closeTimeoutMs",
        _POSITIVE,
        "30000",
        "How long closing may take; what is not sent then has failed.",
    ),
    _ours(
        "topic",
        "topic",
        Text(),
        None,
        "Where bytes go that are written to the producer as a Twisted `IConsumer`.",
        derived="none",
    ),
    # -- without effect
    _idle(
        "zk.synctime.ms",
        "",
        Integer(),
        "2000",
        "How far a ZooKeeper follower may be behind. A producer has no use for it.",
    ),
    _idle("host", "", Text(), None, "Of a low-level producer. 0.7.2 sent everything there."),
    _idle("port", "", Text(), None, "Of a low-level producer."),
)
"""All keys that a producer's properties can have."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """
    A producer's settings. Each is explained by its row in L{PRODUCER_ROWS}; sizes are bytes.

    @ivar zookeeperServers: C{""} without ZooKeeper.
    @ivar brokers: empty with ZooKeeper.
    @ivar partitioner: a dotted name, or L{None} for the default; so are C{eventSender} and C{hooks}.
    @ivar compressedTopics: empty for all.
    @ivar codec: a codec's number.
    """

    zookeeperServers: str
    brokers: tuple[BrokerAddress, ...]
    zookeeperSessionTimeoutMs: int
    zookeeperConnectTimeoutMs: int
    zookeeperDigest: str = field(repr=False)
    zookeeperAcl: str
    zookeeperReadRetryCount: int
    partitioner: str | None
    isAsync: bool
    encoder: str
    codec: int
    compressedTopics: frozenset[str]
    payloadSizeMax: int
    brokerEndpoint: str
    connectTimeoutMs: int
    timeoutMs: int
    reconnectIntervalCount: int
    reconnectTimeIntervalMs: int
    sendBufferSize: int
    queueTimeMs: int
    queueCountMax: int
    enqueueTimeoutMs: int
    queueSizeMax: int
    batchCount: int
    batchSizeMax: int
    retryCount: int
    eventSender: str | None
    eventSenderProperties: Mapping[str, str]
    hooks: str | None
    hookProperties: Mapping[str, str]
    isConfirming: bool
    closeTimeoutMs: int
    topic: str | None

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None] = lambda message: None
    ) -> ProducerSettings:
        """
        Judge properties.

        @param properties: keys and values; a L{pylogbroker.config.properties.Properties} lets errors name file and line.
        @param warn: called with a sentence for each thing that is odd but no error.
        @raise ConfigurationError: names every key that is wrong, its value and what would be right, a line each; or those that do not go together
            (spec-0.7 producer §1).
        """
        values = cast("dict[str, Any]", readSettings(PRODUCER_ROWS, properties, warn))
        if values["zookeeperServers"] and values["brokers"]:
            raise ConfigurationError(
                "zk.connect and broker.list are both given: a producer finds its brokers by one of them"
            )
        if not values["zookeeperServers"] and not values["brokers"]:
            raise ConfigurationError(
                "neither zk.connect nor broker.list is given: a producer needs one of them to find its brokers"
            )
        if values["brokers"] and values["partitioner"]:
            raise ConfigurationError(
                f"partitioner.class={values['partitioner']} does not go with broker.list: there the broker picks the partition, and keys mean nothing"
            )
        for key in ("host", "port"):
            if key in properties:
                warn(
                    f"{key}={properties[key]}: has no effect; the brokers are those of zk.connect or broker.list"
                )
        if values["zookeeperConnectTimeoutMs"] is None:
            values["zookeeperConnectTimeoutMs"] = values["zookeeperSessionTimeoutMs"]
        for setting in ("partitioner", "eventSender", "hooks", "topic"):
            values[setting] = values[setting] or None
        return cls(**values)
