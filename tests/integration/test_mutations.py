"""
Bytes that nobody meant, at a live broker: the short form of C{python -m tests.fuzz.mutations}, whose long form is run by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz.mutations import SEED
from tests.fuzz.record import ROOT

COUNT = 100_000
SECONDS_MAX = 900


class MutationTests(SynchronousTestCase):
    """No input makes the broker raise, allocate beyond its limits, or disturb another connection."""

    def test_hundredThousandMutations(self) -> None:
        """
        A hundred thousand mutations of recorded requests make a live broker log no error and print nothing, keep its memory under 192 MiB, answer a watcher
        on a connection of its own as if it were alone, keep what that one produced, and end in good order.
        """
        # Neither the broker nor what is thrown at it is measured for coverage: that would be ten minutes instead of one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
        command = [sys.executable, "-m", "tests.fuzz.mutations", "--count", str(COUNT), "--seed", str(SEED)]
        ran = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        said = ran.stdout + ran.stderr
        self.assertEqual(ran.returncode, 0, said)
        lines = ran.stdout.splitlines()
        self.assertIn(f"seed: {SEED}", lines, said)
        self.assertIn(f"triedCount: {COUNT}", lines, said)
        self.assertEqual(lines[-1], "faults: 0", said)
