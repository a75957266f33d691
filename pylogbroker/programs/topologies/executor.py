"""
The executor of a container: it starts the container's processes, starts again those that die, and
holds the container's node. A module of its own, since a process imports it for its role.

What must be true:

  - It starts nothing before it has the container's node: the processes of an earlier executor have
  ended, or their session has.
  - When its session has ended, or may have, it kills all its processes at once.
  - Instances are ended before the stream manager and the metrics manager, so that what they emit as
  they are closed gets out.
  - Ports of the stream manager and the metrics manager are the executor's, and passed on. They stay
  when a process is replaced, and a process that connects meanwhile waits for the new one.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.net.deferreds import asDeferred, closeAll
from pylogbroker.programs.processes.supervisor import (
    ProcessCommand,
    ProcessSupervisor,
    RestartPolicy,
)
from pylogbroker.programs.topologies.process import (
    INSTANCE,
    MASTER,
    METRICS_MANAGER,
    SIGN_FD,
    STREAM_MANAGER,
    ProcessSpec,
    RoleContext,
)
from pylogbroker.programs.topologies.zookeepersession import SessionLease, connectedStates
from pylogbroker.retry import RetryDelays
from pylogbroker.topologies.plan import KILLED, TopologyDefinition
from pylogbroker.topologies.statemanager import StateManager

log = Logger()

HOST = "127.0.0.1"

LISTENING_FD = 3
"""The descriptor at which a stream manager or a metrics manager finds its port."""

RESTART_SECONDS = 60

PROCESS_STOP_SECONDS_MAX = 10
"""How long an executor's processes may take to end in order: instances, and then the others."""

EXECUTOR_STOP_SECONDS_MAX = 3 * PROCESS_STOP_SECONDS_MAX
"""How long an executor may: it has to outlive what it ends."""

_BACKLOG = 128


class TopologySupervisor(ProcessSupervisor):
    """
    Supervises processes of a topology, which give signs of life.
    """

    reportFd = SIGN_FD


def restartPolicy(settings: TopologySettings, stopSeconds: float) -> RestartPolicy:
    """
    A process that ends is started again, for as long as the topology lives.

    @param stopSeconds: see L{RestartPolicy}.
    """
    return RestartPolicy(
        RetryDelays(200, settings.restartDelayMaxMs),
        None,
        RESTART_SECONDS,
        stopSeconds,
        restartsAll=True,
        silenceSeconds=settings.processSilenceMaxMs / 1000,
        endsGroup=True,
    )


class ContainerExecutor:
    """The role of an executor; see L{IRole}."""

    def __init__(self, reactor: Any, context: RoleContext) -> None:
        self._reactor = reactor
        self._spec, self._settings, _config, self._random = context
        self._supervisor: TopologySupervisor | None = None
        self._isStopping = False
        self._waiting: Deferred[Any] | None = None
        self._sockets: list[socket.socket] = []

    @asDeferred
    async def run(self) -> None:
        """See L{IRole}."""
        client, states = await connectedStates(self._reactor, self._settings, self._random)
        try:
            definition = await states.definition(self._spec.topology)
            # Longer than any session: an earlier executor's ends with its time-out.
            patienceMs = 2 * client.session_timeout + 10_000
            self._waiting = Deferred.fromCoroutine(
                states.claimContainer(
                    self._spec.topology,
                    self._spec.container,
                    patienceMs,
                    lambda: log.info("Another executor has the container; waiting for its end"),
                )
            )
            try:
                await self._waiting
            except CancelledError:
                return
            lease = SessionLease(self._reactor, client)
            lease.whenOver().addErrback(self._sessionOver)
            try:
                await self._supervise(definition, states)
            finally:
                lease.stop()
        finally:
            for each in self._sockets:
                each.close()
            await closeAll(client.close())

    async def _supervise(self, definition: TopologyDefinition, states: StateManager) -> None:
        self._supervisor = TopologySupervisor(
            self._reactor,
            self._commands(definition),
            self._write,
            lambda text: log.warn("{text}", text=text),
            self._random.random,
            restartPolicy(self._settings, PROCESS_STOP_SECONDS_MAX),
        )
        if self._isStopping:
            return
        running = self._supervisor.run()
        watch = states.watchState(self._spec.topology, self._stateChanged)
        log.info("Container {number} begins", number=self._spec.container)
        try:
            await running
        finally:
            watch.stop()

    def stop(self) -> None:
        """See L{IRole}."""
        self._isStopping = True
        if self._supervisor is not None:
            self._supervisor.stop()
        elif self._waiting is not None:
            self._waiting.cancel()

    def _sessionOver(self, failure: Failure) -> None:
        log.error("All processes are killed: {reason}", reason=failure.getErrorMessage())
        assert self._supervisor is not None and failure.value is not None
        self._supervisor.kill(failure.value)

    def _stateChanged(self, state: str | None) -> None:
        if state in (KILLED, None):  # None: it was removed
            log.info("The topology was killed")
            self.stop()

    async def _write(self, _fd: int, lines: bytes) -> None:
        for line in lines.splitlines():
            log.warn("{line}", line=line.decode(errors="replace"))

    # -- its processes

    def _commands(self, definition: TopologyDefinition) -> dict[str, ProcessCommand]:
        if self._spec.container == 0:
            return dict([self._command(MASTER)])
        streamManager, metricsManager = self._listen(), self._listen()
        addresses: dict[str, Any] = {
            "streamManager": _address(streamManager),
            "metricsManager": _address(metricsManager),
        }
        commands = [
            self._command(STREAM_MANAGER, streamManager, **addresses),
            self._command(METRICS_MANAGER, metricsManager, **addresses),
        ]
        for container in definition.packing.containers:
            if container.number == self._spec.container:
                for each in container.instances:
                    commands.append(
                        self._command(
                            INSTANCE,
                            task=each.task,
                            component=each.component,
                            file=definition.file,
                            **addresses,
                        )
                    )
        return dict(commands)

    def _command(
        self, role: str, listening: socket.socket | None = None, **fields: Any
    ) -> tuple[str, ProcessCommand]:
        own = self._spec
        spec = ProcessSpec(
            role, own.topology, own.container, own.properties, own.directory, **fields
        )
        descriptors = {} if listening is None else {LISTENING_FD: listening.fileno()}
        return spec.name, ProcessCommand(
            spec.words, descriptors, keepsInput=True, stopsLast=role != INSTANCE
        )

    def _listen(self) -> socket.socket:
        made = socket.create_server((HOST, 0), backlog=_BACKLOG)
        made.setblocking(False)
        self._sockets.append(made)
        return made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()
    return f"{host}:{port}"


def adoptListener(reactor: Any, factory: Any) -> Any:
    """
    Listen on the port that the executor has passed on.

    @return: the listening port.
    """
    port = reactor.adoptStreamPort(LISTENING_FD, socket.AF_INET, factory)
    os.close(LISTENING_FD)  # the reactor has a copy
    return port
