"""
Mutations of recorded requests at a live broker. The long run, by hand::

    python -m tests.fuzz.mutations --count 10000000

Behind each mutation goes a *probe*, a fetch whose answer is known and no other's. Many such pairs are sent down one connection, which is then
half-closed. The answers of the probes say how far the broker came before a mutation made it close the connection; what came behind that one
is sent again on the next connection. So every mutation is carried out, or found to be none, whatever the ones before it did.

Meanwhile a *watcher* on a connection of its own produces, fetches and asks, and must be answered as if it were alone; what it has produced is there in the end,
in order, once. The broker may log no error and print nothing, its memory stays under a bound, and it ends as one should.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pylogbroker.formats.messageset import MessageSet, encodeMessage
from pylogbroker.wire.framing import FrameDecoder
from pylogbroker.wire.requests import encodeFetch, encodeMultiFetch, encodeOffsets, encodeProduce
from pylogbroker.wire.responses import decodeFetch, decodeMultiFetch, decodeOffsets
from tests.fuzz import golden
from tests.fuzz.mutation import Mutator
from tests.fuzz.record import ROOT, opening, say

SEED = 20110612
BATCH_COUNT = 24
LANE_COUNT = 16
RECEIVE_SIZE = 1 << 16
ANSWER_SECONDS_MAX = 60.0
WATCH_PAUSE_SECONDS = 0.005
READ_BACK_SIZE = 1 << 16
RSS_SIZE_MAX = 192 << 20
"""Bytes of resident memory that the broker may ever have: its 60 MiB at the start, and what L{PROPERTIES} allows it."""

PROBE_TOPIC = "probe"
WATCHED_TOPIC = "watched"
PROPERTIES = {
    "num.partitions": "2",
    "max.partitions": "300",
    "max.socket.request.bytes": str(32 << 20),
    "max.request.memory.bytes": str(32 << 20),
    "max.decompressed.bytes": str(8 << 20),
    "max.decompression.memory.bytes": str(16 << 20),
    "max.unflushed.bytes": str(32 << 20),
    "log.flush.interval": "100",
    "log.default.flush.scheduler.interval.ms": "200",
    "log.file.size": "65536",
    "log.retention.size": "262144",
    "topic.log.retention.size": f"{PROBE_TOPIC}:1000000000,{WATCHED_TOPIC}:1000000000",
    "topic.log.file.size": f"{WATCHED_TOPIC}:100000000",
    "log.cleanup.interval.mins": "1",
}
PROBES = [encodeMessage(b"probe %06d" % index) for index in range(BATCH_COUNT)]
PROBE_SIZE = len(PROBES[0])
PROBE_REQUESTS = [encodeFetch(PROBE_TOPIC, 0, index * PROBE_SIZE, PROBE_SIZE) for index in range(BATCH_COUNT)]
PROBE_ANSWERS = {b"\x00\x00" + probe: index for index, probe in enumerate(PROBES)}


@dataclass
class Figures:
    """
    What came of a run.

    @ivar endedCount: mutations that ended their connection, or swallowed what came behind them.
    @ivar watchCount: rounds of the watcher, three requests each.
    @ivar faults: what must not be; empty for a good run.
    """

    triedCount: int = 0
    connectionCount: int = 0
    endedCount: int = 0
    answerCount: int = 0
    answerSize: int = 0
    watchCount: int = 0
    watchSecondsMax: float = 0.0
    rssSizeAtStart: int = 0
    rssSizeMax: int = 0
    seconds: float = 0.0
    broker: dict[str, int] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class LiveBroker:
    """L{tests.fuzz.live} as a process, whose output is read as it comes."""

    def __init__(self, directory: str, figures: Figures) -> None:
        self._figures = figures
        self._started = threading.Event()
        self.port = 0
        changes = [f"{key}={value}" for key, value in PROPERTIES.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.live", directory, *changes],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._started.wait(ANSWER_SECONDS_MAX) or not self.port:
            raise AssertionError(f"the broker does not start: {figures.faults}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word == "PORT":
                self.port = int(rest)
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
            for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines():
                if line.startswith(name + ":"):
                    return int(line.split()[1]) << 10
        except FileNotFoundError:
            pass
        return 0

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


class Caller:
    """A connection that asks and waits for the answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
        self._decoder = FrameDecoder(2**31 - 1)

    def ask(self, request: bytes) -> bytes:
        """The answer's body."""
        self._socket.sendall(request)
        while (frame := self._decoder.take()) is None:
            data = self._socket.recv(RECEIVE_SIZE)
            if not data:
                raise AssertionError("the broker has closed the connection")
            self._decoder.feed(data)
        return frame

    def close(self) -> None:
        self._socket.close()


