"""
The benchmarks run. What they measure is for people to read: nothing here asserts a time, a rate or
a ratio.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.benchmarks.report import asMarkdown, table
from tests.benchmarks.scenarios import (
    ALL,
    BROKER,
    NEIGHBOURS,
    SHORT_NAMES,
    YARDSTICK,
    FetchScenario,
    Figures,
    HotScenario,
    ProduceScenario,
    VisitScenario,
)
from tests.benchmarks.servers import ROOT, cpuSeconds

RUN_SECONDS_MAX = 900


class ShortFormTests(SynchronousTestCase):
    """The short form."""

    def test_everyScenarioHasFigures(self) -> None:
        """
        The short form compiles its programs, runs each of its scenarios on the yardstick and on the
        broker, and prints and writes their figures.
        """
        output = Path(self.mktemp()).resolve()
        figures = Path(self.mktemp()).resolve()
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks",
            "--short",
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
        self.assertEqual(set(found), SHORT_NAMES)
        for name, results in found.items():
            scenario = next(scenario for scenario in ALL if scenario.name == name)
            self.assertIn(
                f"{name}" if name != "hot-beside-cold" else "hot consumer beside a cold one",
                done.stdout,
            )
            self.assertEqual(set(results), set(scenario.sides))
            for rounds in results.values():
                self.assertEqual(len(rounds), scenario.turnCount)
                for figure, value in rounds[0].items():
                    if figure != "cachedShare":
                        self.assertGreater(value, 0, f"{name}: {figure}")

    def test_namesAreOffered(self) -> None:
        """What the short form runs is among all scenarios, whose names are unique."""
        names = [scenario.name for scenario in ALL]
        self.assertEqual(len(set(names)), len(names))
        self.assertLessEqual(SHORT_NAMES, set(names))


class ReportTests(SynchronousTestCase):
    """From figures to tables."""

    def test_targets(self) -> None:
        """A target is met or not by the ratio of medians, and the last line counts."""

        def produced(*values: float) -> list[Figures]:
            return [{"cpuUs": value, "rate": 1e6} for value in values]

        def fetched(rate: float) -> list[Figures]:
            return [{"rate": rate, "cpuPerGB": 0.2}]

        hot = {
            f"{who.name}{what}": 10.0
            for who in NEIGHBOURS[BROKER]
            for what in ("p50", "p99", "worst", "Rate")
        } | {"cachedShare": 0.0}
        visit = {"cpuUs": 10.0, "ms": 50.0, "connectingMs": 20.0}
        text = asMarkdown(
            [("machine", "none")],
            3,
            [
                (
                    ProduceScenario(1, target=6.0),
                    {YARDSTICK: produced(1.0, 1.0, 9.0), BROKER: produced(6.0, 5.0, 9.0)},
                ),
                (
                    ProduceScenario(50, target=4.0),
                    {YARDSTICK: produced(1.0), BROKER: produced(4.01)},
                ),
                (
                    FetchScenario(1_000_000, target=0.8),
                    {YARDSTICK: fetched(1e9), BROKER: fetched(0.8e9)},
                ),
                (HotScenario(), {YARDSTICK: [hot], BROKER: [{**hot, "coldp99": 21.0}]}),
                (VisitScenario(), {YARDSTICK: [visit], BROKER: [visit]}),
            ],
        )
        self.assertIn("≤ 6: met", text)
        self.assertIn("≤ 4: **not met**", text)
        self.assertIn("≥ 0.8: met", text)
        self.assertIn("≤ 2: **not met**", text)
        self.assertTrue(
            text.endswith(
                "3 of 5 targets met; missed by produce-b50-c1-p1-none, hot-beside-cold.\n"
            ),
            text[-100:],
        )

    def test_shortForm(self) -> None:
        """
        The short form names targets, and neither judges one nor counts: its figures come from one
        short round beside other work.
        """
        measured: list[tuple[Any, Any]] = [
            (
                ProduceScenario(50, target=4.0),
                {
                    YARDSTICK: [{"cpuUs": 1.0, "rate": 1e6}],
                    BROKER: [{"cpuUs": 4.01, "rate": 1e6}],
                },
            )
        ]
        text = asMarkdown([("machine", "none")], 1, measured, isShort=True)
        self.assertIn("| ≤ 4 ", text)
        self.assertNotIn("met", text)
        self.assertNotIn("missed", text)
        self.assertTrue(text.endswith("`python -m tests.benchmarks` on a quiet machine does.\n"))

    def test_table(self) -> None:
        """Columns are as wide as their widest cell."""
        self.assertEqual(
            table(["a", "bcd"], [["xy", "z"]]), ["| a  | bcd |", "|----|-----|", "| xy | z   |"]
        )


class CpuTests(SynchronousTestCase):
    """Measuring."""

    def test_allThreads(self) -> None:
        """The CPU time of a process, seen from outside, is that which it knows itself."""
        before = cpuSeconds(os.getpid())
        own = sum(os.times()[:2])
        after = cpuSeconds(os.getpid())
        tick = 2 / os.sysconf("SC_CLK_TCK")
        self.assertLessEqual(before - tick, own)
        self.assertLessEqual(own, after + tick)
