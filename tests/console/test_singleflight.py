"""
Tests for L{pylogbroker.console.cluster}.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.console.cluster import SHARE, TtlCache
from pylogbroker.errors import PylogbrokerError


class FreshTests(SynchronousTestCase):
    """A value that is gathered when somebody asks."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.gatherings: list[Deferred[int]] = []

        async def gather() -> int:
            self.gatherings.append(Deferred())
            return await self.gatherings[-1]

        self.fresh = TtlCache(self.clock, gather, 1000)

    def test_once(self) -> None:
        """One gathering serves all who ask meanwhile, and who asks a little later."""
        first, second = self.fresh.get(), self.fresh.get()
        self.assertEqual(len(self.gatherings), 1)
        self.gatherings[0].callback(7)
        self.assertEqual(
            (
                self.successResultOf(first),
                self.successResultOf(second),
                self.successResultOf(self.fresh.get()),
            ),
            (7, 7, 7),
        )
        self.clock.advance(1)
        self.fresh.get()
        self.assertEqual(len(self.gatherings), 2)

    def test_slow(self) -> None:
        """What took long is kept many times as long."""
        self.fresh.get()
        self.clock.advance(3)
        self.gatherings[0].callback(7)
        self.clock.advance(3 * SHARE - 1)
        self.assertEqual(self.successResultOf(self.fresh.get()), 7)
        self.clock.advance(1)
        self.assertNoResult(self.fresh.get())

    def test_failure(self) -> None:
        """Everybody learns of a failure, and the next one tries again."""
        first, second = self.fresh.get(), self.fresh.get()
        self.gatherings[0].errback(PylogbrokerError("no"))
        self.failureResultOf(first, PylogbrokerError)
        self.failureResultOf(second, PylogbrokerError)
        third = self.fresh.get()
        self.gatherings[1].callback(8)
        self.assertEqual(self.successResultOf(third), 8)

    def test_failureAfterValue(self) -> None:
        """After a failure what was known before is not told as if it were new."""
        self.fresh.get()
        self.gatherings[0].callback(7)
        self.clock.advance(1)
        self.failGathering(1)
        again = self.fresh.get()
        self.assertNoResult(again)
        self.gatherings[2].callback(8)
        self.assertEqual(self.successResultOf(again), 8)

    def failGathering(self, number: int) -> None:
        failed = self.fresh.get()
        self.gatherings[number].errback(PylogbrokerError("no"))
        self.failureResultOf(failed, PylogbrokerError)
