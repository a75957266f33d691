"""
The options of the source and the sink for today's Kafka: those of Spark's own, by name, meaning and
default.

Spark's own hands every C{kafka.*} option on to Java's client. Here the known ones say where the
brokers are and how to reach them; the others tune Java's client, so they are logged and have no
effect. TLS reads PEM files, as Java's client does with C{ssl.truststore.type=PEM}. A property file
of this package's tools can hold the credentials instead: then they do not travel with a job.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Iterable, Mapping
from typing import Any

from pylogbroker.config.kafka.clientsettings import (
    CODECS,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BootstrapServers,
)
from pylogbroker.config.keys import ownKey
from pylogbroker.config.listenersettings import MECHANISMS, SCRAM_SHA_512, SecretValue
from pylogbroker.config.propertytypes import (
    INT_MAX,
    LONG_MAX,
    NOT_EMPTY,
    Boolean,
    Enum,
    Integer,
    Nullable,
    Text,
    Warn,
)
from pylogbroker.config.securitysettings import BROKER_ENDPOINT, ToolSettings
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.endpointstrings import SocketAddress, brokerEndpoint, endpoint
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from pylogbroker.spark.options import (
    BATCH_SIZE_MAX,
    FAIL_ON_DATA_LOSS,
    MIN_PARTITIONS,
    SUBSCRIBE,
    SUBSCRIBE_PATTERN,
    DataSourceOptions,
    Parsed,
    checkSelection,
    parseTopics,
)
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.types import TopicPartition

PREFIX = "kafka."
BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
STORE_TYPE = "PEM"
ERROR, LATEST_STRATEGY = "error", "latest"

REFUSED_OPTIONS = frozenset(
    {
        "kafka.auto.offset.reset",
        "kafka.enable.auto.commit",
        "kafka.interceptor.classes",
        "kafka.key.deserializer",
        "kafka.key.serializer",
        "kafka.value.deserializer",
        "kafka.value.serializer",
    }
)
"""Spark's own refuses them, too: they would change what is read and from where."""

GROUP_OPTIONS = frozenset({"groupidprefix", "kafka.group.id"})
"""Options of Spark's own, in lower case, that name a group. Nothing here joins one."""

KafkaOffsets = int | dict[TopicPartition, int]
"""L{EARLIEST}, L{LATEST}, or one of them or an offset for each partition."""

_DURATION = re.compile("([0-9]{1,15})([a-z]*)")
_DURATION_UNITS = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_JAAS = re.compile(r"\b(username|password)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")

log = logging.getLogger(__name__)


# -- offsets and partitions, as JSON


