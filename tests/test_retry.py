"""Tests for L{pylogbroker.retry}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.retry import Backoff, ReconnectPolicy


class BackoffTests(SynchronousTestCase):
    """The wait before the next attempt."""

    def test_grows(self) -> None:
        """Each failure in a row doubles the wait, up to the longest."""
        backoff = Backoff(lambda: 0.0)
        self.assertEqual(
            [backoff.failed() for _ in range(10)], [10, 20, 40, 80, 160, 320, 640, 1280, 2000, 2000]
        )

    def test_beginsAnew(self) -> None:
        """After a success the next failure is a first one."""
        backoff = Backoff(lambda: 0.0, firstMs=1, factor=10, maxMs=60_000)
        self.assertEqual([backoff.failed(), backoff.failed()], [1, 10])
        backoff.succeeded()
        self.assertEqual(backoff.failed(), 1)

    def test_jitter(self) -> None:
        """Chance takes away a part of the wait, up to the jitter, and never adds to it."""
        chances = iter([0.0, 0.5, 1.0])
        backoff = Backoff(lambda: next(chances), firstMs=100, factor=1, jitter=0.5)
        self.assertEqual([backoff.failed(), backoff.failed(), backoff.failed()], [100, 75, 50])


class ReconnectRuleTests(SynchronousTestCase):
    """When a good connection is replaced."""

    def test_byCount(self) -> None:
        """The request that makes the interval full is the connection's last; a new connection begins to count at 0."""
        rule = ReconnectPolicy(3, -1, lambda: 0.0)
        for _ in range(2):
            rule.connected(0)
            self.assertEqual([rule.sent(0), rule.sent(0), rule.sent(0)], [False, False, True])

    def test_byTime(self) -> None:
        """The first request after the interval is the connection's last."""
        rule = ReconnectPolicy(100, 1000, lambda: 0.0)
        rule.connected(5000)
        self.assertEqual([rule.sent(5999), rule.sent(6000)], [False, True])

    def test_timeIsOff(self) -> None:
        """A negative interval is never over."""
        rule = ReconnectPolicy(100, -1, lambda: 0.9)
        rule.connected(0)
        self.assertFalse(rule.sent(10**12))

    def test_everyTime(self) -> None:
        """An interval of no time at all is over with each request, as with 0.7.2."""
        rule = ReconnectPolicy(100, 0, lambda: 0.0)
        rule.connected(0)
        self.assertTrue(rule.sent(0))

    def test_jitterOfTheFirst(self) -> None:
        """The first connection counts as made a random part of the time interval ago (gotcha 36: not of the request count); later ones do not."""
        rule = ReconnectPolicy(10**6, 1000, lambda: 0.25)
        rule.connected(0)
        self.assertEqual([rule.sent(749), rule.sent(750)], [False, True])
        rule.connected(750)
        self.assertEqual([rule.sent(1749), rule.sent(1750)], [False, True])

    def test_countMustBePositive(self) -> None:
        """No request at all over a connection is no interval."""
        self.assertRaises(ValueError, ReconnectPolicy, 0, 1000, lambda: 0.0)
