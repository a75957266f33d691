"""
Tests for L{pylogbroker.programs.topologies.zookeepersession}.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import SessionExpiredException
from pylogbroker.programs.topologies.zookeepersession import SessionLease
from pylogbroker.testing.zookeeper import FakeZookeeper

SESSION_MS = 6_000


class SessionLeaseTests(SynchronousTestCase):
    """A session, on a clock."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.server = FakeZookeeper(self.clock, latencyMs=2)
        self.client = self.server.client(SESSION_MS)
        self.client.connect()
        self.advance(0.1)
        self.lease = SessionLease(self.clock, self.client)
        self.over = self.lease.whenOver()
        self.over.addErrback(lambda failure: failure)
        self.addCleanup(self.lease.stop)

    def advance(self, seconds: float) -> None:
        for _step in range(int(seconds * 100)):
            self.clock.advance(0.01)

    def test_lives(self) -> None:
        """As long as requests are answered it goes on, also across lost connections."""
        self.advance(60)
        for _each in range(3):
            self.server.disconnect(self.client)
            self.advance(3)
            self.server.reconnect(self.client)
            self.advance(3)
        self.assertNoResult(self.over)

    def test_expired(self) -> None:
        """The end of the session is the end of the lease, at once."""
        self.advance(1)
        self.server.expire(self.client)
        self.advance(0.01)
        self.failureResultOf(self.over, SessionExpiredException)

    def test_partition(self) -> None:
        """
        On the wrong side of a partition the lease is over before the session, whose end nothing
        tells.
        """
        self.advance(10)
        self.server.disconnect(self.client)
        self.advance(4.9)
        self.assertNoResult(self.over)
        self.advance(1.1)
        error = self.failureResultOf(self.over, SessionExpiredException)
        self.assertIn("has not answered within the session's 6 s", str(error.value))

    def test_stopped(self) -> None:
        """Then it tells nothing more."""
        self.lease.stop()
        self.lease.stop()
        self.server.expire(self.client)
        self.advance(20)
        self.assertNoResult(self.over)
