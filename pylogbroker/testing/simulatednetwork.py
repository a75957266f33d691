"""
Processes of a simulated cluster, and the network between them. A module of its own, since the
simulator of topologies and the simulations of the tests stand on it.

A L{Process} is a reactor as far as the code under test sees: it has a clock that may be too fast or
too slow, and connects and listens by Twisted's own endpoints. It can be killed, and paused: what
would have been called meanwhile is called when it goes on.

A connection is a pair of L{Transport}s. Bytes take their time, in order. What was sent arrives also
after its sender has closed the connection, or has died: so a request may be carried out long after
its client has sent it again on another connection. A path between two hosts that is cut in one
direction holds back what is sent there, as TCP does, until it is whole again; a connection may be
lost meanwhile, and then that is told to each end that can be reached.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any
from zlib import crc32

from twisted.internet.address import IPv4Address
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
)
from twisted.internet.error import ConnectionRefusedError as RefusedError
from twisted.internet.error import TimeoutError as ConnectTimeoutError
from twisted.internet.interfaces import (
    IConnector,
    IHalfCloseableProtocol,
    IListeningPort,
    IReactorTCP,
    IReactorTime,
    ITCPTransport,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.testing.powercut import PowerLostError

START = 1_795_194_789.0
CALL_COUNT_MAX = 400_000
"""Calls in one simulation; one that needs more turns in circles."""

LATENCIES = (0.0002, 0.0005, 0.001, 0.003)
SLOW = (0.05, 0.3, 2.0)
"""Seconds that bytes take on a connection that is slow for a while."""


class StuckError(AssertionError):
    """The simulation turns in circles."""


class DelayedCall:
    """A call that a L{Scheduler} makes; a C{IDelayedCall} as far as our code needs one."""

    __slots__ = ("act", "arguments", "at", "more", "number", "process")

    def __init__(
        self, at: float, process: Process | None, act: Any, arguments: Any, more: Any
    ) -> None:
        self.at = at
        self.number = 0
        self.process = process
        self.act: Any = act
        self.arguments = arguments
        self.more = more

    def cancel(self) -> None:
        """Do not call."""
        self.act = None

    def active(self) -> bool:
        """Whether it is still to be called."""
        return self.act is not None

    def reset(self, seconds: float) -> None:
        """Call C{seconds} from now, by the clock of the process."""
        assert self.process is not None
        scheduler = self.process.scheduler
        self.at = scheduler.now + seconds / self.process.rate
        scheduler.add(self)

    def make(self) -> None:
        """Call."""
        act, self.act = self.act, None
        if act is not None:
            act(*self.arguments, **self.more)


class Scheduler:
    """
    What is to be called when.

    @ivar now: seconds since the beginning, of no clock in particular.
    @ivar callCountMax: calls after which it gives up.
    @ivar afterCall: called after each call of a process, with the process.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.callCount = 0
        self.callCountMax: float = CALL_COUNT_MAX
        self.afterCall: Callable[[Process], None] = lambda process: None
        self._calls: list[tuple[float, int, DelayedCall]] = []
        self._number = 0

    def after(
        self, seconds: float, act: Callable[..., object], *arguments: Any, process: Any = None
    ) -> DelayedCall:
        """Call later, by the clock of a process if there is one."""
        return self.add(DelayedCall(self.now + seconds, process, act, arguments, {}))

    def add(self, call: DelayedCall) -> DelayedCall:
        """Have a call made."""
        self._number += 1
        call.number = self._number
        heappush(self._calls, (call.at, self._number, call))
        return call

    def advance(self, seconds: float) -> None:
        """Let time pass, from one call to the next."""
        end = self.now + seconds
        calls = self._calls
        while calls and calls[0][0] <= end:
            at, number, call = heappop(calls)
            if call.act is None or call.number != number:
                continue  # cancelled, or reset
            self.now = max(self.now, at)
            self.callCount += 1
            if self.callCount > self.callCountMax:
                limit = self.callCountMax
                raise StuckError(f"more than {limit} calls until {self.now:.3f} s: {call}")
            process = call.process
            if process is None:
                call.make()
            else:
                process.perform(call.make)
        self.now = end


