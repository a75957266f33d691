"""
Tests of log lines at a bearable rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.task import Clock
from twisted.logger import LogEvent, Logger, LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.ratelimitedlog import INTERVAL_MS, RateLimitedLogger


class QuietLogTests(SynchronousTestCase):
    """One line a kind and interval."""

    def setUp(self) -> None:
        self.events: Sequence[LogEvent] = self.enterContext(capturedLogs())
        self.clock = Clock()
        self.clock.advance(1e9)
        self.log = RateLimitedLogger(self.clock, Logger("quiet"))

    def lines(self) -> list[str]:
        return [formatEvent(event) for event in self.events]

    def test_first(self) -> None:
        """The first of a kind is logged at once, as a warning whose fields are fields."""
        self.log.warn("{peer} was here", peer="x")
        self.assertEqual(self.lines(), ["x was here"])
        self.assertEqual(
            (self.events[0]["log_level"], self.events[0]["peer"]), (LogLevel.warn, "x")
        )

    def test_leftOut(self) -> None:
        """More of the kind are left out for ten seconds; the next one then says how many."""
        for number in range(5):
            self.log.warn("{peer} was here", peer=number)
        self.clock.advance(INTERVAL_MS / 1000 - 0.001)
        self.log.warn("{peer} was here", peer=5)
        self.assertEqual(self.lines(), ["0 was here"])
        self.clock.advance(0.001)
        self.log.warn("{peer} was here", peer=6)
        self.assertEqual(self.lines()[1:], ["6 was here (5 more of this kind were not logged)"])
        self.clock.advance(INTERVAL_MS / 1000)
        self.log.warn("{peer} was here", peer=7)
        self.assertEqual(self.lines()[2:], ["7 was here"])

    def test_kinds(self) -> None:
        """Kinds do not wait for one another; what is in the fields makes no kind."""
        self.log.warn("{peer} was here", peer=1)
        self.log.warn("{peer} is gone", peer=1)
        self.log.warn("{peer} is gone", peer=2)
        self.assertEqual(self.lines(), ["1 was here", "1 is gone"])

    def test_braces(self) -> None:
        """Braces in what a stranger has sent are just braces."""
        self.log.warn("{peer} was here", peer="{0.__class__} {more}")
        self.assertEqual(self.lines(), ["{0.__class__} {more} was here"])
