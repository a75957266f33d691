"""
The long form of C{tests.integration.test_kill}::

    python -m tests.long.kill --rounds 200 --seed 7

prints the seed, the versions, and what the rounds were made of; the exit status is 0 if nothing visible was lost.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
from importlib.metadata import version
from random import SystemRandom
from time import monotonic

from pylogbroker import __version__
from pylogbroker.formats.checksum import CRC32_NAME
from tests.integration.kills import PROPERTIES, KillTrial, LostError


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.kill", description="Kill a broker at random moments and look for what was lost.")
    parser.add_argument("--rounds", type=int, default=200, help="how many kills (200)")
    parser.add_argument("--seed", type=int, help="of the moments and the messages (random; moments depend on the machine, too)")
    options = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = sys.stdout
    out.write(f"seed {seed}, {options.rounds} rounds\n")
    out.write(f"pylogbroker {__version__}, Twisted {version('Twisted')}, Python {platform.python_version()}, CRC by {CRC32_NAME}, ")
    out.write(f"{platform.system()} {platform.release()}\n")
    out.write("".join(f"{key}={value}\n" for key, value in PROPERTIES.items()))
    out.flush()
    folder = tempfile.mkdtemp()
    begun = monotonic()
    trial = KillTrial(folder + "/logs", seed)
    try:
        trial.run(options.rounds)
    except LostError as error:
        out.write(f"LOST: {error}\nthe directory is {folder}\n")
        return 1
    finally:
        out.write("".join(f"{name:>20} {value:>12,}\n" for name, value in trial.figures._asdict().items()))
        out.write(f"{'seconds':>20} {monotonic() - begun:>12,.0f}\n")
    shutil.rmtree(folder)
    out.write("nothing that was visible is lost\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
