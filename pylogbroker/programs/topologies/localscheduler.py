"""
The local scheduler: an executor for each container of a topology, on this machine. A module of its
own, since the command and tests run it.

A scheduler submits a topology, and starts an executor for each container, 0 among them. It starts
again those that die, and ends all when the topology is killed.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import SystemRandom
from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.config.properties import formatProperties
from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import ZookeeperError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.programs.processes.supervisor import ProcessCommand
from pylogbroker.programs.topologies.executor import (
    EXECUTOR_STOP_SECONDS_MAX,
    TopologySupervisor,
    restartPolicy,
)
from pylogbroker.programs.topologies.process import EXECUTOR, ProcessSpec
from pylogbroker.topologies.plan import (
    KILLED,
    ComponentPlan,
    InputPlan,
    PackingPlan,
    TopologyDefinition,
)
from pylogbroker.topologies.statemanager import StateManager
from pylogbroker.topologies.topology import Topology

PROPERTIES_FILE = "topology.properties"


def definitionOf(
    topology: Topology, packing: PackingPlan, file: str, timeMs: int
) -> TopologyDefinition:
    """
    What the node of a topology says.

    @param file: the path of its file.
    @param timeMs: now, since the epoch.
    """
    components = tuple(
        ComponentPlan(
            name,
            spec.isSpout,
            spec.parallelism,
            {stream: tuple(each.fields) for stream, each in spec.outputs.items()},
            tuple(
                InputPlan(source.component, source.stream, grouping.kind, grouping.fieldNames)
                for source, grouping in spec.inputs.items()
            ),
        )
        for name, spec in topology.components.items()
    )
    # The author's own keys may be secrets.
    config = {
        key: str(value)
        for key, value in topology.config.items()
        if isinstance(value, str | int | float) and key.startswith("topology.")
    }
    return TopologyDefinition(
        topology.name, os.path.abspath(file), _user(), timeMs, components, packing, config
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user's number has no name
        return str(os.getuid())


class LocalScheduler:
    """Runs a topology, until it is killed or L{stop} is called."""

    def __init__(
        self,
        reactor: Any,
        zookeeper: IZookeeper,
        definition: TopologyDefinition,
        settings: TopologySettings,
        properties: dict[str, str],
        write: Callable[[int, bytes], Awaitable[None]],
        say: Callable[[str], object],
        random: SystemRandom,
    ) -> None:
        """
        @param zookeeper: connected.
        @param properties: as C{settings} were read from, with C{zk.connect}.
        @param write: called with 1 or 2, standard output or error, and whole lines of executors.
        @param say: called with a sentence for people.
        """
        self.states = StateManager(reactor, zookeeper, random.random)
        self.directory = Path(os.path.abspath(settings.stateDir), definition.name)
        self._definition = definition
        self._properties = properties
        self._say = say
        path = str(self.directory / PROPERTIES_FILE)
        commands = {}
        for number in (0, *(each.number for each in definition.packing.containers)):
            folder = str(self.directory / f"container-{number}")
            spec = ProcessSpec(EXECUTOR, definition.name, number, path, folder)
            commands[f"container-{number}"] = ProcessCommand(spec.words, keepsInput=True)
        policy = restartPolicy(settings, EXECUTOR_STOP_SECONDS_MAX)
        self.supervisor = TopologySupervisor(reactor, commands, write, say, random.random, policy)

    @asDeferred
    async def run(self) -> None:
        """
        Run it; once.

        @return: fires with L{None} when all processes have ended, and the topology's nodes are
            removed, unless another scheduler has them. Fails with
            L{pylogbroker.errors.ConfigurationError} when it runs already, and with
            L{pylogbroker.errors.PylogbrokerError} otherwise.
        """
        name = self._definition.name
        await self.states.submit(self._definition)
        keeping = Deferred.fromCoroutine(self.states.keepScheduler(name))
        keeping.addCallback(self._lost)
        keeping.addErrback(lambda failure: failure.trap(CancelledError))
        watch = self.states.watchState(name, self._stateChanged)
        try:
            self._writeProperties()
            await self.supervisor.run()
        finally:
            watch.stop()
            keeping.cancel()
            try:
                if not await self.states.remove(name):
                    self._say(f"the nodes of {name} stay in ZooKeeper: another scheduler has them")
            except ZookeeperError as error:
                self._say(f"the nodes of {name} stay in ZooKeeper: {error}")

    def stop(self) -> None:
        """End the topology; C{run} tells when that is done."""
        self.supervisor.stop()

    def _lost(self, _result: None) -> None:
        """Another scheduler has the topology, or it was removed."""
        self._say(f"topology {self._definition.name} is not this scheduler's any more")
        self.supervisor.stop()

    def _stateChanged(self, state: str | None) -> None:
        # None: it was removed.
        if state in (KILLED, None):
            self.supervisor.stop()

    def _writeProperties(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / PROPERTIES_FILE
        path.unlink(missing_ok=True)
        # It may hold a password.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(formatProperties(self._properties))
