"""
Tests of one client's connection.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.connection import BrokerConnections, BrokerFactory, ServerConnection
from pylogbroker.broker.requestmemory import RECEIVE_SIZE_MAX, SHARE_SIZE_MAX, RequestMemory
from pylogbroker.errors import InvalidRequestValueError
from pylogbroker.metrics.counters import ConnectionCounters
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.sendfile import SendfileTransport
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka07.requests import (
    encodeFetch,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import encodeOffsets as offsetsAnswer
from pylogbroker.protocol.kafka07.responses import fetchHeader
from pylogbroker.records.messageset import encodeSet
from tests.broker.manualbroker import LeadBroker, LeadTestCase, Peer, capture, plainServer

MIB = 1 << 20


def produce(*payloads: bytes, topic: str = "t", partition: int = 0) -> bytes:
    """One PRODUCE."""
    return encodeProduce(topic, partition, encodeSet(payloads))


def fill(broker: LeadBroker, *payloads: bytes, topic: str = "t") -> None:
    """Publish, flush, and be gone."""
    peer = broker.connect()
    peer.send(produce(*payloads, topic=topic))
    broker.settle()
    peer.close()


class OrderTests(LeadTestCase):
    """Requests are carried out in the order of their arrival, one at a time."""

    def test_pipelined(self) -> None:
        """A hundred requests sent at once are answered in their order (row 20)."""
        broker = self.broker()
        fill(broker, *(b"%03d" % number for number in range(100)))
        peer = broker.connect()
        peer.send(*(encodeFetch("t", 0, 13 * number, 13) for number in range(100)))
        expected = [(0, encodeSet([b"%03d" % number])) for number in range(100)]
        self.assertEqual(peer.fetched(), expected)

    def test_cutEverywhere(self) -> None:
        """Requests that arrive byte by byte are the same requests (row 1)."""
        broker = self.broker()
        peer = broker.connect()
        for byte in (
            produce(b"a")
            + produce(b"b")
            + encodeFetch("t", 0, 0, 100)
            + encodeOffsets("t", 0, -1, 1)
        ):
            peer.send(bytes([byte]))
            broker.settle()
        self.assertEqual(
            peer.receive(), fetchHeader(0, 22) + encodeSet([b"a", b"b"]) + offsetsAnswer([22])
        )

    def test_noAnswerToProduce(self) -> None:
        """
        Neither PRODUCE nor MULTIPRODUCE is answered, not even when it is refused (row 2, row 3).
        """
        broker = self.broker()
        peer = broker.connect()
        peer.send(produce(b"a"), encodeMultiProduce([("t", 0, encodeSet([b"b"]))]))
        broker.settle()
        self.assertEqual((peer.receive(), peer.closed), (b"", False))
        peer.send(produce(b"a", partition=9))
        self.assertEqual((peer.receive(), peer.closed), (b"", True))

    def test_aWaitingAnswerHoldsTheNext(self) -> None:
        """
        A request whose answer has to wait holds those behind it, of whatever kind, and all are
        answered in order.
        """
        broker = self.broker()
        fill(broker, b"a")
        peer = broker.connect()
        peer.send(
            produce(b"b"),
            encodeFetch("t", 0, 11, 100),
            encodeFetch("t", 0, 0, 11),
            encodeOffsets("t", 0, -1, 1),
            produce(b"c"),
        )
        self.assertEqual(peer.receive(), b"")
        self.assertEqual(broker.log().logEndOffset, 22)
        broker.flushWorker.perform()
        self.assertEqual(
            peer.receive(),
            fetchHeader(0, 11)
            + encodeSet([b"b"])
            + fetchHeader(0, 11)
            + encodeSet([b"a"])
            + offsetsAnswer([22]),
        )
        self.assertEqual(broker.log().logEndOffset, 33)

    def test_produceThenAsk(self) -> None:
        """
        An OFFSETS request behind a PRODUCE on one connection proves that it was processed: the
        topic is there (spec-0.7 wire-protocol §11).
        """
        broker = self.broker()
        peer = broker.connect()
        peer.send(produce(b"a"), encodeOffsets("t", 0, -1, 1))
        self.assertEqual(peer.receive(), b"")
        broker.settle()
        self.assertEqual(peer.offsets(), [[11]])

    def test_othersGoOn(self) -> None:
        """While one connection's answer waits, others are served."""
        broker = self.broker()
        fill(broker, b"a")
        waiting, other = broker.connect(), broker.connect()
        waiting.send(produce(b"b"), encodeFetch("t", 0, 11, 100))
        other.send(encodeFetch("t", 0, 0, 11))
        self.assertEqual((waiting.receive(), other.fetched()), (b"", [(0, encodeSet([b"a"]))]))

    def test_manyTinyRequests(self) -> None:
        """
        Tens of thousands of tiny requests in a few reads are carried out in a loop, without a stack
        that grows with them.
        """
        broker = self.broker()
        fill(broker, b"a")
        count = 20_000
        self.assertGreater(count, sys.getrecursionlimit() * 2)
        peer = broker.connect()
        received = bytearray()
        for request in (
            encodeFetch("unknown", 0, 0, 1),
            encodeOffsets("t", 0, -2, 1),
            encodeFetch("t", 0, 0, 0),
        ):
            data = memoryview(request * count)
            while data:
                data = data[peer.sendSome(data[: 64 << 10]) :]  # type: ignore[arg-type]
                received += peer.receive()
        received += peer.receive()
        self.assertEqual(
            received,
            fetchHeader(0, 0) * count + offsetsAnswer([0]) * count + fetchHeader(0, 0) * count,
        )

    def test_manyThatWait(self) -> None:
        """The same when all of them were held behind one that had to wait."""
        broker = self.broker()
        fill(broker, b"a")
        peer = broker.connect()
        peer.send(
            produce(b"b"), encodeFetch("t", 0, 11, 100), encodeFetch("unknown", 0, 0, 1) * 5_000
        )
        self.assertEqual(peer.receive(), b"")
        broker.settle()
        self.assertEqual(
            peer.receive(), fetchHeader(0, 11) + encodeSet([b"b"]) + fetchHeader(0, 0) * 5_000
        )

    def test_otherTransports(self) -> None:
        """Over a transport that cannot send slices, the same answers come in the same order."""
        broker = self.broker()
        fill(broker, b"a", b"b")
        peer = broker.connect(plainServer)
        peer.send(
            encodeFetch("t", 0, 0, 100),
            encodeFetch("t", 0, 1000, 1),
            encodeFetch("t", 0, 11, 100),
            encodeOffsets("t", 0, -1, 1),
        )
        broker.settle()
        both = encodeSet([b"a", b"b"])
        self.assertEqual(
            peer.receive(),
            fetchHeader(0, 22)
            + both
            + fetchHeader(1, 0)
            + fetchHeader(0, 11)
            + both[11:]
            + offsetsAnswer([22]),
        )
        self.assertEqual(broker.pinCounts(), [0])


