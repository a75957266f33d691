"""Tests for L{pylogbroker.syncclient.syncproducer}, on real sockets."""

from __future__ import annotations

import struct
from typing import Any

from pylogbroker import syncclient
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    MessageTooLargeError,
    RemotePartitionError,
    TimedOutError,
    UnknownCodecError,
    WireError,
)
from pylogbroker.protocol.kafka07.requests import encodeMultiProduce, encodeOffsets, encodeProduce
from pylogbroker.protocol.kafka07.responses import encodeOffsets as offsetsAnswer
from pylogbroker.records.messageset import encodeSet
from tests.syncclient.fakebroker import Connection, FakeBrokerCase, ManualTime

QUESTION = encodeOffsets("topic", 0, -1, 1)


def produced(payload: bytes) -> bytes:
    """What arrives when a payload is sent."""
    return encodeProduce("topic", 0, encodeSet([payload]))


class ProducerCase(FakeBrokerCase):
    """A producer that has sent nothing yet."""

    def setUp(self) -> None:
        super().setUp()
        self.time = ManualTime()
        self.producer = self.build()

    def build(self, port: int | None = None, **arguments: Any) -> syncclient.SyncProducer:
        port = self.port if port is None else port
        producer = syncclient.SyncProducer(
            "127.0.0.1",
            port,
            random=lambda: 0.0,
            clock=self.time.clock,
            pause=self.time.pause,
            **arguments,
        )
        self.addCleanup(producer.socket.drop)
        return producer

    def send(self, payload: bytes = b"x") -> None:
        self.producer.send("topic", 0, [payload])

    def connected(self) -> Connection:
        """Let it connect, with one send."""
        self.send(b"first")
        far = self.accept()
        self.assertEqual(far.readFrame(), produced(b"first"))
        return far


