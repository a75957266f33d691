"""
C{pylogbroker zookeeper} as a process, for tests: one for the whole run, since each test can have a
chroot of its own, or one more for who must stop it.

It has a thread to read what it says, and no more than a second's ticks, so that sessions can be
short.
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
NEEDS = ("java", "zookeeper")
TICK_MS = 250
_SERVES = re.compile(r"ZooKeeper serves on ((\S+):(\d+))")


class ZookeeperProcess:
    """
    @ivar directory: of its data.
    @ivar port: where it listens, once C{start} has returned; it stays over restarts.
    @ivar servers: what clients are told.
    """

    def __init__(self, directory: str, port: int = 0) -> None:
        self.directory = directory
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
        arguments = ["--data", self.directory, "--port", str(self.port), "--tick", str(TICK_MS)]
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "pylogbroker", "zookeeper", *arguments],
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

    def stop(self) -> int:
        """C{SIGTERM}; returns the exit status. It may have ended already."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        return process.returncode


_shared: list[ZookeeperProcess] = []


def sharedZookeeper() -> ZookeeperProcess:
    """One for all tests of this process; it goes when the process ends."""
    if not _shared:
        directory = tempfile.mkdtemp(prefix="pylogbroker-zookeeper-")
        _shared.append(ZookeeperProcess(directory).start())

        def end() -> None:
            _shared[0].stop()
            shutil.rmtree(directory, ignore_errors=True)

        atexit.register(end)
    return _shared[0]
