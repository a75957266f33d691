"""
The long form of C{tests.integration.test_exactlyonce}::

    python -m tests.long.exactlyonce --records 5000 --seed 7

prints the seed, the versions, and what the run was made of; the exit status is 0 if every record is
there once, in order.
"""

from __future__ import annotations

import argparse
from time import monotonic

from tests.integration.exactlyonce import PROPERTIES, ExactlyOnceTrial, NotExactError
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.exactlyonce",
        description="Kill transactional applications and their broker; look for what is not exact.",
    )
    parser.add_argument("--records", type=int, default=5_000, help="how many (5000)")
    parser.add_argument(
        "--step", type=int, default=50, help="records between two kills, at most (50)"
    )
    addSeed(parser, "the moments, and what is killed")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(f"seed {seed}, {options.records} records", properties=PROPERTIES)
    begun = monotonic()
    try:
        figures = ExactlyOnceTrial(seed, options.records, options.step).run()
    except NotExactError as error:
        tell(f"NOT EXACT: {error}")
        return 1
    tellFigures({**figures._asdict(), "seconds": monotonic() - begun})
    tell("every record is there once, in order")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
