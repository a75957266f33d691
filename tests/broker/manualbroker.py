"""
A broker that does nothing by itself: time, workers and turns of the reactor come when the test says
so. Its files are a L{PowerCutFileSystem}, its connections are real sockets.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from twisted.internet import tcp
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IHalfCloseableDescriptor
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogEvent, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.broker.connection import ServerConnection
from pylogbroker.broker.logmanager import GATHER_SECONDS, LogManager, Partition
from pylogbroker.broker.service import BrokerService
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import FrameSizeError
from pylogbroker.interfaces import CheckLimits, ConnectBroker, IRecordFormat, IZookeeper
from pylogbroker.net.sendfile import SendfileTransport
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeMultiFetch, decodeOffsets
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.storage.partitionlog import PartitionLog
from pylogbroker.testing.powercut import PowerCutFileSystem
from pylogbroker.testing.worker import ManualWorker
from pylogbroker.types import TopicPartition

START = 1_300_000_000.0
ROOT = "/srv/logs"
FLUSH = "pylogbroker-flush"
COLD = "pylogbroker-cold"

PROPERTIES = {
    "brokerid": "0",
    "port": "0",
    "listen.interface": "127.0.0.1",
    "enable.zookeeper": "false",
    "log.dir": ROOT,
    "log.flush.interval": "1",
}


class LeadReactor(MemoryReactorClock):
    """
    Sockets are looked at when the test says C{turn}; time is a L{twisted.internet.task.Clock}'s.
    """

    def turn(self, countMax: int = 20_000) -> None:
        """Serve sockets and calls that are due, until there is nothing to do."""
        for _ in range(countMax):
            self.advance(0)
            if not self._serve() and not any(
                call.getTime() <= self.seconds() for call in self.getDelayedCalls()
            ):
                return
        raise RuntimeError(f"the reactor is still busy after {countMax} rounds")

    def _serve(self) -> bool:
        """Read from, and write to, every socket that is ready, once. Returns whether one was."""
        poll = select.poll()
        descriptors = {each.fileno(): each for each in (*self.readers, *self.writers)}
        for fileno, each in descriptors.items():
            poll.register(
                fileno,
                select.POLLIN * (each in self.readers) | select.POLLOUT * (each in self.writers),
            )
        served = False
        for fileno, events in poll.poll(0):
            each = descriptors[fileno]
            ends = events & (select.POLLHUP | select.POLLERR)
            if (events & select.POLLIN or ends) and each in self.readers:
                self._end(each, each.doRead(), True)
                served = True
            if (events & select.POLLOUT or ends) and each in self.writers:
                self._end(each, each.doWrite(), False)
                served = True
        return served

    def _end(self, each: Any, why: Any, isRead: bool) -> None:
        """What C{PosixReactorBase._disconnectSelectable} does."""
        if why is None:
            return
        self.removeReader(each)
        if isRead and isinstance(why, ConnectionDone) and IHalfCloseableDescriptor.providedBy(each):
            each.readConnectionLost(Failure(why))
        else:
            self.removeWriter(each)
            each.connectionLost(Failure(why))


class Peer:
    """
    The client's end of a connection.

    @ivar protocol: the broker's end.
    @ivar closed: whether the broker has closed it, as far as was received.
    """

    def __init__(
        self, reactor: LeadReactor, end: socket.socket, protocol: ServerConnection, transport: Any
    ) -> None:
        self._reactor = reactor
        self._socket = end
        self._decoder = FrameDecoder(2**31 - 1)
        self.protocol = protocol
        self.transport = transport
        self.closed = False

    def send(self, *frames: bytes) -> None:
        """Send, and let the broker take turns while the socket is full."""
        data = memoryview(b"".join(frames))
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                before = self.heldSize
                self._reactor.turn()
                if self.heldSize == before:
                    raise RuntimeError(
                        f"the broker does not read, {len(data)} bytes are left"
                    ) from None
        self._reactor.turn()

    @property
    def heldSize(self) -> int:
        """Bytes that the broker holds of this connection."""
        return self.protocol._decoder.heldSize

    def sendSome(self, data: bytes) -> int:
        """Send what the socket takes now; the broker takes no turn."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def receive(self, sizeMax: int = 1 << 30) -> bytes:
        """What has arrived, at most C{sizeMax} bytes; the broker takes turns."""
        received = bytearray()
        while len(received) < sizeMax and not self.closed:
            self._reactor.turn()
            try:
                data = self._socket.recv(min(sizeMax - len(received), 1 << 20))
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            self.closed = not data
            received += data
        return bytes(received)

    def frames(self) -> list[bytes]:
        """The whole answers that have arrived, without their size fields."""
        data = self.receive()
        if data:
            self._decoder.feed(data)
        found = []
        while (frame := self._take()) is not None:
            found.append(frame)
        return found

    def _take(self) -> bytes | None:
        try:
            return self._decoder.take()
        except FrameSizeError as error:
            raise AssertionError(str(error)) from error

    def fetched(self) -> list[tuple[int, bytes]]:
        """All answers as answers to FETCH: (code, message set)."""
        return [decodeFetch(frame) for frame in self.frames()]

    def multiFetched(self) -> list[list[tuple[int, bytes]]]:
        """All answers as answers to MULTIFETCH."""
        return [decodeMultiFetch(frame) for frame in self.frames()]

    def offsets(self) -> list[list[int]]:
        """All answers as answers to OFFSETS."""
        return [decodeOffsets(frame)[1] for frame in self.frames()]

    @property
    def isClosed(self) -> bool:
        """
        Whether the broker has closed the connection, and nothing but the end was left to receive.
        """
        return self.receive() == b"" and self.closed

    def endSending(self) -> None:
        """Close our half."""
        self._socket.shutdown(socket.SHUT_WR)
        self._reactor.turn()

    def close(self) -> None:
        """Close both halves."""
        self._socket.close()
        self._reactor.turn()

    def vanish(self) -> None:
        """The broker's end is told that the connection is lost, whatever waits in the sockets."""
        self._reactor.removeAll()
        self.transport.connectionLost(Failure(ConnectionDone()))

    def resize(self, sendSize: int) -> None:
        """How much the broker's socket takes before the peer reads."""
        self.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sendSize)


