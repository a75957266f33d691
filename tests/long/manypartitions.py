"""
Thousands of partitions on three brokers::

    python -m tests.long.manypartitions --partitions 10000 --output docs/results/many-partitions.md

The brokers and ZooKeeper are processes; each broker has a replica of each partition and leads a
third. It measures what a partition costs at rest (memory, processor time, open files), and how long
it takes until all partitions are led again after the controller was killed (-9), and until all
replicas are in sync again after a broker was stopped in order, or killed, and started. It prints
what is done while it is done, and writes a page. The exit status is 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pylogbroker.cluster.kafka.metadatalog import (
    BROKER_IDS,
    CONTROLLER,
    HEAD,
    Change,
    Head,
    changePath,
    decodeController,
)
from pylogbroker.cluster.metadataimage import MetadataImage, PartitionImage, decodeRecords
from pylogbroker.programs.localcluster import brokerProperties, freePort
from tests.integration.zookeeperprocess import ROOT, ApacheZookeeperProcess, ZookeeperProcess
from tests.long.telling import tell, tellStart

BROKERS = (1, 2, 3)
PROPERTIES = {
    "default.replication.factor": "3",
    "zk.sessiontimeout.ms": "5000",
    "max.partitions": "100000",
}
IDLE_SECONDS = 20
PROBE_COUNT = 40
"""Partitions to which a producer writes while brokers come and go."""

FAILOVER_SECONDS_MAX = 10.0
RESTART_SECONDS_MAX = 30.0
PARTITION_KIB_MAX = 16.0
DESCRIPTOR_COUNT_MAX = 512 + 200
"""C{max.open.segments}, and what a broker has open anyway."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """
    What a process has used.

    @ivar cpuSeconds: since its start.
    @ivar memory: resident bytes.
    """

    cpuSeconds: float
    memory: int
    descriptorCount: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """As of now."""
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        cpuSeconds = (int(stat[11]) + int(stat[12])) / _TICKS
        return cls(cpuSeconds, pages * os.sysconf("SC_PAGE_SIZE"), descriptors)


class Cluster:
    """Brokers as processes, and what ZooKeeper has of their metadata."""

    def __init__(self, directory: str, zookeeper: ZookeeperProcess) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.ports = {each: freePort() for each in BROKERS}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.client = KazooClient(zookeeper.servers, timeout=30)
        self.image = MetadataImage()
        self.position = 0

    def start(self, number: int) -> None:
        """Blocks until the broker serves."""
        config = f"{self.directory}/broker{number}.properties"
        properties = brokerProperties(
            PROPERTIES, number, self.directory, self.ports[number], self.zookeeper.servers
        )
        Path(config).write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        what = {"config": config, "log": f"{self.directory}/broker{number}.log"}
        self.processes[number] = process = subprocess.Popen(
            [sys.executable, "-m", "pylogbroker.programs.clustermember", json.dumps(what)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert process.stdout is not None
        if not process.stdout.readline():
            raise AssertionError(f"broker {number} did not start; see {what['log']}")

    def usage(self) -> dict[int, Usage]:
        """Of the brokers that run."""
        return {
            number: Usage.of(each.pid)
            for number, each in self.processes.items()
            if each.poll() is None
        }

    def end(self, number: int, how: signal.Signals) -> float:
        """Returns the seconds until the process has ended."""
        process, begin = self.processes[number], time.monotonic()
        process.send_signal(how)
        process.wait(300)
        return time.monotonic() - begin

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        self.client.stop()
        self.zookeeper.stop()

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    # -- the metadata

    def read(self) -> None:
        """Apply the changes up to the head as it is now."""
        head = Head.decode(self.client.get(HEAD)[0])
        while self.position < head.last:
            path = changePath(self.position + 1)
            for record in decodeRecords(Change.decode(path, self.client.get(path)[0]).records):
                self.image.apply(record)
            self.position += 1

    @property
    def partitions(self) -> list[PartitionImage]:
        return [each for topic in self.image.topics.values() for each in topic.partitions]

    def await_(self, isReached: Callable[[], bool], what: str, secondsMax: float = 240) -> float:
        """Returns the seconds until the metadata show something."""
        begin = time.monotonic()
        while True:
            self.read()
            if isReached():
                return time.monotonic() - begin
            if time.monotonic() - begin > secondsMax:
                raise AssertionError(f"{what}: not within {secondsMax} s")
            time.sleep(0.05)

    def isAllInSync(self) -> bool:
        return all(len(each.inSync) == len(BROKERS) for each in self.partitions)

    def isAllLed(self) -> bool:
        return all(each.leader >= 0 for each in self.partitions)

    def controller(self) -> int:
        """The broker that is the controller; -1: none is."""
        try:
            return decodeController(self.client.get(CONTROLLER)[0])
        except NoNodeError:
            return -1


class Probe:
    """
    A producer of one message after another to some partitions; how long it waited is the clients'
    view of a change of leaders.
    """

    def __init__(self, servers: str, places: list[tuple[str, int]]) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": servers, "acks": "all", "retry.backoff.ms": 50, "linger.ms": 0}
        )
        self._places = places
        self._last = dict.fromkeys(places, time.monotonic())
        self.gaps = dict.fromkeys(places, 0.0)
        self.errors: list[str] = []
        self._isEnding = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._isEnding:
            for topic, index in self._places:
                self._producer.produce(topic, b"x" * 100, partition=index, callback=self._sent)
                self._producer.poll(0.01)
        self._producer.flush(30)

    def _sent(self, error: Any, message: Any) -> None:
        place, now = (message.topic(), message.partition()), time.monotonic()
        if error is not None:
            self.errors.append(str(error))
            return
        self.gaps[place] = max(self.gaps[place], now - self._last[place])
        self._last[place] = now

    def end(self) -> list[float]:
        """Returns each partition's longest time between two acknowledgements, in seconds."""
        self._isEnding = True
        self._thread.join()
        return sorted(self.gaps.values())


