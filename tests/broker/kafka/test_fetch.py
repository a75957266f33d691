"""Fetch requests."""

from __future__ import annotations

import errno
import os
from typing import Any

from pylogbroker.broker.kafka.coordinators.coordinatorlog import encodeMarker, encodeRecords
from pylogbroker.broker.kafka.fetchsessions import FetchSessionCache
from pylogbroker.broker.logmanager import Partition
from pylogbroker.coordinator.effects import TransactionalProducer
from pylogbroker.interfaces import CheckLimits, EndMarker
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.messages import MESSAGES
from pylogbroker.records.recordbatch import iterateRecords, readHeader
from pylogbroker.storage.kafka.batchlog import BatchLog
from tests.broker.kafka.kafkacase import KafkaCase, batchOf, decoded, frameOf

Request: Any = MESSAGES["FetchRequest"]
VERSIONS = range(4, 19)
ANY_SIZE = 1 << 20


class FetchCase(KafkaCase):
    """What the cases below share."""

    def put(self, *values: bytes, index: int = 0) -> None:
        """A batch for each value, flushed."""
        partition = self.lead.service.kafka.topics.find("t", index)
        assert partition is not None
        for value in values:
            self.assertIsNotNone(self.lead.service._broker.tryAppend(partition, batchOf(value)))
        self.lead.logManager.requestFlush(partition)
        self.lead.logManager.writePending()
        self.lead.logManager.flush(partition)
        self.lead.settle()

    def request(
        self,
        *wanted: tuple[int, int],
        version: int = 12,
        topic: str = "t",
        sizeMax: int = ANY_SIZE,
        partSizeMax: int = ANY_SIZE,
        waitMs: int = 0,
        minSize: int = 1,
        isolation: int = 0,
        epoch: int = -1,
        **more: Any,
    ) -> Any:
        """@param wanted: (partition, offset)."""
        topicId = self.topicId() if topic == "t" else b"x" * 16
        parts = [
            Request.FetchPartition(
                partition=index,
                fetchOffset=offset,
                partitionMaxBytes=partSizeMax,
                currentLeaderEpoch=epoch if version >= 9 else -1,
            )
            for index, offset in wanted
        ]
        asked = Request.FetchTopic(
            topic="" if version >= 13 else topic,
            topicId=topicId if version >= 13 else bytes(16),
            partitions=parts,
        )
        return Request(
            maxWaitMs=waitMs,
            minBytes=minSize,
            maxBytes=sizeMax,
            isolationLevel=isolation,
            topics=[asked],
            **more,
        )

    def fetch(self, *wanted: tuple[int, int], version: int = 12, **more: Any) -> list[Any]:
        found = self.ask(ApiKey.FETCH, version, self.request(*wanted, version=version, **more))
        return [part for topic in found.responses for part in topic.partitions]

    def values(self, records: Any) -> list[bytes | None]:
        """Of the whole batches."""
        data, found, position = bytes(records or b""), [], 0
        while position + 61 <= len(data):
            header = readHeader(data, position)
            if position + header.size > len(data):
                break
            found += [each.value for each in iterateRecords(data, position, header, CheckLimits())]
            position += header.size
        return found


