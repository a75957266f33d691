"""
The reference page of all settings, C{docs/settings.md}, from the tables of the roles.
"""

from __future__ import annotations

from pylogbroker.config.auditsettings import AUDITED_ROWS, AUDITOR_ROWS
from pylogbroker.config.brokersettings import brokerPage
from pylogbroker.config.consumersettings import CONSUMER_ROWS
from pylogbroker.config.keys import asMarkdown
from pylogbroker.config.producersettings import PRODUCER_ROWS
from pylogbroker.config.registrysettings import REGISTRY_ROWS

_PRODUCER_HEAD = """
## Producer

Of `pylogbroker.producer.producer.Producer`. Names of Kafka's own classes stand for what is built in; others are dotted names of Python classes or functions.

"""

_CONSUMER_HEAD = """
## Consumer

Of `pylogbroker.consumer.connector.ConsumerConnector`, a member of a group.

"""

_AUDITED_HEAD = """
## Audited producer

Of `pylogbroker.auditor.auditedproducer.AuditedProducer`; they may stand in a producer's file. See [audit](audit.md).

"""

_AUDITOR_HEAD = """
## Auditor

Of `twistd pylogbroker-auditor` and `pylogbroker audit`.

"""

_REGISTRY_HEAD = """
## Schema registry

Of `twistd pylogbroker-registry`. See [registry](registry.md).

"""


def settingsPage() -> str:
    """The page, as Markdown."""
    parts = (
        (_PRODUCER_HEAD, PRODUCER_ROWS),
        (_CONSUMER_HEAD, CONSUMER_ROWS),
        (_AUDITED_HEAD, AUDITED_ROWS),
        (_AUDITOR_HEAD, AUDITOR_ROWS),
        (_REGISTRY_HEAD, REGISTRY_ROWS),
    )
    return brokerPage() + "".join(
        head + asMarkdown(rows, isBrief=all(not row.isKafkaKey for row in rows))
        for head, rows in parts
    )