class Run:
    """One run; C{figures} are what the page has."""

    def __init__(self, cluster: Cluster, partitionCount: int, topicCount: int) -> None:
        self.cluster = cluster
        self.partitionCount = partitionCount
        self.topicCount = topicCount
        self.figures: list[tuple[str, str]] = []
        self.missed: list[str] = []

    def tell(self, what: str, figure: str) -> None:
        """A figure of the page."""
        tell(f"  {what}: {figure} (load {os.getloadavg()[0]:.1f})")
        self.figures.append((what, figure))

    def judge(self, what: str, isMet: bool) -> None:
        """A target."""
        if not isMet:
            self.missed.append(what)
            tell(f"  MISSED: {what}")

    def carryOut(self) -> None:
        """All of it."""
        cluster = self.cluster
        cluster.client.start()
        for number in BROKERS:
            cluster.start(number)
        cluster.await_(lambda: len(cluster.image.brokers) == len(BROKERS), "brokers")
        time.sleep(2)
        before = cluster.usage()
        self._create()
        after = self._idle(before)
        self._stopInOrder(after)
        self._elect()
        self._killController()
        self._elect()

    def _create(self) -> None:
        cluster = self.cluster
        admin = AdminClient({"bootstrap.servers": cluster.servers})
        each = self.partitionCount // self.topicCount
        begin, cpu = time.monotonic(), _cpu(cluster)
        for number in range(self.topicCount):
            topic = NewTopic(f"topic{number}", each, len(BROKERS))
            for made in admin.create_topics([topic], request_timeout=120).values():
                made.result()
        cluster.await_(
            lambda: len(cluster.partitions) == each * self.topicCount and cluster.isAllInSync(),
            "created partitions in sync",
        )
        self.tell("created, s", f"{time.monotonic() - begin:.1f}")
        self.tell("processor time of that, s", _list(_since(cluster, cpu)))

    def _idle(self, before: dict[int, Usage]) -> dict[int, Usage]:
        cluster = self.cluster
        time.sleep(10)
        cpu = _cpu(cluster)
        time.sleep(IDLE_SECONDS)
        used = _since(cluster, cpu)
        after = cluster.usage()
        kib = [
            (after[each].memory - before[each].memory) / 1024 / self.partitionCount
            for each in BROKERS
        ]
        self.tell(
            "memory of a broker before, MiB", _list(before[e].memory / 2**20 for e in BROKERS)
        )
        self.tell("and with all partitions, MiB", _list(after[e].memory / 2**20 for e in BROKERS))
        self.tell("that is for each partition, KiB", _list(kib))
        self.judge(f"{PARTITION_KIB_MAX} KiB a partition", max(kib) <= PARTITION_KIB_MAX)
        self.tell(
            "processor time of an idle broker, %", _list(100 * each / IDLE_SECONDS for each in used)
        )
        counts = [after[each].descriptorCount for each in BROKERS]
        self.tell("open files before", _list((before[e].descriptorCount for e in BROKERS), 0))
        self.tell("open files with all partitions", _list(counts, 0))
        self.judge("open files", max(counts) <= DESCRIPTOR_COUNT_MAX)
        return after

    def _places(self, leader: int) -> list[tuple[str, int]]:
        found = [
            (topic.name, index)
            for topic in self.cluster.image.topics.values()
            for index, each in enumerate(topic.partitions)
            if each.leader == leader
        ]
        return found[:: max(1, len(found) // PROBE_COUNT)][:PROBE_COUNT]

    def _stopInOrder(self, idle: dict[int, Usage]) -> None:
        cluster = self.cluster
        number = next(each for each in BROKERS if each != cluster.controller())
        led = sum(each.leader == number for each in cluster.partitions)
        tell(f"stopping broker {number}, which leads {led} partitions")
        probe = Probe(cluster.servers, self._places(number))
        time.sleep(2)
        cpu = _cpu(cluster)
        seconds = cluster.end(number, signal.SIGTERM)
        self.tell("stopped in order, s", f"{seconds:.1f}")
        cluster.await_(cluster.isAllLed, "leaders after a stop")
        time.sleep(2)
        gaps = probe.end()
        self.tell("longest wait of a producer, median and worst, s", _gaps(gaps))
        self.judge("producers without errors", not probe.errors)
        self.tell("processor time of the others, s", _list(_since(cluster, cpu)))
        cpu = _cpu(cluster)
        self._start(number, "started again")
        self.tell("processor time of the others, s", _list(_since(cluster, cpu)))
        tell(f"  it had {idle[number].memory >> 20} MiB")

    def _start(self, number: int, what: str) -> None:
        cluster, begin = self.cluster, time.monotonic()
        cluster.start(number)
        self.tell(f"{what}: serves after, s", f"{time.monotonic() - begin:.1f}")
        cluster.await_(cluster.isAllInSync, "in sync again")
        seconds = time.monotonic() - begin
        self.tell(f"{what}: all replicas in sync after, s", f"{seconds:.1f}")
        self.judge(f"{what} within {RESTART_SECONDS_MAX} s", seconds <= RESTART_SECONDS_MAX)
        usage = cluster.usage()[number]
        self.tell(
            "its processor time, s, and memory, MiB",
            f"{usage.cpuSeconds:.1f}, {usage.memory >> 20}",
        )

    def _elect(self) -> None:
        cluster, begin = self.cluster, time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "pylogbroker", "partition", "elect"),
                *("--execute", "--timeout-ms", "120000", "--bootstrap-server", cluster.servers),
            ],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        cluster.await_(
            lambda: all(each.leader == each.replicas[0] for each in cluster.partitions),
            "preferred leaders",
        )
        self.tell("preferred leaders elected, s", f"{time.monotonic() - begin:.1f}")

    def _killController(self) -> None:
        cluster = self.cluster
        number = cluster.controller()
        led = sum(each.leader == number for each in cluster.partitions)
        tell(f"killing broker {number}, the controller, which leads {led} partitions")
        probe = Probe(cluster.servers, self._places(number))
        time.sleep(2)
        cpu = _cpu(cluster)
        killed = time.monotonic()
        cluster.end(number, signal.SIGKILL)
        while str(number) in cluster.client.get_children(BROKER_IDS):
            time.sleep(0.02)
        ended = time.monotonic()
        self.tell("killed: the session has ended after, s", f"{ended - killed:.1f}")
        while cluster.controller() in (number, -1):
            time.sleep(0.02)
        self.tell("a new controller, s after that", f"{time.monotonic() - ended:.2f}")
        cluster.await_(
            lambda: (
                cluster.isAllLed() and all(each.leader != number for each in cluster.partitions)
            ),
            "leaders after a kill",
        )
        self.tell(
            "all partitions have another leader, s after that", f"{time.monotonic() - ended:.2f}"
        )
        time.sleep(FAILOVER_SECONDS_MAX)
        waits = [each - (ended - killed) for each in probe.end()]
        self.tell("longest wait of a producer, less the session, median and worst, s", _gaps(waits))
        self.judge("failover within 10 s", max(waits) <= FAILOVER_SECONDS_MAX)
        self.judge("producers without errors", not probe.errors)
        self.tell("processor time of the others, s", _list(_since(cluster, cpu)))
        self._start(number, "started after the kill")


