"""Tests for L{pylogbroker.client.syncproducer}, on a puppet network."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.connection import DEFAULT_LIMITS, ConnectionLimits
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    MessageTooLargeError,
    RemotePartitionError,
    TimedOutError,
    UnknownCodecError,
    WireError,
)
from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka07.requests import (
    Produce,
    decodeRequest,
    encodeMultiProduce,
    encodeOffsets,
    encodeProduce,
)
from pylogbroker.protocol.kafka07.responses import encodeOffsets as offsetsAnswer
from pylogbroker.records.messageset import MessageSet, encodeSet
from pylogbroker.testing.network import MemoryEndpoint, MemoryNetwork, MemoryPeer


def produced(payload: bytes) -> bytes:
    """What arrives when a payload is sent."""
    return encodeProduce("topic", 0, encodeSet([payload]))


QUESTION = encodeOffsets("topic", 0, -1, 1)


class ProducerCase(SynchronousTestCase):
    """A producer that has sent nothing yet."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.producer = self.build()

    def build(self, **arguments: Any) -> SyncProducer:
        return SyncProducer(
            self.clock, self.network.endpoint("broker:9092"), random=lambda: 0.0, **arguments
        )

    def send(self, payload: bytes = b"x") -> Deferred[None]:
        return self.producer.send("topic", 0, [payload])

    def arrived(self, line: MemoryPeer) -> bytes:
        self.network.turn()
        return line.take()

    def connected(self) -> MemoryPeer:
        """Let it connect, with one send."""
        sent = self.send(b"first")
        line = self.network.accept()
        self.successResultOf(sent)
        self.assertEqual(self.arrived(line), produced(b"first"))
        return line


class SendTests(ProducerCase):
    """Sending."""

    def test_lazily(self) -> None:
        """It connects when there is something to send, and sends it then."""
        self.assertEqual(self.network.attempts, [])
        sent = self.send()
        self.assertNoResult(sent)
        line = self.network.accept()
        self.successResultOf(sent)
        self.assertEqual(self.arrived(line), produced(b"x"))

    def test_partition(self) -> None:
        """Without a partition the broker picks one."""
        line = self.connected()
        self.producer.send("topic", [b"x"])
        self.assertEqual(self.arrived(line), encodeProduce("topic", -1, encodeSet([b"x"])))

    def test_encoded(self) -> None:
        """A message set may be encoded already."""
        line = self.connected()
        self.producer.send("topic", 3, encodeSet([b"x", b"y"]))
        self.assertEqual(self.arrived(line), encodeProduce("topic", 3, encodeSet([b"x", b"y"])))

    def test_compressed(self) -> None:
        """With a codec the set goes in a wrapper."""
        line = self.connected()
        self.producer.send("topic", 0, [b"x", b"y"], codec=1)
        self.assertEqual(self.arrived(line), encodeProduce("topic", 0, encodeSet([b"x", b"y"], 1)))
        self.assertRaises(UnknownCodecError, self.producer.send, "topic", 0, [b"x"], codec=3)

    def test_multiSend(self) -> None:
        """Several sets go in one request, in order, and are not merged."""
        line = self.connected()
        self.producer.multiSend(
            [("topic", 0, [b"x"]), ("other", -1, [b"y"]), ("topic", 0, encodeSet([b"z"]))]
        )
        self.assertEqual(
            self.arrived(line),
            encodeMultiProduce(
                [
                    ("topic", 0, encodeSet([b"x"])),
                    ("other", -1, encodeSet([b"y"])),
                    ("topic", 0, encodeSet([b"z"])),
                ]
            ),
        )

    def test_tooLarge(self) -> None:
        """A payload that is too large is refused before anything is sent, or even connected."""
        producer = self.build(payloadSizeMax=100)
        self.assertRaises(MessageTooLargeError, producer.send, "topic", 0, [b"x" * 101])
        self.assertRaises(
            MessageTooLargeError,
            producer.multiSend,
            [("topic", 0, [b"x"]), ("topic", 0, [b"x" * 101])],
        )
        self.assertEqual(self.network.attempts, [])

    def test_order(self) -> None:
        """
        Sends keep their order, also those that are made while those before them are being served.
        """
        again: list[Deferred[None]] = []
        self.send(b"1").addCallback(lambda _nothing: again.append(self.send(b"3")))
        self.send(b"2")
        line = self.network.accept()
        self.assertEqual(self.arrived(line), produced(b"1") + produced(b"2") + produced(b"3"))
        self.successResultOf(again[0])

    def test_pushedBack(self) -> None:
        """When the transport pushes back, the send waits."""
        line = self.connected()
        line.stall()
        sent = self.send(b"x" * 100_000)
        self.network.turn()
        self.assertNoResult(sent)
        line.flow()
        self.network.turn()
        self.successResultOf(sent)

    def test_tooMuchWaits(self) -> None:
        """What waits for a connection is limited in size; a single large one is not too much."""
        self.producer = self.build(limits=ConnectionLimits(waitingSizeMax=1000))
        first = self.send(b"x" * 2000)
        self.failureResultOf(self.send(b"y"), BackpressureError)
        self.network.accept()
        self.successResultOf(first)
        self.successResultOf(self.send(b"y"))

    def test_roomAfterFailure(self) -> None:
        """What failed does not count."""
        self.producer = self.build(limits=ConnectionLimits(waitingSizeMax=1000))
        first = self.send(b"x" * 2000)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.send(b"y")
        self.assertEqual(self.network.attempts[0].state, "cancelled")
        line = self.network.accept()
        self.assertEqual(self.arrived(line), produced(b"y"))

    def test_cannotConnect(self) -> None:
        """
        When there is no connection to be had in C{connectTimeoutMs}, it fails with the reason.
        """
        self.producer = self.build(connectTimeoutMs=25)
        sent = self.send()
        self.network.refuse()
        self.clock.advance(0.010)
        self.network.refuse()
        self.assertIn("refused", str(self.failureResultOf(sent, BrokerConnectionError).value))

    def test_lost(self) -> None:
        """
        What has not left when the connection is lost fails, and is not sent again; the next send
        connects anew.
        """
        line = self.connected()
        line.stall()
        lost = self.send(b"x" * 100_000)
        self.clock.advance(1)
        line.cut()
        self.failureResultOf(lost, BrokerConnectionError)
        self.send(b"y")
        line = self.network.accept()
        self.assertEqual(self.arrived(line), produced(b"y"))

    def test_repr(self) -> None:
        """It names its broker."""
        self.assertEqual(repr(self.producer), "<SyncProducer for broker:9092>")


