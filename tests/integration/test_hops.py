"""
Few hops: through how many modules one message passes.
"""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.long.hops import BROKER_COUNT_MAX, CLIENT_COUNT_MAX, MODES, ROOT


class HopTests(SynchronousTestCase):
    """C{python -m tests.long.hops}, with a real producer and a real broker."""

    def test_fewModules(self) -> None:
        """
        A message enters at most 8 modules above floor 0 from C{send} to the client's socket, in
        either mode, and at most 10 from the broker's socket to the disk.
        """
        done = subprocess.run(
            [sys.executable, "-m", "tests.long.hops"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual((CLIENT_COUNT_MAX, BROKER_COUNT_MAX), (8, 10))
        self.assertEqual(done.stdout.count(f"of at most {CLIENT_COUNT_MAX}\n"), len(MODES))
        self.assertEqual(done.stdout.count(f"of at most {BROKER_COUNT_MAX}\n"), 1)