class HeldTests(LeadTestCase):
    """What arrives while a request waits is held, within limits."""

    def waiting(self, **properties: str) -> tuple[LeadBroker, Peer]:
        broker = self.broker(properties)
        fill(broker, b"a")
        peer = broker.connect()
        peer.send(produce(b"b"), encodeFetch("t", 0, 11, 100))
        return broker, peer

    def test_pauseAndResume(self) -> None:
        """
        When more is held than is received at once, the connection is no longer read; it is again
        when the waiting is over, and all is carried out.
        """
        broker, peer = self.waiting()
        frame = produce(b"x" * 50_000)
        sentCount = 0
        while peer.sendSome(frame) == len(frame) and sentCount < 1000:
            sentCount += 1
            broker.turn()
        self.assertLess(sentCount, 1000)
        self.assertGreater(peer.heldSize, SHARE_SIZE_MAX)
        self.assertLessEqual(peer.heldSize, 2 * SHARE_SIZE_MAX)
        self.assertNotIn(peer.transport, broker.reactor.getReaders())
        self.assertEqual(broker.log().logEndOffset, 22)
        broker.settle()
        self.assertEqual(peer.fetched(), [(0, encodeSet([b"b"]))])
        self.assertIn(peer.transport, broker.reactor.getReaders())
        self.assertEqual(
            (broker.log().logEndOffset - 22) // len(encodeSet([b"x" * 50_000])), sentCount
        )

    def test_heldLittle(self) -> None:
        """A little that is held does not stop the reading."""
        broker, peer = self.waiting()
        peer.send(encodeOffsets("t", 0, -1, 1))
        self.assertIn(peer.transport, broker.reactor.getReaders())
        self.assertGreater(peer.heldSize, 0)

    def test_halfClosed(self) -> None:
        """
        A client that has closed its half gets the answers that it waits for, what it has sent is
        carried out, and then it is closed (row 21).
        """
        broker, peer = self.waiting()
        peer.send(produce(b"c"), encodeFetch("t", 0, 0, 11), produce(b"d")[:-1])
        peer.endSending()
        self.assertEqual((peer.receive(), peer.closed), (b"", False))
        broker.settle()
        self.assertEqual(
            peer.receive(),
            fetchHeader(0, 11) + encodeSet([b"b"]) + fetchHeader(0, 11) + encodeSet([b"a"]),
        )
        self.assertTrue(peer.closed)
        self.assertEqual(broker.contents(), encodeSet([b"a", b"b", b"c"]))

    def test_connectSendClose(self) -> None:
        """ "Connect, send, close" keeps every whole frame, and drops one that is cut (row 21)."""
        broker = self.broker()
        peer = broker.connect()
        peer.sendSome(produce(b"a") + produce(b"b") + produce(b"c")[:-1])
        peer.close()
        broker.settle()
        self.assertEqual(broker.contents(), encodeSet([b"a", b"b"]))
        self.assertEqual(
            (broker.counters.connections.openCount, broker.service.connections.open), (0, {})
        )

    def test_closedWhileHeldBack(self) -> None:
        """
        It does so, too, when the first of the frames is being held back at the moment when the
        connection is lost: all are carried out when there is room (row 21).
        """
        broker = self.broker({"max.unflushed.bytes.per.partition": "1000"})
        fill(broker, b"a")
        peer = broker.connect()
        peer.sendSome(
            produce(b"x" * 2000) + b"".join(produce(b"%d" % number) for number in range(5))
        )
        broker.turn()
        peer.vanish()
        self.assertEqual(broker.service.connections.open, {})
        self.assertEqual(broker.log().logEndOffset, 11 + 2010)
        broker.settle()
        self.assertEqual(
            broker.contents(), encodeSet([b"a", b"x" * 2000, b"0", b"1", b"2", b"3", b"4"])
        )
        self.assertEqual(broker.pinCounts(), [0])

    def test_answersForNobody(self) -> None:
        """
        An answer that is found when its client has gone is let go, and what is behind it carried
        out.
        """
        broker, peer = self.waiting()
        peer.sendSome(encodeFetch("t", 0, 0, 100) + produce(b"c"))
        broker.turn()
        peer.close()
        broker.settle()
        self.assertEqual(broker.contents(), encodeSet([b"a", b"b", b"c"]))
        self.assertEqual(broker.pinCounts(), [0])

    def test_lostWhileSending(self) -> None:
        """
        A connection that is lost while its answer goes out lets the rest of it go, and what is
        behind it is carried out (row 21).
        """
        broker = self.broker()
        fill(broker, *[b"x" * 100_000] * 30)
        for transport in (SendfileTransport, plainServer):
            peer = broker.connect(transport)
            peer.resize(10_000)
            peer.sendSome(
                encodeFetch("t", 0, 0, 3_000_000)
                + encodeFetch("t", 0, 0, 3_000_000)
                + produce(b"behind")
            )
            broker.settle()
            self.assertTrue(peer.protocol.busy)
            before = broker.log().logEndOffset
            peer.vanish()
            broker.settle()
            self.assertEqual(broker.log().logEndOffset, before + 16)
            self.assertEqual(broker.pinCounts(), [0])