class ReconnectTests(ProducerCase):
    """A connection is used so often, or so long."""

    def answer(self, line: MemoryPeer, offset: int = 1) -> None:
        """Answer the producer's last question, and end."""
        line.deliver(offsetsAnswer([offset]))
        self.network.turn()
        self.assertTrue(line.isEnded)
        line.end()

    def test_byCount(self) -> None:
        """
        After so many requests the producer asks for a proof, closes the connection in order, and
        makes a new one; what is sent meanwhile goes over that.
        """
        self.producer = self.build(reconnectIntervalCount=3)
        line = self.connected()
        for each in (self.send(b"2"), self.send(b"3")):
            self.successResultOf(each)
        waits = self.send(b"4")
        self.assertEqual(self.arrived(line), produced(b"2") + produced(b"3") + QUESTION)
        self.assertFalse(line.isEnded)
        self.assertNoResult(waits)
        self.answer(line)
        line = self.network.accept()
        self.assertEqual(self.arrived(line), produced(b"4"))
        self.successResultOf(waits)

    def test_byTime(self) -> None:
        """
        So it does after so long a time, with the first request then; the count begins anew with
        each connection.
        """
        self.producer = self.build(reconnectIntervalCount=3, reconnectTimeIntervalMs=10_000)
        line = self.connected()
        self.clock.advance(9.9)
        self.successResultOf(self.send())
        self.assertEqual(self.arrived(line), produced(b"x"))
        self.clock.advance(0.1)
        self.successResultOf(self.send())
        self.answer(line)
        line = self.network.accept()
        self.successResultOf(self.send())
        self.successResultOf(self.send())
        self.assertEqual(self.arrived(line), produced(b"x") * 2)

    def test_everyRequest(self) -> None:
        """It may be each request's own."""
        self.producer = self.build(reconnectIntervalCount=1)
        sent = [self.send(b"%d" % each) for each in range(3)]
        for each in range(3):
            line = self.network.accept()
            self.assertEqual(self.arrived(line), produced(b"%d" % each) + QUESTION)
            self.successResultOf(sent[each])
            self.answer(line)

    def test_notPositive(self) -> None:
        """No request at all over a connection is no interval."""
        self.assertRaises(ValueError, self.build, reconnectIntervalCount=0)

    def test_partitionOfTheQuestion(self) -> None:
        """
        The question is about a partition to which was sent; where the broker picked one, about the
        first, which is always there.
        """
        self.producer = self.build(reconnectIntervalCount=1)
        for send, topic, partition in (
            (lambda: self.producer.send("picked", [b"x"]), "picked", 0),
            (lambda: self.producer.multiSend([("one", 1, [b"x"]), ("two", 2, [b"x"])]), "two", 2),
        ):
            send()
            line = self.network.accept()
            self.assertTrue(self.arrived(line).endswith(encodeOffsets(topic, partition, -1, 1)))
            self.answer(line)

    def test_nothingToAsk(self) -> None:
        """A request without parts leaves nothing to prove."""
        self.producer.multiSend([])
        line = self.network.accept()
        self.clock.advance(1)
        line.cut()
        confirming = self.producer.confirm("topic", 0)
        self.network.accept().deliver(offsetsAnswer([0]))
        self.assertEqual(self.successResultOf(confirming), 0)

    def test_proof(self) -> None:
        """
        What the broker answered for before the connection was replaced is not in doubt, however the
        connection then ended.
        """
        for end in (MemoryPeer.end, MemoryPeer.cut):
            self.producer = self.build(reconnectIntervalCount=1)
            self.send()
            line = self.network.accept()
            confirming = self.producer.confirm("topic", 0)
            line.deliver(offsetsAnswer([11]))
            self.network.turn()
            end(line)
            self.network.accept().deliver(offsetsAnswer([11]))
            self.assertEqual(self.successResultOf(confirming), 11)

    def test_noProof(self) -> None:
        """
        An end without an answer is none, however orderly: a broker may close for another reason,
        and not read what comes then.
        """
        for end in (MemoryPeer.end, MemoryPeer.cut):
            self.producer = self.build(reconnectIntervalCount=1)
            self.send()
            line = self.network.accept()
            confirming = self.producer.confirm("topic", 0)
            self.network.turn()
            end(line)
            self.network.accept()
            self.assertIn(
                "last 1 request is unknown",
                str(self.failureResultOf(confirming, BrokerConnectionError).value),
            )

    def test_provenBefore(self) -> None:
        """
        What was confirmed before its connection was replaced cannot come into doubt by that; what
        came after it does.
        """
        self.producer = self.build(reconnectIntervalCount=3)
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        line.deliver(offsetsAnswer([15]))
        self.successResultOf(confirming)
        self.send(b"2"), self.send(b"3")
        line.cut()
        self.network.accept()
        self.assertIn(
            "last 2 requests is unknown",
            str(
                self.failureResultOf(self.producer.confirm("topic", 0), BrokerConnectionError).value
            ),
        )

    def test_noRoomForTheQuestion(self) -> None:
        """
        While so much waits that there is no room for the question, the connection stays; it is
        replaced with a later request.
        """
        self.producer = self.build(
            reconnectIntervalCount=3, limits=ConnectionLimits(waitingSizeMax=100_000)
        )
        line = self.connected()
        line.stall()
        self.send(b"x" * 70_000), self.send(b"y" * 90_000)
        line.flow()
        self.assertNotIn(QUESTION, self.arrived(line))
        self.send(b"z")
        self.assertEqual(self.arrived(line), produced(b"z") + QUESTION)


