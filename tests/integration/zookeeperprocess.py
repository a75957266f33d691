"""
ZooKeeper servers as processes, for tests: C{pylogbroker zookeeper}, and Apache's. There is one of
each for the whole run, since each test can have a chroot of its own; a test that must stop a server
makes one for itself.

Ticks are a quarter of a second, so that sessions can be short.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TICK_MS = 250
_SERVES = re.compile(r"ZooKeeper serves on ((\S+):(\d+))")


class ZookeeperProcess:
    """
    @ivar directory: of its data.
    @ivar port: where it listens, once C{start} has returned; it stays over restarts.
    @ivar servers: what clients are told.
    """

    module = "pylogbroker"

    def __init__(self, directory: str, port: int = 0) -> None:
        self.directory = os.path.abspath(directory)
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> ZookeeperProcess:
        """Blocks until it serves; returns itself."""
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", self.module, *self._arguments()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        found = _SERVES.match(line)
        if found is None:
            rest = process.communicate(timeout=300)[0]
            raise AssertionError(f"no ZooKeeper: {line}{rest}")
        self.port = int(found.group(3))
        return self

    @property
    def pid(self) -> int:
        """Of the process that serves."""
        assert self._process is not None
        return self._process.pid

    def _arguments(self) -> list[str]:
        where = ["--data", self.directory, "--port", str(self.port)]
        return ["zookeeper", *where, "--tick", str(TICK_MS)]

    def kill(self) -> None:
        """C{kill -9}; returns when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=300)

    def stop(self) -> int:
        """C{SIGTERM}; returns the exit status. It may have ended already."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        return process.returncode


class ApacheZookeeperProcess(ZookeeperProcess):
    """Apache's server. A module that uses it needs C{java} and C{zookeeper}."""

    module = "tests.integration.apachezookeeper"

    @property
    def pid(self) -> int:
        """Of Java, the one child."""
        launcher = super().pid
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii")
        return int(children)

    def _arguments(self) -> list[str]:
        return [self.directory, str(self.port), str(TICK_MS)]


_shared: dict[type[ZookeeperProcess], ZookeeperProcess] = {}


def sharedZookeeper(kind: type[ZookeeperProcess] = ZookeeperProcess) -> ZookeeperProcess:
    """One for all tests of this process; it goes when the process ends."""
    if kind not in _shared:
        directory = tempfile.mkdtemp(prefix="pylogbroker-zookeeper-")
        _shared[kind] = server = kind(directory).start()

        def end() -> None:
            server.stop()
            shutil.rmtree(directory, ignore_errors=True)

        atexit.register(end)
    return _shared[kind]


def sharedApacheZookeeper() -> ZookeeperProcess:
    """Apache's server for all tests of this process."""
    return sharedZookeeper(ApacheZookeeperProcess)
