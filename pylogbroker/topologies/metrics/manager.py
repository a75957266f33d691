"""
The metrics manager of a container. A module of its own, since its process is the only one that has
sinks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from pylogbroker.errors import WireError
from pylogbroker.net.deferreds import asDeferred, gatherSettled
from pylogbroker.topologies.control import ControlClient, ControlPeer, ControlServer
from pylogbroker.topologies.messages import (
    INSTANCE,
    METRICS_MANAGER,
    STREAM_MANAGER,
    Control,
    Hello,
    Metrics,
    Refused,
    Welcome,
)
from pylogbroker.topologies.metrics.sinks import IMetricsSink
from pylogbroker.topologies.plan import MasterLocation

log = Logger()

_SPARE_CONNECTION_COUNT = 16
"""Connections beyond one for each process."""


class MetricsManager:
    """
    Takes the metrics of a container's processes.

    @ivar factory: for the port that it listens on.
    """

    def __init__(
        self,
        clock: IReactorTime,
        topology: str,
        container: int,
        instances: Sequence[int],
        incarnation: int,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        random: Callable[[], float],
        sinks: Sequence[IMetricsSink],
    ) -> None:
        """
        @param instances: the tasks of the container: others are refused.
        @param incarnation: a number that this process has drawn.
        @param endpointTo: makes an endpoint of C{host:port}.
        @param random: numbers from 0 up to, not including, 1.
        """
        self._topology = topology
        self._container = container
        self._incarnation = incarnation
        self._sinks = sinks
        self._tasks = frozenset(instances)
        hello = Hello(topology, METRICS_MANAGER, container, incarnation)
        self._master = ControlClient(clock, endpointTo, random, lambda _attempt: hello)
        self.factory = ControlServer(
            clock,
            self._hello,
            self._received,
            lambda _peer: None,
            len(instances) + _SPARE_CONNECTION_COUNT,
        )

    def setMaster(self, location: MasterLocation | None) -> None:
        """Pass metrics on to the master that is announced; L{None}: to none."""
        self._master.goTo(None if location is None else f"{location.host}:{location.port}")

    @asDeferred
    async def stop(self) -> None:
        """@return: fires with L{None} when the connections and the sinks are closed."""
        self._master.goTo(None)
        self.factory.closeAll("the metrics manager stops")
        await gatherSettled([each.close() for each in self._sinks])

    def _hello(self, peer: ControlPeer, hello: Hello) -> None:
        isKnown = (hello.role == INSTANCE and hello.id in self._tasks) or (
            hello.role == STREAM_MANAGER and hello.id == self._container
        )
        if hello.topology == self._topology and isKnown:
            peer.send(Welcome(self._incarnation))
        else:
            peer.send(Refused(f"{hello.role} {hello.id} of {hello.topology} is not of here"))
            peer.close("the hello was refused")

    def _received(self, peer: ControlPeer, message: Control) -> None:
        hello: Any = peer.hello
        if not isinstance(message, Metrics):
            raise WireError(f"{type(message).__name__} is nothing for a metrics manager")
        source = str(hello.id) if hello.role == INSTANCE else STREAM_MANAGER
        if message.source != source or message.container != self._container:
            return  # an instance that has no plan yet does not know its container
        for each in self._sinks:
            each.take(message)
        self._master.send(message)
