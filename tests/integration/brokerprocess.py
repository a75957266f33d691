"""
C{twistd pylogbroker} as a process, for tests: started on a free port of the loopback interface, its
log read line by line as it comes, its memory looked up in C{/proc}.

Nothing here sleeps: a thread reads the log and wakes up who waits for a line; everything that waits
has a deadline.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.integration.rawclient import RawClient
from tests.integration.wheels import cleanEnvironment

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 300.0
_PORT = re.compile(r" serves .*on 127\.0\.0\.1:(\d+)")

DEFAULTS = {
    "brokerid": "0",
    "port": "0",
    "listen.interface": "127.0.0.1",
    "enable.zookeeper": "false",
    "log.flush.interval": "1",
}
"""What is produced is visible to the next request."""


class BrokerProcess:
    """
    A broker.

    @ivar directory: C{log.dir}.
    @ivar port: where it listens, once C{start} has returned.
    @ivar lines: its log so far.
    @ivar fileSizeMax: how large a file the next process may write; 0: any.
    """

    def __init__(
        self,
        directory: str,
        properties: Mapping[str, str] | None = None,
        config: str | None = None,
        descriptorCounts: tuple[int, int] | None = None,
        options: Sequence[str] = (),
        programs: Path | None = None,
    ) -> None:
        """
        @param directory: C{log.dir}; beside it, in C{<directory>.properties}, its property file is
            written.
        @param properties: over the L{DEFAULTS}, or over those of C{config}.
        @param config: a property file to use instead of the L{DEFAULTS}.
        @param descriptorCounts: the soft and the hard limit on descriptors that it is started with;
            L{None}: the test's own.
        @param options: more of the command line.
        @param programs: the folder of C{twistd} in another environment, which then does not find
            this tree.
        """
        self.directory = directory
        self.lines: list[str] = []
        self.port = 0
        self.fileSizeMax = 0
        self._changes = {"log.dir": directory, **(properties or {})}
        self._config = config
        self._descriptorCounts = descriptorCounts
        self._options = options
        self._programs = programs
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._news = threading.Condition()
        self._ended = False

    # -- life

    def start(self) -> BrokerProcess:
        """
        @return: itself, when clients are served.
        @raise AssertionError: it has ended, or does not serve in time; the text has its log.
        """
        self.launch()
        found = self.waitForLine(_PORT, START_SECONDS_MAX)
        self.port = int(found.group(1))
        return self

    def launch(self) -> None:
        """Start it and wait for nothing."""
        config = self._config
        changes = dict(self._changes)
        if config is None:
            config = f"{self.directory}.properties"
            Path(config).write_text(
                "".join(f"{key}={value}\n" for key, value in {**DEFAULTS, **changes}.items()),
                encoding="utf-8",
            )
            changes = {}
        else:
            changes = {"port": "0", "listen.interface": "127.0.0.1", **changes}
        sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        self._spawn(
            ["pylogbroker", "--config", config, *sets, *self._options],
            os.path.dirname(self.directory),
        )

    def _spawn(self, words: Sequence[str], folder: str) -> None:
        """Start C{twistd} with these words, and read what it says."""
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command, environment = twistd(), {**os.environ, "PYTHONPATH": path}
        if self._programs is not None:
            command, environment = [str(self._programs / "twistd")], cleanEnvironment()
        environment["PYTHONUNBUFFERED"] = "1"
        self.lines = []
        self._ended = False
        self._process = subprocess.Popen(
            [*command, "--nodaemon", "--pidfile=", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=self._limit,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def _limit(self) -> None:
        if self._descriptorCounts is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptorCounts)
        if self.fileSizeMax:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.fileSizeMax, self.fileSizeMax))

    def kill(self) -> None:
        """C{kill -9}; it may have ended already."""
        if self._process is not None:
            self._process.kill()
            self._over()

    def stop(self) -> int:
        """
        C{SIGTERM}.

        @return: the exit status.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, secondsMax: float = STOP_SECONDS_MAX) -> int:
        """Wait for its end, and return its exit status."""
        assert self._process is not None
        try:
            status = self._process.wait(secondsMax)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"the broker has not ended within {secondsMax} s\n{self.log}"
            ) from None
        self._over()
        return status

    def _over(self) -> None:
        process, self._process = self._process, None
        assert process is not None and self._reader is not None
        process.wait()
        self._reader.join()
        assert process.stdout is not None
        process.stdout.close()

    # -- its log

    @property
    def log(self) -> str:
        """What it has said, in one piece."""
        return "\n".join(self.lines)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def waitForLine(
        self, pattern: re.Pattern[str] | str, secondsMax: float = 300.0, start: int = 0
    ) -> re.Match[str]:
        """
        The first line that matches, which may have come already.

        @param start: the index of the line to begin with.
        @raise AssertionError: it has not come in time, or the process has ended without it.
        """
        found: list[re.Match[str]] = []
        seen = start

        def look() -> bool:
            nonlocal seen
            while not found and seen < len(self.lines):
                match = re.search(pattern, self.lines[seen])
                seen += 1
                if match is not None:
                    found.append(match)
            return bool(found) or self._ended

        with self._news:
            self._news.wait_for(look, secondsMax)
        if not found:
            state = "has ended" if self._ended else "goes on"
            raise AssertionError(
                f"the broker {state} without saying {pattern!r}; it said:\n{self.log}"
            )
        return found[0]

    # -- its system's view of it

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def isRunning(self) -> bool:
        """Whether it is there."""
        return self._process is not None and self._process.poll() is None

    def rssSize(self) -> int:
        """Bytes of memory that it has now (C{VmRSS})."""
        return self._status("VmRSS")

    def rssSizeMax(self) -> int:
        """The most that it has had since C{forgetRssMax}, or since its start (C{VmHWM})."""
        return self._status("VmHWM")

    def forgetRssMax(self) -> None:
        """Let C{rssSizeMax} begin anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) << 10
        raise AssertionError(f"no {name} of {self.pid}")

    def descriptorCount(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def descriptorLimit(self) -> int:
        """How many descriptors it may have now (its soft limit)."""
        for line in Path(f"/proc/{self.pid}/limits").read_text(encoding="ascii").splitlines():
            if line.startswith("Max open files"):
                return int(line.split()[3])
        raise AssertionError(f"no limit of {self.pid}")

    # -- its clients

    def client(self, secondsMax: float = 300.0) -> RawClient:
        """A new connection."""
        return RawClient(self.port, secondsMax)


def twistd() -> list[str]:
    """The command, of the same Python that runs the tests."""
    script = Path(sys.executable).with_name("twistd")
    if script.exists():
        return [sys.executable, str(script)]
    return [sys.executable, "-c", "from twisted.scripts.twistd import run; run()"]


def until(
    condition: Callable[[], bool], what: str, secondsMax: float = 300.0, intervalMs: int = 5
) -> None:
    """
    Look again and again, up to a deadline.

    @raise AssertionError: it has not come true in time.
    """
    waiting = threading.Event()
    for _look in range(int(secondsMax * 1000 / intervalMs)):
        if condition():
            return
        waiting.wait(intervalMs / 1000)
    raise AssertionError(f"not within {secondsMax} s: {what}")
