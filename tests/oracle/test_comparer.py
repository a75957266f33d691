"""Differences are found, and only those that the list names are allowed."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.oracle.comparer import ABSENT, Difference, Rules, compareLines, compareValues
from tests.oracle.conversation import Line


def line(answer: Any, label: str = "one") -> Line:
    """An answer to a Fetch request."""
    return Line(label, "Fetch v4", answer)


class CompareTests(SynchronousTestCase):
    """L{compareValues} and L{compareLines}."""

    def test_equal(self) -> None:
        """Equal answers have no difference."""
        answer = {"a": [1, {"b": None}], "c": "x"}
        self.assertEqual(list(compareLines("s", [line(answer)], [line(answer)])), [])

    def test_paths(self) -> None:
        """Each value that differs is named by its path."""
        apache = {"a": [1, {"b": 2}], "c": True, "d": 5, "f": [1]}
        ours = {"a": [1, {"b": 3}], "c": 1, "e": 6, "f": [1, 2]}
        self.assertEqual(
            list(compareValues(apache, ours)),
            [
                ("a.1.b", 2, 3),
                ("c", True, 1),
                ("d", 5, ABSENT),
                ("e", ABSENT, 6),
                ("f", [1], [1, 2]),
            ],
        )

    def test_closed(self) -> None:
        """A connection that was closed differs from an answer."""
        (found,) = compareLines("s", [line("closed")], [line({"a": 1})])
        self.assertEqual((found.path, found.apache, found.ours), ("", "closed", {"a": 1}))

    def test_anotherStep(self) -> None:
        """Where the scenario takes another way, the comparison ends with that."""
        apache = [line(1), line(2, "two"), line(3, "three")]
        ours = [line(1), line(2, "other"), line(4, "three")]
        (found,) = compareLines("s", apache, ours)
        self.assertEqual((found.path, found.apache), ("the step", "two Fetch v4"))

    def test_fewerSteps(self) -> None:
        """Steps that one side lacks are a difference."""
        (found,) = compareLines("s", [line(1), line(2)], [line(1)])
        self.assertEqual((found.apache, found.ours), ("1 steps more", ABSENT))
        (found,) = compareLines("s", [line(1)], [line(1), line(2)])
        self.assertEqual((found.apache, found.ours), (ABSENT, "1 steps more"))


class RulesTests(SynchronousTestCase):
    """L{Rules}."""

    found = Difference("fetch-versions", "Fetch v4", "wait", "a.0.errorCode", 1, 2)

    def test_patterns(self) -> None:
        """A rule allows what all its patterns match."""
        rule = {
            "scenario": "fetch-*",
            "request": "Fetch v*",
            "path": "a.*.errorCode",
            "reason": "r",
        }
        self.assertTrue(Rules([rule]).allow(self.found))
        for name, pattern in (("scenario", "list-*"), ("label", "other"), ("path", "a.*.offset")):
            self.assertFalse(Rules([{**rule, name: pattern}]).allow(self.found))

    def test_values(self) -> None:
        """A rule with values allows these alone."""
        self.assertTrue(Rules([{"apache": 1, "ours": 2, "reason": "r"}]).allow(self.found))
        self.assertFalse(Rules([{"apache": 1, "ours": 3, "reason": "r"}]).allow(self.found))

    def test_unused(self) -> None:
        """Rules that have allowed nothing are told."""
        rules = Rules([{"label": "wait", "reason": "r"}, {"label": "other", "reason": "r"}])
        rules.allow(self.found)
        self.assertEqual(rules.unused(), [{"label": "other", "reason": "r"}])

    def test_reasons(self) -> None:
        """A rule needs a reason, and words that rules have."""
        for bad in ({"label": "x"}, {"reason": "r", "lable": "x"}):
            with self.assertRaises(ValueError):
                Rules([bad])

    def test_committedList(self) -> None:
        """The committed list can be read."""
        self.assertFalse(Rules.load().allow(self.found))