class ConfirmTests(ProducerCase):
    """What can be known."""

    def test_confirmed(self) -> None:
        """
        The question goes behind what was sent, over the same connection; its answer is the proof.
        """
        line = self.connected()
        self.send(b"x")
        confirming = self.producer.confirm("topic", 0)
        self.assertEqual(self.arrived(line), produced(b"x") + QUESTION)
        self.assertNoResult(confirming)
        line.deliver(offsetsAnswer([26]))
        self.assertEqual(self.successResultOf(confirming), 26)

    def test_behindWhatWaits(self) -> None:
        """The same while it is still connecting."""
        self.send(b"x")
        confirming = self.producer.confirm("topic", 0)
        line = self.network.accept()
        self.assertEqual(self.arrived(line), produced(b"x") + QUESTION)
        line.deliver(offsetsAnswer([11]))
        self.successResultOf(confirming)

    def test_lostBeforeTheAnswer(self) -> None:
        """
        Without an answer it is unknown what the broker took; the question is not asked again over a
        new connection. That said, it is over.
        """
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        self.clock.advance(1)
        line.cut()
        reason = self.failureResultOf(confirming, BrokerConnectionError)
        self.assertIn(
            "whether broker:9092 took the last 1 request is unknown: the connection to "
            "broker:9092 was lost",
            str(reason.value),
        )
        self.assertEqual(self.network.waiting, [])
        confirming = self.producer.confirm("topic", 0)
        self.network.accept().deliver(offsetsAnswer([11]))
        self.assertEqual(self.successResultOf(confirming), 11)

    def test_lostBeforeTheQuestion(self) -> None:
        """
        A new connection proves nothing about what went over one that was lost, however well it
        answers; the next question is one about the new one.
        """
        line = self.connected()
        self.clock.advance(1)
        line.end()
        self.send(b"second")
        line = self.network.accept()
        confirming = self.producer.confirm("topic", 0)
        self.assertIn(
            "last 1 request is unknown",
            str(self.failureResultOf(confirming, BrokerConnectionError).value),
        )
        self.assertEqual(self.arrived(line), produced(b"second"))
        confirming = self.producer.confirm("topic", 0)
        line.deliver(offsetsAnswer([32]))
        self.assertEqual(self.successResultOf(confirming), 32)

    def test_lostAfterTheProof(self) -> None:
        """What was confirmed before the loss is not in doubt."""
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        line.deliver(offsetsAnswer([15]))
        self.successResultOf(confirming)
        self.clock.advance(1)
        line.cut()
        confirming = self.producer.confirm("topic", 0)
        self.network.accept().deliver(offsetsAnswer([15]))
        self.assertEqual(self.successResultOf(confirming), 15)

    def test_sentMeanwhile(self) -> None:
        """
        A proof is for what was sent before the question, not for what is sent before the answer.
        """
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        self.send(b"later")
        line.deliver(offsetsAnswer([15]))
        self.successResultOf(confirming)
        self.clock.advance(1)
        line.cut()
        confirming = self.producer.confirm("topic", 0)
        self.network.accept()
        self.assertIn(
            "last 1 request is unknown",
            str(self.failureResultOf(confirming, BrokerConnectionError).value),
        )

    def test_replacedBeforeTheAnswer(self) -> None:
        """
        When the connection is lost before the answer, what was sent behind the question is not
        forgotten: the next question tells of it.
        """
        self.producer = self.build(reconnectIntervalCount=2)
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        self.successResultOf(self.send(b"behind"))
        line.cut()
        self.assertIn("unknown", str(self.failureResultOf(confirming, BrokerConnectionError).value))
        self.network.accept()
        self.assertIn(
            "unknown",
            str(
                self.failureResultOf(self.producer.confirm("topic", 0), BrokerConnectionError).value
            ),
        )

    def test_timedOut(self) -> None:
        """
        A broker that does not answer in time may still: the question can be asked again, and then
        proves all.
        """
        self.producer = self.build(timeoutMs=1000)
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        self.clock.advance(1)
        self.failureResultOf(confirming, TimedOutError)
        confirming = self.producer.confirm("topic", 0)
        self.assertEqual(self.arrived(line), QUESTION * 2)
        line.deliver(offsetsAnswer([14]) + offsetsAnswer([15]))
        self.assertEqual(self.successResultOf(confirming), 15)

    def test_nothingSent(self) -> None:
        """With nothing sent, a loss is a loss, and says nothing of requests."""
        confirming = self.producer.confirm("topic", 0)
        self.network.accept().cut()
        self.assertNotIn(
            "unknown", str(self.failureResultOf(confirming, BrokerConnectionError).value)
        )

    def test_nonsense(self) -> None:
        """What is no offset is no proof, and who sends it is no broker."""
        line = self.connected()
        for answer in (offsetsAnswer([]), offsetsAnswer([2, 1]), b"\0\0\0\2\0\0"):
            confirming = self.producer.confirm("topic", 0)
            line.deliver(answer)
            self.failureResultOf(confirming, WireError)
            self.network.turn()
            self.assertIsNotNone(line.reason)
            self.producer = self.build()
            line = self.connected()

    def test_cancelled(self) -> None:
        """It can be cancelled; what follows is in order."""
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        confirming.cancel()
        self.failureResultOf(confirming, CancelledError)
        confirming = self.producer.confirm("topic", 0)
        line.deliver(offsetsAnswer([14]) + offsetsAnswer([15]))
        self.assertEqual(self.successResultOf(confirming), 15)

    def test_negativePartition(self) -> None:
        """A partition that the broker is to pick cannot be asked about."""
        self.assertRaises(ValueError, self.producer.confirm, "topic", -1)


