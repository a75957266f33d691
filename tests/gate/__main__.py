"""
Runs the tests, and with C{--checks} all that must hold besides, and closes with one line: C{N
passed, N failed}.

Every test counts once, by its worst outcome. Anything but a pass is a failure, a skipped test
included. Each check (ruff, format, mypy, the import contracts, the coverage of the rooms, the list
of features) counts as one more. A run that breaks off or is interrupted is a failure by itself.

Tests run in two processes, under C{coverage} with C{--checks}. The benchmarks run by themselves
afterwards, in one process and without C{coverage}, since both a neighbour and a tracer would
distort a ratio of CPU times.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.gate import coverage, features
from tests.gate.commands import duration, execute
from tests.gate.needs import needsOf, testFiles
from tests.gate.outcomes import PASSED
from tests.gate.pool import Pool
from tests.gate.schedule import TABLE, readSeconds, writeSeconds
from tests.gate.selection import BENCHMARKS, UnknownTestsError, chosenNames, modulesOf, parser

RUN_SECONDS_MAX = 3600
SLOWEST_COUNT = 8
"""How many modules are named after C{--quick}."""

CHECKS = {
    "ruff": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "--quiet", "."],
    "mypy": ["-m", "mypy"],
    "import contracts": [
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ],
}


class Tally:
    """Counts, and keeps what to say about what failed."""

    def __init__(self) -> None:
        self.passedCount = 0
        self.faults: list[str] = []

    def check(self, name: str, found: list[str]) -> None:
        """One check, which holds if nothing was found."""
        if found:
            self.faults.append(f"{name}: " + "; ".join(found))
        else:
            self.passedCount += 1

    def count(self, pool: Pool) -> None:
        """The tests that a pool has run."""
        self.faults += pool.faults
        if pool.progress is not None:
            outcomes, missing = pool.progress.outcomes, len(pool.progress.missing)
            self.passedCount += outcomes.passedCount
            self.faults += outcomes.failed()
            if missing and not pool.isInterrupted:
                self.faults.append(f"{missing} of {pool.progress.totalCount} tests have not run")

    def close(self) -> int:
        """Print what failed and the count; return the exit status."""
        for fault in self.faults:
            print(f"FAILED  {fault}")
        print(f"{self.passedCount} passed, {len(self.faults)} failed", flush=True)
        return 1 if self.faults or not self.passedCount else 0


def say(text: str) -> None:
    """One line for the person who waits."""
    print(text, flush=True)


def announce(text: str) -> None:
    """What begins now."""
    say(f"\n== {text}")


class Gate:
    """
    One run of C{tests/run}.

    @ivar tally: what was counted so far.
    """

    def __init__(self, options: argparse.Namespace, names: list[str], folder: Path) -> None:
        """
        @param options: what was asked for.
        @param names: the tests, as for trial.
        @param folder: for files of the run.
        """
        self.tally = Tally()
        self._options = options
        self._names = names
        self._folder = folder
        self._isWhole = not options.names and not options.quick
        self._seconds = secondsOf()
        self._pool: Pool | None = None
        self._outcomes: dict[str, str] = {}
        self._measured: dict[str, float] = {}

    def run(self) -> None:
        """All that was asked for. The tally is right at each moment."""
        alone = [name for name in self._names if name.startswith(BENCHMARKS)]
        together = [name for name in self._names if name not in alone]
        if self._options.checks or self._options.quick:
            self._check()
        environment = dict(os.environ)
        isMeasured = self._options.checks and self._isWhole
        if isMeasured:
            environment["COVERAGE_FILE"] = str(self._folder / "coverage")
        if together:
            announce("tests")
            prefix = ["-m", "coverage", "run"] if isMeasured else []
            self._test(together, self._options.jobs, prefix, environment, showsOutput=False)
        if isMeasured:
            announce("coverage")
            self.tally.check("coverage", coverageFaults(environment))
        if alone:
            announce("benchmarks, the short form")
            self._test(alone, 1, [], dict(os.environ), showsOutput=True)
        if self._options.quick:
            announce("the slowest modules")
            for module, seconds in self._slowest():
                say(f"{seconds:6.1f} s  {module}")
        if self._options.remember:
            known = {**self._seconds, **self._measured}
            there = {module: known[module] for module in known if module in testFiles()}
            TABLE.write_text(writeSeconds(there), encoding="utf-8")
        if self._isWhole:
            announce("features")
            rows = features.readFeatures(features.PAGE.read_text(encoding="utf-8"))
            say(f"{len(rows)} features")
            self.tally.check("features", features.faults(rows, self._outcomes, PASSED))

    def _slowest(self) -> list[tuple[str, float]]:
        ordered = sorted(self._measured.items(), key=lambda item: -item[1])
        return ordered[:SLOWEST_COUNT]

    def _check(self) -> None:
        for name, arguments in CHECKS.items():
            announce(name)
            status = execute(name, [sys.executable, *arguments])
            self.tally.check(name, [f"status {status}"] if status else [])

    def _test(
        self,
        names: list[str],
        jobCount: int,
        prefix: list[str],
        environment: dict[str, str],
        *,
        showsOutput: bool,
    ) -> None:
        pool = Pool(jobCount, prefix, self._folder, environment, say, time.monotonic, showsOutput)
        self._pool = pool
        pool.run(names, self._seconds, usesSpark, RUN_SECONDS_MAX)
        self._pool = None
        self.tally.count(pool)
        if pool.progress is not None:
            self._outcomes.update(pool.progress.outcomes.byTest)
            self._measured.update(pool.progress.outcomes.secondsOf)
        if pool.isInterrupted and pool.progress is not None:
            missing, total = len(pool.progress.missing), pool.progress.totalCount
            raise KeyboardInterrupt(f"{missing} of {total} tests have not run")
        if pool.isInterrupted:
            raise KeyboardInterrupt

    def interrupt(self, *_: Any) -> None:
        """Handles a signal: a pool ends by itself, and everything else is broken off."""
        if self._pool is None:
            raise KeyboardInterrupt
        self._pool.interrupt()


def secondsOf() -> dict[str, float]:
    """How long modules take, by the table."""
    return readSeconds(TABLE.read_text(encoding="utf-8"))


def usesSpark(module: str) -> bool:
    """Whether a test module uses a Spark session."""
    return bool(modulesOf([module])) and "spark" in needsOf(module)


def coverageFaults(environment: dict[str, str]) -> list[str]:
    """Sum the coverage of each room and compare."""
    command = [sys.executable, "-m", "coverage"]
    report = f"{environment['COVERAGE_FILE']}.json"
    execute("coverage combine", [*command, "combine", "--quiet"], environment)
    execute("coverage report", [*command, "report"], environment)
    status = execute("coverage json", [*command, "json", "--quiet", "-o", report], environment)
    if status:
        return [f"no coverage: status {status}"]
    files = json.loads(Path(report).read_text(encoding="utf-8"))["files"]
    return coverage.faults(coverage.shares(files), say)


def run(options: argparse.Namespace, names: list[str]) -> int:
    """
    One run, which ends with the count whatever happens.

    @param options: what was asked for.
    @param names: the tests, as for trial.
    @return: the exit status.
    """
    began = time.monotonic()

    with tempfile.TemporaryDirectory(
        prefix="pylogbroker-tests-", ignore_cleanup_errors=True
    ) as folder:
        gate = Gate(options, names, Path(folder))
        signal.signal(signal.SIGINT, gate.interrupt)
        signal.signal(signal.SIGTERM, gate.interrupt)
        try:
            gate.run()
        except KeyboardInterrupt as interruption:
            gate.tally.faults.append(f"interrupted: {interruption}".removesuffix(": "))
        except Exception:
            traceback.print_exc()
            gate.tally.faults.append("the gate itself failed")
    say(f"\n{duration(time.monotonic() - began)}")
    return gate.tally.close()


def main(arguments: list[str]) -> int:
    """
    Run what was asked for.

    @return: the exit status.
    """
    options = parser().parse_args(arguments)
    try:
        names = chosenNames(options, secondsOf())
    except UnknownTestsError as error:
        say(f"tests/run: {error}\n0 passed, 1 failed")
        return 2
    return run(options, names)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
