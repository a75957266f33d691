"""
A producer's beginning: finding out who is there, once, for all who wait for it.

A list of brokers is there at once. With ZooKeeper the registries have to be read, over a client that was given, or over one that is made for it and then goes
with the producer. What failed can be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from pylogbroker.client.discovery import IDiscovery, StaticDiscovery, ZookeeperDiscovery
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import PylogbrokerError, copyForReraise
from pylogbroker.interfaces import IZookeeper


class DiscoveryStartup:
    """
    Finds out who is there.

    @ivar isStarted: whether that is known.
    @ivar discovery: who is there; L{None} as long as there is nobody to ask.
    """

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings,
        found: Callable[[IDiscovery], None],
        random: Callable[[], float],
        zookeeper: IZookeeper | None = None,
        discovery: IDiscovery | None = None,
    ) -> None:
        """
        @param found: called with who is there, when it is known; at once for a list of brokers.
        @param random: numbers from 0 up to, not including, 1.
        @param zookeeper: a connected client, which stays its owner's; by default one is made as C{zk.connect} says.
        @param discovery: by default as the settings say.
        """
        if discovery is None and settings.brokers:
            discovery = StaticDiscovery(settings.brokers)
        self.discovery = discovery
        self.isStarted = False
        self._reactor = reactor
        self._settings = settings
        self._found = found
        self._random = random
        self._zookeeper = zookeeper
        self._ownZookeeper: Any = None
        self._work: Deferred[None] | None = None
        self._waiters: list[Deferred[None]] | None = None
        self._refusal: PylogbrokerError | None = None
        if discovery is not None and discovery.isStatic:
            found(discovery)
            self.isStarted = True

    def start(self) -> Deferred[None]:
        """
        @return: fires when it is known who is there. Fails with L{pylogbroker.errors.ZookeeperError}, can be called again then; fails after C{refuse}.
        """
        if self.isStarted:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        if self._waiters is not None:
            self._waiters.append(waiter)
        elif self._refusal is not None:
            return fail(copyForReraise(self._refusal))
        else:
            self._waiters = [waiter]
            self._work = work = Deferred.fromCoroutine(self._start())
            work.addBoth(self._done)
        return waiter

    async def _start(self) -> None:
        discovery = self.discovery
        if discovery is None:
            settings = self._settings
            zookeeper = self._zookeeper
            if zookeeper is None:
                from pylogbroker.zookeeper.client import (
                    ZookeeperClient,
                )  # kazoo is not needed by who has a list of brokers

                client = ZookeeperClient(
                    self._reactor,
                    settings.zookeeperServers,
                    settings.zookeeperSessionTimeoutMs,
                    digest=settings.zookeeperDigest,
                    acl=settings.zookeeperAcl,
                )
                await client.connect(settings.zookeeperConnectTimeoutMs)
                zookeeper = self._ownZookeeper = client
            discovery = ZookeeperDiscovery(
                self._reactor,
                zookeeper,
                readRetryCount=settings.zookeeperReadRetryCount,
                random=self._random,
            )
        try:
            await discovery.start()
        except BaseException:
            own, self._ownZookeeper = self._ownZookeeper, None
            if own is not None:
                await own.close()
            raise
        self.discovery = discovery
        self._found(discovery)

    def _done(self, result: Any) -> None:
        waiters, self._waiters, self._work = self._waiters or [], None, None
        self.isStarted = not isinstance(result, Failure)
        for waiter in waiters:
            if isinstance(result, Failure):
                waiter.errback(result)
            else:
                waiter.callback(None)

    def refuse(self, reason: PylogbrokerError) -> None:
        """Nothing is begun any more."""
        self._refusal = reason

    def cancel(self) -> None:
        """Who waits, waits no longer."""
        if self._work is not None:
            self._work.cancel()

    def stop(self) -> None:
        """Nobody is looked out for any more."""
        if self.discovery is not None:
            self.discovery.stop()

    async def close(self) -> None:
        """Close the client that was made here, if there is one."""
        if self._ownZookeeper is not None:
            await self._ownZookeeper.close()
