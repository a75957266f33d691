"""
Tests for L{pylogbroker.mirror.offsetsyncs}.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.errors import ConnectionLossException, NoBrokersError, ZookeeperError
from pylogbroker.mirror.offsetsyncs import ZookeeperOffsetSyncStore, readTables
from pylogbroker.mirror.offsettracker import OffsetTracker
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition, PartitionId
from pylogbroker.zookeeper.ephemeral import write

A, B = BrokerPartition(0, 0), BrokerPartition(0, 1)
ONE, TWO, THREE = (PartitionId("t", BrokerPartition(7, number)) for number in range(3))
ROOT = "/consumers/mirrors/mirror/t"


class FarTarget:
    """A target that says what the test wants; and may be asked while something else happens."""

    def __init__(self) -> None:
        self.found: dict[BrokerPartition, int] = {A: 10, B: 20}
        self.isAway = False
        self.meanwhile: list[Any] = []

    async def ends(self, topics: Collection[str]) -> dict[str, dict[BrokerPartition, int]]:
        found = {topic: dict(self.found) for topic in topics}
        while self.meanwhile:
            self.meanwhile.pop()()
        return found

    async def ensureTopic(self, topic: str) -> list[BrokerPartition]:
        if self.isAway:
            raise NoBrokersError("nobody there")
        return [A, B]


class Lossy:
    """A client whose answers to C{set} get lost."""

    isLosing = isMaking = False

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def set(self, path: str, data: bytes, version: int) -> Any:
        stat = None
        if self.isMaking or not self.isLosing:
            stat = await self._client.set(path, data, version)
        if self.isLosing:
            raise ConnectionLossException("lost")
        return stat


class TablesTests(SynchronousTestCase):
    """With a ZooKeeper in memory."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.server = FakeZookeeper(self.clock)
        self.target = FarTarget()
        self.tracker = OffsetTracker()
        self.zookeeper = self.session()

    def session(self) -> Any:
        client = self.server.client()
        client.connect()
        self.clock.advance(0)
        self.addCleanup(client.close)
        return client

    def tables(
        self, isKeeping: bool = False, zookeeper: Any = None, tracker: OffsetTracker | None = None
    ) -> ZookeeperOffsetSyncStore:
        target: Any = self.target
        return ZookeeperOffsetSyncStore(
            zookeeper or self.zookeeper,
            GroupPaths("mirrors"),
            target,
            tracker or self.tracker,
            isKeeping,
        )

    def do(self, work: Any) -> Any:
        doing = Deferred.fromCoroutine(work)
        for _turn in range(200):
            self.clock.advance(0)
        return self.successResultOf(doing)

    def fails(self, work: Any, kind: type[Exception]) -> None:
        doing = Deferred.fromCoroutine(work)
        for _turn in range(200):
            self.clock.advance(0)
        self.failureResultOf(doing, kind)

    def entries(self, name: str = "7-0") -> Any:
        partitionId = PartitionId("t", BrokerPartition(*map(int, name.split("-"))))
        found = self.do(readTables(self.zookeeper, "mirrors", ["t", "none"]))
        return found[partitionId].entries

    def test_records(self) -> None:
        """
        Where the target ends, by where the source partition has been handed on; partitions of which
        nothing was, by where the consumer is.
        """
        tables = self.tables()
        for partitionId in (ONE, TWO):
            self.do(tables.take(partitionId))
            self.tracker.begin(partitionId, 0)
        self.tracker.register(ONE, 500)
        self.do(tables.record([ONE, TWO, THREE], {ONE: 500, TWO: 30}))
        self.assertEqual(
            (self.entries("7-0"), self.entries("7-1")),
            ([(500, {A: 10, B: 20})], [(30, {A: 10, B: 20})]),
        )
        self.assertIs(tables.fixedTarget(ONE), None)
        self.assertEqual(repr(tables), "<ZookeeperOffsetSyncStore, 2 partitions>")

    def test_newest(self) -> None:
        """
        What was handed on while the target was being asked counts as handed on: its messages may
        stand before the end that is found.
        """
        tables = self.tables()
        self.do(tables.take(ONE))
        self.tracker.begin(ONE, 0)
        self.target.meanwhile = [lambda: self.tracker.register(ONE, 900)]
        self.do(tables.record([ONE], {}))
        self.assertEqual(self.entries(), [(900, {A: 10, B: 20})])

    def test_insideWrapper(self) -> None:
        """
        Inside a wrapper nothing is written down: who begins there gets its first messages again.
        """
        tables = self.tables()
        self.do(tables.take(ONE))
        self.tracker.begin(ONE, 0)
        self.tracker.register(ONE, 0, isWhole=False)
        self.do(tables.record([ONE], {ONE: 0}))
        self.assertEqual(self.entries(), [])

    def test_noNews(self) -> None:
        """What has not changed is not written."""
        tables = self.tables()
        self.do(tables.take(ONE))
        self.tracker.begin(ONE, 0)
        versions = []
        for _time in range(2):
            self.do(tables.record([ONE], {ONE: 5}))
            versions.append(self.do(self.version()))
        self.assertEqual(versions, [1, 1])

    async def version(self) -> int:
        _data, stat = await self.zookeeper.get(f"{ROOT}/7-0")
        return int(stat.version)

    def test_overtaken(self) -> None:
        """A mirror that another one has overtaken without its knowing writes no more."""
        old = self.tables()
        self.do(old.take(ONE))
        self.tracker.begin(ONE, 0)
        tracker = OffsetTracker()
        new = self.tables(zookeeper=self.session(), tracker=tracker)
        self.do(new.take(ONE))
        tracker.begin(ONE, 0)
        self.tracker.register(ONE, 700)
        with capturedLogs() as events:
            self.do(old.record([ONE], {}))
        self.assertIn("another mirror", events[-1]["log_format"])
        tracker.register(ONE, 300)
        self.do(new.record([ONE], {}))
        self.assertEqual(self.entries(), [(300, {A: 10, B: 20})])
        self.do(old.record([ONE], {}))  # it has understood
        self.assertEqual(self.entries(), [(300, {A: 10, B: 20})])

    def test_overtakenMeanwhile(self) -> None:
        """The same if it begins anew while the target is being asked."""
        tables = self.tables()
        self.do(tables.take(ONE))
        self.tracker.begin(ONE, 0)
        self.target.meanwhile = [lambda: self.do(tables.take(ONE))]
        self.do(tables.record([ONE], {ONE: 3}))
        self.assertEqual(self.entries(), [])

    def test_answerLost(self) -> None:
        """
        When the answer to a write is lost, it is looked up whether it was made; the table is ours
        as before, and not another's.
        """
        lossy = Lossy(self.zookeeper)
        for isMade in (True, False):
            tracker = OffsetTracker()
            tables = self.tables(zookeeper=lossy, tracker=tracker)
            self.do(tables.take(ONE))
            tracker.begin(ONE, 0)
            lossy.isLosing, lossy.isMaking = True, isMade
            self.fails(tables.record([ONE], {ONE: 5}), ConnectionLossException)
            lossy.isLosing = False
            self.target.found[A] += 5
            self.do(tables.record([ONE], {ONE: 9}))
            self.assertEqual(self.entries()[-1], (9, self.target.found))
            # What another wrote meanwhile is another's all the same.
            lossy.isLosing = True
            self.fails(tables.record([ONE], {ONE: 11}), ConnectionLossException)
            lossy.isLosing = False
            self.do(self.tables().take(ONE))
            before = self.do(self.version())
            self.do(tables.record([ONE], {ONE: 12}))
            self.assertEqual(self.do(self.version()), before)
            self.do(self.wipe())

    async def wipe(self) -> None:
        await self.zookeeper.delete(f"{ROOT}/7-0")

    def test_together(self) -> None:
        """
        Two that record at the same time do so one after the other, and do not take each other for
        somebody else.
        """
        tables = self.tables()
        self.do(tables.take(ONE))
        self.tracker.begin(ONE, 0)
        doing = [
            Deferred.fromCoroutine(tables.record([ONE], {ONE: offset})) for offset in (1, 2, 3)
        ]
        for _turn in range(200):
            self.clock.advance(0)
        for each in doing:
            self.successResultOf(each)
        self.assertEqual([offset for offset, _ends in self.entries()], [1, 2, 3])

    def test_goesOn(self) -> None:
        """Who takes a partition over goes on with what others wrote."""
        for step, session in enumerate((self.zookeeper, self.session())):
            tracker = OffsetTracker()
            tables = self.tables(zookeeper=session, tracker=tracker)
            self.do(tables.take(ONE))
            tracker.begin(ONE, 100 * step)
            self.target.found = {A: 10 + step}
            self.do(tables.record([ONE], {ONE: 100 * step}))
        self.assertEqual(self.entries(), [(0, {A: 10}), (100, {A: 11})])

    def test_garbage(self) -> None:
        """
        What cannot be read is named in the log, and a table begun anew; a node with a name that is
        none is left out.
        """
        self.do(write(self.zookeeper, f"{ROOT}/7-0", b"no table"))
        self.do(write(self.zookeeper, f"{ROOT}/seven", b""))
        tables = self.tables()
        with capturedLogs() as events:
            self.do(tables.take(ONE))
        self.assertIn("cannot be read", events[-1]["log_format"])
        self.tracker.begin(ONE, 0)
        self.do(tables.record([ONE], {ONE: 1}))
        self.assertEqual(self.entries(), [(1, {A: 10, B: 20})])

    def test_homes(self) -> None:
        """
        With partitions kept, each source partition gets the target partition to which the fewest
        go, and keeps it for good.
        """
        tables = self.tables(isKeeping=True)
        for partitionId in (ONE, TWO, THREE):
            self.do(tables.take(partitionId))
        self.assertEqual(
            [tables.fixedTarget(partitionId) for partitionId in (ONE, TWO, THREE)], [A, B, A]
        )
        another = self.tables(isKeeping=True, zookeeper=self.session())
        for partitionId in (THREE, TWO):
            self.do(another.take(partitionId))
        self.assertEqual([another.fixedTarget(partitionId) for partitionId in (THREE, TWO)], [A, B])
        self.tracker.begin(TWO, 0)
        self.do(another.record([TWO], {TWO: 4}))
        self.assertEqual(self.entries("7-1"), [(4, {B: 20})])

    def test_homeStays(self) -> None:
        """
        Somebody else writes the node, or takes it over: what is still to be sent goes where all
        before it went; it is only not written down any more.
        """
        tables = self.tables(isKeeping=True)
        for partitionId in (ONE, TWO):
            self.do(tables.take(partitionId))
            self.tracker.begin(partitionId, 0)
        self.do(write(self.zookeeper, "/consumers/mirrors/mirror/t/7-1", b"{}"))
        self.do(tables.record([ONE, TWO], {ONE: 5, TWO: 5}))
        self.assertEqual([tables.fixedTarget(partitionId) for partitionId in (ONE, TWO)], [A, B])
        self.assertEqual(self.server.tree()["/consumers/mirrors/mirror/t/7-1"][0], b"{}")
        self.target.isAway = True
        self.fails(tables.take(TWO), NoBrokersError)
        self.assertEqual(tables.fixedTarget(TWO), B)

    def test_otherWay(self) -> None:
        """
        When partitions are kept that were not, or the other way round, the table begins anew: what
        went elsewhere is not in it.
        """
        for isKeeping in (False, True, False):
            tracker = OffsetTracker()
            tables = self.tables(isKeeping, tracker=tracker)
            self.do(tables.take(ONE))
            self.assertEqual(self.entries(), [])
            tracker.begin(ONE, 0)
            self.do(tables.record([ONE], {ONE: 5}))
            self.assertEqual([offset for offset, _ends in self.entries()], [5])

    def test_targetAway(self) -> None:
        """A partition for which no target partition can be chosen is not taken; later it is."""
        tables = self.tables(isKeeping=True)
        self.target.isAway = True
        self.fails(tables.take(ONE), NoBrokersError)
        self.assertRaises(NoBrokersError, tables.fixedTarget, ONE)
        self.target.isAway = False
        self.do(tables.take(ONE))
        self.assertEqual(tables.fixedTarget(ONE), A)

    def test_stolenAgainAndAgain(self) -> None:
        """If somebody else writes there all the time, it is given up."""
        zookeeper = self.zookeeper

        class Stolen:
            def __getattr__(self, name: str) -> Any:
                return getattr(zookeeper, name)

            async def get(self, path: str) -> Any:
                data, stat = await zookeeper.get(path)
                return data, stat._replace(version=stat.version + 1)

        self.do(self.tables().take(ONE))
        self.fails(self.tables(zookeeper=Stolen()).take(ONE), ZookeeperError)
