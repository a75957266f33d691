"""
Processes of containers: started, started again when they die, ended in order. A module of its own,
since any program may supervise containers so.

What must be true:

  - A container that has ended in order is not started again. One that has failed as each other
  container would, since a message cannot be handled or a setting is wrong, is not either: then all
  are ended, and the supervisor fails.
  - A container that dies otherwise is started again after a delay that grows. One that has died
  more than L{RESTART_COUNT_MAX} times within L{RESTART_SECONDS} is given up, with the others.
  - What a process writes is passed on in whole lines; what cannot be written yet is not read.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred, gatherSettled
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.retry import Backoff, RetryDelays

REPORT_FD = 3
"""The descriptor to which a process writes L{ContainerReport}s."""

RESTART_COUNT_MAX = 5
RESTART_SECONDS = 60

RESTART_DELAYS = RetryDelays(500, 10_000)
"""Between the end of a process and the start of the next one."""

STOP_SECONDS_MAX = 60
"""How long a process may take to end in order; then it is killed."""

LINE_SIZE_MAX = 64 << 10
"""Bytes; a longer line is passed on in pieces."""

_OUTPUTS = (1, 2)


class ContainerDiedError(PylogbrokerError):
    """A container cannot run, or has died too often. The text says which."""


class _Process(ProcessProtocol):
    """A process of a container."""

    transport: Any

    def __init__(self, container: _Container) -> None:
        self._container = container
        self._rests = dict.fromkeys((*_OUTPUTS, REPORT_FD), b"")
        self.isFinal = False

    def connectionMade(self) -> None:
        self.transport.closeStdin()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        *lines, rest = (self._rests[childFD] + data).split(b"\n")
        if len(rest) > LINE_SIZE_MAX:
            lines.append(rest)
            rest = b""
        self._rests[childFD] = rest
        if not lines:
            return
        if childFD == REPORT_FD:
            self._reported(lines[-1])
        else:
            reader = self.transport.pipes[childFD]
            reader.stopReading()
            written = self._container.passOn(childFD, lines)
            written.addCallback(
                lambda _: reader.startReading() if not reader.disconnected else None
            )

    def _reported(self, line: bytes) -> None:
        try:
            report = ContainerReport.decode(line)
        except ValueError:  # the author's code has written to our descriptor
            return
        self._container.report = report
        self.isFinal = report.isFinal

    def childConnectionLost(self, childFD: int) -> None:
        rest = self._rests.get(childFD)
        if rest and childFD in _OUTPUTS:
            self._container.passOn(childFD, [rest])

    def processEnded(self, reason: Failure) -> None:
        status: Any = reason.value
        if status.signal is not None:
            self._container.ended(f"signal {status.signal}", self.isFinal)
        else:
            code = status.exitCode
            self._container.ended(f"status {code}" if code else "", self.isFinal)


class _Container:
    """
    A container: one process after the other.

    @ivar name: C{job/N}.
    @ivar report: the last one of the present process.
    @ivar before: what its earlier processes have done.
    @ivar process: L{None}: there is none now.
    """

    def __init__(
        self, supervisor: ContainerSupervisor, name: str, words: Sequence[str], backoff: Backoff
    ) -> None:
        self.name = name
        self.report = ContainerReport()
        self.before = ContainerReport()
        self.process: Any = None
        self.whenEnded: Deferred[None] = Deferred()
        self._supervisor = supervisor
        self._words = words
        self._backoff = backoff
        self._deaths: deque[float] = deque()
        self._starting: Any = None  # a timer
        self._late: Any = None

    def start(self) -> None:
        self._starting = None
        pipes = {0: "w", 1: "r", 2: "r", REPORT_FD: "r"}
        try:
            self.process = self._supervisor.reactor.spawnProcess(
                _Process(self), self._words[0], self._words, None, childFDs=pipes
            )
        except OSError as error:  # no memory, or no descriptors
            self.ended(f"no process: {error.strerror}", False)

    def passOn(self, fd: int, lines: Sequence[bytes]) -> Deferred[None]:
        prefix = f"[{self.name}] ".encode()
        return self._supervisor.write(fd, b"".join(prefix + line + b"\n" for line in lines))

    def ended(self, reason: str, isFinal: bool) -> None:
        """@param reason: empty: it has ended in order."""
        supervisor = self._supervisor
        self.before = ContainerReport(
            handledCount=self.before.handledCount + self.report.handledCount,
            failedCount=self.before.failedCount + self.report.failedCount,
        )
        self.process, self.report = None, ContainerReport()
        if self._late is not None and self._late.active():
            self._late.cancel()
        if isFinal:
            supervisor.fail(ContainerDiedError(f"container {self.name} cannot go on; see above"))
        elif reason and supervisor.isStopping:
            # One that SIGTERM kills had only begun to start: a container catches it.
            if reason != f"signal {signal.SIGTERM.value}":
                supervisor.fail(
                    ContainerDiedError(f"container {self.name} has ended with {reason}")
                )
        elif reason:
            now = supervisor.reactor.seconds()
            self._deaths.append(now)
            while now - self._deaths[0] > RESTART_SECONDS:
                self._deaths.popleft()
            if len(self._deaths) == 1:
                self._backoff.succeeded()
            if len(self._deaths) <= RESTART_COUNT_MAX:
                seconds = self._backoff.failed() / 1000
                supervisor.say(
                    f"container {self.name} has ended with {reason}; it is started again in"
                    f" {seconds:.1f} s"
                )
                supervisor.restartCount += 1
                self._starting = supervisor.reactor.callLater(seconds, self.start)
                return
            supervisor.fail(
                ContainerDiedError(
                    f"container {self.name} has ended with {reason}: {len(self._deaths)} times"
                    f" within {RESTART_SECONDS} s"
                )
            )
        self.whenEnded.callback(None)

    def stop(self) -> None:
        """End it in order, or after STOP_SECONDS_MAX by force."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self.whenEnded.callback(None)
        elif self.process is not None:
            self._signal("TERM")
            self._late = self._supervisor.reactor.callLater(STOP_SECONDS_MAX, self._signal, "KILL")

    def _signal(self, name: str) -> None:
        try:
            self.process.signalProcess(name)
        except ProcessExitedAlready:
            pass  # and C{ended} follows


