"""
The reference page of all settings, C{docs/settings.md}, from the tables of the roles.
"""

from __future__ import annotations

from pylogbroker.config.consumersettings import CONSUMER_ROWS
from pylogbroker.config.producersettings import PRODUCER_ROWS
from pylogbroker.config.settings import brokerPage
from pylogbroker.config.table import asMarkdown

_PRODUCER_HEAD = """
## Producer

Of `pylogbroker.producer.producer.Producer`. Names of Kafka's own classes stand for what is built in; others are dotted names of Python classes or functions.

"""

_CONSUMER_HEAD = """
## Consumer

Of `pylogbroker.consumer.group.ConsumerConnector`, a member of a group.

"""


def settingsPage() -> str:
    """The page, as Markdown."""
    return brokerPage() + _PRODUCER_HEAD + asMarkdown(PRODUCER_ROWS) + _CONSUMER_HEAD + asMarkdown(CONSUMER_ROWS)
