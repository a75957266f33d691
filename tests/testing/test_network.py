"""
Tests for L{pylogbroker.testing.network}: what its lines do is what sockets do. One suite of
promises runs on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.error import (
    ConnectingCancelledError,
    ConnectionAborted,
    ConnectionDone,
    ConnectionLost,
)
from twisted.internet.error import ConnectionRefusedError as RefusedError
from twisted.internet.interfaces import (
    IConsumer,
    IHalfCloseableDescriptor,
    IPushProducer,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.internet.task import Clock, deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from pylogbroker.testing.network import MemoryNetwork, MemoryPeer

MUCH = b"x" * (16 << 20)
"""More than the kernel keeps for a far end that does not read."""


@implementer(IPushProducer)
class Near(Protocol):
    """The near end: keeps what happens to it."""

    def __init__(self) -> None:
        self.received = b""
        self.events: list[str] = []
        self.reason: BaseException | None = None

    def connectionMade(self) -> None:
        self.tcp.registerProducer(self, True)

    @property
    def tcp(self) -> Any:
        return self.transport

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def pauseProducing(self) -> None:
        self.events.append("pause")

    def resumeProducing(self) -> None:
        self.events.append("resume")

    def stopProducing(self) -> None:
        self.events.append("stop")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason.value


class NetworkPromises:
    """
    What holds on any network. A subclass has C{endpoint}, C{accept}, C{until} and
    C{refusingEndpoint}, and mixes in a L{TestCase}.
    """

    endpoint: Callable[[], IStreamClientEndpoint]
    accept: Callable[[], Any]
    until: Callable[[Callable[[], object]], Any]
    refusingEndpoint: Callable[[], Any]
    assertEqual: Any
    assertTrue: Any
    assertIsInstance: Any
    assertIn: Any

    async def connected(self) -> tuple[Near, Any]:
        """Both ends of a connection."""
        connecting = self.endpoint().connect(Factory.forProtocol(Near))
        far = await self.accept()
        near = await connecting
        assert isinstance(near, Near)
        return near, far

    async def test_interfaces(self) -> None:
        """The transport is TCP's: it can be half-closed, and feeds on producers."""
        near, far = await self.connected()
        for interface in (ITCPTransport, IConsumer, IHalfCloseableDescriptor):
            self.assertTrue(interface.providedBy(near.tcp))
        self.assertTrue(verifyObject(ITCPTransport, near.tcp))
        near.tcp.setTcpNoDelay(True)
        near.tcp.setTcpKeepAlive(True)
        self.assertTrue(near.tcp.getTcpNoDelay() and near.tcp.getTcpKeepAlive())
        self.assertEqual({near.tcp.getHost().type, near.tcp.getPeer().type}, {"TCP"})
        far.cut()
        await self.until(lambda: near.reason)

    async def test_bytesArrive(self) -> None:
        """
        What either end writes arrives at the other, in order; a little does not make the transport
        push back.
        """
        near, far = await self.connected()
        near.tcp.write(b"one")
        near.tcp.writeSequence([b"two", b"three"])
        await self.until(lambda: len(far.arrived) == 11)
        self.assertEqual(far.take(), b"onetwothree")
        far.deliver(b"four")
        await self.until(lambda: near.received == b"four")
        self.assertEqual(near.events, [])
        far.cut()
        await self.until(lambda: near.reason)

    async def test_pushesBack(self) -> None:
        """
        When the far end does not read, the producer is paused once there is much to send, and told
        so again when it writes all the same; it is resumed when all has left.
        """
        near, far = await self.connected()
        far.stall()
        near.tcp.write(MUCH)
        await self.until(lambda: near.events)
        near.tcp.write(b"more")
        self.assertEqual(near.events, ["pause", "pause"])
        far.flow()
        await self.until(lambda: len(near.events) == 3)
        self.assertEqual(near.events, ["pause", "pause", "resume"])
        await self.until(lambda: len(far.arrived) == len(MUCH) + 4)
        far.cut()
        await self.until(lambda: near.reason)
        self.assertEqual(near.events, ["pause", "pause", "resume", "stop"])

    async def test_loseConnection(self) -> None:
        """
        Losing the connection waits for the producer to be unregistered, and for what was written to
        leave; then both ends see an orderly end.
        """
        near, far = await self.connected()
        far.stall()
        near.tcp.write(MUCH)
        await self.until(lambda: near.events)
        near.tcp.unregisterProducer()
        near.tcp.loseConnection()
        far.flow()
        await self.until(lambda: near.reason)
        self.assertIsInstance(near.reason, ConnectionDone)
        await self.until(lambda: far.isEnded)
        self.assertEqual(len(far.take()), len(MUCH))

    async def test_loseConnectionAtOnce(self) -> None:
        """With nothing to send, the connection is lost at once; not inside the call."""
        near, far = await self.connected()
        near.tcp.unregisterProducer()
        near.tcp.loseConnection()
        self.assertEqual(near.reason, None)
        await self.until(lambda: near.reason)
        self.assertIsInstance(near.reason, ConnectionDone)
        await self.until(lambda: far.isEnded)

    async def test_loseWriteConnection(self) -> None:
        """
        Half-closed, the far end sees the end behind all that was written, and can still send; when
        it ends its side, too, the connection is done.
        """
        near, far = await self.connected()
        near.tcp.write(b"last words")
        near.tcp.unregisterProducer()
        near.tcp.loseWriteConnection()
        await self.until(lambda: far.isEnded)
        self.assertEqual(far.take(), b"last words")
        far.deliver(b"heard")
        await self.until(lambda: near.received == b"heard")
        self.assertEqual(near.reason, None)
        far.end()
        await self.until(lambda: near.reason)
        self.assertIsInstance(near.reason, ConnectionDone)

    async def test_abortConnection(self) -> None:
        """Aborting ends the connection whatever waits to be sent; not inside the call."""
        near, far = await self.connected()
        far.stall()
        near.tcp.write(MUCH)
        near.tcp.abortConnection()
        near.tcp.abortConnection()
        self.assertEqual(near.reason, None)
        await self.until(lambda: near.reason)
        self.assertIsInstance(near.reason, ConnectionAborted)
        self.assertEqual(near.events[-1], "stop")
        far.flow()
        await self.until(lambda: far.isEnded)

    async def test_farEndCloses(self) -> None:
        """
        When the far end closes in order, the near end learns that it is done, and stops its
        producer.
        """
        near, far = await self.connected()
        far.deliver(b"bye")
        far.end()
        await self.until(lambda: near.reason)
        self.assertEqual(near.received, b"bye")
        self.assertIsInstance(near.reason, ConnectionDone)
        self.assertEqual(near.events, ["stop"])

    async def test_lineBreaks(self) -> None:
        """When the line breaks, the near end learns that, too; writing then does nothing."""
        near, far = await self.connected()
        far.cut()
        await self.until(lambda: near.reason)
        self.assertIsInstance(near.reason, ConnectionLost)
        near.tcp.write(b"in vain")

    async def test_refused(self) -> None:
        """A refused attempt fails as such."""
        try:
            await (await self.refusingEndpoint()).connect(Factory.forProtocol(Near))
        except RefusedError:
            return
        raise AssertionError("connected")

    async def test_cancelled(self) -> None:
        """An attempt can be cancelled while it waits."""
        connecting = self.endpoint().connect(Factory.forProtocol(Near))
        connecting.cancel()
        try:
            await connecting
        except ConnectingCancelledError:
            return
        raise AssertionError("connected")


