"""
The settings of a schema registry. 0.7 has none. Keys of Confluent's registry keep their names and
meanings; all others are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogbroker.config.kafka.clientsettings import BootstrapServers
from pylogbroker.config.keys import Settings, ownKey
from pylogbroker.config.listenersettings import MECHANISMS, SCRAM_SHA_512, SecretValue
from pylogbroker.config.propertytypes import (
    BAR_SEPARATED_LIST,
    BOOLEAN,
    NOT_EMPTY,
    POSITIVE,
    TEXT,
    Enum,
    Integer,
    Warn,
)
from pylogbroker.config.securitysettings import BROKER_ENDPOINT, requireSaslPair
from pylogbroker.errors import ConfigurationError

CONFLUENT_SERVERS = "kafkastore.bootstrap.servers"


class RegistryServers(BootstrapServers):
    """
    As L{BootstrapServers}; a security protocol before a server, as Confluent's registry has it, is
    dropped when it needs no TLS.
    """

    range = "`host:port,host:port`; `PLAINTEXT://` and `SASL_PLAINTEXT://` may stand before each"

    def parse(self, text: str, warn: Warn) -> tuple[str, ...]:
        servers = []
        for part in text.split(","):
            protocol, separator, server = part.strip().rpartition("://")
            if separator and protocol.upper() not in ("PLAINTEXT", "SASL_PLAINTEXT"):
                raise ValueError(f"{part.strip()}: for TLS, set broker.endpoint")
            servers.append(server)
        return super().parse(",".join(servers), warn)


class RegistrySettings(Settings):
    """The settings of a schema registry; sizes are bytes."""

    broker = ownKey(
        "broker",
        NOT_EMPTY,
        None,
        "The broker of Kafka 0.7's protocol that holds the schemas topic: `host:port`, or a"
        " Twisted client endpoint string:"
        " `tls:HOST:PORT:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`. Either this key"
        " or `bootstrap.servers` is required.",
    )
    bootstrapServers = ownKey(
        "bootstrap.servers",
        RegistryServers(),
        None,
        "The brokers of today's Kafka to ask first, `host:port,host:port`. The schemas topic is"
        " then compacted, and in the format of Confluent's registry.",
    )
    kafkastoreBootstrapServers = ownKey(
        CONFLUENT_SERVERS,
        RegistryServers(),
        None,
        "The name that `bootstrap.servers` has in Confluent's registry.",
    )
    topic = ownKey(
        "topic",
        NOT_EMPTY,
        "_schemas",
        "The schemas topic; the registry uses its partition 0. With `broker`, the broker must keep"
        " it for ever; with `bootstrap.servers` it is created, compacted, unless there is one.",
    )
    kafkastoreTopicReplicationFactor = ownKey(
        "kafkastore.topic.replication.factor",
        Integer(1, 32_767),
        "3",
        "With `bootstrap.servers`, the replicas of a topic that is created; fewer when there are"
        " fewer brokers.",
    )
    clientId = ownKey(
        "client.id",
        NOT_EMPTY,
        "pylogbroker-registry",
        "With `bootstrap.servers`, the registry's name, for the broker's log and quotas.",
    )
    brokerEndpoint = BROKER_ENDPOINT
    saslMechanism = ownKey(
        "sasl.mechanism",
        Enum({word: word for word in MECHANISMS}),
        SCRAM_SHA_512,
        "With `sasl.username`, how to authenticate.",
    )
    saslUsername = ownKey(
        "sasl.username",
        TEXT,
        "",
        "With `bootstrap.servers`, the name by which the registry authenticates; empty: it does"
        " not.",
    )
    saslPassword = ownKey("sasl.password", SecretValue(), "", "The user's password.")
    schemaRegistryGroupId = ownKey(
        "schema.registry.group.id",
        NOT_EMPTY,
        "schema-registry",
        "With `bootstrap.servers`, the group of all registries on the topic, Confluent's included:"
        " it chooses the one that writes.",
    )
    leaderEligibility = ownKey(
        "leader.eligibility",
        BOOLEAN,
        "true",
        "Whether this registry may become the one that writes.",
    )
    hostName = ownKey(
        "host.name",
        TEXT,
        "",
        "The name under which the other registries reach this one, different for each. Empty: the"
        " address of `listen`.",
    )
    kafkagroupSessionTimeoutMs = ownKey(
        "kafkagroup.session.timeout.ms",
        Integer(3_000),
        "10000",
        "How long the coordinator waits for a heartbeat of a registry, in milliseconds. The one"
        " that writes stops after that time without an answer; changes take at most half of it.",
    )
    kafkagroupHeartbeatIntervalMs = ownKey(
        "kafkagroup.heartbeat.interval.ms",
        POSITIVE,
        "3000",
        "The time between two heartbeats, in milliseconds; at most a third of the session.",
    )
    kafkagroupRebalanceTimeoutMs = ownKey(
        "kafkagroup.rebalance.timeout.ms",
        POSITIVE,
        "300000",
        "How long an election waits for a registry that writes, in milliseconds; at least"
        " `timeout.ms` and the session together.",
    )
    listen = ownKey(
        "listen",
        NOT_EMPTY,
        "tcp:8081:interface=127.0.0.1",
        "The HTTP listener, as a Twisted endpoint string, with `tls:` as for brokers; on "
        "the loopback interface unless it names one.",
    )
    hosts = ownKey(
        "hosts",
        BAR_SEPARATED_LIST,
        "",
        "Host names that clients may use, with `|` between them, beside `localhost` and "
        "every IP address.",
    )
    timeoutMs = ownKey(
        "timeout.ms",
        POSITIVE,
        "10000",
        "The longest time in milliseconds until a change comes back from the topic, which "
        "includes the broker's flush.",
    )
    pollIntervalMs = ownKey(
        "poll.interval.ms",
        POSITIVE,
        "100",
        "The pause in milliseconds between reads of the topic when it brings nothing new.",
    )
    checkIntervalMs = ownKey(
        "check.interval.ms",
        POSITIVE,
        "60000",
        "The interval in milliseconds at which the registry checks that the topic still "
        "begins at the same offset.",
    )
    requestSizeMax = ownKey(
        "request.size.max",
        Integer(1, 1 << 26),
        "1048576",
        "The largest body of a request in bytes.",
    )
    requestsMax = ownKey(
        "requests.max",
        Integer(1, 100_000),
        "100",
        "The largest number of requests in progress; further ones get status 429.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        values["bootstrapServers"] = (
            values["bootstrapServers"] or values["kafkastoreBootstrapServers"]
        )
        if (values["broker"] is None) == (values["bootstrapServers"] is None):
            raise ConfigurationError(
                "either broker (Kafka 0.7's protocol) or bootstrap.servers (today's) is required,"
                " and not both"
            )
        requireSaslPair(values)
        if values["kafkagroupHeartbeatIntervalMs"] * 3 > values["kafkagroupSessionTimeoutMs"]:
            raise ConfigurationError(
                f"kafkagroup.heartbeat.interval.ms={values['kafkagroupHeartbeatIntervalMs']} is"
                " more than a third of kafkagroup.session.timeout.ms="
                f"{values['kafkagroupSessionTimeoutMs']}"
            )
        longestMs = values["timeoutMs"] + values["kafkagroupSessionTimeoutMs"]
        if values["bootstrapServers"] and values["kafkagroupRebalanceTimeoutMs"] < longestMs:
            raise ConfigurationError(
                "kafkagroup.rebalance.timeout.ms="
                f"{values['kafkagroupRebalanceTimeoutMs']} is less than timeout.ms and"
                f" kafkagroup.session.timeout.ms together ({longestMs}): an election would not wait"
                " for the end of a change"
            )

    def kafkaProperties(self) -> dict[str, str]:
        """The properties of a client of today's Kafka: how to reach the cluster."""
        return {
            "bootstrap.servers": ",".join(self.bootstrapServers),
            "client.id": self.clientId,
            "broker.endpoint": self.brokerEndpoint,
            "sasl.mechanism": self.saslMechanism,
            "sasl.username": self.saslUsername,
            "sasl.password": self.saslPassword,
        }
