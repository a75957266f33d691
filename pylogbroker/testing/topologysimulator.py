"""
A whole topology in one process, by the test's clock: real instances, stream managers and a real
master, over a network in memory::

    simulator = TopologySimulator(wordCount, containerCount=3)
    simulator.advance(10)  # seconds, of the simulation
    [counter] = simulator.components("count")
    self.assertEqual(counter.counts["the"], 7)

The author's code is called inline. A call takes no time of the simulation, but those seconds which
C{serviceSeconds} gives: so a slow bolt is simulated. Processes can be killed, and are started again
as a container's executor would do, connections can be cut, and the network can be slow. The same
seed does the same.

What is not simulated: the processes themselves, threads, and ZooKeeper. The simulator tells stream
managers which master there is, and counts the masters' epochs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Self

from twisted.python.failure import Failure

from pylogbroker.errors import ConfigurationError
from pylogbroker.testing.simulatednetwork import Network, Process, Scheduler
from pylogbroker.topologies.api import Component
from pylogbroker.topologies.connection import tcpEndpoints
from pylogbroker.topologies.control import ControlPeer, ControlServer
from pylogbroker.topologies.instance.executors import InlineExecutor
from pylogbroker.topologies.instance.gateway import Gateway
from pylogbroker.topologies.master.state import MasterState
from pylogbroker.topologies.messages import Control
from pylogbroker.topologies.packings import pack
from pylogbroker.topologies.plan import ACTIVE, EPOCH_BITS, KILLED, PAUSED, PackingPlan
from pylogbroker.topologies.streammanager.manager import StreamManager
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings
from pylogbroker.topologies.topology import ComponentSpec, Topology

SERVICE_SECONDS = 0.0001
"""That a call of the author's code takes, unless C{serviceSeconds} says something else."""

CALLS_PER_SECOND_MAX = 1_000_000
"""Calls of the simulation in one of its seconds; one that needs more turns in circles."""

_MASTER_HOST, _PORT = "master", 7000
_CONNECTION_COUNT_MAX = 1_000


class SimulatedInstance:
    """
    An instance's process.

    @ivar gateway: the real one.
    """

    def __init__(self, process: Process, gateway: Gateway, executor: InlineExecutor) -> None:
        self.process = process
        self.gateway = gateway
        self._executor = executor

    def kill(self) -> None:
        """C{kill -9}."""
        self._executor.kill()
        self.process.kill()


class SimulatedMaster:
    """
    A master's process.

    @ivar state: the real one.
    @ivar address: C{host:port}.
    """

    def __init__(
        self,
        process: Process,
        topology: str,
        packing: PackingPlan,
        state: str,
        epoch: int,
        port: int,
    ) -> None:
        self.process = process
        self.epoch = epoch
        self.address = f"{process.host}:{port}"
        self.state: MasterState[ControlPeer] = MasterState(
            topology,
            packing,
            state,
            epoch,
            epoch,
            self._send,
            lambda peer: peer.close("it is not to be connected"),
        )
        server = ControlServer(
            process,
            self.state.hello,
            lambda _peer, _message: None,
            self.state.lost,
            _CONNECTION_COUNT_MAX,
        )
        process.listenTCP(port, server)

    @staticmethod
    def _send(peer: ControlPeer, message: Control) -> None:
        peer.send(message)


