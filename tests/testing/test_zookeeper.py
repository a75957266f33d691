"""
Tests for L{pylogbroker.testing.zookeeper}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor

from pylogbroker.testing.zookeeper import FakeZookeeper
from tests.contracts import zookeeper


class DoubleBench:
    """The double, on the reactor's clock."""

    sessionTimeoutMsMin = 500

    def __init__(self) -> None:
        self.server = FakeZookeeper(
            reactor, latencyMs=1, sessionTimeoutMsMin=self.sessionTimeoutMsMin
        )

    def client(self, chroot: str = "", session_timeout: int = zookeeper.SESSION_MS) -> Any:
        return self.server.client(session_timeout, chroot)

    async def disconnect(self, client: Any) -> None:
        self.server.disconnect(client)

    async def reconnect(self, client: Any) -> None:
        self.server.reconnect(client)

    async def end(self, client: Any) -> None:
        self.server.expire(client)

    async def stop(self) -> None:
        self.server.stop()


class ContractTests(zookeeper.ZookeeperContract):
    """The double keeps the promises of all clients."""

    def setUp(self) -> None:
        self.bench = DoubleBench()
