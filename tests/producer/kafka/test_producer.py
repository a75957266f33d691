"""
Tests of L{pylogbroker.producer.kafka.producer} and of its C{sender}, on a clock, with brokers in
memory.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.kafka.metadata import PartitionLeader
from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    EncodingError,
    InvalidPartitionError,
    InvalidTopicError,
    MessageTooLargeError,
    PylogbrokerError,
    QueueFullError,
    TimedOutError,
    UnknownOutcomeError,
    UnsupportedVersionError,
)
from pylogbroker.producer.completion import FailureWaiter
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.producer.producer import TURN_COUNT_MAX, ProducerData
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.records.batchbuilder import RECORD_OVERHEAD_MAX
from pylogbroker.records.recordbatch import BATCH_OVERHEAD, readHeader
from tests.client.kafka.fakekafka import (
    CUT,
    HOST,
    SILENCE,
    FakeKafka,
    carryOutAndCut,
    produceResponse,
    refuse,
)


class ProducerCase(SynchronousTestCase):
    """A cluster in memory, and a producer."""

    def setUp(self) -> None:
        self.kafka = FakeKafka(1, 2)
        self.kafka.addTopic("t", 1)
        self.addCleanup(lambda: self.assertEqual(self.kafka.getDelayedCalls(), []))

    def make(self, partitioner: Any = None, **settings: str) -> KafkaProducer:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        made = KafkaProducer(
            self.kafka,
            {"bootstrap.servers": self.kafka.servers, **given},
            partitioner=partitioner,
            random=lambda: 0.5,
            isLoggingFailures=False,
        )
        self.addCleanup(self.end, made)
        return made

    def end(self, producer: KafkaProducer) -> None:
        closing = producer.close(1000)
        closing.addErrback(lambda failure: failure.trap(TimedOutError))
        self.kafka.run(0.1)
        self.kafka.run(30)
        self.successResultOf(closing)

    def later(self, seconds: float, step: float = 0.05) -> None:
        """Time passes in small steps."""
        for _step in range(round(seconds / step)):
            self.kafka.run(step)

    def sent(self, waiter: Deferred[RecordMetadata], seconds: float = 3) -> RecordMetadata:
        self.later(seconds)
        return self.successResultOf(waiter)

    def failed(self, waiter: Deferred[Any], *kinds: type, seconds: float = 3) -> str:
        self.later(seconds)
        return str(self.failureResultOf(waiter, *kinds).value)


class SendTests(ProducerCase):
    """What is sent, and when."""

    def test_metadata(self) -> None:
        """Each message learns where it is; key, headers and timestamp arrive."""
        producer = self.make()
        first = producer.send("t", b"one", b"key", [("h", b"x"), ("n", None)], timestamp=123)
        second = producer.send("t", None, b"key")
        self.assertEqual(self.sent(first), ("t", 0, 0, 123))
        self.assertEqual(self.sent(second), ("t", 0, 1, 1_000_000_000))
        stored = self.kafka.records("t")
        self.assertEqual(
            [record[1:] for record in stored],
            [
                (123, b"key", b"one", (("h", b"x"), ("n", None))),
                (1_000_000_000, b"key", None, ()),
            ],
        )
        [body] = self.kafka.asked(ApiKey.PRODUCE)
        self.assertEqual(body.acks, -1)

    def test_changedHeaders(self) -> None:
        """What an application does with a message's headers later changes nothing."""
        producer = self.make(linger_ms="1000")
        pair = ["h", b"x"]
        headers: Any = [pair]
        sending = producer.send("t", b"one", headers=headers)
        pair[1] = b"other"
        headers.append(("i", b"y"))
        self.later(1)
        self.sent(sending)
        self.assertEqual(self.kafka.records("t")[0].headers, (("h", b"x"),))

    def test_appendTime(self) -> None:
        """The broker's own timestamp counts."""

        def stamped(kafka: FakeKafka, header: Any, body: Any) -> Any:
            made = kafka.usual(header, body)
            made.responses[0].partitionResponses[0].logAppendTimeMs = 5
            return made

        self.kafka.answers[ApiKey.PRODUCE].append(stamped)
        self.assertEqual(self.sent(self.make().send("t", b"x")).timestamp, 5)

    def test_linger(self) -> None:
        """A batch waits for more messages, and not once it is full."""
        producer = self.make(linger_ms="1000", batch_size="300")
        producer.send("t", b"x")
        self.later(0.9, 0.1)
        self.assertEqual(self.kafka.values("t"), [])
        for _message in range(3):
            producer.send("t", b"y" * 100)
        self.later(0.05)
        self.assertEqual(len(self.kafka.values("t")), 3)
        self.later(1)
        self.assertEqual(len(self.kafka.values("t")), 4)

    def test_turn(self) -> None:
        """Without linger, messages of one turn of the reactor make one batch."""
        producer = self.make(linger_ms="0")
        self.sent(producer.send("t", b"first"))
        for _message in range(10):
            producer.send("t", b"x")
        self.kafka.run()
        self.assertEqual(len(self.kafka.logs["t", 0]), 2)

    def test_flush(self) -> None:
        """Flush does not linger, and fires when nothing is in flight."""
        producer = self.make(linger_ms="10000")
        producer.send("t", b"x")
        flushed = producer.flush()
        self.assertNoResult(flushed)
        self.kafka.run()
        self.successResultOf(flushed)
        producer.send("t", b"y")
        self.kafka.run()
        self.assertEqual(self.kafka.values("t"), [b"x"])
        self.successResultOf(self.flushed(producer))
        self.assertEqual(self.kafka.values("t"), [b"x", b"y"])
        self.successResultOf(producer.flush())

    def flushed(self, producer: KafkaProducer) -> Deferred[None]:
        flushed = producer.flush()
        self.kafka.run()
        return flushed

    def test_partitions(self) -> None:
        """A partition can be named; otherwise the key chooses it, as Java's client does."""
        self.kafka.addTopic("many", *[1, 2] * 5)
        producer = self.make()
        self.assertEqual(self.sent(producer.send("many", b"x", b"k", partition=7)).partition, 7)
        for key in (b"21", b"foobar", b"abc"):
            found = self.sent(producer.send("many", b"x", key)).partition
            self.assertEqual(found, keyPartition(key, 10))
        for wrong in (-1, 10):
            text = self.failed(producer.send("many", b"", partition=wrong), InvalidPartitionError)
            self.assertIn(f"partition {wrong} of many, which has 10", text)
        numbers = producer.partitionsFor("many")
        self.assertEqual(self.successResultOf(numbers), list(range(10)))

    def test_partitioner(self) -> None:
        """An application's partitioner is asked for keys; its failure fails one message."""

        def choose(key: bytes, count: int) -> int:
            return count - 1 if key == b"last" else int(key)

        self.kafka.addTopic("many", 1, 1, 1)
        producer = self.make(choose)
        self.assertEqual(self.sent(producer.send("many", b"x", b"last")).partition, 2)
        text = self.failed(producer.send("many", b"x", b"word"), InvalidPartitionError)
        self.assertIn("word", text)

    def test_crc32(self) -> None:
        """librdkafka's partitioner by name; like it, an empty key is none."""
        self.kafka.addTopic("many", *[1] * 4)
        producer = self.make(partitioner_class="crc32")
        self.assertEqual(self.sent(producer.send("many", b"x", b"abc")).partition, 0x352441C2 % 4)
        self.assertEqual(self.sent(producer.send("many", b"x", b"")).partition, 2)

    def test_sticky(self) -> None:
        """Messages without a key stay with a partition for a batch; then another one is drawn."""
        self.kafka.addTopic("many", 1, 1, -1, 1)
        drawn = iter([0.0, 0.5, 0.9] * 50)
        producer = KafkaProducer(
            self.kafka,
            {"bootstrap.servers": self.kafka.servers, "batch.size": "1000"},
            random=lambda: next(drawn),
        )
        self.addCleanup(self.end, producer)
        for _message in range(30):
            producer.send("many", b"x" * 79)
        self.later(1)
        counts = [len(self.kafka.values("many", number)) for number in range(4)]
        self.assertEqual(sum(counts), 30)
        self.assertEqual(counts[2], 0)
        self.assertEqual(sorted(counts)[1:], [10, 10, 10])

    def test_manyBrokers(self) -> None:
        """One request for all partitions of a broker; each broker gets its own."""
        self.kafka.addTopic("many", 1, 2, 1, 2)
        producer = self.make()
        for partition in range(4):
            producer.send("many", b"%d" % partition, partition=partition)
        self.later(1)
        sizes = [
            (node, sum(len(topic.partitionData) for topic in body.topicData))
            for node, header, body in self.kafka.requests
            if header.apiKey is ApiKey.PRODUCE
        ]
        self.assertEqual(sorted(sizes), [(1, 2), (2, 2)])
        for partition in range(4):
            self.assertEqual(self.kafka.values("many", partition), [b"%d" % partition])

    def test_requestSize(self) -> None:
        """A request has no more than max.request.size, and what is left follows."""
        self.kafka.addTopic("many", 1, 1, 1)
        producer = self.make(max_request_size="1000", batch_size="600")
        for partition in range(3):
            producer.send("many", b"x" * 500, partition=partition)
        self.later(1)
        self.assertEqual(len(self.kafka.asked(ApiKey.PRODUCE)), 3)
        self.assertEqual([len(self.kafka.values("many", each)) for each in range(3)], [1, 1, 1])

    def test_inFlight(self) -> None:
        """A broker has five requests at most, and batches grow meanwhile."""
        producer = self.make(linger_ms="0")
        self.sent(producer.send("t", b"first"))
        self.kafka.answers[ApiKey.PRODUCE].append(SILENCE)
        for number in range(20):
            producer.send("t", b"%d" % number)
            self.kafka.run()
        self.assertEqual(len(self.kafka.asked(ApiKey.PRODUCE)), 6)
        self.kafka.cut()
        self.later(2)
        self.assertEqual(self.kafka.values("t")[1:], [b"%d" % each for each in range(20)])
        self.assertEqual(len(self.kafka.logs["t", 0]), 7)

    def test_codecs(self) -> None:
        """Each codec arrives, readable."""
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            self.sent(self.make(compression_type=codec).send("t", codec.encode() * 100))
        self.assertEqual(
            [readHeader(batch).codec for batch in self.kafka.logs["t", 0]], [0, 1, 2, 3, 4]
        )
        self.assertEqual(self.kafka.values("t")[3], b"lz4" * 100)

    def test_many(self) -> None:
        """Several messages have one outcome, or one each."""
        producer = self.make()
        datas = [ProducerData("t", [b"a", b"b"]), ProducerData("t", [b"c"], b"k")]
        all_ = producer.sendMany(datas)
        each = producer.sendEach(datas)
        self.successResultOf(producer.sendMany([]))
        producer.sendNoWait("t", b"d")
        self.later(1)
        self.assertIsNone(self.successResultOf(all_))
        self.assertEqual([self.successResultOf(one).offset for one in each], [3, 4, 5])
        self.assertEqual(self.kafka.values("t")[-1], b"d")
        self.assertEqual((producer.counters.acceptedCount, producer.counters.writtenCount), (7, 7))

    def test_failureWaiter(self) -> None:
        """C{sendNoWait} tells of a message that a broker, or the producer itself, refuses."""
        told: list[str] = []

        class Waiter(FailureWaiter):
            """Keeps what it is told."""

            def errback(self, failure: Failure) -> None:
                """Keep it."""
                told.append(type(failure.value).__name__)

        producer = self.make(max_request_size="1000")
        producer.sendNoWait("t", b"d", waiter=Waiter())
        self.later(1)
        self.assertEqual(told, [])
        producer.sendNoWait("t", b"d" * 1000, waiter=Waiter())
        self.kafka.answers[ApiKey.PRODUCE].append(refuse(ErrorCode.MESSAGE_TOO_LARGE))
        producer.sendNoWait("t", b"d", waiter=Waiter())
        self.later(1)
        self.assertEqual(told, ["MessageTooLargeError", "ResponseError"])

    def test_grownTopic(self) -> None:
        """A partition that is added later is used."""
        producer = self.make(metadata_max_age_ms="1000")
        self.sent(producer.send("t", b"x"))
        self.kafka.addTopic("t", 1, 1)
        self.later(2)
        self.assertEqual(self.sent(producer.send("t", b"x", partition=1)).partition, 1)


