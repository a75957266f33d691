"""
Servers as processes of their own, and how much processor they have used.

What counts is the CPU time of the process with all its threads, kernel and user: what
C{/proc/PID/stat} says in hundredths of a second, the process's CPU clock says in nanoseconds, so
that is read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.benchmarks.native import Programs

ROOT = Path(__file__).resolve().parent.parent.parent
CONFIGURATION = ROOT / "etc" / "broker.properties"
SERVES = re.compile(r"serves \d+ partitions? .*(?:host='127\.0\.0\.1', port=|127\.0\.0\.1:)(\d+)")
START_SECONDS_MAX = 60
_CPUCLOCK_SCHED = 2

SETTINGS = {
    "port": "0",
    "log.flush.interval": "10000",
    "log.default.flush.interval.ms": "1000",
    "log.default.flush.scheduler.interval.ms": "1000",
}
"""
What a broker under measurement is told besides the shipped file; the flush settings are the shipped
ones, named here since they matter.
"""


def cpuSeconds(processId: int) -> float:
    """CPU time of a process with all its threads, those that have ended included."""
    try:
        return time.clock_gettime((~processId << 3) | _CPUCLOCK_SCHED)
    except OSError:
        fields = Path(f"/proc/{processId}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kernelWorkerSeconds() -> float:
    """
    CPU time of the kernel's own workers, so far; 0 where their names are not seen. They do what
    processes have asked for without waiting: C{fsync} by C{io_submit}, the disk's ends.
    """
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "comm").read_text().startswith("kworker/"):
                total += int((folder / "schedstat").read_text().split()[0])
    return total / 1e9


class Server:
    """
    A server that runs.

    @ivar process: of it.
    @ivar port: where.
    """

    def __init__(
        self,
        arguments: list[str],
        pattern: re.Pattern[str],
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """
        @param pattern: finds the port in the line of output that says that it is ready.
        @raise RuntimeError: it ended before it was ready; with its last words.
        """
        self._lines: deque[str] = deque(maxlen=30)
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=folder,
        )
        assert self.process.stdout is not None
        self._output = self.process.stdout
        watchdog = threading.Timer(START_SECONDS_MAX, self.process.kill)
        watchdog.start()
        try:
            self.port = self._awaitPort(pattern)
        finally:
            watchdog.cancel()
        threading.Thread(target=self._lines.extend, args=(self._output,), daemon=True).start()

    def _awaitPort(self, pattern: re.Pattern[str]) -> int:
        for line in self._output:
            self._lines.append(line)
            found = pattern.search(line)
            if found:
                return int(found.group(1))
        raise RuntimeError(f"a server did not start:\n{''.join(self._lines)}")

    @property
    def processId(self) -> int:
        return self.process.pid

    def cpuSeconds(self) -> float:
        """So far."""
        return cpuSeconds(self.process.pid)

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Yardstick(Server):
    """The yardstick, receiving into a folder or serving a file."""

    name = "yardstick"

    def __init__(self, programs: Programs, what: str, path: Path) -> None:
        """
        @param what: C{"receive"} or C{"serve"}.
        """
        super().__init__([programs.yardstick, what, "0", str(path)], re.compile(r"^(\d+)$"))


class Broker(Server):
    """C{twistd pylogbroker}."""

    name = "broker"

    def __init__(
        self,
        folder: Path,
        logDirectory: Path,
        settings: dict[str, str],
        pythonPath: Sequence[Path] = (),
    ) -> None:
        """
        @param folder: to run in.
        @param settings: properties besides L{SETTINGS}.
        @param pythonPath: where modules are looked for first.
        """
        arguments = [
            sys.executable,
            "-c",
            "from twisted.scripts.twistd import run; run()",
            "--nodaemon",
            "--pidfile=",
            "pylogbroker",
        ]
        arguments += ["--config", str(CONFIGURATION)]
        for key, value in {**SETTINGS, "log.dir": str(logDirectory), **settings}.items():
            arguments += ["--set", f"{key}={value}"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*pythonPath, ROOT)))}
        super().__init__(arguments, SERVES, environment, folder)
