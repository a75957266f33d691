"""
The whole cluster by hand::

    python -m tests.simulation.cluster --seed 7                 one seed, step by step
    python -m tests.simulation.cluster --seeds 0-99999          many; those that fail are named
    python -m tests.simulation.cluster --planted 2000           find each planted fault

The exit status is 0 if all that must hold held, or if each planted fault was found.
"""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial

from tests.simulation.__main__ import many, one, seedRange
from tests.simulation.cluster.planted import PLANTS
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.coordinators.world import simulateCoordinator
from tests.simulation.replication.__main__ import searchAll


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.cluster",
        description="Simulate a whole cluster, and see whether all holds that must.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed, step by step")
    which.add_argument("--seeds", type=seedRange, metavar="A-B", help="all from A to B")
    which.add_argument("--planted", type=int, metavar="N", help="planted faults, within N seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if options.planted is not None:
        return searchAll(ClusterWorld, PLANTS, options.planted, sys.stdout)
    isTraced = options.seed is not None
    simulateOne = partial(simulateCoordinator, ClusterWorld, isTraced=isTraced)
    if isTraced:
        return one(options.seed, sys.stdout, simulateOne)
    return many(options.seeds, options.jobs, sys.stdout, simulateOne)


if __name__ == "__main__":
    raise SystemExit(main())
