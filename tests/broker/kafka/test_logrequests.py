"""Offsets by time and by epoch, deleting records, sizes, producers."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.logrequests import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    WAIT_MS_MAX,
    LogRequests,
)
from pylogbroker.cluster.metadataimage import Record, RemoveTopicRecord
from pylogbroker.errors import StorageError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.storage.kafka.batchlog import BatchLog
from tests.broker.kafka.requestbench import ROOT, START_MS, RequestBench

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
FENCED, FUTURE = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH


class LogCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.bench = RequestBench()
        self.bench.create("t", 2)
        self.space: Any = (1000, 400)
        requests = LogRequests(
            self.bench.broker, self.bench.topics, self.bench.kafka.purgatory, ROOT, self.diskSpace
        )
        self.bench.handlers = requests.handlers

    def diskSpace(self, path: str) -> tuple[int, int]:
        if isinstance(self.space, OSError):
            raise self.space
        assert path == ROOT
        return self.space

    def takeOffline(self) -> None:
        """The first partition has failed."""
        self.bench.partition().log.failure = StorageError("", "x", "", errno.EIO)


class ListOffsetsTests(LogCase):
    """ListOffsets."""

    def request(
        self,
        *wanted: tuple[str, int, int],
        epoch: int = -1,
        replicaId: int = -1,
        isolation: int = 0,
    ) -> Any:
        cls = messages.ListOffsetsRequest
        return cls(
            replicaId=replicaId,
            isolationLevel=isolation,
            topics=[
                cls.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        cls.ListOffsetsPartition(
                            partitionIndex=index, timestamp=timestamp, currentLeaderEpoch=epoch
                        )
                    ],
                )
                for name, index, timestamp in wanted
            ],
        )

    def ask(self, timestamp: int, version: int = 11, **fields: Any) -> tuple[int, int, int, int]:
        """(code, timestamp, offset, epoch)."""
        request = self.request(("t", 0, timestamp), **fields)
        (topic,) = self.bench.ask(ApiKey.LIST_OFFSETS, version, request).topics
        (part,) = topic.partitions
        self.assertEqual((topic.name, part.partitionIndex), ("t", 0))
        return part.errorCode, part.timestamp, part.offset, part.leaderEpoch

    def test_ends(self) -> None:
        """The earliest and the latest offset, in the first and the last version."""
        self.assertEqual(self.ask(LATEST), (0, -1, 0, 0))
        self.bench.append(b"a", b"b", b"c")
        for version, epoch in ((1, -1), (4, 0), (11, 0)):
            self.assertEqual(self.ask(LATEST, version), (0, -1, 3, epoch))
            self.assertEqual(self.ask(EARLIEST, version), (0, -1, 0, epoch))
        log = self.bench.partition().log
        assert isinstance(log, BatchLog)
        log.deleteRecords(2)
        self.assertEqual(self.ask(EARLIEST), (0, -1, 2, 0))
        self.assertEqual(self.ask(EARLIEST_LOCAL), (0, -1, 2, 0))

    def test_tiers(self) -> None:
        """There is no tier: nothing is in it, and nothing waits to be."""
        self.bench.append(b"a")
        self.assertEqual(self.ask(LATEST_TIERED), (0, -1, -1, -1))
        self.assertEqual(self.ask(EARLIEST_PENDING_UPLOAD), (0, -1, -1, -1))

    def test_latestIsFlushed(self) -> None:
        """The latest offset has what was acknowledged before; a flush makes that visible."""
        self.bench.append(b"a")
        log = self.bench.partition().log
        self.assertEqual(log.highWatermark, 0)
        waiting = self.bench.begin(ApiKey.LIST_OFFSETS, 11, self.request(("t", 0, LATEST)))
        self.assertNoResult(waiting)
        found = self.bench.do(waiting)
        self.assertEqual((found.topics[0].partitions[0].offset, log.highWatermark), (1, 1))

    def test_slowDisk(self) -> None:
        """When the flush takes too long, the answer is what is visible."""
        self.bench.append(b"a")
        waiting = self.bench.begin(ApiKey.LIST_OFFSETS, 11, self.request(("t", 0, LATEST)))
        self.bench.clock.advance(WAIT_MS_MAX / 1000)
        part = self.successResultOf(waiting).topics[0].partitions[0]
        self.assertEqual((part.errorCode, part.offset), (0, 0))
        self.bench.settle()

    def test_failingDisk(self) -> None:
        """When the flush fails, so does the request."""
        self.bench.append(b"a")
        self.bench.files.fail("fsync", ".log", errno.EIO)
        self.assertEqual(self.ask(LATEST)[0], ErrorCode.KAFKA_STORAGE_ERROR)
        self.assertEqual(self.ask(EARLIEST)[0], ErrorCode.KAFKA_STORAGE_ERROR)

    def test_replicas(self) -> None:
        """Whoever is no consumer sees the end of the log."""
        self.bench.append(b"a")
        self.assertEqual(self.ask(LATEST, replicaId=-2), (0, -1, 1, 0))

    def test_meaningless(self) -> None:
        """An epoch that is none, and a level of isolation that is none."""
        self.assertEqual(self.ask(LATEST, epoch=-2)[0], ErrorCode.FENCED_LEADER_EPOCH)
        for isolation in (-1, 2):
            found = self.ask(LATEST, isolation=isolation)
            self.assertEqual(found, (ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1, -1))

    def test_committed(self) -> None:
        """For readers of committed records, the latest offset is the last stable one."""
        self.bench.append(b"a")
        self.bench.append(b"b", producer=5, epoch=0, sequence=0, transactional=True)
        self.assertEqual(self.ask(LATEST, isolation=1), (0, -1, 1, 0))
        self.assertEqual(self.ask(LATEST, isolation=0), (0, -1, 2, 0))

    def test_noTimestamps(self) -> None:
        """Where no record has a time, the newest is the first."""
        self.bench.append(b"a", b"b", timestampMs=-1)
        self.assertEqual(self.ask(MAX_TIMESTAMP), (0, -1, 0, 0))

    def test_byTime(self) -> None:
        """The first record that is not older, if readers see it; or the newest of all."""
        for number, time in enumerate((10, 30, 20)):
            self.bench.append(b"%d" % number, timestampMs=START_MS + time)
        self.assertEqual(self.ask(START_MS + 11, 1), (0, START_MS + 30, 1, -1))
        self.assertEqual(self.ask(START_MS), (0, START_MS + 10, 0, 0))
        self.assertEqual(self.ask(START_MS + 31), (0, -1, -1, -1))
        self.assertEqual(self.ask(MAX_TIMESTAMP), (0, START_MS + 30, 1, 0))
        self.bench.append(
            b"x", producer=5, epoch=0, sequence=0, transactional=True, timestampMs=START_MS + 99
        )
        self.assertEqual(self.ask(START_MS + 31, isolation=1), (0, -1, -1, -1))
        self.assertEqual(self.ask(START_MS + 31), (0, START_MS + 99, 3, 0))

    def test_emptyByTime(self) -> None:
        """An empty log has no record of any time."""
        self.assertEqual(self.ask(5), (0, -1, -1, -1))
        self.assertEqual(self.ask(MAX_TIMESTAMP), (0, -1, -1, -1))

    def test_versions(self) -> None:
        """A time that stands for something else is refused before the version that has it."""
        code = ErrorCode.UNSUPPORTED_VERSION
        for timestamp, version in (
            (MAX_TIMESTAMP, 6),
            (EARLIEST_LOCAL, 7),
            (LATEST_TIERED, 8),
            (EARLIEST_PENDING_UPLOAD, 10),
            (-7, 11),
        ):
            self.assertEqual(self.ask(timestamp, version)[0], code)
            if timestamp != -7:
                self.assertEqual(self.ask(timestamp, version + 1)[0], 0)

    def test_refused(self) -> None:
        """Unknown partitions, other epochs, and partitions that are asked for twice."""
        self.assertEqual(self.ask(LATEST, epoch=1)[0], FUTURE)
        self.bench.partition().log.leaderEpoch = 3
        self.assertEqual(self.ask(LATEST, epoch=1)[0], FENCED)
        request = self.request(("t", 0, LATEST), ("t", 9, LATEST), ("z", 0, LATEST), ("t", 0, 5))
        found = self.bench.ask(ApiKey.LIST_OFFSETS, 11, request).topics
        self.assertEqual(
            [(each.name, each.partitions[0].errorCode) for each in found],
            [
                ("t", ErrorCode.INVALID_REQUEST),
                ("t", UNKNOWN),
                ("z", UNKNOWN),
                ("t", ErrorCode.INVALID_REQUEST),
            ],
        )


class EpochTests(LogCase):
    """OffsetForLeaderEpoch."""

    def ask(
        self, leaderEpoch: int, version: int = 4, index: int = 0, current: int = -1
    ) -> tuple[int, int, int]:
        """(code, epoch, end offset)."""
        cls = messages.OffsetForLeaderEpochRequest
        part = cls.OffsetForLeaderPartition(
            partition=index, currentLeaderEpoch=current, leaderEpoch=leaderEpoch
        )
        request = cls(topics=[cls.OffsetForLeaderTopic(topic="t", partitions=[part])])
        (topic,) = self.bench.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request).topics
        (found,) = topic.partitions
        self.assertEqual((topic.topic, found.partition), ("t", index))
        return found.errorCode, found.leaderEpoch, found.endOffset

    def test_epochs(self) -> None:
        """An epoch ends where the next begins, the last one at the end of the log."""
        log: Any = self.bench.partition().log
        self.assertEqual(self.ask(0), (0, 0, 0))
        self.bench.append(b"a", b"b")
        log.epochs.assign(2, 1)
        for version in (2, 4):
            self.assertEqual(self.ask(0, version), (0, 0, 1))
            self.assertEqual(self.ask(2, version), (0, 2, 2))
        self.assertEqual(self.ask(3), (0, -1, -1))

    def test_refused(self) -> None:
        """Unknown partitions, other epochs, failed partitions."""
        self.assertEqual(self.ask(0, index=7), (UNKNOWN, -1, -1))
        self.assertEqual(self.ask(0, current=4)[0], FUTURE)
        self.takeOffline()
        self.assertEqual(self.ask(0)[0], ErrorCode.KAFKA_STORAGE_ERROR)


class DeleteRecordsTests(LogCase):
    """DeleteRecords."""

    def delete(self, offset: int, version: int = 2, name: str = "t", index: int = 0) -> Any:
        """(code, low watermark)."""
        cls = messages.DeleteRecordsRequest
        part = cls.DeleteRecordsPartition(partitionIndex=index, offset=offset)
        request = cls(topics=[cls.DeleteRecordsTopic(name=name, partitions=[part])])
        (topic,) = self.bench.ask(ApiKey.DELETE_RECORDS, version, request).topics
        (found,) = topic.partitions
        self.assertEqual((topic.name, found.partitionIndex), (name, index))
        return found.errorCode, found.lowWatermark

    def test_delete(self) -> None:
        """Records below an offset are gone, durably; -1 are all that were acknowledged."""
        self.bench.append(b"a", b"b", b"c", b"d")
        self.assertEqual(self.delete(1, 0), (0, 1))
        self.assertEqual(self.delete(2), (0, 2))
        self.assertEqual(self.delete(1), (0, 2))
        self.bench.append(b"e")
        self.assertEqual(self.delete(-1), (0, 5))
        self.bench.files.cutPower()
        again = RequestBench(self.bench.files)
        self.assertEqual(again.partition().log.logStartOffset, 5)

    def test_removing(self) -> None:
        """A topic is unknown from the decision to remove it, also beside others."""
        self.bench.create("a")
        self.bench.append(b"a")
        topics = self.bench.topics.image.topics
        records: list[Record] = [
            RemoveTopicRecord(str(topics[name].topicId)) for name in ("a", "t")
        ]
        removing = Deferred.fromCoroutine(self.bench.topics.change(lambda image: (records, None)))
        while "t" in self.bench.topics.image.topics:
            self.bench.worker.perform()
        self.assertNoResult(removing)
        self.assertIsNone(self.bench.topics.find("t", 0))
        self.assertEqual(self.delete(1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1))
        self.successResultOf(removing)

    def test_refused(self) -> None:
        """Offsets that are not there, and topics of which nothing may be deleted."""
        self.bench.append(b"a")
        self.bench.create("c", cleanup_policy="compact")
        self.bench.create("__consumer_offsets")
        out = ErrorCode.OFFSET_OUT_OF_RANGE
        for found, code in (
            (self.delete(2), out),
            (self.delete(-2), out),
            (self.delete(0, index=9), UNKNOWN),
            (self.delete(0, name="z"), UNKNOWN),
            (self.delete(0, name="c"), ErrorCode.POLICY_VIOLATION),
            (self.delete(0, name="__consumer_offsets"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ):
            self.assertEqual(found, (code, -1))


class LogDirsTests(LogCase):
    """DescribeLogDirs."""

    def ask(self, topics: list[tuple[str, list[int]]] | None, version: int = 5) -> Any:
        cls = messages.DescribeLogDirsRequest
        wanted = topics and [
            cls.DescribableLogDirTopic(topic=name, partitions=parts) for name, parts in topics
        ]
        response = self.bench.ask(ApiKey.DESCRIBE_LOG_DIRS, version, cls(topics=wanted))
        (found,) = response.results
        self.assertEqual((response.errorCode, found.errorCode, found.logDir), (0, 0, ROOT))
        self.sizes = {
            (topic.name, part.partitionIndex): part.partitionSize
            for topic in found.topics
            for part in topic.partitions
        }
        return found

    def test_all(self) -> None:
        """All partitions with their sizes, flushed or not, and what the file system has."""
        self.bench.append(b"a")
        self.ask(None)
        unflushed = self.sizes
        self.assertEqual(self.bench.partition().log.size, 0)
        self.bench.settle()
        self.bench.logManager.flush(self.bench.partition())
        self.bench.settle()
        found: Any = None
        for version in (1, 5):
            found = self.ask(None, version)
            self.assertEqual(self.sizes, {("t", 0): self.bench.partition().log.size, ("t", 1): 0})
            self.assertGreater(self.sizes["t", 0], 61)
            self.assertEqual(self.sizes, unflushed)
        self.assertEqual(
            (found.totalBytes, found.usableBytes, found.isCordoned), (1000, 400, False)
        )

    def test_some(self) -> None:
        """Partitions that were asked for, if they are there and in service."""
        self.ask([("t", [1, 1, 7]), ("z", [0])])
        self.assertEqual(self.sizes, {("t", 1): 0})
        self.ask([])
        self.assertEqual(self.sizes, {})
        self.takeOffline()
        self.ask([("t", [0, 1])])
        self.assertEqual(self.sizes, {("t", 1): 0})

    def test_noSpaceKnown(self) -> None:
        """Without an answer of the file system its sizes are unknown."""
        self.space = OSError(errno.EIO, "x")
        found = self.ask(None)
        self.assertEqual((found.totalBytes, found.usableBytes), (-1, -1))
        self.assertEqual(len(self.sizes), 2)


class ProducerTests(LogCase):
    """DescribeProducers and InitProducerId."""

    def test_describe(self) -> None:
        """Each producer that a partition knows, with its last sequence and transaction."""
        self.bench.append(b"a", b"b", producer=5, epoch=1, sequence=0, transactional=True)
        cls = messages.DescribeProducersRequest
        request = cls(
            topics=[
                cls.TopicRequest(name="t", partitionIndexes=[0, 1, 9]),
                cls.TopicRequest(name="b/c", partitionIndexes=[0]),
            ]
        )
        first, second = self.bench.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request).topics
        (producer,) = first.partitions[0].activeProducers
        self.assertEqual(
            (
                producer.producerId,
                producer.producerEpoch,
                producer.lastSequence,
                producer.lastTimestamp,
                producer.coordinatorEpoch,
                producer.currentTxnStartOffset,
            ),
            (5, 1, 1, START_MS, -1, 0),
        )
        self.assertEqual(first.partitions[1].activeProducers, [])
        codes = [(each.errorCode, each.errorMessage) for each in first.partitions]
        self.assertEqual(codes, [(0, None), (0, None), (UNKNOWN, None)])
        self.assertEqual(second.partitions[0].errorCode, ErrorCode.INVALID_TOPIC_EXCEPTION)

    def test_repeated(self) -> None:
        """A partition is described twice at most, however often a request names it."""
        cls = messages.DescribeProducersRequest
        topics = [cls.TopicRequest(name="t", partitionIndexes=[0, 1, 0, 0]) for _ in range(2)]
        found = self.bench.ask(ApiKey.DESCRIBE_PRODUCERS, 0, cls(topics=topics)).topics
        indexes = [[part.partitionIndex for part in each.partitions] for each in found]
        self.assertEqual(indexes, [[0, 1, 0], [1]])
