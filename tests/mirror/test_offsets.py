"""
Tests for L{pylogbroker.mirror.offsettracker}.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.offsetstores import MemoryOffsetStore, ZookeeperOffsetStore
from pylogbroker.errors import NoBrokersError
from pylogbroker.mirror.offsettracker import COMMIT_TIMEOUT_MS, ConfirmedOffsetStore, OffsetTracker
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.ephemeral import write

ONE = PartitionId("t", BrokerPartition(0, 0))
TWO = PartitionId("t", BrokerPartition(0, 1))


class ConfirmedOffsetStoreTests(SynchronousTestCase):
    """Between a consumer and where its offsets are kept."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.inner = MemoryOffsetStore({ONE: 100})
        self.tracker = OffsetTracker()
        self.onTake: list[PartitionId] = []
        self.isRefusing = False
        self.onCommit: list[Mapping[PartitionId, int]] = []
        self.store = ConfirmedOffsetStore(
            self.clock, self.inner, self.tracker, self.take, self.onCommit.append
        )

    async def take(self, partitionId: PartitionId) -> None:
        if self.isRefusing:
            raise NoBrokersError("not now")
        self.onTake.append(partitionId)

    def test_load(self) -> None:
        """A partition is taken over, then its offset is read and entered in the books."""
        self.assertEqual(self.successResultOf(self.store.load(ONE)), 100)
        self.assertIs(self.successResultOf(self.store.load(TWO)), None)
        self.assertEqual(self.onTake, [ONE, TWO])
        self.tracker.register(ONE, 200)
        self.assertEqual(self.tracker.committableOffset(ONE, 200), 100)

    def test_missing(self) -> None:
        """
        Deleted offsets are those that the store itself misses; a store that cannot say misses none.
        """
        self.assertEqual(self.successResultOf(self.store.missing([ONE, TWO])), [])
        server = FakeZookeeper(self.clock)
        session = server.client()
        session.connect()
        self.clock.advance(0)
        self.store = ConfirmedOffsetStore(
            self.clock, ZookeeperOffsetStore(session, "g"), self.tracker, self.take
        )
        Deferred.fromCoroutine(write(session, "/consumers/g/offsets/t/0-1", b"5"))
        self.clock.pump([0] * 20)
        missing = self.store.missing([ONE, TWO])
        self.clock.pump([0] * 5)
        self.assertEqual(self.successResultOf(missing), [ONE])

    def test_notTaken(self) -> None:
        """What cannot be taken over is not read, and leaves no edge to record at."""
        self.tracker.begin(ONE, 100)
        self.isRefusing = True
        self.failureResultOf(self.store.load(ONE), NoBrokersError)
        self.assertIs(self.tracker.readBoundary(ONE, 100), None)

    def test_loadWaits(self) -> None:
        """
        A partition that comes back is not read before all is confirmed that is under way from
        before: it would be sent twice.
        """
        batch = self.tracker.register(ONE, 200)
        loading = self.store.load(ONE)
        self.clock.advance(1000)
        self.assertNoResult(loading)
        self.assertEqual(self.onTake, [])
        self.tracker.confirm(batch)
        self.assertEqual(self.successResultOf(loading), 100)

    def test_commitWaits(self) -> None:
        """A commit waits for what is under way, and then stores all."""
        batch = self.tracker.register(ONE, 200)
        committing = self.store.commit({ONE: 200, TWO: 50})
        self.clock.advance(COMMIT_TIMEOUT_MS / 2000)
        self.assertNoResult(committing)
        self.tracker.confirm(batch)
        self.assertEqual(self.successResultOf(committing), {ONE: 200, TWO: 50})
        self.assertEqual(
            (self.inner.offsets, self.onCommit), ({ONE: 200, TWO: 50}, [{ONE: 200, TWO: 50}])
        )

    def test_commitLess(self) -> None:
        """
        What is not confirmed in time is not stored; what is before it, is; where nothing is known,
        nothing.
        """
        self.successResultOf(self.store.load(ONE))
        self.tracker.confirm(self.tracker.register(ONE, 150))
        self.tracker.register(ONE, 200)
        self.tracker.register(TWO, 50)
        committing = self.store.commit({ONE: 200, TWO: 50})
        self.clock.advance(COMMIT_TIMEOUT_MS / 1000)
        self.assertEqual(self.successResultOf(committing), {ONE: 150})
        self.assertEqual(self.inner.offsets, {ONE: 150})
