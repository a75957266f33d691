"""
Tests for L{pylogbroker.producer.producer}.
"""

from __future__ import annotations

import gc
import gzip
import socket
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from weakref import ref

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, DeferredList
from twisted.internet.tcp import Client
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.config.producersettings import STRING_ENCODER
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    ConfigurationError,
    EncodingError,
    InvalidNameError,
    InvalidTopicError,
    MessageTooLargeError,
    QueueFullError,
    UnknownOutcomeError,
)
from pylogbroker.producer.producer import (
    PAUSE_COUNT_MAX,
    PAUSE_FROM_COUNT,
    PAUSE_MS,
    TURN_COUNT_MAX,
    Producer,
    ProducerData,
)
from pylogbroker.protocol.kafka07.requests import RequestDecoder
from pylogbroker.records.messageset import MessageSet
from pylogbroker.testing.localbroker import LocalBroker
from tests.producer.producercase import ClusterCase, ProducerCase
from tests.producer.puppets import PuppetBroker, PuppetCluster, PuppetConnections

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "clients"


class SyncTests(ProducerCase):
    """Sync mode: each call a request."""

    def sync(self, **properties: Any) -> Producer:
        return self.producer(
            {
                "producer.type": "sync",
                **{key.replace("_", "."): value for key, value in properties.items()},
            }
        )

    def test_one(self) -> None:
        """
        ProducerTest.testSendSingleMessage: one ProducerData is one PRODUCE for partition -1; the
        Deferred fires when it is written.
        """
        producer = self.sync()
        sending = producer.send("topic", b"test")
        self.assertNoResult(sending)
        self.turn()
        self.successResultOf(sending)
        self.assertEqual((self.a.kinds, self.a.log), (["Produce"], [("topic", -1, b"test")]))
        self.assertEqual(producer.counters.writtenCount, 1)
        self.close(producer)

    def test_several(self) -> None:
        """
        ProducerTest.testSend: several topics in one call are one MULTIPRODUCE; entries of the same
        topic are not merged; several values are one set.
        """
        producer = self.sync()
        sending = producer.sendMany(
            [ProducerData("t", [b"1", b"2"]), ProducerData("u", (b"3",)), ProducerData("t", [b"4"])]
        )
        self.turn()
        self.successResultOf(sending)
        self.assertEqual(
            (self.a.kinds, self.a.parts), (["MultiProduce"], [[("t", -1), ("u", -1), ("t", -1)]])
        )
        self.assertEqual(self.a.payloads(), [b"1", b"2", b"3", b"4"])
        self.close(producer)

    def test_nothing(self) -> None:
        """No messages are no request."""
        producer = self.sync()
        self.successResultOf(producer.sendMany([]))
        self.successResultOf(producer.send("t", []))
        self.assertEqual(self.cluster.network.attempts, [])
        self.assertRaises(TypeError, producer.sendMany, [ProducerData(7, [b"x"])])  # type: ignore[arg-type]
        self.close(producer)

    def test_tooLarge(self) -> None:
        """
        SyncProducerTest.testMessageSizeTooLarge: 101 bytes with a limit of 100 are rejected, and
        nothing is sent.
        """
        producer = self.sync(max_message_size=100)
        self.failureResultOf(producer.send("t", b"x" * 101), MessageTooLargeError)
        self.assertEqual(producer.counters.failedCount, 1)
        sending = producer.send("t", b"x" * 100)
        self.turn()
        self.successResultOf(sending)
        self.close(producer)

    def test_wrapperTooLarge(self) -> None:
        """SyncProducerTest.testCompressedMessageSizeTooLarge: the wrapper counts as one message."""
        producer = self.sync(max_message_size=20, compression_codec="gzip")
        self.failureResultOf(producer.send("t", [bytes(range(21))] * 10), MessageTooLargeError)
        self.close(producer)

    def test_compressedTopics(self) -> None:
        """compressed.topics is heeded in sync mode, too (gotcha 31)."""
        producer = self.sync(compression_codec="1", compressed_topics="t")
        producer.send("t", b"x" * 1000)
        producer.send("u", b"x" * 1000)
        self.turn()
        self.assertEqual(self.a.payloads(), [b"x" * 1000] * 2)
        self.assertLess(self.a.bytes.index(b"u\xff\xff\xff\xff"), 200)
        self.close(producer)

    def test_encoders(self) -> None:
        """
        ProducerTest.testDefaultEncoder: the default encoder refuses text, in the caller; the string
        encoder takes it.
        """
        producer = self.sync()
        self.failureResultOf(producer.send("t", "text"), EncodingError)
        self.close(producer)
        producer = self.sync(serializer_class=STRING_ENCODER)
        producer.send("t", "größe")
        self.turn()
        self.assertEqual(self.a.payloads(), ["größe".encode()])
        self.close(producer)

    def test_brokerGone(self) -> None:
        """
        A broker that cannot be reached within connect.timeout.ms is a failure: nothing was sent.
        One broker's failure leaves others sent.
        """
        chances = iter([0.0, 0.9] + [0.5] * 1000)
        producer = self.producer(
            {"broker.list": "0:a:1,1:b:1", "producer.type": "sync"}, lambda: next(chances)
        )
        self.b.isUp = False
        sending = producer.sendMany([ProducerData("t", [b"1"]), ProducerData("u", [b"2"])])
        self.cluster.pass_(6)
        failure = self.failureResultOf(sending, BrokerConnectionError)
        self.assertFalse(failure.check(UnknownOutcomeError))
        self.assertEqual(
            (self.a.payloads(), producer.counters.failedCount, producer.counters.writtenCount),
            ([b"1"], 1, 1),
        )
        self.close(producer)

    def test_badTopic(self) -> None:
        """A topic's name that a broker would cut the connection for fails by itself."""
        producer = self.sync()
        self.failureResultOf(producer.send("a/b", b"x"), InvalidNameError)
        self.failureResultOf(producer.send("x" * 9000, b"x"), InvalidTopicError)
        self.close(producer)

    def test_closed(self) -> None:
        """A closed producer takes nothing; closing again is fine."""
        producer = self.sync()
        self.close(producer)
        self.failureResultOf(producer.send("t", b"x"), ClosedError)
        self.successResultOf(producer.close())
        self.books()

    def test_golden(self) -> None:
        """
        What a sync producer writes is byte for byte what 0.7.2's wrote; by content where it is
        compressed with gzip.
        """
        for name, topic, codec, count in (
            ("c0-b3-1", "rec-c0", 0, 3),
            ("gzip-b3-1", "rec-gz", 1, 3),
            ("snappy-b3-1", "rec-sn", 2, 3),
            ("snappy-b200-0", "rec-sn", 2, 200),
        ):
            golden = bytes.fromhex(
                "".join((GOLDEN / f"prodperf-sync-{name}.c2s.hex").read_text().split())
            )
            self.setUp()
            theirs = PuppetBroker()
            decoder = RequestDecoder(100 << 20)
            decoder.feed(golden)
            producer = self.sync(compression_codec=codec)
            while (request := decoder.takeRequest()) is not None:
                theirs._append([request])  # type: ignore[list-item]
                for data in request.sets:  # type: ignore[union-attr]
                    producer.send(topic, [payload for payload, _ in MessageSet(data).payloads()])
            self.turn()
            self.assertEqual(len(self.a.log) % count, 0)
            if codec == 0:
                self.assertEqual(self.a.bytes, golden)
            else:
                self.assertEqual(self.a.log, theirs.log)
                self.assertEqual(set(self.a.kinds), {"Produce"})
            if codec == 1:
                start = golden.index(b"\x1f\x8b")
                self.assertEqual(
                    gzip.decompress(golden[start:]),
                    gzip.decompress(self.a.bytes[self.a.bytes.index(b"\x1f\x8b") :]),
                )
            self.close(producer)


