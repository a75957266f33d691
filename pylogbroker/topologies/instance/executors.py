"""
Executors: where the author's code runs. A module of its own, since it is where an instance's thread
and its reactor meet.

A L{ThreadExecutor} calls the turns of a runner on a thread of its own, which the author's code may
block. An L{InlineExecutor} calls them on the reactor, by its clock: for simulations and tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Protocol, TypeAlias

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from pylogbroker.net.timer import Timer
from pylogbroker.topologies.instance.collectors import EncodedEntry
from pylogbroker.topologies.instance.runners import DEFAULT_SETTINGS, Runner, RunnerOutput

NewRunner: TypeAlias = Callable[[RunnerOutput], Runner]


class IRunnerOwner(Protocol):
    """What an executor tells, on the reactor."""

    @property
    def unsentSize(self) -> int:
        """Bytes that wait to be sent. Any thread may read it."""

    @property
    def isPressed(self) -> bool:
        """Whether no spout is to emit, for the sake of others. Any thread may read it."""

    def handedOver(self, entries: list[EncodedEntry], number: int) -> None:
        """Entries are to be sent; all batches up to this number are handled."""

    def reported(self, text: str) -> None:
        """The author's code has raised, and goes on."""

    def runnerFailed(self, failure: Failure) -> None:
        """The author's code has raised, and does not go on."""


class IExecutor(Protocol):
    """Runs the author's code."""

    def start(self, newRunner: NewRunner, owner: IRunnerOwner) -> Runner:
        """
        Make a runner, and call its turns from now on.

        @return: the runner. C{turn} is this executor's.
        """

    def wake(self) -> None:
        """Something has come in, or there is room again."""

    def stop(self) -> Deferred[None]:
        """
        Have the author's object closed.

        @return: fires when no code of the author's runs any more, and all is handed over.
        """


class ThreadExecutor:
    """
    An L{IExecutor} with a thread, which ends with the process if the author's code blocks it.

    What the thread hands over is counted until the reactor takes it. So L{RunnerOutput.send} blocks
    when the output is full, even if the reactor is late.
    """

    def __init__(self, reactor: Any, outputSizeMax: int = DEFAULT_SETTINGS.outputSizeMax) -> None:
        """
        @param outputSizeMax: see L{InstanceSettings}.
        """
        self._reactor = reactor
        self._outputSizeMax = outputSizeMax
        self._work = Event()
        self._room = Event()
        self._handedOver: deque[tuple[list[EncodedEntry], int]] = deque()
        self._isDelivering = False
        self._handedSize = 0  # the thread's
        self._takenSize = 0  # the reactor's
        self._isStopping = False
        self._hasEnded = False
        self._stopped: list[Deferred[None]] = []
        self._runner: Runner | None = None

    def start(self, newRunner: NewRunner, owner: IRunnerOwner) -> Runner:
        """See L{IExecutor}."""
        self._owner = owner
        self._runner = newRunner(RunnerOutput(self._send, self._mayEmit, self._tell, self.wake))
        Thread(target=self._run, args=(self._runner,), name="component", daemon=True).start()
        return self._runner

    def wake(self) -> None:
        """See L{IExecutor}."""
        self._work.set()
        self._room.set()

    def stop(self) -> Deferred[None]:
        """See L{IExecutor}."""
        if self._runner is None or self._hasEnded:
            return succeed(None)
        self._isStopping = True
        self._runner.close()
        self.wake()
        stopped: Deferred[None] = Deferred()
        self._stopped.append(stopped)
        return stopped

    # On the thread.

    def _run(self, runner: Runner) -> None:
        failure = None
        try:
            while not runner.isClosed:
                self._work.clear()
                wait = runner.turn()
                if wait != 0 and not runner.isClosed:
                    self._work.wait(wait)
        except BaseException:  # the author's code may raise anything
            failure = Failure()
        self._reactor.callFromThread(self._end, failure)

    def _mayEmit(self) -> bool:
        return not self._owner.isPressed and self._hasRoom()

    def _hasRoom(self) -> bool:
        inTransit = self._handedSize - self._takenSize
        return self._owner.unsentSize + inTransit < self._outputSizeMax

    def _send(self, entries: list[EncodedEntry], number: int) -> None:
        self._handedSize += sum(len(each.data) for each in entries)
        self._handedOver.append((entries, number))
        if not self._isDelivering:
            self._isDelivering = True
            self._reactor.callFromThread(self._deliver)
        while not self._isStopping:
            self._room.clear()
            if self._hasRoom():
                break
            self._room.wait()

    def _tell(self, text: str) -> None:
        self._reactor.callFromThread(self._owner.reported, text)

    # On the reactor.

    def _deliver(self) -> None:
        self._isDelivering = False  # what is appended from now on is delivered again
        while self._handedOver:
            entries, number = self._handedOver.popleft()
            self._owner.handedOver(entries, number)
            self._takenSize += sum(len(each.data) for each in entries)
        self._room.set()

    def _end(self, failure: Failure | None) -> None:
        self._hasEnded = True
        self._deliver()
        if failure is not None:
            self._owner.runnerFailed(failure)
        stopped, self._stopped = self._stopped, []
        for each in stopped:
            each.callback(None)


