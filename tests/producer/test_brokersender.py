"""
Tests for L{pylogbroker.producer.brokersender}.
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
from pylogbroker.producer.brokersender import ConfirmingSender
from pylogbroker.protocol.kafka07.requests import COUNT_MAX, encodeProduce
from pylogbroker.protocol.kafka07.requests import encodeOffsets as encodeQuestion
from pylogbroker.protocol.kafka07.responses import encodeOffsets
from pylogbroker.records.messageset import encodeSet
from pylogbroker.retry import ReconnectPolicy
from pylogbroker.types import LATEST, RANDOM_PARTITION
from tests.producer.puppets import PuppetCluster

FRAME = encodeProduce("t", 0, encodeSet([b"x"]))


class CarrierTests(SynchronousTestCase):
    """Requests to one broker, and what became of them."""

    def carrier(
        self,
        isConfirming: bool = True,
        limits: ConnectionLimits | None = None,
        intervalCount: int = 1000,
    ) -> ConfirmingSender:
        self.cluster = PuppetCluster("a:1")
        self.broker = self.cluster.brokers["a:1"]
        clock = self.cluster.clock
        self.link = BrokerClient(
            clock,
            self.cluster.network.endpoint("a:1"),
            limits=limits or ConnectionLimits(closeMs=500),
            random=lambda: 0.5,
        )
        rule = ReconnectPolicy(intervalCount, -1, lambda: 0.5)
        return ConfirmingSender(clock, self.link, rule, isConfirming=isConfirming, timeoutMs=1000)

    def test_written(self) -> None:
        """Without confirmation a request is through when it is written."""
        carrier = self.carrier(False)
        carrying = carrier.carry(FRAME, "t", 0)
        self.assertNoResult(carrying)
        self.cluster.turn()
        self.successResultOf(carrying)
        self.successResultOf(carrier.carry(FRAME, "t", 0))
        self.cluster.turn()
        self.assertEqual(self.broker.kinds, ["Produce", "Produce"])

    def test_confirmed(self) -> None:
        """With it, when the question right behind it is answered; an error code is an answer, too."""
        carrier = self.carrier()
        self.broker.isAnswering = False
        carryings = [carrier.carry(FRAME, "t", 0) for _request in range(2)]
        self.cluster.turn()
        self.assertEqual(self.broker.kinds, ["Produce", "Offsets", "Produce", "Offsets"])
        (line,) = self.broker.lines
        line.deliver(encodeOffsets([7]))
        self.successResultOf(carryings[0])
        self.assertNoResult(carryings[1])
        line.deliver(b"\0\0\0\6\0\3\0\0\0\0")
        self.successResultOf(carryings[1])

    def test_nonsense(self) -> None:
        """What is no answer proves nothing, and ends the connection."""
        carrier = self.carrier()
        self.broker.isAnswering = False
        carrying = carrier.carry(FRAME, "t", 0)
        self.cluster.turn()
        (line,) = self.broker.lines
        line.deliver(b"\0\0\0\3\0\0\0")
        self.failureResultOf(carrying, UnknownOutcomeError)
        self.cluster.turn()
        self.assertIsNot(line.reason, None)

    def test_cutWhileWriting(self) -> None:
        """A request that has left in part is unknown."""
        carrier = self.carrier()
        carrier.carry(FRAME, "t", 0)
        self.cluster.turn()
        (line,) = self.broker.lines
        line.stall()
        carrying = carrier.carry(encodeProduce("t", 0, encodeSet([b"x" * 300_000])), "t", 0)
        self.cluster.turn()
        line.flow(1000)
        self.cluster.clock.advance(0)
        line.cut()
        self.failureResultOf(carrying, UnknownOutcomeError)

    def test_noConnection(self) -> None:
        """Without a connection nothing was sent, and the error is no unknown outcome."""
        carrier = self.carrier()
        self.broker.isUp = False
        carrying = carrier.carry(FRAME, "t", 0)
        self.cluster.pass_(6)
        self.assertFalse(
            self.failureResultOf(carrying, BrokerConnectionError).check(UnknownOutcomeError)
        )

    def test_givenUp(self) -> None:
        """Given up before there was a connection, nothing was sent; afterwards it is unknown."""
        carrier = self.carrier()
        carrying = carrier.carry(FRAME, "t", 0)
        carrying.cancel()
        self.failureResultOf(carrying, ClosedError)
        self.broker.isAnswering = False
        carrying = carrier.carry(FRAME, "t", 0)
        self.cluster.turn()
        carrying.cancel()
        self.failureResultOf(carrying, UnknownOutcomeError)

    def test_busy(self) -> None:
        """A line that is too long takes no request: nothing of it was sent. What is in the line when it is cut is unknown."""
        carrier = self.carrier(limits=ConnectionLimits(waitingCountMax=2))
        self.broker.isAnswering = False
        carrier.carry(FRAME, "t", 0).addErrback(lambda failure: None)
        self.cluster.turn()
        (line,) = self.broker.lines
        line.stall()
        carryings = [
            carrier.carry(encodeProduce("t", 0, encodeSet([b"x" * 300_000])), "t", 0)
            for _request in range(3)
        ]
        self.failureResultOf(carryings[2], BackpressureError)
        self.link.abort()
        self.cluster.turn()
        for carrying in carryings[:2]:
            self.failureResultOf(carrying, UnknownOutcomeError)

    def test_together(self) -> None:
        """
        A request and its question are one piece to the transport: when it takes the one it has the other, so a broker that stops in order answers all that
        it has taken.
        """
        carrier = self.carrier()
        carrier.carry(FRAME, "t", 0)
        self.cluster.turn()
        (line,) = self.broker.lines
        pieces: list[bytes] = []
        write = line.transport.write

        def record(data: bytes) -> None:
            pieces.append(data)
            write(data)

        self.patch(line.transport, "write", record)
        carryings = [carrier.carry(FRAME, "t", 0) for _request in range(3)]
        self.cluster.turn()
        self.assertEqual(pieces, [FRAME + encodeQuestion("t", 0, LATEST, 1)] * 3)
        for carrying in carryings:
            self.successResultOf(carrying)

    def test_question(self) -> None:
        """It is about a partition that is in the request, so that another one that is out of service is in nobody's way; if the broker picks it, about 0."""
        for partition, asked in ((0, 0), (3, 3), (RANDOM_PARTITION, 0)):
            carrier = self.carrier()
            carryings = [
                carrier.send("t", partition, encodeSet([b"x"])),
                carrier.multiSend(
                    [("u", 9, encodeSet([b"x"])), ("t", partition, encodeSet([b"x"]))]
                ),
            ]
            self.cluster.turn()
            for carrying in carryings:
                self.successResultOf(carrying)
            self.assertEqual(self.broker.bytes.count(encodeQuestion("t", asked, LATEST, 1)), 2)

    def test_replaces(self) -> None:
        """After so many requests the connection is replaced; one that does not end well is told in the log."""
        carrier = self.carrier(False, intervalCount=1)
        for _request in range(3):
            carrying = carrier.carry(FRAME, "t", 0)
            self.cluster.pass_(0.1)
            self.successResultOf(carrying)
        self.assertEqual(len(self.cluster.network.attempts), 4)
        self.broker.lines.clear()  # it does not see the end
        self.successResultOf(carrier.carry(FRAME, "t", 0))
        self.cluster.pass_(1)
        self.assertEqual(len(self.cluster.network.attempts), 5)

    def test_multiSend(self) -> None:
        """More parts than fit in a request are several; when a later one fails, what is known of all is nothing."""
        carrier = self.carrier(False)
        parts = [("t", 0, b"")] * (COUNT_MAX + 1)
        carrying = carrier.multiSend(parts)
        self.cluster.turn()
        self.successResultOf(carrying)
        self.assertEqual(self.broker.kinds, ["MultiProduce", "MultiProduce"])
        self.successResultOf(carrier.multiSend([]))
        carrying = carrier.send("t", 0, b"")
        self.successResultOf(carrying)

    def test_multiSendFails(self) -> None:
        """When the first part of many fails for want of a connection, nothing was sent; when a later one does, that is unknown."""
        carrier = self.carrier(True)
        parts = [("t", 0, b"")] * (COUNT_MAX + 1)
        self.broker.isUp = False
        carrying = carrier.multiSend(parts)
        self.cluster.pass_(6)
        self.assertFalse(
            self.failureResultOf(carrying, BrokerConnectionError).check(UnknownOutcomeError)
        )
        self.broker.isUp = True
        self.broker.isAnswering = False
        carrying = carrier.multiSend(parts)
        self.cluster.pass_(0.5)
        (line,) = self.broker.lines
        self.link.current = None
        self.broker.isUp = False
        self.link._connection = None
        self.link._refusal = ClosedError("closed")
        line.deliver(encodeOffsets([1]))
        self.failureResultOf(carrying, UnknownOutcomeError)
