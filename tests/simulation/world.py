"""
The world of a simulated cluster: one clock, processes that can be killed, and wires between them
that take time and can be cut in the middle of a frame.

Nothing here knows what is said on the wires. Time goes from one due call to the next
(L{World.advance}); between two of them the wires carry what was written. A process is whatever
shares a fate: it has the clock by way of L{Process}, and when that is killed no call of its own is
made any more, its wires are cut, and nobody in it can do anything that others would see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import ITransport
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactor
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.testing.network import MemoryNetwork, MemoryPeer, PendingConnect
from pylogbroker.testing.worker import ManualWorker

START = 1_795_194_789.0
CLIENT = IPv4Address("TCP", "192.0.2.9", 50_000)
SERVER = IPv4Address("TCP", "192.0.2.1", 9092)
CALL_COUNT_MAX = 200_000
"""Calls in one simulation; one that needs more turns in circles."""


class StuckError(AssertionError):
    """The simulation turns in circles."""


class World:
    """
    @ivar clock: everybody's.
    @ivar servers: by C{host:port}, a process, and what makes a protocol when somebody connects.
    @ivar wires: those that carry something.
    @ivar latency: seconds that bytes are on their way, or an attempt to connect is.
    """

    def __init__(self, latency: float) -> None:
        self.clock = Clock()
        self.clock.rightNow = START
        self.latency = latency
        self.servers: dict[str, tuple[Process, Callable[[IPv4Address], Any]]] = {}
        self.wires: list[Wire] = []
        self.networks: list[MemoryNetwork] = []
        self.callCount = 0

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return float(self.clock.rightNow) - START

    # -- time

    def advance(self, seconds: float) -> None:
        """Let time pass, from one due call to the next."""
        self.advanceTo(self.clock.rightNow + seconds)

    def advanceTo(self, end: float, isEnough: Callable[[], bool] = lambda: False) -> bool:
        """The same up to a moment, or until something is so. Returns whether it is."""
        clock = self.clock
        while True:
            self._turn()
            if isEnough():
                return True
            calls = clock.calls
            if not calls or calls[0].getTime() > end:
                break
            clock.rightNow = max(clock.rightNow, calls[0].getTime())
            clock.advance(0)
            self.callCount += 1
            if self.callCount > CALL_COUNT_MAX:
                raise StuckError(
                    f"more than {CALL_COUNT_MAX} calls until {self.now:.3f} s; next:"
                    f" {clock.calls[:5]}"
                )
        clock.rightNow = max(clock.rightNow, end)
        return False

    def _turn(self) -> None:
        """What was written goes on its way; who wants to connect, too."""
        for network in self.networks:
            if network.attempts:
                attempts, network.attempts = network.attempts, []
                for attempt in attempts:
                    if attempt.state == "waiting":
                        self.clock.callLater(self.latency, self._connect, network, attempt)
        for wire in self.wires:
            wire.carry()

    def _connect(self, network: MemoryNetwork, attempt: PendingConnect) -> None:
        if attempt.state != "waiting":
            return
        client: Any = network.clock
        server, build = self.servers.get(attempt.name, (None, None))
        if server is None or build is None or client.isDead:
            attempt.refuse()
        else:
            self.wires = [wire for wire in self.wires if not wire.isOver]
            self.wires.append(Wire(self, client, attempt.accept(), server, build(CLIENT)))


class Process(MemoryReactor):
    """
    Something that lives and dies as one: a reactor, as far as the code under test sees.

    @ivar isDead: whether it was killed.
    @ivar network: how it connects to others.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.name = name
        self.world = world
        self.isDead = False
        self.network = MemoryNetwork(self)  # type: ignore[arg-type] # it needs of a clock what a reactor has
        world.networks.append(self.network)

    def seconds(self) -> float:
        """What time it is."""
        return float(self.world.clock.rightNow)

    def callLater(
        self, delay: float, act: Callable[..., object], *arguments: Any, **more: Any
    ) -> Any:
        """As of a reactor; a dead one calls nobody."""
        return self.world.clock.callLater(delay, self._call, act, arguments, more)

    def _call(self, act: Callable[..., object], arguments: Any, more: Any) -> None:
        if not self.isDead:
            act(*arguments, **more)

    def getDelayedCalls(self) -> list[Any]:
        """All that the world has."""
        return list(self.world.clock.getDelayedCalls())

    def kill(self) -> None:
        """C{kill -9}: the kernel closes what it had open."""
        self.isDead = True
        if self.network in self.world.networks:
            self.world.networks.remove(self.network)
        for wire in self.world.wires:
            if self in (wire.client, wire.server):
                wire.cut()


