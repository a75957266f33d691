"""
The simulated cluster by hand::

    python -m tests.simulation --seed 156               one seed, step by step
    python -m tests.simulation --seeds 0-99999          many; those that fail are named
    python -m tests.simulation --seed 7 --delete-group  an operator deletes the group's nodes
    python -m tests.simulation --groups --seed 7        the coordinator of today's groups
    python -m tests.simulation --transactions --seed 7  the coordinator of transactions

The exit status is 0 if all that must hold held. Interrupted, it says how far it came.
"""

from __future__ import annotations

import argparse
import platform
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from time import monotonic, process_time
from typing import TextIO

from pylogbroker import __version__
from tests.simulation.coordinators.migration import groupWorld
from tests.simulation.coordinators.transactions import TransactionWorld
from tests.simulation.seeds import SeedOutcome, simulateSeed
from tests.simulation.simulation import Outcome, simulate

AnyOutcome = Outcome | SeedOutcome
Simulate = Callable[[int], AnyOutcome]

CHUNK_COUNT = 50
TOLD_COUNT_MAX = 20
INTERVAL_SECONDS = 0.2
LOG_INTERVAL_SECONDS = 60.0
"""Between two lines of a file."""


class Progress:
    """A line on a terminal; on anything else, a new line each L{LOG_INTERVAL_SECONDS}."""

    def __init__(self, errors: TextIO, totalCount: int) -> None:
        self._errors = errors
        self._totalCount = totalCount
        self._isTerminal = errors.isatty()
        self._begun = self._last = monotonic()

    def update(self, count: int, failedCount: int) -> None:
        """C{count} seeds are done."""
        now = monotonic()
        isLast = count == self._totalCount
        interval = INTERVAL_SECONDS if self._isTerminal else LOG_INTERVAL_SECONDS
        if now - self._last > interval or (isLast and self._isTerminal):
            self._last = now
            rate = count / (now - self._begun)
            text = (
                f"{count:,} of {self._totalCount:,} seeds, {failedCount} failed, {rate:.1f}"
                f" seeds/s, {(self._totalCount - count) / rate / 60:,.0f} min left"
            )
            if self._isTerminal:
                text = f"\r{text}   "
            self._errors.write(text + ("\n" if isLast or not self._isTerminal else ""))
            self._errors.flush()


def describe(outcome: AnyOutcome) -> str:
    """A seed, for people."""
    lines = [
        f"seed {outcome.seed}",
        *(f"  {step}" for step in outcome.steps),
        *(f"  FAULT {fault}" for fault in outcome.faults),
    ]
    return "\n".join(lines) + "\n"


def chunk(
    seeds: range, simulateOne: Simulate = simulate
) -> tuple[Counter[str], list[AnyOutcome], float]:
    """Some seeds: figures, those that failed, CPU seconds."""
    figures: Counter[str] = Counter()
    failed: list[AnyOutcome] = []
    begun = process_time()
    for seed in seeds:
        outcome = simulateOne(seed)
        figures.update(outcome.figures)
        if outcome.faults:
            failed.append(outcome)
    return figures, failed, process_time() - begun


def runAll(
    seeds: range, jobCount: int, simulateOne: Simulate
) -> Iterator[tuple[Counter[str], list[AnyOutcome], float]]:
    """In order."""
    chunks = [seeds[start : start + CHUNK_COUNT] for start in range(0, len(seeds), CHUNK_COUNT)]
    if jobCount == 1:
        yield from (chunk(some, simulateOne) for some in chunks)
        return
    with ProcessPoolExecutor(
        jobCount, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        yield from pool.map(partial(chunk, simulateOne=simulateOne), chunks)


def many(seeds: range, jobCount: int, out: TextIO, simulateOne: Simulate = simulate) -> int:
    """Run them, and print what they were made of."""
    out.write(
        f"seeds {seeds.start}-{seeds.stop - 1}, pylogbroker {__version__}, Twisted"
        f" {version('Twisted')}, Python {platform.python_version()}\n"
    )
    out.flush()
    figures: Counter[str] = Counter()
    failed: list[AnyOutcome] = []
    begun, cpuSeconds, doneCount = monotonic(), 0.0, 0
    progress = Progress(sys.stderr, len(seeds))
    try:
        for some, faulty, seconds in runAll(seeds, jobCount, simulateOne):
            figures.update(some)
            failed += faulty
            cpuSeconds += seconds
            doneCount = min(doneCount + CHUNK_COUNT, len(seeds))
            progress.update(doneCount, len(failed))
    except KeyboardInterrupt:
        out.write(
            f"stopped after {doneCount} seeds, the last one is {seeds[max(doneCount - 1, 0)]}\n"
        )
    for name, count in sorted(figures.items()):
        out.write(f"{name:>20} {count:>14,}\n")
    out.write(
        f"{'CPU ms a seed':>20} {1000 * cpuSeconds / max(doneCount, 1):>14.1f}\n{'seconds':>20}"
        f" {monotonic() - begun:>14,.0f}\n"
    )
    for outcome in failed[:TOLD_COUNT_MAX]:
        out.write(describe(outcome))
    if failed:
        out.write(
            f"FAILED: {len(failed)} of {doneCount} seeds:"
            f" {' '.join(str(outcome.seed) for outcome in failed[:1000])}\n"
        )
        return 1
    out.write(f"all {doneCount} seeds hold\n")
    return 0 if doneCount == len(seeds) else 1


def one(seed: int, out: TextIO, simulateOne: Simulate = simulate) -> int:
    """Run a seed, and print all of it."""
    outcome = simulateOne(seed)
    out.write(describe(outcome))
    out.write("".join(f"  {name} {count:,}\n" for name, count in sorted(outcome.figures.items())))
    out.write(f"  fingerprint {outcome.fingerprint:08x}\n")
    out.write("it does not hold\n" if outcome.faults else "it holds\n")
    return 1 if outcome.faults else 0


def seedRange(text: str) -> range:
    """C{0-99999}."""
    first, _, last = text.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if not seeds:
        raise ValueError(text)
    return seeds


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Simulate a cluster, and see whether all holds that must.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed, step by step")
    which.add_argument("--seeds", type=seedRange, metavar="A-B", help="all from A to B")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (%(default)s)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--groups",
        dest="world",
        action="store_const",
        const=groupWorld,
        help="simulate the coordinator of today's groups alone",
    )
    what.add_argument(
        "--transactions",
        dest="world",
        action="store_const",
        const=TransactionWorld,
        help="simulate the coordinator of transactions alone",
    )
    what.add_argument(
        "--delete-group",
        dest="isGroupDeleted",
        action="store_true",
        help="an operator deletes the group's nodes now and then",
    )
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    simulateOne: Simulate = partial(simulate, isGroupDeleted=options.isGroupDeleted)
    if options.world is not None:
        simulateOne = partial(simulateSeed, options.world, isTraced=options.seed is not None)
    if options.seed is not None:
        return one(options.seed, sys.stdout, simulateOne)
    return many(options.seeds, options.jobs, sys.stdout, simulateOne)


if __name__ == "__main__":
    raise SystemExit(main())