class RefusedTests(ProducerCase):
    """What fails at once, and says so."""

    def test_shrunkTopic(self) -> None:
        """A topic that is made again with fewer partitions gets its messages there."""
        self.kafka.addTopic("many", 1, 1, 1, 1)
        producer = self.make(metadata_max_age_ms="1000")
        self.assertEqual(self.sent(producer.send("many", b"x", b"foobar")).partition, 2)
        self.assertEqual(self.sent(producer.send("many", b"x")).partition, 2)
        self.kafka.addTopic("many", 1, 1)
        self.kafka.topicIds["many"] = b"again".ljust(16, b"-")
        for key in ("many", 2), ("many", 3):
            self.kafka.logs.pop(key, None)
        self.later(2)
        self.assertEqual(self.sent(producer.send("many", b"x", b"foobar")).partition, 0)
        self.assertEqual(self.sent(producer.send("many", b"x")).partition, 1)

    def test_forgottenTopic(self) -> None:
        """A question for the partitions of a topic that is gone does not stop later messages."""
        producer = self.make(max_block_ms="500", metadata_max_age_ms="1000")
        self.sent(producer.send("t", b"x"))
        leaders = self.kafka.leaders.pop("t")
        self.later(2)
        self.failed(producer.partitionsFor("t"), TimedOutError, seconds=2)
        self.kafka.leaders["t"] = leaders
        self.assertEqual(self.sent(producer.send("t", b"y")).offset, 1)

    def test_values(self) -> None:
        """What is no bytes, too large, or for a closed producer."""
        producer = self.make(max_request_size="1000")
        refused: list[Any] = [
            (producer.send("t", "text"), EncodingError),  # type: ignore[arg-type]
            (producer.send("t", b"", headers=[("a", 1)]), EncodingError),  # type: ignore[list-item]
            (producer.send("t", b"", headers=[("a", "b")]), EncodingError),  # type: ignore[list-item]
            (producer.send("t", b"", headers=7), PylogbrokerError),  # type: ignore[arg-type]
            (producer.send("t", b"x" * 1000), MessageTooLargeError),
            (producer.send("t", b"", timestamp=-1), EncodingError),
            (producer.send("t", b"", timestamp=2**63), EncodingError),
            (producer.send("t", b"", timestamp=1.5), EncodingError),  # type: ignore[arg-type]
            (producer.send("bad topic", b""), InvalidTopicError),
            (producer.send(b"t", b""), InvalidTopicError),  # type: ignore[arg-type]
        ]
        for waiter, kind in refused:
            self.failureResultOf(waiter, kind)
        self.assertEqual(producer.counters.failedCount, 10)
        wrong: Any = "0"
        self.failed(producer.send("t", b"", partition=wrong), InvalidPartitionError)
        self.assertEqual(self.sent(producer.send("t", b"x")).offset, 0)
        closing = producer.close()
        self.failureResultOf(producer.send("t", b""), ClosedError)
        self.kafka.run()
        self.successResultOf(closing)
        self.successResultOf(producer.close())

    def test_messageSize(self) -> None:
        """A message of max.request.size counts with its batch, as a broker counts it."""
        producer = self.make(max_request_size="1000", batch_size="1")
        size = 1000 - BATCH_OVERHEAD - RECORD_OVERHEAD_MAX
        text = self.failed(producer.send("t", b"x" * (size + 1)), MessageTooLargeError)
        self.assertIn("of 1001 bytes with its batch; 1000 are allowed by max.request.size", text)
        self.sent(producer.send("t", b"x" * size))
        self.assertLessEqual(len(self.kafka.logs["t", 0][0]), 1000)

    def test_settings(self) -> None:
        """Wrong settings are refused; unknown keys are named."""
        with capturedLogs() as events:
            self.make(lingering="5")
        self.assertIn("linger.ms", "".join(map(str, map(formatEvent, events))))
        self.assertRaises(ConfigurationError, self.make, partitioner_class="round")
        self.assertRaises(ConfigurationError, self.make, 5)

    def test_unknownTopic(self) -> None:
        """A topic that does not appear in time fails its messages, in order; it may come later."""
        producer = self.make(max_block_ms="500")
        waiters = [producer.send("new", b"%d" % number) for number in range(3)]
        self.later(1)
        for waiter in waiters:
            self.assertIn("UNKNOWN_TOPIC", str(self.failureResultOf(waiter, TimedOutError).value))
        self.kafka.addTopic("new", 1)
        late = [producer.send("new", b"%d" % number) for number in range(3)]
        self.later(1)
        self.assertEqual([self.successResultOf(each).offset for each in late], [0, 1, 2])

    def test_full(self) -> None:
        """Beyond the memory calls wait, in order, and fail when there is no room in time."""
        producer = self.make(buffer_memory="1000", batch_size="400", max_block_ms="2000")
        self.kafka.answers[ApiKey.PRODUCE].append(SILENCE)
        waiters = [producer.send("t", b"x" * 400) for _message in range(4)]
        ready = producer.whenReady()
        self.later(1)
        self.assertNoResult(ready)
        self.assertIn("KafkaProducer", repr(producer))
        self.kafka.cut()
        self.later(1)
        self.successResultOf(ready)
        for waiter in waiters:
            self.successResultOf(waiter)
        self.kafka.answers[ApiKey.PRODUCE].append(SILENCE)
        waiters = [producer.send("t", b"x" * 400) for _message in range(4)]
        self.later(2.5)
        self.failureResultOf(waiters[2], QueueFullError)
        self.failureResultOf(waiters[3], QueueFullError)
        self.assertEqual(producer.counters.droppedCount, 2)
        self.kafka.cut()
        self.later(2)
        self.successResultOf(waiters[0])

    def test_fullQuietly(self) -> None:
        """A full queue is logged once."""
        with capturedLogs() as events:
            producer = KafkaProducer(
                self.kafka,
                {
                    "bootstrap.servers": self.kafka.servers,
                    "queue.size": "1",
                    "max.block.ms": "10",
                },
            )
            self.addCleanup(self.end, producer)
            for _message in range(3):
                producer.sendNoWait("new", b"x")
            self.later(0.1)
        texts = [str(formatEvent(event)) for event in events]
        self.assertEqual(len([text for text in texts if "queue is full" in text]), 1)

    def test_waiting(self) -> None:
        """A message that had to wait for room goes out without lingering."""
        producer = self.make(queue_size="2", linger_ms="10000")
        waiters = [producer.send("t", b"%d" % number) for number in range(7)]
        self.later(1)
        self.assertEqual(len([each for each in waiters if each.called]), 6)

    def test_turns(self) -> None:
        """A loop that awaits whenReady yields to the reactor now and then."""
        producer = self.make(linger_ms="0")
        for _message in range(TURN_COUNT_MAX):
            self.successResultOf(producer.whenReady())
            producer.send("t", b"x")
        ready = [producer.whenReady(), producer.whenReady()]
        self.assertNoResult(ready[0])
        self.kafka.run()
        for each in ready:
            self.successResultOf(each)

    def test_floor(self) -> None:
        """A broker of the lowest versions suffices; one without producer ids does not."""
        self.kafka.versions = {
            ApiKey.API_VERSIONS: (0, 0),
            ApiKey.METADATA: (0, 0),
            ApiKey.PRODUCE: (0, 3),
            ApiKey.INIT_PRODUCER_ID: (0, 0),
        }
        self.kafka.topicIds.clear()
        self.kafka.topicIds["t"] = bytes(16)
        self.assertEqual(self.sent(self.make().send("t", b"x", b"k")).offset, 0)
        del self.kafka.versions[ApiKey.INIT_PRODUCER_ID]
        producer = self.make()
        self.assertIn(
            "InitProducerId", self.failed(producer.send("t", b"x"), UnsupportedVersionError)
        )
        self.failureResultOf(producer.send("t", b"x"), UnsupportedVersionError)
        self.assertEqual(self.sent(self.make(enable_idempotence="false").send("t", b"y")).offset, 1)


