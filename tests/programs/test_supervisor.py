"""
Tests for L{pylogbroker.programs.tasks.supervisor}, with processes that do as a line of Python says.
C{kill -9} of real containers is in L{tests.cli.test_taskrun}.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.programs.processes.supervisor import (
    LINE_SIZE_MAX,
    ProcessCommand,
    ProcessDiedError,
    ProcessSupervisor,
    RestartPolicy,
)
from pylogbroker.programs.tasks import supervisor as module
from pylogbroker.programs.tasks.report import ContainerReport
from pylogbroker.programs.tasks.supervisor import ContainerDiedError, ContainerSupervisor
from pylogbroker.retry import RetryDelays

reactor: Any = _reactor

WAIT = (
    "import signal, sys; signal.signal(15, lambda *_: sys.exit({code})); print('on', flush=True); "
)
WAIT += "signal.pause()"


def report(**values: Any) -> str:
    """A line of Python that reports."""
    return f"import os; os.write(3, {ContainerReport(**values).encode()!r}); "


class SupervisorCase(TestCase):
    """What is said and written by processes."""

    timeout = 60

    def setUp(self) -> None:
        self.written: dict[int, bytes] = {1: b"", 2: b""}
        self.said: list[str] = []
        self.patch(module, "RESTART_DELAYS", RetryDelays(1, 1))

    async def write(self, fd: int, lines: bytes) -> None:
        await deferLater(reactor, 0)
        self.written[fd] += lines

    async def until(self, isTrue: Any) -> None:
        while not isTrue():
            await deferLater(reactor, 0.01)


class SupervisorTests(SupervisorCase):
    """What becomes of processes of containers."""

    def supervisor(self, **programs: str) -> ContainerSupervisor:
        """@param programs: Python, by a container's name."""
        commands = {name: [sys.executable, "-c", text] for name, text in programs.items()}
        made = ContainerSupervisor(reactor, commands, self.write, self.said.append, lambda: 0.5)

        def kill() -> None:
            for pid in made.pids().values():
                os.kill(pid, signal.SIGKILL)

        self.addCleanup(kill)
        return made

    def ends(self, running: Deferred[Any]) -> Deferred[ContainerDiedError]:
        """The error with which the supervisor ends."""
        return self.assertFailure(running, ContainerDiedError)

    async def test_inOrder(self) -> None:
        """
        All end with 0: so does the supervisor. Their lines are whole, with their names before them,
        and what they have done is counted.
        """
        long = LINE_SIZE_MAX * 2
        supervisor = self.supervisor(
            a=f"{report(taskCount=1, handledCount=5)}print('one\\ntwo', end='')",
            b=f"{report(handledCount=2, failedCount=1)}import sys; sys.stderr.write('x' * {long})",
        )
        await supervisor.run()
        self.assertEqual(self.written[1], b"[a] one\n[a] two\n")
        lines = self.written[2].splitlines()
        self.assertEqual({line[:5] for line in lines}, {b"[b] x"})
        self.assertEqual(sum(len(line) - 4 for line in lines), long)
        self.assertLess(max(map(len, lines)), 2 * long)
        self.assertEqual((self.said, supervisor.restartCount), ([], 0))
        reports = supervisor.reports()
        self.assertEqual(sum(each.handledCount for each in reports), 7)
        self.assertEqual(sum(each.failedCount for each in reports), 1)
        self.assertEqual(sum(each.taskCount for each in reports), 0)

    async def test_restarted(self) -> None:
        """What is killed is started again; C{stop} ends all in order."""
        supervisor = self.supervisor(a=WAIT.format(code=0), b=WAIT.format(code=0))
        running = supervisor.run()
        await self.until(lambda: self.written[1].count(b"on") == 2)
        before = supervisor.pids()
        os.kill(before["a"], signal.SIGKILL)
        await self.until(lambda: self.written[1].count(b"[a] on") == 2)
        after = supervisor.pids()
        self.assertEqual(after["b"], before["b"])
        self.assertNotEqual(after["a"], before["a"])
        [line] = self.said
        self.assertRegex(line, "container a has ended with signal 9; it is started again in 0.0 s")
        supervisor.stop()
        await running
        self.assertEqual((supervisor.restartCount, supervisor.pids()), (1, {}))

    async def test_givenUp(self) -> None:
        """One that dies more than five times within a minute ends the others, too."""
        supervisor = self.supervisor(a="raise SystemExit(7)", b=WAIT.format(code=0))
        error = await self.ends(supervisor.run())
        self.assertEqual(str(error), "container a has ended with status 7: 6 times within 60 s")
        self.assertEqual((supervisor.restartCount, len(self.said)), (5, 5))

    async def test_final(self) -> None:
        """One that reports that another would fail as well is not started again; all are ended."""
        supervisor = self.supervisor(
            a=f"{report(isFinal=True)}raise SystemExit(1)", b=WAIT.format(code=0)
        )
        error = await self.ends(supervisor.run())
        self.assertEqual(str(error), "container a cannot go on; see above")
        self.assertEqual((supervisor.restartCount, self.said), (0, []))

    async def test_badEnd(self) -> None:
        """One that fails while it is ended is told of."""
        supervisor = self.supervisor(a=WAIT.format(code=3))
        running = supervisor.run()
        await self.until(lambda: b"on" in self.written[1])
        supervisor.stop()
        error = await self.ends(running)
        self.assertEqual(str(error), "container a has ended with status 3")

    async def test_endedWhileItStarts(self) -> None:
        """One that SIGTERM kills while it starts has not failed."""
        supervisor = self.supervisor(a="print('on', flush=True); import signal; signal.pause()")
        running = supervisor.run()
        await self.until(lambda: b"on" in self.written[1])
        supervisor.stop()
        await running

    async def test_forced(self) -> None:
        """One that does not end in time is killed."""
        self.patch(module, "STOP_SECONDS_MAX", 0.05)
        text = "import signal; signal.signal(15, signal.SIG_IGN); print('on', flush=True); "
        supervisor = self.supervisor(a=f"{text}\nwhile True: signal.pause()")
        running = supervisor.run()
        await self.until(lambda: b"on" in self.written[1])
        supervisor.stop()
        self.assertIn("signal 9", str(await self.ends(running)))

    async def test_stoppedWhileItWaits(self) -> None:
        """C{stop} before the next start: there is none."""
        self.patch(module, "RESTART_DELAYS", RetryDelays(60_000, 60_000))
        supervisor = self.supervisor(a="raise SystemExit(7)")
        running = supervisor.run()
        await self.until(lambda: self.said)
        supervisor.stop()
        await running
        self.assertEqual(supervisor.restartCount, 1)

    async def test_closedOutput(self) -> None:
        """When what they write goes nowhere, all are ended, and the error is that."""

        async def write(fd: int, lines: bytes) -> None:
            raise BrokenPipeError

        supervisor = self.supervisor(a=WAIT.format(code=0))
        supervisor._write = write
        await self.assertFailure(supervisor.run(), BrokenPipeError)

    async def test_foreignReports(self) -> None:
        """What is no report is left out."""
        supervisor = self.supervisor(
            a="import os; os.write(3, b'[1]\\n'); os.write(3, b'\\xff\\n[null,0,0,0,[],0]\\n')"
        )
        await supervisor.run()
        self.assertEqual(sum(each.handledCount for each in supervisor.reports()), 0)
        self.assertEqual(self.said, [])


