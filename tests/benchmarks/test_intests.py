"""The measurement of brokers in tests runs; it judges nothing."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.benchmarks.intests import ROOT


class InTestsTests(SynchronousTestCase):
    """The short form."""

    def test_runs(self) -> None:
        """All three rows are printed."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.intests", "--count", "2"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(
            done.stdout,
            r"2 tests with kafka_broker .*\nreset: median .*\nstart of a LocalBroker: median",
        )
