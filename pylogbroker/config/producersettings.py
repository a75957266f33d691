"""
The settings of a producer.

Kafka 0.7's keys keep name, meaning and unit (spec-0.7 config §3), and the defaults of 0.7.2's code
with two exceptions: a message for a full queue waits, as from Kafka 0.8 on, where 0.7.2 refuses it
(gotcha 33), and the system sizes the socket buffers. Our own keys add confirmation and limits.

Three things differ from 0.7.2: C{host} and C{port} have no effect (gotcha 41), codecs have names as
well as numbers, and unknown keys are reported (gotcha 24).
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
    SIZE,
    TEXT,
    BrokerList,
    Enum,
    Integer,
    PropertyList,
    TopicList,
    Warn,
    ZookeeperServers,
)
from pylogbroker.config.securitysettings import BROKER_ENDPOINT, ZK_ACL, ZK_DIGEST
from pylogbroker.errors import ConfigurationError

SYNC = "sync"
ASYNC = "async"
CODECS = {"0": 0, "1": 1, "2": 2, "none": 0, "gzip": 1, "snappy": 2}
DEFAULT_PARTITIONER = "kafka.producer.DefaultPartitioner"
DEFAULT_ENCODER = "kafka.serializer.DefaultEncoder"
STRING_ENCODER = "kafka.serializer.StringEncoder"

_BUFFER_SIZE = Integer(0, 1 << 30)


class ProducerSettings(Settings):
    """
    The settings of a producer. Sizes are bytes, but C{queueSize} and C{batchSize} count messages,
    as Kafka's keys do.
    """

    # -- where to
    zkConnect = ConfigKey(
        "zk.connect",
        ZookeeperServers(),
        "",
        "ZooKeeper's servers, `host:port,host:port/chroot`. A producer needs either this or"
        " `broker.list`.",
    )
    brokerList = ConfigKey(
        "broker.list",
        BrokerList(),
        "",
        "The brokers of a producer without ZooKeeper. Each message goes to a random one, "
        "which picks the partition.",
    )
    zkSessionTimeoutMs = ConfigKey(
        "zk.sessiontimeout.ms", POSITIVE, "6000", "ZooKeeper's session time-out in milliseconds."
    )
    zkConnectionTimeoutMs = ConfigKey(
        "zk.connectiontimeout.ms",
        POSITIVE,
        None,
        "The longest wait for ZooKeeper at the start, in milliseconds.",
        fallback=zkSessionTimeoutMs,
    )
    zkDigest = ZK_DIGEST
    zkAcl = ZK_ACL
    zkReadNumRetries = ConfigKey(
        "zk.read.num.retries",
        NOT_NEGATIVE,
        "3",
        "The number of times that the producer reads ZooKeeper again for a topic without a "
        "broker, or after a lost connection, before it fails.",
    )
    partitionerClass = ConfigKey(
        "partitioner.class",
        NULLABLE_TEXT,
        "",
        "The partitioner: a dotted name of a function `(key, count)`, or of a class with a "
        "method `partition`. Not with `broker.list`.",
        derived=f"`{DEFAULT_PARTITIONER}`: `abs(hash) mod count`",
    )
    # -- how
    producerType = ConfigKey(
        "producer.type",
        Enum({SYNC: SYNC, ASYNC: ASYNC}),
        SYNC,
        "`sync`: each call is a request. `async`: the producer collects messages in batches.",
    )
    serializerClass = ConfigKey(
        "serializer.class",
        NOT_EMPTY,
        DEFAULT_ENCODER,
        "The encoder of values: `kafka.serializer.DefaultEncoder` for bytes, "
        "`kafka.serializer.StringEncoder` for text as UTF-8, or a dotted name of a function"
        " or of a class with a method `encode`.",
    )
    compressionCodec = ConfigKey(
        "compression.codec",
        Enum(CODECS),
        "0",
        "The compression of message sets: 0 none, 1 gzip, 2 snappy.",
    )
    compressedTopics = ConfigKey(
        "compressed.topics",
        TopicList(),
        "",
        "Compress these topics only. Empty: all. (0.7.2 applies it in async mode only.)",
    )
    maxMessageSize = ConfigKey(
        "max.message.size",
        NOT_NEGATIVE,
        "1000000",
        "The largest payload in bytes; a compressed set counts as one.",
    )
    # -- connections
    brokerEndpoint = BROKER_ENDPOINT
    connectTimeoutMs = ConfigKey(
        "connect.timeout.ms",
        POSITIVE,
        "5000",
        "The longest time for connecting to a broker, in milliseconds; then the send fails.",
    )
    socketTimeoutMs = ConfigKey(
        "socket.timeout.ms",
        POSITIVE,
        "30000",
        "The longest time in milliseconds that a broker may read nothing, or leave a "
        "confirmation unanswered. (In 0.7.2: no effect.)",
    )
    reconnectInterval = ConfigKey(
        "reconnect.interval",
        POSITIVE,
        "30000",
        "The number of requests after which a connection is replaced.",
    )
    reconnectTimeIntervalMs = ConfigKey(
        "reconnect.time.interval.ms",
        ANY_INTEGER,
        "10000000",
        "The age in milliseconds after which a connection is replaced; negative: never.",
    )
    bufferSize = ConfigKey(
        "buffer.size",
        _BUFFER_SIZE,
        "0",
        "SO_SNDBUF of each connection in bytes; 0 lets the kernel size it. (In 0.7: 102400.)",
    )
    # -- async mode
    queueTime = ConfigKey(
        "queue.time",
        POSITIVE,
        "5000",
        "Async: the longest time in milliseconds that a message waits for its batch to fill.",
    )
    queueSize = ConfigKey(
        "queue.size",
        POSITIVE,
        "10000",
        "The largest number of messages in the producer: queued, or sent and not yet "
        "written (or confirmed).",
    )
    queueEnqueueTimeoutMs = ConfigKey(
        "queue.enqueueTimeout.ms",
        ANY_INTEGER,
        "-1",
        "With a full queue, a message fails at once (0, 0.7.2's default), waits without "
        "limit (negative), or waits for this time in milliseconds and then fails. At most "
        "`queue.bytes` and 250000 messages may wait; more fail at once.",
    )
    queueBytes = ownKey(
        "queue.bytes",
        SIZE,
        "67108864",
        "`queue.size` in bytes of payload. A single larger message passes if the queue is empty.",
    )
    batchSize = ConfigKey(
        "batch.size", POSITIVE, "200", "Async: the number of messages in a batch for one broker."
    )
    batchBytes = ownKey(
        "batch.bytes",
        SIZE,
        "16777216",
        "Async: the bytes of payload at which a batch is sent, however few messages it has.",
    )
    numRetries = ConfigKey(
        "num.retries",
        NOT_NEGATIVE,
        "0",
        "Async: the number of times that a failed batch is sent again, to a partition that "
        "the topic then has. A retry can duplicate messages.",
    )
    eventHandler = ConfigKey(
        "event.handler",
        NULLABLE_TEXT,
        "",
        "Async: a dotted name of a class that sends batches, with methods `init`, `handle` "
        "and `close`.",
        derived="the one that is built in",
    )
    eventHandlerProps = ConfigKey(
        "event.handler.props", PropertyList(), "", "The argument of the event handler's `init`."
    )
    callbackHandler = ConfigKey(
        "callback.handler",
        NULLABLE_TEXT,
        "",
        "Async: a dotted name of a class with the seven callbacks of 0.7's `CallbackHandler`.",
        derived="none",
    )
    callbackHandlerProps = ConfigKey(
        "callback.handler.props",
        PropertyList(),
        "",
        "The argument of the callback handler's `init`.",
    )
    # -- knowing
    confirm = ownKey(
        "confirm",
        BOOLEAN,
        "false",
        "Send an OFFSETS request behind each produce request; its answer proves that the "
        "broker has processed the messages. Otherwise a message counts as sent when it is "
        "written to the socket.",
    )
    closeTimeoutMs = ownKey(
        "close.timeout.ms",
        POSITIVE,
        "30000",
        "The longest time for closing, in milliseconds; unsent messages then fail.",
    )
    topic = ownKey(
        "topic",
        NULLABLE_TEXT,
        "",
        "The topic for bytes that are written to the producer as a Twisted `IConsumer`.",
        derived="none",
    )
    # -- without effect
    zkSyncTimeMs = ignoredKey(
        "zk.synctime.ms",
        ANY_INTEGER,
        "2000",
        "The largest lag of a ZooKeeper follower. A producer does not need it.",
    )
    host = ignoredKey(
        "host", TEXT, None, "A low-level producer's key. (0.7.2 sends everything there.)"
    )
    port = ignoredKey("port", TEXT, None, "A low-level producer's key.")

    @property
    def isAsync(self) -> bool:
        """True if the producer collects messages in batches."""
        return self.producerType == ASYNC

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        if values["zkConnect"] and values["brokerList"]:
            raise ConfigurationError(
                "zk.connect and broker.list are both given: a producer finds its brokers by one of"
                " them"
            )
        if not values["zkConnect"] and not values["brokerList"]:
            raise ConfigurationError(
                "neither zk.connect nor broker.list is given: a producer needs one of them to find"
                " its brokers"
            )
        if values["brokerList"] and values["partitionerClass"]:
            raise ConfigurationError(
                f"partitioner.class={values['partitionerClass']} does not go with broker.list:"
                " there the broker picks the partition, and keys mean nothing"
            )
        for key in ("host", "port"):
            if key in properties:
                warn(
                    f"{key}={properties[key]}: has no effect; the brokers are those of zk.connect"
                    " or broker.list"
                )
