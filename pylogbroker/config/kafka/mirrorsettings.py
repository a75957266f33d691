"""
The settings of a source of today's Kafka for a mirror: those of a consumer, and keys that
MirrorMaker 2 has, with its names and meanings. A module of its own, since only mirrors read them.

Three defaults are not MirrorMaker 2's. C{isolation.level} is C{read_committed}, since a mirror has
no transactions: what was aborted would be committed in the target. Replication factors are the
clusters' own. C{auto.offset.reset} is C{earliest}, as there, where the consumer has C{latest}.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pylogbroker.config.kafka.clientsettings import EARLIEST, KafkaConsumerSettings
from pylogbroker.config.keys import ConfigKey
from pylogbroker.config.propertytypes import BOOLEAN, NOT_EMPTY, POSITIVE, TEXT, Integer, Warn
from pylogbroker.errors import ConfigurationError

DEFAULT_FACTOR = -1
_FACTOR = Integer(DEFAULT_FACTOR, 32767)


class KafkaSourceSettings(KafkaConsumerSettings):
    """
    The settings of a L{pylogbroker.mirror.kafkasource.KafkaSourceCluster}.
    """

    sourceClusterAlias = ConfigKey(
        "source.cluster.alias",
        NOT_EMPTY,
        "source",
        "The source's name: the target has the translated positions in the topic "
        "`<alias>.checkpoints.internal`.",
    )
    targetClusterAlias = ConfigKey(
        "target.cluster.alias",
        NOT_EMPTY,
        "target",
        "The target's name: the source has the pairs of offsets in the topic "
        "`mm2-offset-syncs.<alias>.internal`.",
    )
    replicationFactor = ConfigKey(
        "replication.factor",
        _FACTOR,
        "-1",
        "Replicas of the topics that the mirror creates in the target; -1: the target's default.",
    )
    offsetSyncsTopicReplicationFactor = ConfigKey(
        "offset-syncs.topic.replication.factor",
        _FACTOR,
        "-1",
        "Replicas of the topic of pairs of offsets; -1: the source's default.",
    )
    checkpointsTopicReplicationFactor = ConfigKey(
        "checkpoints.topic.replication.factor",
        _FACTOR,
        "-1",
        "Replicas of the topic of translated positions; -1: the target's default.",
    )
    emitCheckpointsIntervalSeconds = ConfigKey(
        "emit.checkpoints.interval.seconds",
        POSITIVE,
        "60",
        "How often the positions of the source's groups are translated, in seconds.",
    )
    syncGroupOffsetsEnabled = ConfigKey(
        "sync.group.offsets.enabled",
        BOOLEAN,
        "false",
        "Whether translated positions are committed in the target, for groups that have no member "
        "there. A position never goes back.",
    )
    groups = ConfigKey(
        "groups",
        TEXT,
        ".*",
        "The groups whose positions are translated: a regular expression in Java's syntax.",
    )
    groupsExclude = ConfigKey(
        "groups.exclude",
        TEXT,
        "console-consumer-.*,connect-.*,__.*",
        "Groups whose positions are not translated.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        super().complete(values, properties, warn)
        if "auto.offset.reset" not in properties:
            values["autoOffsetReset"] = EARLIEST
        if "isolation.level" not in properties:
            values["isolationLevel"] = True
        if not values["groupId"]:
            raise ConfigurationError("group.id is missing: mirrors of a group share the partitions")
