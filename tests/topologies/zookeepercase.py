"""
A ZooKeeper with the nodes of topologies, for tests of several rooms.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as _reactor
from twisted.trial.unittest import TestCase

from pylogbroker.testing.localzookeeper import LocalZookeeper
from pylogbroker.topologies.statemanager import StateManager
from pylogbroker.zookeeper.client import ZookeeperClient

reactor: Any = _reactor


class TopologyNodesCase(TestCase):
    """Has a ZooKeeper in this process, and a session with it."""

    sessionMs = 2_000

    async def setUp(self) -> None:  # type: ignore[override]
        self.server = LocalZookeeper(reactor)
        self.addCleanup(self.server.stop)
        await self.server.start()
        self.client = await self.connected()
        self.states = StateManager(reactor, self.client, lambda: 0.5)

    async def connected(self) -> ZookeeperClient:
        """Another session."""
        client = ZookeeperClient(reactor, self.server.servers, self.sessionMs)
        await client.connect()
        self.addCleanup(client.close)
        return client
