"""
Exactly once from topic to topic, in short; C{python -m tests.long.exactlyonce} is the long form.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.exactlyonce import ExactlyOnceTrial


class ExactlyOnceTests(SynchronousTestCase):
    """L{ExactlyOnceTrial}."""

    def test_kills(self) -> None:
        """Applications and broker are killed; each record is there once, in order."""
        figures = ExactlyOnceTrial(3, 40, 15).run()
        self.assertGreater(figures.brokerKillCount, 0)
        self.assertGreater(figures.applicationKillCount, 0)
        self.assertGreater(figures.abortedCount, 0)