class SendTests(ProducerCase):
    """Sending."""

    def test_send(self) -> None:
        """
        Payloads, or an encoded set, go to a partition, or to one that the broker picks; compressed,
        if so told.
        """
        far = self.connected()
        self.producer.send("topic", 3, encodeSet([b"x", b"y"]))
        self.assertEqual(far.readFrame(), encodeProduce("topic", 3, encodeSet([b"x", b"y"])))
        self.producer.send("topic", [b"x"])
        self.assertEqual(far.readFrame(), encodeProduce("topic", -1, encodeSet([b"x"])))
        self.producer.send("topic", 0, [b"x", b"y"], codec=1)
        self.assertEqual(far.readFrame(), encodeProduce("topic", 0, encodeSet([b"x", b"y"], 1)))
        self.assertRaises(UnknownCodecError, self.producer.send, "topic", 0, [b"x"], codec=3)

    def test_multiSend(self) -> None:
        """Several sets go in one request, in order."""
        far = self.connected()
        self.producer.multiSend([("topic", 0, [b"x"]), ("other", -1, [b"y"])])
        self.assertEqual(
            far.readFrame(),
            encodeMultiProduce([("topic", 0, encodeSet([b"x"])), ("other", -1, encodeSet([b"y"]))]),
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
        self.assertFalse(producer.socket.isConnected)

    def test_cannotConnect(self) -> None:
        """
        When there is no connection to be had in C{connectTimeoutMs}, it fails with the reason;
        nothing is in doubt for that.
        """
        self.producer = self.build(port=self.unusedPort(), connectTimeoutMs=25)
        self.assertIn("refused", str(self.assertRaises(BrokerConnectionError, self.send)))
        self.producer.close()

    def test_endedMeanwhile(self) -> None:
        """
        Nothing is written to a connection that the broker has ended: the first message after a
        broker's death is not lost, as it is with 0.7.2.
        """
        self.connected().close()
        self.untilHeard(self.producer.socket)
        self.send(b"y")
        self.assertEqual(self.accept().readFrame(), produced(b"y"))

    def test_brokerTakesNothing(self) -> None:
        """A broker that reads nothing is given up."""
        self.producer = self.build(timeoutMs=20, payloadSizeMax=1 << 30)
        self.connected()
        self.assertRaises(TimedOutError, self.send, b"x" * (32 << 20))

    def test_threads(self) -> None:
        """Several threads may share one: requests arrive whole."""
        payloads = [bytes([each]) * 100_000 for each in range(4)]
        sending = [self.start(self.send, payload) for payload in payloads]
        far = self.accept()
        self.assertEqual(
            {far.readFrame() for _ in payloads}, {produced(payload) for payload in payloads}
        )
        for each in sending:
            self.result(each)

    def test_repr(self) -> None:
        """It names its broker."""
        self.assertEqual(repr(self.producer), f"<SyncProducer for 127.0.0.1:{self.port}>")


class ReconnectTests(ProducerCase):
    """A connection is used so often, or so long."""

    def answer(self, far: Connection) -> None:
        """Answer the producer's last question, and end."""
        far.write(offsetsAnswer([1]))
        self.assertTrue(far.isEnded())
        far.close()

    def test_byCount(self) -> None:
        """
        After so many requests the producer asks for a proof, and closes the connection; the next
        call makes a new one, and nothing is in doubt.
        """
        self.producer = self.build(reconnectIntervalCount=2)
        far = self.connected()
        sending = self.start(self.send, b"2")
        self.assertEqual(far.readFrame() + far.readFrame(), produced(b"2") + QUESTION)
        self.answer(far)
        self.result(sending)
        self.assertFalse(self.producer.socket.isConnected)
        confirming = self.start(self.producer.confirm, "topic", 0)
        far = self.accept()
        self.assertEqual(far.readFrame(), QUESTION)
        far.write(offsetsAnswer([26]))
        self.assertEqual(self.result(confirming), 26)

    def test_byTime(self) -> None:
        """So it does after so long a time."""
        self.producer = self.build(reconnectTimeIntervalMs=10_000)
        far = self.connected()
        self.time.seconds += 9.9
        self.send(b"2")
        self.assertTrue(self.producer.socket.isConnected)
        self.time.seconds += 0.1
        sending = self.start(self.send, b"3")
        self.assertEqual(
            far.readFrame() + far.readFrame() + far.readFrame(),
            produced(b"2") + produced(b"3") + QUESTION,
        )
        self.answer(far)
        self.result(sending)
        self.assertFalse(self.producer.socket.isConnected)

    def test_partitionOfTheQuestion(self) -> None:
        """
        The question is about a partition to which was sent; where the broker picked one, about the
        first, which is always there.
        """
        self.producer = self.build(reconnectIntervalCount=1)
        for sending, topic, partition in (
            (self.start(self.producer.send, "picked", [b"x"]), "picked", 0),
            (
                self.start(self.producer.multiSend, [("one", 1, [b"x"]), ("two", 2, [b"x"])]),
                "two",
                2,
            ),
        ):
            far = self.accept()
            far.readFrame()
            self.assertEqual(far.readFrame(), encodeOffsets(topic, partition, -1, 1))
            self.answer(far)
            self.result(sending)

    def test_nothingToAsk(self) -> None:
        """A request without parts leaves nothing to prove."""
        self.producer = self.build(reconnectIntervalCount=1)
        sending = self.start(self.producer.multiSend, [])
        far = self.accept()
        self.assertEqual(far.readFrame(), encodeMultiProduce([]))
        self.assertTrue(far.isEnded())
        far.close()
        self.result(sending)

    def test_provenAndReset(self) -> None:
        """With the proof it does not matter how the connection ends."""
        self.producer = self.build(reconnectIntervalCount=2, closeMs=60_000)
        far = self.connected()
        sending = self.start(self.send, b"2")
        far.readFrame()
        far.readFrame()
        far.write(offsetsAnswer([26]))
        self.assertTrue(far.isEnded())
        far.reset()
        self.result(sending)
        self.producer.close()

    def test_noProof(self) -> None:
        """
        An end without an answer puts what went over the connection in doubt; the send itself has
        not failed.
        """
        for end in (Connection.close, Connection.reset):
            self.producer = self.build(reconnectIntervalCount=2, closeMs=60_000)
            far = self.connected()
            sending = self.start(self.send, b"2")
            far.readFrame()
            far.readFrame()
            end(far)
            self.result(sending)
            self.assertIn(
                "last 2 requests is unknown",
                str(self.assertRaises(BrokerConnectionError, self.producer.confirm, "topic", 0)),
            )
            self.accept()


class ConfirmTests(ProducerCase):
    """What can be known."""

    def confirm(self, far: Connection, answer: bytes) -> int:
        confirming = self.start(self.producer.confirm, "topic", 0)
        self.assertEqual(far.readFrame(), QUESTION)
        far.write(answer)
        return self.result(confirming)

    def test_confirmed(self) -> None:
        """
        The question goes behind what was sent, over the same connection; its answer is the proof.
        """
        self.assertEqual(self.confirm(self.connected(), offsetsAnswer([15])), 15)

    def test_lostBeforeTheAnswer(self) -> None:
        """Without an answer it is unknown what the broker took; said once, that is over."""
        far = self.connected()
        confirming = self.start(self.producer.confirm, "topic", 0)
        far.readFrame()
        far.close()
        self.assertIn("last 1 request is unknown", self.failure(confirming, BrokerConnectionError))
        confirming = self.start(self.producer.confirm, "topic", 0)
        far = self.accept()
        far.write(offsetsAnswer([15]))
        self.assertEqual(self.result(confirming), 15)

    def test_lostBeforeTheQuestion(self) -> None:
        """
        A new connection proves nothing about what went over one that was lost; the next question is
        about the new one.
        """
        self.connected().close()
        self.untilHeard(self.producer.socket)
        self.send(b"second")
        far = self.accept()
        self.assertEqual(far.readFrame(), produced(b"second"))
        error = self.assertRaises(BrokerConnectionError, self.producer.confirm, "topic", 0)
        self.assertIn("last 1 request is unknown: the connection was lost", str(error))
        self.assertEqual(self.confirm(far, offsetsAnswer([32])), 32)

    def test_lostAfterTheProof(self) -> None:
        """What was confirmed before the loss is not in doubt."""
        far = self.connected()
        self.confirm(far, offsetsAnswer([15]))
        far.close()
        self.untilHeard(self.producer.socket)
        confirming = self.start(self.producer.confirm, "topic", 0)
        far = self.accept()
        far.write(offsetsAnswer([15]))
        self.assertEqual(self.result(confirming), 15)

    def test_nothingSent(self) -> None:
        """With nothing sent, a loss is a loss, and says nothing of requests."""
        confirming = self.start(self.producer.confirm, "topic", 0)
        far = self.accept()
        far.readFrame()
        far.close()
        self.assertNotIn("unknown", self.failure(confirming, BrokerConnectionError))

    def test_nonsense(self) -> None:
        """What is no offset is no proof, and who sends it is no broker."""
        for answer in (offsetsAnswer([]), offsetsAnswer([2, 1]), b"\0\0\0\2\0\0"):
            self.producer = self.build()
            far = self.connected()
            confirming = self.start(self.producer.confirm, "topic", 0)
            far.readFrame()
            far.write(answer)
            self.failure(confirming, WireError)
            self.assertTrue(far.isEnded())

    def test_negativePartition(self) -> None:
        """A partition that the broker is to pick cannot be asked about."""
        self.assertRaises(ValueError, self.producer.confirm, "topic", -1)


class CloseTests(ProducerCase):
    """The end."""

    def test_close(self) -> None:
        """
        It asks for a proof, ends its side, waits for the broker to end its own, and takes nothing
        any more.
        """
        far = self.connected()
        closing = self.start(self.producer.close)
        self.assertEqual(far.readFrame(), QUESTION)
        far.write(offsetsAnswer([15]))
        self.assertTrue(far.isEnded())
        far.close()
        self.result(closing)
        self.assertRaises(ClosedError, self.send)
        self.assertRaises(ClosedError, self.producer.confirm, "topic", 0)
        self.producer.close()

    def test_confirmedBefore(self) -> None:
        """What was confirmed need not be asked for again."""
        far = self.connected()
        confirming = self.start(self.producer.confirm, "topic", 0)
        far.readFrame()
        far.write(offsetsAnswer([15]))
        self.result(confirming)
        closing = self.start(self.producer.close)
        self.assertTrue(far.isEnded())
        far.close()
        self.result(closing)

    def test_errorCode(self) -> None:
        """
        An answer with an error code proves as much as one with an offset: to the end, and to a
        question, which fails with it, and not with doubt.
        """
        refusal = struct.pack(">ihi", 6, RemotePartitionError.code, 0)
        far = self.connected()
        closing = self.start(self.producer.close)
        far.readFrame()
        far.write(refusal)
        self.assertTrue(far.isEnded())
        far.close()
        self.result(closing)
        self.producer = self.build()
        far = self.connected()
        confirming = self.start(self.producer.confirm, "topic", 0)
        far.readFrame()
        far.write(refusal)
        self.failure(confirming, RemotePartitionError)
        closing = self.start(self.producer.close)
        self.assertTrue(far.isEnded())
        far.close()
        self.result(closing)

    def test_noProof(self) -> None:
        """Without an answer it fails, also a second time."""
        far = self.connected()
        closing = self.start(self.producer.close)
        far.readFrame()
        far.close()
        self.assertIn("unknown", self.failure(closing, BrokerConnectionError))
        self.assertRaises(BrokerConnectionError, self.producer.close)

    def test_lostBefore(self) -> None:
        """It fails when what was not confirmed was on a connection that is gone."""
        self.connected()
        self.producer.socket.drop()
        self.assertIn("unknown", str(self.assertRaises(BrokerConnectionError, self.producer.close)))

    def test_contextManager(self) -> None:
        """Leaving it closes it; a failure of that is raised, unless something else is."""

        def leave(error: Exception | None) -> None:
            with self.build(closeMs=20) as producer:
                producer.multiSend([("topic", 0, [b"x"])])
                if error is not None:
                    raise error

        self.failure(self.start(leave, None), BrokerConnectionError)
        self.failure(self.start(leave, KeyError("mine")), KeyError)
        with self.build():
            pass
