"""
A real broker for people's tests: on a free port of the loopback interface, with a directory of its own that goes when it stops.

In trial::

    def setUp(self):
        self.broker = LocalBroker(reactor)
        self.addCleanup(self.broker.stop)
        return self.broker.start()

One that is not stopped stops when its reactor ends, and its directory goes then. (trial with C{-j} ends its reactor after each test: what is to outlive a test
does not do so there.)

It listens on real sockets and writes real files; what is produced is visible as soon as the next request asks for it (C{log.flush.interval=1}).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred

from pylogbroker.interfaces import IZookeeper
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
    @ivar directory: of its data.
    @ivar broker: the embedded broker, whose counters and partitions a test may look at.
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
        @param directory: of the data; it then stays when the broker stops, so that another can go on with it.
        @param zookeeper: makes the client, if C{enable.zookeeper} is set: C{lambda: double.client()} with a L{pylogbroker.testing.zookeeper.FakeZookeeper}.
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
        @return: fires with L{None} when clients are served; fails as L{EmbeddedBroker.start} does.
        """
        if self._trigger is None:
            self._trigger = self._reactor.addSystemEventTrigger(
                "after", "shutdown", self._remove
            )  # behind the broker's own, which is before
        return self.broker.start()

    def stop(self) -> Deferred[None]:
        """
        @return: fires with L{None} when the broker has stopped and its directory is gone.
        """
        return self.broker.stop().addBoth(self._stopped)

    def _stopped(self, result: Any) -> Any:
        if self._trigger is not None:
            self._reactor.removeSystemEventTrigger(self._trigger)
        self._remove()
        return result

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
        """The same as a client endpoint string."""
        return self.broker.endpoint
