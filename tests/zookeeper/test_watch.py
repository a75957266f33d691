"""
Tests for L{pylogbroker.zookeeper.watch}: the moments that the suite in C{tests.contracts.zookeeper}
cannot hit on purpose.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    ConnectionLossException,
    NoAuthException,
    NoNodeException,
    SessionExpiredException,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import WatchEvent
from pylogbroker.zookeeper.watch import NOT_THERE, OneTimeWatch, _WatchCallback


class WatchTests(SynchronousTestCase):
    """
    One watch of C{/a}.

    @ivar readings: that it has asked for: what to fire, and what to call when the server's watch
        does.
    """

    def setUp(self) -> None:
        self.readings: list[tuple[Deferred[Any], _WatchCallback]] = []
        self.forgotten: list[OneTimeWatch] = []
        self.watch = OneTimeWatch("/a", "changed", self.read, self.forgotten.append)

    def read(self, seen: _WatchCallback) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self.readings.append((answer, seen))
        return answer

    def begun(self, state: object = 1) -> None:
        self.watch.begin()
        self.readings[0][0].callback(("answer", state))

    def fired(self, kind: str) -> None:
        self.assertEqual(
            (self.successResultOf(self.watch.fired), self.forgotten),
            (WatchEvent(kind, "/a"), [self.watch]),
        )

    def test_firstReadingFails(self) -> None:
        """A first reading that fails ends the watch, which never fires."""
        result = self.watch.begin()
        self.readings[0][0].errback(NoNodeException("/a"))
        self.failureResultOf(result, NoNodeException)
        self.watch.renew()
        self.watch.fail(SessionExpiredException())
        self.readings[0][1]("changed")
        self.assertEqual((len(self.readings), self.forgotten), (1, [self.watch]))
        self.assertNoResult(self.watch.fired)

    def test_renewedBeforeItsAnswer(self) -> None:
        """A first reading that still waits when the connection is back is not asked again."""
        self.watch.begin()
        self.watch.renew()
        self.assertEqual(len(self.readings), 1)

    def test_oldArming(self) -> None:
        """What an earlier reading has armed counts no more, and is not wanted."""
        self.begun()
        self.watch.renew()
        old, new = self.readings[0][1], self.readings[1][1]
        self.assertEqual((old.isWanted, new.isWanted), (False, True))
        old("deleted")
        self.assertNoResult(self.watch.fired)
        new("deleted")
        self.fired("deleted")
        self.assertFalse(new.isWanted)

    def test_states(self) -> None:
        """When the connection is back, what has changed says the event."""
        for before, after, kind in (
            (1, 2, "changed"),
            (NOT_THERE, 1, "created"),
            (1, NOT_THERE, "deleted"),
        ):
            self.setUp()
            self.begun(before)
            self.watch.renew()
            self.readings[1][0].callback(("answer", after))
            self.fired(kind)

    def test_gone(self) -> None:
        """A node that cannot be read any more was deleted."""
        self.begun()
        self.watch.renew()
        self.readings[1][0].errback(NoNodeException("/a"))
        self.fired("deleted")

    def test_lostAgain(self) -> None:
        """A connection that is lost again while it reads is waited for again."""
        self.begun()
        self.watch.renew()
        self.readings[1][0].errback(ConnectionLossException("lost"))
        self.assertEqual(len(self.readings), 2)
        self.watch.renew()
        self.readings[2][0].callback(("answer", 1))
        self.assertNoResult(self.watch.fired)

    def test_slow(self) -> None:
        """
        A reading that is not answered in time is tried again, since no other event would do it; but
        not an old one.
        """
        self.begun()
        self.watch.renew()
        self.readings[1][0].errback(ZookeeperTimeoutException("slow"))
        self.assertEqual(len(self.readings), 3)
        self.watch.renew()
        self.readings[2][0].errback(ZookeeperTimeoutException("slow"))
        self.assertEqual(len(self.readings), 4)
        self.readings[3][0].callback(("answer", 2))
        self.fired("changed")

    def test_refused(self) -> None:
        """Any other failure is the watch's."""
        self.begun()
        self.watch.renew()
        self.readings[1][0].errback(NoAuthException("no"))
        self.failureResultOf(self.watch.fired, NoAuthException)

    def test_expired(self) -> None:
        """The end of the session comes from elsewhere, once."""
        self.begun()
        self.watch.renew()
        self.readings[1][0].errback(SessionExpiredException("over"))
        self.assertNoResult(self.watch.fired)
        self.watch.fail(SessionExpiredException("over"))
        self.watch.fail(SessionExpiredException("over"))
        self.failureResultOf(self.watch.fired, SessionExpiredException)

    def test_cancelled(self) -> None:
        """A watch that was cancelled is forgotten, and asks no more."""
        self.begun()
        self.watch.fired.cancel()
        self.failureResultOf(self.watch.fired)
        self.watch.renew()
        self.readings[0][1]("changed")
        self.assertEqual((len(self.readings), self.forgotten), (1, [self.watch]))
