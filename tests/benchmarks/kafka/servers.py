"""Apache Kafka, our broker and the yardstick as processes, each with what is measured of it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.benchmarks.native import compileC
from tests.benchmarks.servers import CONFIGURATION, ROOT, SERVES, Server, cpuSeconds
from tests.oracle.apachebroker import apacheBroker, fetchKafka

SOURCES = Path(__file__).resolve().parent

APACHE_SETTINGS = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""Of C{config/server.properties}, as installed."""

APACHE_JAVA = (
    "java",
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""As C{kafka-server-start.sh} starts it."""


class NativePrograms:
    """The two programs in C, compiled for this run."""

    def __init__(self, folder: Path) -> None:
        options = ("-msse4.2",) if platform.machine() == "x86_64" else ()
        self.yardstick, self.load = (
            compileC(SOURCES / f"{name}.c", folder, options) for name in ("yardstick", "load")
        )

    def run(self, what: str, port: int, path: Path, *numbers: float) -> dict[str, float]:
        """
        Run the load and wait for its end.

        @return: what it printed, by name.
        @raise RuntimeError: it failed; says how.
        """
        done = subprocess.run(
            [self.load, what, str(port), str(path), *map(str, numbers)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=900,
        )
        if done.returncode:
            raise RuntimeError(f"load {what} failed: {done.stderr.strip()}")
        words = done.stdout.split()
        return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}


class Yardstick(Server):
    """The yardstick; it has no topics."""

    isBroker = False

    def __init__(self, programs: NativePrograms, *arguments: str) -> None:
        super().__init__([programs.yardstick, *arguments], re.compile(r"^(\d+)$"))


class BareTwisted(Server):
    """L{tests.benchmarks.kafka.bareserver}; it has no topics."""

    isBroker = False

    def __init__(self, folder: Path) -> None:
        super().__init__(
            [sys.executable, "-m", "tests.benchmarks.kafka.bareserver", str(folder)],
            re.compile(r"^(\d+)$"),
            {**os.environ, "PYTHONPATH": str(ROOT)},
        )


class Ours(Server):
    """C{twistd pylogbroker} with the shipped settings, but for those given."""

    isBroker = True

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            oursCommand(
                {
                    "log.dir": str(folder / "logs"),
                    "port": "0",
                    "listener.dialect": "kafka",
                    **settings,
                }
            ),
            SERVES,
            {**os.environ, "PYTHONPATH": str(ROOT)},
            folder,
        )


def oursCommand(settings: Mapping[str, str]) -> list[str]:
    """How to start our broker."""
    command = [
        sys.executable,
        "-c",
        "from twisted.scripts.twistd import run; run()",
        "--nodaemon",
        "--pidfile=",
        "pylogbroker",
        "--config",
        str(CONFIGURATION),
    ]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


class Apache:
    """Apache Kafka as installed."""

    isBroker = True

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.processId = 0
        _, self.port = self._stack.enter_context(
            apacheBroker(fetchKafka(), APACHE_SETTINGS, APACHE_JAVA, self._started)
        )

    def _started(self, processId: int) -> None:
        self.processId = processId

    def cpuSeconds(self) -> float:
        """So far."""
        return cpuSeconds(self.processId)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def residentSize(processId: int) -> int:
    """Bytes of memory that a process has now."""
    for line in Path(f"/proc/{processId}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {processId} has no memory")