@implementer(IReactorTime, IReactorTCP)
class Process:
    """
    Something that lives and dies as one.

    @ivar host: its address; all processes of a host share the fate of its network.
    @ivar rate: seconds of its clock in a second.
    @ivar isAccepting: whether it accepts connections; the kernel makes them all the same.
    @ivar isDead: whether it was killed.
    @ivar isPaused: whether it stands still.
    @ivar lostCount: connections that it has lost.
    """

    def __init__(
        self, network: Network, name: str, host: str, rate: float = 1.0, ahead: float = 0.0
    ) -> None:
        """@param ahead: seconds by which its clock is ahead of others."""
        self.network = network
        self.scheduler = network.scheduler
        self.name = name
        self.host = host
        self.rate = rate
        self.isDead = False
        self.isPaused = False
        self.isAccepting = True
        self.lostCount = 0
        self.notAccepted: list[Callable[[], None]] = []
        self.mustHalt: Callable[[], bool] = lambda: False
        self.transports: dict[Transport, None] = {}
        self._ahead = START + ahead
        self._missed: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name

    # -- life

    def perform(self, act: Callable[[], None]) -> None:
        """Do something in the process: now, when it goes on, or never if it is dead."""
        if self.isDead:
            return
        if self.isPaused:
            self._missed.append(act)
            return
        try:
            act()
        except PowerLostError:
            if not self.mustHalt():
                raise
        self.scheduler.afterCall(self)

    def accept(self) -> None:
        """Accept connections from now on, and those that were made before."""
        self.isAccepting = True
        waiting, self.notAccepted = self.notAccepted, []
        for each in waiting:
            self.perform(each)

    def pause(self) -> None:
        """C{SIGSTOP}."""
        self.isPaused = True

    def resume(self) -> None:
        """C{SIGCONT}. What was missed is done in its order."""
        self.isPaused = False
        missed, self._missed = self._missed, []
        for act in missed:
            self.perform(act)

    def kill(self, isTold: bool = True) -> None:
        """
        End at once.

        @param isTold: whether the kernel closes the connections, as after C{kill -9}. Otherwise the
            others notice some time later: the machine is gone.
        """
        self.isDead = True
        self._missed.clear()
        self.network.forget(self)
        for transport in list(self.transports):
            transport.die(isTold)
        self.transports.clear()

    # -- the reactor

    def seconds(self) -> float:
        """What time it is, by this process's clock."""
        return self._ahead + self.scheduler.now * self.rate

    def callLater(
        self, delay: float, callable: Callable[..., Any], *arguments: Any, **more: Any
    ) -> Any:
        """As of a reactor."""
        at = self.scheduler.now + (delay if delay > 0 else 0.0) / self.rate
        return self.scheduler.add(DelayedCall(at, self, callable, arguments, more))

    def getDelayedCalls(self) -> list[Any]:
        """Not known."""
        return []

    def listenTCP(
        self, port: int, factory: Any, backlog: int = 50, interface: str = ""
    ) -> ListeningPort:
        """As of a reactor."""
        return self.network.listen(self, port, factory)

    def connectTCP(
        self, host: str, port: int, factory: Any, *_more: Any, **options: Any
    ) -> Connector:
        """As of a reactor, with C{timeout} in seconds."""
        return self.network.connect(self, host, port, factory, options.get("timeout", 30))

    def addSystemEventTrigger(self, *_arguments: Any) -> None:
        """There are no such events."""


@implementer(IListeningPort)
class ListeningPort:
    """A port that is listened on."""

    def __init__(self, network: Network, process: Process, port: int, factory: Any) -> None:
        self.process = process
        self.factory = factory
        self._network = network
        self._address = IPv4Address("TCP", process.host, port)

    def startListening(self) -> None:
        """It does."""

    def stopListening(self) -> None:
        """Take no more connections."""
        self._network.unlisten(self)

    def getHost(self) -> IPv4Address:
        """Where it listens."""
        return self._address


@implementer(IConnector)
class Connector:
    """An attempt to connect, or what has become of it."""

    def __init__(self, process: Process, address: IPv4Address, factory: Any) -> None:
        self.process = process
        self.address = address
        self.factory = factory
        self.transport: Transport | None = None
        self.isOver = False

    def stopConnecting(self) -> None:
        """Give up."""
        self.fail(ConnectingCancelledError(self.address))

    def disconnect(self) -> None:
        """Give up, or close."""
        if self.transport is not None:
            self.transport.loseConnection()
        else:
            self.stopConnecting()

    def connect(self) -> None:
        """Connect again: nothing of ours does."""
        raise NotImplementedError

    def getDestination(self) -> IPv4Address:
        """Where to."""
        return self.address

    def fail(self, reason: Exception) -> None:
        """It did not work."""
        if not self.isOver:
            self.isOver = True
            self.factory.clientConnectionFailed(self, Failure(reason))


