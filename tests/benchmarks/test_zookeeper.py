"""
Tests for L{tests.benchmarks.zookeeper}.
"""

from __future__ import annotations

import contextlib
import io

from twisted.trial.unittest import SynchronousTestCase

from tests.benchmarks.zookeeper import main


class TableTests(SynchronousTestCase):
    """The program."""

    def test_table(self) -> None:
        """It measures both servers, and prints a row for each figure."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            code = main(["--rounds", "1", "--nodes", "100", "--alone", "5"])
        self.assertEqual(code, 0)
        rows = [line.split("|") for line in output.getvalue().splitlines() if line[:1] == "|"]
        self.assertEqual([len(row) for row in rows], [5] * 8)
        for _, _figure, ours, apaches, _ in rows[2:]:
            for cell in (ours, apaches):
                self.assertGreater(float(cell.split()[0].replace(",", "")), 0)
