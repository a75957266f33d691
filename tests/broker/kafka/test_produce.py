"""Produce requests."""

from __future__ import annotations

import errno
from typing import Any

from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.messages import MESSAGES
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.kafka.producerstate import encodeSnapshot
from tests.broker.kafka.kafkacase import NOW_MS, KafkaCase, batchOf, decoded, frameOf

Request: Any = MESSAGES["ProduceRequest"]
VERSIONS = range(3, 14)


class ProduceCase(KafkaCase):
    """What the cases below share."""

    def request(self, *parts: Any, acks: int = -1, timeoutMs: int = 1000, **more: Any) -> Any:
        """
        @param parts: (topic, index, records), each topic once.
        """
        topics = []
        for topic, index, records in parts:
            topicId = self.topicId(topic) if topic in ("t", "u") else b"x" * 16
            part = Request.PartitionProduceData(index=index, records=records)
            topics.append(
                Request.TopicProduceData(name=topic, topicId=topicId, partitionData=[part])
            )
        return Request(acks=acks, timeoutMs=timeoutMs, topicData=topics, **more)

    def fitted(self, request: Any, version: int) -> Any:
        for topic in request.topicData:
            if version >= 13:
                topic.name = ""
            else:
                topic.topicId = bytes(16)
        return request

    def produce(self, *parts: Any, version: int = 9, **more: Any) -> list[Any]:
        """The partitions' responses, in order."""
        clientId = more.pop("clientId", "c")
        request = self.fitted(self.request(*parts, **more), version)
        found = self.ask(ApiKey.PRODUCE, version, request, clientId=clientId)
        return [part for topic in found.responses for part in topic.partitionResponses]

    def codes(self, *parts: Any, **more: Any) -> list[int]:
        return [part.errorCode for part in self.produce(*parts, **more)]


