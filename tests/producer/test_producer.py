"""
Tests for L{pylogbroker.producer.producer}.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IConsumer
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface.verify import verifyObject

import pylogbroker.zookeeper.client
from pylogbroker.client.discovery import StaticDiscovery
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.config.producersettings import STRING_ENCODER
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    ConnectionError,  # noqa: A004
    EncodingError,
    InvalidNameError,
    InvalidPartitionError,
    InvalidTopicError,
    MessageTooLargeError,
    NoBrokersError,
    PylogbrokerError,
    QueueFullError,
    TimedOutError,
    UnknownOutcomeError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.formats.messageset import MessageSet, encodeSet
from pylogbroker.interfaces import EPHEMERAL
from pylogbroker.model import BrokerPartition
from pylogbroker.producer.batching import QueueItem
from pylogbroker.producer.hooks import Hooks
from pylogbroker.producer.producer import Producer, ProducerData
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.testing.zookeeper import ZookeeperDouble
from pylogbroker.wire.requests import RequestDecoder
from tests.producer.puppets import PuppetBroker, PuppetCluster, PuppetConnections

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "clients"


class Case(SynchronousTestCase):
    """A producer on a puppet network."""

    names: tuple[str, ...] = ("a:1", "b:1")

    def setUp(self) -> None:
        self.cluster = PuppetCluster(*self.names)
        self.clock = self.cluster.clock
        self.random = Random(7)

    @property
    def a(self) -> PuppetBroker:
        return self.cluster.brokers["a:1"]

    @property
    def b(self) -> PuppetBroker:
        return self.cluster.brokers["b:1"]

    def producer(self, properties: dict[str, Any] | None = None, random: Callable[[], float] | None = None, **arguments: Any) -> Producer:
        given = {"broker.list": "0:a:1", "producer.type": "async", **(properties or {})}
        connections = PuppetConnections(self.cluster.network, self.random.random)
        texts = {key.replace("_", "."): str(value) for key, value in given.items() if value is not None}
        self.made = Producer(self.clock, texts, connections=connections, random=random or self.random.random, **arguments)
        return self.made

    def turn(self) -> None:
        self.cluster.turn()

    def books(self) -> None:
        """The counters add up."""
        counters = self.made.counters
        self.assertEqual(counters.acceptedCount, counters.writtenCount + counters.failedCount + counters.unknownCount + self.made._queue.count)

    def close(self, producer: Producer) -> None:
        closing = producer.close()
        self.cluster.pass_(0.1)
        self.successResultOf(closing)
        self.books()
        self.assertEqual(self.clock.getDelayedCalls(), [])


class SyncTests(Case):
    """Sync mode: each call a request."""

    def sync(self, **properties: Any) -> Producer:
        return self.producer({"producer.type": "sync", **{key.replace("_", "."): value for key, value in properties.items()}})

    def test_one(self) -> None:
        """ProducerTest.testSendSingleMessage: one ProducerData is one PRODUCE for partition -1; the Deferred fires when it is written."""
        producer = self.sync()
        sending = producer.send("topic", b"test")
        self.assertNoResult(sending)
        self.turn()
        self.successResultOf(sending)
        self.assertEqual((self.a.kinds, self.a.log), (["Produce"], [("topic", -1, b"test")]))
        self.assertEqual(producer.counters.writtenCount, 1)
        self.close(producer)

    def test_several(self) -> None:
        """ProducerTest.testSend: several topics in one call are one MULTIPRODUCE; entries of the same topic are not merged; several values are one set."""
        producer = self.sync()
        sending = producer.sendMany([ProducerData("t", [b"1", b"2"]), ProducerData("u", (b"3",)), ProducerData("t", [b"4"])])
        self.turn()
        self.successResultOf(sending)
        self.assertEqual((self.a.kinds, self.a.parts), (["MultiProduce"], [[("t", -1), ("u", -1), ("t", -1)]]))
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
        """SyncProducerTest.testMessageSizeTooLarge: 101 bytes with a limit of 100 are rejected, and nothing is sent."""
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
        self.failureResultOf(producer.send("t", [b"t" * 20] * 10), MessageTooLargeError)
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
        """ProducerTest.testDefaultEncoder: the default encoder refuses text, in the caller; the string encoder takes it."""
        producer = self.sync()
        self.failureResultOf(producer.send("t", "text"), EncodingError)
        self.close(producer)
        producer = self.sync(serializer_class=STRING_ENCODER)
        producer.send("t", "größe")
        self.turn()
        self.assertEqual(self.a.payloads(), ["größe".encode()])
        self.close(producer)

    def test_brokerGone(self) -> None:
        """A broker that cannot be reached within connect.timeout.ms is a failure: nothing was sent. One broker's failure leaves others sent."""
        chances = iter([0.0, 0.9] + [0.5] * 1000)
        producer = self.producer({"broker.list": "0:a:1,1:b:1", "producer.type": "sync"}, lambda: next(chances))
        self.b.isUp = False
        sending = producer.sendMany([ProducerData("t", [b"1"]), ProducerData("u", [b"2"])])
        self.cluster.pass_(6)
        failure = self.failureResultOf(sending, ConnectionError)
        self.assertFalse(failure.check(UnknownOutcomeError))
        self.assertEqual((self.a.payloads(), producer.counters.failedCount, producer.counters.writtenCount), ([b"1"], 1, 1))
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
        """What a sync producer writes is byte for byte what 0.7.2's wrote; by content where it is compressed with gzip."""
        for name, topic, codec, count in (
            ("c0-b3-1", "rec-c0", 0, 3),
            ("gzip-b3-1", "rec-gz", 1, 3),
            ("snappy-b3-1", "rec-sn", 2, 3),
            ("snappy-b200-0", "rec-sn", 2, 200),
        ):
            golden = bytes.fromhex("".join((GOLDEN / f"prodperf-sync-{name}.c2s.hex").read_text().split()))
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
                self.assertEqual(gzip.decompress(golden[start:]), gzip.decompress(self.a.bytes[self.a.bytes.index(b"\x1f\x8b") :]))
            self.close(producer)


