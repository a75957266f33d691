"""
The programs that run a simulated world with planted faults by hand.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from tests.simulation.__main__ import many, one, seedRange
from tests.simulation.seeds import Plant, SimulatedWorld, simulateSeed


def findPlanted(
    make: Callable[[int, bool], SimulatedWorld], plant: Plant, seedCount: int
) -> int | None:
    """
    The first seed that finds a fault, for the right reason; L{None}: none does.

    @param make: a world, of the seed and of whether it is traced.
    """
    for seed in range(seedCount):
        with plant.planted():
            outcome = simulateSeed(make, seed)
        if any(plant.fault in fault for fault in outcome.faults):
            return seed
    return None


def searchAll(
    make: Callable[[int, bool], SimulatedWorld],
    plants: Mapping[str, Plant],
    seedCount: int,
    out: TextIO,
) -> int:
    """Find all planted faults; returns the exit status."""
    missing = 0
    for name, plant in plants.items():
        seed = findPlanted(make, plant, seedCount)
        missing += seed is None
        found = "not found" if seed is None else f"seed {seed}"
        out.write(f"{name:50} {plant.origin:32} {found}\n")
        out.flush()
    return 1 if missing else 0


def seedParser(room: str, subject: str) -> argparse.ArgumentParser:
    """
    A parser for L{runSeeds}.

    @param room: the folder of the simulation.
    @param subject: what it simulates.
    """
    return argparse.ArgumentParser(
        prog=f"python -m tests.simulation.{room}",
        description=f"Simulate {subject}, and see whether all holds that must.",
    )


def runSeeds(
    parser: argparse.ArgumentParser,
    choose: Callable[[argparse.Namespace], Callable[[int, bool], SimulatedWorld]],
    plants: Mapping[str, Plant],
) -> int:
    """
    Do what the command line says, with the options that these programs share; returns the exit
    status.

    @param parser: a L{seedParser}, with the program's own options.
    @param choose: the world for these options.
    """
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed, step by step")
    which.add_argument("--seeds", type=seedRange, metavar="A-B", help="all from A to B")
    which.add_argument("--planted", type=int, metavar="N", help="planted faults, within N seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    make = choose(options)
    if options.planted is not None:
        return searchAll(make, plants, options.planted, sys.stdout)
    isTraced = options.seed is not None
    simulateOne = partial(simulateSeed, make, isTraced=isTraced)
    if isTraced:
        return one(options.seed, sys.stdout, simulateOne)
    return many(options.seeds, options.jobs, sys.stdout, simulateOne)