class AppendTests(ProduceCase):
    """What is appended, and what is refused."""

    def test_everyVersion(self) -> None:
        """Each version gets the offset of its batch, with every kind of acknowledgement."""
        offset = 0
        for version in VERSIONS:
            for acks in (1, -1):
                (part,) = self.produce(("t", 0, batchOf(b"a", b"b")), version=version, acks=acks)
                self.assertEqual((part.errorCode, part.baseOffset), (0, offset))
                self.assertEqual(part.logAppendTimeMs, -1)
                offset += 2
        self.assertEqual(self.lead.log("t").logEndOffset, offset)

    def test_severalPartitions(self) -> None:
        """Each partition has its own outcome; a refused one does not touch the others."""
        self.create("u")
        found = self.produce(
            ("t", 1, batchOf(b"a")),
            ("u", 0, b"garbage" * 20),
            ("v", 0, batchOf(b"b")),
        )
        self.assertEqual(
            [(part.errorCode, part.baseOffset) for part in found],
            [(0, 0), (ErrorCode.CORRUPT_MESSAGE, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)],
        )

    def test_unknown(self) -> None:
        """Topics, ids and partitions that are not there have the codes that Kafka gives."""
        records = batchOf(b"a")
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.assertEqual(self.codes(("t", 2, records)), [unknown])
        self.assertEqual(self.codes(("t", 2, records), version=13), [unknown])
        self.assertEqual(self.codes(("v", 0, records), version=13), [ErrorCode.UNKNOWN_TOPIC_ID])

    def test_acksThatDoNotExist(self) -> None:
        """Other acknowledgements than 0, 1 and all are refused, and nothing is appended."""
        for acks in (2, -2):
            self.assertEqual(
                self.codes(("t", 0, batchOf(b"a")), acks=acks), [ErrorCode.INVALID_REQUIRED_ACKS]
            )
        self.assertEqual(self.lead.log("t").logEndOffset, 0)

    def test_internalTopics(self) -> None:
        """Only an administrator's client writes to internal topics."""
        self.create("__consumer_offsets")
        for clientId, code in (("c", ErrorCode.INVALID_TOPIC_EXCEPTION), ("__admin_client", 0)):
            self.assertEqual(
                self.codes(("__consumer_offsets", 0, batchOf(b"a")), clientId=clientId), [code]
            )

    def test_reasons(self) -> None:
        """The client is told what was wrong, and with which record."""
        future = NOW_MS + 7_200_000
        (part,) = self.produce(("t", 0, batchOf(b"a", timestampMs=future)))
        self.assertEqual(part.errorCode, ErrorCode.INVALID_TIMESTAMP)
        self.assertEqual([each.batchIndex for each in part.recordErrors], [0])
        self.assertIn("timestamp", part.errorMessage)

    def test_noBatch(self) -> None:
        """Bytes that do not begin like a batch are corrupt, and the client is told how."""
        one = batchOf(b"a")
        for records, text in (
            (one[:8] + (13).to_bytes(4, "big"), "Record size 13 is less than the minimum"),
            (one[:16] + b"\3" + one[17:], "Invalid magic found in record: 3"),
            (one[:16] + b"\x80" + one[17:], "Invalid magic found in record: -128"),
        ):
            (part,) = self.produce(("t", 0, records))
            self.assertEqual(part.errorCode, ErrorCode.CORRUPT_MESSAGE)
            self.assertIn(text, part.errorMessage)
        for records in (one[:11], one[:16], one[:-1], one + one):
            (part,) = self.produce(("t", 0, records))
            self.assertEqual((part.errorCode, part.errorMessage), (ErrorCode.INVALID_RECORD, None))

    def test_idempotent(self) -> None:
        """A batch that comes again has its first offset; one out of order is refused."""
        first = batchOf(b"a", b"b", producerId=9, producerEpoch=0, baseSequence=0)
        second = batchOf(b"c", producerId=9, producerEpoch=0, baseSequence=2)
        gap = batchOf(b"d", producerId=9, producerEpoch=0, baseSequence=9)
        for records, expected in (
            (first, (0, 0)),
            (second, (0, 2)),
            (first, (0, 0)),
            (gap, (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)),
        ):
            (part,) = self.produce(("t", 0, records))
            self.assertEqual((part.errorCode, part.baseOffset), expected)
        self.assertEqual(self.lead.log("t").logEndOffset, 3)

    def test_transactional(self) -> None:
        """A transactional batch needs a transactional id; test_transactions has those with one."""
        records = batchOf(b"a", producerId=9, producerEpoch=0, baseSequence=0, isTransactional=True)
        self.assertEqual(
            self.codes(("t", 0, records)), [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        )
        self.assertEqual(self.lead.log("t").logEndOffset, 0)

    def test_zstd(self) -> None:
        """Clients may use zstd from version 7 on."""
        records = batchOf(b"a", codec=4)
        for version, code in ((6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, 0)):
            self.assertEqual(self.codes(("t", 0, records), version=version), [code])

    def test_partitionTwice(self) -> None:
        """Of a partition that comes twice in a request the last counts."""
        request = self.fitted(self.request(("t", 0, batchOf(b"a"))), 9)
        again = Request.PartitionProduceData(index=0, records=batchOf(b"b", b"c"))
        request.topicData[0].partitionData.append(again)
        found = self.ask(ApiKey.PRODUCE, 9, request)
        self.assertEqual(len(found.responses[0].partitionResponses), 1)
        self.assertEqual(self.lead.log("t").logEndOffset, 2)


class AppendTimeTests(ProduceCase):
    """A topic with the time of the append."""

    topicConfigs = {"message.timestamp.type": "LogAppendTime"}

    def test_logAppendTime(self) -> None:
        """The time of the append is told and stored."""
        (part,) = self.produce(("t", 0, batchOf(b"a", timestampMs=5)))
        self.assertEqual((part.errorCode, part.logAppendTimeMs), (0, NOW_MS))


class AcknowledgementCase(ProduceCase):
    """Requests whose answers are not waited for."""

    def send(self, records: bytes, acks: int, timeoutMs: int = 1000) -> None:
        request = self.fitted(self.request(("t", 0, records), acks=acks, timeoutMs=timeoutMs), 9)
        self.peer.send(frameOf(ApiKey.PRODUCE, 9, request))

    def codeNow(self) -> int | None:
        found = self.answer(ApiKey.PRODUCE, 9)
        return None if found is None else found.responses[0].partitionResponses[0].errorCode


class MemoryTests(AcknowledgementCase):
    """What requests keep."""

    properties = {"log.check.records": "true"}

    def test_recordsAreForgotten(self) -> None:
        """
        What is appended leaves the memory of requests before it is acknowledged; also what a worker
        has checked, or what waited for that.
        """
        checked = batchOf(*[bytes([at % 251]) * 5_000 for at in range(60)], codec=1)
        for records in (batchOf(b"a"), checked, batchOf(b"b")):
            self.send(records, -1)
        slots = self.peer.protocol._slots
        assert slots is not None

        def counts() -> list[int]:
            return [len(slot.request[1].topicData[0].partitionData) for slot in slots]

        self.assertEqual(counts(), [0, 1, 1])
        self.lead.readWorker.performAll()
        self.lead.turn()
        self.assertEqual(counts(), [0, 0, 0])
        self.assertEqual(self.peer.frames(), [])
        self.lead.settle()
        self.assertEqual(len(self.peer.frames()), 3)


class AcknowledgementTests(AcknowledgementCase):
    """When a response leaves."""

    def test_all(self) -> None:
        """With all it leaves behind the flush; one flush serves all that wait."""
        for _ in range(3):
            self.send(batchOf(b"a"), -1)
        self.assertEqual(self.peer.frames(), [])
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        self.lead.settle()
        self.assertEqual(len(self.peer.frames()), 3)

    def test_one(self) -> None:
        """With 1 it leaves when the page cache has the batch."""
        self.send(batchOf(b"a"), 1)
        self.assertEqual(self.codeNow(), 0)
        self.assertEqual(self.lead.log("t").flushedOffset, 0)
        self.assertEqual(self.lead.log("t").writtenOffset, 1)

    def test_together(self) -> None:
        """Requests that came together are written and answered together, in their order."""
        frames = [
            frameOf(ApiKey.PRODUCE, 9, self.fitted(self.request(("t", 0, records), acks=1), 9))
            for records in (batchOf(b"a"), b"garbage" * 20, batchOf(b"b"))
        ]
        counters = self.lead.counters.requests
        writeCount = counters.writeCount
        self.peer.send(*frames)
        answers = [decoded(ApiKey.PRODUCE, 9, frame) for frame in self.peer.frames()]
        parts = [answer.responses[0].partitionResponses[0] for answer in answers]
        self.assertEqual(
            [(part.errorCode, part.baseOffset) for part in parts],
            [(0, 0), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 1)],
        )
        self.assertEqual(counters.writeCount, writeCount + 1)

    def test_togetherUnwritten(self) -> None:
        """If the write fails, none of the requests that wait for it is acknowledged."""
        frame = frameOf(
            ApiKey.PRODUCE, 9, self.fitted(self.request(("t", 0, batchOf(b"a")), acks=1), 9)
        )
        self.lead.fileSystem.fail("write", ".log", errno.EIO)
        self.peer.send(frame, frame)
        answers = [decoded(ApiKey.PRODUCE, 9, each) for each in self.peer.frames()]
        codes = [answer.responses[0].partitionResponses[0].errorCode for answer in answers]
        self.assertEqual(codes, [ErrorCode.KAFKA_STORAGE_ERROR] * 2)

    def sendTogether(self, *timeoutsMs: int) -> None:
        """Requests with acks=all in one segment of TCP, which end in a batch of one record each."""
        records = batchOf(b"a")
        self.peer.send(
            *(
                frameOf(
                    ApiKey.PRODUCE,
                    9,
                    self.fitted(self.request(("t", 0, records), timeoutMs=timeoutMs), 9),
                )
                for timeoutMs in timeoutsMs
            )
        )

    def outcomes(self) -> list[tuple[int, int]]:
        """Error code and base offset of each answer."""
        answers = [decoded(ApiKey.PRODUCE, 9, frame) for frame in self.peer.frames()]
        parts = [answer.responses[0].partitionResponses[0] for answer in answers]
        return [(part.errorCode, part.baseOffset) for part in parts]

    def test_togetherFlushed(self) -> None:
        """
        Requests that came together wait for one flush, which counts each of them, and are answered
        in their order by one write.
        """
        partition = self.lead.partition("t")
        self.sendTogether(1000, 1000, 1000)
        self.assertEqual(partition.flushRequestCount, 3)
        self.assertEqual(len(self.lead.flushWorker.jobs), 1)
        counters = self.lead.counters.requests
        writeCount = counters.writeCount
        self.lead.settle()
        self.assertEqual(self.outcomes(), [(0, 0), (0, 1), (0, 2)])
        self.assertEqual(counters.writeCount, writeCount + 1)
        self.assertEqual(partition.flushRequestCount, 0)

    def test_togetherUnflushed(self) -> None:
        """If the flush fails, none of the requests that wait for it is acknowledged."""
        self.sendTogether(1000, 1000)
        self.lead.fileSystem.fail("fsync", ".log", errno.EIO)
        self.lead.settle()
        self.assertEqual([code for code, _ in self.outcomes()], [ErrorCode.KAFKA_STORAGE_ERROR] * 2)

    def test_togetherTimeout(self) -> None:
        """Each waits as long as its producer does."""
        self.sendTogether(200, 200, 500)
        self.lead.advance(0.3)
        self.assertEqual([code for code, _ in self.outcomes()], [ErrorCode.REQUEST_TIMED_OUT] * 2)
        self.assertEqual(self.lead.partition("t").flushRequestCount, 1)
        self.lead.settle()
        self.assertEqual(self.outcomes(), [(0, 2)])

    def test_none(self) -> None:
        """With 0 there is no response; what is refused closes the connection."""
        self.send(batchOf(b"a"), 0)
        self.lead.settle()
        self.assertEqual(self.peer.frames(), [])
        self.assertEqual(self.lead.log("t").logEndOffset, 1)
        self.send(b"garbage" * 20, 0)
        self.assertTrue(self.peer.isClosed)

    def test_timeout(self) -> None:
        """A flush that takes longer than the producer waits is error 7; the batch stays."""
        self.send(batchOf(b"a"), -1, 200)
        self.lead.advance(0.3)
        self.assertEqual(self.codeNow(), ErrorCode.REQUEST_TIMED_OUT)
        self.lead.settle()
        self.assertEqual((self.codeNow(), self.lead.log("t").highWatermark), (None, 1))

    def test_timeoutOfOnePartition(self) -> None:
        """Of several partitions only those that are not acknowledged have timed out."""
        self.create("u", 1)
        request = self.fitted(
            self.request(("t", 0, batchOf(b"a")), ("u", 0, b"garbage"), timeoutMs=200), 9
        )
        again = Request.PartitionProduceData(index=1, records=batchOf(b"b"))
        request.topicData[0].partitionData.append(again)
        self.peer.send(frameOf(ApiKey.PRODUCE, 9, request))
        self.lead.flushWorker.perform()  # of one of the two
        self.lead.advance(0.3)
        found = self.answer(ApiKey.PRODUCE, 9)
        codes = [part.errorCode for topic in found.responses for part in topic.partitionResponses]
        self.assertEqual(sorted(codes), [0, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_RECORD])

    def test_order(self) -> None:
        """A batch that a worker checks is appended before the one that came behind it."""
        large = batchOf(*[bytes([at % 251]) * 5_000 for at in range(60)], codec=1)
        self.send(large, 1)
        self.send(batchOf(b"b"), 1)
        self.assertEqual(self.lead.log("t").logEndOffset, 0 if self.lead.readWorker.jobs else 61)
        self.lead.settle()
        self.assertEqual(len(self.peer.frames()), 2)
        self.assertEqual(self.lead.log("t").logEndOffset, 61)

    def test_restart(self) -> None:
        """After a stop topics, records and offsets are there again."""
        self.produce(("t", 0, batchOf(b"a")))
        topicId = self.topicId()
        files = self.lead.fileSystem
        self.lead.stop()
        self.begin(fileSystem=files)
        self.assertEqual(self.topicId(), topicId)
        (part,) = self.produce(("t", 0, batchOf(b"b")))
        self.assertEqual(part.baseOffset, 1)


