"""
What a topology master knows and decides, without connections. A module of its own, since the
simulator runs it, too.

What must be true:

  - A plan is pushed only when the stream managers of all containers have said where they are.
  - Each plan has a higher epoch than the one before it. All epochs of a master are higher than
  those of the masters before it.
  - A master that is not sure of its session pushes nothing (L{MasterState.suspend}). One that has
  lost it, or that sees another one announced, never acts again (L{MasterState.depose}).
  - Memory is bounded by the packing plan: one connection and one address for each container, and
  the last metrics of each process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import msgspec

from pylogbroker.topologies.messages import (
    METRICS_MANAGER,
    STREAM_MANAGER,
    Control,
    Hello,
    Metrics,
    PlanPushed,
    Refused,
    Welcome,
)
from pylogbroker.topologies.plan import PackingPlan, PhysicalPlan

Peer = TypeVar("Peer", bound=Hashable)

VALUE_COUNT_MAX = 1_000
"""Values in the metrics of a process: authors count what they like."""


class _Stream(Generic[Peer]):
    """
    A stream manager that is connected.

    @ivar epoch: of the last plan that was pushed to it; 0: none.
    """

    __slots__ = ("epoch", "incarnation", "peer")

    def __init__(self, peer: Peer, incarnation: int) -> None:
        self.peer = peer
        self.incarnation = incarnation
        self.epoch = 0


class MasterState(Generic[Peer]):
    """
    A master.

    @ivar plan: the last one; L{None}: a stream manager is missing since the start.
    @ivar state: of the topology: C{active}, C{paused} or C{killed}.
    @ivar isActing: whether it may push plans now.
    """

    def __init__(
        self,
        topology: str,
        packing: PackingPlan,
        state: str,
        epoch: int,
        incarnation: int,
        send: Callable[[Peer, Control], object],
        drop: Callable[[Peer], object],
    ) -> None:
        """
        @param epoch: of this master, lower than that of each of its plans.
        @param incarnation: a number that this process has drawn.
        @param send: called with a connection and a message for it; may call L{lost}.
        @param drop: called with a connection to be closed when all is sent; may call L{lost}.
        """
        self.plan: PhysicalPlan | None = None
        self.state = state
        self.isActing = True
        self._isDeposed = False
        self._topology = topology
        self._packing = packing
        self._epoch = epoch
        self._incarnation = incarnation
        self._send = send
        self._drop = drop
        self._addresses: dict[int, str] = {}
        self._streams: dict[int, _Stream[Peer]] = {}
        self._containers: dict[Peer, tuple[str, int]] = {}
        self._metricsManagers: dict[int, Peer] = {}
        self._sources = {
            each.number: {*(str(i.task) for i in each.instances), STREAM_MANAGER, METRICS_MANAGER}
            for each in packing.containers
        }
        self._metrics: dict[tuple[int, str], Metrics] = {}

    # -- what comes

    def hello(self, peer: Peer, hello: Hello) -> None:
        """
        A connection has said who it is; once for each. It is welcomed, or refused and dropped.
        """
        reason = self._refusal(hello)
        if reason:
            self._send(peer, Refused(reason))
            self._drop(peer)
            return
        container = hello.id
        self._containers[peer] = hello.role, container
        self._send(peer, Welcome(self._incarnation))
        if hello.role == METRICS_MANAGER:
            earlier = self._metricsManagers.get(container)
            self._metricsManagers[container] = peer
        else:
            before = self._streams.get(container)
            earlier = None if before is None else before.peer
            self._streams[container] = _Stream(peer, hello.incarnation)
            self._addresses[container] = hello.address
        if earlier is not None:
            self._containers.pop(earlier, None)
            self._drop(earlier)
        self._push()

    def _refusal(self, hello: Hello) -> str:
        """Why a hello cannot be taken; empty: it can."""
        if self._isDeposed:
            return "this master does not act any more"
        if hello.topology != self._topology:
            return f"this is the master of {self._topology}, not of {hello.topology}"
        if hello.role not in (STREAM_MANAGER, METRICS_MANAGER):
            return f"a master has no use for the role {hello.role!r}"
        if hello.id not in self._sources:
            return f"there is no container {hello.id}"
        if hello.role == STREAM_MANAGER and not hello.address:
            return "a stream manager must say where it can be reached"
        return ""

    def metrics(self, peer: Peer, metrics: Metrics) -> None:
        """
        Metrics that a metrics manager passes on. Those of sources that its container does not have
        are ignored, and those with more than L{VALUE_COUNT_MAX} values.
        """
        role, container = self._containers.get(peer, ("", 0))
        if role == METRICS_MANAGER and metrics.source in self._sources[container]:
            if metrics.container == container and len(metrics.values) <= VALUE_COUNT_MAX:
                self._metrics[container, metrics.source] = metrics

    def lost(self, peer: Peer) -> None:
        """A connection has ended. The plan stays: the stream manager comes back or is replaced."""
        role, container = self._containers.pop(peer, ("", 0))
        if role == METRICS_MANAGER:
            del self._metricsManagers[container]
        elif role:
            del self._streams[container]

    def stateChanged(self, state: str) -> None:
        """The topology's state is another one."""
        self.state = state
        self._push()

    def suspend(self) -> None:
        """The connection to ZooKeeper is lost: the session may have ended without our knowledge."""
        self.isActing = False

    def resume(self) -> None:
        """The session goes on."""
        if not self._isDeposed:
            self.isActing = True
            self._push()

    def depose(self) -> None:
        """The session has ended, or another master is announced. All connections are dropped."""
        self._isDeposed = True
        self.isActing = False
        peers = list(self._containers)
        self._containers.clear()
        self._streams.clear()
        self._metricsManagers.clear()
        for peer in peers:
            self._drop(peer)

    # -- what follows

    def _push(self) -> None:
        if not self.isActing or len(self._addresses) < len(self._sources):
            return
        plan = self.plan
        if plan is None or plan.state != self.state or plan.streamManagers != self._addresses:
            self._epoch += 1
            plan = self.plan = PhysicalPlan(
                self._topology, self._epoch, self.state, self._packing, dict(self._addresses)
            )
        for each in list(self._streams.values()):
            if each.epoch < plan.epoch:
                each.epoch = plan.epoch
                self._send(each.peer, PlanPushed(plan))

    def _isConnected(self, container: int, task: int) -> bool:
        """
        Whether an instance is connected to the stream manager of its container, by that one's last
        report. It is not while no stream manager of the container is connected to the master.
        """
        stream = self._streams.get(container)
        metrics = self._metrics.get((container, STREAM_MANAGER))
        if stream is None or metrics is None or metrics.incarnation != stream.incarnation:
            return False
        return metrics.values.get(f"connected.{task}") == 1

    def status(self) -> dict[str, Any]:
        """For tools, as JSON."""
        return {
            "topology": self._topology,
            "state": self.state,
            "epoch": self.plan.epoch if self.plan is not None else self._epoch,
            "isActing": self.isActing,
            "missing": sorted(self._sources.keys() - self._addresses.keys()),
            "containers": [
                {
                    "number": each.number,
                    "streamManager": self._addresses.get(each.number, ""),
                    "isConnected": each.number in self._streams,
                    "instances": [
                        {
                            "task": instance.task,
                            "component": instance.component,
                            "index": instance.index,
                            "isConnected": self._isConnected(each.number, instance.task),
                        }
                        for instance in each.instances
                    ],
                }
                for each in self._packing.containers
            ],
            "metrics": [
                msgspec.structs.asdict(each) for _key, each in sorted(self._metrics.items())
            ],
        }
