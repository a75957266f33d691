"""
Our ZooKeeper server, for long::

    python -m tests.long.zookeeper --kills 200 --works 5 --seed 7

kills a server process again and again under load (L{tests.integration.zookeeperkills}), cuts the
power, and kills, before every step of the file system
(L{tests.zookeeper.server.powercuts}), and runs all of kazoo's own tests for which one server
suffices. It prints what it did; the exit status is 0 if no promise was broken.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from time import monotonic

import kazoo.version
from twisted.logger import globalLogPublisher

from tests.integration.kazootests import NOT_OURS, runKazoosTests
from tests.integration.zookeeperkills import ZookeeperKillTrial
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart
from tests.zookeeper.server.powercuts import PowerCutTrial

KILLS_OF_A_SERVER = 25
"""Then a new server, with an empty directory, follows."""


def _kills(seed: int, count: int) -> None:
    done = answered = lost = 0
    while done < count:
        folder = tempfile.mkdtemp()
        trial = ZookeeperKillTrial(folder, seed + done)
        trial.run(min(KILLS_OF_A_SERVER, count - done))
        shutil.rmtree(folder)  # it stays when a promise was broken
        done += trial.killCount
        answered += trial.answeredCount
        lost += trial.lostCount
        tell(f"{done} kills, {answered} transactions answered, {lost} times answers were lost")


def _powerCuts(seed: int, workCount: int) -> None:
    cuts = steps = 0
    for workSeed in range(seed, seed + workCount):
        stepCount = PowerCutTrial(0, None, workSeed=workSeed).run()
        steps += stepCount
        for isKill in (False, True):
            for cutAt in range(stepCount):
                PowerCutTrial(seed + cutAt, cutAt, isKill, workSeed).run()
                cuts += 1
        tell(f"{cuts} power cuts and kills, half of each, at {steps} steps")


def _kazoo() -> None:
    folder = tempfile.mkdtemp()
    outcome = runKazoosTests(folder)
    shutil.rmtree(folder)
    tellFigures(
        {
            "passed": outcome.passedCount,
            "failed": len(outcome.failed),
            "skipped": len(outcome.skipped),
            "seconds": outcome.seconds,
        }
    )
    for name, reason in NOT_OURS.items():
        tell(f"left out: {name}: {reason}")
    for name, reason in outcome.skipped.items():
        tell(f"skipped: {name}: {reason}")
    assert not outcome.failed, outcome.failed


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.zookeeper", description="Try our ZooKeeper server for long."
    )
    parser.add_argument("--kills", type=int, default=200, help="of a process (200)")
    parser.add_argument(
        "--works", type=int, default=5, help="different works, cut at each of their steps (5)"
    )
    addSeed(parser, "the moments and the works")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(
        f"seed {seed}, {options.kills} kills, {options.works} works",
        f"kazoo {kazoo.version.__version__}",
    )
    # The server reports the lost power as a failure of its own.
    for observer in list(globalLogPublisher._observers):
        globalLogPublisher.removeObserver(observer)
    parts: dict[str, Callable[[], None]] = {
        "kazoo's tests": _kazoo,
        "power cuts": lambda: _powerCuts(seed, options.works),
        "kills": lambda: _kills(seed, options.kills),
    }
    status = 0
    for name, part in parts.items():
        start = monotonic()
        try:
            part()
        except AssertionError as error:
            status = 1
            tell(f"{name}: BROKEN: {error}")
        tell(f"{name}: {monotonic() - start:.0f} s")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