class AsyncTests(Case):
    """Async mode: messages collect."""

    def test_batchSize(self) -> None:
        """AsyncProducerTest.testBatchSize: batch 5: ten messages are two batches, the eleventh goes with close. Each batch is a MULTIPRODUCE."""
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
        """AsyncProducerTest.testProducerQueueSize: the eleventh message in a queue of ten fails at once; the ten are one batch at close."""
        producer = self.producer({"queue.size": 10, "queue.enqueueTimeout.ms": 0, "batch.size": 100})
        for index in range(10):
            producer.send("t", b"%d" % index)
        for _again in range(2):
            self.failureResultOf(producer.send("t", b"10"), QueueFullError)
        self.assertEqual((producer.counters.droppedCount, producer.counters.failedCount), (2, 2))
        self.close(producer)
        self.assertEqual((self.a.kinds, len(self.a.log)), (["MultiProduce"], 10))

    def test_waitsForRoom(self) -> None:
        """The default: a message that finds the queue full waits; its Deferred fires when it is through. One can wait for room before."""
        producer = self.producer({"queue.size": 2, "batch.size": 2})
        sendings = [producer.send("t", b"%d" % index) for index in range(4)]
        self.assertNoResult(producer.whenReady())
        self.turn()
        for sending in sendings:
            self.successResultOf(sending)
        self.successResultOf(producer.whenReady())
        self.assertEqual(self.a.payloads(), [b"0", b"1", b"2", b"3"])
        self.close(producer)

    def test_waitsSoLong(self) -> None:
        """Above 0 it waits so many milliseconds."""
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
        """AsyncProducerTest.testSenderThreadShutdown: close waits for a slow send; a second close waits for the same."""
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
        """AsyncProducerTest.testCollateAndSerializeEvents: a batch is grouped by topic and partition into one MULTIPRODUCE."""
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
        """A message that cannot be encoded, or is too large, fails alone; the worst of a call is what is told."""
        producer = self.producer({"max.message.size": 5, "batch.size": 4, "serializer.class": STRING_ENCODER})
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
        """A compressed group that is too large fails; other topics' groups go."""
        producer = self.producer({"max.message.size": 30, "batch.size": 2, "compression.codec": 1, "compressed.topics": "t"})
        bad, good = producer.send("t", bytes(range(100))), producer.send("u", b"x" * 30)
        self.turn()
        self.failureResultOf(bad, MessageTooLargeError)
        self.successResultOf(good)
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
        """With a list of brokers each message goes to one by chance, key or not, for partition -1."""
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
        golden = bytes.fromhex("".join((GOLDEN / "prodperf-async-c0-b3-1.c2s.hex").read_text().split()))
        producer = self.producer({"batch.size": 3})
        for _message in range(3):
            producer.send("rec-c0", bytes(10))
        self.turn()
        self.assertEqual(self.a.bytes, golden)
        self.close(producer)

    def test_reconnects(self) -> None:
        """After reconnect.interval requests the connection is replaced, in order, and nothing is lost."""
        producer = self.producer({"batch.size": 1, "reconnect.interval": 3, "confirm": "true"})
        sendings = [producer.send("t", b"%d" % index) for index in range(10)]
        self.cluster.pass_(0.1)
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"%d" % index for index in range(10)])
        self.assertEqual(len(self.cluster.network.attempts), 4)
        self.close(producer)

    def test_repr(self) -> None:
        """It says how much is under way."""
        producer = self.producer()
        producer.send("t", b"x")
        self.assertIn("async, 1 messages", repr(producer))
        self.close(producer)


