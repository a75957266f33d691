"""
C{python -m tests.benchmarks}: compiles the yardstick, measures it and the broker in turn, prints
tables.

It judges (met, not met), but does not fail: a figure is no test.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.machine import describe, load
from tests.benchmarks.native import Programs
from tests.benchmarks.report import Results, asMarkdown
from tests.benchmarks.scenarios import ALL, LONG, SHORT, SHORT_NAMES, Scenario, Stage

FASTER_CHECKSUMS = ("zlib_ng",)


class Progress:
    """One line on a terminal that is written over; nothing where nobody looks."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._isShown = sys.stderr.isatty()
        self._begun = time.monotonic()

    def show(self, text: str) -> None:
        self._done += 1
        if self._isShown:
            sys.stderr.write(
                f"\r\x1b[K{self._done}/{self._total}  {time.monotonic() - self._begun:.0f} s "
                f" {text}"
            )
            sys.stderr.flush()

    def end(self) -> None:
        if self._isShown:
            sys.stderr.write("\r\x1b[K")


def chosenScenarios(isShort: bool, parts: Sequence[str]) -> list[Scenario]:
    """
    @param parts: of names; none: all.
    """
    offered = [scenario for scenario in ALL if parts or not isShort or scenario.name in SHORT_NAMES]
    return [
        scenario
        for scenario in offered
        if not parts or any(part in scenario.name for part in parts)
    ]


def withoutFasterChecksums(folder: Path) -> Path:
    """A folder that, first on the path, hides the modules that are quicker than zlib."""
    hiding = folder / "hiding"
    hiding.mkdir()
    for name in FASTER_CHECKSUMS:
        (hiding / f"{name}.py").write_text('raise ImportError("hidden for a benchmark")\n')
    return hiding


def measure(
    stage: Stage, scenarios: Sequence[Scenario], roundCount: int
) -> list[tuple[Scenario, Results]]:
    """All scenarios, round by round."""
    progress = Progress(
        roundCount * sum(len(scenario.sides) * scenario.turnCount for scenario in scenarios)
    )
    measured: list[tuple[Scenario, Results]] = [
        (scenario, {side: [] for side in scenario.sides}) for scenario in scenarios
    ]
    for number in range(roundCount):
        for scenario, results in measured:
            for side in scenario.sides * scenario.turnCount:
                progress.show(f"round {number + 1}: {scenario.name}, {side}")
                results[side].append(scenario.run(stage, side))
    progress.end()
    return measured


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure the broker against a yardstick in C, in the same run.",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="less of everything, one round: the gate's form, under a minute",
    )
    parser.add_argument("--rounds", type=int, help="how often (3, or 1 with --short)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="scenarios whose name has this in it; can be repeated",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of the scenarios and stop"
    )
    parser.add_argument(
        "--checksum",
        choices=("fastest", "zlib"),
        default="fastest",
        help="what the broker may take CRC-32 from (%(default)s)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="where the data go (the system's folder for temporary files); needs 2 GB",
    )
    parser.add_argument("--output", type=Path, help="write the tables into this file, too")
    parser.add_argument("--json", type=Path, help="write all figures of all rounds into this file")
    options = parser.parse_args(arguments)
    scenarios = chosenScenarios(options.short, options.only)
    if options.list or not scenarios:
        print("\n".join(scenario.name for scenario in scenarios or ALL))
        return 0 if options.list else 2
    roundCount = options.rounds or (1 if options.short else 3)
    with tempfile.TemporaryDirectory(
        prefix="pylogbroker-benchmarks-", dir=options.directory
    ) as name:
        folder = Path(name)
        try:
            programs = Programs(folder)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            return 1
        pythonPath = [withoutFasterChecksums(folder)] if options.checksum == "zlib" else []
        surroundings = describe(folder, programs.compiler, pythonPath)
        stage = Stage(programs, folder, SHORT if options.short else LONG, pythonPath)
        loadBefore = load()
        try:
            measured = measure(stage, scenarios, roundCount)
        finally:
            stage.close()
    surroundings.append(
        (
            "load of the machine",
            (
                f"{loadBefore} before, {load()} after; where others want its processors, rates say"
                " nothing, and CPU less"
            ),
        )
    )
    text = asMarkdown(surroundings, roundCount, measured, options.short)
    print(text, end="", flush=True)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")
    if options.json is not None:
        options.json.write_text(
            json.dumps({scenario.name: results for scenario, results in measured}, indent=1),
            encoding="utf-8",
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
