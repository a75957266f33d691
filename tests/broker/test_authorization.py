"""
Tests for L{pylogbroker.broker.authorization}: its limits. What it refuses, and how clients are
told, is shown by real connections in L{tests.integration.test_security}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import LogEvent, Logger, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker import authorization
from pylogbroker.broker.authorization import RULES, AuthorizedBroker, Authorizer
from pylogbroker.broker.server import Broker
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
        broker = Broker.__new__(Broker)
        self.guard = Authorizer(
            broker, rules, lambda guarded: guarded, RateLimitedLogger(Clock(), Logger())
        )

    def lines(self) -> list[str]:
        return [formatEvent(event) for event in self.events]

    def refuse(self, name: str, topic: str) -> None:
        self.assertRaises(NotAllowedError, self.guard.require, name, topic, FETCH)

    def test_refusal(self) -> None:
        """What a rule allows is no refusal; the rest is, is counted each time, and logged once."""
        self.guard.require("loader", "clicks", PRODUCE)
        self.guard.require("loader", "clicks", FETCH, PRODUCE)
        for _time in range(3):
            self.refuse("loader", "clicks")
        self.assertEqual(self.lines(), ["Refused: 'loader' may not fetch 'clicks' (allow.file)"])
        self.assertEqual(self.guard.refusedCount, 3)

    def test_toldHasALimit(self) -> None:
        """Of more refusals than can be remembered, one a while is logged."""
        self.patch(authorization, "LOGGED_COUNT_MAX", 5)
        for number in range(50):
            self.refuse("loader", f"topic {number}")
        self.assertEqual(len(self.lines()), 6)

    def test_hostileNames(self) -> None:
        """Names do not reach the log as they are, nor at any length."""
        self.refuse("a\nb", "\x1b" * 30_000)
        [line] = self.lines()
        self.assertNotIn("\x1b", line)
        self.assertNotIn("\n", line)
        self.assertLess(len(line), 1000)

    def test_dialectCountHasALimit(self) -> None:
        """Clients of one name share a dialect; of more names than a limit, each has its own."""

        class Transport:
            def getPeerCertificate(self) -> None:
                return None

        first = self.guard.handlerFor(Transport())
        self.assertIs(self.guard.handlerFor(Transport()), first)
        self.patch(authorization, "HANDLER_COUNT_MAX", 0)
        self.guard._handlers.clear()
        self.assertIsNot(self.guard.handlerFor(Transport()), self.guard.handlerFor(Transport()))


class _WiderBroker(Broker):
    """A broker with a method that has no rule."""

    def dropEverything(self) -> None:
        raise AssertionError("called")


class ClosedTests(SynchronousTestCase):
    """What no rule names is refused."""

    def authorized(self) -> tuple[Any, list[tuple[str, ...]]]:
        """A broker for a client without any right, and what is required of it."""
        required: list[tuple[str, ...]] = []

        class Refusing(Authorizer):
            def __init__(self) -> None:
                pass

            def require(self, name: str | None, topic: str, *rights: str) -> None:
                required.append((topic, *rights))
                raise NotAllowedError(topic)

        broker: Any = _WiderBroker.__new__(_WiderBroker)
        return AuthorizedBroker(broker, Refusing(), "client"), required

    def test_methodWithoutRule(self) -> None:
        """A method of the broker that no rule names cannot be called by any client."""
        broker, _required = self.authorized()
        self.assertRaises(AttributeError, lambda: broker.dropEverything())
        self.assertFalse(hasattr(AuthorizedBroker, "__getattr__"))

    def test_methodsWithTopic(self) -> None:
        """
        Each method that reads or writes a topic's data requires a right to it, before it does
        anything. The others, which disclose no data, are listed here.
        """
        broker, required = self.authorized()
        open_ = {"exists", "partitionCount", "failedPartitionCount", "awaitWritten"}
        topical = {"tryProduce", "produce", "fetch", "offsets"}
        self.assertEqual({name for name, rights in RULES.items() if not rights}, open_)
        self.assertEqual(set(RULES) - open_, topical)
        self.assertEqual({name for name in dir(broker) if not name.startswith("_")}, set(RULES))
        for method in ("tryProduce", "fetch", "produce", "offsets"):
            self.assertRaises(NotAllowedError, getattr(broker, method), "t", 0, b"")
        self.assertEqual(
            required, [("t", PRODUCE), ("t", FETCH), ("t", PRODUCE), ("t", FETCH, PRODUCE)]
        )