class ConfirmTests(Case):
    """Knowing what the broker took."""

    def test_confirmed(self) -> None:
        """A message is through when the question behind it is answered."""
        producer = self.producer({"confirm": "true", "batch.size": 1})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.turn()
        self.assertEqual(self.a.kinds, ["MultiProduce", "Offsets"])
        self.assertNoResult(sending)
        self.a.isAnswering = True
        more = producer.send("t", b"y")
        self.turn()
        self.successResultOf(sending)  # answers have no names: the first is for the first question
        self.assertNoResult(more)
        self.a.cut()
        self.turn()
        self.failureResultOf(more, UnknownOutcomeError)
        self.assertEqual((producer.counters.writtenCount, producer.counters.unknownCount), (1, 1))
        self.close(producer)

    def test_unknown(self) -> None:
        """A connection that breaks before the answer makes it unknown; what had no connection yet has failed."""
        producer = self.producer({"confirm": "true", "batch.size": 1})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.turn()
        self.a.cut()
        self.a.isUp = False
        later = producer.send("t", b"y")
        self.cluster.pass_(6)
        self.assertIn("a:1", str(self.failureResultOf(sending, UnknownOutcomeError).value))
        self.assertFalse(self.failureResultOf(later, ConnectionError).check(UnknownOutcomeError))
        self.assertEqual((producer.counters.failedCount, producer.counters.unknownCount), (1, 1))
        self.close(producer)

    def test_noAnswer(self) -> None:
        """A question that is not answered in time makes it unknown."""
        producer = self.producer({"confirm": "true", "batch.size": 1, "socket.timeout.ms": 1000})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.cluster.pass_(1.1)
        self.failureResultOf(sending, UnknownOutcomeError)
        producer.close()
        self.cluster.pass_(20)

    def test_sync(self) -> None:
        """It works in sync mode as well."""
        producer = self.producer({"producer.type": "sync", "confirm": "true"})
        sending = producer.send("t", b"x")
        self.turn()
        self.successResultOf(sending)
        self.assertEqual(self.a.kinds, ["Produce", "Offsets"])
        self.close(producer)


class RetryTests(Case):
    """num.retries."""

    def test_otherBroker(self) -> None:
        """A batch that failed is tried again at another broker (gotcha 32), and that is counted."""
        self.a.isUp = False
        producer = self.producer({"broker.list": "0:a:1,1:b:1", "num.retries": 1, "batch.size": 1}, lambda: 0.0)
        sending = producer.send("t", b"x")
        self.cluster.pass_(6)
        self.successResultOf(sending)
        self.assertEqual(self.b.payloads(), [b"x"])
        self.assertEqual((producer.counters.retriedCount, producer.counters.repeatedCount), (1, 0))
        self.close(producer)

    def test_repeated(self) -> None:
        """What was unknown may be in the log twice after a retry; that is counted."""
        producer = self.producer({"num.retries": 1, "batch.size": 1, "confirm": "true"})
        self.a.isAnswering = False
        sending = producer.send("t", b"x")
        self.turn()
        self.a.isAnswering = True
        self.a.cut()
        self.cluster.pass_(1)
        self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"x", b"x"])
        self.assertEqual(producer.counters.repeatedCount, 1)
        self.close(producer)

    def test_exhausted(self) -> None:
        """After the last retry the failure is told."""
        self.a.isUp = False
        producer = self.producer({"num.retries": 2, "batch.size": 2})
        sendings = [producer.send("t", b"x"), producer.send("t", b"y", "key")]
        self.cluster.pass_(20)
        for sending in sendings:
            self.failureResultOf(sending, ConnectionError)
        self.assertEqual(producer.counters.retriedCount, 4)
        self.close(producer)