class InlineExecutor:
    """
    An L{IExecutor} on a reactor's clock. It never blocks: the output of a bolt may exceed its
    bound, and a spout's by one turn.
    """

    def __init__(
        self,
        clock: Any,
        secondsPerTuple: float = 0.0001,
        outputSizeMax: int = DEFAULT_SETTINGS.outputSizeMax,
    ) -> None:
        """
        @param secondsPerTuple: how long the author's code takes for a tuple, or for a call of
            C{nextTuple}; a microsecond at least, since the time of a simulation must go on.
        @param outputSizeMax: see L{InstanceSettings}.
        """
        self._clock = clock
        self._secondsPerTuple = max(secondsPerTuple, 1e-6)
        self._countMax = max(1, int(DEFAULT_SETTINGS.flushDelay / self._secondsPerTuple))
        self._outputSizeMax = outputSizeMax
        self._timer = Timer(clock)
        self._busyUntil = 0.0
        self._isInTurn = False
        self._isWoken = False
        self._runner: Runner | None = None
        self._hasEnded = False

    def start(self, newRunner: NewRunner, owner: IRunnerOwner) -> Runner:
        """See L{IExecutor}."""
        self._owner = owner
        output = RunnerOutput(owner.handedOver, self._mayEmit, owner.reported)
        self._runner = newRunner(output)
        self.wake()
        return self._runner

    def wake(self) -> None:
        """See L{IExecutor}."""
        self._isWoken = True
        if not self._isInTurn:
            self._turnIn(0)

    def stop(self) -> Deferred[None]:
        """See L{IExecutor}."""
        if self._runner is not None and not self._hasEnded:
            self._runner.close()
            self._turn()
        self.kill()
        return succeed(None)

    def kill(self) -> None:
        """End as a process does that is killed: the author's code is not called any more."""
        self._timer.stop()
        self._hasEnded = True

    def _mayEmit(self) -> bool:
        return not self._owner.isPressed and self._owner.unsentSize < self._outputSizeMax

    def _turnIn(self, seconds: float) -> None:
        if self._runner is not None and not self._hasEnded:
            busy = self._busyUntil - self._clock.seconds()
            self._timer.start(max(seconds, busy) * 1000, self._turn)

    def _turn(self) -> None:
        runner = self._runner
        assert runner is not None  # started
        before = runner.handledCount
        self._isInTurn, self._isWoken = True, False
        try:
            wait = runner.turn(self._countMax)
        except BaseException:  # the author's code may raise anything
            self.kill()
            self._owner.runnerFailed(Failure())
            return
        finally:
            self._isInTurn = False
        handled = runner.handledCount - before
        self._busyUntil = self._clock.seconds() + handled * self._secondsPerTuple
        if self._isWoken:
            wait = 0
        if wait is not None:
            self._turnIn(wait)
