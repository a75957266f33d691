"""
Tests for L{pylogbroker.programs.topologies.localscheduler}: schedulers in this process, with
executors in their own, and a ZooKeeper. Whole topologies are in
L{tests.integration.test_topologies}.
"""

from __future__ import annotations

from random import SystemRandom

from twisted.internet.task import deferLater

from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import ConfigurationError
from pylogbroker.programs.topologies.localscheduler import LocalScheduler
from pylogbroker.topologies.plan import KILLED
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.topologies.definitions import DEFINITION
from tests.topologies.zookeepercase import TopologyNodesCase, reactor


class LocalSchedulerTests(TopologyNodesCase):
    """Two of one topology."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.said: list[str] = []

    def scheduler(self, client: ZookeeperClient) -> LocalScheduler:
        properties = {"zk.connect": self.server.servers, "state.dir": self.mktemp()}
        settings = TopologySettings.fromProperties(properties)

        async def write(_fd: int, _lines: bytes) -> None:
            pass

        return LocalScheduler(
            reactor,
            client,
            DEFINITION,
            settings,
            properties,
            write,
            self.said.append,
            SystemRandom(),
        )

    async def untilSubmitted(self) -> None:
        while not await self.states.topologies():
            await deferLater(reactor, 0.02)

    async def test_killedEarly(self) -> None:
        """
        A topology that is killed before any of its containers is there ends; nothing of it stays.
        """
        running = self.scheduler(await self.connected()).run()
        await self.untilSubmitted()
        await self.states.setState("words", KILLED)
        self.assertTrue(await self.states.whenRemoved("words", 60))
        await running
        self.assertEqual(self.said, [])
        self.assertEqual(await self.client.get_children("/topologies"), [])

    async def test_removed(self) -> None:
        """Its nodes vanish: it ends."""
        running = self.scheduler(await self.connected()).run()
        await self.untilSubmitted()
        for part in ("definition", "state", "scheduler"):
            await self.client.delete(f"/topologies/words/{part}")
        await running
        self.assertEqual(await self.states.topologies(), [])

    async def test_second(self) -> None:
        """It is refused, and the first one goes on."""
        first = self.scheduler(await self.connected())
        running = first.run()
        await self.untilSubmitted()
        second = self.scheduler(await self.connected())
        await self.assertFailure(second.run(), ConfigurationError)
        self.assertTrue(await self.states.hasScheduler("words"))
        self.assertFalse(running.called)
        first.stop()
        await running
        self.assertEqual(await self.states.topologies(), [])
