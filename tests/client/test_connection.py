"""Tests for L{pylogbroker.client.connection}, on a puppet network."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone
from twisted.internet.interfaces import IPushProducer, ISSLTransport, IUNIXTransport
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import alsoProvides
from zope.interface.verify import verifyObject

from pylogbroker.client.connection import WRITE_SIZE, ClientConnection, ConnectionLimits
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    FrameSizeError,
    PylogbrokerError,
    TimedOutError,
    WireError,
)
from pylogbroker.testing.network import MemoryPeer

LIMITS = ConnectionLimits(
    responseSizeMax=1 << 20,
    inFlightCountMax=3,
    waitingCountMax=4,
    waitingSizeMax=1000,
    abandonedMs=10_000,
    stallMs=30_000,
    closeMs=5_000,
)


def framed(body: bytes) -> bytes:
    """A frame."""
    return struct.pack(">i", len(body)) + body


class ConnectionCase(SynchronousTestCase):
    """A connection that was just made."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.ended: list[PylogbrokerError | None] = []
        self.connect(LIMITS)

    def connect(self, limits: ConnectionLimits) -> None:
        self.connection = self.build(limits)
        self.line = MemoryPeer(self.clock, self.connection)
        self.connection.makeConnection(self.line.transport)

    def build(self, limits: ConnectionLimits) -> ClientConnection:
        return ClientConnection(
            self.clock,
            "broker:9092",
            limits=limits,
            onEnd=lambda connection: self.ended.append(connection.refusal),
        )

    def arrived(self) -> bytes:
        """What arrives at the broker when nothing is in the way."""
        self.clock.advance(0)
        return self.line.take()

    def ask(self, body: bytes = b"?", timeoutMs: float = 30_000) -> Deferred[bytes]:
        return self.connection.request(framed(body), timeoutMs)

    def push(self) -> list[Deferred[None]]:
        """Bring the transport to push back. Returns what was sent for that."""
        self.line.stall()
        return [self.connection.send(b"x" * 70_000)]