class RefusalTests(LeadTestCase):
    """What is refused ends its connection, and no other."""

    def test_malformed(self) -> None:
        """
        Each kind of request that cannot be understood closes its connection without an answer;
        another connection does not notice (row 19).
        """
        broker = self.broker()
        fill(broker, b"a")
        other = broker.connect()
        other.send(encodeFetch("t", 0, 0, 100)[:9])
        good = encodeFetch("t", 0, 0, 100)
        for number, bad in enumerate(
            (
                struct.pack(">i", 0),
                struct.pack(">i", -1),
                struct.pack(">i", 104857601),
                struct.pack(">ib", 1, 0),
                struct.pack(">ih", 2, 5),
                struct.pack(">ih", 2, -1),
                struct.pack(">ih", 2, 1),
                struct.pack(">i", len(good) - 5) + good[4:-1],
                struct.pack(">ihhi", 8, 1, 500, 0),
                struct.pack(">ihhiqi", 20, 1, -1, 0, 0, 100),
                struct.pack(">ihhii", 12, 0, -1, 0, 0),
                struct.pack(">ihhiqi", 20, 4, -1, 0, -1, 100),
                struct.pack(">ihh", 4, 2, -1),
                struct.pack(">ihh", 4, 3, -1),
                struct.pack(">ihh", 4, 3, 1),
                struct.pack(">ihh1sii", 13, 0, 1, b"t", 0, -1),
                struct.pack(">ihh1sii", 13, 0, 1, b"t", 0, 1),
            )
        ):
            peer = broker.connect()
            peer.send(bad)
            self.assertTrue(peer.isClosed, bad)
            self.assertEqual(broker.counters.connections.malformedCount, number + 1)
        other.send(good[9:])
        self.assertEqual(other.fetched(), [(0, encodeSet([b"a"]))])
        self.assertEqual(len(broker.service.connections.open), 1)

    def test_theRestIsLost(self) -> None:
        """
        What was sent behind a refused request on its connection is lost; what was sent before it
        stays (spec-0.7 wire-protocol §11).
        """
        broker = self.broker()
        fill(broker, b"a")
        peer = broker.connect()
        peer.send(
            produce(b"b"), encodeFetch("t", 0, 0, 11), struct.pack(">ih", 2, 77), produce(b"c")
        )
        self.assertEqual(peer.receive(), fetchHeader(0, 11) + encodeSet([b"a"]))
        self.assertTrue(peer.closed)
        broker.settle()
        self.assertEqual(broker.contents(), encodeSet([b"a", b"b"]))

    def test_refusedLater(self) -> None:
        """The same when the refusal came after a wait."""
        broker = self.broker()
        peer = broker.connect()
        peer.send(
            produce(b"a"),
            encodeProduce("t", 0, b"\x00\x00\x00\x06\x01\x00\xff\xff\xff\xff"),
            produce(b"c"),
        )
        broker.settle()
        self.assertTrue(peer.isClosed)
        self.assertEqual(
            (broker.contents(), broker.counters.connections.malformedCount), (encodeSet([b"a"]), 1)
        )

    def test_refusedForNobody(self) -> None:
        """
        A held request that is refused when its client has gone is logged and counted; nothing is
        there to be closed. What came with it for another partition is kept.
        """
        broker = self.broker()
        lines = capture(self)
        peer = broker.connect()
        peer.send(produce(b"a"))
        peer.sendSome(produce(b"b", partition=5) + produce(b"c"))
        peer.close()
        broker.settle()
        self.assertEqual(broker.contents(), encodeSet([b"a", b"c"]))
        self.assertEqual(broker.counters.connections.malformedCount, 1)
        self.assertTrue(any("partitions 0 to 0, not 5" in line for line in lines()), lines())

    def test_frameLimit(self) -> None:
        """
        A frame of the largest size is read; one byte more ends the connection when its size is
        there (row 15, SocketServerTest.tooBigRequestIsRejected).
        """
        broker = self.broker({"max.socket.request.bytes": "50"})
        peer = broker.connect()
        frame = encodeFetch("t" * 30, 0, 0, 100)
        self.assertEqual(len(frame), 54)
        peer.send(frame)
        self.assertEqual(peer.fetched(), [(0, b"")])
        peer.send(encodeFetch("t" * 31, 0, 0, 100)[:4])
        self.assertTrue(peer.isClosed)

    def test_logged(self) -> None:
        """A refusal is logged with the client's address and the reason, one line for many."""
        broker = self.broker()
        lines = capture(self)
        for _ in range(20):
            broker.connect().send(struct.pack(">ih", 2, 7))
        self.assertEqual(
            lines(), ["Closed the connection of 192.0.2.1:1: request type 7; 0 to 4 are known"]
        )