class PuppetPromisesTests(NetworkPromises, TestCase):
    """The puppet network keeps the promises."""

    def setUp(self) -> None:
        self.network = MemoryNetwork(Clock())
        self.endpoint = self.network.endpoint

    async def accept(self) -> MemoryPeer:
        return self.network.accept()

    async def until(self, condition: Callable[[], object]) -> None:
        self.network.turn()
        assert condition()

    async def refusingEndpoint(self) -> IStreamClientEndpoint:
        network = MemoryNetwork(Clock())

        @implementer(IStreamClientEndpoint)
        class Refusing:
            def connect(self, protocolFactory: Any) -> Deferred[Any]:
                connecting = network.endpoint().connect(protocolFactory)
                network.refuse()
                return connecting

        return Refusing()


class FarEnd(Protocol):
    """The far end of a socket, with the words of a L{MemoryPeer}."""

    def __init__(self) -> None:
        self.arrived = bytearray()
        self.isEnded = False

    @property
    def tcp(self) -> Any:
        return self.transport

    def dataReceived(self, data: bytes) -> None:
        self.arrived += data

    def take(self) -> bytes:
        taken = bytes(self.arrived)
        self.arrived.clear()
        return taken

    def stall(self) -> None:
        self.tcp.pauseProducing()

    def flow(self) -> None:
        self.tcp.resumeProducing()

    def deliver(self, data: bytes) -> None:
        self.tcp.write(data)

    def end(self) -> None:
        self.tcp.loseConnection()

    def cut(self) -> None:
        self.tcp.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.isEnded = True