class AnswerTests(ConnectionCase):
    """Answers go to those who asked, in order."""

    def test_interfaces(self) -> None:
        """
        It is a streaming producer to its transport, and has set the options of a TCP connection.
        """
        self.assertTrue(verifyObject(IPushProducer, self.connection))
        self.assertIs(self.line.transport.producer, self.connection)
        self.assertTrue(self.line.transport.streamingProducer)
        self.assertTrue(
            self.line.transport.getTcpNoDelay() and self.line.transport.getTcpKeepAlive()
        )

    def test_noTcpOptions(self) -> None:
        """A connection that is not TCP is left alone with options that it does not have."""
        connection = self.build(LIMITS)
        line = MemoryPeer(self.clock, connection)
        alsoProvides(line.transport, IUNIXTransport)
        connection.makeConnection(line.transport)
        self.assertFalse(line.transport.getTcpNoDelay() or line.transport.getTcpKeepAlive())
        self.assertIsNone(connection.refusal)

    def test_readSize(self) -> None:
        """As many bytes are read at once as is wished; TLS, which has its own, is left alone."""
        for interface, expected in ((ISSLTransport, 1 << 16), (None, 1 << 20)):
            connection = self.build(LIMITS._replace(readSize=1 << 20))
            line = MemoryPeer(self.clock, connection)
            line.transport.bufferSize = 1 << 16
            if interface is not None:
                alsoProvides(line.transport, interface)
            connection.makeConnection(line.transport)
            self.assertEqual(line.transport.bufferSize, expected)

    def test_pipelined(self) -> None:
        """Requests go out without waiting for answers; the first answer is the first request's."""
        asked = [self.ask(b"1"), self.ask(b"2")]
        self.assertEqual(self.arrived(), framed(b"1") + framed(b"2"))
        self.line.deliver(framed(b"one") + framed(b"two"))
        self.assertEqual([self.successResultOf(each) for each in asked], [b"one", b"two"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cutUp(self) -> None:
        """An answer may come byte by byte."""
        asked = self.ask()
        for each in framed(b"answer")[:-1]:
            self.line.deliver(bytes([each]))
        self.assertNoResult(asked)
        self.line.deliver(b"r")
        self.assertEqual(self.successResultOf(asked), b"answer")

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=20), st.data())
    def test_cutUpAnywhere(self, bodies: list[bytes], data: st.DataObject) -> None:
        """
        However the bytes of many answers are cut up, each answer is whole and goes to its own
        request.
        """
        clock = Clock()
        connection = ClientConnection(clock, "broker:9092")
        line = MemoryPeer(clock, connection)
        connection.makeConnection(line.transport)
        asked = [connection.request(framed(b"?"), 1000) for _ in bodies]
        stream = b"".join(map(framed, bodies))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            if start < end:
                line.deliver(stream[start:end])
        self.assertEqual([self.successResultOf(each) for each in asked], bodies)

    def test_askedMeanwhile(self) -> None:
        """
        Who gets an answer may ask again at once; that question is behind those that were asked
        before.
        """
        again: list[Deferred[bytes]] = []
        self.ask(b"1").addCallback(lambda _body: again.append(self.ask(b"3")))
        second = self.ask(b"2")
        self.line.deliver(framed(b"one"))
        self.assertEqual(self.arrived(), framed(b"1") + framed(b"2") + framed(b"3"))
        self.line.deliver(framed(b"two") + framed(b"three"))
        self.assertEqual(
            (self.successResultOf(second), self.successResultOf(again[0])), (b"two", b"three")
        )

    def test_unasked(self) -> None:
        """An answer to nothing cuts the connection: who sends that is no broker."""
        self.line.deliver(framed(b"surprise"))
        self.assertIsInstance(self.connection.refusal, WireError)
        self.clock.advance(0)
        self.assertIsInstance(self.line.reason, ConnectionAborted)

    def test_tooLarge(self) -> None:
        """
        An answer that announces more than is accepted cuts the connection when its size is there;
        all that is under way fails with that.
        """
        asked = [self.ask(), self.ask()]
        self.line.deliver(struct.pack(">i", LIMITS.responseSizeMax + 1))
        for each in asked:
            self.failureResultOf(each, FrameSizeError)
        self.clock.advance(0)
        self.assertIsInstance(self.line.reason, ConnectionAborted)

    def test_largest(self) -> None:
        """An answer of exactly the size that is accepted is accepted."""
        asked = self.ask()
        self.line.deliver(framed(b"x" * LIMITS.responseSizeMax))
        self.assertEqual(len(self.successResultOf(asked)), LIMITS.responseSizeMax)

    def test_nothingAfterTheCut(self) -> None:
        """What comes behind the bytes that cut the connection, or after it was cut, is not read."""
        asked = self.ask()
        asked.addCallback(lambda _body: self.connection.drop(WireError("that was no answer")))
        behind = self.ask()
        self.line.deliver(framed(b"one") + framed(b"two"))
        self.failureResultOf(behind, WireError)
        self.connection.dataReceived(framed(b"three"))
        self.assertEqual(str(self.connection.refusal), "that was no answer")

    def test_inFlight(self) -> None:
        """
        So many requests are under way at a time; the next is written when the first was answered.
        """
        for each in (b"1", b"2", b"3", b"4", b"5"):
            self.ask(each)
        self.assertEqual(self.arrived(), framed(b"1") + framed(b"2") + framed(b"3"))
        self.line.deliver(framed(b"one"))
        self.assertEqual(self.arrived(), framed(b"4"))
        self.line.deliver(framed(b"two") + framed(b"three"))
        self.assertEqual(self.arrived(), framed(b"5"))

    def test_orderOfSendAndAsk(self) -> None:
        """A frame without an answer does not overtake a question that may not go yet."""
        for each in (b"1", b"2", b"3", b"4"):
            self.ask(each)
        sent = self.connection.send(b"last")
        self.assertEqual(self.arrived(), framed(b"1") + framed(b"2") + framed(b"3"))
        self.assertNoResult(sent)
        self.line.deliver(framed(b"one"))
        self.assertEqual(self.arrived(), framed(b"4") + b"last")
        self.successResultOf(sent)

    def test_repr(self) -> None:
        """It says what it is doing."""
        self.ask().addErrback(lambda _reason: None)
        self.assertEqual(
            repr(self.connection), "<BrokerConnection broker:9092 open, 1 in flight, 0 waiting>"
        )
        self.line.cut()
        self.assertIn("was lost", repr(self.connection))