def waitingCount(manager: LogManager) -> int:
    """The produce requests that wait for a limit, a full disk or a roll."""
    return sum(each.requestCount for each in manager.throttled())


class LeadBroker:
    """
    A whole broker, on a lead.

    @ivar flushWorker: flushes, rolls, deletes, creates.
    @ivar readWorker: reads and opens.
    @ivar others: brokers with the same reactor, which settle together with this one.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        fileSystem: Any = None,
        reactor: LeadReactor | None = None,
        seed: int = 7,
        formats: Sequence[IRecordFormat] = (Kafka07Format(),),
        connectBroker: ConnectBroker | None = None,
        zookeeper: Callable[[], IZookeeper] | None = None,
    ) -> None:
        if reactor is None:
            reactor = LeadReactor()
            reactor.advance(START)
        self.reactor = reactor
        self.fileSystem = fileSystem or PowerCutFileSystem(
            lambda: int(self.reactor.seconds() * 1000)
        )
        self.settings = BrokerSettings.fromProperties(
            {**PROPERTIES, **(properties or {})}, _noWarning
        )
        workers: dict[str, ManualWorker] = {}

        def newWorker(reactor: Any, name: str, threadCount: int) -> ManualWorker:
            return workers.setdefault(name, ManualWorker(reactor, name, threadCount))

        self.service = BrokerService(
            self.reactor,
            self.settings,
            fileSystem=self.fileSystem,
            random=Random(seed),
            worker=newWorker,
            formats=formats,
            connectBroker=connectBroker,
            zookeeper=zookeeper,
        )
        self.flushWorker = workers[FLUSH]
        self.readWorker = workers[COLD]
        self.logManager = self.service.logManager
        self.counters = self.service.counters
        self.directory = self.service.directory
        self.peers: list[Peer] = []
        self.others: list[LeadBroker] = []

    def start(self) -> LeadBroker:
        """Open and serve."""
        self.service.privilegedStartService()
        self.service.startService()
        return self

    def settle(self, countMax: int = 1000) -> None:
        """Turns and work until there is nothing to do now, or behind the short wait of a flush."""
        for _ in range(countMax):
            self.reactor.turn()
            if any(each.performAll() for each in (self, *self.others)):
                continue
            soon = self.reactor.seconds() + GATHER_SECONDS
            if not any(call.getTime() <= soon for call in self.reactor.getDelayedCalls()):
                return
            self.reactor.advance(GATHER_SECONDS)
        raise RuntimeError("the broker does not settle")

    def performAll(self) -> bool:
        """Do the work of all workers. Returns whether there was any."""
        return bool(self.flushWorker.performAll()) | bool(self.readWorker.performAll())

    def turn(self) -> None:
        """Turns of the reactor only."""
        self.reactor.turn()

    def advance(self, seconds: float) -> None:
        """Let time pass, and the broker do what is due."""
        self.reactor.advance(seconds)
        self.reactor.turn()

    def stop(self) -> None:
        """Stop in order; everything is done that it waits for."""
        outcomes: list[Any] = []
        self.service.stopService().addBoth(outcomes.append)
        for _ in range(1000):
            self.settle()
            if outcomes:
                break
            self.reactor.advance(0.02)
        assert outcomes == [None], outcomes
        assert self.others or not self.reactor.getDelayedCalls(), self.reactor.getDelayedCalls()

    def connect(self, transport: Any = SendfileTransport, listener: int = 0) -> Peer:
        """A connection over a pair of sockets, to the listener of a number."""
        peer = self.tryConnect(transport, listener)
        assert peer is not None
        return peer

    def tryConnect(self, transport: Any = SendfileTransport, listener: int = 0) -> Peer | None:
        """The same; L{None}: it was turned away."""
        near, far = socket.socketpair()
        far.setblocking(False)
        number = len(self.peers) + 1
        address = ("192.0.2.1", number)
        protocol: Any = self.service.factories[listener].buildProtocol(IPv4Address("TCP", *address))
        if protocol is None:
            near.close()
            far.close()
            return None
        server = transport(near, protocol, address, None, number, self.reactor)
        server.repstr = f"<peer {number}>"
        server.getHost = lambda: IPv4Address("TCP", "192.0.2.9", 9092)  # a pair has no addresses
        peer = Peer(self.reactor, far, protocol, server)
        protocol.makeConnection(server)
        self.peers.append(peer)
        return peer

    def log(self, topic: str = "t", partition: int = 0) -> PartitionLog:
        """A partition's log."""
        return self.directory.logs[TopicPartition(topic, partition)]

    def partition(self, topic: str = "t", partition: int = 0) -> Partition:
        """A partition that exists."""
        return self.logManager.partition(self.log(topic, partition))

    def append(self, data: bytes) -> None:
        """Append a set to the first partition of C{t}, without a request."""
        partition = self.partition()
        batches = partition.log.format.validate(data, CheckLimits())
        assert partition.append(batches, self.logManager.nowMs()) is not None

    def contents(self, topic: str = "t", partition: int = 0) -> bytes:
        """All bytes in a partition's files, as programs see them."""
        return b"".join(
            self.fileSystem.contents(segment.path)
            for segment in self.log(topic, partition).segments
        )

    def pinCounts(self) -> list[int]:
        """Of all segments; all zero when nothing is unflushed, under way or queued."""
        return [
            segment.file.pinCount
            for log in self.directory.logs.values()
            for segment in log.segments
        ]


