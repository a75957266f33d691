"""
The long form of C{tests.integration.test_kill}::

    python -m tests.long.kill --rounds 200 --seed 7

prints the seed, the versions, and what the rounds were made of; the exit status is 0 if nothing
visible was lost.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from time import monotonic

from pylogbroker.records.compression import zlib
from tests.integration.kills import PROPERTIES, KillTrial, LostError
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.kill",
        description="Kill a broker at random moments and look for what was lost.",
    )
    parser.add_argument("--rounds", type=int, default=200, help="how many kills (200)")
    addSeed(parser, "the moments and the messages")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(
        f"seed {seed}, {options.rounds} rounds", f"CRC by {zlib.__name__}", properties=PROPERTIES
    )
    folder = tempfile.mkdtemp()
    begun = monotonic()
    trial = KillTrial(folder + "/logs", seed)
    try:
        trial.run(options.rounds)
    except LostError as error:
        tell(f"LOST: {error}\nthe directory is {folder}")
        return 1
    finally:
        tellFigures({**trial.figures._asdict(), "seconds": monotonic() - begun})
    shutil.rmtree(folder)
    tell("nothing that was visible is lost")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
