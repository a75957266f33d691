"""
A broker inside an application's own reactor.

A broker that was started and not stopped keeps its process alive, since its workers are threads that a flush must not be cut off in; so it has the reactor
stop it before that ends, whatever ended it: a signal, or an application that failed. (Rejected: daemon threads, which die in the midst of a flush,
without the clean-shutdown mark.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.console.service import ConsoleService, brokerConsole
from pylogbroker.interfaces import IZookeeper


class EmbeddedBroker:
    """
    A broker that is started and stopped by the application, or else stopped by the end of its reactor.

    @ivar service: the broker itself; also what a C{twisted.application} can be made the parent of.
    @ivar console: serves its metrics and its page; L{None} without C{http.listener}.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        properties: Mapping[str, str],
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        """
        @param reactor: the application's.
        @param properties: as in a property file, with Kafka's names.
        @param zookeeper: makes the client for C{enable.zookeeper}, not connected; by default one of C{zk.connect}.
        @raise ConfigurationError: they are wrong.
        """
        self._reactor = reactor
        self._trigger: Any = None
        self.settings = BrokerSettings.fromProperties(
            properties, lambda sentence: self._log.warn("{sentence}", sentence=sentence)
        )
        self.service = BrokerService(reactor, self.settings, zookeeper=zookeeper)
        self.console: ConsoleService | None = brokerConsole(reactor, self.settings, self.service)

    def start(self) -> Deferred[None]:
        """
        @return: fires with L{None} when clients are served; fails with a L{pylogbroker.errors.ConfigurationError} (a port is taken) or
            L{pylogbroker.errors.StorageError} (the directory cannot be used), with C{enable.zookeeper} also with a L{pylogbroker.errors.ZookeeperError}.
        """
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        if self._trigger is not None:
            raise RuntimeError("a broker is started once")
        self._trigger = self._reactor.addSystemEventTrigger(
            "before", "shutdown", self._stopBeforeEnd
        )
        try:
            await self._startAll()
        except BaseException:
            self._forgetEnd()
            raise

    async def _startAll(self) -> None:
        if self.console is None:
            await self.service.start()
            return
        await self.console.listen()
        try:
            await self.service.start()
        except BaseException:
            await self.console.stopService()
            raise

    def stop(self) -> Deferred[None]:
        """
        @return: fires with L{None} when everything is flushed and closed.
        """
        return Deferred.fromCoroutine(self._stop())

    def _stopBeforeEnd(self) -> Deferred[None]:
        self._trigger = None  # fired: it cannot be removed
        return self.stop()

    def _forgetEnd(self) -> None:
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._reactor.removeSystemEventTrigger(trigger)

    async def _stop(self) -> None:
        self._forgetEnd()
        if self.console is not None:
            await self.console.stopService()
        await self.service.stopService()

    @property
    def host(self) -> str:
        """The address of the first listener."""
        return str(self.service.ports[0].getHost().host)

    @property
    def port(self) -> int:
        """The port of the first listener, also when the settings left it to the system."""
        return int(self.service.ports[0].getHost().port)

    @property
    def endpoint(self) -> str:
        """A client endpoint string for the first listener."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host).replace(":", "\\:")
        return f"tcp:{host}:{self.port}"
