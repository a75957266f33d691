"""
L{tests.fuzz.live} as a process: its ports, its memory, its descriptors, and what it says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.figures import Figures
from tests.fuzz.record import ROOT

ANSWER_SECONDS_MAX = 60.0


class LiveBroker:
    """
    A broker in a process of its own, whose output is read as it comes.

    @ivar ports: of its listeners, in their order, and of HTTP behind them, if it serves that.
    """

    def __init__(self, directory: str, properties: Mapping[str, str], figures: Figures) -> None:
        self._figures = figures
        self._started = threading.Event()
        self.ports: list[int] = []
        changes = [f"{key}={value}" for key, value in properties.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.live", directory, *changes],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._started.wait(ANSWER_SECONDS_MAX) or not self.ports:
            raise AssertionError(f"the broker does not start: {figures.faults}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "PORTS":
                self.ports = json.loads(rest)
                self._started.set()
            elif word == "FIGURES":
                self._figures.broker = json.loads(rest)
            elif word == "WARNINGS":
                self._figures.warnings = json.loads(rest)
            else:
                self._figures.faults.append(f"the broker said: {line.rstrip()}")
        self._started.set()

    def memory(self, name: str) -> int:
        """Bytes, by the name in C{/proc/PID/status}: C{VmRSS} or C{VmHWM}."""
        try:
            for line in (
                Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines()
            ):
                if line.startswith(name + ":"):
                    return int(line.split()[1]) << 10
        except FileNotFoundError:
            pass
        return 0

    def socketCount(self) -> int:
        """How many sockets it has open now."""
        count = 0
        for descriptor in Path(f"/proc/{self._process.pid}/fd").iterdir():
            try:
                count += os.readlink(descriptor).startswith("socket:")
            except FileNotFoundError:  # closed while we looked
                pass
        return count

    def settledSocketCount(self, expected: int) -> int:
        """How many it has open when they have become as few as expected, or do not."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while (count := self.socketCount()) > expected and time.monotonic() < deadline:
            time.sleep(0.05)
        return count

    @property
    def isRunning(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End it in good order; anything else is a fault."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            status: int | str = self._process.wait(ANSWER_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = "that it had to be killed"
        self._reader.join()
        self._process.stdout.close()
        if status:
            self._figures.faults.append(f"the broker ended with status {status}")
        if not self._figures.broker:
            self._figures.faults.append("the broker did not give its figures")
