"""
The long form of C{tests.integration.test_mirror}::

    python -m tests.long.mirror --messages 1000000 --kills 5

prints the seed, the versions, and what the run was made of; the exit status is 0 if nothing is
missing, what is there twice was to be expected, and the audit agrees, also after holes were
planted.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from time import monotonic

from tests.integration.mirroraudit import AuditError, MirrorAudit
from tests.integration.mirrortrial import BROKER, MirrorError, MirrorTrial
from tests.integration.zookeeperprocess import sharedZookeeper
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.mirror",
        description="Kill a mirror and restart its target, and look for what is missing.",
    )
    parser.add_argument(
        "--messages", type=int, default=1_000_000, help="how many numbered messages (1000000)"
    )
    parser.add_argument("--kills", type=int, default=5, help="how often the mirror is killed (5)")
    parser.add_argument(
        "--restarts", type=int, default=1, help="how often the target's broker is restarted (1)"
    )
    addSeed(parser, "the moments")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(
        f"seed {seed}, {options.messages} messages, {options.kills} kills, {options.restarts}"
        " restarts",
        properties=BROKER,
    )
    folder = tempfile.mkdtemp()
    begun = monotonic()
    trial = MirrorTrial(folder, sharedZookeeper(), f"mirror{seed}", seed)

    try:
        trial.run(options.messages, options.kills, options.restarts)
        tellFigures(trial.figures._asdict())
        tell(
            "nothing is missing, and what is there twice had been sent and not committed at a kill,"
            " or was told of"
        )
        tellFigures(MirrorAudit(trial).run()._asdict())
        tell(
            "the audit of source and target agrees in every window, before and after holes were"
            " planted, and names these and no others"
        )
    except (MirrorError, AuditError) as error:
        tellFigures(trial.figures._asdict())
        tell(f"WRONG: {error}\nthe directory is {folder}")
        return 1
    finally:
        trial.end()
        tellFigures({"seconds": monotonic() - begun})
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
