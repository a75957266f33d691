"""
A broker of a simulated cluster: L{BrokerService} as programs wire it, on files that outlive it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.interfaces import IZookeeper
from pylogbroker.programs.interbroker import interBrokerClients
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.simulatednetwork import Network, Process
from pylogbroker.types import TopicPartition
from tests.simulation.cluster.zookeeper import SimulatedZookeeper, SimulatedZookeeperClient

PORT = 9092
DIRECTORY = "/logs"
RESTART_SECONDS = 0.5
SESSION_MS = 2_000


def hostOf(brokerId: int) -> str:
    """The address of a broker."""
    return f"192.0.2.{brokerId}"


class UnorderedWorker:
    """
    An L{IWorker} whose jobs are done some time later, those of several threads in any order.
    """

    def __init__(self, process: Process, threadCount: int, delay: Callable[[], float]) -> None:
        self._process = process
        self._threadCount = threadCount
        self._delay = delay
        self._jobs: dict[int, tuple[Callable[[], Any], Deferred[Any]]] = {}
        self._number = 0
        self._waiting: list[int] = []
        self._busyCount = 0

    def submit(self, work: Callable[[], Any]) -> Deferred[Any]:
        done: Deferred[Any] = Deferred()
        if self._process.isDead:
            return done
        self._number += 1
        self._jobs[self._number] = work, done
        self._waiting.append(self._number)
        self._begin()
        return done

    def _begin(self) -> None:
        while self._waiting and self._busyCount < self._threadCount:
            self._busyCount += 1
            self._process.callLater(self._delay(), self._perform, self._waiting.pop(0))

    def _perform(self, number: int) -> None:
        self._busyCount -= 1
        found = self._jobs.pop(number, None)
        if found is not None:
            work, done = found
            result = maybeDeferred(work)
            if self._process.mustHalt():
                result.addErrback(lambda _failure: None)  # the power is off
                return
            result.chainDeferred(done)
        self._begin()

    def start(self) -> None:
        """Start nothing."""

    def stop(self) -> None:
        """Do the remaining jobs."""
        while self._jobs:
            work, done = self._jobs.pop(next(iter(self._jobs)))
            maybeDeferred(work).chainDeferred(done)
        self._waiting.clear()


class SimulatedBroker:
    """
    @ivar brokerId: its id.
    @ivar isWanted: whether it is to run.
    @ivar isServing: whether it has started.
    @ivar process: the one that runs, or the last one.
    @ivar service: of the process; L{None}: none runs.
    @ivar session: the process's client of ZooKeeper.
    """

    def __init__(
        self,
        network: Network,
        zookeeper: SimulatedZookeeper,
        brokerId: int,
        properties: Mapping[str, str],
        random: Random,
        say: Callable[[str], None],
    ) -> None:
        self.brokerId = brokerId
        self.host = hostOf(brokerId)
        self.isWanted = self.isServing = False
        self.rate = 1.0
        self.ahead = 0.0
        self.delayMax = 0.0
        self.startCount = 0
        self.process: Process | None = None
        self.service: BrokerService | None = None
        self.session: SimulatedZookeeperClient | None = None
        self.fileSystem = PowerCutFileSystem()
        self.onStarting: Callable[[SimulatedBroker], None] = lambda broker: None
        self._network = network
        self._zookeeper = zookeeper
        self._random = random
        self._say = say
        self._settings = BrokerSettings.fromProperties(
            {
                "brokerid": str(brokerId),
                "hostname": self.host,
                "port": str(PORT),
                "listen.interface": self.host,
                "log.dir": DIRECTORY,
                "enable.zookeeper": "true",
                "zk.connect": "zookeeper",
                "metadata.store": "zookeeper",
                **properties,
            },
            lambda _warning: None,
        )

    def __repr__(self) -> str:
        return f"broker {self.brokerId}"

    @property
    def counts(self) -> Counter[str]:
        """Of the world."""
        return self._network.counts

    @property
    def isUp(self) -> bool:
        """Whether a process runs, or starts."""
        return self.service is not None

    def start(self) -> None:
        """Start a process; again a moment later when that does not work."""
        self.isWanted = True
        self.startCount += 1
        self.process = process = Process(
            self._network, f"{self} #{self.startCount}", self.host, self.rate, self.ahead
        )
        self.fileSystem.clock = lambda: int(process.seconds() * 1000)
        process.isAccepting = False  # as a port that is not read from
        process.mustHalt = lambda: self.fileSystem._isOff
        self.service = service = BrokerService(
            process,
            self._settings,
            fileSystem=self.fileSystem,
            random=Random(self._random.getrandbits(32)),
            worker=self._makeWorker,
            zookeeper=self._makeSession,
            connectBroker=interBrokerClients(
                process, self._settings, random=Random(self._random.getrandbits(32)).random
            ),
        )
        self.onStarting(self)
        service.start().addCallbacks(
            self._started, self._notStarted, callbackArgs=(service,), errbackArgs=(service,)
        )

    def _makeWorker(self, process: Process, name: str, threadCount: int) -> UnorderedWorker:
        return UnorderedWorker(process, threadCount, self._delay)

    def _delay(self) -> float:
        return self._random.random() * self.delayMax

    def _makeSession(self) -> IZookeeper:
        assert self.process is not None
        self.session = self._zookeeper.clientOf(self.process, SESSION_MS)
        return self.session

    def _started(self, _result: None, service: BrokerService) -> None:
        if service is self.service:
            self._say(f"{self.process} serves")
            self.isServing = True
            assert self.process is not None
            self.process.accept()

    def _notStarted(self, failure: Failure, service: BrokerService) -> None:
        if service is self.service:
            self._say(f"{self.process} does not start: {failure.getErrorMessage()}")
            self.counts["starts failed"] += 1
            self._end(isTold=True)
            self._network.scheduler.after(RESTART_SECONDS, self._startAgain, self.startCount)

    def _startAgain(self, startCount: int) -> None:
        if self.isWanted and self.service is None and self.startCount == startCount:
            self.start()

    def stop(self) -> None:
        """In order; it is gone some time later."""
        self.isWanted = self.isServing = False
        service, process = self.service, self.process
        assert service is not None and process is not None
        service.stopService().addCallback(self._stopped, service)

    def _stopped(self, _result: None, service: BrokerService) -> None:
        if service is self.service:
            self._say(f"{self.process} has stopped")
            self._end(isTold=True)

    def kill(self) -> None:
        """C{kill -9}."""
        self.isWanted = False
        if self.service is not None:
            self._end(isTold=True)
        self.fileSystem.kill()

    def cutPower(self) -> None:
        """The machine is gone, with what was not synced."""
        self.isWanted = False
        if self.service is not None:
            self._end(isTold=False)
        survives = self._random if self._random.random() < 0.5 else None
        self.fileSystem.cutPower(survives)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.fileSystem = PowerCutFileSystem()

    def _end(self, isTold: bool) -> None:
        self.isServing = False
        self.service = None
        assert self.process is not None
        if self.session is not None:
            self._zookeeper.sever(self.session)
        self.process.kill(isTold)

    def pause(self) -> None:
        """C{SIGSTOP}: its session ends if it stays so."""
        assert self.process is not None
        self.process.pause()
        if self.session is not None:
            self._zookeeper.sever(self.session)

    def resume(self) -> None:
        """C{SIGCONT}."""
        assert self.process is not None
        if self.process.isPaused:
            self.process.resume()
            self.noticeIn(self._random.random() * 0.3)

    def sever(self) -> None:
        """It loses its connection to ZooKeeper, and does not notice at once."""
        if self.session is not None:
            self._zookeeper.sever(self.session)
            self.noticeIn(self._random.random() * SESSION_MS / 1500)

    def noticeIn(self, seconds: float) -> None:
        """Its client of ZooKeeper notices that it was cut off."""
        session, process = self.session, self.process
        if session is not None and process is not None:
            process.callLater(seconds, session.noticed)

    def log(self, topic: str, partition: int) -> BatchLog | None:
        """A partition's log, if the broker runs and has it."""
        if self.service is None:
            return None
        found = self.service.directory.logs.get(TopicPartition(topic, partition))
        return found if isinstance(found, BatchLog) else None
