"""
Tests of the simulations of coordinators and of replicas: methods that run seeds of a world, and a
program that is run with different hashes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.coordinators.world import SimulatedWorld, simulateCoordinator

ROOT = Path(__file__).resolve().parent.parent.parent


def addSeedTests(
    case: type[SynchronousTestCase],
    make: Callable[[int, bool], SimulatedWorld],
    seedCount: int,
    eachCount: int,
    mustHappen: Collection[str],
    command: str,
) -> None:
    """
    Give a test case a method C{test_fromN} for each C{eachCount} seeds, in which all must hold.

    @param make: a world, of the seed and of whether it is traced.
    @param seedCount: of all methods together, from seed 0 on.
    @param mustHappen: each of these figures of a world counts something in each method's seeds.
    @param command: what runs one of these seeds by hand, without C{--seed}.
    """
    for first in range(0, seedCount, eachCount):
        name = f"test_from{first:0{len(str(seedCount))}}"
        setattr(case, name, _seedTest(make, range(first, first + eachCount), mustHappen, command))


def _seedTest(
    make: Callable[[int, bool], SimulatedWorld],
    seeds: range,
    mustHappen: Collection[str],
    command: str,
) -> Callable[[SynchronousTestCase], None]:
    def test(self: SynchronousTestCase) -> None:
        figures: Counter[str] = Counter()
        for seed in seeds:
            outcome = simulateCoordinator(make, seed)
            figures.update(outcome.figures)
            if outcome.faults:
                story = "\n".join([*outcome.steps, *outcome.faults])
                self.fail(f"{command} --seed {seed}\n{story}")
        self.assertEqual([name for name in mustHappen if not figures[name]], [])

    test.__doc__ = f"Seeds {seeds.start} to {seeds.stop - 1}; what is to be tested happens."
    return test


def outputsByHashes(program: str) -> list[str]:
    """What a Python program prints in each of two processes with different C{PYTHONHASHSEED}."""
    return [
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashSeed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashSeed in ("1", "2")
    ]
