"""
C{python -m pylogbroker.config} prints the reference page of all settings, C{docs/settings.md}, made
from the keys of each role. A test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pylogbroker.config.auditsettings import AuditedSettings, AuditorSettings
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.kafka.auditedsettings import KafkaAuditedSettings
from pylogbroker.config.kafka.clientsettings import (
    KafkaAdminSettings,
    KafkaClientSettings,
    KafkaConsumerSettings,
    KafkaProducerSettings,
)
from pylogbroker.config.kafka.mirrorsettings import KafkaSourceSettings
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.config.keys import ConfigKey, Settings
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.config.topologies.logsettings import LogBoltSettings, LogSpoutSettings
from pylogbroker.config.topologies.topologysettings import TopologySettings

_HEAD = """\
# Settings

A [broker](#broker) reads one file of Java properties (`twistd pylogbroker --config FILE`); `--set
KEY=VALUE` overrides it. [`etc/broker.properties`](../etc/broker.properties) has every effective key
with its description. A [producer](#producer) and a [consumer](#consumer) take the same kind of
properties as a mapping of texts. In Python, a setting has the name of its key in camelCase:
`log.file.size` is `BrokerSettings.logFileSize`.

<!-- made by `python -m pylogbroker.config` from the classes in pylogbroker/config -->

The values are written as in Kafka 0.7:

| type | |
|---|---|
| int, long | a whole number of 32, or 64, bits. White space at its end is an error |
| bool | exactly `true` or `false` |
| topic map | `topic1:5,topic2:7`. White space before a topic is part of its name |
| list | texts with `\\|` between |

An unknown key is reported with its nearest neighbour and has no effect. A repeated key is reported;
the last one counts. A malformed pair of a topic map is skipped with a warning; a value below 1 is
an error. All wrong values are named at once, each with its line. The file is UTF-8, or else ISO
8859-1.
"""

_ROLES: tuple[tuple[str, str, type[Settings]], ...] = (
    ("Broker", "", BrokerSettings),
    (
        "Producer",
        (
            "Of `pylogbroker.producer.producer.Producer`. The names of Kafka's own classes stand"
            " for what is built in; other values are dotted names of Python classes or functions."
        ),
        ProducerSettings,
    ),
    (
        "Consumer",
        "Of `pylogbroker.consumer.connector.ConsumerConnector`, a member of a group.",
        ConsumerSettings,
    ),
    (
        "Kafka producer",
        (
            "Of `pylogbroker.producer.kafka.producer.KafkaProducer`, for any Kafka of today."
            " Keys of Java's client keep name, meaning and default."
        ),
        KafkaProducerSettings,
    ),
    (
        "Kafka consumer",
        "Of `pylogbroker.consumer.kafka.consumer.KafkaConsumer`, for any Kafka of today.",
        KafkaConsumerSettings,
    ),
    (
        "Kafka admin client",
        "Of `pylogbroker.client.kafka.admin.client.AdminClient`, for any Kafka of today.",
        KafkaAdminSettings,
    ),
    (
        "Mirror's source",
        (
            "Of a source of today's Kafka, beside the keys of [its consumer](#kafka-consumer),"
            " where `auto.offset.reset` is `earliest` and `isolation.level` `read_committed`"
            " unless the file says otherwise. See"
            " [the mirror](mirror.md#from-a-cluster-of-todays-kafka)."
        ),
        KafkaSourceSettings,
    ),
    (
        "Tasks",
        (
            "Of `pylogbroker.tasks.container.TaskContainer`, beside the keys of an"
            " [admin client](#kafka-admin-client), which all its clients have. Keys of Kafka"
            " Streams keep name, meaning and default, except `state.dir`, whose default is there"
            " a folder in `/tmp`. See [tasks](tasks.md)."
        ),
        KafkaTaskSettings,
    ),
    (
        "Topologies",
        (
            "Of the processes of a topology, which `pylogbroker topology submit` starts. Other"
            " keys of its file are the topology's own. See [topologies](topologies.md)."
        ),
        TopologySettings,
    ),
    (
        "Log spout",
        (
            "Of `pylogbroker.topologies.log.LogSpout`, as keys of its component or of the topology."
            " See [topologies](topologies.md#the-log)."
        ),
        LogSpoutSettings,
    ),
    (
        "Log bolt",
        ("Of `pylogbroker.topologies.log.LogBolt`, as keys of its component or of the topology."),
        LogBoltSettings,
    ),
    (
        "Audited producer",
        (
            "Of `pylogbroker.auditor.auditedproducer.AuditedProducer`; these keys may stand in a"
            " producer's file. See [audit](audit.md)."
        ),
        AuditedSettings,
    ),
    (
        "Audited Kafka producer",
        (
            "Of `pylogbroker.auditor.auditedkafkaproducer.AuditedKafkaProducer`: the keys of an"
            " [audited producer](#audited-producer), where one has another default."
        ),
        KafkaAuditedSettings,
    ),
    ("Auditor", "Of `twistd pylogbroker-auditor` and `pylogbroker audit`.", AuditorSettings),
    (
        "Schema registry",
        "Of `twistd pylogbroker-registry`. See [registry](registry.md).",
        RegistrySettings,
    ),
)


_EXTENDED: dict[type[Settings], type[Settings]] = {
    KafkaSourceSettings: KafkaConsumerSettings,
    KafkaTaskSettings: KafkaClientSettings,
    KafkaAuditedSettings: AuditedSettings,
}
"""Roles of which only what they add is shown."""


def settingsPage() -> str:
    """The page, as Markdown."""
    parts = [_HEAD]
    for title, intro, settings in _ROLES:
        base = _EXTENDED.get(settings)
        inherited = () if base is None else base.keys
        shown = asMarkdown([key for key in settings.keys if key not in inherited])
        parts.append(f"\n## {title}\n\n{intro}{intro and chr(10) * 2}{shown}")
    return "".join(parts)


def asMarkdown(keys: Sequence[ConfigKey[Any]]) -> str:
    """
    Keys as Markdown tables: Kafka's keys first, then ours, then the ignored ones. Keys of a role
    that Kafka does not have are one table without a heading.
    """
    isBrief = not any(key.isKafkaKey for key in keys)
    parts = []
    for title, chosen in (
        ("Kafka's own", [key for key in keys if key.isKafkaKey and key.isEffective]),
        ("pylogbroker's", [key for key in keys if not key.isKafkaKey and key.isEffective]),
        ("Known, without effect in this release", [key for key in keys if not key.isEffective]),
    ):
        if isBrief and not chosen:
            continue
        lines = [
            *(() if isBrief else (f"### {title}", "")),
            "| key | type | default | meaning |",
            "|---|---|---|---|",
            *(
                f"| `{key.key}` | {_type(key)} | {_default(key)} | {_escape(key.doc)} |"
                for key in chosen
            ),
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _type(key: ConfigKey[Any]) -> str:
    return _escape(key.type.name + (f", {key.type.range}" if key.type.range else ""))


def _default(key: ConfigKey[Any]) -> str:
    if key.isRequired:
        return "required"
    return key.derived or (f"`{key.default}`" if key.default else "none")


if __name__ == "__main__":
    sys.stdout.write(settingsPage())
