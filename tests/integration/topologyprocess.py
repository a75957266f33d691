"""
C{pylogbroker topology submit} as a process, for tests: its processes are found in C{/proc}. A
module of its own, since a program of C{tests.long} starts topologies, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.brokerprocess import ROOT
from tests.integration.topologyprogram import lines

PROGRAM = ROOT / "tests" / "integration" / "topologyprogram.py"
SECONDS_MAX = 300.0
"""What no machine needs, however busy it is."""

SESSION_MS = 2_000
SPOUT_COUNT = 2


def until(isTrue: Callable[[], Any], what: str) -> Any:
    """Wait for something that is true, and return it."""
    deadline = time.monotonic() + SECONDS_MAX
    while not (found := isTrue()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {SECONDS_MAX:g} s: {what}")
        time.sleep(0.02)
    return found


class TopologyProcess:
    """
    A topology that runs.

    @ivar folder: of what its spouts and bolts write.
    @ivar state: of its logs.
    """

    def __init__(
        self, folder: Path, topology: str, containers: int, *changes: str, file: Path = PROGRAM
    ) -> None:
        """
        @param folder: made by this.
        @param changes: C{KEY=VALUE} each, for C{--set}.
        @param file: the topology's.
        """
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True)
        self.state = self.folder / "state"
        self.topology = topology
        words = [
            *("topology", "submit", str(file), "--topology", topology),
            *("--containers", str(containers), "--zookeeper-port", "0"),
            *("--state-dir", str(self.state)),
        ]
        for change in (
            f"sentences.folder={self.folder}",
            f"zk.sessiontimeout.ms={SESSION_MS}",
            "restart.delay.max.ms=1000",
            "metrics.interval.ms=1000",
            *changes,
        ):
            words += ["--set", change]
        self._output = open(self.folder / "submit.out", "wb")  # noqa: SIM115 # closed by stop
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pylogbroker", *words],
            cwd=ROOT,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    @property
    def said(self) -> str:
        """What the command has said so far."""
        return (self.folder / "submit.out").read_text()

    def untilActive(self) -> None:
        """Wait for all containers."""
        until(
            lambda: f"{self.topology}: active" in self.said or self._process.poll() is not None,
            f"an active topology: {self.said}",
        )
        if self._process.poll() is not None:
            raise AssertionError(self.said)

    @property
    def zookeeper(self) -> str:
        """C{host:port} of the server that the command has started."""
        return self.said.partition("ZooKeeper serves on ")[2].partition(",")[0]

    def command(self, *words: str) -> str:
        """The output of C{pylogbroker topology}, about this one's ZooKeeper."""
        options = ("--zookeeper", self.zookeeper)
        ran = subprocess.run(
            [sys.executable, "-m", "pylogbroker", "topology", *words, *options],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if ran.returncode:
            raise AssertionError(f"topology {' '.join(words)}: {ran.stderr}")
        return ran.stdout

    def counted(self, component: str, what: str) -> float:
        """What instances of a component have C{emitted} or C{executed}, as the master has it."""
        found = json.loads(self.command("describe", self.topology, "--json"))
        return sum(
            value
            for each in found["status"]["metrics"]
            if each["component"] == component
            for name, value in each["values"].items()
            if name.startswith(f"{what}.")
        )

    def processes(self) -> dict[str, int]:
        """
        The pids of all processes, by container, role, and for instances component and task:
        C{1 instance split 3}.
        """
        found = {}
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if b"pylogbroker.programs.topologies.process" not in words[:4]:
                continue
            spec = json.loads(words[3])
            if not spec["directory"].startswith(f"{self.state}/"):
                continue
            name = f"{spec['container']} {spec['role']}"
            if spec.get("task"):
                name += f" {spec['component']} {spec['task']}"
            found[name] = int(path.parent.name)
        return found

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """C{kill -9} of a process, or another signal, and wait for the one in its place."""
        before = until(lambda: self.processes().get(name), name)
        os.kill(before, number)
        until(lambda: self.processes().get(name, before) != before, f"{name} again")

    def numbers(self, what: str) -> set[int]:
        """All that spouts have C{emitted}, or that was C{acked}."""
        return {int(line) for path in self.folder.glob(f"{what}-*") for line in lines(path) if line}

    def written(self, component: str) -> list[str]:
        """The lines of all instances of a bolt."""
        return [line for path in self.folder.glob(f"{component}-*") for line in lines(path) if line]

    def untilAcked(self, more: int) -> None:
        """Wait until each instance of the spout has so many more acknowledged than it has now."""

        def counts() -> list[int]:
            return [len(lines(self.folder / f"acked-{index}")) for index in range(SPOUT_COUNT)]

        goals = [count + more for count in counts()]
        until(
            lambda: all(count >= goal for count, goal in zip(counts(), goals, strict=True)),
            f"{more} more of each spout are acknowledged",
        )

    def untilAllAcked(self) -> None:
        """Wait until all that was emitted is acknowledged, and nothing more is emitted."""
        until(
            lambda: (
                (emitted := self.numbers("emitted")) == self.numbers("acked")
                and emitted == self.numbers("emitted")
            ),
            "all are acknowledged",
        )

    def stop(self) -> int:
        """End it as Ctrl-C does. Returns the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        code = self._process.wait(SECONDS_MAX)
        self._output.close()
        return code

    def wait(self) -> int:
        """Wait until it has ended by itself. Returns the exit code."""
        return self._process.wait(SECONDS_MAX)

    def destroy(self) -> None:
        """End it in any case."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._output.close()
        until(lambda: not self.processes(), "the end of all processes")
