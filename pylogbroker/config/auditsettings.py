"""
What audited producers and auditors can be told. All of it is ours; 0.7 has no audit.

A producer's keys begin with C{audit.} and may stand in its own property file, beside Kafka's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

from pylogbroker.config.keys import ConfigKey, readSettings
from pylogbroker.config.propertytypes import (
    LONG_MAX,
    Boolean,
    EndpointTemplate,
    Integer,
    SecretText,
    Text,
    TextList,
    ZookeeperServers,
    isServer,
)
from pylogbroker.errors import ConfigurationError

AUDIT_TOPIC = "pylogbroker-audit"
PREFIX = "audit."
BROKER_PREFIX = "broker:"
TABLE_PREFIX = "table:"
_WEEK_MS = 7 * 24 * 3_600_000
_WINDOW = Integer(1, _WEEK_MS)
_POSITIVE = Integer(1)
_MS = Integer(0, LONG_MAX)
_TIER = re.compile(r"([^\s=|]+)=(\S+)")
_EXPECTED = re.compile(r"(.*)@(\d{1,9}(?:,\d{1,9})*)", re.DOTALL)
_ours = partial(ConfigKey, isKafkaKey=False)

_TOPIC_ROW = _ours(
    "audit.topic", "auditTopic", Text(empty=False), AUDIT_TOPIC, "The topic of the counts."
)

AUDITED_ROWS: tuple[ConfigKey, ...] = (
    _TOPIC_ROW,
    _ours(
        "audit.window.ms",
        "windowMs",
        _WINDOW,
        "60000",
        "How long the windows are that messages are counted in; an auditor's must be a multiple of it.",
    ),
    _ours(
        "audit.interval.ms",
        "reportIntervalMs",
        _POSITIVE,
        "10000",
        "How often counts that have changed are published; what was not is lost with the process.",
    ),
    _ours(
        "audit.tier",
        "tier",
        Text(empty=False),
        "live",
        "The name of the place that is published to.",
    ),
    _ours(
        "audit.host",
        "hostName",
        Text(),
        None,
        "The host's name in envelopes and reports.",
        derived="the machine's",
    ),
    _ours(
        "audit.envelope",
        "hasEnvelope",
        Boolean(),
        "true",
        "Whether payloads are put into envelopes, with time and host. Without, auditors need `timeOf`.",
    ),
)
"""All keys that begin with C{audit.} in a producer's properties."""

AUDITOR_ROWS: tuple[ConfigKey, ...] = (
    _ours(
        "tiers",
        "tiers",
        TextList(),
        None,
        "What is counted, with `|` between: `NAME=SERVERS` with ZooKeeper's servers, `NAME=SERVERS@0,1,2` if it is to be said which brokers there must "
        "be, or `NAME=broker:HOST:PORT,HOST:PORT` for brokers without it, or "
        "`NAME=table:FOLDER` for a table that `pylogbroker load` fills. The first is the measure where no producer has said what it sent.",
        required=True,
    ),
    _TOPIC_ROW,
    _ours(
        "topics",
        "topics",
        TextList(),
        "",
        "Audit only these topics, with `|` between. None: all that producers have reported.",
    ),
    _ours(
        "audit.window.ms",
        "windowMs",
        _WINDOW,
        "60000",
        "How long the windows are that are compared; a multiple of those of the producers.",
    ),
    _ours(
        "grace.ms",
        "graceMs",
        _MS,
        "120000",
        "How long after its end a window may still be on its way, before what is not there is missing.",
    ),
    _ours(
        "horizon.ms",
        "horizonMs",
        _POSITIVE,
        "86400000",
        "How far back the audit goes; windows that are older are forgotten.",
    ),
    _ours(
        "interval.ms",
        "passIntervalMs",
        _POSITIVE,
        "60000",
        "How often the service reads on and compares.",
    ),
    _ours(
        "timeof",
        "timeOf",
        Text(),
        None,
        "A dotted name of a function that is given a payload without an envelope and returns its time, in milliseconds since the epoch, or `None`.",
        derived="none: such messages are judged by their total",
    ),
    _ours(
        "listen",
        "listen",
        Text(),
        "tcp:9464:interface=127.0.0.1",
        "Where the service answers HTTP, as a Twisted endpoint string: `/metrics`, `/audit.json`, `/audit.txt`. Empty: nowhere.",
    ),
    _ours(
        "hosts",
        "hosts",
        TextList(),
        "",
        "Names by which `listen` may be asked, with `|` between, beside `localhost` and every bare address.",
    ),
    _ours("fetch.size", "fetchSize", Integer(1, 1 << 26), "1048576", "Bytes to fetch at a time."),
    _ours(
        "fetch.size.max",
        "fetchSizeMax",
        Integer(1, 1 << 26),
        "67108864",
        "What that may grow to, by doubling, for a message that is larger.",
    ),
    _ours(
        "zk.digest",
        "zookeeperDigest",
        SecretText(),
        "",
        "Name and password for the ZooKeepers of all tiers, `user:password`, for its scheme *digest*.",
    ),
    _ours(
        "broker.endpoint",
        "brokerEndpoint",
        EndpointTemplate(),
        "",
        "How to reach a broker of any tier, as a Twisted client endpoint string: `tls:{host}:{port}:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`. "
        "None: plain TCP.",
    ),
    _ours(
        "timeout.ms",
        "timeoutMs",
        _POSITIVE,
        "30000",
        "How long connecting, and each answer of a broker or of ZooKeeper, may take.",
    ),
)
"""All keys that an auditor's property file can have."""