class StrangerTests(LeadTestCase):
    """Clients of another kind."""

    def test_named(self) -> None:
        """
        HTTP, TLS and Redis are cut, and a log line names what they look like, one
        for many of them.
        """
        for greeting, name in (
            (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP"),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "TLS"),
            (b"*1\r\n$4\r\nPING\r\n", "Redis"),
        ):
            broker = self.broker()
            lines = capture(self)
            for _ in range(20):
                peer = broker.connect()
                peer.send(greeting)
                self.assertTrue(peer.isClosed)
            found = [line for line in lines() if "seems to speak" in line]
            self.assertEqual(len(found), 1, lines())
            self.assertIn(
                f"192.0.2.1:1 seems to speak {name}, not the protocol of Kafka 0.7: closed",
                found[0],
            )
            self.assertEqual(
                (
                    broker.counters.connections.foreignCount,
                    broker.counters.connections.malformedCount,
                ),
                (20, 20),
            )
            broker.advance(10)
            broker.connect().send(greeting)
            self.assertIn("(19 more of this kind were not logged)", lines()[-1])

    def test_onlyAtTheBeginning(self) -> None:
        """A client that has been understood once is no stranger, whatever it sends afterwards."""
        broker = self.broker()
        lines = capture(self)
        peer = broker.connect()
        peer.send(encodeFetch("t", 0, 0, 1))
        self.assertEqual(peer.fetched(), [(0, b"")])
        peer.send(b"GET / HTTP/1.1\r\n")
        self.assertTrue(peer.isClosed)
        self.assertEqual(broker.counters.connections.foreignCount, 0)
        self.assertEqual(len(lines()), 1)
        self.assertNotIn("HTTP", lines()[0])

    def test_ourOwnMistakes(self) -> None:
        """A good request with a bad message set is no stranger's."""
        broker = self.broker()
        peer = broker.connect()
        peer.send(encodeProduce("test", 0, b"\x00\x00\x00\x06\x01\x00\xff\xff\xff\xff"))
        broker.settle()
        self.assertTrue(peer.isClosed)
        self.assertEqual(broker.counters.connections.foreignCount, 0)


class LargeFrameTests(LeadTestCase):
    """Frames above what is received at once ask for memory."""

    LIMITS = {
        "max.socket.request.bytes": str(4 * MIB),
        "max.request.memory.bytes": str(4 * MIB),
        "frame.deadline.ms": "5000",
    }

    def setUp(self) -> None:
        super().setUp()
        self.frame = produce(*[b"x" * 990_000] * 3)
        self.size = len(self.frame)

    def begun(self, broker: LeadBroker) -> Peer:
        peer = broker.connect()
        peer.send(self.frame[:100_000])
        return peer

    def test_granted(self) -> None:
        """
        A large frame is granted its memory, arrives, is carried out, and the memory given back.
        """
        broker = self.broker(self.LIMITS)
        admission = broker.service._memory
        peer = self.begun(broker)
        self.assertEqual(admission.reservedSize, self.size)
        peer.send(self.frame[100_000:])
        broker.settle()
        self.assertEqual((broker.log().logEndOffset, admission.reservedSize), (self.size - 17, 0))

    def test_paused(self) -> None:
        """
        A second one that finds no memory is not read from, beyond what everybody may hold, until
        the first is done; then it arrives, too.
        """
        broker = self.broker(self.LIMITS)
        admission = broker.service._memory
        first, second = self.begun(broker), self.begun(broker)
        sent = 100_000
        while (some := second.sendSome(self.frame[sent : sent + 50_000])) > 0:
            sent += some
            broker.turn()
        self.assertLess(sent, 2 * MIB)
        self.assertLessEqual(second.heldSize, 2 * SHARE_SIZE_MAX)
        self.assertEqual((admission.reservedSize, admission.waitingCount), (self.size, 1))
        first.send(self.frame[100_000:])
        broker.settle()
        self.assertEqual((admission.reservedSize, admission.waitingCount), (self.size, 0))
        second.send(self.frame[sent:])
        broker.settle()
        self.assertEqual(
            (broker.log().logEndOffset, admission.reservedSize), (2 * (self.size - 17), 0)
        )

    def test_smallOnesPass(self) -> None:
        """While large frames wait for memory, clients with ordinary requests are served."""
        broker = self.broker(self.LIMITS)
        self.begun(broker)
        self.begun(broker)
        other = broker.connect()
        other.send(produce(b"y" * 900_000), encodeOffsets("t", 0, -1, 1))
        broker.settle()
        self.assertEqual(other.offsets(), [[900_010]])

    def test_overdue(self) -> None:
        """
        Who was granted memory and does not send is cut when it is overdue and another waits, which
        then goes on.
        """
        broker = self.broker(self.LIMITS)
        lines = capture(self)
        first, second = self.begun(broker), self.begun(broker)
        for _ in range(7):
            broker.advance(1)
        self.assertFalse(first.isClosed)
        broker.advance(1)
        self.assertTrue(first.isClosed)
        self.assertEqual(broker.counters.connections.slowCount, 1)
        self.assertEqual(
            lines(),
            [
                "192.0.2.1:1 was too slow with a large request, "
                "and others wait for its memory: cut off"
            ],
        )
        second.send(self.frame[100_000:])
        broker.settle()
        self.assertEqual(broker.log().logEndOffset, self.size - 17)

    def test_waiterGoes(self) -> None:
        """A client that goes while it waits for memory, or has been granted some, gives it back."""
        broker = self.broker(self.LIMITS)
        admission = broker.service._memory
        first, second, third = self.begun(broker), self.begun(broker), self.begun(broker)
        second.vanish()
        self.assertEqual((admission.reservedSize, admission.waitingCount), (self.size, 1))
        first.vanish()
        self.assertEqual((admission.reservedSize, admission.waitingCount), (self.size, 0))
        third.vanish()
        self.assertEqual(admission.reservedSize, 0)

    def test_halfClosedInTheMiddle(self) -> None:
        """
        A client that ends in the middle of a large frame is closed, and its memory given back.
        """
        broker = self.broker(self.LIMITS)
        peer = self.begun(broker)
        peer.endSending()
        self.assertTrue(peer.isClosed)
        self.assertEqual(broker.service._memory.reservedSize, 0)

    def test_heldUntilCarriedOut(self) -> None:
        """
        A large request that is held back keeps its memory, so that all that wait together stay
        within the limit; it is not overdue, however long it waits.
        """
        broker = self.broker({**self.LIMITS, "max.unflushed.bytes.per.partition": "1000"})
        admission = broker.service._memory
        fill(broker, b"a")
        small = broker.connect()
        small.send(produce(b"y" * 2000))
        first = broker.connect()
        first.send(self.frame)
        self.assertEqual(broker.log().logEndOffset, 11 + 2010)
        second = self.begun(broker)
        self.assertEqual((admission.reservedSize, admission.waitingCount), (self.size, 1))
        for _ in range(60):
            broker.advance(1)
        self.assertFalse(first.isClosed)
        broker.settle()
        self.assertEqual((admission.reservedSize, admission.waitingCount), (self.size, 0))
        second.send(self.frame[100_000:])
        broker.settle()
        self.assertEqual(
            (broker.log().logEndOffset, admission.reservedSize), (2021 + 2 * (self.size - 17), 0)
        )

    def test_refused(self) -> None:
        """A large request that is refused gives its memory back, at once or after a wait."""
        broker = self.broker(self.LIMITS)
        admission = broker.service._memory
        fill(broker, b"a")
        for partition, bad in (
            (0, self.frame[:-1] + b"?"),
            (9, produce(b"x" * 990_000, partition=9)),
        ):
            peer = broker.connect()
            peer.send(bad[:100_000])
            self.assertGreater(admission.reservedSize, 0, partition)
            peer.send(bad[100_000:])
            broker.settle()
            self.assertTrue(peer.isClosed)
            self.assertEqual(admission.reservedSize, 0)


class CrowdTests(LeadTestCase):
    """How many there may be."""

    def test_connectionsMax(self) -> None:
        """
        One connection more than allowed is cut at once, with one log line for many; when one has
        gone there is room again.
        """
        broker = self.broker({"max.connections": "3"})
        lines = capture(self)
        first = broker.connect()
        broker.connect()
        broker.connect()
        for _ in range(5):
            self.assertIsNone(broker.tryConnect())
        self.assertEqual(
            (broker.counters.connections.refusedCount, broker.counters.connections.openCount),
            (5, 3),
        )
        self.assertEqual(len(lines()), 1)
        self.assertIn("There are 3 connections already", lines()[0])
        first.close()
        self.assertIsNotNone(broker.tryConnect())
        counters = broker.counters.connections
        self.assertEqual(
            (counters.openedCount, counters.openCount, counters.openCountMax), (4, 3, 3)
        )

    def test_share(self) -> None:
        """What each connection receives at once goes down as there are more of them."""
        broker = self.broker()
        peer = broker.connect()
        self.assertEqual(peer.transport.bufferSize, RECEIVE_SIZE_MAX)
        for _ in range(399):
            broker.service._memory.connectionMade()
        self.assertLessEqual(peer.transport.bufferSize, (64 << 20) // 400)
        self.assertGreater(peer.transport.bufferSize, (64 << 20) // 600)


class StalledTests(LeadTestCase):
    """Readers that take nothing."""

    def setUp(self) -> None:
        super().setUp()
        self.served = self.broker({"reader.idle.ms": "1000", "log.flush.interval": "1"})
        fill(self.served, *[b"x" * 100_000] * 30)

    def fetching(self, *transport: Any) -> Peer:
        peer = self.served.connect(*transport)
        peer.resize(10_000)
        peer.send(encodeFetch("t", 0, 0, 3_000_000))
        self.served.settle()
        self.assertTrue(peer.protocol.busy)
        return peer

    def look(self) -> None:
        self.served.advance(1)
        self.served.settle()

    def test_cut(self) -> None:
        """A client that takes nothing of its answer for long is cut, and its slices let go."""
        lines = capture(self)
        peer = self.fetching()
        self.look()
        self.assertIn(peer.protocol, self.served.service.connections.open)
        self.look()
        self.assertEqual(self.served.service.connections.open, {})
        self.assertEqual(self.served.counters.connections.slowCount, 1)
        self.assertEqual(self.served.pinCounts(), [0])
        self.assertEqual(len(lines()), 1)
        self.assertIn("takes nothing of its answer: cut off", lines()[0])

    def test_cutWithoutSlices(self) -> None:
        """So is one over a transport that cannot send slices."""
        self.fetching(plainServer)
        self.look()
        self.look()
        self.assertEqual(self.served.service.connections.open, {})
        self.assertEqual(self.served.counters.connections.slowCount, 1)
        self.assertEqual(self.served.pinCounts(), [0])

    def test_slow(self) -> None:
        """One that takes a little now and then is served to the end."""
        for transport in ((), (plainServer,)):
            peer = self.fetching(*transport)
            size = 0
            for _ in range(10):
                self.look()
                size += len(peer.receive(300_000))
            self.assertIn(peer.protocol, self.served.service.connections.open)
            for _ in range(50):
                self.served.settle()
                size += len(peer.receive())
            self.assertEqual(size, 3_000_006)
            peer.close()

    def test_idle(self) -> None:
        """One that waits for nothing stays, however long."""
        peer = self.served.connect()
        for _ in range(5):
            self.look()
        peer.send(encodeFetch("t", 0, 0, 0))
        self.assertEqual(peer.fetched(), [(0, b"")])

    def test_busyWithUs(self) -> None:
        """One whose answer waits for the broker is not to blame."""
        peer = self.served.connect()
        peer.send(produce(b"y"), encodeFetch("t", 0, self.served.log().logEndOffset, 100))
        for _ in range(3):
            self.served.advance(1)
        self.served.settle()
        self.assertEqual(peer.fetched(), [(0, encodeSet([b"y"]))])


class EchoDialect:
    """
    A dialect of its own for L{ServerConnection}: a frame is answered with itself when the test says
    so, refused, or breaks.

    @ivar waiting: Deferreds of answers, with the frames.
    @ivar isKeeping: whether requests keep their frames.
    @ivar isHolding: whether clients are held back; C{released} is called when they are no longer.
    """

    name = "echo"

    def __init__(self, slotCountMax: int = 1) -> None:
        self.slotCountMax = slotCountMax
        self.allowsHalfClose = True
        self.endsIdle = False
        self.isAuthenticated = True
        self.refusal = ""
        self.sizeMax = 50
        self.isKeeping = True
        self.isHolding = False
        self.lostCount = 0
        self.waiting: list[tuple[bytes, Deferred[Any]]] = []

    def newDecoder(self) -> Any:
        class Decoder(FrameDecoder):
            def takeRequest(self) -> bytes | None:
                return self.take()

        return Decoder(self.sizeMax)

    def handle(self, request: bytes, state: None) -> Any:
        if request == b"refuse":
            raise InvalidRequestValueError("refused")
        answer: Deferred[Any] = Deferred()
        self.waiting.append((request, answer))
        return answer

    def newState(self, transport: Any) -> None:
        if transport is not None and self.refusal:
            raise InvalidRequestValueError(self.refusal)

    def keepsFrame(self, request: bytes) -> bool:
        return self.isKeeping

    def sniff(self, greeting: bytes) -> str | None:
        return None

    def mustAuthenticate(self, state: None) -> bool:
        return not self.isAuthenticated

    def isThrottled(self, state: None, released: Callable[[], object]) -> bool:
        self.released = released
        return self.isHolding

    def connectionLost(self, state: None) -> None:
        self.lostCount += 1

    def describe(self, request: bytes) -> tuple[str, None]:
        return request.decode(), None

    def answer(self, index: int = 0) -> None:
        """By default the oldest one."""
        request, answer = self.waiting.pop(index)
        answer.callback([struct.pack(">i", len(request)) + request])


class CountingFlow:
    """All that answers of plain bytes need of what connections share."""

    size = 0

    def onBytesSent(self, size: int) -> None:
        self.size += size


class DialectTestCase(SynchronousTestCase):
    """A connection with a dialect of the test's own."""

    slotCountMax = 1

    def setUp(self) -> None:
        self.clock = Clock()
        self.dialect = EchoDialect(self.slotCountMax)
        self.counters = ConnectionCounters()
        self.lines = capture(self)
        flow: Any = CountingFlow()
        self.connections = BrokerConnections(
            self.clock,
            RequestMemory(self.clock, MIB, 1000),
            flow,
            self.counters,
            RateLimitedLogger(self.clock, Logger()),
        )
        self.factory = BrokerFactory(self.connections, self.dialect)
        self.connection = self.connect()

    def connect(self) -> ServerConnection:
        connection = self.factory.buildProtocol(IPv4Address("TCP", "192.0.2.1", 5))
        assert isinstance(connection, ServerConnection)
        self.transport = StringTransport()
        connection.makeConnection(self.transport)
        return connection

    def feed(self, *bodies: bytes) -> None:
        self.connection.dataReceived(
            b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        )


class DialectTests(DialectTestCase):
    """What a connection does with whatever dialect it is given."""

    def test_echo(self) -> None:
        """A request is answered with what the dialect says (SocketServerTest.simpleRequest)."""
        self.feed(b"hello")
        self.dialect.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\5hello")

    def test_oneAtATime(self) -> None:
        """The next request is asked for when the one before has been answered."""
        self.feed(b"one", b"two")
        self.assertEqual([request for request, _ in self.dialect.waiting], [b"one"])
        self.dialect.answer()
        self.assertEqual([request for request, _ in self.dialect.waiting], [b"two"])

    def test_refused(self) -> None:
        """A refusal ends the connection, at once or later."""
        self.feed(b"one", b"refuse", b"two")
        self.assertFalse(self.transport.disconnecting)
        self.dialect.answer()
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual((self.dialect.waiting, self.counters.malformedCount), ([], 1))
        self.connection = self.connect()
        self.feed(b"one", b"two")
        self.dialect.waiting.pop()[1].errback(Failure(InvalidRequestValueError("later")))
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual((self.dialect.waiting, self.counters.malformedCount), ([], 2))

    def test_nothingBehindTheEnd(self) -> None:
        """
        What a transport still hands out when the connection was closed is not looked at: it may
        begin in the middle of anything.
        """
        self.feed(b"refuse")
        self.assertTrue(self.transport.disconnecting)
        self.feed(b"smuggled")
        self.assertEqual(
            (self.dialect.waiting, self.counters.malformedCount, self.transport.value()),
            ([], 1, b""),
        )
        self.connection = self.connect()
        self.feed(b"one")
        self.connection.finish()
        self.feed(b"two")
        self.dialect.answer()
        self.assertEqual((self.dialect.waiting, self.transport.value()), ([], b"\0\0\0\3one"))

    def test_lingering(self) -> None:
        """Who was closed and does not end is cut off at the second look; who ends is forgotten."""
        self.feed(b"refuse")
        lingering = self.transport
        self.connections.dropUnclosed()
        self.assertFalse(lingering.disconnected)
        ending, self.connection = self.connection, self.connect()
        self.feed(b"refuse")
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.connections.dropUnclosed()
        self.assertTrue(lingering.disconnected)
        self.assertEqual(self.counters.slowCount, 1)
        ending.connectionLost(Failure(ConnectionAborted()))
        self.assertEqual((self.connections.closing, self.connections.open), ({}, {}))

    def test_unforeseen(self) -> None:
        """
        An unexpected failure is logged with its traceback and ends this connection; the process
        goes on.
        """
        self.feed(b"one", b"two")
        self.dialect.waiting.pop()[1].errback(Failure(ZeroDivisionError()))
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertIn("A request of 192.168.1.1:54321 failed unexpectedly", self.lines()[0])
        self.assertEqual((self.dialect.waiting, self.counters.malformedCount), ([], 0))

    def test_unforeseenLater(self) -> None:
        """So does an answer that cannot be sent, and it is no error of what gave it."""
        responds: list[Callable[[Any], None]] = []
        self.dialect.handle = (  # type: ignore[method-assign]
            lambda request, state: responds.append
        )
        self.feed(b"one")
        (respond,) = responds
        self.assertFalse(self.transport.disconnecting)
        respond([object()])
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(len(self.flushLoggedErrors(Exception)), 1)

    def test_unforeseenAtOnce(self) -> None:
        """So does a failure that is raised, and the memory of its large request comes back."""

        def handle(request: bytes, state: None) -> Any:
            raise ZeroDivisionError

        size = SHARE_SIZE_MAX + 1
        self.dialect.handle = handle  # type: ignore[method-assign]
        self.dialect.sizeMax = size
        self.connection = self.connect()
        frame = struct.pack(">i", size) + bytes(size)
        self.connection.dataReceived(frame[:100])
        self.assertEqual(self.connections.memory.reservedSize, len(frame))
        self.connection.dataReceived(frame[100:])
        self.assertEqual(self.connections.memory.reservedSize, 0)
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_memoryOfWaiting(self) -> None:
        """
        A request that waits gives the memory of its frame back at once, or with its answer if it
        keeps the frame.
        """
        size = SHARE_SIZE_MAX + 1
        self.dialect.sizeMax = size
        frame = struct.pack(">i", size) + bytes(size)
        memory = self.connections.memory
        for isKeeping, reservedSize in ((True, len(frame)), (False, 0)):
            self.dialect.isKeeping = isKeeping
            self.connection = self.connect()
            self.connection.dataReceived(frame[:100])
            self.assertEqual(memory.reservedSize, len(frame))
            self.connection.dataReceived(frame[100:])
            self.assertEqual(len(self.dialect.waiting), 1)
            self.assertEqual(memory.reservedSize, reservedSize)
            self.dialect.answer()
            self.assertEqual((self.transport.value(), memory.reservedSize), (frame, 0))

    def test_authenticating(self) -> None:
        """
        A client that has not authenticated at the second look is cut off, whatever it sent; one
        that has, is not.
        """
        self.dialect.isAuthenticated = False
        self.connection = self.connect()
        silent = self.transport
        self.feed(b"one")
        self.connections.dropStalled()
        self.assertFalse(silent.disconnected)
        self.connections.dropStalled()
        self.assertTrue(silent.disconnected)
        self.assertEqual(self.counters.slowCount, 1)
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.connection = self.connect()
        self.connections.dropStalled()
        self.dialect.isAuthenticated = True
        self.connections.dropStalled()
        self.connections.dropStalled()
        self.assertFalse(self.transport.disconnected)
        self.assertEqual(self.connections.authenticating, {})

    def test_idle(self) -> None:
        """A connection that is silent for long is closed, where the protocol says so."""
        for endsIdle in (False, True):
            self.dialect.endsIdle = endsIdle
            self.connection = self.connect()
            for _ in range(3):
                self.feed(b"one")
                self.dialect.answer()
                for _ in range(2):
                    self.connections.dropIdle(2)
            self.assertFalse(self.transport.disconnecting)
            self.connections.dropIdle(2)
            self.assertEqual(self.transport.disconnecting, endsIdle)

    def test_idleWhileItWaits(self) -> None:
        """A client that waits for an answer is not idle, and counts as active when it has it."""
        self.dialect.endsIdle = True
        self.feed(b"one")
        for _ in range(5):
            self.connections.dropIdle(2)
        self.dialect.answer()
        for _ in range(2):
            self.connections.dropIdle(2)
        self.assertFalse(self.transport.disconnecting)
        self.connections.dropIdle(2)
        self.assertTrue(self.transport.disconnecting)

    def test_countOfAnAddress(self) -> None:
        """An address has its limit of connections; another address may have another limit."""
        connections = BrokerConnections(
            self.clock,
            self.connections.memory,
            self.connections.sendContext,
            self.counters,
            RateLimitedLogger(self.clock, Logger("pylogbroker")),
            0,
            1,
            {"192.0.2.9": 2, "192.0.2.8": 0},
        )

        def connect(host: str) -> ServerConnection | None:
            address = (IPv6Address if ":" in host else IPv4Address)("TCP", host, 5)
            made = BrokerFactory(connections, self.dialect).buildProtocol(address)
            if made is None:
                return None
            made.makeConnection(StringTransport(peerAddress=address))
            assert isinstance(made, ServerConnection)
            return made

        first = connect("192.0.2.1")
        assert first is not None
        self.assertIsNone(connect("192.0.2.1"))
        self.assertIsNone(connect("::ffff:192.0.2.1"))
        self.assertIsNone(connect("192.0.2.8"))
        self.assertIsNotNone(connect("2001:db8::1"))
        self.assertEqual([connect("192.0.2.9") is None for _ in range(3)], [False, False, True])
        first.connectionLost(Failure(ConnectionAborted()))
        self.assertIsNotNone(connect("192.0.2.1"))
        self.assertEqual(self.counters.refusedCount, 4)
        self.assertIn("1 connections of its address already: 192.0.2.1:5", self.lines()[0])

    def test_notServed(self) -> None:
        """A client that the chosen protocol does not serve is closed, and the reason is logged."""
        self.dialect.refusal = "nobody knows it"
        first = EchoDialect()
        self.factory = BrokerFactory(
            self.connections, first, lambda transport, greeting, isEnough: self.dialect
        )
        self.connections.log = RateLimitedLogger(self.clock, Logger("pylogbroker"))
        self.connection = self.connect()
        self.feed(b"one")
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual((self.dialect.waiting, self.counters.malformedCount), ([], 1))
        self.assertIn("nobody knows it", self.lines()[0])
        self.connection.connectionLost(Failure(ConnectionAborted()))
        # The state is the first protocol's, which another one cannot read.
        self.assertEqual((first.lostCount, self.dialect.lostCount), (1, 0))

    def test_heldBack(self) -> None:
        """
        A client that is held back is not read, and no request of it is taken, until that is over.
        """
        self.feed(b"one", b"two")
        self.dialect.isHolding = True
        self.dialect.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one")
        self.assertEqual((self.dialect.waiting, self.transport.producerState), ([], "paused"))
        self.dialect.isHolding = False
        self.dialect.released()
        self.assertEqual([request for request, _ in self.dialect.waiting], [b"two"])
        self.dialect.answer()
        self.assertEqual(self.transport.producerState, "producing")

    def test_heldBackAndLost(self) -> None:
        """What a client that is held back has sent is carried out when it is gone."""
        self.feed(b"one", b"two")
        self.dialect.isHolding = True
        self.dialect.answer()
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.assertEqual([request for request, _ in self.dialect.waiting], [b"two"])
        self.dialect.answer()
        self.assertEqual((self.connections.open, self.connections.orphaned), ({}, {}))

    def test_memoryOfHeldBack(self) -> None:
        """
        A client that is held back reserves no memory for its next frame. A frame that has some
        already is read to its end and taken, so that the memory comes back.
        """
        size = SHARE_SIZE_MAX + 1
        self.dialect.sizeMax = size
        self.connection = self.connect()
        frame = struct.pack(">i", size) + bytes(size)
        memory = self.connections.memory
        self.connection.dataReceived(frame[:100])
        self.dialect.isHolding = True
        self.connection.dataReceived(frame[100:] + frame[:100])
        self.assertEqual(len(self.dialect.waiting), 1)
        self.dialect.answer()
        self.assertEqual((self.transport.value(), memory.reservedSize), (frame, 0))
        self.assertEqual(self.transport.producerState, "paused")
        self.dialect.isHolding = False
        self.dialect.released()
        self.assertEqual(memory.reservedSize, len(frame))
        self.assertEqual(self.transport.producerState, "producing")

    def test_finish(self) -> None:
        """
        Told to finish, a connection reads no more, carries out what it holds, and closes; an idle
        one closes at once.
        """
        self.feed(b"one", b"two")
        self.connection.finish()
        self.connection.finish()
        self.assertEqual(
            (self.transport.producerState, self.transport.disconnecting), ("paused", False)
        )
        self.dialect.answer()
        self.assertFalse(self.transport.disconnecting)
        self.dialect.answer()
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(self.transport.value(), b"\0\0\0\3one\0\0\0\3two")
        self.connection = self.connect()
        self.connection.finish()
        self.assertTrue(self.transport.disconnecting)

    def test_abort(self) -> None:
        """Told to abort, it is closed now; what it holds is carried out all the same."""
        self.feed(b"one", b"two")
        self.connection.abort()
        self.assertTrue(self.transport.disconnected)
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.dialect.answer()
        self.assertEqual([request for request, _ in self.dialect.waiting], [b"two"])
        self.dialect.answer()
        self.assertEqual((self.transport.value(), self.connections.open), (b"", {}))

    def test_writeConnectionLost(self) -> None:
        """It never closes its own half alone; should a transport say so, nothing happens."""
        self.connection.writeConnectionLost()
        self.assertFalse(self.transport.disconnecting)


class SlotTests(DialectTestCase):
    """Connections whose protocol allows several requests in progress."""

    slotCountMax = 3

    def requests(self) -> list[bytes]:
        return [request for request, _ in self.dialect.waiting]

    def answer(self, index: int = 0) -> None:
        """Answer a request that waits, and end the turn of the reactor."""
        self.dialect.answer(index)
        self.clock.advance(0)

    def test_inOrder(self) -> None:
        """Answers leave in the order of the requests, in whatever order they are ready."""
        self.feed(b"one", b"two", b"three")
        self.assertEqual(self.requests(), [b"one", b"two", b"three"])
        self.answer(2)
        self.answer(1)
        self.assertEqual(self.transport.value(), b"")
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one\0\0\0\3two\0\0\0\5three")

    def test_memoryOfAnswered(self) -> None:
        """An answer that waits for an earlier one does not keep the memory of its request."""
        size = SHARE_SIZE_MAX + 1
        self.dialect.sizeMax = size
        self.connection = self.connect()
        frame = struct.pack(">i", size) + bytes(size)
        self.feed(b"one")
        self.connection.dataReceived(frame[:100])
        self.connection.dataReceived(frame[100:])
        self.assertEqual(self.connections.memory.reservedSize, len(frame))
        self.answer(1)
        self.assertEqual(self.connections.memory.reservedSize, 0)
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one" + frame)

    def test_together(self) -> None:
        """What is answered in one turn of the reactor, by a flush perhaps, leaves in one write."""
        self.feed(b"one", b"two", b"three")
        for _ in range(3):
            self.dialect.answer()
            self.assertEqual(self.transport.value(), b"")
        self.clock.advance(0)
        self.assertEqual(self.transport.value(), b"\0\0\0\3one\0\0\0\3two\0\0\0\5three")

    def test_lostInTheTurn(self) -> None:
        """An answer whose connection is lost before the turn ends is sent to nobody."""
        self.feed(b"one", b"two")
        self.dialect.answer()
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.answer()
        self.assertEqual((self.connections.orphaned, self.transport.value()), ({}, b""))

    def test_bounded(self) -> None:
        """
        One request more than there are slots waits until the first answer is sent, not until any is
        ready.
        """
        self.feed(b"one", b"two", b"three", b"four")
        self.assertEqual(self.requests(), [b"one", b"two", b"three"])
        self.answer(1)
        self.assertEqual(self.requests(), [b"one", b"three"])
        self.answer()
        self.assertEqual(self.requests(), [b"three", b"four"])

    def test_halfClosed(self) -> None:
        """
        A client that has closed its half gets what it asked for, if the protocol allows that; else
        its connection ends, and what is in progress goes on without it.
        """
        self.feed(b"one")
        self.connection.readConnectionLost()
        self.assertFalse(self.transport.disconnecting)
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one")
        self.assertTrue(self.transport.disconnecting)

    def test_halfClosedWhereThatIsTheEnd(self) -> None:
        """The same, where the protocol does not allow it."""
        self.dialect.allowsHalfClose = False
        self.feed(b"one", b"two")
        self.connection.readConnectionLost()
        self.assertTrue(self.transport.disconnecting)
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.assertEqual(self.requests(), [b"one", b"two"])
        self.answer()
        self.answer()
        self.assertEqual(len(self.connections.orphaned), 0)

    def test_finishing(self) -> None:
        """A broker that stops answers what was asked, whatever the protocol allows."""
        self.dialect.allowsHalfClose = False
        self.feed(b"one")
        self.connection.finish()
        self.assertFalse(self.transport.disconnecting)
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one")
        self.assertTrue(self.transport.disconnecting)

    def test_orphanedOutOfOrder(self) -> None:
        """
        When the client is gone, a request that waits for long keeps neither the answers behind it
        nor the requests that no slot was left for.
        """
        self.feed(b"one", b"two", b"three", b"four", b"five")
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.answer(1)
        self.assertEqual(self.requests(), [b"one", b"three", b"four"])
        self.answer(1)
        self.assertEqual(self.requests(), [b"one", b"four", b"five"])
        for _ in range(3):
            self.assertEqual(len(self.connections.orphaned), 1)
            self.answer()
        self.assertEqual(len(self.connections.orphaned), 0)

    def test_lostWithAnswers(self) -> None:
        """
        Nor does it keep the answers that waited for its own when the client went: they would keep
        deleted segments.
        """
        self.feed(b"one", b"two", b"three", b"four", b"five")
        self.answer(1)
        self.answer(1)
        self.assertEqual(self.requests(), [b"one"])
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.assertEqual(self.requests(), [b"one", b"four", b"five"])
        self.assertEqual(self.connection.unreservedSize, 0)

    def test_refusedInOrder(self) -> None:
        """
        A refusal ends the connection when the answers before it are sent; no request behind it is
        handled.
        """
        self.feed(b"one", b"refuse", b"two")
        self.feed(b"three")
        self.assertEqual(self.requests(), [b"one"])
        self.assertFalse(self.transport.disconnecting)
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one")
        self.assertTrue(self.transport.disconnecting)
        self.assertEqual(self.counters.malformedCount, 1)

    def test_failedBehind(self) -> None:
        """So does a failure that comes late; answers behind it are not sent."""
        self.feed(b"one", b"two", b"three")
        self.answer(2)
        self.dialect.waiting.pop(1)[1].errback(Failure(InvalidRequestValueError("late")))
        self.feed(b"four")
        self.assertEqual(self.requests(), [b"one"])
        self.assertFalse(self.transport.disconnecting)
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one")
        self.assertTrue(self.transport.disconnecting)

    def test_lost(self) -> None:
        """
        A connection that is lost counts as orphaned until its last request is done, and sends
        nothing.
        """
        self.feed(b"one", b"two")
        self.connection.connectionLost(Failure(ConnectionAborted()))
        self.assertEqual(list(self.connections.orphaned), [self.connection])
        self.answer(1)
        self.assertEqual(list(self.connections.orphaned), [self.connection])
        self.answer()
        self.assertEqual((self.connections.orphaned, self.transport.value()), ({}, b""))

    def test_finish(self) -> None:
        """A connection that is to finish answers what is in progress, in order, and closes then."""
        self.feed(b"one", b"two")
        self.connection.finish()
        self.answer(1)
        self.assertFalse(self.transport.disconnecting)
        self.answer()
        self.assertEqual(self.transport.value(), b"\0\0\0\3one\0\0\0\3two")
        self.assertTrue(self.transport.disconnecting)