class TimeTests(ConnectionCase):
    """Nobody waits for ever, and who stops waiting disturbs nobody."""

    def test_timeout(self) -> None:
        """A question is given up after its time, not before; the error says how long that was."""
        asked = self.ask(timeoutMs=1500)
        self.clock.advance(1.499)
        self.assertNoResult(asked)
        self.clock.advance(0.001)
        self.assertIn("within 1500 ms", str(self.failureResultOf(asked, TimedOutError).value))

    def test_lateAnswer(self) -> None:
        """An answer that comes too late is thrown away; the next is the next one's."""
        late, asked = self.ask(timeoutMs=1000), self.ask(timeoutMs=5000)
        self.clock.advance(1)
        self.failureResultOf(late, TimedOutError)
        self.line.deliver(framed(b"late") + framed(b"in time"))
        self.assertEqual(self.successResultOf(asked), b"in time")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancel(self) -> None:
        """
        The answer to a cancelled question is thrown away; the order of the others stays, wherever
        the cancelled one stood.
        """
        for cancelled in range(3):
            asked = [self.ask(b"%d" % each) for each in range(3)]
            asked[cancelled].cancel()
            self.failureResultOf(asked[cancelled], CancelledError)
            self.assertEqual(self.arrived(), framed(b"0") + framed(b"1") + framed(b"2"))
            self.line.deliver(framed(b"zero") + framed(b"one") + framed(b"two"))
            others = [
                self.successResultOf(each) for index, each in enumerate(asked) if index != cancelled
            ]
            self.assertEqual(
                others,
                [
                    body
                    for index, body in enumerate([b"zero", b"one", b"two"])
                    if index != cancelled
                ],
            )
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelInTheMiddleOfTheAnswer(self) -> None:
        """The same holds when half of the answer is there already."""
        first, second = self.ask(), self.ask()
        self.line.deliver(framed(b"first")[:6])
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.line.deliver(framed(b"first")[6:] + framed(b"second"))
        self.assertEqual(self.successResultOf(second), b"second")

    def test_cancelBeforeItIsWritten(self) -> None:
        """A question that was not written yet is not written any more."""
        asked = [self.ask(b"%d" % each) for each in range(5)]
        asked[3].cancel()
        self.failureResultOf(asked[3], CancelledError)
        self.line.deliver(framed(b"zero") + framed(b"one"))
        self.assertEqual(self.arrived(), framed(b"0") + framed(b"1") + framed(b"2") + framed(b"4"))
        self.line.deliver(framed(b"two") + framed(b"four"))
        self.assertEqual(self.successResultOf(asked[4]), b"four")

    def test_cancelWhatBlocks(self) -> None:
        """When the question that blocks the line is taken back, what is behind it goes."""
        asked = [self.ask(b"%d" % each) for each in range(4)]
        sent = self.connection.send(b"behind")
        asked[3].cancel()
        self.failureResultOf(asked[3], CancelledError)
        self.assertEqual(self.arrived(), framed(b"0") + framed(b"1") + framed(b"2") + b"behind")
        self.successResultOf(sent)

    def test_abandoned(self) -> None:
        """
        When nobody waits any more, and the first that was given up gets no answer for
        C{abandonedMs}, the connection is cut.
        """
        asked = self.ask(timeoutMs=1000)
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOutError)
        self.clock.advance(9.9)
        self.assertIsNone(self.connection.refusal)
        self.clock.advance(0.1)
        self.assertIsInstance(self.connection.refusal, BrokerConnectionError)
        self.clock.advance(0)
        self.assertIsInstance(self.line.reason, ConnectionAborted)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_abandonedAndAnswered(self) -> None:
        """When the answer does come, the connection stays."""
        self.ask().addErrback(lambda _reason: None).cancel()
        self.clock.advance(5)
        self.line.deliver(framed(b"late"))
        self.clock.advance(60)
        self.assertIsNone(self.connection.refusal)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_abandonedOneAfterTheOther(self) -> None:
        """The time counts for each that becomes the first, from when it was given up."""
        first, second = self.ask(), self.ask()
        self.failureResultOf(_cancelled(first), CancelledError)
        self.clock.advance(4)
        self.failureResultOf(_cancelled(second), CancelledError)
        self.clock.advance(4)
        self.line.deliver(framed(b"first"))
        self.clock.advance(5.9)
        self.assertIsNone(self.connection.refusal)
        self.clock.advance(0.1)
        self.assertIsInstance(self.connection.refusal, BrokerConnectionError)

    def test_somebodyStillWaits(self) -> None:
        """
        While somebody waits, in vain or not, the connection stays; when that one gives up as well,
        it is cut at once.
        """
        first, second = self.ask(timeoutMs=1000), self.ask(timeoutMs=25_000)
        self.clock.advance(1)
        self.failureResultOf(first, TimedOutError)
        self.clock.advance(23.9)
        self.assertIsNone(self.connection.refusal)
        self.clock.advance(0.1)
        self.failureResultOf(second, TimedOutError)
        self.assertIsInstance(self.connection.refusal, BrokerConnectionError)

    def test_abandonedBetweenPieces(self) -> None:
        """
        A question that is given up while its frame is on its way is finished, since half a frame
        would break the line; its answer is thrown away.
        """
        self.line.stall()
        frame = framed(b"x" * 2 * WRITE_SIZE)
        asked = self.connection.request(frame, 1000)
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOutError)
        self.line.flow()
        self.assertEqual(self.arrived(), frame)
        self.clock.advance(8.9)
        self.assertIsNone(self.connection.refusal)
        self.line.deliver(framed(b"late"))
        self.clock.advance(60)
        self.assertIsNone(self.connection.refusal)

    def test_abandonedBetweenPiecesForEver(self) -> None:
        """The same, without an answer, cuts the connection."""
        self.line.stall()
        asked = self.connection.request(framed(b"x" * 2 * WRITE_SIZE), 1000)
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOutError)
        self.line.flow()
        self.clock.advance(0)
        self.clock.advance(10)
        self.assertIsInstance(self.connection.refusal, BrokerConnectionError)