class Value:
    """Something to send."""


class AsyncTests(ProducerCase):
    """Async mode: messages collect."""

    def test_batchSize(self) -> None:
        """
        AsyncProducerTest.testBatchSize: batch 5: ten messages are two batches, the eleventh goes
        with close. Each batch is a MULTIPRODUCE.
        """
        producer = self.producer({"batch.size": 5})
        sendings = [producer.send("t", b"%d" % index) for index in range(11)]
        self.turn()
        self.assertEqual((self.a.kinds, len(self.a.log)), (["MultiProduce"] * 2, 10))
        self.assertEqual([sending.called for sending in sendings], [True] * 10 + [False])
        self.close(producer)
        self.assertEqual(self.a.payloads(), [b"%d" % index for index in range(11)])
        for sending in sendings:
            self.successResultOf(sending)

    def test_queueTime(self) -> None:
        """AsyncProducerTest.testQueueTimeExpired: three messages go after 200 ms."""
        producer = self.producer({"batch.size": 10, "queue.time": 200})
        for index in range(3):
            producer.send("t", b"%d" % index)
        self.cluster.pass_(0.15)
        self.assertEqual(self.a.log, [])
        self.cluster.pass_(0.05)
        self.assertEqual(len(self.a.log), 3)
        self.close(producer)

    def test_queueSize(self) -> None:
        """
        AsyncProducerTest.testProducerQueueSize: the eleventh message in a queue of ten fails at
        once; the ten are one batch at close.
        """
        producer = self.producer(
            {"queue.size": 10, "queue.enqueueTimeout.ms": 0, "batch.size": 100}
        )
        for index in range(10):
            producer.send("t", b"%d" % index)
        for _again in range(2):
            self.failureResultOf(producer.send("t", b"10"), QueueFullError)
        self.assertEqual((producer.counters.droppedCount, producer.counters.failedCount), (2, 2))
        self.close(producer)
        self.assertEqual((self.a.kinds, len(self.a.log)), (["MultiProduce"], 10))

    def test_waitsForRoom(self) -> None:
        """
        The default: a message that finds the queue full waits; its Deferred fires when it is
        through. One can wait for room before.
        """
        producer = self.producer({"queue.size": 2, "batch.size": 2})
        sendings = [producer.send("t", b"%d" % index) for index in range(4)]
        self.assertNoResult(producer.whenReady())
        self.turn()
        for sending in sendings:
            self.successResultOf(sending)
        self.successResultOf(producer.whenReady())
        self.assertEqual(self.a.payloads(), [b"0", b"1", b"2", b"3"])
        self.close(producer)

    def test_loopsLetTheReactorRun(self) -> None:
        """
        A loop that sends as long as there is room waits for the reactor's next turn now and then,
        so that messages leave before the queue is full.
        """
        producer = self.producer({"batch.size": 100})
        for index in range(TURN_COUNT_MAX):
            self.successResultOf(producer.whenReady())
            producer.sendNoWait("t", b"%d" % index)
        ready = [producer.whenReady() for _waiter in range(3)]
        for waiter in ready:
            self.assertNoResult(waiter)
        ready[1].addErrback(lambda _failure: None).cancel()
        self.turn()
        for waiter in ready:
            self.successResultOf(waiter)
        self.assertEqual(len(self.a.payloads()), TURN_COUNT_MAX)
        self.successResultOf(producer.whenReady())
        self.close(producer)

    def test_loopsEndWithTheProducer(self) -> None:
        """
        Who waits for the reactor's turn when the producer is closed is told at once, and no timer
        is left; a cancelled wait leaves the others alone.
        """
        producer = self.producer({"batch.size": 10_000})
        for _message in range(PAUSE_FROM_COUNT + 1):
            producer.sendNoWait("t", b"x")
        first, second = producer.whenReady(), producer.whenReady()
        self.clock.advance(0)
        self.assertNoResult(second)
        first.addErrback(lambda _failure: None).cancel()
        closing = producer.close()
        self.successResultOf(second)
        self.cluster.pass_(0.1)
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_loopsWaitForSlowBrokers(self) -> None:
        """A loop does not wait for longer than a moment for what does not leave: there is room."""
        producer = self.producer({"batch.size": 10_000})
        for _message in range(PAUSE_FROM_COUNT + TURN_COUNT_MAX):
            producer.sendNoWait("t", b"x")
        ready = producer.whenReady()
        self.clock.advance(0)
        for _pause in range(PAUSE_COUNT_MAX):
            self.assertNoResult(ready)
            self.clock.advance(PAUSE_MS / 1000)
        self.successResultOf(ready)
        self.close(producer)

    def test_cancelledWait(self) -> None:
        """
        Who does not wait for room any more is forgotten, also when the loop has had its turn and
        the queue is full.
        """
        producer = self.producer({"batch.size": 10_000, "queue.size": TURN_COUNT_MAX})
        for _message in range(TURN_COUNT_MAX):
            producer.sendNoWait("t", b"x")
        ready = producer.whenReady()
        self.clock.advance(0)
        self.assertNoResult(ready)
        ready.cancel()
        self.failureResultOf(ready, CancelledError)
        producer.flush()
        self.turn()
        self.successResultOf(producer.whenReady())
        self.close(producer)

    def test_closeWithMuchOutside(self) -> None:
        """
        However much waits outside, and however little goes at a time, a close sends all of it.
        """
        producer = self.producer({"queue.size": 1})
        self.turn()
        count = 2000
        for index in range(count):
            producer.sendNoWait("t", b"%d" % index)
        self.turn()
        closing = producer.close()
        for _turn in range(2 * count):
            self.clock.advance(0)
            self.turn()
            if closing.called:
                break
        self.successResultOf(closing)
        self.assertEqual((producer.counters.writtenCount, len(self.a.payloads())), (count, count))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_nothingIsKept(self) -> None:
        """When all is sent, nothing of it is kept."""
        producer = self.producer({"batch.size": 1}, encoder=lambda _value: b"x")
        value = Value()
        kept = ref(value)
        producer.send("t", value)
        self.turn()
        self.assertEqual(self.a.payloads(), [b"x"])
        del value
        gc.collect()
        self.assertIsNone(kept())
        self.close(producer)

    def cancel(self, waiter: Deferred[None], _nothing: None) -> None:
        waiter.cancel()

    def test_waitersCancelOneAnother(self) -> None:
        """
        Who waits for room may cancel another who does, when told; the others are told all the same.
        """
        for count in (TURN_COUNT_MAX, TURN_COUNT_MAX + 1):
            producer = self.producer({"batch.size": 10_000, "queue.size": count})
            for _message in range(TURN_COUNT_MAX):
                producer.sendNoWait("t", b"x")
            first, second, third = (producer.whenReady() for _waiter in range(3))
            second.addErrback(lambda _failure: None)
            first.addCallback(partial(self.cancel, second))
            self.clock.advance(0)
            producer.flush()
            self.turn()
            self.successResultOf(third)
            self.close(producer)

    def test_topicIsNoText(self) -> None:
        """What is no text is no topic: an error at once, and nothing is counted."""
        for mode in ("async", "sync"):
            producer = self.producer({"producer.type": mode})
            topic: Any
            for topic in (b"t", None, 7):
                self.assertRaises(TypeError, producer.send, topic, b"x")
                self.assertRaises(TypeError, producer.sendNoWait, topic, b"x")
                self.assertRaises(TypeError, producer.sendMany, [(topic, [b"x"], None)])
            self.assertEqual(producer.counters.acceptedCount, 0)
            self.close(producer)

    def test_sendNoWait(self) -> None:
        """
        A message without a Deferred is sent and counted like any other, with or without capacity,
        in both modes, also when it fails.
        """
        for mode in ("async", "sync"):
            producer = self.producer({"queue.size": 4, "batch.size": 2, "producer.type": mode})
            for index in range(5):
                producer.sendNoWait("t", b"%d" % index)
            producer.sendNoWait("t", [b"5", b"6"])
            producer.sendNoWait("a/b", b"x")
            self.turn()
            self.close(producer)
            producer.sendNoWait("t", b"late")
            counters = producer.counters
            self.assertEqual(
                (counters.acceptedCount, counters.writtenCount, counters.failedCount), (9, 7, 2)
            )
            self.assertEqual(self.a.payloads(), [b"%d" % index for index in range(7)])
            self.a.log.clear()

    def test_sendNoWaitRefused(self) -> None:
        """
        A queue that is full and takes no more refuses such a message, too, and counts it as
        dropped.
        """
        producer = self.producer({"queue.size": 1, "batch.size": 10, "queue.enqueueTimeout.ms": 0})
        for index in range(3):
            producer.sendNoWait("t", b"%d" % index)
        self.assertEqual((producer.counters.droppedCount, producer.counters.failedCount), (2, 2))
        self.close(producer)

    def test_waitsSoLong(self) -> None:
        """Above 0 it waits that many milliseconds."""
        producer = self.producer({"queue.size": 1, "batch.size": 10, "queue.enqueueTimeout.ms": 50})
        producer.send("t", b"1")
        sending = producer.send("t", b"2")
        self.cluster.pass_(0.05)
        self.failureResultOf(sending, QueueFullError)
        self.close(producer)

    def test_bytesAreBounded(self) -> None:
        """queue.bytes bounds the memory, too."""
        producer = self.producer({"queue.bytes": 100, "queue.enqueueTimeout.ms": 0})
        producer.send("t", b"x" * 60)
        self.failureResultOf(producer.send("t", b"x" * 60), QueueFullError)
        self.close(producer)

    def test_afterClose(self) -> None:
        """AsyncProducerTest.testAddAfterQueueClosed: a closed producer takes nothing."""
        producer = self.producer()
        self.close(producer)
        self.failureResultOf(producer.send("t", b"x"), ClosedError)
        self.assertEqual(producer.counters.failedCount, 1)

    def test_closeWaits(self) -> None:
        """
        AsyncProducerTest.testSenderThreadShutdown: close waits for a slow send; a second close
        waits for the same.
        """
        producer = self.producer()
        sending = producer.send("t", b"x" * 200_000)
        producer.flush()
        attempt = self.cluster.network.waiting[0]
        line = attempt.accept()
        line.stall()
        self.clock.advance(0)
        closing, again = producer.close(), producer.close()
        self.clock.advance(1)
        self.assertNoResult(closing)
        self.assertNoResult(sending)
        self.a.accept(line)
        line.flow()
        self.turn()
        self.successResultOf(sending)
        self.successResultOf(closing)
        self.successResultOf(again)

    def test_collate(self) -> None:
        """
        AsyncProducerTest.testCollateAndSerializeEvents: a batch is grouped by topic and partition
        into one MULTIPRODUCE.
        """
        producer = self.producer({"batch.size": 4})
        producer.sendMany([("t", [b"1", b"2"], None), ("u", [b"3"], None), ("t", [b"4"], None)])  # type: ignore[list-item]
        self.turn()
        self.assertEqual(self.a.parts, [[("t", -1), ("u", -1)]])
        self.assertEqual(self.a.payloads(), [b"1", b"2", b"4", b"3"])
        self.close(producer)

    def test_manyOverBatches(self) -> None:
        """A call whose messages go in several batches is done with the last of them."""
        producer = self.producer({"batch.size": 2})
        sending = producer.send("t", [b"1", b"2", b"3"])
        self.turn()
        self.assertEqual(len(self.a.log), 2)
        self.assertNoResult(sending)
        flushing = producer.flush()
        self.turn()
        self.successResultOf(sending)
        self.successResultOf(flushing)
        self.close(producer)

    def test_badMessagesAlone(self) -> None:
        """
        A message that cannot be encoded, or is too large, fails alone; the worst of a call is what
        is told.
        """
        producer = self.producer(
            {"max.message.size": 5, "batch.size": 4, "serializer.class": STRING_ENCODER}
        )
        sendings = [producer.send("t", value) for value in ("good", 7, "too large", "fine")]
        self.turn()
        self.assertEqual(self.a.payloads(), [b"good", b"fine"])
        self.failureResultOf(sendings[1], EncodingError)
        self.failureResultOf(sendings[2], MessageTooLargeError)
        many = producer.send("t", ["a", "b", 7, "c"])
        self.turn()
        self.failureResultOf(many, EncodingError)
        self.assertEqual(producer.counters.writtenCount, 5)
        self.close(producer)

    def test_wrapperTooLarge(self) -> None:
        """
        What is too large, compressed and as it is, fails; its neighbours in the batch go, of other
        topics and of its own.
        """
        producer = self.producer(
            {
                "max.message.size": 30,
                "batch.size": 4,
                "compression.codec": 1,
                "compressed.topics": "t",
            }
        )
        first, bad, last, good = (
            producer.send(*each)
            for each in (("t", b"1"), ("t", bytes(range(100))), ("t", b"2"), ("u", b"x" * 30))
        )
        self.turn()
        self.failureResultOf(bad, MessageTooLargeError)
        for each in (first, last, good):
            self.successResultOf(each)
        self.close(producer)

    def test_nothingLeftOfABatch(self) -> None:
        """A batch of which nothing can be sent makes no request."""
        producer = self.producer({"batch.size": 1})
        self.failureResultOf(producer.send("t", 7), EncodingError)
        self.assertEqual(self.cluster.network.attempts, [])
        self.close(producer)

    def test_badTopic(self) -> None:
        """A topic's name that cannot be fails by itself, every time."""
        producer = self.producer()
        for _again in range(2):
            self.failureResultOf(producer.send("a/b", b"x"), InvalidNameError)
        self.close(producer)

    def test_staticChance(self) -> None:
        """
        With a list of brokers each message goes to one by chance, key or not, for partition -1.
        """
        producer = self.producer({"broker.list": "0:a:1,1:b:1"})
        for index in range(100):
            producer.send("t", b"%d" % index, "key")
        producer.flush()
        self.turn()
        self.assertEqual(len(self.a.log) + len(self.b.log), 100)
        self.assertTrue(20 < len(self.a.log) < 80)
        self.assertEqual({partition for _topic, partition, _payload in self.a.log}, {-1})
        self.close(producer)

    def test_golden(self) -> None:
        """What an async producer writes is byte for byte what 0.7.2's wrote."""
        golden = bytes.fromhex(
            "".join((GOLDEN / "prodperf-async-c0-b3-1.c2s.hex").read_text().split())
        )
        producer = self.producer({"batch.size": 3})
        for _message in range(3):
            producer.send("rec-c0", bytes(10))
        self.turn()
        self.assertEqual(self.a.bytes, golden)
        self.close(producer)

    def test_reconnects(self) -> None:
        """
        After reconnect.interval requests the connection is replaced, in order, and nothing is lost.
        """
        producer = self.producer({"batch.size": 1, "reconnect.interval": 3, "confirm": "true"})
        sendings = [producer.send("t", b"%d" % index) for index in range(10)]
        self.cluster.pass_(0.1)
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"%d" % index for index in range(10)])
        self.assertEqual(len(self.cluster.network.attempts), 4)
        self.close(producer)

    def test_reconnectsByTime(self) -> None:
        """
        After reconnect.time.interval.ms, too, behind the first request then; a negative one means
        never.
        """
        for intervalMs, attemptCount in ((1_000, 3), (-1, 1)):
            producer = self.producer(
                {"batch.size": 1, "reconnect.time.interval.ms": intervalMs, "confirm": "true"}
            )
            before = len(self.cluster.network.attempts)
            for index in range(5):
                sending = producer.send("t", b"%d" % index)
                self.cluster.pass_(2.1)
                self.successResultOf(sending)
            self.close(producer)
            self.assertEqual(len(self.cluster.network.attempts) - before, attemptCount)
        self.assertEqual(self.a.payloads(), [b"0", b"1", b"2", b"3", b"4"] * 2)

    def test_repr(self) -> None:
        """It says how much is under way."""
        producer = self.producer()
        producer.send("t", b"x")
        self.assertIn("async, 1 messages", repr(producer))
        self.close(producer)