class CloseTests(Case):
    """The end."""

    def test_timeout(self) -> None:
        """Closing is bounded: what is still under way has failed, or is unknown."""
        producer = self.producer({"confirm": "true", "batch.size": 2, "queue.size": 4, "close.timeout.ms": 1000})
        self.a.isAnswering = False
        sendings = [producer.send("t", b"%d" % index) for index in range(6)]
        self.turn()
        closing = producer.close()
        self.cluster.pass_(1.5)
        self.assertIn("too long", str(self.failureResultOf(closing, TimedOutError).value))
        for sending in sendings[:4]:
            self.failureResultOf(sending, UnknownOutcomeError)
        for sending in sendings[4:]:
            self.failureResultOf(sending, TimedOutError)
        self.books()
        self.assertEqual((producer.counters.unknownCount, producer.counters.failedCount), (4, 2))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_timeoutUnconnected(self) -> None:
        """What had no connection has failed."""
        producer = self.producer({"connect.timeout.ms": 60_000})
        sending = producer.send("t", b"x")
        closing = producer.close(100)
        self.clock.advance(0.2)
        self.failureResultOf(closing, TimedOutError)
        self.assertFalse(self.failureResultOf(sending, ClosedError).check(UnknownOutcomeError))
        self.books()

    def test_badEnd(self) -> None:
        """Without confirmation a connection that does not end well is a failure of close: what was written last may be lost."""
        producer = self.producer({"batch.size": 1})
        producer.send("t", b"x")
        self.turn()
        closing = producer.close()
        next(iter(self.a.lines)).cut()
        self.failureResultOf(closing, ConnectionError)

    def test_badEndConfirmed(self) -> None:
        """With it, nothing can be lost any more."""
        producer = self.producer({"batch.size": 1, "confirm": "true"})
        producer.send("t", b"x")
        self.turn()
        closing = producer.close()
        next(iter(self.a.lines)).cut()
        self.successResultOf(closing)

    def test_beforeStop(self) -> None:
        """A reactor can be asked to close it before it stops, and to wait for that; a producer that is closed earlier needs it no more."""
        triggers: list[Any] = []
        reactor: Any = self.clock

        def addTrigger(phase: str, event: str, call: Any) -> Any:
            triggers.append((phase, event, call))
            return call

        reactor.addSystemEventTrigger = addTrigger
        reactor.removeSystemEventTrigger = lambda call: triggers.clear()
        producer = self.producer()
        producer.closeBeforeStop()
        producer.closeBeforeStop()
        ((phase, event, call),) = triggers
        self.assertEqual((phase, event), ("before", "shutdown"))
        producer.send("t", b"x")
        closing = call()
        self.turn()
        self.successResultOf(closing)
        self.assertEqual(self.a.payloads(), [b"x"])
        other = self.producer()
        triggers.clear()
        other.closeBeforeStop()
        self.close(other)
        self.assertEqual(triggers, [])


class Recorder(Hooks):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.last: list[QueueItem] = []

    def init(self, properties: Any) -> None:
        self.calls.append(("init", dict(properties)))

    def beforeEnqueue(self, item: QueueItem) -> QueueItem:
        self.calls.append(("beforeEnqueue", item.value))
        return QueueItem(item.topic, item.value + b"!", item.key)

    def afterEnqueue(self, item: QueueItem, isAdded: bool) -> None:
        self.calls.append(("afterEnqueue", item.value, isAdded))

    def afterDequeuingExistingData(self, item: QueueItem | None) -> list[QueueItem]:
        self.calls.append(("afterDequeuing", item and item.value))
        return [] if item is None or item.value == b"drop!" else [item]

    def beforeSendingData(self, batch: Any) -> Any:
        self.calls.append(("beforeSending", [item.value for item in batch]))
        return [*batch, QueueItem("extra", b"extra")]

    def lastBatchBeforeClose(self) -> list[QueueItem]:
        self.calls.append(("lastBatch",))
        return self.last

    def close(self) -> None:
        self.calls.append(("close",))


