"""
ZooKeeper of a simulated cluster: L{FakeZookeeper}, whose clients live and die with their processes.

A request that has left its process arrives, also when that dies meanwhile. A client that is cut off
does not notice at once; its session ends at the server when it stays away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.errors import MultiFailedException, ZookeeperError
from pylogbroker.testing.simulatednetwork import Process, Scheduler
from pylogbroker.testing.zookeeper import FakeZookeeper, FakeZookeeperClient

LATENCY_MS = 2.0
RETRY_SECONDS = 0.2
"""How often a client that is cut off tries to connect."""


class _ServerClock:
    """The server's clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def callLater(self, delay: float, act: Any, *arguments: Any) -> Any:
        return self._scheduler.after(delay, act, *arguments)


class SimulatedZookeeper(FakeZookeeper):
    """
    The server.

    @ivar unreachable: hosts that are cut off from it.
    @ivar delays: by host, the seconds that a request to it takes longer, and an answer, too.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(_ServerClock(scheduler), LATENCY_MS)
        self.scheduler = scheduler
        self.unreachable: set[str] = set()
        self.delays: dict[str, float] = {}

    def clientOf(self, process: Process, sessionMs: int) -> SimulatedZookeeperClient:
        """A process's client, not connected yet."""
        return SimulatedZookeeperClient(self, process, sessionMs)

    def sever(self, client: SimulatedZookeeperClient) -> None:
        """A client is cut off. Its session ends unless it comes back in time."""
        if client.connected and not client.isSevered:
            client.isSevered = True
            self._drop(client)
            self._expireLater(client)


class _ServerOfClient:
    """What a client sees of the server: its own clock, and nothing while it is cut off."""

    def __init__(self, server: SimulatedZookeeper, client: SimulatedZookeeperClient) -> None:
        self._server = server
        self._client = client
        self.clock = client.process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def _end(self, session: int) -> None:
        if not self._client.isSevered:
            self._server._end(session)

    def reconnect(self, client: SimulatedZookeeperClient) -> None:
        client.reconnect()


class SimulatedZookeeperClient(FakeZookeeperClient):
    """
    A client in a process.

    @ivar isSevered: whether it is cut off, though it may not know yet.
    """

    def __init__(self, server: SimulatedZookeeper, process: Process, sessionMs: int) -> None:
        super().__init__(server, sessionMs, "")
        self.process = process
        self.isSevered = False
        self._connectionCount = 0
        self._reachesAt = self._arrivesAt = 0.0  # what was sent last, each way
        self._realServer = server
        self._server: Any = _ServerOfClient(server, self)

    def noticed(self) -> None:
        """It notices that it is cut off, and connects as soon as it can."""
        if self.isSevered and not self.isClosed:
            if self.connected:
                self._suspended()
            self.reconnect()

    def reconnect(self) -> None:
        """Connect, now or when the server can be reached."""
        server = self._realServer
        if self.isClosed or (self.connected and not self.isSevered):
            return
        if self.process.host in server.unreachable or not server.isRunning:
            self.process.callLater(RETRY_SECONDS, self.reconnect)
            return
        self.isSevered = False
        self._connectionCount += 1
        self._reachesAt = self._arrivesAt = 0.0
        FakeZookeeper.reconnect(server, self)

    @property
    def _latency(self) -> float:
        server = self._realServer
        return server.latency + server.delays.get(self.process.host, 0.0)

    def _deliver(self, event: Callable[[], None]) -> None:
        """Something arrives from the server, behind all that it has sent before."""
        generation, scheduler = self._generation, self._realServer.scheduler

        def arrive() -> None:
            if generation == self._generation and not self.isSevered:
                event()

        self._arrivesAt = max(self._arrivesAt, scheduler.now + self._latency)
        scheduler.after(self._arrivesAt - scheduler.now, arrive, process=self.process)

    def _begin(self, answer: Deferred[Any]) -> None:
        what, work = self._requests[answer]
        connection, session = self._connectionCount, self.session_id
        server, process = self._realServer, self.process

        def reach() -> None:
            if session not in server._sessions or connection != self._connectionCount:
                return  # the connection ends, which the client sees; or it has another one
            try:
                result = work()
            except MultiFailedException as error:
                result = Failure(error)
            except ZookeeperError as error:
                result = Failure(type(error)(f"{what}: {error}"))
            self._deliver(lambda: finish(result))

        def finish(result: Any) -> None:
            self._requests.pop(answer, None)
            if not answer.called:
                answer.callback(result)

        if not answer.called and not self.isSevered and not (process.isDead or process.mustHalt()):
            self._reachesAt = max(self._reachesAt, server.scheduler.now + self._latency)
            server.scheduler.after(self._reachesAt - server.scheduler.now, reach)