class ConfigurationTests(ProducerCase):
    """What the constructor refuses."""

    def test_partitioner(self) -> None:
        """A partitioner does not go with a list of brokers, however it is given."""
        self.assertRaises(ConfigurationError, self.producer, None, partitioner=lambda key, count: 0)
        self.assertRaises(ConfigurationError, self.producer, {"partitioner.class": "a.b"})

    def test_encoder(self) -> None:
        """An encoder is a function, or has a method encode."""

        class Upper:
            def encode(self, value: str) -> bytes:
                return value.upper().encode()

        for encoder in (Upper(), lambda value: value.upper().encode()):
            producer = self.producer({"batch.size": 1}, encoder=encoder)
            producer.send("t", "x")
            self.turn()
            self.close(producer)
        self.assertEqual(self.a.payloads(), [b"X", b"X"])
        self.assertRaises(ConfigurationError, self.producer, None, encoder=7)

    def test_started(self) -> None:
        """A producer with a list of brokers needs no start."""
        producer = self.producer()
        self.assertIs(self.successResultOf(producer.start()), producer)
        self.close(producer)


class ZookeeperTests(ClusterCase):
    """With the registries."""

    def test_send(self) -> None:
        """ProducerTest.testSend: a partitioner's choice is the partition that the request names."""
        self.register(0, "a:1")
        self.register(1, "b:1")
        self.topic("t", 0, 2)
        self.topic("t", 1, 2)
        producer = self.clustered(partitioner=lambda key, count: count - 1)
        self.assertIs(self.done(producer.start()), producer)
        self.assertIs(self.done(producer.start()), producer)
        self.done(producer.send("t", b"x", "key"))
        self.assertEqual((self.a.log, self.b.log), ([], [("t", 1, b"x")]))
        self.close(producer)
        self.assertTrue(self.zookeeper.connected)

    def test_named(self) -> None:
        """
        A partitioner can be named by its class, partitioner.class; without a partitioner it is
        0.7's hash.
        """
        self.register(0, "a:1")
        self.topic("t", 0, 5)
        for name, partition in ((f"{__name__}.LastPartitioner", 4), (None, 3)):
            producer = self.clustered({"partitioner.class": name})
            self.done(producer.send("t", b"x", "test-key"))
            self.assertEqual(self.a.log[-1], ("t", partition, b"x"))
            self.close(producer)

    def test_pools(self) -> None:
        """
        ProducerTest.testSyncProducerPool, testAsyncProducerPool: each message goes over the
        connection to its own broker, of which there is one; closing closes all.
        """
        self.register(0, "a:1")
        self.register(1, "b:1")
        self.topic("t", 0, 1)
        self.topic("t", 1, 1)
        for mode in ("sync", "async"):
            before = len(self.cluster.network.attempts)
            producer = self.clustered(
                {"producer.type": mode}, partitioner=lambda key, count: int(key)
            )
            sendings = [
                producer.send("t", f"{mode} {number}".encode(), str(number % 2))
                for number in range(4)
            ]
            self.settle()
            producer.flush()
            for sending in sendings:
                self.done(sending)
            self.assertEqual(
                [
                    (attempt.name, attempt.state)
                    for attempt in self.cluster.network.attempts[before:]
                ],
                [("a:1", "accepted"), ("b:1", "accepted")],
            )
            for broker, numbers in ((self.a, (0, 2)), (self.b, (1, 3))):
                self.assertEqual(
                    broker.payloads()[-2:], [f"{mode} {number}".encode() for number in numbers]
                )
                self.assertEqual(len(broker.lines), 1)
            self.close(producer)
            self.assertEqual((self.a.lines, self.b.lines), ({}, {}))


