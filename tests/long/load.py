"""
The long form of C{tests.integration.test_load}::

    python -m tests.long.load --kills 20

prints the seed, the versions, and what the run was made of; the exit status is 0 if the table equals the topic after each kill, and in the end.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from random import SystemRandom
from time import monotonic

from pylogbroker import __version__
from tests.integration.loadtrial import LoadTrial, LoadTrialError
from tests.integration.sparksession import SparkCluster


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.load", description="Kill a loader again and again, and compare table and topic.")
    parser.add_argument("--messages", type=int, default=20_000, help="how many messages are published before each load (20000)")
    parser.add_argument("--kills", type=int, default=20, help="how often the loader is killed (20)")
    parser.add_argument("--seed", type=int, help="of the moments (random; they depend on the machine, too)")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = sys.stdout
    out.write(f"seed {seed}, {options.messages} messages a load, {options.kills} kills\n")
    out.write(f"pylogbroker {__version__}, PySpark {version('pyspark')}, Python {platform.python_version()}, {platform.system()} {platform.release()}\n")
    out.flush()
    folder = tempfile.mkdtemp(prefix="pylogbroker-load-")
    os.makedirs(f"{folder}/trial")
    begun = monotonic()
    cluster = SparkCluster(2, num_partitions="2", log_file_size="400000")
    trial = LoadTrial(f"{folder}/trial", cluster, seed, _progress)
    try:
        trial.run(options.messages, options.kills)
    except LoadTrialError as error:
        out.write(f"WRONG: {error}\nthe directory is {folder}\n")
        return 1
    finally:
        cluster.end()
        out.write("".join(f"{name:>20} {value:>12,}\n" for name, value in trial.figures._asdict().items()))
        out.write(f"{'seconds':>20} {monotonic() - begun:>12,.0f}\n")
    shutil.rmtree(folder)
    out.write("the table was what its offsets said after each kill, and equals the topic, row for row\n")
    return 0


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<79}")


if __name__ == "__main__":
    raise SystemExit(main())