class DelayedWorker(ManualWorker):
    """
    A worker whose jobs are done a moment later.
    """

    def __init__(self, process: Process, delay: Callable[[], float]) -> None:
        super().__init__()
        self._process = process
        self._delay = delay
        self._isBusy = False

    def submit(self, work: Callable[[], Any]) -> Any:
        done = super().submit(work)
        self._begin()
        return done

    def _begin(self) -> None:
        if self.jobs and not self._isBusy:
            self._isBusy = True
            self._process.callLater(self._delay(), self._perform)

    def _perform(self) -> None:
        self._isBusy = False
        if self.jobs:  # or else whoever stopped it has done them
            self.perform()
        self._begin()


@implementer(ITransport)
class _ServerEnd:
    """The far end's transport: what it writes arrives a moment later."""

    disconnecting = False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.producer: Any = None

    def write(self, data: bytes) -> None:
        if not self.disconnecting:
            self._wire.send(self._wire.toClient, data)

    def writeSequence(self, iovec: Any) -> None:
        self.write(b"".join(iovec))

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def pauseProducing(self) -> None:
        self._wire.isHeld = True

    def resumeProducing(self) -> None:
        self._wire.isHeld = False
        self._wire.world.clock.callLater(0, self._wire.release)

    def loseConnection(self) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self._wire.endFromServer()

    def abortConnection(self) -> None:
        if not self.disconnecting:
            self.disconnecting = True
            self._wire.world.clock.callLater(0, self._wire.cut, ConnectionAborted())

    def getPeer(self) -> IPv4Address:
        return CLIENT

    def getHost(self) -> IPv4Address:
        return SERVER


class Wire:
    """
    A connection.

    @ivar client: the process that made it.
    @ivar server: the process that accepted it.
    @ivar isOver: whether both ends know that it is gone.
    @ivar budget: bytes that still pass, in any direction, before it is cut; L{None} for any number.
    """

    def __init__(
        self, world: World, client: Process, line: MemoryPeer, server: Process, protocol: Any
    ) -> None:
        self.world = world
        self.client = client
        self.line = line
        self.server = server
        self.isHeld = False
        self.isOver = False
        self.budget: int | None = None
        self._protocol: Any = protocol
        self._held: list[bytes] = []
        self._isEndSent = self._isEndArrived = False
        protocol.makeConnection(_ServerEnd(self))

    def carry(self) -> None:
        """What the client has written goes on its way."""
        if self.isOver:
            return
        line = self.line
        if line.arrived:
            self.send(self.toServer, line.take())
        if line.isEnded and not self._isEndSent:
            self._isEndSent = True
            self.world.clock.callLater(self.world.latency, self._endFromClient)

    def send(self, arrive: Callable[[bytes], None], data: bytes) -> None:
        """Bytes are on their way."""
        self.world.clock.callLater(self.world.latency, arrive, data)

    def _part(self, data: bytes) -> bytes:
        """What passes of some bytes."""
        if self.budget is None:
            return data
        part = data[: self.budget]
        self.budget -= len(data)
        if self.budget < 0:
            self.world.clock.callLater(0, self.cut)
        return part

    def toServer(self, data: bytes) -> None:
        """Bytes arrive there."""
        if not self.isOver and (self.budget is None or self.budget >= 0):
            self._held.append(self._part(data))
            self.release()

    def release(self) -> None:
        """What was held back, as long as the server reads."""
        while self._held and not self.isHeld and not self.isOver:
            self._protocol.dataReceived(self._held.pop(0))
        if self._isEndArrived and not self.isHeld and not self.isOver:
            self._isEndArrived = False
            self._protocol.readConnectionLost()

    def toClient(self, data: bytes) -> None:
        """Bytes arrive here."""
        if (
            not self.isOver
            and self.line.reason is None
            and (self.budget is None or self.budget >= 0)
        ):
            data = self._part(data)
            if data and not self.client.isDead:
                self.line.deliver(data)

    def _endFromClient(self) -> None:
        self._isEndArrived = True
        self.release()

    def endFromServer(self) -> None:
        """It has closed its end."""
        self.world.clock.callLater(self.world.latency, self._endAll)

    def _endAll(self) -> None:
        if not self.isOver:
            self.isOver = True
            self._tellServer(ConnectionDone())
            if self.line.reason is None and not self.client.isDead:
                self.line.end()

    def cut(self, reason: Exception | None = None) -> None:
        """It breaks; what is on its way is lost."""
        if not self.isOver:
            self.isOver = True
            if self.line.reason is None and not self.client.isDead:
                self.line.cut(reason)
            self._tellServer(reason or ConnectionLost())

    def _tellServer(self, reason: Exception) -> None:
        protocol, self._protocol = self._protocol, None
        if not self.server.isDead:
            producer = protocol.transport.producer
            if producer is not None:
                producer.stopProducing()
            protocol.connectionLost(Failure(reason))