class Network:
    """
    All connections.

    @ivar cuts: pairs of hosts: nothing of the first reaches the second.
    @ivar isCalm: everything arrives soon.
    @ivar sentSize: bytes sent so far; and what they were, as a checksum, is C{fingerprint}.
    @ivar slowShare: of what is sent, what takes long.
    """

    def __init__(self, scheduler: Scheduler, random: Random, counts: Counter[str]) -> None:
        self.scheduler = scheduler
        self.random = random
        self.counts = counts
        self.cuts: dict[tuple[str, str], None] = {}
        self.sentSize = 0
        self.fingerprint = 0
        self.isCalm = False
        self.slowShare = 0.0
        self._ports: dict[tuple[str, int], ListeningPort] = {}
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._portNumber = 40_000

    # -- the paths between hosts

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from one host to the other."""
        self.cuts[source, target] = None

    def mend(self, source: str, target: str) -> None:
        """A path is whole again: TCP sends again what was lost."""
        self.cuts.pop((source, target), None)
        held, self._held = self._held, []
        for one, other, arrive in held:
            if (one, other) in self.cuts:
                self._held.append((one, other, arrive))
            else:
                self.scheduler.after(self.random.choice((0.01, 0.2, 1.0)), arrive)

    def latency(self) -> float:
        """Seconds of the next bytes."""
        random = self.random
        if not self.isCalm and random.random() < self.slowShare:
            self.counts["bytes late"] += 1
            return random.choice(SLOW) * random.random()
        return random.choice(LATENCIES)

    def pass_(self, source: str, target: str, arrive: Callable[[], None]) -> bool:
        """Whether something gets from one host to another now; else it does later."""
        if (source, target) in self.cuts:
            self.counts["bytes held back by a cut"] += 1
            self._held.append((source, target, arrive))
            return False
        return True

    # -- ports

    def listen(self, process: Process, port: int, factory: Any) -> ListeningPort:
        """Listen on a port of a process's host."""
        made = ListeningPort(self, process, port, factory)
        self._ports[process.host, port] = made
        factory.doStart()
        return made

    def unlisten(self, port: ListeningPort) -> None:
        """Listen no more."""
        key = port.getHost().host, port.getHost().port
        if self._ports.get(key) is port:
            del self._ports[key]

    def forget(self, process: Process) -> None:
        """A process is dead."""
        for key, port in list(self._ports.items()):
            if port.process is process:
                del self._ports[key]

    # -- connections

    def connect(
        self, process: Process, host: str, port: int, factory: Any, timeoutSeconds: float
    ) -> Connector:
        """Connect a process to a port."""
        connector = Connector(process, IPv4Address("TCP", host, port), factory)
        if process.isDead:
            return connector
        factory.doStart()
        factory.startedConnecting(connector)

        def late() -> None:
            connector.fail(ConnectTimeoutError())

        waiting = process.callLater(timeoutSeconds, late)

        def reach() -> None:
            if (process.host, host) in self.cuts or (host, process.host) in self.cuts:
                self.counts["connections not made"] += 1
                return
            listening = self._ports.get((host, port))
            if listening is None:
                process.perform(refuse)
            else:
                process.perform(lambda: made(listening))

        def refuse() -> None:
            waiting.cancel()
            connector.fail(RefusedError())

        def made(listening: ListeningPort) -> None:
            waiting.cancel()
            if connector.isOver:
                return
            if listening.process.isDead:
                refuse()
                return
            connector.isOver = True
            self._join(connector, listening)

        self.scheduler.after(self.latency(), reach)
        return connector

    def _join(self, connector: Connector, listening: ListeningPort) -> None:
        self._portNumber += 1
        process, server = connector.process, listening.process
        near = IPv4Address("TCP", process.host, self._portNumber)
        client = Transport(self, process, near, connector.address)
        far = Transport(self, server, connector.address, near)
        client.peer, far.peer = far, client
        client.connector = connector
        connector.transport = client

        def accept() -> None:
            protocol = listening.factory.buildProtocol(near)
            if protocol is None:
                far.abortConnection()
                return
            far.protocol = protocol
            protocol.makeConnection(far)
            far.resumeProducing()  # what has arrived before

        if server.isAccepting:
            server.perform(accept)
        else:
            server.notAccepted.append(accept)
        protocol = connector.factory.buildProtocol(connector.address)
        client.protocol = protocol
        protocol.makeConnection(client)


