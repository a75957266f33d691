"""
Tests for L{tests.long.defects.__main__}, which is run by hand.
"""

from __future__ import annotations

import ast

from twisted.trial.unittest import SynchronousTestCase

from tests.long.defects.__main__ import DEFECTS, PROBES, ROOT, failureOf, shown

FAILURE = """
[FAIL]
Traceback (most recent call last):
  File "probe_x.py", line 1, in test_a
twisted.trial.unittest.FailTest: Lists differ: [] != [1]

- []
+ [1]

probe_x.XProbes.test_a
-------------------------------------------------------------------------------
Ran 1 tests in 0.001s

FAILED (failures=1)
"""


class DefectTests(SynchronousTestCase):
    """Whether a probe fails for its own reason."""

    def test_failure(self) -> None:
        """The reason of a failed assertion is one line."""
        self.assertEqual(failureOf(FAILURE), "Lists differ: [] != [1] - [] + [1]")

    def test_otherOutcomes(self) -> None:
        """An error, an error besides and a test that passes are no failure."""
        for text in (
            FAILURE.replace("twisted.trial.unittest.FailTest", "builtins.ImportError"),
            FAILURE.replace("(failures=1)", "(failures=1, errors=1)"),
            "PASSED (successes=1)\n",
            "",
        ):
            self.assertIs(failureOf(text), None)

    def test_shown(self) -> None:
        """What was expected stands on the line, however long the failure is."""
        self.assertEqual(shown("a b", "a"), "a b")
        for text in ("needle" + "x" * 900, "x" * 900 + "needle", "x" * 900 + "needle" + "x" * 900):
            found = shown(text, "needle")
            self.assertIn("needle", found)
            self.assertLess(len(found), 150)

    def test_complete(self) -> None:
        """Each probe is listed once; C{docs/results/defects.md} has its defect in a table."""
        written = [
            f"{path.stem.removeprefix('probe_')}.{case.name}.{test.name}"
            for path in PROBES.glob("probe_*.py")
            for case in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(case, ast.ClassDef)
            for test in case.body
            if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
            and test.name.startswith("test_")
        ]
        listed = [probe.name for probes in DEFECTS.values() for probe in probes]
        self.assertEqual(sorted(written), sorted(listed))
        page = (ROOT / "docs" / "results" / "defects.md").read_text(encoding="utf-8")
        page, _, _ = page.partition("Later finds, seen by hand")
        rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
        self.assertEqual(rows[1:], [f"| {defect}" for defect in DEFECTS])