class Watcher(threading.Thread):
    """
    The client that must not notice anything.

    @ivar count: rounds so far.
    """

    def __init__(self, broker: LiveBroker, figures: Figures) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._figures = figures
        self._ended = threading.Event()
        self._caller = Caller(broker.port)

    def run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                self._round(self._figures.watchCount)
                self._figures.watchCount += 1
                self._figures.watchSecondsMax = max(self._figures.watchSecondsMax, time.monotonic() - began)
                rss = self._broker.memory("VmRSS")
                if rss > RSS_SIZE_MAX:
                    raise AssertionError(f"the broker has {rss >> 20} MiB in round {self._figures.watchCount}")
                if self._ended.wait(WATCH_PAUSE_SECONDS):
                    break
            self._readBack()
        except Exception as error:
            self._figures.faults.append(f"the watcher, in round {self._figures.watchCount}: {error!r}")
        finally:
            self._caller.close()

    def _round(self, number: int) -> None:
        which, other = number % BATCH_COUNT, (7 * number + 1) % BATCH_COUNT
        data = encodeMessage(b"%08d" % number)
        answer = self._caller.ask(encodeProduce(WATCHED_TOPIC, 0, data) + encodeFetch(PROBE_TOPIC, 0, which * PROBE_SIZE, PROBE_SIZE))
        self._expect(decodeFetch(answer), (0, PROBES[which]))
        answer = self._caller.ask(encodeOffsets("unknown-" + WATCHED_TOPIC, 1, -1, 10))
        self._expect(decodeOffsets(answer), (0, [0]))
        answer = self._caller.ask(encodeMultiFetch([(PROBE_TOPIC, 0, other * PROBE_SIZE, PROBE_SIZE), (PROBE_TOPIC, 2, 0, 10), (PROBE_TOPIC, 0, -5, 10)]))
        self._expect(decodeMultiFetch(answer), [(0, PROBES[other]), (3, b""), (1, b"")])

    def _expect(self, found: object, expected: object) -> None:
        if found != expected:
            raise AssertionError(f"{found!r} instead of {expected!r}")

    def _readBack(self) -> None:
        """Everything that was produced is there, in order, once."""
        size = len(encodeMessage(bytes(8)))
        count = self._figures.watchCount
        untilVisible(self._caller, WATCHED_TOPIC, count * size)
        found: list[bytes] = []
        offset = 0
        while offset < count * size:
            code, data = decodeFetch(self._caller.ask(encodeFetch(WATCHED_TOPIC, 0, offset, READ_BACK_SIZE)))
            messages = list(MessageSet(data, offset).payloads())
            self._expect((code, bool(messages)), (0, True))
            found += [payload for payload, _ in messages]
            offset = messages[-1][1]
        self._expect(found == [b"%08d" % number for number in range(count)], True)

    def finish(self) -> None:
        """Read back, and end."""
        self._ended.set()
        self.join()


