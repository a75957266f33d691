"""
The long form of C{tests.integration.test_exactsums}::

    python -m tests.long.exactsums --kills 25 --seed 7

kills an application whose positions are in its own SQLite transaction, or two at once, looks after
each kill whether its sums are exactly those of the messages up to its positions, and at last
whether they are those of all messages.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import tempfile
from time import monotonic

from tests.integration.exactsums import (
    NUMBERS_PER_LIFE,
    PARTITION_COUNT,
    ExactSumTrial,
    InexactError,
)
from tests.integration.zookeeperprocess import ZookeeperProcess
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.exactsums",
        description="Kill an application that adds up numbers, and look at its sums.",
    )
    parser.add_argument("--kills", type=int, default=25, help="how many (25)")
    addSeed(parser, "the moments and the numbers")
    options = parser.parse_args()
    seed = seedOf(options)
    what = (
        f"seed {seed}, {options.kills} kills, {PARTITION_COUNT} partitions, {NUMBERS_PER_LIFE}"
        " numbers more for each life"
    )
    tellStart(what, f"SQLite {sqlite3.sqlite_version}")
    folder = tempfile.mkdtemp()
    os.makedirs(folder + "/trial")
    zookeeper = ZookeeperProcess(folder + "/zookeeper").start()
    begun = monotonic()
    trial = ExactSumTrial(folder + "/trial", zookeeper.servers, seed)
    try:
        trial.run(options.kills)
    except InexactError as error:
        tell(f"INEXACT: {error}\nthe directory is {folder}")
        return 1
    finally:
        zookeeper.stop()
        counts = {
            "kills": trial.killCount,
            "with work done": trial.hitCount,
            "of two members": trial.sharedCount,
            "conflicts": trial.conflictCount,
        }
        tellFigures({**counts, "numbers": trial.numberCount, "seconds": monotonic() - begun})
    shutil.rmtree(folder)
    tell("every sum was exact, after each kill and at the end")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
