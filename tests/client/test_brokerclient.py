"""Tests for L{pylogbroker.client.brokerclient}, on a puppet network."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import (
    HostnameEndpoint,
    SSL4ClientEndpoint,
    TCP4ClientEndpoint,
    TCP6ClientEndpoint,
    UNIXClientEndpoint,
)
from twisted.internet.error import ConnectionAborted
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogEvent, LogLevel, capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from pylogbroker.client import brokerclient
from pylogbroker.client.brokerclient import BrokerClient, clientEndpoint
from pylogbroker.client.connection import ClientConnection, ConnectionLimits
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    ConfigurationError,
    TimedOutError,
    WireError,
)
from pylogbroker.net.endpointstrings import KINDS, brokerEndpoint
from pylogbroker.protocol.brokercalls import BrokerCall
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.testing.network import MemoryNetwork, MemoryPeer


def framed(body: bytes) -> bytes:
    """A frame."""
    return struct.pack(">i", len(body)) + body


class LinkCase(SynchronousTestCase):
    """A client before its first call."""

    limits = ConnectionLimits()

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.link = BrokerClient(
            self.clock,
            self.network.endpoint("broker:9092"),
            connectTimeoutMs=5000,
            random=lambda: 0.0,
            limits=self.limits,
        )

    def connected(self) -> tuple[ClientConnection, MemoryPeer]:
        """Make it connect."""
        connecting = self.link.connection()
        line = self.network.accept()
        return self.successResultOf(connecting), line


class ConnectingTests(LinkCase):
    """When it connects, and when not."""

    def test_lazily(self) -> None:
        """It connects when somebody asks, not before."""
        self.assertEqual(self.network.attempts, [])
        self.link.connection()
        self.assertEqual(len(self.network.attempts), 1)

    def test_once(self) -> None:
        """
        Those who ask while it connects share the attempt and the connection; so do those who ask
        later.
        """
        asked = [self.link.connection() for _ in range(3)]
        self.network.accept()
        asked.append(self.link.connection())
        self.assertEqual(len({id(self.successResultOf(each)) for each in asked}), 1)
        self.assertEqual(len(self.network.attempts), 1)
        self.assertIs(self.link.current, self.successResultOf(self.link.connection()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_retries(self) -> None:
        """A refused attempt is followed by another, later and later."""
        asked = self.link.connection()
        waits = []
        for _ in range(5):
            self.network.refuse()
            self.assertEqual(self.network.waiting, [])
            before = self.clock.seconds()
            while not self.network.waiting:
                self.clock.advance(0.001)
            waits.append(round((self.clock.seconds() - before) * 1000))
        self.assertEqual(waits, [10, 20, 40, 80, 160])
        self.network.accept()
        self.successResultOf(asked)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def warnings(self, events: Sequence[LogEvent]) -> list[str]:
        return [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]

    def test_reportsFailure(self) -> None:
        """
        The first failed attempt of an outage is reported while callers go on waiting; the others
        are not.
        """
        with capturedLogs() as events:
            for _outage in range(2):
                asked = self.link.connection()
                for _attempt in range(3):
                    self.network.refuse()
                    self.clock.advance(0.05)
                line = self.network.accept()
                self.successResultOf(asked)
                self.clock.advance(20)
                line.cut(ConnectionAborted())
        error = "cannot connect to broker:9092: Connection was refused by other side."
        self.assertEqual(
            self.warnings(events), 2 * [f"No connection to broker:9092 yet, trying again: {error}"]
        )

    def test_reportsSlowness(self) -> None:
        """An attempt that nobody answers is reported after two seconds."""
        with capturedLogs() as events:
            self.link.connection().addErrback(lambda _reason: None)
            self.clock.advance(1.9)
            self.assertEqual(self.warnings(events), [])
            self.clock.advance(0.2)
        self.assertEqual(
            self.warnings(events),
            ["No connection to broker:9092 yet, trying again: no answer within 2 s"],
        )

    def test_reportsNothing(self) -> None:
        """
        A caller that learns of the failure itself needs no report, and a quick attempt none either.
        """
        with capturedLogs() as events:
            hasty = self.link.connection(timeoutMs=5)
            self.network.refuse()
            self.failureResultOf(hasty, BrokerConnectionError)
            self.clock.advance(1)
            self.connected()
            self.clock.advance(10)
        self.assertEqual(self.warnings(events), [])

    def test_givesUp(self) -> None:
        """
        When the next attempt would come too late, the caller learns at once why the last one
        failed, and no timer is left.
        """
        asked = self.link.connection(timeoutMs=25)
        self.network.refuse()
        self.clock.advance(0.010)
        self.network.refuse()
        reason = self.failureResultOf(asked, BrokerConnectionError)
        self.assertIn("cannot connect to broker:9092: Connection was refused", str(reason.value))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_patience(self) -> None:
        """Each caller has its own patience: one gives up, the other goes on."""
        hasty, patient = self.link.connection(timeoutMs=5), self.link.connection()
        self.network.refuse()
        self.failureResultOf(hasty, BrokerConnectionError)
        self.clock.advance(0.010)
        self.network.accept()
        self.successResultOf(patient)

    def test_noAnswer(self) -> None:
        """
        When an attempt comes to nothing within the caller's time, that is a time-out; the attempt
        is cancelled when nobody waits for it.
        """
        hasty, patient = self.link.connection(timeoutMs=1000), self.link.connection()
        self.clock.advance(1)
        self.assertTrue(
            str(self.failureResultOf(hasty, TimedOutError).value).endswith("within 1000 ms")
        )
        self.assertEqual(self.network.attempts[0].state, "waiting")
        self.clock.advance(4)
        self.failureResultOf(patient, TimedOutError)
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_attemptsEnd(self) -> None:
        """
        An attempt is not waited for longer than C{connectTimeoutMs}, even when more and more
        callers come.
        """
        self.link.connection().addErrback(lambda _reason: None)
        self.clock.advance(3)
        late = self.link.connection()
        self.clock.advance(2)
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        self.clock.advance(0.010)
        self.network.accept()
        self.successResultOf(late)

    def test_lastReason(self) -> None:
        """
        Whose time is over before the last attempt came to an end learns why the one before failed;
        there is no next one then.
        """
        asked = self.link.connection(timeoutMs=11)
        self.network.refuse()
        self.clock.advance(0.010)
        self.assertEqual(len(self.network.waiting), 1)
        self.clock.advance(0.001)
        self.assertIn("was refused", str(self.failureResultOf(asked, TimedOutError).value))
        self.assertEqual(self.network.waiting, [])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_backoffIsShared(self) -> None:
        """
        Who comes while it is too early for another attempt waits with the others, or learns at once
        that it is in vain.
        """
        self.failureResultOf(self.refused(timeoutMs=5), BrokerConnectionError)
        self.assertEqual(self.network.waiting, [])
        asked = self.link.connection()
        self.assertEqual(self.network.waiting, [])
        self.clock.advance(0.010)
        self.network.accept()
        self.successResultOf(asked)

    def refused(self, timeoutMs: float) -> Deferred[ClientConnection]:
        asked = self.link.connection(timeoutMs)
        self.network.refuse()
        return asked

    def test_cancel(self) -> None:
        """Who cancels waits no longer; the last one's attempt, or timer, is cancelled with it."""
        first, second = self.link.connection(), self.link.connection()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(self.network.attempts[0].state, "waiting")
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        self.assertEqual(self.clock.getDelayedCalls(), [])
        third = self.refused(timeoutMs=5000)
        third.cancel()
        self.failureResultOf(third, CancelledError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_again(self) -> None:
        """After a cancelled attempt, the next caller connects at once."""
        self.link.connection().addErrback(lambda _reason: None).cancel()
        asked = self.link.connection()
        self.network.accept()
        self.successResultOf(asked)

    def test_tooMany(self) -> None:
        """Callers that wait are limited in number."""
        self.patch(brokerclient, "CALLER_COUNT_MAX", 2)
        self.link.connection(), self.link.connection()
        self.failureResultOf(self.link.connection(), BackpressureError)

    def test_order(self) -> None:
        """
        Callers are served in order; one that asks again while they are served comes after those
        that wait already.
        """
        served: list[str] = []

        def again(_connection: ClientConnection) -> None:
            served.append("first")
            self.assertIsNone(self.link.current)
            self.link.connection().addCallback(lambda _connection: served.append("first again"))

        self.link.connection().addCallback(again)
        self.link.connection().addCallback(lambda _connection: served.append("second"))
        self.network.accept()
        self.assertEqual(served, ["first", "second", "first again"])

    def test_synchronousEndpoint(self) -> None:
        """An endpoint that connects, or refuses, inside the call will do as well."""
        network, answers = self.network, ["refuse", "accept"]

        @implementer(IStreamClientEndpoint)
        class AtOnce:
            def connect(self, protocolFactory: Any) -> Deferred[Any]:
                connecting = network.endpoint().connect(protocolFactory)
                getattr(network, answers.pop(0))()
                return connecting

        brokerclient = BrokerClient(self.clock, AtOnce(), random=lambda: 0.0)
        asked = brokerclient.connection()
        self.assertNoResult(asked)
        self.clock.advance(0.010)
        self.assertIs(self.successResultOf(asked), brokerclient.current)

    def test_endpointString(self) -> None:
        """
        The endpoint may be a string, whose reactor is the link's; a wrong one is an error at once.
        """
        reactor = MemoryReactorClock()
        brokerclient = BrokerClient(reactor, "192.0.2.7:9092")
        brokerclient.connection()
        self.assertEqual(reactor.tcpClients[0][:2], ("192.0.2.7", 9092))
        self.assertEqual(repr(brokerclient), "<BrokerClient 192.0.2.7:9092 None, 1 waiting>")
        self.assertRaises(ConfigurationError, BrokerClient, reactor, "nonsense")


class LossTests(LinkCase):
    """What happens after a connection is lost."""

    def test_lost(self) -> None:
        """A connection that lasted is replaced at once, when somebody asks."""
        _first, line = self.connected()
        self.clock.advance(1)
        line.cut()
        self.assertIsNone(self.link.current)
        self.assertEqual(self.network.waiting, [])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        second, _line = self.connected()
        self.assertIs(self.link.current, second)

    def test_lostAtOnce(self) -> None:
        """
        A connection that did not last counts as a failed attempt: there is no second for the next
        instant; and so on, later and later.
        """
        for wait in (0.010, 0.020, 0.040):
            self.connected()[1].end()
            asked = self.link.connection()
            self.assertEqual(self.network.waiting, [])
            self.clock.advance(wait)
            self.assertEqual(len(self.network.waiting), 1)
            asked.addErrback(lambda _reason: None).cancel()
            self.clock.advance(1)
        self.clock.advance(10)
        _connection, line = self.connected()
        self.clock.advance(1)
        line.end()
        self.link.connection()
        self.assertEqual(len(self.network.waiting), 1)

    def test_lostWhileServing(self) -> None:
        """When the first of those who waited cuts the connection, the others get a new one."""
        self.link.connection().addCallback(
            lambda connection: connection.drop(WireError("nonsense"))
        )
        second = self.link.connection()
        self.network.accept()
        self.assertNoResult(second)
        self.clock.advance(0.010)
        self.network.accept()
        self.assertIsNone(self.successResultOf(second).refusal)


class DoubtTests(LinkCase):
    """
    A connection ends from the other side, and what was sent over it without an answer may be lost.
    """

    def setUp(self) -> None:
        super().setUp()
        self.events: Sequence[LogEvent] = self.enterContext(capturedLogs())

    def lines(self) -> list[str]:
        return [formatEvent(event) for event in self.events]

    def sent(self) -> tuple[ClientConnection, MemoryPeer]:
        """A request without an answer has left."""
        connection, line = self.connected()
        self.successResultOf(connection.send(framed(b"x")))
        self.network.turn()
        return connection, line

    def test_refused(self) -> None:
        """
        A broker that refuses what was written last ends the connection; that is a warning, which
        names it.
        """
        _connection, line = self.sent()
        line.end()
        (told,) = self.lines()
        self.assertIn("broker:9092", told)
        self.assertIn("may be lost", told)
        self.assertIn("it has stopped, or refuses a request", told)
        self.assertEqual(self.events[0]["log_level"], LogLevel.warn)

    def test_piece(self) -> None:
        """So it is when it went in pieces, the last of which the transport has just taken."""
        connection, line = self.connected()
        sending = connection.send(framed(b"x" * 300_000))
        self.network.turn()
        self.successResultOf(sending)
        line.cut()
        self.assertEqual(len(self.lines()), 1)

    def test_again(self) -> None:
        """One that does so all the time is told of now and then, not each time."""
        for _time in range(5):
            _connection, line = self.sent()
            line.end()
            self.clock.advance(1.5)
        self.assertEqual(len(self.lines()), 1)
        self.clock.advance(10)
        _connection, line = self.sent()
        line.cut()
        self.assertIn("(4 more of this kind were not logged)", self.lines()[1])

    def test_idle(self) -> None:
        """
        A connection over which nothing was sent for a minute ends for another reason, and nobody
        needs to worry; nor about one that was never used.
        """
        _connection, line = self.sent()
        self.clock.advance(60.1)
        line.end()
        _connection, line = self.connected()
        line.end()
        self.assertEqual(self.lines(), [])

    def test_proven(self) -> None:
        """
        What was sent before a question that was answered has arrived; what was sent behind it may
        not.
        """
        for isBehind in (False, True):
            connection, line = self.sent()
            question = connection.request(framed(b"?"), 1000)
            if isBehind:
                connection.send(framed(b"y"))
            line.deliver(framed(b"!"))
            self.successResultOf(question)
            line.end()
            self.assertEqual(len(self.lines()), isBehind)
            self.clock.advance(1)

    def test_asked(self) -> None:
        """Who closes or exchanges it is told how that ended, and it is not told here."""
        _connection, line = self.sent()
        self.link.replace().addErrback(lambda failure: failure.trap(BrokerConnectionError))
        line.cut()
        self.network.accept()
        self.link.close()
        self.assertEqual(self.lines(), [])


class AskTests(LinkCase):
    """Questions that may be asked twice."""

    def ask(self, timeoutMs: float = 30_000) -> Deferred[str]:
        def decode(body: bytes) -> str:
            if body == b"nonsense":
                raise WireError("nonsense")
            return body.decode()

        return self.link.call(BrokerCall(framed(b"question"), decode), timeoutMs)

    def takeQuestion(self, line: MemoryPeer) -> None:
        self.network.turn()
        self.assertEqual(line.take(), framed(b"question"))

    def test_answered(self) -> None:
        """The answer is decoded."""
        asked = self.ask()
        line = self.network.accept()
        self.takeQuestion(line)
        line.deliver(framed(b"answer"))
        self.assertEqual(self.successResultOf(asked), "answer")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_askedAgain(self) -> None:
        """
        After a lost connection, in the middle of the answer, the question is asked once more over a
        new one.
        """
        asked = self.ask()
        line = self.network.accept()
        self.clock.advance(1)
        line.deliver(framed(b"answer")[:7])
        line.cut()
        self.assertNoResult(asked)
        line = self.network.accept()
        self.takeQuestion(line)
        line.deliver(framed(b"answer"))
        self.assertEqual(self.successResultOf(asked), "answer")

    def test_allAskedAgain(self) -> None:
        """All questions that were under way are asked again, in their order."""
        asked = [
            self.link.call(BrokerCall(framed(b"%d" % each), bytes), 30_000) for each in range(3)
        ]
        line = self.network.accept()
        self.clock.advance(1)
        line.cut()
        line = self.network.accept()
        self.network.turn()
        self.assertEqual(line.take(), framed(b"0") + framed(b"1") + framed(b"2"))
        line.deliver(framed(b"zero") + framed(b"one") + framed(b"two"))
        self.assertEqual([self.successResultOf(each) for each in asked], [b"zero", b"one", b"two"])

    def test_lostTwice(self) -> None:
        """When that is lost, too, it fails."""
        asked = self.ask()
        for _ in range(2):
            line = self.network.accept()
            self.clock.advance(1)
            line.cut()
        self.failureResultOf(asked, BrokerConnectionError)
        self.assertEqual(self.network.waiting, [])

    def test_noConnection(self) -> None:
        """Not being able to connect is no loss: it is not tried all over again."""
        asked = self.ask()
        while not asked.called:
            if self.network.waiting:
                self.network.refuse()
            self.clock.advance(0.01)
        self.failureResultOf(asked, BrokerConnectionError)
        self.assertLess(self.clock.seconds(), 5)

    def test_timedOut(self) -> None:
        """
        A time-out is final; and it counts for all of it: connecting, the first try and the second.
        """
        asked = self.ask(timeoutMs=4000)
        self.clock.advance(1)
        line = self.network.accept()
        self.clock.advance(1.5)
        line.cut()
        self.network.accept()
        self.clock.advance(1.499)
        self.assertNoResult(asked)
        self.clock.advance(0.001)
        self.failureResultOf(asked, TimedOutError)

    def test_timedOutOnce(self) -> None:
        """A question without an answer is not asked again."""
        asked = self.ask(timeoutMs=1000)
        line = self.network.accept()
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOutError)
        self.takeQuestion(line)
        self.assertEqual(len(self.network.attempts), 1)

    def test_timedOutConnecting(self) -> None:
        """Connecting takes no longer than the question may."""
        asked = self.ask(timeoutMs=1000)
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOutError)
        self.assertEqual(self.network.attempts[0].state, "cancelled")

    def test_abandonedByOthers(self) -> None:
        """
        When the connection is cut because others gave up on it, who still waits behind them in the
        line is served over a new one.
        """
        self.limits = ConnectionLimits(inFlightCountMax=1)
        self.setUp()
        hasty, patient = self.ask(timeoutMs=1000), self.ask()
        self.network.accept()
        self.clock.advance(1)
        self.failureResultOf(hasty, TimedOutError)
        self.clock.advance(10)
        line = self.network.accept()
        self.takeQuestion(line)
        line.deliver(framed(b"answer"))
        self.assertEqual(self.successResultOf(patient), "answer")

    def test_nonsense(self) -> None:
        """
        An answer that cannot be read cuts the connection, and the question is not asked again.
        """
        asked = self.ask()
        line = self.network.accept()
        line.deliver(framed(b"nonsense"))
        self.failureResultOf(asked, WireError)
        self.network.turn()
        self.assertIsInstance(line.reason, ConnectionAborted)
        self.assertEqual(self.network.waiting, [])

    def test_cancelled(self) -> None:
        """
        It can be cancelled while it connects, and while it waits for the answer, without harm to
        others.
        """
        asked = self.ask()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        asked, other = self.ask(), self.ask()
        line = self.network.accept()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        line.deliver(framed(b"one") + framed(b"two"))
        self.assertEqual(self.successResultOf(other), "two")

    def test_closed(self) -> None:
        """What is under way when the owner closes is not asked again."""
        asked = self.ask()
        self.network.accept()
        self.link.close(flush=False, final=False)
        self.failureResultOf(asked, ClosedError)
        self.assertEqual(self.network.waiting, [])