@implementer(ITCPTransport)
class Transport:
    """
    One end of a connection.

    @ivar isOver: whether this end knows that the connection is gone, or has given it up.
    """

    connector: Connector | None = None

    def __init__(
        self, network: Network, process: Process, near: IPv4Address, far: IPv4Address
    ) -> None:
        self.network = network
        self.process = process
        self.peer: Any = None
        self.protocol: Any = None
        self.connected = 1
        self.disconnecting = False
        self.isOver = False
        self.producer: Any = None
        self._near = near
        self._far = far
        self._isHeld = False
        self._sent: deque[Callable[[], None]] = deque()
        self._received: list[Callable[[], None]] = []
        self._arrivesAt = 0.0
        self._isEndSent = self._hasEnded = False
        process.transports[self] = None

    # -- what the protocol asks for

    def write(self, data: bytes) -> None:
        """Send; what is written behind C{loseConnection} is dropped."""
        if data and not self.isOver and not self._isEndSent and not self.process.mustHalt():
            peer, data, network = self.peer, bytes(data), self.network
            network.sentSize += len(data)
            network.fingerprint = crc32(data, network.fingerprint)
            self._send(lambda: peer.receive(lambda: peer.protocol.dataReceived(data)))

    def writeSequence(self, iovec: Any) -> None:
        """Send."""
        self.write(b"".join(iovec))

    def _send(self, arrive: Callable[[], None]) -> None:
        """
        Have something done at the other end, behind what was sent before: also when a cut has held
        that back.
        """
        network, scheduler = self.network, self.network.scheduler
        source, target = self._near.host, self._far.host
        self._sent.append(arrive)

        def land() -> None:
            if network.pass_(source, target, land):
                self._sent.popleft()()

        at = max(self._arrivesAt, scheduler.now + network.latency())
        self._arrivesAt = at
        scheduler.after(at - scheduler.now, land)

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """It is never paused: there is room."""
        self.producer = producer
        if not streaming:
            producer.resumeProducing()

    def unregisterProducer(self) -> None:
        """What waited for its end is done."""
        self.producer = None
        if self.disconnecting:
            self._finish()

    def loseConnection(self) -> None:
        """Close, behind what was written."""
        if not self.disconnecting and not self.isOver:
            self.disconnecting = True
            if self.producer is None:
                self._finish()

    def loseWriteConnection(self) -> None:
        """Close the half in which this end sends."""
        self._sendEnd()

    def _sendEnd(self) -> None:
        if not self._isEndSent:
            self._isEndSent = True
            peer = self.peer
            self._send(lambda: peer.receive(peer.ended))

    def _finish(self) -> None:
        self._sendEnd()
        self.process.callLater(0, self.lost, ConnectionDone())

    def abortConnection(self) -> None:
        """Close at once, and tell the other end so."""
        if not self.isOver and not self.disconnecting:
            self.disconnecting = True
            self._isEndSent = True
            peer = self.peer
            self._send(lambda: peer.receive(lambda: peer.lost(ConnectionLost())))
            self.process.callLater(0, self.lost, ConnectionAborted())

    def stopConsuming(self) -> None:
        """Close."""
        self.loseConnection()

    def pauseProducing(self) -> None:
        """Read no more for a while."""
        self._isHeld = True

    def resumeProducing(self) -> None:
        """Read again."""
        self._isHeld = False
        if self._received:
            self.process.callLater(0, self._take)

    def stopProducing(self) -> None:
        """Close."""
        self.loseConnection()

    def getPeer(self) -> IPv4Address:
        """The other end's address."""
        return self._far

    def getHost(self) -> IPv4Address:
        """This end's address."""
        return self._near

    def getTcpNoDelay(self) -> bool:
        """There is no delay."""
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """There is no delay."""

    def getTcpKeepAlive(self) -> bool:
        """There is none."""
        return False

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """There is none."""

    # -- what arrives

    def receive(self, act: Callable[[], None]) -> None:
        """Something has arrived at this end."""
        self.process.perform(lambda: self._receive(act))

    def _receive(self, act: Callable[[], None]) -> None:
        self._received.append(act)
        self._take()

    def _take(self) -> None:
        received = self._received
        while received and not self._isHeld and not self.isOver and self.protocol is not None:
            received.pop(0)()

    def ended(self) -> None:
        """The other end sends nothing more."""
        if self._isEndSent or not IHalfCloseableProtocol.providedBy(self.protocol):
            self.lost(ConnectionDone())
        else:
            self.protocol.readConnectionLost()

    def lost(self, reason: Exception) -> None:
        """The connection is gone."""
        if self.isOver:
            return
        self.isOver = True
        self.connected = 0
        self.process.lostCount += 1
        self.process.transports.pop(self, None)
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.stopProducing()
        if self.protocol is not None:
            self.protocol.connectionLost(Failure(reason))
        if self.connector is not None:
            self.connector.factory.clientConnectionLost(self.connector, Failure(reason))

    # -- faults

    def cut(self, delay: float, delayOfPeer: float) -> None:
        """Lose the connection; each end hears of it in its time."""
        self._loseIn(delay)
        self.peer._loseIn(delayOfPeer)

    def _loseIn(self, seconds: float) -> None:
        self.network.scheduler.after(
            seconds, lambda: self.process.perform(lambda: self.lost(ConnectionLost()))
        )

    def die(self, isTold: bool) -> None:
        """The process is dead; what it has sent arrives all the same."""
        self.isOver = True
        peer = self.peer
        if isTold:
            self._send(lambda: peer.receive(lambda: peer.lost(ConnectionLost())))
        else:
            peer._loseIn(self.network.random.choice((0.2, 2.0, 8.0)))
