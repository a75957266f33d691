"""
Tests for L{pylogbroker.broker.authorization}: its limits. What it refuses, and how clients are told, is shown by real connections in
L{tests.integration.test_security}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import LogEvent, Logger, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker import authorization
from pylogbroker.broker.authorization import Authorizer
from pylogbroker.config.allowlist import FETCH, PRODUCE, AllowList
from pylogbroker.errors import NotAllowedError
from pylogbroker.net.ratelimitedlog import RateLimitedLogger


class GuardTests(SynchronousTestCase):
    """One for all clients of a broker."""

    def setUp(self) -> None:
        self.events: list[LogEvent] = []
        observer: Any = self.events.append
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        rules = AllowList.parse("loader produce clicks")
        broker: Any = object()
        self.guard = Authorizer(
            broker, rules, lambda guarded: guarded, RateLimitedLogger(Clock(), Logger())
        )

    def lines(self) -> list[str]:
        return [formatEvent(event) for event in self.events]

    def test_refusal(self) -> None:
        """What a rule allows is no refusal; the rest is, is counted each time, and logged once."""
        self.assertIs(self.guard.refusal("loader", PRODUCE, "clicks"), None)
        self.assertIs(self.guard.refusal("loader", FETCH, "clicks", PRODUCE), None)
        for _time in range(3):
            self.assertIsInstance(self.guard.refusal("loader", FETCH, "clicks"), NotAllowedError)
        self.assertEqual(self.lines(), ["Refused: 'loader' may not fetch 'clicks' (allow.file)"])
        self.assertEqual(self.guard.refusedCount, 3)

    def test_toldHasALimit(self) -> None:
        """Of more refusals than can be remembered, one a while is logged."""
        self.patch(authorization, "TOLD_COUNT_MAX", 5)
        for number in range(50):
            self.guard.refusal("loader", FETCH, f"topic {number}")
        self.assertEqual(len(self.lines()), 6)

    def test_hostileNames(self) -> None:
        """Names do not reach the log as they are, nor at any length."""
        self.guard.refusal("a\nb", FETCH, "\x1b" * 30_000)
        [line] = self.lines()
        self.assertNotIn("\x1b", line)
        self.assertNotIn("\n", line)
        self.assertLess(len(line), 1000)

    def test_dialectCountHasALimit(self) -> None:
        """Clients of one name share a dialect; of more names than a limit, each has its own."""

        class Transport:
            def getPeerCertificate(self) -> None:
                return None

        first = self.guard.dialectFor(Transport())
        self.assertIs(self.guard.dialectFor(Transport()), first)
        self.patch(authorization, "DIALECT_COUNT_MAX", 0)
        self.guard._dialects.clear()
        self.assertIsNot(self.guard.dialectFor(Transport()), self.guard.dialectFor(Transport()))
