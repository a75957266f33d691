"""
The settings of a producer and of a consumer of today's Kafka.

Keys of Java's clients keep name, meaning, unit and default. Two things differ on purpose: settings
that contradict C{enable.idempotence} are an error, where Java's client gives up idempotence without
a word; and TLS is a client endpoint string, as for all our clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogbroker.config.keys import ConfigKey, Settings, ownKey
from pylogbroker.config.listenersettings import MECHANISMS, SCRAM_SHA_512, SecretValue
from pylogbroker.config.propertytypes import (
    BOOLEAN,
    COMMA_SEPARATED_LIST,
    INT_MAX,
    NOT_EMPTY,
    NOT_NEGATIVE,
    NULLABLE_TEXT,
    POSITIVE,
    SIZE,
    TEXT,
    Enum,
    Integer,
    PropertyType,
    Warn,
    isServer,
)
from pylogbroker.config.securitysettings import BROKER_ENDPOINT, requireSaslPair
from pylogbroker.errors import ConfigurationError

ACKS_ALL = -1
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
CLASSIC, CONSUMER = "classic", "consumer"
EARLIEST, LATEST, NO_RESET = "earliest", "latest", "none"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"

IN_FLIGHT_COUNT_MAX = 5
"""
Requests in flight on a connection with idempotence: a broker remembers so many batches of a
producer and partition.
"""

RESPONSE_SIZE_MAX = 128 << 20
"""Bytes of a response: a fetch of 50 MB, and the batch behind it that had to be whole."""

FETCH_SIZE_MAX = RESPONSE_SIZE_MAX - (1 << 20)
"""C{fetch.max.bytes} counts batches; the rest is for what a response says about them."""


class BootstrapServers(PropertyType[tuple[str, ...]]):
    """C{host:port,host:port}; IPv6 addresses stand in brackets. White space is dropped."""

    name = "list"
    range = "`host:port,host:port`"

    def parse(self, text: str, warn: Warn) -> tuple[str, ...]:
        servers = tuple(part.strip() for part in text.split(",") if part.strip())
        if not servers:
            raise ValueError("must name a broker, host:port")
        for server in servers:
            if not isServer(server):
                raise ValueError(f"{server!r} is not a host with a port")
        return servers


class KafkaClientSettings(Settings):
    """
    What a producer and a consumer have in common. Times are milliseconds.
    """

    bootstrapServers = ConfigKey(
        "bootstrap.servers",
        BootstrapServers(),
        None,
        "The brokers to ask first, `host:port,host:port`. They name all others.",
        isRequired=True,
    )
    clientId = ConfigKey(
        "client.id", NOT_EMPTY, "pylogbroker", "The client's name, for the broker's log and quotas."
    )
    brokerEndpoint = BROKER_ENDPOINT
    saslMechanism = ConfigKey(
        "sasl.mechanism",
        Enum({word: word for word in MECHANISMS}),
        SCRAM_SHA_512,
        "With `sasl.username`, how to authenticate.",
    )
    saslUsername = ownKey(
        "sasl.username",
        TEXT,
        "",
        "The name by which the client authenticates; empty: it does not.",
    )
    saslPassword = ownKey("sasl.password", SecretValue(), "", "The user's password.")
    requestTimeoutMs = ConfigKey(
        "request.timeout.ms",
        POSITIVE,
        "30000",
        "How long a response may take, in milliseconds; then the connection is closed.",
    )
    socketConnectionSetupTimeoutMs = ConfigKey(
        "socket.connection.setup.timeout.ms",
        POSITIVE,
        "10000",
        "How long connecting to a broker may take, in milliseconds.",
    )
    metadataMaxAgeMs = ConfigKey(
        "metadata.max.age.ms",
        POSITIVE,
        "300000",
        "The age in milliseconds at which the cluster's metadata are asked for again, although "
        "nothing has changed.",
    )
    retryBackoffMs = ConfigKey(
        "retry.backoff.ms",
        POSITIVE,
        "100",
        "The wait before the first retry, in milliseconds; it doubles with each further one, and "
        "chance takes away up to a half.",
    )
    retryBackoffMaxMs = ConfigKey(
        "retry.backoff.max.ms",
        POSITIVE,
        "1000",
        "The longest wait before a retry, in milliseconds.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        requireSaslPair(values)


class KafkaAdminSettings(KafkaClientSettings):
    """
    The settings of a L{pylogbroker.client.kafka.admin.client.AdminClient}.
    """

    defaultApiTimeoutMs = ConfigKey(
        "default.api.timeout.ms",
        POSITIVE,
        "60000",
        "How long a call may take, retries included, in milliseconds.",
    )


class KafkaProducerSettings(KafkaClientSettings):
    """
    The settings of a L{pylogbroker.producer.kafka.producer.KafkaProducer}. Sizes are bytes, but
    C{queueSize} counts messages, as for the producer of 2011.
    """

    acks = ConfigKey(
        "acks",
        Enum({"all": ACKS_ALL, "-1": ACKS_ALL, "1": 1, "0": 0}),
        "all",
        "When a message counts as sent: `all`, when all replicas in sync have it; `1`, when the "
        "leader has it; `0`, when it is written to the connection.",
    )
    enableIdempotence = ConfigKey(
        "enable.idempotence",
        BOOLEAN,
        "true",
        "Whether a retry never stores a message twice. It needs `acks=all`, `retries` above 0 and "
        "at most 5 requests in flight: other values are an error.",
    )
    compressionType = ConfigKey(
        "compression.type",
        Enum(CODECS),
        "none",
        "The compression of batches.",
    )
    lingerMs = ConfigKey(
        "linger.ms",
        NOT_NEGATIVE,
        "5",
        "How long a batch waits for more messages, in milliseconds. With 0 it has those of one "
        "turn of the reactor.",
    )
    batchSize = ConfigKey(
        "batch.size",
        SIZE,
        "16384",
        "The bytes of a batch, before compression, at which it is sent without waiting.",
    )
    maxRequestSize = ConfigKey(
        "max.request.size",
        SIZE,
        "1048576",
        "The bytes of a request, and of a message in a batch of its own before compression; a "
        "larger message fails.",
    )
    bufferMemory = ConfigKey(
        "buffer.memory",
        SIZE,
        "33554432",
        "The bytes of the messages in the producer. A call beyond it waits for `max.block.ms`.",
    )
    queueSize = ownKey(
        "queue.size",
        POSITIVE,
        "50000",
        "The largest number of messages in the producer; a call beyond it waits, too.",
    )
    maxBlockMs = ConfigKey(
        "max.block.ms",
        NOT_NEGATIVE,
        "60000",
        "How long a message may wait for room, and then for the topic's metadata, each in "
        "milliseconds; then it fails.",
    )
    deliveryTimeoutMs = ConfigKey(
        "delivery.timeout.ms",
        POSITIVE,
        "120000",
        "The longest time in milliseconds between the acceptance of a message in a batch and its "
        "outcome. At least `linger.ms` and `request.timeout.ms` together.",
    )
    retries = ConfigKey(
        "retries",
        NOT_NEGATIVE,
        str(INT_MAX),
        "How often a batch is sent again; mostly `delivery.timeout.ms` ends it.",
    )
    maxInFlightRequestsPerConnection = ConfigKey(
        "max.in.flight.requests.per.connection",
        Integer(1, 1000),
        str(IN_FLIGHT_COUNT_MAX),
        "Requests to one broker without a response. Without idempotence, more than 1 may change "
        "the order at a retry.",
    )
    partitionerClass = ConfigKey(
        "partitioner.class",
        NULLABLE_TEXT,
        "",
        "The partition of a key: `murmur2`, as Java's client; `crc32`, as librdkafka; or a dotted "
        "name of a function `(key, count)`, or of a class with a method `partition`. Without a "
        "key, a partition is kept for `batch.size` bytes, and then the next is drawn.",
        derived="`murmur2`",
    )
    transactionalId = ConfigKey(
        "transactional.id",
        NULLABLE_TEXT,
        "",
        "The name under which the producer has transactions; it needs `enable.idempotence`. A "
        "later producer of the same name fences this one.",
        derived="none",
    )
    transactionTimeoutMs = ConfigKey(
        "transaction.timeout.ms",
        POSITIVE,
        "60000",
        "How long a transaction may take, in milliseconds; then the coordinator aborts it.",
    )
    topic = ConfigKey(
        "topic", NULLABLE_TEXT, "", "The topic of bytes that a Twisted producer writes."
    )
    closeTimeoutMs = ownKey(
        "close.timeout.ms",
        POSITIVE,
        "30000",
        "How long `close` may take, in milliseconds, unless it is told another time.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        super().complete(values, properties, warn)
        if values["transactionalId"] and not values["enableIdempotence"]:
            raise ConfigurationError(
                f"transactional.id={values['transactionalId']}: needs enable.idempotence=true"
            )
        if values["enableIdempotence"]:
            for name, isRight, right in (
                ("acks", values["acks"] == ACKS_ALL, "all"),
                ("retries", values["retries"] > 0, "above 0"),
                (
                    "max.in.flight.requests.per.connection",
                    values["maxInFlightRequestsPerConnection"] <= IN_FLIGHT_COUNT_MAX,
                    f"at most {IN_FLIGHT_COUNT_MAX}",
                ),
            ):
                if not isRight:
                    raise ConfigurationError(
                        f"{name}={properties[name]}: must be {right} with enable.idempotence=true; "
                        "set enable.idempotence=false to do without it"
                    )
        least = values["lingerMs"] + values["requestTimeoutMs"]
        if values["deliveryTimeoutMs"] < least:
            raise ConfigurationError(
                f"delivery.timeout.ms={values['deliveryTimeoutMs']}: must be at least linger.ms and"
                f" request.timeout.ms together, {least}"
            )


class KafkaConsumerSettings(KafkaClientSettings):
    """
    The settings of a L{pylogbroker.consumer.kafka.consumer.KafkaConsumer}. Sizes are bytes.
    """

    groupId = ConfigKey(
        "group.id",
        TEXT,
        "",
        "The consumer group: its members share the partitions of the topics that they subscribe to,"
        " and its coordinator keeps their positions.",
    )
    groupInstanceId = ConfigKey(
        "group.instance.id",
        TEXT,
        "",
        "The name of a static member: one that comes back within `session.timeout.ms` has its "
        "partitions again, without a rebalance; empty: the member is dynamic.",
    )
    sessionTimeoutMs = ConfigKey(
        "session.timeout.ms",
        POSITIVE,
        "45000",
        "How long the coordinator waits for a heartbeat of a member, in milliseconds.",
    )
    heartbeatIntervalMs = ConfigKey(
        "heartbeat.interval.ms",
        POSITIVE,
        "3000",
        "The time between two heartbeats, in milliseconds; less than `session.timeout.ms`.",
    )
    maxPollIntervalMs = ConfigKey(
        "max.poll.interval.ms",
        POSITIVE,
        "300000",
        "How long a reader may take nothing, in milliseconds; then the member leaves the group "
        "until the reader takes again. Also the time in which members give partitions up.",
    )
    partitionAssignmentStrategy = ConfigKey(
        "partition.assignment.strategy",
        COMMA_SEPARATED_LIST,
        "range,cooperative-sticky",
        "The assignors that the member knows, the preferred one first: `range`, `roundrobin`, "
        "`cooperative-sticky`, or the names of Java's classes. Partitions are kept during a "
        "rebalance only with `cooperative-sticky` alone.",
    )
    groupProtocol = ConfigKey(
        "group.protocol",
        Enum({word: word for word in (CLASSIC, CONSUMER)}),
        CLASSIC,
        "`classic`, where a member assigns the partitions; or `consumer` (KIP-848), where the "
        "coordinator does: then the broker's settings hold in place of `session.timeout.ms`, "
        "`heartbeat.interval.ms` and `partition.assignment.strategy`.",
    )
    groupRemoteAssignor = ConfigKey(
        "group.remote.assignor",
        TEXT,
        "",
        "With `group.protocol=consumer`, the coordinator's assignor to use; empty: the one that it "
        "prefers.",
    )
    clientRack = ConfigKey(
        "client.rack",
        TEXT,
        "",
        "The rack or zone of the consumer. Brokers with `replica.selector.class` let it read from "
        "a replica in its rack; assignors that mind racks are told it, too.",
    )
    enableAutoCommit = ConfigKey(
        "enable.auto.commit",
        BOOLEAN,
        "true",
        "With `group.id`, whether positions are committed by time, and before partitions are given "
        "up.",
    )
    autoCommitIntervalMs = ConfigKey(
        "auto.commit.interval.ms",
        POSITIVE,
        "5000",
        "The time between two commits, in milliseconds.",
    )
    autoOffsetReset = ConfigKey(
        "auto.offset.reset",
        Enum({word: word for word in (EARLIEST, LATEST, NO_RESET)}),
        LATEST,
        "Where to read a partition without a position, or whose position is not in the log: its "
        "beginning, its end, or nowhere: the reader gets an error.",
    )
    isolationLevel = ConfigKey(
        "isolation.level",
        Enum({READ_UNCOMMITTED: False, READ_COMMITTED: True}),
        READ_UNCOMMITTED,
        "`read_committed` leaves out messages of aborted transactions, and waits for the end of "
        "open ones.",
    )
    fetchMinBytes = ConfigKey(
        "fetch.min.bytes",
        POSITIVE,
        "1",
        "The bytes for which a broker waits before it answers a fetch.",
    )
    fetchMaxBytes = ConfigKey(
        "fetch.max.bytes",
        Integer(1, FETCH_SIZE_MAX),
        "52428800",
        "The bytes of a response; a larger first batch comes whole.",
    )
    fetchMaxWaitMs = ConfigKey(
        "fetch.max.wait.ms",
        NOT_NEGATIVE,
        "500",
        "How long a broker waits for `fetch.min.bytes`, in milliseconds.",
    )
    maxPartitionFetchBytes = ConfigKey(
        "max.partition.fetch.bytes",
        POSITIVE,
        "1048576",
        "The bytes of a partition in a response; a larger first batch comes whole.",
    )
    queuedMaxBytes = ownKey(
        "queued.max.bytes",
        SIZE,
        "67108864",
        "The bytes of fetched batches that wait for the reader, asked for or there. Partitions "
        "beyond it are not asked for.",
    )
    checkCrcs = ConfigKey(
        "check.crcs", BOOLEAN, "true", "Whether the checksums of batches are compared."
    )
    allowAutoCreateTopics = ConfigKey(
        "allow.auto.create.topics",
        BOOLEAN,
        "true",
        "Whether a broker that creates topics by itself may create those that are read.",
    )
    defaultApiTimeoutMs = ConfigKey(
        "default.api.timeout.ms",
        POSITIVE,
        "60000",
        "How long a question about offsets or partitions may take, retries included, in "
        "milliseconds.",
    )
    consumerTimeoutMs = ownKey(
        "consumer.timeout.ms",
        Integer(-1),
        "-1",
        "How long a reader waits for a message, in milliseconds, before it gets a "
        "`ConsumerTimeoutError`; negative: for ever.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        super().complete(values, properties, warn)
        if values["heartbeatIntervalMs"] >= values["sessionTimeoutMs"]:
            raise ConfigurationError(
                f"heartbeat.interval.ms={values['heartbeatIntervalMs']} is not less than "
                f"session.timeout.ms={values['sessionTimeoutMs']}"
            )
        if not values["partitionAssignmentStrategy"]:
            raise ConfigurationError("partition.assignment.strategy names no assignor")
        if values["groupRemoteAssignor"] and values["groupProtocol"] != CONSUMER:
            raise ConfigurationError("group.remote.assignor needs group.protocol=consumer")
        if values["groupInstanceId"] and not values["groupId"]:
            raise ConfigurationError("group.instance.id needs group.id")
