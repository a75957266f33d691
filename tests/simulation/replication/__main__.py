"""
The replicated partition by hand::

    python -m tests.simulation.replication --seed 7                 one seed, step by step
    python -m tests.simulation.replication --seeds 0-99999 --jobs 2 many; those that fail are named
    python -m tests.simulation.replication --stored --seeds 0-999   with logs on files
    python -m tests.simulation.replication --planted 2000           find each planted fault

The exit status is 0 if all that must hold held, or if each planted fault was found.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from tests.simulation.__main__ import many, one, seedRange
from tests.simulation.coordinators.world import SimulatedWorld, simulateCoordinator
from tests.simulation.replication.planted import PLANTS, Plant
from tests.simulation.replication.storedlog import StoredWorld
from tests.simulation.replication.world import ReplicationWorld


def findPlanted(
    make: Callable[[int, bool], SimulatedWorld], plant: Plant, seedCount: int
) -> int | None:
    """
    The first seed that finds a fault, for the right reason; L{None}: none does.

    @param make: a world, of the seed and of whether it is traced.
    """
    for seed in range(seedCount):
        with plant.planted():
            outcome = simulateCoordinator(make, seed)
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


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.replication",
        description="Simulate a replicated partition, and see whether all holds that must.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed, step by step")
    which.add_argument("--seeds", type=seedRange, metavar="A-B", help="all from A to B")
    which.add_argument("--planted", type=int, metavar="N", help="planted faults, within N seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (%(default)s)")
    parser.add_argument("--stored", action="store_true", help="logs on files that forget")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if options.planted is not None:
        return searchAll(ReplicationWorld, PLANTS, options.planted, sys.stdout)
    isTraced = options.seed is not None
    make = StoredWorld if options.stored else ReplicationWorld
    simulateOne = partial(simulateCoordinator, make, isTraced=isTraced)
    if isTraced:
        return one(options.seed, sys.stdout, simulateOne)
    return many(options.seeds, options.jobs, sys.stdout, simulateOne)


if __name__ == "__main__":
    raise SystemExit(main())
