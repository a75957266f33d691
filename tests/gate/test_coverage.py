"""
Tests for L{tests.gate.coverage}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.gate.coverage import FLOOR, FLOORS, faults, shares


def summary(covered: int, total: int) -> dict[str, Any]:
    return {
        "summary": {
            "covered_lines": covered,
            "covered_branches": 1,
            "num_statements": total,
            "num_branches": 1,
        }
    }


class CoverageTests(SynchronousTestCase):
    """The floors of the rooms."""

    def test_shares(self) -> None:
        """The modules of a room count together; a module beside the rooms counts by itself."""
        files = {
            "pylogbroker/a/b.py": summary(3, 3),
            "pylogbroker/a/c/d.py": summary(1, 3),
            "pylogbroker/e.py": summary(9, 9),
        }
        self.assertEqual(shares(files), {"a": 75.0, "e": 100.0})

    def test_floors(self) -> None:
        """
        A room below its floor is a fault, and so is a floor whose room has gone, be it by a rename.
        """
        lines: list[str] = []
        good = dict.fromkeys(FLOORS, 100.0)
        self.assertEqual(faults({**good, "other": FLOOR}, lines.append), [])
        room = next(iter(FLOORS))
        self.assertEqual(
            faults({**good, room: 99.5, "other": 10.0}, lines.append),
            [f"{room} 99.50 % < 100 %", "other 10.00 % < 95 %"],
        )
        self.assertIn("TOO LOW", lines[-1])
        del good[room]
        self.assertEqual(faults(good, lines.append), [f"{room} has a floor and no modules"])
        self.assertEqual(faults({}, lines.append), ["nothing was measured"])