class ProcessSupervisorTests(SupervisorCase):
    """What topologies ask for, beside the promises to tasks."""

    def supervised(self, policy: RestartPolicy, reportFd: int = 0, **programs: Any) -> Any:
        """@param programs: Python, or a command, by a process's name."""
        kind: Any = type("Reported", (ProcessSupervisor,), {"reportFd": reportFd})
        commands = {
            name: ProcessCommand([sys.executable, "-c", each]) if isinstance(each, str) else each
            for name, each in programs.items()
        }
        made = kind(reactor, commands, self.write, self.said.append, lambda: 0.5, policy)

        def kill() -> None:
            for pid in made.pids().values():
                os.kill(pid, signal.SIGKILL)

        self.addCleanup(kill)
        return made

    policy = RestartPolicy(RetryDelays(1, 1), None, 60, 60)

    async def test_restartsAll(self) -> None:
        """One that ends in order is started again if the policy says so, without a limit."""
        supervisor = self.supervised(self.policy._replace(restartsAll=True), a="print('on')")
        running = supervisor.run()
        await self.until(lambda: supervisor.restartCount > 6)
        self.assertRegex(self.said[0], "process a has ended with status 0; it is started again")
        supervisor.stop()
        await running

    async def test_input(self) -> None:
        """Standard input stays open if the command says so."""
        text = "import sys; print('on', flush=True); sys.stdin.read(); print('off', flush=True)"
        words = [sys.executable, "-c", text]
        supervisor = self.supervised(
            self.policy, a=ProcessCommand(words, keepsInput=True), b=ProcessCommand(words)
        )
        running = supervisor.run()
        await self.until(lambda: b"[b] off" in self.written[1] and b"[a] on" in self.written[1])
        self.assertNotIn(b"[a] off", self.written[1])
        supervisor.stop()
        await running

    async def test_stoppedBefore(self) -> None:
        """C{stop} before C{run}: nothing is started."""
        supervisor = self.supervised(self.policy, a="print('on')")
        supervisor.stop()
        await supervisor.run()
        self.assertEqual((supervisor.pids(), self.written[1]), ({}, b""))

    async def test_descriptors(self) -> None:
        """A process gets descriptors of ours."""
        reads, writes = os.pipe()
        self.addCleanup(os.close, reads)
        command = ProcessCommand(
            [sys.executable, "-c", "import os; os.write(5, b'x')"], {5: writes}
        )
        supervisor = self.supervised(self.policy, a=command)
        await supervisor.run()
        os.close(writes)
        self.assertEqual(os.read(reads, 9), b"x")

    async def test_kill(self) -> None:
        """All are ended at once, whatever they do with C{SIGTERM}."""
        text = "import signal; signal.signal(15, signal.SIG_IGN); print('on', flush=True); "
        supervisor = self.supervised(self.policy, a=f"{text}\nwhile True: signal.pause()")
        running = supervisor.run()
        await self.until(lambda: b"on" in self.written[1])
        supervisor.kill(ProcessDiedError("reason"))
        error = await self.assertFailure(running, ProcessDiedError)
        self.assertEqual(str(error), "reason")

    async def test_outputHeld(self) -> None:
        """
        One is started again though a process that it has started holds its output, and lives on;
        what it had written stands, its last line too.
        """
        program = (
            "import os, signal, subprocess, sys; a = subprocess.Popen(['sleep', '600']); "
            f"print(a.pid, 'x' * {LINE_SIZE_MAX // 2}, 'end', end='', flush=True); "
            "os.kill(os.getpid(), 9)"
        )
        supervisor = self.supervised(self.policy._replace(countMax=1), a=program)
        error = await self.assertFailure(supervisor.run(), ProcessDiedError)
        self.assertIn("signal 9: 2 times", str(error))
        lines = self.written[1].splitlines()
        children = [int(line.split()[1]) for line in lines]
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual((len(lines), {line[-5:] for line in lines}), (2, {b"x end"}))

    async def test_endsGroup(self) -> None:
        """What one has started in its process group ends with it, if the policy says so."""
        program = (
            "import os, subprocess, sys; os.setsid(); a = subprocess.Popen(['sleep', '600']); "
            "print(a.pid)"
        )
        supervisor = self.supervised(self.policy._replace(endsGroup=True), a=program)
        await supervisor.run()
        state = Path("/proc", self.written[1].split()[1].decode(), "stat")

        def isOver() -> bool:
            # The one that adopts it may be slow to reap it.
            return not state.exists() or state.read_text().rsplit(")")[1].split()[0] in "ZX"

        await self.until(isOver)

    def held(self) -> tuple[ProcessCommand, str]:
        """One that is to be stopped last, and one that tells that it ends only after a while."""
        last = "import signal, sys; signal.signal(15, lambda *_: (print('off'), sys.exit())); "
        last += "print('on', flush=True)\nwhile True: signal.pause()"
        first = last.replace("(print", "(__import__('time').sleep(0.3), print")
        return ProcessCommand([sys.executable, "-c", last], stopsLast=True), first

    async def test_stopsLast(self) -> None:
        """What is to be stopped last runs until the others have ended."""
        last, first = self.held()
        supervisor = self.supervised(self.policy, last=last, first=first)
        running = supervisor.run()
        await self.until(lambda: self.written[1].count(b"on") == 2)
        supervisor.stop()
        await running
        self.assertEqual(self.written[1].splitlines()[2:], [b"[first] off", b"[last] off"])

    async def test_killsLast(self) -> None:
        """C{kill} ends it with the others, and it is not started again meanwhile."""
        last, first = self.held()
        policy = self.policy._replace(delays=RetryDelays(60_000, 60_000))
        supervisor = self.supervised(policy, last=last, first=first)
        running = supervisor.run()
        await self.until(lambda: self.written[1].count(b"on") == 2)
        os.kill(supervisor.pids()["last"], signal.SIGKILL)
        await self.until(lambda: self.said)
        supervisor.kill(ProcessDiedError("reason"))
        await self.assertFailure(running, ProcessDiedError)
        self.assertNotIn(b"off", self.written[1])

    async def test_silence(self) -> None:
        """One that is silent after a first sign of life is killed, and started again."""
        sign = "import os, signal, time; os.write(3, b'\\n'); print('on', flush=True); "
        policy = self.policy._replace(silenceSeconds=0.05)
        supervisor = self.supervised(
            policy, 3, silent=sign + "signal.pause()", mute="import signal; signal.pause()"
        )
        running = supervisor.run()
        await self.until(lambda: supervisor.restartCount > 1)
        self.assertIn("process silent has given no sign of life for 0.05 s", self.said[0])
        self.assertFalse([each for each in self.said if "mute" in each])
        supervisor.stop()
        await running
