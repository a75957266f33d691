"""
Tests for L{pylogbroker.producer.sender.RequestWriter}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.brokerclient import BrokerClient
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    UnknownOutcomeError,
)
from pylogbroker.producer.sender import RequestWriter
from pylogbroker.protocol.kafka07.requests import COUNT_MAX, encodeProduce
from pylogbroker.protocol.kafka07.requests import encodeOffsets as encodeQuestion
from pylogbroker.protocol.kafka07.responses import encodeOffsets
from pylogbroker.records.messageset import encodeSet
from pylogbroker.retry import PeriodicReconnect
from pylogbroker.types import LATEST, RANDOM_PARTITION
from tests.producer.puppets import PuppetCluster

FRAME = encodeProduce("t", 0, encodeSet([b"x"]))


class RequestWriterTests(SynchronousTestCase):
    """Requests to one broker, and what became of them."""

    def sender(
        self,
        isConfirming: bool = True,
        limits: ConnectionLimits | None = None,
        intervalCount: int = 1000,
    ) -> RequestWriter:
        self.cluster = PuppetCluster("a:1")
        self.broker = self.cluster.brokers["a:1"]
        clock = self.cluster.clock
        self.link = BrokerClient(
            clock,
            self.cluster.network.endpoint("a:1"),
            limits=limits or ConnectionLimits(closeMs=500),
            random=lambda: 0.5,
        )
        rule = PeriodicReconnect(intervalCount, -1, lambda: 0.5)
        return RequestWriter(clock, self.link, rule, isConfirming=isConfirming, timeoutMs=1000)

    def test_written(self) -> None:
        """Without confirmation a request is through when it is written."""
        sender = self.sender(False)
        sending = sender.sendFrame(FRAME, "t", 0)
        self.assertNoResult(sending)
        self.cluster.turn()
        self.successResultOf(sending)
        self.successResultOf(sender.sendFrame(FRAME, "t", 0))
        self.cluster.turn()
        self.assertEqual(self.broker.kinds, ["Produce", "Produce"])

    def test_confirmed(self) -> None:
        """
        With it, when the question right behind it is answered; an error code is an answer, too.
        """
        sender = self.sender()
        self.broker.isAnswering = False
        sendings = [sender.sendFrame(FRAME, "t", 0) for _request in range(2)]
        self.cluster.turn()
        self.assertEqual(self.broker.kinds, ["Produce", "Offsets", "Produce", "Offsets"])
        (line,) = self.broker.lines
        line.deliver(encodeOffsets([7]))
        self.successResultOf(sendings[0])
        self.assertNoResult(sendings[1])
        line.deliver(b"\0\0\0\6\0\3\0\0\0\0")
        self.successResultOf(sendings[1])

    def test_nonsense(self) -> None:
        """What is no answer proves nothing, and ends the connection."""
        sender = self.sender()
        self.broker.isAnswering = False
        sending = sender.sendFrame(FRAME, "t", 0)
        self.cluster.turn()
        (line,) = self.broker.lines
        line.deliver(b"\0\0\0\3\0\0\0")
        self.failureResultOf(sending, UnknownOutcomeError)
        self.cluster.turn()
        self.assertIsNot(line.reason, None)

    def test_cutWhileWriting(self) -> None:
        """A request that has left in part is unknown."""
        sender = self.sender()
        sender.sendFrame(FRAME, "t", 0)
        self.cluster.turn()
        (line,) = self.broker.lines
        line.stall()
        sending = sender.sendFrame(encodeProduce("t", 0, encodeSet([b"x" * 300_000])), "t", 0)
        self.cluster.turn()
        line.flow(1000)
        self.cluster.clock.advance(0)
        line.cut()
        self.failureResultOf(sending, UnknownOutcomeError)

    def test_noConnection(self) -> None:
        """Without a connection nothing was sent, and the error is no unknown outcome."""
        sender = self.sender()
        self.broker.isUp = False
        sending = sender.sendFrame(FRAME, "t", 0)
        self.cluster.pass_(6)
        self.assertFalse(
            self.failureResultOf(sending, BrokerConnectionError).check(UnknownOutcomeError)
        )

    def test_givenUp(self) -> None:
        """Given up before there was a connection, nothing was sent; afterwards it is unknown."""
        sender = self.sender()
        sending = sender.sendFrame(FRAME, "t", 0)
        sending.cancel()
        self.failureResultOf(sending, ClosedError)
        self.broker.isAnswering = False
        sending = sender.sendFrame(FRAME, "t", 0)
        self.cluster.turn()
        sending.cancel()
        self.failureResultOf(sending, UnknownOutcomeError)

    def test_busy(self) -> None:
        """
        A line that is too long takes no request: nothing of it was sent. What is in the line when
        it is cut is unknown.
        """
        sender = self.sender(limits=ConnectionLimits(waitingCountMax=2))
        self.broker.isAnswering = False
        sender.sendFrame(FRAME, "t", 0).addErrback(lambda failure: None)
        self.cluster.turn()
        (line,) = self.broker.lines
        line.stall()
        sendings = [
            sender.sendFrame(encodeProduce("t", 0, encodeSet([b"x" * 300_000])), "t", 0)
            for _request in range(3)
        ]
        self.failureResultOf(sendings[2], BackpressureError)
        self.link.abort()
        self.cluster.turn()
        for sending in sendings[:2]:
            self.failureResultOf(sending, UnknownOutcomeError)

    def test_together(self) -> None:
        """
        A request and its question are one piece to the transport: when it takes the one it has the
        other, so a broker that stops in order answers all that it has taken.
        """
        sender = self.sender()
        sender.sendFrame(FRAME, "t", 0)
        self.cluster.turn()
        (line,) = self.broker.lines
        pieces: list[bytes] = []
        write = line.transport.write

        def record(data: bytes) -> None:
            pieces.append(data)
            write(data)

        self.patch(line.transport, "write", record)
        sendings = [sender.sendFrame(FRAME, "t", 0) for _request in range(3)]
        self.cluster.turn()
        self.assertEqual(pieces, [FRAME + encodeQuestion("t", 0, LATEST, 1)] * 3)
        for sending in sendings:
            self.successResultOf(sending)

    def test_question(self) -> None:
        """
        The OFFSETS request names a partition of the produce request, so that another partition that
        is offline does not matter; 0 if the broker picks the partition.
        """
        for partition, asked in ((0, 0), (3, 3), (RANDOM_PARTITION, 0)):
            sender = self.sender()
            sendings = [
                sender.send("t", partition, encodeSet([b"x"])),
                sender.multiSend(
                    [("u", 9, encodeSet([b"x"])), ("t", partition, encodeSet([b"x"]))]
                ),
            ]
            self.cluster.turn()
            for sending in sendings:
                self.successResultOf(sending)
            self.assertEqual(self.broker.bytes.count(encodeQuestion("t", asked, LATEST, 1)), 2)

    def test_replaces(self) -> None:
        """
        After reconnect.interval requests the connection is replaced; a bad end of the old one is
        logged.
        """
        sender = self.sender(False, intervalCount=1)
        for _request in range(3):
            sending = sender.sendFrame(FRAME, "t", 0)
            self.cluster.pass_(0.1)
            self.successResultOf(sending)
        self.assertEqual(len(self.cluster.network.attempts), 4)
        self.broker.lines.clear()  # it does not see the end
        self.successResultOf(sender.sendFrame(FRAME, "t", 0))
        self.cluster.pass_(1)
        self.assertEqual(len(self.cluster.network.attempts), 5)

    def test_multiSend(self) -> None:
        """
        More parts than fit in a request are several; when a later one fails, what is known of all
        is nothing.
        """
        sender = self.sender(False)
        parts = [("t", 0, b"")] * (COUNT_MAX + 1)
        sending = sender.multiSend(parts)
        self.cluster.turn()
        self.successResultOf(sending)
        self.assertEqual(self.broker.kinds, ["MultiProduce", "MultiProduce"])
        self.successResultOf(sender.multiSend([]))
        sending = sender.send("t", 0, b"")
        self.successResultOf(sending)

    def test_multiSendFails(self) -> None:
        """
        When the first part of many fails for want of a connection, nothing was sent; when a later
        one does, that is unknown.
        """
        sender = self.sender(True)
        parts = [("t", 0, b"")] * (COUNT_MAX + 1)
        self.broker.isUp = False
        sending = sender.multiSend(parts)
        self.cluster.pass_(6)
        self.assertFalse(
            self.failureResultOf(sending, BrokerConnectionError).check(UnknownOutcomeError)
        )
        self.broker.isUp = True
        self.broker.isAnswering = False
        sending = sender.multiSend(parts)
        self.cluster.pass_(0.5)
        (line,) = self.broker.lines
        self.link.current = None
        self.broker.isUp = False
        self.link._connection = None
        self.link._refusal = ClosedError("closed")
        line.deliver(encodeOffsets([1]))
        self.failureResultOf(sending, UnknownOutcomeError)
