"""
The whole cluster by hand::

    python -m tests.simulation.cluster --seed 7                 one seed, step by step
    python -m tests.simulation.cluster --seeds 0-99999          many; those that fail are named
    python -m tests.simulation.cluster --planted 2000           find each planted fault

The exit status is 0 if all that must hold held, or if each planted fault was found.
"""

from __future__ import annotations

from tests.simulation.cluster.planted import PLANTS
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.seedprogram import runSeeds, seedParser


def main() -> int:
    """Returns the exit status."""
    return runSeeds(seedParser("cluster", "a whole cluster"), lambda _options: ClusterWorld, PLANTS)


if __name__ == "__main__":
    raise SystemExit(main())
