"""
Three brokers as processes, of Apache Kafka and of ours, with what is measured of them: as installed
and as shipped, but for what a test names.

A broker of Apache's is a controller, too (KRaft's combined mode): three processes in all. Ours have
a ZooKeeper server of ours, whose processor time is counted by itself.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from tests.benchmarks.kafka.servers import APACHE_JAVA, APACHE_SETTINGS, Ours
from tests.benchmarks.servers import cpuSeconds
from tests.integration.zookeeperprocess import ZookeeperProcess
from tests.oracle.apachebroker import apacheProcess, fetchKafka, freePort

BROKERS = (1, 2, 3)
REPLICATION = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
}
TICK_MS = 100
_STOP_SECONDS_MAX = 60


class IBroker(Protocol):
    """A broker that runs."""

    process: subprocess.Popen[Any]
    port: int


class Cluster:
    """
    Brokers, by id; subclasses start one.

    @ivar running: those that run.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        """
        @param folder: of all data and files; it is made.
        @param settings: of all brokers, behind what is installed.
        """
        folder.mkdir(parents=True)
        self.folder = folder
        self.settings = settings
        self.ports = {each: freePort() for each in BROKERS}
        self.running: dict[int, IBroker] = {}
        self._stacks: dict[int, ExitStack] = {}

    def _broker(self, number: int) -> AbstractContextManager[IBroker]:
        raise NotImplementedError

    def start(self) -> None:
        """All that do not run, at the same time; returns when they serve."""
        missing = [each for each in BROKERS if each not in self.running]
        with ThreadPoolExecutor(len(BROKERS)) as threads:
            list(threads.map(self.startBroker, missing))

    def startBroker(self, number: int) -> None:
        """With the port and the data that it had."""
        stack = ExitStack()
        self.running[number] = stack.enter_context(self._broker(number))
        self._stacks[number] = stack

    def end(self, number: int, how: signal.Signals) -> None:
        """End a broker by a signal; returns when the process has ended."""
        process = self.running.pop(number).process
        process.send_signal(how)
        process.wait(_STOP_SECONDS_MAX)
        self._stacks.pop(number).close()

    def brokerSeconds(self) -> dict[int, float]:
        """Processor time of each broker, so far."""
        return {number: cpuSeconds(each.process.pid) for number, each in self.running.items()}

    def otherSeconds(self) -> float:
        """Processor time of what coordinates them, where that is a process of its own."""
        return 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._stacks):
            self.running.pop(number)
            self._stacks.pop(number).close()


class _ApacheBroker:
    def __init__(self, process: subprocess.Popen[Any], port: int) -> None:
        self.process = process
        self.port = port


class ApacheCluster(Cluster):
    """Apache Kafka's brokers, each of them a controller, too."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._controllers = {each: freePort() for each in BROKERS}

    @contextmanager
    def _broker(self, number: int) -> Iterator[IBroker]:
        folder = self.folder / f"broker{number}"
        folder.mkdir(exist_ok=True)
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in self._controllers.items())
        settings = {
            **APACHE_SETTINGS,
            **REPLICATION,
            "node.id": str(number),
            "controller.quorum.voters": voters,
            **self.settings,
        }
        ports = self.ports[number], self._controllers[number]
        with apacheProcess(fetchKafka(), settings, folder, APACHE_JAVA, ports=ports) as found:
            process, (_, port) = found
            yield _ApacheBroker(process, port)


class _Zookeeper(ZookeeperProcess):
    """With short ticks: a session ends up to two of them late."""

    def _arguments(self) -> list[str]:
        return [*super()._arguments()[:-1], str(TICK_MS)]


class OurCluster(Cluster):
    """Our brokers, and a ZooKeeper server of ours."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._zookeeper = _Zookeeper(str(folder / "zookeeper"))

    def start(self) -> None:
        if not self.running:
            self._zookeeper.start()
        super().start()

    @contextmanager
    def _broker(self, number: int) -> Iterator[IBroker]:
        settings = {
            **REPLICATION,
            "enable.zookeeper": "true",
            "zk.connect": self._zookeeper.servers,
            "metadata.store": "zookeeper",
            "brokerid": str(number),
            "hostname": "127.0.0.1",
            "port": str(self.ports[number]),
            **self.settings,
        }
        with Ours(self.folder / f"broker{number}", settings) as broker:
            yield broker

    def otherSeconds(self) -> float:
        return cpuSeconds(self._zookeeper.pid)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._zookeeper.stop()
