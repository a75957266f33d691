"""
What the simulations of whole brokers share: brokers in processes on a network, an operator, faults
of brokers and of the network, and a run that ends when something does not hold.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, ClassVar
from zlib import crc32

from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.testing.simulatednetwork import Network, Process, Scheduler
from tests.simulation.cluster.brokers import PORT, SimulatedBroker, hostOf
from tests.simulation.cluster.zookeeper import SimulatedZookeeper
from tests.simulation.seeds import BrokenPromiseError

LOOK_SECONDS = 0.25
TRACE_COUNT_MAX = 6_000
CLOCK_RATES = (0.9, 0.97, 1.0, 1.0, 1.03, 1.1)
AWAY_SECONDS = (0.05, 0.5, 2.0, 4.0)
CLIENT_HOST = "192.0.2.10{}"

CLIENT_PROPERTIES = {
    "request.timeout.ms": "1000",
    "socket.connection.setup.timeout.ms": "500",
    "retry.backoff.ms": "50",
    "retry.backoff.max.ms": "400",
}
PRODUCER_PROPERTIES = {
    **CLIENT_PROPERTIES,
    "acks": "all",
    "delivery.timeout.ms": "8000",
    "max.block.ms": "8000",
}
CONSUMER_PROPERTIES = {
    **CLIENT_PROPERTIES,
    "auto.offset.reset": "earliest",
    "fetch.max.wait.ms": "400",
    "default.api.timeout.ms": "4000",
    "enable.auto.commit": "false",
    "metadata.max.age.ms": "5000",
}


class BrokerWorld(ABC):
    """
    One run.

    @cvar faults: methods, without their first underscore, and how often each is chosen.
    @ivar trace: what happened, if asked for.
    @ivar brokers: by id.
    @ivar isCalm: no more faults.
    @ivar isFlushed: whether acknowledgements are durable; otherwise no power is cut.
    """

    faults: ClassVar[Mapping[str, float]]
    operator: Process
    admin: AdminClient

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.isTraced = isTraced
        self.isCalm = self.isFlushed = False
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.fingerprint = 0
        self.scheduler = Scheduler()
        self.scheduler.afterCall = self._afterCall
        self.network = Network(self.scheduler, self.random, self.counts)
        self.zookeeper = SimulatedZookeeper(self.scheduler)
        self.brokers: dict[int, SimulatedBroker] = {}
        self._failure = ""
        self._clientCount = 0

    def addBrokers(self, properties: Mapping[int, Mapping[str, str]]) -> None:
        """
        There are brokers, which do not run yet.

        @param properties: of each, by id.
        """
        random = self.random
        for brokerId, given in properties.items():
            self.brokers[brokerId] = SimulatedBroker(
                self.network,
                self.zookeeper,
                brokerId,
                given,
                Random(random.getrandbits(32)),
                self.say,
            )
        for broker in self.brokers.values():
            broker.rate = random.choice(CLOCK_RATES)
            broker.ahead = random.choice((0.0, 0.0, -3.0, 5.0))
            broker.delayMax = random.choice((0.0, 0.002, 0.02, 0.1))

    def addOperator(self) -> None:
        """There is an operator, with an admin client."""
        self.operator = self._newProcess("operator")
        self.admin = AdminClient(
            self.operator,
            {**CLIENT_PROPERTIES, "bootstrap.servers": self.servers},
            random=Random(self.random.getrandbits(32)).random,
        )

    @property
    def servers(self) -> str:
        """For C{bootstrap.servers}."""
        return ",".join(f"{hostOf(each)}:{PORT}" for each in self.brokers)

    def say(self, text: str) -> None:
        """Note what happens, if the seed is traced."""
        if self.isTraced:
            self.trace.append(f"{self.scheduler.now:9.3f} {text}")
            del self.trace[:-TRACE_COUNT_MAX]

    def fail(self, text: str) -> None:
        """Something does not hold; the run ends."""
        if not self._failure:
            self.say(f"!! {text}")
        self._failure = self._failure or text

    # -- one run

    def run(self) -> None:
        """
        @raise BrokenPromiseError: something does not hold.
        """
        # The collector closes the coroutines of dead processes at no particular time.
        wasCollecting = gc.isenabled()
        gc.disable()
        observer: Any = self._logged
        globalLogPublisher.addObserver(observer)
        try:
            self.live()
        finally:
            globalLogPublisher.removeObserver(observer)
            if wasCollecting:
                gc.enable()
            self.counts["virtual ms"] += int(self.scheduler.now * 1000)
            self.counts["calls"] += self.scheduler.callCount
            self.fingerprint = crc32(
                repr((self.network.sentSize, self.scheduler.callCount)).encode(),
                self.network.fingerprint,
            )

    @abstractmethod
    def live(self) -> None:
        """
        From the beginning to the verdict.

        @raise BrokenPromiseError: something does not hold.
        """

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        end = self.scheduler.now + seconds
        while self.scheduler.now < end and not self._failure:
            self.scheduler.advance(min(LOOK_SECONDS, end - self.scheduler.now))
        if self._failure:
            raise BrokenPromiseError(self._failure)

    def waitFor(self, isDone: Callable[[], str], secondsMax: float, what: str) -> None:
        """
        Let time pass until nothing is missing.

        @param isDone: what is missing.
        """
        end = self.scheduler.now + secondsMax
        while missing := isDone():
            if self.scheduler.now >= end:
                raise BrokenPromiseError(f"not {what} within {secondsMax} s: {missing}")
            self.advance(LOOK_SECONDS)

    def do(self, asked: Callable[[], Deferred[Any]], secondsMax: float = 10.0) -> Any:
        """What a request of the operator gives."""
        outcomes: list[Any] = []
        self._operate(lambda: asked().addBoth(outcomes.append))
        self.waitFor(lambda: "" if outcomes else "an answer", secondsMax, "answered")
        return outcomes[0]

    def _operate(self, act: Callable[[], object]) -> None:
        def perform() -> None:
            act()

        self.operator.perform(perform)

    def _unserved(self) -> str:
        return ", ".join(str(each) for each in self.brokers.values() if not each.isServing)

    def _newProcess(self, name: str) -> Process:
        self._clientCount += 1
        host = CLIENT_HOST.format(self._clientCount % 5)
        rate = self.random.choice(CLOCK_RATES)
        return Process(self.network, f"{name}{self._clientCount}", host, rate)

    def _random(self) -> Random:
        return Random(self.random.getrandbits(32))

    # -- what is watched

    def _afterCall(self, process: Process) -> None:
        for broker in self.brokers.values():
            if broker.process is process and broker.fileSystem._isOff and broker.isUp:
                self.say(f"{process} loses its power in the middle of its work")
                broker.cutPower()
                self._startIn(broker)

    def _logged(self, event: LogEvent) -> None:
        """What the package says."""
        namespace = str(event.get("log_namespace", ""))
        if not namespace.startswith(("pylogbroker", "twisted", "tests")):
            return
        if self.isTraced:
            self.say(f"  {namespace.rpartition('.')[2]}: {formatEvent(event)}")
        if event.get("log_level") is LogLevel.critical:
            text = formatEvent(event)
            if "is out of service" in text or self._isPowerOff():
                return  # a disk has failed, or a broker is being lost
            failure = event.get("log_failure")
            trace = f": {failure.getTraceback()}" if failure else ""
            self.fail(f"logged: {text}{trace}")

    def _isPowerOff(self) -> bool:
        return any(each.fileSystem._isOff for each in self.brokers.values())

    @property
    def image(self) -> MetadataImage | None:
        """The cluster's metadata, as the broker has them that is furthest."""
        managers = [
            each.service.kafka.metadata
            for each in self.brokers.values()
            if each.service is not None
        ]
        found = max(managers, key=lambda each: each.position, default=None)
        return None if found is None else found.image

    def _log(self, topic: str, index: int) -> BatchLog:
        """The log of a partition's leader."""
        image = self.image
        assert image is not None
        found = self.brokers[image.topics[topic].partitions[index].leader].log(topic, index)
        assert found is not None
        return found

    def _bytesOf(self, brokerId: int, topic: str, index: int) -> bytes:
        broker = self.brokers[brokerId]
        log = broker.log(topic, index)
        assert log is not None
        return b"".join(broker.fileSystem.contents(each.path) for each in log.segments)

    # -- faults

    def fault(self) -> None:
        """One thing goes wrong, or an operator does something."""
        name = self.random.choices(list(self.faults), list(self.faults.values()))[0]
        done = getattr(self, f"_{name}")()
        if done is not None:
            self.counts[name] += 1
            self.say(f"-- {name}: {done}")

    def _someBroker(self) -> SimulatedBroker | None:
        up = [
            each
            for each in self.brokers.values()
            if each.isUp and each.isWanted and each.process and not each.process.isPaused
        ]
        return self.random.choice(up) if up else None

    def _away(self) -> float:
        return self.random.choice(AWAY_SECONDS) * self.random.random()

    def _startIn(self, broker: SimulatedBroker, seconds: float | None = None) -> None:
        """A broker that is gone starts again some time."""

        def start() -> None:
            if not broker.isUp and not broker.isWanted:
                broker.fileSystem.mend()
                broker.start()

        self.scheduler.after(self._away() if seconds is None else seconds, start)

    def _kill(self) -> str | None:
        broker = self._someBroker()
        if broker is None:
            return None
        broker.kill()
        self._startIn(broker)
        return f"{broker}"

    def _powerCut(self) -> str | None:
        broker = self._someBroker()
        if broker is None or not self.isFlushed:
            return None
        broker.cutPower()
        self._startIn(broker)
        return f"{broker}"

    def _allDown(self) -> str | None:
        isPower = self.isFlushed and self.random.random() < 0.7
        for broker in self.brokers.values():
            if broker.isUp:
                if isPower:
                    broker.cutPower()
                else:
                    broker.kill()
                self._startIn(broker)
        return "power cut" if isPower else "killed"

    def _stop(self) -> str | None:
        broker = self._someBroker()
        if broker is None or not broker.isServing:
            return None
        broker.stop()
        self._whenGone(broker)
        return f"{broker}"

    def _whenGone(self, broker: SimulatedBroker) -> None:
        if broker.isUp and not broker.isWanted:
            self.scheduler.after(0.1, self._whenGone, broker)
        else:
            self._startIn(broker)

    def _pause(self) -> str | None:
        broker = self._someBroker()
        return None if broker is None else self._pauseBroker(broker)

    def _pauseBroker(self, broker: SimulatedBroker) -> str:
        seconds, startCount = self._away(), broker.startCount
        broker.pause()

        def resume() -> None:
            if broker.startCount == startCount and broker.isUp:
                broker.resume()

        self.scheduler.after(seconds, resume)
        return f"{broker}, {seconds:.3f} s"

    def _cut(self) -> str | None:
        hosts = [broker.host for broker in self.brokers.values()]
        hosts.append(CLIENT_HOST.format(self.random.randrange(5)))
        one, other = self.random.sample(hosts, 2)
        isBothWays, seconds = self.random.random() < 0.5, self._away()
        for pair in ((one, other), (other, one))[: 1 + isBothWays]:
            self.network.cut(*pair)
            self.scheduler.after(seconds, self.network.mend, *pair)
        return f"{one} {'<->' if isBothWays else '->'} {other}, {seconds:.3f} s"

    def _connection(self) -> str | None:
        processes = [each.process for each in self.brokers.values() if each.process is not None]
        transports = [each for process in processes for each in process.transports]
        if not transports:
            return None
        found = self.random.choice(transports)
        found.cut(self.random.choice((0.0, 0.1, 1.0)), self.random.choice((0.0, 0.1, 1.0)))
        return f"between {found.process} and {found.peer.process}"

    # -- the end of faults

    def _mendPaths(self) -> None:
        """All can reach all."""
        for pair in list(self.network.cuts):
            self.network.mend(*pair)
        self.zookeeper.unreachable.clear()
        self.zookeeper.delays.clear()

    def _repairBrokers(self) -> None:
        """Disks are whole, and all brokers run, or start."""
        for broker in self.brokers.values():
            broker.fileSystem.mend()
            broker.fileSystem.cutAt = None
            if broker.isUp and broker.isWanted and self._hasFailed(broker):
                broker.kill()
            broker.resume() if broker.process is not None else None
            if not broker.isUp:
                broker.start()

    def _hasFailed(self, broker: SimulatedBroker) -> bool:
        assert broker.service is not None
        directory = broker.service.directory
        return bool(directory.failures) or any(each.failure for each in directory.logs.values())
