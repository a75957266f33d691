"""
A real ZooKeeper server for an application's tests, on a free port of the loopback interface, with a
directory that is removed when it stops.

In trial::

    def setUp(self):
        self.zookeeper = LocalZookeeper(reactor)
        self.addCleanup(self.zookeeper.stop)
        return self.zookeeper.start()

It is our own server (L{pylogbroker.zookeeper.server}), in the test's process, and needs no Java.
Kazoo and clients in other processes connect to C{servers}. A client in the test's own thread must
not block the reactor: use L{pylogbroker.zookeeper.client.ZookeeperClient}, or kazoo in a thread.

Nothing is synced to the disk, as with L{pylogbroker.testing.localbroker.LocalBroker}.
"""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.standalonezookeeper import StandaloneZookeeper
from pylogbroker.testing.localbroker import UnsyncedFileSystem

LOCAL_TICK_MS = 250


class LocalZookeeper:
    """
    A server for one test.

    @ivar directory: of its data.
    """

    def __init__(
        self,
        reactor: Any,
        directory: str | None = None,
        port: int = 0,
        tickMs: int = LOCAL_TICK_MS,
    ) -> None:
        """
        @param directory: of the data; it is kept then, for another server.
        @param port: 0 for any free one.
        @param tickMs: a session lasts at least two ticks.
        """
        self._owned = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="pylogbroker-zookeeper-")
        self._zookeeper = StandaloneZookeeper(
            reactor, self.directory, port, tickMs=tickMs, fileSystem=UnsyncedFileSystem()
        )

    @asDeferred
    async def start(self) -> None:
        """
        @return: fires with L{None} when it serves clients; fails as L{StandaloneZookeeper.start}.
        """
        await self._zookeeper.start()

    @asDeferred
    async def stop(self) -> None:
        """@return: fires with L{None} when it has stopped and its directory is gone."""
        try:
            await self._zookeeper.stop()
        finally:
            if self._owned:
                shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        return self._zookeeper.port

    @property
    def servers(self) -> str:
        """The C{zk.connect} of its clients."""
        return self._zookeeper.servers
