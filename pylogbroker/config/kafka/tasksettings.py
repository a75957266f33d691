"""
The settings of containers of tasks. A module of its own, since only they read them.

Keys that Kafka Streams has keep name, meaning, unit and default, except C{state.dir}, whose default
is a folder of the present directory: a folder in C{/tmp} does not outlive a restart of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pylogbroker.config.kafka.clientsettings import (
    EARLIEST,
    READ_COMMITTED,
    KafkaAdminSettings,
    KafkaClientSettings,
    KafkaConsumerSettings,
    KafkaProducerSettings,
)
from pylogbroker.config.keys import ConfigKey, ownKey
from pylogbroker.config.propertytypes import (
    NOT_EMPTY,
    NOT_NEGATIVE,
    NULLABLE_TEXT,
    POSITIVE,
    TEXT,
    Enum,
    Integer,
    Warn,
)
from pylogbroker.errors import ConfigurationError

CONFIG_TOPIC, METRICS_TOPIC = "pylogbroker-task-configs", "pylogbroker-task-metrics"
AT_LEAST_ONCE, EXACTLY_ONCE = "at_least_once", "exactly_once_v2"
_COMMIT_MS = {AT_LEAST_ONCE: 30_000, EXACTLY_ONCE: 100}
_SERVERS, _RESET, _ISOLATION = "bootstrap.servers", "auto.offset.reset", "isolation.level"
_FIXED = {
    "consumer": ("group.id", "enable.auto.commit", "partition.assignment.strategy"),
    "producer": ("transactional.id", "enable.idempotence", "acks"),
}


class KafkaTaskSettings(KafkaClientSettings):
    """
    The settings of a L{pylogbroker.tasks.container.TaskContainer}. Times are milliseconds.
    """

    stateDir = ConfigKey(
        "state.dir",
        NOT_EMPTY,
        "task-state",
        "The folder of stores; each job has a folder in it. Containers of one job on one machine "
        "share it.",
    )
    processingGuarantee = ConfigKey(
        "processing.guarantee",
        Enum({AT_LEAST_ONCE: AT_LEAST_ONCE, EXACTLY_ONCE: EXACTLY_ONCE}),
        AT_LEAST_ONCE,
        "`at_least_once`: after a failure messages are handled again. `exactly_once_v2`: outputs, "
        "changes of stores and positions are one transaction.",
    )
    commitIntervalMs = ConfigKey(
        "commit.interval.ms",
        NOT_NEGATIVE,
        None,
        "How often outputs, stores and positions are committed, in milliseconds; 0: behind each "
        "batch of messages. With `exactly_once_v2` it is at most half of "
        "`producer.transaction.timeout.ms`.",
        derived="30000; with `exactly_once_v2` 100",
    )
    statestoreCacheMaxBytes = ConfigKey(
        "statestore.cache.max.bytes",
        POSITIVE,
        str(10 << 20),
        "Bytes that the tasks of a container may write to stores, and send, before they are "
        "committed; and again of what is kept to be read again.",
    )
    numStandbyReplicas = ConfigKey(
        "num.standby.replicas",
        NOT_NEGATIVE,
        "0",
        "Stand-by copies of each task's stores, in containers with other folders of stores. With "
        "them a task moves only to a container that has its state. All containers of a job have "
        "the same number.",
    )
    acceptableRecoveryLag = ConfigKey(
        "acceptable.recovery.lag",
        NOT_NEGATIVE,
        "10000",
        "Changes that a stand-by copy may lack at most when it counts as up to date.",
    )
    maxPollRecords = ConfigKey(
        "max.poll.records", POSITIVE, "500", "Messages that are taken from the consumer at a time."
    )
    maxTaskIdleMs = ConfigKey(
        "max.task.idle.ms",
        Integer(-1, 2**31 - 1),
        "0",
        "How long a task with several inputs waits, in milliseconds, when one of them has nothing "
        "more at the brokers, and another has: so much later a producer may be without a change "
        "of the order by timestamps. 0: only what brokers have already is waited for. -1: "
        "nothing is.",
    )
    bufferedRecordsPerPartition = ConfigKey(
        "buffered.records.per.partition",
        POSITIVE,
        "1000",
        "Messages of a partition that a task with several inputs keeps until their turn; a "
        "partition with more is not read on.",
    )
    inputBufferMaxBytes = ConfigKey(
        "input.buffer.max.bytes",
        POSITIVE,
        str(512 << 20),
        "Bytes of messages that the tasks of a container keep until their turn, about; each task "
        "may have its share. One that has more reads on only what it has nothing of.",
    )
    repartitionPurgeIntervalMs = ConfigKey(
        "repartition.purge.interval.ms",
        POSITIVE,
        "30000",
        "How often what was handled is deleted from repartition topics, in milliseconds.",
    )
    replicationFactor = ConfigKey(
        "replication.factor",
        Integer(-1, 32767),
        "-1",
        "Replicas of topics that a job creates; -1: the brokers' default.",
    )
    configTopic = ownKey(
        "config.topic",
        NULLABLE_TEXT,
        CONFIG_TOPIC,
        "The topic of the configurations of jobs. Empty: none is published.",
    )
    metricsTopic = ownKey(
        "metrics.topic",
        NULLABLE_TEXT,
        METRICS_TOPIC,
        "The topic of the metrics of containers. Empty: none are published.",
    )
    metricsIntervalMs = ownKey(
        "metrics.interval.ms",
        POSITIVE,
        "10000",
        "How often a container publishes its metrics, in milliseconds.",
    )
    consumer = ownKey(
        "consumer.",
        TEXT,
        None,
        "Before a key of a consumer: its value for the job's consumer.",
        derived="none",
        isPrefix=True,
    )
    producer = ownKey(
        "producer.",
        TEXT,
        None,
        "Before a key of a producer: its value for the job's producer.",
        derived="none",
        isPrefix=True,
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        super().complete(values, properties, warn)
        if values["commitIntervalMs"] is None:
            values["commitIntervalMs"] = _COMMIT_MS[values["processingGuarantee"]]
        for name, fixed in _FIXED.items():
            for key in fixed:
                if key in values[name]:
                    raise ConfigurationError(f"{name}.{key}: a container sets this by itself")
            for shared in KafkaClientSettings.keys:
                if shared.key in values[name]:
                    raise ConfigurationError(
                        f"{name}.{shared.key}: all clients of a container have {shared.key}"
                    )
        isolation = values["consumer"].get(_ISOLATION, READ_COMMITTED)
        if values["processingGuarantee"] == EXACTLY_ONCE and isolation != READ_COMMITTED:
            raise ConfigurationError(
                f"consumer.{_ISOLATION}={isolation}: with {EXACTLY_ONCE} it is {READ_COMMITTED}"
            )

    @property
    def isExactlyOnce(self) -> bool:
        return bool(self.processingGuarantee == EXACTLY_ONCE)

    def _forAllClients(self) -> dict[str, Any]:
        return {key.name: getattr(self, key.name) for key in KafkaClientSettings.keys}

    def forConsumer(self, groupId: str | None, warn: Warn) -> KafkaConsumerSettings:
        """
        The settings of a consumer that commits nothing by itself.

        @param groupId: L{None}: it is no member of a group.
        @raise ConfigurationError: a property is wrong.
        """
        given: dict[str, str] = {
            _RESET: EARLIEST,
            _ISOLATION: READ_COMMITTED,
            **cast("Mapping[str, str]", self.consumer),
            _SERVERS: "localhost:9092",
            "enable.auto.commit": "false",
        }
        if groupId is None:  # it reads changelogs: all of them, and what was committed
            given |= {_RESET: EARLIEST, _ISOLATION: READ_COMMITTED}
        else:
            given["group.id"] = groupId
        return KafkaConsumerSettings.fromProperties(given, warn).replace(**self._forAllClients())

    def forProducer(self, transactionalId: str | None, warn: Warn) -> KafkaProducerSettings:
        """
        The settings of an idempotent producer.

        @raise ConfigurationError: a property is wrong.
        """
        given: dict[str, str] = {
            "linger.ms": "5",
            **cast("Mapping[str, str]", self.producer),
            _SERVERS: "localhost:9092",
            # Others are checked against it.
            "request.timeout.ms": str(self.requestTimeoutMs),
        }
        if transactionalId is not None:
            given.setdefault("transaction.timeout.ms", "10000")  # as Kafka Streams
            given["transactional.id"] = transactionalId
        return KafkaProducerSettings.fromProperties(given, warn).replace(**self._forAllClients())

    def forAdmin(self, warn: Warn) -> KafkaAdminSettings:
        """The settings of an admin client."""
        given = {_SERVERS: "localhost:9092"}
        return KafkaAdminSettings.fromProperties(given, warn).replace(**self._forAllClients())
