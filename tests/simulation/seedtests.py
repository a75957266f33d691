"""
Tests of simulated worlds: methods that run seeds of a world, or a seed with a planted mistake, and
programs that are run with different hashes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.simulation.seeds import Plant, SimulatedWorld, simulateSeed

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

    Coverage is measured in the first one only: a tracer doubles the time, and what the unit tests
    of a room do not reach may not rest on a late seed.

    @param make: a world, of the seed and of whether it is traced.
    @param seedCount: of all methods together, from seed 0 on.
    @param mustHappen: each of these figures of a world counts something in each method's seeds.
    @param command: what runs one of these seeds by hand, without C{--seed}.
    """
    for first in range(0, seedCount, eachCount):
        name = f"test_from{first:0{len(str(seedCount))}}"
        seeds = range(first, first + eachCount)
        setattr(case, name, _seedTest(make, seeds, mustHappen, command, isMeasured=first == 0))


def _seedTest(
    make: Callable[[int, bool], SimulatedWorld],
    seeds: range,
    mustHappen: Collection[str],
    command: str,
    isMeasured: bool,
) -> Callable[[SynchronousTestCase], None]:
    def test(self: SynchronousTestCase) -> None:
        figures: Counter[str] = Counter()
        tracer = sys.gettrace()
        if not isMeasured:
            sys.settrace(None)
        try:
            for seed in seeds:
                outcome = simulateSeed(make, seed)
                figures.update(outcome.figures)
                if outcome.faults:
                    story = "\n".join([*outcome.steps, *outcome.faults])
                    self.fail(f"{command} --seed {seed}\n{story}")
        finally:
            sys.settrace(tracer)  # in the frame that has set it: the tracer counts frames
        self.assertEqual([name for name in mustHappen if not figures[name]], [])

    test.__doc__ = f"Seeds {seeds.start} to {seeds.stop - 1}; what is to be tested happens."
    return test


def addPlantTests(
    case: type[SynchronousTestCase],
    make: Callable[[int, bool], SimulatedWorld],
    plants: Mapping[str, Plant],
) -> None:
    """
    Give a test case a method for each planted mistake, named as it is: its seed finds it, and says
    what it is to say.
    """
    for name, plant in plants.items():
        first, *rest = ("".join(filter(str.isalpha, word)) for word in name.split())
        title = "".join([first.lower(), *(word.capitalize() for word in rest)])
        setattr(case, f"test_{title}", _plantTest(make, name, plant))


def _plantTest(
    make: Callable[[int, bool], SimulatedWorld], name: str, plant: Plant
) -> Callable[[SynchronousTestCase], None]:
    def test(self: SynchronousTestCase) -> None:
        with plant.planted():
            outcome = simulateSeed(make, plant.seed, isTraced=True)
        found = [fault for fault in outcome.faults if plant.fault in fault]
        self.assertEqual(len(found), 1, f"{name}: {outcome.faults}")

    test.__doc__ = f"{plant.origin}: {name}."
    return test


def checkRepeated(case: SynchronousTestCase, make: type[SimulatedWorld], seedCount: int) -> None:
    """
    Have a test case check that seeds do the same in two processes with different
    C{PYTHONHASHSEED}.

    @param make: the class of the worlds.
    @param seedCount: from seed 0 on.
    """
    program = (
        f"from {make.__module__} import {make.__name__}\n"
        "from tests.simulation.seeds import simulateSeed\n"
        f"print([simulateSeed({make.__name__}, seed).fingerprint for seed in range({seedCount})])"
    )
    outputs = outputsByHashes(program)
    case.assertEqual(outputs[0], outputs[1])
    case.assertEqual(outputs[0].count(","), seedCount - 1)


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