class RetryTests(ProducerCase):
    """Errors, lost connections and moved leaders."""

    def values(self, count: int, **settings: str) -> tuple[KafkaProducer, list[Any]]:
        """Messages in batches of their own, in a producer that knows the topic."""
        producer = self.make(linger_ms="0", **settings)
        self.sent(producer.send("t", b"first"))
        waiters = []
        for number in range(count):
            waiters.append(producer.send("t", b"%d" % number))
            if number + 1 < count:
                self.kafka.advance(0)
                self.kafka.advance(0)
        return producer, waiters

    def numbers(self, count: int) -> list[bytes]:
        return [b"first", *(b"%d" % number for number in range(count))]

    def test_everyRetriableError(self) -> None:
        """After each error that passes all messages are stored, once and in order."""
        for code in ErrorCode:
            if not code.isRetriable:
                continue
            self.kafka.logs.clear()
            self.kafka.states.clear()
            self.kafka.answers[ApiKey.PRODUCE] += [None, refuse(code)]
            _producer, waiters = self.values(4)
            self.later(2)
            self.assertEqual(
                [self.successResultOf(each).offset for each in waiters], [1, 2, 3, 4], code
            )
            self.assertEqual(self.kafka.values("t"), self.numbers(4), code)

    def test_everyOtherError(self) -> None:
        """
        An error that does not pass fails the messages of its batch with its name; those behind it
        are stored, unless it ends the producer.
        """
        for code in ErrorCode:
            if code.isRetriable or code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 45, 47, 59):
                continue
            self.kafka.logs.clear()
            self.kafka.states.clear()
            self.kafka.answers[ApiKey.PRODUCE] += [None, refuse(code)]
            producer, waiters = self.values(3)
            self.later(2)
            kind = UnknownOutcomeError if int(code) == -1 else ResponseError
            self.assertIn(code.name, str(self.failureResultOf(waiters[0], kind).value))
            if producer.counters.writtenCount > 1:
                self.assertEqual(
                    [self.successResultOf(each).offset for each in waiters[1:]], [1, 2]
                )
            else:
                for waiter in waiters[1:]:
                    self.failureResultOf(waiter, ResponseError, UnknownOutcomeError)

    def test_duplicate(self) -> None:
        """A batch that the broker had long before is a success, at an unknown offset."""
        self.kafka.answers[ApiKey.PRODUCE].append(refuse(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
        self.assertEqual(self.sent(self.make().send("t", b"x")), ("t", 0, -1, 1_000_000_000))

    def test_lostAnswer(self) -> None:
        """A connection that ends behind a stored batch does not store it twice."""
        self.kafka.answers[ApiKey.PRODUCE] += [None, carryOutAndCut]
        producer, waiters = self.values(5)
        self.later(3)
        self.assertEqual([self.successResultOf(each).offset for each in waiters], [1, 2, 3, 4, 5])
        self.assertEqual(self.kafka.values("t"), self.numbers(5))
        self.assertEqual(producer.counters.repeatedCount, 0)
        self.assertGreater(producer.counters.retriedCount, 0)

    def test_silence(self) -> None:
        """A request without an answer is sent again, on another connection."""
        self.kafka.answers[ApiKey.PRODUCE] += [None, SILENCE]
        _producer, waiters = self.values(1, request_timeout_ms="1000")
        self.later(0.9)
        self.assertNoResult(waiters[0])
        self.later(2)
        self.assertEqual(self.successResultOf(waiters[0]).offset, 1)

    def test_movedLeader(self) -> None:
        """Messages follow the leader, by the metadata or by what the response says."""
        for version in (9, 13):
            self.kafka.versions[ApiKey.PRODUCE] = (3, version)
            name = f"moving{version}"
            self.kafka.addTopic(name, 1)
            producer = self.make()
            self.assertEqual(self.sent(producer.send(name, b"0")).offset, 0)
            asked = len(self.kafka.asked(ApiKey.METADATA))
            self.kafka.leaders[name] = [(2, 6)]
            cls = messages.ProduceResponse

            def moved(kafka: FakeKafka, header: Any, body: Any, cls: Any = cls) -> Any:
                made = produceResponse(kafka, body, lambda _name, _part: (6, -1))
                if header.apiVersion >= 10:
                    [part] = made.responses[0].partitionResponses
                    part.currentLeader = cls.LeaderIdAndEpoch(leaderId=2, leaderEpoch=6)
                    made.nodeEndpoints = [cls.NodeEndpoint(nodeId=2, host="192.0.2.1", port=9002)]
                return made

            self.kafka.answers[ApiKey.PRODUCE].append(moved)
            self.assertEqual(self.sent(producer.send(name, b"1")).offset, 1)
            self.assertEqual(self.kafka.values(name), [b"0", b"1"])
            more = len(self.kafka.asked(ApiKey.METADATA)) - asked
            self.assertEqual(more, 0 if version == 13 else 1)

    def test_movedMeanwhile(self) -> None:
        """While batches are in flight to the old leader, none goes to the new one."""
        producer = self.make(linger_ms="0", metadata_max_age_ms="200")
        self.sent(producer.send("t", b"first"))
        self.kafka.answers[ApiKey.PRODUCE].append(SILENCE)
        first = producer.send("t", b"1")
        self.kafka.run()
        self.kafka.leaders["t"] = [(2, 6)]
        moved = producer._cluster.metadata.moveLeader("t", 0, PartitionLeader(2, 6), [])
        self.assertTrue(moved)
        second = producer.send("t", b"2")
        self.later(1)
        self.assertEqual(self.kafka.values("t"), [b"first"])
        self.kafka.cut(1)
        self.later(2)
        self.assertEqual(self.kafka.values("t"), [b"first", b"1", b"2"])
        self.successResultOf(first)
        self.successResultOf(second)

    def test_deadBroker(self) -> None:
        """While the leader cannot be reached messages wait; then they are sent."""
        producer, waiters = self.values(0)
        self.kafka.up = {2}
        self.kafka.cut(1)
        waiters = [producer.send("t", b"%d" % number) for number in range(3)]
        self.later(5)
        self.assertNoResult(waiters[0])
        self.kafka.up = {1, 2}
        self.later(5)
        self.assertEqual([self.successResultOf(each).offset for each in waiters], [1, 2, 3])

    def test_deadline(self) -> None:
        """
        After delivery.timeout.ms a message fails: as unknown where it was sent, else with the last
        reason. Later ones are stored, with a new epoch.
        """
        self.kafka.answers[ApiKey.PRODUCE] += [None, SILENCE]
        producer, waiters = self.values(1, delivery_timeout_ms="3000", request_timeout_ms="2500")
        self.later(1)
        self.kafka.leaders["t"] = [(-1, 6)]
        self.kafka.cut()
        late = producer.send("t", b"late")
        self.later(2.1)
        self.failureResultOf(waiters[0], UnknownOutcomeError)
        self.later(2)
        self.assertIn("3000 ms", str(self.failureResultOf(late, TimedOutError).value))
        self.assertEqual((producer.counters.unknownCount, producer.counters.failedCount), (1, 1))
        self.kafka.leaders["t"] = [(1, 7)]
        self.assertEqual(self.sent(producer.send("t", b"next")).offset, 1)
        self.assertEqual(readHeader(self.kafka.logs["t", 0][1]).producerEpoch, 1)

    def test_deadlineReason(self) -> None:
        """A time-out names what keeps the message now, no error that has passed."""

        def withAll(kafka: FakeKafka, header: Any, body: Any) -> Any:
            made = kafka.usual(header, body)
            cls = messages.MetadataResponse.MetadataResponseBroker
            made.brokers = [cls(nodeId=node, host=HOST, port=9000 + node) for node in (1, 2)]
            return made

        producer, _waiters = self.values(0, delivery_timeout_ms="3000", request_timeout_ms="2500")
        self.kafka.answers[ApiKey.METADATA] += [withAll] * 99
        self.kafka.up = {2}
        self.kafka.cut(1)
        self.assertIn("9001", self.failed(producer.send("t", b"x"), TimedOutError, seconds=3.1))
        self.kafka.up = {1, 2}
        self.sent(producer.send("t", b"y"))
        self.kafka.addTopic("u", -1)
        text = self.failed(producer.send("u", b"x"), TimedOutError, seconds=4)
        self.assertIn("the partition has no leader", text)
        self.assertNotIn("9001", text)

    def test_deadlineInFlight(self) -> None:
        """A message that is given up in flight may be stored; those behind it are in order."""
        producer = self.make(linger_ms="0", delivery_timeout_ms="3000", request_timeout_ms="3000")
        self.sent(producer.send("t", b"first"))
        held: list[Any] = []

        def hold(kafka: FakeKafka, header: Any, body: Any) -> Any:
            held.append((header, kafka.usual(header, body)))
            return SILENCE

        self.kafka.answers[ApiKey.PRODUCE].append(hold)
        waiter = producer.send("t", b"held")
        self.kafka.run()
        self.later(2)
        behind = producer.send("t", b"behind")
        self.later(1)
        self.failureResultOf(waiter, UnknownOutcomeError)
        self.later(2)
        self.assertEqual(self.successResultOf(behind).offset, 2)
        self.assertEqual(self.kafka.values("t"), [b"first", b"held", b"behind"])

    def test_cancelled(self) -> None:
        """Cancelling stops waiting, and takes nothing back."""
        producer = self.make()
        waiter = producer.send("t", b"x")
        waiter.cancel()
        self.failureResultOf(waiter, CancelledError)
        self.later(1)
        self.assertEqual(self.kafka.values("t"), [b"x"])
        self.assertEqual(producer.counters.writtenCount, 1)

    def test_forgottenTopic(self) -> None:
        """A topic that nobody asked for any more, since it was gone, is asked for again."""
        producer, _waiters = self.values(0)
        leaders = self.kafka.leaders.pop("t")
        asking = producer.partitionsFor("t")
        self.successResultOf(asking)
        refreshed = producer._cluster.refresh()
        self.later(1)
        self.successResultOf(refreshed)
        producer._cluster.forgetTopic("t")
        waiter = producer.send("t", b"x")
        self.later(1)
        self.kafka.leaders["t"] = leaders
        self.assertEqual(self.sent(waiter).offset, 1)

    def test_deletedTopic(self) -> None:
        """
        A topic that was deleted may be created again when a message waits for it, and not before.
        """
        producer = self.make(metadata_max_age_ms="500")
        self.sent(producer.send("t", b"x"))
        leaders = self.kafka.leaders.pop("t")
        asked = self.kafka.asked(ApiKey.METADATA)
        self.later(3)
        later = self.kafka.asked(ApiKey.METADATA)[len(asked) :]
        self.assertEqual({each.allowAutoTopicCreation for each in later}, {False})

        def create(kafka: FakeKafka, header: Any, body: Any) -> None:
            if body.allowAutoTopicCreation:
                kafka.leaders["t"] = leaders

        self.kafka.answers[ApiKey.METADATA] += [create] * 9
        self.assertEqual(self.sent(producer.send("t", b"y")).offset, 1)

    def test_retries(self) -> None:
        """No more retries than are allowed."""
        producer = self.make(retries="2")
        self.kafka.answers[ApiKey.PRODUCE] += [refuse(7)] * 3
        self.assertIn(
            "REQUEST_TIMED_OUT", self.failed(producer.send("t", b"x"), UnknownOutcomeError)
        )
        self.assertEqual(len(self.kafka.asked(ApiKey.PRODUCE)), 3)

    def test_tooLarge(self) -> None:
        """A batch that the broker finds too large is sent in halves; a message is not halved."""
        producer = self.make()

        def limited(kafka: FakeKafka, header: Any, body: Any) -> Any:
            part = body.topicData[0].partitionData[0]
            isLarge = readHeader(part.records).recordCount > 2
            return refuse(10)(kafka, header, body) if isLarge else None

        self.kafka.answers[ApiKey.PRODUCE] += [limited] * 20
        waiters = [producer.send("t", b"%d" % number) for number in range(7)]
        self.later(3)
        self.assertEqual([self.successResultOf(each).offset for each in waiters], list(range(7)))
        self.assertEqual(self.kafka.values("t"), [b"%d" % number for number in range(7)])
        self.kafka.answers[ApiKey.PRODUCE].clear()
        self.kafka.answers[ApiKey.PRODUCE].append(refuse(10))
        self.assertIn("MESSAGE_TOO_LARGE", self.failed(producer.send("t", b"x"), ResponseError))

    def test_tooLargeAndUncertain(self) -> None:
        """
        A batch that may be stored, and is then found too large (the limit was lowered meanwhile),
        is not halved: the halves would be stored again.
        """
        for settings in ({}, {"enable_idempotence": "false"}):
            self.kafka.logs["t", 0].clear()
            self.kafka.answers[ApiKey.PRODUCE] += [carryOutAndCut, refuse(10)]
            producer = self.make(**settings)
            waiters = [producer.send("t", b"%d" % number) for number in range(2)]
            for waiter in waiters:
                self.assertIn("MESSAGE_TOO_LARGE", self.failed(waiter, UnknownOutcomeError))
            self.assertEqual(self.sent(producer.send("t", b"2")).offset, 2)
            self.assertEqual(self.kafka.values("t"), [b"0", b"1", b"2"])

    def test_forgottenProducer(self) -> None:
        """A broker that knows the producer no more gets a new epoch, which begins with 0."""
        producer, _waiters = self.values(0)
        self.kafka.answers[ApiKey.PRODUCE].append(refuse(ErrorCode.UNKNOWN_PRODUCER_ID))
        self.assertEqual(self.sent(producer.send("t", b"x")).offset, 1)
        header = readHeader(self.kafka.logs["t", 0][1])
        self.assertEqual((header.producerEpoch, header.baseSequence), (1, 0))

    def test_epochs(self) -> None:
        """Where the epochs of the producer's id are used up, another id is asked for."""
        self.kafka.answers[ApiKey.INIT_PRODUCER_ID].append(
            messages.InitProducerIdResponse(producerId=7, producerEpoch=0x7FFF)
        )
        producer, _waiters = self.values(0)
        self.kafka.answers[ApiKey.PRODUCE].append(refuse(ErrorCode.UNKNOWN_PRODUCER_ID))
        self.assertEqual(self.sent(producer.send("t", b"x")).offset, 1)
        self.kafka.answers[ApiKey.PRODUCE].append(refuse(ErrorCode.UNKNOWN_PRODUCER_ID))
        self.assertEqual(self.sent(producer.send("t", b"x")).offset, 2)
        headers = [readHeader(batch) for batch in self.kafka.logs["t", 0]]
        self.assertEqual(
            [(each.producerId, each.producerEpoch, each.baseSequence) for each in headers],
            [(7, 0x7FFF, 0), (1, 0, 0), (1, 1, 0)],
        )

    def test_producerId(self) -> None:
        """The producer's id is asked for until it is there."""
        no = messages.InitProducerIdResponse
        self.kafka.answers[ApiKey.INIT_PRODUCER_ID] += [no(errorCode=14), CUT, no(errorCode=15)]
        self.assertEqual(self.sent(self.make().send("t", b"x"), 5).offset, 0)
        self.kafka.answers[ApiKey.INIT_PRODUCER_ID].append(no(errorCode=31))
        producer = self.make()
        self.assertIn("CLUSTER_AUTHORIZATION", self.failed(producer.send("t", b"x"), ResponseError))

    def test_fatal(self) -> None:
        """A producer that ends fails all messages: those that wait for room or a topic, too."""
        self.kafka.answers[ApiKey.INIT_PRODUCER_ID].append(
            messages.InitProducerIdResponse(errorCode=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        )
        producer = self.make(buffer_memory="1000")
        waiters = [producer.send("new", b"x")]
        waiters += [producer.send("t", b"x" * 300) for _message in range(5)]
        again: list[Deferred[RecordMetadata]] = []
        waiters[1].addErrback(lambda _failure: again.append(producer.send("t", b"again")))
        self.later(0.1)
        self.kafka.addTopic("new", 1)
        self.later(3)
        for waiter in [*again, waiters[0], *waiters[2:]]:
            self.failureResultOf(waiter, ResponseError)
        self.assertEqual(producer.counters.failedCount, 7)
        self.successResultOf(producer.flush())

    def test_missingPart(self) -> None:
        """A response that lacks the partition proves nothing: it is sent again."""
        self.kafka.answers[ApiKey.PRODUCE].append(messages.ProduceResponse())
        self.assertEqual(self.sent(self.make().send("t", b"x")).offset, 0)

    def test_lostProduce(self) -> None:
        """A broker that comes back without Produce fails the messages for good."""
        producer, _waiters = self.values(0)
        del self.kafka.versions[ApiKey.PRODUCE]
        self.kafka.cut()
        self.assertIn("Produce", self.failed(producer.send("t", b"x"), UnsupportedVersionError))

    def test_logged(self) -> None:
        """Messages that are not sent are in the log."""
        producer = KafkaProducer(
            self.kafka,
            {"bootstrap.servers": self.kafka.servers},
        )
        self.addCleanup(self.end, producer)
        for code, text in ((17, "1 messages for t-0 were not sent"), (-1, "may have been sent")):
            self.kafka.answers[ApiKey.PRODUCE].append(refuse(code))
            with capturedLogs() as events:
                producer.sendNoWait("t", b"x")
                self.later(1)
            self.assertIn(text, "".join(str(formatEvent(event)) for event in events))


class AcksTests(ProducerCase):
    """Without idempotence."""

    def test_none(self) -> None:
        """acks=0: a message counts as sent when it is written."""
        producer = self.make(acks="0", enable_idempotence="false")
        self.assertEqual(self.sent(producer.send("t", b"x")), ("t", 0, -1, 1_000_000_000))
        self.assertEqual(self.kafka.values("t"), [b"x"])
        header = readHeader(self.kafka.logs["t", 0][0])
        self.assertEqual((header.producerId, header.baseSequence), (-1, -1))
        self.assertEqual(self.kafka.asked(ApiKey.INIT_PRODUCER_ID), [])

    def test_noneLost(self) -> None:
        """acks=0: what was not written when the connection ended is unknown."""
        producer = self.make(acks="0", enable_idempotence="false")
        self.sent(producer.send("t", b"x"))
        for line in self.kafka.lines:
            line.peer.stall()
        waiter = producer.send("t", b"x" * 300_000)
        self.kafka.run(0.01)
        self.kafka.cut()
        self.failed(waiter, UnknownOutcomeError)

    def test_one(self) -> None:
        """acks=1: an answer of the leader; a retry may store a message twice, and is counted."""
        producer = self.make(acks="1", enable_idempotence="false")
        self.kafka.answers[ApiKey.PRODUCE].append(carryOutAndCut)
        self.assertEqual(self.sent(producer.send("t", b"x")).offset, 1)
        self.assertEqual(self.kafka.values("t"), [b"x", b"x"])
        self.assertEqual(producer.counters.repeatedCount, 1)
        self.assertEqual(self.kafka.asked(ApiKey.PRODUCE)[0].acks, 1)


class Source:
    """A Twisted push producer."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


class EndTests(ProducerCase):
    """Twisted's interfaces, metrics and the end."""

    def test_consumer(self) -> None:
        """A push producer is paused while the queue is full, and stopped at the end."""
        producer, source = self.make(topic="t", queue_size="8"), Source()
        producer.registerProducer(source, True)
        for _message in range(6):
            producer.write(b"x")
        self.assertEqual(source.calls, ["pause"])
        self.later(1)
        self.assertEqual(source.calls, ["pause", "resume"])
        producer.close()
        self.later(1)
        self.assertEqual(source.calls, ["pause", "resume", "stop"])
        producer.unregisterProducer()
        self.assertEqual(len(self.kafka.values("t")), 6)
        self.assertRaises(ConfigurationError, self.make().ownTopic)

    def test_metrics(self) -> None:
        """The counters can be exported."""
        producer = self.make()
        self.sent(producer.send("t", b"x"))
        self.assertTrue(producer.metricFamilies({"name": "p"}))

    def test_close(self) -> None:
        """Closing sends what was accepted, without lingering."""
        producer = self.make(linger_ms="10000")
        waiters = [producer.send("t", b"x") for _message in range(3)]
        closing = producer.close()
        self.later(1)
        self.successResultOf(closing)
        for waiter in waiters:
            self.successResultOf(waiter)
        self.assertEqual(self.kafka.lines, [])

    def test_cutShort(self) -> None:
        """
        When the time for closing is over, messages in flight are unknown, and all others failed.
        """
        producer = self.make(max_in_flight_requests_per_connection="1")
        self.sent(producer.send("t", b"first"))
        self.kafka.answers[ApiKey.PRODUCE].append(SILENCE)
        sent = producer.send("t", b"x")
        self.later(1)
        waiting = producer.send("t", b"x")
        nowhere = producer.send("new", b"x")
        closing = producer.close(1000)
        self.later(1.1)
        text = str(self.failureResultOf(closing, TimedOutError).value)
        self.assertIn("1 are unknown", text)
        self.failureResultOf(sent, UnknownOutcomeError)
        self.failureResultOf(waiting, TimedOutError)
        self.failureResultOf(nowhere, ClosedError)

    def test_beforeStop(self) -> None:
        """The reactor waits for the producer before it stops."""
        triggers: list[Any] = []
        self.kafka.addSystemEventTrigger = (  # type: ignore[attr-defined]
            lambda *given: triggers.append(given)
        )
        producer = self.make()
        producer.closeBeforeStop()
        [(phase, event, close)] = triggers
        self.assertEqual((phase, event), ("before", "shutdown"))
        closing = close()
        self.kafka.run()
        self.successResultOf(closing)