def _parseNumbers(text: str, least: int, what: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, values in parseTopics(text).items():
        if not isinstance(values, dict):
            raise ValueError(f"{topic} must have an object of {what} by partition")
        for name, value in values.items():
            if not re.fullmatch("[0-9]{1,9}", name):
                raise ValueError(f"{topic} has {name!r}, which is not a partition's number")
            if type(value) is not int or not least <= value <= LONG_MAX:
                raise ValueError(f"{topic} {name} has {value!r}, which is none of {what}")
            found[TopicPartition(topic, int(name))] = value
    return found


def parseKafkaOffsets(text: str) -> KafkaOffsets:
    """
    C{earliest}, C{latest}, or offsets by topic and partition, C{{"clicks": {"0": 23, "1": -2}}},
    where -1 is the latest and -2 the earliest.

    @raise ValueError: the text has another form.
    @raise InvalidNameError: a topic has an impossible name.
    """
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    return _parseNumbers(text, EARLIEST, "offsets")


def _parseTimestamps(text: str) -> dict[TopicPartition, int]:
    return _parseNumbers(text, 0, "timestamps")


def _parseStops(text: str) -> dict[TopicPartition, int]:
    return _parseNumbers(text, 0, "offsets")


def parseDurationMs(text: str) -> int:
    """
    A time as Spark writes it, such as C{15m}, in milliseconds. Without a unit it is milliseconds.

    @raise ValueError: the text has another form.
    """
    found = _DURATION.fullmatch(text.lower())
    scale = None if found is None else _DURATION_UNITS.get(found[2] or "ms")
    if found is None or scale is None:
        raise ValueError(
            f"{text!r} is not a time such as 15m; its unit is one of {', '.join(_DURATION_UNITS)}"
        )
    return int(int(found[1]) * scale)


def _parseAssignment(text: str) -> tuple[TopicPartition, ...]:
    found = set()
    for topic, numbers in parseTopics(text).items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError(f"{topic} must have a list of partitions")
        for number in numbers:
            if type(number) is not int or not 0 <= number <= INT_MAX:
                raise ValueError(f"{topic} has {number!r}, which is not a partition's number")
            found.add(TopicPartition(topic, number))
    return tuple(sorted(found))


# -- the options


def isKafka(given: Iterable[str]) -> bool:
    """
    Whether options choose topics of today's Kafka.

    @param given: their names, in any case.
    """
    return any(name.lower() == BOOTSTRAP_SERVERS for name in given)


class KafkaOptions(DataSourceOptions):
    """
    Where the brokers are and how to reach them. Workers get copies; each machine reads the PEM
    files itself.
    """

    kafkaBootstrapServers = ownKey(
        BOOTSTRAP_SERVERS, BootstrapServers(), None, "The brokers to ask first.", isRequired=True
    )
    kafkaClientId = ownKey("kafka.client.id", NOT_EMPTY, "pylogbroker", "The client's name.")
    kafkaRequestTimeoutMs = ownKey(
        "kafka.request.timeout.ms", Integer(1, INT_MAX), "30000", "For each response."
    )
    kafkaSecurityProtocol = ownKey(
        "kafka.security.protocol",
        Enum({word: word for word in PROTOCOLS}),
        "PLAINTEXT",
        "TLS, SASL, both or none.",
    )
    kafkaSaslMechanism = ownKey(
        "kafka.sasl.mechanism",
        Enum({word: word for word in MECHANISMS}),
        SCRAM_SHA_512,
        "For SASL.",
    )
    kafkaSaslJaasConfig = ownKey(
        "kafka.sasl.jaas.config", SecretValue(), "", "A login module with username and password."
    )
    kafkaSslTruststoreLocation = ownKey(
        "kafka.ssl.truststore.location", Text(), "", "A PEM file of authorities."
    )
    kafkaSslTruststoreType = ownKey(
        "kafka.ssl.truststore.type", Enum({STORE_TYPE: STORE_TYPE}), STORE_TYPE, "PEM."
    )
    kafkaSslKeystoreLocation = ownKey(
        "kafka.ssl.keystore.location", Text(), "", "A PEM file: the client's key and certificates."
    )
    kafkaSslKeystoreType = ownKey(
        "kafka.ssl.keystore.type", Enum({STORE_TYPE: STORE_TYPE}), STORE_TYPE, "PEM."
    )
    kafkaSslKeyPassword = ownKey("kafka.ssl.key.password", SecretValue(), "", "Of that key.")
    config = ownKey("config", Text(), "", "Or a property file with credentials.")
    brokerEndpoint = ownKey("brokerEndpoint", Text(), "", "The key `broker.endpoint`.")

    @classmethod
    def isIgnored(cls, name: str) -> bool:
        """See L{DataSourceOptions.isIgnored}."""
        if name in REFUSED_OPTIONS:
            raise ConfigurationError(f"the option {name} cannot be set: the data source decides it")
        if name in GROUP_OPTIONS:
            log.warning("The option %s has no effect: partitions are read without a group", name)
            return True
        if name.startswith(PREFIX):
            log.warning("The option %s tunes Java's client and has no effect", name)
            return True
        return super().isIgnored(name)

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        """See L{Settings.complete}."""
        isSasl = values["kafkaSecurityProtocol"].startswith("SASL")
        found = dict(_JAAS.findall(values["kafkaSaslJaasConfig"]))
        if isSasl and set(found) != {"username", "password"}:
            raise ConfigurationError(
                f"kafka.security.protocol={values['kafkaSecurityProtocol']} needs"
                ' kafka.sasl.jaas.config with username="…" and password="…"'
            )

    @property
    def name(self) -> str:
        """The cluster, for error messages."""
        return f"the cluster of {', '.join(self.kafkaBootstrapServers)}"

    def access(self) -> ToolSettings:
        """See L{DataSourceOptions.access}."""
        changes = [f"{BROKER_ENDPOINT.key}={self.brokerEndpoint}"] if self.brokerEndpoint else []
        return ToolSettings.read(self.config or None, changes)

    def cluster(self) -> KafkaCluster:
        """
        A client, which connects at its first request. The caller closes it.

        @raise ConfigurationError: a file cannot be read on this machine.
        """
        access = self.access()
        tls = self._tls() if self.kafkaSecurityProtocol.endswith("SSL") else None
        addresses = [
            endpoint(brokerEndpoint(access.brokerEndpoint, each))
            for each in self.kafkaBootstrapServers
        ]
        return KafkaCluster(
            [SocketAddress(each.host, each.port, tls or each.tls) for each in addresses],
            self.kafkaClientId,
            self.kafkaRequestTimeoutMs,
            login=self._login(access),
        )

    def _login(self, access: ToolSettings) -> SaslLogin | None:
        if not self.kafkaSecurityProtocol.startswith("SASL"):
            if not access.saslUsername:
                return None
            return SaslLogin(access.saslMechanism, access.saslUsername, access.saslPassword)
        found = dict(_JAAS.findall(self.kafkaSaslJaasConfig))
        name, password = (re.sub(r"\\(.)", r"\1", found[key]) for key in ("username", "password"))
        return SaslLogin(self.kafkaSaslMechanism, name, password)

    def _tls(self) -> ssl.SSLContext:
        file = self.kafkaSslTruststoreLocation
        try:
            context = ssl.create_default_context(cafile=file or None)
            file = self.kafkaSslKeystoreLocation
            if file:
                context.load_cert_chain(file, password=self.kafkaSslKeyPassword or None)
        except OSError as error:
            raise ConfigurationError(
                f"{file} is not a PEM file that can be used: {error}"
            ) from error
        return context


class KafkaSinkOptions(KafkaOptions):
    """How to write."""

    topic = ownKey("topic", Text(), "", "The topic of all rows; else the column `topic` names it.")
    kafkaCompressionType = ownKey(
        "kafka.compression.type", Enum(CODECS), "none", "The codec of batches."
    )
    kafkaBatchSize = ownKey(
        "kafka.batch.size", Integer(1, BATCH_SIZE_MAX), "200000", "Bytes of records sent together."
    )
    timestampColumn = ownKey(
        "timestampColumn",
        Text(),
        "",
        "The column with the timestamp of each record; a null, and no column: when it is sent.",
    )


class KafkaSourceOptions(KafkaOptions):
    """
    What to read. One of C{subscribe}, C{subscribePattern} and C{assign} is given.

    @ivar maxTriggerDelay: milliseconds.
    """

    subscribe = SUBSCRIBE
    subscribePattern = SUBSCRIBE_PATTERN
    assign = ownKey(
        "assign", Nullable(Parsed(_parseAssignment)), "", "Or partitions by topic, as JSON."
    )
    startingOffsets = ownKey(
        "startingOffsets", Nullable(Parsed(parseKafkaOffsets)), "", "A word, or offsets as JSON."
    )
    endingOffsets = ownKey(
        "endingOffsets", Parsed(parseKafkaOffsets), "latest", "A word, or offsets as JSON."
    )
    stopOffsets = ownKey(
        "stopOffsets",
        Nullable(Parsed(_parseStops)),
        "",
        "Offsets as JSON: a stream reads no further in the topics that are named here.",
    )
    startingTimestamp = ownKey(
        "startingTimestamp", Nullable(Integer(0, LONG_MAX)), "", "Milliseconds since 1970."
    )
    endingTimestamp = ownKey(
        "endingTimestamp", Nullable(Integer(0, LONG_MAX)), "", "Milliseconds since 1970."
    )
    startingOffsetsByTimestamp = ownKey(
        "startingOffsetsByTimestamp", Nullable(Parsed(_parseTimestamps)), "", "Times as JSON."
    )
    endingOffsetsByTimestamp = ownKey(
        "endingOffsetsByTimestamp", Nullable(Parsed(_parseTimestamps)), "", "Times as JSON."
    )
    startingOffsetsByTimestampStrategy = ownKey(
        "startingOffsetsByTimestampStrategy",
        Enum({word: word for word in (ERROR, LATEST_STRATEGY)}),
        ERROR,
        "What a start behind the last record's time is.",
    )
    failOnDataLoss = FAIL_ON_DATA_LOSS
    minPartitions = MIN_PARTITIONS
    maxRecordsPerPartition = ownKey(
        "maxRecordsPerPartition", Nullable(Integer(1, LONG_MAX)), "", "The most offsets of a task."
    )
    maxOffsetsPerTrigger = ownKey(
        "maxOffsetsPerTrigger", Nullable(Integer(1, LONG_MAX)), "", "Offsets of a micro-batch."
    )
    minOffsetsPerTrigger = ownKey(
        "minOffsetsPerTrigger",
        Nullable(Integer(1, LONG_MAX)),
        "",
        "Offsets that a micro-batch waits for.",
    )
    maxTriggerDelay = ownKey(
        "maxTriggerDelay", Parsed(parseDurationMs), "15m", "How long it waits for them at most."
    )
    fetchOffsetNumRetries = ownKey(
        "fetchOffset.numRetries", Integer(0, 1_000), "3", "Repeated attempts to plan."
    )
    fetchOffsetRetryIntervalMs = ownKey(
        "fetchOffset.retryIntervalMs", Integer(0, INT_MAX), "1000", "Milliseconds between them."
    )
    kafkaConsumerPollTimeoutMs = ownKey(
        "kafkaConsumer.pollTimeoutMs",
        Integer(1, INT_MAX),
        "120000",
        "How long a task waits for records.",
    )
    includeHeaders = ownKey("includeHeaders", Boolean(), "false", "Whether there is `headers`.")
    kafkaIsolationLevel = ownKey(
        "kafka.isolation.level",
        Enum({word: word for word in (READ_UNCOMMITTED, READ_COMMITTED)}),
        READ_UNCOMMITTED,
        "Whether records of open and aborted transactions are left out.",
    )
    kafkaMaxPartitionFetchBytes = ownKey(
        "kafka.max.partition.fetch.bytes", Integer(1, 32 << 20), str(4 << 20), "Bytes of a fetch."
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        """See L{Settings.complete}."""
        super().complete(values, properties, warn)
        checkSelection(values, properties)
        least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
        if least is not None and most is not None and least > most:
            raise ConfigurationError(
                f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}"
            )

    @property
    def isCommitted(self) -> bool:
        """Whether only what is committed is read."""
        return self.kafkaIsolationLevel == READ_COMMITTED
