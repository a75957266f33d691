"""
Tests of L{pylogbroker.consumer.kafka}, on a clock, with brokers in memory.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IConsumer
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from pylogbroker.cluster.kafka.assignors import IPartitionAssignor
from pylogbroker.consumer.kafka.assignedpartition import LOG_APPEND_TIME, FetchedChunk
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import (
    ClosedError,
    ConsumerStateError,
    ConsumerTimeoutError,
    FormatError,
    InvalidChecksumError,
    InvalidTopicError,
    LogTruncatedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    TimedOutError,
    UnknownPartitionError,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.records.recordbatch import controlBatch
from pylogbroker.types import TopicPartition
from tests.client.kafka.fakekafka import CUT, SILENCE, FakeKafka

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def refuse(code: int) -> Any:
    """An answer to a fetch: an error for each partition."""

    def answer(kafka: FakeKafka, header: Any, body: Any) -> Any:
        made = kafka.fetched(body, -1)
        for topic in made.responses:
            for part in topic.partitions:
                part.errorCode, part.records = int(code), b""
        return made

    return answer


class ConsumerCase(SynchronousTestCase):
    """A cluster in memory with a topic of two partitions, and a consumer."""

    def setUp(self) -> None:
        self.kafka = FakeKafka(1, 2)
        self.kafka.addTopic("t", 1, 2)
        self.addCleanup(lambda: self.assertEqual(self.kafka.getDelayedCalls(), []))

    assignor: IPartitionAssignor | None = None

    def make(self, reset: str = "earliest", **settings: str) -> KafkaConsumer:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        made = KafkaConsumer(
            self.kafka,
            {"bootstrap.servers": self.kafka.servers, "auto.offset.reset": reset, **given},
            assignor=self.assignor,
            random=lambda: 0.5,
        )
        self.addCleanup(self.end, made)
        return made

    def end(self, consumer: KafkaConsumer) -> None:
        closing = consumer.close()
        self.kafka.run()
        self.kafka.run(30)
        self.successResultOf(closing)

    def later(self, seconds: float, step: float = 0.05) -> None:
        """Time passes in small steps."""
        for _step in range(round(seconds / step)):
            self.kafka.run(step)

    def read(self, consumer: KafkaConsumer, seconds: float = 1) -> list[bytes | None]:
        """The values that come in a time."""
        found = []
        for _step in range(round(seconds / 0.05)):
            self.kafka.run(0.05)
            found += [record.value for record in consumer.takeMany()]
        return found

    def error(self, consumer: KafkaConsumer, kind: type[Exception], seconds: float = 1) -> Any:
        """The error that the next call raises."""
        self.later(seconds)
        return self.assertRaises(kind, consumer.take)


class ReadTests(ConsumerCase):
    """What is read."""

    def test_all(self) -> None:
        """All messages of the assigned partitions, with all that belongs to them."""
        self.kafka.put("t", 0, b"a", b"b")
        self.kafka.put("t", 0, b"c", appendTimeMs=77)
        self.kafka.put("t", 1, b"d")
        consumer = self.make()
        consumer.assign([T0])
        self.later(1)
        found = consumer.takeMany()
        self.assertEqual([each.value for each in found], [b"a", b"b", b"c"])
        self.assertEqual(found[1], ("t", 0, 1, 1_000_000_000, None, b"b", (), 5, 0))
        self.assertEqual((found[2].timestamp, found[2].timestampType), (77, LOG_APPEND_TIME))
        self.assertEqual(consumer.positions, {T0: 3})
        consumer.assign([T0, T1])
        self.assertEqual(consumer.assignment(), [T0, T1])
        self.kafka.put("t", 0, b"e")
        self.assertEqual(sorted(self.read(consumer)), [b"d", b"e"])
        consumer.assign([T1])
        self.kafka.put("t", 0, b"f")
        self.assertEqual(self.read(consumer), [])
        self.assertIn("1 partitions", repr(consumer))

    def test_reset(self) -> None:
        """A partition without a position begins where auto.offset.reset says."""
        self.kafka.put("t", 0, b"old")
        consumer = self.make("latest")
        consumer.assign([T0])
        self.later(1)
        self.kafka.put("t", 0, b"new")
        self.assertEqual(self.read(consumer), [b"new"])
        consumer = self.make("none")
        consumer.assign([T0])
        self.assertIn("no position", str(self.error(consumer, OffsetOutOfRangeError)))
        consumer.seek(T0, 0)
        self.assertEqual(self.read(consumer), [b"old", b"new"])

    def test_offsets(self) -> None:
        """A partition can begin at an offset."""
        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer = self.make()
        consumer.assign({T0: 1})
        self.assertEqual(self.read(consumer), [b"b", b"c"])
        consumer.assign({T0: 2})
        self.assertEqual(self.read(consumer), [b"c"])

    def test_seek(self) -> None:
        """The position can be moved at any time; what was fetched before is not handed out."""
        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer = self.make()
        consumer.assign([T0])
        self.later(1)
        first = consumer.take()
        assert first is not None
        self.assertEqual(first.value, b"a")
        consumer.seek(T0, 2)
        self.assertIsNone(consumer.take())
        self.assertEqual(self.read(consumer), [b"c"])
        consumer.seekToBeginning([T0])
        self.assertEqual(self.read(consumer), [b"a", b"b", b"c"])
        consumer.seekToEnd()
        self.later(1)
        self.kafka.put("t", 0, b"d")
        self.assertEqual(self.read(consumer), [b"d"])
        self.assertRaises(ConsumerStateError, consumer.seek, T1, 0)
        for name in ("bad topic", "", ".", "x" * 250, 7):
            self.assertRaises(InvalidTopicError, consumer.assign, [(name, 0)])
        self.assertRaises(ValueError, consumer.seek, T0, -1)

    def test_seekMeanwhile(self) -> None:
        """The response to a request of before a seek is ignored."""
        consumer = self.make(fetch_max_wait_ms="200")
        consumer.assign([T0])
        self.later(0.1)
        self.kafka.put("t", 0, b"a", b"b")
        consumer.seek(T0, 1)
        self.assertEqual(self.read(consumer), [b"b"])
        self.kafka.answers[ApiKey.LIST_OFFSETS].append(
            lambda kafka, header, body: consumer.seek(T0, 0)
        )
        consumer.seekToEnd()
        self.assertEqual(self.read(consumer), [b"a", b"b"])

    def test_seekWhileConnecting(self) -> None:
        """A seek counts, although a question for another place waits for its connection."""
        self.kafka.put("t", 1, b"a", b"b")
        for leaderEpoch in (-1, 4):
            consumer = self.make("latest")

            def late(
                kafka: FakeKafka, header: Any, body: Any, reader: KafkaConsumer = consumer
            ) -> None:
                reader.seek(T1, 1)

            self.kafka.answers[ApiKey.API_VERSIONS] += [None, late]
            consumer.assign([T1])
            if leaderEpoch >= 0:
                consumer.seek(T1, 2, leaderEpoch)
            self.assertEqual(self.read(consumer), [b"b"])
            self.end(consumer)

    def test_pause(self) -> None:
        """A paused partition hands out nothing; what was fetched is there when it goes on."""
        self.kafka.put("t", 0, b"a", b"b")
        consumer = self.make()
        consumer.assign([T0, T1])
        self.later(1)
        self.assertEqual(len(consumer.takeMany(1)), 1)
        consumer.pause([T0])
        self.assertEqual(consumer.paused(), [T0])
        self.assertEqual(consumer.takeMany(), [])
        asked = len(self.kafka.asked(ApiKey.FETCH))
        self.kafka.put("t", 1, b"c")
        self.kafka.put("t", 0, b"later")
        self.assertEqual(self.read(consumer), [b"c"])
        self.assertTrue(
            all(
                part.partition == 1
                for body in self.kafka.asked(ApiKey.FETCH)[asked + 1 :]
                for topic in body.topics
                for part in topic.partitions
            )
        )
        consumer.resume()
        consumer.resume([T0])
        self.assertEqual(self.read(consumer), [b"b", b"later"])

    def test_pausedAndFull(self) -> None:
        """What waits for a paused partition does not keep the others from being read."""
        for _batch in range(3):
            self.kafka.put("t", 0, b"x" * 600)
        consumer = self.make(queued_max_bytes="1000", max_partition_fetch_bytes="500")
        consumer.assign([T0, T1])
        self.later(1)
        consumer.pause([T0])
        self.kafka.put("t", 1, b"a")
        self.assertEqual(self.read(consumer), [b"a"])
        consumer.resume()
        self.assertEqual(len(self.read(consumer)), 3)

    def test_fair(self) -> None:
        """A partition that never ends leaves turns to the others."""
        for number in range(20):
            self.kafka.put("t", 0, b"%d" % number)
        self.kafka.put("t", 1, b"other")
        consumer = self.make(max_partition_fetch_bytes="100")
        consumer.assign([T0, T1])
        found = self.read(consumer, 2)
        self.assertEqual(len(found), 21)
        self.assertLess(found.index(b"other"), 10)

    def test_bounded(self) -> None:
        """A reader that does not read has a bounded queue, for a partition and in all."""
        for number in range(50):
            self.kafka.put("t", 0, b"%d" % number)
            self.kafka.put("t", 1, b"x%d" % number)
        consumer = self.make(max_partition_fetch_bytes="100", queued_max_bytes="250")
        consumer.assign([T0, T1])
        self.later(3)
        asked = len(self.kafka.asked(ApiKey.FETCH))
        self.later(3)
        self.assertEqual(len(self.kafka.asked(ApiKey.FETCH)), asked)
        self.assertLessEqual(sum(each.queuedSize for each in consumer._partitions.values()), 250)
        self.assertEqual(len(self.read(consumer, 10)), 100)

    def test_manyPartitions(self) -> None:
        """Where there is room for some partitions at a time, all have their turns."""
        self.kafka.addTopic("m", *[1] * 5, *[2] * 5)
        consumer = self.make(max_partition_fetch_bytes="100", queued_max_bytes="250")
        consumer.assign([TopicPartition("m", number) for number in range(10)])
        for _round in range(2):
            for number in range(10):
                self.kafka.put("m", number, b"%d" % number)
            self.assertEqual(
                sorted(self.read(consumer, 5)), [b"%d" % number for number in range(10)]
            )

    def test_fullPartition(self) -> None:
        """While a partition has no room, fetches of the others of its broker wait only briefly."""
        self.kafka.addTopic("t", 1, 1)
        for number in range(10):
            self.kafka.put("t", 0, b"%d" % number)
        consumer = self.make(max_partition_fetch_bytes="100")
        consumer.assign([T0, T1])
        self.later(1)
        waits = [body.maxWaitMs for body in self.kafka.asked(ApiKey.FETCH)]
        self.assertEqual((waits[0], waits[-1]), (500, 20))

    def test_manyBrokers(self) -> None:
        """One fetch for all partitions of a broker."""
        self.kafka.addTopic("m", 1, 2, 1, 2)
        for number in range(4):
            self.kafka.put("m", number, b"%d" % number)
        consumer = self.make()
        consumer.assign([TopicPartition("m", number) for number in range(4)])
        self.assertEqual(sorted(self.read(consumer)), [b"0", b"1", b"2", b"3"])
        first = {
            node: sum(len(topic.partitions) for topic in body.topics)
            for node, header, body in reversed(self.kafka.requests)
            if header.apiKey is ApiKey.FETCH
        }
        self.assertEqual(first, {1: 2, 2: 2})

    def test_floor(self) -> None:
        """A broker of the lowest versions suffices, for committed messages, too."""
        self.kafka.versions = {
            ApiKey.API_VERSIONS: (0, 0),
            ApiKey.METADATA: (0, 0),
            ApiKey.FETCH: (0, 4),
            ApiKey.LIST_OFFSETS: (0, 1),
        }
        self.kafka.topicIds["t"] = bytes(16)
        self.kafka.put("t", 0, b"a")
        consumer = self.make(isolation_level="read_committed")
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a"])
        self.kafka.leaders["t"][0] = (2, 6)
        self.kafka.put("t", 0, b"b")
        self.assertEqual(self.read(consumer, 3), [b"b"])

    def test_lag(self) -> None:
        """The lag is as of the last fetch; a reader that sleeps is woken when it is known."""
        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer = self.make()
        self.assertRaises(ConsumerStateError, consumer.currentLag, T0)
        self.assertRaises(ConsumerStateError, consumer.position, T0)
        consumer.assign([T0, T1])
        self.assertEqual((consumer.currentLag(T0), consumer.currentLag(T1)), (None, None))
        self.assertEqual(consumer.position(T0), None)
        woken: list[None] = []
        consumer.pause([T0])
        consumer.attach(lambda: woken.append(None), isForLags=True)
        self.later(1)
        self.assertEqual(len(woken), 1)  # of the empty one
        self.assertEqual(consumer.currentLag(T1), 0)
        consumer.resume([T0])
        self.later(1)
        self.assertEqual(consumer.currentLag(T0), 3)
        consumer.takeMany(2)
        self.assertEqual((consumer.currentLag(T0), consumer.position(T0)), (1, 2))
        consumer.takeMany()
        self.assertEqual(consumer.currentLag(T0), 0)
        consumer.seek(T0, 1)
        self.assertEqual(consumer.currentLag(T0), None)
        self.later(1)
        self.assertEqual(consumer.currentLag(T0), 2)

    def test_committed(self) -> None:
        """read_committed leaves out aborted messages and markers; read_uncommitted only those."""
        put = self.kafka.put
        put("t", 0, b"a1", producerId=1, producerEpoch=0, baseSequence=0, isTransactional=True)
        put("t", 0, b"plain")
        put("t", 0, b"c1", producerId=2, producerEpoch=0, baseSequence=0, isTransactional=True)
        for isCommit, producer in ((False, 1), (True, 2)):
            self.kafka.logs["t", 0].append(
                controlBatch(isCommit, producer, 0, 0, 5, baseOffset=self.kafka.end("t", 0))
            )
        put("t", 0, b"a2", producerId=1, producerEpoch=0, baseSequence=1, isTransactional=True)
        self.kafka.aborted = [(0, 1)]
        consumer = self.make(isolation_level="read_committed")
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"plain", b"c1", b"a2"])
        self.assertEqual(consumer.positions, {T0: 6})
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a1", b"plain", b"c1", b"a2"])


class TroubleTests(ConsumerCase):
    """Errors, moved leaders, truncated logs."""

    def test_assignWhenWoken(self) -> None:
        """
        A reader that is woken by the error of a partition may assign others at once, and gets the
        messages of these only.
        """
        self.kafka.put("t", 0, b"no")
        self.kafka.put("t", 1, b"yes")
        consumer = self.make("none")
        woken: list[str] = []

        def wake() -> None:
            woken.append("woken")
            consumer.detach(wake)
            consumer.assign({T1: 0})

        consumer.attach(wake)
        consumer.assign([T0, T1])
        self.assertEqual(self.read(consumer), [b"yes"])
        self.assertEqual(woken, ["woken"])
        self.assertEqual(consumer.assignment(), [T1])

    def test_everyRetriableError(self) -> None:
        """After each error that passes all is read, once."""
        self.kafka.put("t", 0, b"a", b"b")
        for code in ErrorCode:
            if not code.isRetriable or code is ErrorCode.CORRUPT_MESSAGE:
                continue
            self.kafka.answers[ApiKey.FETCH].append(refuse(code))
            consumer = self.make()
            consumer.assign([T0])
            self.assertEqual(self.read(consumer, 2), [b"a", b"b"], code)
            self.successResultOf(self.closed(consumer))

    def closed(self, consumer: KafkaConsumer) -> Deferred[None]:
        closing = consumer.close()
        self.kafka.run()
        return closing

    def test_everyOtherError(self) -> None:
        """An error that does not pass is raised with its name; later the partition is read on."""
        self.kafka.put("t", 0, b"a", b"b")
        for code in ErrorCode:
            if code.isRetriable or code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
                continue
            self.kafka.answers[ApiKey.FETCH].append(refuse(code))
            consumer = self.make()
            consumer.assign([T0])
            self.assertIn(code.name, str(self.error(consumer, ResponseError, 0.5)))
            self.assertEqual(self.read(consumer, 2), [b"a", b"b"], code)
            self.successResultOf(self.closed(consumer))

    def test_wholeResponse(self) -> None:
        """An error of the whole response, a lost connection, silence: it is asked again."""
        self.kafka.put("t", 0, b"a")
        for answer in (messages.FetchResponse(errorCode=70), CUT, SILENCE):
            self.kafka.answers[ApiKey.FETCH].append(answer)
            consumer = self.make(request_timeout_ms="1000")
            consumer.assign([T0])
            self.assertEqual(self.read(consumer, 3), [b"a"])

    def test_errorsAreBounded(self) -> None:
        """An error waits once for the reader, however often it happens."""
        self.kafka.put("t", 0, b"a")
        self.kafka.answers[ApiKey.FETCH] += [refuse(29)] * 5
        consumer = self.make()
        consumer.assign([T0])
        self.later(10)
        self.assertRaises(ResponseError, consumer.take)
        self.assertEqual([each.value for each in consumer.takeMany()], [b"a"])

    def test_errorInTurn(self) -> None:
        """An error comes behind the messages before it."""
        self.kafka.put("t", 0, b"a")
        consumer = self.make()
        consumer.assign([T0])
        self.kafka.answers[ApiKey.FETCH] += [None, refuse(29)]
        self.later(1)
        self.kafka.put("t", 0, b"b")
        self.later(2)
        self.assertEqual([each.value for each in consumer.takeMany()], [b"a"])
        self.assertRaises(ResponseError, consumer.takeMany)
        self.assertEqual(self.read(consumer), [b"b"])

    def test_missingPart(self) -> None:
        """A partition that a response lacks is asked for again after a wait."""
        self.kafka.put("t", 0, b"a")
        for key, lacking in (
            (ApiKey.FETCH, messages.FetchResponse()),
            (ApiKey.LIST_OFFSETS, messages.ListOffsetsResponse()),
            (ApiKey.OFFSET_FOR_LEADER_EPOCH, messages.OffsetForLeaderEpochResponse()),
        ):
            self.kafka.requests.clear()
            self.kafka.answers[key] += [lacking] * 3
            consumer = self.make()
            consumer.assign([T0])
            if key is ApiKey.OFFSET_FOR_LEADER_EPOCH:
                consumer.seek(T0, 0, leaderEpoch=4)
            self.kafka.run()
            self.assertEqual(len(self.kafka.asked(key)), 1)
            self.assertEqual(self.read(consumer, 3), [b"a"])
            self.end(consumer)

    def test_movedLeader(self) -> None:
        """A partition is read on from its new leader, which is asked if it has what was read."""
        self.kafka.put("t", 0, b"a")
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a"])
        self.kafka.leaders["t"][0] = (2, 6)
        self.kafka.put("t", 0, b"b")
        self.assertEqual(self.read(consumer, 3), [b"b"])
        [asked] = self.kafka.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        [part] = asked.topics[0].partitions
        self.assertEqual((part.leaderEpoch, part.currentLeaderEpoch), (5, 6))

    def test_toldLeader(self) -> None:
        """A response may say who leads; then no metadata are needed."""
        consumer = self.make()
        consumer.assign([T0])
        self.later(1)

        def moved(kafka: FakeKafka, header: Any, body: Any) -> Any:
            cls = messages.FetchResponse
            kafka.leaders["t"][0] = (2, 6)
            kafka.put("t", 0, b"b")
            made = refuse(6)(kafka, header, body)
            part = made.responses[0].partitions[0]
            part.currentLeader = cls.LeaderIdAndEpoch(leaderId=2, leaderEpoch=6)
            made.nodeEndpoints = [cls.NodeEndpoint(nodeId=2, host="192.0.2.1", port=9002)]
            return made

        asked = len(self.kafka.asked(ApiKey.METADATA))
        self.kafka.answers[ApiKey.FETCH].append(moved)
        self.assertEqual(self.read(consumer, 3), [b"b"])
        self.assertEqual(len(self.kafka.asked(ApiKey.METADATA)), asked)

    def truncate(self, *values: bytes) -> None:
        """Another leader, whose log has one batch of the epoch before, and its own."""
        self.kafka.leaders["t"][0] = (2, 6)
        del self.kafka.logs["t", 0][1:]
        if values:
            self.kafka.put("t", 0, *values)

    def test_truncated(self) -> None:
        """Messages that were read and are lost are reported; reading goes on where logs differ."""
        self.kafka.put("t", 0, b"a")
        self.kafka.put("t", 0, b"lost", b"lost")
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(len(self.read(consumer)), 3)
        self.truncate(b"new", b"new", b"new")
        error = self.error(consumer, LogTruncatedError, 2)
        self.assertEqual((error.offset, error.divergingOffset), (3, 1))
        self.assertIn("t-0 was read up to offset 3", str(error))
        self.assertEqual(self.read(consumer), [b"new"] * 3)

    def test_truncatedQueue(self) -> None:
        """What was fetched, but not handed out, is fetched again without a report."""
        self.kafka.put("t", 0, b"a")
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a"])
        self.kafka.put("t", 0, b"lost", b"lost")
        self.later(1)
        self.truncate(b"new")
        self.later(2)
        self.assertEqual(self.read(consumer), [b"new"])

    def test_truncatedAll(self) -> None:
        """A log without the epoch is read by the policy; that is reported as well."""
        self.kafka.put("t", 0, b"a")
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a"])
        self.kafka.logs["t", 0].clear()
        self.kafka.leaders["t"][0] = (2, 6)
        self.kafka.put("t", 0, b"new")
        cls = messages.OffsetForLeaderEpochResponse
        part = cls.EpochEndOffset(partition=0)
        self.kafka.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH].append(
            cls(topics=[cls.OffsetForLeaderTopicResult(topic="t", partitions=[part])])
        )
        error = self.error(consumer, LogTruncatedError, 2)
        self.assertIsNone(error.divergingOffset)
        self.assertEqual(self.read(consumer), [b"new"])

    def test_unknownEpoch(self) -> None:
        """
        A leader that does not know the epoch has lost nothing where nothing was read: reading goes
        on where it was. What was fetched is fetched again.
        """
        cls = messages.OffsetForLeaderEpochResponse
        for stored, reset, found in (
            ([], "latest", 0),
            ([b"a"], "latest", 1),
            ([b"a"], "earliest", 0),
        ):
            for unknown in (cls.EpochEndOffset(), cls.EpochEndOffset(leaderEpoch=5)):
                unknown.partition = 0
                self.kafka.logs["t", 0].clear()
                self.kafka.leaders["t"][0] = (1, 5)
                if stored:
                    self.kafka.put("t", 0, *stored)
                consumer = self.make(reset)
                consumer.assign([T0])
                self.later(1)
                self.assertEqual(consumer.positions, {T0: found})
                self.kafka.leaders["t"][0] = (2, 6)
                self.kafka.logs["t", 0].clear()
                self.kafka.put("t", 0, b"b", b"c")
                self.kafka.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH].append(
                    cls(topics=[cls.OffsetForLeaderTopicResult(topic="t", partitions=[unknown])])
                )
                self.later(2)
                self.assertEqual(self.read(consumer), [b"b", b"c"][found:])
                self.assertFalse(self.kafka.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH])
                self.end(consumer)

    def test_newTopic(self) -> None:
        """A topic that was made again is read from its first message on, and the reader is told."""
        self.kafka.versions[ApiKey.FETCH] = (0, 12)
        self.kafka.put("t", 1, b"a", b"b")
        consumer = self.make("latest", metadata_max_age_ms="1000")
        consumer.assign({T1: 0})
        self.assertEqual(self.read(consumer), [b"a", b"b"])
        self.kafka.topicIds["t"] = b"again".ljust(16, b"-")
        self.kafka.logs["t", 1].clear()
        self.kafka.put("t", 1, b"c", b"d", b"e")
        error = self.error(consumer, LogTruncatedError, 2)
        self.assertEqual((error.offset, error.divergingOffset), (2, 0))
        self.assertIn("t-1 was read up to offset 2, and its topic was made again", str(error))
        self.assertEqual(self.read(consumer), [b"c", b"d", b"e"])

    def test_truncatedWhileAway(self) -> None:
        """An application that stores offset and epoch learns of a truncation meanwhile."""
        self.kafka.put("t", 0, b"a")
        self.truncate(b"b", b"c")
        consumer = self.make()
        consumer.assign([T0])
        consumer.seek(T0, 3, leaderEpoch=5)
        error = self.error(consumer, LogTruncatedError)
        self.assertEqual((error.offset, error.divergingOffset), (3, 1))
        consumer.seek(T0, 2, leaderEpoch=6)
        self.assertEqual(self.read(consumer), [b"c"])

    def test_epochForbidden(self) -> None:
        """
        Brokers before 2.3 tell the end of an epoch to nobody but brokers: they are not asked.
        """
        self.kafka.versions[ApiKey.OFFSET_FOR_LEADER_EPOCH] = (0, 2)
        self.kafka.put("t", 0, b"a")
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a"])
        self.kafka.leaders["t"][0] = (2, 6)
        self.kafka.put("t", 0, b"b")
        self.assertEqual(self.read(consumer, 3), [b"b"])
        self.assertEqual(self.kafka.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH), [])

    def test_epochRefused(self) -> None:
        """Errors of OffsetForLeaderEpoch: one that passes is tried again, another is raised."""
        for code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED):

            def refused(kafka: FakeKafka, header: Any, body: Any, code: int = code) -> Any:
                made = kafka.usual(header, body)
                made.topics[0].partitions[0].errorCode = code
                return made

            self.kafka.put("t", 0, b"a")
            self.kafka.answers[ApiKey.OFFSET_FOR_LEADER_EPOCH].append(refused)
            consumer = self.make()
            consumer.assign([T0])
            consumer.seek(T0, 0, leaderEpoch=5)
            if not code.isRetriable:
                self.error(consumer, ResponseError, 0.5)
            self.assertIn(b"a", self.read(consumer, 2))

    def test_outOfRange(self) -> None:
        """A position that is not in the log: the policy, or an error."""
        self.kafka.put("t", 0, b"a")
        consumer = self.make()
        with capturedLogs() as events:
            consumer.assign({T0: 9})
            self.assertEqual(self.read(consumer), [b"a"])
        self.assertIn("has no offset 9", "".join(str(formatEvent(each)) for each in events))
        consumer = self.make("none")
        consumer.assign({T0: 9})
        self.assertIn("offset 9", str(self.error(consumer, OffsetOutOfRangeError)))
        consumer.seek(T0, 0)
        self.assertEqual(self.read(consumer), [b"a"])

    def test_outOfRangeInTurn(self) -> None:
        """Before a partition is reset, what was fetched is read."""
        self.kafka.put("t", 0, b"a")
        consumer = self.make("latest")
        consumer.assign({T0: 0})
        self.later(0.2)
        self.kafka.answers[ApiKey.FETCH] += [refuse(1)] * 2
        self.later(1)
        self.kafka.put("t", 0, b"b")
        self.assertEqual(self.read(consumer)[0], b"a")

    def test_damaged(self) -> None:
        """A damaged batch is an error with its place; the application may seek behind it."""
        self.kafka.put("t", 0, b"a")
        self.kafka.put("t", 0, b"bad")
        self.kafka.put("t", 0, b"c")
        broken = bytearray(self.kafka.logs["t", 0][1])
        broken[-2] ^= 1
        self.kafka.logs["t", 0][1] = bytes(broken)
        consumer = self.make()
        consumer.assign([T0])
        self.later(1)
        self.assertEqual([each.value for each in consumer.takeMany()], [b"a"])
        text = str(self.assertRaises(InvalidChecksumError, consumer.take))
        self.assertIn("t-0, batch at offset 1", text)
        self.later(2)
        self.assertRaises(InvalidChecksumError, consumer.take)
        consumer.seek(T0, 2)
        self.assertEqual(self.read(consumer), [b"c"])
        consumer = self.make(check_crcs="false")
        consumer.assign([T0])
        self.assertEqual(len(self.read(consumer)), 3)

    def test_damagedAtBroker(self) -> None:
        """
        A batch that the broker itself finds damaged is an error with its place, behind what stands
        before it; the application may seek behind it.
        """
        self.kafka.put("t", 0, b"a", b"b")
        self.kafka.answers[ApiKey.FETCH] += [None, *[refuse(ErrorCode.CORRUPT_MESSAGE)] * 9]
        consumer = self.make()
        consumer.assign([T0])
        self.later(1)
        self.assertEqual([each.value for each in consumer.takeMany()], [b"a", b"b"])
        text = str(self.assertRaises(FormatError, consumer.take))
        self.assertIn("t-0, batch at offset 2", text)
        self.error(consumer, FormatError, 2)
        self.assertLess(len(self.kafka.asked(ApiKey.FETCH)), 6)
        self.kafka.answers[ApiKey.FETCH].clear()
        self.kafka.put("t", 0, b"bad")
        self.kafka.put("t", 0, b"c")
        consumer.seek(T0, 3)
        self.assertEqual(self.read(consumer), [b"c"])

    def test_damagedHeader(self) -> None:
        """What stands before a batch whose header cannot be read is handed out before the error."""
        self.kafka.put("t", 0, b"a", b"b")
        whole = self.kafka.logs["t", 0][0]

        def damaged(kafka: FakeKafka, header: Any, body: Any) -> Any:
            made = kafka.fetched(body, 1)
            part = made.responses[0].partitions[0]
            part.records = (whole if body.topics[0].partitions[0].fetchOffset < 2 else b"") + bytes(
                100
            )
            return made

        self.kafka.answers[ApiKey.FETCH] += [damaged] * 3
        consumer = self.make()
        consumer.assign([T0])
        self.later(1)
        self.assertEqual([each.value for each in consumer.takeMany()], [b"a", b"b"])
        self.error(consumer, FormatError)

    def test_noBatch(self) -> None:
        """Bytes that are no batch, and a batch that does not fit, are errors of the partition."""
        whole = FetchedChunk
        for data, kind in ((b"x" * 100, FormatError), (b"\0" * 8 + b"\0\0\1\0", None)):

            def wrong(kafka: FakeKafka, header: Any, body: Any, data: bytes = data) -> Any:
                made = kafka.fetched(body, 1)
                made.responses[0].partitions[0].records = data
                return made

            self.kafka.answers[ApiKey.FETCH].append(wrong)
            consumer = self.make()
            consumer.assign([T0])
            self.error(consumer, kind or MessageTooLargeError, 0.5)
        self.assertEqual(whole(b"").size, 0)

    def test_topics(self) -> None:
        """A topic that may not be seen, and a partition that is not there, are raised once."""
        cls = messages.MetadataResponse
        consumer = self.make()
        consumer.assign([TopicPartition("t", 7)])
        text = str(self.error(consumer, UnknownPartitionError))
        self.assertIn("partition 7 of t, which has 2", text)
        self.assertEqual(self.read(consumer), [])

        def forbid(kafka: FakeKafka, header: Any, body: Any) -> Any:
            made = kafka.usual(header, body)
            made.topics = [cls.MetadataResponseTopic(errorCode=29, name="secret")]
            return made

        self.kafka.answers[ApiKey.METADATA] += [forbid] * 100
        consumer = self.make()
        consumer.assign([TopicPartition("secret", 0)])
        self.assertIn("secret", str(self.error(consumer, ResponseError)))
        self.assertEqual(self.read(consumer), [])
        self.kafka.answers[ApiKey.METADATA].clear()

    def test_password(self) -> None:
        """A password that is refused is told to the reader, by any broker, and may be mended."""
        self.kafka.put("t", 0, b"a")
        no = messages.SaslHandshakeResponse(errorCode=33)
        yes = messages.SaslHandshakeResponse()
        for answers in ([no], [yes, no]):
            self.kafka.answers[ApiKey.SASL_HANDSHAKE] += [*answers, yes, yes]
            done = messages.SaslAuthenticateResponse()
            self.kafka.answers[ApiKey.SASL_AUTHENTICATE] += [done] * 3
            consumer = self.make(
                sasl_mechanism="PLAIN",
                sasl_username="u",
                sasl_password="p",
                bootstrap_servers="192.0.2.1:9002",
            )
            consumer.assign([T0])
            self.error(consumer, ResponseError, 0.05)
            self.assertEqual(self.read(consumer, 3), [b"a"])

    def test_lateTopic(self) -> None:
        """A topic that is created later is read then."""
        consumer = self.make()
        consumer.assign([TopicPartition("new", 0)])
        self.later(1)
        self.kafka.addTopic("new", 1)
        self.kafka.put("new", 0, b"a")
        self.assertEqual(self.read(consumer, 3), [b"a"])

    def test_resetRefused(self) -> None:
        """Errors of ListOffsets: one that passes is tried again, another is raised."""
        self.kafka.put("t", 0, b"a")
        for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TOPIC_AUTHORIZATION_FAILED):

            def refused(kafka: FakeKafka, header: Any, body: Any, code: int = code) -> Any:
                made = kafka.usual(header, body)
                made.topics[0].partitions[0].errorCode = code
                return made

            self.kafka.answers[ApiKey.LIST_OFFSETS].append(refused)
            consumer = self.make()
            consumer.assign([T0])
            if not code.isRetriable:
                self.error(consumer, ResponseError, 0.5)
            self.assertEqual(self.read(consumer, 2), [b"a"])


class FollowerTests(ConsumerCase):
    """Broker 1 leads; broker 2 follows in the consumer's rack."""

    def setUp(self) -> None:
        super().setUp()
        self.kafka.up.add(3)
        self.kafka.addTopic("t", 1, 3)
        self.kafka.followers["t"][2] = "b"
        self.kafka.put("t", 0, b"a", b"b")

    def start(self, **settings: str) -> KafkaConsumer:
        consumer = self.make(client_rack="b", fetch_max_wait_ms="200", **settings)
        consumer.assign([T0])
        return consumer

    def nodes(self) -> list[int]:
        """The brokers that were asked for messages since the last call, each once in a row."""
        found: list[int] = []
        for node, header, _body in self.kafka.requests:
            if header.apiKey is ApiKey.FETCH and found[-1:] != [node]:
                found.append(node)
        self.kafka.requests.clear()
        return found

    def test_reads(self) -> None:
        """The leader is asked first, and then the follower that it names."""
        consumer = self.start()
        self.assertEqual(self.read(consumer), [b"a", b"b"])
        self.kafka.put("t", 0, b"c")
        self.assertEqual(self.read(consumer), [b"c"])
        offsets = [
            n for n, header, _ in self.kafka.requests if header.apiKey is ApiKey.LIST_OFFSETS
        ]
        self.assertEqual(offsets, [1])
        self.assertEqual(self.nodes(), [1, 2])

    def test_noRack(self) -> None:
        """Without a rack the leader serves."""
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(self.read(consumer), [b"a", b"b"])
        self.assertEqual(self.nodes(), [1])

    def test_again(self) -> None:
        """After metadata.max.age.ms the leader is asked again."""
        consumer = self.start(metadata_max_age_ms="3000")
        self.read(consumer, 2)
        self.assertEqual(self.nodes(), [1, 2])
        self.kafka.followers["t"].clear()
        self.kafka.put("t", 0, b"c")
        self.read(consumer, 2)
        self.assertEqual(self.nodes()[-1], 1)

    def test_errors(self) -> None:
        """
        After any error of the follower the leader serves for a while, and what it has is read once
        and in order, also if the follower says that the offset is out of range.
        """
        for code in (
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.OFFSET_NOT_AVAILABLE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        ):
            consumer = self.start()
            self.kafka.answers[ApiKey.FETCH] += [None, refuse(code)]
            self.assertEqual(self.read(consumer), [b"a", b"b"], code)
            self.assertEqual(self.nodes(), [1, 2, 1], code)
            self.read(consumer, 12)
            self.assertEqual(self.nodes(), [1, 2])
            self.end(consumer)
            self.kafka.requests.clear()

    def test_gone(self) -> None:
        """When the follower is lost, the leader serves, though it still names the follower."""
        consumer = self.start()
        self.assertEqual(self.read(consumer), [b"a", b"b"])
        self.kafka.up.remove(2)
        self.kafka.cut(2)
        self.kafka.put("t", 0, b"c")
        self.assertEqual(self.read(consumer, 2), [b"c"])
        self.assertEqual(self.nodes()[-1], 1)

    def test_unknown(self) -> None:
        """A follower that the metadata do not have is not asked."""
        del self.kafka.followers["t"][2]
        self.kafka.followers["t"][9] = "b"
        consumer = self.start()
        self.assertEqual(self.read(consumer), [b"a", b"b"])
        self.assertEqual(self.nodes(), [1])

    def test_newEpoch(self) -> None:
        """In a new leader epoch the leader is asked if it has what was read."""
        consumer = self.start()
        self.assertEqual(self.read(consumer), [b"a", b"b"])
        self.kafka.requests.clear()
        self.kafka.leaders["t"][0] = (3, 6)
        self.kafka.put("t", 0, b"c")
        self.assertEqual(self.read(consumer, 2), [b"c"])
        asked = [
            node
            for node, header, _ in self.kafka.requests
            if header.apiKey is ApiKey.OFFSET_FOR_LEADER_EPOCH
        ]
        self.assertEqual(asked, [3])

    def test_seek(self) -> None:
        """The end of the partition is the leader's; messages come from the follower."""
        consumer = self.start()
        self.read(consumer)
        self.kafka.requests.clear()
        consumer.seekToEnd([T0])
        self.later(1)
        self.kafka.put("t", 0, b"c")
        self.assertEqual(self.read(consumer), [b"c"])
        offsets = [
            n for n, header, _ in self.kafka.requests if header.apiKey is ApiKey.LIST_OFFSETS
        ]
        self.assertEqual(offsets, [1])
        self.assertEqual(self.nodes(), [2])


