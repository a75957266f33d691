"""
Processes that are started, started again when they die, and ended in order. A module of its own,
since tasks and topologies are supervised so.

What must be true:

  - A process that has ended in order is not started again, unless L{RestartPolicy} says so. One
  that has died is, after a delay that grows. When it dies more often than the policy allows, all
  are ended, and the supervisor fails.
  - With L{RestartPolicy.silenceSeconds}, a process that was heard and is not any more has hung, or
  was stopped: it is killed, and so started again. Time for which the supervisor itself did not run
  does not count.
  - What a process writes is passed on in whole lines; what cannot be written yet is not read.
  - A process has ended when it is gone, even when a process that it has started holds its output.
  What it has written until then is read, and no more. With L{RestartPolicy.endsGroup} those that it
  has started are killed.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import asDeferred, gatherSettled
from pylogbroker.retry import Backoff, RetryDelays

SILENCE_CHECKS = 5
"""Looks at a process within L{RestartPolicy.silenceSeconds}."""

LINE_SIZE_MAX = 64 << 10
"""Bytes; a longer line is passed on in pieces."""

_OUTPUTS = (1, 2)


class ProcessDiedError(PylogbrokerError):
    """A process cannot run, or has died too often. The text says which."""


class RestartPolicy(NamedTuple):
    """
    What follows the end of a process.

    @ivar delays: between the end of a process and the start of the next one. They begin anew after
        L{seconds} without an end.
    @ivar countMax: the most new starts within L{seconds}; L{None}: no limit.
    @ivar stopSeconds: how long a process may take to end in order; then it is killed.
    @ivar restartsAll: whether one that has ended in order is started again, too.
    @ivar silenceSeconds: how long a process may write nothing to C{reportFd}, from its first line
        there on; 0: for ever.
    @ivar endsGroup: whether, when a process has ended, what is left of its process group is killed;
        for processes that lead one.
    """

    delays: RetryDelays
    countMax: int | None
    seconds: float
    stopSeconds: float
    restartsAll: bool = False
    silenceSeconds: float = 0
    endsGroup: bool = False


class ProcessCommand(NamedTuple):
    """
    How to start a process.

    @ivar words: the program and its arguments.
    @ivar descriptors: ours by those of the process, beside the standard ones.
    @ivar keepsInput: whether its standard input stays open as long as the supervisor lives.
    @ivar stopsLast: whether it is ended in order only when those without this have ended.
    """

    words: Sequence[str]
    descriptors: Mapping[int, int] = {}
    keepsInput: bool = False
    stopsLast: bool = False


class _Process(ProcessProtocol):
    """A process."""

    transport: Any

    def __init__(self, supervised: _Supervised, command: ProcessCommand, reportFd: int) -> None:
        self._supervised = supervised
        self._keepsInput = command.keepsInput
        self._reportFd = reportFd
        self._rests = dict.fromkeys((*_OUTPUTS, reportFd), b"")
        self._pid = 0
        self._unreadSizes: dict[int, int] = {}  # of its outputs, once it has exited
        self.isFinal = False

    def connectionMade(self) -> None:
        self._pid = self.transport.pid
        if not self._keepsInput:
            self.transport.closeStdin()

    def childDataReceived(self, childFD: int, data: bytes) -> None:
        *lines, rest = (self._rests[childFD] + data).split(b"\n")
        if len(rest) > LINE_SIZE_MAX:
            lines.append(rest)
            rest = b""
        self._rests[childFD] = rest
        if childFD in self._unreadSizes:
            self._unreadSizes[childFD] -= len(data)
            if self._unreadSizes[childFD] <= 0:
                self.transport.closeChildFD(childFD)
        if not lines:
            return
        if childFD == self._reportFd:
            self.isFinal = self._supervised.reported(lines[-1], self.isFinal)
        else:
            reader = self.transport.pipes[childFD]
            reader.stopReading()
            written = self._supervised.passOn(childFD, lines)
            written.addCallback(
                lambda _: (
                    None if reader.disconnected or reader.disconnecting else reader.startReading()
                )
            )

    def childConnectionLost(self, childFD: int) -> None:
        rest = self._rests.get(childFD)
        if rest and childFD in _OUTPUTS:
            self._supervised.passOn(childFD, [rest])

    def processExited(self, reason: Failure) -> None:
        if self._supervised.endsGroup:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        # A process that it has started may hold the other ends, and live on.
        for fd, pipe in list(self.transport.pipes.items()):
            size = _unreadSize(pipe.fileno()) if fd in self._rests else 0
            if size:
                self._unreadSizes[fd] = size
            else:
                self.transport.closeChildFD(fd)

    def processEnded(self, reason: Failure) -> None:
        status: Any = reason.value
        if status.signal is not None:
            self._supervised.ended(f"signal {status.signal}", self.isFinal)
        else:
            code = status.exitCode
            self._supervised.ended(f"status {code}" if code else "", self.isFinal)


def _unreadSize(fd: int) -> int:
    """@return: the bytes that a pipe holds."""
    size = array.array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, size)
    return size[0]


class _Supervised:
    """
    One process after the other.

    @ivar process: L{None}: there is none now.
    """

    def __init__(
        self, supervisor: ProcessSupervisor, name: str, command: ProcessCommand, backoff: Backoff
    ) -> None:
        self.name = name
        self.stopsLast = command.stopsLast
        self.endsGroup = supervisor.policy.endsGroup
        self.process: Any = None
        self.whenEnded: Deferred[None] = Deferred()
        self._supervisor = supervisor
        self._command = command
        self._backoff = backoff
        self._deaths: deque[float] = deque()
        self._starting: Any = None  # a timer
        self._late: Any = None
        self._silenceCount: int | None = None  # None: it has not been heard yet

    def start(self) -> None:
        self._starting = None
        self._silenceCount = None
        command, reportFd = self._command, self._supervisor.reportFd
        pipes: dict[int, Any] = {0: "w", 1: "r", 2: "r", **command.descriptors}
        if reportFd:
            pipes[reportFd] = "r"
        try:
            self.process = self._supervisor.reactor.spawnProcess(
                _Process(self, command, reportFd),
                command.words[0],
                command.words,
                None,
                childFDs=pipes,
            )
        except OSError as error:  # no memory, or no descriptors
            self.ended(f"no process: {error.strerror}", False)

    def passOn(self, fd: int, lines: Sequence[bytes]) -> Deferred[None]:
        prefix = f"[{self.name}] ".encode()
        return self._supervisor.write(fd, b"".join(prefix + line + b"\n" for line in lines))

    def reported(self, line: bytes, isFinal: bool) -> bool:
        """@return: whether the process is the last one; C{isFinal}: as before."""
        self._silenceCount = 0
        final = self._supervisor.reported(self.name, line)
        return isFinal if final is None else final

    def ended(self, reason: str, isFinal: bool) -> None:
        """@param reason: empty: it has ended in order."""
        supervisor, policy = self._supervisor, self._supervisor.policy
        title = f"{supervisor.noun} {self.name}"
        self.process = None
        supervisor.ended(self.name)
        if self._late is not None and self._late.active():
            self._late.cancel()
        if isFinal:
            supervisor.fail(supervisor.errorKind(f"{title} cannot go on; see above"))
        elif reason and supervisor.isStopping:
            # One that SIGTERM kills had only begun to start: others catch it.
            if reason != f"signal {signal.SIGTERM.value}":
                supervisor.fail(supervisor.errorKind(f"{title} has ended with {reason}"))
        elif (reason or policy.restartsAll) and not supervisor.isStopping:
            reason = reason or "status 0"
            now = supervisor.reactor.seconds()
            self._deaths.append(now)
            while now - self._deaths[0] > policy.seconds:
                self._deaths.popleft()
            if len(self._deaths) == 1:
                self._backoff.succeeded()
            if policy.countMax is None or len(self._deaths) <= policy.countMax:
                seconds = self._backoff.failed() / 1000
                supervisor.say(
                    f"{title} has ended with {reason}; it is started again in {seconds:.1f} s"
                )
                supervisor.restartCount += 1
                self._starting = supervisor.reactor.callLater(seconds, self.start)
                return
            supervisor.fail(
                supervisor.errorKind(
                    f"{title} has ended with {reason}: {len(self._deaths)} times"
                    f" within {policy.seconds} s"
                )
            )
        self.whenEnded.callback(None)

    def check(self) -> None:
        """Kill a process that has hung; called at intervals."""
        if self.process is None or self.process.pid is None or self._silenceCount is None:
            return
        self._silenceCount += 1
        if self._silenceCount > SILENCE_CHECKS:
            self._silenceCount = None
            supervisor = self._supervisor
            supervisor.say(
                f"{supervisor.noun} {self.name} has given no sign of life for"
                f" {supervisor.policy.silenceSeconds:g} s; it is killed"
            )
            self.signal("KILL")

    def stop(self) -> None:
        """End it in order, or after the policy's time by force; may be called again."""
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self.whenEnded.callback(None)
        elif self.process is not None and self._late is None:
            self.signal("TERM")
            self._late = self._supervisor.reactor.callLater(
                self._supervisor.policy.stopSeconds, self.signal, "KILL"
            )

    def signal(self, name: str) -> None:
        """Send a signal to the process, if there is one."""
        try:
            if self.process is not None:
                self.process.signalProcess(name)
        except ProcessExitedAlready:
            pass  # and C{ended} follows