class HookTests(Case):
    """Seven hooks."""

    def test_order(self) -> None:
        """0.7's order, but for close, which comes last (gotcha 34); what hooks give is what is sent."""
        hooks = Recorder()
        hooks.last = [QueueItem("t", b"last")]
        producer = self.producer({"batch.size": 10, "queue.time": 1000, "callback.handler.props": "a=b"}, hooks=hooks)
        sendings = [producer.send("t", b"x"), producer.send("t", b"drop")]
        self.cluster.pass_(1)
        for sending in sendings:
            self.successResultOf(sending)
        self.close(producer)
        self.assertEqual(
            hooks.calls,
            [
                ("init", {"a": "b"}),
                ("beforeEnqueue", b"x"),
                ("afterEnqueue", b"x!", True),
                ("afterDequeuing", b"x!"),
                ("beforeEnqueue", b"drop"),
                ("afterEnqueue", b"drop!", True),
                ("afterDequeuing", b"drop!"),
                ("afterDequeuing", None),
                ("beforeSending", [b"x!"]),
                ("lastBatch",),
                ("beforeSending", [b"last"]),
                ("close",),
            ],
        )
        self.assertEqual(self.a.payloads("t"), [b"x!", b"last"])
        self.assertEqual(self.a.payloads("extra"), [b"extra"] * 2)

    def test_full(self) -> None:
        """afterEnqueue hears of a full queue."""
        hooks = Recorder()
        producer = self.producer({"queue.size": 1, "queue.enqueueTimeout.ms": 0}, hooks=hooks)
        producer.send("t", b"1")
        self.failureResultOf(producer.send("t", b"2"), QueueFullError)
        self.assertEqual(hooks.calls[-1], ("afterEnqueue", b"2!", False))
        self.close(producer)

    def test_doNothing(self) -> None:
        """Hooks that are only inherited change nothing."""
        producer = self.producer({"batch.size": 2}, hooks=Hooks())
        producer.send("t", [b"1", b"2"])
        self.turn()
        self.assertEqual(self.a.payloads(), [b"1", b"2"])
        self.close(producer)

    def test_failing(self) -> None:
        """A hook that fails is told, and costs at most its own messages."""

        class Failing(Hooks):
            def __init__(self) -> None:
                self.fails = ""

            def _look(self, name: str, result: Any) -> Any:
                if name == self.fails:
                    raise ZeroDivisionError(name)
                return result

            def beforeEnqueue(self, item: Any) -> Any:
                return self._look("beforeEnqueue", item)

            def afterEnqueue(self, item: Any, isAdded: bool) -> Any:
                return self._look("afterEnqueue", None)

            def afterDequeuingExistingData(self, item: Any) -> Any:
                return self._look("poll", [item] if item else [])

            def beforeSendingData(self, batch: Any) -> Any:
                return self._look("beforeSending", batch)

            def lastBatchBeforeClose(self) -> Any:
                return self._look("last", [])

            def close(self) -> None:
                self._look("last", None)

        hooks = Failing()
        producer = self.producer({"batch.size": 1}, hooks=hooks)
        for name in ("beforeEnqueue", "beforeSending"):
            hooks.fails = name
            self.failureResultOf(producer.send("t", b"x"), PylogbrokerError)
        for name in ("afterEnqueue", "poll"):
            hooks.fails = name
            sending = producer.send("t", name.encode())
            self.turn()
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"afterEnqueue", b"poll"])
        hooks.fails = "last"
        self.close(producer)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 5)

    def test_eventSender(self) -> None:
        """An event sender of the application's own gets batches, the way to the broker and the encoder, and says what became of them."""
        calls: list[Any] = []

        class Sender:
            def init(self, properties: Any) -> None:
                calls.append(("init", dict(properties)))

            def handle(self, batch: Any, carrier: Any, encoder: Any) -> Any:
                payloads = [encoder(item.value) for item in batch]
                calls.append(payloads)
                if payloads == [b"bad"]:
                    raise ZeroDivisionError
                if payloads == [b"one"]:
                    return carrier.send("mine", 3, encodeSet(payloads))
                if payloads == [b"never"]:
                    return Deferred()
                return carrier.multiSend([("mine", 4, encodeSet(payloads))])

            def close(self) -> None:
                calls.append("close")

        producer = self.producer({"batch.size": 1, "event.handler.props": "x=y"}, eventSender=Sender())
        sendings = [producer.send("t", value) for value in (b"one", b"two")]
        self.turn()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.log, [("mine", 3, b"one"), ("mine", 4, b"two")])
        self.failureResultOf(producer.send("t", b"bad"), ZeroDivisionError)
        never = producer.send("t", b"never")
        closing = producer.close(500)
        self.cluster.pass_(1)
        self.failureResultOf(closing, TimedOutError)
        self.failureResultOf(never, UnknownOutcomeError)
        self.assertEqual((calls[0], calls[-1]), (("init", {"x": "y"}), "close"))
        self.books()

    def test_named(self) -> None:
        """Hooks and event senders can be named by their classes."""
        producer = self.producer({"callback.handler": "pylogbroker.producer.hooks.Hooks"})
        self.assertIsInstance(producer._hooks, Hooks)
        self.close(producer)
        self.assertRaises(ConfigurationError, self.producer, {"event.handler": "no.such"})


