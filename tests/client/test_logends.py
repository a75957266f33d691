"""Tests for L{pylogbroker.client.logends}; with brokers and ZooKeeper they are used in C{test_groups}."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli import CommandError
from pylogbroker.client.logends import AGE_MS_MAX, UNKNOWN, Ages, LogEnds, ages
from pylogbroker.errors import ZnodeError
from pylogbroker.model import LATEST, BrokerPartition
from pylogbroker.testing.zookeeper import ZookeeperDouble

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


class Partition:
    """
    Segments as a broker answers for them (spec-0.7 wire-protocol §10).

    @ivar count: of requests.
    """

    def __init__(self, segments: list[tuple[int, int]], end: int, aheadMs: int = 0) -> None:
        """
        @param segments: where each starts, and how long ago it was last written to.
        @param aheadMs: of the broker's clock.
        """
        self.known = [(start, NOW_MS - ageMs) for start, ageMs in segments]
        if end > segments[-1][0]:
            self.known.append((end, NOW_MS + aheadMs))
        self.count = 0

    def offsetsBefore(self, time: int, countMax: int) -> Awaitable[list[int]]:
        self.count += 1
        last = next((index for index in range(len(self.known), 0, -1) if time == LATEST or self.known[index - 1][1] <= time), 0)
        found: Deferred[list[int]] = succeed([start for start, _ in reversed(self.known[:last])][:countMax])
        return found

    def ages(self, test: SynchronousTestCase, offset: int) -> Ages:
        return test.successResultOf(Deferred.fromCoroutine(ages(self.offsetsBefore, offset, NOW_MS)))


class AgeTests(SynchronousTestCase):
    """How long ago a message was written."""

    def test_bounds(self) -> None:
        """It was no later than its segment was last written to, and no earlier than the one before; known to a second, or to a sixteenth."""
        partition = Partition([(0, 9 * HOUR_MS), (100, 4 * HOUR_MS), (200, 500)], 250)
        for offset, least, most in ((100, 4 * HOUR_MS, 9 * HOUR_MS), (199, 4 * HOUR_MS, 9 * HOUR_MS), (200, 500, 4 * HOUR_MS), (240, 500, 4 * HOUR_MS)):
            found = partition.ages(self, offset)
            assert found.least is not None and found.most is not None
            self.assertTrue(least - max(1_000, least // 16) <= found.least <= least, found)
            self.assertTrue(most <= found.most <= most + max(1_000, most // 15), found)

    def test_first(self) -> None:
        """In the first segment that there is nobody knows how old a message may be."""
        self.assertEqual(Partition([(100, 60_000)], 150).ages(self, 120)._replace(least=None), Ages(None, None))
        self.assertIsNot(Partition([(100, 60_000)], 150).ages(self, 120).least, None)

    def test_gone(self) -> None:
        """What is before the first segment was deleted: nothing is known."""
        self.assertEqual(Partition([(100, 60_000)], 150).ages(self, 99), UNKNOWN)

    def test_future(self) -> None:
        """A file that was written to in what is the future to us says nothing, or zero; nor does one from before computers say anything."""
        self.assertEqual(Partition([(0, -HOUR_MS)], 50, aheadMs=HOUR_MS).ages(self, 10), UNKNOWN)
        self.assertEqual(Partition([(0, -HOUR_MS)], 50).ages(self, 10), Ages(0, None))
        self.assertEqual(Partition([(0, AGE_MS_MAX * 2)], 50).ages(self, 10), UNKNOWN)

    def test_requests(self) -> None:
        """It does not take many requests, however old a message is."""
        partition = Partition([(0, 400 * 24 * HOUR_MS), (100, 300 * 24 * HOUR_MS)], 150)
        partition.ages(self, 120)
        self.assertLess(partition.count, 80)


class LogEndsTests(SynchronousTestCase):
    """Brokers are found in ZooKeeper."""

    def setUp(self) -> None:
        self.clock: Any = Clock()
        self.zookeeper: Any = ZookeeperDouble(self.clock).client()
        self.settle(self.zookeeper.connect())
        self.ends = LogEnds(self.clock, self.zookeeper, 1_000)

    def settle(self, waiting: Any) -> Any:
        """Let what is under way come to its end."""
        self.clock.pump([0.01] * 20)
        return waiting

    def end(self) -> Any:
        return self.settle(Deferred.fromCoroutine(self.ends.end("t", BrokerPartition(0, 0))))

    def test_missing(self) -> None:
        """A broker that is not registered is named."""
        self.assertIn("broker 0 is not registered", str(self.failureResultOf(self.end(), CommandError).value))

    def test_garbage(self) -> None:
        """A registration that cannot be read is named."""
        for path in ("/brokers", "/brokers/ids", "/brokers/ids/0"):
            self.settle(self.zookeeper.create(path, b"garbage"))
        self.assertIn("/brokers/ids/0", str(self.failureResultOf(self.end(), ZnodeError).value))
