"""
Random lives of a whole broker in memory (L{tests.integration.memorybroker}): it works until the
power fails before a file operation, until it is killed or stopped; then another starts on the same
files, and everything that clients were told must hold.

A subclass has the clients, and knows what they were told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

from pylogbroker.errors import StorageError
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from tests.integration.kills import LostError
from tests.integration.memorybroker import MemoryBroker

START_SECONDS = 1_700_000_000.0
OPERATIONS_TO_CUT = (5, 15, 50)
START_COUNT_MAX = 100

Act = Callable[[], None]


class BrokerLife:
    """
    A life, over several brokers.

    @ivar cutCount: power cuts so far.
    @ivar deathCount: those, kills and orderly stops.
    @ivar log: what happened, for the text of a failure.
    """

    broker: MemoryBroker

    def __init__(
        self,
        seed: int,
        makeProperties: Callable[[Random], Mapping[str, str]],
        makeFileSystem: Callable[[], PowerCutFileSystem] = PowerCutFileSystem,
    ) -> None:
        """@param makeProperties: gives the broker's settings, some of them by chance."""
        self.random = Random(seed)
        self.fileSystem = makeFileSystem()
        self.fileSystem.pageSize = self.random.choice((16, 64, 512))
        self.cutCount = self.deathCount = 0
        self.log: list[str] = [f"seed {seed}"]
        self._seconds = START_SECONDS
        self._properties = makeProperties(self.random)
        self._start()

    # -- what a subclass does

    def _connect(self) -> None:
        """A broker has started: connect the clients."""
        raise NotImplementedError

    def _check(self) -> None:
        """
        Look whether everything is there, before any client works.

        @raise LostError: it is not.
        """
        raise NotImplementedError

    def _hear(self) -> None:
        """Receive what the broker has sent."""
        raise NotImplementedError

    def _noteStarts(self) -> None:
        """Note where logs begin now: retention decides in memory first."""

    def _acts(self) -> Sequence[tuple[float, Act]]:
        """What clients do, with weights."""
        raise NotImplementedError

    # -- life and death

    def _start(self) -> None:
        """Start until one comes up, and look whether everything is there."""
        for _attempt in range(START_COUNT_MAX):
            if self.random.random() < 0.3:
                self._armed()
            try:
                self.broker = MemoryBroker(
                    self.fileSystem, self._properties, self._seconds, self.random
                )
                break
            except PowerLostError:
                self.log.append("cut while starting")
                self._cut()
            except StorageError as error:
                raise LostError(f"it cannot start: {error}; {self.log}") from error
        else:
            raise AssertionError("it never comes up")
        self.fileSystem.cutAt = None
        if self.broker.failures:
            raise LostError(f"out of service: {self.broker.failures}")
        try:
            self._check()
        except LostError as error:
            raise LostError(f"{error}; {self.log}") from None
        self._connect()

    def _armed(self) -> None:
        """The power will fail soon, before an operation."""
        self.fileSystem.cutAt = self.fileSystem.operationCount + self.random.randrange(
            self.random.choice(OPERATIONS_TO_CUT)
        )

    def _cut(self) -> None:
        self.cutCount += 1
        self.fileSystem.cutPower(self.random if self.random.random() < 0.7 else None)

    def _died(self) -> None:
        self.deathCount += 1
        self.fileSystem.sizeMax = None
        self._seconds = self.broker.reactor.seconds() + self.random.random()
        self._start()

    # -- what can happen

    def run(self, actCount: int) -> None:
        """
        Live on.

        @raise LostError: something that a client was told does not hold any more.
        """
        acts = (
            *self._acts(),
            (14, self._work),
            (6, self._turn),
            (2, self._second),
            (0.6, self._armed),
            (0.2, self._stop),
            (0.2, self._kill),
            (0.3, self._cutNow),
        )
        chosen = self.random.choices(
            [act for _weight, act in acts], [weight for weight, _act in acts], k=actCount
        )
        for act in chosen:
            try:
                act()
                self._hear()
            except PowerLostError:
                pass  # the broker met it on our stack
            self._noteStarts()
            if not self.broker.isOn:
                self.log.append(f"cut before operation {self.fileSystem.operationCount}")
                self._cut()
                self._died()
            elif self.broker.failures:
                raise LostError(f"out of service: {self.broker.failures}; {self.log}")
        self._cutNow()

    def _work(self) -> None:
        self.broker.perform(self.random)

    def _turn(self) -> None:
        self.broker.advance(0)

    def _second(self) -> None:
        self.broker.advance(self.random.random() * 2)

    def _full(self) -> None:
        """The disk gets full, or has room again."""
        self.fileSystem.sizeMax = (
            None
            if self.fileSystem.sizeMax is not None
            else self.fileSystem.usedSize + self.random.randrange(200)
        )

    def _stop(self) -> None:
        self.fileSystem.sizeMax = None
        self.log.append("stopped")
        self.broker.stop()
        if self.broker.isOn:
            self._hear()
        self._noteStarts()
        if self.broker.isOn:
            self._died()

    def _kill(self) -> None:
        self.log.append("killed")
        self.fileSystem.kill()
        self._died()

    def _cutNow(self) -> None:
        self.log.append("cut between operations")
        self._cut()
        self._died()
