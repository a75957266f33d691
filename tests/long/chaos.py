"""
The long form of C{tests.integration.test_chaos}::

    python -m tests.long.chaos --seeds 10 --seconds 120 --output docs/results/chaos.md

prints what is done while it is done, and writes a page with seeds, versions and figures; the exit
status is 0 if nothing was broken. Where something was, the directory with the logs and records of
all processes is kept, and named.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from random import SystemRandom
from time import monotonic

from pylogbroker import __version__
from pylogbroker.records.compression import zlib
from tests.integration.brokerprocess import ROOT
from tests.integration.chaos import (
    BACKOFF_MS,
    BROKER_PROPERTIES,
    COMMIT_MS,
    SESSION_MS,
    SETTLE_SECONDS,
    BrokenError,
    ChaosTrial,
    Figures,
)

Outcome = tuple[int, Figures, "str | None"]

_COLUMNS = (
    "seed",
    "sent",
    "confirmed",
    "failed",
    "unknown",
    "unknown, in a log",
    "sent again, told",
    "twice in a log",
    "in the logs",
    "delivered",
    "delivered again",
    "settled (s)",
    "",
)


def row(outcome: Outcome) -> str:
    """A line of the table."""
    seed, figures, broken = outcome
    again = ", ".join(f"{kind}: {count:,}" for kind, count in figures.duplicates.items()) or "0"
    numbers = (
        figures.sentCount,
        figures.okCount,
        figures.failedCount,
        figures.unknownCount,
        figures.unknownLoggedCount,
        figures.repeatedCount,
        figures.twiceLoggedCount,
        figures.loggedCount,
        figures.deliveredCount,
    )
    cells = [
        str(seed),
        *(f"{number:,}" for number in numbers),
        again,
        f"{figures.settledSeconds:.1f}",
        "BROKEN" if broken else "holds",
    ]
    return f"| {' | '.join(cells)} |"


def page(outcomes: Sequence[Outcome], seconds: float, command: str, revision: str) -> str:
    """The whole page, in Markdown."""
    faults: dict[str, int] = {}
    for _seed, figures, _broken in outcomes:
        for kind, count in figures.faults.items():
            faults[kind] = faults.get(kind, 0) + count
    brokenCount = sum(1 for _seed, _figures, broken in outcomes if broken)
    lines = [
        f"# Chaos: {len(outcomes)} runs of {seconds:g} s",
        "",
        f"`{command}`, at commit {revision}.",
        "",
        (
            "Three brokers of four partitions, four producers, a group of three members and one of"
            " one, all as processes at a real ZooKeeper. From the seed,"
        ),
        (
            "members join, leave, are killed (-9) and stopped for longer than a session; brokers"
            " are killed and started again, or stopped; sessions are ended"
        ),
        (
            "by others; ZooKeeper is restarted; connections are cut in the middle of a frame. What"
            " must hold is in [testing](../testing.md#chaos)."
        ),
        "",
        "```",
        (
            f"pylogbroker {__version__}, Twisted {version('Twisted')}, kazoo {version('kazoo')},"
            f" Python {platform.python_version()}, CRC by {zlib.__name__}, {platform.system()}"
            f" {platform.release()}"
        ),
        (
            f"session {SESSION_MS} ms, back-off {BACKOFF_MS} ms, commit every {COMMIT_MS} ms;"
            f" stable within {SETTLE_SECONDS} s after the last fault"
        ),
        *(f"{key}={value}" for key, value in BROKER_PROPERTIES.items()),
        "```",
        "",
        (
            "Faults, of all runs:"
            f" {', '.join(f'{count} × {kind}' for kind, count in sorted(faults.items()))}."
        ),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
        *map(row, outcomes),
        "",
        f"{len(outcomes) - brokenCount} of {len(outcomes)} runs held.",
    ]
    for seed, _figures, broken in outcomes:
        if broken:
            lines += ["", f"Seed {seed}:", "", "```", broken, "```"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.chaos",
        description="Disturb a cluster of processes, and see whether the books balance.",
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many runs (10)")
    parser.add_argument("--seed", type=int, help="the first seed; the others follow it (random)")
    parser.add_argument(
        "--seconds", type=float, default=120, help="how long faults come, in each run (120)"
    )
    parser.add_argument("--output", type=Path, help="a page to write the figures to")
    options = parser.parse_args()
    first = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    command = (
        f"python -m tests.long.chaos --seeds {options.seeds} --seed {first} --seconds"
        f" {options.seconds:g}"
    )
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    out = sys.stdout
    outcomes: list[Outcome] = []
    for number in range(options.seeds):
        seed = first + number
        folder = tempfile.mkdtemp(prefix="pylogbroker-chaos-")
        begun = monotonic()

        def tell(text: str, seed: int = seed, number: int = number, begun: float = begun) -> None:
            out.write(
                f"{number + 1}/{options.seeds} seed {seed} {monotonic() - begun:6.1f} s  {text}\n"
            )
            out.flush()

        trial = ChaosTrial(folder, seed, options.seconds, tell)
        broken = None
        try:
            trial.run()
        except BrokenError as error:
            broken = str(error)
            tell(f"BROKEN, see {folder}:\n{error}")
        else:
            tell("holds")
            shutil.rmtree(folder)
        tell(str(trial.figures))
        outcomes.append((seed, trial.figures, broken))
        if options.output is not None:
            options.output.write_text(
                page(outcomes, options.seconds, command, found.stdout.strip() or "unknown"),
                encoding="utf-8",
            )
    return 1 if any(broken for _seed, _figures, broken in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