class LastPartitioner:
    """Everything goes to the last partition."""

    def partition(self, key: object, count: int) -> int:
        return count - 1


class FaultTests(SynchronousTestCase):
    """Whatever happens: what was sent is in the log, or was reported."""

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        seed=st.integers(0, 2**32),
        cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3_000)), max_size=6),
        downs=st.sets(st.integers(0, 40), max_size=8),
        isAsync=st.booleans(),
        retryCount=st.integers(0, 2),
        codec=st.sampled_from([0, 1]),
    )
    def test_nothingIsLost(
        self,
        seed: int,
        cuts: list[tuple[int, int]],
        downs: set[int],
        isAsync: bool,
        retryCount: int,
        codec: int,
    ) -> None:
        """
        Connections are cut at any byte and brokers go down for a while: with confirmation, sent =
        in the logs + reported failed or unknown; what is reported as sent is there, what is
        reported as failed is not, and only a reported retry puts a message in twice.
        """
        cluster = PuppetCluster("a:1", "b:1")
        random = Random(seed)
        properties = {
            "broker.list": "0:a:1,1:b:1",
            "producer.type": "async" if isAsync else "sync",
            "batch.size": "7",
            "confirm": "true",
            "queue.time": "100",
            "num.retries": str(retryCount),
            "compression.codec": str(codec),
            "reconnect.interval": "5",
            "queue.size": "60",
        }
        producer = Producer(
            cluster.clock,
            properties,
            connectionPool=PuppetConnections(cluster.network, random.random, 1000),
            random=random.random,
        )
        outcomes: dict[bytes, str] = {}
        sentCount = 0
        for step in range(40):
            for broker in cluster.brokers.values():
                broker.isUp = step not in downs
            for at, size in cuts:
                if at == step:
                    for broker in cluster.brokers.values():
                        for line in broker.lines:
                            line.flow(size % 500)
            for _message in range(random.randrange(8)):
                payload = b"%d" % sentCount
                sentCount += 1
                producer.send("t", payload + b"." * random.randrange(50)).addCallbacks(
                    lambda _, payload=payload: outcomes.setdefault(payload, "sent"),
                    lambda failure, payload=payload: outcomes.setdefault(
                        payload, "unknown" if failure.check(UnknownOutcomeError) else "failed"
                    ),
                )
            cluster.turn()
            for at, _size in cuts:
                if at == step:
                    for broker in cluster.brokers.values():
                        broker.cut()
            cluster.pass_(0.1)
        for broker in cluster.brokers.values():
            broker.isUp = True
        closing = producer.close()
        cluster.pass_(8)
        self.successResultOf(closing)
        there = [
            payload.rstrip(b".")
            for broker in cluster.brokers.values()
            for payload in broker.payloads()
        ]
        self.assertEqual(len(outcomes), sentCount)
        for payload, outcome in outcomes.items():
            count = there.count(payload)
            if outcome == "sent":
                self.assertGreaterEqual(count, 1)
            elif outcome == "failed":
                self.assertEqual(count, 0)
        counters = producer.counters
        self.assertLessEqual(len(there) - len(set(there)), counters.repeatedCount)
        self.assertEqual(counters.acceptedCount, sentCount)
        self.assertEqual(
            counters.writtenCount + counters.failedCount + counters.unknownCount, sentCount
        )
        self.assertEqual(cluster.clock.getDelayedCalls(), [])


