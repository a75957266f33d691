"""
Tests for L{tests.gate.features}, and of the list itself.
"""

from __future__ import annotations

from twisted.python.reflect import namedAny
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.gate.features import PAGE, Feature, faults, readFeatures

ROWS = {*range(1, 145)}
"""Rows of the feature checklist that are there. Later releases add theirs."""


class PageTests(SynchronousTestCase):
    """C{docs/features.md}."""

    def setUp(self) -> None:
        self.features = readFeatures(PAGE.read_text(encoding="utf-8"))

    def test_everyRow(self) -> None:
        """Every row of the checklist that is covered is there, once."""
        self.assertEqual(
            sorted(int(feature.name) for feature in self.features if feature.name.isdigit()),
            sorted(ROWS),
        )
        names = [feature.name for feature in self.features]
        self.assertEqual(len(names), len(set(names)))

    def test_everyRequest(self) -> None:
        """Every request of today's protocol is in a row."""
        rows = [each.sentence for each in self.features if each.name.startswith("K")]
        words = {word.strip(",:`") for row in rows for word in row.split()}
        self.assertEqual({key.apiName for key in ApiKey} - words, set())

    def test_onlyRow91IsVoid(self) -> None:
        """Every row has a test but the one for Java."""
        self.assertEqual(
            [
                feature.name
                for feature in self.features
                if feature.name.isdigit() and feature.isVoid
            ],
            ["91"],
        )
        self.assertEqual(
            [feature.name for feature in self.features if not feature.isVoid and not feature.tests],
            [],
        )

    def test_everyTestExists(self) -> None:
        """Every test that is named can be found, and is one."""
        named = {test for feature in self.features for test in feature.tests}
        self.assertGreater(len(named), 100)
        for test in named:
            self.assertTrue(callable(namedAny(test)), test)
            self.assertTrue(test.rpartition(".")[2].startswith("test_"), test)


class ReadTests(SynchronousTestCase):
    """Reading a page, and judging a run."""

    TEXT = """
    | # | feature | shown by |
    |---|---|---|
    | 1 | one \\| two | `tests.a.test_b`, `tests.c.D.test_e` |
    | 2 | nothing | void: because |
    | Some.test | three | not yet |
    not a row | at | all
    """.replace("\n    ", "\n")

    def test_rows(self) -> None:
        """Name, sentence and tests are taken from a row; heads and prose are not rows."""
        self.assertEqual(
            readFeatures(self.TEXT),
            [
                Feature("1", "one \\| two", ("tests.a.test_b", "tests.c.D.test_e"), False),
                Feature("2", "nothing", (), True),
                Feature("Some.test", "three", (), False),
            ],
        )

    def test_faults(self) -> None:
        """A test that did not run or did not pass is a fault, and so is a row that names none."""
        features = readFeatures(self.TEXT)
        good = {"tests.a.test_b": "passed", "tests.c.D.test_e": "passed"}
        self.assertEqual(faults(features, good, "passed"), ["Some.test: no test is named"])
        self.assertEqual(faults(features[:2], good, "passed"), [])
        self.assertEqual(
            faults(features[:2], {"tests.a.test_b": "skipped"}, "passed"),
            ["1: tests.a.test_b: skipped", "1: tests.c.D.test_e did not run"],
        )
