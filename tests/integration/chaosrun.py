"""
What the chaos trials of both dialects have in common (L{tests.integration.chaos},
L{tests.integration.kafkachaosrun}): processes that write down what they see, and an agenda of
faults that a seed decides. What comes of a fault depends on the machine, too.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random, SystemRandom
from time import monotonic
from typing import Any, TypeVar

from tests.integration.brokerprocess import ROOT
from tests.integration.chaosjudge import Fault, some

END_SECONDS_MAX = 300.0
REST_SECONDS_MAX = 300.0
PORT_MIN = 15_000

_UNFORESEEN = re.compile(r"Unhandled|nobody foresaw|Traceback|should not have happened|unaccounted")


def steadyPort() -> int:
    """
    A free port of the loopback interface, that no client is given while its server
    is away: one below those that the system gives to clients.
    """
    random = SystemRandom()
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    while True:
        port = random.randrange(PORT_MIN, max(low, PORT_MIN + 5_000))
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class BrokenError(AssertionError):
    """The cluster has broken a promise."""


class Member:
    """
    A process that runs a program of a module.

    @ivar group: of a consumer.
    @ivar isLeaving: it was told to end.
    @ivar isStopped: by C{SIGSTOP}.
    @ivar record: what it sees.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        name: str,
        options: dict[str, Any],
        group: str = "",
        command: Sequence[str] = (sys.executable, "-m"),
    ) -> None:
        """
        @param folder: of its record and its log.
        @param options: of the program, in JSON.
        @param command: runs a module; it must become that process.
        """
        self.name = name
        self.group = group
        self.isLeaving = False
        self.isStopped = False
        self.record = folder / f"{name}.record"
        self.log = folder / f"{name}.log"
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("COVERAGE_PROCESS")
        }
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        )
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *command,
                    module,
                    json.dumps({**options, "name": name, "record": str(self.record)}),
                ],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def isHere(self) -> bool:
        """Whether it runs and was not told to end."""
        return not self.isLeaving and self.isRunning

    @property
    def isRunning(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """It may have ended already."""
        self._process.send_signal(number)

    def leave(self) -> None:
        """Tell it to end."""
        self.isLeaving = True
        self.signal(signal.SIGTERM)

    def tell(self, command: dict[str, Any]) -> None:
        """Write a line of JSON to its standard input; it may have ended already."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def end(self, secondsMax: float) -> int | None:
        """Wait for it; returns the status, L{None} if it had to be killed."""
        try:
            return self._process.wait(secondsMax)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """C{kill -9}."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def lines(self, *beginnings: str) -> Iterator[list[str]]:
        """
        What it has written so far: whole lines, split.

        @param beginnings: the words that lines begin with; none: all lines.
        """
        if not self.record.exists():
            return
        wanted = tuple(f"{word} " for word in beginnings) or ""
        for line in self.record.read_text(encoding="utf-8").splitlines():
            if line.startswith(wanted):
                yield line.split(" ")


T = TypeVar("T", bound="ChaosRun")


def runInFolder(name: str, seed: int, makeRun: Callable[[str, int], T]) -> T:
    """
    A run of the gate, in a folder that is named, and stays where the run does not hold.

    @param makeRun: of the folder and the seed.
    @raise BrokenError: as L{ChaosRun.run}.
    """
    folder = tempfile.mkdtemp(prefix=f"pylogbroker-{name}-")
    sys.stdout.write(f"[seed {seed}, in {folder} until it holds")
    made = makeRun(folder, seed)
    try:
        made.run()
    finally:
        sys.stdout.write(f": {made.figures}] ")
    shutil.rmtree(folder)
    return made


class ChaosRun(ABC):
    """
    One run: what it does is a subclass's.

    @ivar figures: what it was made of; also when it fails.
    """

    figures: Any

    def __init__(
        self,
        folder: str,
        seed: int,
        seconds: float,
        tell: Callable[[str], None] = lambda text: None,
        slowness: float = 1.0,
    ) -> None:
        """
        @param folder: empty; everything is in it.
        @param seconds: how long faults come.
        @param tell: called with a sentence for what is done.
        @param slowness: how many times slower than a quiet machine this one may be: a factor of all
            times within which something must have happened.
        """
        self._folder = Path(folder)
        self._seconds = seconds
        self._tell = tell
        self._slowness = slowness
        self._random = Random(seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0
        self._faults: list[Fault] = []
        self._counts: Counter[str] = Counter()
        self._broken: list[str] = []

    def run(self) -> None:
        """
        @raise BrokenError: names what is wrong.
        """
        begun = monotonic()
        try:
            self._carryOut()
        finally:
            self._clear()
            records = [
                f"{fault.begin:.3f} {fault.end:.3f} {fault.kind} {fault.target}\n"
                for fault in self._faults
            ]
            (self._folder / "faults").write_text("".join(records), encoding="utf-8")
            self._end(monotonic() - begun, dict(sorted(self._counts.items())))
        if self._broken:
            raise BrokenError("\n".join(self._broken))

    @abstractmethod
    def _carryOut(self) -> None:
        """Begin, disturb, end, and judge."""

    @abstractmethod
    def _clear(self) -> None:
        """End all processes that are left."""

    @abstractmethod
    def _end(self, seconds: float, faults: dict[str, int]) -> None:
        """
        Complete the figures.

        @param faults: how many there were, by kind.
        """

    def _pause(self, seconds: float) -> None:
        threading.Event().wait(max(seconds, 0))

    def _until(self, condition: Callable[[], bool], what: str, secondsMax: float) -> None:
        deadline = monotonic() + secondsMax
        while not condition():
            if monotonic() > deadline:
                raise BrokenError(f"not within {secondsMax} s: {what}")
            self._pause(0.05)

    # -- faults

    def _disturb(self, acts: Sequence[Callable[[], None]]) -> None:
        """Do these in changing orders, each at least once, while faults are to come."""
        deadline = monotonic() + self._seconds
        deck: list[Callable[[], None]] = []
        gap = min(3.0, self._seconds / (len(acts) + 3))
        rounds = 0
        while True:
            self._work(monotonic() + self._random.uniform(0.3, 1.7) * gap)
            if monotonic() > deadline and (rounds > 1 or not deck):  # each kind came at least once
                return
            if not deck:
                rounds += 1
                deck = [*acts]
                self._random.shuffle(deck)
            deck.pop()()

    def _again(self, act: Callable[[], None]) -> None:
        """It cannot be done now."""
        self._later(1, act)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._agenda, (monotonic() + seconds, self._turn, act))

    def _work(self, until: float) -> None:
        """Do what is due up to then, and wait."""
        while self._agenda and self._agenda[0][0] <= until:
            self._pause(self._agenda[0][0] - monotonic())
            while self._agenda and self._agenda[0][0] <= monotonic():
                heapq.heappop(self._agenda)[2]()
        self._pause(until - monotonic())

    def _note(self, kind: str, target: str, begin: float, what: str = "") -> None:
        self._faults.append(Fault(kind, target, begin, monotonic()))
        self._counts[what or kind] += 1
        self._tell(f"{what or kind} {target}")

    def _stop(self, member: Member, seconds: float) -> None:
        """Stop a process, and let it go on later."""
        begin = monotonic()
        member.isStopped = True
        member.signal(signal.SIGSTOP)

        def goOn() -> None:
            member.signal(signal.SIGCONT)
            member.isStopped = False
            self._note("stop", member.name, begin, "stop member")

        self._later(seconds, goOn)

    def _finishAgenda(self) -> None:
        """Undo what is not undone yet."""
        deadline = monotonic() + REST_SECONDS_MAX
        while self._agenda and monotonic() < deadline:
            self._work(self._agenda[0][0])

    # -- the books

    def _endWell(self, member: Member, allowed: Sequence[int] = (0,)) -> None:
        status = member.end(END_SECONDS_MAX)
        if status not in allowed:
            self._broken.append(
                f"{member.name} has not ended well ({status}): {member.log.read_text()[-2000:]}"
            )

    def _judgeLogFiles(self, members: Sequence[Member]) -> None:
        """Nothing unexpected is in the logs of the processes, and none has met trouble."""
        for member in members:
            self._broken += some(
                f"{member.name} has met trouble",
                (" ".join(words[2:]) for words in member.lines("trouble")),
            )
        for path in sorted(self._folder.glob("*.log")):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            self._broken += some(
                f"{path.name}: nobody foresaw", (line for line in lines if _UNFORESEEN.search(line))
            )