class TierAddress(NamedTuple):
    """
    One cluster, or a table.

    @ivar zookeeperServers: C{""} for one without.
    @ivar brokers: C{host:port} of each, without ZooKeeper.
    @ivar table: a folder; C{""} for a cluster.
    @ivar expected: the numbers of the brokers that must be there, with ZooKeeper; empty: those of which anything is known.
    """

    name: str
    zookeeperServers: str
    brokers: tuple[str, ...]
    table: str = ""
    expected: frozenset[int] = frozenset()


def parseTier(text: str) -> TierAddress:
    """
    @raise ConfigurationError: it is none of C{NAME=SERVERS}, C{NAME=SERVERS@NUMBER,…}, C{NAME=broker:HOST:PORT,…} and C{NAME=table:FOLDER}.
    """
    found = _TIER.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(
            f"{text!r} is not NAME=ZOOKEEPER-SERVERS, NAME={BROKER_PREFIX}HOST:PORT, nor NAME={TABLE_PREFIX}FOLDER"
        )
    name, where = found.groups()
    if where.startswith(TABLE_PREFIX):
        folder = where.removeprefix(TABLE_PREFIX)
        if not folder:
            raise ConfigurationError(f"{text!r} names no folder")
        return TierAddress(name, "", (), folder)
    if not where.startswith(BROKER_PREFIX):
        named = _EXPECTED.fullmatch(where)
        servers, numbers = named.groups() if named else (where, "")
        expected = frozenset(int(number) for number in numbers.split(",") if number)
        try:
            return TierAddress(
                name,
                ZookeeperServers().parse(servers, lambda _sentence: None),
                (),
                expected=expected,
            )
        except ValueError as error:
            raise ConfigurationError(f"{text!r}: {error}") from error
    brokers = tuple(broker for broker in where.removeprefix(BROKER_PREFIX).split(",") if broker)
    if not brokers:
        raise ConfigurationError(f"{text!r} names no broker")
    for broker in brokers:
        if not isServer(broker) and (
            "[" in broker or broker.count(":") < 2
        ):  # which could not be an endpoint string, either
            raise ConfigurationError(f"{text!r}: {broker!r} is not HOST:PORT")
    return TierAddress(name, "", brokers)


@dataclass(frozen=True, slots=True)
class AuditedSettings:
    """A producer's part. Each is explained by its row in L{AUDITED_ROWS}; C{hostName} is L{None} when it was not given."""

    auditTopic: str
    windowMs: int
    reportIntervalMs: int
    tier: str
    hostName: str | None
    hasEnvelope: bool

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None]
    ) -> AuditedSettings:
        """
        @raise ConfigurationError: names every key that is wrong, its value and what would be right, a line each.
        """
        values = cast("dict[str, Any]", readSettings(AUDITED_ROWS, properties, warn))
        values["hostName"] = values["hostName"] or None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class AuditorSettings:
    """An auditor's settings. Each is explained by its row in L{AUDITOR_ROWS}; C{timeOf} is L{None} when it was not given."""

    tiers: tuple[TierAddress, ...]
    auditTopic: str
    topics: tuple[str, ...]
    windowMs: int
    graceMs: int
    horizonMs: int
    passIntervalMs: int
    timeOf: str | None
    listen: str
    hosts: tuple[str, ...]
    fetchSize: int
    fetchSizeMax: int
    zookeeperDigest: str = field(repr=False)
    brokerEndpoint: str
    timeoutMs: int

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None]
    ) -> AuditorSettings:
        """
        @raise ConfigurationError: names every key that is missing or wrong, its value and what would be right, a line each.
        """
        values = cast("dict[str, Any]", readSettings(AUDITOR_ROWS, properties, warn))
        values["tiers"] = tuple(map(parseTier, values["tiers"]))
        names = [tier.name for tier in values["tiers"]]
        if not names:
            raise ConfigurationError("tiers is empty: an auditor needs something to count")
        if len(set(names)) < len(names):
            raise ConfigurationError(f"tiers={properties['tiers']}: two have the same name")
        values["timeOf"] = values["timeOf"] or None
        values["fetchSizeMax"] = max(values["fetchSize"], values["fetchSizeMax"])
        return cls(**values)
