"""
The simulated group by hand::

    python -m tests.coordinator 0-99999        these seeds; those that fail are named

The exit status is 0 if all that must hold held.
"""

from __future__ import annotations

import sys
from collections import Counter

from tests.coordinator.groupsimulation import BrokenPromiseError, simulate


def main(text: str) -> int:
    """
    @param text: the first and the last seed.
    """
    first, _, last = text.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    counts: Counter[str] = Counter()
    failedCount = 0
    for seed in seeds:
        try:
            counts += simulate([seed])
        except BrokenPromiseError as error:
            failedCount += 1
            sys.stdout.write(f"{error}\n")
    sys.stdout.write(f"{len(seeds)} seeds, {failedCount} failed; {dict(counts)}\n")
    return 1 if failedCount else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