class CloseTests(LinkCase):
    """How an owner lets go."""

    def test_connected(self) -> None:
        """The connection is closed in order; nothing is made any more."""
        _connection, line = self.connected()
        closing = self.link.close()
        self.network.turn()
        self.assertTrue(line.isEnded)
        self.assertNoResult(closing)
        line.end()
        self.successResultOf(closing)
        told = [
            self.failureResultOf(self.link.connection(), ClosedError).value for _time in range(2)
        ]
        self.assertIsNot(*told)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_twice(self) -> None:
        """Both wait for the end."""
        _connection, line = self.connected()
        first, second = self.link.close(), self.link.close()
        self.network.turn()
        self.assertNoResult(second)
        line.end()
        self.successResultOf(first)
        self.successResultOf(second)
        self.successResultOf(self.link.close())

    def test_connecting(self) -> None:
        """An attempt is cancelled, and its callers fail."""
        asked = self.link.connection()
        self.successResultOf(self.link.close())
        self.failureResultOf(asked, ClosedError)
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_holding(self) -> None:
        """So do callers between two attempts."""
        asked = self.link.connection()
        self.network.refuse()
        self.successResultOf(self.link.close())
        self.failureResultOf(asked, ClosedError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_idle(self) -> None:
        """A link that was never used is closed."""
        self.successResultOf(self.link.close())

    def test_notFinal(self) -> None:
        """
        Closed but not for ever, the next caller connects again, while the old connection may still
        be closing; neither disturbs the other.
        """
        first, line = self.connected()
        closing = self.link.close(final=False)
        second, _line = self.connected()
        self.assertIsNot(first, second)
        self.network.turn()
        line.end()
        self.successResultOf(closing)
        self.assertIs(self.link.current, second)

    def test_abort(self) -> None:
        """
        There is no time: what is under way fails and the connection is cut, one that is being
        closed or exchanged, too; nothing is made any more.
        """
        for begin in (BrokerClient.connection, BrokerClient.close, BrokerClient.replace):
            self.setUp()
            connection, line = self.connected()
            request = connection.request(framed(b"x"), 5000)
            waiting: list[Deferred[Any]] = [begin(self.link), self.link.connection()]
            for each in waiting:
                each.addErrback(lambda failure: failure.trap(ClosedError))
            self.link.abort()
            self.failureResultOf(request, ClosedError)
            self.network.turn()
            self.assertIsInstance(line.reason, ConnectionAborted)
            self.failureResultOf(self.link.connection(), ClosedError)
            self.assertEqual((self.network.waiting, self.clock.getDelayedCalls()), ([], []))

    def test_abortUnconnected(self) -> None:
        """So it is without a connection, and once more."""
        asked = self.link.connection()
        self.link.abort()
        self.link.abort()
        self.failureResultOf(asked, ClosedError)
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closedWhileServing(self) -> None:
        """Who gets the connection may close the link; the others fail."""
        self.link.connection().addCallback(lambda _connection: (self.link.close(), None)[1])
        second = self.link.connection()
        self.network.accept()
        self.failureResultOf(second, ClosedError)
        self.assertIsNone(self.link.current)


class ReplaceTests(LinkCase):
    """A good connection is exchanged for a new one."""

    def test_replaced(self) -> None:
        """
        The old connection is closed in order, and only then the new one is made, though nobody has
        asked yet; who asks meanwhile waits for that.
        """
        first, line = self.connected()
        replacing = self.link.replace()
        asked = self.link.connection()
        self.network.turn()
        self.assertTrue(line.isEnded)
        self.assertEqual(self.network.waiting, [])
        line.end()
        self.successResultOf(replacing)
        self.network.accept()
        self.assertIsNot(self.successResultOf(asked), first)

    def test_notOrderly(self) -> None:
        """A loss in between is reported, and the new connection made."""
        _first, line = self.connected()
        replacing = self.link.replace()
        line.cut()
        self.failureResultOf(replacing, BrokerConnectionError)
        self.assertEqual(len(self.network.waiting), 1)

    def test_notFailed(self) -> None:
        """
        A connection that is replaced soon after it was made has not failed: no wait comes before
        the next.
        """
        for _ in range(5):
            _connection, line = self.connected()
            self.link.replace()
            self.network.turn()
            line.end()
            self.assertEqual(len(self.network.waiting), 1)

    def test_nothingToReplace(self) -> None:
        """Without a connection there is nothing to do."""
        self.successResultOf(self.link.replace())
        self.assertEqual(self.network.attempts, [])

    def test_closedMeanwhile(self) -> None:
        """Closed while it is replaced, the old connection is waited for, and no new one is made."""
        _connection, line = self.connected()
        self.link.replace()
        asked = self.link.connection()
        closing = self.link.close()
        self.failureResultOf(asked, ClosedError)
        self.network.turn()
        self.assertNoResult(closing)
        line.end()
        self.successResultOf(closing)
        self.assertEqual(self.network.waiting, [])

    def test_askedAfterClosing(self) -> None:
        """
        Closed but not for ever while it is replaced, the next caller's connection is not disturbed
        when the old one is gone at last.
        """
        _connection, line = self.connected()
        self.link.replace()
        self.link.close(final=False)
        second, _line = self.connected()
        self.network.turn()
        line.end()
        self.assertIs(self.link.current, second)
        self.assertEqual(self.network.waiting, [])

    def test_slowEnd(self) -> None:
        """
        However long the old connection takes to end, the time of who waits for the new one begins
        only then; unless it was said how long that may be for all.
        """
        _connection, line = self.connected()
        self.link.replace()
        asked, hasty = self.link.connection(), self.link.connection(timeoutMs=1000)
        self.clock.pump([1.0] * 8)
        self.failureResultOf(hasty, TimedOutError)
        self.assertNoResult(asked)
        line.end()
        self.clock.pump([1.0] * 4)
        self.assertNoResult(asked)
        self.clock.advance(1)
        self.failureResultOf(asked, TimedOutError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_slowEndWhileServing(self) -> None:
        """
        So it is for those who had asked before, and were not served yet when somebody who was had
        the connection replaced.
        """
        self.link.connection().addCallback(lambda _connection: self.link.replace())
        asked, hasty = self.link.connection(), self.link.connection(timeoutMs=1000)
        line = self.network.accept()
        self.clock.pump([1.0] * 8)
        self.failureResultOf(hasty, TimedOutError)
        self.assertNoResult(asked)
        line.end()
        self.network.accept()
        self.assertIs(self.successResultOf(asked), self.link.current)

    def test_oldestLast(self) -> None:
        """
        A connection that is still closing, of a time that was closed itself, is not what a later
        exchange waits for.
        """
        _connection, oldest = self.connected()
        self.link.replace()
        self.link.close(final=False)
        _connection, old = self.connected()
        self.link.replace()
        oldest.end()
        self.assertEqual(self.network.waiting, [])
        old.end()
        self.assertEqual(len(self.network.waiting), 1)

    def test_unwanted(self) -> None:
        """A caller that goes away while it is replaced changes nothing."""
        _connection, line = self.connected()
        self.link.replace()
        self.link.connection().addErrback(lambda _reason: None).cancel()
        self.network.turn()
        line.end()
        self.network.accept()
        self.assertIsNotNone(self.link.current)


class RandomTests(SynchronousTestCase):
    """A broker, a network and callers who do anything at any time."""

    def test_answers(self) -> None:
        """
        Whatever happens: every call comes to an end, with its own answer or an error of ours;
        nothing is left on the clock, and no connection open.
        """
        for seed in range(300):
            _RandomRun(self, Random(seed), f"seed {seed}").run()


class _RandomRun:
    """One of them."""

    def __init__(self, case: SynchronousTestCase, random: Random, name: str) -> None:
        self.case, self.random, self.name = case, random, name
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        limits = ConnectionLimits(
            inFlightCountMax=3, waitingCountMax=5, abandonedMs=500, stallMs=800, closeMs=700
        )
        self.link = BrokerClient(
            self.clock, self.network.endpoint(), random=random.random, limits=limits
        )
        self.lines: list[tuple[MemoryPeer, FrameDecoder, bytearray]] = []
        self.calls: list[Deferred[Any]] = []
        self.results: dict[int, object] = {}

    def run(self) -> None:
        steps = [
            self.ask,
            self.ask,
            self.ask,
            self.cancel,
            self.wait,
            self.connect,
            self.connect,
            self.serve,
            self.serve,
            self.serve,
            self.serve,
        ]
        for _ in range(self.random.randrange(5, 60)):
            self.random.choice([*steps, self.breakLine, self.stall, self.letGo])()
        self.pass_(20)
        self.link.close(flush=False).addErrback(lambda _reason: None)
        self.pass_(20)
        self.case.assertEqual(
            [line for line, _, _ in self.lines if line.reason is None], [], self.name
        )
        self.case.assertEqual(sorted(self.results), list(range(len(self.calls))), self.name)
        for number, result in self.results.items():
            if isinstance(result, Failure):
                result.trap(BrokerConnectionError, BackpressureError, CancelledError)
            else:
                self.case.assertEqual(result, b"%d" % number, self.name)
        self.case.assertEqual(self.clock.getDelayedCalls(), [], self.name)

    def pass_(self, seconds: int) -> None:
        for _ in range(seconds * 10):
            self.clock.advance(0.1)

    def ask(self) -> None:
        number = len(self.calls)
        question = framed(b"%d" % number + b"x" * self.random.choice([0, 0, 0, 300_000]))
        asking = self.link.call(BrokerCall(question, bytes), self.random.choice([50, 500, 5000]))
        self.calls.append(asking)
        asking.addBoth(lambda result: self.results.update({number: result}))
        if self.random.random() < 0.2:
            asking.addBoth(
                lambda _result: self.link.call(BrokerCall(framed(b"again"), bytes), 100).addErrback(
                    lambda _reason: None
                )
            )

    def cancel(self) -> None:
        if self.calls:
            self.random.choice(self.calls).cancel()

    def wait(self) -> None:
        self.clock.advance(self.random.choice([0, 0.005, 0.05, 0.5, 1.5]))

    def connect(self) -> None:
        if self.network.waiting:
            if self.random.random() < 0.8:
                self.lines.append((self.network.accept(), FrameDecoder(1 << 20), bytearray()))
            else:
                self.network.refuse()

    def live(self) -> list[tuple[MemoryPeer, FrameDecoder, bytearray]]:
        return [each for each in self.lines if each[0].reason is None]

    def serve(self) -> None:
        """Read what has come, and let a part of the answers through, cut anywhere."""
        self.network.turn()
        for line, decoder, answers in self.live():
            decoder.feed(line.take())
            while (body := decoder.take()) is not None:
                answers += framed(body.rstrip(b"x"))
            size = self.random.choice(
                [len(answers), len(answers), self.random.randrange(len(answers) + 1)]
            )
            if size:
                line.deliver(bytes(answers[:size]))
                del answers[:size]

    def breakLine(self) -> None:
        if self.live():
            self.random.choice([MemoryPeer.end, MemoryPeer.cut])(self.random.choice(self.live())[0])

    def stall(self) -> None:
        if self.live():
            self.random.choice([MemoryPeer.stall, MemoryPeer.flow])(
                self.random.choice(self.live())[0]
            )

    def letGo(self) -> None:
        chance = self.random.random()
        if chance < 0.2:
            self.link.close(flush=chance < 0.1, final=False).addErrback(lambda _reason: None)
        elif chance < 0.5:
            self.link.replace().addErrback(lambda _reason: None)


class ClientEndpointTests(SynchronousTestCase):
    """Where a broker is."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()

    def connectsTo(self, description: str) -> tuple[str, int]:
        clientEndpoint(self.reactor, description).connect(Factory())
        host, port = self.reactor.tcpClients[0][:2]
        return host, port

    def test_kinds(self) -> None:
        """A broker whose host has the name of a kind of endpoint is connected to like any other."""
        for host in sorted(KINDS):
            self.reactor.tcpClients.clear()
            self.assertEqual(self.connectsTo(brokerEndpoint("", f"{host}:9092")), (host, 9092))

    def test_address(self) -> None:
        """An IPv4 address and a port are connected to as they are, without asking for a name."""
        self.assertIsInstance(clientEndpoint(self.reactor, "192.0.2.7:9092"), TCP4ClientEndpoint)
        self.assertEqual(self.connectsTo("192.0.2.7:9092"), ("192.0.2.7", 9092))

    def test_address6(self) -> None:
        """So is an IPv6 address in brackets."""
        self.assertIsInstance(
            clientEndpoint(self.reactor, "[2001:db8::7]:9092"), TCP6ClientEndpoint
        )
        self.assertEqual(self.connectsTo("[2001:db8::7]:9092"), ("2001:db8::7", 9092))

    def test_name(self) -> None:
        """A name may stand for several addresses, which are tried."""
        self.assertIsInstance(
            clientEndpoint(self.reactor, "broker-1.example.org:9092"), HostnameEndpoint
        )

    def test_strings(self) -> None:
        """Twisted's endpoint strings are understood."""
        for description, kind in (
            ("tcp:192.0.2.7:9092", TCP4ClientEndpoint),
            ("tcp:host=192.0.2.7:port=9092:bindAddress=192.0.2.8", TCP4ClientEndpoint),
            ("ssl:192.0.2.7:9093", SSL4ClientEndpoint),
            ("unix:/var/run/broker", UNIXClientEndpoint),
        ):
            self.assertIsInstance(clientEndpoint(self.reactor, description), kind)
        self.assertTrue(
            verifyObject(
                IStreamClientEndpoint, clientEndpoint(self.reactor, "tls:broker.example.org:9093")
            )
        )

    def test_endpoint(self) -> None:
        """An endpoint is returned as it is."""
        endpoint = TCP4ClientEndpoint(self.reactor, "192.0.2.7", 9092)
        self.assertIs(clientEndpoint(self.reactor, endpoint), endpoint)

    def test_wrong(self) -> None:
        """What is none is a configuration error that repeats it."""
        for description in (
            "",
            "broker",
            ":9092",
            "broker:",
            "broker:x",
            "broker:0",
            "broker:65536",
            "[broker]:9092",
            "2001:db8::7:9092",
            "udp:broker:9092",
            "tcp:broker",
            "tcp:broker:9092:nonsense=1",
            "ssl:broker:9092:privateKey=/nowhere:certKey=/nowhere",
        ):
            error = self.assertRaises(ConfigurationError, clientEndpoint, self.reactor, description)
            self.assertIn(repr(description), str(error))

    def test_serverString(self) -> None:
        """A string for listening, which lacks a host, is told from a host of that name."""
        error = self.assertRaises(ConfigurationError, clientEndpoint, self.reactor, "tcp:9092")
        self.assertIn("tcp:HOST:9092", str(error))