class QuestionTests(ConsumerCase):
    """Offsets and partitions."""

    def ask(self, asking: Deferred[Any], seconds: float = 1) -> Any:
        self.later(seconds)
        return self.successResultOf(asking)

    def test_offsets(self) -> None:
        """The first and the next offset, and that of a time."""
        self.kafka.put("t", 0, b"a")
        self.kafka.advance(10)
        self.kafka.put("t", 0, b"b")
        consumer = self.make()
        partitions = self.ask(consumer.partitionsFor("t"))
        self.assertEqual(partitions, [T0, T1])
        self.assertEqual(self.ask(consumer.beginningOffsets(partitions)), {T0: 0, T1: 0})
        self.assertEqual(self.ask(consumer.endOffsets([T0, T1])), {T0: 2, T1: 0})
        found = self.ask(consumer.offsetsForTimes({T0: 1_000_001_000, T1: 0}))
        self.assertEqual(found[T0].offset, 1)
        self.assertGreaterEqual(found[T0].timestamp, 1_000_010_000)
        self.assertIsNone(found[T1])
        self.assertEqual(self.ask(consumer.endOffsets([])), {})

    def test_again(self) -> None:
        """What passes is tried again, until the time is over; what does not is raised."""
        consumer = self.make(default_api_timeout_ms="3000")
        self.kafka.answers[ApiKey.LIST_OFFSETS].append(CUT)
        self.assertEqual(self.ask(consumer.endOffsets([T0]), 2), {T0: 0})
        self.kafka.leaders["t"][0] = (-1, 6)
        refreshed = consumer._cluster.refresh()
        self.later(1)
        self.successResultOf(refreshed)
        asking = consumer.endOffsets([T0])
        self.later(4)
        text = str(self.failureResultOf(asking, TimedOutError).value)
        self.assertIn("LEADER_NOT_AVAILABLE", text)

        def refused(code: int) -> Any:
            def answer(kafka: FakeKafka, header: Any, body: Any) -> Any:
                made = kafka.usual(header, body, 2)
                made.topics[0].partitions[0].errorCode = code
                return made

            return answer

        self.kafka.answers[ApiKey.LIST_OFFSETS] += [refused(6), refused(29)]
        asking = consumer.endOffsets([T1])
        self.later(2)
        self.failureResultOf(asking, ResponseError)

    def test_closed(self) -> None:
        """A question that waits for a broker fails when its consumer is closed."""
        consumer = self.make()
        self.ask(consumer.partitionsFor("t"))
        self.kafka.up.remove(2)
        self.kafka.cut()
        asking = consumer.endOffsets([T1])
        self.later(1)
        self.assertNoResult(asking)
        closing = consumer.close()
        self.later(1)
        self.successResultOf(closing)
        self.failureResultOf(asking, ClosedError)
        late = consumer.endOffsets([T1])
        self.later(1)
        self.failureResultOf(late, ClosedError)

    def test_cancelled(self) -> None:
        """A question can be given up."""
        consumer = self.make()
        self.kafka.answers[ApiKey.METADATA].append(SILENCE)
        asking = consumer.endOffsets([T0])
        self.later(1)
        asking.cancel()
        self.failureResultOf(asking, CancelledError)


