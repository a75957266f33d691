"""
The replicated partition by hand::

    python -m tests.simulation.replication --seed 7                 one seed, step by step
    python -m tests.simulation.replication --seeds 0-99999 --jobs 2 many; those that fail are named
    python -m tests.simulation.replication --stored --seeds 0-999   with logs on files
    python -m tests.simulation.replication --planted 2000           find each planted fault

The exit status is 0 if all that must hold held, or if each planted fault was found.
"""

from __future__ import annotations

from tests.simulation.replication.planted import PLANTS
from tests.simulation.replication.storedlog import StoredWorld
from tests.simulation.replication.world import ReplicationWorld
from tests.simulation.seedprogram import runSeeds, seedParser


def main() -> int:
    """Returns the exit status."""
    parser = seedParser("replication", "a replicated partition")
    parser.add_argument("--stored", action="store_true", help="logs on files that forget")
    return runSeeds(
        parser, lambda options: StoredWorld if options.stored else ReplicationWorld, PLANTS
    )


if __name__ == "__main__":
    raise SystemExit(main())
