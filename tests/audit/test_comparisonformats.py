"""
Tests for L{pylogbroker.audit.comparisonformats}.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.audit.comparison import AuditAggregator, Comparison
from pylogbroker.audit.comparisonformats import asJson, asTable, timeText
from pylogbroker.audit.counts import CountReport

START = 1_767_225_600_000  # 2026-01-01


def comparison(topic: str = "clicks", seen: int = 99_999) -> Comparison:
    ledger = AuditAggregator(60_000)
    for number, count in enumerate((100_000, 7)):
        ledger.enter(
            CountReport(
                "sent",
                "live",
                topic,
                START + number * 60_000,
                60_000,
                count,
                3,
                "p",
                number,
                1,
                "h",
                0,
                4,
            )
        )
    ledger.see("live", topic, START, seen, checksum=3)
    return ledger.compare(["live"], START + 120_000, 60_000, notes=["one partition was not read"])


class TableTests(SynchronousTestCase):
    """For people."""

    def test_table(self) -> None:
        """
        A line for each window and total, numbers under one another; what is not whole does not look
        whole.
        """
        self.assertEqual(
            asTable(comparison()),
            "topic   window                tier  expected  unknown   seen  complete  status\n"
            "clicks  2026-01-01T00:00:00Z  live    100000        3  99999   99.99 %  missing\n"
            "clicks  2026-01-01T00:01:00Z  live         7        3      0    0.00 %  open\n"
            "clicks  total                 live    100000        3  99999   99.99 %  missing\n"
            "at least 1 message is missing in 1 place\n"
            "note: one partition was not read\n",
        )

    def test_brief(self) -> None:
        """Only holes and totals, when it is to be brief."""
        text = asTable(comparison(seen=100_001), isBrief=True)
        self.assertEqual(len(text.splitlines()), 4)
        self.assertNotIn("more are there", text)
        self.assertIn("nothing is missing; 1 window is not over yet", text)

    def test_more(self) -> None:
        """How many are there beyond those that were sent, or may have been, is said."""
        self.assertIn(
            "2 messages more than were sent, in 1 place",
            asTable(comparison(seen=100_005)),
        )

    def test_different(self) -> None:
        """Where as many are there, but others, that is a hole of one at least."""
        ledger = AuditAggregator(1000)
        ledger.enter(CountReport("sent", "live", "t", 0, 1000, 5, 0, "p", 0, 1, "h", 0, 4))
        ledger.see("live", "t", 0, 5, checksum=5)
        text = asTable(ledger.compare(["live"], 10**6, 0), isBrief=True)
        self.assertIn("different", text)
        self.assertIn("at least 1 message is missing in 1 place", text)

    def test_nothing(self) -> None:
        """No messages at all is said, too."""
        self.assertIn("nothing to compare", asTable(AuditAggregator(1000).compare(["live"], 0, 0)))

    def test_hostileNames(self) -> None:
        """What is in a name does not reach a terminal's controls."""
        self.assertNotIn("\x1b", asTable(comparison("a\x1b[2Jb")))

    def test_timesThatCannotBe(self) -> None:
        """A time that no calendar has is shown as a number."""
        self.assertEqual(timeText(2**62), str(2**62))


class JsonTests(SynchronousTestCase):
    """For programs."""

    def test_json(self) -> None:
        """All fields of each line, and what was computed of them."""
        found = json.loads(asJson(comparison()))
        self.assertEqual(
            (found["isComplete"], found["isCertain"], found["windowMs"], found["notes"]),
            (False, True, 60_000, ["one partition was not read"]),
        )
        self.assertEqual(
            found["windows"][0],
            {
                "topic": "clicks",
                "startMs": START,
                "tier": "live",
                "expectedCount": 100_000,
                "unknownCount": 3,
                "seenCount": 99_999,
                "arrivalCount": 0,
                "reference": "sent",
                "expectedChecksum": 4,
                "seenChecksum": 3,
                "status": "missing",
                "missingCount": 1,
                "moreCount": 0,
                "completeness": 0.99999,
            },
        )
        self.assertNotIn("startMs", found["totals"][0])
