"""
A broker of a simulated cluster: L{BrokerService} as it is, on files that outlive it, with a client
of the ZooKeeper double; stopped in order, or killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.python.failure import Failure

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.interfaces import IZookeeper
from pylogbroker.records.messageset import MessageSet
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.types import TopicPartition
from tests.simulation.world import DelayedWorker, Process, World

FIRST_PORT = 9092
RESTART_SECONDS = 1.0


class SimulatedBroker:
    """
    @ivar number: its id.
    @ivar isUp: whether a process runs, or starts.
    @ivar isServing: whether clients can connect.
    @ivar session: the process's client of ZooKeeper, once it has asked for one.
    @ivar failures: what went wrong that must not.
    """

    def __init__(
        self,
        world: World,
        newSession: Callable[[], Any],
        number: int,
        properties: Mapping[str, str],
        random: Random,
    ) -> None:
        self.world = world
        self.number = number
        self.isUp = False
        self.isServing = False
        self.session: Any = None
        self.failures: list[str] = []
        self.startCount = 0
        self.fileSystem = PowerCutFileSystem(lambda: int(world.clock.rightNow * 1000))
        self.name = f"broker{number}:{FIRST_PORT + number}"
        self._newSession = newSession
        self._random = random
        self._workerDelayMax = random.choice((0.0, 0.005, 0.05))
        self._settings = BrokerSettings.fromProperties(
            {
                "brokerid": str(number),
                "hostname": f"broker{number}",
                "port": str(FIRST_PORT + number),
                "listen.interface": "",
                "log.dir": "/logs",
                "enable.zookeeper": "true",
                "zk.connect": "double",
                **properties,
            },
            lambda _warning: None,
        )
        self.process: Process | None = None
        self.service: BrokerService | None = None

    def start(self) -> None:
        """
        A process starts; again a moment later when that does not work, as long as nobody stops it.
        """
        self.isUp = True
        self.startCount += 1
        self.process = process = Process(self.world, f"broker{self.number}")
        self.service = service = BrokerService(
            process,
            self._settings,
            fileSystem=self.fileSystem,
            random=Random(self._random.getrandbits(32)),
            worker=lambda _reactor, _name, _count: DelayedWorker(process, self._delay),
            zookeeper=self._makeSession,
        )
        service.start().addCallbacks(
            self._started,
            self._notStarted,
            callbackArgs=(service, process),
            errbackArgs=(service, process),
        )

    def _makeSession(self) -> IZookeeper:
        self.session = session = self._newSession()
        return session

    def _delay(self) -> float:
        return self._random.random() * self._workerDelayMax

    def _started(self, _result: None, service: BrokerService, process: Process) -> None:
        if service is self.service and self.isUp:
            self.isServing = True
            self.world.servers[self.name] = process, service.factories[0].buildProtocol

    def _notStarted(self, _failure: Failure, service: BrokerService, process: Process) -> None:
        """ZooKeeper could not be reached, say."""
        process.kill()
        if service is self.service:
            self.service = None
            self.world.clock.callLater(RESTART_SECONDS, self._startAgain, self.startCount)

    def _startAgain(self, startCount: int) -> None:
        if self.isUp and self.service is None and self.startCount == startCount:
            self.start()

    def stop(self) -> None:
        """In order; it is gone some time later."""
        self.isUp = self.isServing = False
        service, process = self.service, self.process
        if service is not None and process is not None:
            self.world.servers.pop(self.name, None)
            service.stopService().addCallback(self._stopped, service, process)

    def _stopped(self, _result: None, service: BrokerService, process: Process) -> None:
        if service is self.service:
            self.service = None
        process.kill()

    def kill(self) -> None:
        """C{kill -9}."""
        self.isUp = self.isServing = False
        service, process = self.service, self.process
        self.service = None
        self.world.servers.pop(self.name, None)
        if service is not None and process is not None:
            process.kill()
            self.fileSystem.kill()

    @property
    def isGone(self) -> bool:
        """Whether no process runs."""
        return not self.isUp and self.service is None

    def logs(self) -> dict[TopicPartition, list[tuple[bytes, int]]]:
        """(payload, next offset) of each message in the files."""
        assert self.service is not None
        found = {}
        for topicPartition, log in self.service.directory.logs.items():
            data = b"".join(self.fileSystem.contents(segment.path) for segment in log.segments)
            found[topicPartition] = list(MessageSet(data, log.segments[0].baseOffset).payloads())
        return found

    def faults(self) -> list[str]:
        """Partitions that are out of service."""
        if self.service is None:
            return []
        directory = self.service.directory
        return [
            f"broker {self.number}: {error}"
            for error in (
                *directory.failures.values(),
                *(log.failure for log in directory.logs.values() if log.failure),
            )
        ]

    def unflushedCount(self) -> int:
        """Messages that nobody can see yet."""
        return (
            0
            if self.service is None
            else sum(log.unflushedSize for log in self.service.directory.logs.values())
        )

    def rollCount(self) -> int:
        """Segments beyond the first ones."""
        return (
            0
            if self.service is None
            else sum(len(log.segments) - 1 for log in self.service.directory.logs.values())
        )