class Source:
    """A Twisted push or pull producer."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.onResume: Callable[[], None] = lambda: None

    def pauseProducing(self) -> None:
        self.events.append("pause")

    def resumeProducing(self) -> None:
        self.events.append("resume")
        self.onResume()

    def stopProducing(self) -> None:
        self.events.append("stop")


class ConsumerTests(Case):
    """As a Twisted consumer."""

    def test_pushes(self) -> None:
        """Any push producer can be connected: it is paused when the queue is three quarters full, and resumed at a quarter."""
        producer = self.producer({"topic": "bytes", "queue.size": 8, "batch.size": 100})
        verifyObject(IConsumer, producer)
        source = Source()
        producer.registerProducer(source, True)
        self.assertRaises(RuntimeError, producer.registerProducer, source, True)
        for index in range(5):
            producer.write(b"%d" % index)
        self.assertEqual(source.events, [])
        producer.write(b"5")
        producer.write(b"6")
        self.assertEqual(source.events, ["pause"])
        producer.flush()
        self.turn()
        self.assertEqual(source.events, ["pause", "resume"])
        self.assertEqual(self.a.payloads("bytes"), [b"%d" % index for index in range(7)])
        self.close(producer)
        self.assertEqual(source.events[-1], "stop")
        producer.registerProducer(source, True)
        producer.write(b"late")
        self.assertEqual(source.events[-2:], ["stop", "stop"])

    def test_pulls(self) -> None:
        """A pull producer is asked for more, one write at a time, while there is room."""
        producer = self.producer({"topic": "bytes", "queue.size": 4, "batch.size": 100})
        source = Source()
        numbers = iter(range(100))
        source.onResume = lambda: producer.write(b"%d" % next(numbers))
        producer.registerProducer(source, False)
        self.turn()
        self.assertEqual(len(source.events), 4)
        producer.flush()
        self.turn()
        self.assertEqual(len(source.events), 8)
        producer.unregisterProducer()
        self.close(producer)

    def test_unregistered(self) -> None:
        """Without a source one can write all the same."""
        producer = self.producer({"topic": "bytes"})
        producer.registerProducer(Source(), True)
        producer.unregisterProducer()
        producer.write(b"x")
        self.close(producer)
        self.assertEqual(self.a.payloads(), [b"x"])

    def test_noTopic(self) -> None:
        """Without a topic there is nowhere to write to."""
        producer = self.producer()
        self.assertRaises(ConfigurationError, producer.registerProducer, Source(), True)
        self.assertRaises(ConfigurationError, producer.write, b"x")
        self.close(producer)


class ConfigurationTests(Case):
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


class ZookeeperTests(Case):
    """With the registries."""

    def setUp(self) -> None:
        super().setUp()
        self.server = ZookeeperDouble(self.clock)
        self.registrar = self.server.client()
        self.registrar.connect()
        self.zookeeper = self.server.client()
        self.zookeeper.connect()
        self.settle()
        for path in ("/brokers", "/brokers/ids", "/brokers/topics"):
            self.registrar.create(path)
        self.settle()

    def settle(self) -> None:
        for _turn in range(40):
            self.turn()

    def register(self, number: int, address: str) -> None:
        self.registrar.create(f"/brokers/ids/{number}", f"c:{address}".encode(), flags=EPHEMERAL)
        self.settle()

    def topic(self, name: str, number: int, count: int) -> None:
        self.registrar.create(f"/brokers/topics/{name}").addErrback(lambda failure: None)
        self.registrar.create(f"/brokers/topics/{name}/{number}", str(count).encode(), flags=EPHEMERAL)
        self.settle()

    def unregister(self, number: int, *topics: str) -> None:
        for name in topics:
            self.registrar.delete(f"/brokers/topics/{name}/{number}")
        self.registrar.delete(f"/brokers/ids/{number}")
        self.settle()

    def clustered(self, properties: dict[str, Any] | None = None, **arguments: Any) -> Producer:
        given = {"broker.list": None, "zk.connect": "z:2181", "producer.type": "sync", **(properties or {})}
        return self.producer(given, zookeeper=self.zookeeper, **arguments)

    def done(self, sending: Any) -> Any:
        self.settle()
        return self.successResultOf(sending)

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

    def test_newTopic(self) -> None:
        """ProducerTest.testZKSendToNewTopic: partition 0 of all brokers first; once one has registered, its partitions come to them: 4 mod 5 is broker 1."""
        self.register(0, "a:1")
        self.register(1, "b:1")
        producer = self.clustered(partitioner=lambda key, count: len(key) % count)
        self.done(producer.send("new", b"1", "test"))
        self.assertEqual(self.a.log, [("new", 0, b"1")])
        self.topic("new", 0, 4)
        self.done(producer.send("new", b"2", "test"))
        self.assertEqual(self.b.log, [("new", 0, b"2")])
        self.close(producer)

    def test_deadBroker(self) -> None:
        """ProducerTest.testZKSendWithDeadBroker: after broker 1 died all goes to broker 0."""
        self.register(0, "a:1")
        self.register(1, "b:1")
        self.topic("t", 0, 1)
        self.topic("t", 1, 1)
        producer = self.clustered(partitioner=lambda key, count: count - 1)
        self.done(producer.send("t", b"1", "k"))
        self.assertEqual(self.b.payloads(), [b"1"])
        self.unregister(1, "t")
        self.b.isUp = False
        self.done(producer.send("t", b"2", "k"))
        self.assertEqual(self.a.payloads(), [b"2"])
        self.assertEqual(self.b.lines, {})  # the connection was closed (gotcha 39)
        self.close(producer)

    def test_noBrokers(self) -> None:
        """ProducerMethodsTest: without partitions the error is NoBrokersForPartition, whose text has the key in it."""
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode, "zk.read.num.retries": 1})
            sending = producer.send("t", b"x", "the-key")
            self.cluster.pass_(1)
            self.assertIn("the-key", str(self.failureResultOf(sending, NoBrokersError).value))
            closing = producer.close()
            self.settle()
            self.successResultOf(closing)

    def test_invalidPartition(self) -> None:
        """ProducerTest.testInvalidPartition: a partitioner that returns -1 is an error, in both modes."""
        self.register(0, "a:1")
        self.topic("t", 0, 1)
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode}, partitioner=lambda key, count: -1)
            sendings = [producer.send("t", b"x", "k")]
            self.done(producer.send("t", b"first")) if mode == "sync" else self.settle()
            sendings += [producer.send("t", b"x", "k"), producer.send("t", [b"x"], "k")]
            self.settle()
            for sending in sendings:
                self.failureResultOf(sending, InvalidPartitionError)
            self.close(producer)

    def test_asyncKeys(self) -> None:
        """Messages go to the partitions of their keys, in order, also those that were sent before anything was known."""
        self.register(0, "a:1")
        self.topic("t", 0, 5)
        producer = self.clustered({"producer.type": "async", "batch.size": 3})
        sendings = [producer.send("t", b"%d" % index, "test-key") for index in range(6)]
        self.settle()
        sendings += [producer.send("t", b"%d" % index, "test-key") for index in range(6, 9)]
        self.settle()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.log, [("t", 3, b"%d" % index) for index in range(9)])
        self.close(producer)

    def test_brokerVanishesWithMessages(self) -> None:
        """What waits for a broker that vanishes goes elsewhere; that is no retry."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 100})
        sending = producer.send("t", b"1")
        self.settle()
        self.register(1, "b:1")
        self.unregister(0)
        self.assertEqual(self.b.payloads(), [b"1"])
        self.successResultOf(sending)
        self.assertEqual(producer.counters.retriedCount, 0)
        self.close(producer)

    def test_brokerVanishesUnconnected(self) -> None:
        """So does what waits for a connection to it."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 1})
        self.a.isUp = False
        sending = producer.send("t", b"1")
        self.settle()
        self.assertNoResult(sending)
        self.register(1, "b:1")
        self.unregister(0)
        self.successResultOf(sending)
        self.assertEqual(self.b.payloads(), [b"1"])
        self.close(producer)

    def test_brokerMoves(self) -> None:
        """A broker that comes back elsewhere under its number is found there."""
        self.register(0, "a:1")
        producer = self.clustered()
        self.done(producer.send("t", b"1"))
        self.registrar.set("/brokers/ids/0", b"c:b:1")
        self.settle()
        self.done(producer.send("t", b"2"))
        self.assertEqual((self.a.payloads(), self.b.payloads()), ([b"1"], [b"2"]))
        self.close(producer)

    def test_noZookeeper(self) -> None:
        """A ZooKeeper that does not answer is a failure of each call, in time; the next call tries again."""
        self.server.disconnect(self.zookeeper)
        producer = self.clustered()
        sending = producer.send("t", b"x")
        self.cluster.pass_(14, 0.5)
        self.failureResultOf(sending, ZookeeperTimeoutException)
        self.server.reconnect(self.zookeeper)
        self.register(0, "a:1")
        self.done(producer.send("t", b"y"))
        self.close(producer)

    def test_closedWhileLooking(self) -> None:
        """Closing is bounded while a topic is being looked up, too."""
        self.server.disconnect(self.zookeeper)
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode})
            sendings = [producer.send("t", b"x"), producer.send("t", b"y"), producer.send("t", b"y", "k")]
            closing = producer.close(1000)
            self.cluster.pass_(2)
            self.failureResultOf(closing, TimedOutError)
            for sending in sendings:
                self.failureResultOf(sending, PylogbrokerError)
            self.books()
            self.failureResultOf(producer.start(), ClosedError)

    def test_ownZookeeper(self) -> None:
        """Without a client one is made as zk.connect says; it goes with the producer, and at once when the start fails."""
        made: list[Any] = []

        def make(_reactor: Any, servers: str, _timeout: int) -> Any:
            self.assertEqual(servers, "z:2181")
            made.append(self.server.client())
            return made[-1]

        self.patch(pylogbroker.zookeeper.client, "ZookeeperClient", make)
        self.register(0, "a:1")
        given = {"broker.list": None, "zk.connect": "z:2181"}
        producer = self.producer(given)
        starting, again = producer.start(), producer.start()
        self.done(starting)
        self.successResultOf(again)
        self.assertTrue(made[0].connected)
        self.close(producer)
        self.assertTrue(made[0].isClosed)
        self.server.latency = 0.1
        starting = self.producer(given).start()
        self.cluster.pass_(0.4)
        self.server.disconnect(made[1])
        self.turn()
        self.failureResultOf(starting, ZookeeperError)
        self.assertTrue(made[1].isClosed)

    def test_allBrokersVanish(self) -> None:
        """When the last broker vanishes, what waited for it fails, with the topic's name."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "zk.read.num.retries": 0})
        sendings = [producer.send("t", b"1"), producer.send("t", b"2", "key")]
        self.settle()
        self.unregister(0)
        for sending in sendings:
            self.assertIn("topic t", str(self.failureResultOf(sending, NoBrokersError).value))
        self.close(producer)

    def test_vanishesBadly(self) -> None:
        """A connection to a broker that has vanished may break instead of ending."""
        self.register(0, "a:1")
        producer = self.clustered()
        self.done(producer.send("t", b"1"))
        lines = list(self.a.lines)
        self.a.lines.clear()
        self.registrar.delete("/brokers/ids/0")
        self.settle()
        lines[0].cut()
        self.close(producer)

    def test_foreignDiscovery(self) -> None:
        """A discovery of one's own may fail in its own way, or name brokers that are not there."""

        class Strange(StaticDiscovery):
            isStatic = False
            places: list[BrokerPartition] = []

            def partitions(self, name: str) -> list[BrokerPartition]:
                return self.places

            def lookUp(self, name: str) -> Any:
                if name == "broken":
                    raise ZeroDivisionError
                return super().lookUp(name)

        strange = Strange([])
        for mode in ("sync", "async"):
            strange.places = []
            producer = self.clustered({"producer.type": mode}, discovery=strange)
            for topic in ("broken", "t"):
                sending = producer.send(topic, b"x")
                self.settle()
                self.failureResultOf(sending, NoBrokersError)
            strange.places = [BrokerPartition(5, 0)]
            sending = producer.send("t", b"x")
            self.settle()
            self.failureResultOf(sending, NoBrokersError)
            self.close(producer)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)


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
    def test_nothingIsLost(self, seed: int, cuts: list[tuple[int, int]], downs: set[int], isAsync: bool, retryCount: int, codec: int) -> None:
        """
        Connections are cut at any byte and brokers go down for a while: with confirmation, sent = in the logs + reported failed or unknown;
        what is reported as sent is there, what is reported as failed is not, and only a reported retry puts a message in twice.
        """
        cluster = PuppetCluster("a:1", "b:1")
        random = Random(seed)
        properties = {
            "broker.list": "0:a:1,1:b:1", "producer.type": "async" if isAsync else "sync", "batch.size": "7", "confirm": "true", "queue.time": "100",
            "num.retries": str(retryCount), "compression.codec": str(codec), "reconnect.interval": "5", "queue.size": "60",
        }  # fmt: skip
        producer = Producer(cluster.clock, properties, connections=PuppetConnections(cluster.network, random.random, 1000), random=random.random)
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
                    lambda failure, payload=payload: outcomes.setdefault(payload, "unknown" if failure.check(UnknownOutcomeError) else "failed"),
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
        there = [payload.rstrip(b".") for broker in cluster.brokers.values() for payload in broker.payloads()]
        self.assertEqual(len(outcomes), sentCount)
        for payload, outcome in outcomes.items():
            count = there.count(payload)
            if outcome == "sent":
                self.assertGreaterEqual(count, 1)
            elif outcome == "failed" and not producer.counters.repeatedCount:
                self.assertEqual(count, 0)
        counters = producer.counters
        self.assertLessEqual(len(there) - len(set(there)), counters.repeatedCount)
        self.assertEqual(counters.acceptedCount, sentCount)
        self.assertEqual(counters.writtenCount + counters.failedCount + counters.unknownCount, sentCount)
        self.assertEqual(cluster.clock.getDelayedCalls(), [])