def _noWarning(sentence: str) -> None:
    raise AssertionError(sentence)


class LeadTestCase(SynchronousTestCase):
    """A test with brokers on a lead, which are stopped at its end."""

    def broker(
        self, properties: Mapping[str, str] | None = None, *, start: bool = True, **more: Any
    ) -> LeadBroker:
        broker = LeadBroker(properties, **more)
        self.addCleanup(self._closePeers, broker)
        return broker.start() if start else broker

    def _closePeers(self, broker: LeadBroker) -> None:
        for peer in broker.peers:
            peer._socket.close()
            if hasattr(peer.transport, "socket"):
                peer.transport.socket.close()

    def sentences(self) -> Callable[[], list[str]]:
        """What is logged from now on, as text."""
        return capture(self)


def capture(case: SynchronousTestCase | TestCase) -> Callable[[], list[str]]:
    """What the package logs from now on until the end of a test, as text: call what is returned."""
    events: Sequence[LogEvent] = case.enterContext(capturedLogs())

    def texts() -> list[str]:
        return [
            formatEvent(event)
            for event in events
            if str(event.get("log_namespace", "")).startswith("pylogbroker")
        ]

    return texts


def plainServer(*arguments: Any) -> tcp.Server:
    """Twisted's own transport, which cannot send slices."""
    return tcp.Server(*arguments)
