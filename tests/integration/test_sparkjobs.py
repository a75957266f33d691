"""
Jobs that are written for Spark's own Kafka source run with the format's name changed, and give the
rows that it gave: recorded by C{tests.long.sparkrows}, so no connector is needed here.
"""

from __future__ import annotations

import json

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.sparkjobs import JOBS, PROPERTIES, RECORDED, fill, run
from tests.integration.test_spark import SparkCase


class SparkJobTests(SparkCase):
    """The jobs of L{tests.integration.sparkjobs}."""

    def test_rows(self) -> None:
        """Each job has the columns and rows that were recorded."""
        broker = BackgroundBroker(PROPERTIES).start()
        self.addCleanup(broker.close)
        fill(broker.bootstrapServers)
        recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
        self.assertEqual(set(recorded), set(JOBS))
        for number, name in enumerate(JOBS):
            folder = f"{self.folder}/{number}"
            found = run(self.spark, "pylogbroker", name, broker.bootstrapServers, folder)
            self.assertEqual(found, recorded[name], name)
