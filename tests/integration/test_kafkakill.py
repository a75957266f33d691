"""
Kills of a broker of today's protocol, at random moments (L{tests.integration.kafkakills}); the long
form is C{tests.long.kafkakill}.
"""

from __future__ import annotations

import os
import shutil

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.kafkakills import KafkaKillTrial

SEED = 43
ROUND_COUNT = 2


class KafkaKillTests(SynchronousTestCase):
    """C{kill -9}."""

    def test_acknowledgedStays(self) -> None:
        """
        Over some kills, acknowledged records, transactions, values of a compacted topic, positions
        and topics stay, and nothing is there twice.
        """
        directory = os.path.abspath(self.mktemp())
        self.addCleanup(shutil.rmtree, directory)
        trial = KafkaKillTrial(directory, SEED)
        trial.run(ROUND_COUNT)
        self.assertEqual(trial.figures.roundCount, ROUND_COUNT)
