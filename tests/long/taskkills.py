"""
The long form of C{tests.integration.test_taskkills}::

    python -m tests.long.taskkills --kills 200 --seed 7

prints the seed, the versions, each kill, and what the run was made of; the exit status is 0 if all
counts were as promised, at least once and exactly once.
"""

from __future__ import annotations

import argparse

from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.integration.taskkills import PROPERTIES, SETTINGS, NotCountedError, TaskKillTrial
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.taskkills",
        description="Kill containers of tasks and their broker; look for wrong counts.",
    )
    parser.add_argument("--kills", type=int, default=200, help="in all (200)")
    parser.add_argument("--run", type=int, default=10, help="kills in a run (10)")
    addSeed(parser, "the moments, and what is killed")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(f"seed {seed}, {options.kills} kills", properties={**PROPERTIES, **SETTINGS})
    for number in range(options.kills // options.run):
        guarantee = (AT_LEAST_ONCE, EXACTLY_ONCE)[number % 2]
        tell(f"run {number + 1}: seed {seed + number}, {guarantee}")
        try:
            figures = TaskKillTrial(seed + number, guarantee, options.run, say=tell).run()
        except NotCountedError as error:
            tell(f"WRONG: {error}")
            return 1
        given = figures._asdict()
        kills = given.pop("kills")
        tellFigures({**given, **{f"killed: {name}": count for name, count in kills.items()}})
    tell("all counts are as promised")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
