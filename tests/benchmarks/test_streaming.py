"""The benchmark of jobs runs without its rivals. What it measures is for people to read."""

from __future__ import annotations

import re
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.benchmarks.servers import ROOT


def printed(*arguments: str) -> str:
    """What the benchmark prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.streaming", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout


class StreamingBenchmarkTests(SynchronousTestCase):
    """Both forms."""

    def test_figures(self) -> None:
        """Each job has a rate, and its part of the bare loop's."""
        text = printed("--count", "1000", "--rounds", "1", "--alone")
        figures = re.findall(r"^\| pylogbroker +\| (\w+) +\| [\d,]+ +\| \d+\.\d\d", text, re.M)
        self.assertEqual(figures, ["bare", "stateless", "wordcount"], text)

    def test_restore(self) -> None:
        """All counts are restored when the folder is gone."""
        text = printed("--keys", "1000")
        self.assertRegex(text, r"(?m)^1,000 words counted in .* s,")
        self.assertRegex(text, r"(?m)^1,000 changes restored in .* s:")
