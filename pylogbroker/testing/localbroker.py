"""
A real broker for an application's tests, on a free port of the loopback interface, with a directory
that is removed when it stops.

In trial::

    def setUp(self):
        self.broker = LocalBroker(reactor)
        self.addCleanup(self.broker.stop)
        return self.broker.start()

The end of the reactor stops it, too. (trial with C{-j} ends its reactor after each test: a broker
cannot outlive a test there.)

It listens on real sockets and writes real files, for clients of Kafka 0.7 and of today: a
connection's first bytes tell which protocol it speaks. A message is visible to the next request.

Nothing is synced to the disk: no C{fsync} in the process, whatever the settings say. The page cache
survives a C{kill -9}, so a test that ends a broker that way loses nothing; only a power cut would.
For power cuts there is L{pylogbroker.testing.powercut.PowerCutFileSystem}. C{fsync} would be most
of the time that a test spends on creating a topic.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.embedded import EmbeddedBroker
from pylogbroker.storage.files import RealFile, RealFileSystem
from pylogbroker.testing.faults.faultinjection import FaultInjection
from pylogbroker.testing.faults.faultinjector import Fault, FaultInjector

DEFAULTS = {
    "brokerid": "0",
    "port": "0",
    "listen.interface": "127.0.0.1",
    "enable.zookeeper": "false",
    "log.flush.interval": "1",
    "log.flush.acks.all": "false",
    "log.flush.before.read": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class _UnsyncedFile(RealFile):
    """Its bytes stay in the page cache until the kernel writes them."""

    def sync(self) -> None:
        """Nothing."""


class UnsyncedFileSystem(RealFileSystem):
    """The files of this machine, without C{fsync}: what a power cut leaves is anything."""

    fileClass = _UnsyncedFile

    def syncDirectory(self, path: str) -> None:
        """Nothing."""


class LocalBroker(FaultInjection[Fault]):
    """
    A broker for one test.

    @ivar directory: of its data.
    @ivar broker: the embedded broker, with its counters and partitions.
    @ivar faults: those that were ordered.
    """

    def __init__(
        self,
        reactor: Any,
        properties: Mapping[str, str] | None = None,
        directory: str | None = None,
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """
        @param reactor: the test's.
        @param properties: overrides, with Kafka's names.
        @param directory: of the data; it is kept then, for another broker.
        @param zookeeper: makes the client for C{enable.zookeeper}: C{lambda: fake.client()} with a
            L{pylogbroker.testing.zookeeper.FakeZookeeper}.
        """
        self._reactor = reactor
        self._owned = directory is None
        self._trigger: Any = None
        self.directory = directory or tempfile.mkdtemp(prefix="pylogbroker-")
        self.broker = EmbeddedBroker(
            reactor,
            {**DEFAULTS, "log.dir": self.directory, **(properties or {})},
            zookeeper,
            UnsyncedFileSystem(),
        )
        self.faults = FaultInjector(reactor, self.broker.service, self.broker.settings.brokerId)

    def start(self) -> Deferred[None]:
        """
        @return: fires with L{None} when it serves clients; fails as L{EmbeddedBroker.start} does.
        """
        if self._trigger is None:
            self._trigger = self._reactor.addSystemEventTrigger(
                "after", "shutdown", self._remove
            )  # behind the broker's own, which is before
        return self.broker.start()

    @asDeferred
    async def stop(self) -> None:
        """@return: fires with L{None} when it has stopped and its directory is gone."""
        try:
            await self.faults.stop()
            await self.broker.stop()
        finally:
            if self._trigger is not None:
                self._reactor.removeSystemEventTrigger(self._trigger)
            self._remove()

    # -- faults

    def _inject(self, **fault: Any) -> Fault:
        return self.faults.inject(**fault)

    def _moveLeader(self, **leader: Any) -> int:
        return self.faults.moveLeader(**leader)

    def clearFaults(self) -> None:
        self.faults.clear()

    def cutConnections(self) -> None:
        for connection in list(self.broker.service.connections.open):
            connection.abort()

    def _remove(self) -> None:
        self._trigger = None
        if self._owned:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def host(self) -> str:
        """Where it listens."""
        return self.broker.host

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.broker.port

    @property
    def bootstrapServers(self) -> str:
        """C{127.0.0.1:PORT}, as Kafka's clients of today take it for C{bootstrap.servers}."""
        return f"{self.host}:{self.port}"

    @property
    def endpoint(self) -> str:
        """C{tcp:127.0.0.1:PORT}, a client endpoint string for our clients of Kafka 0.7."""
        return self.broker.endpoint