@implementer(IConsumer)
class Receiver:
    """A Twisted consumer."""

    def __init__(self, pauseAt: int = 1_000) -> None:
        self.found: list[Any] = []
        self.producer: Any = None
        self.pauseAt = pauseAt

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, data: Any) -> None:
        self.found.append(data)
        if len(self.found) == self.pauseAt:
            self.producer.pauseProducing()


class WayTests(ConsumerCase):
    """The ways to read."""

    def test_iterated(self) -> None:
        """C{async for} gives each message, and ends with the consumer."""

        async def iterate(consumer: KafkaConsumer) -> list[bytes | None]:
            found = []
            async with consumer:
                async for record in consumer:
                    found.append(record.value)
                    if record.value == b"last":
                        break
            async for record in consumer:
                raise AssertionError(record)
            return found

        consumer = self.make()
        consumer.assign([T0])
        reading = Deferred.fromCoroutine(iterate(consumer))
        self.later(1)
        self.kafka.put("t", 0, b"a")
        self.later(1)
        self.kafka.put("t", 0, b"b", b"last")
        self.later(1)
        self.assertEqual(self.successResultOf(reading), [b"a", b"b", b"last"])
        self.assertIn("ended", repr(consumer))
        self.assertRaises(ConsumerStateError, consumer.assign, [T0])

    def test_batches(self) -> None:
        """Lists of what there is, no longer than asked for, until the end."""

        async def iterate(consumer: KafkaConsumer, found: list[int]) -> None:
            async for batch in consumer.batches(2):
                found.append(len(batch))

        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer, found = self.make(), list[int]()
        consumer.assign([T0])
        reading = Deferred.fromCoroutine(iterate(consumer, found))
        self.later(1)
        self.assertEqual(found, [2, 1])
        closing = consumer.close()
        self.kafka.run()
        self.successResultOf(closing)
        self.successResultOf(reading)
        wrong = Deferred.fromCoroutine(self.next(consumer.batches(0)))
        self.failureResultOf(wrong, ValueError)

    async def next(self, batches: Any) -> Any:
        return await anext(batches)

    def test_timeout(self) -> None:
        """A reader that waits too long is told, and may go on."""
        consumer = self.make(consumer_timeout_ms="1000")
        consumer.assign([T0])
        waiting = Deferred.fromCoroutine(consumer.__anext__())
        self.later(1.1)
        self.failureResultOf(waiting, ConsumerTimeoutError)
        waiting = Deferred.fromCoroutine(consumer.__anext__())
        other = Deferred.fromCoroutine(consumer.__anext__())
        self.failureResultOf(other, ConsumerStateError)
        self.kafka.put("t", 0, b"a")
        self.later(0.6)
        record: ConsumerRecord = self.successResultOf(waiting)
        self.assertEqual(record.value, b"a")

    def test_piped(self) -> None:
        """A receiver gets messages until it pauses, and the rest when it goes on."""
        self.kafka.put("t", 0, b"a", b"b", b"c")
        consumer, receiver = self.make(), Receiver(2)
        consumer.assign([T0])
        piping = consumer.pipeTo(receiver)
        self.later(1)
        self.assertEqual(len(receiver.found), 2)
        receiver.producer.resumeProducing()
        self.later(1)
        self.assertEqual([each.value for each in receiver.found], [b"a", b"b", b"c"])
        closing = consumer.close()
        self.later(1)
        self.successResultOf(closing)
        self.successResultOf(piping)
        self.assertIsNone(receiver.producer)

    def test_counters(self) -> None:
        """Fetches, messages and bytes are counted, and can be exported."""
        self.kafka.put("t", 0, b"a", b"b")
        self.kafka.put("t", 0, b"c")
        self.kafka.answers[ApiKey.FETCH].append(CUT)
        consumer = self.make()
        consumer.assign([T0])
        self.assertEqual(len(self.read(consumer)), 3)
        counters = consumer.counters
        self.assertEqual(counters.topic("t").messageCount, 3)
        size = sum(map(len, self.kafka.logs["t", 0]))
        self.assertEqual(counters.topic("t").fetchedSize, size)
        self.assertEqual(counters.fetches.failedCount, 1)
        self.assertGreater(counters.fetches.fetchCount, 0)
        self.assertTrue(consumer.metricFamilies({"name": "c"}))

    def test_settings(self) -> None:
        """Unknown keys are named."""
        with capturedLogs() as events:
            self.make(isolation_levl="read_committed")
        self.assertIn("isolation.level", "".join(str(formatEvent(each)) for each in events))