class CloseTests(ProducerCase):
    """The end."""

    def test_flushes(self) -> None:
        """
        What was given to send is written, and the broker asked whether it is done with it, before
        the end: C{send} and then C{close} loses nothing without saying so.
        """
        sent = self.send(b"x" * 200_000)
        closing = self.producer.close()
        line = self.network.accept()
        line.stall()
        self.network.turn()
        self.assertFalse(line.isEnded)
        line.flow()
        self.assertEqual(self.arrived(line), produced(b"x" * 200_000) + QUESTION)
        self.successResultOf(sent)
        self.assertFalse(line.isEnded)
        line.deliver(offsetsAnswer([200_010]))
        self.network.turn()
        self.assertTrue(line.isEnded)
        self.assertNoResult(closing)
        line.end()
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_flushesAtOnceConnected(self) -> None:
        """So it does if the endpoint connects without delay: a slow send has its full time."""
        endpoint = self.network.endpoint()
        lines: list[MemoryPeer] = []

        def connect(factory: Any) -> Deferred[Any]:
            connecting = MemoryEndpoint.connect(endpoint, factory)
            lines.append(self.network.accept())
            lines[0].stall()
            return connecting

        self.patch(endpoint, "connect", connect)
        self.producer = SyncProducer(self.clock, endpoint)
        sent = self.send(b"x" * 200_000)
        closing = self.producer.close()
        self.clock.advance(DEFAULT_LIMITS.closeMs / 1000)
        self.assertNoResult(sent)
        lines[0].flow()
        self.network.turn()
        self.successResultOf(sent)
        lines[0].deliver(offsetsAnswer([200_010]))
        lines[0].end()
        self.successResultOf(closing)

    def test_proven(self) -> None:
        """
        With an answer it does not matter how the connection ends; nor does it when all was
        confirmed before.
        """
        line = self.connected()
        closing = self.producer.close()
        line.deliver(offsetsAnswer([15]))
        line.cut()
        self.successResultOf(closing)
        self.producer = self.build()
        line = self.connected()
        self.producer.confirm("topic", 0)
        line.deliver(offsetsAnswer([15]))
        closing = self.producer.close()
        self.assertEqual(self.arrived(line), QUESTION)
        line.cut()
        self.successResultOf(closing)

    def test_notProven(self) -> None:
        """Without an answer it fails, however orderly the end."""
        for end in (MemoryPeer.end, MemoryPeer.cut):
            self.producer = self.build()
            line = self.connected()
            closing = self.producer.close()
            self.network.turn()
            end(line)
            self.assertIn(
                "unknown", str(self.failureResultOf(closing, BrokerConnectionError).value)
            )

    def test_errorCode(self) -> None:
        """
        An answer with an error code proves as much as one with an offset: to the end, and to a
        question, which fails with it, and not with doubt.
        """
        refusal = struct.pack(">ihi", 6, RemotePartitionError.code, 0)
        line = self.connected()
        closing = self.producer.close()
        line.deliver(refusal)
        line.cut()
        self.successResultOf(closing)
        self.producer = self.build()
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        line.deliver(refusal)
        self.failureResultOf(confirming, RemotePartitionError)
        line.cut()
        self.successResultOf(self.producer.close())

    def test_refusedIsNotUnknown(self) -> None:
        """
        What was refused because too much waits was not sent, and nothing is unknown of it when the
        connection is lost.
        """
        self.producer = self.build(limits=ConnectionLimits(waitingSizeMax=100_000))
        line = self.connected()
        confirming = self.producer.confirm("topic", 0)
        line.deliver(offsetsAnswer([15]))
        self.successResultOf(confirming)
        line.stall()
        sendings = [self.send(b"x" * 90_000) for _more in range(4)]
        line.cut()
        busy = [self.failureResultOf(sending).check(BackpressureError) for sending in sendings]
        self.assertEqual(busy, [None, None, BackpressureError, BackpressureError])
        self.assertIn(
            "took the last 2 requests is unknown",
            str(self.failureResultOf(self.producer.close(), BrokerConnectionError).value),
        )

    def test_lostBefore(self) -> None:
        """
        It fails when something that was not confirmed was on a connection that was lost before;
        whether there is a new one or not.
        """
        for again in (False, True):
            self.producer = self.build()
            line = self.connected()
            self.clock.advance(1)
            line.cut()
            if again:
                line = self.connected()
            closing = self.producer.close()
            if again:
                line.deliver(offsetsAnswer([15]))
                line.cut()
            self.assertIn(
                "unknown", str(self.failureResultOf(closing, BrokerConnectionError).value)
            )

    def test_answersFirst(self) -> None:
        """So is a confirmation that is under way answered."""
        self.send(b"x")
        confirming = self.producer.confirm("topic", 0)
        closing = self.producer.close()
        line = self.network.accept()
        self.assertEqual(self.arrived(line), produced(b"x") + QUESTION)
        self.assertFalse(line.isEnded)
        line.deliver(offsetsAnswer([11]))
        self.assertEqual(self.successResultOf(confirming), 11)
        self.network.turn()
        line.end()
        self.successResultOf(closing)

    def test_cannotConnect(self) -> None:
        """What cannot be sent is not waited for longer than C{connectTimeoutMs}."""
        sent = self.send()
        closing = self.producer.close()
        self.clock.advance(5)
        self.failureResultOf(sent, TimedOutError)
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_bounded(self) -> None:
        """
        A broker that does not answer, or does not close its side, is not waited for longer than
        C{closeMs}; without an answer it fails.
        """
        self.connected()
        closing = self.producer.close()
        self.clock.advance(9.9)
        self.assertNoResult(closing)
        self.clock.advance(0.1)
        self.clock.advance(0)
        self.assertIn(
            "within 10000 ms", str(self.failureResultOf(closing, BrokerConnectionError).value)
        )
        self.producer = self.build()
        line = self.connected()
        closing = self.producer.close()
        line.deliver(offsetsAnswer([15]))
        self.clock.advance(10)
        self.clock.advance(0)
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothingTaken(self) -> None:
        """Closed, it takes nothing, and does not connect again."""
        self.successResultOf(self.producer.close())
        self.failureResultOf(self.send(), ClosedError)
        self.failureResultOf(self.producer.multiSend([("topic", 0, [b"x"])]), ClosedError)
        self.failureResultOf(self.producer.confirm("topic", 0), ClosedError)
        self.assertEqual(self.network.attempts, [])

    def test_twice(self) -> None:
        """Both wait for the end, and learn the same."""
        for answered in (True, False):
            self.producer = self.build()
            line = self.connected()
            first, second = self.producer.close(), self.producer.close()
            if answered:
                line.deliver(offsetsAnswer([15]))
                self.network.turn()
            self.assertNoResult(first)
            self.assertNoResult(second)
            line.end()
            for closing in (first, second, self.producer.close()):
                if answered:
                    self.successResultOf(closing)
                else:
                    self.failureResultOf(closing, BrokerConnectionError)

    def test_frames(self) -> None:
        """What was written is what a broker reads."""
        line = self.connected()
        self.producer.send("topic", 1, [b"a", b"b"])
        frame = self.arrived(line)
        self.assertEqual(decodeRequest(frame[4:])[:2], ("topic", 1))