class WholeTests(TestCase):
    """With a real broker on real sockets."""

    def payloads(self, sets: Iterable[Any]) -> list[bytes]:
        return [payload for each in sets for payload, _ in each.payloads()]

    async def test_produces(self) -> None:
        """What both kinds of producer send, compressed or not, confirmed, is in the broker's log."""
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        consumer = SimpleConsumer(reactor, broker.endpoint)
        self.addCleanup(consumer.close)
        for index, (mode, codec) in enumerate([("sync", "none"), ("async", "none"), ("sync", "gzip"), ("async", "snappy")]):
            topic = f"topic{index}"
            properties = {
                "broker.list": f"0:127.0.0.1:{broker.port}", "producer.type": mode, "compression.codec": codec, "confirm": "true", "batch.size": "10",
            }  # fmt: skip
            producer = await Producer(reactor, properties).start()
            values = [b"%d" % number for number in range(25)]
            sendings = [producer.send(topic, value) for value in values]
            await producer.close()
            for isGood, result in await DeferredList(sendings):
                self.assertTrue(isGood, result)
            self.assertEqual(self.payloads([await consumer.fetch(topic, 0, 0, 100_000)]), values)

    async def test_brokerRestart(self) -> None:
        """A broker that goes away and comes back: each message is in the log, or was reported."""
        directory = self.mktemp()
        Path(directory).mkdir()
        broker = LocalBroker(reactor, directory=directory)
        await broker.start()
        port = broker.port
        producer = Producer(reactor, {"broker.list": f"0:127.0.0.1:{port}", "confirm": "true", "producer.type": "async", "batch.size": "3"})
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
        failed = {b"%d" % number for number, (isGood, result) in enumerate(results) if not isGood and not result.check(UnknownOutcomeError)}
        self.assertEqual(sent - there, set())
        self.assertEqual(failed & there, set())
        self.assertGreaterEqual(len(sent), 60)
        self.assertEqual(producer.counters.writtenCount, len(sent))