class RunTests(ProduceCase):
    """Requests for one partition that came together have the outcome that each would have alone."""

    def frames(self, *batches: bytes, acks: int = 1) -> list[bytes]:
        """Requests for one partition, with correlation ids from 0."""
        found = []
        for at, records in enumerate(batches):
            request = self.fitted(self.request(("t", 0, records), acks=acks), 11)
            frame = frameOf(ApiKey.PRODUCE, 11, request)
            found.append(frame[:8] + at.to_bytes(4, "big") + frame[12:])
        return found

    def outcome(self, isTogether: bool, *batches: bytes, **configs: str) -> tuple[Any, ...]:
        """Of a new broker: the answers, the bytes of the log, and the state of its producers."""
        self.begin()
        if configs:
            found = {name.replace("_", "."): value for name, value in configs.items()}
            self.create("u", 1, found)
        name = "u" if configs else "t"
        frames = []
        for acks in (1, -1):
            frames += [
                frame.replace(b"\2\2t\2", b"\2\2" + name.encode() + b"\2")
                for frame in self.frames(*batches, acks=acks)
            ]
        if isTogether:
            self.peer.send(*frames)
        else:
            for frame in frames:
                self.peer.send(frame)
                self.lead.settle()
        self.lead.settle()
        log = self.lead.log(name)
        stored = b"".join(
            self.lead.fileSystem.open(each.path).readAt(0, each.size) for each in log.segments
        )
        assert isinstance(log, BatchLog)
        producers = encodeSnapshot(log.producers.producers.values())
        return self.peer.frames(), stored, [each.baseOffset for each in log.segments], producers

    def check(self, *batches: bytes, **configs: str) -> None:
        alone = self.outcome(False, *batches, **configs)
        self.assertEqual(self.outcome(True, *batches, **configs), alone)
        self.assertEqual(len(alone[0]), 2 * len(batches))

    def test_plain(self) -> None:
        """Batches of no producer, of all sizes and codecs."""
        self.check(
            batchOf(b"a", b"b"),
            batchOf(b"c", codec=1),
            batchOf(*[b"d" * 99] * 500, timestampMs=NOW_MS - 5),
            batchOf(b"e", timestampMs=NOW_MS - 9),
        )

    def test_producer(self) -> None:
        """Batches of an idempotent producer; then all come again, and get the same offsets."""
        producer: Any = {"producerId": 7, "producerEpoch": 0}
        self.check(
            *(
                batchOf(b"a", b"b", baseSequence=at, timestampMs=NOW_MS - at, **producer)
                for at in (0, 2, 4, 6)
            )
        )

    def test_sequences(self) -> None:
        """Sequences with a gap, a repetition, another epoch or producer."""

        def one(sequence: int, epoch: int = 0, producerId: int = 7) -> bytes:
            return batchOf(b"a", producerId=producerId, producerEpoch=epoch, baseSequence=sequence)

        self.check(one(0), one(1), one(3), one(2))
        self.check(one(0), one(0), one(1))
        self.check(one(0), one(1), one(0, 1), one(2))
        self.check(one(0), one(0, producerId=8), one(1), batchOf(b"b"))

    def test_refused(self) -> None:
        """What is refused among others is refused alone."""
        good, damaged = batchOf(b"a"), bytearray(batchOf(b"b"))
        damaged[-1] ^= 1
        for bad in (
            bytes(damaged),
            b"",
            b"garbage",
            batchOf(b"c", isTransactional=True),
            batchOf(b"d", isControl=True),
            batchOf(b"e", timestampMs=NOW_MS + 10**10),
            good + good,
        ):
            self.check(good, bad, good)

    def test_appendTime(self) -> None:
        """With the time of the append the answers tell it."""
        self.check(batchOf(b"a"), batchOf(b"b"), message_timestamp_type="LogAppendTime")

    def test_roll(self) -> None:
        """A segment rolls between two requests."""
        batches = [batchOf(bytes([at]) * 300) for at in range(8)]
        self.check(*batches, segment_bytes="1048576", max_message_bytes="2000")
        large = [batchOf(bytes([at]) * 300_000) for at in range(6)]
        self.check(*large, segment_bytes="1048576")

    def test_keys(self) -> None:
        """A compacted topic opens each batch."""
        self.check(batchOf(b"a", key=b"k"), batchOf(b"b"), cleanup_policy="compact")

    def test_unknown(self) -> None:
        """A topic that is not there is told in each answer."""
        frames = [
            frame.replace(b"\2\2t\2", b"\2\2x\2") for frame in self.frames(*[batchOf(b"a")] * 3)
        ]
        self.peer.send(*frames)
        self.assertEqual(len(self.peer.frames()), 3)

    def test_failed(self) -> None:
        """A partition that has failed is told in each answer."""
        self.lead.fileSystem.fail("write", ".log", errno.EIO)
        for _ in range(2):
            self.peer.send(*self.frames(batchOf(b"a"), batchOf(b"b")))
            self.lead.settle()
            codes = [int.from_bytes(each[13:15], "big") for each in self.peer.frames()]
            self.assertEqual(codes, [ErrorCode.KAFKA_STORAGE_ERROR] * 2)

    def test_counts(self) -> None:
        """Each request of a run is counted, also while it waits for a flush."""
        counters = self.lead.counters
        before = counters.requests.produceCount, counters.api("Produce").count
        self.peer.send(*self.frames(batchOf(b"a"), batchOf(b"b"), acks=-1))
        self.assertEqual(self.lead.partition("t").flushRequestCount, 2)
        found = counters.requests.produceCount, counters.api("Produce").count
        self.assertEqual(found, (before[0] + 2, before[1] + 2))
        self.assertEqual(counters.topic("t").messageCount, 2)

    def test_wrapped(self) -> None:
        """
        What is put around handlers later, such as quotas, sees each request, though the connection
        was there before.
        """
        seen = []

        def wrap(key: ApiKey, handler: Any) -> Any:
            def handle(header: Any, body: Any, state: Any) -> Any:
                seen.append((key, header.correlationId))
                return handler(header, body, state)

            return handle

        for protocol in self.lead.service.kafka.protocols:
            protocol.wrapHandlers(wrap)
        self.peer.send(*self.frames(batchOf(b"a"), batchOf(b"b")))
        self.lead.settle()
        self.assertEqual(seen, [(ApiKey.PRODUCE, 0), (ApiKey.PRODUCE, 1)])
        self.assertEqual(len(self.peer.frames()), 2)

    def test_behindWorker(self) -> None:
        """Behind a batch that a worker checks a run waits."""
        large = batchOf(*[bytes([at % 251]) * 5_000 for at in range(60)], codec=1)
        self.peer.send(*self.frames(large), *self.frames(batchOf(b"a"), batchOf(b"b")))
        self.lead.settle()
        offsets = [int.from_bytes(each[15:23], "big") for each in self.peer.frames()]
        self.assertEqual(offsets, [0, 60, 61])