def _cpu(cluster: Cluster) -> dict[int, float]:
    return {number: each.cpuSeconds for number, each in cluster.usage().items()}


def _since(cluster: Cluster, before: dict[int, float]) -> list[float]:
    return [each - before[number] for number, each in _cpu(cluster).items() if number in before]


def _list(figures: Any, digits: int = 1) -> str:
    return ", ".join(f"{each:.{digits}f}" for each in figures)


def _gaps(gaps: list[float]) -> str:
    return f"{gaps[len(gaps) // 2]:.2f}, {gaps[-1]:.2f}"


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.manypartitions")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--apache", action="store_true", help="with Apache's ZooKeeper")
    parser.add_argument("--keep", action="store_true", help="keep the directory")
    parser.add_argument("--output", help="a page to write")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="pylogbroker-partitions-")
    kind = ApacheZookeeperProcess if options.apache else ZookeeperProcess
    tellStart(f"{options.partitions} partitions, {directory}", properties=PROPERTIES)
    cluster = Cluster(directory, kind(f"{directory}/zookeeper").start())
    run = Run(cluster, options.partitions, options.topics)
    try:
        run.carryOut()
    finally:
        cluster.stop()
        if not options.keep:
            shutil.rmtree(directory)
    if options.output:
        _write(options.output, run, "Apache's" if options.apache else "ours")
    return 1 if run.missed else 0


def _write(path: str, run: Run, zookeeper: str) -> None:
    lines = [
        f"Python {platform.python_version()}, {os.cpu_count()} processors, ZooKeeper: {zookeeper}",
        "",
        "| what | broker by broker, or as it says |",
        "| -- | -- |",
        *(f"| {what} | {figure} |" for what, figure in run.figures),
    ]
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
