"""
A whole broker in memory: the service as C{twistd} starts it, on a clock that stands still, with
workers on a lead and a file system that forgets; and clients that are a protocol and a string.

Nothing happens by itself. The test advances the clock, tells the workers to do a job, and may cut
the power before any file operation; what the broker writes to a client after that is not received,
as it would not be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import StorageError
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from pylogbroker.testing.worker import ManualWorker

DIRECTORY = "/data/logs"
ROUND_COUNT_MAX = 10_000
BASE = {
    "brokerid": "0",
    "port": "0",
    "listen.interface": "127.0.0.1",
    "enable.zookeeper": "false",
    "log.dir": DIRECTORY,
}


class MemoryBroker:
    """
    A broker from its start to its death. After that, make a new one on the same files.

    @ivar reactor: its clock; nobody else's.
    @ivar workers: the one for flushes, and the one for cold reads.
    """

    def __init__(
        self,
        fileSystem: PowerCutFileSystem,
        properties: Mapping[str, str],
        seconds: float,
        random: Random,
    ) -> None:
        """
        Start. It serves when this returns.

        @param seconds: what time it is.
        @raise PowerLostError: the power failed meanwhile.
        """
        self.fileSystem = fileSystem
        self._generation = fileSystem.generation
        self.reactor: Any = MemoryReactorClock()
        self.reactor.rightNow = seconds
        fileSystem.clock = lambda: int(self.reactor.seconds() * 1000)
        self.workers: list[ManualWorker] = []
        settings = BrokerSettings.fromProperties({**BASE, **properties}, lambda _warning: None)
        self.service = BrokerService(
            self.reactor, settings, fileSystem=fileSystem, random=random, worker=self._worker
        )
        self.service.privilegedStartService()
        self.service.startService()

    def _worker(self, _reactor: Any, _name: str, _threadCount: int) -> ManualWorker:
        self.workers.append(ManualWorker())
        return self.workers[-1]

    @property
    def isOn(self) -> bool:
        """Whether it has power, and is not killed."""
        if self._generation != self.fileSystem.generation:
            return False
        try:
            self.fileSystem.status("/")
        except PowerLostError:
            return False
        return True

    @property
    def failures(self) -> list[StorageError]:
        """Why partitions are out of service."""
        directory = self.service.directory
        return [
            *directory.failures.values(),
            *(log.failure for log in directory.logs.values() if log.failure is not None),
        ]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.reactor.advance(seconds)

    def perform(self, random: Random) -> bool:
        """Do one job that waits. Returns whether there was one."""
        waiting = [worker for worker in self.workers if worker.jobs]
        if waiting:
            random.choice(waiting).perform()
        return bool(waiting)

    def settle(self, done: Callable[[], bool]) -> None:
        """
        Do whatever there is to do, without letting time pass, until something has come about.

        @raise AssertionError: it does not.
        """
        for _round in range(ROUND_COUNT_MAX):
            if done():
                return
            for worker in self.workers:
                worker.performAll()
            self.advance(0)
        raise AssertionError("it does not come about")

    def stop(self) -> None:
        """
        Stop in order, as on C{SIGTERM}.

        @raise PowerLostError: the power failed meanwhile.
        """
        outcome: list[object] = []
        self.service.stopService().addBoth(outcome.append)
        for _round in range(ROUND_COUNT_MAX):
            if outcome:
                if isinstance(outcome[0], Failure):
                    outcome[0].raiseException()
                return
            for worker in self.workers:
                worker.performAll()
            self.advance(0.02)
        raise AssertionError("it does not stop")


class _PoweredTransport(StringTransport):
    """Keeps what was written while the broker had power."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__()
        self._broker = broker

    def write(self, data: bytes) -> None:
        if self._broker.isOn:
            super().write(data)


class MemoryClient:
    """
    A client.

    @ivar sentCount: requests that will be answered and have been sent.
    """

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._transport = _PoweredTransport(broker)
        protocol = broker.service.factories[0].buildProtocol(None)
        assert protocol is not None
        self._protocol = protocol
        self._protocol.makeConnection(self._transport)
        self._unsent: list[bytes] = []
        self._received = b""

    @property
    def isClosed(self) -> bool:
        """Whether the broker has closed the connection."""
        return bool(self._transport.disconnecting)

    def send(self, frame: bytes) -> None:
        """Send bytes, as soon as the broker reads."""
        self._unsent.append(frame)
        self.pump()

    def pump(self) -> None:
        """Let the broker read what it will, and write what it has."""
        while self._unsent and self._transport.producerState == "producing" and not self.isClosed:
            self._protocol.dataReceived(self._unsent.pop(0))
        producer: Any = None
        while self._transport.producer is not None:
            size = len(self._transport.value())
            producer = self._transport.producer
            producer.resumeProducing()
            if self._transport.producer is producer and len(self._transport.value()) == size:
                break  # a worker has to read first

    def take(self) -> bytes | None:
        """The next answer, without its size field; L{None} while it is not whole."""
        self.pump()
        self._received += self._transport.value()
        self._transport.clear()
        if len(self._received) < 4:
            return None
        end = 4 + struct.unpack_from(">i", self._received)[0]
        if len(self._received) < end:
            return None
        body, self._received = self._received[4:end], self._received[end:]
        return body

    def ask(self, frame: bytes) -> bytes:
        """
        Send a request, and do what there is to do until its answer is there; it is the body that is
        returned.
        """
        self.send(frame)
        answers: list[bytes] = []

        def done() -> bool:
            body = self.take()
            if body is not None:
                answers.append(body)
            return bool(answers)

        self._broker.settle(done)
        return answers[0]
