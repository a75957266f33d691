"""
A short form of C{python -m tests.long.kafkaaudit}.
"""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from tests.integration.kafkaaudittrial import KafkaAuditTrial


class KillTests(TestCase):
    """Audited producers, and an auditor, at a broker that is killed."""

    timeout = 120

    async def test_kills(self) -> None:
        """
        No false alarm; in the end what was sent, unknown and seen is right in each window; planted
        losses and duplicates are found, and nothing else.
        """
        trial = KafkaAuditTrial(20113, 3, 2)
        await trial.run()
        self.flushLoggedErrors()
        figures = trial.figures
        for name in ("killCount", "passCount", "committedCount", "lostCount"):
            self.assertGreater(getattr(figures, name), 0, figures)
