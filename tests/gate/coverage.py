"""
How much of each room the tests must reach. This is the only place that names rooms and their
floors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FLOOR = 95.0
"""
Per cent of lines and branches that tests reach in each room, and in each module beside the rooms.
"""

FLOORS = {
    "records": 100.0,
    "protocol": 100.0,
    "cluster": 100.0,
    "config": 100.0,
    "coordinator": 100.0,
    "replication": 100.0,
}
"""Higher floors, by room."""


def shares(files: Mapping[str, Any]) -> dict[str, float]:
    """
    Per cent of lines and branches that were reached, by room.

    @param files: C{files} of C{coverage json}: summaries by the path of a module in the checkout.
    """
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in files.items():
        room = Path(name).parts[1].removesuffix(".py")
        summary = found["summary"]
        counts[room][0] += summary["covered_lines"] + summary["covered_branches"]
        counts[room][1] += summary["num_statements"] + summary["num_branches"]
    return {
        room: 100.0 * covered / total if total else 100.0
        for room, (covered, total) in sorted(counts.items())
    }


def faults(found: Mapping[str, float], say: Callable[[str], object]) -> list[str]:
    """
    What is wrong with the coverage: a room below its floor, a floor for a room that is not there,
    or nothing measured.

    @param found: per cent by room.
    @param say: prints a line.
    """
    wrong = []
    for room, share in found.items():
        floor = FLOORS.get(room, FLOOR)
        isLow = share < floor
        say(f"{room:16} {share:6.2f} % of at least {floor:.0f} %{'  TOO LOW' if isLow else ''}")
        if isLow:
            wrong.append(f"{room} {share:.2f} % < {floor:.0f} %")
    wrong += [f"{room} has a floor and no modules" for room in FLOORS if room not in found]
    return wrong if found else ["nothing was measured"]
