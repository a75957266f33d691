"""
Tests for L{pylogbroker.mirror.sourcecluster}; what a whole mirror does with it is in
C{test_service}.
"""

from __future__ import annotations

from inspect import CORO_CLOSED, getcoroutinestate

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from pylogbroker.cluster import paths
from pylogbroker.cluster.subscription import whitelist
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import ZookeeperError
from pylogbroker.metrics.mirrormetrics import MirrorCounters
from pylogbroker.mirror.service import MirrorService
from pylogbroker.mirror.sourcecluster import SourceCluster
from pylogbroker.mirror.target import TargetCluster
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.zookeeper.ephemeral import claim
from tests.mirror.clusters import Cluster, MirrorCase


class SourceTests(MirrorCase):
    """Joining a group, and leaving it."""

    async def begun(self, **properties: str) -> tuple[Cluster, MirrorService]:
        source, target = self.cluster("source"), self.cluster("target")
        await source.start()
        await target.start()
        await source.produce("t", "0-0", [b"a", b"b"])
        mirror = self.mirror(
            [source],
            target,
            consumer={key.replace("_", "."): value for key, value in properties.items()},
        )
        return source, mirror

    async def test_member(self) -> None:
        """
        It is a member of the group in the source, owns what it mirrors, and leaves nothing behind
        but offsets and tables.
        """
        source, mirror = await self.begun()
        self.assertFalse(mirror.sources[0].isOwning)
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 2)
        self.assertTrue(mirror.sources[0].isOwning)
        (member,) = [
            path for path in source.zookeeper.tree() if path.startswith("/consumers/mirrors/ids/")
        ]
        self.assertEqual(source.node(member), b"*1*t.*")
        self.assertIsNot(source.node("/consumers/mirrors/owners/t/0-0"), None)
        await mirror.stopService()
        self.assertEqual(
            [
                path
                for path in source.zookeeper.tree()
                if path.startswith(("/consumers/mirrors/ids/", "/consumers/mirrors/owners/t/"))
            ],
            [],
        )
        self.assertEqual(source.node("/consumers/mirrors/offsets/t/0-0"), b"22")
        self.assertIn(b'"entries":[[', source.node("/consumers/mirrors/mirror/t/0-0") or b"")

    async def test_cannotJoin(self) -> None:
        """Who cannot be a member, since somebody else has the name, tries again until it can."""
        source, mirror = await self.begun(consumerid="one")
        session = source.zookeeper.client()
        await session.connect()
        await claim(session, paths.GroupPaths("mirrors").consumer("mirrors_one"), b"*1*t.*")
        with capturedLogs() as events:
            mirror.startService()
            await self.until(
                lambda: any("not there yet" in str(event.get("sentence")) for event in events)
            )
        await session.close()
        await self.until(lambda: mirror.counters.confirmedCount == 2)

    async def test_cannotRecord(self) -> None:
        """
        If offsets of the target cannot be written down, that is a line in the log, and the mirror
        goes on.
        """
        _source, mirror = await self.begun()
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 2)
        syncs = mirror.sources[0]._syncs
        assert syncs is not None

        async def record(*_arguments: object) -> None:
            raise ZookeeperError("not today")

        self.patch(syncs, "record", record)
        with capturedLogs() as events:
            await Deferred.fromCoroutine(mirror.sources[0].record())
        self.assertIn("not written down", events[-1]["log_format"])
        self.assertIn("mirrors", repr(mirror.sources[0]))

    async def test_nothingYet(self) -> None:
        """Before it has joined there is nothing to write down, and nothing to leave."""
        _source, mirror = await self.begun()
        await Deferred.fromCoroutine(mirror.sources[0].record())
        await Deferred.fromCoroutine(mirror.sources[0].pause())
        await Deferred.fromCoroutine(mirror.sources[0].leave())

    def test_abandoned(self) -> None:
        """An attempt to join that nobody waits for any more ends, and does not wait for its end."""
        clock = Clock()
        client = FakeZookeeper(clock).client()
        self.patch(client, "close", Deferred)  # the end of a session takes a while
        properties = {"zk.connect": "source", "groupid": "mirrors"}
        source = SourceCluster(
            clock,
            ConsumerSettings.fromProperties(properties),
            whitelist("t"),
            1,
            TargetCluster(clock, ProducerSettings.fromProperties({"zk.connect": "target"})),
            MirrorCounters(),
            False,
            lambda: client,
        )
        joining = source.run()
        joining.send(None)
        joining.close()  # the collector does so
        self.assertEqual(getcoroutinestate(joining), CORO_CLOSED)
