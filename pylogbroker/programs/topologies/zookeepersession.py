"""
The session with ZooKeeper of a process of a topology, and how long it is sure to last.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall

from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import SessionExpiredException, ZookeeperError
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.timer import Timer
from pylogbroker.topologies.statemanager import ROOT, StateManager
from pylogbroker.zookeeper.client import ZookeeperClient

BEATS = 6
"""Requests of a L{SessionLease} within a session time-out."""


async def connectedStates(
    reactor: Any, settings: TopologySettings, random: SystemRandom
) -> tuple[ZookeeperClient, StateManager]:
    """
    Connect.

    @raise ZookeeperError: ZooKeeper cannot be reached.
    """
    client = ZookeeperClient.fromSettings(reactor, settings)
    await client.connect()
    return client, StateManager(reactor, client, random.random)


class SessionLease:
    """
    Tells when a session has ended, or may have: an application on the wrong side of a partition
    cannot hear of its end.

    A request that was answered shows that the session lived when it was sent. When that was a
    session time-out ago, the lease is over.
    """

    def __init__(self, clock: Any, zookeeper: IZookeeper) -> None:
        """
        @param clock: an L{twisted.internet.interfaces.IReactorTime}.
        @param zookeeper: connected.
        """
        self._clock = clock
        self._zookeeper = zookeeper
        self._seconds = zookeeper.session_timeout / 1000
        self._isAsking = False
        self._over: Deferred[None] = Deferred()
        self._ending = Timer(clock)
        self._livedAt(clock.seconds())
        self._remove: Callable[[], None] = zookeeper.add_session_listener(self._changed)
        self._beating = LoopingCall(self._beat)
        self._beating.clock = clock
        self._beating.start(self._seconds / BEATS)

    def whenOver(self) -> Deferred[None]:
        """@return: fails with L{SessionExpiredException}; one only."""
        return self._over

    def stop(self) -> None:
        """Watch no more."""
        self._remove()
        self._ending.stop()
        if self._beating.running:
            self._beating.stop()

    def _changed(self, event: SessionEvent) -> None:
        if event in (SessionEvent.EXPIRED, SessionEvent.CLOSED):
            self._end("the session with ZooKeeper has ended")

    def _livedAt(self, seconds: float) -> None:
        """The session lived then: so it lasts at least a time-out from then."""
        left = max(seconds + self._seconds - self._clock.seconds(), 0)
        reason = f"ZooKeeper has not answered within the session's {self._seconds:g} s"
        self._ending.start(left * 1000, self._end, reason)

    def _beat(self) -> None:
        if not self._isAsking:
            self._ask()

    @asDeferred
    async def _ask(self) -> None:
        self._isAsking = True
        sent = self._clock.seconds()
        try:
            await self._zookeeper.exists(ROOT)
            if not self._over.called and self._beating.running:
                self._livedAt(sent)
        except ZookeeperError:
            pass  # the next one tells
        finally:
            self._isAsking = False

    def _end(self, reason: str) -> None:
        self.stop()
        if not self._over.called:
            self._over.errback(SessionExpiredException(reason))
