"""
Tests for L{pylogbroker.cli.commands.load}.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr
from pathlib import Path

from pylogbroker.cli.commands.load import compactTable
from pylogbroker.cli.main import parse
from pylogbroker.cli.streams import Streams
from tests.spark.loader.cases import LoadCase


class CommandTests(LoadCase):
    """Few files of many."""

    def perform(self, *arguments: str) -> str:
        """Compact."""
        path = self.mktemp()
        with open(path, "wb") as file:
            self.assertEqual(
                compactTable(
                    parse(["table", "compact", self.folder, *arguments]),
                    Streams(-1, file.fileno(), io.StringIO()),
                ),
                0,
            )
        return Path(path).read_text(encoding="utf-8")

    def test_rounds(self) -> None:
        """What was done, as a table or as JSON; what has few files is left alone."""
        for value in (b"a", b"b"):
            self.write(value)
            self.loaded()
        self.assertEqual(json.loads(self.perform("--min-files", "3", "--json")), {"days": []})
        self.assertEqual(json.loads(self.perform("--date", "2026-01-02", "--json")), {"days": []})
        row = self.perform("--date", "2026-01-01").splitlines()[1].split()
        self.assertEqual(row[:5], [self.topic, "2026-01-01", "2", "1", "2"])
        self.assertEqual(self.perform().splitlines(), ["TOPIC  DATE  BEFORE  FILES  ROWS  BYTES"])

    def test_wrong(self) -> None:
        """What is no date is refused."""
        errors = io.StringIO()
        with redirect_stderr(errors):
            self.assertRaises(SystemExit, parse, ["table", "compact", "/t", "--date", "2026-13-01"])
        self.assertIn("'2026-13-01' is not a date like 2026-01-31", errors.getvalue())
