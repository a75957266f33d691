"""Tests for L{pylogbroker.cli.output}."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.output import asJson, asJsonLine, table


class TableTests(SynchronousTestCase):
    """Results in two dresses."""

    def test_table(self) -> None:
        """
        Numbers stand at the right, all else at the left; what is not known is a dash; nothing is
        behind the last column.
        """
        rows = [("clicks", 5, None, "x"), ("a", 1234, None, None)]
        self.assertEqual(
            table(("TOPIC", "SIZE", "END", "WHO"), rows),
            "TOPIC   SIZE  END  WHO\nclicks     5  -    x\na       1234  -    -\n",
        )

    def test_empty(self) -> None:
        """Without rows there are the headings."""
        self.assertEqual(table(("A", "B"), []), "A  B\n")

    def test_hostile(self) -> None:
        """What others chose does nothing to a terminal, and makes no row of its own."""
        self.assertEqual(
            table(("A", "B"), [("\x1b[31mred", "a\nb\u202e")]),
            "A            B\n\\x1b[31mred  a\\nb\\u202e\n",
        )

    def test_json(self) -> None:
        """A document is read back, names as they are; a line has no line feed in it."""
        value = {"name": "ä\n", "number": 5, "nothing": None}
        self.assertEqual(json.loads(asJson(value)), value)
        self.assertEqual(asJsonLine(value).count("\n"), 1)
        self.assertIn("ä", asJsonLine(value))
