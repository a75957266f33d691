"""
C{python -m tests.benchmarks.compare REVISION}: the benchmarks of broker and clients at another
revision and in this tree, alternating in one run.

Both revisions run with the interpreter and the libraries of this environment, so with the same
CRC-32. Each measures by its own C{tests.benchmarks}, in a process for each scenario and round. The
compared figure is processor time: of the broker, as a multiple of the C yardstick in the same
process; of the clients, in microseconds a message. The order of the two revisions changes with each
round.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.benchmarks.report import table
from tests.benchmarks.servers import ROOT

BROKER = "tests.benchmarks"
CLIENTS = "tests.benchmarks.clients"
UNJUDGED = ("hot-beside-cold", "visit-1000")
"""Scenarios whose figure is a latency, or whose connections take most of the time."""

MARGIN = 1.05
RUN_SECONDS_MAX = 900


class Row(NamedTuple):
    """
    One scenario.

    @ivar before: a figure for each round at the other revision.
    @ivar now: a figure for each round in this tree.
    """

    name: str
    before: list[float]
    now: list[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios, now to before."""
        return median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        return [now / before for now, before in zip(self.now, self.before, strict=True)]

    @property
    def spread(self) -> float:
        """The largest figure of the other revision, as a multiple of its median."""
        return max(self.before) / median(self.before)

    @property
    def isSlower(self) -> bool:
        """Slower by more than 5 %, and by more than the spread."""
        return self.ratio > max(MARGIN, self.spread)


def runModule(tree: Path, module: str, arguments: Sequence[str]) -> str:
    """
    Run a module of a tree.

    @raise RuntimeError: it failed; with its output.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module} in {tree} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def figure(module: str, name: str, found: Mapping[str, object]) -> float:
    """The compared figure of one run."""
    results = found[name]
    if module == CLIENTS:
        assert isinstance(results, list)
        return float(median(each["clientUs"] for each in results))
    assert isinstance(results, dict)
    key = "cpuPerGB" if name.startswith("fetch") else "cpuUs"
    broker = median(each[key] for each in results["broker"])
    return float(broker / median(each[key] for each in results["yardstick"]))


def measure(tree: Path, module: str, name: str, count: int | None, folder: Path) -> float:
    """One run of one scenario."""
    report = folder / "report.json"
    arguments = ["--only", name, "--rounds", "1", "--json", str(report)]
    if count is not None and module == CLIENTS:
        arguments += ["--count", str(count)]
    runModule(tree, module, arguments)
    return figure(module, name, json.loads(report.read_text(encoding="utf-8")))


def scenarioNames(tree: Path, module: str, parts: Sequence[str]) -> list[str]:
    """The scenarios of a tree, except the unjudged; without parts of names, all."""
    names = runModule(tree, module, ["--list"]).split()
    return [
        name
        for name in names
        if name not in UNJUDGED and (not parts or any(part in name for part in parts))
    ]


def asMarkdown(rows: Iterable[Row]) -> str:
    """The table, with the geometric mean."""
    rows = list(rows)
    cells = [
        [
            row.name,
            f"{median(row.before):.3f}",
            f"{median(row.now):.3f}",
            f"{row.ratio:.3f}",
            f"{min(row.ratios):.2f}–{max(row.ratios):.2f}",
            "slower" if row.isSlower else "",
        ]
        for row in rows
    ]
    mean = math.exp(sum(math.log(row.ratio) for row in rows) / len(rows))
    columns = ["scenario", "before", "now", "ratio", "rounds", ""]
    return "\n".join([*table(columns, cells), "", f"Geometric mean of the ratios: {mean:.3f}"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.compare",
        description="Compare the benchmarks with those of another revision.",
    )
    parser.add_argument("revision", help="the other revision, such as 9fe9e7f")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--count", type=int, help="messages of a client's run")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pylogbroker-compare-") as name:
        folder = Path(name)
        other = folder / "other"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(other), options.revision], check=True)
        try:
            scenarios = [
                (module, each)
                for module in (BROKER, CLIENTS)
                for each in scenarioNames(ROOT, module, options.only)
                if each in scenarioNames(other, module, options.only)
            ]
            rows = [Row(each, [], []) for _module, each in scenarios]
            for number in range(options.rounds):
                for (module, each), row in zip(scenarios, rows, strict=True):
                    sides = [(other, row.before), (ROOT, row.now)]
                    for tree, figures in sides if number % 2 else reversed(sides):
                        figures.append(measure(tree, module, each, options.count, folder))
                    print(f"round {number + 1} of {options.rounds}: {each}", file=sys.stderr)
        finally:
            subprocess.run([*git, "remove", "--force", str(other)], check=True)
    text = asMarkdown(rows) if rows else "no scenario is in both revisions"
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
