"""The benchmark of the parts of a topology runs. What it measures is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.topologies.streammanager.manager import StreamManager
from tests.benchmarks.servers import ROOT
from tests.benchmarks.topologies import routing


class TopologyBenchmarkTests(SynchronousTestCase):
    """A stream manager alone."""

    def test_figures(self) -> None:
        """Each row of the stream manager and of the instances prints its figures."""
        command = [sys.executable, "-m", "tests.benchmarks.topologies", "--words", "500"]
        done = subprocess.run(
            [*command, "--count", "3", "--rounds", "1", "--seconds", "0.05"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        rows = re.findall(r"^\| (\d+ \| \d+ \| \w+) \| [\d,]+ \| [\d,]+ \|$", done.stdout, re.M)
        self.assertEqual(len(rows), 10, done.stdout)
        self.assertEqual(rows[:2], ["1 | 1 | no", "1 | 1 | yes"])
        costs = re.findall(r"^\| (\w+_ONCE) \| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", done.stdout, re.M)
        self.assertEqual(costs, ["ATMOST_ONCE", "ATLEAST_ONCE"])
        self.assertRegex(done.stdout, r"(?m)^\| -?[\d.]+ \| -?[\d.]+ \| -?[\d.]+ \| -?[\d,]+ \|$")

    def test_lostTuplesAreFound(self) -> None:
        """What does not come out is noticed."""
        with patch.object(StreamManager, "route", lambda _self, _body: None):
            self.assertRaises(RuntimeError, routing, 2, 2, 2, False)
