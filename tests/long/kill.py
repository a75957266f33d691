"""
The long form of C{tests.integration.test_kill}::

    python -m tests.long.kill --rounds 200 --seed 7

prints the seed, the versions, and what the rounds were made of; the exit status is 0 if nothing
visible was lost.
"""

from __future__ import annotations

from pylogbroker.records.compression import zlib
from tests.integration.kills import PROPERTIES, KillTrial
from tests.long.killtrials import runKillTrial


def main() -> int:
    """Run it; returns the exit status."""
    return runKillTrial(
        "tests.long.kill",
        "Kill a broker at random moments and look for what was lost.",
        "the moments and the messages",
        KillTrial,
        f"CRC by {zlib.__name__}",
        PROPERTIES,
        "visible",
    )


if __name__ == "__main__":
    raise SystemExit(main())
