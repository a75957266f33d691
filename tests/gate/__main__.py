"""
Runs the tests, and with C{--checks} all that must hold besides, and closes with one line: C{N passed, N failed}.

Every test is counted, by its worst outcome; anything but a pass is a failure, a skipped test included. Each check (ruff, mypy, the import
contracts, the list of features, the coverage of the rooms) counts as one more. A run that breaks off is a failure by itself.

Tests run in two processes under C{coverage} (only with C{--checks}); the benchmarks run by themselves afterwards, since neither a neighbour
nor a tracer does a ratio of CPU times any good.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from pathlib import Path

from tests.gate import features
from tests.gate.recorder import PASSED, REPORT_VARIABLE, readReport

ROOT = Path(__file__).resolve().parent.parent.parent
BENCHMARKS = "tests.benchmarks"
TRIAL_SECONDS_MAX = 3600

COVERAGE_FLOORS = {"records": 100.0, "protocol": 100.0, "cluster": 100.0, "config": 100.0}
"""Per cent of lines and branches, by room."""

COVERAGE_FLOOR = 95.0
"""Of all other rooms."""

CHECKS = {
    "ruff": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "--quiet", "."],
    "mypy": ["-m", "mypy"],
    "import contracts": [
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-cache",
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

    def close(self) -> int:
        """Print what failed and the count; return the exit status."""
        for fault in self.faults:
            print(f"FAILED  {fault}")
        print(f"{self.passedCount} passed, {len(self.faults)} failed", flush=True)
        return 1 if self.faults or not self.passedCount else 0


def announce(text: str) -> None:
    print(f"\n== {text}", flush=True)


def testNames() -> list[str]:
    """What is in C{tests/}, as names for trial, without the benchmarks."""
    names = []
    for path in sorted((ROOT / "tests").iterdir()):
        isPackage = path.is_dir() and (path / "__init__.py").exists()
        isModule = path.suffix == ".py" and path.stem.startswith("test_")
        name = f"tests.{path.stem}"
        if (isPackage or isModule) and name != BENCHMARKS:
            names.append(name)
    return names


def runTrial(
    names: list[str], jobCount: int, prefix: list[str], folder: Path, environment: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """
    Run trial.

    @param prefix: what comes between the interpreter and trial's own arguments.
    @param folder: for trial's files and the report.
    @return: outcomes by test id, and what went wrong besides.
    """
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    plugin = str(ROOT / "tests" / "gate" / "plugin")
    environment = {**environment, REPORT_VARIABLE: str(report), "PYTHONPATH": plugin}
    arguments = [
        sys.executable,
        *prefix,
        "--reporter=record",
        f"--temp-directory={folder / 'trial'}",
    ]
    if jobCount > 1:
        arguments.append(f"--jobs={jobCount}")
    faults = []
    try:
        status = subprocess.run(
            [*arguments, *names],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=TRIAL_SECONDS_MAX,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        status = -1
        faults.append(f"trial took more than {TRIAL_SECONDS_MAX} s")
    outcomes, ended = readReport(report)
    if not ended:
        faults.append(f"trial broke off with status {status}")
    elif status and all(outcome == PASSED for outcome in outcomes.values()):
        faults.append(f"trial ended with status {status} though every test passed")
    if not outcomes:
        faults.append("no test ran")
    return outcomes, faults


def coverageFaults(environment: dict[str, str]) -> list[str]:
    """Sum the coverage of each room and compare."""
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "combine", "--quiet"], cwd=ROOT, env=environment, check=False)
    subprocess.run([*coverage, "report"], cwd=ROOT, env=environment, check=False)
    out = subprocess.run(
        [*coverage, "json", "--quiet", "-o", "/dev/stdout"],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    if out.returncode:
        return [f"no coverage: {out.stdout}{out.stderr}"]
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in json.loads(out.stdout)["files"].items():
        room = Path(name).parts[1].removesuffix(".py")
        summary = found["summary"]
        rooms[room][0] += summary["covered_lines"] + summary["covered_branches"]
        rooms[room][1] += summary["num_statements"] + summary["num_branches"]
    faults = []
    for room, (covered, total) in sorted(rooms.items()):
        share = 100.0 * covered / total if total else 100.0
        floor = COVERAGE_FLOORS.get(room, COVERAGE_FLOOR)
        isLow = share < floor
        print(f"{room:16} {share:6.2f} % of at least {floor:.0f} %{'  TOO LOW' if isLow else ''}")
        if isLow:
            faults.append(f"{room} {share:.2f} % < {floor:.0f} %")
    return faults or ([] if rooms else ["nothing was measured"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/run", description="Install what the tests need and pass them."
    )
    parser.add_argument(
        "--checks",
        action="store_true",
        help="also ruff, mypy, import contracts and coverage, as the gate does",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="processes to run the tests in (%(default)s)",
    )
    parser.add_argument(
        "names", nargs="*", help="modules, classes or methods, as for trial; all without any"
    )
    options = parser.parse_args()
    tally = Tally()
    environment = dict(os.environ)

    if options.checks:
        for name, arguments in CHECKS.items():
            announce(name)
            status = subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, check=False
            ).returncode
            tally.check(name, [f"status {status}"] if status else [])

    with tempfile.TemporaryDirectory(prefix="pylogbroker-tests-") as name:
        folder = Path(name)
        prefix = ["-m", "twisted.trial"]
        if options.checks:
            environment["COVERAGE_FILE"] = str(folder / "coverage")
            prefix = ["-m", "coverage", "run", *prefix]
        announce("tests")
        outcomes, faults = runTrial(
            options.names or testNames(), options.jobs, prefix, folder, environment
        )
        if options.checks:
            announce("coverage")
            tally.check("coverage", coverageFaults(environment))
        if not options.names and any((ROOT / "tests" / "benchmarks").glob("test_*.py")):
            announce("benchmarks, the short form")
            more, moreFaults = runTrial(
                [BENCHMARKS], 1, ["-m", "twisted.trial"], folder, dict(os.environ)
            )
            outcomes.update(more)
            faults += moreFaults

    tally.passedCount += sum(outcome == PASSED for outcome in outcomes.values())
    tally.faults += [
        f"{outcome}: {testId}" for testId, outcome in outcomes.items() if outcome != PASSED
    ]
    tally.faults += faults
    if not options.names:
        announce("features")
        rows = features.readFeatures(features.PAGE.read_text(encoding="utf-8"))
        print(f"{len(rows)} features")
        tally.check("features", features.faults(rows, outcomes, PASSED))
    print()
    return tally.close()


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Exception:
        traceback.print_exc()
        print("0 passed, 1 failed", flush=True)
        raise SystemExit(1) from None
