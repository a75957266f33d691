"""Tests for L{pylogbroker.consumer.childwatches}."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.childwatches import ChildWatches
from pylogbroker.errors import ZookeeperError
from pylogbroker.testing.zookeeper import FakeZookeeper


class WatchesTests(SynchronousTestCase):
    """Children that are watched."""

    def setUp(self) -> None:
        self.clock = Clock()
        server = FakeZookeeper(self.clock)
        self.zookeeper, self.other = server.client(), server.client()
        for client in (self.zookeeper, self.other):
            client.connect()
        self.server = server
        self.turn()
        self.changeCount = 0
        self.watches = ChildWatches(self.zookeeper, self.changed)

    def changed(self) -> None:
        self.changeCount += 1

    def turn(self) -> None:
        for _turn in range(20):
            self.clock.advance(0)

    def do(self, doing: Any) -> Any:
        self.turn()
        return self.successResultOf(doing)

    def children(self, path: str) -> list[str]:
        found: list[str] = self.do(Deferred.fromCoroutine(self.watches.children(path)))
        return found

    def test_children(self) -> None:
        """A change fires once, however often the children were read before it; after that they are to be read again."""
        self.do(self.other.create("/a"))
        self.assertEqual(self.children("/a"), [])
        self.assertEqual(self.children("/a"), [])
        self.do(self.other.create("/a/1"))
        self.do(self.other.create("/a/2"))
        self.assertEqual(self.changeCount, 1)
        self.assertEqual(sorted(self.children("/a")), ["1", "2"])
        self.do(self.other.delete("/a/1"))
        self.assertEqual(self.changeCount, 2)

    def test_missing(self) -> None:
        """A node that is not there has no children, and is watched for."""
        self.assertEqual(self.children("/a"), [])
        self.do(self.other.create("/a"))
        self.assertEqual(self.changeCount, 1)

    def test_deletedBetween(self) -> None:
        """A node that goes while its watch is armed is one that is not there."""
        self.do(self.other.create("/a"))
        self.children("/a")
        self.do(self.other.delete("/a"))
        self.assertEqual((self.changeCount, self.children("/a")), (1, []))

    def test_session(self) -> None:
        """A session's end is no change; who reads in the next session is told of changes again."""
        self.do(self.other.create("/a"))
        self.children("/a")
        self.server.expire(self.zookeeper)
        self.turn()
        self.assertEqual(self.changeCount, 0)
        self.assertEqual(self.children("/a"), [])
        self.do(self.other.create("/a/1"))
        self.assertEqual(self.changeCount, 1)

    def test_cancel(self) -> None:
        """Nothing is told after the end."""
        self.do(self.other.create("/a"))
        self.children("/a")
        self.watches.cancel()
        self.do(self.other.create("/a/1"))
        self.assertEqual(self.changeCount, 0)

    def test_failure(self) -> None:
        """What cannot be read fails, and leaves no watch behind."""
        self.server.disconnect(self.zookeeper)
        reading = Deferred.fromCoroutine(self.watches.children("/a"))
        self.clock.pump([1] * 60)
        self.failureResultOf(reading, ZookeeperError)