class ReadTests(FetchCase):
    """What is read."""

    def test_everyVersion(self) -> None:
        """Each version gets the batches from its offset on, and the partition's marks."""
        self.put(b"a", b"b", b"c")
        for version in VERSIONS:
            (part,) = self.fetch((0, 1), version=version)
            self.assertEqual(self.values(part.records), [b"b", b"c"], version)
            self.assertEqual((part.errorCode, part.highWatermark), (0, 3))
            self.assertEqual(part.lastStableOffset, 3)

    def test_severalPartitions(self) -> None:
        """
        Each partition has its own outcome, in the order of the request, behind those that do not
        exist. Of one that is named twice it is that of the last.
        """
        self.put(b"a")
        self.put(b"b", index=1)
        found = self.fetch((1, 0), (7, 0), (0, 0))
        self.assertEqual(
            [(part.partitionIndex, part.errorCode, self.values(part.records)) for part in found],
            [
                (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
                (1, 0, [b"b"]),
                (0, 0, [b"a"]),
            ],
        )
        found = self.fetch((1, 1), (0, 9), (1, 0))
        self.assertEqual(
            [(part.partitionIndex, part.errorCode, self.values(part.records)) for part in found],
            [(1, 0, [b"b"]), (0, ErrorCode.OFFSET_OUT_OF_RANGE, [])],
        )

    def test_unknown(self) -> None:
        """Topics and ids that are not there have the codes that Kafka gives."""
        (part,) = self.fetch((0, 0), topic="v")
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        (part,) = self.fetch((0, 0), topic="v", version=13)
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_ID)
        (part,) = self.fetch((9, 0), version=13)
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def test_epochs(self) -> None:
        """A leader epoch that is not ours is refused."""
        for epoch, code in ((0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            (part,) = self.fetch((0, 0), epoch=epoch)
            self.assertEqual(part.errorCode, code)

    def test_sizes(self) -> None:
        """
        Sizes limit the response, but for the first batch, which comes whole; a partition behind it
        has what is left.
        """
        self.put(b"a" * 1000, b"b" * 1000)
        self.put(b"c" * 1000, index=1)
        for sizeMax in (1, 500, 1070):
            (part,) = self.fetch((0, 0), partSizeMax=sizeMax)
            self.assertEqual(self.values(part.records), [b"a" * 1000], sizeMax)
        first, second = self.fetch((0, 0), (1, 0), sizeMax=1)
        self.assertEqual(self.values(first.records), [b"a" * 1000])
        self.assertEqual(second.records or b"", b"")
        first, second = self.fetch((0, 2), (1, 0), sizeMax=1)
        self.assertEqual(self.values(second.records), [b"c" * 1000])

    def test_cutBatch(self) -> None:
        """
        A partition behind the first that gives data gives nothing, if its next batch is larger than
        what is left: clients take a part of a batch alone for an error. So it is when the size of
        the batch can be seen at once, and when a worker has to look.
        """
        self.put(b"a" * 1000)
        self.put(b"b" * 1000, b"c" * 1000, index=1)
        preadv, seen = os.preadv, []

        def cached(fileno: int, buffers: Any, position: int, flags: int = 0) -> int:
            seen.append(flags)
            return preadv(fileno, buffers, position)

        for _ in range(2):
            for partSizeMax, expected in ((500, []), (1068, []), (1500, [b"b" * 1000])):
                first, second = self.fetch((0, 0), (1, 0), partSizeMax=partSizeMax)
                self.assertEqual(self.values(first.records), [b"a" * 1000])
                self.assertEqual(self.values(second.records), expected, partSizeMax)
                self.assertEqual(bool(second.records), bool(expected))
            self.patch(os, "preadv", cached)
        self.assertIn(os.RWF_NOWAIT, seen)

    def test_end(self) -> None:
        """At the end there is nothing, and behind it the offset is out of range."""
        self.put(b"a")
        for offset, code in ((1, 0), (2, ErrorCode.OFFSET_OUT_OF_RANGE)):
            (part,) = self.fetch((0, offset))
            self.assertEqual((part.errorCode, part.records or b""), (code, b""))

    def test_committed(self) -> None:
        """Readers of committed records get an empty list of aborted transactions."""
        self.put(b"a")
        (part,) = self.fetch((0, 0), isolation=1)
        self.assertEqual((self.values(part.records), part.abortedTransactions), ([b"a"], []))
        (part,) = self.fetch((0, 0))
        self.assertIsNone(part.abortedTransactions)


class CompactionTests(FetchCase):
    """Reading a partition that is compacted meanwhile."""

    topicConfigs = {"cleanup.policy": "compact"}

    def partition(self, index: int = 0) -> Partition:
        found = self.lead.service.kafka.topics.find("t", index)
        assert found is not None
        return found

    def fill(self) -> None:
        """
        A closed segment with an aborted transaction, and two values of a key; a record in the other
        partition; no file is open.
        """
        partition, nowMs = self.partition(), self.lead.logManager.nowMs()
        other = encodeRecords([(b"c", b"other")], nowMs, 1 << 20)
        self.assertIsNotNone(self.partition(1).append(other, nowMs))
        producer = TransactionalProducer(1, 0)
        for batches in (
            encodeRecords([(b"a", b"aborted")], nowMs, 1 << 20, producer),
            encodeMarker(producer, EndMarker(False, 0), nowMs),
            encodeRecords([(b"b", b"replaced")], nowMs, 1 << 20),
            encodeRecords([(b"b", b"kept")], nowMs, 1 << 20),
        ):
            self.assertIsNotNone(partition.append(batches, nowMs))
        self.lead.logManager.roll(partition)
        self.lead.settle()
        self.lead.stop()
        self.begin(fileSystem=self.lead.fileSystem, reactor=self.lead.reactor)

    def compact(self) -> None:
        """Compact what is due, while no reader's worker works."""
        self.lead.advance(15)
        for _ in range(20):
            self.lead.flushWorker.performAll()
            self.lead.turn()
        log = self.partition().log
        assert isinstance(log, BatchLog)
        self.assertEqual((log.cleanedOffset, log.abortedFrom(0)), (4, []))

    def test_aborted(self) -> None:
        """
        A fetch that waits for one partition has found what it reads of another; if that one is
        compacted meanwhile, the response has the records of the old file, and names the aborted
        transactions there, though the new one has none.
        """
        self.fill()
        (part,) = self.fetch((0, 0), isolation=1)
        self.assertEqual([each.firstOffset for each in part.abortedTransactions], [0])
        request = self.request((0, 0), (1, 0), isolation=1)
        self.peer.send(frameOf(ApiKey.FETCH, 12, request))
        self.compact()
        self.assertIsNone(self.answer(ApiKey.FETCH, 12))
        self.lead.settle()
        (topic,) = self.answer(ApiKey.FETCH, 12).responses
        compacted, waiting = topic.partitions
        self.assertEqual(self.values(waiting.records), [b"other"])
        values = self.values(compacted.records)
        self.assertEqual(values[:1] + values[2:], [b"aborted", b"replaced", b"kept"])
        told = [(each.producerId, each.firstOffset) for each in compacted.abortedTransactions]
        self.assertEqual(told, [(1, 0)])
        (part,) = self.fetch((0, 0), isolation=1)
        self.assertEqual(self.values(part.records)[-1:], [b"kept"])
        self.assertNotIn(b"aborted", self.values(part.records))

    def test_fileGone(self) -> None:
        """If the file that a fetch would open is exchanged before, the new one is read."""
        self.fill()
        self.peer.send(frameOf(ApiKey.FETCH, 12, self.request((0, 2))))
        self.compact()
        self.assertIsNone(self.answer(ApiKey.FETCH, 12))
        self.lead.settle()
        ((part,),) = (each.partitions for each in self.answer(ApiKey.FETCH, 12).responses)
        self.assertEqual((part.errorCode, self.values(part.records)), (0, [b"kept"]))

    def test_fileGoneOfTime(self) -> None:
        """If the file in which a time is searched is exchanged before, the new one is searched."""
        self.fill()
        cls: Any = MESSAGES["ListOffsetsRequest"]
        wanted = cls.ListOffsetsPartition(partitionIndex=0, timestamp=0)
        topic = cls.ListOffsetsTopic(name="t", partitions=[wanted])
        request = cls(replicaId=-1, isolationLevel=0, topics=[topic])
        self.peer.send(frameOf(ApiKey.LIST_OFFSETS, 4, request))
        self.compact()
        self.assertIsNone(self.answer(ApiKey.LIST_OFFSETS, 4))
        self.lead.settle()
        ((part,),) = (each.partitions for each in self.answer(ApiKey.LIST_OFFSETS, 4).topics)
        self.assertEqual((part.errorCode, part.offset), (0, 1))  # the marker


class WaitTests(FetchCase):
    """A fetch that waits."""

    def wait(self, *wanted: tuple[int, int], **more: Any) -> None:
        request = self.request(*wanted, **{"waitMs": 500, **more})
        self.peer.send(frameOf(ApiKey.FETCH, 12, request))
        self.lead.settle()
        self.assertEqual(self.peer.frames(), [])

    def now(self) -> list[Any] | None:
        found = self.answer(ApiKey.FETCH, 12)
        if found is None:
            return None
        return [self.values(part.records) for part in found.responses[0].partitions]

    def test_untilData(self) -> None:
        """It is answered when there is data in any of its partitions."""
        self.wait((0, 0), (1, 0))
        self.put(b"a", index=1)
        self.assertEqual(self.now(), [[], [b"a"]])
        self.lead.advance(1)
        self.assertIsNone(self.now())

    def test_untilItsTime(self) -> None:
        """Without data it is answered when its time is over."""
        self.wait((0, 0))
        self.lead.advance(0.4)
        self.assertIsNone(self.now())
        self.lead.advance(0.2)
        self.assertEqual(self.now(), [[]])

    def test_minBytes(self) -> None:
        """It waits for as many bytes as it asks for."""
        self.wait((0, 0), minSize=150)
        self.put(b"a")
        self.assertIsNone(self.now())
        self.put(b"b", b"c")
        self.assertEqual(self.now(), [[b"a", b"b", b"c"]])

    def test_errorsDoNotWait(self) -> None:
        """A partition that is refused answers the fetch at once; so does a fetch of nothing."""
        (part,) = self.fetch((5, 0), waitMs=500)
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        _, part = self.fetch((0, 0), (1, 9), waitMs=500)
        self.assertEqual(part.errorCode, ErrorCode.OFFSET_OUT_OF_RANGE)
        self.assertEqual(self.fetch(waitMs=500), [])

    def test_unknownWaits(self) -> None:
        """A partition that does not exist waits with the others."""
        self.wait((5, 0), (0, 0))
        self.put(b"a")
        self.assertEqual(self.now(), [[], [b"a"]])

    def test_deletion(self) -> None:
        """It is answered when its topic is deleted, as one that comes now, by name and by id."""
        other = MESSAGES["DeleteTopicsRequest"](topicNames=["t"])
        for version in (12, 13):
            request = self.request((0, 0), version=version, waitMs=500)
            self.peer.send(frameOf(ApiKey.FETCH, version, request))
            self.lead.settle()
            self.assertEqual(self.peer.frames(), [])
            waiting, self.peer = self.peer, self.connect()
            (deleted,) = self.ask(ApiKey.DELETE_TOPICS, 1, other).responses
            self.assertEqual(deleted.errorCode, 0)
            self.create("t", 2)
            self.peer = waiting
            found = self.answer(ApiKey.FETCH, version)
            (part,) = found.responses[0].partitions
            self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def test_connectionLost(self) -> None:
        """The wait ends with its connection, and leaves nothing."""
        self.wait((0, 0), waitMs=2**31 - 1)
        purgatory = self.lead.service.kafka.purgatory
        self.assertEqual(len(purgatory), 1)
        self.peer.vanish()
        self.lead.settle()
        self.assertEqual((len(purgatory), len(self.lead.service.connections.orphaned)), (0, 0))

    def test_flush(self) -> None:
        """A reader that waits has the flush started that lets it see what is written."""
        self.wait((0, 0))
        partition = self.lead.service.kafka.topics.find("t", 0)
        assert partition is not None
        self.lead.service._broker.tryAppend(partition, batchOf(b"a"))
        self.lead.settle()
        self.assertEqual(self.now(), [[b"a"]])


class UnreadableCase(FetchCase):
    """Records that were appended before a request, and that readers do not see yet."""

    def append(self, value: bytes = b"a") -> None:
        partition = self.lead.service.kafka.topics.find("t", 0)
        assert partition is not None
        self.lead.service._broker.tryAppend(partition, batchOf(value))

    def send(self, offset: int, **more: Any) -> None:
        """Ask, and let no worker do anything."""
        self.peer.send(frameOf(ApiKey.FETCH, 12, self.request((0, offset), **more)))

    def now(self) -> Any:
        """Error code, values and high watermark of the response, if there is one."""
        found = self.answer(ApiKey.FETCH, 12)
        if found is None:
            return None
        (part,) = found.responses[0].partitions
        return part.errorCode, self.values(part.records), part.highWatermark


class UnflushedTests(UnreadableCase):
    """They are not flushed."""

    def test_withoutWait(self) -> None:
        """A fetch that waits for nothing has what was appended before, after the flush."""
        self.put(b"flushed")
        for more in ({"waitMs": 0}, {"waitMs": 500, "minSize": 0}, {"isolation": 1}):
            end = self.lead.log().logEndOffset
            self.append()
            self.send(end - 1, **more)
            self.assertIsNone(self.now())
            self.lead.settle()
            values = [b"flushed" if end == 1 else b"a", b"a"]
            self.assertEqual(self.now(), (0, values, end + 1), more)

    def test_enough(self) -> None:
        """A fetch that may wait, and has enough that is flushed, is answered at once."""
        self.put(b"flushed")
        self.append()
        self.send(0, waitMs=500)
        self.assertEqual(self.now(), (0, [b"flushed"], 1))

    def test_behindTheWatermark(self) -> None:
        """
        An offset that an acknowledgement may have told is not out of range; one behind the end of
        the log is.
        """
        self.append()
        self.send(2, waitMs=500)
        self.assertEqual(self.now(), (ErrorCode.OFFSET_OUT_OF_RANGE, [], -1))
        for more in ({}, {"isolation": 1}):
            self.append()
            end = self.lead.log().logEndOffset
            self.send(end, waitMs=500, **more)
            self.lead.settle()
            self.assertIsNone(self.now())
            self.put(b"b")
            self.assertEqual(self.now(), (0, [b"b"], end + 1))

    def test_noFlush(self) -> None:
        """After five seconds without a flush it has what there is; the next one waits again."""
        self.put(b"flushed")
        self.append()
        self.send(0)
        self.lead.advance(4.9)
        self.assertIsNone(self.now())
        self.lead.advance(0.2)
        self.assertEqual(self.now(), (0, [b"flushed"], 1))
        self.send(0)
        self.assertIsNone(self.now())

    def test_failure(self) -> None:
        """The failure of the flush is told."""
        self.append()
        self.send(1)
        self.lead.fileSystem.fail("fsync", ".log", errno.EIO)
        self.lead.settle()
        self.assertEqual(self.now(), (ErrorCode.KAFKA_STORAGE_ERROR, [], -1))
        self.send(1)
        self.assertEqual(self.now(), (ErrorCode.KAFKA_STORAGE_ERROR, [], -1))

    def test_besideFailed(self) -> None:
        """A partition that is out of service does not end the wait for another, nor prolong it."""
        failed = self.lead.service.kafka.topics.find("t", 1)
        assert failed is not None
        self.lead.fileSystem.fail("fsync", ".log", errno.EIO)
        self.lead.service._broker.tryAppend(failed, batchOf(b"lost"))
        self.lead.service.logManager.flush(failed)
        self.lead.settle()
        self.assertTrue(failed.log.isOffline)
        self.append()
        self.peer.send(frameOf(ApiKey.FETCH, 12, self.request((0, 0), (1, 0))))
        self.assertIsNone(self.answer(ApiKey.FETCH, 12))
        self.lead.settle()
        found = self.answer(ApiKey.FETCH, 12)
        assert found is not None
        codes = {part.partitionIndex: part.errorCode for part in found.responses[0].partitions}
        self.assertEqual(codes, {0: 0, 1: ErrorCode.KAFKA_STORAGE_ERROR})

    def test_connectionLost(self) -> None:
        """The wait ends with its connection."""
        self.append()
        self.send(0)
        purgatory = self.lead.service.kafka.purgatory
        self.assertEqual(len(purgatory), 1)
        self.peer.vanish()
        self.assertEqual(len(purgatory), 0)


class UnwrittenTests(UnreadableCase):
    """Readers see the page cache, and they are not there yet."""

    properties = {"log.flush.before.read": "false"}

    def test_sameTurn(self) -> None:
        """A fetch in the turn of the append has the records, whether it may wait or not."""
        for waitMs in (0, 500):
            end = self.lead.log().logEndOffset
            self.append()
            self.send(end, waitMs=waitMs)
            self.assertEqual(self.now(), (0, [b"a"], end + 1))

    def test_requestsOfOneTurn(self) -> None:
        """A fetch has the records of the C{acks=0} request before it on the same connection."""
        produce: Any = MESSAGES["ProduceRequest"]
        part = produce.PartitionProduceData(index=0, records=batchOf(b"a"))
        topic = produce.TopicProduceData(name="t", partitionData=[part])
        body = produce(acks=0, timeoutMs=1000, topicData=[topic])
        fetch = frameOf(ApiKey.FETCH, 12, self.request((0, 0)))
        self.peer.send(frameOf(ApiKey.PRODUCE, 9, body), fetch)
        self.assertEqual(self.now(), (0, [b"a"], 1))

    def test_fullDisk(self) -> None:
        """While the disk is full, a fetch has what is written, after five seconds."""
        self.put(b"written")
        self.lead.fileSystem.fail("write", ".log", errno.ENOSPC, 1 << 20)
        self.append()
        self.send(0)
        self.assertIsNone(self.now())
        self.lead.advance(5.1)
        self.assertEqual(self.now(), (0, [b"written"], 1))
        self.lead.fileSystem.mend()
        self.flushLoggedErrors()


class SessionCase(FetchCase):
    """A client that keeps a session."""

    version = 12

    def setUp(self) -> None:
        super().setUp()
        self.sessionId = self.epoch = 0

    def next(self, *wanted: tuple[int, int], **more: Any) -> Any:
        """The response to the next request of the session."""
        version = more.pop("version", self.version)
        more = {"sessionId": self.sessionId, "sessionEpoch": self.epoch, **more}
        if wanted:
            request = self.request(*wanted, version=version, **more)
        else:
            request = self.request(version=version, topic="", **more)
            request.topics = []
        found = self.ask(ApiKey.FETCH, version, request)
        if found is not None:
            self.advance(found)
        return found

    def advance(self, found: Any) -> None:
        self.sessionId = found.sessionId
        self.epoch = self.epoch + 1 if found.sessionId else 0

    def parts(self, *wanted: tuple[int, int], **more: Any) -> list[Any]:
        """What the next response says: numbers, errors, values, high watermarks."""
        found = self.next(*wanted, **more)
        self.assertEqual(found.errorCode, 0)
        return [
            (part.partitionIndex, part.errorCode, self.values(part.records), part.highWatermark)
            for topic in found.responses
            for part in topic.partitions
        ]

    def forgotten(self, *indexes: int) -> list[Any]:
        return [
            Request.ForgottenTopic(
                topic="" if self.version >= 13 else "t",
                topicId=self.topicId() if self.version >= 13 else bytes(16),
                partitions=list(indexes),
            )
        ]

    @property
    def sessions(self) -> FetchSessionCache:
        return self.lead.service.kafka.fetchSessions


class SessionTests(SessionCase):
    """Sessions of requests that name topics."""

    def test_news(self) -> None:
        """A response has the partitions with records or new marks, and no others."""
        self.put(b"a")
        found = self.parts((0, 0), (1, 0), sessionEpoch=0)
        self.assertEqual(found, [(0, 0, [b"a"], 1), (1, 0, [], 0)])
        self.assertGreater(self.sessionId, 0)
        self.assertEqual(self.parts((0, 1)), [])
        self.put(b"b", index=1)
        self.assertEqual(self.parts(), [(1, 0, [b"b"], 1)])
        self.assertEqual(self.parts((1, 1)), [])
        self.put(b"c")
        self.put(b"d", index=1)
        self.assertEqual(self.parts(), [(0, 0, [b"c"], 2), (1, 0, [b"d"], 2)])

    def test_order(self) -> None:
        """A partition that has given records is read last the next time."""
        self.put(b"a" * 1000, b"b" * 1000)
        self.put(b"c" * 1000, b"d" * 1000, index=1)
        self.parts((0, 0), (1, 0), sizeMax=1)
        self.assertEqual(self.parts((0, 1), sizeMax=1), [(0, 0, [b"b" * 1000], 2)])
        self.assertEqual(self.parts((0, 2), sizeMax=1), [(1, 0, [b"c" * 1000], 2)])
        self.assertEqual(self.parts((1, 1), sizeMax=1), [(1, 0, [b"d" * 1000], 2)])

    def test_errors(self) -> None:
        """A partition with an error is told each time, and once more when it is well again."""
        self.parts((0, 0), (1, 9))
        outOfRange: Any = (1, ErrorCode.OFFSET_OUT_OF_RANGE, [], -1)
        self.assertEqual(self.parts(), [outOfRange])
        self.assertEqual(self.parts(), [outOfRange])
        self.assertEqual(self.parts((1, 0)), [(1, 0, [], 0)])
        self.assertEqual(self.parts(), [])

    def test_forgotten(self) -> None:
        """A forgotten partition is not read, and a session without partitions ends."""
        self.parts((0, 0), (1, 0))
        self.put(b"a")
        self.put(b"b", index=1)
        found = self.parts(forgottenTopicsData=self.forgotten(0))
        self.assertEqual(found, [(1, 0, [b"b"], 1)])
        self.assertEqual(self.parts(forgottenTopicsData=self.forgotten(1)), [])
        self.assertEqual((self.sessionId, len(self.sessions)), (0, 0))

    def test_refusals(self) -> None:
        """A request whose session is another than the client believes leaves it as it was."""
        self.parts((0, 0))
        sessionId, epoch = self.sessionId, self.epoch
        for fields, code in (
            ({"sessionId": sessionId ^ 1}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            ({"sessionEpoch": epoch + 1}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
            ({"version": 13}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        ):
            self.sessionId, self.epoch = sessionId, epoch
            found = self.next(**fields)
            self.assertEqual(
                (found.errorCode, found.sessionId, found.responses), (code, 0, []), fields
            )
        self.sessionId, self.epoch = sessionId, epoch
        self.assertEqual(self.parts(), [])

    def test_end(self) -> None:
        """The epoch -1 ends the session, and is answered at once."""
        self.parts((0, 0))
        self.assertEqual(self.parts(sessionEpoch=-1, waitMs=500), [])
        self.assertEqual((self.sessionId, len(self.sessions)), (0, 0))

    def test_oldVersions(self) -> None:
        """Requests that know no sessions get none."""
        for version in (4, 6):
            self.fetch((0, 0), version=version)
        self.assertEqual(len(self.sessions), 0)
        self.parts((0, 0), version=7)
        self.assertEqual(len(self.sessions), 1)

    def test_wait(self) -> None:
        """A request that names nothing waits for all of its session's partitions."""
        self.parts((0, 0), (1, 0))
        self.assertIsNone(self.next(waitMs=500))
        self.put(b"a", index=1)
        found = self.answer(ApiKey.FETCH, 12)
        self.advance(found)
        (topic,) = found.responses
        self.assertEqual([part.partitionIndex for part in topic.partitions], [1])
        self.assertIsNone(self.next((1, 1), waitMs=500))
        self.lead.advance(0.6)
        found = self.answer(ApiKey.FETCH, 12)
        self.assertEqual((found.sessionId, found.responses), (self.sessionId, []))

    def test_overtaken(self) -> None:
        """When the session is used while a request waits, that request has an error, no data."""
        self.parts((0, 0))
        self.assertIsNone(self.next(waitMs=500))
        first, self.peer = self.peer, self.connect()
        self.epoch += 1
        self.assertEqual(self.parts(), [])
        self.put(b"a")
        self.peer = first
        found = self.answer(ApiKey.FETCH, 12)
        self.assertEqual(
            (found.errorCode, found.sessionId, found.responses),
            (ErrorCode.INVALID_FETCH_SESSION_EPOCH, self.sessionId, []),
        )

    def test_connectionLost(self) -> None:
        """A request that waits for its first response makes no session when its client is gone."""
        self.assertIsNone(self.next((0, 0), waitMs=500))
        self.peer.vanish()
        self.lead.settle()
        self.assertEqual((len(self.sessions), len(self.lead.service.kafka.purgatory)), (0, 0))


class SessionIdTests(SessionCase):
    """Sessions of requests that name topics by their ids."""

    version = 13

    def test_news(self) -> None:
        """They are as those by name."""
        self.assertEqual(self.parts((0, 0), (1, 0)), [(0, 0, [], 0), (1, 0, [], 0)])
        self.put(b"a", index=1)
        self.assertEqual(self.parts(), [(1, 0, [b"a"], 1)])
        self.assertEqual(self.parts(forgottenTopicsData=self.forgotten(1)), [])
        self.assertIsNone(self.next(waitMs=500))

    def test_recreated(self) -> None:
        """
        A session tells that its topic is gone, and that there is another of this name; a request
        without a session cannot tell them apart.
        """
        self.parts((0, 0))
        old = self.request((0, 0), version=13)
        request = MESSAGES["DeleteTopicsRequest"](topicNames=["t"])
        (deleted,) = self.ask(ApiKey.DELETE_TOPICS, 1, request).responses
        self.assertEqual(deleted.errorCode, 0)
        self.assertEqual(self.parts(), [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [], -1)])
        self.create("t", 1)
        self.assertEqual(self.parts(), [(0, ErrorCode.INCONSISTENT_TOPIC_ID, [], -1)])
        found = self.ask(ApiKey.FETCH, 13, old)
        (part,) = found.responses[0].partitions
        self.assertEqual(part.errorCode, ErrorCode.UNKNOWN_TOPIC_ID)


class NoSessionTests(SessionCase):
    """A broker without room for sessions."""

    properties = {"max.incremental.fetch.session.cache.slots": "0"}

    def test_none(self) -> None:
        """The client is told so, and goes on to name all of its partitions."""
        self.put(b"a")
        for _ in range(2):
            self.assertEqual(self.parts((0, 0), (1, 0)), [(0, 0, [b"a"], 1), (1, 0, [], 0)])
            self.assertEqual(self.sessionId, 0)


class EndTests(FetchCase):
    """Waits that end otherwise than by data or time."""

    def waiting(self, *wanted: tuple[int, int], **more: Any) -> None:
        request = self.request(*wanted, **{"waitMs": 500_000, **more})
        self.peer.send(frameOf(ApiKey.FETCH, 12, request))
        self.lead.settle()

    def test_heldRequests(self) -> None:
        """Requests that were held when their connection was lost do not begin to wait."""
        request = frameOf(ApiKey.FETCH, 12, self.request((0, 0), waitMs=500_000))
        self.peer.send(request * 20)
        self.lead.settle()
        self.assertEqual(len(self.lead.service.kafka.purgatory), 8)
        self.peer.vanish()
        self.lead.settle()
        self.assertEqual(len(self.lead.service.kafka.purgatory), 0)
        self.assertEqual(len(self.lead.service.connections.orphaned), 0)

    def test_stop(self) -> None:
        """A broker that stops answers fetches that wait, and waits for none."""
        self.waiting((0, 0))
        self.assertEqual(self.peer.frames(), [])
        started = self.lead.reactor.seconds()
        self.lead.stop()
        self.assertLess(self.lead.reactor.seconds() - started, 4)
        self.assertEqual(len(self.peer.frames()), 1)

    def test_outdatedInSession(self) -> None:
        """
        A request of a session that waits while a later one ends the session is answered with an
        error, and breaks nothing.
        """
        body = self.request((0, 0), sessionEpoch=0)
        found = self.ask(ApiKey.FETCH, 12, body)
        session = {"sessionId": found.sessionId}
        self.waiting(**session, sessionEpoch=1)
        forgotten = Request.ForgottenTopic(topic="t", partitions=[0])
        later = Request(**session, sessionEpoch=2, forgottenTopicsData=[forgotten])
        self.peer.send(frameOf(ApiKey.FETCH, 12, later))
        self.lead.settle()
        self.put(b"a")
        first, _second = (decoded(ApiKey.FETCH, 12, each) for each in self.peer.frames())
        self.assertEqual(first.errorCode, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self.put(b"b")

    def test_longNames(self) -> None:
        """No session keeps names that no topic can have."""
        for size, isKept in ((250, False), (249, True)):
            body = self.request((0, 0), topic="x" * size, sessionEpoch=0)
            found = self.ask(ApiKey.FETCH, 12, body)
            self.assertIs(found.sessionId != 0, isKept)
        found = self.ask(ApiKey.FETCH, 12, self.request((0, 0), sessionEpoch=0))
        more = self.request((0, 0), topic="x" * 250, sessionId=found.sessionId, sessionEpoch=1)
        found = self.ask(ApiKey.FETCH, 12, more)
        self.assertEqual(found.errorCode, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
