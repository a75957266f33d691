"""
The settings of single groups of KIP-848, which hold in place of the broker's while it runs. Kafka
has more: those of share and streams groups, which are not here, and are refused as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogbroker.config.topicconfigs import ConfigType, TopicConfig

ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"

GROUP_CONFIGS: Mapping[str, TopicConfig] = {
    each.name: each
    for each in (
        TopicConfig(
            ASSIGNMENT_INTERVAL,
            ConfigType.INT,
            "1000",
            f"group.{ASSIGNMENT_INTERVAL}",
            "The shortest time between two assignments of partitions to the members.",
            low=0,
        ),
        TopicConfig(
            HEARTBEAT_INTERVAL,
            ConfigType.INT,
            "5000",
            f"group.{HEARTBEAT_INTERVAL}",
            "The interval at which members send heartbeats.",
            low=1,
        ),
        TopicConfig(
            SESSION_TIMEOUT,
            ConfigType.INT,
            "45000",
            f"group.{SESSION_TIMEOUT}",
            "How long a member may be silent before it is removed.",
            low=1,
        ),
    )
}
"""By name, sorted by it; C{serverKey} is the setting of the broker that holds otherwise."""

_BOUNDS: Mapping[str, tuple[int, int]] = {
    ASSIGNMENT_INTERVAL: (0, 15_000),
    HEARTBEAT_INTERVAL: (5_000, 15_000),
    SESSION_TIMEOUT: (45_000, 60_000),
}
"""Kafka's C{group.consumer.min.session.timeout.ms} and its like, which have their defaults."""


def checkGroupConfig(name: str, value: str) -> str:
    """
    A setting's value in its usual form.

    @raise ValueError: there is no such setting, or the value is not valid; the text names it.
    """
    config = GROUP_CONFIGS.get(name)
    if config is None:
        raise ValueError(f"Unknown group config name: {name}")
    text = config.check(value)
    low, high = _BOUNDS[name]
    kind, _, rest = name.partition(".")
    if int(text) < low:
        raise ValueError(f"{name} must be greater than or equal to group.{kind}.min.{rest}")
    if int(text) > high:
        raise ValueError(f"{name} must be less than or equal to group.{kind}.max.{rest}")
    return text
