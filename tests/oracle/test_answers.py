"""What is recorded can be read, and belongs to the scenarios there are."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.oracle import answers
from tests.oracle.answers import ANSWERS, asRecorded, readAnswers, writeAnswers
from tests.oracle.conversation import Line
from tests.oracle.scenarios import scenarios

SIZE_MAX = 3_000_000


class AnswersTests(SynchronousTestCase):
    """The files, and the functions that read and write them."""

    def test_roundTrip(self) -> None:
        """What is written is read, and the same answer is written once."""
        folder = Path(self.mktemp())
        self.patch(answers, "ANSWERS", folder)
        lines = [
            Line("one", "Fetch v4", {"a": ["ü", None, 1]}),
            Line("two", "Fetch v4", "closed"),
            Line("three", "Fetch v5", {"a": ["ü", None, 1]}),
        ]
        writeAnswers("some", lines)
        self.assertEqual(readAnswers("some"), lines)
        self.assertTrue(
            (folder / "some.jsonl").read_text("utf-8").endswith('["three","Fetch v5",1]\n')
        )

    def test_asRecorded(self) -> None:
        """A line of a run equals the one that was read."""
        self.assertEqual(asRecorded(Line("a", "b", ("x", 1))), Line("a", "b", ["x", 1]))

    def test_everyScenarioIsRecorded(self) -> None:
        """Every scenario has its answers to the end, and no file is left over."""
        recorded = {path.stem for path in ANSWERS.iterdir()}
        self.assertEqual(recorded, set(scenarios()))
        for name in recorded:
            lines = readAnswers(name)
            self.assertTrue(lines, name)
            self.assertNotIn("the scenario", [line.label for line in lines], name)

    def test_size(self) -> None:
        """All files together stay small."""
        self.assertLess(sum(path.stat().st_size for path in ANSWERS.iterdir()), SIZE_MAX)