class TopologySimulator:
    """
    Runs a topology.

    @ivar network: of the simulation: C{slowShare} of what is sent is late.
    @ivar instances: the processes of instances that live, by task.
    @ivar streamManagers: those that live, by container.
    @ivar master: the one that stream managers are told of; L{None} while there is none.
    @ivar formerMasters: those that live still, and do not know that they are replaced.
    @ivar failures: what the author's code has raised, so that its process has died.
    @ivar restartSeconds: behind which a process that has died is started again.
    """

    def __init__(
        self,
        topology: Topology,
        containerCount: int | None = None,
        *,
        packing: PackingPlan | None = None,
        seed: int = 0,
        serviceSeconds: Mapping[str, float] | None = None,
        settings: StreamManagerSettings | None = None,
        restartSeconds: float = 1.0,
    ) -> None:
        """
        @param containerCount: L{None}: what the topology's configuration says.
        @param packing: in place of one by round robin over C{containerCount} containers.
        @param seed: of all that is random.
        @param serviceSeconds: of components by name: how long they take for a tuple, or for a call
            of C{nextTuple}; otherwise it is L{SERVICE_SECONDS}.
        @param settings: of the stream managers. The time-out of messages is the topology's.
        @raise ConfigurationError: the topology cannot be packed so, or has no such component.
        """
        unknown = sorted(set(serviceSeconds or {}) - set(topology.components))
        if unknown:
            raise ConfigurationError(f"topology {topology.name} has no component {unknown[0]}")
        options = topology.options
        self.random = Random(seed)
        self._scheduler = Scheduler()
        self.network = Network(self._scheduler, Random(self.random.getrandbits(64)), Counter())
        self.packing = packing or pack(topology, containerCount)
        self.settings = (settings or StreamManagerSettings())._replace(
            messageTimeout=options.messageTimeoutMs / 1000
        )
        self.restartSeconds = restartSeconds
        self.instances: dict[int, SimulatedInstance] = {}
        self.streamManagers: dict[int, StreamManager] = {}
        self.master: SimulatedMaster | None = None
        self.formerMasters: list[SimulatedMaster] = []
        self.failures: list[Failure] = []
        self._topology = topology
        self._serviceSeconds = dict(serviceSeconds or {})
        self._processes: dict[int, Process] = {}  # of stream managers
        self._containers = {
            each.task: container.number
            for container in self.packing.containers
            for each in container.instances
        }
        self._components: defaultdict[str, dict[int, Component]] = defaultdict(dict)
        self._names = {each.task: each.component for each in self.packing.instances}
        self._state = ACTIVE
        self._masterCount = 0
        self._isClosed = False
        for container in self.packing.containers:
            self.startStreamManager(container.number)
            for instance in container.instances:
                self.startInstance(instance.task)
        self.startMaster()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_arguments: object) -> None:
        self.close()

    # -- time

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._scheduler.now

    def advance(self, seconds: float) -> None:
        """
        Let time pass.

        @raise StuckError: too much happens in it.
        """
        scheduler = self._scheduler
        scheduler.callCount = 0
        scheduler.callCountMax = CALLS_PER_SECOND_MAX * (1 + seconds)
        scheduler.advance(seconds)

    def advanceUntil(
        self, condition: Callable[[], bool], secondsMax: float = 60.0, step: float = 0.05
    ) -> None:
        """
        Let time pass until something is so.

        @raise AssertionError: it is not, for C{secondsMax} seconds.
        """
        end = self.seconds + secondsMax
        while not condition():
            if self.seconds >= end:
                raise AssertionError(f"not within {secondsMax} s of the simulation: {condition}")
            self.advance(step)

    def callLater(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Have something called, in some seconds of the simulation."""
        self._scheduler.after(seconds, call, *arguments)

    def close(self) -> None:
        """End all processes: the author's objects are closed."""
        self._isClosed = True
        for instance in list(self.instances.values()):
            instance.gateway.stop()
        self.advance(1)
        for instance in list(self.instances.values()):
            instance.kill()
        for process in self.processes():
            process.kill()

    # -- what the author's code is and does

    def components(self, name: str) -> list[Any]:
        """The author's objects of a component, in the order of their tasks."""
        found = self._components[name]
        return [found[task] for task in sorted(found)]

    def tasks(self, name: str) -> list[int]:
        """The tasks of a component."""
        return [task for task, component in sorted(self._names.items()) if component == name]

    def metricValues(self, task: int) -> Mapping[str, float]:
        """What an instance has counted."""
        return self.instances[task].gateway.metrics().values

    def activate(self) -> None:
        """As the command does."""
        self._setState(ACTIVE)

    def deactivate(self) -> None:
        """As the command does: spouts emit no more."""
        self._setState(PAUSED)

    def kill(self) -> None:
        """As the command does, as far as processes are told."""
        self._setState(KILLED)

    def _setState(self, state: str) -> None:
        self._state = state
        for master in self._masters():
            tell = partial(master.state.stateChanged, state)
            self._scheduler.after(0, master.process.perform, tell)

    def _masters(self) -> list[SimulatedMaster]:
        return [*self.formerMasters, *([] if self.master is None else [self.master])]

    # -- processes

    def startInstance(self, task: int) -> SimulatedInstance:
        """Start an instance, which has none that lives."""
        name = self._names[task]
        container = self._containers[task]
        host = _host(container)
        process = Process(self.network, f"{name}.{task}", host)
        seconds = max(self._serviceSeconds.get(name, SERVICE_SECONDS), 1e-6)
        executor = InlineExecutor(process, seconds)
        spec = self._topology.components[name]
        components = {
            **self._topology.components,
            name: spec._replace(factory=partial(self._make, spec, task)),
        }
        gateway = Gateway(
            process,
            self._topology._replace(components=components),
            task,
            tcpEndpoints(process),
            executor,
            Random(self.random.getrandbits(64)),
        )
        made = self.instances[task] = SimulatedInstance(process, gateway, executor)
        gateway.done.addErrback(self._failed, task, made)
        process.perform(partial(gateway.goTo, f"{host}:{_PORT}"))
        return made

    def _make(self, spec: ComponentSpec, task: int) -> Component:
        made = self._components[spec.name][task] = spec.factory()
        return made

    def _failed(self, failure: Failure, task: int, instance: SimulatedInstance) -> None:
        self.failures.append(failure)
        if self.instances.get(task) is instance:
            self.killInstance(task)

    def killInstance(self, task: int, restartSeconds: float | None = None) -> None:
        """
        Kill an instance, if it lives.

        @param restartSeconds: behind which it is started again; L{None}: L{restartSeconds}.
        """
        instance = self.instances.pop(task, None)
        if instance is not None:
            instance.kill()
            self._again(restartSeconds, self.startInstance, task)

    def _again(self, seconds: float | None, start: Callable[..., object], *arguments: Any) -> None:
        def again() -> None:
            if not self._isClosed:
                start(*arguments)

        self._scheduler.after(self.restartSeconds if seconds is None else seconds, again)

    def startStreamManager(self, container: int) -> StreamManager:
        """Start the stream manager of a container, which has none that lives."""
        process = Process(self.network, f"stream manager {container}", _host(container))
        made = StreamManager(
            process,
            self._topology.name,
            container,
            tcpEndpoints(process),
            Random(self.random.getrandbits(64)),
            self.settings,
        )
        process.listenTCP(_PORT, made.factory)
        self._processes[container] = process
        self.streamManagers[container] = made
        process.perform(partial(made.start, f"{_host(container)}:{_PORT}"))
        master = self.master
        if master is not None:
            process.perform(partial(made.setMaster, master.address, master.epoch))
        return made

    def killStreamManager(self, container: int, restartSeconds: float | None = None) -> None:
        """Kill a stream manager, if it lives. See L{killInstance}."""
        if self.streamManagers.pop(container, None) is not None:
            self._processes.pop(container).kill()
            self._again(restartSeconds, self.startStreamManager, container)

    def killContainer(self, container: int, restartSeconds: float | None = None) -> None:
        """Kill all processes of a container. See L{killInstance}."""
        self.killStreamManager(container, restartSeconds)
        for task, number in self._containers.items():
            if number == container:
                self.killInstance(task, restartSeconds)

    def startMaster(self) -> SimulatedMaster:
        """
        Start a master, as when the session of a former one has ended. That one is not told, if it
        lives. Stream managers are told of the new one, in their time.
        """
        if self.master is not None:
            self.formerMasters.append(self.master)
        self._masterCount += 1
        made = self.master = SimulatedMaster(
            Process(self.network, f"master {self._masterCount}", _MASTER_HOST),
            self._topology.name,
            self.packing,
            self._state,
            self._masterCount << EPOCH_BITS,
            _PORT + self._masterCount,
        )
        for container, manager in self.streamManagers.items():
            tell = partial(manager.setMaster, made.address, made.epoch)
            perform = self._processes[container].perform
            self._scheduler.after(self.network.latency(), perform, tell)
        return made

    def killMaster(self, restartSeconds: float | None = None) -> None:
        """Kill the master, if there is one. See L{killInstance}."""
        master, self.master = self.master, None
        if master is not None:
            master.process.kill()
            self._again(restartSeconds, self.startMaster)

    def processes(self) -> list[Process]:
        """All that live."""
        return [
            *(each.process for each in self._masters()),
            *self._processes.values(),
            *(each.process for each in self.instances.values()),
        ]

    # -- the network

    def cutConnections(self, process: Process) -> None:
        """Lose all connections of a process: they are made again."""
        for transport in list(process.transports):
            transport.cut(0, 0)

    def partition(self, one: int, other: int) -> None:
        """Let nothing get from one container to the other one, and back."""
        self.network.cut(_host(one), _host(other))
        self.network.cut(_host(other), _host(one))

    def mend(self, one: int, other: int) -> None:
        """Undo L{partition}: what was held back arrives."""
        self.network.mend(_host(one), _host(other))
        self.network.mend(_host(other), _host(one))


def _host(container: int) -> str:
    return f"container-{container}"
