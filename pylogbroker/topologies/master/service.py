"""
A topology master on a network: a server for stream managers and metrics managers, an announcement
in ZooKeeper, and a status over HTTP. A module of its own, since it joins L{MasterState} to all
three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import Logger

from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.httpserver import HttpSite, jsonReply
from pylogbroker.topologies.control import ControlPeer, ControlServer
from pylogbroker.topologies.master.state import MasterState
from pylogbroker.topologies.messages import Control, Hello, Metrics
from pylogbroker.topologies.plan import MasterLocation
from pylogbroker.topologies.statemanager import StateManager, Watch

log = Logger()

HOST = "127.0.0.1"

_SPARE_CONNECTION_COUNT = 16
"""Connections beyond two for each container: of those that come back before the end is noticed."""


class MasterDeposedError(PylogbrokerError):
    """A master does not act any more. The text says why."""


class TopologyMaster:
    """
    A master.

    @ivar location: as it is announced; L{None} before that.
    @ivar state: L{None} before it is announced.
    """

    def __init__(
        self,
        reactor: Any,
        zookeeper: IZookeeper,
        states: StateManager,
        topology: str,
        incarnation: int,
        host: str = HOST,
    ) -> None:
        """
        @param zookeeper: connected.
        @param states: over it.
        @param incarnation: a number that this process has drawn.
        @param host: where it listens, on free ports.
        """
        self.location: MasterLocation | None = None
        self.state: MasterState[ControlPeer] | None = None
        self._reactor = reactor
        self._zookeeper = zookeeper
        self._states = states
        self._topology = topology
        self._incarnation = incarnation
        self._host = host
        self._ports: list[Any] = []
        self._watches: list[Watch] = []
        self._removeListener: Callable[[], None] = lambda: None
        self._server: ControlServer | None = None
        self._deposed: Deferred[None] = Deferred()

    @asDeferred
    async def start(self) -> None:
        """
        Become the master, as soon as there is no other one.

        @return: fires with L{None} when it is announced. Fails with
            L{pylogbroker.topologies.statemanager.NoSuchTopologyError}, and with
            L{pylogbroker.errors.ZookeeperError}; call L{stop} then, too.
        """
        definition = await self._states.definition(self._topology)
        initial = await self._states.state(self._topology)
        containerCount = len(definition.packing.containers)
        server = self._server = ControlServer(
            self._reactor,
            self._hello,
            self._received,
            self._lost,
            2 * containerCount + _SPARE_CONNECTION_COUNT,
        )
        listening = self._reactor.listenTCP(0, server, interface=self._host)
        site = HttpSite(self._reactor, {"/status": lambda query: jsonReply(self.status())})
        status = self._reactor.listenTCP(0, site, interface=self._host)
        self._ports = [listening, status]
        self._removeListener = self._zookeeper.add_session_listener(self._sessionChanged)
        self.location = await self._states.announce(
            self._topology,
            self._host,
            listening.getHost().port,
            status.getHost().port,
            lambda: log.info("Another master is there; waiting for its end"),
        )
        log.info(
            "Master of {topology}, with epoch {epoch:#x}, at {host}:{port}; its status is at "
            "http://{host}:{statusPort}/status",
            topology=self._topology,
            epoch=self.location.epoch,
            host=self._host,
            port=self.location.port,
            statusPort=self.location.statusPort,
        )
        self.state = MasterState(
            self._topology,
            definition.packing,
            initial,
            self.location.epoch,
            self._incarnation,
            self._send,
            lambda peer: peer.close("the master has no use for it any more"),
        )
        if not self._zookeeper.connected:
            self.state.suspend()
        self._watches = [
            self._states.watchMaster(self._topology, self._announced),
            self._states.watchState(self._topology, self._stateChanged),
        ]

    def whenDeposed(self) -> Deferred[None]:
        """
        @return: fails with L{MasterDeposedError} when it does not act any more: its session has
            ended, or another master is announced.
        """
        return self._deposed

    @asDeferred
    async def stop(self) -> None:
        """
        @return: fires with L{None} when its ports are closed. The session is the caller's to end.
        """
        self._removeListener()
        for watch in self._watches:
            watch.stop()
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        if self.state is not None:
            self.state.depose()
        if self._server is not None:
            self._server.closeAll("the master ends")
        self._deposed.addErrback(lambda _failure: None)

    def status(self) -> dict[str, Any]:
        """For tools: see L{MasterState.status}."""
        if self.state is None:
            return {"topology": self._topology, "isActing": False}
        return self.state.status()

    # -- ZooKeeper

    def _sessionChanged(self, event: SessionEvent) -> None:
        if self.state is None:
            return  # it is not announced, and has nothing to lose
        if event is SessionEvent.CONNECTED:
            self.state.resume()
        elif event is SessionEvent.SUSPENDED:
            self.state.suspend()
        else:
            self._depose("its session with ZooKeeper has ended")

    def _announced(self, location: MasterLocation | None) -> None:
        if location != self.location:
            self._depose(
                "its node is gone" if location is None else f"{location.epoch:#x} is announced"
            )

    def _depose(self, reason: str) -> None:
        assert self.state is not None
        self.state.depose()
        if not self._deposed.called:
            log.warn("This master stops acting: {reason}", reason=reason)
            self._deposed.errback(MasterDeposedError(f"the master stops acting: {reason}"))

    def _stateChanged(self, state: str | None) -> None:
        assert self.state is not None
        if state is not None:
            log.info("The topology is {state}", state=state)
            self.state.stateChanged(state)

    # -- connections

    def _hello(self, peer: ControlPeer, hello: Hello) -> None:
        if self.state is None:  # it is not announced, and the caller found it by chance
            peer.abort("this master is not announced yet")
            return
        log.info(
            "Hello of the {role} of container {id} at {address}",
            role=hello.role,
            id=hello.id,
            address=hello.address,
        )
        self.state.hello(peer, hello)

    @staticmethod
    def _send(peer: ControlPeer, message: Control) -> None:
        if not peer.send(message):  # it connects again when it can
            peer.abort("it does not read")

    def _received(self, peer: ControlPeer, message: Control) -> None:
        if self.state is not None and isinstance(message, Metrics):
            self.state.metrics(peer, message)

    def _lost(self, peer: ControlPeer) -> None:
        if self.state is not None:
            self.state.lost(peer)
