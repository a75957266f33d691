"""
The whole cluster by hand::

    python -m tests.simulation.cluster --seed 7                 one seed, step by step
    python -m tests.simulation.cluster --seeds 0-99999          many; those that fail are named

The exit status is 0 if all that must hold held.
"""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial

from tests.simulation.__main__ import many, one, seedRange
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.coordinators.world import simulateCoordinator


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.cluster",
        description="Simulate a whole cluster, and see whether all holds that must.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed, step by step")
    which.add_argument("--seeds", type=seedRange, metavar="A-B", help="all from A to B")
    parser.add_argument("--jobs", type=int, default=1, help="processes to use (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    isTraced = options.seed is not None
    simulateOne = partial(simulateCoordinator, ClusterWorld, isTraced=isTraced)
    if isTraced:
        return one(options.seed, sys.stdout, simulateOne)
    return many(options.seeds, options.jobs, sys.stdout, simulateOne)


if __name__ == "__main__":
    raise SystemExit(main())
