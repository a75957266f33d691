"""
What a schema registry can be told. All of it is ours; 0.7 has no registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pylogbroker.config.keys import ConfigKey, readSettings
from pylogbroker.config.propertytypes import Integer, Text, TextList

_POSITIVE = Integer(1)
_ours = partial(ConfigKey, isKafkaKey=False)

REGISTRY_ROWS: tuple[ConfigKey, ...] = (
    _ours(
        "broker", "broker", Text(empty=False), None,
        "The broker with the topic of the schemas, `host:port`, or a Twisted client endpoint string: "
        "`tls:HOST:PORT:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`.",
        required=True,
    ),
    _ours("topic", "topic", Text(empty=False), "_schemas", "The topic of the schemas; its partition 0 on that broker. The broker must keep it for ever."),
    _ours(
        "listen", "listen", Text(empty=False), "tcp:8081:interface=127.0.0.1",
        "Where clients are served, as a Twisted endpoint string, with `tls:` as brokers have it; on the loopback interface, if it names none.",
    ),
    _ours("hosts", "hosts", TextList(), "", "Names by which clients may ask for it, with `|` between, beside `localhost` and every bare address."),
    _ours("timeout.ms", "timeoutMs", _POSITIVE, "10000", "How long a change may take until it comes back from the topic; the broker's flush is part of it."),
    _ours("poll.interval.ms", "pollIntervalMs", _POSITIVE, "100", "How often the topic is read when nothing is new."),
    _ours("check.interval.ms", "checkIntervalMs", _POSITIVE, "60000", "How often it is looked whether the topic still begins where it began."),
    _ours("request.size.max", "requestSizeMax", Integer(1, 1 << 26), "1048576", "Bytes that a request's body may have."),
    _ours("requests.max", "requestCountMax", Integer(1, 100_000), "100", "Requests that may be under way; more are answered with 429."),
)  # fmt: skip
"""All keys that a registry's property file can have."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Each is explained by its row in L{REGISTRY_ROWS}."""

    broker: str
    topic: str
    listen: str
    hosts: tuple[str, ...]
    timeoutMs: int
    pollIntervalMs: int
    checkIntervalMs: int
    requestSizeMax: int
    requestCountMax: int

    @classmethod
    def fromProperties(
        cls, properties: Mapping[str, str], warn: Callable[[str], None]
    ) -> RegistrySettings:
        """
        @raise ConfigurationError: names every key that is missing or wrong, its value and what would be right, a line each.
        """
        return cls(**cast("dict[str, Any]", readSettings(REGISTRY_ROWS, properties, warn)))
