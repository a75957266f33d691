"""
Tests for L{tests.gate.pool} and the processes that it starts: a sample is run as the gate runs its
tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.gate.outcomes import PASSED
from tests.gate.pool import ROOT, Pool

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

DEADLY = """
import os
from twisted.trial.unittest import TestCase

class Tests(TestCase):
    def test_a(self):
        pass

    def test_b(self):
        print("last words", flush=True)
        os._exit(3)

    def test_c(self):
        pass
"""

PARENT = """
import subprocess, sys, threading
from twisted.trial.unittest import TestCase

class Tests(TestCase):
    def test_a(self):
        pass

    def test_b(self):
        with open({path!r}, "w") as file:
            command = [sys.executable, "-c", "input()"]
            subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[file.fileno()])
            file.write("begun" + chr(10))
        threading.Event().wait()
"""

INTERRUPTED = """
from tests.gate.__main__ import run
from tests.gate.selection import parser
raise SystemExit(run(parser().parse_args(["--jobs=1", "a name"]), ["test_parent"]))
"""


class PoolCase(SynchronousTestCase):
    """A folder with samples, on the path of the processes."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        self.lines: list[str] = []

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(self.folder)))}

    def runPool(self, names: list[str], jobCount: int, secondsMax: float = 600) -> Pool:
        pool = Pool(
            jobCount, [], self.folder, self.environment(), self.lines.append, time.monotonic
        )
        pool.run(names, {}, lambda module: False, secondsMax)
        return pool

    def outcomesOf(self, pool: Pool) -> dict[str, str]:
        assert pool.progress is not None
        self.assertEqual(pool.progress.missing, set())
        return pool.progress.outcomes.byTest


class OutcomeTests(PoolCase):
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

    def sample(self, jobCount: int) -> None:
        self.write("test_sample", SAMPLE)
        self.write("test_broken", "import nonsense\n")
        pool = self.runPool(["test_sample", "test_broken"], jobCount)
        self.assertEqual(self.outcomesOf(pool), self.EXPECTED)
        self.assertEqual(pool.faults, [])
        self.assertIn("as it should", "\n".join(self.lines))

    def test_oneProcess(self) -> None:
        """In one process."""
        self.sample(1)

    def test_twoProcesses(self) -> None:
        """In two."""
        self.sample(2)

    def test_brokeOff(self) -> None:
        """
        A test in which the process dies has failed, with what it printed; the tests after it run
        all the same.
        """
        self.write("test_deadly", DEADLY)
        pool = self.runPool(["test_deadly"], 1)
        tests = {name: f"test_deadly.Tests.test_{name}" for name in "abc"}
        self.assertEqual(
            self.outcomesOf(pool),
            {tests["a"]: PASSED, tests["b"]: "error", tests["c"]: PASSED},
        )
        self.assertIn("last words", "\n".join(self.lines))

    def test_nothingFound(self) -> None:
        """Names without tests are a fault, since a run of no tests shows nothing."""
        self.write("test_empty", "")
        pool = self.runPool(["test_empty"], 1)
        self.assertEqual((pool.progress, pool.faults), (None, ["no test was found"]))

    def test_timeOver(self) -> None:
        """A run that takes too long is broken off, and that is a fault."""
        self.write("test_sample", SAMPLE)
        pool = self.runPool(["test_sample"], 1, secondsMax=-1)
        self.assertEqual(pool.faults, ["the tests cannot be listed in time"])


class InterruptTests(PoolCase):
    """Ctrl-C."""

    def test_interrupted(self) -> None:
        """
        What has passed is counted, the interruption is a failure that says what is missing, there
        is no traceback, and no process stays behind.
        """
        path = str(self.folder / "alive")
        os.mkfifo(path)
        self.write("test_parent", PARENT.format(path=path))
        gate = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED],
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(gate.kill)
        with open(path, encoding="ascii") as alive:
            self.assertEqual(alive.readline(), "begun\n")
            gate.send_signal(signal.SIGINT)
            output, _ = gate.communicate()
            # The pipe ends when no process has it open for writing.
            self.assertEqual(alive.read(), "")
        self.assertEqual(
            output.splitlines()[-2:],
            ["FAILED  interrupted: 1 of 2 tests have not run", "1 passed, 1 failed"],
        )
        self.assertNotIn("Traceback", output)
        self.assertEqual(gate.returncode, 1)