class ContainerSupervisor:
    """
    Runs containers, each in a process; the module states its promises.

    @ivar restartCount: processes that were started in the place of one that had died.
    @ivar isStopping: whether no process is started any more.
    """

    def __init__(
        self,
        reactor: Any,
        commands: Mapping[str, Sequence[str]],
        write: Callable[[int, bytes], Awaitable[None]],
        say: Callable[[str], object],
        random: Callable[[], float],
    ) -> None:
        """
        @param commands: for each container, by its name, the program and its arguments. It writes
            reports to L{REPORT_FD}.
        @param write: called with 1 or 2, standard output or error, and whole lines.
        @param say: called with a sentence for people.
        @param random: numbers from 0 up to, not including, 1.
        """
        self.reactor = reactor
        self.say = say
        self.isStopping = False
        self.restartCount = 0
        self._write = write
        self._lock = DeferredLock()
        self._failure: BaseException | None = None
        self._containers = [
            _Container(self, name, words, Backoff(random, RESTART_DELAYS))
            for name, words in commands.items()
        ]

    def reports(self) -> list[ContainerReport]:
        """What the containers do, and what their processes have done that have ended."""
        return [report for each in self._containers for report in (each.before, each.report)]

    def pids(self) -> dict[str, int]:
        """The processes that run now, by the names of their containers."""
        return {
            each.name: each.process.pid for each in self._containers if each.process is not None
        }

    @asDeferred
    async def run(self) -> None:
        """
        Run all, until each has ended in order, or L{stop} was called; once.

        @return: fires with L{None} when all have ended. Fails likewise: with
            L{ContainerDiedError}, or with what C{write} has raised.
        """
        for each in self._containers:
            each.start()
        await gatherSettled([each.whenEnded for each in self._containers])
        await self.write(1, b"")  # behind all that they have written
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End all in order; C{run} tells when that is done."""
        if not self.isStopping:
            self.isStopping = True
            for each in self._containers:
                each.stop()

    def fail(self, error: BaseException) -> None:
        """End all, for the first reason."""
        if self._failure is None:
            self._failure = error
        self.stop()

    @asDeferred
    async def write(self, fd: int, lines: bytes) -> None:
        """Pass lines on, in order. Does not fail: what cannot be written ends all."""
        await self._lock.acquire()
        try:
            await self._write(fd, lines)
        except Exception as error:
            self.fail(error)
        finally:
            self._lock.release()
