"""
The long form of C{tests.integration.test_exactsums}::

    python -m tests.long.exactsums --kills 25 --seed 7

kills an application whose positions are in its own SQLite transaction, looks after each kill whether its sums are exactly those of the messages up to its
positions, and at last whether they are those of all messages.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from importlib.metadata import version
from random import SystemRandom
from time import monotonic

from pylogbroker import __version__
from tests.integration.exactsums import NUMBERS_PER_LIFE, PARTITION_COUNT, ExactSumTrial, InexactError
from tests.integration.zookeeperprocess import ZookeeperProcess


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.exactsums", description="Kill an application that adds up numbers, and look at its sums.")
    parser.add_argument("--kills", type=int, default=25, help="how many (25)")
    parser.add_argument("--seed", type=int, help="of the moments and the numbers (random; moments depend on the machine, too)")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = sys.stdout
    out.write(f"seed {seed}, {options.kills} kills, {PARTITION_COUNT} partitions, {NUMBERS_PER_LIFE} numbers more for each life\n")
    out.write(f"pylogbroker {__version__}, Twisted {version('Twisted')}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, ")
    out.write(f"{platform.system()} {platform.release()}\n")
    out.flush()
    folder = tempfile.mkdtemp()
    os.makedirs(folder + "/trial")
    zookeeper = ZookeeperProcess(folder + "/zookeeper").start()
    begun = monotonic()
    trial = ExactSumTrial(folder + "/trial", zookeeper.servers, seed)
    try:
        trial.run(options.kills)
    except InexactError as error:
        out.write(f"INEXACT: {error}\nthe directory is {folder}\n")
        return 1
    finally:
        zookeeper.stop()
        for name, value in (("kills", trial.killCount), ("with work done", trial.hitCount), ("numbers", trial.numberCount)):
            out.write(f"{name:>20} {value:>12,}\n")
        out.write(f"{'seconds':>20} {monotonic() - begun:>12,.0f}\n")
    shutil.rmtree(folder)
    out.write("every sum was exact, after each kill and at the end\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
