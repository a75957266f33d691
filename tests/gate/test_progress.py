"""
Tests for the order of the tests, L{tests.gate.schedule}, and for what a run says,
L{tests.gate.progress}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.gate.commands import SILENCE_SECONDS_MAX, duration
from tests.gate.progress import Progress
from tests.gate.schedule import (
    SPLIT_SECONDS,
    Batch,
    moduleOf,
    plan,
    readSeconds,
    takeNext,
    writeSeconds,
)


def ids(module: str, count: int) -> list[str]:
    return [f"{module}.Tests.test_{number}" for number in range(count)]


class PlanTests(SynchronousTestCase):
    """Batches."""

    def test_moduleOf(self) -> None:
        """A test's module is what stands before its class; that of a broken module is itself."""
        self.assertEqual(moduleOf("tests.a.test_b.Class.test_c"), "tests.a.test_b")
        self.assertEqual(moduleOf("tests.a.test_b"), "tests.a.test_b")

    def test_longestFirst(self) -> None:
        """
        Long modules begin first; one of which nothing is known counts by its tests; one that uses
        Spark begins before all.
        """
        tests = [*ids("a", 1), *ids("b", 1), *ids("c", 1000), *ids("d", 1), *ids("spark", 1)]
        batches = plan(tests, {"a": 1.0, "b": 5.0}, lambda module: module == "spark")
        self.assertEqual([batch.module for batch in batches], ["spark", "c", "b", "a", "d"])
        self.assertEqual(
            [test for batch in batches for test in batch.tests if "b." in test], ids("b", 1)
        )

    def test_split(self) -> None:
        """A module that takes very long is handed out test by test, and stays together."""
        tests = [*ids("a", 1), *ids("b", 3)]
        batches = plan(tests, {"a": 30.0, "b": SPLIT_SECONDS + 3}, lambda module: False)
        self.assertEqual(
            [batch.tests for batch in batches],
            [*((test,) for test in ids("b", 3)), tuple(ids("a", 1))],
        )
        self.assertAlmostEqual(batches[0].seconds, (SPLIT_SECONDS + 3) / 3)

    def test_oneProcessForSpark(self) -> None:
        """
        Only the process that has a Spark session gets tests that use one; another gets what comes
        after them.
        """
        sparks = [Batch(f"s{number}", ("t",), 1.0, True) for number in range(2)]
        other = Batch("o", ("t",), 1.0, False)
        pending = [*sparks, other]
        self.assertEqual(takeNext(pending, False, False), sparks[0])
        self.assertEqual(takeNext(pending, False, True), other)
        self.assertEqual(takeNext(pending, False, True), None)
        self.assertEqual(takeNext(pending, True, True), sparks[1])
        self.assertEqual(pending, [])

    def test_table(self) -> None:
        """The table keeps what takes a second or more, the longest first."""
        text = writeSeconds({"a": 1.25, "b": 0.9, "c": 7.0})
        self.assertEqual(text, "c 7.0\na 1.2\n")
        self.assertEqual(readSeconds(text), {"c": 7.0, "a": 1.2})


class ProgressTests(SynchronousTestCase):
    """Lines, on a clock of their own."""

    def setUp(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        batches = [
            Batch("tests.a", tuple(ids("tests.a", 2)), 10.0, False),
            Batch("tests.b", tuple(ids("tests.b", 8)), 30.0, False),
        ]
        self.progress = Progress(batches, self.lines.append, lambda: self.now)

    def pass_(self, test: str, seconds: float, process: int = 0) -> None:
        self.progress.begin(process, test)
        self.now += seconds
        self.progress.outcome(test, "passed", "")
        self.progress.end(process, test)

    def test_modules(self) -> None:
        """
        A line when a module has ended: how many of all, its time, and how long the rest takes.
        """
        first, second = ids("tests.a", 2)
        self.pass_(first, 5.0)
        self.assertEqual(self.lines, [])
        self.pass_(second, 15.0)
        self.assertEqual(self.lines, [" 2 of 10 tests.a  20.0 s; about 60 s left"])
        self.assertEqual(self.progress.outcomes.secondsOf, {"tests.a": 20.0})
        for test in ids("tests.b", 8):
            self.pass_(test, 1.0)
        self.assertEqual(self.lines[1:], ["10 of 10 tests.b  8.0 s"])
        self.assertEqual((self.progress.missing, self.progress.outcomes.passedCount), (set(), 10))

    def test_silence(self) -> None:
        """What runs is named when nothing has been said for long."""
        self.progress.begin(0, ids("tests.a", 1)[0])
        self.now += 1.0
        self.progress.begin(1, ids("tests.b", 1)[0])
        self.now += SILENCE_SECONDS_MAX - 2.0
        self.progress.tick()
        self.assertEqual(self.lines, [])
        self.now += 1.0
        self.progress.tick()
        self.progress.tick()
        self.assertEqual(
            self.lines, [" 0 of 10 running a.Tests.test_0 (8 s), b.Tests.test_0 (7 s)"]
        )

    def test_failure(self) -> None:
        """What fails is told at once, with its reason, and counts by its worst outcome."""
        test = ids("tests.a", 1)[0]
        self.progress.begin(0, test)
        self.progress.outcome(test, "failure", "because\n")
        self.progress.outcome(test, "passed", "")
        self.assertEqual(self.lines, [f"FAILED  failure: {test}\nbecause"])
        self.assertEqual(self.progress.outcomes.failed(), [f"failure: {test}"])

    def test_durations(self) -> None:
        """Seconds, then minutes."""
        self.assertEqual(
            [duration(each) for each in (3.2, 89.0, 91.0, 600.0)],
            ["3 s", "89 s", "2 min", "10 min"],
        )