def untilVisible(caller: Caller, topic: str, offset: int) -> None:
    """Wait until a partition is visible up to an offset."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while decodeOffsets(caller.ask(encodeOffsets(topic, 0, -1, 1)))[1] != [offset]:
        if time.monotonic() > deadline:
            raise AssertionError(f"{topic} is not visible up to {offset}")
        time.sleep(0.02)


class Lane:
    """
    One connection after the other, with a batch of mutations each.

    @ivar batch: what is under way, the first not known to have been tried yet.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self.batch: list[bytes] = []
        self._open()

    def _open(self) -> None:
        sender = self._sender
        while len(self.batch) < BATCH_COUNT and (mutation := next(sender.mutations, None)) is not None:
            self.batch.append(mutation)
        if not self.batch:
            return
        self._out = memoryview(b"".join(mutation + probe for mutation, probe in zip(self.batch, PROBE_REQUESTS, strict=False)))
        self._decoder = FrameDecoder(2**31 - 1)
        self._answered = -1
        self._lastNews = time.monotonic()
        self._socket = socket.create_connection(("127.0.0.1", sender.port), ANSWER_SECONDS_MAX)
        self._socket.setblocking(False)
        sender.figures.connectionCount += 1
        sender.selector.register(self._socket, selectors.EVENT_READ, self)
        sender.openCount += 1
        self._write()

    def ready(self, events: int) -> None:
        """The socket can be read or written."""
        self._lastNews = time.monotonic()
        if events & selectors.EVENT_WRITE:
            self._write()
        if events & selectors.EVENT_READ and self._socket.fileno() >= 0:
            self._read()

    def _write(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
            self._socket.shutdown(socket.SHUT_WR)
            self._sender.selector.modify(self._socket, selectors.EVENT_READ, self)
        except BlockingIOError:
            self._sender.selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        except OSError:  # closed by the broker: what it has answered may still be there to read
            self._out = memoryview(b"")
            self._sender.selector.modify(self._socket, selectors.EVENT_READ, self)

    def _read(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._closed()
            return
        figures = self._sender.figures
        figures.answerSize += len(data)
        self._decoder.feed(data)
        while (frame := self._decoder.take()) is not None:
            figures.answerCount += 1
            if len(frame) < 2:
                raise AssertionError(f"an answer of {len(frame)} bytes")
            self._answered = max(self._answered, PROBE_ANSWERS.get(frame, -1))

    def _closed(self) -> None:
        """The connection is over: what was answered was tried, and so was the one behind it, which ended it, or swallowed what followed."""
        figures = self._sender.figures
        tried = min(self._answered + 2, len(self.batch))
        if self._answered + 1 < len(self.batch):
            figures.endedCount += 1
        figures.triedCount += tried
        del self.batch[:tried]
        self._sender.selector.unregister(self._socket)
        self._socket.close()
        self._sender.openCount -= 1
        self._open()

    def check(self, now: float) -> None:
        """Nothing for too long is a fault."""
        if self.batch and now - self._lastNews > ANSWER_SECONDS_MAX:
            raise AssertionError(f"no answer, and no end, for {ANSWER_SECONDS_MAX} s to {[mutation.hex() for mutation in self.batch]}")


class Sender:
    """Sends all mutations, over some connections at a time."""

    def __init__(self, port: int, mutations: Iterator[bytes], figures: Figures) -> None:
        self.port = port
        self.mutations = mutations
        self.figures = figures
        self.selector = selectors.DefaultSelector()
        self.openCount = 0

    def run(self, progress: Callable[[], bool]) -> None:
        """
        @param progress: called about once a second; says whether to go on.
        @raise AssertionError: the broker does not do what it must.
        """
        lanes = [Lane(self) for _ in range(LANE_COUNT)]
        look = time.monotonic() + 1
        with self.selector:
            while self.openCount:
                for key, events in self.selector.select(1):
                    key.data.ready(events)
                now = time.monotonic()
                if now > look:
                    look = now + 1
                    for lane in lanes:
                        lane.check(now)
                    if not progress():
                        self.mutations = iter(())


def run(count: int, seed: int, secondsMax: float = float("inf"), progress: Callable[[Figures], None] | None = None) -> Figures:
    """
    A whole run, with a broker of its own.

    @param count: mutations.
    @param secondsMax: stop early after so many.
    @param progress: called about once a second.
    """
    figures = Figures()
    mutator = Mutator(seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pylogbroker-fuzz-") as directory:
        broker = LiveBroker(directory, figures)
        try:
            prepare(broker.port)
            figures.rssSizeAtStart = broker.memory("VmRSS")
            watcher = Watcher(broker, figures)
            watcher.start()

            def goOn() -> bool:
                if progress is not None:
                    progress(figures)
                return broker.isRunning and not figures.faults and time.monotonic() - began < secondsMax

            try:
                Sender(broker.port, (mutator.next() for _ in range(count)), figures).run(goOn)
            except Exception as error:
                figures.faults.append(f"the sender: {error!r}")
            watcher.finish()
            figures.rssSizeMax = broker.memory("VmHWM")
        finally:
            broker.stop()
    figures.seconds = time.monotonic() - began
    if figures.rssSizeMax > RSS_SIZE_MAX:
        figures.faults.append(f"the broker had {figures.rssSizeMax >> 20} MiB")
    if figures.triedCount != count and secondsMax == float("inf") and not figures.faults:
        figures.faults.append(f"{figures.triedCount} were tried")
    return figures


def prepare(port: int) -> None:
    """What the probes will fetch, and the topics of the recorded requests."""
    caller = Caller(port)
    caller.ask(encodeProduce(PROBE_TOPIC, 0, b"".join(PROBES)) + encodeOffsets(PROBE_TOPIC, 0, -1, 1))
    untilVisible(caller, PROBE_TOPIC, BATCH_COUNT * PROBE_SIZE)
    caller.close()
    for _, request in golden.requests():
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as connection:
            try:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(RECEIVE_SIZE):
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass


def describe(figures: Figures) -> Iterator[str]:
    """The figures in lines."""
    for name, value in vars(figures).items():
        if isinstance(value, dict):
            yield f"{name}:"
            yield from (f"  {key}: {each}" for key, each in value.items())
        elif isinstance(value, list):
            yield f"{name}: {len(value)}"
            yield from (f"  {each}" for each in value)
        elif isinstance(value, float):
            yield f"{name}: {value:.3f}"
        else:
            yield f"{name}: {value}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.mutations", description="Throw mutations of recorded requests at a live broker.")
    parser.add_argument("--count", type=int, default=10_000_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the mutations (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop early after so many")
    options = parser.parse_args()
    opening({"seed": str(options.seed), "count": str(options.count)})
    last = [0]

    def progress(figures: Figures) -> None:
        step = max(options.count // 20, 1)
        if figures.triedCount // step > last[0]:
            last[0] = figures.triedCount // step
            say(f"{figures.triedCount} tried, {figures.connectionCount} connections, {figures.watchCount} rounds of the watcher")

    figures = run(options.count, options.seed, options.seconds, progress)
    for line in describe(figures):
        say(line)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