class WholeTests(TestCase):
    """With a real broker on real sockets."""

    def payloads(self, sets: Iterable[Any]) -> list[bytes]:
        return [payload for each in sets for payload, _ in each.payloads()]

    async def test_produces(self) -> None:
        """
        What both kinds of producer send, compressed or not, confirmed, is in the broker's log.
        """
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        consumer = SimpleConsumer(reactor, broker.endpoint)
        self.addCleanup(consumer.close)
        for index, (mode, codec) in enumerate(
            [("sync", "none"), ("async", "none"), ("sync", "gzip"), ("async", "snappy")]
        ):
            topic = f"topic{index}"
            properties = {
                "broker.list": f"0:127.0.0.1:{broker.port}",
                "producer.type": mode,
                "compression.codec": codec,
                "confirm": "true",
                "batch.size": "10",
            }
            producer = await Producer(reactor, properties).start()
            values = [b"%d" % number for number in range(25)]
            sendings = [producer.send(topic, value) for value in values]
            await producer.close()
            for isGood, result in await DeferredList(sendings):
                self.assertTrue(isGood, result)
            self.assertEqual(self.payloads([await consumer.fetch(topic, 0, 0, 100_000)]), values)

    async def test_sendBuffer(self) -> None:
        """
        buffer.size is its connections' SO_SNDBUF (which Linux doubles, for its own books); without,
        the system sizes it.
        """
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        sizes = []
        changes: tuple[dict[str, str], ...] = ({}, {"buffer.size": "30000"})
        for properties in changes:
            producer = Producer(
                reactor, {"broker.list": f"0:127.0.0.1:{broker.port}", **properties}
            )
            await producer.send("t", b"x")
            [client] = [
                each
                for each in cast(Any, reactor).getReaders()
                if isinstance(each, Client) and each.getPeer().port == broker.port
            ]
            sizes.append(client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))
            await producer.close()
        self.assertEqual(sizes[1], 60_000)
        self.assertNotEqual(sizes[0], 60_000)

    async def test_brokerRestart(self) -> None:
        """A broker that goes away and comes back: each message is in the log, or was reported."""
        directory = self.mktemp()
        Path(directory).mkdir()
        broker = LocalBroker(reactor, directory=directory)
        await broker.start()
        port = broker.port
        producer = Producer(
            reactor,
            {
                "broker.list": f"0:127.0.0.1:{port}",
                "confirm": "true",
                "producer.type": "async",
                "batch.size": "3",
            },
        )
        sendings = [producer.send("t", b"%d" % number) for number in range(30)]
        await broker.stop()
        sendings += [producer.send("t", b"%d" % number) for number in range(30, 60)]
        broker = LocalBroker(reactor, {"port": str(port)}, directory=directory)
        await broker.start()
        self.addCleanup(broker.stop)
        sendings += [producer.send("t", b"%d" % number) for number in range(60, 90)]
        await producer.close()
        results: list[tuple[bool, Any]] = await DeferredList(sendings, consumeErrors=True)
        consumer = SimpleConsumer(reactor, broker.endpoint)
        self.addCleanup(consumer.close)
        there = set(self.payloads([await consumer.fetch("t", 0, 0, 100_000)]))
        sent = {b"%d" % number for number, (isGood, _result) in enumerate(results) if isGood}
        failed = {
            b"%d" % number
            for number, (isGood, result) in enumerate(results)
            if not isGood and not result.check(UnknownOutcomeError)
        }
        self.assertEqual(sent - there, set())
        self.assertEqual(failed & there, set())
        self.assertGreaterEqual(len(sent), 60)
        self.assertEqual(producer.counters.writtenCount, len(sent))
