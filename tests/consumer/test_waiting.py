"""Tests for L{pylogbroker.consumer.waiting}."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.waiting import allOf


class AllOfTests(SynchronousTestCase):
    """Several things at once."""

    def setUp(self) -> None:
        self.waited: list[Deferred[int]] = [Deferred(), Deferred(), Deferred()]

        async def each(index: int) -> int:
            return await self.waited[index]

        self.all = Deferred.fromCoroutine(allOf([each(index) for index in range(3)]))

    def test_results(self) -> None:
        """All results, in the order of the works, whichever was done first."""
        for index in (2, 0, 1):
            self.assertNoResult(self.all)
            self.waited[index].callback(index)
        self.assertEqual(self.successResultOf(self.all), [0, 1, 2])

    def test_nothing(self) -> None:
        """Of no works no results."""
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(allOf([]))), [])
        for waited in self.waited:
            waited.callback(0)

    def test_failure(self) -> None:
        """The others are done to their ends before a failure is told, and the first in order is told."""
        self.waited[1].errback(ZeroDivisionError())
        self.waited[0].errback(KeyError())
        self.assertNoResult(self.all)
        self.waited[2].callback(2)
        self.failureResultOf(self.all, KeyError)

    def test_cancelled(self) -> None:
        """Who waits no longer cancels all that is not done."""
        self.waited[0].callback(0)
        self.all.cancel()
        self.failureResultOf(self.all)
        self.assertTrue(self.waited[1].called and self.waited[2].called)
