"""
The simulation with many seeds: C{python -m tests.coordinator.transactions 0-9999}.
"""

from __future__ import annotations

import sys

from tests.coordinator.transactions.transactionsimulation import BrokenRuleError, Simulation


def main(seeds: range) -> int:
    """@return: how many seeds break a rule."""
    brokenCount = 0
    for seed in seeds:
        try:
            Simulation(seed).run()
        except BrokenRuleError as error:
            sys.stdout.write(f"seed {seed}: {error}\n")
            brokenCount += 1
    sys.stdout.write(f"{len(seeds)} seeds, {brokenCount} broken\n")
    return brokenCount


if __name__ == "__main__":
    first, _, last = (sys.argv[1:] or ["0-9999"])[0].partition("-")
    raise SystemExit(1 if main(range(int(first), int(last or first) + 1)) else 0)
