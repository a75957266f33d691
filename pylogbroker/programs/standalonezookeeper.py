"""
Our ZooKeeper server (L{pylogbroker.zookeeper.server}) inside an application's own reactor, on the
loopback interface: for development and tests. Production wants a real ensemble.
"""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.logger import Logger

from pylogbroker.errors import ConfigurationError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.storage.events import StorageEvent
from pylogbroker.storage.files import RealFileSystem

HOST = "127.0.0.1"
PORT = 2181
"""Where clients expect a server, if they are not told another port."""

TICK_MS = 500


class StandaloneZookeeper:
    """
    A server that its application starts and stops; the end of the reactor stops it, too. A stopped
    one can be made anew with the same directory and port.

    @ivar port: where it listens, once it has started.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: Any,
        directory: str,
        port: int = 0,
        *,
        tickMs: int = TICK_MS,
        fileSystem: IFileSystem | None = None,
    ) -> None:
        """
        @param directory: of its data; made if it is missing.
        @param port: 0 for any free one.
        @param tickMs: a session lasts at least two ticks.
        @param fileSystem: of the data; by default the machine's.
        """
        # C{dev} without ZooKeeper imports this module, too: its start costs less without these.
        from pylogbroker.zookeeper.server.service import ServerSettings, ZookeeperServer
        from pylogbroker.zookeeper.server.transactionlog import TransactionLog

        self.port = port
        self._reactor = reactor
        self._directory = os.path.abspath(directory)
        self._logWorker = ThreadPoolWorker(reactor, "zookeeper-log", 1)
        self._snapshotWorker = ThreadPoolWorker(reactor, "zookeeper-snapshots", 1)
        log = TransactionLog(
            RealFileSystem() if fileSystem is None else fileSystem,
            self._directory,
            lambda: int(time.time() * 1000),
            self._report,
        )
        self.server = ZookeeperServer(
            reactor,
            log,
            self._logWorker.submit,
            self._snapshotWorker.submit,
            os.urandom,
            RateLimitedLogger(reactor, self._log),
            ServerSettings(tickMs),
        )
        self._listening: Any = None
        self._trigger: Any = None

    @property
    def servers(self) -> str:
        """The C{zk.connect} of its clients."""
        return f"{HOST}:{self.port}"

    def _report(self, event: StorageEvent) -> None:
        level = self._log.warn if event.isWarning else self._log.info
        level(event.format, **vars(event))

    @asDeferred
    async def start(self) -> None:
        """
        @return: fires with L{None} when it serves clients. Fails with L{ConfigurationError} when
            the port or the directory is taken, and with L{pylogbroker.errors.StorageError} when the
            data cannot be read.
        """
        self._logWorker.start()
        self._snapshotWorker.start()
        self._trigger = self._reactor.addSystemEventTrigger(
            "before", "shutdown", self._stopBeforeEnd
        )
        try:
            try:  # a taken port must not cost the time of reading the data
                self._listening = self._reactor.listenTCP(self.port, self.server, interface=HOST)
            except CannotListenError as error:
                raise ConfigurationError(
                    f"port {self.port} of {HOST} cannot be had: {error.socketError.strerror}"
                ) from error
            self.port = self._listening.getHost().port
            await self.server.start()
        except BaseException:
            self._removeTrigger()
            await self._stopListening()
            self._stopWorkers()
            raise
        self._log.info(
            "ZooKeeper serves on {servers}, with its data in {directory}. It is a single server for"
            " development: production wants an ensemble of Apache ZooKeeper",
            servers=self.servers,
            directory=self._directory,
        )

    @asDeferred
    async def stop(self) -> None:
        """
        @return: fires with L{None} when all files are closed. It does nothing to a server that has
            not started, or has stopped.
        """
        if self._removeTrigger():
            await self._stopBeforeEnd()

    def _removeTrigger(self) -> bool:
        """Returns whether it was there: whether the server runs."""
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self._reactor.removeSystemEventTrigger(trigger)
        return trigger is not None

    @asDeferred
    async def _stopBeforeEnd(self) -> None:
        self._trigger = None
        try:
            await self._stopListening()
            await self.server.stop()
        finally:
            self._stopWorkers()

    async def _stopListening(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await maybeDeferred(listening.stopListening)

    def _stopWorkers(self) -> None:
        self._logWorker.stop()
        self._snapshotWorker.stop()

    def whenFailed(self) -> Deferred[NoReturn]:
        """
        @return: fails with L{pylogbroker.errors.ZookeeperError} when it has ended by itself.
        """
        return self.server.whenFailed()
