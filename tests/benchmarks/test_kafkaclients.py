"""
Tests of L{tests.benchmarks.kafka.clients}.
"""

from __future__ import annotations

import sys
from io import StringIO

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.benchmarks.kafka.clients import CLIENTS, main, measure


class ClientTests(SynchronousTestCase):
    """A few messages with each client."""

    def test_all(self) -> None:
        """Each client is measured, and has its row."""
        broker = BackgroundBroker()
        self.addCleanup(broker.close)
        broker.start()
        output = StringIO()
        self.patch(sys, "stdout", output)
        given = ["--bootstrap-server", broker.bootstrapServers, "--count", "1000"]
        self.assertEqual(main([*given, "--rounds", "1"]), 0)
        for name in CLIENTS:
            self.assertIn(f"| {name} ", output.getvalue())

    def test_failed(self) -> None:
        """A client that fails is no figure."""
        self.assertRaises(RuntimeError, measure, "no client", "127.0.0.1:1", 1)