class ProcessSupervisor:
    """
    Runs processes; the module states its promises.

    @cvar noun: what a process is called, in sentences for people.
    @cvar errorKind: with which C{run} fails.
    @cvar reportFd: a descriptor of each process for reports, which L{reported} gets; 0: none.
    @ivar restartCount: processes that were started in the place of one that had died.
    @ivar isStopping: whether no process is started any more.
    """

    noun: ClassVar[str] = "process"
    errorKind: ClassVar[type[ProcessDiedError]] = ProcessDiedError
    reportFd: ClassVar[int] = 0

    def __init__(
        self,
        reactor: Any,
        commands: Mapping[str, ProcessCommand],
        write: Callable[[int, bytes], Awaitable[None]],
        say: Callable[[str], object],
        random: Callable[[], float],
        policy: RestartPolicy,
    ) -> None:
        """
        @param commands: for each process, by its name.
        @param write: called with 1 or 2, standard output or error, and whole lines.
        @param say: called with a sentence for people.
        @param random: numbers from 0 up to, not including, 1.
        """
        self.reactor = reactor
        self.say = say
        self.policy = policy
        self.isStopping = False
        self.restartCount = 0
        self._write = write
        self._lock = DeferredLock()
        self._failure: BaseException | None = None
        self._supervised = [
            _Supervised(self, name, command, Backoff(random, policy.delays))
            for name, command in commands.items()
        ]

    def pids(self) -> dict[str, int]:
        """The processes that run now, by their names."""
        return {
            each.name: each.process.pid
            for each in self._supervised
            if each.process is not None and each.process.pid is not None
        }

    @asDeferred
    async def run(self) -> None:
        """
        Run all, until each has ended in order, or L{stop} was called, perhaps before; once.

        @return: fires with L{None} when all have ended. Fails likewise: with C{errorKind}, with
            what L{kill} was given, or with what C{write} has raised.
        """
        if self.isStopping:
            return
        for each in self._supervised:
            each.start()
        checking = LoopingCall(self._check)
        checking.clock = self.reactor
        if self.policy.silenceSeconds:
            checking.start(self.policy.silenceSeconds / SILENCE_CHECKS, now=False)
        await gatherSettled([each.whenEnded for each in self._supervised])
        if checking.running:
            checking.stop()
        await self.write(1, b"")  # behind all that they have written
        if self._failure is not None:
            raise self._failure

    def _check(self) -> None:
        for each in self._supervised:
            each.check()

    def stop(self) -> None:
        """End all in order; C{run} tells when that is done."""
        if not self.isStopping:
            self.isStopping = True
            first = [each for each in self._supervised if not each.stopsLast]
            for each in first:
                each.stop()
            waiting = gatherSettled([each.whenEnded for each in first])
            Deferred.fromCoroutine(waiting).addCallback(lambda _: self._stopAll())

    def _stopAll(self) -> None:
        for each in self._supervised:
            each.stop()

    def fail(self, error: BaseException) -> None:
        """End all, for the first reason."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def kill(self, error: BaseException) -> None:
        """End all by force, now."""
        self.fail(error)
        self._stopAll()
        for each in self._supervised:
            each.signal("KILL")

    def reported(self, name: str, line: bytes) -> bool | None:
        """
        A process has written a line to C{reportFd}.

        @return: whether another one could do no better, so that there shall be none; L{None}: as
            before.
        """
        return None

    def ended(self, name: str) -> None:
        """A process has ended."""

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
