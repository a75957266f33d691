"""Topics and their partitions, when several changes are under way."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka.errors import KafkaError
from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    PartitionCountRecord,
    Record,
    RemoveTopicRecord,
)
from pylogbroker.errors import StorageError
from pylogbroker.net.deferreds import BATCH_COUNT_MAX
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.requestbench import ROOT, START_MS, RequestBench


class TopicTests(SynchronousTestCase):
    """L{pylogbroker.broker.kafka.topics.TopicManager}."""

    def setUp(self) -> None:
        self.bench = RequestBench()
        self.topics = self.bench.topics

    def begin(self, name: str, count: int = 1) -> Deferred[Any]:
        return Deferred.fromCoroutine(self.topics.create(name, count))

    def change(self, *records: Any) -> Deferred[Any]:
        """Records of classes that take a topic's id first; the topic is called C{a}."""

        def decide(image: MetadataImage) -> tuple[list[Record], None]:
            topicId = str(image.topics["a"].topicId)
            return [kind(topicId, *fields) for kind, *fields in records], None

        return Deferred.fromCoroutine(self.topics.change(decide))

    def test_createdTwiceAtOnce(self) -> None:
        """Whoever asks for a topic that is just created waits for its partitions, too."""
        first, second = self.begin("a", 2), self.begin("a", 5)
        self.bench.worker.perform()
        self.bench.worker.perform()
        third = self.begin("a")
        for waiting in (first, second, third):
            self.assertNoResult(waiting)
        for waiting in (first, second, third):
            self.assertEqual(self.bench.do(waiting).partitionCount, 2)
        self.assertIsNotNone(self.topics.find("a", 1))

    def test_strays(self) -> None:
        """The records of a topic that the metadata do not know are not deleted by age either."""
        self.bench.create("a")
        self.bench.append(b"x", name="a")
        self.bench.settle()
        for name in ("metadata.journal", "meta.properties"):
            self.bench.files.remove(f"{ROOT}/{name}")
        self.bench.files.kill()
        bench = RequestBench(self.bench.files, log_retention_hours="1")
        (log,) = bench.kafka.topics._directory.logs.values()
        self.assertIsNone(bench.topics.find("a", 0))
        self.assertEqual(log.settings.retention(log.segments, 2 * START_MS), 0)

    def test_journalIsGone(self) -> None:
        """Without its metadata a directory of this protocol is refused, also the second time."""
        files = self.bench.files
        files.remove(f"{ROOT}/metadata.journal")
        for _ in range(2):
            files.kill()
            error = self.assertRaises(StorageError, RequestBench, files)
            self.assertIn("neither metadata.journal nor __cluster_metadata-0", str(error))

    def test_stop(self) -> None:
        """A stop waits for the partition that is created, and no other is; the topic is there."""
        creating = self.begin("a", 2)
        self.bench.worker.perform()
        stopping = Deferred.fromCoroutine(self.topics.stop())
        self.assertNoResult(stopping)
        self.bench.settle()
        self.successResultOf(stopping)
        self.successResultOf(creating)
        later = self.begin("b")
        self.bench.settle()
        self.successResultOf(later)
        self.assertEqual(list(self.topics.image.topics), ["a", "b"])
        self.assertIsNone(self.topics.find("b", 0))

    def test_grownWhileCreated(self) -> None:
        """Partitions that are added while others are created are there in the end."""
        first = self.begin("a", 2)
        self.bench.worker.perform()
        second = self.change((PartitionCountRecord, 4))
        self.bench.do(first)
        self.bench.do(second)
        found = [self.topics.find("a", index) for index in range(4)]
        self.assertNotIn(None, found)

    def test_removedWhileCreated(self) -> None:
        """A topic that is removed while it is created leaves nothing behind."""
        creating = self.begin("a", 2)
        self.bench.worker.perform()
        self.assertEqual(list(self.topics.image.topics), ["a"])
        removing = self.change((RemoveTopicRecord,))
        self.bench.worker.jobs.rotate(1)  # the metadata are written first
        self.bench.settle()
        self.successResultOf(removing)
        error = self.failureResultOf(creating, KafkaError).value
        self.assertEqual(error.code, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.checkNothingLeft()

    def checkNothingLeft(self) -> None:
        """The topic C{a} is gone, and can be created again."""
        self.assertEqual((dict(self.bench.directory.logs), self.topics.image.removing), ({}, {}))
        self.assertFalse([name for name in self.bench.files.list(ROOT) if name.startswith("a-")])
        self.bench.do(self.begin("a"))
        self.bench.append(b"x", name="a")

    def test_removedBetweenBatches(self) -> None:
        """Partitions whose creation has not begun when their topic is removed are not created."""
        creating = self.begin("a", BATCH_COUNT_MAX + 5)
        self.bench.worker.perform()
        self.assertEqual(len(self.bench.worker.jobs), BATCH_COUNT_MAX)
        removing = self.change((RemoveTopicRecord,))
        self.bench.worker.jobs.rotate(1)  # the metadata are written first
        self.bench.settle()
        self.successResultOf(removing)
        self.failureResultOf(creating, KafkaError)
        self.checkNothingLeft()

    def test_removedBeforeTaken(self) -> None:
        """A partition whose files are there when its topic is removed is removed with it."""
        creating = self.begin("a")
        self.bench.worker.perform()
        work, done = self.bench.worker.jobs.popleft()
        work()  # the reactor has not heard of it yet
        removing = self.change((RemoveTopicRecord,))
        self.bench.worker.perform()
        self.assertEqual(list(self.topics.image.removing.values()), ["a"])
        done.callback(None)
        self.bench.settle()
        self.successResultOf(removing)
        self.failureResultOf(creating, KafkaError)
        self.checkNothingLeft()

    def test_nameOfOneProtocol(self) -> None:
        """A name is this protocol's from the decision to create it to the end of its removal."""
        isTopic = self.bench.kafka.isTopic
        creating = self.begin("a")
        self.assertTrue(isTopic("a"))
        self.bench.do(creating)
        self.assertTrue(isTopic("a"))
        removing = self.change((RemoveTopicRecord,))
        self.bench.worker.perform()
        self.assertEqual((list(self.topics.image.topics), isTopic("a")), ([], True))
        while len(self.topics.image.removing):
            self.assertTrue(isTopic("a"))
            self.bench.worker.perform()
        self.successResultOf(removing)
        self.assertFalse(isTopic("a"))

    def test_nameOf2011(self) -> None:
        """A name whose first partition of 2011's protocol is being created is refused."""
        job = self.bench.directory.beginCreate("a", 0)
        error = self.failureResultOf(self.begin("a"), KafkaError).value
        self.assertEqual(error.code, ErrorCode.TOPIC_ALREADY_EXISTS)
        job.run()
        self.bench.directory.finishCreate(job, None)
        self.failureResultOf(self.begin("a"), KafkaError)

    def restartWithFailure(self) -> None:
        """Restart the broker; the first partition of C{a} is out of service then."""
        self.bench.directory.close()
        self.bench.files.fail("list", "a-0", errno.EIO)
        self.bench = RequestBench(self.bench.files)
        self.topics = self.bench.topics

    def test_removedOutOfService(self) -> None:
        """A partition that could not be loaded is removed with its topic."""
        self.bench.do(self.begin("a", 2))
        with capturedLogs():
            self.restartWithFailure()
        self.assertEqual(list(self.bench.directory.failures), [("a", 0)])
        self.bench.do(self.change((RemoveTopicRecord,)))
        self.assertEqual(self.bench.directory.failures, {})
        self.checkNothingLeft()

    def test_restartedWhileRemoved(self) -> None:
        """A start removes what is left of a topic, also a partition that could not be loaded."""
        self.bench.do(self.begin("a", 2))
        self.change((RemoveTopicRecord,))
        self.bench.worker.perform()
        self.assertEqual(list(self.topics.image.removing.values()), ["a"])
        self.restartWithFailure()
        self.checkNothingLeft()

    def test_failedCreation(self) -> None:
        """A partition that cannot be created is told to operators, and is tried again."""
        self.bench.files.fail("create", ".log", errno.EIO)
        with capturedLogs() as events:
            self.bench.do(self.begin("a"))
        texts = [formatEvent(event) for event in events]
        self.assertTrue([each for each in texts if "a-0 cannot be created" in each], texts)
        self.assertIsNone(self.topics.find("a", 0))
        self.bench.do(self.begin("a"))
        self.assertIsNotNone(self.topics.find("a", 0))

    def test_removedAfterFailedCreation(self) -> None:
        """
        What a failed creation leaves goes with its topic, also if it failed before the first file.
        """
        for action, path in (("create", ".log"), ("create", ".metadata.tmp"), ("create", "a-0")):
            self.bench.files.fail(action, path, errno.EIO)
            with capturedLogs():
                self.bench.do(self.begin("a"))
            self.assertIsNone(self.topics.find("a", 0))
            self.bench.do(self.change((RemoveTopicRecord,)))
            self.bench.files.mend()
            self.checkNothingLeft()
            self.bench.do(self.change((RemoveTopicRecord,)))

    def test_failedCreationThenRestart(self) -> None:
        """
        A start creates what a failed creation left out, and removes what a removed topic left.
        """
        for path in (".log", ".metadata.tmp"):
            for isRemoved in (False, True):
                self.setUp()
                self.bench.files.fail("create", path, errno.EIO)
                with capturedLogs():
                    self.bench.do(self.begin("a"))
                    if isRemoved:
                        self.bench.files.fail("rename", "a-0", errno.EIO)
                        self.bench.do(self.change((RemoveTopicRecord,)))
                self.bench.files.mend()
                self.bench.directory.close()
                self.bench = RequestBench(self.bench.files)
                self.topics = self.bench.topics
                if isRemoved:
                    self.checkNothingLeft()
                self.bench.do(self.begin("a"))
                self.bench.append(b"x", name="a")
