"""
Containers of a simulated cluster, each in a process that is started again when it ends, as by a
supervisor; and the programs that write their inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ConfigurationError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    StorageError,
    TaskFailedError,
)
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.tasks.container import TaskContainer, TaskPhase
from pylogbroker.testing.simulatednetwork import Network, Process
from tests.simulation.cluster.brokers import UnorderedWorker
from tests.simulation.cluster.clients import Properties
from tests.simulation.tasks.disks import Disk, DiskDirectory
from tests.simulation.tasks.plans import Diary, Message, Plan
from tests.simulation.tasks.streamplans import StreamPlan

FORBIDDEN = (
    ConfigurationError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    StorageError,
    TaskFailedError,
)
"""What no container ends with here."""

RESTART_SECONDS = 0.3


class Machine:
    """
    What containers run on.

    @ivar delayMax: seconds that a job of a worker waits at most.
    """

    def __init__(self, host: str, rate: float, delayMax: float, counts: Counter[str]) -> None:
        self.host = host
        self.rate = rate
        self.delayMax = delayMax
        self.disk = Disk(counts)


class SimulatedContainer:
    """
    A place for a container of a job: the processes that are there one after another.

    @ivar isWanted: whether it is to be started again when it ends.
    @ivar process: the one that runs, or the last one.
    @ivar container: of the process; L{None}: none runs.
    """

    def __init__(
        self,
        network: Network,
        plan: Plan | StreamPlan,
        number: int,
        machine: Machine,
        properties: Properties,
        random: Random,
        diary: Diary,
    ) -> None:
        self.plan = plan
        self.number = number
        self.machine = machine
        self.properties = properties
        self.isWanted = False
        self.process: Process | None = None
        self.container: TaskContainer | None = None
        self.onFailure: Callable[[str], None] = lambda text: None
        self.say: Callable[[str], None] = lambda text: None
        self._network = network
        self._random = random
        self._diary = diary
        self._startCount = 0

    def __repr__(self) -> str:
        return f"{self.plan.name}.{self.number}"

    @property
    def isUp(self) -> bool:
        """Whether a process runs."""
        return self.container is not None

    def start(self) -> None:
        """Start a process."""
        self.isWanted = True
        self._startCount += 1
        machine, plan, random = self.machine, self.plan, self._random
        name = f"{self} #{self._startCount}"
        self.process = process = Process(self._network, name, machine.host, machine.rate)
        self.container = container = TaskContainer(
            process,
            plan.job(self._diary, process, random),
            {**self.properties, "client.id": name.replace(" ", "")},
            containerId=str(self.number),
            worker=UnorderedWorker(process, 1, lambda: random.random() * machine.delayMax),
            stateDirectory=DiskDirectory(machine.disk, plan.name, process),
            random=Random(random.getrandbits(32)).random,
        )

        def run() -> None:
            container.run().addCallbacks(
                self._ended, self._failed, callbackArgs=(container,), errbackArgs=(container,)
            )

        process.perform(run)

    def _ended(self, _result: None, container: TaskContainer) -> None:
        self._over(container, "it was stopped")

    def _failed(self, failure: Failure, container: TaskContainer) -> None:
        if container is not self.container:
            return
        if failure.check(*FORBIDDEN) or not failure.check(PylogbrokerError):
            self.onFailure(f"{self.process} failed: {failure.getTraceback()}")
        assert failure.type is not None
        self._network.counts[f"ended with {failure.type.__name__}"] += 1
        self._over(container, failure.getErrorMessage())

    def _over(self, container: TaskContainer, why: str) -> None:
        if container is self.container:
            self.say(f"{self.process} has ended: {why}")
            self._end()
            self._network.scheduler.after(RESTART_SECONDS, self.restart, self._startCount)

    def restart(self, startCount: int) -> None:
        """Start it again, unless that was done since."""
        if self.isWanted and not self.isUp and self._startCount == startCount:
            self.start()

    def stop(self) -> None:
        """In order: it leaves its group. It is started again if it is wanted."""
        container, process = self.container, self.process
        assert container is not None and process is not None

        def stop() -> None:
            container.stop()

        process.perform(stop)

    def kill(self) -> None:
        """C{kill -9}."""
        self._end()

    def restartIn(self, seconds: float) -> None:
        """It is started again some time, if it is wanted still."""
        self._network.scheduler.after(seconds, self.restart, self._startCount)

    def _end(self) -> None:
        self.container = None
        assert self.process is not None
        self.process.kill()

    def running(self) -> list[int]:
        """The tasks that run here."""
        assert self.container is not None
        status = self.container.status()
        return [each.partition for each in status if each.phase == TaskPhase.RUNNING.value]

    def stored(self) -> dict[tuple[int, str], dict[bytes, bytes]]:
        """What the stores have of the tasks that run here, by task and store."""
        assert self.container is not None
        return {
            (number, name): dict(store._engine.range(None, None))
            for number, task in self.container._tasks.items()
            if task.phase is TaskPhase.RUNNING and task.instance is not None
            for name, store in task.instance.stores.items()
        }


class SimulatedWriter:
    """
    Writes the inputs.

    @ivar isOver: whether all has an outcome.
    @ivar acknowledged: topic, partition and offset, with key and value.
    """

    def __init__(
        self,
        process: Process,
        properties: Properties,
        random: Random,
        newMessage: Callable[[], Message],
        isTransactional: bool = False,
    ) -> None:
        self.process = process
        self.properties = properties
        self.isOver = False
        self.acknowledged: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = {}
        self._random = random
        self._newMessage = newMessage
        self._isTransactional = isTransactional

    async def write(self, count: int, seconds: float) -> None:
        """Write C{count} messages in about C{seconds}."""
        random, left = self._random, count
        while left > 0:
            producer = KafkaProducer(
                self.process, self.properties, random=random.random, isLoggingFailures=False
            )
            while left > 0 and producer.fatalError is None:
                size = min(left, random.choice((1, 2, 5, 10)))
                left -= size
                try:
                    await self._batch(producer, size)
                except PylogbrokerError:
                    pass
                await deferLater(self.process, 2 * random.random() * seconds * size / count)
            try:
                await producer.close()
            except PylogbrokerError:
                pass
        self.isOver = True

    async def _batch(self, producer: KafkaProducer, size: int) -> None:
        if not self._isTransactional:
            self._send(producer, size)
            return
        async with producer.transaction():
            self._send(producer, size)
            await deferLater(self.process, self._random.choice((0.0, 0.1)))
            if self._random.random() < 0.2:
                raise AbortedError("as it was planned")

    def _send(self, producer: KafkaProducer, size: int) -> None:
        for _ in range(size):
            topic, key, text, timestamp = self._newMessage()
            encoded = _encoded(key), _encoded(text)
            sent = producer.send(topic, encoded[1], encoded[0], (), timestamp)
            sent.addCallbacks(
                lambda done, encoded=encoded: self._sent(done, encoded), lambda _failure: None
            )

    def _sent(self, done: object, encoded: tuple[bytes, bytes | None]) -> None:
        if not self._isTransactional:
            topic, partition, offset = done.topic, done.partition, done.offset  # type: ignore[attr-defined]
            if offset >= 0:
                self.acknowledged[topic, partition, offset] = encoded


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


class AbortedError(PylogbrokerError):
    """A transaction is aborted by its application."""
