"""
Tests for L{pylogbroker.testing.localzookeeper}.
"""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.trial.unittest import TestCase

from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.localzookeeper import LocalZookeeper
from pylogbroker.zookeeper.client import ZookeeperClient

reactor: Any = _reactor


class LocalZookeeperTests(TestCase):
    """A server for one test."""

    timeout = 60

    async def test_broker(self) -> None:
        """A broker registers in it; its directory goes with it."""
        server = LocalZookeeper(reactor)
        self.addCleanup(server.stop)
        await server.start()
        properties = {"enable.zookeeper": "true", "zk.connect": server.servers}
        broker = LocalBroker(reactor, properties)
        self.addCleanup(broker.stop)
        await broker.start()
        client = ZookeeperClient(reactor, server.servers)
        self.addCleanup(client.close)
        await client.connect()
        self.assertIn(str(broker.port).encode(), (await client.get("/brokers/ids/0"))[0] or b"")
        await client.close()
        await broker.stop()
        await server.stop()
        self.assertFalse(os.path.exists(server.directory))

    async def test_again(self) -> None:
        """With a directory of its own the data is kept, for another server on the same port."""
        directory, port = self.mktemp(), 0
        for time in range(2):
            server = LocalZookeeper(reactor, directory, port)
            self.addCleanup(server.stop)
            await server.start()
            port = server.port
            client = ZookeeperClient(reactor, server.servers)
            self.addCleanup(client.close)
            await client.connect()
            self.assertEqual(await client.exists("/a") is not None, time == 1)
            if time == 0:
                await client.create("/a")
            await client.close()
            await server.stop()