class SendTests(ConnectionCase):
    """What has no answer."""

    def test_sent(self) -> None:
        """It is done when the transport has the bytes, and does not push back."""
        self.successResultOf(self.connection.send(b"one"))
        self.successResultOf(self.connection.send(b"two"))
        self.assertEqual(self.arrived(), b"onetwo")

    def test_pushedBack(self) -> None:
        """
        When the transport pushes back, it is done when the transport has let go of all it had; so
        is what was sent meanwhile, which is not even given to the transport before that.
        """
        (first,) = self.push()
        second, asked = self.connection.send(b"two"), self.ask(b"three")
        self.clock.advance(0)
        self.line.flow(69_999)
        self.clock.advance(0)
        self.assertEqual(len(self.line.take()), 69_999)
        self.assertNoResult(first)
        self.assertNoResult(second)
        self.line.flow()
        self.assertEqual(self.arrived(), b"xtwo" + framed(b"three"))
        self.successResultOf(first)
        self.successResultOf(second)
        self.assertNoResult(asked)

    def test_pieces(self) -> None:
        """
        A large frame is given to the transport piece by piece, and is done when the last piece has
        left.
        """
        self.connect(ConnectionLimits())
        frame = bytes(range(256)) * (WRITE_SIZE * 11 // 1024)
        self.line.stall()
        sent = self.connection.send(frame)
        behind = self.connection.send(b"behind")
        arrived = b""
        for _ in range(3):
            self.assertNoResult(sent)
            self.assertLessEqual(
                len(self.line.transport.dataBuffer) + self.line.transport._tempDataLen, WRITE_SIZE
            )
            self.line.flow(WRITE_SIZE)
            self.clock.advance(0)
            arrived += self.line.take()
        self.successResultOf(sent)
        self.line.flow()
        self.assertEqual(arrived + self.arrived(), frame + b"behind")
        self.successResultOf(behind)

    def test_lastPieceIsSmall(self) -> None:
        """
        A large frame whose last piece does not fill the transport is done when that piece was given
        to it.
        """
        self.line.stall()
        sent = self.connection.send(b"x" * (WRITE_SIZE + 10))
        self.line.flow(WRITE_SIZE)
        self.clock.advance(0)
        self.successResultOf(sent)

    def test_stall(self) -> None:
        """
        When the transport takes nothing for C{stallMs}, the connection is cut, and all that waits
        fails with that.
        """
        (first,) = self.push()
        second = self.connection.send(b"two")
        self.clock.advance(29.9)
        self.assertNoResult(first)
        self.clock.advance(0.1)
        self.failureResultOf(first, TimedOutError)
        self.failureResultOf(second, TimedOutError)
        self.clock.advance(0)
        self.assertIsInstance(self.line.reason, ConnectionAborted)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_slowIsNoStall(self) -> None:
        """
        A large frame on a slow line is not cut, however long it takes, as long as piece after piece
        leaves in time.
        """
        self.line.stall()
        sent = self.connection.send(b"x" * 10 * WRITE_SIZE)
        for _ in range(10):
            self.assertNoResult(sent)
            self.clock.advance(29)
            self.line.flow(WRITE_SIZE)
            self.clock.advance(0)
        self.successResultOf(sent)

    def test_stopsWatching(self) -> None:
        """What has left is no stall."""
        (first,) = self.push()
        self.line.flow()
        self.clock.advance(0)
        self.successResultOf(first)
        self.clock.advance(300)
        self.assertIsNone(self.connection.refusal)

    def test_cancelWhatWaits(self) -> None:
        """What waits behind a transport that pushes back can be taken back."""
        (first,) = self.push()
        second, third = self.connection.send(b"two"), self.connection.send(b"three")
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.line.flow()
        self.assertEqual(self.arrived(), b"x" * 70_000 + b"three")
        self.successResultOf(first)
        self.successResultOf(third)

    def test_cancelWhatIsLeaving(self) -> None:
        """What the transport has is sent all the same."""
        (first,) = self.push()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.line.flow()
        self.assertEqual(len(self.arrived()), 70_000)

    def test_cancelBetweenPieces(self) -> None:
        """So is the rest of a frame whose first piece the transport has."""
        self.line.stall()
        sent = self.connection.send(b"x" * 3 * WRITE_SIZE)
        sent.cancel()
        self.failureResultOf(sent, CancelledError)
        self.line.flow()
        self.assertEqual(len(self.arrived()), 3 * WRITE_SIZE)

    def test_tooMuchWaits(self) -> None:
        """
        What is over the limits, by count or by size, is refused, and nothing of it is sent; a
        single large frame is not too much.
        """
        self.push()
        self.connection.send(b"x" * 2000)
        self.failureResultOf(self.connection.send(b"y"), BackpressureError)
        self.line.flow()
        self.clock.advance(0)
        self.assertEqual(len(self.line.take()), 72_000)
        self.push()
        for _ in range(4):
            self.connection.send(b"z")
        self.failureResultOf(self.connection.send(b"y"), BackpressureError)
        self.failureResultOf(self.ask(b"y"), BackpressureError)
        self.line.flow()
        self.assertNotIn(b"y", self.arrived())

    def test_roomAgain(self) -> None:
        """What has left, or was taken back, makes room."""
        self.push()
        first = self.connection.send(b"x" * 1000)
        self.failureResultOf(self.connection.send(b"y"), BackpressureError)
        self.failureResultOf(_cancelled(first), CancelledError)
        second = self.connection.send(b"z" * 1000)
        self.line.flow()
        self.clock.advance(0)
        self.successResultOf(second)
        self.successResultOf(self.connection.send(b"w" * 1000))

    def test_sendMeanwhile(self) -> None:
        """Who sends again when a frame has left is behind those who waited before."""
        again: list[Deferred[None]] = []
        (first,) = self.push()
        first.addCallback(lambda _nothing: again.append(self.connection.send(b"three")))
        self.connection.send(b"two")
        self.line.flow()
        self.assertEqual(self.arrived()[70_000:], b"twothree")
        self.successResultOf(again[0])


def _cancelled(deferred: Deferred[Any]) -> Deferred[Any]:
    deferred.cancel()
    return deferred


class EndTests(ConnectionCase):
    """How a connection ends."""

    def test_notMadeYet(self) -> None:
        """Before there is a transport, nothing is taken."""
        connection = self.build(LIMITS)
        self.failureResultOf(connection.send(b"x"), BrokerConnectionError)
        self.failureResultOf(connection.request(b"x", 1000), BrokerConnectionError)

    def test_lost(self) -> None:
        """
        When the connection is lost, all that is under way fails, in the middle of an answer, too;
        the owner knows before anybody else does.
        """
        seen: list[int] = []
        asked = [self.ask() for _ in range(4)]

        def see(reason: Failure) -> Failure:
            seen.append(len(self.ended))
            return reason

        asked[0].addErrback(see)
        self.line.deliver(framed(b"answer")[:7])
        self.line.cut()
        for each in asked:
            self.assertIn(
                "broker:9092 was lost", str(self.failureResultOf(each, BrokerConnectionError).value)
            )
        self.assertEqual(seen, [1])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_brokerCloses(self) -> None:
        """A broker that closes has stopped, or meant a refusal; the error says so."""
        asked = self.ask()
        self.line.end()
        self.assertIn(
            "it has stopped, or refuses a request",
            str(self.failureResultOf(asked, BrokerConnectionError).value),
        )

    def test_lostWhilePushedBack(self) -> None:
        """What the transport did not let go of fails, and so does what waits behind it."""
        (first,) = self.push()
        second = self.connection.send(b"two")
        self.line.cut()
        self.failureResultOf(first, BrokerConnectionError)
        self.failureResultOf(second, BrokerConnectionError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothingTakenAnyMore(self) -> None:
        """After the end, requests fail with its reason."""
        self.line.cut()
        self.assertIn(
            "was lost", str(self.failureResultOf(self.ask(), BrokerConnectionError).value)
        )
        self.assertIn(
            "was lost",
            str(self.failureResultOf(self.connection.send(b"x"), BrokerConnectionError).value),
        )
        self.assertEqual(len(self.ended), 1)

    def test_dropTwice(self) -> None:
        """It is cut once, for the first reason."""
        asked = self.ask()
        self.connection.drop(WireError("first"))
        self.connection.drop(WireError("second"))
        self.assertEqual(str(self.failureResultOf(asked, WireError).value), "first")
        self.clock.advance(0)
        self.connection.drop(WireError("third"))
        self.assertEqual([str(each) for each in self.ended], ["first"])


class CloseTests(ConnectionCase):
    """How a connection is closed by its owner."""

    def test_idle(self) -> None:
        """An idle connection is half-closed; when the broker has closed its side, it is gone."""
        closing = self.connection.close()
        self.clock.advance(0)
        self.assertTrue(self.line.isEnded)
        self.assertNoResult(closing)
        self.line.end()
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothingTaken(self) -> None:
        """It takes no more, and its owner knows."""
        self.connection.close()
        self.failureResultOf(self.ask(), ClosedError)
        self.failureResultOf(self.connection.send(b"x"), ClosedError)
        self.assertIsInstance(self.ended[0], ClosedError)

    def test_finishes(self) -> None:
        """What is under way is written and answered first."""
        (first,) = self.push()
        second, asked = self.connection.send(b"two"), self.ask(b"three")
        closing = self.connection.close()
        self.line.flow()
        self.assertEqual(self.arrived()[70_000:], b"two" + framed(b"three"))
        self.successResultOf(first)
        self.successResultOf(second)
        self.assertFalse(self.line.isEnded)
        self.line.deliver(framed(b"answer"))
        self.assertEqual(self.successResultOf(asked), b"answer")
        self.clock.advance(0)
        self.assertTrue(self.line.isEnded)
        self.line.end()
        self.successResultOf(closing)

    def test_withoutHalfClose(self) -> None:
        """A transport that cannot be half-closed, TLS, flushes and closes."""
        alsoProvides(self.line.transport, ISSLTransport)
        self.connection.send(b"last words")
        closing = self.connection.close()
        self.assertEqual(self.arrived(), b"last words")
        self.assertIsInstance(self.line.reason, ConnectionDone)
        self.successResultOf(closing)

    def test_overdue(self) -> None:
        """
        A broker that does not close its side, or does not answer, is not waited for longer than
        C{closeMs}; then what it took is unknown.
        """
        for asks in (False, True):
            self.setUp()
            asked = self.ask() if asks else None
            closing = self.connection.close()
            self.clock.advance(4.9)
            self.assertNoResult(closing)
            self.clock.advance(0.1)
            self.clock.advance(0)
            self.assertIn("within 5000 ms", str(self.failureResultOf(closing, TimedOutError).value))
            if asked is not None:
                self.failureResultOf(asked, TimedOutError)
            self.assertIsInstance(self.line.reason, ConnectionAborted)
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_lostMeanwhile(self) -> None:
        """
        When the connection is lost before all was answered, or is reset before the broker closed
        its side, that is no orderly end.
        """
        asked = self.ask()
        closing = self.connection.close()
        self.line.end()
        self.failureResultOf(asked, BrokerConnectionError)
        self.failureResultOf(closing, BrokerConnectionError)
        self.setUp()
        closing = self.connection.close()
        self.clock.advance(0)
        self.line.cut()
        self.failureResultOf(closing, BrokerConnectionError)

    def test_closeTwice(self) -> None:
        """
        All who close learn when it is gone, also those who come late; for these there is nothing
        left that could fail.
        """
        first, second = self.connection.close(), self.connection.close()
        self.clock.advance(0)
        third = self.connection.close()
        self.line.end()
        for each in (first, second, third, self.connection.close()):
            self.successResultOf(each)

    def test_closeWhenLost(self) -> None:
        """A connection that is lost, or being cut, is closed without more ado."""
        self.connection.drop(BrokerConnectionError("enough"))
        closing = self.connection.close()
        self.assertNoResult(closing)
        self.clock.advance(0)
        self.successResultOf(closing)
        self.successResultOf(self.connection.close())

    def test_withoutFlush(self) -> None:
        """
        Without flushing, what is under way fails at once; the connection then closes in order.
        """
        asked = self.ask()
        closing = self.connection.close(flush=False)
        self.failureResultOf(asked, ClosedError)
        self.clock.advance(0)
        self.assertTrue(self.line.isEnded)
        self.assertIsNone(self.line.reason)
        self.line.end()
        self.successResultOf(closing)

    def test_withoutFlushInTheMiddle(self) -> None:
        """If half a frame is out, the connection is cut."""
        self.line.stall()
        sent = self.connection.send(b"x" * 2 * WRITE_SIZE)
        closing = self.connection.close(flush=False)
        self.failureResultOf(sent, ClosedError)
        self.clock.advance(0)
        self.assertIsInstance(self.line.reason, ConnectionAborted)
        self.successResultOf(closing)

    def test_lateAnswerMeanwhile(self) -> None:
        """
        An answer that comes after its question was given up for closing is not read, and does not
        disturb the orderly end.
        """
        self.ask().addErrback(lambda _reason: None)
        closing = self.connection.close(flush=False)
        self.clock.advance(0)
        self.line.deliver(framed(b"late"))
        self.clock.advance(0)
        self.assertIsNone(self.line.reason)
        self.line.end()
        self.successResultOf(closing)
