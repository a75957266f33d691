"""Tests for L{pylogbroker.retry}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.retry import Backoff, BlockingRetryPolicy, PeriodicReconnect, RetryDelays


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
        backoff = Backoff(lambda: 0.0, RetryDelays(1, 60_000, factor=10))
        self.assertEqual([backoff.failed(), backoff.failed()], [1, 10])
        backoff.succeeded()
        self.assertEqual(backoff.failed(), 1)

    def test_jitter(self) -> None:
        """Chance takes away a part of the wait, up to the jitter, and never adds to it."""
        chances = iter([0.0, 0.5, 1.0])
        backoff = Backoff(lambda: next(chances), RetryDelays(100, 2_000, factor=1, jitter=0.5))
        self.assertEqual([backoff.failed(), backoff.failed(), backoff.failed()], [100, 75, 50])


class BlockingRetryPolicyTests(SynchronousTestCase):
    """A limited number of attempts."""

    def test_attempts(self) -> None:
        """
        There is one attempt more than retries, with a growing pause before each but the first, and
        the last one says so.
        """
        pauses: list[float] = []
        policy = BlockingRetryPolicy(2, pauses.append, lambda: 0.0, RetryDelays(100, 5_000))
        for _call in range(2):
            pauses.clear()
            self.assertEqual(list(policy.attempts()), [False, False, True])
            self.assertEqual(pauses, [0.1, 0.2])


class ReconnectRuleTests(SynchronousTestCase):
    """When a good connection is replaced."""

    def test_byCount(self) -> None:
        """
        The request that makes the interval full is the connection's last; a new connection begins
        to count at 0.
        """
        rule = PeriodicReconnect(3, -1, lambda: 0.0)
        for _ in range(2):
            rule.connected(0)
            self.assertEqual([rule.sent(0), rule.sent(0), rule.sent(0)], [False, False, True])

    def test_byTime(self) -> None:
        """The first request after the interval is the connection's last."""
        rule = PeriodicReconnect(100, 1000, lambda: 0.0)
        rule.connected(5000)
        self.assertEqual([rule.sent(5999), rule.sent(6000)], [False, True])

    def test_timeIsOff(self) -> None:
        """A negative interval is never over."""
        rule = PeriodicReconnect(100, -1, lambda: 0.9)
        rule.connected(0)
        self.assertFalse(rule.sent(10**12))

    def test_everyTime(self) -> None:
        """An interval of no time at all is over with each request, as with 0.7.2."""
        rule = PeriodicReconnect(100, 0, lambda: 0.0)
        rule.connected(0)
        self.assertTrue(rule.sent(0))

    def test_jitterOfTheFirst(self) -> None:
        """
        The first connection counts as made a random part of the time interval ago (gotcha 36: not
        of the request count); later ones do not.
        """
        rule = PeriodicReconnect(10**6, 1000, lambda: 0.25)
        rule.connected(0)
        self.assertEqual([rule.sent(749), rule.sent(750)], [False, True])
        rule.connected(750)
        self.assertEqual([rule.sent(1749), rule.sent(1750)], [False, True])

    def test_countMustBePositive(self) -> None:
        """No request at all over a connection is no interval."""
        self.assertRaises(ValueError, PeriodicReconnect, 0, 1000, lambda: 0.0)
