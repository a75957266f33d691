"""
What is measured. A scenario knows how to run itself once, on the yardstick or on the broker, and
gives figures by name; what is made of them, L{tests.benchmarks.report} knows.

Produce runs get a server and a folder of their own each, so that none finds the other's files.
Fetch runs take turns on two servers that stay up, and read the same file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from pylogbroker.records.messageset import encodeSet
from tests.benchmarks.machine import warmMemory
from tests.benchmarks.native import Programs
from tests.benchmarks.servers import Broker, Server, Yardstick

TOPIC = "bench"
COLD_TOPIC = "cold"
YARDSTICK, BROKER = SIDES = ("yardstick", "broker")
NONE, GZIP = 0, 1
MESSAGE_SIZE = 210
WARM_UP_MESSAGE_COUNT = 20_000
HOT_SIZE = 64 << 20
HOT_FETCH_SIZE = 200_000
HOT_PAUSE_US = 1000
COLD_FETCH_SIZE = 1_000_000
PROBE_STEP_SIZE = 64 << 10

NEIGHBOUR_PAUSE_US = 5000
FETCH_TURN_COUNT = 6

Figures = dict[str, float]


class Neighbour(NamedTuple):
    """
    Who is there beside a hot consumer.

    @ivar title: for people.
    @ivar pauseUs: microseconds between its fetches; L{None}: nobody is there.
    @ivar cachedName: its data were dropped from the page cache, and this is the neighbour that does
        the same with cached ones; L{None}: it is that one.
    """

    name: str
    title: str
    pauseUs: int | None
    cachedName: str | None = None


_ALONE = Neighbour("alone", "alone", None)
_WARM = Neighbour("warm", "beside 1 MB of cached data every 5 ms", NEIGHBOUR_PAUSE_US)
_FAST_WARM = Neighbour("fastWarm", "beside cached data without a pause", 0)
_COLD = Neighbour("cold", "beside 1 MB of uncached data every 5 ms", NEIGHBOUR_PAUSE_US, "warm")
_FAST_COLD = Neighbour("fastCold", "beside uncached data without a pause", 0, "fastWarm")

NEIGHBOURS = {
    YARDSTICK: (_ALONE, _WARM, _FAST_WARM),
    BROKER: (_ALONE, _WARM, _COLD, _FAST_WARM, _FAST_COLD),
}


@dataclass(frozen=True)
class MatchCost:
    """
    How much of everything: the long form or the short one.

    @ivar messageCount: of a produce run.
    @ivar fetchSize: bytes of a fetch run.
    @ivar fileSize: bytes of the file that is fetched from.
    @ivar coldSize: bytes of the file that is fetched uncached.
    @ivar hotSeconds: how long each part of the hot consumer's run takes.
    @ivar visitCount: how often a thousand visitors come.
    """

    messageCount: int
    fetchSize: int
    fileSize: int
    coldSize: int
    hotSeconds: float
    visitCount: int


LONG = MatchCost(800_000, 3_000_000_000, 256 << 20, 1 << 30, 2.0, 3)
SHORT = MatchCost(200_000, 1_500_000_000, 128 << 20, 256 << 20, 0.7, 1)


class Stage:
    """
    Where scenarios are run.

    @ivar programs: the C programs.
    @ivar effort: how much of everything.
    """

    def __init__(
        self, programs: Programs, folder: Path, effort: MatchCost, pythonPath: Sequence[Path]
    ) -> None:
        """
        @param folder: for data; emptied by whoever gave it.
        @param pythonPath: of the broker, besides the usual.
        """
        self.programs = programs
        self.effort = effort
        self._folder = folder
        self._pythonPath = pythonPath
        self._stack = ExitStack()
        self._serving: dict[str, Server] = {}

    def receiver(self, side: str, partitionCount: int) -> tuple[Server, Path]:
        """A new server that takes messages in, and where it puts them."""
        directory = self._folder / "received"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        if side == YARDSTICK:
            return Yardstick(self.programs, "receive", directory), directory
        return (
            Broker(
                self._folder, directory, {"num.partitions": str(partitionCount)}, self._pythonPath
            ),
            directory,
        )

    def sender(self, side: str) -> Server:
        """The server that answers fetches; it stays up."""
        if not self._serving:
            self._startSenders()
        return self._serving[side]

    def _startSenders(self) -> None:
        directory = self._folder / "sent"
        for topic, size in ((TOPIC, self.effort.fileSize), (COLD_TOPIC, self.effort.coldSize)):
            _writeSegment(self.segment(topic), size)
        (directory / ".kafka_cleanshutdown").touch()
        yardstick = self._stack.enter_context(
            Yardstick(self.programs, "serve", self.segment(TOPIC))
        )
        broker = self._stack.enter_context(Broker(self._folder, directory, {}, self._pythonPath))
        self._serving = {YARDSTICK: yardstick, BROKER: broker}

    def segment(self, topic: str) -> Path:
        """The file that is fetched from."""
        return self._folder / "sent" / f"{topic}-0" / f"{0:020}.kafka"

    def close(self) -> None:
        """Stop the servers that stayed up."""
        self._stack.close()
        self._serving = {}


def _writeSegment(path: Path, size: int) -> None:
    """A segment as a broker leaves it, on the disk and in the page cache."""
    path.parent.mkdir(parents=True)
    block = encodeSet([bytes([number % 256]) * 200 for number in range(1000)])
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


class Scenario(Protocol):
    """Something to measure."""

    @property
    def name(self) -> str: ...

    @property
    def sides(self) -> tuple[str, ...]: ...

    @property
    def turnCount(self) -> int:
        """How often the sides take turns in a round."""
        ...

    def run(self, stage: Stage, side: str) -> Figures: ...


@dataclass(frozen=True)
class ProduceScenario:
    """
    Messages of 200 bytes, pipelined.

    @ivar batch: messages in a request.
    @ivar target: what the ratio of CPU may be at most; L{None}: none was set.
    """

    batch: int
    connectionCount: int = 1
    partitionCount: int = 1
    codec: int = NONE
    target: float | None = None
    sides = SIDES
    turnCount = 1

    @property
    def name(self) -> str:
        codec = "gzip" if self.codec else "none"
        return f"produce-b{self.batch}-c{self.connectionCount}-p{self.partitionCount}-{codec}"

    def _messageCount(self, effort: MatchCost) -> int:
        """Fewer where each is dear: requests of one message that must be opened."""
        if self.codec == GZIP and self.batch == 1:
            return effort.messageCount // 10
        if self.codec == GZIP or self.partitionCount * self.connectionCount > 1:
            return effort.messageCount // 2
        return effort.messageCount

    def run(self, stage: Stage, side: str) -> Figures:
        server, directory = stage.receiver(side, self.partitionCount)
        count = self._messageCount(stage.effort)
        rest = self.connectionCount, self.partitionCount, self.codec
        with server:
            warmUpCount = (
                max(WARM_UP_MESSAGE_COUNT, self.batch * self.connectionCount)
                if count > WARM_UP_MESSAGE_COUNT
                else count
            )
            stage.programs.runLoad("produce", server.port, TOPIC, self.batch, warmUpCount, *rest)
            warmMemory((256 << 20) + 2 * count * MESSAGE_SIZE)
            before = server.cpuSeconds()
            load = stage.programs.runLoad("produce", server.port, TOPIC, self.batch, count, *rest)
            cpu = server.cpuSeconds() - before
        shutil.rmtree(directory)
        return {
            "cpuUs": cpu / load["messages"] * 1e6,
            "rate": load["messages"] / load["seconds"],
            "loadCpuUs": load["cpu"] / load["messages"] * 1e6,
        }


@dataclass(frozen=True)
class FetchScenario:
    """
    Fetches of data in the page cache. Rates by the clock are what is compared, so the sides take
    turns quickly.

    @ivar size: bytes of a fetch.
    @ivar target: what the share of the yardstick's MB/s must be at least; L{None}: none was set.
    """

    size: int
    consumerCount: int = 1
    target: float | None = None
    sides = SIDES
    turnCount = FETCH_TURN_COUNT

    @property
    def name(self) -> str:
        size = f"{self.size // 1000}KB" if self.size < 1_000_000 else f"{self.size // 1_000_000}MB"
        return f"fetch-{size}-c{self.consumerCount}"

    def run(self, stage: Stage, side: str) -> Figures:
        server = stage.sender(side)
        end = stage.segment(TOPIC).stat().st_size
        before = server.cpuSeconds()
        load = stage.programs.runLoad(
            "fetch",
            server.port,
            TOPIC,
            self.size,
            stage.effort.fetchSize // self.turnCount,
            end,
            self.consumerCount,
            0,
        )
        cpu = server.cpuSeconds() - before
        return {"cpuPerGB": cpu / load["bytes"] * 1e9, "rate": load["bytes"] / load["seconds"]}


@dataclass(frozen=True)
class HotScenario:
    """
    The latency of one consumer of cached data: alone, and beside a neighbour whose data are cached
    or must come from the disk, and who takes a pause after each fetch or does not. Nothing cold for
    the yardstick: it would stand still for the disk, and is not asked to do better.
    """

    name: str = "hot-beside-cold"
    target: float = 2.0
    sides = SIDES
    turnCount = 1

    def run(self, stage: Stage, side: str) -> Figures:
        port = stage.sender(side).port
        figures: Figures = {}
        for neighbour in NEIGHBOURS[side]:
            path = stage.segment(COLD_TOPIC if side == BROKER else TOPIC)
            if neighbour.cachedName:
                figures["cachedShare"] = max(figures.get("cachedShare", 0.0), dropCached(path))
            with ThreadPoolExecutor(1) as pool:
                hot = pool.submit(
                    stage.programs.runLoad,
                    "hot",
                    port,
                    TOPIC,
                    HOT_FETCH_SIZE,
                    HOT_SIZE,
                    stage.effort.hotSeconds,
                    HOT_PAUSE_US,
                )
                rate = self._accompany(stage, port, neighbour, path, hot)
            found = hot.result()
            figures.update(
                {f"{neighbour.name}{what}": found[what] for what in ("p50", "p99", "worst")}
            )
            if rate:
                figures[f"{neighbour.name}Rate"] = rate
        return figures

    def _accompany(
        self,
        stage: Stage,
        port: int,
        neighbour: Neighbour,
        path: Path,
        hot: Future[dict[str, float]],
    ) -> float:
        """
        Keep the neighbour going until the hot consumer has ended. Returns its bytes per second; 0
        when there is none.
        """
        seconds = size = 0.0
        end = path.stat().st_size
        while neighbour.pauseUs is not None and not hot.done():
            if neighbour.cachedName and size:
                dropCached(path)
            load = stage.programs.runLoad(
                "fetch",
                port,
                COLD_TOPIC,
                COLD_FETCH_SIZE,
                end - COLD_FETCH_SIZE,
                end,
                1,
                neighbour.pauseUs,
            )
            seconds += load["seconds"]
            size += load["bytes"]
        return size / seconds if seconds else 0.0


def dropCached(path: Path) -> float:
    """
    Let the system forget a file that is on the disk.

    @return: the share of it that is in the page cache all the same, by sample; 1.0 where the file
        system cannot say.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        size = os.fstat(descriptor).st_size
        found = 0
        positions = range(PROBE_STEP_SIZE // 2, size, 64 * PROBE_STEP_SIZE)
        for position in positions:
            try:
                os.preadv(descriptor, (bytearray(1),), position, os.RWF_NOWAIT)
                found += 1
            except BlockingIOError:
                pass
        os.posix_fadvise(
            descriptor, 0, 0, os.POSIX_FADV_DONTNEED
        )  # asking may have begun a read-ahead
        return found / len(positions)
    except OSError:
        return 1.0
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class VisitScenario:
    """A thousand connections, each with one small request, then closed by the server."""

    visitorCount: int = 1000
    sides = SIDES
    turnCount = 1

    @property
    def name(self) -> str:
        return f"visit-{self.visitorCount}"

    def run(self, stage: Stage, side: str) -> Figures:
        server, directory = stage.receiver(side, 1)
        with server:
            stage.programs.runLoad("visit", server.port, TOPIC, 10)
            before = server.cpuSeconds()
            loads = [
                stage.programs.runLoad("visit", server.port, TOPIC, self.visitorCount)
                for _ in range(stage.effort.visitCount)
            ]
            cpu = server.cpuSeconds() - before
        shutil.rmtree(directory)
        count = sum(load["visits"] for load in loads)
        seconds = sum(load["seconds"] for load in loads)
        connecting = sum(load["connecting"] for load in loads)
        return {
            "cpuUs": cpu / count * 1e6,
            "ms": seconds / len(loads) * 1e3,
            "connectingMs": connecting / len(loads) * 1e3,
        }


TARGETS = {1: 4.5, 50: 2.6, 1000: 2.4}
"""Ratio of CPU at most, by messages in a request; one connection, one partition, not compressed."""

FETCH_TARGETS = {200_000: 0.65, 1_000_000: 0.75}
"""Share of the yardstick's MB/s at least, by bytes of a fetch; one consumer."""

ALL: list[Scenario] = [
    *(
        ProduceScenario(
            batch,
            connectionCount,
            partitionCount,
            codec,
            TARGETS.get(batch) if connectionCount == partitionCount == 1 and not codec else None,
        )
        for codec in (NONE, GZIP)
        for connectionCount, partitionCount in ((1, 1), (1, 50), (100, 1), (100, 50))
        for batch in (1, 50, 200, 1000)
    ),
    *(
        FetchScenario(size, count, FETCH_TARGETS.get(size) if count == 1 else None)
        for count in (1, 10)
        for size in (200_000, 1_000_000, 10_000_000)
    ),
    HotScenario(),
    VisitScenario(),
]

SHORT_NAMES = {
    *(f"produce-b{batch}-c1-p1-none" for batch in (1, 50, 200, 1000)),
    "produce-b50-c100-p50-none",
    "produce-b200-c1-p1-gzip",
    "fetch-200KB-c1",
    "fetch-1MB-c1",
    "fetch-10MB-c1",
    "fetch-1MB-c10",
    "hot-beside-cold",
    "visit-1000",
}
"""What the short form runs."""
