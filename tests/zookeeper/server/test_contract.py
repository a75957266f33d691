"""
Our server keeps the contract of ZooKeeper servers, over real connections of kazoo.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred

from pylogbroker.programs.standalonezookeeper import StandaloneZookeeper
from tests.contracts import zookeeper
from tests.contracts.zookeeperbench import RealBench

reactor: Any = _reactor
TICK_MS = 250


class ContractTests(zookeeper.ZookeeperContract):
    """The client and our server keep the promises of all clients."""

    def setUp(self) -> Any:
        return Deferred.fromCoroutine(self._setUp())

    async def _setUp(self) -> None:
        server = StandaloneZookeeper(reactor, self.mktemp(), tickMs=TICK_MS)
        self.addCleanup(server.stop)
        await server.start()
        self.bench = bench = RealBench(self, server.port, TICK_MS)
        await bench.begin()
