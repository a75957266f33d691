"""Tests for L{pylogbroker.config.__main__}."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.__main__ import settingsPage
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
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.config.topologies.logsettings import LogBoltSettings, LogSpoutSettings
from pylogbroker.config.topologies.topologysettings import TopologySettings

ROOT = Path(__file__).resolve().parent.parent.parent


class PageTests(SynchronousTestCase):
    """The reference page C{docs/settings.md}."""

    def test_page(self) -> None:
        """
        It is what the tables say. (C{python -m pylogbroker.config > docs/settings.md} makes it
        anew.)
        """
        self.assertEqual(
            (ROOT / "docs" / "settings.md").read_text(encoding="utf-8"), settingsPage()
        )
        printed = subprocess.run(
            [sys.executable, "-m", "pylogbroker.config"],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            check=True,
        )
        self.assertEqual(printed.stdout, settingsPage())

    def test_everyKey(self) -> None:
        """Every key of every role is in its part, once."""
        parts = settingsPage().split("\n## ")[1:]
        for part, rows in zip(
            parts,
            (
                BrokerSettings.keys,
                ProducerSettings.keys,
                ConsumerSettings.keys,
                KafkaProducerSettings.keys,
                KafkaConsumerSettings.keys,
                KafkaAdminSettings.keys,
                KafkaSourceSettings.keys[len(KafkaConsumerSettings.keys) :],
                [key for key in KafkaTaskSettings.keys if key not in KafkaClientSettings.keys],
                TopologySettings.keys,
                LogSpoutSettings.keys,
                LogBoltSettings.keys,
                AuditedSettings.keys,
                [KafkaAuditedSettings.auditEnvelope],
                AuditorSettings.keys,
                RegistrySettings.keys,
            ),
            strict=True,
        ):
            for row in rows:
                self.assertEqual(part.count(f"\n| `{row.key}` |"), 1, row.key)