class RandomTests(SynchronousTestCase):
    """A broker, a network and a caller who do anything at any time."""

    def test_proofs(self) -> None:
        """
        Whatever happens: requests arrive in the order in which they were sent; when a confirmation
        succeeds, all that was sent before it, and not said to be unknown by an earlier one, has
        arrived; every call comes to an end, and nothing is left on the clock.
        """
        for seed in range(300):
            _RandomRun(self, Random(seed), f"seed {seed}").run()


class _RandomRun:
    """One of them."""

    def __init__(self, case: SynchronousTestCase, random: Random, name: str) -> None:
        self.case, self.random, self.name = case, random, name
        self.clock = Clock()
        self.network = MemoryNetwork(self.clock)
        self.producer = SyncProducer(
            self.clock,
            self.network.endpoint(),
            random=random.random,
            timeoutMs=500,
            reconnectIntervalCount=random.choice([1, 3, 1000]),
            limits=ConnectionLimits(waitingCountMax=50, abandonedMs=500, stallMs=800, closeMs=700),
        )
        self.lines: list[tuple[MemoryPeer, FrameDecoder]] = []
        self.arrivals: list[int] = []
        self.calls: list[Deferred[Any]] = []
        self.sent: set[int] = set()  # successfully, and neither proven nor unknown
        self.proofs = 0

    def run(self) -> None:
        steps = [
            self.send,
            self.send,
            self.send,
            self.confirm,
            self.cancel,
            self.wait,
            self.connect,
            self.connect,
            self.serve,
            self.serve,
            self.serve,
        ]
        for _ in range(self.random.randrange(5, 60)):
            self.random.choice([*steps, self.breakLine, self.stall])()
        self.pass_(10)
        closed: list[object] = []
        self.producer.close().addBoth(closed.append)
        self.pass_(20)
        self.case.assertEqual(len(closed), 1, self.name)
        self.case.assertTrue(all(call.called for call in self.calls), self.name)
        self.case.assertEqual(self.arrivals, sorted(self.arrivals), self.name)
        self.case.assertEqual(self.clock.getDelayedCalls(), [], self.name)

    def pass_(self, seconds: int) -> None:
        for _ in range(seconds * 10):
            self.clock.advance(0.1)

    def send(self) -> None:
        number = len(self.calls)
        sending = self.producer.send(
            "topic", 0, [b"%d" % number + b"x" * self.random.choice([0, 0, 0, 200_000])]
        )
        self.calls.append(
            sending.addCallbacks(lambda _nothing: self.sent.add(number), lambda _reason: None)
        )

    def confirm(self) -> None:
        before = len(self.calls)

        def proven(_offset: int) -> None:
            self.case.assertEqual(
                {each for each in self.sent if each < before} - set(self.arrivals), set(), self.name
            )
            self.sent = {each for each in self.sent if each > before}

        def unproven(reason: Failure) -> None:
            if reason.type is BrokerConnectionError:
                self.sent = {each for each in self.sent if each > before}

        confirming = self.producer.confirm("topic", 0)
        self.calls.append(confirming)
        confirming.addCallbacks(proven, unproven)

    def cancel(self) -> None:
        if self.calls and self.random.random() < 0.3:
            self.random.choice(self.calls).cancel()

    def wait(self) -> None:
        self.clock.advance(self.random.choice([0, 0.005, 0.05, 0.5, 1.5]))

    def connect(self) -> None:
        if self.network.waiting:
            if self.random.random() < 0.8:
                self.lines.append((self.network.accept(), FrameDecoder(1 << 20)))
            else:
                self.network.refuse()

    def live(self) -> list[tuple[MemoryPeer, FrameDecoder]]:
        return [each for each in self.lines if each[0].reason is None]

    def serve(self) -> None:
        self.network.turn()
        for line, decoder in self.live():
            decoder.feed(line.take())
            answers = b""
            while (body := decoder.take()) is not None:
                request = decodeRequest(body)
                if isinstance(request, Produce):
                    ((payload, _offset),) = MessageSet(request.sets[0]).payloads()
                    self.arrivals.append(int(payload.rstrip(b"x")))
                else:
                    answers += offsetsAnswer([0])
            if answers:
                line.deliver(answers)
            if line.isEnded and line.reason is None:
                line.end()

    def breakLine(self) -> None:
        if self.live() and self.random.random() < 0.4:
            self.random.choice([MemoryPeer.end, MemoryPeer.cut])(self.random.choice(self.live())[0])

    def stall(self) -> None:
        if self.live():
            self.random.choice([MemoryPeer.stall, MemoryPeer.flow])(
                self.random.choice(self.live())[0]
            )
