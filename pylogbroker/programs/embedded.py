"""
A broker inside an application's own reactor::

    from pylogbroker.programs.embedded import EmbeddedBroker

    broker = EmbeddedBroker(reactor, {"brokerid": "0", "log.dir": "/var/lib/pylogbroker"})
    await broker.start()

The reactor stops a broker that the application has not stopped, before it ends, whether a signal or
an error ended it. Otherwise the broker's worker threads would keep the process alive.

The reactor's timers follow the wall clock: if that is set back, they wait as long. An application
that must not calls L{pylogbroker.programs.clocksteps.keepTimers}, as C{twistd pylogbroker} does.

Rejected: daemon threads, which die during a flush and leave no clean-shutdown marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.interfaces import IFileSystem, IZookeeper
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.clocksteps import bootSeconds
from pylogbroker.programs.interbroker import interBrokerClients
from pylogbroker.programs.lifecycle import brokerSite

if TYPE_CHECKING:
    from pylogbroker.console.service import ConsoleService


class EmbeddedBroker:
    """
    A broker that the application starts and stops; the end of the reactor stops it, too.

    @ivar service: the broker, a C{twisted.application} service.
    @ivar console: serves metrics and the console; L{None} without C{http.listener}.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        properties: Mapping[str, str],
        zookeeper: Callable[[], IZookeeper] | None = None,
        fileSystem: IFileSystem | None = None,
    ) -> None:
        """
        @param reactor: the application's.
        @param properties: as in a property file, with Kafka's keys.
        @param zookeeper: makes the client for C{enable.zookeeper}, not connected; by default one
            of C{zk.connect}.
        @param fileSystem: of the data; by default the machine's.
        @raise ConfigurationError: a property is wrong.
        """
        self._reactor = reactor
        self._trigger: Any = None
        self.settings = BrokerSettings.fromProperties(
            properties, lambda sentence: self._log.warn("{sentence}", sentence=sentence)
        )
        self.service = BrokerService(
            reactor,
            self.settings,
            fileSystem=fileSystem,
            zookeeper=zookeeper,
            connectBroker=interBrokerClients(reactor, self.settings),
            elapsed=bootSeconds,
        )
        self.console: ConsoleService | None = brokerSite(reactor, self.settings, self.service)

    @asDeferred
    async def start(self) -> None:
        """
        @return: fires with L{None} when clients are served. Fails with
            L{pylogbroker.errors.ConfigurationError} (a port is taken),
            L{pylogbroker.errors.StorageError} (the directory cannot be used), or
            L{pylogbroker.errors.ZookeeperError}.
        """
        if self._trigger is not None:
            raise RuntimeError("a broker is started once")
        self._trigger = self._reactor.addSystemEventTrigger(
            "before", "shutdown", self._stopBeforeEnd
        )
        try:
            if self.console is not None:
                await self.console.listen()
            await self.service.start()
        except Exception:
            await self._stopConsole()
            raise

    async def _stopConsole(self) -> None:
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._reactor.removeSystemEventTrigger(trigger)
        if self.console is not None:
            await self.console.stopService()

    @asDeferred
    async def stop(self) -> None:
        """
        @return: fires with L{None} when all data is flushed and all files are closed.
        """
        await self._stopConsole()
        await self.service.stopService()

    def _stopBeforeEnd(self) -> Deferred[None]:
        self._trigger = None  # fired: it cannot be removed
        return self.stop()

    @property
    def host(self) -> str:
        """The address of the first listener."""
        return str(self.service.ports[0].getHost().host)

    @property
    def port(self) -> int:
        """The port of the first listener, also if the settings leave it to the system."""
        return int(self.service.ports[0].getHost().port)

    @property
    def endpoint(self) -> str:
        """A client endpoint string for the first listener."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host).replace(":", "\\:")
        return f"tcp:{host}:{self.port}"
