"""Tests for L{pylogbroker.cli.commands.perf}."""

from __future__ import annotations

import argparse
import json
from datetime import datetime

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.perf import (
    MEGABYTE,
    REPORTING_OPTIONS,
    Measurement,
    formatDate,
    formatHeader,
    formatRow,
)


class DateTests(SynchronousTestCase):
    """Times as Java shows them."""

    def test_fields(self) -> None:
        """Every field that is known is replaced, all else stays."""
        nowMs = int(datetime(2026, 3, 4, 5, 6, 7).timestamp()) * 1000 + 8  # noqa: DTZ001 - local
        self.assertEqual(formatDate("yyyy-MM-dd HH:mm:ss:SSS", nowMs), "2026-03-04 05:06:07:008")
        self.assertEqual(formatDate("on dd.MM. at HH", nowMs), "on 04.03. at 05")


class MeasuringTests(SynchronousTestCase):
    """How much there was."""

    def setUp(self) -> None:
        self.nowMs = 1_000

    def test_total(self) -> None:
        """
        Of all: megabytes of 2^20 and messages, and their rates up to the last message, however late
        it is now.
        """
        measuring = Measurement(lambda: self.nowMs, 10)
        self.nowMs += 500
        measuring.add(4, MEGABYTE)
        self.nowMs += 1_500
        measuring.add(6, MEGABYTE)
        self.nowMs += 10_000
        self.assertEqual(measuring.total(), (2.0, 1.0, 10, 5.0))

    def test_rows(self) -> None:
        """
        A row is due whenever so many more were counted; its rates are those since the row before,
        its sums those of all.
        """
        measuring = Measurement(lambda: self.nowMs, 10)
        self.nowMs += 1_000
        self.assertEqual(
            [measuring.add(9, 0), measuring.add(1, MEGABYTE), measuring.add(9, 0)],
            [False, True, False],
        )
        self.assertEqual(measuring.sinceRow(), (1.0, 1.0, 19, 19.0))
        self.nowMs += 2_000
        self.assertTrue(measuring.add(1, MEGABYTE))
        self.assertEqual(measuring.sinceRow(), (2.0, 0.5, 20, 0.5))

    def test_noTime(self) -> None:
        """What took no measurable time has a rate all the same."""
        measuring = Measurement(lambda: self.nowMs, 10)
        measuring.add(5, 0)
        self.assertEqual(measuring.total(), (0.0, 0.0, 5, 5_000.0))


class RowTests(SynchronousTestCase):
    """Lines."""

    def options(self, *arguments: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        for argument in REPORTING_OPTIONS:
            argument(parser)
        return parser.parse_args(arguments)

    def test_text(self) -> None:
        """
        The first fraction has as many digits as was said, all others four; the separator is 0.7's.
        """
        self.assertEqual(
            formatRow(("a", "b", "c", "d"), ("now", 2, 1.23456, 2.34567), 2, False),
            "now, 2, 1.23, 2.3457\n",
        )

    def test_json(self) -> None:
        """An object with the names of the columns."""
        self.assertEqual(
            json.loads(formatRow(("a", "b"), ("now", 1.5), 2, True)), {"a": "now", "b": 1.5}
        )

    def test_header(self) -> None:
        """It can be left out, and is not in JSON."""
        self.assertEqual(formatHeader(("a", "b"), self.options()), "a, b\n")
        self.assertEqual(formatHeader(("a", "b"), self.options("--hide-header")), "")
        self.assertEqual(formatHeader(("a", "b"), self.options("--json")), "")
