"""
The settings of audited producers and of auditors. 0.7 has no audit, so all keys are ours.

A producer's keys begin with C{audit.} and may stand in its own property file, beside Kafka's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pylogbroker.config.kafka.clientsettings import BootstrapServers, KafkaClientSettings
from pylogbroker.config.keys import Settings, ownKey
from pylogbroker.config.listenersettings import SecretValue
from pylogbroker.config.propertytypes import (
    BAR_SEPARATED_LIST,
    BOOLEAN,
    LONG_MAX,
    NOT_EMPTY,
    NULLABLE_TEXT,
    POSITIVE,
    TEXT,
    Integer,
    PropertyType,
    Warn,
    ZookeeperServers,
    isServer,
)
from pylogbroker.config.securitysettings import BROKER_ENDPOINT, ZK_DIGEST
from pylogbroker.errors import ConfigurationError

AUDIT_TOPIC = "pylogbroker-audit"
PREFIX = "audit."
_BOOTSTRAP = "bootstrap.servers"
_WEEK_MS = 7 * 24 * 3_600_000
_WINDOW = Integer(1, _WEEK_MS)
_MS = Integer(0, LONG_MAX)
_TIER = re.compile(
    r"(?P<name>[^\s=|]+)=(?:table:(?P<folder>\S*)|broker:(?P<brokers>\S*)"
    r"|kafka:(?!\d+(?:[,/@]|$))(?P<bootstrap>\S*)"  # C{kafka:2181} is a host of ZooKeeper's
    r"|(?P<servers>\S+?)(?:@(?P<expected>\d{1,9}(?:,\d{1,9})*))?)"
)

AUDIT_TOPIC_KEY = ownKey("audit.topic", NOT_EMPTY, AUDIT_TOPIC, "The topic of the counts.")


class AuditedSettings(Settings):
    """The settings of an audited producer."""

    auditTopic = AUDIT_TOPIC_KEY
    auditWindowMs = ownKey(
        "audit.window.ms",
        _WINDOW,
        "60000",
        "The length of the counting windows in milliseconds; an auditor's must be a "
        "multiple of it.",
    )
    auditIntervalMs = ownKey(
        "audit.interval.ms",
        POSITIVE,
        "10000",
        "The interval in milliseconds at which changed counts are published; unpublished "
        "counts are lost with the process.",
    )
    auditTier = ownKey(
        "audit.tier", NOT_EMPTY, "live", "The name of the tier that the producer publishes to."
    )
    auditHost = ownKey(
        "audit.host",
        NULLABLE_TEXT,
        "",
        "The host name in envelopes and reports.",
        derived="the machine's",
    )
    auditEnvelope = ownKey(
        "audit.envelope",
        BOOLEAN,
        "true",
        "Wrap payloads in envelopes with time and host. Without envelopes, auditors need `timeof`.",
    )


class TierAddress(NamedTuple):
    """
    One cluster, or a table.

    @ivar zookeeperServers: C{""} for one without.
    @ivar brokers: C{host:port} of each, without ZooKeeper.
    @ivar table: a folder; C{""} for a cluster.
    @ivar expected: the numbers of the brokers that must be there, with ZooKeeper; empty: those of
        which anything is known.
    @ivar bootstrapServers: C{host:port} of each broker to ask first, for a cluster of today's
        Kafka; empty for another.
    """

    name: str
    zookeeperServers: str
    brokers: tuple[str, ...]
    table: str = ""
    expected: frozenset[int] = frozenset()
    bootstrapServers: tuple[str, ...] = ()


def parseTier(text: str) -> TierAddress:
    """
    @raise ConfigurationError: it is none of C{NAME=SERVERS}, C{NAME=SERVERS@NUMBER,…},
        C{NAME=broker:HOST:PORT,…}, C{NAME=kafka:HOST:PORT,…} and C{NAME=table:FOLDER}.
    """
    found = _TIER.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"{text!r} is not NAME=ZOOKEEPER-SERVERS, NAME=broker:HOST:PORT, NAME=kafka:HOST:PORT,"
            " nor NAME=table:FOLDER"
        )
    name, folder, brokers, bootstrap, servers, expected = found.groups()
    if servers:
        try:
            ZookeeperServers().parse(servers, lambda _sentence: None)
        except ValueError as error:
            raise ConfigurationError(f"{text!r}: {error}") from error
        numbers = frozenset(map(int, expected.split(","))) if expected else frozenset[int]()
        return TierAddress(name, servers, (), expected=numbers)
    if bootstrap is not None:
        try:
            asked = BootstrapServers().parse(bootstrap, lambda _sentence: None)
        except ValueError as error:
            raise ConfigurationError(f"{text!r}: {error}") from error
        return TierAddress(name, "", (), bootstrapServers=asked)
    if folder is not None:
        if not folder:
            raise ConfigurationError(f"{text!r} names no folder")
        return TierAddress(name, "", (), folder)
    addresses = tuple(filter(None, brokers.split(",")))
    if not addresses:
        raise ConfigurationError(f"{text!r} names no broker")
    for broker in addresses:
        # An endpoint string has two colons at least.
        if not isServer(broker) and ("[" in broker or broker.count(":") < 2):
            raise ConfigurationError(f"{text!r}: {broker!r} is not HOST:PORT")
    return TierAddress(name, "", addresses)


class TierList(PropertyType[tuple[TierAddress, ...]]):
    """Tiers with C{|} between them (L{parseTier})."""

    name = "list"
    range = "separated by `|`"

    def parse(self, text: str, warn: Warn) -> tuple[TierAddress, ...]:
        try:
            return tuple(map(parseTier, BAR_SEPARATED_LIST.parse(text, warn)))
        except ConfigurationError as error:
            raise ValueError(str(error)) from error


class AuditorSettings(Settings):
    """The settings of an auditor."""

    tiers = ownKey(
        "tiers",
        TierList(),
        None,
        "The tiers to count, with `|` between them: `NAME=SERVERS` for a cluster in "
        "ZooKeeper, `NAME=SERVERS@0,1,2` to name the brokers that must be there, "
        "`NAME=broker:HOST:PORT,HOST:PORT` for brokers of 2011 without ZooKeeper, "
        "`NAME=kafka:HOST:PORT,HOST:PORT` for a cluster of today's Kafka, or "
        "`NAME=table:FOLDER` for a table filled by `pylogbroker load`. The first tier is "
        "the reference for topics without producer reports.",
        isRequired=True,
    )
    tier = ownKey(
        "tier.",
        SecretValue(),
        None,
        "Before the name of a tier of today's Kafka, a dot and a key that all its clients have "
        "(`sasl.username`, `broker.endpoint`, `request.timeout.ms`, …): its value for this tier.",
        derived="none",
        isPrefix=True,
    )
    auditTopic = AUDIT_TOPIC_KEY
    topics = ownKey(
        "topics",
        BAR_SEPARATED_LIST,
        "",
        "The topics to audit, with `|` between them. Empty: all topics that producers have "
        "reported.",
    )
    auditWindowMs = ownKey(
        "audit.window.ms",
        _WINDOW,
        "60000",
        "The length of the compared windows in milliseconds; a multiple of the producers'.",
    )
    graceMs = ownKey(
        "grace.ms",
        _MS,
        "120000",
        "The time in milliseconds after the end of a window during which absent messages "
        "count as in transit, not as missing.",
    )
    horizonMs = ownKey(
        "horizon.ms",
        POSITIVE,
        "86400000",
        "The age in milliseconds above which the auditor forgets a window.",
    )
    intervalMs = ownKey(
        "interval.ms",
        POSITIVE,
        "60000",
        "The interval in milliseconds at which the service reads and compares.",
    )
    timeOf = ownKey(
        "timeof",
        NULLABLE_TEXT,
        "",
        "A dotted name of a function that takes a payload without an envelope and returns "
        "its time, in milliseconds since the epoch, or `None`.",
        derived="none: such messages are judged by their total",
    )
    listen = ownKey(
        "listen",
        TEXT,
        "tcp:9464:interface=127.0.0.1",
        "The HTTP listener of the service, as a Twisted endpoint string: `/metrics`, "
        "`/audit.json`, `/audit.txt`. Empty: none.",
    )
    hosts = ownKey(
        "hosts",
        BAR_SEPARATED_LIST,
        "",
        "Host names that clients may use for `listen`, with `|` between them, beside "
        "`localhost` and every IP address.",
    )
    fetchSize = ownKey(
        "fetch.size", Integer(1, 1 << 26), "1048576", "The bytes to fetch in one request."
    )
    fetchSizeMax = ownKey(
        "fetch.size.max",
        Integer(1, 1 << 26),
        "67108864",
        "The limit to which the fetch size doubles for a larger message.",
    )
    zkDigest = ZK_DIGEST
    brokerEndpoint = BROKER_ENDPOINT
    timeoutMs = ownKey(
        "timeout.ms",
        POSITIVE,
        "30000",
        "The longest time for connecting, and for each answer of a broker or of ZooKeeper, "
        "in milliseconds.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        names = [tier.name for tier in values["tiers"]]
        if not names:
            raise ConfigurationError("tiers is empty: an auditor needs at least one tier to count")
        if len(set(names)) < len(names):
            raise ConfigurationError(f"tiers={properties['tiers']}: two have the same name")
        values["fetchSizeMax"] = max(values["fetchSize"], values["fetchSizeMax"])
        settings = cls(values)
        for key in values["tier"]:
            if not settings._tierOf(key):
                raise ConfigurationError(
                    f"tier.{key}: there is no tier NAME=kafka:HOST:PORT of this name"
                )
        for tier in values["tiers"]:
            if tier.bootstrapServers:
                settings.clientSettings(tier, warn)

    def _tierOf(self, key: str) -> str:
        """The tier of today's Kafka to which a key behind C{tier.} belongs; C{""}: none."""
        names = [
            tier.name
            for tier in self.tiers
            if tier.bootstrapServers and key.startswith(f"{tier.name}.")
        ]
        return max(names, key=len, default="")

    def clientSettings(
        self, address: TierAddress, warn: Warn = lambda _sentence: None
    ) -> KafkaClientSettings:
        """
        How to reach a tier of today's Kafka: by the tier's own keys, else by the auditor's.

        @param warn: as of L{Settings.fromProperties}.
        @raise ConfigurationError: a value is wrong; the text names the tier.
        """
        prefix = f"{address.name}."
        own = {
            key.removeprefix(prefix): text
            for key, text in self.tier.items()  # type: ignore[attr-defined]
            if self._tierOf(key) == address.name
        }
        if _BOOTSTRAP in own:
            raise ConfigurationError(f"tier.{prefix}{_BOOTSTRAP}: the tier's address says it")
        try:
            return KafkaClientSettings.fromProperties(
                {
                    "client.id": "pylogbroker-auditor",
                    "broker.endpoint": self.brokerEndpoint,
                    "request.timeout.ms": str(self.timeoutMs),
                    "socket.connection.setup.timeout.ms": str(self.timeoutMs),
                    **own,
                    _BOOTSTRAP: ",".join(address.bootstrapServers),
                },
                lambda sentence: warn(f"tier.{prefix}{sentence}"),
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"tier.{prefix}{error}") from error
