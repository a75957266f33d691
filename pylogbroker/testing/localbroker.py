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

It listens on real sockets and writes real files. A message is visible to the next request
(C{log.flush.interval=1}).
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

DEFAULTS = {
    "brokerid": "0",
    "port": "0",
    "listen.interface": "127.0.0.1",
    "enable.zookeeper": "false",
    "log.flush.interval": "1",
}


class LocalBroker:
    """
    A broker for one test.

    @ivar directory: of its data.
    @ivar broker: the embedded broker, with its counters and partitions.
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
            reactor, {**DEFAULTS, "log.dir": self.directory, **(properties or {})}, zookeeper
        )

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
            await self.broker.stop()
        finally:
            if self._trigger is not None:
                self._reactor.removeSystemEventTrigger(self._trigger)
            self._remove()

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
    def endpoint(self) -> str:
        """C{host:port}, as a client endpoint string."""
        return self.broker.endpoint
