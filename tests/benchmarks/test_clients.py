"""
The clients' benchmarks run. What they measure is for people to read: nothing here asserts a time, a
rate or a ratio.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.benchmarks.clientload import MESSAGE_SIZE, makePayloads
from tests.benchmarks.clients import ALL, Client, asMarkdown
from tests.benchmarks.servers import ROOT

RUN_SECONDS_MAX = 600


class ShortFormTests(SynchronousTestCase):
    """The short form."""

    def test_everyScenarioHasFigures(self) -> None:
        """
        The short form sends and reads all its messages, through a real ZooKeeper and a broker, and
        prints and writes the figures of each scenario.
        """
        output, figures = Path(self.mktemp()).resolve(), Path(self.mktemp()).resolve()
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.clients",
            "--short",
            "--count",
            "20000",
            "--output",
            str(output),
            "--json",
            str(figures),
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        print(f"\n{done.stdout}")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(output.read_text(encoding="utf-8"), done.stdout)
        self.assertNotIn("missed", done.stdout)
        found = json.loads(figures.read_text(encoding="utf-8"))
        self.assertEqual(set(found), {client.name for client in ALL if client.isShort})
        for name, rounds in found.items():
            self.assertIn(name, done.stdout)
            for figure, value in rounds[0].items():
                self.assertGreater(value, 0, f"{name}: {figure}")


class ReportTests(SynchronousTestCase):
    """From figures to tables."""

    def test_targets(self) -> None:
        """
        The median of a client's CPU is judged where nothing is compressed; beside compression
        stands what the bare compressor takes.
        """

        def rounds(*values: float) -> list[dict[str, float]]:
            return [{"clientUs": value, "brokerUs": 1.0, "rate": 1e5} for value in values]

        text = asMarkdown(
            [("machine", "none")],
            3,
            [
                (Client("produce", "post"), rounds(3.0, 9.0, 4.0)),
                (Client("produce", "send"), rounds(4.1)),
                (Client("produce", "send", "gzip"), rounds(40.0)),
                (Client("consume", "iterate"), rounds(3.0)),
            ],
            {("gzip", "produce"): 7.25},
        )
        self.assertIn("≤ 4: met", text)
        self.assertIn("≤ 4: **not met**", text)
        self.assertIn("≤ 3: met", text)
        self.assertIn("| 7.25 ", text)
        self.assertTrue(
            text.endswith("2 of 3 targets met; missed by produce-send-none.\n"), text[-100:]
        )

    def test_shortForm(self) -> None:
        """The short form names targets, and judges none."""
        figures = {"clientUs": 4.1, "brokerUs": 1.0, "rate": 1e5}
        measured = [(Client("produce", "send"), [figures])]
        text = asMarkdown([("machine", "none")], 1, measured, {}, isShort=True)
        self.assertIn("| ≤ 4 ", text)
        self.assertNotIn("met", text)
        self.assertNotIn("missed", text)
        self.assertTrue(
            text.endswith("`python -m tests.benchmarks.clients` on a quiet machine does.\n")
        )

    def test_names(self) -> None:
        """Each scenario has a name of its own."""
        self.assertEqual(len({client.name for client in ALL}), len(ALL))

    def test_payloads(self) -> None:
        """Payloads are all of one size, and the same every time."""
        self.assertEqual({len(payload) for payload in makePayloads(100)}, {MESSAGE_SIZE})
        self.assertEqual(makePayloads(100), makePayloads(100))
