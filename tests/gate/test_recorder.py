"""
Tests for L{tests.gate.recorder}: trial is run as the gate runs it, in one process and in two.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.gate.recorder import REPORT_VARIABLE, readReport

ROOT = Path(__file__).resolve().parent.parent.parent

SAMPLE = """
from twisted.trial.unittest import SkipTest, TestCase

class Tests(TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        self.fail("as it should")

    def test_isSkipped(self):
        raise SkipTest("not here")

    def test_hasTwoErrors(self):
        self.addCleanup(lambda: 1 / 0)
        1 / 0

    def test_failsInCleanUp(self):
        self.addCleanup(lambda: 1 / 0)

    def test_isExpectedToFail(self):
        self.fail("some day")
    test_isExpectedToFail.todo = "later"

    def test_passesUnexpectedly(self):
        pass
    test_passesUnexpectedly.todo = "later"
"""


class RecorderTests(SynchronousTestCase):
    """Every test has one outcome, its worst."""

    EXPECTED = {
        "test_sample.Tests.test_passes": "passed",
        "test_sample.Tests.test_fails": "failure",
        "test_sample.Tests.test_isSkipped": "skipped",
        "test_sample.Tests.test_hasTwoErrors": "error",
        "test_sample.Tests.test_failsInCleanUp": "error",
        "test_sample.Tests.test_isExpectedToFail": "expected failure",
        "test_sample.Tests.test_passesUnexpectedly": "unexpected success",
        "test_broken": "error",
    }

    def runSample(self, *arguments: str) -> tuple[dict[str, str], bool]:
        """Run trial on the sample and read the report."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "test_sample.py").write_text(SAMPLE, encoding="utf-8")
        (folder / "test_broken.py").write_text("import nonsense\n", encoding="utf-8")
        path = os.pathsep.join((str(ROOT / "tests" / "gate" / "plugin"), str(ROOT), str(folder)))
        environment = {**os.environ, "PYTHONPATH": path, REPORT_VARIABLE: str(folder / "report")}
        subprocess.run(
            [
                sys.executable,
                "-m",
                "twisted.trial",
                "--reporter=record",
                *arguments,
                "test_sample",
                "test_broken",
            ],
            cwd=folder,
            env=environment,
            capture_output=True,
            check=False,
        )
        return readReport(folder / "report")

    def test_oneProcess(self) -> None:
        """In one process."""
        self.assertEqual(self.runSample(), (self.EXPECTED, True))

    def test_twoProcesses(self) -> None:
        """In two."""
        self.assertEqual(self.runSample("--jobs=2"), (self.EXPECTED, True))

    def test_brokeOff(self) -> None:
        """A report without its end says so; none at all is one of no tests."""
        path = Path(self.mktemp())
        self.assertEqual(readReport(path), ({}, False))
        path.write_text('["a", "passed"]\n["b", "failure"]\n["b", "passed"]\n', encoding="utf-8")
        self.assertEqual(readReport(path), ({"a": "passed", "b": "failure"}, False))
