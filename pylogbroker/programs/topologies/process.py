"""
A process of a topology, started as C{python -m pylogbroker.programs.topologies.process JSON}: its
argument is a L{ProcessSpec}. It is a module of its own, since a process is started by a module's
name.

What must be true:

  - It writes its log to a file of its own. What it writes before that, or from C, goes to standard
  error, and so to the log of its parent.
  - C{SIGTERM} ends it in order, with status 0. A failure ends it with status 1.
  - When its standard input ends, its parent is gone, and it ends at once. The node of a container,
  which the parent has held, is another one's then.
  - It gives a sign of life each L{SIGN_SECONDS} for as long as its reactor runs.
  - A thread that does not end holds up its end for L{EXIT_SECONDS_MAX} at most.
  - It imports what its role needs, and no more: there may be hundreds of instances on a machine.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Any, NamedTuple, Protocol

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import (
    FilteringLogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogBeginner,
    textFileLogObserver,
)
from twisted.python.failure import Failure
from twisted.python.logfile import LogFile

from pylogbroker.config.properties import readProperties
from pylogbroker.config.topologies.topologysettings import TopologySettings
from pylogbroker.errors import PylogbrokerError, describeError
from pylogbroker.programs.clocksteps import bootSeconds, keepTimers

log = Logger()

EXECUTOR, MASTER, STREAM_MANAGER = "executor", "master", "stream-manager"
METRICS_MANAGER, INSTANCE = "metrics-manager", "instance"

SIGN_FD = 4
"""The descriptor to which it writes a line as a sign of life."""

SIGN_SECONDS = 0.5

EXIT_SECONDS_MAX = 2
"""From the end of its reactor: then neither signals nor the end of its parent are seen."""

_ROLES = {
    EXECUTOR: ("pylogbroker.programs.topologies.executor", "ContainerExecutor"),
    MASTER: ("pylogbroker.programs.topologies.masterrole", "MasterRole"),
    STREAM_MANAGER: ("pylogbroker.programs.topologies.streammanagerrole", "StreamManagerRole"),
    METRICS_MANAGER: ("pylogbroker.programs.topologies.metricsrole", "MetricsManagerRole"),
    INSTANCE: ("pylogbroker.programs.topologies.instancerole", "InstanceRole"),
}


class ProcessSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What a process is to be.

    @ivar role: a key of the roles above.
    @ivar topology: the name of the topology.
    @ivar container: its number; 0: that of the master.
    @ivar properties: the path of a property file, with L{TopologySettings}.
    @ivar directory: of its log, and of all else that it writes.
    @ivar file: the path of the topology's file.
    @ivar task: of an instance.
    @ivar component: of an instance.
    @ivar streamManager: C{host:port} of the container's stream manager.
    @ivar metricsManager: C{host:port} of the container's metrics manager.
    """

    role: str
    topology: str
    container: int
    properties: str
    directory: str
    file: str = ""
    task: int = 0
    component: str = ""
    streamManager: str = ""
    metricsManager: str = ""

    @property
    def name(self) -> str:
        """The name of its log file, and of the process within its container."""
        return f"{self.role}-{self.task}-{self.component}" if self.task else self.role

    @property
    def words(self) -> list[str]:
        """The program and its arguments."""
        argument = msgspec.json.encode(self).decode()
        return [sys.executable, "-m", "pylogbroker.programs.topologies.process", argument]


class RoleContext(NamedTuple):
    """
    What a role is told.

    @ivar config: keys over the configuration of the topology.
    """

    spec: ProcessSpec
    settings: TopologySettings
    config: Mapping[str, str]
    random: SystemRandom


class IRole(Protocol):
    """What a process does."""

    def __init__(self, reactor: Any, context: RoleContext) -> None:
        """Before the reactor runs; may block, and may raise L{PylogbrokerError}."""

    def run(self) -> Deferred[None]:
        """
        @return: fires when all is done, in order; fails when the process cannot go on.
        """

    def stop(self) -> object:
        """End in order; C{run} tells when that is done."""


class _ParentWatch:
    """
    Standard input, whose other end the parent has.

    @ivar isWatched: whether its end counts.
    """

    def __init__(self, gone: Callable[[], object]) -> None:
        self.isWatched = True
        self._gone = gone

    def fileno(self) -> int:
        return 0

    def logPrefix(self) -> str:
        return "parent"

    def doRead(self) -> None:
        if not os.read(0, 1024):
            self.connectionLost(None)

    def connectionLost(self, reason: object) -> None:
        """The reactor has found its end, or an error on it; or the reactor itself stops."""
        if self.isWatched:
            self._gone()


def _beginLog(spec: ProcessSpec, settings: TopologySettings) -> None:
    os.makedirs(spec.directory, exist_ok=True)
    file = LogFile(
        f"{spec.name}.log",
        spec.directory,
        rotateLength=settings.logFileSizeMax,
        maxRotatedFiles=settings.logFileCountMax,
    )
    observer: Any = FilteringLogObserver(
        textFileLogObserver(file),  # type: ignore[arg-type] # it has write and flush
        [LogLevelFilterPredicate(LogLevel.info)],
    )
    globalLogBeginner.beginLoggingTo([observer])


def _giveSign() -> None:
    try:
        os.write(SIGN_FD, b"\n")
    except OSError:
        pass  # the parent does not read at present, or is gone, which its input tells


def _run(reactor: Any, role: IRole) -> int:
    """@return: the exit status."""
    statuses: list[int] = []
    parent = _ParentWatch(lambda: os._exit(1))

    def ended(result: object) -> None:
        statuses.append(1 if isinstance(result, Failure) else 0)
        if isinstance(result, Failure):
            error: Any = result.value
            if isinstance(error, PylogbrokerError):
                log.error("The process cannot go on: {error}", error=error)
            else:
                log.failure("The process cannot go on", result)
            os.write(2, f"{describeError(error)}\n".encode())
        parent.isWatched = False
        reactor.stop()

    def begin() -> None:
        # Behind the reactor's own handlers, which would end it out of order.
        signal.signal(signal.SIGTERM, lambda *_: reactor.callFromThread(role.stop))
        reactor.addReader(parent)
        os.set_blocking(SIGN_FD, False)
        signing = LoopingCall(_giveSign)
        signing.clock = reactor
        signing.start(SIGN_SECONDS)
        role.run().addBoth(ended)

    keepTimers(reactor, bootSeconds)
    reactor.callWhenRunning(begin)
    reactor.run()
    return statuses[0] if statuses else 1


def main() -> int:
    """
    Run until the role is done.

    @return: the exit status.
    """
    os.setsid()  # Ctrl-C reaches the scheduler alone
    from twisted.internet import reactor

    try:
        spec = msgspec.json.decode(sys.argv[1], type=ProcessSpec)
        settings, config = TopologySettings.split(readProperties(spec.properties, lambda _: None))
        _beginLog(spec, settings)
        module, name = _ROLES[spec.role]
        kind: type[IRole] = getattr(importlib.import_module(module), name)
        role = kind(reactor, RoleContext(spec, settings, config, SystemRandom()))
    except PylogbrokerError as error:
        os.write(2, f"{error}\n".encode())
        return 1
    return _run(reactor, role)


def _exitSoon(status: int) -> None:
    # Python waits for threads, such as those of a pool of the author's.
    late = threading.Timer(EXIT_SECONDS_MAX, os._exit, (status,))
    late.daemon = True
    late.start()


if __name__ == "__main__":
    exitStatus = main()
    _exitSoon(exitStatus)
    sys.exit(exitStatus)
