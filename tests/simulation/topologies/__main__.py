"""
Topologies by hand::

    python -m tests.simulation.topologies --seed 7                 one seed, step by step
    python -m tests.simulation.topologies --seeds 0-99999 --jobs 2 many; those that fail are named
    python -m tests.simulation.topologies --planted 2000           find each planted fault

The exit status is 0 if all that must hold held, or if each planted fault was found.
"""

from __future__ import annotations

from tests.simulation.seedprogram import runSeeds, seedParser
from tests.simulation.topologies.planted import PLANTS
from tests.simulation.topologies.world import TopologiesWorld


def main() -> int:
    """Returns the exit status."""
    return runSeeds(
        seedParser("topologies", "topologies"), lambda _options: TopologiesWorld, PLANTS
    )


if __name__ == "__main__":
    raise SystemExit(main())
