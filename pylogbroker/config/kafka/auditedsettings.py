"""
The settings of an audited producer of today's Kafka. A module of its own, since a reader of one
protocol need not read the other.
"""

from __future__ import annotations

from pylogbroker.config.auditsettings import AuditedSettings
from pylogbroker.config.keys import ownKey
from pylogbroker.config.propertytypes import BOOLEAN


class KafkaAuditedSettings(AuditedSettings):
    """The settings of an audited producer of today's Kafka."""

    auditEnvelope = ownKey(
        "audit.envelope",
        BOOLEAN,
        "false",
        "Wrap values in envelopes with time and host, although records have a timestamp: for "
        "topics that are mirrored into a cluster of 2011.",
    )
