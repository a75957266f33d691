"""
The processes that run the tests, and the loop that hands out batches to them.

Each process is the leader of a process group and a session of its own, so Ctrl-C reaches the gate
alone, and whatever tests have started ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gate.progress import Progress
from tests.gate.schedule import Batch, plan, takeNext

ROOT = Path(__file__).resolve().parent.parent.parent
TICK_SECONDS = 1.0
OUTPUT_SIZE_MAX = 4_000
"""Of the output of a process that died, this much is printed, in characters."""


class RunProcess:
    """
    A process that runs tests.

    @ivar number: 0, 1, ...
    @ivar batch: what it runs, if anything.
    @ivar hasSpark: it has run tests that use Spark.
    """

    def __init__(
        self,
        number: int,
        prefix: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        showsOutput: bool,
    ) -> None:
        """
        @param prefix: what comes between the interpreter and the module.
        @param folder: for what the tests leave behind, and for what they print.
        @param showsOutput: what the tests print goes to the standard output.
        """
        self.number = number
        self.batch: Batch | None = None
        self.hasSpark = False
        self._output = folder / f"output-{number}"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        with open(self._output, "ab") as output:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    *prefix,
                    "-m",
                    "tests.gate.worker",
                    str(folder / f"trial-{number}"),
                ],
                cwd=ROOT,
                env={**environment, "TMPDIR": str(temporary)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if showsOutput else output,
                start_new_session=True,
            )
        self._received = b""

    @property
    def reports(self) -> Any:
        """The pipe that the reports come through."""
        return self.process.stdout

    def command(self, name: str, tests: Sequence[str]) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({name: list(tests)}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # It died, which is noticed when its reports end.

    def read(self) -> list[dict[str, Any]] | None:
        """The reports that have come; C{None} after the last one."""
        data = os.read(self.reports.fileno(), 1 << 20)
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def output(self) -> str:
        """The end of what it and its tests have printed."""
        return self._output.read_text(encoding="utf-8", errors="replace")[-OUTPUT_SIZE_MAX:]

    def finish(self) -> None:
        """There are no more commands: it writes down its coverage and ends."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # It has ended.

    def kill(self) -> None:
        """End it and whatever its tests have started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class RunFaultError(Exception):
    """The run cannot begin; the text says why."""


class Pool:
    """
    Runs tests in several processes.

    @ivar faults: what went wrong besides tests.
    @ivar isInterrupted: L{interrupt} was called.
    @ivar progress: what became of the tests; C{None} if they could not be listed.
    """

    def __init__(
        self,
        jobCount: int,
        prefix: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        say: Callable[[str], object],
        clock: Callable[[], float],
        showsOutput: bool = False,
    ) -> None:
        """
        @param jobCount: how many processes run tests.
        @param prefix: what comes between the interpreter and the module of the processes.
        @param folder: for files of the run.
        @param say: prints a line.
        @param clock: seconds.
        @param showsOutput: what the tests print goes to the standard error output, not into a file.
        """
        self.faults: list[str] = []
        self.isInterrupted = False
        self.progress: Progress | None = None
        self._jobCount = jobCount
        self._prefix = prefix
        self._folder = folder
        self._environment = environment
        self._say = say
        self._clock = clock
        self._showsOutput = showsOutput
        self._processes: dict[int, RunProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._startCount = 0

    def run(
        self,
        names: Sequence[str],
        seconds: Mapping[str, float],
        usesSpark: Callable[[str], bool],
        secondsMax: float,
    ) -> None:
        """
        Run tests until all have ended, the time is over, or L{interrupt} is called.

        @param names: what to run, as for trial.
        @param seconds: how long modules take, as far as that is known.
        @param usesSpark: says of a module whether it uses a Spark session.
        @param secondsMax: then the run is broken off.
        """
        try:
            endsAt = self._clock() + secondsMax
            tests = self._list(names, endsAt)
            pending = plan(tests, seconds, usesSpark)
            self.progress = progress = Progress(pending, self._say, self._clock)
            processCount = min(self._jobCount, len(pending))
            processes = "1 process" if processCount == 1 else f"{processCount} processes"
            self._say(f"{len(tests)} tests in {processes}")
            while len(self._processes) < processCount:
                self._start()
            for process in list(self._processes.values()):
                self._assign(process, pending)
            while self._processes:
                if self._clock() > endsAt:
                    self.faults.append(f"the tests took more than {secondsMax:.0f} s")
                    break
                # What was reported before an interruption counts.
                isLast = self.isInterrupted
                for process, reports in self._receive(0.0 if isLast else TICK_SECONDS):
                    for report in reports or ():
                        self._handle(process, report, pending)
                    if reports is None:
                        self._ended(process, pending)
                if isLast:
                    break
                progress.tick()
        except RunFaultError as error:
            self.faults.append(str(error))
        finally:
            for process in list(self._processes.values()):
                self._forget(process)
                process.kill()

    def interrupt(self) -> None:
        """End the run soon. A signal handler may call this."""
        self.isInterrupted = True

    def _start(self) -> RunProcess:
        process = RunProcess(
            self._startCount, self._prefix, self._folder, self._environment, self._showsOutput
        )
        self._startCount += 1
        self._processes[process.number] = process
        self._selector.register(process.reports, selectors.EVENT_READ, process)
        return process

    def _forget(self, process: RunProcess) -> None:
        self._selector.unregister(process.reports)
        del self._processes[process.number]

    def _receive(
        self, seconds: float = TICK_SECONDS
    ) -> list[tuple[RunProcess, list[dict[str, Any]] | None]]:
        """Reports of processes that have any, within a second; C{None} of one that has ended."""
        # Asked before the pipes: what a process wrote before it ended is read first.
        ended = [each for each in self._processes.values() if each.process.poll() is not None]
        found = {key.data: key.data.read() for key, _ in self._selector.select(seconds)}
        return [*found.items(), *((process, None) for process in ended if process not in found)]

    def _list(self, names: Sequence[str], endsAt: float) -> list[str]:
        """The ids of the tests. The process that listed them then runs some."""
        process = self._start()
        process.command("list", names)
        self._say("the tests are being imported")
        while self._clock() < endsAt and not self.isInterrupted:
            for _, reports in self._receive():
                for report in reports or ():
                    if not report["listed"]:
                        raise RunFaultError("no test was found")
                    return list(dict.fromkeys(report["listed"]))
                if reports is None:
                    raise RunFaultError(f"the tests cannot be listed:\n{process.output()}")
        raise RunFaultError(
            "no test has run" if self.isInterrupted else "the tests cannot be listed in time"
        )

    def _assign(self, process: RunProcess, pending: list[Batch]) -> None:
        """Give a free process its next batch, or let it end."""
        sparkIsTaken = any(other.hasSpark for other in self._processes.values())
        process.batch = takeNext(pending, process.hasSpark, sparkIsTaken)
        if process.batch is None:
            process.finish()
        else:
            process.hasSpark |= process.batch.isSpark
            process.command("run", process.batch.tests)

    def _handle(self, process: RunProcess, report: Mapping[str, Any], pending: list[Batch]) -> None:
        assert self.progress is not None
        if "begin" in report:
            self.progress.begin(process.number, report["begin"])
        elif "outcome" in report:
            self.progress.outcome(*report["outcome"])
        elif "end" in report:
            self.progress.end(process.number, report["end"])
        else:
            self._assign(process, pending)

    def _ended(self, process: RunProcess, pending: list[Batch]) -> None:
        """
        A process has ended. If that was in the middle of its work, the test that it ran has failed,
        and another process does the rest.
        """
        assert self.progress is not None
        self._forget(process)
        status = process.process.wait()
        process.kill()
        running = self.progress.running.get(process.number)
        if running is not None:
            text = f"its process ended with status {status}:\n{process.output()}"
            self.progress.outcome(running[0], "error", text)
            self.progress.end(process.number, running[0])
        elif status or process.batch is not None:
            self.faults.append(
                f"process {process.number} ended with status {status}:\n{process.output()}"
            )
        if running is not None and process.batch is not None:
            rest = tuple(test for test in process.batch.tests if test in self.progress.missing)
            if rest:
                pending.insert(0, process.batch._replace(tests=rest))
            self._assign(self._start(), pending)