class HalfClosingFarEnd(FarEnd):
    """
    A far end that learns that the near end has closed its side, and does not close its own for
    that.
    """

    def readConnectionLost(self) -> None:
        self.isEnded = True

    def writeConnectionLost(self) -> None:
        pass


class SocketPromisesTests(NetworkPromises, TestCase):
    """Real sockets keep the promises, too: the puppet is no easier than they are."""

    timeout = 60

    def setUp(self) -> None:
        from twisted.internet import reactor
        from twisted.internet.interfaces import IHalfCloseableProtocol
        from zope.interface import directlyProvides

        self.reactor: Any = reactor
        self.farEnds: list[FarEnd] = []

        def build() -> FarEnd:
            far = HalfClosingFarEnd()
            directlyProvides(far, IHalfCloseableProtocol)
            self.farEnds.append(far)
            return far

        self.port: Any = self.reactor.listenTCP(
            0,
            Factory.forProtocol(build),  # type: ignore[arg-type]
            interface="127.0.0.1",
        )
        self.addCleanup(self.releaseSlices)

    async def releaseSlices(self) -> None:
        await self.port.stopListening()
        for far in self.farEnds:
            far.tcp.abortConnection()
        await deferLater(self.reactor, 0)

    def endpoint(self) -> IStreamClientEndpoint:
        return TCP4ClientEndpoint(self.reactor, "127.0.0.1", self.port.getHost().port)

    async def accept(self) -> FarEnd:
        await self.until(lambda: self.farEnds)
        return self.farEnds[0]

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await deferLater(self.reactor, 0)

    async def refusingEndpoint(self) -> IStreamClientEndpoint:
        unused: Any = self.reactor.listenTCP(0, Factory(), interface="127.0.0.1")
        port = unused.getHost().port
        await unused.stopListening()
        return TCP4ClientEndpoint(self.reactor, "127.0.0.1", port)


class PuppetNetworkTests(SynchronousTestCase):
    """What only a puppet can do."""

    def setUp(self) -> None:
        self.network = MemoryNetwork(Clock())

    def connected(self) -> tuple[Near, MemoryPeer]:
        connecting = self.network.endpoint().connect(Factory.forProtocol(Near))
        line = self.network.accept()
        near = self.successResultOf(connecting)
        assert isinstance(near, Near)
        return near, line

    def test_nothingByItself(self) -> None:
        """Nothing arrives before a turn is taken."""
        near, line = self.connected()
        near.tcp.write(b"x")
        self.assertEqual(line.take(), b"")
        self.network.turn()
        self.assertEqual(line.take(), b"x")

    def test_flowsSoFar(self) -> None:
        """A line can let so many bytes through and no more."""
        near, line = self.connected()
        line.stall()
        near.tcp.write(b"x" * 100_000)
        self.network.turn()
        self.assertEqual(line.take(), b"")
        line.flow(70_000)
        self.network.turn()
        self.assertEqual(len(line.take()), 70_000)
        line.flow(10)
        self.network.turn()
        self.assertEqual((len(line.take()), near.events), (10, ["pause"]))
        line.flow()
        self.network.turn()
        self.assertEqual((len(line.take()), near.events), (29_990, ["pause", "resume"]))

    def test_deliversInOnePiece(self) -> None:
        """
        What is delivered is there at once; on a line that is gone it is a mistake of the test's, on
        one that is being closed it is lost.
        """
        near, line = self.connected()
        line.deliver(b"half")
        self.assertEqual(near.received, b"half")
        near.tcp.abortConnection()
        line.deliver(b"too late")
        self.assertEqual(near.received, b"half")
        self.network.turn()
        self.assertRaises(RuntimeError, line.deliver, b"nonsense")

    def test_brokenOnce(self) -> None:
        """A line breaks once."""
        near, line = self.connected()
        line.cut()
        line.end()
        self.assertIsInstance(near.reason, ConnectionLost)
        self.assertIsInstance(line.reason, ConnectionLost)

    def test_attempts(self) -> None:
        """The test decides on each attempt; what became of it is there to see."""
        endpoint = self.network.endpoint("broker:1")
        self.assertEqual(repr(endpoint), "broker:1")
        connecting = [endpoint.connect(Factory.forProtocol(Near)) for _ in range(4)]
        connecting[1].cancel()
        self.failureResultOf(connecting[1], ConnectingCancelledError)
        self.network.accept()
        self.network.refuse()
        self.failureResultOf(connecting[2], RefusedError)
        self.assertEqual(
            [attempt.state for attempt in self.network.attempts],
            ["accepted", "cancelled", "refused", "waiting"],
        )
        self.assertEqual(self.network.waiting, self.network.attempts[3:])
        self.assertEqual(self.network.waiting[0].name, "broker:1")
